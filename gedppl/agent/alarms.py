"""What may raise an alarm about a limit, and what follows from one."""

from __future__ import annotations

from gedppl.certificate import NOT_WATCHED
from gedppl.ged_ucb.costs import DECLARATIONS
from gedppl.guard import Guard
from gedppl.problem import Constraint, Problem


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


def what_watches(c: Constraint, guard: Guard) -> str:
    """For the certificate: what the outcomes of a constraint are held against, and what that
    takes for granted.
    """
    kinds = {
        "limit": "realised costs against the limit",
        "certified": "outcomes against each action's certified value",
    }
    found = [text for kind, text in kinds.items() if f"{kind}:{c.name}" in guard.monitors]
    if not found:
        return NOT_WATCHED
    predictor = c.model.predictor
    if predictor is not None:
        normal = predictor.family == "Normal"
        return "; ".join(found) + (", assuming Normal noise of the known scale" if normal else "")
    signs = c.functional.name == "mean" and f"limit:{c.name}" not in guard.monitors
    return "; ".join(found) + (", assuming noise that is symmetric about its mean" if signs else "")
