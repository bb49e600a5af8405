"""How many people to put on the phones, so that few callers hang up.

Written in Pyro. Callers who hang up are Poisson, with the calls of the hour as exposure. Most staff
is safe, and dear.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.stats import nbinom, poisson

import gedppl as ged

STAFF = np.array([12.0, 10.0, 8.0, 6.0])
PER_HOUR = 20.0  # calls that one person takes
WAGE, LOST = 0.25, 0.1
COLUMNS = ("calls", "weekend", "campaign")


def hang_ups(x: Any, a: Any, y: Any = None) -> None:
    log_rate = pyro.sample("log_rate", dist.Normal(-3.0, 0.5))
    load = pyro.sample("load", dist.LogNormal(0.5, 0.5))
    weekend = pyro.sample("weekend", dist.Normal(0.0, 0.3))
    campaign = pyro.sample("campaign", dist.Normal(0.0, 0.3))
    exposure = x[:, 0]
    utilisation = torch.log(exposure / (PER_HOUR * torch.as_tensor(STAFF)[a]))
    rate = torch.exp(log_rate + load * utilisation + weekend * x[:, 1] + campaign * x[:, 2])
    with pyro.plate("hours", x.shape[0]):
        pyro.sample("hang_ups", dist.Poisson(exposure * rate), obs=y)


def worth(lost: Any, x: Any, a: Any) -> Any:
    return -WAGE * torch.as_tensor(STAFF)[a] - LOST * lost


def problem() -> ged.Problem:
    cls = ged.density_class(hang_ups, example=(np.array([[100.0, 0, 0]]), np.zeros(1, int)))
    limit = ged.Constraint(
        cls,
        ged.mean(0.0, 100.0),
        at_most=10.0,
        safe_value=7.5,
        name="hang-ups an hour",
        outcome="utility",
    )
    return ged.Problem(
        n_actions=len(STAFF),
        utility=ged.Utility(cls, ged.expected(worth, low=-13.0, high=0.0)),
        constraints=[limit],
        safe_action=0,
        columns=COLUMNS,
    )


class World:
    """One call in twenty is lost where everybody is busy. With `dispersion` hours differ more than
    Poisson counts do, and the model is wrong.
    """

    def __init__(self, seed: int, dispersion: float | None = None) -> None:
        draw = np.random.default_rng([609, seed]).uniform
        self.log_rate, self.load = draw(-3.3, -2.9), draw(1.8, 2.6)
        self.effects, self.dispersion = np.array([draw(-0.2, 0.0), draw(0.0, 0.2)]), dispersion

    def context(self, rng: np.random.Generator) -> np.ndarray:
        calls = np.clip(rng.normal(130, 25), 70, 180)
        return np.array([calls, rng.random() < 2 / 7, rng.random() < 0.2])

    def costs(self, x: np.ndarray) -> np.ndarray:
        utilisation = np.log(x[0] / (PER_HOUR * STAFF))
        return np.asarray(
            x[0] * np.exp(self.log_rate + self.load * utilisation + self.effects @ x[1:])
        )[None]

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(-WAGE * STAFF - LOST * self.costs(x)[0])

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        mean, u = self.costs(x)[0, action], rng.random()
        if self.dispersion is None:
            return float(poisson.ppf(u, mean)), None
        return float(
            nbinom.ppf(u, self.dispersion, self.dispersion / (self.dispersion + mean))
        ), None
