"""Closed forms of the total variation and of the squared L2 distance, family by family (NumPy,
float64).

Total variation in one dimension is read off the distribution functions at the points where the
densities cross, of which these families have at most two (Laplace three). An error e in a crossing
costs e² in the distance, so bisection is ample.

L2²(p, q) = ∫(p − q)² is written as ‖p‖‖q‖ (4 sinh²(δ/2) − 2 expm1(log c)), with δ = log ‖p‖ − log
‖q‖ and the cosine c = ∫pq / (‖p‖‖q‖), because nothing cancels there. The cosine is the affinity of
the squared densities p²/‖p‖², q²/‖q‖², which for these families are of the family again. L2 is not
invariant under transforms: LogNormal and InverseGamma have formulas of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

from gedppl.divergences.affinity import (
    AFFINITIES,
    half_log_ratio,
    log_i0,
    log_normal_mass,
    segment_gap,
)
from gedppl.numerics.arrays import Namespace

Args = Mapping[str, np.ndarray]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # log‖p‖², log‖q‖², log cosine

_BISECTIONS = 64
_LOG_RANGE = 740.0  # beyond it exp under- or overflows


# total variation ----------------------------------------------------------------------------------


def from_breaks(gap: Callable[[np.ndarray], np.ndarray], breaks: list[np.ndarray]) -> np.ndarray:
    """½ Σ |change of F_p − F_q| over the pieces between the breaks; NaN breaks are left out."""
    points = np.sort(np.stack(np.broadcast_arrays(*breaks)), axis=0)  # NaN sorts to the end
    gaps = np.where(np.isfinite(points), gap(points), 0.0)  # F_p − F_q is 0 at ±inf
    edge = np.zeros_like(gaps[:1])
    found: np.ndarray = np.abs(np.diff(np.concatenate([edge, gaps, edge]), axis=0)).sum(axis=0) / 2
    return found


def bisect(f: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A root of f in [low, high] where the signs at its ends differ, NaN elsewhere."""
    rising = f(high) > 0
    changes = (f(low) > 0) != rising
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        up = (f(middle) > 0) == rising
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    return np.where(changes, (low + high) / 2, np.nan)


def _two_roots(f: Callable[[np.ndarray], np.ndarray], turn: np.ndarray) -> list[np.ndarray]:
    """The roots of f, which is monotone on either side of `turn` (NaN: monotone throughout)."""
    turn = np.where(np.isfinite(turn), turn, _LOG_RANGE)
    ends = np.full_like(turn, _LOG_RANGE)
    return [bisect(f, -ends, turn), bisect(f, turn, ends)]


def _normal_roots(xp: Namespace, p: Args, q: Args, extra: Any = 0.0) -> list[np.ndarray]:
    """Where log p − log q + extra = 0: ½(ρ² − 1)z² + ρ d z + ½d² − log ρ + extra, z = (y −
    loc_p)/scale_p.
    """
    rho, d = p["scale"] / q["scale"], (p["loc"] - q["loc"]) / q["scale"]
    a = (p["scale"] - q["scale"]) / q["scale"] * (rho + 1) / 2
    b, c = rho * d, d * d / 2 - 2 * half_log_ratio(xp, q["scale"], p["scale"]) + extra
    root = np.sqrt(np.where(b * b - 4 * a * c >= 0, b * b - 4 * a * c, np.nan))
    w = -(b + np.where(b < 0, -root, root)) / 2
    return [p["loc"] + p["scale"] * z for z in (w / a, c / w)]


def normal_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    equal = special.erf(np.abs(p["loc"] - q["loc"]) / p["scale"] / math.sqrt(8))

    def gap(y: np.ndarray) -> np.ndarray:
        a, b = (y - p["loc"]) / p["scale"], (y - q["loc"]) / q["scale"]
        flip = np.where(a > 0, -1.0, 1.0)  # in the upper tail compare what lies above
        found: np.ndarray = flip * (special.ndtr(flip * a) - special.ndtr(flip * b))
        return found

    return np.where(p["scale"] == q["scale"], equal, from_breaks(gap, _normal_roots(xp, p, q)))


