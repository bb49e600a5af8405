"""How far a linear form phi'theta can go over everything that is still plausible: exact, for convex sets and declared bounds.

Axis letters: m linear forms, D flat parameters, S sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack

from gedppl.classes import DensityClass
from gedppl.learning.ascent import extremes
from gedppl.learning.likelihoods import PredictorData
from gedppl.learning.program_sets import Plausible
from gedppl.learning.walls import Walls, farthest_inside, member_inside

if TYPE_CHECKING:
    from gedppl.learning.programs import ProgramLearner

MAX_CELLS = 4_000_000  # problems x rows held at once


def farthest(learner: ProgramLearner, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """max phi'theta, then max -phi'theta, for phi (m, D): (2m,), inf where open; where, (2m, D); and whether sets are apart.

    For each form one of the newest sets, of all rows or of a group, is solved: the one whose delta half-width is smallest; and
    one of the past sets, if any are kept, where the delta bound promises more. Where that point lies beyond a wall (a declared
    box, a sign, the domain of a link at the rows) the form is solved again inside the walls. The ends of a form whose sets (or
    declared bounds) do not meet are open: no parameter is left, so that nothing can be said.
    """
    m = len(phi)
    both = np.vstack([phi, -phi])
    value = declared_reach(learner.cls, both)
    theta = np.broadcast_to(learner.theta, both.shape).copy()
    sets = learner.every_set
    if sets:
        widths = np.array([_seen_half_width(s, phi) for s in sets])
        newest = np.tile(np.argmin(widths, axis=0), 2)
        best = np.tile(np.min(widths, axis=0), 2)
        promised = best + np.einsum("md,md->m", both, np.array([s.region.centre for s in sets])[newest])
        box = declared_box(learner.cls, phi.shape[1])
        solved = _solve(sets, np.where(np.isfinite(best), newest, -1), both, value, theta, box)
        _inside_walls(sets, newest, solved, both, value, theta, box)
        if learner.past:
            ends = np.array([np.tile(_seen_half_width(s, phi), 2) + both @ s.region.centre for s in learner.past])
            use = np.where(ends.min(axis=0) < promised, np.argmin(ends, axis=0), -1)
            _solve(learner.past, use, both, value, theta, box)
    gap = -value[m:] - value[:m]
    apart = gap > 1e-6 * np.where(np.isfinite(gap), np.maximum(np.abs(value[:m]), np.abs(value[m:])), 0.0)
    value[np.tile(apart, 2)] = np.inf
    return value, theta, bool(apart.any())


Box = tuple[np.ndarray, np.ndarray]  # low and high (D,), infinite where open


def _solve(
    sets: tuple[Plausible, ...], use: np.ndarray, both: np.ndarray, value: np.ndarray, theta: np.ndarray, box: Box
) -> np.ndarray:
    """Lower `value` (2m,) to what the set with index use (2m,) allows (-1: none), and put `theta` where it is attained.

    Whether each form was solved, (2m,).
    """
    solved = np.zeros(len(both), bool)
    for i in np.unique(use[use >= 0]):
        chosen, mine = sets[i], np.flatnonzero(use == i)
        if not chosen.data.smooth:
            for j in mine:
                reached = absolute_errors(chosen, both[j], box)
                solved[j] = reached is not None
                if reached is not None and reached[0] < value[j]:
                    value[j], theta[j] = reached
            continue
        cheap = chosen.data.n * both.shape[1] ** 2 <= 20_000
        most = max(1, MAX_CELLS // max(chosen.data.n, 1))
        for part in np.array_split(mine, -(-len(mine) // most)):
            found = extremes(chosen.region, both[part], chosen.data.informations, cheap_information=cheap)
            better = found.settled & (found.value < value[part])
            value[part] = np.where(better, found.value, value[part])
            theta[part] = np.where(found.settled[:, None], found.theta, theta[part])
            solved[part] = found.settled
    return solved


def _inside_walls(
    sets: tuple[Plausible, ...],
    use: np.ndarray,
    solved: np.ndarray,
    both: np.ndarray,
    value: np.ndarray,
    theta: np.ndarray,
    box: Box,
) -> None:
    """Solve again, behind the walls, what was found beyond one or not found at all."""
    for i in np.unique(use):
        chosen, mine = sets[i], np.flatnonzero(use == i)
        data = chosen.data
        if not (isinstance(data, PredictorData) and data.smooth and chosen.convex):
            continue
        walls = Walls.of(*box, data)
        if not len(walls.limits):
            continue
        again = mine[~solved[mine] | walls.broken(theta[mine])]
        start = member_inside(chosen, walls) if len(again) else None
        if start is None:
            continue
        for j in again:
            found, at = farthest_inside(chosen, walls, both[j], start)
            if found < value[j]:
                value[j] = found
            theta[j] = at


def declared_box(cls: DensityClass, dim: int) -> Box:
    """Boxes among the declared bounds, and supports of what the data see: low and high (D,)."""
    low, high = np.full(dim, -np.inf), np.full(dim, np.inf)
    for site in cls.sites:
        limit = cls.bounds.get(site.name)
        if isinstance(limit, tuple):
            low[site.start : site.stop], high[site.start : site.stop] = (
                np.broadcast_to(side, site.shape).ravel() for side in limit
            )
    return low, high


def absolute_errors(chosen: Plausible, phi: np.ndarray, box: Box) -> tuple[float, np.ndarray] | None:
    """max phi'v over {v in the box : sum_i |y_i - eta_i(v)| / scale_i <= R}, a Laplace's set, and where; None if open.

    A linear program: eta_i + up_i - down_i = y_i with up, down >= 0.
    """
    data = chosen.data
    assert isinstance(data, PredictorData)
    assert data.table is not None
    n, D = data.n, data.dim
    scale, target = data.fixed()["scale"], data.table.y - data.table.x[:, D]
    centre = chosen.region.centre
    left = np.sum(np.abs(target - data.features @ centre) / scale) + chosen.region.kappa
    unit = float(np.median(scale))  # of the errors, so that the solver's tolerances are in units of the noise
    width = np.maximum(np.abs(data.features).max(axis=0), np.finfo(float).tiny)  # of each column, for the same reason
    errors = eye_array(n)
    found = linprog(
        np.concatenate([-phi / width, np.zeros(2 * n)]),
        A_ub=np.concatenate([np.zeros(D), unit / scale, unit / scale])[None],
        b_ub=[left],
        A_eq=hstack([csr_array(data.features / width), errors, -errors], format="csr"),
        b_eq=target / unit,
        bounds=[*zip(*(side * width / unit for side in box)), *[(0, None)] * (2 * n)],
        method="highs",
    )
    if found.status != 0:
        return None
    theta = found.x[:D] / width * unit
    return float(phi @ theta), theta


def _seen_half_width(chosen: Plausible, phi: np.ndarray) -> np.ndarray:
    """The delta half-width of phi'theta, infinite where phi leaves the span of the rows."""
    return np.where(chosen.unseen.meets(phi), np.inf, chosen.region.half_width(phi))


def declared_reach(cls: DensityClass, phi: np.ndarray) -> np.ndarray:
    """max phi'theta over the declared bounds alone, for phi (M, D): inf where a coordinate in use has none.

    |theta_site| <= S gives S |phi_site|, a box gives its best corner; sites add up.
    """
    declared = cls.bounds
    reach = np.zeros(len(phi))
    covered = np.zeros(phi.shape[1], bool)
    for site in cls.sites:
        if site.name not in declared:
            continue
        part = phi[:, site.start : site.stop]
        limit = declared[site.name]
        if isinstance(limit, tuple):
            low, high = (np.broadcast_to(side, site.shape).ravel() for side in limit)
            best = np.where(part > 0, high, low)
            reach += np.sum(np.multiply(part, best, out=np.zeros(part.shape), where=part != 0), axis=1)  # a side may be open
        else:
            size = np.linalg.norm(part, axis=1)
            reach += np.multiply(size, float(limit), out=np.zeros(len(phi)), where=size != 0)
        covered[site.start : site.stop] = True
    return np.where(np.any(phi[:, ~covered] != 0, axis=1), np.inf, reach)
