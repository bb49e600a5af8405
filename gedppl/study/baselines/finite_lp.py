"""The optimistic-pessimistic linear programme over finite classes: what remains plausible by
likelihood, and one programme.

    C_t = {m : l_t(m) >= log mean_m' exp l_t(m') - log(1/delta)}       for utility and for cost,
    maximise  sum_a pi_a (max_{C_F} u_a + alpha (U_a - L_a))   subject to   sum_a pi_a U_a <= tau,
    U_a = max_{C_G} c_a,   L_a = min_{C_G} c_a,   alpha = (u_high - r_0) / (tau - c_0).

The mixture likelihood ratio covers the truth in all rounds at once with probability 1 - delta, for
adaptive data (Ville). This is GED-UCB's set and programme without its exploration weights, with
optimism taken from the utility's own set (regret theorem: Pacchiano et al. 2021 for the linear
case; for finite classes the eluder argument of Russo and Van Roy 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import logsumexp

from gedppl.errors import SettingError, ShapeError
from gedppl.numerics.arrays import check_delta
from gedppl.selection import check_action, select_policy
from gedppl.study.baselines.shell import Baseline


class FiniteLP(Baseline):
    """Members that the data still allow, and one linear programme.

    Parameters
    ----------
    gain_likelihood, cost_likelihood
        (x (dx,), action, outcome) -> log-likelihood of every member, (M,).
    gains, costs
        x (dx,) -> expected values of every member and action, (M, K).
    tau, safe_action, safe_value, safe_utility, utility_high
        The limit; the safe action, its known cost, a lower bound on its utility; the largest
        utility.
    delta
        For each of the two sets.
    """

    def __init__(
        self,
        gain_likelihood: Callable[[np.ndarray, int, float], np.ndarray],
        cost_likelihood: Callable[[np.ndarray, int, float], np.ndarray],
        gains: Callable[[np.ndarray], np.ndarray],
        costs: Callable[[np.ndarray], np.ndarray],
        *,
        n_actions: int,
        tau: float,
        safe_value: float,
        safe_action: int = 0,
        safe_utility: float = 0.0,
        utility_high: float = 1.0,
        delta: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        check_action(safe_action, n_actions)
        if not safe_value < tau:
            raise SettingError(f"FiniteLP needs safe_value < tau, got {safe_value} and {tau}")
        check_delta(delta)
        self._likelihoods, self._gains, self._costs = (
            (gain_likelihood, cost_likelihood),
            gains,
            costs,
        )
        self._tau, self._safe, self._c0 = float(tau), safe_action, float(safe_value)
        self.width_weight = (utility_high - safe_utility) / (tau - safe_value)
        self._slack = math.log(1 / delta)
        self._logs: list[np.ndarray | float] = [0.0, 0.0]

    def plausible(self, which: int, size: int) -> np.ndarray:
        """Members still in the set of the utility (0) or the cost (1): (M,) bool."""
        logs = np.broadcast_to(self._logs[which], size)
        found: np.ndarray = logs >= logsumexp(logs) - math.log(size) - self._slack
        return found

    def policy(self, x: Any) -> np.ndarray:
        context = np.asarray(x, float)
        gains, costs = (
            np.asarray(self._gains(context), float),
            np.asarray(self._costs(context), float),
        )
        u = gains[self.plausible(0, len(gains))].max(axis=0)
        left = costs[self.plausible(1, len(costs))]
        upper, lower = left.max(axis=0), left.min(axis=0)
        upper[self._safe] = lower[self._safe] = self._c0
        return select_policy(
            u + self.width_weight * (upper - lower), upper, self._tau, safe_action=self._safe
        )

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:
        if z is None:
            raise ShapeError("FiniteLP learns a cost: pass z to tell")
        new = [f(x, action, value) for f, value in zip(self._likelihoods, (y, z))]
        self._logs = [old + np.asarray(log, float) for old, log in zip(self._logs, new)]
