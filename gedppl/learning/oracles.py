"""Data -> Fit: maximum likelihood, least squares, score equations.

An oracle is a callable ``oracle(cls, rows, weights=None, start=None, prior="weak") -> Fit``. It
never raises for what the data do to it (separable, collinear, NaN, not converged): it returns a
`Fit` whose ``ok`` is False and whose status says why. `keep_good` then goes on with the last good
one.

Axis letters: M members of a finite class, n rows, D flat parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gedppl.errors import SettingError
from gedppl.families.one_predictor import FAMILIES
from gedppl.learning.boundary import climb_boundary, lbfgs
from gedppl.learning.fits import (
    RANK_TOLERANCE,
    TOLERANCE,
    Fit,
    Objective,
    WorkingPrior,
    assess,
    keep_good,
    newton,
    units,
)
from gedppl.learning.likelihoods import Likelihood, PredictorLikelihood, ProgramLikelihood
from gedppl.learning.ordered import OrderedLikelihood
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass, MemberList


# ==================================================================================================
# Fits of one-predictor families in NumPy alone: least squares and score equations.
#
# For an exponential family p(y) = h(y) exp(eta T(y) - A(eta)) the maximum likelihood estimate
# solves
#
#     sum_i J_i' (T(y_i) - A'(eta_i)) = 0,     J_i the Jacobian of eta_i in theta,
#
# and where eta = features @ theta + offset, J_i is the row of features, so that Newton's method is
# iteratively reweighted least squares (Hu, Simchi-Levi, Azizan, section on the score equation
# method). The other families of `one_predictor`, whose log-densities are concave in eta too, are
# fitted by the same Newton steps.
#
# Axis letters: n rows, D flat parameters.
# ==================================================================================================


def has_score_equations(cls: DensityClass) -> bool:
    """Whether the class is a one-predictor family whose score equations are known here."""
    return cls.predictor is not None and (cls.predictor.family, cls.predictor.link) in FAMILIES


def check_score_equations(cls: DensityClass) -> None:
    """Raise where they are not known."""
    if not has_score_equations(cls):
        predictor = cls.predictor
        what = (
            "no linear predictor"
            if predictor is None
            else f"family {predictor.family}, link {predictor.link}"
        )
        raise SettingError(
            f"score equations need one of {sorted(FAMILIES)}, got a class with "
            f"{what}; use ged.mle()"
        )


def check_least_squares(cls: DensityClass) -> None:
    """Raise where there is no closed form."""
    if cls.predictor is None or cls.predictor.family != "Normal":
        raise SettingError(
            "least squares needs a class with Normal outcomes and a mean linear in "
            "theta; use ged.mle()"
        )


def form_of(cls: DensityClass) -> Likelihood:
    """The likelihood of a class before any row: on its features or edges where these are known,
    else through the program.
    """
    if cls.predictor is not None and has_score_equations(cls):
        return PredictorLikelihood.empty(cls.predictor, cls.dim)
    if cls.ordered is not None:
        return OrderedLikelihood.empty(cls.ordered, cls.dim)
    return ProgramLikelihood(cls, Rows.empty(1))


def believe(
    cls: DensityClass,
    fit: Fit,
    rows: Rows,
    *,
    weights: np.ndarray | None = None,
    prior: WorkingPrior | None = None,
    tolerance: float = TOLERANCE,
) -> Fit:
    """The fit with everything but ``theta`` recomputed from the rows, and ``ok`` decided by our own
    `CHECKS`.

    Parameters
    ----------
    fit
        From any source; only ``theta``, ``at_bounds``, ``draws`` and ``guide`` are taken from it.
    tolerance
        Nats that the quadratic model at theta may still promise.
    """
    checked = assess(
        Objective(cls, ProgramLikelihood(cls, rows), rows, weights, prior),
        fit.theta,
        "checked",
        tolerance=tolerance,
        at_bounds=fit.at_bounds,
    )
    return replace(checked, draws=fit.draws, guide=fit.guide)


def fit_least_squares(
    cls: DensityClass,
    rows: Rows,
    *,
    weights: np.ndarray | None = None,
    start: Fit | None = None,
    prior: WorkingPrior | None = None,
) -> Fit:
    """The exact maximiser for a linear-Gaussian class, in closed form.

    theta = argmin sum_i w_i (y_i - offset_i - phi_i' theta)^2 / scale_i^2 (+ priors). Directions
    that no row has seen are left where they start: the estimate is the minimiser nearest to
    ``start`` (or the class's initial parameters). A `sample` site whose prior is not Gaussian makes
    this no closed form: use `maximum_likelihood` there.
    """
    check_least_squares(cls)
    objective = Objective(cls, form_of(cls), rows, weights, prior)
    origin = np.asarray(cls.initial if start is None else start.theta, float)
    theta = origin + _pinv_solve(objective.precision(origin), objective.value_grad(origin)[1])
    return assess(objective, theta, "exact least squares")


def _pinv_solve(precision: np.ndarray, grad: np.ndarray) -> np.ndarray:
    unit = units(precision)
    values, vectors = np.linalg.eigh(precision / np.outer(unit, unit))
    seen = values > RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)
    found: np.ndarray = (
        vectors[:, seen] @ ((vectors[:, seen].T @ (grad / unit)) / values[seen]) / unit
    )
    return found


__all__ = [
    "Fit",
    "Oracle",
    "WorkingPrior",
    "auto",
    "believe",
    "fit_least_squares",
    "fit_score_equations",
    "keep_good",
    "least_squares",
    "maximum_likelihood",
    "mle",
    "score_equations",
]

# draws from the prior among which a start is looked for, where the usual ones have no density
ELSEWHERE = 64
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
    """Maximum likelihood (or, with a working prior, maximum a posteriori) for any differentiable
    program.

    theta = argmax sum_i w_i log p(y_i | x_i, a_i, theta)  (+ log prior)

    Damped Newton for D <= 60 parameters, else L-BFGS, on the padded, compiled objective, from where
    ``start`` ended.

    Parameters
    ----------
    weights
        (n,) >= 0; zeros leave rows out (a segment of the history).
    prior
        None: plain maximum likelihood. A `WorkingPrior`: it and the class's own prior are added.
    starts
        Fits from this many points (``start`` or the initial parameters, then draws from the prior
        by ``seed``), of which the best counts. More than one is for likelihoods that are not
        concave.

    Notes
    -----
    Not guaranteed: that a local maximum is the global one, unless the log-likelihood is concave.
    """
    return _fit(
        Objective(cls, ProgramLikelihood(cls, rows), rows, weights, prior),
        start=start,
        starts=starts,
        seed=seed,
        max_steps=max_steps,
    )


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

    Solves sum_i w_i J_i' (T(y_i) - A'(eta_i)) = 0 by Newton's method, J_i the Jacobian of the
    natural parameter (or, for a Gamma or Exponential, of the log rate): iteratively reweighted
    least squares. Its log-likelihood is concave, so what is found is the maximum, and ``eps_opt``
    is proved.
    """
    check_score_equations(cls)
    return _fit(
        Objective(cls, form_of(cls), rows, weights, prior), start=start, max_steps=max_steps
    )


def _fit(
    objective: Objective,
    *,
    start: Fit | None,
    starts: int = 1,
    seed: int = 0,
    max_steps: int = 100,
) -> Fit:
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
    # no way up from here: look where the prior goes
    if not any(fit.ok or np.isfinite(fit.log_likelihood) for fit in fits):
        draws = objective.cls.draw_prior(ELSEWHERE, seed)
        values = [objective.value_grad(draw)[0] for draw in draws]
        if np.isfinite(values).any():
            fits.append(
                _climb(
                    objective,
                    draws[int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))],
                    max_steps,
                )
            )
    if not any(fit.ok for fit in fits) and any(fit.funnel for fit in fits):
        return _beside_the_funnel(objective, next(fit for fit in fits if fit.funnel), max_steps)
    good = [fit for fit in fits if fit.ok]
    if len(good) <= 1:
        return good[0] if good else fits[0]
    return max(good, key=lambda fit: objective.value_grad(fit.theta)[0])


