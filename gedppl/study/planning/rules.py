"""Rules that end a trial early, from what the trial itself can see: the target is reached, or it
is futile to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB
from gedppl.errors import SettingError
from gedppl.problem import UTILITY
from gedppl.selection import select_policy

MOST_CONTEXTS = 25  # at which the best policy that the sets still allow is computed


@dataclass(frozen=True)
class StoppingRules:
    """When to stop. A rule whose number is None is not used.

    Parameters
    ----------
    target
        Success: the agent's own estimate of its policy's utility, averaged over the last `window`
        rounds, is at least this.
    safe_share
        Futility: the safe action took at least this share of the last `window` rounds.
    beyond_reach
        Futility: no policy that the confidence sets still allow reaches the target on average over
        contexts (largest plausible utility, smallest plausible cost). Right with the sets' own
        probability.
    window, first_look, every
        Rounds averaged; the first look; rounds between looks.

    >>> "at least 90% of the last 50 rounds" in StoppingRules(safe_share=0.9).describe()
    True

    Notes
    -----
    No rule touches a limit: those hold at all times at once, so that a trial may stop at any look.
    Not guaranteed: success, which is the agent's own estimate, not corrected for many looks.
    """

    target: float | None = None
    safe_share: float | None = None
    beyond_reach: bool = False
    window: int = 50
    first_look: int = 50
    every: int = 10

    def __post_init__(self) -> None:
        looks = {"window": self.window, "first_look": self.first_look, "every": self.every}
        for name, value in looks.items():
            if value < 1:
                raise SettingError(f"{name} must be at least 1, got {value!r}")
        if self.safe_share is not None and not 0 < self.safe_share <= 1:
            raise SettingError(f"safe_share must lie in (0, 1], got {self.safe_share!r}")
        if self.beyond_reach and self.target is None:
            raise SettingError(
                "beyond_reach asks whether the target can still be reached: give target= too"
            )

    def verdict(self, run: Any, agent: Any, contexts: np.ndarray) -> str:
        """``"target"``, ``"safe share"``, ``"beyond reach"``, or ``""`` to go on. Success is
        looked at first.
        """
        latest = run.rounds[-self.window :]
        if self.target is not None:
            estimates = [float(r.policy @ r.estimate) for r in latest]
            if np.mean(estimates) >= self.target:
                return "target"
        if self.safe_share is not None:
            share = np.mean([r.action == run.problem.safe_action for r in latest])
            if share >= self.safe_share:
                return "safe share"
        if (
            self.beyond_reach
            and self.target is not None
            and best_possible(agent, contexts) < self.target
        ):
            return "beyond reach"
        return ""

    def describe(self) -> str:
        """The rules in sentences, for a protocol."""
        looks = f"after {self.first_look} rounds and every {self.every} rounds from then on"
        parts = []
        if self.target is not None:
            parts.append(
                f"success if the estimated utility of the policies of the last {self.window} "
                "rounds averages at least "
                f"{self.target:g}"
            )
        if self.safe_share is not None:
            parts.append(
                f"futility if the safe action took at least {self.safe_share:.0%} of the "
                f"last {self.window} rounds"
            )
        if self.beyond_reach:
            parts.append(
                "futility if no policy that the confidence sets still allow reaches "
                f"{self.target:g} on average"
            )
        return (
            f"Looks are taken {looks}; the trial stops for " + "; for ".join(parts) + "."
            if parts
            else "No early stopping."
        )


def best_possible(agent: GEDUCB, contexts: np.ndarray) -> float:
    """The mean over contexts of the largest utility that the agent's sets still allow a feasible
    policy to have.
    """
    problem = agent.problem
    some = np.unique(
        np.linspace(0, len(contexts) - 1, min(len(contexts), MOST_CONTEXTS)).astype(int)
    )
    x = contexts[some]
    plausible = agent.confidence_set(UTILITY)
    upper = plausible.bounds(problem.utility.functional, x, problem.n_actions).upper
    cheapest, _ = agent.cost_bounds(x)
    best = [
        u @ select_policy(u, c, problem.limits, every_draw=problem.every_draw)
        for u, c in zip(upper, cheapest)
    ]
    return float(np.mean(best))
