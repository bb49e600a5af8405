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
from gedppl.selection import Polytope, scaled_excess, select_policy

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
    short = JointRegion(mean[None, kept], R[None, kept], np.array([float(at_most)]), np.ones(len(kept), bool))
    if joint_width and width_weight > 0:
        best = _widest(score[kept], short, width_weight)
    else:
        best = short.best(score[kept])
    policy = np.zeros(len(score))
    policy[kept] = best
    return policy


class JointRegion:
    """The policies with V_j(π) = mean_j'π + ‖factor_j'π‖ ≤ limit_j for every j, with the cuts found so far.

    V is convex and homogeneous, so its tangents m + R R'π/‖R'π‖ lie below it and hold for any objective: a region that is asked
    again and again (round after round under one snapshot) is soon described by them.

    Parameters
    ----------
    mean, factor, limit
        (J, K), (J, K, q) and (J,). A cost that is known, or bounded action by action, has a factor of zeros.
    usable
        (K,) booleans: the actions that may be played.
    safe_action
        Where the way inside leads, if it keeps the limits; else the action of lowest bound does.
    """

    def __init__(
        self, mean: np.ndarray, factor: np.ndarray, limit: np.ndarray, usable: np.ndarray, safe_action: int | None = None
    ) -> None:
        self.mean, self.factor, self.limit, self.usable = mean, factor, limit, usable
        size = np.linalg.norm(factor, axis=2)
        self.upper = mean + size  # (J, K) action by action
        gap = np.abs(self.upper - limit[:, None])[:, usable].max(axis=1) + np.abs(mean - limit[:, None])[:, usable].max(axis=1)
        self.scale = np.where(gap > 0, gap, 1.0)
        self.cuts, self.of = list(mean), list(range(len(mean)))  # rows (K,), and the limit each belongs to
        for j, a in np.argwhere(size > 0).tolist():
            self._cut(j, np.eye(len(usable))[a])
        excess = np.where(usable, ((self.upper - limit[:, None]) / self.scale[:, None]).max(axis=0), np.inf)
        inside = safe_action is not None and excess[safe_action] <= 0
        self.safest = int(safe_action) if inside and safe_action is not None else int(np.argmin(excess))
        self._outer: Polytope | None = None

    def _cut(self, j: int, policy: np.ndarray) -> None:
        along = policy @ self.factor[j]
        self.cuts.append(self.mean[j] + self.factor[j] @ (along / np.linalg.norm(along)))
        self.of.append(j)
        self._outer = None

    def value(self, policy: np.ndarray) -> np.ndarray:
        """V_j(π), (J,). An action that is never played adds nothing, however dear."""
        return joint_cost(self.mean, self.factor, policy)

    def best(self, score: np.ndarray, played: np.ndarray | None = None, close: float = CLOSE) -> np.ndarray:
        """argmax score'π over the region: linear programmes over a growing set of tangents, then drawn inside.

        Ties of a linear programme go to the least `played`. `close`: how far above its limit the last one may end.
        """
        counts = np.zeros(len(score)) if played is None else played
        for _ in range(MOST_CUTS):
            if self._outer is None:
                excess, usable = scaled_excess(np.array(self.cuts)[None], self.limit[self.of][None], self.usable[None])
                self._outer = Polytope(excess[0], usable[0], None, None)  # many cuts have too many vertices to list
            try:
                policy = self._outer.best(score, counts)
            except InfeasibleError:
                raise self._refused() from None
            over = self.value(policy) - self.limit > close * self.scale
            if not over.any():
                break
            for j in np.flatnonzero(over).tolist():
                self._cut(j, policy)
        return self.drawn_inside(policy, close)

    def drawn_inside(self, policy: np.ndarray, close: float = CLOSE) -> np.ndarray:
        """The nearest point of the way to the safest action that keeps the limits; V is convex, so bisection will do."""
        if (self.value(policy) <= self.limit).all():
            return policy
        anchor = np.eye(len(policy))[self.safest]
        if (self.value(anchor) > self.limit).any():
            if (self.value(policy) > self.limit + close * self.scale).any():
                raise self._refused()
            return policy
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            if (self.value((1 - middle) * policy + middle * anchor) <= self.limit).all():
                high = middle
            else:
                low = middle
        return (1 - high) * policy + high * anchor

    def _refused(self) -> InfeasibleError:
        lowest = self.upper[:, self.safest]
        return InfeasibleError(
            f"no policy keeps the joint cost bound at or below {_said(self.limit)}: the lowest action-wise bound is "
            f"{_said(lowest)}; raise `at_most` or allow a cheaper action"
        )


def _said(values: np.ndarray) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def joint_cost(mean: np.ndarray, factor: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """mean'π + ‖factor'π‖: mean (..., J, K), factor (..., J, K, q) and policy (..., K) give (..., J)."""
    share = policy[..., None, :]
    mean, factor = np.where(share > 0, mean, 0.0), np.where(share[..., None] > 0, factor, 0.0)
    along = np.einsum("...k,...jkq->...jq", policy, factor)
    return np.einsum("...k,...jk->...j", policy, mean) + np.linalg.norm(along, axis=-1)


def _widest(score: np.ndarray, cost: JointRegion, weight: float) -> np.ndarray:
    """argmax score'π + 2 α ‖R'π‖ under V(π) ≤ τ, exactly.

    A convex objective on a convex set is largest at an extreme point: a vertex of the simplex inside the limit, or a point
    with V = τ. On V = τ the objective is linear, score'π + 2 α (τ - m'π). Maximise that over V ≤ τ: if the maximum sits on
    V = τ it is the answer there. Otherwise the linear objective peaks inside, at a vertex, and the best point of V = τ lies
    on an edge of the simplex (V ≥ τ is reverse convex), where V = τ is a quadratic in one number.
    """

    def worth(policy: np.ndarray) -> float:
        return float(score @ policy + 2 * weight * np.linalg.norm(policy @ cost.factor[0]))

    k = len(score)
    candidates = [np.eye(k)[a] for a in range(k) if cost.upper[0, a] <= cost.limit[0]]
    on_limit = cost.best(score - 2 * weight * cost.mean[0])
    candidates.append(on_limit)
    if cost.value(on_limit)[0] < cost.limit[0] - 10 * CLOSE * cost.scale[0]:
        candidates += [point for a, b in combinations(range(k), 2) for point in _edge_points(cost, a, b)]
    return max(candidates, key=worth)


def _edge_points(cost: JointRegion, a: int, b: int) -> list[np.ndarray]:
    """Points (1-p) a + p b with V = τ, drawn inside by rounding if need be."""
    mean, R, limit = cost.mean[0], cost.factor[0], cost.limit[0]
    step, gap, rest = R[b] - R[a], mean[b] - mean[a], limit - mean[a]
    # ‖R_a + p step‖ = rest - p gap, squared
    quadratic = [step @ step - gap * gap, 2 * (R[a] @ step + rest * gap), R[a] @ R[a] - rest * rest]
    points = []
    for root in np.roots(quadratic):
        p = float(np.real(root))
        if abs(np.imag(root)) > 1e-12 or not 0 <= p <= 1 or rest - p * gap < 0:
            continue
        for shift in (0.0, -1e-12, 1e-12, -1e-10, 1e-10):
            q = min(max(p + shift, 0.0), 1.0)
            point = np.zeros(len(mean))
            point[a], point[b] = 1 - q, q
            if cost.value(point)[0] <= limit + 1e-15 * cost.scale[0]:
                points.append(point)
                break
    return points
