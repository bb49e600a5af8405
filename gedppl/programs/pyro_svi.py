"""Pyro's guides fitted by Adam, in one loop that leaves nothing behind in Pyro's global state.

The ELBO of a guide whose draws can be differentiated, and its gradient, are recorded once for each
bucket of rows as a graph of torch operations (`torch_graphs`): its random numbers are drawn anew at
every step, and its parameters are tensors that the optimiser writes to. A warm refit then runs
neither the program nor the guide. Where there is no such graph, Pyro's own `Trace_ELBO` is called
at every step.

Each fit makes the guide afresh in a scoped parameter store and puts the values of the last fit into
it. The model's own parameters never enter the store: they are filled in, as in every other pass
through the program, so the model's modules are not written to.

Axis letters: P particles, n rows, S draws, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuide,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.infer.autoguide.initialization import init_to_value
from pyro.poutine.messenger import Messenger
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from gedppl.programs.guides import Autoguides, GuideDraws, GuideFit, GuideSettings, Runner
from gedppl.programs.pyro import quiet
from gedppl.programs.torch_bijections import biject_to
from gedppl.programs.torch_graphs import UNRECORDABLE, operations
from gedppl.programs.torch_kernels import as_tensor
from gedppl.rows import BUCKETS, Rows, bucket

if TYPE_CHECKING:
    from gedppl.learning.fits import WorkingPrior
    from gedppl.programs.pyro import PyroProgram

ROWS = "_rows_summed_out"  # the site of a likelihood with row latents summed out
OF_PYRO = Autoguides(
    "Pyro",
    AutoGuide,
    {
        "delta": AutoDelta,
        "normal": AutoNormal,
        "multivariate_normal": AutoMultivariateNormal,
        "low_rank": AutoLowRankMultivariateNormal,
    },
    points=(AutoDelta, AutoLaplaceApproximation),  # run as a guide, the latter is its own mode
    plain=(
        AutoNormal,
        AutoDiagonalNormal,
        AutoMultivariateNormal,
        AutoLowRankMultivariateNormal,
        AutoIAFNormal,
    ),
    delta=Delta,
)
Gradients = Callable[[], tuple[torch.Tensor, tuple[torch.Tensor, ...]]]


class _Fit(Messenger):
    """Fills the model's `param` sites from our free tensors and weighs the observed site's rows."""

    def __init__(self, program: PyroProgram, swap: Any, free: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.program, self.swap, self.free = program, swap, free
        self.weights = torch.ones(1)

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.free:
            value = self.value(msg["name"])
            self.swap.put(msg, value)
            msg["value"], msg["done"] = value, True

    def value(self, name: str) -> torch.Tensor:
        return biject_to(self.program.constraint_of(name))(self.free[name])

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] == self.program.observed:
            msg["scale"] = msg["scale"] * self.weights


class _Hide(Messenger):
    """Gives discrete row latents a value and hides them and the outcome; notes the latents that
    all rows share.
    """

    def __init__(self, program: PyroProgram) -> None:
        super().__init__()
        self.program = program
        self.values: dict[str, torch.Tensor] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        rows = self.program.assignments[0]
        if msg["name"] in rows:
            msg["value"], msg["done"] = (
                torch.full(tuple(msg["fn"].batch_shape), float(rows[msg["name"]])),
                True,
            )
        msg["stop"] = msg["name"] in rows or msg["name"] == self.program.observed

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        self.values[msg["name"]] = msg["value"]


class _NewNoise(TorchFunctionMode):
    """`torch.empty(...).normal_()`, by which torch's Normals draw, as an operation that makes a
    new tensor: vmap wants that.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.normal_ and len(args) == 1 and not kwargs:
            return torch.randn_like(args[0])
        return func(*args, **(kwargs or {}))


