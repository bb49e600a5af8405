"""Families on the whole line, and the door to all of them.

The arguments are those of NumPyro and torch, so that a program's distribution is a family by its
name. Families on the half-line are in `positive`, on an interval or the circle in `bounded`, on the
integers in `discrete`; vectors, mixtures and atoms are in `composite`.

With z = (y - loc) / scale the densities here are p(y) = f(z) / scale, where f(z) is

    Normal      exp(-z^2 / 2) / sqrt(2 pi)        mean loc, variance scale^2
    Laplace     exp(-|z|) / 2                     mean loc, variance 2 scale^2
    Logistic    exp(-z) / (1 + exp(-z))^2         mean loc, variance pi^2 scale^2 / 3
    Gumbel      exp(-z - exp(-z))                 mean loc + .5772 scale, variance pi^2 scale^2 / 6
    Cauchy      1 / (pi (1 + z^2))                neither mean nor variance
    StudentT    c (1 + z^2 / df)^(-(df + 1) / 2)  mean loc for df > 1, variance
                                                  scale^2 df / (df - 2) for df > 2

`Density("Normal", {"loc": 0.0, "scale": 1.0})` is one of them, or a batch of them where the
arguments are arrays. A moment that does not exist is NaN, one that is infinite is infinite.

>>> get_family("Gumbel").args
('loc', 'scale')
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gedppl.families.family import (
    Args,
    Family,
    family_names,
    get_family,
    implicit_inverse,
    register_family,
)
from gedppl.numerics.arrays import Array, Namespace

__all__ = ["Family", "family_names", "get_family", "register_family"]

_LOG_2PI = math.log(2 * math.pi)
_EULER = 0.5772156649015329


def _standard(args: Args, y: Array) -> Any:
    return (y - args["loc"]) / args["scale"]


def _location_scale(
    name: str,
    *,
    log_pdf: Callable[..., Any],
    cdf: Callable[..., Any],
    sf: Callable[..., Any],
    icdf: Callable[..., Any],
    mean: float,
    variance: float,
    reach: Callable[..., Any],
    breakpoints: bool = False,
) -> Family:
    """A family y = loc + scale z, given for z. ``reach(tail, xp)`` is how far the bulk extends
    below and above loc.
    """

    def bulk(args: Args, tail: float, xp: Namespace) -> Any:
        below, above = reach(tail)
        return args["loc"] - below * args["scale"], args["loc"] + above * args["scale"]

    return Family(
        name=name,
        args=("loc", "scale"),
        kind="continuous",
        log_prob=lambda args, y, xp: log_pdf(_standard(args, y), xp) - xp.log(args["scale"]),
        support=_whole_line,
        mean=lambda args, xp: args["loc"] + mean * args["scale"],
        variance=lambda args, xp: variance * args["scale"] ** 2 + 0.0 * args["loc"],
        cdf=lambda args, y, xp: cdf(_standard(args, y), xp),
        sf=lambda args, y, xp: sf(_standard(args, y), xp),
        icdf=lambda args, p, xp: args["loc"] + args["scale"] * icdf(p, xp),
        bulk=bulk,
        breakpoints=(lambda args, xp: (args["loc"],)) if breakpoints else (lambda args, xp: ()),
        chart="sinh",
        core=lambda args, xp: (args["loc"], args["scale"]),
    )


def _whole_line(args: Args, xp: Namespace) -> Any:
    some = sum(0.0 * value for value in args.values())
    return some - xp.inf, some + xp.inf


def _both(value: float) -> tuple[float, float]:
    return value, value


register_family(
    _location_scale(
        "Normal",
        log_pdf=lambda z, xp: -0.5 * z**2 - 0.5 * _LOG_2PI,
        cdf=lambda z, xp: xp.ndtr(z),
        sf=lambda z, xp: xp.ndtr(-z),
        icdf=lambda p, xp: xp.ndtri(p),
        mean=0.0,
        variance=1.0,
        reach=lambda tail: _both(math.sqrt(2 * math.log(2 / tail))),
    )
)


def _laplace_cdf(z: Array, xp: Namespace) -> Any:
    half = 0.5 * xp.exp(-xp.abs(z))
    return xp.where(z < 0, half, 1 - half)


def _laplace_icdf(p: Array, xp: Namespace) -> Any:
    p = xp.asfloat(p)
    low = p < 0.5
    return xp.where(low, xp.log(2 * xp.where(low, p, 0.5)), -xp.log(2 * xp.where(low, 0.5, 1 - p)))


register_family(
    _location_scale(
        "Laplace",
        log_pdf=lambda z, xp: -xp.abs(z) - math.log(2),
        cdf=_laplace_cdf,
        sf=lambda z, xp: _laplace_cdf(-z, xp),
        icdf=_laplace_icdf,
        mean=0.0,
        variance=2.0,
        reach=lambda tail: _both(math.log(1 / tail)),
        breakpoints=True,
    )
)


def _softplus(z: Array, xp: Namespace) -> Any:
    return xp.logaddexp(z, 0.0 * z)


register_family(
    _location_scale(
        "Logistic",
        log_pdf=lambda z, xp: -z - 2 * _softplus(-z, xp),
        cdf=lambda z, xp: xp.expit(z),
        sf=lambda z, xp: xp.expit(-z),
        icdf=lambda p, xp: xp.logit(xp.asfloat(p)),
        mean=0.0,
        variance=math.pi**2 / 3,
        reach=lambda tail: _both(math.log(2 / tail)),
    )
)


def _gumbel_reach(tail: float) -> tuple[float, float]:
    return math.log(math.log(2 / tail)), -math.log(-math.log1p(-tail / 2))


register_family(
    _location_scale(
        "Gumbel",
        log_pdf=lambda z, xp: -z - xp.exp(-z),
        cdf=lambda z, xp: xp.exp(-xp.exp(-z)),
        sf=lambda z, xp: -xp.expm1(-xp.exp(-z)),
        icdf=lambda p, xp: -xp.log(-xp.log(xp.asfloat(p))),
        mean=_EULER,
        variance=math.pi**2 / 6,
        reach=_gumbel_reach,
    )
)


def cauchy_cdf(z: Array, xp: Namespace) -> Any:
    """1/2 + arctan(z)/pi, accurate in the left tail."""
    far = z < -1
    tail = -xp.arctan(1 / xp.where(far, z, -1.0)) / math.pi
    return xp.where(far, tail, 0.5 + xp.arctan(xp.where(far, 0.0, z)) / math.pi)


register_family(
    _location_scale(
        "Cauchy",
        log_pdf=lambda z, xp: -math.log(math.pi) - xp.log1p(z**2),
        cdf=cauchy_cdf,
        sf=lambda z, xp: cauchy_cdf(-z, xp),
        icdf=lambda p, xp: xp.tan(math.pi * (xp.asfloat(p) - 0.5)),
        mean=math.nan,
        variance=math.nan,
        reach=lambda tail: _both(2 / (math.pi * tail)),
    )
)


# Student's t --------------------------------------------------------------------------------------


def _t_log_pdf(df: Array, z: Array, xp: Namespace) -> Any:
    constant = xp.gammaln(0.5 * (df + 1)) - xp.gammaln(0.5 * df) - 0.5 * xp.log(math.pi * df)
    return constant - 0.5 * (df + 1) * xp.log1p(z**2 / df)


def _t_cdf(df: Array, z: Array, xp: Namespace) -> Any:
    z = xp.asfloat(z)
    # there the incomplete beta's derivative is 0/0, and the cdf linear to 1e-21
    near = xp.abs(z) < 1e-7
    w = xp.where(near, 1.0, z)
    tail = 0.5 * xp.betainc(0.5 * df, 0.5 + 0.0 * w, df / (df + w**2))
    far = xp.where(w < 0, tail, 1 - tail)
    return xp.where(near, 0.5 + xp.where(near, z, 0.0) * xp.exp(_t_log_pdf(df, 0.0 * w, xp)), far)


def _t_icdf(args: Args, p: Array, xp: Namespace) -> Any:
    df = args["df"]
    z = xp.stdtrit(xp.stop_gradient(df + 0.0 * xp.asfloat(p)), p + 0.0 * xp.stop_gradient(df))
    z = implicit_inverse(z, lambda q: _t_cdf(df, q, xp), lambda q: _t_log_pdf(df, q, xp), xp)
    return args["loc"] + args["scale"] * z


def _t_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    # P(|T| > z) <= 2 c df^((df - 1)/2) z^-df with c the density's constant
    df = args["df"]
    log_constant = xp.gammaln(0.5 * (df + 1)) - xp.gammaln(0.5 * df) - 0.5 * xp.log(math.pi * df)
    log_reach = (math.log(2 / tail) + log_constant) / df + 0.5 * (df - 1) / df * xp.log(df)
    reach = xp.exp(xp.minimum(log_reach, 300.0)) * args["scale"]
    return args["loc"] - reach, args["loc"] + reach


def _t_moment(exists: Array, value: Array, xp: Namespace) -> Any:
    return xp.where(exists, value, xp.nan)


def _t_variance(args: Args, xp: Namespace) -> Any:
    df, scale = args["df"], args["scale"]
    ratio = df / xp.where(df > 2, df - 2, 1.0)
    finite = xp.where(df > 2, ratio * scale**2, xp.inf)
    return _t_moment(df > 1, finite + 0.0 * args["loc"], xp)


register_family(
    Family(
        name="StudentT",
        args=("df", "loc", "scale"),
        kind="continuous",
        log_prob=lambda args, y, xp: (
            _t_log_pdf(args["df"], _standard(args, y), xp) - xp.log(args["scale"])
        ),
        support=_whole_line,
        mean=lambda args, xp: _t_moment(args["df"] > 1, args["loc"] + 0.0 * args["scale"], xp),
        variance=_t_variance,
        cdf=lambda args, y, xp: _t_cdf(args["df"], _standard(args, y), xp),
        sf=lambda args, y, xp: _t_cdf(args["df"], -_standard(args, y), xp),
        icdf=_t_icdf,
        bulk=_t_bulk,
        chart="sinh",
        core=lambda args, xp: (args["loc"], args["scale"]),
    )
)
