"""What a run says of learning, in words that do not flatter: when it left the safe action, and what
it never tried.

Axis letters: T rounds, K actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gedppl.study.simulation.runs import Run

# decisions looked at together, and the share of them that counts as having left
WINDOW, HALF = 50, 0.5
# an action is missed if the oracle plays it this often and the run less than this
WANTED, PLAYED = 0.1, 0.01


def round_of_leaving(run: Run) -> int | None:
    """The first round by which half of the last 50 decisions left the safe action; None if that
    never came.
    """
    if run.problem.safe_action is None or len(run) < WINDOW:
        return None
    left = np.convolve(run.action != run.problem.safe_action, np.ones(WINDOW), mode="valid")
    reached = np.flatnonzero(left >= HALF * WINDOW)
    return int(reached[0]) + WINDOW if len(reached) else None


def when_it_left_the_safe_action(run: Run) -> str:
    """One sentence; empty without a safe action."""
    safe = run.problem.safe_action
    if safe is None:
        return ""
    name, share, left = run.action_names[safe], run.safe_share, round_of_leaving(run)
    said = f"The safe action ({name}) took {share:.0%} of the rounds"
    if left is not None:
        return f"{said}; by round {left} half of the last {WINDOW} decisions had left it."
    if len(run) < WINDOW:
        return f"{said}."
    return f"{said}; at no time had half of the last {WINDOW} decisions left it."


def never_learned(run: Run) -> list[str]:
    """A sentence for each action that was missed: never played, or, where the truth is known,
    far less than it deserves.
    """
    played = np.bincount(run.action, minlength=len(run.action_names)) / max(len(run), 1)
    names, safe = run.action_names, run.problem.safe_action
    if not run.truth_known:
        never = [k for k in range(len(names)) if played[k] == 0 and k != safe]
        said = (
            "so that nothing was learned from it, and whether it would have been better is not "
            "known"
        )
        return [f"{names[k]} was never played, {said}." for k in never]
    oracle = np.nanmean(
        np.array([np.pad(r.oracle, (0, len(names) - len(r.oracle))) for r in run.rounds]), axis=0
    )
    missed = [
        k for k in range(len(names)) if oracle[k] >= WANTED and played[k] < PLAYED and k != safe
    ]
    return [
        f"{names[k]} was not learned: the best policy that keeps every limit plays it in "
        f"{oracle[k]:.0%} of decisions, this run "
        f"in {_times(run, k)} of {len(run)}."
        for k in missed
    ]


def _times(run: Run, k: int) -> int:
    return int(np.sum(run.action == k))
