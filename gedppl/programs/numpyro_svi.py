"""NumPyro's SVI as one compiled loop on padded rows.

`SVI.run` once a refit would compile again and again (about a second and dozens of compilations each time). Here the guide
is initialised once, outside `jit` (inside, it would keep tracers), and one loop over the steps, with the number of steps
an argument, is compiled for each bucket of rows and used from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoGuide, AutoNormal
from numpyro.infer.initialization import init_to_value
from numpyro.primitives import Messenger

from gedppl.errors import SettingError
from gedppl.oracles.variational import GuideFit, GuideSettings
from gedppl.programs import LOCK
from gedppl.rows import Rows


@contextmanager
def _alone() -> Iterator[None]:
    with LOCK, jax.enable_x64(True), numpyro.validation_enabled(False):
        yield


class _Weigh(Messenger):
    """Multiplies each row's log-density at the observed site by its weight; priors keep theirs."""

    def __init__(self, fn: Any, site: str, weights: Any) -> None:
        super().__init__(fn)
        self.site, self.weights = site, weights

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] == self.site:
            scale = msg.get("scale")
            msg["scale"] = self.weights if scale is None else scale * self.weights


class Runner:
    """The fitting loop for one class and one guide."""

    def __init__(self, cls: Any, settings: GuideSettings) -> None:
        program = cls.program
        if len(program.assignments) > 1:
            raise SettingError("SVI cannot sum out the discrete row latents of this model; use ged.mle()")
        self.cls, self.program, self.settings = cls, program, settings
        self.latents = [site.name for site in program.sites if site.prior]
        self.params = [name for name, group in program.groups.items() if not group[0].prior]
        self.compilations = 0
        self._start: Any = None
        self._loop = jax.jit(self._run)
        self._draw = jax.jit(self._sample_guide)
        with _alone():
            values = cls.unflatten(cls.initial)
            start = init_to_value(values={name: values[name] for name in self.latents})
            self.guide = self._make_guide(settings.guide, start)

    def model(self, x: Any, a: Any, y: Any, weights: Any) -> Any:
        return _Weigh(self.program.model, self.program.observed, weights)(x, a, y)

    def _make_guide(self, guide: Any, start: Any) -> Any:
        if not self.latents:  # only `param` sites: plain maximum likelihood, nothing to guide
            return lambda *args: None
        if isinstance(guide, str):
            return {"delta": AutoDelta, "normal": AutoNormal}[guide](self.model, init_loc_fn=start)
        if isinstance(guide, type) and issubclass(guide, AutoGuide):
            return guide(self.model, init_loc_fn=start)
        if isinstance(guide, AutoGuide) or not callable(guide):
            raise SettingError(f"pass an autoguide's class, not an instance, or a function (x, a, y); got {guide!r}")
        return lambda x, a, y, weights: guide(x, a, y)

    # the loop ---------------------------------------------------------------------------------------------------------

    def _initialise(self, data: tuple[Any, ...]) -> Any:
        """Unconstrained starting values of the guide's and the model's `param` sites, found eagerly, once."""
        if self._start is None:
            svi = SVI(self.model, self.guide, numpyro.optim.Adam(1.0), Trace_ELBO())
            state = svi.init(jax.random.key(self.settings.seed), *data)
            self._constrain = svi.constrain_fn
            start = dict(svi.optim.get_params(state.optim_state))
            free = self.cls.initial
            for name in self.params:
                leaves = [jnp.asarray(free[s.start : s.stop].reshape(s.free_shape)) for s in self.program.groups[name]]
                start[name] = jax.tree.unflatten(self.program.trees[name], leaves)
            self._start = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start)
        return self._start

    def _penalty(self, free: Any, mean: Any, precision: Any) -> Any:
        total = 0.0
        for name in self.params:
            for site, leaf in zip(self.program.groups[name], jax.tree.leaves(free[name])):
                part = slice(site.start, site.stop)
                total += 0.5 * jnp.sum(precision[part] * (jnp.ravel(leaf) - mean[part]) ** 2)
        return total

    def _run(self, free: Any, key: Any, steps: Any, mean: Any, precision: Any, *data: Any) -> Any:
        """Adam from `free`: the last parameters and the loss averaged over the last tenth of the steps."""
        self.compilations += 1  # a Python statement: runs when traced, not when run
        elbo = Trace_ELBO(num_particles=self.settings.particles)

        def loss(free: Any, key: Any) -> Any:
            value = elbo.loss(key, self._constrain(free), self.model, self.guide, *data)
            return value + self._penalty(free, mean, precision)

        def step(i: Any, carry: Any) -> Any:
            free, first, second, tail = carry
            value, grad = jax.value_and_grad(loss)(free, jax.random.fold_in(key, i))
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grad)
            second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grad)
            rate = self.settings.learning_rate * 0.01 ** (i / steps)
            shrink, spread = 1 - 0.9 ** (i + 1.0), 1 - 0.999 ** (i + 1.0)
            free = jax.tree.map(lambda p, m, v: p - rate * (m / shrink) / (jnp.sqrt(v / spread) + 1e-8), free, first, second)
            return free, first, second, tail + jnp.where(i >= steps - last, value, 0.0)

        last = jnp.maximum(steps // 10, 1)
        nothing = jax.tree.map(jnp.zeros_like, free)
        free, _, _, tail = jax.lax.fori_loop(0, steps, step, (free, nothing, nothing, jnp.zeros(())))
        return free, tail / last

    # what the guide says ----------------------------------------------------------------------------------------------

    def _sample_guide(self, free: Any, keys: Any, x: Any, a: Any, y: Any, weights: Any) -> Any:
        values = self._constrain(free)

        def one(key: Any) -> Any:
            sites = trace(substitute(seed(self.guide, key), data=values)).get_trace(x, a, y, weights)
            return {name: sites[name]["value"] for name in self.latents}

        return jax.vmap(one)(keys)

    def fit(self, rows: Rows, weights: np.ndarray | None, prior: Any, state: Mapping[str, Any] | None, steps: int) -> GuideFit:
        x, a, y, w = rows.padded(weights)
        with _alone():
            data = (jnp.asarray(x), jnp.asarray(a), jnp.asarray(y, int if self.program.discrete else float), jnp.asarray(w))
            free = self._initialise(data)
            if state is not None and _shapes(state) == _shapes(free):
                free = jax.tree.map(jnp.asarray, dict(state))
            key = jax.random.key(self.settings.seed)
            free, loss = self._loop(free, key, steps, jnp.asarray(prior.mean), jnp.asarray(prior.precision), *data)
            values = self._constrain(free)
            own = {name: values[name] for name in self.params}
            location, draws = self._location(values, own), None
            if self.latents and self.settings.guide != "delta":
                keys = jax.random.split(jax.random.key(self.settings.seed + 1), self.settings.draws)
                short = tuple(part[:1] for part in data)  # parameters do not depend on the rows
                drawn = self._draw(free, keys, *short)
                spread = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.settings.draws, *jnp.shape(leaf))), own)
                draws = {**spread, **drawn}
        return GuideFit(location, draws, jax.tree.map(np.asarray, free), float(loss))

    def _location(self, values: Any, own: Mapping[str, Any]) -> dict[str, Any] | None:
        if not self.latents:
            return dict(own)
        if not isinstance(self.guide, AutoGuide):
            return None
        return {**own, **{name: value for name, value in self.guide.median(values).items() if name in self.latents}}


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(dict(tree))
    return structure, [np.shape(leaf) for leaf in leaves]
