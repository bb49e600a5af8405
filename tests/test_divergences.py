"""Divergences: closed forms against an independent reference, quadrature against both, Monte Carlo within its error."""

from __future__ import annotations

import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gedppl import divergences_closed, divergences_numeric
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
from gedppl.divergences_affinity import gammaln_gap
from gedppl.divergences_leaves import NUMPY
from gedppl.errors import FamilyError, NoClosedFormError, ParameterError, SettingError
from gedppl.family import Family, register_family
from tests import divergence_reference as reference

DIVERGENCES = {"hellinger2": hellinger2, "total_variation": total_variation, "l2_squared": l2_squared}
NO_CLOSED_FORM = {("VonMises", "total_variation")}
CLOSENESS = (1.0, 0.2, 1e-3)


@pytest.fixture
def registry():
    """The registry of closed forms, put back afterwards."""
    kept = dict(divergences_closed._REGISTRY)
    yield
    divergences_closed._REGISTRY.clear()
    divergences_closed._REGISTRY.update(kept)


def normal(loc, scale=1.0):
    return Density("Normal", {"loc": np.asarray(loc), "scale": np.asarray(scale)})


def gamma(concentration, rate):
    return Density("Gamma", {"concentration": concentration, "rate": rate})


def beta(concentration1, concentration0):
    return Density("Beta", {"concentration1": concentration1, "concentration0": concentration0})


def mixture(weights, locs, scales):
    return Density("Mixture", {"probs": np.asarray(weights), "components": normal(locs, scales)})


def batch(family, pairs):
    return tuple(Density(family, {k: np.array([pair[i][k] for pair in pairs]) for k in pairs[0][i]}) for i in (0, 1))


def draw_pairs(family, n, seed):
    rng = np.random.default_rng(seed)
    return [reference.PAIRS[family](rng, CLOSENESS[i % 3]) for i in range(n)]


# closed forms against the reference and against our quadrature --------------------------------------------------------


def check_family(family, kind, n):
    pairs = draw_pairs(family, n, seed=sum(map(ord, family + kind)))
    p, q = batch(family, pairs)
    distributions = [[reference.DISTRIBUTIONS[family](args) for args in pair] for pair in pairs]
    truth = np.array([reference.divergence(kind, *pair) for pair in distributions])
    by_quadrature = DIVERGENCES[kind](p, q, "quadrature")
    # relative on top of 1e-8: a divergence of 1e-7 must be right too
    np.testing.assert_allclose(by_quadrature.value, truth, rtol=1e-6, atol=1e-13)
    np.testing.assert_allclose(by_quadrature.value, truth, rtol=0, atol=1e-8)
    if (family, kind) in NO_CLOSED_FORM:
        return
    exact = DIVERGENCES[kind](p, q, "exact")
    assert exact.method == "exact"
    assert np.all(exact.stderr == 0)
    np.testing.assert_allclose(exact.value, by_quadrature.value, rtol=1e-7, atol=1e-13)
    np.testing.assert_allclose(exact.value, by_quadrature.value, rtol=0, atol=1e-8)
    np.testing.assert_allclose(exact.value, truth, rtol=1e-6, atol=1e-13)
    np.testing.assert_array_equal(DIVERGENCES[kind](p, q).value, exact.value)


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("family", reference.PAIRS)
def test_closed_form_quadrature_and_reference_agree(family, kind):
    check_family(family, kind, 15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("family", reference.PAIRS)
def test_closed_form_quadrature_and_reference_agree_on_200_pairs(family, kind):
    check_family(family, kind, 200)


def test_hand_values():
    assert float(hellinger2(normal(0.0), normal(2.0)).value) == pytest.approx(1 - math.exp(-0.5), abs=1e-15)
    assert float(total_variation(normal(0.0), normal(2.0)).value) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=1e-15)
    p, q = (Density("Laplace", {"loc": m, "scale": 1.0}) for m in (0.0, 1.0))
    assert float(hellinger2(p, q).value) == pytest.approx(1 - math.exp(-0.5) * 1.5, abs=1e-15)
    p, q = (Density("Categorical", {"probs": np.array(w)}) for w in ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5]))
    assert float(hellinger2(p, q).value) == pytest.approx(0.5, abs=1e-15)
    assert float(total_variation(p, q).value) == pytest.approx(0.5, abs=1e-15)
    assert float(l2_squared(p, q).value) == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_unequal_arguments_without_a_closed_form_fall_to_quadrature_entry_by_entry(kind):
    """Weibull and negative binomial: closed for one common concentration or count only."""
    for family, p, q in (
        ("Weibull", {"scale": [1.0, 1.0], "concentration": [2.0, 2.0]}, {"scale": [1.5, 1.5], "concentration": [2.0, 1.0]}),
        ("NegativeBinomial", {"total_count": [3.0, 3.0], "probs": [0.5, 0.5]}, {"total_count": [3.0, 4.5], "probs": [0.4, 0.4]}),
        ("Binomial", {"total_count": [5.0, 5.0], "probs": [0.5, 0.5]}, {"total_count": [5.0, 8.0], "probs": [0.4, 0.4]}),
    ):  # fmt: skip
        densities = [Density(family, {k: np.array(v) for k, v in args.items()}) for args in (p, q)]
        got = DIVERGENCES[kind](*densities)
        truth = [
            reference.divergence(kind, *(reference.DISTRIBUTIONS[family]({k: v[i] for k, v in a.items()}) for a in (p, q)))
            for i in (0, 1)
        ]
        np.testing.assert_allclose(got.value, truth, rtol=1e-9)
        if family == "Weibull" or kind != "l2_squared":
            assert got.method == "quadrature"
            with pytest.raises(NoClosedFormError, match=f"{family} and {family} at some of these arguments"):
                DIVERGENCES[kind](*densities, "exact")


