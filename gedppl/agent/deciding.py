"""From a memory to a decision: the policy, or the safe action and why, and the draw. Changes
nothing.

Axis letters: n contexts, K actions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gedppl import ged_ucb
from gedppl.agent.memory import Memory, doubted
from gedppl.certificate import Certificate, Explanation, Grounds, certify
from gedppl.errors import InfeasibleError, InputError, NotFiniteError, SettingError
from gedppl.ged_ucb import costs
from gedppl.learning.learner import Bounds
from gedppl.numerics.streams import BLOCK, block_of_uniforms, first_uniforms
from gedppl.problem import Problem
from gedppl.problem.names import Names
from gedppl.showing import Spoken, amounts, as_html

FEW = 4  # decisions whose streams are looked up in those kept
# of a class or a declaration: looking into it does not make it right
REFUTATIONS = (*costs.KINDS, "refuted", "certified")


class FallbackWarning(UserWarning):
    """No policy could be computed and the safe action was taken instead."""


class SafeActionWarning(UserWarning):
    """The safe action takes nearly every round: the limit, the radius or the model leaves no
    room.
    """


class AlarmWarning(UserWarning):
    """A monitor found that an assumption does not hold."""


@dataclass(frozen=True, repr=False)
class Decision:
    """One decision: play `action`, which was drawn from `policy`.

    Tell its outcome to the agent with the decision itself or its `id`. `propensity` is what
    off-policy evaluation divides by, and `certificate` says what is claimed of the limits.

    Examples
    --------
    >>> decision = ged.GEDUCB(problem, seed=1).ask([0.5])
    >>> decision.action, decision.propensity
    (1, 0.75)
    """

    id: int
    action: int
    policy: np.ndarray  # (K,)
    certificate: Certificate
    x: np.ndarray  # (dx,)
    action_name: str = ""  # the action's name; its number as text where actions have none

    @property
    def propensity(self) -> float:
        """The probability with which this action was drawn, for off-policy evaluation."""
        return float(self.policy[self.action])

    def __repr__(self) -> str:
        policy = np.array2string(
            self.policy,
            precision=3,
            suppress_small=True,
            separator=", ",
            threshold=20,
            max_line_width=200,
        )
        named = "" if self.action_name in ("", str(self.action)) else f" {self.action_name!r}"
        return f"Decision(id={self.id}, action={self.action}{named}, policy={policy})"

    def _repr_html_(self) -> str:
        _, facts = self.certificate._shown()
        played = f"{self.action_name or self.action}, with probability {self.propensity:.3g}"
        return as_html(
            f"Decision {self.id}", {"action": played, "policy": str(self.policy.round(3))} | facts
        )

    def __str__(self) -> str:
        return f"{self!r}\n{self.certificate}"


def payload(
    decision: Decision,
    memory: Memory,
    i: int,
    mask: np.ndarray | None,
    learned: bool,
    versions: str | None,
) -> dict[str, Any]:
    """The record of decision number i of a cohort; `versions` None: without a journal the id,
    context and action are all that is needed again.
    """
    needed = {"id": decision.id, "x": decision.x, "action": decision.action, "learned": learned}
    if versions is None:
        return needed
    names = memory.problem.names.actions
    return {
        "id": decision.id,
        "x": decision.x,
        "allowed": None if mask is None else mask[i],
        "policy": decision.policy,
        "action": decision.action,
        **({} if names is None else {"action_name": names[decision.action]}),
        "propensity": decision.propensity,
        "certificate": decision.certificate.to_dict(),
        "seed": [memory.settings.seed, decision.id],
        "versions": versions,
        "learned": learned,
    }


@dataclass(frozen=True)
class Choice:
    """Policies at n contexts, and what they rest on."""

    policy: np.ndarray  # (n, K)
    info: ged_ucb.Info | None  # None: the safe action alone
    fallback: str | None  # why the safe action alone
    memory: Memory  # with the alarms that the sets behind these policies raised
    doubts: Mapping[str, str]  # constraint -> why nothing is guaranteed of it
    refused: str | None = None  # why no policy may be played at all


def choose(
    memory: Memory, contexts: np.ndarray, mask: np.ndarray | None, broken: str | None
) -> Choice:
    """Policies at contexts (n, dx), or the safe action alone and why, or a refusal where a
    declaration was refuted.

    Nothing is played against an alarm: if the sets that a policy rests on refute a class, the safe
    action is taken instead, and if they refute a declaration, none is known to be safe.
    """
    refused = why_refused(memory)
    if refused:
        return Choice(np.empty((0, memory.problem.n_actions)), None, None, memory, {}, refused)
    policy, info, fallback = _policies(memory, contexts, mask, broken)
    found = (
        ()
        if info is None
        else costs.refuted(memory.problem, contexts, info.bounds, watching=memory.watch is not None)
    )
    noticed = doubted(memory, found)
    if len(noticed.alarms) > len(memory.alarms) and why_stopped(noticed):
        policy, info, fallback = _policies(noticed, contexts, mask, broken)
    said = {r.name: r.sentence for r in found} | {
        alarm.name: alarm.sentence for alarm in memory.alarms
    }
    counting = {
        name: sentence
        for name, sentence in said.items()
        if _doubts(name, noticed, alone=info is None)
    }
    return Choice(
        policy,
        info,
        fallback,
        noticed,
        costs.doubts(memory.problem, counting),
        why_refused(noticed),
    )


def _doubts(alarm: str, memory: Memory, *, alone: bool) -> bool:
    """Whether an alarm takes the guarantee from the limits it is about. `alone`: nothing but the
    safe action is played.

    What was refuted stays refuted, acknowledged or not; any other alarm counts until it is
    acknowledged. The safe action rests on its declared value alone, which only a refuted
    declaration puts in doubt.
    """
    kind = alarm.partition(":")[0]
    if alone:
        return kind in costs.DECLARATIONS
    return kind in REFUTATIONS or alarm in memory.active


def why_refused(memory: Memory) -> str | None:
    """The sentences of the declarations refuted and not acknowledged, and how to go on."""
    if memory.guard != "fallback":
        return None
    said = {alarm.name: alarm.sentence for alarm in memory.alarms}
    names = [name for name in memory.active if refuses(name)]
    if not names:
        return None
    calls = " and ".join(f"acknowledge({name!r})" for name in names)
    return " ".join(
        [
            *(said[name] for name in names),
            f"No action is known to be safe; {calls} goes on without a guarantee.",
        ]
    )


def _policies(
    memory: Memory, contexts: np.ndarray, mask: np.ndarray | None, broken: str | None
) -> tuple[np.ndarray, ged_ucb.Info | None, str | None]:
    """Policies (n, K) at contexts (n, dx) and what they rest on; or the safe action alone and why.

    The safe action is taken after an alarm that stops the run, where the outcomes told could not be
    learned (`broken` says why), and where no policy could be computed. If it is not allowed here,
    or there is none, that is an error.
    """
    assert memory.state is not None
    safe = memory.problem.safe_action
    stopped = why_stopped(memory)
    if stopped and safe is not None:
        return _safe_policy(memory, contexts, mask, stopped), None, stopped
    reason, cause = broken, None
    if reason is None:
        try:
            policy, info = ged_ucb.select(memory.state, contexts, mask)
            return policy, info, None
        except Exception as error:
            if isinstance(error, InputError) and not isinstance(error, NotFiniteError):
                # the caller's doing; but the contexts were finite, so what is not now is the
                # model's
                raise
            reason, cause = f"{type(error).__name__}: {error}", error
    if safe is None:
        raise FloatingPointError(
            f"no policy could be computed ({reason}) and the problem names no safe action"
        ) from cause
    policy = _safe_policy(memory, contexts, mask, reason)
    warnings.warn(
        f"no policy could be computed ({reason}); taking the safe action "
        f"{memory.problem.names.label(safe)}",
        FallbackWarning,
        stacklevel=4,
    )
    return policy, None, reason


def why_stopped(memory: Memory) -> str | None:
    """The sentences of the alarms after which only the safe action may be played, if there are
    any.
    """
    if memory.guard != "fallback" or memory.state is None:
        return None
    said = {alarm.name: alarm.sentence for alarm in memory.alarms}
    return " ".join(said[name] for name in memory.active if stops(name, memory.problem)) or None


def _safe_policy(
    memory: Memory, contexts: np.ndarray, mask: np.ndarray | None, reason: str
) -> np.ndarray:
    safe = memory.problem.safe_action
    assert safe is not None
    if mask is not None and not mask[:, safe].all():
        label = memory.problem.names.label(safe)
        raise InfeasibleError(
            f"only the safe action {label} may be played, and it is not among "
            f"those allowed here: {reason}"
        )
    policy = np.zeros((len(contexts), memory.problem.n_actions))
    policy[:, safe] = 1.0
    return policy


# what follows from an alarm -----------------------------------------------------------------------


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
    return alarm.partition(":")[0] in costs.DECLARATIONS


def what_then(alarm: str, guard: str | None, problem: Problem) -> str:
    """What follows from an alarm, for its warning."""
    if guard == "fallback" and refuses(alarm):
        return f"ask() raises DeclarationError until acknowledge({alarm!r})."
    if guard == "fallback" and stops(alarm, problem):
        return f"The safe action alone is played until acknowledge({alarm!r})."
    return "The run goes on."


# the draw -----------------------------------------------------------------------------------------


def draw_actions(policies: np.ndarray, seed: int, first: int) -> list[int]:
    """Draw from policies (n, K) of decisions numbered from `first` on: one stream for every number,
    so that a draw does not depend on what else was drawn.
    """
    played = policies > 0
    last: np.ndarray = played.shape[1] - 1 - played[:, ::-1].argmax(axis=1)
    (mixed,) = (played.sum(axis=1) > 1).nonzero()  # elsewhere nothing is left to chance
    if len(mixed):
        ids = first + mixed
        kept = (block_of_uniforms(seed, i // BLOCK)[i % BLOCK] for i in ids.tolist())
        uniform = np.fromiter(kept, float) if len(ids) <= FEW else first_uniforms(seed, ids)
        reached = (policies[mixed].cumsum(axis=1) > uniform[:, None]) & played[mixed]
        last[mixed] = np.where(reached.any(axis=1), reached.argmax(axis=1), last[mixed])
    return [*map(int, last)]


def decide(choice: Choice, contexts: np.ndarray) -> list[tuple[Decision, Explanation]]:
    """Draw the actions of contexts (n, dx) from their policies, and certify them."""
    memory, fallback = choice.memory, choice.fallback
    assert memory.state is not None
    watch, state, seed = memory.watch, memory.state, memory.settings.seed
    said = {alarm.name: alarm.sentence for alarm in memory.alarms}
    remarks = () if fallback else tuple(said[name] for name in memory.active)
    watched = {} if watch is None else watch.watched
    flags = [""] * len(contexts) if watch is None else watch.flags(contexts)
    policies = choice.policy.copy()
    policies.setflags(write=False)  # like x: a decision is a record of what happened
    grounds = Grounds(state, choice.info, fallback, choice.doubts, watched)
    made = []
    actions = draw_actions(policies, seed, state.t)
    for i, (x, policy, action, far) in enumerate(zip(contexts, policies, actions, flags)):
        also = (*remarks, far) if far else remarks
        certificate, explanation = certify(grounds, i, x, policy, action, also)
        label = memory.problem.names.label(action)
        made.append((Decision(state.t + i, action, policy, certificate, x, label), explanation))
    return made


# ==================================================================================================
# After a study: the one action to take from now on at a context, by a rule that the user names.
#
# A decision explores and may mix actions; a recommendation does neither. Axis letters: K actions, J
# constraints.
# ==================================================================================================

RULES = ("certified", "estimate", "nearest", "interval")


@dataclass(frozen=True, repr=False)
class Recommendation(Spoken):
    """Take `action` from now on; `certificate` says what is known of it alone, `policy` what a
    decision here would play.
    """

    action: int
    rule: str
    reason: str  # one sentence
    certificate: Certificate
    utility: np.ndarray  # (K,) estimates; NaN where none could be computed
    cost: np.ndarray  # (J, K) estimates
    cost_upper: np.ndarray  # (J, K) worst cases
    # (J, K) posterior probability of lying above the limit, where bounds are read off draws; NaN
    # elsewhere
    over: np.ndarray
    policy: np.ndarray  # (K,) of a decision here, which explores and may mix
    names: Names

    @property
    def action_name(self) -> str:
        """The action's name; its number as text where actions have none."""
        return self.names.label(self.action)

    def __str__(self) -> str:
        lines = [f"action {self.action_name}: {self.reason}"]
        played = {name: p for name, p in zip(self.names.labels, self.policy) if p > 0}
        if len(played) > 1:
            lines.append(
                f"a decision here would mix {amounts(played)}: it explores, and a mix may hold an "
                "action that by itself exceeds a limit"
            )
        elif self.action_name not in played:
            lines.append(f"a decision here would play {', '.join(played)}: it explores")
        return "\n".join([*lines, str(self.certificate)])


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
        action, reason = (
            int(np.argmax(choice.policy[0])),
            f"the safe action, because {choice.fallback}",
        )
        nothing = np.full((len(problem.constraints), problem.n_actions), np.nan)
        return _certified(
            choice,
            x,
            action,
            rule,
            reason,
            np.full(problem.n_actions, np.nan),
            nothing,
            nothing,
            nothing,
        )
    cost = np.stack(
        [
            info.cost_upper[0, j] if b is None else _estimate(problem, x, j, b.estimate[0])
            for j, b in enumerate(info.bounds)
        ]
        or [np.empty((0, problem.n_actions))]
    ).reshape(-1, problem.n_actions)
    offered = state.blocks[-1].available & ((state.played > 0) if tried else True)
    action, reason = _chosen(problem, x, info, cost, offered, rule, constraint, target, within)
    over = np.array(
        [
            _share(problem, x, j, b, (c.at_most, np.inf))
            for j, (c, b) in enumerate(zip(problem.constraints, info.bounds))
        ]
    )
    over = over.reshape(-1, problem.n_actions)
    return _certified(
        choice, x, action, rule, reason, info.utility[0], cost, info.cost_upper[0], over
    )


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
        return (
            action,
            f"its estimated {problem.constraint_names[j]} of {cost[j, action]:.4g} is nearest to "
            f"{aim:g}",
        )
    if constraint is not None or target is not None:
        raise SettingError(
            'constraint= and target= belong to rule="nearest"; leave them out or name that rule'
        )
    value = info.cost_upper[0] if rule == "certified" else cost
    keeps = offered & (value <= problem.limits[:, None]).all(axis=0)
    said = "worst case" if rule == "certified" else "estimated cost"
    used = [b.used for b in info.bounds if b is not None and b.used is not None]
    short = [u.shortage for u in used if u.shortage and rule == "certified"]
    if not keeps.any():
        why = f"no action on offer has its {said} under every limit"
        return _safe(problem, "; ".join([why, *short]))
    action = int(np.argmax(np.where(keeps, info.utility[0], -np.inf)))
    why = f"of the actions whose {said} keeps every limit, it has the highest estimated utility"
    return action, "; ".join([why, *short])


