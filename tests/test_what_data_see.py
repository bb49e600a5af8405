"""The proof of what data see refuses whatever is not affine, and keeps what is: programs made to
mislead it.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.errors import OutcomeUsedError
from gedppl.families.one_predictor import FAMILIES
from tests.optional_pyro import needs_pyro, pd, pyro, torch

RNG = np.random.default_rng(3)
X, A = RNG.random((8, 3)), np.arange(8) % 2


def weights(n: int):
    return numpyro.sample("w", nd.Normal(0.0, 1.0).expand([n]).to_event(1))


def weights_pyro(n: int):
    return pyro.sample("w", pd.Normal(0.0, 1.0).expand([n]).to_event(1))


# refused ------------------------------------------------------------------------------------------


def rounded(x, a, y=None):
    numpyro.sample("y", nd.Normal(jnp.round(x @ weights(3)), 1.0), obs=y)


def whole_numbers(x, a, y=None):
    numpyro.sample("y", nd.Normal((x @ weights(3)).astype(int).astype(float), 1.0), obs=y)


def branches_on_theta(x, a, y=None):
    w = weights(3)
    numpyro.sample("y", nd.Normal(jnp.where(x @ w > 0, x @ w, 2 * (x @ w)), 1.0), obs=y)


def picks_by_theta_and_row(x, a, y=None):
    w = weights(3)
    at = jnp.argmax(x * w, axis=1)
    numpyro.sample("y", nd.Normal(w[at], 1.0), obs=y)


def relu(x, a, y=None):
    numpyro.sample("y", nd.Normal(jax.nn.relu(x @ weights(3)), 1.0), obs=y)


def small_net(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    v = numpyro.sample("v", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", nd.Normal(jnp.tanh(x @ w) @ v, 1.0), obs=y)


def product_of_rows(x, a, y=None):
    w = weights(3)
    numpyro.sample("y", nd.Normal((x @ w) * (x @ w), 1.0), obs=y)


def lapse_rate(x, a, y=None):
    w, lapse = weights(3), numpyro.sample("lapse", nd.Beta(1.0, 9.0))
    numpyro.sample("y", nd.Bernoulli(probs=lapse + (1 - lapse) * jax.nn.sigmoid(x @ w)), obs=y)


def clipped(x, a, y=None):
    numpyro.sample(
        "y", nd.Bernoulli(probs=jnp.clip(jax.nn.sigmoid(x @ weights(3)), 0.05, 0.95)), obs=y
    )


def cauchit(x, a, y=None):
    numpyro.sample("y", nd.Bernoulli(probs=0.5 + jnp.arctan(x @ weights(3)) / jnp.pi), obs=y)


def clipped_chance(x, a, y=None):
    p = jnp.clip(jax.nn.sigmoid(x @ weights(3)), 1e-3, 1 - 1e-3)
    numpyro.sample("y", nd.Bernoulli(probs=p), obs=y)


def exponential_with_linear_mean(x, a, y=None):
    w = numpyro.sample("w", nd.HalfNormal(1.0).expand([3]).to_event(1))
    numpyro.sample("y", nd.Exponential(1.0 / (0.1 + x @ w)), obs=y)


def scale_by_context(x, a, y=None):
    w = weights(3)
    numpyro.sample("y", nd.Normal(x @ w, jnp.exp(x[:, 0] * w[0])), obs=y)


def shape_by_context(x, a, y=None):
    w, shape = weights(3), numpyro.sample("shape", nd.HalfNormal(2.0))
    numpyro.sample("y", nd.Gamma(shape + x[:, 0] ** 2, jnp.exp(x @ w)), obs=y)


def dispersion_by_action(x, a, y=None):
    w, r = weights(3), numpyro.sample("r", nd.HalfNormal(2.0).expand([2]).to_event(1))
    numpyro.sample("y", nd.NegativeBinomial2(jnp.exp(x @ w), r[a]), obs=y)


def zero_inflated(x, a, y=None):
    gate = numpyro.sample("gate", nd.Beta(1.0, 1.0))
    numpyro.sample("y", nd.ZeroInflatedPoisson(gate, jnp.exp(x @ weights(3))), obs=y)


class Poisson(nd.Distribution):
    """Not the packages': truncated at zero."""

    support = nd.constraints.nonnegative_integer

    def __init__(self, rate):
        self.rate = rate
        super().__init__(jnp.shape(rate))

    def log_prob(self, value):
        log_p = nd.Poisson(self.rate).log_prob(value) - jnp.log(-jnp.expm1(-self.rate))
        return jnp.where(value == 0, -jnp.inf, log_p)

    def sample(self, key, sample_shape=()):
        return jnp.ones((*sample_shape, *self.batch_shape))


