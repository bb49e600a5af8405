"""The point guide and the independent-Normal guide of a Pyro program, fitted without Pyro's own loop.

Both guides live on the flat vector: theta = loc, or loc + exp(log_scale) * noise at the `sample` sites. One run of the
program per step is then all that is needed, and it is run once: `torch.fx` records the operations of the objective and its
gradient as a graph, which the steps repeat without Python's way through the program (about 20 times as fast). A graph
is used only if it says what the program says at other parameters too; a program that decides by its values is run itself.

Axis letters: P particles, n rows, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from gedppl.oracles.variational import GuideFit, GuideSettings
from gedppl.programs import LOCK
from gedppl.programs.torch_kernels import _agrees, _loop, _tensor, _two
from gedppl.rows import Rows

START_SCALE = 0.1  # of the Normal guide, as in Pyro's


class MeanField:
    """The fitting loop for one class; guide "delta" or "normal"."""

    def __init__(self, cls: Any, settings: GuideSettings) -> None:
        self.cls, self.program, self.settings = cls, cls.program, settings
        self.point = settings.guide == "delta" or bool(np.all(cls.prior_free))
        self.spread = np.zeros(cls.dim, bool) if self.point else ~cls.prior_free
        self.recorded = False  # whether the last fit ran a graph

    def fit(self, rows: Rows, weights: np.ndarray | None, prior: Any, state: Mapping[str, Any] | None, steps: int) -> GuideFit:
        P = 1 if self.point else self.settings.particles
        rng = np.random.default_rng(self.settings.seed)
        start = {"loc": self.cls.initial, "log_scale": np.full(int(self.spread.sum()), np.log(START_SCALE))}
        if state is not None and {k: np.shape(v) for k, v in state.items()} == {k: v.shape for k, v in start.items()}:
            start = {name: np.array(value, float) for name, value in state.items()}
        objective = self._objective(rows, weights, np.tile(start["loc"], (P, 1)))
        at = np.concatenate([start["loc"], start["log_scale"]])
        D, adam = len(start["loc"]), _Adam(len(at), self.settings.learning_rate, steps)
        tail, last = 0.0, max(steps // 10, 1)
        for i in range(steps):
            loc, scale = at[:D], np.exp(at[D:])
            noise = rng.standard_normal((P, len(scale)))
            theta = np.tile(loc, (P, 1))
            theta[:, self.spread] += scale * noise
            value, grad = objective(theta)
            by_scale = scale * np.mean(grad[:, self.spread] * noise, axis=0) + 1.0  # + the entropy's
            pull = prior.precision * (loc - prior.mean)
            entropy = float(np.sum(at[D:] + 0.5 * np.log(2 * np.pi * np.e)))
            loss = 0.5 * float(pull @ (loc - prior.mean)) - float(np.mean(value)) - entropy
            at = at - adam.step(i, np.concatenate([pull - grad.mean(axis=0), -by_scale]))
            tail += loss / last if i >= steps - last else 0.0
        loc, log_scale = at[:D], at[D:]
        if not np.isfinite(at).all():
            return GuideFit(None, None, {}, np.nan)
        draws = None
        if not self.point:
            drawn = np.tile(loc, (self.settings.draws, 1))
            noise = np.random.default_rng(self.settings.seed + 1).standard_normal((self.settings.draws, len(log_scale)))
            drawn[:, self.spread] += np.exp(log_scale) * noise
            draws = self.cls.unflatten(drawn)
        return GuideFit(self.cls.unflatten(loc), draws, {"loc": loc, "log_scale": log_scale}, tail)

    def _objective(self, rows: Rows, weights: np.ndarray | None, start: np.ndarray) -> Callable[[np.ndarray], Any]:
        """theta (P, D) -> log-likelihood + log prior (P,) and its gradient (P, D), both NumPy."""
        total = self.program._sum(rows, weights)
        x, a = _tensor(self.program.x), _tensor(self.program.a)

        def one(theta: Any) -> Any:
            run = self.program.run(theta, x, a)
            # a point guide's optimum is that of the constrained values, as Pyro's is: without the volume of the transforms
            return total(theta) + run.log_prior - (run.log_jacobian if self.settings.guide == "delta" else 0.0)

        def both(theta: Any) -> tuple[Any, Any]:
            grad, value = grad_and_value(one)(theta)
            return value, grad

        example = _tensor(start)
        with LOCK:
            together = _agrees(both, [_two(example)])
            function = vmap(both) if together else lambda theta: _loop(both, (theta,))
            graph = _record(function, example)
        self.recorded = graph is not None

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


def _record(function: Callable[[Any], Any], example: Any) -> Callable[[Any], Any] | None:
    """The operations of the function as a graph; None if it cannot be recorded or says something else elsewhere."""
    elsewhere = [example + step * torch.cos(1.0 + torch.arange(example.shape[1], dtype=torch.float64)) for step in (0.3, -1.0)]
    try:
        graph = make_fx(function)(example)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        with torch.no_grad():
            found = [graph(theta) for theta in elsewhere]
    except (RuntimeError, NotImplementedError, ValueError):
        return None
    for theta, here in zip(elsewhere, found):
        if not all(torch.allclose(u, v, rtol=1e-9, atol=1e-12, equal_nan=True) for u, v in zip(here, function(theta))):
            return None
    return graph


class _Adam:
    """Adam with a rate that decays to a hundredth of itself (Kingma and Ba 2015)."""

    def __init__(self, size: int, rate: float, steps: int) -> None:
        self.first, self.second = np.zeros(size), np.zeros(size)
        self.rate, self.steps = rate, steps

    def step(self, i: int, grad: np.ndarray) -> np.ndarray:
        self.first = 0.9 * self.first + 0.1 * grad
        self.second = 0.999 * self.second + 0.001 * grad * grad
        rate = self.rate * 0.01 ** (i / self.steps)
        return rate * (self.first / (1 - 0.9 ** (i + 1))) / (np.sqrt(self.second / (1 - 0.999 ** (i + 1))) + 1e-8)
