"""Reading what a caller passes to the agent. A wrong value is a named error here, before anything has changed.

Every array is copied: what a caller does to it later changes nothing here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.agent.feedback import Entry, read_outcomes
from gedppl.agent.numbers import is_whole, read_numbers, shape_of
from gedppl.errors import ActionRangeError, ContextWidthError, ShapeError
from gedppl.problem import Problem

MAX_CONTEXTS, MAX_WIDTH = 100_000, 100_000


def read_contexts(x: Any, width: int | None) -> tuple[np.ndarray, bool]:
    """Contexts as (n, dx) floats, read-only, and whether there was only one, given as (dx,)."""
    shape = shape_of(x, "x")
    if len(shape) not in (1, 2) or 0 in shape:
        raise ShapeError(f"x must be one context (dx,) or a batch (n, dx), got shape {shape}")
    if shape[-1] > MAX_WIDTH or (len(shape) == 2 and shape[0] > MAX_CONTEXTS):
        raise ShapeError(f"x of shape {shape} is too large; at most {MAX_CONTEXTS} contexts of {MAX_WIDTH} numbers")
    if width is not None and shape[-1] != width:
        raise ContextWidthError(f"contexts have {width} columns in this run, got {shape[-1]}")
    array = read_numbers(x, "x", "impute missing values first", ShapeError)
    array.setflags(write=False)
    return np.atleast_2d(array), array.ndim == 1


def read_mask(allowed: Any, n: int, available: np.ndarray) -> np.ndarray | None:
    """Actions allowed at n contexts, (n, K) bool; None if the caller set no mask."""
    if allowed is None:
        return None
    K, shape = len(available), shape_of(allowed, "allowed")
    if shape not in ((K,), (n, K)):
        raise ShapeError(f"allowed must be boolean ({K},) or ({n}, {K}), got shape {shape}")
    mask = np.array(allowed)
    if mask.dtype != bool or isinstance(allowed, np.ma.MaskedArray):
        raise ShapeError(f"allowed must be boolean ({K},) or ({n}, {K}), got {mask.dtype} {mask.shape}")
    mask = np.broadcast_to(mask, (n, K))
    if not (mask & available).any(axis=1).all():
        raise ActionRangeError("allowed leaves no action on offer; allow at least one")
    return mask


def read_action(action: Any, n_actions: int) -> int:
    """One action."""
    if not is_whole(action) or not 0 <= action < n_actions:
        raise ActionRangeError(f"action must be one of 0, ..., {n_actions - 1}, got {action!r}")
    return int(action)


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


def read_logged(problem: Problem, contexts: np.ndarray, a: Any, y: Any, z: Any, single: bool) -> list[Entry]:
    """Logged rows as entries, in the order given."""
    n = len(contexts)
    shape = shape_of(a, "a")
    if shape != (n,) and (shape, n) != ((), 1):
        raise ShapeError(f"a must have one action for each of {n} rows, got shape {shape}")
    actions = np.atleast_1d(np.asarray(a.detach() if hasattr(a, "detach") else a))
    ys = [y] if single else _column(y, "y", n)
    if z is None or single:
        zs: Any = [z] * n
    elif isinstance(z, dict):
        columns = {name: _column(v, f"z[{name!r}]", n) for name, v in z.items()}
        zs = [{name: v[i] for name, v in columns.items()} for i in range(n)]
    else:
        zs = _column(z, "z", n)
    for model in problem.streams.values():  # logged rows may be the first that a model sees
        trace = getattr(model, "trace", None)
        if trace is not None:
            trace(contexts[:1], np.zeros(1, np.int64))
    entries = []
    for i in range(n):
        action = read_action(actions[i], problem.n_actions)
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