# small divergences ----------------------------------------------------------------------------------------------------


def _mp_gap(f, a, b):
    return f((a + b) / 2) - f(a) / 2 - f(b) / 2


def _mp_truncated(m, s, n, r, low, high):
    def log_mass(m, s):  # both ends in the lower tail, so that nothing cancels
        return mp.log((mp.erfc((low - m) / s / mp.sqrt(2)) - mp.erfc((high - m) / s / mp.sqrt(2))) / 2)

    middle, spread = (m * r**2 + n * s**2) / (s**2 + r**2), mp.sqrt(2 * s**2 * r**2 / (s**2 + r**2))
    return _mp_log_bc["Normal"](m, s, n, r) + log_mass(middle, spread) - (log_mass(m, s) + log_mass(n, r)) / 2


_mp_log_bc = {
    "Normal": lambda m, s, n, r: mp.log(2 * s * r / (s**2 + r**2)) / 2 - (m - n) ** 2 / (4 * (s**2 + r**2)),
    "Gamma": lambda a, b, c, d: _mp_gap(mp.loggamma, a, c) + (a * mp.log(b) + c * mp.log(d)) / 2
    - (a + c) / 2 * mp.log((b + d) / 2),
    "Beta": lambda a, b, c, d: _mp_gap(mp.loggamma, a, c) + _mp_gap(mp.loggamma, b, d)
    - _mp_gap(mp.loggamma, a + b, c + d),
    "Laplace": lambda m, b, n, c: (lambda u, v, d: mp.log(mp.sqrt(u * v) * (
        (mp.exp(-v * d) + mp.exp(-u * d)) / (u + v) + (mp.exp(-v * d) - mp.exp(-u * d)) / (u - v)))
    )(1 / (2 * b), 1 / (2 * c), abs(m - n)),
    "VonMises": lambda m, k, n, c: mp.log(mp.besseli(0, abs(k * mp.expj(m) + c * mp.expj(n)) / 2))
    - mp.log(mp.besseli(0, k) * mp.besseli(0, c)) / 2,
    "Poisson": lambda a, b: -(mp.sqrt(a) - mp.sqrt(b)) ** 2 / 2,
    "Bernoulli": lambda a, b: mp.log(mp.sqrt(a * b) + mp.sqrt((1 - a) * (1 - b))),
    "Geometric": lambda a, b: mp.log(mp.sqrt(a * b) / (1 - mp.sqrt((1 - a) * (1 - b)))),
    "Exponential": lambda a, b: mp.log(2 * mp.sqrt(a * b) / (a + b)),
    "Weibull": lambda s, k, t, _: mp.log(2 * mp.sqrt(s**-k * t**-k) / (s**-k + t**-k)),
    "Uniform": lambda a, b, c, d: mp.log((min(b, d) - max(a, c)) / mp.sqrt((b - a) * (d - c))),
    "TruncatedNormal": _mp_truncated,
}  # fmt: skip
_ARGS = {
    "Normal": ("loc", "scale"), "Gamma": ("concentration", "rate"), "Beta": ("concentration1", "concentration0"),
    "Laplace": ("loc", "scale"), "VonMises": ("loc", "concentration"), "Poisson": ("rate",), "Bernoulli": ("probs",),
    "Geometric": ("probs",), "Exponential": ("rate",), "Weibull": ("scale", "concentration"), "Uniform": ("low", "high"),
    "TruncatedNormal": ("loc", "scale"),
}  # fmt: skip


