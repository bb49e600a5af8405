"""Exact where practitioners are: feature nets of three libraries, what is never compiled, and which
functionals of which families are guaranteed.
"""

from __future__ import annotations

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from scipy.stats import poisson

import gedppl as ged
from gedppl.families.one_predictor import FAMILIES
from gedppl.learning import learner_for
from gedppl.learning.programs import ProgramLearner
from tests.idioms import IDIOMS, contexts
from tests.optional_pyro import PPLS, pd, pyro, torch
from tests.program_doubles import OnePredictorDouble
from tests.test_one_predictor import STOCHASTIC, fixed_of, positive_line

X, A = np.random.default_rng(1).random((6, 3)), np.array([0, 1, 0, 1, 1, 0])


def equinox_net():
    return jax.vmap(eqx.nn.MLP(3, 4, 8, 2, jax.nn.gelu, key=jax.random.key(0)))


def flax_net():
    net = flax.linen.Sequential([flax.linen.Dense(8), flax.linen.tanh, flax.linen.Dense(4)])
    params = net.init(jax.random.key(1), jnp.zeros((1, 3)))
    return lambda x: net.apply(params, x)


@pytest.mark.parametrize("make", [equinox_net, pytest.param(flax_net, marks=pytest.mark.slow)])
def test_a_linear_layer_on_a_fixed_net_is_exact(make) -> None:
    net = make()

    def model(x, a, y=None):
        tau = numpyro.sample("tau", nd.HalfNormal(1.0))
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2, 4]).to_event(2))
        numpyro.sample("y", nd.Bernoulli(logits=tau * (net(x) * w[a]).sum(-1)), obs=y)

    cls = ged.density_class(model, example=(X[:1], A[:1]))
    assert cls.exactness.startswith("exact: Bernoulli")
    assert cls.seen.dim == 8
    theta = np.asarray(cls.draw_prior(3, 0), float)
    seen = cls.seen.from_theta(theta) @ cls.seen.predictor.features(X, A).T
    with jax.enable_x64(True):
        features = np.asarray(net(jnp.asarray(X)), float)
    values = cls.unflatten(theta)
    w = np.einsum("nf,mnf->mn", features, values["w"][:, A])
    np.testing.assert_allclose(seen, values["tau"][:, None] * w, rtol=1e-5, atol=1e-6)


def test_a_net_whose_weights_are_parameters_is_not_called_exact() -> None:
    """The control: what is learned below a nonlinearity leaves no convex set."""

    def model(x, a, y=None):
        v = numpyro.sample("v", nd.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([4]).to_event(1))
        numpyro.sample("y", nd.Bernoulli(logits=jnp.tanh(x @ v) @ w), obs=y)

    assert ged.density_class(model, example=(X[:1], A[:1])).exactness.startswith("not exact")


# what is compiled ---------------------------------------------------------------------------------

ASCENT = {"values_grad", "total_grad", "total_hessian", "total", "values"}


def names_compiled(cls, functional, rounds: int) -> set[str]:
    """Kernels that a whole run of an agent makes the program compile."""
    before = dict(cls.program.compilations)
    rng = np.random.default_rng(0)
    limit = ged.Constraint(
        cls, functional, at_most=0.6, safe_value=0.3, name="cost", outcome="utility"
    )
    problem = ged.Problem(
        n_actions=3,
        utility=ged.Utility(cls, functional),
        constraints=[limit],
        safe_action=0,
        safe_utility=0.0,
    )
    agent = ged.GEDUCB(problem, seed=0)
    for x in contexts(rng, rounds):
        decision = agent.ask(x)
        agent.tell(decision.id, float(rng.random() < 0.3))
    now = cls.program.compilations
    return {name.split(" of ")[0] for name, n in now.items() if n > before.get(name, 0)}


def test_a_program_with_an_exact_form_never_compiles_the_ascent() -> None:
    idiom = next(one for one in IDIOMS if one.name == "non-centred arms")
    cls = ged.density_class(
        idiom.numpyro, example=(contexts(np.random.default_rng(0), 1), np.zeros(1, int))
    )
    compiled = names_compiled(cls, ged.mean(0, 1), 12)
    assert compiled & {"seen_rows", "seen_atoms", "seen_tables"}
    assert not compiled & ASCENT


