"""Spellings that practitioners use, beside those of `tests/idioms.py`: each is read as what it is.

Contexts: a number, and the number of a site, 0..2. Two actions.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from numpyro.distributions import transforms as nt

import gedppl as ged
from gedppl.errors import ActionRangeError, ContextRangeError
from gedppl.families.one_predictor import FAMILIES
from gedppl.learning import Where, learner_for
from gedppl.learning.seen_class import served
from tests.optional_pyro import module, needs_pyro, pd, pyro, torch

pyro_side = module("gedppl.programs.pyro")
K, SITES = 2, 3
RNG = np.random.default_rng(4)
X = np.column_stack([RNG.normal(size=40), RNG.integers(0, SITES, 40)])
A = RNG.integers(0, K, 40)


@cache
def a_class(model):
    return ged.density_class(model, example=(X[:1], A[:1]))


def arms(ppl, d, n=K):
    return ppl.sample("w", d.Normal(0.0, 1.0).expand([n]).to_event(1))


# outcomes by another name -------------------------------------------------------------------------


def exponentiated(x, a, y=None):
    s = numpyro.sample("s", nd.HalfNormal(1.0))
    base = nd.Normal(arms(numpyro, nd)[a] + 0.3 * x[:, 0], s)
    numpyro.sample("y", nd.TransformedDistribution(base, nt.ExpTransform()), obs=y)


def shifted(x, a, y=None):
    s = numpyro.sample("s", nd.HalfNormal(1.0))
    base = nd.Normal(0.0, 1.0).expand([len(a)])
    move = nt.AffineTransform(arms(numpyro, nd)[a] + 0.3 * x[:, 0], s)
    numpyro.sample("y", nd.TransformedDistribution(base, move), obs=y)


def squashed(x, a, y=None):
    base = nd.Normal(arms(numpyro, nd)[a], 1.0)
    numpyro.sample("y", nd.TransformedDistribution(base, nt.SigmoidTransform()), obs=y)


def exponentiated_pyro(x, a, y=None):
    s = pyro.sample("s", pd.HalfNormal(1.0))
    base = pd.Normal(arms(pyro, pd)[a] + 0.3 * x[:, 0], s)
    move = pd.transforms.ExpTransform()
    pyro.sample("y", pd.TransformedDistribution(base, [move]), obs=y)


def waiting(argument):
    def model(x, a, y=None):
        eta = arms(numpyro, nd)[a] + 0.3 * x[:, 0]
        given = eta if argument == "logits" else 1.0 / (1.0 + jnp.exp(-eta))
        numpyro.sample("y", nd.Geometric(**{argument: given}), obs=y)

    return model


def waiting_pyro(x, a, y=None):
    pyro.sample("y", pd.Geometric(logits=arms(pyro, pd)[a] + 0.3 * x[:, 0]), obs=y)


def test_a_transformed_normal_is_what_it_is() -> None:
    for model, family in ((exponentiated, "LogNormal"), (shifted, "Normal")):
        form = a_class(model).location_scale
        assert form is not None
        assert form.family == family
    assert "not exact" in a_class(squashed).exactness


@needs_pyro
def test_a_transformed_normal_is_what_it_is_in_pyro() -> None:
    form = a_class(exponentiated_pyro).location_scale
    assert form is not None
    assert form.family == "LogNormal"


def agrees(cls) -> None:
    """The class in what the data see has the program's own log-densities."""
    seen, y = served(cls), np.arange(40.0) % 4
    assert seen is not cls
    for theta in cls.draw_prior(3, 0):
        mine = cls.log_likelihood(theta[None], X, A, y)
        theirs = seen.log_likelihood(seen.seen_of(theta[None]), X, A, y)
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


@pytest.mark.parametrize("argument", ["logits", "probs"])
def test_failures_before_a_success_are_a_negative_binomial_of_one(argument: str) -> None:
    cls = a_class(waiting(argument))
    assert cls.exactness.startswith("exact: NegativeBinomial")
    agrees(cls)


@needs_pyro
def test_failures_before_a_success_in_pyro() -> None:
    agrees(a_class(waiting_pyro))


# scales that a column of the context picks --------------------------------------------------------


