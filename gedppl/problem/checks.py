"""What a declared constraint must satisfy, in sentences, and declarations as texts to compare."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import ProblemError

if TYPE_CHECKING:
    from gedppl.problem import Constraint

ROUNDING = 1e-12  # share of the numbers compared: closer than this they are equal


def check_functional(functional: Any, what: str) -> None:
    if not (callable(functional) and hasattr(functional, "low") and hasattr(functional, "high")):
        raise ProblemError(
            f"the functional of the {what} must be one of mean(...), cvar(...), "
            f"..., got {functional!r}"
        )


def check_limit(at_most: Any, name: str) -> None:
    try:
        ok = math.isfinite(at_most)
    except TypeError:
        ok = False
    if not ok:
        raise ProblemError(
            f"at_most of constraint {name!r} must be a finite number, got {at_most!r}"
        )


def check_flag(every_draw: Any, name: str) -> None:
    if every_draw is not True and every_draw is not False:
        raise ProblemError(
            f"every_draw of constraint {name!r} must be True (the limit holds for every action "
            "that may be drawn) or False (for "
            f"the policy's average), got {every_draw!r}"
        )


def check_safe_value(value: np.ndarray, c: Constraint) -> np.ndarray:
    low = c.functional.low
    if not np.isfinite(value).all() or np.any(value < low):
        raise ProblemError(
            f"safe_value of constraint {c.name!r} must be finite and at least "
            f"{low}, got {np.min(value)}"
        )
    if np.any(value > c.at_most):
        raise ProblemError(
            f"safe_value of constraint {c.name!r} must not exceed its limit at_most={c.at_most}, "
            f"got {np.max(value)}: "
            "an action above the limit is not safe"
        )
    return value


def check_room(safe_value: float, c: Constraint) -> None:
    """With the limit at the safe value no other action can be mixed in, and an average is all
    that this limit is on.
    """
    if (
        c.at_most - safe_value <= ROUNDING * max(abs(c.at_most), abs(safe_value))
        and not c.every_draw
    ):
        raise ProblemError(
            f"safe_value of constraint {c.name!r} equals its limit at_most={c.at_most:g}, so that "
            "no other action could ever be "
            "mixed in: raise at_most, declare a smaller safe_value, or every_draw=True, which "
            "certifies each action by itself"
        )


def described(thing: Any) -> str:
    """Text that changes when the thing does: source for functions, repr without addresses for
    the rest.
    """
    program = getattr(thing, "model", thing)
    describe = getattr(thing, "describe", None)
    if callable(describe):
        return str(describe())
    if callable(program) and hasattr(program, "__code__"):
        try:
            return inspect.getsource(program)
        except (OSError, TypeError):
            code = program.__code__
            return f"{program.__qualname__}:{code.co_code.hex()}:{code.co_consts!r}"
    if callable(thing) and not hasattr(thing, "low"):
        return type(thing).__qualname__
    return repr(thing)
