"""HP-UCB: a limit on the realised cost with high probability (Dragazis and Pacchiano 2026).

    play
        argmax theta_hat'phi_a + beta |phi_a|   over actions with   mu_hat'phi_a + beta |phi_a| + R
        z_{1-level} <= tau,

so that P(Z <= tau) >= 1 - level for normal noise of standard deviation R, and not only E Z <= tau.
Only single actions are played: the cost of a mixture is that of the action drawn. The safe action
is always allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from gedppl.errors import SettingError
from gedppl.study.baselines.ridge import LinearBaseline, RidgeView


class HPUCB(LinearBaseline):
    """Optimism among the actions whose realised cost exceeds tau with probability at most `level`.

    Parameters
    ----------
    level
        The chance that a single outcome may exceed the limit.
    others
        See `LinearBaseline`; `cost_sigma` is the standard deviation R of the cost's noise.
    """

    def __init__(self, features: Any, *, level: float = 0.05, **settings: Any) -> None:
        super().__init__(features, **settings)
        if not 0 < level < 1:
            raise SettingError(f"level must lie in (0, 1), got {level}")
        self.margin = self.costs.sigma * float(ndtri(1 - level))

    def choose(self, view: RidgeView) -> np.ndarray:
        allowed = view.cost_upper + self.margin <= view.tau
        allowed[self._safe] = True
        score = view.reward + self.rewards.radius * view.reward_norm
        return self.only(int(np.where(allowed, score, -np.inf).argmax()))
