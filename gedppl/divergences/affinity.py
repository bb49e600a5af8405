"""Closed forms of the log-affinity, log BC(p, q) = log of the integral of sqrt(p q), family by
family.

Hellinger's squared distance is H² = 1 − BC, so where p and q are close everything hangs on log BC
near 0. No formula here subtracts two numbers that agree: each is written in the differences of the
arguments, so that H² = −expm1(log BC) keeps its relative accuracy (H² = 1e-9 comes out with at
least six correct digits, mostly with ten).

Written once against the array namespace: NumPy, JAX and torch arrays go in and the same come out,
traceable and differentiable. An entry is NaN where the family has a closed form only for some
arguments and these are not among them (e.g. negative binomials with two different total counts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gedppl.numerics.arrays import Namespace, namespace

Array = Any
Args = Mapping[str, Any]
# (xp, args of p, args of q) -> array of the batch shape
ClosedForm = Callable[[Namespace, Args, Args], Array]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # on [0, 1]
_FAR_NODES, _FAR_WEIGHTS = np.polynomial.legendre.leggauss(96)
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
SHIFT = 10  # Stirling's series is used beyond this, the recurrence below


# gaps: f(mean) − mean of f, for the functions that log-partitions are made of ---------------------


def half_log_ratio(xp: Namespace, x: Array, y: Array) -> Array:
    """½ log(y / x), with relative accuracy where x is close to y."""
    t = (y - x) / (y + x)
    close = xp.abs(t) < 0.5
    small = xp.where(close, t, 0.0)
    return xp.where(close, (xp.log1p(small) - xp.log1p(-small)) / 2, (xp.log(y) - xp.log(x)) / 2)


def log_mean_gap(xp: Namespace, x: Array, y: Array) -> Array:
    """½ log x + ½ log y − log((x + y)/2): the log of geometric over arithmetic mean, ≤ 0."""
    t = (y - x) / (y + x)
    close = xp.abs(t) < 0.5
    small = xp.where(close, t, 0.0)
    return xp.where(
        close, xp.log1p(-small * small) / 2, (xp.log(x) + xp.log(y)) / 2 - xp.log((x + y) / 2)
    )


def gammaln_gap(xp: Namespace, a: Array, b: Array) -> Array:
    """log Γ((a + b)/2) − ½ log Γ(a) − ½ log Γ(b) ≤ 0, with relative accuracy where a is close to b.

    log Γ(x) = log Γ(x + 10) − Σ_{i<10} log(x + i), and Stirling's series beyond 10; the gap of each
    piece has a form without cancellation, and all of them have one sign.
    """
    # one array operation, because unrolled loops are slow to compile
    steps = _in_front(xp, np.arange(SHIFT), a + b)
    gap = xp.sum(log_mean_gap(xp, a + steps, b + steps), axis=0)
    x, y = a + SHIFT, b + SHIFT
    m, h = (x + y) / 2, (y - x) / 2
    # gap of (x − ½) log x; of 1/x, exactly; the later terms are too small for their rounding to
    # matter
    gap = (
        gap
        + (m - 0.5) * -log_mean_gap(xp, x, y)
        - h * half_log_ratio(xp, x, y)
        - STIRLING[0] * h * h / (m * x * y)
    )
    return gap + _stirling_rest(m) - (_stirling_rest(x) + _stirling_rest(y)) / 2


def _stirling_rest(x: Array) -> Array:
    """Stirling's series from its term in x⁻³ on."""
    w = 1 / (x * x)
    total: Array = 0.0
    for coefficient in reversed(STIRLING[1:]):
        total = (total + coefficient) * w
    return total / x


def _in_front(xp: Namespace, values: np.ndarray, like: Array) -> Array:
    """The values along a new first axis, before the axes of `like`."""
    return xp.asfloat(values.reshape((-1,) + (1,) * like.ndim))


def segment_gap(
    xp: Namespace, curvature: Callable[[Array, Array], Array], middle: Array, half: Array
) -> Array:
    """A(middle) − ½A(middle + half) − ½A(middle − half) from A's second derivative along the
    segment.

    −½ ∫₀¹ (1 − u) [c(middle + u half) + c(middle − u half)] du with c(η) = half' ∇²A(η) half, by 16
    Gauss–Legendre nodes: a sum of terms of one sign. For short segments (16 nodes are then good to
    rounding).
    """
    u = np.concatenate([_NODES, -_NODES])
    values = curvature(middle + _in_front(xp, u, middle + half) * half, half)
    weights = np.tile(_WEIGHTS * (1 - _NODES), 2).reshape((-1,) + (1,) * (values.ndim - 1))
    return -xp.sum(xp.asfloat(weights) * values, axis=0) / 2


