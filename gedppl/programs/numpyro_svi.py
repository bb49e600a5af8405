"""NumPyro's SVI as one compiled loop on padded rows.

`SVI.run` once a refit would compile again and again (about a second and dozens of compilations each
time). Here the guide is initialised once, outside `jit` (inside, it would keep tracers), and one
loop over the steps, with the number of steps an argument, is compiled for each bucket of rows and
used from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import Delta
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoBNAFNormal,
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuide,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.initialization import init_to_value
from numpyro.primitives import Messenger

from gedppl.errors import SettingError
from gedppl.programs import LOCK
from gedppl.programs.guides import Autoguides, GuideDraws, GuideFit, GuideSettings, Runner
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.learning.fits import WorkingPrior

OF_NUMPYRO = Autoguides(
    "NumPyro",
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
        AutoBNAFNormal,
    ),
    delta=Delta,
)


@contextmanager
def _alone() -> Iterator[None]:
    with LOCK, jax.enable_x64(True), numpyro.validation_enabled(False):
        yield


class _Weigh(Messenger):
    """Multiplies each row's log-density at the observed site by its weight; priors keep theirs."""

    def __init__(self, fn: Any, site: str, weights: jax.Array) -> None:
        super().__init__(fn)
        self.site, self.weights = site, weights

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] == self.site:
            scale = msg.get("scale")
            msg["scale"] = self.weights if scale is None else scale * self.weights


