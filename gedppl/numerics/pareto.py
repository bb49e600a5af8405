"""Importance weights judged and smoothed by their tail.

The largest of S importance ratios are fitted by a generalised Pareto distribution and replaced by
its quantiles; its shape k-hat says how far the weights can be believed: below 0.7 estimates
converge at a useful rate, above they need not.

Reference: Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto smoothed importance sampling"; the fit is
that of Zhang and Stephens, "A new and efficient estimation method for the generalized Pareto
distribution".

Axis letters: S draws, n rows.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

SMALLEST_TAIL = 5  # values from which a tail can be fitted
PRIOR_SHAPE, PRIOR_WEIGHT = 0.5, 10.0  # a weak pull of k-hat, as in the reference


def effective_size(log_weights: np.ndarray) -> float:
    """1 / sum_s w_s^2 of normalised weights: how many equal draws these (S,) are worth.

    >>> round(effective_size(np.zeros(7)), 9), round(effective_size(np.log([0.5, 0.5, 1e-300])), 9)
    (7.0, 2.0)
    """
    normalised = log_weights - logsumexp(log_weights)
    return float(np.exp(-logsumexp(2 * normalised)))


def fit_tail(values: np.ndarray) -> tuple[float, float]:
    """Shape k and scale sigma of a generalised Pareto distribution fitted to values (n,) > 0,
    sorted upwards.
    """
    n = len(values)
    grid = 30 + int(math.sqrt(n))
    quartile = values[int(n / 4 + 0.5) - 1]
    b = 1 / values[-1] + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quartile)
    shape = np.mean(np.log1p(-b[:, None] * values), axis=1)
    profile = n * (np.log(-b / shape) - shape - 1)
    mean_b = float(np.exp(profile - logsumexp(profile)) @ b)
    k = float(np.mean(np.log1p(-mean_b * values)))
    sigma = -k / mean_b
    return (n * k + PRIOR_WEIGHT * PRIOR_SHAPE) / (n + PRIOR_WEIGHT), sigma


def smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Normalised log weights (S,) with their tail smoothed, and k-hat.

    k-hat is -inf where all weights are equal, and inf where fewer than five values stand out to
    judge by.
    """
    logs = np.where(np.isnan(log_weights), -np.inf, np.asarray(log_weights, float))
    logs = logs - logs.max()
    if not np.isfinite(logs).any():
        raise ValueError("every weight is 0: there is nothing to normalise")
    if np.all(logs == logs[0]):
        return logs - logsumexp(logs), -np.inf
    S = len(logs)
    length = math.ceil(min(0.2 * S, 3 * math.sqrt(S)))
    order = np.argsort(logs, kind="stable")
    cutoff = (
        max(float(logs[order[-length - 1]]), math.log(np.finfo(float).tiny))
        if length < S
        else -np.inf
    )
    # by what rounding leaves of the difference
    tail = order[np.exp(logs[order]) > math.exp(cutoff)]
    if len(tail) < SMALLEST_TAIL:
        return logs - logsumexp(logs), np.inf
    k, sigma = fit_tail(np.exp(logs[tail]) - math.exp(cutoff))
    if np.isfinite(k):
        p = (np.arange(len(tail)) + 0.5) / len(tail)
        quantile = -np.log1p(-p) if abs(k) < 1e-12 else np.expm1(-k * np.log1p(-p)) / k
        logs[tail] = np.minimum(np.log(math.exp(cutoff) + sigma * quantile), 0.0)
    else:
        k = np.inf
    return logs - logsumexp(logs), float(k)


def leave_one_out(log_likelihood: np.ndarray) -> tuple[float, float, float]:
    """Leave-one-out estimate of the summed log score from log-likelihoods (S, n) at draws: value,
    standard error, largest k-hat.

    ArviZ's `loo`, but where many draws are alike, as members of a finite class are, which ArviZ 1.x
    refuses. NaN where a draw excludes an outcome.

    >>> bool(np.isclose(leave_one_out(np.log([[0.5, 0.2], [0.5, 0.2]]))[0], np.log(0.1)))
    True
    """
    if not np.isfinite(log_likelihood).all():
        return np.nan, np.nan, np.nan
    each, khats = [], []
    for row in log_likelihood.T:
        weights, khat = smoothed(-row)
        each.append(float(logsumexp(weights + row)))
        khats.append(khat)
    return float(np.sum(each)), float(np.sqrt(len(each) * np.var(each))), max(khats)
