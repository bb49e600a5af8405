"""Safe-LTS, safe linear Thompson sampling (Moradipari, Amani, Alizadeh, Thrampoulidis, "Safe linear
Thompson sampling with side information", IEEE Transactions on Signal Processing 2021), for finitely
many actions mixed with a safe one.

    theta_tilde = theta_hat + sqrt(d) b V^{-1/2} eta,   eta ~ N(0, I),
    play
        argmax theta_tilde'phi_pi   subject to   mu_hat'phi_pi + beta |phi|_{V^-1} <= tau   action
        by action.

The spread b is the reward's radius with its first term divided by min(1, tau - c_0), which pays for
the pessimism of the safe set (the form of the public code of Pacchiano et al., whose published
numbers `benchmarks/published.py` reproduces).
"""

from __future__ import annotations

import math

import numpy as np

from gedppl.selection import select_policy
from gedppl.study.baselines.ridge import LinearBaseline, RidgeView


class SafeLTS(LinearBaseline):
    """Thompson sampling on the pessimistic safe set. Parameters: `LinearBaseline`.

    >>> agent = SafeLTS(
    ...     lambda x, a: np.eye(2)[a], n_actions=2, dim=2, tau=0.5, safe_value=0.1, sigma=0.1
    ... )
    >>> bool(agent.ask([1.0]).policy[0] >= 0.5)  # little is known
    True
    """

    def choose(self, view: RidgeView) -> np.ndarray:
        score = view.phi @ self.rewards.draw(self.spread(view.safe_value), self.round_rng)
        return select_policy(score, view.cost_upper, view.tau, safe_action=self._safe)

    def spread(self, safe_value: float) -> float:
        """sqrt(d) b."""
        bias = math.sqrt(self.rewards.ridge) * self.rewards.norm_bound
        return math.sqrt(self._d) * (
            (self.rewards.radius - bias) / min(1.0, self._tau - safe_value) + bias
        )
