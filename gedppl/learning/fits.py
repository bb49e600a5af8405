"""A fit, the weak prior it may lean on, and the checks it must pass before anybody believes it.

No solver's word is taken. `assess` recomputes the log-likelihood, its gradient and its curvature at
the parameters that came back, and asks a few plain questions (`CHECKS`). A fit that fails one says
so in a sentence; `keep_good` then goes on with the last one that passed.

Axis letters: n rows, D flat parameters, S draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import SettingError

if TYPE_CHECKING:
    from gedppl.learning.likelihoods import Likelihood
    from gedppl.programs.contract import DensityClass
    from gedppl.rows import Rows


# of the working prior, in unconstrained units: a logit of 5 is a probability of 0.993
WORKING_SCALE = 5.0
TOLERANCE = 1e-4  # nats of log-likelihood a believed fit may still lack
# an eigenvalue of the information below this fraction of the largest counts as unseen
RANK_TOLERANCE = 1e-10
NOISE = 1e-14  # an eigenvalue below this fraction of the largest is rounding
# nats: what working weights promise of a step beside kinks is no measure of what it gives
BESIDE_KINKS = 0.05


@dataclass(frozen=True)
class Fit:
    """Parameters, how well they explain the rows, and how sharply the rows determine them.

    ``information`` is minus the Hessian of the weighted log-likelihood at ``theta`` (the observed
    information, free of any prior); ``precision`` adds the curvature of the priors and is made
    positive definite, for Laplace draws. ``log_likelihood`` is that of the rows used, without
    prior.

    ``eps_opt`` is how far the log-likelihood may lie below its maximum. It is a bound when
    ``eps_opt_proved`` (least squares, score equations, enumeration); otherwise it is the Newton
    decrement, an estimate which knows nothing of other local maxima.
    """

    theta: np.ndarray  # (D,)
    log_likelihood: float
    information: np.ndarray  # (D, D)
    precision: np.ndarray  # (D, D), positive definite
    ok: bool
    status: str
    n: int
    funnel: bool = False  # the prior has no top: see `funnel_in`
    rank: int = 0  # of the information: directions the rows say anything about
    eps_opt: float = np.inf
    eps_opt_proved: bool = False
    # the maximum lies outside the declared bounds; theta is on their boundary
    at_bounds: bool = False
    # where it lies, and the precision there; see `learner.beyond`
    free: tuple[np.ndarray, np.ndarray] | None = None
    kept: bool = False  # a later fit failed and this one, of fewer rows, stayed
    draws: np.ndarray | None = None  # (S, D) from a guide, where one was fitted
    # the guide's own state, for a warm start
    guide: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WorkingPrior:
    """Independent Gaussians for the coordinates that have no prior of their own.

    log density(theta) = -1/2 sum_j precision_j (theta_j - mean_j)^2, up to a constant.

    It keeps a fit finite before every action was tried (a separable logistic regression has no
    maximum likelihood estimate). It enters fits and predictives only; a confidence set never sees
    it.

    >>> WorkingPrior(np.zeros(2), np.array([0.04, 0.0])).log_density(np.array([5.0, 9.0]))
    -0.5
    """

    mean: np.ndarray  # (D,)
    precision: np.ndarray  # (D,), 0 where the class brings a prior

    def __post_init__(self) -> None:
        mean, precision = np.asarray(self.mean, float), np.asarray(self.precision, float)
        if mean.ndim != 1 or mean.shape != precision.shape:
            raise SettingError(
                f"a working prior needs mean and precision of one shape (D,), got {mean.shape} and "
                f"{precision.shape}"
            )
        if not (
            np.isfinite(mean).all() and np.isfinite(precision).all() and (precision >= 0).all()
        ):
            raise SettingError(
                f"a working prior needs finite means and precisions >= 0, got mean {mean} and "
                f"precision {precision}"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "precision", precision)

    @classmethod
    def weak(
        cls, density: DensityClass, scale: float = WORKING_SCALE, unit: np.ndarray | float = 1.0
    ) -> WorkingPrior:
        """N(initial, (scale unit)^2) on every `param` coordinate, in the unconstrained space.

        Agents and confidence sets find each coordinate's unit (D,) from the contexts
        (`learning.units`). By itself the scale is in the model's own units: a coefficient of the
        order of thousands wants a larger one, or a `sample` site with a prior.
        """
        if not (np.isfinite(scale) and scale > 0):
            raise SettingError(f"the working prior's scale must be a positive number, got {scale}")
        return cls(
            np.asarray(density.initial, float),
            np.where(density.prior_free, (scale * np.asarray(unit)) ** -2.0, 0.0),
        )

    def log_density(self, theta: np.ndarray) -> float:
        """Up to a constant."""
        return float(-0.5 * self.precision @ (theta - self.mean) ** 2)


def likeliest(fit: Fit, prior: WorkingPrior, others: Sequence[WorkingPrior]) -> int:
    """Under which of the others the rows of a fit that leaned on `prior` are most probable, by
    Laplace's approximation around it; they have one mean.

    A working prior that is far too wide predicts poorly, and that is what a likelihood-ratio set
    pays for: a logistic arm of three coefficients with 130 rows loses two nats by a width of 5
    instead of 2. The choice is a function of past rows, so that coverage is not touched.
    """
    free = prior.precision > 0
    rest, z = fit.precision - np.diag(prior.precision), fit.theta - prior.mean
    found = []
    for other in others:
        total, slope = rest + np.diag(other.precision), (prior.precision - other.precision) * z
        sign, log_det = np.linalg.slogdet(total)
        fitted = slope @ np.linalg.solve(total, slope) - other.precision @ z**2
        found.append(fitted + np.log(other.precision[free]).sum() - log_det if sign > 0 else np.nan)
    return 0 if np.isnan(found).any() else int(np.argmax(found))


class Objective:
    """What a fit maximises: the log-likelihood of weighted rows, plus, when a working prior is
    given, it and the class's own prior.

    Without one (``prior=None``) this is plain maximum likelihood. `form` says how rows of the
    class have their likelihood (see `likelihoods.form_of`).
    """

    def __init__(
        self,
        cls: DensityClass,
        form: Likelihood,
        rows: Rows,
        weights: np.ndarray | None = None,
        prior: WorkingPrior | None = None,
    ) -> None:
        self.cls, self.rows, self.prior, self.dim = cls, rows, prior, cls.dim
        self.weights = check_weights(weights, rows.n)
        whole = form.grown(rows, rows.x, rows.a, rows.y) if rows.n else form
        self.likelihood = whole if self.weights is None else whole.weighted(self.weights)
        self.n = rows.n if self.weights is None else int(np.count_nonzero(self.weights))
        self.own_prior = prior is not None and not bool(np.all(cls.prior_free))
        self._asked, self._slopes = b"", (np.empty(0), np.empty((0, 0)))
        if prior is not None and prior.mean.shape != (cls.dim,):
            raise SettingError(
                f"the working prior has {len(prior.mean)} coordinates, the class has {cls.dim}"
            )

    @property
    def tolerance(self) -> float:
        """Nats that a believed fit may still lack."""
        return TOLERANCE if self.likelihood.smooth else BESIDE_KINKS

    def admissible(self, theta: np.ndarray) -> np.ndarray:
        """Where to start from instead of theta (D,), if there is nothing to climb by there."""
        return self.likelihood.admissible(theta, self.rows.x, self.rows.a)

    def log_prior(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Value, up to a constant, and gradient (D,)."""
        if self.prior is None:
            return 0.0, np.zeros(self.dim)
        value, grad = (
            self.prior.log_density(theta),
            -self.prior.precision * (theta - self.prior.mean),
        )
        if self.own_prior:
            value += float(self.cls.log_prior(theta))
            grad = grad + self._slopes_of_prior(theta)[0]
        return value, grad

    def _slopes_of_prior(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (D,) and Hessian (D, D) of the class's own prior; asked several times at the
        same theta, and dear in Pyro.
        """
        if theta.tobytes() != self._asked:
            self._asked, self._slopes = theta.tobytes(), self.cls.log_prior_grad_hessian(theta)
        return self._slopes

    def prior_precision(self, theta: np.ndarray) -> np.ndarray:
        if self.prior is None:
            return np.zeros((self.dim, self.dim))
        precision = np.diag(self.prior.precision)
        if self.own_prior:
            precision = precision - self._slopes_of_prior(theta)[1]
        return symmetric(precision)

    def value_grad(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """At theta (D,): the value and its gradient (D,)."""
        value, grad = self.likelihood.at(theta)
        prior, prior_grad = self.log_prior(theta)
        return value + prior, grad + prior_grad

    def precision(self, theta: np.ndarray) -> np.ndarray:
        """Minus the Hessian (D, D)."""
        found: np.ndarray = self.likelihood.information(theta) + self.prior_precision(theta)
        return found


def check_weights(weights: np.ndarray | None, n: int) -> np.ndarray | None:
    if weights is None:
        return None
    weights = np.asarray(weights, float)
    if weights.shape != (n,):
        raise SettingError(
            f"weights must have one number for each of the {n} rows, got shape {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise SettingError(
            f"weights must be finite and >= 0, got {weights[~(weights >= 0)][:3]} among them"
        )
    return weights


def symmetric(matrix: np.ndarray) -> np.ndarray:
    found: np.ndarray = 0.5 * (matrix + matrix.T)
    return found


def units(matrix: np.ndarray) -> np.ndarray:
    """Square roots of the diagonal (D,): what one standard error of each coordinate is the inverse
    of; 1 where it is 0.

    Divided by them on both sides, a matrix of curvatures is free of the coordinates' units, and its
    eigenvalues tell which directions the rows do not see; without that, a column in large numbers
    would hide one in small numbers.
    """
    size = np.sqrt(np.abs(np.diag(matrix)))
    return np.where((size > 0) & np.isfinite(size), size, 1.0)


def decrement(grad: np.ndarray, precision: np.ndarray) -> float:
    """Half the squared Newton decrement 1/2 g' P^-1 g: the gain in nats that a quadratic model
    still promises.

    A direction with no curvature counts only if the gradient has a part in it; then nothing bounds
    the gain.
    """
    if not (np.isfinite(grad).all() and np.isfinite(precision).all()):
        return np.inf
    unit = units(precision)
    along, size, _ = curved(grad / unit, precision / np.outer(unit, unit))
    if np.any((size == 0) & (along != 0)):
        return np.inf
    return float(0.5 * np.sum(along[size > 0] ** 2 / size[size > 0]))


def curved(grad: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradient in the eigenbasis (D,), the absolute eigenvalues (D,), the basis (D, D);
    rounding set to zero.

    An unseen direction has a curvature and a gradient of rounding size, whose ratio means nothing.
    """
    values, vectors = np.linalg.eigh(precision)
    along, size = vectors.T @ grad, np.abs(values)
    top = size.max(initial=0.0)
    unseen = (size <= RANK_TOLERANCE * top) & (along**2 <= 1e-24 * max(1.0, float(grad @ grad)))
    return np.where(unseen, 0.0, along), np.where(size <= NOISE * top, 0.0, size), vectors


def positive_definite(matrix: np.ndarray, floor: float = RANK_TOLERANCE) -> np.ndarray:
    """The matrix with eigenvalues below ``floor`` times the largest raised to it, in the
    coordinates' own units.
    """
    unit = units(matrix)
    values, vectors = np.linalg.eigh(matrix / np.outer(unit, unit))
    low = floor * max(values.max(initial=0.0), np.sqrt(np.finfo(float).tiny))
    if values.size == 0 or values.min() > low:
        return matrix
    return symmetric((vectors * np.maximum(values, low)) @ vectors.T) * np.outer(unit, unit)


def rank(information: np.ndarray) -> int:
    unit = units(information)
    values = np.linalg.eigvalsh(information / np.outer(unit, unit))
    return int(np.sum(values > RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)))


