"""Divergences of vectors, products, mixtures and atoms; batches; Monte Carlo; the metric
properties; the registry.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gedppl.density import Density
from gedppl.divergences import (
    Estimate,
    hellinger2,
    l2_squared,
    log_affinity,
    register_divergence,
    register_exponential_family,
    total_variation,
)
from gedppl.divergences import closed as divergences_closed
from gedppl.divergences import numeric as divergences_numeric
from gedppl.errors import FamilyError, NoClosedFormError, ParameterError, SettingError
from gedppl.families.family import Family, register_family
from tests import divergence_reference as reference
from tests.divergence_cases import DIVERGENCES, batch, beta, gamma, mixture, normal


@pytest.fixture
def registry():
    """The registry of closed forms, put back afterwards."""
    kept = dict(divergences_closed._REGISTRY)
    yield
    divergences_closed._REGISTRY.clear()
    divergences_closed._REGISTRY.update(kept)


# vectors, products, mixtures, atoms ---------------------------------------------------------------


def test_dirichlet_with_two_categories_is_a_beta():
    """Checks the Dirichlet's forms, L2 included: with two categories its density on the simplex
    is the Beta's.
    """
    for (a, b), (c, d) in (((2.0, 3.0), (2.5, 1.7)), ((0.8, 9.0), (0.9, 8.0))):
        p, q = (Density("Dirichlet", {"concentration": np.array(v)}) for v in ((a, b), (c, d)))
        for divergence in (hellinger2, l2_squared):
            got, want = divergence(p, q), divergence(beta(a, b), beta(c, d), "quadrature")
            assert got.method == "exact"
            assert float(got.value) == pytest.approx(float(want.value), rel=1e-9)


@pytest.mark.parametrize("kind", ["hellinger2", "l2_squared"])
def test_dirichlet_with_three_categories_against_integration_over_the_simplex(kind):
    a, b = np.array([2.0, 3.0, 4.0]), np.array([3.0, 2.5, 3.5])
    x, w = np.polynomial.legendre.leggauss(60)
    x, w = (x + 1) / 2, w / 2
    first, rest = np.meshgrid(x, x, indexing="ij")
    y = np.stack([first, (1 - first) * rest, (1 - first) * (1 - rest)])
    weight = np.outer(w, w) * (1 - first)
    log_p, log_q = (
        stats.dirichlet(c).logpdf(y.reshape(3, -1) / y.reshape(3, -1).sum(axis=0)).reshape(60, 60)
        for c in (a, b)
    )
    truth = (reference.terms_of(kind, log_p, log_q) * weight).sum()
    p, q = (Density("Dirichlet", {"concentration": c}) for c in (a, b))
    assert float(DIVERGENCES[kind](p, q, "exact").value) == pytest.approx(truth, abs=1e-8)


def test_multivariate_normal_against_independent_normals_and_rotation():
    rng = np.random.default_rng(2)
    loc, other = rng.normal(size=(2, 3))
    scale, wide = np.exp(rng.normal(size=(2, 3)))
    products = [
        Density("Independent", {"base": normal(m, s), "event_ndim": 1})
        for m, s in ((loc, scale), (other, wide))
    ]
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    vectors = [
        Density(
            "MultivariateNormal",
            {"loc": turn @ m, "scale_tril": np.linalg.cholesky(turn @ np.diag(s**2) @ turn.T)},
        )
        for m, s in ((loc, scale), (other, wide))
    ]
    for divergence in (hellinger2, l2_squared):
        a, b = divergence(*products, "exact"), divergence(*vectors, "exact")
        assert float(a.value) == pytest.approx(float(b.value), rel=1e-11)
    one = [
        Density("MultivariateNormal", {"loc": np.array([m]), "scale_tril": np.array([[s]])})
        for m, s in ((0, 1), (1, 2))
    ]
    for divergence in DIVERGENCES.values():
        scalar = divergence(normal(0.0, 1.0), normal(1.0, 2.0))
        assert float(divergence(*one, "exact").value) == pytest.approx(
            float(scalar.value), rel=1e-12
        )


def test_total_variation_of_vectors():
    tril = np.array([[1.0, 0.0], [0.5, 2.0]])
    p, q = (
        Density("MultivariateNormal", {"loc": np.array(m), "scale_tril": tril})
        for m in ([0.0, 0.0], [1.0, 1.0])
    )
    exact = total_variation(p, q, "exact")
    sampled = total_variation(p, q, "monte_carlo")
    assert abs(exact.value - sampled.value) < 4 * sampled.stderr
    r = Density("MultivariateNormal", {"loc": np.zeros(2), "scale_tril": np.eye(2)})
    with pytest.raises(NoClosedFormError, match="MultivariateNormal and MultivariateNormal"):
        total_variation(p, r, "exact")
    assert total_variation(p, r).method == "monte_carlo"


def test_independent_students_multiply_their_affinities():
    base = [
        Density("StudentT", {"df": 4.0, "loc": np.array(m), "scale": 1.0})
        for m in ([0.0, 1.0], [0.5, -1.0])
    ]
    product = hellinger2(*(Density("Independent", {"base": b, "event_ndim": 1}) for b in base))
    single = hellinger2(*base)
    assert product.method == "quadrature"
    assert float(product.value) == pytest.approx(1 - float(np.prod(1 - single.value)), rel=1e-12)


def test_mixtures_with_shared_components_have_a_closed_l2():
    p = mixture([0.2, 0.5, 0.3], [-1.0, 0.0, 2.0], [1.0, 0.3, 2.0])
    q = mixture([0.3, 0.3, 0.4], [-1.0, 0.0, 2.0], [1.0, 0.3, 2.0])
    exact, numeric = l2_squared(p, q), l2_squared(p, q, "quadrature")
    assert exact.method == "exact"
    assert float(exact.value) == pytest.approx(float(numeric.value), rel=1e-10)
    other = mixture([0.3, 0.3, 0.4], [-1.0, 0.0, 2.5], [1.0, 0.3, 2.0])
    assert l2_squared(p, other).method == "quadrature"
    with pytest.raises(NoClosedFormError, match="Mixture and Mixture"):
        l2_squared(p, other, "exact")


class _MixtureOfTwo:
    """w·first + (1 − w)·second with scipy's methods, as far as the reference asks for them."""

    def __init__(self, w, first, second):
        self.w, self.parts, self.dist = w, (first, second), stats.norm(0, 1).dist

    def logpdf(self, y):
        a, b = (part.logpdf(y) for part in self.parts)
        return np.logaddexp(np.log(self.w) + a, np.log1p(-self.w) + b)

    def ppf(self, level):
        return np.concatenate([part.ppf(level) for part in self.parts])

    def isf(self, level):
        return np.concatenate([part.isf(level) for part in self.parts])

    def support(self):
        return self.parts[0].support()

    def mean(self):
        return self.parts[0].mean()

    def median(self):
        return self.parts[1].median()


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_mixtures_and_different_families_by_quadrature(kind):
    divergence = DIVERGENCES[kind]
    cases = [
        (
            mixture([0.3, 0.7], [-2.0, 1.0], [0.1, 1.0]),
            normal(0.5, 2.0),
            _MixtureOfTwo(0.3, stats.norm(-2, 0.1), stats.norm(1, 1)),
            stats.norm(0.5, 2.0),
        ),
        (
            normal(0.0, 1.0),
            Density("Laplace", {"loc": 0.3, "scale": 0.8}),
            stats.norm(0, 1),
            stats.laplace(0.3, 0.8),
        ),
        (
            normal(0.0, 1e-3),
            Density("StudentT", {"df": 3.0, "loc": 1.0, "scale": 2.0}),
            stats.norm(0, 1e-3),
            stats.t(3, 1, 2),
        ),
        (
            Density("Cauchy", {"loc": 0.0, "scale": 1.0}),
            normal(0.0, 1.0),
            stats.cauchy(0, 1),
            stats.norm(0, 1),
        ),
        (
            gamma(2.0, 1.0),
            Density("LogNormal", {"loc": 0.5, "scale": 0.7}),
            stats.gamma(2.0),
            stats.lognorm(0.7, scale=math.exp(0.5)),
        ),
        (
            Density("Exponential", {"rate": 1.0}),
            Density("Uniform", {"low": 0.5, "high": 2.0}),
            stats.expon(),
            stats.uniform(0.5, 1.5),
        ),
    ]
    for p, q, first, second in cases:
        got = divergence(p, q)
        assert got.method == "quadrature"
        assert float(got.value) == pytest.approx(
            reference.divergence(kind, first, second), rel=1e-8, abs=1e-12
        )
        assert float(divergence(q, p).value) == pytest.approx(float(got.value), rel=1e-11)


