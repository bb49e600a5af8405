"""What a linear-Gaussian learner's set says beyond its bounds: who is in it, where a bound is
attained, members to look at, and its whole past.

Axis letters: B snapshots, n contexts, K actions, D flat parameters, q free ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gedppl.learning.ellipsoids import (
    EllipsoidRegion,
    apart,
    ends,
    seen_directions,
)
from gedppl.learning.learner import Trail
from gedppl.learning.reach import value_at, value_range
from gedppl.selection.solvers import Together

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.linear_gaussian import LinearGaussianLearner

ROUNDING = 1e-9  # share of the numbers compared


def drawn_members(learner: LinearGaussianLearner, n: int, seed: int) -> np.ndarray:
    """See `LinearGaussianLearner.draw_members`."""
    rng, q = np.random.default_rng(seed), len(learner.moment[0])
    spread = (
        np.linalg.cholesky(learner.space.covariance) if learner.space.proper else np.zeros((q, q))
    )
    own = learner.snapshots[-1].ellipsoids
    kept: list[np.ndarray] = []
    for turn in range(20):
        eta = rng.normal(size=(2 * n, q)) @ spread.T
        for e in reversed(own):  # those of all rows last
            if len(e.factor):
                v = rng.normal(size=(2 * n, len(e.factor)))
                v *= (
                    rng.random(2 * n) ** (1 / len(e.factor)) * 0.9**turn / np.linalg.norm(v, axis=1)
                )[:, None]
                eta[:, e.columns] = e.middle + v @ e.factor
        theta = learner.space.origin + eta @ learner.space.basis.T
        kept.append(theta[learner.contains(theta)])
        if sum(map(len, kept)) >= n:
            break
    return np.concatenate(kept)[:n]


def trail_of(
    learner: LinearGaussianLearner, functional: Functional, x: np.ndarray, n_actions: int
) -> Trail:
    """See `LinearGaussianLearner.trail`."""
    x = np.asarray(x, float)
    at = learner.features_at.grid(x, n_actions)
    phi, offset, scale, read = at.phi, at.offset, at.scale, at.read_by(functional)
    free, base = learner.space.projected(phi, offset)
    low, high = np.full((2, len(learner.snapshots), len(phi)), np.inf)
    low *= -1
    region = learner.region_of.stacked(learner.snapshots)
    middle, extent = region.reach(free)
    for b, s in enumerate(learner.snapshots):
        own = slice(*region.first[b : b + 2])
        low[b], high[b], _ = ends(middle[:, own], extent[:, own], 1.0)
        if s.empty or apart(low[b], high[b]):
            low[b], high[b] = -np.inf, np.inf
    if learner.intersect:
        low, high = np.maximum.accumulate(low, axis=0), np.minimum.accumulate(high, axis=0)
        broken = np.logical_or.accumulate(
            np.array([s.empty for s in learner.snapshots]) | (low > high).any(axis=1)
        )
        low[broken], high[broken] = -np.inf, np.inf
    low, high = np.minimum(low, high) + base, np.maximum(low, high) + base
    fitted = np.array([s.theta for s in learner.snapshots]) @ phi.T + offset
    estimate = value_at(functional, fitted, scale, *read)
    shape = len(learner.snapshots), len(x), n_actions
    lower, upper = value_range(functional, low, high, scale, *read)

    def shaped(values: np.ndarray) -> np.ndarray:
        return functional.clip(values).reshape(shape).transpose(1, 0, 2)

    return Trail(shaped(estimate), shaped(lower), shaped(upper))


def in_set(learner: LinearGaussianLearner, theta: np.ndarray) -> np.ndarray:
    """See `LinearGaussianLearner.contains`."""
    theta = np.asarray(theta, float)
    rows = np.atleast_2d(theta)
    apart = rows - learner.space.origin
    eta = apart @ learner.space.basis
    size = np.abs(rows).max(axis=1) + np.abs(learner.space.origin).max()
    inside = np.abs(apart - eta @ learner.space.basis.T).max(axis=1) <= ROUNDING * size
    if learner.space.ball is not None:
        inside &= np.einsum("mi,ij,mj->m", rows, learner.space.ball, rows) <= 1 + ROUNDING
    for g, group in enumerate(learner.groups):
        if not learner.counts[g]:
            continue
        seen = seen_directions(learner.information[g])
        processes, share = learner.processes(g, seen)
        if len(share):
            z = eta[:, seen.columns] @ seen.down.T - seen.lift.T @ learner.moment[g][seen.columns]
            logs = processes(z) + np.log(share)
            inside &= np.logaddexp.reduce(logs, axis=1) <= math.log(
                1 / (learner.delta * group.share)
            )
    found: np.ndarray = inside if theta.ndim == 2 else inside[0]
    return found


def witness(
    learner: LinearGaussianLearner, phi: np.ndarray, tightest: np.ndarray, side: float
) -> np.ndarray:
    """(m, D) where the bound that counts is attained; the fit where nothing bounds it."""
    space, own = learner.space, [e for s in learner.in_force() for e in s.ellipsoids]
    near, free = (learner.theta - space.origin) @ space.basis, phi @ space.basis
    eta = np.tile(near, (len(phi), 1))
    for e in np.unique(tightest[tightest >= 0]):
        mine = tightest == e
        eta[mine] = own[e].attained(free[mine], near, side)
    found: np.ndarray = space.origin + eta @ space.basis.T
    return found


def together(
    region: EllipsoidRegion,
    free: np.ndarray,
    base: np.ndarray,
    tightest: np.ndarray,
    upper: np.ndarray,
    cut: np.ndarray,
) -> tuple[Together, ...]:
    """free'eta + base of all actions over the ellipsoid that sets most of their upper ends, at each
    context by itself; none where it sets no two at any.

    free (nK, q), base (nK,). tightest, upper, cut (n, K): the ellipsoid behind each upper end, -1
    where it is open, the end itself, and whether the declared range cut it. The true theta lies in
    all ellipsoids at once and its values in the range, so that what is known of different actions
    may be added up: an action that another ellipsoid bounds stands with its upper end. Of one that
    the range cut the first form takes that end, the second the ellipsoid, which may still say more
    of a mixture.
    """
    n, n_actions = tightest.shape
    if not np.count_nonzero(tightest >= 0):
        return ()
    most = np.zeros(n, np.intp)
    if region.size > 1:  # the one that sets the most ends at each context
        most = (tightest[:, :, None] == np.arange(region.size)).sum(axis=1).argmax(axis=1)
    own = tightest == most[:, None]
    free = free.reshape(n, n_actions, -1)
    middle, half = _around(region, most, free)
    middle, forms, was_cut = middle + base.reshape(n, n_actions), [], own & cut
    for mine in (own & ~was_cut, own) if np.count_nonzero(was_cut) else (own,):
        if mine.sum(axis=1).max() > 1:
            forms.append(
                Together(np.where(mine, middle, upper), np.where(mine[:, :, None], half, 0.0))
            )
    return tuple(forms)


def _around(
    region: EllipsoidRegion, most: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Middle (n, K) and half (n, K, r) of features (n, K, q), by the ellipsoid of each context."""
    kinds = set(most.tolist())
    if len(kinds) == 1:
        return region.around(kinds.pop(), free)
    middle, half = (
        np.empty(free.shape[:2]),
        np.zeros((*free.shape[:2], max(map(region.axes, kinds)))),
    )
    for e in kinds:
        (here,) = (most == e).nonzero()
        middle[here], turned = region.around(e, free[here])
        half[here, :, : turned.shape[2]] = turned
    return middle, half
