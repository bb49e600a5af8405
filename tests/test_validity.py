"""What could make a confidence set lie, one thing at a time: each test fails if the guard it is
about is taken out.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom

from gedppl.density import Density
from gedppl.functionals import expected, mean, probability
from gedppl.learning import confidence_set, learner_for, radius
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.linear_gaussian import EMPTY
from gedppl.learning.oracles import auto, mle
from gedppl.learning.program_bounds import over_interval
from gedppl.learning.programs import ProgramLearner
from gedppl.learning.radius import Est
from gedppl.learning.reach import APART
from gedppl.programs.contract import LinearPredictor, density_class
from tests.program_doubles import ARGUMENT, Glm, arm_features, some_rows

DELTA = 0.05


def identity(x, a):
    return x


# the centre of a ball -----------------------------------------------------------------------------


def small_feature_misses(sharper, runs=40, d=20):
    """Twenty directions, each seen once through a feature of 0.01: all that least squares sees
    is noise.
    """
    cls = Glm("Normal", d, identity, extra={"scale": 1.0})
    rule = radius.neg_log_affinity_ball(radius.self_normalised(1.0, 0.1, sharper))
    missed = 0
    for run in range(runs):
        rng = np.random.default_rng([run, 20])
        truth = rng.standard_normal(d)
        truth *= 0.1 / np.linalg.norm(truth)
        x, a = 0.01 * np.eye(d), np.zeros(d, int)
        learner = (
            ProgramLearner.start(cls, delta=DELTA, confidence=rule)
            .absorb(x, a, cls.simulate(truth, x, a, rng))
            .refit()
        )
        missed += not learner.contains(truth[None])[0]
    return missed


@pytest.mark.parametrize("sharper", [True, False])
def test_a_self_normalised_ball_is_around_the_ridge_estimate_and_not_around_least_squares(
    sharper, monkeypatch
) -> None:
    assert small_feature_misses(sharper) <= binom.ppf(0.9999, 40, DELTA)
    monkeypatch.setattr(Est, "centre", lambda self, view, top: top)
    assert small_feature_misses(sharper) > 30


def test_the_ridge_estimate_is_that_of_the_normal_equations() -> None:
    cls = Glm("Normal", 3, identity, extra={"scale": 0.5})
    rows = some_rows(cls, [1.0, -1.0, 0.5], 30, 3, 0)
    rule = radius.neg_log_affinity_ball(radius.self_normalised(4.0, 2.0))
    learner = (
        ProgramLearner.start(cls, delta=DELTA, confidence=rule)
        .absorb(rows.x, rows.a, rows.y)
        .refit()
    )
    expected = np.linalg.solve(rows.x.T @ rows.x + 4.0 * np.eye(3), rows.x.T @ rows.y)
    np.testing.assert_allclose(learner.sets[0].region.centre, expected, atol=1e-8)
    assert "ridge estimate" in rule.describe(DELTA)


# declared bounds ----------------------------------------------------------------------------------


def logistic_model(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def normal_model(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


FIRST_ONLY = np.array([[1.0, 0.0]] * 40), np.zeros(40, int)  # the second coefficient is never seen
FLIPS = (np.arange(40) % 2).astype(float)
ASKED = np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("box", "lower", "upper"),
    [
        ((-np.inf, 3.0), [0.0, 0.0474, 0.5], [0.9526, 1.0, 0.5]),
        (
            (np.array([-np.inf, -2.0]), np.array([3.0, np.inf])),
            [0.1192, 0.0, 0.5],
            [1.0, 0.8808, 0.5],
        ),
        (np.inf, [0.0, 0.0, 0.5], [1.0, 1.0, 0.5]),
    ],
)
def test_a_box_may_be_open_on_one_side(box, lower, upper) -> None:
    """An unseen coefficient is bounded by what was declared, on the side where something was."""
    cls = density_class(
        logistic_model, bounds={"w": box}, example=(FIRST_ONLY[0][:1], FIRST_ONLY[1][:1])
    )
    found = confidence_set(cls, *FIRST_ONLY, FLIPS).bounds(mean(0, 1), ASKED, 1)
    np.testing.assert_allclose(found.lower[:, 0], lower, atol=1e-4)
    np.testing.assert_allclose(found.upper[:, 0], upper, atol=1e-4)


def test_an_open_box_on_a_linear_gaussian_class_bounds_nothing_and_breaks_nothing() -> None:
    cls = density_class(
        normal_model, bounds={"w": (-np.inf, 3.0)}, example=(FIRST_ONLY[0][:1], FIRST_ONLY[1][:1])
    )
    found = confidence_set(cls, *FIRST_ONLY, FLIPS).bounds(mean(-9, 9), ASKED, 1)
    np.testing.assert_array_equal(found.lower[:, 0], [-9, -9, 0])
    np.testing.assert_array_equal(found.upper[:, 0], [9, 9, 0])


@pytest.mark.parametrize(("model", "note"), [(logistic_model, APART), (normal_model, EMPTY)])
def test_data_against_the_declared_bounds_leave_the_whole_range(model, note) -> None:
    """The rows say w = 2.2 (or 0.9), the declaration |w| <= 0.1: no parameter is left, and
    nothing narrow may be said.
    """
    x, a = np.array([[1.0, 0.0]] * 600), np.zeros(600, int)
    y = (np.arange(600) % 10 > 0).astype(float)
    cls = density_class(model, bounds={"w": 0.1}, example=(x[:1], a[:1]))
    found = confidence_set(cls, x, a, y).bounds(mean(0, 1), x[:1], 1)
    assert (found.lower[0, 0], found.upper[0, 0]) == (0.0, 1.0)
    assert not found.guaranteed
    assert found.note == note
    free = confidence_set(density_class(model, example=(x[:1], a[:1])), x, a, y).bounds(
        mean(0, 1), x[:1], 1
    )
    assert free.guaranteed
    assert free.upper[0, 0] - free.lower[0, 0] < 0.2


# peaks between the ends of an interval ------------------------------------------------------------


FIXED = {
    "Normal": {"scale": 0.1},
    "Bernoulli": {},
    "Binomial": {"total_count": 400.0},
    "Poisson": {},
    "Exponential": {},
    "Gamma": {"concentration": 300.0},
}
BETWEEN = {
    "Normal": (6.8, 7.8),
    "Bernoulli": (-0.5, 0.5),
    "Binomial": (389.5, 399.5),
    "Poisson": (989.5, 1010.5),
    "Exponential": (6.8, 7.8),
    "Gamma": (7.25, 7.35),
}
# of eta
MIDDLE = {
    "Normal": 7.3,
    "Bernoulli": -3.0,
    "Binomial": 3.7,
    "Poisson": 6.9,
    "Exponential": -2.0,
    "Gamma": 3.7,
}


@pytest.mark.parametrize("family", list(FIXED))
@pytest.mark.parametrize("reach", ["unseen", "wide", "narrow"])
def test_the_chance_of_a_band_is_found_wherever_its_peak_is(family, reach) -> None:
    """P(above < Y < below) over an interval of the linear predictor, against a grid of a million
    points where it matters.
    """
    name, link = ARGUMENT[family]
    kind = {"Normal": "identity", "Bernoulli": "logit", "Binomial": "logit"}.get(family, "log")
    predictor = LinearPredictor(
        family,
        kind,
        identity,
        lambda x, a: np.zeros(len(a)),
        lambda x, a: {key: np.full(len(a), value) for key, value in FIXED[family].items()},
    )
    learner = SimpleNamespace(data=PredictorLikelihood.empty(predictor, 1))
    x, a = np.ones((1, 1)), np.zeros(1, int)
    columns, _ = learner.data.columns(x, a)
    functional = probability(above=BETWEEN[family][0], below=BETWEEN[family][1])
    far, middle = {"identity": 1e8, "logit": 60.0, "log": 60.0}[kind], MIDDLE[family]
    low, high = {
        "unseen": (-np.inf, np.inf),
        "wide": (-0.8 * far, 0.6 * far),
        "narrow": (middle - 0.31, middle + 0.4),
    }[reach]
    lower, upper, _ = over_interval(
        learner.data, learner, functional, columns, np.array([[low, high]]), x, a
    )
    eta = np.linspace(max(low, middle - 30), min(high, middle + 30), 1_000_001)
    fixed = {key: np.full(eta.shape, value) for key, value in FIXED[family].items()}
    with np.errstate(over="ignore", invalid="ignore"):
        chance = functional(Density(family, {**fixed, name: link(eta)}))
    assert upper[0] == pytest.approx(np.nanmax(chance), abs=2e-4)
    assert lower[0] <= np.nanmin(chance) + 1e-9


def test_a_band_that_an_unseen_action_may_hit_is_not_called_impossible() -> None:
    """From end to end, where the set comes from a program and not from the linear-Gaussian
    closed form.
    """

    def model(x, a, y=None):
        w = numpyro.param("w", jnp.zeros(2))
        numpyro.sample("y", dist.Normal(w[a], 0.1), obs=y)

    x, a = np.zeros((30, 1)), np.zeros(30, int)
    found = confidence_set(
        density_class(model, example=(x, a)), x, a, np.zeros(30), oracle=mle(), growth=2.0
    )
    band = found.bounds(probability(above=6.8, below=7.8), x[:1], 2)
    assert band.guaranteed
    assert band.upper[0, 0] < 1e-9  # seen, and far from the band
    assert band.upper[0, 1] > 0.99


def test_an_ascent_that_has_no_slope_to_climb_by_does_not_call_an_unseen_action_safe() -> None:
    def model(x, a, y=None):
        w = numpyro.param("w", jnp.zeros(2))
        s = numpyro.param("s", jnp.full(2, -1.0))
        # log-linear: no exact form
        numpyro.sample("y", dist.Normal(w[a], jnp.exp(s[a] * (1 + x[:, 0]))), obs=y)

    x, a = np.zeros((40, 1)), np.zeros(40, int)
    y = 0.3 * np.random.default_rng(0).standard_normal(40)
    found = confidence_set(density_class(model, example=(x, a)), x, a, y, growth=2.0)
    band = found.bounds(probability(above=30.0, below=31.0), x[:1], 2)
    assert band.method == "ascent"
    assert band.upper[0, 0] < 1e-3  # seen, and far from the band
    assert (band.lower[0, 1], band.upper[0, 1]) == (0.0, 1.0)


def test_a_users_function_of_an_unseen_action_has_its_whole_range() -> None:
    cls = Glm("Bernoulli", 2, arm_features(2))
    rows = some_rows(cls, [0.5, 0.0], 40, 1, 0, n_actions=1)
    learner = ProgramLearner.start(cls, delta=DELTA).absorb(rows.x, rows.a, rows.y).refit()
    found = learner.bounds(expected(lambda y, x, a: 0.2 + 0.1 * y, 0, 1), np.ones((1, 1)), 2)
    assert (found.lower[0, 1], found.upper[0, 1]) == (0.0, 1.0)
    assert found.upper[0, 0] < 0.31


# sets of different times --------------------------------------------------------------------------


def test_program_sets_of_different_times_that_do_not_meet_leave_the_whole_range() -> None:
    cls = Glm("Poisson", 1, identity)
    x, a = np.ones((400, 1)), np.zeros(400, int)
    nine, one = (
        ProgramLearner.start(cls, delta=DELTA).absorb(x, a, np.full(400, y)).refit()
        for y in (9.0, 1.0)
    )
    assert one.bounds(mean(0, 50), x[:1], 1).guaranteed
    found = replace(one, past=nine.sets).bounds(mean(0, 50), x[:1], 1)
    assert (found.lower[0, 0], found.upper[0, 0]) == (0.0, 50.0)
    assert not found.guaranteed
    assert found.note == APART


def test_the_intersection_is_inside_every_set_it_is_made_of() -> None:
    cls, truth = Glm("Bernoulli", 3, identity), np.array([0.8, -0.5, 0.3])
    rows = some_rows(cls, truth, 120, 3, 4)
    plain = ProgramLearner.start(cls, delta=DELTA)
    met = replace(plain, rule=radius.likelihood_ratio(intersect=True))
    x = np.random.default_rng(5).standard_normal((6, 3))
    lowest, highest = np.zeros((6, 1)), np.ones((6, 1))
    for first in range(0, 120, 20):
        part = slice(first, first + 20)
        plain, met = (
            one.absorb(rows.x[part], rows.a[part], rows.y[part]).refit() for one in (plain, met)
        )
        alone, together = (one.bounds(mean(0, 1), x, 1) for one in (plain, met))
        lowest, highest = np.maximum(lowest, alone.lower), np.minimum(highest, alone.upper)
        assert (together.lower >= alone.lower - 1e-9).all()
        assert (together.upper <= alone.upper + 1e-9).all()
        assert (together.lower <= lowest + 1e-6).all()  # no narrower than all of them together
        assert (together.upper >= highest - 1e-6).all()


# what enters the set ------------------------------------------------------------------------------


def test_the_working_prior_is_no_part_of_the_set() -> None:
    """All successes and a truth at 40, eight working-prior scales out: its likelihood is the
    best there is, so it stays.
    """
    cls = Glm("Bernoulli", 1, identity)
    x, a, truth = np.ones((60, 1)), np.zeros(60, int), np.array([[40.0]])
    learner = ProgramLearner.start(cls, delta=DELTA)
    for _ in range(10):
        learner = learner.absorb(x[:6], a[:6], np.ones(6)).refit()
    assert learner.contains(truth)[0]
    assert learner.bounds(mean(0, 1), x[:1], 1).upper[0, 0] == 1.0
    with_prior = learner.working_prior.log_density(truth[0]) - learner.working_prior.log_density(
        learner.theta
    )
    assert with_prior < -learner.kappa  # counted into the set it would have thrown the truth out


def test_fits_that_fail_cost_width_and_not_coverage() -> None:
    """Two refits in three fail: the particles then go on from the last good fit, reweighted by
    all rows since.
    """
    cls, good, calls = Glm("Bernoulli", 2, identity), auto(), []

    def often_broken(cls, rows, **options):
        calls.append(1)
        fit = good(cls, rows, **options)
        return fit if len(calls) % 3 == 1 else replace(fit, ok=False, status="it broke")

    missed, kept = 0, 0
    for run in range(16):
        rng = np.random.default_rng([run, 30])
        truth = rng.standard_normal(2)
        learner, inside = ProgramLearner.start(cls, delta=DELTA, oracle=often_broken), True
        for _ in range(30):
            x = rng.standard_normal((2, 2))
            a = np.zeros(2, int)
            learner = learner.absorb(x, a, cls.simulate(truth, x, a, rng)).refit()
            inside &= bool(learner.contains(truth[None])[0])
            kept += "kept the last good fit" in learner.status
        missed += not inside
    assert kept >= 16 * 15
    assert missed <= binom.ppf(0.9999, 16, DELTA)


def test_delta_is_shared_out_and_never_exceeded() -> None:
    """Whatever the starts (due times, batches that pass several, impossible batches), their
    levels sum to at most delta.
    """
    cls = Glm("Normal", 1, identity, extra={"scale": 1.0})
    rng = np.random.default_rng(0)
    learner = ProgramLearner.start(cls, delta=DELTA)
    used = {}
    for size in (1, 40, 3, 200, 1, 700, 2):
        y = rng.standard_normal(size)
        if size == 3:
            y[0] = 1e200  # no particle gives it a density: every start before is void
        learner = learner.absorb(np.ones((size, 1)), np.zeros(size, int), y)
        used |= {s.k: learner.rule.level(s.k, DELTA) for s in learner.starts}
    assert len(used) >= 4
    assert sum(used.values()) <= DELTA


def test_public_options_reach_the_learner() -> None:
    rows = some_rows(Glm("Normal", 2, identity, extra={"scale": 0.5}), [1.0, 0.5], 40, 2, 0)
    for model, y in ((normal_model, rows.y), (logistic_model, (rows.y > 0).astype(float))):
        cls = density_class(model, example=(rows.x[:1], rows.a[:1]))
        rule = radius.likelihood_ratio(intersect=True)
        wide, narrow = (confidence_set(cls, rows.x, rows.a, y, confidence=r) for r in (None, rule))
        both = [one.bounds(mean(-9, 9), rows.x[:5], 1) for one in (wide, narrow)]
        assert (both[1].upper <= both[0].upper + 1e-9).all()
        assert both[1].guaranteed
    assert (
        learner_for(cls, delta=DELTA, confidence=rule)
        .rule.describe(DELTA)
        .count("intersected over refits")
        == 1
    )
