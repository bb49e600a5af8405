"""The generalized eluder dimension: how many decisions can still surprise a class that agrees on everything seen so far.

A class is given by an array d2 (P, n): squared divergences of P pairs of members at n points (x, a). With a threshold e, a
point z is e-independent of a set S when some pair agrees on S and not at z,

    sum_{i in S} d2[p, i] <= e < d2[p, z],

and dim(eps) is the longest chain of points, each e-independent of those before it, for one e >= eps^2. Points never repeat in
a chain, so dim <= n. (Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making", Definition of the
generalized eluder dimension, after Russo and Van Roy.)

The algorithm never uses it; it says how hard a class is to learn safely. Axis letters: P pairs, n points, M members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import NotFiniteError, SettingError, ShapeError

EXACT_POINTS = 12  # beyond this many points the subset lattice is left to the greedy search
THRESHOLDS = 8  # values of e the greedy search tries
RESTARTS = 2  # random orders besides the two rules, for each threshold


@dataclass(frozen=True)
class Chain:
    """A chain and the threshold it holds for: a certificate that the dimension is at least its length."""

    points: tuple[int, ...]
    threshold: float  # e = eps'^2

    def __len__(self) -> int:
        return len(self.points)

    def verify(self, d2: np.ndarray) -> bool:
        """Whether every point is independent of those before it, checked from the definition."""
        used = np.zeros(len(d2))
        for z in self.points:
            if not np.any((used <= self.threshold) & (d2[:, z] > self.threshold)):
                return False
            used = used + d2[:, z]
        return True


def dimension(d2: Any, eps: float, method: str = "auto", *, seed: int = 0) -> int:
    """The generalized eluder dimension at scale eps.

    Parameters
    ----------
    d2
        (P, n) squared divergences of P pairs of members at n points.
    method
        ``"exact"`` searches the whole lattice of subsets (a few points only); ``"greedy"`` returns the length of a chain that
        was found, a certified lower bound; ``"auto"`` is exact up to 12 points.

    Examples
    --------
    Two members that differ at two of three points:

    >>> dimension([[1.0, 1.0, 0.0]], eps=0.5)
    1
    >>> dimension([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], eps=0.5)
    2
    """
    return len(longest_chain(d2, eps, method, seed=seed))


def longest_chain(d2: Any, eps: float, method: str = "auto", *, seed: int = 0) -> Chain:
    """The chain behind `dimension`."""
    array = _checked(d2)
    if not (math.isfinite(eps) and eps > 0):
        raise SettingError(f"eps must be a positive number, got {eps!r}")
    if method not in ("auto", "exact", "greedy"):
        raise SettingError(f'method must be "auto", "exact" or "greedy", got {method!r}')
    if not array.size:
        return Chain((), eps**2)
    useful = array[:, (array > eps**2).any(axis=0)].shape[1]
    if method == "exact" and useful > 20:
        raise SettingError(f'method="exact" visits 2^n subsets; {useful} points are too many (at most 20): use "greedy"')
    if method == "exact" or (method == "auto" and useful <= EXACT_POINTS):
        return _exact(array, eps**2)
    return _greedy(array, eps**2, seed)


def profile(d2: Any, eps: Any, method: str = "auto", *, seed: int = 0) -> np.ndarray:
    """The dimension at each scale of `eps`, made non-increasing: a chain found at a larger eps also serves a smaller one."""
    scales = np.asarray(eps, float)
    found = np.array([dimension(d2, float(e), method, seed=seed) for e in scales])
    order = np.argsort(-scales, kind="stable")
    found[order] = np.maximum.accumulate(found[order])
    return found


def is_dependent(d2: Any, point: int, before: Any, eps: float) -> bool:
    """Whether `point` is eps-dependent on the points `before`: every pair that agrees on them agrees there too."""
    array = _checked(d2)
    used = array[:, np.asarray(before, int)].sum(axis=1) if len(before) else np.zeros(len(array))
    return not bool(np.any((used <= eps**2) & (array[:, point] > eps**2)))


def _checked(d2: Any) -> np.ndarray:
    array = np.asarray(d2, float)
    if array.ndim != 2:
        raise ShapeError(f"d2 must be (pairs, points), got shape {array.shape}")
    if not np.isfinite(array).all():
        raise NotFiniteError(f"d2 must be finite, got {array[~np.isfinite(array)][0]}")
    if (array < 0).any():
        raise SettingError(f"d2 holds squared divergences and cannot be negative, got {array.min()}")
    return array


# exact: dynamic programming over subsets, each with the thresholds for which it is a chain ------------------------------


def _exact(d2: np.ndarray, least: float) -> Chain:
    """Subsets level by level, each with the set of thresholds e >= least for which some order of it is a chain.

    From S to S + {z} the thresholds in  union_p [sum_S d2_p, d2_pz)  survive, so thresholds are intervals and never need a grid.
    """
    points = np.flatnonzero((d2 > least).any(axis=0))
    table = np.unique(d2[:, points], axis=0)
    top = table.max(initial=0.0)
    level = {0: (np.zeros(len(table)), [(least, math.inf)])}
    while level:
        longest = next((key, spans) for key, (_, spans) in level.items())
        following: dict[int, tuple[np.ndarray, list[tuple[float, float]]]] = {}
        for key, (used, allowed) in level.items():
            rows = np.flatnonzero(used < min(allowed[-1][1], top))
            rows = rows[np.argsort(used[rows], kind="stable")]
            low = used[rows]
            for z in range(len(points)):
                if key >> z & 1 or not len(rows):
                    continue
                high = table[rows, z]
                spans = _intersect(allowed, _union(low, high))
                if not spans:
                    continue
                child = key | 1 << z
                if child in following:
                    sums, other = following[child]
                    following[child] = (sums, _merge(other + spans))
                else:
                    following[child] = (used + table[:, z], spans)
        level = following
    key, ((low_end, high_end), *_) = longest
    threshold = low_end if key == 0 else 0.5 * (low_end + high_end)  # away from the ends, where rounding could decide
    return Chain(tuple(int(points[z]) for z in _order(table, key, threshold)), threshold)


def _order(table: np.ndarray, key: int, threshold: float) -> list[int]:
    """An order in which the points of a subset form a chain at this threshold, by depth-first search."""
    stack: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    seen = set()
    while stack:
        done, order = stack.pop()
        if done == key:
            return list(order)
        if done in seen:
            continue
        seen.add(done)
        used = table[:, list(order)].sum(axis=1)
        for z in range(table.shape[1]):
            if (key & ~done) >> z & 1 and np.any((used <= threshold) & (table[:, z] > threshold)):
                stack.append((done | 1 << z, (*order, z)))
    raise AssertionError("a subset was kept without a chain")


def _union(low: np.ndarray, high: np.ndarray) -> list[tuple[float, float]]:
    """The union of the half-open intervals [low, high), low sorted."""
    full = low < high
    if not full.any():
        return []
    low, high = low[full], high[full]
    reach = np.maximum.accumulate(high)
    starts = np.append(True, low[1:] > reach[:-1])
    first = np.flatnonzero(starts)
    ends = reach[np.append(first[1:] - 1, len(low) - 1)]
    return list(zip(low[first].tolist(), ends.tolist()))


def _intersect(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out = []
    for a, b in left:
        for c, d in right:
            low, high = max(a, c), min(b, d)
            if low < high:
                out.append((low, high))
    return out


def _merge(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    array = np.array(sorted(spans))
    return _union(array[:, 0], array[:, 1])


# greedy: a chain at each of several thresholds, by the point that uses up least of the pairs still alive ------------------


def _greedy(d2: np.ndarray, least: float, seed: int) -> Chain:
    values = d2[d2 > least]
    best = Chain((), least)
    if not values.size:
        return best
    # Just below a value that occurs, more pairs stay alive than at it; eps^2 itself and quantiles of the larger values.
    grid = np.unique(np.append(least, np.quantile(values, np.linspace(0, 0.9, THRESHOLDS - 1)) * (1 - 1e-12)))
    rng = np.random.default_rng(seed)
    for e in grid[grid >= least]:
        high = d2 > e
        rows = high.any(axis=1)
        search = _Search(d2[rows], high[rows], float(e))
        for attempt in range(2 + RESTARTS):
            chain = search.chain(attempt, rng)
            if len(chain) > len(best):
                best = Chain(tuple(chain), float(e))
    return best


class _Search:
    """Greedy chains at one threshold. What every attempt starts from is computed once."""

    def __init__(self, d2: np.ndarray, high: np.ndarray, e: float) -> None:
        self.d2, self.high, self.e = d2, high, e
        self.clipped = np.minimum(d2, e)
        self.use, self.witnesses = self.clipped.sum(axis=0), high.sum(axis=0)

    def chain(self, attempt: int, rng: np.random.Generator) -> list[int]:
        """Attempt 0: the point that uses up least of the pairs alive; 1: fewest witnesses; others: least use, perturbed."""
        n_pairs, n = self.d2.shape
        used, alive, free = np.zeros(n_pairs), np.ones(n_pairs, bool), np.ones(n, bool)
        use, witnesses = self.use.copy(), self.witnesses.copy()
        noise = np.ones(n) if attempt < 2 else rng.uniform(0.5, 1.5, n)
        chain: list[int] = []
        while True:
            candidates = np.flatnonzero(free & (witnesses > 0))
            if not len(candidates):
                return chain
            weight = (witnesses if attempt == 1 else use)[candidates] * noise[candidates]
            z = int(candidates[np.argmin(weight)])
            chain.append(z)
            free[z] = False
            used += self.d2[:, z]
            dead = alive & (used > self.e)
            if dead.any():
                alive &= ~dead
                use -= self.clipped[dead].sum(axis=0)
                witnesses -= self.high[dead].sum(axis=0)
