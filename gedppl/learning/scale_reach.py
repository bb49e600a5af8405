r"""How far functionals of a Normal or LogNormal can go while location and scale are both unknown:
over convex sets, in closed form.

With m = beta / sigma and s = 1 / sigma the log-likelihood n log s - 1/2 sum (s y_i - phi_i'm)^2 is
jointly concave in (m, s). Of its level set a functional at one row sees the location mu = phi'm / s
and the scale 1 / s alone, and what they reach together is

    {(e, r) : e^2 <= 2 h^2 kappa(r)},
        kappa(r) = n/2 (K + log r^2 - r^2),     mu = centre + unit e / r,   sigma = unit / r,

with h^2 = phi' A^-1 phi, A = sum phi phi', centre = phi' beta_hat, unit^2 = RSS / n and K = log(n /
RSS) - 2 c / n, where c is the threshold without the constants of the density. kappa is concave, so
the region is convex, and so are its level sets by functional:

    mean, quantile, CVaR of a Normal
        (e + k) / r <= v is linear for each v: one peak along r, both ends exact
    P(Y > c)                              linear in (e, r): exact
    P(a < Y < b)
        log-concave in (e, r): upper end exact, lower end on an outer polygon
    second moment of a Normal; mean, CVaR, second moment of a LogNormal: mu + g(sigma) with g convex
    or |(mu, sigma)|^2:
                                          quasi-convex: lower end exact, upper end on an outer
                                          polygon
    variance of a LogNormal
        mu + convex + concave: each part bounded by its tangent in each cell of the polygon

A polygon's cells are split where the bound is largest until nothing is gained: an outer bound at
any time, exact to `TIGHT`.

Axis letters: m rows, N nodes of a polygon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

HALVINGS = 36  # of r: the value at a peak is then off by the square of 1e-11
NODES, SPLITS = 17, 40
# of the functional's spread over the region: at which a polygon is not split any further
TIGHT = 1e-9
OUTWARD = 1e-12  # share by which roots are moved outwards

PARTS = ("centre", "size", "unit", "count", "top", "least", "most")

Shape = Callable[[np.ndarray], np.ndarray]  # of sigma
AtPoint = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (mu, sigma) -> value


@dataclass(frozen=True)
class ScaleReach:
    """What rows leave plausible of (location, scale) at m rows, each array (m,). See the
    module's head for the symbols.
    """

    centre: np.ndarray
    size: np.ndarray  # h; inf where the row's features leave the span of the rows seen
    unit: np.ndarray  # sqrt(RSS / n)
    count: np.ndarray  # n
    top: np.ndarray  # K; the region is empty below 1
    least: np.ndarray  # smallest and largest scale that is allowed besides
    most: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Where anything is bounded, (m,): rows that leave a residual."""
        found: np.ndarray = (
            (self.count > 0) & (self.unit > 0) & (self.top >= 1) & np.isfinite(self.top)
        )
        return found

    def at(self, rows: np.ndarray) -> ScaleReach:
        return ScaleReach(*(getattr(self, name)[rows] for name in PARTS))

    @classmethod
    def joined(cls, parts: Sequence[ScaleReach]) -> ScaleReach:
        """The rows of all parts, one after another."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in PARTS))

    def mirrored(self) -> ScaleReach:
        """The same for -location."""
        return replace(self, centre=-self.centre)

    def kappa(self, r: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.maximum(0.5 * self.count * (self.top + 2 * np.log(r) - r**2), 0.0)
        return found

    def arc(self, r: np.ndarray) -> np.ndarray:
        """The largest e at r."""
        found: np.ndarray = self.size * np.sqrt(2 * self.kappa(r))
        return found

    def location(self, e: np.ndarray, r: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.centre + self.unit * e / r
        return found

    def scale(self, r: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.unit / r
        return found

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and largest r, where kappa is 0."""
        low, high = roots(self.top)
        low, high = np.sqrt(low) * (1 - OUTWARD), np.sqrt(high) * (1 + OUTWARD)
        with np.errstate(divide="ignore", invalid="ignore"):  # a scale of 0 says nothing
            cut = np.minimum(np.maximum(low, self.unit / self.most), high)
            return cut, np.maximum(np.minimum(high, self.unit / self.least), cut)

    @property
    def void(self) -> np.ndarray:
        """Where no scale that the rows leave plausible is allowed, (m,); rows must be `known`."""
        low, high = roots(self.top)
        with np.errstate(divide="ignore", invalid="ignore"):
            few = self.unit / self.most > np.sqrt(high) * (1 + OUTWARD)
            found: np.ndarray = few | (self.unit / self.least < np.sqrt(low) * (1 - OUTWARD))
            return found

    @property
    def cut(self) -> bool:
        return bool(np.any(self.least > 0) or np.any(np.isfinite(self.most)))


