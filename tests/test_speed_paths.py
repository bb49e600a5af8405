"""Fast paths beside the slow, literal ones that they stand for."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from benchmarks.arena import make
from benchmarks.arena.base import Bernoulli, Normal, Poisson, arms_class
from gedppl.agent.deciding import draw_actions
from gedppl.agent.memory import History, Ledger
from gedppl.certificate import Witnesses
from gedppl.errors import DataError, InputError
from gedppl.guard import Cost, Floor, Guard, LimitMonitor, OutlierCheck, PitMonitor, Told
from gedppl.guard import bets as bets_file
from gedppl.guard.bets import Bets, Trend
from gedppl.guard.outcomes import outcome_floor
from gedppl.learning import ellipsoids, linear_gaussian
from gedppl.learning.ellipsoids import Ellipsoid, EllipsoidRegion, along, seen_directions
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.program_bounds import GUESS_SDS
from gedppl.learning.programs import ProgramLearner
from gedppl.numerics import arrays
from gedppl.numerics.arrays import evolved
from gedppl.numerics.streams import BLOCK, block_of_uniforms, first_uniforms
from gedppl.problem.checks import read_outcome
from gedppl.rows import KEPT_ANSWERS, LARGEST, Answers, Rows
from tests.coins import problem
from tests.plain_worlds import memory_of

# the guard ----------------------------------------------------------------------------------------


def test_monitors_that_share_a_round_end_where_each_alone_would() -> None:
    rng = np.random.default_rng(0)
    guard = Guard.create(dx=20, n_actions=3, delta=0.05, models=["utility", "cost"], burn_in=10)
    alone = {key: m for key, m in guard.monitors.items() if isinstance(m, PitMonitor)}
    for t in range(60):
        x, a, pits = (
            rng.normal(size=20),
            int(rng.integers(3)),
            {"utility": rng.random(), "cost": rng.random()},
        )
        if t % 7 == 0:
            del pits["cost"]  # then the moments of the two models part
        guard, _ = guard.update(Told(x, a, pits=pits))
        alone = {
            k: m.update(pits[k.split(":")[1]], x, a) if k.split(":")[1] in pits else m
            for k, m in alone.items()
        }
    for key, monitor in alone.items():
        shared = guard.monitors[key]
        assert isinstance(shared, PitMonitor)
        assert shared.n == monitor.n
        np.testing.assert_array_equal(shared.log_wealth, monitor.log_wealth)
        np.testing.assert_array_equal(shared.log_peak, monitor.log_peak)
        np.testing.assert_array_equal(shared.moments.m2, monitor.moments.m2)
        np.testing.assert_array_equal(shared.trend.sums, monitor.trend.sums)


def test_no_bet_wins_more_than_is_reckoned_with() -> None:
    rng, bets = np.random.default_rng(5), Bets(3, 4)
    grid = np.concatenate([np.linspace(0.0, 1.0, 4001), 10.0 ** -np.arange(3, 17), rng.random(500)])
    for u in grid.tolist():
        column, group = bets.features(rng.normal(size=3), int(rng.integers(4)))
        f = Trend.within_action(column, group)
        paid = bets.growth(u, column, f, rng.choice([-1.0, 1.0], 2))
        assert math.log(paid.max()) <= bets_file.most_won(u) + 1e-12
    ordinary = np.mean([bets_file.most_won(u) for u in rng.random(500).tolist()])
    assert 0.3 < ordinary < 0.6  # of 6 or so that make an alarm: a dozen rounds may wait


def watched_rounds(
    guard: Guard, kind: str, marks: list[int] | None = None
) -> tuple[Guard, list[Any], int]:
    """A run of outcomes, and the alarms they set off; marks gets the rounds when a start began."""
    rng, alarms, longest = np.random.default_rng(11), [], 0
    total, started = 0.0, [0] if marks is None else marks
    for t in range(300):
        off = kind != "right" and t >= 150
        u = rng.beta(2.5, 1.0) if off and kind == "model" else rng.random()
        z = rng.uniform(0.3, 0.9) if off and kind == "cost" else rng.uniform(0.0, 0.6)
        late = (10 if u > 0.5 else 0) if kind == "delay" and t > 60 else 1
        costs = {"limit:cost": Cost(z, 0.4 + 0.05 * (t % 3), Floor(-0.1, 1e-9))}
        pits = {"utility": rng.random(), "cost": u}
        if t % 11 == 0:
            del pits["utility"]
        paid = {"cost": np.nan if t == 120 else -1.0}
        guard, new = guard.update(Told(rng.normal(size=2), t % 3, pits, costs, late, paid))
        total += 1.0 - 0.02 * off
        alarms += new

        def mark(name: str, t: int = t) -> np.ndarray:
            started.append(t)
            return np.array([total])  # noqa: B023

        guard, new = guard.weighed(mark, lambda name, marks: marks[:, 0] - total)  # noqa: B023
        alarms += new
        longest = max(longest, len(guard.waiting))
    return guard, alarms, longest


@pytest.mark.parametrize("kind", ["right", "model", "cost", "delay"])
def test_outcomes_that_wait_set_off_the_same_alarms_at_the_same_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape: dict[str, Any] = {
        "dx": 2,
        "n_actions": 3,
        "delta": 0.05,
        "limits": {"cost": (0.4, 0.0, 1.0)},
        "models": ["utility", "cost"],
        "refutable": ["cost"],
        "burn_in": 20,
    }
    start = Guard.create(**shape)
    starts: list[int] = []
    guard, alarms, longest = watched_rounds(start, kind, starts)
    assert longest > 5
    monkeypatch.setattr("gedppl.guard.MOST_WAITING", 1)
    each: list[int] = []
    literal, said, none = watched_rounds(start, kind, each)
    assert none == 0
    assert alarms == said
    assert starts == each
    assert {a.name.partition(":")[0] for a in alarms} == {
        "right": set(),
        "model": {"calibration", "drift", "refuted"},
        "cost": {"limit"},
        "delay": {"delay"},
    }[kind]
    for key, value in literal.arrays().items():
        assert value.tobytes() == guard.arrays()[key].tobytes(), key


def test_a_cost_without_a_limit_has_that_of_a_round_that_waits() -> None:
    guard = Guard.create(dx=1, n_actions=1, delta=0.05, limits={"cost": (0.9, 0.0, 1.0)})
    monitor = guard.monitors["limit:cost"]
    assert isinstance(monitor, LimitMonitor)
    for cost in [Cost(0.05, 0.06, Floor(0.0))] * 3 + [Cost(0.9)] * 3:
        guard, alarms = guard.update(Told(np.zeros(1), 0, costs={"limit:cost": cost}))
        before, monitor = monitor, monitor.update(*cost)
        assert bool(alarms) == (monitor.alarmed and not before.alarmed)
    assert monitor.alarmed


def test_outcomes_that_wait_longer_than_they_may_set_off_alarms_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: a bound that is too small."""
    start = Guard.create(dx=2, n_actions=3, delta=0.05, models=["utility", "cost"], burn_in=20)
    monkeypatch.setattr("gedppl.guard.most_won", lambda u: 0.0)
    late = watched_rounds(start, "model")[1]
    monkeypatch.undo()
    assert late[0].round > watched_rounds(start, "model")[1][0].round


