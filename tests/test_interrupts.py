"""Ctrl-C at any line of a call: afterwards the agent is as it was before the call or as it is after it, never in between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gedppl
import gedppl as ged
from gedppl import errors
from tests.plain_worlds import PlainWorld, play

WORLD = PlainWorld()
ROOT = str(Path(gedppl.__file__).parent)


class Interrupt:
    """Raises KeyboardInterrupt at the nth line of this package that is executed; with None it only counts."""

    def __init__(self, at: int | None) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            self.lines += 1
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


CALLS = {
    "ask": lambda g: g.ask([0.0]),
    "cohort": lambda g: g.ask([[0.0], [1.0]]),
    "tell": lambda g: g.tell(5, 1.0, 0.0),
    "observe": lambda g: g.observe([[0.0], [1.0]], [1, 2], [1.0, 0.0], [0.0, 0.0]),
    "set_limit": lambda g: g.set_limit("cost", 0.3),
    "amend": lambda g: g.amend(0, y=1.0 - float(g._told[0]["utility"])),
    "save": lambda g: g.save(),
}


def begun(path: Path | None) -> ged.GEDUCB:
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=path)
    play(agent, WORLD, 5)
    agent.ask([1.0])
    return agent


def sweep(folder: Path | None, call: str, points: int, seed: int) -> set[str]:
    """Interrupt at `points` random lines; what each left behind."""
    reference, counted = begun(None if folder is None else folder / "reference.db"), Interrupt(None)
    old = reference.state_hash()
    counted.run(lambda: CALLS[call](reference))
    new, lines = reference.state_hash(), counted.lines
    seen = set()
    for i, at in enumerate(np.random.default_rng(seed).integers(1, lines + 1, size=points)):
        path = None if folder is None else folder / f"{call}{i}.db"
        agent = begun(path)
        if not Interrupt(int(at)).run(lambda: CALLS[call](agent)):  # noqa: B023
            continue
        found = agent.state_hash()
        assert found in (old, new), f"line {at} of {lines}"
        if path is not None:
            try:
                agent.ask([0.0])
                found = None  # it went on: what it was is compared below
            except errors.JournalError as error:
                said = str(error)
            assert found is None or "ged.resume" in said
            agent.close()
            back = ged.resume(path, WORLD.problem)
            assert back.state_hash() == agent.state_hash() or (found == old and back.state_hash() == new), f"line {at} of {lines}"
            back.close()
        seen.add("old" if found == old else "new" if found == new else "went on")
    return seen


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_leaves_the_old_or_the_new_state(call) -> None:
    if call != "save":
        sweep(None, call, 15, 0)


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_leaves_the_old_or_the_new_journal(call, tmp_path) -> None:
    sweep(tmp_path, call, 5, 0)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_at_many_lines_leaves_the_old_or_the_new_journal(call, tmp_path) -> None:
    sweep(tmp_path, call, 300, 1)
