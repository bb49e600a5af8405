r"""Ordered outcomes in NumPy alone: y in 0..C with P(y <= k) = expit(u_k), every edge u_k affine in
theta.

With h the edge above the outcome, l the one below and g = h - l their gap,

    log P(y) = log expit(h) + log expit(-l) + log(1 - exp(-g)),

three concave functions of affine ones: a logistic regression of the edges and a term for each gap.
The log-likelihood is concave, so its confidence sets are convex. Where a gap is not positive the
class has no density.

Axis letters: n rows, C edges, D flat parameters, M parameter settings, m terms of n rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.special import expit

from gedppl.learning.fits import Objective, WorkingPrior, symmetric

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass, OrderedPredictor
    from gedppl.rows import Rows

# what a term says: the outcome is above this edge, at or below it, or between two
BELOW, ABOVE, GAP = 0, 1, 2


def terms_of(
    ordered: OrderedPredictor, x: np.ndarray, a: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Columns (m, D + 1), features and offset of each term's argument; the row (m,) it belongs
    to, ascending; its kind (m,).
    """
    # (n, C, D + 1)
    edges = np.concatenate([ordered.features(x, a), ordered.offset(x, a)[..., None]], axis=2)
    category = np.asarray(y).astype(np.int64)
    above, below = np.flatnonzero(category < edges.shape[1]), np.flatnonzero(category > 0)
    inner = np.intersect1d(above, below)
    upper, lower = edges[above, category[above]], edges[below, category[below] - 1]
    gap = edges[inner, category[inner]] - edges[inner, category[inner] - 1]
    row = np.concatenate([below, above, inner])
    kind = np.repeat([BELOW, ABOVE, GAP], [len(below), len(above), len(inner)])
    order = np.argsort(row, kind="stable")
    return np.vstack([lower, upper, gap])[order], row[order], kind[order]


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
    least one logit.

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
        return theta + steps.x[:D] - steps.x[D:]
    widest = linprog(
        np.append(np.zeros(2 * D), -1.0),
        A_ub=np.hstack([-G, G, np.ones((len(G), 1))]),
        b_ub=here,
        bounds=[(0, None)] * (2 * D) + [(None, 1.0)],
    )
    return theta + widest.x[:D] - widest.x[D : 2 * D] if widest.status == 0 else theta


def gap_terms(gap: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log(1 - exp(-g)), its derivative and minus its second; -inf and NaN where the gap is not
    positive.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        open_ = gap > 0
        growth = np.where(open_, np.expm1(np.minimum(gap, 700.0)), np.nan)  # e^g - 1
        value = np.where(open_, np.log(-np.expm1(-np.maximum(gap, 0.0))), -np.inf)
        return value, 1 / growth, (1 + 1 / growth) / growth


def edge_terms(edge: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """log expit(u), or log expit(-u) where the outcome is above the edge."""
    return -np.logaddexp(0.0, np.where(kind == ABOVE, -edge, edge))


class OrderedObjective(Objective):
    """The same objective as the program's, evaluated on its edges without the program."""

    def __init__(
        self,
        cls: DensityClass,
        rows: Rows,
        weights: np.ndarray | None = None,
        prior: WorkingPrior | None = None,
    ) -> None:
        super().__init__(cls, rows, weights, prior)
        columns, row, kind = (
            np.zeros((0, self.dim + 1)),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
        )
        if self.n:
            columns, row, kind = terms_of(cls.ordered, rows.x, rows.a, rows.y)  # type: ignore[arg-type]
        weight = np.ones(len(row)) if self.weights is None else self.weights[row]
        used, gap = weight > 0, kind == GAP
        self._edges, self._kind, self._weight = (
            part[used & ~gap] for part in (columns, kind, weight)
        )
        self._gaps, self._gap_weight = columns[used & gap], weight[used & gap]

    def admissible(self, theta: np.ndarray) -> np.ndarray:
        """theta, or near it a point whose edges stand apart: no density is between tied ones to
        climb by.
        """
        if not self.n:
            return theta
        edges = self.cls.ordered
        assert edges is not None  # an objective of ordered outcomes is made for such classes only
        features, offset = (
            edges.features(self.rows.x, self.rows.a),
            edges.offset(self.rows.x, self.rows.a),
        )
        gaps = np.concatenate(
            [np.diff(features, axis=1), np.diff(offset, axis=1)[..., None]], axis=2
        )
        return apart(np.unique(gaps.reshape(-1, self.dim + 1), axis=0), theta)

    def log_likelihood(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        edge = self._edges[:, :-1] @ theta + self._edges[:, -1]
        value, score, _ = gap_terms(self._gaps[:, :-1] @ theta + self._gaps[:, -1])
        total = self._weight @ edge_terms(edge, self._kind) + self._gap_weight @ value
        grad = self._edges[:, :-1].T @ (self._weight * ((self._kind == ABOVE) - expit(edge)))
        return float(total), grad + self._gaps[:, :-1].T @ (self._gap_weight * score)

    def information(self, theta: np.ndarray) -> np.ndarray:
        edge = self._edges[:, :-1] @ theta + self._edges[:, -1]
        curvature = gap_terms(self._gaps[:, :-1] @ theta + self._gaps[:, -1])[2]
        edges = self._edges[:, :-1] * (self._weight * expit(edge) * expit(-edge))[:, None]
        gaps = self._gaps[:, :-1] * (self._gap_weight * curvature)[:, None]
        return symmetric(edges.T @ self._edges[:, :-1] + gaps.T @ self._gaps[:, :-1])
