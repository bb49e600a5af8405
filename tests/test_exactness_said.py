"""`cls.exactness`: one sentence that agrees with how bounds are then computed."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.learning import Where, feed, learner_for

X, A = np.array([[1.0, 0.3], [1.0, -0.2], [1.0, 0.1]]), np.array([0, 1, 0])


def affine(x):
    return (numpyro.param("w", jnp.zeros(2)) * x).sum(-1)


def logistic(x, a, y=None):
    numpyro.sample("y", nd.Bernoulli(logits=affine(x)), obs=y)


def gaussian(x, a, y=None):
    numpyro.sample("y", nd.Normal(affine(x), 0.5), obs=y)


def student(x, a, y=None):
    numpyro.sample("y", nd.StudentT(4.0, affine(x), 0.5), obs=y)


@pytest.mark.parametrize(
    ("model", "says", "method"),
    [
        (
            logistic,
            "exact: Bernoulli with one predictor (logit link) affine in the 2 parameters",
            "exact",
        ),
        (gaussian, "ellipsoid in closed form", "exact"),
        (student, "not exact: the arguments of its StudentT are not a known link", "ascent"),
    ],
)
def test_what_is_said_is_what_is_done(model, says, method) -> None:
    cls = ged.density_class(model, example=(X, A))
    assert says in cls.exactness
    learner = feed(learner_for(cls, delta=0.05), X, A, np.array([0.0, 1.0, 1.0]), growth=4.0)
    found = learner.bounds(ged.mean(0, 1), X[:1], 2)
    assert found.method == method
    assert found.guaranteed == (not cls.exactness.startswith("not"))


def test_ordered_outcomes_say_which_functionals() -> None:
    def severity(x, a, y=None):
        numpyro.sample("y", nd.OrderedLogistic(affine(x), jnp.array([-1.0, 1.0])), obs=y)

    said = ged.density_class(severity, example=(X, A)).exactness
    assert said.startswith("exact for chances of y <= k")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (lambda eta: nd.BetaBinomial(2 + jnp.exp(eta), 3.0, total_count=5), "group of rows"),
        (
            lambda eta: nd.TransformedDistribution(
                nd.Logistic(eta, 0.5), nd.transforms.ExpTransform()
            ),
            "tell log(y)",
        ),
        (lambda eta: nd.StudentT(4.0, eta, 0.5), "Laplace of known scale"),
    ],
)
def test_an_outcome_that_no_spelling_makes_exact_says_what_comes_near(outcome, words) -> None:
    """It was advised to write its predictor otherwise, which does not help."""

    def model(x, a, y=None):
        numpyro.sample("y", outcome(affine(x)), obs=y)

    said = ged.density_class(model, example=(X, A)).exactness
    assert "No spelling of" in said
    assert words in said
    assert "write the predictor" not in said


def test_a_logarithm_told_in_place_of_a_log_logistic_outcome_is_exact() -> None:
    def logarithm(x, a, y=None):
        numpyro.sample("y", nd.Logistic(affine(x), 0.5), obs=y)

    assert ged.density_class(logarithm, example=(X, A)).exactness.startswith("exact")


def test_finite_classes_are_exact_and_draws_certify_nothing() -> None:
    settings = [{"w": [0.1, 0.2]}, {"w": [0.0, 0.5]}]
    assert "2 members" in ged.finite_class(logistic, settings).exactness
    assert "no certificate" in ged.finite_class(logistic, settings, sampled=True).exactness


def test_a_programs_groups_are_read_off_its_log_density() -> None:
    def arms(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
        numpyro.sample("y", nd.StudentT(4.0, (w[a] * x).sum(-1), 0.5), obs=y)

    def pooled(x, a, y=None):
        centre, z = (
            numpyro.sample("centre", nd.Normal(0.0, 1.0)),
            numpyro.sample("z", nd.Normal(0.0, 1.0).expand([2]).to_event(1)),
        )
        numpyro.sample("y", nd.StudentT(4.0, centre + z[a], 0.5), obs=y)

    where = Where(X[:1], 2, (0, 1))
    found = where.groups(ged.density_class(arms, example=(X, A)))
    assert [(g.actions, g.size) for g in found] == [(None, 4), ((0,), 2), ((1,), 2)]
    found = where.groups(ged.density_class(pooled, example=(X, A)))
    assert [(g.actions, g.share, g.size) for g in found] == [
        (None, 0.5, 3),
        ((0,), 0.25, 2),
        ((1,), 0.25, 2),
    ]
