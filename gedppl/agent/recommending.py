"""After a study: the one action to take from now on at a context, by a rule that the user names.

A decision explores and may mix actions; a recommendation does neither. Axis letters: K actions, J constraints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gedppl import ged_ucb
from gedppl.agent.deciding import Choice
from gedppl.certificate import Certificate, certify
from gedppl.errors import SettingError
from gedppl.learning.learner import Bounds
from gedppl.problem import Problem
from gedppl.showing import Spoken

RULES = ("certified", "estimate", "nearest", "interval")


@dataclass(frozen=True, repr=False)
class Recommendation(Spoken):
    """Take `action` from now on; `certificate` says what is known of it alone."""

    action: int
    rule: str
    reason: str  # one sentence
    certificate: Certificate
    utility: np.ndarray  # (K,) estimates; NaN where none could be computed
    cost: np.ndarray  # (J, K) estimates
    cost_upper: np.ndarray  # (J, K) worst cases
    over: np.ndarray  # (J, K) posterior probability of lying above the limit, where bounds are read off draws; NaN elsewhere
    action_name: str = ""  # the action's name; its number as text where actions have none

    def __str__(self) -> str:
        return f"action {self.action_name}: {self.reason}\n{self.certificate}"


def recommend(
    choice: Choice,
    x: np.ndarray,
    rule: str,
    constraint: str | None,
    target: float | None,
    within: tuple[float, float] | None,
    tried: bool,
) -> Recommendation:
    """The recommendation at context x (dx,), from what a decision there would rest on."""
    if rule not in RULES:
        raise SettingError(f"rule must be one of {RULES}, got {rule!r}")
    state = choice.memory.state
    assert state is not None
    problem, info = state.problem, choice.info
    if info is None:  # after an alarm, or where nothing could be computed
        action, reason = int(np.argmax(choice.policy[0])), f"the safe action, because {choice.fallback}"
        nothing = np.full((len(problem.constraints), problem.n_actions), np.nan)
        return _certified(choice, x, action, rule, reason, np.full(problem.n_actions, np.nan), nothing, nothing, nothing)
    cost = np.stack(
        [info.cost_upper[0, j] if b is None else _estimate(problem, x, j, b.estimate[0]) for j, b in enumerate(info.bounds)]
        or [np.empty((0, problem.n_actions))]
    ).reshape(-1, problem.n_actions)
    offered = state.blocks[-1].available & ((state.played > 0) if tried else True)
    action, reason = _chosen(problem, x, info, cost, offered, rule, constraint, target, within)
    over = np.array(
        [_share(problem, x, j, b, (c.at_most, np.inf)) for j, (c, b) in enumerate(zip(problem.constraints, info.bounds))]
    )
    over = over.reshape(-1, problem.n_actions)
    return _certified(choice, x, action, rule, reason, info.utility[0], cost, info.cost_upper[0], over)


def _estimate(problem: Problem, x: np.ndarray, j: int, estimate: np.ndarray) -> np.ndarray:
    """The safe action's value is known, the others' are estimated."""
    cost = estimate.copy()
    cost[problem.safe_action] = problem.safe_values(x[None])[0, j]
    return cost


def _chosen(
    problem: Problem,
    x: np.ndarray,
    info: ged_ucb.Info,
    cost: np.ndarray,
    offered: np.ndarray,
    rule: str,
    constraint: str | None,
    target: float | None,
    within: tuple[float, float] | None,
) -> tuple[int, str]:
    if (rule == "interval") != (within is not None):
        raise SettingError('within=(low, high) belongs to rule="interval", which needs it')
    if within is not None:
        return _most_probable(problem, x, info, offered, _which(problem, constraint), within)
    if rule == "nearest":
        j = _which(problem, constraint)
        aim = float(problem.limits[j]) if target is None else float(target)
        if not offered.any():
            return _safe(problem, "no action has been tried")
        action = int(np.argmin(np.where(offered, np.abs(cost[j] - aim), np.inf)))
        return action, f"its estimated {problem.constraint_names[j]} of {cost[j, action]:.4g} is nearest to {aim:g}"
    if constraint is not None or target is not None:
        raise SettingError('constraint= and target= belong to rule="nearest"; leave them out or name that rule')
    value = info.cost_upper[0] if rule == "certified" else cost
    keeps = offered & (value <= problem.limits[:, None]).all(axis=0)
    said = "worst case" if rule == "certified" else "estimated cost"
    if not keeps.any():
        return _safe(problem, f"no action on offer has its {said} under every limit")
    action = int(np.argmax(np.where(keeps, info.utility[0], -np.inf)))
    return action, f"of the actions whose {said} keeps every limit, it has the highest estimated utility"


def _most_probable(
    problem: Problem, x: np.ndarray, info: ged_ucb.Info, offered: np.ndarray, j: int, within: tuple[float, float]
) -> tuple[int, str]:
    low, high = (float(end) for end in within)
    if not low < high:
        raise SettingError(f"within must be (low, high) with low < high, got {within!r}")
    share = _share(problem, x, j, info.bounds[j], (low, high))
    if np.isnan(share).any():
        raise SettingError(
            "rule='interval' reads probabilities off posterior draws: the agent needs confidence=credible_set(...)"
        )
    if not offered.any():
        return _safe(problem, "no action has been tried")
    action = int(np.argmax(np.where(offered, share, -np.inf)))
    name = problem.constraint_names[j]
    return (
        action,
        f"its {name} lies above {low:g} and at most at {high:g} with posterior probability {share[action]:.2g}, the largest",
    )


def _share(problem: Problem, x: np.ndarray, j: int, bounds: Bounds | None, between: tuple[float, float]) -> np.ndarray:
    """Posterior P(low < value <= high) of every action (K,); NaN where bounds are not read off draws."""
    if bounds is None or bounds.drawn is None:
        return np.full(problem.n_actions, np.nan)
    values = bounds.drawn.values[:, 0].copy()
    values[:, problem.safe_action] = problem.safe_values(x[None])[0, j]
    return np.asarray(bounds.drawn.weights @ ((values > between[0]) & (values <= between[1])))


def _which(problem: Problem, constraint: str | None) -> int:
    names = problem.constraint_names
    if constraint is None and len(names) == 1:
        return 0
    if constraint not in names:
        raise SettingError(f"this rule is about one constraint and needs constraint=, one of {names}, got {constraint!r}")
    return names.index(constraint)


def _safe(problem: Problem, why: str) -> tuple[int, str]:
    if problem.safe_action is None:
        raise SettingError(f"{why}, and the problem names no safe action to fall back on")
    return int(problem.safe_action), f"the safe action: {why}"


def _certified(
    choice: Choice, x: np.ndarray, action: int, rule: str, reason: str, utility: np.ndarray, cost: np.ndarray, upper: np.ndarray,
    over: np.ndarray,
) -> Recommendation:  # fmt: skip
    state = choice.memory.state
    assert state is not None
    alone = np.eye(state.problem.n_actions)[action]
    # of one action alone the worst case is its own, not that of the policy which a decision here would play
    info = None if choice.info is None else replace(choice.info, worst=upper[None, :, action])
    watched = {} if choice.memory.watch is None else choice.memory.watch.watched
    certificate, _ = certify(state, x, alone, action, info, 0, choice.fallback, (), choice.doubts, watched)
    name = state.problem.names.label(action)
    return Recommendation(action, rule, reason, certificate, utility, cost, upper, over, name)
