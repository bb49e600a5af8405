"""What every past round's policy would have been at today's context, and from it today's policy.

At today's x, snapshot b (a past fit) gives a score and a cost bound to each action. Round i's
policy is the best under

    score_{i,a} = base_score_{b(i),a} + bonus_weight_i E[1 / (N_{i,a} + 1)],
        N_{i,a} = Σ_{j<i} Bernoulli(p_{j,a}),

where p_{j,a} is the probability that round j's policy at this x showed the outcome of a. It is a
deterministic function of the snapshots: nothing is sampled. `exact_pass` walks all rounds;
`block_pass` advances each snapshot's rounds at once. Hu, Simchi-Levi and Azizan, Algorithm 1, the
inner loop over i.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gedppl.counterfactual.blocks import fill_blocks
from gedppl.counterfactual.inputs import Inputs, checked, merged
from gedppl.counterfactual.inverse_counts import (
    FLUSH_BELOW,
    PANELS,
    expected_inverse_count,
    quadrature,
)
from gedppl.selection import SLACK, Polytope, best_vertex, pulled_back, scaled_excess
from gedppl.selection.solvers import tie_tolerance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# rounds between clean-ups of products too small to matter (0.01^64 is far from underflow)
FLUSH_EVERY = 64
# a walk rises in whole pulls and ends, on average, half of one above the level a filling reaches
HALF_STEP = 0.5
TRACE = 1e-9  # a filling rate below this is rounding
SUBSTEPS = 16  # per block, where the potential of `gedppl.counterfactual.blocks` does not apply
# blocks that together hold at most this share of all past rounds are filled as one
MERGED_SHARE = 0.01


# the pass -----------------------------------------------------------------------------------------


__all__ = ["PassResult", "block_pass", "exact_pass", "expected_inverse_count"]


class PassResult(NamedTuple):
    """Today's policy and what led to it.

    policy (C, K); inverse_count (C, K) E[1/(N+1)] today; expected_count (C, K); score (C, K)
    today's, bonus included; path (C, t+1, K) every round's policy, today's last, if asked for
    (`exact_pass` only).
    """

    policy: np.ndarray
    inverse_count: np.ndarray
    expected_count: np.ndarray
    score: np.ndarray
    path: np.ndarray | None = None


def exact_pass(
    base_score: ArrayLike,
    cost_upper: ArrayLike,
    at_most: ArrayLike,
    bonus_weight: ArrayLike,
    block_start: ArrayLike,
    t: int,
    *,
    available: ArrayLike | None = None,
    reveals: ArrayLike | None = None,
    warmup_pulls: int = 1,
    safe_action: int | None = None,
    keep_path: bool = False,
) -> PassResult:
    """Today's policy by walking all t past rounds at today's contexts: O(t).

    Parameters
    ----------
    base_score
        (C, B, K): utility estimate plus width bonus of each snapshot, at each of C contexts.
    cost_upper, at_most
        (C, B, J, K) and (B, J).
    bonus_weight
        (t + 1,): β_i of rounds 0..t, today's last. Of length t, its last value serves today too.
    block_start
        (B,) increasing, the first one 0: snapshot b is in force for rounds ``block_start[b] <= i <
        block_start[b+1]``.
    t
        Number of past rounds; today is round t.
    available
        (C, B, K) booleans: the actions that could be played under each snapshot.
    reveals
        (K, K) booleans: playing a shows the outcome of b too. Default: only its own.
    warmup_pulls
        m in E[1 / (N + m)].
    safe_action
        Played in past rounds where no policy keeps the limits (today that is an error).
    keep_path
        Return every round's policy as well.

    Notes
    -----
    Ties go to the policy that shows most outcomes, then to the action with the smallest expected
    count so far. The first rounds do not depend on later ones: the policy found here for round i at
    a context is bit for bit the one found at round i.
    """
    given = checked(
        base_score,
        cost_upper,
        at_most,
        bonus_weight,
        block_start,
        t,
        available,
        reveals,
        warmup_pulls,
        safe_action,
    )
    walked = [_walk(given, c, keep_path) for c in range(len(given.base))]
    policy, inverse, count = (np.array([one[k] for one in walked]) for k in range(3))
    path = np.array([one[3] for one in walked]) if keep_path else None
    return PassResult(policy, inverse, count, given.base[:, -1] + given.bonus[-1] * inverse, path)


_Walked = tuple[np.ndarray, np.ndarray, np.ndarray, "np.ndarray | None"]


def _walk(given: Inputs, c: int, keep_path: bool) -> _Walked:
    """One context, round by round: score, select, count.

    A snapshot's feasible vertices are listed once; a round picks one and touches only the counts
    that vertex changes.
    """
    t, n_actions = len(given.bonus) - 1, given.base.shape[2]
    node, weight = quadrature(PANELS)
    weight = weight * (1 - node) ** (given.pulls - 1)
    product = np.ones((n_actions, len(node)))
    rows = list(product)
    inverse, count = product @ weight, np.zeros(n_actions)
    sure = 1.0 - node
    path = np.zeros((t + 1, n_actions)) if keep_path else None
    polytopes = Polytope.batch(given.cost[c], given.limit, given.available[c], given.safe_action)
    if polytopes[-1] is None:
        raise given.refuse_today(c)
    biggest = float(np.abs(given.base[c]).max() + np.abs(given.bonus).max())

    def touched(policy: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[int, np.ndarray]]]:
        seen = np.minimum(policy @ given.reveals, 1.0)
        return (
            policy,
            seen,
            [
                (a, sure if seen[a] == 1.0 else 1.0 - seen[a] * node)
                for a in np.nonzero(seen)[0].tolist()
            ],
        )

    for b, polytope in enumerate(polytopes):
        base, last = given.base[c, b], b == len(polytopes) - 1
        vertices = given.stand_in(c, b)[None] if polytope is None else polytope.vertices
        known: dict[int, tuple[np.ndarray, np.ndarray, list[tuple[int, np.ndarray]]]] = {}
        for i in range(given.start[b], t + 1 if last else given.stop[b]):
            score = base + given.bonus[i] * inverse
            if vertices is None:
                assert polytope is not None
                move = touched(polytope.best(score, count - given.eager))
            else:
                value = vertices @ score
                v = int(value.argmax())
                # the tie tolerance can be no larger than this; most rounds have no second candidate
                if (
                    np.count_nonzero(value >= value[v] - 3e-10 * biggest) > 1
                    and polytope is not None
                ):
                    tolerance = tie_tolerance(score[polytope.usable])
                    v = best_vertex(vertices, score, count - given.eager, tolerance)
                move = known.get(v) or known.setdefault(v, touched(vertices[v]))
            policy, seen, factors = move
            if path is not None:
                path[i] = policy
            if i == t:
                break
            for a, factor in factors:
                row = rows[a]
                row *= factor
                inverse[a] = row.dot(weight)
            count += seen
            if i % FLUSH_EVERY == 0:
                product[product < FLUSH_BELOW] = 0.0
    return policy.copy(), inverse, count, path


def block_pass(
    base_score: ArrayLike,
    cost_upper: ArrayLike,
    at_most: ArrayLike,
    bonus_weight: ArrayLike,
    block_start: ArrayLike,
    t: int,
    *,
    available: ArrayLike | None = None,
    reveals: ArrayLike | None = None,
    warmup_pulls: int = 1,
    safe_action: int | None = None,
) -> PassResult:
    """Today's policy by advancing each snapshot's rounds at once: O(B), whatever t.

    Arguments as in `exact_pass`. The rounds of a snapshot are solved as one filling (see `blocks`);
    today's policy is the filling of today's round alone: the rate at which the tied actions rise,
    not an argmax among them.

    Notes
    -----
    An approximation: counts are treated as continuous. See `benchmarks/counterfactual.py` for its
    distance from the exact pass. Today's policy keeps today's limits like any other. If what is
    revealed does not depend on the action (full information) the counts are known and the pass is
    exact; for any other `reveals` than each action its own, the potential does not exist and each
    block is walked in `SUBSTEPS` steps instead.
    """
    given = checked(
        base_score,
        cost_upper,
        at_most,
        bonus_weight,
        block_start,
        t,
        available,
        reveals,
        warmup_pulls,
        safe_action,
    )
    if (given.reveals == given.reveals[0]).all():
        return _known_counts(given)
    if (given.reveals == np.eye(len(given.reveals))).all():
        return _filled(merged(given, MERGED_SHARE)[0])
    return _substepped(given)


def _known_counts(given: Inputs) -> PassResult:
    """Every action reveals the same outcomes: counts are certain, and only today's selection is
    left.
    """
    t = len(given.bonus) - 1
    count = np.broadcast_to(t * given.reveals[0], given.base[:, 0].shape).copy()
    inverse = 1.0 / (count + given.pulls)
    score = given.base[:, -1] + given.bonus[-1] * inverse
    policy = np.array([_best_today(given, c, score[c], count[c]) for c in range(len(score))])
    return PassResult(policy, inverse, count, score)


def _best_today(given: Inputs, c: int, score: np.ndarray, count: np.ndarray) -> np.ndarray:
    today = Polytope.of(
        given.cost[c, -1], given.limit[-1], given.available[c, -1], given.safe_action
    )
    return today.best(score, count - given.eager)


def _filled(given: Inputs) -> PassResult:
    """Own outcomes only: one filling per snapshot, and one for today."""
    n_contexts, n_snapshots, n_actions = given.base.shape
    n_limits = given.cost.shape[2]
    flat = n_contexts * n_snapshots
    excess, usable = scaled_excess(
        given.cost.reshape(flat, n_limits, n_actions),
        np.broadcast_to(given.limit, (n_contexts, n_snapshots, n_limits)).reshape(flat, n_limits),
        given.available.reshape(flat, n_actions),
    )
    # A limit nobody is strictly below is kept by not touching it: no mixture with its breakers will
    # do.
    lowest = np.where(usable[:, None], excess, np.inf).min(axis=2, keepdims=True)
    usable &= ~((lowest >= 0) & (excess > 0)).any(axis=1)
    excess = np.where((lowest >= 0) | ~usable[:, None], -1.0, excess)
    # no single action will do; a mixture?
    for i in np.nonzero(~(usable & (excess <= 0).all(axis=1)).any(axis=1))[0]:
        c, b = divmod(int(i), n_snapshots)
        if (
            Polytope.batch(
                given.cost[c, b : b + 1], given.limit[b : b + 1], given.available[c, b : b + 1]
            )[0]
            is None
        ):
            if b == n_snapshots - 1:
                raise given.refuse_today(c)
            usable[i], excess[i] = given.stand_in(c, b) > 0, -1.0
    # today is one more block, of one round
    take = np.append(np.nonzero(given.stop > given.start)[0], n_snapshots - 1)
    shape = (n_contexts, n_snapshots)
    filled = fill_blocks(
        given.base[:, take],
        excess.reshape(*shape, n_limits, n_actions)[:, take],
        usable.reshape(*shape, n_actions)[:, take],
        given.bonus[np.append(given.stop[take[:-1]] - 1, len(given.bonus) - 1)],
        np.append((given.stop - given.start)[take[:-1]], 1),
        np.full(n_actions, given.pulls - HALF_STEP),
    )
    lost = ~(filled.surplus <= 1e-6)  # limits that leave no room inside; NaN counts as lost
    count, gain = (
        np.where(lost[:, None], 0.0, filled.count),
        np.where(lost[:, None], 1.0, filled.gain),
    )
    inverse = 1.0 / (count + given.pulls)
    score = given.base[:, -1] + given.bonus[-1] * inverse
    result = PassResult(_kept_today(given, gain, score, count), inverse, count, score)
    for c in np.nonzero(lost)[0].tolist():
        for whole, part in zip(result[:4], _substepped(given.only(c))[:4]):
            whole[c] = part[0]
    return result


def _kept_today(
    given: Inputs, policy: np.ndarray, score: np.ndarray, count: np.ndarray
) -> np.ndarray:
    """Policies (C, K) freed of traces and made to keep today's limits exactly; where that fails,
    today's best vertex.
    """
    policy = np.where(policy > TRACE, policy, 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    n_contexts, n_limits = len(policy), given.cost.shape[2]
    limit = np.broadcast_to(given.limit[-1], (n_contexts, n_limits))
    excess, usable = scaled_excess(given.cost[:, -1], limit, given.available[:, -1])
    for c in range(n_contexts):
        policy[c] = pulled_back(policy[c : c + 1], excess[c], usable[c], given.safe_action)[0]
    broken = (np.einsum("cjk,ck->cj", excess, policy) > SLACK).any(axis=1) | (
        policy * ~usable > 0
    ).any(axis=1)
    for c in np.nonzero(broken)[0].tolist():
        policy[c] = _best_today(given, c, score[c], count[c])
    return policy


def _substepped(given: Inputs) -> PassResult:
    """Any `reveals`: the exact recursion in steps of 1/SUBSTEPS of a block, today's policy their
    recent average.
    """
    n_contexts, _, n_actions = given.base.shape
    policy, count = np.zeros((n_contexts, n_actions)), np.zeros((n_contexts, n_actions))
    inverse = np.zeros((n_contexts, n_actions))
    for c in range(n_contexts):
        state = count[c]
        polytopes = Polytope.batch(
            given.cost[c], given.limit, given.available[c], given.safe_action
        )
        if polytopes[-1] is None:
            raise given.refuse_today(c)
        recent = np.zeros(n_actions)
        for b, polytope in enumerate(polytopes):
            edges = np.unique(np.linspace(given.start[b], given.stop[b], SUBSTEPS + 1).astype(int))
            recent[:] = 0.0
            for first, after in pairwise(edges):
                score = given.base[c, b] + given.bonus[first] / (state + given.pulls)
                played = (
                    given.stand_in(c, b)
                    if polytope is None
                    else polytope.best(score, state - given.eager)
                )
                state += (after - first) * np.minimum(played @ given.reveals, 1.0)
                if first >= (edges[0] + edges[-1]) // 2:
                    recent += (after - first) * played
        inverse[c] = 1.0 / (state + given.pulls)
        score = given.base[c, -1] + given.bonus[-1] * inverse[c]
        policy[c] = (
            recent / recent.sum()
            if recent.sum() >= SUBSTEPS // 2
            else polytopes[-1].best(score, state - given.eager)
        )
    score = given.base[:, -1] + given.bonus[-1] * inverse
    return PassResult(_kept_today(given, policy, score, count), inverse, count, score)
