"""Divergences without a closed form: sums over atoms and integers, quadrature on the line.

Both work on a flat batch (B,) with the points' axes in front of it, and never subtract two
densities: with M = max(log p, log q) and d = |log p − log q|, the three integrands are

    ½(√p − √q)² = ½ e^M expm1(−d/2)²,
        ½|p − q| = ½ e^M (−expm1(−d)),    (p − q)² = e^{2M} expm1(−d)²,

so that small divergences keep their relative accuracy.

Panels of the quadrature end at quantiles of every leaf (which resolves each one's scale, singular
end and heavy tail), at kinks, at the ends of supports and, for total variation, where the densities
cross. All panels are halved until two results agree.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.divergences.exact import bisect, has_l2_parts, l2_parts
from gedppl.divergences.leaves import NUMPY, Leaf, leaves, log_sum, spread
from gedppl.errors import FamilyError
from gedppl.numerics.integrate import gauss_legendre

_LEVELS = (1e-3, 1e-2, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
_TAILS = (1e-2, 1e-5, 1e-8, 1e-12, 1e-18)
_BESIDE = 1e-6  # share of the narrowest bulk
_CUT = 1e-18  # mass left out of a sum or an integral, per leaf
_MOST_CROSSINGS = 64
_MOST_HALVINGS = 6
_BLOCK = 1 << 19  # numbers held at once


def integrand(
    kind: str, log_p: np.ndarray, log_q: np.ndarray, log_measure: Any = 0.0
) -> np.ndarray:
    """What is summed over atoms or integrated over the line for this divergence, times the measure.

    The measure joins in the exponent: next to a singular end the density alone may overflow.
    """
    top = np.maximum(log_p, log_q)
    same = log_p == log_q  # no mass in either, too
    top = np.where(same, 0.0, top)
    # −inf where only one of them has mass
    gap = np.where(same, 0.0, np.minimum(log_p, log_q) - top)
    if kind == "hellinger2":
        answer: np.ndarray = np.exp(top + log_measure) * np.expm1(gap / 2) ** 2 / 2
        return answer
    if kind == "total_variation":
        out: np.ndarray = -np.exp(top + log_measure) * np.expm1(gap) / 2
        return out
    found: np.ndarray = np.exp(2 * top + log_measure) * np.expm1(gap) ** 2
    return found


def numerically(kind: str, p: Density, q: Density, *, order: int, tol: float) -> np.ndarray:
    """Quadrature and sums over the whole batch, in chunks."""
    if kind == "hellinger2" and p.family == q.family == "Independent":
        base = numerically(kind, p.args["base"], q.args["base"], order=order, tol=tol)
        axes = tuple(range(-p.args["event_ndim"], 0))
        with np.errstate(divide="ignore"):
            found: np.ndarray = -np.expm1(np.log1p(-np.minimum(base, 1.0)).sum(axis=axes))
            return found
    shape = np.broadcast_shapes(p.batch_shape, q.batch_shape)
    # so many pairs at once that the panels of all their leaves can be held
    step = max(1, _BLOCK // ((len(leaves(p)) + len(leaves(q))) * 120 * order))
    parts = [slice(start, start + step) for start in range(0, math.prod(shape), step)]
    flat = [
        quadrature(kind, spread(p, shape, part), spread(q, shape, part), order, tol)
        for part in parts
    ]
    return np.concatenate([np.zeros(0), *flat]).reshape(shape)


def quadrature(kind: str, p: Density, q: Density, order: int, tol: float) -> np.ndarray:
    """The divergence of two flat batches (B,) of one-dimensional densities, by sums over atoms
    and integrals.
    """
    if not integrable(p, q):
        raise FamilyError(
            f"quadrature is for one-dimensional families whose bulk is known, got {p.family} and "
            f"{q.family}; "
            'use method="monte_carlo"'
        )
    parts_p, parts_q = leaves(p), leaves(q)
    (batch,) = np.broadcast_shapes((1,), p.batch_shape, q.batch_shape)
    total = np.zeros(batch)
    atoms = [[leaf for leaf in parts if leaf.atomic] for parts in (parts_p, parts_q)]
    lines = [[leaf for leaf in parts if not leaf.atomic] for parts in (parts_p, parts_q)]
    with np.errstate(all="ignore"):
        if atoms[0] or atoms[1]:
            total = total + _sum(kind, atoms[0], atoms[1], batch)
        if lines[0] or lines[1]:
            endless = np.zeros(batch, bool)
            if kind == "l2_squared":
                for leaf in lines[0] + lines[1]:
                    endless |= _not_square_integrable(leaf)
            line = _integral(kind, lines[0], lines[1], endless, order, tol)
            total = total + np.where(endless & (line != 0), np.inf, line)
    return total


def integrable(*densities: Density) -> bool:
    """Whether all are one-dimensional, of families whose bulk is known."""
    return all(
        leaf.density.event_shape == ()
        and leaf.density.family != "External"
        and leaf.density.spec.bulk is not None
        for density in densities
        for leaf in leaves(density)
    )


def _not_square_integrable(leaf: Leaf) -> np.ndarray:
    if not has_l2_parts(leaf.density.family):
        return np.zeros(1, bool)
    log_norm2, _, _ = l2_parts(leaf.density.family, NUMPY, leaf.density.args, leaf.density.args)
    found: np.ndarray = np.isposinf(log_norm2) & np.isfinite(leaf.log_weight)
    return found


# atoms and integers -------------------------------------------------------------------------------


def _sum(kind: str, p: list[Leaf], q: list[Leaf], batch: int) -> np.ndarray:
    """Over the bulk of every discrete leaf and the place of every Delta, each point once."""
    total = np.zeros(batch)
    seen: list[tuple[np.ndarray, np.ndarray]] = []  # windows of integers already summed
    for leaf in p + q:
        if leaf.density.family == "Delta":
            continue
        low, high = (np.broadcast_to(end, (batch,)) for end in leaf.density.bulk(_CUT))
        low, high = np.floor(low), np.ceil(high)
        width = int(np.max(high - low)) + 1
        step = max(_BLOCK // max(batch, 1) // 8, 16)
        for start in range(0, width, step):
            k = low + np.arange(start, min(start + step, width))[:, None]
            fresh = k <= high
            for other_low, other_high in seen:
                fresh &= (k < other_low) | (k > other_high)
            terms = integrand(kind, log_sum(p, k), log_sum(q, k))
            total = total + np.where(fresh, terms, 0.0).sum(axis=0)
        seen.append((low, high))
    places: list[np.ndarray] = []
    for leaf in p + q:
        if leaf.density.family != "Delta":
            continue
        v = np.broadcast_to(leaf.density.args["v"], (batch,))
        fresh = np.ones(batch, bool)
        for other_low, other_high in seen:
            fresh &= (v != np.floor(v)) | (v < other_low) | (v > other_high)
        for other in places:
            fresh &= v != other
        total = total + np.where(fresh, integrand(kind, log_sum(p, v), log_sum(q, v)), 0.0)
        places.append(v)
    return total


# the line -----------------------------------------------------------------------------------------


def _integral(
    kind: str, p: list[Leaf], q: list[Leaf], endless: np.ndarray, order: int, tol: float
) -> np.ndarray:
    """Over the line, (B,); where `endless`, only whether it is 0 matters."""
    if all(leaf.density.family == "Beta" for leaf in p + q):
        # floating point resolves the neighbourhood of 0 but not that of 1: take the upper half from
        # the mirror image
        halves = ((p, q), ([_mirror(leaf) for leaf in p], [_mirror(leaf) for leaf in q]))
        return sum(
            (_converged(kind, a, b, endless, order, tol, 0.5) for a, b in halves),
            np.zeros(len(endless)),
        )
    return _converged(kind, p, q, endless, order, tol, np.inf)


def _mirror(leaf: Leaf) -> Leaf:
    args = leaf.density.args
    swapped = {"concentration1": args["concentration0"], "concentration0": args["concentration1"]}
    return Leaf(leaf.log_weight, Density("Beta", swapped))


def _converged(
    kind: str,
    p: list[Leaf],
    q: list[Leaf],
    endless: np.ndarray,
    order: int,
    tol: float,
    limit: float,
) -> np.ndarray:
    batch = len(endless)
    points, anchor = _points(p + q, batch, limit)
    if kind == "total_variation":
        points = _with_crossings(points, anchor, p, q, order)
    value = _integrate(kind, points, anchor, p, q, order)
    gap = np.zeros(batch)
    for _ in range(_MOST_HALVINGS):
        points = _halved(points, anchor)
        finer = _integrate(kind, points, anchor, p, q, order)
        gap = np.where(endless, 0.0, np.abs(finer - value) - tol * np.abs(finer))
        value = finer
        if np.all(gap <= 1e-300):
            return value
    worst = int(np.argmax(gap))
    warnings.warn(
        f"quadrature of {kind} did not settle to a relative {tol:g}: it still changed by "
        f"{gap[worst]:.1e} at "
        f"{value[worst]:.6g} ({(p + q)[0].density.family}); raise `order` or use monte_carlo",
        RuntimeWarning,
        stacklevel=2,
    )
    return value


def _points(parts: Sequence[Leaf], batch: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Panel ends (P, B), ascending, and the point (B,) from which distances are measured in
    logarithms.
    """
    found: list[Any] = []
    for leaf in parts:
        density = leaf.density
        if density.spec.icdf is not None:
            found += [
                density.spec.icdf(density.args, np.float64(level), NUMPY) for level in _LEVELS
            ]
        found += [end for tail in _TAILS for end in density.bulk(tail)]
        found += [*density.breakpoints, *density.support]
    points = np.stack([np.broadcast_to(point, (batch,)) for point in found])
    start, end = (
        np.stack([np.broadcast_to(leaf.density.support[i], (batch,)) for leaf in parts])
        for i in (0, 1)
    )
    start, end = start.min(axis=0), np.minimum(end.max(axis=0), limit)
    finite = np.isfinite(points)
    centre = np.sort(np.where(finite, points, np.nan), axis=0)[
        finite.sum(axis=0) // 2, np.arange(batch)
    ]
    anchor = np.where(np.isfinite(start), start, centre)
    points = np.clip(np.where(finite, points, anchor), start, end)
    # On a whole line nothing is singular at the anchor, and a panel that begins 1e-200 beside it
    # would run through 200 decades in which there is nothing to see.
    bulks = [leaf.density.bulk(max(_TAILS)) for leaf in parts]
    width = np.min([np.broadcast_to(high - low, (batch,)) for low, high in bulks], axis=0)
    beside = ~np.isfinite(start) & (np.abs(points - anchor) < _BESIDE * width)
    points = np.where(beside, anchor, points)
    nearest = np.where(points > anchor, points, np.inf).min(axis=0)
    reach = np.where(np.isfinite(start) & np.isfinite(nearest), nearest - anchor, 0.0)
    rise = log_sum(parts, anchor + 1e-20 * reach) - log_sum(parts, anchor + reach)
    if np.any(rise > 1):
        # singular at the start of the support, and for L2 p² more so than p: go down to where
        # floating point ends
        ladder = [anchor + reach * 10.0 ** (-20 * k) for k in range(1, 16)]
        points = np.concatenate([points, np.stack(ladder)])
    return np.sort(points, axis=0), anchor


