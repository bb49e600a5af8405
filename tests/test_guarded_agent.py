"""The guard inside an agent: what it sees, when it stops a run, and how seldom it is wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, kstest, norm

import gedppl as ged
import gedppl.agent as agent_module
from gedppl import errors
from gedppl.agent import AlarmWarning, keeper, monitoring
from gedppl.agent.deciding import stops
from gedppl.agent.memory import alarmed
from gedppl.ged_ucb import Entry
from gedppl.guard import Alarm, Cost, Told
from gedppl.guard.outcomes import limit_floor
from gedppl.learning import linear_gaussian
from gedppl.programs.contract import LinearPredictor
from tests.plain_worlds import (
    ArmsWorld,
    PlainWorld,
    asked_of,
    memory_of,
    monitors_of,
    play,
    take_out_the_betting_monitors,
    told_of,
)
from tests.program_doubles import Glm, Heteroscedastic

WORLD = PlainWorld()


def dearer() -> PlainWorld:
    """Every member says that costs are under 0.3; but for the safe action they are 0.8.
    Utilities are as the class says.
    """
    world = PlainWorld(dearest=0.3)
    costs = np.full_like(world.truth[1], 0.8)
    costs[:, 0] = 0.1
    world.truth = (world.truth[0], costs)
    return world


def until_alarm(agent: ged.GEDUCB, world, rounds: int, seed: int = 0) -> list:
    with pytest.warns(AlarmWarning) as caught:
        play(agent, world, rounds, seed)
    return [w for w in caught if w.category is AlarmWarning]


def test_an_alarm_stops_the_run_until_it_is_acknowledged(tmp_path) -> None:
    world = dearer()
    agent = ged.GEDUCB(world.problem, seed=1, journal=tmp_path / "j.db")
    said = until_alarm(agent, world, 120)
    names = [alarm.name for alarm in agent.alarms]
    assert any(stops(name, world.problem) for name in names)
    assert len(said) == len(names) == len(set(names))  # each is said once
    for name, warning in zip(names, said):
        then = f"until acknowledge({name!r})" if stops(name, world.problem) else "The run goes on"
        assert then in str(warning.message)
    decision = agent.ask([0.0])
    assert decision.policy.tolist() == [1, 0, 0]
    assert agent.policy([1.0]).tolist() == [1, 0, 0]
    assert "Alarm after" in decision.certificate.fallback
    assert [r.payload["name"] for r in agent.journal.records("alarm")] == names
    # the alarm outlives the process
    agent.journal.close()
    back = ged.resume(tmp_path / "j.db", world.problem)
    assert back.state_hash() == agent.state_hash()
    assert [alarm.name for alarm in back.alarms] == names
    for alarm in back.alarms:
        back.acknowledge(alarm)
    assert back.alarms == []
    decision = back.ask([0.0])
    assert decision.certificate.fallback is None
    expected = back.state_hash()
    back.close()
    again = ged.resume(tmp_path / "j.db", world.problem)
    assert again.state_hash() == expected
    # and what was acknowledged is watched again from its start
    monitors = monitors_of(again)
    assert all(monitors[name].n <= 1 for name in names)
    until_alarm(again, world, 200, seed=1)


def test_the_limits_monitor_alone_stops_a_run(monkeypatch) -> None:
    """Needs no model: the model's own monitors are taken out."""
    take_out_the_betting_monitors(monkeypatch)
    monkeypatch.setattr(monitoring, "_certified", lambda *_: None)
    world = dearer()
    agent = ged.GEDUCB(world.problem, seed=1)
    until_alarm(agent, world, 120)
    assert [alarm.name for alarm in agent.alarms] == ["limit:cost"]
    assert "exceeds its limit 0.5" in agent.ask([0.0]).certificate.fallback


