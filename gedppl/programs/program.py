"""A user's program as a density class: the checks and shapes that both backends share.

`ProgramClass` validates what comes in, speaks NumPy float64, and hands clean arrays to a backend's
traced program, which does the arithmetic. Axis letters: M parameter settings, n rows, D flat
parameters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.density import Density
from gedppl.errors import (
    ActionRangeError,
    ContextWidthError,
    GedError,
    ModelError,
    NotFiniteError,
    OutOfSupportError,
    ParameterError,
    ShapeError,
    TrialsError,
)
from gedppl.numerics.arrays import LARGER_UNIT, countable
from gedppl.programs import LOCK
from gedppl.programs.arriving import arrived
from gedppl.programs.checks import refuse_crossing
from gedppl.programs.contract import (
    DensityClass,
    Drawn,
    DrawnParams,
    LinearPredictor,
    LocationScale,
    MemberList,
    OrderedPredictor,
    Params,
    Profiled,
    T,
)
from gedppl.programs.exactness import exactness
from gedppl.programs.lowering import counts_trials, trials_of
from gedppl.programs.seen import Refusal, Seen
from gedppl.programs.tracing import (
    Site,
    check_beside,
    check_initial,
    find_program,
    flattened,
    named_leaves,
    parse_bounds,
)
from gedppl.rows import Rows, one_or_all, outcomes_of
from gedppl.showing import as_html

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gedppl.functionals import Functional
    from gedppl.learning.learner import Learner
    from gedppl.programs.contract import Program, Traced
    from gedppl.programs.guides import GuideRunner, GuideSettings

FEW_ROWS = 6  # with new actions that are looked at beside each other


class ProgramClass:
    """The class of conditional densities that a NumPyro or Pyro program describes. See
    `gedppl.density_class`.
    """

    def __init__(
        self,
        model: Program,
        *,
        init: Params | None = None,
        bounds: Mapping[str, Any] | None = None,
        example: tuple[Any, Any] | None = None,
    ) -> None:
        self.model = model
        self._init = dict(init or {})
        self._declared_bounds = dict(bounds or {})
        self._program: Traced | None = None
        self._known_actions: set[int] = set()
        self._token: str | None = None
        self._in_v: Any = None
        # of SVI: they hold what was compiled
        self.guide_loops: dict[GuideSettings, GuideRunner] = {}
        if example is not None:
            self.trace(*example)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: the model and its declaration travel, compiled functions stay
        behind.
        """
        self._token = self._token or uuid.uuid4().hex
        rows = (
            None
            if self._program is None
            else (np.asarray(self._program.x), np.asarray(self._program.a))
        )
        return arrived, (self._token, self.model, self._init, self._declared_bounds, rows)

    # tracing --------------------------------------------------------------------------------------

    def trace(self, x: ArrayLike, a: ArrayLike) -> ProgramClass:
        """Find out the backend and the parameters by running the model on these rows; a second
        call looks only at actions that are new.
        """
        x, a = self._check_rows(x, a)
        new = self._program is None
        if new:
            if len(a) == 0:
                raise ShapeError("tracing a model needs at least one row, got x and a with none")
            with LOCK:
                if self._program is None:
                    try:
                        self._adopt(find_program(self.model, x, a))
                    except GedError:
                        raise
                    except Exception as failure:
                        # whatever a user's program raises once its parameters are filled in
                        raise ModelError(
                            "the model cannot be run at given parameters: it raised "
                            f"{type(failure).__name__}: {failure}. Every parameter must be a "
                            "sample or param site of the model itself, without a handler that "
                            "sets its value (substitute, condition, do)"
                        ) from failure
        try:
            self._check_actions(x, a)
        except GedError:
            if new:
                self._program = None
            raise
        return self

    def _adopt(self, program: Traced) -> None:
        self._bounds = parse_bounds(self._declared_bounds, program.sites)
        self._width = program.x.shape[1]
        initial = program.default_initial()
        if self._init:
            values = {name: value[0] for name, value in program.constrain(initial[None]).items()}
            initial = flattened(program, values | named_leaves(program, self._init))
        refuse_crossing(program, any(not site.prior for site in program.sites))
        check_initial(program, initial)
        self._program, self._initial = program, initial

    @property
    def traced(self) -> bool:
        """Whether the parameters are known yet."""
        return self._program is not None

    @property
    def program(self) -> Traced:
        """The backend's traced program."""
        if self._program is None:
            raise ModelError(
                "the model has not been run yet, so its parameters are unknown: call .trace(x, a), "
                "or density_class(model, example=(x, a)), with a row such as x = np.zeros((1, 2)), "
                "as wide as a context, and a = np.zeros(1, int); an agent's first ask does it too"
            )
        return self._program

    @property
    def backend(self) -> str:
        return self.program.backend

    @property
    def dim(self) -> int:
        return self.program.dim

    @property
    def initial(self) -> np.ndarray:
        self.program  # noqa: B018 - raises before tracing
        return self._initial.copy()

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.program.sites

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one outcome: () or (e,)."""
        return self.program.event_shape

    @property
    def reads_by_context(self) -> bool:
        return self.program.reads_by_context

    def reads_from_the_end(self, x: ArrayLike, a: ArrayLike) -> bool:
        rows = np.asarray(x, float), np.asarray(a, np.int64)
        return bool(self.program.reads_from_the_end(self._initial, *rows))

    @property
    def first_rows(self) -> np.ndarray:
        return np.asarray(self.program.x, float)

    @property
    def moving_support(self) -> bool:
        return bool(self.program.moving_support)

    def visit(
        self, finite: Callable[[MemberList], T], parametric: Callable[[DensityClass], T]
    ) -> T:
        return parametric(self)

    def own_learner(self, delta: float) -> Learner | None:
        return None

    @property
    def prior_free(self) -> np.ndarray:
        free = np.ones(self.dim, bool)
        for site in self.sites:
            free[site.start : site.stop] = not site.prior
        return free

    @property
    def predictor(self) -> LinearPredictor | None:
        return self.program.predictor

    @property
    def ordered(self) -> OrderedPredictor | None:
        return self.program.ordered

    @property
    def seen(self) -> Seen | None:
        """What the data see of the parameters, v = h(theta), where the predictor is affine in v and
        not in theta itself.

        Also where it is affine in theta, but in fewer parameters than there are: a centred
        hierarchy's scales are seen by no row, and a fit without them has no funnel to fall into.
        """
        constrained = any(
            np.isfinite(side) for ends in self.program.ranges.values() for side in ends[:2]
        )
        found = self.program.seen if constrained or not self._is_affine else None
        if not isinstance(found, Seen) or (self._is_affine and found.dim >= self.dim):
            return None
        return found

    @property
    def refusal(self) -> Refusal | None:
        """Why no predictor is proved affine, and at which line of the program; None where one
        is.
        """
        found = None if self._is_affine else self.program.seen
        return found if isinstance(found, Refusal) else None

    @property
    def _is_affine(self) -> bool:
        return self.predictor is not None or self.ordered is not None

    @property
    def location_scale(self) -> LocationScale | None:
        return None if self.seen is None else self.seen.location_scale

    @property
    def profiled(self) -> Profiled | None:
        return None if self.seen is None else self.seen.profiled

    def in_what_is_seen(self, make: Callable[[], Any]) -> Any:
        """This class in v; made once, so that what it has found out is kept."""
        if self._in_v is None:
            self._in_v = make()
        return self._in_v

    @property
    def exactness(self) -> str:
        """Which bounds will be exact and why, or what in the program stands in the way."""
        return exactness(self)

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        if self._program is None:
            return f"density_class({name}, not run yet)"
        parts = ", ".join(f"{site.name}{list(site.shape)}" for site in self.sites)
        return f"density_class({name}, {self.backend}, {self.program.family}; {parts})"

    def _repr_html_(self) -> str:
        known = self._program is not None
        sites = (
            {f"parameter {site.name!r}": f"shape {tuple(site.shape)}" for site in self.sites}
            if known
            else {}
        )
        return as_html(
            repr(self),
            sites
            | {
                "bounds": self.exactness if known else "known once rows were seen, or give example="
            },
        )

    # parameters -----------------------------------------------------------------------------------

    def flatten(self, params: Params) -> np.ndarray:
        """The flat unconstrained vector of named constrained values: (D,), or (M, D) if each has
        a leading axis M.
        """
        return flattened(self.program, named_leaves(self.program, params))

    def unflatten(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Named constrained values of a flat vector (D,), or with a leading axis those of each
        row of (M, D).
        """
        settings, single = self._settings(theta)
        values = self.program.constrain(settings)
        found = {name: value[0] for name, value in values.items()} if single else values
        return DrawnParams.of(found) if isinstance(theta, Drawn) else found

    def named(self, theta: np.ndarray, drawn: bool) -> dict[str, np.ndarray]:
        """What a learner says of its parameters (D,), by name: of draws those of the program, else
        those of the coordinates that it has them in.
        """
        found: dict[str, np.ndarray] = (
            self if drawn or self._in_v is None else self._in_v
        ).unflatten(theta)
        return found

    def _settings(self, theta: ArrayLike) -> tuple[np.ndarray, bool]:
        theta = np.asarray(theta, float)
        if theta.ndim not in (1, 2) or theta.shape[-1] != self.dim:
            raise ParameterError(
                f"theta has shape {theta.shape}, but this class has D = {self.dim} flat "
                "parameters: pass (D,) or (M, D)"
            )
        return (theta[None], True) if theta.ndim == 1 else (theta, False)

    def _one(self, theta: ArrayLike) -> np.ndarray:
        settings, single = self._settings(theta)
        if not single:
            raise ParameterError(
                f"one flat vector ({self.dim},) is needed here, got shape {settings.shape}"
            )
        return one_or_all(settings, single)

    def inside(self, theta: np.ndarray) -> np.ndarray:
        """Whether theta meets the declared `bounds`: () or (M,) bool."""
        settings, single = self._settings(theta)
        ok = np.isfinite(settings).all(axis=1)
        if self._bounds:
            values = self.program.constrain(settings)
            for name, bound in self._bounds.items():
                value = values[name].reshape(len(settings), -1)
                if isinstance(bound, float):
                    ok &= np.linalg.norm(value, axis=1) <= bound
                else:
                    low, high = (np.broadcast_to(b, values[name].shape[1:]).ravel() for b in bound)
                    ok &= ((value >= low) & (value <= high)).all(axis=1)
        return one_or_all(ok, single)

    def with_bounds(self, bounds: Mapping[str, Any]) -> ProgramClass:
        """The same model, declared within these bounds instead."""
        return ProgramClass(
            self.model, init=self._init, bounds=bounds, example=(self.program.x, self.program.a)
        )

    @property
    def bounds(self) -> dict[str, Any]:
        """Declared bounds by site: a number (Euclidean norm) or (low, high) arrays."""
        self.program  # noqa: B018 - raises before tracing
        return dict(self._bounds)

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log prior density in the unconstrained space (Jacobian included); `param` sites add 0.
        () or (M,).
        """
        settings, single = self._settings(theta)
        return one_or_all(self.program.log_prior(settings), single)

    def log_jacobian(self, theta: np.ndarray) -> np.ndarray:
        """Log volume (M,) of the transforms from theta (M, D) to the values of `sample` sites."""
        return self.program.log_jacobian(self._settings(theta)[0])

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (D,) and Hessian (D, D) of `log_prior` at theta (D,)."""
        return self.program.log_prior_grad_hessian(self._one(theta))

    def draw_prior(self, n: int, seed: int) -> np.ndarray:
        """n draws (n, D) from the prior; `param` coordinates are standard normal around
        `initial`.
        """
        return self.program.draw_prior(int(n), int(seed), self.initial).view(Drawn)

    # rows -----------------------------------------------------------------------------------------

    def _check_rows(self, x: ArrayLike, a: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        x, raw = np.asarray(x, float), np.asarray(a)
        if x.ndim != 2 or raw.ndim != 1 or len(x) != len(raw):
            raise ShapeError(
                f"x must be (n, dx) and a (n,) with one n, got {x.shape} and {raw.shape}"
            )
        if not countable(x).all():
            row = int(np.argmax(~countable(x).all(axis=1)))
            fix = LARGER_UNIT if np.isfinite(x[row]).all() else "impute or drop the row before"
            raise NotFiniteError(f"x must be finite, got {x[row]} in row {row}: {fix}")
        actions = (
            raw.astype(np.int64) if raw.dtype.kind in "biuf" and np.isfinite(raw).all() else None
        )
        if actions is None or (actions != raw).any() or (actions < 0).any():
            raise ActionRangeError(f"actions must be whole numbers 0, 1, ..., got {raw}")
        if self._program is not None and x.shape[1] != self._width:
            raise ContextWidthError(
                f"contexts have {self._width} columns here (as in the rows the model was first run "
                f"on), got {x.shape[1]}"
            )
        return x, actions

    def check_rows(self, x: ArrayLike, a: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Rows as arrays, after tracing the model with them if nobody has yet."""
        x, a = self._check_rows(x, a)
        if self._program is None:
            self.trace(x, a)
        self._check_actions(x, a)
        self._check_trials(x, a)
        return x, a

    @cached_property
    def _counts_trials(self) -> bool:
        return counts_trials(self.program.outline_density)

    def _check_trials(self, x: np.ndarray, a: np.ndarray) -> None:
        """Numbers of trials come from the rows in some programs: log-densities take any number,
        outcomes do not.
        """
        if not len(a) or not self._counts_trials:
            return
        for trials in trials_of(self.program.density(self._initial[None], x, a, True)):
            wrong = ~((trials >= 0) & (trials == np.floor(trials)))
            if wrong.any():
                row = int(np.argmax(wrong.reshape(len(a), -1).any(axis=1)))
                raise TrialsError(
                    f"row {row} has {trials[row]} trials, but a number of trials is a whole number "
                    "0, 1, 2, ...: "
                    "round total_count in the model, or mend the context it is read from"
                )

    def _check_actions(self, x: np.ndarray, a: np.ndarray) -> None:
        """Run each action number once in a mode that notices indices past the end, which JAX would
        clamp silently, and beside other actions, whose rows must not change what is said of its
        own.
        """
        new = set(a.tolist()) - self._known_actions
        for action in sorted(new):
            row = int(np.argmax(a == action))
            problem = self.program.action_problem(self._initial, x[row : row + 1], a[row : row + 1])
            if problem:
                said = f"action {action} is out of range for this model, or context {x[row]} is"
                raise ActionRangeError(f"{said}: {problem}")
        self.program.check_contexts(self._initial, x, a)
        if not new:
            return
        known = np.array(sorted(self._known_actions | new))
        if len(known) > 1:
            beside = np.unique([known[0], *sorted(new)[:FEW_ROWS], known[-1]])
            row = int(np.argmax(a == min(new)))
            rows = np.repeat(x[row : row + 1], len(beside), axis=0)
            check_beside(self.program, self._initial, rows, beside)
        self._known_actions |= new

    def check_outcomes(
        self, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that may join a history, as arrays; a named error otherwise."""
        x, a, y = self.check_shapes(x, a, y)
        ok = self.supports(x, a, y)
        if not ok.all():
            row = int(np.argmin(ok))
            raise OutOfSupportError(
                f"outcome {y[row]} in row {row} is outside the support of {self.program.family} "
                f"({self.program.support_name}): no parameter gives it a positive density"
            )
        return x, a, y

    def check_shapes(
        self, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same without looking at the support."""
        x, a = self.check_rows(x, a)
        return x, a, outcomes_of(y, len(a), self.event_shape)

    def supports(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n,) bool: whether some parameter may give each outcome a positive density; rows as
        `check_shapes` leaves them.
        """
        return self.program.in_support(self._initial, x, a, y) if len(a) else np.ones(0, bool)

    def _on_rows(self, rows: Rows) -> Rows:
        """The rows, each checked once: a history only grows, so what was checked in a shorter
        one stays checked.
        """
        if rows.n and not (self.traced and self.program.knows(rows)):
            done = self.program.known_part(rows) if self.traced else 0
            self.check_outcomes(rows.x[done:], rows.a[done:], rows.y[done:])
            self.program.remember(rows)
        return rows

    # the density ----------------------------------------------------------------------------------

    def density(self, params: Params, x: ArrayLike, a: ArrayLike) -> Density:
        """The outcome's density at named parameters: a batch (n,), or (M, n) if every parameter
        has a leading axis M.
        """
        x, a = self.check_rows(x, a)
        return self.density_at(self.flatten(params), x, a)

    def density_at(self, theta: np.ndarray, x: ArrayLike, a: ArrayLike) -> Density:
        """The same at a flat vector (D,) or (M, D)."""
        x, a = self.check_rows(x, a)
        settings, single = self._settings(theta)
        return self.program.density(settings, x, a, single)

    def densities(self, x: ArrayLike, a: ArrayLike) -> list[Density]:
        return [self.density_at(self.initial, x, a)]

    def log_likelihood(
        self, theta: np.ndarray, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> np.ndarray:
        """Per-row log-likelihood, (n,) or (M, n)."""
        x, a, y = self.check_outcomes(x, a, y)
        settings, single = self._settings(theta)
        return one_or_all(self.program.log_likelihood(settings, x, a, y), single)

    def score(self, theta: np.ndarray, x: ArrayLike, a: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Its gradient in theta (D,): (n, D)."""
        x, a, y = self.check_outcomes(x, a, y)
        return self.program.score(self._one(theta), x, a, y)

    def information(
        self, theta: np.ndarray, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> np.ndarray:
        """Observed information at theta (D,), minus the Hessian of the summed log-likelihood:
        (D, D).
        """
        x, a, y = self.check_outcomes(x, a, y)
        return -self.total_hessian(theta, Rows.of(x, a, y))

    # the compiled kernels -------------------------------------------------------------------------

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        """Weighted sum of the log-likelihood over rows: theta (M, D) -> (M,). weights (n,), 1 by
        default.
        """
        rows = self._on_rows(rows)
        settings, single = self._settings(theta)
        none = np.zeros(len(settings))
        return one_or_all(self.program.total(settings, rows, weights) if rows.n else none, single)

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same with its gradient: (M,), (M, D)."""
        rows = self._on_rows(rows)
        settings, single = self._settings(theta)
        if rows.n:
            value, grad = self.program.total_grad(settings, rows, weights)
        else:
            value, grad = np.zeros(len(settings)), np.zeros(settings.shape)
        return (value[0], grad[0]) if single else (value, grad)

    def total_hessian(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Hessian of the weighted sum at theta (D,): (D, D)."""
        rows = self._on_rows(rows)
        theta = self._one(theta)
        return (
            self.program.total_hessian(theta, rows, weights)
            if rows.n
            else np.zeros((self.dim, self.dim))
        )

    def way_of(self, functional: Functional, positive: bool) -> int:
        return 0 if functional.fn is None else self.program.way_of(functional.fn, positive)

    def values(
        self, functional: Functional, theta: np.ndarray, x: ArrayLike, a: ArrayLike
    ) -> np.ndarray:
        """The functional at theta (M, D) and rows: (M, n); at theta (D,): (n,)."""
        x, a = self.check_rows(x, a)
        settings, single = self._settings(theta)
        return one_or_all(self.program.values(functional, settings, x, a), single)

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: ArrayLike, a: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row i at its own theta[i] (n, D): the functional (n,) and its gradient (n, D)."""
        x, a = self.check_rows(x, a)
        settings, single = self._settings(theta)
        if single or len(settings) != len(a):
            raise ParameterError(
                f"values_grad needs one setting a row: theta ({len(a)}, "
                f"{self.dim}), got {np.shape(theta)}"
            )
        return self.program.values_grad(functional, settings, x, a)
