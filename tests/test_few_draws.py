"""Draws that are too few: drawn again where that helps, refused where nothing could help, and said
wherever the end of a range stands in for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.agent.keeper import what_holds_back
from gedppl.learning import Where, drawn, draws, feed, learner_for
from gedppl.learning.credible import least_draws, quantile_level
from gedppl.learning.draws import ParameterDraws
from gedppl.programs.chains import summarised
from tests.plain_worlds import state_of
from tests.test_credible import ARMS, FINITE, LOGISTIC, PROBLEM, K, X, problem, slopes

NEEDED = least_draws(0.95, K)  # 80
ROWS = np.zeros((30, 1)), np.arange(30) % K, np.full(30, 0.2)
Source = Callable[..., ParameterDraws]


def test_the_least_number_is_where_the_rank_begins_to_exist() -> None:
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        for n_actions in (1, 2, 4, 50):
            least = least_draws(level, n_actions)
            assert quantile_level(least, 1 - level, n_actions) == 1.0
            assert quantile_level(least - 1, 1 - level, n_actions) == np.inf


# refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [True, False])
def test_a_number_that_can_never_do_is_refused_when_the_agent_is_made(example, tmp_path) -> None:
    given = LOGISTIC if example else problem(ged.density_class(slopes), 0.0, 1.0)
    few = ged.credible_set(0.99, "nuts", 400)
    with pytest.raises(
        errors.SettingError,
        match=r"confidence of 'cost': draws=400 cannot support level=0.99 of 3 actions.*"
        r"The least that works is draws=408",
    ):
        ged.GEDUCB(given, confidence={"cost": few}, journal=tmp_path / "j.db")
    assert list(tmp_path.iterdir()) == []
    ged.GEDUCB(given, confidence={"cost": ged.credible_set(0.99, "nuts", 408)})


def test_a_set_from_data_refuses_it_too() -> None:
    few = ged.credible_set(0.95, draws=60)
    with pytest.raises(errors.SettingError, match=r"level=0.95 of 3 actions.*draws=80"):
        ged.confidence_set(ARMS, *ROWS, confidence=few, n_actions=K)
    ged.confidence_set(ARMS, *ROWS, confidence=few)  # one action: 59 do


def test_where_weights_are_exact_or_no_allowance_is_made_any_number_will_do() -> None:
    ged.GEDUCB(FINITE.problem, confidence=ged.credible_set(0.99, draws=20))
    ged.GEDUCB(LOGISTIC, confidence=ged.credible_set(0.99, draws=20, margin=False))
    ged.GEDUCB(LOGISTIC, confidence=ged.sampled_set(draws=20))


# drawn again --------------------------------------------------------------------------------------


def worth(share: float, sizes: list[int], rhat: float = np.nan, settled_from: int = 0) -> Source:
    """Laplace draws in place of chains, of which only a share counts."""
    laplace = draws.FROM["laplace"]

    def source(cls, rows, S, *rest) -> ParameterDraws:
        sizes.append(S)
        theta = laplace(cls, rows, S, *rest).theta
        ok = settled_from <= S
        ess = max(share * S, 1.0)
        return ParameterDraws(
            theta, None, ess, -np.inf, "nuts", "stand-ins", ok, rhat=1.0 if ok else rhat
        )

    return source


def bounds_of(monkeypatch, source: Source, n: int = 100):
    monkeypatch.setitem(draws.FROM, "nuts", source)
    rule = ged.credible_set(source="nuts", draws=n)
    where = Where(X, K, tuple(range(K)))
    learner = feed(learner_for(ARMS, delta=0.05, confidence=rule, where=where), *ROWS)
    return learner, learner.bounds(ged.mean(-3, 3), X, K)


def test_draws_worth_too_few_are_drawn_again_twice_as_many_each_time(monkeypatch) -> None:
    sizes: list[int] = []
    learner, found = bounds_of(monkeypatch, worth(0.3, sizes))
    assert sizes[:3] == [100, 200, 400]  # worth 30, 60, 120
    assert set(sizes[3:]) <= {400}  # and later it begins with what was enough
    assert learner.draws.size == 400
    assert (found.upper < 1).all()
    assert found.used.shortage == ""


def test_without_drawing_again_the_range_would_stand_in(monkeypatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(drawn, "GROWN", 1)
    _, found = bounds_of(monkeypatch, worth(0.3, []))
    assert (found.upper == 3).all()
    assert found.used.shortage == (
        "for want of draws the range's end stands in: they are worth 30 independent ones, and "
        "level 0.95 over 3 actions takes 80; ask for more than draws=100, or for another source "
        "than 'nuts'"
    )


def test_chains_that_have_not_settled_are_run_longer(monkeypatch) -> None:
    sizes: list[int] = []
    learner, found = bounds_of(monkeypatch, worth(1.0, sizes, rhat=1.3, settled_from=200))
    assert sizes[:2] == [100, 200]
    assert learner.draws.ok
    assert found.used.shortage == ""


def test_a_source_that_fails_otherwise_is_not_run_longer(monkeypatch) -> None:
    """Divergent transitions do not go away in longer chains."""
    sizes: list[int] = []
    _, found = bounds_of(monkeypatch, worth(1.0, sizes, rhat=1.0, settled_from=10**9))
    assert set(sizes) == {100}
    assert "they do not stand for the posterior" in found.used.shortage


def test_draws_that_still_do_stay_where_new_ones_fail(monkeypatch) -> None:
    learner, before = bounds_of(monkeypatch, worth(1.0, []))
    monkeypatch.setitem(draws.FROM, "nuts", worth(1.0, [], rhat=1.0, settled_from=10**9))
    kept = learner._redrawn()
    assert kept.draws is learner.draws
    np.testing.assert_array_equal(kept.bounds(ged.mean(-3, 3), X, K).upper, before.upper)
    used_up = replace(learner, draws=replace(learner.draws, ess=1.0))  # these do no longer
    assert not used_up._redrawn().draws.ok


def test_what_failed_waits_for_the_next_refit(monkeypatch) -> None:
    """A source that fails costs its time at refits, not with every row."""
    sizes: list[int] = []
    learner, _ = bounds_of(monkeypatch, worth(0.1, sizes))
    tried = len(sizes)
    for _ in range(3):
        learner = learner.absorb(np.zeros((1, 1)), np.zeros(1, int), np.full(1, 0.2))
    assert len(sizes) == tried
    learner.refit()
    assert len(sizes) > tried


def test_weights_that_leave_too_few_are_not_put_up_with_until_the_next_refit() -> None:
    rule, where = ged.credible_set(draws=100), Where(X, K, tuple(range(K)))
    fitted = feed(learner_for(ARMS, delta=0.05, confidence=rule, where=where), *ROWS)
    row = np.zeros((4, 1)), np.ones(4, int), np.full(4, 0.5)
    gained = draws.log_likelihood(ARMS, fitted.draws, *row).sum(axis=1)
    weighted = fitted.draws.reweighted(gained)
    assert weighted.usable  # the control: by its weights alone it would stay
    assert weighted.ess < NEEDED
    assert fitted.absorb(*row).draws.ess >= NEEDED


def test_draws_that_are_moved_grow_too() -> None:
    """Between rows weights use draws up; 85 of them would soon be worth fewer than 80."""
    rule = ged.credible_set(source="smc", draws=85)
    agent = ged.GEDUCB(LOGISTIC, confidence={"cost": rule}, seed=0, guard=None)
    rng = np.random.default_rng(0)
    grown = 85
    for _ in range(12):
        decision = agent.ask(rng.normal(size=1))
        used = decision.certificate.constraints[0].draws
        assert used.shortage == ""
        grown = max(grown, used.size)
        agent.tell(decision.id, 0.0, float(rng.random() < 0.3))
    assert 85 < grown <= 340


def test_chains_that_swing_from_side_to_side_are_worth_all_their_draws() -> None:
    """Their sum of autocorrelations may be estimated so low that the size becomes negative."""
    theta = np.zeros((2, 50, 3))
    found = summarised(theta, 0, np.array([70.0, -4000.0, 1e5]), np.ones(3))
    assert found.ess == 70
    assert summarised(theta, 0, np.array([-4000.0, 1e5]), np.ones(2)).ess == 100
    assert summarised(theta, 0, np.array([np.nan, 70.0]), np.ones(2)).ess == 1  # never moved


# said ---------------------------------------------------------------------------------------------


def test_the_reason_is_in_certificate_explanation_and_recommendation() -> None:
    agent = ged.GEDUCB(
        PROBLEM, confidence={"cost": ged.credible_set(source="prior", draws=100)}, guard=None
    )
    agent.observe(np.zeros((60, 1)), np.arange(60) % K, np.zeros(60), np.full(60, -1.4))
    decision = agent.ask([0.0])
    part, short = decision.certificate.constraints[0], "for want of draws the range's end stands in"
    assert part.draws.shortage.startswith(short)
    assert "source='smc' moves draws" in part.draws.shortage
    assert part.draws.shortage in part.claim
    explained = agent.explain(decision)
    assert part.draws.shortage in str(explained)
    assert part.draws.shortage in explained.why_not(1)
    named = agent.recommend([0.0])
    assert (named.action, named.rule) == (0, "certified")
    assert part.draws.shortage in named.reason
    assert decision.certificate.to_dict()["constraints"][0]["draws"]["shortage"]


def test_where_draws_suffice_nothing_of_the_kind_is_said() -> None:
    """The control: the same rows, and a source that moves."""
    agent = ged.GEDUCB(PROBLEM, confidence={"cost": ged.credible_set(source="smc")}, guard=None)
    agent.observe(np.zeros((60, 1)), np.arange(60) % K, np.zeros(60), np.full(60, -1.4))
    decision = agent.ask([0.0])
    assert decision.certificate.constraints[0].draws.shortage == ""
    said = (
        f"{agent.explain(decision)} {agent.recommend([0.0])} {agent.explain(decision).why_not(0)}"
    )
    assert "for want of draws" not in said


def test_the_warning_that_only_the_safe_action_is_played_says_it_too() -> None:
    agent = ged.GEDUCB(
        problem(every_draw=True),
        confidence={"cost": ged.credible_set(source="prior", draws=100)},
        guard=None,
    )
    agent.observe(np.zeros((60, 1)), np.arange(60) % K, np.zeros(60), np.full(60, -1.4))
    decision = agent.ask([0.0])
    assert decision.policy[0] == 1
    said = what_holds_back(state_of(agent, X), X[0], agent.explain(decision), 0)
    assert "That is no finding: for want of draws" in said


def test_a_sampled_set_without_a_draw_says_so() -> None:
    rule = ged.sampled_set(source="prior", draws=100)
    learner = feed(learner_for(ARMS, delta=0.05, confidence=rule), *ROWS[:2], np.full(30, 2.9))
    found = learner.bounds(ged.mean(-3, 3), X, K)
    assert (found.upper == 3).all()
    assert "none of them lies in the set" in found.used.shortage
    near = feed(learner_for(ARMS, delta=0.05, confidence=ged.sampled_set()), *ROWS)
    assert near.bounds(ged.mean(-3, 3), X, K).used.shortage == ""


# a proof that is missing --------------------------------------------------------------------------


def explained(confidence) -> tuple[np.ndarray, str, str]:
    agent = ged.GEDUCB(problem(every_draw=True), confidence=confidence, guard=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decision = agent.ask([0.0])
    return decision.policy, str(agent.explain(decision)), str(decision.certificate)


def test_a_guarantee_that_plays_safe_alone_points_at_what_asks_for_less() -> None:
    policy, said, certificate = explained(None)
    assert policy[0] == 1
    assert "confidence={'cost': ged.credible_set()} leaves the safe action earlier" in said
    assert "hint" not in certificate
    policy, said, _ = explained({"cost": ged.credible_set(0.6)})
    assert policy[0] < 1
    assert "hint" not in said
