"""An agent's memory, kept: every step is durable before it counts, and a resumed agent has the same
memory again.

A step is computed in full, then written, and only then takes the place of the memory before it. An
error before the write leaves everything as it was. An interrupt after the write leaves a step that
is `_pending`: the next call looks into the journal and finishes it. Without a journal the steps are
remembered in a list, for `amend`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gedppl.agent import memory as steps
from gedppl.agent import recorder
from gedppl.agent.memory import History, Inbox, Ledger, Memory, started
from gedppl.errors import (
    JournalCorruptError,
    JournalError,
    JournalExistsError,
    JournalFullError,
    LearningError,
    ProblemError,
    RecordError,
)
from gedppl.ged_ucb import Block, Entry, Outcomes, State, rows_by_stream
from gedppl.ged_ucb.settings import Settings
from gedppl.guard import Alarm
from gedppl.journal import Journal
from gedppl.journal.format import Record
from gedppl.learning.storing import NotStorableError, Reader, Writer
from gedppl.problem import Problem
from gedppl.rows import Rows

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
    for name, array in writer.arrays.items():
        h.update(
            f"{name}{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        )
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
            monitors = {name: self.array(array) for name, array in watch.guard.arrays().items()}
            contexts = [
                watch.contexts.n,
                self.array(watch.contexts.mean),
                self.array(watch.contexts.scatter),
            ]
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
            n, mean, scatter = tree["watch"]["contexts"]
            contexts = replace(
                watch.contexts, n=n, mean=self.array(mean), scatter=self.array(scatter)
            )
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


# decisions between two snapshots: this many, or this share of all so far
SNAPSHOT_EVERY, SNAPSHOT_SHARE = 1000, 0.01


@dataclass(frozen=True)
class Resumed:
    """How an agent came back from its journal; ``print`` it."""

    decisions: int
    replayed: int  # records replayed, after the snapshot if there was one
    snapshot: int | None  # the record after which that snapshot was taken
    # versions that are not those of the journal's start: (then, now)
    differ: dict[str, tuple[str, str]]

    @property
    def exact(self) -> bool:
        """Whether the next policy is the same bit for bit."""
        return not self.differ

    def __str__(self) -> str:
        how = (
            "from the start"
            if self.snapshot is None
            else f"after the snapshot at record {self.snapshot}"
        )
        said = f"{self.decisions} decisions, {self.replayed} records replayed {how}"
        if self.exact:
            return (
                f"{said}; the versions are the same: the next policy is what it would have "
                "been, bit for bit"
            )
        changes = ", ".join(
            f"{path.removeprefix('versions.')} was {old}, is {new}"
            for path, (old, new) in self.differ.items()
        )
        return (
            f"{said}; other versions ({changes}): policies agree within about 1e-9, not bit for bit"
        )


@dataclass(frozen=True)
class _Pending:
    """A step on its way: what is to be written, and what is so once it is."""

    records: list[recorder.Step]
    first: int  # where in the journal, or in the history, the records belong
    memory: Memory
    asked: dict[int, tuple[np.ndarray, int]]
    told: dict[int, Outcomes]
    ledger: Ledger | None  # None: the ledger there is, added to


@dataclass
class Keeper:
    """The memory in force, the ledger, and the journal or the history they rest on. Made by
    `begin` or `reopen`.
    """

    first: Memory  # before anything happened
    journal: Journal | None = None
    memory: Memory = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    history: History = field(default_factory=History)  # without a journal
    _absorbed: Memory | None = None
    _pending: _Pending | None = None
    _saved_at: int = 0  # decisions in the newest snapshot
    _can_save: bool = True

    def __post_init__(self) -> None:
        self.memory = self.first

    @classmethod
    def begin(
        cls,
        problem: Problem,
        chosen: Settings,
        guard: str | None,
        path: str | os.PathLike[str] | None,
    ) -> Keeper:
        """A new run; with a path, a new journal."""
        _require_problem(problem)
        chosen.check(problem.streams, problem.n_actions)
        journal = None
        if path is not None:
            try:
                journal = Journal.create(path, recorder.protocol(problem, chosen, guard))
            except JournalExistsError as error:
                if os.path.isdir(os.path.abspath(path)):
                    raise
                raise JournalExistsError(
                    f"{error}. To go on with it, use ged.resume({os.fspath(path)!r}, problem)"
                ) from error
        return cls(Memory(problem, chosen, guard), journal)

    @classmethod
    def reopen(
        cls, path: str | os.PathLike[str], problem: Problem, oracle: Any, confidence: Any
    ) -> tuple[Keeper, Resumed]:
        """The run that a journal holds."""
        _require_problem(problem)
        journal = Journal.open(path)
        try:
            chosen, guard = recorder.read_protocol(journal.protocol, oracle, confidence)
            chosen.check(problem.streams, problem.n_actions)
            differ = journal.require_protocol(recorder.protocol(problem, chosen, guard))
            keeper = cls(Memory(problem, chosen, guard), journal)
            replayed, snapshot = keeper._catch_up()
            resumed = Resumed(keeper.rounds, replayed, snapshot, differ)
            if differ:
                keeper.commit([("change", recorder.versions_payload(differ))], keeper.memory)
            return keeper, resumed
        except BaseException:
            journal.close()
            raise

    @property
    def rounds(self) -> int:
        return 0 if self.memory.state is None else self.memory.state.t

    # replaying ------------------------------------------------------------------------------------

    def records(self, kind: str | None = None) -> Iterable[Record]:
        """Everything that happened."""
        if self.journal is not None:
            return self.journal.records(kind)
        steps = recorder.remembered(self.history.steps(self.ledger))
        return (record for record in steps if kind is None or record.kind == kind)

    def amended(self, key: int, news: Outcomes) -> tuple[Memory, Ledger]:
        """The memory and ledger as they would be, had these outcomes been told in place of the
        ones that were.
        """
        amendments = recorder.amendments(self.records("amend"))
        amendments[key] = amendments.get(key, {}) | news
        ledger = Ledger()
        return recorder.replayed(self.first, ledger, self.records(), amendments), ledger

    def _catch_up(self) -> tuple[int, int | None]:
        """Bring the memory to the journal's end: records replayed, and from which record's
        snapshot, if there was one.
        """
        assert self.journal is not None
        count = 0

        def counted(records: Iterable[Record]) -> Iterator[Record]:
            nonlocal count
            for record in records:
                if record.kind not in ("protocol", "snapshot"):
                    count += 1
                    yield record

        snapshot = self.journal.latest_snapshot()
        if snapshot is not None:
            after = snapshot.sequence + 1
            try:
                # else what it holds was amended
                if not any(True for _ in self.journal.records("amend", start=after)):
                    self.memory, self.ledger = restored(self.first, snapshot.arrays, snapshot.meta)
                    self._saved_at = self.rounds
                    self.memory = recorder.replayed(
                        self.memory, self.ledger, counted(self.journal.records(start=after))
                    )
                    return count, snapshot.sequence
            except JournalCorruptError as error:
                warnings.warn(
                    f"{error}; replaying all of {self.journal.path} instead",
                    RuntimeWarning,
                    stacklevel=5,
                )
        self.ledger, count = Ledger(), 0
        amendments = recorder.amendments(self.records("amend"))
        self.memory = recorder.replayed(
            self.first, self.ledger, counted(self.records()), amendments
        )
        return count, None

    # changing -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish, or forget, a step that was interrupted."""
        if self.journal is not None:
            self.journal.settle()
        if self._pending is not None:
            if self.journal is None or len(self.journal) == self._pending.first + len(
                self._pending.records
            ):
                self._finish(self._pending)
            self._pending = None

    def learned(self, context: np.ndarray | None) -> tuple[Memory, str | None]:
        """The memory with everything told so far learned; or, if that fails, as it is, and why.

        Kept until something else is told, so that it is computed once. Before the first decision
        `context` (dx,) stands in for it, and nothing is kept.
        """
        if self.memory.state is None:
            assert context is not None
            return steps.started(self.memory, context), None
        if self._absorbed is None:
            try:
                self._absorbed = steps.absorbed(self.memory)
            except LearningError as error:
                return self.memory, str(error)
            except Exception as error:
                return (
                    self.memory,
                    f"the outcomes told could not be learned: {type(error).__name__}: {error}",
                )
        return self._absorbed, None

    def commit(
        self,
        records: list[recorder.Step],
        after: Memory,
        *,
        asked: dict[int, tuple[np.ndarray, int]] | None = None,
        told: dict[int, Outcomes] | None = None,
        ledger: Ledger | None = None,
    ) -> list[Alarm]:
        """Write a step down, then let it count. The alarms that it set off are written with it,
        and returned.
        """
        alarms = [a for a in after.alarms[len(self.memory.alarms) :] if ledger is None]
        said: list[recorder.Step] = [("alarm", recorder.alarm_payload(a)) for a in alarms]
        # Before the step, so that one it acknowledges is not raised again by a replay; but before
        # the first thing that ever happened, a decision or logged rows, there are no monitors.
        last = self.memory.state is None or any(kind == "observe" for kind, _ in records)
        records = [*records, *said] if last else [*said, *records]
        first = len(self.history) if self.journal is None else len(self.journal)
        self._pending = _Pending(records, first, after, asked or {}, told or {}, ledger)
        if self.journal is not None:
            try:
                self.journal.append_many(records)
            except JournalError as error:
                self._pending = None  # nothing was acknowledged
                if type(error) is JournalError:
                    raise JournalError(
                        f"{error}; from an agent: close() it, then ged.resume"
                    ) from error
                raise
        self.settle()
        return alarms

    def _finish(self, step: _Pending) -> None:
        # every line may be repeated: an interrupt may come between any two
        if step.ledger is not None:
            self.ledger = step.ledger
            self._saved_at = -SNAPSHOT_EVERY  # after an amendment older snapshots are of no use
        self.ledger.write(step.asked, step.told)
        if self.journal is None:
            self.history.write(step.first, step.records)
        self._absorbed = None
        self.memory = step.memory

    # keeping --------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """A snapshot now and then. That it fails is no reason to take an acknowledged decision
        from the caller.
        """
        if self.rounds - self._saved_at >= max(SNAPSHOT_EVERY, SNAPSHOT_SHARE * self.rounds):
            try:
                self.save()
            except JournalError as error:
                warnings.warn(
                    f"no snapshot could be stored, nothing else is lost: {error}",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def save(self) -> bool:
        """Store a snapshot; whether there is one of this state now."""
        if self.journal is None or not self._can_save:
            return False
        try:
            self.journal.save_snapshot(len(self.journal) - 1, *stored(self.memory, self.ledger))
        except (NotStorableError, RecordError):  # resuming will replay: slower, and no less right
            self._can_save = False
            return False
        except JournalFullError as error:
            warnings.warn(
                f"no snapshot could be stored, nothing else is lost: {error}",
                RuntimeWarning,
                stacklevel=4,
            )
            return False
        self._saved_at = self.rounds
        return True

    def close(self) -> None:
        if self.journal is not None:
            try:
                if self.rounds != self._saved_at:
                    self.save()
            except JournalError:
                pass  # it could not be written to any more; what was acknowledged is in it
            finally:
                self.journal.close()


def _require_problem(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(
            f"an agent decides a ged.Problem, got a {type(problem).__name__}: {problem!r}"
        )


# ==================================================================================================
# Every row that a stream was told, from the ledger and from logged rows: what a posterior is
# computed from.
# ==================================================================================================


def rows_of(keeper: Keeper, stream: str) -> Rows | None:
    """The rows learned of a stream, logged ones first; None if there are none. Outcomes that are
    too young wait on.
    """
    problem, ledger = keeper.memory.problem, keeper.ledger
    payloads = [record.payload for record in keeper.records("observe")]
    logged = recorder.logged_entries(problem, payloads, None) if payloads else []
    old = keeper.rounds - problem.outcome_age
    told = [
        Entry(len(logged) + key, *ledger.asked[key], ledger.told[key], first=True)
        for key in sorted(ledger.told)
        if key <= old
    ]
    found = rows_by_stream(problem, [*logged, *told]).get(stream)
    return None if found is None else Rows.of(*found)
