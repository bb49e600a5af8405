"""The proof of `gedppl.programs.affine` for torch: the function's graph of basic operations is
read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import functionalize, jacrev
from torch.fx.experimental.proxy_tensor import make_fx

from gedppl.programs.affine import (
    FAMILIES,
    ORDERED,
    Level,
    believed,
    combine,
    is_affine_by_context,
    may_be_affine,
    ordered_from,
    predictor_from,
    tabulated,
    unit_slopes,
)
from gedppl.programs.contract import LinearPredictor, OrderedPredictor
from gedppl.programs.identity import settings
from gedppl.programs.lowering import package_class, strip

if TYPE_CHECKING:
    from gedppl.programs.torch_kernels import TorchKernels

ROUNDING = 1e-9  # share of the numbers added up

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


def linear_predictor(program: TorchKernels) -> LinearPredictor | None:
    """The class as a one-predictor family, if that can be proved; None otherwise."""
    if not may_be_affine(program):
        return None
    zero = torch.zeros(program.dim, dtype=torch.float64)
    x0, a0 = torch.as_tensor(program.x), torch.as_tensor(program.a)
    observed = strip(program.run(zero, x0, a0).observed)
    name = package_class(observed)
    # torch keeps what it was given in the instance and derives the other lazily
    if name in ("Bernoulli", "Binomial"):
        name += "Logits" if "logits" in vars(observed) else "Probs"
    known = FAMILIES.get(name)
    if known is None:
        return None
    family, link, argument, others = known

    def arguments(theta: torch.Tensor, x: torch.Tensor, a: torch.Tensor) -> list[Any]:
        observed = strip(program.run(theta, x, a).observed)
        return [
            torch.as_tensor(getattr(observed, name), dtype=torch.float64).expand(a.shape)
            for name in (argument, *others)
        ]

    needed = Level.EXP if link == "log" else Level.AFFINE
    try:
        found = levels(arguments, zero, x0, a0)
    except RuntimeError:  # the program looks at values while it runs, so it has no fixed graph
        return None
    if found[0] is not needed or any(level is not Level.FREE for level in found[1:]):
        return None

    def eta(theta: torch.Tensor, x: torch.Tensor, a: torch.Tensor) -> Any:
        value = arguments(theta, x, a)[0]
        return torch.log(value) if link == "log" else value

    def everything(x: torch.Tensor, a: torch.Tensor) -> list[Any]:
        return [jacrev(eta)(zero, x, a), eta(zero, x, a), *arguments(zero, x, a)[1:]]

    def parts(x: torch.Tensor, a: torch.Tensor) -> list[np.ndarray]:
        found = everything(
            torch.as_tensor(np.array(x, float)), torch.as_tensor(np.array(a, np.int64))
        )
        return [value.detach().numpy().copy() for value in found]

    by_context = levels(lambda x, theta, a: arguments(theta, x, a), x0, zero, a0)
    if not _slopes_hold(eta, parts, program):
        return None
    fast = tabulated(parts, unit_slopes(parts), program.dim)
    known_by_context = is_affine_by_context(by_context, needed)
    return believed(
        program, predictor_from(family, link, others, fast if known_by_context else parts)
    )


def _slopes_hold(eta: Any, parts: Any, program: TorchKernels) -> bool:
    """Whether what derivatives say of a function that is affine in theta is what it does: values
    that left the graph (`.data`, `torch.no_grad`) have none, and move it all the same.
    """
    slopes, offset = parts(program.x, program.a)[:2]
    rows = torch.as_tensor(np.array(program.x, float)), torch.as_tensor(np.array(program.a))
    for theta in settings(program.dim):
        value = eta(torch.as_tensor(theta), *rows).detach().numpy()
        size = np.abs(slopes) @ np.abs(theta) + np.abs(offset) + np.abs(value)
        if np.any(np.abs(slopes @ theta + offset - value) > ROUNDING * size):
            return False
    return True


def ordered_predictor(program: TorchKernels) -> OrderedPredictor | None:
    """The class as ordered outcomes between affine edges, if that can be proved; None otherwise."""
    if not may_be_affine(program):
        return None
    zero = torch.zeros(program.dim, dtype=torch.float64)
    x0, a0 = torch.as_tensor(program.x), torch.as_tensor(program.a)
    if package_class(strip(program.run(zero, x0, a0).observed)) != ORDERED or not program.packaged:
        return None

    def edges(theta: torch.Tensor, x: torch.Tensor, a: torch.Tensor) -> Any:
        observed = strip(program.run(theta, x, a).observed)
        cut = observed.cutpoints - observed.predictor.expand(a.shape).unsqueeze(-1)
        return cut.expand(len(a), cut.shape[-1]).to(torch.float64)

    try:
        found = levels(lambda *args: [edges(*args)], zero, x0, a0)
    except RuntimeError:  # the program looks at values while it runs, so it has no fixed graph
        return None
    if found[0] is not Level.AFFINE:
        return None

    def parts(x: torch.Tensor, a: torch.Tensor) -> list[np.ndarray]:
        x, a = torch.as_tensor(np.array(x, float)), torch.as_tensor(np.array(a, np.int64))
        return [
            jacrev(edges)(zero, x, a).detach().numpy(),
            edges(zero, x, a).detach().numpy().copy(),
        ]

    return ordered_from(parts) if _slopes_hold(edges, parts, program) else None
