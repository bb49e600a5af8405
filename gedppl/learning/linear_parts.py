"""The parts of the linear-Gaussian learner that know no confidence set: free directions, priors,
starts, features.

Axis letters: n contexts, K actions, D flat parameters, q free parameters, k e-processes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from gedppl.errors import DataError, NotFiniteError, SettingError, ShapeError
from gedppl.learning.ellipsoids import Ellipsoid, EllipsoidRegion, NormBall, unit_diagonal
from gedppl.learning.groups import named
from gedppl.learning.reach import is_mean
from gedppl.learning.storing import storable
from gedppl.numerics.arrays import LARGEST, countable
from gedppl.rows import grid

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gedppl.functionals import Functional
    from gedppl.learning.learner import Group
    from gedppl.programs.contract import LinearPredictor
    from gedppl.rows import PredictorParts

# weight of the prior-posterior ratio: any prior costs at most log(1 / 0.8), a right one narrows the
# set
BET = 0.2
# Precision of the mixing distribution in units of what is known at its start, weight. Any that are
# fixed beforehand and sum to at most one are valid. Of the scales tried, spread over few processes
# or many, those from the first row with most of the weight were the narrowest on the rows of real
# runs; the second stage is for priors so wide that these say little.
FIRST = ((6.0, 0.3), (100.0, 0.35))
SECOND = ((3.0, 0.1), (20.0, 0.15))
LATER = ((4.0, 0.05), (64.0, 0.05))  # times 6 / (pi k)^2 for the k-th of them
SPACING = 64  # each later start after this many times the rows before the last one
FLUSH = 1e-14  # share of the terms of a sum, below which it is their rounding
# noise scales that an outcome or a fit may be away from zero: beyond it rounding is a share of the
# noise that a set would notice
RESOLVED = 1e12
FLOOR = 1e-12  # of a unit-diagonal precision, so that it can be inverted
# log evidence by which a flatter prior must win before it takes the place of the declared one
FLATTENED = 4.0
SEEN = 1e-12  # share of what rows say along the direction that they say most of


@storable
@dataclass(frozen=True)
class Space:
    """What is fixed before any row: the free directions, the prior, the ball.

    theta = origin + basis @ eta. A known value of a linear function of theta takes a direction out;
    eta then has q < D entries, with prior N(0, covariance). A parameter without a prior has
    precision 0 and covariance 0.
    """

    origin: np.ndarray  # (D,)
    basis: np.ndarray  # (D, q), orthonormal columns
    prior: np.ndarray  # (q, q) precision
    covariance: np.ndarray  # (q, q)
    ball: np.ndarray | None  # (D, D) G of theta'G theta <= 1
    declared: bool  # whether the prior is the user's own, and worth a bet

    @property
    def known(self) -> int:
        """How many directions are known."""
        return int(self.basis.shape[0] - self.basis.shape[1])

    @property
    def proper(self) -> bool:
        """Whether every parameter has a prior."""
        return bool((np.diag(self.prior) > 0).all())

    def ball_around(self, eta: np.ndarray) -> NormBall:
        """The declared ball as a quadratic in u: (theta' G theta - 1) / 2 at theta = origin +
        basis (eta + u).
        """
        G, basis = self.ball, self.basis
        assert G is not None
        theta = self.origin + basis @ eta
        return NormBall(basis.T @ G @ basis, -(basis.T @ G @ theta), 0.5 * (theta @ G @ theta - 1))

    def projected(self, phi: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features (m, q) of eta, and what is added to them (m,)."""
        base = offset + phi @ self.origin
        if not self.known:
            return phi, base
        basis = self.basis
        free = phi @ basis
        # what is known leaves rounding
        return np.where(np.abs(free) <= FLUSH * (np.abs(phi) @ np.abs(basis)), 0.0, free), base


@storable
@dataclass(frozen=True)
class Starts:
    """Where e-processes began: the group, its rows before, the covariance of the mixing
    distribution, the weight.
    """

    group: np.ndarray  # (k,)
    information: np.ndarray  # (k, q, q)
    moment: np.ndarray  # (k, q)
    covariance: np.ndarray  # (k, q, q)
    weight: np.ndarray  # (k,)

    @classmethod
    def none(cls, q: int) -> Starts:
        return cls(
            np.zeros(0, np.int64),
            np.zeros((0, q, q)),
            np.zeros((0, q)),
            np.zeros((0, q, q)),
            np.zeros(0),
        )

    def push(
        self,
        group: int,
        information: np.ndarray,
        moment: np.ndarray,
        covariance: np.ndarray,
        weights: Sequence[tuple[float, float]],
    ) -> Starts:
        """One process for each (precision in units of the inverse of `covariance`, weight)."""
        m = len(weights)
        return Starts(
            np.append(self.group, np.full(m, group)),
            np.concatenate([self.information, np.repeat(information[None], m, axis=0)]),
            np.concatenate([self.moment, np.repeat(moment[None], m, axis=0)]),
            np.concatenate([self.covariance, np.stack([covariance / c for c, _ in weights])]),
            np.append(self.weight, [w for _, w in weights]),
        )

    def of(self, group: int) -> Starts:
        mine = self.group == group
        return Starts(
            self.group[mine],
            self.information[mine],
            self.moment[mine],
            self.covariance[mine],
            self.weight[mine],
        )


def stage_weights(stage: int, *, alone: bool = False) -> tuple[tuple[float, float], ...]:
    """(precision, weight) of the processes that begin at the given stage: 0 first, 1 second, 2, 3,
    ... later.

    `alone`: there will be no other stage, so that the first has all the weight.

    >>> bool(sum(w for stage in range(10_000) for _, w in stage_weights(stage)) < 1)
    True
    """
    if alone:
        return tuple((c, w / sum(w for _, w in FIRST)) for c, w in FIRST)
    if stage < 2:
        return (FIRST, SECOND)[stage]
    return tuple((c, w * 6 / (math.pi * (stage - 1)) ** 2) for c, w in LATER)


def inverse(precision: np.ndarray) -> np.ndarray:
    """A covariance for a precision whose scale may differ by column; 0 in columns that it does
    not speak about.
    """
    columns, unit, scaled = unit_diagonal(precision)
    out = np.zeros_like(precision)
    out[np.ix_(columns, columns)] = np.linalg.inv(scaled + FLOOR * np.eye(len(columns))) / np.outer(
        unit, unit
    )
    return out


def solve(precision: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """precision^-1 moment, 0 along directions that it does not speak about."""
    columns, unit, scaled = unit_diagonal(precision)
    out = np.zeros_like(moment)
    value, axes = np.linalg.eigh(scaled)
    kept = value > FLOOR * value.max(initial=0.0)
    along = axes[:, kept].T @ (moment[columns] / unit)
    out[columns] = axes[:, kept] @ (along / value[kept]) / unit
    return out


def guessed_covariance(
    space: Space, information: np.ndarray, mean_square: float, n: int
) -> np.ndarray:
    """A mixing covariance in the data's own units: under it, features like those of n rows move by
    as much as outcomes did.

    mean_square: of the outcomes, in units of their noise. Columns with a prior keep theirs.
    """
    size = np.diag(information) / n
    touched = (size > 0) & (np.diag(space.prior) == 0)
    own = np.where(
        touched, max(mean_square, 1.0) / np.where(size > 0, size, 1.0) / max(touched.sum(), 1), 0.0
    )
    found: np.ndarray = space.covariance + np.diag(own)
    return found


def flattening(space: Space, information: np.ndarray, moment: np.ndarray) -> float:
    """The power of ten by which the prior precision must be multiplied for rows not to contradict
    it; 1 if they do not.

    By the evidence of the rows under N(0, covariance / g): -1/2 sum log(1 + v_i / g) + 1/2 sum
    c_i^2 / (v_i + g).
    """
    if not space.proper:
        return 1.0
    root = np.linalg.cholesky(space.covariance)
    value, axes = np.linalg.eigh(root.T @ information @ root)
    value, along = np.maximum(value, 0.0), axes.T @ (root.T @ moment)
    # along directions that no row has seen both are rounding, whose quotient may be anything
    unseen = (value < SEEN * value.max()) & (np.abs(along) < SEEN * np.linalg.norm(along))
    value, along = np.where(unseen, 0.0, value), np.where(unseen, 0.0, along)
    g = 10.0 ** -np.arange(0, 41, 2)[:, None]
    evidence = np.sum(-0.5 * np.log1p(value / g) + 0.5 * along**2 / (value + g), axis=1)
    best = int(np.argmax(evidence))
    return float(g[best, 0]) if evidence[best] > evidence[0] + FLATTENED else 1.0


def largest_gain(information: np.ndarray, moment: np.ndarray) -> float:
    """max 2 moment'u - u'information u, each coordinate in its own unit; inf where rounding
    leaves a direction unsolved.
    """
    unit = np.sqrt(np.maximum(np.diag(information), 0.0))
    unit = np.where(unit > 0, unit, 1.0)
    values, vectors = np.linalg.eigh(information / np.outer(unit, unit))
    along = vectors.T @ (moment / unit)
    solved = values > 1e-12 * max(float(values.max(initial=0.0)), 1e-300)
    if np.abs(along[~solved]).max(initial=0.0) > 1e-9 * np.linalg.norm(along):
        return np.inf
    return float(np.sum(along[solved] ** 2 / values[solved]))


@storable
@dataclass(frozen=True)
class LinearSnapshot:
    """One refit: rows, fit and set."""

    n: int
    theta: np.ndarray  # (D,)
    ellipsoids: tuple[Ellipsoid, ...]  # of eta; each holds the set by itself
    empty: bool


class RegionMemo:
    """The stacked ellipsoids of the snapshots last asked for; replaced in one assignment, so
    threads may share it.
    """

    __slots__ = ("_last", "_q")

    def __init__(self, q: int) -> None:
        self._q = q
        self._last: tuple[tuple[LinearSnapshot, ...], EllipsoidRegion] = (
            (),
            EllipsoidRegion([], q),
        )

    def stacked(self, snapshots: tuple[LinearSnapshot, ...]) -> EllipsoidRegion:
        known, region = self._last
        same = known is snapshots or (
            len(known) == len(snapshots) and all(map(operator.is_, known, snapshots))
        )
        if not same:
            region = EllipsoidRegion([s.ellipsoids for s in snapshots], self._q)
            self._last = (snapshots, region)
        return region


def one_each(values: ArrayLike, n: int) -> np.ndarray:
    """A number, or one for each row, as (n,)."""
    array = np.asarray(values, float)
    return array if array.shape == (n,) else np.broadcast_to(array, (n,))


class FeatureMemo:
    """Features, offsets and scales of rows, checked; the last grid of contexts x actions is
    remembered.

    One decision asks for the same grid several times. The memo is replaced in one assignment, so
    threads may share it.
    """

    __slots__ = ("__weakref__", "_dim", "_last", "_predictor")

    @classmethod
    def of(cls, predictor: LinearPredictor, dim: int) -> FeatureMemo:
        """The one that all learners of a predictor share: two outcomes of one class are asked
        about at the same contexts.
        """
        memo = _MEMOS.get(predictor)
        if memo is None or memo._dim != dim:
            memo = _MEMOS[predictor] = cls(predictor, dim)
        return memo

    def __init__(self, predictor: LinearPredictor, dim: int) -> None:
        self._predictor, self._dim = predictor, dim
        none = np.zeros(0)
        self._last = Grid(b"", (), none, 0, none, none, none)

    def rows(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        m = len(a)
        last = self._last
        # told right after it was asked
        if m == 1 and last.shape == x.shape and a[0] < last.n_actions and x.tobytes() == last.asked:
            only = slice(a[0], a[0] + 1)
            return last.phi[only], last.offset[only], last.scale[only]
        return self._checked(
            self._predictor.features(x, a),
            self._predictor.offset(x, a),
            self._predictor.fixed(x, a),
            m,
        )

    def _checked(
        self, features: np.ndarray, offsets: ArrayLike, fixed: dict[str, np.ndarray], m: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        phi = np.asarray(features, float)
        if phi.shape != (m, self._dim):
            raise ShapeError(f"features must be ({m}, {self._dim}) here, got {phi.shape}")
        offset = one_each(offsets, m)
        scale = one_each(fixed["scale"], m)
        fine = np.count_nonzero(countable(phi)) + np.count_nonzero(countable(offset))
        if fine < phi.size + m:
            raise NotFiniteError(
                "features or offset are not finite at some row, or beyond "
                f"{LARGEST:g}; check the model at that context"
            )
        usable = (scale >= 1 / LARGEST) & (scale <= LARGEST)
        if np.count_nonzero(usable) < m:
            raise DataError(
                f"noise scales must be positive and finite, from {1 / LARGEST:g} to {LARGEST:g}, "
                f"got {scale[~usable][0]}; mend the model, or measure outcomes in another unit"
            )
        return phi, offset, scale

    def grid(self, x: np.ndarray, n_actions: int) -> Grid:
        """At contexts x (n, dx) with actions 0..K-1."""
        last, asked = self._last, x.tobytes()
        if asked != last.asked or x.shape != last.shape or n_actions != last.n_actions:
            parts = self._checked(*at_contexts(self._predictor, x, n_actions), len(x) * n_actions)
            last = self._last = Grid(asked, x.shape, x, n_actions, *parts)
        return last


_MEMOS: WeakValueDictionary[LinearPredictor, FeatureMemo] = WeakValueDictionary()


@dataclass(frozen=True)
class Grid:
    """Features (nK, D), offset (nK,) and scale (nK,) of contexts x (n, dx) and actions 0..K-1,
    contexts slowest; `asked` and `shape` are those of x.
    """

    asked: bytes
    shape: tuple[int, ...]
    x: np.ndarray
    n_actions: int
    phi: np.ndarray
    offset: np.ndarray
    scale: np.ndarray

    def read_by(self, functional: Functional) -> tuple[np.ndarray, np.ndarray]:
        """The rows x (nK, dx), a (nK,) for a functional to look at; the mean looks at none, and
        of many wide contexts they are more than everything else.
        """
        return self._rows if not is_mean(functional) else (self.x[:0], np.zeros(0, np.int64))

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        return grid(self.x, self.n_actions)


def at_contexts(predictor: LinearPredictor, x: np.ndarray, n_actions: int) -> PredictorParts:
    """A predictor's parts at contexts x (n, dx) with actions 0..K-1, contexts slowest."""
    if predictor.at_contexts is not None:
        return predictor.at_contexts(x, n_actions)
    rows, a = grid(x, n_actions)
    # then predictors know them again without a look
    rows.flags.writeable = a.flags.writeable = False
    return predictor.features(rows, a), predictor.offset(rows, a), predictor.fixed(rows, a)


def rule_of(delta: float, groups: tuple[Group, ...], space: Space, *, restarts: bool) -> str:
    """How parameters are kept in the set, in one sentence."""
    again = ", begun anew at growing times," if restarts else ""
    own = f", for {named(groups)}," if len(groups) > 1 else ""
    held = " and what was declared known is exact" if space.known else ""
    return (
        f"mixture of self-normalised e-processes{again}{own} in closed form: covers the truth at "
        f"all times and for adaptive data with probability at least {1 - delta:g} if the model "
        f"holds and the noise scale is not understated{held}"
    )


def norm_ball(
    norm_bound: float | Sequence[tuple[ArrayLike, float]] | None, dim: int
) -> np.ndarray | None:
    """G of theta'G theta <= 1. Several parts: the mean of their ||theta_j||^2 / S_j^2 <= 1,
    weighted by how many coordinates they have, which holds if each does.
    """
    if norm_bound is None:
        return None
    parts = (
        [(np.arange(dim), norm_bound)] if isinstance(norm_bound, int | float) else list(norm_bound)
    )
    G, all_of_them = np.zeros(dim), sum(np.size(indices) for indices, _ in parts)
    for indices, bound in parts:
        if not (np.isfinite(bound) and bound > 0):
            raise SettingError(f"a norm bound must be a positive number, got {bound!r}")
        G[np.asarray(indices, np.int64)] += np.size(indices) / (bound**2 * all_of_them)
    return np.diag(G)


def check_resolved(
    y: np.ndarray, offset: np.ndarray, scale: np.ndarray, white: np.ndarray, origin: np.ndarray
) -> None:
    """Raise where rounding is no longer small beside the noise: what is computed from such numbers
    means nothing, and a bound computed from it least of all.

    y, offset, scale (m,), white (m, D) the features over the scale, origin (D,).
    """
    told = (np.abs(y) + np.abs(offset)) / scale
    fitted = np.abs(white) @ np.abs(origin)
    if np.count_nonzero((told <= RESOLVED) & (fitted <= RESOLVED)) == len(y):
        return
    row = int(np.argmax(np.maximum(told, fitted)))
    what = (
        f"the outcome {y[row]:g} with offset {offset[row]:g} is too large"
        if told[row] >= fitted[row]
        else "the prior is so wide, or so far off, that its centre is too large"
    )
    raise DataError(
        f"{what} beside a noise scale of {scale[row]:g} for numbers of sixteen digits: subtract a "
        "constant from outcomes, declare a larger scale, or a narrower prior"
    )


def free_space(
    dim: int,
    mean: ArrayLike | None,
    precision: ArrayLike | None,
    known: tuple[ArrayLike, ArrayLike] | None,
    ball: np.ndarray | None,
) -> Space:
    """The space of eta. Without a prior a declared ball stands in for it, and where there is
    neither the precision is 0.
    """
    centre = np.zeros(dim) if mean is None else np.asarray(mean, float)
    if precision is None:
        precision = np.zeros(dim) if ball is None else dim * np.diag(ball)
        declared = False
    else:
        declared = True
    given = np.asarray(precision, float)
    full = given if given.ndim == 2 else np.diag(np.broadcast_to(given, (dim,)))
    if centre.shape != (dim,) or full.shape != (dim, dim):
        raise ShapeError(
            f"the prior needs mean ({dim},) and precision a number, ({dim},) or ({dim}, {dim})"
        )
    columns, _, scaled = unit_diagonal(full)
    if not np.isfinite(full).all() or (
        declared and (len(columns) < dim or np.linalg.eigvalsh(scaled)[0] <= 0)
    ):
        raise SettingError(
            "prior_precision must be positive definite; a weak prior is a small number, not 0"
        )
    spread = np.sqrt(np.diag(full)) if declared else np.ones(1)  # one over the deviation
    if np.any((spread < 1 / LARGEST) | (spread > LARGEST)):
        raise SettingError(
            f"a prior may have standard deviations from {1 / LARGEST:g} to {LARGEST:g}, got "
            f"{1 / spread[np.argmax(np.abs(np.log(spread)))]:g}: use another unit, or no prior"
        )
    basis, origin = np.eye(dim), centre
    if known is not None:
        basis, origin = _without(known, centre, full, dim)
    prior = basis.T @ full @ basis
    return Space(origin, basis, prior, inverse(prior), ball, declared)


def _without(
    known: tuple[ArrayLike, ArrayLike], centre: np.ndarray, precision: np.ndarray, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Basis (D, q) of the directions that known values leave free, and the prior's mean given
    these values.
    """
    rows, values = (
        np.atleast_2d(np.asarray(known[0], float)),
        np.atleast_1d(np.asarray(known[1], float)),
    )
    if rows.shape != (len(values), dim) or not (
        np.isfinite(rows).all() and np.isfinite(values).all()
    ):
        raise ShapeError(
            f"known_direction needs finite features (m, {dim}) and values (m,), got "
            f"{rows.shape} and {values.shape}"
        )
    fixed = np.linalg.pinv(rows, rcond=1e-10) @ values
    if np.abs(rows @ fixed - values).max() > 1e-8 * np.abs(values).max():
        raise SettingError(
            f"known_direction contradicts itself: no parameter gives {values} at these features"
        )
    # other columns stay as they are: groups of actions remain apart
    touched = np.flatnonzero(np.any(rows != 0, axis=0))
    _, size, axes = np.linalg.svd(rows[:, touched])
    rank = int((size > 1e-10 * size.max(initial=0.0)).sum())
    if rank == dim:
        raise SettingError("known_direction fixes every parameter; declare a known cost instead")
    others = np.setdiff1d(np.arange(dim), touched)
    basis = np.zeros((dim, dim - rank))
    basis[touched, : len(touched) - rank] = axes[rank:].T
    basis[others, len(touched) - rank + np.arange(len(others))] = 1.0
    free = basis.T @ (precision if np.any(precision) else np.eye(dim))
    return basis, fixed + basis @ solve(free @ basis, free @ (centre - fixed))


# when e-processes begin, and how deep their sets are ----------------------------------------------


def until_due(
    groups: Sequence[Group], counts: np.ndarray, due: np.ndarray, mine: np.ndarray
) -> Iterator[slice]:
    """A batch in parts, each up to the row after which processes begin: they may look at
    earlier rows of it, not at later.
    """
    done = 0
    if mine.shape[1] == 1:
        yield slice(1)
        return
    running = counts[:, None] + np.cumsum(mine, axis=1)
    while done < mine.shape[1]:
        reached = np.any(running[:, done:] >= due[:, None], axis=0)
        stop = done + int(np.argmax(reached)) + 1 if reached.any() else mine.shape[1]
        yield slice(done, stop)
        due = np.where(
            running[:, stop - 1] >= due, next_due(groups, due, running[:, stop - 1]), due
        )
        done = stop


def next_due(groups: Sequence[Group], due: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(G,) the rows after which a stage follows the one that begins at `counts`."""
    second = np.array([max(8, 2 * g.size) for g in groups])
    found: np.ndarray = np.maximum(np.where(due < second, second, SPACING * due), counts + 1)
    return found


def largest_drop(e: Ellipsoid, eta: np.ndarray, information: np.ndarray) -> float:
    """How far below the fit's the log-likelihood of a point of the ellipsoid may lie; inf
    where it is open.
    """
    if len(e.unseen):
        return math.inf
    part = information[np.ix_(e.columns, e.columns)]
    apart = e.middle - eta[e.columns]
    axes = np.linalg.eigvalsh(e.factor @ part @ e.factor.T).max(initial=0.0)
    return 0.5 * (math.sqrt(max(apart @ part @ apart, 0.0)) + math.sqrt(max(axes, 0.0))) ** 2
