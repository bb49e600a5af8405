"""Files that were damaged, or prepared by somebody: a named error or the same content, never a
crash, never much memory.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gedppl as ged
from gedppl.errors import (
    JournalCorruptError,
    RecordError,
    RunFileError,
    SettingError,
    UnsafeFileError,
)
from gedppl.journal import format as reading
from gedppl.journal.format import MAX_DECODED_BYTES, MAX_DEPTH, decode, encode
from gedppl.study.cli.tables import journal_text
from gedppl.study.simulation import run_files
from tests.fuzzed_files import READ, WORLD, a_run, fingerprint, inflating, resealed
from tests.hostile_runs import signed
from tests.plain_worlds import play

ROOT = Path(__file__).parents[1]
MOST_MB = 200
# the others cost a millisecond or two each
QUICK = {"journal": 30, "prepared journal": 30, "run.nc": 40}


def fuzzed(counts: dict[str, int], seed: int) -> dict[str, dict[str, Any]]:
    """In a process of their own, so that a crash is seen and its memory is its own."""
    asked = [str(word) for pair in counts.items() for word in pair]
    command = [sys.executable, "-m", "tests.fuzzed_files", str(seed), *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict[str, Any], count: int) -> None:
    wrong = {
        how: n for how, n in found["ended"].items() if how.startswith(("UNNAMED", "OTHER CONTENT"))
    }
    assert not wrong
    assert sum(found["ended"].values()) == count
    assert found["grown_mb"] < MOST_MB


def test_some_mutants() -> None:
    counts = {kind: QUICK.get(kind, 100) for kind in READ}
    found = fuzzed(counts, 0)
    assert set(found) == set(READ)
    for kind, count in counts.items():
        check(found[kind], count)
    assert sum(one["grown_mb"] for one in found.values()) < MOST_MB


@pytest.mark.slow
@pytest.mark.parametrize("kind", READ)
def test_ten_thousand_mutants(kind) -> None:
    """8 kinds x 1,250."""
    check(fuzzed({kind: 1250}, 1)[kind], 1250)


# runs that claim more than they have --------------------------------------------------------------


def bomb(folder: Path) -> Path:
    """A run of 0.3 MB whose members would take 320 MB; all hashes and headers are right."""
    a_run(folder)
    with zipfile.ZipFile(folder / "run.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        inflating(archive, "member_0.npy", 2 * 10**7)
    return signed(folder, members=[["cost", "w"]])


def test_a_small_file_that_would_need_much_memory_is_refused_by_its_headers(
    tmp_path, monkeypatch
) -> None:
    assert sum(p.stat().st_size for p in bomb(tmp_path).iterdir()) < 400_000
    monkeypatch.setattr(reading.Npz, "read", lambda *_: pytest.fail("an array was read"))
    with pytest.raises(
        RunFileError,
        match=r"would need more than [\d,]+ bytes .* out of "
        r"proportion .* max_bytes=",
    ):
        ged.Run.load(tmp_path)


LOADED = """
import sys, gedppl
from gedppl.errors import RunFileError
from tests.fuzzed_files import peak_mb
before = peak_mb()
for max_bytes in (None, 2**30):
    try:
        gedppl.Run.load(sys.argv[1], max_bytes=max_bytes)
    except RunFileError:
        pass
    print(peak_mb() - before)
