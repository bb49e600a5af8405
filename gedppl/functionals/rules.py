"""How a functional's value is computed: closed forms by family in an open registry, and the general ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scipy.special import ndtri

from gedppl.density import Density
from gedppl.errors import FunctionalError
from gedppl.families import get_family
from gedppl.families.family import Args
from gedppl.functionals.expectation import excess, expectation, probability_between, quantile
from gedppl.numerics.arrays import Array, Namespace

if TYPE_CHECKING:
    from gedppl.functionals import Functional


Rule = Callable[[Any, "Functional", Any], Array]

_RULES: dict[tuple[str, str], Rule] = {}


def register_functional(name: str, family: str, fn: Rule) -> None:
    """Give a functional a closed form for a family.

    fn(args, functional, xp) receives the family's argument arrays, the functional (for its level) and the namespace.

    >>> register_functional("cvar", "Uniform", lambda args, f, xp: args["low"] + (args["high"] - args["low"])
    ...                     * (1 + f.level) / 2)
    """
    get_family(family)
    if name not in _GENERAL:
        raise FunctionalError(f"no functional is called {name!r}; the names are {', '.join(_GENERAL)}")
    _RULES[name, family] = fn


def evaluate(functional: Functional, density: Density, x: Array | None, a: Array | None) -> Array:
    """The functional of a density: by its closed form where one is registered."""
    rule = _RULES.get((functional.name, density.family))
    if rule is not None:
        return rule(density.arrays, functional, density.xp)
    return _GENERAL[functional.name](functional, density, x, a)


# the general ways -----------------------------------------------------------------------------------------------------


def _mean(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    if density.spec.mean is None:
        return expectation(density, lambda y: y)
    return density.mean


def _variance(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    if density.spec.variance is None:
        centre = density.xp.stop_gradient(_mean(functional, density, x, a))
        return expectation(density, lambda y: (y - centre) ** 2)
    return density.variance


def _second_moment(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    return _variance(functional, density, x, a) + _mean(functional, density, x, a) ** 2


def _cvar(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    """q + E (Y - q)+ / tail; q is held fixed, because the derivative in q is 0 at the quantile."""
    level = functional.level
    if level == 0:
        return _mean(functional, density, x, a)
    q = density.xp.stop_gradient(quantile(density, level))
    return q + excess(density, q) / (1 - level)


def _quantile(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    return quantile(density, functional.level)


def _probability(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    above, below = (_limit(functional, name, density, x, a) for name in ("above", "below"))
    return probability_between(density, above, below)


def _limit(functional: Functional, name: str, density: Density, x: Array, a: Array) -> Array | None:
    limit = getattr(functional, name)
    if limit is None or isinstance(limit, float):
        return limit
    if callable(limit):
        _need_rows(functional, x, a)
        return limit(x, a)
    _need_rows(functional, a, a)
    return density.xp.asfloat(limit)[density.xp.asarray(a)]


def _need_rows(functional: Functional, x: Array | None, a: Array | None) -> None:
    if x is None or a is None:
        raise FunctionalError(
            f"{functional} depends on the row; call it with its contexts and actions: functional(density, x, a)"
        )


def _expected(functional: Functional, density: Density, x: Array, a: Array) -> Array:
    fn, kinks = functional.fn, functional.kinks
    assert fn is not None
    if callable(kinks):
        _need_rows(functional, x, a)
        kinks = kinks(x, a)
    points = kinks if isinstance(kinks, tuple) else (kinks,)
    return expectation(density, lambda y: fn(y, x, a), points)


_GENERAL: dict[str, Callable[..., Array]] = {
    "mean": _mean,
    "variance": _variance,
    "second_moment": _second_moment,
    "cvar": _cvar,
    "quantile": _quantile,
    "probability": _probability,
    "expected": _expected,
}


# closed forms of the conditional value at risk; c = level, t = 1 - c the tail mass ------------------------------------


def _normal_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    z = float(ndtri(f.level))
    return args["loc"] + args["scale"] * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (1 - f.level)


def _lognormal_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    z = float(ndtri(f.level))
    return xp.exp(args["loc"] + 0.5 * args["scale"] ** 2) * xp.ndtr(args["scale"] - z) / (1 - f.level)


def _exponential_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    return (1 - math.log1p(-f.level)) / args["rate"]


def _laplace_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    c, t = f.level, 1 - f.level
    unit = 1 - math.log(2 * t) if c >= 0.5 else (c * (1 - math.log(2 * c)) / t if c > 0 else 0.0)
    return args["loc"] + args["scale"] * unit


def _uniform_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    return args["low"] + (args["high"] - args["low"]) * (1 + f.level) / 2


def _logistic_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    c, t = f.level, 1 - f.level
    entropy = -(c * math.log(c) if c > 0 else 0.0) - t * math.log(t)
    return args["loc"] + args["scale"] * entropy / t


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
    return args["loc"] + args["scale"] * xp.where(exists, value, xp.inf)


def _weibull_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    power = 1 + 1 / args["concentration"]
    z = -math.log1p(-f.level)
    return args["scale"] * xp.exp(xp.gammaln(power)) * xp.gammaincc(power, z + 0.0 * power) / (1 - f.level)


def _half_normal_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    z = float(ndtri(0.5 * (1 + f.level)))
    return args["scale"] * math.sqrt(2 / math.pi) * math.exp(-0.5 * z * z) / (1 - f.level)


def _pareto_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    alpha = args["alpha"]
    exists = alpha > 1
    safe = xp.where(exists, alpha, 2.0)
    q = args["scale"] * xp.exp(-math.log1p(-f.level) / safe)
    return xp.where(exists, q * safe / (safe - 1), xp.inf)


def _bernoulli_cvar(args: Args, f: Functional, xp: Namespace) -> Array:
    return xp.minimum(args["probs"] / (1 - f.level), 1.0)


for _family, _rule in {
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
}.items():
    register_functional("cvar", _family, _rule)
