"""What an agent knows, and the steps that change it. Pure: each returns a new `Memory` and leaves
the old one valid.

The same steps are taken when something happens and when a journal is replayed, so that both end in
the same memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gedppl import ged_ucb
from gedppl.agent.monitoring import Watch
from gedppl.errors import ActionRangeError, GedError, LearningError
from gedppl.ged_ucb import Entry, Outcomes, rows_by_stream
from gedppl.ged_ucb.costs import Refuted
from gedppl.ged_ucb.settings import Settings
from gedppl.guard import Alarm
from gedppl.numerics.arrays import evolved
from gedppl.problem import Problem


class Inbox:
    """Outcomes told and not yet learned: looks at a shared list that only grows, so that a step
    costs O(1).
    """

    __slots__ = ("_entries", "_n")

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._entries, self._n = list(entries), len(entries)

    def plus(self, entries: Sequence[Entry]) -> Inbox:
        other = Inbox.__new__(Inbox)
        # somebody else went on from here: take a branch of our own
        other._entries = (
            self._entries if len(self._entries) == self._n else self._entries[: self._n]
        )
        other._entries.extend(entries)
        other._n = self._n + len(entries)
        return other

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries[: self._n])


@dataclass
class Ledger:
    """Every decision, and what was told of it. Grows only; entries are never taken back."""

    asked: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)  # id -> (x, action)
    told: dict[int, Outcomes] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """Models, limits, monitors and feedback not yet learned."""

    problem: Problem  # with the limits and actions in force
    settings: Settings
    guard: str | None  # "fallback", "warn" or None
    state: ged_ucb.State | None = None  # made when the first context shows its width
    origin: np.ndarray | None = None  # (dx,) that context
    watch: Watch | None = None
    inbox: Inbox = field(default_factory=Inbox)
    alarms: tuple[Alarm, ...] = ()  # all so far
    active: tuple[str, ...] = ()  # names of those not acknowledged

    def mask(self, allowed: Any, n: int) -> np.ndarray | None:
        """Actions that a caller allows at n contexts, (n, K) bool; None if no mask was given."""
        if allowed is None:
            return None
        mask = self.problem.names.mask(allowed, n)
        if not (mask & self.available).any(axis=1).all():
            raise ActionRangeError("allowed leaves no action on offer; allow at least one")
        return mask

    @property
    def width(self) -> int | None:
        """Columns of a context, once one was seen."""
        return None if self.origin is None else len(self.origin)

    @property
    def available(self) -> np.ndarray:
        """(K,) actions on offer."""
        return (
            np.ones(self.problem.n_actions, bool)
            if self.state is None
            else self.state.blocks[-1].available.copy()
        )


def started(memory: Memory, x: np.ndarray) -> Memory:
    """With a state, if there was none; x (dx,) is the first context of the run."""
    if memory.state is not None:
        return memory
    state = ged_ucb.init(memory.problem, memory.settings, x[None])
    watch = None if memory.guard is None else Watch.begin(state, x)
    return evolved(memory, state=state, origin=x, watch=watch)


def absorbed(memory: Memory) -> Memory:
    """With everything told so far that is old enough shown to the monitors, then learned; the
    rest waits on.
    """
    state = memory.state
    if state is None or not len(memory.inbox):
        return memory
    old = [state.t - e.id >= memory.problem.outcome_age for e in memory.inbox]
    due = [e for e, is_due in zip(memory.inbox, old) if is_due]
    if not due:
        return memory
    waiting = Inbox([e for e, is_due in zip(memory.inbox, old) if not is_due])
    with _learning():
        memory = _watched(memory, due, decided=True)
        rounds = sum(e.first for e in due)
        return _learned(
            evolved(memory, inbox=waiting),
            ged_ucb.update(state, rows_by_stream(memory.problem, due), rounds),
        )


def decided(memory: Memory, x: np.ndarray, *, learned: bool = True) -> Memory:
    """One more decision, at x (dx,). `learned` False: the feedback before it could not be
    learned and waits on.
    """
    memory = started(memory, x)
    if learned:
        memory = absorbed(memory)
    assert memory.state is not None
    watch = memory.watch and memory.watch.include(x, memory.state.t)
    return evolved(memory, state=ged_ucb.advance(memory.state, 1), watch=watch)


def told(memory: Memory, entries: Sequence[Entry]) -> Memory:
    return evolved(memory, inbox=memory.inbox.plus(entries))


def observed(memory: Memory, entries: Sequence[Entry]) -> Memory:
    """Logged rows, in their order, with refits in between, so that each is predicted from those
    before it.
    """
    memory = absorbed(started(memory, entries[0].x))
    assert memory.state is not None
    with _learning():
        for chunk in _chunks(entries, memory.state):
            memory = _watched(memory, chunk, decided=False)
            state = ged_ucb.update(memory.state, rows_by_stream(memory.problem, chunk), len(chunk))  # type: ignore[arg-type]
            memory = _learned(memory, state)
    return memory


def changed(memory: Memory, problem: Problem, available: np.ndarray) -> Memory:
    """Other limits, or other actions on offer."""
    memory = absorbed(memory)
    assert memory.state is not None
    return evolved(memory, problem=problem, state=ged_ucb.change(memory.state, problem, available))


def alarmed(memory: Memory, alarm: Alarm) -> Memory:
    """An alarm counts until it is acknowledged; the same one again is no news."""
    if alarm.name in memory.active:
        return memory
    return evolved(memory, alarms=(*memory.alarms, alarm), active=(*memory.active, alarm.name))


def doubted(memory: Memory, found: Sequence[Refuted]) -> Memory:
    """What the confidence sets refute, as alarms. It stays refuted, so that what was
    acknowledged is not raised again.
    """
    if memory.watch is None or memory.state is None:
        return memory
    known = {alarm.name for alarm in memory.alarms}
    delta, rounds = memory.settings.delta, memory.state.told
    news = [
        Alarm(r.name, 1.0 / delta, delta, rounds, f"Alarm after {rounds} rounds: {r.sentence}.")
        for r in found
        if r.name not in known
    ]
    return with_alarms(memory, news)


def acknowledged(memory: Memory, name: str) -> Memory:
    """An alarm is looked into and the run goes on; its monitor begins anew, with its share of
    delta once more.
    """
    memory = absorbed(memory)
    watch = memory.watch and memory.watch.restarted(name)
    return evolved(memory, watch=watch, active=tuple(a for a in memory.active if a != name))


@contextlib.contextmanager
def _learning() -> Iterator[None]:
    """What a model or a solver raises gets a name; the memory before is untouched."""
    try:
        yield
    except GedError:
        raise
    except Exception as error:
        raise LearningError(
            f"the outcomes told could not be learned: {type(error).__name__}: {error}"
        ) from error


def _watched(memory: Memory, entries: Sequence[Entry], *, decided: bool) -> Memory:
    if memory.watch is None or memory.state is None:
        return memory
    watch, alarms = memory.watch.take_in(memory.state, entries, decided=decided)
    return with_alarms(evolved(memory, watch=watch), alarms)


def _learned(memory: Memory, state: ged_ucb.State) -> Memory:
    """With a state that has learned what the monitors were shown."""
    memory = evolved(memory, state=state)
    if memory.watch is None:
        return memory
    watch, alarms = memory.watch.learned(state)
    return with_alarms(evolved(memory, watch=watch), alarms)


def with_alarms(memory: Memory, alarms: Sequence[Alarm]) -> Memory:
    for alarm in alarms:
        memory = alarmed(memory, alarm)
    return memory


def _chunks(entries: Sequence[Entry], state: ged_ucb.State) -> Iterator[Sequence[Entry]]:
    """Cut logged rows where a refit falls due."""
    told_rounds, i = state.told, 0
    while i < len(entries):
        size = max(1, int((state.settings.growth - 1.0) * told_rounds))
        yield entries[i : i + size]
        told_rounds, i = told_rounds + size, i + size
