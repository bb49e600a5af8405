"""Finite classes: a miss passes, a class without the truth is noticed, and draws guarantee
nothing.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.learning.finite import FiniteLearner
from gedppl.selection import select_policy
from tests.plain_worlds import PlainTables, PlainWorld, play, take_out_the_betting_monitors

AT_MOST = 0.4


def lost_and_found() -> FiniteLearner:
    """The truth, member 0, is outside the set for a while and comes back."""
    learner = FiniteLearner.start(
        PlainTables(np.array([[[0.5, 0.5]], [[0.8, 0.8]], [[0.9, 0.9]]])), delta=0.05
    )
    x, a = np.zeros((1, 1)), np.zeros(1, np.int64)
    for y in [1.0] * 12 + [0.0, 1.0] * 60:
        learner = learner.absorb(x, a, np.array([y])).refit()
    return learner


def test_a_miss_is_not_made_permanent() -> None:
    learner = lost_and_found()
    assert learner.plausible[0]
    assert not learner.alive[0]  # it was outside once: an intersection would have lost it for good
    assert not learner.plausible[2]
    assert learner.contains(np.array([0])).all()


def test_a_set_that_every_member_has_left_is_reported_as_empty() -> None:
    learner = lost_and_found()
    assert not learner.alive.any()  # members 1 and 2 were outside later
    found = learner.bounds(ged.mean(0, 1), np.zeros((1, 1)), 2)
    assert found.empty
    assert not found.guaranteed
    assert "does not hold the truth" in learner.status
    # while one member was never out, nothing of the kind is said
    fresh = (
        FiniteLearner.start(learner.cls, delta=0.05)
        .absorb(np.zeros((1, 1)), np.zeros(1, np.int64), np.ones(1))
        .refit()
    )
    assert not fresh.bounds(ged.mean(0, 1), np.zeros((1, 1)), 2).empty


def neither_nor() -> PlainWorld:
    """Costs that first speak against one member and then against the other."""
    world = PlainWorld(contexts=1, actions=2, members=2)
    costs = np.array([[[0.1, 0.2]], [[0.1, 0.8]]])
    world.problem = ged.Problem(
        2,
        ged.Utility(PlainTables(np.array([[[0.2, 0.9]]])), ged.mean(0, 1)),
        [ged.Constraint(PlainTables(costs), ged.mean(0, 1), at_most=0.85, safe_value=0.1)],
        safe_action=0,
    )
    rounds = iter(range(10_000))
    world.outcome = lambda x, action, rng: (1.0, float(bool(action) and next(rounds) < 15))
    return world


@pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")
def test_an_empty_class_raises_an_alarm_and_plays_safe_until_acknowledged(
    tmp_path, monkeypatch
) -> None:
    from gedppl.agent import AlarmWarning

    take_out_the_betting_monitors(monkeypatch)
    world = neither_nor()
    agent = ged.GEDUCB(world.problem, journal=tmp_path / "j.db")
    with pytest.warns(
        AlarmWarning,
        match=r"no parameter of the model of 'cost' is left.*until "
        r"acknowledge\('empty:cost'\)",
    ):
        play(agent, world, 120)
    decision = agent.ask([0.0])
    assert [alarm.name for alarm in agent.alarms] == ["empty:cost"]
    assert decision.policy.tolist() == [1.0, 0.0]
    assert "no parameter of the model of 'cost' is left" in decision.certificate.fallback
    # the safe action rests on its declared value, not on the class
    assert decision.certificate.guaranteed
    agent.journal.close()
    with ged.resume(tmp_path / "j.db", world.problem) as back:
        assert back.state_hash() == agent.state_hash()
        back.acknowledge("empty:cost")
        decision = back.ask([0.0])
        assert decision.certificate.fallback is None
        assert not decision.certificate.guaranteed
        assert "no parameter of the model" in decision.certificate.constraints[0].note


# intersect, or not --------------------------------------------------------------------------------


def one_run(seed: int, rounds: int, intersect: bool, members: int = 16) -> tuple[float, int, int]:
    """Regret, infeasible rounds and rounds without the truth; optimism from the utility's own
    set, refits in every round.
    """
    world = PlainWorld(contexts=2, actions=4, members=members, seed=seed, at_most=AT_MOST)
    tables = world.problem.utility.model.tables, world.problem.constraints[0].model.tables
    best = [select_policy(u, c, AT_MOST, safe_action=0) @ u for u, c in zip(*world.truth)]
    rng = np.random.default_rng([5, seed])
    totals, sets = np.zeros((2, members)), np.ones((2, members), bool)
    policies: dict[tuple[int, bytes], np.ndarray] = {}
    regret, infeasible, lost = 0.0, 0, 0
    for _ in range(rounds):
        i, u = int(rng.integers(2)), rng.random(3)
        key = i, sets.tobytes()
        if key not in policies:
            policies[key] = _optimistic(*(table[kept][:, i] for table, kept in zip(tables, sets)))
        policy = policies[key]
        a = min(int(np.searchsorted(np.cumsum(policy), u[2])), 3)
        infeasible += policy @ world.truth[1][i] > AT_MOST + 1e-9
        regret += best[i] - policy @ world.truth[0][i]
        for k in range(2):
            p = tables[k][:, i, a]
            totals[k] += np.log(p if u[k] < world.truth[k][i, a] else 1 - p)
        evidence = np.logaddexp.reduce(totals, axis=1) - np.log(members)
        now = totals >= (evidence + np.log(0.05))[:, None]
        sets = sets & now if intersect else now
        lost += not sets[1, 0]
    return regret, infeasible, lost


def _optimistic(utilities: np.ndarray, costs: np.ndarray) -> np.ndarray:
    upper, lower = (
        (costs.max(axis=0), costs.min(axis=0)) if len(costs) else (np.ones(4), np.zeros(4))
    )
    upper[0] = lower[0] = 0.1
    best = utilities.max(axis=0) if len(utilities) else np.ones(4)
    return select_policy(
        best + 0.1 * (upper - lower) / (AT_MOST - 0.1), upper, AT_MOST, safe_action=0
    )


def on_and_off(seeds, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `one_run`, intersected and not; misses last in the first and pass in the second."""
    on, off = (
        np.array([one_run(seed, rounds, flag) for seed in seeds], float) for flag in (True, False)
    )
    for name, runs in (("intersected", on), ("not intersected", off)):
        print(
            f"{name}: regret {runs[:, 0].mean():.2f}, infeasible rounds {runs[:, 1].sum():g}, "
            f"without truth {runs[:, 2].sum():g}"
        )
    assert off[:, 1].sum() <= 0.2 * on[:, 1].sum()
    assert off[:, 2].sum() <= 0.2 * on[:, 2].sum()
    return on, off


