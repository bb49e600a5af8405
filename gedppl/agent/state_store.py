"""An agent's memory as arrays and JSON, and back: for snapshots, and for the hash that two equal memories share.

Only data are stored. Models, predictors, radius rules and oracles are live objects: they are taken from a memory begun
afresh on the same problem and settings, and the stored data are put around them. Loading builds arrays, numbers and the
few classes named in `CLASSES`, by name; nothing in the file is executed, and anything unexpected is an error.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from gedppl.agent.feedback import Entry, Outcomes
from gedppl.agent.memory import Inbox, Ledger, Memory, started
from gedppl.errors import JournalCorruptError, JournalError
from gedppl.ged_ucb import Block, State
from gedppl.guard import Alarm
from gedppl.learning import linear_gaussian, linear_parts, location_scale, programs
from gedppl.learning.ellipsoids import Ellipsoid
from gedppl.learning.group_rows import GroupRows
from gedppl.learning.groups import Group
from gedppl.learning.likelihoods import OrderedData, PredictorData, ProgramData
from gedppl.learning.predictive import Particles
from gedppl.learning.program_sets import Plausible, Start, Unseen, plausible
from gedppl.learning.scale_sets import ScaleFit, ScaleSet
from gedppl.oracles.fits import Fit, WorkingPrior
from gedppl.rows import Rows

_LINEAR = (Ellipsoid, Group, linear_gaussian.Snapshot, linear_parts.Space, linear_parts.Starts)
_SCALES = (ScaleFit, ScaleSet, location_scale.Process, location_scale.ScalePrior, location_scale.ScaleSnapshots)
CLASSES: dict[str, Any] = {c.__name__: c for c in (Fit, Particles, Start, WorkingPrior, programs.Snapshots, *_LINEAR, *_SCALES)}
OWN = ("group", "evidence", "starts", "fitted")  # of a group of rows; its data are rows of the learner
LIVE = (
    "cls",
    "features_at",
    "form",
    "oracle",
    "predictor",
    "region_of",
    "rule",
)  # come from the problem and settings, or are memos


class NotStorableError(JournalError):
    """The memory holds something that no snapshot can: resuming replays the journal from its start."""


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


class _Writer:
    """Collects arrays; `strict` refuses what cannot be loaded again, otherwise such parts are left out."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.arrays: dict[str, np.ndarray] = {}

    def array(self, value: np.ndarray) -> dict[str, str]:
        if value.dtype.kind not in "biuf":
            raise NotStorableError(f"an array of {value.dtype} cannot be part of a snapshot")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = value
        return {"array": name}

    def node(self, value: Any) -> Any:
        if value is None or isinstance(value, str | bool | int | float):
            return float(value) if isinstance(value, np.floating) else value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, tuple | list):
            return {"tuple": [self.node(v) for v in value]}
        if isinstance(value, Mapping):
            return {"map": [[self.node(k), self.node(v)] for k, v in value.items()]}
        if isinstance(value, Rows):
            return {"rows": [self.array(part) for part in (value.x, value.a, value.y)]}
        cls = CLASSES.get(type(value).__name__)
        if cls is type(value):
            return {"of": cls.__name__, "fields": {f.name: self.node(getattr(value, f.name)) for f in fields(cls)}}
        if self.strict:
            raise NotStorableError(f"a {type(value).__name__} cannot be part of a snapshot")
        return {"left out": type(value).__name__}

    def learner(self, learner: Any) -> dict[str, Any]:
        if not is_dataclass(learner):
            raise NotStorableError(f"a {type(learner).__name__} cannot be part of a snapshot")
        out: dict[str, Any] = {}
        for f in fields(learner):
            value = getattr(learner, f.name)
            if f.name in LIVE:
                continue
            if isinstance(value, ProgramData | OrderedData):
                out[f.name] = None  # its rows are the learner's
            elif isinstance(value, PredictorData):
                out[f.name] = [self.node(value.table), self.node(value.names)]
            elif f.name == "sets":
                out[f.name] = [self._set(s) for s in value]
            elif f.name == "own":
                out[f.name] = [self._own(part) for part in value]
            else:
                out[f.name] = self.node(value)
        return out

    def _own(self, part: GroupRows) -> dict[str, Any]:
        """A group without its data: its rows are among the learner's."""
        kept = {name: self.node(getattr(part, name)) for name in OWN}
        return kept | {"sets": [self._set(s) for s in part.sets]}

    def _set(self, s: Plausible) -> Any:
        threshold = inspect.getclosurevars(s.region.slack).nonlocals.get("threshold")
        if not isinstance(threshold, float):
            if self.strict:
                raise NotStorableError("a divergence ball around a program cannot be part of a snapshot")
            return s.start
        region = [self.node(part) for part in (s.region.centre, s.region.chol, float(s.region.kappa))]
        unseen = [self.array(part) for part in (s.unseen.basis, s.unseen.unit, s.unseen.untouched)]
        return {"start": s.start, "n": s.data.n, "threshold": threshold, "region": region, "unseen": unseen, "refuted": s.refuted}

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
            "learners": {name: self.learner(learner) for name, learner in state.learners.items()},
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


