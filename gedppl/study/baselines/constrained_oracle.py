"""The best policy that keeps the limits, by someone who knows the truth: regret is measured
against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.selection import select_policy
from gedppl.study.baselines.shell import Baseline


class ConstrainedOracle(Baseline):
    """argmax over policies of sum_a pi_a utility_a(x) subject to sum_a pi_a cost_a(x) <= at_most,
    with the true values.

    Parameters
    ----------
    true_utility, true_cost
        x (dx,) -> (K,); `true_cost` may return (J, K).
    at_most
        A number or (J,).
    every_draw
        A boolean or (J,): limits on every action that may be drawn instead of on the average.

    Examples
    --------
    >>> oracle = ConstrainedOracle(lambda x: [0.0, 1.0], lambda x: [0.0, 0.8], at_most=0.4)
    >>> oracle.policy([0.0])
    array([0.5, 0.5])
    """

    def __init__(
        self,
        true_utility: Callable[[np.ndarray], Any],
        true_cost: Callable[[np.ndarray], Any],
        at_most: Any,
        *,
        safe_action: int | None = None,
        every_draw: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self._utility, self._cost, self._at_most = true_utility, true_cost, at_most
        self._safe, self._every_draw = safe_action, every_draw

    def policy(self, x: Any) -> np.ndarray:
        context = np.asarray(x, float)
        return select_policy(
            self._utility(context),
            self._cost(context),
            self._at_most,
            safe_action=self._safe,
            every_draw=self._every_draw,
        )
