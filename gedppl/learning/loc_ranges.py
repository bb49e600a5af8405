"""The range of a functional of Normal(loc, scale) while loc runs over an interval and the scale is known."""

from __future__ import annotations

import numpy as np

from gedppl.density import Density
from gedppl.functionals import Functional

SEARCHED = (
    "the functional is not monotone in the Normal's loc: its range was searched on a grid of at least 16 points per "
    "noise scale, so the bound is an approximation"
)
GRID, WIDEST = 16, 64  # points per scale; intervals beyond this many scales get the functional's whole range


def is_plain(functional: Functional) -> bool:
    """Whether the functional is what its name says; a subclass may do anything with it."""
    return type(functional).__call__ is Functional.__call__


def is_mean(functional: Functional) -> bool:
    """Whether the functional is the mean itself, and nothing that only bears its name."""
    return functional.name == "mean" and is_plain(functional)


def is_searched(functional: Functional) -> bool:
    """Whether the range over an interval of loc is found by search, not in closed form."""
    return functional.name == "expected" or not is_plain(functional)


def direction(functional: Functional) -> int:
    """+1 or -1 if the functional grows or falls with loc, 0 if neither."""
    if not is_plain(functional):
        return 0
    if functional.name in ("mean", "quantile", "cvar"):
        return 1
    if functional.name == "probability" and (functional.above is None or functional.below is None):
        return 1 if functional.below is None else -1
    return 0


def slope(functional: Functional, scale: float) -> float:
    """The largest absolute derivative in loc, for noise of at least this scale; inf where none is known."""
    if not is_plain(functional):
        return np.inf
    if functional.name in ("mean", "quantile", "cvar"):
        return 1.0
    if functional.name == "variance":
        return 0.0
    if functional.name == "second_moment":
        return 2 * float(np.sqrt(functional.high))  # loc^2 <= E Y^2 <= high
    if functional.name == "probability":
        return float(1 / (np.sqrt(2 * np.pi) * scale))
    return np.inf


def value_at(functional: Functional, loc: np.ndarray, scale: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The functional at loc (M, n) with scale (n,) and rows x (n, dx), a (n,), whatever its declared range."""
    if is_mean(functional):
        return loc
    density = Density("Normal", {"loc": loc, "scale": np.broadcast_to(scale, loc.shape)})
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(functional(density, x, a), float)


def value_range(
    functional: Functional, low: np.ndarray, high: np.ndarray, scale: np.ndarray, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest value for loc in [low, high], each (M, n), not cut to the functional's range; ends may be infinite.

    scale (n,), rows x (n, dx), a (n,). What is not a number may be anything: -inf and inf.
    """
    sign = direction(functional)
    if sign:
        ends = low, high
        lower, upper = (value_at(functional, end, scale, x, a) for end in ends[::sign])
    elif is_searched(functional):
        lower, upper = _search(functional, low, high, scale, x, a)
    else:
        turn = np.clip(_turning_point(functional, x, a), low, high)
        places = [turn] if functional.name == "variance" else [turn, low, high]  # the same everywhere; infinite ends have none
        values = [value_at(functional, loc, scale, x, a) for loc in places]
        lower, upper = np.minimum.reduce(values), np.maximum.reduce(values)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), np.inf, upper)


def _turning_point(functional: Functional, x: np.ndarray, a: np.ndarray) -> np.ndarray | float:
    """Where variance (nowhere), second moment (0) and P(above < Y < below) (its middle) turn; they have no other extremum."""
    if functional.name != "probability":
        return 0.0
    above, below = limits_at(functional, x, a)
    return 0.5 * (above + below)


def limits_at(functional: Functional, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both limits of P(above < Y < below) at rows x (n, dx), a (n,): numbers or (n,)."""
    limits = []
    for limit in (functional.above, functional.below):
        if callable(limit):
            limits.append(np.asarray(limit(x, a), float))
        else:
            limits.append(np.asarray(limit, float)[a] if np.ndim(limit) else np.asarray(limit, float))
    return limits[0], limits[1]


def _search(
    functional: Functional, low: np.ndarray, high: np.ndarray, scale: np.ndarray, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Grid search: fn smoothed by noise of this scale has no bump narrower than it, so 16 points per scale see them all."""
    width = (high - low) / scale
    low = np.where(width <= WIDEST, low, 0.0)  # those beyond are not looked at
    narrow = np.where(width <= WIDEST, width, 0.0)
    points = int(np.ceil(narrow.max(initial=0.0) * GRID)) + 2
    grid = np.linspace(0.0, 1.0, points)[:, None, None]
    reach = narrow * scale
    loc = low + grid * reach
    values = value_at(functional, loc.reshape(-1, low.shape[-1]), scale, x, a).reshape(loc.shape)
    wide = width > WIDEST
    lower, upper = values.min(axis=0), values.max(axis=0)
    return np.where(wide, -np.inf, lower), np.where(wide, np.inf, upper)
