"""What every block's snapshot says at today's contexts: utilities, cost bounds and the width bonus.

Axis letters: C contexts asked together, B blocks of rounds, K actions, J constraints, q directions
of an ellipsoid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gedppl.errors import InfeasibleError, ProblemError
from gedppl.ged_ucb.settings import State
from gedppl.learning.learner import Bounds, Trail
from gedppl.learning.reach import REFUTED_BEYOND, beyond_range, is_mean
from gedppl.learning.seen_class import served
from gedppl.problem import UTILITY, Constraint, Problem
from gedppl.problem.checks import ROUNDING
from gedppl.problem.names import Names
from gedppl.selection import drawable

TOLERANCE = 1e-11  # share of a limit by which a policy may end above it


@dataclass(frozen=True)
class Replayed:
    """One entry for every block in turn, today's last."""

    starts: np.ndarray  # (B,)
    exploration: np.ndarray  # (B,) Q of the bonus weight
    estimate: np.ndarray  # (C, B, K) utility
    width: np.ndarray  # (C, B, K) alpha_r times the width of the cost bounds
    lower: np.ndarray  # (C, B, J, K)
    upper: np.ndarray  # (C, B, J, K)
    limits: np.ndarray  # (B, J)
    available: np.ndarray  # (C, B, K)
    # today's, and how they were found; None where the cost is known
    bounds: tuple[Bounds | None, ...]
    notes: tuple[str, ...]


def replay(state: State, x: np.ndarray, allowed: np.ndarray, *, one_by_one: bool) -> Replayed:
    """What past rounds would have seen at x (C, dx), and what is seen today. allowed (C, K).

    A program's bounds are too dear to recompute for every past snapshot: they hold for today, the
    trail for the past. If rounds are walked `one_by_one`, today is then a block of its own; in
    blocks it stands for its block.
    """
    problem, blocks = state.problem, state.blocks
    snapshots = np.array([b.snapshot for b in blocks])
    starts, exploration = (
        np.array([b.start for b in blocks]),
        np.array([b.exploration for b in blocks]),
    )
    limits = np.stack([b.limits for b in blocks])
    estimate = (
        state.learners[UTILITY]
        .trail(problem.utility.functional, x, problem.n_actions)
        .estimate[:, snapshots]
    )
    available = np.stack([b.available for b in blocks])[None] & allowed[:, None]
    lower, upper, bounds, steering = _cost_trail(state, x, snapshots)
    if steering:
        now_lower, now_upper = lower[:, -1:].copy(), upper[:, -1:].copy()
        for j in steering:
            found = bounds[j]
            assert found is not None
            now_lower[:, 0, j], now_upper[:, 0, j] = _pin_safe(
                problem, x, j, found.lower, found.upper
            )
        kept = slice(None) if one_by_one and starts[-1] < state.t else slice(-1)
        lower, upper = (
            np.concatenate([p[:, kept], n], axis=1)
            for p, n in ((lower, now_lower), (upper, now_upper))
        )
        if kept == slice(None):
            estimate, available = (
                np.concatenate([p, p[:, -1:]], axis=1) for p in (estimate, available)
            )
            limits, exploration = (
                np.concatenate([limits, limits[-1:]]),
                np.append(exploration, exploration[-1]),
            )
            starts = np.append(starts, state.t)
    drawable_today(problem, upper[:, -1], available[:, -1])
    available = available & drawable(upper, limits, problem.every_draw)
    width, notes = _width_bonus(state, x, lower, upper, limits)
    check_bounds(lower[:, -1], upper[:, -1], estimate)
    said = (*notes, *exactness_notes(state))
    return Replayed(
        starts, exploration, estimate, width, lower, upper, limits, available, tuple(bounds), said
    )


