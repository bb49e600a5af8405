"""What dose-finding designs share: one patient at a time at one dose, a toxicity (0 or 1) told
as z, a dose named at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from gedppl.errors import OutOfSupportError, SettingError
from gedppl.study.baselines.shell import Baseline


class DoseDesign(Baseline):
    """Ordered doses 0, ..., K-1 with counts of patients and toxicities; a subclass says which dose
    is next and which is named.

    The design ignores contexts and utilities. Once it has stopped it gives the dose that it named,
    or the lowest.
    """

    def __init__(self, n_doses: int, seed: int = 0) -> None:
        super().__init__(seed)
        if n_doses < 1:
            raise SettingError(f"a design needs at least one dose, got {n_doses}")
        self.n_doses = n_doses
        self.patients, self.toxicities = np.zeros((2, n_doses), np.int64)
        self.dose: int | None = 0  # of the next patient; None when the trial has stopped

    @abstractmethod
    def advance(self, dose: int) -> None:
        """Set `dose` for the next patient, after one was treated at `dose`."""

    @property
    @abstractmethod
    def recommended(self) -> int | None:
        """The dose named as the maximum tolerated one; None if even the lowest is too toxic."""

    def policy(self, x: Any) -> np.ndarray:
        dose = self.recommended if self.dose is None else self.dose
        return np.eye(self.n_doses)[dose or 0]

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:
        if z not in (0.0, 1.0):
            raise OutOfSupportError(f"a toxicity is 0 or 1, told as z; got {z!r}")
        self.patients[action] += 1
        self.toxicities[action] += int(z)
        if self.dose is not None:
            self.advance(action)
