"""Models as practitioners write them, in NumPyro and in Pyro, and what the certificate says of
each.

Contexts have three columns: two numbers in [0, 1] and the number of a site, 0..3. Three actions,
unless an idiom says otherwise. The table is read by `tests/test_idioms.py`; `word` is what
`cls.exactness` begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
from numpyro.distributions import transforms as nt

import gedppl as ged
from gedppl.functionals import Functional
from tests.optional_pyro import pd, pyro, torch

K, SITES = 3, 4
DOSES = np.array([0.5, 1.0, 2.0])
KNOTS = np.linspace(0.0, 1.0, 6)
TABLE = np.random.default_rng(5).normal(size=(30, 4))
NET = np.random.default_rng(6).normal(size=(3, 5))


@dataclass(frozen=True)
class Idiom:
    """A model in one or both PPLs, a functional to bound, and the word of its certificate."""

    name: str
    numpyro: Callable[..., Any]
    functional: Functional
    pyro: Callable[..., Any] | None = None
    word: str = "exact"
    n_actions: int = K
    # of what the data see; None: the predictor may be affine in theta itself
    dim: int | None = None
    outer: bool = False  # its functional's bound is guaranteed and a little wide
    closed: bool = False  # linear-Gaussian: an ellipsoid in closed form, with nothing to search

    @property
    def guaranteed(self) -> bool:
        return "not" not in self.word

    def model(self, ppl: str) -> Any:
        return self.numpyro if ppl == "numpyro" else self.pyro


def contexts(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.column_stack([rng.random((n, 2)), rng.integers(0, SITES, n)])


# NumPyro ------------------------------------------------------------------------------------------


def beta_arms(x, a, y=None):
    with numpyro.plate("arms", K):
        p = numpyro.sample("p", nd.Beta(1.0, 5.0))
    with numpyro.plate("rows", len(a)):
        numpyro.sample("y", nd.Bernoulli(p[a]), obs=y)


def noncentred_sites(x, a, y=None):
    mu = numpyro.sample("mu", nd.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    z = numpyro.sample("z", nd.Normal(0.0, 1.0).expand([SITES]).to_event(1))
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    site = x[:, 2].astype(int)
    numpyro.sample("y", nd.Bernoulli(logits=mu + tau * z[site] + effect[a]), obs=y)


def centred_sites(x, a, y=None):
    mu = numpyro.sample("mu", nd.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    with numpyro.plate("sites", SITES):
        alpha = numpyro.sample("alpha", nd.Normal(mu, tau))
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=alpha[x[:, 2].astype(int)] + effect[a]), obs=y)


def noncentred_arms(x, a, y=None):
    mu = numpyro.sample("mu", nd.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    with numpyro.plate("arms", K):
        z = numpyro.sample("z", nd.Normal(0.0, 1.0))
    w = numpyro.deterministic("w", mu + tau * z)
    numpyro.sample("y", nd.Bernoulli(logits=w[a]), obs=y)


def lognormal_spend(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    beta = numpyro.sample("beta", nd.Normal(0.0, 1.0))
    numpyro.sample("y", nd.LogNormal(alpha[a] + beta * x[:, 0], 0.4), obs=y)


def lognormal_unknown_scale(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    sigma = numpyro.sample("sigma", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.LogNormal(alpha[a], sigma), obs=y)


def negative_binomial_demand(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(1.0, 0.5).expand([K]).to_event(1))
    trend = numpyro.sample("trend", nd.Normal(0.0, 0.5))
    numpyro.sample("y", nd.NegativeBinomial2(jnp.exp(base[a] + trend * x[:, 0]), 4.0), obs=y)


def negative_binomial_logits(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(0.0, 0.5).expand([K]).to_event(1))
    numpyro.sample("y", nd.NegativeBinomialLogits(3.0, base[a] - 0.5 * x[:, 0]), obs=y)


def negative_binomial_dispersion(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(1.0, 0.5).expand([K]).to_event(1))
    trend = numpyro.sample("trend", nd.Normal(0.0, 0.5))
    dispersion = numpyro.sample("dispersion", nd.Gamma(2.0, 0.5))
    mean = jnp.exp(base[a] + trend * x[:, 0])
    numpyro.sample("y", nd.NegativeBinomial2(mean, dispersion), obs=y)


def gamma_shape(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    shape = numpyro.sample("shape", nd.LogNormal(0.7, 0.5))
    numpyro.sample("y", nd.Gamma(shape, shape / jnp.exp(alpha[a] + 0.3 * x[:, 0])), obs=y)


def weibull_shape(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    shape = numpyro.sample("shape", nd.LogNormal(0.4, 0.3))
    numpyro.sample("y", nd.Weibull(jnp.exp(alpha[a] + 0.2 * x[:, 0]), shape), obs=y)


def normal_unknown_scale(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    sigma = numpyro.sample("sigma", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.Normal(w[a], sigma), obs=y)


def normal_scale_by_action(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    sigma = numpyro.sample("sigma", nd.LogNormal(0.0, 0.5).expand([K]).to_event(1))
    numpyro.sample("y", nd.Normal(w[a], sigma[a]), obs=y)


def ordinal_score(x, a, y=None):
    cut = numpyro.sample(
        "cut", nd.TransformedDistribution(nd.Normal(0.0, 1.0).expand([6]), nt.OrderedTransform())
    )
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    slope = numpyro.sample("slope", nd.Normal(0.0, 1.0))
    numpyro.sample("y", nd.OrderedLogistic(effect[a] + slope * x[:, 0], cut), obs=y)


def ordinal_from_increments(x, a, y=None):
    first = numpyro.sample("first", nd.Normal(-1.0, 1.0))
    steps = numpyro.sample("steps", nd.HalfNormal(1.0).expand([3]).to_event(1))
    cut = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.OrderedLogistic(effect[a], cut), obs=y)


def ordered_probit(x, a, y=None):
    """No class of its own in the packages: the chances are written out."""
    cut = numpyro.sample(
        "cut", nd.TransformedDistribution(nd.Normal(0.0, 1.0).expand([3]), nt.OrderedTransform())
    )
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    slope = numpyro.sample("slope", nd.Normal(0.0, 1.0))
    eta = effect[a] + slope * x[:, 0]
    below = nd.Normal(0.0, 1.0).cdf(cut - eta[:, None])
    ends = jnp.zeros((len(a), 1)), jnp.ones((len(a), 1))
    probs = jnp.diff(jnp.concatenate([ends[0], below, ends[1]], axis=-1), axis=-1)
    numpyro.sample("y", nd.Categorical(probs=probs), obs=y)


def probit(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    beta = numpyro.sample("beta", nd.Normal(0.0, 1.0))
    numpyro.sample(
        "y", nd.Bernoulli(probs=jax.scipy.stats.norm.cdf(alpha[a] + beta * x[:, 0])), obs=y
    )


def cloglog(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(-1.0, 1.0).expand([K]).to_event(1))
    beta = numpyro.sample("beta", nd.Normal(0.0, 1.0))
    numpyro.sample("y", nd.Bernoulli(probs=1 - jnp.exp(-jnp.exp(alpha[a] + beta * x[:, 0]))), obs=y)


def spline(x, a, y=None):
    """A linear B-spline basis with a random-walk prior."""
    sd = numpyro.sample("sd", nd.HalfNormal(0.5))
    steps = numpyro.sample("steps", nd.Normal(0.0, 1.0).expand([K, len(KNOTS)]).to_event(2))
    weights = jnp.cumsum(sd * steps, axis=1)
    basis = jnp.maximum(0.0, 1.0 - jnp.abs(x[:, :1] - KNOTS) / KNOTS[1])
    numpyro.sample("y", nd.Normal((basis * weights[a]).sum(-1), 0.3), obs=y)


def shared_features(x, a, y=None):
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([4]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=tau * (jnp.asarray(TABLE)[a] @ w) + x[:, 0]), obs=y)


def plates_everywhere(x, a, y=None):
    with numpyro.plate("arms", K, dim=-1):
        mu = numpyro.sample("mu", nd.Normal(0.0, 1.0))
        with numpyro.plate("columns", 2, dim=-2):
            w = numpyro.sample("w", nd.Normal(0.0, nd.HalfNormal(1.0).mean))
    with numpyro.plate("rows", len(a)):
        numpyro.sample("y", nd.Poisson(jnp.exp(0.5 * mu[a] + (w[:, a] * x[:, :2].T).sum(0))), obs=y)


def binomial_counts(x, a, y=None):
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    z = numpyro.sample("z", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.Binomial(total_count=1.0 + x[:, 2], logits=tau * z[a]), obs=y)


def exposure_offset(x, a, y=None):
    rate = numpyro.sample("rate", nd.Gamma(2.0, 1.0).expand([K]).to_event(1))
    beta = numpyro.sample("beta", nd.Normal(0.0, 0.5))
    exposure = 0.5 + x[:, 1]
    numpyro.sample("y", nd.Poisson(exposure * rate[a] * jnp.exp(beta * x[:, 0])), obs=y)


def sign_constrained_dose(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(-2.0, 1.0))
    beta = numpyro.sample("beta", nd.LogNormal(0.0, 1.0))
    numpyro.sample(
        "y",
        nd.Bernoulli(logits=alpha + beta * jnp.log(jnp.asarray(DOSES))[a] + 0.0 * x[:, 0]),
        obs=y,
    )


def horseshoe(x, a, y=None):
    tau = numpyro.sample("tau", nd.HalfCauchy(1.0))
    lam = numpyro.sample("lam", nd.HalfCauchy(1.0).expand([2]).to_event(1))
    z = numpyro.sample("z", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=x[:, :2] @ (tau * lam * z) + effect[a]), obs=y)


def emax_curve(x, a, y=None):
    e0 = numpyro.sample("e0", nd.Normal(0.0, 1.0))
    emax = numpyro.sample("emax", nd.HalfNormal(2.0))
    ed50 = numpyro.sample("ed50", nd.LogNormal(0.0, 1.0))
    dose = jnp.asarray(DOSES)[a]
    numpyro.sample("y", nd.Normal(e0 + emax * dose / (ed50 + dose), 0.5), obs=y)


def simplex_weights(x, a, y=None):
    w = numpyro.sample("w", nd.Dirichlet(jnp.ones(3)).expand([K]).to_event(1))
    parts = jnp.stack([0.1 + 0.8 * x[:, 0], 0.1 + 0.8 * x[:, 1], jnp.full(len(a), 0.5)], axis=1)
    numpyro.sample("y", nd.Bernoulli(probs=(w[a] * parts).sum(-1)), obs=y)


def gamma_durations(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.Gamma(2.0, 2.0 / jnp.exp(tau * alpha[a] + 0.3 * x[:, 0])), obs=y)


def weibull_durations(x, a, y=None):
    alpha = numpyro.sample("alpha", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.Weibull(jnp.exp(alpha[a] + 0.2 * x[:, 0]), 1.5), obs=y)


def waiting_times(x, a, y=None):
    rate = numpyro.sample("rate", nd.Gamma(2.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.Exponential(rate[a]), obs=y)


def laplace_noise(x, a, y=None):
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    z = numpyro.sample("z", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.Laplace(tau * z[a], 0.5), obs=y)


def correlated_coefficients(x, a, y=None):
    chol = numpyro.sample("chol", nd.LKJCholesky(2, 1.0))
    sd = numpyro.sample("sd", nd.HalfNormal(1.0).expand([2]).to_event(1))
    z = numpyro.sample("z", nd.Normal(0.0, 1.0).expand([K, 2]).to_event(2))
    w = z @ (sd[:, None] * chol).T
    numpyro.sample("y", nd.Bernoulli(logits=w[a, 0] + w[a, 1] * x[:, 0]), obs=y)


def last_layer(x, a, y=None):
    """Features of a fixed net, a linear layer with a hierarchical prior on top."""
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([K, 5]).to_event(2))
    features = jnp.tanh(x @ jnp.asarray(NET))
    numpyro.sample("y", nd.Normal((features * w[a]).sum(-1) * tau, 0.4), obs=y)


def student(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.StudentT(4.0, w[a], 1.0), obs=y)


def log_linear_scale(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    g = numpyro.sample("g", nd.Normal(0.0, 0.3))
    numpyro.sample("y", nd.Normal(w[a], jnp.exp(g * x[:, 0])), obs=y)


# Pyro ---------------------------------------------------------------------------------------------


def beta_arms_pyro(x, a, y=None):
    with pyro.plate("arms", K):
        p = pyro.sample("p", pd.Beta(1.0, 5.0))
    with pyro.plate("rows", len(a)):
        pyro.sample("y", pd.Bernoulli(p[a]), obs=y)


def noncentred_sites_pyro(x, a, y=None):
    mu = pyro.sample("mu", pd.Normal(0.0, 1.0))
    tau = pyro.sample("tau", pd.HalfNormal(1.0))
    z = pyro.sample("z", pd.Normal(0.0, 1.0).expand([SITES]).to_event(1))
    effect = pyro.sample("effect", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    pyro.sample("y", pd.Bernoulli(logits=mu + tau * z[x[:, 2].long()] + effect[a]), obs=y)


def noncentred_arms_pyro(x, a, y=None):
    mu = pyro.sample("mu", pd.Normal(0.0, 1.0))
    tau = pyro.sample("tau", pd.HalfNormal(1.0))
    with pyro.plate("arms", K):
        z = pyro.sample("z", pd.Normal(0.0, 1.0))
    w = pyro.deterministic("w", mu + tau * z)
    pyro.sample("y", pd.Bernoulli(logits=w[a]), obs=y)


def lognormal_spend_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    beta = pyro.sample("beta", pd.Normal(0.0, 1.0))
    pyro.sample("y", pd.LogNormal(alpha[a] + beta * x[:, 0], 0.4), obs=y)


def negative_binomial_logits_pyro(x, a, y=None):
    base = pyro.sample("base", pd.Normal(0.0, 0.5).expand([K]).to_event(1))
    pyro.sample("y", pd.NegativeBinomial(3.0, logits=base[a] - 0.5 * x[:, 0]), obs=y)


def negative_binomial_dispersion_pyro(x, a, y=None):
    base = pyro.sample("base", pd.Normal(1.0, 0.5).expand([K]).to_event(1))
    trend = pyro.sample("trend", pd.Normal(0.0, 0.5))
    dispersion = pyro.sample("dispersion", pd.Gamma(2.0, 0.5))
    log_mean = base[a] + trend * x[:, 0]
    logits = log_mean - torch.log(dispersion)
    pyro.sample("y", pd.NegativeBinomial(dispersion, logits=logits), obs=y)


def gamma_shape_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    shape = pyro.sample("shape", pd.LogNormal(0.7, 0.5))
    pyro.sample("y", pd.Gamma(shape, shape / torch.exp(alpha[a] + 0.3 * x[:, 0])), obs=y)


def weibull_shape_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    shape = pyro.sample("shape", pd.LogNormal(0.4, 0.3))
    pyro.sample("y", pd.Weibull(torch.exp(alpha[a] + 0.2 * x[:, 0]), shape), obs=y)


def normal_unknown_scale_pyro(x, a, y=None):
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    sigma = pyro.sample("sigma", pd.HalfNormal(1.0))
    pyro.sample("y", pd.Normal(w[a], sigma), obs=y)


def ordinal_score_pyro(x, a, y=None):
    cut = pyro.sample(
        "cut",
        pd.TransformedDistribution(
            pd.Normal(0.0, 1.0).expand([6]), pd.transforms.OrderedTransform()
        ),
    )
    effect = pyro.sample("effect", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    slope = pyro.sample("slope", pd.Normal(0.0, 1.0))
    pyro.sample("y", pd.OrderedLogistic(effect[a] + slope * x[:, 0], cut), obs=y)


def ordered_probit_pyro(x, a, y=None):
    cut = pyro.sample(
        "cut",
        pd.TransformedDistribution(
            pd.Normal(0.0, 1.0).expand([3]), pd.transforms.OrderedTransform()
        ),
    )
    effect = pyro.sample("effect", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    slope = pyro.sample("slope", pd.Normal(0.0, 1.0))
    below = torch.special.ndtr(cut - (effect[a] + slope * x[:, 0]).unsqueeze(-1))
    inner = below[..., 1:] - below[..., :-1]
    probs = torch.cat([below[..., :1], inner, 1 - below[..., -1:]], -1)
    pyro.sample("y", pd.Categorical(probs=probs), obs=y)


def probit_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    beta = pyro.sample("beta", pd.Normal(0.0, 1.0))
    pyro.sample("y", pd.Bernoulli(probs=pd.Normal(0.0, 1.0).cdf(alpha[a] + beta * x[:, 0])), obs=y)


def cloglog_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(-1.0, 1.0).expand([K]).to_event(1))
    beta = pyro.sample("beta", pd.Normal(0.0, 1.0))
    pyro.sample(
        "y", pd.Bernoulli(probs=1 - torch.exp(-torch.exp(alpha[a] + beta * x[:, 0]))), obs=y
    )


def spline_pyro(x, a, y=None):
    sd = pyro.sample("sd", pd.HalfNormal(0.5))
    steps = pyro.sample("steps", pd.Normal(0.0, 1.0).expand([K, len(KNOTS)]).to_event(2))
    weights = torch.cumsum(sd * steps, 1)
    basis = torch.clamp(1.0 - torch.abs(x[:, :1] - torch.as_tensor(KNOTS)) / KNOTS[1], min=0.0)
    pyro.sample("y", pd.Normal((basis * weights[a]).sum(-1), 0.3), obs=y)


def shared_features_pyro(x, a, y=None):
    tau = pyro.sample("tau", pd.HalfNormal(1.0))
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([4]).to_event(1))
    pyro.sample("y", pd.Bernoulli(logits=tau * (torch.as_tensor(TABLE)[a] @ w) + x[:, 0]), obs=y)


def binomial_counts_pyro(x, a, y=None):
    tau = pyro.sample("tau", pd.HalfNormal(1.0))
    z = pyro.sample("z", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    pyro.sample("y", pd.Binomial(total_count=1.0 + x[:, 2], logits=tau * z[a]), obs=y)


def exposure_offset_pyro(x, a, y=None):
    rate = pyro.sample("rate", pd.Gamma(2.0, 1.0).expand([K]).to_event(1))
    beta = pyro.sample("beta", pd.Normal(0.0, 0.5))
    pyro.sample("y", pd.Poisson((0.5 + x[:, 1]) * rate[a] * torch.exp(beta * x[:, 0])), obs=y)


def sign_constrained_dose_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(-2.0, 1.0))
    beta = pyro.sample("beta", pd.LogNormal(0.0, 1.0))
    pyro.sample(
        "y",
        pd.Bernoulli(logits=alpha + beta * torch.log(torch.as_tensor(DOSES))[a] + 0.0 * x[:, 0]),
        obs=y,
    )


def horseshoe_pyro(x, a, y=None):
    tau = pyro.sample("tau", pd.HalfCauchy(1.0))
    lam = pyro.sample("lam", pd.HalfCauchy(1.0).expand([2]).to_event(1))
    z = pyro.sample("z", pd.Normal(0.0, 1.0).expand([2]).to_event(1))
    effect = pyro.sample("effect", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    pyro.sample("y", pd.Bernoulli(logits=x[:, :2] @ (tau * lam * z) + effect[a]), obs=y)


def emax_curve_pyro(x, a, y=None):
    e0 = pyro.sample("e0", pd.Normal(0.0, 1.0))
    emax = pyro.sample("emax", pd.HalfNormal(2.0))
    ed50 = pyro.sample("ed50", pd.LogNormal(0.0, 1.0))
    dose = torch.as_tensor(DOSES)[a]
    pyro.sample("y", pd.Normal(e0 + emax * dose / (ed50 + dose), 0.5), obs=y)


def simplex_weights_pyro(x, a, y=None):
    w = pyro.sample("w", pd.Dirichlet(torch.ones(3)).expand([K]).to_event(1))
    parts = torch.stack([0.1 + 0.8 * x[:, 0], 0.1 + 0.8 * x[:, 1], 0.5 + 0.0 * x[:, 0]], 1)
    pyro.sample("y", pd.Bernoulli(probs=(w[a] * parts).sum(-1)), obs=y)


def gamma_durations_pyro(x, a, y=None):
    alpha = pyro.sample("alpha", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    tau = pyro.sample("tau", pd.HalfNormal(1.0))
    pyro.sample("y", pd.Gamma(2.0, 2.0 / torch.exp(tau * alpha[a] + 0.3 * x[:, 0])), obs=y)


def last_layer_pyro(x, a, y=None):
    tau = pyro.sample("tau", pd.HalfNormal(1.0))
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([K, 5]).to_event(2))
    features = torch.tanh(x @ torch.as_tensor(NET))
    pyro.sample("y", pd.Normal((features * w[a]).sum(-1) * tau, 0.4), obs=y)


def log_linear_scale_pyro(x, a, y=None):
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    g = pyro.sample("g", pd.Normal(0.0, 0.3))
    pyro.sample("y", pd.Normal(w[a], torch.exp(g * x[:, 0])), obs=y)


# the table ----------------------------------------------------------------------------------------

MEAN = ged.mean(0, 1)
IDIOMS = (
    Idiom("Beta-Bernoulli arms", beta_arms, MEAN, beta_arms_pyro, dim=3),
    Idiom("non-centred site effects", noncentred_sites, MEAN, noncentred_sites_pyro, dim=8),
    Idiom("centred site effects", centred_sites, MEAN, dim=7),
    Idiom("non-centred arms", noncentred_arms, MEAN, noncentred_arms_pyro, dim=3),
    Idiom(
        "LogNormal spend, known scale",
        lognormal_spend,
        ged.probability(above=2.0),
        lognormal_spend_pyro,
        dim=4,
    ),
    Idiom(
        "LogNormal, unknown scale",
        lognormal_unknown_scale,
        ged.probability(above=2.0),
        word="scale",
        dim=3,
    ),
    Idiom("negative binomial demand", negative_binomial_demand, ged.probability(above=6.0), dim=4),
    Idiom(
        "negative binomial in logits",
        negative_binomial_logits,
        ged.mean(0, 50),
        negative_binomial_logits_pyro,
        dim=3,
    ),
    Idiom(
        "negative binomial, unknown dispersion",
        negative_binomial_dispersion,
        ged.probability(above=6.0),
        negative_binomial_dispersion_pyro,
        "profiled",
        dim=5,
        outer=True,
    ),
    Idiom(
        "Gamma durations, unknown shape",
        gamma_shape,
        ged.mean(0, 20),
        gamma_shape_pyro,
        "profiled",
        dim=4,
        outer=True,
    ),
    Idiom(
        "Weibull durations, unknown shape",
        weibull_shape,
        ged.probability(above=2.0),
        weibull_shape_pyro,
        word="profiled",
        dim=3,
        outer=True,
    ),
    Idiom(
        "Normal, unknown scale",
        normal_unknown_scale,
        ged.cvar(0.9, -9, 9),
        normal_unknown_scale_pyro,
        "scale",
        dim=3,
    ),
    Idiom(
        "Normal, a scale for each action",
        normal_scale_by_action,
        ged.cvar(0.9, -9, 9),
        word="scale",
        dim=3,
    ),
    Idiom(
        "ordinal score through OrderedTransform",
        ordinal_score,
        ged.probability(above=3.5),
        ordinal_score_pyro,
        dim=10,
    ),
    Idiom(
        "ordinal score from increments", ordinal_from_increments, ged.probability(above=2.5), dim=7
    ),
    Idiom(
        "ordered probit, chances written out",
        ordered_probit,
        ged.probability(above=1.5),
        ordered_probit_pyro,
        dim=7,
    ),
    Idiom("probit", probit, MEAN, probit_pyro, dim=4),
    Idiom("complementary log-log", cloglog, MEAN, cloglog_pyro, dim=4),
    Idiom(
        "spline with random-walk prior",
        spline,
        ged.mean(-3, 3),
        spline_pyro,
        dim=18,
        closed=True,
    ),
    Idiom(
        "30 actions with shared features",
        shared_features,
        MEAN,
        shared_features_pyro,
        n_actions=30,
        dim=4,
    ),
    Idiom("plates everywhere", plates_everywhere, ged.mean(0, 20)),
    Idiom(
        "Binomial with counts by row", binomial_counts, ged.mean(0, 4), binomial_counts_pyro, dim=3
    ),
    Idiom("Poisson with exposure", exposure_offset, ged.mean(0, 20), exposure_offset_pyro),
    Idiom(
        "sign-constrained dose effect",
        sign_constrained_dose,
        MEAN,
        sign_constrained_dose_pyro,
        dim=2,
    ),
    Idiom("horseshoe", horseshoe, MEAN, horseshoe_pyro, dim=5),
    Idiom("Emax dose curve", emax_curve, ged.mean(-3, 5), emax_curve_pyro, dim=3, closed=True),
    Idiom("weights on a simplex", simplex_weights, MEAN, simplex_weights_pyro, dim=6),
    Idiom(
        "Gamma durations, known shape",
        gamma_durations,
        ged.mean(0, 20),
        gamma_durations_pyro,
        dim=3,
    ),
    Idiom("Weibull durations, known shape", weibull_durations, ged.probability(above=2.0), dim=3),
    Idiom("waiting times with Gamma rates", waiting_times, ged.mean(0, 20)),
    Idiom("Laplace noise", laplace_noise, ged.probability(above=1.0), dim=3),
    Idiom("correlated coefficients (LKJ)", correlated_coefficients, MEAN, dim=6),
    Idiom("Bayesian last layer", last_layer, ged.mean(-3, 3), last_layer_pyro, dim=15, closed=True),
    Idiom("Student-t noise", student, ged.probability(above=1.0), word="not exact"),
    Idiom(
        "log-linear scale",
        log_linear_scale,
        ged.mean(-3, 3),
        log_linear_scale_pyro,
        word="not exact",
    ),
)
