"""Damaged and prepared files, many of them, read in a process of their own, which says how each
ended and what memory it took.

    python -m tests.fuzzed_files SEED KIND COUNT [KIND COUNT ...]      KIND: one of `READ`

A mutant that is `prepared` has hashes that match: that is what somebody can make who knows the
format.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gedppl as ged
from gedppl.errors import GedError
from gedppl.journal.format import GENESIS, HEAD_BYTES, Head, chain
from gedppl.journal.snapshot import pack, unpack
from gedppl.study.cli.tables import journal_table, journal_text
from gedppl.study.simulation import FixedPolicy, simulate
from tests.hostile_runs import signed
from tests.plain_worlds import PlainWorld, play

WORLD = PlainWorld()
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    [{}] * 50,
    {"a": 1},
    {"$array": ["<f8", [2**40], 0]},
    {"$array": ["<f8", [2**30, 2**30], 0]},
    {"$array": ["|O", [1], 0]},
    {"$array": 3},
    json.loads("[" * 200 + "]" * 200),
]


# mutating -----------------------------------------------------------------------------------------


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, lost, put in, repeated, set to zero, or the end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at, size = rng.randrange(len(out) + 1), rng.choice([1, 2, 8, 64, 512])
        how = rng.randrange(7)
        if how == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[at : at + size] = rng.randbytes(min(size, len(out) - at))
        elif how == 2:
            del out[at : at + size]
        elif how == 3:
            out[at:at] = rng.randbytes(size)
        elif how == 4:
            out[at:at] = out[at : at + size]
        elif how == 5:
            out[at : at + size] = bytes(min(size, len(out) - at))
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def other_value(tree: Any, rng: random.Random) -> Any:
    """The same JSON with one value somewhere in it replaced by a hostile one, or a key lost."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.15:
        return rng.choice(HOSTILE)
    key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    copy = tree.copy()
    if rng.random() < 0.1:
        del copy[key]
    else:
        copy[key] = other_value(tree[key], rng)
    return copy