def test_warn_only_goes_on_and_says_so_in_the_certificate() -> None:
    world = dearer()
    agent = ged.GEDUCB(world.problem, seed=1, guard="warn")
    said = until_alarm(agent, world, 160)
    assert {"limit:cost", "calibration:cost"} <= {alarm.name for alarm in agent.alarms}
    assert "The run goes on" in str(said[0].message)
    decision = agent.ask([0.0])
    assert decision.certificate.fallback is None
    assert any("Alarm after" in note for note in decision.certificate.notes)


@pytest.mark.parametrize(
    ("alarm", "while_active", "acknowledged"),
    [
        (None, True, True),  # the control
        *[(f"{kind}:cost", False, True) for kind in ("calibration", "drift", "delay", "limit")],
        ("refuted:cost", False, False),  # what was refuted stays so
        ("certified:cost", False, False),
        ("empty:cost", False, False),
        ("calibration:utility", True, True),  # no limit rests on it
        ("refuted:utility", True, True),
    ],
)
def test_an_alarm_takes_the_guarantee_from_the_limits_it_is_about(
    alarm, while_active: bool, acknowledged: bool
) -> None:
    """In a run that goes on ("warn"). The alarm is put in by hand, so that nothing else is
    different.
    """
    agent = ged.GEDUCB(WORLD.problem, seed=1, guard="warn")
    play(agent, WORLD, 3)
    if alarm is not None:
        sentence = "Alarm after 3 outcomes: put in by hand."
        agent._keeper.memory = alarmed(memory_of(agent), Alarm(alarm, 100.0, 0.05, 3, sentence))
    (part,) = agent.ask([0.0]).certificate.constraints
    assert part.guaranteed is while_active
    assert part.kind == ("guarantee" if while_active else "approximation")
    assert ("put in by hand" in part.note) is not while_active
    if alarm is not None:
        agent.acknowledge(alarm)
        assert agent.ask([0.0]).certificate.guaranteed is acknowledged


def test_without_a_guard_nothing_is_noticed() -> None:
    """The positive control of the two tests above; a warning here would be an error."""
    agent = ged.GEDUCB(dearer().problem, seed=1, guard=None)
    play(agent, dearer(), 120)
    assert agent.alarms == []
    assert memory_of(agent).watch is None


def test_alarms_stop_a_run_only_where_their_rate_is_proved() -> None:
    def monitors(world) -> list[str]:
        agent = ged.GEDUCB(world.problem)
        agent.ask(world.context(np.random.default_rng(0)))
        return sorted(monitors_of(agent))

    models = [
        f"{kind}:{name}"
        for kind in ("calibration", "delay", "drift")
        for name in ("cost", "utility")
    ]
    betting = [*models, "limit:cost", "safe_value:cost"]
    for world in (WORLD, ArmsWorld("Normal"), ArmsWorld("Bernoulli")):
        assert monitors(world) == sorted(
            [*betting, "certified:cost", "refuted:cost", "refuted:utility"]
        )
    # the largest likelihood of a general program is not known, and its bounds are not proved: its
    # monitors warn only
    assert monitors(ArmsWorld("Bernoulli", exact=False, actions=2)) == betting
    assert [name for name in monitors(WORLD) if stops(name, WORLD.problem)] == [
        "certified:cost",
        "limit:cost",
        "refuted:cost",
    ]


def test_a_refuted_utility_warns_and_the_run_goes_on() -> None:
    """No limit rests on it. Every utility is 1 here, whatever the class says."""
    world = PlainWorld()
    plain = world.outcome
    world.outcome = lambda x, action, rng: (1.0, plain(x, action, rng)[1])
    agent = ged.GEDUCB(world.problem, seed=1)
    said = until_alarm(agent, world, 150)
    assert "refuted:utility" in [alarm.name for alarm in agent.alarms]
    assert all("The run goes on" in str(warning.message) for warning in said)
    decision = agent.ask([0.0])
    assert decision.certificate.fallback is None
    assert any(
        "no parameter of the model of 'utility' explains" in note
        for note in decision.certificate.notes
    )


