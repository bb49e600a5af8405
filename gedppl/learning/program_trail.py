"""Bounds of a program's functionals under past snapshots: they steer exploration, and no
decision rests on them.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np

from gedppl.learning.learner import Trail
from gedppl.learning.likelihoods import Likelihood, PredictorLikelihood
from gedppl.learning.ordered import CUMULATIVE, OrderedLikelihood
from gedppl.learning.ordered_bounds import category_values, edge_weights
from gedppl.learning.program_bounds import at_predictor
from gedppl.rows import grid

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner

Under = tuple[np.ndarray, np.ndarray, np.ndarray]


def trail(learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
    """See `ProgramLearner.trail`."""
    shots, n, K = learner.snapshots, len(x), n_actions
    B = len(shots.theta)
    # padded, so that a growing run compiles a handful of shapes
    take = np.minimum(np.arange(_padded(B)), B - 1)
    xs, actions = grid(x, K)
    low, high, kappa = functional.low, functional.high, shots.kappa[take]
    found = _under_snapshots(learner.data, learner, functional, xs, actions, take)
    if found is None:
        found = _by_gradient(learner, functional, xs, actions, take)
    estimate, lower, upper = found
    unknown = ~np.isfinite(kappa)[:, None]
    lower, upper = np.where(unknown, low, lower), np.where(unknown, high, upper)

    def shaped(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.clip(values, low, high)[:B].reshape(B, n, K).transpose(1, 0, 2)
        return found

    return Trail(
        shaped(np.where(np.isnan(estimate), high, estimate)),
        shaped(lower),
        shaped(upper),
        approximate=True,
    )


@singledispatch
def _under_snapshots(
    data: Likelihood,
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
    take: np.ndarray,
) -> Under | None:
    """Estimate, lower and upper under the snapshots `take`, each (P, m); None where only the
    program knows.
    """
    return None


@_under_snapshots.register(PredictorLikelihood)
def _predictor_trail(
    data: PredictorLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
    take: np.ndarray,
) -> Under:
    shots, D, P = learner.snapshots, data.dim, len(take)
    theta, whitener, reach = shots.theta[take], shots.whitener[take], np.sqrt(2 * shots.kappa[take])
    columns, _ = data.columns(x, a)
    phi, offset = columns[:, :D], columns[:, D]
    centre = theta @ phi.T  # (P, m)
    size = np.linalg.norm(np.einsum("pij,mj->pmi", whitener, phi), axis=2)
    # unknown: replaced by the caller
    half = np.where(np.isfinite(reach), reach, 0.0)[:, None] * size
    eta = offset + np.stack([centre, centre - half, centre + half])  # (3, P, m)
    values = at_predictor(
        data, learner, functional, eta.reshape(3 * P, len(a)), columns, x, a
    ).reshape(eta.shape)
    lower = np.where(np.isnan(values), functional.low, values).min(axis=0)
    upper = np.where(np.isnan(values), functional.high, values).max(axis=0)
    return values[0], lower, upper


def _by_gradient(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray, take: np.ndarray
) -> Under:
    """By the functional's gradient at each snapshot's fit."""
    shots, D, P, m = learner.snapshots, learner.cls.dim, len(take), len(a)
    reach, whitener = np.sqrt(2 * shots.kappa[take]), shots.whitener[take]
    value, grad = learner.cls.values_grad(
        functional, np.repeat(shots.theta[take], m, axis=0), np.tile(x, (P, 1)), np.tile(a, P)
    )
    estimate = np.asarray(value, float).reshape(P, m)
    grad = np.asarray(grad, float).reshape(P, m, D)
    size = np.linalg.norm(np.einsum("pij,pmj->pmi", whitener, grad), axis=2)
    known = np.isfinite(reach)[:, None]
    half = np.where(known, np.where(known, reach[:, None], 0.0) * size, np.inf)
    lower, upper = estimate - half, estimate + half
    return (
        estimate,
        np.where(np.isnan(lower), functional.low, lower),
        np.where(np.isnan(upper), functional.high, upper),
    )


@_under_snapshots.register(OrderedLikelihood)
def _ordered_trail(
    data: OrderedLikelihood,
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
    take: np.ndarray,
) -> Under | None:
    """Edge by edge; None if the functional is not linear."""
    shots, ordered = learner.snapshots, data.ordered
    features, offset = ordered.features(x, a), ordered.offset(x, a)
    values = category_values(functional, offset.shape[1], x, a)
    if values is None:
        return None
    constant, weight = edge_weights(values)
    edge = np.einsum("pj,mcj->pmc", shots.theta[take], features) + offset
    size = np.linalg.norm(np.einsum("pij,mcj->pmci", shots.whitener[take], features), axis=3)
    reach = np.sqrt(2 * shots.kappa[take])
    # unknown: replaced by the caller
    half = np.where(np.isfinite(reach), reach, 0.0)[:, None, None] * size
    chance = CUMULATIVE[ordered.link].chance
    ends = weight * chance(np.stack([edge - half, edge, edge + half]))
    return (
        constant + ends[1].sum(axis=2),
        constant + ends.min(axis=0).sum(axis=2),
        constant + ends.max(axis=0).sum(axis=2),
    )


def _padded(count: int) -> int:
    size = 16
    while size < count:
        size *= 2
    return size


def squared_deviation(learner: ProgramLearner, functional: Functional, n_rows: int | None) -> float:
    """See `ProgramLearner.squared_deviation`."""
    span = functional.high - functional.low
    most = learner.n * span**2 if np.isfinite(span) else np.inf
    kappa = learner.kappa
    if learner.rows is None or not np.isfinite(kappa):
        return float(most) if learner.n else 0.0
    used = min(learner.n, 512 if n_rows is None else n_rows)
    take = np.linspace(0, learner.n - 1, 512 if used == 512 else used).astype(np.int64)
    theta = np.broadcast_to(learner.theta, (len(take), learner.cls.dim))
    grad = np.asarray(
        learner.cls.values_grad(functional, theta, learner.rows.x[take], learner.rows.a[take])[1],
        float,
    )
    white = np.where(np.isfinite(grad), grad, 0.0) @ learner.snapshots.whitener[-1].T
    largest = float(np.linalg.eigvalsh(white.T @ white)[-1]) * learner.n / max(len(take), 1)
    return float(min(2 * kappa * largest, most))
