r"""The largest linear form over a convex likelihood set cut by walls: signs, boxes, and the domain of a link at the rows seen.

    max phi'v    subject to    slack(v) >= 0,    A v <= b

by a primal-dual interior-point method (Boyd and Vandenberghe, Convex Optimization, 11.7). At any v inside, with any multipliers
mu, lambda >= 0, concavity gives for every member v'

    phi'v' <= phi'v + mu slack(v) + lambda'(b - A v) + r'(v' - v),     r = phi + mu grad slack - A'lambda,

so that what is returned is an upper bound up to the residual r, which Newton's method brings to rounding.

Axis letters: D parameters, w walls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from gedppl.learning.likelihoods import PredictorData
from gedppl.learning.program_sets import Plausible

SHARPER = 10.0  # how much smaller a gap each step aims at
GAP = 1e-9  # share of the way gone, and of the form's size for the residual: near enough
STEPS = 80
FIRST_GROWTH = 20.0  # of the slack's weight against the walls', in search of a first member
FARTHEST = 1e8  # standard errors: a form that goes on like this has no end


@dataclass(frozen=True)
class Walls:
    """A v <= b."""

    normals: np.ndarray  # (w, D)
    limits: np.ndarray  # (w,)

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray, data: PredictorData) -> Walls:
        """A box (D,), with open sides, and the domain of the link at the rows seen."""
        eye = np.eye(len(low))
        normals, limits = [eye[np.isfinite(high)], -eye[np.isfinite(low)]], [high[np.isfinite(high)], -low[np.isfinite(low)]]
        least, most = data.family.domain
        if data.table is not None and (np.isfinite(least) or np.isfinite(most)):
            rows = np.unique(data.table.x[:, : data.dim + 1], axis=0)
            for sign, end in ((-1.0, least), (1.0, most)):
                if np.isfinite(end):
                    normals.append(sign * rows[:, :-1])
                    limits.append(sign * (end - rows[:, -1]))
        a, b = np.vstack(normals), np.concatenate(limits)
        used = np.any(a != 0, axis=1)
        return cls(a[used], b[used])

    def broken(self, v: np.ndarray) -> np.ndarray:
        """Whether each v (M, D) lies beyond a wall, by more than rounding."""
        room = 1e-9 * np.maximum(np.abs(self.limits), np.linalg.norm(self.normals, axis=1) * np.linalg.norm(v, axis=1)[:, None])
        return np.any(v @ self.normals.T > self.limits + room, axis=1)

    def inner_point(self, near: np.ndarray, unit: np.ndarray) -> np.ndarray | None:
        """A point well inside all walls, as near as may be in steps of `unit` (D,); None if there is none."""
        D = len(near)
        size = np.linalg.norm(self.normals * unit, axis=1)
        found = linprog(
            np.append(np.full(D, 0.0), -1.0),
            A_ub=np.hstack([self.normals * unit, size[:, None]]),
            b_ub=self.limits - self.normals @ near,
            bounds=[(-1e3, 1e3)] * D + [(0.0, 1.0)],
        )
        return near + unit * found.x[:D] if found.status == 0 and found.x[D] > 1e-9 else None


Look = tuple[float, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Inside:
    """The set behind its walls, in coordinates divided by `unit`."""

    chosen: Plausible
    walls: Walls
    unit: np.ndarray

    @classmethod
    def of(cls, chosen: Plausible, walls: Walls) -> _Inside:
        return cls(chosen, walls, 1.0 / np.maximum(np.linalg.norm(chosen.region.chol, axis=1), 1e-300))

    def room(self, v: np.ndarray) -> np.ndarray:
        return self.walls.limits - self.walls.normals @ v

    def look(self, v: np.ndarray) -> Look | None:
        """slack, its gradient and minus its Hessian, in these coordinates; None outside the walls or where it is no number."""
        if self.room(v).min() <= 0:
            return None
        slack, grad = self.chosen.region.slack_grad(v[None])
        information = self.chosen.data.information(v)
        if not (np.isfinite(slack[0]) and np.isfinite(grad).all() and np.isfinite(information).all()):
            return None
        return float(slack[0]), grad[0] * self.unit, information * np.outer(self.unit, self.unit)

    def raised(self, v: np.ndarray, weight: float) -> tuple[np.ndarray, bool]:
        """Newton steps up weight * slack + sum log room; the point reached, and whether its slack is positive."""
        seen = self.look(v)
        for _ in range(STEPS):
            if seen is None or seen[0] > 0:
                break
            slack, grad, information = seen
            lean = self.walls.normals * self.unit / self.room(v)[:, None]
            slope, curve = weight * grad - lean.sum(axis=0), weight * information + lean.T @ lean
            step = _solved(curve, slope)
            gain = float(slope @ step)
            if not np.isfinite(gain) or gain < 1e-10:
                break
            for share in 0.5 ** np.arange(40.0):
                move = share * self.unit * step
                there = self.look(v + move)
                if there is None:
                    continue
                rise = weight * (there[0] - slack) + float(np.sum(np.log1p(-(self.walls.normals @ move) / self.room(v))))
                if rise >= 0.1 * share * gain:
                    v, seen = v + move, there
                    break
            else:
                break
        return v, seen is not None and seen[0] > 0


def _solved(curve: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.linalg.solve(curve + 1e-13 * np.trace(curve) * np.eye(len(slope)), slope)


def member_inside(chosen: Plausible, walls: Walls) -> np.ndarray | None:
    """A member of the set strictly inside the walls; None if none was found."""
    inside, v = _Inside.of(chosen, walls), chosen.region.centre
    if inside.room(v).min() <= 0:
        inner = walls.inner_point(v, inside.unit)
        if inner is None:
            return None
        v = inner
    for power in range(12):
        v, found = inside.raised(v, FIRST_GROWTH**power)
        if found:
            return v
    return None


def farthest_inside(chosen: Plausible, walls: Walls, phi: np.ndarray, start: np.ndarray) -> tuple[float, np.ndarray]:
    """An upper bound of phi'v over the set inside the walls, and a member that almost attains it; inf if there is no end.

    start: from `member_inside`.
    """
    inside = _Inside.of(chosen, walls)
    v, seen, goal, lean = start, inside.look(start), phi * inside.unit, walls.normals * inside.unit
    size = float(np.linalg.norm(goal))
    if seen is None or seen[0] <= 0 or size == 0:
        return (0.0 if size == 0 else np.inf), start
    free = np.append(seen[0], inside.room(v))  # the constraints' slacks, the set's own first
    duals = size / free
    for _ in range(STEPS):
        _, grad, information = seen
        slopes = np.vstack([grad, -lean])  # of the constraints' slacks
        residual = goal + duals @ slopes
        gap, gone = float(duals @ free), abs(float(phi @ (v - start)))
        if np.linalg.norm((v - start) / inside.unit) > FARTHEST:
            return np.inf, v
        if gap <= GAP * max(gone, GAP * size) and np.linalg.norm(residual) <= GAP * size:
            return float(phi @ v) + gap, v
        aim = gap / (SHARPER * len(free))
        curve = duals[0] * information + (slopes * (duals / free)[:, None]).T @ slopes
        step = _solved(curve, goal + aim * (1 / free) @ slopes)
        change = -duals + (aim - duals * (slopes @ step)) / free
        shrinking = change < 0
        share = 0.99 * min(1.0, float(np.min(-duals[shrinking] / change[shrinking], initial=1.0 / 0.99)))
        before = np.sqrt(np.sum(residual**2) + np.sum((duals * free - aim) ** 2))
        for _ in range(50):
            trial, trial_duals = v + share * inside.unit * step, duals + share * change
            there = inside.look(trial)
            if there is not None and there[0] > 0:
                trial_free = np.append(there[0], inside.room(trial))
                left = goal + trial_duals @ np.vstack([there[1], -lean])
                if np.sqrt(np.sum(left**2) + np.sum((trial_duals * trial_free - aim) ** 2)) <= (1 - 0.01 * share) * before:
                    break
            share *= 0.5
        else:
            near = gap <= 1e-6 * gone and np.linalg.norm(residual) <= 1e-6 * size  # no step helps any more: rounding
            return (float(phi @ v) + gap if near else np.inf), v
        v, seen, duals, free = trial, there, trial_duals, trial_free
    return np.inf, v
