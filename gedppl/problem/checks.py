"""What a declared constraint must satisfy, in sentences, and declarations as texts to compare."""

from __future__ import annotations

import inspect
import math
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import ColumnError, FunctionalError, ProblemError
from gedppl.numerics.arrays import Array

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.problem import Constraint, Problem
    from gedppl.programs.contract import DensityClass, MemberList

ROUNDING = 1e-12  # share of the numbers compared: closer than this they are equal


def check_functional(functional: Any, what: str) -> None:
    if not (callable(functional) and hasattr(functional, "low") and hasattr(functional, "high")):
        raise ProblemError(
            f"the functional of the {what} must be one of mean(...), cvar(...), "
            f"..., got {functional!r}"
        )


def check_programs(problem: Problem, x: np.ndarray) -> None:
    """What can be known to fail before the first round, at the first of contexts x (n, dx)."""
    check_function(problem.utility.functional, problem.utility.model, x)
    for _, constraint in problem.learned:
        check_function(constraint.functional, constraint.model, x)
    check_levels(problem, x)


def check_levels(problem: Problem, x: np.ndarray) -> None:
    """The codes of a column's levels often index an array of the model, and JAX takes an index
    past the end for the last one: two levels would be one.
    """
    last = np.array([problem.n_actions - 1 - (problem.safe_action == problem.n_actions - 1)])
    for i, (name, levels) in enumerate((problem.names.columns or {}).items()):
        for code in () if levels is None else {0, len(levels) - 1}:
            row = np.array(x[:1])
            row[0, i] = code
            for stream, model in problem.streams.items():
                found = model.index_problem(row, last)
                if found and levels:
                    raise ColumnError(
                        f"column {name!r} has {len(levels)} levels, codes 0 to {len(levels) - 1} "
                        f"in the context, and the model of {stream!r} has no entry for all of "
                        f"them: {found}"
                    )


def check_function(functional: Functional, model: DensityClass | MemberList, x: np.ndarray) -> None:
    """Call the function of `expected(fn, ...)` once, with what it will get: NumPy arrays, and
    traced ones of the model's language where bounds are found through the program.
    """
    fn, given = functional.fn, "NumPy arrays"
    if fn is None:
        return

    def tried(y: np.ndarray, x: np.ndarray, a: np.ndarray) -> Array:
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # this outcome need not be a possible one
                value: Array = fn(y, x, a)
                return value
        except Exception as failure:  # whatever a user's function raises
            inside = traceback.extract_tb(failure.__traceback__)[1:2]  # the first frame is this one
            place = "".join(f" ({Path(at.filename).name}, line {at.lineno})" for at in inside)
            raise FunctionalError(
                f"the function of {functional} fails on {given}, y {tuple(y.shape)}, x "
                f"{tuple(x.shape)} and a {tuple(a.shape)}: {type(failure).__name__}: "
                f"{str(failure).partition(chr(10))[0]}{place}. It must take (y, x, a), work "
                "element by element, and on NumPy arrays as on those of the model's language: "
                "arithmetic and comparisons do, (y - 3) * (y > 3) for max(y - 3, 0); beside "
                "NumPyro all of jax.numpy does, with tables made by jnp.asarray"
            ) from failure

    tried(np.ones((2, 1, *model.event_shape)), x[:1], np.zeros(1, np.int64))
    linear = model.predictor is not None and model.predictor.family == "Normal"
    if not (linear or model.location_scale is not None or model.event_shape):
        given = "traced arrays of the model's language"
        model.way_of(replace(functional, fn=tried), False)


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
