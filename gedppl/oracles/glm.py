"""Fits of one-predictor families in NumPy alone: least squares and score equations.

For an exponential family p(y) = h(y) exp(eta T(y) - A(eta)) the maximum likelihood estimate solves

    sum_i J_i' (T(y_i) - A'(eta_i)) = 0,     J_i the Jacobian of eta_i in theta,

and where eta = features @ theta + offset, J_i is the row of features, so that Newton's method is iteratively reweighted
least squares (Hu, Simchi-Levi, Azizan, section on the score equation method). The other families of `one_predictor`, whose
log-densities are concave in eta too, are fitted by the same Newton steps.

Axis letters: n rows, D flat parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gedppl.errors import SettingError
from gedppl.oracles.fits import RANK_TOLERANCE, Fit, Objective, WorkingPrior, assess, decrement, symmetric, units
from gedppl.oracles.one_predictor import FAMILIES, Terms

if TYPE_CHECKING:
    from gedppl.classes import DensityClass
    from gedppl.rows import Rows

BESIDE_KINKS = 0.05  # nats: what working weights promise of a step beside kinks is no measure of what it gives


def has_score_equations(cls: DensityClass) -> bool:
    """Whether the class is a one-predictor family whose score equations are known here."""
    return cls.predictor is not None and (cls.predictor.family, cls.predictor.link) in FAMILIES


def check_score_equations(cls: DensityClass) -> None:
    """Raise where they are not known."""
    if not has_score_equations(cls):
        predictor = cls.predictor
        what = "no linear predictor" if predictor is None else f"family {predictor.family}, link {predictor.link}"
        raise SettingError(f"score equations need one of {sorted(FAMILIES)}, got a class with {what}; use ged.mle()")


def check_least_squares(cls: DensityClass) -> None:
    """Raise where there is no closed form."""
    if cls.predictor is None or cls.predictor.family != "Normal":
        raise SettingError("least squares needs a class with Normal outcomes and a mean linear in theta; use ged.mle()")


class PredictorObjective(Objective):
    """The same objective as the program's, evaluated on its features without the program."""

    def __init__(
        self, cls: DensityClass, rows: Rows, weights: np.ndarray | None = None, prior: WorkingPrior | None = None
    ) -> None:
        super().__init__(cls, rows, weights, prior)
        predictor = cls.predictor
        check_score_equations(cls)
        assert predictor is not None
        self.family = FAMILIES[predictor.family, predictor.link]
        if not self.family.smooth:
            self.tolerance = BESIDE_KINKS
        self._last: tuple[np.ndarray, Terms] | None = None
        if self.n == 0:
            return
        n, (x, a, _, _) = rows.n, rows.padded()  # padded: a backend compiles its features once a bucket
        chosen = slice(0, n) if self.weights is None else np.flatnonzero(self.weights)
        self.features = np.asarray(predictor.features(x, a), float)[:n][chosen]
        self.offset = np.broadcast_to(np.asarray(predictor.offset(x, a), float), len(a))[:n][chosen]
        self.fixed = {
            name: np.broadcast_to(np.asarray(value, float), len(a))[:n][chosen] for name, value in predictor.fixed(x, a).items()
        }
        self.y = rows.y[chosen]
        self.row_weights = None if self.weights is None else self.weights[chosen]

    def _rows(self, theta: np.ndarray) -> Terms:
        """The rows' terms at theta; the last ones are kept, because value and curvature are asked one after the other."""
        if self._last is not None and np.array_equal(self._last[0], theta):
            return self._last[1]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            log_p, score, curvature = self.family.terms(self.features @ theta + self.offset, self.y, self.fixed)
        if self.row_weights is not None:
            log_p, score, curvature = (term * self.row_weights for term in (log_p, score, curvature))
        self._last = (np.array(theta), (log_p, score, curvature))
        return self._last[1]

    def log_likelihood(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if self.n == 0:
            return 0.0, np.zeros(self.dim)
        log_p, score, _ = self._rows(theta)
        return float(log_p.sum()), self.features.T @ score

    def information(self, theta: np.ndarray) -> np.ndarray:
        if self.n == 0:
            return np.zeros((self.dim, self.dim))
        curvature = self._rows(theta)[2]
        return symmetric((self.features * curvature[:, None]).T @ self.features)

    def deficit(self, theta: np.ndarray, grad: np.ndarray, information: np.ndarray) -> tuple[float, bool]:
        r"""A proved bound on the log-likelihood still to gain.

        For a family with |third derivative| <= c second derivative in eta (c its `growth`): along a unit direction of the norm
        that the information I defines, with ``rho = c max_i |phi_i|_{I^-1}`` and ``lam = |g|_{I^-1}``, integrating
        ``h''(t) >= exp(-rho t)`` twice gives  gain <= (u + (1 - u) log(1 - u)) / rho^2  with u = lam rho < 1, which tends
        to lam^2 / 2 as rho -> 0 (and c = 0 for the Normal). If u >= 1 nothing is proved and the answer is infinite; for a
        family without a known c it is the Newton decrement, an estimate.
        """
        if self.n == 0:
            return 0.0, True
        if self.family.growth is None:
            return decrement(grad, information), False
        values, vectors = np.linalg.eigh(information)
        seen = values > RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)
        # Features lie in the information's range in exact arithmetic, and so does g; a direction of collapsed curvature
        # (separable data) is the exception, and there no bound holds.
        if np.abs(self.features @ vectors[:, ~seen]).max(initial=0.0) > 1e-6 * np.abs(self.features).max(initial=0.0):
            return np.inf, False
        root = vectors[:, seen] / np.sqrt(values[seen])
        lam = float(np.linalg.norm(root.T @ grad))
        growth = self.family.growth(self.fixed)
        if growth == 0:
            return 0.5 * lam**2, True
        rho = growth * float(np.sqrt(np.max(np.sum((self.features @ root) ** 2, axis=1), initial=0.0)))
        u = lam * rho
        if u >= 1.0:
            return np.inf, False
        gain = 0.5 * lam**2 if u < 1e-6 else (u + (1 - u) * np.log1p(-u)) / rho**2
        return gain * (1 + 1e-6) if u < 1e-6 else gain, True