def multivariate_normal_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    """Equal covariances: erf(‖L⁻¹Δ‖ / √8)."""
    left, right = p["scale_tril"], q["scale_tril"]
    if left.shape[-1] == 1:
        flat = [
            {"loc": d["loc"][..., 0], "scale": np.abs(d["scale_tril"][..., 0, 0])} for d in (p, q)
        ]
        return normal_tv(xp, flat[0], flat[1])
    delta = (p["loc"] - q["loc"])[..., None]
    distance = np.sqrt((np.linalg.solve(left, delta + 0.0 * left[..., :1]) ** 2).sum(axis=(-1, -2)))
    return np.where(
        np.all(left == right, axis=(-1, -2)), special.erf(distance / math.sqrt(8)), np.nan
    )


def truncated_normal_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    masses = [
        log_normal_mass(xp, (d["low"] - d["loc"]) / d["scale"], (d["high"] - d["loc"]) / d["scale"])
        for d in (p, q)
    ]

    def cdf(d: Args, mass: np.ndarray, y: np.ndarray) -> np.ndarray:
        inside = np.clip(y, d["low"], d["high"])
        below = log_normal_mass(
            xp, (d["low"] - d["loc"]) / d["scale"], (inside - d["loc"]) / d["scale"]
        )
        return np.where(inside > d["low"], np.exp(below - mass), 0.0)

    roots = _normal_roots(xp, p, q, masses[1] - masses[0])
    ends = [d[end] for d in (p, q) for end in ("low", "high")]
    return from_breaks(lambda y: cdf(p, masses[0], y) - cdf(q, masses[1], y), roots + ends)


def gamma_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    """Also the inverse gamma's. With z = log y the log-ratio is αz − βe^z + γ."""
    a, r, b, s = p["concentration"], p["rate"], q["concentration"], q["rate"]
    alpha, beta = a - b, r - s
    constant = (
        special.gammaln(b)
        - special.gammaln(a)
        + alpha * np.log(r)
        + 2 * b * half_log_ratio(xp, s, r)
    )
    roots = _two_roots(
        lambda z: alpha * z - beta * np.exp(np.minimum(z, 700.0)) + constant, np.log(alpha / beta)
    )

    def gap(z: np.ndarray) -> np.ndarray:
        y = np.exp(z)
        low = special.gammainc(a, r * y) - special.gammainc(b, s * y)
        found: np.ndarray = np.where(
            r * y > a, special.gammaincc(b, s * y) - special.gammaincc(a, r * y), low
        )
        return found

    return from_breaks(gap, roots)


def beta_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    """With z = logit y the log-ratio is α log y + β log(1 − y) + γ."""
    a, b, c, d = p["concentration1"], p["concentration0"], q["concentration1"], q["concentration0"]
    alpha, beta = a - c, b - d
    constant = special.betaln(c, d) - special.betaln(a, b)
    roots = _two_roots(
        lambda z: -alpha * np.logaddexp(0.0, -z) - beta * np.logaddexp(0.0, z) + constant,
        np.log(alpha / beta),
    )

    def gap(z: np.ndarray) -> np.ndarray:
        low = special.betainc(a, b, special.expit(z)) - special.betainc(c, d, special.expit(z))
        high = special.betainc(d, c, special.expit(-z)) - special.betainc(b, a, special.expit(-z))
        found: np.ndarray = np.where(z > 0, high, low)
        return found

    return from_breaks(gap, roots)


def _rates_tv(log_ratio: np.ndarray) -> np.ndarray:
    """Two exponentials whose rates have this log-ratio L: e^{−L/(e^L − 1)} (1 − e^{−L})."""
    ratio = np.abs(log_ratio)
    safe = np.where(ratio > 0, ratio, 1.0)
    return np.where(ratio > 0, np.exp(-safe / np.expm1(safe)) * -np.expm1(-safe), 0.0)


def exponential_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    return _rates_tv(2 * half_log_ratio(xp, p["rate"], q["rate"]))


def weibull_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    k = p["concentration"]
    value = _rates_tv(2 * k * half_log_ratio(xp, p["scale"], q["scale"]))
    return np.where(k == q["concentration"], value, np.nan)


