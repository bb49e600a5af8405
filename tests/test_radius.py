"""Radius rules: hand values, the identities between them, and errors."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy.stats import chi2

import gedppl as ged
from gedppl.errors import SettingError
from gedppl.learning import radius
from gedppl.learning.radius import View
from tests.coins import problem


def test_levels_of_restarts_sum_to_delta_and_no_more() -> None:
    rule = radius.likelihood_ratio()
    total = sum(rule.level(k, 0.05) for k in range(200_000))
    assert 0.0499 < total < 0.05
    assert radius.likelihood_ratio(restarts=False).level(0, 0.05) == 0.05


def test_hand_values() -> None:
    assert radius.mle_finite().value(View(n=10, delta=0.05, size=16)) == pytest.approx(
        math.log(320)
    )
    est = radius.bracketing(diameter=2.0, log_lipschitz=3.0).value(View(n=100, delta=0.05, dim=4))
    assert est == pytest.approx(4 * math.log(601) + math.log(20) + 1)
    assert radius.chi_square().radius(View(n=9, delta=0.05, dim=5)) == pytest.approx(
        chi2.isf(0.05, 5) / 2
    )
    assert radius.chi_square(union=True).radius(View(n=9, delta=0.05, dim=5)) == pytest.approx(
        chi2.isf(0.05 / 2000, 5) / 2
    )
    finite = View(n=9, delta=0.05, size=16)
    assert radius.paper_radius().radius(finite) == pytest.approx(math.log(16 * 2 * 1000 / 0.05))
    assert radius.total_variation_ball().radius(finite) == pytest.approx(2 * math.log(320))
    assert radius.l2_ball(0.5).radius(finite) == pytest.approx(4 * math.log(320))
    assert radius.hellinger_ball().radius(finite) == radius.neg_log_affinity_ball().radius(finite)


def test_literal_least_squares_radius_and_its_warning() -> None:
    level = math.log(2 * 201**3 / 0.05)
    literal = 5 + 2 * math.sqrt(5 * level) + 2 * level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide = radius.paper_radius().radius(View(n=200, delta=0.05, dim=5, scale=0.5))
    assert wide == pytest.approx(0.25 * literal)
    with pytest.warns(radius.CoverageWarning, match=r"noise scale 0\.1 < 0\.354"):
        narrow = radius.paper_radius().radius(View(n=200, delta=0.05, dim=5, scale=0.1))
    assert narrow == pytest.approx(0.01 * literal)


def test_published_radii_at_d5_t1000() -> None:
    """1.38 fixed chi-square, 7.31 its union bound, 5.61 self-normalised, 4.19 prior-posterior
    ratio (features on a sphere of radius sqrt(5), sigma = lambda = S = 1).
    """
    view = View(n=999, delta=0.05, dim=5, scale=1.0, information=999 * np.eye(5))
    assert radius.Est("chi_square").value(view) == pytest.approx(1.38, abs=0.01)
    assert chi2.isf(0.05 / (2 * 1000**3), 5) / 8 == pytest.approx(7.31, abs=0.01)
    sharper = radius.self_normalised(1.0, 1.0).value(view)
    older = radius.self_normalised(1.0, 1.0, sharper=False).value(view)
    assert sharper < older
    hand = (2 * math.log(20) + 5 * math.log(1000) + 1) / 8
    assert sharper == pytest.approx(hand)


def test_order_statistic_is_conservative() -> None:
    sums = np.arange(1.0, 20.0)  # 19 fits: the 95% order statistic is the 19th
    view = View(
        n=5,
        delta=0.05,
        dim=1,
        refits=lambda n: np.zeros((n, 1)),
        summed_divergence=lambda name, theta: sums,
    )
    assert radius.parametric_bootstrap(20).radius(view) == 19.0
    broken = View(
        n=5,
        delta=0.05,
        refits=lambda n: np.zeros((n, 1)),
        summed_divergence=lambda name, theta: np.append(sums, np.nan),
    )
    # a fit that is NaN counts as far away, never as near
    assert radius.parametric_bootstrap(20).radius(broken) == np.inf


def test_the_quantile_over_divergences_says_what_took_its_place() -> None:
    with pytest.raises(SettingError, match=r"given up: use ged\.credible_set"):
        ged.posterior_quantile(draws=40)


@pytest.mark.parametrize(
    ("rule", "guaranteed", "word"),
    [
        (radius.likelihood_ratio(), True, "all times"),
        (radius.likelihood_ratio(restarts=False), True, "first row"),
        (radius.hellinger_ball(), True, "covers"),
        (radius.Ball("hellinger2", radius.Est("chi_square")), False, "NOT valid for adaptive"),
        (radius.chi_square(), False, "NOT valid for adaptive"),
        (radius.paper_radius(), False, "0.354"),
        (radius.parametric_bootstrap(), False, "approximate"),
    ],
)
def test_every_rule_says_what_it_guarantees(rule, guaranteed, word) -> None:
    assert rule.guaranteed is guaranteed
    assert word in rule.describe(0.05)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: radius.bracketing(-1.0, 2.0), "diameter must be positive and finite, got -1"),
        (
            lambda: radius.self_normalised(1.0, np.inf),
            "norm_bound must be positive and finite, got inf",
        ),
        (lambda: radius.l2_ball(0.0), "density_bound must be positive and finite, got 0"),
        (lambda: radius.parametric_bootstrap(5), "replicates must be at least 20, got 5"),
        (
            lambda: radius.hellinger_ball().radius(View(n=3, delta=0.1, dim=2)),
            "needs a finite class",
        ),
        (
            lambda: radius.Ball("hellinger2", radius.self_normalised(1, 1)).radius(
                View(n=3, delta=0.1)
            ),
            "known noise scale",
        ),
        (
            lambda: radius.parametric_bootstrap().radius(View(n=3, delta=0.1, dim=4)),
            "linear predictor",
        ),
    ],
)
def test_errors(call, match) -> None:
    with pytest.raises(SettingError, match=match):
        call()


def test_a_radius_that_counts_parameters_is_refused_for_members(monkeypatch) -> None:
    """Of two hundred members it would count none: log 20 + 1 instead of log 4000."""
    ball = ged.radius.hellinger_ball(ged.radius.bracketing(1.0, 1.0))
    coins, row = problem().utility.model, (np.zeros((1, 1)), np.ones(1, int), np.ones(1))
    with pytest.raises(SettingError, match="counts parameters, and a finite class has none"):
        ged.confidence_set(coins, *row, confidence=ball)
    monkeypatch.setattr(type(ball), "check", lambda self, cls, oracle=None: None)  # the control
    assert (
        ged.confidence_set(coins, *row, confidence=ball)
        .bounds(ged.mean(0, 1), row[0], 2)
        .guaranteed
    )
