"""The journal keeps what it acknowledged, refuses what is not its own, and runs nothing that a
file contains.
"""

from __future__ import annotations

import builtins
import contextlib
import csv
import gc
import io
import json
import os
import pickle
import resource
import sqlite3
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gedppl.errors import (
    BackendNotFoundError,
    JournalCorruptError,
    JournalError,
    JournalExistsError,
    JournalFullError,
    JournalLockedError,
    JournalMismatchError,
    JournalNotFoundError,
    JournalVersionError,
    RecordError,
)
from gedppl.journal import Blinding, Journal
from gedppl.journal import files as journal_files
from gedppl.journal import format as journal_format
from gedppl.journal.format import (
    Head,
    chain,
    decode,
    encode,
    protocol_differences,
    read_head,
    running_versions,
)
from gedppl.journal.snapshot import pack, unpack
from tests.crashes import database, watched

PROTOCOL = {
    "problem": "demo",
    "delta": 0.05,
    "seed": 3,
    "versions": {"numpy": "2.0", "python": "3.11"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trial.db"


def filled(path: Path, n: int = 5) -> list[tuple]:
    with Journal.create(path, PROTOCOL) as journal:
        for i in range(n):
            journal.append(
                "decision",
                {"id": i, "x": np.arange(3.0) + i, "action": i % 2, "policy": [0.25, 0.75]},
            )
            journal.append("outcome", {"id": i, "y": 0.1 * i, "z": {"cost": i / 7}})
    with Journal.open(path) as journal:
        return contents(journal)


def contents(journal: Journal) -> list[tuple]:
    return [(r.sequence, r.time_ns, r.kind, encode(r.payload)) for r in journal.records()]


def files_of(path: Path) -> dict[str, bytes]:
    """What the files hold; SQLite makes its index of the log, and an empty log, even for a
    reader.
    """
    contents = {
        p.name: p.read_bytes() for p in path.parent.iterdir() if not p.name.endswith("-shm")
    }
    return {name: data for name, data in contents.items() if data}


# payloads -----------------------------------------------------------------------------------------


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))  # lone surrogates too
    | hnp.arrays(
        st.sampled_from(["<f8", "<i8", "?", "<f4", "u1"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    )
)
payloads = st.dictionaries(
    st.text().filter(lambda k: k != "$array"),
    st.recursive(
        leaves,
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    ),
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(payloads)
def test_payloads_come_back_bit_for_bit(payload):
    assert same(payload, decode(*encode(payload)))


def test_numpy_scalars_tuples_and_other_byte_orders_are_stored_as_their_plain_form():
    payload = {
        "a": np.float64(0.1),
        "b": np.int32(4),
        "c": (1, 2),
        "d": np.array([1.5], ">f8"),
        "e": np.bool_(True),
    }
    back = decode(*encode(payload))
    assert back["a"] == 0.1
    assert type(back["a"]) is float
    assert back["b"] == 4
    assert back["c"] == [1, 2]
    assert back["e"] is True
    np.testing.assert_array_equal(back["d"], [1.5])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1, 2], "a payload must be a dict, got list"),
        ({"a": object()}, r"payload\.a is a object, which cannot be stored"),
        ({"a": {1: 2}}, r"payload\.a has the key 1: keys must be strings"),
        ({"a": {"$array": 2}}, r"has the key '\$array'"),
        ({"a": [np.array(["x"])]}, r"payload\.a\[0\] is an array of <U1"),
        ({"a": np.array([None])}, "is an array of object"),
        ({"a": b"bytes"}, "is a bytes"),
        ({"a": 1 << 5000}, "is an integer of 5001 bits: the limit is 4096"),
        ({"a": np.zeros(3_000_000)}, "the record has 24,000,0.. bytes, the limit is 16,777,216"),
        ({"a": np.longdouble(1)}, "is a longdouble"),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_and_nothing_is_written(path, payload, message):
    with Journal.create(path, PROTOCOL) as journal:
        before = journal.state_hash
        with pytest.raises(RecordError, match=message):
            journal.append("decision", payload)
        assert (journal.state_hash, len(journal)) == (before, 1)