def test_monitors_of_one_model_share_what_they_have_in_common_after_a_restore_too() -> None:
    guard = Guard.create(dx=2, n_actions=2, delta=0.05, models=["cost"], burn_in=1)
    for _ in range(3):
        guard, _ = guard.update(Told(np.ones(2), 0, pits={"cost": 0.4}))
    for one in (guard, guard.with_arrays(guard.arrays())):
        first, second = one.monitors["calibration:cost"], one.monitors["drift:cost"]
        assert isinstance(first, PitMonitor)
        assert isinstance(second, PitMonitor)
        assert first.moments is second.moments
        assert first.trend is second.trend


@pytest.mark.parametrize("value", [0.5, 1, True, np.float64(-2.5), np.nan, np.inf, 1e200, 10**400])
def test_a_plain_number_is_read_as_an_array_of_it_is(value: float) -> None:
    def read(value: Any) -> Any:
        try:
            return read_outcome(problem(), "utility", 0, value).tolist()
        except InputError as error:
            return type(error)

    assert read(value) == read(np.asarray(value))


@pytest.mark.parametrize("u", [np.nan, -0.1, 1.1])
def test_a_wrong_transform_is_refused_during_burn_in_too(u: float) -> None:
    with pytest.raises(DataError, match="lies in"):
        PitMonitor.drift(dx=1, n_actions=2, delta=0.05).update(u, np.zeros(1), 0)


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_the_distance_of_a_context_is_that_along_the_axes(
    dependent: bool, constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 4))
    x[:, 3] = x[:, 0] - 2 * x[:, 1] if dependent else x[:, 3]
    x[:, 2] = 5.0 if constant else x[:, 2]
    check = OutlierCheck.create(dx=4)
    for context in x:
        check = check.include(context)
    seen = [
        *x[:5],
        x[0] + 8.0 * np.array([1.0, 0, 0, 1.0]),
        20 * x[1] * np.array([1, 1, 0, 1]) + np.array([0, 0, x[1, 2], 0]),
    ]
    quick, blamed = check._ratios(np.array(seen)), [check._most_off(one) for one in seen]
    assert (check._whitener is None) == dependent
    monkeypatch.setattr(arrays, "MOST_DEPENDENT", 0.0)
    literal = replace(check)
    assert [literal._most_off(one) for one in seen] == blamed
    np.testing.assert_allclose(quick, literal._ratios(np.array(seen)), rtol=1e-9)


