"""OPLB, optimistic-pessimistic linear bandit (Pacchiano, Ghavamzadeh, Bartlett, Jiang, "Stochastic
bandits with linear constraints", AISTATS 2021), for finitely many actions.

Ridge regression on the mean features of the policy, phi_pi = sum_a pi_a phi(x, a); optimism about
the reward with a radius blown up by alpha_r, pessimism about the cost:

    maximise    theta_hat'phi_pi + alpha_r beta |phi_pi|_{V^-1}
    subject to  mu_hat'phi_pi + beta |phi_pi|_{V^-1} <= tau,
    beta = R sqrt(d log((1 + t L^2 / lambda) / delta)) + sqrt(lambda) S,
        alpha_r = 1 + 2 (1 - r_0) / (tau - c_0).

The safe action's cost c_0 is known. If its features do not change (`safe_features`), the cost is
learned only in the directions orthogonal to them, with d - 1 in beta, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.errors import SettingError, ShapeError
from gedppl.numerics.arrays import check_delta
from gedppl.selection import check_action, select_policy
from gedppl.study.baselines.shell import Baseline

FORMS = ("joint", "per_action")


class OPLB(Baseline):
    """OPLB with the same ask and tell as `GEDUCB`.

    Parameters
    ----------
    features
        (x (n, dx), a (n,)) -> (n, d).
    n_actions, dim
        K and d.
    tau, safe_action, safe_value, safe_utility
        The limit; the safe action, its known cost c_0 < tau and (a lower bound on) its utility r_0.
    sigma, delta, ridge, norm_bound, feature_bound
        R, delta, lambda, S, L. `feature_bound` None: the largest |phi| seen so far.
    safe_features
        (d,) if phi(x, safe_action) is the same at every x; None otherwise.
    radius_scale
        Multiplies both radii. Below 1 nothing is guaranteed.
    form
        ``"joint"``: norms of the policy's mean features, as in the paper. The maximum of a convex
        function over a convex set is hard in general: it is taken exactly over the policies that
        mix at most two actions. ``"per_action"``: norms action by action, a linear programme, which
        bounds the joint form.

    Examples
    --------
    >>> import numpy as np
    >>> agent = OPLB(
    ...     lambda x, a: np.eye(2)[a], n_actions=2, dim=2, tau=0.5, safe_value=0.1, sigma=0.1
    ... )
    >>> agent.ask([1.0]).policy.round(3)  # nothing known yet
    array([1., 0.])
    """

    def __init__(
        self,
        features: Callable[[np.ndarray, np.ndarray], Any],
        *,
        n_actions: int,
        dim: int,
        tau: float,
        safe_value: float,
        sigma: float,
        safe_action: int = 0,
        safe_utility: float = 0.0,
        delta: float = 0.05,
        ridge: float = 1.0,
        norm_bound: float = 1.0,
        feature_bound: float | None = 1.0,
        safe_features: Any = None,
        radius_scale: float = 1.0,
        form: str = "joint",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        check_action(safe_action, n_actions)
        if not safe_value < tau:
            raise SettingError(f"OPLB needs safe_value < tau, got {safe_value} and {tau}")
        check_delta(delta)
        if min(sigma, ridge, radius_scale) <= 0:
            raise SettingError(
                f"OPLB needs positive sigma, ridge and radius_scale, got {sigma}, {ridge} and "
                f"{radius_scale}"
            )
        if form not in FORMS:
            raise SettingError(f"form must be one of {FORMS}, got {form!r}")
        self._features, self._form = features, form
        self._K, self._d = n_actions, dim
        self._tau, self._safe, self._c0 = float(tau), safe_action, float(safe_value)
        self._sigma, self._delta, self._ridge = float(sigma), float(delta), float(ridge)
        self._S, self._L, self._scale = (
            float(norm_bound),
            float(feature_bound or 0.0),
            float(radius_scale),
        )
        self._grow = feature_bound is None
        self.width_weight = 1 + 2 * (1 - safe_utility) / (tau - safe_value)
        # unit vector of the safe features, and the cost per unit along it
        self._axis = np.zeros(dim)
        self._per_unit = 0.0
        length = 0.0 if safe_features is None else float(np.linalg.norm(safe_features))
        if length > 0:
            self._axis = np.asarray(safe_features, float) / length
            self._per_unit = self._c0 / length
        self._cost_dim = dim - (length > 0)
        self._n = 0
        self._reward_gram, self._reward_moment = ridge * np.eye(dim), np.zeros(dim)
        self._cost_gram, self._cost_moment = ridge * np.eye(dim), np.zeros(dim)

    def radius(self, dim: int) -> float:
        """beta in `dim` dimensions after the rows told so far."""
        log_term = dim * math.log((1 + self._n * self._L**2 / self._ridge) / self._delta)
        return self._scale * (self._sigma * math.sqrt(log_term) + math.sqrt(self._ridge) * self._S)

    def policy(self, x: Any) -> np.ndarray:
        phi = self._rows(np.asarray(x, float))
        reward = phi @ np.linalg.solve(self._reward_gram, self._reward_moment)
        optimism = self.width_weight * self.radius(self._d) * _whiten(phi, self._reward_gram)
        free, along = self._split(phi)
        cost = along * self._per_unit + free @ np.linalg.solve(self._cost_gram, self._cost_moment)
        pessimism = self.radius(self._cost_dim) * _whiten(free, self._cost_gram)
        cost[self._safe], pessimism[self._safe] = self._c0, 0.0
        if self._form == "per_action":
            score, upper = reward + _norm(optimism), cost + _norm(pessimism)
            return select_policy(score, upper, self._tau, safe_action=self._safe)
        return best_mixture_of_two(reward, optimism, cost, pessimism, self._tau)

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:
        if z is None:
            raise ShapeError("OPLB learns a cost: pass z to tell")
        rows = self._rows(x)
        if self._grow:
            self._L = max(self._L, float(_norm(rows).max()))
        phi = rows[action]
        self._n += 1
        self._reward_gram = self._reward_gram + np.outer(phi, phi)
        self._reward_moment = self._reward_moment + phi * y
        free, along = self._split(phi)
        self._cost_gram = self._cost_gram + np.outer(free, free)
        self._cost_moment = self._cost_moment + free * (z - along * self._per_unit)

    def _rows(self, x: np.ndarray) -> np.ndarray:
        phi = np.asarray(
            self._features(np.repeat(x[None], self._K, axis=0), np.arange(self._K)), float
        )
        if phi.shape != (self._K, self._d):
            raise ShapeError(f"features must be ({self._K}, {self._d}) here, got {phi.shape}")
        return phi

    def _split(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features orthogonal to the safe action's, and the component along them."""
        along = phi @ self._axis
        return phi - np.multiply.outer(along, self._axis), along