def _close_pair(family, rng, closeness):
    names = _ARGS[family]
    x = np.exp(rng.uniform(-1, 5, len(names)))
    if names == ("probs",):
        x = rng.uniform(0.02, 0.98, 1)
    y = x * np.exp(closeness * rng.normal(size=len(names)))
    if family == "Weibull":
        y[1] = x[1]
    if family == "Uniform":
        x[1] += x[0]
        y = x * (1 + closeness**2 * rng.normal(size=2))  # the distance is of first order in the ends
    if family == "VonMises":
        x[0] = rng.uniform(-3, 3)
        y[0] = x[0] + closeness * rng.normal() / np.sqrt(x[1])
    if family == "TruncatedNormal":
        y[0] = x[0] + closeness * x[1]
        low = x[0] + x[1] * rng.uniform(-2, 3)
        return x, y, {"low": low, "high": low + x[1] * rng.uniform(0.3, 3)}
    return x, y, {}


@pytest.mark.parametrize("family", _mp_log_bc)
def test_small_hellinger_keeps_its_digits(family):
    """H² near 1e-9 within a relative 1e-6 of 50-digit arithmetic (the plain formula loses all of them)."""
    rng = np.random.default_rng(5)
    seen = []
    with mp.workdps(60):
        for _ in range(25):
            x, y, common = _close_pair(family, rng, 6e-5)
            p, q = (Density(family, dict(zip(_ARGS[family], args)) | common) for args in (x, y))
            truth = -mp.expm1(mp.re(_mp_log_bc[family](*(mp.mpf(float(v)) for v in (*x, *y, *common.values())))))
            got = float(hellinger2(p, q, "exact").value)
            seen.append(float(truth))
            assert abs(got / float(truth) - 1) < 1e-6
    assert 1e-11 < np.median(seen) < 1e-7


def test_small_hellinger_of_vectors_keeps_its_digits():
    rng = np.random.default_rng(6)
    with mp.workdps(60):
        a = np.exp(rng.uniform(-1, 5, 4))
        b = a * np.exp(3e-5 * rng.normal(size=4))
        p, q = (Density("Dirichlet", {"concentration": c}) for c in (a, b))
        u, v = [mp.mpf(float(c)) for c in a], [mp.mpf(float(c)) for c in b]
        log_bc = mp.fsum(_mp_gap(mp.loggamma, c, d) for c, d in zip(u, v)) - _mp_gap(mp.loggamma, mp.fsum(u), mp.fsum(v))
        assert float(hellinger2(p, q).value) == pytest.approx(float(-mp.expm1(log_bc)), rel=1e-8)

        tril = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
        other = tril + 3e-5 * np.tril(rng.normal(size=(3, 3)))
        loc, shift = rng.normal(size=3), 3e-5 * rng.normal(size=3)
        p, q = (Density("MultivariateNormal", {"loc": m, "scale_tril": t}) for m, t in ((loc, tril), (loc + shift, other)))
        s, t = (mp.matrix(c.tolist()) * mp.matrix(c.tolist()).T for c in (tril, other))
        delta = mp.matrix([mp.mpf(float(c)) - mp.mpf(float(d)) for c, d in zip(loc + shift, loc)])
        mean = (s + t) / 2
        log_bc = mp.log(mp.det(s) * mp.det(t)) / 4 - mp.log(mp.det(mean)) / 2 - (delta.T * mean**-1 * delta)[0] / 8
        assert float(hellinger2(p, q).value) == pytest.approx(float(-mp.expm1(log_bc)), rel=1e-8)


