"""Noise that depends on what is done: the scale is known, and differs by a factor of ten between
actions and contexts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

from .base import Normal, World, limit_at, unit

K, D = 5, 5


@lru_cache
def uneven_class() -> Any:
    def model(x: Any, a: Any, y: Any = None) -> None:
        theta = numpyro.param("theta", jnp.zeros(D))
        phi = x.reshape(-1, K, D)[jnp.arange(x.shape[0]), a]
        numpyro.sample("y", dist.Normal(phi @ theta, 0.05 + 0.45 * phi[:, 1]), obs=y)

    return ged.density_class(
        model, bounds={"theta": 1.0}, example=(np.ones((1, K * D)), np.zeros(1, int))
    )


@dataclass
class Uneven(World):
    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        phi = self.rows(x)[action]
        y, z = np.array([phi @ self.theta, phi @ self.mu]) + (
            0.05 + 0.45 * phi[1]
        ) * rng.standard_normal(2)
        return float(y), float(z)


def heteroscedastic(seed: int = 0) -> World:
    """Shared features, 5 actions; outcomes have standard deviation 0.05 + 0.45 times the
    action's second feature.
    """
    rng = np.random.default_rng([401, seed])
    theta, mu = unit(np.abs(rng.normal(size=(2, D))))
    safe = 0.3 * np.eye(D)[[0, 2, 3, 4][int(mu[[0, 2, 3, 4]].argmin())]]

    def draw(rng: np.random.Generator) -> np.ndarray:
        phi = unit(np.abs(rng.normal(size=(K, D))))
        phi[0] = safe
        return phi

    return Uneven(
        lambda rng: draw(rng).ravel(),
        lambda x: x.reshape(K, D),
        theta,
        mu,
        limit_at(draw, theta, mu, rng),
        Normal(0.5),
        Normal(0.5),
        lambda: (uneven_class(), uneven_class()),
    )
