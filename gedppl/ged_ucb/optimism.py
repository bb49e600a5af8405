"""Optimism from the utility's own set: today's scores and cost bounds, without a look at past rounds.

    score_a = u_a + rho (u+_a - u_a) + w max_j alpha_j (U_{j,a} - L_{j,a}),
    alpha_j = (max_a u+_a - max(r0, u-_{a0})) / (tau_j - c0_j)

u is the estimated utility, u+ and u- the largest and smallest that the data still allow, U and L the cost bounds. With
rho = w = 1 and the utility's set valid, the policy that maximises the score under sum_a pi_a U_{j,a} <= tau_j is worth at least
the best policy that keeps the limits: mix that one with the safe action until its worst case fits, and the third term pays for
the mixing. That holds at every context by itself. Smaller weights explore less and keep the limits all the same.

Axis letters: C contexts asked together, K actions, J constraints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gedppl.ged_ucb.costs import check_bounds, drawable_today, room_for_mixing, tight_notes, todays_costs, weighted_width
from gedppl.ged_ucb.declared import exactness_notes
from gedppl.ged_ucb.state import State
from gedppl.learning.drawn import DrawnLearner
from gedppl.learning.learner import Bounds, Guess
from gedppl.problem import UTILITY

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

    def only(self, c: int) -> Today:
        """The same for one context."""
        one = slice(c, c + 1)
        arrays = {f: getattr(self, f)[one] for f in ("estimate", "bonus", "width", "lower", "upper", "usable")}
        return replace(self, **arrays, bounds=tuple(None if b is None else b.only(c) for b in self.bounds))


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
        width, tight = weighted_width(lower, upper, room, np.maximum(utility.upper.max(axis=1) - least, 0.0))
        notes = tight_notes(problem, tight)
    bonus = chosen.bonus_scale * (_hoped_for(state, x, utility) - utility.estimate)
    said = (*notes, *exactness_notes(state))
    return Today(utility.estimate, bonus, chosen.width_scale * width, lower, upper, usable, tuple(bounds), said)


def _hoped_for(state: State, x: np.ndarray, utility: Guess) -> np.ndarray:
    """The utility (C, K) that today's score leans to: the largest that the data allow, or that of one draw for each context."""
    problem, chosen = state.problem, state.settings
    if chosen.exploration == "sets":
        return utility.upper
    learner = state.learners[UTILITY]
    assert isinstance(learner, DrawnLearner)
    # one stream for every decision: what is drawn does not depend on what else was asked
    uniforms = [np.random.default_rng([chosen.seed, state.t + c, OF_DRAWS]).random() for c in range(len(x))]
    drawn = learner.one_draw(problem.utility.functional, x, problem.n_actions, np.array(uniforms))
    if not problem.learn_safe and problem.safe_action is not None:
        drawn[:, problem.safe_action] = utility.estimate[:, problem.safe_action]
    return drawn


def _utility(state: State, x: np.ndarray) -> Guess:
    """Estimate and range of the utility. No limit rests on it: unless a theorem needs the set itself, a cheap range will do."""
    problem = state.problem
    learner, functional = state.learners[UTILITY], problem.utility.functional
    if state.settings.mode == "theory":
        found = learner.bounds(functional, x, problem.n_actions)
        return Guess(found.estimate, found.lower, found.upper)
    guess = learner.guess(functional, x, problem.n_actions)
    if problem.learn_safe or problem.safe_action is None:
        return guess
    # What is never learned would stay as wide as before the first round, and its optimism would hold the policy there.
    a0, known = problem.safe_action, problem.safe_utilities(x)
    estimate, low, high = (part.copy() for part in (guess.estimate, guess.lower, guess.upper))
    if problem.safe_utility is not None:
        estimate[:, a0] = known
    low[:, a0] = high[:, a0] = estimate[:, a0]
    return Guess(estimate, low, high)
