"""What another policy would have earned on logged decisions: IPS, SNIPS and doubly robust, with
intervals.

A log has, for each row, a context, the action played, the probability with which it was played, and
the outcome. With w_i = pi(a_i|x_i) / p_i the estimates of V = E sum_a pi(a|x) E[y|x,a] are

    IPS      mean_i w_i y_i
    SNIPS    sum_i w_i y_i / sum_i w_i
    DR       mean_i [ sum_a pi(a|x_i) q(x_i, a) + w_i (y_i - q(x_i, a_i)) ]

IPS and DR are unbiased if the propensities are exact and the log plays, with positive probability,
whatever pi plays; DR's model q may be wrong, but it must not have been fitted to the rows it is
applied to (see `cross_fitted`). SNIPS is biased by O(1/n). Propensities may depend on the past (an
adaptive log), if contexts come independently of it.

Intervals. ``"normal"`` is mean ± z stderr: right for many rows and weights that are not too uneven,
and for a log whose policy did not adapt; a guarantee for no finite n. ``"bernstein"`` is the
empirical-Bernstein bound of Waudby-Smith and Ramdas, "Estimating means of bounded random variables
by betting" (2024), section 3.2: it holds at every n, adaptive logs included, and asks for bounds on
the outcome and on the weights that were known before the data.

Axis letters: n rows, K actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from gedppl.errors import (
    ActionRangeError,
    ColumnError,
    NotFiniteError,
    PropensityError,
    SettingError,
    ShapeError,
)
from gedppl.numerics.arrays import check_delta
from gedppl.problem import UTILITY, Problem
from gedppl.problem.names import as_table, hint, listed
from gedppl.showing import Facts, Shown, Spoken, amounts

if TYPE_CHECKING:
    from gedppl.study.simulation.runs import Run

Policy = np.ndarray | Callable[[np.ndarray], Any]
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, repr=False)
class Log(Shown):
    """Logged decisions.

    Parameters
    ----------
    x, action, outcome
        (n, dx), (n,) and (n,).
    propensity
        (n,): the probability with which `action` was played; not an estimate of it.
    """

    x: np.ndarray
    action: np.ndarray
    propensity: np.ndarray
    outcome: np.ndarray

    def __post_init__(self) -> None:
        x, p, y = (np.asarray(v, float) for v in (self.x, self.propensity, self.outcome))
        action = np.asarray(self.action)
        n = len(x) if x.ndim else 0
        if x.ndim != 2 or not n or not (action.shape == p.shape == y.shape == (n,)):
            raise ShapeError(
                "a log needs x (n, dx) and action, propensity and outcome (n,) with one n of at "
                "least 1, got "
                f"{x.shape}, {action.shape}, {p.shape} and {y.shape}"
            )
        if not np.issubdtype(action.dtype, np.integer) or action.min() < 0:
            raise ActionRangeError(
                f"actions must be whole numbers from 0, got {action.dtype} with "
                f"minimum {action.min()}"
            )
        if not np.isfinite(y).all():
            raise NotFiniteError(
                f"outcomes must be finite, got {y[~np.isfinite(y)][0]}; "
                "leave rows out only where that does not depend on the action"
            )
        wrong = ~((p > 0) & (p <= 1 + SUM_TOLERANCE))  # NaN too
        if wrong.any():
            raise PropensityError(
                f"propensities must lie in (0, 1], got {p[wrong][0]} in row "
                f"{int(np.flatnonzero(wrong)[0])}: an action that was "
                "played had a positive probability"
            )
        for name, value in (
            ("x", x),
            ("action", action.astype(np.int64)),
            ("propensity", p),
            ("outcome", y),
        ):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.action)

    def _shown(self) -> Facts:
        counts = np.bincount(self.action)
        facts = {
            "context": f"{self.x.shape[1]} columns",
            "actions": amounts((str(k), n) for k, n in enumerate(counts)),
        }
        facts |= {
            "outcome": f"mean {self.outcome.mean():.4g}, {self.outcome.min():.4g} to "
            f"{self.outcome.max():.4g}"
        }
        return f"Log of {len(self)} decisions", facts | {
            "smallest propensity": f"{self.propensity.min():.3g}"
        }

    @classmethod
    def of(cls, run: Run, outcome: str = UTILITY) -> Log:
        """The log that a run left: its exact propensities, and the outcomes of one name
        (``"utility"`` or a constraint's).

        Rows without that outcome are refused: which rows lack one may depend on the action, and
        leaving them out biases every estimate.
        """
        named = run.outcomes()
        if outcome not in named:
            raise SettingError(f"the run has no outcome {outcome!r}; choose from {list(named)}")
        y = named[outcome]
        if y.ndim == 2:
            y = y[np.arange(len(y)), run.action]
        if np.isnan(y).any():
            raise NotFiniteError(
                f"{int(np.isnan(y).sum())} of {len(y)} rounds have no outcome {outcome!r}; build a "
                "Log of the rounds that should "
                "count, if leaving the others out does not depend on the action"
            )
        return cls(run.x, run.action, run.propensity, y)

    @classmethod
    def read(
        cls, problem: Problem, table: Any, *, action: str, propensity: str, outcome: str
    ) -> Log:
        """The log in a data frame or a mapping of columns: contexts by the problem's `columns`, the
        others by the names given.

        Actions may be names or numbers. Columns that are not mentioned are passed over.
        """
        found = as_table(table)
        if found is None:
            raise ColumnError(
                "a log is read from named columns (a data frame, a mapping), got a "
                f"{type(table).__name__}"
            )
        columns, single = found
        for name in (action, propensity, outcome):
            if name not in columns:
                raise ColumnError(
                    f"the log has no column {name!r}; it has {listed(columns)}{hint(name, columns)}"
                )
        x, _ = problem.names.by_name(columns, single, more=True)
        played = [
            problem.names.action(a) for a in ([columns[action]] if single else columns[action])
        ]
        p, y = (np.atleast_1d(np.asarray(columns[name], float)) for name in (propensity, outcome))
        return cls(x, np.array(played, np.int64), p, y)


@dataclass(frozen=True, repr=False)
class OffPolicyEstimate(Spoken):
    """A value with its interval."""

    value: float
    low: float
    high: float
    stderr: float
    method: str  # "ips", "snips" or "doubly robust"
    interval: str  # "normal" or "bernstein"
    delta: float
    n: int
    # (sum w)^2 / sum w^2: the number of rows that evenly weighted rows would have to be
    effective_n: float
    largest_weight: float

    def __str__(self) -> str:
        return (
            f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] ({self.method}, "
            f"{1 - self.delta:.0%} {self.interval}, "
            f"{self.n} rows worth {self.effective_n:.0f}, largest weight {self.largest_weight:.3g})"
        )


def ips(
    log: Log,
    policy: Policy,
    *,
    delta: float = 0.05,
    interval: str = "normal",
    outcome_range: tuple[float, float] | None = None,
    max_weight: float | None = None,
) -> OffPolicyEstimate:
    """Inverse propensity scoring: mean_i w_i y_i.

    Parameters
    ----------
    policy
        What to evaluate: (n, K) probabilities at the log's contexts, or a function x (n, dx) -> (n,
        K), such as ``agent.policy``. It must not have been chosen on this log.
    interval
        ``"normal"`` or ``"bernstein"``; the latter needs `outcome_range` and `max_weight`, an upper
        bound on every weight that the log could have had (1 over the smallest propensity will do).

    Notes
    -----
    Unbiased if the propensities are exact and the log plays, with positive probability, whatever
    the policy plays. Not guaranteed: the normal interval, at any n, and least of all for an
    adaptive log; anything, for a policy that was chosen on this log.

    References
    ----------
    Horvitz and Thompson, "A generalization of sampling without replacement from a finite universe"
    (1952).

    Examples
    --------
    >>> log = Log(
    ...     np.zeros((4, 1)),
    ...     np.array([0, 0, 1, 1]),
    ...     np.full(4, 0.5),
    ...     np.array([0.0, 0.0, 1.0, 0.5]),
    ... )
    >>> ips(log, np.tile([0.0, 1.0], (4, 1))).value
    0.75
    """
    weights, _ = _weights(log, policy)
    bounds = None
    if interval == "bernstein":
        (low, high), top = _known_bounds(log.outcome, weights, outcome_range, max_weight)
        bounds = (min(0.0, top * low), max(0.0, top * high))
    return _estimate(weights * log.outcome, weights, "ips", interval, delta, bounds)


def snips(log: Log, policy: Policy, *, delta: float = 0.05) -> OffPolicyEstimate:
    """Self-normalised inverse propensity scoring: sum_i w_i y_i / sum_i w_i, with a normal interval
    by the delta method.

    It stays inside the range of the outcomes, and is steadier than IPS where weights are uneven.

    Notes
    -----
    Its bias is of the order of 1/n. Not guaranteed: its interval, at any n.

    References
    ----------
    Swaminathan and Joachims, "The self-normalized estimator for counterfactual learning" (2015).

    Examples
    --------
    >>> log = Log(np.zeros((3, 1)), np.array([0, 1, 1]), np.array([0.5, 0.5, 0.25]), np.arange(3.0))
    >>> round(snips(log, np.tile([0.0, 1.0], (3, 1))).value, 4)  # weights 0, 2 and 4
    1.6667
    """
    weights, _ = _weights(log, policy)
    total = weights.sum()
    if total == 0:
        raise PropensityError(
            "the policy plays no action that the log has: every weight is 0, and "
            "nothing can be said"
        )
    value = float(weights @ log.outcome / total)
    influence = weights * (log.outcome - value) / weights.mean()
    shifted = _estimate(value + influence, weights, "snips", "normal", delta, None)
    return shifted


def doubly_robust(
    log: Log,
    policy: Policy,
    model: np.ndarray | Callable[[np.ndarray], Any],
    *,
    delta: float = 0.05,
    interval: str = "normal",
    outcome_range: tuple[float, float] | None = None,
    max_weight: float | None = None,
) -> OffPolicyEstimate:
    """Doubly robust: a model's value of the policy, corrected by the weighted errors it makes on
    the log, mean_i [ sum_a pi(a|x_i) q(x_i, a) + w_i (y_i - q(x_i, a_i)) ].

    Parameters
    ----------
    model
        q(x, a), the expected outcome of every action: (n, K), or a function x (n, dx) -> (n, K).
        Fitted elsewhere, on earlier rows, or by `cross_fitted`.
    interval, outcome_range, max_weight
        As in `ips`; for ``"bernstein"`` the model's values must lie in `outcome_range`.

    Notes
    -----
    Not guaranteed: unbiasedness, where propensities are estimates, or where the model has seen the
    rows it corrects; the normal interval, at any n.

    References
    ----------
    Dudik, Langford and Li, "Doubly robust policy evaluation and learning" (2011).

    Examples
    --------
    >>> log = Log(np.zeros((2, 1)), np.array([0, 1]), np.full(2, 0.5), np.array([0.0, 1.0]))
    >>> doubly_robust(log, np.tile([0.0, 1.0], (2, 1)), np.full((2, 2), 0.8)).value  # .8 + .4 / 2
    1.0
    """
    weights, pi = _weights(log, policy)
    q = np.asarray(model(log.x) if callable(model) else model, float)
    if q.shape != pi.shape:
        raise ShapeError(
            f"the model must give one value for each row and action, {pi.shape}, got {q.shape}"
        )
    if not np.isfinite(q).all():
        raise NotFiniteError("the model's values must be finite")
    bounds = None
    if interval == "bernstein":
        (low, high), top = _known_bounds(log.outcome, weights, outcome_range, max_weight)
        if q.min() < low or q.max() > high:
            raise SettingError(
                f"the model's values must lie in outcome_range [{low}, {high}], got {q.min():.4g} "
                f"to {q.max():.4g}; clip them"
            )
        bounds = (low - top * (high - low), high + top * (high - low))
    errors = log.outcome - q[np.arange(len(log)), log.action]
    return _estimate(
        (pi * q).sum(axis=1) + weights * errors, weights, "doubly robust", interval, delta, bounds
    )


def cross_fitted(
    fit: Callable[[np.ndarray, np.ndarray, np.ndarray], Callable[[np.ndarray], Any]],
    log: Log,
    *,
    folds: int = 5,
    seed: int = 0,
) -> np.ndarray:
    """Predictions (n, K) for `doubly_robust`, each row's from a model fitted to the other folds.

    ``fit(x, a, y)`` returns a function x (m, dx) -> (m, K).

    Notes
    -----
    Not guaranteed: anything for a log whose policy adapted, which needs a model of earlier rows
    only.

    References
    ----------
    Chernozhukov, Chetverikov, Demirer, Duflo, Hansen, Newey and Robins, "Double/debiased machine
    learning for treatment and structural parameters" (2018).

    Examples
    --------
    >>> log = Log(np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.full(4, 0.5), np.ones(4))
    >>> mean_of_all = lambda x, a, y: lambda at: np.full((len(at), 2), y.mean())
    >>> cross_fitted(mean_of_all, log, folds=2).shape
    (4, 2)
    """
    if not 2 <= folds <= len(log):
        raise SettingError(
            f"folds must lie between 2 and the {len(log)} rows of the log, got {folds}"
        )
    fold = np.random.default_rng(seed).permutation(len(log)) % folds
    parts = {}
    for k in range(folds):
        held, kept = np.flatnonzero(fold == k), fold != k
        parts[k] = (
            held,
            np.asarray(fit(log.x[kept], log.action[kept], log.outcome[kept])(log.x[held]), float),
        )
    out = np.empty((len(log), parts[0][1].shape[1]))
    for held, values in parts.values():
        out[held] = values
    return out


def _weights(log: Log, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """w_i = pi(a_i|x_i) / p_i, (n,), and pi (n, K)."""
    pi = np.asarray(policy(log.x) if callable(policy) else policy, float)
    if pi.ndim != 2 or len(pi) != len(log):
        raise ShapeError(
            f"the policy must give (n, K) probabilities for the log's {len(log)} "
            f"rows, got {pi.shape}"
        )
    if log.action.max() >= pi.shape[1]:
        raise ActionRangeError(
            f"the log plays action {log.action.max()}, the policy knows 0, ..., "
            f"{pi.shape[1] - 1} only"
        )
    if not (
        np.isfinite(pi).all()
        and pi.min() >= -SUM_TOLERANCE
        and np.allclose(pi.sum(axis=1), 1.0, atol=SUM_TOLERANCE)
    ):
        raise PropensityError(
            "the policy's rows must be probabilities: at least 0 and summing to 1"
        )
    return pi[np.arange(len(log)), log.action] / log.propensity, pi


def _known_bounds(
    y: np.ndarray,
    weights: np.ndarray,
    outcome_range: tuple[float, float] | None,
    max_weight: float | None,
) -> tuple[tuple[float, float], float]:
    if outcome_range is None or max_weight is None:
        raise SettingError(
            'interval="bernstein" needs outcome_range=(low, high) and max_weight=, known before '
            "the data; "
            'use interval="normal" if there are none'
        )
    low, high = (float(v) for v in outcome_range)
    if not low < high or y.min() < low or y.max() > high:
        raise SettingError(
            f"outcome_range must hold every outcome, got [{low}, {high}] for "
            f"{y.min():.4g} to {y.max():.4g}"
        )
    if not math.isfinite(max_weight) or weights.max() > max_weight * (1 + 1e-12):
        raise SettingError(
            f"max_weight must bound every weight, got {max_weight} for a largest "
            f"weight of {weights.max():.4g}"
        )
    return (low, high), float(max_weight)


def _estimate(
    values: np.ndarray,
    weights: np.ndarray,
    method: str,
    interval: str,
    delta: float,
    bounds: tuple[float, float] | None,
) -> OffPolicyEstimate:
    check_delta(delta)
    if interval not in ("normal", "bernstein"):
        raise SettingError(f'interval must be "normal" or "bernstein", got {interval!r}')
    n = len(values)
    value = float(values.mean())
    stderr = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.inf
    if bounds is None:
        reach = float(ndtri(1 - delta / 2)) * stderr
        low, high = value - reach, value + reach
    else:
        low, high = empirical_bernstein(values, *bounds, delta)
    square = float((weights**2).sum())
    return OffPolicyEstimate(
        value=value,
        low=low,
        high=high,
        stderr=stderr,
        method=method,
        interval=interval,
        delta=float(delta),
        n=n,
        effective_n=float(weights.sum() ** 2 / square) if square else 0.0,
        largest_weight=float(weights.max()),
    )


def empirical_bernstein(
    values: np.ndarray, low: float, high: float, delta: float
) -> tuple[float, float]:
    """An interval for the conditional mean that all values share, given each one's past; values
    (n,) in [low, high].

    On [0, 1], with running mean m and variance s^2 (one pseudo-observation of 1/2 and 1/4):

        lambda_i = min(1/2, sqrt(2 log(2/delta) / (n s_{i-1}^2))) sum(lambda x) / sum(lambda)  ±
        [log(2/delta) + sum (x_i - m_{i-1})^2 (-log(1 - lambda_i) - lambda_i)] / sum(lambda)

    which covers with probability 1 - delta at any n (Waudby-Smith and Ramdas 2024, theorem 2). Not
    guaranteed: anything, where `low` and `high` were read off the values.

    >>> empirical_bernstein(np.full(100, 0.5), 0.0, 1.0, 0.05)[1] < 0.6
    True
    """
    x = (np.asarray(values, float) - low) / (high - low)
    n, log_term = len(x), math.log(2 / delta)
    count = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(x)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (count + 1)
    mean_before = np.concatenate([[0.5], mean[:-1]])
    variance_before = np.concatenate([[0.25], variance[:-1]])
    bet = np.minimum(0.5, np.sqrt(2 * log_term / (n * variance_before)))
    centre = bet @ x / bet.sum()
    reach = (log_term + ((x - mean_before) ** 2 * (-np.log1p(-bet) - bet)).sum()) / bet.sum()
    return low + (high - low) * max(0.0, float(centre - reach)), low + (high - low) * min(
        1.0, float(centre + reach)
    )
