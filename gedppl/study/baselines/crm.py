"""CRM, continual reassessment method (O'Quigley, Pepe, Fisher, "Continual reassessment method",
Biometrics 1990).

    p_j = s_j^a  (power model),  or  logit p_j = 3 + a (logit s_j - 3)  (logistic model),
        a ~ Exponential(1), as first published, or log a = b ~ N(0, 1.34), as customary since;

with skeleton s. The next patient gets the dose whose p_j at the posterior mean (or mode) of a, or
of b, is nearest to the target, going up by one dose at most; the dose named at the end is the
nearest one.

Every number depends on skeleton, model and prior: print them beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from gedppl.errors import SettingError
from gedppl.study.baselines.dose_design import DoseDesign

INTERCEPT = 3.0  # of the logistic model, as customary
# what is multiplied by a, of a toxicity
PREDICTORS: dict[str, Callable[[Any], Any]] = {
    "power": np.log,
    "logistic": lambda p: logit(p) - INTERCEPT,
}
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
    model
        ``"power"`` or ``"logistic"``.
    prior, prior_variance
        ``"normal"``, of b, with this variance, or ``"exponential"``, of a.
    at
        ``"mean"`` or ``"mode"`` of its posterior, at which toxicities are judged.
    first
        The first patient's dose: the lowest.
    initial
        Doses given in turn until the first toxicity, before the model decides: a two-stage design.
    coherent
        Whether the dose never goes up right after a toxicity.
    too_toxic
        No dose is named if P(toxicity of the lowest > target) is above this; 1 always names one.
    stop_after
        The trial stops and names none if its first so many patients all have a toxicity; 0 never.

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
        model: str = "power",
        prior: str = "normal",
        prior_variance: float = 1.34,
        at: str = "mean",
        first: int = 0,
        initial: Sequence[int] = (),
        coherent: bool = False,
        too_toxic: float = 1.0,
        stop_after: int = 0,
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
        for name, value, known in (
            ("model", model, tuple(PREDICTORS)),
            ("prior", prior, ("normal", "exponential")),
            ("at", at, ("mean", "mode")),
        ):
            if value not in known:
                raise SettingError(f"{name} must be one of {known}, got {value!r}")
        super().__init__(len(self.skeleton), seed)
        self.at, self.dose = at, initial[0] if initial else first
        self._initial, self._too_toxic, self._stop_after = tuple(initial), too_toxic, stop_after
        self.target, self._most, self.model, self.prior = target, patients, model, prior
        self.predictors = PREDICTORS[model](self.skeleton)  # (K,), all negative
        toxicity = self.toxicity(np.exp(GRID)[:, None])  # (G, K)
        self._log_p, self._log_q = np.log(toxicity), np.log1p(-toxicity)
        self._coherent, self._toxic = coherent, 0  # toxicities at the last look
        self.stopped = False  # because the first patients all had a toxicity
        # per step of b; the exponential's with the derivative of a = exp(b)
        self._log_prior = (
            -(GRID**2) / (2 * prior_variance) if prior == "normal" else GRID - np.exp(GRID)
        )

    def toxicity(self, a: Any) -> np.ndarray:
        """p_j at a."""
        scaled = a * self.predictors
        p = np.exp(scaled) if self.model == "power" else expit(INTERCEPT + scaled)
        found: np.ndarray = np.clip(p, np.finfo(float).tiny, 1 - np.finfo(float).epsneg)
        return found

    @property
    def weights(self) -> np.ndarray:
        """The posterior of b on `GRID`."""
        log = (
            self._log_p @ self.toxicities
            + self._log_q @ (self.patients - self.toxicities)
            + self._log_prior
        )
        weight = np.exp(log - log.max())
        found: np.ndarray = weight / weight.sum()
        return found

    @property
    def estimates(self) -> np.ndarray:
        """Toxicities (K,) at the posterior mean, or mode, of b or a."""
        weights, normal = self.weights, self.prior == "normal"
        if self.at == "mean":
            a = math.exp(float(weights @ GRID)) if normal else float(weights @ np.exp(GRID))
        else:  # densities of a and b differ by the derivative
            a = math.exp(GRID[(weights if normal else weights / np.exp(GRID)).argmax()])
        return self.toxicity(a)

    def best(self) -> int:
        """The dose that the data speak for."""
        return int(np.abs(self.estimates - self.target).argmin())

    def advance(self, dose: int) -> None:
        treated, highest = int(self.patients.sum()), int(np.flatnonzero(self.patients).max())
        toxic, self._toxic = self.toxicities.sum() > self._toxic, int(self.toxicities.sum())
        self.stopped |= 0 < self._stop_after == treated == self._toxic
        if treated >= self._most or self.stopped:
            self.dose = None
        elif treated < len(self._initial) and not self.toxicities.any():
            self.dose = self._initial[treated]
        else:
            self.dose = min(self.best(), dose if toxic and self._coherent else highest + 1)

    @property
    def recommended(self) -> int | None:
        over = self.weights @ (np.exp(self._log_p[:, 0]) > self.target)
        return None if self.stopped or over > self._too_toxic else self.best()
