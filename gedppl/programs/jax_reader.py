"""One row of a JAX program as the steps that `gedppl.programs.forms` reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from gedppl.numerics.arrays import namespace_of
from gedppl.programs.links import Table
from gedppl.programs.row_reading import recognised
from gedppl.programs.values import Lister, Listing

LONGEST_SCAN = 64  # steps that are written out one after another

_MOVES = (
    "reshape",
    "broadcast_in_dim",
    "squeeze",
    "transpose",
    "slice",
    "rev",
    "copy",
    "copy_p",
    "expand_dims",
    "split",
)
_LINEAR = ("add", "sub", "neg", "add_any", "reduce_sum", "concatenate", "stack", "pad", "cumsum")
_RULES = {
    **dict.fromkeys((*_MOVES, "gather", "dynamic_slice", "select_n"), "move"),
    **dict.fromkeys((*_LINEAR, "scatter", "scatter-add", "dynamic_update_slice"), "linear"),
    **{"mul": "multiply", "dot_general": "contract", "div": "divide", "exp": "exp", "log": "log"},
    **dict.fromkeys(("integer_pow", "sqrt", "rsqrt", "square"), "power"),
}
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2.0}
_ELEMENTWISE = frozenset(
    (
        *(
            "add",
            "sub",
            "neg",
            "mul",
            "div",
            "exp",
            "log",
            "log1p",
            "expm1",
            "logistic",
            "tanh",
            "sqrt",
            "rsqrt",
            "square",
        ),
        *(
            "integer_pow",
            "pow",
            "abs",
            "max",
            "min",
            "erf",
            "erfc",
            "erf_inv",
            "sin",
            "cos",
            "sign",
            "lgamma",
            "digamma",
        ),
        *(
            "select_n",
            "clamp",
            "gt",
            "lt",
            "ge",
            "le",
            "eq",
            "ne",
            "and",
            "or",
            "not",
            "cbrt",
            "exp2",
            "is_finite",
        ),
    )
)
CALLS = (
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
)
STATED = ("custom_jvp_call", "custom_vjp_call")
_OURS = str(Path(__file__).resolve().parent)


class JaxArithmetic:
    """See `gedppl.programs.values.Arithmetic`."""

    def over(self, run: Callable[..., Sequence[Any]], *stacked: jax.Array) -> Sequence[Any]:
        found: Sequence[Any] = jax.vmap(run)(*stacked)
        return found

    def constant(self, run: Callable[..., Sequence[Any]], *values: jax.Array) -> Sequence[Any]:
        with jax.ensure_compile_time_eval():
            return run(*values)

    def zeros(self, like: jax.Array) -> Any:
        return jnp.zeros(jnp.shape(like), jnp.result_type(like))

    def identity(self, shape: tuple[int, ...]) -> Any:
        size = int(np.prod(shape))
        return np.eye(size).reshape(size, *shape)

    def broadcast(self, value: jax.Array, shape: tuple[int, ...]) -> Any:
        return jnp.broadcast_to(value, shape)

    def log(self, value: jax.Array) -> Any:
        return jnp.log(jnp.asarray(value, float))

    def exp(self, value: jax.Array) -> jax.Array:
        return jnp.exp(value)

    def logit(self, value: jax.Array) -> Any:
        return jnp.log(value) - jnp.log1p(-value)

    def total(self, terms: jax.Array, weights: jax.Array) -> Any:
        return jnp.tensordot(jnp.ravel(weights), terms, axes=1)

    def contracted(self, terms: jax.Array, matrix: np.ndarray) -> Any:
        return terms @ matrix


def listing(function: Callable[..., Any], *args: jax.Array) -> Listing:
    """The steps of `function(*args)`, without those that its results do not need; its arguments
    are the listing's inputs.
    """
    closed = jax.make_jaxpr(function)(*args)
    jaxpr, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    assert all(used)
    writer = JaxLister()
    inputs = [writer.new() for _ in jaxpr.invars]
    outputs = writer.inline(jaxpr, closed.consts, inputs)
    steps, stated = tuple(writer.steps), frozenset(writer.stated)
    return Listing(steps, writer.constants, tuple(inputs), tuple(outputs), stated)


class JaxLister(Lister):
    """A jaxpr's equations as steps. Calls are written out in place, with custom derivatives as what
    they compute; so are short scans, and all branches of a `cond` before a choice among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.call = ""  # the line of the outermost call that is being written out
        self.stated: set[int] = set()  # see `Listing`

    def inline(
        self, jaxpr: jax.core.Jaxpr, consts: Sequence[Any], inputs: Sequence[int]
    ) -> list[int]:
        known = {var: self.constant(value) for var, value in zip(jaxpr.constvars, consts)}
        known.update(zip(jaxpr.invars, inputs))

        def key(atom: jax.core.Atom) -> int:
            return (
                self.constant(np.asarray(atom.val, atom.aval.dtype))
                if hasattr(atom, "val")
                else known[atom]
            )

        for equation in jaxpr.eqns:
            known.update(
                zip(equation.outvars, self.write(equation, [key(atom) for atom in equation.invars]))
            )
        return [key(atom) for atom in jaxpr.outvars]

    def write(self, equation: jax.core.JaxprEqn, inputs: list[int]) -> list[int]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            before, self.call = self.call, self._line(equation)
            found = self.inline(*called(equation), inputs)
            self.call = before
            self.stated.update(found if name in STATED else ())
            return found
        if name == "scan" and params["length"] <= LONGEST_SCAN:
            return self._scan(equation, inputs)
        if name == "cond":
            return self._cond(equation, inputs)
        return self._plain(equation, inputs)

    def _line(self, equation: jax.core.JaxprEqn) -> str:
        """Inside a call that of the call: JAX keeps what a function was traced to, with the lines
        of whoever called it first.
        """
        return self.call or _line(equation)

    def _plain(self, equation: jax.core.JaxprEqn, inputs: list[int]) -> list[int]:
        primitive, params, name = equation.primitive, equation.params, equation.primitive.name
        kinds = [var.aval.dtype for var in equation.invars]

        def run(*values: jax.Array) -> Sequence[Any]:
            found = primitive.bind(*map(_narrowed, values, kinds), **params)
            return found if primitive.multiple_results else (found,)

        rule, needs = _RULES.get(name, ""), _needs(name, len(inputs))
        if name == "convert_element_type":
            before, after = equation.invars[0], equation.outvars[0]
            exact = _is_real(before) and _is_real(after)
            exact = exact and after.aval.dtype.itemsize >= before.aval.dtype.itemsize
            rule = "move" if exact else ""
        real = [_is_real(var) for var in equation.outvars]
        full = f"{name}[{params['y']}]" if name == "integer_pow" else name
        power = float(params["y"]) if name == "integer_pow" else _POWERS.get(name, 1.0)
        return self.add(
            full,
            run,
            inputs,
            real,
            rule=rule,
            needs=needs,
            elementwise=name in _ELEMENTWISE,
            power=power,
            line=self._line(equation),
        )

    def _cond(self, equation: jax.core.JaxprEqn, inputs: list[int]) -> list[int]:
        """All branches, then a choice among their results."""
        branches = [
            self.inline(branch.jaxpr, branch.consts, inputs[1:])
            for branch in equation.params["branches"]
        ]
        line, found = self._line(equation), []

        def choose(index: jax.Array, *cases: jax.Array) -> Sequence[Any]:
            at = jnp.clip(jnp.asarray(index).astype(jnp.int32), 0, len(cases) - 1)
            return (
                jnp.stack(
                    [jnp.where(at == i, case, jnp.zeros_like(case)) for i, case in enumerate(cases)]
                ).sum(0),
            )

        for var, cases in zip(equation.outvars, zip(*branches)):
            real = _is_real(var)
            found += self.add(
                "cond",
                choose,
                [inputs[0], *cases],
                [real],
                rule="linear" if real else "",
                needs=(0,),
                line=line,
            )
        return found

    def _scan(self, equation: jax.core.JaxprEqn, inputs: list[int]) -> list[int]:
        """A short scan, written out.

        What is carried and what is sliced is told by the shapes, because the names of a scan's
        parameters are JAX's own: only what is sliced has an axis more outside than in the body.
        """
        params, line = equation.params, self._line(equation)
        body, length = params["jaxpr"], params["length"]
        n_carry = as_inside(equation.outvars, body.jaxpr.outvars)
        last = as_inside(equation.invars, body.jaxpr.invars)
        first = last - n_carry
        consts, carry, slices = inputs[:first], inputs[first:last], inputs[last:]
        rows: list[list[int]] = [[] for _ in range(length)]
        kinds = [_is_real(var) for var in body.jaxpr.invars[last:]]
        for t in range(length)[:: -1 if params["reverse"] else 1]:
            now = [
                self.add(
                    "slice", lambda value, t=t: (value[t],), [key], [real], rule="move", line=line
                )[0]
                for key, real in zip(slices, kinds)
            ]
            out = self.inline(body.jaxpr, body.consts, [*consts, *carry, *now])
            carry, rows[t] = out[:n_carry], out[n_carry:]
        stacked = []
        for var, column in zip(equation.outvars[n_carry:], zip(*rows)):
            real = _is_real(var)
            stacked += self.add(
                "stack",
                lambda *parts: (jnp.stack(parts),),
                column,
                [real],
                rule="linear" if real else "",
                line=line,
            )
        return [*carry, *stacked]