def _most_probable(
    problem: Problem,
    x: np.ndarray,
    info: ged_ucb.Info,
    offered: np.ndarray,
    j: int,
    within: tuple[float, float],
) -> tuple[int, str]:
    low, high = (float(end) for end in within)
    if not low < high:
        raise SettingError(f"within must be (low, high) with low < high, got {within!r}")
    share = _share(problem, x, j, info.bounds[j], (low, high))
    if np.isnan(share).any():
        raise SettingError(
            "rule='interval' reads probabilities off posterior draws: the agent needs "
            "confidence=credible_set(...)"
        )
    if not offered.any():
        return _safe(problem, "no action has been tried")
    action = int(np.argmax(np.where(offered, share, -np.inf)))
    name = problem.constraint_names[j]
    return (
        action,
        f"its {name} lies above {low:g} and at most at {high:g} with posterior probability "
        f"{share[action]:.2g}, the largest",
    )


def _share(
    problem: Problem, x: np.ndarray, j: int, bounds: Bounds | None, between: tuple[float, float]
) -> np.ndarray:
    """Posterior P(low < value <= high) of every action (K,); NaN where bounds are not read off
    draws.
    """
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
        raise SettingError(
            "this rule is about one constraint and needs constraint=, one of "
            f"{names}, got {constraint!r}"
        )
    return names.index(constraint)


