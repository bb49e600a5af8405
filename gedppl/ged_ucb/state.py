"""What the algorithm keeps between rounds, and what it says about a selection.

Axis letters: C contexts asked together, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gedppl.learning.learner import Bounds, Learner
from gedppl.problem import Problem
from gedppl.settings import Settings


@dataclass(frozen=True)
class Block:
    """A stretch of rounds that share a snapshot, the limits and the actions on offer."""

    start: int  # the first round it is in force for
    snapshot: int
    exploration: float  # Q of the bonus weight: squared utility error the data still allow, summed over rounds
    limits: np.ndarray  # (J,)
    available: np.ndarray  # (K,) bool


@dataclass(frozen=True)
class State:
    """What the next round needs."""

    problem: Problem
    settings: Settings
    learners: Mapping[str, Learner]
    t: int  # rounds decided
    told: int  # rounds whose outcome is known
    refit_at: int  # refit once `told` reaches this
    blocks: tuple[Block, ...]
    lipschitz: float | None  # of the utility in Hellinger distance, for a finite class and where there is such a constant
    played: np.ndarray  # (K,) rounds told, by action: ties go to the least played


@dataclass(frozen=True)
class Info:
    """What a reader wants to know about a selection."""

    utility: np.ndarray  # (C, K) estimated
    bonus: np.ndarray  # (C, K) rho (u+ - estimate), or beta_t E[1/(N+1)]
    width: np.ndarray  # (C, K) alpha_r times the width of the cost bounds
    cost_lower: np.ndarray  # (C, J, K)
    cost_upper: np.ndarray  # (C, J, K)
    limits: np.ndarray  # (J,)
    bounds: tuple[Bounds | None, ...]  # J; None where the cost is known
    worst: np.ndarray  # (C, J) of the policy, as each limit counts it
    engine: str
    notes: tuple[str, ...]
    unlimited: bool = False  # the paper's warm-up: played whatever the limits are
