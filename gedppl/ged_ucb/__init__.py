"""GED-UCB: `init`, `select`, `update`. Pure: the same state and context give the same policy.

To be read beside Algorithm 1 of Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision
Making: A Unified Framework":

    paper                      here
    f^ (utility density)       state.learners["utility"], a fit for every snapshot
    g^ (constraint density)    state.learners[name]
    C~_G(t, delta)             the learner's confidence set
    V~ (upper constraint)      cost_upper
    tau, c_0, r_0              limits, safe value, safe utility
    alpha_r                    the weight of the width of the cost bounds
    beta_t                     bonus_weights
    pi~_{t,i}                  the counterfactual policy of round i at today's context

One round. Today's policy maximises a score, subject to  sum_a pi_a cost_upper_a <= tau  (or, for a
limit on every draw, cost_upper_a <= tau wherever pi_a > 0). Where costs are affine in the
parameters and the set an ellipsoid, the worst case of a policy is known in one piece, and is less:
sup_theta sum_a pi_a cost_a(theta) <= tau lets more policies in (`selection.solvers.Together`; not
for past rounds, so not with "counterfactual"). There are three scores:

    exploration="sets"
        utility + rho (utility_upper - utility) + w alpha (cost_upper - cost_lower), see `today`
    exploration="counterfactual"
        the paper's: utility + beta_t E[1 / (N + 1)] + alpha_r (cost_upper - cost_lower)

    exploration="thompson"         utility under one draw of its parameters

For the second every past round i is replayed at today's context: its snapshot of the models gives
utilities, cost bounds and widths, and its policy; N counts how often these policies would have
revealed the action. Feasibility rests on the cost sets alone: the weights steer exploration and
never touch it. Where a limit is credible, the policy found is held against the draws once more
(`kept_on_draws`).

Axis letters: C contexts asked together, B blocks of rounds, K actions, J constraints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gedppl import counterfactual
from gedppl.errors import InfeasibleError
from gedppl.ged_ucb.costs import (
    Replayed,
    check_bounds,
    check_explorable,
    check_feasible,
    cost_bounds,
    drawable_today,
    exactness_notes,
    exceeded,
    known_directions,
    replay,
    room_for_mixing,
    tight_notes,
    todays_costs,
    weighted_width,
)
from gedppl.ged_ucb.settings import (
    Block,
    Info,
    Settings,
    State,
    bonus_weights,
    delta_shares,
    exploration,
    warmup_rounds,
)
from gedppl.learning import Where, learner_for
from gedppl.learning.drawn import DrawnLearner
from gedppl.learning.learner import Bounds, Guess
from gedppl.numerics.arrays import evolved
from gedppl.numerics.streams import first_uniforms
from gedppl.problem import UTILITY, Problem
from gedppl.problem.checks import check_programs
from gedppl.selection import eagerness, policy_cost, select_policies
from gedppl.selection.solvers import Together, gained_together

# ==================================================================================================
# Optimism from the utility's own set: today's scores and cost bounds, without a look at past
# rounds.
#
#     score_a = u_a + rho (u+_a - u_a) + w max_j alpha_j (U_{j,a} - L_{j,a}),
#     alpha_j = (max_a u+_a - max(r0, u-_{a0})) / (tau_j - c0_j)
#
# u is the estimated utility, u+ and u- the largest and smallest that the data still allow, U and L
# the cost bounds. With rho = w = 1 and the utility's set valid, the policy that maximises the score
# under sum_a pi_a U_{j,a} <= tau_j is worth at least the best policy that keeps the limits: mix
# that one with the safe action until its worst case fits, and the third term pays for the mixing.
# That holds at every context by itself, and all the more where further policies are let in because
# the worst case of a whole policy is known: the largest score only grows, and what it exceeds the
# true utility by is still made of the widths of the actions in play. Smaller weights explore less
# and keep the limits all the same.
#
# Axis letters: C contexts asked together, K actions, J constraints.
# ==================================================================================================

OF_DRAWS = 1  # tells the random stream of parameters from that of actions


@dataclass(frozen=True)
class Today:
    """What a selection rests on."""

    estimate: np.ndarray  # (C, K) utility
    bonus: np.ndarray  # (C, K) rho (u+ - u), or for Thompson sampling rho (u(theta) - u)
    width: np.ndarray  # (C, K) w alpha (U - L)
    lower: np.ndarray  # (C, J, K)
    upper: np.ndarray  # (C, J, K)
    usable: np.ndarray  # (C, K) bool: on offer, allowed, and not barred by a limit on every draw
    bounds: tuple[Bounds | None, ...]  # J; None where the cost is known
    notes: tuple[str, ...]
    # J; costs of actions that share their worst case, the safe action's pinned: `Bounds.together`
    together: tuple[tuple[Together, ...], ...] = ()

    def only(self, c: int) -> Today:
        """The same for one context."""
        one = slice(c, c + 1)
        return replace(
            self,
            estimate=self.estimate[one],
            bonus=self.bonus[one],
            width=self.width[one],
            lower=self.lower[one],
            upper=self.upper[one],
            usable=self.usable[one],
            bounds=tuple(None if b is None else b.only(c) for b in self.bounds),
            together=tuple(tuple(form.only(one) for form in forms) for forms in self.together),
        )


def today(state: State, x: np.ndarray, allowed: np.ndarray) -> Today:
    """At contexts x (C, dx), with actions allowed (C, K)."""
    problem, chosen = state.problem, state.settings
    lower, upper, bounds = todays_costs(state, x)
    usable = drawable_today(problem, upper, allowed & state.blocks[-1].available)
    utility = _utility(state, x)
    check_bounds(lower, upper, utility.estimate)
    width, notes = np.zeros_like(utility.estimate), []
    if problem.constraints and problem.safe_action is not None:
        room = room_for_mixing(problem.limits, problem.safe_values(x))
        least = np.maximum(problem.safe_utilities(x), utility.lower[:, problem.safe_action])
        width, tight = weighted_width(
            lower, upper, room, np.maximum(utility.upper.max(axis=1) - least, 0.0)
        )
        notes = tight_notes(problem, tight)
    bonus = chosen.bonus_scale * (_hoped_for(state, x, utility) - utility.estimate)
    said = (*notes, *exactness_notes(state))
    return Today(
        utility.estimate,
        bonus,
        chosen.width_scale * width,
        lower,
        upper,
        usable,
        tuple(bounds),
        said,
        tuple(_together(problem, j, b, upper[:, j]) for j, b in enumerate(bounds)),
    )


def _together(
    problem: Problem, j: int, found: Bounds | None, upper: np.ndarray
) -> tuple[Together, ...]:
    """What the j-th limit's actions may cost under one parameter, for upper (C, K) with the safe
    action pinned. A limit on every draw is about single actions.
    """
    safe = problem.safe_action
    if found is None or problem.every_draw[j]:
        return ()
    if safe is None:
        return found.together
    return tuple(form.pinned(safe, upper[:, safe]) for form in found.together)


def _hoped_for(state: State, x: np.ndarray, utility: Guess) -> np.ndarray:
    """The utility (C, K) that today's score leans to: the largest that the data allow, or that
    of one draw for each context.
    """
    problem, chosen = state.problem, state.settings
    if chosen.exploration == "sets":
        return utility.upper
    learner = state.learners[UTILITY]
    assert isinstance(learner, DrawnLearner)
    # one stream for every decision: what is drawn does not depend on what else was asked
    uniforms = first_uniforms(chosen.seed, state.t + np.arange(len(x)), OF_DRAWS)
    drawn = learner.one_draw(problem.utility.functional, x, problem.n_actions, uniforms)
    if not problem.learn_safe and problem.safe_action is not None:
        drawn[:, problem.safe_action] = utility.estimate[:, problem.safe_action]
    return drawn


def _utility(state: State, x: np.ndarray) -> Guess:
    """Estimate and range of the utility. No limit rests on it: unless a theorem needs the set
    itself, a cheap range will do.
    """
    problem = state.problem
    learner, functional = state.learners[UTILITY], problem.utility.functional
    if state.settings.mode == "theory":
        found = learner.bounds(functional, x, problem.n_actions)
        return Guess(found.estimate, found.lower, found.upper)
    guess = learner.guess(functional, x, problem.n_actions)
    if problem.learn_safe or problem.safe_action is None:
        return guess
    # What is never learned would stay as wide as before the first round, and its optimism would
    # hold the policy there.
    a0, known = problem.safe_action, problem.safe_utilities(x)
    estimate, low, high = (part.copy() for part in (guess.estimate, guess.lower, guess.upper))
    if problem.safe_utility is not None:
        estimate[:, a0] = known
    low[:, a0] = high[:, a0] = estimate[:, a0]
    return Guess(estimate, low, high)


# ==================================================================================================
# What each limit says of a policy as a whole, and policies mixed back until a credible limit holds
# for the mixture itself.
#
# Upper values of single actions bound the average of a set's worst cases, but not the quantile of a
# mixture's cost over draws: of two actions with quantiles U_1 and U_2 at level 1 - eps, a mixture
# may exceed pi_1 U_1 + pi_2 U_2 with probability above eps. So the policy that came out of the
# selection is held against the draws, and mixed with the safe action until it keeps the limit.
#
# Axis letters: S draws, C contexts asked together, K actions, J constraints.
# ==================================================================================================

HALVINGS = 40


def limit_costs(problem: Problem, seen: Today, policy: np.ndarray) -> np.ndarray:
    """(C, J) for policies (C, K): worst case of the average, or of any action in play, or the
    quantile of the cost over draws.
    """
    cost = policy_cost(policy, seen.upper, problem.every_draw)
    for j, forms in enumerate(seen.together):
        for form in forms:
            cost[:, j] = np.minimum(cost[:, j], form.worst(policy))
    for j, found in enumerate(seen.bounds):
        drawn = None if found is None else found.drawn
        if drawn is None or drawn.level > 1 or problem.every_draw[j]:
            continue
        values = drawn.values.copy()
        # known, not drawn
        values[:, :, problem.safe_action] = seen.upper[:, j, problem.safe_action]
        cost[:, j] = drawn.quantile(np.einsum("ck,sck->sc", policy, values))
    return cost


def kept_on_draws(problem: Problem, seen: Today, policy: np.ndarray) -> np.ndarray:
    """Policies (C, K), each mixed with as little of the safe action (or of another that keeps
    all limits) as will do.
    """
    if all(found is None or found.drawn is None for found in seen.bounds):
        return policy
    over = exceeded(limit_costs(problem, seen, policy), problem.limits).any(axis=1)
    policy = policy.copy()
    for c in np.flatnonzero(over):
        policy[c] = _mixed_back(problem, seen.only(int(c)), policy[c])
    return policy


def _mixed_back(problem: Problem, seen: Today, policy: np.ndarray) -> np.ndarray:
    """For one context: policy (K,). Halving keeps a share that is known to do, so rounding is on
    the safe side.
    """

    def breaks(trial: np.ndarray) -> bool:
        return bool(exceeded(limit_costs(problem, seen, trial[None]), problem.limits).any())

    K = problem.n_actions
    excess = np.where(seen.usable[0], (seen.upper[0] - problem.limits[:, None]).max(axis=0), np.inf)
    safe = problem.safe_action
    anchor = np.eye(K)[safe if safe is not None and seen.usable[0, safe] else int(excess.argmin())]
    if breaks(anchor):
        raise InfeasibleError(
            "no mixture of the actions allowed here keeps every limit with the posterior "
            "probability asked for: allow the safe "
            f"action {safe} too, or ask for a lower level in credible_set()"
        )
    too_little, enough = 0.0, 1.0
    for _ in range(HALVINGS):
        share = (too_little + enough) / 2
        if breaks((1 - share) * policy + share * anchor):
            too_little = share
        else:
            enough = share
    found: np.ndarray = (1 - enough) * policy + enough * anchor
    return found


__all__ = [
    "Block",
    "Info",
    "State",
    "advance",
    "bonus_weights",
    "change",
    "cost_bounds",
    "delta_shares",
    "init",
    "next_refit",
    "refit",
    "select",
    "update",
]

ENGINES = {"sets": "optimism from the sets", "thompson": "a draw of the utility's parameters"}


def init(problem: Problem, chosen: Settings, x: np.ndarray) -> State:
    """The state before the first round. x (n, dx): any contexts of the right width, to trace the
    models with.
    """
    rows = np.asarray(x, float)
    problem.trace(rows)
    check_programs(problem, rows)
    chosen.check(problem.streams, problem.n_actions)
    shares, known = delta_shares(problem, chosen), known_directions(problem, rows[:1])
    every = tuple(range(problem.n_actions))
    others = tuple(a for a in every if a != problem.safe_action)  # whose costs are not pinned
    learners = {
        name: learner_for(
            model,
            delta=shares[name],
            confidence=chosen.confidence_of(name),
            oracle=chosen.oracle_of(name),
            seed=chosen.seed,
            known_direction=known.get(name),
            where=Where(rows[:1], problem.n_actions, every if name == UTILITY else others),
            keep_past=chosen.exploration == "counterfactual",
        )
        for name, model in problem.streams.items()
    }
    lipschitz = problem.utility.model.visit(
        lambda members: problem.utility.functional.lipschitz(
            "hellinger", members.density(0, rows[:1], np.zeros(1, np.int64))
        ),
        lambda cls: None,
    )
    state = State(
        problem,
        chosen,
        learners,
        t=0,
        told=0,
        refit_at=1,
        blocks=(),
        lipschitz=lipschitz,
        played=np.zeros(problem.n_actions),
        warmup=warmup_rounds(chosen.warmup, problem.n_actions),
    )
    return _open_block(state, np.ones(problem.n_actions, bool))


def select(
    state: State, x: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, Info]:
    """Today's policies (C, K) at contexts x (C, dx), decided together, and what they rest on."""
    problem, chosen, K = state.problem, state.settings, state.problem.n_actions
    mask = np.ones((len(x), K), bool) if allowed is None else np.asarray(allowed, bool)
    warmup = state.warmup
    problem.check_contexts(x)
    choose = _by_counterfactuals if chosen.exploration == "counterfactual" else _by_score
    policy, seen, engine = choose(state, x, mask, warmup)
    if state.t < warmup:
        action = state.t if chosen.warmup == "paper" else problem.safe_action
        policy, engine = np.eye(K)[np.full(len(x), action)], f"warm-up ({chosen.warmup})"
    else:
        policy = kept_on_draws(problem, seen, policy)
    worst = limit_costs(problem, seen, policy)
    if state.t >= warmup and np.count_nonzero(worst > problem.limits):
        in_play = np.where(policy[:, None] > 0, np.abs(seen.upper), 0.0).max(axis=2)
        check_feasible(worst, problem.limits, in_play)
    if len(problem.constraints) and state.told == 0 and problem.safe_action is not None:
        check_explorable(problem, x, seen.upper, mask)
    info = Info(
        utility=seen.estimate,
        bonus=seen.bonus,
        width=seen.width,
        cost_lower=seen.lower,
        cost_upper=seen.upper,
        limits=problem.limits,
        bounds=seen.bounds,
        worst=worst,
        engine=engine,
        notes=seen.notes,
        unlimited=state.t < warmup and chosen.warmup == "paper",
    )
    return policy, info


