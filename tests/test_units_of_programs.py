"""Units are the user's also where priors, declared bounds and programs are involved.

Outcomes with their noise, priors, bounds on parameters, ranges, limits and safe values times 10^k;
contexts times 10^k with the priors and bounds of their coefficients; outcomes moved by a constant.
Every functional of a learner is a limit of one problem, so that a single run compares the bounds
of all of them, besides the policies and the claims.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from scipy.special import ndtri

import gedppl as ged

ALL = tuple(range(-9, 13))
K, COHORTS, SIZE = 3, 4, 6
LOC = np.array([[0.1, 0.0], [0.5, 0.4], [0.3, -0.2]])  # intercept and slope by action
NOISE = 0.3
X = np.column_stack([np.ones(COHORTS * SIZE), np.random.default_rng(3).uniform(0.2, 1.0, 24)])
DRAWS = np.random.default_rng(4).uniform(size=COHORTS * SIZE)


@dataclass(frozen=True)
class Case:
    """A model in units of u, moved by c; how contexts are written; outcomes of (eta, uniform)."""

    model: Callable[..., Any]
    outcome: Callable[[np.ndarray, np.ndarray], np.ndarray]
    limits: dict[str, tuple[Any, float, float, float]]  # functional, limit, safe value, its unit
    utility: Any
    columns: tuple[float, float] = (1.0, 1.0)
    bounds: dict[str, Any] = field(default_factory=dict)


def real_limits(u: float, c: float, high: float = 4.0) -> dict[str, Any]:
    """What may be declared of outcomes on the real line."""
    return {
        "mean": (ged.mean(-high * u + c, high * u + c), 1.5 * u + c, 0.3 * u + c, u),
        "cvar": (ged.cvar(0.8, -high * u + c, high * u + c), 2.5 * u + c, 0.8 * u + c, u),
        "quantile": (ged.quantile(0.9, -high * u + c, high * u + c), 2.5 * u + c, 0.8 * u + c, u),
        "probability": (ged.probability(above=0.8 * u + c), 0.6, 0.1, 1.0),
        "second_moment": (ged.second_moment(high**2 * u**2), 9 * u**2, u**2, u**2),
        "variance": (ged.variance(high**2 * u**2), 4 * u**2, 0.5 * u**2, u**2),
    }


def normal_outcome(u: float, c: float) -> Callable[..., np.ndarray]:
    return lambda eta, draw: u * (eta + NOISE * ndtri(draw)) + c


def weights(prior: Any) -> Any:
    return numpyro.sample("w", prior.expand([K, 2]).to_event(2))


def location(w: Any, x: Any, a: Any, c: float) -> Any:
    return (w[a] * x).sum(-1) + c


def linear(u: float, c: float, v: float) -> Case:
    """Linear-Gaussian, with a prior and a box."""

    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(u, v)))
        numpyro.sample("y", nd.Normal(location(w, x, a, c), NOISE * u), obs=y)

    box = (-2.0 * own_units(u, v), 2.0 * own_units(u, v))
    return Case(
        model,
        normal_outcome(u, c),
        real_limits(u, c),
        ged.mean(-4 * u + c, 4 * u + c),
        (1.0, v),
        {"w": box},
    )


def own_units(u: float, v: float) -> np.ndarray:
    """Of an intercept and a slope, for outcomes in units of u and contexts in units of v."""
    return np.array([u, u / v])


def student(u: float, c: float, v: float) -> Case:
    """A prior that is not Gaussian: the general learner with its closed form."""

    def model(x, a, y=None):
        w = weights(nd.StudentT(5.0, 0.0, own_units(u, v)))
        numpyro.sample("y", nd.Normal(location(w, x, a, c), NOISE * u), obs=y)

    return Case(
        model, normal_outcome(u, c), real_limits(u, c), ged.mean(-4 * u + c, 4 * u + c), (1.0, v)
    )


def free(u: float, c: float, v: float) -> Case:
    """No prior, and a bound on the norm of intercepts and on that of slopes."""

    def model(x, a, y=None):
        b, s = numpyro.param("b", jnp.zeros(K)), numpyro.param("s", jnp.zeros(K))
        loc = b[a] * x[:, 0] + s[a] * x[:, 1] + c
        numpyro.sample("y", nd.Normal(loc, NOISE * u), obs=y)

    return Case(
        model,
        normal_outcome(u, c),
        real_limits(u, c),
        ged.mean(-4 * u + c, 4 * u + c),
        (1.0, v),
        {"b": 3.0 * u, "s": 3.0 * u / v},
    )


def unknown_scale(u: float, c: float, v: float) -> Case:
    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(u, v)))
        s = numpyro.sample("s", nd.LogNormal(jnp.log(NOISE * u), 0.5))
        numpyro.sample("y", nd.Normal(location(w, x, a, c), s), obs=y)

    return Case(
        model, normal_outcome(u, c), real_limits(u, c), ged.mean(-4 * u + c, 4 * u + c), (1.0, v)
    )


def heavy(u: float, c: float, v: float) -> Case:
    """By ascent."""

    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(u, v)))
        numpyro.sample("y", nd.StudentT(5.0, location(w, x, a, c), NOISE * u), obs=y)

    limits = real_limits(u, c)
    return Case(
        model,
        normal_outcome(u, c),
        {name: limits[name] for name in ("mean", "quantile")},
        ged.mean(-4 * u + c, 4 * u + c),
        (1.0, v),
    )


def positive_limits(u: float) -> dict[str, Any]:
    return {
        "mean": (ged.mean(0, 20 * u), 6 * u, 2 * u, u),
        "cvar": (ged.cvar(0.8, 0, 40 * u), 15 * u, 5 * u, u),
        "quantile": (ged.quantile(0.9, 0, 40 * u), 15 * u, 5 * u, u),
        "probability": (ged.probability(above=2.5 * u), 0.7, 0.2, 1.0),
    }


def gamma(u: float, c: float, v: float) -> Case:
    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(1.0, v)))
        numpyro.sample("y", nd.Gamma(2.0, 2.0 * jnp.exp(-location(w, x, a, 0.0)) / u), obs=y)

    from scipy.stats import gamma as law

    return Case(
        model,
        lambda eta, draw: u * law.ppf(draw, 2.0, scale=np.exp(eta) / 2.0),
        positive_limits(u),
        ged.mean(0, 20 * u),
        (1.0, v),
    )


def log_normal(u: float, c: float, v: float) -> Case:
    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(1.0, v)))
        numpyro.sample("y", nd.LogNormal(location(w, x, a, 0.0) + jnp.log(u), 0.5), obs=y)

    return Case(
        model,
        lambda eta, draw: u * np.exp(eta + 0.5 * ndtri(draw)),
        positive_limits(u),
        ged.mean(0, 20 * u),
        (1.0, v),
    )


def logistic(u: float, c: float, v: float) -> Case:
    """With a box."""

    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(1.0, v)))
        numpyro.sample("y", nd.Bernoulli(logits=location(w, x, a, 0.0)), obs=y)

    limits = {
        "mean": (ged.mean(0, 1), 0.8, 0.55, 1.0),
        "variance": (ged.variance(0.25), 0.2499, 0.2, 1.0),
    }
    return Case(
        model,
        lambda eta, draw: (draw < 1 / (1 + np.exp(-eta))).astype(float),
        limits,
        ged.mean(0, 1),
        (1.0, v),
        {"w": (-2.0 * own_units(1.0, v), 2.0 * own_units(1.0, v))},
    )


def poisson(u: float, c: float, v: float) -> Case:
    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(1.0, v)))
        numpyro.sample("y", nd.Poisson(jnp.exp(location(w, x, a, 0.0))), obs=y)

    from scipy.stats import poisson as law

    limits = {
        "mean": (ged.mean(0, 20), 6.0, 1.5, 1.0),
        "cvar": (ged.cvar(0.7, 0, 20), 9.0, 3.5, 1.0),
        "quantile": (ged.quantile(0.8, 0, 20), 9.0, 2.0, 1.0),
        "probability": (ged.probability(above=3.5), 0.6, 0.1, 1.0),
    }
    return Case(
        model, lambda eta, draw: law.ppf(draw, np.exp(eta)), limits, ged.mean(0, 20), (1.0, v)
    )


def ordered(u: float, c: float, v: float) -> Case:
    def model(x, a, y=None):
        w = weights(nd.Normal(0.0, own_units(1.0, v)))
        cuts = numpyro.sample("c", nd.Normal(jnp.array([-1.0, 1.0]), 0.3).to_event(1))
        numpyro.sample("y", nd.OrderedLogistic(location(w, x, a, 0.0), cuts), obs=y)

    limits = {
        "mean": (ged.mean(0, 2), 1.9, 1.2, 1.0),
        "probability": (ged.probability(above=1.5), 0.9, 0.4, 1.0),
    }
    return Case(
        model,
        lambda eta, draw: np.digitize(eta + np.log(draw / (1 - draw)), [-1.0, 1.0]).astype(float),
        limits,
        ged.mean(0, 2),
        (1.0, v),
    )


@dataclass(frozen=True)
class Said:
    policies: np.ndarray  # (rounds, K)
    bounds: np.ndarray  # (cohorts, J, 2, K), each limit in its own unit
    claims: list[Any]


MOVABLE = ("mean", "cvar", "quantile", "probability")  # of the others a shift is no unit


def said(
    make: Callable[..., Case],
    u: float = 1.0,
    c: float = 0.0,
    v: float = 1.0,
    names: tuple[str, ...] | None = None,
) -> Said:
    case = make(u, c, v)
    case = replace(
        case, limits={n: part for n, part in case.limits.items() if names is None or n in names}
    )
    cls = ged.density_class(case.model, bounds=case.bounds)
    limits = [
        ged.Constraint(cls, f, at_most=most, safe_value=safe, name=name, outcome="utility")
        for name, (f, most, safe, _) in case.limits.items()
    ]
    problem = ged.Problem(K, ged.Utility(cls, case.utility), limits, safe_action=0)
    agent = ged.GEDUCB(problem, seed=1, guard=None)
    policies, bounds, claims = [], [], []
    shift = np.array([c if name in ("mean", "cvar", "quantile") else 0.0 for name in case.limits])
    unit = np.array([size for *_, size in case.limits.values()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rows in np.split(np.arange(len(X)), COHORTS):
            made = agent.ask(X[rows] * case.columns)
            policies += [d.policy for d in made]
            claims += [
                [(part.method, part.guaranteed) for part in d.certificate.constraints] for d in made
            ]
            found = np.stack(agent.cost_bounds(X[rows[0]] * case.columns), axis=1)  # (J, 2, K)
            bounds.append((found - shift[:, None, None]) / unit[:, None, None])
            eta = np.array([LOC[d.action] @ X[i] for d, i in zip(made, rows)])
            y = case.outcome(eta, DRAWS[rows])
            agent.tell_many([(d.id, float(one), None) for d, one in zip(made, y)])
    return Said(np.array(policies), np.array(bounds), claims)


def check(
    make: Callable[..., Case],
    units: list[dict[str, float]],
    names: tuple[str, ...] | None = None,
) -> None:
    plain = said(make, names=names)
    assert np.ptp(plain.policies[:, 1:]) > 1e-3  # something was decided
    assert np.ptp(plain.bounds[-1] - plain.bounds[0]) > 1e-3  # and learned
    for unit in units:
        other = said(make, names=names, **unit)
        np.testing.assert_allclose(
            other.bounds, plain.bounds, rtol=1e-6, atol=1e-6, err_msg=str(unit)
        )
        assert other.claims == plain.claims
        # what is added to a searched bound is how far its climbs ended apart: rounding may decide
        # which step of a climb is its last
        searched = [any(method == "ascent" for method, _ in said) for said in plain.claims]
        near = np.where(searched, 1e-3, 1e-6)[:, None]
        gap = np.abs(other.policies - plain.policies)
        assert np.all(gap <= near), (unit, gap.max(axis=1))


OUTCOMES = [linear, student, free, unknown_scale, heavy, gamma, log_normal]
SHIFTED = [linear, student, free, unknown_scale, heavy]
CONTEXTS = [
    linear,
    student,
    free,
    unknown_scale,
    heavy,
    gamma,
    log_normal,
    logistic,
    poisson,
    ordered,
]


@pytest.mark.parametrize("make", [unknown_scale])
def test_outcomes_with_priors_and_bounds_in_another_unit(make) -> None:
    check(make, [{"u": 1e12}])


@pytest.mark.parametrize("make", [logistic])
def test_contexts_with_boxes_in_another_unit(make) -> None:
    """A box has as many units as it has coordinates: one ball around it mixed them up, and so did
    steps in standard errors where no row has seen a coordinate.
    """
    check(make, [{"v": 1e12}])


@pytest.mark.slow
@pytest.mark.parametrize("make", OUTCOMES)
def test_outcomes_with_priors_and_bounds_in_twenty_two_units(make) -> None:
    check(make, [{"u": 10.0**k} for k in ALL])


@pytest.mark.slow
@pytest.mark.parametrize("make", CONTEXTS)
def test_contexts_with_priors_and_bounds_in_twenty_two_units(make) -> None:
    check(make, [{"v": 10.0**k} for k in ALL])


@pytest.mark.slow
@pytest.mark.parametrize("make", SHIFTED)
def test_outcomes_and_priors_moved_by_a_constant(make) -> None:
    check(make, [{"c": c} for c in (-40.0, 1000.0)], MOVABLE)
