"""The generalized eluder dimension: by hand, against all sequences, and its monotonicity."""

from __future__ import annotations

from itertools import permutations

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gedppl as ged
from gedppl import errors
from gedppl.theory import eluder
from gedppl.theory.eluder.plots import compare_divergences, plot_dimension
from tests.eluder_worlds import CoinTables

mpl.use("Agg")


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
    """At the fixed threshold eps^2 the longest chain can be shorter than at a larger one: "for
    some eps' >= eps" matters.
    """
    found = False
    for seed in range(200):
        d2 = np.random.default_rng(seed).uniform(0, 1, (3, 5)) ** 2
        chain = eluder.longest_chain(d2, 0.1, "exact")
        fixed = max(length_at(d2, order, 0.01) for order in permutations(range(5)))
        found |= fixed < len(chain)
        if found:
            break
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


def test_exact_improves_on_a_greedy_chain() -> None:
    """The search prunes by the greedy chain: where that is too short, the longer one must still
    be found, and hold.
    """
    improved = 0
    for seed in range(12):
        d2 = np.random.default_rng(seed).uniform(0, 1, (12, 8)) ** 2
        exact, greedy = (eluder.longest_chain(d2, 0.3, m) for m in ("exact", "greedy"))
        improved += len(exact) > len(greedy)
        assert exact.verify(d2)
    assert improved > 0


# from a class -------------------------------------------------------------------------------------


def coin(x, a, y=None):
    p = numpyro.param("p", 0.5 * jnp.ones(3), constraint=dist.constraints.unit_interval)
    numpyro.sample("y", dist.Bernoulli(p[a]), obs=y)


def logistic(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def counts(x, a, y=None):
    r = numpyro.param("r", jnp.ones(()), constraint=dist.constraints.positive)
    numpyro.sample("y", dist.Poisson(r * (1 + a)), obs=y)


POINTS = np.zeros((3, 1)), np.arange(3)


@pytest.mark.parametrize("divergence", ["hellinger", "tv", "l2"])
def test_divergences_of_a_finite_class(divergence: str) -> None:
    p = np.array([[0.2, 0.5, 0.9], [0.4, 0.5, 0.1], [0.7, 0.6, 0.3], [0.3, 0.3, 0.3]])
    cls = ged.finite_class(coin, [{"p": row} for row in p])
    d2 = eluder.class_divergences(cls, *POINTS, divergence)
    i, j = np.triu_indices(4, 1)
    expected = {
        "hellinger": 1 - np.sqrt(p[i] * p[j]) - np.sqrt((1 - p[i]) * (1 - p[j])),
        "tv": (p[i] - p[j]) ** 2,
        "l2": 2 * (p[i] - p[j]) ** 2,
    }[divergence]
    np.testing.assert_allclose(d2, expected, atol=1e-12)
    np.testing.assert_allclose(
        eluder.class_divergences(cls, *POINTS, divergence, members=[0, 2]),
        expected[1:2],
        atol=1e-12,
    )
    assert eluder.class_dimension(cls, *POINTS, 0.1, divergence) == brute_force(expected, 0.1)
    many = eluder.class_dimension(cls, *POINTS, [0.1, 0.3], divergence)
    assert many.tolist() == [brute_force(expected, e) for e in (0.1, 0.3)]


def test_members_of_several_families() -> None:
    cls = ged.finite_class(
        [(coin, {"p": np.array([0.2, 0.5, 0.9])}), (counts, {"r": 0.5}), (counts, {"r": 1.0})]
    )
    d2 = eluder.class_divergences(cls, *POINTS)
    assert d2.shape == (3, 3)
    np.testing.assert_allclose(
        d2[2], 1 - np.exp(-0.5 * (np.sqrt(0.5) - 1) ** 2 * np.arange(1, 4)), atol=1e-9
    )
    p, q = cls.density(0, *POINTS), cls.density(1, *POINTS)
    np.testing.assert_allclose(d2[0], ged.hellinger2(p, q).value, atol=1e-9)


def test_divergences_of_a_parametric_class() -> None:
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(5, 2)), np.zeros(5, int)
    cls = ged.density_class(logistic)
    w = rng.normal(size=(4, 2))
    p = 1 / (1 + np.exp(-w @ x.T))
    i, j = np.triu_indices(4, 1)
    for members in (w, [{"w": row} for row in w]):
        np.testing.assert_allclose(
            eluder.class_divergences(cls, x, a, "tv", members), (p[i] - p[j]) ** 2, atol=1e-12
        )
    drawn = eluder.class_divergences(cls, x, a, n_members=6, seed=1)
    assert drawn.shape == (15, 5)
    np.testing.assert_array_equal(drawn, eluder.class_divergences(cls, x, a, n_members=6, seed=1))
    assert not np.array_equal(drawn, eluder.class_divergences(cls, x, a, n_members=6, seed=2))
    with pytest.raises(errors.ParameterError, match=r"members must be flat parameters \(M, 2\)"):
        eluder.class_divergences(cls, x, a, members=np.zeros((3, 5)))


