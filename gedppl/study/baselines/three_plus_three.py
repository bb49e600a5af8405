"""3+3, the rule of most phase I trials (Storer, "Design and analysis of phase I clinical trials",
Biometrics 1989).

Three patients at a dose: no toxicity, go up; one, three more; two or more, the dose is too toxic.
Of six, at most one may have a toxicity. The maximum tolerated dose is the highest with six patients
and at most one toxicity: below a dose that is too toxic, a dose with three patients gets three
more. Checked against table 3 of PMC5383510 (``benchmarks/published.py --setting crm``).
"""

from __future__ import annotations

from gedppl.study.baselines.dose_design import DoseDesign


class ThreePlusThree(DoseDesign):
    """Cohorts of three, no model.

    >>> trial = ThreePlusThree(3)
    >>> for toxic in (0, 0, 0, 0, 1, 1):
    ...     trial.tell(trial.ask([]).id, 0.0, toxic)
    >>> trial.dose, trial.recommended  # dose 1 is too toxic, three more at dose 0
    (0, None)
    """

    def advance(self, dose: int) -> None:
        n, toxic = int(self.patients[dose]), int(self.toxicities[dose])
        if n % 3:
            return
        if toxic >= 2:
            self._too_toxic(dose)
        elif n == 3 and toxic == 1:
            return
        elif dose + 1 < self.n_doses and self.patients[dose + 1] == 0:
            self.dose = dose + 1
        elif n >= 6:
            self.dose = None

    def _too_toxic(self, dose: int) -> None:
        self.dose = None if dose == 0 or self.patients[dose - 1] >= 6 else dose - 1

    @property
    def recommended(self) -> int | None:
        fine = [d for d in range(self.n_doses) if self.patients[d] >= 6 and self.toxicities[d] <= 1]
        return max(fine, default=None)
