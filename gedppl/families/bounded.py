"""Families on an interval or on the circle.

    Uniform          1 / (high - low)                               low <= y <= high
    Beta             y^(a - 1) (1 - y)^(b - 1) / B(a, b)            0 < y < 1
    TruncatedNormal  phi(z) / (scale (Phi(z_high) - Phi(z_low)))    low <= y <= high
    VonMises         exp(k cos(y - loc)) / (2 pi I0(k))             -pi <= y < pi

with a, b = concentration1, concentration0, z = (y - loc) / scale and k the VonMises' concentration.
A Beta's mean is a / (a + b), its variance a b / ((a + b)^2 (a + b + 1)). An angle counts as the
number that it is: mean and variance of a VonMises are those of y, not the circular ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gedppl.families.family import Args, Family, implicit_inverse, masked, register_family
from gedppl.numerics.arrays import Array, Namespace
from gedppl.numerics.integrate import panels

_LOG_2PI = math.log(2 * math.pi)


# Uniform ------------------------------------------------------------------------------------------


def _uniform_cdf(args: Args, y: Array, xp: Namespace) -> Any:
    return xp.clip((y - args["low"]) / (args["high"] - args["low"]), 0.0, 1.0)


register_family(
    Family(
        name="Uniform",
        args=("low", "high"),
        kind="continuous",
        log_prob=lambda args, y, xp: xp.where(
            (y >= args["low"]) & (y <= args["high"]), -xp.log(args["high"] - args["low"]), -xp.inf
        ),
        support=lambda args, xp: (
            args["low"] + 0.0 * args["high"],
            args["high"] + 0.0 * args["low"],
        ),
        mean=lambda args, xp: 0.5 * (args["low"] + args["high"]),
        variance=lambda args, xp: (args["high"] - args["low"]) ** 2 / 12,
        cdf=_uniform_cdf,
        sf=lambda args, y, xp: 1 - _uniform_cdf(args, y, xp),
        icdf=lambda args, p, xp: args["low"] + xp.asfloat(p) * (args["high"] - args["low"]),
        bulk=lambda args, tail, xp: (
            args["low"] + 0.0 * args["high"],
            args["high"] + 0.0 * args["low"],
        ),
        chart="linear",
        core=lambda args, xp: (
            0.5 * (args["low"] + args["high"]),
            0.1 * (args["high"] - args["low"]),
        ),
    )
)


# Beta ---------------------------------------------------------------------------------------------


def _beta_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    a, b = args["concentration1"], args["concentration0"]

    def formula(v: Array) -> Any:
        return (a - 1) * xp.log(v) + (b - 1) * xp.log1p(-v) - xp.betaln(a, b)

    interior = masked((y > 0) & (y < 1), 0.5, formula, y, xp)
    at_zero = xp.where(a == 1, xp.log(b), xp.where(a < 1, xp.inf, -xp.inf))
    at_one = xp.where(b == 1, xp.log(a), xp.where(b < 1, xp.inf, -xp.inf))
    return xp.where(y == 0, at_zero, xp.where(y == 1, at_one, interior))


def _beta_variance(args: Args, xp: Namespace) -> Any:
    a, b = args["concentration1"], args["concentration0"]
    return a * b / ((a + b) ** 2 * (a + b + 1))


def _beta_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    """A sub-Gaussian bound with variance proxy 1/(4(a+b+1)) (Marchal and Arbel 2017), or the
    power law at each end.
    """
    a, b = args["concentration1"], args["concentration0"]
    centre = a / (a + b)
    reach = xp.sqrt(math.log(4 / tail) / (2 * (a + b + 1)))
    log_b = xp.betaln(a, b)
    low = xp.exp(xp.clip((math.log(tail / 8) + xp.log(a) + log_b) / a, -600.0, -0.7))
    gap = xp.exp(xp.clip((math.log(tail / 8) + xp.log(b) + log_b) / b, -600.0, -0.7))
    # an interval in floating point cannot come closer to 1 than this
    return xp.maximum(centre - reach, low), xp.minimum(centre + reach, 1 - xp.maximum(gap, 1.2e-16))


def _beta_icdf(args: Args, p: Array, xp: Namespace) -> Any:
    a, b = args["concentration1"], args["concentration0"]
    zero = 0.0 * xp.stop_gradient(a + b + 0.0 * xp.asfloat(p))
    q = xp.betaincinv(xp.stop_gradient(a) + zero, xp.stop_gradient(b) + zero, xp.asfloat(p) + zero)
    return implicit_inverse(
        q, lambda v: xp.betainc(a, b, v), lambda v: _beta_log_prob(args, v, xp), xp
    )


def _beta_core(args: Args, xp: Namespace) -> Any:
    a, b = args["concentration1"], args["concentration0"]
    return xp.log(a) - xp.log(b), xp.sqrt(1 / (1 + a) + 1 / (1 + b))


register_family(
    Family(
        name="Beta",
        args=("concentration1", "concentration0"),
        kind="continuous",
        log_prob=_beta_log_prob,
        support=lambda args, xp: (
            0.0 * args["concentration1"] + 0.0 * args["concentration0"],
            1 + 0.0 * args["concentration1"] + 0.0 * args["concentration0"],
        ),
        mean=lambda args, xp: (
            args["concentration1"] / (args["concentration1"] + args["concentration0"])
        ),
        variance=_beta_variance,
        cdf=lambda args, y, xp: xp.betainc(
            args["concentration1"], args["concentration0"], xp.clip(y, 0.0, 1.0)
        ),
        sf=lambda args, y, xp: xp.betainc(
            args["concentration0"], args["concentration1"], 1 - xp.clip(y, 0.0, 1.0)
        ),
        icdf=_beta_icdf,
        bulk=_beta_bulk,
        chart="logit",
        core=_beta_core,
    )
)


# TruncatedNormal ----------------------------------------------------------------------------------


def _log_ndtr_between(a: Array, b: Array, xp: Namespace) -> Any:
    """log(Phi(b) - Phi(a)) for a < b, on the side where the tails are small."""
    flip = a > 0
    low, high = xp.where(flip, -b, a), xp.where(flip, -a, b)
    top, bottom = _log_ndtr_finite(high, 0.0, xp), _log_ndtr_finite(low, -xp.inf, xp)
    return top + xp.log1p(-xp.exp(bottom - top))


def _log_ndtr_finite(z: Array, otherwise: float, xp: Namespace) -> Any:
    """log Phi(z), or this value at an infinite end (where the derivative would be 0 times
    infinity).
    """
    finite = xp.isfinite(z)
    return xp.where(finite, xp.log_ndtr(xp.where(finite, z, 0.0)), otherwise)


def _standard_ends(args: Args, xp: Namespace) -> Any:
    """(low - loc)/scale and (high - loc)/scale; infinite ends stay so, without a derivative."""
    ends = []
    for name in ("low", "high"):
        finite = xp.isfinite(args[name])
        ends.append(
            xp.where(
                finite,
                (xp.where(finite, args[name], 0.0) - args["loc"]) / args["scale"],
                args[name],
            )
        )
    return ends


def _truncated_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    a, b = _standard_ends(args, xp)
    log_mass = _log_ndtr_between(a, b, xp) + xp.log(args["scale"])

    def formula(v: Array) -> Any:
        return -0.5 * ((v - args["loc"]) / args["scale"]) ** 2 - 0.5 * _LOG_2PI - log_mass

    return masked((y >= args["low"]) & (y <= args["high"]), args["loc"], formula, y, xp)


def _hazards(args: Args, xp: Namespace) -> Any:
    """phi(a)/Z and phi(b)/Z, with their ends; an infinite end has hazard 0."""
    a, b = _standard_ends(args, xp)
    log_z = _log_ndtr_between(a, b, xp)
    out = []
    for end in (a, b):
        finite = xp.isfinite(end)
        safe = xp.where(finite, end, 0.0)
        log_hazard = xp.where(finite, -0.5 * safe**2 - 0.5 * _LOG_2PI - log_z, -xp.inf)
        out.append((safe, xp.exp(log_hazard)))
    return out


def _truncated_mean(args: Args, xp: Namespace) -> Any:
    (_, left), (_, right) = _hazards(args, xp)
    return args["loc"] + args["scale"] * (left - right)


def _truncated_variance(args: Args, xp: Namespace) -> Any:
    (a, left), (b, right) = _hazards(args, xp)
    return args["scale"] ** 2 * (1 + a * left - b * right - (left - right) ** 2)


def _truncated_cdf(args: Args, y: Array, xp: Namespace) -> Any:
    a, b = _standard_ends(args, xp)
    z = (xp.clip(y, args["low"], args["high"]) - args["loc"]) / args["scale"]
    inside = z > a
    part = _log_ndtr_between(a, xp.where(inside, z, b), xp) - _log_ndtr_between(a, b, xp)
    return xp.where(inside, xp.exp(part), 0.0)


def _truncated_sf(args: Args, y: Array, xp: Namespace) -> Any:
    mirrored = {
        "loc": -args["loc"],
        "scale": args["scale"],
        "low": -args["high"],
        "high": -args["low"],
    }
    return _truncated_cdf(mirrored, -y, xp)


def _truncated_icdf(args: Args, p: Array, xp: Namespace) -> Any:
    a, b = _standard_ends(args, xp)
    p = xp.asfloat(p)
    flip = a > 0
    low, high = xp.where(flip, -b, a), xp.where(flip, -a, b)
    level = xp.where(flip, 1 - p, p)
    z = xp.ndtri(xp.ndtr(low) * (1 - level) + xp.ndtr(high) * level)
    q = xp.clip(args["loc"] + args["scale"] * xp.where(flip, -z, z), args["low"], args["high"])
    return implicit_inverse(
        q, lambda v: _truncated_cdf(args, v, xp), lambda v: _truncated_log_prob(args, v, xp), xp
    )


def _truncated_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    # beyond z the tail is exp(-(z^2 - nearest^2)/2) of the mass, where nearest is the point of [a,
    # b] closest to 0
    a, b = _standard_ends(args, xp)
    nearest = xp.maximum(xp.maximum(a, -b), 0.0)
    reach = xp.sqrt(nearest**2 + 2 * math.log(8 / tail))
    low, high = xp.maximum(a, -reach), xp.minimum(b, reach)
    return args["loc"] + args["scale"] * low, args["loc"] + args["scale"] * high


register_family(
    Family(
        name="TruncatedNormal",
        args=("loc", "scale", "low", "high"),
        kind="continuous",
        log_prob=_truncated_log_prob,
        support=lambda args, xp: (
            args["low"] + 0.0 * (args["loc"] + args["scale"]),
            args["high"] + 0.0 * (args["loc"] + args["scale"]),
        ),
        mean=_truncated_mean,
        variance=_truncated_variance,
        cdf=_truncated_cdf,
        sf=_truncated_sf,
        icdf=_truncated_icdf,
        bulk=_truncated_bulk,
        chart="linear",
        core=lambda args, xp: (args["loc"], args["scale"]),
    )
)


# VonMises: an angle in [-pi, pi), so its mean and variance are those of that number, not the
# circular ones ---


def _von_mises_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    kappa = args["concentration"]
    # kappa (cos d - 1) without cancellation
    return -2 * kappa * xp.sin(0.5 * (y - args["loc"])) ** 2 - _LOG_2PI - xp.log(xp.i0e(kappa))


def _von_mises_breakpoints(args: Args, xp: Namespace) -> Any:
    """Ascending edges that grow away from the peak, and from its images one turn below and
    above.
    """
    loc = args["loc"] - 2 * math.pi * xp.floor(
        (xp.stop_gradient(args["loc"]) + math.pi) / (2 * math.pi)
    )
    # so that the images do not overlap
    width = xp.minimum(1 / xp.sqrt(1 + args["concentration"]), math.pi / 9.01)
    around = [loc + k * width for k in (-9.0, -6.0, -4.0, -2.5, -1.0, 0.0, 1.0, 2.5, 4.0, 6.0, 9.0)]
    return tuple(edge + turn for turn in (-2 * math.pi, 0.0, 2 * math.pi) for edge in around)


def _von_mises_integral(args: Args, fn: Callable[..., Any], upper: Array, xp: Namespace) -> Any:
    """The integral of fn(y) p(y) over [-pi, upper]."""
    start = 0.0 * upper - math.pi
    inner = [
        xp.clip(point + 0.0 * upper, start, upper) for point in _von_mises_breakpoints(args, xp)
    ]
    y, weights = panels(xp.stack([start, *inner, upper]), order=12, xp=xp)
    return xp.sum(weights * fn(y) * xp.exp(_von_mises_log_prob(args, y, xp)), axis=0)


def _von_mises_moment(args: Args, fn: Callable[..., Any], xp: Namespace) -> Any:
    return _von_mises_integral(args, fn, math.pi + 0.0 * (args["loc"] + args["concentration"]), xp)


def _von_mises_mean(args: Args, xp: Namespace) -> Any:
    return _von_mises_moment(args, lambda y: y, xp)


def _von_mises_variance(args: Args, xp: Namespace) -> Any:
    centre = _von_mises_mean(args, xp)
    return _von_mises_moment(args, lambda y: (y - centre) ** 2, xp)


def _von_mises_cdf(args: Args, y: Array, xp: Namespace) -> Any:
    y = xp.clip(y, -math.pi, math.pi) + 0.0 * (args["loc"] + args["concentration"])
    return _von_mises_integral(args, lambda v: 1.0, y, xp)


def _circle(args: Args, xp: Namespace) -> Any:
    zero = 0.0 * (args["loc"] + args["concentration"])
    return zero - math.pi, zero + math.pi


register_family(
    Family(
        name="VonMises",
        args=("loc", "concentration"),
        kind="continuous",
        log_prob=_von_mises_log_prob,
        support=_circle,
        mean=_von_mises_mean,
        variance=_von_mises_variance,
        cdf=_von_mises_cdf,
        sf=lambda args, y, xp: 1 - _von_mises_cdf(args, y, xp),
        bulk=lambda args, tail, xp: _circle(args, xp),
        breakpoints=_von_mises_breakpoints,
        chart="linear",
        core=lambda args, xp: (args["loc"], 1 / xp.sqrt(1 + args["concentration"])),
        sample=lambda args, rng, shape: rng.vonmises(args["loc"], args["concentration"], shape),
    )
)
