"""The proof of `gedppl.programs.affine` for torch: the function's graph of basic operations is
read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from gedppl.programs.affine import Level, combine

# aten operation -> the name of its rule in `gedppl.programs.affine`
_RULES = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "permute", "t"),
        "move",
    ),
    **dict.fromkeys(
        ("transpose", "slice", "select", "clone", "alias", "split", "unbind", "numpy_T"), "move"
    ),
    **dict.fromkeys(("add", "sub", "rsub", "neg", "sum", "cat", "stack", "cumsum"), "sum"),
    **dict.fromkeys(
        ("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter", "index_put"),
        "sum",
    ),
    **dict.fromkeys(("index", "index_select", "gather"), "index"),
    **dict.fromkeys(("mm", "mv", "bmm", "dot"), "contract"),
    **{"where": "select", "mul": "multiply", "div": "divide", "exp": "exp", "log": "log"},
}
# of their operand
_SHAPE_ONLY = ("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty")


def levels(function: Callable[..., Any], theta: torch.Tensor, *rows: torch.Tensor) -> list[Level]:
    """How each tensor that `function(theta, *rows)` returns depends on theta (D,), whatever the
    rows hold.

    A write through a view changes a value that the graph has named already, so writes and views are
    first turned into operations that return what they made.
    """
    graph = make_fx(functionalize(function, remove="mutations_and_views"))(theta, *rows).graph
    known: dict[Any, Level] = {}
    inputs = iter([Level.AFFINE] + [Level.FREE] * len(rows))
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = next(inputs)
        elif node.op == "get_attr":
            known[node] = Level.FREE
        elif node.op == "call_function":
            known[node] = _step(node, known)
        elif node.op == "output":
            return [known[part] for part in node.args[0]]
    raise AssertionError("a graph without output")


def _step(node: torch.fx.Node, known: dict[Any, Level]) -> Level:
    operands = [
        known[part] if isinstance(part, torch.fx.Node) else Level.FREE for part in _flat(node.args)
    ]
    operands += [
        known[part] for part in _flat(node.kwargs.values()) if isinstance(part, torch.fx.Node)
    ]
    name = (
        getattr(node.target, "__name__", str(node.target)).partition(".")[0].removesuffix("_copy")
    )
    if name == "getitem":
        return operands[0]
    if name in _SHAPE_ONLY:
        return Level.FREE
    # what is written replaces what was there, in the type of what was there
    if name in ("copy", "fill"):
        return operands[1] if _holds(node.args[0], node.args[1]) else combine(None, operands)
    if name == "addmm":  # bias + left @ right
        return (
            combine("sum", [operands[0], combine("contract", operands[1:3])])
            if len(operands) == 3
            else Level.OTHER
        )
    if name == "reciprocal":
        return combine("divide", [Level.FREE, operands[0]])
    if name == "div" and node.kwargs.get("rounding_mode") is not None:
        return Level.OTHER
    return combine(_RULES.get(name), operands or [Level.FREE])


def _holds(target: torch.fx.Node, source: torch.fx.Node) -> bool:
    """Whether writing the source into the target's type rounds nothing."""
    kinds = [node.meta["val"].dtype for node in (target, source) if isinstance(node, torch.fx.Node)]
    return kinds[0].is_floating_point and all(
        kind.itemsize <= kinds[0].itemsize for kind in kinds if kind.is_floating_point
    )


def _flat(args: Any) -> list[Any]:
    return [
        leaf
        for part in args
        for leaf in (_flat(part) if isinstance(part, list | tuple) else [part])
    ]
