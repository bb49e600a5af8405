"""EWOC, escalation with overdose control (Babb, Rogatko, Zacks, "Cancer phase I clinical trials:
efficient dose escalation with overdose control", Statistics in Medicine 1998), on the model
of `CRM`.

    the highest dose with posterior P(p_j > target) <= feasibility (.25), going up by one dose at
    most;

if not even the lowest dose has it, the trial stops and names none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.study.baselines.crm import CRM, GRID, PREDICTORS


class EWOC(CRM):
    """Overdose control. Parameters: `CRM`, and `feasibility`, the posterior probability of an
    overdose that is accepted.
    """

    def __init__(self, skeleton: Any, *, feasibility: float = 0.25, **settings: Any) -> None:
        super().__init__(skeleton, **settings)
        if not 0 < feasibility < 1:
            raise SettingError(f"feasibility must lie in (0, 1), got {feasibility}")
        self._feasibility = float(feasibility)

    @property
    def overdose(self) -> np.ndarray:
        """Posterior P(p_j > target), (K,)."""
        # p_j exceeds the target where b lies below
        edges = np.log(PREDICTORS[self.model](self.target) / self.predictors)
        weight = self.weights
        # a grid point's own mass lies half on either side of it
        below = np.cumsum(weight) - weight / 2
        found: np.ndarray = np.interp(edges, GRID, below)
        return found

    def advance(self, dose: int) -> None:
        allowed = self.recommended
        highest = int(np.flatnonzero(self.patients).max())
        done = allowed is None or self.patients.sum() >= self._most
        self.dose = None if done or allowed is None else min(allowed, highest + 1)

    @property
    def recommended(self) -> int | None:
        fine = np.flatnonzero(self.overdose <= self._feasibility)
        return int(fine.max()) if len(fine) else None
