"""GED-UCB: `init`, `select`, `update`. Pure: the same state and context give the same policy.

To be read beside Algorithm 1 of Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
Framework":

    paper                      here
    f^ (utility density)       state.learners["utility"], a fit for every snapshot
    g^ (constraint density)    state.learners[name]
    C~_G(t, delta)             the learner's confidence set
    V~ (upper constraint)      cost_upper
    tau, c_0, r_0              limits, safe value, safe utility
    alpha_r                    width_weight
    beta_t                     bonus_weight
    pi~_{t,i}                  the counterfactual policy of round i at today's context

One round. Every past round i is replayed at today's context: its snapshot of the models gives estimated utilities, cost
bounds and widths; its policy maximises

    utility + beta_i E[1 / (N + 1)] + alpha_r (cost_upper - cost_lower)      subject to  sum_a pi_a cost_upper_a <= tau

where N counts how often the earlier counterfactual policies would have revealed the action. Today's policy is the last.
Feasibility rests on `cost_upper` alone: the weights beta and alpha_r steer exploration and never touch it.

Axis letters: C contexts asked together, B blocks of rounds, K actions, J constraints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gedppl import counterfactual
from gedppl.confidence import learner_for
from gedppl.confidence.learner import Bounds, Learner, Trail
from gedppl.counterfactual.joint import JointCosts, joint_pass
from gedppl.errors import InfeasibleError, ProblemError, SettingError
from gedppl.problem import UTILITY, Constraint, KnownCost, Problem
from gedppl.settings import Settings, warmup_rounds

TOLERANCE = 1e-9


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


@dataclass(frozen=True)
class Info:
    """What a reader wants to know about a selection."""

    utility: np.ndarray  # (C, K) estimated
    bonus: np.ndarray  # (C, K) beta_t E[1/(N+1)]
    width: np.ndarray  # (C, K) alpha_r times the width of the cost bounds
    inverse_count: np.ndarray  # (C, K)
    cost_lower: np.ndarray  # (C, J, K)
    cost_upper: np.ndarray  # (C, J, K)
    limits: np.ndarray  # (J,)
    bounds: tuple[Bounds | None, ...]  # J; None where the cost is known
    joint: JointCosts | None  # today's, where costs are bounded for all actions together
    engine: str
    notes: tuple[str, ...]


def delta_shares(problem: Problem, chosen: Settings) -> dict[str, float]:
    """How much of delta each outcome's set may miss with.

    Theory: half for feasibility, shared by the outcomes that constraints learn from, half for the utility's error, which the
    regret theorem needs. The default claims the limits only, so all of delta is theirs, and the utility's set, which then
    sets no more than the size of the bonus, takes as much again. The paper's formulas split delta inside (delta / (2 t^3)).
    """
    if chosen.mode == "paper":
        return dict.fromkeys(problem.streams, chosen.delta)
    constrained = {c.stream for c in problem.constraints if isinstance(c, Constraint)}
    whole = chosen.delta / 2 if chosen.mode == "theory" else chosen.delta
    return {UTILITY: whole} | {stream: whole / len(constrained) for stream in constrained}


def init(problem: Problem, chosen: Settings, x: np.ndarray) -> State:
    """The state before the first round. x (n, dx): any contexts of the right width, to trace the models with."""
    rows = np.asarray(x, float)
    for model in problem.streams.values():
        trace = getattr(model, "trace", None)
        if trace is not None:
            trace(rows[:1], np.zeros(1, np.int64))
    shares, known = delta_shares(problem, chosen), _known_directions(problem, rows[:1])
    learners = {
        name: learner_for(
            model, delta=shares[name], radius=chosen.radius, oracle=chosen.oracle, seed=chosen.seed,
            known_direction=known.get(name),
        )
        for name, model in problem.streams.items()
    }  # fmt: skip
    if chosen.selection == "joint":
        _check_joint(problem, learners)
    lipschitz = None
    if getattr(problem.utility.model, "size", None) is not None:
        member = problem.utility.model.density(0, rows[:1], np.zeros(1, np.int64))
        lipschitz = problem.utility.functional.lipschitz("hellinger", member)
    state = State(problem, chosen, learners, t=0, told=0, refit_at=1, blocks=(), lipschitz=lipschitz)
    return _open_block(state, np.ones(problem.n_actions, bool))


def _known_directions(problem: Problem, x: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The paper's T(g_{x,a0}) = c_0 as linear equations: stream -> (features (m, D), values (m,)), for a first context x (1, dx).

    The safe value is exact at every context if it is declared so, hence at this one: whether the safe action's features change
    with x need not be known. Where they do not, this is all there is to know; where they do, it is one valid equation.
    """
    known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for j, c in enumerate(problem.constraints):
        if not _holds_parameters(c):
            continue
        assert isinstance(c, Constraint)
        action = np.array([problem.safe_action])
        features = np.asarray(c.model.predictor.features(x, action), float)
        value = problem.safe_values(x)[:, j] - np.asarray(c.model.predictor.offset(x, action), float)
        before = known.get(c.stream, (np.zeros((0, features.shape[1])), np.zeros(0)))
        if not np.abs(features).max() > 0 and np.abs(value).max() > 1e-9:
            raise ProblemError(
                f"safe_value of constraint {c.name!r} is declared exact, but whatever its parameters the model gives the safe "
                f"action {problem.safe_values(x)[0, j] - value[0]:g}, not {problem.safe_values(x)[0, j]:g}; mend the model or "
                "drop safe_value_exact"
            )
        known[c.stream] = np.concatenate([before[0], features]), np.append(before[1], value)
    return known


