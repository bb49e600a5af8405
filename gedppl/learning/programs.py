"""A learner for any differentiable program: likelihood-ratio sets, bounded exactly on a linear
predictor, else by ascent.

    R_t    = sum of log predictive densities, each fixed before its outcome was seen
    C_t^s  = {theta : l_{s:t}(theta) >= (R_t - R_s) - log(1/delta_s)}

covers the truth at all times and for all starts s with probability 1 - delta, for any model that
holds the truth (Wasserman, Ramdas, Balakrishnan, "Universal inference"). The rows alone define the
set; fits, working priors and particles only decide how narrow it is. Groups of actions with
parameters of their own have such sets from their rows alone beside the one of all rows
(`group_rows.GroupRows`), each with its share of delta.

Axis letters: n contexts, K actions, B snapshots, D flat parameters, M parameter settings.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import FitWarning
from gedppl.learning import learner as learners
from gedppl.learning import program_bounds, program_trail
from gedppl.learning.draws import sample
from gedppl.learning.fits import Fit, WorkingPrior, keep_good, likeliest
from gedppl.learning.group_rows import GroupRows
from gedppl.learning.groups import named, one_group
from gedppl.learning.learner import Bounds, Group, Guess, Trail
from gedppl.learning.likelihoods import TOP, Likelihood
from gedppl.learning.oracles import ANY_COORDINATES, auto, called, form_of
from gedppl.learning.program_sets import (
    Plausible,
    Start,
    ball,
    ellipsoid,
    likelihood_sets,
    next_starts,
    plausible,
    within,
)
from gedppl.learning.radius import LikelihoodRatio, Paper, Rule
from gedppl.learning.rule_view import summed_divergence, view_of
from gedppl.learning.storing import Reader, Tree, Writer, storable, stored_fields
from gedppl.learning.units import ENOUGH, parameter_units
from gedppl.learning.walls import left_by_supports
from gedppl.numerics.arrays import check_delta, evolved
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.density import Density
    from gedppl.functionals import Functional
    from gedppl.programs.contract import DensityClass


LIVE = ("cls", "oracle", "rule")  # come from the problem and settings
APART = ("data", "own", "sets")  # stored in their own way
SPREADS = (1.0, 0.5, 0.25)  # of a working prior, as shares of the widest
PAST = 16  # sets kept for the running intersection: older ones are hardly ever the narrowest


@storable
@dataclass(frozen=True)
class Snapshots:
    """What past refits left behind, stacked: enough for the delta bound under each."""

    sizes: np.ndarray  # (B,)
    theta: np.ndarray  # (B, D) fits
    whitener: np.ndarray  # (B, D, D) inverse Cholesky factors of the set's metric
    kappa: np.ndarray  # (B,), inf where nothing is excluded

    def push(self, n: int, theta: np.ndarray, chol: np.ndarray | None, kappa: float) -> Snapshots:
        D = len(theta)
        whitener = np.eye(D) if chol is None else np.linalg.inv(chol)
        return Snapshots(
            np.append(self.sizes, n),
            np.vstack([self.theta, theta]),
            np.concatenate([self.whitener, whitener[None]]),
            np.append(self.kappa, kappa),
        )


@dataclass(frozen=True)
class ProgramLearner:
    """One program's data, fit, sets and snapshots. Immutable; made by `ProgramLearner.start`."""

    cls: DensityClass
    delta: float
    rule: Rule
    oracle: Any
    prior: WorkingPrior | None  # the user's; None: a weak one in the parameters' units
    unit: np.ndarray  # (D,) of parameters without a prior: see `units`
    spread: float  # of their working prior, one of `SPREADS`: see `_spread_for`
    measured: int  # rows whose contexts gave the units
    n_actions: int
    seed: int
    groups: tuple[Group, ...]  # the first is all rows
    rows: Rows | None
    data: Likelihood
    evidence: float  # R_t
    starts: tuple[Start, ...]
    particles: learners.Particles
    fit: Fit | None
    sets: tuple[Plausible, ...]  # of all rows, of the newest refit
    own: tuple[GroupRows, ...]  # of every other group: its rows and sets
    past: tuple[Plausible, ...]  # of refits before it, with the running intersection
    # (C, D) parameters known to lie in every set: further starts for the ascent
    candidates: np.ndarray
    snapshots: Snapshots
    status: str

    @classmethod
    def start(
        cls,
        density: DensityClass,
        *,
        delta: float,
        confidence: Rule | None = None,
        oracle: Any = None,
        prior: WorkingPrior | None = None,
        seed: int = 0,
        groups: tuple[Group, ...] | None = None,
        first: tuple[np.ndarray, int] | None = None,
    ) -> ProgramLearner:
        """Before any row. The class must have been traced (``density.trace(x, a)`` or a first
        call).

        `groups`, from `action_groups`, is for the likelihood ratio; under any other rule there is
        one set, of all rows. `first`, a context (1, dx) and the number of actions, gives parameters
        without a prior their units before any row does.
        """
        check_delta(delta)
        D = density.dim
        data = form_of(density)
        initial = np.asarray(density.initial, float)
        rule = LikelihoodRatio() if confidence is None else confidence
        split = one_group(D) if groups is None or rule.process is None else groups
        unit = np.ones(D)
        if first is not None and prior is None and np.any(density.prior_free):
            unit = parameter_units(data, initial, *first)
        empty = Snapshots(np.zeros(0, np.int64), np.zeros((0, D)), np.zeros((0, D, D)), np.zeros(0))
        return cls(
            cls=density,
            delta=float(delta),
            rule=rule,
            oracle=auto() if oracle is None else oracle,
            prior=prior,
            unit=unit,
            spread=1.0,
            measured=0,
            n_actions=1 if first is None else first[1],
            seed=int(seed),
            groups=split,
            rows=None,
            data=data,
            evidence=0.0,
            starts=(Start(0, 0, 0.0),),
            particles=learners.at_start(density, seed, unit),
            fit=None,
            sets=(),
            own=tuple(GroupRows.none(group, data) for group in split[1:]),
            past=(),
            candidates=np.zeros((0, D)),
            snapshots=empty.push(0, initial, None, np.inf),
            status="no rows yet",
        )

    @property
    def n(self) -> int:
        return 0 if self.rows is None else self.rows.n

    @property
    def snapshot_sizes(self) -> np.ndarray:
        return self.snapshots.sizes

    @property
    def theta(self) -> np.ndarray:
        """(D,) the current estimate."""
        found: np.ndarray = self.snapshots.theta[-1]
        return found

    @property
    def kappa(self) -> float:
        """How far below its top the log-likelihood of a plausible parameter may lie; inf before
        the first refit.
        """
        return float(self.snapshots.kappa[-1])

    @property
    def working_prior(self) -> WorkingPrior:
        """What fits lean on: the user's, or a weak one."""
        return self._weak(self.spread) if self.prior is None else self.prior

    def _weak(self, spread: float) -> WorkingPrior:
        return WorkingPrior.weak(self.cls, unit=spread * self.unit)

    def _spread_for(self, fit: Fit) -> float:
        """The width of the working prior that past rows speak for: the next fit leans on it."""
        if self.prior is not None or not np.any(self.cls.prior_free):
            return self.spread
        others = [self._weak(spread) for spread in SPREADS]
        return SPREADS[likeliest(fit, self.working_prior, others)]

    @property
    def every_set(self) -> tuple[Plausible, ...]:
        """Those of all rows, then those of the groups."""
        return (*self.sets, *(s for part in self.own for s in part.sets))

    @property
    def whole_delta(self) -> float:
        """The share of delta for the sets of all rows."""
        return self.delta * self.groups[0].share

    @property
    def sentence(self) -> str:
        """The rule, with its delta and the groups it is split over."""
        said = self.rule.describe(self.delta)
        return f"{said}; for {named(self.groups)}" if len(self.groups) > 1 else said

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> ProgramLearner:
        """Take in m rows told together: x (m, dx), a (m,), y (m,). R grows by the joint log
        predictive of the batch.

        That predictive is fixed before the batch and symmetric in its rows, so their order does not
        matter.
        """
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        x, a, y = self.cls.check_outcomes(x, a, y)
        if not len(a):
            return self
        values = self.data.values_at(self.particles.theta, x, a, y)
        # no density there: what the single outcomes are given may exceed one in sum
        values = np.where(self.data.crosses(self.particles.theta, x, a), -np.inf, values)
        log_q, particles = self.particles.predict(values)
        rows = Rows.empty(x.shape[1], y.shape[1:]) if self.rows is None else self.rows
        rows = rows.append(x, a, y)
        data = self.data.grown(rows, x, a, y)
        starts = next_starts(self.starts, rows.n, self.evidence + log_q, self.rule)
        evidence = 0.0 if log_q == -np.inf else self.evidence + log_q
        own, process = self.own, self.rule.process
        if process is not None:
            own = tuple(part.absorb(x, a, y, values, self.particles, process) for part in own)
        return evolved(
            self,
            rows=rows,
            data=data,
            evidence=evidence,
            starts=starts,
            particles=particles,
            own=own,
        )

    def _measured(self, x: np.ndarray, a: np.ndarray) -> ProgramLearner:
        """With units of parameters without a prior from contexts x (n, dx), and n_actions at
        least those of a (n,).
        """
        n_actions = max(self.n_actions, int(a.max()) + 1)
        if self.prior is not None or not np.any(self.cls.prior_free):
            return evolved(self, n_actions=n_actions)
        unit = parameter_units(
            self.data.cleared(), np.asarray(self.cls.initial, float), x, n_actions
        )
        return evolved(self, unit=unit, measured=len(x), n_actions=n_actions)

    def refit(self) -> ProgramLearner:
        """Fit to all rows, rebuild the sets and append a snapshot. A failed fit keeps everything
        but says so.
        """
        if self.rows is None:
            return evolved(self, snapshots=self.snapshots.push(0, self.theta, None, np.inf))
        if self.n >= 2 * self.measured and self.measured < ENOUGH:
            return self._measured(self.rows.x, self.rows.a)._refit()
        return self._refit()

    def _refit(self) -> ProgramLearner:
        assert self.rows is not None
        # a likelihood may be unbounded; fits are checked
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            fit = keep_good(
                self.oracle(self.cls, self.rows, start=self.fit, prior=self.working_prior), self.fit
            )
        if fit.kept or not (np.isfinite(fit.theta).all() and np.isfinite(fit.precision).all()):
            last = self.snapshots
            repeated = Snapshots(
                np.append(last.sizes, self.n),
                np.vstack([last.theta, last.theta[-1]]),
                np.concatenate([last.whitener, last.whitener[-1:]]),
                np.append(last.kappa, last.kappa[-1]),
            )
            return evolved(self, snapshots=repeated, status=fit.status)
        # fewer rows than parameters are not expected to settle a fit
        if not fit.ok and self.n > self.cls.dim:
            text = (
                f"the fit to {self.n} rows did not converge and is used for want of a better: "
                f"{fit.status}"
            )
            warnings.warn(text, FitWarning, stacklevel=3)
        sets, own, process = self._sets(fit), self.own, self.rule.process
        if process is not None:
            own = tuple(part.refit(process, self.delta, fit.theta) for part in own)
        every = (*sets, *(s for part in own for s in part.sets))
        particles = self._predicting(fit)
        status, kappa, chol = (
            fit.status if fit.ok else f"did not converge: {fit.status}",
            np.inf,
            None,
        )
        if any(s.region.kappa <= 0 for s in every):
            status += f"; {program_bounds.MISSPECIFIED}"
        elif sets:
            kappa, chol = sets[-1].region.kappa, sets[-1].region.chol
        candidates = np.zeros((0, self.cls.dim))
        if sets and not all(s.convex for s in sets) and np.isfinite(kappa):
            inside = np.all([s.region.slack(particles.theta) >= 0 for s in every], axis=0)
            candidates = particles.theta[inside][:32]
        return evolved(
            self,
            fit=fit,
            sets=sets,
            own=own,
            past=self._past(),
            particles=particles,
            spread=self._spread_for(fit),
            candidates=candidates,
            snapshots=self.snapshots.push(self.n, fit.theta, chol, kappa),
            status=status,
        )

    def _predicting(self, fit: Fit) -> learners.Particles:
        """The draws that predict the next outcomes; fixed before these are seen, so that the set
        covers whatever they are.
        """
        if self.rule.predictive == "prior":
            return self.particles  # the prior's draws, weighted by the likelihood so far
        held = replace(self._near(fit), beyond=learners.learned_share(self.particles))
        free = self._free(fit)
        return held if free is None else learners.beyond(held, free, self.seed)

    def _free(self, fit: Fit) -> tuple[np.ndarray, np.ndarray] | None:
        """The maximum that declared bounds exclude, if they exclude it: a guide, or an oracle of
        the user's own, looks inside them alone, and wrong ones would not be refuted.
        """
        if fit.free is not None or not self.cls.bounds or called(self.oracle) in ANY_COORDINATES:
            return fit.free
        assert self.rows is not None
        return auto()(self.cls, self.rows, start=fit, prior=self.working_prior).free

    def _near(self, fit: Fit) -> learners.Particles:
        """The fit, draws around it and a few of the prior's."""
        source = self.rule.predictive
        if source == "laplace":
            return learners.laplace(
                self.cls, fit.theta, fit.precision, self.seed, self.unit, self.n
            )
        found = sample(
            self.cls,
            self.rows,
            source,
            learners.PARTICLES - learners.FROM_PRIOR - 1,
            self.seed,
            fit,
            self.oracle,
        )
        return learners.drawn(self.cls, fit.theta, found.theta, self.seed, self.unit, self.n)

    def _past(self) -> tuple[Plausible, ...]:
        """Sets of refits until now that go on counting: those of the first start, which share
        the history's memory.
        """
        if self.rule.process is None or not self.rule.process.intersect:
            return ()
        return (
            *self.past,
            *(s for s in self.sets if s.convex and s.start == 0 and s.region.kappa > 0),
        )[-PAST:]

    def _sets(self, fit: Fit) -> tuple[Plausible, ...]:
        assert self.rows is not None
        rule = self.rule
        if rule.process is not None:
            return likelihood_sets(
                self.data, self.starts, self.evidence, rule.process, self.whole_delta, fit.theta
            )
        linear_gaussian = self.data.noise_scale is not None
        # one step, and exact
        centre = self.data.climb(fit.theta, enough=1e-14 if linear_gaussian else TOP)
        view = view_of(self.cls, self.data, self.rows, centre, self.delta, self.seed)
        radius = rule.radius(view)
        if rule.divergence == "log_likelihood":
            return (plausible(self.data, 0, centre, 0.0, drop=radius),)
        centre = rule.centre(view, centre)
        # -log affinity is an eighth of d'Id, exactly
        if rule.divergence == "neg_log_affinity" and linear_gaussian:
            return (ellipsoid(self.data, centre, 4 * radius),)
        return (
            ball(
                self.data,
                centre,
                radius,
                summed_divergence(self.cls, self.rows, centre, rule.divergence),
            ),
        )

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether each theta (M, D) is plausible: in the set of every start and group, from all
        rows absorbed, and inside the bounds.
        """
        theta = np.asarray(theta, float)
        inside = np.broadcast_to(np.asarray(self.cls.inside(theta)), len(theta)).copy()
        if self.rows is None:
            return inside
        inside &= left_by_supports(self.data, theta)
        process = self.rule.process
        if process is None:
            for s in self.sets:
                inside &= s.region.slack(theta) >= 0
            return inside
        inside &= within(self.data, self.starts, self.evidence, process, self.whole_delta, theta)
        for part in self.own:
            inside &= part.contains(theta, process, self.delta)
        return inside

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Upper and lower value at contexts x (n, dx) for all K actions: exact on a linear
        predictor, else by ascent.
        """
        return program_bounds.bounds(self, functional, np.asarray(x, float), n_actions)

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """The fit and posterior standard deviations of the functional around it; before a fit,
        of the prior's draws.
        """
        return program_bounds.guess(self, functional, x, n_actions)

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """The delta bound under every snapshot. It steers exploration only; no decision's
        feasibility rests on it.
        """
        return program_trail.trail(self, functional, np.asarray(x, float), n_actions)

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """About 2 kappa lambda_max(I^-1 sum_i h_i h_i'), h_i the functional's gradient at row i;
        from at most n_rows rows.
        """
        return program_trail.squared_deviation(self, functional, n_rows)

    # what monitors ask ----------------------------------------------------------------------------

    def predictive_cdf(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mixture over particles."""
        mixed = self.particles.inside
        return learners.mixed_cdf(
            [(np.exp(mixed.log_weights), self.density_at(mixed.theta, x, a))], y
        )

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        """The same mixture's log density."""
        mixed = self.particles.inside
        rows = self.data.values_at(mixed.theta, x, a, y)
        return learners.mixed_log_density(mixed.log_weights, rows)

    def has_predictive(self, x: np.ndarray) -> bool:
        # one setting, because of a distribution that only its PPL knows there is no batch
        theta = np.asarray(self.cls.initial, float)
        return learners.have_cdfs([self.density_at(theta, x, np.zeros(len(x), np.int64))])

    def density_at(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> Density:
        """Densities (M, n) at theta (M, D), or (n,) at one; where there is a linear predictor,
        without the program.
        """
        return self.data.density_of(self.cls, theta, x, a)

    @property
    def refutable(self) -> bool:
        """Where the likelihood is known to be concave and smooth, its top is known."""
        return self.data.top_known

    def mark(self) -> np.ndarray:
        return np.array([float(self.n)])

    def top(self, since: np.ndarray) -> float:
        return self.data.between(int(since[0]), self.n).top(self.theta)

    # storing --------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        return {
            **out.fields(self, stored_fields(self, LIVE + APART)),
            "data": self.data.stored(out),
            "own": [part.stored(out) for part in self.own],
            "sets": [s.stored(out) for s in self.sets],
        }

    def restored(self, read: Reader, tree: Tree) -> ProgramLearner:
        plain = read.fields(
            {name: n for name, n in tree.items() if name not in APART},
            stored_fields(self, LIVE + APART),
        )
        learner = evolved(self, **plain)
        rows = learner.rows
        data = self.data.restored(read, tree["data"], rows)
        own = tuple(GroupRows.restored(self.data, rows, read, part) for part in tree["own"])
        if tuple(part.group for part in own) != learner.groups[1:]:
            raise ValueError("the groups of rows are not those of the learner")
        return evolved(
            learner,
            data=data,
            own=own,
            sets=tuple(Plausible.restored(data, read, s) for s in tree["sets"]),
        )

    def paper_estimate(self, delta: Any) -> Any:
        """The paper's literal Est at this delta, or at each of several (not divided by 2 t^3
        again).
        """
        if self.rows is None:
            return 0.0
        view = view_of(self.cls, self.data, self.rows, self.theta, delta, self.seed)
        return Paper().at(view, delta)
