"""How questions about a traced NumPyro program are run: compiled, one function per kind of question
and shape bucket.

Histories are padded to the buckets of `gedppl.rows` and weighted; smaller questions (a few actions
at many settings) are padded to 8, 64, 512 or 4096 rows, larger ones cut into such pieces. Padding
repeats a real row, because a NaN or an out-of-support value gives NaN gradients even under weight
0. Axis letters: M parameter settings, n rows, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from gedppl.errors import ContextRangeError
from gedppl.numerics.arrays import namespace_of
from gedppl.programs.affine import Level
from gedppl.programs.backend import Many, One
from gedppl.programs.contract import away_from
from gedppl.programs.jax_compiled import Compiled
from gedppl.programs.jax_first_look import FirstLook, first_look
from gedppl.programs.jax_operations import lowest_indices, slopes, used
from gedppl.programs.jax_reader import JaxArithmetic, links, listing
from gedppl.programs.kernels import Kernels
from gedppl.programs.links import Table
from gedppl.programs.tracing import negative_index, trial_rows
from gedppl.programs.values import Listing
from gedppl.rows import PIECES, Parts, Rows, Slopes, bucket, pad, pieces, settings_size

MAX_CELLS = 1 << 22  # settings times rows evaluated at once
DRAWS = 128  # prior draws at once
AHEAD = 48  # rows before the end of a bucket by which the next one is begun at the latest
KNOWN_ROWS = 10_000  # that are remembered as checked
AT_ONCE = 64  # settings whose sums over a history are asked for in one call


class JaxKernels(Kernels):
    """Compiled functions over the program's `run`."""

    xp = namespace_of("jax")
    arithmetic = JaxArithmetic()
    values_may_leave = False
    no_graph = ()
    # set when a predictor is found: (x, a) -> (index error, [features, offset, others])
    predictor_parts: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self._compiled = Compiled()
        self._look: FirstLook | None = None
        self._in_range: set[bytes] = set()  # rows that read nothing past an end

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

    def precisely(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = jax.enable_x64(True)
        return found

    def array(self, value: np.ndarray) -> jax.Array:
        return jnp.asarray(value)

    def as_float(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(value, float)

    def to_numpy(self, value: jax.Array) -> np.ndarray:
        return np.asarray(value)

    def grad(self, function: One) -> One:
        found: One = jax.grad(function)
        return found

    def value_and_grad(self, function: One) -> One:
        found: One = jax.value_and_grad(function)
        return found

    def jacobian(self, function: One) -> One:
        found: One = jax.jacfwd(function)
        return found

    def vmap(self, function: Many) -> Many:
        found: Many = jax.vmap(function)
        return found

    def listing(self, function: Many, *args: np.ndarray) -> Listing:
        return listing(function, *args)

    def links(self) -> Table:
        return links()

    def example_values(self) -> list[np.ndarray]:
        return [np.zeros(site.shape) for site in self.sites]

    def abstractly(self, function: Callable[..., Any]) -> Any:
        """Arrays have shapes only."""
        found = []

        def note(theta: jax.Array, x: jax.Array, a: jax.Array) -> None:
            found.append(function(theta, x, a))

        jax.eval_shape(note, np.zeros(self.dim), self.x, self.a)
        return found[0]

    @property
    def moving_support(self) -> bool:
        def edges(theta: jax.Array, x: jax.Array, a: jax.Array) -> list[Any]:
            return list(jax.tree.leaves(self.run(theta, x, a).observed.support))

        return self.fact(
            "moving_support",
            lambda: any(
                level is not Level.FREE
                for level in self.levels(edges, np.zeros(self.dim), self.x, self.a)
            ),
        )

    # functions over settings and rows -------------------------------------------------------------

    def each_setting(
        self, name: str, one: Many, settings: Sequence[np.ndarray], static: Hashable = None
    ) -> list[np.ndarray]:
        m = len(settings[0])
        function = jax.vmap(one, (0,) * len(settings) + (None, None))
        padded = [pad(array, settings_size(m)) for array in settings]
        found = self.call(name, function, *padded, self.x, self.a, static=static)
        return [np.array(part)[:m] for part in found]

    def each_action(self, name: str, one: One, n_actions: int | None) -> Any:
        function, actions = jax.vmap(one, (None, 0)), np.arange(n_actions or 1)
        found = self.call(name, function, self.x, actions, static=n_actions)
        return jax.tree.map(np.asarray, found)

    def over_settings_and_rows(
        self, name: str, one: Many, theta: np.ndarray, rows: Sequence[np.ndarray], static: Hashable
    ) -> list[np.ndarray]:
        function = jax.vmap(one, (0,) + (None,) * len(rows))
        step = settings_size(MAX_CELLS // _first_size(len(rows[0])))
        parts = []
        for first in range(0, len(theta), step):
            some = theta[first : first + step]
            asked = pad(some, settings_size(len(some)))
            found = self.in_pieces(name, function, rows, first=(asked,), static=static, axis=1)
            parts.append([array[: len(some)] for array in found])
        return [np.concatenate(column) for column in zip(*parts)]

    def over_rows(
        self,
        name: str,
        row: Many,
        rows: Sequence[np.ndarray],
        fixed: Sequence[np.ndarray],
        static: Hashable,
    ) -> list[np.ndarray]:
        function = jax.vmap(row, (None,) * len(fixed) + (0,) * len(rows))
        return self.in_pieces(name, function, rows, first=fixed, static=static)

    def in_pieces(
        self,
        name: str,
        function: Many,
        rows: Sequence[np.ndarray],
        *,
        first: Sequence[np.ndarray] = (),
        static: Hashable = None,
        axis: int = 0,
    ) -> list[np.ndarray]:
        """function(*first, *rows) -> arrays with the rows on `axis`, asked in padded pieces; its
        error, if any, is left aside.
        """
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

    def parts_by_row(self, name: str, everything: Many) -> Parts:
        checked = checkify.checkify(everything, errors=checkify.index_checks)
        if name == "predictor":
            self.predictor_parts = checked
        return lambda x, a: self._answers.get(
            name, (x, a), lambda: self.in_pieces(name, checked, (x, a))
        )

    def slopes(self, parts: Parts, everything: Many) -> Slopes:
        return slopes(self, parts, everything)

    # parameters -----------------------------------------------------------------------------------

    def prior_derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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

    def drawn(self, around: np.ndarray, seed: int) -> np.ndarray:
        def one(theta: jax.Array, words: jax.Array, x: jax.Array, a: jax.Array) -> Any:
            key = jax.random.wrap_key_data(words)
            return self.flat(self.run(theta, x, a, given="draw", key=key).free)

        function, n = jax.vmap(one, (0, 0, None, None)), len(around)
        words = np.random.default_rng([seed, 2]).integers(0, 2**32, (n, 2), dtype=np.uint32)
        out = np.empty((n, self.dim))
        # always the same shape: random number generators are slow to compile
        for first in range(0, n, DRAWS):
            cut = slice(first, min(first + DRAWS, n))
            asked = pad(around[cut], DRAWS), pad(words[cut], DRAWS)
            found = self.call("draw_prior", function, *asked, self.x, self.a)
            out[cut] = np.asarray(found)[: cut.stop - first]
        return out

    # questions about a batch of rows --------------------------------------------------------------

    def inside(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        def function(theta: jax.Array, x: jax.Array, a: jax.Array, y: jax.Array) -> Any:
            return [jnp.broadcast_to(self.run(theta, x, a).observed.support(y), (x.shape[0],))]

        asked = (theta, x, a, y)
        return self._answers.get(
            "in_support",
            asked,
            lambda: self.in_pieces("in_support", function, asked[1:], first=asked[:1]),
        )[0]

    def action_problem(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        """What an index past the end of an array says at one row, or None; plain JAX clamps such
        an index silently.
        """

        # some transforms index past the end on purpose; then the check says nothing about actions,
        # and nothing about contexts. The first context may itself read past the end, but not at 0
        useless = self.fact(
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
            message: str | None = error.get()
            if message:
                return message.strip().splitlines()[0]
        return None

    @property
    def _index_check(self) -> One:
        def visit(theta: jax.Array, x: jax.Array, a: jax.Array) -> None:
            self.run(theta, x, a)

        checked: One = checkify.checkify(visit, errors=checkify.index_checks)
        return checked

    @property
    def reads_by_context(self) -> bool:
        """Whether contexts say which entry of an array is read: whether it lies past the end
        depends on them.
        """

        def checks(theta: jax.Array, x: jax.Array, a: jax.Array) -> list[Any]:
            return list(jax.tree.leaves(self._index_check(theta, x, a)[0]))

        return self.fact(
            "reads_by_context",
            lambda: used(checks, np.zeros(self.dim), self.x, self.a)[1],
        )

    def check_contexts(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> None:
        """Refuse contexts that read past the end of an array: plain JAX takes its last entry, and
        the certificate of one level would be that of another. Negative ones count from the end.
        """
        if not self.reads_by_context:
            return
        rows = {row.tobytes() for row in np.column_stack([x, a])}
        if rows <= self._in_range:
            return
        self._look_up(theta, x, a)
        self._in_range = rows if len(self._in_range) > KNOWN_ROWS else self._in_range | rows

    def _look_up(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> None:
        """`check_contexts` for rows that nobody has asked about."""
        from_the_end = self.reads_from_the_end(theta, x, a)
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

    def reads_from_the_end(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> bool:
        return bool((self._lowest(theta, x, a) < 0).any())

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
        return np.asarray(np.min(parts, axis=0))

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
                parts = self.in_pieces("predictor", self.predictor_parts, (x, a))
            else:
                other = theta + 0.3 * np.cos(1 + np.arange(self.dim))
                parts = self.in_pieces("apart", logs, (x, a), first=(other,))
            return np.concatenate([part.reshape(len(a), -1) for part in parts], axis=1)

        alone = [said(x[i : i + 1], a[i : i + 1]) for i in range(len(a))]
        return said(x, a), np.concatenate(alone)

    # sums over a history --------------------------------------------------------------------------

    def remember(self, rows: Rows) -> tuple[Any, ...]:
        """The padded history on the device: x, a, y and weights."""
        with jax.enable_x64(True):
            return self.histories.get(
                rows, lambda: tuple(jax.device_put(array) for array in rows.padded())
            )

    def _history(self, rows: Rows, weights: np.ndarray | None) -> tuple[Any, ...]:
        x, a, y, w = self.remember(rows)
        if weights is not None:
            w = np.zeros(w.shape)
            w[: rows.n] = weights
        return x, a, y, w

    def _next_bucket(
        self, name: str, function: Callable[..., Any], first: tuple[np.ndarray, ...], rows: Rows
    ) -> None:
        """Begin to compile function(*first, *history) for the next bucket once this one is half
        full, the first one earlier, so that no decision has to wait for it in the middle of a run.
        """
        size = bucket(rows.n)
        if size - rows.n < max(size // 2, AHEAD):
            history = [
                jax.ShapeDtypeStruct((bucket(size + 1), *array.shape[1:]), array.dtype)
                for array in self.remember(rows)
            ]
            self._compiled.begin(name, function, *first, *history)

    def over_history(
        self, name: str, one: Many, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> list[np.ndarray]:
        """One setting after another: on a CPU as fast as side by side, and however many there are,
        a history's bucket is compiled once.
        """

        def function(theta: jax.Array, m: jax.Array, *history: tuple[jax.Array, ...]) -> Any:
            def step(i: jax.Array, out: jax.Array) -> Any:
                return jax.tree.map(
                    lambda all_, new: all_.at[i].set(new), out, one(theta[i], *history)
                )

            shapes = jax.eval_shape(one, theta[0], *history)
            return jax.lax.fori_loop(
                0, m, step, jax.tree.map(lambda leaf: jnp.zeros((AT_ONCE, *leaf.shape)), shapes)
            )

        history, parts = self._history(rows, weights), []
        for first in range(0, len(theta), AT_ONCE):
            some = theta[first : first + AT_ONCE]
            asked = pad(some, AT_ONCE), np.array(len(some))
            out = self.call(name, function, *asked, *history)
            self._next_bucket(name, function, asked, rows)
            parts.append([np.asarray(leaf)[: len(some)] for leaf in jax.tree.leaves(out)])
        return [np.concatenate(column) for column in zip(*parts)]

    def hessian_over_history(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> np.ndarray:
        def function(theta: jax.Array, *history: tuple[jax.Array, ...]) -> Any:
            grad = jax.grad(self.weighted_sum)

            def column(direction: jax.Array) -> Any:
                return jax.jvp(lambda one: grad(one, *history), (theta,), (direction,))[1]

            if self.dim <= 64:
                return jax.vmap(column)(jnp.eye(self.dim))
            # bounds the memory of a large network
            return jax.lax.map(column, jnp.eye(self.dim), batch_size=32)

        hessian = np.array(
            self.call("total_hessian", function, theta, *self._history(rows, weights))
        )
        self._next_bucket("total_hessian", function, (theta,), rows)
        return hessian


def _first_size(n: int) -> int:
    """To how many rows the first piece of n is padded: none is longer."""
    return next(size for _, size in pieces(max(n, 1)))
