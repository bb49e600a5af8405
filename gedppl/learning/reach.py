"""How far a linear form phi'theta can go over everything that is still plausible: exact, for convex
sets and declared bounds; and the range of a functional of Normal(loc, scale) while loc runs over an
interval and the scale is known.

Axis letters: m linear forms, D flat parameters, S sets; M intervals, n rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack

from gedppl.density import Density
from gedppl.functionals import Functional
from gedppl.learning.learner import price_of_wall
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.program_sets import Plausible, extremes
from gedppl.learning.walls import GAP, Box, behind, farthest_inside
from gedppl.programs.contract import DensityClass

if TYPE_CHECKING:
    from gedppl.learning.learner import Bounds
    from gedppl.learning.programs import ProgramLearner


MAX_CELLS = 4_000_000  # problems x rows held at once
SEARCHED = (
    "the functional is not monotone in the Normal's loc: its range was searched on a grid of at "
    "least 16 points per "
    "noise scale, so the bound is an approximation"
)
# points per scale; intervals beyond this many scales get the functional's whole range
GRID, WIDEST = 16, 64
APART = (
    "no parameter is in every set and inside the declared bounds: the model, or a bound, does "
    "not hold"
)


def farthest(learner: ProgramLearner, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """max phi'theta, then max -phi'theta, for phi (m, D): (2m,), inf where open; where, (2m, D);
    and whether sets are apart.

    For each form one of the newest sets, of all rows or of a group, is solved: the one whose delta
    half-width is smallest; and one of the past sets, if any are kept, where the delta bound
    promises more. Where that point lies beyond a wall (a declared box, a sign, the domain of a link
    at the rows) the form is solved again inside the walls. The ends of a form whose sets (or
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
        promised = best + np.einsum(
            "md,md->m", both, np.array([s.region.centre for s in sets])[newest]
        )
        box = declared_box(learner.cls, phi.shape[1])
        solved = _solve(sets, np.where(np.isfinite(best), newest, -1), both, value, theta, box)
        _inside_walls(sets, newest, solved, both, value, theta, box)
        if learner.past:
            ends = np.array(
                [
                    np.tile(_seen_half_width(s, phi), 2) + both @ s.region.centre
                    for s in learner.past
                ]
            )
            use = np.where(ends.min(axis=0) < promised, np.argmin(ends, axis=0), -1)
            _solve(learner.past, use, both, value, theta, box)
    gap = -value[m:] - value[:m]
    apart = gap > 1e-6 * np.where(
        np.isfinite(gap), np.maximum(np.abs(value[:m]), np.abs(value[m:])), 0.0
    )
    value[np.tile(apart, 2)] = np.inf
    return value, theta, bool(apart.any())


def farthest_held(
    learner: ProgramLearner, phi: np.ndarray, wall: np.ndarray, most: np.ndarray
) -> np.ndarray:
    """An upper bound (m,) of phi'theta over the plausible theta with wall'theta <= most, for phi,
    wall (m, D) and most (m,); inf where the wall says nothing. It is max (phi - l wall)'theta + l
    most, valid for every l >= 0, at the best l for the ellipsoid of the set's curvature.
    """
    value, sets = np.full(len(phi), np.inf), learner.every_set
    if not sets:
        return value
    widths = np.array([_seen_half_width(s, phi) for s in sets])
    newest = np.where(np.isfinite(widths.min(axis=0)), np.argmin(widths, axis=0), -1)
    box = declared_box(learner.cls, phi.shape[1])
    for i in np.unique(newest[newest >= 0]):
        region, mine = sets[i].region, np.flatnonzero(newest == i)
        size, room = np.sqrt(2 * region.kappa), most[mine] - wall[mine] @ region.centre
        half, side = (size * region.whiten(part[mine]) for part in (phi, wall))
        price = price_of_wall(half, side, room)
        mine, price = mine[price > 0], price[price > 0]
        if len(mine):
            forms = phi[mine] - price[:, None] * wall[mine]
            value[mine] = reached(sets[i], forms, box) + price * most[mine]
    return value


def reached(chosen: Plausible, both: np.ndarray, box: Box) -> np.ndarray:
    """max phi'theta over one set and a box for every row of `both` (m, D): (m,), inf where open."""
    theta = np.broadcast_to(chosen.region.centre, both.shape).copy()
    value = np.full(len(both), np.inf)
    use = np.where(chosen.unseen.meets(both), -1, 0)
    solved = _solve((chosen,), use, both, value, theta, box)
    _inside_walls((chosen,), np.zeros(len(both), np.int64), solved, both, value, theta, box)
    return value


def _solve(
    sets: tuple[Plausible, ...],
    use: np.ndarray,
    both: np.ndarray,
    value: np.ndarray,
    theta: np.ndarray,
    box: Box,
) -> np.ndarray:
    """Lower `value` (2m,) to what the set with index use (2m,) allows (-1: none), and put `theta`
    where it is attained.

    Whether each form was solved, (2m,).
    """
    solved = np.zeros(len(both), bool)
    for i in np.unique(use[use >= 0]):
        chosen, mine = sets[i], np.flatnonzero(use == i)
        if not chosen.data.smooth:
            for part in _in_parts(mine, chosen.data.n):
                _solve_errors(chosen, part, solved, both, value, theta, box)
            continue
        cheap = chosen.data.n * both.shape[1] ** 2 <= 100_000
        for part in _in_parts(mine, chosen.data.n):
            found = extremes(chosen.region, both[part], own_metric=cheap)
            better = found.settled & (found.value < value[part])
            value[part] = np.where(better, found.value, value[part])
            theta[part] = np.where(found.settled[:, None], found.theta, theta[part])
            solved[part] = found.settled
    return solved


def _in_parts(forms: np.ndarray, n_rows: int) -> list[np.ndarray]:
    most = max(1, MAX_CELLS // max(n_rows, 1))
    return np.array_split(forms, -(-len(forms) // most))


def _solve_errors(
    chosen: Plausible,
    mine: np.ndarray,
    solved: np.ndarray,
    both: np.ndarray,
    value: np.ndarray,
    theta: np.ndarray,
    box: Box,
) -> None:
    """`_solve` for a set that a sum of absolute errors bounds. Where its farthest point lies
    inside the box the box does not matter; the other forms are linear programs with it. Without
    a member inside the box there is no such program to solve: then what the set alone allows
    shows that the two are apart.
    """
    within, at, near = farthest_within_errors(chosen, both[mine])
    inside = near & np.all((at >= box[0]) & (at <= box[1]), axis=1)
    for j, found, where, ok in zip(mine, within, at, inside):
        alone = float(found), where
        reached = alone if ok else (absolute_errors(chosen, both[j], box) or alone)
        solved[j] = np.isfinite(reached[0])
        if reached[0] < value[j]:
            value[j], theta[j] = reached


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
    boxed = bool(np.isfinite(box).any())
    for i in np.unique(use):
        chosen, mine = sets[i], np.flatnonzero(use == i)
        if not (chosen.data.smooth and chosen.convex and (boxed or chosen.data.walled)):
            continue
        walls, start = behind(chosen, box)
        again = mine[~solved[mine] | walls.broken(theta[mine])]
        if start is None or not len(again):
            continue
        found, theta[again], _ = farthest_inside(chosen, walls, both[again], start)
        value[again] = np.minimum(value[again], found)


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


# ==================================================================================================
# A Laplace's set {v : sum_i |z_i(v)| <= R}, z = t - Phi v the errors in units of their scales.
#
#     max phi'v over the set  =  min t'lambda + mu R over Phi'lambda = phi, |lambda_i| <= mu
#
# by a primal-dual interior-point method for all forms at once, from a feasible start. Whatever
# lambda it ends with, what is returned is the right side at it: for every member phi'v = lambda'(t
# - z) <= t'lambda + mu R.
#
# Axis letters: M forms, n rows, r the rank of Phi, in whose singular vectors all is computed.
# ==================================================================================================

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
    bound, u = _within_errors(basis, error, limit, chosen.region.kappa, goal)
    at = centre + u @ turn
    gap = bound - np.sum(goal * u, axis=1)
    return both @ centre + bound, at, gap <= GAP * np.maximum(bound, np.finfo(float).tiny)


@np.errstate(all="ignore")  # where numbers run out, bound and member do not meet
def _within_errors(
    basis: np.ndarray, error: np.ndarray, limit: float, slack: float, goal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """min error'lambda + mu limit, (M,), and the u (M, r) at which it is attained: errors are
    error - basis u, with up - down = error - basis u and sum(up + down) + rest = limit.
    """
    (M, r), n = goal.shape, len(error)
    u, best = np.zeros(goal.shape), np.full(M, np.inf)
    share = 0.25 * slack / n
    up, down = (np.tile(np.maximum(side, 0.0) + share, (M, 1)) for side in (error, -error))
    rest = np.full(M, 0.5 * slack)
    lam = goal @ basis.T
    mu = 1.5 * np.abs(lam).max(axis=1) + np.finfo(float).tiny
    pairs = (basis[:, :, None] * basis[:, None, :]).reshape(n, -1)
    system, side, sharper = np.empty((M, r + 1, r + 1)), np.empty((M, r + 1)), SHARPER
    for _ in range(ERROR_STEPS):
        lam += (goal - lam @ basis) @ basis.T  # what rounding takes away
        best = np.fmin(best, lam @ error + np.abs(lam).max(axis=1) * limit)
        going = best - np.sum(goal * u, axis=1) > 0.1 * GAP * best
        if not going.any():
            break
        over, under = mu[:, None] + lam, mu[:, None] - lam  # the multipliers of up and down
        aim = (np.sum(up * over + down * under, axis=1) + rest * mu) / (sharper * (2 * n + 1))
        tall, deep = up / over, down / under
        whole, odd = tall + deep, tall - deep
        weight, lean = 1.0 / whole, odd / whole
        # where each would have to be for its product with its multiplier to be the aim
        off_up, off_down = aim[:, None] / over - up, aim[:, None] / under - down
        off_rest = aim / mu - rest
        missing = error - u @ basis.T - up + down - off_up + off_down
        system[:, :-1, :-1] = (weight @ pairs).reshape(M, r, r)
        system[:, -1, :-1] = lean @ basis
        system[:, :-1, -1] = -system[:, -1, :-1]
        system[:, -1, -1] = np.sum(whole - odd * lean, axis=1) + rest / mu
        side[:, :-1] = (weight * missing) @ basis
        side[:, -1] = np.sum(up + down + off_up + off_down + lean * missing, axis=1)
        side[:, -1] += rest + off_rest - limit
        try:
            step = np.linalg.solve(system, side[..., None])[..., 0]
        except np.linalg.LinAlgError:
            break
        du, dmu = step[:, :-1], step[:, -1:]
        dlam = -weight * (missing - du @ basis.T + odd * dmu)
        dup, ddown = off_up - tall * (dmu + dlam), off_down - deep * (dmu - dlam)
        drest = off_rest - rest / mu * dmu[:, 0]
        # a form that is done stays where it is
        primal = going * np.minimum(
            np.minimum(_room(up, dup), _room(down, ddown)), _room(rest[:, None], drest[:, None])
        )
        dual = going * np.minimum(_room(over, dmu + dlam), _room(under, dmu - dlam))
        u, up, down = (
            old + primal[:, None] * change for old, change in ((u, du), (up, dup), (down, ddown))
        )
        rest, lam, mu = rest + primal * drest, lam + dual[:, None] * dlam, mu + dual * dmu[:, 0]
        full = np.minimum(primal, dual)[going].min() > 0.9
        sharper = SHARPEST if full else SHARPER  # near the end
    return best, u


def _room(value: np.ndarray, change: np.ndarray) -> np.ndarray:
    """How much of a step, at most one, leaves positive numbers (M, k) positive: (M,)."""
    found: np.ndarray = np.minimum(1.0, 0.995 / np.maximum((-change / value).max(axis=1), 1e-300))
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


def _seen_half_width(chosen: Plausible, phi: np.ndarray) -> np.ndarray:
    """The delta half-width of phi'theta, infinite where phi leaves the span of the rows."""
    return np.where(chosen.unseen.meets(phi), np.inf, chosen.region.half_width(phi))


def declared_reach(cls: DensityClass, phi: np.ndarray) -> np.ndarray:
    """max phi'theta over the declared bounds alone, for phi (M, D): inf where a coordinate in use
    has none.

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
            # a side may be open
            reach += np.sum(
                np.multiply(part, best, out=np.zeros(part.shape), where=part != 0), axis=1
            )
        else:
            size = np.linalg.norm(part, axis=1)
            reach += np.multiply(size, float(limit), out=np.zeros(len(phi)), where=size != 0)
        covered[site.start : site.stop] = True
    return np.where(np.any(phi[:, ~covered] != 0, axis=1), np.inf, reach)


# functionals of a Normal over an interval of its loc ----------------------------------------------


def is_plain(functional: Functional) -> bool:
    """Whether the functional is what its name says; a subclass may do anything with it."""
    return type(functional).__call__ is Functional.__call__


def is_mean(functional: Functional) -> bool:
    """Whether the functional is the mean itself, and nothing that only bears its name."""
    return functional.name == "mean" and is_plain(functional)


def is_searched(functional: Functional) -> bool:
    """Whether the range over an interval of loc is found by search, not in closed form."""
    return functional.name == "expected" or not is_plain(functional)


def direction(functional: Functional) -> int:
    """+1 or -1 if the functional grows or falls with loc, 0 if neither."""
    if not is_plain(functional):
        return 0
    if functional.name in ("mean", "quantile", "cvar"):
        return 1
    if functional.name == "probability" and (functional.above is None or functional.below is None):
        return 1 if functional.below is None else -1
    return 0


def slope(functional: Functional, scale: float) -> float:
    """The largest absolute derivative in loc, for noise of at least this scale; inf where none
    is known.
    """
    if not is_plain(functional):
        return np.inf
    if functional.name in ("mean", "quantile", "cvar"):
        return 1.0
    if functional.name == "variance":
        return 0.0
    if functional.name == "second_moment":
        return 2 * float(np.sqrt(functional.high))  # loc^2 <= E Y^2 <= high
    if functional.name == "probability":
        return float(1 / (np.sqrt(2 * np.pi) * scale))
    return np.inf


def value_at(
    functional: Functional, loc: np.ndarray, scale: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """The functional at loc (M, n) with scale (n,) and rows x (n, dx), a (n,), whatever its
    declared range.
    """
    if is_mean(functional):
        return loc
    density = Density("Normal", {"loc": loc, "scale": np.broadcast_to(scale, loc.shape)})
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(functional(density, x, a), float)


def value_range(
    functional: Functional,
    low: np.ndarray,
    high: np.ndarray,
    scale: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest value for loc in [low, high], each (M, n), not cut to the functional's
    range; ends may be infinite.

    scale (n,), rows x (n, dx), a (n,). What is not a number may be anything: -inf and inf.
    """
    sign = direction(functional)
    if sign:
        ends = low, high
        lower, upper = (value_at(functional, end, scale, x, a) for end in ends[::sign])
    elif is_searched(functional):
        lower, upper = _search(functional, low, high, scale, x, a)
    else:
        turn = np.clip(_turning_point(functional, x, a), low, high)
        # the same everywhere; infinite ends have none
        places = [turn] if functional.name == "variance" else [turn, low, high]
        values = [value_at(functional, loc, scale, x, a) for loc in places]
        lower, upper = np.minimum.reduce(values), np.maximum.reduce(values)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), np.inf, upper)


def _turning_point(functional: Functional, x: np.ndarray, a: np.ndarray) -> np.ndarray | float:
    """Where variance (nowhere), second moment (0) and P(above < Y < below) (its middle) turn;
    they have no other extremum.
    """
    if functional.name != "probability":
        return 0.0
    above, below = limits_at(functional, x, a)
    found: np.ndarray | float = 0.5 * (above + below)
    return found


def limits_at(
    functional: Functional, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both limits of P(above < Y < below) at rows x (n, dx), a (n,): numbers or (n,)."""
    limits = []
    for limit in (functional.above, functional.below):
        if callable(limit):
            limits.append(np.asarray(limit(x, a), float))
        else:
            limits.append(
                np.asarray(limit, float)[a] if np.ndim(limit) else np.asarray(limit, float)
            )
    return limits[0], limits[1]


def _search(
    functional: Functional,
    low: np.ndarray,
    high: np.ndarray,
    scale: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Grid search: fn smoothed by noise of this scale has no bump narrower than it, so 16 points
    per scale see them all.
    """
    width = (high - low) / scale
    low = np.where(width <= WIDEST, low, 0.0)  # those beyond are not looked at
    narrow = np.where(width <= WIDEST, width, 0.0)
    points = int(np.ceil(narrow.max(initial=0.0) * GRID)) + 2
    grid = np.linspace(0.0, 1.0, points)[:, None, None]
    reach = narrow * scale
    loc = low + grid * reach
    values = value_at(functional, loc.reshape(-1, low.shape[-1]), scale, x, a).reshape(loc.shape)
    wide = width > WIDEST
    lower, upper = values.min(axis=0), values.max(axis=0)
    return np.where(wide, -np.inf, lower), np.where(wide, np.inf, upper)


def remarks(open_end: np.ndarray, a: np.ndarray, apart: bool) -> list[str]:
    """What a reader should know of ends (m, 2) that are open, or of sets that do not meet."""
    if apart:
        return [APART]
    n_actions = int(a.max()) + 1
    # of contexts asked together, the least known
    most = int(open_end.any(axis=1).reshape(-1, n_actions).sum(axis=1).max())
    return [f"{most} of {n_actions} actions are not yet bounded by the data"] if most else []


# a declared range against what the data leave -----------------------------------------------------

REFUTED_BEYOND = 1e-9  # share of the numbers compared: a declaration is refuted beyond this only


def beyond_range(found: Bounds, functional: Functional) -> tuple[np.ndarray, np.ndarray]:
    """By how much everything plausible lies above, and below, the functional's declared range: two
    (n, K), -inf where that is not proved or not so. Rounding does not count.
    """
    nowhere = np.full(found.lower.shape, -np.inf)
    if not found.guaranteed or found.free_lower is None or found.free_upper is None:
        return nowhere, nowhere
    low, high = functional.low, functional.high
    slack = REFUTED_BEYOND * max(abs(low), abs(high))
    over, under = found.free_lower - high, low - found.free_upper
    return (
        np.where(np.isfinite(found.free_lower) & (over > slack), over, -np.inf),
        np.where(np.isfinite(found.free_upper) & (under > slack), under, -np.inf),
    )
