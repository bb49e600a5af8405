"""`log_affinity` on JAX and torch arrays, and distributions of NumPyro, Pyro and torch taken as
they are.
"""

from __future__ import annotations

import numpy as np
import pytest

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, log_affinity, total_variation

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

# the arguments of p and of q (LogNormal and InverseGamma share the formulas of Normal and Gamma)
CASES = {
    "Normal": ({"loc": 0.3, "scale": 1.2}, {"loc": -0.4, "scale": 0.7}),
    "MultivariateNormal": (
        {"loc": [0.1, 0.2], "scale_tril": [[1.0, 0.0], [0.3, 0.8]]},
        {"loc": [0.4, -0.2], "scale_tril": [[1.3, 0.0], [-0.2, 0.9]]},
    ),
    "Laplace": ({"loc": 0.3, "scale": 1.2}, {"loc": -0.4, "scale": 0.7}),
    "TruncatedNormal": (
        {"loc": 0.3, "scale": 1.2, "low": -1.0, "high": 2.0},
        {"loc": -0.4, "scale": 0.7, "low": -1.0, "high": 2.0},
    ),
    "Exponential": ({"rate": 1.5}, {"rate": 0.6}),
    "Gamma": ({"concentration": 2.5, "rate": 1.5}, {"concentration": 0.7, "rate": 0.6}),
    "Beta": (
        {"concentration1": 2.5, "concentration0": 1.5},
        {"concentration1": 0.7, "concentration0": 6.0},
    ),
    "Dirichlet": ({"concentration": [2.5, 1.5, 0.8]}, {"concentration": [0.7, 6.0, 2.0]}),
    "Weibull": ({"scale": 1.5, "concentration": 2.0}, {"scale": 0.6, "concentration": 2.0}),
    "VonMises": ({"loc": 0.3, "concentration": 2.0}, {"loc": 1.3, "concentration": 5.0}),
    "Bernoulli": ({"probs": 0.3}, {"probs": 0.8}),
    "Binomial": ({"total_count": 7.0, "probs": 0.3}, {"total_count": 7.0, "probs": 0.8}),
    "Categorical": ({"probs": [0.3, 0.5, 0.2]}, {"probs": [0.1, 0.1, 0.8]}),
    "Poisson": ({"rate": 1.5}, {"rate": 0.6}),
    "NegativeBinomial": ({"total_count": 3.5, "probs": 0.3}, {"total_count": 3.5, "probs": 0.8}),
    "Geometric": ({"probs": 0.3}, {"probs": 0.8}),
}
# with Weibull's concentration, which the closed form needs equal
FIXED = {"low", "high", "total_count"}


def moving(family, args):
    fixed = FIXED | ({"concentration"} if family == "Weibull" else set())
    return [name for name in args if name not in fixed]


def numeric_gradient(family, p, q, name):
    """Central differences of the NumPy value in one argument of p."""
    base = np.asarray(p[name], float)
    out = np.zeros_like(base)
    for i in np.ndindex(base.shape):
        ends = []
        for step in (1e-5, -1e-5):
            moved = base.copy()
            moved[i] += step
            ends.append(float(log_affinity(Density(family, p | {name: moved}), Density(family, q))))
        out[i] = (ends[0] - ends[1]) / 2e-5
    return out