@pytest.mark.parametrize("family", ["Gamma", "Beta", "Poisson", "VonMises", "LogNormal", "NegativeBinomial"])
@pytest.mark.parametrize("kind", ["total_variation", "l2_squared"])
def test_small_total_variation_and_l2_keep_their_digits(family, kind):
    rng = np.random.default_rng(8)
    pairs = [reference.PAIRS[family](rng, 1e-5) for _ in range(8)]
    p, q = batch(family, pairs)
    truth = [reference.divergence(kind, *(reference.DISTRIBUTIONS[family](a) for a in pair)) for pair in pairs]
    assert max(truth) < 1e-3
    np.testing.assert_allclose(DIVERGENCES[kind](p, q).value, truth, rtol=1e-6)


def test_gammaln_gap_over_its_whole_range():
    rng = np.random.default_rng(1)
    with mp.workdps(50):
        for _ in range(200):
            a, b = np.exp(rng.uniform(-7, 12, 2))
            truth = float(_mp_gap(mp.loggamma, mp.mpf(a), mp.mpf(b)))
            assert float(gammaln_gap(NUMPY, np.float64(a), np.float64(b))) == pytest.approx(truth, rel=1e-12)


# vectors, products, mixtures, atoms -----------------------------------------------------------------------------------


def test_dirichlet_with_two_categories_is_a_beta():
    """Checks the Dirichlet's forms, L2 included: with two categories its density on the simplex is the Beta's."""
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
    log_p, log_q = (stats.dirichlet(c).logpdf(y.reshape(3, -1) / y.reshape(3, -1).sum(axis=0)).reshape(60, 60) for c in (a, b))
    truth = (reference._terms(kind, log_p, log_q) * weight).sum()
    p, q = (Density("Dirichlet", {"concentration": c}) for c in (a, b))
    assert float(DIVERGENCES[kind](p, q, "exact").value) == pytest.approx(truth, abs=1e-8)


def test_multivariate_normal_against_independent_normals_and_rotation():
    rng = np.random.default_rng(2)
    loc, other = rng.normal(size=(2, 3))
    scale, wide = np.exp(rng.normal(size=(2, 3)))
    products = [Density("Independent", {"base": normal(m, s), "event_ndim": 1}) for m, s in ((loc, scale), (other, wide))]
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    vectors = [
        Density("MultivariateNormal", {"loc": turn @ m, "scale_tril": np.linalg.cholesky(turn @ np.diag(s**2) @ turn.T)})
        for m, s in ((loc, scale), (other, wide))
    ]
    for divergence in (hellinger2, l2_squared):
        a, b = divergence(*products, "exact"), divergence(*vectors, "exact")
        assert float(a.value) == pytest.approx(float(b.value), rel=1e-11)
    one = [Density("MultivariateNormal", {"loc": np.array([m]), "scale_tril": np.array([[s]])}) for m, s in ((0, 1), (1, 2))]
    for divergence in DIVERGENCES.values():
        scalar = divergence(normal(0.0, 1.0), normal(1.0, 2.0))
        assert float(divergence(*one, "exact").value) == pytest.approx(float(scalar.value), rel=1e-12)


def test_total_variation_of_vectors():
    tril = np.array([[1.0, 0.0], [0.5, 2.0]])
    p, q = (Density("MultivariateNormal", {"loc": np.array(m), "scale_tril": tril}) for m in ([0.0, 0.0], [1.0, 1.0]))
    exact = total_variation(p, q, "exact")
    sampled = total_variation(p, q, "monte_carlo")
    assert abs(exact.value - sampled.value) < 4 * sampled.stderr
    r = Density("MultivariateNormal", {"loc": np.zeros(2), "scale_tril": np.eye(2)})
    with pytest.raises(NoClosedFormError, match="MultivariateNormal and MultivariateNormal"):
        total_variation(p, r, "exact")
    assert total_variation(p, r).method == "monte_carlo"


