"""Sampled parameter sets: how right they are, and how long a refit takes.

    python benchmarks/posterior.py sbc [--runs 200] [--models conjugate ...] [--sources laplace svi
    smc nuts] [--ranks 99] [--ppl pyro]
    python benchmarks/posterior.py speed [--rows 2000] [--parameters 20]

`sbc` is simulation-based calibration (Talts et al. 2018): parameters are drawn from the prior, rows
from the model, and the rank of each parameter among its posterior draws must be uniform. It prints,
in standard errors, how far the mean rank is from the middle (a bias) and how far the ranks' spread
is from a uniform one (above 0: draws too narrow, below: too wide), the worst over parameters.
"trusted" are the draws that credible limits rest on: corrected, or replaced where that fails
(`learning/trusted.py`); for them the sources that were really used are counted. `speed` prints
processor time of a warm refit on growing rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from gedppl.learning.draws import sample
from gedppl.learning.oracles import auto
from gedppl.learning.trusted import trusted
from gedppl.learning.variational import svi
from gedppl.programs.contract import density_class
from gedppl.rows import Rows

ROWS = 24
GROUPS = 4


def conjugate(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x[:, :2] @ w, 0.7), obs=y)


def logistic(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.5).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x[:, :2] @ w), obs=y)


def hierarchical(x: Any, a: Any, y: Any = None) -> None:
    mu, tau = (
        numpyro.sample("mu", dist.Normal(0.0, 1.0)),
        numpyro.sample("tau", dist.HalfNormal(1.0)),
    )
    z = numpyro.sample("z", dist.Normal(jnp.zeros(GROUPS), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal((mu + tau * z)[a], 0.5), obs=y)


def centred(x: Any, a: Any, y: Any = None) -> None:
    mu, tau = (
        numpyro.sample("mu", dist.Normal(0.0, 1.0)),
        numpyro.sample("tau", dist.HalfNormal(1.0)),
    )
    effect = numpyro.sample("effect", dist.Normal(mu * jnp.ones(GROUPS), tau).to_event(1))
    numpyro.sample("y", dist.Normal(effect[a], 0.5), obs=y)


MODELS: dict[str, Callable[..., None]] = {
    "conjugate": conjugate,
    "logistic": logistic,
    "hierarchical": hierarchical,
    "centred": centred,
}


def in_pyro() -> dict[str, Callable[..., None]]:
    """The same models as Pyro programs."""
    import pyro
    import pyro.distributions as pd
    import torch

    def vector(size: int) -> Any:
        return torch.zeros(size, dtype=torch.float64)

    def conjugate(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.sample("w", pd.Normal(vector(2), 1.0).to_event(1))
        pyro.sample("y", pd.Normal(x[:, :2] @ w, 0.7), obs=y)

    def logistic(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.sample("w", pd.Normal(vector(2), 1.5).to_event(1))
        pyro.sample("y", pd.Bernoulli(logits=x[:, :2] @ w), obs=y)

    def hierarchical(x: Any, a: Any, y: Any = None) -> None:
        one = torch.ones((), dtype=torch.float64)
        mu, tau = pyro.sample("mu", pd.Normal(0 * one, one)), pyro.sample("tau", pd.HalfNormal(one))
        z = pyro.sample("z", pd.Normal(vector(GROUPS), 1.0).to_event(1))
        pyro.sample("y", pd.Normal((mu + tau * z)[a], 0.5), obs=y)

    return {"conjugate": conjugate, "logistic": logistic, "hierarchical": hierarchical}


@dataclass(frozen=True)
class Calibration:
    """Ranks of the truth among posterior draws, as shares (runs, D)."""

    model: str
    source: str
    shares: np.ndarray
    used: Counter[str] = field(default_factory=Counter)  # sources that the draws were really from

    @property
    def bias(self) -> float:
        """Mean rank from the middle, in standard errors: the worst over parameters."""
        apart = (self.shares.mean(axis=0) - 0.5) / np.sqrt(1 / 12 / len(self.shares))
        return float(apart[np.argmax(np.abs(apart))])

    @property
    def spread(self) -> float:
        """Mean squared distance of ranks from the middle against a uniform's, in standard
        errors: the worst.
        """
        apart = (np.mean((self.shares - 0.5) ** 2, axis=0) - 1 / 12) / np.sqrt(
            1 / 180 / len(self.shares)
        )
        return float(apart[np.argmax(np.abs(apart))])


def calibrate(
    model: str,
    source: str,
    runs: int,
    corrected: bool = False,
    ppl: str = "numpyro",
    ranks: int = 99,
) -> Calibration:
    """Ranks over `runs` truths drawn from the prior, each among `ranks` draws."""
    rng = np.random.default_rng(0)
    program = MODELS[model] if ppl == "numpyro" else in_pyro()[model]
    cls = density_class(program, example=(np.ones((1, 2)), np.zeros(1, int)))
    truths = np.asarray(cls.draw_prior(runs, 1), float)
    oracle = svi("normal", steps=600) if source == "svi" else None
    shares, used = [], Counter[str]()
    for run, truth in enumerate(truths):
        x, a = rng.normal(size=(ROWS, 2)), rng.integers(0, GROUPS, ROWS)
        y = np.asarray(cls.density_at(truth, x, a).sample(run, 1)[0], float)
        rows = Rows.of(x, a, y)
        found = sample(cls, rows, source, 8 * (ranks + 1), run, oracle=oracle)
        found = trusted(cls, rows, found, run) if corrected else found
        used[found.source] += 1
        drawn = (
            found.theta[::8] if found.log_weights is None else found.resampled(ranks + 1, run).theta
        )
        below = np.sum(drawn[:ranks] < truth, axis=0)
        shares.append((below + rng.random(len(truth))) / (ranks + 1))
    return Calibration(model, source + (", trusted" if corrected else ""), np.array(shares), used)


def sbc(
    runs: int, models: list[str], sources: list[str], ppl: str, ranks: int
) -> list[Calibration]:
    found = []
    for model in models:
        for source, corrected in [
            (s, c) for s in sources for c in (False, True) if not (c and s in ("nuts", "smc"))
        ]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                one = calibrate(model, source, runs, corrected, ppl, ranks)
            used = ", ".join(f"{name} {count}" for name, count in one.used.most_common())
            print(
                f"{ppl:8s} {model:13s} {one.source:18s} runs {runs}  bias {one.bias:+6.2f}  spread "
                f"{one.spread:+6.2f}  ({used})",
                flush=True,
            )
            found.append(one)
    return found


def speed(n: int, D: int) -> None:
    """Processor time of warm refits, in milliseconds: the median of seven, each on ten rows
    more.
    """
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(n + 100, D)), rng.integers(0, 2, n + 100)
    y = (rng.random(n + 100) < 1 / (1 + np.exp(-0.3 * x @ rng.normal(size=D)))).astype(float)
    for ppl, model in _regressions(D).items():
        cls = density_class(model, example=(x[:1], a[:1]))
        for name, oracle, source in (
            ("Laplace", auto(), "laplace"),
            ("SVI, normal", svi("normal"), "svi"),
        ):
            rows, spent, drawing = Rows.of(x[:n], a[:n], y[:n]), [], []
            fit = oracle(cls, rows)
            for k in range(8):
                new = slice(n + 10 * k, n + 10 * k + 10)
                rows = rows.append(x[new], a[new], y[new])
                start = time.process_time()
                fit = oracle(cls, rows, start=fit)
                spent.append(1e3 * (time.process_time() - start))
                start = time.process_time()
                sample(cls, rows, source, 1000, 0, fit=fit, oracle=oracle)
                drawing.append(1e3 * (time.process_time() - start))
            times = (
                f"refit {np.median(spent[1:]):6.1f} ms, 1,000 draws "
                f"{np.median(drawing[1:]):6.1f} ms"
            )
            print(
                f"{ppl:8s} {name:12s} n = {n}, {D} parameters: {times} of processor time",
                flush=True,
            )


def _regressions(D: int) -> dict[str, Callable[..., None]]:
    def by_numpyro(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    found = {"numpyro": by_numpyro}
    try:
        import pyro
        import pyro.distributions as pyro_dist
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)

    def by_pyro(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.sample("w", pyro_dist.Normal(torch.zeros(D, dtype=torch.float64), 1.0).to_event(1))
        pyro.sample("y", pyro_dist.Bernoulli(logits=x @ w), obs=y)

    return found | {"pyro": by_pyro}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sbc", "speed"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=99)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--sources", nargs="+", default=["laplace", "svi", "smc", "nuts"])
    parser.add_argument("--ppl", choices=["numpyro", "pyro"], default="numpyro")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--parameters", type=int, default=20)
    given = parser.parse_args()
    if given.what == "sbc":
        sbc(given.runs, given.models, given.sources, given.ppl, given.ranks)
    else:
        speed(given.rows, given.parameters)


if __name__ == "__main__":
    main()
