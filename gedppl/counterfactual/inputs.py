"""The checked arguments of a counterfactual pass, and the same history in fewer blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gedppl.counterfactual.inverse_counts import check_pulls
from gedppl.errors import InfeasibleError, NotFiniteError, ShapeError
from gedppl.selection import check_action, eagerness, why_infeasible

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Inputs:
    """Checked arguments of a pass: C contexts, B snapshots, J constraints, K actions."""

    base: np.ndarray  # (C, B, K)
    cost: np.ndarray  # (C, B, J, K)
    limit: np.ndarray  # (B, J)
    bonus: np.ndarray  # (t + 1,)
    start: np.ndarray  # (B,)
    stop: np.ndarray  # (B,) one past the last past round
    available: np.ndarray  # (C, B, K)
    reveals: np.ndarray  # (K, K)
    pulls: int
    safe_action: int | None
    eager: np.ndarray  # (K,) taken off the counts that break ties, see `eagerness`

    def only(self, c: int) -> Inputs:
        """The same for one context."""
        some = slice(c, c + 1)
        return replace(
            self, base=self.base[some], cost=self.cost[some], available=self.available[some]
        )

    def refuse_today(self, c: int) -> InfeasibleError:
        return InfeasibleError(
            why_infeasible(self.cost[c, -1], self.limit[-1], self.available[c, -1])
        )

    def stand_in(self, c: int, b: int) -> np.ndarray:
        """(K,): what a past round played at a context where no policy kept its limits."""
        if self.safe_action is None:
            why = why_infeasible(self.cost[c, b], self.limit[b], self.available[c, b])
            raise InfeasibleError(f"snapshot {b}: {why}; or name a `safe_action` to stand in")
        found: np.ndarray = np.eye(self.base.shape[2])[self.safe_action]
        return found


def merged(given: Inputs, share: float) -> tuple[Inputs, list[int]]:
    """The same history in fewer blocks: neighbours with the same limits and actions, together at
    most `share` of the rounds, become one under the newest snapshot among them. Also which
    snapshots these are.

    Refits are dense early on, and those blocks hold few rounds. A group changes the counts by at
    most its own rounds, so what is lost is bounded; what is won is that the number of blocks does
    not grow with t: about 1/share for the early part, and as many refits as the rounds since take
    to grow by a factor of share / (growth - 1).
    """
    most = max(1.0, share * (len(given.bonus) - 1))
    changed = (given.limit[1:] != given.limit[:-1]).any(axis=1)
    changed |= (given.available[:, 1:] != given.available[:, :-1]).any(axis=(0, 2))
    begin, end = given.start.tolist(), given.stop.tolist()
    first, last = [0], [0]  # the oldest and the newest snapshot of each group
    for b, other in enumerate(changed.tolist(), start=1):
        if other or end[b] - begin[first[-1]] > most:
            first.append(b)
            last.append(b)
        else:
            last[-1] = b
    fewer = replace(
        given,
        base=given.base[:, last],
        cost=given.cost[:, last],
        limit=given.limit[last],
        start=given.start[first],
        stop=given.stop[last],
        available=given.available[:, last],
    )
    return fewer, last


def checked(
    base_score: ArrayLike,
    cost_upper: ArrayLike,
    at_most: ArrayLike,
    bonus_weight: ArrayLike,
    block_start: ArrayLike,
    t: int,
    available: ArrayLike | None,
    reveals: ArrayLike | None,
    pulls: int,
    safe_action: int | None,
) -> Inputs:
    base, cost, limit = (
        np.asarray(base_score, float),
        np.asarray(cost_upper, float),
        np.asarray(at_most, float),
    )
    if base.ndim != 3 or 0 in base.shape:
        raise ShapeError(
            f"`base_score` must have shape (C, B, K), none of them 0, got {base.shape}"
        )
    n_contexts, n_snapshots, n_actions = base.shape
    if cost.ndim != 4 or cost.shape != (n_contexts, n_snapshots, cost.shape[2], n_actions):
        raise ShapeError(
            f"`cost_upper` must have shape ({n_contexts}, {n_snapshots}, J, "
            f"{n_actions}), got {cost.shape}"
        )
    if limit.shape != (n_snapshots, cost.shape[2]):
        raise ShapeError(
            f"`at_most` must have shape (B, J) = ({n_snapshots}, {cost.shape[2]}), "
            f"got {limit.shape}"
        )
    bonus, start = np.asarray(bonus_weight, float), np.asarray(block_start)
    if t < 0 or bonus.ndim != 1 or len(bonus) not in (t, t + 1) or len(bonus) == 0:
        raise ShapeError(
            f"`bonus_weight` must have length t + 1 = {t + 1} (or t), got shape {bonus.shape}"
        )
    bonus = bonus if len(bonus) == t + 1 else np.append(bonus, bonus[-1])
    if not np.isfinite(base).all() or not np.isfinite(bonus).all() or (bonus < 0).any():
        raise NotFiniteError(
            "`base_score` must be finite and `bonus_weight` finite and not negative"
        )
    if (
        np.isnan(cost).any()
        or (cost == -np.inf).any()
        or np.isnan(limit).any()
        or (limit == -np.inf).any()
    ):
        raise NotFiniteError("`cost_upper` and `at_most` must be finite or +inf")
    if (
        start.shape != (n_snapshots,)
        or start[0] != 0
        or (np.diff(start) < 0).any()
        or start[-1] > t
    ):
        raise ShapeError(
            f"`block_start` must be {n_snapshots} increasing rounds from 0 to at most "
            f"t = {t}, got {start}"
        )
    if available is None:
        can = np.ones(base.shape, bool)
    else:
        can = np.asarray(available)
        if can.shape != base.shape or can.dtype != bool:
            raise ShapeError(
                f"`available` must be booleans of shape {base.shape}, got {can.dtype} "
                f"of shape {can.shape}"
            )
    shown = np.eye(n_actions) if reveals is None else np.asarray(reveals, float)
    if shown.shape != (n_actions, n_actions) or not np.isin(shown, (0.0, 1.0)).all():
        raise ShapeError(
            f"`reveals` must be booleans of shape ({n_actions}, {n_actions}), got "
            f"shape {shown.shape}"
        )
    check_pulls(pulls)
    check_action(safe_action, n_actions)
    start = start.astype(int)
    stop, eager = np.append(start[1:], t), eagerness(shown, t, n_actions)
    return Inputs(base, cost, limit, bonus, start, stop, can, shown, pulls, safe_action, eager)
