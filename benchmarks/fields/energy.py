"""How much load to shed on a hot evening, so that a line is rarely overloaded.

The peak is normal with an unknown spread, in megawatts; the limit is on the mean of its worst
twentieth (CVaR). Shedding most is safe, and dear.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm

import gedppl as ged

SHED = np.array([60.0, 40.0, 20.0, 0.0])  # MW
TAIL = 0.05  # of evenings
COLUMNS = ("temperature", "weekend", "load yesterday")


def peak_model(x: Any, a: Any, y: Any = None) -> None:
    base = numpyro.sample("base", dist.Normal(480.0, 30.0))
    per_degree = numpyro.sample("per_degree", dist.Normal(5.0, 3.0))
    weekend = numpyro.sample("weekend", dist.Normal(-10.0, 10.0))
    carry_over = numpyro.sample("carry_over", dist.Normal(0.2, 0.2))
    response = numpyro.sample("response", dist.Normal(1.0, 0.2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(20.0))
    mu = (
        base
        + per_degree * (x[:, 0] - 28.0)
        + weekend * x[:, 1]
        + carry_over * (x[:, 2] - 480.0)
        - response * jnp.asarray(SHED)[a]
    )
    with numpyro.plate("evenings", x.shape[0]):
        numpyro.sample("peak", dist.Normal(mu, sigma), obs=y)


def worth(peak: Any, x: Any, a: Any) -> Any:
    return -0.1 * jnp.asarray(SHED)[a] - 0.01 * (peak - 480.0)


def problem() -> ged.Problem:
    cls = ged.density_class(peak_model)
    overload = ged.Constraint(
        cls,
        ged.cvar(1 - TAIL, 350.0, 750.0),
        at_most=540.0,
        safe_value=531.0,
        name="worst evenings",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(SHED),
        utility=ged.Utility(cls, ged.expected(worth, low=-9.0, high=1.3)),
        constraints=[overload],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """Five to seven megawatts a degree; a fourth of evenings is too hot to shed nothing."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng([604, seed]).uniform
        self.theta = np.array([draw(470, 485), draw(5.0, 7.0), draw(-15, -5), draw(0.1, 0.25)])
        self.response, self.sigma = draw(0.9, 1.1), draw(9.0, 14.0)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array(
            [np.clip(rng.normal(31, 4), 22, 37), rng.random() < 2 / 7, rng.uniform(460, 510)]
        )

    def _means(self, x: np.ndarray) -> np.ndarray:
        features = np.array([1.0, x[0] - 28, x[1], x[2] - 480])
        return np.asarray(features @ self.theta - self.response * SHED)

    def costs(self, x: np.ndarray) -> np.ndarray:
        beyond = norm.pdf(norm.isf(TAIL)) / TAIL
        return np.asarray(self._means(x) + beyond * self.sigma)[None]

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(-0.1 * SHED - 0.01 * (self._means(x) - 480))

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        return float(self._means(x)[action] + self.sigma * rng.standard_normal()), None
