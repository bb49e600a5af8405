"""What the operations of a JAX function say of it: what its results need, which indices contexts
decide on, whether another function has the same; and the features of all actions at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters.partial_eval import dce_jaxpr

from gedppl.programs.jax_reader import CALLS, as_inside, called
from gedppl.rows import MOST_CELLS, Parts, Slopes, unit_slopes

if TYPE_CHECKING:
    from gedppl.programs.jax_kernels import JaxKernels

FEW_ROWS = 2000  # rows that the program answers sooner than another function of it is compiled


def what_matters(function: Callable[..., Any], *args: jax.Array) -> tuple[list[bool], str]:
    """Which arguments `function(*args)` makes use of, and the text of the operations and
    constants that its results come from.
    """
    needed, used, consts = _needed(function, *args)
    operations = str(needed).split("let")[-1]  # what follows the names of arguments
    return used, operations + repr([hash(np.asarray(c).tobytes()) for c in consts])


def used(function: Callable[..., Any], *args: np.ndarray) -> list[bool]:
    """Which arguments `function(*args)` makes use of."""
    return _needed(function, *args)[1]


def _needed(function: Callable[..., Any], *args: Any) -> tuple[Jaxpr, list[bool], list[Any]]:
    """The operations that its results come from, which arguments they use, and the constants."""
    closed = jax.make_jaxpr(function)(*args)
    needed, found = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return needed, list(found), closed.consts


def lowest_indices(
    function: Callable[..., Any], theta: jax.Array, x: jax.Array, a: jax.Array
) -> jax.Array:
    """The lowest values (k,) of the indices that contexts x decide on and that count from the end
    of an array where they are negative.

    JAX writes such an index as ``select(i < 0, i + size, i)`` before it is used, so that nothing is
    past any end afterwards.
    """
    closed = jax.make_jaxpr(function)(theta, x, a)
    found: list[jax.Array] = []
    _walk(closed.jaxpr, closed.consts, [(theta, False), (x, True), (a, False)], found)
    return jnp.stack(found) if found else jnp.zeros(0, jnp.int64)


# a value, and whether contexts decide on it
Looked = tuple[Any, bool]


def _walk(
    jaxpr: jax.core.Jaxpr, consts: Sequence[Any], inputs: Sequence[Looked], found: list[jax.Array]
) -> list[Looked]:
    """The results of a function at these inputs; its lowest indices are added to `found`."""
    known = dict(zip(jaxpr.constvars, ((value, False) for value in consts)))
    known.update(zip(jaxpr.invars, inputs))
    signs: list[tuple[jax.Array, jax.Array]] = []  # (i < 0, i)

    def read(atom: jax.core.Atom) -> Looked:
        return (atom.val, False) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        values, by_context = [value for value, _ in operands], any(by for _, by in operands)
        name = equation.primitive.name
        if name in CALLS:
            results = _walk(*called(equation), operands, found)
        elif name in _INSIDE:
            lowest, out = _INSIDE[name](equation, values, by_context)
            found += lowest
            results = [(one, by_context) for one in out]
        else:
            bound = equation.primitive.get_bind_params(equation.params)
            parts, params = bound if isinstance(bound, tuple) else ((), bound)  # before 0.10
            out = equation.primitive.bind(*parts, *values, **params)
            several = out if equation.primitive.multiple_results else [out]
            results = [(one, by_context) for one in several]
        if name == "lt" and by_context and jnp.issubdtype(values[0].dtype, jnp.integer):
            signs.append((results[0][0], values[0]))
        if name == "select_n" and any(
            values[0] is sign and values[1] is index for sign, index in signs
        ):
            found.append(jnp.min(values[1]).astype(jnp.int64))
        known.update(zip(equation.outvars, results))
    return [read(atom) for atom in jaxpr.outvars]


def _part(body: jax.core.ClosedJaxpr, values: Sequence[Any], by_context: bool) -> Any:
    """What a part of a program gives, and the lowest of its indices: 0 where it has none."""
    found: list[jax.Array] = []
    out = _walk(body.jaxpr, body.consts, [(value, by_context) for value in values], found)
    return [value for value, _ in out], jnp.min(jnp.stack([jnp.int64(0), *found]))


def _in_scan(equation: jax.core.JaxprEqn, values: Sequence[Any], by_context: bool) -> Any:
    """Its steps may be rows, each with an index of its own (`jax.lax.map`)."""
    params, body = equation.params, equation.params["jaxpr"]
    n_carry = as_inside(equation.outvars, body.jaxpr.outvars)
    last = as_inside(equation.invars, body.jaxpr.invars)
    first = last - n_carry

    def step(carry: Any, row: Any) -> Any:
        out, lowest = _part(body, [*values[:first], *carry, *row], by_context)
        return out[:n_carry], (out[n_carry:], lowest)

    carry, (stacked, lowest) = jax.lax.scan(
        step,
        list(values[first:last]),
        list(values[last:]),
        length=params["length"],
        reverse=params["reverse"],
    )
    return [jnp.min(lowest)], [*carry, *stacked]


def _in_cond(equation: jax.core.JaxprEqn, values: Sequence[Any], by_context: bool) -> Any:
    index, *operands = values
    cases = [
        lambda *given, body=body: _part(body, given, by_context)
        for body in equation.params["branches"]
    ]
    out, lowest = jax.lax.switch(index, cases, *operands)
    return [lowest], out


def _in_while(equation: jax.core.JaxprEqn, values: Sequence[Any], by_context: bool) -> Any:
    """However many steps it takes."""
    params = equation.params
    first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def goes_on(state: Any) -> Any:
        return _part(params["cond_jaxpr"], [*values[:first], *state[0]], by_context)[0][0]

    def step(state: Any) -> Any:
        out, lowest = _part(params["body_jaxpr"], [*values[first:last], *state[0]], by_context)
        return out, jnp.minimum(state[1], lowest)

    carry, lowest = jax.lax.while_loop(goes_on, step, (list(values[last:]), jnp.int64(0)))
    return [lowest], carry


_INSIDE = {"scan": _in_scan, "cond": _in_cond, "while": _in_while}


def same_operations(one: Written, other: Written, n: int, rows: int) -> bool:
    """Whether a function's operations at arguments of n rows are those at `rows` of them, but for
    the rows' number. Nothing is computed. False may also mean that it cannot be told.
    """

    def alike(u: str, v: str) -> bool:
        if u == v or not (u.isdigit() and v.isdigit()):
            return u == v
        return int(u) * rows == int(v) * n or int(v) - int(u) == rows - n

    def equal(u: jax.Array, v: jax.Array) -> bool:
        first = v[: len(u)] if np.ndim(u) and np.ndim(u) == np.ndim(v) else v
        return np.array_equal(u, first, equal_nan=True)

    return (
        len(one.words) == len(other.words)
        and all(map(alike, one.words, other.words))
        and len(one.constants) == len(other.constants)
        and all(map(equal, one.constants, other.constants))
    )


@dataclass
class Written:
    """A function's operations as words and constants. JAX's own text of them says the same; to set
    it in lines takes as long as to trace the function.
    """

    words: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    places: dict[Var, str] = field(default_factory=dict)  # in the order in which values appear


_WORDS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|\w+|[^\w\s]")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function, which is another in every trace


def written(function: Callable[..., Any], *args: np.ndarray) -> Written:
    """The operations of `function(*args)`."""
    found = Written()
    write(jax.make_jaxpr(function)(*args), found)
    return found


@lru_cache(4096)  # a few words make up most of a program
def words(text: str) -> list[str]:
    return _WORDS.findall(_ADDRESS.sub("", text))


@singledispatch
def write(part: object, into: Written) -> None:
    """Add what an operation is given, beside values, to what is written."""
    into.words += words(str(part))


@write.register(tuple)
@write.register(list)
def _(part: Sequence[Any], into: Written) -> None:
    into.words.append(str(len(part)))
    for one in part:
        write(one, into)


@write.register
def _(part: Var, into: Written) -> None:
    into.words.append(into.places.setdefault(part, f"v{len(into.places)}"))
    into.words += words(part.aval.str_short())


@write.register
def _(part: ClosedJaxpr, into: Written) -> None:
    into.constants += part.consts
    write(part.jaxpr, into)


@write.register
def _(part: Jaxpr, into: Written) -> None:
    write([*part.constvars, *part.invars], into)
    for equation in part.eqns:
        into.words.append(equation.primitive.name)
        for name in sorted(equation.params):
            into.words.append(name)
            write(equation.params[name], into)
        write(equation.invars, into)
        write(equation.outvars, into)
    write(part.outvars, into)


def _with_jacobian(function: Callable[..., Any]) -> Callable[..., Any]:
    """(x, a) -> the function and its Jacobian in x. Backwards: a context has more columns than a
    predictor has parts.
    """

    def both(x: jax.Array, a: jax.Array) -> Any:
        return function(x, a), jax.jacrev(function)(x, a)

    return both


def slopes(program: JaxKernels, parts: Parts, everything: Callable[..., Any]) -> Slopes:
    """From the program as it is compiled already, or from its Jacobian where that is less work."""

    def row(x: jax.Array, a: jax.Array) -> Any:
        return jnp.concatenate([jnp.ravel(part) for part in everything(x[None], a[None])])

    def found(n_actions: int, dx: int) -> tuple[np.ndarray, np.ndarray] | None:
        if n_actions * (dx + 1) <= FEW_ROWS:
            return unit_slopes(parts)(n_actions, dx)
        if n_actions * (program.dim + 2) * dx > MOST_CELLS:
            return None
        each = [
            program.call("feature_table", _with_jacobian(row), np.zeros(dx), np.array(a))
            for a in range(n_actions)
        ]
        return np.array([base for base, _ in each]), np.array([slope for _, slope in each])

    return found
