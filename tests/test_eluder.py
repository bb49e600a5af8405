"""The generalized eluder dimension: by hand, against all sequences, and its monotonicity."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gedppl import eluder, errors


def brute_force(d2: np.ndarray, eps: float) -> int:
    """Every sequence of distinct points, every threshold at which independence can change."""
    pairs, n = d2.shape
    subsets = [[i for i in range(n) if s >> i & 1] for s in range(2**n)]
    sums = {float(d2[p, s].sum()) for p in range(pairs) for s in subsets}
    best = 0
    for e in {eps**2} | {v for v in sums if v >= eps**2}:
        for order in permutations(range(n)):
            used, length = np.zeros(pairs), 0
            for z in order:
                if not np.any((used <= e) & (d2[:, z] > e)):
                    break
                used, length = used + d2[:, z], length + 1
            best = max(best, length)
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("eps", [0.1, 0.35, 0.7])
def test_exact_equals_brute_force(seed: int, eps: float) -> None:
    d2 = np.random.default_rng(seed).uniform(0, 1, (4, 5)) ** 2
    assert eluder.dimension(d2, eps, "exact") == brute_force(d2, eps)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_is_a_chain_and_never_longer_than_exact(seed: int) -> None:
    d2 = np.random.default_rng(seed).uniform(0, 1, (10, 9)) ** 3
    for eps in (0.05, 0.2, 0.5):
        exact, greedy = (eluder.longest_chain(d2, eps, m) for m in ("exact", "greedy"))
        assert exact.verify(d2)
        assert greedy.verify(d2)
        assert exact.threshold >= eps**2
        assert greedy.threshold >= eps**2
        assert len(exact) - 2 <= len(greedy) <= len(exact)


def test_a_broken_chain_does_not_verify() -> None:
    d2 = np.array([[1.0, 1.0, 0.0]])
    assert eluder.Chain((0,), 0.25).verify(d2)
    assert not eluder.Chain((0, 1), 0.25).verify(d2)
    assert not eluder.Chain((2,), 0.25).verify(d2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_monotone_in_scale_and_class(seed: int) -> None:
    d2 = np.random.default_rng(seed).uniform(0, 1, (6, 6)) ** 2
    dims = [eluder.dimension(d2, e, "exact") for e in (0.05, 0.2, 0.4, 0.8)]
    assert dims == sorted(dims, reverse=True)
    assert eluder.dimension(d2[:3], 0.2, "exact") <= dims[1]
    assert eluder.dimension(d2[:, :4], 0.2, "exact") <= dims[1]


def test_the_scale_may_grow_along_the_definition() -> None:
    """At the fixed threshold eps^2 the longest chain can be shorter than at a larger one: "for some eps' >= eps" matters."""
    found = False
    for seed in range(200):
        d2 = np.random.default_rng(seed).uniform(0, 1, (3, 5)) ** 2
        chain = eluder.longest_chain(d2, 0.1, "exact")
        fixed = max(
            length_at(d2, order, 0.01) for order in permutations(range(5))
        )
        found |= fixed < len(chain)
    assert found


def length_at(d2: np.ndarray, order: tuple[int, ...], e: float) -> int:
    used = np.zeros(len(d2))
    for length, z in enumerate(order):
        if not np.any((used <= e) & (d2[:, z] > e)):
            return length
        used = used + d2[:, z]
    return len(order)


def test_dependence_by_hand() -> None:
    d2 = np.array([[0.04, 0.01, 0.09], [0.0, 0.25, 0.0]])
    assert eluder.is_dependent(d2, 0, [2], eps=0.1)
    assert not eluder.is_dependent(d2, 0, [1], eps=0.1)
    assert not eluder.is_dependent(d2, 1, [0, 2], eps=0.1)


def test_profile_never_rises() -> None:
    d2 = np.random.default_rng(0).uniform(0, 1, (200, 60)) ** 3
    dims = eluder.profile(d2, [0.05, 0.1, 0.2, 0.4, 0.8])
    assert np.all(np.diff(dims) <= 0)


def test_bad_input() -> None:
    with pytest.raises(errors.ShapeError, match=r"\(pairs, points\)"):
        eluder.dimension([1.0], 0.1)
    with pytest.raises(errors.NotFiniteError, match="must be finite"):
        eluder.dimension([[np.nan]], 0.1)
    with pytest.raises(errors.SettingError, match="cannot be negative"):
        eluder.dimension([[-1.0]], 0.1)
    with pytest.raises(errors.SettingError, match="eps must be a positive number"):
        eluder.dimension([[1.0]], 0.0)
    with pytest.raises(errors.SettingError, match="method must be"):
        eluder.dimension([[1.0]], 0.1, "fast")
    with pytest.raises(errors.SettingError, match="too many"):
        eluder.dimension(np.ones((1, 30)), 0.1, "exact")
