"""How far a linear form phi'theta can go over everything that is still plausible: exact, for convex
sets and declared bounds; and the range of a functional of Normal(loc, scale) while loc runs over an
interval and the scale is known.

Axis letters: m linear forms, D flat parameters, S sets; M intervals, n rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

from gedppl.density import Density
from gedppl.functionals import Functional
from gedppl.learning.absolute_errors import absolute_errors, farthest_within_errors
from gedppl.learning.learner import price_of_wall
from gedppl.learning.likelihoods import Likelihood, PredictorLikelihood
from gedppl.learning.program_sets import Plausible, Ways, extremes, plausible, ways_of
from gedppl.learning.walls import Box, Walls, behind, farthest_inside, on_faces
from gedppl.programs.contract import DensityClass
from gedppl.rows import over_box

if TYPE_CHECKING:
    from gedppl.learning.learner import Bounds
    from gedppl.learning.programs import ProgramLearner


FIRST_STEPS, MOST_STEPS = 12, 60  # before and after it is asked whether there is an end
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
        use = np.where(np.isfinite(best), newest, -1)
        held = _on_walls(sets, use, both, value, theta, box)
        solved = _solve(sets, np.where(held, -1, use), both, value, theta, box)
        _inside_walls(sets, np.where(held, -1, newest), solved, both, value, theta, box)
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
    held = _on_walls((chosen,), use, both, value, theta, box)
    solved = _solve((chosen,), np.where(held, -1, use), both, value, theta, box)
    _inside_walls((chosen,), np.where(held, -1, 0), solved, both, value, theta, box)
    return value


def _on_walls(
    sets: tuple[Plausible, ...],
    use: np.ndarray,
    both: np.ndarray,
    value: np.ndarray,
    theta: np.ndarray,
    box: Box,
) -> np.ndarray:
    """`_solve` for forms that go beyond a wall in the ellipsoid of their set's curvature."""
    solved = np.zeros(len(both), bool)
    for i in np.unique(use[use >= 0]):
        chosen, mine = sets[i], np.flatnonzero(use == i)
        if not chosen.is_walled(box):
            continue
        walls = behind(chosen, box)[0]
        mine = mine[walls.broken(chosen.region.ends(both[mine]))]
        for part in _in_parts(mine, max(chosen.data.n, walls.normals.size)):
            if len(part):
                found = on_faces(chosen, walls, both[part])
                value[part] = np.minimum(value[part], found.value)
                theta[part], solved[part] = found.theta, found.settled
    return solved


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
        _settle(chosen, mine, FIRST_STEPS, both, value, theta, solved)
        mine = mine[~solved[mine]]
        if len(mine):
            for fewer, those in concerned(chosen, box, both[mine]):
                _settle(fewer, mine[those], MOST_STEPS, both, value, theta, solved)
    return solved


def _settle(
    chosen: Plausible,
    forms: np.ndarray,
    steps: int,
    both: np.ndarray,
    value: np.ndarray,
    theta: np.ndarray,
    solved: np.ndarray,
) -> None:
    """`_solve` for some forms of a smooth set, in at most so many steps."""
    cheap = chosen.data.n * both.shape[1] ** 2 <= 100_000
    for part in _in_parts(forms, chosen.data.n):
        found = extremes(chosen.region, both[part], own_metric=cheap, steps=steps)
        better = found.settled & (found.value < value[part])
        value[part] = np.where(better, found.value, value[part])
        theta[part] = np.where(found.settled[:, None], found.theta, theta[part])
        solved[part] = found.settled


