"""Exactness is proved by the object itself: what a program does decides, never what it is called."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pyro
import pyro.distributions as pd
import pytest
import scipy.stats
import torch

from gedppl.backends.affine import Level
from gedppl.backends.torch_affine import levels as torch_levels
from gedppl.classes import density_class

RNG = np.random.default_rng(3)
X, A = RNG.normal(size=(6, 3)), np.array([0, 1, 0, 1, 0, 1])


# writes through views (Pyro) -------------------------------------------------------------------------------------------


def written_coefficient(x, a, y=None):
    t = pyro.param("t", torch.zeros(3))
    w = t.clone()
    w[0] = t[1] * t[2]
    pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)


def written_scale(x, a, y=None):
    t = pyro.param("t", torch.zeros(3))
    s = torch.ones(2)
    s[1] = torch.exp(t[0])
    pyro.sample("y", pd.Normal(x @ t, s[a]), obs=y)


def written_through_a_view_of_a_view(x, a, y=None):
    t = pyro.param("t", torch.zeros(3))
    w = t.clone()
    w.view(3, 1)[1:].mul_(t[0])
    pyro.sample("y", pd.Poisson(torch.exp(x @ w)), obs=y)


@pytest.mark.parametrize("model", [written_coefficient, written_scale, written_through_a_view_of_a_view])
def test_a_write_through_a_view_is_part_of_what_the_program_does(model) -> None:
    """By names of values alone these look affine in t with a fixed scale: eta = 0 where the first program gives 6."""
    cls = density_class(model, example=(X, A))
    assert cls.predictor is None
    theta = np.array([1.0, 2.0, 3.0])
    if model is written_coefficient:
        expected = scipy.stats.norm.logpdf(np.ones(6), X @ [6.0, 2.0, 3.0], 1.0)
        np.testing.assert_allclose(cls.log_likelihood(theta, X, A, np.ones(6)), expected, rtol=1e-12)


def test_a_write_that_stays_affine_is_proved_and_right() -> None:
    def model(x, a, y=None):
        t = pyro.param("t", torch.zeros(3))
        w = torch.zeros(3)
        w[1:] = 2.0 * t[1:]
        pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    assert cls.predictor is not None
    np.testing.assert_allclose(cls.predictor.features(X, A), X * [0.0, 2.0, 2.0], atol=1e-15)


def _rounded(t: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros(3, dtype=torch.int64)
    whole[1:] = t[1:]
    return whole.double()


def _narrowed(t: torch.Tensor) -> torch.Tensor:
    short = torch.zeros(3, dtype=torch.float32)
    short[1:] = t[1:]
    return short.double()


WRITES = {
    "into whole numbers": (_rounded, Level.OTHER),
    "into a shorter type": (_narrowed, Level.OTHER),
    "of a constant over theta": (lambda t: t.clone().fill_(2.0), Level.FREE),
    "of zeros in theta's shape": (lambda t: torch.zeros_like(t), Level.FREE),
    "at places": (lambda t: torch.zeros(3, dtype=t.dtype).index_put((torch.tensor([0, 2]),), t[:2]), Level.AFFINE),
}


@pytest.mark.parametrize(("function", "level"), WRITES.values(), ids=WRITES)
def test_levels_of_what_is_written(function, level) -> None:
    assert torch_levels(lambda t: [function(t)], torch.zeros(3, dtype=torch.float64)) == [level]


def test_a_program_that_writes_into_its_parameter_does_not_write_into_theta() -> None:
    def model(x, a, y=None):
        w = pyro.sample("w", pd.Normal(torch.zeros(3), 1.0).to_event(1))
        w[0] = 5.0
        pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    theta = np.array([1.0, 2.0, 3.0])
    expected = scipy.stats.norm.logpdf(np.ones(6), X @ [5.0, 2.0, 3.0], 1.0)
    for _ in range(2):
        np.testing.assert_allclose(cls.log_likelihood(theta, X, A, np.ones(6)), expected, rtol=1e-12)
    np.testing.assert_array_equal(cls.unflatten(theta)["w"], theta)
    assert cls.log_prior(theta) == pytest.approx(scipy.stats.norm.logpdf(theta).sum())


def test_a_write_into_narrow_numbers_arrives() -> None:
    def model(x, a, y=None):
        w = torch.zeros(3, dtype=torch.float32)
        w[0] = pyro.param("t", torch.zeros(1))[0]
        w += 1.0
        pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    expected = scipy.stats.norm.logpdf(np.ones(6), X @ [3.0, 1.0, 1.0], 1.0)
    np.testing.assert_allclose(cls.log_likelihood(np.array([2.0]), X, A, np.ones(6)), expected, rtol=1e-6)
    assert cls.predictor is None
