"""The monitors keep their false-alarm rate and notice what they are there to notice.

Statistics are tested as statistics: R runs at once (every monitor broadcasts over runs), counts
against binomial limits.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtr, stdtr
from scipy.stats import binom, f

from gedppl.errors import (
    ActionRangeError,
    ContextWidthError,
    DataError,
    NotFiniteError,
    SettingError,
)
from gedppl.guard import (
    Cost,
    Guard,
    LimitMonitor,
    OutlierCheck,
    PitMonitor,
    Told,
    pit_uniform,
    randomised_pit,
)
from gedppl.guard import bets as bets_file
from gedppl.guard import monitors as limit_bets
from gedppl.guard.bets import (
    AMOUNTS,
    SHAPES,
    Bets,
    Moments,
    Trend,
    log_total,
    outliers,
    shapes,
    shared,
)


def most_by_chance(runs: int, delta: float) -> int:
    """A count of false alarms that a monitor with rate delta exceeds once in ten thousand tests."""
    return int(binom.ppf(0.9999, runs, delta))


# the limit ----------------------------------------------------------------------------------------


def limit_alarms(
    draw,
    limit: float,
    rounds: int,
    runs: int,
    low: float = 0.0,
    high: float = 1.0,
    delta: float = 0.05,
):
    monitor = LimitMonitor.create(limit=limit, low=low, high=high, delta=delta)
    for _ in range(rounds):
        monitor = monitor.update(draw(runs))
    return int(monitor.alarmed.sum())


@pytest.mark.parametrize("limit", [0.1, 0.4, 0.8])
def test_costs_at_the_limit_raise_few_false_alarms(limit):
    rng = np.random.default_rng(1)
    assert limit_alarms(lambda n: rng.random(n) < limit, limit, 2000, 1000) <= most_by_chance(
        1000, 0.05
    )


def test_the_bound_holds_for_costs_that_depend_on_the_past():
    """Mean at the limit given the past, variance as the past would have it: bold after a gain,
    timid after a loss.
    """
    rng = np.random.default_rng(2)
    monitor = LimitMonitor.create(limit=0.5, low=0.0, high=1.0, delta=0.1)
    for _ in range(1000):
        winning = np.broadcast_to(log_total(monitor.log_wealth), (1000,)) > 0
        spread = np.where(winning, 0.5, 0.05)
        monitor = monitor.update(0.5 + spread * rng.choice([-1, 1], 1000))
    assert monitor.alarmed.sum() <= most_by_chance(1000, 0.1)


@pytest.mark.parametrize("limit", [0.1, 0.4, 0.5, 0.8])
def test_costs_a_tenth_above_the_limit_are_noticed_within_500_rounds(limit):
    rng = np.random.default_rng(3)
    assert limit_alarms(lambda n: rng.random(n) < limit + 0.1, limit, 500, 500) > 0.90 * 500


def test_the_range_of_the_cost_is_respected():
    """The same costs in other units give the same evidence."""
    rng = np.random.default_rng(4)
    plain = LimitMonitor.create(limit=0.4, low=0.0, high=1.0, delta=0.05)
    scaled = LimitMonitor.create(limit=-60.0, low=-100.0, high=0.0, delta=0.05)
    for z in rng.random(50):
        plain, scaled = plain.update(z), scaled.update(100 * z - 100)
    np.testing.assert_allclose(plain.log_wealth, scaled.log_wealth, atol=1e-9)


def test_without_predictable_bets_the_rate_is_not_kept():
    """The positive control: a bet chosen after the outcome was seen always wins."""
    rng = np.random.default_rng(5)
    monitor = LimitMonitor.create(limit=0.5, low=0.0, high=1.0, delta=0.05)
    for _ in range(50):
        z = rng.random(200)
        monitor = monitor.update(np.maximum(z, 1 - z))
    assert monitor.alarmed.mean() > 0.9


def test_the_wealth_of_each_bet_is_the_product_it_says():
    monitor = LimitMonitor.create(limit=0.4, low=0.1, high=1.0, delta=0.05)
    costs = [0.2, 0.9, 0.4, 1.0, 0.1]
    for z in costs:
        monitor = monitor.update(z)
    lambdas = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8]) / (0.4 - 0.1)
    steady = np.mean([np.prod([1 + rate * (z - 0.4) for z in costs]) for rate in lambdas])
    late, kept = np.full(6, 0.5 / 6), 0.5
    for n, z in enumerate(costs, start=1):
        late = late * (1 + lambdas * (z - 0.4))
        pot = (late.sum() + kept) / (n + 1)
        late, kept = late * n / (n + 1) + pot * 0.5 / 6, kept * n / (n + 1) + pot * 0.5
    assert log_total(monitor.log_wealth) == pytest.approx(
        np.log((steady + late.sum() + kept) / 2), abs=1e-12
    )
    assert monitor.mean == pytest.approx(np.mean(costs))


def test_a_break_after_many_cheap_rounds_is_seen_and_bets_that_never_begin_anew_miss_it(
    monkeypatch,
):
    """Costs of .1 for 75 rounds, then .7, against a limit of .5. The control: all wealth in bets
    that began at the start.
    """

    def first_alarm() -> int | None:
        monitor = LimitMonitor.create(limit=0.5, low=0.0, high=1.0, delta=0.01)
        for n in range(150):
            monitor = monitor.update(0.1 if n < 75 else 0.7)
            if monitor.alarmed:
                return n
        return None

    seen = first_alarm()
    assert seen is not None
    assert seen >= 75
    monkeypatch.setattr(limit_bets, "_dealt_anew", lambda log_wealth, n: log_wealth)
    monkeypatch.setattr(
        limit_bets, "FIRST_LOG_WEALTH", np.append(np.full(6, -np.log(6.0)), np.full(7, -1e9))
    )
    assert first_alarm() is None


# bets ---------------------------------------------------------------------------------------------


def test_every_shape_has_mean_zero_and_stays_within_one():
    u = (np.arange(200_000) + 0.5) / 200_000
    g = shapes(u)
    assert g.shape == (200_000, SHAPES)
    np.testing.assert_allclose(g.mean(0), 0.0, atol=1e-6)
    assert np.abs(g).max() <= 1.0


@pytest.mark.parametrize(
    ("dx", "n_actions"), [(0, 1), (0, 3), (2, 1), (3, 3), (40, 2), (5, 50), (16, 16)]
)
def test_every_bet_is_fair_and_cannot_ruin(dx, n_actions):
    """Averaged over a fine grid of u, for contexts, actions and a past as they come: mean 0,
    never -1 or below.
    """
    rng = np.random.default_rng(6)
    bets = Bets(dx, n_actions)
    u = (np.arange(4000) + 0.5) / 4000
    assert np.exp(bets.log_weights()).sum() == pytest.approx(1.0)
    for _ in range(3):
        z = 3 * rng.normal(size=bets.columns)
        column, group = bets.features(
            np.broadcast_to(z, (4000, bets.columns)), np.full(4000, rng.integers(n_actions))
        )
        expected = np.broadcast_to(rng.normal(size=2), (4000, 2))
        growth = bets.growth(u, column, Trend.within_action(column, group), expected)
        assert np.all(growth[:, -1] == 1.0)  # what is kept
        assert growth.shape == (4000, len(bets.log_weights()) + 1)
        # those on outliers, which a grid of u does not resolve, have a test of their own
        payoff = growth[:, : -1 - bets.sizes()[-1]] - 1.0
        np.testing.assert_allclose(payoff.mean(0), 0.0, atol=1e-4)
        assert payoff.min() >= -0.9 - 1e-15


def test_bets_on_outliers_are_fair_but_for_their_cap_and_cannot_ruin():
    z = np.linspace(-9, 9, 100_001)
    paid = outliers(ndtr(z))
    mean = np.trapezoid(paid * np.exp(-0.5 * z[:, None] ** 2), z, axis=0) / np.sqrt(2 * np.pi)
    assert np.all(mean <= 1.0)
    assert np.all(mean >= 0.95)
    assert paid.min() > 0.4
    assert paid.max() == 100.0
    assert np.all(np.isfinite(outliers(np.array([0.0, 1.0]))))


def test_one_wild_outcome_is_not_yet_evidence_and_without_the_cap_it_is(monkeypatch):
    """A slip of the pen among outcomes that the model predicts: 1,000 is read for 10."""

    def alarmed() -> bool:
        rng = np.random.default_rng(72)
        monitor = PitMonitor.calibration(dx=0, n_actions=1, delta=0.05)
        for u in [*rng.random(100), 1.0]:
            monitor = monitor.update(u, np.zeros(0), 0)
        return bool(monitor.alarmed)

    assert not alarmed()
    monkeypatch.setattr(bets_file, "MOST_PAID", np.inf)
    assert alarmed()


@pytest.mark.parametrize("kind", ["t3", "hidden"])
def test_heavy_tails_and_a_hidden_subgroup_are_seen_early_and_only_by_bets_on_outliers(
    kind, monkeypatch
):
    """Noise of known scale: Student's t of 3 degrees, or a tenth of the outcomes 3 deviations
    off.
    """

    def seen() -> int:
        rng = np.random.default_rng(71)
        hidden = rng.standard_normal((200, 40)) + 3.0 * ((rng.random((200, 40)) < 0.1) - 0.1)
        z = rng.standard_t(3, (200, 40)) if kind == "t3" else hidden
        monitor = PitMonitor.calibration(dx=0, n_actions=1, delta=0.002)
        for row in z:
            monitor = monitor.update(ndtr(row), np.zeros((40, 0)), np.zeros(40, int))
        return int(np.sum(monitor.alarmed))

    assert seen() >= 36
    monkeypatch.setattr(bets_file, "outliers", lambda u: np.ones((*np.shape(u), 6)))
    assert seen() <= 20


def test_every_bet_can_be_put_into_words():
    bets = Bets(2, 3)
    sentences = [bets.describe(i) for i in range(sum(bets.sizes()))]
    assert sentences[0] == "outcomes are larger than predicted"
    assert sentences[len(AMOUNTS) - 1] == "outcomes are smaller than predicted"
    assert "outcomes vary more than predicted where x[1] is far from its mean" in sentences
    assert "outcomes are smaller than predicted on action 2" in sentences
    assert "outcomes are larger than predicted where x[0] is large on action 1" in sentences
    assert "depending on context and action" in sentences[-7]
    assert "some outcomes lie far below what was predicted" in sentences[-6:]
    # three amounts and two senses each: a description belongs to exactly the bets of its cell
    assert all(sentences.count(s) in (3, 4) for s in sentences[:-6])
    assert all(sentences.count(s) == 2 for s in sentences[-6:])


def test_sharing_keeps_the_total_and_floors_every_bet():
    rng = np.random.default_rng(7)
    wealth, weights = rng.dirichlet(np.ones(4), size=5), np.array([0.1, 0.2, 0.3, 0.4])
    after = shared(wealth, weights, 0.01)
    np.testing.assert_allclose(after.sum(axis=-1), 1.0, atol=1e-12)
    assert np.all(after >= 0.01 * weights)


@pytest.mark.parametrize("drifting", [False, True])
def test_shares_and_their_total_are_the_products_of_all_payoffs(drifting):
    """The slow, literal way: every bet's wealth as a logarithm of its own, dealt out anew in
    logarithms.
    """
    rng, bets = np.random.default_rng(70), Bets(2, 3)
    monitor = PitMonitor._create(2, 3, 0.05, 10, drifting)
    log_wealth, first = np.log(monitor.wealth), np.log(monitor.wealth)
    for t in range(400):
        u, x, a = rng.beta(1.2, 1.0), rng.normal(size=2), int(rng.integers(3))
        if t >= 10:
            moments = monitor.moments.include(x)
            column, group = bets.features(moments.standardised(x), a)
            f = Trend.within_action(column, group)
            log_wealth = log_wealth + np.log(bets.growth(u, column, f, monitor.trend.expected(f)))
            if drifting:
                rate = 1.0 / (t - 10 + 2)
                log_wealth = np.logaddexp(
                    np.log1p(-rate) + log_wealth, np.log(rate) + log_total(log_wealth) + first
                )
        monitor = monitor.update(u, x, a)
    np.testing.assert_allclose(monitor.log_total, log_total(log_wealth), atol=1e-9)
    np.testing.assert_allclose(monitor.log_wealth, log_wealth, atol=1e-9)


def test_moments_are_those_of_numpy():
    x = np.random.default_rng(8).normal(3.0, 2.0, size=(50, 4))
    moments = Moments.empty(4)
    for row in x:
        moments = moments.include(row)
    np.testing.assert_allclose(moments.mean, x.mean(0))
    np.testing.assert_allclose(moments.standardised(x[-1]), (x[-1] - x.mean(0)) / x.std(0, ddof=1))
    assert np.all(np.isnan(Moments.empty(2).include(np.ones(2)).standardised(np.ones(2))))


def test_the_trend_finds_a_direction():
    rng = np.random.default_rng(9)
    bets, slope = Bets(2, 1), np.array([0.4, -0.4])
    trend = Trend.empty(bets)
    for _ in range(2000):
        column, group = bets.features(rng.uniform(-1.5, 1.5, 2), np.array(0))
        feature = trend.within_action(column, group)
        mean = column[:2] @ slope
        trend = trend.include((1 + np.clip(mean + rng.uniform(-0.4, 0.4), -1, 1)) / 2, feature)
    f_right = trend.within_action(np.array([0.7, -0.7, 0.0, 0.0]), np.ones(1))
    assert np.all(trend.expected(f_right) > 0.3)
    assert np.all(trend.expected(-f_right + 2 * np.eye(5)[0]) < -0.2)


# predictions by a Bayesian linear regression, as an agent would make them -------------------------


def regression_pits(
    kind: str,
    runs: int,
    rounds: int,
    seed: int,
    *,
    truth: float = 1.0,
    size: float = 0.0,
    learn_scale: bool = False,
):
    """PITs of R runs: K = 3 actions, each linear in 1 and dx = 2 columns, prior N(0, 1) on every
    coefficient, noise 0.3.

    `truth`: the coefficients are drawn with this standard deviation; negative, all are equal to
    -truth. `size`: the quadratic term's coefficient, or the change of every coefficient, in units
    of the noise. `learn_scale`: predictive Student-t with an inverse-gamma prior on the variance
    instead of a known one.
    """
    rng = np.random.default_rng(seed)
    K, dx, noise = 3, 2, 0.3
    d = dx + 1
    theta = truth * rng.normal(size=(runs, K, d)) if truth >= 0 else np.full((runs, K, d), -truth)
    changed = theta + size * noise * rng.choice([-1.0, 1.0], size=theta.shape)
    cov = np.tile(np.eye(K * d), (runs, 1, 1)) / (noise**2 if learn_scale else 1.0)
    mean, shape, scale = np.zeros((runs, K * d)), np.full(runs, 2.0), np.full(runs, 2.0 * noise**2)
    which = np.arange(runs)
    for t in range(rounds):
        x = rng.normal(size=(runs, dx))
        a = rng.integers(K, size=runs)
        features = np.concatenate([np.ones((runs, 1)), x], 1)
        phi = np.zeros((runs, K, d))
        phi[which, a] = features
        phi = phi.reshape(runs, -1)
        current = changed if kind == "drift" and t >= rounds // 2 else theta
        error = rng.standard_t(3, runs) / np.sqrt(3) if kind == "t3" else rng.normal(size=runs)
        curve = size * (x[:, 0] ** 2 - 1) if kind == "quadratic" else 0.0
        y = np.sum(current[which, a] * features, -1) + noise * (error + curve)
        spread = np.einsum("rij,rj->ri", cov, phi)
        own = 1.0 if learn_scale else noise**2
        predictive = np.sum(spread * phi, -1) + own
        residual = y - np.sum(mean * phi, -1)
        if learn_scale:
            pit = stdtr(2 * shape, residual / np.sqrt(predictive * scale / shape))
            shape, scale = shape + 0.5, scale + 0.5 * residual**2 / predictive
        else:
            pit = ndtr(residual / np.sqrt(predictive))
        yield pit, x, a
        gain = spread / predictive[:, None]
        mean = mean + gain * residual[:, None]
        cov = cov - gain[:, :, None] * spread[:, None, :]


def model_alarms(
    rounds_of_pits, delta: float = 0.025, burn_in: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Which runs raised (calibration, drift); half of 0.05 each, as in a `Guard`."""
    monitors = [
        make(dx=2, n_actions=3, delta=delta, burn_in=burn_in)
        for make in (PitMonitor.calibration, PitMonitor.drift)
    ]
    for pit, x, a in rounds_of_pits:
        monitors = [m.update(pit, x, a) for m in monitors]
    return monitors[0].alarmed, monitors[1].alarmed


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("t3", {}),
        ("t3", {"learn_scale": True}),
        ("quadratic", {"size": 0.25}),
        ("drift", {"size": 0.4}),
    ],
)
def test_wrong_models_are_noticed_within_a_thousand_rounds(kind, options):
    calibration, drift = model_alarms(regression_pits(kind, 40, 1000, 10, **options))
    assert np.mean(calibration | drift) > 0.90