def laplace_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    def log_ratio(y: np.ndarray) -> np.ndarray:
        ratio = 2 * half_log_ratio(xp, p["scale"], q["scale"])
        found: np.ndarray = (
            ratio - np.abs(y - p["loc"]) / p["scale"] + np.abs(y - q["loc"]) / q["scale"]
        )
        return found

    left, right = np.minimum(p["loc"], q["loc"]), np.maximum(p["loc"], q["loc"])
    at_left, at_right = log_ratio(left), log_ratio(right)
    # left of both; its negative right of both
    slope = (q["scale"] - p["scale"]) / (p["scale"] * q["scale"])
    before, after = left - at_left / slope, right + at_right / slope
    between = left + (right - left) * at_left / (at_left - at_right)
    breaks = [
        np.where(before < left, before, np.nan),
        np.where((at_left > 0) != (at_right > 0), between, np.nan),
        np.where(after > right, after, np.nan),
    ]

    def gap(y: np.ndarray) -> np.ndarray:
        a, b = (y - p["loc"]) / p["scale"], (y - q["loc"]) / q["scale"]
        tails = -np.expm1(-np.abs(a)) * np.sign(a) + np.expm1(-np.abs(b)) * np.sign(b)
        found: np.ndarray = tails / 2
        return found

    return from_breaks(gap, breaks)


def uniform_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    low, high = np.maximum(p["low"], q["low"]), np.minimum(p["high"], q["high"])
    lengths = [d["high"] - d["low"] for d in (p, q)]
    # of each, outside the common part
    beyond = [(low - d["low"]) + (d["high"] - high) for d in (p, q)]
    share = np.where(lengths[0] > lengths[1], beyond[0] / lengths[0], beyond[1] / lengths[1])
    return np.where(high > low, share, 1.0)


def delta_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    return np.where(p["v"] == q["v"], 0.0, 1.0)


def bernoulli_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    found: np.ndarray = np.abs(p["probs"] - q["probs"])
    return found


def categorical_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    found: np.ndarray = np.abs(p["probs"] - q["probs"]).sum(axis=-1) / 2
    return found


def poisson_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    a, b = p["rate"], q["rate"]
    crossing = np.floor((b - a) / (2 * half_log_ratio(xp, a, b)))
    crossing = np.where(np.isfinite(crossing), crossing, 0.0)
    return np.where(a == b, 0.0, np.abs(special.pdtr(crossing, a) - special.pdtr(crossing, b)))


def binomial_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    n, a, b = p["total_count"], p["probs"], q["probs"]
    tiny = 1e-300
    rise = 2 * half_log_ratio(xp, np.maximum(b, tiny), np.maximum(a, tiny))
    fall = 2 * half_log_ratio(xp, np.maximum(1 - b, tiny), np.maximum(1 - a, tiny))
    crossing = np.floor(n * fall / (fall - rise))
    k = np.clip(np.where(np.isfinite(crossing), crossing, 0.0), 0, np.maximum(n - 1, 0))
    value = np.abs(special.betainc(k + 1, n - k, a) - special.betainc(k + 1, n - k, b))
    return np.where(n == q["total_count"], np.where((a == b) | (n == 0), 0.0, value), np.nan)


def negative_binomial_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    r, a, b = p["total_count"], p["probs"], q["probs"]
    crossing = -r * half_log_ratio(xp, 1 - b, 1 - a) / half_log_ratio(xp, b, a)
    k = np.floor(np.where(np.isfinite(crossing), crossing, 0.0))
    value = np.abs(special.betainc(r, k + 1, 1 - a) - special.betainc(r, k + 1, 1 - b))
    return np.where(r == q["total_count"], np.where(a == b, 0.0, value), np.nan)


def geometric_tv(xp: Namespace, p: Args, q: Args) -> np.ndarray:
    return negative_binomial_tv(
        xp, *({"total_count": np.ones(()), "probs": 1 - d["probs"]} for d in (p, q))
    )


TOTAL_VARIATIONS: dict[str, Callable[[Namespace, Args, Args], np.ndarray]] = {
    "Normal": normal_tv,
    "LogNormal": normal_tv,
    "MultivariateNormal": multivariate_normal_tv,
    "Laplace": laplace_tv,
    "TruncatedNormal": truncated_normal_tv,
    "Exponential": exponential_tv,
    "Gamma": gamma_tv,
    "InverseGamma": gamma_tv,
    "Beta": beta_tv,
    "Weibull": weibull_tv,
    "Uniform": uniform_tv,
    "Delta": delta_tv,
    "Bernoulli": bernoulli_tv,
    "Categorical": categorical_tv,
    "Binomial": binomial_tv,
    "Poisson": poisson_tv,
    "NegativeBinomial": negative_binomial_tv,
    "Geometric": geometric_tv,
}


# squared L2 ---------------------------------------------------------------------------------------


