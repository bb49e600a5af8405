"""How long a refit takes, how often a growing history compiles, and what a compiled SVI loop saves.

    python benchmarks/oracles.py

Ratios are taken within one run; absolute times depend on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def seconds(
    call: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median time of one call: wall clock, or processor time with `time.process_time`."""
    times = []
    for _ in range(repeats):
        begin = clock()
        call()
        times.append(clock() - begin)
    return float(np.median(times))


def logistic_refit() -> None:
    import jax
    import numpyro
    import numpyro.distributions as dist

    from gedppl.learning.oracles import mle, score_equations
    from gedppl.programs.contract import density_class
    from gedppl.rows import Rows

    def model(x, a, y=None):
        w = numpyro.param("w", jax.numpy.zeros(20))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(10_000, 20)), rng.normal(size=20) * 0.3
    y = (rng.random(10_000) < 1 / (1 + np.exp(-x @ w))).astype(float)
    rows, most = (
        Rows.of(x, np.zeros(10_000, int), y),
        Rows.of(x[:9500], np.zeros(9500, int), y[:9500]),
    )
    cls = density_class(model, example=(x[:4], np.zeros(4, int)))
    print(
        "logistic regression, 20 parameters, 10,000 rows, refit from the fit of 9,500 rows "
        "(target: under 50 ms)"
    )
    for oracle in (score_equations(), mle()):
        begin = time.perf_counter()
        old = oracle(cls, most)
        first = time.perf_counter() - begin
        warm = seconds(lambda oracle=oracle, old=old: oracle(cls, rows, start=old), 15)
        cpu = seconds(
            lambda oracle=oracle, old=old: oracle(cls, rows, start=old), 15, time.process_time
        )
        cold = seconds(lambda oracle=oracle: oracle(cls, rows), 5)
        fit = oracle(cls, rows, start=old)
        print(
            f"  {oracle.name:20s} warm {1e3 * warm:6.1f} ms (processor {1e3 * cpu:.1f} ms), cold "
            f"start {1e3 * cold:6.1f} ms, "
            f"first call with compilation {first:.1f} s; {fit.status}"
        )


def growing_history() -> None:
    import jax
    import numpyro
    import numpyro.distributions as dist

    from gedppl.learning.oracles import mle
    from gedppl.learning.variational import svi
    from gedppl.programs.contract import density_class
    from gedppl.rows import Rows

    def model(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([3]).to_event(1))
        spread = numpyro.param("spread", jax.numpy.zeros(3))
        numpyro.sample("y", dist.Normal(x @ w, jax.numpy.exp(x @ spread)), obs=y)

    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 3))
    y = x @ [1.0, -0.5, 0.2] + rng.normal(size=600) * np.exp(0.3 * x[:, 0])
    sizes = np.unique(np.geomspace(5, 600, 30).astype(int))
    print(f"a history growing to 600 rows, {len(sizes)} refits, heteroscedastic Normal")
    for oracle in (mle(), svi("normal", steps=500)):
        cls, fit = density_class(model, example=(x[:4], np.zeros(4, int))), None
        begin = time.perf_counter()
        for n in sizes:
            fit = oracle(cls, Rows.of(x[:n], np.zeros(n, int), y[:n]), start=fit)
        total = time.perf_counter() - begin
        loops = oracle.solve.runner(cls).compilations if oracle.name == "SVI" else None
        counts = {
            name: cls.program.compilations.get(name, 0) for name in ("total_grad", "total_hessian")
        }
        print(
            f"  {oracle.name:20s} {total:5.1f} s in all; compilations {counts}"
            + (f", SVI loop {loops}" if loops else "")
        )


def svi_against_naive(rounds: int = 8) -> None:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    from gedppl.learning.variational import svi
    from gedppl.programs.contract import density_class
    from gedppl.rows import Rows

    def model(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([5]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    rng = np.random.default_rng(2)
    x = rng.normal(size=(256, 5))
    y = (rng.random(256) < 1 / (1 + np.exp(-x @ np.array([1, -1, 0.5, 0, 0])))).astype(float)
    cls, oracle = (
        density_class(model, example=(x[:4], np.zeros(4, int))),
        svi("normal", steps=500, refit_steps=500, particles=1),
    )
    fit = oracle(cls, Rows.of(x[:200], np.zeros(200, int), y[:200]))

    ours, naive = [], []
    for n in range(201, 201 + rounds):
        rows = Rows.of(x[:n], np.zeros(n, int), y[:n])
        ours.append(seconds(lambda rows=rows: oracle(cls, rows, start=fit), 1, time.process_time))

        def run(n=n):
            engine = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), Trace_ELBO())
            with jax.enable_x64(True):
                engine.run(
                    jax.random.key(0), 500, x[:n], np.zeros(n, int), y[:n], progress_bar=False
                )

        naive.append(seconds(run, 1, time.process_time))
    print(
        "SVI refit, AutoNormal, 500 steps, one row more each round, processor time: "
        f"ours {1e3 * np.median(ours):.1f} ms, checks and draws included; SVI.run "
        f"{1e3 * np.median(naive):.0f} ms; "
        f"ratio {np.median(naive) / np.median(ours):.0f}"
    )


def pyro_svi(steps: int = 500) -> None:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer.autoguide import AutoNormal

    from gedppl.learning.variational import svi
    from gedppl.programs.contract import density_class
    from gedppl.rows import Rows

    def model(x, a, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        scale = pyro.sample("scale", dist.HalfNormal(torch.tensor(1.5)))
        pyro.sample(
            "y",
            dist.Normal(x @ w, scale * torch.exp(pyro.param("slope", torch.tensor(0.0)) * x[:, 0])),
            obs=y,
        )

    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2))
    rows = Rows.of(
        x, np.zeros(200, int), x @ [1.0, -0.4] + 0.6 * np.exp(0.4 * x[:, 0]) * rng.normal(size=200)
    )
    cls = density_class(model, example=(x[:4], np.zeros(4, int)))
    times = {}
    for guide in ("normal", AutoNormal):
        oracle = svi(guide, steps=steps, particles=4, draws=16)
        oracle(cls, rows)  # the first recording loads parts of torch
        times[guide] = seconds(lambda oracle=oracle: oracle(cls, rows), 3, time.process_time)
    print(
        f"Pyro SVI, independent Normals, {steps} steps of 4 particles, 200 rows, processor time: "
        "recorded graph "
        f"{1e3 * times['normal']:.0f} ms, recording, checks and draws included; Pyro's Trace_ELBO "
        f"{1e3 * times[AutoNormal]:.0f} ms; ratio {times[AutoNormal] / times['normal']:.1f}"
    )


if __name__ == "__main__":
    logistic_refit()
    growing_history()
    svi_against_naive()
    pyro_svi()
