"""Draws moved by Metropolis steps that leave the posterior as it is: weighted draws, resampled,
become different ones again.

    theta'_s ~ N(theta_s, c^2 Sigma),
        c = 2.38 / sqrt(D),  taken with probability min(1, p(theta'_s | rows) / p(theta_s | rows))

Sigma is the covariance of the draws themselves, and c follows the share of steps taken, which is
best near .23. Steps go on until a draw has forgotten where it began. What is left of that, the
correlation r between the places before and after, is paid for in the effective size: of S draws
that descend from m,

    ess = S / (1 + (S / m - 1) r^2).

`tempered` brings draws of the prior to the posterior through p(theta) p(rows | theta)^t: t grows by
as much as leaves half of the draws' effective size, then they are resampled and moved.

Nothing is fitted and nothing is assumed of the posterior's shape. That Sigma and c come from the
draws makes it approximate, as all draws are. References: Chopin, "A sequential particle filter
method for static models" (2002); Del Moral, Doucet and Jasra, "Sequential Monte Carlo samplers"
(2006).

Axis letters: S draws, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gedppl.learning.fits import positive_definite
from gedppl.numerics import pareto

FEWEST, MOST = 5, 120  # steps
MOST_BETWEEN = 60  # steps at each power of the likelihood before the last
FORGOTTEN = 0.3  # the largest correlation with where a draw began, at which steps may end
LINGERING = 0.5  # the largest at which draws that have ended are believed
STEP = 2.38  # times 1 / sqrt(D): the best scale of a random walk in many dimensions
BEST_SHARE, GAIN = 0.234, 0.5  # of steps taken, and how fast the scale follows it
SLOWEST = 0.02  # share of steps taken, under which draws are stuck
HALF = 0.5  # of the effective size, that a step in the power of the likelihood leaves
HALVINGS = 40  # in search of that step


@dataclass(frozen=True)
class Moved:
    """Where the draws are now."""

    theta: np.ndarray  # (S, D)
    steps: int
    accepted: float  # share of the steps that were taken
    kept: float  # the largest correlation, over parameters, with where the draws began

    @property
    def settled(self) -> bool:
        """Whether the draws went far enough to be believed."""
        return self.accepted >= SLOWEST and self.kept <= LINGERING

    def worth(self, ancestors: float) -> float:
        """Independent draws that these are worth, if they descend from so many."""
        S = len(self.theta)
        return S / (1 + (S / min(max(ancestors, 1.0), S) - 1) * self.kept**2)


def moved(
    start: np.ndarray,
    height: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    most: int = MOST,
) -> Moved:
    """Draws (S, D), moved under the log density `height`, (S, D) -> (S,) up to a constant; -inf or
    NaN where none may go.

    >>> rng = np.random.default_rng(0)
    >>> found = moved(
    ...     rng.choice([-1.0, 1.0], (4000, 1)), lambda theta: -0.5 * theta[:, 0] ** 2, rng
    ... )
    >>> bool(abs(found.theta.std() - 1) < 0.05), found.kept <= FORGOTTEN, found.settled
    (True, True, True)
    """
    D = start.shape[1]
    root = STEP / np.sqrt(D) * np.linalg.cholesky(positive_definite(np.cov(start.T).reshape(D, D)))
    theta, now = start, height(start)
    scale, taken, steps, kept = 1.0, 0.0, 0, 1.0
    while steps < most and not (steps >= FEWEST and kept <= FORGOTTEN):
        there = theta + scale * rng.standard_normal(theta.shape) @ root.T
        level = height(there)
        better = np.log(rng.random(len(theta))) < np.where(np.isnan(level), -np.inf, level) - now
        theta, now = np.where(better[:, None], there, theta), np.where(better, level, now)
        share = float(better.mean())
        scale *= np.exp(GAIN * (share - BEST_SHARE))
        taken, steps = taken + share, steps + 1
        kept = _correlation(start, theta)
    return Moved(theta, steps, taken / steps, kept)


def tempered(
    start: np.ndarray,
    prior: Callable[[np.ndarray], np.ndarray],
    likelihood: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> Moved:
    """Draws (S, D) of a prior, brought to its posterior; `prior` and `likelihood` are logs, (S, D)
    -> (S,), up to a constant.

    Draws of which none has a positive likelihood stay where they are, and are not settled.

    >>> rng = np.random.default_rng(0)
    >>> found = tempered(
    ...     rng.normal(size=(4000, 1)),
    ...     lambda t: -0.5 * t[:, 0] ** 2,
    ...     lambda t: -4.5 * (t[:, 0] - 2) ** 2,
    ...     rng,
    ... )
    >>> bool(abs(found.theta.mean() - 1.8) < 0.03), bool(abs(found.theta.std() - 0.1**0.5) < 0.03)
    (True, True)
    """
    theta, power, steps = start, 0.0, 0
    while True:
        logs = likelihood(theta)
        logs = np.where(np.isnan(logs), -np.inf, logs)
        if not np.isfinite(logs).any():
            return Moved(theta, steps, 0.0, 1.0)
        gained = _next_power(logs, 1.0 - power)
        last = gained >= 1.0 - power
        power = 1.0 if last else power + gained
        weights = np.exp(gained * (logs - logs.max()))
        chosen = systematic(weights / weights.sum(), len(theta), rng.random())

        def height(theta: np.ndarray, power: float = power) -> np.ndarray:
            return prior(theta) + power * likelihood(theta)

        found = moved(theta[chosen], height, rng, MOST if last else MOST_BETWEEN)
        theta, steps = found.theta, steps + found.steps
        if last or found.accepted < SLOWEST:
            return Moved(theta, steps, found.accepted, found.kept if last else 1.0)


def systematic(weights: np.ndarray, n: int, uniform: float) -> np.ndarray:
    """n places (n,), each taken in proportion to its weight (S,), give or take one.

    >>> systematic(np.array([0.5, 0.25, 0.25]), 4, 0.5).tolist()
    [0, 0, 1, 2]
    """
    edges = np.cumsum(weights)
    return np.minimum(
        np.searchsorted(edges / edges[-1], (np.arange(n) + uniform) / n), len(weights) - 1
    )


def _next_power(logs: np.ndarray, room: float) -> float:
    """The largest step in the power, up to `room`, that leaves half of the draws that have a
    likelihood.
    """
    enough = HALF * np.isfinite(logs).sum()
    if pareto.effective_size(room * logs) >= enough:
        return room
    low, high = 0.0, room
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if pareto.effective_size(middle * logs) >= enough else (low, middle)
        )
    return high  # always forward, if by little


def _correlation(before: np.ndarray, after: np.ndarray) -> float:
    """The largest over parameters of |corr(before, after)|."""
    b, a = before - before.mean(axis=0), after - after.mean(axis=0)
    size = np.sqrt((b**2).sum(axis=0) * (a**2).sum(axis=0))
    return float(np.max(np.abs((a * b).sum(axis=0)) / np.where(size > 0, size, 1.0)))
