"""Expectations, event probabilities and expected excesses of a density.

Mixtures and zero inflation are taken apart first (all of these are linear in the density); then a
closed form by family, or panels (continuous), a sum (discrete), or draws from fixed uniforms
(vectors, unknown distributions). Written against the array namespace: everything traces, and has
the right first derivative in the density's arguments.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.families.composite import mixture_parts
from gedppl.numerics.arrays import library, namespace_of, to_numpy
from gedppl.numerics.integrate import lattice, nodes
from gedppl.numerics.quantiles import external_draws, quantile

__all__ = ["at_outcomes", "excess", "expectation", "probability_between", "quantile"]

Array = Any
DRAWS = 4096  # fixed base draws for vectors and unknown distributions


def parts(density: Density) -> list[tuple[Array, Density]] | None:
    """(weight, density) of a mixture or a zero-inflated density; None for everything else."""
    args = density.arrays
    if density.family == "Mixture":
        return mixture_parts(args)
    if density.family == "ZeroInflated":
        gate = args["gate"]
        return [(gate, Density("Delta", {"v": 0.0 * gate})), (1 - gate, args["base"])]
    return None


def at_outcomes(fn: Callable[..., Any], y: Array, x: Any, a: Any) -> Any:
    """A user's fn(y, x, a), whichever library it was written for: NumPy arrays go in as torch
    tensors where it fails on them or answers with a tensor, and come out as NumPy arrays.

    >>> at_outcomes(lambda y, x, a: y * x[:, 0], np.ones((2, 1)), np.full((1, 1), 3.0), None)
    array([[3.],
           [3.]])
    """
    given = (y, x, a)
    if "torch" not in sys.modules or {library(part) for part in given} - {"numpy", None}:
        return fn(*given)
    with contextlib.suppress(AttributeError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy, where arrays meet tensors
        found = fn(*given)
        if library(found) != "torch":
            return found
    as_tensor = namespace_of("torch").asarray
    return to_numpy(fn(*(None if part is None else as_tensor(part) for part in given)))


def expectation(
    density: Density, fn: Callable[[Array], Array], points: Sequence[Array] = ()
) -> Array:
    """E fn(Y), of the batch shape. fn maps outcomes (Q, *batch, *event) to values (Q, *batch);
    it kinks at ``points``.
    """
    xp = density.xp
    pieces = parts(density)
    if pieces is not None:
        return sum(weight * expectation(piece, fn, points) for weight, piece in pieces)
    if density.family == "Independent" and not density.args["event_ndim"]:
        return expectation(density.args["base"], fn, points)
    if density.family == "Delta":
        return fn(xp.expand_dims(density.arrays["v"], 0))[0]
    if density.kind == "discrete":
        k, mass = lattice(density)
        # a term without mass must not spoil the sum when fn is infinite or undefined there
        return xp.sum(xp.where(mass == 0, 0.0, mass * fn(k)), axis=0)
    if density.kind == "continuous":
        y, weight = nodes(density, points)
        return xp.sum(weight * xp.exp(density.log_prob(y)) * fn(y), axis=0)
    y, weight = draws(density)
    return xp.mean(weight * fn(y), axis=0)


def probability_between(density: Density, above: Array | None, below: Array | None) -> Array:
    """P(above < Y < below), both strict; None leaves that side open."""
    xp = density.xp
    pieces = parts(density)
    if pieces is not None:
        return sum(weight * probability_between(piece, above, below) for weight, piece in pieces)
    if density.kind in ("vector", "external"):

        def inside(y: Array) -> Array:
            low = True if above is None else y > above
            high = True if below is None else y < below
            return xp.where(xp.asarray(low & high), 1.0, 0.0)

        return expectation(density, inside)
    if density.family == "Delta":
        v = density.arrays["v"]
        low = xp.zeros_like(v) == 0 if above is None else v > above
        return xp.where(low if below is None else low & (v < below), 1.0, 0.0)
    # integers: Y < t is Y <= ceil(t) - 1
    limit = (
        xp.ceil(xp.asfloat(below)) - 1
        if below is not None and density.kind == "discrete"
        else below
    )
    if above is None:
        return density.cdf(limit)
    if below is None:
        return density.sf(above)
    # each side of the centre by the tail that is small there
    centre = xp.stop_gradient(xp.where(xp.isfinite(density.mean), density.mean, 0.0))
    by_upper = density.sf(above) - density.sf(limit)
    by_lower = density.cdf(limit) - density.cdf(above)
    return xp.maximum(xp.where(above > centre, by_upper, by_lower), 0.0)


INTEGRATED = (
    "the expectation of a function of an outcome that cannot be counted is integrated numerically, "
    "and between the nodes the function may be anything: not a certificate"
)
OWN_WORD = ("mean", "variance", "second_moment")


def is_integrated(name: str, by_function: bool, density: Density) -> bool:
    """Whether a functional's value rests on nodes or draws, between which there may be anything.

    That of a user's function does where outcomes are not counted, and of a distribution that only
    its PPL knows, whatever is not read off it.
    """
    pieces = parts(density)
    if pieces is not None:
        return any(is_integrated(name, by_function, part) for _, part in pieces)
    if density.family == "External":
        return by_function or name not in OWN_WORD
    return by_function and density.kind != "discrete" and density.family != "Delta"


# expected excess E (Y - q)+, from which the conditional value at risk follows ---------------------


def _gamma_excess(args: Any, q: Array, xp: Any) -> Array:
    k, rate = args["concentration"], args["rate"]
    z = rate * xp.maximum(q, 0.0)
    return k / rate * xp.gammaincc(k + 1, z) - q * xp.gammaincc(k, z)


def _inverse_gamma_excess(args: Any, q: Array, xp: Any) -> Array:
    k, rate = args["concentration"], args["rate"]
    exists = k > 1
    safe = xp.where(exists, k, 2.0)
    z = rate / xp.maximum(q, 1e-300)
    return xp.where(
        exists, rate / (safe - 1) * xp.gammainc(safe - 1, z) - q * xp.gammainc(safe, z), xp.inf
    )


def _beta_excess(args: Any, q: Array, xp: Any) -> Array:
    a, b = args["concentration1"], args["concentration0"]
    u = 1 - xp.clip(q, 0.0, 1.0)
    return a / (a + b) * xp.betainc(b, a + 1, u) - q * xp.betainc(b, a, u)


def _poisson_excess(args: Any, q: Array, xp: Any) -> Array:
    """For whole q >= 0: rate P(Y >= q) - q P(Y > q), where P(Y >= q) is 1 at q = 0."""
    rate = args["rate"]
    reach = xp.where(q >= 1, xp.gammainc(xp.maximum(q, 1.0) + 0.0 * rate, rate + 0.0 * q), 1.0)
    return rate * reach - q * xp.gammainc(q + 1 + 0.0 * rate, rate + 0.0 * q)


def _negative_binomial_excess(args: Any, q: Array, xp: Any) -> Array:
    """For whole q >= 0: E Y 1{Y > q} = mean P(Y' >= q), Y' with one more success."""
    r, p = args["total_count"], args["probs"]
    reach = xp.where(q >= 1, xp.betainc(xp.maximum(q, 1.0), r + 1, p), 1.0)
    return r * p / (1 - p) * reach - q * xp.betainc(q + 1, r, p)


EXCESS: dict[str, Callable[..., Array]] = {
    "Gamma": _gamma_excess,
    "InverseGamma": _inverse_gamma_excess,
    "Beta": _beta_excess,
    "Poisson": _poisson_excess,
    "NegativeBinomial": _negative_binomial_excess,
}


def excess(density: Density, q: Array) -> Array:
    """E (Y - q)+ for q that is a quantile of the density."""
    xp = density.xp
    pieces = parts(density)
    if pieces is not None:
        return sum(weight * _free_excess(piece, q) for weight, piece in pieces)
    if density.family in EXCESS:
        return EXCESS[density.family](density.arrays, q, xp)
    return _free_excess(density, q)


def _free_excess(density: Density, q: Array) -> Array:
    xp = density.xp
    return expectation(density, lambda y: xp.maximum(y - q, 0.0), points=(q,))


# draws --------------------------------------------------------------------------------------------


@cache
def _uniforms(width: int) -> np.ndarray:
    """(DRAWS, width) scrambled Sobol points, the same in every call."""
    from scipy.stats import qmc

    found: np.ndarray = np.clip(qmc.Sobol(width, seed=20240229).random(DRAWS), 1e-12, 1 - 1e-12)
    return found


def draws(density: Density) -> tuple[Array, Array]:
    """Outcomes (S, *batch, *event) from fixed base draws, and weights (S, *batch).

    Where outcomes are smooth functions of the uniforms, derivatives pass through them. Else the
    outcomes are held fixed and the weight p / stop(p), whose value is 1, carries the derivative of
    the density.
    """
    xp = density.xp
    if density.family == "External":
        return _weighted(density, external_draws(density, DRAWS, seed=0))
    event = density.event_shape
    u = _uniforms(int(np.prod(event))).reshape((DRAWS,) + (1,) * len(density.batch_shape) + event)
    smooth = density.family != "Independent" or density.args["base"].kind == "continuous"
    source = density if smooth else density.map_args(xp.stop_gradient)
    y = source.spec.draw(source.arrays, xp.asfloat(u), xp)  # type: ignore[misc]
    if smooth:
        return y, xp.ones((1,) * (1 + len(density.batch_shape)))
    return _weighted(density, y)


def _weighted(density: Density, y: Array) -> tuple[Array, Array]:
    xp = density.xp
    y = xp.stop_gradient(y)
    log_p = density.log_prob(y)
    return y, xp.exp(log_p - xp.stop_gradient(log_p))