def test_a_class_without_the_truth_is_refuted_and_stops_the_run(tmp_path) -> None:
    # the limit is kept and the safe value right, but no member has actions that never cost anything
    world = PlainWorld()
    costs = np.zeros_like(world.truth[1])
    costs[:, 0] = 0.1
    world.truth = (world.truth[0], costs)
    agent = ged.GEDUCB(world.problem, seed=1, journal=tmp_path / "j.db")
    until_alarm(agent, world, 300)
    assert "refuted:cost" in [alarm.name for alarm in agent.alarms]
    decision = agent.ask([0.0])
    assert decision.policy.tolist() == [1, 0, 0]
    assert (
        "no parameter of the model of 'cost' explains the outcomes: outcomes are smaller"
        in decision.certificate.fallback
    )
    expected = agent.state_hash()
    agent.close()
    back = ged.resume(tmp_path / "j.db", world.problem)
    assert back.state_hash() == expected
    for alarm in back.alarms:
        back.acknowledge(alarm)
    assert back.ask([0.0]).certificate.fallback is None
    assert monitors_of(back)["refuted:cost"].n == 0


def test_a_missing_square_is_found_in_a_linear_model() -> None:
    world = ArmsWorld("Normal", scale=0.1)
    plain = world.outcome

    def curved(x, action, rng):
        y, z = plain(x, action, rng)
        return y + 0.8 * (x[1] - 0.5) ** 2, z

    world.outcome = curved
    agent = ged.GEDUCB(world.problem, guard="warn")
    until_alarm(agent, world, 900)
    assert {"calibration:utility", "refuted:utility"} <= {alarm.name for alarm in agent.alarms}
    assert not any(alarm.name.endswith(":cost") for alarm in agent.alarms)


def test_a_context_far_outside_is_in_the_certificate() -> None:
    agent = ged.GEDUCB(ArmsWorld("Normal").problem)
    play(agent, ArmsWorld("Normal"), 40)
    assert agent.ask([1.0, 0.5]).certificate.notes == ()
    notes = agent.ask([1.0, 30.0]).certificate.notes
    assert any("far outside of what was seen" in note for note in notes)
    # a constant that changed
    assert any("x[0] = 2" in note for note in agent.ask([2.0, 0.5]).certificate.notes)


def test_wide_contexts_are_checked_on_projections() -> None:
    rng = np.random.default_rng(0)
    world = PlainWorld(contexts=1)
    agent = ged.GEDUCB(world.problem)
    for _ in range(45):
        agent.ask(np.append(0.0, rng.normal(size=200)))
    assert memory_of(agent).watch.contexts.dx == 16
    far = agent.ask(np.append(0.0, 40 + rng.normal(size=200)))
    assert any("random projections of the 201 columns" in note for note in far.certificate.notes)


def test_an_explanation_that_fails_does_not_take_the_decision_from_the_caller(monkeypatch) -> None:
    """The warning about a run that is stuck comes after the decision was recorded."""
    monkeypatch.setattr(keeper, "what_holds_back", lambda *_: 1 / 0)
    agent = ged.GEDUCB(PlainWorld(at_most=0.11).problem, guard=None)
    agent._lately = keeper.LatelyPlayed(deque([0] * 4, maxlen=5))
    with pytest.warns(agent_module.SafeActionWarning, match="could not be computed"):
        decision = agent.ask([0.0])
    assert decision.id == 0


# what the monitors see ----------------------------------------------------------------------------


def test_lower_ends_of_outcomes() -> None:
    x = np.array([1.0, 0.5])

    def lowest(model, low=0.0):
        floor = limit_floor(
            ged.Constraint(model, ged.mean(low, 1), at_most=0.5, safe_value=0.1), x, 2
        )
        return floor and floor.low

    assert lowest(Glm("Bernoulli", 2)) == 0.0
    assert lowest(Glm("Normal", 2, extra={"scale": 0.2})) == pytest.approx(-1.2)
    # a scale that is learned bounds nothing
    assert lowest(_with_density(Heteroscedastic(2))) is None
    assert limit_floor(WORLD.problem.constraints[0], np.zeros(1), 3) == (0.0, 0.0)


