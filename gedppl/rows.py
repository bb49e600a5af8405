"""An append-only history of rows (context, action, outcome), and the same history padded to a few shapes.

Appending returns a new `Rows` and leaves the old one as it was: both look at one buffer, each at its own length, so a
state that holds an old `Rows` stays valid and a growing history costs amortised O(1) a row.
"""

from __future__ import annotations

import numpy as np

BUCKETS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


def bucket(n: int) -> int:
    """The smallest bucket that holds n rows."""
    for size in BUCKETS:
        if n <= size:
            return size
    return -(-n // BUCKETS[-1]) * BUCKETS[-1]


class Rows:
    """x (n, dx), a (n,), y (n,) or (n, e): read-only views of a shared, growing buffer.

    >>> rows = Rows.empty(dx=2).append([[0.1, 0.2]], [1], [0.7])
    >>> rows.n, rows.x.shape, rows.append([[0.3, 0.4]], [0], [0.1]).n, rows.n
    (1, (1, 2), 2, 1)
    """

    __slots__ = ("_buffer", "n")

    def __init__(self, buffer: _Buffer, n: int) -> None:
        self._buffer = buffer
        self.n = n

    @classmethod
    def empty(cls, dx: int, event_shape: tuple[int, ...] = ()) -> Rows:
        return cls(_Buffer(dx, event_shape), 0)

    @classmethod
    def of(cls, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Rows:
        """Rows with these contents; x (n, dx), a (n,), y (n,) or (n, e)."""
        x, y = np.asarray(x, float), np.asarray(y, float)
        return cls.empty(x.shape[1], y.shape[1:]).append(x, a, y)

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Rows:
        """A new history with these rows at the end."""
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        buffer = self._buffer
        if buffer.used != self.n:  # somebody else went on from here: take a branch of our own
            buffer = buffer.copy(self.n)
        buffer.write(x, a, y)
        return Rows(buffer, self.n + len(a))

    @property
    def x(self) -> np.ndarray:
        return self._buffer.view("x", self.n)

    @property
    def a(self) -> np.ndarray:
        return self._buffer.view("a", self.n)

    @property
    def y(self) -> np.ndarray:
        return self._buffer.view("y", self.n)

    def padded(self, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(x, a, y, weights), each with `bucket(n)` rows: the first row repeated, with weight 0.

        Padding repeats a real row because a NaN or an out-of-support value gives NaN gradients even under weight 0.
        """
        size = bucket(max(self.n, 1))
        if self.n == 0:
            raise ValueError("no rows to pad")
        take = np.zeros(size, np.int64)
        take[: self.n] = np.arange(self.n)
        w = np.zeros(size)
        w[: self.n] = 1.0 if weights is None else weights
        return self.x[take], self.a[take], self.y[take], w


class _Buffer:
    """Arrays that double when full."""

    def __init__(self, dx: int, event_shape: tuple[int, ...], capacity: int = 64) -> None:
        self.used = 0
        self.arrays = {
            "x": np.zeros((capacity, dx)),
            "a": np.zeros(capacity, np.int64),
            "y": np.zeros((capacity, *event_shape)),
        }

    def write(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> None:
        need = self.used + len(a)
        if need > len(self.arrays["a"]):
            size = max(need, 2 * len(self.arrays["a"]))
            self.arrays = {
                name: np.concatenate([old[: self.used], np.zeros((size - self.used, *old.shape[1:]), old.dtype)])
                for name, old in self.arrays.items()
            }
        for name, value in (("x", x), ("a", a), ("y", y)):
            self.arrays[name][self.used : need] = value
        self.used = need

    def copy(self, n: int) -> _Buffer:
        other = _Buffer(0, ())
        other.arrays = {name: array[:n].copy() for name, array in self.arrays.items()}
        other.used = n
        return other

    def view(self, name: str, n: int) -> np.ndarray:
        view = self.arrays[name][:n].view()
        view.flags.writeable = False
        return view
