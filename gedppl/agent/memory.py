"""What an agent knows, the steps that change it, and both as arrays for snapshots. Pure: each step
returns a new `Memory` and leaves the old one valid.

The same steps are taken when something happens and when a journal is replayed, so that both end in
the same memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from gedppl import ged_ucb
from gedppl.agent.monitoring import Watch
from gedppl.errors import ActionRangeError, GedError, JournalCorruptError, LearningError
from gedppl.ged_ucb import Block, Entry, Outcomes, State, rows_by_stream
from gedppl.ged_ucb.costs import Refuted
from gedppl.ged_ucb.settings import Settings
from gedppl.guard import Alarm
from gedppl.learning.storing import Reader, Writer
from gedppl.numerics.arrays import evolved
from gedppl.problem import UTILITY, Problem
from gedppl.rows import grown


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


# ==================================================================================================
# The ledger: every decision, and what was told of it. Grows only; entries are never taken back. It
# is kept in columns, since a long run has nothing else that grows: 8 bytes for each number.
# ==================================================================================================


class AskedDecisions(Mapping[int, tuple[np.ndarray, int]]):
    """Decision id -> (x, action), for ids 0, 1, ..."""

    def __init__(self) -> None:
        self._n, self._x, self._action = 0, np.zeros((0, 0)), np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._n))

    def __contains__(self, key: object) -> bool:
        return key in range(self._n)

    def __getitem__(self, key: int) -> tuple[np.ndarray, int]:
        if key not in self:
            raise KeyError(key)
        x = self._x[key]
        x.flags.writeable = False
        return x, int(self._action[key])

    def __setitem__(self, key: int, decision: tuple[np.ndarray, int]) -> None:
        x, action = decision
        if not 0 <= key <= self._n:
            raise KeyError(f"decision {key} after {self._n} decisions")
        if not self._n:
            self._x = np.zeros((0, len(x)))
        self._x, self._action = grown(self._x, key + 1), grown(self._action, key + 1)
        self._x[key], self._action[key] = x, action
        self._n = max(self._n, key + 1)


class ToldOutcomes(Mapping[int, Outcomes]):
    """Decision id -> what was told of it: one column for every outcome and shape."""

    def __init__(self) -> None:
        self._known = np.zeros(0, bool)
        self._columns: dict[tuple[str, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return int(np.count_nonzero(self._known))

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._known).tolist())

    def __contains__(self, key: object) -> bool:
        return key in range(len(self._known)) and bool(self._known[cast(int, key)])

    def __getitem__(self, key: int) -> Outcomes:
        if key not in self:
            raise KeyError(key)
        return {
            name: values[key, ...].copy()
            for (name, _), (here, values) in self._columns.items()
            if key < len(here) and here[key]
        }

    def __setitem__(self, key: int, outcomes: Outcomes) -> None:
        self._known = grown(self._known, key + 1)
        for name, value in outcomes.items():
            column = (name, value.shape)
            here, values = self._columns.get(
                column, (np.zeros(0, bool), np.zeros((0, *value.shape)))
            )
            here, values = grown(here, key + 1), grown(values, key + 1)
            here[key], values[key] = True, value
            self._columns[column] = (here, values)
        self._known[key] = True


@dataclass
class Ledger:
    """Every decision, and what was told of it."""

    asked: AskedDecisions = field(default_factory=AskedDecisions)
    told: ToldOutcomes = field(default_factory=ToldOutcomes)

    def write(
        self, asked: Mapping[int, tuple[np.ndarray, int]], told: Mapping[int, Outcomes]
    ) -> None:
        """May be repeated: nothing changes the second time."""
        for key, decision in asked.items():
            self.asked[key] = decision
        for key, outcomes in told.items():
            self.told[key] = outcomes


Step = tuple[str, Mapping[str, Any]]  # the kind and payload of a record


class History:
    """What happened, in order, of an agent without a journal: what decisions and outcomes were is
    in the ledger, so that a number for each is enough.
    """

    def __init__(self) -> None:
        # a decision is 0, or 1 if nothing was learned before it; an outcome is 2 and more, by what
        # was told; anything else is -1, and its payload is kept
        self._kinds, self._ids = array("q"), array("q")
        self._told: list[tuple[str, ...]] = []
        self._others: dict[int, Step] = {}

    def __len__(self) -> int:
        return len(self._kinds)

    def write(self, first: int, steps: Sequence[Step]) -> None:
        """Steps from number `first` on, in place of any that are there: it may be repeated."""
        del self._kinds[first:], self._ids[first:]
        for i, (kind, payload) in enumerate(steps, first):
            code = -1
            if kind == "decision":
                code = 0 if payload["learned"] else 1
            elif kind == "outcome":
                names = (*([] if payload["y"] is None else [UTILITY]), *payload["z"])
                if names not in self._told:
                    self._told.append(names)
                code = 2 + self._told.index(names)
            else:
                self._others[i] = (kind, payload)
            self._kinds.append(code)
            self._ids.append(payload.get("id", -1) if code >= 0 else -1)

    def steps(self, ledger: Ledger) -> Iterator[Step]:
        """Every step, from the ledger that was written beside them."""
        for i, (code, key) in enumerate(zip(self._kinds, self._ids)):
            if code < 0:
                yield self._others[i]
            elif code < 2:
                x, action = ledger.asked[key]
                yield "decision", {"id": key, "x": x, "action": action, "learned": code == 0}
            else:
                told = ledger.told[key]
                part = {name: told[name] for name in self._told[code - 2]}
                yield "outcome", {"id": key, "y": part.pop(UTILITY, None), "z": part}


@dataclass(frozen=True)
class Memory:
    """Models, limits, monitors and feedback not yet learned."""

    problem: Problem  # with the limits and actions in force
    settings: Settings
    guard: str | None  # "fallback", "warn" or None
    state: State | None = None  # made when the first context shows its width
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
        rows = rows_by_stream(memory.problem, due)
        memory = _watched(memory, due, rows, decided=True)
        rounds = sum(e.first for e in due)
        return _learned(evolved(memory, inbox=waiting), ged_ucb.update(state, rows, rounds))


def decided(memory: Memory, x: np.ndarray, *, learned: bool = True) -> Memory:
    """With decisions at x (n, dx), made together. `learned` False: the feedback before them could
    not be learned and waits on.
    """
    memory = started(memory, x[0])
    if learned:
        memory = absorbed(memory)
    assert memory.state is not None
    watch = memory.watch and memory.watch.include(x, memory.state.t)
    return evolved(memory, state=ged_ucb.advance(memory.state, len(x)), watch=watch)


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
            rows = rows_by_stream(memory.problem, chunk)
            memory = _watched(memory, chunk, rows, decided=False)
            state = ged_ucb.update(memory.state, rows, len(chunk))  # type: ignore[arg-type]
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
    delta, told = memory.settings.delta, memory.state.told  # logged rows are told too
    news = [
        Alarm(r.name, 1.0 / delta, delta, told, f"Alarm after {told} outcomes: {r.sentence}.")
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


def _watched(
    memory: Memory, entries: Sequence[Entry], rows: ged_ucb.RowsByStream, *, decided: bool
) -> Memory:
    if memory.watch is None or memory.state is None:
        return memory
    watch, alarms = memory.watch.take_in(memory.state, entries, rows, decided=decided)
    return with_alarms(evolved(memory, watch=watch), alarms)


def _learned(memory: Memory, state: State) -> Memory:
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


def _chunks(entries: Sequence[Entry], state: State) -> Iterator[Sequence[Entry]]:
    """Cut logged rows where a refit falls due."""
    told_rounds, i = state.told, 0
    while i < len(entries):
        size = max(1, int((state.settings.growth - 1.0) * told_rounds))
        yield entries[i : i + size]
        told_rounds, i = told_rounds + size, i + size


# ==================================================================================================
# An agent's memory as arrays and JSON, and back: for snapshots, and for the hash that two equal
# memories share.
#
# Only data are stored. Models, predictors, radius rules and oracles are live objects: they are
# taken from a memory begun afresh on the same problem and settings, and the stored data are put
# around them. Learners say themselves what they keep (`learning/storing.py`).
# ==================================================================================================


def stored(memory: Memory, ledger: Ledger) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and JSON from which `restored` makes the same memory and ledger."""
    writer = SnapshotWriter(strict=True)
    return writer.arrays, writer.memory(memory, ledger)