# the checks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Everything the checks look at, recomputed at the parameters that a solver returned."""

    objective: Objective
    theta: np.ndarray
    value: float
    grad: np.ndarray  # of the objective
    precision: np.ndarray  # minus its Hessian, as it is
    tolerance: float
    at_bounds: bool


def _finite(e: Evidence) -> str | None:
    if (
        np.isfinite(e.theta).all()
        and np.isfinite(e.value)
        and np.isfinite(e.grad).all()
        and np.isfinite(e.precision).all()
    ):
        return None
    return f"the parameters or the log-likelihood ({e.value}) are not finite"


def _bounds(e: Evidence) -> str | None:
    return (
        None
        if bool(np.all(e.objective.cls.inside(e.theta)))
        else "the parameters lie outside the declared bounds"
    )


def funnel_in(e: Evidence) -> str | None:
    """A hierarchy written centred: its density grows without end as a scale goes to 0, whatever the
    rows say.

    Known by a climb that did not arrive, and that the prior alone drew: its log-density rose by
    more than one nat a parameter and by more than the likelihood's did.
    """
    if not e.objective.own_prior or e.at_bounds:
        return None
    if e.tolerance == np.inf or decrement(e.grad, e.precision) <= e.tolerance:
        return None
    start = np.asarray(e.objective.cls.initial, float)
    risen = e.objective.log_prior(e.theta)[0] - e.objective.log_prior(start)[0]
    gained = e.objective.likelihood.at(e.theta)[0] - e.objective.likelihood.at(start)[0]
    if not (risen > e.objective.dim and risen > gained):
        return None
    before, after = e.objective.cls.unflatten(start), e.objective.cls.unflatten(e.theta)
    scales = [name for name in after if np.min(before[name]) > 0 and np.min(after[name]) > 0]
    shrunk = [
        f"{name} = {np.min(after[name]):.2g}"
        for name in scales
        if np.any(after[name] < 0.1 * before[name])
    ]
    return (
        "a funnel: the prior's density grows without bound as a scale goes to 0 "
        f"({', '.join(shrunk) or 'none is named'}), so "
        "that there is no most probable point; write the hierarchy non-centred (w = mu + tau * z "
        "with z ~ Normal(0, 1))"
    )


