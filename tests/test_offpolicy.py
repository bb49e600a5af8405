"""Off-policy estimates as statistics: unbiased, covering, and wrong where their assumptions are
broken.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl.errors import (
    ActionRangeError,
    NotFiniteError,
    PropensityError,
    SettingError,
    ShapeError,
)
from gedppl.study.offpolicy import Log, cross_fitted, doubly_robust, empirical_bernstein, ips, snips
from gedppl.study.simulation import FixedPolicy, simulate
from gedppl.study.simulation.runs import Run
from tests.table_runs import WORLD, K

N, REPEATS, DELTA = 400, 300, 0.1
MEANS = np.array([[0.2, 0.5, 0.8], [0.9, 0.4, 0.1]])  # P(y = 1) by context and action
LOGGING = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
TARGET = np.array([[0.1, 0.3, 0.6], [0.5, 0.3, 0.2]])
WRONG_MODEL = np.array([[0.5, 0.1, 0.3], [0.2, 0.9, 0.6]])
VALUE = float((TARGET * MEANS).sum(axis=1).mean())
MAX_WEIGHT = float((TARGET / LOGGING).max())
TOO_MANY = int(binom.ppf(0.9999, REPEATS, DELTA))  # misses beyond this reject coverage 1 - delta


def policy(x):
    return TARGET[x[:, 0].astype(int)]


def draw(rng, n=N):
    c = rng.integers(2, size=n)
    a = (LOGGING[c].cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    y = (rng.random(n) < MEANS[c, a]).astype(float)
    return Log(c[:, None].astype(float), a, LOGGING[c, a], y)


def model(table):
    return lambda x: table[x[:, 0].astype(int)]


ESTIMATORS = {
    "ips": lambda log: ips(log, policy, delta=DELTA),
    "snips": lambda log: snips(log, policy, delta=DELTA),
    "dr, right model": lambda log: doubly_robust(log, policy, model(MEANS), delta=DELTA),
    "dr, wrong model": lambda log: doubly_robust(log, policy, model(WRONG_MODEL), delta=DELTA),
    "ips, bernstein": lambda log: ips(
        log, policy, delta=DELTA, interval="bernstein", outcome_range=(0, 1), max_weight=MAX_WEIGHT
    ),
    "dr, bernstein": lambda log: doubly_robust(
        log,
        policy,
        model(WRONG_MODEL),
        delta=DELTA,
        interval="bernstein",
        outcome_range=(0, 1),
        max_weight=MAX_WEIGHT,
    ),
}


def repeat(estimator, change=lambda log: log, n=N):
    """Bias in standard errors of the mean, and intervals that miss, over seeded logs."""
    found = [estimator(change(draw(np.random.default_rng([7, i]), n))) for i in range(REPEATS)]
    values = np.array([e.value for e in found])
    bias = (values.mean() - VALUE) / (values.std(ddof=1) / math.sqrt(REPEATS))
    return bias, sum(not e.low <= VALUE <= e.high for e in found), found


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimates_are_unbiased_and_intervals_cover(name):
    bias, misses, found = repeat(ESTIMATORS[name])
    assert abs(bias) < 4
    assert misses <= TOO_MANY
    # and are no wider than they need be: the stderr is the spread there is
    if "bernstein" not in name:
        spread = np.std([e.value for e in found], ddof=1)
        assert np.mean([e.stderr for e in found]) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("name", ["ips", "snips", "dr, wrong model", "ips, bernstein"])
def test_wrong_propensities_are_found_out(name):
    """The negative control: a log that claims uniform propensities breaks what the test above
    checks.
    """

    def claims_uniform(log):
        return Log(log.x, log.action, np.full(len(log), 1 / K), log.outcome)

    bias, misses, _ = repeat(ESTIMATORS[name], claims_uniform, n=4000 if "bernstein" in name else N)
    assert abs(bias) > 10
    assert misses > TOO_MANY


def test_doubly_robust_is_right_if_either_the_model_or_the_propensities_are():
    def claims_uniform(log):
        return Log(log.x, log.action, np.full(len(log), 1 / K), log.outcome)

    assert abs(repeat(ESTIMATORS["dr, right model"], claims_uniform)[0]) < 4
    assert abs(repeat(ESTIMATORS["dr, wrong model"])[0]) < 4


def test_a_good_model_narrows_the_interval_and_snips_does_not_mind_a_common_factor():
    log = draw(np.random.default_rng(0), 2000)
    assert ESTIMATORS["dr, right model"](log).stderr < 0.9 * ESTIMATORS["ips"](log).stderr
    halved = Log(log.x, log.action, log.propensity / 2, log.outcome)
    assert snips(halved, policy).value == pytest.approx(snips(log, policy).value)
    assert ips(halved, policy).value == pytest.approx(2 * ips(log, policy).value)


def test_by_hand():
    log = Log(
        np.zeros((4, 1)),
        np.array([0, 0, 1, 1]),
        np.array([0.5, 0.25, 0.5, 0.5]),
        np.array([1.0, 2.0, 3.0, 5.0]),
    )
    pi = np.tile([0.5, 0.5], (4, 1))  # weights 1, 2, 1, 1
    assert ips(log, pi).value == (1 + 4 + 3 + 5) / 4
    assert snips(log, pi).value == pytest.approx(13 / 5)
    q = np.tile([1.0, 4.0], (4, 1))
    assert doubly_robust(log, pi, q).value == 2.5 + (0 + 2 * 1 - 1 + 1) / 4
    found = ips(log, pi)
    assert (found.n, found.largest_weight, found.effective_n) == (4, 2.0, 25 / 7)
    assert found.high - found.value == pytest.approx(
        1.959964 * np.std([1, 4, 3, 5], ddof=1) / 2, rel=1e-6
    )
    assert "4 rows worth 4, largest weight 2" in str(found)


def test_bernstein_equals_the_formula_written_row_by_row():
    x = np.random.default_rng(1).beta(2, 5, size=50)
    log_term, total, weighted, penalty = math.log(2 / 0.05), 0.0, 0.0, 0.0
    mean, squares, seen = 0.5, 0.25, 0.5
    for i, value in enumerate(x):
        bet = min(0.5, math.sqrt(2 * log_term / (len(x) * squares / (i + 1))))
        total, weighted = total + bet, weighted + bet * value
        penalty += (value - mean) ** 2 * (-math.log(1 - bet) - bet)
        seen += value
        mean = seen / (i + 2)
        squares += (value - mean) ** 2
    reach = (log_term + penalty) / total
    np.testing.assert_allclose(
        empirical_bernstein(x, 0, 1, 0.05),
        (max(0, weighted / total - reach), weighted / total + reach),
    )
    np.testing.assert_allclose(
        empirical_bernstein(10 * x - 3, -3, 7, 0.05),
        10 * np.array(empirical_bernstein(x, 0, 1, 0.05)) - 3,
    )


def test_bernstein_covers_on_an_adaptive_log():
    """Propensities follow the past: after good outcomes of action 1 it is played more."""
    pi, misses, values = np.array([0.0, 1.0]), 0, []
    for i in range(200):
        rng = np.random.default_rng([9, i])
        a, p, y, share = [], [], [], 0.5
        for _ in range(120):
            one = rng.random() < share
            a.append(int(one))
            p.append(share if one else 1 - share)
            y.append(float(rng.random() < (0.6 if one else 0.3)))
            if one:
                share = min(0.9, share + 0.1) if y[-1] else max(0.1, share - 0.1)
        log = Log(np.zeros((120, 1)), np.array(a), np.array(p), np.array(y))
        found = ips(
            log,
            np.tile(pi, (120, 1)),
            delta=DELTA,
            interval="bernstein",
            outcome_range=(0, 1),
            max_weight=10,
        )
        values.append(found.value)
        misses += not found.low <= 0.6 <= found.high
    assert misses <= binom.ppf(0.9999, 200, DELTA)
    assert abs(np.mean(values) - 0.6) < 4 * np.std(values, ddof=1) / math.sqrt(200)


def test_a_runs_log_has_exact_propensities():
    run = simulate(WORLD.problem(), WORLD, FixedPolicy(lambda x: LOGGING[int(x[0])]), 1000, seed=1)
    for outcome, truth in (("utility", WORLD.F[0]), ("cost", WORLD.G[0])):
        log = Log.of(run, outcome)
        np.testing.assert_array_equal(log.propensity, LOGGING[run.x[:, 0].astype(int), run.action])
        value = (policy(run.x) * truth[run.x[:, 0].astype(int)]).sum(axis=1).mean()
        for found in (ips(log, policy), snips(log, policy)):
            assert abs(found.value - value) < 4 * found.stderr
    with pytest.raises(SettingError, match="no outcome 'fee'; choose from"):
        Log.of(run, "fee")
    partly = Run(
        run.problem, 0, [replace(r, y=None if i == 3 else r.y) for i, r in enumerate(run.rounds)]
    )
    with pytest.raises(NotFiniteError, match="1 of 1000 rounds have no outcome"):
        Log.of(partly)


def test_an_agents_policy_can_be_evaluated_as_it_is():
    agent = ged.GEDUCB(WORLD.problem())
    log = draw(np.random.default_rng(0), 20)
    assert ips(log, agent.policy).value == ips(log, agent.policy(log.x)).value


def test_cross_fitting_never_predicts_a_row_from_itself():
    log = draw(np.random.default_rng(0), 60)
    marked = Log(np.arange(60.0)[:, None], log.action, log.propensity, log.outcome)
    seen = []

    def fit(x, a, y):
        def predict(new):
            seen.append((set(x[:, 0]), set(new[:, 0])))
            return np.repeat(new, K, axis=1)

        return predict

    out = cross_fitted(fit, marked, folds=4)
    assert all(not kept & held for kept, held in seen)
    assert sum(len(held) for _, held in seen) == 60
    np.testing.assert_array_equal(out, np.repeat(marked.x, K, axis=1))
    with pytest.raises(SettingError, match="folds must lie between 2 and the 60 rows"):
        cross_fitted(fit, marked, folds=61)


GOOD = {
    "x": np.zeros((3, 1)),
    "action": np.array([0, 1, 2]),
    "propensity": np.full(3, 0.5),
    "outcome": np.ones(3),
}


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"x": np.zeros(3)}, ShapeError, r"x \(n, dx\)"),
        ({"x": np.zeros((0, 1)), "action": np.zeros(0, int)}, ShapeError, "at least 1"),
        ({"outcome": np.ones((3, 1))}, ShapeError, r"\(3, 1\)"),
        ({"action": np.array([0, 1, -1])}, ActionRangeError, "whole numbers from 0"),
        ({"action": np.array([0.0, 1.0, 2.0])}, ActionRangeError, "float64"),
        (
            {"outcome": np.array([1.0, np.nan, 1.0])},
            NotFiniteError,
            "outcomes must be finite, got nan",
        ),
        (
            {"propensity": np.array([0.5, 0.0, 0.5])},
            PropensityError,
            r"in \(0, 1\], got 0.0 in row "
            r"1",
        ),
        ({"propensity": np.array([0.5, 0.5, 1.5])}, PropensityError, "got 1.5 in row 2"),
        ({"propensity": np.array([np.nan, 0.5, 0.5])}, PropensityError, "got nan in row 0"),
    ],
)
def test_bad_logs_are_named(change, error, match):
    with pytest.raises(error, match=match):
        Log(**(GOOD | change))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda log: ips(log, np.zeros((2, 3))), ShapeError, "for the log's 3 rows"),
        (
            lambda log: ips(log, np.tile([0.5, 0.5], (3, 1))),
            ActionRangeError,
            "the log plays action 2",
        ),
        (lambda log: ips(log, np.tile([0.5, 0.6, 0.5], (3, 1))), PropensityError, "summing to 1"),
        (lambda log: ips(log, np.tile([-0.5, 1.0, 0.5], (3, 1))), PropensityError, "at least 0"),
        (lambda log: ips(log, np.eye(3), delta=0), SettingError, "delta must lie strictly between"),
        (lambda log: ips(log, np.eye(3), interval="t"), SettingError, "interval must be"),
        (
            lambda log: ips(log, np.eye(3), interval="bernstein"),
            SettingError,
            "needs outcome_range",
        ),
        (
            lambda log: ips(
                log, np.eye(3), interval="bernstein", outcome_range=(0, 0.5), max_weight=2
            ),
            SettingError,
            "outcome_range must hold every outcome",
        ),
        (
            lambda log: ips(
                log, np.eye(3), interval="bernstein", outcome_range=(0, 1), max_weight=1.5
            ),
            SettingError,
            "max_weight must bound every weight",
        ),
        (
            lambda log: doubly_robust(log, np.eye(3), np.zeros((3, 2))),
            ShapeError,
            "one value for each row and action",
        ),
        (
            lambda log: doubly_robust(log, np.eye(3), np.full((3, 3), np.nan)),
            NotFiniteError,
            "must be finite",
        ),
        (
            lambda log: doubly_robust(
                log,
                np.eye(3),
                np.full((3, 3), 2.0),
                interval="bernstein",
                outcome_range=(0, 1),
                max_weight=2,
            ),
            SettingError,
            "the model's values must lie in outcome_range",
        ),
        (lambda log: snips(log, np.eye(3)[[1, 2, 0]]), PropensityError, "every weight is 0"),
    ],
)
def test_bad_questions_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call(Log(**GOOD))
