"""One contract for every program in both PPLs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from gedppl.programs.contract import density_class
from gedppl.rows import Rows
from tests.optional_pyro import HAS_PYRO, PPLS, needs_pyro
from tests.programs import DX, PROGRAMS, K, Program

N, M = 6, 3
BOTH = ("numpyro", "pyro")
HERE = BOTH if HAS_PYRO else BOTH[:1]
# compiling is slow: the default run takes 15 programs through the contract, one of each kind of
# structure, and four of them through the derivatives
LATER = ("gamma_poisson", "lognormal", "weibull", "independent", "exponential", "binomial", "gamma")
LATER += ("negative_binomial", "two_hidden_states")
QUICK = ("linear", "logistic", "hierarchical", "network")
ALL = [pytest.param(p, marks=pytest.mark.slow) if p.name in LATER else p for p in PROGRAMS]
WITH_DERIVATIVES = [
    p if p.name in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PROGRAMS
]


@dataclass(frozen=True)
class MeanOf:
    """The plainest functional: the first coordinate of the density's mean."""

    def __call__(self, density: Any, x: Any = None, a: Any = None) -> Any:
        mean = density.mean
        return mean[..., 0] if density.event_shape else mean

    def is_formula(self, density: Any) -> bool:
        return False


@cache
def case(program: Program) -> dict[str, Any]:
    """Classes of both PPLs, and rows and settings shared by both; built once a session, as
    compiling is slow.
    """
    rng = np.random.default_rng(7)
    x, a, y = rng.normal(size=(N, DX)), np.arange(N) % K, program.outcomes(rng, N)
    classes = {
        backend: density_class(getattr(program, backend), example=(x, a)) for backend in HERE
    }
    noise = 0.5 * rng.normal(size=(M, classes["numpyro"].dim))
    if program.name == "moving_edge":
        noise = np.abs(noise)  # keep every outcome below the edge
    theta = classes["numpyro"].initial + noise
    # the same parameters by name: Pyro's flat vector may order the sites otherwise
    params = classes["numpyro"].unflatten(theta)
    renamed = {program.rename.get(name, name): value for name, value in params.items()}
    named = dict(zip(HERE, (params, renamed)))
    theta = {
        backend: theta if backend == "numpyro" else classes[backend].flatten(named[backend])
        for backend in HERE
    }
    return {
        "x": x,
        "a": a,
        "y": y,
        "rows": Rows.of(x, a, y),
        "classes": classes,
        "theta": theta,
        "params": named,
    }


def order(c: dict[str, Any], program: Program) -> np.ndarray:
    """Pyro's flat coordinate for each of NumPyro's."""
    starts = {site.name: site for site in c["classes"]["pyro"].sites}
    pick = [
        starts[program.rename.get(site.name, site.name)] for site in c["classes"]["numpyro"].sites
    ]
    return np.concatenate([np.arange(site.start, site.stop) for site in pick])


