"""Many trials from one set of draws: against an exact grid, against the agent, and what is
refused by name.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors
from tests.problems import LinearWorld
from tests.test_escalation import PROBLEM, E, X, history, on_a_grid

SHARED = ged.shared_draws(PROBLEM, np.zeros((1, 1)), 0.75, 20_000)


def told(n: int, seed: int = 0):
    a, y = history(n, seed)
    agent = SHARED.agent()
    agent.observe(np.zeros((n, 1)), a, y)
    return agent, a, y


def test_shared_draws_give_the_posterior_of_a_grid() -> None:
    for n in (0, 6, 20, 36):
        agent, a, y = told(n)
        p, weights = on_a_grid(a, y)
        found = agent.recommend(X)
        np.testing.assert_allclose(found.over[0, 1:], weights @ (p > E.LIMIT), atol=0.03)
        np.testing.assert_allclose(found.cost[0, 1:], weights @ p, atol=0.02)
        assert found.over[0, 0] == 0  # the safe action is at its declared value


def test_a_state_is_its_rows_in_any_order_and_is_computed_once(monkeypatch) -> None:
    shared = ged.shared_draws(PROBLEM, np.zeros((1, 1)), 0.75, 1000)
    computed = []
    whole = type(shared)._computed
    monkeypatch.setattr(
        type(shared), "_computed", lambda self, *args: computed.append(1) or whole(self, *args)
    )
    a, y = history(12)
    found = []
    for order in (np.arange(12), np.arange(12)[::-1]):
        agent = shared.agent()
        agent.observe(np.zeros((12, 1)), a[order], y[order])
        found.append(agent.recommend(X).over)
    assert len(computed) == 1
    np.testing.assert_array_equal(*found)
    agent.observe(np.zeros((1, 1)), [1], [1.0])
    # the control: another state is another posterior
    assert (agent.recommend(X).over[0, 1:] > found[0][0, 1:]).all()
    assert len(computed) == 2


def test_decisions_are_those_of_the_agent_with_a_plain_credible_limit() -> None:
    same = []
    for seed in range(3):
        for n in (8, 20, 32):
            agent, a, y = told(n, seed)
            slow = ged.GEDUCB(
                PROBLEM,
                guard=None,
                confidence=ged.credible_set(0.75, source="smc", draws=4000, margin=False),
            )
            slow.observe(np.zeros((n, 1)), a, y)
            over = agent.recommend(X).over[0]
            if np.abs(over - 0.25).min() > 0.03:  # else too near to call from draws
                same.append(np.array_equal(agent.policy(X), slow.policy(X)))
    assert len(same) >= 4
    assert all(same)


def test_a_plan_of_shared_draws_keeps_the_protocol() -> None:
    scenarios = {"usual": ged.Scenario(world=E.usual), "toxic": ged.Scenario(world=E.toxic)}
    found = ged.plan(
        PROBLEM,
        np.zeros((1, 1)),
        36,
        scenarios=scenarios,
        replicates=40,
        agent=E.quickly,
        recommend=E.named,
    )
    usual, toxic = found.rows
    assert usual["share treated above a limit"] < 0.12
    # 50% in the long run: four standard errors of forty trials
    assert usual["correct selection share"] > 0.25
    assert toxic["safe action named share"] > 0.5
    assert usual["rounds of no dose"] < toxic["rounds of no dose"]


def test_no_action_is_given_that_was_not_allowed() -> None:
    agent, *_ = told(20)
    only = np.eye(6, dtype=bool)[0]
    assert agent.ask(X, only).action == 0
    with pytest.raises(errors.SettingError, match="allow the safe action too"):
        SHARED.agent().policy(X, np.eye(6, dtype=bool)[5])


def test_groups_borrow_from_each_other() -> None:
    shared = ged.shared_draws(E.problem(groups=True), np.arange(3.0)[:, None], 0.85, 60_000)
    agent = shared.agent()
    agent.observe(np.zeros((12, 1)), np.repeat([1, 2, 3], 4), np.zeros(12))
    before = agent.recommend([1.0]).over[0]
    agent.observe(np.full((3, 1), 2.0), [1, 2, 2], [0.0, 1, 1])
    after = [agent.recommend([float(g)]).over[0] for g in range(3)]
    assert after[2][2] > after[1][2] > before[2]


def test_draws_that_wear_out_are_said() -> None:
    few = ged.shared_draws(PROBLEM, np.zeros((1, 1)), 0.75, 300).agent()
    few.observe(np.zeros((30, 1)), *history(30))
    with pytest.warns(errors.FitWarning, match="raise draws="):
        few.policy(X)


def test_problems_that_draws_alone_do_not_decide_are_refused_by_name() -> None:
    with pytest.raises(errors.SettingError, match="on every draw"):
        ged.shared_draws(E.problem(every_draw=False), np.zeros((1, 1)))
    linear = LinearWorld(4, 3, 0.05, seed=1)
    with pytest.raises(errors.SettingError, match="on every draw"):
        ged.shared_draws(linear.problem(), np.zeros((1, 6)))
    learned = replace(PROBLEM, utility=ged.Utility(PROBLEM.utility.model, ged.mean(0, 1)))
    with pytest.raises(errors.SettingError, match="depends on the parameters"):
        ged.shared_draws(learned, np.zeros((1, 1)))
    with pytest.raises(errors.SettingError, match=r"level must lie in \[0.5, 1\), got 1"):
        ged.shared_draws(PROBLEM, np.zeros((1, 1)), 1)
    with pytest.raises(errors.SettingError, match="within="):
        SHARED.agent().recommend(X, "interval")