def test_endless_nesting_is_refused():
    nested: dict = {}
    nested["a"] = nested
    with pytest.raises(RecordError, match="nested deeper than 32 levels"):
        encode(nested)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"$array":["<f8",[1000000000000],0]}}',
        b'{"a":{"$array":["<f8",[2],8]}}',
        b'{"a":{"$array":["<f8",[2],-8]}}',
        b'{"a":{"$array":["<f8",[-1],0]}}',
        b'{"a":{"$array":["|O",[1],0]}}',
        b'{"a":{"$array":["<f8",[1],0],"b":1}}',
        b'{"a":{"$array":7}}',
        b'{"a":{"$array":["<f8",[true],0]}}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"9" * 10_000 + b"}",
        b"[1]",
        b"\xff\xfe",
        b"",
    ],
)
def test_a_hostile_payload_is_corruption(text):
    with pytest.raises(JournalCorruptError, match="a payload"):
        decode(text, bytes(16))


# appending and reading ----------------------------------------------------------------------------


def test_records_come_back_in_order_by_kind_and_from_a_start(path):
    filled(path)
    with Journal.open(path) as journal:
        assert len(journal) == 11
        assert [r.sequence for r in journal.records()] == list(range(11))
        assert [r.payload["id"] for r in journal.records("outcome", start=5)] == [2, 3, 4]
        assert list(journal.records(start=11)) == []
        assert list(journal.records(start=99)) == []
        record = next(journal.records("decision"))
        assert record.time.startswith("20")
        np.testing.assert_array_equal(record.payload["x"], [0.0, 1.0, 2.0])


def test_a_batch_is_one_transaction(path):
    with Journal.create(path, PROTOCOL) as journal:
        generation = journal._head.generation
        assert journal.append_many([("outcome", {"id": i}) for i in range(400)]) == list(
            range(1, 401)
        )
        assert journal._head.generation == generation + 1
        assert journal.append_many([]) == []
        assert [r.payload["id"] for r in journal.records("outcome")] == list(range(400))
        with pytest.raises(RecordError, match=r"payload\.b is a set"):
            journal.append_many([("outcome", {"a": 1}), ("outcome", {"b": {1}})])
        assert len(journal) == 401


@pytest.mark.parametrize("kind", ["protocol", "snapshot", "'; ATTACH 'x' AS y; --", "Decision", ""])
def test_an_unknown_kind_is_refused(path, kind):
    with (
        Journal.create(path, PROTOCOL) as journal,
        pytest.raises(RecordError, match="the kind must be one of"),
    ):
        journal.append(kind, {})


def test_a_clock_that_jumps_back_changes_no_order(path):
    with Journal.create(path, PROTOCOL) as journal:
        for now in (2_000_000_000, 1_000, -5):
            journal._clock = lambda now=now: now
            journal.append("outcome", {"at": now})
    with Journal.open(path) as journal:
        assert [r.payload["at"] for r in journal.records("outcome")] == [2_000_000_000, 1_000, -5]


def test_threads_append_without_losing_or_mixing_records(path):
    with Journal.create(path, PROTOCOL) as journal:
        # this is about threads, not about the disk
        database(journal).execute("PRAGMA synchronous=OFF")

        def work(name: int) -> None:
            for i in range(40):
                journal.append("outcome", {"thread": name, "i": i})

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        got = [(r.payload["thread"], r.payload["i"]) for r in journal.records("outcome")]
    assert sorted(got) == [(t, i) for t in range(8) for i in range(40)]
    assert all([i for s, i in got if s == t] == list(range(40)) for t in range(8))


def test_reading_goes_on_while_records_are_appended(path):
    with Journal.create(path, PROTOCOL) as journal:
        journal.append_many([("outcome", {"i": i}) for i in range(1000)])
        reader = journal.records("outcome")
        first = [next(reader).payload["i"] for _ in range(300)]
        journal.append("outcome", {"i": 1000})
        assert first + [r.payload["i"] for r in reader] == list(range(1000))


# the protocol -------------------------------------------------------------------------------------


def test_the_protocol_is_frozen_and_a_mismatch_names_what_differs(path):
    filled(path)
    with Journal.open(path, protocol=PROTOCOL) as journal:
        assert journal.protocol == PROTOCOL
        other = {**PROTOCOL, "versions": {"numpy": "2.1", "python": "3.11"}}
        assert journal.require_protocol(other) == {"versions.numpy": ('"2.0"', '"2.1"')}
    with pytest.raises(
        JournalMismatchError,
        match=r"delta was 0.05, is now 0.1; problem was "
        r"\"demo\", is now \"other\"",
    ):
        Journal.open(path, protocol={**PROTOCOL, "problem": "other", "delta": 0.1})
    with pytest.raises(JournalMismatchError, match="seed was 3, is now absent"):
        Journal.open(path, protocol={k: v for k, v in PROTOCOL.items() if k != "seed"})
    Journal.open(path).close()  # the refusals released the lock