def _log(xp: Namespace, x: Array) -> Array:
    """log x, −inf at 0, with a gradient of 0 there instead of NaN."""
    positive = x > 0
    return xp.where(positive, xp.log(xp.where(positive, x, 1.0)), -math.inf)


def _sqrt(xp: Namespace, x: Array) -> Array:
    positive = x > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, 1.0)), 0.0)


def _square_of_root_gap(xp: Namespace, p: Array, q: Array) -> Array:
    """(√p − √q)²."""
    total = _sqrt(xp, p) + _sqrt(xp, q)
    return ((p - q) / xp.where(total > 0, total, 1.0)) ** 2


def bernoulli_hellinger2(xp: Namespace, p: Array, q: Array) -> Array:
    """H² of Bernoulli(p) and Bernoulli(q), summed from squares."""
    return (_square_of_root_gap(xp, p, q) + _square_of_root_gap(xp, 1 - p, 1 - q)) / 2


def _log_one_minus(xp: Namespace, h2: Array, bc: Array) -> Array:
    """log BC from whichever of H² and BC is the smaller number."""
    close = h2 < 0.5
    return xp.where(close, xp.log1p(-xp.where(close, h2, 0.0)), _log(xp, bc))


def _only_where(xp: Namespace, condition: Array, value: Array) -> Array:
    return xp.where(condition, value, math.nan)


# continuous ---------------------------------------------------------------------------------------


def normal(xp: Namespace, p: Args, q: Args) -> Array:
    s, r = p["scale"], q["scale"]
    total = s * s + r * r
    t = (s - r) * (s + r) / total  # relative gap of the variances
    close = xp.abs(t) < 0.5
    small = xp.where(close, t, 0.0)
    ratio = xp.where(close, xp.log1p(-small * small) / 2, xp.log(2 * s * r / total))
    return ratio / 2 - (p["loc"] - q["loc"]) ** 2 / (4 * total)


def multivariate_normal(xp: Namespace, p: Args, q: Args) -> Array:
    """¼ log|S₁| + ¼ log|S₂| − ½ log|S̄| − ⅛ Δ' S̄⁻¹ Δ, S̄ = (S₁ + S₂)/2.

    With W = L₁⁻¹(S₂ − S₁)L₁⁻ᵀ the determinants are −¼ log|I + G|, G = ¼ W²(I + W)⁻¹, which is small
    when S₁ ≈ S₂.
    """
    left, right = p["scale_tril"], q["scale_tril"]
    gap = right - left
    change = xp.matmul(gap, xp.swapaxes(right, -1, -2)) + xp.matmul(left, xp.swapaxes(gap, -1, -2))
    half = xp.solve_triangular(left, change)
    w = xp.swapaxes(xp.solve_triangular(left, xp.swapaxes(half, -1, -2)), -1, -2)
    one = xp.eye(w.shape[-1])
    g = xp.solve(one + w, xp.matmul(w, w)) / 4
    # log|I + G| by its series when G is small (G has only eigenvalues ≥ 0, so the trace bounds
    # them)
    powers, series = g, xp.sum(xp.diagonal(g), axis=-1)
    trace = series
    for k in range(2, 7):
        powers = xp.matmul(powers, g)
        series = series + (-1) ** (k + 1) * xp.sum(xp.diagonal(powers), axis=-1) / k
    log_det = xp.where(xp.abs(trace) < 1e-3, series, xp.slogdet(one + g)[1])
    covariance = (
        xp.matmul(left, xp.swapaxes(left, -1, -2)) + xp.matmul(right, xp.swapaxes(right, -1, -2))
    ) / 2
    delta = (p["loc"] - q["loc"])[..., None]
    quadratic = xp.sum(
        delta * xp.solve(covariance, delta + 0.0 * covariance[..., :1]), axis=(-1, -2)
    )
    return -log_det / 4 - quadratic / 8


def exponential(xp: Namespace, p: Args, q: Args) -> Array:
    return log_mean_gap(xp, p["rate"], q["rate"])


def gamma(xp: Namespace, p: Args, q: Args) -> Array:
    """Also the inverse gamma's: BC does not change under y -> 1/y."""
    a, b = p["concentration"], q["concentration"]
    r, s = p["rate"], q["rate"]
    rates = (a + b) / 2 * log_mean_gap(xp, r, s) + (b - a) / 2 * half_log_ratio(xp, r, s)
    return gammaln_gap(xp, a, b) + rates


