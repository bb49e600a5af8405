"""What a realised outcome says to the monitors of limits and of safe values, with no word from the model but its lower end.

A limit on sum_a pi_a T(g_a) is watched where T is an expectation: then one outcome, whichever action was drawn, is an unbiased
word on it. Quantiles, variances and CVaRs are none: the value of a mixture is not the mixture of the values. For the safe
action alone, which is no mixture, more can be said: T <= c0 implies

    quantile at level q     P(Y > c0) <= 1 - q
    CVaR at level q         E(Y - c0)+ <= (1 - q)(c0 - l),  where Y >= l     (E(Y - v)+ with v the quantile is (1 - q)(CVaR - v))

Axis letters: n contexts, K actions.
"""

from __future__ import annotations

import math

import numpy as np

from gedppl.classes import LinearPredictor
from gedppl.density import Density
from gedppl.errors import FamilyError
from gedppl.functionals import Functional, realised
from gedppl.guard import Cost, Floor
from gedppl.learning.loc_ranges import is_plain
from gedppl.oracles.one_predictor import FAMILIES
from gedppl.problem import Constraint

EXPECTATIONS = ("mean", "second_moment", "probability")
LEAST = 1e-6  # share of the range: an upper bound of 0 is tested as this, which is as true and leaves room to bet


def says_something(functional: Functional) -> bool:
    """Whether one outcome is an unbiased word on the functional."""
    return is_plain(functional) and functional.name in EXPECTATIONS


def limit_floor(c: Constraint, x: np.ndarray, n_actions: int) -> Floor | None:
    """The lower end of what an outcome at context x (dx,) says of a limit, whichever action is drawn; None: not watched."""
    if not says_something(c.functional):
        return None
    return outcome_floor(c, x, np.arange(n_actions)) if c.functional.name == "mean" else Floor(0.0)


def limit_cost(c: Constraint, z: float, x: np.ndarray, action: int, limit: float, n_actions: int) -> Cost | None:
    """What outcome z of one decision says of its limit; None where there is no room for a bet."""
    floor = limit_floor(c, x, n_actions)
    if floor is None or not floor.low < limit:
        return None
    return Cost(realised(c.functional, np.asarray(z), x, action), limit, floor)


def safe_cost(c: Constraint, z: float, x: np.ndarray, safe_action: int, safe_value: float) -> Cost | None:
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
        return Cost(max(z - safe_value, 0.0), (1.0 - f.level) * (safe_value - floor.low), Floor(0.0))
    if f.name not in EXPECTATIONS:
        return None
    floor = outcome_floor(c, x, only) if f.name == "mean" else Floor(0.0)
    if floor is None:
        return None
    limit = max(safe_value, floor.low + LEAST * (f.high - f.low))
    return Cost(realised(f, np.asarray(z), x, safe_action), limit, floor)


def outcome_floor(c: Constraint, x: np.ndarray, actions: np.ndarray) -> Floor | None:
    """The lower end of a constraint's outcome at x (dx,) under any of these actions; None if there is none.

    That of its support, or, for outcomes without one but with a known noise scale, six standard deviations under the
    functional's low. The scale is the one at x: it may be another at every context.
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
        # the members' variances are all that are possible; those at a parametric class's start are not
        every = model.visit(lambda members: found, lambda cls: [])
        variance = max((float(np.max(np.asarray(d.variance, float))) for d in every), default=np.inf)
    except FamilyError:  # a family of the user's own that says nothing about it
        return None
    floor = Floor.under(c.functional.low, float(np.sqrt(variance)), normal=all(d.family == "Normal" for d in found))
    return floor if np.isfinite(floor.low) else None


def _predictor_floor(c: Constraint, predictor: LinearPredictor, x: np.ndarray, a: np.ndarray) -> Floor | None:
    """`outcome_floor` of a one-predictor class at rows x (n, dx), a (n,). The density itself need not be looked at: none of these
    families has a support that moves, and those on the real line have a known scale."""
    if not FAMILIES[predictor.family, predictor.link].real:
        return Floor(0.0)
    if predictor.family == "Normal":
        floor = Floor.under(c.functional.low, float(np.max(predictor.fixed(x, a)["scale"])), normal=True)
        return floor if math.isfinite(floor.low) else None
    fixed = {name: np.asarray(value, float) for name, value in predictor.fixed(x, a).items()}
    spread = Density(predictor.family, FAMILIES[predictor.family, predictor.link].arguments(np.zeros(len(a)), fixed)).variance
    floor = Floor.under(c.functional.low, float(np.sqrt(np.max(spread))), normal=False)
    return floor if np.isfinite(floor.low) else None