def impostor(x, a, y=None):
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    numpyro.sample("y", Poisson(jnp.exp(tau * (x @ weights(3)))), obs=y)


def sigmoid(value):
    """Not the logistic function."""
    return jnp.exp(-jnp.exp(-value))


def link_impostor(x, a, y=None):
    numpyro.sample("y", nd.Bernoulli(probs=sigmoid(x @ weights(3))), obs=y)


REFUSED = [
    rounded,
    whole_numbers,
    branches_on_theta,
    picks_by_theta_and_row,
    relu,
    small_net,
    product_of_rows,
    lapse_rate,
    clipped,
    cauchit,
    clipped_chance,
    exponential_with_linear_mean,
    scale_by_context,
    shape_by_context,
    dispersion_by_action,
    zero_inflated,
    impostor,
    link_impostor,
]


# what stands in the way is of a kind that another one has too
TOO = (whole_numbers, picks_by_theta_and_row, clipped, shape_by_context, dispersion_by_action)
TOO += (exponential_with_linear_mean, link_impostor)


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=pytest.mark.slow) if m in TOO else m for m in REFUSED]
)
def test_what_is_not_affine_is_refused_and_says_why(model) -> None:
    cls = ged.density_class(model, example=(X, A))
    assert cls.predictor is None
    assert cls.seen is None
    assert cls.refusal.why in cls.exactness
    assert cls.exactness.startswith("not exact")


def test_a_clip_is_named_with_what_to_write_instead() -> None:
    said = ged.density_class(clipped_chance, example=(X, A)).exactness
    assert "clipped" in said
    assert "logits=" in said


def test_a_rate_through_softplus_is_exact() -> None:
    def model(x, a, y=None):
        numpyro.sample("y", nd.Poisson(jax.nn.softplus(x @ weights(3))), obs=y)

    cls = ged.density_class(model, example=(X, A))
    assert cls.exactness.startswith("exact: Poisson with one predictor (softplus link)")
    theta = np.asarray(cls.draw_prior(3, 0), float)
    seen = cls.seen.from_theta(theta) @ cls.seen.predictor.features(X, A).T
    np.testing.assert_allclose(
        np.logaddexp(0, seen), cls.density_at(theta, X, A).args["rate"], rtol=1e-12
    )


def test_a_flat_prior_is_no_prior() -> None:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.ImproperUniform(nd.constraints.real, (), (3,)))
        s = numpyro.sample("s", nd.ImproperUniform(nd.constraints.positive, (), ()))
        numpyro.sample("y", nd.Bernoulli(logits=s * x[:, 0] + x @ w), obs=y)

    cls = ged.density_class(model, example=(X, A))
    assert cls.exactness.startswith("exact: Bernoulli")
    assert cls.prior_free.all()
    assert np.all(cls.log_prior(cls.draw_prior(3, 0)) == 0)