def _no_runaway(e: Evidence) -> str | None:
    """Separable data: the curvature has died out along a direction which the rows do speak about
    elsewhere.

    A direction that is flat at the starting parameters too is merely unseen, and no fault.
    """
    reference = e.objective.precision(np.asarray(e.objective.cls.initial, float))
    if not np.isfinite(reference).all():
        return None
    unit = units(reference)
    values, vectors = np.linalg.eigh(e.precision / np.outer(unit, unit))
    reference = reference / np.outer(unit, unit)
    at_start = np.linalg.norm(reference @ vectors, axis=0)
    spoken = at_start > 1e-8 * max(at_start.max(initial=0.0), np.finfo(float).tiny)
    ratio = np.where(spoken, np.abs(values) / np.where(spoken, at_start, 1.0), 1.0)
    along = np.abs(vectors.T @ (e.grad / unit))
    step = np.divide(along, np.abs(values), out=np.zeros_like(along), where=np.abs(values) > 0)
    gone = spoken & ((ratio < 1e-14) | ((ratio < 1e-4) & (step > 0.1)))
    if not gone.any():
        return None
    size = float(np.linalg.norm(e.theta))
    # only such outcomes can be separable
    counts = bool(np.all(e.objective.rows.y == np.floor(e.objective.rows.y)))
    what = (
        "the data are separable: the log-likelihood"
        if counts
        else "the log-likelihood has no maximum: it"
    )
    return (
        f"{what} rises without end along {int(gone.sum())} of {e.objective.dim} "
        f"directions (|theta| = {size:.3g} and growing); more rows or a prior will fix it"
    )


