"""Journals in awkward places, files that vanish, forks and copies, and models that fail at
random.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.journal import Journal, files
from gedppl.study.cli.tables import journal_text
from tests.plain_worlds import PlainTables, PlainWorld, play

WORLD = PlainWorld()


def begun(path: Path, rounds: int = 3) -> ged.GEDUCB:
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=path)
    play(agent, WORLD, rounds)
    return agent


# names --------------------------------------------------------------------------------------------

NAMES = [
    "a b.db",
    "żółć 日本.db",
    "50%25?mode=ro&x=1#f.db",
    'it\'s "q".db',
    "new\nline.db",
    "n" * 235 + ".db",
    "-r",
    ":memory:",
]


@pytest.mark.skipif(sys.platform == "win32", reason="names that only POSIX allows")
@pytest.mark.parametrize("name", NAMES)
def test_any_name_will_do(tmp_path, name) -> None:
    agent = begun(tmp_path / name)
    expected = agent.state_hash()
    agent.close()
    assert ged.resume(tmp_path / name, WORLD.problem).state_hash() == expected
    assert {p.name for p in tmp_path.iterdir()} >= {name, f"{name}.head"}


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("a\0b", errors.JournalError, "null"),
        (".", errors.JournalExistsError, "is a folder"),
        ("n" * 300, errors.JournalFullError, "could not be created"),
        ("here.db/inside.db", errors.JournalFullError, "could not be created"),
        (7, errors.JournalError, "must be a text or a path"),
    ],
)
def test_what_is_no_place_for_a_journal(tmp_path, monkeypatch, path, error, match) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.db").touch()
    with pytest.raises(error, match=match):
        ged.GEDUCB(WORLD.problem, journal=path)
    assert [p.name for p in tmp_path.iterdir()] == ["here.db"]


@pytest.mark.parametrize("problem", [None, "problem", 3, WORLD])
def test_what_is_no_problem(tmp_path, problem) -> None:
    begun(tmp_path / "j.db").close()
    with pytest.raises(errors.ProblemError, match=r"decides a ged\.Problem"):
        ged.GEDUCB(problem)
    with pytest.raises(errors.ProblemError, match=r"decides a ged\.Problem"):
        ged.resume(tmp_path / "j.db", problem)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal="j.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    play(agent, WORLD, 2)
    agent.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert ged.resume(tmp_path / "j.db", WORLD.problem).rounds == 2


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_two_names_of_one_journal_have_one_writer(tmp_path, link) -> None:
    agent = begun(tmp_path / "j.db")
    for name in ("j.db", "j.db.head"):
        link(tmp_path / name, tmp_path / f"other{name[1:]}")
    with pytest.raises(errors.JournalLockedError, match="being written"):
        ged.resume(tmp_path / "other.db", WORLD.problem)
    agent.close()


def test_a_loop_of_links_is_refused(tmp_path) -> None:
    os.symlink(tmp_path / "a", tmp_path / "b")
    os.symlink(tmp_path / "b", tmp_path / "a")
    with pytest.raises(errors.JournalError):
        ged.GEDUCB(WORLD.problem, journal=tmp_path / "a")


# rights -------------------------------------------------------------------------------------------


def test_files_that_may_not_be_read_or_written_are_named(tmp_path, monkeypatch) -> None:
    begun(tmp_path / "j.db").close()

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", denied)
        with pytest.raises(
            errors.JournalError,
            match=r"cannot be opened for writing: .*Permission "
            r"denied",
        ):
            ged.resume(tmp_path / "j.db", WORLD.problem)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", denied)
        with pytest.raises(errors.JournalError, match="check the permissions"):
            journal_text(tmp_path / "j.db")
    ged.resume(tmp_path / "j.db", WORLD.problem).close()  # nothing was left locked


def test_an_archive_in_a_folder_without_write_access_can_be_read(tmp_path, monkeypatch) -> None:
    begun(tmp_path / "j.db").close()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    assert "3 decision" in journal_text(tmp_path / "j.db")
    # not even SQLite's own files
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


# files that vanish, forks, copies -----------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be removed there")
@pytest.mark.parametrize("victim", ["j.db", "j.db.head"])
@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path, victim, replaced) -> None:
    agent = begun(tmp_path / "j.db")
    before = agent.state_hash()
    data = (tmp_path / victim).read_bytes()
    (tmp_path / victim).rename(tmp_path / "aside")
    if replaced:
        (tmp_path / victim).write_bytes(data)
    with pytest.raises(errors.JournalError, match="removed or replaced while in use"):
        agent.ask([0.0])
    assert agent.state_hash() == before
    (tmp_path / "aside").replace(tmp_path / victim)
    agent.ask([0.0])  # it is back
    expected = agent.state_hash()
    agent.close()
    assert ged.resume(tmp_path / "j.db", WORLD.problem).state_hash() == expected


def test_without_that_check_decisions_would_be_lost(tmp_path, monkeypatch) -> None:
    """The positive control: what is written to a file without a name is acknowledged and gone."""
    agent = begun(tmp_path / "j.db")
    monkeypatch.setattr(files, "identity", lambda path: None)
    agent.journal._files = (None, None)
    for file in list(tmp_path.iterdir()):
        file.unlink()
    agent.ask([0.0])
    with pytest.raises(errors.JournalNotFoundError):
        ged.resume(tmp_path / "j.db", WORLD.problem)


def test_a_copy_made_while_running_is_whole_or_refused(tmp_path) -> None:
    agent = begun(tmp_path / "j.db", 5)
    parts = [p for p in tmp_path.iterdir() if p.is_file()]
    whole = tmp_path / "whole"
    whole.mkdir()
    for part in parts:
        shutil.copy(part, whole)
    back = ged.resume(whole / "j.db", WORLD.problem)
    assert back.state_hash() == agent.state_hash()
    back.close()
    for missing, match in (
        ("j.db-wal", "lost records"),
        ("j.db.head", "head file j.db.head was lost"),
    ):
        folder = tmp_path / f"without {missing}"
        folder.mkdir()
        for part in parts:
            if part.name not in (missing, "j.db-shm"):
                shutil.copy(part, folder)
        with pytest.raises(errors.JournalCorruptError, match=match):
            ged.resume(folder / "j.db", WORLD.problem)
    agent.close()


def test_a_forked_agent_may_not_write(tmp_path, monkeypatch) -> None:
    agent = begun(tmp_path / "j.db")
    before, records = agent.state_hash(), len(agent.journal)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(errors.JournalError, match="this is a fork"):
            agent.ask([0.0])
    assert (agent.state_hash(), len(agent.journal)) == (before, records)


# models that fail ---------------------------------------------------------------------------------


class Flaky(PlainTables):
    """Now and then raises, or gives NaN."""

    rate, rng, how = 0.0, np.random.default_rng(0), "raise"

    def probs(self, x, a):
        out = super().probs(x, a)
        if Flaky.rng.random() >= Flaky.rate:
            return out
        if Flaky.how == "raise":
            raise Flaky.rng.choice(
                [RuntimeError, ValueError, KeyError, MemoryError, TypeError, ZeroDivisionError]
            )("flaky")
        return np.full_like(out, np.nan)

    def check_outcomes(self, x, a, y):
        self.probs(x, a)
        return super().check_outcomes(x, a, y)


@pytest.mark.filterwarnings(
    "ignore::gedppl.agent.FallbackWarning",
    "ignore::gedppl.agent.AlarmWarning",
    "ignore::RuntimeWarning",
)
@pytest.mark.parametrize("how", ["raise", "nan"])
def test_a_model_that_fails_at_random_costs_safe_rounds_and_nothing_else(
    tmp_path, monkeypatch, how
) -> None:
    world = PlainWorld()
    tables = [
        Flaky(part.model.tables) for part in (world.problem.utility, world.problem.constraints[0])
    ]
    utility = ged.Utility(tables[0], ged.mean(0, 1))
    constraint = ged.Constraint(tables[1], ged.mean(0, 1), at_most=0.5, safe_value=0.1)
    world.problem = ged.Problem(
        n_actions=3, utility=utility, constraints=[constraint], safe_action=0
    )
    monkeypatch.setattr(Flaky, "rng", np.random.default_rng(2))
    monkeypatch.setattr(Flaky, "how", how)
    agent, rng = (
        ged.GEDUCB(world.problem, seed=2, journal=tmp_path / "j.db"),
        np.random.default_rng(3),
    )
    agent.ask([0.0])
    fallbacks, named = 0, 0
    for i in range(60):
        before, records = agent.state_hash(), len(agent.journal)
        x = world.context(rng)
        monkeypatch.setattr(Flaky, "rate", 0.2)  # an ask calls the model a few times
        try:
            if i % 2:
                decision = agent.ask(x)
                assert decision.policy.sum() == pytest.approx(1.0)
                fallbacks += decision.certificate.fallback is not None
            elif i % 10 == 4:
                agent.observe([x], [1], [1.0], [0.0])
            else:
                agent.tell(agent.open_decisions[0], 1.0, 0.0)
        except errors.GedError:
            named += 1
            assert (agent.state_hash(), len(agent.journal)) == (before, records)
        finally:
            monkeypatch.setattr(Flaky, "rate", 0.0)
    assert fallbacks > 0
    assert named > 0 or how == "nan"
    for record in agent.journal.records("decision"):
        if record.payload["certificate"]["fallback"]:
            assert record.payload["action"] == 0
    agent.journal.close()
    with Journal.open(tmp_path / "j.db", read_only=True) as journal:
        assert sum(1 for _ in journal.records("decision")) == agent.rounds
    if how == "raise":  # what failed was not learned, and is not learned again
        assert ged.resume(tmp_path / "j.db", world.problem).state_hash() == agent.state_hash()
