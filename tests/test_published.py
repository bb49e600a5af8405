"""Published experiments run again: the fast code against the same rule one run at a time, and
small numbers of each paper.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduce import hp_ucb, opb, oplb, roful
from gedppl.study.baselines.opb import OPB

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "published.py"


def test_the_vectorised_programme_is_that_of_the_baseline():
    rng = np.random.default_rng(0)
    for _ in range(300):
        tau, pulls = float(rng.uniform(0.2, 0.8)), rng.integers(0, 400, 4).astype(float)
        agent = OPB(n_actions=4, tau=tau, safe_value=0.0, horizon=1000)
        agent._pulls, agent._reward, agent._cost = (
            pulls,
            pulls * rng.random(4),
            pulls * rng.random(4),
        )
        n = np.maximum(pulls, 1)
        width = np.sqrt(2 * np.log(1000.0**2) / n)
        upper = np.minimum(1, agent._cost / n + width)
        upper[0] = 0.0
        score = np.minimum(1, agent._reward / n + (1 + 1 / tau) * width)
        fast = opb.policies(score[None], upper[None], np.array([tau]), pulls[None])[0]
        np.testing.assert_allclose(fast, agent.policy([]), atol=1e-12)


@pytest.mark.slow
def test_opb_has_the_published_regret():
    for cell in opb.cells(10_000, 10, 0):
        assert abs(cell.to_dict()["ratio"] - 1) < 0.05, cell


def test_opb_without_its_interval_breaks_the_limit():
    """The control of `infeasible rounds`: 0 with the interval, many without."""
    taus = np.repeat(opb.TAUS, 2)
    assert opb.regrets(taus, 300, np.random.default_rng(0))[1].sum() == 0
    assert opb.regrets(taus, 300, np.random.default_rng(0), pessimism=0.0)[1].sum() > 0


def test_the_scaled_arms_are_the_columns_of_the_published_matrix():
    """By hand at d = 5: rewards (10, 20, 25, 25, 20) / 30 and costs (30, 20, 15, 15, 20) / 30;
    the best sit on the limit .5.
    """
    theta, mu, arms = oplb.shifts(5)
    np.testing.assert_allclose(30 * arms @ theta, [10, 20, 25, 25, 20])
    np.testing.assert_allclose(30 * arms @ mu, [30, 20, 15, 15, 20])


def test_the_running_inverse_of_oplb_is_the_literal_rule():
    """One run, step by step with fresh inverses and determinants, on the same random numbers."""
    d, tau, rounds = 5, 0.5, 200
    theta, mu, arms = oplb.shifts(d)
    lost, broken = oplb.regrets(
        d, np.array([tau]), np.array([False]), rounds, np.random.default_rng(3)
    )
    rng, V = np.random.default_rng(3), oplb.RIDGE * np.eye(d)
    gains, harms, total = np.zeros(d), np.zeros(d), 0.0
    for t in range(rounds):
        if t == 0:
            arm, scale = int(rng.integers(d, size=1)[0]), tau / (2 * (arms @ mu).max())
        else:
            inverse = np.linalg.inv(V)
            norms = np.sqrt(np.einsum("ki,ij,kj->k", arms, inverse, arms))
            delta = 1 / (1 + 1 + (t - 1) // oplb.logged_every(rounds))
            first = 2 * np.sqrt(2 * np.log(np.sqrt(np.linalg.det(V) / oplb.RIDGE**d) / delta))
            harm = arms @ inverse @ harms + (first + np.sqrt(oplb.RIDGE)) * norms
            scales = np.where(harm > 0, np.minimum(1, tau / harm), 1)
            arm = int(
                (
                    (arms @ inverse @ gains + (first / tau + np.sqrt(oplb.RIDGE)) * norms) * scales
                ).argmax()
            )
            scale = float(scales[arm])
        noise = rng.standard_normal((2, 1))[:, 0]
        x = scale * arms[arm]
        V += np.outer(x, x)
        gains += x * (x @ theta + noise[0])
        harms += x * (x @ mu + noise[1])
        total += 25 / 30 - x @ theta
    assert lost[0] == pytest.approx(total, rel=1e-9)
    assert broken[0] == 0


def test_the_log_of_oplb_has_ten_thousand_entries_at_both_published_horizons():
    """By hand: the public scripts log every 100th round of 1e6 and every 1,000th of 1e7."""
    assert [oplb.logged_every(rounds) for rounds in (50, 10_000, 1_000_000, 10_000_000)] == [
        1,
        1,
        100,
        1000,
    ]


def test_roful_beats_genop_on_the_published_trials_and_nobody_breaks_the_limit():
    trials = roful.Trials.draw(6, 0.25, 1.0, 1500, 1500, seed=0)
    (first, broken), (second, also) = roful.regrets(trials, True), roful.regrets(trials, False)
    assert broken.sum() == also.sum() == 0
    assert first.mean() < second.mean()


@pytest.mark.slow
def test_roful_and_genop_have_the_published_regret():
    for cell in roful.cells(None, None, 0):
        assert abs(cell.to_dict()["ratio"] - 1) < 0.01, cell


def test_a_rule_on_the_expected_cost_lets_the_realised_one_exceed_the_limit_and_a_margin_does_not():
    rng = np.random.default_rng(0)
    rates = {
        name: hp_ucb.violations(0.5, 5, margin, 800, 5, rng).mean() for name, margin in hp_ucb.RULES
    }
    assert rates["expected-cost rule"] > 0.12
    assert rates["HP-UCB, sub-Gaussian margin"] < 0.005
    assert rates["HP-UCB, normal quantile"] < 0.01


def test_the_command_prints_one_json_line_a_cell():
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "--setting", "opb", "--rounds", "50", "--runs", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    assert [line["tau"] for line in lines] == [0.2, 0.5, 0.8]
    assert all(
        line["setting"] == "opb" and line["algorithm"] == "OPB" and line["ours"] > 0
        for line in lines
    )
    # no number is published for 50 rounds
    assert lines[0]["published"] is lines[0]["ratio"] is None