def _curvature(e: Evidence) -> str | None:
    unit = units(e.precision)
    values = np.linalg.eigvalsh(e.precision / np.outer(unit, unit))
    if (
        e.at_bounds
        or values.size == 0
        or values.min() >= -1e-6 * max(values.max(), np.finfo(float).tiny)
    ):
        return None
    return f"the curvature is not that of a maximum (smallest eigenvalue {values.min():.3g})"


def _gradient(e: Evidence) -> str | None:
    if e.at_bounds:
        return None
    gain = decrement(e.grad, e.precision)
    if gain <= e.tolerance:
        return None
    return (
        f"not converged: gradient norm {np.linalg.norm(e.grad):.2g}, {gain:.2g} nats still to gain"
    )


Check = Callable[[Evidence], "str | None"]

CHECKS: dict[str, Check] = {  # in this order: the later ones assume that the earlier ones passed
    "finite": _finite,
    "bounds": _bounds,
    "runaway": _no_runaway,
    "curvature": _curvature,
    "gradient": _gradient,
}


def assess(
    objective: Objective,
    theta: np.ndarray,
    how: str,
    *,
    tolerance: float = TOLERANCE,
    at_bounds: bool = False,
) -> Fit:
    """The `Fit` at theta (D,), every number recomputed here; ``ok`` only if all of `CHECKS` pass.

    ``how`` opens the status sentence, e.g. ``"converged in 7 Newton steps"``.
    """
    theta = np.array(theta, float)
    finite = bool(np.isfinite(theta).all())
    nothing = np.full((objective.dim, objective.dim), np.nan)
    log_likelihood, grad_likelihood = (
        objective.likelihood.at(theta) if finite else (np.nan, nothing[0])
    )
    log_prior, grad_prior = objective.log_prior(theta) if finite else (np.nan, nothing[0])
    information = objective.likelihood.information(theta) if finite else nothing
    raw = information + (objective.prior_precision(theta) if finite else nothing)
    grad = grad_likelihood + grad_prior
    evidence = Evidence(
        objective, theta, log_likelihood + log_prior, grad, raw, tolerance, at_bounds
    )
    complaint = next(
        (text for check in CHECKS.values() if (text := check(evidence)) is not None), None
    )
    # why it failed, where that is known
    funnel = None if complaint is None else funnel_in(evidence)
    usable = bool(np.isfinite(raw).all())
    seen = rank(information) if usable else 0
    parts = [how, f"gradient norm {np.linalg.norm(grad):.2g}"]
    if usable and objective.n and seen < objective.dim:
        parts.append(f"the rows determine {seen} of {objective.dim} directions")
    if at_bounds:
        parts.append("the maximum lies outside the declared bounds and the fit on their boundary")
    eps_opt, proved = (
        objective.likelihood.deficit(theta, grad_likelihood, information)
        if usable
        else (np.inf, False)
    )
    return Fit(
        theta=theta,
        log_likelihood=float(log_likelihood),
        information=information,
        precision=positive_definite(raw) if usable else raw,
        ok=complaint is None,
        status=", ".join(parts) if complaint is None else funnel or complaint,
        n=objective.n,
        funnel=funnel is not None,
        rank=seen,
        eps_opt=float(eps_opt),
        eps_opt_proved=bool(proved),
        at_bounds=at_bounds,
    )


