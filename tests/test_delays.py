"""When outcomes enter: at a fixed age, one row a round, and what happens to coverage otherwise."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl import errors
from gedppl.agent import AlarmWarning
from gedppl.agent import memory as steps
from gedppl.agent.memory import Memory
from gedppl.ged_ucb import Entry, rows_by_stream
from gedppl.ged_ucb.settings import settings
from gedppl.guard import DelayMonitor, Guard, Told
from tests.plain_worlds import (
    PlainTables,
    PlainWorld,
    memory_of,
    monitors_of,
    play,
    state_of,
    told_of,
)

WORLD = PlainWorld()
GRID = np.linspace(0.05, 0.95, 19)
TRUTH = 5  # p = 0.3


def coins(actions: int, **options) -> ged.Problem:
    """One unknown chance, the same for every action."""
    tables = np.repeat(GRID[:, None, None], actions, axis=2)
    return ged.Problem(actions, ged.Utility(PlainTables(tables), ged.mean(0, 1)), **options)


# coverage -----------------------------------------------------------------------------------------


def misses(problem: ged.Problem, runs: int, rounds: int, told_after, outcomes) -> int:
    """Runs in which the truth was ever outside the set. `told_after(y)` is the delay,
    `outcomes(y)` what is told.
    """
    missed = 0
    for seed in range(runs):
        rng = np.random.default_rng([3, seed])
        memory = Memory(problem, settings("default", growth=1e9), None)
        due: dict[int, list[Entry]] = {}
        lost = False
        for t in range(rounds):
            memory = steps.decided(memory, np.zeros((1, 1)))
            y = float(rng.random() < GRID[TRUTH])
            entry = Entry(t, np.zeros(1), 0, {"utility": np.asarray(outcomes(y))}, True)
            due.setdefault(t + told_after(y), []).append(entry)
            memory = steps.absorbed(steps.told(memory, due.pop(t, [])))
            lost = lost or not memory.state.learners["utility"].plausible[TRUTH]
        missed += lost
    return missed


def check_delays(runs: int, rounds: int, prompt_share: float) -> None:
    def toxic_at_once(y: float) -> int:
        return 0 if y else 10

    broken = misses(coins(1), runs, rounds, toxic_at_once, lambda y: y)
    kept = misses(coins(1, outcome_age=11), runs, rounds, toxic_at_once, lambda y: y)
    print(f"missed in {broken} of {runs} runs as told, in {kept} at a fixed age")
    assert kept <= binom.ppf(0.9999, runs, 0.05)
    assert broken >= prompt_share * runs
    # a delay that says nothing of the outcome does no harm
    assert misses(coins(1), runs, rounds, lambda y: 10, lambda y: y) <= binom.ppf(
        0.9999, runs, 0.05
    )


def test_bad_news_first_breaks_coverage_and_a_fixed_age_mends_it() -> None:
    check_delays(40, 60, 0.3)


@pytest.mark.slow
def test_bad_news_first_breaks_coverage_and_a_fixed_age_mends_it_in_many_runs() -> None:
    check_delays(200, 150, 0.3)


def check_reveals(actions: int, runs: int, rounds: int, share: float) -> None:
    shown = np.ones((actions, actions), bool)

    def together(y: float) -> np.ndarray:
        return np.full(actions, y)  # one coin told as several

    believed = misses(
        coins(actions, reveals=shown, independent=True), runs, rounds, lambda y: 0, together
    )
    one = misses(coins(actions, reveals=shown), runs, rounds, lambda y: 0, together)
    print(f"missed in {believed} of {runs} runs as independent rows, in {one} with one row a round")
    assert one <= binom.ppf(0.9999, runs, 0.05)
    assert believed >= share * runs


def test_dependent_outcomes_taken_as_independent_rows_break_coverage_and_one_row_mends_it() -> None:
    check_reveals(2, 40, 100, 0.1)
    check_reveals(5, 10, 60, 0.4)


@pytest.mark.slow
@pytest.mark.parametrize(("actions", "share"), [(2, 0.15), (5, 0.6)])
def test_dependent_outcomes_in_many_runs(actions: int, share: float) -> None:
    check_reveals(actions, 150, 150, share)


# when rows enter ----------------------------------------------------------------------------------


def learned(agent: ged.GEDUCB, stream: str = "cost") -> int:
    return agent.confidence_set(stream).learner.n


def test_an_outcome_enters_when_its_decision_is_old_enough_whenever_it_was_told() -> None:
    agent = ged.GEDUCB(replace(WORLD.problem, outcome_age=3))
    ids = [agent.ask([0.0]).id for _ in range(2)]
    agent.tell(ids[0], 1.0, 0.0)
    assert learned(agent) == 0
    agent.ask([0.0])  # the first decision is now three rounds old
    assert learned(agent) == 1
    agent.tell(ids[1], 1.0)  # told early: it waits
    assert learned(agent, "utility") == 1
    agent.ask([0.0])
    assert learned(agent, "utility") == 2
    assert learned(agent) == 1
    agent.tell(ids[1], z=1.0)  # told late: it enters at once
    assert learned(agent) == 2


def test_logged_rows_enter_at_once_and_batches_at_their_age() -> None:
    agent = ged.GEDUCB(replace(WORLD.problem, outcome_age=4))
    agent.observe(np.zeros((3, 1)), [0, 1, 2], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0])
    assert learned(agent) == 3
    cohort = agent.ask(np.zeros((6, 1)))
    agent.tell_many([(d.id, 1.0, 0.0) for d in cohort])
    assert learned(agent) == 3 + 3  # of six decisions the first three are four rounds old
    agent.ask(np.zeros((2, 1)))
    assert learned(agent) == 3 + 5
    assert state_of(agent, None).told == 3 + 5


def test_journal_resume_and_amend_know_the_age(tmp_path) -> None:
    problem = replace(WORLD.problem, outcome_age=5)
    path = tmp_path / "j.db"
    agent = ged.GEDUCB(problem, seed=2, journal=path)
    play(agent, WORLD, 12)
    assert len(memory_of(agent).inbox) > 0
    expected, policy = agent.state_hash(), agent.policy([0.0])
    agent.journal.close()
    back = ged.resume(path, problem)  # from the records
    assert back.state_hash() == expected
    back.close()
    back = ged.resume(path, problem)  # from a snapshot
    assert back.state_hash() == expected
    np.testing.assert_array_equal(back.policy([0.0]), policy)
    # still waiting, and amended all the same
    back.amend(11, y=1.0 - float(told_of(back)[11]["utility"]))
    assert [float(e.outcomes["utility"]) for e in memory_of(back).inbox if e.id == 11] == [
        float(told_of(back)[11]["utility"])
    ]
    changed = back.state_hash()
    assert changed != expected
    back.journal.close()
    with ged.resume(path, problem) as again:
        assert again.state_hash() == changed
    with pytest.raises(errors.JournalMismatchError):
        ged.resume(path, WORLD.problem)


def test_ages_are_whole_numbers_of_rounds_and_independence_needs_something_revealed() -> None:
    for age in (0, -1, 2.5, True, "3"):
        with pytest.raises(
            errors.ProblemError,
            match=f"outcome_age must be a whole number of rounds, at least 1, got {age!r}",
        ):
            replace(WORLD.problem, outcome_age=age)
    with pytest.raises(errors.ProblemError, match="without reveals= there is one a round"):
        replace(WORLD.problem, independent=True)


def test_the_row_that_is_learned_is_settled_by_the_action() -> None:
    reveals = np.array([[True, True, True], [False, False, True], [False, False, False]])
    problem = replace(WORLD.problem, reveals=reveals)
    assert [problem.learned_of(a) for a in range(3)] == [0, 2, None]
    assert replace(problem, learn_safe=False).learned_of(0) == 1

    def rows(declared: ged.Problem, action: int) -> list[int]:
        told = np.where(reveals[action], 1.0, np.nan)
        found = rows_by_stream(declared, [Entry(0, np.zeros(1), action, {"cost": told}, True)])
        return found["cost"][1].tolist() if found else []

    assert [rows(problem, a) for a in range(3)] == [[0], [2], []]
    assert rows(replace(problem, independent=True), 0) == [0, 1, 2]


def test_certificates_say_how_outcomes_were_learned() -> None:
    def said(**options) -> str:
        certificate = ged.GEDUCB(replace(WORLD.problem, **options)).ask([0.0]).certificate
        assert certificate.feedback in str(certificate)
        assert certificate.to_dict()["feedback"] == certificate.feedback
        return certificate.feedback

    shown = np.ones((3, 3), bool)
    assert said() == "outcomes are learned when they are told: their delay must say nothing of them"
    assert said(outcome_age=7).startswith("outcomes are learned 7 rounds after their decision")
    assert said(reveals=shown).endswith("of those revealed together, one row a round")
    assert said(reveals=shown, independent=True).endswith("as independent given x, as declared")


# the monitor --------------------------------------------------------------------------------------


def false_alarms(runs: int, rounds: int, delays) -> int:
    """Of `runs` monitors beside right predictives, those that ever alarmed; delays(rng, runs)
    says nothing of u.
    """
    rng = np.random.default_rng(0)
    monitor = DelayMonitor.create(delta=0.05)
    for _ in range(rounds):
        monitor = monitor.update(rng.random(runs), delays(rng, runs))
    return int(monitor.alarmed.sum())


@pytest.mark.parametrize(
    "delays",
    [
        lambda rng, n: rng.integers(0, 20, n),
        lambda rng, n: np.where(rng.random(n) < 0.1, 30, 0),
        lambda rng, n: rng.pareto(0.7, n),
    ],
)
def test_delays_that_say_nothing_seldom_alarm(delays) -> None:
    assert false_alarms(1000, 400, delays) <= binom.ppf(0.9999, 1000, 0.05)


def test_delays_that_go_with_outcomes_alarm() -> None:
    rng = np.random.default_rng(1)
    monitor = DelayMonitor.create(delta=0.05)
    for _ in range(200):
        u = rng.random(100)
        monitor = monitor.update(u, np.where(rng.random(100) < u, 0, 10))
    assert monitor.alarmed.mean() > 0.95
    with pytest.raises(errors.DataError, match=r"lies in \[0, 1\], got 1.2"):
        monitor.update(1.2, 0)
    with pytest.raises(errors.DataError, match="0 or more, got -1"):
        monitor.update(0.2, -1)


def test_equal_delays_leave_nothing_to_bet_on() -> None:
    monitor = DelayMonitor.create(delta=0.05, burn_in=0)
    for u in np.random.default_rng(2).beta(3, 1, 300):  # a predictive that is far off
        monitor = monitor.update(u, 4)
    assert not monitor.alarmed
    assert monitor.log_peak == 0


def test_the_guard_keeps_delays_in_its_arrays() -> None:
    guard = Guard.create(dx=1, n_actions=2, delta=0.05, models=["cost"], burn_in=3)
    rng = np.random.default_rng(4)
    rows = [
        Told(np.zeros(1), 0, {"cost": rng.random()}, late=int(rng.integers(5))) for _ in range(40)
    ]
    for told in rows[:25]:
        guard, _ = guard.update(told)
    other = Guard.create(dx=1, n_actions=2, delta=0.05, models=["cost"], burn_in=3).with_arrays(
        guard.arrays()
    )
    for told in rows[25:]:
        guard, other = guard.update(told)[0], other.update(told)[0]
    assert (
        guard.monitors["delay:cost"].log_wealth.tobytes()
        == other.monitors["delay:cost"].log_wealth.tobytes()
    )
    assert guard.monitors["delay:cost"].n == 40
    # nobody waited for it
    assert guard.update(Told(np.zeros(1), 0, {"cost": 0.5}))[0].monitors["delay:cost"].n == 40


def toxic(agent: ged.GEDUCB, world, rounds: int, late_by: int, seed: int = 0) -> None:
    """Costs of 1 are told at once, the others after some rounds."""
    rng, waiting = np.random.default_rng(seed), {}
    for t in range(rounds):
        d = agent.ask(world.context(rng))
        y, z = world.outcome(d.x, d.action, rng)
        agent.tell(d.id, y)
        waiting.setdefault(t if z else t + late_by, []).append((d.id, z))
        for key, told in waiting.pop(t, []):
            agent.tell(key, z=told)


def test_an_agent_says_that_delays_go_with_outcomes_and_goes_on() -> None:
    world = PlainWorld(seed=5, dearest=0.6)
    agent = ged.GEDUCB(world.problem, seed=1, guard="warn")
    with pytest.warns(
        AlarmWarning,
        match=r"the delay of 'cost' goes with its outcome: late "
        r"outcomes are smaller.*outcome_age=m",
    ):
        toxic(agent, world, 130, 10)
    assert "delay:cost" in [alarm.name for alarm in agent.alarms]
    agent.acknowledge("delay:cost")
    assert monitors_of(agent)["delay:cost"].n == 0
    # at a fixed age all are equally late, and nothing is said
    agent = ged.GEDUCB(replace(world.problem, outcome_age=11), seed=1, guard="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AlarmWarning)
        toxic(agent, world, 130, 10)
    assert "delay:cost" not in [alarm.name for alarm in agent.alarms]
    assert monitors_of(agent)["delay:cost"].n > 100
