"""Algorithm 1 of the paper, written out slowly for finite classes of Bernoulli densities. Shares no
code with gedppl.

Tables F (M, X, K) and G (M, X, K) hold the success probability of every member at every context and
action.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np


def mle(table: np.ndarray, xs: list[int], actions: list[int], outcomes: list[float]) -> int:
    best, best_value = 0, -math.inf
    for m in range(len(table)):
        value = 0.0
        for x, a, y in zip(xs, actions, outcomes):
            p = table[m, x, a]
            value += math.log(p) if y == 1 else math.log(1 - p)
        if value > best_value + 1e-12:
            best, best_value = m, value
    return best


def hellinger2(p: float, q: float) -> float:
    return 1 - math.sqrt(p * q) - math.sqrt((1 - p) * (1 - q))


def confidence_set(
    table: np.ndarray,
    xs: list[int],
    actions: list[int],
    outcomes: list[float],
    t: int,
    delta: float,
) -> list[int]:
    """{g : sum_i H^2(g_hat, g) <= Est(G, t, delta / (2 t^3))}, with Est = log(|G| / delta')."""
    hat = mle(table, xs, actions, outcomes)
    est = math.log(len(table) * 2 * t**3 / delta)
    members = []
    for m in range(len(table)):
        total = sum(hellinger2(table[hat, x, a], table[m, x, a]) for x, a in zip(xs, actions))
        if total <= est:
            members.append(m)
    return members


def mean_inverse_count(probabilities: list[float]) -> float:
    """E[1/(N+1)] with N a sum of independent Bernoullis, by dynamic programming over its whole
    distribution.
    """
    mass = [1.0]
    for p in probabilities:
        longer = [0.0] * (len(mass) + 1)
        for n, w in enumerate(mass):
            longer[n] += w * (1 - p)
            longer[n + 1] += w * p
        mass = longer
    return sum(w / (n + 1) for n, w in enumerate(mass))


def best_policy(
    score: np.ndarray, cost: np.ndarray, limit: float, played: np.ndarray
) -> np.ndarray:
    """The best mixture of at most two actions under the limit, by trying them all; ties to the
    least played.
    """
    K = len(score)
    candidates = []
    for a in range(K):
        if cost[a] <= limit:
            candidates.append((score[a], played[a], a, np.eye(K)[a]))
    for a, b in combinations(range(K), 2):
        low, high = (a, b) if cost[a] <= cost[b] else (b, a)
        if cost[low] <= limit < cost[high]:
            w = (limit - cost[low]) / (cost[high] - cost[low])
            policy = (1 - w) * np.eye(K)[low] + w * np.eye(K)[high]
            candidates.append((policy @ score, policy @ played, K + a * K + b, policy))
    top = max(c[0] for c in candidates)
    tied = [c for c in candidates if c[0] >= top - 1e-12]
    return min(tied, key=lambda c: (c[1], c[2]))[3]


def algorithm_1(
    F: np.ndarray,
    G: np.ndarray,
    xs: list[int],
    actions: list[int],
    ys: list[float],
    zs: list[float],
    x: int,
    *,
    safe_action: int,
    safe_value: float,
    safe_utility: float,
    limit: float,
    delta: float,
) -> np.ndarray:
    """The policy of round t = len(actions) + 1 at context x, given the history. Warm-up: rounds
    1, ..., K.
    """
    K, t = F.shape[2], len(actions) + 1
    if t <= K:
        return np.eye(K)[t - 1]
    alpha = (1 - safe_utility) / (limit - safe_value)
    past: list[np.ndarray] = []
    for i in range(K + 1, t + 1):
        data = (xs[: i - 1], actions[: i - 1])
        f_hat = mle(F, *data, ys[: i - 1])
        members = confidence_set(G, *data, zs[: i - 1], i, delta)
        upper = np.array([max(G[m, x, a] for m in members) for a in range(K)])
        lower = np.array([min(G[m, x, a] for m in members) for a in range(K)])
        upper[safe_action] = lower[safe_action] = safe_value
        log_class = math.log(2 * len(F) * i**3 / delta)
        beta = math.sqrt((34 * log_class + 2 * log_class) * i / K)
        bonus = np.array([mean_inverse_count([p[a] for p in past]) for a in range(K)])
        score = F[f_hat, x] + beta * bonus + alpha * (upper - lower)
        played = np.sum(past, axis=0) if past else np.zeros(K)
        past.append(best_policy(score, upper, limit, played))
    return past[-1]
