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
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import InputError
from gedppl.families.one_predictor import TERMS
from gedppl.numerics.arrays import namespace
from gedppl.programs.contract import LinearPredictor
from gedppl.programs.lowering import crossing, from_package, is_external, lower, strip

if TYPE_CHECKING:
    from gedppl.density import Density
    from gedppl.programs.contract import Distribution

DRAWS = 24  # outcomes compared at each row
# of a log-density: above the packages' rounding (1e-6 in a BetaBinomial), below what a certificate
# notices
TOLERANCE = 1e-5
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
    if packaged and types in _HOLDS:
        return Identity(_HOLDS[types], packaged)
    objects = [strip(observed(theta)) for theta in settings(dim)]
    found = [same for thing in objects if (same := _same(thing, log_prob, n)) is not None]
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
