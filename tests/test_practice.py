"""`benchmarks/practice.py`: its problems are what they say, and its smallest run measures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import practice
from fields import FIELDS

from gedppl.functionals.expectation import at_outcomes
from tests.optional_pyro import HAS_PYRO

PYRO = ("quality", "queue")
HERE = [name for name, field in FIELDS.items() if HAS_PYRO or field.file not in PYRO]


@pytest.mark.parametrize("name", HERE)
def test_what_is_declared_is_true(name: str) -> None:
    """Ranges and safe values hold in every world at every context met, and the limit binds: the
    best policy does not always play what is best without it.
    """
    bound, problem = 0, FIELDS[name].module.problem()
    for seed in range(1000, 1006):
        world, rng = FIELDS[name].world(seed), np.random.default_rng(seed)
        x = np.array([world.context(rng) for _ in range(60)])
        u = np.array([world.utilities(row) for row in x])
        c = np.array([world.costs(row) for row in x])
        assert u.shape == (60, problem.n_actions)
        assert c.shape == (60, len(problem.constraints), problem.n_actions)
        gain = problem.utility.functional
        assert (u >= gain.low).all()
        assert (u <= gain.high).all()
        for j, limit in problem.learned:
            assert (c[:, j] >= limit.functional.low).all()
            assert (c[:, j] <= limit.functional.high).all()
        safe = problem.safe_values(x)
        assert (c[:, :, problem.safe_action] <= safe).all()
        assert (safe < problem.limits).all()
        best = u.argmax(axis=1)
        bound += int((c[np.arange(60), :, best] > problem.limits).any(axis=1).sum())
    assert bound >= 8


@pytest.mark.parametrize("name", HERE)
def test_outcomes_are_what_utilities_and_costs_are_the_means_of(name: str) -> None:
    """Of outcomes that are costs themselves; of others, that they can be told."""
    field = FIELDS[name]
    world, rng = field.world(1000), np.random.default_rng(1)
    x, problem = world.context(rng), field.module.problem()
    told = [world.outcome(x, 1, rng) for _ in range(2000)]
    y = np.array([one for one, _ in told], float)
    first = problem.constraints[0]
    if first.functional.name == "mean":
        z = y if first.outcome else [z if np.isscalar(z) else z[first.name] for _, z in told]
        error = np.std(z) / np.sqrt(2000)
        assert abs(np.mean(z) - world.costs(x)[0, 1]) < 4 * error
    fn = problem.utility.functional.fn
    values = y if fn is None else np.ravel(at_outcomes(fn, y[:, None], x[None], np.array([1])))
    assert abs(values.mean() - world.utilities(x)[1]) < 4 * values.std() / np.sqrt(2000)


def test_the_smallest_run_measures() -> None:
    found = practice.measure("energy", ["guaranteed"], rounds=12, seeds=range(1000, 1001))
    ours = found["guaranteed"]
    assert ours["above"] == ours["fallbacks"] == 0
    assert sum(ours["words"].values()) == 12
    assert 0 < ours["ask_ms"] < 1e3 * ours["longest_s"] + 1
    line = practice.table({"energy": found}).splitlines()[2]
    assert line.startswith("| energy |")


def test_shares_are_of_all_runs_together() -> None:
    one = {"above": 1, "words": {"guarantee, exact": 2}, "fallbacks": 0, "alarms": ["a"]}
    one |= {"ask": 0.01, "longest": 0.1, "first": 3.0}
    runs = [
        one | {"gained": [1.0, 1.0], "possible": [10.0, 2.0]},
        one | {"gained": [2.0, 0.0], "possible": [2.0, 2.0]},
    ]
    found = practice.summary(runs)
    assert (found["share"], found["last"], found["above"]) == (0.25, 0.25, 2)
    assert found["runs"] == [0.1, 1.0]


def test_every_kept_line_has_its_problem_and_its_seeds() -> None:
    for name, agents in practice.kept().items():
        assert name in FIELDS
        assert set(agents) <= set(practice.AGENTS)
        if FIELDS[name].inside:
            assert agents["guaranteed"]["above"] == 0
