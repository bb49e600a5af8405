"""How fast a declared class is, against the same model written by hand in JAX, and what a growing
history costs.

    python benchmarks/density.py [--rounds 2000]

Prints ratios of medians taken in the same run, with the two sides interleaved.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm

from gedppl.functionals import mean
from gedppl.programs.contract import density_class
from gedppl.rows import Rows

DX, K = 5, 10


def model(x, a, y=None):
    w = numpyro.param("w", jnp.zeros((K, DX)))
    log_scale = numpyro.param("log_scale", jnp.zeros(K))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal((w[a] * x).sum(-1), jnp.exp(log_scale[a])), obs=y)


@jax.jit
def by_hand(theta: Any, x: Any, a: Any, y: Any) -> Any:
    def one(flat: Any) -> Any:
        w, log_scale = flat[: K * DX].reshape(K, DX), flat[K * DX :]
        return norm.logpdf(y, (w[a] * x).sum(-1), jnp.exp(log_scale[a]))

    return jax.vmap(one)(theta)


def interleaved(pairs: dict[str, Callable[[], Any]], repeats: int = 60) -> dict[str, float]:
    """Median seconds of each, taken in turns so that both see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in pairs}
    for _ in range(repeats):
        for name, call in pairs.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values[5:])) for name, values in times.items()}


def resident() -> float:
    """Megabytes this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def speed() -> None:
    rng = np.random.default_rng(0)
    m, n = 256, 10 * 50
    x, a, y = rng.normal(size=(n, DX)), np.tile(np.arange(K), 50), rng.normal(size=n)
    cls = density_class(model, example=(x, a))
    theta = 0.3 * rng.normal(size=(m, cls.dim))

    def hand() -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(by_hand(theta, x, a, y))

    np.testing.assert_allclose(cls.log_likelihood(theta, x, a, y), hand(), rtol=1e-10)
    took = interleaved({"class": lambda: cls.log_likelihood(theta, x, a, y), "hand": hand})
    print(
        f"log-likelihood, 256 settings x 10 actions x 50 rows: {1e3 * took['class']:.2f} ms, by "
        "hand "
        f"{1e3 * took['hand']:.2f} ms, ratio {took['class'] / took['hand']:.2f} (target 2)"
    )

    rows = Rows.of(rng.normal(size=(2000, DX)), rng.integers(0, K, 2000), rng.normal(size=2000))
    few = theta[:5]
    cls.total_grad(few, rows)
    took = interleaved({"total_grad": lambda: cls.total_grad(few, rows)})
    print(f"total_grad, 5 settings x 2000 rows, D = {cls.dim}: {1e3 * took['total_grad']:.2f} ms")
    functional = mean(-10.0, 10.0)
    x1, a1 = np.repeat(x[:1], K, axis=0), np.arange(K)
    cls.values(functional, theta, x1, a1)
    took = interleaved({"values": lambda: cls.values(functional, theta, x1, a1)})
    print(f"values, 256 settings x {K} actions: {1e3 * took['values']:.2f} ms")


def growth(rounds: int) -> None:
    rng = np.random.default_rng(1)
    x, a, y = rng.normal(size=(rounds, DX)), rng.integers(0, K, rounds), rng.normal(size=rounds)
    cls = density_class(model, example=(x, a))
    functional = mean(-10.0, 10.0)
    theta, history = np.zeros((4, cls.dim)), Rows.empty(DX)
    warm, at_warm = rounds // 4, 0.0
    start = time.perf_counter()
    for t in range(rounds):
        history = history.append(x[t : t + 1], a[t : t + 1], y[t : t + 1])
        cls.total_grad(theta, history)
        cls.total(theta, history)
        cls.log_likelihood(theta, x[t : t + 1], a[t : t + 1], y[t : t + 1])
        cls.values(functional, theta, np.repeat(x[t : t + 1], K, axis=0), np.arange(K))
        if t % 50 == 0:
            cls.total_hessian(theta[0], history)
        if t == warm:
            at_warm = resident()
    took = time.perf_counter() - start
    grown = (resident() - at_warm) / max(rounds - warm - 1, 1)
    most = max(cls.program.compilations.items(), key=lambda item: item[1])
    print(
        f"history 1..{rounds}: {1e3 * took / rounds:.2f} ms a round with compilation; most often "
        f"compiled: {most[0]}, "
        f"{most[1]} times (target 4); resident memory grew by {grown:.4f} MB a round after "
        "warm-up (target 0.2)"
    )
    print("compilations:", dict(sorted(cls.program.compilations.items())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    speed()
    growth(options.rounds)
