"""Ordered outcomes between affine edges: concave likelihoods, exact bounds, in NumPyro and Pyro
alike.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import binom

import gedppl as ged
from gedppl.density import Density
from gedppl.learning.fits import WorkingPrior
from gedppl.learning.likelihoods import ProgramLikelihood
from gedppl.learning.oracles import maximum_likelihood
from gedppl.learning.ordered import OrderedLikelihood
from gedppl.learning.programs import ProgramLearner
from gedppl.rows import Rows
from tests.optional_pyro import HAS_PYRO, pd, pyro, torch

EDGES = np.array([[-1.0, 0.5, 1.0], [-0.3, 0.2, 1.5]])  # (K, C)
TRUTH = np.array([0.7, -0.4, 2.0])


def in_numpyro(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    s = numpyro.sample("s", nd.Normal(2.0, 1.0))
    numpyro.sample("y", nd.OrderedLogistic(x @ w, s * jnp.asarray(EDGES)[a]), obs=y)


def in_pyro(x, a, y=None):
    w = pyro.sample("w", pd.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", pd.Normal(2.0, 1.0))
    pyro.sample("y", pd.OrderedLogistic(x @ w, s * torch.as_tensor(EDGES)[a]), obs=y)


def bent(x, a, y=None):
    # positive through an exponential: edges are not affine in what is free
    s = numpyro.sample("s", nd.LogNormal(0.5, 0.5))
    numpyro.sample("y", nd.OrderedLogistic(x[:, 0], s * jnp.asarray(EDGES)[a]), obs=y)


def world(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, a = rng.standard_normal((n, 2)), rng.integers(2, size=n)
    latent = x @ TRUTH[:2] + rng.logistic(size=n)
    return x, a, (latent[:, None] > TRUTH[2] * EDGES[a]).sum(axis=1).astype(float)


@cache
def a_class(model=in_numpyro):
    return ged.density_class(model, example=(np.zeros((1, 2)), np.zeros(1, int)))


@pytest.mark.parametrize("model", [in_numpyro, in_pyro])
def test_edges_are_proved_and_give_the_programs_likelihood(model) -> None:
    cls = a_class(model)
    x, a, y = world(40, 0)
    assert cls.ordered is not None
    np.testing.assert_allclose(
        np.einsum("ncd,d->nc", cls.ordered.features(x, a), TRUTH) + cls.ordered.offset(x, a),
        TRUTH[2] * EDGES[a] - (x @ TRUTH[:2])[:, None],
        atol=1e-12,
    )
    theta = TRUTH + 0.2 * np.random.default_rng(1).standard_normal((5, 3))
    fast = (
        OrderedLikelihood.empty(cls.ordered, 3)
        .append(x[:7], a[:7], y[:7])
        .append(x[7:], a[7:], y[7:])
    )
    slow = ProgramLikelihood(cls, Rows.of(x, a, y))
    np.testing.assert_allclose(fast.row_values(theta), slow.row_values(theta), rtol=1e-9)
    for one, other in zip(fast.value_grad(theta), slow.value_grad(theta)):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        fast.information(theta[0]), slow.information(theta[0]), rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(
        fast.between(5, 20).value(theta), fast.row_values(theta)[:, 5:20].sum(axis=1)
    )


def test_nothing_is_claimed_of_edges_that_bend() -> None:
    assert a_class(bent).ordered is None


def test_beyond_a_closed_gap_there_is_no_density() -> None:
    cls = a_class()
    data = OrderedLikelihood.empty(cls.ordered, 3).append(*world(20, 0))
    assert data.value(np.array([[0.0, 0.0, -1.0]]))[0] == -np.inf


def test_fits_are_those_of_the_program() -> None:
    cls, rows = a_class(), Rows.of(*world(150, 2))
    weights = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    for w in (None, weights):
        fit = ged.oracles.auto()(cls, rows, weights=w)
        slow = maximum_likelihood(cls, rows, weights=w, prior=WorkingPrior.weak(cls))
        np.testing.assert_allclose(fit.theta, slow.theta, atol=1e-6)
        np.testing.assert_allclose(fit.information, slow.information, rtol=1e-5, atol=1e-6)
        assert fit.ok
    assert OrderedLikelihood.empty(cls.ordered, 3).at(TRUTH)[0] == 0.0


def learned(n: int, seed: int, model=in_numpyro) -> tuple[ProgramLearner, np.ndarray]:
    x, a, y = world(n, seed)
    learner = ProgramLearner.start(a_class(model), delta=0.05, seed=seed)
    for end in (8, 20, n):
        learner = learner.absorb(x[learner.n : end], a[learner.n : end], y[learner.n : end]).refit()
    return learner, np.random.default_rng(seed + 9).standard_normal((3, 2))


@pytest.mark.parametrize(
    "functional",
    [ged.probability(below=0.5), ged.probability(above=1.5), ged.probability(above=(0, 2))],
)
def test_bounds_are_the_extremes_over_the_set(functional) -> None:
    """Against a constrained optimiser that knows nothing of edges, from several starts."""
    learner, at = learned(60, 3)
    bounds = learner.bounds(functional, at, 2)
    assert bounds.method == "exact"
    assert bounds.guaranteed
    narrowest = learner.sets[-1]
    for i in range(len(at)):
        for k in range(2):
            for sign, found in ((1, bounds.upper[i, k]), (-1, bounds.lower[i, k])):
                best = max(
                    _extreme(learner, narrowest, functional, at[i], k, sign, seed)
                    for seed in range(3)
                )
                assert sign * found >= best - 1e-6
                if len(learner.sets) == 1:
                    assert sign * found == pytest.approx(best, abs=2e-4)
    learner = learner.__class__(**{**vars(learner), "sets": (narrowest,)})
    alone = learner.bounds(functional, at[:1], 2)
    best = max(_extreme(learner, narrowest, functional, at[0], 1, 1, seed) for seed in range(3))
    assert alone.upper[0, 1] == pytest.approx(best, abs=2e-4)


def _extreme(learner, chosen, functional, x, k, sign, seed) -> float:
    row, action = x[None], np.array([k])
    rng = np.random.default_rng(seed)
    start = chosen.region.centre + 0.05 * rng.standard_normal(3)

    def value(theta):
        return -sign * float(learner.cls.values_grad(functional, theta[None], row, action)[0][0])

    def slope(theta):
        return -sign * np.asarray(
            learner.cls.values_grad(functional, theta[None], row, action)[1][0]
        )

    inside = {
        "type": "ineq",
        "fun": lambda t: float(chosen.region.slack(t[None])[0]),
        "jac": lambda t: chosen.region.slack_grad(t[None])[1][0],
    }
    found = minimize(
        value,
        start,
        jac=slope,
        constraints=[inside],
        method="SLSQP",
        options={"maxiter": 200, "ftol": 1e-12},
    )
    return -found.fun if chosen.region.slack(found.x[None])[0] > -1e-4 else -np.inf


SEVERAL = {
    "mean": ged.mean(0, 3),
    "band": ged.probability(above=0.5, below=1.5),
    "second moment": ged.second_moment(9),
    "own": ged.expected(lambda y, x, a: abs(y - 1.0), 0, 2),
    "cvar": ged.cvar(0.6, 0, 3),
    "variance": ged.variance(2.25),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_weighs_several_edges_has_an_outer_bound_with_a_guarantee(name) -> None:
    """Members of the set, drawn and kept by the definition, never leave it; and it is not
    vacuous.
    """
    functional = SEVERAL[name]
    learner, at = learned(150, 3)
    bounds = learner.bounds(functional, at, 2)
    assert bounds.method == "outer"
    assert bounds.guaranteed
    assert "outer" in bounds.note
    theta = learner.theta + 0.3 * np.random.default_rng(0).standard_normal((4000, 3))
    inside = theta[learner.contains(theta)]
    assert len(inside) > 100
    xs, actions = np.repeat(at, 2, axis=0), np.tile(np.arange(2), len(at))
    edges = np.einsum(
        "md,ncd->mnc", inside, a_class().ordered.features(xs, actions)
    ) + a_class().ordered.offset(xs, actions)
    whole = np.concatenate(
        [np.zeros((*edges.shape[:2], 1)), expit(edges), np.ones((*edges.shape[:2], 1))], axis=2
    )
    density = Density("Categorical", {"probs": np.diff(whole, axis=2)})
    values = np.asarray(functional(density, x=xs, a=actions), float)
    assert np.all(values.max(axis=0) <= bounds.upper.ravel() + 1e-9)
    assert np.all(values.min(axis=0) >= bounds.lower.ravel() - 1e-9)
    assert np.all(bounds.upper - bounds.lower < functional.high - functional.low)


def test_a_quantile_of_ordered_outcomes_is_exact() -> None:
    """Whether P(y <= k) reaches the level is a question about one edge."""
    learner, at = learned(150, 3)
    found = learner.bounds(ged.quantile(0.7, 0, 3), at, 2)
    assert (found.method, found.guaranteed) == ("exact", True)
    chances = [learner.bounds(ged.probability(below=k + 0.5), at, 2) for k in range(3)]
    want = np.stack(
        [
            np.argmax(
                np.stack([*(end >= 0.7 for end in side), np.ones(chances[0].lower.shape, bool)]),
                axis=0,
            )
            for side in ([c.upper for c in chances], [c.lower for c in chances])
        ]
    )
    np.testing.assert_array_equal(np.stack([found.lower, found.upper]), want)


def test_members_never_leave_the_bounds() -> None:
    functional = ged.probability(below=0.5)
    for model in (in_numpyro, in_pyro)[: 1 + HAS_PYRO]:
        learner, at = learned(60, 5, model)
        draws = learner.theta + np.random.default_rng(0).standard_normal((4000, 3)) * 0.5
        draws = draws[learner.contains(draws)]
        assert len(draws) > 50
        values = learner.cls.values(
            functional, draws, np.repeat(at, 2, axis=0), np.tile([0, 1], 3)
        ).reshape(-1, 3, 2)
        bounds = learner.bounds(functional, at, 2)
        assert (bounds.upper >= values.max(axis=0) - 1e-9).all()
        assert (bounds.lower <= values.min(axis=0) + 1e-9).all()
        trail = learner.trail(functional, at, 2)
        np.testing.assert_allclose(trail.estimate[:, -1], bounds.estimate, atol=1e-9)
        assert (trail.lower <= trail.upper).all()


def test_the_set_covers_at_all_times() -> None:
    """Runs with any miss, against the binomial threshold; outcomes arrive one by one and the
    design is adaptive.
    """
    missed, cls = 0, a_class()
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        learner, miss = ProgramLearner.start(cls, delta=0.1, seed=seed), False
        for i in range(40):
            x = rng.standard_normal((1, 2))
            a = np.array([int(learner.theta[0] * x[0, 0] > 0)])
            latent = x @ TRUTH[:2] + rng.logistic(size=1)
            y = (latent[:, None] > TRUTH[2] * EDGES[a]).sum(axis=1).astype(float)
            learner = learner.absorb(x, a, y)
            if i % 8 == 7:
                learner = learner.refit()
            miss |= not learner.contains(TRUTH[None])[0]
        missed += miss
    assert missed <= binom.ppf(0.9999, 60, 0.1)


def test_a_run_resumes_from_its_snapshot(tmp_path) -> None:
    cls = a_class()
    limit = ged.Constraint(
        cls, ged.probability(below=0.5), at_most=0.4, safe_value=0.05, name="low", outcome="utility"
    )
    problem = ged.Problem(2, ged.Utility(cls, ged.probability(above=0.5)), [limit], safe_action=0)
    # the safe value is made up
    agent = ged.GEDUCB(problem, seed=0, journal=tmp_path / "journal.db", guard=None)
    x, _, _ = world(20, 4)
    rng = np.random.default_rng(0)
    for row in x:
        decision = agent.ask(row)
        agent.tell(
            decision.id,
            float((row @ TRUTH[:2] + rng.logistic() > TRUTH[2] * EDGES[decision.action]).sum()),
        )
    before = agent.policy(x[:5])
    agent.journal.close()
    np.testing.assert_array_equal(
        ged.resume(tmp_path / "journal.db", problem).policy(x[:5]), before
    )


def free_edges(x, a, y=None):
    # nothing keeps them in order, and no prior says how often they cross
    cuts = numpyro.param("cuts", jnp.zeros(2))
    numpyro.sample("y", nd.OrderedLogistic(0.0 * x[:, 0], cuts), obs=y)


def test_predictions_by_crossing_edges_do_not_count() -> None:
    learner = ProgramLearner.start(a_class(free_edges), delta=0.05)
    one = np.zeros((1, 2)), np.zeros(1, int)

    def total(learner):  # of the predictive over the outcomes
        return sum(
            np.exp(learner.absorb(*one, np.array([y])).evidence - learner.evidence)
            for y in (0.0, 1.0, 2.0)
        )

    assert total(learner) <= 1 + 1e-12
    rng = np.random.default_rng(0)
    # the middle outcome is so rare that it never comes, and the fitted edges cross
    for t in range(1, 41):
        learner = learner.absorb(*one, 2.0 * rng.integers(2, size=1))
        learner = learner.refit() if t in (1, 4, 10, 20) else learner
    assert learner.theta[0] > learner.theta[1]
    assert total(learner) <= 1 + 1e-12
    assert learner.contains(np.array([[0.0, 0.03]]))[0]


def cuts_in_numpyro(x, a, y=None):
    # times free cuts: not affine, so the program itself is asked
    s = numpyro.sample("s", nd.LogNormal(0.0, 0.5))
    c = numpyro.sample("c", nd.Normal(jnp.array([-0.5, 0.5]), 1.0).to_event(1))
    numpyro.sample(
        "y", nd.OrderedLogistic(x[:, 0], s * jnp.broadcast_to(c, (x.shape[0], 2))), obs=y
    )


def cuts_in_pyro(x, a, y=None):
    s = pyro.sample("s", pd.LogNormal(torch.tensor(0.0).double(), 0.5))
    c = pyro.sample("c", pd.Normal(torch.tensor([-0.5, 0.5]), 1.0).to_event(1))
    pyro.sample("y", pd.OrderedLogistic(x[:, 0], s * c.expand(x.shape[0], 2)), obs=y)


@pytest.mark.parametrize("model", [cuts_in_numpyro, cuts_in_pyro])
def test_cuts_out_of_order_are_no_density(model) -> None:
    cls, x, a = a_class(model), np.zeros((3, 2)), np.zeros(3, int)
    assert cls.ordered is None
    members = [{"s": 1.3, "c": np.array(cuts)} for cuts in ([-0.4, 0.6], [0.6, -0.4])]
    theta = np.stack([cls.flatten(member) for member in members])
    three = Rows.of(x, a, np.arange(3.0))
    total = np.exp(ProgramLikelihood(cls, three).row_values(theta)).sum(axis=1)
    np.testing.assert_allclose(total, [1.0, 0.0], atol=1e-12)
    finite = ged.finite_class(model, members, example=(x, a))
    np.testing.assert_allclose(
        np.exp(finite.log_likelihood(finite.every, x, a, np.arange(3.0))).sum(axis=1),
        [1.0, 0.0],
        atol=1e-12,
    )
