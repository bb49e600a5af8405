"""An agent under kills, interrupts, full disks, threads and bad calls: what was acknowledged stays,
and nothing else changes.

Run as a script this file is the crash harness: a process without JAX and without threads, so that
forking is safe, which forks agents and kills them. Every guard has a positive control, a variant
without it that fails.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors, ged_ucb
from gedppl.agent import deciding, keeper, memory
from gedppl.learning.finite import FiniteLearner
from tests.crashes import database, killed, needs_fork, report_of, watched
from tests.plain_worlds import PlainWorld, asked_of, memory_of, play, state_of, told_of

WORLD = PlainWorld()
LABELS = ("begun", "inserted", "committed", "synced", "applied")


# the crash harness --------------------------------------------------------------------------------


def one_step(agent: ged.GEDUCB, i: int) -> None:
    """Step i of a run that every process would make alike: decisions, outcomes a round late, now
    and then a change.
    """
    rng = np.random.default_rng([11, i])
    if i % 17 == 16:
        agent.set_limit("cost", float(rng.uniform(0.3, 0.6)))
    elif i % 2 == 0 or not agent.open_decisions:
        agent.ask(WORLD.context(rng))
    else:
        late = agent.open_decisions[0]
        x, action = asked_of(agent)[late]
        agent.tell(late, *WORLD.outcome(x, action, rng))


def steps_done(agent: ged.GEDUCB) -> int:
    return sum(1 for r in agent.journal.records() if r.kind in ("decision", "outcome", "change"))


def run_until_killed(path: Path, pipe: int, label: str | None, careless: bool, left: int) -> None:
    keeper.SNAPSHOT_EVERY = 7

    def reached(at: str) -> None:
        nonlocal left
        if at == label:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    agent = ged.resume(path, WORLD.problem)
    watched(agent.journal, reached)
    finish = keeper.Keeper._finish
    keeper.Keeper._finish = lambda self, step: (finish(self, step), reached("applied"))
    i = steps_done(agent)
    while True:
        if careless:  # the control: says so before it is so
            os.write(pipe, f"{i}\n".encode())
        one_step(agent, i)
        if not careless:
            os.write(pipe, f"{i}\n".encode())
        i += 1


def one_kill(path: Path, label: str | None, careless: bool, rng: random.Random) -> tuple[int, str]:
    """Fork an agent, kill it at the label or after a random time: the last step it acknowledged,
    and how it died.
    """
    left = rng.randrange(1, 6)
    after = rng.uniform(0.0, 0.05) if label is None else None
    lines, died = killed(
        lambda pipe: run_until_killed(path, pipe, label, careless, left), after, begun=True
    )
    return (int(lines[-1]) if lines else -1), died


def harness(path: Path, kills: int, careless: bool, seed: int) -> dict:
    rng = random.Random(seed)
    ged.GEDUCB(WORLD.problem, seed=5, journal=path).close()
    reference, hashes = ged.GEDUCB(WORLD.problem, seed=5), []
    report = {"lost": 0, "differs": 0, "ahead": 0, "bad_deaths": [], "steps": 0, "snapshots": 0}
    for k in range(kills):
        acknowledged, died = one_kill(path, (None, *LABELS)[k % (1 + len(LABELS))], careless, rng)
        if died != "killed":
            report["bad_deaths"].append(died)
        agent = ged.resume(path, WORLD.problem)
        done = steps_done(agent)
        while len(hashes) <= done:
            hashes.append(reference.state_hash())
            one_step(reference, len(hashes) - 1)
        report["lost"] += max(0, acknowledged + 1 - done)
        report["ahead"] += done > acknowledged + 1 >= 1
        report["differs"] += agent.state_hash() != hashes[done]
        report["snapshots"] += agent.resumed.snapshot is not None
        report["steps"] = done
        agent.journal.close()  # without the snapshot that agent.close() takes
    return report


def check(report: dict, kills: int) -> None:
    assert report["bad_deaths"] == []
    assert (report["lost"], report["differs"]) == (0, 0)
    assert report["steps"] > kills
    assert report["snapshots"] > 0


@needs_fork
def test_a_killed_agent_comes_back_as_it_was(tmp_path) -> None:
    check(report_of(__file__, tmp_path, 12), 12)


@pytest.mark.slow
@needs_fork
def test_a_killed_agent_comes_back_as_it_was_two_hundred_times(tmp_path) -> None:
    report = report_of(__file__, tmp_path, 200, seed=1)
    check(report, 200)
    # kills between commit and acknowledgement did happen, and the step was kept
    assert report["ahead"] > 0


@needs_fork
def test_an_agent_that_acknowledges_first_loses_steps(tmp_path) -> None:
    assert report_of(__file__, tmp_path, 6, careless=True)["lost"] > 0


# interrupts ---------------------------------------------------------------------------------------


class Stop(KeyboardInterrupt):
    pass


def interrupted(*_) -> None:
    raise Stop


STEPS = {
    "ask": lambda g: g.ask([0.0]),
    "cohort": lambda g: g.ask([[0.0], [1.0]]),
    "tell": lambda g: g.tell(5, 1.0, 0.0),
    "observe": lambda g: g.observe([[0.0]], [1], [1.0], [0.0]),
    "set_limit": lambda g: g.set_limit("cost", 0.3),
    "amend": lambda g: g.amend(0, y=1.0 - float(told_of(g)[0]["utility"])),
}


def after(path: Path | None, last: str | None = None) -> ged.GEDUCB:
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=path)
    play(agent, WORLD, 5)
    agent.ask([1.0])
    if last is not None:
        STEPS[last](agent)
    return agent


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("when", ["before anything is applied", "half applied"])
def test_an_interrupt_after_the_write_is_finished_by_the_next_call(
    tmp_path, monkeypatch, step, journal, when
) -> None:
    agent = after(tmp_path / "j.db" if journal else None)
    finish = keeper.Keeper._finish

    def broken_off(self, pending) -> None:
        if when == "half applied":
            memory = self.memory
            finish(self, pending)
            self.memory = memory  # everything but the last line
        raise Stop

    monkeypatch.setattr(keeper.Keeper, "_finish", broken_off)
    with pytest.raises(Stop):
        STEPS[step](agent)
    monkeypatch.undo()
    assert agent.state_hash() == after(None, step).state_hash()
    if journal:
        agent.journal.close()
        assert ged.resume(tmp_path / "j.db", WORLD.problem).state_hash() == agent.state_hash()


def test_without_settling_an_interrupt_would_lose_a_written_step(tmp_path, monkeypatch) -> None:
    """The positive control of the test above."""
    agent = after(tmp_path / "j.db")
    monkeypatch.setattr(keeper.Keeper, "_finish", interrupted)
    with pytest.raises(Stop):
        agent.ask([0.0])
    monkeypatch.setattr(keeper.Keeper, "settle", lambda self: None)
    assert agent.rounds == 6
    assert sum(1 for _ in agent.journal.records("decision")) == 7


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("label", ["begun", "inserted", "committed", "synced"])
def test_an_interrupt_inside_the_write_leaves_an_agent_that_goes_on(tmp_path, step, label) -> None:
    agent = after(tmp_path / "j.db")
    before, written = agent.state_hash(), label == "synced"
    expected = after(None, step).state_hash() if written else before

    def stop(at: str) -> None:
        if at == label:
            raise Stop

    watched(agent.journal, stop)
    with pytest.raises(Stop):
        STEPS[step](agent)
    watched(agent.journal, lambda at: None)
    assert agent.state_hash() == expected
    assert agent.rounds == sum(1 for _ in agent.journal.records("decision"))
    agent.ask([0.0])
    expected = agent.state_hash()
    agent.close()
    assert ged.resume(tmp_path / "j.db", WORLD.problem).state_hash() == expected


def test_an_interrupt_while_computing_changes_nothing(tmp_path, monkeypatch) -> None:
    agent = after(tmp_path / "j.db")
    agent.tell(5, 1.0, 0.0)
    before, records = agent.state_hash(), len(agent.journal)
    monkeypatch.setattr(deciding, "payload", interrupted)
    with pytest.raises(Stop):
        agent.ask([0.0])
    assert (agent.state_hash(), len(agent.journal)) == (before, records)


# full disk, jumping clock -------------------------------------------------------------------------


REPEATED = {
    "ask": lambda g, i: g.ask([0.0]),
    "cohort": lambda g, i: g.ask([[0.0], [1.0]] * 20),
    "observe": lambda g, i: g.observe([[0.0]], [1], [1.0], [0.0]),
    "set_limit": lambda g, i: g.set_limit("cost", 0.3 + i / 1000),
    "amend": lambda g, i: g.amend(0, y=1.0 - float(told_of(g)[0]["utility"])),
}


@pytest.mark.parametrize("step", REPEATED)
def test_a_full_disk_is_an_error_before_anything_changes(tmp_path, step) -> None:
    agent = after(tmp_path / "j.db")
    db = database(agent.journal)
    db.execute(f"PRAGMA max_page_count={db.execute('PRAGMA page_count').fetchone()[0]}")
    for i in range(100):
        before = agent.state_hash(), len(agent.journal), agent.journal.state_hash
        try:
            REPEATED[step](agent, i)
        except errors.JournalFullError as error:
            said = str(error)
            break
    else:
        pytest.fail("the disk was never full")
    assert "Nothing was acknowledged" in said
    assert (agent.state_hash(), len(agent.journal), agent.journal.state_hash) == before
    db.execute("PRAGMA max_page_count=1000000")
    agent.ask([0.0])  # room again: it goes on
    expected = agent.state_hash()
    agent.close()
    assert ged.resume(tmp_path / "j.db", WORLD.problem).state_hash() == expected


def test_a_clock_that_jumps_back_is_recorded_and_harmless(tmp_path) -> None:
    agent = after(tmp_path / "j.db")
    agent.journal._clock = lambda: 1_000
    agent.ask([0.0])
    agent.tell(6, 1.0, 0.0)
    agent.journal.close()
    back = ged.resume(tmp_path / "j.db", WORLD.problem)
    times = [r.time_ns for r in back.journal.records()]
    assert times[-1] == 1_000 < times[0]
    assert back.state_hash() == agent.state_hash()


# failures of the models ---------------------------------------------------------------------------


def test_outcomes_that_cannot_be_learned_wait_and_the_safe_action_is_played(
    tmp_path, monkeypatch
) -> None:
    """An oracle that raises: the reason is recorded, the outcomes are kept and learned once it
    works again.
    """
    agent = after(tmp_path / "j.db")
    agent.tell(5, 1.0, 0.0)

    def fails(*_):
        raise RuntimeError("the solver is gone")

    monkeypatch.setattr(FiniteLearner, "absorb", fails)
    with pytest.warns(ged.FallbackWarning, match="the solver is gone"):
        decision = agent.ask([1.0])
    monkeypatch.undo()
    assert decision.action == 0
    assert "could not be learned" in decision.certificate.fallback
    assert len(memory_of(agent).inbox) == 1
    assert agent.ask([1.0]).certificate.fallback is None
    assert len(memory_of(agent).inbox) == 0
    agent.journal.close()
    back = ged.resume(tmp_path / "j.db", WORLD.problem)
    assert back.state_hash() == agent.state_hash()
    stored = [r.payload for r in back.journal.records("decision")]
    assert "the solver is gone" in stored[-2]["certificate"]["fallback"]
    assert [p["learned"] for p in stored[-2:]] == [False, True]


def test_the_safe_action_is_never_forced_past_a_mask(monkeypatch) -> None:
    agent = after(None)
    monkeypatch.setattr(
        ged_ucb,
        "select",
        lambda *_: (_ for _ in ()).throw(FloatingPointError("a cost bound is NaN")),
    )
    before = agent.state_hash()
    with pytest.raises(
        errors.InfeasibleError,
        match="not among those allowed here: FloatingPointError: a cost bound is NaN",
    ):
        agent.ask([0.0], allowed=[False, True, True])
    assert agent.state_hash() == before


def test_without_a_safe_action_a_failure_is_an_error(monkeypatch) -> None:
    free = ged.Problem(n_actions=3, utility=WORLD.problem.utility)
    agent = ged.GEDUCB(free)
    agent.ask([0.0])
    monkeypatch.setattr(
        ged_ucb, "select", lambda *_: (_ for _ in ()).throw(FloatingPointError("NaN"))
    )
    before = agent.state_hash()
    with pytest.raises(FloatingPointError, match="names no safe action"):
        agent.ask([0.0])
    assert agent.state_hash() == before


# threads ------------------------------------------------------------------------------------------


def hammer(path: Path, rounds: int) -> None:
    agent = ged.GEDUCB(WORLD.problem, seed=3, journal=path)
    failures: list[BaseException] = []
    seen: dict[int, tuple] = {}

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            for _ in range(rounds):
                x = WORLD.context(rng)
                decision = agent.ask(x)
                outcome = WORLD.outcome(x, decision.action, rng)
                seen[decision.id] = (x, decision, outcome)
                agent.tell(decision.id, *outcome)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert failures == []
    assert agent.rounds == len(seen) == 8 * rounds
    # the journal is a serial order: played one by one, the same agent comes out, and no trace is
    # mixed
    serial = ged.GEDUCB(WORLD.problem, seed=3)
    for record in agent.journal.records():
        p = record.payload
        if record.kind == "decision":
            x, mine, _ = seen[p["id"]]
            again = serial.ask(p["x"])
            assert np.array_equal(p["x"], x)
            assert again.id == mine.id == p["id"]
            assert again.action == mine.action == p["action"]
            assert again.policy.tobytes() == mine.policy.tobytes() == p["policy"].tobytes()
        elif record.kind == "outcome":
            assert (p["y"], p["z"]["cost"]) == seen[p["id"]][2]
            serial.tell(p["id"], p["y"], p["z"]["cost"])
    assert serial.state_hash() == agent.state_hash()


def test_eight_threads_are_some_serial_order(tmp_path) -> None:
    hammer(tmp_path / "j.db", 8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")
def test_eight_threads_of_five_hundred_rounds_are_some_serial_order(tmp_path) -> None:
    hammer(tmp_path / "j.db", 500)


def test_without_the_lock_traces_mix(monkeypatch) -> None:
    """The positive control: the same agent with a lock that locks nothing."""

    class Open:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    agent = ged.GEDUCB(WORLD.problem, seed=3)
    agent._lock = Open()
    real = keeper.Keeper.commit

    def slow(self, *args, **kwargs):
        time.sleep(0.001)  # any switch of threads between the choice and the write
        return real(self, *args, **kwargs)

    monkeypatch.setattr(keeper.Keeper, "commit", slow)
    ids: list[int] = []
    threads = [
        threading.Thread(target=lambda: [ids.append(agent.ask([0.0]).id) for _ in range(5)])
        for _ in range(8)
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(set(ids)) < len(ids)


# feedback between two decisions, in any order -----------------------------------------------------


def dataset(agent: ged.GEDUCB) -> tuple:
    state = state_of(agent, None)
    learners = list(state.learners.values())
    rows = tuple(
        part.tobytes() for each in learners for part in (each.rows.x, each.rows.a, each.rows.y)
    )
    policies = tuple(agent.policy([v]).tobytes() for v in (0.0, 1.0))
    return rows, tuple(each.evidence for each in learners), policies


def permuted(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outcomes = [(float(y), float(z)) for y, z in rng.integers(2, size=(6, 2))]

    def told(order) -> tuple:
        agent = ged.GEDUCB(WORLD.problem, seed=4)
        agent.observe([[0.0], [1.0]], [1, 2], [1.0, 0.0], [0.0, 0.0])
        ids = [d.id for d in agent.ask([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0]])]
        for i, part in order:
            y, z = outcomes[i]
            agent.tell(ids[i], y if part != "z" else None, z if part != "y" else None)
        agent.ask([0.0])
        return dataset(agent), memory_of(agent).watch.guard.arrays()

    plain, monitors = told([(i, "both") for i in range(6)])
    for _ in range(count):
        whole = rng.random(6) < 0.5  # the others are told in two parts, either first
        order = [(i, part) for i in range(6) for part in (["both"] if whole[i] else ["y", "z"])]
        again = zip(rng.integers(6, size=3), rng.choice(["both", "y", "z"], 3))
        order += [(int(i), str(part)) for i, part in again]
        rng.shuffle(order)
        result, its_monitors = told(order)
        assert result == plain
        assert all(np.array_equal(monitors[key], its_monitors[key]) for key in monitors)


def test_permutations_and_duplications_in_a_batch_change_nothing() -> None:
    permuted(12, 0)


@pytest.mark.slow
def test_a_thousand_permutations_and_duplications_in_a_batch_change_nothing() -> None:
    permuted(1000, 1)


def test_without_the_order_of_ids_permutations_would_matter(monkeypatch) -> None:
    """The positive control: rows in the order of arrival."""

    def by_arrival(problem, entries):
        return ged_ucb.rows_by_stream(
            problem, [type(e)(i, e.x, e.action, e.outcomes, e.first) for i, e in enumerate(entries)]
        )

    monkeypatch.setattr(memory, "rows_by_stream", by_arrival)
    with pytest.raises(AssertionError):
        permuted(5, 0)


# bad calls ----------------------------------------------------------------------------------------

BAD = [
    (
        "amending an unknown decision",
        lambda g: g.amend(99, y=1.0),
        errors.UnknownDecisionError,
        "no decision 99",
    ),
    ("amending with nothing", lambda g: g.amend(0), errors.DataError, "no outcome of decision 0"),
    ("amending what was never told", lambda g: g.amend(5, y=1.0), errors.DataError, "never told"),
    ("amending out of support", lambda g: g.amend(0, y=3.0), errors.OutOfSupportError, "3"),
    ("amending to NaN", lambda g: g.amend(0, y=np.nan), errors.NotFiniteError, "is NaN"),
    (
        "amending an unknown constraint",
        lambda g: g.amend(0, z={"price": 1.0}),
        errors.DataError,
        "no constraint learns from",
    ),
    (
        "acknowledging no alarm",
        lambda g: g.acknowledge("limit:cost"),
        errors.InputError,
        "no alarm 'limit:cost'",
    ),
    ("acknowledging a number", lambda g: g.acknowledge(3), errors.InputError, "no alarm 3"),
    (
        "a limit of words",
        lambda g: g.set_limit("cost", "low"),
        errors.ProblemError,
        "finite number, got 'low'",
    ),
    ("a limit of NaN", lambda g: g.set_limit("cost", np.nan), errors.ProblemError, "finite number"),
    ("a limit of True", lambda g: g.set_limit("cost", True), errors.ProblemError, "got True"),
    (
        "a limit under the safe value",
        lambda g: g.set_limit("cost", 0.05),
        errors.ProblemError,
        "must not exceed its limit",
    ),
    (
        "a limit on an unknown constraint",
        lambda g: g.set_limit("price", 0.3),
        errors.ProblemError,
        "no constraint 'price'",
    ),
    (
        "retiring the safe action",
        lambda g: g.retire_action(0),
        errors.ActionRangeError,
        "cannot be retired",
    ),
    ("retiring by name", lambda g: g.retire_action("1"), errors.ActionRangeError, "0, ..., 2"),
    ("retiring True", lambda g: g.retire_action(True), errors.ActionRangeError, "0, ..., 2"),
    (
        "restoring an unknown action",
        lambda g: g.restore_action(7),
        errors.ActionRangeError,
        "0, ..., 2",
    ),
    (
        "telling True as a decision",
        lambda g: g.tell(True, 1.0, 0.0),
        errors.UnknownDecisionError,
        "no decision True",
    ),
    (
        "telling a negative decision",
        lambda g: g.tell(-1, 1.0, 0.0),
        errors.UnknownDecisionError,
        "no decision -1",
    ),
    (
        "telling against itself",
        lambda g: g.tell_many([(5, 1.0, 0.0), (5, 0.0, 0.0)]),
        errors.ConflictingOutcomeError,
        "told",
    ),
    (
        "a context of absurd width",
        lambda g: g.ask(np.broadcast_to(0.0, (10**9,))),
        errors.ShapeError,
        "too large",
    ),
    (
        "absurdly many contexts",
        lambda g: g.ask(np.broadcast_to(0.0, (10**9, 1))),
        errors.ShapeError,
        "too large",
    ),
    (
        "a mask without any action",
        lambda g: g.ask([0.0], allowed=[False] * 3),
        errors.ActionRangeError,
        "leaves no action",
    ),
    (
        "logged rows without any",
        lambda g: g.observe(np.zeros((0, 1)), [], []),
        errors.ShapeError,
        "one context",
    ),
    (
        "logged rows of another width",
        lambda g: g.observe([[0.0, 1.0]], [0], [1.0]),
        errors.ContextWidthError,
        "1 columns",
    ),
    (
        "logged outcomes of NaN",
        lambda g: g.observe([[0.0]], [0], [np.nan], [0.0]),
        errors.NotFiniteError,
        "is NaN",
    ),
    (
        "explaining nothing",
        lambda g: g.explain(400),
        errors.UnknownDecisionError,
        "no decision 400",
    ),
]
BAD_MAKING = [
    ("a guard of another name", {"guard": "loud"}, errors.SettingError, "guard must be one of"),
    (
        "a journal in no folder",
        {"journal": "no/such/folder/j.db"},
        errors.JournalFullError,
        "could not be created",
    ),
]


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    agent = after(tmp_path_factory.mktemp("busy") / "j.db")
    yield agent
    agent.close()


@pytest.mark.parametrize(("what", "call", "error", "match"), BAD, ids=[b[0] for b in BAD])
def test_bad_calls_are_named_and_leave_state_and_journal(busy, what, call, error, match) -> None:
    before, records = busy.state_hash(), len(busy.journal)
    with pytest.raises(error, match=match):
        call(busy)
    assert (busy.state_hash(), len(busy.journal)) == (before, records)


@pytest.mark.parametrize(
    ("what", "options", "error", "match"), BAD_MAKING, ids=[b[0] for b in BAD_MAKING]
)
def test_bad_options(what, options, error, match) -> None:
    with pytest.raises(error, match=match):
        ged.GEDUCB(WORLD.problem, **options)


def test_at_least_sixty_bad_inputs_are_tried() -> None:
    from tests import test_agent as others

    tables = (
        others.BAD_CALLS,
        others.BAD_PROBLEMS,
        others.BAD_CONSTRAINTS,
        others.BAD_SETTINGS,
        BAD,
        BAD_MAKING,
    )
    assert sum(map(len, tables)) >= 60


def test_a_closed_agent_says_so(tmp_path) -> None:
    agent = after(tmp_path / "j.db")
    agent.close()
    with pytest.raises(errors.JournalError, match="was closed"):
        agent.ask([0.0])


# corrections --------------------------------------------------------------------------------------


def test_amending_is_having_told_the_other_value() -> None:
    def run(first: float, amend: bool) -> ged.GEDUCB:
        agent = ged.GEDUCB(WORLD.problem, seed=2)
        ids = [d.id for d in agent.ask([[0.0], [1.0], [0.0]])]
        for i, y in zip(ids, (1.0, first, 1.0)):
            agent.tell(i, y, 0.0)
        agent.observe([[1.0]], [1], [1.0], [0.0])
        if amend:
            agent.amend(ids[1], y=1.0)
        return agent

    wrong, amended, right = run(0.0, False), run(0.0, True), run(1.0, False)
    assert dataset(amended) == dataset(right) != dataset(wrong)
    assert told_of(amended) == told_of(right)
    before = amended.state_hash()
    amended.amend(1, y=1.0)  # the same again
    assert amended.state_hash() == before
    with pytest.raises(errors.ConflictingOutcomeError, match="use amend"):
        amended.tell(1, 0.0)


if __name__ == "__main__":
    print(
        json.dumps(
            harness(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", int(sys.argv[4]))
        )
    )
    assert "jax" not in sys.modules
