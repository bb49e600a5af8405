"""Whether a distribution is the family it was lowered to: its own log-density beside the family's,
at drawn outcomes.

A name proves nothing. A user's class may be called `Poisson` and truncate at zero, or derive from a
Normal and move its `loc`. What the packages bring is compared once a process for each combination
of their classes; an object with a class of the user's in it is compared in every program, at
several parameters, because what it holds besides its arguments is not known.

Axis letters: n rows, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import FamilyError, InputError, NotADensityError
from gedppl.families.one_predictor import TERMS
from gedppl.numerics.arrays import namespace
from gedppl.numerics.quantiles import check_own
from gedppl.programs.contract import LinearPredictor
from gedppl.programs.lowering import crossing, from_package, is_external, lower, strip
from gedppl.programs.measures import refuse_atoms
from gedppl.programs.tracing import support_range

if TYPE_CHECKING:
    from gedppl.density import Density
    from gedppl.programs.contract import Distribution

DRAWS = 24  # outcomes compared at each row
# of a log-density: above the packages' rounding (1e-6 in a BetaBinomial), below what a certificate
# notices
TOLERANCE = 1e-5
# classes with an atom, at which the numbers decide whether a log_prob is that of a density
ATOMS = ("Delta", "ZeroInflated")
# combinations of the packages' own classes, compared before
_HOLDS: dict[frozenset[type], bool] = {}

# theta (D,) -> the outcome's distribution, with concrete arguments
Observed = Callable[[np.ndarray], Any]
LogProb = Callable[[Any, np.ndarray], np.ndarray]  # (distribution, y) -> log-densities


def settings(dim: int) -> np.ndarray:
    """Flat parameters (3, D) at which objects are compared: zero and two draws around it."""
    return np.vstack([np.zeros(dim), 0.5 * np.random.default_rng(11).standard_normal((2, dim))])


@dataclass(frozen=True)
class Identity:
    """What a program's outcome was found to be."""

    known: bool  # its log-density is that of the family it was lowered to
    packaged: bool  # nothing in it is of a class that the packages do not bring


def identify(outline: Density, observed: Observed, log_prob: LogProb, dim: int, n: int) -> Identity:
    """Whether the distributions that a program observes are what `lower` takes them for.

    `outline` is one of them, whose arguments need not be numbers.
    """
    outline = strip(outline)
    types = frozenset(_types(outline))
    packaged = all(from_package(kind) for kind in types) and not _patched(outline)
    atoms = any(base.__name__.startswith(ATOMS) for kind in types for base in kind.__mro__)
    if packaged and types in _HOLDS and not atoms:
        return Identity(_HOLDS[types], packaged)
    objects = [strip(observed(theta)) for theta in settings(dim)]
    for thing in objects if atoms else ():
        refuse_atoms(lower(thing, (n,)), partial(log_prob, thing))
    found = [same for thing in objects if (same := _same(thing, log_prob, n)) is not None]
    if not (packaged or (found and all(found))):
        for thing, theta in zip(objects, settings(dim)):
            _refuse_no_density(thing, log_prob, n, theta)
    if not found:  # nothing could be compared: the packages' word counts, a stranger's does not
        return Identity(packaged, packaged)
    if packaged:
        _HOLDS[types] = all(found)
    return Identity(all(found), packaged)


def predictor_holds(
    predictor: LinearPredictor,
    observed: Observed,
    log_prob: LogProb,
    x: np.ndarray,
    a: np.ndarray,
    dim: int,
) -> bool:
    """Whether the log-density by the predictor alone is the object's, at outcomes that the
    family draws.
    """
    features, offset, fixed = (
        predictor.features(x, a),
        predictor.offset(x, a),
        predictor.fixed(x, a),
    )
    for theta in settings(dim):
        thing = strip(observed(theta))
        density = lower(thing, (len(a),))
        y = density.map_args(namespace(*density.leaves()).to_numpy).sample(0, DRAWS)
        with np.errstate(all="ignore"):
            ours = TERMS[predictor.family, predictor.link](features @ theta + offset, y, fixed)[0]
        if looks_alike(ours, log_prob(thing, y)) is False:
            return False
    return True


