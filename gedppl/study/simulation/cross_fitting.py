"""How a world of real rows judges a policy: by regressions that have not seen the row they judge.

Axis letters: n rows, D features, K feature tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit

MEAN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "logistic": expit,
    "poisson": lambda eta: np.exp(np.clip(eta, -30, 30)),
}
FOLDS = 5


def folds_of(x: np.ndarray) -> np.ndarray:
    """A fold for every row of x (n, dx). Equal rows share one, so that a cross-fitted value is a
    function of x.
    """
    _, group = np.unique(x, axis=0, return_inverse=True)
    group = group.ravel()
    found: np.ndarray = np.random.default_rng(0).integers(FOLDS, size=group.max() + 1)[group]
    return found


def cross_fit(
    fold: np.ndarray,
    features: np.ndarray,
    y: np.ndarray,
    family: str,
    at: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """E[y | features] for every row from a fit without its fold: (n,), or (n, K) at the K feature
    tables in `at`.

    family "logistic" (y in [0, 1], fractions allowed) or "poisson" (y >= 0); only the mean must be
    right, not the noise.
    """
    places = [features] if at is None else at
    out = np.zeros((len(features), len(places)))
    for k in np.unique(fold):
        w = regression(features[fold != k], y[fold != k], family)
        for j, place in enumerate(places):
            out[fold == k, j] = MEAN[family](place[fold == k] @ w)
    return out[:, 0] if at is None else out


def regression(features: np.ndarray, y: np.ndarray, family: str, ridge: float = 1.0) -> np.ndarray:
    """Maximum likelihood by Newton's method, (D,), with a ridge of one pseudo-row so that rare
    columns stay finite.
    """
    w = np.zeros(features.shape[1])
    for _ in range(50):
        mean = MEAN[family](features @ w)
        weight = mean * (1 - mean) if family == "logistic" else mean
        hessian = (features * weight[:, None]).T @ features + ridge * np.eye(len(w))
        step = np.linalg.solve(hessian, features.T @ (y - mean) - ridge * w)
        w = w + step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))
        if np.abs(step).max() < 1e-8:
            break
    return w
