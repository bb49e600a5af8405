"""Vectors, atoms and families built from others: MultivariateNormal, Dirichlet, Delta, Independent,
Mixture, ...

    MultivariateNormal  exp(-|L^-1 (y - loc)|^2 / 2) / ((2 pi)^(e/2) det L), L = scale_tril, y (e,)
    Dirichlet           Gamma(sum c) / prod Gamma(c_i) prod y_i^(c_i - 1), y on the simplex
    Delta               all mass at one value
    Independent         the product of a base's densities over its last `event_ndim` axes
    Mixture             sum_k probs[k] p_k(y)
    ZeroInflated        gate [y = 0] + (1 - gate) p(y): an atom beside what the base says
    External            a distribution of a package that is none of these, through its own methods

An argument that is a density (or a tuple of densities) is used through its methods alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gedppl.errors import FamilyError
from gedppl.families.family import Args, Family, get_family, register_family, safe_log
from gedppl.numerics.arrays import Array, ArrayOf, Namespace
from gedppl.numerics.quantiles import check_own

_LOG_2PI = math.log(2 * math.pi)


# vectors ------------------------------------------------------------------------------------------


def _mvn_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    lower = args["scale_tril"]
    z = xp.solve_triangular(lower, xp.expand_dims(y - args["loc"], -1))[..., 0]
    log_det = xp.sum(xp.log(xp.diagonal(lower)), axis=-1)
    return -0.5 * xp.sum(z**2, axis=-1) - log_det - 0.5 * lower.shape[-1] * _LOG_2PI


def _mvn_draw(args: Args, u: Array, xp: Namespace) -> Any:
    return args["loc"] + xp.matmul(args["scale_tril"], xp.expand_dims(xp.ndtri(u), -1))[..., 0]


def _mvn_sample(args: Args, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    noise = rng.standard_normal((*shape, args["loc"].shape[-1], 1))
    return args["loc"] + (args["scale_tril"] @ noise)[..., 0]


register_family(
    Family(
        name="MultivariateNormal",
        args=("loc", "scale_tril"),
        kind="vector",
        log_prob=_mvn_log_prob,
        mean=lambda args, xp: args["loc"],
        variance=lambda args, xp: xp.sum(args["scale_tril"] ** 2, axis=-1),
        draw=_mvn_draw,
        sample=_mvn_sample,
        arg_ndim={"loc": 1, "scale_tril": 2},
        event_ndim=1,
    )
)


def _dirichlet_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    c = args["concentration"]
    inside = xp.all(y > 0, axis=-1) & (xp.abs(xp.sum(y, axis=-1) - 1) < 1e-6)
    safe = xp.where(xp.expand_dims(inside, -1), y, 0.5)
    constant = xp.gammaln(xp.sum(c, axis=-1)) - xp.sum(xp.gammaln(c), axis=-1)
    return xp.where(inside, constant + xp.sum((c - 1) * xp.log(safe), axis=-1), -xp.inf)


def _dirichlet_variance(args: Args, xp: Namespace) -> Any:
    c = args["concentration"]
    total = xp.sum(c, axis=-1, keepdims=True)
    m = c / total
    return m * (1 - m) / (total + 1)


def _dirichlet_draw(args: Args, u: Array, xp: Namespace) -> Any:
    c = args["concentration"]
    g = get_family("Gamma").icdf({"concentration": c, "rate": 1.0 + 0.0 * c}, u, xp)  # type: ignore[misc]
    return g / xp.sum(g, axis=-1, keepdims=True)


def _dirichlet_sample(args: Args, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    g = rng.standard_gamma(
        np.broadcast_to(args["concentration"], (*shape, args["concentration"].shape[-1]))
    )
    return g / g.sum(-1, keepdims=True)


register_family(
    Family(
        name="Dirichlet",
        args=("concentration",),
        kind="vector",
        log_prob=_dirichlet_log_prob,
        mean=lambda args, xp: (
            args["concentration"] / xp.sum(args["concentration"], axis=-1, keepdims=True)
        ),
        variance=_dirichlet_variance,
        draw=_dirichlet_draw,
        sample=_dirichlet_sample,
        arg_ndim={"concentration": 1},
        event_ndim=1,
    )
)


def _last_axes(count: int) -> tuple[int, ...]:
    return tuple(range(-count, 0))


def _independent_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    value = args["base"].log_prob(y)
    return xp.sum(value, axis=_last_axes(args["event_ndim"])) if args["event_ndim"] else value


def _of_base(name: str) -> Any:
    return lambda args, xp: getattr(args["base"], name)


register_family(
    Family(
        name="Independent",
        args=("base", "event_ndim"),
        kind=lambda args: "vector" if args["event_ndim"] else args["base"].kind,
        log_prob=_independent_log_prob,
        mean=_of_base("mean"),
        variance=_of_base("variance"),
        draw=lambda args, u, xp: args["base"].icdf(u),
        sample=lambda args, rng, shape: args["base"].draw_samples(rng, shape),
        static=("event_ndim",),
    )
)


# atoms and mixtures -------------------------------------------------------------------------------

register_family(
    Family(
        name="Delta",
        args=("v",),
        kind="mixed",
        log_prob=lambda args, y, xp: xp.where(y == args["v"], 0.0 * args["v"], -xp.inf),
        support=lambda args, xp: (args["v"], args["v"]),
        mean=lambda args, xp: args["v"],
        variance=lambda args, xp: 0.0 * args["v"],
        cdf=lambda args, y, xp: xp.where(y >= args["v"], 1.0, 0.0),
        sf=lambda args, y, xp: xp.where(y >= args["v"], 0.0, 1.0),
        icdf=lambda args, p, xp: args["v"] + 0.0 * p,
        bulk=lambda args, tail, xp: (args["v"], args["v"]),
        sample=lambda args, rng, shape: np.broadcast_to(args["v"], shape).astype(float),
    )
)


def mixture_parts(args: Args) -> list[tuple[Any, Any]]:
    """(weight, density) of every component, each with the mixture's batch shape."""
    probs, components = args["probs"], args["components"]
    return [
        (probs[..., c], components[c] if isinstance(components, tuple) else components[..., c])
        for c in range(probs.shape[-1])
    ]


