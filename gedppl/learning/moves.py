"""Draws moved by Metropolis steps that leave the posterior as it is: weighted draws, resampled, become different ones again.

    theta'_s ~ N(theta_s, c^2 Sigma),   c = 2.38 / sqrt(D),  taken with probability min(1, p(theta'_s | rows) / p(theta_s | rows))

Sigma is the covariance of the draws themselves. Steps go on until a draw has forgotten where it began. What is left of that, the
correlation r between the places before and after, is paid for in the effective size: of S draws that descend from m,

    ess = S / (1 + (S / m - 1) r^2).

Nothing is fitted and nothing is assumed of the posterior's shape. That Sigma comes from the draws makes it approximate, as all
draws are. Reference: Chopin, "A sequential particle filter method for static models" (2002).

Axis letters: S draws, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gedppl.learning.fits import positive_definite

FEWEST, MOST = 5, 60  # steps
FORGOTTEN = 0.3  # the largest correlation with where a draw began, at which steps may end
STEP = 2.38  # times 1 / sqrt(D): the best scale of a random walk in many dimensions


@dataclass(frozen=True)
class Moved:
    """Where the draws are now."""

    theta: np.ndarray  # (S, D)
    steps: int
    accepted: float  # share of the steps that were taken
    kept: float  # the largest correlation, over parameters, with where the draws began

    def worth(self, ancestors: float) -> float:
        """Independent draws that these are worth, if they descend from so many."""
        S = len(self.theta)
        return S / (1 + (S / min(max(ancestors, 1.0), S) - 1) * self.kept**2)


def moved(start: np.ndarray, height: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator) -> Moved:
    """Draws (S, D), moved under the log density `height`, (S, D) -> (S,) up to a constant; -inf or NaN where none may go.

    >>> rng = np.random.default_rng(0)
    >>> found = moved(rng.choice([-1.0, 1.0], (4000, 1)), lambda theta: -0.5 * theta[:, 0] ** 2, rng)
    >>> bool(abs(found.theta.std() - 1) < 0.05), found.kept <= FORGOTTEN
    (True, True)
    """
    D = start.shape[1]
    root = STEP / np.sqrt(D) * np.linalg.cholesky(positive_definite(np.cov(start.T).reshape(D, D)))
    theta, now = start, height(start)
    taken, steps, kept = 0.0, 0, 1.0
    while steps < MOST and not (steps >= FEWEST and kept <= FORGOTTEN):
        there = theta + rng.standard_normal(theta.shape) @ root.T
        level = height(there)
        better = np.log(rng.random(len(theta))) < np.where(np.isnan(level), -np.inf, level) - now
        theta, now = np.where(better[:, None], there, theta), np.where(better, level, now)
        taken, steps = taken + float(better.mean()), steps + 1
        kept = _correlation(start, theta)
    return Moved(theta, steps, taken / steps, kept)


def _correlation(before: np.ndarray, after: np.ndarray) -> float:
    """The largest over parameters of |corr(before, after)|."""
    b, a = before - before.mean(axis=0), after - after.mean(axis=0)
    size = np.sqrt((b**2).sum(axis=0) * (a**2).sum(axis=0))
    return float(np.max(np.abs((a * b).sum(axis=0)) / np.where(size > 0, size, 1.0)))
