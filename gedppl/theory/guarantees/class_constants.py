"""What the regret theorem needs to know of a class: how a functional varies with the density, how
fast the set shrinks, and the generalized eluder dimension. Known for finite classes,
linear-Gaussian classes and logistic ones; a user may give them for any other.

Axis letters: n contexts, K actions, M members, d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.functionals import Functional
from gedppl.learning import norm_bounds
from gedppl.learning.reach import slope
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.rows import grid
from gedppl.theory import eluder

# the exact dimension is computed once, at this scale: it bounds the one at every larger scale
SMALLEST_SCALE = 1e-18
MOST_PAIRS = 2100  # beyond it, or beyond 12 points, the number of pairs or points is taken instead


@dataclass(frozen=True)
class ClassConstants:
    """Constants of one class and functional.

    Parameters
    ----------
    lipschitz
        L with |T(g) - T(g')| <= L H(g, g') at every point; T clipped to its declared range.
    radius
        r(t, delta): every plausible member has sum_{i<t} H^2(g, centre)_i <= r, with probability 1
        - delta for all t.
    dimension
        dim(eps): an upper bound on the generalized eluder dimension under Hellinger distance.
    exploration
        Q(t, delta): the estimate's error has sum_{i<t} E[(T(f_hat) - T(f*))^2 | past] + range^2 <=
        Q.
    notes
        Where the constants come from, and what they take for granted.
    proved
        Whether all of it is proved for the sets the agent uses.
    """

    lipschitz: float
    radius: Callable[[float, float], float]
    dimension: Callable[[float], float]
    exploration: Callable[[float, float], float]
    notes: tuple[str, ...] = ()
    proved: bool = False


def class_constants(
    cls: Any,
    functional: Functional,
    n_actions: int,
    contexts: np.ndarray | None = None,
    *,
    pinned: int | None = None,
    what: str = "the class",
) -> ClassConstants:
    """The constants of a class, as far as the library can derive them.

    Parameters
    ----------
    contexts
        (n, dx): the contexts there are, or a sample whose features are as large as any. They bound
        features and, for a finite class, count the points. Without them, the rows that the model
        was first run on.
    pinned
        An action whose value is known (the safe one): it has no width, so its points do not count.
    """

    def finite(members: MemberList) -> ClassConstants:
        return _finite(members, functional, n_actions, contexts, pinned, what)

    found: ClassConstants = cls.visit(
        finite, lambda cls: _parametric(cls, functional, n_actions, contexts, what)
    )
    return found


def _parametric(
    cls: DensityClass, functional: Functional, n_actions: int, rows: np.ndarray | None, what: str
) -> ClassConstants:
    if rows is not None:
        cls.trace(rows[:1], np.zeros(1, np.int64))
    if not cls.traced:
        raise SettingError(
            f"the model of {what} has not been run yet: pass contexts= (n, dx), or "
            "example= to density_class"
        )
    notes: tuple[str, ...] = ()
    if rows is None:
        rows = cls.first_rows
        notes = (
            f"{what}: features measured on the {len(rows)} rows the model was first run on; "
            "pass contexts= for others",
        )
    predictor = cls.predictor
    if predictor is not None and (predictor.family, predictor.link) == ("Normal", "identity"):
        return _linear_gaussian(cls, functional, n_actions, rows, notes, what)
    if (
        predictor is not None
        and predictor.link == "logit"
        and predictor.family.startswith("Bernoulli")
    ):
        return _logistic(cls, functional, n_actions, rows, notes, what)
    family = cls.density_at(cls.initial, rows[:1], np.zeros(1, np.int64)).family
    raise SettingError(
        f"no constants are known for {what} ({family}): they are for finite, linear-Gaussian and "
        "logistic classes; pass "
        "constants={name: ClassConstants(lipschitz=..., radius=..., dimension=..., "
        "exploration=...)}"
    )


# finite classes -----------------------------------------------------------------------------------


def _finite(
    cls: Any,
    functional: Functional,
    n_actions: int,
    contexts: np.ndarray | None,
    pinned: int | None,
    what: str,
) -> ClassConstants:
    M, spread = int(cls.size), functional.high - functional.low
    notes = [f"{what}: {M} members, maximum likelihood by enumeration, likelihood-ratio set"]
    pairs = M * (M - 1) / 2
    if contexts is None:
        x, a = np.zeros((0, 1)), np.zeros(0, np.int64)
        lipschitz = math.sqrt(2) * spread
        notes.append(
            f"{what}: outcomes are taken to lie in [{functional.low:g}, {functional.high:g}] and "
            "the dimension to be the number "
            f"of pairs, {pairs:g}; pass contexts= to use the model's own support and to count "
            "points"
        )
    else:
        distinct = np.unique(contexts, axis=0)
        x, a = grid(distinct, n_actions)
        x, a = x[a != pinned], a[a != pinned]
        lipschitz = _lipschitz(cls, functional, x, a, what, notes)
        notes.append(f"{what}: contexts are taken to be the {len(distinct)} given")

    @cache
    def largest_dimension() -> float:
        if not len(a):
            return pairs
        if len(a) > eluder.EXACT_POINTS or pairs > MOST_PAIRS:
            return min(pairs, len(a))
        found: float = eluder.class_dimension(cls, x, a, SMALLEST_SCALE, method="exact")
        return found

    def exploration(t: float, delta: float) -> float:
        return lipschitz**2 * math.log(M / delta) + spread**2

    return ClassConstants(
        lipschitz=lipschitz,
        # a member in the set loses at most log(M/delta) to the truth; half of that, and the
        # deviation log(M/delta)
        radius=lambda t, delta: 1.5 * math.log(M / delta),
        dimension=lambda eps: largest_dimension(),
        exploration=exploration,
        notes=tuple(notes),
        proved=True,
    )


def _lipschitz(
    cls: Any, functional: Functional, x: np.ndarray, a: np.ndarray, what: str, notes: list[str]
) -> float:
    """The functional's own constant on the members' support; else the largest ratio over members
    and points.
    """
    density = cls.density(0, x[:1], a[:1])
    known = functional.lipschitz("hellinger", density)
    if known is not None:
        return known
    values = functional.clip(np.asarray(cls.values(functional, cls.every, x, a), float))
    i, j = np.triu_indices(len(values), 1)
    gaps, apart = np.abs(values[i] - values[j]), np.sqrt(eluder.class_divergences(cls, x, a))
    if np.any((gaps > 0) & (apart == 0)):
        raise SettingError(
            f"{what}: {functional} differs between members that are equal, so it "
            "has no Lipschitz constant"
        )
    notes.append(
        f"{what}: the Lipschitz constant is the largest ratio over pairs of members at "
        "the contexts given"
    )
    return float(
        np.max(np.divide(gaps, apart, out=np.zeros_like(gaps), where=apart > 0), initial=0.0)
    )


# linear predictors --------------------------------------------------------------------------------


def norm_of(cls: Any, what: str) -> float:
    parts = norm_bounds(cls) or []
    covered = np.concatenate([np.asarray(index) for index, _ in parts]) if parts else np.zeros(0)
    if len(np.unique(covered)) < cls.dim:
        raise SettingError(
            f"{what} needs a bound on all its parameters: declare density_class(..., "
            f"bounds={{site: norm}}) for every site"
        )
    return math.sqrt(sum(bound**2 for _, bound in parts))


def _linear_gaussian(
    cls: Any,
    functional: Functional,
    n_actions: int,
    contexts: np.ndarray,
    notes: tuple[str, ...],
    what: str,
) -> ClassConstants:
    """In units of the noise, phi / scale. Set: |theta - centre|_V^2 <= 2L + logdet + lambda S^2,
    lambda = d/S^2.
    """
    x, a = grid(contexts, n_actions)
    scale = np.broadcast_to(np.asarray(cls.predictor.fixed(x, a)["scale"], float), (len(a),))
    phi = np.asarray(cls.predictor.features(x, a), float) / scale[:, None]
    d, norm, spread = cls.dim, norm_of(cls, what), functional.high - functional.low
    size, widest = float(np.linalg.norm(phi, axis=1).max()), float(scale.max())
    steep = slope(functional, float(scale.min()))
    if not math.isfinite(steep):
        raise SettingError(
            f"{what}: {functional} has no known slope in the mean of a Normal; use "
            "mean, cvar or probability"
        )

    def squared_radius(t: float, delta: float) -> float:
        found: float = 2 * math.log(1 / delta) + d * math.log1p(t * (size * norm / d) ** 2) + d
        return found

    def exploration(t: float, delta: float) -> float:
        deviation = min(t * spread**2, (steep * widest) ** 2 * squared_radius(t, delta))
        found: float = (
            2 * deviation
            + 1.255 * spread**2 * (d * math.log1p(t) + math.log(1 / delta))
            + spread**2
        )
        return found

    lipschitz = 0.0
    if steep > 0:  # |T - T'| <= min(spread, steep |m - m'|), and |m - m'| / H grows with |m - m'|
        lipschitz = spread / math.sqrt(-math.expm1(-((spread / steep) ** 2) / (8 * widest**2)))
    return ClassConstants(
        lipschitz=lipschitz,
        radius=lambda t, delta: squared_radius(t, delta) / 8,
        dimension=lambda eps: eluder.bounds.gaussian_linear(d, norm, size, 1.0, eps).dimension,
        exploration=exploration,
        notes=(
            *notes,
            f"{what}: linear-Gaussian, d = {d}, |theta| <= {norm:g}, |phi| / noise <= {size:.4g}; "
            "radius of the prior-posterior "
            "ratio (the agent's set mixes it with restarted ones)",
            f"{what}: the covering step of the exploration weight has unit constants, as in the "
            "agent",
        ),
    )


def _logistic(
    cls: Any,
    functional: Functional,
    n_actions: int,
    contexts: np.ndarray,
    notes: tuple[str, ...],
    what: str,
) -> ClassConstants:
    """Bernoulli with logit phi'theta + offset: brackets with |d log p / d theta| <= |phi|;
    curvature of log(1 + e^eta).
    """
    x, a = grid(contexts, n_actions)
    phi = np.asarray(cls.predictor.features(x, a), float)
    offset = float(np.abs(np.asarray(cls.predictor.offset(x, a), float)).max(initial=0.0))
    d, norm, spread = cls.dim, norm_of(cls, what), functional.high - functional.low
    size = float(np.linalg.norm(phi, axis=1).max())
    lipschitz = functional.lipschitz("hellinger", (0.0, 1.0))
    if lipschitz is None:
        raise SettingError(f"{what}: {functional.why_not_lipschitz('hellinger', (0.0, 1.0))}")
    farthest = norm * size + offset
    flattest = math.exp(-farthest) / (1 + math.exp(-farthest)) ** 2

    def radius(t: float, delta: float) -> float:
        found: float = d * math.log1p(2 * norm * size * t) + math.log(1 / delta) + 1
        return found

    return ClassConstants(
        lipschitz=lipschitz,
        radius=radius,
        dimension=lambda eps: (
            eluder.bounds.exponential_family(d, norm * size, (flattest, 0.25), eps).dimension
        ),
        exploration=lambda t, delta: lipschitz**2 * radius(t, delta) + spread**2,
        notes=(
            *notes,
            f"{what}: logistic, d = {d}, |theta| <= {norm:g}, |phi| <= {size:.4g}; radius by "
            "bracketing, for a Hellinger ball "
            "around maximum likelihood (the agent's likelihood-ratio set is not covered by a "
            "proof)",
        ),
    )
