"""The best policy where listing every vertex would take too long: the upper concave hull for one
limit, HiGHS for several."""

from __future__ import annotations

import numpy as np

from gedppl.errors import InfeasibleError


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
