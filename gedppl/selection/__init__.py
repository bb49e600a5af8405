"""Scores and cost bounds in, a policy on the simplex out.

    maximise  Σ_a π_a score_a
        over   π ≥ 0,  Σ_a π_a = 1,  Σ_a π_a cost_upper_{j,a} ≤ at_most_j  for j = 1..J.

An optimum needs at most J + 1 actions. The feasible policies form a polytope that does not depend
on the scores, so its vertices can be listed once and each round only picks one of them
(`Polytope`); the counterfactual pass lives on that. Where a list would be long, one constraint is
solved on the upper concave hull of (cost, score) and several by HiGHS. A limit on every draw,
cost_upper_{j,a} ≤ at_most_j wherever π_a > 0, is a mask (`drawable`) before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from gedppl.errors import ActionRangeError, InfeasibleError, NotFiniteError, ShapeError
from gedppl.selection.solvers import hull_policy, linear_program, tie_tolerance

# longest vertex list worth making: about 5 ms, and then a few microseconds a round
MOST_BASES = 10_000
PAIRS_AT_ONCE = 500_000  # of actions, over contexts looked at together: what stays in the cache
MOST_PAIRS = 500  # the same with one limit, where the hull is fast as well
# a cost this close to its limit (relative) sits on it: rounding, not a violation
NEAR_LIMIT = 1e-12
# how far a vertex may overshoot a limit it does not sit on, as a share of the largest distance to
# it
SLACK = 1e-12


def select_policy(
    score: Any,
    cost_upper: Any,
    at_most: Any,
    *,
    allowed: Any = None,
    played: Any = None,
    safe_action: int | None = None,
    every_draw: Any = None,
) -> np.ndarray:
    """The policy of highest score whose cost bound keeps every limit.

    ``argmax_π Σ_a π_a score_a  subject to  Σ_a π_a cost_upper_{j,a} ≤ at_most_j``, at most J + 1
    actions in its support.

    Parameters
    ----------
    score
        (K,) finite.
    cost_upper
        (K,) or (J, K); ``+inf`` keeps an action out. J = 0 (shape (0, K)) means no constraint.
    at_most
        A number or (J,); ``+inf`` lifts that limit.
    allowed
        (K,) booleans, or None for every action.
    played
        (K,) how often each action was played (expected counts will do). Among equally good vertices
        the one with the least ``Σ_a π_a played_a`` wins, then the one of lowest index.
    safe_action
        Where rounding would leave a limit exceeded (by some 1e-12), a trace of this action is mixed
        in.
    every_draw
        A boolean or (J,): limits that hold for every action that may be drawn instead of for the
        average.

    Returns
    -------
    (K,) array, non-negative, summing to one.

    Raises
    ------
    InfeasibleError
        If no policy keeps every limit.

    Notes
    -----
    The limit holds for the policy's average cost bound, unless it is one on every draw. Scores are
    tied when they differ by less than 1e-10 of their range (plus 1e-12 of their size). Not
    guaranteed: anything of true costs, unless `cost_upper` is above them; nor the best policy under
    a worst case of all actions together, which lets more policies in than bounds action by action.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", Algorithm 1, with the bounds taken action by action.

    Examples
    --------
    >>> select_policy([0.2, 1.0, 0.6], [0.0, 1.0, 0.3], 0.4).round(4)
    array([0.    , 0.1429, 0.8571])
    >>> select_policy([0.2, 1.0, 1.0], [0.0, 0.1, 0.1], 0.4, played=[0, 3, 2])
    array([0., 0., 1.])
    >>> select_policy([0.2, 1.0, 0.6], [0.0, 1.0, 0.3], 0.4, every_draw=True)
    array([0., 0., 1.])
    """
    score = np.asarray(score, float)
    if score.ndim != 1 or not score.size:
        raise ShapeError(
            f"`score` must have shape (K,), got {score.shape}; pass one number per action"
        )
    n_actions = len(score)
    if not np.isfinite(score).all():
        raise NotFiniteError(
            f"`score` must be finite, got {score}; leave an action out with `allowed` instead"
        )
    cost, limit = _costs_and_limits(cost_upper, at_most, n_actions)
    allowed = _mask(allowed, n_actions)
    if every_draw is not None:
        allowed = allowed & drawable(
            cost, limit, np.broadcast_to(np.asarray(every_draw, bool), len(limit))
        )
    counts = np.zeros(n_actions) if played is None else np.asarray(played, float)
    if counts.shape != (n_actions,) or not np.isfinite(counts).all():
        raise ShapeError(
            f"`played` must be {n_actions} finite counts, one per action, got {played}"
        )
    check_action(safe_action, n_actions)
    return Polytope.of(cost, limit, allowed, safe_action).best(score, counts)


def select_policies(
    score: np.ndarray,
    cost_upper: np.ndarray,
    limits: np.ndarray,
    allowed: np.ndarray,
    played: np.ndarray,
    safe_action: int | None,
) -> np.ndarray:
    """`select_policy` at C contexts at once: score (C, K), cost_upper (C, J, K), limits (J,),
    allowed (C, K), played (K,) or, where contexts are of several runs, (C, K).
    """
    at_most, policy = np.asarray(limits, float)[None], np.zeros(score.shape)
    left: Any = range(len(score))
    if cost_upper.shape[1] == 1:
        step = max(1, PAIRS_AT_ONCE // score.shape[1] ** 2)
        left = []
        for first in range(0, len(score), step):
            c = slice(first, first + step)
            rest = _alone_on_top(score[c], cost_upper[c], at_most, allowed[c], policy[c])
            left += (first + rest).tolist()
    if not len(left):
        return policy
    counts, at_most = np.broadcast_to(played, score.shape), np.repeat(at_most, len(left), axis=0)
    for c, polytope in zip(
        left, Polytope.batch(cost_upper[left], at_most, allowed[left], safe_action)
    ):
        if polytope is None:
            raise InfeasibleError(why_infeasible(cost_upper[c], limits, allowed[c]))
        policy[c] = polytope.best(score[c], counts[c])
    return policy


def _alone_on_top(
    score: np.ndarray, cost: np.ndarray, limit: np.ndarray, allowed: np.ndarray, policy: np.ndarray
) -> np.ndarray:
    """Fill in policies (C, K) where one vertex beats all others under one limit, (1, 1); the
    contexts where none does, with ties or none.

    A vertex is an action within the limit, or a mixture of one strictly below it and one above that
    sits on it: score_i + (score_j - score_i) e_i / (e_i - e_j), e the excess over the limit.
    """
    excess, usable = scaled_excess(cost, limit, allowed)
    e = excess[:, 0]
    n, K = e.shape
    within = usable & (e <= 0)
    # a cheap one and a dear one; what is not usable has an excess of 0
    pair = (e < 0)[:, :, None] & (e > 0)[:, None, :]
    # of the dear one
    share = np.divide(
        e[:, :, None], e[:, :, None] - e[:, None, :], out=np.zeros((n, K, K)), where=pair
    )
    value = score[:, None, :] - score[:, :, None]
    value *= share
    value += score[:, :, None]
    flat = np.where(pair, value, -np.inf).reshape(n, -1)
    flat[:, :: K + 1] = np.where(within, score, -np.inf)
    best, row = flat.argmax(axis=1), np.arange(n)
    top = flat[row, best]
    high, low = (
        np.where(usable, score, -np.inf).max(axis=1),
        np.where(usable, score, np.inf).min(axis=1),
    )
    tolerance = 1e-10 * (high - low) + 1e-12 * np.maximum(np.abs(high), np.abs(low))
    alone = np.isfinite(top) & ((flat >= (top - tolerance)[:, None]).sum(axis=1) == 1)
    i, j = np.divmod(best, K)
    mixed = share[row, i, j]
    policy[row, i] = 1.0 - mixed
    policy[row, j] += mixed
    found: np.ndarray = (~alone | ((policy * e).sum(axis=1) > 0.1 * SLACK)).nonzero()[0]
    policy[found] = 0.0
    return found


def drawable(cost_upper: np.ndarray, at_most: np.ndarray, every_draw: np.ndarray) -> np.ndarray:
    """Actions (..., K) that keep each limit on every draw: cost_upper (..., J, K), at_most (...,
    J), every_draw (J,) bool.
    """
    if not every_draw.any():
        return np.ones((*cost_upper.shape[:-2], cost_upper.shape[-1]), bool)
    cost, limit = cost_upper[..., every_draw, :], at_most[..., every_draw, None]
    with np.errstate(invalid="ignore"):  # inf - inf: a lifted limit
        on_limit = np.abs(cost - limit) <= NEAR_LIMIT * np.maximum(np.abs(cost), np.abs(limit))
    found: np.ndarray = ((cost <= limit) | on_limit).all(axis=-2)
    return found


def policy_cost(policy: np.ndarray, costs: np.ndarray, every_draw: np.ndarray) -> np.ndarray:
    """What each limit is about, (..., J): sum_a pi_a c_ja, or for one on every draw the largest
    c_ja with pi_a > 0.

    policy (..., K), costs (..., J, K), every_draw (J,). An action that is never played adds
    nothing, however dear or unknown.

    >>> policy_cost(np.array([0.5, 0.5, 0.0]), np.array([[0.0, 1.0, np.nan]]), np.array([True]))
    array([1.])
    """
    used = policy[..., None, :] > 0
    average = np.einsum("...k,...jk->...j", policy, np.where(used, costs, 0.0))
    found: np.ndarray = (
        np.where(every_draw, np.where(used, costs, -np.inf).max(axis=-1), average)
        if np.count_nonzero(every_draw)
        else average
    )
    return found


def eagerness(reveals: np.ndarray | None, t: int, n_actions: int) -> np.ndarray:
    """(K,): how much ties favour an action before counts decide: the number of outcomes it shows,
    far above any count.

    Where a query costs something and earns nothing today (label budgets), asking and not asking are
    tied, and only the policy that shows most learns at all. For a bandit every action shows one
    outcome: zero, and the counts decide.
    """
    if reveals is None:
        return np.zeros(n_actions)
    shown = reveals.sum(axis=1)
    found: np.ndarray = 1e3 * (1 + t) * (shown - shown.min())
    return found


def check_action(action: int | None, n_actions: int) -> None:
    """Raise unless `action` is None or one of 0..K-1."""
    if action is not None and not 0 <= action < n_actions:
        raise ActionRangeError(f"`safe_action` must be one of 0..{n_actions - 1}, got {action}")


@dataclass(frozen=True)
class Polytope:
    """The policies that keep every limit: fixed while the cost bounds are, whatever the scores.

    Attributes
    ----------
    excess
        (J, K) ``cost_upper - at_most``, each row scaled to at most 1 in size.
    usable
        (K,) the actions that are allowed and have finite bounds.
    vertices
        (n, K) every vertex, singletons first, or None where there may be too many to list.
    safe_action
        See `select_policy`.
    """

    excess: np.ndarray
    usable: np.ndarray
    vertices: np.ndarray | None
    safe_action: int | None

    @staticmethod
    def of(
        cost: np.ndarray, limit: np.ndarray, allowed: np.ndarray, safe_action: int | None = None
    ) -> Polytope:
        """From cost (J, K), limit (J,) and allowed (K,), already checked."""
        found = Polytope.batch(cost[None], limit[None], allowed[None], safe_action)[0]
        if found is None:
            raise InfeasibleError(why_infeasible(cost, limit, allowed))
        return found

    @staticmethod
    def batch(
        cost: np.ndarray, limit: np.ndarray, allowed: np.ndarray, safe_action: int | None = None
    ) -> list[Polytope | None]:
        """One for each of B cost (B, J, K), limit (B, J) and allowed (B, K); None where no
        policy keeps the limits.
        """
        n_snapshots, n_rows, n_actions = cost.shape
        excess, usable = scaled_excess(cost, limit, allowed)
        bases = sum(
            comb(n_actions, s) * comb(n_rows, s - 1)
            for s in range(1, min(n_rows + 1, n_actions) + 1)
        )
        found: list[Polytope | None] = []
        if bases > (MOST_PAIRS if n_rows == 1 else MOST_BASES):
            for one, can in zip(excess, usable):
                empty = not can.any() or (n_rows == 1 and one[0, can].min() > 0)
                found.append(None if empty else Polytope(one, can, None, safe_action))
            return found
        chunk = max(1, 4_000_000 // (bases * n_actions))
        for start in range(0, n_snapshots, chunk):
            some = slice(start, start + chunk)
            listed, valid = _vertices(excess[some], usable[some])
            over = valid & (
                np.einsum("bnk,bjk->bnj", listed, excess[some]).max(axis=2, initial=-1)
                > 0.1 * SLACK
            )
            for i, (one, can) in enumerate(zip(excess[some], usable[some])):
                vertices = listed[i][valid[i]]
                if over[i].any():
                    vertices = pulled_back(vertices, one, can, safe_action)
                found.append(Polytope(one, can, vertices, safe_action) if len(vertices) else None)
        return found

    def best(self, score: np.ndarray, played: np.ndarray) -> np.ndarray:
        """The vertex of highest score (K,), ties to the least played (K,)."""
        usable = self.usable
        if self.vertices is not None:
            out: np.ndarray = self.vertices[
                best_vertex(self.vertices, score, played, tie_tolerance(score[usable]))
            ].copy()
            return out
        solve = hull_policy if len(self.excess) == 1 else linear_program
        policy = np.zeros(len(score))
        policy[usable] = solve(score[usable], self.excess[:, usable], played[usable])
        found: np.ndarray = pulled_back(policy[None], self.excess, usable, self.safe_action)[0]
        return found


def best_vertex(
    vertices: np.ndarray, score: np.ndarray, played: np.ndarray, tolerance: float
) -> int:
    """Index of the vertex (n, K) of highest score; ties go to the least played, then to the
    first.
    """
    value = vertices @ score
    (tied,) = np.nonzero(value >= value.max() - tolerance)
    if len(tied) == 1:
        return int(tied[0])
    load = vertices[tied] @ played
    return int(tied[np.argmax(load <= load.min() + 1e-9 * np.abs(played).max())])


# several constraints, short lists -----------------------------------------------------------------


@lru_cache(maxsize=64)
def _subsets(n: int, size: int) -> np.ndarray:
    return np.array(list(combinations(range(n), size)), np.intp).reshape(comb(n, size), size)


def _vertices(excess: np.ndarray, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(policies (B, n, K), which of them are vertices (B, n)) of {π ≥ 0, Σπ = 1, excess π ≤ 0},
    excess (B, J, K).

    A vertex with s actions has s - 1 tight limits E (s-1, s); Eπ = 0 has the solution π_i ∝ (-1)^i
    det(E without column i).
    """
    n_snapshots, n_rows, n_actions = excess.shape
    policies, valid = [], []
    for size in range(1, min(n_rows + 1, n_actions) + 1):
        support = _subsets(n_actions, size)
        columns = excess[:, :, support]
        can = usable[:, support].all(axis=2)
        for tight in _subsets(n_rows, size - 1):
            if size == 1:
                weight = np.ones((n_snapshots, n_actions, 1))
            else:
                weight = _null_vectors(columns[:, tight])
                with np.errstate(divide="ignore", invalid="ignore"):
                    weight = weight / weight.sum(axis=2, keepdims=True)
            # not a number where the tight columns are dependent: such a vertex has a smaller
            # support
            inside = np.asarray(can & (weight > 1e-14).all(axis=2))
            weight = np.where(inside[:, :, None], weight, 0.0)
            if n_rows > size - 1:
                inside &= ((columns * weight[:, None]).sum(axis=3) <= SLACK).all(axis=1)
            rows = np.zeros((n_snapshots, len(support), n_actions))
            np.put_along_axis(rows, np.broadcast_to(support, weight.shape), weight, axis=2)
            policies.append(rows)
            valid.append(inside)
    return np.concatenate(policies, axis=1), np.concatenate(valid, axis=1)


