"""Oracles on real programs: against references, across backends, and SVI."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoLaplaceApproximation, AutoNormal
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit

from gedppl.errors import SettingError
from gedppl.learning.fits import WorkingPrior, keep_good
from gedppl.learning.likelihoods import ProgramLikelihood
from gedppl.learning.oracles import (
    auto,
    fit_score_equations,
    form_of,
    maximum_likelihood,
    mle,
)
from gedppl.learning.variational import svi
from gedppl.programs.contract import density_class
from gedppl.rows import Rows

RNG = np.random.default_rng(7)
X = RNG.normal(size=(300, 2))
A = np.zeros(300, int)
ETA = X @ [0.8, -0.5] + 0.3


def linear(x: Any) -> Any:
    return x @ numpyro.param("w", jnp.zeros(2)) + numpyro.param("b", 0.0)


FAMILIES = {
    "Bernoulli": (
        lambda eta: dist.Bernoulli(logits=eta),
        (RNG.random(300) < expit(ETA)).astype(float),
    ),
    "Binomial": (
        lambda eta: dist.Binomial(total_count=7, logits=eta),
        RNG.binomial(7, expit(ETA)).astype(float),
    ),
    "Poisson": (lambda eta: dist.Poisson(jnp.exp(eta)), RNG.poisson(np.exp(ETA)).astype(float)),
    "Exponential": (lambda eta: dist.Exponential(jnp.exp(eta)), RNG.exponential(np.exp(-ETA))),
    "Gamma": (lambda eta: dist.Gamma(2.5, jnp.exp(eta)), RNG.gamma(2.5, np.exp(-ETA))),
    "Normal": (lambda eta: dist.Normal(eta, 0.4), ETA + 0.4 * RNG.normal(size=300)),
}


@cache
def program(family: str) -> tuple[Any, Rows]:
    make, y = FAMILIES[family]

    def model(x: Any, a: Any, y: Any = None) -> None:
        numpyro.sample("y", make(linear(x)), obs=y)

    return density_class(model, example=(X, A)), Rows.of(X, A, y)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("Binomial", "Exponential") else ())
        for name in FAMILIES
    ],
)
def test_features_give_the_same_objective_as_the_program(family: str) -> None:
    """The fast path (features, NumPy) against the slow one (the program): value, gradient,
    curvature, fit.
    """
    cls, rows = program(family)
    fast = form_of(cls).append(rows.x, rows.a, rows.y)
    slow = ProgramLikelihood(cls, rows)
    for theta in RNG.normal(size=(3, 3)) * 0.5:
        for one, other in zip(fast.at(theta), slow.at(theta)):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(
            fast.information(theta), slow.information(theta), rtol=1e-8, atol=1e-8
        )
    fit, general = auto()(cls, rows, prior=None), maximum_likelihood(cls, rows)
    assert fit.ok, fit.status
    assert general.ok, general.status
    np.testing.assert_allclose(fit.theta, general.theta, atol=1e-6)
    assert np.abs(cls.unflatten(fit.theta)["w"] - [0.8, -0.5]).max() < 0.35  # and near the truth
    assert fit.eps_opt_proved
    assert fit.eps_opt < 1e-8


def test_poisson_and_gamma_against_scipy() -> None:
    """Log-likelihoods from scipy.stats and a derivative-free optimiser: nothing shared with the
    library.
    """
    for family, log_p in (
        ("Poisson", lambda eta, y: stats.poisson.logpmf(y, np.exp(eta))),
        ("Gamma", lambda eta, y: stats.gamma.logpdf(y, 2.5, scale=np.exp(-eta))),
    ):
        cls, rows = program(family)
        fit = fit_score_equations(cls, rows)
        values = cls.unflatten(fit.theta)
        best = minimize(
            lambda t, log_p=log_p, rows=rows: -log_p(rows.x @ t[:2] + t[2], rows.y).sum(),
            np.zeros(3),
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000},
        )
        np.testing.assert_allclose(np.append(values["w"], values["b"]), best.x, atol=1e-5)
        assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-7)


def hetero(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.5))
    slope = numpyro.param("slope", 0.0)
    numpyro.sample("y", dist.Normal(x @ w, scale * jnp.exp(slope * x[:, 0])), obs=y)


def hetero_objective(theta: np.ndarray, rows: Rows, working: WorkingPrior | None) -> float:
    """Log joint in (w, log scale, slope), written by hand; Jacobian of the log included."""
    w, log_scale, slope = theta[:2], theta[2], theta[3]
    value = stats.norm.logpdf(rows.y, rows.x @ w, np.exp(log_scale + slope * rows.x[:, 0])).sum()
    if working is not None:
        value += (
            stats.norm.logpdf(w, 0, 2).sum()
            + stats.halfnorm.logpdf(np.exp(log_scale), scale=1.5)
            + log_scale
        )
        value += -0.5 * (slope / 5.0) ** 2
    return float(value)


HETERO_ROWS = Rows.of(X, A, X @ [1.0, -0.4] + 0.6 * np.exp(0.4 * X[:, 0]) * RNG.normal(size=300))


@pytest.fixture(scope="module")
def hetero_class() -> Any:
    return density_class(hetero, example=(X, A))


@pytest.fixture(scope="module")
def point_svi() -> Any:
    """One oracle for several tests, so that its loops are compiled once."""
    return svi("delta", steps=1500)


@pytest.mark.parametrize("with_prior", [True, False])
def test_heteroscedastic_map_and_mle_against_a_hand_written_density(
    hetero_class: Any, with_prior: bool
) -> None:
    cls, rows = hetero_class, HETERO_ROWS
    working = WorkingPrior.weak(cls) if with_prior else None
    fit = maximum_likelihood(cls, rows, prior=working)
    assert fit.ok, fit.status
    values = cls.unflatten(fit.theta)
    ours = np.array([*values["w"], np.log(values["scale"]), values["slope"]])
    best = minimize(
        lambda t: -hetero_objective(t, rows, working),
        np.zeros(4),
        method="BFGS",
        options={"gtol": 1e-4},
    )
    np.testing.assert_allclose(ours, best.x, atol=1e-5)
    assert fit.log_likelihood == pytest.approx(hetero_objective(ours, rows, None), abs=1e-8)


def test_a_segment_is_the_fit_of_those_rows_alone(hetero_class: Any, point_svi: Any) -> None:
    late = np.arange(300) >= 40
    prior = WorkingPrior.weak(hetero_class)
    alone = Rows.of(X[late], A[late], HETERO_ROWS.y[late])
    for oracle in (mle(), point_svi):
        segment = oracle(hetero_class, HETERO_ROWS, weights=late.astype(float), prior=prior)
        np.testing.assert_allclose(
            segment.theta, oracle(hetero_class, alone, prior=prior).theta, atol=1e-4
        )
        assert segment.n == 260


def test_a_growing_history_compiles_once_a_bucket(hetero_class: Any) -> None:
    oracle, fit = mle(), None
    for n in (3, 20, 50, 64, 65, 120, 200, 256, 257, 300):
        fit = oracle(hetero_class, Rows.of(X[:n], A[:n], HETERO_ROWS.y[:n]), start=fit)
        assert fit.ok, (n, fit.status)
    assert {
        hetero_class.program.compilations[name] for name in ("total_grad", "total_hessian")
    } == {3}


def test_bounds_on_the_constrained_scale_are_respected() -> None:
    def model(x: Any, a: Any, y: Any = None) -> None:
        scale = numpyro.param("scale", 0.3, constraint=dist.constraints.positive)
        numpyro.sample("y", dist.Normal(x @ numpyro.param("w", jnp.zeros(2)), scale), obs=y)

    cls = density_class(model, example=(X, A), bounds={"scale": (0.1, 0.5), "w": 5.0})
    y = X @ [1.0, -0.4] + RNG.normal(size=300)  # the true scale, 1, is out of bounds
    fit = maximum_likelihood(cls, Rows.of(X, A, y))
    assert fit.ok, fit.status
    assert fit.at_bounds
    values = cls.unflatten(fit.theta)
    assert values["scale"] == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_allclose(values["w"], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-4)


# SVI ----------------------------------------------------------------------------------------------


def logistic(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


LOGISTIC_ROWS = Rows.of(X, A, FAMILIES["Bernoulli"][1])


def own_guide(x: Any, a: Any, y: Any = None) -> None:
    loc = numpyro.param("loc", jnp.zeros(2))
    scale = numpyro.param("spread", jnp.full(2, 0.1), constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


@pytest.fixture(scope="module")
def cls() -> Any:
    return density_class(logistic, example=(X, A))


@pytest.mark.parametrize(
    "guide", ["delta", pytest.param(AutoDiagonalNormal, marks=pytest.mark.slow), own_guide]
)
def test_svi_agrees_with_the_posterior(cls: Any, guide: Any) -> None:
    oracle = svi(guide, steps=1000, draws=500)
    fit = oracle(cls, LOGISTIC_ROWS)
    assert fit.ok, fit.status
    best = mle()(cls, LOGISTIC_ROWS)
    sd = np.sqrt(np.diag(np.linalg.inv(best.precision)))
    away = np.abs(fit.theta - best.theta) / sd
    assert away.max() < (1e-4 if guide == "delta" else 0.35)
    # our Hessian
    np.testing.assert_allclose(
        fit.precision, best.precision, rtol=1e-4 if guide == "delta" else 0.1
    )
    if guide == "delta":
        assert fit.draws is None
    else:
        assert fit.draws is not None
        assert fit.draws.shape == (500, 2)
        np.testing.assert_allclose(
            fit.draws.mean(axis=0), fit.theta, atol=5 * sd.max() / np.sqrt(500)
        )
        # nearly independent here: mean field is right
        np.testing.assert_allclose(fit.draws.std(axis=0), sd, rtol=0.25)
    again = oracle(cls, LOGISTIC_ROWS)
    np.testing.assert_array_equal(again.theta, fit.theta)  # same seed and data, same fit


def test_svi_compiles_once_a_bucket_starts_warm_and_knows_when_it_stopped_too_early(
    cls: Any,
) -> None:
    oracle = svi("normal", steps=600, refit_steps=200)
    fit = None
    for n in (10, 40, 64, 65, 90, 130, 180, 256):
        fit = oracle(cls, Rows.of(X[:n], A[:n], LOGISTIC_ROWS.y[:n]), start=fit)
        assert fit.ok, fit.status
        assert ("600 steps" in fit.status) == (n == 10)
    assert fit is not None
    assert fit.draws is not None
    best = mle()(cls, Rows.of(X[:256], A[:256], LOGISTIC_ROWS.y[:256]))
    sd = np.sqrt(np.diag(np.linalg.inv(best.precision)))
    assert np.max(np.abs(fit.theta - best.theta) / sd) < 0.35
    np.testing.assert_allclose(fit.draws.std(axis=0), sd, rtol=0.25)

    some = Rows.of(X[:250], A[:250], LOGISTIC_ROWS.y[:250])
    early = replace(oracle, solve=replace(oracle.solve, steps=3))(cls, some)
    assert not early.ok
    assert "not converged" in early.status
    opposite = oracle(cls, Rows.of(some.x, some.a, 1 - some.y))
    again = replace(oracle, solve=replace(oracle.solve, refit_steps=3))(cls, some, start=opposite)
    assert again.ok
    assert "600 steps" in again.status  # the warm start could not follow, so it began afresh
    assert oracle.solve.runner(cls).compilations == 2


def test_a_point_guide_of_few_rows_is_believed(hetero_class: Any, point_svi: Any) -> None:
    """AutoDelta leaves out the Jacobian of `scale`: with few rows its mode is off ours by a part
    of a standard deviation.
    """
    fit = point_svi(hetero_class, Rows.of(X[:10], A[:10], HETERO_ROWS.y[:10]))
    assert fit.ok, fit.status
    best = mle()(hetero_class, Rows.of(X[:10], A[:10], HETERO_ROWS.y[:10]))
    away = fit.theta - best.theta
    # a mode of its own, not a failure
    assert 0.01 < 0.5 * away @ best.precision @ away < hetero_class.dim / 8


def test_svi_fits_param_sites_under_the_working_prior(hetero_class: Any, point_svi: Any) -> None:
    # strong enough to be seen
    prior = WorkingPrior(np.zeros(4), np.where(hetero_class.prior_free, 50.0, 0.0))
    fit, weak = (point_svi(hetero_class, HETERO_ROWS, prior=p) for p in (prior, "weak"))
    slope, free_slope = (hetero_class.unflatten(f.theta)["slope"] for f in (fit, weak))
    expected = hetero_class.unflatten(
        maximum_likelihood(hetero_class, HETERO_ROWS, prior=prior).theta
    )["slope"]
    assert slope == pytest.approx(expected, abs=5e-3)
    assert abs(free_slope - slope) > 0.02


@pytest.mark.slow  # the quick version, without a PPL, is in test_oracles.py
def test_svi_of_nan_is_survived() -> None:
    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, jnp.sqrt(x[:, 0] + 1.0)), obs=y)

    x = np.abs(X)
    cls = density_class(model, example=(x, A))
    oracle = svi("delta", steps=300)
    good = oracle(cls, Rows.of(x[:50], A[:50], X[:50, 0]))
    assert good.ok
    bad_x = x[:51].copy()
    bad_x[50, 0] = -2.0  # the scale is the root of a negative number there
    rows = Rows.of(bad_x, A[:51], X[:51, 0])
    for bad, message in (
        (oracle(cls, rows, start=good), "ELBO is nan"),
        (
            svi("delta", steps=300)(cls, rows),
            "the model broke off: Normal distribution got invalid scale",
        ),
    ):
        assert not bad.ok
        assert message in bad.status
        assert keep_good(bad, good).theta is good.theta


def test_a_model_without_latents_is_plain_maximum_likelihood_by_adam() -> None:
    cls, rows = program("Bernoulli")
    fit = svi("normal", steps=1500)(cls, rows)
    np.testing.assert_allclose(fit.theta, auto()(cls, rows).theta, atol=1e-4)
    assert fit.draws is None


def test_svi_settings_are_checked(cls: Any) -> None:
    for call, message in (
        (lambda: svi("laplace"), r"guide must be one of \('delta', 'normal'"),
        (lambda: svi(steps=0), "steps must be a whole number >= 1"),
        (lambda: svi(learning_rate=-1.0), "learning_rate must be a positive number"),
        (
            lambda: svi(AutoNormal(logistic))(cls, LOGISTIC_ROWS),
            r"class of one of NumPyro's autoguides \(not an instance",
        ),
    ):
        with pytest.raises(SettingError, match=message):
            call()


@pytest.mark.slow  # NumPyro's own guide takes seconds to compile
def test_a_reused_laplace_guide_has_the_wrong_spread_and_ours_has_not() -> None:
    """The negative control: NumPyro's AutoLaplaceApproximation keeps the Hessian of the first
    data it saw.
    """

    def model(x: Any, a: Any, y: Any = None) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(mu, 1.0).expand([x.shape[0]]), obs=y)

    y = np.random.default_rng(0).normal(size=60)
    x, a = np.zeros((60, 1)), np.zeros(60, int)
    truth = {n: (n + 0.01) ** -0.5 for n in (3, 60)}
    with jax.enable_x64(True):
        guide = AutoLaplaceApproximation(model)
        engine = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
        theirs = {}
        for n in (3, 60):
            result = engine.run(jax.random.key(0), 300, x[:n], a[:n], y[:n], progress_bar=False)
            theirs[n] = float(guide.get_posterior(result.params).covariance_matrix[0, 0]) ** 0.5
    cls = density_class(model, example=(x, a))
    oracle, fit, ours = svi("delta", steps=500), None, {}
    for n in (3, 60):
        fit = oracle(cls, Rows.of(x[:n], a[:n], y[:n]), start=fit)
        ours[n] = float(fit.precision[0, 0]) ** -0.5
    assert ours == pytest.approx(truth, rel=1e-6)
    assert theirs[3] == pytest.approx(truth[3], rel=1e-3)
    assert theirs[60] > 4 * truth[60]
