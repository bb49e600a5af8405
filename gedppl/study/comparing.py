"""Which model should decide: classes compared by how well each predicted every outcome before it
came.

    score  = sum_i log q_i(y_i),    q_i(y) = sum_s w_s p(y | x_i, a_i, theta_s)

with draws theta_s and weights w_s that have seen rows before i only. The ratio exp(score_A -
score_B) is an e-value: if outcomes follow B's own predictive (its model and its prior), it exceeds
1/delta at any time with probability at most delta (Ville).

Axis letters: S draws, n rows, b rows between two refits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import kstest

from gedppl.errors import DataError, ModelError, OutOfSupportError, SettingError
from gedppl.learning import draws as sampling
from gedppl.learning.draws import ParameterDraws
from gedppl.numerics.arrays import check_whole
from gedppl.numerics.pareto import leave_one_out
from gedppl.problem import Problem
from gedppl.rows import Rows
from gedppl.showing import Facts, Shown

DEGENERATE = 0.1  # effective share of the draws at which they are drawn again
CLEAR = 20.0  # an e-value from which one class is said to predict better: 1/20 is the customary 5%
UNCALIBRATED = 0.01  # a Kolmogorov-Smirnov p-value below this is said


@dataclass(frozen=True)
class ModelScore:
    """How one class did."""

    name: str
    # (n,) log predictive densities, each before its outcome was seen; -inf where it was excluded
    logs: np.ndarray
    # (n,) where each outcome fell in its predictive distribution, uniform if calibrated; NaN if not
    # known
    pit: np.ndarray
    # ArviZ's leave-one-out estimate of the summed log score; NaN where it could not be had
    loo: float
    loo_se: float
    loo_khat: float  # the largest Pareto k: beyond 0.7 the estimate is not to be trusted
    status: str

    @property
    def score(self) -> float:
        """The prequential log score."""
        return float(self.logs.sum())

    @property
    def calibration(self) -> float:
        """p-value of uniform positions (Kolmogorov-Smirnov): small where the predictive is too
        narrow, too wide or off.
        """
        return (
            float(kstest(self.pit, "uniform").pvalue) if np.isfinite(self.pit).all() else math.nan
        )

    def covered(self, share: float) -> float:
        """Share of outcomes inside the predictive's central interval of this probability."""
        return float((np.abs(self.pit - 0.5) <= share / 2).mean())


