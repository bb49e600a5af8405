"""Policies to hold a run against, at the very contexts it met: greedy, one action always, the
constrained oracle.

Axis letters: T rounds, K actions, J constraints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gedppl.errors import InfeasibleError, UnknownTruthError
from gedppl.selection import policy_cost, select_policy

if TYPE_CHECKING:
    from gedppl.study.simulation.runs import Run

TOLERANCE = 1e-9  # share of the numbers compared
FRONTIER_ROUNDS, FRONTIER_POINTS = 100, 15


@dataclass(frozen=True)
class Reference:
    """True averages of one policy over a run's contexts."""

    name: str
    utility: float
    costs: np.ndarray  # (J,)
    infeasible: float  # share of rounds above a limit


def references(run: Run) -> list[Reference]:
    """The run, its last quarter, the constrained oracle, greedy (best utility, limits ignored) and
    each action on its own.

    All know the truth but the run; all are averaged over the run's contexts.
    """
    if (
        not run.truth_known
        or not np.isfinite(run.utilities).all()
        or not np.isfinite(run.costs).all()
    ):
        raise UnknownTruthError(
            "comparing policies needs true utilities and costs, which this "
            "run's environment does not know"
        )
    utilities, costs, limit, each = run.utilities, run.costs, run.limit, run.problem.every_draw
    K, last = utilities.shape[1], slice(-max(1, len(run) // 4), None)
    oracle = np.nan_to_num(run.column("oracle"), nan=0.0)
    found = [
        _average("this run", run.policy, utilities, costs, limit, each),
        _average("last quarter", run.policy[last], utilities[last], costs[last], limit[last], each),
        _average("constrained oracle", oracle, utilities, costs, limit, each),
        _average("greedy", np.eye(K)[utilities.argmax(axis=1)], utilities, costs, limit, each),
    ]
    for k in range(K):
        name = f"always {run.action_names[k]}" + (" (safe)" if k == run.problem.safe_action else "")
        found.append(
            _average(name, np.tile(np.eye(K)[k], (len(run), 1)), utilities, costs, limit, each)
        )
    return found


def frontier(run: Run, j: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean cost j and mean utility of the constrained oracle as limit j moves, on evenly spaced
    rounds of the run.
    """
    take = np.unique(np.linspace(0, len(run) - 1, min(len(run), FRONTIER_ROUNDS)).astype(int))
    utilities, costs, limit = run.utilities[take], run.costs[take], run.limit[take]
    low, high = costs[:, j].min(axis=1).max(), costs[:, j].max()
    points = []
    safe, each = run.problem.safe_action, run.problem.every_draw
    for at_most in np.linspace(low, high, FRONTIER_POINTS):
        moved = limit.copy()
        moved[:, j] = at_most
        try:
            policies = np.stack(
                [
                    select_policy(u, c, m, safe_action=safe, every_draw=each)
                    for u, c, m in zip(utilities, costs, moved)
                ]
            )
        except InfeasibleError:  # the other limits leave no policy here
            continue
        points.append(
            ((policies * costs[:, j]).sum(axis=1).mean(), (policies * utilities).sum(axis=1).mean())
        )
    curve = np.array(points).reshape(-1, 2)
    return curve[:, 0], curve[:, 1]


def _average(
    name: str,
    policy: np.ndarray,
    utilities: np.ndarray,
    costs: np.ndarray,
    limit: np.ndarray,
    every_draw: np.ndarray,
) -> Reference:
    cost = policy_cost(policy, costs, every_draw)  # (T, J)
    size = np.maximum(np.abs(limit), np.where(np.isfinite(cost), np.abs(cost), 0.0))
    over = (cost > limit + TOLERANCE * size).any(axis=1)
    return Reference(
        name, float((policy * utilities).sum(axis=1).mean()), cost.mean(axis=0), float(over.mean())
    )