def beta(xp: Namespace, p: Args, q: Args) -> Array:
    a, b = p["concentration1"], p["concentration0"]
    c, d = q["concentration1"], q["concentration0"]
    return gammaln_gap(xp, a, c) + gammaln_gap(xp, b, d) - gammaln_gap(xp, a + b, c + d)


def dirichlet(xp: Namespace, p: Args, q: Args) -> Array:
    a, b = p["concentration"], q["concentration"]
    return xp.sum(gammaln_gap(xp, a, b), axis=-1) - gammaln_gap(
        xp, xp.sum(a, axis=-1), xp.sum(b, axis=-1)
    )


def laplace(xp: Namespace, p: Args, q: Args) -> Array:
    """BC = √(αβ)/m · e^{−u}(cosh v + u sinh(v)/v); α, β = 1/(2 scale), m their mean, u = m|Δ|, v
    = (α − β)|Δ|/2.
    """
    alpha, beta = 1 / (2 * p["scale"]), 1 / (2 * q["scale"])
    distance = xp.abs(p["loc"] - q["loc"])
    u, v = (alpha + beta) / 2 * distance, xp.abs(q["scale"] - p["scale"]) * alpha * beta * distance
    near = v < 0.5
    w = xp.where(near, v, 0.0) ** 2
    sinhc_less_1 = w / 6 * (1 + w / 20 * (1 + w / 42 * (1 + w / 72 * (1 + w / 110))))
    cosh_less_1 = w / 2 * (1 + w / 12 * (1 + w / 30 * (1 + w / 56 * (1 + w / 90))))
    close = xp.log1p(u + cosh_less_1 + u * sinhc_less_1) - u
    large = xp.where(near, 1.0, v)
    decay = xp.exp(-2 * large)
    far = large - u + xp.log((1 + decay) / 2 + u * (1 - decay) / (2 * large))
    return log_mean_gap(xp, alpha, beta) + xp.where(near, close, far)


def weibull(xp: Namespace, p: Args, q: Args) -> Array:
    """Equal concentrations k: exponentials in y^k, so −log cosh(½ k log(scale ratio))."""
    k = p["concentration"]
    z = xp.abs(k * half_log_ratio(xp, p["scale"], q["scale"]))
    small = xp.where(z < 1, z, 0.0)
    log_cosh = xp.where(
        z < 1, xp.log1p(2 * xp.sinh(small / 2) ** 2), z + xp.log1p(xp.exp(-2 * z)) - math.log(2)
    )
    return _only_where(xp, k == q["concentration"], -log_cosh)


def uniform(xp: Namespace, p: Args, q: Args) -> Array:
    """|∩| / √(length₁ length₂), through what each interval has beyond the common part."""
    low, high = xp.maximum(p["low"], q["low"]), xp.minimum(p["high"], q["high"])
    meet = high > low
    common = xp.where(meet, high - low, 1.0)
    beyond_p, beyond_q = (((low - d["low"]) + (d["high"] - high)) / common for d in (p, q))
    safe = [xp.where(meet, beyond, 0.0) for beyond in (beyond_p, beyond_q)]
    return xp.where(meet, -(xp.log1p(safe[0]) + xp.log1p(safe[1])) / 2, -math.inf)


def delta(xp: Namespace, p: Args, q: Args) -> Array:
    return xp.where(p["v"] == q["v"], 0.0, -math.inf)


def log_normal_mass(xp: Namespace, low: Array, high: Array) -> Array:
    """log(Φ(high) − Φ(low)) for standardised ends, taken in the tail where both are small."""
    flip = low + high > 0
    a, b = xp.where(flip, -high, low), xp.where(flip, -low, high)
    upper, lower = xp.log_ndtr(b), xp.log_ndtr(a)
    ratio = xp.where(upper > lower, lower - upper, -1.0)
    return xp.where(upper > lower, upper + xp.log(-xp.expm1(ratio)), -math.inf)


