"""What a dimension buys: the lemmas behind the regret theorem, as functions.

Let G_t be sets of members with sum_{i<t} D^2(g, centre_t)_i <= r_t, r_t non-decreasing, and w_t the
amplitude of G_t at the point (x_t, a_t) of round t, sup over g, g' in G_t of D(g, g')(x_t, a_t).
Then for every sequence of points

    number of rounds with w_t > eps  <=  (4 r_T / eps^2 + 1) dim(eps)
    sum_t w_t
        <=  1/T + C min(dim, T) + 4 sqrt(dim r_T T),        dim at scale 1/T^2, D <= C
    sum_t 1 / (N_t + 1)
        <=  K + K log(T/K),    N_t how often the action of round t was played before.

The first is printed with 4 sqrt(r_T) / eps, which is false: its own proof gives 4 r_T / eps^2. (Hu,
Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making", lemmas on the generalized
eluder dimension and potential lemma.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.numerics.arrays import check_delta
from gedppl.theory.eluder.classes import class_divergences

# With lambda / (1 - exp(-lambda)) = 2:  sum E[Y | past] <= 2 sum Y + log(1/delta) / (1 -
# exp(-lambda)) for Y in [0, 1].
FROM_REALISED = 1.255001


def rounds_above_bound(
    radius: float, eps: float, dim: float, *, metric_constant: float = 1.0
) -> float:
    """(4 C_D^2 r_T / eps^2 + 1) dim: at most so many rounds have amplitude above eps.

    `metric_constant` is C_D of a divergence that meets the triangle inequality only up to a
    constant; 1 for Hellinger distance, total variation and L2.

    >>> rounds_above_bound(radius=1.0, eps=0.1, dim=1)
    401.0
    """
    _positive(radius=radius, eps=eps)
    return round(4 * metric_constant**2 * radius / eps**2 + 1, 9) * dim


def printed_rounds_above_bound(radius: float, eps: float, dim: float) -> float:
    """(4 sqrt(r_T) / eps + 1) dim, as printed. Not a bound: a class with one point can have 400
    such rounds against 41.

    >>> printed_rounds_above_bound(radius=1.0, eps=0.1, dim=1)
    41.0
    """
    _positive(radius=radius, eps=eps)
    return round(4 * math.sqrt(radius) / eps + 1, 9) * dim


def width_sum_bound(
    radius: float, dim: float, rounds: int, *, largest: float = 1.0, metric_constant: float = 1.0
) -> float:
    """1/T + C min(dim, T) + 4 C_D sqrt(dim r_T T), with dim at scale 1/T^2 and no divergence above
    C = `largest`.

    >>> width_sum_bound(radius=1.0, dim=4, rounds=100)
    84.01
    """
    _positive(radius=radius, rounds=rounds)
    return (
        1 / rounds
        + largest * min(dim, rounds)
        + 4 * metric_constant * math.sqrt(dim * radius * rounds)
    )


def expected_width_sum(realised: float, delta: float, *, largest: float = 1.0) -> float:
    """2 S + 1.255 C log(1/delta): with probability 1 - delta it bounds the sum of the conditional
    expectations of amplitudes.

    S is the sum of the amplitudes that occurred, each in [0, C]; it holds for all horizons at once.
    """
    check_delta(delta)
    return 2 * realised + FROM_REALISED * largest * math.log(1 / delta)


def potential(actions: Any) -> float:
    """sum_t 1 / (N_t + 1), N_t the number of earlier rounds with the action of round t.

    >>> potential([0, 0, 1])
    2.5
    """
    _, counts = np.unique(np.asarray(actions, np.int64), return_counts=True)
    return float(sum((1 / np.arange(1, n + 1)).sum() for n in counts))


def potential_bound(rounds: int, n_actions: int) -> float:
    """K + K log(T/K), or T where that is smaller, for T rounds and K actions.

    >>> potential_bound(rounds=3, n_actions=5)
    3.0
    """
    _positive(rounds=rounds, n_actions=n_actions)
    return (
        float(rounds)
        if rounds <= n_actions
        else n_actions + n_actions * math.log(rounds / n_actions)
    )


def amplitude(
    cls: Any, x: Any, a: Any, members: Any = None, divergence: str = "hellinger", **options: Any
) -> np.ndarray:
    """The amplitude of a set of members at each point, sup over pairs of D(g, g')(x, a): (n,).

    Exact for members of a finite class; for sampled members of a parametric class a lower bound.
    See `class_divergences` for the arguments.
    """
    d2 = class_divergences(cls, x, a, divergence, members, **options)
    found: np.ndarray = np.sqrt(d2.max(axis=0, initial=0.0))
    return found


def gaussian_amplitude(width: Any, scale: Any) -> np.ndarray:
    """The Hellinger amplitude of a set of Normals with known scale whose means span `width`: sqrt(1
    - exp(-width^2 / 8 scale^2)).

    >>> float(gaussian_amplitude(0.0, 1.0))
    0.0
    """
    found: np.ndarray = np.sqrt(
        -np.expm1(-(np.asarray(width, float) ** 2) / (8 * np.asarray(scale, float) ** 2))
    )
    return found


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise SettingError(f"{name} must be positive and finite, got {value!r}")
