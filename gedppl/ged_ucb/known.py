"""The paper's T(g_{x,a0}) = c_0, where it is declared and linear in the parameters."""

from __future__ import annotations

import numpy as np

from gedppl.errors import ProblemError
from gedppl.ged_ucb.state import State
from gedppl.learning.loc_ranges import is_mean
from gedppl.problem import Constraint, KnownCost, Problem


def known_directions(problem: Problem, x: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The paper's T(g_{x,a0}) = c_0 as linear equations: stream -> (features (m, D), values (m,)), for a first context x (1, dx).

    The safe value is exact at every context if it is declared so, hence at this one: whether the safe action's features change
    with x need not be known. Where they do not, this is all there is to know; where they do, it is one valid equation.
    """
    known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for j, c in enumerate(problem.constraints):
        if not holds_parameters(c):
            continue
        assert isinstance(c, Constraint)
        action = np.array([problem.safe_action])
        features = np.asarray(c.model.predictor.features(x, action), float)
        value = problem.safe_values(x)[:, j] - np.asarray(c.model.predictor.offset(x, action), float)
        before = known.get(c.stream, (np.zeros((0, features.shape[1])), np.zeros(0)))
        if not np.abs(features).max() > 0 and np.abs(value).max() > 1e-9 * np.abs(problem.safe_values(x)[:, j]).max():
            raise ProblemError(
                f"safe_value of constraint {c.name!r} is declared exact, but whatever its parameters the model gives the safe "
                f"action {problem.safe_values(x)[0, j] - value[0]:g}, not {problem.safe_values(x)[0, j]:g}; mend the model or "
                "drop safe_value_exact"
            )
        known[c.stream] = np.concatenate([before[0], features]), np.append(before[1], value)
    return known


def exactness_notes(state: State) -> list[str]:
    """Where an exact safe value was declared: that it is believed, or why it was not used."""
    notes = []
    for c in state.problem.constraints:
        if isinstance(c, Constraint) and c.safe_value_exact:
            space = getattr(state.learners[c.stream], "space", None)
            if holds_parameters(c) and space is not None and space.known:
                notes.append(f"the safe action's value of {c.name!r} is believed exact, as declared: parameters are held to it")
            else:
                notes.append(
                    f"safe_value_exact of {c.name!r} was not used: only the mean of a linear-Gaussian class with its closed-form "
                    "set can be held to it"
                )
    return notes


def holds_parameters(c: Constraint | KnownCost) -> bool:
    """Whether an exact safe value is one linear equation in the parameters."""
    if not isinstance(c, Constraint) or not c.safe_value_exact or not is_mean(c.functional):
        return False
    predictor = c.model.predictor
    return predictor is not None and predictor.family == "Normal" and predictor.link == "identity"
