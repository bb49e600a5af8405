"""Families on the half-line y > 0 (a Pareto: y >= scale).

    LogNormal     exp(-(log y - loc)^2 / (2 scale^2)) / (y scale sqrt(2 pi))
    Exponential   rate exp(-rate y)                          mean 1 / rate
    Weibull       k/s (y/s)^(k - 1) exp(-(y/s)^k)            k: concentration, s: scale
    Pareto        alpha scale^alpha / y^(alpha + 1)          mean infinite for alpha <= 1
    Gamma         rate^k y^(k - 1) exp(-rate y) / Gamma(k)   mean k / rate, k: concentration
    InverseGamma  rate^k y^(-k - 1) exp(-rate / y) / Gamma(k), mean infinite for k <= 1
    HalfNormal    sqrt(2 / pi) exp(-y^2 / (2 scale^2)) / scale
    HalfCauchy    2 / (pi scale (1 + (y / scale)^2))         mean infinite

At y = 0 a density that behaves like y^(k - 1) is infinite for k < 1, 0 for k > 1 and finite at
k = 1. Integrals are taken in t = log y, where each has one smooth hump; those of the last two,
which are flat at 0, in t with y = scale sinh t.
"""

from __future__ import annotations

import math
from typing import Any

from gedppl.families.family import Args, Family, implicit_inverse, masked, register_family
from gedppl.numerics.arrays import Array, Namespace

_LOG_2PI = math.log(2 * math.pi)


def _half_line(args: Args, xp: Namespace) -> Any:
    some = sum(0.0 * value for value in args.values())
    return some, some + xp.inf


def _clipped(y: Array, low: Array, xp: Namespace) -> Any:
    return xp.maximum(xp.asfloat(y), low)


# LogNormal ----------------------------------------------------------------------------------------


def _log_score(args: Args, y: Array, xp: Namespace) -> Any:
    """(log y - loc) / scale, for y > 0."""
    return (xp.log(y) - args["loc"]) / args["scale"]


def _lognormal_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    def formula(v: Array) -> Any:
        return (
            -0.5 * _log_score(args, v, xp) ** 2 - 0.5 * _LOG_2PI - xp.log(args["scale"]) - xp.log(v)
        )

    return masked(y > 0, 1.0, formula, y, xp)


def _lognormal_tail(sign: float, at_zero: float) -> Any:
    def tail(args: Args, y: Array, xp: Namespace) -> Any:
        y = xp.asfloat(y)
        z = _log_score(args, xp.where(y > 0, y, 1.0), xp)
        return xp.where(y > 0, xp.ndtr(sign * z), at_zero)

    return tail


def _lognormal_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    reach = math.sqrt(2 * math.log(2 / tail)) * args["scale"]
    return xp.exp(args["loc"] - reach), xp.exp(args["loc"] + reach)


register_family(
    Family(
        name="LogNormal",
        args=("loc", "scale"),
        kind="continuous",
        log_prob=_lognormal_log_prob,
        support=_half_line,
        mean=lambda args, xp: xp.exp(args["loc"] + 0.5 * args["scale"] ** 2),
        variance=lambda args, xp: (
            xp.expm1(args["scale"] ** 2) * xp.exp(2 * args["loc"] + args["scale"] ** 2)
        ),
        cdf=_lognormal_tail(1.0, 0.0),
        sf=_lognormal_tail(-1.0, 1.0),
        icdf=lambda args, p, xp: xp.exp(args["loc"] + args["scale"] * xp.ndtri(xp.asfloat(p))),
        bulk=_lognormal_bulk,
        chart="log",
        core=lambda args, xp: (args["loc"], args["scale"]),
    )
)


# Exponential, Weibull, Pareto ---------------------------------------------------------------------

register_family(
    Family(
        name="Exponential",
        args=("rate",),
        kind="continuous",
        log_prob=lambda args, y, xp: masked(
            y >= 0, 1.0, lambda v: xp.log(args["rate"]) - args["rate"] * v, y, xp
        ),
        support=_half_line,
        mean=lambda args, xp: 1 / args["rate"],
        variance=lambda args, xp: 1 / args["rate"] ** 2,
        cdf=lambda args, y, xp: -xp.expm1(-args["rate"] * _clipped(y, 0.0, xp)),
        sf=lambda args, y, xp: xp.exp(-args["rate"] * _clipped(y, 0.0, xp)),
        icdf=lambda args, p, xp: -xp.log1p(-xp.asfloat(p)) / args["rate"],
        bulk=lambda args, tail, xp: (tail / 2 / args["rate"], math.log(2 / tail) / args["rate"]),
        chart="log",
        core=lambda args, xp: (-xp.log(args["rate"]), 1.0 + 0.0 * args["rate"]),
    )
)


