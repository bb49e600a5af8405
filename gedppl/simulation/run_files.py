"""Runs on disk: arrays in ``run.npz``, the rest in ``run.json``, certificates in ``certificates.jsonl.gz``.

Nothing is pickled, and reading executes nothing. Each file is written beside its final name and then moved there, so a
crash leaves the older run or the newer one.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from gedppl.certificate import plain
from gedppl.errors import RunFileError, RunNotFoundError
from gedppl.problem import UTILITY
from gedppl.simulation.runs import Outline, Round, Run

FORMAT = 1
ARRAYS, META, CERTIFICATES = "run.npz", "run.json", "certificates.jsonl.gz"
_FIELDS = (
    "x", "utilities", "costs", "oracle", "limit", "worst_case", "realised", "estimate", "bonus", "width", "cost_lower",
    "cost_upper",
)  # fmt: skip


def save(run: Run, folder: str | Path) -> Path:
    """Write the run into a folder, which is made if need be; returns the folder."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    arrays = {name: run._stack(name) for name in _FIELDS}
    arrays |= {"action": run.action, "policy": run.policy, "best": run.best}
    outcomes, members = run.outcomes(), [(o, s, v) for o, sites in run.members.items() for s, v in sites.items()]
    arrays |= {f"outcome_{i}": values for i, values in enumerate(outcomes.values())}
    arrays |= {f"segment_{i}": np.array(labels, dtype=str) for i, labels in enumerate(run.segments.values())}
    arrays |= {f"member_{i}": value for i, (_, _, value) in enumerate(members)}
    outline = Outline.of(run.problem)
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
        },
        "outcomes": list(outcomes),
        "segments": list(run.segments),
        "members": [[o, s] for o, s, _ in members],
        "environment_state": plain(run.environment_state),
        "meta": plain(run.meta),
    }
    certificates = "\n".join(json.dumps(strict(plain(c)), allow_nan=False) for c in run.certificates)
    _replace(target / CERTIFICATES, lambda file: file.write(gzip.compress(certificates.encode(), mtime=0)))
    _replace(target / ARRAYS, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    _replace(target / META, lambda file: file.write((json.dumps(meta, indent=1) + "\n").encode()))
    return target


def load(folder: str | Path) -> Run:
    """Read a run; its problem is an `Outline`."""
    source = Path(folder)
    if not (source / META).is_file():
        raise RunNotFoundError(f"there is no run in {source}: no {META} there; `gedppl run ... --out {source}` makes one")
    try:
        meta = json.loads((source / META).read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise RunFileError(f"{source / META} has format {meta['format']}, this version reads {FORMAT}")
        with np.load(source / ARRAYS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        text = gzip.decompress((source / CERTIFICATES).read_bytes()).decode()
        certificates = [json.loads(line) for line in text.split("\n")] if text else []
        return _assemble(meta, arrays, certificates)
    except RunFileError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise RunFileError(f"the run in {source} cannot be read ({type(error).__name__}: {error}); run it again") from error


def _assemble(meta: dict[str, Any], arrays: dict[str, np.ndarray], certificates: list[Any]) -> Run:
    T = int(meta["rounds"])
    lengths = {name: len(arrays[name]) for name in (*_FIELDS, "action", "policy", "best")} | {CERTIFICATES: len(certificates)}
    for name, length in lengths.items():
        if length != T:
            raise RunFileError(f"{name!r} has {length} rounds, {META} says {T}: files of two runs are mixed")
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
        problem=Outline(
            int(outline["n_actions"]),
            outline["safe_action"],
            list(outline["constraint_names"]),
            np.array(outline["limits"], float),
        ),
        seed=int(meta["seed"]),
        rounds=rounds,
        environment_state=meta["environment_state"],
        interrupted=bool(meta["interrupted"]),
        segments={name: arrays[f"segment_{i}"].tolist() for i, name in enumerate(meta["segments"])},
        members=members,
        meta=dict(meta["meta"]),
    )


def _told(value: np.ndarray) -> Any:
    if np.isnan(value).all():
        return None
    return float(value) if np.ndim(value) == 0 else value


def strict(value: Any) -> Any:
    """Plain values with null for numbers that JSON does not have (NaN and the infinities)."""
    if isinstance(value, dict):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, list):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


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
