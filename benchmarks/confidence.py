"""Speed of confidence sets. Run with ``OMP_NUM_THREADS=1 python benchmarks/confidence.py``; prints
times and ratios.

By default wall-clock time, the shortest of several; ``--cpu`` takes the process's CPU time instead,
for a machine that is busy with other things (it counts all threads, so it is never the flattering
one on an idle machine).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged
from gedppl.learning import feed, learner_for

CLOCK = time.process_time if "--cpu" in sys.argv else time.perf_counter


def best_of(call: Callable[[], Any], repeats: int = 7) -> float:
    """The shortest of several timings, in seconds: the one least disturbed by other processes."""
    call()
    times = []
    for _ in range(repeats):
        start = CLOCK()
        call()
        times.append(CLOCK() - start)
    return min(times)


def logistic(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.param("w", jnp.zeros(20))
    numpyro.sample("y", dist.Bernoulli(logits=(x * (1 + 0.1 * a[:, None])) @ w), obs=y)


def heteroscedastic(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.param("w", jnp.zeros((10, 2)))
    s = numpyro.param("s", jnp.zeros(10))
    numpyro.sample("y", dist.Normal((x * w[a]).sum(-1), jnp.exp(s[a])), obs=y)


def big_logistic() -> None:
    rng = np.random.default_rng(0)
    n, d, K = 10_000, 20, 10
    x, a = rng.standard_normal((n, d)), rng.integers(0, K, n)
    eta = (x * (1 + 0.1 * a[:, None])) @ (0.3 * rng.standard_normal(d))
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    cls = ged.density_class(logistic, example=(x[:1], a[:1]))
    learner = feed(learner_for(cls, delta=0.05), x, a, y, growth=1.3)
    fit = best_of(lambda: learner.oracle(cls, learner.rows, start=learner.fit, prior=learner.prior))
    refit = best_of(learner.refit)
    bounds = best_of(lambda: learner.bounds(ged.mean(0, 1), x[:1], K))
    # each row goes on from the last: a history that branches would have to be copied
    chain = [learner]

    def absorb_one() -> None:
        chain.append(chain[-1].absorb(x[:1], a[:1], y[:1]))

    absorb = best_of(absorb_one, 50)
    print(
        f"logistic d={d} n={n}: oracle {1e3 * fit:.1f} ms, refit with sets and snapshot "
        f"{1e3 * refit:.1f} ms (target: under "
        f"50), bounds K={K} {1e3 * bounds:.1f} ms = {bounds / refit:.2f} refits or "
        f"{bounds / fit:.2f} oracle calls (target: "
        f"under 5), absorb one row {1e6 * absorb:.0f} us"
    )


def generic(n: int, K: int) -> None:
    rng = np.random.default_rng(0)
    x, a = rng.standard_normal((n, 2)), rng.integers(0, K, n)
    y = 0.3 * x[:, 0] + np.exp(0.1 * a) * rng.standard_normal(n)
    cls = ged.density_class(heteroscedastic, example=(x[:1], a[:1]))
    learner = feed(learner_for(cls, delta=0.05), x, a, y, growth=1.12)
    functional = ged.variance(50)
    gradient = best_of(lambda: cls.total_grad(learner.theta[None], learner.rows), 50)
    bounds = best_of(lambda: learner.bounds(functional, x[:1], K))
    note = learner.bounds(functional, x[:1], K).note
    counted = int(re.search(r"(\d+) gradient", note)[1])  # type: ignore[index]
    trail = best_of(lambda: learner.trail(functional, x[:1], K), 20)
    print(
        f"heteroscedastic D={cls.dim} n={n} K={K}: gradient {1e6 * gradient:.0f} us, bounds "
        f"{1e3 * bounds:.1f} ms "
        f"= {bounds / gradient:.0f} gradients of time, {counted} counted singly (target: under "
        "200); "
        f"trail of {len(learner.snapshot_sizes)} snapshots {1e3 * trail:.2f} ms (target at K=5: "
        "about 2)"
    )


if __name__ == "__main__":
    print("CPU time" if "--cpu" in sys.argv else "wall-clock time")
    big_logistic()
    generic(1000, 5)
    generic(1000, 10)
