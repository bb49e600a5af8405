"""Guards that no other test would miss: each is tried from both sides."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

import numpy as np
import pytest

import gedppl as ged
from gedppl.ged_ucb import costs
from gedppl.journal import Journal
from gedppl.journal import files as journal_files
from gedppl.learning import Where, ascent, learner_for
from tests.plain_worlds import PlainWorld
from tests.test_declared import bounds, hand_problem
from tests.test_group_rows import HIDDEN, K, arm_rows

# the safe action's upper end by the theorem of optimism by sets -----------------------------------


@pytest.mark.parametrize("proved", [True, False])
def test_only_a_proved_bound_may_lower_the_safe_actions_declared_value(proved, monkeypatch) -> None:
    """A search may end below the truth; a declared value that is too high is still a bound."""
    world = PlainWorld(actions=3)
    agent = ged.GEDUCB(world.problem, mode="theory", exploration="sets", guard=None)
    agent.ask([0.0])
    state = agent._current(None)
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
            return len(journal_files.fetch(journal._connection, 1, 10, Lock()))

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
