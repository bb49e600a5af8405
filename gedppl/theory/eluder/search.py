"""Searches for the longest chain: exact over the lattice of subsets, and greedy with restarts. See
`gedppl.theory.eluder`.

Axis letters: P pairs, n points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

THRESHOLDS = 8  # values of e the greedy search tries
RESTARTS = 2  # random orders besides the two rules, for each threshold

Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class Chain:
    """A chain and the threshold it holds for: a certificate that the dimension is at least its
    length.
    """

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


# exact: dynamic programming over subsets, each with the thresholds for which it is a chain --------


def exact(d2: np.ndarray, least: float) -> Chain:
    """Subsets level by level, each with the set of thresholds e >= least for which some order of it
    is a chain.

    From S to S + {z} the thresholds in  union_p [sum_S d2_p, d2_pz)  survive, so thresholds are
    intervals and never need a
    grid. A point that cannot follow S cannot follow a larger chain either, so |S| plus the points
    that can is a bound, and subsets that cannot beat the greedy chain by it are left out.
    """
    points = np.flatnonzero((d2 > least).any(axis=0))
    table = np.unique(d2[(d2 > least).any(axis=1)][:, points], axis=0)
    best = greedy(table, least, seed=0)
    level: dict[int, tuple[np.ndarray, Spans]] = {0: (np.zeros(len(table)), [(least, math.inf)])}
    longest, spans_of_longest, depth = 0, [(least, math.inf)], 0
    while level:
        following: dict[int, tuple[np.ndarray, Spans]] = {}
        for key, (used, allowed) in level.items():
            children = _children(table, key, used, allowed)
            if depth + len(children) <= len(best):
                continue
            for z, spans in children.items():
                child = key | 1 << z
                if child in following:
                    sums, other = following[child]
                    following[child] = (sums, _merge(other + spans))
                else:
                    following[child] = (used + table[:, z], spans)
        if following:
            longest, (_, spans_of_longest) = next(iter(following.items()))
        level, depth = following, depth + 1
    if longest.bit_count() > len(best):
        low, high = max(spans_of_longest, key=lambda span: span[1] - span[0])
        threshold = 0.5 * (low + high)  # away from the ends, where rounding could decide
        best = Chain(tuple(_order(table, longest, threshold)), threshold)
    return Chain(tuple(int(points[z]) for z in best.points), best.threshold)


def _children(table: np.ndarray, key: int, used: np.ndarray, allowed: Spans) -> dict[int, Spans]:
    """The points that can follow this subset, each with the thresholds at which it can."""
    rows = np.flatnonzero(used < min(allowed[-1][1], table.max(initial=0.0)))
    free = np.array([z for z in range(table.shape[1]) if not key >> z & 1], np.int64)
    if not len(rows) or not len(free):
        return {}
    rows = rows[np.argsort(used[rows], kind="stable")]
    low, high = used[rows], table[rows[:, None], free]
    # the union of the intervals [low, high) of each column: `reach` is how far those so far extend
    full = high > low[:, None]
    reach = np.maximum.accumulate(np.where(full, high, -math.inf), axis=0)
    before = np.vstack([np.full((1, len(free)), -math.inf), reach[:-1]])
    column, row = np.nonzero((full & (low[:, None] > before)).T)
    last = np.append(column[1:] != column[:-1], True)
    ends = np.where(last, reach[-1, column], before[np.append(row[1:], 0), column]).tolist()
    found: dict[int, Spans] = {}
    for j, start, end in zip(column.tolist(), low[row].tolist(), ends):
        for a, b in allowed:
            lower, upper = max(a, start), min(b, end)
            if lower < upper:
                found.setdefault(int(free[j]), []).append((lower, upper))
    return found


def _merge(spans: Spans) -> Spans:
    """The union of half-open intervals, sorted and disjoint."""
    out: Spans = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def _order(table: np.ndarray, key: int, threshold: float) -> list[int]:
    """An order in which the points of a subset form a chain at this threshold, by depth-first
    search.
    """
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


# greedy: a chain at each of several thresholds, by the point that uses up least of the pairs still
# alive ---


def greedy(d2: np.ndarray, least: float, seed: int) -> Chain:
    """The longest of the chains that two rules and their perturbations find at several
    thresholds e >= least.
    """
    values = d2[d2 > least]
    best = Chain((), least)
    if not values.size:
        return best
    # Just below a value that occurs, more pairs stay alive than at it; eps^2 itself and quantiles
    # of the larger values.
    grid = np.unique(
        np.append(least, np.quantile(values, np.linspace(0, 0.9, THRESHOLDS - 1)) * (1 - 1e-12))
    )
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
        """Attempt 0: the point that uses up least of the pairs alive; 1: fewest witnesses;
        others: least use, perturbed.
        """
        n_pairs, n = self.d2.shape
        used, alive, free = np.zeros(n_pairs), np.ones(n_pairs, bool), np.ones(n, bool)
        use, witnesses = self.use.copy(), self.witnesses.copy()
        noise = np.ones(n) if attempt < 2 else rng.uniform(0.5, 1.5, (n,))
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
