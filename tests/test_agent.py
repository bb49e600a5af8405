"""The shell: ids, feedback in any order, masks, changes, threads, fallbacks, and every bad input
by name.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors, ged_ucb
from gedppl import ged_ucb as optimism
from gedppl.agent import FallbackWarning, SafeActionWarning
from tests.plain_worlds import asked_of, memory_of, state_of, told_of
from tests.problems import LinearWorld, TableWorld

WORLD = TableWorld(2, 3, 8, seed=4)


def agent_after(rounds: int = 6, world: TableWorld = WORLD, **options) -> ged.GEDUCB:
    agent = ged.GEDUCB(world.problem(), seed=1, **options)
    rng = np.random.default_rng(5)
    for _ in range(rounds):
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    return agent


def view(agent: ged.GEDUCB) -> tuple:
    """Everything a mistaken call must leave as it was."""
    state = state_of(agent, np.zeros((1, 1)))
    sums = tuple(float(learner.n) for learner in state.learners.values())
    return (
        state.t,
        state.told,
        sums,
        agent.policy([0.0]).tobytes(),
        agent.policy([1.0]).tobytes(),
        len(memory_of(agent).inbox),
    )


def test_same_seed_same_run() -> None:
    a, b = agent_after(20), agent_after(20)
    assert view(a) == view(b)
    assert [asked_of(a)[i][1] for i in range(20)] == [asked_of(b)[i][1] for i in range(20)]


def test_decision_says_what_it_rests_on() -> None:
    decision = agent_after().ask([1.0])
    (part,) = decision.certificate.constraints
    assert part.name == "cost"
    assert part.at_most == 0.5
    assert part.method == "exact"
    assert part.guaranteed
    assert part.worst_case <= 0.5 + 1e-9
    assert "guarantee" in str(decision.certificate)
    assert set(decision.certificate.oracle) == {"utility", "cost"}
    assert decision.propensity == decision.policy[decision.action] > 0


def test_propensities_are_the_drawing_frequencies() -> None:
    agent = agent_after(0)
    decisions = agent.ask(np.zeros((4000, 1)))
    policy = decisions[0].policy
    counts = np.bincount([d.action for d in decisions], minlength=3)
    spread = np.sqrt(4000 * policy * (1 - policy))
    assert np.all(np.abs(counts - 4000 * policy) <= 4 * spread + 1e-9)
    assert np.sum(policy > 0) == 2


def test_a_cohort_is_decided_together() -> None:
    agent = agent_after()
    alone = [agent.policy([v]) for v in (0.0, 1.0, 0.0)]
    decisions = agent.ask([[0.0], [1.0], [0.0]])
    for decision, policy in zip(decisions, alone):
        np.testing.assert_allclose(decision.policy, policy, atol=1e-12)
    assert [d.id for d in decisions] == [6, 7, 8]
    np.testing.assert_allclose(agent_after().policy([[0.0], [1.0]]), alone[:2], atol=1e-12)


def test_policy_records_nothing() -> None:
    agent = agent_after()
    before = view(agent)
    agent.policy([0.0]), agent.cost_bounds([0.0]), agent.policy([[0.0], [1.0]])
    assert view(agent) == before


def test_cost_bounds_shapes_and_safe_value() -> None:
    lower, upper = agent_after().cost_bounds([0.0])
    assert lower.shape == upper.shape == (1, 3)
    assert lower[0, 0] == upper[0, 0] == 0.1
    assert np.all(lower <= upper)
    assert agent_after().cost_bounds([[0.0], [1.0]])[0].shape == (2, 1, 3)


def test_feedback_between_two_asks_in_any_order() -> None:
    def told(order: list[int]) -> tuple:
        agent = agent_after()
        decisions = agent.ask([[0.0], [1.0], [0.0], [1.0]])
        outcomes = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
        for i in order:
            agent.tell(decisions[i].id, *outcomes[i])
        return view(agent)[:-1]

    first = told([0, 1, 2, 3])
    assert all(
        told(order) == first for order in ([3, 2, 1, 0], [1, 3, 0, 2, 3, 1], [2, 0, 0, 1, 3])
    )
    assert told([0, 1, 2]) != first


def test_open_decisions_harm_nothing() -> None:
    agent = agent_after()
    agent.ask([0.0])
    decision = agent.ask([1.0])
    agent.tell(decision.id, 1.0, 0.0)
    assert agent.open_decisions == [6]
    agent.tell(6, 0.0, 1.0)
    assert agent.open_decisions == []


def test_parts_of_an_outcome_may_come_later() -> None:
    whole, parts = agent_after(), agent_after()
    for agent in (whole, parts):
        agent.ask([0.0])
    whole.tell(6, 1.0, 0.0)
    parts.tell(6, 1.0)
    parts.tell(6, z=0.0)
    parts.tell(6, y=1.0, z={"cost": 0.0})
    assert view(whole)[:-1] == view(parts)[:-1]


def test_tell_many_takes_all_or_none() -> None:
    agent = agent_after()
    agent.ask([[0.0], [1.0]])
    before = view(agent)
    with pytest.raises(errors.UnknownDecisionError, match="no decision 99"):
        agent.tell_many([(6, 1.0, 0.0), (99, 1.0, 0.0)])
    assert view(agent) == before
    agent.tell_many([(6, 1.0, 0.0), (7, 0.0, 0.0)])
    assert agent.open_decisions == []


def test_observe_learns_from_logged_rows() -> None:
    agent = ged.GEDUCB(WORLD.problem())
    rng = np.random.default_rng(0)
    x = rng.integers(2, size=(200, 1)).astype(float)
    a = rng.integers(3, size=200)
    outcomes = np.array([WORLD.outcome(x[i], a[i], rng) for i in range(200)])
    agent.observe(x, a, outcomes[:, 0], outcomes[:, 1])
    assert agent.rounds == 0
    lower, upper = agent.cost_bounds([0.0])
    fresh_lower, fresh_upper = ged.GEDUCB(WORLD.problem()).cost_bounds([0.0])
    assert np.sum(upper - lower) < 0.7 * np.sum(fresh_upper - fresh_lower)


def test_masks() -> None:
    agent = agent_after(12)
    policy = agent.policy([0.0], allowed=[True, False, True])
    assert policy[1] == 0
    with pytest.raises(errors.ShapeError, match="allowed must be boolean"):
        agent.ask([0.0], allowed=[1, 0, 1])
    with pytest.raises(errors.ActionRangeError, match="leaves no action"):
        agent.ask([0.0], allowed=[False, False, False])


def test_a_mask_without_any_certified_action_is_refused() -> None:
    agent = ged.GEDUCB(WORLD.problem())
    with pytest.raises(errors.InfeasibleError):
        agent.ask([0.0], allowed=[False, True, True])
    assert agent.rounds == 0


def test_limits_and_actions_change_mid_run() -> None:
    agent = agent_after(12)
    agent.set_limit("cost", 0.2)
    decision = agent.ask([0.0])
    assert decision.certificate.constraints[0].at_most == 0.2
    assert decision.certificate.constraints[0].worst_case <= 0.2 + 1e-9
    agent.retire_action(2)
    assert agent.policy([0.0])[2] == 0
    agent.restore_action(2)
    with pytest.raises(errors.ActionRangeError, match="cannot be retired"):
        agent.retire_action(0)
    with pytest.raises(errors.ProblemError, match="no constraint 'price'"):
        agent.set_limit("price", 0.3)
    with pytest.raises(errors.ProblemError, match="must lie in the functional's range"):
        agent.set_limit("cost", 1.7)


def test_explain_says_why_and_why_not() -> None:
    agent = agent_after(12)
    decision = agent.ask([0.0])
    text = agent.explain(decision)
    assert "<- played" in str(text)
    np.testing.assert_allclose(text.score, text.utility + text.bonus + text.width)
    for a in range(3):
        assert f"action {a}" in text.why_not(a)
        assert (text.why_not(a) in str(text)) == (a != text.policy.argmax())
    # what the limits rest on is said once, by the certificate
    assert decision.certificate.constraints[0].claim not in str(text)
    assert decision.certificate.verdict in str(text)
    with pytest.raises(errors.UnknownDecisionError, match="no decision 400"):
        agent.explain(400)


def test_decisions_and_terms_print_briefly() -> None:
    agent = agent_after(3)
    decision = agent.ask(np.array([1.0]))
    assert repr(decision).count("\n") == 0
    assert f"action={decision.action}" in repr(decision)
    assert str(decision) == f"{decision!r}\n{decision.certificate}"
    page = agent.explain(decision)._repr_html_()
    assert page.count("<tr") == 1 + agent.problem.n_actions
    assert page.count("font-weight") == 1
    assert "cost ≤" in page


def test_a_failure_takes_the_safe_action_and_says_so(monkeypatch) -> None:
    agent = agent_after()

    def broken(*args, **kwargs):
        raise FloatingPointError("a cost bound is NaN")

    monkeypatch.setattr(ged_ucb, "select", broken)
    with pytest.warns(FallbackWarning, match="a cost bound is NaN"):
        decision = agent.ask([0.0])
    assert decision.action == 0
    assert decision.policy.tolist() == [1, 0, 0]
    assert "NaN" in decision.certificate.fallback
    assert "no policy was computed" in agent.explain(decision).why_not(1)


def test_nan_bounds_never_become_a_policy(monkeypatch) -> None:
    agent = agent_after()
    todays_costs = optimism.todays_costs

    def poisoned(*args):
        lower, upper, bounds = todays_costs(*args)
        upper[..., 1] = np.nan
        return lower, upper, bounds

    monkeypatch.setattr(optimism, "todays_costs", poisoned)
    with pytest.warns(FallbackWarning, match="a cost bound is NaN"):
        assert agent.ask([0.0]).action == 0


def test_warns_when_the_safe_action_takes_over() -> None:
    world = TableWorld(2, 3, 8, seed=4, at_most=0.11)
    agent = ged.GEDUCB(world.problem())
    with pytest.warns(SafeActionWarning, match=r"at_most|limit"):
        agent.ask(np.zeros((220, 1)))


def test_the_warning_names_the_parameters_that_are_uncertain() -> None:
    world = LinearWorld(3, 2, 0.1, seed=0)
    problem = replace(
        world.problem(),
        constraints=[replace(world.problem().constraints[0], at_most=0.11, safe_value=0.1)],
    )
    agent = ged.GEDUCB(problem, guard=None)
    rng = np.random.default_rng(0)
    with pytest.warns(SafeActionWarning, match="100% of it in 'theta'"):
        agent.ask(np.stack([world.context(rng) for _ in range(220)]))


def test_threads_equal_some_serial_order() -> None:
    # the system orders the threads: with the usual delta one order in some hundreds is an alarm
    agent = ged.GEDUCB(WORLD.problem(), delta=1e-9, seed=3)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            for _ in range(12):
                x = WORLD.context(rng)
                decision = agent.ask(x)
                assert decision.x == x
                agent.tell(decision.id, *WORLD.outcome(x, decision.action, rng))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert failures == []
    assert agent.rounds == 96
    assert agent.open_decisions == []
    assert sorted(asked_of(agent)) == list(range(96))
    state = state_of(agent, None)
    assert state.learners["utility"].n == state.learners["cost"].n == 96


BAD_CALLS = [
    (
        "context of another width",
        lambda g: g.ask([0.0, 1.0]),
        errors.ContextWidthError,
        "have 1 columns",
    ),
    (
        "context with NaN",
        lambda g: g.ask([np.nan]),
        errors.NotFiniteError,
        "must be finite, got nan",
    ),
    (
        "infinite context",
        lambda g: g.ask([np.inf]),
        errors.NotFiniteError,
        "must be finite, got inf",
    ),
    ("scalar context", lambda g: g.ask(0.0), errors.ShapeError, "one context"),
    ("empty context", lambda g: g.ask([]), errors.ShapeError, "one context"),
    ("empty batch", lambda g: g.ask(np.zeros((0, 1))), errors.ShapeError, "one context"),
    ("context of words", lambda g: g.ask(["a"]), errors.ShapeError, "must hold numbers"),
    (
        "three-dimensional context",
        lambda g: g.ask(np.zeros((1, 1, 1))),
        errors.ShapeError,
        "one context",
    ),
    (
        "mask of the wrong length",
        lambda g: g.ask([0.0], allowed=[True]),
        errors.ShapeError,
        "allowed must be boolean",
    ),
    (
        "unknown decision",
        lambda g: g.tell(77, 1.0, 0.0),
        errors.UnknownDecisionError,
        "no decision 77",
    ),
    (
        "decision by name",
        lambda g: g.tell("6", 1.0, 0.0),
        errors.UnknownDecisionError,
        "no decision '6'",
    ),
    (
        "another value",
        lambda g: g.tell(0, 1.0 - float(told_of(g)[0]["utility"])),
        errors.ConflictingOutcomeError,
        "already told",
    ),
    ("outcome of words", lambda g: g.tell(6, "good", 0.0), errors.DataError, "must be a number"),
    ("outcome as a column", lambda g: g.tell(6, [[1.0]], 0.0), errors.ShapeError, "single number"),
    ("outcome NaN", lambda g: g.tell(6, np.nan, 0.0), errors.NotFiniteError, "is NaN"),
    ("outcome infinite", lambda g: g.tell(6, 1.0, np.inf), errors.NotFiniteError, "is infinite"),
    ("outcome out of support", lambda g: g.tell(6, 2.0, 0.0), errors.OutOfSupportError, "2"),
    (
        "unknown constraint",
        lambda g: g.tell(6, 1.0, {"price": 1.0}),
        errors.DataError,
        "no constraint learns from",
    ),
    (
        "logged action out of range",
        lambda g: g.observe([[0.0]], [3], [1.0], [0.0]),
        errors.ActionRangeError,
        "0, ..., 2",
    ),
    (
        "logged action of words",
        lambda g: g.observe([[0.0]], ["a"], [1.0], [0.0]),
        errors.ActionRangeError,
        "0, ..., 2",
    ),
    (
        "logged fractional action",
        lambda g: g.observe([[0.0]], [0.5], [1.0], [0.0]),
        errors.ActionRangeError,
        "0, ..., 2",
    ),
    (
        "logged rows of unequal length",
        lambda g: g.observe([[0.0]], [0], [1.0, 1.0], [0.0]),
        errors.ShapeError,
        "1 rows",
    ),
    (
        "logged actions missing",
        lambda g: g.observe([[0.0], [1.0]], [0], [1.0, 0.0]),
        errors.ShapeError,
        "each of 2 rows",
    ),
    (
        "logged outcome out of support",
        lambda g: g.observe([[0.0]], [0], [0.5], [0.0]),
        errors.OutOfSupportError,
        "0.5",
    ),
    (
        "retiring an unknown action",
        lambda g: g.retire_action(5),
        errors.ActionRangeError,
        "0, ..., 2",
    ),
]


@pytest.mark.parametrize(
    ("what", "call", "error", "match"), BAD_CALLS, ids=[c[0] for c in BAD_CALLS]
)
def test_bad_calls_are_named_and_change_nothing(what, call, error, match) -> None:
    agent = agent_after()
    agent.ask([0.0])
    before = view(agent)
    with pytest.raises(error, match=match):
        call(agent)
    assert view(agent) == before


BAD_PROBLEMS = [
    ({"n_actions": 0}, "positive whole number"),
    ({"safe_action": 3}, "must be one of 0, ..., 2, got 3"),
    ({"safe_action": None}, "a safe_action is needed"),
    ({"reveals": np.ones((3, 3))}, "must be a boolean"),
    ({"reveals": np.ones((2, 2), bool)}, r"boolean \(3, 3\)"),
]


@pytest.mark.parametrize(("change", "match"), BAD_PROBLEMS)
def test_bad_problems(change, match) -> None:
    with pytest.raises(errors.ProblemError, match=match):
        replace(WORLD.problem(), **change)


BAD_CONSTRAINTS = [
    ({"at_most": 1.7}, r"range \[0, 1\], got 1.7"),
    ({"at_most": float("nan")}, "finite number"),
    ({"safe_value": None}, "needs safe_value"),
    ({"safe_value": 0.6}, "must not exceed its limit"),
    ({"safe_value": -0.2}, "at least 0"),
    ({"name": "utility"}, "name of its own"),
    ({"outcome": "utility"}, "very same model"),
    ({"outcome": "nothing"}, "does not exist"),
    ({"functional": 3}, "must be one of mean"),
]


@pytest.mark.parametrize(("change", "match"), BAD_CONSTRAINTS)
def test_bad_constraints(change, match) -> None:
    problem = WORLD.problem()
    with pytest.raises(errors.ProblemError, match=match):
        replace(problem, constraints=[replace(problem.constraints[0], **change)])


BAD_SETTINGS = [
    ({"delta": 0.0}, "strictly between 0 and 1"),
    ({"delta": 1.5}, "strictly between 0 and 1"),
    ({"mode": "fast"}, "mode must be one of"),
    ({"warmup": "long"}, "warmup must be"),
    ({"bonus_scale": -1.0}, "bonus_scale must be"),
    ({"width_scale": float("nan")}, "width_scale must be"),
    ({"growth": 0.5}, "growth must be at least 1"),
]


@pytest.mark.parametrize(("options", "match"), BAD_SETTINGS)
def test_bad_settings(options, match) -> None:
    with pytest.raises(errors.SettingError, match=match):
        ged.GEDUCB(WORLD.problem(), **options)


def test_full_information_counts_every_action() -> None:
    problem = replace(WORLD.problem(), reveals=np.ones((3, 3), bool), independent=True)
    agent = ged.GEDUCB(problem)
    decision = agent.ask([0.0])
    agent.tell(decision.id, [1.0, 0.0, 1.0], [0.0, np.nan, 1.0])
    state = state_of(agent, None)
    assert state.learners["utility"].n == 3
    assert state.learners["cost"].n == 2
    assert state.told == 1


def test_only_revealing_actions_teach() -> None:
    """Actions (0) and (1) do not query; action 2 does, and reveals all three."""
    reveals = np.zeros((3, 3), bool)
    reveals[2] = True
    agent = ged.GEDUCB(replace(WORLD.problem(), reveals=reveals), seed=0)
    decision = agent.ask([0.0])
    while decision.action == 2:
        decision = agent.ask([0.0])
    with pytest.raises(errors.DataError, match="does not reveal"):
        agent.tell(decision.id, 1.0, 0.0)
    agent.tell(decision.id)
    assert agent.confidence_set("utility").learner.n == 0


def test_the_safe_actions_rows_can_be_left_out() -> None:
    agent = ged.GEDUCB(replace(WORLD.problem(), learn_safe=False))
    agent.observe([[0.0], [1.0]], [0, 1], [1.0, 1.0], [0.0, 0.0])
    assert agent.confidence_set("cost").learner.n == 1
