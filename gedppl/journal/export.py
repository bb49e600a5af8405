"""A journal as a table that people and other programs can read: CSV, Parquet, and a blinded form
for trials.

One row a record: sequence, time (UTC), kind, then the payload, one column for every scalar, nested
dicts as dotted names, lists and arrays as JSON. Columns are the union over all records, in order of
first appearance.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import hmac
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gedppl.errors import BackendNotFoundError, DataError, JournalFullError
from gedppl.journal.format import Record

_FIRST = ("sequence", "time", "kind")


@dataclass(frozen=True)
class Blinding:
    """What somebody who must not know the arms may see. Everything that is not named here is left
    out.

    Policies, propensities, bounds, certificates, alarms and changes would all give the arms away,
    so this is a list of what is shown, never of what is hidden.

    Parameters
    ----------
    kinds
        Kinds of record shown.
    keep
        Payload keys shown as they are (with everything below them).
    actions
        Payload keys that hold an action or a list of actions; shown as codes.
    """

    kinds: tuple[str, ...] = ("decision", "outcome", "amend", "observe")
    keep: tuple[str, ...] = ("id", "x", "y", "z")
    actions: tuple[str, ...] = ("action", "a")


@dataclass(frozen=True)
class Table:
    """Rows of an export: `records()` gives the records from the start, `key` fixes a blinded
    journal's codes.
    """

    records: Callable[[], Iterator[Record]]
    blinding: Blinding | None
    key: bytes

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each record as {column: None, bool, number or text}."""
        for record in self.records():
            blinding = self.blinding
            if blinding is None:
                payload = record.payload
            elif record.kind not in blinding.kinds:
                continue
            else:
                shown = {k: v for k, v in record.payload.items() if k in blinding.keep}
                arms = {
                    k: coded(v, self.key)
                    for k, v in record.payload.items()
                    if k in blinding.actions
                }
                payload = shown | arms
            row = {"sequence": record.sequence, "time": record.time, "kind": record.kind}
            for path, value in _flat(payload, ""):
                # a payload key may be called "time" too
                row[path if path not in _FIRST else f"payload.{path}"] = value
            if blinding is None and record.sequence == 0:
                row.pop("blinding_key", None)  # whoever has it can undo a blinded export
            yield row

    def columns(self) -> list[str]:
        names: dict[str, None] = dict.fromkeys(_FIRST)
        for row in self.rows():
            names.update(dict.fromkeys(row))
        return list(names)


def coded(action: Any, key: bytes) -> Any:
    """An action, or a list or array of them, as codes: random, but the same throughout one journal.

    >>> coded(3, b"secret") == coded(np.int64(3), b"secret"), coded([0, 1], b"secret")[0][:4]
    (True, 'arm-')
    """
    if isinstance(action, list | np.ndarray):
        return [coded(a, key) for a in action]
    if action is None:
        return None
    digest = hmac.new(key, json.dumps(_plain(action)).encode(), hashlib.sha256).hexdigest()
    return f"arm-{digest[:12]}"


def to_csv(table: Table, path: Path) -> int:
    """Write the table as CSV (UTF-8); the number of rows. The file appears complete or not at
    all.
    """
    columns, count = table.columns(), 0
    with _replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in table.rows():
            writer.writerow({name: _cell(value) for name, value in row.items()})
            count += 1
    return count


def to_parquet(table: Table, path: Path) -> int:
    """Write the table as Parquet; the number of rows."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BackendNotFoundError(
            "exporting Parquet needs pyarrow: pip install pyarrow, or export CSV"
        ) from None
    columns, rows = table.columns(), list(table.rows())
    arrays = [_column([row.get(name) for row in rows]) for name in columns]
    with _replacing(path) as temporary:
        pyarrow.parquet.write_table(
            pyarrow.table(dict(zip(columns, map(pyarrow.array, arrays)))), temporary
        )
    return len(rows)


def to_open_bandit(records: Iterable[Record]) -> dict[str, Any]:
    """Decisions and their rewards as the bandit feedback that the Open Bandit Pipeline's estimators
    take.

    Rounds whose utility was never told are left out; amended outcomes count as amended.
    ``position`` is None: one action a round. The rewards are utilities only; no limit is in them.
    """
    decisions: dict[int, Mapping[str, Any]] = {}
    rewards: dict[int, float] = {}
    for record in records:
        payload = record.payload
        if record.kind == "decision":
            decisions[payload["id"]] = payload
        elif record.kind in ("outcome", "amend") and payload["y"] is not None:
            told = np.asarray(payload["y"], float)
            if told.ndim > 1 or (
                told.ndim == 1 and len(told) != len(decisions[payload["id"]]["policy"])
            ):
                raise DataError(
                    f"decision {payload['id']} has a utility of shape {told.shape}; a "
                    "reward is a single number"
                )
            rewards[payload["id"]] = float(
                told if told.ndim == 0 else told[decisions[payload["id"]]["action"]]
            )
    told_ids = [i for i in decisions if i in rewards and not math.isnan(rewards[i])]
    if not told_ids:
        raise DataError(
            "no decision in this journal was told its utility: there is no feedback to export"
        )
    chosen = [decisions[i] for i in told_ids]
    return {
        "n_rounds": len(chosen),
        "n_actions": max(len(p["policy"]) for p in chosen),
        "context": np.stack([np.asarray(p["x"], float) for p in chosen]),
        "action": np.array([p["action"] for p in chosen], np.int64),
        "position": None,
        "reward": np.array([rewards[i] for i in told_ids]),
        "pscore": np.array([p["propensity"] for p in chosen], float),
    }


def _column(values: list[Any]) -> list[Any]:
    """Values of one type; a column that mixes types becomes text."""
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if v is None else float(v) for v in values]
    too_wide = kinds == {int} and any(v is not None and not -(2**63) <= v < 2**63 for v in values)
    if len(kinds) > 1 or too_wide:
        return [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values]
    return values


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | dict | np.ndarray):
        yield path, json.dumps(value, default=_plain)
    else:
        yield path, _plain(value)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets a quote in front; floats keep every
    digit.
    """
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return value


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[str]:
    """A temporary file beside `path` that takes its place at the end."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        os.close(handle)
    except OSError as error:
        raise JournalFullError(f"cannot write {path}: {error}") from error
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise JournalFullError(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