def test_independent_students_multiply_their_affinities():
    base = [Density("StudentT", {"df": 4.0, "loc": np.array(m), "scale": 1.0}) for m in ([0.0, 1.0], [0.5, -1.0])]
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
        (mixture([0.3, 0.7], [-2.0, 1.0], [0.1, 1.0]), normal(0.5, 2.0),
         _MixtureOfTwo(0.3, stats.norm(-2, 0.1), stats.norm(1, 1)), stats.norm(0.5, 2.0)),
        (normal(0.0, 1.0), Density("Laplace", {"loc": 0.3, "scale": 0.8}), stats.norm(0, 1), stats.laplace(0.3, 0.8)),
        (normal(0.0, 1e-3), Density("StudentT", {"df": 3.0, "loc": 1.0, "scale": 2.0}), stats.norm(0, 1e-3),
         stats.t(3, 1, 2)),
        (Density("Cauchy", {"loc": 0.0, "scale": 1.0}), normal(0.0, 1.0), stats.cauchy(0, 1), stats.norm(0, 1)),
        (gamma(2.0, 1.0), Density("LogNormal", {"loc": 0.5, "scale": 0.7}), stats.gamma(2.0),
         stats.lognorm(0.7, scale=math.exp(0.5))),
        (Density("Exponential", {"rate": 1.0}), Density("Uniform", {"low": 0.5, "high": 2.0}), stats.expon(),
         stats.uniform(0.5, 1.5)),
    ]  # fmt: skip
    for p, q, first, second in cases:
        got = divergence(p, q)
        assert got.method == "quadrature"
        assert float(got.value) == pytest.approx(reference.divergence(kind, first, second), rel=1e-8, abs=1e-12)
        assert float(divergence(q, p).value) == pytest.approx(float(got.value), rel=1e-11)


def test_total_variation_needs_its_panels_split_where_the_densities_cross(monkeypatch):
    """The same panels without the crossings err: |p − q| has a kink there. (Positive control of the split.)"""
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
    p, q = (Density("ZeroInflated", {"gate": w, "base": gamma(2.0, r)}) for w, r in ((g, 1.0), (h, 1.5)))
    y = np.linspace(0, 60, 400_001)
    first, second = (1 - g) * stats.gamma(2.0).pdf(y), (1 - h) * stats.gamma(2.0, scale=1 / 1.5).pdf(y)
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
    p, q = (Density("ZeroInflated", {"gate": w, "base": Density("Poisson", {"rate": r})}) for w, r in ((0.3, 2.0), (0.1, 3.0)))
    k = np.arange(80)
    first, second = ((k == 0) * w + (1 - w) * stats.poisson(r).pmf(k) for w, r in ((0.3, 2.0), (0.1, 3.0)))
    assert float(hellinger2(p, q).value) == pytest.approx(1 - np.sqrt(first * second).sum(), abs=1e-14)
    assert float(total_variation(p, q).value) == pytest.approx(np.abs(first - second).sum() / 2, abs=1e-14)
    assert float(l2_squared(p, q).value) == pytest.approx(((first - second) ** 2).sum(), abs=1e-14)


