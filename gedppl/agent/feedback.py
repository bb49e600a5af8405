"""Contexts, actions and outcomes on their way in: checked, kept apart by decision, and turned into
rows for the fits.

Nothing here changes a model. Feedback may come in any order and with any delay; what arrives
between two decisions is taken in together, in the order of decision ids, so that its order of
arrival does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gedppl.errors import (
    ColumnError,
    ConflictingOutcomeError,
    DataError,
    GedError,
    LearningError,
    NotFiniteError,
    ShapeError,
)
from gedppl.ged_ucb import Entry, Outcomes, rows_of_one
from gedppl.numerics.arrays import detached, read_numbers, shape_of
from gedppl.problem import UTILITY, Problem
from gedppl.problem.names import Table, as_table, hint, listed


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
        array = _read(problem, name, action, value)
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


def check_told(problem: Problem, action: int, outcomes: Mapping[str, Any]) -> None:
    """Refuse outcomes that `read_outcomes` would not have let in, the support of the models
    apart.
    """
    for name, value in outcomes.items():
        if name not in problem.streams:
            raise DataError(
                f"there is no outcome {name!r}; the outcomes are {list(problem.streams)}"
            )
        if _read(problem, name, action, value) is None:
            raise DataError(f"the outcome {name!r} reveals nothing")


def _read(problem: Problem, name: str, action: int, value: Any) -> np.ndarray | None:
    what, shape = f"the outcome {name!r}", shape_of(value, f"the outcome {name!r}")
    event_shape = problem.streams[name].event_shape
    full = problem.reveals is not None and shape == (problem.n_actions,) and not event_shape
    if not full and shape != event_shape:
        wanted = f"shape {event_shape}" if event_shape else "a single number"
        more = (
            f", or ({problem.n_actions},) with NaN for what was not revealed"
            if problem.reveals is not None
            else ""
        )
        raise ShapeError(f"{what} must be {wanted}{more}; got shape {shape}")
    array = read_numbers(
        value,
        what,
        "leave it out (None) if it was not observed",
        missing=problem.reveals is not None,
    )
    if np.isnan(array).all():
        return None
    if not full and np.isnan(array).any():
        raise NotFiniteError(
            f"{what} is NaN in part: {array.tolist()}; leave it out (None) if it was not observed"
        )
    if problem.reveals is not None:
        seen = ~np.isnan(array) if full else np.eye(problem.n_actions, dtype=bool)[action]
        hidden = seen & ~problem.reveals[action]
        if hidden.any():
            label = problem.names.label
            raise DataError(
                f"action {label(action)} does not reveal the outcome of action "
                f"{label(int(np.flatnonzero(hidden)[0]))} (see "
                "Problem.reveals), "
                f"but {name!r} was told for it; pass NaN there"
            )
    return array


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
# Reading what a caller passes to the agent. A wrong value is a named error here, before anything
# has changed.
#
# Every array is copied: what a caller does to it later changes nothing here.


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
