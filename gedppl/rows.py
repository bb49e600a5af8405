"""An append-only history of rows (context, action, outcome), and the same history padded to a few
shapes.

Appending returns a new `Rows` and leaves the old one as it was: both look at one buffer, each at
its own length, so a state that holds an old `Rows` stays valid and a growing history costs
amortised O(1) a row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from gedppl.errors import NotFiniteError, ShapeError
from gedppl.numerics.arrays import LARGER_UNIT, countable

T = TypeVar("T")

BUCKETS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


def bucket(n: int) -> int:
    """The smallest bucket that holds n rows."""
    for size in BUCKETS:
        if n <= size:
            return size
    return -(-n // BUCKETS[-1]) * BUCKETS[-1]


def over_box(
    matrix: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest matrix @ v (m,), for v between low and high (D,)."""
    up = matrix > 0
    ends = [np.where(up, *sides) for sides in ((low, high), (high, low))]
    parts = [np.multiply(matrix, end, out=np.zeros(end.shape), where=matrix != 0) for end in ends]
    return parts[0].sum(axis=1), parts[1].sum(axis=1)


def grid(x: np.ndarray, n_actions: int) -> tuple[np.ndarray, np.ndarray]:
    """Every context x (n, dx) with every action, contexts slowest: x (nK, dx), a (nK,).

    >>> [part.tolist() for part in grid(np.array([[0.5], [0.7]]), 2)]
    [[[0.5], [0.5], [0.7], [0.7]], [0, 1, 0, 1]]
    """
    return np.repeat(x, n_actions, axis=0), np.tile(np.arange(n_actions), len(x))


def distinct(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that differ (m, dx), in their order, and which of these each row is (n,).

    >>> [part.tolist() for part in distinct(np.array([[0.5], [0.7], [0.5]]))]
    [[[0.5], [0.7]], [0, 1, 0]]
    """
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(row.tobytes(), len(places)) for row in x], np.intp)
    return x[np.unique(which, return_index=True)[1]], which


def outcomes_of(y: Any, n: int, event_shape: tuple[int, ...]) -> np.ndarray:
    """n finite outcomes, as an array."""
    found, shape = np.asarray(y, float), (n, *event_shape)
    if found.shape != shape:
        raise ShapeError(
            f"y must have shape {shape}, one outcome a row, got {found.shape}"
            + ("; pass y[:, 0]" if found.shape == (n, 1) else "")
        )
    if not countable(found).all():
        row = int(np.argmax(~countable(found.reshape(n, -1)).all(axis=1)))
        wrong = not np.isfinite(found[row]).all()
        fix = "drop the row or wait for its outcome" if wrong else LARGER_UNIT
        raise NotFiniteError(f"y must be finite, got {found[row]} in row {row}: {fix}")
    return found


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
# What keeps compiled programs from doing work twice: kept histories, kept answers, a few shapes
# instead of many, and tables in their place.
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

    def get(self, rows: Rows, prepare: Callable[[], T]) -> T:
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
            prepared: T = self._entries[key][1]
            return prepared


# the latest answers of compiled functions ---------------------------------------------------------
# The latest answers of compiled functions. Programs are pure: the same question has the same
# answer.
#
# One decision asks the same of a program several times (an outcome is checked when it is told and
# again when it is learned; the monitors and the fits weigh the same row), and contexts that repeat
# ask it again in later rounds.


KEPT_ANSWERS = 256
LARGEST = 1 << 15  # bytes of a question, and of an answer, that is kept


class Kept(Generic[T]):
    """At most `KEPT_ANSWERS` answers to small questions about arrays, the least recently used
    forgotten first. Threads may share it.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, name: Hashable, args: Sequence[np.ndarray], find: Callable[[], T]) -> T:
        """What `find()` returns, or returned for the same name and arguments; nobody may change
        it.
        """
        if not self.small(args):
            return find()
        key = (name, *((arg.shape, arg.dtype.char, arg.tobytes()) for arg in args))
        with self._guard:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        found = find()
        if self._to_keep(found):
            with self._guard:
                self._known[key] = found
                while len(self._known) > KEPT_ANSWERS:
                    self._known.popitem(last=False)
        return found

    @staticmethod
    def small(args: Sequence[np.ndarray]) -> bool:
        """Whether a question about these is kept."""
        return sum(arg.nbytes for arg in args) <= LARGEST

    def _to_keep(self, found: T) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # other processes begin afresh


class Answers(Kept[list[np.ndarray]]):
    """Small arrays, which belong to whoever asks."""

    def get(
        self, name: Hashable, args: Sequence[np.ndarray], find: Callable[[], list[np.ndarray]]
    ) -> list[np.ndarray]:
        return [array.copy() for array in super().get(name, args, find)]

    def _to_keep(self, found: list[np.ndarray]) -> bool:
        return self.small(found)


# a few shapes instead of many ---------------------------------------------------------------------


PIECES = (8, 64, 512, 4096)  # rows of a query


def one_or_all(found: np.ndarray, single: bool) -> np.ndarray:
    """What was found for M settings, or for the one that was asked about."""
    first: np.ndarray = found[0] if single else found
    return first


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


