"""GenOP, the generalised optimism-pessimism rule that ROFUL is compared with (Hutchinson, Turan,
Alizadeh 2024; the rule of Pacchiano et al. 2021 and Amani et al. 2020 for one action mixed with the
safe one).

    a, s = argmax_{a, s} (1 - s) r_0 + s (theta_hat'phi_a + kappa beta |phi_a|)
           subject to
               (1 - s) c_0 + s (mu_hat'phi_a + beta |phi_a|) <= tau,     kappa = 1 + 2 (u_high -
               r_0) / (tau - c_0),

which is the paper's kappa = 1 + 2 S / b with r_0 = c_0 = 0 and rewards of at most S.
"""

from __future__ import annotations

import numpy as np

from gedppl.study.baselines.ridge import LinearBaseline, RidgeView, largest_share


class GenOP(LinearBaseline):
    """Pessimism about the cost, and optimism about the reward blown up by kappa. Parameters:
    `LinearBaseline`.

    >>> agent = GenOP(
    ...     lambda x, a: np.eye(2)[a], n_actions=2, dim=2, tau=0.5, safe_value=0.1, sigma=0.1
    ... )
    >>> agent.ask([1.0]).policy.round(3)
    array([0.651, 0.349])
    """

    def choose(self, view: RidgeView) -> np.ndarray:
        kappa = 1 + 2 * (self._high - self._r0) / (view.tau - view.safe_value)
        share = largest_share(view.safe_value, view.cost_upper, view.tau)
        value = (1 - share) * self._r0 + share * (
            view.reward + kappa * self.rewards.radius * view.reward_norm
        )
        value[self._safe] = self._r0
        best = int(value.argmax())
        return self.mixed(best, float(share[best]))
