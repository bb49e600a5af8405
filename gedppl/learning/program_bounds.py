"""A program's functional over its plausible set: bounds today, delta bounds under past snapshots.

Axis letters: n contexts, K actions, B snapshots, D flat parameters, G grid points.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np

from gedppl.functionals.expectation import INTEGRATED, at_outcomes, is_integrated
from gedppl.learning.ascent import Found, by_ascent
from gedppl.learning.fits import positive_definite
from gedppl.learning.learner import Bounds, Guess
from gedppl.learning.likelihoods import Likelihood, PredictorLikelihood, ProgramLikelihood
from gedppl.learning.ordered import OrderedLikelihood
from gedppl.learning.ordered_bounds import edge_bounds
from gedppl.learning.profiled_bounds import profiled_bounds
from gedppl.learning.reach import (
    declared_reach,
    direction,
    farthest,
    farthest_held,
    is_plain,
    limits_at,
    remarks,
)
from gedppl.rows import grid

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner
    from gedppl.programs.contract import DensityClass

MISSPECIFIED = (
    "no parameter of the class explains the data as well as the predictions did: the "
    "model is misspecified"
)
SEARCHED = (
    "a function of the outcome may be anything between the points of the grid it was "
    "searched on: not a certificate"
)
# of a predictor, in units of its noise: between open ends, to see which way a functional goes
PROBES = (-1.0, 0.0, 1.0)
GRID, ZOOMS = 33, 7
MOST_OUTCOMES = 10_000  # trials of a Binomial at which a user's function is looked at one by one
STEP = 1e-6  # of a predictor, in posterior standard deviations, over which a slope is taken
HAIR = 1e-9  # of a predictor, beside which a declared value must lie
GUESS_SDS = 2.0  # half-width of `guess`, in posterior standard deviations


def bounds(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int
) -> Bounds:
    """See `ProgramLearner.bounds`."""
    n, K, low, high = len(x), n_actions, functional.low, functional.high
    xs, actions = grid(x, K)
    at_fit = np.broadcast_to(learner.theta, (n * K, learner.cls.dim))
    estimate = _values(learner.data, learner, functional, at_fit, xs, actions)
    sets, shape = learner.every_set, (n, K)
    void = any(s.region.kappa <= 0 for s in sets)
    convex = all(s.convex for s in sets)
    found = None
    if not void and (convex or learner.cls.profiled is not None):
        found = _find_exactly(learner.data, learner, functional, xs, actions)
    exact = found is not None
    if found is None and not void and sets:
        found = by_ascent(learner, functional, xs, actions)
    if found is None:  # no row yet, or a set without members
        found = Found(
            np.full(n * K, -np.inf), np.full(n * K, np.inf), None, MISSPECIFIED if void else ""
        )
        exact = not void
    loose = found.searched or found.integrated
    return Bounds(
        estimate=np.clip(np.where(np.isnan(estimate), high, estimate), low, high).reshape(shape),
        lower=np.clip(found.lower, low, high).reshape(shape),
        upper=np.clip(found.upper, low, high).reshape(shape),
        method=_method(found, void or not sets or (exact and not loose)),
        guaranteed=learner.rule.guaranteed and exact and not found.apart and not (sets and loose),
        rule=learner.sentence,
        note=found.note,
        find_witness=lambda: None if found.witness is None else found.witness.reshape(*shape, -1),
        empty=found.apart or any(s.refuted for s in sets),
        free_lower=found.lower.reshape(shape),
        free_upper=found.upper.reshape(shape),
        find_held=found.held,
    )


def _method(found: Found, certified: bool) -> str:
    if found.profiled:
        return "profiled"
    return ("outer" if found.outer else "exact") if certified else "ascent"


def _unknown_shape(
    learner: ProgramLearner,
    functional: Functional,
    columns: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> bool:
    """A functional of the user's own, or a function of the outcome that is not known to be
    monotone: between two points the functional may do anything.

    The families are stochastically ordered in the predictor, so that the expectation of a monotone
    function is monotone in it. That a function is monotone is seen where the outcomes can be
    counted, two for a Bernoulli, the trials for a Binomial; or it is proved from its operations.
    """
    data = learner.data
    assert isinstance(data, PredictorLikelihood)
    if not is_plain(functional):
        return True
    if functional.fn is None or data.predictor.family == "Bernoulli":
        return False
    if learner.cls.way_of(functional, not data.family.real):
        return False
    if data.predictor.family != "Binomial":
        return True
    trials = columns[:, data.dim + 1 + data.fixed_names(x, a).index("total_count")]
    outcomes = np.arange(min(trials.max(), MOST_OUTCOMES) + 1.0)[:, None] * np.ones(len(a))
    try:
        values = np.asarray(at_outcomes(functional.fn, outcomes, x, a), float)
    except (
        TypeError,
        ValueError,
        AttributeError,
    ):  # written for another package's arrays, or not defined between: then nothing is known of it
        return True
    if trials.max() > MOST_OUTCOMES or values.shape != outcomes.shape:
        return True
    steps = np.where(outcomes[1:] <= trials, np.diff(values, axis=0), 0.0)
    return not bool(np.all(np.all(steps >= 0, axis=0) | np.all(steps <= 0, axis=0)))


@singledispatch
def _values(
    data: Likelihood,
    learner: ProgramLearner,
    functional: Functional,
    theta: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> np.ndarray:
    """The functional at rows, row i at its own theta[i]: the program is asked."""
    return np.asarray(learner.cls.values_grad(functional, theta, x, a)[0], float)


@_values.register(PredictorLikelihood)
def _(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    theta: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> np.ndarray:
    if functional.fn is not None or not is_plain(functional):
        return np.asarray(learner.cls.values_grad(functional, theta, x, a)[0], float)
    columns, _ = data.columns(x, a)
    eta = np.einsum("md,md->m", theta, columns[:, : data.dim]) + columns[:, data.dim]
    found: np.ndarray = at_predictor(data, learner, functional, eta[None], columns, x, a)[0]
    return found


def at_predictor(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    eta: np.ndarray,
    columns: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> np.ndarray:
    """The functional at linear predictors eta (G, m), offset included; columns (m, ...) as
    `PredictorLikelihood.columns` gives them.
    """
    D, (G, m) = data.dim, eta.shape
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # a user's function may be written for the program's own arrays: ask the program
        if functional.fn is not None:
            phi, offset = columns[:, :D], columns[:, D]
            steps = (eta - offset) / np.maximum(np.sum(phi**2, axis=1), 1e-300)
            theta = steps[:, :, None] * phi  # any theta with this predictor gives the same density
            return _values(
                data,
                learner,
                functional,
                theta.reshape(G * m, D),
                np.tile(x, (G, 1)),
                np.tile(a, G),
            ).reshape(G, m)
        fixed = {name: columns[:, D + 1 + j] for j, name in enumerate(data.fixed_names(x, a))}
        density = data.density(
            eta, {name: np.broadcast_to(value, (G, m)) for name, value in fixed.items()}
        )
        return np.asarray(functional(density, x=x, a=a), float)


@singledispatch
def _find_exactly(
    data: Likelihood, learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray
) -> Found | None:
    """The ends where the functional is that of one affine form of theta and the set is convex;
    None for a program of which that is not known.
    """
    return None


@_find_exactly.register(ProgramLikelihood)
def _profiled(
    data: ProgramLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
) -> Found | None:
    if learner.cls.profiled is None:
        return None

    def over(
        data: PredictorLikelihood,
        asked: Functional,
        columns: np.ndarray,
        ends: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        return over_interval(data, learner, asked, columns, ends, x[rows], a[rows])[:2]

    return profiled_bounds(learner, functional, x, a, over)


_find_exactly.register(OrderedLikelihood, edge_bounds)


# exact: one linear predictor ----------------------------------------------------------------------


@_find_exactly.register(PredictorLikelihood)
def _exact(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
) -> Found:
    columns, _ = data.columns(x, a)
    phi, offset = columns[:, : data.dim], columns[:, data.dim]
    m = len(phi)
    value, theta, apart = farthest(learner, phi)
    # (m, 2), infinite where open
    ends = offset[:, None] + np.stack([-value[m:], value[:m]], axis=1)
    open_end = ~np.isfinite(ends)
    ends = np.clip(ends, *data.family.domain)
    searched = _unknown_shape(learner, functional, columns, x, a)
    if searched:
        lower, upper, at_low = _searched(data, learner, functional, columns, ends, x, a)
    else:
        lower, upper, at_low = over_interval(data, learner, functional, columns, ends, x, a)
    some = data.density(np.zeros(1), dict.fromkeys(data.fixed_names(x, a), np.ones(1)))
    integrated = functional.fn is not None and is_integrated(functional.name, True, some)
    notes = remarks(open_end, a, apart)
    notes += [SEARCHED] if searched else [INTEGRATED] * integrated
    return Found(
        lower,
        upper,
        np.where(at_low[:, None], theta[m:], theta[:m]),
        "; ".join(notes),
        apart,
        searched=searched,
        integrated=integrated,
        held=lambda action, most: _held(data, learner, functional, columns, x, a, action, most),
    )


def _held(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    columns: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
    action: int,
    most: np.ndarray,
) -> np.ndarray:
    """The functional's upper ends (n, K) over parameters under which it is at most so much at one
    action, most (n,); inf where that says nothing.

    A functional that is monotone in eta is at most `most` on one side of an eta only. It is found
    by the family, and tried on either side: where the two values do not bracket `most` it is
    another, and where they are equal (the median of a count) `most` is kept on a whole interval.
    """
    n, D = len(most), data.dim
    unknown = np.full((n, len(a) // n), np.inf)
    if not direction(functional):
        return unknown
    own = np.flatnonzero(a == action)
    fixed = {name: columns[own, D + 1 + j] for j, name in enumerate(data.fixed_names(x, a))}
    with np.errstate(divide="ignore", invalid="ignore"):
        edge = np.broadcast_to(data.family.middle(most, fixed), n)
        around = edge + np.array([[-1.0], [1.0]]) * HAIR * (1 + np.abs(edge))
        below, above = at_predictor(data, learner, functional, around, columns[own], x[own], a[own])
        between = (np.minimum(below, above) <= most) & (most <= np.maximum(below, above))
        sign = np.where(between, np.sign(above - below), 0.0)
    sign = np.where(np.isfinite(edge), sign, 0.0)
    if not sign.any():
        return unknown
    limit = np.where(sign > 0, around[1], around[0]) - columns[own, D]
    # every context's, once for each of its actions
    side, wall, most_of = (
        np.repeat(part, unknown.shape[1], axis=0)
        for part in (sign, sign[:, None] * columns[own, :D], np.where(sign == 0, 0.0, sign * limit))
    )
    forms = side[:, None] * columns[:, :D]
    value = np.minimum(
        farthest_held(learner, forms, wall, most_of),
        held_as_declared(learner.cls, forms, wall, most_of),
    )
    eta = np.clip(
        np.where(np.isfinite(value), side * value, 0.0) + columns[:, D], *data.family.domain
    )
    upper = at_predictor(data, learner, functional, eta[None], columns, x, a)[0]
    return np.where(np.isfinite(value) & (side != 0), upper, np.inf).reshape(unknown.shape)


def held_as_declared(
    cls: DensityClass, phi: np.ndarray, wall: np.ndarray, most: np.ndarray
) -> np.ndarray:
    """An upper bound (m,) of phi'theta over the declared bounds alone with wall'theta <= most, for
    phi, wall (m, D) and most (m,): the least, over l >= 0, of max (phi - l wall)'theta + l most.
    In a box its corners are where l takes a coordinate away. It needs no rows: an effect with an
    end keeps an action near a safe one of known cost.
    """
    price = np.divide(phi, wall, out=np.zeros(phi.shape), where=phi * wall > 0)
    left = phi[:, None] - price[:, :, None] * wall[:, None]
    reach = declared_reach(cls, left.reshape(-1, phi.shape[1])).reshape(price.shape)
    return np.asarray(np.min(reach + price * most[:, None], axis=1))


@np.errstate(invalid="ignore")  # inf - inf between ends that are open
def over_interval(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    columns: np.ndarray,
    ends: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smallest and largest value for eta between ends (m, 2), and whether the largest is at the
    lower half, each (m,).

    Every functional but a user's own is monotone in eta in these families, or turns once among
    `_turns`. So the ends and a grid over the turns have the extremes, and the cells around the best
    point are searched again where it is inside. At an end that is infinite the value is the limit
    there; where that is no number, it is infinite in the way the functional goes.
    """
    if direction(functional) and np.isfinite(ends).all():  # monotone: the ends have the extremes
        first, last = at_predictor(data, learner, functional, ends.T, columns, x, a)
        if not np.isnan(first + last).any():
            return *_in_range(functional, np.minimum(first, last), np.maximum(first, last)), (
                first >= last
            )
    low, high = ends[:, :1], ends[:, 1:]
    inside = np.hstack(
        [
            _turns(data, learner, functional, columns, np.linspace(0.0, 1.0, GRID), x, a),
            _probes(data, columns, x, a),
        ]
    )
    eta = np.hstack([low, np.sort(np.clip(inside, low, high), axis=1), high])
    values = _with_limits(eta, at_predictor(data, learner, functional, eta.T, columns, x, a).T)
    peaks = [
        _zoom(data, learner, functional, sign, eta, values, columns, x, a) for sign in (-1.0, 1.0)
    ]
    best = np.argmax(np.where(np.isnan(values), np.inf, values), axis=1)
    first_finite = np.where(np.isfinite(low[:, 0]), 0, 1)
    lower, upper = _in_range(functional, -peaks[0], peaks[1])
    return lower, upper, best <= np.maximum(first_finite, (eta.shape[1] - 1) // 2)


def _in_range(
    functional: Functional, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The range of a probability is a fact, not a declaration."""
    if functional.name != "probability":
        return lower, upper
    return np.maximum(lower, 0.0), np.minimum(upper, 1.0)


def _with_limits(eta: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values (m, G) with those that are no number at an infinite end set to where the functional
    was going.
    """
    values = values.copy()
    for end, step in ((0, 1), (-1, -1)):
        lost = np.isnan(values[:, end]) & ~np.isfinite(eta[:, end])
        if not lost.any():
            continue
        inner = np.where(np.isfinite(eta), values, np.nan)[:, 1:-1][:, ::step]
        change = inner[:, 0] - np.array(
            [row[row != row[0]][0] if np.any(row != row[0]) else row[0] for row in inner]
        )
        goes = np.where(change == 0, inner[:, 0], np.where(change > 0, np.inf, -np.inf))
        values[lost, end] = goes[lost]
    return values


def _zoom(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    sign: float,
    eta: np.ndarray,
    values: np.ndarray,
    columns: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> np.ndarray:
    """The largest of sign * functional (m,), the cells beside the best of eta (m, G) searched
    again; unknown is infinite.
    """
    grid, found = eta, sign * values
    best: np.ndarray = np.where(np.isnan(found), np.inf, found).max(axis=1)
    where = np.argmax(np.where(np.isnan(found), np.inf, found), axis=1)
    slope = np.diff(values, axis=1)
    if np.all(np.all(slope >= 0, axis=1) | np.all(slope <= 0, axis=1)):
        answer: np.ndarray = best
        return answer
    for _ in range(ZOOMS):
        middle = np.take_along_axis(grid, where[:, None], 1)
        left = np.take_along_axis(grid, np.maximum(where - 1, 0)[:, None], 1)
        right = np.take_along_axis(grid, np.minimum(where + 1, grid.shape[1] - 1)[:, None], 1)
        left, right = (np.where(np.isfinite(side), side, middle) for side in (left, right))
        steps = np.linspace(0.0, 1.0, GRID)[::4]
        grid = np.where(
            np.isfinite(middle),
            left + np.where(np.isfinite(right - left), right - left, 0.0) * steps,
            middle,
        )
        found = sign * at_predictor(data, learner, functional, grid.T, columns, x, a).T
        found = np.where(np.isnan(found), -np.inf, found)
        where, best = np.argmax(found, axis=1), np.maximum(best, found.max(axis=1))
    return best


def _searched(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    columns: np.ndarray,
    ends: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for a user's own functional, on a grid: where an end is open nothing is known of
    it.
    """
    known = np.isfinite(ends).all(axis=1)
    low, high = (np.where(known, side, columns[:, learner.cls.dim])[:, None] for side in ends.T)
    eta = low + (high - low) * np.linspace(0.0, 1.0, GRID)
    eta[:, -1] = high[:, 0]
    values = at_predictor(data, learner, functional, eta.T, columns, x, a).T
    lower, upper = (
        sign * _zoom(data, learner, functional, sign, eta, values, columns, x, a)
        for sign in (-1.0, 1.0)
    )
    at_low = np.argmax(np.where(np.isnan(values), np.inf, values), axis=1) <= GRID // 2
    return np.where(known, lower, -np.inf), np.where(known, upper, np.inf), at_low


def _probes(
    data: PredictorLikelihood, columns: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """A few linear predictors (m, 3) around zero, which a Normal's noise gives a unit."""
    names = data.fixed_names(x, a)
    unit = (
        columns[:, data.dim + 1 + names.index("scale")]
        if "scale" in names
        else np.ones(len(columns))
    )
    return unit[:, None] * PROBES


def _turns(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    columns: np.ndarray,
    steps: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> np.ndarray:
    """Linear predictors (m, G) among which a functional that is not monotone in eta turns; G = 0 if
    it does not.

    E Y^2 is smallest at 0 on the real line, Var Y of a Bernoulli or Binomial largest at a chance of
    one half. The derivative of P(Y in A) by a natural parameter is P(A) (E[Y | A] - E[Y]), so that
    P(above < Y < below) is largest where E[Y] lies between the limits: a peak which a grid over a
    wide interval may miss. The same holds of a log-concave location family (where a Weibull's and a
    LogNormal's logarithms belong), with its centre for E[Y].
    """
    family, m = data.family, len(columns)
    if functional.name in family.turns:
        return np.full((m, 1), family.turns[functional.name])
    if functional.name != "probability" or functional.above is None or functional.below is None:
        return np.zeros((m, 0))
    fixed = {name: columns[:, data.dim + 1 + j] for j, name in enumerate(data.fixed_names(x, a))}
    with np.errstate(divide="ignore"):
        ends = [
            np.broadcast_to(family.middle(limit, fixed), m) for limit in limits_at(functional, x, a)
        ]
    # no mean is there: no turn either
    finite = [np.where(np.isfinite(end), end, other) for end, other in (ends, ends[::-1])]
    low, high = (np.where(np.isfinite(end), end, 0.0) for end in finite)
    found: np.ndarray = low[:, None] + (high - low)[:, None] * steps
    return found


# to steer by --------------------------------------------------------------------------------------


def guess(learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
    """See `ProgramLearner.guess`."""
    n, K = len(x), n_actions
    xs, actions = grid(x, K)
    if learner.fit is None:
        # a user's function may be written for its own arrays
        density = learner.cls if functional.fn is not None else learner
        drawn = np.asarray(
            functional(density.density_at(learner.particles.theta, xs, actions), x=xs, a=actions),
            float,
        )
        drawn = np.clip(
            np.where(np.isnan(drawn), functional.high, drawn), functional.low, functional.high
        )
        value, sd = drawn.mean(axis=0), drawn.std(axis=0)
    else:
        value, sd = _at_fit(learner.data, learner, functional, learner.fit.precision, xs, actions)
    value = np.where(np.isnan(value), functional.high, value)
    return Guess(
        *(functional.clip(value + side * GUESS_SDS * sd).reshape(n, K) for side in (0.0, -1.0, 1.0))
    )


@singledispatch
def _at_fit(
    data: Likelihood,
    learner: ProgramLearner,
    functional: Functional,
    precision: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The functional at the fit and its posterior standard deviation sqrt(h' precision^-1 h), h its
    gradient, each (m,).
    """
    value, grad = learner.cls.values_grad(
        functional, np.broadcast_to(learner.theta, (len(a), learner.cls.dim)), x, a
    )
    value, grad = np.asarray(value, float), np.where(np.isfinite(grad), grad, 0.0)
    step = np.linalg.solve(positive_definite(precision), grad.T)
    return value, np.sqrt(np.maximum(np.einsum("md,dm->m", grad, step), 0.0))


_at_fit_by_program = _at_fit.dispatch(object)


@_at_fit.register(PredictorLikelihood)
def _by_predictor(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    precision: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """|dT/d eta| sd(eta), without the program. The slope is a difference over a millionth of
    sd(eta), so that it has no unit.
    """
    if functional.fn is not None or not is_plain(functional):
        return _at_fit_by_program(data, learner, functional, precision, x, a)
    columns, _ = data.columns(x, a)
    phi = columns[:, : data.dim]
    eta = phi @ learner.theta + columns[:, data.dim]
    spread = np.sqrt(
        np.maximum(
            np.einsum("md,dm->m", phi, np.linalg.solve(positive_definite(precision), phi.T)), 0.0
        )
    )
    near = eta + STEP * np.array([[-1.0], [0.0], [1.0]]) * spread
    below, value, above = at_predictor(data, learner, functional, near, columns, x, a)
    slope = np.abs(above - below) / (2 * STEP)
    return value, np.where(np.isfinite(slope), slope, 0.0)
