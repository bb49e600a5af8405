"""No constant stands for infinity: a finite predictor is used as it is, an open one gives the
functional's limit or range.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.density import Density
from gedppl.learning.program_bounds import MISSPECIFIED
from gedppl.learning.programs import ProgramLearner
from tests.program_doubles import ARGUMENT, Glm, arm_features

DELTA = 0.05


def learned(cls: Any, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> ProgramLearner:
    return ProgramLearner.start(cls, delta=DELTA).absorb(x, a, y).refit()


class OnePredictor(Glm):
    """Any of the six families, its functionals by the family itself."""

    LINK = {**Glm.LINK, "Binomial": "logit", "Exponential": "log"}  # noqa: RUF012

    def values_grad(self, functional, theta, x, a):
        name, link = ARGUMENT[self.family]
        eta = np.sum(self.features(x, a) * theta, axis=1)
        fixed = {key: np.full(len(a), value) for key, value in self.extra.items()}
        return functional(Density(self.family, {**fixed, name: link(eta)}), x, a), np.zeros(
            (len(a), self.dim)
        )


# large numbers ------------------------------------------------------------------------------------


SLOW = pytest.mark.slow  # each unit compiles a model of its own


@pytest.mark.parametrize(
    "unit", [1e-6, pytest.param(1.0, marks=SLOW), pytest.param(1e9, marks=SLOW), 1e12]
)
def test_a_large_mean_is_bounded_where_it_is(unit) -> None:
    """A Student-t prior takes a Normal to the general learner; latencies of 5e10 were bounded by
    1e8.
    """

    def model(x, a, y=None):
        w = numpyro.sample("w", nd.StudentT(5.0, 0.0, 10.0 * unit).expand([2]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a], unit), obs=y)

    x, a = np.ones((40, 1)), np.arange(40) % 2
    y = unit * (np.where(a == 0, 5.0, 50.0) + np.random.default_rng(0).standard_normal(40))
    found = ged.confidence_set(ged.density_class(model, example=(x, a)), x, a, y).bounds(
        ged.mean(0, 1e3 * unit), x[:1], 2
    )
    assert found.guaranteed
    assert found.method == "exact"
    assert np.all(found.lower[0] < unit * np.array([5.0, 50.0]))
    assert np.all(found.upper[0] > unit * np.array([5.0, 50.0]))
    assert np.all(found.upper - found.lower < 4 * unit)


def test_a_rate_beyond_sixty_on_the_log_scale_is_used_as_it_is() -> None:
    """Exponential outcomes of 1e-30: a log rate of 69 was cut to 60, so that the mean was called
    a thousand times too large.
    """
    cls = OnePredictor("Exponential", 1, lambda x, a: x, initial=np.array([69.0]))
    y = 1e-30 * np.random.default_rng(1).exponential(size=50)
    found = learned(cls, np.ones((50, 1)), np.zeros(50, int), y).bounds(
        ged.mean(0, 1.0), np.ones((1, 1)), 1
    )
    assert found.guaranteed
    assert 0.3e-30 < found.lower[0, 0] < 1e-30 < found.upper[0, 0] < 3e-30


# open ends ----------------------------------------------------------------------------------------

SEEN = {
    "Normal": 1.0,
    "Bernoulli": 1.0,
    "Binomial": 3.0,
    "Poisson": 2.0,
    "Exponential": 0.5,
    "Gamma": 0.5,
}
EXTRA = {
    "Normal": {"scale": 1.0},
    "Binomial": {"total_count": 7.0},
    "Gamma": {"concentration": 2.0},
}
# family, functional, its limits over all predictors (infinite: the declared range)
UNSEEN_ACTION = [
    ("Normal", ged.mean(-1e13, 1e13), -math.inf, math.inf),
    ("Normal", ged.cvar(0.9, -1e13, 1e13), -math.inf, math.inf),
    ("Normal", ged.variance(9), 1.0, 1.0),
    ("Normal", ged.second_moment(1e20), 1.0, math.inf),
    ("Normal", ged.probability(above=2.0), 0.0, 1.0),
    ("Normal", ged.probability(above=1e12, below=1e12 + 2), 0.0, 0.6826894921370859),
    ("Bernoulli", ged.mean(-3, 3), 0.0, 1.0),
    ("Bernoulli", ged.variance(3), 0.0, 0.25),
    ("Binomial", ged.variance(30), 0.0, 1.75),
    ("Poisson", ged.mean(0, 1e40), 0.0, math.inf),
    ("Poisson", ged.probability(above=0.5), 0.0, 1.0),
    ("Exponential", ged.mean(0, 1e40), 0.0, math.inf),
    ("Gamma", ged.probability(above=1e-20), 0.0, 1.0),
    ("Gamma", ged.mean(0, 1e40), 0.0, math.inf),
]


@pytest.mark.parametrize(
    ("family", "functional", "low", "high"),
    UNSEEN_ACTION,
    ids=[f"{c[0]}-{c[1].name}" for c in UNSEEN_ACTION],
)
def test_an_action_never_played_has_the_limits_of_the_functional(
    family, functional, low, high
) -> None:
    cls = OnePredictor(family, 2, arm_features(2), extra=EXTRA.get(family, {}))
    x, a, y = np.ones((30, 1)), np.zeros(30, int), np.full(30, SEEN[family])
    y[::2] = 0.2 if family in ("Normal", "Exponential", "Gamma") else 0.0
    found = learned(cls, x, a, y).bounds(functional, x[:1], 2)
    assert found.guaranteed
    assert not found.empty
    free = found.free_lower[0, 1], found.free_upper[0, 1]
    for end, wanted, mark in zip(free, (low, high), (found.lower, found.upper)):
        assert (
            end == pytest.approx(wanted, rel=1e-6, abs=1e-12)
            if math.isfinite(wanted)
            else end == wanted
        )
        assert mark[0, 1] == np.clip(end, functional.low, functional.high)


# what the flags say -------------------------------------------------------------------------------


def test_bounds_before_the_range_cuts_them_are_kept() -> None:
    cls = Glm("Poisson", 1, lambda x, a: x)
    x, a, y = np.ones((60, 1)), np.zeros(60, int), np.full(60, 9.0)
    found = learned(cls, x, a, y).bounds(ged.mean(0, 2), x[:1], 1)
    assert (found.lower[0, 0], found.upper[0, 0]) == (2.0, 2.0)
    assert found.free_lower[0, 0] > 6.0
    assert found.free_upper[0, 0] > 9.0


def test_an_ascent_keeps_them_too() -> None:
    def model(x, a, y=None):
        w, s = numpyro.param("w", jnp.zeros(1)), numpyro.param("s", jnp.zeros(1))
        numpyro.sample("y", nd.Normal(w[0] + 0.0 * x[:, 0], jnp.exp(s[0])), obs=y)

    x, a = np.ones((60, 1)), np.zeros(60, int)
    cls = ged.density_class(model, example=(x, a))
    found = learned(cls, x, a, 5 + np.random.default_rng(0).standard_normal(60)).bounds(
        ged.mean(0, 2), x[:1], 1
    )
    assert found.method == "ascent"
    assert not found.guaranteed
    assert found.lower[0, 0] == found.upper[0, 0] == 2.0
    assert 3.5 < found.free_lower[0, 0] < 5 < found.free_upper[0, 0] < 6.5


def test_emptiness_is_a_field_and_not_a_word(monkeypatch) -> None:
    """Whatever the note says, sets that do not meet are no guarantee; and a class refuted by its
    own likelihood is empty.
    """
    monkeypatch.setattr("gedppl.learning.reach.APART", "all is well")
    monkeypatch.setattr("gedppl.learning.program_bounds.MISSPECIFIED", "all is well")
    cls = Glm("Poisson", 1, lambda x, a: x)
    x, a = np.ones((400, 1)), np.zeros(400, int)
    nine, one = (learned(cls, x, a, np.full(400, y)) for y in (9.0, 1.0))
    found = replace(one, past=nine.sets).bounds(ged.mean(0, 50), x[:1], 1)
    assert found.empty
    assert not found.guaranteed
    assert (found.free_lower[0, 0], found.free_upper[0, 0]) == (0.0, math.inf)  # every Poisson mean
    sound = one.bounds(ged.mean(0, 50), x[:1], 1)
    assert (sound.empty, sound.guaranteed) == (False, True)


def test_a_refuted_class_is_empty_and_a_climb_that_fell_short_refutes_nothing() -> None:
    cls = Glm("Poisson", 1, lambda x, a: x)
    x, a = np.ones((100, 1)), np.zeros(100, int)
    learner = learned(cls, x, a, np.full(100, 3.0))
    # as if the predictions had been far better
    lost = replace(learner, evidence=learner.evidence + 1e4).refit()
    found = lost.bounds(ged.mean(0, 50), x[:1], 1)
    assert (found.empty, found.guaranteed, found.note) == (True, False, MISSPECIFIED)
    assert not any(s.refuted for s in learner.sets)
    unsure = replace(lost, sets=tuple(replace(s, refuted=False) for s in lost.sets)).bounds(
        ged.mean(0, 50), x[:1], 1
    )
    assert (unsure.empty, unsure.guaranteed) == (False, False)
    assert unsure.upper[0, 0] == 50.0


# priors that are not Gaussian ---------------------------------------------------------------------


PRIORS = {
    # no curvature anywhere: a singular system, once
    "Laplace": (lambda unit: nd.Laplace(0.0, unit), "LinearGaussianLearner"),
    "Gumbel": (lambda unit: nd.Gumbel(0.0, unit), "LinearGaussianLearner"),
    "Student": (lambda unit: nd.StudentT(5.0, 0.0, unit), "LinearGaussianLearner"),
    "Normal": (lambda unit: nd.Normal(0.0, unit), "LinearGaussianLearner"),
}


QUICK = {"Laplace": 1e-9, "Gumbel": 1e9, "Student": 1e9, "Normal": 1e-9}


@pytest.mark.parametrize(
    ("prior", "learner", "unit"),
    [
        pytest.param(*PRIORS[name], u, id=f"{name}-{u}", marks=[] if u == QUICK[name] else [SLOW])
        for name in PRIORS
        for u in (1e-9, 1.0, 1e9)
    ],
)
def test_a_linear_gaussian_class_takes_any_prior_in_any_unit(prior, learner, unit) -> None:
    """A set is a statement about the likelihood: whatever the prior, it is the closed form, in
    any unit.
    """

    def model(x, a, y=None):
        w = numpyro.sample("w", prior(unit).expand([2]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a], 0.3 * unit), obs=y)

    x, a = np.ones((24, 1)), np.arange(24) % 2
    y = unit * (a + 0.3 * np.random.default_rng(4).standard_normal(24))
    found = ged.confidence_set(ged.density_class(model, example=(x, a)), x, a, y, growth=1.5)
    assert type(found.learner).__name__ == learner
    bounds = found.bounds(ged.mean(-9 * unit, 9 * unit), x[:1], 2)
    assert bounds.guaranteed
    assert np.all((bounds.lower[0] < unit * np.arange(2)) & (bounds.upper[0] > unit * np.arange(2)))
    assert np.all(bounds.upper - bounds.lower < 2 * unit)
