r"""A learner for Normal and LogNormal outcomes whose scale is unknown: exact sets in (beta / sigma,
1 / sigma), in NumPy alone.

    l(m, s) = sum_i log s - 1/2 (s y_i - phi_i'm)^2,    m = beta / sigma,  s = 1 / sigma

is jointly concave, so that the likelihood-ratio sets of `programs`, written in these, are convex
whatever the program's parameters and priors are; their bounds (`scale_reach`) are exact or outer,
and cost no more with many rows than with few. Several scales (one an action, one a group) each have
their own (m, s).

The predictive is a mixture over particles (beta, log sigma): log sigma from its Laplace
approximation, beta given sigma exactly, and draws from the prior. Which particles they are decides
how narrow the set is, never whether it covers.

Axis letters: n contexts, K actions, B snapshots, p coefficients, G scales, M particles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gedppl.density import Density
from gedppl.errors import SettingError
from gedppl.learning import scale_bounds
from gedppl.learning.groups import named, one_group
from gedppl.learning.learner import (
    FROM_PRIOR,
    PARTICLES,
    Bounds,
    Group,
    Guess,
    Particles,
    Trail,
    have_cdfs,
    mixed_cdf,
    mixed_log_density,
)
from gedppl.learning.oracles import auto
from gedppl.learning.program_bounds import GUESS_SDS, MISSPECIFIED, SEARCHED
from gedppl.learning.program_sets import Start, next_starts, thresholds
from gedppl.learning.radius import LikelihoodRatio
from gedppl.learning.scale_posterior import ScalePrior, from_prior, scale_posterior, summary
from gedppl.learning.scale_reach import ScaleReach
from gedppl.learning.scale_sets import LOG_2PI, ScaleSet, fits_of, row_values, table_of
from gedppl.learning.seen_class import declared_ends
from gedppl.learning.storing import Reader, Tree, Writer, storable, stored_fields
from gedppl.numerics.arrays import check_delta
from gedppl.rows import Rows, grid, over_box

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.programs.contract import DensityClass, LocationScale

LIVE = ("cls", "form", "rule")  # come from the problem and settings
MOST_ROWS = 512  # looked at by `squared_deviation`


@storable
@dataclass(frozen=True)
class Process:
    """An e-process of some rows: those rows, its evidence, its starts and the sets they left at
    the last refit.
    """

    group: Group
    table: Rows | None
    evidence: float
    starts: tuple[Start, ...]
    kept: tuple[ScaleSet, ...]

    def absorb(
        self,
        new: Rows,
        actions: np.ndarray,
        values: np.ndarray,
        before: Particles,
        rule: LikelihoodRatio,
    ) -> Process:
        """Take in those of m new rows that belong; values (M, m) of the particles from before
        them.
        """
        mine = self.group.rows(actions)
        if not mine.any():
            return self
        log_q, _ = before.predict(values[:, mine])
        table = (Rows.empty(new.x.shape[1]) if self.table is None else self.table).append(
            new.x[mine], new.a[mine], new.y[mine]
        )
        starts = next_starts(self.starts, table.n, self.evidence + log_q, rule)
        return replace(
            self,
            table=table,
            starts=starts,
            evidence=0.0 if log_q == -math.inf else self.evidence + log_q,
        )

    def refit(self, rule: LikelihoodRatio, delta: float, n_groups: int) -> Process:
        """The sets of every start, from the rows after it."""
        if self.table is None:
            return self
        kept = []
        for start, threshold in zip(
            self.starts, thresholds(self.starts, self.evidence, rule, delta * self.group.share)
        ):
            n = self.table.n - start.n
            if n == 0:
                continue
            rows = Rows.of(
                self.table.x[start.n :], self.table.a[start.n :], self.table.y[start.n :]
            )
            constants = 0.5 * n * LOG_2PI + float(rows.x[:, -1].sum())
            kept.append(ScaleSet(start.n, fits_of(rows, n_groups), float(threshold) + constants))
        return replace(self, kept=tuple(kept))

    @property
    def fit(self) -> None:
        """No oracle is asked."""

    def contains(
        self, coefficients: np.ndarray, log_scale: np.ndarray, rule: LikelihoodRatio, delta: float
    ) -> np.ndarray:
        """Whether each setting (M,) lies in the set of every start, by the definition."""
        inside = np.ones(len(coefficients), bool)
        if self.table is None:
            return inside
        values = row_values(self.table, coefficients, log_scale)
        for start, threshold in zip(
            self.starts, thresholds(self.starts, self.evidence, rule, delta * self.group.share)
        ):
            inside &= values[:, start.n :].sum(axis=1) >= threshold
        return inside


@storable
@dataclass(frozen=True)
class ScaleSnapshots:
    """What past refits left behind: the estimate and the set of all rows, of each."""

    sizes: np.ndarray  # (B,)
    estimate: np.ndarray  # (B, p + G)
    sets: tuple[ScaleSet | None, ...]  # None: nothing is excluded


@dataclass(frozen=True)
class LocationScaleLearner:
    """One class's rows, particles, sets and snapshots. Immutable; made by
    `LocationScaleLearner.start`.
    """

    cls: DensityClass
    form: LocationScale
    delta: float
    rule: LikelihoodRatio
    seed: int
    groups: tuple[Group, ...]  # the first is all rows
    rows: Rows | None
    processes: tuple[Process, ...]  # one a group
    prior: ScalePrior
    particles: Particles  # theta: (M, p + G), coefficients and log scales
    snapshots: ScaleSnapshots
    keep_past: bool
    status: str

    @classmethod
    def start(
        cls,
        density: DensityClass,
        *,
        delta: float,
        confidence: LikelihoodRatio | None = None,
        seed: int = 0,
        groups: tuple[Group, ...] | None = None,
        keep_past: bool = True,
    ) -> LocationScaleLearner:
        """Before any row. The class must have been traced and have a `location_scale`."""
        form = density.location_scale
        if form is None:
            raise SettingError(
                "this class has no location and scale that were proved: use the "
                "general learner of programs.py"
            )
        check_delta(delta)
        prior = summary(density, form, seed)
        split = one_group(len(prior.middle)) if groups is None else groups
        return cls(
            cls=density,
            form=form,
            delta=float(delta),
            rule=LikelihoodRatio() if confidence is None else confidence,
            seed=int(seed),
            groups=split,
            rows=None,
            processes=tuple(Process(group, None, 0.0, (Start(0, 0, 0.0),), ()) for group in split),
            prior=prior,
            particles=from_prior(density, form, seed),
            snapshots=ScaleSnapshots(np.zeros(1, np.int64), prior.middle[None], (None,)),
            keep_past=keep_past,
            status="no rows yet",
        )

    @property
    def n(self) -> int:
        return 0 if self.rows is None else self.rows.n

    @property
    def snapshot_sizes(self) -> np.ndarray:
        return self.snapshots.sizes

    @property
    def kappa(self) -> float:
        """How far below its top the log-likelihood of all rows may lie; inf before the first
        refit.
        """
        newest = self.snapshots.sets[-1]
        return np.inf if newest is None else newest.kappa

    @property
    def sentence(self) -> str:
        """The rule, with its delta and the groups it is split over."""
        said = self.rule.describe(self.delta)
        return f"{said}; for {named(self.groups)}" if len(self.groups) > 1 else said

    @cached_property
    def theta(self) -> np.ndarray:
        """(D,) the program's own parameters at the estimate; fitted by the program where they do
        not follow from it.
        """
        if self.form.to_theta is not None:
            coefficients, log_scale = self._parts(self.snapshots.estimate[-1:])
            found: np.ndarray = np.asarray(
                self.form.to_theta(coefficients, np.exp(log_scale)), float
            )[0]
            return found
        return np.asarray(
            self.cls.initial if self.rows is None else auto()(self.cls, self.rows).theta, float
        )

    def _parts(self, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (M, p) and log scales (M, G)."""
        return settings[:, : -self.form.n_groups], settings[:, -self.form.n_groups :]

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> LocationScaleLearner:
        """Take in m rows told together: x (m, dx), a (m,), y (m,). See `ProgramLearner.absorb`."""
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        check = getattr(self.cls, "check_outcomes", None)
        if check is not None:
            x, a, y = check(x, a, y)
        if not len(a):
            return self
        new = table_of(self.form, x, a, y)
        values = row_values(new, *self._parts(self.particles.theta))
        _, particles = self.particles.predict(values)
        rows = (Rows.empty(x.shape[1]) if self.rows is None else self.rows).append(x, a, y)
        processes = tuple(
            p.absorb(new, a, values, self.particles, self.rule) for p in self.processes
        )
        return replace(self, rows=rows, processes=processes, particles=particles)

    def refit(self) -> LocationScaleLearner:
        """Rebuild particles and sets from all rows, and append a snapshot."""
        if self.rows is None:
            return self._pushed(0, self.prior.middle, None)
        whole = self.processes[0]
        assert whole.table is not None
        fits = fits_of(whole.table, self.form.n_groups)
        mode, particles = scale_posterior(fits, self.prior, self.seed)
        drawn = from_prior(self.cls, self.form, self.seed + 1, FROM_PRIOR).theta
        theta = np.vstack([particles[: PARTICLES - FROM_PRIOR], drawn])
        processes = tuple(
            p.refit(self.rule, self.delta, self.form.n_groups) for p in self.processes
        )
        fitted = replace(
            self,
            processes=processes,
            particles=Particles(theta, np.full(len(theta), -np.log(len(theta)))),
        )
        kept = processes[0].kept
        status = (
            f"least squares of {whole.table.n} rows, scale "
            f"{np.array2string(np.exp(mode[-self.form.n_groups :]), precision=3)}"
        )
        status += f"; {MISSPECIFIED}" if fitted.refuted else ""
        return replace(
            fitted._pushed(whole.table.n, mode, kept[0] if kept else None), status=status
        )

    def _pushed(self, n: int, estimate: np.ndarray, kept: ScaleSet | None) -> LocationScaleLearner:
        old = self.snapshots
        sets = (*(old.sets if self.keep_past else (None,) * len(old.sets)), kept)
        return replace(
            self,
            snapshots=ScaleSnapshots(
                np.append(old.sizes, n), np.vstack([old.estimate, estimate]), sets
            ),
        )

    @property
    def refuted(self) -> bool:
        """Whether some set has no member: its log-likelihood's top, known in closed form, lies
        below its threshold.
        """
        return any(s.kappa < 0 for process in self.processes for s in process.kept)

    @property
    def fit(self) -> None:
        """No oracle is asked."""

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether each theta (M, D) is plausible: in the set of every start and group, and
        inside the declared bounds.
        """
        theta = np.asarray(theta, float)
        coefficients, scale = self.form.from_theta(theta)
        inside = np.broadcast_to(np.asarray(self.cls.inside(theta)), len(theta)).copy()
        for process in self.processes:
            inside &= process.contains(coefficients, np.log(scale), self.rule, self.delta)
        return inside

    def draw_members(self, n: int, seed: int) -> np.ndarray:
        """At most n plausible parameters (., D) around the fit, on ever smaller scales until
        enough lie inside.
        """
        if self.form.to_theta is None:
            raise SettingError(
                "the program's parameters do not follow from what the data see of "
                "them: ask for bounds instead"
            )
        rng, scale = np.random.default_rng(seed), np.sqrt(2 * min(max(self.kappa, 0.0), 1e6))
        centre, around = (
            self.particles.theta[0],
            np.std(self.particles.theta[: PARTICLES - FROM_PRIOR], axis=0),
        )
        found = np.zeros((0, self.cls.dim))
        while len(found) < n and scale > 1e-3:
            coefficients, log_scale = self._parts(
                centre + scale * around * rng.standard_normal((4 * n, len(centre)))
            )
            theta = np.asarray(self.form.to_theta(coefficients, np.exp(log_scale)), float)
            found = np.vstack([found, theta[self.contains(theta)]])
            scale *= 0.7
        return found[:n]

    # bounds ---------------------------------------------------------------------------------------

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Upper and lower value at contexts x (n, dx) for all K actions, over every set: each is
        valid, so the narrowest counts.
        """
        x = np.asarray(x, float)
        n, K, low, high = len(x), n_actions, functional.low, functional.high
        xs, actions = grid(x, K)
        lower, upper = np.full(n * K, -np.inf), np.full(n * K, np.inf)
        searched = scale_bounds.is_searched(functional)
        if not self.refuted:
            self._narrow(functional, xs, actions, lower, upper)
        void = np.isposinf(lower) | np.isneginf(upper)  # no scale is plausible and allowed
        room = 1e-9 * np.where(void, 0.0, np.maximum(np.abs(lower), np.abs(upper)))
        empty = self.refuted or bool(np.any(void | (lower > upper + room)))
        if empty:
            lower[:], upper[:] = -np.inf, np.inf
        estimate = self._values(functional, self.snapshots.estimate[-1:], xs, actions)[0]
        shape, seen = (n, K), self.n > 0
        return Bounds(
            estimate=np.clip(np.where(np.isnan(estimate), high, estimate), low, high).reshape(
                shape
            ),
            lower=np.clip(lower, low, high).reshape(shape),
            upper=np.clip(upper, low, high).reshape(shape),
            method="ascent" if searched and seen and not empty else self._method,
            guaranteed=not empty and not (searched and seen),
            rule=self.sentence,
            note=MISSPECIFIED
            if empty
            else _open(upper, lower, K) + (SEARCHED if searched and seen else ""),
            empty=empty,
            free_lower=lower.reshape(shape),
            free_upper=upper.reshape(shape),
        )

    @cached_property
    def _method(self) -> str:
        """Scales that share coefficients each have their own copy: an outer set of theta."""
        table = self.processes[0].table
        if self.form.n_groups == 1 or table is None:
            return "exact"
        users = [np.any(table.x[table.a == g, :-1] != 0, axis=0) for g in range(self.form.n_groups)]
        return "outer" if np.any(np.sum(users, axis=0) > 1) else "exact"

    def _narrow(
        self,
        functional: Functional,
        x: np.ndarray,
        a: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
    ) -> None:
        """Move lower and upper (m,) to the ends over every set, all sets asked at once."""
        phi = np.asarray(self.form.features(x, a), float)
        offset = np.broadcast_to(np.asarray(self.form.offset(x, a), float), len(a))
        scale = np.asarray(self.form.group(x, a), np.int64)
        spoken = [(process, np.flatnonzero(process.group.rows(a))) for process in self.processes]
        asked = [(kept, rows) for process, rows in spoken if len(rows) for kept in process.kept]
        scales = [side[scale].copy() for side in self._scale_box]
        if asked:
            rows = np.concatenate([rows for _, rows in asked])
            reach = ScaleReach.joined(
                [
                    kept.reach(phi[rows], offset[rows], scale[rows], self._scale_box)
                    for kept, rows in asked
                ]
            )
            low, high = scale_bounds.ends(self.form.family, functional, reach, x[rows], a[rows])
            np.maximum.at(lower, rows, low)
            np.minimum.at(upper, rows, high)
            known = np.flatnonzero(reach.known)
            part = reach.at(known)
            np.maximum.at(scales[0], rows[known], part.scale(part.ends[1]))
            np.minimum.at(scales[1], rows[known], part.scale(part.ends[0]))
        box = self._coefficient_box
        if np.isfinite(box).any():
            least, most = over_box(phi, *box)
            low, high = scale_bounds.in_box(
                self.form.family,
                functional,
                (offset + least, offset + most),
                (scales[0], scales[1]),
                x,
                a,
            )
            np.maximum(lower, low, out=lower)
            np.minimum(upper, high, out=upper)

    @cached_property
    def _box(self) -> np.ndarray:
        """Ends (2, p + G) of coefficients and scales: supports, and declared bounds of sites."""
        p = len(self.prior.middle)
        if not self.form.names:
            return np.array(
                [[-np.inf] * (p - self.form.n_groups) + [0.0] * self.form.n_groups, [np.inf] * p]
            )
        low, high = np.array(self.form.ends, float).T
        return np.array(declared_ends(self.cls, self.form.names, low, high))

    @property
    def _coefficient_box(self) -> np.ndarray:
        return self._box[:, : -self.form.n_groups]

    @property
    def _scale_box(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self._box[:, -self.form.n_groups :]
        return np.maximum(low, 0.0), high

    def density(self, settings: np.ndarray, x: np.ndarray, a: np.ndarray) -> Density:
        """The outcome's density at coefficients and log scales (M, p + G), of batch shape (M,
        n).
        """
        coefficients, log_scale = self._parts(settings)
        location = coefficients @ np.asarray(self.form.features(x, a), float).T + self.form.offset(
            x, a
        )
        scale = np.exp(log_scale)[:, np.asarray(self.form.group(x, a), np.int64)]
        return Density(self.form.family, {"loc": location, "scale": scale})

    def _values(
        self, functional: Functional, settings: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        """The functional at settings (M, p + G) and rows: (M, n)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(functional(self.density(settings, x, a), x=x, a=a), float)

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """The estimate and posterior standard deviations around it, from the particles."""
        n, K = len(x), n_actions
        xs, actions = grid(x, K)
        drawn = self._values(functional, self.particles.theta, xs, actions)
        drawn = np.clip(
            np.where(np.isnan(drawn), functional.high, drawn), functional.low, functional.high
        )
        weights = np.exp(self.particles.log_weights)
        middle = weights @ drawn
        sd = np.sqrt(weights @ (drawn - middle) ** 2)
        value = (
            middle
            if self.n == 0
            else self._values(functional, self.snapshots.estimate[-1:], xs, actions)[0]
        )
        value = np.where(np.isnan(value), functional.high, value)
        return Guess(
            *(
                functional.clip(value + side * GUESS_SDS * sd).reshape(n, K)
                for side in (0.0, -1.0, 1.0)
            )
        )

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """Every snapshot's estimate and the bounds of its set of all rows. It steers exploration
        only.
        """
        x, B = np.asarray(x, float), len(self.snapshots.sizes)
        n, K = len(x), n_actions
        xs, actions = grid(x, K)
        estimate = self._values(functional, self.snapshots.estimate, xs, actions)  # (B, nK)
        lower, upper = np.full((B, n * K), functional.low), np.full((B, n * K), functional.high)
        phi, offset = (
            np.asarray(self.form.features(xs, actions), float),
            self.form.offset(xs, actions),
        )
        scale = np.asarray(self.form.group(xs, actions), np.int64)
        for b, kept in enumerate(self.snapshots.sets):
            if kept is not None and kept.kappa >= 0:
                reach = kept.reach(phi, offset, scale)
                lower[b], upper[b] = scale_bounds.ends(
                    self.form.family, functional, reach, xs, actions
                )

        def shaped(values: np.ndarray) -> np.ndarray:
            found: np.ndarray = (
                np.clip(values, functional.low, functional.high).reshape(B, n, K).transpose(1, 0, 2)
            )
            return found

        return Trail(
            shaped(np.where(np.isnan(estimate), functional.high, estimate)),
            shaped(lower),
            shaped(upper),
            approximate=True,
        )

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """At most sum_i max(U_i - T_i, T_i - L_i)^2 over the rows, from at most n_rows of them."""
        if self.rows is None:
            return 0.0
        take = np.linspace(
            0, self.n - 1, min(self.n, MOST_ROWS if n_rows is None else n_rows)
        ).astype(np.int64)
        x, a = self.rows.x[take], self.rows.a[take]
        estimate = self._values(functional, self.snapshots.estimate[-1:], x, a)[0]
        lower, upper = np.full(len(a), functional.low), np.full(len(a), functional.high)
        self._narrow(functional, x, a, lower, upper)
        far = np.maximum(np.maximum(upper - estimate, estimate - lower), 0.0)
        return float(np.sum(far**2) * self.n / len(take))

    # what monitors ask ----------------------------------------------------------------------------

    def has_predictive(self, x: np.ndarray) -> bool:
        return have_cdfs(
            [self.density(self.snapshots.estimate[-1:], x, np.zeros(len(x), np.int64))]
        )

    def predictive_cdf(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mixture over particles."""
        return mixed_cdf(
            [(np.exp(self.particles.log_weights), self.density(self.particles.theta, x, a))], y
        )

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        """The same mixture's log density."""
        rows = row_values(table_of(self.form, x, a, y), *self._parts(self.particles.theta))
        return mixed_log_density(self.particles.log_weights, rows)

    @property
    def refutable(self) -> bool:
        return True

    def mark(self) -> np.ndarray:
        return np.array([float(self.n)])

    def top(self, since: np.ndarray) -> float:
        """In closed form; inf where the rows since leave no residual."""
        table, first = self.processes[0].table, int(since[0])
        if table is None or first >= table.n:
            return 0.0
        rows = Rows.of(table.x[first:], table.a[first:], table.y[first:])
        constants = 0.5 * rows.n * LOG_2PI + float(rows.x[:, -1].sum())
        return float(sum(fit.top for fit in fits_of(rows, self.form.n_groups)) - constants)

    # storing --------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        return out.fields(self, stored_fields(self, LIVE))

    def restored(self, read: Reader, tree: Tree) -> LocationScaleLearner:
        return replace(self, **read.fields(tree, stored_fields(self, LIVE)))


def _open(upper: np.ndarray, lower: np.ndarray, n_actions: int) -> str:
    most = int((~np.isfinite(upper) | ~np.isfinite(lower)).reshape(-1, n_actions).sum(axis=1).max())
    return f"{most} of {n_actions} actions are not yet bounded by the data" if most else ""


# what to bet on -----------------------------------------------------------------------------------
