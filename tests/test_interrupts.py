"""Ctrl-C at any line of a call: afterwards the agent is as it was before the call or as it is
after it, and goes on.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gedppl
import gedppl as ged
from gedppl import errors
from gedppl.journal import Journal
from tests.crashes import watched
from tests.plain_worlds import PlainWorld, asked_of, memory_of, play, told_of

WORLD = PlainWorld(actions=4)
WORLD.problem = replace(WORLD.problem, n_actions=3)  # the models know a fourth, to be added
ROOT = str(Path(gedppl.__file__).parent)
WRITING = (f"{ROOT}/journal/", f"{ROOT}/agent/keeper.py", f"{ROOT}/agent/__init__.py")


class Interrupt:
    """Raises KeyboardInterrupt at the nth line of this package that is executed; with None it
    only counts.
    """

    def __init__(self, at: int | None) -> None:
        self.at, self.lines = at, 0
        self.writing: list[int] = []  # those lines that write, or surround the writing

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            self.lines += 1
            if self.at is None and frame.f_code.co_filename.startswith(WRITING):
                self.writing.append(self.lines)
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self

    def run(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def amend(g: ged.GEDUCB) -> None:
    g.amend(0, y=1.0 - float(told_of(g)[0]["utility"]))


ALARM = "refuted:utility"


def alarmed(g: ged.GEDUCB) -> None:
    """Utilities that are always 0, which no member of the class explains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(5):
            g.tell_many([(d.id, 0.0, 0.0) for d in g.ask(np.zeros((20, 1)))])
        g.ask([0.0])
    assert ALARM in [alarm.name for alarm in g.alarms]


BEFORE = {"restore_action": lambda g: g.retire_action(2), "acknowledge": alarmed}
CALLS = {
    "ask": lambda g: g.ask([0.0]),
    "cohort": lambda g: g.ask([[0.0], [1.0]]),
    "tell": lambda g: g.tell(5, 1.0, 0.0),
    "tell_many": lambda g: g.tell_many([(5, 1.0, None), (5, None, 0.0)]),
    "observe": lambda g: g.observe([[0.0], [1.0]], [1, 2], [1.0, 0.0], [0.0, 0.0]),
    "set_limit": lambda g: g.set_limit("cost", 0.3),
    "retire_action": lambda g: g.retire_action(2),
    "restore_action": lambda g: g.restore_action(2),
    "add_action": lambda g: g.add_action(),
    "acknowledge": lambda g: g.acknowledge(ALARM),
    "amend": amend,
    "save": lambda g: g.save(),
    "policy": lambda g: g.policy([0.0]),
    "cost_bounds": lambda g: g.cost_bounds([0.0]),
    "explain": lambda g: g.explain(5),
    "recommend": lambda g: g.recommend([0.0]),
    "alarms": lambda g: g.alarms,
    "rounds": lambda g: (g.rounds, g.open_decisions, g.problem, g.state_hash()),
}
CHANGING = [
    "ask",
    "cohort",
    "tell",
    "tell_many",
    "observe",
    "set_limit",
    "retire_action",
    "restore_action",
    "add_action",
    "acknowledge",
    "amend",
    "save",
]


def begun(path: Path | None, call: str = "") -> ged.GEDUCB:
    """An agent before the call."""
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=path)
    play(agent, WORLD, 5)
    agent.ask([1.0])
    if call in BEFORE:
        BEFORE[call](agent)
    return agent