def _infinite_below_half(concentration: np.ndarray, value: np.ndarray) -> np.ndarray:
    """∫p² diverges at an end of the support where p grows like y^(c − 1) with c ≤ ½."""
    return np.where(concentration > 0.5, value, np.inf)


def _log_dirichlet(a: np.ndarray) -> np.ndarray:
    found: np.ndarray = special.gammaln(a).sum(axis=-1) - special.gammaln(a.sum(axis=-1))
    return found


def _pair(concentration1: np.ndarray, concentration0: np.ndarray) -> np.ndarray:
    return np.stack(np.broadcast_arrays(concentration1, concentration0), axis=-1)


def _log_norm2_dirichlet(a: np.ndarray) -> np.ndarray:
    return _infinite_below_half(a.min(axis=-1), _log_dirichlet(2 * a - 1) - 2 * _log_dirichlet(a))


def _truncated_log_norm2(xp: Namespace, d: Args) -> np.ndarray:
    low, high = ((d[end] - d["loc"]) / d["scale"] for end in ("low", "high"))
    mass, narrow = (
        log_normal_mass(xp, low, high),
        log_normal_mass(xp, low * math.sqrt(2), high * math.sqrt(2)),
    )
    found: np.ndarray = narrow - 2 * mass - np.log(2 * math.sqrt(math.pi) * d["scale"])
    return found


def _categorical_norm2(d: Args) -> np.ndarray:
    found: np.ndarray = (d["probs"] ** 2).sum(axis=-1)
    return found


def _with(d: Args, **changed: np.ndarray) -> dict[str, np.ndarray]:
    return {**d, **changed}


def _bernoulli_square(d: Args) -> dict[str, np.ndarray]:
    a, b = d["probs"] ** 2, (1 - d["probs"]) ** 2
    return {"probs": a / (a + b)}


# family: (log‖p‖², the arguments of p²/‖p‖² in the same family)
_SQUARES: dict[
    str, tuple[Callable[[Namespace, Args], np.ndarray], Callable[[Args], dict[str, np.ndarray]]]
] = {
    "Normal": (
        lambda xp, d: -np.log(2 * math.sqrt(math.pi) * d["scale"]),
        lambda d: _with(d, scale=d["scale"] / math.sqrt(2)),
    ),
    "LogNormal": (
        lambda xp, d: d["scale"] ** 2 / 4 - d["loc"] - np.log(2 * math.sqrt(math.pi) * d["scale"]),
        lambda d: _with(d, loc=d["loc"] - d["scale"] ** 2 / 2, scale=d["scale"] / math.sqrt(2)),
    ),
    "MultivariateNormal": (
        lambda xp, d: (
            -d["scale_tril"].shape[-1] * math.log(4 * math.pi) / 2
            - np.log(np.abs(xp.diagonal(d["scale_tril"]))).sum(axis=-1)
        ),
        lambda d: _with(d, scale_tril=d["scale_tril"] / math.sqrt(2)),
    ),
    "TruncatedNormal": (_truncated_log_norm2, lambda d: _with(d, scale=d["scale"] / math.sqrt(2))),
    "Laplace": (lambda xp, d: -np.log(4 * d["scale"]), lambda d: _with(d, scale=d["scale"] / 2)),
    "Exponential": (lambda xp, d: np.log(d["rate"] / 2), lambda d: {"rate": 2 * d["rate"]}),
    "Gamma": (
        lambda xp, d: _infinite_below_half(
            d["concentration"],
            special.gammaln(2 * d["concentration"] - 1)
            - 2 * special.gammaln(d["concentration"])
            - (2 * d["concentration"] - 1) * math.log(2)
            + np.log(d["rate"]),
        ),
        lambda d: {"concentration": 2 * d["concentration"] - 1, "rate": 2 * d["rate"]},
    ),
    "InverseGamma": (
        lambda xp, d: (
            special.gammaln(2 * d["concentration"] + 1)
            - 2 * special.gammaln(d["concentration"])
            - (2 * d["concentration"] + 1) * math.log(2)
            - np.log(d["rate"])
        ),
        lambda d: {"concentration": 2 * d["concentration"] + 1, "rate": 2 * d["rate"]},
    ),
    "Beta": (
        lambda xp, d: _log_norm2_dirichlet(_pair(d["concentration1"], d["concentration0"])),
        lambda d: {name: 2 * value - 1 for name, value in d.items()},
    ),
    "Dirichlet": (
        lambda xp, d: _log_norm2_dirichlet(d["concentration"]),
        lambda d: {"concentration": 2 * d["concentration"] - 1},
    ),
    "VonMises": (
        lambda xp, d: (
            log_i0(xp, 2 * d["concentration"])
            - 2 * log_i0(xp, d["concentration"])
            - math.log(2 * math.pi)
        ),
        lambda d: _with(d, concentration=2 * d["concentration"]),
    ),
    "Uniform": (lambda xp, d: -np.log(d["high"] - d["low"]), lambda d: dict(d)),
    "Bernoulli": (lambda xp, d: np.log(d["probs"] ** 2 + (1 - d["probs"]) ** 2), _bernoulli_square),
    "Categorical": (
        lambda xp, d: np.log(_categorical_norm2(d)),
        lambda d: {"probs": d["probs"] ** 2 / _categorical_norm2(d)[..., None]},
    ),
    "Geometric": (
        lambda xp, d: np.log(d["probs"] / (2 - d["probs"])),
        lambda d: {"probs": d["probs"] * (2 - d["probs"])},
    ),
}


