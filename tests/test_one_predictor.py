"""One-predictor families: their terms against the families' own log-densities, concavity, bounds
by brute force.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from gedppl.density import Density
from gedppl.families.one_predictor import FAMILIES, OnePredictor
from gedppl.functionals import cvar, expected, mean, probability, quantile, second_moment, variance
from gedppl.learning import feed
from gedppl.learning.program_bounds import over_interval
from gedppl.learning.programs import ProgramLearner
from tests.program_doubles import FIXED, TAKES, OnePredictorDouble


def fixed_of(family, n=None):
    return {
        name: np.asarray(FIXED[name]) if n is None else np.full(n, FIXED[name])
        for name in TAKES.get(family, ())
    }


def inner(domain, n):
    """Predictors well inside a domain, (n,)."""
    low, high = max(domain[0], -2.5), min(domain[1], 2.5)
    return np.linspace(low + 0.02 * (high - low), high - 0.02 * (high - low), n)


def outcomes_of(name, seed=0, n=60):
    """Outcomes (n,) that the family draws at predictors spread over its domain."""
    family = FAMILIES[name]
    return Density(name[0], family.arguments(inner(family.domain, n), fixed_of(name[0], n))).sample(
        seed, 1
    )[0]


@pytest.mark.parametrize("name", FAMILIES, ids="-".join)
def test_terms_are_the_familys_log_density_and_its_derivatives(name) -> None:
    family = FAMILIES[name]
    y = outcomes_of(name)
    eta = np.random.default_rng(1).permutation(inner(family.domain, len(y)))
    fixed = fixed_of(name[0], len(y))
    value, slope, curvature = family.terms(eta, y, fixed)
    np.testing.assert_allclose(
        value, Density(name[0], family.arguments(eta, fixed)).log_prob(y), rtol=1e-9, atol=1e-10
    )
    h = 1e-5
    ahead, behind = family.terms(eta + h, y, fixed), family.terms(eta - h, y, fixed)
    np.testing.assert_allclose(slope, (ahead[0] - behind[0]) / (2 * h), rtol=1e-5, atol=1e-5)
    if family.smooth:
        np.testing.assert_allclose(
            curvature, -(ahead[1] - behind[1]) / (2 * h), rtol=1e-4, atol=1e-5
        )


def concave(family: OnePredictor, name, seed=0):
    """Whether the log-density lies on or above every chord, by trying random ones with random
    outcomes.
    """
    rng = np.random.default_rng(seed)
    y = np.repeat(outcomes_of(name, seed), 40)
    low, high = max(family.domain[0], -6.0), min(family.domain[1], 6.0)
    ends = rng.uniform(low, high, (2, len(y)))
    share = rng.random(len(y))
    fixed = fixed_of(name[0], len(y))
    with np.errstate(all="ignore"):
        left, right, between = (
            family.terms(e, y, fixed)[0] for e in (*ends, share * ends[0] + (1 - share) * ends[1])
        )
        chord = share * left + (1 - share) * right
    return bool(np.all((between >= chord - 1e-9 * (1 + np.abs(chord))) | ~np.isfinite(chord)))


@pytest.mark.parametrize("name", FAMILIES, ids="-".join)
def test_every_family_of_the_table_is_concave(name) -> None:
    assert concave(FAMILIES[name], name)


def test_a_family_that_is_not_concave_is_found_out() -> None:
    """The positive control: a cauchit link, declared concave."""

    def cauchit(eta, y, fixed):
        p = 0.5 + np.arctan(eta) / np.pi
        return np.where(y == 1, np.log(p), np.log1p(-p)), None, None

    name = ("Bernoulli", "logit")
    assert not concave(replace(FAMILIES[name], terms=cauchit), name)


@pytest.mark.parametrize("name", FAMILIES, ids="-".join)
def test_the_third_derivative_is_bounded_as_declared(name) -> None:
    family = FAMILIES[name]
    if family.growth is None:
        return
    y, h = outcomes_of(name), 1e-4
    eta, fixed = inner(family.domain, len(y)), fixed_of(name[0], len(y))
    third = (family.terms(eta + h, y, fixed)[2] - family.terms(eta - h, y, fixed)[2]) / (2 * h)
    assert np.all(
        np.abs(third) <= family.growth(fixed) * family.terms(eta, y, fixed)[2] * (1 + 1e-5) + 1e-7
    )


def functionals(name):
    y = np.sort(outcomes_of(name))
    low, high = float(y[10]) + 0.1, float(y[50]) + 0.4
    wide = 1e6
    return [
        mean(-wide, wide),
        probability(above=low),
        probability(below=high),
        probability(above=low, below=high),
        quantile(0.9, -wide, wide),
        cvar(0.8, -wide, wide),
        variance(wide),
        second_moment(wide),
    ]


@pytest.mark.parametrize("name", FAMILIES, ids="-".join)
def test_over_an_interval_of_the_predictor_no_functional_leaves_its_bounds(name) -> None:
    """Against a fine grid: the ends and the known turns have the extremes."""
    family = FAMILIES[name]
    learner = ProgramLearner.start(
        OnePredictorDouble(*name, 1, extra=fixed_of(name[0])), delta=0.05
    )
    points = inner(family.domain, 9)
    ends = np.array([(a, b) for i, a in enumerate(points) for b in points[i + 1 :]])
    x, a = np.ones((len(ends), 1)), np.zeros(len(ends), int)
    columns, _ = learner.data.columns(x, a)
    grid = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * np.linspace(0, 1, 401)
    density = learner.data.density(
        grid.T, {k: np.full(grid.T.shape, v) for k, v in fixed_of(name[0]).items()}
    )
    for functional in functionals(name):
        lower, upper, _ = over_interval(learner.data, learner, functional, columns, ends, x, a)
        seen = np.asarray(functional(density, x=x, a=a), float)
        slip = 1e-9 * (1 + np.abs(seen).max(axis=0))
        assert np.all(lower <= seen.min(axis=0) + slip), functional
        assert np.all(upper >= seen.max(axis=0) - slip), functional
        span = 1e-6 + 2e-4 * (seen.max(axis=0) - seen.min(axis=0))
        assert np.all(lower >= seen.min(axis=0) - span), functional
        assert np.all(upper <= seen.max(axis=0) + span), functional


# bounds over the set ------------------------------------------------------------------------------

STOCHASTIC = {  # a truth (D,) for features (1, x0, x1) with x in [0, 1]: inside every domain
    "identity": {"Bernoulli": (0.2, 0.4), "Binomial": (0.2, 0.4), "Poisson": (0.5, 2.0)},
    "log": {"Bernoulli": (-1.5, 1.0), "Binomial": (-1.5, 1.0)},
}


def positive_line(x, a):
    """One and a context between 0 and 1, the action's share of it."""
    return np.stack([np.ones(len(a)), x[:, 0] / (1.0 + a)], axis=1)