def keep_good(new: Fit, old: Fit | None) -> Fit:
    """The new fit if it is believed, else the old one with a status that says so.

    The kept fit is unchanged (its log-likelihood is that of its own, fewer rows): a confidence set
    built on it was valid then and still is.
    """
    if new.ok or old is None or not old.ok:
        return new
    return replace(old, kept=True, status=f"{new.status}; kept the last good fit, of {old.n} rows")


# ==================================================================================================
# The one way up a smooth hill whose Hessian is cheap: damped Newton.
#
# Axis letter: D flat parameters.
# ==================================================================================================

GAIN = 2e-12  # nats: a fit is believed only at the very top
SHORTER = (1.0, 0.5, 0.1, 0.01)  # shares of a step that are tried where it is not turned


def newton(
    value_grad: Callable[[np.ndarray], tuple[float, np.ndarray]],
    precision: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    *,
    steps: int = 100,
    enough: float = GAIN,
    flat: float = 0.0,
    far: float = 10.0,
    room: float | None = None,
    turning: bool = True,
) -> tuple[np.ndarray, str]:
    """Maximise from start (D,): the last point and, in words, how it ended.

    Each step solves (|P| + damping I) step = gradient, with P minus the Hessian and |P| its
    absolute eigenvalues, so that it is a Newton step on a concave objective and still an ascent
    direction elsewhere. A step must deliver 1e-4 of the gain it promised, or another is tried
    (see `turning`). A point where numbers run out is left again.

    Parameters
    ----------
    enough
        Nats: it ends where gradient' step is no more, twice what a quadratic would gain.
    flat
        Directions whose curvature is at most this share of the largest are left alone. With 0 they
        are followed as far as `far` allows, so that separable data show in the point reached.
    far, room
        No step is longer than far (room + |theta|), in standard errors at the start; room is
        sqrt(D) if not given.
    turning
        Whether the damping grows where a step does not deliver (Levenberg), which turns it to the
        gradient. Else it is made shorter, a few times: up a hill without a top that soon ends.
    """
    theta = before = np.array(start, float)
    damping, shares = 0.0, (1.0,) * 40 if turning else SHORTER
    unit = ruler = np.ones(len(theta))
    room = np.sqrt(len(theta)) if room is None else room
    value, grad = value_grad(theta)
    for done in range(steps + 1):
        curvature = precision(theta)
        if not (np.isfinite(value) and np.isfinite(grad).all() and np.isfinite(curvature).all()):
            return before, f"stopped after {done} Newton steps at a value that is not finite"
        if done == 0:
            # steps are taken in standard errors, so that no coordinate's unit matters
            unit = units(curvature)
            # what nothing depends on has no unit, and is not moved
            ruler = np.where(np.diag(curvature) == 0, 0.0, unit)
        along, size, vectors = curved(grad / unit, curvature / np.outer(unit, unit))
        top = max(size.max(initial=0.0), np.finfo(float).tiny)
        along, size = np.where(size > flat * top, along, 0.0), np.maximum(size, NOISE * top)
        if np.sum(along**2 / size) <= enough:
            return theta, f"converged in {done} Newton steps"
        if done == steps:
            break
        farthest = far * (room + float(np.linalg.norm(ruler * theta)))
        for share in shares:
            move = vectors @ (along / (size + damping))
            length = float(np.linalg.norm(move))
            move = move * min(1.0, farthest / length) if length > 0 else move
            move = move / unit * share
            promised = float(grad @ move) * 0.5
            trial = theta + move
            trial_value, trial_grad = value_grad(trial)
            # close to the top the gain drowns in the rounding of the sum, so a tie counts as
            # delivered
            rounding = 1e-13 * (1.0 + abs(value)) if promised < 1e-6 else 0.0
            if np.isfinite(trial_grad).all() and trial_value >= value + 1e-4 * promised - rounding:
                break
            damping = max(8.0 * damping, 1e-4 * top) if turning else 0.0
        else:
            return theta, f"stalled after {done} Newton steps"
        before, theta, value, grad = theta, trial, trial_value, trial_grad
        damping = damping / 8.0 if damping > 1e-8 * top else 0.0
    return theta, f"stopped after {steps} Newton steps"