@pytest.mark.parametrize("options", [{}, {"truth": -3.0}])
def test_a_right_model_raises_few_alarms(options):
    calibration, drift = model_alarms(regression_pits("right", 60, 1000, 11, **options))
    assert np.sum(calibration | drift) <= most_by_chance(60, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"truth": 0.01}, {"truth": -3.0}, {"learn_scale": True}])
def test_a_right_model_raises_an_alarm_in_at_most_one_run_of_twenty(options):
    calibration, drift = model_alarms(regression_pits("right", 400, 1000, 12, **options))
    assert np.mean(calibration | drift) <= 0.05


@pytest.mark.slow
def test_known_predictives_keep_the_rate_exactly():
    """With u uniform indeed, Ville's bound holds for each monitor, whatever contexts and actions
    do.
    """
    rng = np.random.default_rng(13)
    rows = (
        (rng.random(1000), rng.standard_cauchy((1000, 2)), rng.integers(3, size=1000))
        for _ in range(1500)
    )
    calibration, drift = model_alarms(rows, delta=0.1, burn_in=0)
    assert calibration.sum() <= most_by_chance(1000, 0.1)
    assert drift.sum() <= most_by_chance(1000, 0.1)


def test_uniform_pits_keep_the_rate():
    rng = np.random.default_rng(14)
    rows = (
        (rng.random(200), rng.standard_cauchy((200, 2)), rng.integers(3, size=200))
        for _ in range(400)
    )
    calibration, drift = model_alarms(rows, delta=0.1, burn_in=0)
    assert calibration.sum() <= most_by_chance(200, 0.1)
    assert drift.sum() <= most_by_chance(200, 0.1)