def _check_joint(problem: Problem, learners: Mapping[str, Learner]) -> None:
    for c in problem.constraints:
        if isinstance(c, Constraint) and not (c.functional.name == "mean" and hasattr(learners[c.stream], "jointly")):
            raise SettingError(
                f"selection='joint' bounds means of linear-Gaussian classes with their closed-form set; constraint {c.name!r} is "
                f"{c.functional} of {c.model!r}: use selection='per_action'"
            )


def _holds_parameters(c: Constraint | KnownCost) -> bool:
    """Whether an exact safe value is one linear equation in the parameters."""
    predictor = getattr(getattr(c, "model", None), "predictor", None)
    linear = predictor is not None and predictor.family == "Normal" and predictor.link == "identity"
    return isinstance(c, Constraint) and c.safe_value_exact and linear and c.functional.name == "mean"


def update(state: State, rows: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], rounds: int) -> State:
    """Take in the outcomes of `rounds` rounds, told together: stream -> (x (m, dx), a (m,), y (m,)). Refit when due."""
    learners = dict(state.learners)
    for stream, (x, a, y) in rows.items():
        if len(a):
            learners[stream] = learners[stream].absorb(x, a, y)
    state = replace(state, learners=learners, told=state.told + rounds)
    return refit(state) if state.told >= state.refit_at else state


def refit(state: State) -> State:
    """Fit every model to all rows and open a block under the new snapshot."""
    learners = {name: learner.refit() for name, learner in state.learners.items()}
    due = max(state.told + 1, math.floor(state.settings.growth * state.told))
    state = replace(state, learners=learners, refit_at=due)
    return _open_block(state, state.blocks[-1].available)


def advance(state: State, rounds: int) -> State:
    """Count rounds as decided."""
    return replace(state, t=state.t + rounds)


def change(state: State, problem: Problem, available: np.ndarray) -> State:
    """Go on with other limits, or with actions added or retired. Past rounds keep theirs."""
    grown = problem.n_actions - state.problem.n_actions
    if grown:
        blocks = tuple(replace(b, available=np.append(b.available, np.zeros(grown, bool))) for b in state.blocks)
        state = replace(state, blocks=blocks)
    return _open_block(replace(state, problem=problem), np.asarray(available, bool))


