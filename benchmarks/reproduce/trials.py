"""Dose-finding tables: CRM and 3+3 (Iasonos et al. 2008; PMC5383510 table 3), BOIN (setting of
Lin and Yin).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gedppl.study.baselines.boin import BOIN
from gedppl.study.baselines.crm import CRM
from gedppl.study.baselines.dose_design import DoseDesign
from gedppl.study.baselines.doses_by_name import skeleton
from gedppl.study.baselines.three_plus_three import ThreePlusThree

from .cells import Cell

# Iasonos 2008, n = 20, target .25: truth, skeleton, published % finding the MTD by CRM and by 3+3
SCENARIOS = (
    ((0.03, 0.05, 0.10, 0.18, 0.22), (0.25, 0.30, 0.40, 0.50, 0.55), 63.0, 39.0),
    ((0.06, 0.09, 0.13, 0.16, 0.25), (0.15, 0.20, 0.25, 0.30, 0.40), 67.0, 33.0),
    ((0.06, 0.10, 0.15, 0.19, 0.28), (0.10, 0.15, 0.20, 0.25, 0.35), 57.0, 26.0),
)
RERUN = (64.6, 65.2, 53.8)  # of the same setting as our "CRM", by others
# PMC5383510, table 3: truth, published P(no dose named) and P(dose 1, 2, ... named) by 3+3 and by a
# two-stage CRM of 24 patients
TABLE_3 = (
    ((0.25, 0.35, 0.50, 0.65, 0.80), (0.44, 0.36, 0.18, 0.02), (0.06, 0.64, 0.26, 0.04)),
    (
        (0.15, 0.25, 0.40, 0.55, 0.70),
        (0.21, 0.34, 0.33, 0.11, 0.01),
        (0.02, 0.27, 0.48, 0.21, 0.02),
    ),
    (
        (0.10, 0.15, 0.25, 0.40, 0.55),
        (0.10, 0.19, 0.30, 0.30, 0.10, 0.02),
        (0.01, 0.04, 0.27, 0.46, 0.21, 0.02),
    ),
)
INITIAL = tuple(np.repeat(np.arange(5), (1, 1, 2, 2, 18)).tolist())  # as published, until a DLT
# In all published rows, whatever the initial doses, the share of trials that name none is the
# square of the lowest dose's toxicity: two toxicities in the first two patients end a trial.
STOP_AFTER = 2
HIGHER = 3  # of the doses 0, ..., 4: "one of the higher dose levels" was thought to be the MTD
INTERVALS = (0.08, 0.10, 0.20, 0.30, 0.45, 0.60)  # Lin and Yin, target .30, 12 cohorts of 3
BOIN_CORRECT, BOIN_ABOVE = 47.2, 14.2  # % correct, % of patients above the MTD, in a re-run
MOST = 200  # patients of a trial that would not stop


def trial(design: DoseDesign, truth: np.ndarray, rng: np.random.Generator) -> DoseDesign:
    """Treat patients until the design stops."""
    nothing = np.zeros(0)
    for _ in range(MOST):
        if design.dose is None:
            break
        dose = design.dose
        design.learn(nothing, dose, 0.0, float(rng.random() < truth[dose]))
    return design


def named(
    make: Callable[[], DoseDesign], truth: tuple[float, ...], runs: int, rng: np.random.Generator
) -> list[DoseDesign]:
    """Many trials of one design."""
    return [trial(make(), np.array(truth), rng) for _ in range(runs)]


def _share(hits: np.ndarray) -> tuple[float, float]:
    return float(hits.mean()), float(hits.std() / np.sqrt(len(hits)))


def crm_cells(rounds: int | None, runs: int | None, seed: int) -> list[Cell]:
    """% of trials that name the MTD; and the shares that name each dose, or none."""
    runs, rng, found = runs or 4000, np.random.default_rng(seed), []
    patients = rounds or 20
    for s, (truth, guesses, by_crm, by_rule) in enumerate(SCENARIOS, 1):
        best = int(np.abs(np.array(truth) - 0.25).argmin())
        note = f"% naming the MTD (dose {best + 1}), scenario {s}, {runs} trials"
        guess = int(np.abs(np.array(guesses) - 0.25).argmin())
        settings = f"{note}, n={patients}, power model, skeleton {guesses}, no skipping"
        of_crm, of_rerun = (by_crm, RERUN[s - 1]) if patients == 20 else (None, None)
        designs: dict[str, tuple[Callable[[], DoseDesign], float | None, str]] = {
            "CRM": (
                partial(
                    CRM, guesses, target=0.25, patients=patients, prior="exponential", first=guess
                ),
                of_crm,
                f"{settings}, a ~ Exponential(1) at its posterior mean, from the skeleton's MTD: "
                "the CRM of 1990",
            ),
            "CRM of the re-run": (
                partial(CRM, guesses, target=0.25, patients=patients),
                of_rerun,
                f"{settings}, log a ~ N(0, 1.34) at its posterior mean, from dose 1; beside a "
                f"re-run of these settings by others (published: {by_crm})",
            ),
            "3+3": (partial(ThreePlusThree, 5), by_rule, note),
        }
        for name, (make, published, text) in designs.items():
            hits = np.array([d.recommended == best for d in named(make, truth, runs, rng)])
            mean, error = _share(hits)
            found.append(
                Cell("crm", f"{name} S{s}", 0.25, 100 * mean, published, 100 * error, text)
            )
    return found + _table_3(runs, rng)


def _table_3(runs: int, rng: np.random.Generator) -> list[Cell]:
    guess = tuple(skeleton(5, 0.25, at=HIGHER, model="logistic").round(3).tolist())
    two_stage = partial(
        CRM,
        guess,
        target=0.25,
        patients=24,
        model="logistic",
        initial=INITIAL,
        coherent=True,
        stop_after=STOP_AFTER,
    )
    settings = (
        ", n=24, initial doses (1, 1, 2, 2, 18) until a DLT, never up right after one, stopped by "
        f"{STOP_AFTER} DLTs in the first {STOP_AFTER} patients; logistic model with intercept 3, b "
        f"~ N(0, 1.34), half-width .05 (customary), prior MTD dose {HIGHER + 1} ('one of the "
        f"higher dose levels'): skeleton {guess}"
    )
    found = []
    for truth, by_rule, by_crm in TABLE_3:
        designs: tuple[tuple[str, Callable[[], DoseDesign], tuple[float, ...], str], ...] = (
            ("3+3", partial(ThreePlusThree, 5), by_rule, ""),
            ("two-stage CRM", two_stage, by_crm, settings),
        )
        for name, make, shares, more in designs:
            picks = np.array(
                [
                    -1 if d.recommended is None else d.recommended
                    for d in named(make, truth, runs, rng)
                ]
            )
            for dose, published in enumerate(shares, -1):
                mean, error = _share(picks == dose)
                what = "none" if dose < 0 else f"dose {dose + 1}"
                note = f"truth {truth}, {runs} trials{more}"
                found.append(
                    Cell("crm", f"{name} names {what}", 0.25, mean, published, error, note)
                )
    return found


def boin_cells(rounds: int | None, runs: int | None, seed: int) -> list[Cell]:
    """% of trials that name the MTD, and % of patients treated above it."""
    runs, rng, cohorts = runs or 1000, np.random.default_rng(seed), rounds or 12
    trials = named(lambda: BOIN(6, target=0.3, cohorts=cohorts), INTERVALS, runs, rng)
    correct = np.array([t.recommended == 3 for t in trials])
    above = np.array([t.patients[4:].sum() / t.patients.sum() for t in trials])
    note, same = f"truth {INTERVALS}, {cohorts} cohorts of 3, {runs} trials", cohorts == 12
    found = []
    for name, values, published in (
        ("correct", correct, BOIN_CORRECT),
        ("patients above the MTD", above, BOIN_ABOVE),
    ):
        mean, error = _share(values)
        found.append(
            Cell(
                "boin",
                f"BOIN, % {name}",
                0.3,
                100 * mean,
                published if same else None,
                100 * error,
                note,
            )
        )
    return found
