"""Learners and the user's confidence set: exactness, purity, and every guard with a control that
needs it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logsumexp
from scipy.stats import norm

import gedppl as ged
from gedppl.density import Density
from gedppl.divergences import hellinger2
from gedppl.errors import NotFiniteError, ParameterError, SettingError, ShapeError
from gedppl.functionals import expected, mean, variance
from gedppl.learning import ConfidenceSet, confidence_set, feed, learner_for, radius
from gedppl.learning.finite import EMPTY, FiniteLearner
from gedppl.learning.learner import Particles
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.learning.program_bounds import MISSPECIFIED
from gedppl.learning.program_sets import Start, next_starts
from gedppl.learning.programs import ProgramLearner
from gedppl.learning.reach import declared_reach
from gedppl.learning.sampled_sets import members
from gedppl.learning.shrinking import shrinkage
from gedppl.programs.contract import MemberList, density_class
from gedppl.study.report.plots import plot_shrinkage
from tests.program_doubles import (
    Double,
    Glm,
    Heteroscedastic,
    OnePredictorDouble,
    arm_features,
    some_rows,
)

DELTA = 0.05
LOGISTIC = Glm("Bernoulli", 3)
TRUTH = np.array([0.8, -0.5, 0.3])


def learned(cls=LOGISTIC, truth=TRUTH, n=150, seed=0, **options):
    rows = some_rows(cls, truth, n, 3 if cls.dim in (1, 3) else cls.dim // 2, seed)
    return feed(
        ProgramLearner.start(cls, delta=DELTA, **options), rows.x, rows.a, rows.y, growth=1.2
    )


# the predictive -----------------------------------------------------------------------------------


def test_batch_predictive_is_the_product_of_the_sequential_ones() -> None:
    rng = np.random.default_rng(0)
    start = Particles(rng.standard_normal((8, 2)), np.log(rng.dirichlet(np.ones(8))))
    logs = rng.standard_normal((8, 5))
    together, after = start.predict(logs)
    one_by_one, step = 0.0, start
    for i in range(5):
        log_q, step = step.predict(logs[:, i : i + 1])
        one_by_one += log_q
    assert together == pytest.approx(one_by_one, abs=1e-12)
    np.testing.assert_allclose(after.log_weights, step.log_weights, atol=1e-12)
    assert together == pytest.approx(float(logsumexp(start.log_weights + logs.sum(axis=1))))


def test_a_broken_particle_counts_as_density_zero() -> None:
    """Renormalising the rest after the outcome was seen would make q too large: here by log 2."""
    start = Particles(np.zeros((2, 1)), np.log([0.5, 0.5]))
    log_q, after = start.predict(np.array([[np.log(0.4)], [np.nan]]))
    assert log_q == pytest.approx(math.log(0.2))
    assert after.log_weights.tolist() == [0.0, -np.inf]
    assert start.predict(np.array([[np.inf], [np.nan]])) == (-np.inf, start)


def test_an_impossible_batch_voids_the_starts_before_it() -> None:
    rule = radius.likelihood_ratio()
    starts = (Start(0, 0, 0.0), Start(1, 16, -9.0))
    assert next_starts(starts, 20, -np.inf, rule) == (Start(2, 20, 0.0),)
    assert next_starts(starts, 20, -np.inf, radius.likelihood_ratio(restarts=False)) == ()
    assert next_starts(starts, 20, -12.0, rule) == starts
    assert next_starts(starts, 64, -40.0, rule)[-1] == Start(2, 64, -40.0)
    assert next_starts((), 64, -40.0, rule) == ()


class Brittle(Glm):
    """NaN for every parameter at one outcome."""

    def row_terms(self, theta, x, a, y):
        value, score = super().row_terms(theta, x, a, y)
        return np.where(y == 7.0, np.nan, value), score


def test_learner_survives_an_outcome_that_no_particle_explains() -> None:
    cls = Brittle("Normal", 1, extra={"scale": 1.0}, exact=False)
    learner = (
        ProgramLearner.start(cls, delta=DELTA)
        .absorb(np.ones((1, 1)), np.zeros(1, int), np.ones(1))
        .refit()
    )
    broken = learner.absorb(np.ones((1, 1)), np.zeros(1, int), np.array([7.0]))
    assert broken.evidence == 0.0
    assert broken.starts == (Start(1, 2, 0.0),)
    assert learner.n == 1  # the old learner is as it was


# the program learner ------------------------------------------------------------------------------


def test_absorb_is_pure_and_does_not_depend_on_the_order_inside_a_batch() -> None:
    learner = learned(n=40)
    rows = some_rows(LOGISTIC, TRUTH, 6, 3, 9)
    evidence = learner.evidence
    forward = learner.absorb(rows.x, rows.a, rows.y)
    backward = learner.absorb(rows.x[::-1], rows.a[::-1], rows.y[::-1])
    assert forward.evidence == pytest.approx(backward.evidence, abs=1e-12)
    assert (learner.n, learner.evidence, forward.n) == (40, evidence, 46)
    assert learner.absorb(rows.x[:0], rows.a[:0], rows.y[:0]) is learner
    again = learned(n=40)
    assert again.evidence == evidence  # same seed and data, same run


def test_exact_logistic_bounds_in_one_dimension_are_the_roots_of_the_set() -> None:
    cls = Glm("Bernoulli", 1, lambda x, a: x)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((80, 1))
    y = (rng.random(80) < expit(0.7 * x[:, 0])).astype(float)
    learner = feed(ProgramLearner.start(cls, delta=DELTA), x, np.zeros(80, int), y)
    found = learner.bounds(mean(0, 1), np.ones((1, 1)), 1)
    ends = []
    for s in learner.sets:
        top = s.region.centre[0]
        for side in (-1, 1):
            ends.append(
                brentq(lambda t, s=s: s.region.slack(np.array([[t]]))[0], top, top + side * 30)
            )
    assert found.method == "exact"
    assert found.guaranteed
    # the set with the narrower quadratic approximation was used
    candidates = np.array(ends).reshape(-1, 2)
    assert (
        np.abs(expit(candidates) - [found.lower[0, 0], found.upper[0, 0]]).max(axis=1).min() < 1e-5
    )
    inside = expit(candidates[:, 0].max()) - 1e-6, expit(candidates[:, 1].min()) + 1e-6
    assert found.lower[0, 0] <= inside[0] + 1e-5
    assert found.upper[0, 0] >= inside[1] - 1e-5


def test_a_hump_inside_the_interval_is_found() -> None:
    """The Bernoulli variance is largest at p = 1/2, inside the interval of p; its ends are
    smaller.
    """
    learner = learned()
    x = np.array([[0.05, 0.05, 0.05]])
    p = learner.bounds(mean(0, 1), x, 1)
    assert p.lower[0, 0] < 0.5 < p.upper[0, 0]
    v = learner.bounds(variance(0.25), x, 1)
    ends = [q * (1 - q) for q in (p.lower[0, 0], p.upper[0, 0])]
    assert v.upper[0, 0] == pytest.approx(0.25, abs=1e-6)
    assert v.lower[0, 0] == pytest.approx(min(ends), abs=1e-6)
    assert max(ends) < 0.25 - 1e-5


def test_unseen_action_gets_the_functionals_range() -> None:
    cls = Glm("Bernoulli", 4, arm_features(2))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2))
    y = (rng.random(60) < 0.5).astype(float)
    learner = feed(ProgramLearner.start(cls, delta=DELTA), x, np.zeros(60, int), y)
    found = learner.bounds(mean(0, 1), np.ones((1, 2)), 2)
    assert found.upper[0, 1] == 1.0
    assert found.lower[0, 1] == 0.0
    assert found.upper[0, 0] < 0.95
    assert found.note == "1 of 2 actions are not yet bounded by the data"
    trail = learner.trail(mean(0, 1), np.ones((1, 2)), 2)
    assert trail.upper[0, -1, 1] == 1.0
    assert trail.upper[0, -1, 0] < 0.95


def test_an_open_end_never_hides_what_lies_beyond() -> None:
    """Nothing known of a Normal mean: the bounds are the declared range, however wide it is."""
    cls = Glm("Normal", 1, lambda x, a: x, extra={"scale": 1.0})
    wide = ProgramLearner.start(cls, delta=DELTA).bounds(mean(-1e12, 1e12), np.ones((1, 1)), 1)
    assert (wide.lower[0, 0], wide.upper[0, 0]) == (-1e12, 1e12)
    known = ProgramLearner.start(cls, delta=DELTA).bounds(variance(9.0), np.ones((1, 1)), 1)
    # the variance does not depend on the parameter
    assert (known.lower[0, 0], known.upper[0, 0]) == (1.0, 1.0)


def test_a_users_function_is_searched_and_says_so() -> None:
    counts = OnePredictorDouble("Poisson", "log", 3)
    found = learned(counts, 0.3 * TRUTH).bounds(
        expected(lambda y, x, a: np.minimum(y, 4.0), 0, 4), np.ones((1, 3)), 1
    )
    assert (found.method, found.guaranteed) == ("ascent", False)
    assert "grid" in found.note


def test_before_any_row_everything_is_possible() -> None:
    learner = ProgramLearner.start(LOGISTIC, delta=DELTA)
    found = learner.bounds(mean(0, 1), np.ones((2, 3)), 2)
    assert found.lower.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found.upper.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert found.estimate.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert learner.snapshot_sizes.tolist() == [0]
    assert learner.squared_deviation(mean(0, 1)) == 0.0
    assert learner.refit().snapshot_sizes.tolist() == [0, 0]


def test_ascent_bounds_agree_with_the_exact_ones(monkeypatch) -> None:
    """The same model with its linear predictor hidden: ascent reaches the exact bounds of the
    same set.
    """
    # the unit of a working prior is read off a predictor in one way and off a program in another,
    # and so would the sets be
    monkeypatch.setattr(
        "gedppl.learning.programs.parameter_units",
        lambda data, initial, x, n_actions: np.ones(len(initial)),
    )
    exact, hidden = learned(), learned(Glm("Bernoulli", 3, exact=False))
    assert hidden.evidence == pytest.approx(exact.evidence, abs=1e-6)
    x = np.random.default_rng(4).standard_normal((2, 3))
    one, other = exact.bounds(mean(0, 1), x, 2), hidden.bounds(mean(0, 1), x, 2)
    assert other.method == "ascent"
    assert not other.guaranteed
    assert "not a certificate" in other.note
    # ascent takes one start for all actions, the exact path one for each; delta may only add
    assert (other.upper >= one.upper - 1e-3 * (one.upper - one.estimate)).all()
    assert (other.lower <= one.lower + 1e-3 * (one.estimate - one.lower)).all()
    for i, k in np.ndindex(2, 2):
        reached = hidden.cls.values_grad(
            mean(0, 1), other.witness[i, k][None], x[i : i + 1], np.array([k])
        )[0][0]
        assert reached <= other.upper[i, k] + 1e-12
        assert any(s.region.slack(other.witness[i, k][None])[0] >= 0 for s in hidden.sets)


def test_trail_is_the_delta_bound_of_every_snapshot() -> None:
    learner = learned(Heteroscedastic(2), np.array([0.5, -0.3, 0.1, 0.2]), n=80)
    x = np.array([[0.4, -0.2]])
    trail = learner.trail(variance(50), x, 2)
    B = len(learner.snapshot_sizes)
    assert trail.upper.shape == (1, B, 2)
    assert trail.upper[0, 0].tolist() == [50.0, 50.0]
    for b in (B // 2, B - 1):
        theta = learner.snapshots.theta[b]
        value, grad = learner.cls.values_grad(
            variance(50), np.repeat(theta[None], 2, 0), np.repeat(x, 2, 0), np.arange(2)
        )
        half = np.sqrt(2 * learner.snapshots.kappa[b]) * np.linalg.norm(
            grad @ learner.snapshots.whitener[b].T, axis=1
        )
        np.testing.assert_allclose(trail.estimate[0, b], value, rtol=1e-10)
        np.testing.assert_allclose(trail.upper[0, b], np.clip(value + half, 0, 50), rtol=1e-8)
    before = learner.trail(variance(50), x, 2)
    longer = learner.absorb(x, np.zeros(1, int), np.zeros(1)).refit().trail(variance(50), x, 2)
    # a snapshot never changes afterwards
    np.testing.assert_array_equal(longer.upper[:, :B], before.upper)


def test_squared_deviation_of_a_linear_gaussian_is_two_sigma_squared_kappa() -> None:
    """For a Gaussian mean sum_i (phi_i'd)^2 = sigma^2 d'Id, so its supremum over the set is
    exactly 2 sigma^2 kappa.
    """
    learner = learned(Glm("Normal", 3, extra={"scale": 0.5}), n=120)
    assert learner.squared_deviation(mean(-99, 99)) <= 120 * 198**2
    start = learner.sets[-1].start
    if start:  # the whole history against the information of a later segment
        assert learner.squared_deviation(mean(-99, 99)) > 2 * 0.25 * learner.kappa
    plain = learned(
        Glm("Normal", 3, extra={"scale": 0.5}),
        n=120,
        confidence=radius.likelihood_ratio(restarts=False),
    )
    assert plain.squared_deviation(mean(-99, 99)) == pytest.approx(2 * 0.25 * plain.kappa, rel=1e-6)


def test_contains_is_the_definition() -> None:
    learner = learned(n=100)
    for theta in (TRUTH, TRUTH + 3.0, learner.theta):
        inside = True
        for s in learner.starts:
            rows = learner.rows
            tail = LOGISTIC.log_likelihood(theta, rows.x[s.n :], rows.a[s.n :], rows.y[s.n :]).sum()
            inside &= tail >= learner.evidence - s.evidence - math.log(
                1 / learner.rule.level(s.k, DELTA)
            )
        assert bool(learner.contains(theta[None])[0]) == inside
    assert not learner.contains(TRUTH[None] + 3.0)[0]
    bounded = replace(learner, cls=Glm("Bernoulli", 3, bound=0.1))
    assert not bounded.contains(TRUTH[None])[0]


def test_misspecification_empties_the_set_and_falls_back_to_the_range() -> None:
    """Outcomes follow the first half's law, then another: a sharp model cannot have produced
    both.
    """
    cls = Glm("Normal", 1, lambda x, a: x, extra={"scale": 0.05})
    rng = np.random.default_rng(0)
    x = np.ones((400, 1))
    y = np.where(np.arange(400) % 2 == 0, 1.0, -1.0) + 0.05 * rng.standard_normal(400)
    learner = ProgramLearner.start(cls, delta=DELTA)
    for i in range(8):
        learner = learner.absorb(x[i : i + 1], np.zeros(1, int), y[i : i + 1]).refit()
    # a predictive from outside the class that knows the alternation: valid, and better than every
    # member
    cheat = replace(learner, evidence=learner.evidence + 1e6).refit()
    found = cheat.bounds(mean(-2, 2), x[:1], 1)
    assert (found.lower[0, 0], found.upper[0, 0]) == (-2.0, 2.0)
    assert not found.guaranteed
    assert found.note == MISSPECIFIED
    assert "misspecified" in cheat.status
    assert not cheat.contains(np.zeros((1, 1)))[0]


def test_a_failed_fit_keeps_the_last_good_one() -> None:
    learner = learned(n=40)
    good = learner.oracle

    def broken(cls, rows, **options):
        return replace(
            good(cls, rows, **options), theta=np.full(3, np.nan), ok=False, status="it broke"
        )

    rows = some_rows(LOGISTIC, TRUTH, 5, 3, 8)
    later = replace(learner, oracle=broken).absorb(rows.x, rows.a, rows.y).refit()
    np.testing.assert_array_equal(later.theta, learner.theta)
    assert later.sets is learner.sets
    assert later.status.startswith("it broke; kept the last good fit")
    assert later.snapshot_sizes[-1] == 45


def test_declared_bounds_cut_unbounded_directions() -> None:
    class Site:
        def __init__(self, name, start, stop):
            self.name, self.start, self.stop, self.shape = name, start, stop, (stop - start,)

    class Bounded:
        sites = (Site("w", 0, 2), Site("b", 2, 3))
        bounds = {"w": 2.0, "b": (np.array([-1.0]), np.array([3.0]))}  # noqa: RUF012

    phi = np.array([[3.0, 4.0, 1.0], [3.0, 4.0, -1.0]])
    assert declared_reach(Bounded, phi).tolist() == [13.0, 11.0]
    Bounded.bounds = {"w": 2.0}
    assert declared_reach(Bounded, phi).tolist() == [np.inf, np.inf]
    assert declared_reach(Bounded, np.array([[3.0, 4.0, 0.0]])).tolist() == [10.0]


# other rules on programs --------------------------------------------------------------------------


def test_affinity_ball_of_a_linear_gaussian_is_its_ellipsoid() -> None:
    """-log affinity = 1/8 d'Id exactly, so the ball of radius r is the likelihood drop 4r."""
    cls = Glm("Normal", 3, extra={"scale": 0.5})
    est = radius.self_normalised(prior_precision=1.0, norm_bound=2.0)
    learner = learned(cls, n=60, confidence=radius.neg_log_affinity_ball(est))
    (only,) = learner.sets
    direction = np.array([1.0, -0.5, 0.2])
    for share, inside in ((0.999, True), (1.001, False)):
        z = share * np.sqrt(2 * only.region.kappa) * direction / np.linalg.norm(direction)
        theta = only.region.theta(z[None])
        assert bool(learner.contains(theta)[0]) is inside
        p, q = (
            cls.density_at(t, learner.rows.x, learner.rows.a)
            for t in (only.region.centre, theta[0])
        )
        total = float(np.sum(-np.log1p(-hellinger2(p, q).value)))
        assert (total <= only.region.kappa / 4) is inside


@pytest.mark.parametrize(
    "rule",
    [
        radius.parametric_bootstrap(40),
        radius.paper_radius(),
        radius.hellinger_ball(radius.bracketing(4.0, 4.0)),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_every_rule_gives_a_set_with_its_label(rule) -> None:
    learner = learned(n=60, confidence=rule)
    found = learner.bounds(mean(0, 1), np.ones((1, 3)) * 0.3, 2)
    assert found.rule == rule.describe(DELTA)
    assert found.method == "ascent"
    assert not found.guaranteed
    assert (found.lower < found.estimate).all()
    assert (found.estimate < found.upper).all()
    assert learner.contains(learner.sets[0].region.centre[None])[0]


def test_chi_square_on_a_glm_is_exact_but_not_guaranteed() -> None:
    found = learned(confidence=radius.chi_square()).bounds(mean(0, 1), np.ones((1, 3)), 1)
    assert found.method == "exact"
    assert not found.guaranteed


# the finite learner -------------------------------------------------------------------------------


class Means(MemberList):
    """Normals of unit scale with M different means; the action shifts by one."""

    def __init__(self, means):
        self.means, self.size = np.asarray(means, float), len(means)

    def log_likelihood(self, theta, x, a, y):
        return norm.logpdf(np.asarray(y), self.means[theta, None] + np.asarray(a))

    def values(self, functional, theta, x, a):
        return np.stack([np.asarray(functional(self.density(m, x, a))) for m in theta])

    def density(self, m, x, a):
        return Density(
            "Normal", {"loc": self.means[m] + np.asarray(a, float), "scale": np.ones(len(a))}
        )


GRID = np.linspace(-1, 1, 21)


def finite_learner(n=120, rule=None, seed=0, mean_=0.2):
    rng = np.random.default_rng(seed)
    x, a = np.zeros((n, 1)), rng.integers(0, 2, n)
    y = mean_ + a + rng.standard_normal(n)
    return feed(FiniteLearner.start(Means(GRID), delta=DELTA, confidence=rule), x, a, y), (x, a, y)


def test_finite_set_is_the_mixture_likelihood_ratio_and_remembers_who_was_never_out() -> None:
    learner, (_, a, y) = finite_learner()
    logs = np.cumsum(norm.logpdf(y, GRID[:, None] + a), axis=1)
    assert learner.evidence == pytest.approx(float(logsumexp(logs[:, -1]) - np.log(21)))
    alive = np.ones(21, bool)
    sizes = [s for s in learner.snapshot_sizes if s]
    for n in sizes:
        now = logs[:, n - 1]
        inside = now >= logsumexp(now) - np.log(21) - np.log(1 / DELTA)
        alive &= inside
    np.testing.assert_array_equal(learner.alive, alive)
    np.testing.assert_array_equal(learner.plausible, inside)
    assert 0 < alive.sum() < inside.sum() < 21
    found = learner.bounds(mean(-3, 3), np.zeros((1, 1)), 2)
    np.testing.assert_allclose(found.upper, [[GRID[inside].max(), GRID[inside].max() + 1]])
    np.testing.assert_allclose(found.lower, [[GRID[inside].min(), GRID[inside].min() + 1]])
    assert found.witness.tolist() == [[int(np.flatnonzero(inside)[-1])] * 2]
    assert found.estimate[0, 0] == GRID[np.argmax(logs[:, -1])]
    assert found.method == "exact"
    assert found.guaranteed
    trail = learner.trail(mean(-3, 3), np.zeros((1, 1)), 2)
    np.testing.assert_array_equal(trail.upper[:, -1], found.upper)
    # no running intersection: a set may widen again
    assert (np.diff(trail.upper, axis=1) > 0).any()
    values = GRID[inside] - found.estimate[0, 0]
    assert learner.squared_deviation(mean(-3, 3)) == pytest.approx(120 * np.max(values**2))


def test_finite_hellinger_ball_is_the_papers() -> None:
    learner, (_, a, _) = finite_learner(rule=radius.hellinger_ball())
    best = learner.best[-1]
    squared = 1 - np.exp(-((GRID - GRID[best]) ** 2) / 8)
    np.testing.assert_allclose(learner.sums[int(best)][1], len(a) * squared, rtol=1e-10)
    assert (learner.alive <= (len(a) * squared <= math.log(21 / DELTA))).all()
    narrower, _ = finite_learner()
    assert narrower.alive.sum() <= learner.alive.sum()
    assert learner.paper_estimate(0.1) == pytest.approx(math.log(210))
    # an agent asks for all rounds at once
    both = learner.paper_estimate(np.array([0.1, 0.01]))
    assert both == pytest.approx([math.log(210), math.log(2100)])


def test_finite_coverage_and_misspecification() -> None:
    missed = 0
    for seed in range(40):
        learner, _ = finite_learner(40, seed=seed, mean_=GRID[12])
        missed += not learner.alive[12]
    assert missed <= 9  # binom.ppf(0.9999, 40, 0.05)
    wrong, _ = finite_learner(400, mean_=6.0)
    assert wrong.alive[-1]  # the nearest member stays: a likelihood ratio only compares members
    gone = replace(wrong, plausible=np.zeros(21, bool)).refit()
    found = gone.bounds(mean(-3, 9), np.zeros((1, 1)), 1)
    assert found.note == EMPTY
    assert found.empty
    assert not found.guaranteed
    assert (found.lower[0, 0], found.upper[0, 0]) == (-3.0, 9.0)
    assert "misspecified" in gone.status
    # every member was out at some time: those in the set now still bound, and nothing is guaranteed
    left = replace(wrong, alive=np.zeros(21, bool)).refit()
    found = left.bounds(mean(-3, 9), np.zeros((1, 1)), 1)
    assert EMPTY in found.note
    assert found.empty
    assert not found.guaranteed
    assert found.upper[0, 0] == GRID[-1]
    assert "misspecified" in left.status


def test_finite_members_with_nan_or_zero_density_are_excluded() -> None:
    class Holes(Means):
        def log_likelihood(self, theta, x, a, y):
            out = super().log_likelihood(theta, x, a, y)
            out[0], out[1] = np.nan, -np.inf
            return out

    learner = FiniteLearner.start(Holes([0.0, 0.1, 0.2]), delta=DELTA)
    learner = learner.absorb(np.zeros((3, 1)), np.zeros(3, int), np.zeros(3)).refit()
    assert learner.alive.tolist() == [False, False, True]
    assert learner.best[-1] == 2


def test_finite_restarts_are_valid_too() -> None:
    learner, _ = finite_learner(200, rule=radius.likelihood_ratio(restarts=True))
    assert len(learner.starts) > 2
    assert learner.alive[12]


# choosing a learner, and the user's object --------------------------------------------------------


def test_learner_for_picks_by_class_and_rule() -> None:
    gaussian = Glm("Normal", 3, extra={"scale": 0.5})
    assert isinstance(learner_for(gaussian, delta=DELTA), LinearGaussianLearner)
    assert isinstance(
        learner_for(gaussian, delta=DELTA, confidence=radius.chi_square()), ProgramLearner
    )
    assert isinstance(learner_for(LOGISTIC, delta=DELTA), ProgramLearner)
    assert isinstance(learner_for(Means(GRID), delta=DELTA), FiniteLearner)
    with pytest.raises(SettingError, match=r"delta must lie strictly between 0 and 1, got 1\.5"):
        learner_for(LOGISTIC, delta=1.5)


def test_learner_for_takes_a_gaussian_prior_as_it_is_and_summarises_another() -> None:
    class Prior(Glm):
        """N(1.5, 1/4) with, if bent, a quartic term: not a parabola."""

        def __init__(self, bent):
            super().__init__("Normal", 2, extra={"scale": 0.5})
            self.prior_free, self.bent = np.zeros(2, bool), bent

        def log_prior(self, theta):
            gap = np.asarray(theta) - 1.5
            return np.sum(-2.0 * gap**2 - self.bent * gap**4, axis=-1)

        def log_prior_grad_hessian(self, theta):
            gap = np.asarray(theta) - 1.5
            return -4.0 * gap - 4 * self.bent * gap**3, np.diag(-4.0 - 12 * self.bent * gap**2)

        def draw_prior(self, n, seed):
            return 1.5 + 0.3 * np.random.default_rng(seed).normal(size=(n, 2))

    learner = learner_for(Prior(0.0), delta=DELTA)
    assert isinstance(learner, LinearGaussianLearner)
    np.testing.assert_allclose(learner.theta, [1.5, 1.5])
    np.testing.assert_allclose(learner.space.prior, 4 * np.eye(2))
    bent = learner_for(Prior(1.0), delta=DELTA)
    assert isinstance(bent, LinearGaussianLearner)
    np.testing.assert_allclose(bent.theta, [1.5, 1.5], atol=0.03)
    np.testing.assert_allclose(np.diag(bent.space.prior), 0.3**-2.0, rtol=0.1)


@pytest.mark.parametrize(
    "cls",
    [LOGISTIC, Glm("Normal", 3, extra={"scale": 0.5})],
    ids=["ascent on programs", "ellipsoid"],
)
def test_confidence_set_answers_its_questions(cls) -> None:
    rows = some_rows(cls, TRUTH, 120, 3, 0)
    found = confidence_set(cls, rows.x, rows.a, rows.y, delta=DELTA)
    assert isinstance(found, ConfidenceSet)
    assert found.contains({"theta": TRUTH})
    assert not found.contains({"theta": TRUTH + 5})
    assert 0 < found.radius < 40
    assert "0.95" in found.rule
    drawn = found.members(30, seed=1)
    assert len(drawn) == 30
    assert all(found.contains(params) for params in drawn)
    bounds = found.bounds(mean(-9, 9), rows.x[:2], 2)
    assert bounds.upper.shape == (2, 2)
    assert set(bounds.witness[0][0]) == {"theta"}
    assert (bounds.lower <= bounds.upper).all()
    assert set(found.estimate) == {"theta"}
    assert found.status


def test_members_never_exceed_the_bounds() -> None:
    learner = learned()
    x = np.random.default_rng(3).standard_normal((5, 3))
    exact = learner.bounds(mean(0, 1), x, 2)
    for source in ("set", "prior", "laplace"):
        found = members(learner, 200, 0, source)
        assert learner.contains(found.theta).all()
        assert found.note.startswith("inner approximation")
        values = LOGISTIC.values(
            mean(0, 1), found.theta, np.repeat(x, 2, 0), np.tile([0, 1], 5)
        ).reshape(-1, 5, 2)
        assert (values <= exact.upper + 1e-9).all()
        assert (values >= exact.lower - 1e-9).all()


def test_shrinkage_table_and_plot() -> None:
    rows = some_rows(LOGISTIC, TRUTH, 256, 3, 0)
    table = shrinkage(
        LOGISTIC, mean(0, 1), rows.x, rows.a, rows.y, at=np.ones((1, 3)) * 0.4, sizes=[16, 64, 256]
    )
    assert [row.n for row in table.rows] == [16, 64, 256]
    widths = [row.width for row in table.rows]
    assert widths[0] > widths[1] > widths[2]
    for row in table.rows:
        assert row.width == pytest.approx(2 * np.sqrt(2 * row.radius / row.curvature))
        assert row.limited_by in ("radius", "curvature")
    assert "limited by" in str(table)
    axes = plot_shrinkage(table)
    assert axes.get_xlabel()
    assert any(len(line.get_xdata()) == 3 for line in axes.get_lines())


def test_shrinkage_names_the_cause() -> None:
    """Rows that say nothing about the action asked for: curvature. The same rows about it: the
    radius or nothing.
    """
    cls = Glm("Bernoulli", 2, arm_features(2))
    rng = np.random.default_rng(0)
    x, a = np.ones((600, 1)), np.where(np.arange(600) < 60, np.arange(600) % 2, 0)
    y = (rng.random(600) < 0.5).astype(float)
    table = shrinkage(cls, mean(0, 1), x, a, y, at=np.ones((1, 1)), n_actions=2, sizes=[60, 600])
    assert table.rows[-1].limited_by == "curvature"


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: confidence_set(LOGISTIC, np.ones((3, 3)), np.zeros(2, int), np.ones(3)),
            ShapeError,
            r"a \(n,\)",
        ),
        (
            lambda: confidence_set(LOGISTIC, np.ones((0, 3)), np.zeros(0, int), np.ones(0)),
            ShapeError,
            "at least one row",
        ),
        (
            lambda: confidence_set(LOGISTIC, np.ones((1, 3)), np.zeros(1, int), [np.nan]),
            NotFiniteError,
            "finite",
        ),
        (
            lambda: feed(learned(n=3), np.ones((1, 3)), np.zeros(1), np.ones(1), growth=1.0),
            SettingError,
            "growth must be",
        ),
        (lambda: members(learned(n=3), 5, 0, "dreams"), SettingError, "source must be one of"),
        (lambda: members(learned(n=3), 0), SettingError, "n must be at least 1, got 0"),
        (lambda: members(learned(n=3), 5, 0, "svi"), SettingError, "needs a guide with spread"),
        (lambda: members(learned(n=3), 5, 0, "nuts"), SettingError, "NumPyro or Pyro program"),
        (
            lambda: members(ProgramLearner.start(LOGISTIC, delta=0.1), 5),
            SettingError,
            "no bounded set",
        ),
        (
            lambda: members(ProgramLearner.start(LOGISTIC, delta=0.1), 5, 0, "laplace"),
            SettingError,
            "needs a fit",
        ),
        (lambda: ProgramLearner.start(LOGISTIC, delta=0.0), SettingError, "delta must lie"),
        (lambda: FiniteLearner.start(Means(GRID), delta=1.0), SettingError, "delta must lie"),
        (lambda: finite_learner(5, radius.chi_square()), SettingError, "parametric classes"),
        (
            lambda: shrinkage(
                LOGISTIC,
                mean(0, 1),
                np.ones((3, 3)),
                np.zeros(3, int),
                np.ones(3),
                at=np.ones(3),
                sizes=[9],
            ),
            SettingError,
            "between 1 and the 3 rows",
        ),
        (
            lambda: ConfidenceSet(Means(GRID), finite_learner(5)[0]).contains({"m": 1}),
            ParameterError,
            "members are numbers",
        ),
    ],
)
def test_errors(call, error, match) -> None:
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("Normal", {"scale": 0.5}),
        ("Bernoulli", {}),
        ("Poisson", {}),
        ("Gamma", {"concentration": 2.0}),
    ],
)
def test_features_alone_give_the_classes_own_likelihood(family, extra) -> None:
    cls = Glm(family, 3, extra=extra)
    rows = some_rows(cls, TRUTH, 5000, 3, 2)
    data = PredictorLikelihood.empty(cls.predictor, 3).append(rows.x[:7], rows.a[:7], rows.y[:7])
    data = data.append(rows.x[7:], rows.a[7:], rows.y[7:])
    theta = np.random.default_rng(0).standard_normal((20, 3))
    value, grad = data.value_grad(theta)
    expected_value, expected_grad = cls.total_grad(theta, rows)
    np.testing.assert_allclose(value, expected_value, rtol=1e-11)
    np.testing.assert_allclose(data.value(theta), expected_value, rtol=1e-11)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(
        data.information(TRUTH), -cls.total_hessian(TRUTH, rows), rtol=1e-5, atol=1e-3
    )
    part = data.between(100, 300)
    np.testing.assert_allclose(
        part.value(theta), data.row_values(theta)[:, 100:300].sum(axis=1), rtol=1e-11
    )