def roots(top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both u with u - log u = top >= 1: below and above 1, by Newton's method from where it is
    monotone.

    >>> [round(float(u), 6) for u in roots(np.array(2.0))]
    [0.158594, 3.146193]
    """
    excess = np.maximum(top - 1.0, 0.0)
    step = np.sqrt(2 * excess) + excess
    log_low, high = np.maximum(-top, -step), 1.0 + step
    for _ in range(50):
        fall, rise = np.expm1(log_low), 1.0 - 1.0 / high
        up = np.divide(
            np.exp(log_low) - log_low - top, -fall, out=np.zeros_like(fall), where=fall < 0
        )
        down = np.divide(high - np.log(high) - top, rise, out=np.zeros_like(rise), where=rise > 0)
        log_low, high = log_low + up, high - down
        if np.all(np.abs(up) < 1e-15 * (1 + np.abs(log_low))) and np.all(
            np.abs(down) < 1e-15 * high
        ):
            break
    return np.exp(np.minimum(log_low, 0.0)), np.maximum(high, 1.0)


# one peak along r ---------------------------------------------------------------------------------


def _peak(reach: ScaleReach, rising: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The r at which a function with one peak has it: bisection on the sign of its slope,
    `rising(r)`.
    """
    low, high = reach.ends
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        up = rising(middle) > 0
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    found: np.ndarray = 0.5 * (low + high)
    return found


def largest_shifted(reach: ScaleReach, shape: Shape, slope: Shape) -> np.ndarray:
    """max mu + shape(sigma), shape concave with this slope: one peak along the upper arc."""

    def rising(r: np.ndarray) -> np.ndarray:
        kappa = reach.kappa(r)
        towards = reach.count * (1 - r**2) - 2 * kappa  # r kappa' - 2 kappa
        found: np.ndarray = reach.size * towards - slope(reach.scale(r)) * np.sqrt(2 * kappa)
        return found

    r = _peak(reach, rising)
    return reach.location(reach.arc(r), r) + shape(reach.scale(r))


def largest_score(reach: ScaleReach, limit: np.ndarray) -> np.ndarray:
    """max (mu - limit) / sigma: linear in (e, r)."""
    slope = (reach.centre - limit) / reach.unit

    def rising(r: np.ndarray) -> np.ndarray:
        found: np.ndarray = reach.size * reach.count * (1 / r - r) + slope * np.sqrt(
            2 * reach.kappa(r)
        )
        return found

    r = _peak(reach, rising)
    found: np.ndarray = reach.arc(r) + slope * r
    return found


def _one_peak(reach: ScaleReach, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The largest of a function of r with one peak and perhaps flats: the best of a grid, then
    golden sections beside it.
    """
    low, high = reach.ends
    grid = low + (high - low) * 0.5 * (1 - np.cos(np.pi * np.linspace(0, 1, 65)))[:, None]
    found = value(grid)
    where = np.argmax(found, axis=0)
    columns = np.arange(len(low))
    left, right = grid[np.maximum(where - 1, 0), columns], grid[np.minimum(where + 1, 64), columns]
    best, golden = found[where, columns], 0.5 * (np.sqrt(5.0) - 1)
    inner, outer = right - golden * (right - left), left + golden * (right - left)
    at_inner, at_outer = value(inner), value(outer)
    for _ in range(36):
        best = np.maximum(best, np.maximum(at_inner, at_outer))
        upper = at_outer > at_inner
        left, right = np.where(upper, inner, left), np.where(upper, right, outer)
        inner, outer = right - golden * (right - left), left + golden * (right - left)
        at_inner, at_outer = value(inner), value(outer)
    out: np.ndarray = np.maximum(best, np.maximum(at_inner, at_outer))
    return out


# the outer polygon --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Nodes:
    """Points of the arc, each with its tangent; arrays of one shape."""

    r: np.ndarray
    e: np.ndarray
    slope: np.ndarray  # inf at the ends, where the tangent is upright


def _nodes(reach: ScaleReach, r: np.ndarray, low: np.ndarray, high: np.ndarray) -> _Nodes:
    r = np.clip(r, low, high)
    kappa = reach.kappa(r)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(
            kappa > 0, reach.size * reach.count * (1 / r - r) / np.sqrt(2 * kappa), np.inf
        )
    return _Nodes(r, reach.size * np.sqrt(2 * kappa), slope)


def _corner(left: _Nodes, right: _Nodes) -> tuple[np.ndarray, np.ndarray]:
    """Where the tangents of neighbouring nodes meet, (e, r)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (right.e - left.e + left.slope * left.r - right.slope * right.r) / (
            left.slope - right.slope
        )
        r = np.where(np.isinf(left.slope), left.r, np.where(np.isinf(right.slope), right.r, r))
        r = np.where(np.isfinite(r), np.clip(r, left.r, right.r), left.r)
        from_right = right.e + right.slope * (r - right.r)
        e = np.where(np.isinf(left.slope), from_right, left.e + left.slope * (r - left.r))
    return np.where(np.isfinite(e), e, np.maximum(left.e, right.e)), r


def polygon_largest(
    reach: ScaleReach,
    value: AtPoint,
    in_cell: Callable[[np.ndarray, np.ndarray], AtPoint] | None = None,
) -> np.ndarray:
    """An upper bound of a quasi-convex value(mu, sigma) that grows with mu, over the region: the
    vertices of a polygon around it.

    `in_cell(sigma_low, sigma_high)` gives a quasi-convex function that is nowhere smaller than the
    value for sigma between these, where the value is not quasi-convex itself.
    """
    low, high = reach.ends
    steps = 0.5 * (1 - np.cos(np.pi * np.linspace(0, 1, NODES)))[:, None]
    grid = low + (high - low) * steps

    def bound(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        a, b = _nodes(reach, left, low, high), _nodes(reach, right, low, high)
        e, r = _corner(a, b)
        here = value if in_cell is None else in_cell(reach.scale(b.r), reach.scale(a.r))
        # (e, r) is the corner's; the cell's part of the region lies in the triangle of its nodes
        # and the corner
        points = ((a.e, a.r), (e, r), (b.e, b.r))
        found: np.ndarray = np.maximum.reduce(
            [here(reach.location(e, r), reach.scale(r)) for e, r in points]
        )
        return found

    def attained(r: np.ndarray) -> np.ndarray:
        r = np.clip(r, low, high)
        return value(reach.location(reach.arc(r), r), reach.scale(r))

    with np.errstate(over="ignore", invalid="ignore"):
        seen = attained(grid)
        best = np.max(seen, axis=0)
        spread = best - np.min(seen, axis=0)
        left, right = grid[:-1], grid[1:]
        bounds = bound(left, right)
        columns = np.arange(len(low))
        for _ in range(SPLITS):
            worst = np.argmax(bounds, axis=0)
            most = bounds[worst, columns]
            if np.all((most - best <= TIGHT * spread) | ~np.isfinite(most)):
                break
            a, b = left[worst, columns], right[worst, columns]
            middle = 0.5 * (a + b)
            best = np.maximum(best, attained(middle))
            first, second = bound(a, middle), bound(middle, b)
            bounds[worst, columns] = first
            right = right.copy()
            right[worst, columns] = middle
            left, right = np.vstack([left, middle]), np.vstack([right, b])
            bounds = np.vstack([bounds, second])
        found: np.ndarray = np.max(bounds, axis=0)
        return found


# functionals of a Normal --------------------------------------------------------------------------


def normal_shifted(reach: ScaleReach, k: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of mu + k sigma."""
    upper = largest_shifted(reach, lambda sigma: k * sigma, lambda sigma: np.full_like(sigma, k))
    lower = -largest_shifted(
        reach.mirrored(), lambda sigma: -k * sigma, lambda sigma: np.full_like(sigma, -k)
    )
    return lower, upper


def normal_mean(reach: ScaleReach) -> tuple[np.ndarray, np.ndarray]:
    """Ends of mu: RSS(beta) <= n exp(-1 - 2c/n), in units of RSS n (exp(K - 1) - 1) / n."""
    half = (
        reach.unit * reach.size * np.sqrt(reach.count * np.expm1(np.maximum(reach.top - 1.0, 0.0)))
    )
    if reach.cut:  # the scale at which the mean goes farthest may not be allowed
        lower, upper = normal_shifted(reach, 0.0)
        return np.maximum(reach.centre - half, lower), np.minimum(reach.centre + half, upper)
    return reach.centre - half, reach.centre + half


def normal_variance(reach: ScaleReach) -> tuple[np.ndarray, np.ndarray]:
    low, high = reach.ends
    return reach.scale(high) ** 2, reach.scale(low) ** 2


def normal_chance(
    reach: ScaleReach, above: np.ndarray | None, below: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of P(above < Y < below); an open side is None."""
    if above is None and below is None:
        return np.ones_like(reach.centre), np.ones_like(reach.centre)
    if below is None or above is None:
        sign, limit = (1.0, above) if below is None else (-1.0, below)
        assert limit is not None
        mine = reach if sign > 0 else reach.mirrored()
        return ndtr(-largest_score(mine.mirrored(), -sign * limit)), ndtr(
            largest_score(mine, sign * limit)
        )
    between = 0.5 * (above + below)

    def most(r: np.ndarray) -> np.ndarray:
        """At the e that brings the location nearest to the middle: the peak over e for any
        scale.
        """
        e = np.clip((between - reach.centre) * r / reach.unit, -reach.arc(r), reach.arc(r))
        return _chance(reach.location(e, r), reach.scale(r), above, below)

    least = [
        -polygon_largest(reach, lambda mu, sigma: -_chance(mu, sigma, above, below)),
        -polygon_largest(reach.mirrored(), lambda mu, sigma: -_chance(-mu, sigma, above, below)),
    ]
    return np.clip(np.minimum(*least), 0.0, 1.0), _one_peak(reach, most)


def _chance(mu: np.ndarray, sigma: np.ndarray, above: np.ndarray, below: np.ndarray) -> np.ndarray:
    left, right = (above - mu) / sigma, (below - mu) / sigma
    flip = left > 0  # the tail that is small, so that nothing cancels
    found: np.ndarray = ndtr(np.where(flip, -left, right)) - ndtr(np.where(flip, -right, left))
    return found


def normal_second_moment(reach: ScaleReach) -> tuple[np.ndarray, np.ndarray]:
    def least(r: np.ndarray) -> np.ndarray:
        e = np.clip(-reach.centre * r / reach.unit, -reach.arc(r), reach.arc(r))
        found: np.ndarray = -(reach.location(e, r) ** 2 + reach.scale(r) ** 2)
        return found

    sign = np.where(reach.centre < 0, -1.0, 1.0)
    side = replace(reach, centre=sign * reach.centre)
    return -_one_peak(reach, least), polygon_largest(side, lambda mu, sigma: mu**2 + sigma**2)


# functionals of a LogNormal -----------------------------------------------------------------------


def log_shifted(reach: ScaleReach, shape: Shape, slope: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Ends of mu + shape(sigma) for a convex shape: the lower has one peak, the upper a polygon."""
    lower = -largest_shifted(
        reach.mirrored(), lambda sigma: -shape(sigma), lambda sigma: -slope(sigma)
    )
    return lower, polygon_largest(reach, lambda mu, sigma: mu + shape(sigma))


def log_mean(reach: ScaleReach) -> tuple[np.ndarray, np.ndarray]:
    """Ends of log E Y = mu + sigma^2 / 2."""
    return log_shifted(reach, lambda sigma: 0.5 * sigma**2, lambda sigma: sigma)


def log_second_moment(reach: ScaleReach) -> tuple[np.ndarray, np.ndarray]:
    """Ends of log E Y^2 = 2 (mu + sigma^2)."""
    lower, upper = log_shifted(reach, lambda sigma: sigma**2, lambda sigma: 2 * sigma)
    return 2 * lower, 2 * upper


def log_cvar(reach: ScaleReach, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of log CVaR = mu + sigma^2 / 2 + log Phi(sigma - z) - log(1 - level), convex as (log
    Phi)'' > -1.
    """
    z = float(ndtri(level)) if level > 0 else -np.inf
    tail = float(np.log1p(-level))

    def slope(sigma: np.ndarray) -> np.ndarray:
        u = sigma - z
        found: np.ndarray = sigma + np.exp(-0.5 * u**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(u))
        return found

    lower, upper = log_shifted(reach, lambda sigma: 0.5 * sigma**2 + log_ndtr(sigma - z), slope)
    return lower - tail, upper - tail


def log_variance(reach: ScaleReach) -> tuple[np.ndarray, np.ndarray]:
    """Ends of log Var Y = 2 (mu + sigma^2 + 1/2 log(1 - exp(-sigma^2))): a convex part and a
    concave one.
    """

    def bent(sigma: np.ndarray) -> np.ndarray:
        found: np.ndarray = 0.5 * np.log(-np.expm1(-(sigma**2)))
        return found

    def bent_slope(sigma: np.ndarray) -> np.ndarray:
        found: np.ndarray = sigma / np.expm1(np.minimum(sigma**2, 700.0))
        return found

    def over(first: np.ndarray, last: np.ndarray) -> AtPoint:
        """The concave part replaced by a tangent."""
        at = 0.5 * (first + last)
        return lambda mu, sigma: mu + sigma**2 + bent(at) + bent_slope(at) * (sigma - at)

    def under(first: np.ndarray, last: np.ndarray) -> AtPoint:
        """Of the negative, in terms of -mu: the convex part replaced by a tangent."""
        at = 0.5 * (first + last)
        return lambda mu, sigma: mu - (at**2 + 2 * at * (sigma - at)) - bent(sigma)

    upper = polygon_largest(reach, lambda mu, sigma: mu + sigma**2 + bent(sigma), over)
    lower = -polygon_largest(reach.mirrored(), lambda mu, sigma: mu - sigma**2 - bent(sigma), under)
    return 2 * lower, 2 * upper
