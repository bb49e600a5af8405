"""The counterfactual pass when costs are bounded for all actions together (`gedppl.selection.joint`).

The same recursion as in `gedppl.counterfactual`, with V_j(π) = mean_j'π + ‖factor_j'π‖ in place of Σ_a π_a cost_upper_{j,a}. A
block is filled under tangents of V: an outer picture that a few passes make precise enough to steer by. Today's policy is
refined until it keeps V itself, then drawn inside.

Axis letters: C contexts, B snapshots, J constraints, K actions, q directions of an ellipsoid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.counterfactual import HALF_STEP, MERGED_SHARE, TRACE, PassResult, block_pass
from gedppl.counterfactual.blocks import fill_blocks
from gedppl.counterfactual.inputs import Inputs, checked, merged
from gedppl.counterfactual.inverse_counts import InverseCounts
from gedppl.errors import InfeasibleError
from gedppl.selection.joint import JointRegion, joint_cost

TANGENTS = 6  # kept for each limit and block
PASSES = 4  # over all blocks; past rounds only steer
MOST_TURNS = 30  # over today's block alone
CLOSE = 1e-8  # how far above its limit, as a share of the costs' size, a policy may end before it is drawn inside


@dataclass(frozen=True)
class JointCosts:
    """mean (C, B, J, K) and factor (C, B, J, K, q) of V under every snapshot."""

    mean: np.ndarray
    factor: np.ndarray

    def today(self, policy: np.ndarray) -> np.ndarray:
        """V (C, J) of policies (C, K) under the newest snapshot."""
        return joint_cost(self.mean[:, -1], self.factor[:, -1], policy)

    def under(self, snapshots: Any) -> JointCosts:
        return JointCosts(self.mean[:, snapshots], self.factor[:, snapshots])

    def only(self, c: int) -> JointCosts:
        """The same for one context."""
        return JointCosts(self.mean[c : c + 1], self.factor[c : c + 1])


def joint_pass(
    base_score: Any,
    costs: JointCosts,
    at_most: Any,
    bonus_weight: Any,
    block_start: Any,
    t: int,
    *,
    available: Any = None,
    reveals: Any = None,
    safe_action: int | None = None,
    exact: bool = False,
) -> PassResult:
    """Today's policy, arguments as in `gedppl.counterfactual.exact_pass`.

    `exact` walks every past round, with cutting planes in each: some milliseconds a snapshot. Otherwise the rounds of a
    snapshot are filled at once. Where actions reveal more than their own outcome, counts are those of the action-wise pass.
    """
    upper = costs.mean + np.linalg.norm(costs.factor, axis=-1)
    given = checked(base_score, upper, at_most, bonus_weight, block_start, t, available, reveals, 1, safe_action)
    if exact:
        walked = [_walk(given, costs, c) for c in range(len(given.base))]
        policy, inverse, count = (np.array([one[k] for one in walked]) for k in range(3))
    elif (given.reveals == np.eye(len(given.reveals))).all():
        policy, inverse, count = _filled(given, costs)
    else:
        apart = block_pass(
            base_score, upper, at_most, bonus_weight, block_start, t,
            available=available, reveals=reveals, safe_action=safe_action,
        )  # fmt: skip
        inverse, count = apart.inverse_count, apart.expected_count
        score = given.base[:, -1] + given.bonus[-1] * inverse
        policy = np.array([_region(given, costs, c, -1).best(score[c], count[c] - given.eager) for c in range(len(score))])
    return PassResult(policy, inverse, count, given.base[:, -1] + given.bonus[-1] * inverse)


def _region(given: Inputs, costs: JointCosts, c: int, b: int) -> JointRegion:
    return JointRegion(costs.mean[c, b], costs.factor[c, b], given.limit[b], given.available[c, b], given.safe_action)


def _walk(given: Inputs, costs: JointCosts, c: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One context, round by round: score, select, count."""
    t, n_actions = len(given.bonus) - 1, given.base.shape[2]
    inverse, count = InverseCounts(n_actions, 1), np.zeros(n_actions)
    for b in range(len(given.start)):
        last = b == len(given.start) - 1
        region = _region(given, costs, c, b)
        for i in range(given.start[b], t + 1 if last else given.stop[b]):
            try:
                policy = region.best(given.base[c, b] + given.bonus[i] * inverse.value, count - given.eager, CLOSE)
            except InfeasibleError:
                if i == t:
                    raise
                policy = given.stand_in(c, b)
            if i < t:
                seen = np.minimum(policy @ given.reveals, 1.0)
                inverse.add(seen)
                count += seen
    return policy, inverse.value, count