def _weibull_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    k, scale = args["concentration"], args["scale"]

    def formula(v: Array) -> Any:
        log_z = xp.log(v) - xp.log(scale)
        return xp.log(k) - xp.log(scale) + (k - 1) * log_z - xp.exp(k * log_z)

    at_zero = _at_zero(k, xp.log(1 / scale), xp)
    return xp.where(y == 0, at_zero, masked(y > 0, 1.0, formula, y, xp))


def _at_zero(shape: Array, log_density: Array, xp: Namespace) -> Any:
    """log-density at 0 of a family that behaves like y^(shape - 1) there."""
    return xp.where(shape == 1, log_density, xp.where(shape < 1, xp.inf, -xp.inf))


def _weibull_power(args: Args, y: Array, xp: Namespace) -> Any:
    y = xp.asfloat(y)
    positive = y > 0
    z = args["concentration"] * (xp.log(xp.where(positive, y, 1.0)) - xp.log(args["scale"]))
    return xp.where(positive, xp.exp(z), 0.0)


def _weibull_mean(args: Args, xp: Namespace) -> Any:
    return args["scale"] * xp.exp(xp.gammaln(1 + 1 / args["concentration"]))


def _weibull_variance(args: Args, xp: Namespace) -> Any:
    k = args["concentration"]
    log_first = 2 * xp.gammaln(1 + 1 / k)
    return args["scale"] ** 2 * xp.exp(log_first) * xp.expm1(xp.gammaln(1 + 2 / k) - log_first)


def _weibull_icdf(args: Args, p: Array, xp: Namespace) -> Any:
    return args["scale"] * xp.exp(xp.log(-xp.log1p(-xp.asfloat(p))) / args["concentration"])


register_family(
    Family(
        name="Weibull",
        args=("scale", "concentration"),
        kind="continuous",
        log_prob=_weibull_log_prob,
        support=_half_line,
        mean=_weibull_mean,
        variance=_weibull_variance,
        cdf=lambda args, y, xp: -xp.expm1(-_weibull_power(args, y, xp)),
        sf=lambda args, y, xp: xp.exp(-_weibull_power(args, y, xp)),
        icdf=_weibull_icdf,
        bulk=lambda args, tail, xp: (
            args["scale"] * (tail / 2) ** (1 / args["concentration"]),
            args["scale"] * math.log(2 / tail) ** (1 / args["concentration"]),
        ),
        chart="log",
        core=lambda args, xp: (xp.log(args["scale"]), 1 / args["concentration"]),
    )
)


def _pareto_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    alpha, scale = args["alpha"], args["scale"]
    return masked(
        y >= scale,
        scale,
        lambda v: xp.log(alpha) - xp.log(scale) - (alpha + 1) * (xp.log(v) - xp.log(scale)),
        y,
        xp,
    )


def _pareto_log_sf(args: Args, y: Array, xp: Namespace) -> Any:
    return -args["alpha"] * (xp.log(_clipped(y, args["scale"], xp)) - xp.log(args["scale"]))


def _pareto_mean(args: Args, xp: Namespace) -> Any:
    alpha = args["alpha"]
    return xp.where(alpha > 1, alpha * args["scale"] / xp.where(alpha > 1, alpha - 1, 1.0), xp.inf)


def _pareto_variance(args: Args, xp: Namespace) -> Any:
    alpha = args["alpha"]
    safe = xp.where(alpha > 2, alpha, 3.0)
    return xp.where(alpha > 2, safe * args["scale"] ** 2 / ((safe - 1) ** 2 * (safe - 2)), xp.inf)


def _pareto_support(args: Args, xp: Namespace) -> Any:
    low = args["scale"] + 0.0 * args["alpha"]
    return low, low + xp.inf


