"""Oracles on Pyro programs: the same answers as NumPyro's, and nothing left behind in Pyro."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as ndist
import pytest

torch = pytest.importorskip("torch")
pyro = pytest.importorskip("pyro")

import pyro.distributions as dist  # noqa: E402
from pyro.infer.autoguide import AutoNormal  # noqa: E402
from pyro.nn import PyroModule, PyroParam, PyroSample  # noqa: E402

from gedppl.errors import SettingError, SiteClashError  # noqa: E402
from gedppl.learning.fits import WorkingPrior  # noqa: E402
from gedppl.learning.oracles import auto, mle  # noqa: E402
from gedppl.learning.variational import svi  # noqa: E402
from gedppl.programs.contract import density_class  # noqa: E402
from gedppl.programs.torch_graphs import record  # noqa: E402
from gedppl.rows import Rows  # noqa: E402

# torch itself, when forward-mode differentiation is first used
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)

RNG = np.random.default_rng(11)
X, A = RNG.normal(size=(120, 2)), np.zeros(120, int)
ROWS = Rows.of(X, A, X @ [1.0, -0.4] + 0.6 * np.exp(0.4 * X[:, 0]) * RNG.normal(size=120))
COUNTS = Rows.of(X, A, RNG.poisson(np.exp(X @ [0.5, -0.3])).astype(float))


def hetero(x: Any, a: Any, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(torch.tensor(1.5)))
    slope = pyro.param("slope", torch.tensor(0.0))
    with pyro.plate("rows", x.shape[0]):
        pyro.sample("y", dist.Normal(x @ w, scale * torch.exp(slope * x[:, 0])), obs=y)


def hetero_numpyro(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", ndist.Normal(0.0, 2.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", ndist.HalfNormal(1.5))
    slope = numpyro.param("slope", 0.0)
    numpyro.sample("y", ndist.Normal(x @ w, scale * jnp.exp(slope * x[:, 0])), obs=y)


def poisson(x: Any, a: Any, y: Any = None) -> None:
    pyro.sample("y", dist.Poisson(torch.exp(x @ pyro.param("w", torch.zeros(2)))), obs=y)


def poisson_numpyro(x: Any, a: Any, y: Any = None) -> None:
    numpyro.sample("y", ndist.Poisson(jnp.exp(x @ numpyro.param("w", jnp.zeros(2)))), obs=y)


@pytest.fixture(scope="module")
def cls() -> Any:
    return density_class(hetero, example=(X, A))


@pytest.mark.parametrize(
    ("here", "there", "rows"),
    [(hetero, hetero_numpyro, ROWS), (poisson, poisson_numpyro, COUNTS)],
    ids=["hetero", "poisson"],
)
def test_both_backends_give_the_same_fit(here: Any, there: Any, rows: Rows) -> None:
    one, other = (density_class(model, example=(X, A)) for model in (here, there))
    fits = [oracle(c, rows) for c in (one, other) for oracle in (auto(), mle())]
    for fit in fits:
        assert fit.ok, fit.status
        np.testing.assert_allclose(fit.theta, fits[0].theta, atol=1e-6)
        np.testing.assert_allclose(fit.precision, fits[0].precision, rtol=1e-5, atol=1e-5)
        assert fit.log_likelihood == pytest.approx(fits[0].log_likelihood, abs=1e-8)


def test_point_svi_is_the_map_with_weights_priors_and_warm_start(cls: Any) -> None:
    pyro.clear_param_store()
    pyro.param("somebody_elses", torch.tensor(3.0))
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    weights = (np.arange(120) >= 30).astype(float)
    prior = WorkingPrior(np.zeros(4), np.where(cls.prior_free, 20.0, 0.0))
    oracle = svi("delta", steps=400, refit_steps=30)
    first = oracle(cls, ROWS, weights=weights, prior=prior)
    best = mle()(cls, ROWS, weights=weights, prior=prior)
    assert first.ok, first.status
    values, expected = cls.unflatten(first.theta), cls.unflatten(best.theta)
    for name in ("w", "slope"):
        np.testing.assert_allclose(values[name], expected[name], atol=5e-3)
    # MAP in the constrained space, without the log's Jacobian: a hundredth smaller here
    assert values["scale"] == pytest.approx(expected["scale"], rel=0.02)
    again = oracle(cls, ROWS, weights=weights, prior=prior, start=first)
    assert again.ok
    assert "30 steps" in again.status
    # Adam starts again with its full step
    np.testing.assert_allclose(again.theta, first.theta, atol=0.02)
    assert list(pyro.get_param_store()) == ["somebody_elses"]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == dtype
    pyro.clear_param_store()


def own_guide(x: Any, a: Any, y: Any = None) -> None:
    loc = pyro.param("loc", torch.zeros(2))
    spread = pyro.param("spread", torch.full((2,), 0.1), constraint=dist.constraints.positive)
    pyro.sample("w", dist.Normal(loc, spread).to_event(1))
    pyro.sample("scale", dist.LogNormal(pyro.param("centre", torch.tensor(0.0)), torch.tensor(0.1)))


@pytest.mark.parametrize(
    "guide", ["normal", AutoNormal, pytest.param(own_guide, marks=pytest.mark.slow)]
)
def test_guides_with_spread_give_draws(cls: Any, guide: Any) -> None:
    fit = svi(guide, steps=300, particles=1, draws=64)(cls, ROWS)
    assert fit.ok, fit.status
    assert fit.draws is not None
    assert fit.draws.shape == (64, 4)
    assert (fit.draws[:, ~cls.prior_free].std(axis=0) > 0.01).all()
    # `param` sites have no posterior
    assert (fit.draws[:, cls.prior_free].std(axis=0) < 1e-12).all()
    best = mle()(cls, ROWS)
    sd = np.sqrt(np.diag(np.linalg.inv(best.precision)))
    assert np.max(np.abs(fit.theta - best.theta) / sd) < 1.0
    # ours, not the guide's
    np.testing.assert_allclose(fit.information, -cls.total_hessian(fit.theta, ROWS))


def test_the_normal_guide_finds_the_spread_of_a_posterior_that_is_normal() -> None:
    def model(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        pyro.sample("y", dist.Normal(x @ w, torch.tensor(0.5)), obs=y)

    linear = density_class(model, example=(X, A))
    oracle = svi("normal", steps=1000, draws=4000)
    fit = oracle(linear, ROWS)
    precision = X.T @ X / 0.25 + np.eye(2) / 4
    sd = np.diag(precision) ** -0.5  # of independent Normals nearest to it in the ELBO's sense
    assert oracle.solve.runner(linear).recorded
    np.testing.assert_allclose(fit.draws.std(axis=0), sd, rtol=0.06)
    np.testing.assert_allclose(
        fit.theta, np.linalg.solve(precision, X.T @ ROWS.y / 0.25), atol=0.3 * sd.min()
    )


def by_pyro_module(net: Any) -> Any:
    def model(x: Any, a: Any, y: Any = None) -> None:
        pyro.sample("y", dist.Normal(pyro.module("net", net)(x)[:, 0], torch.tensor(0.5)), obs=y)

    return model


def by_its_own_sites(net: Any) -> Any:
    def model(x: Any, a: Any, y: Any = None) -> None:
        pyro.sample("y", dist.Normal(net(x)[:, 0], torch.tensor(0.5)), obs=y)

    return model


def bayesian_weight() -> Any:
    net = PyroModule[torch.nn.Linear](2, 1)
    net.weight = PyroSample(dist.Normal(0.0, 2.0).expand([1, 2]).to_event(2))
    return net


class Scaled(PyroModule):
    """A mean and a positive scale, both parameters of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.w = PyroParam(torch.zeros(2))
        self.scale = PyroParam(torch.tensor(1.0), constraint=dist.constraints.positive)

    def forward(self, x: Any) -> Any:
        return x @ self.w, self.scale