def _by_score(
    state: State, x: np.ndarray, mask: np.ndarray, warmup: int
) -> tuple[np.ndarray, Today, str]:
    """Policies (C, K) of highest score, without a look at past rounds."""
    problem = state.problem
    seen = today(state, x, mask)
    played = state.played - eagerness(problem.reveals, state.t, problem.n_actions)
    score = seen.estimate + seen.bonus + seen.width
    policy = select_policies(
        score, seen.upper, problem.limits, seen.usable, played, problem.safe_action
    )
    if len(seen.together) == 1:  # with several limits, action by action
        for form in seen.together[0]:
            limit = float(problem.limits[0])
            policy = gained_together(policy, score, form, limit, seen.usable, played)
    return policy, seen, ENGINES[state.settings.exploration]


def _by_counterfactuals(
    state: State, x: np.ndarray, mask: np.ndarray, warmup: int
) -> tuple[np.ndarray, Today, str]:
    """Algorithm 1's inner loop over i: today's policies (C, K) after every past round was
    replayed.
    """
    exact = state.t - warmup <= state.settings.exact_rounds
    seen = replay(state, x, mask, one_by_one=exact)
    policy, inverse = np.zeros(seen.estimate[:, -1].shape), np.ones(seen.estimate[:, -1].shape)
    if state.t >= warmup:
        policy, inverse = _counterfactual(state, seen, warmup, exact)
    beta = bonus_weights(state, np.array([state.t]), seen.exploration[-1:])[0]
    now = Today(
        seen.estimate[:, -1],
        beta * inverse,
        seen.width[:, -1],
        seen.lower[:, -1],
        seen.upper[:, -1],
        seen.available[:, -1],
        seen.bounds,
        seen.notes,
    )
    return policy, now, "every past round replayed" if exact else "past rounds replayed in blocks"


