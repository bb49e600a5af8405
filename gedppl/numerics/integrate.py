"""Gauss–Legendre panels, written against an array namespace so that they trace and differentiate.

Points and nodes have the panel axis first and the batch axes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import FunctionalError
from gedppl.numerics.arrays import concrete, namespace

if TYPE_CHECKING:
    from gedppl.density import Density
    from gedppl.numerics.arrays import Array, ArrayOf, Namespace


@cache
def gauss_legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]; exact for polynomials of degree 2 order - 1."""
    x, w = np.polynomial.legendre.leggauss(order)
    return 0.5 * (x + 1), 0.5 * w


def panels(points: Any, order: int = 16, xp: Namespace | None = None) -> tuple[Any, Any]:
    """Nodes and weights of a Gauss–Legendre rule on every interval between neighbouring points.

    Parameters
    ----------
    points
        (P, ...) ascending along the first axis, or a list of P arrays that broadcast, in any order.
        Equal neighbours make an empty panel, with weight 0.
    order
        Nodes a panel.

    Returns
    -------
    nodes, weights
        (order (P - 1), ...), such that ``sum(weights * f(nodes), axis=0)`` approximates the
        integral.

    >>> nodes, weights = panels([0.0, 0.5, 2.0], order=4)
    >>> round(float((weights * nodes**3).sum()), 12)
    4.0
    """
    if isinstance(points, list | tuple):
        xp = xp or namespace(*points)
        points = xp.sort(
            xp.stack(xp.broadcast_arrays(*(xp.asfloat(point) for point in points)), axis=0), axis=0
        )
    xp = xp or namespace(points)
    x, w = (
        xp.reshape(xp.asfloat(part), (1, order) + (1,) * (points.ndim - 1))
        for part in gauss_legendre(order)
    )
    start = xp.expand_dims(points[:-1], 1)
    length = xp.expand_dims(points[1:] - points[:-1], 1)
    shape = ((points.shape[0] - 1) * order, *points.shape[1:])
    return xp.reshape(start + length * x, shape), xp.reshape(length * w, shape)


# the panels and the integers that carry a density's mass ------------------------------------------

TAIL = 1e-14  # mass that sums may leave out
# and integrals, which reach further at no cost: heavy tails carry much of a moment
FAR_TAIL = 1e-24
# integers summed while tracing, when the arguments' values cannot tell how many are needed
TERMS = 1024
MOST_TERMS = 1_000_000


def nodes(density: Density, points: Sequence[Any] = (), order: int = 16) -> tuple[Any, Any]:
    """Nodes y and weights w (Q, *batch) with ``sum(w * g(y) * p(y), axis=0)`` close to the integral
    of g p dy.

    The panels lie between the ends of the density's bulk, evenly in the family's own coordinate and
    closer round its core, and break at its kinks and at ``points``.
    """
    xp, family, args = density.xp, density.spec, density.arrays
    low, high = density.bulk(FAR_TAIL)
    assert family.core is not None  # every family that is integrated has one
    centre, width = (xp.broadcast_to(part, density.batch_shape) for part in family.core(args, xp))
    to_t, from_t = _chart(family.chart, centre, width, xp)
    t_low, t_high = to_t(low), to_t(high)
    if family.chart == "sinh":
        centre, width = 0.0 * centre, 0.5 + 0.0 * width
    kinks, inner = (
        [to_t(xp.clip(xp.asfloat(point) + 0.0 * low, low, high)) for point in some]
        for some in (density.breakpoints, points)
    )
    if len(kinks) > 4:  # so many are panels already
        edges = xp.stack([t_low, *kinks, t_high])
    else:
        left, right = (xp.clip(centre + sign * 8 * width, t_low, t_high) for sign in (-1.0, 1.0))
        edges = _inserted(_ladder((t_low, left, right, t_high), (6, 16, 6), xp), kinks, xp)
    edges = _inserted(edges, inner, xp)
    t, weights = panels(edges, order, xp)
    y, slope = from_t(t)
    return y, weights * slope


def _ladder(ends: tuple[Any, ...], steps: tuple[int, ...], xp: Namespace) -> Any:
    """Points from the first end to the last, ascending, with so many equal steps between
    neighbouring ends.
    """
    pieces = []
    for start, stop, count in zip(ends[:-1], ends[1:], steps, strict=True):
        fraction = xp.reshape(xp.asfloat(np.arange(count) / count), (count,) + (1,) * start.ndim)
        pieces.append(start + (stop - start) * fraction)
    return xp.concatenate([*pieces, xp.expand_dims(ends[-1], 0)], axis=0)


def _inserted(edges: ArrayOf, points: list[Any], xp: Namespace) -> Any:
    """The ascending edges with the points put in their places: clipping one between each pair of
    neighbours does it.
    """
    for point in points:
        middle = xp.maximum(edges[:-1], xp.minimum(edges[1:], xp.expand_dims(point, 0)))
        edges = xp.concatenate([edges[:1], middle, edges[-1:]], axis=0)
    return edges


def _chart(
    name: str, centre: Array, width: Array, xp: Namespace
) -> tuple[Callable[[Any], Any], Callable[[Any], tuple[Any, Any]]]:
    """The map from outcomes to the coordinate t, and the map back with its slope."""
    if name == "sinh":
        return (
            lambda y: xp.arcsinh((y - centre) / width),
            lambda t: (centre + width * xp.sinh(t), width * xp.cosh(t)),
        )
    if name == "log":
        return xp.log, lambda t: (xp.exp(t), xp.exp(t))
    if name == "logit":
        return xp.logit, lambda t: (xp.expit(t), xp.expit(t) * xp.expit(-t))
    return (lambda y: y), lambda t: (t, 1.0 + 0.0 * t)


def lattice(density: Density) -> tuple[Any, Any]:
    """Integers k (T, *batch) that carry the mass of a discrete density, and their probabilities (T,
    *batch).

    All but `TAIL` of the mass is there. While JAX or ``torch.func`` traces, T must not depend on
    the arguments' values: it is the size of the support where shapes tell it and `TERMS` otherwise,
    and where that is too few the probabilities are NaN rather than wrong.
    """
    xp, family = density.xp, density.spec
    low, high = density.bulk(TAIL)
    if family.terms is not None:
        count = family.terms(density.args)
    else:
        first, last = concrete(low), concrete(high)
        count = TERMS if first is None or last is None else int(np.max(last - first, initial=0)) + 1
        if count > MOST_TERMS:
            raise FunctionalError(
                f"{density.family} spreads over {count} integers, more than the {MOST_TERMS} that "
                "are summed; rescale the "
                "outcome, or use a continuous family"
            )
    k = xp.reshape(xp.asfloat(np.arange(count)), (count,) + (1,) * len(density.batch_shape)) + low
    mass = xp.where(k <= high, xp.exp(density.log_prob(k)), 0.0)
    return k, xp.where(high - low < count, mass, xp.nan)