def with_a_scale(net: Any) -> Any:
    def model(x: Any, a: Any, y: Any = None) -> None:
        pyro.sample("y", dist.Normal(*net(x)), obs=y)

    return model


@pytest.mark.parametrize(
    ("make", "program", "guide"),
    [
        (lambda: torch.nn.Linear(2, 1), by_pyro_module, "normal"),
        (lambda: PyroModule[torch.nn.Linear](2, 1), by_its_own_sites, "normal"),
        (Scaled, with_a_scale, "delta"),
        (bayesian_weight, by_its_own_sites, "normal"),
        (bayesian_weight, by_its_own_sites, AutoNormal),  # Pyro's own loop
    ],
    ids=["pyro.module", "PyroModule", "PyroParam", "PyroSample", "PyroSample, autoguide"],
)
def test_a_module_is_fitted_and_not_written_to(make: Any, program: Any, guide: Any) -> None:
    torch.manual_seed(0)
    net = make()
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    cls = density_class(program(net), example=(X, A))
    fit = svi(guide, steps=400, particles=2, draws=16)(cls, ROWS)
    best = mle()(cls, ROWS)
    assert fit.ok, fit.status
    sd = np.sqrt(np.diag(np.linalg.inv(best.precision)))
    # a sample site's median is found with the guide's own noise
    close = np.where(cls.prior_free, 0.02, 0.5)
    assert (np.abs(fit.theta - best.theta) / sd < close).all()
    assert before
    for name, value in net.named_parameters():
        assert torch.equal(value, before[name])