def test_differences_look_inside_arrays_and_ignore_key_order():
    a = {"low": np.array([0.0, 1.0]), "n": {"k": 1, "j": 2}}
    assert protocol_differences(a, {"n": {"j": 2, "k": 1}, "low": np.array([0.0, 1.0])}) == {}
    assert list(protocol_differences(a, {"low": np.array([0.0, 1.5]), "n": {}})) == [
        "low",
        "n",
        "n.j",
        "n.k",
    ]


def test_running_versions_imports_nothing():
    code = (
        "from gedppl.journal.format import running_versions as r; import sys; r(); print('jax' "
        "in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert running_versions()["numpy"] == np.__version__


# opening ------------------------------------------------------------------------------------------


def test_create_and_open_say_what_is_there(path):
    with pytest.raises(JournalNotFoundError, match="there is no journal at"):
        Journal.open(path)
    filled(path)
    with pytest.raises(JournalExistsError, match="exists already: open it with"):
        Journal.create(path, PROTOCOL)
    path.unlink()
    with pytest.raises(JournalCorruptError, match="is missing although its head file is there"):
        Journal.open(path)
    with pytest.raises(JournalExistsError, match="its head file says it held 11 records"):
        Journal.create(path, PROTOCOL)
    with pytest.raises(JournalFullError, match="could not be created"):
        Journal.create(path.parent / "no" / "such" / "folder.db", PROTOCOL)


def test_a_creation_that_was_interrupted_can_be_repeated(path, monkeypatch):
    for step in ("build", "write_head", "replace"):
        owner = os if step == "replace" else journal_files
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                Journal.create(path, PROTOCOL)
        # nothing was ever recorded, so nothing is lost
        with pytest.raises(JournalNotFoundError, match="begin one with"):
            Journal.open(path)
    with Journal.create(path, PROTOCOL) as journal:
        assert len(journal) == 1


def test_a_head_that_counts_records_is_never_taken_for_an_interrupted_creation(path):
    """The other side: a database that is gone, or a head that cannot be read, is a loss."""
    filled(path)
    path.unlink()
    head = journal_files.head_path(path)
    good = head.read_bytes()
    for data in (good, bytes([255]) * len(good), good[:-1] + bytes([good[-1] ^ 1])):
        head.write_bytes(data)
        with pytest.raises(JournalCorruptError, match="is missing although its head file is there"):
            Journal.open(path)
    for data in (b"", bytes(len(good)), good[:10]):
        head.write_bytes(data)
        with pytest.raises(JournalNotFoundError):
            Journal.open(path)


def test_one_writer_and_any_number_of_readers(path):
    filled(path)
    with Journal.open(path) as journal:
        for _ in range(2):  # a refused attempt must not take the lock away
            with pytest.raises(JournalLockedError, match="is being written by another process"):
                Journal.open(path)
        code = f"from gedppl.journal import Journal; Journal.open({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "JournalLockedError" in done.stderr
        with Journal.open(path, read_only=True) as reader:
            journal.append("outcome", {"i": 1})
            assert len(list(reader.records())) == 11
            with pytest.raises(JournalError, match="it was opened read-only"):
                reader.append("outcome", {})
        with Journal.open(path, read_only=True) as reader:
            assert reader.state_hash == journal.state_hash
    with Journal.open(path) as journal:
        assert len(journal) == 12


def test_a_closed_journal_says_so(path):
    journal = Journal.create(path, PROTOCOL)
    journal.close()
    with pytest.raises(JournalError, match="the journal was closed; open it again"):
        journal.append("outcome", {})
    with pytest.raises(JournalError, match="the journal was closed"):
        list(journal.records())


def test_a_fork_cannot_write(path, monkeypatch):
    with Journal.create(path, PROTOCOL) as journal:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(JournalError, match="this is a fork"):
            journal.append("outcome", {})


def test_a_program_that_holds_the_database_gives_a_locked_error(path):
    filled(path)
    with Journal.open(path) as journal:
        database(journal).execute("PRAGMA busy_timeout=10")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalLockedError, match="another program holds the database"):
            journal.append("outcome", {"i": 1})
        other.execute("ROLLBACK")
        other.close()
        journal.append("outcome", {"i": 1})
    with Journal.open(path) as journal:
        assert len(journal) == 12


