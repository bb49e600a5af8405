"""Which pairs of families have a closed form: the open registry, and the forms of products and
mixtures.

A form is NaN at arguments it does not cover; None stands for no form at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.divergences.affinity import (
    AFFINITIES,
    arrays_of,
    bernoulli_hellinger2,
    exponential_family,
)
from gedppl.divergences.exact import TOTAL_VARIATIONS, Parts, has_l2_parts, l2_from_parts, l2_parts
from gedppl.divergences.leaves import components, leaves
from gedppl.divergences.numeric import numerically
from gedppl.errors import NoClosedFormError, SettingError
from gedppl.numerics.arrays import namespace

Array = Any
KINDS = ("log_affinity", "total_variation", "l2_squared")

_REGISTRY: dict[tuple[str, str, str], Callable[[Density, Density], Array]] = {}


def register_divergence(
    kind: str, family_p: str, family_q: str, fn: Callable[[Density, Density], Array]
) -> None:
    """Make a closed form known. A second registration for the same families replaces the first.

    Parameters
    ----------
    kind
        ``"log_affinity"`` (which gives H² too, as −expm1 of it), ``"total_variation"`` or
        ``"l2_squared"``.
    family_p, family_q
        Names of families; the form also serves the two in the other order.
    fn
        ``(p, q) -> array`` of the batch shape, NaN where the form does not apply. For
        ``"log_affinity"`` it should be written in the array namespace of its arguments
        (`gedppl.numerics.arrays.namespace`).

    Notes
    -----
    The form is believed: nothing compares it with quadrature. `tests/test_divergences.py` shows how
    to.

    Examples
    --------
    >>> def apart(p, q):  # a Uniform that ends before a Pareto begins
    ...     return p.xp.where(p.args["high"] <= q.args["scale"], 1.0, p.xp.nan)
    >>> register_divergence("total_variation", "Uniform", "Pareto", apart)
    """
    if kind not in KINDS:
        hint = "; register log(1 − H²) as 'log_affinity'" if kind == "hellinger2" else ""
        raise SettingError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}{hint}")
    _REGISTRY[kind, family_p, family_q] = fn


def register_exponential_family(
    family: str,
    natural: Callable[..., Array],
    log_partition: Callable[..., Array],
    curvature: Callable[..., Array] | None = None,
    log_mass: Callable[..., Array] | None = None,
) -> None:
    """Register log BC = A((η₁ + η₂)/2) − ½A(η₁) − ½A(η₂) for an exponential family h(y) exp(η·T(y)
    − A(η)).

    ``natural(xp, args)`` gives η with a last axis, ``log_partition(xp, eta)`` gives A. With
    ``curvature(xp, eta, h)``, h' ∇²A(η) h, close pairs keep their relative accuracy. ``log_mass(xp,
    eta, low, high)``, the log-probability of the interval, is for families truncated to
    [args["low"], args["high"]].

    >>> register_exponential_family(
    ...     "HalfNormal",
    ...     lambda xp, d: -1 / d["scale"][..., None] ** 2,
    ...     lambda xp, eta: -xp.log(-eta[..., 0]) / 2,
    ... )
    >>> p, q = (Density("HalfNormal", {"scale": scale}) for scale in (1.0, 2.0))
    >>> round(float(np.exp(2 * log_affinity(p, q))), 12)  # BC² = 2 s₁s₂ / (s₁² + s₂²)
    0.8
    """
    form = exponential_family(natural, log_partition, curvature, log_mass)
    register_divergence(
        "log_affinity", family, family, lambda p, q: form(*arrays_of(p.args, q.args))
    )


def no_closed_form(kind: str, p: Density, q: Density, *, some: bool = False) -> NoClosedFormError:
    register = "log_affinity" if kind == "hellinger2" else kind
    where = " at some of these arguments" if some else ""
    return NoClosedFormError(
        f"no closed form of {kind} is registered for {p.family} and {q.family}{where}; use "
        'method="auto", or register '
        f'one: gedppl.divergences.register_divergence("{register}", "{p.family}", "{q.family}", '
        "lambda p, q: ...)"
    )


def log_affinity(p: Density, q: Density) -> Array:
    """log ∫√(pq) = log(1 − H²), in the array library of the arguments; traceable by JAX and torch,
    and differentiable.

    For families with a closed form only (else `NoClosedFormError`); NaN for arguments outside it
    (e.g. Weibull with two concentrations). Accurate to rounding near 0.

    >>> p, q = (Density("Poisson", {"rate": rate}) for rate in (4.0, 9.0))
    >>> round(float(log_affinity(p, q)), 12)
    -0.5
    """
    found = _log_affinity(p, q)
    if found is None:
        raise no_closed_form("log_affinity", p, q)
    return found


# closed forms -------------------------------------------------------------------------------------


def _registered(kind: str, p: Density, q: Density) -> Array | None:
    if (kind, p.family, q.family) in _REGISTRY:
        return _REGISTRY[kind, p.family, q.family](p, q)
    if (kind, q.family, p.family) in _REGISTRY:
        return _REGISTRY[kind, q.family, p.family](q, p)
    return None


def _log_affinity(p: Density, q: Density) -> Array | None:
    found = _registered("log_affinity", p, q)
    if found is not None or p.family != q.family:
        return found
    if p.family in AFFINITIES:
        return AFFINITIES[p.family](*arrays_of(p.args, q.args))
    if p.family == "Independent":
        base = _log_affinity(p.args["base"], q.args["base"])
        return None if base is None else _event_sum(base, p.args["event_ndim"])
    if p.family == "ZeroInflated" and not any(_is_atomic(d.args["base"]) for d in (p, q)):
        base = _log_affinity(p.args["base"], q.args["base"])
        if base is None:
            return None
        xp = namespace(base, p.args["gate"], q.args["gate"])
        g, h = xp.asfloat(p.args["gate"]), xp.asfloat(q.args["gate"])
        h2 = bernoulli_hellinger2(xp, g, h) - xp.sqrt(1 - g) * xp.sqrt(1 - h) * xp.expm1(base)
        return xp.log1p(-h2)
    return None


def _event_sum(values: Array, event_ndim: int) -> Array:
    for _ in range(event_ndim):
        values = values.sum(-1)
    return values


def _is_atomic(density: Density) -> bool:
    return any(leaf.atomic for leaf in leaves(density))


def _total_variation(p: Density, q: Density) -> np.ndarray | None:
    found = _registered("total_variation", p, q)
    if found is not None or p.family != q.family or p.family not in TOTAL_VARIATIONS:
        return found
    with np.errstate(all="ignore"):
        return TOTAL_VARIATIONS[p.family](*arrays_of(p.args, q.args))


def _parts(p: Density, q: Density) -> Parts | None:
    """log‖p‖², log‖q‖² and the log-cosine where closed."""
    if p.family != q.family:
        return None
    if p.family == "Independent":
        inner = _parts(p.args["base"], q.args["base"])
        if inner is None:
            return None
        sums = [
            _event_sum(np.asarray(part), p.args["event_ndim"])
            for part in np.broadcast_arrays(*inner)
        ]
        return sums[0], sums[1], sums[2]
    if not has_l2_parts(p.family):
        return None
    with np.errstate(all="ignore"):
        return l2_parts(p.family, *arrays_of(p.args, q.args))


def _l2_squared(p: Density, q: Density) -> np.ndarray | None:
    found = _registered("l2_squared", p, q)
    if found is not None or p.family != q.family:
        return found
    if p.family == "Mixture":
        return _shared_mixture_l2(p, q)
    if p.family == "Delta":
        return np.where(p.args["v"] == q.args["v"], 0.0, 2.0)
    if p.family == "Categorical":
        out: np.ndarray = ((p.args["probs"] - q.args["probs"]) ** 2).sum(axis=-1)
        return out
    if p.family in ("Binomial", "NegativeBinomial"):  # a series, summed until nothing is left
        return numerically("l2_squared", p, q, order=20, tol=1e-10)
    parts = _parts(p, q)
    if parts is None:
        return None
    with np.errstate(all="ignore"):
        return np.where(_equal(p, q), 0.0, l2_from_parts(parts))


def _shared_mixture_l2(p: Density, q: Density) -> np.ndarray | None:
    """(w − w')' M (w − w') with M_ij = ∫φ_i φ_j, for mixtures of the same components."""
    first, second = components(p), components(q)
    if len(first) != len(second) or not all(a.family == b.family for a, b in zip(first, second)):
        return None
    if not all(np.all(_equal(a, b)) for a, b in zip(first, second)):
        return None
    gap = p.args["probs"] - q.args["probs"]
    total: np.ndarray | None = None
    for i, a in enumerate(first):
        for j, b in enumerate(first[: i + 1]):
            parts = _parts(a, b)
            if parts is None:
                return None
            inner = np.exp((parts[0] + parts[1]) / 2 + parts[2])
            term = gap[..., i] * gap[..., j] * inner * (1.0 if i == j else 2.0)
            total = term if total is None else total + term
    return total


def _equal(p: Density, q: Density) -> np.ndarray:
    """Entry by entry, whether two densities of one family have the same arguments."""
    if p.family == "Independent":
        inner = _equal(p.args["base"], q.args["base"])
        return np.all(inner, axis=tuple(range(-p.args["event_ndim"], 0))) if inner.ndim else inner
    same = np.ones((), bool)
    arg_ndim = p.spec.arg_ndim
    for name, value in p.args.items():
        equal = np.asarray(value == q.args[name])
        same = same & equal.all(axis=tuple(range(-arg_ndim.get(name, 0), 0)))
    return same


def _singular(p: Density, q: Density) -> bool:
    """One has only atoms and the other none."""
    if p.family == "External" or q.family == "External":
        return False
    flags = [{leaf.atomic for leaf in leaves(d)} for d in (p, q)]
    return flags in ([{True}, {False}], [{False}, {True}])


def closed_form(kind: str, p: Density, q: Density) -> np.ndarray | None:
    """The closed form on the common batch, NaN where it does not apply; None if there is none."""
    shape = np.broadcast_shapes(p.batch_shape, q.batch_shape)
    if kind != "l2_squared" and _singular(p, q):
        return np.ones(shape)
    with np.errstate(all="ignore"):
        if kind == "hellinger2":
            affinity = _log_affinity(p, q)
            value = None if affinity is None else -np.expm1(np.asarray(affinity))
        else:
            value = _total_variation(p, q) if kind == "total_variation" else _l2_squared(p, q)
    return None if value is None else np.broadcast_to(value, shape)
