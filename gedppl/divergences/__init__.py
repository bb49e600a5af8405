"""How far apart two densities are: squared Hellinger, total variation, squared L2.

    H²(p, q) = 1 − ∫√(pq),    TV(p, q) = ½∫|p − q|,    L2²(p, q) = ∫(p − q)²,

H² and TV in [0, 1], with H² ≤ TV ≤ √(H²(2 − H²)). √H², TV and √L2² are metrics. Integrals are sums
over atoms (integers, `Delta`, the zero of a zero-inflated density) plus integrals over the line; a
density without atoms and one that has nothing else are at H² = TV = 1, and L2² adds their squared
norms. L2² is infinite where a density is not square integrable (a Gamma or Beta with a
concentration ≤ ½), unless the two are equal.

Closed forms are in `affinity` and `exact`, quadrature and sums in `numeric`, Monte Carlo in
`sampling`. The registry of closed forms is open: `register_divergence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.divergences.closed import (
    closed_form,
    log_affinity,
    no_closed_form,
    register_divergence,
    register_exponential_family,
)
from gedppl.divergences.leaves import Shape, in_numpy, spread
from gedppl.divergences.numeric import integrable, numerically
from gedppl.divergences.sampling import monte_carlo
from gedppl.errors import FamilyError, SettingError

__all__ = [
    "Estimate",
    "hellinger2",
    "l2_squared",
    "log_affinity",
    "register_divergence",
    "register_exponential_family",
    "total_variation",
]

METHODS = ("auto", "exact", "quadrature", "monte_carlo")


@dataclass(frozen=True)
class Estimate:
    """A divergence (value), its Monte Carlo standard error (0 for every other method) and how it
    was computed.

    ``method`` is ``"exact"`` (closed form), ``"quadrature"`` (integrals, and sums for discrete
    families; an error of about ``tol``) or ``"monte_carlo"``; of a batch computed in several ways,
    the least exact one.
    """

    value: np.ndarray
    stderr: np.ndarray
    method: str


# the public three ---------------------------------------------------------------------------------


def hellinger2(
    p: Any,
    q: Any,
    method: str = "auto",
    *,
    n_draws: int = 20_000,
    seed: int = 0,
    order: int = 20,
    tol: float = 1e-10,
) -> Estimate:
    """Squared Hellinger distance, H² = 1 − ∫√(pq) = ½∫(√p − √q)², in [0, 1].

    Parameters
    ----------
    p, q
        `Density` (batches broadcast), or a NumPyro, Pyro or torch distribution.
    method
        ``"exact"``: the registered closed form, or `NoClosedFormError`; ``"quadrature"``:
        one-dimensional outcomes only; ``"monte_carlo"``; ``"auto"``: the first of them that can.
    n_draws, seed
        Draws in all (half from p, half from q) and their seed, for Monte Carlo.
    order, tol
        Nodes a panel and the relative change at which quadrature stops halving its panels.

    Returns
    -------
    Estimate
        Of the common batch shape, in NumPy float64. (`log_affinity` is the form that can be traced
        and differentiated.)

    Notes
    -----
    Not guaranteed: a bound on Monte Carlo's error. The standard error is itself estimated, and is 0
    where no draw told p and q apart. Quadrature warns where it does not settle to `tol`: floating
    point does not resolve the singularity of a Gamma or Beta whose concentration is below about
    0.05 (for L2², close to ½), which the closed forms do.

    References
    ----------
    Le Cam, "Asymptotic Methods in Statistical Decision Theory" (1986), section 4, for H² ≤ TV ≤
    √(H²(2 − H²)).

    Examples
    --------
    >>> p, q = (Density("Normal", {"loc": m, "scale": 1.0}) for m in (0.0, 1e-4))
    >>> estimate = hellinger2(p, q)
    >>> f"{estimate.value:.6e}", estimate.method
    ('1.250000e-09', 'exact')
    """
    return _divergence("hellinger2", p, q, method, n_draws, seed, order, tol)


def total_variation(
    p: Any,
    q: Any,
    method: str = "auto",
    *,
    n_draws: int = 20_000,
    seed: int = 0,
    order: int = 20,
    tol: float = 1e-10,
) -> Estimate:
    """Total variation distance, TV = ½∫|p − q|, in [0, 1]: the largest difference in the
    probability of an event.

    Parameters
    ----------
    p, q
        `Density` (batches broadcast), or a NumPyro, Pyro or torch distribution.
    method, n_draws, seed, order, tol
        As for `hellinger2`.

    Returns
    -------
    Estimate
        Of the common batch shape, in NumPy float64.

    Notes
    -----
    TV = max over events A of p(A) − q(A). Quadrature splits its panels where the densities cross,
    as many crossings as it finds on its grid. Not guaranteed: that it finds all of densities that
    cross many times in a narrow place; a bound on Monte Carlo's error, as for `hellinger2`.

    References
    ----------
    Le Cam, "Asymptotic Methods in Statistical Decision Theory" (1986), section 4, for H² ≤ TV ≤
    √(H²(2 − H²)).

    Examples
    --------
    >>> p, q = (Density("Bernoulli", {"probs": prob}) for prob in (0.25, 0.5))
    >>> float(total_variation(p, q).value)
    0.25
    """
    return _divergence("total_variation", p, q, method, n_draws, seed, order, tol)


def l2_squared(
    p: Any,
    q: Any,
    method: str = "auto",
    *,
    n_draws: int = 20_000,
    seed: int = 0,
    order: int = 20,
    tol: float = 1e-10,
) -> Estimate:
    """Squared L2 distance, ∫(p − q)², in units of 1/outcome: it changes when the outcome is
    rescaled or transformed.

    Parameters
    ----------
    p, q
        `Density` (batches broadcast), or a NumPyro, Pyro or torch distribution.
    method, n_draws, seed, order, tol
        As for `hellinger2`.

    Returns
    -------
    Estimate
        Of the common batch shape, in NumPy float64.

    Notes
    -----
    Infinite where p or q is not square integrable and they differ. It has a unit: thresholds on it
    do not carry over when the outcome is measured in another one, which those on H² and TV do.
    Where both densities are at most B, L2² ≤ 8 B H². Not guaranteed: a bound on Monte Carlo's
    error, as for `hellinger2`.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", on classes of linear densities.

    Examples
    --------
    >>> p, q = (Density("Exponential", {"rate": rate}) for rate in (1.0, 3.0))
    >>> round(float(l2_squared(p, q).value), 12)
    0.5
    """
    return _divergence("l2_squared", p, q, method, n_draws, seed, order, tol)


# the other methods, and which to take -------------------------------------------------------------


def _can_integrate(kind: str, p: Density, q: Density) -> bool:
    if kind == "hellinger2" and p.family == q.family == "Independent":
        return _can_integrate(kind, p.args["base"], q.args["base"])
    return integrable(p, q)


def _lowered(distribution: Any) -> Density:
    if not isinstance(distribution, Density):
        from gedppl.programs.contract import as_density

        distribution = as_density(distribution)
    return in_numpy(distribution)


def _divergence(
    kind: str, p: Any, q: Any, method: str, n_draws: int, seed: int, order: int, tol: float
) -> Estimate:
    if method not in METHODS:
        raise SettingError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if n_draws < 4:
        raise SettingError(
            f"n_draws must be at least 4, got {n_draws}; a standard error needs two draws from each"
        )
    p, q = _lowered(p), _lowered(q)
    shape = _common_shape(p, q)
    if method == "monte_carlo":
        return _sampled(kind, p, q, n_draws, seed)
    if method == "quadrature":
        return _estimate(kind, numerically(kind, p, q, order=order, tol=tol), "quadrature")
    value = closed_form(kind, p, q)
    missing = np.ones(shape, bool) if value is None else np.isnan(value)
    if value is not None and not missing.any():
        return _estimate(kind, value, "exact")
    if method == "exact":
        raise no_closed_form(kind, p, q, some=value is not None)
    if not _can_integrate(kind, p, q):
        return _sampled(kind, p, q, n_draws, seed)
    if value is None:
        return _estimate(kind, numerically(kind, p, q, order=order, tol=tol), "quadrature")
    filled = value.copy()
    where = np.flatnonzero(missing)
    filled[missing] = numerically(
        kind, spread(p, shape, where), spread(q, shape, where), order=order, tol=tol
    )
    return _estimate(kind, filled, "quadrature")


def _common_shape(p: Density, q: Density) -> Shape:
    shapes = p.batch_shape, q.batch_shape
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise FamilyError(
            f"the batches {shapes[0]} of {p.family} and {shapes[1]} of {q.family} do not "
            "broadcast; give both one shape"
        ) from None


def _sampled(kind: str, p: Density, q: Density, n_draws: int, seed: int) -> Estimate:
    value, stderr = monte_carlo(kind, p, q, n_draws, seed)
    return Estimate(value[()], stderr[()], "monte_carlo")


def _estimate(kind: str, value: np.ndarray, method: str) -> Estimate:
    # rounding may leave the range by an ulp
    value = np.maximum(value, 0.0) if kind == "l2_squared" else np.clip(value, 0.0, 1.0)
    return Estimate(value[()], np.zeros(np.shape(value))[()], method)
