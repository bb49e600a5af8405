"""Runs decided together are those of one agent each: the same policies, actions and rounds."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from benchmarks.arena import make
from gedppl.errors import DataError, OutOfSupportError, SettingError, ShapeError
from gedppl.learning import several_runs
from gedppl.study.simulation.many import simulate_many
from tests.plain_worlds import memory_of

SEEDS = (3, 4, 9)


def alone(problem, worlds, rounds, seeds=SEEDS, **options):
    return [
        ged.simulate(problem, world, ged.GEDUCB(problem, guard=None, seed=s, **options), rounds, s)
        for world, s in zip(worlds, seeds)
    ]


def assert_same(many, single, tolerance=1e-9):
    for one, other in zip(many, single, strict=True):
        assert np.array_equal(one.x, other.x)
        assert np.abs(one.policy - other.policy).max() <= tolerance
        assert np.array_equal(one.action, other.action)
        assert np.allclose(one.best, other.best, atol=tolerance)
        assert np.allclose(one.utility, other.utility, atol=tolerance)
        assert np.array_equal(one.infeasible, other.infeasible)
        assert np.allclose(one.realised, other.realised, equal_nan=True)
        assert one.environment_state == other.environment_state


# arms by group, shared parameters, more arms than parameters, ties, a finite class, and models
# that are asked one by one
@pytest.mark.parametrize(
    ("name", "rounds"),
    [("disjoint", 30), ("shared", 30), ("two_dims", 25), ("lock_in", 30), ("finite", 30)],
)
def test_policies_are_those_of_single_agents(name, rounds):
    problem = make(name, 0).problem()
    many = simulate_many(problem, [make(name, 0) for _ in SEEDS], rounds, SEEDS)
    assert_same(many, alone(problem, [make(name, 0) for _ in SEEDS], rounds))


def test_models_without_a_stack_are_asked_one_by_one():
    problem = make("logistic", 0).problem()
    many = simulate_many(problem, [make("logistic", 0) for _ in SEEDS[:2]], 12, SEEDS[:2])
    assert_same(many, alone(problem, [make("logistic", 0) for _ in SEEDS[:2]], 12, SEEDS[:2]))


@cache
def a_class(model, **bounds):
    return ged.density_class(model, bounds=bounds)


def normal(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
    numpyro.sample("y", dist.Normal(w[a, 0] + w[a, 1] * x[:, 0], 0.3), obs=y)


class TwoLimits:
    """Three arms with an intercept and a slope each, and two costs."""

    means = np.array([0.1, 0.6, 0.9])

    def context(self, rng):
        return rng.uniform(0, 1, 1)

    def utilities(self, x):
        return self.means + 0.1 * x[0]

    def costs(self, x):
        return np.stack([0.5 * self.means, 0.3 * self.means + 0.1 * x[0]])

    def outcome(self, x, action, rng):
        y, first, second = rng.normal(0, 0.3, 3)
        cost = self.costs(x)[:, action]
        return self.utilities(x)[action] + y, {"a": cost[0] + first, "b": cost[1] + second}


def two_limits(**options) -> ged.Problem:
    limits = [
        ged.Constraint(a_class(normal), ged.mean(-3, 3), at_most=0.4, safe_value=0.1, name="a"),
        ged.Constraint(
            a_class(normal),
            ged.probability(above=0.5),
            at_most=0.6,
            safe_value=0.2,
            name="b",
        ),
    ]
    gain = ged.Utility(a_class(normal), ged.mean(-3, 3))
    return ged.Problem(3, gain, limits, safe_action=0, **options)


@pytest.mark.parametrize("learn_safe", [True, False])
def test_priors_several_limits_and_an_unlearned_safe_action(learn_safe):
    problem = two_limits(learn_safe=learn_safe)
    many = simulate_many(problem, [TwoLimits()] * 2, 30, SEEDS[:2], delta=0.2, bonus_scale=1.0)
    single = alone(problem, [TwoLimits()] * 2, 30, SEEDS[:2], delta=0.2, bonus_scale=1.0)
    assert_same(many, single)
    assert sum((run.action > 0).sum() for run in many) > 3  # it did leave the safe action


def test_a_set_that_is_empty_in_one_run_leaves_the_others_alone():
    """The second world contradicts its model: outcomes far outside the declared norm."""

    class Wild:
        def __init__(self, world, size):
            self.world, self.size = world, size

        def __getattr__(self, name):
            return getattr(self.world, name)

        def outcome(self, x, action, rng):
            y, z = self.world.outcome(x, action, rng)
            return y * self.size, z * self.size

    problem = make("shared", 0).problem()
    worlds = [Wild(make("shared", 0), size) for size in (1.0, 40.0)]
    many = simulate_many(problem, worlds, 40, SEEDS[:2])
    assert_same(many, alone(problem, worlds, 40, SEEDS[:2]))


def test_stacks_are_used():
    for name, kind in (
        ("shared", several_runs.StackedEllipsoids),
        ("finite", several_runs.StackedMembers),
    ):
        agent = ged.GEDUCB(make(name, 0).problem(), guard=None)
        agent.ask(make(name, 0).context(np.random.default_rng(0)))
        learner = memory_of(agent).state.learners["utility"]
        assert type(several_runs.stacked([learner, learner])) is kind


# what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "theory"}, "mode='theory'"),
        ({"exploration": "counterfactual"}, "exploration='counterfactual'"),
        ({"confidence": ged.credible_set(0.9)}, "confidence="),
    ],
)
def test_what_needs_an_agent_of_its_own_is_refused(options, said):
    problem = two_limits()
    with pytest.raises(SettingError, match=f"{said}.*one by one"):
        simulate_many(problem, [TwoLimits()], 3, [0], **options)


def test_late_outcomes_and_a_missing_seed_are_refused():
    with pytest.raises(SettingError, match="outcome_age=5"):
        simulate_many(two_limits(outcome_age=5), [TwoLimits()], 3, [0])
    with pytest.raises(ShapeError, match="2 worlds and 1 seeds"):
        simulate_many(two_limits(), [TwoLimits()] * 2, 3, [0])


def test_a_world_that_does_not_tell_everything_is_named():
    class Silent(TwoLimits):
        def outcome(self, x, action, rng):
            return super().outcome(x, action, rng)[0], None

    with pytest.raises(DataError, match=r"round 0 of run 0 .*\['utility'\] only"):
        simulate_many(two_limits(), [Silent()], 3, [0])


def test_outcomes_outside_the_model_are_an_error():
    class Broken:
        def __init__(self):
            self.world = make("finite", 0)

        def __getattr__(self, name):
            return getattr(self.world, name)

        def outcome(self, x, action, rng):
            return 0.5, 0.5

    with pytest.raises(OutOfSupportError):
        simulate_many(make("finite", 0).problem(), [Broken()], 3, [0])


# plans --------------------------------------------------------------------------------------------


def beta_free(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", dist.Normal(w[a], 0.2), obs=y)


def small() -> ged.Problem:
    limit = ged.Constraint(
        a_class(beta_free, w=1.0),
        ged.mean(-1, 1),
        at_most=0.3,
        safe_value=0.0,
        name="cost",
    )
    gain = ged.Utility(a_class(beta_free, w=1.0), ged.mean(-1, 1))
    return ged.Problem(2, gain, [limit], safe_action=0, learn_safe=False)


def rows_close(plan, other):
    for one, two in zip(plan.rows, other.rows, strict=True):
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert value == two[key] or value == pytest.approx(two[key], abs=1e-9, nan_ok=True)


def test_a_plan_without_a_guard_is_decided_together_and_is_the_same(monkeypatch):
    truth = {"utility": {"w": np.array([0.1, 0.8])}, "cost": {"w": np.array([0.0, 0.2])}}
    options = {"scenarios": {"guess": truth, "prior": "prior"}, "vary": {"at_most": [0.2, 0.3]}}
    whole = {"replicates": 3, "agent": {"guard": None}} | options
    calls = []
    import gedppl.study.planning as planning

    real = planning.simulate_many

    def counted(*args, **more):
        calls.append(len(args[3]))
        return real(*args, **more)

    monkeypatch.setattr(planning, "simulate_many", counted)
    many = ged.plan(small(), np.zeros((1, 1)), 25, **whole)
    assert calls == [3] * 4
    monkeypatch.setattr(planning, "TOGETHER", 1)
    single = ged.plan(small(), np.zeros((1, 1)), 25, **whole)
    assert calls == [3] * 4
    rows_close(many, single)


def test_a_guarded_plan_has_an_agent_for_every_trial(monkeypatch):
    import gedppl.study.planning as planning

    def never(*args, **more):
        raise AssertionError("decided together")

    monkeypatch.setattr(planning, "simulate_many", never)
    for more in ({}, {"agent": {"guard": None}, "recommend": "certified"}):
        assert ged.plan(small(), np.zeros((1, 1)), 3, replicates=2, **more).rows


@pytest.mark.parametrize("failure", [DataError, FloatingPointError, np.linalg.LinAlgError])
def test_a_plan_whose_runs_fail_together_is_played_one_by_one(failure, monkeypatch):
    """One failing run ends all that are decided together; its own agent would fall back."""
    import gedppl.study.planning as planning

    def fails(*args, **more):
        raise failure("in one of them")

    options = {"replicates": 2, "agent": {"guard": None}}
    truth = {"utility": {"w": np.array([0.1, 0.8])}, "cost": {"w": np.array([0.0, 0.2])}}
    options |= {"scenarios": {"guess": truth}}
    monkeypatch.setattr(planning, "TOGETHER", 1)
    single = ged.plan(small(), np.zeros((1, 1)), 6, **options)
    monkeypatch.undo()
    monkeypatch.setattr(planning, "simulate_many", fails)
    rows_close(ged.plan(small(), np.zeros((1, 1)), 6, **options), single)
