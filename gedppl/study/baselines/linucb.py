"""LinUCB (Li, Chu, Langford, Schapire, "A contextual-bandit approach to personalized news article
recommendation", WWW 2010), and what practice does to it when there is a limit.

    score_a = theta_hat'phi_a + alpha |phi_a|_{V^-1}

``limits="ignore"`` plays its argmax. ``"penalise"`` subtracts `penalty` times the estimated excess
(mu_hat'phi_a - tau)+. ``"filter"`` takes the argmax among actions whose upper cost bound
mu_hat'phi_a + beta |phi_a| keeps tau; the safe action may always be played. Filtering is safe and
does not explore what it cannot certify; the other two promise nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.study.baselines.ridge import LinearBaseline, RidgeView

LIMITS = ("ignore", "penalise", "filter")


class LinUCB(LinearBaseline):
    """Optimism of fixed width.

    Parameters
    ----------
    alpha
        Width of the bonus in |phi|_{V^-1}.
    limits
        ``"ignore"``, ``"penalise"`` or ``"filter"``.
    penalty
        Weight of the estimated excess cost.
    others
        See `LinearBaseline`.
    """

    def __init__(
        self,
        features: Any,
        *,
        alpha: float = 1.0,
        limits: str = "filter",
        penalty: float = 10.0,
        **settings: Any,
    ) -> None:
        super().__init__(features, **settings)
        if limits not in LIMITS:
            raise SettingError(f"limits must be one of {LIMITS}, got {limits!r}")
        self._alpha, self._limits, self._penalty = float(alpha), limits, float(penalty)

    def score(self, view: RidgeView) -> np.ndarray:
        """(K,) before the limit is taken account of."""
        return view.reward + self._alpha * view.reward_norm

    def choose(self, view: RidgeView) -> np.ndarray:
        score = self.score(view)
        if self._limits == "penalise":
            score = score - self._penalty * np.maximum(view.cost - view.tau, 0.0)
        elif self._limits == "filter":
            score = np.where(view.cost_upper <= view.tau, score, -np.inf)
        return self.only(int(score.argmax()))
