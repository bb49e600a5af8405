"""Data -> Fit: maximum likelihood, least squares, score equations, enumeration, SVI.

An oracle is a callable ``oracle(cls, rows, weights=None, start=None, prior="weak") -> Fit``. It never raises for what the
data do to it (separable, collinear, NaN, not converged): it returns a `Fit` whose ``ok`` is False and whose status says
why. `keep_good` then goes on with the last good one.

Axis letters: M members of a finite class, n rows, D flat parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gedppl.errors import SettingError
from gedppl.oracles.fits import Fit, Objective, WorkingPrior, assess, believe, check_weights, keep_good
from gedppl.oracles.glm import (
    PredictorObjective,
    RunningLeastSquares,
    check_least_squares,
    check_score_equations,
    fit_least_squares,
    has_score_equations,
)
from gedppl.oracles.newton import climb_boundary, lbfgs, newton
from gedppl.oracles.ordered import OrderedObjective

if TYPE_CHECKING:
    from gedppl.classes import DensityClass, MemberList
    from gedppl.rows import Rows

__all__ = [
    "FiniteFit",
    "Fit",
    "Oracle",
    "RunningLeastSquares",
    "WorkingPrior",
    "auto",
    "believe",
    "finite_enumeration",
    "fit_least_squares",
    "fit_score_equations",
    "keep_good",
    "least_squares",
    "maximum_likelihood",
    "mle",
    "score_equations",
]

ELSEWHERE = 64  # draws from the prior among which a start is looked for, where the usual ones have no density
NEWTON_LIMIT = 60  # parameters: beyond, L-BFGS goes first
POLISH_LIMIT = 400  # parameters: up to here a few Newton steps finish what L-BFGS began


def maximum_likelihood(
    cls: DensityClass,
    rows: Rows,
    *,
    weights: np.ndarray | None = None,
    start: Fit | None = None,
    prior: WorkingPrior | None = None,
    starts: int = 1,
    seed: int = 0,
    max_steps: int = 100,
) -> Fit:
    """Maximum likelihood (or, with a working prior, maximum a posteriori) for any differentiable program.

    theta = argmax sum_i w_i log p(y_i | x_i, a_i, theta)  (+ log prior)

    Damped Newton for D <= 60 parameters, else L-BFGS, on the padded, compiled objective, from where ``start`` ended.

    Parameters
    ----------
    weights
        (n,) >= 0; zeros leave rows out (a segment of the history).
    prior
        None: plain maximum likelihood. A `WorkingPrior`: it and the class's own prior are added.
    starts
        Fits from this many points (``start`` or the initial parameters, then draws from the prior by ``seed``), of
        which the best counts. More than one is for likelihoods that are not concave.

    Notes
    -----
    Not guaranteed: that a local maximum is the global one, unless the log-likelihood is concave.
    """
    return _fit(Objective(cls, rows, weights, prior), start=start, starts=starts, seed=seed, max_steps=max_steps)


def fit_score_equations(
    cls: DensityClass,
    rows: Rows,
    *,
    weights: np.ndarray | None = None,
    start: Fit | None = None,
    prior: WorkingPrior | None = None,
    max_steps: int = 100,
) -> Fit:
    """The same maximiser for a one-predictor exponential family, on its features in NumPy alone.

    Solves sum_i w_i J_i' (T(y_i) - A'(eta_i)) = 0 by Newton's method, J_i the Jacobian of the natural parameter (or, for
    a Gamma or Exponential, of the log rate): iteratively reweighted least squares. Its log-likelihood is concave, so what
    is found is the maximum, and ``eps_opt`` is proved.
    """
    return _fit(PredictorObjective(cls, rows, weights, prior), start=start, starts=1, seed=0, max_steps=max_steps)


def fit_ordered(
    cls: DensityClass,
    rows: Rows,
    *,
    weights: np.ndarray | None = None,
    start: Fit | None = None,
    prior: WorkingPrior | None = None,
    max_steps: int = 100,
) -> Fit:
    """The same maximiser for ordered outcomes between affine edges, in NumPy alone; their log-likelihood is concave too."""
    return _fit(OrderedObjective(cls, rows, weights, prior), start=start, starts=1, seed=0, max_steps=max_steps)


def _fit(objective: Objective, *, start: Fit | None, starts: int, seed: int, max_steps: int) -> Fit:
    if starts < 1 or max_steps < 1:
        raise SettingError(f"starts and max_steps must be at least 1, got {starts} and {max_steps}")
    initial = np.asarray(objective.cls.initial, float)
    if objective.n == 0 and objective.prior is None:
        return assess(objective, initial, "no rows yet: the initial parameters")
    first = initial if start is None or not np.isfinite(start.theta).all() else start.theta
    points = [objective.admissible(first)]
    if starts > 1:
        points += list(np.asarray(objective.cls.draw_prior(starts - 1, seed)))
    fits = [_climb(objective, point, max_steps) for point in points]
    if not any(fit.ok for fit in fits) and first is not initial:
        # an old fit may lie where the new objective is flat or not finite
        fits.append(_climb(objective, objective.admissible(initial), max_steps))
    if not any(fit.ok or np.isfinite(fit.log_likelihood) for fit in fits):  # no way up from here: look where the prior goes
        draws = objective.cls.draw_prior(ELSEWHERE, seed)
        values = [objective.value_grad(draw)[0] for draw in draws]
        if np.isfinite(values).any():
            fits.append(_climb(objective, draws[int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))], max_steps))
    if not any(fit.ok for fit in fits) and any(fit.funnel for fit in fits):
        return _beside_the_funnel(objective, next(fit for fit in fits if fit.funnel), max_steps)
    good = [fit for fit in fits if fit.ok]
    if len(good) <= 1:
        return good[0] if good else fits[0]
    return max(good, key=lambda fit: objective.value_grad(fit.theta)[0])


def _beside_the_funnel(objective: Objective, fallen: Fit, max_steps: int) -> Fit:
    """A point to go on from where a prior has no top: the fit under independent Gaussians as wide as the prior's draws.

    It is no fit of the model and says so; sets stay valid around any point.
    """
    draws = np.asarray(objective.cls.draw_prior(ELSEWHERE, 0), float)
    spread = np.diff(np.quantile(draws, [0.25, 0.75], axis=0), axis=0)[0]
    middle = np.median(draws, axis=0)
    plain = copy.copy(objective)
    precision = np.divide(1.0, spread**2, out=np.zeros(len(spread)), where=spread > 0)
    plain.own_prior, plain.prior = False, WorkingPrior(middle, precision)
    found = _climb(plain, middle, max_steps)
    return replace(found, ok=False, funnel=True, status=f"{fallen.status}; independent Gaussians as wide stand in for it")


def _climb(objective: Objective, point: np.ndarray, max_steps: int) -> Fit:
    if objective.dim <= NEWTON_LIMIT:
        theta, how = newton(objective, point, max_steps)
    else:
        theta, how = lbfgs(objective, point, 10 * max_steps)
        if objective.dim <= POLISH_LIMIT:
            theta, end = newton(objective, theta, 10)
            how = f"{how}, then {end}"
    inside, anchor = objective.cls.inside, np.asarray(objective.cls.initial, float)
    outside = np.isfinite(theta).all() and not bool(np.all(inside(theta)))
    if outside and bool(np.all(inside(anchor))):
        return assess(objective, climb_boundary(objective, inside, anchor, theta), how, at_bounds=True)
    return assess(objective, theta, how, tolerance=objective.tolerance)


# a finite class -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FiniteFit:
    """Which of M members explains the rows best. Exact: ``eps_opt`` is 0."""

    index: int
    log_likelihoods: np.ndarray  # (M,) weighted sums over the rows
    log_likelihood: float
    ok: bool
    status: str
    n: int
    eps_opt: float = 0.0


def finite_enumeration(cls: Any, rows: Rows, *, weights: np.ndarray | None = None, start: FiniteFit | None = None) -> FiniteFit:
    """The most likely of M members, by looking at all of them: argmax_m sum_i w_i log p_m(y_i | x_i, a_i).

    Parameters
    ----------
    cls
        A finite class.
    start
        The fit of the first ``start.n`` of these rows (unweighted): only the rows after them are evaluated.
    """
    weights = check_weights(weights, rows.n)
    if start is not None and (weights is not None or start.n > rows.n):
        raise SettingError(f"`start` must be the fit of the first rows, without weights; it has {start.n} of {rows.n} rows")
    done = 0 if start is None else start.n
    before = 0.0 if start is None else start.log_likelihoods
    if rows.n > done or start is None:
        table = np.asarray(cls.log_likelihood(cls.every, rows.x[done:], rows.a[done:], rows.y[done:]), float)
        if weights is not None:  # not table @ weights: 0 * -inf would spoil a row that was left out
            table = np.where(weights > 0, table * np.where(weights > 0, weights, 1.0), 0.0)
        sums = before + table.sum(axis=1)
    else:
        sums = np.asarray(before, float)
    n = rows.n if weights is None else int(np.count_nonzero(weights))
    usable = np.isfinite(sums)
    ranked = np.where(np.isnan(sums), -np.inf, sums)
    index = int(np.argmax(ranked))
    broken = int(np.isnan(sums).sum())
    if not usable.any():
        status = f"no member gives the {n} rows a positive density"
    else:
        status = f"member {index} of {len(sums)} by enumeration of {n} rows"
        status += f"; {broken} members have a log-likelihood of NaN and are left out" if broken else ""
    return FiniteFit(index, sums, float(ranked[index]), bool(usable.any()), status, n)


# oracles, as the agent takes them -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Oracle:
    """A way of fitting with its options: ``oracle(cls, rows, weights=None, start=None, prior="weak") -> Fit``.

    ``prior="weak"`` stands for `WorkingPrior.weak`; None asks for plain maximum likelihood.
    """

    name: str
    solve: Callable[..., Fit]
    options: Mapping[str, Any]
    fits: Callable[[DensityClass], None] | None = None  # raises where this oracle cannot serve a class

    def check(self, cls: MemberList | DensityClass) -> None:
        """Raise where this oracle cannot serve a class; a finite one needs none."""
        if self.fits is not None:
            cls.visit(lambda members: None, self.fits)

    def __call__(
        self,
        cls: DensityClass,
        rows: Rows,
        weights: np.ndarray | None = None,
        start: Fit | None = None,
        prior: WorkingPrior | Literal["weak"] | None = "weak",
    ) -> Fit:
        if isinstance(prior, str):
            if prior != "weak":
                raise SettingError(f"prior must be a WorkingPrior, None or 'weak', got {prior!r}")
            prior = WorkingPrior.weak(cls)
        try:
            return self.solve(cls, rows, weights=weights, start=start, prior=prior, **self.options)
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            return failed(cls, rows, f"{self.name} broke off: {error}")


def failed(cls: DensityClass, rows: Rows, status: str) -> Fit:
    nothing = np.full((cls.dim, cls.dim), np.nan)
    return Fit(np.full(cls.dim, np.nan), np.nan, nothing, nothing, ok=False, status=status, n=rows.n)


def mle(*, starts: int = 1, seed: int = 0, max_steps: int = 100) -> Oracle:
    """Newton or L-BFGS on the program itself: see `maximum_likelihood`."""
    return Oracle("maximum likelihood", maximum_likelihood, {"starts": starts, "seed": seed, "max_steps": max_steps})


def score_equations(*, max_steps: int = 100) -> Oracle:
    """Score equations of a one-predictor family: see `fit_score_equations`."""
    return Oracle("score equations", fit_score_equations, {"max_steps": max_steps}, check_score_equations)


def least_squares() -> Oracle:
    """Exact least squares for a linear-Gaussian class: see `fit_least_squares`."""
    return Oracle("least squares", fit_least_squares, {}, check_least_squares)


def auto() -> Oracle:
    """Least squares where the class is linear-Gaussian, score equations where a predictor is known, edges where outcomes are
    ordered, else `mle`."""
    return Oracle("auto", _fit_auto, {})


def _fit_auto(cls: DensityClass, rows: Rows, *, weights: np.ndarray | None, start: Fit | None, prior: WorkingPrior | None) -> Fit:
    if cls.ordered is not None:
        return fit_ordered(cls, rows, weights=weights, start=start, prior=prior)
    if not has_score_equations(cls):
        return maximum_likelihood(cls, rows, weights=weights, start=start, prior=prior)
    assert cls.predictor is not None
    only_gaussian_priors = prior is None or bool(np.all(cls.prior_free))
    if cls.predictor.family == "Normal" and only_gaussian_priors and bool(np.all(cls.inside(cls.initial))):
        fit = fit_least_squares(cls, rows, weights=weights, start=start, prior=prior)
        if fit.ok:
            return fit
    return fit_score_equations(cls, rows, weights=weights, start=start, prior=prior)