def looks_alike(ours: np.ndarray, theirs: np.ndarray) -> bool | None:
    """Whether log-densities agree wherever one is a number; None if nowhere both are."""
    ours, theirs = np.broadcast_arrays(np.asarray(ours, float), np.asarray(theirs, float))
    known = ~(np.isnan(ours) | np.isnan(theirs))
    both = known & np.isfinite(ours) & np.isfinite(theirs)
    if not both.any():
        return None
    if np.any(known & (np.isfinite(ours) != np.isfinite(theirs))):
        return False
    return bool(np.all(np.abs(ours[both] - theirs[both]) <= TOLERANCE * (1 + np.abs(ours[both]))))


def _same(distribution: Distribution, log_prob: LogProb, n: int) -> bool | None:
    """Whether the family's log-density is the object's at outcomes drawn from the family; None
    if that cannot be asked.
    """
    wrong = crossing(distribution)
    # cutpoints out of order: there is no density to compare
    if wrong is not None and bool(wrong.any()):
        return None
    density = lower(distribution, (n,))
    if is_external(density):
        return None
    density = density.map_args(namespace(*density.leaves()).to_numpy)
    probs = density.args.get("probs")
    # a chance outside [0, 1], at these parameters: there is no density either
    if probs is not None and not np.all((probs >= 0) & (probs <= 1)):
        return None
    try:
        with np.errstate(all="ignore"):
            y = density.sample(0, DRAWS)
            ours = np.asarray(density.log_prob(y), float)
    except (InputError, ValueError):
        # arguments out of range at these parameters, or a family that cannot draw
        return None
    if not np.isfinite(y).all():
        return None
    return looks_alike(ours, log_prob(distribution, y))


def _types(thing: Distribution) -> Iterator[type]:
    """The classes of a distribution and of those it is made of."""
    yield type(thing)
    for value in vars(thing).values():
        for part in value if isinstance(value, list | tuple) else (value,):
            if hasattr(part, "log_prob"):
                yield from _types(part)


def _patched(thing: Distribution) -> bool:
    """Whether the object itself, or one it is made of, carries a log_prob that its class does
    not know of.
    """
    parts = [
        part
        for value in vars(thing).values()
        for part in (value if isinstance(value, list | tuple) else (value,))
    ]
    return "log_prob" in vars(thing) or any(
        _patched(part) for part in parts if hasattr(part, "log_prob")
    )


# a class of the user's own ------------------------------------------------------------------------

WIDE, POINTS = 18.0, 4001  # of the substitution y = middle + unit sinh(t): |t|, and how many
MOST_COUNTS = 20_000
AGREE, OFF = 1e-3, 0.02  # between two resolutions; from one, or in standard deviations
SAME = 1e-6  # of a moment


def _refuse_no_density(distribution: Any, log_prob: LogProb, n: int, theta: np.ndarray) -> None:
    """Raise if exp(log_prob) is seen not to integrate or sum to one, or if it is seen to have
    another mean or variance than the class says; where it cannot be seen, nothing is said.
    """
    if tuple(distribution.event_shape):
        return
    try:
        seen = _moments(distribution, log_prob, n)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError):
        return  # it takes no such outcomes
    if seen is None or seen[0] == 0:
        return
    mass, mean, square = seen
    kind = type(distribution).__name__
    if abs(mass - 1.0) > OFF:
        raise NotADensityError(
            f"the log_prob of {kind} gives all outcomes together a probability "
            f"of {mass:.4g} instead of 1 (at flat parameters {np.round(theta, 3)}), so that it is "
            f"no density: subtract log({mass:.4g}) in it, as a function of its arguments, or use a "
            "distribution of the package"
        )
    variance = max(square - mean**2, 0.0)
    for name, found, unit in (
        ("mean", mean, np.sqrt(variance)),
        ("variance", variance, variance),
    ):
        said = _own(distribution, name)
        if (
            np.isfinite(said)
            and np.isfinite(found)
            and abs(said - found) > OFF * unit + SAME * abs(said)
        ):
            raise NotADensityError(
                f"{kind}.{name} says {said:.4g}, and its log_prob has the {name} {found:.4g} (at "
                f"flat parameters {np.round(theta, 3)}): mend one of them, or leave the {name} out"
            )


