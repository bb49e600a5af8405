"""What comes in from outside: outcomes, corrections, logged rows, actions taken off the list. Each
is read, checked, and handed to the keeper as one step.

Nothing here changes a model. Outcomes may come in any order and with any delay; what arrives
between two decisions is taken in together, in the order of decision ids, so that its order of
arrival does not matter. Every array is copied: what a caller does to it later changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gedppl.agent import memory as steps
from gedppl.agent import recorder
from gedppl.agent.deciding import Decision
from gedppl.agent.keeper import Keeper
from gedppl.agent.memory import Memory
from gedppl.errors import (
    ActionRangeError,
    ColumnError,
    ConflictingOutcomeError,
    DataError,
    GedError,
    LearningError,
    ShapeError,
    UnknownDecisionError,
)
from gedppl.ged_ucb import Entry, Outcomes, rows_of_one
from gedppl.guard import Alarm
from gedppl.numerics.arrays import detached, is_whole, shape_of
from gedppl.problem import UTILITY, Problem
from gedppl.problem.checks import read_outcome
from gedppl.problem.names import Table, as_table, hint, listed


def known_id(keeper: Keeper, decision: Decision | int) -> int:
    """The id of a decision that was made."""
    asked = keeper.ledger.asked
    decision_id = decision.id if isinstance(decision, Decision) else decision
    if not is_whole(decision_id) or int(decision_id) not in asked:
        raise UnknownDecisionError(
            f"there is no decision {decision_id!r}; decisions so far: {len(asked)}"
        )
    return int(decision_id)


def tell(keeper: Keeper, outcomes: Sequence[tuple[Decision | int, Any, Any]]) -> None:
    """See `GEDUCB.tell_many`."""
    asked, told = keeper.ledger.asked, keeper.ledger.told
    fresh: dict[int, Outcomes] = {}
    entries = []
    for decision, y, z in read_triples(outcomes):
        key = known_id(keeper, decision)
        x, action = asked[key]
        known = told.get(key, {}) | fresh.get(key, {})
        news = new_outcomes(key, known, read_outcomes(keeper.memory.problem, x, action, y, z))
        first = key not in told and key not in fresh
        if news or first:
            entries.append(Entry(key, x, action, news, first))
            fresh[key] = fresh.get(key, {}) | news
    if entries:
        records: list[recorder.Step] = [
            ("outcome", recorder.outcome_payload(e.id, e.outcomes)) for e in entries
        ]
        now = {key: told.get(key, {}) | news for key, news in fresh.items()}
        keeper.commit(records, steps.told(keeper.memory, entries), told=now)


def amend(keeper: Keeper, decision: Decision | int, y: Any, z: Any) -> None:
    """See `GEDUCB.amend`."""
    key = known_id(keeper, decision)
    given = read_outcomes(keeper.memory.problem, *keeper.ledger.asked[key], y, z)
    if not given:
        raise DataError(f"amend() was given no outcome of decision {key}; pass y=, z= or both")
    known = keeper.ledger.told.get(key, {})
    news = amended_outcomes(key, known, given)
    if news:
        memory, ledger = keeper.amended(key, news)
        was = recorder.outcome_payload(key, {name: known[name] for name in news})
        keeper.commit(
            [("amend", recorder.outcome_payload(key, news) | {"was": was})], memory, ledger=ledger
        )


def observe(keeper: Keeper, x: Any, a: Any, y: Any, z: Any) -> list[Alarm]:
    """See `GEDUCB.observe`; the alarms that the rows set off."""
    memory = keeper.memory
    rows = read_log(memory.problem, x, a, y, z, memory.width)
    payloads = recorder.observe_payloads(memory.problem, rows)
    entries = recorder.logged_entries(memory.problem, payloads, memory.width)
    after = steps.observed(memory, entries)
    return keeper.commit([("observe", payload) for payload in payloads], after)


def offer(memory: Memory, action: int | str, on_offer: bool) -> dict[str, Any]:
    """The record of an action that is on offer from now on, or no longer."""
    names = memory.problem.names
    key = names.action(action)
    label = names.label(key)
    if key == memory.problem.safe_action and not on_offer:
        raise ActionRangeError(
            f"action {label} is the safe action and cannot be retired; retire another"
        )
    available = memory.available
    available[key] = on_offer
    return recorder.actions_payload(
        f"action {label} {'restored' if on_offer else 'retired'}", available
    )


def added(memory: Memory, name: str | None) -> dict[str, Any]:
    """The record of one more action."""
    names = None if name is None else [*(memory.problem.actions or ()), name]
    what = f"action {memory.problem.n_actions if name is None else name} added"
    return recorder.actions_payload(what, np.append(memory.available, True), names)


# outcomes of one decision -------------------------------------------------------------------------


def read_outcomes(
    problem: Problem, x: np.ndarray, action: int, y: Any, z: Any, *, judged: bool = True
) -> Outcomes:
    """Check what was told of one decision and sort it by outcome name. None and NaN mean "not
    observed". `judged`: by the models, whether it lies in their support.
    """
    told: dict[str, Any] = {UTILITY: y}
    own = [name for name in problem.streams if name != UTILITY]
    if isinstance(z, Mapping):
        unknown = set(z) - set(own)
        if unknown:
            strange = sorted(map(str, unknown))
            raise DataError(
                f"z names outcomes that no constraint learns from: {strange}; expected "
                f"some of {own}"
            )
        told |= z
    elif z is not None:
        if len(own) != 1:
            named = (
                f"{{name: number}} for {own}"
                if own
                else "no z: no constraint has an outcome of its own"
            )
            raise DataError(f"z={z!r} is ambiguous; pass {named}")
        told[own[0]] = z
    out: Outcomes = {}
    for name, value in told.items():
        if value is None:
            continue
        array = read_outcome(problem, name, action, value)
        if array is None:
            continue
        xs, actions, ys = rows_of_one(problem, name, x, action, array, every=True)
        if judged and len(actions):
            _checked(problem.streams[name].check_outcomes, name, xs, actions, ys)
        out[name] = array
    return out


def _checked(
    check: Callable[..., Any], name: str, x: np.ndarray, actions: np.ndarray, y: np.ndarray
) -> None:
    try:
        check(x, actions, y)
    except GedError:
        raise
    except Exception as error:
        what = f"the model of {name!r} could not judge the outcome {y.tolist()}"
        raise LearningError(f"{what}: {type(error).__name__}: {error}") from error


def new_outcomes(decision_id: int, known: Outcomes, told: Outcomes) -> Outcomes:
    """What `told` adds to what is `known`. The same value again is no news; another value is an
    error.
    """
    news: Outcomes = {}
    for name, value in told.items():
        if name not in known:
            news[name] = value
        elif not np.array_equal(known[name], value, equal_nan=True):
            raise ConflictingOutcomeError(
                f"decision {decision_id} was already told {name!r} = {known[name].tolist()}, now "
                f"{value.tolist()}; "
                "use amend() if the first was a mistake"
            )
    return news


def amended_outcomes(decision_id: int, known: Outcomes, told: Outcomes) -> Outcomes:
    """What `told` changes of what is `known`. Only what was told before can be amended."""
    missing = sorted(set(told) - set(known))
    if missing:
        raise DataError(
            f"decision {decision_id} was never told {missing}, so there is nothing to "
            "amend; use tell()"
        )
    return {
        name: value
        for name, value in told.items()
        if not np.array_equal(known[name], value, equal_nan=True)
    }


# what a caller passes -----------------------------------------------------------------------------


def read_triples(outcomes: Any) -> list[tuple[Any, Any, Any]]:
    """What `tell_many` was given, as (id, y, z)."""
    triples = []
    try:
        for one in outcomes:
            if len(one) != 3:  # before it is unpacked: it may be huge
                raise ShapeError(
                    f"tell_many() takes (id, y, z), got {len(one)} items in one; z is "
                    "None where there is none"
                )
            decision_id, y, z = one
            triples.append((decision_id, y, z))
    except ShapeError:
        raise
    except Exception:
        raise ShapeError(
            f"tell_many() takes a list of (id, y, z), got a {type(outcomes).__name__}"
        ) from None
    return triples


def read_log(problem: Problem, x: Any, a: Any, y: Any, z: Any, width: int | None) -> list[Entry]:
    """Logged rows as entries, in the order given. Where x is a table, texts for a, y and z name
    its columns.
    """
    table = as_table(x)
    if table is None:
        return _entries(problem, *problem.names.contexts(x, width), a, y, z)
    columns, single = table
    known = problem.names.actions or ()
    named = [
        v
        for v in (a, y, *(z.values() if isinstance(z, Mapping) else [z]))
        if isinstance(v, str) and v in columns
    ]
    contexts = problem.names.by_name(columns, single, more=bool(named))
    a = a if isinstance(a, str) and a not in columns and a in known else _of(columns, a, "a")
    z = (
        {name: _of(columns, v, f"z[{name!r}]") for name, v in z.items()}
        if isinstance(z, Mapping)
        else _of(columns, z, "z")
    )
    return _entries(problem, *contexts, a, _of(columns, y, "y"), z)


def _of(columns: Table, value: Any, what: str) -> Any:
    """The column of this name; what is no text is its own value."""
    if not isinstance(value, str):
        return value
    if value not in columns:
        raise ColumnError(
            f"{what}={value!r} is no column of the log, which has "
            f"{listed(columns)}{hint(value, columns)}"
        )
    return columns[value]


def _entries(
    problem: Problem, contexts: np.ndarray, single: bool, a: Any, y: Any, z: Any
) -> list[Entry]:
    n = len(contexts)
    shape = shape_of(a, "a")
    if shape != (n,) and (shape, n) != ((), 1):
        raise ShapeError(f"a must have one action for each of {n} rows, got shape {shape}")
    a = detached(a)
    actions = [a] if not shape else a.tolist() if isinstance(a, np.ndarray) else list(a)
    ys = [y] if single else _column(y, "y", n)
    if z is None or single:
        zs: Any = [z] * n
    elif isinstance(z, dict):
        columns = {name: _column(v, f"z[{name!r}]", n) for name, v in z.items()}
        zs = [{name: v[i] for name, v in columns.items()} for i in range(n)]
    else:
        zs = _column(z, "z", n)
    problem.trace(contexts)  # logged rows may be the first that a model sees
    entries = []
    for i in range(n):
        action = problem.names.action(actions[i])
        entries.append(
            Entry(
                i,
                contexts[i],
                action,
                read_outcomes(problem, contexts[i], action, ys[i], zs[i]),
                True,
            )
        )
    return entries


def _column(values: Any, name: str, n: int) -> Any:
    """One outcome a row; None for all of them if it was not observed."""
    if values is None:
        return [None] * n
    shape = shape_of(values, name)
    if not shape or shape[0] != n:
        raise ShapeError(f"{name} must have {n} rows, got shape {shape}")
    return values if isinstance(values, list | tuple | np.ndarray) else np.asarray(values)
