"""Resuming: the same agent again, bit for bit, from a snapshot or from the start; and every
journal that must be refused.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.agent import keeper, recorder
from gedppl.journal import Journal
from gedppl.journal.snapshot import pack
from gedppl.learning.storing import Reader
from gedppl.study.cli.tables import journal_table, journal_text
from tests.plain_worlds import ArmsWorld, PlainWorld, play
from tests.problems import LinearWorld, TableWorld

WORLD = PlainWorld()


def copied(agent: ged.GEDUCB, folder: Path) -> Path:
    """The files of a journal in use, as a crash would leave them."""
    folder.mkdir(exist_ok=True)
    source = agent.journal.path
    for file in source.parent.iterdir():
        if file.name.startswith(source.name) and not file.name.endswith("-shm"):
            shutil.copy(file, folder / file.name)
    return folder / source.name


def same(agent: ged.GEDUCB, problem: ged.Problem, folder: Path, x) -> ged.GEDUCB:
    """Resume a copy; it must be in the same state and have the same next policy, to the last
    bit.
    """
    other = ged.resume(copied(agent, folder), problem)
    assert other.state_hash() == agent.state_hash()
    assert other.policy(x).tobytes() == agent.policy(x).tobytes()
    assert other.rounds == agent.rounds
    assert other.resumed.exact
    other.journal.close()
    return other


# everything that may happen to an agent with two contexts and three actions, in one script
SCRIPT = [
    (
        "logged rows",
        lambda g: g.observe([[0.0], [1.0], [1.0]], [0, 1, 2], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]),
    ),
    ("a decision", lambda g: g.ask([0.0])),
    ("a cohort", lambda g: g.ask([[0.0], [1.0], [0.0], [1.0]])),
    ("feedback out of order", lambda g: g.tell_many([(3, 1.0, 0.0), (1, 0.0, 1.0)])),
    ("part of an outcome", lambda g: g.tell(0, 1.0)),
    ("a mask", lambda g: g.ask([1.0], allowed=[True, False, True])),
    ("the other part, a round later", lambda g: g.tell(0, z=0.0)),
    ("a duplicate", lambda g: g.tell(0, 1.0, 0.0)),
    ("nothing observed", lambda g: g.tell(2)),
    ("another limit", lambda g: g.set_limit("cost", 0.4)),
    ("a decision under it", lambda g: g.ask([1.0])),
    ("an action retired", lambda g: g.retire_action(2)),
    ("a decision without it", lambda g: g.ask([0.0])),
    ("an action restored", lambda g: g.restore_action(2)),
    ("an outcome", lambda g: g.tell(5, 0.0, 1.0)),
    ("a correction", lambda g: g.amend(3, y=0.0)),
    ("a decision after it", lambda g: g.ask([1.0])),
    ("a correction of what is not learned yet", lambda g: (g.tell(6, 1.0, 1.0), g.amend(6, z=0.0))),
    ("a second correction", lambda g: g.amend(3, y=1.0, z=1.0)),
    ("the last decision", lambda g: g.ask([0.0])),
]


@pytest.mark.parametrize("snapshots", [False, True])
def test_after_every_step_the_resumed_agent_is_the_same(tmp_path, snapshots) -> None:
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=tmp_path / "j.db")
    free = ged.GEDUCB(WORLD.problem, seed=2)
    for i, (what, step) in enumerate(SCRIPT):
        step(agent), step(free)
        assert agent.state_hash() == free.state_hash(), what
        if snapshots and i % 4 == 2:
            assert agent.save()
        other = same(agent, WORLD.problem, tmp_path / f"copy{i}", [1.0])
        # a correction makes older snapshots useless, and the next decision takes one by itself
        if 2 <= i < 15:
            assert (other.resumed.snapshot is not None) == snapshots, what
    agent.close()
    back = ged.resume(tmp_path / "j.db", WORLD.problem)
    assert back.state_hash() == free.state_hash()
    assert back.resumed.replayed == 0
    assert "bit for bit" in str(back.resumed)
    play(back, WORLD, 5), play(free, WORLD, 5)
    assert back.state_hash() == free.state_hash()


@pytest.mark.parametrize(
    ("world", "rounds"),
    [
        (ArmsWorld("Normal"), 25),
        (ArmsWorld("Bernoulli"), 3),
        (ArmsWorld("Bernoulli", exact=False, actions=2), 2),
    ],
    ids=["linear-Gaussian", "score equations", "ascent"],
)
def test_every_learner_comes_back_from_a_snapshot(tmp_path, world, rounds) -> None:
    agent = ged.GEDUCB(world.problem, seed=2, journal=tmp_path / "j.db")
    play(agent, world, rounds)
    x = world.context(np.random.default_rng(9))
    same(agent, world.problem, tmp_path / "replayed", x)
    assert agent.save()
    other = same(agent, world.problem, tmp_path / "restored", x)
    assert other.resumed.replayed == 0
    decision = agent.ask(x)
    agent.tell(decision.id, *world.outcome(x, decision.action, np.random.default_rng(1)))
    agent.ask(x)
    same(agent, world.problem, tmp_path / "both", x)


@pytest.mark.parametrize(
    "world", [TableWorld(2, 3, 6, seed=4), LinearWorld(3, 2, 0.1, seed=0)], ids=["table", "linear"]
)
def test_programs_come_back_too(tmp_path, world) -> None:
    agent = ged.GEDUCB(world.problem(), seed=2, journal=tmp_path / "j.db")
    play(agent, world, 6)
    x = world.context(np.random.default_rng(9))
    same(agent, world.problem(), tmp_path / "replayed", x)
    agent.save()
    same(agent, world.problem(), tmp_path / "restored", x)


def test_a_divergence_ball_around_a_program_replays(tmp_path) -> None:
    """It holds a function that no snapshot can: resuming is slower, and no less right."""
    world = ArmsWorld("Bernoulli", actions=2)
    radius = ged.radius.hellinger_ball(ged.radius.bracketing(2.0, 2.0))
    agent = ged.GEDUCB(world.problem, confidence=radius, journal=tmp_path / "j.db", guard=None)
    play(agent, world, 2)
    assert not agent.save()
    expected = agent.state_hash()
    agent.close()
    with pytest.raises(errors.JournalMismatchError, match="confidence was"):
        ged.resume(tmp_path / "j.db", world.problem)
    back = ged.resume(tmp_path / "j.db", world.problem, confidence=radius)
    assert back.state_hash() == expected
    assert back.resumed.snapshot is None


def test_snapshots_come_by_themselves(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(keeper, "SNAPSHOT_EVERY", 10)
    agent = ged.GEDUCB(WORLD.problem, journal=tmp_path / "j.db")
    play(agent, WORLD, 25)
    assert sum(1 for _ in agent.journal.records("snapshot")) == 2
    other = same(agent, WORLD.problem, tmp_path / "copy", [0.0])
    assert other.resumed.replayed == 1 + 2 * 5  # the outcome of decision 19, then five rounds


# what must be refused -----------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path) -> Path:
    with ged.GEDUCB(WORLD.problem, seed=2, journal=tmp_path / "j.db") as agent:
        play(agent, WORLD, 5)
    return tmp_path / "j.db"


def test_a_path_in_use_is_not_begun_anew(closed) -> None:
    with pytest.raises(errors.JournalExistsError, match=r"use ged\.resume"):
        ged.GEDUCB(WORLD.problem, journal=closed)


def test_no_journal(tmp_path) -> None:
    with pytest.raises(errors.JournalNotFoundError, match="no journal"):
        ged.resume(tmp_path / "none.db", WORLD.problem)


def test_another_problem(closed) -> None:
    with pytest.raises(errors.JournalMismatchError, match="problem was"):
        ged.resume(closed, PlainWorld(at_most=0.45).problem)
    with pytest.raises(errors.JournalMismatchError, match=r"models\.utility was"):
        ged.resume(closed, PlainWorld(seed=5).problem)


def test_numbers_inside_a_model_count() -> None:
    """Same source, another noise scale or table: `Problem.fingerprint` alone would not tell them
    apart.
    """
    from gedppl.problem.checks import digest

    worlds = [TableWorld(2, 3, 6, seed=s).problem().utility.model for s in (4, 4, 5)]
    assert digest(worlds[0]) == digest(worlds[1]) != digest(worlds[2])
    scales = [LinearWorld(3, 2, s, seed=0).problem().utility.model for s in (0.1, 0.1, 0.2)]
    assert digest(scales[0]) == digest(scales[1]) != digest(scales[2])


def test_one_writer_only(closed) -> None:
    first = ged.resume(closed, WORLD.problem)
    with pytest.raises(errors.JournalLockedError, match="being written by another"):
        ged.resume(closed, WORLD.problem)
    first.close()
    ged.resume(closed, WORLD.problem).close()


def test_a_newer_format(closed) -> None:
    db = sqlite3.connect(closed)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(errors.JournalVersionError, match="format 99"):
        ged.resume(closed, WORLD.problem)


def test_a_damaged_record(closed) -> None:
    db = sqlite3.connect(closed)
    db.execute(
        "UPDATE records SET payload = replace(payload, '\"action\":', '\"action\": ') WHERE "
        "sequence = 1"
    )
    db.commit()
    db.close()
    with pytest.raises(errors.JournalCorruptError, match="record 1 does not match its hash"):
        ged.resume(closed, WORLD.problem)


def test_a_journal_that_no_agent_began(tmp_path) -> None:
    Journal.create(tmp_path / "j.db", {"problem": "something else"}).close()
    with pytest.raises(errors.JournalMismatchError, match="not begun by an agent"):
        ged.resume(tmp_path / "j.db", WORLD.problem)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("delta", 7.0, "out of range"),
        ("mode", "fast", "out of range"),
        ("seed", 0.5, "whole number"),
        ("growth", "x", "no settings"),
    ],
)
def test_settings_that_are_none(tmp_path, name, value, match) -> None:
    frozen = recorder.protocol(WORLD.problem, ged.GEDUCB(WORLD.problem).settings, None)
    frozen["settings"][name] = value
    Journal.create(tmp_path / "j.db", frozen).close()
    with pytest.raises(errors.JournalMismatchError, match=match):
        ged.resume(tmp_path / "j.db", WORLD.problem)


TABLE = np.array([1.0, 2.0])


def looked_up(x: np.ndarray) -> np.ndarray:
    return TABLE[0] * x


def test_a_table_that_a_model_reads_from_its_module_counts(monkeypatch) -> None:
    from gedppl.problem.checks import digest

    before = digest(looked_up)
    monkeypatch.setitem(globals(), "TABLE", np.array([1.5, 2.0]))
    assert digest(looked_up) != before
    monkeypatch.undo()
    assert digest(looked_up) == before


SETTINGS = {"slope": 1.0}


def helping(x: np.ndarray) -> np.ndarray:
    return SETTINGS["slope"] * x


def helped(x: np.ndarray) -> np.ndarray:
    return helping(x)


def test_helpers_and_settings_that_a_model_reads_from_its_module_count(monkeypatch) -> None:
    from gedppl.problem import checks

    before = checks.digest(helped)
    with monkeypatch.context() as patch:
        patch.setitem(SETTINGS, "slope", 2.0)
        assert checks.digest(helped) != before
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "helping", looked_up)
        assert checks.digest(helped) != before
    assert checks.digest(helped) == before
    monkeypatch.setattr(checks, "_is_read", lambda read, by: np.isscalar(read))  # the control
    alone = checks.digest(helped)
    monkeypatch.setitem(SETTINGS, "slope", 2.0)
    assert checks.digest(helped) == alone


def by_row(x: np.ndarray) -> Any:
    return jax.vmap(lambda row: SETTINGS["slope"] * TABLE[0] * row)(x)


class Sloped:
    """A model that is an object; what it remembers is its own affair."""

    def __init__(self, slope: float) -> None:
        self.slope, self._calls, self.cache = slope, 0, {}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.slope * x


def test_names_that_only_an_inner_function_reads_count(monkeypatch) -> None:
    from gedppl.problem import checks

    before = checks.digest(by_row)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "TABLE", np.array([1.5, 2.0]))
        assert checks.digest(by_row) != before
        # the control: without the functions inside it the model reads nothing
        patch.setattr(checks, "_names", lambda code: set(code.co_names))
        blind = checks.digest(by_row)
        patch.setitem(globals(), "TABLE", np.array([7.0, 2.0]))
        assert checks.digest(by_row) == blind
    assert checks.digest(by_row) == before


def compiled(slope: float) -> Any:
    return jax.jit(lambda x: slope * x)


def line(x: np.ndarray, slope: float) -> np.ndarray:
    return slope * x


@pytest.mark.parametrize(
    "made",
    [
        Sloped,
        lambda slope: Sloped(slope).__call__,
        lambda slope: partial(line, slope=slope),
        compiled,
    ],
    ids=["object", "method", "partial", "compiled"],
)
def test_numbers_that_a_model_carries_with_it_count(made) -> None:
    from gedppl.problem.checks import digest

    assert digest(made(1.0)) == digest(made(1.0)) != digest(made(2.0))


def test_what_an_object_remembers_does_not_count() -> None:
    from gedppl.problem.checks import digest

    used, model = Sloped(1.0), Sloped(1.0)
    used._calls, used.cache[1.0] = 3, 2.0
    assert digest(used) == digest(model)


def test_a_functional_of_ones_own_counts_by_what_it_does(tmp_path) -> None:
    """Under one name, in one place: only its body differs."""
    cls = ged.density_class(coin_model)

    def problem(slope: float) -> ged.Problem:
        def worth(y, x, a):
            return slope * y

        limit = ged.Constraint(cls, ged.mean(0, 1), 0.8, safe_value=0.3, name="harm")
        return ged.Problem(2, ged.Utility(cls, ged.expected(worth, -3, 3)), [limit], safe_action=0)

    with ged.GEDUCB(problem(1.0), journal=tmp_path / "run.db") as agent:
        agent.ask([0.0])
    with pytest.raises(errors.JournalMismatchError, match="functions"):
        ged.resume(tmp_path / "run.db", problem(2.0))
    with ged.resume(tmp_path / "run.db", problem(1.0)) as again:  # the control
        assert again.rounds == 1


def coin_model(x, a, y=None):
    p = numpyro.sample("p", dist.Beta(1, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(p[a] + 0 * x[:, 0]), obs=y)


def test_other_versions_are_said_and_recorded(closed, monkeypatch) -> None:
    now = recorder.running_versions()
    monkeypatch.setattr(recorder, "running_versions", lambda: now | {"numpy": "0.1"})
    agent = ged.resume(closed, WORLD.problem)
    assert not agent.resumed.exact
    assert 'is "0.1"' in str(agent.resumed)
    assert "within about 1e-9, not bit for bit" in str(agent.resumed)
    (change,) = agent.journal.records("change")
    assert change.payload["differ"]["numpy"][1] == '"0.1"'
    agent.close()
    again = ged.resume(closed, WORLD.problem)
    assert again.rounds == 5


# hostile journals: every hash is right, what they say is wrong ------------------------------------

DECISION = {"id": 0, "x": np.zeros(1), "action": 0, "learned": True}
OUTCOME = {"id": 0, "y": 1.0, "z": {}}
LOGGED = {"x": np.zeros((2, 1)), "a": np.array([0, 1]), "y": np.ones(2), "z": {}}
OBSERVE = LOGGED | {"seen": {"utility": np.ones(2, bool)}, "more": False}
ALARM = {"name": "limit:cost", "evidence": 1e3, "delta": 0.05, "round": 1, "sentence": "s"}
HOSTILE = [
    ([("decision", DECISION | {"id": 7})], "expected 0"),
    ([("decision", DECISION | {"id": True})], "expected 0"),
    ([("decision", DECISION | {"action": 99})], "one of 0, ..., 2"),
    ([("decision", DECISION | {"action": "0"})], "one of 0, ..., 2"),
    ([("decision", DECISION | {"x": np.array([np.nan])})], "must be finite"),
    ([("decision", DECISION | {"x": np.zeros((3, 1))})], "expected 0"),
    ([("decision", DECISION | {"x": "__import__('os')"})], "one context"),
    ([("decision", DECISION | {"learned": "yes"})], "learned is"),
    ([("decision", {"id": 0})], "KeyError"),
    (
        [("decision", DECISION), ("decision", DECISION | {"id": 1, "x": np.zeros(2)})],
        "have 1 columns",
    ),
    ([("outcome", OUTCOME)], "no decision 0"),
    ([("decision", DECISION), ("outcome", OUTCOME | {"y": np.inf})], "infinite"),
    ([("decision", DECISION), ("outcome", OUTCOME | {"y": np.zeros(9)})], "single number"),
    ([("decision", DECISION), ("outcome", OUTCOME | {"z": {"price": 1.0}})], "no outcome 'price'"),
    ([("decision", DECISION), ("outcome", OUTCOME), ("outcome", OUTCOME)], "a second time"),
    ([("amend", OUTCOME)], "no decision 0"),
    ([("amend", {"id": [], "y": 1.0, "z": {}})], "decision \\[\\] amended"),
    (
        [("change", {"change": "limit", "what": "", "name": "cost", "at_most": 0.3})],
        "nothing has been decided",
    ),
    (
        [
            ("decision", DECISION),
            ("change", {"change": "limit", "what": "", "name": "cost", "at_most": 9.0}),
        ],
        "functional's range",
    ),
    (
        [
            ("decision", DECISION),
            ("change", {"change": "actions", "available": np.ones(10**6, bool)}),
        ],
        "1000000 actions after 3",
    ),
    (
        [("decision", DECISION), ("change", {"change": "exec", "what": "import os"})],
        "unknown change",
    ),
    (
        [("decision", DECISION), ("change", {"change": "acknowledge", "alarm": "x:y"})],
        "no monitor 'x:y'",
    ),
    ([("decision", DECISION), ("alarm", ALARM | {"name": "limit:price"})], "no monitor"),
    ([("decision", DECISION), ("alarm", ALARM | {"evidence": [1]})], "an alarm of"),
    ([("decision", DECISION), ("alarm", ALARM | {"extra": 1})], "unexpected keyword"),
    ([("observe", OBSERVE | {"a": np.array([0])})], "unequal length"),
    ([("observe", OBSERVE | {"a": np.array([0, 5])})], "one of 0, ..., 2"),
    ([("observe", OBSERVE | {"more": True})], "incomplete"),
    ([("observe", OBSERVE | {"more": True}), ("decision", DECISION)], "incomplete"),
]


@pytest.mark.parametrize(("records", "match"), HOSTILE)
def test_hostile_records_are_refused_by_number(tmp_path, records, match) -> None:
    frozen = recorder.protocol(WORLD.problem, ged.GEDUCB(WORLD.problem).settings, "fallback")
    with Journal.create(tmp_path / "j.db", frozen) as journal:
        journal.append_many(records)
    with pytest.raises(errors.JournalCorruptError, match=match):
        ged.resume(tmp_path / "j.db", WORLD.problem)
    Journal.open(tmp_path / "j.db").close()  # the lock was released


class Exploit:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def planted(path: Path, data: bytes | None, meta: dict) -> None:
    """Another snapshot, with every hash right."""
    with Journal.open(path) as journal:
        payload = {
            "sequence": len(journal) - 1,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "meta": meta,
        }
        from gedppl.journal.format import encode

        journal._store([(b"snapshot", *encode(payload))], data)


def bad_snapshots(folder: Path) -> list[tuple[str, bytes, dict]]:
    bomb = pickle.dumps(Exploit(folder / "executed"))
    objects = np.empty(1, object)
    objects[0] = Exploit(folder / "executed")
    np.savez(folder / "objects.npz", a0=objects)
    unlisted = {"state": {"of": "Popen", "fields": {}}, "origin": {"array": "a0"}}
    return [
        ("a pickle", bomb, {}),
        ("pickled objects in npz", (folder / "objects.npz").read_bytes(), {}),
        ("an empty tree", pack({}), {}),
        ("arrays that are not there", pack({}), {"state": {}, "origin": {"array": "a0"}}),
        ("a class that is not on the list", pack({"a0": np.zeros(1)}), unlisted),
    ]


@pytest.mark.parametrize("number", range(5))
def test_hostile_snapshots_run_nothing_and_are_replayed_around(tmp_path, closed, number) -> None:
    what, data, meta = bad_snapshots(tmp_path)[number]
    with ged.resume(closed, WORLD.problem) as agent:
        expected = agent.state_hash()
    planted(closed, data, meta)
    with pytest.warns(RuntimeWarning):
        agent = ged.resume(closed, WORLD.problem)
    assert agent.state_hash() == expected, what
    assert not (tmp_path / "executed").exists()
    # positive control: the payload does run where something unpickles it
    pickle.loads(pickle.dumps(Exploit(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_only_listed_classes_are_built() -> None:
    reader = Reader({"a0": np.zeros(1)})
    for node in (
        {"of": "Popen", "fields": {}},
        {"of": "Start", "fields": {"k": 0}},
        {"eval": "1"},
        [1],
    ):
        with pytest.raises((KeyError, ValueError)):
            reader.node(node)


def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path) -> None:
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=tmp_path / "j.db")
    play(agent, WORLD, 4)
    agent.save()
    play(agent, WORLD, 3)
    agent.save()
    expected = agent.state_hash()
    agent.journal.close()
    db = sqlite3.connect(tmp_path / "j.db")
    db.execute(
        "UPDATE snapshots SET data = x'00' WHERE sequence = (SELECT max(sequence) FROM snapshots)"
    )
    db.commit()
    db.close()
    with pytest.warns(RuntimeWarning, match="damaged and was skipped"):
        back = ged.resume(tmp_path / "j.db", WORLD.problem)
    assert back.state_hash() == expected
    assert back.resumed.snapshot == 8
    assert back.resumed.replayed == 6


# for people ---------------------------------------------------------------------------------------


def test_show_and_export(closed, tmp_path) -> None:
    agent = ged.resume(closed, WORLD.problem)
    agent.set_limit("cost", 0.4)
    text = journal_text(closed)  # beside the writer
    assert "5 decision, 5 outcome" in text
    assert "limit of 'cost' set to 0.4" in text
    rows = journal_table(closed, tmp_path / "all.csv")
    assert rows == len(agent.journal)
    assert "propensity" in (tmp_path / "all.csv").read_text()
    journal_table(closed, tmp_path / "blind.csv", blinded=True)
    blind = (tmp_path / "blind.csv").read_text()
    assert "arm-" in blind
    assert "propensity" not in blind
    assert "certificate" not in blind
