"""Stock of a shop for the week: profit, while the shelf rarely runs empty.

Demand is negative binomial with a dispersion that is not known; pre-orders make all of it visible.
One density says both what a stock earns and how often it runs out. The largest stock is safe.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import nbinom

import gedppl as ged

STOCK = np.array([20.0, 30.0, 40.0, 55.0, 90.0])
SAFE = 4
PRICE, HOLDING = 2.0, 0.3
COLUMNS = ("promotion", "holiday", "temperature")


def demand(x: Any, a: Any, y: Any = None) -> None:
    log_base = numpyro.sample("log_base", dist.Normal(jnp.log(15.0), 0.5))
    promotion = numpyro.sample("promotion", dist.Normal(0.3, 0.3))
    holiday = numpyro.sample("holiday", dist.Normal(0.0, 0.3))
    warmth = numpyro.sample("warmth", dist.Normal(0.0, 0.02))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.3))
    mean = jnp.exp(log_base + promotion * x[:, 0] + holiday * x[:, 1] + warmth * (x[:, 2] - 15.0))
    with numpyro.plate("weeks", x.shape[0]):
        numpyro.sample("demand", dist.NegativeBinomial2(mean, concentration), obs=y)


def profit(sold: Any, x: Any, a: Any) -> Any:
    stock = jnp.asarray(STOCK)[a]
    return PRICE * jnp.minimum(sold, stock) - HOLDING * stock


def problem() -> ged.Problem:
    cls = ged.density_class(demand)
    service = ged.Constraint(
        cls,
        ged.probability(above=STOCK),
        at_most=0.05,
        safe_value=0.01,
        name="runs out",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(STOCK),
        utility=ged.Utility(cls, ged.expected(profit, low=-HOLDING * 90, high=1.7 * 90)),
        constraints=[service],
        safe_action=SAFE,
        columns=COLUMNS,
    )


class World:
    """Some twenty are asked for in a week, more under a promotion."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng([602, seed]).uniform
        self.log_base, self.effects = np.log(draw(12, 18)), [draw(0.3, 0.6), draw(-0.3, 0.1)]
        self.warmth, self.concentration = draw(0.0, 0.02), draw(4.0, 8.0)
        self.counts = np.arange(400)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.random() < 0.3, rng.random() < 0.2, np.clip(rng.normal(15, 7), 0, 32)])

    def _demand(self, x: np.ndarray) -> Any:
        mean = np.exp(self.log_base + self.effects @ x[:2] + self.warmth * (x[2] - 15))
        return nbinom(self.concentration, self.concentration / (self.concentration + mean))

    def utilities(self, x: np.ndarray) -> np.ndarray:
        sold = np.minimum(self.counts, STOCK[:, None]) @ self._demand(x).pmf(self.counts)
        return np.asarray(PRICE * sold - HOLDING * STOCK)

    def costs(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._demand(x).sf(STOCK))[None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        return float(self._demand(x).ppf(rng.random())), None