@dataclass
class Session:
    """One guide with its parameters, inside a scope of Pyro's parameter store."""

    model: Callable[..., Any]
    guide: Callable[..., Any]
    fill: _Fit
    # what is fitted, unconstrained: the guide's and the model's own
    tensors: dict[str, torch.Tensor]


class PyroRunner(Runner):
    """The fitting loop for one class and one guide."""

    autoguides = OF_PYRO

    def __init__(self, cls: Any, settings: GuideSettings) -> None:
        super().__init__(cls, settings)
        self.particles = 1 if self.point or not self.latents else settings.particles
        # by size; None: it cannot be recorded
        self._graphs: dict[int, tuple[Callable[..., Any], Session] | None] = {}

    @property
    def recorded(self) -> bool:
        """Whether the last fits ran a graph."""
        return any(graph is not None for graph in self._graphs.values())

    @contextmanager
    def alone(self) -> Iterator[None]:
        with quiet(), torch.random.fork_rng(devices=[]):
            yield

    def own_draws(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        x, a, _ = self._row()
        found = poutine.trace(self.kind).get_trace(x, a, None).nodes
        return {
            name: site
            for name, site in found.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    # the guide ------------------------------------------------------------------------------------

    @contextmanager
    def _session(self, state: Mapping[str, Any] | None) -> Iterator[Session]:
        initial = self.cls.initial
        free = {
            site.name: as_tensor(
                initial[site.start : site.stop].reshape(site.free_shape)
            ).requires_grad_()
            for site in self.program.sites
            if not site.prior
        }
        with ExitStack() as stack:
            swap = stack.enter_context(quiet())
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(self.settings.seed)
            fill = _Fit(self.program, swap, free)
            guide = self._make_guide(self._model(fill))
            row = self._row()
            guide(*row)  # an autoguide makes its parameters on the first call
            with poutine.trace(param_only=True) as capture:
                guide(*row)
            tensors = {
                name: site["value"].unconstrained() for name, site in capture.trace.nodes.items()
            } | free
            session = Session(self._model(fill), guide, fill, tensors)
            self._put(session, state)
            yield session

    def _row(self) -> tuple[torch.Tensor, ...]:
        """One row to run a guide on: parameters do not depend on the rows."""
        return (
            as_tensor(self.program.x),
            as_tensor(self.program.a),
            torch.zeros((1, *self.program.event_shape), dtype=torch.float64),
        )

    def _put(self, session: Session, state: Mapping[str, Any] | None) -> None:
        shapes = {name: tuple(tensor.shape) for name, tensor in session.tensors.items()}
        if state is not None and {name: np.shape(value) for name, value in state.items()} == shapes:
            with torch.no_grad():
                for name, tensor in session.tensors.items():
                    tensor.copy_(as_tensor(state[name]))

    def _model(self, fill: _Fit) -> Callable[..., Any]:
        def model(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> None:
            with fill:
                if len(self.program.assignments) == 1:
                    self.program.model(x, a, y)
                else:
                    self._summed(fill, x, a, y)

        return model

    def _summed(self, fill: _Fit, x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> None:
        """The model with its discrete row latents summed out: what all rows share, and the rows'
        likelihood as a factor.
        """
        with _Hide(self.program) as hidden:
            self.program.model(x, a, y)
        values = {name: hidden.values[name] for name in self.latents} | {
            name: fill.value(name) for name in fill.free
        }
        with poutine.block():
            logs = self.program.row_log_likelihood(None, x, a, y, given=values)
        pyro.factor(ROWS, (fill.weights * logs).sum())

    def _make_guide(self, model: Any) -> Callable[..., Any]:
        if not self.latents:
            return lambda x, a, y: None
        guide = self.kind
        if not isinstance(guide, type):
            return guide
        values = self.cls.unflatten(self.cls.initial)
        made: Callable[..., Any] = guide(
            model,
            init_loc_fn=init_to_value(
                values={name: as_tensor(values[name]) for name in self.latents}
            ),
        )
        return made

    # the loop -------------------------------------------------------------------------------------

    def fit(
        self,
        rows: Rows,
        weights: np.ndarray | None,
        prior: WorkingPrior,
        state: Mapping[str, Any] | None,
        steps: int,
    ) -> GuideFit:
        size = _graph_size(rows.n)
        x, a, y, w = (as_tensor(array[:size]) for array in rows.padded(weights))
        data = (x, a, y, w, as_tensor(prior.mean), as_tensor(prior.precision))
        if size not in self._graphs:
            with self._session(None) as session:
                self._graphs[size] = self._record(session, data)
        known = self._graphs[size]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            if known is not None:
                graph, session = known
                self._put(session, state)
                if state is None:
                    with self._session(None) as fresh:
                        self._put(
                            session,
                            {
                                name: tensor.detach().numpy()
                                for name, tensor in fresh.tensors.items()
                            },
                        )
                loss = self._descend(lambda: graph(*data), session.tensors, steps)
            else:
                with self._session(state) as session:
                    loss = self._descend(self._by_pyro(session, data), session.tensors, steps)
        after = {name: tensor.detach().numpy().copy() for name, tensor in session.tensors.items()}
        if not all(np.isfinite(value).all() for value in after.values()):
            return GuideFit(None, None, {}, np.nan)
        location, draws = self._said(after)
        return GuideFit(location, draws, after, loss)

    def _descend(
        self, gradients: Gradients, tensors: Mapping[str, torch.Tensor], steps: int
    ) -> float:
        """Adam with a rate that decays to a hundredth; the loss averaged over the last tenth of
        the steps.
        """
        rate = self.settings.learning_rate
        optimiser = torch.optim.Adam(list(tensors.values()), lr=rate)
        tail, last = 0.0, max(steps // 10, 1)
        for i in range(steps):
            optimiser.param_groups[0]["lr"] = rate * 0.01 ** (i / steps)
            with torch.no_grad():
                loss, grads = gradients()
            for tensor, grad in zip(tensors.values(), grads):
                tensor.grad = grad
            optimiser.step()
            tail += float(loss) / last if i >= steps - last else 0.0
        return tail

    def _record(
        self, session: Session, data: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], Session] | None:
        """The graph of loss and gradients, if there is one and it says the same at other
        parameters.
        """
        x, a, y = data[:3]
        nodes = poutine.trace(session.guide).get_trace(x[:1], a[:1], y[:1]).nodes.values()
        if not all(site["fn"].has_rsample for site in nodes if site["type"] == "sample"):
            return None  # a score-function gradient is needed: that is Pyro's

        def function(*data: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
            with torch.enable_grad():
                loss = self._elbo_loss(session, data)
                return loss, torch.autograd.grad(
                    loss, list(session.tensors.values()), materialize_grads=True
                )

        def seeded(compute: Callable[..., tuple[Any, tuple[Any, ...]]]) -> tuple[Any, ...]:
            torch.manual_seed(self.settings.seed)
            return compute(*data)

        before = {name: tensor.detach().numpy().copy() for name, tensor in session.tensors.items()}
        try:
            graph = operations(function, *data)
            for step in (0.3, -1.0):
                self._put(
                    session,
                    {name: value + step * np.cos(1.0 + value) for name, value in before.items()},
                )
                with torch.no_grad():
                    ours, theirs = seeded(graph), seeded(function)
                pairs = zip((ours[0], *ours[1]), (theirs[0], *theirs[1]))
                if not all(
                    torch.allclose(u, v, rtol=1e-9, atol=1e-12, equal_nan=True) for u, v in pairs
                ):
                    return None
        except UNRECORDABLE:
            return None
        finally:
            self._put(session, before)
        return graph, session

    def _elbo_loss(self, session: Session, data: tuple[Any, ...]) -> Any:
        """Minus the ELBO, averaged over particles, and the working prior of parameters without
        one.
        """
        x, a, y, w, mean, precision = data
        session.fill.weights = w

        def one(_: torch.Tensor | None) -> Any:
            guide = poutine.trace(session.guide).get_trace(x, a, y)
            model = poutine.trace(poutine.replay(session.model, trace=guide)).get_trace(x, a, y)
            return torch.as_tensor(guide.log_prob_sum() - model.log_prob_sum())

        P = self.particles
        value = one(None) if P == 1 else _apart(one, P).mean()
        return value + self._penalty(session, mean, precision)

    def _penalty(self, session: Session, mean: torch.Tensor, precision: torch.Tensor) -> Any:
        value = torch.zeros(())
        for site in self.program.sites:
            if not site.prior:
                part, free = slice(site.start, site.stop), session.fill.free[site.name]
                value = value + 0.5 * (precision[part] * (free.reshape(-1) - mean[part]) ** 2).sum()
        return value

    def _by_pyro(self, session: Session, data: tuple[Any, ...]) -> Gradients:
        """The same by Pyro's `Trace_ELBO`, which runs program and guide at every step."""
        x, a, y, w, mean, precision = data
        elbo = Trace_ELBO(num_particles=self.particles)
        session.fill.weights = w

        def gradients() -> tuple[Any, tuple[Any, ...]]:
            with torch.enable_grad():
                loss = elbo.differentiable_loss(
                    session.model, session.guide, x, a, y
                ) + self._penalty(session, mean, precision)
                return loss.detach(), torch.autograd.grad(
                    loss, list(session.tensors.values()), materialize_grads=True
                )

        return gradients

    # what the guide says --------------------------------------------------------------------------

    def _said(
        self, state: Mapping[str, Any]
    ) -> tuple[dict[str, Any] | None, Mapping[str, Any] | None]:
        """Location and draws by site."""
        with self._session(state) as session, torch.no_grad():
            own = {name: session.fill.value(name).numpy().copy() for name in session.fill.free}
            if not self.latents:
                return own, None
            location, draws = None, None
            if isinstance(session.guide, AutoGuide):
                median = session.guide.median(*self._row())
                location = {**own, **{name: median[name].numpy().copy() for name in self.latents}}
            if not self.point:
                draws = self._drawn(session, self.settings.draws, self.settings.seed + 1).values
            return location, draws

    def draw(self, state: Mapping[str, Any], size: int, seed: int) -> GuideDraws:
        """Draws of every parameter from the guide, and their log density there."""
        with self._session(state) as session, torch.no_grad():
            return self._drawn(session, size, seed)

    def _drawn(self, session: Session, size: int, seed: int) -> GuideDraws:
        own, row = (
            {name: session.fill.value(name).numpy().copy() for name in session.fill.free},
            self._row(),
        )

        def one(_: torch.Tensor | None) -> tuple[Any, ...]:
            trace = poutine.trace(session.guide).get_trace(*row)
            return torch.as_tensor(trace.log_prob_sum()), *(
                trace.nodes[name]["value"] for name in self.latents
            )

        torch.manual_seed(seed)
        try:
            found = _apart(one, size)
        except UNRECORDABLE:
            found = tuple(torch.stack(column) for column in zip(*(one(None) for _ in range(size))))
        logs, *drawn = (part.numpy().copy() for part in found)
        values = {name: np.broadcast_to(value, (size, *value.shape)) for name, value in own.items()}
        return GuideDraws(
            {**values, **dict(zip(self.latents, drawn))},
            logs if self.has_density else None,
        )


def _graph_size(n: int) -> int:
    """To how many rows n are padded for a graph: powers of two, half of the way between buckets
    (recording is quick).
    """
    return min(bucket(n), max(BUCKETS[0], 1 << (n - 1).bit_length()))


def _apart(function: Callable[[Any], Any], size: int) -> Any:
    """function(None) so many times side by side, each with random numbers of its own."""
    with _NewNoise():
        return vmap(function, randomness="different")(torch.zeros(size))


runner = PyroRunner
