"""After a study: one action, by a rule that the user names, with its certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors

MEANS, COSTS = np.array([0.1, 0.5, 0.9, 0.7]), np.array([0.1, 0.2, 0.8, 0.4])
X = np.zeros(1)


def arms(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.5, 0.5).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], 0.1), obs=y)


def problem(**options: Any) -> ged.Problem:
    cls = ged.density_class(arms)
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=0.5, safe_value=0.1, name="harm")
    return ged.Problem(4, ged.Utility(cls, ged.mean(0, 1)), [limit], safe_action=0, **options)


def studied(rows: int, actions: Any = (0, 1, 2, 3), **options: Any) -> ged.GEDUCB:
    agent, rng = ged.GEDUCB(problem(), seed=0, **options), np.random.default_rng(0)
    a = np.resize(actions, rows)
    agent.observe(
        np.zeros((rows, 1)),
        a,
        MEANS[a] + 0.1 * rng.normal(size=rows),
        COSTS[a] + 0.1 * rng.normal(size=rows),
    )
    return agent


@pytest.fixture(scope="module")
def agent() -> ged.GEDUCB:
    return studied(400)


def test_the_best_certified_action_keeps_the_limit_by_itself(agent: Any) -> None:
    found = agent.recommend(X)
    assert found.action == 3
    assert found.certificate.guaranteed
    assert found.certificate.constraints[0].worst_case == pytest.approx(found.cost_upper[0, 3])
    assert found.cost_upper[0, 3] <= 0.5 < found.cost_upper[0, 2]


def test_nothing_is_recorded(agent: Any) -> None:
    before = agent.state_hash()
    agent.recommend(X)
    assert agent.state_hash() == before
    assert agent.rounds == 0


def test_little_data_certify_less_than_they_estimate() -> None:
    early = studied(24)
    certified, estimated = early.recommend(X), early.recommend(X, "estimate")
    assert estimated.action == 3
    assert certified.action != 3
    assert certified.certificate.constraints[0].worst_case <= 0.5
    # the certificate shows what the rule did not ask
    assert estimated.certificate.constraints[0].worst_case > 0.5


def test_before_data_only_the_safe_action_is_certified() -> None:
    found = ged.GEDUCB(problem()).recommend(X)
    assert (found.action, found.certificate.constraints[0].worst_case) == (0, 0.1)


def test_nearest_aims_at_a_target_or_at_the_limit(agent: Any) -> None:
    assert agent.recommend(X, "nearest").action == 3  # .4, the limit is .5
    assert agent.recommend(X, "nearest", target=0.25).action == 1
    assert agent.recommend(X, "nearest", target=0.75, constraint="harm").action == 2


def test_untried_actions_can_be_left_out() -> None:
    agent = studied(400, (0, 1))
    # their estimate is the prior's mean
    assert agent.recommend(X, "nearest", target=0.5).action in (2, 3)
    assert agent.recommend(X, "nearest", target=0.5, tried=True).action == 1


def test_retired_actions_are_not_recommended(agent: Any) -> None:
    other = studied(400)
    other.ask(X)
    other.retire_action(3)
    assert other.recommend(X).action == 1


def test_a_refuted_declaration_recommends_nothing() -> None:
    other, rng = ged.GEDUCB(problem(), seed=0), np.random.default_rng(0)

    def go_on() -> None:  # the safe action costs far more than declared
        for _ in range(30):
            d = other.ask(X)
            other.tell(d.id, float(MEANS[d.action]), 0.9 + 0.05 * rng.normal())

    with pytest.raises(errors.DeclarationError, match="safe_value"):
        go_on()
    with pytest.raises(errors.DeclarationError, match="safe_value"):
        other.recommend(X)


def test_without_limits_it_is_the_best_estimate() -> None:
    free = ged.GEDUCB(ged.Problem(4, ged.Utility(ged.density_class(arms), ged.mean(0, 1))))
    a = np.resize([0, 1, 2, 3], 40)
    free.observe(np.zeros((40, 1)), a, MEANS[a])
    assert free.recommend(X).action == 2
    with pytest.raises(errors.SettingError, match="needs constraint="):
        free.recommend(X, "nearest")


def test_bad_input_is_named(agent: Any) -> None:
    with pytest.raises(errors.SettingError, match="rule must be one of"):
        agent.recommend(X, "best")
    with pytest.raises(errors.SettingError, match='belong to rule="nearest"'):
        agent.recommend(X, "estimate", target=0.3)
    with pytest.raises(errors.SettingError, match="needs constraint=, one of"):
        agent.recommend(X, "nearest", constraint="pain")
    with pytest.raises(errors.ShapeError, match="one context"):
        agent.recommend(np.zeros((2, 1)))


def test_it_shows_itself(agent: Any) -> None:
    assert str(agent.recommend(X)).startswith(
        "action 3: of the actions whose worst case keeps every limit"
    )


def test_an_agents_confidence_set_is_the_one_it_decides_on() -> None:
    agent = studied(40)
    held = agent.confidence_set("harm")
    bounds = held.bounds(ged.mean(0, 1), X[None], 4)
    assert bounds.upper[0, 1:] == pytest.approx(agent.cost_bounds(X)[1][0, 1:])
    assert held.contains({"w": COSTS})
    with pytest.raises(errors.SettingError, match="there is no outcome 'pain'"):
        agent.confidence_set("pain")
    with pytest.raises(errors.DataError, match="ask or observe first"):
        ged.GEDUCB(problem()).confidence_set("harm")


def test_a_limit_that_the_bound_does_not_clear_is_not_said_to_be_kept() -> None:
    """A recommendation by estimate may name such an action; the certified one is the control."""
    draws = ged.credible_set(0.95, draws=400)
    for agent, word in ((studied(24), "guarantee"), (studied(24, confidence=draws), "credible")):
        certified = agent.recommend(X).certificate
        aimed = agent.recommend(X, "nearest", target=0.8).certificate
        assert certified.constraints[0].kind == word
        assert "not shown to be kept" not in str(certified)
        (limit,) = aimed.constraints
        assert limit.worst_case > limit.at_most
        assert limit.kind == "not kept"
        assert not aimed.guaranteed
        assert "the limit is not shown to be kept" in limit.claim
        assert "guarantee, if" not in limit.claim
        assert "is kept with posterior" not in limit.claim


def test_a_mix_that_would_be_played_instead_is_mentioned(agent: Any) -> None:
    early = studied(24)
    found = early.recommend(X)
    assert found.policy == pytest.approx(early.policy(X))
    assert 0 < found.policy[found.action] < 1
    assert "a decision here would mix" in str(found)
    sure = agent.recommend(X)
    alone, other = (replace(sure, policy=np.eye(4)[k]) for k in (sure.action, 0))
    assert "a decision here" not in str(alone)
    assert "a decision here would play 0: it explores" in str(other)
