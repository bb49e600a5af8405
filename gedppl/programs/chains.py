"""What the chains of either backend come back with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Chains:
    """C chains of S draws each."""

    theta: np.ndarray  # (C, S, D)
    divergent: int  # transitions that diverged
    ess: float  # the smallest over parameters, of all chains together
    rhat: float  # the largest over parameters


def summarised(theta: np.ndarray, divergent: int, ess: np.ndarray, rhat: np.ndarray) -> Chains:
    """Effective sizes and R-hat (D,) as the worst of them; a chain that never moved is worth one
    draw.

    The size is the number of draws over 1 + 2 (sum of autocorrelations). Short chains that swing
    from side to side can bring that sum under -1/2: they are worth all of their draws, not a
    negative number of them.
    """
    every = float(theta.shape[0] * theta.shape[1])
    worst = np.min(np.where(np.isfinite(ess), np.where(ess > 0, ess, every), 1.0), initial=every)
    return Chains(
        theta,
        divergent,
        float(max(worst, 1.0)),
        float(np.max(np.where(np.isfinite(rhat), rhat, np.inf), initial=1.0)),
    )