def _counterfactual(
    state: State, seen: Replayed, warmup: int, exact: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Today's policies (C, K) and E[1/(N+1)] (C, K)."""
    # the block in force when the warm-up ended
    first = np.searchsorted(seen.starts, warmup, side="right") - 1
    rounds = np.arange(warmup, state.t + 1)
    beta = bonus_weights(
        state, rounds, seen.exploration[np.searchsorted(seen.starts, rounds, side="right") - 1]
    )
    score = (seen.estimate + seen.width)[:, first:]
    history = (
        seen.limits[first:],
        beta,
        np.maximum(seen.starts[first:] - warmup, 0),
        state.t - warmup,
    )
    options: dict[str, Any] = {
        "available": seen.available[:, first:],
        "reveals": state.problem.reveals,
        "safe_action": state.problem.safe_action,
    }
    run = counterfactual.exact_pass if exact else counterfactual.block_pass
    result = run(score, seen.upper[:, first:], *history, **options)
    return result.policy, result.inverse_count


def update(
    state: State, rows: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], rounds: int
) -> State:
    """Take in the outcomes of `rounds` rounds, told together: stream -> (x (m, dx), a (m,), y
    (m,)). Refit when due.
    """
    learners = dict(state.learners)
    for stream, (x, a, y) in rows.items():
        if len(a):
            learners[stream] = learners[stream].absorb(x, a, y)
    played = state.played.copy()
    if UTILITY in rows:
        np.add.at(played, rows[UTILITY][1], 1.0)
    state = evolved(state, learners=learners, told=state.told + rounds, played=played)
    return refit(state) if state.told >= state.refit_at else state


