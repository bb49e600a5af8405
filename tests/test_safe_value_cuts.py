"""What is declared of the safe action bounds the parameters: upper values over those alone under
which it keeps its word.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import linprog, minimize
from scipy.special import expit, logit
from scipy.stats import binom

import gedppl as ged
from gedppl.ged_ucb.costs import todays_costs
from gedppl.learning import feed, learner_for, program_bounds
from gedppl.learning import learner as learners
from gedppl.learning.learner import Bounds, held_together
from gedppl.programs.tracing import Site
from gedppl.selection.solvers import Together
from tests.plain_worlds import state_of
from tests.program_doubles import OnePredictorDouble

K, D = 4, 3
SAFE = 0.1
# features of every action; the safe one is a little of the first column
PHI = np.vstack([[SAFE, 0.0, 0.0], [[1.0, 0.6, 0.2], [1.0, -0.4, 0.5], [1.0, 0.1, -0.7]]])


def test_a_cut_ball_against_a_dense_one() -> None:
    """Single actions: the largest value over the part of the ball where the wall holds. Policies:
    never below it.
    """
    rng = np.random.default_rng(0)
    v = rng.normal(size=(40_000, 3))
    v *= (rng.random(len(v)) ** (1 / 3) / np.linalg.norm(v, axis=1))[:, None]
    v = np.vstack([v, v / np.linalg.norm(v, axis=1, keepdims=True)])
    lowered = 0
    for _ in range(20):
        form = Together(rng.normal(size=(1, K)), rng.normal(size=(1, K, 3)))
        most = form.middle[:, 0] + rng.uniform(-0.8, 1.2) * np.linalg.norm(form.half[0, 0])
        held = held_together(form, 0, most)
        cost = form.middle[0] + v @ form.half[0].T
        inside = cost[cost[:, 0] <= most[0]]
        assert (held.each[0, 1:] >= inside[:, 1:].max(axis=0) - 1e-9).all()
        assert held.each[0, 1:] == pytest.approx(inside[:, 1:].max(axis=0), abs=0.25)
        lowered += int((held.each < form.each - 1e-6).sum())
        policy = rng.dirichlet(np.ones(K), size=(1, 5))
        pinned = held.pinned(0, most).worst(policy)[0]
        truth = np.where(np.arange(K) == 0, most[0], inside) @ policy[0].T
        assert (pinned >= truth.max(axis=0) - 1e-9).all()
    assert lowered > 20


def test_a_refuted_or_idle_declaration_changes_nothing() -> None:
    form = Together(np.zeros((1, 2)), np.array([[[1.0, 0.0], [2.0, 1.0]]]))
    for most in (-1.5, 1.5):  # no part of the ball keeps it, and every part does
        np.testing.assert_array_equal(held_together(form, 0, np.array([most])).each, form.each)
    flat = Together(np.zeros((1, 2)), np.array([[[0.0, 0.0], [2.0, 1.0]]]))
    np.testing.assert_array_equal(held_together(flat, 0, np.array([0.1])).each, flat.each)


# linear-Gaussian: coverage under adaptive data ----------------------------------------------------


def _linear(x, a, y=None):
    theta = numpyro.param("theta", jnp.zeros(D))
    phi = x.reshape(-1, K, D)[jnp.arange(x.shape[0]), a]
    numpyro.sample("y", dist.Normal(phi @ theta, 0.2), obs=y)


def _logistic(x, a, y=None):
    theta = numpyro.param("theta", jnp.zeros(D))
    phi = x.reshape(-1, K, D)[jnp.arange(x.shape[0]), a]
    numpyro.sample("y", dist.Bernoulli(logits=phi @ theta), obs=y)


@pytest.fixture(scope="module")
def classes():
    example = (PHI.reshape(1, -1), np.zeros(1, int))
    return {
        "linear": ged.density_class(_linear, example=example),
        "logistic": ged.density_class(_logistic, example=example),
    }


def _problem(cls, safe: float, high: float = 1.0, **more) -> ged.Problem:
    limit = ged.Constraint(cls, ged.mean(0, high), at_most=0.9 * high, safe_value=safe)
    return ged.Problem(
        n_actions=K,
        utility=ged.Utility(cls, ged.mean(0, high)),
        constraints=[limit],
        safe_action=0,
        **more,
    )


def _missed(cls, theta: np.ndarray, declared: float, seed: int, rounds: int) -> tuple[bool, float]:
    """Whether an upper value ever fell below the truth, and by how much the declaration lowered
    them on average. A third of the rows is of the action whose upper value is lowest.
    """
    rng = np.random.default_rng(seed)
    x, problem = PHI.reshape(1, -1), _problem(cls, 0.05)
    agent = ged.GEDUCB(problem, delta=0.1, seed=seed, guard=None)
    state = state_of(agent, x)
    learner = state.learners["cost"]
    truth, missed, lowered = PHI @ theta, False, []
    for t in range(rounds):
        bounds = learner.bounds(problem.constraints[0].functional, x, K)
        held = bounds.held(0, np.array([declared]))
        missed |= bool((held.upper[0, 1:] < np.minimum(truth[1:], 1.0) - 1e-9).any())
        lowered.append((bounds.upper - held.upper)[0, 1:].mean())
        cheapest = 1 + int(np.argmin(held.upper[0, 1:]))
        a = np.array([(0, cheapest, 1 + t // 3 % (K - 1))[t % 3]])
        y = truth[a] + 0.2 * rng.normal(size=1)
        learner = learner.absorb(x, a, y).refit()
    return missed, float(np.mean(lowered))


@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_upper_values_cover_where_the_declaration_is_true(classes, runs) -> None:
    theta = np.array([0.5, 0.2, 0.1])
    found = [_missed(classes["linear"], theta, SAFE * theta[0], seed, 40) for seed in range(runs)]
    assert sum(missed for missed, _ in found) <= binom.ppf(0.9999, runs, 0.1)
    assert np.mean([lowered for _, lowered in found]) > 0.01  # and it says something


def test_a_false_declaration_does_not_cover(classes) -> None:
    """The control: were the cut not made, a safe value that is too low would harm nobody else."""
    theta = np.array([0.5, 0.2, 0.1])
    found = [_missed(classes["linear"], theta, 0.015, seed, 40) for seed in range(20)]
    assert sum(missed for missed, _ in found) > binom.ppf(0.9999, 20, 0.1)


def test_a_price_of_the_wrong_sign_is_caught(monkeypatch) -> None:
    """The control of `price_of_wall`: with l < 0 what is computed is no upper bound."""
    form = Together(np.zeros((1, 2)), np.array([[[1.0, 0.0], [2.0, 1.0]]]))
    most = np.array([0.2])
    right = held_together(form, 0, most).each[0, 1]
    assert right == pytest.approx(2 * 0.2 + np.sqrt(1 - 0.2**2))
    original = learners.price_of_wall
    monkeypatch.setattr(learners, "price_of_wall", lambda *given: -original(*given))
    assert held_together(form, 0, most).each[0, 1] != pytest.approx(right)


# one predictor ------------------------------------------------------------------------------------


def test_logistic_upper_values_against_a_solver(classes) -> None:
    """At or above the largest over the set behind the wall, with half of what it takes off."""
    cls, rng = classes["logistic"], np.random.default_rng(1)
    theta = np.array([-1.0, 1.0, 0.5])
    safe = float(expit(PHI[0] @ theta))
    problem, x = _problem(cls, safe), PHI.reshape(1, -1)
    a = rng.integers(0, K, 150)
    y = (rng.random(150) < expit(PHI[a] @ theta)).astype(float)
    learner = state_of(ged.GEDUCB(problem, seed=0, guard=None), x).learners["cost"]
    learner = learner.absorb(np.repeat(x, 150, axis=0), a, y).refit()
    bounds = learner.bounds(problem.constraints[0].functional, x, K)
    held = bounds.held(0, np.array([safe]))
    region = learner.sets[0].region
    for action in range(1, K):
        found = minimize(
            lambda v, phi=PHI[action]: -phi @ v,
            region.centre,
            constraints=[
                {"type": "ineq", "fun": lambda v: region.slack(v[None])[0]},
                {"type": "ineq", "fun": lambda v: logit(safe) - PHI[0] @ v},
            ],
        )
        best = expit(-found.fun)
        assert held.upper[0, action] >= best - 1e-6
        if len(learner.every_set) == 1:
            assert held.upper[0, action] <= best + 0.5 * (bounds.upper[0, action] - best) + 1e-6
    assert (held.upper[0, 1:] < bounds.upper[0, 1:] - 1e-3).any()
    np.testing.assert_array_equal(held.free_upper, bounds.free_upper)  # refutations see it whole


def _steeper(x, a):
    """An action's log mean is 1.5 times the safe action's."""
    return 1.0 + 0.5 * np.asarray(a)[:, None]


@pytest.mark.parametrize(
    ("functional", "rate"),
    [(ged.quantile(0.5, 0, 40), 3.5), (ged.probability(above=0.5), 0.5), (ged.mean(0, 40), 3.5)],
)
def test_counts_keep_what_is_declared_on_a_whole_interval(functional, rate) -> None:
    """Every rate of a grid under which the safe action keeps its declared value stays: at a median
    of 3 it may be 3.5, at P(Y > 0) = .39 it is .5. Of means alone it is known where such rates end;
    taken for means, the first two have upper values that fall short.
    """
    cls = OnePredictorDouble("Poisson", "log", 1, features=_steeper)
    x, a = np.ones((40, 1)), np.zeros(40, int)
    y = np.random.default_rng(3).permutation(np.arange(40) % 2) + rate - 0.5
    learner = feed(learner_for(cls, delta=0.1), x, a, y)
    etas = np.linspace(-2.0, 2.0, 4001)[:, None]

    def at(action: int) -> np.ndarray:
        density = cls.density_at(etas, x[:1], np.array([action]))
        return np.asarray(functional(density))[:, 0]

    bounds = learner.bounds(functional, x[:1], 2)
    safe = float(at(0)[np.searchsorted(etas[:, 0], np.log(rate))])
    left = (at(0) <= safe) & (learner.sets[0].region.slack(etas) >= 0)
    held = bounds.held(0, np.array([safe])).upper[0, 1]
    assert held >= at(1)[left].max() - 1e-9
    assert (held < bounds.upper[0, 1]) == (functional.name == "mean")


def test_where_nothing_is_left_the_set_stands_as_it_is() -> None:
    """A cut below what every member costs refutes the declaration and bounds nothing."""
    low, high, cut = (np.array([[value, 0.2]]) for value in (0.3, 0.5, 0.1))
    bounds = Bounds(high, low, high, "exact", True, "", find_held=lambda action, most: cut)
    np.testing.assert_array_equal(bounds.held(1, np.array([0.2])).upper, high)


# finite classes, and when nothing is known of the safe action -------------------------------------


def test_members_that_break_the_declaration_do_not_count() -> None:
    from gedppl.learning.finite import held_members

    values = np.array([[[0.1, 0.4]], [[0.3, 0.9]], [[0.2, 0.6]]])  # (M, n, K)
    kept = np.array([[True], [True], [False]])
    assert held_members(values, kept, 0, np.array([0.1]), 1.0)[0, 1] == 0.4
    assert held_members(values, kept, 0, np.array([0.3]), 1.0)[0, 1] == 0.9
    assert held_members(values, kept, 0, np.array([0.05]), 1.0)[0, 1] == 1.0  # refuted


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_a_truth_that_is_what_was_declared_is_not_lost_by_rounding(unit) -> None:
    """.1 + .2 is not .3: the member that the declaration was made from stays, one beyond does
    not.
    """
    from gedppl.learning.finite import held_members

    values = unit * np.array([[[0.1 + 0.2, 0.9]], [[0.1, 0.4]]])
    kept = np.ones((2, 1), bool)
    assert (unit * (0.1 + 0.2)) > unit * 0.3
    assert held_members(values, kept, 0, np.array([unit * 0.3]), unit)[0, 1] == unit * 0.9
    assert held_members(values, kept, 0, np.array([unit * 0.299]), unit)[0, 1] == unit * 0.4


def test_a_member_without_a_value_leaves_the_range() -> None:
    from gedppl.learning.finite import held_members

    values = np.array([[[np.nan, np.nan]], [[0.1, 0.4]]])
    kept = np.ones((2, 1), bool)
    assert held_members(values, kept, 0, np.array([0.1]), 1.0)[0, 1] == 1.0


def test_a_model_that_does_not_learn_the_safe_action_is_not_held_to_it(
    classes, monkeypatch
) -> None:
    asked = []
    original = Bounds.held
    monkeypatch.setattr(
        Bounds, "held", lambda self, *given: asked.append(given) or original(self, *given)
    )
    x = PHI.reshape(1, -1)
    for learn_safe in (False, True):
        problem = replace(_problem(classes["linear"], 0.05), learn_safe=learn_safe)
        todays_costs(state_of(ged.GEDUCB(problem, guard=None), x), x)
        assert bool(asked) == learn_safe


# what is declared alone, before any row -----------------------------------------------------------

DOSES = np.array([0.0, 0.4, 1.1])


def side_effect(x, a, y=None):
    """A level that nobody knows, and an effect of the dose that is declared to have an end."""
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    age = numpyro.sample("age", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    dose = jnp.asarray(DOSES)[a]
    numpyro.sample("y", dist.Bernoulli(logits=level + age * x[:, 0] + slope * dose), obs=y)


def side_effects(most: float | None) -> ged.GEDUCB:
    bounds = None if most is None else {"slope": (-2.0, most)}
    cls = ged.density_class(side_effect, bounds=bounds)
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=0.3, safe_value=0.1, outcome="utility")
    utility = ged.Utility(cls, ged.mean(0, 1))
    return ged.GEDUCB(
        ged.Problem(n_actions=3, utility=utility, constraints=[limit], safe_action=0), guard=None
    )


def test_an_effect_with_an_end_keeps_actions_near_the_safe_one_before_any_data() -> None:
    agent = side_effects(3.0)
    for x in (0.7, -1.3):
        upper = agent.cost_bounds([x])[1][0]
        assert upper[1:] == pytest.approx(expit(logit(0.1) + 3.0 * DOSES[1:]), abs=1e-8)
    assert side_effects(None).cost_bounds([0.7])[1][0, 1:].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("loosened", [False, True])
def test_what_is_declared_alone_against_a_linear_program(monkeypatch, loosened) -> None:
    """It is the linear program's value; with half of what the bounds allow (the control) it is
    not.
    """
    rng, differ = np.random.default_rng(4), 0
    reach = program_bounds.declared_reach
    if loosened:
        monkeypatch.setattr(program_bounds, "declared_reach", lambda *form: 0.5 * reach(*form))
    for _ in range(60):
        low, high = -rng.random(4), rng.random(4)
        sides = np.where(rng.random(4) < 0.7, np.inf, 1.0)  # ends that are open
        cls = SimpleNamespace(
            bounds={f"v{j}": (low[j] * sides[j], high[j] * sides[j]) for j in range(4)},
            sites=[Site(f"v{j}", True, (), (), j, j + 1) for j in range(4)],
        )
        wall = rng.normal(size=4)
        phi = np.where(np.isinf(sides), rng.choice([0.3, 1.0, 1.1, 0.7]) * wall, rng.normal(size=4))
        most = rng.normal()
        found = program_bounds.held_as_declared(cls, phi[None], wall[None], np.array([most]))[0]
        exact = linprog(
            -phi, wall[None], [most], bounds=list(zip(low * sides, high * sides)), method="highs"
        )
        if exact.status == 0:
            differ += abs(found - -exact.fun) > 1e-7
    assert (differ > 20) == loosened
    assert (differ == 0) != loosened
