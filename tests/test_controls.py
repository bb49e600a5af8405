"""Guards that no other test would miss: each is tried from both sides."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

import numpy as np
import pytest

import gedppl as ged
from gedppl.errors import NotADensityError, OutcomeUsedError
from gedppl.ged_ucb import costs
from gedppl.guard import CertifiedMonitor, outcomes
from gedppl.journal import Journal
from gedppl.journal import files as journal_files
from gedppl.learning import Where, ascent, learner_for
from gedppl.learning import learner as learner_side
from gedppl.programs import identity
from gedppl.selection import solvers
from tests.crashes import database
from tests.optional_pyro import needs_pyro, pd, pyro
from tests.plain_worlds import PlainWorld, state_of
from tests.test_bad_likelihoods import (
    test_a_second_peak_that_is_too_narrow_to_see_is_no_missing_mass as two_peaks,
)
from tests.test_certified_values import unknown_scale_problem
from tests.test_declared import bounds, hand_problem
from tests.test_group_rows import HIDDEN, K, arm_rows
from tests.test_together import LIMIT, MOST_TOGETHER, drawn, gained

# the safe action's upper end by the theorem of optimism by sets -----------------------------------


@pytest.mark.parametrize("proved", [True, False])
def test_only_a_proved_bound_may_lower_the_safe_actions_declared_value(proved, monkeypatch) -> None:
    """A search may end below the truth; a declared value that is too high is still a bound."""
    world = PlainWorld(actions=3)
    agent = ged.GEDUCB(world.problem, mode="theory", exploration="sets", guard=None)
    agent.ask([0.0])
    state = state_of(agent, None)
    learner, x = state.learners["cost"], np.full((1, 1), 0.5)
    found = learner.bounds(world.problem.constraints[0].functional, x, 3)
    low = replace(found, upper=np.zeros_like(found.upper), guaranteed=proved)
    monkeypatch.setattr(type(learner), "bounds", lambda *_: low)
    _, upper, _ = costs.todays_costs(state, x)
    declared = float(world.problem.safe_values(x)[0, 0])
    assert declared > 0
    assert upper[0, 0, 0] == (0.0 if proved else declared)


# reading a journal --------------------------------------------------------------------------------


def test_few_bytes_of_a_journal_are_read_at_once(tmp_path, monkeypatch) -> None:
    """256 records of 16 MB each would be 4 GB."""
    with Journal.create(tmp_path / "j.db", {"problem": "p"}) as journal:
        for i in range(9):
            journal.append("outcome", {"i": i, "y": np.zeros(1000)})
        at_once = []
        plain = journal_files.checked

        def fetched() -> int:
            return len(journal_files.fetch(database(journal), 1, 10, Lock()))

        assert fetched() == 9  # the control: they are small beside the limit
        monkeypatch.setattr(journal_files, "_CHUNK_BYTES", 20_000)
        assert fetched() == 3  # the third is the first beyond it
        monkeypatch.setattr(
            journal_files, "checked", lambda *args: at_once.append(0) or plain(*args)
        )
        assert [r.payload["i"] for r in journal.records("outcome")] == list(range(9))
        assert len(at_once) >= 9


# a group's set answers for its own actions --------------------------------------------------------


def test_a_groups_set_is_asked_about_its_own_actions_only(monkeypatch) -> None:
    _, x, a, y = arm_rows(80, 0, HIDDEN)
    where = Where(np.ones((1, 3)), K, (0, 1, 2, 3))
    learner = learner_for(HIDDEN, delta=0.05, where=where).absorb(x, a, y).refit()
    own = {id(s): part.group.actions for part in learner.own for s in part.sets}
    assert own
    asked: list[tuple[tuple[int, ...] | None, list[int]]] = []

    def narrow(learner, s, functional, x, a):
        """Groups promise more than all rows do, whatever the action."""
        half = 0.1 if id(s) in own else 1.0
        return ascent.Promise(
            np.zeros(len(a)), np.full(len(a), half), np.zeros((len(a), HIDDEN.dim))
        )

    def over(learner, functional, s, promise, x, a):
        asked.append((own.get(id(s)), a.tolist()))
        nothing = np.zeros(len(a))
        return nothing, nothing, np.zeros((len(a), HIDDEN.dim)), np.zeros(2, np.int64)

    monkeypatch.setattr(ascent, "_promise", narrow)
    monkeypatch.setattr(ascent, "_over", over)
    ascent.by_ascent(learner, ged.mean(0, 1), np.ones((K, 3)), np.arange(K))
    assert any(group is not None for group, _ in asked)
    for group, actions in asked:
        assert group is None or set(actions) <= set(group)


# the room under which a safe value is not refuted -------------------------------------------------


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e12])
def test_a_safe_value_is_refuted_beyond_a_billionth_of_its_room_and_not_before(unit) -> None:
    problem = hand_problem()
    c = replace(
        problem.constraints[0], functional=ged.mean(0, unit), at_most=0.5 * unit, safe_value=0.0
    )
    problem = replace(problem, constraints=[c])

    def names(excess: float) -> list[str]:
        found = bounds(np.array([excess, 0.2]) * 0.5 * unit, np.array([0.3, 0.4]) * unit)
        return [r.name for r in costs.refuted(problem, np.zeros((1, 1)), [found])]

    assert names(0.9 * costs.NEGLIGIBLE) == []
    assert names(1.1 * costs.NEGLIGIBLE) == ["safe_value:cost"]
    # and of a value that is not zero, beyond rounding of the value itself
    exact = replace(c, safe_value=0.4 * unit, at_most=0.5 * unit)
    problem = replace(problem, constraints=[exact])
    assert names(0.8 * (1 + 0.5e-9)) == []
    assert names(0.8 * (1 + 3e-9)) == ["safe_value:cost"]


# particles stay a probability ---------------------------------------------------------------------


def test_weights_of_particles_add_up_to_one(monkeypatch) -> None:
    """A predictive of more than one would shrink the set: the share of the prior's draws is taken
    from the others, not added.
    """
    for share in (0.0, learner_side.PRIOR_SHARE, 0.9):
        monkeypatch.setattr(learner_side, "PRIOR_SHARE", share)
        for n in (0, 1, 10, 1000):
            with np.errstate(divide="ignore"):
                weights = np.exp(learner_side._mostly_near(n))
            assert weights.sum() == pytest.approx(1.0)
            wanted = min(share, learner_side.PRIOR_ROWS / max(n, 1))
            assert weights[-learner_side.FROM_PRIOR :].sum() == pytest.approx(wanted)


# a mean watched by its sign -----------------------------------------------------------------------


def test_means_of_unknown_scale_are_watched_only_where_noise_is_symmetric(monkeypatch) -> None:
    c = unknown_scale_problem("mean").constraints[0]
    c.model.trace(np.zeros((1, 2)), np.zeros(1, int))
    z, x = np.random.default_rng(0).normal(0.7, 1.0, 400), np.zeros(2)

    def alarms(certified: float) -> bool:
        costs = [outcomes.certified_cost(c, one, x, 1, outcomes.Proved(certified), 2) for one in z]
        monitor = CertifiedMonitor.create(limit=0.5, low=0.0, high=1.0, delta=0.05)
        for cost in costs:
            monitor = monitor.update(cost.value, cost.limit, cost.floor)
        return bool(monitor.alarmed)

    assert not alarms(0.7)
    assert alarms(0.2)
    # of noise that leans to one side half the outcomes need not lie above their mean
    monkeypatch.setattr(outcomes, "SYMMETRIC", ())
    assert outcomes.certified_cost(c, 1.0, x, 1, outcomes.Proved(0.2), 2) is None


# a second peak ------------------------------------------------------------------------------------


def test_without_the_look_for_a_second_peak_a_density_would_be_refused(monkeypatch) -> None:
    two_peaks()
    monkeypatch.setattr(identity, "_one_peak", lambda logs: True)
    with pytest.raises(NotADensityError, match=r"of 0\.5 instead of 1"):
        two_peaks()


# a branch on y that leaves no trace in a graph ----------------------------------------------------


@needs_pyro
def test_without_other_outcomes_a_branch_on_y_would_be_taken(monkeypatch) -> None:
    from gedppl.programs import pyro as pyro_side

    def model(x, a, y=None):
        w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([3]).to_event(1))
        twice = 2.0 if y is not None and float(y.max()) > 5 else 1.0
        pyro.sample("y", pd.Normal(twice * w[a], 0.3), obs=y)

    rows = np.zeros((2, 1)), np.array([0, 1])
    with pytest.raises(OutcomeUsedError):
        ged.density_class(model, example=rows)
    monkeypatch.setattr(pyro_side, "OTHER_OUTCOMES", ())
    assert ged.density_class(model, example=rows).traced


# the policy that is found together with its worst case --------------------------------------------


def test_without_the_look_at_its_worst_case_a_policy_would_exceed_the_limit(monkeypatch) -> None:
    """Where many actions share a parameter only promising ones are tried, and what comes out of
    the equations is held against the limit, whichever were.
    """
    score, shared = drawn(200, MOST_TOGETHER + 5, 1)
    assert shared.worst(gained(score, shared)).max() <= LIMIT + 1e-12
    found = solvers._on_the_limit

    def off(score, together, limit, usable):
        return found(score, together, 1.2 * limit, usable)  # the equations solved wrongly

    monkeypatch.setattr(solvers, "_on_the_limit", off)
    assert shared.worst(gained(score, shared)).max() <= LIMIT + 1e-12
    monkeypatch.setattr(solvers, "ROUNDING", np.inf)
    assert shared.worst(gained(score, shared)).max() > LIMIT + 1e-3
