"""A mask from point estimates, in the manner of TF-Agents' bandits with constraints
(``tf_agents.bandits.policies.constraints``): a constraint model predicts the cost, the prediction
becomes a probability of being feasible, and a mask is drawn from it.

    p_a = Phi((tau - mu_hat'phi_a) / softness)
        (softness 0: the indicator),      mask_a ~ Bernoulli(p_a)
    play  argmax theta_hat'phi_a + alpha |phi_a|_{V^-1}  among the actions that the mask lets
    through, and the safe one.

The estimate's uncertainty does not enter: an action that looks feasible by chance is played, one
that looks infeasible by chance is not played again. Nothing is guaranteed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr

from gedppl.errors import SettingError
from gedppl.study.baselines.ridge import LinearBaseline, RidgeView


class PluginMask(LinearBaseline):
    """Optimism under a mask of estimated feasibility.

    Parameters
    ----------
    alpha
        Width of the bonus in |phi|_{V^-1}.
    softness
        Standard deviation of the probit that turns an estimate into a probability; 0 for a hard
        mask.
    others
        See `LinearBaseline`.
    """

    def __init__(
        self, features: Any, *, alpha: float = 1.0, softness: float = 0.0, **settings: Any
    ) -> None:
        super().__init__(features, **settings)
        if softness < 0:
            raise SettingError(f"softness must be at least 0, got {softness}")
        self._alpha, self._softness = float(alpha), float(softness)

    def feasibility(self, view: RidgeView) -> np.ndarray:
        """p (K,)."""
        if self._softness == 0:
            return (view.cost <= view.tau).astype(float)
        found: np.ndarray = ndtr((view.tau - view.cost) / self._softness)
        return found

    def choose(self, view: RidgeView) -> np.ndarray:
        mask = self.round_rng.random(self._K) < self.feasibility(view)
        mask[self._safe] = True
        score = view.reward + self._alpha * view.reward_norm
        return self.only(int(np.where(mask, score, -np.inf).argmax()))
