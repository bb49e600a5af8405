"""The exact learner for y ~ Normal(features(x, a) @ theta + offset(x, a), scale(x, a)) with known scale.

Everything is closed form: the posterior mean as the fit, an anytime confidence ellipsoid (`ellipsoids`), and the
range of a functional over it. A row costs a rank-one update, a refit a few small factorisations, and the bounds under all
snapshots together are two matrix products. Immutable: `absorb` and `refit` return a new learner.

Axis letters: n contexts, K actions, B snapshots, E ellipsoids a snapshot, D flat parameters, q free parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.confidence import ellipsoids
from gedppl.confidence.ellipsoids import BEYOND, Quadratics, Region
from gedppl.confidence.learner import Bounds, Trail
from gedppl.confidence.linear_parts import FeatureMemo, Snapshots, Space, Starts, free_space, norm_ball
from gedppl.confidence.loc_ranges import SEARCHED, direction, is_searched, slope, value_at, value_range
from gedppl.errors import FamilyError, NotFiniteError, SettingError, ShapeError

if TYPE_CHECKING:
    from gedppl.classes import LinearPredictor
    from gedppl.functionals import Functional

EMPTY = "every parameter is excluded by the data: the model is misspecified (noise scale, features or bounds)"
LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class LinearGaussianLearner:
    """Data, fit, confidence set and snapshots of a linear-Gaussian class. Made by `LinearGaussianLearner.start`.

    >>> import numpy as np
    >>> from gedppl.classes import LinearPredictor
    >>> from gedppl.functionals import mean
    >>> line = LinearPredictor("Normal", "identity", features=lambda x, a: np.column_stack([np.ones(len(x)), x[:, 0] * a]),
    ...                        offset=lambda x, a: np.zeros(len(x)), fixed=lambda x, a: {"scale": np.full(len(x), 0.1)})
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
    restarts: bool
    intersect: bool
    next_start: int  # rows at which the next e-process begins
    information: np.ndarray  # (q, q) A = sum phi phi' / scale^2
    moment: np.ndarray  # (q,) b = sum phi r / scale^2, r = y - offset - phi'origin
    squares: float  # sum r^2 / scale^2
    log_scales: float  # sum log scale
    widest_scale: float
    narrowest_scale: float
    n: int
    starts: Starts
    snapshots: Snapshots
    kappa: float
    status: str
    features_at: FeatureMemo = field(repr=False, compare=False)

    @classmethod
    def start(
        cls,
        predictor: LinearPredictor,
        dim: int,
        *,
        delta: float,
        prior_mean: Any = None,
        prior_precision: Any = None,
        norm_bound: float | Sequence[tuple[Any, float]] | None = None,
        known_direction: tuple[Any, Any] | None = None,
        restarts: bool = True,
        first_start: int | None = None,
        intersect: bool = False,
    ) -> LinearGaussianLearner:
        """Before any row.

        Parameters
        ----------
        predictor
            Family ``"Normal"``, link ``"identity"``; ``fixed(x, a)["scale"]`` is the known noise scale, (n,).
        dim
            D.
        delta
            The set misses the truth, at any time, with at most this probability.
        prior_mean, prior_precision
            Working prior: (D,), and a number, (D,) or (D, D). Default 0 and D / norm_bound^2, or 1 without a norm bound.
            It sets the fit before data and the scale of the set's mixing distribution; coverage never depends on it.
        norm_bound
            Declared Euclidean norm of theta, or [(indices, norm), ...] for parts of it. It is believed: the set is cut.
        known_direction
            (features, value), (D,) and a number or (m, D) and (m,): features @ theta = value, known before any data (the
            safe action's cost where its features do not change). It is believed.
        restarts
            Begin further e-processes at `first_start` (default max(16, 4 D)) rows and ever fourfold.
        intersect
            Intersect each snapshot's set with all earlier ones. Valid on the same event and a few percent narrower, but where
            the unlucky delta happens a passing miss becomes a lasting one, so it is off by default.
        """
        if predictor.family != "Normal" or predictor.link != "identity":
            raise FamilyError(
                f"the linear-Gaussian learner needs a Normal with identity link, got {predictor.family} with "
                f"{predictor.link!r}; use the general learner of programs.py"
            )
        if not 0 < delta < 1:
            raise SettingError(f"delta must lie strictly between 0 and 1, got {delta}")
        ball = norm_ball(norm_bound, dim)
        if prior_precision is None:
            prior_precision = np.where(np.diag(ball) > 0, dim * np.diag(ball), 1.0) if ball is not None else 1.0
        space = free_space(dim, prior_mean, prior_precision, known_direction, ball)
        q = space.basis.shape[1]
        nothing = np.zeros((q, q)), np.zeros(q)
        starts = Starts(np.zeros((0, q, q)), np.zeros((0, q)), np.zeros((0, q, q)), np.zeros(0)).push(*nothing, space.prior)
        learner = cls(
            predictor=predictor,
            delta=float(delta),
            space=space,
            restarts=restarts,
            intersect=intersect,
            next_start=max(16, 4 * dim) if first_start is None else int(first_start),
            information=nothing[0],
            moment=nothing[1],
            squares=0.0,
            log_scales=0.0,
            widest_scale=0.0,
            narrowest_scale=math.inf,
            n=0,
            starts=starts,
            snapshots=Snapshots.none(1 if ball is None else 4, q, dim),
            kappa=math.inf,
            status="no rows yet",
            features_at=FeatureMemo(predictor, dim),
        )
        return learner.refit()

    # data -------------------------------------------------------------------------------------------------------------

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> LinearGaussianLearner:
        """Take in m rows told together: x (m, dx), a (m,), y (m,)."""
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        if x.ndim != 2 or a.shape != (len(x),) or y.shape != (len(x),):
            raise ShapeError(f"rows need x (m, dx), a (m,) and y (m,), got {x.shape}, {a.shape} and {y.shape}")
        if not len(y):
            return self
        if not np.isfinite(y).all():
            raise NotFiniteError(f"outcomes must be finite, got {y[~np.isfinite(y)][0]}; leave the row out instead")
        phi, offset, scale = self.features_at.rows(x, a)
        return self.absorb_features(phi, y - offset, scale)

    def absorb_features(self, phi: np.ndarray, y: np.ndarray, scale: np.ndarray) -> LinearGaussianLearner:
        """The same, given features (m, D), outcomes less offset (m,) and noise scales (m,)."""
        weight = 1.0 / scale
        white = phi * weight[:, None]
        residual = y * weight - white @ self.space.origin
        free = white @ self.space.basis
        information, moment = self.information + free.T @ free, self.moment + free.T @ residual
        n = self.n + len(y)
        starts, due = self.starts, self.next_start
        if self.restarts and n >= due:  # a batch may pass several due times; it can only begin one process, after itself
            starts = starts.push(information, moment, self.space.prior)
            while due <= n:
                due *= 4
        return replace(
            self,
            information=information,
            moment=moment,
            squares=self.squares + float(residual @ residual),
            log_scales=self.log_scales - float(np.log(weight).sum()),
            widest_scale=max(self.widest_scale, float(scale.max())),
            narrowest_scale=min(self.narrowest_scale, float(scale.min())),
            n=n,
            starts=starts,
            next_start=due,
        )

    @property
    def log_evidence(self) -> float:
        """log p(y_1..y_n) under the working prior = sum_i log q_i(y_i), q_i the exact predictive before row i."""
        precision = self.space.prior + self.information
        fitted = self.moment @ np.linalg.solve(precision, self.moment)
        log_det = np.linalg.slogdet(precision)[1] - self.space.log_det_prior
        return -0.5 * (self.n * LOG_2PI + 2 * self.log_scales + log_det + self.squares - float(fitted))

    # fit and set ------------------------------------------------------------------------------------------------------

    def refit(self) -> LinearGaussianLearner:
        """Posterior mean and confidence set of all rows absorbed, appended as a snapshot."""
        mean, region = self._solve()
        space = self.space
        theta = space.origin + space.basis @ mean
        if region.empty:
            status = EMPTY
        elif self.n == 0:
            status = "no rows yet"
        else:
            rank = int(region.seen[0].sum())
            seen = "all directions seen" if rank == len(mean) else f"{rank} of {len(mean)} directions seen"
            status = f"exact posterior mean of {self.n} rows, {seen}"
        factor = region.factor @ space.basis.T
        middle = theta + region.middle @ space.basis.T
        kappa = math.inf
        if self.n and not region.empty:
            axes = region.factor[0][region.seen[0]]
            kappa = 0.5 * float(np.linalg.eigvalsh(axes @ self.information @ axes.T).max(initial=0.0))
        snapshots = self.snapshots.push(self.n, theta, middle, factor, region.empty)
        return replace(self, snapshots=snapshots, kappa=kappa, status=status)

    def _solve(self) -> tuple[np.ndarray, Region]:
        """Posterior mean (q,) and the ellipsoids around the set of all rows absorbed, relative to it."""
        precision = self.space.prior + self.information
        lower = np.linalg.cholesky(precision)
        whitener = np.linalg.inv(lower)
        mean = whitener.T @ (whitener @ self.moment)
        log_det = 2 * float(np.log(np.diag(lower)).sum())
        share = ellipsoids.weights(len(self.starts.log_det))
        region = ellipsoids.enclose(self._processes(mean, log_det), share, self.delta, whitener, self._ball_around(mean))
        return mean, region

    def _processes(self, mean: np.ndarray, log_det: float) -> Quadratics:
        s = self.starts
        return ellipsoids.log_processes(
            self.space.prior, self.information, self.moment, mean, s.information, s.moment, s.mixing, s.log_det,
            self.space.log_det_prior, log_det,
        )  # fmt: skip

    def _ball_around(self, mean: np.ndarray) -> Quadratics | None:
        """The declared ball as a quadratic in u: (theta' G theta - 1) / 2 at theta = origin + basis (mean + u)."""
        G = self.space.ball
        if G is None:
            return None
        theta = self.space.origin + self.space.basis @ mean
        basis = self.space.basis
        return Quadratics((basis.T @ G @ basis)[None], -(basis.T @ G @ theta)[None], np.array([0.5 * (theta @ G @ theta - 1)]))

    @property
    def theta(self) -> np.ndarray:
        """(D,) the current estimate."""
        return self.snapshots.theta[-1]

    @property
    def radius(self) -> float:
        """How far below its top the log-likelihood of a plausible parameter may lie (`kappa`); inf before the first row."""
        return self.kappa

    @property
    def snapshot_sizes(self) -> np.ndarray:
        return self.snapshots.sizes

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether theta (D,) or (M, D) is in the set of all rows absorbed (before its ellipsoids, and without intersection)."""
        theta = np.asarray(theta, float)
        rows = np.atleast_2d(theta)
        apart = rows - self.space.origin
        eta = apart @ self.space.basis
        size = 1 + np.abs(rows).max(axis=1) + np.abs(self.space.origin).max()
        inside = np.abs(apart - eta @ self.space.basis.T).max(axis=1) <= 1e-9 * size
        if self.space.ball is not None:
            inside &= np.einsum("mi,ij,mj->m", rows, self.space.ball, rows) <= 1 + 1e-9
        precision = self.space.prior + self.information
        mean = np.linalg.solve(precision, self.moment)
        logs = self._processes(mean, float(np.linalg.slogdet(precision)[1]))(eta - mean)
        logs = logs + np.log(ellipsoids.weights(len(self.starts.log_det)))
        inside &= np.logaddexp.reduce(logs, axis=1) <= math.log(1 / self.delta)
        return inside if theta.ndim == 2 else inside[0]

    def draw_members(self, n: int, seed: int) -> np.ndarray:
        """Up to n members of the set (M, D), for display: an inner picture, never a bound. Unseen directions follow the prior."""
        rng = np.random.default_rng(seed)
        mean, region = self._solve()
        q = len(mean)
        prior_sd = np.sqrt(np.diag(np.linalg.inv(self.space.prior)))
        factor = region.factor[0]
        size = np.linalg.norm(factor, axis=1)
        factor = factor * np.minimum(1.0, prior_sd.max() / np.maximum(size, 1e-300))[:, None]
        kept: list[np.ndarray] = []
        for _ in range(20):
            direction_ = rng.normal(size=(2 * n, q))
            direction_ *= (rng.random(2 * n) ** (1 / q) / np.linalg.norm(direction_, axis=1))[:, None]
            theta = self.space.origin + (mean + region.middle[0] + direction_ @ factor) @ self.space.basis.T
            kept.append(theta[self.contains(theta)])
            if sum(map(len, kept)) >= n:
                break
        return np.concatenate(kept)[:n]

    # bounds -----------------------------------------------------------------------------------------------------------

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Bounds at x (n, dx) for all K actions over the newest snapshot's set, and where the upper one is attained."""
        x = np.asarray(x, float)
        rows, a, phi, offset, scale = self.features_at.grid(x, n_actions)
        s = self.snapshots if self.intersect else self.snapshots.newest()
        along, extent, middle = s.project(phi)
        low, high = (middle - extent).max(axis=0), (middle + extent).min(axis=0)
        low, high, apart = _meet(low + offset, high + offset)
        none_left, searched = bool(s.empty.any()), is_searched(functional)
        if none_left:
            low[:], high[:] = -BEYOND, BEYOND
        empty = none_left or apart
        estimate = value_at(functional, (phi @ self.theta + offset)[None], scale, rows, a)
        lower, upper = value_range(functional, low[None], high[None], scale, rows, a)
        side = -1.0 if direction(functional) < 0 else 1.0
        tightest = (side * middle + extent).argmin(axis=0)
        shape = len(x), n_actions
        return Bounds(
            estimate=estimate.reshape(shape),
            lower=lower.reshape(shape),
            upper=upper.reshape(shape),
            method="ascent" if searched else "exact",
            guaranteed=not (empty or searched),
            rule=self.rule,
            note=EMPTY if empty else SEARCHED if searched else "",
            witness=s.attained(along, extent, tightest, side).reshape(*shape, -1),
        )

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """Estimate and bounds under every snapshot (with `intersect`, each intersected with those before it)."""
        x = np.asarray(x, float)
        rows, a, phi, offset, scale = self.features_at.grid(x, n_actions)
        s = self.snapshots
        _, extent, middle = s.project(phi)
        each = (s.count, -1, len(a))
        low, high = (middle - extent).reshape(each).max(axis=1), (middle + extent).reshape(each).min(axis=1)
        if self.intersect:
            low, high = np.maximum.accumulate(low, axis=0), np.minimum.accumulate(high, axis=0)
        low, high, _ = _meet(low + offset, high + offset)
        if s.empty.any():
            empty = np.logical_or.accumulate(s.empty) if self.intersect else s.empty
            low[empty], high[empty] = -BEYOND, BEYOND
        lower, upper = value_range(functional, low, high, scale, rows, a)
        estimate = value_at(functional, s.theta @ phi.T + offset, scale, rows, a)
        shape = s.count, len(x), n_actions
        estimate, lower, upper = (part.reshape(shape).transpose(1, 0, 2) for part in (estimate, lower, upper))
        return Trail(estimate, lower, upper)

    def jointly(self, x: np.ndarray, n_actions: int) -> tuple[np.ndarray, np.ndarray]:
        """One ellipsoid for all actions under every snapshot: the mean of policy pi is at most middle'pi + |half'pi|.

        middle (n, B, K) and half (n, B, K, q). Where there are several (a declared ball), the one that is narrowest at x.
        """
        x = np.asarray(x, float)
        _, _, phi, offset, _ = self.features_at.grid(x, n_actions)
        s = self.snapshots
        along, extent, middle = s.project(phi)
        each = s.count, -1, len(x), n_actions
        extent, middle = extent.reshape(each), (middle + offset).reshape(each)
        along = np.moveaxis(along.reshape(s.count, extent.shape[1], -1, len(x), n_actions), 2, 4)
        narrowest = extent.max(axis=3).argmin(axis=1)  # (B, n)
        b, i = np.indices(narrowest.shape)
        middle, half = middle[b, narrowest, i], along[b, narrowest, i]
        middle[s.empty], half[s.empty] = BEYOND, 0.0
        return middle.swapaxes(0, 1), half.swapaxes(0, 1)

    @property
    def rule(self) -> str:
        again = ", restarted at fourfold growing times," if self.restarts else ""
        held = " and what was declared known is exact" if self.space.known else ""
        return (
            f"mixture of self-normalised e-processes{again} in closed form: covers the truth at all times and for adaptive "
            f"data with probability at least {1 - self.delta:g} if the model holds and the noise scale is not understated{held}"
        )

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """sup over the set of sum_i (T_i - T_hat_i)^2 <= slope^2 scale^2 2 kappa; at most rows times squared range."""
        rows = self.n if n_rows is None else min(n_rows, self.n)
        most = rows * (functional.high - functional.low) ** 2
        if not self.n:
            return 0.0
        steep = slope(functional, self.narrowest_scale)
        if not math.isfinite(steep) or not math.isfinite(self.kappa):
            return most
        return min(most, 2 * self.kappa * (steep * self.widest_scale) ** 2)


def _meet(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ends of the intersection of sets; where they do not meet no parameter is left, so that nothing can be said.

    Ends that cross by rounding are put in order.
    """
    crossed = low > high
    if not crossed.any():
        return low, high, False
    apart = low - high > 1e-9 * (1 + np.abs(low) + np.abs(high))
    low, high = np.where(crossed, high, low), np.where(crossed, low, high)
    return np.where(apart, -BEYOND, low), np.where(apart, BEYOND, high), bool(apart.any())
