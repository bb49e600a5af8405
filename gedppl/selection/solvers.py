"""The best policy where listing every vertex would take too long (the upper concave hull for one
limit, HiGHS for several), and where actions share the parameter that is their worst case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from gedppl.errors import InfeasibleError

MOST_TOGETHER = 10  # actions of which all pairs and triples are tried
FACES_AT_ONCE = 8000  # over contexts looked at together: what stays in the cache
ROUNDING = 1e-13  # share of the costs in play by which V may exceed the limit
ROOTS = 1e6  # times that: how far off a root may be


def tie_tolerance(score: np.ndarray) -> float:
    """How far apart two of these scores count as equal."""
    high, low = float(score.max()), float(score.min())
    return 1e-10 * (high - low) + 1e-12 * max(abs(high), abs(low))


def hull_policy(score: np.ndarray, excesses: np.ndarray, played: np.ndarray) -> np.ndarray:
    """(k,): the optimum under one limit, excesses (1, k), and among optima the least played."""
    excess = excesses[0]
    tolerance = tie_tolerance(score)
    left, right, slope = _hull_edge(score, excess, tolerance, equality=False)
    (tied,) = np.nonzero(score - score[left] - slope * (excess - excess[left]) >= -tolerance)
    on_limit = slope * (excess.max() - excess.min()) > tolerance
    if len(tied) > 1 + on_limit:  # more actions than the simplex and a priced limit pin down
        lazy = -played[tied]
        left, right, _ = _hull_edge(lazy, excess[tied], tie_tolerance(lazy), equality=on_limit)
        left, right = tied[left], tied[right]
    policy = np.zeros(len(score))
    policy[left] = 1.0
    if left != right:
        share = -excess[left] / (excess[right] - excess[left])
        policy[left], policy[right] = 1.0 - share, share
    return policy


def _hull_edge(
    score: np.ndarray, excess: np.ndarray, tolerance: float, equality: bool
) -> tuple[int, int, float]:
    """(left, right, slope): the edge of the upper concave hull of (excess, score) above excess 0.

    Starts from any chord across 0 and swaps one end for the point furthest above it until none is:
    O(k) a swap, and as in the simplex method a handful of swaps. `equality` forbids staying
    strictly below the limit.
    """
    cheap = excess <= 0
    top = int(np.argmax(score))
    if cheap[top] and not equality:
        return top, top, 0.0
    left, right = int(np.argmax(np.where(cheap, score, -np.inf))), top
    if cheap[right]:
        right = int(np.argmax(np.where(cheap, -np.inf, score)))
        if cheap[right]:  # nothing lies above the limit, so on it is as far as one can go
            left = int(np.argmax(np.where(excess >= 0, score, -np.inf)))
            return left, left, 0.0
    while True:
        slope = (score[right] - score[left]) / (excess[right] - excess[left])
        above = score - score[left] - slope * (excess - excess[left])
        above[[left, right]] = 0.0
        top = int(np.argmax(above))
        if above[top] <= 1e-3 * tolerance:
            return left, right, float(slope)
        if cheap[top]:
            left = top
        else:
            right = top


def linear_program(score: np.ndarray, excess: np.ndarray, played: np.ndarray) -> np.ndarray:
    """(k,): the optimum by HiGHS, and a second program over the optimal face where there is one."""
    tolerance = tie_tolerance(score)
    policy, price, level = _highs(score, excess, np.zeros(len(excess), bool))
    reduced = score - level - price @ excess
    (tied,) = np.nonzero(reduced >= -tolerance)
    tight = price * np.ptp(excess, axis=1) > tolerance
    if len(tied) > 1 + tight.sum():  # more actions than the simplex and the priced limits pin down
        try:
            lazy, _, _ = _highs(-played[tied], excess[:, tied], tight)
        except InfeasibleError:
            # the face is thinner than the solver's tolerance: the first optimum stands
            return _polished(policy, excess)
        policy = np.zeros(len(score))
        policy[tied] = lazy
    return _polished(policy, excess)


def _highs(
    score: np.ndarray, excess: np.ndarray, tight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """(policy (k,), price of each limit (J,), value of the simplex row); `tight` limits hold
    with equality.
    """
    from scipy.optimize import linprog

    scale = max(float(np.ptp(score)), 1e-300)
    rows = np.vstack([np.ones(len(score)), excess[tight]])
    solved = linprog(
        -(score - score.max()) / scale,
        A_ub=excess[~tight] if (~tight).any() else None,
        b_ub=np.zeros(int((~tight).sum())) if (~tight).any() else None,
        A_eq=rows,
        b_eq=np.eye(len(rows))[0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solved.status != 0:
        raise InfeasibleError(
            f"no policy keeps all {len(excess)} limits together ({solved.message.strip()})"
        )
    price = np.zeros(len(excess))
    if (~tight).any():
        price[~tight] = -solved.ineqlin.marginals * scale
    price[tight] = -solved.eqlin.marginals[1:] * scale
    return (
        np.clip(solved.x, 0.0, None),
        price,
        float(-solved.eqlin.marginals[0] * scale + score.max()),
    )


def _polished(policy: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """The same vertex, solved for again from its support and tight limits: the solver stops at
    1e-10.
    """
    (support,) = np.nonzero(policy > 1e-11)
    tight = np.abs(excess @ policy) <= 1e-8
    rows = np.vstack([np.ones(len(support)), excess[tight][:, support]])
    weight = np.linalg.lstsq(rows, np.eye(len(rows))[0], rcond=None)[0]
    polished = np.zeros(len(policy))
    if (
        (weight >= 0).all()
        and abs(weight.sum() - 1) < 1e-9
        and np.abs(weight - policy[support]).max() < 1e-6
    ):
        polished[support] = weight
    else:
        polished[support] = policy[support]
    found: np.ndarray = polished / polished.sum()
    return found


# ==================================================================================================
# Actions that share the parameter which is their worst case.
#
# Where a cost is affine in the parameters and the set an ellipsoid, the costs of all actions are
# middle_a + half_a'v with one and the same v, |v| <= 1. The largest average cost of a policy is
#
#     V(pi) = middle'pi + |sum_a pi_a half_a|,
#
# at most sum_a pi_a (middle_a + |half_a|), the average of the actions' own worst cases, which no
# single v need attain. So {V <= limit} holds every policy that keeps the limit action by action,
# and more, and V is what the set says of a policy's cost: nothing is given up.
#
# With r_a = limit - middle_a the limit is met where |sum_a pi_a half_a| = r'pi, that is where
#
#     pi'M pi = 0,    M = half half' - r r',
#
# for policies of any size, since both sides grow alike. On a face of two actions that is a
# quadratic equation for their ratio. On one of three the best point has s = l 1 + k M pi for the
# scores s, so that pi is a multiple of A (s - l 1), A the adjugate of M there, and pi'M pi = 0 a
# quadratic equation for l. More than three actions hardly ever gain (on
# the linear problems of `benchmarks/regret.py` nothing that could be measured).
#
# Axis letters: C contexts, K actions, r directions, n faces.
# ==================================================================================================


@dataclass(frozen=True)
class Together:
    """Costs of all actions under one parameter, up to a v with |v| <= 1 that they share."""

    middle: np.ndarray  # (C, K)
    half: np.ndarray  # (C, K, r)

    def worst(self, policy: np.ndarray) -> np.ndarray:
        """V(pi) (C,) of policies (C, K), or (C, n) of n policies (C, n, K) for each context."""
        several = policy if policy.ndim == 3 else policy[:, None]
        turned = several @ self.half
        found = (several @ self.middle[:, :, None])[:, :, 0] + np.sqrt((turned**2).sum(axis=2))
        out: np.ndarray = found if policy.ndim == 3 else found[:, 0]
        return out

    def pinned(self, action: int, value: np.ndarray) -> Together:
        """With the cost of one action known, value (C,)."""
        middle, half = self.middle.copy(), self.half.copy()
        middle[:, action], half[:, action] = value, 0.0
        return Together(middle, half)

    @property
    def each(self) -> np.ndarray:
        """(C, K) the largest cost of every action by itself."""
        found: np.ndarray = self.middle + np.sqrt((self.half**2).sum(axis=2))
        return found

    def only(self, contexts: slice | np.ndarray) -> Together:
        return Together(self.middle[contexts], self.half[contexts])

    def among(self, actions: np.ndarray) -> Together:
        """For actions (C, k) of each context."""
        return Together(
            np.take_along_axis(self.middle, actions, 1),
            np.take_along_axis(self.half, actions[:, :, None], 1),
        )


def gained_together(
    policy: np.ndarray,
    score: np.ndarray,
    together: Together,
    limit: float,
    usable: np.ndarray,
    played: np.ndarray,
) -> np.ndarray:
    """Policies (C, K) with a higher score than the given ones (C, K), which keep V <= limit; the
    same where there is none.

    score, usable (C, K), played (K,), or (C, K) of several runs: ties go to the least played.
    """
    reward = np.where(usable, score, -np.inf)
    top, now = reward.max(axis=1), np.where(policy > 0, policy * score, 0.0).sum(axis=1)
    size = top - np.where(usable, score, np.inf).min(axis=1)
    tolerance = 1e-10 * size + 1e-12 * np.abs(top)
    (bound,) = np.nonzero(top > now + tolerance)  # where the limit holds the policy back
    if not len(bound):
        return policy
    found = policy.copy()
    K = score.shape[1]
    step = max(1, FACES_AT_ONCE // len(_faces(min(K, MOST_TOGETHER))[0]))
    for first in range(0, len(bound), step):
        where = bound[first : first + step]
        some = where if len(where) < len(policy) else slice(None)
        near, own, can = together.only(some), score[some], usable[some]
        actions = None
        if K > MOST_TOGETHER:
            actions = _promising(policy[some], reward[some], near)
            near, own, can = (
                near.among(actions),
                *(np.take_along_axis(part, actions, 1) for part in (own, can)),
            )
        share, row, who = _on_the_limit(own, near, limit, can)
        slack = ROUNDING * (abs(limit) + np.abs(near.middle).max(axis=1))
        at = row[:, None], who
        share, worst = _within(share, near.middle[at], near.half[at], limit, slack[row])
        value = (share * own[at]).sum(axis=1)
        better = (worst <= limit + slack[row]) & (value > (now + tolerance)[some][row])
        if not np.count_nonzero(better):
            continue
        share, row, who, value = share[better], row[better], who[better], value[better]
        acting = who if actions is None else actions[row[:, None], who]
        counts = played[acting] if played.ndim == 1 else played[where[row][:, None], acting]
        each = _best_of_each(row, value, tolerance[some], (share * counts).sum(axis=1))
        at_context, share, acting = where[row[each]], share[each], acting[each]
        found[at_context] = 0.0
        found[at_context, acting[:, 2]] = share[:, 2]
        found[at_context, acting[:, 1]] += share[:, 1]  # in a pair the same action
        found[at_context, acting[:, 0]] = share[:, 0]
    return found


def _within(
    share: np.ndarray, middle: np.ndarray, half: np.ndarray, limit: float, slack: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Shares (M, 3) of actions with middle (M, 3), half (M, 3, r), and their V (M,). Where halves
    are nearly parallel a root is off by more than the slack (M,): such a mix is drawn back towards
    its cheapest action, which keeps the limit since V is convex.
    """

    def worst_of(mix: np.ndarray) -> np.ndarray:
        turned = (mix[:, None] @ half)[:, 0]
        found: np.ndarray = (mix * middle).sum(axis=1) + np.sqrt((turned * turned).sum(axis=1))
        return found

    worst = worst_of(share)
    over = worst - limit
    (near,) = ((over > slack) & (over < ROOTS * slack)).nonzero()
    if not len(near):
        return share, worst
    each = middle[near] + np.sqrt((half[near] ** 2).sum(axis=2))
    least, cheapest = each.min(axis=1), each.argmin(axis=1)
    part = np.where(least < limit, over[near] / (worst[near] - least), 0.0)
    share = share.copy()
    share[near] *= 1.0 - part[:, None]
    share[near, cheapest] += part
    return share, worst_of(share)