def test_large_classes_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = CoinTables(np.random.default_rng(0).uniform(0.1, 0.9, (9, 1, 3)))
    whole = eluder.class_divergences(cls, *POINTS)
    monkeypatch.setattr("gedppl.theory.eluder.classes.CHUNK", 7)
    np.testing.assert_array_equal(eluder.class_divergences(cls, *POINTS), whole)


@pytest.mark.parametrize("bound", [5.0, 0.01])
def test_drawn_members_keep_the_declared_bounds(bound: float) -> None:
    """Roomy bounds: prior draws as they come. Tight ones: draws pulled in, none of them lost or
    all on the edge.
    """
    x = np.ones((1, 2))
    cls = ged.density_class(logistic, bounds={"w": bound}, example=(x, np.zeros(1, int)))
    theta = eluder.draw_members(cls, 20, seed=0)
    norms = np.linalg.norm(theta, axis=1)
    assert theta.shape == (20, 2)
    assert np.all(norms <= bound)
    assert norms.max() > 0.5 * min(bound, 2.0)
    assert norms.min() < 0.95 * bound
    assert len(np.unique(norms)) == 20


def test_monotone_in_the_class() -> None:
    rng = np.random.default_rng(3)
    cls = CoinTables(rng.uniform(0.05, 0.95, (7, 1, 6)))
    x, a = np.zeros((6, 1)), np.arange(6)
    dims = [
        eluder.class_dimension(cls, x, a, 0.1, members=range(m), method="exact")
        for m in range(1, 8)
    ]
    assert dims == sorted(dims)
    assert dims[0] == 0
    assert dims[-1] >= 3


def test_dimension_picture() -> None:
    cls = CoinTables(np.random.default_rng(0).uniform(0.05, 0.95, (6, 1, 4)))
    x, a = np.zeros((4, 1)), np.arange(4)
    eps = [0.05, 0.2, 0.6]
    curves = compare_divergences(cls, x, a, eps)
    assert list(curves) == ["hellinger", "tv", "l2"]
    # L2 of coins is sqrt(2) times TV, so its dimension at a scale is that of TV at the scale over
    # sqrt(2)
    np.testing.assert_array_equal(
        curves["l2"], eluder.class_dimension(cls, x, a, np.array(eps) / np.sqrt(2), "tv")
    )
    ax = plot_dimension(
        curves | {"again": eluder.class_divergences(cls, x, a)}, eps, upper={"points": lambda e: 4}
    )
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_array_equal(lines["again"], lines["hellinger"])
    assert np.all(lines["points"] >= lines["tv"])
    mpl.pyplot.close("all")


def test_bad_input() -> None:
    with pytest.raises(errors.SettingError, match="divergence must be one of"):
        eluder.class_divergences(CoinTables(np.full((2, 1, 3), 0.5)), *POINTS, "kl")
    with pytest.raises(errors.ShapeError, match=r"points need x \(n, dx\)"):
        eluder.class_divergences(
            CoinTables(np.full((2, 1, 3), 0.5)), np.zeros((2, 1)), np.arange(3)
        )
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
