r"""What is proved of families with one predictor and one more unknown number psi, the nuisance:
dispersion, shape or one over a scale. `profiled` bounds functionals with it.

At every psi the log-likelihood is concave in v. Between two values p < q of psi either of two facts
bounds it:

    bent      -d2 l_i / d psi2 <= k_i(p) for every v and every psi >= p, so that
              l(v, psi) <= (1 - t) l(v, p) + t l(v, q) + t (1 - t) (q - p)^2 / 2  sum_i k_i(p)
    joint     l is concave in (psi v, psi) together: location and scale

With h(t) = trigamma(t) - 1/t, which falls in t:

    NegativeBinomial, log mean    psi = dispersion    bent, k_i = h(p) - h(y_i + p)
    Gamma, log mean               psi = shape         bent, k_i = h(p)
    Weibull, log scale            psi = shape         joint
    Logistic                      psi = 1 / scale     joint

For the first let w = 1 / (psi + mean): the part of l_i'' that depends on v is -2w + (y + psi) w^2,
at least -1 / (y + psi). A predictor in which log psi appears otherwise than these forms have it
gets one free coefficient more, which makes a set larger.

Ends of psi. The largest log-density of a row over all predictors grows with psi: below some psi the
sum of these is under the threshold. Above, the profile of a Gamma is concave with known slope, that
of a joint family is concave, so that it stays under the threshold where it has fallen below it; and
what a NegativeBinomial's row gains beyond p is at most the integral of the largest slope, G(y + p)
- G(p) with G(t) = t log t - t - lgamma(t): its last cell reaches to infinity, where it is a
Poisson.

Functionals along a line from (eta, p) to (eta + e, q). A chance bends by |d2 P(A)| = |E[1_A (s^2 +
s')]| <= E max(-s', 0), s the score along the line, of which the three second derivatives give

    (q - p)^2 most_curved(p) + 2 |e| (q - p) cross(p) + e^2 along(q)

at most; inside, a chance exceeds the larger of those at the ends by at most an eighth of it, and a
quantile is one of a level shifted by as much. From a Poisson of the same mean a NegativeBinomial is
at most mean / psi away in total variation (Barbour, Holst and Janson, theorem 1.C). Means do not
depend on psi in the first two families; variance, second moment and CVaR fall with it (convex
order). Where location and scale are joint, with location e / psi and scale 1 / psi, chances of a
tail and quantiles have level sets that are lines in (e, psi), and so have mean and CVaR of a
Logistic; the logarithms of a Weibull's mean, second moment and CVaR are a multiple c of the
location plus a function of the scale that is convex and bends by c^2 trigamma(1 + c / psi) at most,
the variance of a log-concave variable which cutting off its tail makes smaller.

Axis letters: n rows, M settings of (v, psi).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln, polygamma, xlogy

from gedppl.families.one_predictor import FAMILIES, Terms

# (eta (M, n), y (n,), the family's argument (M, 1)) -> terms as in `one_predictor`, but for what
# does not depend on eta
RowTerms = Callable[[np.ndarray, np.ndarray, np.ndarray], Terms]


def _h(t: float | np.ndarray) -> np.ndarray:
    """trigamma(t) - 1 / t: positive, falling and convex; near 1 / 2t^2 for large t.

    >>> float(_h(10.0).round(6))
    0.005166
    """
    return np.asarray(polygamma(1, t) - 1.0 / np.asarray(t))


def _gain(t: float | np.ndarray) -> np.ndarray:
    """G(t) = t log t - t - log Gamma(t), with derivative log t - digamma(t) > 0: log(y p(y)) of a
    Gamma at its best rate, for shape t.
    """
    return np.asarray(xlogy(t, t) - t - gammaln(t))


@dataclass(frozen=True)
class Nuisance:
    """What is known of a family along its nuisance; see the module's head."""

    link: str
    rows: RowTerms
    # (psi, mean) -> of a row, expected, for every larger psi and smaller mean
    most_curved: Callable[[np.ndarray, np.ndarray], np.ndarray]
    saturated: Callable[[float, np.ndarray], float]  # (psi, y) -> what no predictor exceeds
    # (psi, y) -> what `rows` leave out, (n,)
    constant: Callable[[float, np.ndarray], np.ndarray] = lambda psi, y: 0.0 * y
    slope: float = 0.0  # of log(nuisance) in the predictor, in the form that the proof is about
    # bent: (psi, y) -> k (n,); and the two other second derivatives of a row's log-density,
    # expected: (psi, mean) -> bounds that hold for every larger psi, for every smaller one
    curvature: Callable[[float, np.ndarray], np.ndarray] | None = None
    cross: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda psi, mean: 0.0 * psi
    along: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda psi, mean: 0.0 * psi
    # (psi, top there, threshold, y) -> whether no larger psi has a member; None: its profile is
    # concave
    ended: Callable[[float, float, float, np.ndarray], bool] | None = None
    # (psi, y) -> what larger psi can add at most
    beyond: Callable[[float, np.ndarray], float] = lambda psi, y: np.inf
    to_poisson: bool = False  # a large psi makes it one
    inverse: bool = False  # psi is one over the family's argument
    told: Callable[[np.ndarray], np.ndarray] | None = None  # joint: y -> what has the location

    @property
    def joint(self) -> bool:
        return self.told is not None

    def argument(self, psi: np.ndarray) -> np.ndarray:
        return 1.0 / psi if self.inverse else psi


