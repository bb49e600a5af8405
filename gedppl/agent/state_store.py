"""An agent's memory as arrays and JSON, and back: for snapshots, and for the hash that two equal memories share.

Only data are stored. Models, predictors, radius rules and oracles are live objects: they are taken from a memory begun
afresh on the same problem and settings, and the stored data are put around them. Learners say themselves what they keep
(`learning/storing.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gedppl.agent.feedback import Entry, Outcomes
from gedppl.agent.memory import Inbox, Ledger, Memory, started
from gedppl.errors import JournalCorruptError
from gedppl.ged_ucb import Block, State
from gedppl.guard import Alarm
from gedppl.learning.storing import NotStorableError, Reader, Writer

__all__ = ["NotStorableError", "restored", "state_hash", "stored"]


def stored(memory: Memory, ledger: Ledger) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and JSON from which `restored` makes the same memory and ledger."""
    writer = _Writer(strict=True)
    return writer.arrays, writer.memory(memory, ledger)


def state_hash(memory: Memory, ledger: Ledger) -> str:
    """SHA-256 of everything that decides the next policy, and of the ledger: equal memories have equal hashes."""
    writer = _Writer(strict=False)
    tree = writer.memory(memory, ledger)
    h = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for name, array in writer.arrays.items():
        h.update(f"{name}{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


class _Writer(Writer):
    def outcomes(self, told: Iterable[Outcomes]) -> list[Any]:
        """A list of outcomes by columns: [name, positions, values], one for each name and shape."""
        columns: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[np.ndarray]]] = {}
        for i, outcomes in enumerate(told):
            for name, value in outcomes.items():
                at, values = columns.setdefault((name, value.shape), ([], []))
                at.append(i)
                values.append(value)
        ordered = sorted(columns.items())
        return [[name, self.array(np.array(at)), self.array(np.stack(values))] for (name, _), (at, values) in ordered]

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
            contexts = [watch.contexts.n, self.array(watch.contexts.mean), self.array(watch.contexts.scatter)]
            out["watch"] = {"monitors": monitors, "contexts": contexts, "logged": watch.logged}
        return out

    def _blocks(self, blocks: tuple[Block, ...]) -> list[Any]:
        columns = [[getattr(b, name) for b in blocks] for name in ("start", "snapshot", "exploration")]
        kinds = (np.int64, np.int64, float)
        stacked = [np.stack([getattr(b, name) for b in blocks]) for name in ("limits", "available")]
        return [self.array(np.array(c, kind)) for c, kind in zip(columns, kinds)] + [self.array(s) for s in stacked]


def restored(begin: Memory, arrays: Mapping[str, np.ndarray], tree: Mapping[str, Any]) -> tuple[Memory, Ledger]:
    """The memory and ledger that were `stored`; `begin` is a memory begun afresh on the same problem and settings."""
    try:
        return _Reader(arrays).memory(begin, tree)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise JournalCorruptError(f"a snapshot cannot be read: {type(error).__name__}: {error}") from error


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
        ledger.asked.update(enumerate(zip(self.array(tree["x"]), actions)))
        told = self.array(tree["told"]).tolist()
        ledger.told.update(zip(told, self.outcomes(len(told), tree["outcomes"])))
        problem = memory.problem
        if tree["n_actions"] != problem.n_actions:
            problem = problem.with_actions(tree["n_actions"], tree.get("actions"))
        for name, at_most in zip(problem.constraint_names, tree["limits"], strict=True):
            if problem.limits[problem.constraint_names.index(name)] != at_most:
                problem = problem.with_limit(name, at_most)
        fresh, s = memory.state, tree["state"]
        assert fresh is not None
        learners = {name: fresh.learners[name].restored(self, part) for name, part in s["learners"].items()}
        state = replace(
            fresh, problem=problem, learners=learners, t=s["t"], told=s["told"], refit_at=s["refit_at"],
            played=self.array(s["played"]), blocks=self._blocks(s["blocks"]),
        )  # fmt: skip
        self._check(state, ledger)
        ids, first = self.array(tree["inbox"]), self.array(tree["first"])
        news = self.outcomes(len(ids), tree["news"])
        inbox = [Entry(i, *ledger.asked[i], outcomes, f) for i, f, outcomes in zip(ids.tolist(), first.tolist(), news)]
        watch = memory.watch
        if watch is not None:
            n, mean, scatter = tree["watch"]["contexts"]
            contexts = replace(watch.contexts, n=n, mean=self.array(mean), scatter=self.array(scatter))
            guard = watch.guard.with_arrays({name: self.array(node) for name, node in tree["watch"]["monitors"].items()})
            watch = replace(watch, guard=guard, contexts=contexts, logged=tree["watch"]["logged"])
        return replace(
            memory, problem=problem, state=state, watch=watch, inbox=Inbox(inbox), active=tuple(tree["active"]),
            alarms=tuple(Alarm(*a) for a in tree["alarms"]),
        ), ledger  # fmt: skip

    def _blocks(self, columns: list[Any]) -> tuple[Block, ...]:
        start, snapshot, exploration, limits, available = (self.array(c) for c in columns)
        rows = zip(start.tolist(), snapshot.tolist(), exploration.tolist(), limits, available)
        return tuple(Block(*row) for row in rows)

    def _check(self, state: State, ledger: Ledger) -> None:
        actions = [a for _, a in ledger.asked.values()]
        if len(actions) != state.t or not state.blocks or set(state.learners) != set(state.problem.streams):
            raise ValueError(f"{len(actions)} decisions in round {state.t}")
        if actions and not 0 <= min(actions) <= max(actions) < state.problem.n_actions:
            raise ValueError("an action that does not exist")
        if not set(ledger.told) <= set(ledger.asked):
            raise ValueError("outcomes of decisions that were never made")
