"""What the two backends promise beyond the contract: isolation, laziness, enumeration, proofs,
compiled shapes.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
import scipy.stats
from numpyro.contrib.module import flax_module
from numpyro.distributions import constraints as nc

from gedppl import errors
from gedppl.density import Density
from gedppl.programs.affine import Level, levels
from gedppl.programs.contract import as_density, density_class, finite_class
from gedppl.programs.jax_reader import listing
from gedppl.rows import Rows, pieces
from tests.optional_pyro import HAS_PYRO, PPLS, pd, pyro, torch
from tests.programs import PROGRAMS, hierarchical_p, linear_n, linear_p, network_p, poisson_n
from tests.test_density_class import MeanOf, case

RNG = np.random.default_rng(11)
BY_NAME = {program.name: program for program in PROGRAMS}
X, A = RNG.normal(size=(5, 2)), np.array([0, 1, 2, 1, 0])
Y = RNG.normal(size=5)
BOTH = pytest.mark.parametrize("backend", PPLS)
BOTH_LINEAR = pytest.mark.parametrize("model", [linear_n, linear_p], ids=["numpyro", "pyro"])


def compiled(name: str, backend: str) -> Any:
    """A class that the contract test has already built, so that it is compiled once."""
    return case(BY_NAME[name])["classes"][backend]


# tracing ------------------------------------------------------------------------------------------


@BOTH_LINEAR
def test_tracing_waits_for_rows(model) -> None:
    cls = density_class(model)
    assert not cls.traced
    assert "not run yet" in repr(cls)
    with pytest.raises(errors.ModelError, match=r"density_class\(model, example=\(x, a\)\)"):
        cls.initial  # noqa: B018
    assert cls.log_likelihood(np.zeros(9), X, A, Y).shape == (5,)
    assert cls.traced
    program = cls.program
    assert cls.trace(X, A).program is program


def test_pyro_keeps_its_store_its_random_state_and_its_modules() -> None:
    store = pyro.get_param_store()
    with store.scope():
        pyro.param("w", torch.full((1,), 5.0))
        state, weights = torch.get_rng_state(), network_p.first.weight.detach().clone()
        for model in (linear_p, hierarchical_p, network_p):
            cls = density_class(model, example=(X, A))
            cls.total_grad(cls.initial, Rows.of(X, A, Y))
            cls.draw_prior(3, seed=0)
        assert list(store.keys()) == ["w"]
        assert store["w"].item() == 5.0
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(network_p.first.weight, weights)
        assert network_p.first.weight.dtype == torch.float32
        assert torch.get_default_dtype() == torch.float32


def test_jax_keeps_its_precision() -> None:
    cls = density_class(linear_n, example=(X, A))
    assert cls.log_likelihood(cls.initial, X, A, Y).dtype == np.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_threads_do_not_mix_their_sites() -> None:
    def slow(name: str, loc: float) -> Any:
        def model(x, a, y=None):
            w = numpyro.param(f"w_{name}", jnp.full(2, loc))
            time.sleep(0.02)
            numpyro.sample(f"y_{name}", nd.Normal(x @ w, 1.0), obs=y)

        return model

    found: dict[str, Any] = {}

    def work(name: str, loc: float) -> None:
        cls = density_class(slow(name, loc), example=(X, A))
        found[name] = ([site.name for site in cls.sites], cls.log_likelihood(cls.initial, X, A, Y))

    threads = [
        threading.Thread(target=work, args=(name, float(i))) for i, name in enumerate("abcd")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, name in enumerate("abcd"):
        names, logs = found[name]
        assert names == [f"w_{name}"]
        np.testing.assert_allclose(logs, scipy.stats.norm.logpdf(Y, X.sum(1) * i), rtol=1e-12)


def test_threads_would_mix_without_the_lock() -> None:
    """The positive control: NumPyro's handlers alone see the other thread's sites."""
    seen: dict[str, list[str]] = {}

    def work(name: str, first: float, second: float) -> None:
        def model():
            time.sleep(first)
            numpyro.sample(f"y_{name}", nd.Normal(0.0, 1.0), obs=0.0)
            time.sleep(second)

        seen[name] = list(numpyro.handlers.trace(model).get_trace())

    threads = [
        threading.Thread(target=work, args=("a", 0.3, 0.3)),
        threading.Thread(target=work, args=("b", 0.1, 0.1)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen != {"a": ["y_a"], "b": ["y_b"]}


# parameters ---------------------------------------------------------------------------------------


@BOTH_LINEAR
def test_init_bounds_and_inside(model) -> None:
    cls = density_class(
        model,
        init={"b": [1.0, 2.0, 3.0]},
        bounds={"w": 2.0, "b": (-1.0, [5.0, 5.0, 3.5])},
        example=(X, A),
    )
    start = cls.unflatten(cls.initial)
    np.testing.assert_allclose(start["b"], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(start["w"], 0.1, rtol=1e-6)
    inside = {"w": np.full((3, 2), 2 / np.sqrt(6)) * (1 - 1e-9), "b": [0.0, 5.0, 3.5]}
    assert cls.inside(cls.flatten(inside))
    assert not cls.inside(cls.flatten({**inside, "w": np.full((3, 2), 0.82)}))
    assert not cls.inside(cls.flatten({**inside, "b": [0.0, 0.0, 3.6]}))
    assert not cls.inside(cls.flatten({**inside, "b": [-1.1, 0.0, 0.0]}))
    both = np.stack([cls.flatten(inside), cls.flatten({**inside, "b": [9.0, 0.0, 0.0]})])
    np.testing.assert_array_equal(cls.inside(both), [True, False])


@BOTH
def test_the_prior_against_scipy(backend) -> None:
    cls = compiled("hierarchical", backend)
    theta = cls.flatten(
        {
            "centre": 0.3,
            "spread": 0.7,
            "effect": [0.1, 0.2, -0.4],
            "slope": [1.0, -1.0],
            "scale": 1.3,
        }
    )
    expected = (
        scipy.stats.norm.logpdf(0.3, 0.5, 1.0)
        + scipy.stats.halfnorm.logpdf(0.7)
        + np.log(0.7)  # the Jacobian of exp
        + scipy.stats.norm.logpdf([0.1, 0.2, -0.4], 0.3, 0.7).sum()
        + scipy.stats.norm.logpdf([1.0, -1.0]).sum()
        + scipy.stats.gamma.logpdf(1.3, 2.0, scale=0.5)
        + np.log(1.3)
    )
    np.testing.assert_allclose(cls.log_prior(theta), expected, rtol=1e-12)
    assert not cls.prior_free.any()
    draws = cls.unflatten(cls.draw_prior(384, seed=5))
    assert scipy.stats.kstest(draws["centre"], scipy.stats.norm(0.5, 1.0).cdf).pvalue > 1e-3
    assert scipy.stats.kstest(draws["spread"], scipy.stats.halfnorm.cdf).pvalue > 1e-3
    standard = (draws["effect"][:, 0] - draws["centre"]) / draws["spread"]
    assert scipy.stats.kstest(standard, scipy.stats.norm.cdf).pvalue > 1e-3
    assert abs(cls.unflatten(cls.initial)["centre"] - 0.5) < 0.5


@BOTH
def test_the_same_draws_from_the_prior_are_made_once(backend, monkeypatch) -> None:
    """Every refit asks for them, and Pyro draws them one by one."""
    cls, made = compiled("hierarchical", backend), []
    drawn = type(cls.program).drawn

    def counted(self, around, seed):
        made.append(seed)
        return drawn(self, around, seed)

    monkeypatch.setattr(type(cls.program), "drawn", counted)
    first = cls.draw_prior(7, seed=91)
    kept = np.array(first)
    first[:] = 0.0  # the caller's own
    np.testing.assert_array_equal(cls.draw_prior(7, seed=91), kept)
    assert made == [91]
    np.testing.assert_array_equal(cls.draw_prior(6, seed=91), kept[:6])
    assert not np.array_equal(cls.draw_prior(7, seed=92), kept)
    assert made == [91, 91, 92]


def test_a_support_that_depends_on_another_site() -> None:
    def model(x, a, y=None):
        top = numpyro.sample("top", nd.Uniform(1.0, 2.0))
        level = numpyro.sample("level", nd.Uniform(0.0, top))
        numpyro.sample("y", nd.Normal(level, 1.0).expand([x.shape[0]]), obs=y)

    cls = density_class(model, example=(X, A))
    draws = cls.unflatten(cls.draw_prior(64, seed=0))
    assert (draws["level"] < draws["top"]).all()
    np.testing.assert_allclose(
        cls.unflatten(cls.flatten(draws))["level"], draws["level"], rtol=1e-9
    )


def test_a_flax_module_is_one_more_parameter() -> None:
    net = flax.linen.Dense(3)

    def model(x, a, y=None):
        out = flax_module("net", net, input_shape=(1, 2))(x)
        numpyro.sample("y", nd.Normal(jnp.take_along_axis(out, a[:, None], 1)[:, 0], 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    kernel, bias = RNG.normal(size=(2, 3)), RNG.normal(size=3)
    tree = {"net$params": {"kernel": kernel, "bias": bias}}
    loc = (X @ kernel + bias)[np.arange(5), A]
    np.testing.assert_allclose(cls.density(tree, X, A).args["loc"], loc, rtol=1e-12)
    by_name = {"net$params/kernel": kernel, "net$params/bias": bias}
    np.testing.assert_allclose(cls.flatten(by_name), cls.flatten(tree))
    with pytest.raises(errors.ParameterError, match="must be a tree like the model's"):
        cls.flatten({"net$params": {"kernel": kernel}})


# the density --------------------------------------------------------------------------------------


@BOTH
def test_a_moving_support_gives_minus_infinity(backend) -> None:
    cls = compiled("moving_edge", backend)
    theta = cls.flatten({"top": [1.0, 2.0, 3.0]})
    logs = cls.log_likelihood(theta, X, A, np.full(5, 1.5))
    np.testing.assert_allclose(
        logs, np.where(A == 0, -np.inf, -np.log(np.array([1.0, 2.0, 3.0])[A]))
    )
    assert (
        cls.total(theta, Rows.of(X, A, np.full(5, 1.5)), np.array([0.0, 1.0, 1.0, 1.0, 0.0]))
        > -np.inf
    )


@BOTH
def test_hidden_states_are_summed_out_exactly(backend) -> None:
    cls = compiled("two_hidden_states", backend)
    p, level, hit = np.array([0.3, 0.7]), np.array([0.4, 2.5]), np.array([0.1, 0.8])
    theta, y = cls.flatten({"p": p, "levels": level}), np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    expected = np.zeros(5)
    for k in range(2):
        for bonus, weight in ((0, 1 - hit[k]), (1, hit[k])):
            expected += (
                p[k]
                * weight
                * scipy.stats.poisson.pmf(y, np.exp(0.1 * X[:, 0]) * (level[k] + bonus))
            )
    np.testing.assert_allclose(cls.log_likelihood(theta, X, A, y), np.log(expected), rtol=1e-10)
    assert cls.density_at(theta, X, A).family == "Mixture"


def test_a_distribution_nobody_knows_still_has_its_log_density() -> None:
    class Twice(nd.Normal):
        """Not a Normal, though it derives from one: its log_prob is its own."""

        def log_prob(self, value: Any) -> Any:
            return nd.Laplace(self.loc, self.scale).log_prob(value)

    def model(x, a, y=None):
        numpyro.sample("y", Twice(x @ numpyro.param("w", jnp.zeros(2)), 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    w = np.array([0.3, -0.2])
    expected = scipy.stats.laplace.logpdf(Y, X @ w)
    np.testing.assert_allclose(cls.log_likelihood(w, X, A, Y), expected, rtol=1e-12)
    density = cls.density_at(w, X, A)
    assert density.family == "External"
    with jax.enable_x64(True):
        np.testing.assert_allclose(density.log_prob(Y), expected, rtol=1e-12)
    with pytest.raises(errors.ModelError, match="2 settings cannot be one Density"):
        cls.density_at(np.zeros((2, 2)), X, A)


def test_loops_where_torch_cannot_vectorise() -> None:
    def model(x, a, y=None):
        w = pyro.param("w", torch.zeros(2))
        scale = 1.0 if float(w.detach().sum()) > 0 else 2.0  # looks at a value, which vmap refuses
        pyro.sample("y", pd.Normal(x @ w, scale), obs=y)

    cls = density_class(model, example=(X, A))
    theta = np.array([[0.5, 0.5], [-0.5, -0.5]])
    expected = [
        scipy.stats.norm.logpdf(Y, X @ theta[0], 1.0),
        scipy.stats.norm.logpdf(Y, X @ theta[1], 2.0),
    ]
    np.testing.assert_allclose(cls.log_likelihood(theta, X, A, Y), expected, rtol=1e-12)
    assert cls.program.vectorised["log_likelihood"] is False
    assert cls.predictor is None


# proofs -------------------------------------------------------------------------------------------

_C = np.array([1.0, 2.0, 3.0])
LEVELS = [
    ("sum", lambda t, xp: t + _as(xp, _C), Level.AFFINE),
    ("product", lambda t, xp: t * t, Level.OTHER),
    ("scaled", lambda t, xp: 3.0 * t - _as(xp, _C), Level.AFFINE),
    ("matrix", lambda t, xp: _as(xp, np.eye(3)) @ t, Level.AFFINE),
    ("exp", lambda t, xp: 2.0 * xp.exp(t[:2]), Level.EXP),
    ("exp of exp", lambda t, xp: xp.exp(xp.exp(t)), Level.OTHER),
    ("log exp", lambda t, xp: xp.log(xp.exp(t) / 3.0), Level.AFFINE),
    ("root of an exp", lambda t, xp: xp.sqrt(xp.exp(t)), Level.EXP),
    ("root", lambda t, xp: xp.sqrt(t), Level.OTHER),
    ("shifted exp", lambda t, xp: 1.0 + xp.exp(t), Level.OTHER),
    ("free", lambda t, xp: _as(xp, _C), Level.FREE),
    # the derivative of these is zero or constant almost everywhere, and yet they are not affine
    ("floor", lambda t, xp: xp.floor(t), Level.OTHER),
    ("step", lambda t, xp: xp.where(t > 0, _as(xp, _C), -_as(xp, _C)), Level.OTHER),
    ("relu", lambda t, xp: xp.where(t > 0, t, 0.0 * t), Level.OTHER),
    ("chosen by data", lambda t, xp: xp.where(_as(xp, _C) > 1.5, t, 2.0 * t), Level.AFFINE),
]


def torch_levels(function: Any, at: Any) -> list[Level]:
    from gedppl.programs.torch_reader import listing

    return levels(listing(function, at))


def _as(xp: Any, value: np.ndarray) -> Any:
    return torch.as_tensor(value) if xp is torch else jnp.asarray(value)


@pytest.mark.parametrize(
    ("function", "level"), [row[1:] for row in LEVELS], ids=[row[0] for row in LEVELS]
)
def test_levels_of_dependence(function, level) -> None:
    with jax.enable_x64(True):
        assert levels(listing(lambda t: [function(t, jnp)], jnp.zeros(3))) == [level]
    assert torch_levels(lambda t: [function(t, torch)], torch.zeros(3, dtype=torch.float64)) == [
        level
    ]


def test_a_stopped_gradient_is_no_affine_function() -> None:
    with jax.enable_x64(True):
        assert levels(listing(lambda t: [jax.lax.stop_gradient(t)], jnp.zeros(3))) == [Level.OTHER]
    assert torch_levels(lambda t: [t.detach()], torch.zeros(3, dtype=torch.float64)) == [
        Level.OTHER
    ]


@pytest.mark.parametrize(
    "distribution",
    [
        lambda eta, sd: nd.Bernoulli(probs=jax.nn.sigmoid(eta)),
        lambda eta, sd: nd.Normal(eta, sd),
        lambda eta, sd: nd.Normal(jnp.tanh(eta), 1.0),
        lambda eta, sd: nd.Poisson(jnp.exp(eta) + 0.1),
        lambda eta, sd: nd.Gamma(sd, jnp.exp(eta)),
        lambda eta, sd: nd.LogNormal(eta, 1.0),
    ],
)
def test_no_predictor_without_a_proof(distribution) -> None:
    def model(x, a, y=None):
        eta = x @ numpyro.param("w", jnp.zeros(2))
        numpyro.sample(
            "y", distribution(eta, numpyro.param("sd", 1.0, constraint=nc.positive)), obs=y
        )

    assert density_class(model, example=(X, A)).predictor is None


# shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65, 200, 512, 600, 2000, 5000])
def test_pieces_cover_the_rows_once(n) -> None:
    cut = list(pieces(n))
    np.testing.assert_array_equal(
        np.concatenate([np.arange(n)[part] for part, _ in cut]), np.arange(n)
    )
    assert all(part.stop - part.start <= size for part, size in cut)
    assert {size for _, size in cut} <= {8, 64, 512, 4096}


def test_a_growing_history_compiles_each_function_at_most_four_times() -> None:
    cls = density_class(poisson_n, example=(X, A))
    rng = np.random.default_rng(3)
    n = 2000
    x, a = rng.normal(size=(n, 2)), rng.integers(0, 3, n)
    y = rng.poisson(1.0, n).astype(float)
    theta = np.zeros((1, cls.dim))
    for size in (1, 5, 8, 63, 64, 65, 300, 512, 1000, 1025, 1999, 2000):
        rows = Rows.of(x[:size], a[:size], y[:size])
        total = cls.total(theta, rows)
        np.testing.assert_allclose(
            cls.log_likelihood(theta, x[:size], a[:size], y[:size]).sum(), total[0], rtol=1e-10
        )
        np.testing.assert_allclose(cls.values(MeanOf(), theta, x[:size], a[:size]), 1.0)
    assert max(cls.program.compilations.values()) <= 4
    assert len(cls.program.histories) <= 8


def test_many_settings_over_many_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gedppl.programs.jax_kernels.MAX_CELLS", 64)
    cls = density_class(linear_n, example=(X, A))
    theta = np.random.default_rng(0).normal(size=(37, cls.dim))
    loc = np.stack([cls.density_at(one, X, A).args["loc"] for one in theta[[0, 17, 36]]])
    np.testing.assert_allclose(
        cls.log_likelihood(theta, X, A, Y)[[0, 17, 36]], scipy.stats.norm.logpdf(Y, loc, 0.5)
    )


@BOTH
def test_a_history_is_checked_once_and_its_new_rows_always(
    backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = compiled("linear", backend)
    looked_at: list[int] = []
    check = cls.check_outcomes
    monkeypatch.setattr(
        cls, "check_outcomes", lambda x, a, y: looked_at.append(len(a)) or check(x, a, y)
    )
    first = Rows.of(X, A, Y)
    theta = np.zeros((1, cls.dim))
    cls.total(theta, first)
    cls.total_grad(theta, first)
    second = first.append(X[:2], A[:2], Y[:2])
    np.testing.assert_allclose(
        cls.total(theta, second), cls.log_likelihood(theta, second.x, second.a, second.y).sum(1)
    )
    assert looked_at == [5, 2, 7]
    with pytest.raises(errors.ActionRangeError, match="action 9"):
        cls.total(theta, second.append(X[:1], np.array([9]), Y[:1]))
    branch = first.append(X[3:], A[3:], Y[3:] + 1.0)  # another future of the same past
    np.testing.assert_allclose(
        cls.total(theta, branch), cls.log_likelihood(theta, branch.x, branch.a, branch.y).sum(1)
    )


@BOTH
def test_no_rows(backend) -> None:
    cls = compiled("linear", backend)
    theta = np.zeros((2, cls.dim))
    none = X[:0], A[:0], Y[:0]
    assert cls.log_likelihood(theta, *none).shape == (2, 0)
    assert cls.score(theta[0], *none).shape == (0, cls.dim)
    assert cls.values(MeanOf(), theta, *none[:2]).shape == (2, 0)
    empty = Rows.empty(dx=2)
    np.testing.assert_array_equal(cls.total(theta, empty), [0.0, 0.0])
    np.testing.assert_array_equal(cls.total_grad(theta, empty)[1], np.zeros((2, cls.dim)))
    np.testing.assert_array_equal(cls.total_hessian(theta[0], empty), np.zeros((cls.dim, cls.dim)))


# finite classes and distributions -----------------------------------------------------------------


def test_a_finite_class_of_two_models_in_two_ppls() -> None:
    def waiting(x, a, y=None):  # the same site name, another meaning
        numpyro.sample(
            "y", nd.Exponential(numpyro.param("w", jnp.ones(3), constraint=nc.positive)[a]), obs=y
        )

    wide = {"w": np.ones((3, 2)), "b": np.zeros(3)}
    flat = {"w": np.zeros((3, 2)), "b": np.array([0.0, 1.0, 2.0])}
    cls = finite_class([(linear_p, wide), (waiting, {"w": [1.0, 2.0, 3.0]}), (linear_p, flat)])
    y = np.array([0.3, 1.0, 2.0, -0.5, 1.0])
    logs = cls.log_likelihood(cls.every, X, A, y)
    assert cls.size == 3
    np.testing.assert_allclose(logs[0], scipy.stats.norm.logpdf(y, X.sum(1), 0.5), rtol=1e-12)
    np.testing.assert_allclose(logs[2], scipy.stats.norm.logpdf(y, A, 0.5), rtol=1e-12)
    # -inf where y = -0.5
    expected = scipy.stats.expon.logpdf(y, scale=1 / (A + 1.0))
    np.testing.assert_allclose(logs[1], expected, rtol=1e-12)
    assert np.isneginf(logs[1, 3])
    values = cls.values(MeanOf(), cls.every, X, A)
    np.testing.assert_allclose(values, [X.sum(1), 1 / (A + 1.0), A], rtol=1e-12)
    assert [cls.density(m, X, A).family for m in range(3)] == ["Normal", "Exponential", "Normal"]
    np.testing.assert_allclose(cls.density(2, X, A).args["loc"], A)


_PAIR = [nd.Normal(0.0, 1.0), nd.Laplace(1.0, 2.0)]
CASES = [
    (nd.Normal(0.3, 2.0), "Normal", 0.7),
    (nd.BernoulliLogits(0.4), "Bernoulli", 1.0),
    (nd.TruncatedNormal(0.1, 1.2, low=-1.0, high=2.0), "TruncatedNormal", 0.7),
    (nd.LeftTruncatedDistribution(nd.Normal(0.1, 1.2), low=-1.0), "TruncatedNormal", 0.7),
    (nd.RightTruncatedDistribution(nd.Normal(0.1, 1.2), high=1.0), "TruncatedNormal", -3.0),
    (nd.NegativeBinomial2(2.0, 3.0), "NegativeBinomial", 4.0),
    (nd.GammaPoisson(2.0, 0.7), "NegativeBinomial", 4.0),
    (nd.ZeroInflatedPoisson(0.2, 1.5), "ZeroInflated", 0.0),
    (
        nd.TransformedDistribution(
            nd.StudentT(4.0, 0.2, 1.0), nd.transforms.AffineTransform(1.0, -2.0)
        ),
        "StudentT",
        0.7,
    ),
    (
        nd.TransformedDistribution(nd.Normal(0.2, 0.5), nd.transforms.ExpTransform()),
        "LogNormal",
        0.7,
    ),
    (nd.Mixture(nd.Categorical(probs=np.array([0.4, 0.6])), _PAIR), "Mixture", 0.7),
    (nd.BetaBinomial(2.0, 3.0, total_count=6), "BetaBinomial", 4.0),
    (nd.Kumaraswamy(2.0, 3.0), "External", 0.7),
]


def pyro_cases() -> list[Any]:
    return [
        (pd.Normal(0.3, 2.0), "Normal", 0.7),
        (torch.distributions.Gamma(2.0, 3.0), "Gamma", 0.7),
        (pd.InverseGamma(3.0, 2.0), "InverseGamma", 0.7),
        (pd.HalfCauchy(1.5), "HalfCauchy", 0.7),
        (pd.VonMises(0.3, 2.0), "VonMises", 0.7),
        (pd.Pareto(1.0, 3.0), "Pareto", 1.7),
        (pd.Gumbel(0.5, 1.5), "Gumbel", 0.7),
        (
            pd.ZeroInflatedNegativeBinomial(3.0, probs=torch.tensor(0.4), gate=torch.tensor(0.2)),
            "ZeroInflated",
            0.0,
        ),
        (pd.Normal(torch.zeros(3), 1.0).to_event(1), "Independent", [0.1, 0.2, 0.3]),
        (
            pd.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2)),
            "MultivariateNormal",
            [0.1, 0.2],
        ),
    ]


CASES += pyro_cases() if HAS_PYRO else []


@pytest.mark.parametrize(
    ("distribution", "family", "y"),
    CASES,
    ids=[f"{type(d).__module__[:4]}-{f}" for d, f, _ in CASES],
)
def test_distributions_are_taken_as_they_are(distribution, family, y) -> None:
    before = dict(vars(distribution))
    density = as_density(distribution)
    assert density.family == family
    assert density.batch_shape == tuple(distribution.batch_shape)
    # lazy attributes of the caller's object stay unset
    assert vars(distribution).keys() == before.keys()
    y = jnp.asarray(y) if isinstance(distribution, nd.Distribution) else torch.tensor(y)
    expected = np.asarray(distribution.log_prob(y))
    # float32
    np.testing.assert_allclose(
        np.asarray(density.log_prob(np.asarray(y))), expected, rtol=2e-5, atol=2e-5
    )
    assert as_density(density) is density


def test_a_density_is_lowered_in_float64() -> None:
    density = as_density(nd.Normal(np.float64(0.1), np.float64(1.0)))
    assert isinstance(density, Density)
    assert density.args["loc"].dtype == np.float64