def _null_vectors(tight: np.ndarray) -> np.ndarray:
    """(B, n, s) from tight (B, s-1, n, s): the null vector of each (s-1, s) matrix, by signed
    minors.
    """
    size = tight.shape[3]
    if size == 2:
        return np.stack([tight[:, 0, :, 1], -tight[:, 0, :, 0]], axis=2)
    matrices = np.moveaxis(tight, 1, 2)
    minors = [(-1.0) ** i * np.linalg.det(np.delete(matrices, i, axis=3)) for i in range(size)]
    return np.stack(minors, axis=2)


def pulled_back(
    policies: np.ndarray, excess: np.ndarray, usable: np.ndarray, safe_action: int | None
) -> np.ndarray:
    """Policies (n, K) that rounding left just above a limit, pulled back towards one with room
    to spare.
    """
    if not len(excess):
        return policies
    worst = (policies @ excess.T).max(axis=1)
    over = worst > 0.1 * SLACK
    if not over.any():
        return policies
    single = np.where(usable, excess.max(axis=0), np.inf)
    anchor = np.zeros(len(usable))
    if safe_action is not None and single[safe_action] < 0:
        anchor[safe_action] = 1.0
    elif single.min() < worst.min():
        anchor[np.argmin(single)] = 1.0
    else:
        anchor = policies[np.argmin(worst)]
    room = -float((excess @ anchor).max())
    # as good as no room: mixing would move the policy further than the rounding did
    if room <= 1e6 * SLACK:
        return policies
    policies = policies.copy()
    share = (worst[over] / (worst[over] + room))[:, None]
    policies[over] = (1 - share) * policies[over] + share * anchor
    return policies