def test_intersecting_sets_makes_misses_last() -> None:
    on, _ = on_and_off((7, 90, 92), 300)  # of the first 160 runs those in which the truth is missed
    assert (on[:, 2] > 200).all()


@pytest.mark.slow
def test_intersecting_sets_makes_misses_last_and_wins_no_regret() -> None:
    on, off = on_and_off(range(400), 600)
    gap = off[:, 0] - on[:, 0]
    assert gap.mean() <= 2 * gap.std() / np.sqrt(len(gap))


# draws --------------------------------------------------------------------------------------------


def coin(x, a, y=None):
    p = numpyro.sample("p", dist.Beta(2 * jnp.ones(2), 2).to_event(1))
    numpyro.sample("y", dist.Bernoulli(p[a]), obs=y)


ROWS = np.zeros((1, 1)), np.zeros(1, np.int64)


def certified(members) -> bool:
    problem = ged.Problem(
        2,
        ged.Utility(members, ged.mean(0, 1)),
        [ged.Constraint(members, ged.mean(0, 1), at_most=0.9, safe_value=0.8)],
        safe_action=0,
    )
    agent = ged.GEDUCB(problem)
    agent.observe(np.zeros((2, 1)), [0, 1], [1.0, 0.0], [0.0, 1.0])
    return agent.ask([0.0]).certificate


def test_a_class_of_draws_guarantees_nothing() -> None:
    chosen = [{"p": [0.2, 0.6]}, {"p": [0.5, 0.5]}]
    assert certified(ged.finite_class(coin, chosen)).guaranteed
    drawn = certified(ged.finite_class(coin, chosen, sampled=True))
    assert not drawn.guaranteed
    assert "the members are draws" in drawn.constraints[0].note
    assert "approximation" in drawn.constraints[0].claim