@needs_pyro
def test_a_flat_prior_is_no_prior_in_pyro() -> None:
    def model(x, a, y=None):
        w = pyro.sample("w", pd.ImproperUniform(pd.constraints.real, (), (3,)))
        with pyro.plate("actions", 2):
            s = pyro.sample("s", pd.ImproperUniform(pd.constraints.positive, (), ()))
        pyro.sample("y", pd.Bernoulli(logits=s[a] * x[:, 0] + x @ w), obs=y)

    a = np.arange(len(X)) % 2
    cls = ged.density_class(model, example=(X, a))
    assert cls.exactness.startswith("exact: Bernoulli")
    assert cls.prior_free.all()
    assert np.all(cls.log_prior(cls.draw_prior(3, 0)) == 0)
    theta = cls.flatten({"w": np.array([0.5, -1.0, 2.0]), "s": np.array([0.3, 2.0])})
    eta = np.array([0.3, 2.0])[a] * X[:, 0] + X @ np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(
        cls.density_at(theta, X, a).args["probs"], 1 / (1 + np.exp(-eta)), rtol=1e-12
    )


def test_a_refusal_names_the_line_of_the_program() -> None:
    line = relu.__code__.co_firstlineno + 1
    assert (
        f"line {line} of {__file__.rpartition('/')[2]}"
        in ged.density_class(relu, example=(X, A)).exactness
    )


def test_y_in_its_own_mean_is_refused() -> None:
    def model(x, a, y=None):
        numpyro.sample("y", nd.Normal(x @ weights(3) + (0.0 if y is None else y), 1.0), obs=y)

    with pytest.raises(OutcomeUsedError):
        ged.density_class(model, example=(X, A))


def rounded_pyro(x, a, y=None):
    pyro.sample("y", pd.Normal(torch.round(x @ weights_pyro(3)), 1.0), obs=y)


def whole_numbers_pyro(x, a, y=None):
    pyro.sample("y", pd.Normal((x @ weights_pyro(3)).long().double(), 1.0), obs=y)


def branches_on_theta_pyro(x, a, y=None):
    w = weights_pyro(3)
    pyro.sample("y", pd.Normal(torch.where(x @ w > 0, x @ w, 2 * (x @ w)), 1.0), obs=y)


def looks_at_theta_pyro(x, a, y=None):
    w = weights_pyro(3)
    pyro.sample("y", pd.Normal(x @ w if bool(w[0] > 0) else -(x @ w), 1.0), obs=y)


def squared_pyro(x, a, y=None):
    eta = x @ weights_pyro(3)
    pyro.sample("y", pd.Normal(eta * eta, 1.0), obs=y)


def written_rows_pyro(x, a, y=None):
    eta = (x @ weights_pyro(3)).clone()
    eta[:] = eta * eta
    pyro.sample("y", pd.Normal(eta, 1.0), obs=y)


def clipped_pyro(x, a, y=None):
    pyro.sample(
        "y", pd.Bernoulli(probs=torch.sigmoid(x @ weights_pyro(3)).clamp(0.05, 0.95)), obs=y
    )


@needs_pyro
@pytest.mark.parametrize(
    "model",
    [
        rounded_pyro,
        whole_numbers_pyro,
        branches_on_theta_pyro,
        looks_at_theta_pyro,
        squared_pyro,
        written_rows_pyro,
        clipped_pyro,
    ],
)
def test_the_same_in_pyro(model) -> None:
    cls = ged.density_class(model, example=(X, A))
    assert cls.predictor is None
    assert cls.seen is None


# kept ---------------------------------------------------------------------------------------------


def written_coefficients(x, a, y=None):
    w = weights_pyro(3)
    v = w.clone()
    v[0] = w[1] * w[2]
    v[1].mul_(torch.exp(w[0]))
    pyro.sample("y", pd.Normal(x @ v, 1.0), obs=y)


def number_after_the_predictor(x, a, y=None):
    w, t = weights_pyro(3), pyro.sample("t", pd.HalfNormal(1.0))
    pyro.sample(
        "y", pd.Poisson(2.0 * torch.exp(1.0 - t * (x @ w - 0.5)) * (1.0 + x[:, 0] ** 2)), obs=y
    )


