"""Ends of a support that another site sets are no ends of what is plausible; numbers that a program
holds in float32 are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.programs import jax_reader
from tests.optional_pyro import module, needs_pyro, pd, pyro, torch

pyro_side = module("gedppl.programs.pyro")

RNG = np.random.default_rng(0)
X, A = RNG.normal(size=(60, 2)), np.arange(60) % 2
COUNTS = RNG.poisson(0.2, 60).astype(float)


def above_another(x, a, y=None):
    lowest = pyro.sample("lowest", pd.Gamma(2.0, 1.0))
    rate = pyro.sample("rate", pd.Pareto(lowest, 2.0))
    pyro.sample("y", pd.Poisson(rate * torch.exp(0.1 * x[:, 0])), obs=y)


def above_another_in_numpyro(x, a, y=None):
    lowest = numpyro.sample("lowest", nd.Gamma(2.0, 1.0))
    rate = numpyro.sample("rate", nd.Pareto(lowest, 2.0))
    numpyro.sample("y", nd.Poisson(rate * jnp.exp(0.1 * x[:, 0])), obs=y)


def above_a_clipped_number(x, a, y=None):
    """The end is 1 at most parameters, and leaves the graph on the way."""
    lowest = pyro.sample("lowest", pd.Gamma(2.0, 1.0))
    rate = pyro.sample("rate", pd.Pareto(lowest.clamp(0.05, 1.0), 2.0))
    pyro.sample("y", pd.Poisson(rate * torch.exp(0.1 * x[:, 0])), obs=y)


def above_what_left_the_graph(x, a, y=None):
    lowest = pyro.sample("lowest", pd.Gamma(2.0, 1.0))
    rate = pyro.sample("rate", pd.Pareto(lowest.detach(), 2.0))
    pyro.sample("y", pd.Poisson(rate * torch.exp(0.1 * x[:, 0])), obs=y)


def above_a_number(x, a, y=None):
    rate = pyro.sample("rate", pd.Pareto(torch.tensor(0.1), 2.0))
    pyro.sample("y", pd.Poisson(rate * torch.exp(0.1 * x[:, 0])), obs=y)


SET_BY_ANOTHER = [
    above_another_in_numpyro,
    *(
        pytest.param(model, marks=needs_pyro)
        for model in (above_another, above_a_clipped_number, above_what_left_the_graph)
    ),
]


def bounds(model: Callable[..., Any]) -> Any:
    found = ged.confidence_set(ged.density_class(model), X, A, COUNTS)
    return found.bounds(ged.mean(0, 100), X[:1], 1)


@pytest.mark.parametrize("model", SET_BY_ANOTHER)
def test_an_end_that_another_site_sets_does_not_cut_the_set(model) -> None:
    """Pyro runs with numbers: the end of one draw from the prior was the end of the set."""
    found = bounds(model)
    assert found.guaranteed
    assert found.lower[0, 0] < COUNTS.mean() < found.upper[0, 0] < 1


@needs_pyro
@pytest.mark.filterwarnings("ignore::gedppl.errors.FitWarning")
def test_without_that_look_one_draw_would_say_what_is_plausible(monkeypatch) -> None:
    monkeypatch.setattr(pyro_side.PyroProgram, "_ranges_of_priors", lambda program: {})
    found = bounds(above_another)
    assert not found.guaranteed or found.lower[0, 0] > COUNTS.mean()


@needs_pyro
def test_an_end_that_is_a_number_is_known() -> None:
    cls = ged.density_class(above_a_number, example=(X, A))
    assert cls.program.ranges["rate"][0] == pytest.approx(0.1)


def narrow(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    half = jnp.exp(w.astype(jnp.float32))
    numpyro.sample("y", nd.Poisson(half[a] * jnp.exp(x[:, 0].astype(jnp.float32))), obs=y)


def narrow_net(x, a, y=None):
    """A fixed layer in float32 below weights that follow it."""
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    hidden = jax.nn.relu(x.astype(jnp.float32) @ jnp.array([[1.0, -0.5], [0.3, 0.7]], jnp.float32))
    numpyro.sample("y", nd.Normal((w.astype(jnp.float32)[a] * hidden).sum(-1), 0.3), obs=y)


@pytest.mark.parametrize("model", [narrow, narrow_net])
def test_parameters_in_float32_are_read(model) -> None:
    cls = ged.density_class(model, example=(X, A))
    assert cls.exactness.startswith("exact")
    theta, seen = np.array([[0.3, -0.4, 0.2, 0.5]])[:, : cls.dim], cls.seen
    predictor = seen.predictor.features(X, A) @ seen.from_theta(theta)[0]
    predictor += seen.predictor.offset(X, A)
    density = cls.density_at(theta[0], X, A)
    assert seen.predictor.link == "identity"  # the rate is a sum of data times exp(w)
    expected = density.args["rate" if model is narrow else "loc"]
    np.testing.assert_allclose(predictor, expected, rtol=1e-5, atol=1e-6)


def test_without_the_programs_own_precision_nothing_would_be_read(monkeypatch) -> None:
    monkeypatch.setattr(jax_reader, "_narrowed", lambda value, kind: value)
    with pytest.raises(TypeError, match="same dtypes"):
        _ = ged.density_class(narrow, example=(X, A)).exactness


def shifted(**said: Any) -> Callable[..., None]:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 0.5))
        steps = [nd.transforms.ExpTransform(), nd.transforms.AffineTransform(1.0, 1.0, **said)]
        numpyro.sample("y", nd.TransformedDistribution(nd.Normal(w * x[:, 0], 0.5), steps), obs=y)

    return model


def test_a_shifted_lognormal_is_refused_with_advice_that_helps() -> None:
    """NumPyro takes its support for the real line, where its log-density is no number below the
    shift; other parameters do not help.
    """
    with pytest.raises(
        ged.errors.NotANumberError, match=r"domain=constraints\.positive"
    ) as refusal:
        ged.density_class(shifted(), example=(X, A))
    assert "AffineTransform(loc, scale, domain=" in str(refusal.value)
    cls = ged.density_class(shifted(domain=nd.constraints.positive), example=(X, A))
    found = ged.confidence_set(cls, X, A, np.full(len(A), 2.0))
    y = ged.expected(lambda y, x, a: y, 0.0, 50.0)
    assert not found.bounds(y, X[:1], 2).guaranteed