def rebuilt(path: Path, change, *, fix_head: bool = True) -> None:
    """Let `change` edit the database, then make chain and head agree again: what an attacker
    with both files can do.
    """
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        change(db)
    db.close()
    if fix_head:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            count, last = db.execute(
                "SELECT count(*), (SELECT hash FROM records ORDER BY sequence DESC) FROM records"
            ).fetchone()
        db.close()
        for generation in (10, 11):
            offset, data = Head(generation, count, last).slot()
            with open(f"{path}.head", "rb+") as file:
                file.seek(offset)
                file.write(data)


def test_a_newer_format_is_refused(path):
    filled(path)
    rebuilt(path, lambda db: db.execute("PRAGMA user_version=2"), fix_head=False)
    before = files_of(path)
    with pytest.raises(
        JournalVersionError, match="has format 2, this version of gedppl knows 1: upgrade gedppl"
    ):
        Journal.open(path)
    assert files_of(path) == before


def test_a_newer_format_inside_the_protocol_is_refused(path):
    text, blob = encode({"format": 2, "protocol": {}})
    filled(path, 0)

    def change(db):
        row = (text.decode(), blob, chain(journal_format.GENESIS, 0, 0, 5, b"protocol", text, blob))
        db.execute("UPDATE records SET payload=?, arrays=?, hash=?, time_ns=5", row)

    rebuilt(path, change)
    with pytest.raises(JournalVersionError, match="says format 2"):
        Journal.open(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "DELETE FROM records WHERE sequence=10",
            "lost records: 11 were acknowledged, 10 are left",
        ),
        ("DELETE FROM records WHERE sequence=4", "record 4 is missing"),
        ("DELETE FROM records", "does not begin with a protocol"),
        (
            "UPDATE records SET payload=replace(payload, '0.1', '0.2') WHERE sequence=4",
            "record 4 does not match its hash",
        ),
        (
            "UPDATE records SET time_ns=time_ns+1 WHERE sequence=4",
            "record 4 does not match its hash",
        ),
        ("UPDATE records SET kind='amend' WHERE sequence=4", "record 4 does not match its hash"),
        (
            "UPDATE records SET arrays=zeroblob(24) WHERE sequence=3",
            "record 3 does not match its hash",
        ),
        ("UPDATE records SET batch=99 WHERE sequence=3", "says its transaction began at 99"),
        (
            "UPDATE records SET payload=NULL WHERE sequence=3",
            "record 3 has columns of the wrong types",
        ),
        ("UPDATE records SET sequence=-7 WHERE sequence=3", "record 3 is missing"),
        ("PRAGMA application_id=7", "not a gedppl journal"),
        ("DROP TABLE snapshots", "lacks b'table' b'snapshots'"),
    ],
)
def test_altered_records_are_found(path, change, message):
    filled(path)
    rebuilt(path, lambda db: db.execute(change), fix_head=False)
    with pytest.raises(JournalCorruptError, match=message):
        Journal.open(path)


def test_two_records_swapped_are_found(path):
    filled(path)

    def swap(db):
        rows = db.execute("SELECT * FROM records WHERE sequence IN (4, 6)").fetchall()
        db.execute("DELETE FROM records WHERE sequence IN (4, 6)")
        for row, sequence in zip(rows, (6, 4)):
            db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", (sequence, *row[1:]))

    rebuilt(path, swap, fix_head=False)
    with pytest.raises(JournalCorruptError, match="record 4 says its transaction began at 6"):
        Journal.open(path)


# the head -----------------------------------------------------------------------------------------


def test_the_head_alternates_and_survives_one_torn_slot():
    data = bytearray(journal_format.HEAD_BYTES)
    for generation in range(1, 6):
        offset, slot = Head(generation, generation * 2, bytes([generation]) * 32).slot()
        data[offset : offset + len(slot)] = slot
        head, damaged = read_head(bytes(data))
        assert (head.generation, head.count, damaged) == (generation, generation * 2, False)
    data[journal_format.SLOT_BYTES + 20] ^= 1  # generation 5
    head, damaged = read_head(bytes(data))
    assert (head.generation, damaged) == (4, True)
    with pytest.raises(JournalCorruptError, match="no readable slot"):
        read_head(bytes(journal_format.HEAD_BYTES))


@pytest.mark.parametrize("newest", [True, False])
def test_a_damaged_slot_with_no_write_under_way_is_refused_unless_the_database_vouches_for_it(
    path, newest
):
    filled(path)
    head, _ = read_head(Path(f"{path}.head").read_bytes())
    slot = (head.generation if newest else head.generation - 1) % 2
    data = bytearray(Path(f"{path}.head").read_bytes())
    data[slot * journal_format.SLOT_BYTES + 30] ^= 4
    Path(f"{path}.head").write_bytes(data)
    # the same picture as a power failure in the middle of the head's write: nothing is missing
    if newest:
        with Journal.open(path) as journal:
            assert len(journal) == 11
        return
    with pytest.raises(JournalCorruptError, match="is damaged although no write was under way"):
        Journal.open(path)


