"""A journal as the Open Bandit Pipeline's bandit feedback."""

from __future__ import annotations

import numpy as np
import pytest

import gedppl as ged
from gedppl.errors import DataError
from gedppl.journal.export import to_open_bandit
from gedppl.journal.format import Record
from tests.plain_worlds import PlainWorld, play, told_of

WORLD = PlainWorld()


def test_every_decision_that_was_told_is_a_row(tmp_path) -> None:
    with ged.GEDUCB(WORLD.problem, seed=2, journal=tmp_path / "j.db") as agent:
        with pytest.raises(DataError, match="no decision in this journal was told its utility"):
            agent.journal.to_open_bandit()
        play(agent, WORLD, 20)
        late = agent.ask([1.0])
        agent.tell(late.id, z=0.0)  # its utility is never told
        told = {i: float(told_of(agent)[i]["utility"]) for i in range(20)}
        agent.amend(3, y=1.0 - told[3])
        feedback = agent.journal.to_open_bandit()
        decisions = [record.payload for record in agent.journal.records("decision")][:20]
    assert set(feedback) == {
        "n_rounds",
        "n_actions",
        "context",
        "action",
        "position",
        "reward",
        "pscore",
    }
    assert (feedback["n_rounds"], feedback["n_actions"], feedback["position"]) == (20, 3, None)
    assert feedback["context"].shape == (20, 1)
    np.testing.assert_array_equal(feedback["context"], [d["x"] for d in decisions])
    np.testing.assert_array_equal(feedback["action"], [d["action"] for d in decisions])
    np.testing.assert_array_equal(feedback["pscore"], [d["policy"][d["action"]] for d in decisions])
    assert (feedback["pscore"] > 0).all()
    np.testing.assert_array_equal(
        feedback["reward"],
        [*(told[i] for i in range(3)), 1.0 - told[3], *(told[i] for i in range(4, 20))],
    )


def decision(**changed) -> Record:
    payload = {
        "id": 0,
        "x": np.zeros(2),
        "policy": np.array([0.25, 0.75]),
        "action": 1,
        "propensity": 0.75,
    }
    return Record(1, 0, "decision", payload | changed)


def test_of_revealed_outcomes_the_reward_is_that_of_the_action_played() -> None:
    outcome = Record(2, 0, "outcome", {"id": 0, "y": np.array([5.0, 7.0]), "z": {}})
    assert to_open_bandit([decision(), outcome])["reward"].tolist() == [7.0]


def test_a_reward_is_a_number() -> None:
    outcome = Record(2, 0, "outcome", {"id": 0, "y": np.zeros(3), "z": {}})
    with pytest.raises(DataError, match=r"a utility of shape \(3,\)"):
        to_open_bandit([decision(), outcome])
