r"""Ordered outcomes in NumPy alone: y in 0..C with P(y <= k) = F(u_k), every edge u_k affine in
theta and F the distribution function of a link.

With h the edge above the outcome and l the one below (-inf below 0, inf above C),

    log P(y) = log(F(h) - F(l)),

which is jointly concave in (l, h) where the density of F is log-concave (Prekopa), so that the
log-likelihood is concave in theta and its confidence sets are convex. Where l is not below h the
class has no density.

Axis letters: n rows, C edges, D flat parameters, M parameter settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.special import expit, log_expit, log_ndtr, ndtr

from gedppl.families.one_predictor import LARGEST_EXPONENT, LOG_2PI
from gedppl.learning.likelihoods import MOST_PAIRS, Likelihood
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.learning.storing import Node, Reader
    from gedppl.programs.contract import Halves, OrderedPredictor

BLOCK = 40_000  # products held at once, so that they stay in the cache

OfEdge = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Cumulative:
    """F, the distribution function of a link, whose density f is log-concave."""

    chance: OfEdge  # F
    log_below: OfEdge  # log F
    log_above: OfEdge  # log(1 - F)
    log_density: OfEdge  # log f
    slope: OfEdge  # of log f


def _cloglog() -> Cumulative:
    def size(u: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.exp(np.minimum(u, LARGEST_EXPONENT))
        return found

    return Cumulative(
        chance=lambda u: -np.expm1(-size(u)),
        # far to the left the chance is e^u, which may be too small a number
        log_below=lambda u: np.where(u < -40.0, u, np.log(-np.expm1(-size(u)))),
        log_above=lambda u: -size(u),
        log_density=lambda u: u - size(u),
        slope=lambda u: 1.0 - size(u),
    )


def _mirrored(link: Cumulative) -> Cumulative:
    """1 - F(-u)."""
    return Cumulative(
        chance=lambda u: 1.0 - link.chance(-u),
        log_below=lambda u: link.log_above(-u),
        log_above=lambda u: link.log_below(-u),
        log_density=lambda u: link.log_density(-u),
        slope=lambda u: -link.slope(-u),
    )


LOGIT = Cumulative(
    expit,
    log_expit,
    lambda u: log_expit(-u),
    lambda u: log_expit(u) + log_expit(-u),
    lambda u: -np.tanh(0.5 * u),
)
CUMULATIVE = {
    "logit": LOGIT,
    "probit": Cumulative(
        ndtr,
        log_ndtr,
        lambda u: log_ndtr(-u),
        lambda u: -0.5 * u**2 - 0.5 * LOG_2PI,
        np.negative,
    ),
    "cloglog": _cloglog(),
    "loglog": _mirrored(_cloglog()),
}


Curvature = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Terms:
    """log(F(h) - F(l)) at each row, with its slopes."""

    value: np.ndarray
    by_lower: np.ndarray
    by_upper: np.ndarray
    # minus the Hessian: on_lower dl^2 + on_upper dh^2 + on_gap (dh - dl)^2
    curvature: Callable[[], Curvature]


def terms_between(link: Cumulative, lower: np.ndarray, upper: np.ndarray) -> Terms:
    """At edges l and h; -inf and NaN where l is not below h."""
    return _logit_terms(lower, upper) if link is LOGIT else _terms_of(link, lower, upper)


@np.errstate(all="ignore")
def _logit_terms(lower: np.ndarray, upper: np.ndarray) -> Terms:
    """F(h) - F(l) = F(h) F(-l) (1 - e^(l - h)), so that its logarithm has a term for each edge
    and one for their distance.
    """
    wide = -np.expm1(lower - upper)
    wide = np.where(wide > 0, wide, np.nan)
    tail_low, tail_high = np.exp(-np.abs(lower)), np.exp(-np.abs(upper))
    low, high = 1.0 + tail_low, 1.0 + tail_high
    value = np.minimum(upper, 0.0) - np.maximum(lower, 0.0) + np.log(wide / (low * high))
    closeness = (1.0 - wide) / wide  # 1 / (e^(h - l) - 1)
    return Terms(
        np.where(np.isnan(value), -np.inf, value),
        -np.where(lower >= 0, 1.0, tail_low) / low - closeness,
        np.where(upper >= 0, tail_high, 1.0) / high + closeness,
        lambda: (tail_low / low**2, tail_high / high**2, closeness / wide),
    )


def _terms_of(link: Cumulative, lower: np.ndarray, upper: np.ndarray) -> Terms:
    """Of any link, from log f and its slope: with V = log(F(h) - F(l)), u = f(h) e^-V and d = f(l)
    e^-V the slopes are -d and u, and minus the Hessian is

        d (d - u + s(l)) dl^2 + u (u - d - s(h)) dh^2 + d u (dh - dl)^2,    s = (log f)'.

    All three weights are nonnegative where log f is concave: the likelihood's sets are convex.
    """
    value = log_between(link, lower, upper)
    known = np.where(np.isfinite(value), value, np.nan)
    # an edge that is not there weighs nothing
    low, high = (np.where(np.isfinite(edge), edge, 0.0) for edge in (lower, upper))
    with np.errstate(over="ignore", invalid="ignore"):
        down, up = (
            np.where(np.isfinite(edge), np.exp(link.log_density(at) - known), 0.0)
            for edge, at in ((lower, low), (upper, high))
        )

    def curvature() -> Curvature:
        return down * (down - up + link.slope(low)), up * (up - down - link.slope(high)), down * up

    return Terms(value, -down, up, curvature)


def log_between(link: Cumulative, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """log(F(h) - F(l)), from the tail that both are nearer to; -inf where l is not below h.

    >>> log_between(CUMULATIVE["logit"], np.array([39.0, -np.inf]), np.array([40.0, 0.0])).round(3)
    array([-39.459,  -0.693])

    The first is log(F(-39) - F(-40)): F(40) - F(39) itself would be 0 in float64.
    """
    with np.errstate(all="ignore"):
        below, above = link.log_below(upper), link.log_above(lower)
        right = above < below
        near = np.where(right, above, below)
        far = np.where(right, link.log_above(upper), link.log_below(lower))
        value = near + np.log(-np.expm1(far - near))
        return np.where((lower < upper) & ~np.isnan(value), value, -np.inf)


@dataclass(frozen=True)
class Intervals:
    """The edges around outcomes: columns (n, D + 1), features and offset of each; an edge that is
    not there has an infinite offset and no features.
    """

    link: Cumulative
    lower: np.ndarray
    upper: np.ndarray
    weight: np.ndarray | float = 1.0  # of each row, (n,)

    @classmethod
    def of(
        cls, ordered: OrderedPredictor, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> Intervals:
        edges = np.concatenate([ordered.features(x, a), ordered.offset(x, a)[..., None]], axis=2)
        ends = np.zeros((2, len(edges), 1, edges.shape[2]))
        ends[0, ..., -1], ends[1, ..., -1] = -np.inf, np.inf
        every = np.concatenate([ends[0], edges, ends[1]], axis=1)  # (n, C + 2, D + 1)
        row, category = np.arange(len(edges)), np.asarray(y).astype(np.int64)
        return cls(CUMULATIVE[ordered.link], every[row, category], every[row, category + 1])

    def _products(self, rows: slice) -> list[np.ndarray]:
        """(n, D D), of the features of lower edges, of upper edges and of what is between."""
        low, high = self.lower[rows, :-1], self.upper[rows, :-1]
        return [
            (phi[:, :, None] * phi[:, None, :]).reshape(len(phi), -1)
            for phi in (low, high, high - low)
        ]

    @cached_property
    def _kept_products(self) -> list[np.ndarray]:
        return self._products(slice(None))

    def _edges(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of every row at theta (M, D): two (M, n)."""
        lower, upper = (theta @ part[:, :-1].T + part[:, -1] for part in (self.lower, self.upper))
        return lower, upper

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        """(M, n), without weights."""
        return log_between(self.link, *self._edges(theta))

    def sums(
        self, theta: np.ndarray, curved: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The weighted sum over rows at theta (M, D), (M,), its gradient (M, D), and minus its
        Hessian (M, D, D), or zeros in its place. Block by block, so that they stay in the cache.
        """
        M, D = theta.shape
        value, grad, total = np.zeros(M), np.zeros((M, D)), np.zeros((M, D * D))
        lower, upper = self._edges(theta)
        size = max(64, BLOCK // max(M, D * D))
        for first in range(0, len(self.lower), size):
            rows = slice(first, first + size)
            weight = self.weight if np.ndim(self.weight) == 0 else np.asarray(self.weight)[rows]
            found = terms_between(self.link, lower[:, rows], upper[:, rows])
            value += np.sum(weight * found.value, axis=1)
            low, high = self.lower[rows, :-1], self.upper[rows, :-1]
            grad += (weight * found.by_lower) @ low + (weight * found.by_upper) @ high
            if curved:
                few = len(self.lower) * D * D <= MOST_PAIRS
                products = (
                    [part[rows] for part in self._kept_products] if few else self._products(rows)
                )
                for part, curvature in zip(products, found.curvature()):
                    total += (weight * curvature) @ part
        return value, grad, total.reshape(M, D, D)


def crossed(
    ordered: OrderedPredictor, theta: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """Where theta (M, D) puts edges in the wrong order, (M, n): the outcomes' probabilities then
    do not add up to one.
    """
    features, offset = ordered.features(x, a), ordered.offset(x, a)
    out = np.zeros((len(theta), len(offset)), bool)
    for k in range(1, offset.shape[1]):
        out |= (
            theta @ (features[:, k] - features[:, k - 1]).T + (offset[:, k] - offset[:, k - 1]) < 0
        )
    return out


def apart(gaps: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """The point nearest to theta (D,), in the sum of its steps, where all gaps (G, D + 1) are at
    least one on the link's scale.

    Where no point has that (cutpoints fixed nearer to each other), the one with the widest gaps;
    theta if all are positive.
    """
    here = gaps[:, :-1] @ theta + gaps[:, -1]
    if not len(gaps) or here.min() > 0:
        return theta
    D, G = len(theta), gaps[:, :-1]
    # up and down, each >= 0
    steps = linprog(np.ones(2 * D), A_ub=-np.hstack([G, -G]), b_ub=here - 1.0)
    if steps.status == 0:
        found: np.ndarray = theta + steps.x[:D] - steps.x[D:]
        return found
    widest = linprog(
        np.append(np.zeros(2 * D), -1.0),
        A_ub=np.hstack([-G, G, np.ones((len(G), 1))]),
        b_ub=here,
        bounds=[(0, None)] * (2 * D) + [(None, 1.0)],
    )
    return theta + widest.x[:D] - widest.x[D : 2 * D] if widest.status == 0 else theta


class OrderedLikelihood(Likelihood):
    """From the edges of ordered outcomes: their columns, below and above each outcome, are those of
    one growing `Rows`.
    """

    concave = True

    def __init__(
        self,
        ordered: OrderedPredictor,
        dim: int,
        table: Rows,
        weights: np.ndarray | None = None,
    ) -> None:
        self.ordered, self.dim, self.n, self.table = ordered, dim, table.n, table
        self.weights = weights

    @classmethod
    def empty(cls, ordered: OrderedPredictor, dim: int) -> OrderedLikelihood:
        return cls(ordered, dim, Rows.empty(2 * (dim + 1)))

    def cleared(self) -> OrderedLikelihood:
        return OrderedLikelihood.empty(self.ordered, self.dim)

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> OrderedLikelihood:
        assert self.weights is None
        found = Intervals.of(self.ordered, np.asarray(x, float), np.asarray(a), y)
        columns = np.hstack([found.lower, found.upper])
        return OrderedLikelihood(self.ordered, self.dim, self.table.append(columns, a, y))

    def between(self, start: int, stop: int) -> OrderedLikelihood:
        whole = start == 0 and stop == self.n
        return self if whole else self._part(slice(start, stop), self.weights)

    def weighted(self, weights: np.ndarray) -> OrderedLikelihood:
        return self._part(np.flatnonzero(weights), weights)

    def _part(self, which: slice | np.ndarray, weights: np.ndarray | None) -> OrderedLikelihood:
        weights = None if weights is None else weights[which]
        return OrderedLikelihood(self.ordered, self.dim, self.table.taken(which), weights)

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> OrderedLikelihood:
        return self if rows is None else self.append(rows.x, rows.a, rows.y)

    def admissible(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """theta, or near it a point whose edges stand apart: no density is between tied ones to
        climb by.
        """
        if not len(a):
            return theta
        features, offset = self.ordered.features(x, a), self.ordered.offset(x, a)
        gaps = np.concatenate(
            [np.diff(features, axis=1), np.diff(offset, axis=1)[..., None]], axis=2
        )
        return apart(np.unique(gaps.reshape(-1, self.dim + 1), axis=0), theta)

    @property
    def supports(self) -> Halves:
        return self.ordered.walls

    def crosses(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return crossed(self.ordered, theta, x, a)

    @cached_property
    def intervals(self) -> Intervals:
        lower, upper = np.hsplit(self.table.x, 2)
        weight = 1.0 if self.weights is None else self.weights
        return Intervals(CUMULATIVE[self.ordered.link], lower, upper, weight)

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        return self.intervals.row_values(theta)

    def value(self, theta: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.sum(self.intervals.weight * self.row_values(theta), axis=1)
        return found

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.intervals.sums(theta, curved=False)[:2]

    def informations(self, theta: np.ndarray) -> np.ndarray:
        return self.intervals.sums(theta)[2]

    def parabolas(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.intervals.sums(theta)

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Of the edge that tells most, as if one outcome told it up to one."""
        found: np.ndarray = np.max(np.mean(self.ordered.features(x, a) ** 2, axis=0), axis=0)
        return found
