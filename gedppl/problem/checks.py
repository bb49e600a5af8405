"""What declarations must satisfy, in sentences; what an outcome must be; and declarations as texts
and hashes to compare.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, singledispatch
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import (
    ColumnError,
    ContextRangeError,
    DataError,
    FunctionalError,
    NotFiniteError,
    ProblemError,
    ShapeError,
)
from gedppl.functionals.expectation import at_outcomes
from gedppl.numerics.arrays import LARGEST, Array, detached, is_whole, read_numbers, shape_of

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.problem import Constraint, Problem
    from gedppl.programs.contract import DensityClass, MemberList

ROUNDING = 1e-12  # share of the numbers compared: closer than this they are equal
SETTINGS = np.array([[1.0], [9.0]])  # at which levels are compared
MAX_DEPTH = 8  # how far a hash follows what functions enclose


def check_functional(functional: Any, what: str) -> None:
    if not (callable(functional) and hasattr(functional, "low") and hasattr(functional, "high")):
        raise ProblemError(
            f"the functional of the {what} must be one of mean(...), cvar(...), "
            f"..., got {functional!r}"
        )


def check_programs(problem: Problem, x: np.ndarray) -> None:
    """What can be known to fail before the first round, at the first of contexts x (n, dx)."""
    for model, functional in _asked(problem):
        check_function(functional, model, x)
    check_levels(problem, x)


def check_levels(problem: Problem, x: np.ndarray) -> None:
    """The codes of a column's levels often index an array of the model, and JAX takes an index
    past the end for the last one: two levels would be one.
    """
    for i, (name, levels) in enumerate((problem.names.columns or {}).items()):
        if levels is None:
            continue
        rows = np.repeat(x[:1], 2, axis=0)
        rows[:, i] = 0, len(levels) - 1
        try:
            problem.check_contexts(rows)
        except ContextRangeError as error:
            raise ColumnError(
                f"column {name!r} has {len(levels)} levels, codes 0 to {len(levels) - 1} in the "
                f"context, and a model has no entry for all of them: {error}"
            ) from None
        for asked in _asked(problem):
            if asked[0].reads_by_context:
                _check_apart(asked, (name, levels, i), rows[:1], problem.n_actions)


def _asked(problem: Problem) -> list[tuple[DensityClass | MemberList, Functional]]:
    """The models and what is asked of each."""
    limits = [(constraint.model, constraint.functional) for _, constraint in problem.learned]
    return [(problem.utility.model, problem.utility.functional), *limits]


def _check_apart(
    asked: tuple[Any, Functional], column: tuple[str, Sequence[Any], int], x: np.ndarray, K: int
) -> None:
    """Refuse a model that reads one level's entry from the end of an array, where another level's
    is. A reference level has an entry of its own there.
    """
    (model, functional), (name, levels, i) = asked, column
    rows, actions = np.repeat(x, len(levels) * K, axis=0), np.tile(np.arange(K), len(levels))
    rows[:, i] = np.repeat(np.arange(len(levels)), K)
    if not model.reads_from_the_end(rows, actions):
        return
    theta = model.visit(
        lambda finite: finite.every,
        lambda program: program.initial + 0.3 * np.cos(np.arange(program.dim) + SETTINGS),
    )
    said = np.asarray(model.values(functional, theta, rows, actions))
    said = said.reshape(len(said), len(levels), K)
    if np.all(said == said[:, :1]):  # this functional has nothing to do with levels
        return
    for c in range(len(levels)):
        same = np.flatnonzero(np.all(said == said[:, [c]], axis=(0, 2)))
        here = rows[:, i] == c
        if len(same) > 1 and model.reads_from_the_end(rows[here], actions[here]):
            other = levels[int(same[same != c][0])]
            raise ColumnError(
                f"a model reads level {levels[c]!r} of column {name!r}, code {c}, from the end of "
                f"an array, where level {other!r} is: the certificate of one would be that of the "
                f"other. Codes begin at 0: read u[code] of {len(levels)} entries, or give a "
                "reference level an entry of its own, jnp.append(u, 0.0)[code - 1]"
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
                value: Array = at_outcomes(fn, y, x, a)
                return value
        except Exception as failure:  # whatever a user's function raises
            inside = traceback.extract_tb(failure.__traceback__)[
                2:3
            ]  # the first are this and its call
            place = "".join(f" ({Path(at.filename).name}, line {at.lineno})" for at in inside)
            raise FunctionalError(
                f"the function of {functional} fails on {given}, y {tuple(y.shape)}, x "
                f"{tuple(x.shape)} and a {tuple(a.shape)}: {type(failure).__name__}: "
                f"{str(failure).partition(chr(10))[0]}{place}. It must take (y, x, a), work "
                "element by element, on NumPy arrays and on traced ones of the model's language: "
                "arithmetic and comparisons do, (y - 3) * (y > 3) for max(y - 3, 0); all of "
                "jax.numpy does beside NumPyro, with tables made by jnp.asarray, and of torch "
                "beside Pyro, with torch.as_tensor"
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


# what an outcome must be --------------------------------------------------------------------------


def check_feedback(problem: Problem) -> np.ndarray | None:
    """What is said of how outcomes arrive; `reveals` as an array that nobody changes."""
    K, reveals = problem.n_actions, problem.reveals
    if reveals is not None:
        reveals = np.array(reveals)
        if reveals.shape != (K, K) or reveals.dtype != bool:
            raise ProblemError(
                f"reveals must be a boolean ({K}, {K}) array, got {reveals.dtype} {reveals.shape}; "
                f"numpy.eye({K}, dtype=bool) is bandit feedback"
            )
        reveals.flags.writeable = False
    flag, age = problem.independent, problem.outcome_age
    if not (flag is True or flag is False) or (flag and reveals is None):
        raise ProblemError(
            f"independent={flag!r}: True says that outcomes revealed together are independent "
            "given x; without reveals= there is one a round, leave it out"
        )
    if not is_whole(age) or age < 1:
        raise ProblemError(
            f"outcome_age must be a whole number of rounds, at least 1, got {age!r}; 1 learns "
            "every outcome at the next decision after it was told"
        )
    return reveals


def check_safe_action(problem: Problem) -> None:
    """What learned limits need of the safe action."""
    safe, learned = problem.safe_action, [c for _, c in problem.learned]
    if not learned:
        return
    if safe is None:
        raise ProblemError(
            f"constraint {learned[0].name!r} is learned, so a safe_action is needed to act "
            "before anything is known; name one, with its safe_value"
        )
    for c in learned:
        if c.safe_value_exact and not problem.learn_safe:
            raise ProblemError(
                f"constraint {c.name!r} declares its safe_value exact for the model too, but "
                "learn_safe=False leaves the safe action out of the model; drop one of the two"
            )
        if c.safe_value is None:
            raise ProblemError(
                f"constraint {c.name!r} needs safe_value, its value at the safe action "
                f"{problem.names.label(safe)}: a number or a function of x"
            )
        if not callable(c.safe_value):
            check_room(float(check_safe_value(np.asarray(c.safe_value, float), c)), c)


def read_outcome(problem: Problem, name: str, action: int, value: Any) -> np.ndarray | None:
    """One outcome of one decision as numbers; None where it reveals nothing."""
    event_shape, what = problem.streams[name].event_shape, f"the outcome {name!r}"
    plain = isinstance(value, float | int) and problem.reveals is None and event_shape == ()
    if plain and abs(value) <= LARGEST:  # nearly every outcome: what follows would find nothing
        return np.array(value, float)
    shape = shape_of(value, what)
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


def check_told(problem: Problem, action: int, outcomes: Mapping[str, Any]) -> None:
    """Refuse outcomes that `tell` would not have let in, the support of the models apart."""
    for name, value in outcomes.items():
        if name not in problem.streams:
            raise DataError(
                f"there is no outcome {name!r}; the outcomes are {list(problem.streams)}"
            )
        if read_outcome(problem, name, action, value) is None:
            raise DataError(f"the outcome {name!r} reveals nothing")


# declarations to compare --------------------------------------------------------------------------


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


# a hash of a model as it was declared -------------------------------------------------------------
# Its source, and what its functions enclose (a noise scale, a table): plain numbers, texts,
# arrays, distributions, the user's own classes and functions, in closures, filled-in arguments and
# public attributes of objects, and those that a function reads from its module or, by name, from
# another module of the user's, whose functions are left out. What an object keeps in a container or
# a private attribute may be what it remembers, and is not covered; nor is anything else.


def digest(model: Any) -> str:
    """64 letters, the same for the same declaration in another process.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> digest(scaled(2.0)) == digest(scaled(2.0)), digest(scaled(2.0)) == digest(scaled(3.0))
    (True, False)
    """
    h = _Hash()
    h.feed(model, 0)
    return h.sha.hexdigest()


class _Hash:
    """What was said of a declaration so far."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.followed: set[int] = set()  # what was found in modules, once is enough

    def say(self, *words: object) -> None:
        for word in words:
            self.say_bytes(str(word).encode())

    def say_bytes(self, data: bytes) -> None:
        self.sha.update(len(data).to_bytes(8, "little") + data)

    def feed(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.say("deeper")
        else:
            _feed(value, self, depth)


@singledispatch
def _feed(value: Any, h: _Hash, depth: int) -> None:
    """An object that says itself what it was declared as, or an array; any other counts by its
    type.
    """
    if callable(getattr(value, "describe", None)):
        h.say("described", value.describe())
    elif hasattr(value, "members"):  # a finite class
        h.say("members")
        h.feed(value.members, depth + 1)
    elif hasattr(value, "model") and hasattr(value, "density_at"):
        # a class of densities from a program
        h.say("class")
        for part in (
            value.model,
            getattr(value, "_declared_bounds", None),
            getattr(value, "_init", None),
        ):
            h.feed(part, depth + 1)
    elif hasattr(value, "__array__"):
        array = np.asarray(detached(value))
        h.say("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            h.feed(array.tolist(), depth + 1)
        else:
            h.say_bytes(np.ascontiguousarray(array).tobytes())
    elif (within := _within(value)) is not None:
        h.say("wrapped")
        h.feed(within, depth + 1)
    else:
        _feed_object(value, h, depth)


def _feed_object(value: Any, h: _Hash, depth: int) -> None:
    """By its class and its public attributes; a distribution also by the private ones that hold
    arguments.
    """
    h.say("object")
    h.feed(type(value), depth + 1)
    call = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(call, FunctionType) and not _is_foreign(call.__module__):
        h.feed(call, depth + 1)
    is_density = _sort(value) == "table"
    if is_density:
        h.say(tuple(value.batch_shape), tuple(value.event_shape))
    for name, part in sorted(getattr(value, "__dict__", {}).items()):
        # what an object computes and remembers is private, or in a container; a distribution
        # keeps arguments in both, and what it computes under the name of a property
        told = _sort(part) in ("plain", "table", "function") and not name.startswith("_")
        if is_density and (told or _sort(part) in ("table", "list")):
            told = not hasattr(inspect.getattr_static(type(value), name, None), "__get__")
        if told:
            h.say(name)
            h.feed(part, depth + 1)


@singledispatch
def _sort(thing: Any) -> str:
    """What kind of thing a model encloses or finds; a table is an array of any library, or a
    distribution.
    """
    return "table" if hasattr(thing, "__array__") or hasattr(thing, "log_prob") else "object"


_SORTS: dict[str, tuple[type, ...]] = {
    "plain": (bool, int, float, complex, str, bytes, np.generic, tuple),
    "table": (np.ndarray,),
    "list": (list,),
    "held": (type(None), range, Mapping, set, frozenset, deque, SimpleNamespace, partial),
    "function": (FunctionType,),
    "module": (ModuleType,),
    "class": (type,),
}
for _name, _kinds in _SORTS.items():
    for _kind in _kinds:
        _sort.register(_kind, lambda thing, sort=_name: sort)


def _is_foreign(module: str | None) -> bool:
    """Whether a module is Python's, installed, or ours: no part of a model. None is the user's."""
    module = module or ""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    known = module.partition(".")[0] in {*sys.stdlib_module_names, "gedppl"}
    return known or "site-packages" in file or "dist-packages" in file


@_feed.register(type)
def _(value: type, h: _Hash, depth: int) -> None:
    """By name; the user's own also by its source and what is kept in it."""
    h.say("class", value.__module__, value.__qualname__)
    for kind in value.__mro__:
        if not _is_foreign(kind.__module__):
            h.say(kind.__qualname__, _source(kind))
            for name, part in sorted(vars(kind).items()):
                if not name.startswith("_") and _sort(part) in ("plain", "table"):
                    h.say(name)
                    h.feed(part, depth + 1)


def _within(value: Any) -> Any:
    """The function that a compiled one (`jax.jit`) calls; None for any other object."""
    within = getattr(value, "__wrapped__", None)
    return within if isinstance(within, FunctionType) else None


@_feed.register(partial)
def _(value: partial[Any], h: _Hash, depth: int) -> None:
    h.say("partial")
    for part in (value.func, value.args, value.keywords):
        h.feed(part, depth + 1)


@_feed.register(MethodType)
def _(value: MethodType, h: _Hash, depth: int) -> None:
    h.say("method")
    h.feed(value.__func__, depth + 1)
    h.feed(value.__self__, depth + 1)


@_feed.register(type(None))
@_feed.register(str)
@_feed.register(bytes)
@_feed.register(int)
@_feed.register(float)
@_feed.register(complex)
@_feed.register(range)
def _(value: str | bytes | complex | range | None, h: _Hash, depth: int) -> None:
    h.say(type(value).__name__, repr(value))


@_feed.register(Mapping)
def _(value: Mapping[Any, Any], h: _Hash, depth: int) -> None:
    h.say("map", len(value))
    for key in sorted(value, key=str):
        h.say(key)
        h.feed(value[key], depth + 1)


@_feed.register(list)
@_feed.register(tuple)
@_feed.register(deque)
def _(value: Sequence[Any], h: _Hash, depth: int) -> None:
    h.say("list", len(value))
    for item in value:
        h.feed(item, depth + 1)


@_feed.register(set)
@_feed.register(frozenset)
def _(value: frozenset[Any], h: _Hash, depth: int) -> None:
    h.say("set", *sorted(map(digest, value)))


@_feed.register(SimpleNamespace)
def _(value: SimpleNamespace, h: _Hash, depth: int) -> None:
    h.feed(vars(value), depth)


@_feed.register(FunctionType)
def _(value: FunctionType, h: _Hash, depth: int) -> None:
    own = not _is_foreign(value.__module__)
    h.say("function", _source(value) if own else f"{value.__module__}.{value.__qualname__}")
    h.feed(value.__defaults__, depth + 1)
    h.feed(value.__kwdefaults__, depth + 1)
    for cell in value.__closure__ or ():
        try:
            h.feed(cell.cell_contents, depth + 1)
        except ValueError:  # not filled yet
            h.say("empty")
    names = _names(value.__code__) if own else set()
    for name, read in _found(value.__globals__, names):
        if _is_read(read, value):
            h.say("global", name)
            if id(read) not in h.followed:
                h.followed.add(id(read))
                h.feed(read, depth + 1)


def _found(module: Mapping[str, Any], names: set[str]) -> Iterator[tuple[str, Any]]:
    """What a function finds by its names in its module, and by the same names in the user's other
    modules that stand there.
    """
    for name in sorted(names & set(module)):
        read = module[name]
        if _sort(read) != "module":
            yield name, read
        elif not _is_foreign(read.__name__) and vars(read) is not module:
            for inner, part in _found(vars(read), names - {name}):
                yield f"{name}.{inner}", part


def _names(code: CodeType) -> set[str]:
    """The names that a function looks up, also in the functions that are written inside it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _is_read(read: Any, by: FunctionType) -> bool:
    """Whether something that a function finds in its module is part of what it says: numbers, texts
    and what holds them, objects but Python's own, the user's classes, and functions that stand
    beside it, compiled or with arguments filled in.
    """
    read = read if _within(read) is None else _within(read)
    match _sort(read):
        case "function":
            return bool(read.__globals__ is by.__globals__)
        case "class":
            return not _is_foreign(read.__module__)
        case "object":  # but Python's own
            module = type(read).__module__
            return module.partition(".")[0] not in sys.stdlib_module_names
    return True


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        if _sort(function) == "class":  # whose text is not kept
            return ""
        code = function.__code__
        constants = [c for c in code.co_consts if not inspect.iscode(c)]
        return f"{code.co_code.hex()}:{code.co_names}:{constants!r}"
