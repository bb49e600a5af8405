"""A NumPyro program, run with its parameters filled in: sites, priors, and the observed distribution as JAX functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.experimental import checkify
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed
from numpyro.primitives import Messenger

from gedppl.backends import LOCK
from gedppl.backends.checks import Record, analyse, name_sites
from gedppl.backends.jax_kernels import JaxKernels
from gedppl.backends.lowering import lower, strip
from gedppl.backends.program import Site, check_finite_initial
from gedppl.density import Density
from gedppl.errors import ModelError


class _Recorder(Messenger):
    """Notes every site of one run, as the handlers inside the program left it."""

    def __init__(self, fn: Any) -> None:
        super().__init__(fn)
        self.records: list[Record] = []

    def postprocess_message(self, msg: Any) -> None:
        kind, fn, value = msg["type"], msg.get("fn"), msg.get("value")
        if kind == "plate":
            size, subsample = msg["args"]
            self.records.append(Record(msg["name"], "plate", subsampled=subsample not in (None, size)))
        elif kind == "control_flow":
            self.records.append(Record(str(msg.get("name", "scan")), "control_flow"))
        elif kind in ("param", "sample"):
            if kind == "sample" and isinstance(fn, numpyro.distributions.Unit):
                self.records.append(Record(msg["name"], "factor"))
                return
            self.records.append(
                Record(
                    msg["name"], kind, value=value, fn=fn if kind == "sample" else None,
                    observed=bool(msg.get("is_observed")), scaled=msg.get("scale") not in (None, 1, 1.0),
                    discrete=kind == "sample" and bool(getattr(fn.support, "is_discrete", False)),
                    enumerable=kind == "sample" and bool(fn.has_enumerate_support),
                    shapes=_leaf_shapes(value),
                    constraint=msg["kwargs"].get("constraint", constraints.real) if kind == "param" else fn.support,
                )
            )  # fmt: skip


def _leaf_shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(value))


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread at a time in the handlers, float64, and no validation: values are checked at the door, in NumPy."""
    with LOCK, jax.enable_x64(True), numpyro.validation_enabled(False):
        yield


def record(model: Any, x: np.ndarray, a: np.ndarray, y: np.ndarray | None = None) -> tuple[list[Record], Exception | None]:
    """The sites of one seeded run, and what the program raised, if it did."""
    y = np.zeros(len(a)) if y is None else y
    with _quiet():
        recorder = _Recorder(seed(model, jax.random.key(0)))
        placeholder = jnp.asarray(y)
        try:
            recorder(jnp.asarray(x), jnp.asarray(a), placeholder)
        except Exception as failure:  # whatever a user's program raises; the caller decides what it means
            return recorder.records, failure
        for site in recorder.records:
            site.sees_y = site.value is placeholder
        return recorder.records, None


class _Fill(Messenger):
    """Fills parameters from a flat vector and discrete row latents from an assignment; keeps priors and the outcome."""

    def __init__(self, fn: Any, program: TracedProgram, theta: Any, assignment: Mapping[str, Any], given: Any) -> None:
        super().__init__(fn)
        self.program, self.theta, self.assignment, self.given = program, theta, assignment, given
        self.values: dict[str, Any] = {}
        self.free: dict[str, Any] = {}
        self.log_prior: Any = 0.0
        self.log_weight: Any = 0.0
        self.observed: Any = None

    def process_message(self, msg: Any) -> None:
        name, kind = msg.get("name"), msg["type"]
        if kind == "param":
            msg["value"] = self._param(name, msg["kwargs"].get("constraint", constraints.real))
        elif kind == "sample" and name == self.program.observed:
            self.observed = msg["fn"]
        elif kind == "sample" and name in self.assignment:
            fn = msg["fn"]
            value = jnp.full(jnp.shape(fn.mean) if not fn.event_shape else fn.shape(), self.assignment[name])
            value = value.astype(jnp.int64)
            self.log_weight = self.log_weight + fn.log_prob(value)
            msg["value"] = value
        elif kind == "sample" and not msg["is_observed"]:
            msg["value"] = self._sample(name, msg)

    def _param(self, name: str, constraint: Any) -> Any:
        transform = biject_to(constraint)
        leaves = [self._leaf(site, transform, None)[0] for site in self.program.groups[name]]
        return jax.tree.unflatten(self.program.trees[name], leaves)

    def _sample(self, name: str, msg: Any) -> Any:
        (site,) = self.program.groups[name]
        fn = msg["fn"]
        key = msg["kwargs"].get("rng_key") if self.given == "draw" else None
        value, free = self._leaf(site, biject_to(fn.support), None if key is None else fn.sample(key))
        jacobian = biject_to(fn.support).log_abs_det_jacobian(free, value)
        self.log_prior = self.log_prior + jnp.sum(fn.log_prob(value)) + jnp.sum(jacobian)
        return value

    def _leaf(self, site: Site, transform: Any, drawn: Any) -> tuple[Any, Any]:
        """The constrained and unconstrained value of one array: from theta, given by name, or drawn."""
        if isinstance(self.given, Mapping):
            value = self.given[site.name]
        else:
            value = drawn
        if value is None:
            free = self.theta[site.start : site.stop].reshape(site.free_shape)
            value = transform(free)
        else:
            free = transform.inv(value)
        self.values[site.name], self.free[site.name] = value, free
        return value, free


