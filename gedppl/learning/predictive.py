"""The predictive density that a likelihood-ratio set is measured against, as a weighted set of parameters.

Particles theta_m with weights w_m, fixed before a batch of outcomes arrives, predict it jointly with

    q(y_1, ..., y_k) = sum_m w_m prod_i p(y_i | x_i, a_i, theta_m),

then w_m is multiplied by the batch's likelihood. q is symmetric in the rows of a batch and integrates to one, so the
product over batches divided by the truth's likelihood is a nonnegative martingale whatever the particles are: a poor set
costs width, never coverage. (The rows of a batch may also have been collected one after another, each on what the
earlier ones showed: every term of the sum is a martingale of its own.)

Axis letters: M particles, n rows, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from gedppl.errors import FamilyError, NoClosedFormError
from gedppl.learning.storing import storable
from gedppl.oracles.fits import positive_definite

if TYPE_CHECKING:
    from gedppl.classes import DensityClass
    from gedppl.density import Density

PARTICLES = 128
FROM_PRIOR = 16
PRIOR_SCALES = (0.3, 1.0, 3.0)  # of coordinates without a prior, one after another, in their units


@storable
@dataclass(frozen=True)
class Particles:
    """theta (M, D) and log weights (M,) that sum to one on the natural scale."""

    theta: np.ndarray
    log_weights: np.ndarray

    def predict(self, rows: np.ndarray) -> tuple[float, Particles]:
        """log q of a batch, given each particle's log-likelihood of its rows (M, n), and the particles reweighted by it.

        A particle whose log-likelihood is not a finite number counts as density zero. That makes q integrate to less than
        one, which keeps the set valid; renormalising after the outcome was seen would not. If no particle is left, log q
        is -inf and the weights stay.
        """
        sums = rows.sum(axis=1)
        joint = self.log_weights + np.where(np.isfinite(sums), sums, -np.inf)
        if not np.isfinite(joint).any():
            return -np.inf, self
        log_q = float(logsumexp(joint))
        return log_q, replace(self, log_weights=joint - log_q)


def prior_draws(cls: DensityClass, n: int, seed: int, unit: np.ndarray | float = 1.0) -> np.ndarray:
    """(n, D) from the class's prior; coordinates without one are spread over several scales around `initial`, in units (D,)."""
    draws = np.array(cls.draw_prior(n, seed), float)
    spread = np.resize(PRIOR_SCALES, n)[:, None] * unit
    return np.where(cls.prior_free, cls.initial + spread * (draws - cls.initial), draws)


def at_start(cls: DensityClass, seed: int, unit: np.ndarray | float = 1.0) -> Particles:
    """Before any row: draws from the prior, and the initial parameters."""
    theta = np.vstack([cls.initial, prior_draws(cls, PARTICLES - 1, seed, unit)])
    return Particles(theta, np.full(PARTICLES, -np.log(PARTICLES)))


def laplace(cls: DensityClass, theta: np.ndarray, precision: np.ndarray, seed: int, unit: np.ndarray | float = 1.0) -> Particles:
    """After a fit: theta, draws from N(theta, precision^-1) in opposite pairs, and a few from the prior."""
    pairs = (PARTICLES - FROM_PRIOR - 1) // 2 + 1
    base = np.random.default_rng(seed).standard_normal((pairs, cls.dim))  # the same at every refit
    chol = np.linalg.cholesky(positive_definite(precision))
    steps = solve_triangular(chol, base.T, lower=True, trans=1).T
    near = np.vstack([theta[None], theta + steps, theta - steps])[: PARTICLES - FROM_PRIOR]
    draws = np.vstack([near, prior_draws(cls, FROM_PRIOR, seed + 1, unit)])
    return Particles(draws, np.full(PARTICLES, -np.log(PARTICLES)))


def drawn(cls: DensityClass, theta: np.ndarray, sampled: np.ndarray, seed: int, unit: np.ndarray | float = 1.0) -> Particles:
    """After a fit: theta, draws (M', D) from any source, and a few from the prior."""
    room = PARTICLES - FROM_PRIOR - 1
    every = np.vstack([theta[None], np.resize(sampled, (room, cls.dim)), prior_draws(cls, FROM_PRIOR, seed + 1, unit)])
    return Particles(every, np.full(PARTICLES, -np.log(PARTICLES)))


def draws(theta: np.ndarray, precision: np.ndarray, n: int, seed: int) -> np.ndarray:
    """n draws (n, D) from N(theta, precision^-1)."""
    chol = np.linalg.cholesky(positive_definite(precision))
    base = np.random.default_rng(seed).standard_normal((n, len(theta)))
    return theta + solve_triangular(chol, base.T, lower=True, trans=1).T


# mixtures -------------------------------------------------------------------------------------------------------------


def mixed_cdf(parts: Sequence[tuple[np.ndarray, Density]], y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(Y < y) and P(Y <= y) of a mixture: weights (M,) and densities of batch (M, n), part by part; y (n,)."""
    return _mixed(parts, np.nextafter(y, -np.inf)), _mixed(parts, y)


def _mixed(parts: Sequence[tuple[np.ndarray, Density]], y: np.ndarray) -> np.ndarray:
    total = np.zeros(len(y))
    for weights, density in parts:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            cdf = np.broadcast_to(np.asarray(density.cdf(y[None]), float), (len(weights), len(y)))
        total += np.sum(np.where(weights[:, None] > 0, weights[:, None] * cdf, 0.0), axis=0)
    return total


def mixed_log_density(log_weights: np.ndarray, rows: np.ndarray) -> float:
    """sum_i log sum_m w_m p_m(y_i), from log weights (M,) and log densities (M, n); no number counts as density zero."""
    with np.errstate(divide="ignore"):
        return float(np.sum(np.logaddexp.reduce(log_weights[:, None] + np.where(np.isnan(rows), -np.inf, rows), axis=0)))


def have_cdfs(densities: Sequence[Density]) -> bool:
    """Whether these are densities of one number each, with a distribution function."""
    if not all(d.is_scalar for d in densities):
        return False
    try:
        return all(np.isfinite(np.asarray(d.cdf(0.0), float)).all() for d in densities)
    except (FamilyError, NoClosedFormError):
        return False
