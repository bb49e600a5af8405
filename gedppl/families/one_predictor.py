r"""Families with one predictor eta whose log-density is concave in it: what a family says of an
outcome, link by link.

A row's log-density is f(eta) with f concave, eta = features @ v + offset, so that the
log-likelihood of any rows is concave in v and the parameters that it leaves plausible form a convex
set. For each (family, link) the table below has

    terms       (eta, y, fixed) -> log p, d log p / d eta, -d2 log p / d eta2, row by row
    arguments   (eta, fixed) -> the family's arguments, as `Density` takes them
    domain      the eta for which there is a density
    middle      (value, fixed) -> the eta around which P(near value) is largest
    turns       functionals that are not monotone in eta, and where they turn
    growth
        a c with |f'''| <= c |f''| wherever one is known: what the proof of a small deficit needs

Outside its domain a log-density whose formula goes on is continued, because a concave continuation
only makes a set larger; what must be a density (a predictive) has to ask `inside_domain`.

All these families are stochastically ordered in eta (their densities have monotone likelihood
ratios), so that the mean, a one-sided probability, a quantile, the CVaR and the expectation of any
monotone function of the outcome are monotone in eta.

Not in the table because not concave: cauchit, an Exponential with identity mean, Student-t,
mixtures, zero inflation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaln, expit, gammaln, log_ndtr, logit, ndtr, ndtri

Fixed = Mapping[str, np.ndarray]
Terms = tuple[np.ndarray, np.ndarray, np.ndarray]
RowTerms = Callable[[np.ndarray, np.ndarray, Fixed], Terms]

LOG_2PI = float(np.log(2 * np.pi))
LARGEST_EXPONENT = 700.0
FAR_OUT, FLAT = 300.0, 1e-100  # an eta beyond which a slope that goes to zero is below this


@dataclass(frozen=True)
class OnePredictor:
    """A family under one link."""

    terms: RowTerms
    arguments: Callable[[np.ndarray, Fixed], dict[str, np.ndarray]]
    middle: Callable[[np.ndarray, Fixed], np.ndarray]
    domain: tuple[float, float] = (-np.inf, np.inf)
    turns: Mapping[str, float] = field(default_factory=dict)
    growth: Callable[[Fixed], float] | None = None
    # otherwise the second derivative is a working weight, good for steps and proving nothing
    smooth: bool = True
    whole: bool = False  # outcomes are counts
    real: bool = False  # outcomes may be negative

    def inside_domain(self, eta: np.ndarray) -> np.ndarray:
        """Where eta gives a density; a predictor that rounding puts at 1 + 1e-16 is at 1."""
        low, high = self.domain
        return (eta >= low - 1e-12) & (eta <= high + 1e-12)

    def ends(self, y: np.ndarray, fixed: Fixed) -> Terms:
        """The terms where eta is far down and where it is far up, (2, n) each."""
        with np.errstate(all="ignore"):
            found = self.terms(np.full((2, len(y)), [[-FAR_OUT], [FAR_OUT]]), y, fixed)
        return found[0], np.broadcast_to(found[1], (2, len(y))), found[2]

    def flat_ends(self, y: np.ndarray, fixed: Fixed) -> tuple[np.ndarray, np.ndarray]:
        """Whether each row's log-density tends to a value, instead of falling for ever, as eta goes
        down, and as it goes up; (n,) each.
        """
        down, up = np.abs(self.ends(y, fixed)[1]) <= FLAT
        return down, up


def _times(count: np.ndarray, value: np.ndarray) -> np.ndarray:
    """count * value where a count of zero says nothing, be the value infinite."""
    return np.where(count == 0, 0.0, count * np.where(count == 0, 0.0, value))


# success or failure: log P, its slope and minus its curvature, of each ----------------------------

Side = Callable[[np.ndarray], Terms]


def _logit_success(eta: np.ndarray) -> Terms:
    """log p = -log(1 + e^-eta), slope 1 - p, curvature p (1 - p)."""
    p, q = expit(eta), expit(-eta)
    return -np.logaddexp(0.0, -eta), q, p * q


def _mirrored(side: Side) -> Side:
    """The failure's terms where failing at eta is succeeding at -eta."""

    def failure(eta: np.ndarray) -> Terms:
        value, slope, curvature = side(-eta)
        return value, -slope, curvature

    return failure


