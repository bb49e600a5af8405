"""What follows from an alarm."""

from __future__ import annotations

from gedppl.ged_ucb.costs import DECLARATIONS
from gedppl.problem import Problem


def stops(alarm: str, problem: Problem) -> bool:
    """Whether an alarm stops a run: its false-alarm rate is proved, whatever the prior, and a
    limit rests on what it doubts.
    """
    kind, _, name = alarm.partition(":")
    learned_by_limits = {c.stream for _, c in problem.learned}
    return kind in ("limit", "certified") or (
        kind in ("refuted", "empty") and name in learned_by_limits
    )


def refuses(alarm: str) -> bool:
    """Whether after an alarm nothing is known to be safe: what was declared is refuted, and the
    safe action rests on that.
    """
    return alarm.partition(":")[0] in DECLARATIONS


def what_then(alarm: str, guard: str | None, problem: Problem) -> str:
    """What follows from an alarm, for its warning."""
    if guard == "fallback" and refuses(alarm):
        return f"ask() raises DeclarationError until acknowledge({alarm!r})."
    if guard == "fallback" and stops(alarm, problem):
        return f"The safe action alone is played until acknowledge({alarm!r})."
    return "The run goes on."
