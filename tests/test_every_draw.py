"""A limit on every draw: only actions certified under it may be drawn, whatever the average
would allow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.selection import drawable, policy_cost
from gedppl.study.simulation import Run, constrained_best, simulate
from tests.plain_worlds import ArmsWorld
from tests.problems import LinearWorld

LINEAR = LinearWorld(4, 3, 0.05, seed=1)


def informed(agent: ged.GEDUCB) -> ged.GEDUCB:
    """With a few logged rows, so that some actions are certified at some contexts."""
    rng = np.random.default_rng(5)
    x = np.stack([LINEAR.context(rng) for _ in range(20)])
    a = rng.integers(0, 4, 20)
    y, z = np.array([LINEAR.outcome(x[i], a[i], rng) for i in range(20)]).T
    agent.observe(x, a, y, z)
    return agent


def on_every_draw(problem: ged.Problem, *others: object) -> ged.Problem:
    learned = [replace(c, every_draw=True) for c in problem.constraints]
    return replace(problem, constraints=[*learned, *others])


AVERAGE = replace(
    LINEAR.problem(), constraints=[replace(LINEAR.problem().constraints[0], at_most=0.8)]
)
PROBLEM = on_every_draw(AVERAGE)


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(PROBLEM, LINEAR, informed(ged.GEDUCB(PROBLEM, seed=0)), rounds=40, seed=0)


def test_the_mask_comes_before_the_average() -> None:
    costs = np.array([[0.0, 0.9, 0.3], [0.1, 0.0, 0.8]])
    policy = ged.select_policy([0.0, 1.0, 0.9], costs, [0.4, 0.5], every_draw=[True, False])
    # its cost is above the limit on every draw, though a share of it would keep the average
    assert policy[1] == 0
    # the other limit is on the average, and is used up
    np.testing.assert_allclose(policy @ costs[1], 0.5)
    free = ged.select_policy([0.0, 1.0, 0.9], costs, [0.4, 0.5])
    assert free[1] > 0  # without the mask it is mixed in


def test_a_cost_on_the_limit_but_for_rounding_may_be_drawn() -> None:
    limit = 0.1 + 0.2
    assert drawable(
        np.array([[0.3, limit, 0.3 * (1 + 1e-9)]]), np.array([0.3]), np.array([True])
    ).tolist() == [True, True, False]


def test_what_a_limit_on_every_draw_is_about_is_the_dearest_action_in_play() -> None:
    policy, costs = np.array([0.9, 0.1, 0.0]), np.array([[0.0, 1.0, 5.0]])
    assert policy_cost(policy, costs, np.array([True])) == 1.0
    assert policy_cost(policy, costs, np.array([False])) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exploration": "counterfactual"},
        {"mode": "theory"},
        {"mode": "theory", "exploration": "sets"},
        {"exploration": "counterfactual", "exact_rounds": 5},
        {"mode": "paper", "warmup": "none"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::gedppl.learning.radius.CoverageWarning")
def test_nothing_uncertified_is_ever_played_in_any_mode(options) -> None:
    agent = informed(ged.GEDUCB(PROBLEM, seed=0, **options))
    left = barred = 0
    rng = np.random.default_rng(0)
    for _ in range(25):
        x = LINEAR.context(rng)
        upper = agent.cost_bounds(x)[1][0]
        decision = agent.ask(x)
        assert (upper[decision.policy > 0] <= 0.8 + 1e-9).all()
        left, barred = left + (decision.policy[0] < 1), barred + (upper > 0.8).any()
        agent.tell(decision.id, *LINEAR.outcome(x, decision.action, rng))
    assert left > 5  # something besides the safe action is certified,
    assert barred > 5  # and not everything is


def test_without_it_something_uncertified_is_mixed_in_at_once() -> None:
    agent = ged.GEDUCB(AVERAGE, seed=0)
    x = LINEAR.context(np.random.default_rng(0))
    assert (agent.cost_bounds(x)[1][0][agent.policy(x) > 0] > 0.8).any()


def test_the_papers_warm_up_says_that_it_plays_whatever_the_limits_are() -> None:
    part = (
        ged.GEDUCB(PROBLEM, mode="paper")
        .ask(LINEAR.context(np.random.default_rng(0)))
        .certificate.constraints[0]
    )
    assert part.every_draw
    assert not part.guaranteed
    assert "whatever the limits" in part.note


def test_certificate_and_explanation_say_it(run) -> None:
    agent = ged.GEDUCB(PROBLEM, seed=0)
    x = LINEAR.context(np.random.default_rng(0))
    decision = agent.ask(x)
    part = decision.certificate.constraints[0]
    assert part.every_draw
    assert part.worst_case == agent.cost_bounds(x)[1][0][decision.policy > 0].max()
    assert "worst case of any action that may be drawn" in part.claim
    assert decision.certificate.to_dict()["constraints"][0]["every_draw"] is True
    barred = int(np.flatnonzero(agent.cost_bounds(x)[1][0] > 0.8)[0])
    assert "holds for every draw: it is not mixed in at all" in agent.explain(decision).why_not(
        barred
    )


def test_the_safe_action_counts_by_its_declared_value() -> None:
    """What the model says of it does not matter: before any data its worst case would be 1."""
    agent = ged.GEDUCB(PROBLEM, seed=0)
    x = LINEAR.context(np.random.default_rng(0))
    assert agent.policy(x, allowed=[True, False, False, False]).tolist() == [1, 0, 0, 0]
    assert agent.cost_bounds(x)[1][0, 0] == pytest.approx(x[:3] @ LINEAR.mu)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exploration": "counterfactual"},
        {"mode": "theory"},
        {"mode": "paper", "warmup": "none"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::gedppl.learning.radius.CoverageWarning")
def test_where_nothing_allowed_is_certified_the_error_says_which_limit(options) -> None:
    agent = ged.GEDUCB(PROBLEM, seed=0, **options)
    x = LINEAR.context(np.random.default_rng(0))
    with pytest.raises(
        errors.InfeasibleError,
        match=r"certified under the limit on every draw of 'cost'.*allow "
        r"the safe action 0",
    ):
        agent.ask(x, allowed=[False, True, True, True])
    assert agent.rounds == 0


def test_two_limits_that_leave_no_action_between_them_are_both_named() -> None:
    fees = [
        ged.known_cost(lambda x, c=c: c, at_most=1.0, name=name, every_draw=True)
        for name, c in {"fee": [0.0, 2.0, 0.5, 0.5], "time": [0.0, 0.5, 2.0, 2.0]}.items()
    ]
    agent = ged.GEDUCB(replace(AVERAGE, constraints=[*AVERAGE.constraints, *fees]), seed=0)
    x = LINEAR.context(np.random.default_rng(0))
    with pytest.raises(
        errors.InfeasibleError, match=r"of \['fee', 'time'\] together: .*\[1, 2, 3\]"
    ):
        agent.ask(x, allowed=[False, True, True, True])
    assert agent.policy(x)[0] == 1


def test_a_limit_that_equals_the_safe_value_is_no_dead_end() -> None:
    """On the average it is refused, because nothing could be mixed in; here certified actions
    need no room.
    """
    world = ArmsWorld("Normal")
    tight = [replace(c, at_most=0.0, safe_value=0.0) for c in world.problem.constraints]
    with pytest.raises(
        errors.ProblemError,
        match=r"no other action could ever be mixed in: raise "
        r"at_most.*every_draw=True",
    ):
        replace(world.problem, constraints=tight)
    each = replace(world.problem, constraints=[replace(c, every_draw=True) for c in tight])
    assert ged.GEDUCB(each).ask([1.0, 0.5]).action == 0


def test_a_known_cost_may_be_limited_on_every_draw_beside_a_learned_average() -> None:
    fee = ged.known_cost(lambda x: [0.0, 1.0, 2.0, 3.0], at_most=2.5, name="fee", every_draw=True)
    problem = replace(AVERAGE, constraints=[*AVERAGE.constraints, fee])
    policy = ged.GEDUCB(problem, seed=0).policy(LINEAR.context(np.random.default_rng(0)))
    assert policy[3] == 0
    assert (policy[1:] > 0).any()
    budget = replace(fee, every_draw=False, at_most=0.5)
    problem = replace(PROBLEM, constraints=[*PROBLEM.constraints, budget])
    agent, rng = informed(ged.GEDUCB(problem, seed=0)), np.random.default_rng(0)
    for _ in range(10):
        x = LINEAR.context(rng)
        decision = agent.ask(x)
        assert decision.policy @ [0.0, 1.0, 2.0, 3.0] <= 0.5 + 1e-9
        assert (agent.cost_bounds(x)[1][0][decision.policy > 0] <= 0.8 + 1e-9).all()
        agent.tell(decision.id, *LINEAR.outcome(x, decision.action, rng))


def test_runs_count_a_round_as_infeasible_when_one_action_in_play_is_above(run) -> None:
    assert run.infeasible.sum() == 0
    last = run.rounds[-1]
    mixed = replace(
        last, policy=np.array([0.9, 0.1, 0.0, 0.0]), costs=np.array([[0.1, 0.9, 0.2, 0.2]])
    )
    assert Run(PROBLEM, 0, [mixed]).infeasible.all()
    assert not Run(AVERAGE, 0, [mixed]).infeasible.any()  # on the average it is under
    policy, _ = constrained_best(PROBLEM, np.array([0.1, 1.0, 0.2, 0.2]), mixed.costs)
    assert policy[1] == 0


def test_a_stored_run_is_judged_alike(run, tmp_path) -> None:
    mixed = replace(
        run.rounds[-1],
        policy=np.array([0.9, 0.1, 0.0, 0.0]),
        costs=np.array([[0.1, 0.9, 0.2, 0.2]]),
    )
    back = Run.load(Run(PROBLEM, 0, [*run.rounds, mixed]).save(tmp_path / "run"))
    assert back.infeasible.tolist() == [False] * len(run) + [True]


def test_a_journal_of_the_other_kind_of_limit_is_another_problem(tmp_path) -> None:
    ged.GEDUCB(PROBLEM, journal=tmp_path / "j.db").close()
    with pytest.raises(errors.JournalMismatchError, match="problem was"):
        ged.resume(tmp_path / "j.db", AVERAGE)


def test_no_regret_bound_is_claimed() -> None:
    with pytest.raises(errors.SettingError, match="no regret bound under a limit on every draw"):
        ged.guarantee(PROBLEM, 100, contexts=np.array([LINEAR.context(np.random.default_rng(0))]))


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_every_draw_is_true_or_false(value) -> None:
    with pytest.raises(errors.ProblemError, match="every_draw of constraint 'cost' must be True"):
        replace(LINEAR.problem().constraints[0], every_draw=value)
