"""Units are the user's: outcomes with noise, priors and ranges, or contexts with coefficients,
times 10^k change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged

QUICK, ALL = (-9, 12), tuple(range(-9, 13))
N = 40
RNG = np.random.default_rng(12)
X = np.column_stack([np.ones(N), RNG.normal(size=N)])
A = np.arange(N) % 2
NOISE, UNIFORM = RNG.normal(size=N), RNG.uniform(size=N)
ETA = 0.4 * A + 0.5 * X[:, 1]
AT = np.array([[1.0, 0.3], [1.0, -1.2]])

Asked = tuple[Any, float]  # a functional and its unit
# model, contexts, outcomes, what is asked of one set
Case = tuple[Callable[..., Any], np.ndarray, np.ndarray, list[Asked]]


def student_prior(u: float) -> Case:
    """The general learner's exact route: outcomes, noise, prior and range in units of u."""

    def model(x, a, y=None):
        w = numpyro.sample("w", nd.StudentT(5.0, 0.0, u).expand([2, 2]).to_event(2))
        numpyro.sample("y", nd.Normal((w[a] * x).sum(-1), 0.5 * u), obs=y)

    asked = [
        (ged.mean(-9 * u, 9 * u), u),
        (ged.second_moment(99 * u**2), u**2),
        (ged.probability(above=0.2 * u, below=0.9 * u), 1.0),
    ]
    return model, X, u * (ETA + 0.5 * NOISE), asked


def waiting(u: float) -> Case:
    """Exponential times in units of u: the unit is an offset of the log rate."""

    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
        numpyro.sample("y", nd.Exponential(jnp.exp((w[a] * x).sum(-1)) / u), obs=y)

    return model, X, -u * np.log(UNIFORM) * np.exp(-ETA), [(ged.cvar(0.8, 0, 99 * u), u)]


def logistic_contexts(u: float) -> Case:
    """One column in units of u, its coefficient's prior in units of 1/u, the other column as it
    is.
    """

    def model(x, a, y=None):
        w = numpyro.sample(
            "w", nd.Normal(0.0, jnp.array([1.0, 1.0 / u])).expand([2, 2]).to_event(2)
        )
        numpyro.sample("y", nd.Bernoulli(logits=(w[a] * x).sum(-1)), obs=y)

    return (
        model,
        X * [1.0, u],
        (1 / (1 + np.exp(-ETA)) > UNIFORM).astype(float),
        [(ged.mean(0, 1), 1.0)],
    )


def ordered_contexts(u: float) -> Case:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, jnp.array([1.0, 1.0 / u])).to_event(1))
        cuts = numpyro.sample("c", nd.Normal(jnp.array([-1.0, 1.0]), 0.3).to_event(1))
        numpyro.sample("y", nd.OrderedLogistic(x @ w, cuts), obs=y)

    y = np.digitize(ETA + np.log(UNIFORM / (1 - UNIFORM)), [-1.0, 1.0]).astype(float)
    return model, X * [1.0, u], y, [(ged.probability(above=0.5), 1.0)]


def unknown_noise(u: float) -> Case:
    """By ascent: the noise is a parameter, its prior in units of u."""

    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, u).expand([2, 2]).to_event(2))
        s = numpyro.sample("s", nd.LogNormal(jnp.log(0.5 * u), 0.5))
        numpyro.sample("y", nd.Normal((w[a] * x).sum(-1), s), obs=y)

    return model, X, u * (ETA + 0.5 * NOISE), [(ged.quantile(0.9, -9 * u, 9 * u), u)]


CASES = [student_prior, waiting, logistic_contexts, ordered_contexts, unknown_noise]


def told(case: Callable[[float], Case], u: float) -> tuple[np.ndarray, list[tuple[bool, str]]]:
    """Bounds in the case's own units, (functionals, 2, n, K), and what is claimed of them."""
    model, x, y, asked = case(u)
    at = AT * (x[0] / X[0] if np.allclose(x[0] / X[0], x[1] / X[1]) else 1.0)
    plausible = ged.confidence_set(ged.density_class(model, example=(x, A)), x, A, y, growth=1.6)
    found = [plausible.bounds(functional, at, 2) for functional, _ in asked]
    bounds = np.array([np.stack([b.lower, b.upper]) / unit for b, (_, unit) in zip(found, asked)])
    return bounds, [(b.guaranteed, b.method) for b in found]


def check(case: Callable[[float], Case], powers: tuple[int, ...]) -> None:
    bounds, claims = told(case, 1.0)
    assert np.all(bounds[:, 0] < bounds[:, 1])
    for k in powers:
        other, said = told(case, 10.0**k)
        np.testing.assert_allclose(other, bounds, rtol=1e-6, atol=1e-6, err_msg=f"times 10^{k}")
        assert said == claims


@pytest.mark.parametrize("case", [waiting, ordered_contexts, unknown_noise])
def test_no_unit_changes_a_bound_or_a_claim(case) -> None:
    check(case, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_unit_of_twenty_two_changes_a_bound_or_a_claim(case) -> None:
    check(case, ALL)
