"""How much water to give a field, so that little of it runs off.

Yield and run-off both bend with the soil's moisture: a B-spline whose weights are a random walk of
unknown step, as columns that were computed before. Both have noise of an unknown spread. Giving no
water is safe.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.interpolate import BSpline

import gedppl as ged

WATER = np.array([0.0, 10.0, 20.0, 30.0])  # mm
KNOTS = np.concatenate([[0.1] * 3, [0.1, 0.2, 0.3, 0.4], [0.4] * 3])
BASIS = len(KNOTS) - 4
SPLINE = BSpline(KNOTS, np.eye(BASIS), 3)
COLUMNS = (*(f"spline {i}" for i in range(BASIS)), "rain forecast")


def yields(x: Any, a: Any, y: Any = None) -> None:
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    start = numpyro.sample("start", dist.Normal(5.0, 2.0))
    walk = numpyro.sample("walk", dist.Normal(0.0, 1.0).expand([BASIS]).to_event(1))
    weights = start + tau * jnp.cumsum(walk)
    per_mm = numpyro.sample("per_mm", dist.Normal(0.05, 0.05))
    rain = numpyro.sample("rain", dist.Normal(0.0, 0.1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    mean = x[:, :BASIS] @ weights + per_mm * jnp.asarray(WATER)[a] + rain * x[:, BASIS]
    numpyro.sample("tonnes", dist.Normal(mean, sigma), obs=y)


def run_off(x: Any, a: Any, y: Any = None) -> None:
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    start = numpyro.sample("start", dist.Normal(2.0, 2.0))
    walk = numpyro.sample("walk", dist.Normal(0.0, 1.0).expand([BASIS]).to_event(1))
    weights = start + tau * jnp.cumsum(walk)
    share = numpyro.sample("share", dist.Beta(2.0, 4.0))
    rain = numpyro.sample("rain", dist.Normal(0.2, 0.1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    mean = x[:, :BASIS] @ weights + share * jnp.asarray(WATER)[a] + rain * x[:, BASIS]
    numpyro.sample("mm", dist.Normal(mean, sigma), obs=y)


def problem() -> ged.Problem:
    example = (np.zeros((1, BASIS + 1)), np.zeros(1, int))
    limit = ged.Constraint(
        ged.density_class(run_off, example=example),
        ged.mean(0.0, 40.0),
        at_most=12.0,
        safe_value=10.0,
        name="run-off",
    )
    return ged.Problem(
        n_actions=len(WATER),
        utility=ged.Utility(ged.density_class(yields, example=example), ged.mean(0.0, 15.0)),
        constraints=[limit],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """A fifth to two fifths of the water runs off, and more of the rain from wet soil."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([608, seed])
        self.yields = 5.0 + np.cumsum(rng.uniform(-0.1, 0.7, BASIS))
        self.per_mm, self.sigma = rng.uniform(0.04, 0.08), rng.uniform(0.5, 0.9)
        self.run_off = 1.0 + np.cumsum(rng.uniform(0.1, 0.8, BASIS))
        self.share, self.rain = rng.uniform(0.25, 0.45), rng.uniform(0.1, 0.25)
        self.spread = rng.uniform(1.0, 2.0)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        moisture = np.clip(rng.beta(2, 2), 0.01, 0.99) * 0.3 + 0.1
        return np.append(SPLINE(moisture), np.minimum(rng.exponential(4), 12))

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x[:BASIS] @ self.yields + self.per_mm * WATER)

    def costs(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x[:BASIS] @ self.run_off + self.share * WATER + self.rain * x[BASIS])[
            None
        ]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        one, two = rng.standard_normal(2)
        y = self.utilities(x)[action] + self.sigma * one
        return float(y), float(self.costs(x)[0, action] + self.spread * two)
