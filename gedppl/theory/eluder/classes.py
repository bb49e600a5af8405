"""From a class of conditional densities to the array of squared divergences that
`gedppl.theory.eluder` works on.

Axis letters: P pairs, M members, n points, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, total_variation
from gedppl.divergences.leaves import in_numpy
from gedppl.errors import OneSettingError, ParameterError, SettingError, ShapeError
from gedppl.programs.contract import DensityClass, MemberList

DIVERGENCES = ("hellinger", "tv", "l2")
CHUNK = 400_000  # entries of d2 computed at once: a few MB an array
PULLS = 40  # halvings when a draw outside the declared bounds is pulled in


def class_divergences(
    cls: Any,
    x: Any,
    a: Any,
    divergence: str = "hellinger",
    members: Any = None,
    *,
    n_members: int = 64,
    seed: int = 0,
    method: str = "auto",
) -> np.ndarray:
    """Squared divergences of every pair of members at n points, (P, n) with P = M(M-1)/2.

    Parameters
    ----------
    cls
        From `finite_class` or `density_class`.
    x, a
        The points: contexts (n, dx) and actions (n,).
    divergence
        ``"hellinger"`` (H^2 = 1 - affinity), ``"tv"`` (TV^2) or ``"l2"`` (the squared L2 distance).
    members
        Finite class: member numbers, all of them by default. Parametric class: flat parameters (M,
        D) or a list of params by site; by default `n_members` draws from the prior
        (`draw_members`).
    method
        Of the divergences: ``"auto"``, ``"exact"``, ``"quadrature"`` or ``"monte_carlo"``.

    Notes
    -----
    Sampled members stand for a parametric class from the inside. Not guaranteed: its dimension, of
    which they give a lower bound.

    Examples
    --------
    >>> class_divergences(problem.utility.model, np.zeros((2, 1)), [0, 1]).round(4)  # one pair
    array([[0.    , 0.0466]])
    """
    if divergence not in DIVERGENCES:
        raise SettingError(
            f"divergence must be one of {', '.join(DIVERGENCES)}, got {divergence!r}"
        )
    x, a = np.asarray(x, float), np.asarray(a, np.int64)
    if x.ndim != 2 or a.shape != (len(x),):
        raise ShapeError(f"points need x (n, dx) and a (n,), got {x.shape} and {a.shape}")
    densities = member_densities(cls, x, a, members, n_members=n_members, seed=seed)
    if isinstance(densities, Density):
        first, second = np.triu_indices(densities.batch_shape[0], 1)
        step = max(1, CHUNK // max(len(x), 1))
        parts = [
            _squared(
                densities[first[i : i + step]], densities[second[i : i + step]], divergence, method
            )
            for i in range(0, len(first), step)
        ]
    else:
        first, second = np.triu_indices(len(densities), 1)
        parts = [
            _squared(densities[i], densities[j], divergence, method)[None]
            for i, j in zip(first, second)
        ]
    return np.concatenate(parts) if parts else np.zeros((0, len(x)))


def _squared(p: Density, q: Density, divergence: str, method: str) -> np.ndarray:
    if divergence == "hellinger":
        return np.asarray(hellinger2(p, q, method).value)
    if divergence == "tv":
        return np.asarray(total_variation(p, q, method).value) ** 2
    return np.asarray(l2_squared(p, q, method).value)


def member_densities(
    cls: Any,
    x: np.ndarray,
    a: np.ndarray,
    members: Any = None,
    *,
    n_members: int = 64,
    seed: int = 0,
) -> Density | list[Density]:
    """The members' densities as one batch (M, n), or as a list of (n,) where they are of
    different families.
    """

    def finite(cls: MemberList) -> Density | list[Density]:
        chosen = cls.every if members is None else np.asarray(members, np.int64)
        return _stacked(
            [in_numpy(cls.density(m, x, a))[np.arange(len(x))] for m in chosen.tolist()]
        )

    def parametric(cls: DensityClass) -> Density | list[Density]:
        cls.trace(x, a)
        thetas = _thetas(cls, members, n_members, seed)
        try:
            return in_numpy(cls.density_at(thetas, x, a))
        except OneSettingError:
            return [in_numpy(cls.density_at(theta, x, a)) for theta in thetas]

    found: Density | list[Density] = cls.visit(finite, parametric)
    return found


def _thetas(cls: Any, members: Any, n_members: int, seed: int) -> np.ndarray:
    if members is None:
        return draw_members(cls, n_members, seed)
    if isinstance(members, Sequence) and len(members) and hasattr(members[0], "keys"):
        return np.stack([cls.flatten(params) for params in members])
    theta = np.asarray(members, float)
    if theta.ndim != 2 or theta.shape[1] != cls.dim:
        raise ParameterError(
            f"members must be flat parameters (M, {cls.dim}) or a list of params, "
            f"got shape {theta.shape}"
        )
    return theta


def draw_members(cls: Any, n: int, seed: int) -> np.ndarray:
    """n parameters of the class from its prior, (n, D), inside the declared bounds.

    Parameters without a prior are standard normal around their initial value. Draws outside the
    bounds are drawn anew; if the bounds leave too few, they are moved towards the initial value
    until they are inside.
    """
    if n < 1:
        raise SettingError(f"n_members must be at least 1, got {n}")
    kept = np.empty((0, cls.dim))
    for attempt in range(4):
        theta = np.asarray(cls.draw_prior(2 * n, seed + 7919 * attempt), float)
        kept = np.concatenate([kept, theta[cls.inside(theta)]])
        if len(kept) >= n:
            return kept[:n]
    outside = theta[~cls.inside(theta)][: n - len(kept)]
    centres = [c for c in (np.asarray(cls.initial, float), np.zeros(cls.dim)) if cls.inside(c)]
    if not centres:
        raise ParameterError(
            "the initial parameters lie outside the declared bounds; give init= inside them"
        )
    centre = centres[0]
    low, high = np.zeros(len(outside)), np.ones(len(outside))
    for _ in range(PULLS):
        middle = 0.5 * (low + high)
        inside = cls.inside(centre + middle[:, None] * (outside - centre))
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    # anywhere between the centre and the edge, so that not all of them lie on the edge
    share = np.random.default_rng(seed).random(len(outside)) ** (1 / max(cls.dim, 1))
    return np.concatenate([kept, centre + (low * share)[:, None] * (outside - centre)])


def _stacked(densities: list[Density]) -> Density | list[Density]:
    if len({repr(d) for d in densities}) != 1 or any(d.family == "External" for d in densities):
        return densities
    return densities[0].rebuild(
        [np.stack(leaves) for leaves in zip(*(d.leaves() for d in densities))]
    )
