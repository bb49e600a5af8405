"""A traced program's compiled functions: one per kind of question and shape bucket.

Histories are padded to the buckets of `gedppl.rows` and weighted; smaller questions (a few actions
at many settings) are padded to 8, 64, 512 or 4096 rows, larger ones cut into such pieces. Padding
repeats a real row, because a NaN or an out-of-support value gives NaN gradients even under weight
0. Axis letters: M parameter settings, n rows, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from gedppl.density import Density
from gedppl.errors import ContextRangeError
from gedppl.programs import LOCK
from gedppl.programs.affine import Level
from gedppl.programs.contract import LinearPredictor, OrderedPredictor, away_from
from gedppl.programs.jax_affine import (
    levels,
    linear_predictor,
    lowest_indices,
    ordered_predictor,
    what_matters,
)
from gedppl.programs.jax_compiled import Compiled
from gedppl.programs.jax_first_look import FirstLook, first_look
from gedppl.programs.jax_seen import seen_by_data
from gedppl.programs.jax_sums import JaxSums
from gedppl.programs.lowering import crossing, external_density, is_external
from gedppl.programs.seen import Refusal, Seen
from gedppl.programs.tracing import negative_index, trial_rows
from gedppl.rows import PIECES, Answers, Histories, pad, pieces, settings_size

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gedppl.functionals import Functional

MAX_CELLS = 1 << 22  # settings times rows evaluated at once
DRAWS = 128  # prior draws at once
# families whose outcomes are whole numbers from 0 to this, at any parameter
COUNTED = {"Bernoulli": 1.0, "Poisson": np.inf}


class JaxKernels(JaxSums):
    """Compiled functions over `run`, `row_log_likelihood` and `row_density`, which the traced
    program provides.
    """

    run: Callable[..., Any]
    row_log_likelihood: Callable[..., Any]
    row_density: Callable[..., Density]
    sites: tuple[Any, ...]
    dim: int
    x: np.ndarray
    a: np.ndarray
    event_shape: tuple[int, ...]
    unconstrained: bool  # every parameter is its own free value: nothing is transformed
    packaged: bool  # nothing in the outcome is of a class that the packages do not bring
    known_family: bool  # its family is one of ours
    bare: Callable[..., Any]  # the outcome's distribution, without the wrappers of plates
    ranges: dict[str, tuple[float, float]]  # of the sites
    predictor_holds: Callable[[LinearPredictor], bool]
    assignments: list[dict[str, Any]]  # of the discrete latents that are summed out
    # set when a predictor is found: (x, a) -> (index error, [features, offset, others])
    predictor_parts: Callable[..., Any]

    def __init__(self) -> None:
        self._compiled = Compiled()
        self.histories = Histories()
        self._answers = Answers()
        self._look: FirstLook | None = None
        self._facts: dict[str, Any] = {}

    @property
    def compilations(self) -> dict[str, int]:
        """How often each function was compiled."""
        return self._compiled.counts

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        *args: np.ndarray | jax.Array,
        static: Hashable = None,
    ) -> Any:
        """Run `function` compiled for these shapes; results are JAX arrays."""
        key = (name, static, tuple(np.shape(arg) for arg in args))
        with jax.enable_x64(True):
            known = self._compiled.known.get(key)
            return (known or self._compiled.find(key, function, args))(*args)

    def _fact(self, name: str, find: Callable[[], Any]) -> Any:
        """Something about the program that is found out once."""
        if name not in self._facts:
            with LOCK, jax.enable_x64(True):
                self._facts[name] = find()
        return self._facts[name]

    # what kind of program it is -------------------------------------------------------------------

    @property
    def moving_support(self) -> bool:
        """Whether the support depends on the parameters; its edges are then part of the
        log-likelihood.
        """

        def find() -> bool:
            def edges(theta: jax.Array, x: jax.Array, a: jax.Array) -> list[Any]:
                return jax.tree.leaves(self.run(theta, x, a).observed.support)

            return any(
                level is not Level.FREE
                for level in levels(edges, np.zeros(self.dim), self.x, self.a)
            )

        return self._fact("moving_support", find)

    @property
    def outline_density(self) -> Density:
        """The structure of the density, without arrays."""

        def find() -> Density:
            return self.abstractly(self.row_density).map_args(lambda _: None)

        return self._fact("outline", find)

    def abstractly(self, function: Callable[..., Any]) -> Any:
        """What function(theta, x, a) returns, with arrays that have shapes only."""
        found = []

        def note(theta: jax.Array, x: jax.Array, a: jax.Array) -> None:
            found.append(function(theta, x, a))

        jax.eval_shape(note, np.zeros(self.dim), self.x, self.a)
        return found[0]

    @property
    def family(self) -> str:
        return self.outline_density.family

    @property
    def proved_normal(self) -> bool:
        """Whether every member is a Normal with a predictor affine in theta: any finite outcome
        has a positive density.
        """
        return self.predictor is not None and self.predictor.family == "Normal"

    @property
    def predictor(self) -> LinearPredictor | None:
        return self._fact("predictor", lambda: linear_predictor(self))

    @property
    def ordered(self) -> OrderedPredictor | None:
        return self._fact("ordered", lambda: ordered_predictor(self))

    @property
    def seen(self) -> Seen | Refusal:
        """What data see of the parameters, where the predictor is not affine in theta itself."""
        return self._fact("seen", lambda: seen_by_data(self))

    # parameters -----------------------------------------------------------------------------------

    def constrain(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Named constrained values, each with the leading axis M."""
        if self.unconstrained:
            return {
                site.name: theta[:, site.start : site.stop].reshape(-1, *site.shape)
                for site in self.sites
            }

        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            return jax.vmap(lambda one: self.run(one, x, a).values)(theta)

        out = self.call(
            "constrain", function, pad(theta, settings_size(len(theta))), self.x, self.a
        )
        return {
            site.name: np.array(out[site.name])[: len(theta)].reshape(-1, *site.shape)
            for site in self.sites
        }

    def unconstrain(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The flat vectors (M, D) of named constrained values; not finite where a value is
        outside its constraint.
        """
        if not values:
            return np.zeros((1, 0))
        m = len(next(iter(values.values())))

        def function(x: jax.Array, a: jax.Array, *arrays: jax.Array) -> Any:
            def one(*arrays: jax.Array) -> Any:
                given = dict(zip((site.name for site in self.sites), arrays))
                free = self.run(None, x, a, given=given).free
                theta = jnp.concatenate([jnp.ravel(free[site.name]) for site in self.sites])
                back = self.run(theta, x, a).values
                # a transform's inverse may return a number even for a value outside: then it does
                # not come back
                return jnp.concatenate(
                    [
                        jnp.where(
                            jnp.all(
                                jnp.abs(back[site.name] - given[site.name])
                                <= 1e-8 * (1 + jnp.abs(given[site.name]))
                            ),
                            jnp.ravel(free[site.name]),
                            jnp.nan,
                        )
                        for site in self.sites
                    ]
                )

            return jax.vmap(one)(*arrays)

        padded = [pad(values[site.name], settings_size(m)) for site in self.sites]
        return np.array(self.call("unconstrain", function, self.x, self.a, *padded))[:m]

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        if not any(site.prior for site in self.sites):
            return np.zeros(len(theta))

        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            return jax.vmap(lambda one: self.run(one, x, a).log_prior)(theta)

        return np.array(
            self.call("log_prior", function, pad(theta, settings_size(len(theta))), self.x, self.a)
        )[: len(theta)]

    def log_jacobian(self, theta: np.ndarray) -> np.ndarray:
        """(M,) log volume of the transforms from free to constrained values, over `sample`
        sites.
        """
        if self.unconstrained or not any(site.prior for site in self.sites):
            return np.zeros(len(theta))

        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            return jax.vmap(lambda one: self.run(one, x, a).log_jacobian)(theta)

        return np.array(
            self.call(
                "log_jacobian", function, pad(theta, settings_size(len(theta))), self.x, self.a
            )
        )[: len(theta)]

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not any(site.prior for site in self.sites):
            return np.zeros(self.dim), np.zeros((self.dim, self.dim))
        if self._look is not None and len(self._look.hessian):
            for i, place in enumerate((self._look.initial, away_from(self._look.initial))):
                if np.array_equal(theta, place):
                    return self._look.gradient[i], self._look.hessian[i]

        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            def prior(one: jax.Array) -> Any:
                return self.run(one, x, a).log_prior

            return jax.grad(prior)(theta), jax.hessian(prior)(theta)

        grad, hessian = self.call("log_prior_grad_hessian", function, theta, self.x, self.a)
        return np.array(grad), np.array(hessian)

    def default_initial(self) -> np.ndarray:
        """Where fits start: `param` sites at their own initial value, sample sites at the median
        of 99 prior draws.
        """
        self._look = first_look(self, *trial_rows(self.x, self.a))
        return self._look.initial

    def tried(self, initial: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-likelihoods (2, 3) of three rows among many and each alone, at two settings, and the
        log-prior at `initial`.
        """
        if self._look is None or not np.array_equal(self._look.initial, initial):
            self._look = first_look(self, *trial_rows(self.x, self.a), initial)
        return self._look.together, self._look.alone, self._look.log_prior

    def draw_prior(self, n: int, seed: int, initial: np.ndarray, jitter: float = 1.0) -> np.ndarray:
        """n draws (n, D): sample sites from their priors, `param` coordinates standard normal
        around `initial`.
        """
        noise = jitter * np.random.default_rng([seed, 1]).standard_normal((n, self.dim))
        if not any(site.prior for site in self.sites):
            return initial + noise

        def function(theta: jax.Array, words: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            def one(theta: jax.Array, words: jax.Array) -> Any:
                free = self.run(theta, x, a, given="draw", key=jax.random.wrap_key_data(words)).free
                return jnp.concatenate([jnp.ravel(free[site.name]) for site in self.sites])

            return jax.vmap(one)(theta, words)

        words = np.random.default_rng([seed, 2]).integers(0, 2**32, (n, 2), dtype=np.uint32)
        out = np.empty((n, self.dim))
        # always the same shape: random number generators are slow to compile
        for first in range(0, n, DRAWS):
            cut = slice(first, min(first + DRAWS, n))
            args = pad((initial + noise)[cut], DRAWS), pad(words[cut], DRAWS)
            out[cut] = np.asarray(self.call("draw_prior", function, *args, self.x, self.a))[
                : cut.stop - first
            ]
        return out

    # questions about a batch of rows --------------------------------------------------------------

    def _over_pieces(
        self,
        name: str,
        function: Callable[..., Any],
        theta: np.ndarray,
        rows: tuple[np.ndarray, ...],
        static: Hashable = None,
    ) -> np.ndarray:
        """function(theta (M, D), rows) -> (M, n), asked in padded pieces."""
        found = self._answers.get(
            (name, static),
            (theta, *rows),
            lambda: [self._in_pieces(name, function, theta, rows, static)],
        )
        return found[0]

    def _in_pieces(
        self,
        name: str,
        function: Callable[..., Any],
        theta: np.ndarray,
        rows: tuple[np.ndarray, ...],
        static: Hashable,
    ) -> np.ndarray:
        out = np.empty((len(theta), len(rows[0])))
        for cut, size in pieces(len(rows[0])):
            part = [pad(array[cut], size) for array in rows]
            step = settings_size(MAX_CELLS // size)
            for first in range(0, len(theta), step):
                some = theta[first : first + step]
                answer = self.call(
                    name, function, pad(some, settings_size(len(some))), *part, static=static
                )
                out[first : first + step, cut] = np.asarray(answer)[
                    : len(some), : cut.stop - cut.start
                ]
        return out

    def by_row(
        self,
        name: str,
        function: Callable[..., Any],
        rows: tuple[np.ndarray, ...],
        *,
        first: tuple[Any, ...] = (),
        static: Hashable = None,
        axis: int = 0,
    ) -> list[np.ndarray]:
        """function(*first, *rows) -> arrays with the rows on `axis`, asked in padded pieces; its
        error, if any, is left aside.
        """
        return self._answers.get(
            (name, static, axis),
            (*first, *rows),
            lambda: self._by_row(name, function, rows, first, static, axis),
        )

    def _by_row(
        self,
        name: str,
        function: Callable[..., Any],
        rows: tuple[np.ndarray, ...],
        first: tuple[Any, ...],
        static: Hashable,
        axis: int,
    ) -> list[np.ndarray]:
        parts = []
        for cut, size in pieces(len(rows[0])) if len(rows[0]) else [(slice(0, 0), PIECES[0])]:
            some = [
                pad(array[cut], size)
                if len(array)
                else np.zeros((size, *array.shape[1:]), array.dtype)
                for array in rows
            ]
            answer = self.call(name, function, *first, *some, static=static)
            take = (slice(None),) * axis + (slice(cut.stop - cut.start),)
            leaves = answer[1] if isinstance(answer[0], checkify.Error) else answer
            parts.append([np.asarray(leaf)[take] for leaf in leaves])
        return [np.concatenate(column, axis=axis) for column in zip(*parts)]

    def log_likelihood(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        def function(theta: jax.Array, x: jax.Array, a: jax.Array, y: jax.Array) -> Any:
            return jax.vmap(lambda one: self.row_log_likelihood(one, x, a, y))(theta)

        return self._over_pieces("log_likelihood", function, theta, (x, a, y))

    def score(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        def function(theta: jax.Array, x: jax.Array, a: jax.Array, y: jax.Array) -> Any:
            def row(one: jax.Array, x: jax.Array, a: jax.Array, y: jax.Array) -> Any:
                return self.row_log_likelihood(one, x[None], a[None], y[None])[0]

            return [jax.vmap(jax.grad(row), (None, 0, 0, 0))(theta, x, a, y)]

        return self.by_row("score", function, (x, a, y), first=(theta,))[0]

    def in_support(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """(n,) bool: inside a support that no parameter moves, and of finite log-density at one of
        three settings.

        The second part catches the edges of closed supports (a Beta outcome of exactly 0).
        """
        if self.moving_support or self.proved_normal:
            return np.ones(len(a), bool)
        if self.predictor is not None and self.predictor.family in COUNTED and self.packaged:
            return (y >= 0) & (y == np.floor(y)) & (y <= COUNTED[self.predictor.family])

        def function(theta: jax.Array, x: jax.Array, a: jax.Array, y: jax.Array) -> Any:
            return [jnp.broadcast_to(self.run(theta, x, a).observed.support(y), (x.shape[0],))]

        inside = self.by_row("in_support", function, (x, a, y), first=(theta,))[0]
        if self._fact(
            "may_cross",
            lambda: self.abstractly(lambda *args: crossing(self.run(*args).observed) is not None),
        ):
            # no edges to fall off, and at these settings the cutpoints may be out of order
            return inside
        near = theta + np.array([[0.0], [0.1], [-0.1]]) * np.cos(np.arange(self.dim))
        logs = self.log_likelihood(near, x, a, y)
        return inside & (np.isfinite(logs) | np.isnan(logs)).any(axis=0)

    def action_problem(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        """What an index past the end of an array says at one row, or None; plain JAX clamps such
        an index silently.
        """

        # some transforms index past the end on purpose; then the check says nothing about actions,
        # and nothing about contexts. The first context may itself read past the end, but not at 0
        useless = self._fact(
            "index_check_useless",
            lambda: all(self._past_the_end(theta, x, self.a) for x in (self.x, 0.0 * self.x)),
        )
        return None if useless else self._past_the_end(theta, x, a)

    def _past_the_end(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        for cut, size in pieces(len(a)):
            rows = pad(x[cut], size), pad(a[cut], size)
            if self.predictor is not None:  # its features are checked on the way
                error, _ = self.call("predictor", self.predictor_parts, *rows)
            else:
                error, _ = self.call("index_check", self._index_check, theta, *rows)
            message = error.get()
            if message:
                return message.strip().splitlines()[0]
        return None

    @property
    def _index_check(self) -> Callable[..., Any]:
        def visit(theta: jax.Array, x: jax.Array, a: jax.Array) -> None:
            self.run(theta, x, a)

        return checkify.checkify(visit, errors=checkify.index_checks)

    @property
    def reads_by_context(self) -> bool:
        """Whether contexts say which entry of an array is read: whether it lies past the end
        depends on them.
        """

        def checks(theta: jax.Array, x: jax.Array, a: jax.Array) -> list[Any]:
            return jax.tree.leaves(self._index_check(theta, x, a)[0])

        return self._fact(
            "reads_by_context",
            lambda: what_matters(checks, np.zeros(self.dim), self.x, self.a)[0][1],
        )

    def check_contexts(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> None:
        """Refuse contexts that read past the end of an array: plain JAX takes its last entry, and
        the certificate of one level would be that of another. Negative ones count from the end.
        """
        if not self.reads_by_context:
            return
        from_the_end = bool((self._lowest(theta, x, a) < 0).any())
        if not from_the_end and not self.action_problem(theta, x, a):
            return
        for i in range(len(a)):
            row = x[i : i + 1], a[i : i + 1]
            problem = self.action_problem(theta, *row)
            if from_the_end and not problem:
                problem = self._from_the_end(theta, *row)
            if problem:
                raise ContextRangeError(
                    f"context {x[i]} is out of range for this model: {problem} Give the model an "
                    "entry for it, or clip the index with jnp.clip if the last one is meant"
                )

    def _from_the_end(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        """What a negative index says at one row. What is negative at a context of zeros too is
        the program's own way.
        """
        here, there = self._lowest(theta, x, a), self._lowest(theta, 0.0 * x, a)
        wrong = here[(here < 0) & (here != there)]
        return negative_index(int(wrong[0])) if len(wrong) else None

    def _lowest(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """See `lowest_indices`: (k,)."""

        def lowest(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            return lowest_indices(lambda *rows: self.run(*rows).log_prior, theta, x, a)

        parts = [
            np.asarray(self.call("lowest", lowest, theta, pad(x[cut], size), pad(a[cut], size)))
            for cut, size in pieces(len(a))
        ]
        return np.min(parts, axis=0)

    def beside_and_alone(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is said of a few rows x (n, dx), a (n,) together, and of each alone: two (n, ...).

        Features where a predictor is proved, log-densities elsewhere.
        """

        def logs(theta: jax.Array, x: jax.Array, a: jax.Array) -> list[Any]:
            support = self.run(theta, x, a).observed.support
            y = jnp.asarray(support.feasible_like(jnp.zeros((len(a), *self.event_shape))), float)
            return [self.row_log_likelihood(theta, x, a, y)[:, None]]

        def said(x: np.ndarray, a: np.ndarray) -> np.ndarray:
            if self.predictor is not None:
                parts = self.by_row("predictor", self.predictor_parts, (x, a))
            else:
                other = theta + 0.3 * np.cos(1 + np.arange(self.dim))
                parts = self.by_row("apart", logs, (x, a), first=(other,))
            return np.concatenate([part.reshape(len(a), -1) for part in parts], axis=1)

        alone = [said(x[i : i + 1], a[i : i + 1]) for i in range(len(a))]
        return said(x, a), np.concatenate(alone)

    def values(
        self, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            def one(one: jax.Array) -> Any:
                return jnp.broadcast_to(
                    functional(self.row_density(one, x, a), x=x, a=a), (x.shape[0],)
                )

            return jax.vmap(one)(theta)

        return self._over_pieces("values", function, theta, (x, a), static=functional)

    def functional_at(
        self, functional: Functional, density: Density, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        """A functional of the user's at a density with NumPy arguments, in arrays of this
        backend.
        """
        with jax.enable_x64(True):
            return np.asarray(
                functional(density.map_args(jnp.asarray), x=jnp.asarray(x), a=jnp.asarray(a))
            )

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            def row(one: jax.Array, x: jax.Array, a: jax.Array) -> Any:
                x, a = x[None], a[None]
                return jnp.reshape(functional(self.row_density(one, x, a), x=x, a=a), ())

            return jax.vmap(jax.value_and_grad(row))(theta, x, a)

        value, grad = self.by_row("values_grad", function, (theta, x, a), static=functional)
        return value, grad

    def density(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, single: bool) -> Density:
        """The density with NumPy arguments, batch (M, n), or (n,) for a single setting."""
        if is_external(self.outline_density):
            with jax.enable_x64(True):
                return external_density(
                    lambda one: self.row_density(one, jnp.asarray(x), jnp.asarray(a)), theta, single
                )

        def function(theta: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            return jax.vmap(lambda one: self.row_density(one, x, a).leaves())(theta)

        padded = pad(theta, settings_size(len(theta)))
        arrays = [
            array[: len(theta)]
            for array in self.by_row("density", function, (x, a), first=(padded,), axis=1)
        ]
        return self.outline_density.rebuild([array[0] for array in arrays] if single else arrays)