def quotient(x, a, y=None):
    w, length = weights(3), numpyro.sample("length", nd.LogNormal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=(x / length) @ jnp.ones(3) + w[a] / length[0]), obs=y)


def scaled_after_the_sum(x, a, y=None):
    w, t = weights(3), numpyro.sample("t", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.Normal(t * (x @ w + 1.0) + x[:, 0], 0.5), obs=y)


def written_out_scan(x, a, y=None):
    w = weights(3)
    _, path = jax.lax.scan(
        lambda level, step: (0.5 * level + step, 0.5 * level + step), 0.0, jnp.exp(w)
    )
    numpyro.sample("y", nd.Poisson(jnp.exp(x @ path)), obs=y)


def branch_on_the_context(x, a, y=None):
    w, t = weights(3), numpyro.sample("t", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.Normal(t * jnp.where(x[:, 0] > 0.5, x @ w, w[0]), 0.5), obs=y)


def flipped_logistic(x, a, y=None):
    t = numpyro.sample("t", nd.HalfNormal(1.0))
    numpyro.sample(
        "y", nd.Bernoulli(probs=1 - 1 / (1 + jnp.exp(t * (x @ weights(3)) + 0.3))), obs=y
    )


def log_chance(x, a, y=None):
    w = numpyro.sample("w", nd.HalfNormal(1.0).expand([3]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(probs=jnp.exp(-(x @ w))), obs=y)


def whole_numbers_of_theta_alone(x, a, y=None):
    """A value made of theta alone may be anything, also rounded."""
    w = weights(3)
    numpyro.sample("y", nd.Normal(x[:, 0] * w.astype(int)[0] + x[:, 1] * w[1], 1.0), obs=y)


def theta_picks_theta(x, a, y=None):
    w = weights(3)
    numpyro.sample(
        "y", nd.Normal(x[:, 0] * w[jnp.argmax(w)] + x[:, 1] * jnp.sort(w)[0], 0.5), obs=y
    )


KEPT = [
    quotient,
    scaled_after_the_sum,
    written_out_scan,
    branch_on_the_context,
    flipped_logistic,
    log_chance,
    theta_picks_theta,
    whole_numbers_of_theta_alone,
]


@pytest.mark.parametrize(
    "model",
    [
        *KEPT,
        *(
            pytest.param(m, marks=needs_pyro)
            for m in (written_coefficients, number_after_the_predictor)
        ),
    ],
)
def test_arguments_by_what_is_seen_are_the_programs_to_rounding(model) -> None:
    cls = ged.density_class(model, example=(X, A))
    theta = np.asarray(cls.draw_prior(5, 1), float)
    seen = cls.seen
    eta = seen.from_theta(theta) @ seen.predictor.features(X, A).T + seen.predictor.offset(X, A)
    fixed = {
        name: np.broadcast_to(value, eta.shape)
        for name, value in seen.predictor.fixed(X, A).items()
    }
    ours = FAMILIES[seen.predictor.family, seen.predictor.link].arguments(eta, fixed)
    for name, theirs in cls.density_at(theta, X, A).args.items():
        np.testing.assert_allclose(ours[name], theirs, rtol=1e-12, atol=1e-12)


def test_what_is_seen_stays_in_its_box() -> None:
    """Signs of sites, and of values made of them, are part of what is known of v."""

    def model(x, a, y=None):
        b = numpyro.sample("b", nd.HalfNormal(1.0))
        p = numpyro.sample("p", nd.Dirichlet(jnp.ones(2)))
        numpyro.sample("y", nd.Normal(b * x[:, 0] + x[:, 1] * p[0], 0.5), obs=y)

    seen = ged.density_class(model, example=(X, A)).seen
    assert seen.names == ("b", "p[0]")
    assert seen.low.tolist() == [0.0, 0.0]
    assert seen.high.tolist() == [np.inf, 1.0]


@needs_pyro
def test_a_pretrained_torch_net_below_a_linear_layer_is_exact() -> None:
    net = (
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        .requires_grad_(False)
        .double()
    )

    def last_layer(x, a, y=None):
        t = pyro.sample("t", pd.HalfNormal(1.0))
        w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
        pyro.sample("y", pd.Bernoulli(logits=t * (net(x) * w[a]).sum(-1)), obs=y)

    cls = ged.density_class(last_layer, example=(X, A))
    assert cls.seen.dim == 4
    assert cls.exactness.startswith("exact: Bernoulli")
    features = net(torch.as_tensor(X)).numpy()
    by_action = cls.seen.predictor.features(X, A)
    np.testing.assert_allclose(
        np.sort(by_action, axis=1)[:, [0, -1]],
        np.sort(np.c_[features, 0 * features], axis=1)[:, [0, -1]],
    )


def test_a_fixed_flax_style_net_below_a_linear_layer_is_exact() -> None:
    """Any pure function of the context will do: equinox and flax modules with their parameters
    filled in are such functions.
    """
    params = {"kernel": RNG.normal(size=(3, 4)), "bias": RNG.normal(size=4)}

    def net(x):
        return jax.nn.gelu(x @ params["kernel"] + params["bias"])

    def last_layer(x, a, y=None):
        w = numpyro.sample("w", nd.Laplace(0.0, 1.0).expand([4]).to_event(1))
        t = numpyro.sample("t", nd.HalfCauchy(1.0))
        numpyro.sample("y", nd.Normal(net(x) @ (t * w), 0.5), obs=y)

    cls = ged.density_class(last_layer, example=(X, A))
    np.testing.assert_allclose(cls.seen.predictor.features(X, A), np.asarray(net(X)), atol=1e-6)
    assert cls.exactness.startswith("exact: Normal")


def test_an_exact_safe_value_is_an_equation_in_what_the_data_see() -> None:
    """A centred hierarchy's learner has fewer coordinates than the program has parameters."""

    def model(x, a, y=None):
        tau = numpyro.sample("tau", nd.HalfNormal(1.0))
        w = numpyro.sample("w", nd.Normal(0.0, tau).expand([2]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a] + 0.0 * x[:, 0], 0.2), obs=y)

    cls = ged.density_class(model, example=(X, A))
    limit = ged.Constraint(
        cls, ged.mean(-2, 2), at_most=1.0, safe_value=0.1, safe_value_exact=True, name="cost"
    )
    problem = ged.Problem(
        n_actions=2, utility=ged.Utility(cls, ged.mean(-2, 2)), constraints=[limit], safe_action=0
    )
    agent = ged.GEDUCB(problem, seed=0)
    decision = agent.ask(X[0])
    assert decision.certificate.guaranteed
    assert agent.cost_bounds(X[0])[1][0, 0] == pytest.approx(0.1)


