"""What supports say of parameters together, such as their order, cuts sets of what data see."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from numpyro.distributions import transforms as nt
from scipy.optimize import minimize

import gedppl as ged
from gedppl.learning import learner_for
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.seen_class import served
from tests.optional_pyro import needs_pyro, pd, pyro, torch

K = 3
X = np.zeros((1, 1))


@cache
def rising(how):
    """A dose effect that never falls."""

    def model(x, a, y=None):
        first = numpyro.sample("first", nd.Normal(-2.0, 1.0))
        d = numpyro.sample("d", nd.Normal(-1.0, 1.0).expand([K - 1]).to_event(1))
        step = {"softplus": jax.nn.softplus, "exp": jnp.exp, "none": lambda v: v}[how](d)
        level = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(step)])
        numpyro.sample("y", nd.Bernoulli(logits=level[a]), obs=y)

    return model


def rising_pyro(x, a, y=None):
    first = pyro.sample("first", pd.Normal(-2.0, 1.0))
    d = pyro.sample("d", pd.Normal(-1.0, 1.0).expand([K - 1]).to_event(1))
    steps = torch.cumsum(torch.nn.functional.softplus(d), 0)
    level = first + torch.cat([torch.zeros(1), steps])
    pyro.sample("y", pd.Bernoulli(logits=level[a]), obs=y)


def score(x, a, y=None):
    cut = numpyro.sample(
        "cut", nd.TransformedDistribution(nd.Normal(0.0, 1.0).expand([3]), nt.OrderedTransform())
    )
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([K]).to_event(1))
    numpyro.sample("y", nd.OrderedLogistic(effect[a], cut), obs=y)


def score_pyro(x, a, y=None):
    order = pd.transforms.OrderedTransform()
    cut = pyro.sample("cut", pd.TransformedDistribution(pd.Normal(torch.zeros(3), 1.0), [order]))
    effect = pyro.sample("effect", pd.Normal(0.0, 1.0).expand([K]).to_event(1))
    pyro.sample("y", pd.OrderedLogistic(effect[a], cut), obs=y)


def shares(x, a, y=None):
    """A chance that mixes three parts, by weights that add up to one."""
    w = numpyro.sample("w", nd.Dirichlet(jnp.ones(3)).expand([K]).to_event(1))
    parts = jnp.stack([x[:, 0], 1.0 - x[:, 0], jnp.full(len(a), 0.5)], axis=1)
    numpyro.sample("y", nd.Bernoulli(probs=(w[a] * parts).sum(-1)), obs=y)


def shares_pyro(x, a, y=None):
    w = pyro.sample("w", pd.Dirichlet(torch.ones(3)).expand([K]).to_event(1))
    parts = torch.stack([x[:, 0], 1.0 - x[:, 0], 0.5 + 0.0 * x[:, 0]], 1)
    pyro.sample("y", pd.Bernoulli(probs=(w[a] * parts).sum(-1)), obs=y)


@cache
def a_class(model):
    return ged.density_class(model, example=(X, np.zeros(1, int)))


def walls_of(cls):
    form = cls.seen.predictor or cls.seen.ordered
    return (*(np.concatenate(part) for part in form.walls),) if form.walls[0] else None


def taught(model, a, y):
    learner = learner_for(a_class(model), delta=0.1)
    for part in np.array_split(np.arange(len(a)), 4):
        learner = learner.absorb(np.zeros((len(part), 1)), a[part], y[part]).refit()
    return learner


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (rising("softplus"), 2),
        pytest.param(rising("exp"), 2, marks=pytest.mark.slow),
        (rising("none"), 0),
        (score, 2),
        pytest.param(rising_pyro, 2, marks=needs_pyro),
        pytest.param(score_pyro, 2, marks=needs_pyro),
    ],
)
def test_walls_are_as_many_as_proved_and_no_parameter_breaks_them(model, count) -> None:
    cls = a_class(model)
    if count == 0:
        assert cls.seen is None or walls_of(cls) is None
        return
    normals, limits = walls_of(cls)
    assert len(limits) == count
    v = served(cls).seen_of(cls.draw_prior(500, 0))
    room = 1e-12 * np.abs(v).max()
    assert (v @ normals.T <= limits + room).all()
    assert not (-v @ normals.T <= limits).all(axis=1).any()  # they say something


@pytest.mark.parametrize("model", [shares, pytest.param(shares_pyro, marks=needs_pyro)])
def test_the_last_of_weights_that_add_up_to_one_is_no_coordinate(model) -> None:
    cls = a_class(model)
    assert cls.seen.names == tuple(f"w[{k}, {j}]" for k in range(K) for j in range(2))
    normals, limits = walls_of(cls)
    assert np.array_equal(normals, np.kron(np.eye(K), np.ones(2)))
    assert limits.tolist() == [1.0] * K
    theta, x, a = cls.draw_prior(20, 1), np.linspace(0, 1, 6)[:, None], np.tile(np.arange(K), 2)
    mine = served(cls)
    chances = [
        np.asarray(ged.mean(0, 1)(one.density_at(at, x, a)))
        for one, at in ((cls, theta), (mine, mine.seen_of(theta)))
    ]
    assert np.abs(chances[0] - chances[1]).max() < 1e-12


def by_search(learner, phi) -> float:
    """The largest phi'v over the first set, inside the walls, by a general solver."""
    (chosen, *_), (normals, limits) = learner.sets, walls_of(learner.cls.whole)

    def slack(v):
        return float(learner.cls.total(v, learner.rows)) - chosen.threshold

    rng, best = np.random.default_rng(0), -np.inf
    for _ in range(6):
        begin = np.sort(chosen.region.centre + 0.3 * rng.standard_normal(len(phi)))
        found = minimize(
            lambda v: -phi @ v,
            begin,
            constraints=[
                {"type": "ineq", "fun": slack},
                {"type": "ineq", "fun": lambda v: limits - normals @ v},
            ],
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 300},
        )
        if slack(found.x) >= -1e-7 and (normals @ found.x <= limits + 1e-9).all():
            best = max(best, float(phi @ found.x))
    return best


