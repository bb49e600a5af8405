"""When to see a patient again: months between visits, at eight dental practices.

Practices differ, by effects that are drawn around zero with an unknown spread, written in the
non-centred form that samplers like. Longer intervals save visits and cost teeth; one density says
both.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged

PRACTICES = 8
MONTHS = np.array([6.0, 9.0, 12.0, 18.0])
SAVED = np.array([0.0, 0.7, 1.0, 1.3])  # visits a year, in units of what a visit costs
FILLING = 2.0
COLUMNS = ("practice", "risk score", "age")


def caries(x: Any, a: Any, y: Any = None) -> None:
    practice = x[:, 0].astype(int)
    mu = numpyro.sample("mu", dist.Normal(-2.5, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    with numpyro.plate("practices", PRACTICES):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
    alpha = numpyro.deterministic("alpha", mu + tau * raw)
    per_log_month = numpyro.sample("per_log_month", dist.Normal(0.5, 0.5))
    b_risk = numpyro.sample("b_risk", dist.Normal(0.3, 0.3))
    b_age = numpyro.sample("b_age", dist.Normal(0.0, 0.3))
    wait = jnp.log(jnp.asarray(MONTHS) / 6.0)[a]
    eta = alpha[practice] + per_log_month * wait + b_risk * x[:, 1] + b_age * (x[:, 2] - 40) / 20
    with numpyro.plate("visits", x.shape[0]):
        numpyro.sample("caries", dist.Bernoulli(logits=eta), obs=y)


def worth(caries: Any, x: Any, a: Any) -> Any:
    return jnp.asarray(SAVED)[a] - FILLING * caries


def problem() -> ged.Problem:
    cls = ged.density_class(caries)
    limit = ged.Constraint(
        cls,
        ged.mean(0, 1),
        at_most=0.2,
        safe_value=0.14,
        name="new caries",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(MONTHS),
        utility=ged.Utility(cls, ged.expected(worth, low=-FILLING, high=1.3)),
        constraints=[limit],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """Practices of different size; risk scores of 0 to 3."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([603, seed])
        self.alpha = np.clip(rng.normal(-3.0, 0.3, PRACTICES), -3.6, -2.7)
        self.per_log_month, self.risk = rng.uniform(0.9, 1.6), rng.uniform(0.1, 0.25)
        self.age = rng.uniform(-0.05, 0.05)
        self.sizes = rng.dirichlet(np.full(PRACTICES, 3.0))

    def context(self, rng: np.random.Generator) -> np.ndarray:
        age = np.clip(rng.normal(40, 15), 18, 75)
        return np.array([rng.choice(PRACTICES, p=self.sizes), rng.integers(4), age])

    def costs(self, x: np.ndarray) -> np.ndarray:
        eta = self.alpha[int(x[0])] + self.risk * x[1] + self.age * (x[2] - 40) / 20
        found: np.ndarray = expit(eta + self.per_log_month * np.log(MONTHS / 6))
        return found[None]

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(SAVED - FILLING * self.costs(x)[0])

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        return float(rng.random() < self.costs(x)[0, action]), None