def _probit_success(eta: np.ndarray) -> Terms:
    """log Phi(eta), slope m = phi(eta) / Phi(eta), curvature m (m + eta): between 0 and 1, which
    rounding would not keep far out.
    """
    value = log_ndtr(eta)
    ratio = np.exp(-0.5 * eta**2 - 0.5 * LOG_2PI - value)  # the inverse Mills ratio
    far = eta < -1e6  # where eta + ratio is rounding: ratio -> -eta - 1/eta
    return value, ratio, np.where(far, 1.0, np.clip(ratio * (ratio + eta), 0.0, 1.0))


def _cloglog_success(eta: np.ndarray) -> Terms:
    """With t = e^eta: log(1 - e^-t), slope r = t / (e^t - 1), curvature r (t / (1 - e^-t) - 1); by
    their series for small t, where 1 - e^-t has no digits.
    """
    t = np.exp(np.minimum(eta, LARGEST_EXPONENT))
    small = t < 1e-5
    safe = np.where(small, 1.0, t)
    ratio = np.where(small, 1 - 0.5 * t, safe / np.expm1(np.minimum(safe, LARGEST_EXPONENT)))
    bend = np.where(small, 0.5 * t, safe / -np.expm1(-safe) - 1.0)
    return np.where(small, eta - 0.5 * t, np.log(-np.expm1(-safe))), ratio, ratio * bend


def _cloglog_failure(eta: np.ndarray) -> Terms:
    """-e^eta, which is its own slope; curvature e^eta."""
    t = np.exp(eta)
    return -t, -t, t


def _log_success(eta: np.ndarray) -> Terms:
    """eta itself: linear, so that a success alone bounds no parameter from above."""
    return eta, np.ones_like(eta), np.zeros_like(eta)


def _log_failure(eta: np.ndarray) -> Terms:
    """log(1 - e^eta), slope -1 / g, curvature (1 + 1 / g) / g with g = e^-eta - 1; no density from
    0 on.
    """
    below = np.where(eta < 0, eta, np.nan)
    growth = np.expm1(np.minimum(-below, LARGEST_EXPONENT))  # e^-eta - 1
    value = np.where(eta < 0, np.log(-np.expm1(below)), -np.inf)
    return value, -1.0 / growth, (1.0 + 1.0 / growth) / growth


def _identity_success(eta: np.ndarray) -> Terms:
    """log eta, slope 1 / eta, curvature 1 / eta^2; no density at 0 and below."""
    open_ = np.where(eta > 0, eta, np.nan)
    return np.where(eta > 0, np.log(open_), -np.inf), 1.0 / open_, open_**-2.0


def _identity_failure(eta: np.ndarray) -> Terms:
    value, slope, curvature = _identity_success(1.0 - eta)
    return value, -slope, curvature


@dataclass(frozen=True)
class _Chance:
    """A link of a chance p: p(eta), its inverse, and the terms of success and failure."""

    of: Callable[[np.ndarray], np.ndarray]
    at: Callable[[np.ndarray], np.ndarray]
    success: Side
    failure: Side
    domain: tuple[float, float] = (-np.inf, np.inf)
    growth: float | None = None


def _probability_of_cloglog(eta: np.ndarray) -> np.ndarray:
    found: np.ndarray = -np.expm1(-np.exp(np.minimum(eta, LARGEST_EXPONENT)))
    return found


CHANCES = {
    "logit": _Chance(expit, logit, _logit_success, _mirrored(_logit_success), growth=1.0),
    "probit": _Chance(ndtr, ndtri, _probit_success, _mirrored(_probit_success)),
    "cloglog": _Chance(
        _probability_of_cloglog, lambda p: np.log(-np.log1p(-p)), _cloglog_success, _cloglog_failure
    ),
    "log": _Chance(
        lambda eta: np.exp(np.minimum(eta, 0.0)), np.log, _log_success, _log_failure, (-np.inf, 0.0)
    ),
    "identity": _Chance(
        lambda eta: np.clip(eta, 0.0, 1.0),
        np.asarray,
        _identity_success,
        _identity_failure,
        (0.0, 1.0),
    ),
}


