"""What is known of a family of distributions, and the open registry of families.

All formulas take the family's arguments as a dict of arrays and the array namespace ``xp``; they
broadcast over the batch, and an outcome ``y`` may have further leading axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gedppl.errors import FamilyError
from gedppl.numerics.arrays import Array, Namespace

Args = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """One family: log-density, moments, distribution function, and where its mass lies.

    Parameters
    ----------
    name, args
        The name and the argument names, in order.
    kind
        ``"continuous"`` (a density on the line), ``"discrete"`` (integers), ``"mixed"`` (atoms and
        a density) or ``"vector"`` (outcomes with event axes). A function of the arguments where
        they decide it.
    log_prob : (args, y, xp) -> array
        Minus infinity outside the support.
    support : (args, xp) -> (low, high)
        The ends of the support, infinite where it has none.
    mean, variance : (args, xp) -> array
    cdf, sf, icdf : (args, y, xp) -> array, optional
        P(Y <= y), P(Y > y), and the inverse of the first; differentiable once in every argument.
    bulk : (args, tail, xp) -> (low, high)
        An interval that holds all but at most ``tail`` of the mass: where integrals and sums run.
    breakpoints : (args, xp) -> tuple of arrays
        Kinks and jumps of the density, besides the ends of its support; ascending, if more than
        four.
    chart
        The coordinate t in which integrals are taken: ``"sinh"`` (y = centre + width sinh t),
        ``"log"`` (y = exp t), ``"logit"`` (y = expit t) or ``"linear"``.
    core : (args, xp) -> (centre, width)
        Where the density bends most: in outcome units for ``"sinh"`` and ``"linear"``, in units of
        t otherwise.
    draw : (args, uniforms, xp) -> array, optional
        Outcomes as a differentiable function of uniforms whose last axes are the event's (vector
        families).
    sample : (args, rng, shape) -> numpy array, optional
        Independent draws in NumPy; by `icdf` where this is missing.
    terms : (args) -> int, optional
        How many integers the support has, where the arguments' shapes tell (so that it is known
        while tracing).
    arg_ndim
        How many trailing axes of an argument belong to one density, where not 0.
    static
        Arguments that are no arrays.
    event_ndim
        Axes of one outcome.
    """

    name: str
    args: tuple[str, ...]
    kind: str | Callable[[Args], str]
    log_prob: Callable[..., Array]
    support: Callable[..., tuple[Array, Array]] | None = None
    mean: Callable[..., Array] | None = None
    variance: Callable[..., Array] | None = None
    cdf: Callable[..., Array] | None = None
    sf: Callable[..., Array] | None = None
    icdf: Callable[..., Array] | None = None
    bulk: Callable[..., tuple[Array, Array]] | None = None
    breakpoints: Callable[..., tuple[Array, ...]] = lambda args, xp: ()
    chart: str = "sinh"
    core: Callable[..., tuple[Array, Array]] | None = None
    draw: Callable[..., Array] | None = None
    sample: Callable[..., Array] | None = None
    terms: Callable[[Args], int] | None = None
    arg_ndim: Mapping[str, int] = field(default_factory=dict)
    static: tuple[str, ...] = ()
    event_ndim: int = 0

    def kind_of(self, args: Args) -> str:
        return self.kind if isinstance(self.kind, str) else self.kind(args)


class _Families(dict[str, Family]):
    """Registered families by name; a name that is none of them says how to register it."""

    def __missing__(self, name: str) -> Family:
        raise FamilyError(
            f"no family {name!r} is registered; register it with "
            "gedppl.families.register_family(Family("
            f"name={name!r}, args=(...), kind='continuous', log_prob=lambda args, y, xp: ...)). "
            f"Known: {', '.join(sorted(self))}"
        )


FAMILIES = _Families()


def register_family(family: Family) -> Family:
    """Make a family known by its name; a second registration under one name replaces the first.

    Parameters
    ----------
    family
        See `Family`: names of its arguments, kind, log-density, and whatever else is known in
        closed form. What is left out is integrated, searched or refused with a sentence.

    >>> laplace = get_family("Laplace")
    >>> register_family(laplace) is laplace, laplace.args, laplace.kind
    (True, ('loc', 'scale'), 'continuous')

    Notes
    -----
    Formulas are written against the array namespace they are given, so that NumPy, JAX and torch
    all work; they are believed, and `tests/test_families.py` has the table that compares them with
    quadrature.
    """
    FAMILIES[family.name] = family
    return family


def get_family(name: str) -> Family:
    """The registered family of that name.

    >>> get_family("Triangular")
    Traceback (most recent call last):
    ...
    gedppl.errors.FamilyError: no family 'Triangular' is registered; ...
    """
    return FAMILIES[name]


def family_names() -> tuple[str, ...]:
    """All registered names, in order of registration."""
    return tuple(FAMILIES)


# helpers shared by the family rooms ---------------------------------------------------------------


def masked(
    inside: Array, safe_value: Array, formula: Callable[[Array], Array], y: Array, xp: Namespace
) -> Array:
    """formula(y) where inside, else minus infinity; outside, the formula sees a safe value so
    gradients stay finite.
    """
    found: Array = xp.where(inside, formula(xp.where(inside, y, safe_value)), -xp.inf)
    return found


def safe_log(p: Array, xp: Namespace) -> Array:
    """log p, minus infinity with derivative 0 where p is 0."""
    positive = p > 0
    found: Array = xp.where(positive, xp.log(xp.where(positive, p, 1.0)), -xp.inf)
    return found


def x_log_p(x: Array, p: Array, xp: Namespace) -> Array:
    """x log p with 0 log 0 = 0 and derivatives that are never NaN."""
    zero = x == 0
    found: Array = xp.where(
        zero, 0.0 * p, xp.where(zero, 0.0, x) * safe_log(xp.where(zero, 0.5, p), xp)
    )
    return found


def x_log_1mp(x: Array, p: Array, xp: Namespace) -> Array:
    """x log(1 - p), likewise."""
    zero = x == 0
    q = xp.where(zero, 0.5, p)
    inside = q < 1
    log_q = xp.where(inside, xp.log1p(-xp.where(inside, q, 0.5)), -xp.inf)
    found: Array = xp.where(zero, 0.0 * p, xp.where(zero, 0.0, x) * log_q)
    return found


def implicit_inverse(
    q: Array, cdf: Callable[[Array], Array], log_prob: Callable[[Array], Array], xp: Namespace
) -> Array:
    """q unchanged in value, with the derivative of the inverse distribution function: dq = -dF(q) /
    f(q).

    q is a number found by any means; `cdf` and `log_prob` carry the derivative in the arguments.
    First derivatives only.
    """
    q = xp.stop_gradient(q)
    if xp.name == "numpy":
        return q
    F = cdf(q)
    f = xp.stop_gradient(xp.exp(log_prob(q)))
    usable = (f > 0) & xp.isfinite(f)
    change = (F - xp.stop_gradient(F)) / xp.where(usable, f, 1.0)
    found: Array = q - xp.where(usable, change, 0.0)
    return found