def close(left: Any, right: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


@needs_pyro
@pytest.mark.parametrize("program", ALL, ids=repr)
def test_both_ppls_agree(program: Program) -> None:
    c = case(program)
    n, p = c["classes"]["numpyro"], c["classes"]["pyro"]
    same = order(c, program)
    assert (n.backend, p.backend) == BOTH
    assert n.dim == p.dim
    assert (n.prior_free == p.prior_free[same]).all()
    rows = c["x"], c["a"], c["y"]
    close(
        n.log_likelihood(c["theta"]["numpyro"], *rows), p.log_likelihood(c["theta"]["pyro"], *rows)
    )
    close(n.log_prior(c["theta"]["numpyro"]), p.log_prior(c["theta"]["pyro"]))


@pytest.mark.parametrize("backend", PPLS)
@pytest.mark.parametrize("program", ALL, ids=repr)
def test_contract(program: Program, backend: str) -> None:
    c = case(program)
    cls, theta, x, a, y = c["classes"][backend], c["theta"][backend], c["x"], c["a"], c["y"]
    assert cls.initial.shape == (cls.dim,)
    assert np.isfinite(cls.initial).all()
    logs = cls.log_likelihood(theta, x, a, y)
    assert logs.shape == (M, N)
    assert logs.dtype == np.float64
    assert np.ptp(logs, axis=0).min() > 0  # the parameters do reach the density
    np.testing.assert_allclose(cls.log_likelihood(theta[1], x, a, y), logs[1], rtol=1e-12)
    # the PPL's own log_prob against the family's formula on the lowered arguments
    density = cls.density(c["params"][backend], x, a)
    assert density.batch_shape == (M, N)
    close(density.log_prob(y), logs)
    np.testing.assert_allclose(cls.flatten(cls.unflatten(theta)), theta, atol=1e-8)
    assert cls.inside(theta).all()
    draws = cls.draw_prior(4, seed=3)
    assert draws.shape == (4, cls.dim)
    np.testing.assert_array_equal(draws, cls.draw_prior(4, seed=3))
    assert np.isfinite(cls.log_prior(draws)).all()


@pytest.mark.parametrize("backend", PPLS)
@pytest.mark.parametrize("program", WITH_DERIVATIVES, ids=repr)
def test_derivatives(program: Program, backend: str) -> None:
    c = case(program)
    cls, theta, x, a, y, rows = (
        c["classes"][backend],
        c["theta"][backend],
        c["x"],
        c["a"],
        c["y"],
        c["rows"],
    )
    D = cls.dim
    logs = cls.log_likelihood(theta, x, a, y)
    weights = np.linspace(0.0, 2.0, N)
    value, gradient = cls.total_grad(theta, rows, weights)
    np.testing.assert_allclose(value, logs @ weights, rtol=1e-10)
    np.testing.assert_allclose(cls.total(theta, rows, weights), value, rtol=1e-12)
    score = cls.score(theta[0], x, a, y)
    assert score.shape == (N, D)
    np.testing.assert_allclose(weights @ score, gradient[0], rtol=1e-9, atol=1e-10)
    information = cls.information(theta[0], x, a, y)
    np.testing.assert_allclose(information, -cls.total_hessian(theta[0], rows), atol=1e-9)
    pick = np.arange(N) % M
    means, slopes = cls.values_grad(MeanOf(), theta[pick], x, a)
    np.testing.assert_allclose(
        means, cls.values(MeanOf(), theta, x, a)[pick, np.arange(N)], rtol=1e-10
    )

    step = 1e-6 * np.cos(np.arange(D))
    beside = np.stack([theta[0] + step, theta[0] - step, theta[0]])
    near = cls.log_likelihood(beside, x, a, y)
    np.testing.assert_allclose(score @ step, (near[0] - near[1]) / 2, rtol=1e-4, atol=1e-11)
    gradients = cls.total_grad(beside, rows)[1]
    np.testing.assert_allclose(
        -information @ step, (gradients[0] - gradients[1]) / 2, rtol=1e-4, atol=1e-10
    )
    up, down = (
        cls.values(MeanOf(), theta + sign * step, x, a)[pick, np.arange(N)] for sign in (1, -1)
    )
    np.testing.assert_allclose(slopes @ step, (up - down) / 2, rtol=1e-4, atol=1e-11)


@needs_pyro
@pytest.mark.parametrize("program", WITH_DERIVATIVES, ids=repr)
def test_derivatives_agree_between_ppls(program: Program) -> None:
    c = case(program)
    n, p = c["classes"]["numpyro"], c["classes"]["pyro"]
    tn, tp, rows = c["theta"]["numpyro"], c["theta"]["pyro"], (c["x"], c["a"], c["y"])
    same = order(c, program)
    close(n.score(tn[0], *rows), p.score(tp[0], *rows)[:, same])
    # second derivatives of the gamma function differ by 1e-8 between the libraries
    close(
        n.total_hessian(tn[0], c["rows"]),
        p.total_hessian(tp[0], c["rows"])[np.ix_(same, same)],
        1e-7,
    )
    close(n.values(MeanOf(), tn, *rows[:2]), p.values(MeanOf(), tp, *rows[:2]))
    (grad_n, hess_n), (grad_p, hess_p) = (
        n.log_prior_grad_hessian(tn[0]),
        p.log_prior_grad_hessian(tp[0]),
    )
    close(grad_n, grad_p[same])
    close(hess_n, hess_p[np.ix_(same, same)], 1e-7)


@pytest.mark.parametrize("backend", PPLS)
@pytest.mark.parametrize("program", ALL, ids=repr)
def test_the_predictor_is_found_where_it_can_be_proved(program: Program, backend: str) -> None:
    c = case(program)
    cls, theta = c["classes"][backend], c["theta"][backend]
    predictor = cls.predictor
    assert (predictor and predictor.link) == program.link
    if predictor is None:
        return
    features, offset = predictor.features(c["x"], c["a"]), predictor.offset(c["x"], c["a"])
    assert features.shape == (N, cls.dim)
    args = cls.density_at(theta, c["x"], c["a"]).args
    undo = {
        "identity": lambda: args["loc"],
        "log": lambda: np.log(args["rate"]),
        "logit": lambda: np.log(args["probs"]) - np.log1p(-args["probs"]),
    }[predictor.link]
    np.testing.assert_allclose(theta @ features.T + offset, undo(), rtol=1e-9, atol=1e-9)
    for name, value in predictor.fixed(c["x"], c["a"]).items():
        np.testing.assert_allclose(np.broadcast_to(value, (M, N)), args[name])