def test_what_may_be_rounding_is_told_by_eigenvalues_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A third column that the others decide. Contexts leave that plane for good: they are ordinary
    in the end. And rows on it say nothing of the direction across. The control: where a factor that
    rounding lets through is believed, neither is so in about half of the cases.
    """

    def wrong() -> list[int]:
        still_far = all_seen = 0
        for seed in range(8):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(240, 3))
            x[:, 2] = x[:, 0] - 2 * x[:, 1] + 0.1 * (np.arange(240) >= 200)
            check = OutlierCheck.create(dx=3)
            for context in x[:-1]:
                check = check.include(context)
            still_far += bool(check.flag(x[-1]))
            all_seen += not len(seen_directions(x[:200].T @ x[:200]).unseen)
        return [still_far, all_seen]

    assert wrong() == [0, 0]
    monkeypatch.setattr(arrays, "MOST_DEPENDENT", np.inf)
    monkeypatch.setattr(ellipsoids, "_LATEST", [()])
    assert min(wrong()) >= 2


def test_seen_directions_by_cholesky_are_those_by_eigenvalues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(4)
    rows, features = rng.normal(size=(30, 4)) * [1.0, 1e-3, 1e4, 1.0], rng.normal(size=(6, 4))
    information = rows.T @ rows
    quick = seen_directions(information)
    monkeypatch.setattr(arrays, "MOST_DEPENDENT", 0.0)
    literal = seen_directions(information * (1 + 1e-15))
    assert not np.allclose(quick.lift, literal.lift)  # the same up to a rotation
    np.testing.assert_allclose(
        *(np.sqrt(along(seen, features)[1]) for seen in (quick, literal)), rtol=1e-9
    )
    np.testing.assert_allclose(quick.down @ quick.lift, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(
        quick.lift @ quick.lift.T, literal.lift @ literal.lift.T, rtol=1e-9, atol=1e-15
    )


# what a model needs not be run for ----------------------------------------------------------------


@pytest.mark.parametrize("family", [Normal(0.3), Bernoulli(), Poisson()])
def test_the_lower_end_of_a_predictors_outcomes_is_that_of_its_densities(family: Any) -> None:
    cls = arms_class(3, 2, family, 2.0)
    c = ged.Constraint(cls, ged.mean(0, 1), at_most=0.5, safe_value=0.1, name="cost")
    x, actions = np.array([0.3, 0.7]), np.arange(3)
    density = cls.density_at(np.asarray(cls.initial, float), np.repeat(x[None], 3, axis=0), actions)
    low = float(np.min(density.support[0]))
    literal = (
        Floor(low)
        if np.isfinite(low)
        else Floor.under(0.0, float(np.sqrt(np.max(density.variance))), normal=True)
    )
    assert outcome_floor(c, x, actions) == pytest.approx(literal)


@pytest.mark.parametrize("family", [Bernoulli(), Poisson()])
def test_counts_are_checked_as_the_program_checks_them(
    family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = arms_class(3, 2, family, 2.0)
    y = np.array([0.0, 1.0, 2.0, 0.5, -1.0, 7.0])
    x, a = np.ones((len(y), 2)), np.zeros(len(y), np.int64)
    quick = cls.supports(x, a, y)
    monkeypatch.setattr("gedppl.programs.kernels.COUNTED", {})
    np.testing.assert_array_equal(quick, cls.supports(x, a, y))


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_the_spread_of_a_prediction_is_the_reach_of_its_ellipsoid(rows: int) -> None:
    rng = np.random.default_rng(rows)
    past = rng.normal(size=(rows, 4)) * np.array([1.0, 1e6, 1e-6, 0.0])
    seen = seen_directions(past.T @ past)
    phi = np.vstack([past, np.eye(4), 0 * past[:1]])
    one = Ellipsoid(seen.columns, np.zeros(len(seen.columns)), seen.lift.T, seen.unseen, seen.unit)
    _, literal = EllipsoidRegion([[one]], 4).reach(phi)
    found = np.sqrt(along(seen, phi)[1])
    np.testing.assert_allclose(found, literal[:, 0], rtol=1e-10)
    assert np.isinf(found).any()
    assert np.isfinite(found).any()


# answers ------------------------------------------------------------------------------------------


def test_an_answer_is_found_once_and_belongs_to_who_asked() -> None:
    answers, found = Answers(), []

    def find() -> list[np.ndarray]:
        found.append(1)
        return [np.zeros(2)]

    first = answers.get("name", [np.ones(3)], find)
    first[0][:] = 9.0
    assert answers.get("name", [np.ones(3)], find)[0].tolist() == [0.0, 0.0]
    assert len(found) == 1
    for name, args in (
        ("other", [np.ones(3)]),
        ("name", [np.ones((3, 1))]),
        ("name", [np.zeros(3)]),
        ("name", [np.ones(3, int)]),
    ):
        answers.get(name, args, find)
    assert len(found) == 5


def test_answers_are_forgotten_and_large_ones_are_not_kept() -> None:
    answers, found = Answers(), []

    def find() -> list[np.ndarray]:
        found.append(1)
        return [np.zeros(1)]

    for i in range(KEPT_ANSWERS + 1):
        answers.get("name", [np.array([i])], find)
    answers.get("name", [np.array([0])], find)  # gone by now
    assert len(found) == KEPT_ANSWERS + 2
    assert len(answers._known) == KEPT_ANSWERS
    for _ in range(2):
        answers.get("large", [np.zeros(LARGEST)], find)
    assert len(found) == KEPT_ANSWERS + 4


# certificates -------------------------------------------------------------------------------------


def test_a_witness_is_found_when_it_is_read_and_once() -> None:
    found: list[int] = []

    def find() -> dict[int, Any]:
        found.append(1)
        return {2: {"w": np.arange(2.0)}}

    witness = Witnesses(find)
    assert not found
    assert list(witness) == [2]
    assert witness[2]["w"].tolist() == [0.0, 1.0]
    assert len(pickle.loads(pickle.dumps(witness))) == 1
    assert len(found) == 1


def test_bounds_hold_a_witness_only_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    slow = linear_gaussian.witness
    monkeypatch.setattr(
        linear_gaussian, "witness", lambda *rest: (looked.append(1), slow(*rest))[1]
    )
    world = make("treatments")
    agent, rng = ged.GEDUCB(world.problem(), seed=0), np.random.default_rng(0)
    for _ in range(30):
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    assert not looked
    part = decision.certificate.constraints[0]
    assert set(part.witness) == {int(a) for a in np.flatnonzero(decision.policy > 0)} - {0}
    assert (
        pickle.loads(pickle.dumps(decision.certificate)).to_dict() == decision.certificate.to_dict()
    )


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**63 + 12345])
def test_a_cohort_draws_what_each_decisions_own_stream_draws(seed: int) -> None:
    rng = np.random.default_rng(1)
    ids = np.concatenate([np.arange(50), rng.integers(0, 2**32, 50), [2**32 - 1]])
    alone = [np.random.default_rng([seed, i]).random() for i in ids.tolist()]
    assert first_uniforms(seed, ids).tolist() == alone
    for block in (0, 3, 2**26 - 1, 2**34):  # the last two: numbers up to one word, and of two
        found, i = block_of_uniforms(seed, block), block * BLOCK + 5
        assert found[5] == np.random.default_rng([seed, i]).random()
        assert len(found) == BLOCK
        for last in (1, 2):
            literal = np.random.default_rng([seed, i, last]).random()
            assert block_of_uniforms(seed, block, last)[5] == literal
    policies = rng.dirichlet(np.ones(4), 60) * (rng.random((60, 4)) < 0.6)
    policies[:, 0] += policies.sum(axis=1) == 0
    policies /= policies.sum(axis=1, keepdims=True)

    def literal(policy: np.ndarray, decision: int) -> int:
        (support,) = policy.nonzero()
        uniform = np.random.default_rng([seed, decision]).random()
        return int(support[policy[support].cumsum()[:-1].searchsorted(uniform, side="right")])

    for first in (900, 2**32 - 30):  # numbers of one word, and of two
        drawn = draw_actions(policies, seed, first)
        assert drawn == [literal(p, i) for i, p in enumerate(policies, first)]
        assert drawn == [draw_actions(p[None], seed, i)[0] for i, p in enumerate(policies, first)]
        assert len(set(drawn)) == 4


# records ------------------------------------------------------------------------------------------


def test_an_evolved_record_is_what_replace_makes_without_what_was_cached() -> None:
    before = OutlierCheck.create(dx=2)
    for row in np.random.default_rng(0).normal(size=(30, 2)):
        before = before.include(row)
    assert before._unit is before._unit  # cached from here on
    after = evolved(before, n=before.n + 5)
    assert vars(after) == vars(replace(before, n=before.n + 5))
    assert "_unit" not in vars(after)
    with pytest.raises(TypeError, match="OutlierCheck has no field m"):
        evolved(before, m=1)


def test_a_problem_takes_only_contexts_that_cannot_change_for_the_same() -> None:
    cost = arms_class(2, 1, Normal(0.1), 2.0)
    limit = ged.Constraint(cost, ged.mean(0, 1), at_most=0.5, safe_value=lambda x: 0.1 * x[:, 0])
    problem = ged.Problem(
        n_actions=2, utility=ged.Utility(cost, ged.mean(0, 1)), constraints=[limit], safe_action=0
    )
    x = np.ones((1, 1))
    assert problem.safe_values(x).tolist() == [[0.1]]
    x[:] = 2.0
    assert problem.safe_values(x).tolist() == [[0.2]]
    x.setflags(write=False)
    assert problem.safe_values(x) is problem.safe_values(x)


def test_a_predictor_knows_rows_again_only_if_nobody_can_have_changed_them() -> None:
    predictor = arms_class(2, 1, Normal(0.1), 2.0).predictor
    assert predictor is not None
    x, a = np.ones((2, 1)), np.arange(2)
    assert predictor.features(x, a).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    x[:] = 3.0
    assert predictor.features(x, a).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    x.setflags(write=False)
    assert predictor.features(x, a).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    a[:] = 0  # still writable
    assert predictor.features(x, a).tolist() == [[3.0, 0.0], [3.0, 0.0]]


# one linear predictor -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", [Bernoulli(), Poisson()])
def test_one_predictor_models_answer_as_their_programs_do(family: Any) -> None:
    """Densities, the functional at a fit, its posterior standard deviation and the informations
    of many parameters, each beside the program's own answer.
    """
    cls, rng = arms_class(3, 2, family, 4.0), np.random.default_rng(3)
    x, a = rng.random((90, 2)), rng.integers(0, 3, 90)
    y = np.array([family.draw(float(v), rng) for v in rng.normal(size=90)])
    learner = ProgramLearner.start(cls, delta=0.1, seed=0).absorb(x, a, y).refit()
    data, functional, theta = learner.data, ged.mean(0, 9), 0.5 * rng.normal(size=(4, cls.dim))
    assert isinstance(data, PredictorLikelihood)
    np.testing.assert_allclose(
        learner.density_at(theta, x, a).mean, cls.density_at(theta, x, a).mean, rtol=1e-6
    )
    for one, found in zip(theta, data.informations(theta)):
        np.testing.assert_allclose(
            found, -np.asarray(cls.total_hessian(one, Rows.of(x, a, y))), rtol=1e-5, atol=1e-6
        )
    guess, at = learner.guess(functional, x[:5], 3), np.tile(np.arange(3), 5)
    rows = np.repeat(x[:5], 3, axis=0)
    value, grad = (
        np.asarray(p)
        for p in cls.values_grad(functional, np.tile(learner.theta, (15, 1)), rows, at)
    )
    assert learner.fit is not None
    sd = np.sqrt(np.einsum("md,dm->m", grad, np.linalg.solve(learner.fit.precision, grad.T)))
    np.testing.assert_allclose(guess.estimate.ravel(), value, rtol=1e-6)
    np.testing.assert_allclose(
        guess.upper.ravel(), np.minimum(value + GUESS_SDS * sd, 9.0), rtol=1e-5
    )


# what a decision rested on ------------------------------------------------------------------------


def test_an_outcome_is_held_against_the_bounds_its_decision_rested_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found once, when it was asked; found anew for another context and another learner."""
    asked: list[bytes] = []
    slow = linear_gaussian.LinearGaussianLearner.bounds

    def counted(self: Any, functional: Any, x: np.ndarray, n_actions: int) -> Any:
        asked.append(x.tobytes())
        return slow(self, functional, x, n_actions)

    monkeypatch.setattr(linear_gaussian.LinearGaussianLearner, "bounds", counted)
    world = make("treatments")
    agent, rng = ged.GEDUCB(world.problem(), seed=0), np.random.default_rng(0)
    contexts = [world.context(rng) for _ in range(20)]
    for x in contexts:
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    agent.alarms  # noqa: B018 - what was told last is held against its bounds now
    own = [key for key in asked if key != contexts[0].tobytes()]
    assert len(own) == len(set(own)) == len(contexts) - 1
    memo, state = memory_of(agent).state.bounds_of, memory_of(agent).state
    learner, f = state.learners["cost"], agent.problem.constraints[0].functional
    x = contexts[-1][None]
    assert memo.of("cost", learner, f, x, agent.problem.n_actions) is memo.of(
        "cost", learner, f, x, agent.problem.n_actions
    )
    other = learner.absorb(x, np.zeros(1, np.int64), np.array([0.2])).refit()
    found = memo.of("cost", other, f, x, agent.problem.n_actions)
    np.testing.assert_array_equal(found.upper, slow(other, f, x, agent.problem.n_actions).upper)
    assert not np.array_equal(found.upper, slow(learner, f, x, agent.problem.n_actions).upper)