def inflating(archive: zipfile.ZipFile, name: str, rows: int) -> None:
    """An array of 16 bytes a row that is all zeros: deflated, a thousandth of it. Written piece
    by piece.
    """
    rows = rows if archive.compression == zipfile.ZIP_DEFLATED else min(rows, 10**5)
    header = {"descr": "<f8", "fortran_order": False, "shape": (rows, 2)}
    with archive.open(name, "w") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for _ in range(rows // 10**4):
            stream.write(bytes(16 * 10**4))


def other_header(data: bytes, rng: random.Random) -> bytes:
    """An npz whose arrays claim other shapes and types than they have, or inflate far beyond the
    file.
    """
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = source.namelist()
    victim = rng.choice(names)
    with zipfile.ZipFile(
        target, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    ) as archive:
        for name in names:
            content = source.read(name)
            if name == victim:
                how = rng.randrange(5)
                if how == 0:
                    content = content[:10] + content[10:].replace(
                        b"'shape': (", b"'shape': (9" + b"9" * rng.randrange(12), 1
                    )
                elif how == 1:
                    content = content.replace(
                        b"<f8", rng.choice([b"|O8", b"<U9", b"<f2", b"<c8", b"|V9"]), 1
                    )
                elif how == 2:
                    inflating(archive, name, rng.choice([1] * 12 + [10] * 6 + [200]) * 10**5)
                    continue
                elif how == 3:
                    content = mutated(content, rng)
                else:
                    continue
            archive.writestr(name, content)
    return target.getvalue()


def prepared_journal(path: Path, rng: random.Random) -> None:
    """One record says something else, and every hash behind it is right."""

    def change(rows: list[list[Any]]) -> None:
        victim = rng.choice(rows)
        victim[4] = json.dumps(other_value(json.loads(victim[4]), rng))
        if rng.random() < 0.2:
            victim[3] = rng.choice(
                ["decision", "outcome", "observe", "change", "alarm", "snapshot", "nothing"]
            )

    resealed(path, change)


def resealed(path: Path, change: Callable[[list[list[Any]]], None]) -> None:
    """The journal with its records [sequence, batch, time, kind, text, blob, hash] changed, and
    every hash right.
    """
    with closing(sqlite3.connect(path)) as db, db:
        rows = [list(row) for row in db.execute("SELECT * FROM records ORDER BY sequence")]
        change(rows)
        previous = GENESIS
        for row in rows:
            sequence, batch, time_ns, kind, text, blob, _ = row
            previous = row[6] = chain(
                previous, sequence, batch, time_ns, kind.encode(), text.encode(), blob
            )
            db.execute(
                "UPDATE records SET kind = ?, payload = ?, hash = ? WHERE sequence = ?",
                (kind, text, previous, sequence),
            )
    offset, slot = Head(1, len(rows), previous).slot()
    head = bytearray(HEAD_BYTES)
    head[offset : offset + len(slot)] = slot
    Path(f"{path}.head").write_bytes(bytes(head))


# reading ------------------------------------------------------------------------------------------


def fingerprint(run: ged.Run) -> str:
    h = hashlib.sha256(
        repr(
            (run.seed, run.interrupted, run.segments, run.meta, run.y, run.z, run.certificates)
        ).encode()
    )
    for name in (
        "x",
        "action",
        "policy",
        "utilities",
        "costs",
        "limit",
        "worst_case",
        "realised",
        "cost_upper",
        "best",
    ):
        h.update(np.ascontiguousarray(getattr(run, name)).tobytes())
    h.update(
        repr(
            (
                run.problem.n_actions,
                run.problem.safe_action,
                run.problem.constraint_names,
                run.problem.limits,
            )
        ).encode()
    )
    return h.hexdigest()


def a_run(folder: Path) -> Path:
    class Environment:
        context, outcome = WORLD.context, WORLD.outcome

        def utilities(self, x):
            return WORLD.truth[0][int(x[0])]

        def costs(self, x):
            return WORLD.truth[1][int(x[0])][None]

    run = simulate(WORLD.problem, Environment(), FixedPolicy(lambda x: [0.5, 0.25, 0.25]), 12)
    run.rounds = [
        replace(r, certificate={"round": i, "constraints": [{"name": "cost"}]})
        for i, r in enumerate(run.rounds)
    ]
    run.segments = {"ward": ["a", "b"] * 6}
    return run.save(folder)


def of_a_run(
    name: str, mutate: Callable[[bytes, random.Random], bytes], prepared: float
) -> Callable[..., Any]:
    def reader(folder: Path) -> tuple[Callable[[random.Random], str], Callable[[], None]]:
        source, target = a_run(folder / "source"), folder / "target"
        expected, data = fingerprint(ged.Run.load(source)), (source / name).read_bytes()

        def read(rng: random.Random) -> str:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            (target / name).write_bytes(mutate(data, rng))
            trusted = rng.random() < prepared
            if trusted:
                signed(target)
            found = fingerprint(ged.Run.load(target))
            return "same" if found == expected else "prepared" if trusted else "OTHER CONTENT"

        return read

    return reader


def as_json(data: bytes, rng: random.Random) -> bytes:
    return (
        mutated(data, rng)
        if rng.random() < 0.5
        else json.dumps(other_value(json.loads(data), rng)).encode()
    )


def a_prepared_meta(folder: Path) -> Callable[[random.Random], str]:
    """Every value of ``run.json`` is somebody else's, and the hash is right."""
    source, target = a_run(folder / "source"), folder / "target"
    meta = json.loads((source / "run.json").read_text())
    del meta["sha256"]

    def read(rng: random.Random) -> str:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        changed = other_value(meta, rng)
        if not isinstance(changed, dict):
            (target / "run.json").write_text(json.dumps(changed))
        else:
            (target / "run.json").write_text(json.dumps({"sha256": {}} | changed))
            signed(target)
        ged.Run.load(target)
        return "prepared"

    return read


def a_netcdf(folder: Path) -> Callable[[random.Random], str]:
    """``run.nc`` is written for others and never read: whatever it holds, the run is the same
    and can be written over it.
    """
    from gedppl.learning import arviz_shim

    source = a_run(folder / "source")
    run = ged.Run.load(source)
    tree, expected = run.to_arviz(), fingerprint(run)
    arviz_shim.write_netcdf(tree, source / "run.nc")
    data = (source / "run.nc").read_bytes()

    def read(rng: random.Random) -> str:
        (source / "run.nc").write_bytes(mutated(data, rng))
        same = fingerprint(ged.Run.load(source)) == expected
        if rng.random() < 0.02:
            arviz_shim.write_netcdf(tree, source / "run.nc")
            same &= len((source / "run.nc").read_bytes()) == len(data)
        return "same" if same else "OTHER CONTENT"

    return read


def a_journal(folder: Path, prepared: bool) -> Callable[[random.Random], str]:
    source, target = folder / "source.db", folder / "target.db"
    agent = ged.GEDUCB(WORLD.problem, seed=2, journal=source)
    play(agent, WORLD, 4)
    agent.set_limit("cost", 0.45)
    agent.observe([[0.0], [1.0]], [1, 2], [1.0, 0.0], [0.0, 0.0])
    expected = agent.state_hash()
    agent.close()

    def read(rng: random.Random) -> str:
        for end in ("", ".head", "-wal", "-shm", "-journal"):
            Path(f"{target}{end}").unlink(missing_ok=True)
        for end in ("", ".head"):
            shutil.copy(f"{source}{end}", f"{target}{end}")
        if prepared:
            prepared_journal(target, rng)
        else:
            victim = Path(f"{target}{rng.choice(['', '', '', '.head'])}")
            victim.write_bytes(mutated(victim.read_bytes(), rng))
        journal_text(target)
        journal_table(target, folder / "out.csv")
        with ged.resume(target, WORLD.problem) as back:
            found = back.state_hash()
        return "same" if found == expected else "prepared" if prepared else "OTHER CONTENT"

    return read


def a_snapshot(folder: Path) -> Callable[[random.Random], str]:
    data = pack(
        {"a": np.arange(300.0).reshape(3, 100), "b/c": np.array([True, False]), "n": np.arange(7)}
    )
    expected = {name: array.tobytes() for name, array in unpack(data).items()}

    def read(rng: random.Random) -> str:
        found = unpack(other_header(data, rng) if rng.random() < 0.4 else mutated(data, rng))
        return (
            "same"
            if {name: array.tobytes() for name, array in found.items()} == expected
            else "prepared"
        )

    return read


READ: dict[str, Callable[[Path], Callable[[random.Random], str]]] = {
    "run.npz": of_a_run(
        "run.npz", lambda d, r: other_header(d, r) if r.random() < 0.6 else mutated(d, r), 0.8
    ),
    "run.json": of_a_run("run.json", as_json, 0.0),
    "prepared run.json": a_prepared_meta,
    "certificates.jsonl.gz": of_a_run("certificates.jsonl.gz", mutated, 0.8),
    "run.nc": a_netcdf,
    "journal": lambda folder: a_journal(folder, False),
    "prepared journal": lambda folder: a_journal(folder, True),
    "snapshot": a_snapshot,
}


def peak_mb() -> float:
    """The most memory that this process ever had. (`ru_maxrss` begins with that of the process
    that started it.)
    """
    status = Path("/proc/self/status")
    if status.exists():
        return next(
            int(line.split()[1]) / 1024
            for line in status.read_text().splitlines()
            if line.startswith("VmHWM")
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(kind: str, count: int, seed: int) -> dict[str, Any]:
    """How `count` mutants ended, by name of the error, and by how many MB the process grew."""
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = READ[kind](Path(folder))
        before = peak_mb()
        for i in range(count):
            try:
                ended[read(random.Random(f"{kind} {seed} {i}"))] += 1
            except GedError as error:
                ended[type(error).__name__] += 1
            except Exception as error:
                ended[f"UNNAMED {type(error).__name__}: {error} (mutant {i})"[:300]] += 1
        grown = peak_mb() - before
    return {"ended": dict(ended), "grown_mb": round(grown, 1)}


if __name__ == "__main__":
    seed, kinds, counts = int(sys.argv[1]), sys.argv[2::2], map(int, sys.argv[3::2])
    print(json.dumps({kind: main(kind, count, seed) for kind, count in zip(kinds, counts)}))