def _with_density(model):
    from gedppl.density import Density

    model.density_at = lambda theta, x, a: Density(
        "Normal", {"loc": np.zeros(len(a)), "scale": np.ones(len(a))}
    )
    return model


def test_the_linear_predictive_is_the_posterior_one() -> None:
    world = ArmsWorld("Normal")
    agent = ged.GEDUCB(world.problem)
    play(agent, world, 60)
    learner = agent.confidence_set("utility").learner
    phi = np.stack(
        [world.models[0].features(x[None], np.array([a]))[0] for x, a in asked_of(agent).values()]
    )
    y = np.array([float(told["utility"]) for told in told_of(agent).values()])
    precision = phi.T @ phi / 0.1**2 + 1e-4 * np.eye(phi.shape[1])
    mean = np.linalg.solve(precision, phi.T @ y / 0.1**2)
    x, a, new = np.array([[1.0, 0.3]]), np.array([1]), np.array([0.4])
    at = world.models[0].features(x, a)[0]
    expected = norm.cdf(0.4, at @ mean, np.sqrt(0.1**2 + at @ np.linalg.solve(precision, at)))
    below, upto = learner.predictive_cdf(x, a, new)
    np.testing.assert_allclose([below[0], upto[0]], expected, atol=1e-9)


def test_the_finite_predictive_is_the_mixture() -> None:
    agent = ged.GEDUCB(WORLD.problem)
    play(agent, WORLD, 20)
    learner = agent.confidence_set("cost").learner
    x, a = np.array([[1.0], [0.0]]), np.array([2, 1])
    weights = np.exp(learner.totals - learner.totals.max())
    weights /= weights.sum()
    zero = weights @ (1 - learner.cls.tables[:, [1, 0], [2, 1]])
    below, upto = learner.predictive_cdf(x, a, np.array([0.0, 1.0]))
    np.testing.assert_allclose(below, [0.0, zero[1]], atol=1e-12)
    np.testing.assert_allclose(upto, [zero[0], 1.0], atol=1e-12)


def test_the_particles_predictive_is_the_mixture() -> None:
    world = ArmsWorld("Bernoulli", actions=2)
    agent = ged.GEDUCB(world.problem, guard=None)
    play(agent, world, 2)
    learner = agent.confidence_set("cost").learner
    x, a = np.array([[1.0, 0.3]]), np.array([1])
    probs = learner.cls.density_at(learner.particles.theta, x, a).args["probs"][:, 0]
    below, upto = learner.predictive_cdf(x, a, np.ones(1))
    assert below[0] == pytest.approx(1 - np.exp(learner.particles.log_weights) @ probs)
    assert upto[0] == pytest.approx(1.0)


def test_transforms_are_uniform_when_the_model_is_right(monkeypatch) -> None:
    seen: list[float] = []
    pits = monitoring.Watch._pits

    def spied(self, *args):
        out = pits(self, *args)
        seen.extend(u for one in out for u in one.values())
        return out

    monkeypatch.setattr(monitoring.Watch, "_pits", spied)
    play(ged.GEDUCB(ArmsWorld("Normal").problem), ArmsWorld("Normal"), 150)
    assert kstest(seen[60:], "uniform").pvalue > 1e-3
    linear = len(seen)
    play(ged.GEDUCB(WORLD.problem), WORLD, 150)
    assert kstest(seen[linear + 20 :], "uniform").pvalue > 1e-3