def test_contexts_asked_together_are_flagged_as_each_alone() -> None:
    rng = np.random.default_rng(5)
    check = OutlierCheck.create(dx=3)
    for row in rng.normal(size=(100, 3)) * [1.0, 0.0, 2.0]:
        check = check.include(row)
    x = rng.normal(size=(6, 3)) * [1.0, 0.0, 2.0]
    x[1, 0], x[2, 1], x[4, 2] = 40.0, 1.0, np.sqrt(np.finfo(float).max) / 1e9
    assert check.flags(x) == [check.flag(row) for row in x]
    assert [bool(said) for said in check.flags(x)] == [False, True, True, False, True, False]


def test_a_ledger_in_columns_is_a_dictionary() -> None:
    ledger, asked, told = Ledger(), {}, {}
    rng = np.random.default_rng(0)
    for key in range(50):
        asked[key] = (rng.normal(size=3), int(rng.integers(4)))
        if key % 3:
            told[key] = {"utility": np.asarray(rng.normal())} if key % 2 else {}
        if key % 5 == 1:
            told[key] = told.get(key, {}) | {"cost": rng.normal(size=2)}
        for _ in range(2):  # a step may be written twice
            ledger.write({key: asked[key]}, {key: told[key]} if key in told else {})
    assert list(ledger.asked) == list(asked)
    assert list(ledger.told) == sorted(told)
    for key, (x, action) in asked.items():
        np.testing.assert_array_equal(ledger.asked[key][0], x)
        assert ledger.asked[key][1] == action
        assert (key in ledger.told) == (key in told)
    for key, outcomes in told.items():
        assert ledger.told[key].keys() == outcomes.keys()
        for name, value in outcomes.items():
            np.testing.assert_array_equal(ledger.told[key][name], value)
            assert ledger.told[key][name].shape == value.shape
    assert 50 not in ledger.asked
    assert "1" not in ledger.asked
    with pytest.raises(KeyError):
        ledger.asked[50]
    with pytest.raises(KeyError):
        ledger.told[0]
    with pytest.raises(KeyError):  # no decision is left out
        ledger.asked[52] = (np.zeros(3), 0)


