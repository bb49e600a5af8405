"""Sedation for an endoscopy: which dose, so that few patients lose blood pressure or oxygen.

Three yes-or-no outcomes with a model each, logistic in the log of the dose with a slope that is
known to be positive, and two limits.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged

MG_PER_KG = np.array([0.5, 0.75, 1.0, 1.5])
COLUMNS = ("age", "asa", "bmi")


def event(name: str, baseline: float) -> Any:
    """A patient's chance of an event; `baseline` is the log odds at the lowest dose."""

    def model(x: Any, a: Any, y: Any = None) -> None:
        intercept = numpyro.sample("intercept", dist.Normal(baseline, 1.0))
        slope = numpyro.sample("slope", dist.LogNormal(0.5, 0.5))
        beta_age = numpyro.sample("beta_age", dist.Normal(0.0, 0.5))
        beta_asa = numpyro.sample("beta_asa", dist.Normal(0.0, 0.5))
        beta_bmi = numpyro.sample("beta_bmi", dist.Normal(0.0, 0.5))
        age, asa, bmi = (x[:, 0] - 60) / 15, x[:, 1] - 2, (x[:, 2] - 27) / 5
        log_dose = jnp.log(jnp.asarray(MG_PER_KG)[a] / MG_PER_KG[0])
        logits = intercept + slope * log_dose + beta_age * age + beta_asa * asa + beta_bmi * bmi
        with numpyro.plate("patients", x.shape[0]):
            numpyro.sample(name, dist.Bernoulli(logits=logits), obs=y)

    return model


def problem() -> ged.Problem:
    hypotension = ged.density_class(event("hypotension", -3.0))
    desaturation = ged.density_class(event("desaturation", -3.5))
    return ged.Problem(
        n_actions=len(MG_PER_KG),
        utility=ged.Utility(ged.density_class(event("adequate", -0.5)), ged.mean(0, 1)),
        constraints=[
            ged.Constraint(
                hypotension, ged.mean(0, 1), at_most=0.2, safe_value=0.09, name="hypotension"
            ),
            ged.Constraint(
                desaturation, ged.mean(0, 1), at_most=0.15, safe_value=0.08, name="desaturation"
            ),
        ],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """Older and sicker patients lose blood pressure sooner, heavier ones oxygen."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([601, seed])
        draw = rng.uniform
        # intercept, slope, age, ASA class, body mass index
        self.adequate = [draw(-0.6, 0.0), draw(1.2, 2.2), draw(0, 0.4), 0.0, draw(-0.3, 0)]
        self.events = [
            [draw(-3.6, -3.2), draw(1.6, 2.4), draw(0.1, 0.3), draw(0.1, 0.3), 0.0],
            [draw(-3.8, -3.4), draw(1.2, 2.0), 0.0, draw(0.1, 0.3), draw(0.1, 0.3)],
        ]

    def context(self, rng: np.random.Generator) -> np.ndarray:
        age = np.clip(rng.normal(60, 14), 30, 85)
        bmi = np.clip(rng.normal(27, 4.5), 18, 38)
        return np.array([age, rng.choice([1, 2, 3], p=[0.3, 0.5, 0.2]), bmi])

    def _chances(self, theta: list[float], x: np.ndarray) -> np.ndarray:
        features = np.array([(x[0] - 60) / 15, x[1] - 2, (x[2] - 27) / 5])
        log_dose = np.log(MG_PER_KG / MG_PER_KG[0])
        found: np.ndarray = expit(theta[0] + theta[1] * log_dose + features @ theta[2:])
        return found

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return self._chances(self.adequate, x)

    def costs(self, x: np.ndarray) -> np.ndarray:
        return np.array([self._chances(theta, x) for theta in self.events])

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        one, two, three = rng.random(3)
        hypotension, desaturation = self.costs(x)[:, action]
        told = {
            "hypotension": float(two < hypotension),
            "desaturation": float(three < desaturation),
        }
        return float(one < self.utilities(x)[action]), told
