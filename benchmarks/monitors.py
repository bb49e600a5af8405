"""False stops and power of each monitor of certified values alone: `python monitors.py [--runs 200]
[--rounds 500]`.

Outcomes of one action are held against its certified value, which is the truth itself: the largest
rate of false stops. Then the outcomes change, from the first round or after round 75: Normal
outcomes rise by a share of their noise (for the variance, the noise itself grows by it),
exponential ones grow by it. Printed: runs stopped of all runs, and the median round of those stops.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged
from gedppl.agent.monitoring import Proved, certified_cost
from gedppl.guard import CertifiedMonitor

DELTA, BREAK, SIZES = 0.05, 75, (0.5, 1.0)
X = np.zeros(1)


def normal(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], 1.0), obs=y)


def exponential(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Exponential(jnp.exp(w[a])), obs=y)


def shifted(z: np.ndarray, size: float) -> np.ndarray:
    return z + size


def scaled(z: np.ndarray, size: float) -> np.ndarray:
    return z * (1.0 + size)


Grown = Callable[[np.ndarray, float], np.ndarray]
KINDS: dict[str, tuple[Callable[..., None], ged.functionals.Functional, Grown]] = {
    "normal mean": (normal, ged.mean(-9, 9), shifted),
    "normal quantile .9": (normal, ged.quantile(0.9, -9, 9), shifted),
    "normal CVaR .9": (normal, ged.cvar(0.9, -9, 9), shifted),
    "normal P(Y > 1)": (normal, ged.probability(above=1.0), shifted),
    "normal variance": (normal, ged.variance(9.0), scaled),
    "exponential mean": (exponential, ged.mean(0, 9), scaled),
    "exponential quantile .9": (exponential, ged.quantile(0.9, 0, 30), scaled),
    "exponential CVaR .9": (exponential, ged.cvar(0.9, 0, 30), scaled),
}


def says(c: ged.Constraint, z: np.ndarray, proved: Proved) -> tuple[np.ndarray, CertifiedMonitor]:
    """What outcomes z (T, R) say to the monitor of their certified value, and that monitor at
    its start.
    """
    costs = [certified_cost(c, float(one), X, 1, proved) for one in z.ravel()]
    first = costs[0]
    assert first is not None
    start = CertifiedMonitor.create(limit=first.limit, low=first.floor.low, high=1e300, delta=DELTA)
    return np.array([cost.value for cost in costs]).reshape(z.shape), start


def stops(start: CertifiedMonitor, values: np.ndarray) -> tuple[int, float]:
    """Runs stopped and the median round of the stops; values (T, R)."""
    monitor, first = start, np.full(values.shape[1], np.nan)
    for t, row in enumerate(values):
        monitor = monitor.update(row)
        first = np.where(np.isnan(first) & monitor.alarmed, t, first)
    stopped = int(np.isfinite(first).sum())
    return stopped, float(np.nanmedian(first)) if stopped else float("nan")


def table(runs: int, rounds: int, report: Callable[[str], None] = print) -> None:
    report(f"{runs} runs of {rounds} rounds, delta {DELTA:g}; stopped (median round)")
    heads = [f"+{size:g} from {start}" for size in SIZES for start in (0, BREAK)]
    report(f"{'certified value':>24} {'right':>14}" + "".join(f" {head:>14}" for head in heads))
    for name, (program, functional, grown) in KINDS.items():
        cls = ged.density_class(program, example=(X[None], np.zeros(1, int)))
        rng = np.random.default_rng(3)
        z = (
            rng.normal(size=(rounds, runs))
            if program is normal
            else rng.exponential(size=(rounds, runs))
        )
        density = cls.density_at(np.zeros((1, 2)), X[None], np.ones(1, int))
        exact = float(np.asarray(functional(density, X[None], np.ones(1, int))).reshape(-1)[0])
        mean = 0.0 if program is normal else 1.0
        c = ged.Constraint(cls, functional, at_most=functional.high, safe_value=functional.low)
        proved = Proved(exact, (mean, mean))
        right, start = says(c, z, proved)
        found = [stops(start, right)]
        for size in SIZES:
            wrong, _ = says(c, grown(z, size), proved)
            found += [
                stops(start, np.concatenate([right[:begin], wrong[begin:]])) for begin in (0, BREAK)
            ]
        report(f"{name:>24}" + "".join(f" {f'{count} ({at:.0f})':>14}" for count, at in found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=500)
    asked = parser.parse_args()
    began = time.process_time()
    table(asked.runs, asked.rounds)
    print(f"{time.process_time() - began:.0f} s of processor time")
