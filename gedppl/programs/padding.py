"""A few shapes instead of many: settings and rows padded by repeating a real one, so that little is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
