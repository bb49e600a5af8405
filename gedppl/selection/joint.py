"""Selection when the costs of all actions are bounded together: linear-Gaussian sets.

An ellipsoid of parameters bounds the cost of a policy by V(π) = m'π + ‖R'π‖ (and below by m'π - ‖R'π‖, so that the width is
W(π) = 2‖R'π‖), which is at most the average of the action-wise bounds m_a + ‖R_a‖: a mixture of actions whose errors do not
line up is cheaper than its parts. What may be combined:

    V jointly, W by action    linear objective, one second-order cone: cutting planes
    V jointly, W jointly      a convex function is maximised, but exactly (`select_joint` with ``joint_width=True``)
    V by action, W by action  `gedppl.selection.select_policy`
    V by action, W jointly    refused: the optimism argument needs α γ W ≥ (1 - γ)(1 - r0), which fails there
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from gedppl.errors import InfeasibleError, NotFiniteError, SettingError, ShapeError
from gedppl.selection import select_policy

MOST_CUTS = 200
CLOSE = 1e-10  # how far above its limit, as a share of the costs' size, a cutting-plane optimum may end


def select_joint(
    score: Any,
    mean: Any,
    R: Any,
    at_most: float,
    *,
    width_weight: float = 0.0,
    joint_width: bool = False,
    joint_cost: bool = True,
    allowed: Any = None,
) -> np.ndarray:
    """The policy of highest score under ``m'π + ‖R'π‖ ≤ at_most``.

    Maximises ``score'π``, or with `joint_width` ``score'π + width_weight · 2‖R'π‖``.

    Parameters
    ----------
    score
        (K,). With ``joint_width=False`` it holds the action-wise width bonus already.
    mean, R
        (K,) estimated costs and (K, d) rows ρ V^{-1/2} φ_a; a known safe action has a row of zeros.
    at_most
        The limit τ.
    width_weight
        α ≥ 0, used with `joint_width`.
    joint_width, joint_cost
        Which of W and V are taken jointly; (W jointly, V by action) is not valid and refused.
    allowed
        (K,) booleans, or None for every action.

    Returns
    -------
    (K,) policy with V(π) ≤ at_most. Its support may exceed two actions. The cutting planes stop within 1e-10 of the limit and
    the result is then drawn inside, so its score is within about 1e-9 of the optimum.

    Examples
    --------
    >>> select_joint([0.0, 1.0, 1.0], [0.0, 0.3, 0.3], [[0, 0], [0.2, 0], [0, 0.2]], 0.4).round(3)
    array([0.094, 0.453, 0.453])
    """
    score, mean, R = np.asarray(score, float), np.asarray(mean, float), np.asarray(R, float)
    if score.ndim != 1 or mean.shape != score.shape or R.ndim != 2 or len(R) != len(score):
        raise ShapeError(f"need score (K,), mean (K,) and R (K, d), got {score.shape}, {mean.shape} and {R.shape}")
    if not (np.isfinite(score).all() and np.isfinite(mean).all() and np.isfinite(R).all() and np.isfinite(at_most)):
        raise NotFiniteError("`score`, `mean`, `R` and `at_most` must be finite; leave an action out with `allowed`")
    if not width_weight >= 0:
        raise SettingError(f"`width_weight` must not be negative, got {width_weight}")
    if joint_width and not joint_cost:
        raise SettingError(
            "a joint width with action-wise cost bounds breaks optimism: the width bonus no longer pays for the mixing with "
            "the safe action; take both jointly, or the cost jointly, or neither"
        )
    upper = mean + np.linalg.norm(R, axis=1)
    if not joint_cost:
        return select_policy(score, upper, at_most, allowed=allowed)
    can = np.ones(len(score), bool) if allowed is None else np.asarray(allowed)
    if can.shape != score.shape or can.dtype != bool:
        raise ShapeError(f"`allowed` must be {len(score)} booleans, got {can.dtype} of shape {can.shape}")
    (kept,) = np.nonzero(can)
    if not len(kept):
        raise InfeasibleError("no action is allowed: `allowed` is False everywhere; allow the safe action at least")
    short = _JointCost(mean[kept], R[kept], float(at_most))
    if joint_width and width_weight > 0:
        best = _widest(score[kept], short, width_weight)
    else:
        best = short.maximise(score[kept])
    policy = np.zeros(len(score))
    policy[kept] = best
    return policy


class _JointCost:
    """V(π) = m'π + ‖R'π‖ and its limit, with the cuts found so far (they hold for any objective)."""

    def __init__(self, mean: np.ndarray, R: np.ndarray, limit: float) -> None:
        self.mean, self.R, self.limit = mean, R, limit
        size = np.linalg.norm(R, axis=1)
        self.upper = mean + size
        self.scale = float(np.abs(self.upper - limit).max()) + float(np.abs(mean - limit).max()) or 1.0
        # V is convex and homogeneous, so its tangents m + R R'π/‖R'π‖ lie below it; start with those at the vertices
        self.cuts = [mean + R @ (row / length) for row, length in zip(R, size) if length > 0] + [mean]

    def value(self, policy: np.ndarray) -> float:
        return float(self.mean @ policy + np.linalg.norm(self.R.T @ policy))

    def maximise(self, score: np.ndarray) -> np.ndarray:
        """argmax score'π under V(π) ≤ limit: linear programs over a growing set of tangents."""
        safest = int(np.argmin(self.upper))
        for _ in range(MOST_CUTS):
            try:
                policy = _linear(score, np.array(self.cuts), self.limit, self.scale)
            except InfeasibleError:
                raise InfeasibleError(
                    f"no policy keeps the joint cost bound at or below {self.limit:.6g}: the lowest action-wise bound is "
                    f"{self.upper[safest]:.6g}; raise `at_most` or allow a cheaper action"
                ) from None
            if self.value(policy) <= self.limit + CLOSE * self.scale:
                break
            along = self.R.T @ policy
            self.cuts.append(self.mean + self.R @ (along / np.linalg.norm(along)))
        return self._drawn_inside(policy, safest)

    def _drawn_inside(self, policy: np.ndarray, safest: int) -> np.ndarray:
        """The nearest point of the way to the safest action that keeps the limit; V is convex, so bisection will do."""
        if self.value(policy) <= self.limit:
            return policy
        anchor = np.eye(len(policy))[safest]
        if self.value(anchor) > self.limit:
            if self.value(policy) > self.limit + CLOSE * self.scale:
                raise InfeasibleError(
                    f"no policy was found with a joint cost bound at or below {self.limit:.6g}; the best has "
                    f"{self.value(policy):.6g}; raise `at_most` or allow a cheaper action"
                )
            return policy
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            if self.value((1 - middle) * policy + middle * anchor) <= self.limit:
                high = middle
            else:
                low = middle
        return (1 - high) * policy + high * anchor