def points(counted: Interrupt, n: int, rng: np.random.Generator) -> np.ndarray:
    """Lines to interrupt at: half of them where something is written, all of those if there are
    not more.
    """
    some = rng.permutation(counted.writing)[: (n + 1) // 2]
    return np.concatenate([some, rng.integers(1, counted.lines + 1, n - len(some))]).astype(int)


def sweep(folder: Path | None, call: str, n: int, seed: int) -> set[str]:
    """Interrupt at `n` lines; what each left behind."""
    reference, counted = (
        begun(None if folder is None else folder / "reference.db", call),
        Interrupt(None),
    )
    old, rng = reference.state_hash(), np.random.default_rng(seed)
    counted.run(lambda: CALLS[call](reference))
    new, seen, interrupted = reference.state_hash(), set(), 0
    for i, at in enumerate(points(counted, n, rng)):
        path = None if folder is None else folder / f"{call}{i}.db"
        agent = begun(path, call)
        if not Interrupt(int(at)).run(lambda: CALLS[call](agent)):  # noqa: B023
            continue
        interrupted += 1
        where = f"{call} at line {at} of {counted.lines}"
        rounds, found = agent.rounds, agent.state_hash()
        assert found in (old, new), where
        assert rounds == len(asked_of(agent)) == memory_of(agent).state.t, where
        seen.add("old" if found == old else "new")
        assert agent.ask([0.0]).id == rounds, where  # the next call goes on
        if path is not None:
            assert sum(1 for _ in agent.journal.records("decision")) == rounds + 1, where
            expected = agent.state_hash()
            agent.close()
            back = ged.resume(path, WORLD.problem)
            assert back.state_hash() == expected, where
            back.close()
    print(
        f"{call}: {interrupted} of {n} points interrupted ({counted.lines} lines), left "
        f"{sorted(seen)}"
    )
    return seen


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_leaves_the_old_or_the_new_state(call) -> None:
    sweep(None, call, 8, 0)


@pytest.mark.parametrize("call", CALLS)
def test_after_an_interrupt_the_next_call_goes_on_with_the_journal(call, tmp_path) -> None:
    sweep(tmp_path, call, 6 if call in CHANGING else 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_after_an_interrupt_at_many_lines_the_next_call_goes_on_with_the_journal(
    call, tmp_path
) -> None:
    seen = sweep(tmp_path, call, 300, 1)
    changes_the_state = call in CHANGING and call != "save"
    assert seen == ({"old", "new"} if changes_the_state else {"old"})


def test_without_settling_an_interrupted_append_would_end_the_journal(
    tmp_path, monkeypatch
) -> None:
    """The positive control: what was committed and not acknowledged stands in the way of the
    next append.
    """
    agent = begun(tmp_path / "j.db")

    def stop(at: str) -> None:
        if at == "committed":
            raise KeyboardInterrupt

    watched(agent.journal, stop)
    with pytest.raises(KeyboardInterrupt):
        agent.ask([0.0])
    watched(agent.journal, lambda at: None)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "settle", lambda self: None)
        with pytest.raises(errors.JournalError):
            agent.ask([0.0])


# opening and closing ------------------------------------------------------------------------------


def beginnings(folder: Path, call: str, n: int, seed: int) -> None:
    """Interrupt the making, the resuming or the closing of an agent: afterwards the journal can
    be begun, or resumed.
    """
    calls = {
        "GEDUCB": lambda path: ged.GEDUCB(WORLD.problem, seed=2, journal=path),
        "resume": lambda path: ged.resume(path, WORLD.problem),
        "close": lambda path: ged.resume(path, WORLD.problem).close(),
    }

    def prepared(name: str) -> Path:
        if call != "GEDUCB":
            agent = begun(folder / name)
            agent.journal.close()
        return folder / name

    counted, path = Interrupt(None), prepared("reference.db")
    counted.run(lambda: calls[call](path))
    for i, at in enumerate(points(counted, n, np.random.default_rng(seed))):
        path = prepared(f"{i}.db")
        if not Interrupt(int(at)).run(lambda: calls[call](path)):  # noqa: B023
            continue
        try:
            agent = ged.resume(path, WORLD.problem)
        except errors.JournalNotFoundError:
            assert call == "GEDUCB"
            agent = calls[call](path)
        assert agent.ask([0.0]).id == (0 if call == "GEDUCB" else 6), (
            f"{call} at line {at} of {counted.lines}"
        )
        agent.close()


@pytest.mark.parametrize("call", ["GEDUCB", "resume", "close"])
def test_an_interrupted_beginning_can_be_repeated(call, tmp_path) -> None:
    beginnings(tmp_path, call, 5, 0)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["GEDUCB", "resume", "close"])
def test_a_beginning_interrupted_at_many_lines_can_be_repeated(call, tmp_path) -> None:
    beginnings(tmp_path, call, 300, 1)