def test_a_conflicting_prior_under_a_learned_scale_is_reported_as_too_wide_predictions():
    """Not guaranteed: with a normal-inverse-gamma prior a truth three standard deviations out
    inflates the learned scale for hundreds of rounds. The class is right but its predictions are
    not, and that is what the alarm says.
    """
    monitor = PitMonitor.calibration(dx=2, n_actions=3, delta=0.025)
    for row in regression_pits("right", 30, 600, 12, truth=-3.0, learn_scale=True):
        monitor = monitor.update(*row)
    assert monitor.alarmed.mean() > 0.5
    alone = dataclasses.replace(monitor, wealth=monitor.wealth[np.argmax(monitor.log_peak)])
    assert alone.finding.startswith("outcomes vary less than predicted")


def test_the_burn_in_is_needed():
    """The positive control: from round 0 a truth ten prior standard deviations out is called a
    wrong model.
    """
    rates = [
        model_alarms(regression_pits("right", 40, 300, 11, truth=-10.0), burn_in=rounds)[0].mean()
        for rounds in (0, 50)
    ]
    assert rates[0] > 0.5
    assert rates[1] < 0.2


def test_dealing_the_wealth_out_anew_is_what_finds_a_late_change():
    calibration, drift = model_alarms(regression_pits("drift", 40, 1000, 15, size=0.25))
    assert drift.sum() > calibration.sum()


