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
CANDIDATES_AT_ONCE = 500_000  # numbers in a list of them
DEEPEST = 1 - 1e-6  # radii from the centre at which a declared cost still cuts a set
ROUNDING = 1e-13  # share of the costs in play by which V may exceed the limit


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
    return polished / polished.sum()


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
# On a face of the simplex, pi = e_0 + sum_i w_i (e_i - e_0), the score is s'w + constant. With
# m, D the differences of middle and half, h = half_0 and r = limit - middle_0 - m'w the room, the
# best point of V = limit has a multiple k of the price of the limit with D'(h + D w) = k s - r m,
# hence w = Q^-1 (k s - r m - D'h), Q = D'D: linear in k, since r is. That |h + D w| = r is then a
# quadratic equation for k. Faces of two and three actions are solved so; more than three hardly
# ever gain (on the linear problems of `benchmarks/regret.py` nothing that could be measured).
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
        return found if policy.ndim == 3 else found[:, 0]

    def pinned(self, action: int, value: np.ndarray) -> Together:
        """With the cost of one action known, value (C,)."""
        middle, half = self.middle.copy(), self.half.copy()
        middle[:, action], half[:, action] = value, 0.0
        return Together(middle, half)

    def held(self, action: int, most: np.ndarray) -> Together:
        """With the cost of one action declared to be at most so much, most (C,).

        Where c_0 <= most every cost is at most c_a - l (c_0 - most), for any l >= 0. That is again
        linear in the one parameter that all share, and l is chosen for each action so that its own
        largest value is smallest: the largest of a linear form over the part of the ball where c_0
        keeps its word. Where no part does (the declaration is refuted), or all of it, l = 0.
        """
        wall, room = self.half[:, action], most - self.middle[:, action]
        price = price_of_wall(self.half, wall[:, None], room[:, None])
        price[:, action] = 0.0
        return Together(
            self.middle + price * room[:, None],
            self.half - price[:, :, None] * wall[:, None],
        )

    @property
    def each(self) -> np.ndarray:
        """(C, K) the largest cost of every action by itself."""
        return self.middle + np.sqrt((self.half**2).sum(axis=2))

    def only(self, contexts: slice | np.ndarray) -> Together:
        return Together(self.middle[contexts], self.half[contexts])

    def among(self, actions: np.ndarray) -> Together:
        """For actions (C, k) of each context."""
        return Together(
            np.take_along_axis(self.middle, actions, 1),
            np.take_along_axis(self.half, actions[:, :, None], 1),
        )


