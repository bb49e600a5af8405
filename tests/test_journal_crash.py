"""Kills, torn tails and bit flips: no acknowledged record is lost, and no damage goes unnoticed.

Run as a script this file is the crash harness: a small process (no threads, no JAX, so forking is
safe) that forks writers and kills them. Every guard here has a positive control, a variant without
it that loses records.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from gedppl.errors import JournalError
from gedppl.journal import Journal
from gedppl.journal.format import Head, RawRecord
from tests.crashes import database, killed, needs_fork, report_of, watched

LABELS = ("begun", "inserted", "committed", "synced")


# the harness --------------------------------------------------------------------------------------


def write_until_killed(path: Path, pipe: int, label: str | None, careless: bool, seed: int) -> None:
    """In the forked child: append and acknowledge over the pipe, for ever, or until `label` is
    reached often enough.
    """
    rng = random.Random(seed)
    journal = Journal.open(path)
    left = rng.randrange(2, 12)

    def reached(at: str) -> None:
        nonlocal left
        if at == label:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    watched(journal, reached)
    while True:
        size = rng.choice((1, 1, 1, 4))
        number = rng.randrange(10**9)
        promised = range(len(journal), len(journal) + size)
        if careless:  # the control: says so before it is so
            os.write(pipe, "".join(f"{s} {number}\n" for s in promised).encode())
        if rng.random() < 0.05:
            journal.save_snapshot(len(journal) - 1, {"a": np.full(2000, number, float)}, {})
            continue
        sequences = journal.append_many(
            [("outcome", {"number": number, "pad": "x" * rng.randrange(3000)})] * size
        )
        if not careless:
            os.write(pipe, "".join(f"{s} {number}\n" for s in sequences).encode())


def one_kill(
    path: Path, label: str | None, careless: bool, rng: random.Random
) -> tuple[dict[int, int], str]:
    """Fork a writer, kill it at the label or after a random time; what it acknowledged, and how
    it died.
    """
    seed = rng.randrange(10**9)
    after = rng.uniform(0.002, 0.06) if label is None else None
    lines, died = killed(lambda pipe: write_until_killed(path, pipe, label, careless, seed), after)
    return {int(s): int(n) for s, n in (line.split() for line in lines)}, died


def harness(path: Path, kills: int, careless: bool, seed: int) -> dict:
    rng = random.Random(seed)
    Journal.create(path, {"problem": "crash"}).close()
    acknowledged: dict[int, int] = {}
    report = {
        "kills": 0,
        "lost": 0,
        "moved": 0,
        "acknowledged": 0,
        "unacknowledged_kept": 0,
        "bad_deaths": [],
    }
    for i in range(kills):
        label = (None, *LABELS)[i % (1 + len(LABELS))]
        new, died = one_kill(path, label, careless, rng)
        if died != "killed":
            report["bad_deaths"].append(died)
        acknowledged |= new
        states = []
        for _ in range(2):
            with Journal.open(path) as journal:
                kept = {r.sequence: r.payload["number"] for r in journal.records("outcome")}
                states.append(journal.state_hash)
                journal.latest_snapshot()
        report["kills"] += 1
        report["moved"] += states[0] != states[1]
        report["unacknowledged_kept"] += len(kept) - len(acknowledged)
        report["lost"] += sum(kept.get(s) != n for s, n in acknowledged.items())
        acknowledged = kept
    report["acknowledged"] = len(acknowledged)
    return report


def check(report: dict, kills: int) -> None:
    assert report["bad_deaths"] == []
    assert report["kills"] == kills
    assert report["acknowledged"] > kills
    assert (report["lost"], report["moved"]) == (0, 0)
    # kills between commit and head did happen, and the record was kept
    assert report["unacknowledged_kept"] > 0


@needs_fork
def test_no_acknowledged_record_is_lost_by_thirty_kills(tmp_path):
    check(report_of(__file__, tmp_path, 30), 30)


@pytest.mark.slow
@needs_fork
def test_no_acknowledged_record_is_lost_by_two_hundred_kills(tmp_path):
    check(report_of(__file__, tmp_path, 200, seed=1), 200)


@needs_fork
def test_a_writer_that_acknowledges_first_loses_records(tmp_path):
    assert report_of(__file__, tmp_path, 15, careless=True)["lost"] > 0


# damage -------------------------------------------------------------------------------------------


def contents(journal: Journal) -> list[tuple]:
    return [(r.sequence, r.time_ns, r.kind, json.dumps(r.payload)) for r in journal.records()]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> tuple[Path, Path, list[tuple]]:
    """A journal in use (its newest records in the log), the same one closed (all in the
    database), and its records.
    """
    live, closed = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("closed")
    used = tmp_path_factory.mktemp("used")
    with Journal.create(used / "j.db", {"problem": "flips"}) as journal:
        for i in range(25):
            journal.append("outcome", {"i": i, "pad": "p" * 150})
        database(journal).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for i in range(25, 40):
            journal.append("outcome", {"i": i, "pad": "p" * 150})
        records = contents(journal)
        copy(used, live)
    copy(used, closed)
    assert (live / "j.db-wal").stat().st_size > 10_000
    assert not (closed / "j.db-wal").exists()
    return live, closed, records


def copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        if not file.name.endswith("-shm"):
            shutil.copy(file, target / file.name)


def guarded(folder: Path) -> list[tuple] | None:
    """The records as the journal gives them, or None if it refuses."""
    try:
        with Journal.open(folder / "j.db") as journal:
            return contents(journal)
    except JournalError:
        return None


def unguarded(folder: Path) -> list[tuple] | None:
    """The control: the same rows by SQLite alone, with its own integrity check."""
    try:
        with contextlib.closing(sqlite3.connect(folder / "j.db")) as db, db:
            intact = db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = db.execute(
                "SELECT sequence, time_ns, kind, payload FROM records ORDER BY sequence"
            ).fetchall()
        db.close()
        return [(s, t, k, json.dumps(json.loads(p))) for s, t, k, p in rows] if intact else None
    except (sqlite3.Error, ValueError, TypeError):
        return None


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    where = rng.randrange(len(data))
    for i in range(where, min(where + rng.choice((1, 1, 1, 16)), len(data))):
        data[i] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def tear(file: Path, rng: random.Random) -> None:
    size = file.stat().st_size
    os.truncate(file, rng.choice((rng.randrange(size), size - rng.randrange(1, 200))))


def tally(pristine, reader, damage, trials: int, work: Path, seed: int) -> dict[str, int]:
    """Damage one random file of the journal at a time: how often it was refused, harmless, and
    undetected.
    """
    live, closed, records = pristine
    rng = random.Random(seed)
    counts = {"refused": 0, "harmless": 0, "undetected": 0}
    for _ in range(trials):
        shutil.rmtree(work, ignore_errors=True)
        copy(rng.choice((live, closed)), work)
        damage(rng.choice(sorted(work.iterdir())), rng)
        found = reader(work)
        counts[
            "refused" if found is None else "harmless" if found == records else "undetected"
        ] += 1
    return counts


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("damage", [flip, tear])
def test_damage_anywhere_is_found(pristine, tmp_path, damage):
    counts = tally(pristine, guarded, damage, 150, tmp_path / "w", seed=2)
    assert counts["undetected"] == 0
    assert counts["refused"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, tear])
def test_damage_anywhere_is_found_in_three_thousand_trials(pristine, tmp_path, damage):
    assert tally(pristine, guarded, damage, 3000, tmp_path / "w", seed=3)["undetected"] == 0


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("damage", [flip, tear])
def test_sqlite_alone_lets_damage_through(pristine, tmp_path, damage):
    assert tally(pristine, unguarded, damage, 150, tmp_path / "w", seed=2)["undetected"] > 10


def test_a_damaged_last_frame_silently_drops_a_row_from_sqlite_but_not_from_the_journal(
    pristine, tmp_path
):
    live, _, records = pristine
    copy(live, tmp_path)
    log = tmp_path / "j.db-wal"
    data = bytearray(log.read_bytes())
    data[-2000] ^= 1
    log.write_bytes(data)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(JournalError, match=r"lost records: 41 were acknowledged, 40 are left"):
        Journal.open(tmp_path / "j.db")
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")}
    assert after == before  # the evidence is as it was
    assert unguarded(tmp_path) == records[:-1]


@pytest.mark.parametrize("part", ["chain", "head"])
def test_neither_the_chain_nor_the_head_can_be_left_out(pristine, tmp_path, part, monkeypatch):
    """Controls for each half: with the comparison of one of them taken out, damage gets through."""
    live, closed, records = pristine
    if part == "chain":
        copy(closed, tmp_path)
        data = (tmp_path / "j.db").read_bytes()
        assert data.count(b'{"i":7,') == 1
        (tmp_path / "j.db").write_bytes(data.replace(b'{"i":7,', b'{"i":9,'))
        assert guarded(tmp_path) is None
        monkeypatch.setattr("gedppl.journal.files.checked", lambda row, *_: RawRecord(*row))
    else:
        copy(live, tmp_path)
        os.truncate(tmp_path / "j.db-wal", (live / "j.db-wal").stat().st_size - 10)
        assert guarded(tmp_path) is None

        def agreeing(data: bytes) -> tuple[Head, bool]:
            """A head that agrees with what the database has left."""
            last = records[-2]
            with (
                contextlib.closing(
                    sqlite3.connect(f"file:{tmp_path / 'j.db'}?mode=ro", uri=True)
                ) as db,
                db,
            ):
                row = db.execute("SELECT hash FROM records WHERE sequence=?", (last[0],)).fetchone()
            db.close()
            return Head(99, last[0] + 1, row[0]), False

        monkeypatch.setattr("gedppl.journal.files.read_head", agreeing)
    found = guarded(tmp_path)
    assert found is not None
    assert found != records


# a power failure ----------------------------------------------------------------------------------


def test_whatever_part_of_an_unacknowledged_write_reached_the_disk_the_acknowledged_ones_are_there(
    tmp_path,
):
    """At every append: the files as after the commit, with the log cut anywhere in its new part
    and the head not yet synced.
    """
    folder, crashed = tmp_path / "j", tmp_path / "crashed"
    folder.mkdir()
    rng = random.Random(5)
    with Journal.create(folder / "j.db", {"problem": "power"}) as journal:
        sizes, kept = {"before": 0}, []

        def reached(label: str) -> None:
            log = folder / "j.db-wal"
            if label == "begun":
                sizes["before"] = log.stat().st_size if log.exists() else 0
            elif label == "committed":
                for _ in range(4):
                    shutil.rmtree(crashed, ignore_errors=True)
                    copy(folder, crashed)
                    size = (crashed / "j.db-wal").stat().st_size
                    os.truncate(crashed / "j.db-wal", rng.randint(sizes["before"], size))
                    found = guarded(crashed)
                    assert found is not None
                    assert len(found) - len(journal) in (0, 1)
                    kept.append(len(found) - len(journal))

        watched(journal, reached)
        for i in range(12):
            journal.append("outcome", {"i": i, "pad": "q" * rng.randrange(9000)})
    assert 0 in kept
    with Journal.open(folder / "j.db") as journal:
        assert len(journal) == 13


if __name__ == "__main__":
    print(
        json.dumps(
            harness(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", int(sys.argv[4]))
        )
    )
