"""Closed forms of the conditional value at risk by family; c = level, t = 1 - c the tail mass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scipy.special import ndtri

from gedppl.families import get_family
from gedppl.families.family import Args
from gedppl.numerics.arrays import Array, Namespace

if TYPE_CHECKING:
    from gedppl.functionals import Functional


def _normal_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    z = float(ndtri(f.level))
    found: Array = args["loc"] + args["scale"] * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (
        1 - f.level
    )
    return found


def _lognormal_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    z = float(ndtri(f.level))
    found: Array = (
        xp.exp(args["loc"] + 0.5 * args["scale"] ** 2) * xp.ndtr(args["scale"] - z) / (1 - f.level)
    )
    return found


def _exponential_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    found: Array = (1 - math.log1p(-f.level)) / args["rate"]
    return found


def _laplace_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    c, t = f.level, 1 - f.level
    unit = 1 - math.log(2 * t) if c >= 0.5 else (c * (1 - math.log(2 * c)) / t if c > 0 else 0.0)
    found: Array = args["loc"] + args["scale"] * unit
    return found


def _uniform_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    found: Array = args["low"] + (args["high"] - args["low"]) * (1 + f.level) / 2
    return found


def _logistic_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    c, t = f.level, 1 - f.level
    entropy = -(c * math.log(c) if c > 0 else 0.0) - t * math.log(t)
    found: Array = args["loc"] + args["scale"] * entropy / t
    return found


def _student_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    """loc + scale (df + z^2)/(df - 1) pdf(z)/t; q is held fixed and the excess differentiated."""
    df = args["df"]
    unit = {"df": df, "loc": 0.0 * df, "scale": 1.0 + 0.0 * df}
    family = get_family("StudentT")
    exists = df > 1
    safe = {**unit, "df": xp.where(exists, df, 2.0)}
    z = xp.stop_gradient(family.icdf(safe, f.level, xp))  # type: ignore[misc]
    upper = (safe["df"] + z**2) / (safe["df"] - 1) * xp.exp(family.log_prob(safe, z, xp))
    value = z + (upper - z * family.sf(safe, z, xp)) / (1 - f.level)  # type: ignore[misc]
    found: Array = args["loc"] + args["scale"] * xp.where(exists, value, xp.inf)
    return found


def _weibull_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    power = 1 + 1 / args["concentration"]
    z = -math.log1p(-f.level)
    found: Array = (
        args["scale"]
        * xp.exp(xp.gammaln(power))
        * xp.gammaincc(power, z + 0.0 * power)
        / (1 - f.level)
    )
    return found


def _half_normal_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    z = float(ndtri(0.5 * (1 + f.level)))
    found: Array = args["scale"] * math.sqrt(2 / math.pi) * math.exp(-0.5 * z * z) / (1 - f.level)
    return found


def _pareto_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    alpha = args["alpha"]
    exists = alpha > 1
    safe = xp.where(exists, alpha, 2.0)
    q = args["scale"] * xp.exp(-math.log1p(-f.level) / safe)
    found: Array = xp.where(exists, q * safe / (safe - 1), xp.inf)
    return found


def _bernoulli_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    found: Array = xp.minimum(args["probs"] / (1 - f.level), 1.0)
    return found


CVAR = {
    "Normal": _normal_cvar,
    "LogNormal": _lognormal_cvar,
    "Exponential": _exponential_cvar,
    "Laplace": _laplace_cvar,
    "Uniform": _uniform_cvar,
    "Logistic": _logistic_cvar,
    "StudentT": _student_cvar,
    "Weibull": _weibull_cvar,
    "HalfNormal": _half_normal_cvar,
    "Pareto": _pareto_cvar,
    "Bernoulli": _bernoulli_cvar,
    "Cauchy": lambda args, f, xp: args["loc"] + args["scale"] * xp.inf,
    "HalfCauchy": lambda args, f, xp: args["scale"] * xp.inf,
    "Delta": lambda args, f, xp: args["v"],
}
