"""The last few histories, in the form a backend computes with: asking again about the same rows copies nothing."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from gedppl.rows import Rows

KEEP = 8


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
                while len(self._entries) > KEEP:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            return self._entries[key][1]