def refit(state: State) -> State:
    """Fit every model to all rows and open a block under the new snapshot."""
    learners = {name: learner.refit() for name, learner in state.learners.items()}
    due = next_refit(state.settings, state.told)
    state = evolved(state, learners=learners, refit_at=due)
    return _open_block(state, state.blocks[-1].available)


def next_refit(chosen: Settings, told: int) -> int:
    """The rounds told after which the next fit is due."""
    return max(told + 1, math.floor(chosen.growth * told))


def advance(state: State, rounds: int) -> State:
    """Count rounds as decided."""
    return evolved(state, t=state.t + rounds)


def change(state: State, problem: Problem, available: np.ndarray) -> State:
    """Go on with other limits, or with actions added or retired. Past rounds keep theirs."""
    grown = problem.n_actions - state.problem.n_actions
    if grown:
        blocks = tuple(
            evolved(b, available=np.append(b.available, np.zeros(grown, bool)))
            for b in state.blocks
        )
        state = evolved(state, blocks=blocks, played=np.append(state.played, np.zeros(grown)))
    return _open_block(evolved(state, problem=problem), np.asarray(available, bool))


def _open_block(state: State, available: np.ndarray) -> State:
    learner, replayed = state.learners[UTILITY], state.settings.exploration == "counterfactual"
    block = Block(
        start=state.t,
        snapshot=len(learner.snapshot_sizes) - 1,
        exploration=exploration(state) if replayed else 0.0,
        limits=state.problem.limits,
        available=available,
    )
    kept = (
        state.blocks if not state.blocks or state.blocks[-1].start < state.t else state.blocks[:-1]
    )
    # past rounds are not replayed: only other limits are remembered
    if not replayed and state.blocks:
        last = state.blocks[-1]
        if np.array_equal(last.limits, block.limits) and np.array_equal(last.available, available):
            kept, block = state.blocks[:-1], evolved(block, start=last.start)
    return evolved(state, blocks=(*kept, block))


