"""What a learned model predicted before an outcome came, and how well any of its parameters would have done.

For the monitors only: no decision rests on it. Axis letters: n rows, M parameter settings, S marks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr

from gedppl.density import Density
from gedppl.learning.finite import FiniteLearner
from gedppl.learning.likelihoods import PredictorData, climb
from gedppl.learning.linear_gaussian import LOG_2PI, LinearGaussianLearner
from gedppl.learning.location_scale import LocationScaleLearner
from gedppl.learning.programs import ProgramLearner
from gedppl.rows import Rows


def predictive_cdf(learner: Any, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(Y < y) and P(Y <= y) before y is learned: x (n, dx), a (n,), y (n,) -> (n,), (n,).

    Linear-Gaussian: Normal(phi'm, scale^2 + phi'S phi) with the posterior under a prior a hundred times as wide. Finite
    class: the members' mixture by posterior probability. Programs: the mixture over particles.
    """
    if isinstance(learner, LinearGaussianLearner):
        location, sd = learner.predict(x, a)
        u = ndtr((y - location) / sd)
        return u, u
    if isinstance(learner, FiniteLearner):
        weights = np.exp(_log_weights(learner))
        parts = [(weights[members], density) for members, density in members_at(learner.cls, x, a)]
    elif isinstance(learner, LocationScaleLearner):
        parts = [(np.exp(learner.particles.log_weights), learner.density(learner.particles.theta, x, a))]
    else:
        parts = [(np.exp(learner.particles.log_weights), learner.cls.density_at(learner.particles.theta, x, a))]
    return _mixed(parts, np.nextafter(y, -np.inf)), _mixed(parts, y)


def _log_weights(learner: FiniteLearner) -> np.ndarray:
    logs = learner.totals if np.isfinite(learner.totals).any() else np.zeros(len(learner.totals))
    return logs - np.logaddexp.reduce(logs)


def _mixed(parts: list[tuple[np.ndarray, Density]], y: np.ndarray) -> np.ndarray:
    total = np.zeros(len(y))
    for weights, density in parts:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            cdf = np.broadcast_to(np.asarray(density.cdf(y[None]), float), (len(weights), len(y)))
        total += np.sum(np.where(weights[:, None] > 0, weights[:, None] * cdf, 0.0), axis=0)
    return total


def members_at(cls: Any, x: np.ndarray, a: np.ndarray) -> list[tuple[np.ndarray, Density]]:
    """Members of a finite class and their densities (members, n), one pair for each program it is made of."""
    if not hasattr(cls, "_programs"):  # a finite class of somebody's own
        return [(np.array([m]), cls.density_of(m, x, a)) for m in range(cls.size)]
    return [(cls._of(p), program.density_at(cls._thetas[p], x, a)) for p, program in enumerate(cls._programs)]


# likelihoods ----------------------------------------------------------------------------------------------------------


def is_refutable(learner: Any) -> bool:
    """Whether the largest log-likelihood over the class is known: in closed form, by enumeration, or as it is concave."""
    if isinstance(learner, ProgramLearner):
        return isinstance(learner.data, PredictorData)
    return isinstance(learner, LinearGaussianLearner | FiniteLearner)


def log_predictive(learner: Any, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
    """log of the predictive densities whose distribution functions `predictive_cdf` gives, summed over the n rows."""
    if isinstance(learner, LinearGaussianLearner):
        location, sd = learner.predict(x, a)
        return float(-0.5 * np.sum(LOG_2PI + ((y - location) / sd) ** 2) - np.sum(np.log(sd)))
    if isinstance(learner, FiniteLearner):
        logs, rows = _log_weights(learner), np.asarray(learner.cls.log_likelihood(x, a, y), float)
    else:
        data = PredictorData.empty(learner.data.predictor, learner.data.dim).append(x, a, y)
        logs, rows = learner.particles.log_weights, data.row_values(learner.particles.theta)
    with np.errstate(divide="ignore"):
        return float(np.sum(np.logaddexp.reduce(logs[:, None] + np.where(np.isnan(rows), -np.inf, rows), axis=0)))


def mark(learner: Any) -> np.ndarray:
    """Where the log-likelihood of every parameter stands, as one flat array: `tops` counts from there."""
    if isinstance(learner, LinearGaussianLearner):
        sums = [learner.outcome_squares[0], learner.log_scales, float(learner.n)]
        return np.concatenate([learner.information[0].ravel(), learner.moment[0], sums])
    return learner.totals if isinstance(learner, FiniteLearner) else np.array([float(learner.n)])


def tops(learner: Any, marks: np.ndarray) -> np.ndarray:
    """The largest log-likelihood of any parameter for the rows after each of the marks: (S, m) -> (S,)."""
    return np.array([_top(learner, one) for one in marks])


def _top(learner: Any, since: np.ndarray) -> float:
    if isinstance(learner, LinearGaussianLearner):
        gone = mark(learner) - since
        q = learner.moment.shape[1]
        information, moment = gone[: q * q].reshape(q, q), gone[q * q : -3]
        squares, log_scales, n = gone[-3:]
        fitted = _largest_gain(information, moment)
        return float(-0.5 * (n * LOG_2PI + max(squares - fitted, 0.0)) - log_scales)
    if isinstance(learner, FiniteLearner):
        possible = np.isfinite(learner.totals)
        return float(np.max(learner.totals[possible] - since[possible], initial=-np.inf))
    return _concave_top(learner.data.between(int(since[0]), learner.n), learner.theta)


def _largest_gain(information: np.ndarray, moment: np.ndarray) -> float:
    """max 2 moment'u - u'information u, each coordinate in its own unit; inf where rounding leaves a direction unsolved."""
    unit = np.sqrt(np.maximum(np.diag(information), 0.0))
    unit = np.where(unit > 0, unit, 1.0)
    values, vectors = np.linalg.eigh(information / np.outer(unit, unit))
    along = vectors.T @ (moment / unit)
    solved = values > 1e-12 * max(float(values.max(initial=0.0)), 1e-300)
    if np.abs(along[~solved]).max(initial=0.0) > 1e-9 * np.linalg.norm(along):
        return np.inf
    return float(np.sum(along[solved] ** 2 / values[solved]))


def _concave_top(data: PredictorData, near: np.ndarray) -> float:
    """The top of a concave log-likelihood, and what a last Newton step would still promise; inf if the climb did not settle."""
    if data.table is None or not data.n:
        return 0.0
    unit = np.sqrt(np.mean(data.features**2, axis=0))  # a climb leaves directions of little curvature alone
    unit = np.where(unit > 0, unit, 1.0)
    table = data.table.x.copy()
    table[:, : data.dim] /= unit
    scaled = PredictorData(data.predictor, data.dim, Rows.of(table, data.table.a, data.table.y), data.names)
    theta = climb(scaled, near * unit, steps=100, enough=1e-9)
    value, grad = (part[0] for part in scaled.value_grad(theta[None]))
    values, vectors = np.linalg.eigh(scaled.information(theta))
    left = np.sum((vectors.T @ grad) ** 2 / np.maximum(values, max(1e-9 * float(values.max()), 1e-300)))
    return float(value + left) if left < 1e-3 else np.inf
