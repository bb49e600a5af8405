"""What the linear baselines share: two ridge regressions with self-normalised radii, and a view of
all actions at a context.

Reward and cost are linear in features, y = phi(x, a)'theta + noise, z = phi(x, a)'mu + noise, with
sub-Gaussian noise of scale R:

    theta_hat = V^-1 sum phi y,    V = lambda I + sum phi phi',
    |phi'(theta_hat - theta)| <= beta |phi|_{V^-1},
        beta = R sqrt(d log((1 + n L^2 / lambda) / delta)) + sqrt(lambda) S

for all rounds at once with probability 1 - delta, if |theta| <= S and |phi| <= L (Abbasi-Yadkori,
Pal, Szepesvari, "Improved algorithms for linear stochastic bandits", NeurIPS 2011). Axis letters: K
actions, d features.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import SettingError, ShapeError
from gedppl.numerics.arrays import check_delta
from gedppl.selection import check_action
from gedppl.study.baselines.shell import Baseline

Features = Callable[[np.ndarray, np.ndarray], Any]  # (x (n, dx), a (n,)) -> (n, d)


class Ridge:
    """One ridge regression and its radius."""

    def __init__(
        self,
        dim: int,
        *,
        sigma: float,
        delta: float,
        ridge: float,
        norm_bound: float,
        feature_bound: float,
    ) -> None:
        self.dim, self.sigma, self.delta = dim, float(sigma), float(delta)
        self.ridge, self.norm_bound, self.feature_bound = (
            float(ridge),
            float(norm_bound),
            float(feature_bound),
        )
        self.gram, self.moment, self.n = ridge * np.eye(dim), np.zeros(dim), 0

    def add(self, phi: np.ndarray, y: float) -> None:
        """Take in one row."""
        self.gram = self.gram + np.outer(phi, phi)
        self.moment = self.moment + phi * y
        self.n += 1

    @property
    def estimate(self) -> np.ndarray:
        """theta_hat (d,)."""
        return np.linalg.solve(self.gram, self.moment)

    @property
    def radius(self) -> float:
        """beta after the rows so far."""
        log_term = self.dim * math.log(
            (1 + self.n * self.feature_bound**2 / self.ridge) / self.delta
        )
        return self.sigma * math.sqrt(log_term) + math.sqrt(self.ridge) * self.norm_bound

    def norms(self, phi: np.ndarray) -> np.ndarray:
        """|phi|_{V^-1} of rows (K, d): (K,)."""
        half = np.linalg.solve(np.linalg.cholesky(self.gram), phi.T)
        found: np.ndarray = np.sqrt((half**2).sum(axis=0))
        return found

    def draw(self, scale: float, rng: np.random.Generator) -> np.ndarray:
        """theta_hat + scale V^{-1/2} eta with eta standard normal: (d,)."""
        return self.estimate + scale * np.linalg.solve(
            np.linalg.cholesky(self.gram).T, rng.standard_normal(self.dim)
        )


@dataclass(frozen=True)
class RidgeView:
    """What is known of all actions at one context. The safe action's cost is its known value,
    without width.
    """

    phi: np.ndarray  # (K, d)
    reward: np.ndarray  # (K,) estimates
    reward_norm: np.ndarray  # (K,) |phi|_{V^-1}
    cost: np.ndarray  # (K,)
    cost_width: np.ndarray  # (K,) beta |phi|_{V^-1}
    tau: float
    safe_value: float

    @property
    def cost_upper(self) -> np.ndarray:
        found: np.ndarray = self.cost + self.cost_width
        return found

    @property
    def cost_lower(self) -> np.ndarray:
        found: np.ndarray = self.cost - self.cost_width
        return found


class LinearBaseline(Baseline):
    """A baseline on two ridge regressions; a subclass says what to play.

    Parameters
    ----------
    features
        (x (n, dx), a (n,)) -> (n, d).
    n_actions, dim
        K and d.
    tau, safe_action, safe_value, safe_utility
        The limit; the safe action, its known cost c_0 < tau (a number, or a function of one
        context) and (a lower bound on) its utility r_0.
    utility_high, cost_high
        The largest expected utility and cost of any action.
    sigma, delta, ridge, norm_bound, feature_bound
        R, delta, lambda, S, L; delta for each of the two regressions. `feature_bound` None: the
        largest |phi| seen so far.
    """

    def __init__(
        self,
        features: Features,
        *,
        n_actions: int,
        dim: int,
        tau: float,
        safe_value: float | Callable[[np.ndarray], float],
        sigma: float,
        cost_sigma: float | None = None,
        safe_action: int = 0,
        safe_utility: float = 0.0,
        utility_high: float = 1.0,
        cost_high: float = 1.0,
        delta: float = 0.05,
        ridge: float = 1.0,
        norm_bound: float = 1.0,
        cost_norm_bound: float | None = None,
        feature_bound: float | None = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        check_action(safe_action, n_actions)
        name = type(self).__name__
        cost_sigma = sigma if cost_sigma is None else cost_sigma
        if not callable(safe_value) and not safe_value < tau:
            raise SettingError(f"{name} needs safe_value < tau, got {safe_value} and {tau}")
        check_delta(delta)
        if min(sigma, cost_sigma, ridge) <= 0:
            raise SettingError(
                f"{name} needs positive sigma and ridge, got {min(sigma, cost_sigma)} and {ridge}"
            )
        self._features, self._K, self._d = features, n_actions, dim
        self._tau, self._safe, self._safe_value = float(tau), safe_action, safe_value
        self._r0, self._high, self._cost_high = (
            float(safe_utility),
            float(utility_high),
            float(cost_high),
        )
        self._seed, self._grow = seed, feature_bound is None
        common: dict[str, float] = {
            "delta": delta,
            "ridge": ridge,
            "feature_bound": feature_bound or 0.0,
        }
        self.rewards = Ridge(dim, sigma=sigma, norm_bound=norm_bound, **common)
        self.costs = Ridge(
            dim,
            sigma=cost_sigma,
            norm_bound=norm_bound if cost_norm_bound is None else cost_norm_bound,
            **common,
        )

    @abstractmethod
    def choose(self, view: RidgeView) -> np.ndarray:
        """The policy (K,) at what is known."""

    def policy(self, x: Any) -> np.ndarray:
        return self.choose(self.view(np.asarray(x, float)))

    def view(self, x: np.ndarray) -> RidgeView:
        """Estimates and widths of all actions at x (dx,)."""
        phi, c0 = self._rows(x), self._safe_value
        cost, width = phi @ self.costs.estimate, self.costs.radius * self.costs.norms(phi)
        known = float(c0(x) if callable(c0) else c0)
        cost[self._safe], width[self._safe] = known, 0.0
        return RidgeView(
            phi, phi @ self.rewards.estimate, self.rewards.norms(phi), cost, width, self._tau, known
        )

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:
        if z is None:
            raise ShapeError(f"{type(self).__name__} learns a cost: pass z to tell")
        phi = self._rows(x)
        if self._grow:  # before its rows enter: every past row is under the bound
            longest = float(np.sqrt((phi**2).sum(axis=1)).max())
            for part in (self.rewards, self.costs):
                part.feature_bound = max(part.feature_bound, longest)
        self.rewards.add(phi[action], y)
        self.costs.add(phi[action], z)

    @property
    def round_rng(self) -> np.random.Generator:
        """Randomness of the round at hand: `policy` draws the same until the next `ask`."""
        return np.random.default_rng([self._seed, 11, len(self._decisions)])

    def only(self, action: int) -> np.ndarray:
        """The policy that plays one action."""
        found: np.ndarray = np.eye(self._K)[action]
        return found

    def mixed(self, action: int, share: float) -> np.ndarray:
        """An action with probability `share`, the safe one otherwise."""
        return share * self.only(action) + (1 - share) * self.only(self._safe)

    def _rows(self, x: np.ndarray) -> np.ndarray:
        phi = np.asarray(
            self._features(np.repeat(x[None], self._K, axis=0), np.arange(self._K)), float
        )
        if phi.shape != (self._K, self._d):
            raise ShapeError(f"features must be ({self._K}, {self._d}) here, got {phi.shape}")
        return phi


def largest_share(safe_value: float, cost: np.ndarray, tau: float) -> np.ndarray:
    """The largest s in [0, 1] with (1 - s) safe_value + s cost <= tau, for every action: (K,).

    >>> largest_share(0.1, np.array([0.1, 0.3, 0.9]), 0.5).round(3)
    array([1. , 1. , 0.5])
    """
    over = cost > tau
    gap = np.where(over, cost - safe_value, 1.0)
    return np.where(over, (tau - safe_value) / gap, 1.0)
