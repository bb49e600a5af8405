"""Reading what a caller passes to the agent. A wrong value is a named error here, before anything has changed.

Every array is copied: what a caller does to it later changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gedppl.agent.feedback import Entry, read_outcomes
from gedppl.errors import ActionRangeError, ColumnError, ShapeError
from gedppl.names import Names, Table, as_table, hint, listed
from gedppl.numerics.numbers import shape_of
from gedppl.problem import Problem


def read_mask(names: Names, allowed: Any, n: int, available: np.ndarray) -> np.ndarray | None:
    """Actions allowed at n contexts, (n, K) bool; None if the caller set no mask."""
    if allowed is None:
        return None
    mask = names.mask(allowed, n)
    if not (mask & available).any(axis=1).all():
        raise ActionRangeError("allowed leaves no action on offer; allow at least one")
    return mask


def read_triples(outcomes: Any) -> list[tuple[Any, Any, Any]]:
    """What `tell_many` was given, as (id, y, z)."""
    triples = []
    try:
        for one in outcomes:
            if len(one) != 3:  # before it is unpacked: it may be huge
                raise ShapeError(f"tell_many() takes (id, y, z), got {len(one)} items in one; z is None where there is none")
            decision_id, y, z = one
            triples.append((decision_id, y, z))
    except ShapeError:
        raise
    except Exception:
        raise ShapeError(f"tell_many() takes a list of (id, y, z), got a {type(outcomes).__name__}") from None
    return triples


def read_log(problem: Problem, x: Any, a: Any, y: Any, z: Any, width: int | None) -> list[Entry]:
    """Logged rows as entries, in the order given. Where x is a table, texts for a, y and z name its columns."""
    table = as_table(x)
    if table is None:
        return _entries(problem, *problem.names.contexts(x, width), a, y, z)
    columns, single = table
    known = problem.names.actions or ()
    named = [v for v in (a, y, *(z.values() if isinstance(z, Mapping) else [z])) if isinstance(v, str) and v in columns]
    contexts = problem.names.by_name(columns, single, more=bool(named))
    a = a if isinstance(a, str) and a not in columns and a in known else _of(columns, a, "a")
    z = {name: _of(columns, v, f"z[{name!r}]") for name, v in z.items()} if isinstance(z, Mapping) else _of(columns, z, "z")
    return _entries(problem, *contexts, a, _of(columns, y, "y"), z)


def _of(columns: Table, value: Any, what: str) -> Any:
    """The column of this name; what is no text is its own value."""
    if not isinstance(value, str):
        return value
    if value not in columns:
        raise ColumnError(f"{what}={value!r} is no column of the log, which has {listed(columns)}{hint(value, columns)}")
    return columns[value]


def _entries(problem: Problem, contexts: np.ndarray, single: bool, a: Any, y: Any, z: Any) -> list[Entry]:
    n = len(contexts)
    shape = shape_of(a, "a")
    if shape != (n,) and (shape, n) != ((), 1):
        raise ShapeError(f"a must have one action for each of {n} rows, got shape {shape}")
    a = a.detach() if hasattr(a, "detach") else a
    actions = [a] if not shape else a.tolist() if isinstance(a, np.ndarray) else list(a)
    ys = [y] if single else _column(y, "y", n)
    if z is None or single:
        zs: Any = [z] * n
    elif isinstance(z, dict):
        columns = {name: _column(v, f"z[{name!r}]", n) for name, v in z.items()}
        zs = [{name: v[i] for name, v in columns.items()} for i in range(n)]
    else:
        zs = _column(z, "z", n)
    for model in problem.streams.values():  # logged rows may be the first that a model sees
        model.trace(contexts[:1], np.zeros(1, np.int64))
    entries = []
    for i in range(n):
        action = problem.names.action(actions[i])
        entries.append(Entry(i, contexts[i], action, read_outcomes(problem, contexts[i], action, ys[i], zs[i]), True))
    return entries


def _column(values: Any, name: str, n: int) -> Any:
    """One outcome a row; None for all of them if it was not observed."""
    if values is None:
        return [None] * n
    shape = shape_of(values, name)
    if not shape or shape[0] != n:
        raise ShapeError(f"{name} must have {n} rows, got shape {shape}")
    return values if isinstance(values, list | tuple | np.ndarray) else np.asarray(values)