# functions of rows that return several arrays -----------------------------------------------------

Parts = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]
"""(x (n, dx), a (n,)) -> arrays (n, ...)."""

PredictorParts = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
"""Features (n, D), offset (n,) and other arguments of a family, (n,) each."""

KEPT_PARTS = 3


class Remembered:
    """Features, offset and other arguments are asked for one after the other at the same rows, and
    again when an outcome is told, so the last few answers are kept.

    The memos are replaced in one assignment and may be shared by threads.
    """

    def __init__(self, parts: Parts, table: Tabulated | None = None) -> None:
        """`table`: the same parts, where they are by table; it needs no row for each action."""
        self._parts, self._table = parts, table
        self._last: tuple[tuple[Hashable, list[np.ndarray]], ...] = ()
        self._grids: tuple[tuple[Hashable, list[np.ndarray]], ...] = ()
        # arrays that nobody can have changed since
        self._same: tuple[Any, Any, list[np.ndarray]] = (None, None, [])

    def __call__(self, x: Any, a: Any) -> list[np.ndarray]:
        before_x, before_a, answer = self._same
        if x is before_x and a is before_a:
            return answer
        asked = x, a
        x, a = np.asarray(x, float), np.asarray(a, np.int64)
        key = (x.shape, x.tobytes(), a.tobytes())
        found = next((answer for known, answer in self._last if known == key), None)
        if found is None:
            found = self._parts(x, a)
            for array in found:
                array.flags.writeable = False
            self._last = ((key, found), *self._last[: KEPT_PARTS - 1])
        if asked[0] is x and asked[1] is a and not (x.flags.writeable or a.flags.writeable):
            self._same = (x, a, found)
        return found

    def at_contexts(self, x: np.ndarray, n_actions: int) -> list[np.ndarray]:
        """All arrays at contexts x (n, dx) with actions 0..K-1, contexts slowest: (nK, ...)."""
        if self._table is None:
            return self(*grid(x, n_actions))
        key = (x.shape, n_actions, x.tobytes())
        found = next((answer for known, answer in self._grids if known == key), None)
        if found is None:
            found = self._table.at_contexts(x, n_actions)
            for array in found:
                array.flags.writeable = False
            self._grids = ((key, found), *self._grids[: KEPT_PARTS - 1])
        return found

    def part(self, i: int) -> Callable[[Any, Any], np.ndarray]:
        """The function that returns one of the arrays."""
        return lambda x, a: self(x, a)[i]

    def by_name(self, names: Mapping[int, str]) -> Callable[[Any, Any], dict[str, np.ndarray]]:
        """The function that returns some of them by name."""
        return lambda x, a: {name: self(x, a)[i] for i, name in names.items()}

    def all_by_name(self, names: Sequence[str]) -> Callable[[np.ndarray, int], PredictorParts]:
        """`at_contexts` with the names of what comes after features and offset."""

        def found(x: np.ndarray, n_actions: int) -> PredictorParts:
            features, offset, *others = self.at_contexts(x, n_actions)
            return features, offset, dict(zip(names, others))

        return found


# Parts that are affine in the context, as tables: NumPy then takes the place of the program.
#
#     part_f(x, a) = base[a, f] + sum_k weight[a, f, k] x[index[a, f, k]]
#
# A few numbers for each action say everything that the program would. Tables are read when an
# action is first asked about, compared with the program at some contexts, and left alone for good
# if they differ.
#
# Axis letters: n rows, A actions of a table, F parts (D features, the offset, the others), k
# columns of the context in one part.

AGREEMENT = 1e-12  # share of the terms by which table and program may differ
MOST_CELLS = 20_000_000  # numbers behind the slopes of one table
COLUMNS_AT_ONCE = 1_000_000  # columns of contexts looked up at once
FEW = 8  # asked of the program at once: the size it is compiled for in any case

Slopes = Callable[[int, int], tuple[np.ndarray, np.ndarray] | None]
"""(A, dx) -> parts (A, F) at x = 0 and their slopes (A, F, dx), for actions 0..A-1; None if that is
more than `MOST_CELLS`.
"""