class _Reader:
    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays

    def array(self, node: Mapping[str, str]) -> np.ndarray:
        return self.arrays[node["array"]]

    def node(self, node: Any) -> Any:
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise ValueError("a bare list")
            return node
        if "array" in node:
            return self.array(node)
        if "tuple" in node:
            return tuple(self.node(n) for n in node["tuple"])
        if "map" in node:
            return {self.node(k): self.node(v) for k, v in node["map"]}
        if "rows" in node:
            return Rows.of(*(self.array(n) for n in node["rows"]))
        cls = CLASSES[node["of"]]
        given = {name: self.node(n) for name, n in node["fields"].items()}
        if set(given) != {f.name for f in fields(cls)}:
            raise ValueError(f"the fields of a {cls.__name__} are {sorted(given)}")
        return cls(**given)

    def learner(self, fresh: Any, tree: Mapping[str, Any]) -> Any:
        names = {f.name for f in fields(fresh)} - set(LIVE)
        if set(tree) != names:
            raise ValueError(f"a {type(fresh).__name__} with the fields {sorted(set(tree) ^ names)} too many or too few")
        special = ("data", "own", "sets") if isinstance(fresh, programs.ProgramLearner) else ()
        learner = replace(fresh, **{name: self.node(tree[name]) for name in tree if name not in special})
        if not special:
            return learner
        if isinstance(fresh.data, PredictorData):
            table, fixed = (self.node(n) for n in tree["data"])
            data: Any = PredictorData(fresh.data.predictor, fresh.data.dim, table, fixed)
        elif isinstance(fresh.data, OrderedData):
            rows = learner.rows
            data = fresh.data if rows is None else fresh.data.append(rows.x, rows.a, rows.y)
        else:
            data = fresh.data if learner.rows is None else ProgramData(fresh.cls, learner.rows)
        own = tuple(self._own(fresh.data, part, learner.rows) for part in tree["own"])
        if tuple(part.group for part in own) != learner.groups[1:]:
            raise ValueError("the groups of rows are not those of the learner")
        return replace(learner, data=data, own=own, sets=tuple(self._set(data, s) for s in tree["sets"]))

    def _own(self, empty: Any, tree: Mapping[str, Any], rows: Rows | None) -> GroupRows:
        kept = {name: self.node(tree[name]) for name in OWN}
        part = GroupRows(data=empty, sets=(), **kept).of(rows)
        return replace(part, sets=tuple(self._set(part.data, s) for s in tree["sets"]))

    def _set(self, data: Any, s: Mapping[str, Any]) -> Plausible:
        centre, chol, kappa = (self.node(n) for n in s["region"])
        made = plausible(data.between(s["start"], s["start"] + s["n"]), s["start"], centre, s["threshold"])
        basis, unit, untouched = (self.array(part) for part in s["unseen"])
        region = replace(made.region, centre=centre, chol=chol, kappa=kappa)
        return replace(made, region=region, unseen=Unseen(basis, unit, untouched), refuted=bool(s["refuted"]))

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
            problem = problem.with_actions(tree["n_actions"])
        for name, at_most in zip(problem.constraint_names, tree["limits"], strict=True):
            if problem.limits[problem.constraint_names.index(name)] != at_most:
                problem = problem.with_limit(name, at_most)
        fresh, s = memory.state, tree["state"]
        assert fresh is not None
        learners = {name: self.learner(fresh.learners[name], part) for name, part in s["learners"].items()}
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