def fit_least_squares(
    cls: DensityClass,
    rows: Rows,
    *,
    weights: np.ndarray | None = None,
    start: Fit | None = None,
    prior: WorkingPrior | None = None,
) -> Fit:
    """The exact maximiser for a linear-Gaussian class, in closed form.

    theta = argmin sum_i w_i (y_i - offset_i - phi_i' theta)^2 / scale_i^2 (+ priors). Directions that no row has seen
    are left where they start: the estimate is the minimiser nearest to ``start`` (or the class's initial parameters).
    A `sample` site whose prior is not Gaussian makes this no closed form: use `maximum_likelihood` there.
    """
    check_least_squares(cls)
    objective = PredictorObjective(cls, rows, weights, prior)
    origin = np.asarray(cls.initial if start is None else start.theta, float)
    theta = origin + _pinv_solve(objective.precision(origin), objective.value_grad(origin)[1])
    return assess(objective, theta, "exact least squares")


def _pinv_solve(precision: np.ndarray, grad: np.ndarray) -> np.ndarray:
    unit = units(precision)
    values, vectors = np.linalg.eigh(precision / np.outer(unit, unit))
    seen = values > RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)
    return vectors[:, seen] @ ((vectors[:, seen].T @ (grad / unit)) / values[seen]) / unit


@dataclass(frozen=True)
class RunningLeastSquares:
    """Weighted least squares that takes in one row at a time, at O(D^2) a row.

    Holds ``gram = sum_i w_i phi_i phi_i'``, ``moment = sum_i w_i phi_i y_i``, ``sumsq = sum_i w_i y_i^2`` and, for a ridge
    > 0, the inverse and log-determinant of ``gram + ridge I`` by rank-one updates (Sherman and Morrison), recomputed
    every 256 rows so that rounding cannot build up. Immutable: `add` returns a new one.

    >>> fit = RunningLeastSquares.empty(2).add([1.0, 0.0], 3.0).add([1.0, 0.0], 5.0)
    >>> fit.theta().tolist(), fit.rank()
    ([4.0, 0.0], 1)
    """

    gram: np.ndarray  # (D, D)
    moment: np.ndarray  # (D,)
    sumsq: float
    n: int
    ridge: float
    inverse: np.ndarray | None  # (D, D) of gram + ridge I; None without a ridge
    logdet: float  # of I + gram / ridge; nan without a ridge

    REFRESH = 256

    @classmethod
    def empty(cls, dim: int, ridge: float = 0.0) -> RunningLeastSquares:
        if not (np.isfinite(ridge) and ridge >= 0):
            raise SettingError(f"ridge must be a number >= 0, got {ridge}")
        inverse = np.eye(dim) / ridge if ridge > 0 else None
        return cls(np.zeros((dim, dim)), np.zeros(dim), 0.0, 0, float(ridge), inverse, 0.0 if ridge > 0 else np.nan)

    def add(self, phi: np.ndarray, y: float, weight: float = 1.0) -> RunningLeastSquares:
        """One more row: phi (D,), outcome y, weight (e.g. 1 / sigma^2) >= 0."""
        phi = np.asarray(phi, float)
        if phi.shape != self.moment.shape:
            raise SettingError(f"phi must have shape {self.moment.shape}, got {phi.shape}")
        if not (np.isfinite(phi).all() and np.isfinite(y) and np.isfinite(weight) and weight >= 0):
            raise SettingError(f"a row must be finite and its weight >= 0, got phi {phi}, y {y}, weight {weight}")
        gram = self.gram + weight * np.outer(phi, phi)
        moment, sumsq, n = self.moment + (weight * y) * phi, self.sumsq + weight * y * y, self.n + 1
        if self.inverse is None:
            return RunningLeastSquares(gram, moment, sumsq, n, self.ridge, None, np.nan)
        if n % self.REFRESH == 0:
            full = gram + self.ridge * np.eye(len(phi))
            inverse = symmetric(np.linalg.inv(full))
            logdet = float(np.linalg.slogdet(full)[1] - len(phi) * np.log(self.ridge))
        else:
            towards = self.inverse @ phi
            growth = 1.0 + weight * float(phi @ towards)
            inverse = self.inverse - (weight / growth) * np.outer(towards, towards)
            logdet = self.logdet + float(np.log(growth))
        return RunningLeastSquares(gram, moment, sumsq, n, self.ridge, inverse, logdet)

    def theta(self) -> np.ndarray:
        """The ridge estimate (D,); without a ridge the least-squares estimate of smallest norm."""
        return self.inverse @ self.moment if self.inverse is not None else _pinv_solve(self.gram, self.moment)

    def rank(self) -> int:
        """Directions seen so far."""
        values = np.linalg.eigvalsh(self.gram)
        return int(np.sum(values > RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)))

    def residual(self, theta: np.ndarray) -> float:
        """sum_i w_i (y_i - phi_i' theta)^2."""
        return float(max(self.sumsq - 2 * theta @ self.moment + theta @ self.gram @ theta, 0.0))