def _open_block(state: State, available: np.ndarray) -> State:
    learner = state.learners[UTILITY]
    block = Block(
        start=state.t,
        snapshot=len(learner.snapshot_sizes) - 1,
        exploration=_exploration(state),
        limits=state.problem.limits,
        available=available,
    )
    kept = state.blocks if not state.blocks or state.blocks[-1].start < state.t else state.blocks[:-1]
    return replace(state, blocks=(*kept, block))


def _exploration(state: State) -> float:
    """Q_t of beta_t = 1/2 sqrt(Q_t t / K), in squared utility units.

    The theorem's Q, for the regret bound:
        finite class, T Lipschitz in Hellinger distance:  L^2 log(|F|/delta) + B^2,
        otherwise:  2 sup_C sum_i (T_theta - T_theta_hat)^2 + 1.255 B^2 (complexity + log(1/delta)) + B^2,
    with complexity log |F|, or D log(1+t) for D parameters (the supremum is linearised there). The default mode leaves out the
    middle term, which pays for a union bound and does not shrink with the noise.
    """
    functional = state.problem.utility.functional
    learner, model = state.learners[UTILITY], state.problem.utility.model
    spread = functional.high - functional.low
    q = 2 * learner.squared_deviation(functional) + spread**2
    if state.settings.mode == "default":
        return q
    log_delta = math.log(1 / delta_shares(state.problem, state.settings)[UTILITY])
    size = getattr(model, "size", None)
    complexity = math.log(size) if size is not None else model.dim * math.log1p(state.told)
    q += 1.255 * spread**2 * (complexity + log_delta)
    if size is not None and state.lipschitz is not None:
        q = min(q, state.lipschitz**2 * (complexity + log_delta) + spread**2)
    return q


def bonus_weights(state: State, rounds: np.ndarray, exploration: np.ndarray) -> np.ndarray:
    """beta at the given rounds (counted from 0), for blocks with the given Q."""
    i, n_actions = rounds + 1.0, state.problem.n_actions
    if state.settings.mode == "paper":
        weight = _paper_bonus_weight(state, i)
    else:
        weight = 0.5 * np.sqrt(exploration * i / n_actions)
    return state.settings.bonus_scale * weight


def _paper_bonus_weight(state: State, i: np.ndarray) -> np.ndarray:
    """The printed beta_t, with L_1 the functional's Lipschitz constant in total variation.

    Finite:  sqrt((34 log(2|F|t^3/delta) + 2 L_1^2 Est(F, t, delta/(2t^3))) t / K), Est = log(|F| 2t^3/delta).
    Parametric (corollary):  sqrt((72 (d log(2+t) + log(2t^3/delta)) + L_D^2 + 2 L_1^2 Est) t / K).
    """
    problem, delta = state.problem, state.settings.delta
    functional, model = problem.utility.functional, problem.utility.model
    lipschitz = functional.high - functional.low
    log_t = np.log(2 * i**3 / delta)
    if getattr(model, "size", None) is not None:
        log_class = math.log(model.size) + log_t
        inside = 34 * log_class + 2 * lipschitz**2 * log_class
    else:
        d = model.dim
        est = state.learners[UTILITY].paper_estimate(delta / (2 * i**3))  # type: ignore[attr-defined]
        inside = 72 * (d * np.log(2 + i) + log_t) + 2 * lipschitz**2 + 2 * lipschitz**2 * est
    return np.sqrt(inside * i / problem.n_actions)


