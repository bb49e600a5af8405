"""Quantiles of weighted values.

Axis letters: S values.
"""

from __future__ import annotations

import numpy as np

ROUNDING = 1e-12  # share of the level: sums of weights are known to this


def quantile_index(values: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Which of values (S, m) is the smallest v with P(value <= v) >= level, under weights (S,):
    (m,).

    >>> quantile_index(np.array([[3.0], [1.0], [2.0], [4.0]]), np.full(4, 0.25), 0.75)
    array([0])
    """
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    at = np.argmax(below >= level * below[-1] * (1 - ROUNDING), axis=0)
    found: np.ndarray = np.take_along_axis(order, at[None], axis=0)[0]
    return found
