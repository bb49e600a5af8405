"""Programs written in both PPLs, with the same sites in the same order: the table behind the
contract test.

Each has dx = 2 contexts and K = 3 actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
from numpyro.contrib.module import eqx_module
from numpyro.distributions import constraints as nc

from tests.optional_pyro import HAS_PYRO, pc, pd, pyro, torch

DX, K = 2, 3


@dataclass(frozen=True, eq=False)
class Program:
    """One model in both PPLs."""

    name: str
    numpyro: Callable[..., Any]
    pyro: Callable[..., Any]
    outcomes: Callable[[np.random.Generator, int], np.ndarray]
    link: str | None = None  # of the linear predictor that must be proved
    # NumPyro's parameter name -> Pyro's, where they differ
    rename: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name


def _reals(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n)


def _positive(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.gamma(2.0, size=n)


def _unit(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.uniform(0.05, 0.95, n)


def _counts(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 5, n).astype(float)


def _labels(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 3, n).astype(float)


def _bits(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 2, n).astype(float)


def _pairs(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, 2))


# parameters that several programs share: an intercept and slopes by action ------------------------


def n_eta(x: Any, a: Any) -> Any:
    w = numpyro.param("w", 0.1 * jnp.ones((K, DX)))
    b = numpyro.param("b", jnp.zeros(K))
    return b[a] + (w[a] * x).sum(-1)


def p_eta(x: Any, a: Any) -> Any:
    w = pyro.param("w", 0.1 * torch.ones(K, DX))
    b = pyro.param("b", torch.zeros(K))
    return b[a] + (w[a] * x).sum(-1)


def n_positive(name: str, value: float = 1.0) -> Any:
    return numpyro.param(name, jnp.asarray(value), constraint=nc.positive)


def p_positive(name: str, value: float = 1.0) -> Any:
    return pyro.param(name, torch.tensor(value), constraint=pc.positive)


# the programs -------------------------------------------------------------------------------------


def linear_n(x, a, y=None):
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", nd.Normal(n_eta(x, a), 0.5), obs=y)


def linear_p(x, a, y=None):
    with pyro.plate("rows", x.shape[0]):
        pyro.sample("y", pd.Normal(p_eta(x, a), 0.5), obs=y)


def logistic_n(x, a, y=None):
    numpyro.sample("y", nd.Bernoulli(logits=n_eta(x, a)), obs=y)


def logistic_p(x, a, y=None):
    pyro.sample("y", pd.Bernoulli(logits=p_eta(x, a)), obs=y)


def poisson_n(x, a, y=None):
    numpyro.sample("y", nd.Poisson(jnp.exp(n_eta(x, a))), obs=y)


def poisson_p(x, a, y=None):
    pyro.sample("y", pd.Poisson(torch.exp(p_eta(x, a))), obs=y)


def gamma_n(x, a, y=None):
    numpyro.sample("y", nd.Gamma(2.5, 2.5 / jnp.exp(n_eta(x, a))), obs=y)


def gamma_p(x, a, y=None):
    pyro.sample("y", pd.Gamma(2.5, 2.5 / torch.exp(p_eta(x, a))), obs=y)


def beta_n(x, a, y=None):
    mean, precision = jax.nn.sigmoid(n_eta(x, a)), n_positive("precision", 5.0)
    numpyro.sample("y", nd.Beta(mean * precision, (1 - mean) * precision), obs=y)


def beta_p(x, a, y=None):
    mean, precision = torch.sigmoid(p_eta(x, a)), p_positive("precision", 5.0)
    pyro.sample("y", pd.Beta(mean * precision, (1 - mean) * precision), obs=y)


def student_n(x, a, y=None):
    numpyro.sample("y", nd.StudentT(n_positive("df", 4.0), n_eta(x, a), n_positive("scale")), obs=y)


def student_p(x, a, y=None):
    pyro.sample("y", pd.StudentT(p_positive("df", 4.0), p_eta(x, a), p_positive("scale")), obs=y)


def heteroscedastic_n(x, a, y=None):
    loc = n_eta(x, a)
    v = numpyro.param("v", jnp.zeros((K, DX)))
    numpyro.sample("y", nd.Normal(loc, jnp.exp(0.3 * (v[a] * x).sum(-1))), obs=y)


def heteroscedastic_p(x, a, y=None):
    loc = p_eta(x, a)
    v = pyro.param("v", torch.zeros(K, DX))
    pyro.sample("y", pd.Normal(loc, torch.exp(0.3 * (v[a] * x).sum(-1))), obs=y)


def zero_inflated_n(x, a, y=None):
    gate = numpyro.param("gate", 0.3 * jnp.ones(K), constraint=nc.unit_interval)
    numpyro.sample("y", nd.ZeroInflatedPoisson(gate[a], jnp.exp(n_eta(x, a))), obs=y)


def zero_inflated_p(x, a, y=None):
    gate = pyro.param("gate", 0.3 * torch.ones(K), constraint=pc.unit_interval)
    pyro.sample("y", pd.ZeroInflatedPoisson(torch.exp(p_eta(x, a)), gate=gate[a]), obs=y)


def mixture_n(x, a, y=None):
    weights = numpyro.param("weights", jnp.array([0.3, 0.7]), constraint=nc.simplex)
    eta = n_eta(x, a)
    locs = jnp.stack([eta, eta + 2.0], axis=-1)
    mixing = nd.Categorical(probs=jnp.broadcast_to(weights, locs.shape))
    numpyro.sample("y", nd.MixtureSameFamily(mixing, nd.Normal(locs, 0.7)), obs=y)


def mixture_p(x, a, y=None):
    weights = pyro.param("weights", torch.tensor([0.3, 0.7]), constraint=pc.simplex)
    eta = p_eta(x, a)
    locs = torch.stack([eta, eta + 2.0], dim=-1)
    mixing = pd.Categorical(probs=weights.expand(locs.shape))
    pyro.sample("y", pd.MixtureSameFamily(mixing, pd.Normal(locs, 0.7)), obs=y)


def hierarchical_n(x, a, y=None):
    centre = numpyro.sample("centre", nd.Normal(0.5, 1.0))
    spread = numpyro.sample("spread", nd.HalfNormal(1.0))
    with numpyro.plate("actions", K):
        effect = numpyro.sample("effect", nd.Normal(centre, spread))
    slope = numpyro.sample("slope", nd.Normal(0.0, 1.0).expand([DX]).to_event(1))
    scale = numpyro.sample("scale", nd.Gamma(2.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", nd.Normal(effect[a] + x @ slope, scale), obs=y)


def hierarchical_p(x, a, y=None):
    centre = pyro.sample("centre", pd.Normal(0.5, 1.0))
    spread = pyro.sample("spread", pd.HalfNormal(1.0))
    with pyro.plate("actions", K):
        effect = pyro.sample("effect", pd.Normal(centre, spread))
    slope = pyro.sample("slope", pd.Normal(0.0, 1.0).expand([DX]).to_event(1))
    scale = pyro.sample("scale", pd.Gamma(2.0, 2.0))
    with pyro.plate("rows", x.shape[0]):
        pyro.sample("y", pd.Normal(effect[a] + x @ slope, scale), obs=y)


# float32, as a user would make it
_NETWORK = eqx.nn.MLP(DX, K, 4, 1, activation=jnp.tanh, key=jax.random.key(0))


def network_n(x, a, y=None):
    net = eqx_module("net", _NETWORK)
    out = jax.vmap(net)(x)
    numpyro.sample("y", nd.Normal(jnp.take_along_axis(out, a[:, None], 1)[:, 0], 0.5), obs=y)


def _network() -> Any:
    from pyro.nn import PyroModule

    class Network(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(DX, 4)
            self.last = PyroModule[torch.nn.Linear](4, K)

        def forward(self, x, a, y=None):
            out = self.last(torch.tanh(self.first(x)))
            pyro.sample("y", pd.Normal(out.gather(1, a[:, None])[:, 0], 0.5), obs=y)

    return Network()


network_p = _network() if HAS_PYRO else None


def binomial_n(x, a, y=None):
    numpyro.sample("y", nd.Binomial(6, logits=n_eta(x, a)), obs=y)


def binomial_p(x, a, y=None):
    pyro.sample("y", pd.Binomial(6, logits=p_eta(x, a)), obs=y)


def exponential_n(x, a, y=None):
    numpyro.sample("y", nd.Exponential(jnp.exp(-n_eta(x, a))), obs=y)


def exponential_p(x, a, y=None):
    pyro.sample("y", pd.Exponential(torch.exp(-p_eta(x, a))), obs=y)


def negative_binomial_n(x, a, y=None):
    count = n_positive("count", 3.0)
    numpyro.sample("y", nd.NegativeBinomialLogits(count, n_eta(x, a)), obs=y)


def negative_binomial_p(x, a, y=None):
    count = p_positive("count", 3.0)
    pyro.sample("y", pd.NegativeBinomial(count, logits=p_eta(x, a)), obs=y)


def gamma_poisson_n(x, a, y=None):
    shape = n_positive("shape", 2.0)
    numpyro.sample("y", nd.GammaPoisson(shape, shape * jnp.exp(-n_eta(x, a))), obs=y)


def gamma_poisson_p(x, a, y=None):
    shape = p_positive("shape", 2.0)
    pyro.sample("y", pd.GammaPoisson(shape, shape * torch.exp(-p_eta(x, a))), obs=y)


def categorical_n(x, a, y=None):
    w = numpyro.param("w", jnp.zeros((K, 3, DX)))
    numpyro.sample("y", nd.Categorical(logits=jnp.einsum("ncd,nd->nc", w[a], x)), obs=y)


def categorical_p(x, a, y=None):
    w = pyro.param("w", torch.zeros(K, 3, DX))
    pyro.sample("y", pd.Categorical(logits=torch.einsum("ncd,nd->nc", w[a], x)), obs=y)


def ordinal_n(x, a, y=None):
    cuts = numpyro.param("cuts", jnp.array([-0.5, 0.8]), constraint=nc.ordered_vector)
    numpyro.sample("y", nd.OrderedLogistic(n_eta(x, a), cuts), obs=y)


def ordinal_p(x, a, y=None):
    cuts = pyro.param("cuts", torch.tensor([-0.5, 0.8]), constraint=pd.constraints.ordered_vector)
    pyro.sample("y", pd.OrderedLogistic(p_eta(x, a), cuts), obs=y)


def hidden_state_n(x, a, y=None):
    p = numpyro.param("p", 0.3 * jnp.ones(K), constraint=nc.unit_interval)
    eta = n_eta(x, a)
    with numpyro.plate("rows", x.shape[0]):
        state = numpyro.sample("state", nd.Bernoulli(p[a]), infer={"enumerate": "parallel"})
        numpyro.sample("y", nd.Normal(eta + 2.0 * state, 0.5 + 0.5 * state), obs=y)


def hidden_state_p(x, a, y=None):
    p = pyro.param("p", 0.3 * torch.ones(K), constraint=pc.unit_interval)
    eta = p_eta(x, a)
    with pyro.plate("rows", x.shape[0]):
        state = pyro.sample("state", pd.Bernoulli(p[a]), infer={"enumerate": "parallel"})
        pyro.sample("y", pd.Normal(eta + 2.0 * state, 0.5 + 0.5 * state), obs=y)


def two_hidden_states_n(x, a, y=None):
    p = numpyro.sample("p", nd.Dirichlet(jnp.array([2.0, 3.0])))
    levels = numpyro.param("levels", jnp.array([0.5, 3.0]))
    with numpyro.plate("rows", x.shape[0]):
        which = numpyro.sample("which", nd.Categorical(probs=p))
        bonus = numpyro.sample("bonus", nd.Bernoulli(jnp.array([0.1, 0.8])[which]))
        numpyro.sample(
            "y", nd.Poisson(jnp.exp(0.1 * x[:, 0]) * (jnp.abs(levels)[which] + bonus)), obs=y
        )


def two_hidden_states_p(x, a, y=None):
    p = pyro.sample("p", pd.Dirichlet(torch.tensor([2.0, 3.0])))
    levels = pyro.param("levels", torch.tensor([0.5, 3.0]))
    with pyro.plate("rows", x.shape[0]):
        which = pyro.sample("which", pd.Categorical(probs=p))
        bonus = pyro.sample(
            "bonus", pd.Bernoulli(torch.tensor([0.1, 0.8], dtype=torch.float64)[which])
        )
        pyro.sample(
            "y", pd.Poisson(torch.exp(0.1 * x[:, 0]) * (torch.abs(levels)[which] + bonus)), obs=y
        )


def vector_n(x, a, y=None):
    w = numpyro.param("w", 0.1 * jnp.ones((K, 2, DX)))
    tril = numpyro.param("tril", jnp.eye(2), constraint=nc.lower_cholesky)
    loc = jnp.einsum("ned,nd->ne", w[a], x)
    numpyro.sample("y", nd.MultivariateNormal(loc, scale_tril=tril), obs=y)


def vector_p(x, a, y=None):
    w = pyro.param("w", 0.1 * torch.ones(K, 2, DX))
    tril = pyro.param("tril", torch.eye(2), constraint=pc.lower_cholesky)
    loc = torch.einsum("ned,nd->ne", w[a], x)
    pyro.sample("y", pd.MultivariateNormal(loc, scale_tril=tril), obs=y)


def independent_n(x, a, y=None):
    eta = n_eta(x, a)
    numpyro.sample(
        "y", nd.Laplace(jnp.stack([eta, -eta], -1), n_positive("scale")).to_event(1), obs=y
    )


def independent_p(x, a, y=None):
    eta = p_eta(x, a)
    pyro.sample(
        "y", pd.Laplace(torch.stack([eta, -eta], -1), p_positive("scale")).to_event(1), obs=y
    )


def moving_edge_n(x, a, y=None):
    top = numpyro.param("top", 2.0 * jnp.ones(K), constraint=nc.positive)
    numpyro.sample("y", nd.Uniform(0.0, top[a]), obs=y)


def moving_edge_p(x, a, y=None):
    top = pyro.param("top", 2.0 * torch.ones(K), constraint=pc.positive)
    pyro.sample("y", pd.Uniform(0.0, top[a]), obs=y)


def lognormal_n(x, a, y=None):
    numpyro.sample("y", nd.LogNormal(n_eta(x, a), n_positive("scale", 0.5)), obs=y)


def lognormal_p(x, a, y=None):
    eta = p_eta(x, a)
    pyro.sample("y", pd.LogNormal(eta, p_positive("scale", 0.5)), obs=y)


def weibull_n(x, a, y=None):
    numpyro.sample("y", nd.Weibull(jnp.exp(n_eta(x, a)), n_positive("shape", 1.5)), obs=y)


def weibull_p(x, a, y=None):
    eta = p_eta(x, a)
    pyro.sample("y", pd.Weibull(torch.exp(eta), p_positive("shape", 1.5)), obs=y)


_SAME_ORDER = {
    "net$params/layers/0/weight": "first$$$weight",
    "net$params/layers/0/bias": "first$$$bias",
    "net$params/layers/1/weight": "last.weight",
    "net$params/layers/1/bias": "last.bias",
}

PROGRAMS = [
    Program("linear", linear_n, linear_p, _reals, link="identity"),
    Program("logistic", logistic_n, logistic_p, _bits, link="logit"),
    Program("poisson", poisson_n, poisson_p, _counts, link="log"),
    Program("gamma", gamma_n, gamma_p, _positive, link="log"),
    Program("beta", beta_n, beta_p, _unit),
    Program("student_t", student_n, student_p, _reals),
    Program("heteroscedastic", heteroscedastic_n, heteroscedastic_p, _reals),
    Program("zero_inflated", zero_inflated_n, zero_inflated_p, _counts),
    Program("mixture", mixture_n, mixture_p, _reals),
    Program("hierarchical", hierarchical_n, hierarchical_p, _reals),
    Program("network", network_n, network_p, _reals, rename=_SAME_ORDER),
    Program("binomial", binomial_n, binomial_p, _counts, link="logit"),
    Program("exponential", exponential_n, exponential_p, _positive, link="log"),
    Program("negative_binomial", negative_binomial_n, negative_binomial_p, _counts),
    Program("gamma_poisson", gamma_poisson_n, gamma_poisson_p, _counts),
    Program("categorical", categorical_n, categorical_p, _labels),
    Program("ordinal", ordinal_n, ordinal_p, _labels),
    Program("hidden_state", hidden_state_n, hidden_state_p, _reals),
    Program("two_hidden_states", two_hidden_states_n, two_hidden_states_p, _counts),
    Program("vector", vector_n, vector_p, _pairs),
    Program("independent", independent_n, independent_p, _pairs),
    Program("moving_edge", moving_edge_n, moving_edge_p, _unit),
    Program("lognormal", lognormal_n, lognormal_p, _positive),
    Program("weibull", weibull_n, weibull_p, _positive),
]