def test_a_history_gives_back_the_steps_that_were_written() -> None:
    ledger, history = Ledger(), History()
    x = np.array([0.5, 2.0])
    steps = [
        ("decision", {"id": 0, "x": x, "action": 1, "learned": True}),
        ("decision", {"id": 1, "x": 2 * x, "action": 0, "learned": False}),
        ("outcome", {"id": 1, "y": None, "z": {"cost": 0.25}}),
        ("change", {"change": "limit", "name": "cost", "at_most": 0.3}),
        ("outcome", {"id": 1, "y": 1.5, "z": {}}),
    ]
    ledger.write({0: (x, 1), 1: (2 * x, 0)}, {})
    ledger.write({}, {1: {"utility": np.asarray(1.5), "cost": np.asarray(0.25)}})
    history.write(0, steps[:4])
    history.write(3, steps[3:])
    history.write(3, steps[3:])  # after an interrupt
    assert len(history) == len(steps)
    for (kind, payload), (was, wanted) in zip(history.steps(ledger), steps, strict=True):
        assert kind == was
        assert str(payload) == str(
            wanted if kind != "outcome" else {k: _as_array(v) for k, v in wanted.items()}
        )


def _as_array(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: np.asarray(one) for name, one in value.items()}
    return np.asarray(value) if isinstance(value, float) else value


