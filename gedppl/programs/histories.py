"""What keeps compiled programs from doing work twice: kept histories, kept answers, and a few shapes instead of many."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from gedppl.rows import Rows

KEPT_HISTORIES = 8


class Histories:
    """Prepared rows by history. A history is a buffer and a length; the buffer only grows, so the pair names its contents."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, int], tuple[Rows, Any]] = OrderedDict()
        self._guard = threading.Lock()

    @staticmethod
    def _key(rows: Rows) -> tuple[int, int]:
        return id(rows._buffer), rows.n  # an entry keeps its rows, so that the buffer's id stays taken

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, rows: Rows) -> bool:
        return self._key(rows) in self._entries

    def known_part(self, rows: Rows) -> int:
        """How many of the first rows belong to a history that is kept."""
        buffer, n = self._key(rows)
        with self._guard:
            return max((size for owner, size in self._entries if owner == buffer and size <= n), default=0)

    def get(self, rows: Rows, prepare: Any) -> Any:
        """What prepare() made of these rows, made now if it is not kept; the longest unused goes first."""
        key = self._key(rows)
        with self._guard:
            if key not in self._entries:
                self._entries[key] = (rows, prepare())
                while len(self._entries) > KEPT_HISTORIES:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            return self._entries[key][1]


# the latest answers of compiled functions -----------------------------------------------------------------------------
# The latest answers of compiled functions. Programs are pure: the same question has the same answer.
#
# One decision asks the same of a program several times (an outcome is checked when it is told and again when it is learned; the
# monitors and the fits weigh the same row), and contexts that repeat ask it again in later rounds.


KEPT_ANSWERS = 256
LARGEST = 1 << 15  # bytes of a question, and of an answer, that is kept


class Answers:
    """At most `KEPT_ANSWERS` small answers, the least recently used forgotten first. Threads may share it."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, list[np.ndarray]] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, name: Hashable, args: Sequence[np.ndarray], find: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        """What `find()` returns, or returned for the same name and arguments; arrays that belong to the caller."""
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


# a few shapes instead of many -----------------------------------------------------------------------------------------


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
    return array if short == 0 else np.concatenate([array, np.broadcast_to(array[:1], (short, *array.shape[1:]))])


def pieces(n: int) -> Iterator[tuple[slice, int]]:
    """Cut n rows into slices and say to how many rows each is padded, wasting little and using few sizes.

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