def test_the_transforms_share_no_randomness_with_the_actions(monkeypatch) -> None:
    """numpy pads seeds with zeros: [seed, id] and [seed, id, 0] are one stream, and an action's
    own draw is no coin of its.
    """
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setattr(monitoring, "pit_uniform", lambda *key: seen.append(key) or 0.5)
    play(ged.GEDUCB(WORLD.problem, seed=3), WORLD, 5)
    draws = {np.random.default_rng([3, i]).random() for i in range(5)}
    assert np.random.default_rng([3, 1, 0]).random() in draws  # the trap
    assert len(seen) == 2 * 4
    assert not draws & {np.random.default_rng(key).random() for key in seen}


def test_a_decision_answers_to_the_limit_of_its_own_round() -> None:
    agent = ged.GEDUCB(WORLD.problem)
    agent.ask([0.0])
    agent.set_limit("cost", 0.3)
    agent.ask([0.0])
    memory = memory_of(agent)
    guard = memory.watch.guard

    def cost(number: int) -> Cost:
        entry = Entry(number, np.zeros(1), 1, {"cost": np.asarray(1.0)}, True)
        return monitoring._costs(memory.state, guard, entry)["limit:cost"]

    assert (cost(0)[:2], cost(1)[:2]) == ((1.0, 0.5), (1.0, 0.3))
    limited, _ = guard.update(Told(np.zeros(1), 1, costs={"limit:cost": cost(1)}))
    assert limited.monitors["limit:cost"].limit == 0.3


def test_warm_up_rounds_of_the_paper_do_not_count_against_it() -> None:
    agent = ged.GEDUCB(WORLD.problem, mode="paper")
    play(agent, WORLD, 5)
    agent.ask([0.0])
    # of five decisions, three were warm-up
    assert monitors_of(agent)["limit:cost"].n == 2


def test_rows_that_teach_nothing_are_not_judged() -> None:
    agent = ged.GEDUCB(replace(WORLD.problem, learn_safe=False))
    decision = agent.ask([0.0])
    while decision.action != 0:
        decision = agent.ask([0.0])
    agent.tell(decision.id, 1.0, 0.0)
    agent.ask([0.0])
    monitors = monitors_of(agent)
    assert monitors["calibration:cost"].n == 0
    assert monitors["limit:cost"].n == 1  # its cost is still the policy's


def test_logged_rows_are_judged_but_not_for_their_costs() -> None:
    agent = ged.GEDUCB(WORLD.problem)
    agent.observe(np.zeros((30, 1)), np.ones(30, int), np.ones(30), np.ones(30))
    monitors = monitors_of(agent)
    assert monitors["calibration:cost"].n == 30
    assert monitors["limit:cost"].n == 0
    assert memory_of(agent).watch.logged == 30


def test_a_new_action_is_watched_with_the_old_ones() -> None:
    world = PlainWorld(actions=4)
    agent = ged.GEDUCB(replace(world.problem, n_actions=3))
    agent.ask([0.0])
    assert agent.add_action() == 3
    asked_of(agent)[0] = (np.zeros(1), 3)
    agent.tell(0, 1.0, 0.0)
    agent.ask([0.0])
    assert monitors_of(agent)["calibration:cost"].n == 1


def test_an_alarm_without_a_safe_action_warns_only() -> None:
    world = PlainWorld(truth=(np.full((2, 3), 0.5), np.full((2, 3), 0.5)))
    world.problem = ged.Problem(n_actions=3, utility=world.problem.utility)
    plain = world.outcome
    world.outcome = lambda x, a, rng: (float(plain(x, a, rng)[0] > 2), None)  # always 0
    agent = ged.GEDUCB(world.problem)
    until_alarm(agent, world, 200)
    assert agent.ask([0.0]).certificate.fallback is None


def test_the_safe_action_of_an_alarm_is_not_forced_past_a_mask() -> None:
    world = dearer()
    agent = ged.GEDUCB(world.problem, seed=1)
    until_alarm(agent, world, 120)
    before = agent.state_hash()
    with pytest.raises(errors.InfeasibleError, match="only the safe action 0 may be played"):
        agent.ask([0.0], allowed=[False, True, True])
    assert agent.state_hash() == before


