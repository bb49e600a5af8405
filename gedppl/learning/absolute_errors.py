"""A Laplace's set {v : sum_i |z_i(v)| <= R}, z = t - Phi v the errors in units of their scales.

    max phi'v over the set  =  min t'lambda + mu R over Phi'lambda = phi, |lambda_i| <= mu

by a primal-dual interior-point method for all forms at once, from a feasible start. Whatever
lambda it ends with, what is returned is the right side at it: for every member phi'v = lambda'(t
- z) <= t'lambda + mu R.

Axis letters: M forms, n rows, r the rank of Phi, in whose singular vectors all is computed.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack

from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.program_sets import Plausible
from gedppl.learning.walls import GAP, Box

ERROR_STEPS = 60
SHARPER, SHARPEST = 10.0, 300.0  # how much smaller a gap each step aims at


def farthest_within_errors(
    chosen: Plausible, both: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Upper bounds of phi'v over a Laplace's set for phi (M, D) in the span of its rows, (M,); a
    member that almost attains each (M, D); and whether the two meet (M,), up to a share of 1e-9.
    """
    data, centre = chosen.data, chosen.region.centre
    assert isinstance(data, PredictorLikelihood)
    assert data.table is not None
    scale = data.fixed()["scale"]
    error = (data.table.y - data.table.x[:, data.dim] - data.features @ centre) / scale
    limit = float(np.sum(np.abs(error))) + chosen.region.kappa
    unit = np.maximum(np.abs(data.features).max(axis=0), np.finfo(float).tiny)
    left, sizes, right = np.linalg.svd(data.features / unit / scale[:, None], full_matrices=False)
    rank = int(np.sum(sizes > 1e-10 * sizes.max(initial=0.0)))
    basis, turn = left[:, :rank], (right[:rank] / sizes[:rank, None]) / unit  # v = centre + u turn
    goal = both @ turn.T
    if rank == 1:
        u = ends_of_line(basis[:, 0], error, limit)[np.where(goal > 0, 1, 0)]
        bound = np.sum(goal * u, axis=1)
    else:
        bound, u = _within_errors(basis, error, limit, chosen.region.kappa, goal)
    at = centre + u @ turn
    gap = bound - np.sum(goal * u, axis=1)
    return both @ centre + bound, at, gap <= GAP * np.maximum(bound, np.finfo(float).tiny)


def ends_of_line(column: np.ndarray, error: np.ndarray, limit: float) -> np.ndarray:
    """Smallest and largest u (2,) with sum |error - column u| <= limit. With lambda the column's
    signs, those of the first j kinks turned, every member has

        u sum_i lambda_i column_i <= limit + sum_i lambda_i error_i,

    which is met with equality on the piece between two kinks that the end lies on.
    """
    turns = np.flatnonzero(column)
    order = turns[np.argsort(error[turns] / column[turns], kind="stable")]
    weight, level = np.abs(column[order]), np.sign(column[order]) * error[order]
    slope = np.append(0.0, 2 * np.cumsum(weight)) - np.sum(weight)
    room = limit - np.sum(np.abs(error[column == 0]))
    room += np.append(0.0, 2 * np.cumsum(level)) - np.sum(level)
    up = slope > 0
    return np.array([np.max(room[slope < 0] / slope[slope < 0]), np.min(room[up] / slope[up])])