def test_a_missing_term_of_a_tenth_of_the_noise_is_not_detectable():
    """What the monitors cannot do: such a model looks right for 1,000 rounds."""
    calibration, drift = model_alarms(regression_pits("quadratic", 40, 1000, 16, size=0.07))
    assert np.mean(calibration | drift) < 0.5


def test_one_run_and_many_runs_are_the_same_arithmetic():
    rng = np.random.default_rng(17)
    u, x, a = rng.random((80, 2)), rng.normal(size=(80, 2, 3)), rng.integers(4, size=(80, 2))
    for make in (PitMonitor.calibration, PitMonitor.drift):
        together = make(dx=3, n_actions=4, delta=0.05, burn_in=5)
        alone = together
        for t in range(80):
            together = together.update(u[t], x[t], a[t])
            alone = alone.update(u[t, 1], x[t, 1], int(a[t, 1]))
        np.testing.assert_allclose(alone.log_wealth, together.log_wealth[1], atol=1e-12)
        assert isinstance(alone.alarmed, bool)


# discrete outcomes --------------------------------------------------------------------------------


def test_the_randomised_pit_of_a_right_discrete_model_is_uniform_and_the_plain_one_is_not():
    rng = np.random.default_rng(18)
    y = rng.random(4000) < 0.3
    randomised = np.array(
        [
            randomised_pit(*((0.7, 1.0) if yes else (0.0, 0.7)), pit_uniform(3, i))
            for i, yes in enumerate(y)
        ]
    )
    counts = np.histogram(randomised, 10, (0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 40  # chi-square with 9 degrees of freedom
    plain = np.where(y, 1.0, 0.7)
    assert ((np.histogram(plain, 10, (0, 1))[0] - 400) ** 2 / 400).sum() > 1000


def test_the_uniform_of_a_decision_does_not_depend_on_the_order_of_feedback():
    forwards = [pit_uniform(7, i) for i in range(5)]
    assert forwards == [pit_uniform(7, i) for i in reversed(range(5))][::-1]
    assert len({*forwards, pit_uniform(8, 0), pit_uniform(7, 0, model=1)}) == 7


# contexts -----------------------------------------------------------------------------------------


def seen(x: np.ndarray, **options) -> OutlierCheck:
    check = OutlierCheck.create(dx=x.shape[1], **options)
    for row in x:
        check = check.include(row)
    return check


def test_the_share_of_gaussian_contexts_flagged_is_the_level():
    rng = np.random.default_rng(19)
    mix = rng.normal(size=(3, 3))
    check = OutlierCheck.create(dx=3, level=0.02)
    flagged = 0
    for row in rng.normal(size=(3000, 3)) @ mix + 5.0:
        flagged += bool(check.flag(row))
        check = check.include(row)
    # pulled back, so a few more
    assert binom.ppf(0.0001, 2984, 0.02) <= flagged <= binom.ppf(0.9999, 2984, 0.02) + 15


def test_the_distance_is_hotellings():
    x = np.random.default_rng(20).normal(size=(40, 2))
    check = seen(x, level=1e-9)
    new = np.array([1.5, -0.5])
    gap = new - x.mean(0)
    distance = 40 / 41 * gap @ np.linalg.solve(np.cov(x.T), gap)
    threshold = 2 * 39 / 38 * f.ppf(1 - 1e-9, 2, 38)
    assert check._ratios(new[None])[0] == pytest.approx(distance / threshold, rel=1e-9)


def test_far_contexts_are_flagged_with_the_column_to_blame():
    rng = np.random.default_rng(21)
    x = rng.normal(size=(200, 3)) * [1.0, 100.0, 0.01]
    check = seen(x)
    assert check.flag([1.0, -80.0, 0.01]) == ""
    assert "most in x[2] = 0.3" in check.flag([0.0, 0.0, 0.3])
    assert "Bounds here are extrapolation" in check.flag([0.0, 9000.0, 0.0])


def test_correlated_columns_are_judged_together():
    rng = np.random.default_rng(22)
    first = rng.normal(size=(300, 1))
    check = seen(np.hstack([first, first + 0.05 * rng.normal(size=(300, 1))]))
    assert check.flag([1.5, 1.5]) == ""
    assert check.flag([1.5, -1.5])  # each column alone is ordinary


@pytest.mark.parametrize("noise", [1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2])
def test_contexts_near_a_plane_are_ordinary_however_near(noise):
    """Two columns in different units, read with this much noise: none of 100 more lies far out."""
    rng = np.random.default_rng(26)
    x = 50.0 + rng.normal(size=(300, 3))
    x[:, 2] = 32.0 + 1.8 * x[:, 0] + noise * rng.normal(size=300)
    check = seen(x[:200])
    assert not any(check.flags(x[200:]))
    assert check.flag(x[200] + [0.0, 0.0, 1.0])


def test_a_column_that_never_varied_is_flagged_when_it_does():
    rng = np.random.default_rng(23)
    check = seen(np.hstack([np.ones((101, 1)), rng.normal(size=(101, 1))]))
    assert check.flag([1.0, 0.5]) == ""
    assert "x[0] = 2 departs from what held in all of the 101 contexts before" in check.flag(
        [2.0, 0.5]
    )


def test_few_contexts_are_no_ground_for_a_flag():
    assert seen(np.random.default_rng(24).normal(size=(5, 2))).flag([1e6, 0.0]) == ""
    assert OutlierCheck.create(dx=0).include(np.zeros(0)).flag(np.zeros(0)) == ""


def test_one_wild_context_does_not_hide_the_next_and_a_lasting_shift_is_learned():
    rng = np.random.default_rng(25)
    check = seen(rng.normal(size=(200, 2))).include([1e6, 0.0])
    assert check.flag([50.0, 0.0])
    for _ in range(600):
        check = check.include(np.array([50.0, 0.0]) + rng.normal(size=2))
    assert check.flag([50.0, 0.0]) == ""


def test_contexts_are_held_against_all_but_the_last_twentieth_of_those_before():
    x = np.random.default_rng(27).normal(size=(300, 2))
    check, late = OutlierCheck.create(dx=2), 0
    for n, row in enumerate(x):
        check = check.include(row)
        judge = check.before or check
        late = max(late, check.n - judge.n)
        assert judge.n > (n + 1) / 1.05 - 1
        np.testing.assert_array_equal(judge.mean, seen(x[: judge.n]).mean)
    assert late > 5
    again = OutlierCheck.create(dx=2).with_parts(check.parts)
    new = [4.0, -3.9]
    assert again.flag(new) == check.flag(new) == seen(x[: check.before.n]).flag(new)
    assert f"after {check.before.n} contexts" in check.flag(new)


# all together -------------------------------------------------------------------------------------


def guard(delta: float = 0.05) -> Guard:
    return Guard.create(
        dx=1, n_actions=2, delta=delta, limits={"cost": (0.4, 0.0, 1.0)}, models=["utility", "cost"]
    )


def test_the_guard_shares_delta_and_names_its_monitors():
    monitors = guard().monitors
    betting = [
        f"{kind}:{name}"
        for kind in ("calibration", "delay", "drift")
        for name in ("cost", "utility")
    ]
    assert sorted(monitors) == [*betting, "limit:cost"]
    assert monitors["limit:cost"].delta == 0.025
    assert sum(m.delta for m in monitors.values()) == pytest.approx(0.05)
    alone = Guard.create(dx=1, n_actions=2, delta=0.05, limits={"cost": (0.4, 0.0, 1.0)})
    assert alone.monitors["limit:cost"].delta == 0.05


def costing(cost: float) -> dict[str, Cost]:
    return {"limit:cost": Cost(cost)}


def test_the_guard_says_what_happened_once_and_leaves_the_old_state_alone():
    rng = np.random.default_rng(26)
    start = state = guard()
    before = {k: v.tobytes() for k, v in start.arrays().items()}
    alarms = []
    for _ in range(400):
        told = Told(
            rng.normal(size=1),
            int(rng.integers(2)),
            {"utility": rng.random()},
            costing(rng.random() * 0.5 + 0.4),
        )
        state, new = state.update(told)
        alarms += new
    assert [a.name for a in alarms] == ["limit:cost"]
    assert state.alarmed == ["limit:cost"]
    assert alarms[0].evidence >= 1 / alarms[0].delta
    assert "the mean cost of 'cost' exceeds its limit 0.4" in alarms[0].sentence
    assert "fall back to the safe action" in alarms[0].sentence
    assert {k: v.tobytes() for k, v in start.arrays().items()} == before
    assert start.alarmed == []


@pytest.mark.parametrize(
    ("name", "words"), [("calibration", "does not fit"), ("drift", "Something changed")]
)
def test_the_model_alarms_say_what_is_wrong(name, words):
    rng = np.random.default_rng(27)
    state, alarms = guard(), []
    for _ in range(600):
        state, new = state.update(Told(rng.normal(size=1), 0, {"utility": rng.beta(3, 1)}))
        alarms += new
    (alarm,) = [a for a in alarms if a.name == f"{name}:utility"]
    assert words in alarm.sentence
    assert "outcomes are larger than predicted" in alarm.sentence


def test_what_was_not_observed_moves_nothing():
    state, alarms = guard().update(Told(np.zeros(1), 0))
    assert alarms == []
    assert all(m.n == 0 for m in state.monitors.values())


def test_the_state_goes_through_arrays_and_back():
    rng = np.random.default_rng(28)
    state = guard()
    rows = [
        Told(
            rng.normal(size=1),
            int(rng.integers(2)),
            {"utility": rng.random(), "cost": rng.random()},
            costing(rng.random()),
        )
        for _ in range(120)
    ]
    for told in rows[:70]:
        state, _ = state.update(told)
    other = guard().with_arrays({k: np.array(v) for k, v in state.arrays().items()})
    for told in rows[70:]:
        (state, first), (other, second) = state.update(told), other.update(told)
        assert first == second
    for key, value in state.arrays().items():
        assert value.tobytes() == other.arrays()[key].tobytes()


# bad input ----------------------------------------------------------------------------------------

LIMIT = LimitMonitor.create(limit=0.4, low=0.0, high=1.0, delta=0.05)
PIT = PitMonitor.calibration(dx=2, n_actions=3, delta=0.05)
CHECK = OutlierCheck.create(dx=2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LIMIT.update(float("nan")), NotFiniteError, "a cost must be finite, got nan"),
        (lambda: LIMIT.update(1.5), DataError, r"the cost 1.5 lies outside its range \[0.0, 1.0\]"),
        (lambda: LIMIT.update(-0.1), DataError, "the cost -0.1 lies outside"),
        (
            lambda: LimitMonitor.create(limit=1.0, low=0.0, high=1.0, delta=0.05),
            SettingError,
            "low < limit < high",
        ),
        (
            lambda: LimitMonitor.create(limit=0.4, low=-np.inf, high=1.0, delta=0.05),
            SettingError,
            "all finite",
        ),
        (
            lambda: dataclasses.replace(LIMIT).create(limit=0.4, low=0, high=1, delta=0),
            SettingError,
            "delta must lie",
        ),
        (lambda: guard(1.5), SettingError, "delta must lie strictly between 0 and 1, got 1.5"),
        (lambda: PitMonitor.drift(dx=-1, n_actions=3, delta=0.05), SettingError, "dx=-1"),
        (lambda: PIT.update(1.2, [0, 0], 0), DataError, r"lies in \[0, 1\], got 1.2"),
        (lambda: PIT.update(float("nan"), [0, 0], 0), DataError, r"lies in \[0, 1\], got nan"),
        (
            lambda: PIT.update(0.5, [0.0], 0),
            ContextWidthError,
            r"a context has 2 columns here, got "
            r"an array of shape \(1,\)",
        ),
        (lambda: PIT.update(0.5, [0.0, np.inf], 0), NotFiniteError, "a context must be finite"),
        (lambda: PIT.update(0.5, [0.0, 0.0], 3), ActionRangeError, r"one of 0, \.\.\., 2, got 3"),
        (lambda: PIT.update(0.5, [0.0, 0.0], 0.5), ActionRangeError, "got 0.5"),
        (lambda: CHECK.flag([0.0]), ContextWidthError, "a context has 2 columns here"),
        (lambda: CHECK.include([np.nan, 0.0]), NotFiniteError, "a context must be finite"),
        (lambda: OutlierCheck.create(dx=2, level=0), SettingError, "0 < level < 1"),
        (
            lambda: randomised_pit(0.5, 0.2, 0.5),
            DataError,
            "must be probabilities, the first not the larger",
        ),
        (lambda: randomised_pit(float("nan"), 0.2, 0.5), NotFiniteError, "needs finite numbers"),
    ],
)
def test_bad_input_has_its_own_error(call, error, message):
    with pytest.raises(error, match=message):
        call()
