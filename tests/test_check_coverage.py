"""Calibration of a user's own problem: what is counted, what is allowed, and that the count can
fail.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl import errors
from gedppl.study.cli.scripts import loaded
from gedppl.study.planning.coverage import judged
from tests.stand_ins import provide

CONTEXTS = np.linspace(0, 1, 5)[:, None]


def arms(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.3, 0.2).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], 0.2), obs=y)


CLS, GAIN = ged.density_class(arms), ged.density_class(arms)


def problem() -> ged.Problem:
    limit = ged.Constraint(CLS, ged.mean(-1, 2), at_most=0.5, safe_value=0.4, name="harm")
    return ged.Problem(3, ged.Utility(GAIN, ged.mean(-1, 2)), [limit], safe_action=0)


@pytest.fixture(scope="module")
def found() -> Any:
    return ged.check_coverage(problem(), CONTEXTS, runs=12, rounds=30)


def test_a_sound_problem_is_within_delta(found: Any) -> None:
    assert found.ok
    assert found.allowed == binom.ppf(0.999, 12, 0.05)
    assert found.misses("harm") <= found.allowed
    assert found.kind("harm") == "guarantee"
    assert found.gain <= 1
    assert found.gain == sum(r.gained for r in found.runs) / sum(r.room for r in found.runs)


def too_sure(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.3, 0.2).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], 0.05), obs=y)


SURE = ged.density_class(too_sure)


def narrow(problem: ged.Problem, delta: float, seed: int) -> Any:
    """An agent that takes the noise for a quarter of what it is, so that its sets are too
    narrow: the count must see it.
    """
    limit = replace(problem.constraints[0], model=SURE)
    return ged.GEDUCB(replace(problem, constraints=[limit]), delta=delta, seed=seed, guard=None)


def test_sets_that_are_too_narrow_are_found_out() -> None:
    wrong = ged.check_coverage(problem(), CONTEXTS, runs=12, rounds=30, agent=narrow)
    assert wrong.misses("harm") > wrong.allowed
    assert not wrong.ok
    assert "MORE THAN DELTA" in str(wrong)


def test_misses_are_counted_as_by_hand() -> None:
    world_seed, declared = 5, problem()
    world = ged.Scenario(truth={"utility": {"w": [0.3, 0.5, 0.4]}, "harm": {"w": [0.3, 0.2, 0.6]}})
    from gedppl.study.planning.worlds import make_world

    run = ged.simulate(
        declared, make_world(declared, world, CONTEXTS, 0), narrow(declared, 0.5, 1), 20, world_seed
    )
    by_hand = [
        any(
            not r.cost_lower[0, k] - 1e-8 <= r.costs[0, k] <= r.cost_upper[0, k] + 1e-8
            for k in (1, 2)
        )
        for r in run.rounds
    ]
    one = judged(declared, run, 0)
    assert one.missed[0] == pytest.approx(np.mean(by_hand))
    assert one.first_miss[0] == (by_hand.index(True) if any(by_hand) else -1)
    assert one.infeasible == int(run.infeasible.sum())


def test_an_interrupted_check_goes_on_to_the_same_result(found: Any) -> None:
    def interrupted(fn: Any, tasks: Any) -> Any:
        for i, task in enumerate(tasks):
            if i == 5:
                raise KeyboardInterrupt
            yield fn(task)

    part = ged.check_coverage(problem(), CONTEXTS, runs=12, rounds=30, map=interrupted)
    assert part.interrupted
    assert len(part.runs) == 5
    assert "INTERRUPTED after 5 of 12" in str(part)
    whole = ged.check_coverage(problem(), CONTEXTS, runs=12, rounds=30, more_of=part)
    assert [(r.index, r.infeasible, r.gain) for r in whole.runs] == [
        (r.index, r.infeasible, r.gain) for r in found.runs
    ]


def test_runs_may_be_made_elsewhere(found: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        there = ged.check_coverage(problem(), CONTEXTS, runs=3, rounds=30, map=pool.map)
    assert [r.gain for r in there.runs] == [r.gain for r in found.runs[:3]]


def test_a_run_with_next_to_nothing_to_gain_does_not_blow_up_the_share(found: Any) -> None:
    odd = replace(found.runs[0], gained=-0.5, room=1e-3)
    runs = (replace(found.runs[0], gained=3.0, room=4.0), odd)
    assert replace(found, runs=runs).gain == pytest.approx(2.5 / 4.001)
    nothing = replace(found, runs=(replace(odd, room=0.0),))
    assert "share of the oracle's gain: nothing to gain" in str(nothing)


def test_named_truths_are_taken_in_turn() -> None:
    truths = [
        {"harm": {"w": [0.3, 0.2, 0.2]}, "utility": {"w": [0.1, 0.9, 0.9]}},
        {"harm": {"w": [0.3, 1.5, 1.5]}},
    ]
    some = ged.check_coverage(problem(), CONTEXTS, truths, runs=4, rounds=40)
    assert some.runs[0].safe_share < some.runs[1].safe_share


def test_bad_input_is_named(found: Any) -> None:
    for wrong, said in (
        ({"runs": 0}, "runs must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"delta": "x"}, "delta must lie strictly between 0 and 1, got 'x'"),
        ({"map": None}, "map must be a function"),
        ({"agent": "GEDUCB"}, "agent must be options of GEDUCB"),
        ({"more_of": 3}, "more_of must be what check_coverage returned, got 3"),
        ({"runs": 12, "rounds": 30, "seed": 1, "more_of": found}, "repeat the call"),
        ({"runs": 12, "rounds": 30, "agent": {"guard": None}, "more_of": found}, "repeat the call"),
        ({"truths": [{"harm": {"w": [0.3] * 3}}], "rounds": 30, "more_of": found}, "repeat"),
    ):
        with pytest.raises(errors.SettingError, match=said):
            ged.check_coverage(problem(), CONTEXTS, **wrong)
    other = ged.check_coverage(problem(), CONTEXTS, runs=1, rounds=2, agent={"mode": "default"})
    with pytest.raises(errors.SettingError, match="options of the agent; repeat the call"):
        ged.check_coverage(
            problem(), CONTEXTS, runs=2, rounds=2, agent={"mode": "theory"}, more_of=other
        )
    with pytest.raises(errors.SettingError, match='truths must be "prior"'):
        ged.check_coverage(problem(), CONTEXTS, "posterior")
    with pytest.raises(errors.SettingError, match="repeat the call that was interrupted"):
        ged.check_coverage(problem(), CONTEXTS, runs=12, rounds=31, more_of=found)
    with pytest.raises(errors.ProblemError, match="no constraint of this problem is learned"):
        ged.check_coverage(ged.Problem(3, ged.Utility(GAIN, ged.mean(-1, 2))), CONTEXTS)
    with pytest.raises(errors.SettingError, match="there is no learned constraint 'pain'"):
        found.misses("pain")


def test_it_shows_itself(found: Any) -> None:
    import matplotlib.pyplot as plt

    assert "bounds of 'harm' miss" in str(found)
    assert len(repr(found).splitlines()) <= 12
    assert "<table>" in found._repr_html_()
    assert len(found.plot().lines) == 2
    plt.close("all")


MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("*.py")))
def test_the_bounds_of_every_script_cover(name: str, tmp_path, monkeypatch) -> None:
    """Truths of each script's own prior, at contexts of its own world; a guarantee must keep its
    delta, anything else is printed beside it.
    """
    if name.startswith("pyro"):
        pytest.importorskip("pyro")
    provide(name, tmp_path, monkeypatch)
    rng = np.random.default_rng(0)
    with loaded(MODELS / f"{name}.py") as script:
        if not script.problem.learned:
            pytest.skip("no constraint is learned")
        x = np.stack([script.environment.context(rng) for _ in range(30)])
        found = ged.check_coverage(script.problem, x, runs=20, rounds=60, delta=0.1)
    print(f"{name}: {found}")
    assert len(found.runs) == 20
    for limit in found.constraints:
        assert found.misses(limit, claimed=True) <= found.allowed
    if all(found.kind(limit) == "guarantee" for limit in found.constraints):
        assert found.ok