def _nodes(points: np.ndarray, anchor: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points at the fractions x of every panel, (len(x), P − 1, B), and dy/dx there.

    Panels on which the distance from the anchor more than doubles run in the logarithm of that
    distance.
    """
    fraction = x.reshape(-1, 1, 1)
    a, b = points[:-1] - anchor, points[1:] - anchor
    inner, outer = np.minimum(np.abs(a), np.abs(b)), np.maximum(np.abs(a), np.abs(b))
    graded = (a * b > 0) & (outer > 2 * inner)
    span = np.where(
        graded,
        np.log(np.abs(np.where(graded, b, 1.0))) - np.log(np.abs(np.where(graded, a, 1.0))),
        0.0,
    )
    away = np.where(graded, a, 1.0) * np.exp(fraction * span)
    y = np.where(graded, anchor + away, points[:-1] + (points[1:] - points[:-1]) * fraction)
    return y, np.where(graded, np.abs(away * span), points[1:] - points[:-1])


def _halved(points: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    middle, _ = _nodes(points, anchor, np.array([0.5]))
    return np.sort(np.concatenate([points, middle[0]]), axis=0)


def _integrate(
    kind: str, points: np.ndarray, anchor: np.ndarray, p: list[Leaf], q: list[Leaf], order: int
) -> np.ndarray:
    x, weights = gauss_legendre(order)
    y, slope = _nodes(points, anchor, x)
    terms = integrand(kind, log_sum(p, y), log_sum(q, y), np.log(slope))
    # next to a singular end nodes may round to the end itself, where the density is infinite
    found: np.ndarray = np.einsum(
        "k,kpb->b", weights, np.where((slope > 0) & (y != anchor), terms, 0.0)
    )
    return found


def _with_crossings(
    points: np.ndarray, anchor: np.ndarray, p: list[Leaf], q: list[Leaf], order: int
) -> np.ndarray:
    """The points and, among them, where log p − log q changes sign: |p − q| has a kink there."""
    nodes, _ = _nodes(points, anchor, gauss_legendre(order)[0])
    y = np.sort(np.concatenate([nodes.reshape(-1, points.shape[1]), points]), axis=0)

    def log_ratio(at: np.ndarray) -> np.ndarray:
        log_p, log_q = log_sum(p, at), log_sum(q, at)
        return np.where(log_p == log_q, 0.0, log_p - log_q)

    ratio = log_ratio(y)
    sign = np.sign(ratio)
    changes = sign[:-1] * sign[1:] < 0
    most = min(int(changes.sum(axis=0).max()), _MOST_CROSSINGS)
    if most == 0:
        return points
    # rounding may make two nearly equal tails cross very often: the steepest crossings are the real
    # ones
    steepness = np.where(changes, np.abs(np.diff(np.clip(ratio, -1e9, 1e9), axis=0)), -1.0)
    pick = np.argsort(-steepness, axis=0)[:most]
    roots = bisect(
        log_ratio, np.take_along_axis(y[:-1], pick, axis=0), np.take_along_axis(y[1:], pick, axis=0)
    )
    return np.sort(
        np.concatenate([points, np.where(np.isfinite(roots), roots, points[:1])]), axis=0
    )
