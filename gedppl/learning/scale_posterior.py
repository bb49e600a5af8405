"""What to bet on where the noise scale is unknown: particles from the prior, then the posterior.

Axis letters: M particles, D flat parameters, p coefficients, G groups with a scale of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_triangular

from gedppl.learning.fits import positive_definite
from gedppl.learning.learner import (
    PARTICLES,
    Particles,
    prior_draws,
)
from gedppl.learning.scale_sets import ScaleFit
from gedppl.learning.storing import storable

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass, LocationScale

PRIOR_DRAWS = 1000  # from which the prior of coefficients and log scales is summarised
MIDDLE_HALF = 1.349  # standard deviations between the quartiles of a Gaussian


@storable
@dataclass(frozen=True)
class ScalePrior:
    """The class's own prior of coefficients and log scales, summarised coordinate by coordinate;
    `bet`: whether to lean on it.
    """

    middle: np.ndarray  # (p + G,)
    spread: np.ndarray  # (p + G,)
    bet: bool


def settings_of(form: LocationScale, theta: np.ndarray) -> np.ndarray:
    """Coefficients and log scales (M, p + G) of flat parameters (M, D)."""
    coefficients, scale = form.from_theta(theta)
    with np.errstate(divide="ignore"):
        return np.hstack([np.asarray(coefficients, float), np.log(np.asarray(scale, float))])


def from_prior(cls: DensityClass, form: LocationScale, seed: int, n: int = PARTICLES) -> Particles:
    """n draws (n, p + G) of equal weight: what is bet on before any row."""
    return Particles(settings_of(form, prior_draws(cls, n, seed)), np.full(n, -np.log(n)))


def summary(cls: DensityClass, form: LocationScale, seed: int) -> ScalePrior:
    """Median and spread of the middle half of the prior's draws, which no heavy tail disturbs."""
    drawn = settings_of(form, prior_draws(cls, PRIOR_DRAWS, seed))
    low, middle, high = np.quantile(drawn, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / MIDDLE_HALF
    usable = np.isfinite(middle) & np.isfinite(spread) & (spread > 0)
    bet = bool(usable.all()) and not bool(np.any(cls.prior_free))
    return ScalePrior(np.where(usable, middle, 0.0), np.where(usable, spread, 1.0), bet)


def scale_posterior(
    fits: tuple[ScaleFit, ...], prior: ScalePrior, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The mode (p + G,) of the posterior, and particles (M, p + G).

    log sigma_g climbs its posterior with the coefficients integrated out; then beta | sigma is
    Gaussian. Where the class has no prior and the rows determine everything, none is used: the
    outcome's unit is then nobody's concern. With A_g, b_g the Gram matrices and moments, P and m
    the prior's precision and middle, and n_g rows,

        beta | sigma ~ N(H^-1 (sum_g b_g / sigma_g^2 + P m), H^-1),   H = sum_g A_g / sigma_g^2 + P
        d / d log sigma_g = E|y - phi'beta|_g^2 / sigma_g^2 - n_g - P_g (log sigma_g - m_g),

    the mean of squares over that Gaussian. Particles are bet on, and prove nothing: a Gaussian in
    log sigma_g may be far from the posterior while the set covers all the same.
    """
    p, G = len(fits[0].width), len(fits)
    grams, moments = (
        np.array([f.gram for f in fits]),
        np.array([f.gram @ f.coefficients for f in fits]),
    )
    determined = (
        all(f.rss > 0 for f in fits)
        and np.linalg.matrix_rank(_unit_diagonal(grams.sum(axis=0))) == p
    )
    trust = prior.bet or not determined
    precision = np.where(trust, prior.spread**-2.0, 0.0)
    known = np.array(
        [
            0.5 * np.log(f.rss / f.n) if f.rss > 0 else middle
            for f, middle in zip(fits, prior.middle[p:])
        ]
    )
    log_scale, count = known, np.array([f.n for f in fits], float)
    for _ in range(25):
        mean, chol = _coefficients(grams, moments, precision[:p], prior.middle[:p], log_scale[None])
        half = solve_triangular(chol[0], np.eye(p), lower=True)
        away = mean[0] - np.array([f.coefficients for f in fits])
        left = np.array([f.rss for f in fits]) + np.einsum("gi,gij,gj->g", away, grams, away)
        left = left + np.einsum("gij,ij->g", grams, half.T @ half)  # beta is not known either
        pull = left * np.exp(-2 * log_scale)
        slope = pull - count - precision[p:] * (log_scale - prior.middle[p:])
        curvature = 2 * pull + precision[p:]
        step = np.divide(slope, curvature, out=np.zeros(G), where=curvature > 0)
        log_scale = log_scale + np.clip(step, -1.0, 1.0)
        if np.max(np.abs(step)) < 1e-10:
            break
    # the same at every refit
    base = np.random.default_rng(seed).standard_normal((PARTICLES // 2, p + G))
    base = np.vstack([np.zeros((1, p + G)), base, -base])
    sd = np.sqrt(np.divide(1.0, curvature, out=np.full(G, 1.0), where=curvature > 0))
    scales = log_scale + sd * base[:, p:]
    means, chols = _coefficients(grams, moments, precision[:p], prior.middle[:p], scales)
    steps = np.linalg.solve(np.swapaxes(chols, 1, 2), base[:, :p, None])[:, :, 0]
    return np.concatenate([mean[0], log_scale]), np.hstack([means + steps, scales])


def _coefficients(
    grams: np.ndarray,
    moments: np.ndarray,
    precision: np.ndarray,
    middle: np.ndarray,
    log_scale: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (M, p) and Cholesky factors (M, p, p) of the precision H of beta given log scales (M,
    G); see `scale_posterior`.
    """
    weight = np.exp(-2 * log_scale)
    information = np.einsum("mg,gij->mij", weight, grams) + np.diag(precision)
    try:
        chol = np.linalg.cholesky(information)
    except np.linalg.LinAlgError:  # some direction is nearly unseen
        chol = np.linalg.cholesky(np.array([positive_definite(one) for one in information]))
    target = weight @ moments + precision * middle
    inner = np.linalg.solve(chol, target[:, :, None])
    return np.linalg.solve(np.swapaxes(chol, 1, 2), inner)[:, :, 0], chol


def _unit_diagonal(matrix: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.diag(matrix))
    size = np.where(size > 0, size, 1.0)
    found: np.ndarray = matrix / np.outer(size, size)
    return found