# how often it is wrong ----------------------------------------------------------------------------


def alarms_of_right_models(make, runs: int, cohorts: int, size: int) -> list[list[str]]:
    """The alarms of every run, of agents whose model is right, told in cohorts."""
    raised = []
    for seed in range(runs):
        world = make(seed)
        agent, rng = (
            ged.GEDUCB(world.problem, seed=seed, guard="warn"),
            np.random.default_rng([7, seed]),
        )
        for _ in range(cohorts):
            decisions = agent.ask(np.stack([world.context(rng) for _ in range(size)]))
            agent.tell_many([(d.id, *world.outcome(d.x, d.action, rng)) for d in decisions])
        raised.append([alarm.name for alarm in agent.alarms])
    return raised


def check_right_models(make, runs: int, cohorts: int, size: int) -> None:
    raised = alarms_of_right_models(make, runs, cohorts, size)
    assert sum(bool(names) for names in raised) <= binom.ppf(0.9999, runs, 0.05), raised
    stopped = sum(
        any(name.startswith(("limit:", "refuted:")) for name in names) for names in raised
    )
    assert stopped <= binom.ppf(0.9999, runs, 0.05), raised


WELL_SPECIFIED = [
    ("finite", lambda seed: PlainWorld(seed=seed)),
    ("linear", lambda seed: ArmsWorld("Normal", seed=seed)),
    # the working prior of a model without bounds is N(0, 1) a coefficient: here the truth is thirty
    # times as far
    ("linear, far from its prior", lambda seed: _far(seed)),
]


def _far(seed: int) -> ArmsWorld:
    world = ArmsWorld("Normal", seed=seed, scale=10.0, truth_scale=60.0)
    utility = ged.Utility(world.models[0], ged.mean(-100, 200))
    cost = ged.Constraint(world.models[1], ged.mean(-100, 200), at_most=80.0, safe_value=0.0)
    world.problem = replace(world.problem, utility=utility, constraints=[cost])
    return world


@pytest.mark.filterwarnings(
    "ignore::gedppl.agent.AlarmWarning", "ignore::gedppl.agent.SafeActionWarning"
)
@pytest.mark.parametrize(("name", "make"), WELL_SPECIFIED, ids=[w[0] for w in WELL_SPECIFIED])
def test_right_models_seldom_set_off_an_alarm(name, make) -> None:
    check_right_models(make, runs=10, cohorts=9, size=10)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::gedppl.agent.AlarmWarning", "ignore::gedppl.agent.SafeActionWarning"
)
@pytest.mark.parametrize(("name", "make"), WELL_SPECIFIED, ids=[w[0] for w in WELL_SPECIFIED])
def test_right_models_seldom_set_off_an_alarm_in_many_runs(name, make) -> None:
    check_right_models(make, runs=100, cohorts=50, size=10)


def test_a_prior_far_off_is_wide_in_the_predictive_and_would_cry_wolf_as_it_is(monkeypatch) -> None:
    """The positive control of the wide prior in the linear predictive: an outcome 30 prior sds
    out is no surprise.
    """
    x, a = np.ones((1, 1)), np.zeros(1, int)
    line = LinearPredictor(
        "Normal",
        "identity",
        lambda x, a: x,
        lambda x, a: np.zeros(len(a)),
        lambda x, a: {"scale": np.full(len(a), 0.1)},
    )
    learner = linear_gaussian.LinearGaussianLearner.start(line, 1, delta=0.05, prior_precision=1.0)
    location, sd = learner.predict(x, a)
    assert abs(30.0 - location[0]) < sd[0]
    monkeypatch.setattr(linear_gaussian, "WIDER_PRIOR", 1.0)
    location, sd = linear_gaussian.LinearGaussianLearner.start(
        line, 1, delta=0.05, prior_precision=1.0
    ).predict(x, a)
    assert abs(30.0 - location[0]) > 20 * sd[0]
