"""Contexts far outside of what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import fdtri

from gedppl.errors import ActionRangeError, ContextWidthError, NotFiniteError, SettingError
from gedppl.numerics.records import evolved

MOST_DEPENDENT = 1e6  # trace of the inverse of the columns' correlations


@dataclass(frozen=True)
class OutlierCheck:
    """Is a context far outside of what was seen? Hotelling's T-squared for one new observation.

    n / (n + 1) (x - m)' S^{-1} (x - m)  against  p (n - 1) / (n - p) F_{p, n-p; 1-level},

    with p the rank of S; a component along which no context ever varied counts as far outside. For Gaussian contexts
    `level` is the share flagged; skewed or heavy-tailed contexts are flagged more often. A flagged context is taken in
    pulled back to the threshold, so that one wild value does not hide the next, and a lasting shift is still learned.

    >>> rng = np.random.default_rng(0)
    >>> check = OutlierCheck.create(dx=2)
    >>> for _ in range(100):
    ...     check = check.include(rng.normal(size=2))
    >>> check.flag([0.5, 1.0]), check.flag([9.0, 0.0])[:44]
    ('', 'the context is far outside of what was seen:')
    """

    dx: int
    level: float
    n: int
    mean: np.ndarray  # (dx,)
    scatter: np.ndarray  # (dx, dx)

    @classmethod
    def create(cls, *, dx: int, level: float = 1e-4) -> OutlierCheck:
        if dx < 0 or not 0 < level < 1:
            raise SettingError(f"an outlier check needs dx >= 0 and 0 < level < 1, got dx={dx}, level={level}")
        return cls(dx, level, 0, np.zeros(dx), np.zeros((dx, dx)))

    def include(self, x: Any) -> OutlierCheck:
        """Take in one context (dx,)."""
        context = np.asarray(x, float)
        check_row(context, 0, self.dx, 1)
        ratio, _ = self._ratio(context)
        gap = (context - self.mean) / np.sqrt(max(ratio, 1.0)) if np.isfinite(ratio) else context - self.mean
        mean = self.mean + gap / (self.n + 1)
        scatter = self.scatter + np.outer(gap, gap) * (self.n / (self.n + 1))
        return evolved(self, n=self.n + 1, mean=mean, scatter=scatter)

    def flag(self, x: Any) -> str:
        """A sentence for the certificate, or "" if the context is ordinary or too few were seen to tell."""
        context = np.asarray(x, float)
        check_row(context, 0, self.dx, 1)
        ratio, column = self._ratio(context)
        if ratio <= 1:
            return ""
        if np.isinf(ratio):
            return (
                f"the context is far outside of what was seen: x[{column}] = {context[column]:g} departs from what held in "
                f"all of the {self.n} contexts before. Bounds here are extrapolation"
            )
        return (
            f"the context is far outside of what was seen: its squared distance is {ratio:.1f} times the largest that is "
            f"ordinary after {self.n} contexts, most in x[{column}] = {context[column]:g}. Bounds here are extrapolation"
        )

    def _ratio(self, context: np.ndarray) -> tuple[float, int]:
        """Squared distance over its threshold (0: cannot tell; inf: off the span of all seen), and the column most off."""
        if self.dx == 0 or self.n < 2 * self.dx + 10:
            return 0.0, 0
        unit, moved, inverse = self._seen
        gap = (context - self.mean) / unit
        away = np.abs(gap)
        column = int(away.argmax())
        tolerance = 1e-6 * (1.0 + (np.abs(self.mean) / unit).max() + away[column])
        if inverse is None:
            return self._ratio_along_axes(gap, column, tolerance)
        still = np.where(moved, 0.0, away)  # columns that never varied
        if still.max() > tolerance:
            return np.inf, int(still.argmax())
        part = gap[moved]
        return self._over_threshold(float(part @ inverse @ part), len(part)), column

    @cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Units (dx,), which columns varied (dx,), and the inverse of their correlations; None where they depend on each other.

        1 / trace(inverse) is at most the smallest eigenvalue and the number of columns at least the largest, so that the trace
        proves that no direction counts as one that never varied; else `_ratio_along_axes` has to look. Computed once: a context
        is flagged when it is asked about and then taken in.
        """
        scale = np.sqrt(self.scatter.diagonal() / (self.n - 1))
        moved = scale > 0
        unit = np.where(moved, scale, 1.0)
        correlations = (self.scatter / unit / unit[:, None] / (self.n - 1))[moved][:, moved]
        try:
            inverse = np.linalg.inv(correlations)
        except np.linalg.LinAlgError:
            return unit, moved, None
        return unit, moved, inverse if len(inverse) and 0 < inverse.trace() < MOST_DEPENDENT else None

    def _ratio_along_axes(self, gap: np.ndarray, column: int, tolerance: float) -> tuple[float, int]:
        """`_ratio` from the standardised gap (dx,), direction by direction."""
        unit = self._seen[0]
        values, vectors = np.linalg.eigh(self.scatter / np.outer(unit, unit) / (self.n - 1))
        along = vectors.T @ gap
        varied = values > 1e-10 * max(values.max(), 1e-300)
        if np.any(abs(along[~varied]) > tolerance):
            return np.inf, int(np.argmax(abs(vectors[:, ~varied] @ along[~varied])))
        rank = int(varied.sum())
        if rank == 0:
            return 0.0, column
        return self._over_threshold(float(np.sum(along[varied] ** 2 / values[varied])), rank), column

    def _over_threshold(self, distance: float, rank: int) -> float:
        threshold = rank * (self.n - 1) / (self.n - rank) * float(fdtri(rank, self.n - rank, 1.0 - self.level))
        return self.n / (self.n + 1) * distance / threshold


def check_row(x: np.ndarray, action: Any, dx: int, n_actions: int) -> None:
    if x.ndim == 0 or x.shape[-1] != dx:
        raise ContextWidthError(f"a context has {dx} columns here, got an array of shape {x.shape}")
    if not np.all(np.isfinite(x)):
        raise NotFiniteError(f"a context must be finite, got {x}")
    a = np.asarray(action)
    if a.dtype.kind not in "iu" or a.min() < 0 or a.max() >= n_actions:
        raise ActionRangeError(f"an action must be one of 0, ..., {n_actions - 1}, got {action}")
