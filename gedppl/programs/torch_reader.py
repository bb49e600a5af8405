"""One row of a torch program as the steps that `gedppl.programs.forms` reads.

The graph is made functional first: a write through a view changes a value that the graph has named
already, so writes and views become operations that return what they made.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import functionalize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta, set_stack_trace
from torch.overrides import TorchFunctionMode

from gedppl.numerics.arrays import namespace_of
from gedppl.programs.links import Table
from gedppl.programs.row_reading import recognised
from gedppl.programs.values import Lister, Listing

_MOVES = (
    *(
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "unsqueeze",
        "squeeze",
        "permute",
        "t",
        "transpose",
        "slice",
        "select",
        "clone",
    ),
    *(
        "alias",
        "split",
        "unbind",
        "numpy_T",
        "detach",
        "lift_fresh",
        "contiguous",
        "diagonal",
        "split_with_sizes",
        "chunk",
        "flip",
    ),
)
_LINEAR = ("add", "sub", "rsub", "neg", "sum", "cat", "stack", "cumsum")
_SCATTERS = ("select_scatter", "slice_scatter", "diagonal_scatter")
# a number among these operations' arguments is an operand like any other
_WITH_NUMBERS = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "where",
    "gt",
    "lt",
    "ge",
    "le",
    "eq",
    "ne",
    "maximum",
    "minimum",
)
_RULES = {
    **dict.fromkeys((*_MOVES, "index", "index_select", "gather", "embedding", "where"), "move"),
    **dict.fromkeys((*_LINEAR, *_SCATTERS, "index_put"), "linear"),
    **dict.fromkeys(("mm", "mv", "bmm", "dot"), "contract"),
    **{
        "mul": "multiply",
        "div": "divide",
        "exp": "exp",
        "log": "log",
        "sqrt": "power",
        "rsqrt": "power",
        "square": "power",
    },
}
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2.0, "reciprocal": -1.0}
_ELEMENTWISE = frozenset(
    (
        *(
            "add",
            "sub",
            "rsub",
            "neg",
            "mul",
            "div",
            "exp",
            "log",
            "log1p",
            "expm1",
            "sigmoid",
            "tanh",
            "sqrt",
            "rsqrt",
            "square",
        ),
        *(
            "pow",
            "abs",
            "maximum",
            "minimum",
            "erf",
            "erfc",
            "sin",
            "cos",
            "sign",
            "reciprocal",
            "where",
            "clamp",
            "clamp_min",
        ),
        *(
            "clamp_max",
            "gt",
            "lt",
            "ge",
            "le",
            "eq",
            "ne",
            "logical_and",
            "logical_or",
            "logical_not",
            "softplus",
            "exp2",
        ),
        *("log_sigmoid_forward", "special_ndtr"),
    )
)
_SHAPE_ONLY = (
    "zeros_like",
    "ones_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_empty",
    "full_like",
    "new_full",
)


_OURS = str(Path(__file__).resolve().parents[1])


class TorchArithmetic:
    """See `gedppl.programs.values.Arithmetic`."""

    def over(self, run: Callable[..., Sequence[Any]], *stacked: torch.Tensor) -> Sequence[Any]:
        found: Sequence[Any] = vmap(lambda *columns: tuple(run(*columns)))(*stacked)
        return found

    def constant(self, run: Callable[..., Sequence[Any]], *values: torch.Tensor) -> Sequence[Any]:
        return run(*values)

    def zeros(self, like: torch.Tensor) -> Any:
        return torch.zeros_like(like)

    def identity(self, shape: tuple[int, ...]) -> Any:
        size = int(np.prod(shape))
        return torch.eye(size, dtype=torch.float64).reshape(size, *shape)

    def broadcast(self, value: torch.Tensor, shape: tuple[int, ...]) -> Any:
        return value.expand(shape)

    def log(self, value: torch.Tensor) -> Any:
        return torch.log(value.to(torch.float64))

    def exp(self, value: torch.Tensor) -> Any:
        return torch.exp(value)

    def logit(self, value: torch.Tensor) -> Any:
        return torch.log(value) - torch.log1p(-value)

    def total(self, terms: torch.Tensor, weights: torch.Tensor) -> Any:
        dtype = torch.promote_types(terms.dtype, weights.dtype)  # w.float() may be on the way
        return torch.tensordot(weights.reshape(-1).to(dtype), terms.to(dtype), dims=1)

    def contracted(self, terms: torch.Tensor, matrix: np.ndarray) -> Any:
        return terms.to(torch.float64) @ torch.as_tensor(matrix)


def listing(function: Callable[..., Sequence[Any]], *args: torch.Tensor) -> Listing:
    """The steps of `function(*args)`, without those that its results do not need; its arguments are
    the listing's inputs.

    Raises RuntimeError where the program looks at values while it runs, so that it has no fixed
    graph.
    """

    def placed(*given: torch.Tensor) -> Sequence[Any]:
        with _Places():
            return function(*given)

    with preserve_node_meta():
        module = make_fx(functionalize(placed, remove="mutations_and_views"))(*args)
    module.graph.eliminate_dead_code()
    return TorchLister(module).listing()


class TorchLister(Lister):
    """A graph's nodes as steps. Every tensor among a node's arguments is an operand, and so are
    numbers where a link may be written with them (`_WITH_NUMBERS`); all other arguments stay in the
    step's `run`.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.module = module
        self.keys: dict[Any, int] = {}
        self.several: dict[Any, list[int]] = {}  # a node with several results

    def listing(self) -> Listing:
        inputs: list[int] = []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.keys[node] = self.new()
                inputs.append(self.keys[node])
            elif node.op == "get_attr":
                self.keys[node] = self.constant(getattr(self.module, node.target))
            elif node.op == "call_function":
                self._write(node)
            elif node.op == "output":
                outputs = [self.keys[part] for part in node.args[0]]
                return Listing(tuple(self.steps), self.constants, tuple(inputs), tuple(outputs))
        raise AssertionError("a graph without output")

    def _write(self, node: torch.fx.Node) -> None:
        name = (
            getattr(node.target, "__name__", str(node.target))
            .partition(".")[0]
            .removesuffix("_copy")
        )
        if name == "getitem":
            self.keys[node] = self.several[node.args[0]][node.args[1]]
            return
        if name == "addmm" and not node.kwargs:
            self._add_product(node)
            return
        if name in ("copy", "fill"):
            self._overwrite(node)
            return
        target, args, kwargs = _viewing(node.target, name), node.args, node.kwargs
        if name in _WITH_NUMBERS:
            args = tuple(
                self._number(part) if isinstance(part, int | float) else part for part in args
            )
            target = target.overloadpacket
        # each occurrence is an operand of its own: x * x is no multiple of x
        nodes: list[Any] = [
            part for part in _leaves((args, kwargs)) if isinstance(part, torch.fx.Node | _Number)
        ]
        if name in _SHAPE_ONLY:  # of its operand the result has the shape alone
            like = iter(
                [
                    torch.zeros(part.meta["val"].shape, dtype=part.meta["val"].dtype)
                    for part in nodes
                ]
            )
            self.keys[node] = self.constant(target(*_filled(args, like), **_filled(kwargs, like)))
            return

        metas = node.meta["val"]
        several = isinstance(metas, tuple | list)

        def run(*values: torch.Tensor) -> Sequence[Any]:
            given = iter(values)
            found = target(*_filled(args, given), **_filled(kwargs, given))
            return tuple(found) if several else (found,)

        real = tuple(meta.dtype.is_floating_point for meta in (metas if several else (metas,)))
        rule, needs = self._rule(name, node, nodes)
        numbers = (
            []
            if name in _WITH_NUMBERS
            else [part for part in _leaves((args, kwargs)) if isinstance(part, int | float)]
        )
        power = _POWERS.get(name, 1.0)
        if name == "pow" and len(nodes) == 1 and numbers:
            rule, power = "power", float(numbers[0])
        elementwise = name in _ELEMENTWISE and not (name in _WITH_NUMBERS and kwargs)
        full = f"{name}{numbers}" if numbers and elementwise else name
        outputs = self.add(
            full,
            run,
            [self.keys[part] for part in nodes],
            real,
            rule=rule,
            needs=needs,
            elementwise=elementwise,
            power=power,
            line=_line(node),
        )
        if several:
            self.several[node] = outputs
        else:
            self.keys[node] = outputs[0]

    def _number(self, value: float) -> _Number:
        number = _Number(
            torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        )
        self.keys[number] = self.constant(number.value)
        return number

    def _overwrite(self, node: torch.fx.Node) -> None:
        """What is written replaces what was there, in the shape and type of what was there."""
        source = node.args[1]
        if isinstance(source, int | float):
            source = self._number(source)
        old, new = node.args[0].meta["val"], source.meta["val"]
        shape, dtype = tuple(old.shape), old.dtype
        (self.keys[node],) = self.add(
            "copy",
            lambda v: (v.expand(shape).to(dtype),),
            [self.keys[source]],
            [dtype.is_floating_point],
            rule="move" if _keeps(new.dtype, dtype) else "",
            line=_line(node),
        )

    def _add_product(self, node: torch.fx.Node) -> None:
        """bias + left @ right, in two steps."""
        bias, left, right = (self.keys[part] for part in node.args)
        line = _line(node)
        (product,) = self.add(
            "mm", lambda u, v: (u @ v,), [left, right], [True], rule="contract", line=line
        )
        (self.keys[node],) = self.add(
            "add", lambda u, v: (u + v,), [bias, product], [True], rule="linear", line=line
        )

    @staticmethod
    def _rule(name: str, node: torch.fx.Node, used: Sequence[Any]) -> tuple[str, tuple[int, ...]]:
        """The rule and the inputs that say where, not what."""
        if name in ("_to_copy", "to") and len(used) == 1:
            kept = _keeps(used[0].meta["val"].dtype, node.meta["val"].dtype)
            return ("move" if kept else ""), ()
        if name == "reciprocal":
            return "power", ()
        if name == "div" and node.kwargs.get("rounding_mode") is not None:
            return "", ()
        if name == "where":
            return "move", (0,)
        if name in ("index", "index_select", "gather", "embedding"):
            return "move", tuple(range(1, len(used)))
        if name == "index_put":
            return "linear", tuple(range(1, len(used) - 1))
        return _RULES.get(name, ""), ()


