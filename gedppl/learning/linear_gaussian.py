"""The exact learner for y ~ Normal(features(x, a) @ theta + offset(x, a), scale(x, a)) with known
scale.

Everything is closed form: the posterior mean as the fit, anytime confidence ellipsoids
(`ellipsoids`) for all rows and for each group of actions with parameters of its own (`groups`), and
the range of a functional over them. A row costs a rank-one update, a refit a few small
factorisations. Immutable: `absorb` and `refit` return a new learner.

Axis letters: n contexts, K actions, B snapshots, G groups, D flat parameters, q free parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from gedppl.errors import FamilyError, NotFiniteError, ShapeError
from gedppl.learning import ellipsoids
from gedppl.learning.ellipsoids import (
    Ellipsoid,
    EllipsoidRegion,
    Quadratics,
    SeenDirections,
    apart,
    embedded,
    ends,
    seen_directions,
)
from gedppl.learning.groups import one_group
from gedppl.learning.learner import Bounds, Group, Guess, Trail
from gedppl.learning.linear_parts import (
    BET,
    FeatureMemo,
    Grid,
    LinearSnapshot,
    RegionMemo,
    Space,
    Starts,
    check_resolved,
    flattening,
    free_space,
    guessed_covariance,
    inverse,
    largest_drop,
    largest_gain,
    next_due,
    norm_ball,
    rule_of,
    solve,
    stage_weights,
    until_due,
)
from gedppl.learning.linear_set import drawn_members, in_set, together, trail_of, witness
from gedppl.learning.reach import (
    SEARCHED,
    direction,
    is_mean,
    is_searched,
    slope,
    value_at,
    value_range,
)
from gedppl.learning.storing import Reader, Tree, Writer, stored_fields
from gedppl.numerics.arrays import check_delta, evolved

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gedppl.functionals import Functional
    from gedppl.programs.contract import LinearPredictor
    from gedppl.selection.solvers import Together

EMPTY = (
    "every parameter is excluded by the data: the model is misspecified (noise scale, "
    "features or bounds)"
)
# come from the problem, or are memos
LIVE = ("features_at", "predictor", "region_of", "rule")
LOG_2PI = math.log(2 * math.pi)
# share of the prior's precision in predictions for monitors: a prior far off is not a wrong model
WIDER_PRIOR = 1e-4


@dataclass(frozen=True)
class LinearGaussianLearner:
    """Data, fit, confidence set and snapshots of a linear-Gaussian class. Made by
    `LinearGaussianLearner.start`.

    >>> import numpy as np
    >>> from gedppl.programs.contract import LinearPredictor
    >>> from gedppl.functionals import mean
    >>> line = LinearPredictor(
    ...     "Normal",
    ...     "identity",
    ...     features=lambda x, a: np.column_stack([np.ones(len(x)), x[:, 0] * a]),
    ...     offset=lambda x, a: np.zeros(len(x)),
    ...     fixed=lambda x, a: {"scale": np.full(len(x), 0.1)},
    ... )
    >>> rng = np.random.default_rng(0)
    >>> x, a = rng.random((200, 1)), rng.integers(0, 2, 200)
    >>> y = 0.2 + 0.5 * x[:, 0] * a + 0.1 * rng.normal(size=200)
    >>> learner = LinearGaussianLearner.start(line, 2, delta=0.05).absorb(x, a, y).refit()
    >>> bounds = learner.bounds(mean(0, 1), np.array([[0.5]]), 2)
    >>> bool((bounds.lower <= [0.2, 0.45]).all() and (bounds.upper >= [0.2, 0.45]).all())
    True
    """

    predictor: LinearPredictor
    delta: float
    space: Space
    groups: tuple[Group, ...]  # the first is all rows
    restarts: bool
    intersect: bool
    keep_past: bool
    information: np.ndarray  # (G, q, q) A = sum phi phi' / scale^2
    moment: np.ndarray  # (G, q) b = sum phi r / scale^2, r = y - offset - phi'origin
    counts: np.ndarray  # (G,) rows
    stages: np.ndarray  # (G,) starts so far
    due: np.ndarray  # (G,) rows after which the next processes begin
    outcome_squares: np.ndarray  # (G,) sum r^2 / scale^2
    log_scales: float  # sum log scale
    widest_scale: float
    narrowest_scale: float
    starts: Starts
    snapshots: tuple[LinearSnapshot, ...]
    kappa: float
    status: str
    rule: str  # how parameters are kept in the set, a sentence
    features_at: FeatureMemo = field(repr=False, compare=False)
    region_of: RegionMemo = field(repr=False, compare=False)

    @classmethod
    def start(
        cls,
        predictor: LinearPredictor,
        dim: int,
        *,
        delta: float,
        prior_mean: ArrayLike | None = None,
        prior_precision: ArrayLike | None = None,
        norm_bound: float | Sequence[tuple[ArrayLike, float]] | None = None,
        known_direction: tuple[ArrayLike, ArrayLike] | None = None,
        groups: tuple[Group, ...] | None = None,
        restarts: bool = True,
        intersect: bool = False,
        keep_past: bool = True,
    ) -> LinearGaussianLearner:
        """Before any row.

        Parameters
        ----------
        predictor
            Family ``"Normal"``, link ``"identity"``; ``fixed(x, a)["scale"]`` is the known noise
            scale, (n,).
        dim
            D.
        delta
            The set misses the truth, at any time, with at most this probability.
        prior_mean, prior_precision
            (D,), and a number, (D,) or (D, D). It sets the fit before data, it is bet on, and it
            scales the set's mixing distribution; coverage never depends on it. Without one the
            mixing distribution is taken from the first rows.
        norm_bound
            Declared Euclidean norm of theta, or [(indices, norm), ...] for parts of it. It is
            believed: the set is cut.
        known_direction
            (features, value), (D,) and a number or (m, D) and (m,): features @ theta = value, known
            before any data (the safe action's cost where its features do not change). It is
            believed.
        groups
            From `action_groups`; all rows as one group by default.
        restarts
            Begin further e-processes later: after max(8, 2 d) rows of a group with d parameters,
            then after 64 times as many.
        intersect
            Intersect each snapshot's set with all earlier ones. Valid on the same event and a few
            percent narrower, but where the unlucky delta happens a passing miss becomes a lasting
            one, so it is off by default.
        keep_past
            Keep every snapshot, for `trail`; otherwise only the newest.
        """
        if predictor.family != "Normal" or predictor.link != "identity":
            raise FamilyError(
                "the linear-Gaussian learner needs a Normal with identity link, got "
                f"{predictor.family} with "
                f"{predictor.link!r}; use the general learner of programs.py"
            )
        check_delta(delta)
        ball = norm_ball(norm_bound, dim)
        space = free_space(dim, prior_mean, prior_precision, known_direction, ball)
        q, chosen = space.basis.shape[1], one_group(dim) if groups is None else groups
        G = len(chosen)
        learner = cls(
            predictor=predictor,
            delta=float(delta),
            space=space,
            groups=chosen,
            restarts=restarts,
            intersect=intersect,
            keep_past=keep_past or intersect,
            information=np.zeros((G, q, q)),
            moment=np.zeros((G, q)),
            counts=np.zeros(G, np.int64),
            stages=np.zeros(G, np.int64),
            due=np.array([0 if space.proper else max(4, g.size + 1) for g in chosen]),
            outcome_squares=np.zeros(G),
            log_scales=0.0,
            widest_scale=0.0,
            narrowest_scale=math.inf,
            starts=Starts.none(q),
            snapshots=(),
            kappa=math.inf,
            status="no rows yet",
            rule=rule_of(float(delta), chosen, space, restarts=restarts),
            features_at=FeatureMemo.of(predictor, dim),
            region_of=RegionMemo(q),
        )
        return learner._begun().refit()

    # data -----------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Rows absorbed."""
        return int(self.counts[0])

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> LinearGaussianLearner:
        """Take in m rows told together: x (m, dx), a (m,), y (m,)."""
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        if x.ndim != 2 or a.shape != (len(x),) or y.shape != (len(x),):
            raise ShapeError(
                f"rows need x (m, dx), a (m,) and y (m,), got {x.shape}, {a.shape} and {y.shape}"
            )
        if not len(y):
            return self
        if np.count_nonzero(np.isfinite(y)) < y.size:
            raise NotFiniteError(
                f"outcomes must be finite, got {y[~np.isfinite(y)][0]}; leave the row out instead"
            )
        phi, offset, scale = self.features_at.rows(x, a)
        white = phi / scale[:, None]
        check_resolved(y, offset, scale, white, self.space.origin)
        residual = (y - offset) / scale - white @ self.space.origin
        free = white @ self.space.basis if self.space.known else white
        mine = np.array([group.rows(a) for group in self.groups])  # (G, m)
        learner = self
        for part in until_due(self.groups, self.counts, self.due, mine):
            learner = learner._added(mine[:, part], free[part], residual[part], scale[part])
        return learner

    def _added(
        self, mine: np.ndarray, free: np.ndarray, residual: np.ndarray, scale: np.ndarray
    ) -> LinearGaussianLearner:
        information, moment = self.information.copy(), self.moment.copy()
        counts, squares = self.counts.copy(), self.outcome_squares.copy()
        for g, own in enumerate(mine):
            if not (rows := np.count_nonzero(own)):
                continue
            part, gap = (free, residual) if rows == len(own) else (free[own], residual[own])
            information[g] += part.T @ part
            moment[g] += part.T @ gap
            counts[g] += len(gap)
            squares[g] += gap @ gap
        grown = evolved(
            self,
            information=information,
            moment=moment,
            counts=counts,
            outcome_squares=squares,
            log_scales=self.log_scales + sum(map(math.log, scale.tolist())),
            widest_scale=max(self.widest_scale, *scale.tolist()),
            narrowest_scale=min(self.narrowest_scale, *scale.tolist()),
        )
        return grown._begun()

    def _begun(self) -> LinearGaussianLearner:
        """With the e-processes that are due."""
        late = (self.counts >= self.due).nonzero()[0]
        if not len(late):
            return self
        starts, stages = self.starts, self.stages.copy()
        for g in late.tolist():
            stage = int(stages[g])
            if stage == 0 or self.restarts:
                weights = stage_weights(stage, alone=not self.restarts)
                starts = starts.push(
                    g, self.information[g], self.moment[g], self._mixing(g, stage), weights
                )
            stages[g] = stage + 1
        due = np.where(
            self.counts >= self.due, next_due(self.groups, self.due, self.counts), self.due
        )
        return evolved(self, starts=starts, stages=stages, due=due)

    def _mixing(self, g: int, stage: int) -> np.ndarray:
        """(q, q) covariance of the mixing distribution: what the prior and the rows so far leave
        open.
        """
        space, information = self.space, self.information[g]
        if stage == 0:
            n = int(self.counts[g])
            return (
                guessed_covariance(space, information, self.outcome_squares[g] / n, n)
                if n
                else space.covariance
            )
        return inverse(flattening(space, information, self.moment[g]) * space.prior + information)

    @property
    def log_evidence(self) -> float:
        """log p(y_1..y_n) under the prior = sum_i log q_i(y_i), q_i the exact predictive before
        row i.
        """
        information, moment = self.information[0], self.moment[0]
        fitted = moment @ solve(self.space.prior + information, moment)
        root = np.linalg.cholesky(self.space.covariance)
        log_det = np.linalg.slogdet(np.eye(len(moment)) + root.T @ information @ root)[1]
        spent = self.n * LOG_2PI + 2 * self.log_scales + log_det + self.outcome_squares[0]
        return float(-0.5 * (spent - fitted))

    # fit and set ----------------------------------------------------------------------------------

    def refit(self) -> LinearGaussianLearner:
        """Posterior mean and confidence set of all rows absorbed, appended as a snapshot."""
        space, prior = self.space, self.space.prior
        flat = flattening(space, self.information[0], self.moment[0]) if self.n else 1.0
        eta = solve(flat * prior + self.information[0], self.moment[0])
        theta = space.origin + space.basis @ eta
        found, empty = self._enclosed()
        kappa = (
            math.inf
            if empty or not found or not self.n
            else largest_drop(found[0], eta, self.information[0])
        )
        past = self.snapshots if self.keep_past else ()
        snapshots = (*past, LinearSnapshot(self.n, theta, found, empty))
        return evolved(
            self, snapshots=snapshots, kappa=kappa, status=self._said(found, empty, flat)
        )

    def _said(self, found: tuple[Ellipsoid, ...], empty: bool, flat: float) -> str:
        if empty:
            return EMPTY
        if not self.n:
            return "no rows yet"
        # NumPy < 2.1 knows no rank of nothing
        known = found and found[0].factor.size
        seen, q = np.linalg.matrix_rank(found[0].factor) if known else 0, len(self.moment[0])
        text = "all directions seen" if seen == q else f"{seen} of {q} directions seen"
        if flat < 1:
            text += (
                f"; the rows contradict the prior, whose precision was divided by {1 / flat:.0e}"
            )
        return f"exact posterior mean of {self.n} rows, {text}"

    def _enclosed(self) -> tuple[tuple[Ellipsoid, ...], bool]:
        """Ellipsoids around the set of every group with rows, those of all rows first; and
        whether one of them is empty.
        """
        found: list[Ellipsoid] = []
        empty = False
        for g, group in enumerate(self.groups):
            if not self.counts[g] and (g or self.space.ball is None):
                continue
            seen = seen_directions(self.information[g])
            processes, share = self.processes(g, seen)
            # the first processes have not begun, or nothing was seen: only a declared ball holds
            if not len(share):
                if self.space.ball is not None and not g:
                    found.append(
                        ellipsoids.of_ball(self.space.ball_around(np.zeros(len(self.moment[0]))))
                    )
                continue
            ball = (
                self.space.ball_around(embedded(seen, self.moment[g]))
                if self.space.ball is not None
                else None
            )
            made, none_left = ellipsoids.enclose(
                seen,
                self.moment[g],
                processes,
                share,
                self.delta * group.share,
                ball,
                own_columns=g > 0,
            )
            found.extend(made)
            empty |= none_left
        return tuple(found), empty

    def processes(self, g: int, seen: SeenDirections) -> tuple[Quadratics, np.ndarray]:
        """log M_k of a group around its least squares estimate, and their weights."""
        begun = self.starts.of(g)
        processes = ellipsoids.log_processes(
            seen, self.moment[g], begun.information, begun.moment, begun.covariance
        )
        if not (self.space.declared and self.space.proper):
            return processes, begun.weight
        bet = ellipsoids.log_bet(seen, self.moment[g], self.space.covariance)
        return ellipsoids.together(bet, processes), np.append(BET, (1 - BET) * begun.weight)

    @property
    def theta(self) -> np.ndarray:
        """(D,) the current estimate."""
        return self.snapshots[-1].theta

    @property
    def radius(self) -> float:
        """How far below its top a plausible parameter's log-likelihood may lie; inf: not known."""
        return self.kappa

    @property
    def snapshot_sizes(self) -> np.ndarray:
        return np.array([s.n for s in self.snapshots], np.int64)

    @property
    def fit(self) -> None:
        """No oracle is asked."""

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether theta (D,) or (M, D) is in the set of all rows absorbed (before its
        ellipsoids, and without intersection).
        """
        return in_set(self, theta)

    def draw_members(self, n: int, seed: int) -> np.ndarray:
        """Up to n members of the set (M, D), for display: an inner picture, never a bound.
        Unseen directions follow the prior.
        """
        return drawn_members(self, n, seed)

    def predict(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (n,) of outcomes not seen yet, under a prior a hundred
        times as wide; inf where unknown.
        """
        asked = x.tobytes() + a.tobytes()
        known = self._predicted.get(asked)
        if known is not None:
            return known
        phi, offset, scale = self.features_at.rows(x, a)
        seen, centre = self._predictive
        free, base = self.space.projected(phi, offset)
        along, spread = ellipsoids.along(seen, free)
        found = along @ centre + base, np.sqrt(scale * scale + spread)
        self._predicted.clear()
        self._predicted[asked] = found
        return found

    @cached_property
    def _predicted(self) -> dict[bytes, tuple[np.ndarray, np.ndarray]]:
        """The last answer of `predict`: monitors ask for the cdf and for the density."""
        return {}

    @cached_property
    def _predictive(self) -> tuple[SeenDirections, np.ndarray]:
        """Directions of the posterior's precision, and its mean along them (r,)."""
        seen = seen_directions(WIDER_PRIOR * self.space.prior + self.information[0])
        return seen, ellipsoids.part_of(seen, self.moment[:1])[0] @ seen.lift

    def predictive_cdf(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of Normal(phi'm, scale^2 + phi'S phi), the posterior under that wider prior."""
        location, sd = self.predict(x, a)
        u = ndtr((y - location) / sd)
        return u, u

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        location, sd = self.predict(x, a)
        z, spread = (y - location) / sd, sum(map(math.log, sd.tolist()))
        return float(-0.5 * (len(z) * LOG_2PI + z @ z) - spread)

    def has_predictive(self, x: np.ndarray) -> bool:
        return True

    @property
    def refutable(self) -> bool:
        return True

    def mark(self) -> np.ndarray:
        """The sums of all rows, which give every parameter's log-likelihood."""
        sums = [self.outcome_squares[0], self.log_scales, float(self.n)]
        return np.concatenate([self.information[0].ravel(), self.moment[0], sums])

    def top(self, since: np.ndarray) -> float:
        """By least squares."""
        gone, q = self.mark() - since, self.moment.shape[1]
        squares, log_scales, n = gone[-3:]
        fitted = largest_gain(gone[: q * q].reshape(q, q), gone[q * q : -3])
        return float(-0.5 * (n * LOG_2PI + max(squares - fitted, 0.0)) - log_scales)

    # storing --------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        return out.fields(self, stored_fields(self, LIVE))

    def restored(self, read: Reader, tree: Tree) -> LinearGaussianLearner:
        return evolved(self, **read.fields(tree, stored_fields(self, LIVE)))

    # bounds ---------------------------------------------------------------------------------------

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """The exact range over the newest snapshot's set."""
        at = self.features_at.grid(np.asarray(x, float), n_actions)
        low, high, _, _ = self._range(*self.space.projected(at.phi, at.offset), 1.0)
        cut = functional.clip(self._values(functional, at, low, high))
        return Guess(*cut.reshape(3, len(x), n_actions))

    def _values(
        self, functional: Functional, at: Grid, low: np.ndarray, high: np.ndarray
    ) -> np.ndarray:
        """(3, m): the estimate and the ends of the functional for loc from low to high (m,), not
        yet cut to its declared range.
        """
        here = at.scale, *at.read_by(functional)
        loc = at.phi @ self.theta + at.offset
        ends = value_range(functional, low[None], high[None], *here)
        return np.concatenate([value_at(functional, loc[None], *here), *ends])

    def _range(
        self, free: np.ndarray, base: np.ndarray, side: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
        """Ends (m,) of free'eta + base, which ellipsoid sets the one on this side, and whether no
        parameter is left.
        """
        low, high, tightest = ends(*self.region.reach(free), side)
        empty = any(s.empty for s in self.in_force()) or apart(low, high)
        if empty:
            low[:], high[:] = -np.inf, np.inf
        if np.count_nonzero(free) < free.size:
            none = ~free.any(axis=1)  # nothing unknown is left in it
            low[none] = high[none] = 0.0
        # ends may cross by rounding
        return np.minimum(low, high) + base, np.maximum(low, high) + base, tightest, empty

    @property
    def region(self) -> EllipsoidRegion:
        """Of the snapshots in force."""
        return self.region_of.stacked(self.in_force())

    def in_force(self) -> tuple[LinearSnapshot, ...]:
        """The newest snapshot, or with `intersect` all."""
        return self.snapshots if self.intersect else self.snapshots[-1:]

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Bounds at x (n, dx) for all K actions over the newest snapshot's set, and where the
        upper one is attained.
        """
        at = self.features_at.grid(np.asarray(x, float), n_actions)
        side = -1.0 if direction(functional) < 0 else 1.0
        free, base = self.space.projected(at.phi, at.offset)
        low, high, tightest, empty = self._range(free, base, side)
        searched, shape = is_searched(functional), (len(x), n_actions)
        values = self._values(functional, at, low, high).reshape(3, *shape)
        estimate, lower, upper = functional.clip(values)
        forms: tuple[Together, ...] = ()
        if is_mean(functional) and not empty:  # affine in theta
            cut = upper != values[2]
            forms = together(self.region, free, base, tightest.reshape(shape), upper, cut)
        return Bounds(
            estimate=estimate,
            lower=lower,
            upper=upper,
            method="ascent" if searched else "exact",
            guaranteed=not (empty or searched),
            rule=self.rule,
            note=EMPTY if empty else SEARCHED if searched else "",
            find_witness=lambda: witness(self, at.phi, tightest, side).reshape(*shape, -1),
            empty=empty,
            free_lower=values[1],
            free_upper=values[2],
            together=forms,
        )

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """Estimate and bounds under every snapshot (with `intersect`, each intersected with
        those before it).
        """
        return trail_of(self, functional, x, n_actions)

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """sup over the set of sum_i (T_i - T_hat_i)^2 <= slope^2 scale^2 2 kappa; at most rows
        times squared range.
        """
        rows = self.n if n_rows is None else min(n_rows, self.n)
        most = rows * (functional.high - functional.low) ** 2
        if not self.n:
            return 0.0
        steep = slope(functional, self.narrowest_scale)
        if not math.isfinite(steep) or not math.isfinite(self.kappa):
            return most
        return min(most, 2 * self.kappa * (steep * self.widest_scale) ** 2)
