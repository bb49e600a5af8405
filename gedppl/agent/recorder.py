"""Records and what they mean: the frozen protocol, one payload for every step of an agent, and
replaying them.

    decision
        id, x, allowed, policy, action, action_name (if actions have names), propensity,
        certificate, seed (of its draw),
               versions, learned
    outcome    id, y, z {name: value}; parts may come in several records
    amend      the same, and `was`: outcomes that replace the ones told before
    observe    x, a, y, z, seen {outcome: which rows}; several records with `more` are one call
    change
        what (a sentence), change: "limit", "actions", "acknowledge" or "versions", and its values
    alarm      name, evidence, delta, round, sentence

A record is only ever read as numbers and text, and is checked like a caller's input before it is
believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gedppl.agent import memory as steps
from gedppl.agent.memory import Ledger, Memory
from gedppl.agent.memory import Step as Step
from gedppl.errors import (
    InputError,
    JournalCorruptError,
    JournalMismatchError,
    LearningError,
    ProblemError,
    RecordError,
    SettingError,
)
from gedppl.ged_ucb import Entry, Outcomes
from gedppl.ged_ucb.settings import EVERY, Settings, by_stream, settings
from gedppl.guard import Alarm
from gedppl.journal.format import Record, running_versions
from gedppl.numerics.arrays import LARGEST, is_number
from gedppl.problem import UTILITY, Problem
from gedppl.problem.checks import check_told, digest
from gedppl.problem.names import are_texts, read_contexts

GUARDS = ("fallback", "warn", None)
OBSERVED_BYTES = 4 * 2**20  # of contexts in one record
_SETTINGS = (
    "mode",
    "delta",
    "bonus_scale",
    "width_scale",
    "warmup",
    "growth",
    "exact_rounds",
    "exploration",
    "seed",
)


# the protocol -------------------------------------------------------------------------------------


def protocol(problem: Problem, chosen: Settings, guard: str | None) -> dict[str, Any]:
    """What is frozen when a journal begins. `versions` may differ later; all else makes it
    another trial.
    """
    limits = {c.name: c.functional.fn for _, c in problem.learned}
    functions = {
        name: digest(fn)
        for name, fn in ({UTILITY: problem.utility.functional.fn} | limits).items()
        if fn is not None
    }
    return {
        **named_things(problem),
        **({"functions": functions} if functions else {}),
        "problem": problem.fingerprint(),
        "models": {name: digest(model) for name, model in problem.streams.items()},
        "settings": {name: getattr(chosen, name) for name in _SETTINGS},
        "confidence": _by_stream(chosen.confidence, repr),
        "oracle": _by_stream(chosen.oracle, _name_of),
        "guard": guard,
        "versions": running_versions(),
    }


def named_things(problem: Problem) -> dict[str, Any]:
    """What a reader of the journal needs to say actions and columns by name; nothing where they
    have none.
    """
    found = {"actions": problem.names.actions, "columns": problem.names.columns}
    return {key: list(names) for key, names in found.items() if names is not None}


def _by_stream(value: Any, text: Callable[[Any], str]) -> Any:
    chosen = by_stream(value)
    if EVERY in chosen:
        return text(value)
    return {str(stream): text(one) for stream, one in chosen.items()}


def _name_of(oracle: Any) -> str:
    if oracle is None:
        return "chosen by the model"
    options = getattr(oracle, "options", None)
    called = getattr(oracle, "name", None) or getattr(
        oracle, "__qualname__", type(oracle).__qualname__
    )
    return f"{called}{dict(options or {})}"


def read_protocol(
    frozen: Mapping[str, Any], oracle: Any, confidence: Any
) -> tuple[Settings, str | None]:
    """The settings and the guard that a journal began with. Oracle and confidence are objects:
    they come from the caller.
    """
    found, guard = frozen.get("settings"), frozen.get("guard")
    if isinstance(found, dict) and ("selection" in found or "radius" in frozen):
        raise JournalMismatchError(
            "this journal was begun by an earlier version, which explored in another way: its "
            "decisions cannot be "
            "replayed. Read it with `gedppl journal export`, begin a new agent and give it the "
            "rows with observe()"
        )
    if not isinstance(found, dict) or set(found) != set(_SETTINGS) or guard not in GUARDS:
        raise JournalMismatchError(
            f"this journal was not begun by an agent: its protocol has {sorted(frozen)}; begin one "
            "with GEDUCB(..., journal=)"
        )
    texts, seed = ("mode", "warmup", "exploration"), found["seed"]
    numbers = [found[n] for n in _SETTINGS if n not in texts]
    if not are_texts(found[n] for n in texts) or not all(type(v) in (int, float) for v in numbers):
        raise JournalMismatchError(f"the settings of this journal are no settings: {found}")
    if type(seed) is not int:
        raise JournalMismatchError(f"the seed of this journal must be a whole number, got {seed!r}")
    try:
        return settings(**found, oracle=oracle, confidence=confidence), guard
    except SettingError as error:
        raise JournalMismatchError(
            f"the settings of this journal are out of range: {error}"
        ) from error


def versions_hash() -> str:
    """Which versions a decision was made with, in 16 letters; the protocol and `change` records
    spell them out.
    """
    return hashlib.sha256(json.dumps(running_versions(), sort_keys=True).encode()).hexdigest()[:16]


# steps as payloads --------------------------------------------------------------------------------


def outcome_payload(decision_id: int, outcomes: Outcomes) -> dict[str, Any]:
    return {"id": decision_id, **_told(outcomes)}


def _told(outcomes: Outcomes) -> dict[str, Any]:
    plain = {name: float(value) if value.ndim == 0 else value for name, value in outcomes.items()}
    return {"y": plain.pop(UTILITY, None), "z": plain}


def _outcomes(payload: Mapping[str, Any]) -> Outcomes:
    told = ({} if payload["y"] is None else {UTILITY: payload["y"]}) | payload["z"]
    return {name: np.asarray(value, float) for name, value in told.items()}


def observe_payloads(problem: Problem, entries: list[Entry]) -> list[dict[str, Any]]:
    """Logged rows as one or several payloads."""
    size = max(1, OBSERVED_BYTES // (8 * len(entries[0].x)))
    parts = [entries[i : i + size] for i in range(0, len(entries), size)]
    return [_observe_payload(problem, part) | {"more": part is not parts[-1]} for part in parts]


def _observe_payload(problem: Problem, entries: list[Entry]) -> dict[str, Any]:
    columns: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}
    for name in problem.streams:
        values = [e.outcomes.get(name) for e in entries]
        shapes = {v.shape for v in values if v is not None}
        if not shapes:
            continue
        if len(shapes) > 1:  # a single number among outcomes of all actions
            values = [
                v if v is None or v.ndim else _alone(problem, e.action, v)
                for e, v in zip(entries, values)
            ]
        shape = max(shapes, key=len)
        columns[name] = np.stack([np.full(shape, np.nan) if v is None else v for v in values])
        seen[name] = np.array([v is not None for v in values])
    return {
        "x": np.stack([e.x for e in entries]),
        "a": np.array([e.action for e in entries]),
        "y": columns.pop(UTILITY, None),
        "z": columns,
        "seen": seen,
    }


def _alone(problem: Problem, action: int, value: np.ndarray) -> np.ndarray:
    out = np.full(problem.n_actions, np.nan)
    out[action] = value
    return out


def logged_entries(
    problem: Problem, payloads: Iterable[Mapping[str, Any]], width: int | None
) -> list[Entry]:
    """The rows of one `observe`, checked."""
    entries: list[Entry] = []
    for payload in payloads:
        contexts, single = read_contexts(payload["x"], width)
        n, actions = len(contexts), payload["a"]
        columns = ({} if payload["y"] is None else {UTILITY: payload["y"]}) | payload["z"]
        if (
            single
            or len(actions) != n
            or any(len(c) != n or len(payload["seen"][s]) != n for s, c in columns.items())
        ):
            raise RecordError(f"logged columns of unequal length beside {n} contexts")
        for i in range(n):
            action = problem.names.action(actions[i])
            outcomes = {
                s: np.asarray(c[i], float) for s, c in columns.items() if payload["seen"][s][i]
            }
            check_told(problem, action, outcomes)
            entries.append(Entry(len(entries), contexts[i], action, outcomes, True))
    if not entries:
        raise RecordError("no logged rows")
    return entries


def limit_payload(name: str, at_most: Any) -> dict[str, Any]:
    if not is_number(at_most) or not abs(at_most) <= LARGEST:
        raise ProblemError(
            f"at_most of constraint {name!r} must be a finite number, got {at_most!r}"
        )
    if not isinstance(name, str):
        raise ProblemError(f"a constraint is named by a text, got {name!r}")
    return {
        "what": f"limit of {name!r} set to {float(at_most)!r}",
        "change": "limit",
        "name": name,
        "at_most": float(at_most),
    }


def actions_payload(
    what: str, available: np.ndarray, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """`names`: of all actions, where one that has a name was added."""
    named = {} if names is None else {"names": list(names)}
    return {"what": what, "change": "actions", "available": available, **named}


def acknowledge_payload(name: str) -> dict[str, Any]:
    return {"what": f"alarm {name!r} acknowledged", "change": "acknowledge", "alarm": name}


def versions_payload(differ: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    found = {path.removeprefix("versions."): list(pair) for path, pair in differ.items()}
    return {
        "what": "resumed with other versions",
        "change": "versions",
        "differ": found,
        "versions": running_versions(),
    }


def alarm_payload(alarm: Alarm) -> dict[str, Any]:
    return asdict(alarm)


# replaying ----------------------------------------------------------------------------------------


def replayed(
    memory: Memory,
    ledger: Ledger,
    recorded: Iterable[Record],
    amended: Mapping[int, Outcomes] | None = None,
) -> Memory:
    """The memory after these records. `ledger` is filled in. `amended`: id -> outcomes to read
    instead of those told.
    """
    waiting: list[Mapping[str, Any]] = []  # parts of an observe
    for record in recorded:
        try:
            if record.kind == "observe":
                waiting.append(record.payload)
                if record.payload["more"]:
                    continue
                memory, waiting = _observe(memory, waiting), []
            elif waiting:
                raise RecordError("the logged rows before it are incomplete")
            else:
                memory = _STEPS[record.kind](memory, ledger, record.payload, amended or {})
        except LearningError as error:
            raise LearningError(
                f"record {record.sequence} ({record.kind}), which is intact: {error}"
            ) from error
        except (InputError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise JournalCorruptError(
                f"record {record.sequence} ({record.kind}) cannot be replayed: "
                f"{type(error).__name__}: {error}"
            ) from error
    if waiting:
        raise JournalCorruptError("the logged rows at the end are incomplete")
    return memory


def _observe(memory: Memory, payloads: list[Mapping[str, Any]]) -> Memory:
    return steps.observed(memory, logged_entries(memory.problem, payloads, memory.width))


def _decision(
    memory: Memory, ledger: Ledger, payload: Mapping[str, Any], _: Mapping[int, Outcomes]
) -> Memory:
    contexts, single = read_contexts(payload["x"], memory.width)
    expected = 0 if memory.state is None else memory.state.t
    if type(payload["id"]) is not int or payload["id"] != expected or not single:
        raise RecordError(
            f"decision {payload['id']!r} with a context of shape "
            f"{np.shape(payload['x'])}, expected {expected}"
        )
    if type(payload["learned"]) is not bool:
        raise RecordError(f"learned is {payload['learned']!r}")
    action = memory.problem.names.action(payload["action"])
    memory = steps.decided(memory, contexts, learned=payload["learned"])
    ledger.asked[expected] = (contexts[0], action)
    return memory


def _outcome(
    memory: Memory, ledger: Ledger, payload: Mapping[str, Any], amended: Mapping[int, Outcomes]
) -> Memory:
    key, told = _known(ledger, payload), _outcomes(payload)
    x, action = ledger.asked[key]
    check_told(memory.problem, action, told)
    told |= {name: value for name, value in amended.get(key, {}).items() if name in told}
    known = ledger.told.get(key)
    if known is not None and set(known) & set(told):
        raise RecordError(f"decision {key} is told {sorted(set(known) & set(told))} a second time")
    ledger.told[key] = (known or {}) | told
    return steps.told(memory, [Entry(key, x, action, told, known is None)])


def _known(ledger: Ledger, payload: Mapping[str, Any]) -> int:
    key = payload["id"]
    if type(key) is not int or key not in ledger.asked:
        raise RecordError(f"there is no decision {key!r}")
    return key


def _amend(
    memory: Memory, ledger: Ledger, payload: Mapping[str, Any], amended: Mapping[int, Outcomes]
) -> Memory:
    key = _known(ledger, payload)
    if not set(_outcomes(payload)) <= set(amended.get(key, {})):
        raise RecordError(f"an amendment of decision {key} that was not read before the replay")
    return memory  # done where the outcome itself was replayed


def _change(
    memory: Memory, ledger: Ledger, payload: Mapping[str, Any], _: Mapping[int, Outcomes]
) -> Memory:
    return changed(memory, payload)


def changed(memory: Memory, payload: Mapping[str, Any]) -> Memory:
    """The memory after a change."""
    kind = payload["change"]
    if kind == "versions":
        return memory
    if memory.state is None:
        raise InputError(
            f"{payload['what']}: nothing has been decided or observed yet; declare "
            "the Problem that way instead"
        )
    if kind == "limit":
        problem = memory.problem.with_limit(payload["name"], payload["at_most"])
        return steps.changed(memory, problem, memory.available)
    if kind == "acknowledge":
        if memory.watch is None or not memory.watch.knows(str(payload["alarm"])):
            raise RecordError(f"there is no monitor {payload['alarm']!r}")
        return steps.acknowledged(memory, payload["alarm"])
    if kind == "actions":
        available = np.asarray(payload["available"])
        grown = len(available) - memory.problem.n_actions
        if available.dtype != bool or available.ndim != 1 or grown not in (0, 1):
            raise RecordError(f"{len(available)} actions after {memory.problem.n_actions}")
        problem = (
            memory.problem.with_actions(len(available), payload.get("names"))
            if grown
            else memory.problem
        )
        return steps.changed(memory, problem, available)
    raise RecordError(f"an unknown change {kind!r}")


def _alarm(
    memory: Memory, ledger: Ledger, payload: Mapping[str, Any], _: Mapping[int, Outcomes]
) -> Memory:
    alarm = Alarm(**payload)
    numbers = (alarm.evidence, alarm.delta, alarm.round)
    if not all(isinstance(v, int | float) for v in numbers) or not all(
        isinstance(v, str) for v in (alarm.name, alarm.sentence)
    ):
        raise RecordError(f"an alarm of {payload}")
    if memory.watch is None or not memory.watch.knows(alarm.name):
        raise RecordError(f"there is no monitor {alarm.name!r}")
    return steps.alarmed(memory, alarm)


def _nothing(
    memory: Memory, ledger: Ledger, payload: Mapping[str, Any], _: Mapping[int, Outcomes]
) -> Memory:
    return memory


_STEPS = {
    "protocol": _nothing,
    "snapshot": _nothing,
    "decision": _decision,
    "outcome": _outcome,
    "amend": _amend,
    "change": _change,
    "alarm": _alarm,
}


def amendments(recorded: Iterable[Record]) -> dict[int, Outcomes]:
    """id -> outcomes that replace those told before; the last word counts."""
    found: dict[int, Outcomes] = {}
    for record in recorded:
        if record.kind != "amend":
            continue
        try:
            key, new = record.payload["id"], _outcomes(record.payload)
            if type(key) is not int or not all(
                np.isfinite(v[~np.isnan(v)]).all() for v in new.values()
            ):
                raise RecordError(f"decision {key!r} amended to {new}")
        except (KeyError, TypeError, ValueError) as error:
            raise JournalCorruptError(
                f"record {record.sequence} (amend) cannot be read: {error}"
            ) from error
        found[key] = found.get(key, {}) | new
    return found


def remembered(history: Iterable[Step]) -> Iterator[Record]:
    """The steps of an agent without a journal, as records."""
    return (Record(i, 0, kind, dict(payload)) for i, (kind, payload) in enumerate(history))