def _weighted(name: str) -> Any:
    """A function linear in the density: the weighted sum over components."""
    return lambda args, y, xp: sum(w * getattr(part, name)(y) for w, part in mixture_parts(args))


def _log_sum(parts: Sequence[Array], xp: Namespace) -> Any:
    """log sum exp over a list; minus infinity with derivative 0 where all terms are."""
    terms = xp.stack(xp.broadcast_arrays(*parts), axis=0)
    top = xp.stop_gradient(xp.max(terms, axis=0))
    top = xp.where(xp.isfinite(top), top, 0.0)
    return top + safe_log(xp.sum(xp.exp(terms - top), axis=0), xp)


def _mixture_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    return _log_sum([safe_log(w, xp) + part.log_prob(y) for w, part in mixture_parts(args)], xp)


def _axes_for(w: ArrayOf, value: ArrayOf, xp: Namespace) -> Any:
    """The weight with the event axes of a vector-valued moment."""
    while w.ndim < value.ndim:
        w = xp.expand_dims(w, -1)
    return w


def _mixture_mean(args: Args, xp: Namespace) -> Any:
    return sum(_axes_for(w, part.mean, xp) * part.mean for w, part in mixture_parts(args))


def _mixture_variance(args: Args, xp: Namespace) -> Any:
    centre = _mixture_mean(args, xp)
    return sum(
        _axes_for(w, centre, xp) * (part.variance + (part.mean - centre) ** 2)
        for w, part in mixture_parts(args)
    )


def _common_kind(args: Args) -> str:
    components = args["components"]
    kinds = {part.kind for part in (components if isinstance(components, tuple) else (components,))}
    return kinds.pop() if len(kinds) == 1 else "vector" if "vector" in kinds else "mixed"


def _hull(intervals: Sequence[tuple[Array, Array]], xp: Namespace) -> Any:
    """The smallest interval around several."""
    lows, highs = zip(*intervals, strict=True)
    low, high = lows[0], highs[0]
    for other_low, other_high in zip(lows[1:], highs[1:], strict=True):
        low, high = xp.minimum(low, other_low), xp.maximum(high, other_high)
    return low, high


def _mixture_breakpoints(args: Args, xp: Namespace) -> Any:
    points: list[Any] = []
    for _, part in mixture_parts(args):
        points += [*part.breakpoints, *part.support]
    return tuple(points)