@np.errstate(all="ignore")  # no wall at all: no number, and no price
def price_of_wall(half: np.ndarray, wall: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The l >= 0 that makes |half - l wall| + l room smallest, the largest half'v over |v| <= 1
    with wall'v <= room; 0 where the wall leaves everything, or nothing. half, wall (..., r), room
    (...).
    """
    size = np.sqrt((wall * wall).sum(axis=-1))
    depth = room / size  # of the cut, in radii: -1 leaves nothing, 1 everything
    along = (half * wall).sum(axis=-1) / size
    across = np.sqrt(np.maximum((half * half).sum(axis=-1) - along**2, 0.0))
    price = (along - across * depth / np.sqrt(1 - depth**2)) / size
    found: np.ndarray = np.where((np.abs(depth) < DEEPEST) & (price > 0), price, 0.0)
    return found


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
    top, now = reward.max(axis=1), np.sum(np.where(policy > 0, policy * score, 0.0), axis=1)
    size = np.ptp(np.where(usable, score, top[:, None]), axis=1)
    tolerance = 1e-10 * size + 1e-12 * np.abs(top)
    (bound,) = np.nonzero(top > now + tolerance)  # where the limit holds the policy back
    if not len(bound):
        return policy
    found = policy.copy()
    K = score.shape[1]
    step = max(1, CANDIDATES_AT_ONCE // (3 * min(K, MOST_TOGETHER) ** 4))
    for first in range(0, len(bound), step):
        some = bound[first : first + step]
        near, own, can = together.only(some), score[some], usable[some]
        actions = np.broadcast_to(np.arange(K), own.shape)
        if K > MOST_TOGETHER:
            actions = _promising(policy[some], reward[some], near)
            near, own, can = (
                near.among(actions),
                *(np.take_along_axis(part, actions, 1) for part in (own, can)),
            )
        tried = _on_the_limit(own, near, limit)
        kept = ((tried >= 0) & (can[:, None] | (tried == 0))).all(axis=2)
        tried = np.where(kept[:, :, None], tried, 0.0)
        slack = ROUNDING * (abs(limit) + np.abs(near.middle).max(axis=1))
        kept &= near.worst(tried) <= (limit + slack)[:, None]
        value = np.where(kept, (tried @ own[:, :, None])[:, :, 0], -np.inf)
        best = value.max(axis=1)
        for i in np.flatnonzero(best > now[some] + tolerance[some]):
            tied = np.flatnonzero(value[i] >= best[i] - tolerance[some[i]])
            counts = played if played.ndim == 1 else played[some[i]]
            least = tied[np.argmin(tried[i, tied] @ counts[actions[i]])]
            found[some[i]] = 0.0
            found[some[i], actions[i]] = tried[i, least]
    return found


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
def _faces(k: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, 3) actions of every pair and triple of k, the second repeated in a pair; and which are
    pairs (n,).
    """
    pairs = [(a, b, b) for a, b in combinations(range(k), 2)]
    faces = np.array([*pairs, *combinations(range(k), 3)], np.intp).reshape(-1, 3)
    return faces, np.arange(len(faces)) < len(pairs)


@np.errstate(all="ignore")  # parallel halves, no root: no number, and not a policy
def _on_the_limit(score: np.ndarray, together: Together, limit: float) -> np.ndarray:
    """(C, 2n, k): where V = limit and the score is stationary on every face of two or three
    actions; negative shares, or none that is a number, where that lies outside the face.
    """
    faces, pair = _faces(score.shape[1])
    a, b, c = faces.T
    gram = together.half @ np.swapaxes(together.half, 1, 2)
    mid = together.middle
    s1, s2 = score[:, b] - score[:, a], score[:, c] - score[:, a]
    m1, m2 = mid[:, b] - mid[:, a], mid[:, c] - mid[:, a]
    g, room = gram[:, a, a], limit - mid[:, a]
    h1, h2 = gram[:, a, b] - g, gram[:, a, c] - g
    q11, q22 = gram[:, b, b] - gram[:, a, b] - h1, gram[:, c, c] - gram[:, a, c] - h2
    q12 = gram[:, b, c] - gram[:, a, b] - h2
    determinant = q11 * q22 - q12**2

    def solved(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (q22 * x - q12 * y) / determinant, (q11 * y - q12 * x) / determinant

    (sx, sy), (mx, my), (hx, hy) = solved(s1, s2), solved(m1, m2), solved(h1, h2)
    curbed = 1 - m1 * mx - m2 * my
    # the room is r = start + slope k
    start, slope = (room + m1 * hx + m2 * hy) / curbed, -(m1 * sx + m2 * sy) / curbed
    ux, uy = sx - slope * mx, sy - slope * my  # w = k u + v
    vx, vy = -start * mx - hx, -start * my - hy
    # a pair has one share, w = k: nothing is left to choose but where it meets the limit
    start, slope = np.where(pair, room, start), np.where(pair, -m1, slope)
    ux, uy, vx, vy = (np.where(pair, one, of) for one, of in zip((1, 0, 0, 0), (ux, uy, vx, vy)))

    def squared(x: np.ndarray, y: np.ndarray, z: np.ndarray, w: np.ndarray) -> np.ndarray:
        return q11 * x * z + q12 * (x * w + y * z) + q22 * y * w

    two = squared(ux, uy, ux, uy) - slope**2
    one = squared(ux, uy, vx, vy) + h1 * ux + h2 * uy - start * slope
    none = squared(vx, vy, vx, vy) + 2 * (h1 * vx + h2 * vy) + g - start**2
    far = -(one + np.copysign(np.sqrt(one**2 - two * none), one))
    out = np.zeros((len(score), 2 * len(faces), score.shape[1]))
    row = np.arange(len(faces))
    for part, k in enumerate((far / two, none / far)):
        x, y = k * ux + vx, k * uy + vy
        here = row + part * len(faces)
        out[:, here, b] += x
        out[:, here, c] += y
        out[:, here, a] = 1 - x - y
    return out