@cache
def scale_of_site(how):
    def model(x, a, y=None):
        site = x[:, 1].astype(int)
        t = numpyro.sample("t", nd.Normal(0.0, 0.5).expand([SITES]).to_event(1))
        scale = {
            "first": jnp.exp(t)[site],
            "after": jnp.exp(t[site]),
            "take": jnp.take(jnp.exp(t), site),
            "where": jnp.where(site == 0, jnp.exp(t[0]), jnp.exp(t[1])),
            "mean": 0.5 * (jnp.exp(t)[site] + jnp.exp(t)[0]),
        }[how]
        numpyro.sample("y", nd.Normal(arms(numpyro, nd)[a] + 0.3 * x[:, 0], scale), obs=y)

    return model


def scale_of_site_pyro(x, a, y=None):
    t = pyro.sample("t", pd.Normal(0.0, 0.5).expand([SITES]).to_event(1))
    scale = torch.exp(t)[x[:, 1].long()]
    pyro.sample("y", pd.Normal(arms(pyro, pd)[a] + 0.3 * x[:, 0], scale), obs=y)


def picks_the_programs_scale(cls) -> None:
    form = cls.location_scale
    assert form is not None
    for theta in cls.draw_prior(3, 0):
        v, scales = form.from_theta(theta[None])
        density = cls.density_at(theta, X, A)
        np.testing.assert_allclose(scales[0, form.group(X, A)], density.args["scale"], rtol=1e-12)
        loc = form.features(X, A) @ v[0] + form.offset(X, A)
        np.testing.assert_allclose(loc, density.args["loc"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("how", ["first", "after", "take", "where"])
def test_a_scale_that_the_context_picks_is_one_of_several(how: str) -> None:
    picks_the_programs_scale(a_class(scale_of_site(how)))


@needs_pyro
def test_a_scale_that_the_context_picks_in_pyro() -> None:
    picks_the_programs_scale(a_class(scale_of_site_pyro))


def test_a_scale_between_two_is_refused_with_what_would_be_exact() -> None:
    """The control: only what picks, and weighs nothing, is one of several scales."""
    said = a_class(scale_of_site("mean")).exactness
    assert said.startswith("not exact")
    assert "indexed by the action or a column of the context" in said


def test_a_site_without_a_scale_is_refused_by_name() -> None:
    form = a_class(scale_of_site("take")).location_scale
    assert form is not None
    with pytest.raises(ContextRangeError, match="none of the model's scales"):
        form.group(np.array([[0.0, 7.0]]), np.array([0]))


def test_bounds_are_of_the_sites_own_scale() -> None:
    """One site is noisy: its outcomes exceed a threshold often, and the others' never."""
    cls, rng = a_class(scale_of_site("first")), np.random.default_rng(0)
    learner = learner_for(cls, delta=0.1)
    x = np.column_stack([np.zeros(240), np.arange(240) % SITES])
    a, scale = np.arange(240) // SITES % K, np.array([0.2, 0.2, 2.0])
    y = scale[x[:, 1].astype(int)] * rng.standard_normal(240)
    for part in np.array_split(np.arange(240), 4):
        learner = learner.absorb(x[part], a[part], y[part]).refit()
    at = np.column_stack([np.zeros(SITES), np.arange(SITES)])
    found = learner.bounds(ged.probability(above=1.0), at, K)
    assert found.guaranteed
    assert (found.upper[:2] < 0.05).all()
    assert (found.lower[2] > 0.05).all()


# a coefficient that is always zero ----------------------------------------------------------------


def monotone_steps(x, a, y=None):
    """brms's mo(): the effect of an ordered factor, whose first level's is 0 times the slope."""
    b = numpyro.sample("b", nd.Normal(0.0, 1.0))
    steps = numpyro.sample("steps", nd.Dirichlet(jnp.ones(SITES - 1)))
    level = jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])[x[:, 1].astype(int)]
    numpyro.sample("y", nd.Bernoulli(logits=arms(numpyro, nd)[a] + b * level), obs=y)


def test_what_the_prior_leaves_no_room_has_a_finite_precision() -> None:
    """With the infinite one no fit had numbers, and no set an end."""
    cls = a_class(monotone_steps)
    seen = served(cls)
    (theta,) = seen.seen_of(cls.draw_prior(1, 0))
    precision = -seen.log_prior_grad_hessian(theta)[1]
    assert np.linalg.eigvalsh(precision)[0] > 0
    assert np.isfinite(seen.log_prior(theta))