def _safe(problem: Problem, why: str) -> tuple[int, str]:
    if problem.safe_action is None:
        raise SettingError(f"{why}, and the problem names no safe action to fall back on")
    return int(problem.safe_action), f"the safe action: {why}"


def _certified(
    choice: Choice,
    x: np.ndarray,
    action: int,
    rule: str,
    reason: str,
    utility: np.ndarray,
    cost: np.ndarray,
    upper: np.ndarray,
    over: np.ndarray,
) -> Recommendation:
    state = choice.memory.state
    assert state is not None
    alone = np.eye(state.problem.n_actions)[action]
    # of one action alone the worst case is its own, not that of the policy which a decision here
    # would play
    info = None if choice.info is None else replace(choice.info, worst=upper[None, :, action])
    watched = {} if choice.memory.watch is None else choice.memory.watch.watched
    grounds = Grounds(state, info, choice.fallback, choice.doubts, watched)
    certificate, _ = certify(grounds, 0, x, alone, action)
    # the bound may be proved and yet above the limit: then nothing is claimed of the limit
    fine = np.isnan(upper[:, action]) | (upper[:, action] <= state.problem.limits)
    parts = tuple(
        part if ok else replace(part, guaranteed=False, kept=False)
        for part, ok in zip(certificate.constraints, fine)
    )
    return Recommendation(
        action,
        rule,
        reason,
        replace(certificate, constraints=parts),
        utility,
        cost,
        upper,
        over,
        choice.policy[0],
        state.problem.names,
    )