def _linear(score: np.ndarray, cuts: np.ndarray, limit: float, scale: float) -> np.ndarray:
    """argmax score'π on the simplex under cuts π ≤ limit, by HiGHS."""
    from scipy.optimize import linprog

    spread = float(np.ptp(score)) or 1.0
    solved = linprog(
        -(score - score.max()) / spread,
        A_ub=(cuts - limit) / scale,
        b_ub=np.zeros(len(cuts)),
        A_eq=np.ones((1, len(score))),
        b_eq=[1.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solved.status != 0:
        raise InfeasibleError(solved.message)
    policy = np.clip(solved.x, 0.0, None)
    return policy / policy.sum()


def _widest(score: np.ndarray, cost: _JointCost, weight: float) -> np.ndarray:
    """argmax score'π + 2 α ‖R'π‖ under V(π) ≤ τ, exactly.

    A convex objective on a convex set is largest at an extreme point: a vertex of the simplex inside the limit, or a point
    with V = τ. On V = τ the objective is linear, score'π + 2 α (τ - m'π). Maximise that over V ≤ τ: if the maximum sits on
    V = τ it is the answer there. Otherwise the linear objective peaks inside, at a vertex, and the best point of V = τ lies
    on an edge of the simplex (V ≥ τ is reverse convex), where V = τ is a quadratic in one number.
    """

    def worth(policy: np.ndarray) -> float:
        return float(score @ policy + 2 * weight * np.linalg.norm(cost.R.T @ policy))

    k = len(score)
    candidates = [np.eye(k)[a] for a in range(k) if cost.upper[a] <= cost.limit]
    on_limit = cost.maximise(score - 2 * weight * cost.mean)
    candidates.append(on_limit)
    if cost.value(on_limit) < cost.limit - 10 * CLOSE * cost.scale:
        candidates += [point for a, b in combinations(range(k), 2) for point in _edge_points(cost, a, b)]
    return max(candidates, key=worth)


def _edge_points(cost: _JointCost, a: int, b: int) -> list[np.ndarray]:
    """Points (1-p) a + p b with V = τ, drawn inside by rounding if need be."""
    step, gap = cost.R[b] - cost.R[a], cost.mean[b] - cost.mean[a]
    rest = cost.limit - cost.mean[a]
    # ‖R_a + p step‖ = rest - p gap, squared
    quadratic = [step @ step - gap * gap, 2 * (cost.R[a] @ step + rest * gap), cost.R[a] @ cost.R[a] - rest * rest]
    points = []
    for root in np.roots(quadratic):
        p = float(np.real(root))
        if abs(np.imag(root)) > 1e-12 or not 0 <= p <= 1 or rest - p * gap < 0:
            continue
        for shift in (0.0, -1e-12, 1e-12, -1e-10, 1e-10):
            q = min(max(p + shift, 0.0), 1.0)
            point = np.zeros(len(cost.mean))
            point[a], point[b] = 1 - q, q
            if cost.value(point) <= cost.limit + 1e-15 * cost.scale:
                points.append(point)
                break
    return points