def truncated_normal(xp: Namespace, p: Args, q: Args) -> Array:
    """BC of the full normals · P_mid(S) / √(P₁(S₁) P₂(S₂)), S = S₁ ∩ S₂, where √(pq) is
    proportional to N(m̄, s̄²) on S.

    For close pairs with one common S the masses cancel, and H² = ½∫(√p − √q)² is summed at 96
    Gauss–Legendre nodes instead (over S within ten standard deviations of where the mass is).
    """
    m, s, n, r = p["loc"], p["scale"], q["loc"], q["scale"]
    low, high = xp.maximum(p["low"], q["low"]), xp.minimum(p["high"], q["high"])
    total = s * s + r * r
    middle, spread = (m * r * r + n * s * s) / total, s * r * math.sqrt(2) / xp.sqrt(total)
    meet = high > low
    mid_mass = log_normal_mass(
        xp, (low - middle) / spread, (xp.where(meet, high, low + 1.0) - middle) / spread
    )
    mass_p = log_normal_mass(xp, (p["low"] - m) / s, (p["high"] - m) / s)
    mass_q = log_normal_mass(xp, (q["low"] - n) / r, (q["high"] - n) / r)
    direct = xp.where(meet, normal(xp, p, q) + mid_mass - (mass_p + mass_q) / 2, -math.inf)
    peak = xp.minimum(xp.maximum(middle, low), high)  # the mode of √(pq) on S
    # beyond the peak the density falls like exp(−slope·y − y²/(2 s̄²)): in a far tail its width is
    # 1/slope, not s̄
    slope = xp.abs(peak - middle) / spread**2
    reach = 80 / (slope + xp.sqrt(slope**2 + 160 / spread**2)) * 1.25
    start, end = xp.maximum(low, peak - reach), xp.minimum(high, peak + reach)
    centre, half = (start + end) / 2, (end - start) / 2
    y = centre + half * _in_front(xp, _FAR_NODES, centre)
    weights = _in_front(xp, _FAR_WEIGHTS, centre)
    log_p = -(((y - m) / s) ** 2) / 2 - xp.log(s) - mass_p
    # the log-ratio from differences of the arguments, so that it is small when they are close
    a, b = (y - m) / s, (y - n) / r
    log_ratio = (a - b) * (a + b) / 2 + 2 * half_log_ratio(xp, r, s) + (mass_p - mass_q)
    # far apart pairs overflow here, and are not taken from here
    step = xp.expm1(xp.clip(log_ratio, -100.0, 100.0) / 2)
    h2 = (
        xp.sum(weights * xp.exp(xp.minimum(log_p, 700.0)) * step**2, axis=0)
        * half
        / (2 * math.sqrt(2 * math.pi))
    )
    close = (direct > -1e-4) & (p["low"] == q["low"]) & (p["high"] == q["high"])
    return xp.where(close, xp.log1p(-xp.where(close, h2, 0.0)), direct)


# discrete -----------------------------------------------------------------------------------------


def bernoulli(xp: Namespace, p: Args, q: Args) -> Array:
    a, b = p["probs"], q["probs"]
    bc = _sqrt(xp, a) * _sqrt(xp, b) + _sqrt(xp, 1 - a) * _sqrt(xp, 1 - b)
    return _log_one_minus(xp, bernoulli_hellinger2(xp, a, b), bc)


def binomial(xp: Namespace, p: Args, q: Args) -> Array:
    n = p["total_count"]
    one = bernoulli(xp, p, q)
    finite = xp.where(n == 0, 0.0, n * xp.where(n == 0, 0.0, one))  # 0 · −inf would be NaN
    return _only_where(xp, n == q["total_count"], finite)


def categorical(xp: Namespace, p: Args, q: Args) -> Array:
    a, b = p["probs"], q["probs"]
    h2 = xp.sum(_square_of_root_gap(xp, a, b), axis=-1) / 2
    return _log_one_minus(xp, h2, xp.sum(_sqrt(xp, a) * _sqrt(xp, b), axis=-1))


def poisson(xp: Namespace, p: Args, q: Args) -> Array:
    return -_square_of_root_gap(xp, p["rate"], q["rate"]) / 2


def _geometric(xp: Namespace, stop_p: Array, stop_q: Array) -> Array:
    """log of √(s₁s₂) / (1 − √((1−s₁)(1−s₂))): the denominator exceeds the numerator by the
    Bernoullis' H².
    """
    root = _sqrt(xp, stop_p) * _sqrt(xp, stop_q)
    positive = root > 0
    excess = bernoulli_hellinger2(xp, stop_p, stop_q) / xp.where(positive, root, 1.0)
    return xp.where(positive, -xp.log1p(excess), -math.inf)


def negative_binomial(xp: Namespace, p: Args, q: Args) -> Array:
    r = p["total_count"]
    return _only_where(
        xp, r == q["total_count"], r * _geometric(xp, 1 - p["probs"], 1 - q["probs"])
    )


def geometric(xp: Namespace, p: Args, q: Args) -> Array:
    return _geometric(xp, p["probs"], q["probs"])