# checks -------------------------------------------------------------------------------------------


def scaled_excess(
    cost: np.ndarray, limit: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cost minus limit (B, J, K), each row scaled to at most 1 and freed of rounding around 0, and
    who is usable (B, K). limit (B, J), or (1, J) for all.

    A lifted limit (+inf) leaves a row of -1: kept by every policy, tight for none.
    """
    limit = limit[:, :, None]
    lifted = limit == np.inf
    if np.count_nonzero(lifted):
        limit, cost = np.where(lifted, 0.0, limit), np.where(lifted, -1.0, cost)
    usable = allowed & (cost < np.inf).all(axis=1)
    cost = np.where(usable[:, None], cost, limit)
    excess = cost - limit
    excess[np.abs(excess) <= NEAR_LIMIT * np.maximum(np.abs(cost), np.abs(limit))] = 0.0
    size = np.abs(excess).max(axis=2, keepdims=True)
    return excess / np.where(size > 0, size, 1.0), usable


def _costs_and_limits(
    cost_upper: Any, at_most: Any, n_actions: int
) -> tuple[np.ndarray, np.ndarray]:
    cost = np.asarray(cost_upper, float)
    if cost.ndim == 1:
        cost = cost[None]
    if cost.ndim != 2 or cost.shape[1] != n_actions:
        raise ShapeError(
            f"`cost_upper` must have shape (K,) or (J, K) with K = {n_actions}, got {cost.shape}"
        )
    limit = np.atleast_1d(np.asarray(at_most, float))
    if len(cost) == 0:
        limit = limit[:0]
    if limit.shape != (len(cost),):
        raise ShapeError(
            f"`at_most` must be one number per constraint, {len(cost)} here, got "
            f"shape {limit.shape}"
        )
    if np.isnan(cost).any() or (cost == -np.inf).any():
        raise NotFiniteError(f"`cost_upper` must be finite or +inf, got {cost}")
    if np.isnan(limit).any() or (limit == -np.inf).any():
        raise NotFiniteError(f"`at_most` must be finite or +inf, got {limit}")
    return cost, limit


def _mask(allowed: Any, n_actions: int) -> np.ndarray:
    if allowed is None:
        return np.ones(n_actions, bool)
    mask = np.asarray(allowed)
    if mask.shape != (n_actions,) or mask.dtype != bool:
        raise ShapeError(
            f"`allowed` must be {n_actions} booleans, got {mask.dtype} of shape {mask.shape}"
        )
    return mask


def why_infeasible(cost: np.ndarray, limit: np.ndarray, allowed: np.ndarray) -> str:
    if not allowed.any():
        return "no action is allowed: `allowed` is False everywhere; allow the safe action at least"
    lowest = np.where(allowed, cost, np.inf).min(axis=1)
    bad = [
        f"constraint {j}: lowest cost bound {lowest[j]:.6g} > limit {limit[j]:.6g}"
        for j in np.nonzero(lowest > limit)[0]
    ]
    if bad:
        return (
            "no policy keeps every limit ("
            + "; ".join(bad)
            + "); raise `at_most` or allow a cheaper action"
        )
    return (
        f"no policy keeps all {len(limit)} limits together: each alone can be kept (lowest cost "
        f"bounds {lowest}, limits "
        f"{limit}), but not by one mixture; raise a limit or allow an action that keeps them all"
    )
