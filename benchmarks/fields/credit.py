"""By how much to raise a credit limit, so that few customers default.

Every segment of customers has a rate of its own under every offer, with a beta prior and nothing
that connects them. Not raising it is safe.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

RAISE = np.array([0.0, 10.0, 25.0, 50.0])  # percent
SEGMENTS = 3
INTEREST = np.array([1.0, 1.25, 1.6, 2.1])
LOSS = np.array([2.0, 2.2, 2.5, 3.0])
COLUMNS = ("segment",)


def default(x: Any, a: Any, y: Any = None) -> None:
    with numpyro.plate("offers", len(RAISE), dim=-2), numpyro.plate("segments", SEGMENTS, dim=-1):
        p = numpyro.sample("p", dist.Beta(2.0, 18.0))
    segment = x[:, 0].astype(jnp.int32)
    with numpyro.plate("customers", x.shape[0]):
        numpyro.sample("default", dist.Bernoulli(probs=p[a, segment]), obs=y)


def worth(defaulted: Any, x: Any, a: Any) -> Any:
    return jnp.where(defaulted > 0.5, -jnp.asarray(LOSS)[a], jnp.asarray(INTEREST)[a])


def problem() -> ged.Problem:
    cls = ged.density_class(default)
    limit = ged.Constraint(
        cls, ged.mean(0, 1), at_most=0.15, safe_value=0.06, name="default", outcome="utility"
    )
    return ged.Problem(
        n_actions=len(RAISE),
        utility=ged.Utility(cls, ged.expected(worth, low=-3.0, high=2.1)),
        constraints=[limit],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """Defaults grow with the offer, in one segment more than in another."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([610, seed])
        steps = rng.uniform(0.01, 0.08, (SEGMENTS, 3)) * rng.uniform(0.5, 1.5, (SEGMENTS, 1))
        first = rng.uniform(0.03, 0.06, (SEGMENTS, 1))
        self.rates = first + np.cumsum(np.hstack([np.zeros((SEGMENTS, 1)), steps]), axis=1)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.choice(SEGMENTS, p=[0.5, 0.3, 0.2])], float)

    def costs(self, x: np.ndarray) -> np.ndarray:
        return self.rates[int(x[0])][None]

    def utilities(self, x: np.ndarray) -> np.ndarray:
        p = self.costs(x)[0]
        return np.asarray((1 - p) * INTEREST - p * LOSS)

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        return float(rng.random() < self.costs(x)[0, action]), None
