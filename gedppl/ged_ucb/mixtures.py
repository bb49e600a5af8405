"""What each limit says of a policy as a whole, and policies mixed back until a credible limit holds for the mixture itself.

Upper values of single actions bound the average of a set's worst cases, but not the quantile of a mixture's cost over draws: of
two actions with quantiles U_1 and U_2 at level 1 - eps, a mixture may exceed pi_1 U_1 + pi_2 U_2 with probability above eps. So
the policy that came out of the selection is held against the draws, and mixed with the safe action until it keeps the limit.

Axis letters: S draws, C contexts asked together, K actions, J constraints.
"""

from __future__ import annotations

import numpy as np

from gedppl.errors import InfeasibleError
from gedppl.ged_ucb.costs import exceeded
from gedppl.ged_ucb.optimism import Today
from gedppl.problem import Problem
from gedppl.selection import policy_cost

HALVINGS = 40


def limit_costs(problem: Problem, seen: Today, policy: np.ndarray) -> np.ndarray:
    """(C, J) for policies (C, K): worst case of the average, or of any action in play, or the quantile of the cost over draws."""
    cost = policy_cost(policy, seen.upper, problem.every_draw)
    for j, found in enumerate(seen.bounds):
        drawn = None if found is None else found.drawn
        if drawn is None or drawn.level > 1 or problem.every_draw[j]:
            continue
        values = drawn.values.copy()
        values[:, :, problem.safe_action] = seen.upper[:, j, problem.safe_action]  # known, not drawn
        cost[:, j] = drawn.quantile(np.einsum("ck,sck->sc", policy, values))
    return cost


def kept_on_draws(problem: Problem, seen: Today, policy: np.ndarray) -> np.ndarray:
    """Policies (C, K), each mixed with as little of the safe action (or of another that keeps all limits) as will do."""
    if all(found is None or found.drawn is None for found in seen.bounds):
        return policy
    over = exceeded(limit_costs(problem, seen, policy), problem.limits).any(axis=1)
    policy = policy.copy()
    for c in np.flatnonzero(over):
        policy[c] = _mixed_back(problem, seen.only(int(c)), policy[c])
    return policy


def _mixed_back(problem: Problem, seen: Today, policy: np.ndarray) -> np.ndarray:
    """For one context: policy (K,). Halving keeps a share that is known to do, so rounding is on the safe side."""

    def breaks(trial: np.ndarray) -> bool:
        return bool(exceeded(limit_costs(problem, seen, trial[None]), problem.limits).any())

    K = problem.n_actions
    excess = np.where(seen.usable[0], (seen.upper[0] - problem.limits[:, None]).max(axis=0), np.inf)
    safe = problem.safe_action
    anchor = np.eye(K)[safe if safe is not None and seen.usable[0, safe] else int(excess.argmin())]
    if breaks(anchor):
        raise InfeasibleError(
            "no mixture of the actions allowed here keeps every limit with the posterior probability asked for: allow the safe "
            f"action {safe} too, or ask for a lower level in credible_set()"
        )
    too_little, enough = 0.0, 1.0
    for _ in range(HALVINGS):
        share = (too_little + enough) / 2
        if breaks((1 - share) * policy + share * anchor):
            too_little = share
        else:
            enough = share
    return (1 - enough) * policy + enough * anchor
