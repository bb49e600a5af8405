"""The theorems' upper bounds: hand-computed cases, random small classes against the exact
dimension, the printed ones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

import gedppl as ged
from gedppl import errors
from gedppl.density import Density
from gedppl.theory import eluder
from gedppl.theory.eluder import bounds


def every_pair(members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i, j = np.triu_indices(len(members), 1)
    return members[i], members[j]


def in_ball(rng: np.random.Generator, n: int, d: int, radius: float) -> np.ndarray:
    v = rng.normal(size=(n, d))
    return radius * v / np.linalg.norm(v, axis=1, keepdims=True) * rng.random((n, 1)) ** (1 / d)


def squared_hellinger(
    family: str, arg: str, p: np.ndarray, q: np.ndarray, **fixed: float
) -> np.ndarray:
    return ged.hellinger2(
        Density(family, {arg: p, **fixed}), Density(family, {arg: q, **fixed})
    ).value


# the device ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "beta"), [(1.5, 20.0), (1.01, 3.0), (2.0, 0.75), (1.9, 1e17)])
def test_longest_is_the_last_root_and_the_closed_form_is_above_it(x: float, beta: float) -> None:
    B = bounds.longest(x, beta)
    assert x**B == pytest.approx(1 + beta * B, rel=1e-8)
    after = B * (1 + np.geomspace(1e-6, 1e3, 200))
    assert np.all(after * math.log(x) > np.log1p(beta * after))
    assert bounds.longest_closed_form(x, beta) >= B


def test_longest_without_room_is_zero() -> None:
    assert bounds.longest(2.0, math.log(2)) == 0.0
    assert bounds.longest(1.5, 0.0) == 0.0


# finite contexts and actions ----------------------------------------------------------------------


def test_finite_bound_is_attained() -> None:
    """Members that differ from the first in one point each: every order of the points is a
    chain.
    """
    d2 = np.eye(6)
    assert eluder.dimension(d2, 0.3, "exact") == bounds.finite(3, 2).dimension == 6
    assert bounds.finite(3, 2).printed == 6.0
    assert bounds.finite(3, 2).printed_ok


def test_a_pair_serves_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        d2 = rng.uniform(0, 1, (3, 7)) ** 2
        assert (
            eluder.dimension(d2, 0.05, "exact")
            <= eluder.upper_bound(d2, 0.05)
            <= bounds.finite(7, 1, n_members=3).dimension
        )
    assert bounds.finite(7, 1, n_members=3).dimension == 3


# linear densities under L2 ------------------------------------------------------------------------


def histogram_class(
    rng: np.random.Generator, d: int, cells: int, n: int
) -> tuple[np.ndarray, float]:
    """Mixtures of d histograms on [0, 1] at n points: squared L2 distances of 8 mixtures, and
    the features' largest norm.
    """
    phi = rng.dirichlet(np.full(cells, 0.4), (n, d)) * cells  # (n, d, cells), each integrates to 1
    theta = rng.dirichlet(np.ones(d), 8)
    p, q = every_pair(theta)
    gaps = np.einsum("pd,ndc->pnc", p - q, phi)
    return (gaps**2).mean(axis=2), float(np.linalg.norm(phi, axis=1).max())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("eps", [0.2, 0.6])
def test_linear_bound_above_exact(seed: int, eps: float) -> None:
    d2, norm = histogram_class(np.random.default_rng(seed), d=3, cells=5, n=8)
    found = eluder.dimension(d2, eps, "exact")
    bound = bounds.linear_l2(3, 1.0, norm, eps)
    assert 1 <= found <= bound.dimension <= bound.closed_form


@pytest.mark.parametrize("alpha", [0.7, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_conditioned_linear_bound_above_exact(alpha: float, seed: int) -> None:
    """Second moments c (I + perturbation) with condition number at most 1/alpha, c over three
    orders of magnitude.
    """
    rng = np.random.default_rng(seed)
    size = np.geomspace(1e-3, 1, 8)
    moments = np.stack([c * np.diag(rng.uniform(alpha, 1, 2)) for c in size])
    theta = in_ball(rng, 12, 2, 1.0)
    p, q = every_pair(theta)
    d2 = np.einsum("pi,nij,pj->pn", p - q, moments, p - q)
    norm = math.sqrt(np.trace(moments, axis1=1, axis2=2).max())
    for eps in (0.02, 0.1):
        bound = bounds.linear_l2(2, 1.0, norm, eps, alpha=alpha)
        assert 1 <= eluder.dimension(d2, eps, "exact") <= bound.dimension
        assert math.isfinite(bound.value)


def test_linear_bound_by_hand() -> None:
    """d = 1, alpha = 1: D^2 = c rho^2 with |rho| <= 2, scale 1. Each c must exceed the sum of
    those before it, the first 1/4: 0.26, 0.27, 0.54, 1.08, ..., 8.64 is a chain of 7 with c <=
    16.
    """
    c = np.array([0.26, 0.27, 0.54, 1.08, 2.16, 4.32, 8.64])
    before = np.concatenate([[0.0], np.cumsum(c)[:-1]])
    rho2 = np.minimum(4.0, 1 / np.where(before > 0, before, 0.25)) * (1 - 1e-9)
    d2 = rho2[:, None] * c
    chain = eluder.Chain(tuple(range(7)), 1.0)
    assert chain.verify(d2)
    assert eluder.dimension(d2, 1.0, "exact") == 7
    assert 7 <= bounds.linear_l2(1, 1.0, 4.0, 1.0, alpha=1.0).dimension <= 13


def test_printed_linear_bound_diverges_at_the_best_condition() -> None:
    """R = S = 1, eps = 0.05: printed 183.6 at alpha = 0.9, 150,148 at 0.9999, nothing at 1;
    corrected 23.7 and below 20.
    """
    at = {alpha: bounds.linear_l2(3, 1.0, 1.0, 0.05, alpha=alpha) for alpha in (0.9, 0.9999, 1.0)}
    assert at[0.9].printed == pytest.approx(183.6, abs=0.05)
    assert at[0.9].value == pytest.approx(23.7, abs=0.05)
    assert at[0.9].printed_ok
    assert at[0.9999].printed == pytest.approx(150148, abs=1)
    assert at[1.0].printed == math.inf
    assert not at[1.0].printed_ok
    assert at[1.0].value < 20 < at[0.9].value


# Gaussian, linear mean ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [0.05, 0.5])
def test_gaussian_bound_above_exact(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    theta, phi = in_ball(rng, 12, 2, 1.0), in_ball(rng, 9, 2, 1.0)
    p, q = every_pair(theta @ phi.T)
    d2 = squared_hellinger("Normal", "loc", p, q, scale=scale)
    for eps in (0.05, 0.3, 0.9):
        bound = bounds.gaussian_linear(2, 1.0, 1.0, scale, eps)
        assert eluder.dimension(d2, eps, "exact") <= bound.dimension <= bound.closed_form
    assert eluder.dimension(d2, 0.05, "exact") >= 2


def test_gaussian_bound_by_hand() -> None:
    """d = 1, scale 1, eps^2 = 1 - 1/e, so u = 1: a chain in q = (phi Delta)^2 / 8 at level 1
    (superadditivity). With |phi| <= 4 and |theta| <= 2 the first phi^2 exceeds 8/16 and each next
    the sum of those before: 0.51, 0.52, 1.04, 2.1, 4.2, 8.4 has 6 points; the seventh would need
    16.8 > 16. As H^2 <= q the true chain is no longer than that.
    """
    longest_linear = 6
    eps = math.sqrt(1 - math.exp(-1))
    grid = np.sqrt(np.geomspace(0.51, 16, 14))
    deltas = np.geomspace(0.05, 4, 400)
    d2 = squared_hellinger("Normal", "loc", deltas[:, None] * grid, np.zeros(1), scale=1.0)
    found = eluder.dimension(d2, eps, "greedy")
    bound = bounds.gaussian_linear(1, 2.0, 4.0, 1.0, eps)
    assert 3 <= found <= longest_linear <= bound.dimension <= 13
    assert bounds.gaussian_linear(1, 2.0, 4.0, 1.0, 1.0).dimension == 0


def test_gaussian_bound_has_no_inverse_variance_factor() -> None:
    """d = 1, eps = 0.3, scale 0.1: at most 23 where the c-constant route gives 1,136; ten times
    less noise adds a logarithm.
    """
    corrected = bounds.gaussian_linear(1, 1.0, 1.0, 0.1, 0.3)
    assert corrected.dimension <= 23
    assert corrected.printed is None
    assert bounds.gaussian_from_proof(1, 1.0, 1.0, 0.1, 0.3) == pytest.approx(1136, abs=0.5)
    quieter = bounds.gaussian_linear(1, 1.0, 1.0, 0.01, 0.3)
    assert quieter.value - corrected.value < 12
    assert bounds.gaussian_from_proof(1, 1.0, 1.0, 0.01, 0.3) > 90 * bounds.gaussian_from_proof(
        1, 1.0, 1.0, 0.1, 0.3
    )


# exponential families -----------------------------------------------------------------------------


def counterexample(lam: float, beta: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Points phi_k in (0, 1] and differences Delta_k <= 2 beta: Delta_k uses up eps^2 on the
    points before, phi_k exceeds it.
    """
    q = -math.log1p(-(eps**2))
    phi: list[float] = []
    delta: list[float] = []
    while True:

        def spent(gap: float) -> float:
            return float(-np.expm1(-lam * (gap * np.array(phi)) ** 2 / 8).sum()) - eps**2

        gap = 2 * beta if not phi or spent(2 * beta) <= 0 else brentq(spent, 1e-12, 2 * beta)
        gap *= 1 - 1e-7
        point = math.sqrt(8 * q / lam) / gap * (1 + 1e-7)
        if point > 1:
            return np.array(phi), np.array(delta)
        phi.append(point)
        delta.append(gap)