def _mixture_sample(args: Args, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    pick = np.asarray(get_family("Categorical").sample({"probs": args["probs"]}, rng, shape))  # type: ignore[misc]
    out = None
    for c, (_, part) in enumerate(mixture_parts(args)):
        draws = part.draw_samples(rng, shape)
        chosen = (pick == c).reshape(pick.shape + (1,) * (draws.ndim - pick.ndim))
        out = np.where(chosen, draws, 0.0 if out is None else out)
    return out


register_family(
    Family(
        name="Mixture",
        args=("probs", "components"),
        kind=_common_kind,
        log_prob=_mixture_log_prob,
        support=lambda args, xp: _hull([part.support for _, part in mixture_parts(args)], xp),
        mean=_mixture_mean,
        variance=_mixture_variance,
        cdf=_weighted("cdf"),
        sf=_weighted("sf"),
        bulk=lambda args, tail, xp: _hull([part.bulk(tail) for _, part in mixture_parts(args)], xp),
        breakpoints=_mixture_breakpoints,
        sample=_mixture_sample,
        arg_ndim={"probs": 1},
    )
)


def _inflated_log_prob(args: Args, y: Array, xp: Namespace) -> Any:
    gate, base = args["gate"], args["base"]
    zero = y == 0
    log_base = base.log_prob(y)
    if base.kind == "continuous":  # the atom at 0 has all the mass there
        at_zero = safe_log(gate, xp)
    else:
        at_zero = safe_log(gate + (1 - gate) * xp.exp(xp.where(zero, log_base, 0.0)), xp)
    return xp.where(zero, at_zero, safe_log(1 - gate, xp) + xp.where(zero, 0.0, log_base))


def _inflated_variance(args: Args, xp: Namespace) -> Any:
    gate, base = args["gate"], args["base"]
    return (1 - gate) * (base.variance + gate * base.mean**2)


def _inflated_sample(args: Args, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    zero = rng.uniform(size=shape) < args["gate"]
    return np.where(zero, 0.0, args["base"].draw_samples(rng, shape))


def _with_zero(interval: tuple[ArrayOf, ArrayOf], xp: Namespace) -> Any:
    low, high = interval
    return xp.minimum(low, xp.zeros_like(low)), xp.maximum(high, xp.zeros_like(high))


register_family(
    Family(
        name="ZeroInflated",
        args=("gate", "base"),
        kind=lambda args: "discrete" if args["base"].kind == "discrete" else "mixed",
        log_prob=_inflated_log_prob,
        support=lambda args, xp: _with_zero(args["base"].support, xp),
        mean=lambda args, xp: (1 - args["gate"]) * args["base"].mean,
        variance=_inflated_variance,
        cdf=lambda args, y, xp: (
            args["gate"] * xp.where(y >= 0, 1.0, 0.0) + (1 - args["gate"]) * args["base"].cdf(y)
        ),
        sf=lambda args, y, xp: (
            args["gate"] * xp.where(y >= 0, 0.0, 1.0) + (1 - args["gate"]) * args["base"].sf(y)
        ),
        bulk=lambda args, tail, xp: _with_zero(args["base"].bulk(tail), xp),
        breakpoints=lambda args, xp: (
            0.0 * args["gate"],
            *args["base"].breakpoints,
            *args["base"].support,
        ),
        sample=_inflated_sample,
    )
)


# anything else a PPL offers -----------------------------------------------------------------------


def _external(attribute: str) -> Any:
    def get(args: Args, xp: Namespace) -> Any:
        check_own(args["distribution"], attribute)
        try:
            return getattr(args["distribution"], attribute)
        except NotImplementedError:
            kind = type(args["distribution"]).__name__
            raise FamilyError(
                f"the distribution {kind} does not know its {attribute}; use expected(fn, low, "
                "high), or register the "
                f"family with gedppl.families.register_family(Family(name={kind!r}, ...))"
            ) from None

    return get


register_family(
    Family(
        name="External",
        args=("distribution",),
        kind="external",
        log_prob=lambda args, y, xp: args["distribution"].log_prob(y),
        mean=_external("mean"),
        variance=_external("variance"),
        static=("distribution",),
    )
)