def _table_rows(family: str, link: str, name: str) -> RowTerms:
    terms = FAMILIES[family, link].terms
    return lambda eta, y, argument: terms(eta, y, {name: argument})


# the NegativeBinomial ---------------------------------------------------------------------------


def _negative_binomial_rows(eta: np.ndarray, y: np.ndarray, r: np.ndarray) -> Terms:
    """Less `_negative_binomial_constant`: its logarithms of factorials cost more than all else."""
    odds, both = np.exp(eta - np.log(r)), y + r
    chance = odds / (1.0 + odds)
    value = y * eta - both * np.log1p(odds)
    return value, y - both * chance, both * chance / (1.0 + odds)


def _negative_binomial_constant(psi: float, y: np.ndarray) -> np.ndarray:
    """log Gamma(y + psi) - log Gamma(psi) - log y! - y log psi of each row: what the predictor does
    not move.
    """
    return np.asarray(gammaln(y + psi) - gammaln(psi) - gammaln(y + 1) - y * np.log(psi))


def _negative_binomial_saturated(psi: float, y: np.ndarray) -> float:
    """The sum of log-densities with each row's mean at its outcome: y log y + psi log psi
    - (y + psi) log(y + psi), and the ways.
    """
    both = y + psi
    ways = gammaln(both) - gammaln(psi) - gammaln(y + 1)
    return float(np.sum(ways + xlogy(y, y) + xlogy(psi, psi) - xlogy(both, both)))


# the Gamma --------------------------------------------------------------------------------------


def _gamma_ended(psi: float, top: float, threshold: float, y: np.ndarray) -> bool:
    """The profile n (k log k - lgamma(k)) + k A - sum log y is concave in k."""
    n = len(y)
    best = (top + np.log(y).sum() - n * (xlogy(psi, psi) - gammaln(psi))) / psi
    return top < threshold and bool(n * (np.log(psi) + 1 - digamma(psi)) + best <= 0)


NUISANCES = {
    "NegativeBinomial": Nuisance(
        "log",
        _negative_binomial_rows,
        lambda psi, mean: _h(psi) - _h(psi + mean),  # h is convex
        _negative_binomial_saturated,
        _negative_binomial_constant,
        curvature=lambda psi, y: _h(psi) - _h(y + psi),
        # d2 l / d eta d psi = mean (y - mean) / (psi + mean)^2, -d2 l / d eta2 = psi mean (y + psi)
        # / (psi + mean)^2
        cross=lambda psi, mean: (mean / (psi + mean)) ** 1.5 / np.sqrt(psi),
        along=lambda psi, mean: psi * (mean / (psi + mean)),
        ended=lambda psi, top, threshold, y: False,
        beyond=lambda psi, y: float(np.sum(_gain(y + psi) - _gain(psi))),
        to_poisson=True,
    ),
    "Gamma": Nuisance(
        "log",
        _table_rows("Gamma", "log", "concentration"),
        lambda psi, mean: _h(psi),
        lambda psi, y: float(np.sum(_gain(psi) - np.log(y))),
        slope=1.0,
        curvature=lambda psi, y: np.full(len(y), _h(psi)),
        # y / mean - 1 and psi y / mean
        cross=lambda psi, mean: 1.0 / np.sqrt(psi),
        along=lambda psi, mean: psi,
        ended=_gamma_ended,
    ),
    "Weibull": Nuisance(
        "log",
        _table_rows("Weibull", "log", "concentration"),
        # (1 + E w (log w)^2) / psi^2, w standard exponential
        lambda psi, mean: 1.824 / psi**2,
        lambda psi, y: float(np.sum(np.log(psi) - 1.0 - np.log(y))),
        told=np.log,
    ),
    "Logistic": Nuisance(
        "identity",
        _table_rows("Logistic", "identity", "scale"),
        lambda psi, mean: 1.43 / psi**2,  # (1 + 2 E p (1 - p) z^2) / psi^2, z standard logistic
        lambda psi, y: len(y) * float(np.log(psi / 4)),
        inverse=True,
        told=np.asarray,
    ),
}