register_family(
    Family(
        name="Pareto",
        args=("scale", "alpha"),
        kind="continuous",
        log_prob=_pareto_log_prob,
        support=_pareto_support,
        mean=_pareto_mean,
        variance=_pareto_variance,
        cdf=lambda args, y, xp: -xp.expm1(_pareto_log_sf(args, y, xp)),
        sf=lambda args, y, xp: xp.exp(_pareto_log_sf(args, y, xp)),
        icdf=lambda args, p, xp: args["scale"] * xp.exp(-xp.log1p(-xp.asfloat(p)) / args["alpha"]),
        bulk=lambda args, tail, xp: (
            args["scale"] + 0.0 * args["alpha"],
            args["scale"] * xp.exp(xp.minimum(-math.log(tail) / args["alpha"], 300.0)),
        ),
        chart="log",
        core=lambda args, xp: (xp.log(args["scale"]), 1 / args["alpha"]),
    )
)


# Gamma, InverseGamma ------------------------------------------------------------------------------


def _gamma_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    k, rate = args["concentration"], args["rate"]

    def formula(v: Array) -> Any:
        return k * xp.log(rate) - xp.gammaln(k) + (k - 1) * xp.log(v) - rate * v

    return xp.where(y == 0, _at_zero(k, xp.log(rate), xp), masked(y > 0, 1.0, formula, y, xp))


def _gamma_bulk_unit(k: Array, tail: float, xp: Namespace) -> Any:
    """Chernoff bounds of Gamma(k, 1): X <= k + sqrt(2 k t) + t; below, k - sqrt(2 k t) or P(X <
    x) <= x^k / k!.
    """
    t = math.log(2 / tail)
    root = xp.sqrt(2 * k * t)
    log_low = (xp.gammaln(k + 1) - t) / k
    return xp.maximum(k - root, xp.exp(xp.maximum(log_low, -650.0))), k + root + t


def _gamma_icdf(args: Args, p: Array, xp: Namespace) -> Any:
    k, p = args["concentration"], xp.asfloat(p)
    unit = {"concentration": k, "rate": 1.0 + 0.0 * k}
    g = xp.gammaincinv(xp.stop_gradient(k) + 0.0 * p, p + 0.0 * xp.stop_gradient(k))
    inverse = implicit_inverse(
        g, lambda q: xp.gammainc(k, q), lambda q: _gamma_log_prob(unit, q, xp), xp
    )
    return inverse / args["rate"]


def _log_width(k: Array, xp: Namespace) -> Any:
    return 1 / xp.sqrt(1 + k)


register_family(
    Family(
        name="Gamma",
        args=("concentration", "rate"),
        kind="continuous",
        log_prob=_gamma_log_prob,
        support=_half_line,
        mean=lambda args, xp: args["concentration"] / args["rate"],
        variance=lambda args, xp: args["concentration"] / args["rate"] ** 2,
        cdf=lambda args, y, xp: xp.gammainc(
            args["concentration"], args["rate"] * _clipped(y, 0.0, xp)
        ),
        sf=lambda args, y, xp: xp.gammaincc(
            args["concentration"], args["rate"] * _clipped(y, 0.0, xp)
        ),
        icdf=_gamma_icdf,
        bulk=lambda args, tail, xp: tuple(
            end / args["rate"] for end in _gamma_bulk_unit(args["concentration"], tail, xp)
        ),
        chart="log",
        core=lambda args, xp: (
            xp.log(args["concentration"] / args["rate"]),
            _log_width(args["concentration"], xp) + 0.0 * args["rate"],
        ),
    )
)


def _inverse_gamma_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    k, rate = args["concentration"], args["rate"]

    def formula(v: Array) -> Any:
        return k * xp.log(rate) - xp.gammaln(k) - (k + 1) * xp.log(v) - rate / v

    return masked(y > 0, 1.0, formula, y, xp)


def _inverse_gamma_tail(name: str, at_zero: float) -> Any:
    def tail(args: Args, y: Array, xp: Namespace) -> Any:
        y = xp.asfloat(y)
        positive = y > 0
        value = getattr(xp, name)(args["concentration"], args["rate"] / xp.where(positive, y, 1.0))
        return xp.where(positive, value, at_zero)

    return tail


def _inverse_gamma_mean(args: Args, xp: Namespace) -> Any:
    k = args["concentration"]
    return xp.where(k > 1, args["rate"] / xp.where(k > 1, k - 1, 1.0), xp.inf)


def _inverse_gamma_variance(args: Args, xp: Namespace) -> Any:
    k = args["concentration"]
    safe = xp.where(k > 2, k, 3.0)
    return xp.where(k > 2, args["rate"] ** 2 / ((safe - 1) ** 2 * (safe - 2)), xp.inf)


