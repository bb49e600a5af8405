"""An independent reference for the divergences: scipy.stats densities, panels of Gauss–Legendre
nodes between quantiles.

Nothing here uses gedppl's families, integration or closed forms. `PAIRS[family](rng, closeness)`
draws the arguments of two densities, and `DISTRIBUTIONS[family](args)` is the scipy distribution
they stand for.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

_LEVELS = np.array([1e-17, 1e-13, 1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5])
_X, _W = np.polynomial.legendre.leggauss(32)
_X, _W = (_X + 1) / 2, _W / 2


def _truncated(d):
    return stats.truncnorm(
        (d["low"] - d["loc"]) / d["scale"],
        (d["high"] - d["loc"]) / d["scale"],
        d["loc"],
        d["scale"],
    )


DISTRIBUTIONS = {
    "Normal": lambda d: stats.norm(d["loc"], d["scale"]),
    "LogNormal": lambda d: stats.lognorm(d["scale"], scale=np.exp(d["loc"])),
    "Laplace": lambda d: stats.laplace(d["loc"], d["scale"]),
    "Exponential": lambda d: stats.expon(scale=1 / d["rate"]),
    "Gamma": lambda d: stats.gamma(d["concentration"], scale=1 / d["rate"]),
    "InverseGamma": lambda d: stats.invgamma(d["concentration"], scale=d["rate"]),
    "Beta": lambda d: stats.beta(d["concentration1"], d["concentration0"]),
    "Weibull": lambda d: stats.weibull_min(d["concentration"], scale=d["scale"]),
    "VonMises": lambda d: stats.vonmises(d["concentration"], d["loc"]),
    "Uniform": lambda d: stats.uniform(d["low"], d["high"] - d["low"]),
    "TruncatedNormal": _truncated,
    "StudentT": lambda d: stats.t(d["df"], d["loc"], d["scale"]),
    "Cauchy": lambda d: stats.cauchy(d["loc"], d["scale"]),
    "Logistic": lambda d: stats.logistic(d["loc"], d["scale"]),
    "HalfNormal": lambda d: stats.halfnorm(scale=d["scale"]),
    "Gumbel": lambda d: stats.gumbel_r(d["loc"], d["scale"]),
    "Pareto": lambda d: stats.pareto(d["alpha"], scale=d["scale"]),
    "Bernoulli": lambda d: stats.bernoulli(d["probs"]),
    "Binomial": lambda d: stats.binom(int(d["total_count"]), d["probs"]),
    "Poisson": lambda d: stats.poisson(d["rate"]),
    "NegativeBinomial": lambda d: stats.nbinom(d["total_count"], 1 - d["probs"]),
    "Geometric": lambda d: stats.geom(d["probs"], loc=-1),
    "BetaBinomial": lambda d: stats.betabinom(
        int(d["total_count"]), d["concentration1"], d["concentration0"]
    ),
}


def _positive(rng, low=0.3, high=30.0):
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _near(rng, value, closeness):
    return value * float(np.exp(closeness * rng.normal()))


def _near_unit(rng, value, closeness):
    return float(1 / (1 + np.exp(-(np.log(value / (1 - value)) + closeness * rng.normal()))))


def _location(rng, closeness):
    scale = _positive(rng)
    p = {"loc": rng.normal() * 3, "scale": scale}
    return p, {
        "loc": p["loc"] + closeness * scale * rng.normal(),
        "scale": _near(rng, scale, closeness),
    }


def _all_near(*names, low=0.3, high=30.0):
    def pair(rng, closeness):
        p = {name: _positive(rng, low, high) for name in names}
        return p, {name: max(_near(rng, value, closeness), low) for name, value in p.items()}

    return pair


def _kept(pair, name, value=None):
    """The same, with one argument common to both."""

    def common(rng, closeness):
        p, q = pair(rng, closeness)
        kept = p[name] if value is None else value(rng)
        return p | {name: kept}, q | {name: kept}

    return common


def _probs(rng, closeness):
    prob = rng.uniform(0.05, 0.95)
    return {"probs": prob}, {"probs": _near_unit(rng, prob, closeness)}


def _with_count(rng, closeness):
    count = float(rng.integers(1, 40))
    p, q = _probs(rng, closeness)
    return p | {"total_count": count}, q | {"total_count": count}


def _interval(rng, closeness):
    low, length = rng.normal(), _positive(rng)
    other = low + closeness * length * rng.normal() / 3, _near(rng, length, closeness / 3)
    return {"low": low, "high": low + length}, {"low": other[0], "high": other[0] + other[1]}


def _truncated_pair(rng, closeness):
    p, q = _location(rng, min(closeness, 0.5))
    low = p["loc"] + p["scale"] * rng.uniform(-3, 2)
    high = np.inf if rng.uniform() < 0.3 else low + p["scale"] * rng.uniform(0.3, 4)
    return p | {"low": low, "high": high}, q | {"low": low, "high": high}


def _von_mises(rng, closeness):
    loc, kappa = rng.uniform(-3, 3), _positive(rng, 0.1, 50)
    near = loc + closeness * rng.normal() / np.sqrt(1 + kappa)
    wrapped = float(np.mod(near + np.pi, 2 * np.pi) - np.pi)
    return {"loc": loc, "concentration": kappa}, {
        "loc": wrapped,
        "concentration": _near(rng, kappa, closeness),
    }


PAIRS = {
    "Normal": _location,
    "LogNormal": lambda rng, closeness: (
        lambda p, q: (
            {"loc": p["loc"] / 3, "scale": min(p["scale"] / 10, 1.2)},
            {"loc": q["loc"] / 3, "scale": min(q["scale"] / 10, 1.2)},
        )
    )(*_location(rng, closeness)),
    "Laplace": _location,
    "Exponential": _all_near("rate"),
    "Gamma": _all_near("concentration", "rate", low=0.8),
    "InverseGamma": _all_near("concentration", "rate", low=0.8),
    "Beta": _all_near("concentration1", "concentration0", low=1.2),
    "Weibull": _kept(_all_near("scale", "concentration", low=0.8, high=10.0), "concentration"),
    "VonMises": _von_mises,
    "Uniform": _interval,
    "TruncatedNormal": _truncated_pair,
    "Bernoulli": _probs,
    "Binomial": _with_count,
    "Poisson": _all_near("rate", high=60.0),
    "NegativeBinomial": _with_count,
    "Geometric": _probs,
}


def divergence(kind: str, p, q) -> float:
    """The divergence of two scipy distributions, by panels or sums."""
    if hasattr(p.dist, "pmf"):
        return _sum(kind, p, q)
    return _integral(kind, p, q)


def terms_of(kind, log_p, log_q):
    larger = np.maximum(log_p, log_q)
    ratio = np.where(
        larger > -np.inf, np.minimum(log_p, log_q) - np.where(larger > -np.inf, larger, 0.0), 0.0
    )
    size = np.exp(larger)  # differences through the ratio to the larger density: no cancellation
    if kind == "total_variation":
        return -size * np.expm1(ratio) / 2
    if kind == "l2_squared":
        return (size * np.expm1(ratio)) ** 2
    return size * np.expm1(ratio / 2) ** 2 / 2


def _sum(kind, p, q):
    k = np.arange(0, int(max(d.mean() + 60 * d.std() for d in (p, q))) + 60)
    return float(terms_of(kind, p.logpmf(k), q.logpmf(k)).sum())


def _integral(kind, p, q):
    if p.dist.name == "vonmises":
        # its quantiles are slow and approximate: one period, finely
        points = [np.linspace(-np.pi, np.pi, 400)]
    else:
        points = [d.ppf(_LEVELS) for d in (p, q)] + [d.isf(_LEVELS) for d in (p, q)]
        points += [np.array(d.support()) for d in (p, q)]
        # Laplace's kink is at its median
        points += [np.array([d.mean(), d.median()]) for d in (p, q)]
    ends = np.unique(np.concatenate(points))
    ends = ends[np.isfinite(ends)]

    def log_ratio(y):
        return p.logpdf(y) - q.logpdf(y)

    with np.errstate(all="ignore"):
        if kind == "total_variation":
            grid = np.unique(
                np.concatenate(
                    [ends, *(ends[:-1] + np.diff(ends) * f for f in (0.01, 0.3, 0.6, 0.99))]
                )
            )
            grid = grid[np.isfinite(log_ratio(grid))]
            ratio = log_ratio(grid)
            change = np.flatnonzero(ratio[:-1] * ratio[1:] < 0)
            roots = [optimize.brentq(log_ratio, grid[i], grid[i + 1], xtol=1e-14) for i in change]
            ends = np.unique(np.concatenate([ends, roots]))
        a, b = ends[:-1, None], ends[1:, None]
        # geometric panels where the end is a singularity or a tail is heavy
        graded = (a * b > 0) & (
            np.maximum(np.abs(a), np.abs(b)) > 3 * np.minimum(np.abs(a), np.abs(b))
        )
        span = np.log(np.where(graded, b / np.where(graded, a, 1.0), 1.0))
        y = np.where(graded, a * np.exp(span * _X), a + (b - a) * _X)
        slope = np.where(graded, y * span, b - a)
        terms = terms_of(kind, p.logpdf(y), q.logpdf(y)) * slope
    return float((np.where(np.isfinite(terms), terms, 0.0) * _W).sum())