def test_a_program_that_decides_by_its_values_is_run_itself() -> None:
    def model(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.param("w", torch.zeros(2))
        wide = 2.0 if w.detach().abs().sum().item() > 0.5 else 1.0
        pyro.sample("y", dist.Normal(x @ w, torch.tensor(wide)), obs=y)

    cls = density_class(model, example=(X, A))
    oracle = svi("delta", steps=200)
    assert oracle(cls, ROWS, prior=None).ok
    assert not oracle.solve.runner(cls).recorded


def test_a_graph_is_used_only_if_it_says_the_same_elsewhere() -> None:
    calls = []

    def changes(theta: Any) -> Any:  # the recorder sees the first call only
        calls.append(1)
        return theta.sum(1) * len(calls), theta

    assert (
        record(lambda theta: (theta.sum(1), theta), torch.zeros(2, 3, dtype=torch.float64))
        is not None
    )
    assert record(changes, torch.ones(2, 3, dtype=torch.float64)) is None


def test_discrete_row_latents_are_summed_out() -> None:
    def model(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.param("w", torch.tensor([0.5, 0.0]))
        with pyro.plate("rows", x.shape[0]):
            kind = pyro.sample(
                "kind", dist.Bernoulli(torch.tensor(0.3)), infer={"enumerate": "parallel"}
            )
            pyro.sample("y", dist.Normal(x @ w, 0.5 + kind), obs=y)

    cls = density_class(model, example=(X, A))
    fit = svi("delta", steps=400)(cls, ROWS)
    assert fit.ok, fit.status
    np.testing.assert_allclose(fit.theta, mle()(cls, ROWS).theta, atol=2e-3)
    # and beside them a latent that all rows share, under Pyro's guide
    mixed = density_class(mixed_latents, example=(X, A))
    guided, best = svi(AutoNormal, steps=400)(mixed, ROWS), mle()(mixed, ROWS)
    assert guided.ok, guided.status
    np.testing.assert_allclose(
        guided.theta, best.theta, atol=0.5 * np.diag(best.precision).min() ** -0.5
    )


def mixed_latents(x: Any, a: Any, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with pyro.plate("rows", x.shape[0]):
        kind = pyro.sample(
            "kind", dist.Bernoulli(torch.tensor(0.3)), infer={"enumerate": "parallel"}
        )
        pyro.sample("y", dist.Normal(x @ w, 0.5 + kind), obs=y)


def test_a_module_registered_twice_is_refused() -> None:
    net = PyroModule[torch.nn.Linear](2, 1)

    def model(x: Any, a: Any, y: Any = None) -> None:
        pyro.module("net", net)
        pyro.sample("y", dist.Normal(net(x)[:, 0], torch.tensor(0.5)), obs=y)

    with pytest.raises(SiteClashError, match="registered twice"):
        density_class(model, example=(X, A))


def test_an_autoguide_instance_is_refused(cls: Any) -> None:
    with pytest.raises(SettingError, match=r"class of one of Pyro.s autoguides \(not an instance"):
        svi(AutoNormal(hetero))(cls, ROWS)