AFFINITIES: dict[str, ClosedForm] = {
    "Normal": normal,
    "LogNormal": normal,
    "MultivariateNormal": multivariate_normal,
    "Laplace": laplace,
    "TruncatedNormal": truncated_normal,
    "Exponential": exponential,
    "Gamma": gamma,
    "InverseGamma": gamma,
    "Beta": beta,
    "Dirichlet": dirichlet,
    "Weibull": weibull,
    "Uniform": uniform,
    "Delta": delta,
    "Bernoulli": bernoulli,
    "Binomial": binomial,
    "Categorical": categorical,
    "Poisson": poisson,
    "NegativeBinomial": negative_binomial,
    "Geometric": geometric,
}


# any exponential family ---------------------------------------------------------------------------


def exponential_family(
    natural: Callable[[Namespace, Args], Array],
    log_partition: Callable[[Namespace, Array], Array],
    curvature: Callable[[Namespace, Array, Array], Array] | None = None,
    log_mass: Callable[[Namespace, Array, Array, Array], Array] | None = None,
) -> ClosedForm:
    """log BC = A((η₁ + η₂)/2) − ½A(η₁) − ½A(η₂) for densities h(y) exp(η·T(y) − A(η)).

    Parameters
    ----------
    natural
        ``(xp, args) -> η`` of shape (..., d).
    log_partition
        ``(xp, η) -> A(η)``, which drops η's last axis.
    curvature
        ``(xp, η, h) -> h' ∇²A(η) h``. With it close pairs keep their relative accuracy; without it
        log BC carries the rounding error of A, about 1e-16 |A|.
    log_mass
        ``(xp, η, low, high) -> log P_η(low ≤ y ≤ high)`` for a family truncated to [args["low"],
        args["high"]]: A becomes A + log_mass, and the middle term takes the intersection of the two
        intervals.
    """

    def closed_form(xp: Namespace, p: Args, q: Args) -> Array:
        eta_p, eta_q = natural(xp, p), natural(xp, q)
        middle, half = (eta_p + eta_q) / 2, (eta_p - eta_q) / 2
        gap = log_partition(xp, middle) - (log_partition(xp, eta_p) + log_partition(xp, eta_q)) / 2
        if curvature is not None:
            close = gap > -1e-3
            short = xp.where(close[..., None], half, 0.0 * half)
            gap = xp.where(
                close, segment_gap(xp, lambda eta, h: curvature(xp, eta, h), middle, short), gap
            )
        if log_mass is not None:
            low, high = xp.maximum(p["low"], q["low"]), xp.minimum(p["high"], q["high"])
            ends = (
                log_mass(xp, eta_p, p["low"], p["high"]) + log_mass(xp, eta_q, q["low"], q["high"])
            ) / 2
            gap = xp.where(high > low, gap + log_mass(xp, middle, low, high) - ends, -math.inf)
        return gap

    return closed_form


def log_i0(xp: Namespace, x: Array) -> Array:
    """log I₀(x) for x ≥ 0."""
    return x + xp.log(xp.i0e(x))


def von_mises_natural(xp: Namespace, args: Args) -> Array:
    kappa = args["concentration"]
    return xp.stack([kappa * xp.cos(args["loc"]), kappa * xp.sin(args["loc"])], axis=-1)


def _length(xp: Namespace, eta: Array) -> Array:
    return xp.sqrt(xp.sum(eta * eta, axis=-1) + 1e-300)  # a gradient at 0


def von_mises_curvature(xp: Namespace, eta: Array, h: Array) -> Array:
    """Along η by the second derivative of log I₀, 1 − ρ/r − ρ², and across it by ρ/r; ρ = I₁/I₀."""
    r = _length(xp, eta)
    rho = xp.i1e(r) / xp.i0e(r)
    tangential = xp.where(r > 1e-4, rho / xp.where(r > 1e-4, r, 1.0), 0.5)
    along2 = (xp.sum(eta * h, axis=-1) / r) ** 2
    return (1 - tangential - rho * rho) * along2 + tangential * (xp.sum(h * h, axis=-1) - along2)


AFFINITIES["VonMises"] = exponential_family(
    von_mises_natural, lambda xp, eta: log_i0(xp, _length(xp, eta)), von_mises_curvature
)


def arrays_of(p: Args, q: Args) -> tuple[Namespace, dict[str, Any], dict[str, Any]]:
    """The common namespace of two families' arguments, and the arguments as float arrays in it."""
    xp = namespace(*p.values(), *q.values())
    return xp, {k: xp.asfloat(v) for k, v in p.items()}, {k: xp.asfloat(v) for k, v in q.items()}