class NumpyroRunner(Runner):
    """The fitting loop for one class and one guide."""

    autoguides = OF_NUMPYRO

    def __init__(self, cls: Any, settings: GuideSettings) -> None:
        super().__init__(cls, settings)
        program = self.program
        if len(program.assignments) > 1:
            raise SettingError(
                "SVI cannot sum out the discrete row latents of this model; use ged.mle()"
            )
        self.params = [name for name, group in program.groups.items() if not group[0].prior]
        self.compilations = 0
        self._start: Any = None
        self._loop = jax.jit(self._run)
        self._draw = jax.jit(self._sample_guide)
        with _alone():
            values = cls.unflatten(cls.initial)
            start = init_to_value(values={name: values[name] for name in self.latents})
            self.guide = self._make_guide(start)

    def model(self, x: jax.Array, a: jax.Array, y: jax.Array, weights: jax.Array) -> Any:
        return _Weigh(self.program.model, self.program.observed, weights)(x, a, y)

    def _make_guide(self, start: Callable[..., Any]) -> Any:
        if not self.latents:  # only `param` sites: plain maximum likelihood, nothing to guide
            return lambda *args: None
        guide = self.kind
        if isinstance(guide, type):
            return guide(self.model, init_loc_fn=start)
        return lambda x, a, y, weights: guide(x, a, y)

    def alone(self) -> AbstractContextManager[Any]:
        return _alone()

    def own_draws(self, key: int) -> dict[str, Any]:
        found = trace(seed(self.kind, key)).get_trace(self.program.x, self.program.a, None)
        return {
            name: site
            for name, site in found.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    # the loop -------------------------------------------------------------------------------------

    def _initialise(self, data: tuple[Any, ...]) -> Any:
        """Unconstrained starting values of the guide's and the model's `param` sites, found
        eagerly, once.
        """
        if self._start is None:
            svi = SVI(self.model, self.guide, numpyro.optim.Adam(1.0), Trace_ELBO())
            state = svi.init(jax.random.key(self.settings.seed), *data)
            self._constrain = svi.constrain_fn
            start = dict(svi.optim.get_params(state.optim_state))
            free = self.cls.initial
            for name in self.params:
                leaves = [
                    jnp.asarray(free[s.start : s.stop].reshape(s.free_shape))
                    for s in self.program.groups[name]
                ]
                start[name] = jax.tree.unflatten(self.program.trees[name], leaves)
            self._start = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start)
        return self._start

    def _penalty(self, free: dict[str, jax.Array], mean: jax.Array, precision: jax.Array) -> Any:
        total = 0.0
        for name in self.params:
            for site, leaf in zip(self.program.groups[name], jax.tree.leaves(free[name])):
                part = slice(site.start, site.stop)
                total += 0.5 * jnp.sum(precision[part] * (jnp.ravel(leaf) - mean[part]) ** 2)
        return total

    def _run(
        self,
        free: dict[str, jax.Array],
        key: jax.Array,
        steps: jax.Array,
        mean: jax.Array,
        precision: jax.Array,
        *data: tuple[jax.Array, ...],
    ) -> Any:
        """Adam from `free`, its rate decaying to a hundredth: the last parameters, the loss
        averaged over the last tenth.
        """
        self.compilations += 1  # a Python statement: runs when traced, not when run
        elbo = Trace_ELBO(num_particles=self.settings.particles)

        def loss(free: dict[str, jax.Array], key: jax.Array) -> Any:
            value = elbo.loss(key, self._constrain(free), self.model, self.guide, *data)
            return value + self._penalty(free, mean, precision)

        def step(i: jax.Array, carry: tuple[Any, ...]) -> Any:
            state, tail = carry
            (value, _), state = adam.eval_and_update(
                lambda free: (loss(free, jax.random.fold_in(key, i)), None), state
            )
            return state, tail + jnp.where(i >= steps - last, value, 0.0)

        adam = numpyro.optim.Adam(lambda i: self.settings.learning_rate * 0.01 ** (i / steps))
        last = jnp.maximum(steps // 10, 1)
        state, tail = jax.lax.fori_loop(0, steps, step, (adam.init(free), jnp.zeros(())))
        return adam.get_params(state), tail / last

    # what the guide says --------------------------------------------------------------------------

    def _sample_guide(
        self,
        free: dict[str, jax.Array],
        keys: jax.Array,
        x: jax.Array,
        a: jax.Array,
        y: jax.Array,
        weights: jax.Array,
    ) -> Any:
        values = self._constrain(free)

        def one(key: jax.Array) -> Any:
            sites = trace(substitute(seed(self.guide, key), data=values)).get_trace(
                x, a, y, weights
            )
            drawn = [site for site in sites.values() if site["type"] == "sample"]
            logs = sum(
                (jnp.sum(site["fn"].log_prob(site["value"])) for site in drawn), jnp.zeros(())
            )
            return logs, {name: sites[name]["value"] for name in self.latents}

        return jax.vmap(one)(keys)

    def draw(self, state: Mapping[str, Any], size: int, seed: int) -> GuideDraws:
        """Draws of every parameter from the guide, and their log density there."""
        # parameters do not depend on the rows
        x, a = jnp.asarray(self.program.x), jnp.asarray(self.program.a)
        with _alone():
            y = jnp.zeros((1, *self.program.event_shape), int if self.program.discrete else float)
            free = jax.tree.map(jnp.asarray, dict(state))
            values = self._constrain(free)
            own = {name: values[name] for name in self.params}
            logs, drawn = self._draw(
                free, jax.random.split(jax.random.key(seed), size), x, a, y, jnp.ones(1)
            )
            spread = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), own
            )
        return GuideDraws({**spread, **drawn}, np.asarray(logs) if self.has_density else None)

    def fit(
        self,
        rows: Rows,
        weights: np.ndarray | None,
        prior: WorkingPrior,
        state: Mapping[str, Any] | None,
        steps: int,
    ) -> GuideFit:
        x, a, y, w = rows.padded(weights)
        with _alone():
            data = (
                jnp.asarray(x),
                jnp.asarray(a),
                jnp.asarray(y, int if self.program.discrete else float),
                jnp.asarray(w),
            )
            free = self._initialise(data)
            if state is not None and _shapes(state) == _shapes(free):
                free = jax.tree.map(jnp.asarray, dict(state))
            key = jax.random.key(self.settings.seed)
            free, loss = self._loop(
                free, key, steps, jnp.asarray(prior.mean), jnp.asarray(prior.precision), *data
            )
            values = self._constrain(free)
            location = self._location(values, {name: values[name] for name in self.params})
        after, draws = jax.tree.map(np.asarray, free), None
        if self.latents and not self.point:
            draws = self.draw(after, self.settings.draws, self.settings.seed + 1).values
        return GuideFit(location, draws, after, float(loss))

    def _location(
        self, values: Mapping[str, jax.Array], own: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        if not self.latents:
            return dict(own)
        if not isinstance(self.guide, AutoGuide):
            return None
        return {
            **own,
            **{
                name: value
                for name, value in self.guide.median(values).items()
                if name in self.latents
            },
        }


def _shapes(tree: Mapping[str, Any]) -> Any:
    leaves, structure = jax.tree.flatten(dict(tree))
    return structure, [np.shape(leaf) for leaf in leaves]


runner = NumpyroRunner