def _whiten(phi: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Rows (K, d) with |row| = |phi|_{gram^-1}."""
    return np.linalg.solve(np.linalg.cholesky(gram), phi.T).T


def _norm(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sqrt((rows**2).sum(axis=-1))
    return found


def best_mixture_of_two(
    reward: np.ndarray, optimism: np.ndarray, cost: np.ndarray, pessimism: np.ndarray, tau: float
) -> np.ndarray:
    """argmax of reward'pi + |optimism'pi| subject to cost'pi + |pessimism'pi| <= tau over mixtures
    of two actions.

    On an edge (1-p) e_a + p e_b both sides are convex in p: the feasible p form an interval and the
    maximum is at one of its ends, which are 0, 1 or roots of the quadratic (tau - cost(p))^2 =
    |pessimism(p)|^2.
    """
    K = len(reward)
    first, second = np.triu_indices(K, 1)
    start, step = tau - cost[first], cost[first] - cost[second]  # slack(p) = start + p step
    origin, change = pessimism[first], pessimism[second] - pessimism[first]
    c2 = step**2 - (change**2).sum(1)
    c1 = 2 * (start * step - (origin * change).sum(1))
    c0 = start**2 - (origin**2).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(c1**2 - 4 * c2 * c0, 0.0))
        q = -0.5 * (c1 + np.where(c1 >= 0, root, -root))
        ends = np.stack([np.zeros_like(c0), np.ones_like(c0), q / c2, c0 / q], axis=1)  # (pairs, 4)
    p = np.clip(np.where(np.isfinite(ends), ends, 0.0), 0.0, 1.0)
    # a root is exact up to rounding: nudge it towards both sides, keep what is feasible
    p = np.clip(np.concatenate([p, p * (1 - 1e-12), p + 1e-12 * (1 - p)], axis=1), 0.0, 1.0)
    worst = cost[first][:, None] - p * step[:, None]
    worst = worst + _norm(origin[:, None] + p[..., None] * change[:, None])
    gain = reward[first][:, None] + p * (reward[second] - reward[first])[:, None]
    shift = (optimism[second] - optimism[first])[:, None]
    gain = gain + _norm(optimism[first][:, None] + p[..., None] * shift)
    gain = np.where(worst <= tau + 1e-10, gain, -np.inf)
    pair, at = np.unravel_index(int(gain.argmax()), gain.shape)
    policy = np.zeros(K)
    policy[first[pair]], policy[second[pair]] = 1 - p[pair, at], p[pair, at]
    return policy
