"""The generalized eluder dimension: how many decisions can still surprise a class that agrees on
everything seen so far.

A class is given by an array d2 (P, n): squared divergences of P pairs of members at n points (x,
a). With a threshold e, a point z is e-independent of a set S when some pair agrees on S and not at
z,

    sum_{i in S} d2[p, i] <= e < d2[p, z],

and dim(eps) is the longest chain of points, each e-independent of those before it, for one e >=
eps^2. Points never repeat in a chain and a pair serves only once, so dim <= min(n, P). (Hu,
Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making", definition of the
generalized eluder dimension, after Russo and Van Roy.)

The algorithm never uses it; it says how hard a class is to learn safely. `class_divergences` makes
the array from a class, `bounds` holds the theorems' upper bounds and `lemmas` what follows from a
dimension. Axis letters: P pairs, n points, M members.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gedppl.errors import NotFiniteError, SettingError, ShapeError
from gedppl.theory.eluder import bounds, lemmas
from gedppl.theory.eluder.classes import class_divergences, draw_members
from gedppl.theory.eluder.search import Chain, exact, greedy

__all__ = [
    "Chain",
    "bounds",
    "class_dimension",
    "class_divergences",
    "dimension",
    "draw_members",
    "is_dependent",
    "lemmas",
    "longest_chain",
    "profile",
    "upper_bound",
]

EXACT_POINTS = 12  # beyond this many points the subset lattice is left to the greedy search
MOST_EXACT_POINTS = 20


def dimension(d2: Any, eps: float, method: str = "auto", *, seed: int = 0) -> int:
    """The generalized eluder dimension at scale eps.

    Parameters
    ----------
    d2
        (P, n) squared divergences of P pairs of members at n points.
    eps
        A distance, not a squared one.
    method
        ``"exact"`` searches the whole lattice of subsets (a few points only); ``"greedy"`` returns
        the length of a chain that was found, a certified lower bound; ``"auto"`` is exact up to 12
        points.
    seed
        Of the greedy search.

    Notes
    -----
    max {m : there are e >= eps^2 and points z_1, ..., z_m such that for every k a pair p has
    sum_{i<k} d2[p, z_i] <= e < d2[p, z_k]}. Not guaranteed: the dimension of a class with more
    members, or over more points, than `d2` has: of that it is a lower bound.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", definition of the generalized eluder dimension; Russo and Van Roy, "Eluder dimension
    and the sample complexity of optimistic exploration" (2013).

    Examples
    --------
    Two members that differ at two of three points:

    >>> dimension([[1.0, 1.0, 0.0]], eps=0.5)
    1
    >>> dimension([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], eps=0.5)
    2
    """
    return len(longest_chain(d2, eps, method, seed=seed))


def longest_chain(d2: Any, eps: float, method: str = "auto", *, seed: int = 0) -> Chain:
    """The chain behind `dimension`, with the threshold it holds for.

    Parameters
    ----------
    d2, eps, method, seed
        As for `dimension`.

    Notes
    -----
    ``chain.verify(d2)`` checks it from the definition. Not guaranteed: that no chain is longer,
    where the search was greedy.

    Examples
    --------
    >>> chain = longest_chain([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], eps=0.5)
    >>> sorted(chain.points), chain.verify(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    ([0, 1], True)
    """
    array = _checked(d2)
    if not (math.isfinite(eps) and eps > 0):
        raise SettingError(f"eps must be a positive number, got {eps!r}")
    if method not in ("auto", "exact", "greedy"):
        raise SettingError(f'method must be "auto", "exact" or "greedy", got {method!r}')
    if not array.size:
        return Chain((), eps**2)
    useful = int((array > eps**2).any(axis=0).sum())
    if method == "exact" and useful > MOST_EXACT_POINTS:
        raise SettingError(
            f'method="exact" visits 2^n subsets; {useful} points are too many (at most '
            f'{MOST_EXACT_POINTS}): use "greedy"'
        )
    if method == "exact" or (method == "auto" and useful <= EXACT_POINTS):
        return exact(array, eps**2)
    return greedy(array, eps**2, seed)


def profile(d2: Any, eps: Any, method: str = "auto", *, seed: int = 0) -> np.ndarray:
    """The dimension at each scale of `eps`, made non-increasing: a chain found at a larger eps
    also serves a smaller one.

    Parameters
    ----------
    d2, method, seed
        As for `dimension`.
    eps
        (E,) distances.

    Notes
    -----
    Not guaranteed: the dimension itself, where the search was greedy: it is a lower bound then.

    Examples
    --------
    >>> profile([[1.0, 0.0, 0.0], [0.0, 0.1, 0.0]], eps=[0.2, 0.5, 2.0])
    array([2, 1, 0])
    """
    scales = np.asarray(eps, float)
    found = np.array([dimension(d2, float(e), method, seed=seed) for e in scales])
    order = np.argsort(-scales, kind="stable")
    found[order] = np.maximum.accumulate(found[order])
    return found


def upper_bound(d2: Any, eps: float) -> int:
    """The number of points, or of pairs, whichever is smaller, at which some divergence exceeds
    eps: dim(eps) is no larger.

    Parameters
    ----------
    d2, eps
        As for `dimension`.

    Notes
    -----
    Once a pair has served as the witness of a point its sum is above the threshold, and it can
    serve no more. Not guaranteed: a bound over more points and pairs than `d2` has.

    Examples
    --------
    >>> upper_bound([[1.0, 1.0, 0.0]], eps=0.5)
    1
    """
    high = _checked(d2) > eps**2
    return int(min(high.any(axis=0).sum(), high.any(axis=1).sum()))


def class_dimension(
    cls: Any,
    x: Any,
    a: Any,
    eps: Any,
    divergence: str = "hellinger",
    members: Any = None,
    *,
    n_members: int = 64,
    seed: int = 0,
    method: str = "auto",
) -> Any:
    """The dimension of a class at the points x (n, dx), a (n,): a number, or an array where `eps`
    is one.

    Parameters
    ----------
    cls, x, a, divergence, members, n_members
        As for `class_divergences`.
    eps, seed, method
        As for `dimension` or, for several, `profile`.

    Notes
    -----
    A finite class is taken whole, a parametric one by `members` or by `n_members` draws from its
    prior. Not guaranteed: the dimension of a parametric class, nor that at more than 12 points; of
    both it is a lower bound.

    Examples
    --------
    >>> class_dimension(problem.utility.model, np.zeros((2, 1)), [0, 1], eps=0.1)
    1
    """
    d2 = class_divergences(cls, x, a, divergence, members, n_members=n_members, seed=seed)
    if np.ndim(eps) == 0:
        return dimension(d2, float(eps), method, seed=seed)
    return profile(d2, eps, method, seed=seed)


def is_dependent(d2: Any, point: int, before: Any, eps: float) -> bool:
    """Whether `point` is eps-dependent on the points `before`: every pair that agrees on them
    agrees there too.

    sum_{i in before} d2[p, i] <= eps^2  implies  d2[p, point] <= eps^2,  for every pair p

    Examples
    --------
    >>> is_dependent([[1.0, 1.0, 0.0]], 1, [0], eps=0.5), is_dependent([[1.0, 1.0]], 1, [], eps=0.5)
    (True, False)
    """
    array = _checked(d2)
    used = array[:, np.asarray(before, int)].sum(axis=1) if len(before) else np.zeros(len(array))
    return not bool(np.any((used <= eps**2) & (array[:, point] > eps**2)))


def _checked(d2: Any) -> np.ndarray:
    array = np.asarray(d2, float)
    if array.ndim != 2:
        raise ShapeError(f"d2 must be (pairs, points), got shape {array.shape}")
    if not np.isfinite(array).all():
        raise NotFiniteError(f"d2 must be finite, got {array[~np.isfinite(array)][0]}")
    if (array < 0).any():
        raise SettingError(
            f"d2 holds squared divergences and cannot be negative, got {array.min()}"
        )
    return array
