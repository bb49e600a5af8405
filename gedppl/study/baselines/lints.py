"""LinTS, linear Thompson sampling (Agrawal and Goyal, "Thompson sampling for contextual bandits
with linear payoffs", ICML 2013), with the limit handled as in `LinUCB`: ignored, penalised or
filtered.

    score_a = theta_tilde'phi_a,     theta_tilde = theta_hat + alpha V^{-1/2} eta,     eta ~ N(0, I)
"""

from __future__ import annotations

import numpy as np

from gedppl.study.baselines.linucb import LinUCB
from gedppl.study.baselines.ridge import RidgeView


class LinTS(LinUCB):
    """Posterior draws instead of a bonus; `alpha` is the spread v. Parameters: `LinUCB`."""

    def score(self, view: RidgeView) -> np.ndarray:
        found: np.ndarray = view.phi @ self.rewards.draw(self._alpha, self.round_rng)
        return found
