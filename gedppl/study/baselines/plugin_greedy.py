"""The fit taken for the truth, for any model: what somebody plays who has a probabilistic program
and no confidence set.

    play  argmax u_hat_a  among actions whose estimated cost keeps every limit (the safe one if none
    does),
    with probability epsilon one of those at random.

Fits are this library's, at its own pace. Their uncertainty does not enter, and nothing is
guaranteed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB
from gedppl.errors import ConflictingOutcomeError, SettingError, UnknownDecisionError
from gedppl.problem import Problem
from gedppl.study.baselines.shell import Baseline


class PluginGreedy(Baseline):
    """Greedy on estimates, with a little exploration.

    Parameters
    ----------
    problem
        Any.
    epsilon
        The share of rounds that explore among what looks feasible.
    """

    def __init__(self, problem: Problem, *, epsilon: float = 0.05, seed: int = 0) -> None:
        super().__init__(seed)
        if not 0 <= epsilon <= 1:
            raise SettingError(f"epsilon must lie in [0, 1], got {epsilon}")
        self._problem, self._epsilon = problem, float(epsilon)
        self._fits = GEDUCB(problem, seed=seed, guard=None)
        self._outcomes: dict[int, tuple[Any, Any]] = {}

    def policy(self, x: Any) -> np.ndarray:
        found = self._fits.recommend(np.asarray(x, float), "estimate")
        keeps = np.all(found.cost <= self._problem.limits[:, None], axis=0, keepdims=True)[0]
        keeps[found.action] = True
        greedy = np.eye(len(keeps))[found.action]
        out: np.ndarray = (1 - self._epsilon) * greedy + self._epsilon * keeps / keeps.sum()
        return out

    def tell(self, id: int, y: Any, z: float | Mapping[str, float] | None = None) -> None:
        """As for `GEDUCB`, one outcome a decision."""
        if not 0 <= id < len(self._decisions):
            raise UnknownDecisionError(
                f"decision {id} was never made; ids run from 0 to {len(self._decisions) - 1}"
            )
        outcome = (y, dict(z) if isinstance(z, Mapping) else z)
        if id in self._outcomes:
            if self._outcomes[id] != outcome:
                raise ConflictingOutcomeError(
                    f"decision {id} was told {self._outcomes[id]} before, now {outcome}"
                )
            return
        made = self._decisions[id]
        named = (
            {name: [value] for name, value in z.items()}
            if isinstance(z, Mapping)
            else None
            if z is None
            else [z]
        )
        self._fits.observe(made.x[None], [made.action], [y], named)
        self._outcomes[id] = outcome