def test_one_without_an_exact_form_does() -> None:
    """The control: the names above are those of the ascent."""

    def lapse(x, a, y=None):
        b = numpyro.sample("b", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", nd.Bernoulli(probs=0.1 + 0.8 * jax.nn.sigmoid(b[a] * x[:, 0])), obs=y)

    cls = ged.density_class(
        lapse, example=(contexts(np.random.default_rng(0), 1), np.zeros(1, int))
    )
    assert names_compiled(cls, ged.mean(0, 1), 6) & ASCENT


# family by functional -----------------------------------------------------------------------------

FUNCTIONALS = {
    "mean": ged.mean(-1e6, 1e6),
    "probability": ged.probability(above=0.7),
    "band": ged.probability(above=0.2, below=2.5),
    "quantile": ged.quantile(0.8, -1e6, 1e6),
    "cvar": ged.cvar(0.8, -1e6, 1e6),
    "variance": ged.variance(1e6),
    "second_moment": ged.second_moment(1e6),
}


@pytest.fixture(scope="module")
def learners():
    made = {}
    rng = np.random.default_rng(3)
    x, a = rng.random((30, 1)), rng.integers(0, 2, 30)
    for name in FAMILIES:
        truth = np.array(STOCHASTIC.get(name[1], {}).get(name[0], (0.3, -0.6)))
        cls = OnePredictorDouble(*name, 2, positive_line, extra=fixed_of(name[0]), initial=truth)
        learner = ProgramLearner.start(cls, delta=0.1)
        made[name] = learner.absorb(x, a, cls.simulate(truth, x, a, rng)).refit(), truth
    return made


@pytest.mark.parametrize("functional", FUNCTIONALS)
@pytest.mark.parametrize("name", FAMILIES, ids="-".join)
def test_every_functional_of_every_exact_family_is_guaranteed(learners, name, functional) -> None:
    """And holds what members of the set give."""
    learner, truth = learners[name]
    asked = FUNCTIONALS[functional]
    found = learner.bounds(asked, np.array([[0.4]]), 2)
    assert found.guaranteed
    assert found.method == "exact"
    rng = np.random.default_rng(5)
    around = np.vstack([truth, learner.theta + 0.4 * rng.standard_normal((400, 2))])
    members = around[learner.contains(around)]
    assert len(members)
    n = len(members)
    at = np.repeat(members, 2, axis=0), np.full((2 * n, 1), 0.4), np.tile(np.arange(2), n)
    values = learner.cls.values_grad(asked, *at)[0].reshape(n, 2)
    slip = 1e-7 * (1 + np.abs(values))
    assert np.all(values <= found.free_upper[0] + slip)
    assert np.all(values >= found.free_lower[0] - slip)


# functions of the outcome -------------------------------------------------------------------------


def demand(x, a, y=None):
    b = numpyro.sample("b", nd.Normal(1.0, 0.5).expand([2]).to_event(1))
    numpyro.sample("y", nd.Poisson(jnp.exp(b[a] + 0.0 * x[:, 0])), obs=y)


def demand_pyro(x, a, y=None):
    b = pyro.sample("b", pd.Normal(1.0, 0.5).expand([2]).to_event(1))
    pyro.sample("y", pd.Poisson(torch.exp(b[a] + 0.0 * x[:, 0])), obs=y)


MONOTONE = {
    "shortage": (1, lambda y, x, a: jnp.maximum(y - 3.0, 0.0), lambda y, x, a: (y - 3).clamp(0)),
    "lost": (-1, lambda y, x, a: 2.0 - 0.5 * jnp.minimum(y, 4.0), None),
    "squared": (1, lambda y, x, a: 0.1 * y**2, lambda y, x, a: 0.1 * y**2),
    "late fee": (1, lambda y, x, a: jnp.where(y > 3, 5.0, 1.0), None),
    "saturating": (-1, lambda y, x, a: jnp.exp(-0.3 * y), lambda y, x, a: torch.exp(-0.3 * y)),
}
OTHERS = {
    "distance": (lambda y, x, a: (y - 3.0) ** 2, lambda y, x, a: (y - 3.0) ** 2),
    "wave": (lambda y, x, a: jnp.sin(y), lambda y, x, a: torch.sin(y)),
    "hump": (lambda y, x, a: y * jnp.exp(-y), lambda y, x, a: y * torch.exp(-y)),
    "by context": (lambda y, x, a: (x[:, 0] - 0.5) * y, lambda y, x, a: (x[:, 0] - 0.5) * y),
    "drop": (lambda y, x, a: jnp.where(y > 3, 0.0, y), lambda y, x, a: (y < 3) * y),
    "of numpy": (lambda y, x, a: np.sqrt(np.asarray(y)), None),
}


def class_in(ppl):
    return ged.density_class(
        demand if ppl == "numpyro" else demand_pyro, example=(X[:1], np.zeros(1, int))
    )


@pytest.mark.parametrize("ppl", PPLS)
def test_the_way_of_a_function_is_proved_or_left_open(ppl) -> None:
    cls, at = class_in(ppl), 0 if ppl == "numpyro" else 1
    for name, (way, *fns) in MONOTONE.items():
        if fns[at] is not None:
            assert cls.way_of(ged.expected(fns[at], 0, 9), True) == way, name
    for name, fns in OTHERS.items():
        if fns[at] is not None:
            assert cls.way_of(ged.expected(fns[at], 0, 9), True) == 0, name
    squared = ged.expected(MONOTONE["squared"][1 + at], 0, 9)
    assert cls.way_of(squared, False) == 0  # of outcomes that may be negative


def test_the_expectation_of_a_monotone_function_is_guaranteed() -> None:
    """Of a Poisson, whose outcomes cannot be counted: its ends are those at the mean's ends."""
    cls, rng = class_in("numpyro"), np.random.default_rng(2)
    learner = learner_for(cls, delta=0.1)
    learner = learner.absorb(np.zeros((40, 3)), np.arange(40) % 2, rng.poisson(3.0, 40) * 1.0)
    learner = learner.refit()
    fee = ged.expected(MONOTONE["late fee"][1], 0, 9)
    found, mean = (learner.bounds(f, np.zeros((1, 3)), 2) for f in (fee, ged.mean(0, 99)))
    assert (found.method, found.guaranteed) == ("exact", True)
    for ours, rate in ((found.lower, mean.lower), (found.upper, mean.upper)):
        np.testing.assert_allclose(ours, 1 + 4 * poisson.sf(3, rate), atol=1e-6)
    open_ = learner.bounds(ged.expected(OTHERS["distance"][0], 0, 99), np.zeros((1, 3)), 2)
    assert not open_.guaranteed