def test_draws_from_the_prior_are_known_as_draws() -> None:
    cls = ged.density_class(coin, example=ROWS)
    draws = cls.draw_prior(20, seed=0)
    one_by_one = [cls.unflatten(theta) for theta in draws]
    together = cls.unflatten(draws)
    cut = [{"p": p} for p in together["p"]]
    mixed = [{"p": [0.2, 0.6]}, one_by_one[3]]
    for settings in (one_by_one, cut, mixed, [dict(s) for s in one_by_one]):
        assert ged.finite_class(coin, settings).sampled
    assert not certified(ged.finite_class(coin, one_by_one)).guaranteed
    assert "draws" in repr(ged.finite_class(coin, one_by_one))
    # the control: the same numbers, chosen
    assert not ged.finite_class(
        coin, [{"p": np.asarray(s["p"]).tolist()} for s in one_by_one]
    ).sampled
    with pytest.raises(
        errors.ModelError, match="sampled=False, but these settings were drawn by draw_prior"
    ):
        ged.finite_class(coin, one_by_one, sampled=False)


def test_a_member_without_a_value_refutes_nothing() -> None:
    class Holes(PlainTables):
        def values(self, functional, theta, x, a):
            out = 3.0 + super().values(functional, theta, x, a)
            out[0] = np.nan
            return out

    learner = FiniteLearner.start(Holes(np.full((2, 1, 2), 0.5)), delta=0.05)
    found = learner.bounds(ged.mean(0, 1), np.zeros((1, 1)), 2)
    assert (found.free_lower == -np.inf).all()
    assert (found.free_upper == np.inf).all()
    assert (found.upper == 1.0).all()
    alone = FiniteLearner.start(PlainTables(np.full((2, 1, 2), 0.5)), delta=0.05).bounds(
        ged.mean(0, 0.25), np.zeros((1, 1)), 2
    )
    assert (alone.free_lower == 0.5).all()  # the control: beyond the range, and said so
    assert (alone.lower == 0.25).all()


# members by formula -------------------------------------------------------------------------------


def table(x, a, y=None):
    p = numpyro.param("p", jnp.full((3, 2), 0.5), constraint=dist.constraints.unit_interval)
    numpyro.sample("y", dist.Bernoulli(p[x[:, 0].astype(int), a]), obs=y)


def counts(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(w[a] + 0.3 * x[:, 0])), obs=y)


def curved(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=w[a] * w[0] + x[:, 0]), obs=y)


@pytest.mark.parametrize("model", [table, counts, curved], ids=lambda model: model.__name__)
def test_members_answer_as_their_program_does(model) -> None:
    """By table, by linear predictor, and by the program alone: where chances near one are made of
    logits they are rounded to one, and NumPy's formula would give the other outcome none.
    """
    rng = np.random.default_rng(0)
    name, shape = ("p", (3, 2)) if model is table else ("w", (2,))
    low, high = (0.05, 0.95) if model is table else (-6.0, 6.0)
    settings = [{name: rng.uniform(low, high, shape)} for _ in range(7)]
    if model is curved:
        settings[0] = {name: np.array([7.0, 7.0])}  # a logit of 49 and more
    cls, program = ged.finite_class(model, settings), ged.density_class(model)
    x, a = np.arange(6.0)[:, None] % 3, np.arange(6) % 2
    y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    cls.trace(x, a)
    program.trace(x, a)
    theta = np.stack([program.flatten(params) for params in settings])
    logs = cls.log_likelihood(cls.every, x, a, y)
    np.testing.assert_allclose(logs, program.log_likelihood(theta, x, a, y), rtol=1e-6, atol=1e-9)
    assert np.isfinite(logs).all()
    for functional in (ged.mean(0, 1), ged.variance(1), ged.probability(above=0.5)):
        np.testing.assert_allclose(
            cls.values(functional, cls.every, x, a),
            program.values(functional, theta, x, a),
            rtol=1e-6,
            atol=1e-12,
        )
    if model is table:
        with pytest.raises(errors.ContextRangeError, match="out of range"):
            cls.values(ged.mean(0, 1), cls.every, np.full((1, 1), 3.0), np.zeros(1, int))
    with pytest.raises(errors.OutOfSupportError, match=r"outcome 0.5 in row 2"):
        cls.check_outcomes(x, a, np.where(np.arange(6) == 2, 0.5, y))
