"""How fast to run a coating line, so that its thickness does not scatter.

Written in Pyro. Each speed has a scatter of its own that nobody knows; the limit is on the
variance. The slowest speed is safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.stats import norm

import gedppl as ged

SPEED = np.array([60.0, 75.0, 90.0, 110.0])  # metres a minute
TOLERANCE = 8.0  # micrometres off the nominal thickness
COLUMNS = ("viscosity", "humidity")


def thickness(x: Any, a: Any, y: Any = None) -> None:
    with pyro.plate("speeds", len(SPEED)):
        offset = pyro.sample("offset", dist.Normal(0.0, 2.0))
        scale = pyro.sample("scale", dist.HalfNormal(4.0))
    drift = pyro.sample("drift", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    mean = offset[a] + x @ drift
    with pyro.plate("samples", x.shape[0]):
        pyro.sample("thickness", dist.Normal(mean, scale[a]), obs=y)


def good_metres(off: Any, x: Any, a: Any) -> Any:
    """Hundreds of metres a minute within tolerance."""
    return torch.as_tensor(SPEED)[a] / 100 * ((off <= TOLERANCE) & (off >= -TOLERANCE))


def problem() -> ged.Problem:
    cls = ged.density_class(thickness, example=(np.zeros((1, 2)), np.zeros(1, int)))
    scatter = ged.Constraint(
        cls,
        ged.variance(100.0),
        at_most=16.0,
        safe_value=9.0,
        name="scatter",
        outcome="utility",
    )
    gain = ged.expected(good_metres, low=0.0, high=1.1, kinks=(-TOLERANCE, TOLERANCE))
    return ged.Problem(
        n_actions=len(SPEED),
        utility=ged.Utility(cls, gain),
        constraints=[scatter],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """The faster, the more scatter; the fastest is too fast on most lines."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([606, seed])
        self.scale = rng.uniform(2.2, 2.8) + np.cumsum(np.append(0, rng.uniform(0.2, 1.0, 3)))
        self.offset, self.drift = rng.uniform(-1, 1, 4), rng.uniform(-0.8, 0.8, 2)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.clip(rng.normal(size=2), -2, 2)

    def costs(self, x: np.ndarray) -> np.ndarray:
        return self.scale[None] ** 2

    def utilities(self, x: np.ndarray) -> np.ndarray:
        ends = (np.array([[TOLERANCE], [-TOLERANCE]]) - self.offset - x @ self.drift) / self.scale
        return np.asarray(SPEED / 100 * (norm.cdf(ends[0]) - norm.cdf(ends[1])))

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        mean = self.offset[action] + x @ self.drift
        return float(mean + self.scale[action] * rng.standard_normal()), None