def test_atoms_and_densities_are_mutually_singular():
    atom, other = Density("Delta", {"v": 1.0}), Density("Delta", {"v": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(hellinger2(atom, other).value, [0.0, 1.0])
    np.testing.assert_array_equal(total_variation(atom, other).value, [0.0, 1.0])
    np.testing.assert_array_equal(l2_squared(atom, other).value, [0.0, 2.0])
    for lonely in (atom, Density("Poisson", {"rate": 2.0})):
        for divergence in (hellinger2, total_variation):
            assert float(divergence(lonely, normal(0.0)).value) == 1.0
            assert float(divergence(normal(0.0), lonely, "quadrature").value) == pytest.approx(1.0, abs=1e-12)
            assert float(divergence(normal(0.0), lonely, "monte_carlo").value) == 1.0
    assert float(l2_squared(atom, normal(0.0)).value) == pytest.approx(1 + 1 / (2 * math.sqrt(math.pi)), rel=1e-12)
    assert float(hellinger2(Density("Delta", {"v": 2.0}), Density("Poisson", {"rate": 2.0})).value) == pytest.approx(
        1 - math.sqrt(stats.poisson(2).pmf(2)), abs=1e-14
    )


def test_far_apart_counts_do_not_sum_over_the_gap():
    p, q = Density("Poisson", {"rate": 1.0}), Density("NegativeBinomial", {"total_count": 1e6, "probs": 0.9})
    assert float(hellinger2(p, q).value) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("family", "p", "q"), [
    ("Gamma", (0.3, 1.0), (0.2, 2.0)),
    ("Beta", (0.3, 0.4), (0.5, 0.2)),
    ("Beta", (3.0, 0.15), (2.0, 0.3)),
])  # fmt: skip
def test_densities_with_singular_ends(family, p, q):
    """Integrable singularities at either end of the support, against closed forms and mpmath's tanh-sinh."""
    first, second = (Density(family, dict(zip(_ARGS[family], args))) for args in (p, q))
    with mp.workdps(40):
        truth = float(-mp.expm1(_mp_log_bc[family](*map(mp.mpf, (*p, *q)))))
    assert float(hellinger2(first, second, "quadrature").value) == pytest.approx(truth, abs=1e-9)
    exact, numeric = total_variation(first, second, "exact"), total_variation(first, second, "quadrature")
    assert float(exact.value) == pytest.approx(float(numeric.value), abs=1e-9)


def test_l2_is_infinite_where_a_density_is_not_square_integrable():
    for method in ("auto", "exact", "quadrature"):
        assert l2_squared(gamma(0.5, 1.0), gamma(2.0, 1.0), method).value == np.inf
        assert l2_squared(beta(2.0, 0.4), beta(2.0, 2.0), method).value == np.inf
        assert l2_squared(gamma(0.3, 1.0), gamma(0.3, 1.0), method).value == 0.0
    assert l2_squared(gamma(0.5, 1.0), normal(0.0)).value == np.inf
    close = gamma(0.6, 1.0), gamma(0.7, 1.3)
    assert float(l2_squared(*close, "quadrature").value) == pytest.approx(float(l2_squared(*close, "exact").value), rel=1e-8)


def test_l2_changes_under_a_transform_and_hellinger_does_not():
    on_log_scale, raw = (
        [Density(family, {"loc": m, "scale": 0.5}) for m in (0.0, 1.0)] for family in ("Normal", "LogNormal")
    )
    assert hellinger2(*on_log_scale).value == hellinger2(*raw).value
    assert float(l2_squared(*raw).value) != pytest.approx(float(l2_squared(*on_log_scale).value), rel=1e-2)


def test_truncated_normals_on_different_intervals():
    p = Density("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": -1.0, "high": 2.0})
    q = Density("TruncatedNormal", {"loc": 0.5, "scale": 1.5, "low": 0.0, "high": np.inf})
    for kind, divergence in DIVERGENCES.items():
        truth = reference.divergence(kind, *(reference.DISTRIBUTIONS["TruncatedNormal"](d.args) for d in (p, q)))
        assert float(divergence(p, q, "exact").value) == pytest.approx(truth, abs=1e-10)
    far = Density("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": 3.0, "high": 4.0})
    assert float(hellinger2(p, far).value) == 1.0


# batches --------------------------------------------------------------------------------------------------------------