def _beside_the_funnel(objective: Objective, fallen: Fit, max_steps: int) -> Fit:
    """A point to go on from where a prior has no top: the fit under independent Gaussians as wide
    as the prior's draws.

    It is no fit of the model and says so; sets stay valid around any point.
    """
    draws = np.asarray(objective.cls.draw_prior(ELSEWHERE, 0), float)
    spread = np.diff(np.quantile(draws, [0.25, 0.75], axis=0), axis=0)[0]
    middle = np.median(draws, axis=0)
    plain = copy.copy(objective)
    precision = np.divide(1.0, spread**2, out=np.zeros(len(spread)), where=spread > 0)
    plain.own_prior, plain.prior = False, WorkingPrior(middle, precision)
    found = _climb(plain, middle, max_steps)
    return replace(
        found,
        ok=False,
        funnel=True,
        status=f"{fallen.status}; independent Gaussians as wide stand in for it",
    )


def _climb(objective: Objective, point: np.ndarray, max_steps: int) -> Fit:
    if objective.dim <= NEWTON_LIMIT:
        theta, how = newton(objective.value_grad, objective.precision, point, steps=max_steps)
    else:
        theta, how = lbfgs(objective, point, 10 * max_steps)
        if objective.dim <= POLISH_LIMIT:
            theta, end = newton(objective.value_grad, objective.precision, theta, steps=10)
            how = f"{how}, then {end}"
    inside, anchor = objective.cls.inside, np.asarray(objective.cls.initial, float)
    outside = np.isfinite(theta).all() and not bool(np.all(inside(theta)))
    if outside and bool(np.all(inside(anchor))):
        held = climb_boundary(objective, inside, anchor, theta)
        precision = objective.precision(theta)
        free = (theta, precision) if np.isfinite(precision).all() else None
        return replace(assess(objective, held, how, at_bounds=True), free=free)
    return assess(objective, theta, how, tolerance=objective.tolerance)


