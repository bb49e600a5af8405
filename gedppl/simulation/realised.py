"""What a single outcome says of a constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.problem import UTILITY, KnownCost, Problem

if TYPE_CHECKING:
    from gedppl.functionals import Functional


def realised_values(problem: Problem, x: np.ndarray, action: int, y: Any, z: Any) -> np.ndarray:
    """What the outcome of one round says of each constraint, (J,); NaN where it says nothing."""
    out = np.full(len(problem.constraints), np.nan)
    own = [name for name in problem.streams if name != UTILITY]
    told = {UTILITY: y} | (dict(z) if isinstance(z, Mapping) else {own[0]: z} if own else {})
    for j, c in enumerate(problem.constraints):
        if isinstance(c, KnownCost):
            out[j] = problem.known_costs(j, x[None])[0, action]
        elif told.get(c.stream) is not None:
            value = np.asarray(told[c.stream], float)
            if problem.reveals is not None and value.shape == (problem.n_actions,):
                value = value[action]
            out[j] = _at_point(c.functional, value, x, action)
    return out


def _at_point(functional: Functional, outcome: np.ndarray, x: np.ndarray, action: int) -> float:
    """The functional of the point mass at an outcome, for functionals that are expectations; NaN for others."""
    if np.isnan(outcome).any():
        return np.nan
    rows, actions = x[None], np.array([action])
    if functional.name == "expected":
        assert functional.fn is not None
        return float(np.asarray(functional.fn(outcome[None, None], rows, actions), float).reshape(-1)[0])
    if outcome.ndim:
        return np.nan
    if functional.name == "mean":
        return float(outcome)
    if functional.name == "second_moment":
        return float(outcome**2)
    if functional.name == "probability":

        def edge(limit: Any, default: float) -> float:
            if limit is None:
                return default
            if callable(limit):
                return float(np.asarray(limit(rows, actions)).reshape(-1)[0])
            return float(limit[action] if isinstance(limit, tuple) else limit)

        return float(edge(functional.above, -np.inf) < outcome < edge(functional.below, np.inf))
    return np.nan