def test_an_old_head_is_refused(path):
    filled(path, 1)
    old = Path(f"{path}.head").read_bytes()
    with Journal.open(path) as journal:
        for i in range(3):
            journal.append("outcome", {"i": i})
    Path(f"{path}.head").write_bytes(old)
    with pytest.raises(JournalCorruptError, match="the head file is older than the database"):
        Journal.open(path)


def test_a_lost_head_is_refused(path):
    filled(path)
    Path(f"{path}.head").unlink()
    with pytest.raises(JournalCorruptError, match=r"its head file trial.db.head was lost"):
        Journal.open(path)


@pytest.mark.parametrize(
    ("label", "kept"),
    [("begun", False), ("inserted", False), ("committed", False), ("synced", True)],
)
def test_after_an_interrupt_the_next_append_goes_on(path, label, kept):
    """What the head knows counts; what was committed and never acknowledged is undone, like what
    was not.
    """
    journal = Journal.create(path, PROTOCOL)
    interrupt_at(journal, label)
    expected = [2] if not kept else [1, 2]
    journal.append("outcome", {"i": 2})
    assert [r.payload["i"] for r in journal.records("outcome")] == expected
    state = journal.state_hash
    journal.close()
    with Journal.open(path) as journal:
        assert [r.payload["i"] for r in journal.records("outcome")] == expected
        assert journal.state_hash == state


def test_a_process_that_dies_between_commit_and_head_keeps_the_record(path):
    """Nobody is left to undo it: it is whole and chained, so it is kept."""
    journal = Journal.create(path, PROTOCOL)
    interrupt_at(journal, "committed")
    journal._head_file.close()
    database(journal).close()
    for _ in range(2):
        with Journal.open(path) as journal:
            assert [r.payload["i"] for r in journal.records("outcome")] == [1]


def interrupt_at(journal: Journal, label: str) -> None:
    def interrupt(at: str) -> None:
        if at == label:
            raise KeyboardInterrupt

    watched(journal, interrupt)
    with pytest.raises(KeyboardInterrupt):
        journal.append("outcome", {"i": 1})
    watched(journal, lambda at: None)


def test_a_journal_that_nobody_holds_is_not_locked(path):
    filled(path)
    journal = Journal.open(path)
    with pytest.raises(JournalLockedError):
        Journal.open(path)
    del journal
    gc.collect()
    Journal.open(path).close()


# a full disk --------------------------------------------------------------------------------------


def test_a_full_database_acknowledges_nothing_and_can_be_used_afterwards(path):
    with Journal.create(path, PROTOCOL) as journal:
        pages = database(journal).execute("PRAGMA page_count").fetchone()[0]
        database(journal).execute(f"PRAGMA max_page_count={pages + 5}")
        stored = 0

        def fill() -> None:
            nonlocal stored
            while True:
                journal.append("outcome", {"i": stored, "pad": "x" * 2000})
                stored += 1

        with pytest.raises(
            JournalFullError, match="the record could not be stored: database or disk is full"
        ):
            fill()
        assert stored > 2
        assert len(journal) == stored + 1
        with pytest.raises(JournalFullError, match="Nothing was acknowledged"):
            journal.save_snapshot(1, {"a": np.zeros(10_000)}, {})
        database(journal).execute("PRAGMA max_page_count=100000")
        journal.append("outcome", {"i": stored})
    with Journal.open(path) as journal:
        assert [r.payload["i"] for r in journal.records("outcome")] == list(range(stored + 1))


