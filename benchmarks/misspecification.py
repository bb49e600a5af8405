"""What is and is not noticed when the model is wrong: `python misspecification.py [--runs 20]
[--rounds 500] [--only drift]`.

One flaw at a time, at several sizes, in a small problem whose clean form is the first row: three
actions, one context column, costs linear in it with noise of .1, a limit of .5. Printed for each:
runs with an alarm, runs that were stopped (or refused), the median round of the first alarm, and
the share of rounds whose policy truly exceeded the limit while a guarantee was claimed.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged
from gedppl.agent.deciding import refuses, stops

NOISE, LIMIT, BREAK = 0.1, 0.5, 75
GAIN = np.array([[0.2, 0.0], [0.5, 0.2], [0.8, -0.1]])
COST = np.array([[0.1, 0.0], [0.35, 0.1], [0.45, 0.2]])


@lru_cache
def normal_class() -> Any:
    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        numpyro.sample("y", dist.Normal(w[a, 0] + w[a, 1] * x[:, 0], NOISE), obs=y)

    return ged.density_class(model, example=(np.zeros((1, 1)), np.zeros(1, int)))


@lru_cache
def logistic_class() -> Any:
    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.array([-1.0, 0.0]), 2.0).expand([3, 2]).to_event(2))
        numpyro.sample("y", dist.Bernoulli(logits=w[a, 0] + w[a, 1] * x[:, 0]), obs=y)

    return ged.density_class(model, example=(np.zeros((1, 1)), np.zeros(1, int)))


@dataclass
class Flawed:
    """A world with one flaw of one size. `hidden` contexts are a tenth of all, which the model
    does not tell apart.
    """

    flaw: str
    size: float
    round: int = 0
    hidden: bool = False

    @property
    def binary(self) -> bool:
        return self.flaw.startswith("link")

    def context(self, rng: np.random.Generator) -> np.ndarray:
        self.round += 1
        self.hidden = bool(rng.random() < 0.1)
        return rng.uniform(-1, 1, size=1)

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return GAIN @ np.array([1.0, x[0]])

    def costs(self, x: np.ndarray) -> np.ndarray:
        cost = COST @ np.array([1.0, x[0]])
        others = np.array([0.0, 1.0, 1.0])  # the safe action is as it was declared
        if self.binary:
            eta = 4 * (cost - 0.5)
            cost = (1 - self.size) * expit(eta) + self.size * -np.expm1(-np.exp(eta))
            cost[0] = min(cost[0], 0.2)
        elif self.flaw == "missing term":
            cost = cost + others * self.size * (x[0] ** 2 - 1 / 3)
        elif (self.flaw == "drift" and self.round > BREAK) or (
            self.flaw == "subgroup" and self.hidden
        ):
            cost = cost + others * self.size
        return cost[None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        mean = self.costs(x)[0, action]
        y = self.utilities(x)[action] + NOISE * rng.standard_normal()
        if self.binary:
            return y, float(rng.random() < mean)
        noise = rng.standard_t(3) * self.size if self.flaw == "tails" else rng.standard_normal()
        return y, mean + NOISE * noise

    def problem(self) -> ged.Problem:
        cls = logistic_class() if self.binary else normal_class()
        safe = 0.2 if self.binary else 0.1
        limit = ged.Constraint(cls, ged.mean(0, 1), at_most=LIMIT, safe_value=safe, name="cost")
        return ged.Problem(3, ged.Utility(normal_class(), ged.mean(-1, 2)), [limit], safe_action=0)


FLAWS: dict[str, tuple[float, ...]] = {
    "none": (0.0,),
    "tails": (1.0, 2.0),  # Student's t of 3 degrees of freedom, times the noise that the model says
    "missing term": (0.1, 0.3),  # a square in the context
    "drift": (0.1, 0.3, 0.5),  # added to costs after round 75
    "subgroup": (0.2, 0.5),  # added for a tenth of the contexts
    "link none": (0.0,),  # logistic truth, logistic model
    "link": (1.0,),  # complementary log-log truth, logistic model
}


def one_run(flaw: str, size: float, rounds: int, seed: int) -> dict[str, Any]:
    """First alarm, whether it stops, and the share of rounds above the limit under a claimed
    guarantee.
    """
    world = Flawed(flaw, size)
    problem = world.problem()
    agent, rng = ged.GEDUCB(problem, seed=seed), np.random.default_rng([9, seed])
    first: int | None = None
    broken = stopped = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(rounds):
            x = world.context(rng)
            try:
                decision = agent.ask(x)
            except ged.errors.DeclarationError:
                first, stopped = first if first is not None else t, 1
                break
            over = float(decision.policy @ world.costs(x)[0]) > LIMIT + 1e-9
            broken += (
                over and decision.certificate.guaranteed and decision.certificate.fallback is None
            )
            agent.tell(decision.id, *world.outcome(x, decision.action, rng))
            names = [alarm.name for alarm in agent.alarms]
            first = t if first is None and names else first
            stopped = stopped or any(stops(name, problem) or refuses(name) for name in names)
            if stopped:
                break
    return {"first": first, "stopped": bool(stopped), "broken": broken / (t + 1)}


def table(
    runs: int, rounds: int, only: list[str], report: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """One row for each flaw and size."""
    report(f"{runs} runs of at most {rounds} rounds; a run ends when it is stopped")
    report(
        f"{'flaw':>14} {'size':>5} {'alarmed':>8} {'stopped':>8} {'median first':>13} "
        f"{'over the limit, claimed':>24}"
    )
    rows = []
    for flaw, sizes in FLAWS.items():
        for size in sizes if not only or flaw in only else ():
            found = [one_run(flaw, size, rounds, 1000 + seed) for seed in range(runs)]
            firsts = [one["first"] for one in found if one["first"] is not None]
            row = {
                "flaw": flaw,
                "size": size,
                "alarmed": len(firsts),
                "stopped": sum(one["stopped"] for one in found),
                "first": float(np.median(firsts)) if firsts else float("nan"),
                "broken": float(np.mean([one["broken"] for one in found])),
            }
            rows.append(row)
            report(
                f"{flaw:>14} {size:>5g} {row['alarmed']:>8} {row['stopped']:>8} "
                f"{row['first']:>13.0f} {row['broken']:>24.1%}"
            )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=[], choices=list(FLAWS))
    asked = parser.parse_args()
    table(asked.runs, asked.rounds, asked.only)