def _filled(given: Inputs, costs: JointCosts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Own outcomes only: tangents of V at what the last filling gave, a few times over; then today's block alone."""
    apart = block_pass(
        given.base, given.cost, given.limit, given.bonus, given.start, len(given.bonus) - 1,
        available=given.available, safe_action=given.safe_action,
    )  # fmt: skip
    given, last = merged(given, MERGED_SHARE)
    costs = costs.under(last)
    take = np.append(np.nonzero(given.stop > given.start)[0], len(given.start) - 1)  # today is one more block, of one round
    base, limit, usable = given.base[:, take], given.limit[take], given.available[:, take]
    costs = costs.under(take)
    beta = given.bonus[np.append(given.stop[take[:-1]] - 1, len(given.bonus) - 1)]
    rounds = np.append((given.stop - given.start)[take[:-1]], 1)
    pulls = np.full(given.base.shape[2], 1 - HALF_STEP)

    rows = _Tangents(costs, limit, usable)
    filled = fill_blocks(base, rows.excess, usable, beta, rounds, pulls)
    for _ in range(PASSES):
        rows.touch(filled.share)
        filled = fill_blocks(base, rows.excess, usable, beta, rounds, pulls)
    today = slice(len(take) - 1, None)
    now, counts = rows.part(today), [filled.count[c] for c in range(len(base))]
    policy = filled.share[:, -1]
    for c in range(len(base)):
        one, share = now.only(c), filled.share[c : c + 1, -1:]
        for _ in range(MOST_TURNS):
            if not one.exceeded(share[:, -1]):
                break
            one.touch(share)
            share = fill_blocks(
                base[c : c + 1, today], one.excess, usable[c : c + 1, today], beta[today], rounds[today], counts[c] + pulls
            ).share
        policy[c] = share[0, -1]
    lost = ~((filled.surplus <= 1e-6) & (policy.sum(axis=1) > 0.5))  # no room inside the limits; NaN counts as lost
    inverse = 1.0 / (np.where(lost[:, None], 0.0, filled.count) + 1.0)
    count = filled.count
    for c in range(len(policy)):
        found = np.where(policy[c] > TRACE, policy[c], 0.0)
        region = _region(given, costs, c, -1)
        if not lost[c]:
            found = region.drawn_inside(found / found.sum(), CLOSE)
        if lost[c] or not (region.value(found) <= given.limit[-1] + 1e-12 * region.scale).all():
            # limits without room inside: the action-wise policy keeps them, and so keeps these
            policy[c], inverse[c], count[c] = apart.policy[c], apart.inverse_count[c], apart.expected_count[c]
        else:
            policy[c] = found
    return policy, inverse, count


class _Tangents:
    """Rows (C, B, J * TANGENTS, K) that describe V from outside; at first V action by action, which lies inside."""

    def __init__(
        self, costs: JointCosts, limit: np.ndarray, usable: np.ndarray, rows: np.ndarray | None = None, at: int = 0
    ) -> None:
        self.costs, self.limit, self.usable, self.at = costs, limit, usable, at
        if rows is None:
            C, B, J, K = costs.mean.shape
            rows = np.full((C, B, J, TANGENTS, K), -1.0)
            rows[:, :, :, 0] = self._scaled(costs.mean + np.linalg.norm(costs.factor, axis=-1))
        self.rows = rows

    @property
    def excess(self) -> np.ndarray:
        C, B, J, T, K = self.rows.shape
        return self.rows.reshape(C, B, J * T, K)

    def _scaled(self, cut: np.ndarray) -> np.ndarray:
        """cut - limit, (C, B, J, K), each row at most 1 in size; unusable actions out of the way."""
        excess = np.where(self.usable[:, :, None], cut - self.limit[None, :, :, None], -1.0)
        size = np.abs(np.where(self.usable[:, :, None], excess, 0.0)).max(axis=-1, keepdims=True)
        return np.where(self.usable[:, :, None], excess / np.where(size > 0, size, 1.0), -1.0)

    def touch(self, share: np.ndarray) -> None:
        """One more tangent at share (C, B, K) for every limit that it exceeds; the oldest makes room. The first is for all."""
        along = np.einsum("cbk,cbjkq->cbjq", share, self.costs.factor)
        length = np.linalg.norm(along, axis=-1, keepdims=True)
        unit = along / np.where(length > 0, length, 1.0)
        cut = self.costs.mean + np.einsum("cbjkq,cbjq->cbjk", self.costs.factor, unit)
        value = np.einsum("cbk,cbjk->cbj", share, self.costs.mean) + length[..., 0]
        over = value > self.limit + CLOSE * (1 + np.abs(self.limit))
        self.rows, place = self.rows.copy(), self.at % TANGENTS
        kept = np.full_like(cut, -1.0) if self.at < TANGENTS else self.rows[:, :, :, place]
        self.rows[:, :, :, place] = np.where(over[..., None] | (self.at == 0), self._scaled(cut), kept)
        self.at += 1

    def exceeded(self, policy: np.ndarray) -> bool:
        """Whether policy (1, K) is above a limit of the last block by more than can be drawn inside unnoticed."""
        value = self.costs.today(policy)
        return bool((value > self.limit[-1] + CLOSE * (1 + np.abs(self.limit[-1]))).any())

    def part(self, blocks: slice) -> _Tangents:
        return _Tangents(self.costs.under(blocks), self.limit[blocks], self.usable[:, blocks], self.rows[:, blocks], self.at)

    def only(self, c: int) -> _Tangents:
        some = slice(c, c + 1)
        return _Tangents(self.costs.only(c), self.limit, self.usable[some], self.rows[some], self.at)