def _best_of_each(
    row: np.ndarray, value: np.ndarray, tolerance: np.ndarray, load: np.ndarray
) -> np.ndarray:
    """Of candidates (M,), sorted by the context (row) that they are for, one for each context:
    the least load among those whose value is the best but for the context's tolerance (C,), and of
    these the first.
    """
    if len(tolerance) == 1:  # one group, for which a decision alone need not be cut into groups
        load = np.where(value >= value.max() - tolerance[0], load, np.inf)
        return np.array([load.argmin()])
    group, start = _runs(row)
    best = np.maximum.reduceat(value, start)
    load = np.where(value >= (best - tolerance[row[start]])[group], load, np.inf)
    (least,) = (load == np.minimum.reduceat(load, start)[group]).nonzero()
    found: np.ndarray = least[_runs(group[least])[1]]
    return found


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of sorted values (M,): which run of equal ones each is in, and where the runs begin."""
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first.cumsum() - 1, first.nonzero()[0]


def _promising(policy: np.ndarray, reward: np.ndarray, together: Together) -> np.ndarray:
    """(C, k) actions worth mixing: those in play, and those that gain most at the parameter which
    is the worst case of the given policies, with the limit priced as these price it.
    """
    turned = (policy[:, None] @ together.half)[:, 0]
    length = np.maximum(np.linalg.norm(turned, axis=1), np.finfo(float).tiny)
    cost = together.middle + (together.half @ (turned / length[:, None])[:, :, None])[:, :, 0]
    used = policy > 0
    gap = np.where(used, reward, np.nan)
    price = (np.nanmax(gap, axis=1) - np.nanmin(gap, axis=1)) / np.maximum(
        np.ptp(np.where(used, cost, cost[:, :1]), axis=1), np.finfo(float).tiny
    )
    worth = np.where(used, np.inf, reward - price[:, None] * cost)
    return np.sort(np.argpartition(-worth, MOST_TOGETHER - 1, axis=1)[:, :MOST_TOGETHER], axis=1)


@lru_cache(maxsize=64)
def _faces(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, 3) actions of every pair and triple of k, pairs first, the second repeated in a pair;
    the places of aa, ab, bb of the pairs in a flat (k, k), (3, pairs); and of the four entries in
    each cofactor of the triples, and of M itself, (5, 3, 3, triples).
    """
    pairs = np.array(list(combinations(range(k), 2)), np.intp).reshape(-1, 2)
    triples = np.array(list(combinations(range(k), 3)), np.intp).reshape(-1, 3)
    faces = np.concatenate([pairs.take([0, 1, 1], axis=1), triples])
    a, b = pairs.T
    after, last = triples.take([1, 2, 0], axis=1), triples.take([2, 0, 1], axis=1)
    i, j, u, v, c = after.T[:, None], after.T, last.T[:, None], last.T, triples.T
    cofactors = [k * i + j, k * u + v, k * i + v, k * u + j, k * c[:, None] + c]
    return faces, k * np.array([a, a, b]) + [a, b, b], np.array(cofactors)


