"""Runs of one agent on one problem, and what is read off them: regret, rounds above a limit, when
the safe action is left, and whether a good action is starved.

Axis letters: T rounds, J constraints, K actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gedppl as ged

Agent = Callable[[ged.Problem, Any, int], Any]  # problem, world, seed
World = Callable[[int], Any]  # seed -> an environment with its `problem()`
SETTLED = 20  # rounds before which one lucky draw is no half


@dataclass(frozen=True)
class Played:
    """An entry for each seed."""

    regret: np.ndarray
    always_safe: np.ndarray  # regret of always playing safe
    infeasible: np.ndarray  # rounds whose policy exceeds a limit under the true costs
    starved: np.ndarray  # see `is_starved`
    half_off: np.ndarray  # the first round by which half of the decisions so far left the safe one
    seconds: np.ndarray  # of processor time

    @property
    def share(self) -> float:
        """Of what always playing safe loses."""
        return float(np.mean(self.regret / self.always_safe))

    @property
    def left_safe(self) -> float:
        """The median of `half_off`; inf if most runs never get there."""
        return float(np.median(self.half_off))

    def __str__(self) -> str:
        off = f"{self.left_safe:.0f}" if np.isfinite(self.left_safe) else "never"
        starved = f"{self.starved.sum():.0f}/{len(self.starved)}"
        return (
            f"{self.regret.mean():8.1f} of always safe {self.share:.3f} | infeasible "
            f"{self.infeasible.sum():4.0f} | starved {starved} | half off {off}"
        )


def played(world: World, rounds: int, seeds: Sequence[int], agent_for: Agent) -> Played:
    runs = [_one(world(seed), rounds, seed, agent_for) for seed in seeds]
    return Played(*(np.array(part, float) for part in zip(*runs)))


def _one(world: Any, rounds: int, seed: int, agent_for: Agent) -> tuple[float, ...]:
    problem = world.problem()
    agent = agent_for(problem, world, seed)
    begun = time.process_time()
    run = ged.simulate(problem, world, agent, rounds, seed)
    seconds = time.process_time() - begun
    limits, policy = problem.limits, run.policy
    utility = np.array([world.utilities(x) for x in run.x])
    costs = np.array([np.asarray(world.costs(x)).reshape(-1, problem.n_actions) for x in run.x])
    best = np.array([ged.select_policy(u, c, limits) for u, c in zip(utility, costs)])
    top = np.sum(best * utility, axis=1)
    over = np.einsum("tk,tjk->tj", policy, costs) > limits + 1e-9 * np.abs(limits)
    safe = 0 if problem.safe_action is None else problem.safe_action
    left = np.cumsum(run.action != safe) >= 0.5 * np.arange(1, rounds + 1)
    left &= np.arange(rounds) >= SETTLED
    return (
        float(np.sum(top - np.sum(policy * utility, axis=1))),
        float(np.sum(top - utility[:, safe])),
        int(over.any(1).sum()),
        is_starved(best, policy, run.cost_upper if len(limits) else None, limits),
        float(np.argmax(left) + 1) if left.any() else np.inf,
        seconds,
    )


def is_starved(
    best: np.ndarray, policy: np.ndarray, upper: np.ndarray | None, limits: np.ndarray
) -> bool:
    """Whether an action that the constrained oracle `best` (T, K) plays in more than a tenth of
    contexts got less than a hundredth of the plays of `policy` (T, K), although its worst case
    `upper` (T, J, K), where there is one, allowed it in more than a tenth of the last rounds.

    >>> half, never = np.array([[0.5, 0.5]] * 20), np.array([[1.0, 0.0]] * 20)
    >>> dear = np.array([[[0.1, 0.9]]] * 20)
    >>> limit = np.array([0.5])
    >>> is_starved(half, never, 0.5 * dear, limit), is_starved(half, never, dear, limit)
    (True, False)
    >>> is_starved(half, half, 0.5 * dear, limit)
    False
    """
    fits = np.ones(best.shape[1], bool)
    if upper is not None:
        last = upper[-max(1, len(upper) // 10) :]
        fits = np.mean(np.all(last <= limits[:, None], axis=1), axis=0) > 0.1
    return bool(np.any((best.mean(axis=0) > 0.1) & (policy.mean(axis=0) < 0.01) & fits))