def _poisson_parts(xp: Namespace, p: Args, q: Args) -> Parts:
    """Σ p_k q_k = e^{−a−b} I₀(2√(ab)); the cosine is the gap of A(η) = log I₀(2e^η), whose A'' =
    x²(1 − (I₁/I₀)²).
    """
    a, b = p["rate"], q["rate"]
    root = np.sqrt(a) * np.sqrt(b)
    log_cosine = -((np.sqrt(a) - np.sqrt(b)) ** 2) + np.log(special.i0e(2 * root))
    log_cosine = log_cosine - (np.log(special.i0e(2 * a)) + np.log(special.i0e(2 * b))) / 2
    half = np.where(
        (a > 0) & (b > 0),
        half_log_ratio(xp, np.where(b > 0, b, 1.0), np.where(a > 0, a, 1.0)),
        np.inf,
    )

    def curvature(eta: np.ndarray, h: np.ndarray) -> np.ndarray:
        x = 2 * np.exp(eta)
        rho = special.i1e(x) / special.i0e(x)
        found: np.ndarray = h * h * x * x * (1 - rho) * (1 + rho)
        return found

    close = (np.abs(half) < 0.5) & (log_cosine > -1e-3)
    short = segment_gap(
        xp, curvature, np.log(np.where(root > 0, root, 1.0)), np.where(close, half, 0.0)
    )
    return (
        np.log(special.i0e(2 * a)),
        np.log(special.i0e(2 * b)),
        np.where(close, short, log_cosine),
    )


def _weibull_parts(xp: Namespace, p: Args, q: Args) -> Parts:
    """Equal concentrations k: in u = y^k the squared densities are gammas of shape 2 − 1/k
    (finite for k > ½).
    """
    k = p["concentration"]
    shape = 2 - 1 / k

    def log_norm2(d: Args) -> np.ndarray:
        return _infinite_below_half(
            k, np.log(k / d["scale"]) + special.gammaln(shape) - shape * math.log(2)
        )

    return log_norm2(p), log_norm2(q), shape * AFFINITIES["Weibull"](xp, p, q)


def has_l2_parts(family: str) -> bool:
    return family in _SQUARES or family in ("Poisson", "Weibull")


def l2_parts(family: str, xp: Namespace, p: Args, q: Args) -> Parts:
    """log‖p‖², log‖q‖² and the log-cosine, for families that have them closed. They add over
    independent parts.
    """
    if family == "Poisson":
        return _poisson_parts(xp, p, q)
    if family == "Weibull":
        return _weibull_parts(xp, p, q)
    log_norm2, square = _SQUARES[family]
    return log_norm2(xp, p), log_norm2(xp, q), AFFINITIES[family](xp, square(p), square(q))


def l2_from_parts(parts: Parts) -> np.ndarray:
    """L2² from its parts; infinite where either norm is, unless the densities are the same
    (log-cosine unknown there).
    """
    log_p, log_q, log_cosine = parts
    finite = np.isfinite(log_p) & np.isfinite(log_q)
    delta = np.where(finite, log_p - log_q, 0.0) / 2
    value = np.exp((log_p + log_q) / 2) * (
        4 * np.sinh(delta / 2) ** 2 - 2 * np.expm1(np.minimum(log_cosine, 0.0))
    )
    return np.where(finite, value, np.inf)