def called(equation: jax.core.JaxprEqn) -> tuple[jax.core.Jaxpr, Sequence[Any]]:
    """The function that a call runs, and its constants."""
    fields = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    inner = next(equation.params[field] for field in fields if field in equation.params)
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


def _narrowed(value: jax.Array, kind: np.dtype[Any]) -> jax.Array:
    """A real number as the program holds it: forms are float64 where it computes in float32."""
    narrow = jnp.issubdtype(kind, jnp.floating) and value.dtype != kind
    return value.astype(kind) if narrow else value


def _is_real(atom: jax.core.Atom) -> bool:
    """Whether it holds floating point numbers; the type of a random key has no kind."""
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.floating))


def as_inside(outside: Sequence[jax.core.Atom], inside: Sequence[jax.core.Atom]) -> int:
    """How many of a scan's inputs or outputs have the shape that its body sees."""
    return sum(out.aval.shape == body.aval.shape for out, body in zip(outside, inside))


def _needs(name: str, n_inputs: int) -> tuple[int, ...]:
    """Inputs that say where, not what."""
    if name in ("gather", "dynamic_slice"):
        return tuple(range(1, n_inputs))
    if name == "dynamic_update_slice":
        return tuple(range(2, n_inputs))
    return {"select_n": (0,), "scatter": (1,), "scatter-add": (1,)}.get(name, ())


