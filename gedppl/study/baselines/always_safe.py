"""Always play the safe action: the regret that any learner should beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.selection import check_action
from gedppl.study.baselines.shell import Baseline


class AlwaysSafe(Baseline):
    """Play the safe action in every round.

    >>> AlwaysSafe(n_actions=3, safe_action=1).ask([0.5]).policy
    array([0., 1., 0.])
    """

    def __init__(self, n_actions: int, safe_action: int = 0, seed: int = 0) -> None:
        super().__init__(seed)
        check_action(safe_action, n_actions)
        self._policy = np.eye(n_actions)[safe_action]

    def policy(self, x: Any) -> np.ndarray:
        found: np.ndarray = self._policy.copy()
        return found
