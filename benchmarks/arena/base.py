"""What the environments share: contexts, linear predictors, outcome families, and the problem that
an agent is given.

Axis letters: n rows, K actions, d features of an action. Action 0 is safe everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit
from scipy.stats import poisson

import gedppl as ged

Draw = Callable[[np.random.Generator], np.ndarray]
SAMPLE = 1000  # contexts from which limits are set


# families of outcomes -----------------------------------------------------------------------------


class Family(Protocol):
    """How an outcome follows a linear predictor. `draw` uses one number in [0, 1) or one normal,
    whatever the action: two agents that act alike see alike, and two that do not still meet the
    same potential outcomes.
    """

    def mean(self, eta: np.ndarray) -> np.ndarray: ...
    def draw(self, eta: float, rng: np.random.Generator) -> float: ...
    def observed(self, eta: Any) -> dist.Distribution: ...


@dataclass(frozen=True)
class Normal:
    """Normal(eta, sigma)."""

    sigma: float

    def mean(self, eta: np.ndarray) -> np.ndarray:
        return eta

    def draw(self, eta: float, rng: np.random.Generator) -> float:
        return eta + self.sigma * rng.standard_normal()

    def observed(self, eta: Any) -> dist.Distribution:
        return dist.Normal(eta, self.sigma)


@dataclass(frozen=True)
class Bernoulli:
    """Bernoulli(expit(eta))."""

    def mean(self, eta: np.ndarray) -> np.ndarray:
        return expit(eta)

    def draw(self, eta: float, rng: np.random.Generator) -> float:
        return float(rng.random() < expit(eta))

    def observed(self, eta: Any) -> dist.Distribution:
        return dist.Bernoulli(logits=eta)


@dataclass(frozen=True)
class Poisson:
    """Poisson(exp(eta))."""

    def mean(self, eta: np.ndarray) -> np.ndarray:
        return np.exp(eta)

    def draw(self, eta: float, rng: np.random.Generator) -> float:
        return float(poisson.ppf(rng.random(), np.exp(eta)))

    def observed(self, eta: Any) -> dist.Distribution:
        return dist.Poisson(jnp.exp(eta))


# the models ---------------------------------------------------------------------------------------


@lru_cache
def shared_class(K: int, d: int, family: Family, bound: float) -> Any:
    """eta = phi(x, a)'theta with the features of all actions in the context, |theta| <= bound.
    Compiled once.
    """

    def model(x: Any, a: Any, y: Any = None) -> None:
        theta = numpyro.param("theta", jnp.zeros(d))
        phi = x.reshape(-1, K, d)[jnp.arange(x.shape[0]), a]
        numpyro.sample("y", family.observed(phi @ theta), obs=y)

    return ged.density_class(
        model, bounds={"theta": bound}, example=(np.ones((1, K * d)), np.zeros(1, int))
    )


@lru_cache
def arms_class(K: int, d: int, family: Family, bound: float) -> Any:
    """eta = x'w_a: coefficients of its own for every action, |w| <= bound. Compiled once."""

    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.param("w", jnp.zeros((K, d)))
        numpyro.sample("y", family.observed((w[a] * x).sum(-1)), obs=y)

    return ged.density_class(
        model, bounds={"w": bound}, example=(np.ones((1, d)), np.zeros(1, int))
    )


# worlds -------------------------------------------------------------------------------------------


