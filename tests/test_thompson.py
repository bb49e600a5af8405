"""Thompson sampling: a draw for the utility, the same limits, reproducible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors
from tests.plain_worlds import PlainWorld
from tests.test_credible import EXAMPLE, GAIN, LOGISTIC, PROBLEM, K, free, play, problem

FREE = ged.Problem(K, GAIN)  # no limits: what is played is what was drawn
FINITE = PlainWorld()


def test_an_action_is_played_as_often_as_it_is_best_under_the_draws() -> None:
    """Before data the three arms are alike: each is best in a third of decisions, give or take
    four standard errors.
    """
    agent = ged.ThompsonSampling(FREE, seed=5)
    actions = [d.action for d in agent.ask(np.zeros((300, 1)))]
    share = np.bincount(actions, minlength=K) / 300
    assert (np.abs(share - 1 / 3) < 4 * np.sqrt(2 / 9 / 300)).all()


def test_what_was_learned_decides() -> None:
    agent = ged.ThompsonSampling(FREE, seed=0)
    agent.observe(np.zeros((60, 1)), np.arange(60) % K, np.where(np.arange(60) % K == 2, 0.8, 0.0))
    assert all(d.action == 2 for d in agent.ask(np.zeros((20, 1))))


@pytest.mark.parametrize("rule", [None, ged.credible_set(0.9)], ids=["guaranteed", "credible"])
@pytest.mark.parametrize(
    "given", [PROBLEM, LOGISTIC, problem(every_draw=True)], ids=["linear", "logistic", "every draw"]
)
def test_limits_do_not_depend_on_the_draw(given, rule) -> None:
    chosen = None if rule is None else {"cost": rule}
    agent, other = (
        kind(given, confidence=chosen, seed=2) for kind in (ged.ThompsonSampling, ged.GEDUCB)
    )
    for one in (agent, other):
        rng = np.random.default_rng(0)
        one.observe(
            rng.normal(size=(9, 1)),
            np.arange(9) % K,
            rng.normal(0.2, 0.3, 9),
            (rng.random(9) < 0.2).astype(float),
        )
    x = np.array([0.2])
    np.testing.assert_array_equal(agent.cost_bounds(x), other.cost_bounds(x))
    for _ in range(8):
        decision = agent.ask(x)
        part = decision.certificate.constraints[0]
        assert part.kind == ("guarantee" if rule is None else "credible")
        assert part.worst_case <= given.limits[0] + 1e-9
        assert decision.certificate.engine == "a draw of the utility's parameters"


def test_the_score_is_the_utility_of_one_draw() -> None:
    agent = ged.ThompsonSampling(FREE, seed=1)
    decision = agent.ask([0.0])
    terms = agent.explain(decision)
    drawn = agent.confidence_set("utility").learner.draws.theta
    assert np.isclose(drawn, terms.score).all(axis=1).any()
    assert int(np.argmax(terms.score)) == decision.action


def test_the_same_seed_decides_alike_and_policy_says_what_ask_would_play() -> None:
    one, same, other = (ged.ThompsonSampling(PROBLEM, seed=s) for s in (4, 4, 5))
    for agent in (one, same, other):
        play(agent, 5)
    said = one.policy([0.3])
    np.testing.assert_array_equal(one.ask([0.3]).policy, said)
    np.testing.assert_array_equal(same.ask([0.3]).policy, said)
    drawn = [agent.explain(agent.rounds - 1).score for agent in (one, other)]
    assert not np.allclose(*drawn)


@pytest.mark.parametrize("given", [LOGISTIC, FINITE.problem], ids=["logistic", "finite"])
def test_a_resumed_agent_draws_the_same(tmp_path, given) -> None:
    agent = ged.ThompsonSampling(given, seed=3, journal=tmp_path / "j.db")
    rng = np.random.default_rng(0)
    for _ in range(5):
        decision = agent.ask([0.0])
        agent.tell(decision.id, float(rng.random() < 0.5), 0.0)
    expected, state = agent.policy([1.0]), agent.state_hash()
    agent.close()
    back = ged.resume(tmp_path / "j.db", given)
    assert type(back) is ged.ThompsonSampling
    assert back.state_hash() == state
    np.testing.assert_array_equal(back.policy([1.0]), expected)


def test_a_safe_action_that_is_never_learned_is_not_drawn() -> None:
    given = replace(PROBLEM, learn_safe=False, safe_utility=0.1)
    agent = ged.ThompsonSampling(given, seed=0)
    scores = [agent.explain(d).score[0] for d in agent.ask(np.zeros((5, 1)))]
    np.testing.assert_allclose(scores, 0.1)


def test_a_utility_without_priors_has_nothing_to_draw_from() -> None:
    gain = ged.Utility(ged.density_class(free, example=EXAMPLE), ged.mean(-3, 3))
    with pytest.raises(errors.SettingError, match=r"confidence of 'utility': .*have no prior"):
        ged.ThompsonSampling(replace(PROBLEM, utility=gain))


def test_theorems_are_not_about_draws() -> None:
    with pytest.raises(errors.SettingError, match="a theorem of its own"):
        ged.GEDUCB(PROBLEM, mode="theory", exploration="thompson")
