"""`cls.exactness`: one sentence that agrees with how bounds are then computed."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.confidence import feed, learner_for

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
        (logistic, "exact: Bernoulli with one predictor (logit link) affine in the 2 parameters", "exact"),
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


def test_finite_classes_are_exact_and_draws_certify_nothing() -> None:
    settings = [{"w": [0.1, 0.2]}, {"w": [0.0, 0.5]}]
    assert "2 members" in ged.finite_class(logistic, settings).exactness
    assert "no certificate" in ged.finite_class(logistic, settings, sampled=True).exactness