@np.errstate(all="ignore")  # where numbers run out, bound and member do not meet
def _within_errors(
    basis: np.ndarray, error: np.ndarray, limit: float, slack: float, goal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """min error'lambda + mu limit, (M,), and the u (M, r) at which it is attained: errors are
    error - basis u, with up - down = error - basis u and sum(up + down) + rest = limit.
    """
    (M, r), n = goal.shape, len(error)
    u, best = np.zeros(goal.shape), np.full(M, np.inf)
    signs = np.array([[1.0], [-1.0]])
    # up and down together, (M, 2, n); their multipliers are mu + lambda and mu - lambda
    sides = np.tile(np.maximum(signs * error, 0.0) + 0.25 * slack / n, (M, 1, 1))
    rest = np.full(M, 0.5 * slack)
    lam = goal @ basis.T
    mu = 1.5 * np.abs(lam).max(axis=1) + np.finfo(float).tiny
    pairs = (basis[:, :, None] * basis[:, None, :]).reshape(n, -1)
    system, right, sharper = np.empty((M, r + 1, r + 1)), np.empty((M, r + 1)), SHARPER
    for _ in range(ERROR_STEPS):
        lam += (goal - lam @ basis) @ basis.T  # what rounding takes away
        best = np.fmin(best, lam @ error + np.abs(lam).max(axis=1) * limit)
        going = best - np.einsum("mr,mr->m", goal, u) > 0.1 * GAP * best
        if not going.any():
            break
        prices = mu[:, None, None] + signs * lam[:, None]
        aim = np.einsum("msn,msn->m", sides, prices) + rest * mu
        aim /= sharper * (2 * n + 1)
        # where each would have to be for its product with its multiplier to be the aim
        wanted, wanted_rest = aim[:, None, None] / prices, aim / mu
        ratio = sides / prices
        whole, odd = ratio[:, 0] + ratio[:, 1], ratio[:, 0] - ratio[:, 1]
        weight = 1.0 / whole
        lean = odd * weight
        missing = error - u @ basis.T - wanted[:, 0] + wanted[:, 1]
        system[:, :-1, :-1] = (weight @ pairs).reshape(M, r, r)
        system[:, -1, :-1] = lean @ basis
        system[:, :-1, -1] = -system[:, -1, :-1]
        system[:, -1, -1] = np.sum(whole - odd * lean, axis=1) + rest / mu
        right[:, :-1] = (weight * missing) @ basis
        right[:, -1] = np.einsum("msn->m", wanted) + np.einsum("mn,mn->m", lean, missing)
        right[:, -1] += wanted_rest - limit
        try:
            step = np.linalg.solve(system, right[..., None])[..., 0]
        except np.linalg.LinAlgError:
            break
        du, dmu = step[:, :-1], step[:, -1:]
        dlam = -weight * (missing - du @ basis.T + odd * dmu)
        dprices = dmu[:, None] + signs * dlam[:, None]
        dsides = wanted - sides - ratio * dprices
        drest = wanted_rest - rest - rest / mu * dmu[:, 0]
        # a form that is done stays where it is
        primal = going * np.minimum(_room(sides, dsides), _room(rest, drest))
        dual = going * _room(prices, dprices)
        u, sides = u + primal[:, None] * du, sides + primal[:, None, None] * dsides
        rest, lam, mu = rest + primal * drest, lam + dual[:, None] * dlam, mu + dual * dmu[:, 0]
        full = np.minimum(primal, dual)[going].min() > 0.9
        sharper = SHARPEST if full else SHARPER  # near the end
    return best, u


def _room(value: np.ndarray, change: np.ndarray) -> np.ndarray:
    """How much of a step, at most one, leaves positive numbers (M, ...) positive: (M,)."""
    most = (-change / value).reshape(len(value), -1).max(axis=1)
    found: np.ndarray = np.minimum(1.0, 0.995 / np.maximum(most, 1e-300))
    return found


def absolute_errors(
    chosen: Plausible, phi: np.ndarray, box: Box
) -> tuple[float, np.ndarray] | None:
    """max phi'v over {v in the box : sum_i |y_i - eta_i(v)| / scale_i <= R}, a Laplace's set, and
    where; None if open.

    A linear program: eta_i + up_i - down_i = y_i with up, down >= 0.
    """
    data = chosen.data
    assert isinstance(data, PredictorLikelihood)
    assert data.table is not None
    n, D = data.n, data.dim
    scale, target = data.fixed()["scale"], data.table.y - data.table.x[:, D]
    centre = chosen.region.centre
    left = np.sum(np.abs(target - data.features @ centre) / scale) + chosen.region.kappa
    # of the errors, so that the solver's tolerances are in units of the noise
    unit = float(np.median(scale))
    # of each column, for the same reason
    width = np.maximum(np.abs(data.features).max(axis=0), np.finfo(float).tiny)
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
