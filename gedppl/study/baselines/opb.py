"""OPB, optimistic-pessimistic bandit (Pacchiano, Ghavamzadeh, Bartlett, Jiang, "Stochastic bandits
with linear constraints", AISTATS 2021, section on multi-armed bandits): K arms, no context, rewards
and costs in [0, 1].

    maximise
        sum_a pi_a min(1, rbar_a + alpha_r xi_a)   subject to   sum_a pi_a min(1, cbar_a + xi_a) <=
        tau,
    xi_a = sqrt(2 log(T^2) / max(n_a, 1)),     alpha_r = 1 + (1 - r_0) / (tau - c_0).

The safe arm's cost c_0 is known. Ties go to the least-pulled arm: with the first arm instead, arms
whose optimistic reward is cut at 1 starve (51,035 instead of 12,412 at tau = .2, T = 1e5).
Published setting: r = (.1, .2, .4, .7), c = (0, .4, .5, .2), noise .1 cut to [0, 1], alpha_r = 1 +
1/tau (r_0 = c_0 = 0); ``benchmarks/published.py --setting opb``.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from gedppl.errors import SettingError, ShapeError
from gedppl.selection import check_action
from gedppl.study.baselines.shell import Baseline


class OPB(Baseline):
    """Optimism about rewards, pessimism about costs, one linear programme.

    Parameters
    ----------
    n_actions, tau, safe_action, safe_value
        K, the limit, the safe arm and its known cost.
    horizon
        T.
    reward_weight
        alpha_r; from `safe_utility` if not given.

    Examples
    --------
    >>> agent = OPB(n_actions=3, tau=0.5, safe_value=0.0, horizon=100)
    >>> agent.tell(agent.ask([]).id, 0.1, 0.0)  # the first arm, which is safe
    >>> agent.ask([]).policy  # then one that was never pulled, as often as the limit allows
    array([0.5, 0.5, 0. ])
    """

    def __init__(
        self,
        *,
        n_actions: int,
        tau: float,
        safe_value: float,
        horizon: int,
        safe_action: int = 0,
        safe_utility: float = 0.0,
        reward_weight: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        check_action(safe_action, n_actions)
        if not safe_value < tau:
            raise SettingError(f"OPB needs safe_value < tau, got {safe_value} and {tau}")
        if horizon < 2:
            raise SettingError(f"OPB needs a horizon of at least 2 rounds, got {horizon}")
        self._tau, self._safe, self._c0 = float(tau), safe_action, float(safe_value)
        self._log = 2 * math.log(horizon**2)
        self.reward_weight = (
            1 + (1 - safe_utility) / (tau - safe_value)
            if reward_weight is None
            else float(reward_weight)
        )
        self._pulls, self._reward, self._cost = np.zeros((3, n_actions))

    def policy(self, x: Any) -> np.ndarray:
        n = np.maximum(self._pulls, 1)
        width = np.sqrt(self._log / n)
        score = np.minimum(1.0, self._reward / n + self.reward_weight * width)
        upper = np.minimum(1.0, self._cost / n + width)
        upper[self._safe] = self._c0
        return best_vertex(score, upper, self._tau, self._pulls)

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:
        if z is None:
            raise ShapeError("OPB learns a cost: pass z to tell")
        self._pulls[action] += 1
        self._reward[action] += y
        self._cost[action] += z


def best_vertex(score: np.ndarray, upper: np.ndarray, tau: float, pulls: np.ndarray) -> np.ndarray:
    """argmax of score'pi subject to upper'pi <= tau over the simplex, by its vertices: one action,
    or two that sit on the limit.

    Among equally good ones that with the least-pulled arm, then that of least expected pulls.

    >>> best_vertex(np.array([1.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.4]), 0.5, np.array([2, 0, 1]))
    array([0.        , 0.16666667, 0.83333333])
    """
    K = len(score)
    vertices = [np.eye(K)[a] for a in range(K) if upper[a] <= tau]
    for a, b in itertools.permutations(range(K), 2):
        if upper[a] <= tau < upper[b]:
            share = (tau - upper[a]) / (upper[b] - upper[a])
            vertices.append((1 - share) * np.eye(K)[a] + share * np.eye(K)[b])
    top = max(float(v @ score) for v in vertices)
    tied = [v for v in vertices if v @ score >= top - 1e-10]
    return min(tied, key=lambda v: (pulls[v > 0].min(), float(v @ pulls)))