def learned(name, n=60, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.array(STOCHASTIC.get(name[1], {}).get(name[0], (0.3, -0.6)))
    cls = OnePredictorDouble(*name, 2, positive_line, extra=fixed_of(name[0]), initial=truth)
    x, a = rng.random((n, 1)), rng.integers(0, 2, n)
    y = cls.simulate(truth, x, a, rng)
    return feed(ProgramLearner.start(cls, delta=0.05, seed=seed), x, a, y, growth=1.5)


def farthest_by_rays(slack, centre, phi, angles=49):
    """max phi'v over {v (2,) : slack(v (M, 2)) >= 0}, a star around the centre: the boundary on
    rays, the best angle zoomed in on.
    """

    def boundary(angle):
        rays = np.stack([np.cos(angle), np.sin(angle)], axis=1)

        def inside(r):
            with np.errstate(all="ignore"):
                return slack(centre + r[:, None] * rays) > 0

        high = np.full(len(angle), 1e-3)
        for _ in range(40):
            high = np.where(inside(high), 2 * high, high)
        low = np.zeros(len(angle))
        for _ in range(70):
            middle = 0.5 * (low + high)
            good = inside(middle)
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        return (centre + low[:, None] * rays) @ phi

    left, right = 0.0, 2 * np.pi
    for _ in range(9):
        grid = np.linspace(left, right, angles)
        reached = boundary(grid)
        best, step = grid[int(np.argmax(reached))], grid[1] - grid[0]
        left, right = best - 1.5 * step, best + 1.5 * step
    return float(reached.max())


@pytest.mark.parametrize(
    "name",
    [name for name in FAMILIES if name[0] != "Binomial" or name[1] == "probit"],
    ids="-".join,
)
def test_bounds_are_the_extremes_of_the_profile_likelihood(name) -> None:
    learner = learned(name, seed=len(name[0]))
    found = learner.bounds(mean(-1e9, 1e9), np.array([[0.9]]), 2)
    assert found.method == "exact"
    assert found.guaranteed
    for a in range(2):
        phi = positive_line(np.array([[0.9]]), np.array([a]))[0]
        ends = []
        for s in learner.sets:
            threshold = float(s.data.value(s.region.centre[None])[0]) - s.region.kappa
            slack = lambda v, s=s, t=threshold: s.data.row_values(v).sum(axis=1) - t  # noqa: E731
            ends.append(
                [farthest_by_rays(slack, s.region.centre, sign * phi) for sign in (1.0, -1.0)]
            )
        values = [
            learner.data.density(np.array([e[0], -e[1]]), fixed_of(name[0], 2)).mean for e in ends
        ]
        pairs = np.sort(np.array(values), axis=1)
        # one of the sets was used
        gap = np.abs(pairs - [found.lower[0, a], found.upper[0, a]]).max(axis=1)
        assert gap.min() < 1e-6 * (1 + np.abs(pairs).max()), (pairs, found.lower, found.upper)


def test_a_monotone_function_of_counted_outcomes_is_exact_and_another_is_not() -> None:
    """E fn(Y) is monotone in the predictor if fn is monotone in y: seen outcome by outcome,
    where there are finitely many.
    """
    learner, x = learned(("Binomial", "logit")), np.array([[0.5]])
    rising = learner.bounds(expected(lambda y, x, a: np.minimum(y, 3.0) ** 2, 0, 9), x, 2)
    assert rising.method == "exact"
    assert rising.guaranteed
    p = learner.bounds(mean(0, 5), x, 2)
    for end, level in ((rising.lower, p.lower / 5), (rising.upper, p.upper / 5)):
        y = np.arange(6.0)
        want = [np.sum(binom.pmf(y, 5, q) * np.minimum(y, 3.0) ** 2) for q in level[0]]
        np.testing.assert_allclose(end[0], want, atol=1e-6)
    humped = learner.bounds(expected(lambda y, x, a: (y - 2.0) ** 2, 0, 9), x, 2)
    assert not humped.guaranteed
    assert "grid" in humped.note
    either = learned(("Bernoulli", "probit")).bounds(
        expected(lambda y, x, a: np.where(y == 1, -2.0, 3.0), -2, 3), x, 2
    )
    assert either.guaranteed


# signs and boxes ----------------------------------------------------------------------------------


def boxed(name, low, high, seed=0, n=50):
    """A learner whose two coefficients have supports."""
    learner = learned(name, n=n, seed=seed)
    learner.cls.sites = (SimpleNamespace(name="v", shape=(2,), start=0, stop=2),)
    learner.cls.bounds = {"v": (np.array(low), np.array(high))}
    return learner


@pytest.mark.parametrize(
    "name", [("Bernoulli", "logit"), ("Poisson", "log"), ("Laplace", "identity")], ids="-".join
)
@pytest.mark.parametrize(
    "box",
    [((-0.2, -0.2), (0.4, 0.6)), ((0.0, -np.inf), (np.inf, 0.0)), ((0.1, -np.inf), (0.35, np.inf))],
)
def test_bounds_inside_a_box_are_the_extremes_inside_it(name, box) -> None:
    """A box of support, signs, one side open: the set and the box together, not each for itself."""
    learner = boxed(name, *box, seed=2)
    found = learner.bounds(mean(-1e9, 1e9), np.array([[0.9]]), 2)
    low, high = (np.array(side) for side in box)
    start = np.clip(np.array([0.3, -0.05]), np.maximum(low, -1) + 1e-3, np.minimum(high, 1) - 1e-3)
    for a in range(2):
        phi = positive_line(np.array([[0.9]]), np.array([a]))[0]
        pairs = []
        for s in learner.sets:

            def slack(v: np.ndarray, s: object = s) -> np.ndarray:
                inside = np.all((v >= low) & (v <= high), axis=1)
                return np.where(inside, s.region.slack(v), -1.0)

            if slack(start[None])[0] > 0:
                ends = [farthest_by_rays(slack, start, sign * phi) for sign in (1.0, -1.0)]
                values = learner.data.density(
                    np.array([ends[0], -ends[1]]), fixed_of(name[0], 2)
                ).mean
                pairs.append(np.sort(values))
        gap = np.abs(np.array(pairs) - [found.lower[0, a], found.upper[0, a]]).max(axis=1)
        assert gap.min() < 2e-6 * (1 + np.abs(pairs).max()), (pairs, found.lower, found.upper)
    free = learned(name, n=50, seed=2).bounds(mean(-1e9, 1e9), np.array([[0.9]]), 2)
    assert np.all(found.upper <= free.upper + 1e-9)
    # and the box was worth something
    assert np.any(found.upper - found.lower < 0.98 * (free.upper - free.lower))


def test_a_box_alone_bounds_what_no_row_has_seen() -> None:
    """An arm that was never tried has its own coefficient, with a support: the walls are all
    there is, and enough.
    """
    cls = OnePredictorDouble(
        "Bernoulli", "identity", 2, lambda x, a: np.eye(2)[a], initial=[0.5, 0.5]
    )
    cls.sites = (SimpleNamespace(name="v", shape=(2,), start=0, stop=2),)
    cls.bounds = {"v": (np.zeros(2), np.array([1.0, 0.3]))}
    rng = np.random.default_rng(0)
    y = (rng.random(40) < 0.6).astype(float)
    learner = feed(
        ProgramLearner.start(cls, delta=0.05), np.ones((40, 1)), np.zeros(40, int), y, growth=1.5
    )
    found = learner.bounds(mean(0, 1), np.ones((1, 1)), 2)
    assert found.guaranteed
    np.testing.assert_allclose([found.lower[0, 1], found.upper[0, 1]], [0.0, 0.3], atol=1e-7)
    slack = learner.sets[0].region.slack
    ends = [
        brentq(lambda p: slack(np.array([[p, 0.2]]))[0], y.mean(), end) for end in (1e-6, 1 - 1e-6)
    ]
    np.testing.assert_allclose([found.lower[0, 0], found.upper[0, 0]], ends, atol=1e-6)
