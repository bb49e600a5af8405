"""The range of a functional of Normal(loc, scale) while loc runs over an interval and the scale
is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gedppl.density import Density
from gedppl.functionals import Functional
from gedppl.learning.ascent import Found
from gedppl.learning.ordered import CUMULATIVE, OrderedLikelihood
from gedppl.learning.reach import farthest

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.learner import Bounds
    from gedppl.learning.programs import ProgramLearner


SEARCHED = (
    "the functional is not monotone in the Normal's loc: its range was searched on a grid of at "
    "least 16 points per "
    "noise scale, so the bound is an approximation"
)
# points per scale; intervals beyond this many scales get the functional's whole range
GRID, WIDEST = 16, 64


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


# ==================================================================================================
# Functionals of ordered outcomes y in 0..C over a convex set of their edges, P(y <= k) = F(edge k).
#
# What weighs one edge is exact. What weighs several is bounded edge by edge: each edge at its own
# extreme, which no single parameter need reach, so that the bound is outer: never too small, a
# little wide. A quantile asks of each k alone whether P(y <=
# k) reaches the level, so its ends are exact again.
#
# Axis letters: m rows, C edges, D flat parameters.
# ==================================================================================================

APART = (
    "no parameter is in every set and inside the declared bounds: the model, or a bound, does "
    "not hold"
)
EDGE_BY_EDGE = "each edge at its own extreme: an outer bound, a little wide"
Ends = tuple[np.ndarray, np.ndarray]


def category_values(
    functional: Functional, n_edges: int, x: np.ndarray, a: np.ndarray
) -> np.ndarray | None:
    """What a functional that is an expectation gives to each outcome, (C + 1, m); None if it is
    none, or cannot be asked.
    """
    if not is_plain(functional):
        return None
    outcomes = np.repeat(np.arange(n_edges + 1.0)[:, None], len(a), axis=1)
    if functional.name == "mean":
        return outcomes
    if functional.name == "second_moment":
        return outcomes**2
    if functional.name not in ("probability", "expected"):
        return None
    sure = np.repeat(np.eye(n_edges + 1)[:, None], len(a), axis=1)  # (C + 1, m, C + 1)
    try:
        return np.asarray(functional(Density("Categorical", {"probs": sure}), x=x, a=a), float)
    except (TypeError, ValueError, AttributeError):
        # a user's function for another package's arrays
        return None


def edge_weights(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An expectation with these values (C + 1, m) as constant (m,) + sum_k weight (m, C) P(y <=
    k).
    """
    return values[-1], -np.diff(values, axis=0).T


def edge_bounds(
    data: OrderedLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
) -> Found | None:
    """The ends over every set, exact or outer; None if nothing is known of the functional's
    shape.
    """
    n_edges = np.shape(data.ordered.offset(x[:1], a[:1]))[1]
    values = category_values(functional, n_edges, x, a)
    if values is not None:
        constant, weight = edge_weights(values)
        if np.all(np.count_nonzero(weight, axis=1) <= 1):
            return _one_edge(data, learner, constant, weight, x, a)
    elif not is_plain(functional) or functional.name not in ("quantile", "cvar", "variance"):
        return None
    low, high, open_end, apart = _every_edge(data, learner, x, a)
    if values is not None:
        lower, upper = _expectation(values, low, high)
    elif functional.name == "quantile":
        lower, upper = (_first_reached(chance, float(functional.level)) for chance in (high, low))
    elif functional.name == "cvar":
        lower, upper = _cvar(float(functional.level), low, high)
    else:
        lower, upper = _variance(low, high)
    outer = functional.name != "quantile"
    note = "; ".join([*remarks(open_end, a, apart), *[EDGE_BY_EDGE] * outer])
    return Found(lower, upper, None, note, apart, outer=outer)


def _one_edge(
    data: OrderedLikelihood,
    learner: ProgramLearner,
    constant: np.ndarray,
    weight: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
) -> Found:
    """P(y <= k) grows with one edge, which is affine in theta."""
    m, ordered = len(a), data.ordered
    here = np.arange(m), np.argmax(np.abs(weight), axis=1)
    value, theta, apart = farthest(learner, ordered.features(x, a)[here])
    reached = ordered.offset(x, a)[here] + np.stack([-value[m:], value[:m]])
    chance = CUMULATIVE[ordered.link].chance(reached)
    ends = constant + weight[here] * chance  # at the lowest edge, at the highest
    rising = weight[here] > 0
    open_end = np.stack([~np.isfinite(value[m:]), ~np.isfinite(value[:m])], axis=1)
    witness = np.where(rising[:, None], theta[:m], theta[m:])
    return Found(
        ends.min(axis=0), ends.max(axis=0), witness, "; ".join(remarks(open_end, a, apart)), apart
    )


def _every_edge(
    data: OrderedLikelihood, learner: ProgramLearner, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Ends (m, C) of every P(y <= k), which rows (m, 2) have an open edge, and whether sets are
    apart.
    """
    features, offset = data.ordered.features(x, a), data.ordered.offset(x, a)
    m, n_edges, D = features.shape
    value, _, apart = farthest(learner, features.reshape(m * n_edges, D))
    ends = np.stack([-value[m * n_edges :], value[: m * n_edges]]).reshape(2, m, n_edges)
    low, high = CUMULATIVE[data.ordered.link].chance(offset + ends)
    # P(y <= k) grows with k, so that what is known of one edge bounds its neighbours
    low, high = (
        np.maximum.accumulate(low, axis=1),
        np.minimum.accumulate(high[:, ::-1], axis=1)[:, ::-1],
    )
    return low, high, np.any(~np.isfinite(ends), axis=2).T, apart


def _expectation(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> Ends:
    constant, weight = edge_weights(values)
    parts = np.stack([weight * low, weight * high])
    least, most = values.min(axis=0), values.max(axis=0)  # no expectation leaves its values
    return np.maximum(constant + parts.min(axis=0).sum(axis=1), least), np.minimum(
        constant + parts.max(axis=0).sum(axis=1), most
    )


def _first_reached(chance: np.ndarray, level: float) -> np.ndarray:
    """The smallest k with P(y <= k) >= level."""
    reached = np.hstack([chance >= level - 1e-12, np.ones((len(chance), 1), bool)])
    found: np.ndarray = np.argmax(reached, axis=1).astype(float)
    return found


def _cvar(level: float, low: np.ndarray, high: np.ndarray) -> Ends:
    """CVaR = min over q of q + E(Y - q)+ / (1 - level), attained at an outcome."""
    outcomes = np.arange(low.shape[1] + 1.0)[:, None] * np.ones(len(low))
    ends = [
        _expectation(q + np.maximum(outcomes - q, 0.0) / (1 - level), low, high)
        for q in np.arange(low.shape[1] + 1.0)
    ]
    return np.min([e[0] for e in ends], axis=0), np.min([e[1] for e in ends], axis=0)


def _variance(low: np.ndarray, high: np.ndarray) -> Ends:
    """Var Y <= E(Y - c)^2 for every c; of the lower end nothing is said."""
    outcomes = np.arange(low.shape[1] + 1.0)[:, None] * np.ones(len(low))
    about = _expectation(outcomes, low, high)
    tried = [*np.arange(0.0, low.shape[1] + 0.5, 0.5), 0.5 * (about[0] + about[1])]
    return np.zeros(len(low)), np.min(
        [_expectation((outcomes - c) ** 2, low, high)[1] for c in tried], axis=0
    )


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