def _in_parts(forms: np.ndarray, n_rows: int) -> list[np.ndarray]:
    most = max(1, MAX_CELLS // max(n_rows, 1))
    return np.array_split(forms, max(1, -(-len(forms) // most)))


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
    for i in np.unique(use[use >= 0]):
        chosen, mine = sets[i], np.flatnonzero(use == i)
        if not chosen.is_walled(box):
            continue
        walls = behind(chosen, box)[0]
        again = mine[~solved[mine] | walls.broken(theta[mine])]
        for fewer, those in concerned(chosen, box, both[again]):
            walls, start = behind(fewer, box)
            part, ways = again[those], endless(fewer, box)
            if ways is not None:
                part = part[~ways.somewhere(both[part])]
            if start is not None and len(part):
                found, theta[part], _ = farthest_inside(fewer, walls, both[part], start)
                value[part] = np.minimum(value[part], found)


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


def _seen_half_width(chosen: Plausible, phi: np.ndarray) -> np.ndarray:
    """The delta half-width of phi'theta, infinite where phi leaves the span of the rows."""
    return np.where(chosen.unseen.meets(phi), np.inf, chosen.region.half_width(phi))


def declared_reach(cls: DensityClass, phi: np.ndarray) -> np.ndarray:
    """max phi'theta over the declared bounds alone, for phi (M, D): inf where a coordinate in use
    has none.

    |theta_site| <= S gives S |phi_site|, a box gives its best corner; sites add up.
    """
    low, high = declared_box(cls, phi.shape[1])
    covered = np.isfinite(low) | np.isfinite(high)
    reach = over_box(phi, np.where(covered, low, 0.0), np.where(covered, high, 0.0))[1]
    for site in cls.sites:
        limit = cls.bounds.get(site.name)
        if limit is not None and not isinstance(limit, tuple):
            size = np.linalg.norm(phi[:, site.start : site.stop], axis=1)
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


# ==================================================================================================
# Linear forms that grow without end over a convex likelihood set: told apart before anything is
# solved, because a solver finds out only by running far off, where numbers run out.
#
# A log-density that is concave in its predictor falls without end as the predictor goes one way, or
# tends to a value: that of a success, of no event. The likelihood keeps on being plausible along d
# exactly if no row's falls without end. With N a basis of the moves that leave alone the predictors
# that must stay, and G the half-spaces of the others and of the walls,
#
#     phi'd > 0 for some d = N u with G N u <= 0    <=>    N'phi projected on that cone is not zero,
#
# and that projection is what non-negative least squares leave of N'phi (Moreau). Calling a form
# endless is always valid: its end is then the functional's range.
#
# A coordinate that may go up or down for ever, and is not in the form, goes there: that gives its
# rows all that they can have, so that the other rows have the rest of the slack, and the form's end
# is theirs (a patient without events has no say about others). No solver would get there.
#
# Axis letters: M forms, D parameters, n rows, g half-spaces, r moves.
# ==================================================================================================

NOTHING = 1e-9  # share of a form's size that is rounding
LEFT = 1e-7  # and that least squares must leave of it
MOST_HALVES = 400  # half-spaces beyond which least squares cost more than they save


@dataclass(frozen=True)
class Endless:
    """The ways on which a set behind its walls has no end, in coordinates multiplied by `unit`."""

    kept: np.ndarray  # (k, D)
    halves: np.ndarray  # (g, D)
    unit: np.ndarray  # (D,)
    moved: np.ndarray  # (D,) coordinates without which rows can do: those that touch them

    @classmethod
    def of(cls, data: Likelihood, ways: Ways, normals: np.ndarray) -> Endless:
        kept, halves = ways[0], np.vstack([ways[1], normals])
        unit = np.abs(np.vstack([kept, halves])).max(axis=0, initial=0.0)
        unit = np.where(unit > 0, unit, 1.0)
        moved = np.any(np.vstack(ways) != 0, axis=0) & isinstance(data, PredictorLikelihood)
        return cls(kept / unit, halves / unit, unit, moved)

    @cached_property
    def along_axes(self) -> np.ndarray:
        """(2, D): whether a coordinate may go up, and down, for ever."""
        free = ~np.any(self.kept != 0, axis=0)
        return np.array([free & np.all(s * self.halves <= 0, axis=0) for s in (1, -1)])

    @cached_property
    def moves(self) -> np.ndarray:
        """(D, r), those that leave alone what must stay where it is."""
        values, vectors = np.linalg.eigh(self.kept.T @ self.kept)
        moves = vectors[:, values <= 1e-12 * max(float(values.max(initial=0.0)), 1.0)]
        still = np.abs(self.kept @ moves).max(initial=0.0) <= NOTHING
        found: np.ndarray = moves if still else moves[:, :0]
        return found

    @cached_property
    def stops(self) -> np.ndarray | None:
        """(r, g'), the half-spaces in terms of the moves; None if they are too many."""
        lean = self.halves @ self.moves
        lean = np.unique(lean[np.any(np.abs(lean) > NOTHING, axis=1)], axis=0)
        return np.ascontiguousarray(lean.T) if len(lean) <= MOST_HALVES else None

    def along(self, phi: np.ndarray) -> np.ndarray:
        """Whether each form (M, D) grows along a coordinate for ever: (M,)."""
        up, down = self.along_axes
        found: np.ndarray = np.any((phi > 0) & up | (phi < 0) & down, axis=1)
        return found

    def somewhere(self, phi: np.ndarray) -> np.ndarray:
        """Whether each form (M, D) grows for ever along any way, as far as that is found: (M,)."""
        found = self.along(phi)
        if self.stops is None:
            return found
        goal, size = phi / self.unit @ self.moves, np.linalg.norm(phi / self.unit, axis=1)
        for m in np.flatnonzero(~found & (np.linalg.norm(goal, axis=1) > LEFT * size)):
            try:
                left = nnls(self.stops, goal[m])[1] if self.stops.size else size[m]
            except RuntimeError:  # no answer within its steps
                continue
            found[m] = left > LEFT * size[m]
        return found


def concerned(
    chosen: Plausible, box: Box, phi: np.ndarray
) -> Iterator[tuple[Plausible, np.ndarray]]:
    """For forms phi (M, D) the rows that have to do with them: smaller sets, each with the numbers
    of its forms. Forms that grow along a coordinate for ever are in none.
    """
    ways = endless(chosen, box)
    if ways is None:
        yield chosen, np.arange(len(phi))
        return
    left = np.flatnonzero(~ways.along(phi))
    idle = ways.along_axes.any(axis=0) & ways.moved & (phi[left] == 0)
    for alike in np.unique(idle, axis=0):
        mine = left[(idle == alike).all(axis=1)]
        if not alike.any():
            yield chosen, mine
            continue
        smaller: Plausible = chosen.behind_walls.get(
            "without", (alike,), partial(without, chosen, alike)
        )
        for fewer, part in concerned(smaller, box, phi[mine]):
            yield fewer, mine[part]


def without(chosen: Plausible, idle: np.ndarray) -> Plausible:
    """The set of the rows that do not depend on idle coordinates (D,), the others taken to be as
    likely as they can be.
    """
    data = chosen.data
    assert isinstance(data, PredictorLikelihood)
    assert data.table is not None
    assert chosen.threshold is not None
    gone = np.any(data.features[:, idle] != 0, axis=1)
    fixed = {name: value[gone] for name, value in data.fixed().items()}
    ends = data.family.ends(data.table.y[gone], fixed)[0]
    weight = np.ones(data.n) if data.weights is None else data.weights
    given = float(np.nanmax(ends, axis=0) @ weight[gone])
    rest = data.weighted(np.where(gone, 0.0, weight))
    return plausible(rest, chosen.start, chosen.region.centre, chosen.threshold - given)


def endless(chosen: Plausible, box: Box) -> Endless | None:
    """A set's endless ways behind its walls, found once for each set; None where its likelihood
    says nothing of them.
    """

    def find() -> Endless | None:
        ways = ways_of(chosen.data) if chosen.convex and chosen.threshold is not None else None
        walled = chosen.is_walled(box)
        normals = Walls.of(*box, chosen.data).normals if walled else np.zeros((0, len(box[0])))
        return None if ways is None else Endless.of(chosen.data, ways, normals)

    found: Endless | None = chosen.behind_walls.get("endless", box, find)
    return found