@dataclass(frozen=True, repr=False)
class ModelComparison(Shown):
    """Classes in the order of their prequential scores. ``print`` it; `best`, `e_value`, `rows`,
    `plot`. Made by `compare_models`.

    Examples
    --------
    >>> coins, x, a, y = (
    ...     problem.utility.model,
    ...     np.zeros((20, 1)),
    ...     np.ones(20, int),
    ...     np.arange(20) % 2,
    ... )
    >>> found = ged.compare_models({"coins": coins, "again": coins}, x, a, y)
    >>> found.best, found.clear
    ('coins', False)
    """

    scores: tuple[ModelScore, ...]  # best first
    n: int

    @property
    def best(self) -> str:
        """The class that predicted best."""
        return self.scores[0].name

    @property
    def clear(self) -> bool:
        """Whether the best is favoured over every other by an e-value of at least 20."""
        return all(self.e_value(self.best, other.name) >= CLEAR for other in self.scores[1:])

    def e_value(self, first: str, second: str) -> float:
        """By which factor the data favour the first class over the second; infinite where the
        second excludes an outcome.
        """
        gap = self[first].score - self[second].score
        return (
            math.nan
            if math.isnan(gap)
            else math.exp(min(gap, 700.0))
            if math.isfinite(gap)
            else (math.inf if gap > 0 else 0.0)
        )

    def __getitem__(self, name: str) -> ModelScore:
        for one in self.scores:
            if one.name == name:
                return one
        raise SettingError(
            f"there is no model {name!r}; the models are {[one.name for one in self.scores]}"
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row a class: scores, leave-one-out, calibration."""
        return [
            {
                "model": s.name,
                "log score": s.score,
                "e-value of the best over it": self.e_value(self.best, s.name),
                "loo": s.loo,
                "loo se": s.loo_se,
                "loo k-hat": s.loo_khat,
                "inside 50%": s.covered(0.5),
                "inside 90%": s.covered(0.9),
                "calibration p": s.calibration,
            }
            for s in self.scores
        ]

    @property
    def verdict(self) -> str:
        """Which class should decide, in a sentence or two."""
        if not math.isfinite(self.scores[0].score):
            return "every model excludes an outcome that happened: none of them should decide"
        if len(self.scores) == 1:
            said = f"{self.best!r} is the only model"
        else:
            rival = self.scores[1].name
            e = self.e_value(self.best, rival)
            strength = "let it decide" if e >= CLEAR else "too little to tell them apart"
            said = f"the data favour {self.best!r} over {rival!r} by e = {e:.3g}: {strength}"
        if self.scores[0].calibration < UNCALIBRATED:
            said += (
                f"; but its predictions are not calibrated (p = {self.scores[0].calibration:.2g}): "
                "look for what it leaves out"
            )
        return said

    def __str__(self) -> str:
        columns = list(self.rows[0])
        body = [[_text(row[name]) for name in columns] for row in self.rows]
        widths = [max(len(line[i]) for line in [columns, *body]) for i in range(len(columns))]
        lines = [
            "  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in [columns, *body]
        ]
        notes = [f"{s.name}: {s.status}" for s in self.scores if s.status]
        return "\n".join([*lines, self.verdict, *notes])

    def _shown(self) -> Facts:
        facts = {
            s.name: f"log score {s.score:.4g}, loo {s.loo:.4g}, {s.covered(0.9):.0%} inside 90%"
            for s in self.scores
        }
        return f"{len(self.scores)} models on {self.n} rows", facts | {"verdict": self.verdict}

    def plot(self, ax: Any = None) -> Any:
        """The log e-value of the best class over each other, row by row; the level of 20 is
        dashed. Returns the axes.
        """
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(6, 3.5))[1] if ax is None else ax
        best = np.cumsum(self.scores[0].logs)
        for other in self.scores[1:]:
            ax.plot(
                np.arange(1, self.n + 1), best - np.cumsum(other.logs), label=f"over {other.name}"
            )
        ax.axhline(math.log(CLEAR), color="0.5", linestyle="--", linewidth=1)
        ax.set_xlabel("rows")
        ax.set_ylabel(f"log e-value of {self.best}")
        if len(self.scores) > 1:
            ax.legend()
        return ax


def compare_models(
    models: Mapping[str, Any],
    x: Any,
    a: Any,
    y: Any,
    *,
    source: str = "laplace",
    draws: int = 500,
    growth: float = 1.3,
    seed: int = 0,
    problem: Problem | None = None,
) -> ModelComparison:
    """Compare classes on the same rows, by what each predicted before it saw an outcome.

    score = sum_i log q_i(y_i), q_i the predictive density from the rows before i

    Parameters
    ----------
    models
        Name -> a class from `density_class` or `finite_class`.
    x, a, y
        Rows in the order in which they came: (n, dx), (n,), (n,).
    source, draws
        Where parameters come from, as in `credible_set`: ``"laplace"`` (weighted to the posterior),
        ``"svi"``, ``"nuts"`` or ``"prior"``, and how many.
    growth
        Draw again once the rows have grown by this factor, or when the weights have come to rest on
        a tenth of the draws.
    seed
        Of the draws.
    problem
        Whose names of actions and columns x and a may use: x a data frame, a action names. None:
        numbers only.

    Returns
    -------
    A `ModelComparison`: prequential log scores and the e-values between them, ArviZ's leave-one-out
    estimates from draws on all rows, and calibration (where outcomes fell in their predictive
    distributions).

    Notes
    -----
    Scores judge model and prior together: a vague prior predicts the first rows badly. An e-value
    of 40 says that the data are 40 times as likely under one predictive as under the other. If
    outcomes follow the other, it ever exceeds 1 / delta with probability at most delta. Not
    guaranteed: that either class holds the truth; that the better class is the one ahead.

    References
    ----------
    Dawid, "Statistical theory: the prequential approach" (1984); Ville's inequality; Vehtari,
    Gelman and Gabry, "Practical Bayesian model evaluation using leave-one-out cross-validation and
    WAIC" (2017).

    Examples
    --------
    >>> import numpy as np, numpyro, numpyro.distributions as dist, gedppl as ged
    >>> def flat(x, a, y=None):
    ...     m = numpyro.sample("m", dist.Normal(0, 1))
    ...     numpyro.sample("y", dist.Normal(m + 0 * x[:, 0], 1.0), obs=y)
    >>> def sloped(x, a, y=None):
    ...     m = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
    ...     numpyro.sample("y", dist.Normal(m[0] + m[1] * x[:, 0], 1.0), obs=y)
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 1))
    >>> y = x[:, 0] + rng.normal(size=60)
    >>> found = compare_models(
    ...     {"flat": ged.density_class(flat), "sloped": ged.density_class(sloped)},
    ...     x,
    ...     np.zeros(60, int),
    ...     y,
    ... )
    >>> found.best, found.clear
    ('sloped', True)
    """
    if not isinstance(models, Mapping) or not models:
        raise ModelError(
            f"models must be a mapping of names to classes with at least one entry, got {models!r}"
        )
    check_whole(20, draws=draws)
    if not growth > 1:
        raise SettingError(f"growth must be larger than 1, got {growth!r}")
    if not len(np.atleast_1d(np.asarray(y))):
        raise DataError("there are no rows to compare models on")
    if problem is not None:
        x, a = problem.names.rows(x, a)
    scores = [
        _score(name, cls, x, a, y, source, int(draws), float(growth), int(seed))
        for name, cls in models.items()
    ]
    ranked = sorted(scores, key=lambda s: -s.score)
    return ModelComparison(tuple(ranked), len(ranked[0].logs))


def _score(
    name: str, cls: Any, x: Any, a: Any, y: Any, source: str, S: int, growth: float, seed: int
) -> ModelScore:
    try:
        x, a, y = cls.check_outcomes(x, a, y)
    except OutOfSupportError as error:
        n = len(np.atleast_1d(np.asarray(y)))
        return ModelScore(
            name, np.full(n, -np.inf), np.full(n, np.nan), -math.inf, math.nan, math.nan, str(error)
        )
    n = len(a)
    logs, pit = np.empty(n), np.full(n, np.nan)
    uniform = np.random.default_rng(seed).random(n)  # places a discrete outcome inside its jump
    start, said = 0, ""
    while start < n:
        drawn = _draws(
            cls, Rows.of(x[:start], a[:start], y[:start]) if start else None, source, S, seed
        )
        said = said or ("" if drawn.ok else drawn.status)
        end = min(n, max(start + 1, math.ceil(growth * start)))
        block = slice(start, end)
        each = sampling.log_likelihood(cls, drawn, x[block], a[block], y[block])  # (S, b)
        before, used = _weights_before(drawn, each)
        block, each = slice(start, start + used), each[:, :used]
        logs[block] = logsumexp(before + each, axis=0)
        pit[block] = _positions(
            cls, drawn, np.exp(before), x[block], a[block], y[block], uniform[block]
        )
        start += used
    final = _draws(cls, Rows.of(x, a, y), source, S, seed)
    loo = leave_one_out(sampling.log_likelihood(cls, final.resampled(S, seed), x, a, y))
    return ModelScore(name, logs, pit, *loo, said)


def _draws(cls: Any, rows: Rows | None, source: str, S: int, seed: int) -> ParameterDraws:
    return sampling.corrected(cls, rows, sampling.sample(cls, rows, source, S, seed))


def _weights_before(drawn: ParameterDraws, each: np.ndarray) -> tuple[np.ndarray, int]:
    """Log weights (S, b') before each row of a block, and how many rows b' they last: until they
    rest on too few draws.
    """
    weights = np.log(drawn.weights) if drawn.log_weights is None else drawn.log_weights
    kept: list[np.ndarray] = []
    for row in np.where(np.isnan(each), -np.inf, each).T:
        kept.append(weights - logsumexp(weights))
        weights = kept[-1] + row
        worn = (
            not np.isfinite(weights).any()
            or np.exp(2 * logsumexp(weights) - logsumexp(2 * weights)) < DEGENERATE * drawn.size
        )
        if worn and not drawn.enumerated:
            break
    return np.stack(kept, axis=1), len(kept)


def _positions(
    cls: Any,
    drawn: ParameterDraws,
    weights: np.ndarray,
    x: np.ndarray,
    a: np.ndarray,
    y: np.ndarray,
    uniform: np.ndarray,
) -> np.ndarray:
    """Where outcomes fell in the mixture's distribution function, between its left and right
    limits.
    """
    if y.ndim > 1:
        return np.full(len(y), np.nan)
    below, upto = (sampling.cdf(cls, drawn, x, a, at) for at in (np.nextafter(y, -np.inf), y))
    low, high = np.sum(weights * below, axis=0), np.sum(weights * upto, axis=0)
    found: np.ndarray = low + uniform * (high - low)
    return found


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