def select(state: State, x: np.ndarray, allowed: np.ndarray | None = None) -> tuple[np.ndarray, Info]:
    """Today's policies (C, K) at contexts x (C, dx), decided together, and what they rest on."""
    problem, chosen = state.problem, state.settings
    C, K, J = len(x), problem.n_actions, len(problem.constraints)
    blocks = state.blocks
    snapshots = np.array([b.snapshot for b in blocks])
    mask = np.ones((C, K), bool) if allowed is None else np.asarray(allowed, bool)

    estimate = state.learners[UTILITY].trail(problem.utility.functional, x, K).estimate[:, snapshots]
    lower, upper, bounds, steering = _cost_trail(state, x, snapshots)
    limits = np.stack([b.limits for b in blocks])  # (B, J)
    width, notes = _width_bonus(state, x, lower, upper, limits)
    notes += _exactness_notes(state)
    base = estimate + width
    available = np.stack([b.available for b in blocks])[None] & mask[:, None]

    joint = _joint_costs(state, x, snapshots, upper) if chosen.selection == "joint" else None

    # A program's bounds are too dear to recompute for every past snapshot: they hold for today, the trail for the past.
    today_lower, today_upper = lower[:, -1].copy(), upper[:, -1].copy()
    for j in steering:
        today_lower[:, j], today_upper[:, j] = _pin_safe(problem, x, j, bounds[j].lower, bounds[j].upper)  # type: ignore[union-attr]
    _check_bounds(today_lower, today_upper, estimate)

    warmup = warmup_rounds(chosen.warmup, K)
    starts = np.array([b.start for b in blocks])
    exploration = np.array([b.exploration for b in blocks])
    if state.t < warmup:
        action = state.t if chosen.warmup == "paper" else problem.safe_action
        policy = np.eye(K)[np.full(C, action)]
        inverse = np.ones((C, K))
        engine = f"warm-up ({chosen.warmup})"
    else:
        exact = state.t - warmup <= chosen.exact_rounds
        if steering:
            today_width, _ = _width_bonus(state, x, today_lower[:, None], today_upper[:, None], limits[-1:])
            today = (estimate[:, -1:] + today_width, today_upper[:, None], limits[-1:], available[:, -1:])
            if exact and starts[-1] < state.t:  # a block of its own for today
                base, upper, limits, available = (
                    np.concatenate([past, now], axis=0 if past is limits else 1)
                    for past, now in zip((base, upper, limits, available), today)
                )
                starts, exploration = np.append(starts, state.t), np.append(exploration, exploration[-1])
            else:
                base[:, -1:], upper[:, -1:] = today[0], today[1]
            width = np.concatenate([width[:, :-1], today_width], axis=1)
        first = np.searchsorted(starts, warmup, side="right") - 1  # the block in force when the warm-up ended
        rounds = np.arange(warmup, state.t + 1)
        block_of = np.searchsorted(starts, rounds, side="right") - 1
        weights = bonus_weights(state, rounds, exploration[block_of])
        history = (limits[first:], weights, np.maximum(starts[first:] - warmup, 0), state.t - warmup)
        given = {"available": available[:, first:], "reveals": problem.reveals, "safe_action": problem.safe_action}
        if joint is not None:
            result = joint_pass(base[:, first:], joint.under(slice(first, None)), *history, **given, exact=exact)
        else:
            run = counterfactual.exact_pass if exact else counterfactual.block_pass
            result = run(base[:, first:], upper[:, first:], *history, **given)
        policy, inverse = result.policy, result.inverse_count
        engine = "every past round replayed" if exact else "past rounds replayed in blocks"
        _check_feasible(worst_case(policy, today_upper, joint), problem.limits)
    beta = bonus_weights(state, np.array([state.t]), exploration[-1:])[0]
    info = Info(
        utility=estimate[:, -1],
        bonus=beta * inverse,
        width=width[:, -1],
        inverse_count=inverse,
        cost_lower=today_lower,
        cost_upper=today_upper,
        limits=problem.limits,
        bounds=tuple(bounds),
        joint=None if joint is None else joint.under(slice(-1, None)),
        engine=engine,
        notes=tuple(notes),
    )
    if J and state.told == 0 and problem.safe_action is not None:
        _check_explorable(problem, x, today_upper, mask)
    return policy, info


