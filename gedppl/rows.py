"""An append-only history of rows (context, action, outcome), and the same history padded to a few
shapes.

Appending returns a new `Rows` and leaves the old one as it was: both look at one buffer, each at
its own length, so a state that holds an old `Rows` stays valid and a growing history costs
amortised O(1) a row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

BUCKETS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


def bucket(n: int) -> int:
    """The smallest bucket that holds n rows."""
    for size in BUCKETS:
        if n <= size:
            return size
    return -(-n // BUCKETS[-1]) * BUCKETS[-1]


def grid(x: np.ndarray, n_actions: int) -> tuple[np.ndarray, np.ndarray]:
    """Every context x (n, dx) with every action, contexts slowest: x (nK, dx), a (nK,).

    >>> [part.tolist() for part in grid(np.array([[0.5], [0.7]]), 2)]
    [[[0.5], [0.5], [0.7], [0.7]], [0, 1, 0, 1]]
    """
    return np.repeat(x, n_actions, axis=0), np.tile(np.arange(n_actions), len(x))


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

    def taken(self, which: slice | np.ndarray) -> Rows:
        """A history of its own with some of these rows."""
        return Rows.of(self.x[which], self.a[which], self.y[which])

    @property
    def x(self) -> np.ndarray:
        return self._buffer.view("x", self.n)

    @property
    def a(self) -> np.ndarray:
        return self._buffer.view("a", self.n)

    @property
    def y(self) -> np.ndarray:
        return self._buffer.view("y", self.n)

    def padded(
        self, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(x, a, y, weights), each with `bucket(n)` rows: the first row repeated, with weight 0.

        Padding repeats a real row because a NaN or an out-of-support value gives NaN gradients even
        under weight 0.
        """
        size = bucket(max(self.n, 1))
        if self.n == 0:
            raise ValueError("no rows to pad")
        take = np.zeros(size, np.int64)
        take[: self.n] = np.arange(self.n)
        w = np.zeros(size)
        w[: self.n] = 1.0 if weights is None else weights
        return self.x[take], self.a[take], self.y[take], w


def grown(column: np.ndarray, size: int) -> np.ndarray:
    """The column with room for so many entries, the new ones zero: it doubles when full.

    >>> len(grown(np.ones(3), 3)), len(grown(np.ones(16), 17))
    (3, 32)
    """
    if size <= len(column):
        return column
    after = np.zeros((max(size, 2 * len(column), 16), *column.shape[1:]), column.dtype)
    after[: len(column)] = column
    return after


class _Buffer:
    """Columns that grow."""

    def __init__(self, dx: int, event_shape: tuple[int, ...], capacity: int = 64) -> None:
        self.used = 0
        self.arrays = {
            "x": np.zeros((capacity, dx)),
            "a": np.zeros(capacity, np.int64),
            "y": np.zeros((capacity, *event_shape)),
        }

    def write(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> None:
        need = self.used + len(a)
        self.arrays = {name: grown(old, need) for name, old in self.arrays.items()}
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


# ==================================================================================================
# What keeps compiled programs from doing work twice: kept histories, kept answers, and a few shapes
# instead of many.
# ==================================================================================================

KEPT_HISTORIES = 8


class Histories:
    """Prepared rows by history. A history is a buffer and a length; the buffer only grows, so
    the pair names its contents.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, int], tuple[Rows, Any]] = OrderedDict()
        self._guard = threading.Lock()

    @staticmethod
    def _key(rows: Rows) -> tuple[int, int]:
        # an entry keeps its rows, so that the buffer's id stays taken
        return id(rows._buffer), rows.n

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, rows: Rows) -> bool:
        return self._key(rows) in self._entries

    def known_part(self, rows: Rows) -> int:
        """How many of the first rows belong to a history that is kept."""
        buffer, n = self._key(rows)
        with self._guard:
            return max(
                (size for owner, size in self._entries if owner == buffer and size <= n), default=0
            )

    def get(self, rows: Rows, prepare: Any) -> Any:
        """What prepare() made of these rows, made now if it is not kept; the longest unused goes
        first.
        """
        key = self._key(rows)
        with self._guard:
            if key not in self._entries:
                self._entries[key] = (rows, prepare())
                while len(self._entries) > KEPT_HISTORIES:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            return self._entries[key][1]


# the latest answers of compiled functions ---------------------------------------------------------
# The latest answers of compiled functions. Programs are pure: the same question has the same
# answer.
#
# One decision asks the same of a program several times (an outcome is checked when it is told and
# again when it is learned; the monitors and the fits weigh the same row), and contexts that repeat
# ask it again in later rounds.


KEPT_ANSWERS = 256
LARGEST = 1 << 15  # bytes of a question, and of an answer, that is kept


class Answers:
    """At most `KEPT_ANSWERS` small answers, the least recently used forgotten first. Threads may
    share it.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, list[np.ndarray]] = OrderedDict()
        self._guard = threading.Lock()

    def get(
        self, name: Hashable, args: Sequence[np.ndarray], find: Callable[[], list[np.ndarray]]
    ) -> list[np.ndarray]:
        """What `find()` returns, or returned for the same name and arguments; arrays that belong
        to the caller.
        """
        if sum(arg.nbytes for arg in args) > LARGEST:
            return find()
        key = (name, *((arg.shape, arg.dtype.char, arg.tobytes()) for arg in args))
        with self._guard:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is None:
            known = find()
            if sum(array.nbytes for array in known) > LARGEST:
                return known
            with self._guard:
                self._known[key] = known
                while len(self._known) > KEPT_ANSWERS:
                    self._known.popitem(last=False)
        return [array.copy() for array in known]


# a few shapes instead of many ---------------------------------------------------------------------


PIECES = (8, 64, 512, 4096)  # rows of a query


def settings_size(m: int) -> int:
    """To how many parameter settings m are padded in a query: 4, 16, 64, ..."""
    size = 4
    while size < m:
        size *= 4
    return size


def pad(array: np.ndarray, size: int) -> np.ndarray:
    """The array with its first row repeated at the end, up to `size` rows."""
    short = size - len(array)
    return (
        array
        if short == 0
        else np.concatenate([array, np.broadcast_to(array[:1], (short, *array.shape[1:]))])
    )


def pieces(n: int) -> Iterator[tuple[slice, int]]:
    """Cut n rows into slices and say to how many rows each is padded, wasting little and using few
    sizes.

    >>> [(cut.start, cut.stop, size) for cut, size in pieces(600)]
    [(0, 512, 512), (512, 576, 64), (576, 600, 64)]
    """
    start = 0
    while start < n:
        left = n - start
        size = next((piece for piece in PIECES if left <= piece), PIECES[-1])
        if size > 64 and left <= size // 2:  # half empty: take a full smaller piece and go on
            size = PIECES[PIECES.index(size) - 1]
        yield slice(start, min(start + size, n)), size
        start += size