def cost_bounds(state: State, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper values of every constraint at x: each (C, J, K)."""
    state.problem.check_contexts(x)
    return todays_costs(state, x)[:2]


def todays_costs(state: State, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Bounds | None]]:
    """Lower and upper values of every constraint at x, each (C, J, K), and how they were found.

    The safe action's are pinned at its declared value. Optimism by sets is proved where that value
    is exact; where it is an upper bound only, the theorem needs what the set says of it, or the
    policy would go on paying for a width that no data can close.
    """
    problem, chosen = state.problem, state.settings
    by_theorem = chosen.mode == "theory" and chosen.exploration == "sets"
    lower = np.empty((len(x), len(problem.constraints), problem.n_actions))
    upper = np.empty_like(lower)
    bounds: list[Bounds | None] = [None] * len(problem.constraints)
    for j, _ in problem.known:
        lower[:, j] = upper[:, j] = problem.known_costs(j, x)
    for j, c in problem.learned:
        found = state.bounds_of.of(
            c.name, state.learners[c.stream], c.functional, x, problem.n_actions
        )
        found = _held(problem, x, j, found)
        lower[:, j], upper[:, j] = _pin_safe(problem, x, j, found.lower, found.upper)
        if by_theorem and not c.safe_value_exact:
            a0 = problem.safe_action
            lower[:, j, a0] = np.minimum(lower[:, j, a0], found.lower[:, a0])
            if found.guaranteed:
                upper[:, j, a0] = np.minimum(upper[:, j, a0], found.upper[:, a0])
        bounds[j] = found
    return lower, upper, bounds


def _held(problem: Problem, x: np.ndarray, j: int, found: Bounds) -> Bounds:
    """Over those parameters under which the safe action costs at most what was declared of it;
    all, where the model does not learn the safe action and need not describe it.
    """
    if problem.safe_action is None or not problem.learn_safe:
        return found
    return found.held(problem.safe_action, problem.safe_values(x)[:, j])


def _cost_trail(
    state: State, x: np.ndarray, snapshots: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[Bounds | None], list[int]]:
    """Cost bounds under every block: lower and upper (C, B, J, K); today's bounds with how they
    were found; and the constraints whose bounds under blocks only steer, so that today's must
    take their place.
    """
    problem = state.problem
    shape = (len(x), len(snapshots), len(problem.constraints), problem.n_actions)
    lower, upper = np.empty(shape), np.empty(shape)
    bounds: list[Bounds | None] = [None] * len(problem.constraints)
    steering = []
    for j, _ in problem.known:
        lower[:, :, j] = upper[:, :, j] = problem.known_costs(j, x)[:, None]
    for j, c in problem.learned:
        learner = state.learners[c.stream]
        trail, today = (
            learner.trail(c.functional, x, problem.n_actions),
            learner.bounds(c.functional, x, problem.n_actions),
        )
        if trail.approximate:
            trail = _calibrated(trail, today)
            steering.append(j)
        lower[:, :, j], upper[:, :, j] = _pin_safe(
            problem, x, j, trail.lower[:, snapshots], trail.upper[:, snapshots]
        )
        bounds[j] = today
    return lower, upper, bounds, steering


def _calibrated(trail: Trail, today: Bounds) -> Trail:
    """Approximate bounds of past snapshots, stretched by what today's own bounds show the
    approximation to be off, and never narrower than today's: a past round knew less.

    A bound that is too low would have past rounds play an action they could not afford: it would
    count as known without ever having been tried, and its bonus would fade for nothing. What is
    unknown (the whole range) stays unknown.
    """
    low, high = trail.lower[:, :1], trail.upper[:, :1]  # snapshot 0 knows nothing
    unknown = (trail.lower <= low) & (trail.upper >= high)
    sides = []
    for past, now, wider in (
        (trail.lower, today.lower, np.minimum),
        (trail.upper, today.upper, np.maximum),
    ):
        reach = past - trail.estimate
        factor = np.abs(now - today.estimate)[:, None] / np.maximum(
            np.abs(reach[:, -1:]), ROUNDING * (high - low)
        )
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
    """width_scale (u1 - r0) max_j (U_j - L_j) / (tau_j - c0_j): (C, B, K)."""
    problem = state.problem
    if not problem.constraints or problem.safe_action is None:
        return np.zeros(lower.shape[:2] + lower.shape[3:]), []
    room = room_for_mixing(limits[None], problem.safe_values(x)[:, None])  # (C, B, J)
    gain = problem.utility.functional.high - problem.safe_utilities(x)  # (C,)
    bonus, tight = weighted_width(lower, upper, room, gain[:, None])
    return state.settings.width_scale * bonus, tight_notes(problem, tight[:, -1])


def weighted_width(
    lower: np.ndarray, upper: np.ndarray, room: np.ndarray, gain: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """gain max_j (U_j - L_j) / room_j (..., K), for U, L (..., J, K), room (..., J), gain (...);
    and where there is no room.

    Where a limit equals the safe value no mixing is possible and the weight would be infinite: it
    is left out.
    """
    tight = room <= 0
    weight = np.where(tight, 0.0, gain[..., None] / np.where(tight, 1.0, room))
    return (weight[..., None] * (upper - lower)).max(axis=-2), tight


def tight_notes(problem: Problem, tight: np.ndarray) -> list[str]:
    """For limits without room, tight (C, J)."""
    if not np.count_nonzero(tight):
        return []
    return [
        f"the limit on {problem.constraint_names[j]!r} equals its value at the safe action: no "
        "mixing is possible, only "
        "actions certified one by one can be played"
        for j in np.flatnonzero(tight.any(axis=0) & ~problem.every_draw)
    ]


def room_for_mixing(limits: np.ndarray, safe_values: np.ndarray) -> np.ndarray:
    """How far the safe value lies under the limit; 0 where they differ by rounding only. In any
    unit: 2e-10 is room beside 0.
    """
    room = limits - safe_values
    return np.where(room <= ROUNDING * np.maximum(np.abs(limits), np.abs(safe_values)), 0.0, room)


def check_bounds(lower: np.ndarray, upper: np.ndarray, estimate: np.ndarray) -> None:
    if np.count_nonzero(np.isnan(lower)) or np.count_nonzero(np.isnan(upper)):
        raise FloatingPointError("a cost bound is NaN")
    if np.count_nonzero(np.isfinite(estimate)) < estimate.size:
        raise FloatingPointError("an estimated utility is not finite")


def drawable_today(problem: Problem, upper: np.ndarray, offered: np.ndarray) -> np.ndarray:
    """Of the actions on offer (C, K) those that limits on every draw let through, for upper (C,
    J, K); an error if none is.
    """
    if not np.count_nonzero(problem.every_draw):
        return offered
    usable: np.ndarray = offered & drawable(upper, problem.limits, problem.every_draw)
    left_out = ~usable.any(axis=1) & offered.any(axis=1)
    if not left_out.any():
        return usable
    c = int(np.flatnonzero(left_out)[0])
    each = [
        j
        for j in np.flatnonzero(problem.every_draw)
        if not (offered[c] & (upper[c, j] <= problem.limits[j])).any()
    ]
    actions = ", ".join(problem.names.label(int(a)) for a in np.flatnonzero(offered[c]))
    fix = f"allow the safe action {problem.names.label(problem.safe_action or 0)} too"
    if not each:
        names = [problem.constraint_names[j] for j in np.flatnonzero(problem.every_draw)]
        raise InfeasibleError(
            f"no action on offer is certified under the limits on every draw of {names} together: "
            f"each of the actions [{actions}] may exceed one of them; {fix}"
        )
    j = int(each[0])
    least = float(upper[c, j][offered[c]].min())
    raise InfeasibleError(
        "no action on offer is certified under the limit on every draw of "
        f"{problem.constraint_names[j]!r}: actions "
        f"[{actions}] may cost at least {least:.6g} in the worst case, against a limit of "
        f"{problem.limits[j]:.6g}; {fix}"
    )


def exceeded(worst: np.ndarray, limits: np.ndarray, size: np.ndarray | float = 0.0) -> np.ndarray:
    """Where limits (J,) are exceeded by more than rounding, (C, J)."""
    finite = np.where(np.isfinite(size), size, 0.0)  # an unbounded cost in play is no rounding
    found: np.ndarray = worst > limits + TOLERANCE * np.abs(limits) + ROUNDING * finite
    return found


def check_feasible(worst: np.ndarray, limits: np.ndarray, size: np.ndarray | float = 0.0) -> None:
    """The last look before a policy leaves: its worst case (C, J) under today's bounds is at or
    under every limit.

    `size` (C, J) is the largest |U_a| in play: policies are known to a share of it
    (`selection.SLACK`), and to nothing absolute.
    """
    over = exceeded(worst, limits, size)
    if over.any():
        c, j = np.argwhere(over)[0]
        raise FloatingPointError(
            f"the policy's worst case {worst[c, j]:.6g} exceeds the limit {limits[j]:.6g}"
        )


def check_explorable(problem: Problem, x: np.ndarray, upper: np.ndarray, mask: np.ndarray) -> None:
    """With the limit at the safe value and nothing known, every round would play the safe action
    for ever: refuse. Where only some of the contexts are such, they play it, and others learn.
    """
    learned = ~problem.every_draw  # there no mixing is meant
    learned[[j for j, _ in problem.known]] = False
    stuck = (room_for_mixing(problem.limits, problem.safe_values(x)) <= 0) & learned  # (C, J)
    certified = (upper <= problem.limits[:, None]).all(axis=1) & mask
    certified[:, problem.safe_action] = False
    if np.all(stuck.any(axis=1) & ~certified.any(axis=1)):
        j = int(np.flatnonzero(stuck.any(axis=0))[0])
        raise InfeasibleError(
            f"the limit on {problem.constraint_names[j]!r} equals its value at the safe action "
            f"({problem.limits[j]:g}) and no "
            "other action is known to be under it, so nothing could ever be explored; raise "
            "at_most above the safe value, or "
            "pass logged data to observe() first"
        )


# ==================================================================================================
# What was declared of a problem, held against the parameters that the data still allow.
#
# A range, a safe value and bounds on parameters are hypotheses like the model itself. If the truth
# lies in the confidence set in all rounds, which has probability 1 - delta, then a declaration that
# holds for no parameter in the set is wrong: this may be looked at whenever one likes, and it
# spends no delta of its own. What is looked at is the set before the declared range cuts it
# (`Bounds.free_lower`, `free_upper`) and before the safe action is pinned to its declared value.
# Bounds that are not proved refute nothing: a search from inside the set may miss the parameter
# that meets the declaration.
#
# Blame goes, in this order, to the class (its set is empty, and nothing was declared that cut it),
# to a single declaration, and to several together where the set was cut by more than one.
#
# Axis letters: n contexts, K actions, J constraints.
# ==================================================================================================

NEGLIGIBLE = 1e-9  # share of the room between safe value and limit
OF_CONSTRAINTS = ("range", "safe_value")  # alarms about what was declared of one constraint
# named by a constraint too, but they doubt its outcome; all others are named by an outcome
BY_LIMIT = ("limit", "certified")
DECLARATIONS = (*OF_CONSTRAINTS, "bounds", "declared")
KINDS = (*DECLARATIONS, "empty")  # an empty set is the class's own fault


@dataclass(frozen=True)
class Refuted:
    """One finding: `name` is the alarm's, the kind and the constraint or outcome it is about."""

    name: str
    sentence: str


def refuted(
    problem: Problem, x: np.ndarray, bounds: Sequence[Bounds | None], *, watching: bool = True
) -> tuple[Refuted, ...]:
    """What the sets behind these bounds (J) at contexts x (n, dx) refute.

    Bounds that come from draws guarantee nothing, and have a set beside them only to hold
    declarations against. It is dearer than they are, so that it is left alone where nobody is
    watching.
    """
    found: dict[str, Refuted] = {}
    safe_values = problem.safe_values(x)
    for j, c in problem.learned:
        b, safe = bounds[j], safe_values[:, j]
        if b is None:
            continue
        if b.find_watched is not None and not watching:
            continue
        b = b.watched
        one = _empty(problem, c) if b.empty else None
        news = (
            [one]
            if one is not None
            else [_range(problem.names, c, b, x), _safe_value(problem, c, b, x, safe)]
        )
        found |= {r.name: r for r in news if r is not None}
    return tuple(found.values())


def doubts(problem: Problem, said: Mapping[str, str]) -> dict[str, str]:
    """Constraint -> why nothing is guaranteed of it, from alarms by name -> sentence.

    A declaration of one constraint (`OF_CONSTRAINTS`) concerns it alone; whatever else is doubted
    of an outcome concerns all limits that rest on it.
    """
    streams = {c.name: c.stream for _, c in problem.learned}
    out: dict[str, str] = {}
    for name, sentence in said.items():
        kind, _, about = name.partition(":")
        stream = streams.get(about) if kind in BY_LIMIT else about
        for c in problem.constraints:
            if (
                c.name == about
                if kind in OF_CONSTRAINTS
                else stream is not None and streams.get(c.name) == stream
            ):
                out.setdefault(c.name, sentence)
    return out


def _empty(problem: Problem, c: Constraint) -> Refuted:
    held = [
        f"the exact safe_value of {other.name!r}"
        for _, other in problem.learned
        if other.stream == c.stream and holds_parameters(other)
    ]
    sites = ", ".join(sorted(c.model.bounds))
    if not held and not sites:
        return Refuted(
            f"empty:{c.stream}",
            f"no parameter of the model of {c.stream!r} is left: the data exclude every one. The "
            "class does not hold the truth; "
            "fall back to the safe action and revise the model",
        )
    if not held:
        return Refuted(
            f"bounds:{c.stream}",
            f"the bounds declared on the parameters ({sites}) of the model of {c.stream!r} are "
            "refuted: the data leave no "
            "parameter inside them. Declare wider bounds, or, if none would do, revise the model",
        )
    blamed = ", ".join([*held, *([f"the bounds on {sites}"] if sites else [])])
    return Refuted(
        f"declared:{c.stream}",
        f"what was declared of {c.stream!r} is refuted together with its model: no parameter meets "
        f"{blamed} and the data. "
        "Declare less: drop safe_value_exact, widen the bounds, or revise the model",
    )


def _watched(b: Bounds) -> bool:
    return b.guaranteed and b.free_lower is not None and b.free_upper is not None


def _range(names: Names, c: Constraint, b: Bounds, x: np.ndarray) -> Refuted | None:
    """Refuted if all values that the set allows some action lie on one side of the declared
    range.
    """
    f = c.functional
    if (
        b.free_lower is None
        or b.free_upper is None
        or not (np.count_nonzero(b.free_lower > f.high) or np.count_nonzero(b.free_upper < f.low))
    ):  # nearly always
        return None
    over, under = beyond_range(b, f)
    gap = np.maximum(over, under)
    if not gap.max() > -np.inf:
        return None
    i, a = np.unravel_index(int(gap.argmax()), gap.shape)
    above = over[i, a] >= under[i, a]
    value, end = (b.free_lower[i, a], "high") if above else (b.free_upper[i, a], "low")
    return Refuted(
        f"range:{c.name}",
        f"the range [{f.low:g}, {f.high:g}] declared for the {f.name} of {c.name!r} is refuted: at "
        f"context {_shown(x[i])} the "
        f"data leave action {names.label(int(a))} no value but {'above' if above else 'below'} "
        f"{value:.6g}. Declare {end}= so "
        f"that it bounds the {f.name} of every action at every context",
    )


def _safe_value(
    problem: Problem, c: Constraint, b: Bounds, x: np.ndarray, safe: np.ndarray
) -> Refuted | None:
    """An upper bound c0 is refuted from above only, an exact value from both sides; where the
    model learns the safe action.
    """
    if not _watched(b) or not problem.learn_safe:
        return None
    assert b.free_lower is not None
    assert b.free_upper is not None
    assert problem.safe_action is not None
    label = problem.names.label(problem.safe_action)
    lower, upper = b.free_lower[:, problem.safe_action], b.free_upper[:, problem.safe_action]
    if not (np.count_nonzero(lower > safe) or np.count_nonzero(upper < safe)):  # nearly always
        return None
    over = np.where(np.isfinite(lower), lower - safe, -np.inf)
    under = np.where(np.isfinite(upper) & c.safe_value_exact, safe - upper, -np.inf)
    gap = np.maximum(over, under)
    i = int(gap.argmax())
    reached = lower[i] if over[i] >= under[i] else upper[i]
    # limits are kept to a share of the room that the safe value leaves, so what exceeds it by less
    # breaks nothing: a chance of 1e-150 is no evidence against one of 0
    slack = max(
        REFUTED_BEYOND * max(abs(float(safe[i])), abs(float(reached))),
        NEGLIGIBLE * (c.at_most - float(safe[i])),
    )
    if not gap[i] > slack:
        return None
    above = over[i] >= under[i]
    remedy = (
        "a value that is not exceeded" if above else "the value itself, or drop safe_value_exact"
    )
    return Refuted(
        f"safe_value:{c.name}",
        f"safe_value={safe[i]:g} of {c.name!r} is refuted: at context {_shown(x[i])} the data "
        "leave the safe action "
        f"{label} no {c.functional.name} but {'above' if above else 'below'} {reached:.6g}. "
        f"Declare {remedy}, or name another safe action",
    )


def _shown(x: np.ndarray) -> str:
    return np.array2string(x, precision=4, threshold=8, separator=", ")


# exact safe values --------------------------------------------------------------------------------


def known_directions(problem: Problem, x: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The paper's T(g_{x,a0}) = c_0 as linear equations: stream -> (features (m, D), values (m,)),
    for a first context x (1, dx).

    The safe value is exact at every context if it is declared so, hence at this one: whether the
    safe action's features change with x need not be known. Where they do not, this is all there is
    to know; where they do, it is one valid equation.
    """
    known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for j, c in problem.learned:
        if not holds_parameters(c):
            continue
        action = np.array([problem.safe_action])
        predictor = served(c.model).predictor  # in the coordinates that its learner has
        features = np.asarray(predictor.features(x, action), float)
        value = problem.safe_values(x)[:, j] - np.asarray(predictor.offset(x, action), float)
        before = known.get(c.stream, (np.zeros((0, features.shape[1])), np.zeros(0)))
        if (
            not np.abs(features).max() > 0
            and np.abs(value).max() > 1e-9 * np.abs(problem.safe_values(x)[:, j]).max()
        ):
            raise ProblemError(
                f"safe_value of constraint {c.name!r} is declared exact, but whatever its "
                "parameters the model gives the safe "
                f"action {problem.safe_values(x)[0, j] - value[0]:g}, not "
                f"{problem.safe_values(x)[0, j]:g}; mend the model or "
                "drop safe_value_exact"
            )
        known[c.stream] = np.concatenate([before[0], features]), np.append(before[1], value)
    return known


def exactness_notes(state: State) -> list[str]:
    """Where an exact safe value was declared: that it is believed, or why it was not used."""
    notes = []
    for _, c in state.problem.learned:
        if c.safe_value_exact:
            space = getattr(state.learners[c.stream], "space", None)
            if holds_parameters(c) and space is not None and space.known:
                notes.append(
                    f"the safe action's value of {c.name!r} is believed exact, as "
                    "declared: parameters are held to it"
                )
            else:
                notes.append(
                    f"safe_value_exact of {c.name!r} was not used: only the mean of a "
                    "linear-Gaussian class with its closed-form "
                    "set can be held to it"
                )
    return notes


def holds_parameters(c: Constraint) -> bool:
    """Whether an exact safe value is one linear equation in the parameters."""
    if not c.safe_value_exact or not is_mean(c.functional):
        return False
    predictor = c.model.predictor
    return predictor is not None and predictor.family == "Normal" and predictor.link == "identity"
