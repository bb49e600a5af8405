"""Fits that start or end in a bad place: tied cutpoints, funnels, separable data, and what is
said of them.
"""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.errors import FitWarning
from gedppl.learning.ordered import apart
from gedppl.learning.programs import ProgramLearner
from gedppl.rows import Rows
from tests.optional_pyro import pd, pyro, torch
from tests.program_doubles import Glm

# cutpoints that start in one place ----------------------------------------------------------------


def tied_n(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", nd.OrderedLogistic(x @ w, numpyro.param("c", jnp.zeros(3))), obs=y)


def many_tied_n(x, a, y=None):
    """Eight cutpoints: no draw around the start would have them in order."""
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", nd.OrderedLogistic(x @ w, numpyro.param("c", jnp.zeros(8))), obs=y)


def tied_p(x, a, y=None):
    w = pyro.param("w", torch.zeros(2))
    pyro.sample("y", pd.OrderedLogistic(x @ w, pyro.param("c", torch.zeros(3))), obs=y)


def stacked_n(x, a, y=None):
    cuts = jnp.stack([numpyro.param(name, 0.0) for name in ("c0", "c1", "c2")])
    numpyro.sample("y", nd.OrderedLogistic(x @ numpyro.param("w", jnp.zeros(2)), cuts), obs=y)


def bent_n(x, a, y=None):
    """Not affine, so the program itself is asked; and no density where it starts."""
    cuts = jnp.stack([numpyro.param(name, 0.0) for name in ("c0", "c1", "c2")])
    numpyro.sample(
        "y", nd.OrderedLogistic(x @ numpyro.param("w", jnp.zeros(2)), jnp.sinh(cuts)), obs=y
    )


def ordered_rows(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(n, 2))
    return (
        x,
        np.zeros(n, int),
        np.digitize(x @ [1.0, -0.5] + rng.logistic(size=n), [-1.0, 0.0, 1.0]).astype(float),
    )


@pytest.mark.parametrize("model", [tied_n, tied_p, stacked_n])
def test_tied_cutpoints_come_apart(model) -> None:
    """From tied edges the likelihood is minus infinity and has no slope: the fit stayed, and the
    class was called wrong.
    """
    x, a, y = ordered_rows(80)
    found = ged.confidence_set(ged.density_class(model, example=(x, a)), x, a, y, growth=1.5)
    assert found.status.startswith("converged")
    bounds = found.bounds(ged.probability(above=1.5), np.zeros((1, 2)), 1)
    assert bounds.guaranteed
    assert not found.learner.bounds(ged.probability(above=1.5), np.zeros((1, 2)), 1).empty
    assert 0.1 < bounds.lower[0, 0] < 0.5 < bounds.upper[0, 0] < 0.9


def test_many_tied_cutpoints_come_apart_too() -> None:
    x, a, _ = ordered_rows(80)
    y = np.arange(80) % 9.0
    found = ged.confidence_set(ged.density_class(many_tied_n, example=(x, a)), x, a, y, growth=2.0)
    assert found.status.startswith("converged")
    cuts = found.estimate["c"]
    assert np.all(np.diff(cuts) > 0)


def test_a_program_without_density_at_its_start_is_fitted_from_elsewhere() -> None:
    x, a, y = ordered_rows(80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # one row says too little of sinh(c)
        found = ged.confidence_set(ged.density_class(bent_n, example=(x, a)), x, a, y, growth=3.0)
    assert found.status.startswith("converged")
    assert "misspecified" not in found.bounds(ged.probability(above=1.5), np.zeros((1, 2)), 1).note


def test_edges_are_moved_no_more_than_needed() -> None:
    gaps = np.array([[-1.0, 1.0, 0.0, 0.0], [0.0, -1.0, 1.0, 0.0]])  # c1 - c0, c2 - c1
    np.testing.assert_allclose(np.diff(apart(gaps, np.zeros(3))), 1.0)
    kept = np.array([0.0, 0.2, 0.3])
    assert apart(gaps, kept) is kept
    # one gap is fixed at 0.4
    near = apart(np.array([[0.0, 0.0, 0.0, 0.4], [-1.0, 1.0, 0.0, 0.0]]), np.zeros(3))
    assert near[1] - near[0] >= 0.4 - 1e-9


# funnels ------------------------------------------------------------------------------------------


def centred(x, a, y=None):
    mu, tau = numpyro.sample("mu", nd.Normal(0.0, 1.0)), numpyro.sample("tau", nd.HalfNormal(1.0))
    w = numpyro.sample("w", nd.Normal(mu, tau).expand([4]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=w[a]), obs=y)


def non_centred(x, a, y=None):
    mu, tau = numpyro.sample("mu", nd.Normal(0.0, 1.0)), numpyro.sample("tau", nd.HalfNormal(1.0))
    w = mu + tau * numpyro.sample("z", nd.Normal(0.0, 1.0).expand([4]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=w[a]), obs=y)


def centred_in_other_units(x, a, y=None):
    """A neighbour: Normal outcomes in thousands, a scale with a heavy tail."""
    tau = numpyro.sample("tau", nd.HalfCauchy(1000.0))
    w = numpyro.sample("w", nd.Normal(0.0, tau).expand([4]).to_event(1))
    numpyro.sample("y", nd.Normal(w[a], 1000.0), obs=y)


def clicks(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a = np.arange(n) % 4
    return np.ones((n, 1)), a, np.random.default_rng(2).binomial(1, 0.4, n).astype(float)


@pytest.mark.parametrize(
    ("model", "unit", "functional"),
    [(centred, 1.0, ged.mean(0, 1)), (centred_in_other_units, 1000.0, ged.mean(-3000, 3000))],
)
def test_a_funnel_is_called_one_and_warns_once_a_refit(model, unit, functional) -> None:
    x, a, y = clicks(40)
    cls = ged.density_class(model, example=(x, a))
    learner = ProgramLearner.start(cls, delta=0.05).absorb(x, a, unit * y)
    with pytest.warns(
        FitWarning,
        match=r"40 rows did not converge .* a funnel: .*\(tau = "
        r".*non-centred",
    ) as told:
        learner = learner.refit()
    assert len(told) == 1
    assert "did not converge: a funnel" in learner.status
    assert "separable" not in learner.status
    # and the set around what stands in for a fit is a set all the same
    found = learner.bounds(functional, x[:1], 4)
    assert found.guaranteed
    assert np.all(found.lower[0] < 0.4 * unit)
    assert np.all(found.upper[0] > 0.4 * unit)
    assert np.all(found.upper - found.lower < 0.95 * (functional.high - functional.low))


def centred_with_heavy_tails(x, a, y=None):
    """No exact set, so that the program itself is fitted."""
    mu, tau = numpyro.sample("mu", nd.Normal(0.0, 1.0)), numpyro.sample("tau", nd.HalfNormal(1.0))
    w = numpyro.sample("w", nd.Normal(mu, tau).expand([4]).to_event(1))
    numpyro.sample("y", nd.StudentT(4.0, w[a], 1.0), obs=y)


def test_what_the_data_see_of_a_centred_hierarchy_has_no_funnel() -> None:
    """Fitted in what meets the rows: the scale is no coordinate of it, and separable is not what
    the data are called.
    """
    x, a, y = clicks(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ged.confidence_set(ged.density_class(centred, example=(x, a)), x, a, y, growth=3.0)
    assert found.status.startswith("converged")
    assert sorted(found.estimate) == ["w"]


def test_a_certificate_says_that_a_fit_did_not_converge() -> None:
    x, a, y = clicks(24)
    problem = ged.Problem(
        n_actions=4,
        utility=ged.Utility(
            ged.density_class(centred_with_heavy_tails, example=(x, a)), ged.mean(0, 1)
        ),
        constraints=[
            ged.Constraint(
                ged.density_class(non_centred, example=(x, a)),
                ged.mean(0, 1),
                at_most=0.9,
                safe_value=0.4,
                name="c",
            )
        ],
        safe_action=0,
    )
    agent = ged.GEDUCB(problem, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        agent.observe(x, a, y, y)
        decision = agent.ask(x[0])
    assert "did not converge: a funnel" in decision.certificate.oracle["utility"]
    assert "did not converge" not in decision.certificate.oracle["c"]


def test_the_same_hierarchy_non_centred_has_no_funnel() -> None:
    x, a, y = clicks(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ged.confidence_set(
            ged.density_class(non_centred, example=(x, a)), x, a, y, growth=3.0
        )
    assert found.status.startswith("converged")


def test_only_counts_are_called_separable() -> None:
    """One outcome and a free scale: the likelihood has no maximum either, but nothing is
    separable.
    """

    def model(x, a, y=None):
        scale = jnp.exp(numpyro.param("s", 0.0))
        numpyro.sample("y", nd.Normal(numpyro.param("m", 0.0) + 0.0 * x[:, 0], scale), obs=y)

    x, a = np.ones((1, 1)), np.zeros(1, int)
    fit = ged.mle()(
        ged.density_class(model, example=(x, a)), Rows.of(x, a, np.array([0.3])), prior=None
    )
    assert not fit.ok
    assert "separable" not in fit.status
    flips = Rows.of(np.ones((4, 1)), np.zeros(4, int), np.ones(4))
    sure = ged.score_equations()(Glm("Bernoulli", 1, lambda x, a: x), flips, prior=None)
    assert sure.status.startswith("the data are separable")