# what is handed to NumPy --------------------------------------------------------------------------


def outside(w: Any) -> Any:
    return torch.as_tensor(2.0 * w.detach().numpy())


def shifted_outside(x, a, y=None):
    w = weights_pyro(2)
    pyro.sample("y", pd.LogNormal(w[0] * x[:, 0] + outside(w)[0] * x[:, 1], 0.3), obs=y)


def columns_outside(x, a, y=None):
    w = weights_pyro(2)
    size = torch.as_tensor(np.exp(x[:, 0].numpy()))
    pyro.sample("y", pd.Normal(w[0] * size + w[1], 0.3), obs=y)


def scale_outside(x, a, y=None):
    w = weights_pyro(2)
    pyro.sample("y", pd.Normal(w[0] * x[:, 0], np.exp(np.asarray(w[1]))), obs=y)


def table_outside(x, a, y=None):
    """What no parameter or row is part of may come from NumPy."""
    w = weights_pyro(2)
    table = torch.as_tensor(np.exp(torch.tensor([0.0, 1.0]).numpy()))
    pyro.sample("y", pd.Normal(w[a] * table[a], 0.3), obs=y)


ROWS = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2


@needs_pyro
@pytest.mark.parametrize("model", [shifted_outside, columns_outside, scale_outside])
def test_what_is_handed_to_numpy_is_refused(model) -> None:
    with pytest.raises(ged.errors.ModelError, match=r"hands x, a or a parameter to NumPy.*torch"):
        ged.density_class(model, example=ROWS)
    ged.density_class(table_outside, example=ROWS)