FULL_BY_LIMIT = """
import resource, sys, time
from gedppl.errors import JournalFullError
from gedppl.journal import Journal
journal = Journal.create(sys.argv[1], {})
journal.append("outcome", {"i": 0})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
stored = 1
try:
    while True:
        journal.append("outcome", {"i": stored, "pad": "x" * 3000})
        stored += 1
except JournalFullError as error:
    assert "Nothing was acknowledged" in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append("outcome", {"i": stored})
print(stored + 1, journal.state_hash)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs file size limits")
def test_a_file_size_limit_acknowledges_nothing_and_can_be_lifted(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_BY_LIMIT, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    count, state = done.stdout.split()
    with Journal.open(path) as journal:
        assert [r.payload["i"] for r in journal.records("outcome")] == list(range(int(count)))
        assert journal.state_hash == state


def test_a_head_that_cannot_be_written_is_not_acknowledged(path, monkeypatch):
    with Journal.create(path, PROTOCOL) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(
                journal_files,
                "write_head",
                lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")),
            )
            with pytest.raises(JournalFullError, match="the head file could not be written"):
                journal.append("outcome", {"i": 1})
        with pytest.raises(JournalError, match="open it again"):
            journal.append("outcome", {"i": 2})
    with Journal.open(path) as journal:
        journal.append("outcome", {"i": 3})


# snapshots ----------------------------------------------------------------------------------------


def test_snapshots_come_back_and_only_two_are_kept(path):
    arrays = {
        "rows/x": np.random.default_rng(0).normal(size=(50, 3)),
        "n": np.array(7),
        "mask": np.array([True, False]),
    }
    with Journal.create(path, PROTOCOL) as journal:
        assert journal.latest_snapshot() is None
        for i in range(4):
            sequence = journal.append("outcome", {"i": i})
            journal.save_snapshot(
                sequence, {**arrays, "i": np.array([i])}, {"learner": "exact", "rounds": i}
            )
    with Journal.open(path) as journal:
        snapshot = journal.latest_snapshot()
        assert (snapshot.sequence, snapshot.meta) == (7, {"learner": "exact", "rounds": 3})
        assert all(same(snapshot.arrays[k], v) for k, v in arrays.items())
        assert database(journal).execute("SELECT count(*) FROM snapshots").fetchone() == (2,)
        assert len(list(journal.records("snapshot"))) == 4


def test_a_large_snapshot_goes_round(path):
    big = np.random.default_rng(1).normal(size=3_000_000)  # beyond the limit for records
    with Journal.create(path, PROTOCOL) as journal:
        journal.save_snapshot(0, {"big": big}, {})
        np.testing.assert_array_equal(journal.latest_snapshot().arrays["big"], big)


def test_a_damaged_snapshot_falls_back_to_the_one_before_and_then_to_replay(path):
    with Journal.create(path, PROTOCOL) as journal:
        for i in range(2):
            journal.append("outcome", {"i": i})
            journal.save_snapshot(len(journal) - 1, {"i": np.array([i])}, {})
    damage = (
        "UPDATE snapshots SET data=zeroblob(length(data)) WHERE sequence=(SELECT "
        "max(sequence) FROM snapshots)"
    )
    rebuilt(path, lambda db: db.execute(damage), fix_head=False)
    with (
        Journal.open(path) as journal,
        pytest.warns(RuntimeWarning, match="snapshot 4 .* is damaged and was skipped"),
    ):
        assert journal.latest_snapshot().sequence == 1
    rebuilt(path, lambda db: db.execute("UPDATE snapshots SET data=NULL"), fix_head=False)
    with Journal.open(path) as journal, pytest.warns(RuntimeWarning, match="is damaged"):
        assert journal.latest_snapshot() is None


@pytest.mark.parametrize(
    ("sequence", "arrays", "message"),
    [
        (9, {}, "must be that of a record, 0 to 0, got 9"),
        (-1, {}, "got -1"),
        (0, {"../up": np.zeros(1)}, "the snapshot array name '../up' must be words"),
        (0, {"/abs": np.zeros(1)}, "the snapshot array name '/abs'"),
        (0, {"a": np.array([print])}, "is an array of object"),
        (0, {"a": [1.0]}, "the snapshot entry 'a' is a list"),
    ],
)
def test_a_snapshot_that_cannot_be_stored_is_refused(path, sequence, arrays, message):
    with Journal.create(path, PROTOCOL) as journal:
        with pytest.raises(RecordError, match=message):
            journal.save_snapshot(sequence, arrays, {})
        assert len(journal) == 1


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def huge_header() -> bytes:
    small = npy(np.zeros(4))
    return small.replace(b"(4,), }            ", b"(900000000000000,)}")


def test_a_claimed_shape_is_checked_before_anything_is_allocated():
    # the replacement above took place without moving a byte
    assert len(huge_header()) == len(npy(np.zeros(4)))
    with pytest.raises(JournalCorruptError, match=r"claims shape \(900000000000000,\)"):
        unpack(npz({"a.npy": huge_header()}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            npz({"a.npy": b"\x00" * 2**26}, zipfile.ZIP_DEFLATED),
            "is compressed or claims 67,108,864 bytes",
        ),
        (npz({"../../etc/a.npy": npy(np.zeros(1))}), "has the member name '../../etc/a.npy'"),
        (npz({"/etc/a.npy": npy(np.zeros(1))}), "has the member name"),
        (npz({"a.pkl": b"cos\nsystem\n"}), "has the member name 'a.pkl'"),
        (npz({"a.npy": npy(np.array(["x"]))}), "holds <U1, not plain numbers"),
        (npz({"a.npy": npy(np.zeros(1, [("f", "<f8")]))}), "not plain numbers"),
        (npz({"a.npy": npy(np.zeros(4))[:-8]}), r"claims shape \(4,\) of float64 in 24 bytes"),
        (npz({"a.npy": b"\x93NUMPY\x03\x00" + bytes(100)}), r"npy version \(3, 0\)"),
        (b"PK\x03\x04 nothing", "is not npz bytes"),
        (b"", "is not npz bytes"),
    ],
)
def test_hostile_npz_bytes_are_refused(data, message):
    with pytest.raises(JournalCorruptError, match=message):
        unpack(data)


def test_the_same_arrays_give_the_same_bytes():
    arrays = {"a": np.arange(3.0), "b": np.asfortranarray(np.ones((2, 3)))}
    assert pack(arrays) == pack(arrays)
    assert all(same(unpack(pack(arrays))[k], v) for k, v in arrays.items())


# nothing is executed ------------------------------------------------------------------------------


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return builtins.exec, (
            f"import pathlib; pathlib.Path({str(self.target)!r}).write_text('executed')",
        )


def hostile_files(target: Path) -> dict[str, bytes]:
    bomb = pickle.dumps(Bomb(target))
    objects = io.BytesIO()
    np.save(objects, np.array([Bomb(target)], object), allow_pickle=True)
    return {
        "pickle": bomb,
        "npz with pickle": npz({"a.npy": objects.getvalue()}),
        "npy with pickle": objects.getvalue(),
        "pt": npz({"archive/data.pkl": bomb, "archive/version": b"3\n"}),
        "joblib": bomb + b"\x00" * 16,
        "zip": npz({"__main__.py": f"open({str(target)!r}, 'w')".encode()}),
    }


NAMES = sorted(hostile_files(Path("x")))


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_given_as_a_journal_runs_nothing(path, tmp_path, name):
    target = tmp_path / "executed"
    filled(path)
    path.write_bytes(hostile_files(target)[name])
    with pytest.raises(JournalCorruptError, match="could not be read: file is not a database"):
        Journal.open(path)
    alone = tmp_path / "alone.db"
    alone.write_bytes(hostile_files(target)[name])
    with pytest.raises(JournalCorruptError, match="is not a journal"):
        Journal.open(alone)
    assert not target.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_stored_as_a_snapshot_runs_nothing(path, tmp_path, name, monkeypatch):
    target = tmp_path / "executed"
    data = hostile_files(target)[name]
    # so that hash, chain and head all vouch for it
    monkeypatch.setattr("gedppl.journal.pack", lambda arrays: data)
    with Journal.create(path, PROTOCOL) as journal:
        journal.save_snapshot(0, {}, {})
    with (
        Journal.open(path) as journal,
        pytest.warns(RuntimeWarning, match="is damaged and was skipped"),
    ):
        assert journal.latest_snapshot() is None
    assert not target.exists()


def test_the_bomb_would_go_off(tmp_path):
    """The positive control: the ways of loading that the journal avoids do execute it."""
    for name in ("pickle", "npy with pickle"):
        target = tmp_path / name
        data = hostile_files(target)[name]
        if name == "pickle":
            pickle.loads(data)
        else:
            np.load(io.BytesIO(data), allow_pickle=True)
        assert target.read_text() == "executed"


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (
            [
                "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records WHERE sequence "
                "< "
                "new.sequence; END"
            ],
            "t",
        ),
        (["CREATE VIEW v AS SELECT load_extension('x')"], "v"),
        (["ALTER TABLE records RENAME TO r", "CREATE VIEW records AS SELECT * FROM r"], "r"),
        (["CREATE VIRTUAL TABLE f USING fts3(a)"], "f"),
        (["CREATE TABLE sly (a, b AS (abs(a)))"], "sly"),
        (["CREATE INDEX i ON records(kind)"], "i"),
        (["ALTER TABLE records ADD COLUMN extra DEFAULT 7"], "records"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused_before_a_table_is_read(path, statements, found):
    filled(path)
    rebuilt(path, lambda db: [db.execute(s) for s in statements], fix_head=False)
    with pytest.raises(JournalCorruptError, match="in its schema"):
        Journal.open(path)


def test_a_trigger_would_do_harm(path):
    """The positive control of the test above: without the schema check the trigger eats the
    history.
    """
    filled(path)
    trigger = (
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records WHERE sequence < 5; END"
    )
    rebuilt(path, lambda db: db.execute(trigger), fix_head=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_files, "_check_schema", lambda *_: None)
        with Journal.open(path) as journal:
            journal.append("outcome", {"i": 1})
            with pytest.raises(JournalCorruptError):
                list(journal.records())


def test_a_stray_rollback_journal_is_refused(path):
    filled(path)
    Path(f"{path}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1000))
    with pytest.raises(JournalCorruptError, match="SQLite would play it back"):
        Journal.open(path)


def test_an_absurdly_long_record_is_refused_before_it_is_read(path):
    filled(path)
    rebuilt(
        path,
        lambda db: db.execute("UPDATE records SET arrays=zeroblob(40000000) WHERE sequence=5"),
        fix_head=False,
    )
    with pytest.raises(JournalCorruptError, match="too big"):
        Journal.open(path)


# exports ------------------------------------------------------------------------------------------


def test_the_csv_has_one_readable_row_a_record(path, tmp_path):
    filled(path, 2)
    with Journal.open(path) as journal:
        journal.append(
            "alarm", {"sentence": "=cmd|' /C calc'!A0", "time": "payload's own", "e": 21.5}
        )
        assert journal.export_csv(tmp_path / "out.csv") == 6
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["kind"] == "protocol"
    assert rows[0]["protocol.delta"] == "0.05"
    assert "blinding_key" not in rows[0]
    assert json.loads(rows[1]["x"]) == [0.0, 1.0, 2.0]
    assert float(rows[4]["z.cost"]) == 1 / 7
    assert rows[5]["sentence"].startswith("'=")
    assert rows[5]["payload.time"] == "payload's own"


def test_the_blinded_export_shows_codes_and_nothing_that_gives_them_away(path, tmp_path):
    with Journal.create(path, PROTOCOL) as journal:
        for i in range(6):
            journal.append(
                "decision",
                {
                    "id": i,
                    "x": [0.5],
                    "action": i % 3,
                    "policy": [0.3, 0.7],
                    "certificate": {"a": 1},
                    "new_key": i % 3,
                },
            )
        journal.append("alarm", {"sentence": "arm 2 hurts"})
        journal.append("observe", {"x": [[0.0]], "a": np.array([2, 0]), "y": [0.3, 0.4]})
        for name in ("one.csv", "two.csv"):
            assert journal.export_csv(tmp_path / name, Blinding()) == 7
    with Journal.open(path) as journal:
        journal.export_csv(tmp_path / "three.csv", Blinding())
        with pytest.raises(RecordError, match="could overwrite the journal itself"):
            journal.export_csv(f"{path}.head")
    text = (tmp_path / "one.csv").read_text()
    assert text == (tmp_path / "two.csv").read_text() == (tmp_path / "three.csv").read_text()
    with open(tmp_path / "one.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"sequence", "time", "kind", "id", "x", "action", "a", "y"}
    codes = [row["action"] for row in rows[:6]]
    assert codes[:3] == codes[3:]
    assert len(set(codes)) == 3
    assert json.loads(rows[6]["a"]) == [codes[2], codes[0]]
    with Journal.create(tmp_path / "other.db", PROTOCOL) as other:
        other.append("decision", {"id": 0, "action": 0})
        other.export_csv(tmp_path / "other.csv", Blinding())
    assert codes[0] not in (tmp_path / "other.csv").read_text()


def test_parquet_without_pyarrow_says_what_to_install(path, tmp_path, monkeypatch):
    filled(path, 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        Journal.open(path) as journal,
        pytest.raises(BackendNotFoundError, match="pip install pyarrow"),
    ):
        journal.export_parquet(tmp_path / "out.parquet")


def test_parquet_has_the_same_rows(path, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    filled(path, 2)
    with Journal.open(path) as journal:
        journal.append("observe", {"id": "text", "big": 2**100, "mixed": 1})
        journal.append("observe", {"id": 1.5, "mixed": 0.5})
        assert journal.export_parquet(tmp_path / "out.parquet") == 7
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["kind"] for row in table][:3] == ["protocol", "decision", "outcome"]
    assert table[4]["z.cost"] == 1 / 7
    assert [row["mixed"] for row in table][-2:] == [1.0, 0.5]
    assert table[-2]["big"] == str(2**100)