def test_batches_broadcast():
    settings_, rows = normal(np.linspace(-1, 1, 6).reshape(3, 2), 1.0), normal(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    for divergence in DIVERGENCES.values():
        for method in ("exact", "quadrature", "monte_carlo"):
            got = divergence(settings_, rows, method)
            assert got.value.shape == got.stderr.shape == (3, 2)
        single = divergence(settings_[1, 1], rows[1])
        assert np.ndim(single.value) == 0
        assert float(divergence(settings_, rows).value[1, 1]) == pytest.approx(float(single.value), rel=1e-13)


def test_large_batches_are_computed_in_chunks(monkeypatch):
    p, q = normal(np.linspace(0, 1, 50), 1.0), Density("Laplace", {"loc": 0.0, "scale": np.linspace(1, 2, 50)})
    whole = total_variation(p, q).value
    monkeypatch.setattr(divergences_numeric, "_BLOCK", 20_000)
    np.testing.assert_allclose(total_variation(p, q).value, whole, rtol=1e-12)


# Monte Carlo ----------------------------------------------------------------------------------------------------------


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
        assert 0.4 < np.sqrt(np.mean(score**2)) < 1.7  # neither too small nor too large a standard error


def test_monte_carlo_of_vectors_and_mixtures():
    rng = np.random.default_rng(4)
    p, q = (Density("Dirichlet", {"concentration": c}) for c in ([2.0, 3.0, 4.0], [3.0, 3.0, 3.0]))
    for divergence in (hellinger2, l2_squared):
        got = divergence(p, q, "monte_carlo")
        assert abs(got.value - divergence(p, q).value) < 4 * got.stderr
    tril = [np.tril(rng.normal(size=(2, 2))) + 2 * np.eye(2) for _ in range(2)]
    p, q = (Density("MultivariateNormal", {"loc": rng.normal(size=2), "scale_tril": t}) for t in tril)
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
    assert hellinger2(p, q, "monte_carlo", seed=3).value != hellinger2(p, q, "monte_carlo", seed=4).value
    few, many = (hellinger2(p, q, "monte_carlo", n_draws=n).stderr for n in (1000, 16_000))
    assert many == pytest.approx(few / 4, rel=0.15)


# properties -----------------------------------------------------------------------------------------------------------

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


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_three)
def test_metric_properties(drawn):
    family, *arguments = drawn
    p, q, r = (Density(family, args) for args in arguments)
    h, tv = ({pair: float(f(*pair).value) for pair in ((p, q), (q, p), (q, r), (p, r))} for f in (hellinger2, total_variation))
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
        gap = max(abs(a - b) for a, b in zip(arguments[0].values(), arguments[1].values()))
        assert gap < 1e-6 or (h[p, q] > 0 and tv[p, q] > 0)
    for divergence in (*DIVERGENCES.values(),):
        for method in ("auto", "quadrature"):
            assert divergence(p, p, method).value == 0


# the registry and bad input -------------------------------------------------------------------------------------------


def test_a_miss_shows_the_line_that_would_register_a_form(registry):
    p, q = (Density("StudentT", {"df": 1.0, "loc": 0.0, "scale": s}) for s in (1.0, 2.0))
    line = r'register_divergence\("log_affinity", "StudentT", "StudentT", lambda p, q: \.\.\.\)'
    with pytest.raises(NoClosedFormError, match=line):
        hellinger2(p, q, "exact")
    with pytest.raises(NoClosedFormError, match=line):
        log_affinity(p, q)
    with pytest.raises(NoClosedFormError, match=r'register_divergence\("total_variation", "Normal", "Laplace"'):
        total_variation(normal(0.0), Density("Laplace", {"loc": 0.0, "scale": 1.0}), "exact")
    register_divergence("log_affinity", "StudentT", "StudentT", lambda p, q: np.asarray(-0.25))
    assert float(hellinger2(p, q, "exact").value) == pytest.approx(1 - math.exp(-0.25))
    register_divergence("total_variation", "Normal", "Laplace", lambda p, q: np.asarray(p.args["scale"] * 0.125))
    laplace = Density("Laplace", {"loc": 0.0, "scale": 1.0})
    assert float(total_variation(laplace, normal(0.0), "exact").value) == 0.125  # in either order


def test_exponential_family_route(registry):
    """A family of the user's own: Rayleigh, registered by its log-partition, with and without the curvature."""
    register_family(Family(
        name="RayleighOfTheTest", args=("scale",), kind="continuous",
        log_prob=lambda args, y, xp: xp.log(y) - 2 * xp.log(args["scale"]) - y**2 / (2 * args["scale"] ** 2),
    ))  # fmt: skip

    def natural(xp, args):
        return -1 / (2 * args["scale"] ** 2)[..., None]

    register_exponential_family("RayleighOfTheTest", natural, lambda xp, eta: -xp.log(-eta[..., 0]))
    p, q = (Density("RayleighOfTheTest", {"scale": s}) for s in (1.0, 2.0))
    assert float(hellinger2(p, q, "exact").value) == pytest.approx(1 - 2 * 2 / 5, abs=1e-15)
    close = Density("RayleighOfTheTest", {"scale": 1.0 + 3e-5})
    truth = -math.expm1(math.log1p(-((3e-5) ** 2) / (1 + (1 + 3e-5) ** 2)))
    assert abs(float(hellinger2(p, close).value) / truth - 1) > 1e-9  # the rounding of A shows...
    register_exponential_family(
        "RayleighOfTheTest", natural, lambda xp, eta: -xp.log(-eta[..., 0]),
        lambda xp, eta, h: (h[..., 0] / eta[..., 0]) ** 2,
    )  # fmt: skip
    assert float(hellinger2(p, close).value) == pytest.approx(truth, rel=1e-10)  # ... and goes with the curvature