# outcome name -> () or event-shaped value, or (K,) with NaN where nothing was revealed
Outcomes = dict[str, np.ndarray]
RowsByStream = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]  # x (m, dx), a (m,), y (m,)


@dataclass(frozen=True)
class Entry:
    """Outcomes of one decision that the models have not seen yet."""

    id: int
    x: np.ndarray  # (dx,)
    action: int
    outcomes: Outcomes
    first: bool  # whether these are the first outcomes of this decision


def rows_of_one(
    problem: Problem,
    name: str,
    x: np.ndarray,
    action: int,
    value: np.ndarray,
    *,
    every: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows (x, a, y) that one outcome adds to a model: one, unless those revealed together are
    declared independent.

    Which one must not depend on the outcomes, so it is settled by the action. `every`: all that
    were told, to be checked.
    """
    event_shape = problem.streams[name].event_shape
    if value.shape == event_shape:
        actions, y = np.array([action]), value[None]
    else:
        told = ~np.isnan(value)
        if not (every or problem.independent):
            told &= np.arange(len(value)) == problem.learned_of(action)
        actions = np.flatnonzero(told)
        y = value[actions]
    if not problem.learn_safe:
        keep = actions != problem.safe_action
        actions, y = actions[keep], y[keep]
    return x[None] if len(actions) == 1 else np.repeat(x[None], len(actions), axis=0), actions, y


def rows_by_stream(problem: Problem, entries: Iterable[Entry]) -> RowsByStream:
    """Rows for every model: stream -> (x (m, dx), a (m,), y (m,)), in the order of decision ids."""
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    for entry in sorted(entries, key=lambda e: e.id):
        for name, value in entry.outcomes.items():
            rows = rows_of_one(problem, name, entry.x, entry.action, value)
            if len(rows[1]):
                parts.setdefault(name, []).append(rows)
    return {
        name: rows[0]
        if len(rows) == 1
        else (
            np.concatenate([r[0] for r in rows]),
            np.concatenate([r[1] for r in rows]),
            np.concatenate([r[2] for r in rows]),
        )
        for name, rows in parts.items()
    }
