"""Dose-finding designs by name, for a declared problem: actions are doses in rising order, the
limit is the target toxicity. A safe action of which nothing is learned (`learn_safe=False`) is no
dose, and is given when a design names none.

A design treats one patient a round, for as many rounds as there are, whatever the contexts. CRM and
EWOC need a skeleton, which a problem does not have: `skeleton` spaces the doses so that a middle
one is at the target (Lee and Cheung, "Model calibration in the continual reassessment method",
Clinical Trials 2009).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from gedppl.errors import SettingError
from gedppl.problem import UTILITY, Problem
from gedppl.study.baselines.boin import BOIN
from gedppl.study.baselines.crm import CRM, INTERCEPT, PREDICTORS
from gedppl.study.baselines.dose_design import DoseDesign
from gedppl.study.baselines.ewoc import EWOC
from gedppl.study.baselines.three_plus_three import ThreePlusThree

HALF_WIDTH = 0.05  # of the interval of toxicities that a design need not tell from the target


def skeleton(
    n_doses: int,
    target: float,
    at: int | None = None,
    half_width: float | None = None,
    model: str = "power",
) -> np.ndarray:
    """(K,) guesses of toxicities with dose `at` (a middle one) at the target.

    Under the model of `CRM` neighbours are spaced so that, where the upper one has target + w, the
    lower one has target - w.

    >>> skeleton(5, 0.25).round(3)
    array([0.084, 0.157, 0.25 , 0.355, 0.46 ])
    """
    w = min(HALF_WIDTH, target / 3, (1 - target) / 3) if half_width is None else half_width
    middle = (n_doses - 1) // 2 if at is None else at
    predictor = PREDICTORS[model]
    # predictors of neighbours differ by this factor, which is above 1
    step = predictor(target - w) / predictor(target + w)
    spaced = predictor(target) * step ** (middle - np.arange(n_doses, dtype=float))
    found: np.ndarray = np.exp(spaced) if model == "power" else expit(INTERCEPT + spaced)
    return found


def make_design(name: str, problem: Problem, x: np.ndarray, rounds: int, seed: int) -> DoseDesign:
    """The design of this name; x (dx,) is any context, to look at the model at."""
    target = _target(name, problem, x)
    below = int(not problem.learn_safe)  # of a safe action that is no dose nothing is learned
    design = _made(name, problem.n_actions - below, target, rounds, seed)
    design.below = below
    design.shares_outcome = list(problem.streams) == [UTILITY]
    return design


def _made(name: str, doses: int, target: float, rounds: int, seed: int) -> DoseDesign:
    if name == "3+3":
        return ThreePlusThree(doses, seed)
    if name == "boin":
        return BOIN(doses, target=target, cohorts=math.ceil(rounds / 3), seed=seed)
    design = EWOC if name == "ewoc" else CRM
    return design(skeleton(doses, target), target=target, patients=rounds, seed=seed)


def _target(name: str, problem: Problem, x: np.ndarray) -> float:
    """The limit, if it is one on the chance of a yes-or-no outcome and the lowest dose, or none
    at all, is the safe action.
    """
    limit = problem.learned[0][1] if len(problem.constraints) == 1 and problem.learned else None
    if limit is None or limit.functional.name != "mean":
        raise SettingError(f"{name} needs one limit, on the mean of a toxicity")
    if problem.safe_action != 0:
        raise SettingError(
            f"{name} begins at the lowest dose, action 0; the safe action is {problem.safe_action}"
        )
    limit.model.trace(x[None], np.zeros(1, np.int64))
    doses = np.arange(problem.n_actions)
    families = sorted(
        {d.family for d in limit.model.densities(np.repeat(x[None], len(doses), axis=0), doses)}
    )
    if families != ["Bernoulli"]:
        raise SettingError(
            f"{name} needs a toxicity that is yes or no; the model of "
            f"{limit.name!r} is {', '.join(families)}"
        )
    return float(limit.at_most)
