"""ROFUL (Hutchinson, Turan, Alizadeh, "Directional optimism for safe linear bandits", AISTATS
2024), for finitely many actions mixed with a safe one.

Optimism about reward AND cost finds a direction; the share with which it is played is then as large
as is safe:

    a~, s~ = argmax_{a, s} (1 - s) r_0 + s (theta_hat'phi_a + beta |phi_a|)
             subject to    (1 - s) c_0 + s (mu_hat'phi_a - beta |phi_a|) <= tau,
    s      = max(s_known, largest share of a~ whose pessimistic cost keeps tau), at most s~,

with s_known = (tau - c_0) / (c_high - c_0), safe whatever the parameters. In the paper c_0 = r_0 =
0 (the zero action), c_high is S |x| and tau is b: s_known = nu / |x| with nu = b / S.
"""

from __future__ import annotations

import numpy as np

from gedppl.study.baselines.ridge import LinearBaseline, RidgeView, largest_share


class ROFUL(LinearBaseline):
    """Restrained optimism in the face of uncertainty. Parameters: `LinearBaseline`.

    >>> agent = ROFUL(
    ...     lambda x, a: np.eye(2)[a], n_actions=2, dim=2, tau=0.5, safe_value=0.1, sigma=0.1
    ... )
    >>> agent.ask([1.0]).policy.round(3)  # the share that is safe anyway, (0.5 - 0.1) / (1 - 0.1)
    array([0.556, 0.444])
    """

    def choose(self, view: RidgeView) -> np.ndarray:
        optimistic = view.reward + self.rewards.radius * view.reward_norm
        hoped = largest_share(view.safe_value, view.cost_lower, view.tau)
        value = (1 - hoped) * self._r0 + hoped * optimistic
        value[self._safe] = self._r0
        best = int(value.argmax())
        known = (view.tau - view.safe_value) / max(
            self._cost_high - view.safe_value, view.tau - view.safe_value
        )
        sure = max(known, float(largest_share(view.safe_value, view.cost_upper, view.tau)[best]))
        return self.mixed(best, min(sure, float(hoped[best])))
