"""Runs on disk: arrays in ``run.npz``, the rest in ``run.json``, certificates in
``certificates.jsonl.gz``.

Nothing is pickled, and reading executes nothing. Each file is written beside its final name and
then moved there; ``run.json`` comes last and holds the hashes of all three, so that files that were
altered, or belong to two runs, are found. What a run needs in memory is known from headers before
its arrays are read: a file that claims much more than it has bytes is refused, however well it is
made.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from functools import singledispatch
from pathlib import Path
from typing import IO, Any

import numpy as np

from gedppl.certificate import plain
from gedppl.errors import RunFileError, RunNotFoundError, SettingError, UnsafeFileError
from gedppl.journal import format as reading
from gedppl.numerics.arrays import is_whole
from gedppl.problem import UTILITY
from gedppl.problem.names import Names, declared_actions, declared_columns
from gedppl.study.simulation.runs import Round, Run, RunOutline

FORMAT = 2  # 1 had no hashes
ARRAYS, META, CERTIFICATES = "run.npz", "run.json", "certificates.jsonl.gz"
_FIELDS = (
    "x",
    "utilities",
    "costs",
    "oracle",
    "limit",
    "worst_case",
    "realised",
    "estimate",
    "bonus",
    "width",
    "cost_lower",
    "cost_upper",
)
_HASHES = "sha256"
_PER_ACTION = ("policy", "utilities", "oracle", "estimate", "bonus", "width")
_PER_LIMIT = ("limit", "worst_case", "realised")
_PER_BOTH = ("costs", "cost_lower", "cost_upper")

# A loaded run needs about 6 kB a round, and 100 times the bytes of its files if they compress well.
# A small file may claim FREE_BYTES, a larger one more in proportion; `save` does not compress
# arrays whose run would need more than that.
FREE_BYTES, PER_BYTE = 96 * 2**20, 150
# of a round beside its numbers and its certificate; of an outcome
ROUND_BYTES, OUTCOME_BYTES = 2500, 128
MAX_META, MAX_META_BYTES = 16 * 2**20, 64 * 2**20  # of run.json, on disk and in memory
MAX_LINE = 4 * 2**20  # of one certificate, on disk


def save(run: Run, folder: str | Path) -> Path:
    """Write the run into a folder, which is made if need be; returns the folder."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    arrays = {name: run.column(name) for name in _FIELDS}
    arrays |= {"action": run.action, "policy": run.policy, "best": run.best}
    outcomes, members = (
        run.outcomes(),
        [(o, s, v) for o, sites in run.members.items() for s, v in sites.items()],
    )
    arrays |= {f"outcome_{i}": values for i, values in enumerate(outcomes.values())}
    arrays |= {
        f"segment_{i}": np.array(labels, dtype=str)
        for i, labels in enumerate(run.segments.values())
    }
    arrays |= {f"member_{i}": value for i, (_, _, value) in enumerate(members)}
    outline = RunOutline.of(run.problem)
    meta = {
        "format": FORMAT,
        "seed": run.seed,
        "rounds": len(run),
        "interrupted": run.interrupted,
        "problem": {
            "n_actions": outline.n_actions,
            "safe_action": outline.safe_action,
            "constraint_names": outline.constraint_names,
            "limits": outline.limits.tolist(),
            "actions": outline.names.actions,
            "columns": None if outline.names.columns is None else dict(outline.names.columns),
            "every_draw": outline.every_draw.tolist(),
        },
        "outcomes": list(outcomes),
        "segments": list(run.segments),
        "members": [[o, s] for o, s, _ in members],
        "environment_state": plain(run.environment_state),
        "meta": plain(run.meta),
    }
    certificates = "\n".join(
        json.dumps(strict(plain(c)), allow_nan=False) for c in run.certificates
    ).encode()
    _replace(target / CERTIFICATES, lambda file: file.write(gzip.compress(certificates, mtime=0)))
    _replace(target / ARRAYS, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    objects = _object_bytes(len(run), len(outcomes), len(run.segments))
    if objects + sum(a.nbytes for a in arrays.values()) + reading.json_bytes(
        certificates
    ) > _proportion(target):
        _replace(target / ARRAYS, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    meta = json.loads(json.dumps(meta))  # as it will be read: keys are texts, tuples are lists
    meta[_HASHES] = {name: reading.sha256(target / name) for name in (ARRAYS, CERTIFICATES)}
    meta[_HASHES][META] = own_hash(meta)
    _replace(target / META, lambda file: file.write((json.dumps(meta, indent=1) + "\n").encode()))
    return target


def own_hash(meta: dict[str, Any]) -> str:
    """Of everything in ``run.json`` but this hash itself."""
    others = {name: value for name, value in meta[_HASHES].items() if name != META}
    return hashlib.sha256(json.dumps(meta | {_HASHES: others}, sort_keys=True).encode()).hexdigest()


def _object_bytes(rounds: int, outcomes: int, segments: int) -> int:
    """What a run's rounds need beside their arrays and certificates."""
    return rounds * (ROUND_BYTES + OUTCOME_BYTES * outcomes + reading.OBJECT_BYTES * segments)


def _proportion(source: Path) -> int:
    """The memory that a run may need, given the bytes on disk."""
    return FREE_BYTES + PER_BYTE * sum(
        (source / name).stat().st_size for name in (ARRAYS, CERTIFICATES)
    )


def load(folder: str | Path, max_bytes: int | None = None) -> Run:
    """Read a run; its problem is an `RunOutline`. `max_bytes`: the memory it may need, if not in
    proportion to its files.
    """
    source = Path(folder)
    if max_bytes is not None and (not is_whole(max_bytes) or max_bytes < 0):
        raise SettingError(f"max_bytes must be a whole number of bytes, got {max_bytes!r}")
    if not (source / META).is_file():
        raise RunNotFoundError(
            f"there is no run in {source}: no {META} there; `gedppl run ... "
            f"--out {source}` makes one"
        )
    try:
        meta = _read_meta(source)
        budget = _Budget(_proportion(source) if max_bytes is None else max_bytes)
        rounds = _count(meta["rounds"], "rounds")
        budget.take(
            _object_bytes(rounds, len(meta["outcomes"]), len(meta["segments"])),
            f"{rounds:,} rounds",
        )
        with reading.Npz(
            source / ARRAYS, ARRAYS, "biufU", (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        ) as file:
            budget.take(file.nbytes, ARRAYS)
            _check_kinds(file)
            _check_shapes(meta, {name: member.shape for name, member in file.members.items()})
            arrays = {name: file.read(name) for name in file.members}
        return _assemble(meta, arrays, _read_certificates(source, rounds, budget))
    except RunFileError:
        raise
    except (
        UnsafeFileError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
    ) as error:
        said = (
            str(error) if isinstance(error, UnsafeFileError) else f"{type(error).__name__}: {error}"
        )
        raise RunFileError(f"the run in {source} cannot be read ({said}); run it again") from error


class _Budget:
    """Memory that is still left for a run."""

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def take(self, needed: int, what: str) -> None:
        self.left -= needed
        if self.left < 0:
            raise UnsafeFileError(
                f"it would need more than {self.limit:,} bytes of memory, which is out of "
                "proportion to its files; the excess "
                f"came with {what}. If you trust them, Run.load(folder, max_bytes=...)"
            )


def _count(value: Any, what: str) -> int:
    if not is_whole(value) or value < 0:
        raise RunFileError(
            f"{META} has {value!r} for {what}, which must be a whole number of at least 0"
        )
    return int(value)


def _flags(values: Any, n: int) -> np.ndarray:
    if (
        not isinstance(values, list)
        or len(values) != n
        or not all(isinstance(v, bool) for v in values)
    ):
        raise RunFileError(
            f"{META} has {values!r} for every_draw, which must be {n} times true or false"
        )
    return np.array(values, bool)


def _read_meta(source: Path) -> dict[str, Any]:
    """``run.json``, if it and the files beside it are as they were written."""
    meta = reading.parsed(reading.contents(source / META, MAX_META), META, MAX_META_BYTES)
    if not isinstance(meta, dict):
        raise RunFileError(f"{source / META} holds a {type(meta).__name__}, not an object")
    if meta.get("format") not in (1, FORMAT) or (meta["format"] == 1) == (_HASHES in meta):
        raise RunFileError(
            f"{source / META} has format {meta.get('format')!r}, this version reads 1 and {FORMAT}"
        )
    if meta["format"] == FORMAT:
        found = {name: reading.sha256(source / name) for name in (ARRAYS, CERTIFICATES)} | {
            META: own_hash(meta)
        }
        wrong = sorted(name for name in found if found[name] != meta[_HASHES].get(name))
        if wrong:
            raise UnsafeFileError(
                f"{', '.join(wrong)} does not match the hash in {META}: altered, or files of two "
                "runs are mixed"
            )
    return meta


def _read_certificates(source: Path, rounds: int, budget: _Budget) -> list[Any]:
    certificates: list[Any] = []
    for line in reading.lines(source / CERTIFICATES, budget.left, MAX_LINE):
        if len(certificates) == rounds:
            raise UnsafeFileError(
                f"{CERTIFICATES} has more than {rounds:,} rounds, {META} says "
                f"{rounds:,}: two runs are mixed"
            )
        budget.take(reading.json_bytes(line), CERTIFICATES)
        certificates.append(
            reading.parsed(line, f"certificate {len(certificates)}", MAX_META_BYTES)
        )
        if not isinstance(certificates[-1], dict | None):
            raise UnsafeFileError(
                f"certificate {len(certificates) - 1} is a {type(certificates[-1]).__name__}"
            )
    return certificates


def _check_kinds(file: reading.Npz) -> None:
    for name, member in file.members.items():
        if (member.dtype.kind == "U") != name.startswith("segment_"):
            raise RunFileError(
                f"{name!r} holds {member.dtype}: labels are texts, all else are numbers"
            )


def _check_shapes(meta: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Before an array is read: each has the rounds, constraints and actions that the others
    have.
    """
    T, J = meta["rounds"], len(meta["problem"]["constraint_names"])
    first = (
        "action",
        "policy",
        "best",
        *_FIELDS,
        *(f"outcome_{i}" for i in range(len(meta["outcomes"]))),
    )
    for name in (*first, *(f"segment_{i}" for i in range(len(meta["segments"])))):
        length = shapes[name][0] if shapes.get(name) else -1
        if length != T:
            raise RunFileError(
                f"{name!r} has {length} rounds, {META} says {T}: files of two runs are mixed"
            )
    if not T:
        return
    K = shapes["policy"][1] if len(shapes["policy"]) == 2 else 0
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(("action", "best"), (T,)) | dict.fromkeys(
        _PER_ACTION, (T, K)
    )
    wanted |= (
        dict.fromkeys(_PER_LIMIT, (T, J))
        | dict.fromkeys(_PER_BOTH, (T, J, K))
        | {"x": (T, (*shapes["x"], 0)[1])}
    )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise RunFileError(
                f"{name!r} has shape {shapes[name]}, expected {shape}: files of two runs are mixed"
            )


def _assemble(meta: dict[str, Any], arrays: dict[str, np.ndarray], certificates: list[Any]) -> Run:
    T, K = meta["rounds"], arrays["policy"].shape[-1]
    if len(certificates) != T:
        raise RunFileError(
            f"{CERTIFICATES!r} has {len(certificates)} rounds, {META} says {T}: "
            "files of two runs are mixed"
        )
    if arrays["action"].dtype.kind not in "iu" or (
        T and not 0 <= arrays["action"].min() <= arrays["action"].max() < K
    ):
        raise RunFileError(f"{ARRAYS} has actions that are none of 0, ..., {K - 1}")
    outcomes = {name: arrays[f"outcome_{i}"] for i, name in enumerate(meta["outcomes"])}
    rounds = []
    for t in range(T):
        told = {name: _told(values[t]) for name, values in outcomes.items()}
        y = told.pop(UTILITY, None)
        z = {name: value for name, value in told.items() if value is not None}
        rounds.append(
            Round(
                action=int(arrays["action"][t]),
                policy=arrays["policy"][t],
                best=float(arrays["best"][t]),
                y=y,
                z=z or None,
                certificate=certificates[t],
                **{name: arrays[name][t] for name in _FIELDS},
            )
        )
    outline = meta["problem"]
    members: dict[str, dict[str, np.ndarray]] = {}
    for i, (outcome, site) in enumerate(meta["members"]):
        members.setdefault(outcome, {})[site] = arrays[f"member_{i}"]
    return Run(
        problem=RunOutline(
            _count(outline["n_actions"], "n_actions"),
            None
            if outline["safe_action"] is None
            else _count(outline["safe_action"], "safe_action"),
            [str(name) for name in outline["constraint_names"]],
            np.array(outline["limits"], float).reshape(len(outline["constraint_names"])),
            _names(outline),
            _flags(
                outline.get("every_draw", [False] * len(outline["constraint_names"])),
                len(outline["constraint_names"]),
            ),
        ),
        seed=int(meta["seed"]),
        rounds=rounds,
        environment_state=meta["environment_state"],
        interrupted=bool(meta["interrupted"]),
        segments={name: arrays[f"segment_{i}"].tolist() for i, name in enumerate(meta["segments"])},
        members=members,
        meta=dict(meta["meta"]),
    )


def _names(outline: dict[str, Any]) -> Names:
    """Runs that were saved before problems had names have none."""
    actions, K = declared_actions(outline.get("actions"), outline["n_actions"])
    kinds = outline.get("columns")
    return Names(
        K,
        actions,
        None if kinds is None else declared_columns({name: kinds[name] or float for name in kinds}),
    )


def _told(value: np.ndarray) -> Any:
    if np.isnan(value).all():
        return None
    return float(value) if np.ndim(value) == 0 else value


@singledispatch
def strict(value: Any) -> Any:
    """Plain values with null for numbers that JSON does not have (NaN and the infinities)."""
    return value


@strict.register(dict)
def _(value: dict[str, Any]) -> dict[str, Any]:
    return {k: strict(v) for k, v in value.items()}


@strict.register(list)
def _(value: list[Any]) -> list[Any]:
    return [strict(v) for v in value]


@strict.register(float)
def _(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
