"""A functional of a Normal or LogNormal over what rows leave plausible of location and scale
together.

Axis letters: m rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from gedppl.density import Density
from gedppl.learning import scale_reach as ends_of
from gedppl.learning.reach import is_plain, limits_at
from gedppl.learning.scale_reach import ScaleReach

if TYPE_CHECKING:
    from gedppl.functionals import Functional

GRID = 17  # points a side, of location and of scale, at which a user's own functional is looked at

Ends = tuple[np.ndarray, np.ndarray]


def is_searched(functional: Functional) -> bool:
    """Whether nothing is known of its shape, so that it can only be looked at here and there."""
    return functional.fn is not None or not is_plain(functional)


def ends(
    family: str, functional: Functional, reach: ScaleReach, x: np.ndarray, a: np.ndarray
) -> Ends:
    """Lower and upper (m,) at rows x (m, dx), a (m,); infinite where the rows say nothing."""
    lower, upper = np.full(len(a), -np.inf), np.full(len(a), np.inf)
    if functional.name == "probability" and is_plain(functional):
        lower, upper = np.zeros(len(a)), np.ones(len(a))
    needs_location = functional.name != "variance" or family == "LogNormal"
    void = np.zeros(len(a), bool)
    seen = np.flatnonzero(reach.known)
    void[seen] = reach.at(seen).void
    lower[void], upper[void] = np.inf, -np.inf
    known = np.flatnonzero(~void & reach.known & (np.isfinite(reach.size) | (not needs_location)))
    if len(known):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            low, high = _inner(family, functional, reach.at(known), x[known], a[known])
        lower[known] = np.where(np.isnan(low), lower[known], low)
        upper[known] = np.where(np.isnan(high), upper[known], high)
    return lower, upper


def _inner(
    family: str, functional: Functional, reach: ScaleReach, x: np.ndarray, a: np.ndarray
) -> Ends:
    if is_searched(functional):
        return _searched(family, functional, reach, x, a)
    found = _chances(family, functional, reach, x, a) if functional.name == "probability" else None
    if found is not None:
        return found
    return _of_normal(functional, reach) if family == "Normal" else _of_lognormal(functional, reach)


def _of_normal(functional: Functional, reach: ScaleReach) -> Ends:
    match functional.name:
        case "mean":
            return ends_of.normal_mean(reach)
        case "quantile":
            return ends_of.normal_shifted(reach, float(ndtri(functional.level)))
        case "cvar":
            return ends_of.normal_shifted(reach, _tail_mean(functional.level))
        case "variance":
            return ends_of.normal_variance(reach)
    assert functional.name == "second_moment"
    return ends_of.normal_second_moment(reach)


def _of_lognormal(functional: Functional, reach: ScaleReach) -> Ends:
    match functional.name:
        case "mean":
            low, high = ends_of.log_mean(reach)
        case "quantile":
            low, high = ends_of.normal_shifted(reach, float(ndtri(functional.level)))
        case "cvar":
            low, high = ends_of.log_cvar(reach, float(functional.level))
        case "variance":
            low, high = ends_of.log_variance(reach)
        case _:
            low, high = ends_of.log_second_moment(reach)
    return np.exp(low), np.exp(high)


def _tail_mean(level: float) -> float:
    """CVaR of a standard Normal."""
    z = float(ndtri(level)) if level > 0 else -np.inf
    return float(np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi) / (1 - level))


def _chances(
    family: str, functional: Functional, reach: ScaleReach, x: np.ndarray, a: np.ndarray
) -> Ends:
    """P(above < Y < below), of a LogNormal by its logarithm: a limit at or below 0 is no limit from
    above, and impossible below.
    """
    limits: list[np.ndarray | None] = []
    for given, limit in zip((functional.above, functional.below), limits_at(functional, x, a)):
        limits.append(None if given is None else np.broadcast_to(limit, len(a)).astype(float))
    above, below = limits
    if family == "Normal":
        return ends_of.normal_chance(reach, above, below)
    above = None if above is None else np.log(np.maximum(above, 0.0))
    below = None if below is None else np.log(np.maximum(below, 0.0))
    lower, upper = np.zeros(len(a)), np.zeros(len(a))
    for unlimited in (True, False):  # log 0 = -inf is no limit from above
        open_above = np.ones(len(a), bool) if above is None else np.isneginf(above)
        possible = np.ones(len(a), bool) if below is None else ~np.isneginf(below)
        mine = np.flatnonzero(possible & (open_above == unlimited))
        if len(mine):
            first = None if above is None or unlimited else above[mine]
            lower[mine], upper[mine] = ends_of.normal_chance(
                reach.at(mine), first, None if below is None else below[mine]
            )
    return lower, upper


def _searched(
    family: str, functional: Functional, reach: ScaleReach, x: np.ndarray, a: np.ndarray
) -> Ends:
    """A user's own functional on a grid of locations and scales; between its points it may be
    anything.
    """
    low, high = reach.ends
    # (GRID, m)
    r = low + (high - low) * 0.5 * (1 - np.cos(np.pi * np.linspace(0, 1, GRID)))[:, None]
    e = reach.arc(r) * np.linspace(-1, 1, GRID)[:, None, None]  # (GRID, GRID, m)
    location = reach.location(e, r).reshape(-1, len(a))
    scale = np.broadcast_to(reach.scale(r), e.shape).reshape(-1, len(a))
    try:
        values = np.asarray(
            functional(Density(family, {"loc": location, "scale": scale}), x=x, a=a), float
        )
    except (TypeError, ValueError, AttributeError):  # written for another package's arrays
        return np.full(len(a), np.nan), np.full(len(a), np.nan)
    return values.min(axis=0), values.max(axis=0)


def in_box(
    family: str,
    functional: Functional,
    location: Ends,
    scale: Ends,
    x: np.ndarray,
    a: np.ndarray,
) -> Ends:
    """Ends over location and scale each between its own, all (m,); infinite where nothing follows.

    All these functionals are monotone in the location and in the scale, but for a second moment on
    the real line, which turns where the location is 0.
    """
    open_ends = np.full(len(a), -np.inf), np.full(len(a), np.inf)
    two_sided = functional.above is not None and functional.below is not None
    if is_searched(functional) or two_sided:
        return open_ends
    if functional.name == "mean" and family == "Normal":
        return location
    scales = [np.where(np.isfinite(end) & (end > 0), end, np.nan) for end in scale]
    places = [*location, np.clip(0.0, *location)]
    values = []
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for mu in places:
            for sigma in scales:
                density = Density(family, {"loc": mu, "scale": np.where(sigma > 0, sigma, 1.0)})
                found = np.asarray(functional(density, x=x, a=a), float)
                values.append(np.where(sigma > 0, found, np.nan))
    low, high = np.min(values, axis=0), np.max(values, axis=0)
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