def _inverse_gamma_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    low, high = _gamma_bulk_unit(args["concentration"], tail, xp)
    return args["rate"] / high, args["rate"] / low


def _inverse_gamma_icdf(args: Args, p: Array, xp: Namespace) -> Any:
    # the upper tail of the gamma underneath, so that p near 1 keeps its digits
    k, p = args["concentration"], xp.asfloat(p)
    g = xp.gammainccinv(xp.stop_gradient(k) + 0.0 * p, p + 0.0 * xp.stop_gradient(k))
    unit = {"concentration": k, "rate": 1.0 + 0.0 * k}
    g = implicit_inverse(g, lambda q: xp.gammainc(k, q), lambda q: _gamma_log_prob(unit, q, xp), xp)
    return args["rate"] / g


register_family(
    Family(
        name="InverseGamma",
        args=("concentration", "rate"),
        kind="continuous",
        log_prob=_inverse_gamma_log_prob,
        support=_half_line,
        mean=_inverse_gamma_mean,
        variance=_inverse_gamma_variance,
        cdf=_inverse_gamma_tail("gammaincc", 0.0),
        sf=_inverse_gamma_tail("gammainc", 1.0),
        icdf=_inverse_gamma_icdf,
        bulk=_inverse_gamma_bulk,
        chart="log",
        core=lambda args, xp: (
            xp.log(args["rate"] / args["concentration"]),
            _log_width(args["concentration"], xp) + 0.0 * args["rate"],
        ),
    )
)


# HalfNormal, HalfCauchy ---------------------------------------------------------------------------

register_family(
    Family(
        name="HalfNormal",
        args=("scale",),
        kind="continuous",
        log_prob=lambda args, y, xp: masked(
            y >= 0,
            1.0,
            lambda v: (
                0.5 * math.log(2 / math.pi) - xp.log(args["scale"]) - 0.5 * (v / args["scale"]) ** 2
            ),
            y,
            xp,
        ),
        support=_half_line,
        mean=lambda args, xp: math.sqrt(2 / math.pi) * args["scale"],
        variance=lambda args, xp: (1 - 2 / math.pi) * args["scale"] ** 2,
        cdf=lambda args, y, xp: xp.erf(_clipped(y, 0.0, xp) / args["scale"] / math.sqrt(2)),
        sf=lambda args, y, xp: xp.erfc(_clipped(y, 0.0, xp) / args["scale"] / math.sqrt(2)),
        icdf=lambda args, p, xp: -args["scale"] * xp.ndtri(0.5 * (1 - xp.asfloat(p))),
        bulk=lambda args, tail, xp: (
            0.0 * args["scale"],
            math.sqrt(2 * math.log(2 / tail)) * args["scale"],
        ),
        chart="sinh",
        core=lambda args, xp: (0.0 * args["scale"], args["scale"]),
    )
)


def _half_cauchy_sf(args: Args, y: Array, xp: Namespace) -> Any:
    z = _clipped(y, 0.0, xp) / args["scale"]
    far = z > 1
    tail = xp.arctan(1 / xp.where(far, z, 1.0))
    return 2 / math.pi * xp.where(far, tail, math.pi / 2 - xp.arctan(xp.where(far, 0.0, z)))


register_family(
    Family(
        name="HalfCauchy",
        args=("scale",),
        kind="continuous",
        log_prob=lambda args, y, xp: masked(
            y >= 0,
            1.0,
            lambda v: (
                math.log(2 / math.pi) - xp.log(args["scale"]) - xp.log1p((v / args["scale"]) ** 2)
            ),
            y,
            xp,
        ),
        support=_half_line,
        mean=lambda args, xp: args["scale"] + xp.inf,
        variance=lambda args, xp: args["scale"] * xp.nan,
        cdf=lambda args, y, xp: 2 / math.pi * xp.arctan(_clipped(y, 0.0, xp) / args["scale"]),
        sf=_half_cauchy_sf,
        icdf=lambda args, p, xp: args["scale"] * xp.tan(0.5 * math.pi * xp.asfloat(p)),
        bulk=lambda args, tail, xp: (0.0 * args["scale"], 2 / (math.pi * tail) * args["scale"]),
        chart="sinh",
        core=lambda args, xp: (0.0 * args["scale"], args["scale"]),
    )
)
