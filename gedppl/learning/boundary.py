"""Climbs that Newton's method cannot make: without a Hessian, and along the boundary of a set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from gedppl.learning.fits import Objective, units


def lbfgs(objective: Objective, start: np.ndarray, max_steps: int = 1000) -> tuple[np.ndarray, str]:
    """Maximise from start (D,) by L-BFGS, in standard errors, since its tolerances are absolute;
    its success flag is not read.
    """
    unit = units(objective.precision(start))

    def loss(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = objective.value_grad(scaled / unit)
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            return 1e100, np.zeros_like(scaled)  # the line search then backs off
        return -value, -grad / unit

    options = {
        "maxiter": max_steps,
        "maxfun": 4 * max_steps,
        "ftol": 1e-15,
        "gtol": 1e-9,
        "maxcor": 20,
    }
    result = minimize(loss, unit * start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(result.x, float) / unit, f"ended after {result.nit} L-BFGS steps"


def segment_to_boundary(
    inside: Callable[[np.ndarray], np.ndarray], anchor: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """For points (M, D), the farthest point still inside on each segment from ``anchor`` (D,),
    by bisection.
    """
    low, high = np.zeros(len(points)), np.ones(len(points))
    low[np.asarray(inside(points), bool)] = 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        good = np.asarray(inside(anchor + middle[:, None] * (points - anchor)), bool)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    found: np.ndarray = anchor + low[:, None] * (points - anchor)
    return found


def climb_boundary(
    objective: Objective,
    inside: Callable[[np.ndarray], np.ndarray],
    anchor: np.ndarray,
    theta: np.ndarray,
) -> np.ndarray:
    """The best point found on the boundary of a region that is star-shaped around ``anchor``, near
    theta (D,).

    Tangent Newton steps, each pulled back to the region along the ray from the anchor. Only a
    membership test is needed: the outward normal comes from how the boundary point of a ray turns
    when the ray does.
    """
    theta = segment_to_boundary(inside, anchor, theta[None])[0]
    value, grad = objective.value_grad(theta)
    for _ in range(60):
        precision = objective.precision(theta)
        # everything in standard errors, so that no coordinate's unit matters
        unit = units(precision)
        normal = _normal(inside, anchor, theta, unit)
        values, vectors = np.linalg.eigh(precision / np.outer(unit, unit))
        size = np.maximum(
            np.abs(values), 1e-8 * max(np.abs(values).max(initial=0.0), np.finfo(float).tiny)
        )
        towards, outward = (vectors @ ((vectors.T @ part) / size) for part in (grad / unit, normal))
        excess = float(normal @ towards) / max(float(normal @ outward), np.finfo(float).tiny)
        move = (towards - max(excess, 0.0) * outward) / unit  # an inward step needs no correction
        for halving in range(30):
            trial = segment_to_boundary(inside, anchor, (theta + 0.5**halving * move)[None])[0]
            trial_value, trial_grad = objective.value_grad(trial)
            if np.isfinite(trial_grad).all() and trial_value > value:
                break
        else:
            return theta
        gained, theta, value, grad = trial_value - value, trial, trial_value, trial_grad
        if gained < 1e-10:
            return theta
    return theta


def _normal(
    inside: Callable[[np.ndarray], np.ndarray],
    anchor: np.ndarray,
    theta: np.ndarray,
    unit: np.ndarray,
) -> np.ndarray:
    """Gradient at theta of the region's gauge around the anchor, by central differences: (D,),
    of coordinates times `unit`.
    """
    nudge = 1e-4 * float(np.linalg.norm(unit * (theta - anchor)))
    if nudge == 0.0:
        return np.zeros(len(theta))  # the anchor itself is the best point
    steps = nudge * np.diag(1 / unit)
    around = np.concatenate([theta + steps, theta - steps])
    # well outside, so that the segment crosses the boundary
    rays = anchor + 2.0 * (around - anchor)
    reach = np.linalg.norm(unit * (segment_to_boundary(inside, anchor, rays) - anchor), axis=1)
    gauge = np.linalg.norm(unit * (around - anchor), axis=1) / np.maximum(
        reach, np.finfo(float).tiny
    )
    found: np.ndarray = (gauge[: len(theta)] - gauge[len(theta) :]) / (2 * nudge)
    return found
