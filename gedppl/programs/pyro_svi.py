"""Pyro's SVI in a loop of its own, leaving nothing behind in Pyro's global state.

The two named guides are fitted in `pyro_mean_field`. Here are the others, by Pyro's `Trace_ELBO`: it compiles nothing, so
there is nothing to reuse but the guide's parameters: each fit makes the guide afresh in a scoped parameter store and puts
the values of the last fit into it. The model's own parameters never enter the store: they are filled in, as in every
other pass through the program, so the model's modules are not written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import init_to_value
from pyro.poutine.messenger import Messenger

from gedppl.errors import SettingError
from gedppl.oracles.variational import GuideFit, GuideSettings
from gedppl.programs.pyro import _quiet, _tensor, biject_to
from gedppl.programs.pyro_mean_field import MeanField
from gedppl.rows import Rows


class _Fit(Messenger):
    """Fills the model's `param` sites from our free tensors and weighs the observed site's rows."""

    def __init__(self, program: Any, swap: Any, free: Mapping[str, torch.Tensor], weights: torch.Tensor) -> None:
        super().__init__()
        self.program, self.swap, self.free, self.weights = program, swap, free, weights

    def _pyro_param(self, msg: Any) -> None:
        if msg["name"] in self.free:
            value = self.value(msg["name"])
            self.swap.put(msg, value)
            msg["value"], msg["done"] = value, True

    def value(self, name: str) -> torch.Tensor:
        return biject_to(self.program.constraint_of(name))(self.free[name])

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] == self.program.observed:
            msg["scale"] = msg["scale"] * self.weights


def Runner(cls: Any, settings: GuideSettings) -> Any:
    """The fitting loop for one class and one guide. Without `sample` sites there is nothing to guide: a point."""
    named = isinstance(settings.guide, str) or bool(np.all(cls.prior_free))
    return MeanField(cls, settings) if named else GuideLoop(cls, settings)


class GuideLoop:
    """For an autoguide class, or a guide function of the user's."""

    def __init__(self, cls: Any, settings: GuideSettings) -> None:
        program = cls.program
        if len(program.assignments) > 1:
            raise SettingError(
                "Pyro's ELBO cannot sum out the discrete row latents of this model; use svi('normal'), svi('delta') or ged.mle()"
            )
        guide = settings.guide
        if not isinstance(guide, type) and (isinstance(guide, AutoGuide) or not callable(guide)):
            raise SettingError(f"pass an autoguide's class, not an instance, or a function (x, a, y); got {guide!r}")
        self.cls, self.program, self.settings = cls, program, settings
        self.latents = [site.name for site in program.sites if site.prior]

    def _make_guide(self, model: Any) -> Any:
        guide, values = self.settings.guide, self.cls.unflatten(self.cls.initial)
        if not isinstance(guide, type):
            return guide
        start = {name: _tensor(values[name]) for name in self.latents}
        return guide(model, init_loc_fn=init_to_value(values=start))

    def fit(self, rows: Rows, weights: np.ndarray | None, prior: Any, state: Mapping[str, Any] | None, steps: int) -> GuideFit:
        keep = slice(0, rows.n) if weights is None else np.flatnonzero(weights)
        data = _tensor(rows.x[keep]), _tensor(rows.a[keep]), _tensor(rows.y[keep])
        scale = torch.ones(len(data[1]), dtype=torch.float64) if weights is None else _tensor(weights[keep])
        initial = self.cls.initial
        free = {
            site.name: _tensor(initial[site.start : site.stop].reshape(site.free_shape)).requires_grad_()
            for site in self.program.sites
            if not site.prior
        }
        mean, precision = _tensor(prior.mean), _tensor(prior.precision)
        elbo = Trace_ELBO(num_particles=self.settings.particles)
        with ExitStack() as stack:
            swap = stack.enter_context(_quiet())
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(self.settings.seed)
            messenger = _Fit(self.program, swap, free, scale)

            def model(x: Any, a: Any, y: Any) -> Any:
                with messenger:
                    return self.program.model(x, a, y)

            guide = self._make_guide(model)
            guide(*data)  # an autoguide makes its parameters on the first call

            def loss() -> Any:
                value = elbo.differentiable_loss(model, guide, *data)
                for site in self.program.sites:
                    if not site.prior:
                        part = slice(site.start, site.stop)
                        value = value + 0.5 * (precision[part] * (free[site.name].reshape(-1) - mean[part]) ** 2).sum()
                return value

            with poutine.trace(param_only=True) as capture:
                guide(*data)
            tensors = {name: site["value"].unconstrained() for name, site in capture.trace.nodes.items()} | free
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            if state is not None and {name: np.shape(value) for name, value in state.items()} == shapes:
                with torch.no_grad():
                    for name, tensor in tensors.items():
                        tensor.copy_(_tensor(state[name]))
            optimiser = torch.optim.Adam(list(tensors.values()), lr=self.settings.learning_rate)
            tail, last = 0.0, max(steps // 10, 1)
            for i in range(steps):
                optimiser.param_groups[0]["lr"] = self.settings.learning_rate * 0.01 ** (i / steps)
                optimiser.zero_grad()
                now = loss()
                now.backward()
                optimiser.step()
                tail += float(now.detach()) / last if i >= steps - last else 0.0
            with torch.no_grad():
                own = {name: messenger.value(name).numpy().copy() for name in free}
                location = self._location(guide, own, data)
                draws = self._draws(guide, own, data)
            after = {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}
        return GuideFit(location, draws, after, tail)

    def _location(self, guide: Any, own: dict[str, Any], data: tuple[Any, ...]) -> dict[str, Any] | None:
        if not isinstance(guide, AutoGuide):
            return None
        median = guide.median(*data)
        return {**own, **{name: median[name].numpy().copy() for name in self.latents}}

    def _draws(self, guide: Any, own: dict[str, Any], data: tuple[Any, ...]) -> dict[str, Any]:
        count = self.settings.draws
        torch.manual_seed(self.settings.seed + 1)
        drawn: dict[str, list[Any]] = {name: [] for name in self.latents}
        for _ in range(count):
            nodes = poutine.trace(guide).get_trace(*data).nodes
            for name in self.latents:
                drawn[name].append(nodes[name]["value"].numpy().copy())
        spread = {name: np.broadcast_to(value, (count, *value.shape)) for name, value in own.items()}
        return {**spread, **{name: np.stack(values) for name, values in drawn.items()}}