def state_hash(memory: Memory, ledger: Ledger) -> str:
    """SHA-256 of everything that decides the next policy, and of the ledger: equal memories have
    equal hashes.
    """
    writer = SnapshotWriter(strict=False)
    tree = writer.memory(memory, ledger)
    h = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for name, part in writer.arrays.items():
        h.update(f"{name}{part.dtype.str}{part.shape}".encode())
        h.update(np.ascontiguousarray(part).tobytes())
    return h.hexdigest()


class SnapshotWriter(Writer):
    def outcomes(self, told: Iterable[Outcomes]) -> list[Any]:
        """A list of outcomes by columns: [name, positions, values], one for each name and shape."""
        columns: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[np.ndarray]]] = {}
        for i, outcomes in enumerate(told):
            for name, value in outcomes.items():
                at, values = columns.setdefault((name, value.shape), ([], []))
                at.append(i)
                values.append(value)
        ordered = sorted(columns.items())
        return [
            [name, self.array(np.array(at)), self.array(np.stack(values))]
            for (name, _), (at, values) in ordered
        ]

    def memory(self, memory: Memory, ledger: Ledger) -> dict[str, Any]:
        inbox, state = list(memory.inbox), memory.state
        asked = list(ledger.asked.values())
        out: dict[str, Any] = {
            "n_actions": memory.problem.n_actions,
            **({} if memory.problem.actions is None else {"actions": list(memory.problem.actions)}),
            "limits": memory.problem.limits.tolist(),
            "alarms": [[a.name, a.evidence, a.delta, a.round, a.sentence] for a in memory.alarms],
            "active": list(memory.active),
            "inbox": self.array(np.array([e.id for e in inbox], np.int64)),
            "first": self.array(np.array([e.first for e in inbox], bool)),
            "news": self.outcomes(e.outcomes for e in inbox),
            "told": self.array(np.array(sorted(ledger.told), np.int64)),
            "outcomes": self.outcomes(ledger.told[i] for i in sorted(ledger.told)),
            "state": None,
        }
        if state is None or memory.origin is None:
            return out
        width = len(memory.origin)
        out["origin"] = self.array(memory.origin)
        out["x"] = self.array(np.array([x for x, _ in asked], float).reshape(len(asked), width))
        out["a"] = self.array(np.array([a for _, a in asked], np.int64))
        out["state"] = {
            "t": state.t,
            "told": state.told,
            "refit_at": state.refit_at,
            "played": self.array(state.played),
            "blocks": self._blocks(state.blocks),
            "learners": {name: learner.stored(self) for name, learner in state.learners.items()},
        }
        if memory.watch is not None:
            watch = memory.watch
            monitors = {name: self.array(part) for name, part in watch.guard.arrays().items()}
            contexts = [[n, *map(self.array, rest)] for n, *rest in watch.contexts.parts]
            out["watch"] = {"monitors": monitors, "contexts": contexts, "logged": watch.logged}
        return out

    def _blocks(self, blocks: tuple[Block, ...]) -> list[Any]:
        columns = [
            np.array([b.start for b in blocks], np.int64),
            np.array([b.snapshot for b in blocks], np.int64),
            np.array([b.exploration for b in blocks], float),
            np.stack([b.limits for b in blocks]),
            np.stack([b.available for b in blocks]),
        ]
        return [self.array(column) for column in columns]


