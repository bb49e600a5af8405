"""Functionals of ordered outcomes y in 0..C over a convex set of edges, P(y <= k) = F(edge k).

What weighs one edge is exact. What weighs several is bounded edge by edge: each edge at its own
extreme, which no single parameter need reach, so that the bound is outer: never too small, a little
wide. A quantile asks of each k alone whether P(y <= k) reaches the level, so its ends are exact
again.

Axis letters: m rows, C edges, D flat parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gedppl.density import Density
from gedppl.learning.ascent import Found
from gedppl.learning.ordered import CUMULATIVE, OrderedLikelihood
from gedppl.learning.reach import farthest, is_plain, remarks

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner

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
    n_edges = np.shape(data.ordered.offset(x, a))[1]  # the rows that every edge is asked of below
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