# compiled before it is needed ---------------------------------------------------------------------


@pytest.fixture
def compiled_ahead() -> None:
    """In place of the fixture that turns it off."""


def test_the_next_bucket_is_compiled_before_it_is_needed(compiled_ahead) -> None:
    """Begun 48 rows before the first bucket's end, and not before; then nothing is left to
    compile.
    """

    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(w[0] * x[:, 0], jnp.exp(w[1])), obs=y)

    rng = np.random.default_rng(0)
    x, a, y = rng.normal(size=(70, 1)), np.zeros(70, np.int64), rng.normal(size=70)
    cls = ged.density_class(model, example=(x[:3], a[:3]))
    program, theta = cls.program, np.zeros((1, 2))
    rows = Rows.of(x[:16], a[:16], y[:16])
    program.total_grad(theta, rows, None)
    assert not program._compiled._begun
    rows = rows.append(x[16:17], a[16:17], y[16:17])
    program.total_grad(theta, rows, None)
    (thread,) = program._compiled._begun.values()
    assert not thread.daemon  # a process must not end inside the compiler
    thread.join()
    assert program.compilations["total_grad"] == 2
    rows = rows.append(x[17:], a[17:], y[17:])
    value, _ = program.total_grad(theta, rows, None)
    assert program.compilations["total_grad"] == 2
    fresh = ged.density_class(model, example=(x[:3], a[:3])).program
    assert value == fresh.total_grad(theta, Rows.of(x, a, y), None)[0]