@pytest.mark.slow
def test_what_the_prior_leaves_no_room_leaves_the_fit_whole() -> None:
    learner = learner_for(a_class(monotone_steps), delta=0.1)
    y = (np.arange(120) % 4 == 0).astype(float)
    x, a = np.tile(X, (3, 1)), np.tile(A, 3)
    for part in np.array_split(np.arange(120), 3):
        learner = learner.absorb(x[part], a[part], y[part]).refit()
    found = learner.bounds(ged.mean(0, 1), X[:1], K)
    assert found.guaranteed
    assert (found.upper < 0.9).all()


# Pyro's own ways ----------------------------------------------------------------------------------


def one_hot(x, a, y=None):
    site = torch.nn.functional.one_hot(x[:, 1].long(), SITES).double()
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([SITES]).to_event(1))
    pyro.sample("y", pd.Bernoulli(logits=site @ w), obs=y)


def embedded(x, a, y=None):
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([SITES, 2]).to_event(2))
    found = torch.nn.functional.embedding(x[:, 1].long(), w)
    pyro.sample("y", pd.Bernoulli(logits=found[:, 0] + found[:, 1] * x[:, 0]), obs=y)


def decentred(x, a, y=None):
    from pyro.infer.reparam import LocScaleReparam

    with pyro.poutine.reparam(config={"w": LocScaleReparam(0.0)}):
        tau = pyro.sample("tau", pd.HalfNormal(1.0))
        with pyro.plate("sites", SITES):
            w = pyro.sample("w", pd.Normal(0.0, tau))
    pyro.sample("y", pd.Bernoulli(logits=w[x[:, 1].long()]), obs=y)


@needs_pyro
@pytest.mark.parametrize("model", [one_hot, embedded, decentred])
def test_pyros_ways_of_picking_a_level_are_exact(model) -> None:
    cls, y = a_class(model), np.arange(40.0) % 2
    assert cls.exactness.startswith("exact: Bernoulli")
    theta = cls.draw_prior(1, 0)
    if cls.seen is None:
        probs = FAMILIES["Bernoulli", "logit"].arguments(
            cls.predictor.features(X, A) @ theta[0] + cls.predictor.offset(X, A), {}
        )["probs"]
        np.testing.assert_allclose(cls.density_at(theta[0], X, A).args["probs"], probs, rtol=1e-9)
    else:
        seen = served(cls)
        mine = seen.log_likelihood(seen.seen_of(theta), X, A, y)
        np.testing.assert_allclose(cls.log_likelihood(theta, X, A, y), mine, rtol=1e-9)


@needs_pyro
def test_what_actions_depend_on_is_tried_at_contexts_that_exist() -> None:
    """Contexts made up for it read past the end of arrays, which torch says by an IndexError."""
    where = Where(np.array([[0.3, 2.0]]), K, (0, 1))
    assert where.groups(served(a_class(scale_of_site_pyro)))
    assert where.groups(served(a_class(embedded)))


@needs_pyro
def test_torchs_own_one_hot_would_be_refused(monkeypatch) -> None:
    """The control: it looks at values while it runs."""
    monkeypatch.setattr(pyro_side, "_one_hot", torch.nn.functional.one_hot)
    cls = ged.density_class(one_hot, example=(X[:1], A[:1]))  # one that nothing has looked at
    assert "looks at values" in cls.exactness


@needs_pyro
def test_a_level_beyond_the_last_is_refused() -> None:
    cls = ged.density_class(one_hot, example=(X[:1], A[:1]))
    with pytest.raises(ActionRangeError, match="out of range"):
        cls.log_likelihood(np.zeros((1, SITES)), [[0.0, 7.0]], [0], [0.0])


@needs_pyro
def test_a_real_mask_is_still_refused() -> None:
    def masked(x, a, y=None):
        with pyro.poutine.mask(mask=torch.tensor(False)):
            arms(pyro, pd)
        pyro.sample("y", pd.Normal(0.0, 1.0).expand([len(a)]), obs=y)

    with pytest.raises(ged.errors.ModelError, match="masked"):
        a_class(masked)


def a_net(x, a, y=None):
    w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    eta = torch.tanh(x @ w).sum(-1)
    pyro.sample("y", pd.Bernoulli(logits=eta), obs=y)


@needs_pyro
def test_a_refusal_names_the_line_in_pyro() -> None:
    line = a_net.__code__.co_firstlineno + 2
    assert f"line {line} of test_spellings.py" in a_class(a_net).exactness
