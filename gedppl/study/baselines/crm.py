"""CRM, continual reassessment method (O'Quigley, Pepe, Fisher, "Continual reassessment method",
Biometrics 1990), power model.

    p_j = skeleton_j^exp(b),
        b ~ N(0, 1.34);   the next patient gets the dose whose p_j at the posterior mean (or
        mode) of b is nearest
    to the target, going up by one dose at most; the dose named at the end is the nearest one.

Every number depends on skeleton and prior: print them beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.study.baselines.dose_design import DoseDesign

GRID = np.linspace(-6.0, 6.0, 481)  # of b: more than five prior standard deviations


class CRM(DoseDesign):
    """One-parameter model, one patient at a time.

    Parameters
    ----------
    skeleton
        (K,) increasing guesses of the toxicities.
    target
        The toxicity wanted.
    patients
        How many are treated.
    prior_variance
        Of b.
    at
        ``"mean"`` or ``"mode"`` of b's posterior, at which toxicities are judged.
    first
        The first patient's dose: the lowest.
    initial
        Doses given in turn until the first toxicity, before the model decides: a two-stage design.
    too_toxic
        No dose is named if P(toxicity of the lowest > target) is above this; 1 always names one.

    Examples
    --------
    >>> CRM([0.1, 0.2, 0.3], target=0.2, patients=20).estimates.round(3)  # no data: the skeleton
    array([0.1, 0.2, 0.3])
    """

    def __init__(
        self,
        skeleton: Any,
        *,
        target: float,
        patients: int,
        prior_variance: float = 1.34,
        at: str = "mean",
        first: int = 0,
        initial: Sequence[int] = (),
        too_toxic: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.skeleton = np.asarray(skeleton, float)
        guesses = self.skeleton
        if (
            guesses.ndim != 1
            or not len(guesses)
            or guesses[0] <= 0
            or guesses[-1] >= 1
            or not (np.diff(guesses) > 0).all()
        ):
            raise SettingError(
                f"skeleton must be increasing probabilities inside (0, 1), got {skeleton}"
            )
        if not 0 < target < 1:
            raise SettingError(f"target must lie in (0, 1), got {target}")
        if at not in ("mean", "mode"):
            raise SettingError(f'at must be "mean" or "mode", got {at!r}')
        super().__init__(len(self.skeleton), seed)
        self.at, self.dose = at, initial[0] if initial else first
        self._initial, self._too_toxic = tuple(initial), too_toxic
        self.target, self._most, self._variance = target, patients, prior_variance
        self._log_p = np.exp(GRID)[:, None] * np.log(self.skeleton)  # (G, K)
        self._log_q = np.log(-np.expm1(self._log_p))

    @property
    def weights(self) -> np.ndarray:
        """The posterior of b on `GRID`."""
        log = (
            self._log_p @ self.toxicities
            + self._log_q @ (self.patients - self.toxicities)
            - GRID**2 / (2 * self._variance)
        )
        weight = np.exp(log - log.max())
        return weight / weight.sum()

    @property
    def estimates(self) -> np.ndarray:
        """Toxicities (K,) at the posterior mean, or mode, of b."""
        weights = self.weights
        b = weights @ GRID if self.at == "mean" else GRID[weights.argmax()]
        return self.skeleton ** math.exp(float(b))

    def best(self) -> int:
        """The dose that the data speak for."""
        return int(np.abs(self.estimates - self.target).argmin())

    def advance(self, dose: int) -> None:
        treated, highest = int(self.patients.sum()), int(np.flatnonzero(self.patients).max())
        if treated >= self._most:
            self.dose = None
        elif treated < len(self._initial) and not self.toxicities.any():
            self.dose = self._initial[treated]
        else:
            self.dose = min(self.best(), highest + 1)

    @property
    def recommended(self) -> int | None:
        over = self.weights @ (np.exp(self._log_p[:, 0]) > self.target)
        return None if over > self._too_toxic else self.best()
