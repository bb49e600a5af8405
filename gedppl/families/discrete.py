"""Families on the integers. Their bulk has integer ends, so sums run over ``low, low + 1, ...,
high``.

    Bernoulli         p^y (1 - p)^(1 - y)                           y = 0, 1
    Categorical       probs[y]                                      y = 0, ..., len(probs) - 1
    Binomial          C(n, y) p^y (1 - p)^(n - y)                   mean n p
    BetaBinomial      C(n, y) B(y + a, n - y + b) / B(a, b)         mean n a / (a + b)
    Poisson           rate^y exp(-rate) / y!                        mean rate
    NegativeBinomial  C(y + n - 1, y) p^y (1 - p)^n                 mean n p / (1 - p)
    Geometric         p (1 - p)^y                                   mean (1 - p) / p

with p = probs, n = total_count (of a negative binomial any positive number) and a, b =
concentration1, concentration0. A geometric outcome counts the failures before the first success, a
negative binomial's p is the chance that the count goes on, as in NumPyro and torch. The bulk of a
sum of small terms is Bernstein's: P(|Y - mean| > u) <= 2 exp(-u^2 / (2 (variance + u / 3))).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.families.family import Args, Family, register_family, safe_log, x_log_1mp, x_log_p
from gedppl.numerics.arrays import Array, Namespace


def _on_lattice(y: Array, low: Array, high: Array, xp: Namespace) -> Any:
    return (y >= low) & (y <= high) & (y == xp.floor(y))


def _lattice_log_prob(
    formula: Callable[..., Any], y: Array, low: Array, high: Array, xp: Namespace
) -> Any:
    """formula(k) on the integers low..high and minus infinity elsewhere; the formula never sees
    anything else.
    """
    y = xp.asfloat(y)
    inside = _on_lattice(y, low, high, xp)
    return xp.where(inside, formula(xp.where(inside, y, 0.0)), -xp.inf)


def _to_infinity(args: Args, xp: Namespace) -> Any:
    zero = sum(0.0 * value for value in args.values())
    return zero, zero + xp.inf


def _whole(y: Array, xp: Namespace) -> Any:
    """floor(y), and whether it is at least 0."""
    k = xp.floor(xp.asfloat(y))
    return xp.maximum(k, 0.0), k >= 0


# Bernoulli, Categorical ---------------------------------------------------------------------------


def _bernoulli_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    p = args["probs"]
    return _lattice_log_prob(lambda k: x_log_p(k, p, xp) + x_log_1mp(1 - k, p, xp), y, 0, 1, xp)


def _bernoulli_cdf(args: Args, y: Array, xp: Namespace) -> Any:
    return xp.where(y < 0, 0.0, xp.where(y < 1, 1 - args["probs"], 1.0))


def _bernoulli_sf(args: Args, y: Array, xp: Namespace) -> Any:
    return xp.where(y < 0, 1.0, xp.where(y < 1, args["probs"], 0.0))


register_family(
    Family(
        name="Bernoulli",
        args=("probs",),
        kind="discrete",
        log_prob=_bernoulli_log_prob,
        support=lambda args, xp: (0.0 * args["probs"], 1 + 0.0 * args["probs"]),
        mean=lambda args, xp: args["probs"],
        variance=lambda args, xp: args["probs"] * (1 - args["probs"]),
        cdf=_bernoulli_cdf,
        sf=_bernoulli_sf,
        bulk=lambda args, tail, xp: (0.0 * args["probs"], 1 + 0.0 * args["probs"]),
        sample=lambda args, rng, shape: (rng.uniform(size=shape) < args["probs"]).astype(float),
        terms=lambda args: 2,
    )
)


def _categories(args: Args, xp: Namespace) -> Any:
    return xp.asfloat(np.arange(args["probs"].shape[-1]))


def _categorical_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    log_p = safe_log(args["probs"], xp)
    hit = xp.expand_dims(xp.asfloat(y), -1) == _categories(args, xp)
    # at most one category is hit; adding zeros elsewhere keeps -inf out of the sum's gradient
    return xp.where(xp.any(hit, axis=-1), xp.sum(xp.where(hit, log_p, 0.0), axis=-1), -xp.inf)


def _categorical_mean(args: Args, xp: Namespace) -> Any:
    return xp.sum(args["probs"] * _categories(args, xp), axis=-1)


def _categorical_variance(args: Args, xp: Namespace) -> Any:
    centred = _categories(args, xp) - xp.expand_dims(_categorical_mean(args, xp), -1)
    return xp.sum(args["probs"] * centred**2, axis=-1)


def _categorical_tail(keep: Callable[[Any, Any], Any]) -> Any:
    def tail(args: Args, y: Array, xp: Namespace) -> Any:
        kept = keep(_categories(args, xp), xp.expand_dims(xp.asfloat(y), -1))
        return xp.sum(xp.where(kept, args["probs"], 0.0), axis=-1)

    return tail


def _categorical_ends(args: Args, xp: Namespace) -> Any:
    zero = 0.0 * args["probs"][..., 0]
    return zero, zero + (args["probs"].shape[-1] - 1)


def _categorical_sample(args: Args, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    edges = np.cumsum(args["probs"], axis=-1)
    edges = edges / edges[..., -1:]
    return (rng.uniform(size=shape)[..., None] > edges[..., :-1]).sum(-1).astype(float)


register_family(
    Family(
        name="Categorical",
        args=("probs",),
        kind="discrete",
        log_prob=_categorical_log_prob,
        support=_categorical_ends,
        mean=_categorical_mean,
        variance=_categorical_variance,
        cdf=_categorical_tail(lambda k, y: k <= y),
        sf=_categorical_tail(lambda k, y: k > y),
        bulk=lambda args, tail, xp: _categorical_ends(args, xp),
        sample=_categorical_sample,
        terms=lambda args: args["probs"].shape[-1],
        arg_ndim={"probs": 1},
    )
)


# Binomial, BetaBinomial ---------------------------------------------------------------------------


def _log_choose(n: Array, k: Array, xp: Namespace) -> Any:
    return xp.gammaln(n + 1) - xp.gammaln(k + 1) - xp.gammaln(n - k + 1)


def _binomial_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    n, p = args["total_count"], args["probs"]
    return _lattice_log_prob(
        lambda k: _log_choose(n, k, xp) + x_log_p(k, p, xp) + x_log_1mp(n - k, p, xp), y, 0, n, xp
    )


def _binomial_sf(args: Args, y: Array, xp: Namespace) -> Any:
    """P(Y > k) = I_p(k + 1, n - k)."""
    n, p = args["total_count"], args["probs"]
    k, started = _whole(y, xp)
    inside = k < n
    tail = xp.betainc(xp.where(inside, k, 0.0) + 1, xp.where(inside, n - k, 1.0), p)
    return xp.where(started, xp.where(inside, tail, 0.0), 1.0)


def _binomial_cdf(args: Args, y: Array, xp: Namespace) -> Any:
    n, p = args["total_count"], args["probs"]
    k, started = _whole(y, xp)
    inside = k < n
    head = xp.betainc(xp.where(inside, n - k, 1.0), xp.where(inside, k, 0.0) + 1, 1 - p)
    return xp.where(started, xp.where(inside, head, 1.0), 0.0)


def _bernstein(
    centre: Array, spread: Array, low: Array, high: Array, tail: float, xp: Namespace
) -> Any:
    """Integer ends of centre +- u, where P(|Y - centre| > u) <= tail for sums of terms in [0, 1]
    of this variance.
    """
    t = math.log(2 / tail)
    reach = t / 3 + xp.sqrt(t**2 / 9 + 2 * spread * t)
    return (
        xp.stop_gradient(xp.maximum(xp.floor(centre - reach), low)),
        xp.stop_gradient(xp.minimum(xp.ceil(centre + reach), high)),
    )


def _count_support(args: Args, xp: Namespace) -> Any:
    zero = sum(0.0 * value for value in args.values())
    return zero, args["total_count"] + zero


def _binomial_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    n, p = args["total_count"], args["probs"]
    return _bernstein(n * p, n * p * (1 - p), 0.0, n, tail, xp)


register_family(
    Family(
        name="Binomial",
        args=("total_count", "probs"),
        kind="discrete",
        log_prob=_binomial_log_prob,
        support=_count_support,
        mean=lambda args, xp: args["total_count"] * args["probs"],
        variance=lambda args, xp: args["total_count"] * args["probs"] * (1 - args["probs"]),
        cdf=_binomial_cdf,
        sf=_binomial_sf,
        bulk=_binomial_bulk,
        sample=lambda args, rng, shape: (
            rng.binomial(np.asarray(args["total_count"], int), args["probs"], shape) * 1.0
        ),
    )
)


def _beta_binomial_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    n, a, b = args["total_count"], args["concentration1"], args["concentration0"]
    return _lattice_log_prob(
        lambda k: _log_choose(n, k, xp) + xp.betaln(k + a, n - k + b) - xp.betaln(a, b), y, 0, n, xp
    )


def _beta_binomial_mean(args: Args, xp: Namespace) -> Any:
    return (
        args["total_count"]
        * args["concentration1"]
        / (args["concentration1"] + args["concentration0"])
    )


def _beta_binomial_variance(args: Args, xp: Namespace) -> Any:
    n, a, b = args["total_count"], args["concentration1"], args["concentration0"]
    return n * a * b * (a + b + n) / ((a + b) ** 2 * (a + b + 1))


register_family(
    Family(
        name="BetaBinomial",
        args=("concentration1", "concentration0", "total_count"),
        kind="discrete",
        log_prob=_beta_binomial_log_prob,
        support=_count_support,
        mean=_beta_binomial_mean,
        variance=_beta_binomial_variance,
        bulk=lambda args, tail, xp: _count_support(args, xp),
        sample=lambda args, rng, shape: (
            rng.binomial(
                np.asarray(args["total_count"], int),
                rng.beta(args["concentration1"], args["concentration0"], shape),
                shape,
            )
            * 1.0
        ),
    )
)


# Poisson, NegativeBinomial, Geometric -------------------------------------------------------------


def _poisson_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    rate = args["rate"]
    return _lattice_log_prob(
        lambda k: x_log_p(k, rate, xp) - rate - xp.gammaln(k + 1), y, 0, xp.inf, xp
    )


def _poisson_tail(name: str, before: float) -> Any:
    def tail(args: Args, y: Array, xp: Namespace) -> Any:
        k, started = _whole(y, xp)
        return xp.where(
            started, getattr(xp, name)(k + 1 + 0.0 * args["rate"], args["rate"] + 0.0 * k), before
        )

    return tail


register_family(
    Family(
        name="Poisson",
        args=("rate",),
        kind="discrete",
        log_prob=_poisson_log_prob,
        support=_to_infinity,
        mean=lambda args, xp: args["rate"],
        variance=lambda args, xp: args["rate"],
        cdf=_poisson_tail("gammaincc", 0.0),
        sf=_poisson_tail("gammainc", 1.0),
        bulk=lambda args, tail, xp: _bernstein(args["rate"], args["rate"], 0.0, xp.inf, tail, xp),
        sample=lambda args, rng, shape: rng.poisson(args["rate"], shape).astype(float),
    )
)


def _negative_binomial_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    r, p = args["total_count"], args["probs"]

    def formula(k: Array) -> Any:
        choose = xp.gammaln(k + r) - xp.gammaln(k + 1) - xp.gammaln(r)
        return choose + x_log_p(k, p, xp) + x_log_1mp(r, p, xp)

    return _lattice_log_prob(formula, y, 0, xp.inf, xp)


def _negative_binomial_cdf(args: Args, y: Array, xp: Namespace) -> Any:
    k, started = _whole(y, xp)
    return xp.where(started, xp.betainc(args["total_count"], k + 1, 1 - args["probs"]), 0.0)


def _negative_binomial_sf(args: Args, y: Array, xp: Namespace) -> Any:
    k, started = _whole(y, xp)
    return xp.where(started, xp.betainc(k + 1, args["total_count"], args["probs"]), 1.0)


def _negative_binomial_bulk(args: Args, tail: float, xp: Namespace) -> Any:
    """A Poisson whose rate is Gamma(r, (1 - p)/p): the bound of one inside the bound of the
    other.
    """
    r, p = args["total_count"], args["probs"]
    t = math.log(4 / tail)
    rate = (r + xp.sqrt(2 * r * t) + t) * p / (1 - p)
    _, high = _bernstein(rate, rate, 0.0, xp.inf, tail / 2, xp)
    rate_low = xp.maximum(r - xp.sqrt(2 * r * t), 0.0) * p / (1 - p)
    low, _ = _bernstein(rate_low, rate_low, 0.0, xp.inf, tail / 2, xp)
    return low, high


register_family(
    Family(
        name="NegativeBinomial",
        args=("total_count", "probs"),
        kind="discrete",
        log_prob=_negative_binomial_log_prob,
        support=_to_infinity,
        mean=lambda args, xp: args["total_count"] * args["probs"] / (1 - args["probs"]),
        variance=lambda args, xp: args["total_count"] * args["probs"] / (1 - args["probs"]) ** 2,
        cdf=_negative_binomial_cdf,
        sf=_negative_binomial_sf,
        bulk=_negative_binomial_bulk,
        sample=lambda args, rng, shape: (
            rng.negative_binomial(args["total_count"], 1 - args["probs"], shape) * 1.0
        ),
    )
)


def _geometric_tail(args: Args, y: Array, xp: Namespace) -> Any:
    """log P(Y > k) = (k + 1) log(1 - p)."""
    k, _ = _whole(y, xp)
    return x_log_1mp(k + 1, args["probs"], xp)


register_family(
    Family(
        name="Geometric",
        args=("probs",),
        kind="discrete",
        log_prob=lambda args, y, xp: _lattice_log_prob(
            lambda k: safe_log(args["probs"], xp) + x_log_1mp(k, args["probs"], xp),
            y,
            0,
            xp.inf,
            xp,
        ),
        support=_to_infinity,
        mean=lambda args, xp: (1 - args["probs"]) / args["probs"],
        variance=lambda args, xp: (1 - args["probs"]) / args["probs"] ** 2,
        cdf=lambda args, y, xp: xp.where(y >= 0, -xp.expm1(_geometric_tail(args, y, xp)), 0.0),
        sf=lambda args, y, xp: xp.where(y >= 0, xp.exp(_geometric_tail(args, y, xp)), 1.0),
        bulk=lambda args, tail, xp: (
            0.0 * args["probs"],
            xp.stop_gradient(
                xp.ceil(math.log(tail) / xp.log1p(-xp.minimum(args["probs"], 1 - 1e-12)))
            ),
        ),
        sample=lambda args, rng, shape: rng.geometric(args["probs"], shape) - 1.0,
    )
)
