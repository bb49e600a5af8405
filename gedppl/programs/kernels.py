"""What is asked of a traced program, written once for both backends.

A question is a function of one setting or of one row, in the backend's own arrays. How such a
function is run over many of them is the backend's side (`gedppl.programs.backend`): `JaxKernels`
compiles it for a few padded shapes, `TorchKernels` maps it or loops.

Axis letters: M parameter settings, n rows, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gedppl.density import Density
from gedppl.errors import FunctionalError
from gedppl.numerics.arrays import ArrayOf
from gedppl.programs import LOCK
from gedppl.programs.affine import Level, levels, linear_predictor, ordered_predictor
from gedppl.programs.backend import Backend, Many, Pass
from gedppl.programs.identity import Identity, identify, predictor_holds
from gedppl.programs.lowering import (
    as_given,
    crossing,
    external,
    external_density,
    given_class,
    is_external,
    lower,
)
from gedppl.programs.monotone import once, trend
from gedppl.programs.row_reading import seen_by_data
from gedppl.programs.seen import Refusal, Seen
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.programs.contract import Distribution, LinearPredictor, OrderedPredictor

# families whose outcomes are whole numbers from 0 to this, at any parameter
COUNTED = {"Bernoulli": 1.0, "Poisson": np.inf}
NEAR = np.array([[0.0], [0.1], [-0.1]])  # steps to settings at which a log-density is tried


T = TypeVar("T")


class Kernels(Backend):
    """Questions about a traced program; NumPy float64 in and out."""

    # what kind of program it is -------------------------------------------------------------------

    def fact(self, name: str, find: Callable[[], T]) -> T:
        """Something about the program that is found out once."""
        if name not in self._facts:
            with LOCK, self.precisely():
                self._facts[name] = find()
        found: T = self._facts[name]
        return found

    @property
    def outline_density(self) -> Density:
        """The structure of the density, without arrays."""

        def find() -> Density:
            density: Density = self.abstractly(self.row_density)
            return density.map_args(lambda _: None)

        return self.fact("outline", find)

    @property
    def family(self) -> str:
        return self.outline_density.family

    def outcome_kind(self) -> str:
        """The packages' class of the outcome."""
        return str(self.abstractly(lambda *args: given_class(as_given(self.run(*args).observed))))

    @property
    def has_prior(self) -> bool:
        return any(site.prior for site in self.sites)

    @property
    def predictor(self) -> LinearPredictor | None:
        return self.fact("predictor", lambda: linear_predictor(self))

    @property
    def ordered(self) -> OrderedPredictor | None:
        return self.fact("ordered", lambda: ordered_predictor(self))

    @property
    def seen(self) -> Seen | Refusal:
        """What data see of the parameters, where the predictor is not affine in theta itself."""
        return self.fact("seen", lambda: seen_by_data(self))

    def levels(self, function: Many, *args: np.ndarray) -> list[Level]:
        """How each array that `function(*args)` returns depends on its first argument."""
        try:
            return levels(self.listing(function, *args))
        except self.no_graph:
            return [Level.OTHER]

    @property
    def proved_normal(self) -> bool:
        """Whether every member is a Normal with a predictor affine in theta: any finite outcome
        has a positive density.
        """
        return self.predictor is not None and self.predictor.family == "Normal"

    def observed_at(self, theta: np.ndarray, assignment: Mapping[str, Any] | None = None) -> Any:
        """The outcome's distribution at the first row."""
        rows = self.array(self.x), self.array(self.a)
        return self.run(self.array(theta), *rows, assignment=assignment).observed

    def log_prob(self, distribution: Distribution, y: np.ndarray) -> np.ndarray:
        return self.to_numpy(distribution.log_prob(self.outcome(self.array(y))))

    def crosses(self, theta: np.ndarray) -> bool:
        """Whether the outcome's cutpoints are out of order at theta (D,)."""
        with self.precisely():
            wrong = crossing(self.observed_at(theta))
            return wrong is not None and bool(wrong.any())

    def identify(self, assignment: Mapping[str, Any]) -> Identity:
        """What is observed: by what it does, not by its name."""
        with self.quietly():
            outline = self.abstractly(
                lambda theta, x, a: self.run(theta, x, a, assignment=assignment).observed
            )
            return identify(
                outline,
                lambda theta: self.observed_at(theta, assignment),
                self.log_prob,
                self.dim,
                len(self.a),
            )

    def predictor_holds(self, predictor: LinearPredictor) -> bool:
        """Whether a predictor's log-density is the program's; asked where a class of the user's
        is involved.
        """
        with self.quietly():
            return predictor_holds(
                predictor, self.observed_at, self.log_prob, self.x, self.a, self.dim
            )

    @once
    def way_of(self, fn: Callable[..., Any], positive: bool) -> int:
        """See `gedppl.programs.contract.Model.way_of`."""
        try:
            with self.precisely():
                y = np.ones((2, 1))
                steps = self.listing(lambda y, x, a: [fn(y, x, a)], y, self.x[:1], self.a[:1])
                return trend(steps, positive)
        except FunctionalError:
            raise  # a function that is tried out names its own failure
        except Exception:
            # whatever a user's function raises on arrays that have no numbers yet
            return 0

    # one pass through the program, row by row -----------------------------------------------------

    def bare(self, given: Mapping[str, Any], x: ArrayOf, a: ArrayOf) -> Any:
        """The outcome's distribution at constrained values by site, without the wrappers of
        plates.
        """
        return as_given(self.run(None, x, a, given=given).observed)

    def row_log_likelihood(
        self,
        theta: ArrayOf | None,
        x: ArrayOf,
        a: ArrayOf,
        y: ArrayOf,
        given: Mapping[str, Any] | None = None,
    ) -> Any:
        """log p(y_i | x_i, a_i, theta), (n,), or at `given` constrained values; discrete row
        latents summed out.
        """
        passes = [self.run(theta, x, a, assignment=one, given=given) for one in self.assignments]
        return self.row_logs(passes, self.outcome(y), x.shape[0])

    def row_logs(self, passes: Sequence[Pass], outcome: ArrayOf, n: int) -> Any:
        """The same from one pass for each assignment of the latents."""
        xp, terms = self.xp, []
        for one in passes:
            with self.quietly():
                logp = one.observed.log_prob(outcome)
            if self.moving_support:
                logp = xp.where(self.supports(one.observed, outcome), logp, -xp.inf)
            if (wrong := crossing(one.observed)) is not None:
                logp = xp.where(wrong, -xp.inf, logp)
            terms.append(xp.broadcast_to(one.log_weight + logp, (n,)))
        return terms[0] if len(terms) == 1 else xp.logsumexp(xp.stack(terms), axis=0)

    def row_density(self, theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> Density:
        """The density of each row's outcome, batch (n,); discrete row latents give a Mixture."""
        xp, shape = self.xp, (x.shape[0],)
        passes = [self.run(theta, x, a, assignment=assignment) for assignment in self.assignments]
        parts = tuple(
            (lower if self.known_family else external)(one.observed, shape) for one in passes
        )
        if len(parts) == 1:
            return parts[0]
        weights = [xp.broadcast_to(xp.exp(one.log_weight), shape) for one in passes]
        return Density("Mixture", {"probs": xp.stack(weights, axis=-1), "components": parts})

    # parameters -----------------------------------------------------------------------------------

    def flat(self, values: Mapping[str, Any]) -> Any:
        """(D,) from arrays by site."""
        parts = [self.xp.reshape(values[site.name], (-1,)) for site in self.sites]
        return self.xp.concatenate(parts) if parts else self.xp.zeros(0)

    def constrain(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Named constrained values, each with the leading axis M."""
        if self.unconstrained:
            found = [theta[:, site.start : site.stop] for site in self.sites]
        else:

            def one(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
                values = self.run(theta, x, a).values
                return [values[site.name] for site in self.sites]

            found = self.each_setting("constrain", one, [theta])
        return {site.name: value.reshape(-1, *site.shape) for site, value in zip(self.sites, found)}

    def unconstrain(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The flat vectors (M, D) of named constrained values; not finite where a value is
        outside its constraint.
        """
        if not values:
            return np.zeros((1, 0))
        xp = self.xp

        def one(*arrays: ArrayOf) -> list[Any]:
            *sites, x, a = arrays
            given = dict(zip((site.name for site in self.sites), sites))
            free = self.run(None, x, a, given=given).free
            back = self.run(self.flat(free), x, a).values
            # a transform's inverse may return a number even for a value outside: then it does not
            # come back
            kept = {}
            for name, value in given.items():
                same = xp.all(xp.abs(back[name] - value) <= 1e-8 * (1 + xp.abs(value)))
                kept[name] = xp.where(same, free[name], xp.nan)
            return [self.flat(kept)]

        return self.each_setting("unconstrain", one, [values[site.name] for site in self.sites])[0]

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        if not self.has_prior:
            return np.zeros(len(theta))

        def one(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
            return [self.run(theta, x, a).log_prior]

        return self.each_setting("log_prior", one, [theta])[0]

    def log_jacobian(self, theta: np.ndarray) -> np.ndarray:
        """(M,) log volume of the transforms from free to constrained values, over `sample`
        sites.
        """
        if self.unconstrained or not self.has_prior:
            return np.zeros(len(theta))

        def one(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
            return [self.run(theta, x, a).log_jacobian]

        return self.each_setting("log_jacobian", one, [theta])[0]

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.has_prior:
            return np.zeros(self.dim), np.zeros((self.dim, self.dim))
        return self.prior_derivatives(theta)

    def draw_prior(self, n: int, seed: int, initial: np.ndarray, jitter: float = 1.0) -> np.ndarray:
        """n draws (n, D): sample sites from their priors, `param` coordinates standard normal
        around `initial`. Kept, as every refit asks for the same ones.
        """
        noise = jitter * np.random.default_rng([seed, 1]).standard_normal((n, self.dim))
        if not self.has_prior:
            return initial + noise
        around = initial + noise
        return self._draws.get(seed, [around], lambda: [self.drawn(around, seed)])[0]

    # questions about a batch of rows --------------------------------------------------------------

    def _at_settings(
        self,
        name: str,
        one: Many,
        theta: np.ndarray,
        rows: Sequence[np.ndarray],
        static: Hashable = None,
    ) -> list[np.ndarray]:
        return self._answers.get(
            (name, static),
            (theta, *rows),
            lambda: self.over_settings_and_rows(name, one, theta, rows, static),
        )

    def by_row(
        self,
        name: str,
        row: Many,
        rows: Sequence[np.ndarray],
        *,
        fixed: Sequence[np.ndarray] = (),
        static: Hashable = None,
    ) -> list[np.ndarray]:
        """row(*fixed, *row_i) at every row, asked once: arrays (n, ...)."""
        return self._answers.get(
            (name, static),
            (*fixed, *rows),
            lambda: self.over_rows(name, row, rows, fixed, static),
        )

    def log_likelihood(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        if not len(a):
            return np.zeros((len(theta), 0))

        def one(theta: ArrayOf, x: ArrayOf, a: ArrayOf, y: ArrayOf) -> list[Any]:
            return [self.row_log_likelihood(theta, x, a, y)]

        return self._at_settings("log_likelihood", one, theta, (x, a, y))[0]

    def score(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        if not len(a):
            return np.zeros((0, self.dim))

        def log(theta: ArrayOf, x: ArrayOf, a: ArrayOf, y: ArrayOf) -> Any:
            return self.row_log_likelihood(theta, x[None], a[None], y[None])[0]

        def row(*args: ArrayOf) -> list[Any]:
            return [self.grad(log)(*args)]

        return self.by_row("score", row, (x, a, y), fixed=(theta,))[0]

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
            whole = (y >= 0) & (y == np.floor(y))
            return np.asarray(whole & (y <= COUNTED[self.predictor.family]))
        inside = self.inside(theta, x, a, y)
        # an outcome with cutpoints has no edges to fall off, and at these settings the cutpoints
        # may be out of order
        if self.has_cutpoints or not inside.any():
            return inside
        # torch raises at some outcomes outside a support: another takes their place
        valid = np.where(inside.reshape(-1, *[1] * (y.ndim - 1)), y, y[np.argmax(inside)])
        logs = self.log_likelihood(theta + NEAR * np.cos(np.arange(self.dim)), x, a, valid)
        return np.asarray(inside & (np.isfinite(logs) | np.isnan(logs)).any(axis=0))

    def values(
        self, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        if not len(a):
            return np.zeros((len(theta), 0))

        def one(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
            found = functional(self.row_density(theta, x, a), x=x, a=a)
            return [self.xp.broadcast_to(found, (x.shape[0],))]

        return self._at_settings("values", one, theta, (x, a), static=functional)[0].astype(float)

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if not len(a):
            return np.zeros(0), np.zeros((0, self.dim))

        def value(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> Any:
            x, a = x[None], a[None]
            return self.xp.reshape(functional(self.row_density(theta, x, a), x=x, a=a), ())

        found, grad = self.by_row(
            "values_grad", self.value_and_grad(value), (theta, x, a), static=functional
        )
        return found, grad

    def functional_at(
        self, functional: Functional, density: Density, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        """A functional of the user's at a density with NumPy arguments, in arrays of this
        backend.
        """
        with self.precisely():
            rows = {"x": self.array(x), "a": self.array(a)}
            found: Any = functional(density.map_args(self.array), **rows)
            return self.to_numpy(found)

    def density(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, single: bool) -> Density:
        """The density with NumPy arguments, batch (M, n), or (n,) for a single setting."""
        if is_external(self.outline_density):
            with self.precisely():
                rows = self.array(x), self.array(a)
                return external_density(
                    lambda one: self.row_density(self.array(one), *rows), theta, single
                )

        def one(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
            return self.row_density(theta, x, a).leaves()

        arrays = self._at_settings("density", one, theta, (x, a))
        return self.outline_density.rebuild([array[0] for array in arrays] if single else arrays)

    # sums over a history --------------------------------------------------------------------------

    def knows(self, rows: Rows) -> bool:
        return rows in self.histories

    def known_part(self, rows: Rows) -> int:
        return self.histories.known_part(rows)

    def weighted_sum(
        self, theta: ArrayOf, x: ArrayOf, a: ArrayOf, y: ArrayOf, weights: ArrayOf
    ) -> Any:
        """The log-likelihood of a history; a row of weight 0 counts for nothing, whatever its
        log-density.
        """
        logs, xp = self.row_log_likelihood(theta, x, a, y), self.xp
        return xp.sum(xp.where(xp.abs(weights) > 0.0, weights * logs, 0.0))

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None) -> np.ndarray:
        def one(*args: ArrayOf) -> list[Any]:
            return [self.weighted_sum(*args)]

        return self.over_history("total", one, theta, rows, weights)[0]

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        both = self.value_and_grad(self.weighted_sum)
        value, grad = self.over_history("total_grad", both, theta, rows, weights)
        return value, grad

    def total_hessian(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> np.ndarray:
        hessian = self.hessian_over_history(theta, rows, weights)
        return np.asarray((hessian + hessian.T) / 2)