def cost_bounds(state: State, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper values of every constraint at x: each (C, J, K)."""
    problem = state.problem
    lower = np.empty((len(x), len(problem.constraints), problem.n_actions))
    upper = np.empty_like(lower)
    snapshots = np.array([state.blocks[-1].snapshot])
    trail_lower, trail_upper, bounds, steering = _cost_trail(state, x, snapshots)
    lower[:], upper[:] = trail_lower[:, -1], trail_upper[:, -1]
    for j in steering:
        lower[:, j], upper[:, j] = _pin_safe(problem, x, j, bounds[j].lower, bounds[j].upper)  # type: ignore[union-attr]
    return lower, upper


def _cost_trail(
    state: State, x: np.ndarray, snapshots: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[Bounds | None], list[int]]:
    """Cost bounds under every block: lower and upper (C, B, J, K); today's bounds with how they were found; and the
    constraints whose bounds under blocks only steer, so that today's must take their place."""
    problem = state.problem
    shape = (len(x), len(snapshots), len(problem.constraints), problem.n_actions)
    lower, upper = np.empty(shape), np.empty(shape)
    bounds: list[Bounds | None] = []
    steering = []
    for j, c in enumerate(problem.constraints):
        if isinstance(c, KnownCost):
            lower[:, :, j] = upper[:, :, j] = problem.known_costs(j, x)[:, None]
            bounds.append(None)
            continue
        learner = state.learners[c.stream]
        trail, today = learner.trail(c.functional, x, problem.n_actions), learner.bounds(c.functional, x, problem.n_actions)
        if trail.approximate:
            trail = _calibrated(trail, today)
            steering.append(j)
        lower[:, :, j], upper[:, :, j] = _pin_safe(problem, x, j, trail.lower[:, snapshots], trail.upper[:, snapshots])
        bounds.append(today)
    return lower, upper, bounds, steering


def _joint_costs(state: State, x: np.ndarray, snapshots: np.ndarray, upper: np.ndarray) -> JointCosts:
    """V_j(pi) = mean'pi + |factor'pi| under every block. What is known or clipped keeps its own bound, without a factor.

    upper (C, B, J, K): the bounds action by action, safe values and ranges included.
    """
    problem = state.problem
    parts = {
        j: state.learners[c.stream].jointly(x, problem.n_actions)  # type: ignore[attr-defined]
        for j, c in enumerate(problem.constraints)
        if isinstance(c, Constraint)
    }
    q = max((half.shape[-1] for _, half in parts.values()), default=1)
    mean, factor = upper.copy(), np.zeros((*upper.shape, q))
    for j, (middle, half) in parts.items():
        middle, half = middle[:, snapshots], half[:, snapshots]
        free = middle + np.linalg.norm(half, axis=-1) <= upper[:, :, j] + TOLERANCE
        free[..., problem.safe_action] = False
        mean[:, :, j] = np.where(free, middle, upper[:, :, j])
        factor[:, :, j, :, : half.shape[-1]] = np.where(free[..., None], half, 0.0)
    return JointCosts(mean, factor)


def _calibrated(trail: Trail, today: Bounds) -> Trail:
    """Approximate bounds of past snapshots, stretched by what today's own bounds show the approximation to be off, and never
    narrower than today's: a past round knew less.

    A bound that is too low would have past rounds play an action they could not afford: it would count as known without ever
    having been tried, and its bonus would fade for nothing. What is unknown (the whole range) stays unknown.
    """
    low, high = trail.lower[:, :1], trail.upper[:, :1]  # snapshot 0 knows nothing
    unknown = (trail.lower <= low) & (trail.upper >= high)
    sides = []
    for past, now, wider in ((trail.lower, today.lower, np.minimum), (trail.upper, today.upper, np.maximum)):
        reach = past - trail.estimate
        factor = np.abs(now - today.estimate)[:, None] / np.maximum(np.abs(reach[:, -1:]), 1e-12)
        stretched = np.clip(wider(trail.estimate + factor * reach, now[:, None]), low, high)
        sides.append(np.where(unknown, past, stretched))
    return replace(trail, lower=sides[0], upper=sides[1])


def _pin_safe(
    problem: Problem, x: np.ndarray, j: int, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The safe action's bounds are its known value. lower, upper: (C, ..., K)."""
    lower, upper = lower.copy(), upper.copy()
    known = problem.safe_values(x)[:, j].reshape((-1,) + (1,) * (lower.ndim - 2))
    lower[..., problem.safe_action] = known
    upper[..., problem.safe_action] = known
    return lower, upper


def _width_bonus(
    state: State, x: np.ndarray, lower: np.ndarray, upper: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """width_scale (u1 - r0) max_j (U_j - L_j) / (tau_j - c0_j): (C, B, K).

    Where a limit equals the safe value no mixing is possible and the weight would be infinite: it is left out.
    """
    problem = state.problem
    if not problem.constraints or problem.safe_action is None:
        return np.zeros(lower.shape[:2] + lower.shape[3:]), []
    room = limits[None] - problem.safe_values(x)[:, None]  # (C, B, J)
    gain = problem.utility.functional.high - problem.safe_utilities(x)  # (C,)
    tight = room <= TOLERANCE
    weight = np.where(tight, 0.0, gain[:, None, None] / np.where(tight, 1.0, room))
    bonus = (weight[..., None] * (upper - lower)).max(axis=2)
    notes = []
    for j in np.flatnonzero(tight[:, -1].any(axis=0)):
        notes.append(
            f"the limit on {problem.constraint_names[j]!r} equals its value at the safe action: no mixing is possible, only "
            "actions certified one by one can be played"
        )
    return state.settings.width_scale * bonus, notes


def _exactness_notes(state: State) -> list[str]:
    """Where an exact safe value was declared: that it is believed, or why it was not used."""
    notes = []
    for c in state.problem.constraints:
        if isinstance(c, Constraint) and c.safe_value_exact:
            space = getattr(state.learners[c.stream], "space", None)
            if _holds_parameters(c) and space is not None and space.known:
                notes.append(f"the safe action's value of {c.name!r} is believed exact, as declared: parameters are held to it")
            else:
                notes.append(
                    f"safe_value_exact of {c.name!r} was not used: only the mean of a linear-Gaussian class with its closed-form "
                    "set can be held to it"
                )
    return notes


def _check_bounds(lower: np.ndarray, upper: np.ndarray, estimate: np.ndarray) -> None:
    if np.isnan(lower).any() or np.isnan(upper).any():
        raise FloatingPointError("a cost bound is NaN")
    if not np.isfinite(estimate).all():
        raise FloatingPointError("an estimated utility is not finite")


def _check_feasible(worst: np.ndarray, limits: np.ndarray) -> None:
    """The last look before a policy leaves: its worst case (C, J) under today's bounds is at or under every limit."""
    if np.any(worst > limits + TOLERANCE):
        c, j = np.argwhere(worst > limits + TOLERANCE)[0]
        raise FloatingPointError(f"the policy's worst case {worst[c, j]:.6g} exceeds the limit {limits[j]:.6g}")


def worst_case(policy: np.ndarray, cost_upper: np.ndarray, joint: JointCosts | None = None) -> np.ndarray:
    """sum_a pi_a U_a for every constraint: (C, J). An action that is never played adds nothing, however dear.

    With `joint`, the worst case of the whole policy over the set, which is at most that.
    """
    if joint is not None:
        return joint.today(policy)
    played = np.where(policy[:, None] > 0, cost_upper, 0.0)
    return np.einsum("ck,cjk->cj", policy, played)


def _check_explorable(problem: Problem, x: np.ndarray, upper: np.ndarray, mask: np.ndarray) -> None:
    """With the limit at the safe value and nothing known, every round would play the safe action for ever: refuse."""
    learned = np.array([isinstance(c, Constraint) for c in problem.constraints])
    stuck = (problem.limits - problem.safe_values(x) <= TOLERANCE) & learned  # (C, J)
    certified = (upper <= problem.limits[:, None]).all(axis=1) & mask
    certified[:, problem.safe_action] = False
    if np.any(stuck.any(axis=1) & ~certified.any(axis=1)):
        j = int(np.flatnonzero(stuck.any(axis=0))[0])
        raise InfeasibleError(
            f"the limit on {problem.constraint_names[j]!r} equals its value at the safe action ({problem.limits[j]:g}) and no "
            "other action is known to be under it, so nothing could ever be explored; raise at_most above the safe value, or "
            "pass logged data to observe() first"
        )
