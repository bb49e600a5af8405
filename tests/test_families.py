"""Every family against scipy, against its own integral, and in three array libraries."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from gedppl.density import Density
from gedppl.errors import FamilyError
from gedppl.families import Family, family_names, get_family, register_family
from gedppl.families.family import FAMILIES, safe_log
from gedppl.functionals.expectation import expectation, quantile
from gedppl.numerics.integrate import lattice, panels
from tests.families_table import CASES, Case, N
from tests.optional_pyro import torch

HEAVY = {"Cauchy", "HalfCauchy"}  # no mean
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)


def _points(density: Density, kind: str, count: int = 7) -> np.ndarray:
    """(count, n) outcomes across the bulk of each density."""
    low, high = density.bulk(1e-3)
    y = low + (high - low) * np.linspace(0.001, 0.999, count)[:, None]
    return np.round(y) if kind == "discrete" else y


@every_case
def test_log_prob_and_tails_match_scipy(case: Case):
    density, reference = case.density(), case.reference()
    y = _points(density, case.kind)
    log_prob = reference.logpmf(y) if case.kind == "discrete" else reference.logpdf(y)
    np.testing.assert_allclose(density.log_prob(y), log_prob, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(density.cdf(y), reference.cdf(y), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(density.sf(y), reference.sf(y), rtol=1e-9, atol=1e-12)


@every_case
def test_moments_match_scipy_and_the_integral(case: Case):
    density, reference = case.density(), case.reference()
    np.testing.assert_allclose(expectation(density, np.ones_like), 1.0, atol=1e-9)
    if case.family in HEAVY:
        assert not np.isfinite(density.mean).any()
        return
    sd = np.sqrt(density.variance)
    if case.family != "VonMises":  # scipy's own variance of it is only right to 4e-5
        np.testing.assert_allclose(density.mean, reference.mean(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(density.variance, reference.var(), rtol=1e-12)
    centred = expectation(density, lambda y: (y - density.mean) / sd)
    np.testing.assert_allclose(centred, 0.0, atol=1e-8)
    # where the far tail carries the variance
    if case.family not in ("StudentT", "InverseGamma", "Pareto"):
        np.testing.assert_allclose(
            expectation(density, lambda y: ((y - density.mean) / sd) ** 2), 1.0, atol=1e-8
        )


@every_case
def test_bulk_holds_all_but_the_tail(case: Case):
    density, reference = case.density(), case.reference()
    # a Beta's mass next to 1 lies closer to it than floats do, so its upper end cannot reach the
    # smallest tail
    for tail in (1e-2, 1e-6) if case.family == "Beta" else (1e-2, 1e-6, 1e-12):
        low, high = density.bulk(tail)
        below = low - 0.5 if case.kind == "discrete" else low
        assert np.all(reference.cdf(below) + reference.sf(high) <= tail * (1 + 1e-6))


@every_case
def test_quantile_inverts_the_distribution_function(case: Case):
    density, reference = case.density(), case.reference()
    for p in (1e-4, 0.1, 0.5, 0.77, 0.999):
        q = quantile(density, p)
        if case.kind == "discrete":
            np.testing.assert_array_equal(q, reference.ppf(np.full(N, p)))
        else:
            np.testing.assert_allclose(density.cdf(q), p, rtol=1e-9)


@every_case
def test_samples_follow_the_family(case: Case):
    density = case.density()
    draws = density.sample(seed=3, size=4000)
    assert draws.shape == (4000, N)
    np.testing.assert_array_equal(draws, density.sample(seed=3, size=4000))
    # 4000 draws of 12 densities, compared at one point each: the frequency within 4.5 standard
    # errors
    q = quantile(density, 0.6)
    p = np.minimum(density.cdf(q), 1.0)
    error = (draws <= q).mean(0) - p
    assert np.all(np.abs(error) <= 4.5 * np.sqrt(p * (1 - p) / 4000) + 1e-12)


@every_case
def test_outside_the_support_the_log_density_is_minus_infinity(case: Case):
    density = case.density()
    low, high = density.support
    if case.family == "VonMises":
        return  # an angle: the density is periodic
    for outside in (low - 0.5, high + 0.5):
        y = np.where(np.isfinite(outside), outside, np.nan)
        known = np.isfinite(y)
        assert np.all(density.log_prob(np.where(known, y, 0.0))[known] == -np.inf)
    if case.kind == "discrete":
        assert np.all(density.log_prob(low + 0.5) == -np.inf)


@every_case
def test_torch_agrees_with_numpy(case: Case):
    density = case.density()
    other = density.map_args(torch.tensor)
    y = _points(density, case.kind)
    for ours, theirs in _everything(density, y).items():
        np.testing.assert_allclose(
            np.asarray(_everything(other, torch.tensor(y))[ours]),
            theirs,
            rtol=1e-9,
            atol=1e-11,
            err_msg=ours,
        )


FAST_IN_JAX = {"Normal", "Gamma"}  # the others need a compilation each: slow


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=() if c.family in FAST_IN_JAX else pytest.mark.slow, id=c.family)
        for c in CASES
    ],
)
def test_jax_agrees_with_numpy(case: Case):
    density = case.density()
    y = _points(density, case.kind)
    with jax.enable_x64(True):
        got = jax.jit(lambda leaves: _everything(density.rebuild(leaves), jnp.asarray(y)))(
            [jnp.asarray(leaf) for leaf in density.leaves()]
        )
        for name, value in _everything(density, y).items():
            np.testing.assert_allclose(
                np.asarray(got[name]), value, rtol=1e-9, atol=1e-11, err_msg=name
            )


def _everything(density: Density, y) -> dict:
    return {
        "log_prob": density.log_prob(y),
        "cdf": density.cdf(y),
        "sf": density.sf(y),
        "mean": density.mean,
        "variance": density.variance,
        "quantile": quantile(density, 0.8),
        "one": expectation(density, density.xp.ones_like),
    }


# derivatives at edge values -----------------------------------------------------------------------

EDGES = [
    ("Bernoulli", {"probs": 0.0}, 0.0),
    ("Bernoulli", {"probs": 1.0}, 1.0),
    ("Bernoulli", {"probs": 0.0}, 1.0),
    ("Binomial", {"total_count": 3.0, "probs": 0.0}, 0.0),
    ("Poisson", {"rate": 0.0}, 0.0),
    ("Categorical", {"probs": [0.0, 1.0]}, 1.0),
    ("Categorical", {"probs": [0.0, 1.0]}, 0.0),
    ("Exponential", {"rate": 1.0}, 0.0),
    ("Exponential", {"rate": 1.0}, -1.0),
    ("LogNormal", {"loc": 0.0, "scale": 1.0}, 0.0),
    ("Gamma", {"concentration": 2.0, "rate": 1.0}, 0.0),
    ("Gamma", {"concentration": 2.0, "rate": 1.0}, -1.0),
    ("Beta", {"concentration1": 2.0, "concentration0": 2.0}, 0.0),
    ("Beta", {"concentration1": 2.0, "concentration0": 2.0}, 1.5),
    ("Laplace", {"loc": 1.0, "scale": 1.0}, 1.0),
    ("Weibull", {"scale": 1.0, "concentration": 2.0}, 0.0),
    ("Uniform", {"low": 0.0, "high": 1.0}, 2.0),
    ("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": 40.0, "high": np.inf}, 41.0),
    ("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": -np.inf, "high": 1.0}, 2.0),
    ("StudentT", {"df": 3.0, "loc": 0.0, "scale": 1.0}, 0.0),
    ("Geometric", {"probs": 1.0}, 0.0),
    ("NegativeBinomial", {"total_count": 2.0, "probs": 0.0}, 0.0),
]


@pytest.mark.parametrize(("family", "args", "y"), EDGES)
def test_torch_derivatives_are_never_nan_at_the_edges(family, args, y):
    leaves = [
        torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in args.values()
    ]
    density = Density(family, dict(zip(args, leaves, strict=True)))
    for value in (density.log_prob(y), density.cdf(y)):
        grads = torch.autograd.grad(
            torch.where(torch.isfinite(value), value, 0.0), leaves, allow_unused=True
        )
        assert not any(torch.isnan(grad).any() for grad in grads if grad is not None)


def test_jax_derivatives_are_never_nan_at_the_edges():
    def log_prob(leaves, family, names, y):
        return _finite(Density(family, dict(zip(names, leaves, strict=True))).log_prob(y))

    @jax.jit  # one compilation for all edges
    def gradients():
        return [
            jax.grad(log_prob)(
                [jnp.asarray(value, float) for value in args.values()], family, list(args), y
            )
            for family, args, y in EDGES
        ]

    with jax.enable_x64(True):
        for edge, grads in zip(EDGES, gradients(), strict=True):
            assert not any(bool(np.isnan(grad).any()) for grad in grads), edge


def _finite(value):
    return jnp.where(jnp.isfinite(value), value, 0.0)


def test_far_tails_keep_their_digits():
    far = Density("TruncatedNormal", {"loc": 0.0, "scale": 1.0, "low": 40.0, "high": np.inf})
    np.testing.assert_allclose(far.mean, stats.truncnorm(40, np.inf).mean(), rtol=1e-10)
    np.testing.assert_allclose(
        Density("Cauchy", {"loc": 0.0, "scale": 1.0}).cdf(-1e12), 1 / (np.pi * 1e12), rtol=1e-12
    )
    np.testing.assert_allclose(
        Density("Normal", {"loc": 0.0, "scale": 1.0}).sf(20.0), stats.norm.sf(20), rtol=1e-12
    )


# vectors, mixtures, atoms -------------------------------------------------------------------------


def test_multivariate_normal_matches_scipy():
    rng = np.random.default_rng(0)
    loc, lower = rng.normal(size=(4, 3)), np.tril(rng.normal(size=(4, 3, 3))) + 3 * np.eye(3)
    density = Density("MultivariateNormal", {"loc": loc, "scale_tril": lower})
    y = rng.normal(size=(5, 4, 3))
    expected = np.stack(
        [
            stats.multivariate_normal(loc[i], lower[i] @ lower[i].T).logpdf(y[:, i])
            for i in range(4)
        ],
        axis=1,
    )
    np.testing.assert_allclose(density.log_prob(y), expected, rtol=1e-10)
    np.testing.assert_allclose(
        density.map_args(torch.tensor).log_prob(torch.tensor(y)).numpy(), expected, rtol=1e-10
    )
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            density.map_args(jnp.asarray).log_prob(jnp.asarray(y)), expected, rtol=1e-10
        )
    assert density.batch_shape == (4,)
    assert density.event_shape == (3,)
    draws = density.sample(seed=0, size=20000)
    se = np.sqrt(density.variance / 20000)
    assert np.all(np.abs(draws.mean(0) - density.mean) < 4.5 * se)


def test_dirichlet_matches_scipy():
    rng = np.random.default_rng(0)
    concentration = rng.uniform(0.5, 4, (4, 3))
    density = Density("Dirichlet", {"concentration": concentration})
    y = rng.dirichlet(np.ones(3), 4)
    expected = [stats.dirichlet(c).logpdf(row) for c, row in zip(concentration, y, strict=True)]
    np.testing.assert_allclose(density.log_prob(y), expected, rtol=1e-10)
    np.testing.assert_allclose(
        density.variance[0], stats.dirichlet(concentration[0]).var(), rtol=1e-12
    )
    assert np.all(density.log_prob(np.array([0.5, 0.6, -0.1])) == -np.inf)
    draws = density.sample(seed=0, size=20000)
    assert np.all(np.abs(draws.mean(0) - density.mean) < 4.5 * np.sqrt(density.variance / 20000))


def test_independent_adds_up():
    base = Density("Normal", {"loc": np.arange(6.0).reshape(2, 3), "scale": 1.0})
    density = Density("Independent", {"base": base, "event_ndim": 1})
    y = np.ones((2, 3))
    np.testing.assert_allclose(density.log_prob(y), base.log_prob(y).sum(-1))
    assert (density.batch_shape, density.event_shape, density.kind) == ((2,), (3,), "vector")
    assert density.sample(0, 5).shape == (5, 2, 3)
    assert density[1].mean.tolist() == [3.0, 4.0, 5.0]


def _mixture(n: int = 3) -> Density:
    rng = np.random.default_rng(2)
    components = Density(
        "Normal", {"loc": rng.normal(0, 3, (n, 2)), "scale": rng.uniform(0.2, 2, (n, 2))}
    )
    return Density("Mixture", {"probs": rng.dirichlet([2, 2], n), "components": components})


def test_mixture_of_one_family_and_of_several_agree_with_the_sum():
    same = _mixture()
    parts = tuple(same.args["components"][..., c] for c in range(2))
    several = Density("Mixture", {"probs": same.args["probs"], "components": parts})
    y = np.linspace(-5, 5, 9)[:, None] + np.zeros(3)
    total = sum(same.args["probs"][:, c] * np.exp(parts[c].log_prob(y)) for c in range(2))
    for density in (same, several):
        np.testing.assert_allclose(np.exp(density.log_prob(y)), total, rtol=1e-12)
        np.testing.assert_allclose(expectation(density, lambda v: v), density.mean, rtol=1e-10)
        np.testing.assert_allclose(
            expectation(density, np.square), density.variance + density.mean**2, rtol=1e-10
        )
        np.testing.assert_allclose(density.cdf(quantile(density, 0.3)), 0.3, rtol=1e-9)
        assert density.batch_shape == (3,)
    np.testing.assert_allclose(several[1].log_prob(0.5), same.row(1).log_prob(0.5))
    draws = same.sample(1, 20000)
    assert np.all(np.abs(draws.mean(0) - same.mean) < 4.5 * np.sqrt(same.variance / 20000))


def test_mixture_outside_every_support_has_log_density_minus_infinity_and_no_nan_derivative():
    rate = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    components = Density("Exponential", {"rate": rate})
    mixture = Density("Mixture", {"probs": torch.tensor([[0.5, 0.5]]), "components": components})
    value = mixture.log_prob(-1.0)
    assert value.item() == -np.inf
    (grad,) = torch.autograd.grad(torch.where(torch.isfinite(value), value, 0.0).sum(), rate)
    assert not torch.isnan(grad).any()


@pytest.mark.parametrize(
    "base",
    [("Poisson", {"rate": np.array([2.0, 7.0])}), ("Gamma", {"concentration": 2.0, "rate": 1.0})],
)
def test_zero_inflated(base):
    gate = np.array([0.3, 0.6])
    density = Density("ZeroInflated", {"gate": gate, "base": Density(*base)})
    np.testing.assert_allclose(expectation(density, np.ones_like), 1.0, atol=1e-10)
    np.testing.assert_allclose(expectation(density, lambda y: y), density.mean, rtol=1e-9)
    np.testing.assert_allclose(
        expectation(density, lambda y: y**2), density.variance + density.mean**2, rtol=1e-9
    )
    assert density.kind == ("discrete" if base[0] == "Poisson" else "mixed")
    at_zero = gate + (1 - gate) * (
        np.exp(Density(*base).log_prob(0.0)) if base[0] == "Poisson" else 0.0
    )
    np.testing.assert_allclose(np.exp(density.log_prob(0.0)), at_zero, rtol=1e-12)
    np.testing.assert_allclose(quantile(density, 0.2), 0.0, atol=1e-12)
    draws = density.sample(0, 20000)
    assert np.all(np.abs(draws.mean(0) - density.mean) < 4.5 * np.sqrt(density.variance / 20000))


def test_von_mises_is_the_law_of_an_angle_in_minus_pi_to_pi():
    density = Density(
        "VonMises", {"loc": np.array([3.0, 9.0]), "concentration": np.array([200.0, 0.7])}
    )
    edges = [-np.pi, -3.0, -2.8, 0.0, 2.6, 3.0, np.pi]
    for power, expected in ((0, np.ones(2)), (1, density.mean)):
        for i, row in enumerate([density.row(0), density.row(1)]):

            def integrand(y: float, row=row, power=power) -> float:
                return y**power * np.exp(row.log_prob(y))

            total = sum(
                integrate.quad(integrand, *ends, epsabs=1e-13)[0]
                for ends in itertools.pairwise(edges)
            )
            np.testing.assert_allclose(total, expected[i], atol=1e-10)


# the object ---------------------------------------------------------------------------------------


def test_density_shows_itself_and_comes_apart():
    density = Density("Normal", {"loc": np.zeros(50), "scale": np.ones(50)})
    assert repr(density) == "Normal(loc (50,), scale (50,)) with batch shape (50,)"
    mixture = _mixture()
    assert "components Normal(loc (3, 2), scale (3, 2))" in repr(mixture)
    leaves = mixture.leaves()
    assert [leaf.shape for leaf in leaves] == [(3, 2)] * 3
    again = mixture.rebuild([leaf + 0 for leaf in leaves])
    np.testing.assert_array_equal(again.log_prob(0.3), mixture.log_prob(0.3))
    doubled = density.map_args(lambda x: 2 * x)
    assert doubled.args["scale"][0] == 2.0
    assert density[2:5].batch_shape == (3,)
    wide = Density("Categorical", {"probs": np.full((4, 7, 3), 1 / 3)})
    assert (wide[1].batch_shape, wide.row(2).batch_shape, wide[..., 0].batch_shape) == (
        (7,),
        (4,),
        (4,),
    )


def test_density_passes_through_vmap_by_its_leaves():
    mixture = _mixture()
    with jax.enable_x64(True):
        got = jax.vmap(lambda leaves: mixture.rebuild(leaves).log_prob(0.3))(
            [jnp.asarray(x) for x in mixture.leaves()]
        )
        np.testing.assert_allclose(got, mixture.log_prob(0.3), rtol=1e-12)


def test_unknown_family_shows_the_line_that_registers_it():
    with pytest.raises(
        FamilyError,
        match=r"no family 'Triangular' is "
        r"registered.*register_family\(Family\(name='Tri",
    ):
        Density("Triangular", {"low": 0.0})


def test_wrong_arguments_are_named():
    with pytest.raises(FamilyError, match="Normal takes the arguments loc, scale; got mean, sd"):
        Density("Normal", {"mean": 0.0, "sd": 1.0})


def test_too_many_indices():
    with pytest.raises(FamilyError, match="has 1 batch axes and cannot take 2 indices"):
        _ = Density("Normal", {"loc": np.zeros(3), "scale": 1.0})[0, 0]


def test_a_missing_method_says_how_to_give_it():
    with pytest.raises(
        FamilyError,
        match=r"the family MultivariateNormal has no "
        r"cdf.*dataclasses.replace",
    ):
        Density("MultivariateNormal", {"loc": np.zeros(2), "scale_tril": np.eye(2)}).cdf(0.0)


def test_a_new_family_needs_only_its_log_density_and_its_bulk():
    register_family(
        Family(
            name="Triangle",
            args=("peak",),
            kind="continuous",
            log_prob=lambda args, y, xp: safe_log(
                2 * xp.clip(xp.minimum(y / args["peak"], (1 - y) / (1 - args["peak"])), 0.0, 1.0),
                xp,
            ),
            support=lambda args, xp: (0.0, 1.0),
            bulk=lambda args, tail, xp: (0.0, 1.0),
            breakpoints=lambda args, xp: (args["peak"],),
            chart="linear",
            core=lambda args, xp: (args["peak"], 0.1),
        )
    )
    try:
        density = Density("Triangle", {"peak": np.array([0.2, 0.5])})
        np.testing.assert_allclose(expectation(density, lambda y: y), [0.4, 0.5], rtol=1e-12)
        assert "Triangle" in family_names()
        assert get_family("Triangle").name == "Triangle"
    finally:
        del FAMILIES["Triangle"]


# panels and sums ----------------------------------------------------------------------------------


def test_panels_integrate_polynomials_between_unordered_points():
    nodes, weights = panels([np.array([2.0, 3.0]), 0.0, np.array([1.0, 0.5])], order=5)
    assert nodes.shape == (10, 2)
    np.testing.assert_allclose((weights * nodes**9).sum(0), np.array([2.0, 3.0]) ** 10 / 10)


def test_a_traced_sum_too_long_for_its_terms_is_nan_not_wrong():
    rates = jnp.array([3.0, 1e5])
    with jax.enable_x64(True):
        mass = jax.jit(lambda rate: lattice(Density("Poisson", {"rate": rate}))[1].sum(0))(rates)
    np.testing.assert_allclose(mass[0], 1.0, atol=1e-10)
    assert np.isnan(mass[1])
    np.testing.assert_allclose(
        lattice(Density("Poisson", {"rate": np.array([1e5])}))[1].sum(0), 1.0, atol=1e-9
    )