def test_exponential_family_route_with_truncation(registry):
    """Exponentials truncated to an interval, against integration."""
    register_family(Family(
        name="ShortExponentialOfTheTest", args=("rate", "low", "high"), kind="continuous",
        log_prob=lambda args, y, xp: -args["rate"] * y,
    ))  # fmt: skip
    register_exponential_family(
        "ShortExponentialOfTheTest",
        lambda xp, args: -args["rate"][..., None],
        lambda xp, eta: -xp.log(-eta[..., 0]),
        log_mass=lambda xp, eta, low, high: xp.log(xp.exp(eta[..., 0] * low) - xp.exp(eta[..., 0] * high)),
    )
    (r, a, b), (s, c, d) = (1.0, 0.0, 2.0), (0.5, 1.0, 3.0)
    p, q = (Density("ShortExponentialOfTheTest", dict(zip(("rate", "low", "high"), v))) for v in ((r, a, b), (s, c, d)))
    x, w = np.polynomial.legendre.leggauss(30)
    y, w = (x + 3) / 2, w / 2  # the common interval is [1, 2]
    norms = [(math.exp(-rate * low) - math.exp(-rate * high)) / rate for rate, low, high in ((r, a, b), (s, c, d))]
    affinity = (w * np.sqrt(np.exp(-(r + s) * y) / norms[0] / norms[1])).sum()
    assert float(hellinger2(p, q, "exact").value) == pytest.approx(1 - affinity, abs=1e-13)


def test_bad_input_is_named():
    p, q = normal(0.0), normal(1.0)
    with pytest.raises(SettingError, match="method must be one of auto, exact, quadrature, monte_carlo, got 'magic'"):
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
    with pytest.raises(FamilyError, match=r"batches \(2,\) of Normal and \(3,\) of Normal do not broadcast"):
        hellinger2(normal([0.0, 1.0]), normal([0.0, 1.0, 2.0]))
    with pytest.raises(FamilyError, match='Dirichlet and Dirichlet; use method="monte_carlo"'):
        total_variation(*(Density("Dirichlet", {"concentration": np.ones(3)}) for _ in range(2)), "quadrature")


def test_estimates_are_frozen():
    estimate = hellinger2(normal(0.0), normal(1.0))
    assert isinstance(estimate, Estimate)
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate.value = 0.0


def test_edges_of_the_discrete_families():
    """Probabilities 0 and 1, rate 0: hand values, no NaN."""
    def pair(family, name, values, **more):
        return [Density(family, {name: np.array(v)} | more) for v in values]

    assert float(hellinger2(*pair("Bernoulli", "probs", (0.0, 1.0))).value) == 1.0
    assert float(total_variation(*pair("Binomial", "probs", (1.0, 0.5), total_count=3.0)).value) == pytest.approx(7 / 8)
    assert float(total_variation(*pair("Binomial", "probs", (0.0, 0.5), total_count=3.0)).value) == pytest.approx(7 / 8)
    assert float(hellinger2(*pair("Poisson", "rate", (0.0, 2.0))).value) == pytest.approx(1 - math.exp(-1))
    assert float(total_variation(*pair("Poisson", "rate", (0.0, 2.0))).value) == pytest.approx(1 - math.exp(-2))
    value = float(l2_squared(*pair("Poisson", "rate", (0.0, 2.0))).value)
    assert value == pytest.approx(float(l2_squared(*pair("Poisson", "rate", (0.0, 2.0)), "quadrature").value), rel=1e-12)
    for divergence in DIVERGENCES.values():
        assert float(divergence(*pair("Poisson", "rate", (0.0, 0.0))).value) == 0.0
        assert float(divergence(*pair("Binomial", "probs", (0.2, 0.7), total_count=0.0)).value) == 0.0
