"""UCCB, upper counterfactual confidence bounds (Xu and Zeevi, "Upper counterfactual confidence
bounds: a new optimism principle for contextual bandits", 2020): the unconstrained ancestor of
GED-UCB. Here: this library's agent without limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB
from gedppl.errors import ShapeError
from gedppl.problem import Problem
from gedppl.study.baselines.shell import Baseline, Played


class UCCB(Baseline):
    """`GEDUCB` with every constraint taken out; costs that are told are ignored.

    Parameters
    ----------
    problem
        Its utility is kept.
    options
        Of `GEDUCB`.
    """

    def __init__(self, problem: Problem, *, seed: int = 0, **options: Any) -> None:
        super().__init__(seed)
        free = replace(
            problem, constraints=(), safe_action=None, safe_utility=None, learn_safe=True
        )
        self._agent = GEDUCB(free, seed=seed, **options)

    def policy(self, x: Any) -> np.ndarray:
        return np.asarray(self._agent.policy(np.asarray(x, float)), float)

    def ask(self, x: Any) -> Played:
        context = np.asarray(x, float)
        if context.ndim != 1:
            raise ShapeError(
                f"baselines decide one finite context (dx,) at a time, got shape {context.shape}"
            )
        made = self._agent.ask(context)  # its own draw: it counts the rounds in which it decided
        assert not isinstance(made, list)
        decision = Played(
            len(self._decisions), int(made.action), np.asarray(made.policy, float), context
        )
        self._decisions.append(decision)
        return decision

    def tell(self, id: int, y: float, z: float | Mapping[str, float] | None = None) -> None:
        self._agent.tell(id, y)
        super().tell(id, y)  # whatever limits there are