def _own(distribution: Any, name: str) -> float:
    """The first row's mean or variance as the class itself says; NaN if it says none."""
    try:
        check_own(distribution, name)
        said = getattr(distribution, name)
    except (FamilyError, NotImplementedError, AttributeError, TypeError):
        return float("nan")
    return float(np.ravel(namespace(said).to_numpy(said))[0])


def _moments(distribution: Any, log_prob: LogProb, n: int) -> tuple[float, float, float] | None:
    """What the first row's outcomes add up to, and they and their squares weighted by their
    chances; None where two resolutions disagree.
    """
    low, high = support_range(distribution.support)

    def logs(y: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = np.asarray(log_prob(distribution, np.repeat(y[:, None], n, axis=1)), float)
        first = np.broadcast_to(found, (len(y), n))[:, 0]
        return np.where(np.isnan(first), -np.inf, first)

    def density(y: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(np.minimum(logs(y), 700.0)))

    if getattr(distribution.support, "is_discrete", False):
        if "boolean" in type(distribution.support).__name__.lower():
            low, high = 0.0, 1.0
        if not np.isfinite(low):
            return None
        last = min(high, low + MOST_COUNTS)
        counts = np.arange(low, last + 1)
        found = density(counts)
        ended = last == high or found[-1] * len(counts) < AGREE
        total = float(found.sum())
        return _weighed(counts, found) if ended or total > 1 + OFF else None
    if np.isfinite(low) and np.isfinite(high):
        # both ends approached in ever smaller steps
        def place(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            share = 1.0 / (1.0 + np.exp(-t))
            return low + (high - low) * share, (high - low) * share * (1 - share)
    elif np.isfinite(low) or np.isfinite(high):
        end, sign = (low, 1.0) if np.isfinite(low) else (high, -1.0)

        def place(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return end + sign * np.exp(t), np.exp(t)
    else:
        middle, unit = _middle(logs)

        def place(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return middle + unit * np.sinh(t), unit * np.cosh(t)

    sums = []
    for points in (POINTS, 2 * POINTS - 1):
        t, step = np.linspace(-WIDE, WIDE, points, retstep=True)
        y, slope = place(t)
        sums.append(_weighed(y, density(y) * slope * step))
    coarse, fine = sums
    # a second peak may be too narrow for the grid
    if fine[0] < 1 and not _one_peak(logs(y)):
        return None
    if abs(fine[0] - coarse[0]) > AGREE * max(fine[0], AGREE):
        return None
    # moments that end with the grid are none
    steady = (
        abs(fine[2] - coarse[2]) <= AGREE * fine[2] and abs(y[-1]) ** 3 * density(y[-1:])[0] < AGREE
    )
    return fine if steady else (fine[0], np.nan, np.nan)


def _weighed(y: np.ndarray, weight: np.ndarray) -> tuple[float, float, float]:
    with np.errstate(all="ignore"):
        return float(weight.sum()), float(weight @ y), float(weight @ y**2)


def _one_peak(logs: np.ndarray) -> bool:
    """Whether log-densities rise and then fall."""
    steps = np.diff(logs[np.isfinite(logs)])
    rounding = 1e-9 * max(float(np.abs(logs[np.isfinite(logs)]).max(initial=0.0)), 1.0)
    falls = np.flatnonzero(steps < -rounding)
    return not len(falls) or not np.any(steps[falls[0] :] > rounding)


def _middle(logs: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """Where a density on the real line is highest, and the width of half that height."""
    middle, unit = 0.0, 1.0
    for _ in range(20):
        y = middle + unit * np.sinh(np.linspace(-WIDE, WIDE, POINTS))
        found = logs(y)
        at = int(np.argmax(found))
        high = np.flatnonzero(found >= found[at] - np.log(2.0))
        middle = float(y[at])
        if len(high) >= 5:
            return middle, float(y[high[-1]] - y[high[0]])
        unit = float(y[min(at + 1, POINTS - 1)] - y[max(at - 1, 0)])
    return middle, unit