@pytest.mark.parametrize(("lam", "length", "halving"), [(1e6, 14, 32.7), (1e8, 20, 44.8)])
def test_printed_exponential_family_bound_is_false(lam: float, length: int, halving: float) -> None:
    """A = lam eta^2 / 2, that is Normal(lam eta, sqrt(lam)); eta = W phi, |W| <= 0.1, |phi| <=
    1, eps = 0.5, d = k = 1.
    """
    phi, delta = counterexample(lam, 0.1, 0.5)
    assert len(phi) >= length  # one more than the chain first reported, whose margins were wider
    assert np.abs(delta).max() <= 0.2
    assert phi.max() <= 1
    # the pairs W = +-Delta/2 lie inside the class; their distances by the library, the chain by the
    # definition
    loc = 0.5 * lam * delta[:, None] * phi
    d2 = squared_hellinger("Normal", "loc", loc, -loc, scale=math.sqrt(lam))
    assert eluder.Chain(tuple(range(len(phi))), 0.25).verify(d2)
    bound = bounds.exponential_family(1, 0.1, (lam, lam), 0.5)
    assert bound.printed == pytest.approx(3.17, abs=0.005)
    assert not bound.printed_ok
    assert len(phi) <= bound.dimension
    # the one-line form of the correction (s = 1), before minimising over s
    assert bounds.longest(1.5, lam * 0.01 / (2 * math.log(4 / 3))) == pytest.approx(
        halving, abs=0.05
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["Bernoulli", "Poisson"])
def test_exponential_family_bound_above_exact(family: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    beta = 1.5
    eta = in_ball(rng, 12, 2, beta) @ in_ball(rng, 9, 2, 1.0).T
    if family == "Bernoulli":
        members, arg, curvature = (
            1 / (1 + np.exp(-eta)),
            "probs",
            (math.exp(-beta) / (1 + math.exp(-beta)) ** 2, 0.25),
        )
    else:
        members, arg, curvature = np.exp(eta), "rate", (math.exp(-beta), math.exp(beta))
    d2 = squared_hellinger(family, arg, *every_pair(members))
    for eps in (0.02, 0.1, 0.3):
        bound = bounds.exponential_family(2, beta, curvature, eps)
        assert eluder.dimension(d2, eps, "exact") <= bound.dimension <= bound.closed_form
    assert eluder.dimension(d2, 0.02, "exact") >= 2


def test_exponential_family_bound_agrees_with_the_gaussian_one() -> None:
    """Normal(theta'phi, s^2) has -log affinity (theta'phi)^2 / 8 s^2, as the family with A'' =
    1/s^2 in eta = theta'phi.
    """
    for scale, eps in ((0.3, 0.2), (1.0, 0.05)):
        exponential = bounds.exponential_family(3, 0.7, (scale**-2, scale**-2), eps)
        gaussian = bounds.gaussian_linear(3, 0.7, 1.0, scale, eps)
        assert exponential.value == pytest.approx(gaussian.value, rel=1e-6)


def test_printed_exponential_family_bound_may_be_large_enough() -> None:
    bound = bounds.exponential_family(2, 1.5, (0.149, 0.25), 0.3)
    assert bound.printed_ok
    assert bound.printed is not None
    assert bound.printed >= bound.dimension
    assert "printed" in str(bound)


# input --------------------------------------------------------------------------------------------


def test_bad_input() -> None:
    with pytest.raises(errors.SettingError, match="eps must be positive"):
        bounds.gaussian_linear(1, 1.0, 1.0, 1.0, 0.0)
    with pytest.raises(errors.SettingError, match=r"alpha .* must lie in \(1/2, 1\]"):
        bounds.linear_l2(1, 1.0, 1.0, 0.1, alpha=0.5)
    with pytest.raises(errors.SettingError, match="0 < low <= high"):
        bounds.exponential_family(1, 1.0, (2.0, 1.0), 0.1)
    with pytest.raises(errors.SettingError, match="needs x > 1"):
        bounds.longest(1.0, 1.0)
