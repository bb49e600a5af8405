"""Where to send a patient from the emergency department: ward, observation unit or home.

What comes back is a severity of 0 to 6 the day after, ordered and nothing more; beds are dear, and
few patients may end at 4 or worse. The ward is safe.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged

LEVELS = 7
BED = np.array([3.0, 1.5, 0.3])
PER_LEVEL = 0.3
COLUMNS = ("age", "NEWS2", "lactate")


def severity(x: Any, a: Any, y: Any = None) -> None:
    sent = numpyro.sample("sent", dist.Normal(0.5, 0.5).expand([2]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 0.5).expand([3]).to_event(1))
    cutpoints = numpyro.sample(
        "cutpoints",
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([LEVELS - 1]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    effect = jnp.concatenate([jnp.zeros(1), sent])[a]
    scaled = (x - jnp.array([60.0, 4.0, 1.5])) / jnp.array([15.0, 2.0, 0.7])
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("severity", dist.OrderedLogistic(effect + scaled @ beta, cutpoints), obs=y)


def worth(level: Any, x: Any, a: Any) -> Any:
    return -jnp.asarray(BED)[a] - PER_LEVEL * level


def problem() -> ged.Problem:
    cls = ged.density_class(severity)
    bad = ged.Constraint(
        cls,
        ged.probability(above=3.5),
        at_most=0.2,
        safe_value=0.125,
        name="4 or worse",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(BED),
        utility=ged.Utility(cls, ged.expected(worth, low=-5.0, high=0.0)),
        constraints=[bad],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """At the ward one patient in twenty or thirty ends at 4 or worse; the sicker, the more."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([605, seed])
        self.sent = np.array([0.0, rng.uniform(0.4, 0.9), rng.uniform(1.4, 2.2)])
        self.beta = rng.uniform(0.1, 0.3, 3)
        self.cutpoints = np.cumsum(np.append(-0.6, rng.uniform(1.3, 1.6, LEVELS - 2)))

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array(
            [
                np.clip(rng.normal(60, 15), 35, 82),
                np.clip(rng.poisson(4), 0, 7),
                np.clip(rng.gamma(4.6, 0.33), 0.5, 2.5),
            ]
        )

    def _above(self, x: np.ndarray) -> np.ndarray:
        """P(severity > j) by action and cutpoint, (3, 6)."""
        scaled = (x - [60.0, 4.0, 1.5]) / np.array([15.0, 2.0, 0.7])
        eta = self.sent + scaled @ self.beta
        found: np.ndarray = expit(eta[:, None] - self.cutpoints)
        return found

    def costs(self, x: np.ndarray) -> np.ndarray:
        return self._above(x)[None, :, 3]

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(-BED - PER_LEVEL * self._above(x).sum(axis=1))

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        return int(np.sum(rng.random() < self._above(x)[action])), None
