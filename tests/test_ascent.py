"""The supremum over a set: ascent and the exact convex solver against brute force (SLSQP from
many starts).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from gedppl.functionals import mean, variance
from gedppl.learning.ascent import ascend, project
from gedppl.learning.learner import laplace
from gedppl.learning.likelihoods import PredictorLikelihood, ProgramLikelihood
from gedppl.learning.program_bounds import by_ascent
from gedppl.learning.program_sets import Walk, extremes, plausible
from tests.program_doubles import Double, Glm, Heteroscedastic, TanhNet, some_rows

KAPPA = 15.0


def problem(cls, theta, n, dx, seed, n_actions):
    """A region, K actions at one context, and the 2K objectives (up, then down)."""
    rows = some_rows(cls, theta, n, dx, seed)
    region = plausible(
        ProgramLikelihood(cls, rows), 0, np.asarray(theta, float), 0.0, drop=KAPPA
    ).region
    x = np.repeat(np.random.default_rng(seed + 1).standard_normal((1, dx)), 2 * n_actions, axis=0)
    a = np.tile(np.arange(n_actions), 2)
    sign = np.repeat([1.0, -1.0], n_actions)
    return rows, region, x, a, sign


def objective_of(cls, functional, x, a, sign):
    def objective(theta, which=slice(None)):
        value, grad = cls.values_grad(functional, theta, x[which], a[which])
        return sign[which] * value, sign[which][:, None] * grad

    return objective


def delta_start(region, objective, count):
    centre = np.broadcast_to(region.centre, (count, len(region.centre)))
    value, grad = objective(centre)
    white = region.whiten(grad)
    return value, region.theta(np.sqrt(2 * KAPPA) * white / np.linalg.norm(white, axis=1)[:, None])


def brute_force(region, objective, starts):
    """The best feasible end of SLSQP over starts, in whitened coordinates."""
    best = -np.inf
    for start in starts:

        def loss(z):
            value, grad = objective(region.theta(z[None]))
            return -value[0], -region.whiten(grad)[0]

        limit = {
            "type": "ineq",
            "fun": lambda z: region.slack(region.theta(z[None]))[0],
            "jac": lambda z: region.whiten(region.slack_grad(region.theta(z[None]))[1])[0],
        }
        end = minimize(
            loss,
            region.z(start[None])[0],
            jac=True,
            constraints=[limit],
            method="SLSQP",
            options={"maxiter": 200, "ftol": 1e-11},
        )
        if limit["fun"](end.x) >= -1e-6 and -end.fun > best:
            best = -end.fun
    return best


def fractions(cls, functional, theta, n, dx, seed, n_actions, extra_starts, steps):
    """Half-width that ascent reached over the best known one, for every action and side;
    gradients spent.
    """
    _, region, x, a, sign = problem(cls, theta, n, dx, seed, n_actions)
    objective = objective_of(cls, functional, x, a, sign)
    centre, start = delta_start(region, objective, len(a))
    found = ascend(region, objective, start, steps=steps)
    # every point is a member, so no value exceeds the supremum
    assert (region.slack(found.theta) >= 0).all()
    rng = np.random.default_rng(seed + 2)
    reached = []
    for i in range(len(a)):
        away = rng.standard_normal((extra_starts, len(region.centre)))
        away *= np.sqrt(2 * KAPPA) / np.linalg.norm(away, axis=1)[:, None]
        one = objective_of(cls, functional, x[i : i + 1], a[i : i + 1], sign[i : i + 1])
        with np.errstate(all="ignore"):
            best = brute_force(region, one, [start[i], found.theta[i], *region.theta(away)])
        reached.append((found.value[i] - centre[i]) / (max(best, found.value[i]) - centre[i]))
    return np.array(reached), found


@pytest.mark.parametrize(("d", "n", "seed"), [(5, 200, 0), (5, 200, 1), (20, 1000, 2)])
def test_ascent_reaches_brute_force_on_logistic(d, n, seed) -> None:
    theta = 0.5 * np.random.default_rng(d).standard_normal(d)
    reached, found = fractions(
        Glm("Bernoulli", d, exact=False), mean(0, 1), theta, n, d, seed, 2, 1, 9
    )
    assert reached.min() >= 0.999
    assert found.gradients <= 40


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ascent_reaches_brute_force_on_heteroscedastic_variance(seed) -> None:
    reached, found = fractions(
        Heteroscedastic(2), variance(50), [0.5, -0.3, 0.1, 0.2], 60, 2, seed, 2, 3, 9
    )
    assert reached.min() >= 0.999
    assert found.gradients <= 40


def test_delta_alone_is_not_safe() -> None:
    """On the same problem the delta method's upper value covers under 0.7 of the way: why ascent
    exists.
    """
    cls = Heteroscedastic(2)
    _, region, x, a, sign = problem(cls, [0.5, -0.3, 0.1, 0.2], 60, 2, 0, 2)
    objective = objective_of(cls, variance(50), x, a, sign)
    centre, start = delta_start(region, objective, 4)
    found = ascend(region, objective, start)
    half = region.half_width(objective(np.broadcast_to(region.centre, (4, 4)))[1])
    assert (half[:2] < 0.7 * (found.value - centre)[:2]).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bounds_come_close_on_a_small_tanh_net(seed) -> None:
    """Two hidden units, identified: 0.9 of the best known half-width, within 1500 gradients for
    both actions together.

    A net with a spare unit has spikes between the data that no local search finds: there is no
    certificate for nets.
    """
    cls, theta = TanhNet(2, 0.1), np.array([1.5, -1.0, 0.5, 1.0, 1.0, 0.8, 0.2])
    rows, region, x, a, sign = problem(cls, theta, 80, 1, seed, 2)
    members = laplace(cls, region.centre, region.chol @ region.chol.T, 0).theta
    members = members[region.slack(members) >= 0]
    learner = SimpleNamespace(
        cls=cls,
        sets=(plausible(ProgramLikelihood(cls, rows), 0, theta, 0.0, drop=KAPPA),),
        own=(),
        candidates=members[:32],
    )
    ends = by_ascent(learner, mean(-50, 50), x[:2], a[:2])
    witness, note = ends.witness, ends.note
    reached = np.concatenate([ends.upper, -ends.lower])
    # one by one, rows add up in another order
    assert (region.slack(witness) >= -1e-12 * np.abs(region.kappa)).all()
    assert int(re.search(r"(\d+) gradient", note)[1]) <= 1500
    objective = objective_of(cls, mean(-50, 50), x, a, sign)
    centre, start = delta_start(region, objective, 4)
    rng = np.random.default_rng(seed)
    for i in range(4):
        one = objective_of(cls, mean(-50, 50), x[i : i + 1], a[i : i + 1], sign[i : i + 1])
        away = rng.standard_normal((4, 7))
        away *= np.sqrt(2 * KAPPA) / np.linalg.norm(away, axis=1)[:, None]
        with np.errstate(all="ignore"):
            best = brute_force(region, one, [start[i], *region.theta(away)])
        assert reached[i] - centre[i] >= 0.9 * (best - centre[i])


class LateRise(Double):
    """y ~ Normal(m + 0.2 x tanh(r), 1) under action 0; under action 1 the mean is m + softplus(r -
    30).

    Rows of action 0 say little of r: however large, it costs a few units of log-likelihood. Near
    the fit action 1 is flat in it.
    """

    def row_terms(self, theta, x, a, y):
        slope = 0.2 * x[None, :, 0]
        z = y - theta[:, :1] - slope * np.tanh(theta[:, 1:])
        score = np.stack([z, z * slope * (1 - np.tanh(theta[:, 1:]) ** 2)], axis=2)
        return -0.5 * z**2 - 0.5 * np.log(2 * np.pi), score

    def values_grad(self, functional, theta, x, a):
        rise = np.logaddexp(0.0, theta[:, 1] - 30.0)
        slope = np.exp(theta[:, 1] - 30.0 - rise)
        return theta[:, 0] + a * rise, np.stack([np.ones(len(a)), a * slope], axis=1)

    def simulate(self, theta, x, a, rng):
        return theta[0] + 0.2 * x[:, 0] * np.tanh(theta[1]) + rng.standard_normal(len(a))


def late_rise():
    cls = LateRise(2)
    theta = np.array([0.5, 0.3])
    s = plausible(
        ProgramLikelihood(cls, some_rows(cls, theta, 60, 1, 0, n_actions=1)),
        0,
        theta,
        0.0,
        drop=KAPPA,
    )
    learner = SimpleNamespace(cls=cls, sets=(s,), own=(), candidates=np.zeros((0, 2)))
    return s.region, by_ascent(learner, mean(-1000, 1000), np.zeros((2, 1)), np.arange(2))


def test_an_open_direction_that_moves_the_functional_far_out_gives_the_end_of_the_range() -> None:
    region, found = late_rise()
    member = np.array([[region.centre[0], 500.0]])
    assert region.slack(member)[0] > 0  # action 1 has a mean of 470 there
    assert found.upper[1] == np.inf
    assert np.isfinite(found.upper[0])  # of which the open direction says nothing
    assert np.isfinite(found.lower).all()
    assert found.upper[0] - found.lower[0] < 4 * np.sqrt(2 * KAPPA / 60)


def test_without_the_walk_along_rays_the_open_direction_is_missed(monkeypatch) -> None:
    """The control: climbs alone stop hundreds below a member."""

    def stay(region, origin, ways):
        return Walk(origin, origin, np.zeros(len(origin), bool), 0)

    monkeypatch.setattr("gedppl.learning.ascent.walk", stay)
    monkeypatch.setattr("gedppl.learning.program_sets.walk", stay)
    monkeypatch.setattr("gedppl.learning.ascent.SCOUTS", 0)
    assert late_rise()[1].upper[1] < 400


class Bump(Double):
    """y ~ Normal(m + r x, 1); a bump of the functional in the middle of what is plausible of r, too
    narrow to be seen from the fit or from the edges.
    """

    def row_terms(self, theta, x, a, y):
        z = y - theta[:, :1] - theta[:, 1:] * x[None, :, 0]
        score = np.stack([z, z * x[:, 0]], axis=2)
        return -0.5 * z**2 - 0.5 * np.log(2 * np.pi), score

    def values_grad(self, functional, theta, x, a):
        off = (theta[:, 1] + 0.7) / 0.04
        bump = 4 * np.exp(-(off**2))
        grad = np.stack([np.ones(len(a)), -2 * off / 0.04 * bump], axis=1)
        return theta[:, 0] + bump, grad

    def simulate(self, theta, x, a, rng):
        return theta[0] + theta[1] * x[:, 0] + rng.standard_normal(len(a))


def over_a_bump() -> float:
    cls, theta = Bump(2), np.array([0.0, 0.0])
    s = plausible(
        ProgramLikelihood(cls, some_rows(cls, theta, 20, 1, 0)), 0, theta, 0.0, drop=KAPPA
    )
    learner = SimpleNamespace(cls=cls, sets=(s,), own=(), candidates=np.zeros((0, 2)))
    return by_ascent(learner, mean(-10, 10), np.zeros((1, 1)), np.zeros(1, int)).upper[0]


def test_with_few_rows_many_climbs_look_for_a_higher_top(monkeypatch) -> None:
    """The control: without them the bump, which reaches 4, is missed."""
    assert over_a_bump() == np.inf
    monkeypatch.setattr("gedppl.learning.ascent.SCOUTS", 0)
    assert over_a_bump() < 3


def test_nets_are_answered_by_the_end_of_the_range_where_climbs_agree_only_roughly(
    monkeypatch,
) -> None:
    """Six units, 19 parameters: climbs creep together (6% of the way apart) far below members that
    a long search meets. The control: with 30% of the way whatever the number of parameters, and 2%
    of the range (rounding decides where slow climbs end), the upper value stays below 4, where a
    member reaches 16.
    """
    rng = np.random.default_rng(501)
    cls = TanhNet(6, 0.3)
    theta = np.concatenate([rng.normal(size=6), 0.5 * rng.normal(size=6), 0.7 * rng.normal(size=6)])
    theta = np.append(theta, 0.2)
    s = plausible(
        ProgramLikelihood(cls, some_rows(cls, theta, 40, 1, 501)), 0, theta, 0.0, drop=KAPPA
    )
    members = laplace(cls, s.region.centre, s.region.chol @ s.region.chol.T, 0).theta
    members = members[s.region.slack(members) >= 0]
    learner = SimpleNamespace(cls=cls, sets=(s,), own=(), candidates=members[:32])
    x = rng.normal(size=(1, 1))

    def upper() -> float:
        return by_ascent(learner, mean(-20, 20), x, np.ones(1, int)).upper[0]

    assert upper() == np.inf
    monkeypatch.setattr("gedppl.learning.ascent.STRAY", 0.3 * cls.dim**2)
    monkeypatch.setattr("gedppl.learning.ascent.AGREE", 0.02)
    monkeypatch.setattr("gedppl.learning.ascent.SCOUTS", 0)
    assert upper() < 4


def small_net(hidden: int, n: int, seed: int, problem: int) -> tuple[Callable[[], float], float]:
    """A bound on the mean of a net with few units, signed upwards (two actions up, two down), and
    what 40 long climbs from anywhere reach.
    """
    cls = TanhNet(hidden, 0.3)
    theta = np.random.default_rng([seed, 9]).normal(size=cls.dim)
    s = plausible(
        ProgramLikelihood(cls, some_rows(cls, theta, n, 1, seed)), 0, theta, 0.0, drop=KAPPA
    )
    members = laplace(cls, s.region.centre, s.region.chol @ s.region.chol.T, 0).theta
    members = members[s.region.slack(members) >= 0]
    learner = SimpleNamespace(cls=cls, sets=(s,), own=(), candidates=members[:32])
    x = np.repeat(np.random.default_rng(seed + 1).standard_normal((1, 1)), 2, axis=0)

    def bound() -> float:
        found = by_ascent(learner, mean(-10, 10), x, np.arange(2))
        return np.concatenate([found.upper, -found.lower])[problem]

    row, sign = np.repeat(x[:1], 40, axis=0), np.full(40, 1.0 if problem < 2 else -1.0)
    rng = np.random.default_rng(5)
    starts = rng.standard_normal((40, cls.dim))
    far = np.sqrt(2 * KAPPA) * rng.uniform(0.2, 3.0, (40, 1))
    starts *= far / np.linalg.norm(starts, axis=1, keepdims=True)
    objective = objective_of(cls, mean(-10, 10), row, np.full(40, problem % 2), sign)
    climbed = ascend(s.region, objective, s.region.theta(starts), steps=200, tol=1e-8)
    return bound, float(np.nanmax(climbed.value))


ONE_PERCENT = 0.2  # of the range


@pytest.mark.parametrize(
    ("net", "name", "without"),
    [
        ((1, 40, 7, 0), "_ridden", lambda search, found, lost: (found, lost)),
        ((2, 60, 7, 0), "_all_if_most", lambda lost: lost),
        ((1, 40, 0, 2), "_resolution", lambda search, climbed: np.zeros(2 * len(search.a))),
    ],
    ids=["the best go on", "most are lost", "what is left of the way"],
)
def test_climbs_that_agree_are_not_believed_too_soon(monkeypatch, net, name, without) -> None:
    """Small nets with an answer more than 1% of the range below a member where one of these is
    left out: the best climbs go on along a ridge; where most bounds over a set are unknown, so are
    all; climbs that agree are as far from the top as from each other.
    """
    bound, reached = small_net(*net)
    assert bound() >= reached - ONE_PERCENT
    monkeypatch.setattr(f"gedppl.learning.ascent.{name}", without)
    assert bound() < reached - ONE_PERCENT


def test_climbs_that_end_apart_give_the_end_of_the_range(monkeypatch) -> None:
    """A net with spare units has many tops. The control: when ends apart count for nothing, a
    member lies above the bound.
    """
    cls, truth = TanhNet(6, 0.1), np.random.default_rng(3).standard_normal(19)
    s = plausible(
        ProgramLikelihood(cls, some_rows(cls, truth, 40, 1, 1)), 0, truth, 0.0, drop=KAPPA
    )
    learner = SimpleNamespace(cls=cls, sets=(s,), own=(), candidates=np.zeros((0, 19)))
    x, a = np.repeat(np.random.default_rng(2).standard_normal((1, 1)), 2, axis=0), np.arange(2)
    assert np.isposinf(by_ascent(learner, mean(-20, 20), x, a).upper[1])
    for judge in ("_apart", "_higher"):
        monkeypatch.setattr(f"gedppl.learning.ascent.{judge}", lambda *_: np.zeros(4, bool))
    lone = by_ascent(learner, mean(-20, 20), x, a)
    starts = np.random.default_rng(0).standard_normal((40, 19))
    starts *= np.sqrt(2 * KAPPA) / np.linalg.norm(starts, axis=1)[:, None]
    objective = objective_of(
        cls, mean(-20, 20), np.repeat(x[:1], 40, axis=0), np.ones(40, int), np.ones(40)
    )
    best = ascend(s.region, objective, s.region.theta(starts), steps=80)
    assert best.value.max() > lone.upper[1] + 0.01 * 40


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("Normal", {"scale": 0.5}),
        ("Bernoulli", {}),
        ("Poisson", {}),
        ("Gamma", {"concentration": 2.0}),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_extremes_solve_the_convex_problem(family, extra, own) -> None:
    cls = Glm(family, 4, extra=extra)
    rows = some_rows(cls, [0.4, -0.3, 0.2, 0.1], 120, 4, 3)
    data = PredictorLikelihood.empty(cls.predictor, 4).append(rows.x, rows.a, rows.y)
    region = plausible(data, 0, np.zeros(4), 0.0, drop=KAPPA).region
    phi = np.random.default_rng(0).standard_normal((6, 4))
    found = extremes(region, phi, own_metric=own)
    assert found.settled.all()
    assert np.abs(region.slack(found.theta)).max() < 1e-4  # on the boundary
    for i in range(len(phi)):

        def objective(theta, i=i):
            return theta @ phi[i], np.broadcast_to(phi[i], theta.shape)

        _, start = delta_start(region, objective, 1)
        best = brute_force(region, objective, start)
        half = best - phi[i] @ region.centre
        # an upper bound, and a tight one
        assert -1e-5 * half <= found.value[i] - best <= 1e-4 * half


def test_extremes_report_unbounded_directions() -> None:
    """Separable logistic data bound nothing in the separating direction: not settled, value
    infinite.
    """
    cls = Glm("Bernoulli", 1)
    x = np.linspace(-2, 2, 40)[:, None]
    data = PredictorLikelihood.empty(cls.predictor, 1).append(
        x, np.zeros(40, int), (x[:, 0] > 0).astype(float)
    )
    region = plausible(data, 0, np.ones(1), -10.0).region
    found = extremes(region, np.array([[1.0], [-1.0]]))
    assert found.settled.tolist() == [False, True]
    assert found.value[0] == np.inf
    assert data.value(found.theta[1:])[0] == pytest.approx(-10.0, abs=1e-5)


def test_zero_objective_is_settled_at_once() -> None:
    cls = Glm("Bernoulli", 2)
    rows = some_rows(cls, [0.4, -0.3], 50, 2, 3)
    data = PredictorLikelihood.empty(cls.predictor, 2).append(rows.x, rows.a, rows.y)
    region = plausible(data, 0, np.zeros(2), 0.0, drop=KAPPA).region
    found = extremes(region, np.zeros((1, 2)))
    assert found.settled.all()
    assert found.value[0] == 0.0


def test_projection_lands_inside_next_to_the_boundary() -> None:
    cls = Heteroscedastic(2)
    _, region, *_ = problem(cls, [0.5, -0.3, 0.1, 0.2], 60, 2, 0, 2)
    z = 20 * np.random.default_rng(0).standard_normal((50, 4))
    inside, _ = project(region, z, rounds=10)
    slack = region.slack(region.theta(inside))
    assert (slack >= 0).all()
    assert np.median(slack) < 0.02 * KAPPA


def test_ascent_survives_nan_beyond_an_edge() -> None:
    """A log-likelihood that turns NaN far out counts as outside."""

    class Edge(Heteroscedastic):
        def row_terms(self, theta, x, a, y):
            value, score = super().row_terms(theta, x, a, y)
            broken = theta[:, 2] > 0.3
            value[broken], score[broken] = np.nan, np.nan
            return value, score

    cls = Edge(2)
    reached, found = fractions(cls, variance(50), [0.5, -0.3, 0.1, 0.2], 60, 2, 0, 1, 0, 9)
    assert np.isfinite(found.value).all()
    assert (found.theta[:, 2] <= 0.3).all()
    assert reached.shape == (2,)
