"""BOIN (Liu and Yuan, "Bayesian optimal interval designs for phase I clinical trials", JRSS C
2015).

After each cohort at dose j, with p = toxicities / patients there: up if p <= lambda_e, down if p >=
lambda_d, else stay, where

    lambda_e = log((1 - phi_1) / (1 - phi)) / log(phi (1 - phi_1) / (phi_1 (1 - phi))),
        phi_1 = .6 phi,
    lambda_d = log((1 - phi) / (1 - phi_2)) / log(phi_2 (1 - phi) / (phi (1 - phi_2))),
        phi_2 = 1.4 phi.

A dose with P(p_j > phi) > .95 under a uniform prior and at least three patients is eliminated with
all above it; if it is the lowest, the trial stops. The dose named is the one whose isotonic
estimate is nearest to phi.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc

from gedppl.errors import SettingError
from gedppl.study.baselines.dose_design import DoseDesign


class BOIN(DoseDesign):
    """Interval design.

    Parameters
    ----------
    n_doses, target
        K and phi.
    cohort, cohorts
        Patients a cohort, and how many cohorts at most.

    Examples
    --------
    >>> trial = BOIN(5, target=0.3)
    >>> round(trial.escalate, 3), round(trial.de_escalate, 3)
    (0.236, 0.359)
    """

    def __init__(
        self, n_doses: int, *, target: float, cohort: int = 3, cohorts: int = 12, seed: int = 0
    ) -> None:
        super().__init__(n_doses, seed)
        if not 0 < target < 1 / 1.4:
            raise SettingError(f"target must lie in (0, 0.714), got {target}")
        low, high = 0.6 * target, 1.4 * target
        self.target, self.cohort, self.cohorts = target, cohort, cohorts
        self.escalate = math.log((1 - low) / (1 - target)) / math.log(
            target * (1 - low) / (low * (1 - target))
        )
        self.de_escalate = math.log((1 - target) / (1 - high)) / math.log(
            high * (1 - target) / (target * (1 - high))
        )
        self.eliminated = n_doses  # this dose and all above

    def advance(self, dose: int) -> None:
        if self.patients.sum() % self.cohort:
            return
        n, toxic = self.patients[dose], self.toxicities[dose]
        if n >= 3 and 1 - betainc(1 + toxic, 1 + n - toxic, self.target) > 0.95:
            self.eliminated = min(self.eliminated, dose)
        if self.eliminated == 0 or self.patients.sum() >= self.cohort * self.cohorts:
            self.dose = None
            return
        share = toxic / n
        step = 1 if share <= self.escalate else -1 if share >= self.de_escalate else 0
        self.dose = int(np.clip(dose + step, 0, self.eliminated - 1))

    @property
    def recommended(self) -> int | None:
        tried = [d for d in range(self.eliminated) if self.patients[d] > 0]
        if not tried:
            return None
        n, toxic = self.patients[tried], self.toxicities[tried]
        smooth = isotonic((toxic + 0.05) / (n + 0.1), 1 / _variance(toxic, n))
        # a tie below the target goes up, above it down
        smooth = smooth + 1e-10 * np.arange(len(tried))
        return tried[int(np.abs(smooth - self.target).argmin())]


def _variance(toxic: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Of the Beta(toxic + .05, n - toxic + .05) posterior."""
    found: np.ndarray = (toxic + 0.05) * (n - toxic + 0.05) / ((n + 0.1) ** 2 * (n + 1.1))
    return found


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted least-squares fit that never falls, by pooling neighbours.

    >>> isotonic(np.array([0.1, 0.4, 0.2]), np.ones(3)).round(2)
    array([0.1, 0.3, 0.3])
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights):
        blocks.append((float(value), float(weight), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (m1, w1, k1), (m2, w2, k2) = blocks[-2:]
            blocks[-2:] = [((m1 * w1 + m2 * w2) / (w1 + w2), w1 + w2, k1 + k2)]
    return np.concatenate([np.full(k, m) for m, _, k in blocks])
