"""Every scalar family with random arguments and its scipy counterpart, for the tests of families
and functionals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from gedppl.density import Density

N = 12  # densities a case


@dataclass(frozen=True)
class Case:
    family: str
    draw: Callable[[np.random.Generator], dict[str, np.ndarray]]
    scipy: Callable[..., Any]
    kind: str

    def density(self, seed: int = 0) -> Density:
        return Density(self.family, self.draw(np.random.default_rng(seed)))

    def reference(self, seed: int = 0) -> Any:
        return self.scipy(**self.draw(np.random.default_rng(seed)))


def _real(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 2, N)


def _pos(rng: np.random.Generator, low: float = 0.3, high: float = 5.0) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), N))


def _unit(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0.03, 0.97, N)


def _interval(rng: np.random.Generator) -> dict[str, np.ndarray]:
    low = _real(rng)
    return {"low": low, "high": low + _pos(rng)}


def _loc_scale(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"loc": _real(rng), "scale": _pos(rng)}


def _truncated(rng: np.random.Generator) -> dict[str, np.ndarray]:
    args = _loc_scale(rng)
    low = args["loc"] + args["scale"] * rng.uniform(-3, 2, N)
    return {**args, "low": low, "high": low + args["scale"] * rng.uniform(0.5, 6, N)}


def _counts(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(1, 40, N).astype(float)


def _categorical(probs: np.ndarray) -> Any:
    class Rows:
        """stats.rv_discrete holds one law at a time."""

        laws = [stats.rv_discrete(values=(np.arange(probs.shape[-1]), row)) for row in probs]  # noqa: RUF012

        def __getattr__(self, name: str) -> Any:
            def call(y: Any = None) -> np.ndarray:
                if y is None:
                    return np.array([getattr(law, name)() for law in self.laws])
                y = np.broadcast_to(y, (*np.shape(y)[:-1], len(self.laws)))
                return np.stack(
                    [getattr(law, name)(y[..., i]) for i, law in enumerate(self.laws)], axis=-1
                )

            return call

    return Rows()


CASES = [
    Case("Normal", _loc_scale, stats.norm, "continuous"),
    Case(
        "LogNormal",
        lambda r: {"loc": r.normal(0, 1, N), "scale": _pos(r, 0.1, 1.2)},
        lambda loc, scale: stats.lognorm(s=scale, scale=np.exp(loc)),
        "continuous",
    ),
    Case("Laplace", _loc_scale, stats.laplace, "continuous"),
    Case("Logistic", _loc_scale, stats.logistic, "continuous"),
    Case("Gumbel", _loc_scale, stats.gumbel_r, "continuous"),
    Case("Cauchy", _loc_scale, stats.cauchy, "continuous"),
    Case("StudentT", lambda r: {"df": _pos(r, 2.3, 40), **_loc_scale(r)}, stats.t, "continuous"),
    Case(
        "Exponential",
        lambda r: {"rate": _pos(r)},
        lambda rate: stats.expon(scale=1 / rate),
        "continuous",
    ),
    Case(
        "Gamma",
        lambda r: {"concentration": _pos(r, 0.2, 60), "rate": _pos(r)},
        lambda concentration, rate: stats.gamma(concentration, scale=1 / rate),
        "continuous",
    ),
    Case(
        "InverseGamma",
        lambda r: {"concentration": _pos(r, 2.5, 30), "rate": _pos(r)},
        lambda concentration, rate: stats.invgamma(concentration, scale=rate),
        "continuous",
    ),
    Case(
        "Weibull",
        lambda r: {"scale": _pos(r), "concentration": _pos(r, 0.5, 6)},
        lambda scale, concentration: stats.weibull_min(concentration, scale=scale),
        "continuous",
    ),
    Case(
        "Pareto",
        lambda r: {"scale": _pos(r), "alpha": _pos(r, 2.5, 9)},
        lambda scale, alpha: stats.pareto(alpha, scale=scale),
        "continuous",
    ),
    Case(
        "HalfNormal",
        lambda r: {"scale": _pos(r)},
        lambda scale: stats.halfnorm(scale=scale),
        "continuous",
    ),
    Case(
        "HalfCauchy",
        lambda r: {"scale": _pos(r)},
        lambda scale: stats.halfcauchy(scale=scale),
        "continuous",
    ),
    Case("Uniform", _interval, lambda low, high: stats.uniform(low, high - low), "continuous"),
    Case(
        "Beta",
        lambda r: {"concentration1": _pos(r, 0.6, 50), "concentration0": _pos(r, 0.6, 50)},
        lambda concentration1, concentration0: stats.beta(concentration1, concentration0),
        "continuous",
    ),
    Case(
        "TruncatedNormal",
        _truncated,
        lambda loc, scale, low, high: stats.truncnorm(
            (low - loc) / scale, (high - loc) / scale, loc, scale
        ),
        "continuous",
    ),
    Case(
        "VonMises",
        lambda r: {"loc": np.zeros(N), "concentration": _pos(r, 0.1, 80)},
        lambda loc, concentration: stats.vonmises(concentration, loc=loc),
        "continuous",
    ),
    Case(
        "Bernoulli", lambda r: {"probs": _unit(r)}, lambda probs: stats.bernoulli(probs), "discrete"
    ),
    Case("Categorical", lambda r: {"probs": r.dirichlet(np.ones(5), N)}, _categorical, "discrete"),
    Case(
        "Binomial",
        lambda r: {"total_count": _counts(r), "probs": _unit(r)},
        lambda total_count, probs: stats.binom(total_count, probs),
        "discrete",
    ),
    Case(
        "BetaBinomial",
        lambda r: {"concentration1": _pos(r), "concentration0": _pos(r), "total_count": _counts(r)},
        lambda concentration1, concentration0, total_count: stats.betabinom(
            total_count, concentration1, concentration0
        ),
        "discrete",
    ),
    Case(
        "Poisson",
        lambda r: {"rate": _pos(r, 0.05, 80)},
        lambda rate: stats.poisson(rate),
        "discrete",
    ),
    Case(
        "NegativeBinomial",
        lambda r: {"total_count": _pos(r, 0.4, 20), "probs": r.uniform(0.05, 0.8, N)},
        lambda total_count, probs: stats.nbinom(total_count, 1 - probs),
        "discrete",
    ),
    Case(
        "Geometric",
        lambda r: {"probs": r.uniform(0.1, 0.95, N)},
        lambda probs: stats.geom(probs, loc=-1),
        "discrete",
    ),
]