"""


def test_what_is_trusted_is_loaded_and_the_limit_is_what_keeps_the_memory(tmp_path) -> None:
    """The second number is the positive control: without the limit the very file takes hundreds
    of megabytes.
    """
    bomb(tmp_path)
    command = [sys.executable, "-c", LOADED, str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    limited, trusted = map(float, done.stdout.split())
    assert limited < 60
    assert 300 <= trusted < 1000


@pytest.mark.parametrize("max_bytes", [-1, True, 1.5, "1 GB"])
def test_a_limit_is_a_number_of_bytes(tmp_path, max_bytes) -> None:
    with pytest.raises(SettingError, match="max_bytes must be a whole number of bytes"):
        ged.Run.load(a_run(tmp_path), max_bytes=max_bytes)


def test_what_is_saved_can_be_loaded_however_well_it_compresses(tmp_path, monkeypatch) -> None:
    """Arrays that compress too well are stored as they are. With little for free, so that a
    small run shows it.
    """
    monkeypatch.setattr(run_files, "FREE_BYTES", 0)
    monkeypatch.setattr(run_files, "PER_BYTE", 10**6)
    run = ged.Run.load(a_run(tmp_path / "a"))
    run.rounds, run.segments = run.rounds * 34, {}
    monkeypatch.setattr(run_files, "PER_BYTE", 20)
    assert fingerprint(ged.Run.load(run.save(tmp_path / "a"))) == fingerprint(run)
    monkeypatch.setattr(np, "savez", np.savez_compressed)  # the control
    run.save(tmp_path / "b")
    with pytest.raises(RunFileError, match="out of proportion"):
        ged.Run.load(tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"null\n" * 8_000_000, "has more than 12 rounds"),
        (b" " * 40_000_000, "has a line of more than"),
        (b"[" * 100_000 + b"]" * 100_000, "is nested 100,000 levels deep"),
        (b"[" + b"[]," * 2_000_000 + b"[]]", "out of proportion|a line of more than|would need"),
        (b"\n".join([b"3"] * 12), "certificate 0 is a int"),
        (b"\n".join([b"null"] * 11), "has 11 rounds"),
        (b"", "has 0 rounds"),
    ],
)
def test_certificates_are_inflated_piece_by_piece(tmp_path, text, match) -> None:
    a_run(tmp_path)
    (tmp_path / "certificates.jsonl.gz").write_bytes(gzip.compress(text))
    signed(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(RunFileError, match=match):
            ged.Run.load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 30 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "end", [b"more", gzip.compress(b"null", mtime=0)], ids=["text", "a second stream"]
)
def test_nothing_may_follow_the_compressed_data(tmp_path, end) -> None:
    a_run(tmp_path)
    path = tmp_path / "certificates.jsonl.gz"
    path.write_bytes(path.read_bytes() + end)
    with pytest.raises(RunFileError, match="goes on behind its compressed data"):
        ged.Run.load(signed(tmp_path))


def test_one_changed_byte_in_any_file_is_found(tmp_path) -> None:
    """The hashes see what no other check can: another seed, another policy."""
    a_run(tmp_path)
    text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(RunFileError, match=r"run.json does not match the hash in run.json"):
        ged.Run.load(tmp_path)
    assert ged.Run.load(signed(tmp_path)).seed == 1  # the control


def test_a_run_of_the_first_format_is_read(tmp_path) -> None:
    expected = fingerprint(ged.Run.load(a_run(tmp_path)))
    meta = json.loads((tmp_path / "run.json").read_text())
    hashes = meta.pop("sha256")
    (tmp_path / "run.json").write_text(json.dumps(meta | {"format": 1}))
    assert fingerprint(ged.Run.load(tmp_path)) == expected
    # hashes cannot be left out by a slip
    for wrong in (meta | {"format": 2}, meta | {"format": 1, "sha256": hashes}):
        (tmp_path / "run.json").write_text(json.dumps(wrong))
        with pytest.raises(RunFileError):
            ged.Run.load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"rounds": 10**9}, "out of proportion"),
        ({"rounds": -1}, "-1 for rounds"),
        ({"rounds": True}, "True for rounds"),
        (
            {
                "problem": {
                    "n_actions": 3,
                    "safe_action": 0,
                    "constraint_names": ["a", "b"],
                    "limits": [1, 2],
                }
            },
            "has shape",
        ),
        ({"outcomes": ["utility"] * 3}, "'outcome_2' has -1 rounds"),
        ({"segments": []}, None),
    ],
)
def test_what_run_json_says_is_compared_with_the_arrays(tmp_path, changed, match) -> None:
    a_run(tmp_path)
    signed(tmp_path, **changed)
    if match is None:
        assert ged.Run.load(tmp_path).segments == {}
        return
    with pytest.raises(RunFileError, match=match):
        ged.Run.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("action", np.full(12, 3), "actions that are none of 0, ..., 2"),
        ("action", np.zeros(12), "actions that are none of 0, ..., 2"),
        ("x", np.array(["a"] * 12), "labels are texts, all else are numbers"),
        ("policy", np.zeros((12, 2)), "has shape"),
        ("best", np.zeros((12, 1)), "has shape"),
    ],
)
def test_arrays_of_another_kind_are_named(tmp_path, name, array, match) -> None:
    a_run(tmp_path)
    with np.load(tmp_path / "run.npz") as file:
        arrays = dict(file) | {name: array}
    np.savez(tmp_path / "run.npz", **arrays)
    with pytest.raises(RunFileError, match=match):
        ged.Run.load(signed(tmp_path))


# what a fuzzer found ------------------------------------------------------------------------------


def a_journal(folder: Path, kind: str, **changed) -> tuple[Path, str]:
    """A closed journal with a snapshot, its last record of this kind changed and every hash
    right; and the agent's state.
    """
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=folder / "j.db")
    play(agent, WORLD, 3)
    state = agent.state_hash()
    agent.close()

    def change(rows) -> None:
        victim = [row for row in rows if row[3] == kind][-1]
        victim[4] = json.dumps(
            {k: v for k, v in (json.loads(victim[4]) | changed).items() if v is not None}
        )

    resealed(folder / "j.db", change)
    return folder / "j.db", state


@pytest.mark.parametrize("meta", [None, 3.0, []])
def test_a_snapshot_that_does_not_say_what_it_holds_is_skipped(tmp_path, meta) -> None:
    path, state = a_journal(tmp_path, "snapshot", meta=meta)
    with (
        pytest.warns(RuntimeWarning, match="does not say what its arrays are"),
        ged.resume(path, WORLD.problem) as back,
    ):
        assert back.state_hash() == state


@pytest.mark.parametrize("certificate", [3.0, "x", [1]])
def test_a_decision_whose_certificate_is_none_is_shown_without(tmp_path, certificate) -> None:
    path, _ = a_journal(tmp_path, "decision", certificate=certificate)
    assert "last 3 decisions" in journal_text(path)


# JSON in a journal --------------------------------------------------------------------------------


def test_json_that_would_need_much_memory_is_neither_written_nor_read() -> None:
    text = b'{"a":[' + b"[]," * 2_500_000 + b"[]]}"
    assert len(text) < 8 * 2**20
    assert reading.json_bytes(text) > MAX_DECODED_BYTES
    with pytest.raises(JournalCorruptError, match="too many values"):
        decode(text, b"")
    with pytest.raises(RecordError, match="store long lists of numbers as arrays"):
        encode({"a": [0] * 2_200_000})


def test_json_may_be_nested_as_deeply_as_it_is_written_and_no_deeper() -> None:
    def nested(depth: int, inside: object) -> object:
        return inside if depth == 0 else [nested(depth - 1, inside)]

    payload = {"a": nested(MAX_DEPTH - 2, np.zeros(2))}
    text, blob = encode(payload)
    assert decode(text, blob)["a"] is not None
    with pytest.raises(RecordError, match="nested deeper"):
        encode({"a": nested(MAX_DEPTH + 1, 0.0)})
    with pytest.raises(JournalCorruptError, match="nested too deeply"):
        decode(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", b"")


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"", 0),
        (b"3", 0),
        (b'"[[["', 0),
        (b'"\\"[["', 0),
        (b'["]]", {"a[": []}]', 3),
        (b"[][][]", 1),
    ],
)
def test_depth_is_counted_outside_strings(text, depth) -> None:
    assert reading.json_depth(text) == depth


def test_a_file_that_is_too_long_is_not_read(tmp_path) -> None:
    (tmp_path / "a").write_bytes(bytes(11))
    assert reading.contents(tmp_path / "a", 11) == bytes(11)
    with pytest.raises(UnsafeFileError, match="has 11 bytes, the limit is 10"):
        reading.contents(tmp_path / "a", 10)
    with pytest.raises(UnsafeFileError, match="No such file"):
        reading.contents(tmp_path / "b", 10)