@pytest.mark.parametrize("family", CASES)
def test_log_affinity_on_jax_traces_and_differentiates(family):
    """Apart and at p = q, where many a formula divides 0 by 0."""
    p, q = ({k: np.asarray(v, float) for k, v in args.items()} for args in CASES[family])
    names = moving(family, p)
    with jax.enable_x64(True):

        def value(changing, left, right):
            return log_affinity(Density(family, left | changing), Density(family, right))

        traced = jax.jit(jax.value_and_grad(value))
        left, *others = ({k: jax.numpy.asarray(v) for k, v in args.items()} for args in (p, q, p))
        found = [traced({name: left[name] for name in names}, left, right) for right in others]
    for right, (got, gradient) in zip((q, p), found):
        want = float(log_affinity(Density(family, p), Density(family, right)))
        assert float(got) == pytest.approx(want, rel=1e-11, abs=1e-15)
        for name in names:
            change, slope = numeric_gradient(family, p, right, name), np.asarray(gradient[name])
            if name == "scale_tril":
                change, slope = np.tril(change), np.tril(slope)
            np.testing.assert_allclose(slope, change, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("family", CASES)
def test_log_affinity_on_torch_traces_and_differentiates(family):
    p, q = ({k: np.asarray(v, float) for k, v in args.items()} for args in CASES[family])
    names = moving(family, p)

    def value(changing):
        left = {k: torch.as_tensor(v) for k, v in p.items()} | changing
        return log_affinity(
            Density(family, left), Density(family, {k: torch.as_tensor(v) for k, v in q.items()})
        )

    start = {name: torch.as_tensor(p[name]) for name in names}
    gradient, got = torch.func.grad_and_value(value)(start)
    assert float(got) == pytest.approx(
        float(log_affinity(Density(family, p), Density(family, q))), rel=1e-11
    )
    for name in names:
        want, have = numeric_gradient(family, p, q, name), gradient[name].numpy()
        if name == "scale_tril":
            want, have = np.tril(want), np.tril(have)
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
    stacked = {name: torch.stack([value_, value_]) for name, value_ in start.items()}
    np.testing.assert_allclose(
        torch.func.vmap(value)(stacked).numpy(), [float(got)] * 2, rtol=1e-12
    )


def test_log_affinity_of_products_and_zero_inflation_traces():
    with jax.enable_x64(True):

        def value(loc):
            base = [
                Density("Normal", {"loc": m, "scale": jax.numpy.ones(3)})
                for m in (loc, jax.numpy.zeros(3))
            ]
            p, q = (Density("Independent", {"base": b, "event_ndim": 1}) for b in base)
            return log_affinity(p, q)

        loc = jax.numpy.array([0.1, 0.2, -0.3])
        assert float(jax.jit(value)(loc)) == pytest.approx(-float(loc @ loc) / 8, rel=1e-12)
        np.testing.assert_allclose(
            np.asarray(jax.grad(value)(loc)), -np.asarray(loc) / 4, rtol=1e-10
        )

        def inflated(gate):
            base = [
                Density("Gamma", {"concentration": jax.numpy.asarray(c), "rate": 1.0})
                for c in (2.0, 3.0)
            ]
            p, q = (
                Density("ZeroInflated", {"gate": g, "base": b}) for g, b in zip((gate, 0.1), base)
            )
            return log_affinity(p, q)

        slope = (inflated(0.3 + 1e-6) - inflated(0.3 - 1e-6)) / 2e-6
        assert float(jax.grad(inflated)(0.3)) == pytest.approx(float(slope), rel=1e-6)


# distributions as they are ------------------------------------------------------------------------


def _pairs(dist, array):
    """The same distributions in any of the three libraries, with the Density they stand for."""
    return [
        (
            dist.Normal(array([0.0, 1.0]), array(1.0)),
            dist.Normal(array(0.5), array([1.0, 2.0])),
            "Normal",
            {"loc": [0.0, 1.0], "scale": 1.0},
            {"loc": 0.5, "scale": [1.0, 2.0]},
        ),
        (
            dist.Gamma(array(2.0), array(1.0)),
            dist.Gamma(array(3.0), array(1.5)),
            "Gamma",
            {"concentration": 2.0, "rate": 1.0},
            {"concentration": 3.0, "rate": 1.5},
        ),
        (
            dist.Poisson(array(2.0)),
            dist.Poisson(array(3.0)),
            "Poisson",
            {"rate": 2.0},
            {"rate": 3.0},
        ),
        (
            dist.StudentT(array(4.0), array(0.0), array(1.0)),
            dist.StudentT(array(4.0), array(1.0), array(2.0)),
            "StudentT",
            {"df": 4.0, "loc": 0.0, "scale": 1.0},
            {"df": 4.0, "loc": 1.0, "scale": 2.0},
        ),
        (
            dist.Categorical(probs=array([0.2, 0.3, 0.5])),
            dist.Categorical(probs=array([0.5, 0.25, 0.25])),
            "Categorical",
            {"probs": [0.2, 0.3, 0.5]},
            {"probs": [0.5, 0.25, 0.25]},
        ),
    ]


def _compare(pairs):
    for p, q, family, first, second in pairs:
        densities = [
            Density(family, {k: np.asarray(v) for k, v in args.items()}) for args in (first, second)
        ]
        for divergence in (hellinger2, total_variation, l2_squared):
            got, want = divergence(p, q), divergence(*densities)
            assert got.method == want.method
            np.testing.assert_allclose(got.value, want.value, rtol=1e-12)
            assert isinstance(got.value, np.ndarray | np.float64)


def test_numpyro_distributions_as_they_are():
    dist = pytest.importorskip("numpyro.distributions")
    with jax.enable_x64(True):
        _compare(_pairs(dist, lambda v: jax.numpy.asarray(v, dtype=float)))


@pytest.mark.parametrize("module", ["torch.distributions", "pyro.distributions"])
def test_torch_and_pyro_distributions_as_they_are(module):
    dist = pytest.importorskip(module)
    _compare(_pairs(dist, lambda v: torch.tensor(v, dtype=torch.float64)))


def test_a_distribution_of_an_unknown_class_is_compared_by_monte_carlo():
    dist = pytest.importorskip("torch.distributions")
    p = dist.Kumaraswamy(
        torch.tensor(2.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)
    )
    q = dist.Beta(torch.tensor(2.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64))
    y = np.linspace(0, 1, 400_001)[1:-1]
    first = 6 * y * (1 - y**2) ** 2
    second = 12 * y * (1 - y) ** 2
    truth = np.abs(first - second).mean() / 2
    got = total_variation(p, q)
    assert got.method == "monte_carlo"
    assert abs(got.value - truth) < 4 * got.stderr