def _on_the_limit(
    score: np.ndarray, together: Together, limit: float, usable: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where V = limit and the score is stationary on a face of two or three usable actions, and
    inside it: M shares (M, 3) of actions (M, 3), and the contexts (M,) they are for, in order.
    """
    C, k = score.shape
    faces, products, cofactors = _faces(k)
    pairs, half, room = products.shape[1], together.half, limit - together.middle
    # contexts last
    form = (half @ half.swapaxes(1, 2) - room[:, :, None] * room[:, None]).reshape(C, -1).T
    aa, ab, bb = form.take(products, axis=0)  # (pairs, C)
    one, two, three, four, m = form.take(cofactors, axis=0)  # (3, 3, triples, C)
    adjugate = one * two - three * four
    own = score.T.take(faces.T[:, pairs:], axis=0)  # (3, triples, C)
    by_score, by_one = (adjugate * (own - own[0])).sum(axis=1), adjugate.sum(axis=1)
    # with M, not with A: where A is off by rounding the limit is met all the same
    m_score, m_one = (m * by_score).sum(axis=1), (m * by_one).sum(axis=1)
    ss, sl = (by_score * m_score).sum(axis=0), (by_score * m_one).sum(axis=0)
    ll = (by_one * m_one).sum(axis=0)
    shares = np.zeros((3, 2, len(faces), C))  # of each action, at the two roots
    # no root: no number, and not a policy
    with np.errstate(all="ignore"):
        far = -(ab + np.copysign(np.sqrt(ab * ab - aa * bb), ab))
        shares[0, 0, :pairs], shares[1, 0, :pairs] = bb, far
        shares[0, 1, :pairs], shares[1, 1, :pairs] = far, aa
        far = sl + np.copysign(np.sqrt(sl * sl - ss * ll), sl)
        np.subtract(ll * by_score, far * by_one, out=shares[:, 0, pairs:])
        np.subtract(far * by_score, ss * by_one, out=shares[:, 1, pairs:])
        shares /= shares.sum(axis=0)
        can = usable.T.take(faces.T, axis=0)[:, None]
        inside = ((shares >= 0) & (can | (shares == 0))).all(axis=0)
    row, root, face = inside.transpose(2, 0, 1).nonzero()
    return shares[:, root, face, row].T, row, faces[face]