@needs_pyro
def test_without_that_refusal_half_of_the_predictor_would_be_missing(monkeypatch) -> None:
    """A graph holds what came back from NumPy as a constant: w0 x0 + 2 w0 x1 was read as w0 x0."""
    from gedppl.programs.pyro import PyroProgram

    monkeypatch.setattr(PyroProgram, "_check_stays_in_torch", lambda program: None)
    cls = ged.density_class(shifted_outside, example=ROWS)
    assert cls.exactness.startswith("exact")
    value = cls.seen.predictor.features(*ROWS) @ cls.seen.from_theta(np.ones((1, 2)))[0]
    np.testing.assert_allclose(value, ROWS[0][:, 0])  # instead of x0 + 2 x1


# the worst case, by name --------------------------------------------------------------------------


def sites_apart(x, a, y=None):
    """Five parameters, of which the data see four values."""
    mu = numpyro.sample("mu", nd.Normal(-1.0, 1.0))
    tau = numpyro.sample("tau", nd.HalfNormal(1.0))
    raw = numpyro.sample("raw", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    slope = numpyro.sample("slope", nd.LogNormal(0.0, 0.5))
    site = x[:, 0].astype(int)
    numpyro.sample("y", nd.Bernoulli(logits=(mu + tau * raw)[site] + slope * a), obs=y)


def test_certificates_name_the_worst_case_in_what_the_data_see() -> None:
    """In the program's coordinates the numbers of one would be read as those of the other."""
    cls = ged.density_class(sites_apart, example=(np.zeros((1, 1)), np.zeros(1, int)))
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=0.5, safe_value=0.4, outcome="utility")
    agent = ged.GEDUCB(
        ged.Problem(
            n_actions=2,
            utility=ged.Utility(cls, ged.mean(0, 1)),
            constraints=[limit],
            safe_action=0,
        ),
        guard=None,
    )
    x = np.arange(40.0)[:, None] % 2
    agent.observe(x, np.arange(40) // 2 % 2, np.arange(40) % 5 == 0)
    decision = agent.ask([1.0])
    worst = decision.certificate.constraints[0].witness[1]
    assert set(worst) == set(cls.seen.names)
    v = np.array([float(worst[name]) for name in cls.seen.names])
    eta = cls.seen.predictor.features(np.ones((1, 1)), np.ones(1, int)) @ v
    upper = agent.cost_bounds([1.0])[1][0, 1]
    assert 1 / (1 + np.exp(-eta[0])) == pytest.approx(upper, abs=1e-9)
    json.dumps(decision.certificate.to_dict())  # what a report and a journal keep


def test_credible_limits_name_the_worst_draw_in_the_programs_parameters() -> None:
    cls = ged.density_class(sites_apart, example=(np.zeros((1, 1)), np.zeros(1, int)))
    x, a = np.arange(40.0)[:, None] % 2, np.arange(40) // 2 % 2
    found = ged.confidence_set(cls, x, a, np.arange(40) % 5 == 0, confidence=ged.credible_set())
    bounds = found.bounds(ged.mean(0, 1), np.ones((1, 1)), 2)
    worst = bounds.witness[0][1]
    assert set(worst) == {"mu", "tau", "raw", "slope"}
    at = cls.density(worst, np.ones((1, 1)), np.ones(1, int))
    assert float(ged.mean(0, 1)(at)[0]) == pytest.approx(bounds.upper[0, 1], abs=1e-9)
