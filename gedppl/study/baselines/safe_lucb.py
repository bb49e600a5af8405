"""Safe-LUCB (Amani, Alizadeh, Thrampoulidis, "Linear stochastic bandits under safety constraints",
NeurIPS 2019), for finitely many actions mixed with a safe one.

First `explore` rounds of a random action at the largest share that is safe whatever the parameters,
(tau - c_0) / (c_high - c_0); then

    argmax
        theta_hat'phi_pi + beta |phi|_{V^-1}   subject to   mu_hat'phi_pi + beta |phi|_{V^-1} <= tau
        action by action.

Optimism is about the reward alone: without the exploration phase the safe set need not grow to hold
the best action. The paper takes a phase of order (T log T)^{2/3}, or log T where the limit is slack
at the optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.selection import select_policy
from gedppl.study.baselines.ridge import LinearBaseline, RidgeView


class SafeLUCB(LinearBaseline):
    """Pure exploration in the known safe region, then optimism on the learned one.

    Parameters
    ----------
    explore
        Rounds of the first phase.
    others
        See `LinearBaseline`.
    """

    def __init__(self, features: Any, *, explore: int = 100, **settings: Any) -> None:
        super().__init__(features, **settings)
        if explore < 0:
            raise SettingError(f"explore must be a number of rounds, got {explore}")
        self._explore = int(explore)

    def choose(self, view: RidgeView) -> np.ndarray:
        if len(self._decisions) < self._explore:
            others = [a for a in range(self._K) if a != self._safe] or [self._safe]
            share = (view.tau - view.safe_value) / max(
                self._cost_high - view.safe_value, view.tau - view.safe_value
            )
            return self.mixed(int(self.round_rng.choice(others)), share)
        score = view.reward + self.rewards.radius * view.reward_norm
        return select_policy(score, view.cost_upper, view.tau, safe_action=self._safe)