def test_total_variation_needs_its_panels_split_where_the_densities_cross(monkeypatch):
    """The same panels without the crossings err: |p − q| has a kink there. (Positive control of
    the split.)
    """
    p, q = normal(0.0, 1.0), Density("Laplace", {"loc": 0.3, "scale": 0.8})
    truth = reference.divergence("total_variation", stats.norm(0, 1), stats.laplace(0.3, 0.8))
    assert abs(float(total_variation(p, q, "quadrature").value) - truth) < 1e-13
    monkeypatch.setattr(divergences_numeric, "_with_crossings", lambda points, *_: points)
    monkeypatch.setattr(divergences_numeric, "_MOST_HALVINGS", 1)
    with pytest.warns(RuntimeWarning, match="did not settle"):
        wrong = total_variation(p, q, "quadrature")
    assert abs(float(wrong.value) - truth) > 1e-8


def test_zero_inflated_densities():
    """Atom plus density: each divergence by hand from its two parts."""
    g, h = 0.3, 0.1
    p, q = (
        Density("ZeroInflated", {"gate": w, "base": gamma(2.0, r)}) for w, r in ((g, 1.0), (h, 1.5))
    )
    y = np.linspace(0, 60, 1_000_001)
    first, second = (
        (1 - g) * stats.gamma(2.0).pdf(y),
        (1 - h) * stats.gamma(2.0, scale=1 / 1.5).pdf(y),
    )
    step = y[1] - y[0]
    by_hand = {
        "hellinger2": 1 - math.sqrt(g * h) - np.sqrt(first * second).sum() * step,
        "total_variation": abs(g - h) / 2 + np.abs(first - second).sum() * step / 2,
        "l2_squared": (g - h) ** 2 + ((first - second) ** 2).sum() * step,
    }
    for kind, divergence in DIVERGENCES.items():
        assert float(divergence(p, q, "quadrature").value) == pytest.approx(by_hand[kind], abs=1e-9)
        sampled = divergence(p, q, "monte_carlo")
        assert abs(sampled.value - by_hand[kind]) < 4 * sampled.stderr
    assert hellinger2(p, q).method == "exact"
    assert float(hellinger2(p, q).value) == pytest.approx(by_hand["hellinger2"], abs=1e-9)


