"""What a single outcome says of a constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gedppl.functionals import realised
from gedppl.problem import UTILITY, Problem


def realised_values(problem: Problem, x: np.ndarray, action: int, y: Any, z: Any) -> np.ndarray:
    """What the outcome of one round says of each constraint, (J,); NaN where it says nothing."""
    out = np.full(len(problem.constraints), np.nan)
    own = [name for name in problem.streams if name != UTILITY]
    told = {UTILITY: y} | (dict(z) if isinstance(z, Mapping) else {own[0]: z} if own else {})
    for j, _ in problem.known:
        out[j] = problem.known_costs(j, x[None])[0, action]
    for j, c in problem.learned:
        if told.get(c.stream) is not None:
            value = np.asarray(told[c.stream], float)
            if problem.reveals is not None and value.shape == (problem.n_actions,):
                value = value[action]
            out[j] = realised(c.functional, value, x, action)
    return out