@dataclass(frozen=True)
class FeatureTable:
    """Parts of A actions."""

    base: np.ndarray  # (A, F)
    index: np.ndarray  # (A, F, k)
    weight: np.ndarray  # (A, F, k)

    @classmethod
    def of(cls, base: np.ndarray, slope: np.ndarray) -> FeatureTable:
        """From slopes (A, F, dx), keeping those that are not 0.

        >>> table = FeatureTable.of(
        ...     np.zeros((1, 2)), np.array([[[0.0, 3.0, 0.0], [2.0, 0.0, 0.0]]])
        ... )
        >>> (
        ...     table.index.tolist(),
        ...     table.weight.tolist(),
        ...     table(np.array([[5.0, 7.0, 9.0]]), np.array([0])).tolist(),
        ... )
        ([[[1], [0]]], [[[3.0], [2.0]]], [[21.0, 10.0]])
        """
        count = np.count_nonzero(slope, axis=2)
        action, part, column = np.nonzero(slope)
        place = np.arange(len(column)) - np.repeat(
            np.cumsum(count.ravel()) - count.ravel(), count.ravel()
        )
        index = np.zeros((*count.shape, count.max(initial=0)), np.int64)
        weight = np.zeros(index.shape)
        index[action, part, place], weight[action, part, place] = (
            column,
            slope[action, part, column],
        )
        return cls(base, index, weight)

    def __call__(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(n, F) at rows x (n, dx), a (n,)."""
        out = self.base.take(a, axis=0)
        step = max(1, COLUMNS_AT_ONCE // max(self.index[0].size, 1))
        for first in range(0, len(a), step):
            mine = a[first : first + step]
            row = x.shape[1] * np.arange(first, first + len(mine))
            columns = x.take(self.index.take(mine, axis=0) + row[:, None, None])
            columns *= self.weight.take(mine, axis=0)
            out[first : first + step] += columns.sum(axis=2)
        return out

    def at_contexts(self, x: np.ndarray, n_actions: int) -> np.ndarray:
        """(n, K, F) at contexts x (n, dx) with actions 0..K-1."""
        index, weight = self.index[:n_actions], self.weight[:n_actions]
        out = np.empty((len(x), *index.shape[:2]))
        step = max(1, COLUMNS_AT_ONCE // max(index.size, 1))
        for first in range(0, len(x), step):
            columns = x[first : first + step].take(index, axis=1)
            columns *= weight
            columns.sum(axis=3, out=out[first : first + step])
        out += self.base[:n_actions]
        return out

    def size(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(n, F) the sum of the sizes of the terms."""
        return FeatureTable(np.abs(self.base), self.index, np.abs(self.weight))(np.abs(x), a)


def unit_slopes(parts: Parts) -> Slopes:
    """Slopes from the program's own answers at 0 and at the unit vectors."""

    def slopes(n_actions: int, dx: int) -> tuple[np.ndarray, np.ndarray] | None:
        if n_actions * (dx + 1) * dx > MOST_CELLS:
            return None
        x = np.tile(np.vstack([np.zeros(dx), np.eye(dx)]), (n_actions, 1))
        values = _stacked(parts, x, np.repeat(np.arange(n_actions), dx + 1)).reshape(
            n_actions, dx + 1, -1
        )
        return values[:, 0], np.swapaxes(values[:, 1:] - values[:, :1], 1, 2)

    return slopes


def _stacked(parts: Parts, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """All parts side by side, (n, F)."""
    cuts = [slice(first, first + FEW) for first in range(0, len(a), FEW)]
    return np.concatenate([np.column_stack(parts(x[cut], a[cut])) for cut in cuts])


class Tabulated:
    """Parts by table where that can be done, by the program where not. D = dim features come
    first.

    The table grows with the actions asked about and is replaced in one assignment, so that threads
    may share it.
    """

    def __init__(self, parts: Parts, slopes: Slopes, dim: int) -> None:
        self._parts, self._slopes, self._dim = parts, slopes, dim
        self._table: FeatureTable | None = FeatureTable(
            np.zeros((0, 0)), np.zeros((0, 0, 0), np.int64), np.zeros((0, 0, 0))
        )

    def _of(self, n_actions: int, dx: int) -> FeatureTable | None:
        if self._table is not None and n_actions > len(self._table.base):
            self._table = _read(self._parts, self._slopes, n_actions, dx)
        return self._table

    def __call__(self, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        table = self._of(int(a.max()) + 1, x.shape[1]) if len(a) else None
        if table is None or a.min() < 0:
            return self._parts(x, a)
        return self._cut(table(x, a))

    def at_contexts(self, x: np.ndarray, n_actions: int) -> list[np.ndarray]:
        """At contexts x (n, dx) with actions 0..K-1, contexts slowest: (nK, ...)."""
        table = self._of(n_actions, x.shape[1])
        if table is None:
            return self._parts(*grid(x, n_actions))
        return self._cut(table.at_contexts(x, n_actions).reshape(len(x) * n_actions, -1))

    def _cut(self, out: np.ndarray) -> list[np.ndarray]:
        return [out[:, : self._dim], *out.T[self._dim :]]


def _read(parts: Parts, slopes: Slopes, n_actions: int, dx: int) -> FeatureTable | None:
    """The table of so many actions; None where it would be too large or does not agree with the
    program.
    """
    A = n_actions
    found = slopes(A, dx)
    if found is None or not all(np.isfinite(part).all() for part in found):
        return None
    table = FeatureTable.of(*found)
    rng, a = np.random.default_rng(0), np.tile(np.arange(A), 3)
    x = (
        rng.normal(size=(3, dx))[np.repeat(np.arange(3), A)]
        * np.array([1e-3, 1.0, 1e3])[np.repeat(np.arange(3), A), None]
    )
    theirs = _stacked(parts, x, a)
    agree = np.abs(table(x, a) - theirs) <= AGREEMENT * table.size(x, a)
    return table if agree.all() else None