def test_doubles_have_right_gradients() -> None:
    """The hand-made classes are only worth something if their scores are."""
    for cls, truth in ((LOGISTIC, TRUTH), (Heteroscedastic(2), np.array([0.5, -0.3, 0.1, 0.2]))):
        assert isinstance(cls, Double)
        rows = some_rows(cls, truth, 20, cls.dim if cls is LOGISTIC else 2, 0)
        _, grad = cls.total_grad(truth[None], rows)
        step = 1e-6 * np.eye(cls.dim)
        numeric = (cls.total(truth + step, rows) - cls.total(truth - step, rows)) / 2e-6
        np.testing.assert_allclose(grad[0], numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nuts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_numpyro_program_from_end_to_end(nuts) -> None:
    """A program whose scale is log-linear in a context: sets by ascent, a witness by name, draws
    labelled as what they are.
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        s = numpyro.param("s", jnp.zeros(2))
        numpyro.sample("y", dist.Normal(x @ w, jnp.exp(s[0] + s[1] * x[:, 1])), obs=y)

    rng = np.random.default_rng(0)
    x, a = rng.standard_normal((60, 2)), rng.integers(0, 2, 60)
    truth = {"w": np.array([0.5, -0.5]), "s": np.array([-0.5, 0.3])}
    y = x @ truth["w"] + np.exp(truth["s"][0] + truth["s"][1] * x[:, 1]) * rng.standard_normal(60)
    found = confidence_set(density_class(model), x, a, y, growth=1.3)
    assert found.contains(truth)
    bounds = found.bounds(variance(50), x[:1], 2)
    assert (bounds.method, bounds.guaranteed) == ("ascent", False)
    true = np.exp(2 * (truth["s"][0] + truth["s"][1] * x[0, 1]))
    assert (bounds.lower[0] <= true).all()
    assert (true <= bounds.upper[0]).all()
    for k in range(2):
        worst = bounds.witness[0][k]
        assert set(worst) == {"w", "s"}
        assert any(
            s.region.slack(found.cls.flatten(worst)[None])[0] >= 0 for s in found.learner.sets
        )
    for source in ("laplace", "nuts") if nuts else ("laplace",):
        drawn = found.sampled_bounds(variance(50), x[:1], 2, n=64, source=source)
        assert drawn.method == "sampled"
        assert "inner approximation" in drawn.note
        assert (drawn.upper < bounds.upper).all()


def test_a_hierarchy_with_scalar_sites_has_a_set_by_site_name() -> None:
    """Its sites without a shape come back as numbers; they could not be told apart from none."""

    def sites(x, a, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([3]).to_event(1))
        g = numpyro.sample("g", dist.Normal(0, 1))
        eta = mu + tau * u[a] + g * x[:, 0]
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(40, 1)), rng.integers(0, 3, 40)
    found = ged.confidence_set(ged.density_class(sites), x, a, rng.integers(0, 2, 40) * 1.0, 0.1)
    assert found.bounds(ged.mean(0, 1), x[:2], 3).guaranteed