def _bernoulli_logit(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """By e^-|eta|, which is at most 1: one exponential and one logarithm for all three."""
    tail = np.abs(eta)
    np.exp(np.negative(tail, out=tail), out=tail)
    total = 1.0 + tail
    slope = y - np.where(eta >= 0, 1.0, tail) / total
    value = y * eta
    value -= np.maximum(eta, 0.0)
    value -= np.log(total)
    return value, slope, tail / np.square(total)


def _trials(chance: _Chance, counted: bool) -> OnePredictor:
    """A Bernoulli, or a Binomial with a number of trials in every row."""

    def terms(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
        total = np.asarray(fixed["total_count"]) if counted else np.ones_like(y)
        parts = [
            _times(y, s) + _times(total - y, f)
            for s, f in zip(chance.success(eta), chance.failure(eta))
        ]
        ways = -betaln(y + 1, total - y + 1) - np.log1p(total) if counted else 0.0
        return parts[0] + ways, parts[1], parts[2]

    def arguments(eta: np.ndarray, fixed: Fixed) -> dict[str, np.ndarray]:
        return {**fixed, "probs": chance.of(eta)}

    def middle(value: np.ndarray, fixed: Fixed) -> np.ndarray:
        trials = np.maximum(fixed.get("total_count", np.ones(1)), 1.0)
        with np.errstate(divide="ignore"):
            return chance.at(np.clip(value / trials, 0.0, 1.0))

    def one_trial(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
        """Each row by its own side alone."""
        won, lost = y == 1, y == 0
        if np.shape(y) != np.shape(eta)[-1:] or not (won | lost).all():
            return terms(eta, y, fixed)
        value, slope, curvature = (np.empty(np.shape(eta)) for _ in range(3))
        for side, mine in ((chance.success, won), (chance.failure, lost)):
            value[..., mine], slope[..., mine], curvature[..., mine] = side(eta[..., mine])
        return value, slope, curvature

    half = float(chance.at(np.array(0.5)))
    growth = None if chance.growth is None else (lambda fixed: 1.0)
    single = _bernoulli_logit if chance is CHANCES["logit"] else one_trial
    fast = terms if counted else single
    return OnePredictor(
        fast, arguments, middle, chance.domain, {"variance": half}, growth, whole=True
    )


# counts -------------------------------------------------------------------------------------------


def _poisson_log(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """y eta - e^eta - log y!, slope y - e^eta, curvature e^eta.

    >>> value, slope, curvature = _poisson_log(np.log([2.0]), np.array([3.0]), {})
    >>> value.round(4), slope.round(4), curvature.round(4)
    (array([-1.7123]), array([1.]), array([2.]))
    """
    rate = np.exp(eta)
    return y * eta - rate - gammaln(y + 1), y - rate, rate


def _poisson_identity(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """y log eta - eta - log y!; a count of 0 says nothing of the logarithm, and goes on below 0."""
    value, slope, curvature = _identity_success(eta)
    return _times(y, value) - eta - gammaln(y + 1), _times(y, slope) - 1.0, _times(y, curvature)


def _negative_binomial(eta: np.ndarray, y: np.ndarray, r: np.ndarray) -> Terms:
    """Failures y before r successes, eta the log-odds of a failure, p = 1 / (1 + e^-eta):

        log Gamma(y + r) - log Gamma(r) - log y! + y eta - (y + r) log(1 + e^eta),

    slope y - (y + r) p, curvature (y + r) p (1 - p).
    """
    p, both = expit(eta), y + r
    ways = gammaln(both) - gammaln(r) - gammaln(y + 1)
    return ways + y * eta - both * np.logaddexp(0.0, eta), y - both * p, both * p * expit(-eta)


def _negative_binomial_logit(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    return _negative_binomial(eta, y, fixed["total_count"])


def _negative_binomial_log(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    r = fixed["total_count"]
    return _negative_binomial(eta - np.log(r), y, r)  # the logit is the log of mean / dispersion


# positive outcomes --------------------------------------------------------------------------------


def _exponential(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """eta the log rate: eta - y e^eta, slope 1 - y e^eta, curvature y e^eta."""
    decay = np.exp(eta) * y
    return eta - decay, 1.0 - decay, decay


def _gamma(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """eta the log rate, k the known shape: k eta + (k - 1) log y - log Gamma(k) - y e^eta, slope
    k - y e^eta, curvature y e^eta.
    """
    shape, decay = fixed["concentration"], np.exp(eta) * y
    log_p = shape * eta + (shape - 1) * np.log(y) - gammaln(shape) - decay
    return log_p, shape - decay, decay


def _weibull(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """eta the log scale, k the known shape, w = (y / e^eta)^k: log k + (k - 1) (log y - eta) - eta
    - w, slope k (w - 1), curvature k^2 w.
    """
    k = fixed["concentration"]
    log_ratio = np.log(y) - eta
    decay = np.exp(k * log_ratio)
    return np.log(k) + (k - 1) * log_ratio - eta - decay, k * (decay - 1.0), k**2 * decay


def _softplus(eta: np.ndarray) -> tuple[np.ndarray, Terms, Terms]:
    """log(1 + e^eta), with its slope and curvature; and the same of its logarithm, the last
    negated: it is concave.
    """
    rate, up, down = np.logaddexp(0.0, eta), expit(eta), expit(-eta)
    far = eta < -30.0  # where the rate is e^eta
    ratio = np.where(far, 1.0, up / np.where(far, 1.0, rate))
    bend = np.where(eta < -11.0, 0.5 * up, ratio * (ratio - down))
    return rate, (rate, up, up * down), (np.where(far, eta, np.log(rate)), ratio, bend)


def _softplus_rate(
    power: np.ndarray, weight: np.ndarray, eta: np.ndarray, constant: np.ndarray
) -> Terms:
    """power * log rate - weight * rate + constant."""
    _, plain, logs = _softplus(eta)
    return (
        _times(power, logs[0]) - weight * plain[0] + constant,
        power * logs[1] - weight * plain[1],
        power * logs[2] + weight * plain[2],
    )


def _poisson_softplus(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    return _softplus_rate(y, np.ones_like(y), eta, -gammaln(y + 1))


def _exponential_softplus(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    return _softplus_rate(np.ones_like(y), y, eta, np.zeros_like(y))


def _gamma_softplus(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    shape = np.broadcast_to(fixed["concentration"], np.shape(y))
    return _softplus_rate(shape, y, eta, (shape - 1) * np.log(y) - gammaln(shape))


def _lognormal(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """A Normal of log y, less log y: the outcome's own density."""
    log_y = np.log(y)
    value, slope, curvature = _normal(eta, log_y, fixed)
    return value - log_y, slope, curvature


# the real line ------------------------------------------------------------------------------------


def _normal(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """With z = (y - eta) / scale: -z^2 / 2 - log scale - log(2 pi) / 2, slope z / scale, curvature
    1 / scale^2.
    """
    scale = fixed["scale"]
    z = (y - eta) / scale
    return (
        -0.5 * z**2 - np.log(scale) - 0.5 * LOG_2PI,
        z / scale,
        np.broadcast_to(scale**-2.0, z.shape),
    )


def _logistic(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """With z = (y - eta) / scale: -|z| - 2 log(1 + e^-|z|) - log scale, slope tanh(z / 2) / scale,
    curvature 2 p (1 - p) / scale^2 at p = 1 / (1 + e^-z).
    """
    scale = fixed["scale"]
    z = (y - eta) / scale
    size = np.abs(z)
    return (
        -size - 2 * np.log1p(np.exp(-size)) - np.log(scale),
        np.tanh(0.5 * z) / scale,
        2 * expit(z) * expit(-z) / scale**2,
    )


def _laplace(eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> Terms:
    """The curvature is the working weight of reweighted least squares, 1 / (scale |y - eta|),
    cut off near the kink.
    """
    scale = fixed["scale"]
    z = (y - eta) / scale
    return (
        -np.abs(z) - np.log(2 * scale),
        np.sign(z) / scale,
        1.0 / np.maximum(np.abs(z), 1e-3) / scale**2,
    )


# the table ----------------------------------------------------------------------------------------


def _argument(
    name: str, of: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray, Fixed], dict[str, np.ndarray]]:
    return lambda eta, fixed: {**fixed, name: of(eta)}


def _same(value: np.ndarray, fixed: Fixed) -> np.ndarray:
    return value


def _log_of(value: np.ndarray, fixed: Fixed) -> np.ndarray:
    with np.errstate(divide="ignore"):
        found: np.ndarray = np.log(np.maximum(value, 0.0))
        return found


def _log_rate(value: np.ndarray, fixed: Fixed) -> np.ndarray:
    found: np.ndarray = np.log(fixed.get("concentration", np.ones(1))) - _log_of(value, fixed)
    return found


def _softplus_of(eta: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.logaddexp(0.0, eta)
    return found


def _softplus_at(value: np.ndarray, fixed: Fixed) -> np.ndarray:
    rate = np.maximum(value, 0.0)
    with np.errstate(divide="ignore"):
        found: np.ndarray = rate + np.log(-np.expm1(-rate))
        return found


def _softplus_rate_at(value: np.ndarray, fixed: Fixed) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        return _softplus_at(np.exp(_log_rate(value, fixed)), fixed)


def _one(fixed: Fixed) -> float:
    return 1.0


def _location(
    terms: RowTerms, growth: Callable[[Fixed], float] | None, smooth: bool = True
) -> OnePredictor:
    turns = {"second_moment": 0.0}
    return OnePredictor(
        terms,
        _argument("loc", np.asarray),
        _same,
        turns=turns,
        growth=growth,
        smooth=smooth,
        real=True,
    )


FAMILIES: dict[tuple[str, str], OnePredictor] = {
    ("Normal", "identity"): _location(_normal, lambda fixed: 0.0),
    ("Logistic", "identity"): _location(
        _logistic, lambda fixed: float(np.max(1.0 / fixed["scale"]))
    ),
    ("Laplace", "identity"): _location(_laplace, None, smooth=False),
    ("LogNormal", "identity"): OnePredictor(
        _lognormal, _argument("loc", np.asarray), _log_of, growth=lambda fixed: 0.0
    ),
    **{("Bernoulli", link): _trials(chance, counted=False) for link, chance in CHANCES.items()},
    **{("Binomial", link): _trials(chance, counted=True) for link, chance in CHANCES.items()},
    ("Poisson", "log"): OnePredictor(
        _poisson_log, _argument("rate", np.exp), _log_of, growth=_one, whole=True
    ),
    ("Poisson", "identity"): OnePredictor(
        _poisson_identity,
        _argument("rate", lambda eta: np.maximum(eta, 0.0)),
        _same,
        (0.0, np.inf),
        whole=True,
    ),
    ("NegativeBinomial", "logit"): OnePredictor(
        _negative_binomial_logit,
        _argument("probs", expit),
        lambda v, fixed: _log_of(v, fixed) - np.log(fixed["total_count"]),
        growth=_one,
        whole=True,
    ),
    ("NegativeBinomial", "log"): OnePredictor(
        _negative_binomial_log,
        lambda eta, fixed: {**fixed, "probs": expit(eta - np.log(fixed["total_count"]))},
        _log_of,
        growth=_one,
        whole=True,
    ),
    ("Poisson", "softplus"): OnePredictor(
        _poisson_softplus, _argument("rate", _softplus_of), _softplus_at, whole=True
    ),
    ("Exponential", "softplus"): OnePredictor(
        _exponential_softplus, _argument("rate", _softplus_of), _softplus_rate_at
    ),
    ("Gamma", "softplus"): OnePredictor(
        _gamma_softplus, _argument("rate", _softplus_of), _softplus_rate_at
    ),
    ("Exponential", "log"): OnePredictor(
        _exponential, _argument("rate", np.exp), _log_rate, growth=_one
    ),
    ("Gamma", "log"): OnePredictor(_gamma, _argument("rate", np.exp), _log_rate, growth=_one),
    ("Weibull", "log"): OnePredictor(
        _weibull,
        _argument("scale", np.exp),
        _log_of,
        growth=lambda fixed: float(np.max(fixed["concentration"])),
    ),
}

TERMS: dict[tuple[str, str], RowTerms] = {name: family.terms for name, family in FAMILIES.items()}
