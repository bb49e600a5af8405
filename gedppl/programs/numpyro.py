"""A NumPyro program, run with its parameters filled in: sites, priors, and the observed
distribution as JAX functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import IdentityTransform, IndependentTransform
from numpyro.handlers import seed
from numpyro.primitives import Messenger

from gedppl.errors import ModelError, ParameterError
from gedppl.programs import LOCK
from gedppl.programs.backend import Pass
from gedppl.programs.checks import (
    SiteRecord,
    analyse,
    assignments,
    is_discrete,
    name_sites,
    refuse_outcome_use,
    refuse_unsteady,
)
from gedppl.programs.identity import looks_alike, settings
from gedppl.programs.jax_kernels import JaxKernels
from gedppl.programs.jax_operations import same_operations, what_matters, written
from gedppl.programs.lowering import (
    is_masked,
    may_cross,
)
from gedppl.programs.tracing import MANY, TRIALS, Site, support_of

if TYPE_CHECKING:
    from numpyro.distributions.transforms import Transform

    from gedppl.programs.contract import Distribution, Program


class NumpyroRecorder(Messenger):
    """Notes every site of one run, as the handlers inside the program left it."""

    def __init__(self, fn: Distribution) -> None:
        super().__init__(fn)
        self.records: list[SiteRecord] = []

    def process_message(self, msg: dict[str, Any]) -> None:
        if is_flat(msg) and msg["value"] is None:
            msg["value"] = somewhere(msg["fn"])

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        kind = msg["type"]
        fn: Any = msg.get("fn")
        value: Any = msg.get("value")
        if kind == "plate":
            size, subsample = msg["args"]
            self.records.append(
                SiteRecord(msg["name"], "plate", subsampled=subsample not in (None, size))
            )
        elif kind == "control_flow":
            self.records.append(SiteRecord(str(msg.get("name", "scan")), "control_flow"))
        elif kind == "param" and value is not None:
            # flax_module first asks whether a value is there
            shapes = tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(value))
            constraint = msg["kwargs"].get("constraint", constraints.real)
            free = tuple(tuple(biject_to(constraint).inverse_shape(shape)) for shape in shapes)
            self.records.append(
                SiteRecord(
                    msg["name"],
                    "param",
                    value=value,
                    shapes=shapes,
                    free_shapes=free,
                    constraint=str(constraint),
                    range=support_of(constraint),
                    unconstrained=_is_identity(biject_to(constraint)),
                )
            )
        elif kind == "sample" and isinstance(fn, numpyro.distributions.Unit):
            self.records.append(SiteRecord(msg["name"], "factor"))
        elif kind == "sample":
            latent = not msg["is_observed"] and not is_discrete(fn)
            free_shape = (
                tuple(biject_to(fn.support).inverse_shape(jnp.shape(value))) if latent else ()
            )
            self.records.append(
                SiteRecord(
                    msg["name"],
                    "param" if is_flat(msg) else "sample",
                    value=value,
                    fn=fn,
                    observed=bool(msg["is_observed"]),
                    scaled=msg["scale"] not in (None, 1, 1.0),
                    masked=is_masked(fn),
                    discrete=is_discrete(fn),
                    outcomes=None if msg["is_observed"] else _outcomes(fn),
                    shapes=(jnp.shape(value),),
                    free_shapes=(free_shape,),
                    constraint=str(fn.support),
                    range=support_of(fn.support),
                    unconstrained=latent and _is_identity(biject_to(fn.support)),
                )
            )


def is_flat(msg: dict[str, Any]) -> bool:
    """Whether a site says that it has no prior, so that nothing can be drawn: a `param` then."""
    return (
        msg["type"] == "sample"
        and isinstance(msg["fn"], numpyro.distributions.ImproperUniform)
        and not msg["is_observed"]
    )


def somewhere(fn: numpyro.distributions.Distribution) -> jax.Array:
    """A value in the middle of a distribution's support."""
    transform = biject_to(fn.support)
    return transform(jnp.zeros(transform.inverse_shape(fn.shape())))


