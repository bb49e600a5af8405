"""Functions of a Pyro program recorded as graphs of torch operations.

`torch.fx` records the operations of a function once; the graph repeats them without Python's way
through the program (about 20 times as fast). A graph is used only if it says what the program says
at other parameters too; a program that decides by its values is run itself.

Axis letters: P settings, n rows, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from gedppl.programs import LOCK
from gedppl.programs.torch_kernels import as_tensor, one_by_one, two_settings, vectorises
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.programs.torch_kernels import TorchKernels

# what torch raises at a program that looks at its values
UNRECORDABLE = (RuntimeError, NotImplementedError, ValueError)


def log_posterior(
    program: TorchKernels,
    rows: Rows,
    weights: np.ndarray | None,
    start: np.ndarray,
    jacobian: bool = True,
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """theta (P, D) -> log-likelihood + log prior (P,) and its gradient (P, D), both NumPy; start
    (P, D) is to be recorded at.

    The prior is that of the free values, or without `jacobian` that of the constrained ones.
    """
    history = program.history(rows, weights)
    x, a = as_tensor(program.x), as_tensor(program.a)

    def one(theta: torch.Tensor) -> Any:
        run = program.run(theta, x, a)
        return (
            program.weighted_sum(theta, *history)
            + run.log_prior
            - (0.0 if jacobian else run.log_jacobian)
        )

    def both(theta: torch.Tensor) -> tuple[Any, Any]:
        grad, value = grad_and_value(one)(theta)
        return value, grad

    example = as_tensor(start)
    with LOCK:
        together = vectorises(both, [two_settings(example)])
        function = vmap(both) if together else lambda theta: one_by_one(both, (theta,))
        graph = record(function, example)

    def evaluate(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tensor = torch.as_tensor(theta)
        if graph is not None:
            with torch.no_grad():
                value, grad = graph(tensor)
        else:
            with LOCK:
                value, grad = function(tensor)
        return value.detach().numpy(), grad.detach().numpy()

    return evaluate


def operations(function: Callable[..., Any], *example: torch.Tensor) -> Callable[..., Any]:
    """The graph of a function at these arguments; tensors that it closes over stay what they
    are, and may be written to.
    """
    module = make_fx(function)(*example)
    module.graph.eliminate_dead_code()
    module.recompile()
    graph: Callable[..., Any] = module
    return graph


def record(function: Callable[[Any], Any], example: torch.Tensor) -> Callable[[Any], Any] | None:
    """The operations of the function as a graph; None if it cannot be recorded or says something
    else elsewhere.
    """
    elsewhere = [
        example + step * torch.cos(1.0 + torch.arange(example.shape[1], dtype=torch.float64))
        for step in (0.3, -1.0)
    ]
    try:
        graph = operations(function, example)
        with torch.no_grad():
            found = [graph(theta) for theta in elsewhere]
    except UNRECORDABLE:
        return None
    for theta, here in zip(elsewhere, found):
        if not all(
            torch.allclose(u, v, rtol=1e-9, atol=1e-12, equal_nan=True)
            for u, v in zip(here, function(theta))
        ):
            return None
    return graph