def _line(equation: jax.core.JaxprEqn) -> str:
    """The nearest line that belongs to no package."""
    trace = equation.source_info.traceback
    for frame in [] if trace is None else trace.frames:
        if "site-packages" not in frame.file_name and not frame.file_name.startswith(
            (_OURS, "<", os.path.dirname(os.__file__))
        ):
            return f"line {frame.line_num} of {Path(frame.file_name).name}"
    return ""


# the inverse links that are known by sight --------------------------------------------------------

PACKAGED: dict[str, list[Callable[[Any], Any]]] = {
    "logit": [
        jax.nn.sigmoid,
        lambda e: 1 - jax.nn.sigmoid(-e),
        lambda e: jnp.reciprocal(1 + jnp.exp(-e)),
    ],
    "probit": [jax.scipy.special.ndtr, jax.scipy.stats.norm.cdf],
    "softplus": [
        jax.nn.softplus,
        lambda e: jnp.logaddexp(e, 0.0),
        lambda e: jnp.logaddexp(0.0, e),
    ],
}


@cache
def links() -> Table:
    """The inverse links that are recognised."""
    with jax.enable_x64(True):
        return recognised(
            JaxArithmetic(), namespace_of("jax"), PACKAGED, listing, lambda every: jax.jit(every)()
        )
