"""By how much a functional can change when the density changes a little: constants for TV,
Hellinger and L2.

For a functional that is linear in the density, E h, and outcomes on S with osc(h) = max h - min h:

    |E_p h - E_q h| <= osc(h) TV,
        TV <= sqrt(2) H,     |E_p h - E_q h| <= min_c ||h - c||_{L2(S)} ||p - q||_2

L2 norms are taken over the base measure of the density: Lebesgue on an interval, counting on
integers. For the variance and CVaR, TV constants are R^2 and R / t (tail mass t, R the width of the
support). In Hellinger distance their local constants are sqrt(8 sup_p Var_p(psi)), psi the
influence function: R^2 / sqrt(2) and R sqrt(8 (1 - t) / t) (t <= 1/2); along the arc between two
densities the angle is at most (pi/4) / sin(pi/4) = 1.1107 times the chord H, which makes them
global. That the supremum of Var((y - m)^2) on an interval of width 1 is 1/16 is a numerical fact,
not a proved one.

References
----------
Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified Framework",
whose L_1 and L_D these are; Le Cam, "Asymptotic Methods in Statistical Decision Theory" (1986),
section 4, for TV <= sqrt(2) H.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.density import Density
from gedppl.errors import FunctionalError

if TYPE_CHECKING:
    from gedppl.functionals import Functional

_ARC = (math.pi / 4) / math.sin(math.pi / 4)
_DIVERGENCES = ("tv", "hellinger", "l2")
_GRID = 4097


def constant(functional: Functional, divergence: str, support: Any) -> tuple[float | None, str]:
    """(constant, "") or (None, why there is none)."""
    if divergence not in _DIVERGENCES:
        raise FunctionalError(
            f"divergence must be one of {', '.join(_DIVERGENCES)}, got {divergence!r}"
        )
    low, high, whole = _ends(support)
    name = functional.name
    if name == "quantile":
        return None, (
            "a quantile is not Lipschitz in any divergence: two Bernoulli with probabilities 1/2 "
            "+- eps are close and "
            "their medians are 0 and 1; use probability, cvar or a smooth expected(fn)"
        )
    width = high - low
    if name == "probability":
        if divergence == "l2" and not math.isfinite(width):
            return (
                None,
                f"the L2 constant of a probability grows with the support, which is [{low:g}, "
                f"{high:g}]",
            )
        # min_c ||1_A - c|| = sqrt(|A| |S - A| / |S|), at most sqrt|S| / 2
        return {
            "tv": 1.0,
            "hellinger": math.sqrt(2),
            "l2": 0.5 * math.sqrt(_size(low, high, whole)),
        }[divergence], ""
    if name == "expected":
        return _expected(functional, divergence, low, high, whole)
    if not math.isfinite(width):
        return None, (
            f"the {name} of an unbounded outcome is not Lipschitz; the support is [{low:g}, "
            f"{high:g}]: bound the outcome "
            "(truncate or clip it), or bound the functional over the confidence set instead"
        )
    if name == "mean":
        return _linear(width, _spread(lambda y: y, low, high, whole), divergence), ""
    if name == "second_moment":
        ends = (low**2, high**2)
        osc = max(ends) - (0.0 if low <= 0 <= high else min(ends))
        return _linear(osc, _spread(lambda y: y**2, low, high, whole), divergence), ""
    half_root = 0.5 * math.sqrt(_size(low, high, whole))  # TV <= half_root * L2, by Cauchy-Schwarz
    if name == "variance":
        return {
            "tv": width**2,
            "hellinger": _ARC * width**2 / math.sqrt(2),
            "l2": half_root * width**2,
        }[divergence], ""
    tail = 1 - functional.level
    by_tv = math.sqrt(2) / tail
    local = _ARC * math.sqrt(8 * (1 - tail) / tail) if tail <= 0.5 else math.inf
    values = {
        "tv": width / tail,
        "hellinger": min(by_tv, local) * width,
        "l2": half_root * width / tail,
    }
    return values[divergence], ""


def _ends(support: Any) -> tuple[float, float, bool]:
    """The hull of the support over the batch, and whether outcomes are integers."""
    if isinstance(support, Density):
        if support.kind in ("vector", "external"):
            return -math.inf, math.inf, False
        low, high = (support.xp.to_numpy(end) for end in support.support)
        return float(np.min(low)), float(np.max(high)), support.kind == "discrete"
    try:
        low, high = (float(end) for end in support)
    except (TypeError, ValueError):
        low = high = math.nan
    if not low < high:
        raise FunctionalError(
            f"support must be a Density or a pair (low, high) with low < high, got {support!r}"
        )
    return low, high, False


def _size(low: float, high: float, whole: bool) -> float:
    """How much base measure the support has: its length, or how many integers."""
    return high - low + (1 if whole else 0)


def _linear(osc: float, spread: float, divergence: str) -> float:
    return {"tv": osc, "hellinger": math.sqrt(2) * osc, "l2": spread}[divergence]


def _spread(h: Any, low: float, high: float, whole: bool) -> float:
    """min over c of the L2 norm of h - c over the base measure; h is a polynomial of degree 2 at
    most.
    """
    if whole:
        values = h(np.arange(low, high + 1))
        return float(np.sqrt(np.sum((values - values.mean()) ** 2)))
    x, w = np.polynomial.legendre.leggauss(8)
    values, weights = h(low + (high - low) * 0.5 * (x + 1)), w * 0.5 * (high - low)
    centre = np.sum(weights * values) / np.sum(weights)
    return float(np.sqrt(np.sum(weights * (values - centre) ** 2)))


def _expected(
    functional: Functional, divergence: str, low: float, high: float, whole: bool
) -> tuple[float | None, str]:
    """E fn: the oscillation of fn is taken to be high - low, once fn stayed within them on a
    grid of the support.
    """
    if divergence == "l2":
        return None, "the L2 norm of a user's function is not known; use tv or hellinger"
    grid = _support_grid(low, high, whole)
    try:
        values = np.asarray(functional.fn(grid, None, None), dtype=np.float64)  # type: ignore[misc]
    except Exception:
        # a function of the context cannot be tried without one: any failure means just that
        return (
            None,
            f"{functional} depends on the context or action, so its oscillation is not known",
        )
    slack = 1e-9 * max(abs(functional.low), abs(functional.high))
    bad = ~((values >= functional.low - slack) & (values <= functional.high + slack))
    if bad.any():
        at = grid[np.argmax(bad)]
        return None, (
            f"fn({at:g}) = {np.ravel(values)[np.argmax(bad)]:g} lies outside [{functional.low:g}, "
            f"{functional.high:g}]: the "
            "range bounds the expectation but not the function, whose oscillation is then not known"
        )
    return _linear(functional.high - functional.low, math.nan, divergence), ""


def _support_grid(low: float, high: float, whole: bool) -> np.ndarray:
    """Points that cover the support: all of it, evenly, or geometrically out to a million."""
    if whole and high - low < _GRID:
        return np.arange(low, high + 1)
    if math.isfinite(high - low):
        return np.linspace(low, high, _GRID)
    reach = np.sinh(np.linspace(-14.5, 14.5, _GRID))
    start = low if math.isfinite(low) else (high if math.isfinite(high) else 0.0)
    grid = start + reach
    grid = grid[(grid >= low) & (grid <= high)]
    return np.unique(np.round(grid)) if whole else grid
