"""`benchmarks/decide.py targets`: what is read off runs, the tables made of it, and the published
set that stands beside ours.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "benchmarks"))

import proof  # noqa: E402
import targets  # noqa: E402
from played import is_starved, played  # noqa: E402
from targets import TARGETS, Target  # noqa: E402

import gedppl as ged  # noqa: E402
from gedppl.learning.radius import View  # noqa: E402
from tests.coins import Table, problem  # noqa: E402

LIMIT = np.array([0.5])
HALF, NEVER, DEAR = (np.tile(row, (20, 1)) for row in ([0.5, 0.5], [1.0, 0.0], [0.1, 0.9]))


@pytest.mark.parametrize(
    ("best", "plays", "upper", "starved"),
    [
        (HALF, NEVER, 0.5 * DEAR[:, None], True),
        (HALF, NEVER, None, True),
        (HALF, NEVER, DEAR[:, None], False),  # its worst case did not allow it
        (NEVER, NEVER, 0.5 * DEAR[:, None], False),  # nobody wants it
        (HALF, HALF, 0.5 * DEAR[:, None], False),
    ],
)
def test_an_action_is_starved_if_it_is_wanted_and_allowed_and_not_played(
    best, plays, upper, starved
):
    assert is_starved(best, plays, upper, LIMIT) is starved


def results(**regret):
    more = {"share": 0.3, "infeasible": 2, "starved": 0, "half_off": None}
    return {label: {"regret": value} | more for label, value in regret.items()}


def test_a_target_is_a_ratio_to_the_peer_of_the_same_run():
    found = results(ours=30.0, peer=100.0)
    assert Target("wide", "peer", 0.6).value(found, "ours") == 0.3
    assert Target("bandit", "regret", 80.0).value(found, "ours") == 30.0
    assert Target("logistic_arms", "half_off", 500.0).value(found, "ours") is None
    assert Target("wide", "peer", 0.6).value(found, "pointwise") is None


def test_the_table_says_what_was_met_and_what_was_not():
    lines = {
        "bandit": {"seeds": [1000, 1008], "results": results(ours=81.0)},
        "logistic_arms": {"seeds": [1000, 1008], "results": results(ours=1.0)},
        "masses": {"seeds": [1000, 1008], "results": results(ours=1.0)},
    }
    rows = [row.split(" | ") for row in targets.table(lines).splitlines()[2:]]
    assert [(row[0], row[3], row[6]) for row in rows] == [
        ("| bandit", "81.0 (2)", "**no**"),
        ("| masses", ".300 (2)", "yes"),
        ("| logistic_arms", "never (2)", "**no**"),  # a run that never gets there meets nothing
    ]


def test_every_target_has_its_problem_and_every_kept_line_its_seeds():
    assert all(target.problem in proof.CASES for target in TARGETS)
    for name, line in proof.kept().items():
        assert name in proof.CASES
        assert line["seeds"][0] >= 1000  # none that weights were chosen on
        assert line["seeds"][1] - line["seeds"][0] >= 8


def test_runs_are_read_off_as_simulate_sees_them():
    class Coins(Table):
        def problem(self):
            return problem()

    def agent_for(problem, world, seed):
        return ged.GEDUCB(problem, seed=seed, guard=None)

    found = played(lambda seed: Coins(), 30, [3, 4], agent_for)
    for i, seed in enumerate((3, 4)):
        world = Coins()
        run = ged.simulate(problem(), world, agent_for(problem(), world, seed), 30, seed)
        assert found.regret[i] == pytest.approx(run.regret.sum())
        assert found.infeasible[i] == run.infeasible.sum()


# the published set --------------------------------------------------------------------------------


def test_the_published_radius_by_hand():
    """Its authors' experiments have d = 2, S = 4, |x| <= 1, delta = .05."""
    rule = proof.Unified(norm=4.0)
    assert rule.radius(View(n=1000, delta=0.05, dim=2)) == pytest.approx(
        math.log(20) + 2 * math.log(4 * math.e * 1000)
    )
    assert rule.radius(View(n=0, delta=0.05, dim=2)) == pytest.approx(math.log(20) + 2)


def misses(rule, runs):
    """Runs in which the truth leaves the set at some time, rows being chosen by what was seen."""
    truth, missed = np.array([1.0, -0.5]), 0
    for seed in range(runs):
        rng = np.random.default_rng([12, seed])
        X, y, out = np.zeros((0, 2)), np.zeros(0), False
        for n in range(1, 61):
            x = rng.normal(size=(2, 2))
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            row = x[(x @ (X.T @ (y - 0.5))).argmax()]
            X = np.vstack([X, row])
            y = np.append(y, rng.random() < 1 / (1 + np.exp(-row @ truth)))
            if n % 6:
                continue

            def worse(theta, X=X, y=y):
                eta = X @ theta
                loss = np.logaddexp(0, eta).sum() - y @ eta
                return loss, X.T @ (1 / (1 + np.exp(-eta)) - y)

            top = minimize(worse, np.zeros(2), jac=True, bounds=[(-4, 4)] * 2, method="L-BFGS-B")
            out |= worse(truth)[0] - top.fun > rule.radius(View(n=n, delta=0.05, dim=2))
        missed += out
    return missed


def test_the_published_set_covers_at_all_times_and_the_pointwise_one_does_not():
    """At .05, 8 misses of 60 have a chance of 1%."""
    assert misses(proof.Unified(norm=4.0), 60) <= 7
    assert misses(proof.Pointwise(), 60) > 7