@pytest.fixture(scope="module")
def few_high_doses():
    """Many rows of the lowest dose, a third of them ones, and four of each other."""
    rows = np.random.default_rng(0).permutation(80)
    a = np.r_[np.zeros(72, int), [1] * 4, [2] * 4]
    y = np.r_[np.arange(72) % 3 == 0, [0, 1, 0, 1], [0, 1, 1, 1]].astype(float)
    return taught(rising("softplus"), a[rows], y[rows])


def test_a_rising_effect_bounds_a_dose_from_those_below_and_above(few_high_doses) -> None:
    found = few_high_doses.bounds(ged.mean(0, 1), X, K)
    assert found.guaranteed
    assert found.lower[0, 2] >= found.lower[0, 0] - 1e-9  # a high dose does no less than a low one
    assert found.lower[0, 2] > 0.15
    whole = replace(few_high_doses, sets=few_high_doses.sets[:1], own=())
    ours = whole.bounds(ged.mean(0, 1), X, K)
    for action in range(K):
        unit = np.eye(K)[action]
        for sign, side in ((1.0, ours.upper), (-1.0, ours.lower)):
            end = sign * by_search(whole, sign * unit)
            assert side[0, action] == pytest.approx(1 / (1 + np.exp(-end)), abs=1e-5)


def test_without_the_walls_it_would_be_wide(few_high_doses, monkeypatch) -> None:
    """The control."""
    monkeypatch.setattr(PredictorLikelihood, "supports", ((), ()))
    assert few_high_doses.bounds(ged.mean(0, 1), X, K).lower[0, 2] < 0.12


def test_a_parameter_out_of_order_is_no_member(few_high_doses, monkeypatch) -> None:
    v = few_high_doses.sets[0].region.centre
    sides = np.array([np.sort(v), np.sort(v)[::-1]])
    inside = few_high_doses.contains(np.vstack([sides, v + 1e-3 * np.arange(3)]))
    assert not inside[1]
    monkeypatch.setattr(PredictorLikelihood, "supports", ((), ()))
    shifted = v - 0.05 * np.arange(3)
    assert few_high_doses.contains(shifted[None])[0]
