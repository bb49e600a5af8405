"""Dose escalation with overdose control: draws against an exact grid, the protocol's rules, and
what is named at the end.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

import gedppl as ged
from gedppl import errors
from gedppl.learning import draws as sampling
from gedppl.learning import learner_for
from gedppl.learning.moves import moved
from gedppl.rows import Rows
from gedppl.study.planning.tables import Trial, share_of_gain
from tests.plain_worlds import PlainTables
from tests.problems import LinearWorld
from tests.test_models import load

E = load("escalation")
PROBLEM, X = E.problem(), np.zeros(1)
MODEL, TOXIC = PROBLEM.constraints[0].model, PROBLEM.constraints[0].functional


def on_a_grid(a: np.ndarray, y: np.ndarray, size: int = 241) -> tuple[np.ndarray, np.ndarray]:
    """DLT probabilities (G, 5) and the posterior weights (G,) of the two parameters, by brute
    force.
    """
    log_alpha, log_beta = (
        g.ravel()
        for g in np.meshgrid(np.linspace(-9, 9, size), np.linspace(-4.5, 4.5, size), indexing="ij")
    )
    p = expit(log_alpha[:, None] + np.exp(log_beta)[:, None] * np.log(E.DOSES / E.DOSES[-1]))
    at = np.clip(p[:, a - 1], 1e-300, 1 - 1e-16)
    logs = (
        norm.logpdf(log_alpha / 2)
        + norm.logpdf(log_beta)
        + (y * np.log(at) + (1 - y) * np.log1p(-at)).sum(axis=1)
    )
    weights = np.exp(logs - logs.max())
    return p, weights / weights.sum()


def history(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = np.minimum(1 + np.arange(n) // 6, 5)
    return a, (rng.random(n) < E.TOXICITY[a - 1]).astype(float)


def told(source: str, a: np.ndarray, y: np.ndarray, draws: int = 4000):
    learner = learner_for(
        MODEL, delta=0.05, confidence=ged.credible_set(0.75, source=source, draws=draws), seed=3
    )
    for i in range(len(a)):
        learner = learner.absorb(np.zeros((1, 1)), a[i : i + 1], y[i : i + 1])
    return learner


def test_moved_draws_stand_for_the_posterior_of_a_grid() -> None:
    """P(DLT > .33) and the mean of every dose, within four standard errors of the effective size
    that the draws claim.
    """
    a, y = history(30)
    learner = told("smc", a, y)
    p, weights = on_a_grid(a, y)
    found = learner.values(TOXIC, np.zeros((1, 1)), 6)[:, 0, 1:]
    mine, S = learner.draws.weights, learner.draws.ess
    assert "Metropolis" in learner.remark
    assert S > 1000
    over = weights @ (p > E.LIMIT)
    np.testing.assert_array_less(
        np.abs(mine @ (found > E.LIMIT) - over), 4 * np.sqrt(over * (1 - over) / S) + 2e-3
    )
    spread = np.sqrt(weights @ p**2 - (weights @ p) ** 2)
    np.testing.assert_array_less(np.abs(mine @ found - weights @ p), 4 * spread / np.sqrt(S) + 1e-3)


def test_without_moves_the_weights_wear_out() -> None:
    """The control: the same draws, only weighted, are soon worth less than a tenth of their
    number.
    """
    a, y = np.tile([1, 2, 3, 4, 5], 12), np.zeros(60)
    assert told("prior", a, y).draws.ess < 400 < 1500 < told("smc", a, y).draws.ess


def test_all_rows_at_once_give_the_same_posterior_as_one_by_one() -> None:
    a, y = history(30)
    rows = Rows.of(np.zeros((30, 1)), a, y)
    found = sampling.sample(MODEL, rows, "smc", 4000, 5)
    p, weights = on_a_grid(a, y)
    values = sampling.values(MODEL, found, TOXIC, np.zeros((5, 1)), np.arange(1, 6))
    np.testing.assert_allclose(values.mean(axis=0), weights @ p, atol=0.02)
    np.testing.assert_array_equal(found.theta, sampling.sample(MODEL, rows, "smc", 4000, 5).theta)


@pytest.mark.parametrize("source", ["laplace", "nuts"])
def test_draws_speak_of_the_programs_parameters_and_not_of_what_the_data_see(source) -> None:
    """The set is kept in (log alpha, beta), the draws in (log alpha, log beta): both have two
    coordinates.
    """
    a, y = history(30)
    learner = told(source, a, y, draws=1000).refit()
    p, weights = on_a_grid(a, y)
    found = learner.draws.weights @ learner.values(TOXIC, np.zeros((1, 1)), 6)[:, 0, 1:]
    # a fit in the wrong coordinates is off by .15 and more
    np.testing.assert_allclose(found, weights @ p, atol=0.06)
    assert learner.plausible.mean() > 0.9


def test_an_agent_stored_between_moves_goes_on_alike(tmp_path) -> None:
    options = {
        "confidence": ged.credible_set(0.75, source="smc", draws=500),
        "guard": None,
        "seed": 1,
    }
    agent = ged.GEDUCB(PROBLEM, journal=tmp_path / "j.db", **options)
    agent.observe(np.zeros((8, 1)), [1, 1, 2, 2, 3, 3, 4, 4], [0.0, 0, 0, 0, 0, 0, 0, 1])
    agent.tell(agent.ask(X).id, 0.0)
    policy, mark = agent.policy(X), agent.state_hash()
    agent.close()
    again = ged.resume(tmp_path / "j.db", PROBLEM, confidence=options["confidence"])
    assert again.state_hash() == mark
    np.testing.assert_array_equal(again.policy(X), policy)


def test_a_plain_quantile_has_no_margin_and_says_so() -> None:
    a, y = history(12)
    learner = told("smc", a, y)
    plain = replace(learner, rule=ged.credible_set(0.75, source="smc", draws=4000, margin=False))
    wide, narrow = (one.bounds(TOXIC, np.zeros((1, 1)), 6) for one in (learner, plain))
    assert (narrow.upper <= wide.upper).all()
    assert (narrow.upper[0, 1:] < wide.upper[0, 1:]).any()
    values, weights = learner.values(TOXIC, np.zeros((1, 1)), 6)[:, 0], learner.draws.weights
    np.testing.assert_allclose(weights @ (values <= narrow.upper[0]) >= 0.75, True)
    assert (weights @ (values < narrow.upper[0])[:, 1:] <= 0.75).all()
    assert "not allowed for" in narrow.rule
    with pytest.raises(errors.SettingError, match="margin must be True or False, got 1"):
        ged.credible_set(margin=1)


def test_draws_that_may_go_nowhere_are_said_to_be_stuck() -> None:
    start = np.random.default_rng(0).normal(size=(200, 2))
    found = moved(
        start,
        lambda theta: np.where((theta == start).all(axis=1), 0.0, -np.inf),
        np.random.default_rng(1),
    )
    assert found.accepted == 0
    assert found.worth(20.0) == pytest.approx(20.0)


def test_declarations_are_held_against_a_set_only_where_somebody_watches(monkeypatch) -> None:
    asked = []
    learners = type(learner_for(MODEL, delta=0.05, confidence=ged.credible_set()).base)
    bounds = learners.bounds
    monkeypatch.setattr(
        learners, "bounds", lambda self, *args: asked.append(1) or bounds(self, *args)
    )
    for guard, calls in ((None, 0), ("warn", 1)):
        asked.clear()
        agent = ged.GEDUCB(PROBLEM, guard=guard, confidence=ged.credible_set(draws=200))
        agent.observe(np.zeros((4, 1)), [1, 1, 2, 2], [0.0, 0, 0, 1])
        agent.ask(X)
        assert (len(asked) > 0) == bool(calls)


# the protocol -------------------------------------------------------------------------------------


def follow(design, outcomes) -> list[int]:
    """Doses given, if these outcomes come."""
    given = []
    for y in outcomes:
        decision = design.ask(X)
        given.append(decision.action)
        design.tell(decision.id, float(y) if decision.action else 0.0)
    return given


def test_the_agent_alone_never_treats_anybody_and_the_protocol_names_a_starting_dose() -> None:
    p, weights = on_a_grid(np.array([], int), np.array([]))
    assert weights @ (p[:, 0] > E.LIMIT) > 0.25
    design = E.Escalation(PROBLEM, draws=4000)
    assert design.agent.policy(X).tolist() == [1, 0, 0, 0, 0, 0]
    first = design.ask(X)
    assert (first.action, first.certificate) == (1, None)  # by protocol: nothing is certified
    design.tell(first.id, 0.0)
    second = design.ask(X)
    assert second.action == 2
    assert second.certificate.constraints[0].credible == 0.75


def test_no_dose_is_skipped_and_toxicities_bring_it_down() -> None:
    given = follow(E.Escalation(PROBLEM, draws=2000), [0, 0, 0, 0, 0, 0, 1, 1, 1])
    assert given[0] == 1
    assert all(b <= max(given[: i + 1]) + 1 for i, b in enumerate(given[1:]))
    assert given[-1] < max(given)


def test_a_toxic_drug_stops_the_trial_and_no_dose_is_named() -> None:
    design = E.Escalation(PROBLEM, draws=2000)
    given = follow(design, [1] * 10)
    assert given[-1] == 0  # no dose: the trial has stopped
    assert set(given) == {0, 1}
    assert design.recommended(X) == 0


def test_what_is_named_at_the_end_is_what_a_grid_names() -> None:
    a, y = history(36, seed=2)
    design = E.Escalation(PROBLEM, draws=4000)
    design.agent.observe(np.zeros((36, 1)), a, y)
    p, weights = on_a_grid(a, y)
    found = design.agent.recommend(X, "interval", within=(0.16, E.LIMIT), tried=True)
    np.testing.assert_allclose(found.over[0, 1:], weights @ (p > E.LIMIT), atol=0.04)
    assert found.over[0, 0] == 0  # no dose
    tried = np.arange(1, 6) <= a.max()
    by_mean = 1 + int(np.argmin(np.where(tried, np.abs(weights @ p - E.LIMIT), 9)))
    by_interval = 1 + int(np.argmax(np.where(tried, weights @ ((p > 0.16) & (p <= E.LIMIT)), -1)))
    everything = (
        design.agent.recommend(X, "nearest"),
        design.agent.recommend(X, "interval", within=(0.16, E.LIMIT)),
    )
    assert [one.action for one in everything] == [by_mean, by_interval]
    assert "posterior probability" in everything[1].reason


def test_an_interval_needs_draws_and_its_ends() -> None:
    agent = ged.GEDUCB(PROBLEM, guard=None)
    with pytest.raises(errors.SettingError, match=r"confidence=credible_set"):
        agent.recommend(X, "interval", within=(0.1, 0.3))
    assert np.isnan(agent.recommend(X).over).all()
    with pytest.raises(errors.SettingError, match=r"within=\(low, high\) belongs to rule"):
        agent.recommend(X, "interval")
    with pytest.raises(errors.SettingError, match=r"within=\(low, high\) belongs to rule"):
        agent.recommend(X, within=(0.1, 0.3))
    with pytest.raises(errors.SettingError, match="low < high"):
        agent.recommend(X, "interval", within=(0.3, 0.1))


def test_groups_borrow_from_each_other() -> None:
    """Toxicities of one group alone lower the doses of the others, and less than their own."""
    agent = E.Escalation(E.problem(groups=True), draws=1000).agent
    agent.observe(np.zeros((12, 1)), np.repeat([1, 2, 3], 4), np.zeros(12))
    before = agent.recommend([1.0]).over[0]
    agent.observe(np.full((6, 1), 2.0), np.repeat([1, 2], 3), np.ones(6))
    after = [agent.recommend([float(g)]).over[0] for g in range(3)]
    assert after[1][2] > before[2]
    assert after[2][2] > after[1][2]


# planned ------------------------------------------------------------------------------------------


STOP = ged.StoppingRules(safe_share=1.0, window=1, first_look=1, every=1)


def planned(**options):
    given = {"agent": E.designed, "recommend": E.named, "rules": STOP} | options
    scenarios = {"usual": ged.Scenario(world=E.usual), "toxic": ged.Scenario(world=E.toxic)}
    return ged.plan(PROBLEM, np.zeros((1, 1)), 12, scenarios=scenarios, replicates=3, **given)


def test_a_plan_judges_trials_as_trials_are_judged() -> None:
    found = planned()
    usual, toxic = found.rows
    trials = found.cell(0, "usual")
    n = np.array([t.played for t in trials])
    assert n.sum() == sum(t.rounds for t in trials)
    assert usual["rounds of dose 2"] == n[:, 2].mean()
    assert usual["share treated above a limit"] == n[:, 5].sum() / n[:, 1:].sum()
    assert [t.right for t in trials] == [(4,)] * 3  # .30 is the highest DLT probability under .33
    assert usual["correct selection share"] == np.mean([t.named == (4,) for t in trials])
    assert [t.right for t in found.cell(0, "toxic")] == [(0,)] * 3
    assert toxic["share treated above a limit"] == 1.0
    assert toxic["stopped: futile"] > 0
    assert toxic["mean outcome: toxicity"] > 0.5
    assert 0 < usual["share of the oracle's gain"] < 1
    assert math.isnan(toxic["share of the oracle's gain"])  # nothing can be gained
    assert usual["rounds until half leave"] == 1
    assert "<th>correct selection share</th>" in found._repr_html_()
    assert "A selection is correct if" in found.protocol()


def test_a_plan_without_a_recommendation_says_nothing_of_selection() -> None:
    assert not any("selection" in name for name in planned(recommend=None).rows[0])


def test_half_leave_within_the_window() -> None:
    safe = np.array([True, True, True, False, False, False])
    trial = Trial(0, "s", 0, np.zeros(6), np.ones(6), safe, 0, "", safe_utility=np.full(6, -1.0))
    assert trial.rounds_until_half_leave(4) == 5
    assert trial.gain == 0.5
    assert math.isinf(replace(trial, safe=np.ones(6, bool)).rounds_until_half_leave(4))


def test_a_truth_with_next_to_nothing_to_gain_does_not_move_the_share() -> None:
    """One trial gains 3 of 6, another loses 1 where the oracle gains 6e-9: a share of -2e8."""
    safe = np.ones(6, bool)
    usual = Trial(0, "s", 0, np.full(6, 0.5), np.ones(6), safe, 0, "", safe_utility=np.zeros(6))
    empty = replace(usual, utility=np.full(6, -1 / 6), best=np.full(6, 1e-9))
    assert empty.gain < -1e6
    assert share_of_gain([usual, empty]) == pytest.approx(2 / 6)


# before the trial ---------------------------------------------------------------------------------


def test_a_decision_table_agrees_with_the_exact_posterior_row_by_row() -> None:
    table = ged.decision_table(PROBLEM, X, 9, cohort=3, agent=E.designed)
    assert table.given == ("dose 1", "dose 2", "dose 3.3")
    assert table.patients == (0, 3, 6)
    a, y = [], []
    for given, after in zip(table.given, table.after):
        dose = E.ACTIONS.index(given)
        for k, then in enumerate(after):
            p, weights = on_a_grid(
                np.array(a + [dose] * 3), np.array(y + [1.0] * k + [0.0] * (3 - k))
            )
            over = weights @ (p > E.LIMIT)
            if np.abs(over - 0.25).min() < 0.03 or abs(over[0] - E.TOO_TOXIC) < 0.03:
                continue  # too near to call from draws
            fine = np.flatnonzero(over <= 0.25)
            best = min(1 + fine.max(), dose + 1) if len(fine) else int(over[0] <= E.TOO_TOXIC)
            assert then == E.ACTIONS[best]
        a, y = a + [dose] * 3, y + [0.0] * 3
    assert "3 now get" in str(table)
    assert "<td>dose 3.3</td>" in table._repr_html_()
    assert table.to_markdown().count("\n") == 5


def test_a_decision_table_goes_on_from_what_was_told() -> None:
    table = ged.decision_table(PROBLEM, X, 1, told=([1, 1, 1, 2], [0, 0, 0, 1]), agent=E.designed)
    assert table.patients == (4,)
    assert table.given[0] in ("dose 1", "dose 2")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"cohort": 1.5}, "cohort must be a whole number"),
        ({"told": ([1], [])}, "told must be actions and as many events"),
        ({"told": ([1], [0.5])}, "each 0 or 1"),
    ],
)
def test_a_decision_table_says_what_it_cannot_read(options, match) -> None:
    with pytest.raises(errors.SettingError, match=match):
        ged.decision_table(PROBLEM, X, **({"rounds": 1} | options))


def test_a_decision_table_counts_events_and_not_amounts() -> None:
    two = LinearWorld(4, 3, 0.05, seed=1).problem()
    with pytest.raises(errors.SettingError, match=r"events, 0 or 1.* is continuous"):
        ged.decision_table(two, np.zeros(12), 1)


def two_outcomes(hidden: bool = False) -> ged.Problem:
    """Tables of Bernoulli toxicities, a response of its own, two arms beside a safe one.

    With no toxicity on arm 1 the second table is excluded, which lets arm 2 through; `hidden`: all
    tables say the same of arm 1, so that it never is.
    """
    first = [0.05, 0.05, 0.05] if hidden else [0.05, 0.25, 0.3]
    tables = np.array([[0.01, p, q] for p, q in zip(first, (0.2, 0.6, 0.8))])
    gains = np.array([[0.1, 0.5, 0.9], [0.1, 0.9, 0.5]])
    toxicity = ged.Constraint(
        PlainTables(tables[:, None]),
        ged.mean(0, 1),
        at_most=0.4,
        safe_value=0.01,
        name="toxicity",
        every_draw=True,
    )
    return ged.Problem(
        utility=ged.Utility(PlainTables(gains[:, None]), ged.mean(0, 1)),
        constraints=[toxicity],
        actions=("none", "low", "high"),
        safe_action="none",
    )


def test_a_decision_table_of_a_problem_with_a_response_of_its_own() -> None:
    """Its rows are what an agent gives that was told the same by hand."""
    problem, x, options = two_outcomes(), np.zeros(1), {"guard": None}
    table = ged.decision_table(problem, x, 40, cohort=20, agent=options)
    assert table.given == ("low", "high")
    for n, given, after in zip(table.patients, table.given, table.after):
        for k in (0, 1, 20):
            agent = ged.GEDUCB(problem, **options)
            a = [1] * n + [("none", "low", "high").index(given)] * 20
            z = [0.0] * n + [1.0] * k + [0.0] * (20 - k)
            agent.observe(np.zeros((len(a), 1)), a, None, z)
            assert after[k] == ("none", "low", "high")[int(agent.policy(x).argmax())]
    assert table.after[0][0] == "high"
    # once responses are told, too, the utility is learned: here the first arm is the better one
    better = {"utility": lambda x, action: float(action == 1)}
    assert ged.decision_table(problem, x, 40, cohort=20, others=better, agent=options).given == (
        "low",
        "low",
    )


def test_a_decision_table_names_the_outcomes_to_choose_from() -> None:
    problem, x = two_outcomes(), np.zeros(1)
    with pytest.raises(errors.SettingError, match=r"one of \['toxicity'\], got 'response'"):
        ged.decision_table(problem, x, 2, event="response")
    with pytest.raises(
        errors.SettingError, match=r"'toxicity'; the other outcomes are \['utility'"
    ):
        ged.decision_table(problem, x, 2, others={"toxicity": 0.0})


def test_a_decision_table_is_for_one_context() -> None:
    with pytest.raises(errors.ShapeError, match=r"one context \(dx,\), got 2"):
        ged.decision_table(two_outcomes(), np.zeros((2, 1)), 2)


def test_a_path_without_events_where_the_utility_is_learned() -> None:
    """Arm 2 is let through when no toxicity in n rows of arm 1 has excluded the other tables: l1 =
    n log .75 < log mean exp(l) - log(1 / .05), by hand.
    """
    n = np.arange(1, 40)[:, None]
    logs = n * np.log1p(-np.array([0.05, 0.25, 0.3]))
    evidence = np.logaddexp.reduce(logs, axis=1) - np.log(3)
    needed = 1 + int(np.argmax((logs[:, 1:] < evidence[:, None] - np.log(20)).all(axis=1)))
    found, hidden = (
        ged.check_problem(two_outcomes(hide), np.zeros((1, 1)), runs=0, draws=20)
        for hide in (False, True)
    )
    assert found.path.index(2) == needed
    assert set(found.path[:needed]) == {1}
    assert not any("never comes" in text for text in found.warnings)
    assert set(hidden.path) == {1}
    assert any("do not reach high" in text for text in hidden.warnings)


def test_the_check_before_round_1_tells_of_doses_that_a_prior_hides() -> None:
    """At level .75 this prior hides every dose; at .7 it hides none, and the path climbs without
    skipping.
    """
    hidden, free = (
        ged.check_problem(
            PROBLEM,
            np.zeros((1, 1)),
            runs=0,
            draws=50,
            agent={"confidence": ged.credible_set(level, source="smc", draws=4000)},
        )
        for level in (0.75, 0.7)
    )
    assert set(hidden.path) == {0}
    assert any(
        "do not reach dose 1, dose 2, dose 3.3, dose 5, dose 7:" in text for text in hidden.warnings
    )
    assert not any("do not reach" in text for text in free.warnings)
    assert "if no bad outcome ever comes: dose 1 from round 1" in str(free)
    assert free.path[-1] == 5
    # a path that begins higher up passes the lower doses over, and hides none of them
    later = ged.check_problem(
        PROBLEM,
        np.zeros((1, 1)),
        runs=0,
        draws=50,
        agent={"confidence": ged.credible_set(0.75, source="smc", draws=2000)},
        log=(np.zeros((16, 1)), [1] * 8 + [2] * 8, np.zeros(16)),
    )
    assert later.path[0] > 1
    assert later.hidden == ()
