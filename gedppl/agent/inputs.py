"""Reading what a caller passes to the agent. A wrong value is a named error here, before anything has changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.agent.feedback import Entry, read_outcomes
from gedppl.errors import ActionRangeError, ContextWidthError, NotFiniteError, ShapeError
from gedppl.problem import Problem

MAX_CONTEXTS, MAX_WIDTH = 100_000, 100_000


def read_contexts(x: Any, width: int | None) -> tuple[np.ndarray, bool]:
    """Contexts as (n, dx) floats, and whether there was only one, given as (dx,)."""
    shape = np.shape(x)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ShapeError(f"x must be one context (dx,) or a batch (n, dx), got shape {shape}")
    if shape[-1] > MAX_WIDTH or (len(shape) == 2 and shape[0] > MAX_CONTEXTS):
        raise ShapeError(f"x of shape {shape} is too large; at most {MAX_CONTEXTS} contexts of {MAX_WIDTH} numbers")
    if width is not None and shape[-1] != width:
        raise ContextWidthError(f"contexts have {width} columns in this run, got {shape[-1]}")
    try:
        array = np.array(x, float)
    except (TypeError, ValueError):
        raise ShapeError(f"x must hold numbers, got {type(x).__name__}") from None
    if not np.isfinite(array).all():
        raise NotFiniteError(f"x must be finite, got {array[~np.isfinite(array)][0]}; impute missing values first")
    return np.atleast_2d(array), array.ndim == 1


def read_mask(allowed: Any, n: int, available: np.ndarray) -> np.ndarray | None:
    """Actions allowed at n contexts, (n, K) bool; None if the caller set no mask."""
    if allowed is None:
        return None
    mask, K = np.asarray(allowed), len(available)
    if mask.dtype != bool or mask.shape not in ((K,), (n, K)):
        raise ShapeError(f"allowed must be boolean ({K},) or ({n}, {K}), got {mask.dtype} {mask.shape}")
    mask = np.broadcast_to(mask, (n, K))
    if not (mask & available).any(axis=1).all():
        raise ActionRangeError("allowed leaves no action on offer; allow at least one")
    return mask


def read_action(action: Any, n_actions: int) -> int:
    """One action."""
    if isinstance(action, bool) or not isinstance(action, (int, np.integer)) or not 0 <= action < n_actions:
        raise ActionRangeError(f"action must be one of 0, ..., {n_actions - 1}, got {action!r}")
    return int(action)


def read_logged(problem: Problem, contexts: np.ndarray, a: Any, y: Any, z: Any, single: bool) -> list[Entry]:
    """Logged rows as entries, in the order given."""
    n, actions = len(contexts), np.atleast_1d(np.asarray(a))
    if actions.shape != (n,):
        raise ShapeError(f"a must have one action for each of {n} rows, got shape {actions.shape}")
    ys = [y] if single else y
    if z is None or single:
        zs = [z] * n
    elif isinstance(z, dict):
        if any(len(v) != n for v in z.values()):
            raise ShapeError(f"every entry of z must have {n} rows, got {[len(v) for v in z.values()]}")
        zs = [{name: v[i] for name, v in z.items()} for i in range(n)]
    else:
        zs = z
    if np.ndim(ys) == 0 or np.ndim(zs) == 0 or len(ys) != n or len(zs) != n:
        raise ShapeError(f"y and z must have {n} rows, got shapes {np.shape(y)} and {np.shape(z)}")
    entries = []
    for i in range(n):
        action = read_action(actions[i], problem.n_actions)
        entries.append(Entry(i, contexts[i], action, read_outcomes(problem, contexts[i], action, ys[i], zs[i]), True))
    return entries