def _is_identity(transform: Transform) -> bool:
    if isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    return isinstance(transform, IdentityTransform)


def _outcomes(fn: Distribution) -> np.ndarray | None:
    """The values a discrete distribution can take, if they are finitely many."""
    if not fn.has_enumerate_support or not is_discrete(fn):
        return None
    try:
        with jax.ensure_compile_time_eval():
            return np.unique(np.asarray(fn.enumerate_support(expand=False)))
    except (jax.errors.ConcretizationTypeError, NotImplementedError):  # they differ from row to row
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread at a time in the handlers, float64, and no validation: values are checked at
    the door, in NumPy.
    """
    with LOCK, jax.enable_x64(True), numpyro.validation_enabled(False):
        yield


@contextmanager
def untouched() -> Iterator[None]:
    """A program that runs inside leaves no trace; NumPyro keeps nothing between runs."""
    yield


def record(
    model: Program, x: np.ndarray, a: np.ndarray
) -> tuple[list[SiteRecord], Exception | None]:
    """The sites of one run, and what the program raised, if it did. Shapes only: no number is
    computed.
    """
    recorder = NumpyroRecorder(model)

    def run(x: jax.Array, a: jax.Array, y: jax.Array) -> None:
        recorder.fn = seed(model, jax.random.key(0))
        recorder(x, a, y)
        for site in recorder.records:
            site.sees_y = site.value is y

    with _quiet():
        try:
            jax.eval_shape(run, x, a, np.zeros(len(a)))
        except Exception as failure:
            # whatever a user's program raises; the caller decides what it means
            return recorder.records, failure
    return recorder.records, None


class NumpyroFill(Messenger):
    """Fills parameters from a flat vector and discrete row latents from an assignment; keeps priors
    and the outcome.

    `given` says otherwise: constrained values by name, "draw" (sample sites from their priors) or
    "start" (the same, and `param` sites at their initial values).
    """

    def __init__(
        self,
        fn: Distribution,
        program: NumpyroProgram,
        theta: jax.Array,
        assignment: Mapping[str, Any],
        given: Any,
    ) -> None:
        super().__init__(fn)
        self.program, self.theta, self.assignment, self.given = program, theta, assignment, given
        self.values: dict[str, Any] = {}
        self.free: dict[str, Any] = {}
        self.priors: list[tuple[str, Any, Transform]] = []  # site, distribution, transform
        self.log_weight: Any = 0.0
        self.observed: Any = None

    def process_message(self, msg: dict[str, Any]) -> None:
        name, kind = msg.get("name", ""), msg["type"]
        if kind == "param" and self.given != "start":
            transform = biject_to(msg["kwargs"].get("constraint", constraints.real))
            leaves = [self._place(site, transform) for site in self.program.groups[name]]
            msg["value"] = jax.tree.unflatten(self.program.trees[name], leaves)
        elif kind == "sample" and name == self.program.observed:
            self.observed = msg["fn"]
            if msg["value"] is None:  # run without y: nothing needs to be drawn
                msg["value"] = jnp.zeros(msg["fn"].shape())
        elif kind == "sample" and name in self.assignment:
            msg["value"] = jnp.full(msg["fn"].shape(), self.assignment[name], jnp.int64)
            self.log_weight = self.log_weight + msg["fn"].log_prob(msg["value"])
        elif kind == "sample" and not msg["is_observed"]:
            (site,) = self.program.groups[name]
            fn, transform = msg["fn"], biject_to(msg["fn"].support)
            if is_flat(msg):
                msg["value"] = self._place(
                    site, transform, somewhere(fn) if self.given == "start" else None
                )
                return
            drawn = fn.sample(msg["kwargs"]["rng_key"]) if self.given in ("draw", "start") else None
            msg["value"] = self._place(site, transform, drawn)
            self.priors.append((name, fn, transform))

    def logs(self) -> tuple[jax.Array, jax.Array]:
        """The log-density of the unconstrained values under the priors, and what the transforms
        add to it.
        """
        log_prior: Any = 0.0
        log_jacobian: Any = 0.0
        with _quiet():
            for name, fn, transform in self.priors:
                value = self.values[name]
                jacobian = jnp.sum(transform.log_abs_det_jacobian(self.free[name], value))
                log_prior = log_prior + jnp.sum(fn.log_prob(value)) + jacobian
                log_jacobian = log_jacobian + jacobian
        return jnp.asarray(log_prior, float), jnp.asarray(log_jacobian, float)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "param" and self.given == "start" and msg["value"] is not None:
            transform = biject_to(msg["kwargs"].get("constraint", constraints.real))
            for site, leaf in zip(self.program.groups[msg["name"]], jax.tree.leaves(msg["value"])):
                self._place(site, transform, jnp.asarray(leaf, float))

    def _place(self, site: Site, transform: Transform, value: jax.Array = None) -> Any:
        """One array's constrained value: the one passed, given by name, or from theta. Both its
        forms are kept.
        """
        if value is None and isinstance(self.given, Mapping):
            value = self.given[site.name]
        if value is None:
            # `theta[start:stop].reshape(...)` is the same and takes ten times as long to trace
            part = jax.lax.slice_in_dim(self.theta, site.start, site.stop)
            free = jax.lax.reshape(part, site.free_shape)
            value = transform(free)
        else:
            free = transform.inv(value)
        self.values[site.name], self.free[site.name] = value, free
        return value


class NumpyroProgram(JaxKernels):
    """A NumPyro program whose sites are known."""

    backend = "numpyro"

    def __init__(self, model: Program, x: np.ndarray, a: np.ndarray) -> None:
        super().__init__()
        self.model = model
        self.x, self.a = x[:1], a[:1]
        outline = analyse(lambda x, a: record(model, x, a), x, a)
        self.observed, self.event_shape = outline.observed, outline.event_shape
        self.sites, self.groups, self.trees = self._lay_out(outline.parameters)
        self.dim = self.sites[-1].stop if self.sites else 0
        self._constraints = {record.name: record.constraint for record in outline.parameters}
        self.assignments = assignments(outline.enumerated)
        self.discrete = is_discrete(outline.observed_fn)
        self.has_cutpoints = may_cross(outline.observed_fn)
        self.support_name = str(outline.observed_fn.support)
        self.ranges = {
            site.name: record.range
            for record in outline.parameters
            for site in self.groups[record.name]
        }
        self.unconstrained = all(record.unconstrained for record in outline.parameters)
        self._check_outcome_use()
        found = [self.identify(assignment) for assignment in self.assignments]
        self.known_family, self.packaged = (
            all(one.known for one in found),
            all(one.packaged for one in found),
        )

    def quietly(self) -> AbstractContextManager[Any]:
        return _quiet()

    def outcome(self, y: jax.Array) -> jax.Array:
        return y.astype(jnp.int64 if self.discrete else float)

    def supports(self, observed: Distribution, y: jax.Array) -> Any:
        return observed.support(y)

    def _check_outcome_use(self) -> None:
        """Refuse a program in which y does more than to be observed."""
        zeros = np.zeros((len(self.a), *self.event_shape))
        rows = (
            settings(self.dim)[1],
            self.x,
            self.a,
            zeros.astype(np.int64 if self.discrete else float),
            np.zeros(2, np.uint32),
        )

        def logs(
            y: jax.Array, theta: jax.Array, x: jax.Array, a: jax.Array, value: jax.Array, words: Any
        ) -> list[Any]:
            one = self.run(theta, x, a, y=y, key=jax.random.wrap_key_data(words))
            return [one.observed.log_prob(value), one.log_prior, jnp.asarray(one.log_weight)]

        with _quiet():
            used, text = what_matters(logs, zeros, *rows)
            refuse_outcome_use(used[0], False, self.observed)
            refuse_unsteady(used[-1])
            try:
                without = what_matters(lambda *rows: logs(None, *rows), *rows)[1]
            except Exception:
                # whatever a user's program raises without y: then it has nothing to say there
                return
            if text == without:
                return
            arrays = [jnp.asarray(array) for array in (zeros, *rows)]

            def differs(y: jax.Array) -> bool:
                pairs = zip(logs(*arrays), logs(y, *arrays[1:]))
                return any(looks_alike(*map(np.asarray, pair)) is False for pair in pairs)

            refuse_unsteady(differs(arrays[0]))
            refuse_outcome_use(False, differs(None), self.observed)

    def among_many(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What is said of rows x (n, dx), a (n,) among many, and among few, with the log-prior:
        only at numbers of rows where the program's operations are others than at few of them.
        """

        def said(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            passes = [self.run(theta, x, a, assignment=one) for one in self.assignments]
            zeros = jnp.zeros((len(a), *self.event_shape))
            y = self.outcome(jnp.asarray(passes[0].observed.support.feasible_like(zeros), float))
            return self.row_logs(passes, y, len(a)), passes[0].log_prior

        def rows(n: int) -> list[np.ndarray]:
            return [np.resize(part, (n, *part.shape[1:])) for part in (x, a)]

        def others() -> list[int]:
            few, *more = (written(said, theta, *rows(n)) for n in (TRIALS, *MANY))
            return [n for n, many in zip(MANY, more) if not same_operations(few, many, TRIALS, n)]

        def computed(n: int) -> np.ndarray:
            logs, prior = jax.jit(said)(theta, *rows(n))
            return np.append(np.asarray(logs)[: len(a)], prior)

        with _quiet():
            for many in self.fact("other_at", others):
                yield computed(many), computed(TRIALS)

    @staticmethod
    def _lay_out(
        parameters: list[SiteRecord],
    ) -> tuple[tuple[Site, ...], dict[str, list[Site]], dict[str, Any]]:
        """Place every array of every parameter in the flat vector; a module is one site with a
        tree of arrays.
        """
        arrays, trees = [], {}
        for site in parameters:
            paths, trees[site.name] = jax.tree_util.tree_flatten_with_path(site.value)
            for (path, _), shape, free_shape in zip(paths, site.shapes, site.free_shapes):
                suffix = jax.tree_util.keystr(path, simple=True, separator="/")
                arrays.append((site.name, suffix, site.kind == "sample", shape, free_shape))
        return (*name_sites(arrays), trees)

    # one pass through the program -----------------------------------------------------------------

    def run(
        self,
        theta: jax.Array,
        x: jax.Array,
        a: jax.Array,
        *,
        assignment: Mapping[str, Any] | None = None,
        given: Any = None,
        key: jax.Array = None,
        y: jax.Array = "zeros",
    ) -> Pass:
        """Run the program at a flat vector (or at `given` constrained values); traceable by JAX.

        What y is does not matter, which `_check_outcome_use` makes sure of.
        """
        y = jnp.zeros((x.shape[0], *self.event_shape)) if isinstance(y, str) else y
        model = seed(self.model, jax.random.key(0) if key is None else key)
        with _quiet():
            fill = NumpyroFill(
                model, self, theta, self.assignments[0] if assignment is None else assignment, given
            )
            fill(x, a, y)
        if fill.observed is None:
            raise ModelError(
                f"the observed site {self.observed!r} was not reached: sites must not "
                "depend on x, a or y"
            )
        return Pass(fill.observed, fill.logs, fill.log_weight, fill.values, fill.free)

    # names ----------------------------------------------------------------------------------------

    def named_leaves(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by array name; a module's tree given under its site's name is taken apart."""
        named: dict[str, Any] = {}
        for name, value in params.items():
            group = self.groups.get(name)
            if group is not None and [site.name for site in group] != [name]:
                leaves, tree = jax.tree.flatten(value)
                if tree != self.trees[name]:
                    raise ParameterError(
                        f"parameter {name!r} must be a tree like the model's, "
                        f"{self.trees[name]}, got {tree}"
                    )
                named |= {site.name: leaf for site, leaf in zip(group, leaves)}
            else:
                named[name] = value
        return named

    def constraint_of(self, name: str) -> str:
        """What the program says of a parameter's range."""
        return next(
            str(self._constraints[owner])
            for owner, group in self.groups.items()
            if name in [s.name for s in group]
        )


traced = NumpyroProgram