class Pass(NamedTuple):
    """What one run of the program at fixed parameters gives."""

    observed: Any
    log_prior: Any
    log_weight: Any
    values: dict[str, Any]
    free: dict[str, Any]


class TracedProgram(JaxKernels):
    """A NumPyro program whose sites are known."""

    backend = "numpyro"

    def __init__(self, model: Any, x: np.ndarray, a: np.ndarray) -> None:
        super().__init__()
        self.model = model
        self.x, self.a = x[:1], a[:1]
        with _quiet():
            outline = analyse(lambda x, a, y=None: record(model, x, a, y)[0], x, a)
            self.observed, self.event_shape = outline.observed, outline.event_shape
            self.sites, self.groups, self.trees = self._lay_out(outline.parameters)
            self.dim = self.sites[-1].stop if self.sites else 0
            self._constraints = {record.name: record.constraint for record in outline.parameters}
            self._start = {record.name: record.value for record in outline.parameters if record.kind == "param"}
            self.assignments = self._assignments(outline.enumerated)
            fn = strip(outline.observed_fn)
            self.discrete = bool(fn.support.is_discrete)
            self.support_name = str(fn.support)

    @staticmethod
    def _lay_out(parameters: list[Record]) -> tuple[tuple[Site, ...], dict[str, list[Site]], dict[str, Any]]:
        """Place every array of every parameter in the flat vector; a module is one site with a tree of arrays."""
        arrays, trees = [], {}
        for site in parameters:
            paths, trees[site.name] = jax.tree_util.tree_flatten_with_path(site.value)
            transform = biject_to(site.constraint)
            for path, leaf in paths:
                suffix = jax.tree_util.keystr(path, simple=True, separator="/")
                shape = jnp.shape(leaf)
                arrays.append((site.name, suffix, site.kind == "sample", shape, tuple(transform.inverse_shape(shape))))
        return (*name_sites(arrays), trees)

    @staticmethod
    def _assignments(enumerated: list[Record]) -> list[dict[str, Any]]:
        """Every combination of values of the discrete row latents; one empty combination if there are none."""
        values = [np.unique(np.asarray(site.fn.enumerate_support(expand=False))) for site in enumerated]
        return [dict(zip([site.name for site in enumerated], combination)) for combination in product(*values)]

    # one pass through the program -------------------------------------------------------------------------------------

    def run(self, theta: Any, x: Any, a: Any, *, assignment: Mapping[str, Any] | None = None, given: Any = None,
            key: Any = None) -> Pass:  # fmt: skip
        """Run the program at a flat vector (or at `given` constrained values); traceable by JAX."""
        y = jnp.zeros((x.shape[0], *self.event_shape))
        model = seed(self.model, jax.random.key(0) if key is None else key)
        with _quiet():
            fill = _Fill(model, self, theta, self.assignments[0] if assignment is None else assignment, given)
            fill(x, a, y)
        if fill.observed is None:
            raise ModelError(f"the observed site {self.observed!r} was not reached: a program's sites must not depend on x, a or y")
        return Pass(fill.observed, jnp.asarray(fill.log_prior, float), fill.log_weight, fill.values, fill.free)

    def row_log_likelihood(self, theta: Any, x: Any, a: Any, y: Any) -> Any:
        """log p(y_i | x_i, a_i, theta), (n,); discrete row latents summed out."""
        outcome = y.astype(jnp.int64) if self.discrete else y
        terms = []
        for assignment in self.assignments:
            one = self.run(theta, x, a, assignment=assignment)
            logp = one.observed.log_prob(outcome)
            if self.moving_support:
                logp = jnp.where(one.observed.support(outcome), logp, -jnp.inf)
            terms.append(jnp.broadcast_to(one.log_weight + logp, (x.shape[0],)))
        return terms[0] if len(terms) == 1 else jax.nn.logsumexp(jnp.stack(terms), axis=0)

    def row_density(self, theta: Any, x: Any, a: Any) -> Density:
        """The density of each row's outcome, batch (n,); discrete row latents give a Mixture."""
        shape = (x.shape[0],)
        passes = [self.run(theta, x, a, assignment=assignment) for assignment in self.assignments]
        parts = tuple(lower(one.observed, shape) for one in passes)
        if len(parts) == 1:
            return parts[0]
        weights = jnp.stack([jnp.broadcast_to(jnp.exp(one.log_weight), shape) for one in passes], axis=-1)
        return Density("Mixture", {"probs": weights, "components": parts})

    # what needs no compilation or little ------------------------------------------------------------------------------

    @property
    def family(self) -> str:
        return self.outline_density.family

    def named_leaves(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by array name; a module's tree given under its site's name is taken apart."""
        named: dict[str, Any] = {}
        for name, value in params.items():
            group = self.groups.get(name)
            if group is not None and [site.name for site in group] != [name]:
                leaves, tree = jax.tree.flatten(value)
                if tree != self.trees[name]:
                    raise ModelError(f"parameter {name!r} must be a tree like the model's own, {self.trees[name]}, got {tree}")
                named |= {site.name: leaf for site, leaf in zip(group, leaves)}
            else:
                named[name] = value
        return named

    def constraint_of(self, name: str) -> Any:
        owner = next(owner for owner, group in self.groups.items() if name in [site.name for site in group])
        return self._constraints[owner]

    def default_initial(self) -> np.ndarray:
        """Where fits start: `param` sites at their own initial value, sample sites at the median of 99 prior draws."""
        start = np.zeros(self.dim)
        with jax.enable_x64(True):
            for name, value in self._start.items():
                inverse = biject_to(self._constraints[name]).inv
                for site, leaf in zip(self.groups[name], jax.tree.leaves(value)):
                    start[site.start : site.stop] = np.ravel(inverse(jnp.asarray(leaf, float)))
        has_prior = [np.arange(site.start, site.stop) for site in self.sites if site.prior]
        if has_prior:
            index = np.concatenate(has_prior)
            start[index] = np.median(self.draw_prior(99, 0, start, jitter=0.0)[:, index], axis=0)
        return start

    def check_initial(self, initial: np.ndarray) -> None:
        """Raise if the log-density of an outcome the model itself draws is NaN at the initial parameters."""
        values = {name: value[0] for name, value in self.constrain(initial[None]).items()}
        with _quiet():
            observed = self.run(jnp.asarray(initial), jnp.asarray(self.x), jnp.asarray(self.a)).observed
            drawn = np.asarray(observed.expand((1,)).sample(jax.random.key(0)), float)
        check_finite_initial(self.log_likelihood(initial[None], self.x, self.a, drawn), "log-density", values)
        check_finite_initial(self.log_prior(initial[None]), "log prior", values)

    def action_problem(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        """What an index past the end of an array says, or None; plain JAX clamps such an index without a word."""
        with _quiet():
            probe = checkify.checkify(
                lambda theta, x, a: self.run(theta, x, a).observed.log_prob(jnp.zeros((1, *self.event_shape), int)),
                errors=checkify.index_checks,
            )
            error, _ = probe(jnp.asarray(theta), jnp.asarray(x), jnp.asarray(a))
            message = error.get()
        return message and message.strip().splitlines()[0]