def _keeps(before: torch.dtype, after: torch.dtype) -> bool:
    """Whether numbers of one type are the same numbers in another."""
    real = before.is_floating_point and after.is_floating_point
    return bool(real and after.itemsize >= before.itemsize)


def _viewing(target: torch._ops.OpOverload, name: str) -> Any:
    """The view itself in place of its copy: nothing is written to any more, and views can be
    vectorised.
    """
    if not getattr(target, "__name__", "").partition(".")[0].endswith("_copy") or name not in (
        *_MOVES,
        "expand",
    ):
        return target
    return getattr(getattr(torch.ops.aten, name), target._overloadname)


class _Number:
    """A number among the operands."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.meta = {"val": value}  # as a node has it


@singledispatch
def _leaves(part: Any) -> list[Any]:
    return [part]


@_leaves.register(dict)
def _(part: dict[str, Any]) -> list[Any]:
    return [leaf for one in part.values() for leaf in _leaves(one)]


@_leaves.register(list)
@_leaves.register(tuple)
def _(part: Sequence[Any]) -> list[Any]:
    return [leaf for one in part for leaf in _leaves(one)]


@singledispatch
def _filled(part: Any, given: Iterator[Any]) -> Any:
    """The arguments with the next of `given` in the place of every operand, in the order of
    `_leaves`.
    """
    return part


@_filled.register(torch.fx.Node)
@_filled.register(_Number)
def _(part: torch.fx.Node | _Number, given: Iterator[Any]) -> Any:
    return next(given)


@_filled.register(dict)
def _(part: dict[str, Any], given: Iterator[Any]) -> Any:
    return {key: _filled(one, given) for key, one in part.items()}


@_filled.register(list)
@_filled.register(tuple)
def _(part: Any, given: Iterator[Any]) -> Any:
    return type(part)(_filled(one, given) for one in part)


def _line(node: torch.fx.Node) -> str:
    return str(node.meta.get("stack_trace") or "")


class _Places(TorchFunctionMode):
    """Notes beside every operation the innermost line that belongs to no package; torch's own
    record leaves out what is not a module's `forward`.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        frame = inspect.currentframe()
        while frame is not None and _is_packaged(frame.f_code.co_filename):
            ours = frame.f_code is listing.__code__  # farther out is who asked for the listing
            frame = None if ours else frame.f_back
        place = frame and f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
        set_stack_trace([place] if place else [])
        return func(*args, **(kwargs or {}))


def _is_packaged(name: str) -> bool:
    return "site-packages" in name or name.startswith((_OURS, "<", os.path.dirname(os.__file__)))


# the inverse links that are known by sight --------------------------------------------------------

PACKAGED: dict[str, list[Callable[[Any], Any]]] = {
    "logit": [torch.sigmoid, lambda e: 1 - torch.sigmoid(-e)],
    "probit": [
        lambda e: torch.distributions.Normal(
            torch.tensor(0.0), torch.tensor(1.0), validate_args=False
        ).cdf(e),
        torch.special.ndtr,
    ],
    "softplus": [torch.nn.functional.softplus],
}


@cache
def links() -> Table:
    """The inverse links that are recognised."""
    return recognised(
        TorchArithmetic(), namespace_of("torch"), PACKAGED, listing, lambda every: every()
    )
