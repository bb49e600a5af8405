"""Environments in which what the agent is told is wrong, one thing each. Nothing is guaranteed
here: what counts is how often limits are broken, by how much, and whether anybody notices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .base import Bernoulli, Normal, World, feature_world, limit_at
from .counts import doses_of_three
from .linear import shared


@dataclass(frozen=True)
class Cloglog(Bernoulli):
    """Truth 1 - exp(-exp(eta)); the model says logit."""

    def mean(self, eta: np.ndarray) -> np.ndarray:
        return -np.expm1(-np.exp(eta))

    def draw(self, eta: float, rng: np.random.Generator) -> float:
        return float(rng.random() < -np.expm1(-np.exp(eta)))


@dataclass(frozen=True)
class HeavyTails(Normal):
    """Student's t with 2.5 degrees of freedom and scale sigma, of standard deviation 2.2 sigma;
    the model says normal.
    """

    def draw(self, eta: float, rng: np.random.Generator) -> float:
        return float(eta + self.sigma * rng.standard_t(2.5))


@dataclass
class Drift(World):
    """The cost's coefficients grow by `growth` over `over` rounds, and then stay; the model says
    that they never change.
    """

    growth: float = 0.3
    over: int = 1000
    rounds: int = 0

    def __post_init__(self) -> None:
        self._first = self.mu

    def context(self, rng: np.random.Generator) -> np.ndarray:
        self.rounds += 1
        self.mu = self._first * (1 + self.growth * min(1.0, self.rounds / self.over))
        return super().context(rng)

    def safe_cost(self, x: np.ndarray) -> np.ndarray:
        """As it was at first, which is what the agent is told."""
        return np.array([self.rows(row)[0] @ self._first for row in x])


def wrong_link(seed: int = 0) -> World:
    """A complementary log-log truth under logistic models."""
    rng = np.random.default_rng([501, seed])
    theta = np.append(-1.5, rng.uniform(0.3, 1.2, 3))
    mu = np.append(-2.2, rng.uniform(0.3, 1.4, 3))
    family = Cloglog()
    return feature_world(
        doses_of_three,
        theta,
        mu,
        limit_at(doses_of_three, theta, mu, rng, family),
        family,
        bound=6.0,
        guaranteed=False,
    )


def heavy_tails(seed: int = 0) -> World:
    """Heavy-tailed noise of more than twice the declared standard deviation."""
    return replace(
        shared(seed + 2000), utility=HeavyTails(0.1), cost=HeavyTails(0.1), guaranteed=False
    )


def drift(seed: int = 0) -> World:
    """Costs grow by 30% over 1000 rounds, staying in their range. A new object for every run: it
    counts its contexts.
    """
    w = shared(seed + 3000)
    return Drift(
        w.draw,
        w.rows,
        w.theta,
        0.75 * w.mu,
        0.75 * w.tau,
        w.utility,
        w.cost,
        w.classes,
        w.ranges,
        guaranteed=False,
    )


def wrong_safe_value(seed: int = 0) -> World:
    """The safe action is declared to cost nothing, which is less than it does."""
    w = shared(seed + 4000)
    return replace(w, declared_safe=lambda x: np.zeros(len(x)), guaranteed=False)