@dataclass
class World:
    """An environment with known truth whose outcomes follow linear predictors.

    Parameters
    ----------
    draw
        The next context (dx,).
    rows
        A context -> features of all actions (K, d).
    theta, mu
        (d,) coefficients of utility and cost.
    tau
        The limit on the expected cost.
    utility, cost
        Families of the two outcomes.
    classes
        () -> the two model classes that agents are given.
    ranges
        (low, high) of expected utility and cost, as declared.
    declared_safe
        x (n, dx) -> (n,), the safe action's cost as declared; the truth if None.
    """

    draw: Draw
    rows: Callable[[np.ndarray], np.ndarray]
    theta: np.ndarray
    mu: np.ndarray
    tau: float
    utility: Family
    cost: Family
    classes: Callable[[], tuple[Any, Any]]
    ranges: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 1.0), (0.0, 1.0))
    declared_safe: Callable[[np.ndarray], np.ndarray] | None = None
    # False: the model is wrong, and no guarantee applies
    guaranteed: bool = field(default=True, kw_only=True)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return self.draw(rng)

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return self.utility.mean(self.rows(x) @ self.theta)

    def costs(self, x: np.ndarray) -> np.ndarray:
        return self.cost.mean(self.rows(x) @ self.mu)[None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        phi = self.rows(x)[action]
        return self.utility.draw(float(phi @ self.theta), rng), self.cost.draw(
            float(phi @ self.mu), rng
        )

    def safe_cost(self, x: np.ndarray) -> np.ndarray:
        """The safe action's expected cost at contexts (n, dx): (n,)."""
        return np.array([self.costs(row)[0, 0] for row in x])

    def problem(self, exact: bool = False) -> ged.Problem:
        """What an agent is told. `exact` declares the safe action's cost exact, which OPLB and
        others are given too.
        """
        gain, cost = self.classes()
        low, high = self.ranges[1]
        K = len(self.rows(self.context(np.random.default_rng(0))))
        limit = ged.Constraint(
            cost,
            ged.mean(low, high),
            at_most=self.tau,
            safe_value=self.declared_safe or self.safe_cost,
            safe_value_exact=exact,
            name="cost",
        )
        return ged.Problem(
            n_actions=K,
            utility=ged.Utility(gain, ged.mean(*self.ranges[0])),
            constraints=[limit],
            safe_action=0,
        )


def feature_world(
    draw: Draw,
    theta: np.ndarray,
    mu: np.ndarray,
    tau: float,
    utility: Family,
    cost: Family | None = None,
    *,
    bound: float = 1.0,
    **more: Any,
) -> World:
    """Contexts are the flattened features (K, d) that `draw` gives; all actions share theta and
    mu.
    """
    K, d = draw(np.random.default_rng(0)).shape
    cost = cost or utility
    return World(
        lambda rng: draw(rng).ravel(),
        lambda x: x.reshape(K, d),
        theta,
        mu,
        tau,
        utility,
        cost,
        lambda: (shared_class(K, d, utility, bound), shared_class(K, d, cost, bound)),
        **more,
    )


def arms_world(
    draw: Draw,
    W: np.ndarray,
    V: np.ndarray,
    tau: float,
    utility: Family,
    cost: Family | None = None,
    *,
    bound: float,
    **more: Any,
) -> World:
    """Contexts (d,); action a has utility x'W_a and cost x'V_a, W and V (K, d), before the link."""
    (K, d), cost = W.shape, cost or utility

    def rows(x: np.ndarray) -> np.ndarray:
        return np.kron(np.eye(K), x)

    return World(
        draw,
        rows,
        W.ravel(),
        V.ravel(),
        tau,
        utility,
        cost,
        lambda: (arms_class(K, d, utility, bound), arms_class(K, d, cost, bound)),
        **more,
    )


def limit_at(
    draw: Draw,
    theta: np.ndarray,
    mu: np.ndarray,
    rng: np.random.Generator,
    cost: Family | None = None,
    room: float = 0.05,
) -> float:
    """The limit at which the action of highest utility is too dear on half of the contexts, at
    least `room` above the safe one.

    Links grow with the predictor, so the action of highest predictor is the one of highest utility.
    """
    phi = np.stack([draw(rng) for _ in range(SAMPLE)])
    expected = (cost or Normal(1.0)).mean(phi @ mu)
    best = expected[np.arange(SAMPLE), (phi @ theta).argmax(1)]
    return float(max(np.median(best), expected[:, 0].max() + room))


def unit(v: np.ndarray) -> np.ndarray:
    """Rows scaled to norm one."""
    return v / np.linalg.norm(v, axis=-1, keepdims=True)
