"""What a realised outcome says to the monitors of limits and of safe values, with no word from the
model but its lower end.

A limit on sum_a pi_a T(g_a) is watched where T is an expectation: then one outcome, whichever
action was drawn, is an unbiased word on it. Quantiles, variances and CVaRs are none: the value of a
mixture is not the mixture of the values. For the safe action alone, which is no mixture, more can
be said: T <= c0 implies

    quantile at level q     P(Y > c0) <= 1 - q
    CVaR at level q
        E(Y - c0)+ <= (1 - q)(c0 - l),  where Y >= l   (E(Y - v)+ with v the quantile is (1 -
        q)(CVaR - v))
    mean of a symmetric outcome without a lower end or a known scale     P(Y > c0) <= 1/2

Axis letters: n contexts, K actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from gedppl.density import Density
from gedppl.errors import FamilyError
from gedppl.families.one_predictor import FAMILIES
from gedppl.functionals import Functional, mean, quantile, realised
from gedppl.guard.monitors import Cost, Floor
from gedppl.learning.value_ranges import is_plain
from gedppl.problem import Constraint
from gedppl.programs.contract import LinearPredictor

EXPECTATIONS = ("mean", "second_moment", "probability")
IN_SCALES: dict[str, Callable[[float], float]] = {
    "mean": lambda level: 0.0,
    "quantile": lambda level: float(ndtri(level)),
    "cvar": lambda level: (
        math.exp(-0.5 * float(ndtri(level)) ** 2) / math.sqrt(2.0 * math.pi) / (1.0 - level)
    ),
}  # how many scales of its noise a functional of a Normal lies over loc
ANYTHING = 1e100
# functional -> what it is measured from, as a functional of its level
MEASURED_FROM: dict[str, Callable[[float], Functional]] = {
    "variance": lambda level: mean(-ANYTHING, ANYTHING),
    "cvar": lambda level: quantile(level, -ANYTHING, ANYTHING),
}
# families that are symmetric about their mean, whatever their parameters
SYMMETRIC = ("Normal", "Laplace", "Logistic")
# share of the range: an upper bound of 0 is tested as this, which is as true and leaves room to bet
LEAST = 1e-6


class Proved(NamedTuple):
    """What the sets prove of one context and action: the upper value of a functional and, where it
    is measured from another one, that one's range: the mean under a variance, the quantile under a
    CVaR.
    """

    upper: float
    base: tuple[float, float] | None = None

    def within(self, c: Constraint) -> Proved:
        """As it may be once there are data: before them nothing has an end."""
        return Proved(self.upper, self.base and (c.functional.low, c.functional.high))


def room(cost: Cost | None) -> tuple[float, float] | None:
    """The limit of a cost and its lower end; None where there is no room between them for a bet."""
    if cost is None or cost.limit is None or cost.floor is None:
        return None
    return (cost.limit, cost.floor.low) if cost.floor.low < cost.limit else None


def limit_floor(c: Constraint, x: np.ndarray, n_actions: int) -> Floor | None:
    """The lower end of what an outcome at context x (dx,) says of a limit, whichever action is
    drawn; None: not watched.
    """
    # one outcome must be an unbiased word on the functional
    if not (is_plain(c.functional) and c.functional.name in EXPECTATIONS):
        return None
    return outcome_floor(c, x, np.arange(n_actions)) if c.functional.name == "mean" else Floor(0.0)


def limit_cost(
    c: Constraint, z: float, x: np.ndarray, action: int, limit: float, n_actions: int
) -> Cost | None:
    """What outcome z of one decision says of its limit; None where there is no room for a bet."""
    floor = limit_floor(c, x, n_actions)
    if floor is None or not floor.low < limit:
        return None
    return Cost(realised(c.functional, np.asarray(z), x, action), limit, floor)


def safe_cost(
    c: Constraint, z: float, x: np.ndarray, safe_action: int, safe_value: float
) -> Cost | None:
    """What outcome z of the safe action says of its declared value; None: not watched."""
    f, only = c.functional, np.array([safe_action])
    if not is_plain(f):
        return None
    if f.name == "quantile":
        return Cost(float(z > safe_value), 1.0 - f.level, Floor(0.0))
    if f.name == "cvar":
        floor = outcome_floor(c, x, only)
        if floor is None or floor.excess or not floor.low < safe_value:
            return None
        return Cost(
            max(z - safe_value, 0.0), (1.0 - f.level) * (safe_value - floor.low), Floor(0.0)
        )
    if f.name not in EXPECTATIONS:
        return None
    floor = outcome_floor(c, x, only) if f.name == "mean" else Floor(0.0)
    if floor is None:
        return Cost(float(z > safe_value), 0.5, Floor(0.0)) if symmetric(c, x, only) else None
    limit = max(safe_value, floor.low + LEAST * (f.high - f.low))
    return Cost(realised(f, np.asarray(z), x, safe_action), limit, floor)


def certified_cost(
    c: Constraint, z: float, x: np.ndarray, action: int, proved: Proved, n_actions: int
) -> Cost | None:
    """What outcome z of one action of so many says of its certified value; None: not watched.

    With Normal noise of known scale s a mean, quantile or CVaR is loc + k s, so that loc <= u - k s
    and Phi((Z - u) / s + k) has a mean of at most 1/2. A variance is at least the mean squared
    distance to an interval that holds the mean. If the quantile v lies in [l, h] and the CVaR is at
    most u, then E(Z - h)+ <= E(Z - v)+ = (1 - q)(CVaR - v) <= (1 - q)(u - l), which is nearer to
    equality than what holds for any outcome with a lower end. All others as for the safe action.
    """
    f = c.functional
    scale = known_scale(c, x, action, n_actions)
    if scale is not None and is_plain(f) and f.name in IN_SCALES:
        return Cost(
            float(ndtr((z - proved.upper) / scale + IN_SCALES[f.name](f.level))), 0.5, Floor(0.0)
        )
    if f.name == "variance" and is_plain(f):
        if proved.base is None:
            return None
        low, high = proved.base
        return Cost(max(low - z, z - high, 0.0) ** 2, max(proved.upper, LEAST * f.high), Floor(0.0))
    if f.name == "cvar" and is_plain(f) and proved.base is not None:
        low, high = proved.base[0], min(proved.base[1], proved.upper)
        if -ANYTHING < low < proved.upper:
            excess = (1.0 - f.level) * (proved.upper - low)
            return Cost(max(z - high, 0.0), excess, Floor(0.0))
    cost = safe_cost(c, z, x, action, proved.upper)
    return cost if room(cost) else None


def symmetric(c: Constraint, x: np.ndarray, actions: np.ndarray) -> bool:
    """Whether outcomes at x (dx,) are symmetric about their mean, whichever parameter is right: a
    mean of at most u is then exceeded by at most half of them.
    """
    rows = np.repeat(x[None], len(actions), axis=0)
    return all(d.family in SYMMETRIC for d in c.model.densities(rows, actions))


def known_scale(c: Constraint, x: np.ndarray, action: int, n_actions: int) -> float | None:
    """The known scale of Normal noise at x (dx,); None for any other noise. All actions are asked
    about, as the decision itself did: the predictor remembers.
    """
    predictor = c.model.predictor
    if predictor is None or (predictor.family, predictor.link) != ("Normal", "identity"):
        return None
    rows = np.repeat(x[None], n_actions, axis=0)
    scales = np.asarray(predictor.fixed(rows, np.arange(n_actions))["scale"]).reshape(-1)
    return float(scales[action if len(scales) > 1 else 0])


def outcome_floor(c: Constraint, x: np.ndarray, actions: np.ndarray) -> Floor | None:
    """The lower end of a constraint's outcome at x (dx,) under any of these actions; None if there
    is none.

    That of its support, or, for outcomes without one but with a known noise scale, six standard
    deviations under the functional's low. The scale is the one at x: it may be another at every
    context.
    """
    model, rows = c.model, np.repeat(x[None], len(actions), axis=0)
    if model.predictor is not None:
        return _predictor_floor(c, model.predictor, rows, actions)
    found = model.densities(rows, actions)
    if not all(d.is_scalar for d in found):
        return None
    try:
        low = min((float(np.min(np.asarray(d.support[0], float))) for d in found), default=-np.inf)
        if np.isfinite(low):
            return None if model.moving_support else Floor(low)
        # the members' variances are all that are possible; those at a parametric class's start are
        # not
        every = model.visit(lambda members: found, lambda cls: [])
        variance = max(
            (float(np.max(np.asarray(d.variance, float))) for d in every), default=np.inf
        )
    except FamilyError:  # a family of the user's own that says nothing about it
        return None
    floor = Floor.under(
        c.functional.low, float(np.sqrt(variance)), normal=all(d.family == "Normal" for d in found)
    )
    return floor if np.isfinite(floor.low) else None


def _predictor_floor(
    c: Constraint, predictor: LinearPredictor, x: np.ndarray, a: np.ndarray
) -> Floor | None:
    """`outcome_floor` of a one-predictor class at rows x (n, dx), a (n,). The density itself
    need not be looked at: none of these families has a support that moves, and those on the real
    line have a known scale.
    """
    if not FAMILIES[predictor.family, predictor.link].real:
        return Floor(0.0)
    if predictor.family == "Normal":
        floor = Floor.under(
            c.functional.low, float(np.max(predictor.fixed(x, a)["scale"])), normal=True
        )
        return floor if math.isfinite(floor.low) else None
    fixed = {name: np.asarray(value, float) for name, value in predictor.fixed(x, a).items()}
    spread = Density(
        predictor.family,
        FAMILIES[predictor.family, predictor.link].arguments(np.zeros(len(a)), fixed),
    ).variance
    floor = Floor.under(c.functional.low, float(np.sqrt(np.max(spread))), normal=False)
    return floor if np.isfinite(floor.low) else None
