"""Closed forms of the divergences against an independent reference and against our quadrature;
small divergences.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, total_variation
from gedppl.divergences.affinity import gammaln_gap
from gedppl.divergences.leaves import NUMPY
from gedppl.errors import NoClosedFormError
from tests import divergence_reference as reference
from tests.divergence_cases import DIVERGENCES, batch, beta, gamma, normal

NO_CLOSED_FORM = {("VonMises", "total_variation")}
CLOSENESS = (1.0, 0.2, 1e-3)


def draw_pairs(family, n, seed):
    rng = np.random.default_rng(seed)
    return [reference.PAIRS[family](rng, CLOSENESS[i % 3]) for i in range(n)]


# closed forms against the reference and against our quadrature ------------------------------------


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
    assert float(hellinger2(normal(0.0), normal(2.0)).value) == pytest.approx(
        1 - math.exp(-0.5), abs=1e-15
    )
    assert float(total_variation(normal(0.0), normal(2.0)).value) == pytest.approx(
        math.erf(1 / math.sqrt(2)), abs=1e-15
    )
    p, q = (Density("Laplace", {"loc": m, "scale": 1.0}) for m in (0.0, 1.0))
    assert float(hellinger2(p, q).value) == pytest.approx(1 - math.exp(-0.5) * 1.5, abs=1e-15)
    p, q = (
        Density("Categorical", {"probs": np.array(w)}) for w in ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5])
    )
    assert float(hellinger2(p, q).value) == pytest.approx(0.5, abs=1e-15)
    assert float(total_variation(p, q).value) == pytest.approx(0.5, abs=1e-15)
    assert float(l2_squared(p, q).value) == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_unequal_arguments_without_a_closed_form_fall_to_quadrature_entry_by_entry(kind):
    """Weibull and negative binomial: closed for one common concentration or count only."""
    for family, p, q in (
        (
            "Weibull",
            {"scale": [1.0, 1.0], "concentration": [2.0, 2.0]},
            {"scale": [1.5, 1.5], "concentration": [2.0, 1.0]},
        ),
        (
            "NegativeBinomial",
            {"total_count": [3.0, 3.0], "probs": [0.5, 0.5]},
            {"total_count": [3.0, 4.5], "probs": [0.4, 0.4]},
        ),
        (
            "Binomial",
            {"total_count": [5.0, 5.0], "probs": [0.5, 0.5]},
            {"total_count": [5.0, 8.0], "probs": [0.4, 0.4]},
        ),
    ):
        densities = [Density(family, {k: np.array(v) for k, v in args.items()}) for args in (p, q)]
        got = DIVERGENCES[kind](*densities)
        truth = [
            reference.divergence(
                kind,
                *(reference.DISTRIBUTIONS[family]({k: v[i] for k, v in a.items()}) for a in (p, q)),
            )
            for i in (0, 1)
        ]
        np.testing.assert_allclose(got.value, truth, rtol=1e-9)
        if family == "Weibull" or kind != "l2_squared":
            assert got.method == "quadrature"
            with pytest.raises(
                NoClosedFormError, match=f"{family} and {family} at some of these arguments"
            ):
                DIVERGENCES[kind](*densities, "exact")


# small divergences --------------------------------------------------------------------------------


def _mp_gap(f, a, b):
    return f((a + b) / 2) - f(a) / 2 - f(b) / 2


def _mp_truncated(m, s, n, r, low, high):
    def log_mass(m, s):  # both ends in the lower tail, so that nothing cancels
        return mp.log(
            (mp.erfc((low - m) / s / mp.sqrt(2)) - mp.erfc((high - m) / s / mp.sqrt(2))) / 2
        )

    middle, spread = (m * r**2 + n * s**2) / (s**2 + r**2), mp.sqrt(2 * s**2 * r**2 / (s**2 + r**2))
    return (
        _mp_log_bc["Normal"](m, s, n, r)
        + log_mass(middle, spread)
        - (log_mass(m, s) + log_mass(n, r)) / 2
    )


_mp_log_bc = {
    "Normal": lambda m, s, n, r: (
        mp.log(2 * s * r / (s**2 + r**2)) / 2 - (m - n) ** 2 / (4 * (s**2 + r**2))
    ),
    "Gamma": lambda a, b, c, d: (
        _mp_gap(mp.loggamma, a, c)
        + (a * mp.log(b) + c * mp.log(d)) / 2
        - (a + c) / 2 * mp.log((b + d) / 2)
    ),
    "Beta": lambda a, b, c, d: (
        _mp_gap(mp.loggamma, a, c) + _mp_gap(mp.loggamma, b, d) - _mp_gap(mp.loggamma, a + b, c + d)
    ),
    "Laplace": lambda m, b, n, c: (
        lambda u, v, d: mp.log(
            mp.sqrt(u * v)
            * (
                (mp.exp(-v * d) + mp.exp(-u * d)) / (u + v)
                + (mp.exp(-v * d) - mp.exp(-u * d)) / (u - v)
            )
        )
    )(1 / (2 * b), 1 / (2 * c), abs(m - n)),
    "VonMises": lambda m, k, n, c: (
        mp.log(mp.besseli(0, abs(k * mp.expj(m) + c * mp.expj(n)) / 2))
        - mp.log(mp.besseli(0, k) * mp.besseli(0, c)) / 2
    ),
    "Poisson": lambda a, b: -((mp.sqrt(a) - mp.sqrt(b)) ** 2) / 2,
    "Bernoulli": lambda a, b: mp.log(mp.sqrt(a * b) + mp.sqrt((1 - a) * (1 - b))),
    "Geometric": lambda a, b: mp.log(mp.sqrt(a * b) / (1 - mp.sqrt((1 - a) * (1 - b)))),
    "Exponential": lambda a, b: mp.log(2 * mp.sqrt(a * b) / (a + b)),
    "Weibull": lambda s, k, t, _: mp.log(2 * mp.sqrt(s**-k * t**-k) / (s**-k + t**-k)),
    "Uniform": lambda a, b, c, d: mp.log((min(b, d) - max(a, c)) / mp.sqrt((b - a) * (d - c))),
    "TruncatedNormal": _mp_truncated,
}
_ARGS = {
    "Normal": ("loc", "scale"),
    "Gamma": ("concentration", "rate"),
    "Beta": ("concentration1", "concentration0"),
    "Laplace": ("loc", "scale"),
    "VonMises": ("loc", "concentration"),
    "Poisson": ("rate",),
    "Bernoulli": ("probs",),
    "Geometric": ("probs",),
    "Exponential": ("rate",),
    "Weibull": ("scale", "concentration"),
    "Uniform": ("low", "high"),
    "TruncatedNormal": ("loc", "scale"),
}


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
        # the distance is of first order in the ends
        y = x * (1 + closeness**2 * rng.normal(size=2))
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
    """H² near 1e-9 within a relative 1e-6 of 50-digit arithmetic (the plain formula loses all of
    them).
    """
    rng = np.random.default_rng(5)
    seen = []
    with mp.workdps(60):
        for _ in range(25):
            x, y, common = _close_pair(family, rng, 6e-5)
            p, q = (Density(family, dict(zip(_ARGS[family], args)) | common) for args in (x, y))
            truth = -mp.expm1(
                mp.re(_mp_log_bc[family](*(mp.mpf(float(v)) for v in (*x, *y, *common.values()))))
            )
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
        log_bc = mp.fsum(_mp_gap(mp.loggamma, c, d) for c, d in zip(u, v)) - _mp_gap(
            mp.loggamma, mp.fsum(u), mp.fsum(v)
        )
        assert float(hellinger2(p, q).value) == pytest.approx(float(-mp.expm1(log_bc)), rel=1e-8)

        tril = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
        other = tril + 3e-5 * np.tril(rng.normal(size=(3, 3)))
        loc, shift = rng.normal(size=3), 3e-5 * rng.normal(size=3)
        p, q = (
            Density("MultivariateNormal", {"loc": m, "scale_tril": t})
            for m, t in ((loc, tril), (loc + shift, other))
        )
        s, t = (mp.matrix(c.tolist()) * mp.matrix(c.tolist()).T for c in (tril, other))
        delta = mp.matrix([mp.mpf(float(c)) - mp.mpf(float(d)) for c, d in zip(loc + shift, loc)])
        mean = (s + t) / 2
        log_bc = (
            mp.log(mp.det(s) * mp.det(t)) / 4
            - mp.log(mp.det(mean)) / 2
            - (delta.T * mean**-1 * delta)[0] / 8
        )
        assert float(hellinger2(p, q).value) == pytest.approx(float(-mp.expm1(log_bc)), rel=1e-8)


@pytest.mark.parametrize(
    "family", ["Gamma", "Beta", "Poisson", "VonMises", "LogNormal", "NegativeBinomial"]
)
@pytest.mark.parametrize("kind", ["total_variation", "l2_squared"])
def test_small_total_variation_and_l2_keep_their_digits(family, kind):
    rng = np.random.default_rng(8)
    pairs = [reference.PAIRS[family](rng, 1e-5) for _ in range(8)]
    p, q = batch(family, pairs)
    truth = [
        reference.divergence(kind, *(reference.DISTRIBUTIONS[family](a) for a in pair))
        for pair in pairs
    ]
    assert max(truth) < 1e-3
    np.testing.assert_allclose(DIVERGENCES[kind](p, q).value, truth, rtol=1e-6)


def test_gammaln_gap_over_its_whole_range():
    rng = np.random.default_rng(1)
    with mp.workdps(50):
        for _ in range(200):
            a, b = np.exp(rng.uniform(-7, 12, 2))
            truth = float(_mp_gap(mp.loggamma, mp.mpf(a), mp.mpf(b)))
            assert float(gammaln_gap(NUMPY, np.float64(a), np.float64(b))) == pytest.approx(
                truth, rel=1e-12
            )


# edges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "p", "q"),
    [
        ("Gamma", (0.3, 1.0), (0.2, 2.0)),
        ("Beta", (0.3, 0.4), (0.5, 0.2)),
        ("Beta", (3.0, 0.15), (2.0, 0.3)),
    ],
)
def test_densities_with_singular_ends(family, p, q):
    """Integrable singularities at either end of the support, against closed forms and mpmath's
    tanh-sinh.
    """
    first, second = (Density(family, dict(zip(_ARGS[family], args))) for args in (p, q))
    with mp.workdps(40):
        truth = float(-mp.expm1(_mp_log_bc[family](*map(mp.mpf, (*p, *q)))))
    assert float(hellinger2(first, second, "quadrature").value) == pytest.approx(truth, abs=1e-9)
    exact, numeric = (
        total_variation(first, second, "exact"),
        total_variation(first, second, "quadrature"),
    )
    assert float(exact.value) == pytest.approx(float(numeric.value), abs=1e-9)


def test_l2_is_infinite_where_a_density_is_not_square_integrable():
    for method in ("auto", "exact", "quadrature"):
        assert l2_squared(gamma(0.5, 1.0), gamma(2.0, 1.0), method).value == np.inf
        assert l2_squared(beta(2.0, 0.4), beta(2.0, 2.0), method).value == np.inf
        assert l2_squared(gamma(0.3, 1.0), gamma(0.3, 1.0), method).value == 0.0
    assert l2_squared(gamma(0.5, 1.0), normal(0.0)).value == np.inf
    close = gamma(0.6, 1.0), gamma(0.7, 1.3)
    assert float(l2_squared(*close, "quadrature").value) == pytest.approx(
        float(l2_squared(*close, "exact").value), rel=1e-8
    )


def test_l2_changes_under_a_transform_and_hellinger_does_not():
    on_log_scale, raw = (
        [Density(family, {"loc": m, "scale": 0.5}) for m in (0.0, 1.0)]
        for family in ("Normal", "LogNormal")
    )
    assert hellinger2(*on_log_scale).value == hellinger2(*raw).value
    assert float(l2_squared(*raw).value) != pytest.approx(
        float(l2_squared(*on_log_scale).value), rel=1e-2
    )


def test_truncated_normals_on_different_intervals():
    p = Density("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": -1.0, "high": 2.0})
    q = Density("TruncatedNormal", {"loc": 0.5, "scale": 1.5, "low": 0.0, "high": np.inf})
    for kind, divergence in DIVERGENCES.items():
        truth = reference.divergence(
            kind, *(reference.DISTRIBUTIONS["TruncatedNormal"](d.args) for d in (p, q))
        )
        assert float(divergence(p, q, "exact").value) == pytest.approx(truth, abs=1e-10)
    far = Density("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": 3.0, "high": 4.0})
    assert float(hellinger2(p, far).value) == 1.0


def test_edges_of_the_discrete_families():
    """Probabilities 0 and 1, rate 0: hand values, no NaN."""

    def pair(family, name, values, **more):
        return [Density(family, {name: np.array(v)} | more) for v in values]

    assert float(hellinger2(*pair("Bernoulli", "probs", (0.0, 1.0))).value) == 1.0
    assert float(
        total_variation(*pair("Binomial", "probs", (1.0, 0.5), total_count=3.0)).value
    ) == pytest.approx(7 / 8)
    assert float(
        total_variation(*pair("Binomial", "probs", (0.0, 0.5), total_count=3.0)).value
    ) == pytest.approx(7 / 8)
    assert float(hellinger2(*pair("Poisson", "rate", (0.0, 2.0))).value) == pytest.approx(
        1 - math.exp(-1)
    )
    assert float(total_variation(*pair("Poisson", "rate", (0.0, 2.0))).value) == pytest.approx(
        1 - math.exp(-2)
    )
    value = float(l2_squared(*pair("Poisson", "rate", (0.0, 2.0))).value)
    assert value == pytest.approx(
        float(l2_squared(*pair("Poisson", "rate", (0.0, 2.0)), "quadrature").value), rel=1e-12
    )
    for divergence in DIVERGENCES.values():
        assert float(divergence(*pair("Poisson", "rate", (0.0, 0.0))).value) == 0.0
        assert (
            float(divergence(*pair("Binomial", "probs", (0.2, 0.7), total_count=0.0)).value) == 0.0
        )