# a finite class -----------------------------------------------------------------------------------


# oracles, as the agent takes them -----------------------------------------------------------------


@dataclass(frozen=True)
class Oracle:
    """A way of fitting with its options: ``oracle(cls, rows, weights=None, start=None,
    prior="weak") -> Fit``.

    ``prior="weak"`` stands for `WorkingPrior.weak`; None asks for plain maximum likelihood.
    """

    name: str
    solve: Callable[..., Fit]
    options: Mapping[str, Any]
    # raises where this oracle cannot serve a class
    fits: Callable[[DensityClass], None] | None = None

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


# those whose answer a closed form gives as well
CLOSED_FORM = ("auto", "least squares")
# those that fit any parametric class, whatever its coordinates
ANY_COORDINATES = (*CLOSED_FORM, "score equations", "maximum likelihood")


def called(oracle: Callable[..., Fit] | None) -> str:
    """The name of an oracle: ``"auto"`` if none is given, "" for a callable of the user's own."""
    if oracle is None:
        return "auto"
    return oracle.name if isinstance(oracle, Oracle) else ""


def failed(cls: DensityClass, rows: Rows, status: str) -> Fit:
    nothing = np.full((cls.dim, cls.dim), np.nan)
    return Fit(
        np.full(cls.dim, np.nan), np.nan, nothing, nothing, ok=False, status=status, n=rows.n
    )


def mle(*, starts: int = 1, seed: int = 0, max_steps: int = 100) -> Oracle:
    """Maximum likelihood by Newton or L-BFGS on the program itself: see `maximum_likelihood`.

    argmax_theta sum_i log p_theta(y_i | x_i, a_i) + log prior(theta)

    Parameters
    ----------
    starts, seed
        From how many points the search begins, the first of them `cls.initial`, and where the
        others' randomness begins.
    max_steps
        Of each search.

    Notes
    -----
    No solver's word is taken: a fit that does not pass the checks of `believe` says so in its
    status. Not guaranteed: the highest maximum. Of a likelihood that is not concave it may be a
    local one; sets do not rest on it, their width does.

    References
    ----------
    Nocedal and Wright, "Numerical Optimization" (2006), for both methods.

    Examples
    --------
    >>> mle(starts=3).name
    'maximum likelihood'
    """
    return Oracle(
        "maximum likelihood",
        maximum_likelihood,
        {"starts": starts, "seed": seed, "max_steps": max_steps},
    )


def score_equations(*, max_steps: int = 100) -> Oracle:
    """Score equations, sum_i J_i' (T(y_i) - A'(eta_i)) = 0, of a family with one linear predictor:
    see `fit_score_equations`.

    Parameters
    ----------
    max_steps
        Newton's.

    Notes
    -----
    The log-likelihood is concave there, so that the solution is the maximum. Other classes are
    refused. Not guaranteed: that there is a solution. Without a prior, data that a plane separates
    have none, and the fit's status says so.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", section on the score equation method; McCullagh and Nelder, "Generalized Linear
    Models" (1989).

    Examples
    --------
    >>> score_equations().name
    'score equations'
    """
    return Oracle(
        "score equations", fit_score_equations, {"max_steps": max_steps}, check_score_equations
    )


def least_squares() -> Oracle:
    """Exact least squares for a linear-Gaussian class of known scale: see `fit_least_squares`.

    argmin_theta sum_i (y_i - offset_i - phi_i' theta)^2 / scale_i^2, plus Gaussian priors. Other
    classes are refused.

    Notes
    -----
    The scale is the program's and is believed: sets are as wide as it says.

    Examples
    --------
    >>> least_squares().name
    'least squares'
    """
    return Oracle("least squares", fit_least_squares, {}, check_least_squares)


def auto() -> Oracle:
    """Least squares where the class is linear-Gaussian, score equations where a predictor is
    known, edges where outcomes are ordered, else `mle`.
    """
    return Oracle("auto", _fit_auto, {})


def _fit_auto(
    cls: DensityClass,
    rows: Rows,
    *,
    weights: np.ndarray | None,
    start: Fit | None,
    prior: WorkingPrior | None,
) -> Fit:
    only_gaussian_priors = prior is None or bool(np.all(cls.prior_free))
    if (
        has_score_equations(cls)
        and cls.predictor is not None
        and cls.predictor.family == "Normal"
        and only_gaussian_priors
        and bool(np.all(cls.inside(cls.initial)))
    ):
        fit = fit_least_squares(cls, rows, weights=weights, start=start, prior=prior)
        if fit.ok:
            return fit
    return _fit(Objective(cls, form_of(cls), rows, weights, prior), start=start)