def restored(
    begin: Memory, arrays: Mapping[str, np.ndarray], tree: Mapping[str, Any]
) -> tuple[Memory, Ledger]:
    """The memory and ledger that were `stored`; `begin` is a memory begun afresh on the same
    problem and settings.
    """
    try:
        return _Reader(arrays).memory(begin, tree)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise JournalCorruptError(
            f"a snapshot cannot be read: {type(error).__name__}: {error}"
        ) from error


class _Reader(Reader):
    def outcomes(self, n: int, columns: Iterable[Any]) -> list[Outcomes]:
        out: list[Outcomes] = [{} for _ in range(n)]
        for name, at, values in columns:
            for i, value in zip(self.array(at).tolist(), self.array(values)):
                out[i][name] = np.asarray(value)
        return out

    def memory(self, begin: Memory, tree: Mapping[str, Any]) -> tuple[Memory, Ledger]:
        ledger = Ledger()
        if tree["state"] is None:
            return begin, ledger
        memory = started(begin, self.array(tree["origin"]))
        actions = self.array(tree["a"]).tolist()
        told = self.array(tree["told"]).tolist()
        ledger.write(
            dict(enumerate(zip(self.array(tree["x"]), actions))),
            dict(zip(told, self.outcomes(len(told), tree["outcomes"]))),
        )
        problem = memory.problem
        if tree["n_actions"] != problem.n_actions:
            problem = problem.with_actions(tree["n_actions"], tree.get("actions"))
        for name, at_most in zip(problem.constraint_names, tree["limits"], strict=True):
            if problem.limits[problem.constraint_names.index(name)] != at_most:
                problem = problem.with_limit(name, at_most)
        fresh, s = memory.state, tree["state"]
        assert fresh is not None
        learners = {
            name: fresh.learners[name].restored(self, part) for name, part in s["learners"].items()
        }
        state = replace(
            fresh,
            problem=problem,
            learners=learners,
            t=s["t"],
            told=s["told"],
            refit_at=s["refit_at"],
            played=self.array(s["played"]),
            blocks=self._blocks(s["blocks"]),
        )
        self._check(state, ledger)
        ids, first = self.array(tree["inbox"]), self.array(tree["first"])
        news = self.outcomes(len(ids), tree["news"])
        inbox = [
            Entry(i, *ledger.asked[i], outcomes, f)
            for i, f, outcomes in zip(ids.tolist(), first.tolist(), news)
        ]
        watch = memory.watch
        if watch is not None:
            parts = [(n, *map(self.array, rest)) for n, *rest in tree["watch"]["contexts"]]
            contexts = watch.contexts.with_parts(parts)
            guard = watch.guard.with_arrays(
                {name: self.array(node) for name, node in tree["watch"]["monitors"].items()}
            )
            watch = replace(watch, guard=guard, contexts=contexts, logged=tree["watch"]["logged"])
        return replace(
            memory,
            problem=problem,
            state=state,
            watch=watch,
            inbox=Inbox(inbox),
            active=tuple(tree["active"]),
            alarms=tuple(Alarm(*a) for a in tree["alarms"]),
        ), ledger

    def _blocks(self, columns: list[Any]) -> tuple[Block, ...]:
        start, snapshot, exploration, limits, available = (self.array(c) for c in columns)
        rows = zip(start.tolist(), snapshot.tolist(), exploration.tolist(), limits, available)
        return tuple(Block(*row) for row in rows)

    def _check(self, state: State, ledger: Ledger) -> None:
        actions = [a for _, a in ledger.asked.values()]
        if (
            len(actions) != state.t
            or not state.blocks
            or set(state.learners) != set(state.problem.streams)
        ):
            raise ValueError(f"{len(actions)} decisions in round {state.t}")
        if actions and not 0 <= min(actions) <= max(actions) < state.problem.n_actions:
            raise ValueError("an action that does not exist")
        if not set(ledger.told) <= set(ledger.asked):
            raise ValueError("outcomes of decisions that were never made")