def test_zero_inflated_counts():
    """The base has mass at 0 too, which the atom joins."""
    p, q = (
        Density("ZeroInflated", {"gate": w, "base": Density("Poisson", {"rate": r})})
        for w, r in ((0.3, 2.0), (0.1, 3.0))
    )
    k = np.arange(80)
    first, second = (
        (k == 0) * w + (1 - w) * stats.poisson(r).pmf(k) for w, r in ((0.3, 2.0), (0.1, 3.0))
    )
    assert float(hellinger2(p, q).value) == pytest.approx(
        1 - np.sqrt(first * second).sum(), abs=1e-14
    )
    assert float(total_variation(p, q).value) == pytest.approx(
        np.abs(first - second).sum() / 2, abs=1e-14
    )
    assert float(l2_squared(p, q).value) == pytest.approx(((first - second) ** 2).sum(), abs=1e-14)


def test_atoms_and_densities_are_mutually_singular():
    atom, other = Density("Delta", {"v": 1.0}), Density("Delta", {"v": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(hellinger2(atom, other).value, [0.0, 1.0])
    np.testing.assert_array_equal(total_variation(atom, other).value, [0.0, 1.0])
    np.testing.assert_array_equal(l2_squared(atom, other).value, [0.0, 2.0])
    for lonely in (atom, Density("Poisson", {"rate": 2.0})):
        for divergence in (hellinger2, total_variation):
            assert float(divergence(lonely, normal(0.0)).value) == 1.0
            assert float(divergence(normal(0.0), lonely, "quadrature").value) == pytest.approx(
                1.0, abs=1e-12
            )
            assert float(divergence(normal(0.0), lonely, "monte_carlo").value) == 1.0
    assert float(l2_squared(atom, normal(0.0)).value) == pytest.approx(
        1 + 1 / (2 * math.sqrt(math.pi)), rel=1e-12
    )
    assert float(
        hellinger2(Density("Delta", {"v": 2.0}), Density("Poisson", {"rate": 2.0})).value
    ) == pytest.approx(1 - math.sqrt(stats.poisson(2).pmf(2)), abs=1e-14)


def test_far_apart_counts_do_not_sum_over_the_gap():
    p, q = (
        Density("Poisson", {"rate": 1.0}),
        Density("NegativeBinomial", {"total_count": 1e6, "probs": 0.9}),
    )
    assert float(hellinger2(p, q).value) == pytest.approx(1.0, abs=1e-12)


# batches ------------------------------------------------------------------------------------------


def test_batches_broadcast():
    settings_, rows = (
        normal(np.linspace(-1, 1, 6).reshape(3, 2), 1.0),
        normal(np.array([0.0, 1.0]), np.array([1.0, 2.0])),
    )
    for divergence in DIVERGENCES.values():
        for method in ("exact", "quadrature", "monte_carlo"):
            got = divergence(settings_, rows, method)
            assert got.value.shape == got.stderr.shape == (3, 2)
        single = divergence(settings_[1, 1], rows[1])
        assert np.ndim(single.value) == 0
        assert float(divergence(settings_, rows).value[1, 1]) == pytest.approx(
            float(single.value), rel=1e-13
        )


def test_large_batches_are_computed_in_chunks(monkeypatch):
    p, q = (
        normal(np.linspace(0, 1, 50), 1.0),
        Density("Laplace", {"loc": 0.0, "scale": np.linspace(1, 2, 50)}),
    )
    whole = total_variation(p, q).value
    monkeypatch.setattr(divergences_numeric, "_BLOCK", 20_000)
    np.testing.assert_allclose(total_variation(p, q).value, whole, rtol=1e-12)


# Monte Carlo --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_monte_carlo_is_within_its_standard_error(kind):
    rng = np.random.default_rng(0)
    for family in ("Normal", "Gamma", "Beta", "Poisson", "Binomial", "Laplace", "VonMises"):
        p, q = batch(family, [reference.PAIRS[family](rng, 0.5) for _ in range(20)])
        truth = DIVERGENCES[kind](p, q).value
        got = DIVERGENCES[kind](p, q, "monte_carlo", n_draws=4000, seed=1)
        assert got.method == "monte_carlo"
        score = (got.value - truth) / got.stderr
        assert np.all(np.abs(score) < 4)
        # neither too small nor too large a standard error
        assert 0.4 < np.sqrt(np.mean(score**2)) < 1.7


def test_monte_carlo_of_vectors_and_mixtures():
    rng = np.random.default_rng(4)
    p, q = (Density("Dirichlet", {"concentration": c}) for c in ([2.0, 3.0, 4.0], [3.0, 3.0, 3.0]))
    for divergence in (hellinger2, l2_squared):
        got = divergence(p, q, "monte_carlo")
        assert abs(got.value - divergence(p, q).value) < 4 * got.stderr
    tril = [np.tril(rng.normal(size=(2, 2))) + 2 * np.eye(2) for _ in range(2)]
    p, q = (
        Density("MultivariateNormal", {"loc": rng.normal(size=2), "scale_tril": t}) for t in tril
    )
    for divergence in (hellinger2, l2_squared):
        got = divergence(p, q, "monte_carlo")
        assert abs(got.value - divergence(p, q).value) < 4 * got.stderr
    p, q = mixture([0.3, 0.7], [-2.0, 1.0], [0.5, 1.0]), normal(0.5, 2.0)
    for divergence in DIVERGENCES.values():
        got = divergence(p, q, "monte_carlo")
        assert abs(got.value - divergence(p, q).value) < 4 * got.stderr


def test_monte_carlo_repeats_with_its_seed_and_shrinks_with_draws():
    p, q = normal(0.0), normal(0.5)
    assert hellinger2(p, q, "monte_carlo", seed=3) == hellinger2(p, q, "monte_carlo", seed=3)
    assert (
        hellinger2(p, q, "monte_carlo", seed=3).value
        != hellinger2(p, q, "monte_carlo", seed=4).value
    )
    few, many = (hellinger2(p, q, "monte_carlo", n_draws=n).stderr for n in (1000, 16_000))
    assert many == pytest.approx(few / 4, rel=0.15)


# properties ---------------------------------------------------------------------------------------

_number = st.floats(-3, 3)
_size = st.floats(0.2, 5)
_unit = st.floats(0.02, 0.98)
_DRAWN = {
    "Normal": st.fixed_dictionaries({"loc": _number, "scale": _size}),
    "Gamma": st.fixed_dictionaries({"concentration": _size, "rate": _size}),
    "Beta": st.fixed_dictionaries({"concentration1": _size, "concentration0": _size}),
    "Laplace": st.fixed_dictionaries({"loc": _number, "scale": _size}),
    "Poisson": st.fixed_dictionaries({"rate": _size}),
    "Binomial": st.fixed_dictionaries({"total_count": st.just(7.0), "probs": _unit}),
    "StudentT": st.fixed_dictionaries({"df": _size, "loc": _number, "scale": _size}),
}
_three = st.sampled_from(sorted(_DRAWN)).flatmap(
    lambda family: st.tuples(st.just(family), *(_DRAWN[family] for _ in range(3)))
)


@pytest.mark.parametrize("shift", [1e-274, 1e-30, 1e-9])
def test_places_that_are_hardly_apart_are_integrated_as_one(shift):
    p, q, r = (
        Density("StudentT", {"df": 1.0, "loc": loc, "scale": scale})
        for loc, scale in ((0.0, 1.0), (shift, 2.0), (0.0, 2.0))
    )
    assert hellinger2(p, q).value == pytest.approx(hellinger2(p, r).value, rel=1e-8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_three)
def test_metric_properties(drawn):
    family, *arguments = drawn
    p, q, r = (Density(family, args) for args in arguments)
    h, tv = (
        {pair: float(f(*pair).value) for pair in ((p, q), (q, p), (q, r), (p, r))}
        for f in (hellinger2, total_variation)
    )
    tiny = 1e-9
    for distance in (h, tv):
        assert distance[p, q] == pytest.approx(distance[q, p], rel=1e-7, abs=1e-12)
        assert all(0 <= value <= 1 for value in distance.values())
    assert math.sqrt(h[p, r]) <= math.sqrt(h[p, q]) + math.sqrt(h[q, r]) + tiny
    assert tv[p, r] <= tv[p, q] + tv[q, r] + tiny
    assert h[p, q] <= tv[p, q] + tiny
    assert tv[p, q] <= math.sqrt(h[p, q] * (2 - h[p, q])) + tiny
    assert l2_squared(p, q).value >= 0
    if arguments[0] != arguments[1]:
        gap = max(abs(value - arguments[1][name]) for name, value in arguments[0].items())
        assert gap < 1e-6 or (h[p, q] > 0 and tv[p, q] > 0)
    for divergence in (*DIVERGENCES.values(),):
        for method in ("auto", "quadrature"):
            assert divergence(p, p, method).value == 0


# the registry and bad input -----------------------------------------------------------------------


def test_a_miss_shows_the_line_that_would_register_a_form(registry):
    p, q = (Density("StudentT", {"df": 1.0, "loc": 0.0, "scale": s}) for s in (1.0, 2.0))
    line = r'register_divergence\("log_affinity", "StudentT", "StudentT", lambda p, q: \.\.\.\)'
    with pytest.raises(NoClosedFormError, match=line):
        hellinger2(p, q, "exact")
    with pytest.raises(NoClosedFormError, match=line):
        log_affinity(p, q)
    with pytest.raises(
        NoClosedFormError,
        match=r'register_divergence\("total_variation", '
        r'"Normal", "Laplace"',
    ):
        total_variation(normal(0.0), Density("Laplace", {"loc": 0.0, "scale": 1.0}), "exact")
    register_divergence("log_affinity", "StudentT", "StudentT", lambda p, q: np.asarray(-0.25))
    assert float(hellinger2(p, q, "exact").value) == pytest.approx(1 - math.exp(-0.25))
    register_divergence(
        "total_variation", "Normal", "Laplace", lambda p, q: np.asarray(p.args["scale"] * 0.125)
    )
    laplace = Density("Laplace", {"loc": 0.0, "scale": 1.0})
    assert float(total_variation(laplace, normal(0.0), "exact").value) == 0.125  # in either order


def test_exponential_family_route(registry):
    """A family of the user's own: Rayleigh, registered by its log-partition, with and without
    the curvature.
    """
    register_family(
        Family(
            name="RayleighOfTheTest",
            args=("scale",),
            kind="continuous",
            log_prob=lambda args, y, xp: (
                xp.log(y) - 2 * xp.log(args["scale"]) - y**2 / (2 * args["scale"] ** 2)
            ),
        )
    )

    def natural(xp, args):
        return -1 / (2 * args["scale"] ** 2)[..., None]

    register_exponential_family("RayleighOfTheTest", natural, lambda xp, eta: -xp.log(-eta[..., 0]))
    p, q = (Density("RayleighOfTheTest", {"scale": s}) for s in (1.0, 2.0))
    assert float(hellinger2(p, q, "exact").value) == pytest.approx(1 - 2 * 2 / 5, abs=1e-15)
    close = Density("RayleighOfTheTest", {"scale": 1.0 + 3e-5})
    truth = -math.expm1(math.log1p(-((3e-5) ** 2) / (1 + (1 + 3e-5) ** 2)))
    assert abs(float(hellinger2(p, close).value) / truth - 1) > 1e-9  # the rounding of A shows...
    register_exponential_family(
        "RayleighOfTheTest",
        natural,
        lambda xp, eta: -xp.log(-eta[..., 0]),
        lambda xp, eta, h: (h[..., 0] / eta[..., 0]) ** 2,
    )
    # ... and goes with the curvature
    assert float(hellinger2(p, close).value) == pytest.approx(truth, rel=1e-10)


def test_exponential_family_route_with_truncation(registry):
    """Exponentials truncated to an interval, against integration."""
    register_family(
        Family(
            name="ShortExponentialOfTheTest",
            args=("rate", "low", "high"),
            kind="continuous",
            log_prob=lambda args, y, xp: -args["rate"] * y,
        )
    )
    register_exponential_family(
        "ShortExponentialOfTheTest",
        lambda xp, args: -args["rate"][..., None],
        lambda xp, eta: -xp.log(-eta[..., 0]),
        log_mass=lambda xp, eta, low, high: xp.log(
            xp.exp(eta[..., 0] * low) - xp.exp(eta[..., 0] * high)
        ),
    )
    (r, a, b), (s, c, d) = (1.0, 0.0, 2.0), (0.5, 1.0, 3.0)
    p, q = (
        Density("ShortExponentialOfTheTest", dict(zip(("rate", "low", "high"), v)))
        for v in ((r, a, b), (s, c, d))
    )
    x, w = np.polynomial.legendre.leggauss(30)
    y, w = (x + 3) / 2, w / 2  # the common interval is [1, 2]
    norms = [
        (math.exp(-rate * low) - math.exp(-rate * high)) / rate
        for rate, low, high in ((r, a, b), (s, c, d))
    ]
    affinity = (w * np.sqrt(np.exp(-(r + s) * y) / norms[0] / norms[1])).sum()
    assert float(hellinger2(p, q, "exact").value) == pytest.approx(1 - affinity, abs=1e-13)


def test_bad_input_is_named():
    p, q = normal(0.0), normal(1.0)
    with pytest.raises(
        SettingError,
        match="method must be one of auto, exact, quadrature, monte_carlo, got 'magic'",
    ):
        hellinger2(p, q, "magic")
    with pytest.raises(SettingError, match="n_draws must be at least 4, got 1"):
        hellinger2(p, q, "monte_carlo", n_draws=1)
    with pytest.raises(SettingError, match="got 'hellinger2'; register log"):
        register_divergence("hellinger2", "Normal", "Normal", lambda p, q: None)
    with pytest.raises(SettingError, match="kind must be one of"):
        register_divergence("kl", "Normal", "Normal", lambda p, q: None)
    with pytest.raises(ParameterError, match=r"Normal's scale must be positive, got -1\.0"):
        hellinger2(p, normal(0.0, -1.0))
    with pytest.raises(ParameterError, match="Normal's loc must be a number, got nan"):
        hellinger2(p, normal(np.nan))
    with pytest.raises(ParameterError, match=r"Bernoulli's probs must be in \[0, 1\], got 1\.5"):
        hellinger2(*(Density("Bernoulli", {"probs": v}) for v in (0.5, 1.5)))
    with pytest.raises(ParameterError, match=r"Poisson's rate must be at least 0, got -2\.0"):
        hellinger2(*(Density("Poisson", {"rate": v}) for v in (0.5, -2.0)))
    with pytest.raises(
        FamilyError,
        match=r"batches \(2,\) of Normal and \(3,\) of Normal do not "
        r"broadcast",
    ):
        hellinger2(normal([0.0, 1.0]), normal([0.0, 1.0, 2.0]))
    with pytest.raises(FamilyError, match='Dirichlet and Dirichlet; use method="monte_carlo"'):
        total_variation(
            *(Density("Dirichlet", {"concentration": np.ones(3)}) for _ in range(2)), "quadrature"
        )


def test_estimates_are_frozen():
    estimate = hellinger2(normal(0.0), normal(1.0))
    assert isinstance(estimate, Estimate)
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate.value = 0.0
