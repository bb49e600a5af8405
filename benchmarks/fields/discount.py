"""What discount to send a customer, so that few vouchers cost more than the budget of one.

An order or none, and what the voucher cost, log-normal with an unknown spread; costs rise with the
discount by steps that are known to be positive. No discount is safe.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit
from scipy.stats import lognorm

import gedppl as ged

PERCENT = np.array([0.0, 5.0, 10.0, 20.0])
BUDGET = 20.0  # euros
COLUMNS = ("days since last order", "orders", "log basket")
CENTRE, SPREAD = np.array([60.0, 5.0, 3.5]), np.array([40.0, 3.0, 0.4])


def orders(x: Any, a: Any, y: Any = None) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(-1.0, 1.0))
    with numpyro.plate("features", 3):
        beta = numpyro.sample("beta", dist.Normal(0.0, 0.5))
    with numpyro.plate("discounts", len(PERCENT) - 1):
        uplift = numpyro.sample("uplift", dist.Normal(0.3, 0.5))
    effect = jnp.append(0.0, uplift)
    z = (x - CENTRE) / SPREAD
    with numpyro.plate("customers", x.shape[0]):
        numpyro.sample("order", dist.Bernoulli(logits=alpha + z @ beta + effect[a]), obs=y)


def voucher_cost(x: Any, a: Any, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(1.5, 0.5))
    with numpyro.plate("features", 3):
        gamma = numpyro.sample("gamma", dist.Normal(0.0, 0.3))
    with numpyro.plate("steps", len(PERCENT) - 1):
        step = numpyro.sample("step", dist.HalfNormal(0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    effect = jnp.append(0.0, jnp.cumsum(step))
    z = (x - CENTRE) / SPREAD
    with numpyro.plate("customers", x.shape[0]):
        numpyro.sample("cost", dist.LogNormal(mu + z @ gamma + effect[a], sigma), obs=y)


def problem() -> ged.Problem:
    over = ged.Constraint(
        ged.density_class(voucher_cost),
        ged.probability(above=BUDGET),
        at_most=0.15,
        safe_value=0.05,
        name="over budget",
    )
    return ged.Problem(
        n_actions=len(PERCENT),
        utility=ged.Utility(ged.density_class(orders), ged.mean(0, 1)),
        constraints=[over],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """A fifth to a third order without a discount, half with the largest."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([607, seed])
        self.alpha, self.beta = rng.uniform(-1.3, -0.8), rng.uniform(-0.3, 0.3, 3)
        self.uplift = np.append(0.0, np.cumsum(rng.uniform(0.2, 0.5, 3)))
        self.mu, self.sigma = rng.uniform(1.3, 1.5), rng.uniform(0.4, 0.5)
        self.gamma = np.append(rng.uniform(-0.05, 0.05, 2), rng.uniform(0.1, 0.2))
        self.step = np.append(0.0, np.cumsum(rng.uniform(0.2, 0.5, 3)))

    def context(self, rng: np.random.Generator) -> np.ndarray:
        recency = np.clip(rng.exponential(60), 5, 140)
        return np.array(
            [recency, np.clip(rng.poisson(5), 0, 11), np.clip(rng.normal(3.5, 0.4), 2.7, 4.3)]
        )

    def utilities(self, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = expit(self.alpha + (x - CENTRE) / SPREAD @ self.beta + self.uplift)
        return found

    def _scales(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(self.mu + (x - CENTRE) / SPREAD @ self.gamma + self.step))

    def costs(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(lognorm.sf(BUDGET, self.sigma, scale=self._scales(x)))[None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        y = float(rng.random() < self.utilities(x)[action])
        return y, float(self._scales(x)[action] * np.exp(self.sigma * rng.standard_normal()))
