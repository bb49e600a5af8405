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
    or the lowest; where the problem's first action gives none (`below` = 1), that one.
    """

    below = 0  # actions under the lowest dose
    shares_outcome = False  # whether the toxicity is the outcome that the utility rests on, too

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
        place = 0 if dose is None else dose + self.below
        found: np.ndarray = np.eye(self.n_doses + self.below)[place]
        return found

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:
        toxic = y if self.shares_outcome else z
        if toxic not in (0.0, 1.0):
            raise OutOfSupportError(
                f"a toxicity is 0 or 1, told as {'y' if self.shares_outcome else 'z'}; got "
                f"{toxic!r}"
            )
        dose = action - self.below
        if dose < 0:
            return  # nobody was treated
        self.patients[dose] += 1
        self.toxicities[dose] += int(toxic)
        if self.dose is not None:
            self.advance(dose)
