"""The alarm that every parameter of a class is refuted: what it computes, that no prior sets it
off, and what it finds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ndtr
from scipy.stats import bernoulli, binom, norm

import gedppl as ged
from gedppl import learning as confidence
from gedppl.errors import SettingError
from gedppl.guard import ClassMonitor, PitMonitor
from gedppl.guard.bets import log_total
from gedppl.learning import linear_gaussian
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.programs.contract import LinearPredictor
from tests.plain_worlds import ArmsWorld, PlainWorld
from tests.program_doubles import Glm

NOISE = 0.3


def most_by_chance(runs: int, delta: float) -> int:
    return int(binom.ppf(0.9999, runs, delta))


# the martingale -----------------------------------------------------------------------------------


def test_against_the_true_parameter_the_rate_holds_whatever_the_predictive() -> None:
    """A predictive that is far off, and known to be: the bets alone always win, but they pay for
    it.
    """
    rng = np.random.default_rng(0)
    monitor, ratio = PitMonitor.calibration(dx=0, n_actions=1, delta=0.1, burn_in=0), np.zeros(1000)
    ever = np.zeros(1000, bool)
    for _ in range(300):
        y = rng.normal(1.0, 1.0, 1000)
        monitor = monitor.update(ndtr(y / 3.0), np.zeros((1000, 0)), np.zeros(1000, int))
        ratio += norm.logpdf(y, 0.0, 3.0) - norm.logpdf(y, 1.0, 1.0)
        ever |= log_total(monitor.log_wealth) + ratio >= math.log(10)
    assert ever.sum() <= most_by_chance(1000, 0.1)
    assert monitor.alarmed.mean() > 0.99  # without paying


def test_starts_share_delta_and_a_void_one_is_lost() -> None:
    monitor = ClassMonitor.create(delta=0.1, first=2)
    assert not monitor.contested
    for _ in range(40):
        monitor = monitor.update(0.1).pay(-1.0)
        if monitor.n >= monitor.due:
            monitor = monitor.begin(np.array([float(monitor.n)]))
    np.testing.assert_array_equal(monitor.marks, [[2.0], [8.0], [32.0]])
    np.testing.assert_allclose(monitor.log_wealth, [3.8, 3.2, 0.8])
    np.testing.assert_allclose(monitor.evidence, [-38, -32, -8])
    np.testing.assert_allclose(np.exp(monitor.log_shares), 6 / np.pi**2 / np.array([1, 4, 9]))
    by_hand = np.log(np.sum(np.exp(monitor.log_shares + monitor.log_wealth)))
    assert monitor.weigh(monitor.evidence).log_peak == pytest.approx(by_hand)
    void = monitor.pay(-np.inf)
    assert len(void.marks) == 0
    again = void.begin(np.zeros(1))
    # the shares of the void ones are spent
    assert np.exp(again.log_shares) == pytest.approx(6 / np.pi**2 / 16)
    with pytest.raises(SettingError, match="delta must lie strictly between 0 and 1"):
        ClassMonitor.create(delta=1.0)


# what it is computed from -------------------------------------------------------------------------


def learned(world, rows: int, guard: str | None = None) -> tuple:
    """A learner before and after logged rows, and the rows."""
    rng = np.random.default_rng(3)
    agent = ged.GEDUCB(world.problem, guard=guard)
    x = np.stack([world.context(rng) for _ in range(rows)])
    a = rng.integers(3, size=rows)
    y, z = np.array([world.outcome(x[i], int(a[i]), rng) for i in range(rows)]).T
    agent.observe(x[:40], a[:40], y[:40], z[:40])
    before = agent.confidence_set("utility").learner
    agent.observe(x[40:], a[40:], y[40:], z[40:])
    return before, agent.confidence_set("utility").learner, (x[40:], a[40:], y[40:])


def test_the_linear_top_is_least_squares() -> None:
    before, after, (x, a, y) = learned(ArmsWorld("Normal"), 100)
    phi = ArmsWorld("Normal").models[0].features(x, a)
    theta = np.linalg.lstsq(phi, y, rcond=None)[0]
    assert after.top(before.mark()) == pytest.approx(
        norm.logpdf(y, phi @ theta, 0.1).sum(), abs=1e-6
    )
    location, sd = before.predict(x, a)
    assert before.log_predictive(x, a, y) == pytest.approx(norm.logpdf(y, location, sd).sum())
    # with fewer rows than parameters the fit is perfect
    before, after, (x, a, y) = learned(ArmsWorld("Normal"), 42)
    assert after.top(before.mark()) == pytest.approx(2 * norm.logpdf(0.0, 0.0, 0.1), abs=1e-6)


def test_the_finite_top_is_the_best_member() -> None:
    before, after, (x, a, y) = learned(PlainWorld(), 100)
    p = after.cls.tables[:, x[:, 0].astype(int), a]
    each = bernoulli.logpmf(y, p)
    assert after.top(before.mark()) == pytest.approx(each.sum(axis=1).max())
    weights = np.exp(before.totals - before.totals.max())
    mixed = weights @ np.exp(each) / weights.sum()
    assert before.log_predictive(x, a, y) == pytest.approx(np.log(mixed).sum())


def test_the_top_of_a_linear_predictor_is_that_of_an_independent_search() -> None:
    before, after, (x, a, y) = learned(ArmsWorld("Bernoulli"), 160)
    phi = ArmsWorld("Bernoulli").models[0].features(x, a)

    def loss(theta):
        eta = phi @ theta
        return np.logaddexp(0, eta).sum() - y @ eta

    assert after.top(before.mark()) == pytest.approx(-minimize(loss, np.zeros(6)).fun, abs=1e-6)
    probs = before.cls.density_at(before.particles.theta, x, a).args["probs"]
    mixed = np.exp(before.particles.log_weights) @ np.where(y == 1, probs, 1 - probs)
    assert before.log_predictive(x, a, y) == pytest.approx(np.log(mixed).sum())


@pytest.mark.parametrize("unit", [1.0, 3e4, 1e7])
def test_a_top_is_found_whatever_the_unit_of_a_feature(unit) -> None:
    """Money beside an intercept: no direction is too faint to be climbed, or the truth itself
    would look refuted.
    """
    rng = np.random.default_rng(0)
    x, a = rng.random((500, 1)) + 0.5, np.zeros(500, int)

    def features(x, a):
        return np.column_stack([np.ones(len(x)), unit * x[:, 0]])

    def plain(x, a):
        return np.zeros(len(x))

    line = LinearPredictor(
        "Normal", "identity", features, plain, lambda x, a: {"scale": np.full(len(x), NOISE)}
    )
    learner = LinearGaussianLearner.start(line, 2, delta=0.1)
    start, y = learner.mark(), rng.normal(1 + 0.5 * x[:, 0], NOISE)
    top = learner.absorb(x, a, y).top(start)
    fitted = np.polyval(np.polyfit(x[:, 0], y, 1), x[:, 0])
    assert top == pytest.approx(norm.logpdf(y, fitted, NOISE).sum(), abs=1e-3)

    coin = LinearPredictor("Bernoulli", "logit", features, plain, lambda x, a: {})
    chance = 1 / (1 + np.exp(-(2 - 2 * x[:, 0])))
    y = (rng.random(500) < chance).astype(float)
    data = PredictorLikelihood.empty(coin, 2).append(x, a, y)
    found = data.top(np.zeros(2))
    assert bernoulli.logpmf(y, chance).sum() < found < bernoulli.logpmf(y, chance).sum() + 8


def test_only_classes_with_a_known_top_can_be_refuted() -> None:
    general = ArmsWorld("Bernoulli", exact=False, actions=2)
    agent = ged.GEDUCB(general.problem)
    agent.ask([1.0, 0.5])
    assert not agent.confidence_set("cost").learner.refutable


# what it finds ------------------------------------------------------------------------------------


class Rows:
    """K = 3 actions, each linear in 1 and two columns; `kind` says how the outcomes depart from
    that, by `size` noise units.
    """

    def __init__(self, kind: str, size: float = 0.0, family: str = "Normal") -> None:
        self.kind, self.size, self.family = kind, size, family

    def features(self, x, a):
        out = np.zeros((len(a), 3, 3))
        out[np.arange(len(a)), a] = np.column_stack([np.ones(len(a)), x])
        return out.reshape(len(a), 9)

    def problem(self) -> ged.Problem:
        extra = {"scale": NOISE} if self.family == "Normal" else {}
        model = Glm(self.family, 9, self.features, extra, bound=np.inf)
        low, high = (0, 1) if self.family == "Bernoulli" else (-100, 100)
        return ged.Problem(n_actions=3, utility=ged.Utility(model, ged.mean(low, high)))

    def rows(self, n: int, seed: int, truth: float):
        rng = np.random.default_rng([5, seed])
        theta = truth * rng.normal(size=9)
        x, a = rng.normal(size=(n, 2)), rng.integers(3, size=n)
        change = self.size * NOISE * rng.choice([-1.0, 1.0], size=9) * (self.kind == "drift")
        loc = self.features(x, a) @ theta + (np.arange(n) >= n // 2) * (
            self.features(x, a) @ change
        )
        curve = self.size * NOISE * (x[:, 0] ** 2 - 1) * (self.kind == "quadratic")
        if self.family == "Bernoulli":
            return x, a, (rng.random(n) < 1 / (1 + np.exp(-loc - curve / NOISE))).astype(float)
        error = rng.standard_t(3, n) / math.sqrt(3) if self.kind == "t3" else rng.normal(size=n)
        return x, a, loc + curve + NOISE * error


def alarms(world: Rows, runs: int, rounds: int, truth: float = 1.0) -> dict[str, int]:
    """How many runs raised each kind of alarm, and any."""
    count = {"calibration": 0, "drift": 0, "refuted": 0, "any": 0}
    for seed in range(runs):
        agent = ged.GEDUCB(world.problem(), seed=seed, guard="warn")
        agent.observe(*world.rows(rounds, seed, truth))
        kinds = {alarm.name.partition(":")[0] for alarm in agent.alarms} | (
            {"any"} if agent.alarms else set()
        )
        count = {kind: n + (kind in kinds) for kind, n in count.items()}
    return count


WRONG = [
    Rows("quadratic", 0.4),
    Rows("t3"),
    Rows("drift", 0.8),
    Rows("quadratic", 1.5, "Bernoulli"),
]
LABELS = [f"{w.family} {w.kind}" for w in WRONG]


@pytest.mark.filterwarnings("ignore::gedppl.agent.AlarmWarning")
@pytest.mark.parametrize("world", WRONG, ids=LABELS)
def test_wrong_classes_are_refuted(world) -> None:
    assert alarms(world, runs=2, rounds=1000)["refuted"] == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gedppl.agent.AlarmWarning")
@pytest.mark.parametrize("world", WRONG, ids=LABELS)
def test_wrong_classes_are_refuted_in_nine_of_ten_runs(world) -> None:
    assert alarms(world, runs=60, rounds=1000)["refuted"] > 0.9 * 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gedppl.agent.AlarmWarning")
@pytest.mark.parametrize(
    "world", [Rows("quadratic", 0.25), Rows("t3"), Rows("drift", 0.4)], ids=lambda w: w.kind
)
def test_smaller_flaws_raise_an_alarm_in_nine_of_ten_runs(world) -> None:
    assert alarms(world, runs=60, rounds=1000)["any"] > 0.9 * 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gedppl.agent.AlarmWarning")
@pytest.mark.parametrize("truth", [1.0, 30.0])
@pytest.mark.parametrize("family", ["Normal", "Bernoulli"])
def test_right_classes_are_refuted_in_no_more_than_delta_of_the_runs(family, truth) -> None:
    found = alarms(Rows("right", family=family), runs=200, rounds=1000, truth=truth)
    assert found["refuted"] <= most_by_chance(200, 0.05)
    if truth == 1.0:
        assert found["any"] <= 0.05 * 200, found


@pytest.mark.filterwarnings("ignore::gedppl.agent.AlarmWarning")
def test_a_prior_far_off_is_called_wrong_but_never_refuted(monkeypatch) -> None:
    """A declared prior itself as predictive, a hundred standard deviations off: the bets win,
    the class stays.
    """
    monkeypatch.setattr(linear_gaussian, "WIDER_PRIOR", 1.0)
    monkeypatch.setattr(
        confidence,
        "gaussian_prior",
        lambda cls, seed: (np.asarray(cls.initial, float), np.eye(cls.dim)),
    )
    found = alarms(Rows("right"), runs=3, rounds=300, truth=100.0)
    assert found["any"] == 3
    assert found["refuted"] == 0
    # the positive control: without paying for the prior it would be refuted
    monkeypatch.setattr(ClassMonitor, "weigh", lambda self, tops: _free(self))
    assert alarms(Rows("right"), runs=3, rounds=300, truth=100.0)["refuted"] == 3


def _free(monitor: ClassMonitor) -> ClassMonitor:
    from dataclasses import replace

    return replace(
        monitor, log_peak=np.asarray(np.logaddexp.reduce(monitor.log_shares + monitor.log_wealth))
    )
