"""What the command line prints: results on stdout as a table or as JSON, everything else on
stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gedppl.certificate import plain
from gedppl.journal import Journal
from gedppl.journal.export import Blinding
from gedppl.journal.format import Record
from gedppl.study.simulation.run_files import strict
from gedppl.study.simulation.runs import Run

COMPARED = {
    "agent": "agent",
    "regret": "regret",
    "mean_utility": "utility",
    "last_quarter_utility": "last quarter",
    "infeasible_rounds": "above a limit",
    "realised_violations": "realised above",
    "safe_share": "safe",
    "seconds": "seconds",
}


def say(text: str) -> None:
    """One line on stderr."""
    print(f"gedppl: {text}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON object on stdout, without NaN."""
    print(json.dumps(strict(plain(value)), allow_nan=False))


def print_run(run: Run, folder: Path, page: Path | None, *, as_json: bool) -> None:
    """A run's summary."""
    summary = run.summary()
    if as_json:
        where = {
            "folder": str(folder),
            "report": page and str(page),
            "interrupted": run.interrupted,
        }
        print_json(where | {"summary": summary, "segments": run.by_segment(), "meta": run.meta})
        return
    limits = dict(zip(run.problem.constraint_names, run.limit[-1]))
    rows = [
        ("rounds", cell(summary["rounds"])),
        ("mean utility", cell(summary["mean_utility"])),
        ("  last quarter", cell(summary["last_quarter_utility"])),
        ("  constrained oracle", cell(summary["oracle_utility"])),
        ("regret", cell(summary["regret"])),
        *([("rounds above a limit", cell(summary["infeasible_rounds"]))] if limits else []),
        *(
            (f"realised {name}", f"{cell(v)} (limit {limits[name]:.4g})")
            for name, v in summary["realised_cost"].items()
        ),
    ]
    if run.problem.safe_action is not None:
        rows.append(("safe action", cell(summary["safe_share"], share=True)))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    for sentence in run.meta.get("alarms", []):
        print(f"\n{sentence}")
    print(
        f"\nrun: {folder}"
        if page is None
        else f"\npage: {page}\nalso in {folder}: pictures (PNG), run.nc for ArviZ"
    )


def print_comparison(rows: list[dict[str, Any]]) -> None:
    """One row an agent."""
    body = [[cell(row.get(key), share=key == "safe_share") for key in COMPARED] for row in rows]
    print(table([list(COMPARED.values()), *body]))


def averaged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over several summaries of every number; None where one is not known."""
    out: dict[str, Any] = {}
    for key in found[0]:
        values = [row[key] for row in found]
        if isinstance(values[0], dict):
            out[key] = averaged(values)
        else:
            out[key] = None if any(v is None for v in values) else float(np.mean(values))
    return out


def cell(value: Any, *, share: bool = False) -> str:
    """A number as a reader wants it."""
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    if share:
        return f"{value:.0%}"
    return (
        f"{value:.0f}"
        if float(value).is_integer()
        else f"{value:.4g}"
        if abs(value) < 100
        else f"{value:.1f}"
    )


def table(rows: list[list[str]]) -> str:
    """Columns aligned, the first row a head.

    >>> print(table([["agent", "regret"], ["oracle", "0"]]))
    agent   regret
    ------  ------
    oracle       0
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


@contextlib.contextmanager
def plain_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line on stderr, once each, without the source line they came from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not quiet:
                say(f"note: {message}")

        warnings.showwarning = show
        yield


def journal_text(path: str | os.PathLike[str], last: int = 5) -> str:
    """What a journal holds, in a few lines; it may be in use meanwhile."""
    with Journal.open(path, read_only=True) as journal:
        counts: dict[str, int] = {}
        remarkable: list[str] = []
        latest: deque[Record] = deque(maxlen=max(last, 0))
        first_time = time = ""
        for record in journal.records():
            counts[record.kind] = counts.get(record.kind, 0) + 1
            first_time, time = first_time or record.time, record.time
            if record.kind in ("alarm", "change", "amend"):
                text = (
                    record.payload.get("what")
                    or record.payload.get("sentence")
                    or f"decision {record.payload.get('id')}"
                )
                remarkable.append(f"  {record.sequence:>8} {record.time} {record.kind}: {text}")
            elif record.kind == "decision":
                latest.append(record)
        frozen = journal.protocol
        lines = [f"journal {Path(path)}", f"records: {len(journal)}, from {first_time} to {time}"]
        lines += [f"state: {journal.state_hash}", f"problem: {frozen.get('problem')}"]
        lines += [
            f"{key}: {json.dumps(frozen.get(key))}"
            for key in ("settings", "confidence", "oracle", "guard", "versions")
        ]
        lines += ["kinds: " + ", ".join(f"{n} {kind}" for kind, n in counts.items())]
        lines += (
            ["alarms, changes and amendments:", *remarkable]
            if remarkable
            else ["no alarms, changes or amendments"]
        )
        lines += [f"last {len(latest)} decisions:"] if latest else []
        for record in latest:
            p = record.payload
            certificate = p.get("certificate")
            fallback = certificate.get("fallback") if isinstance(certificate, dict) else None
            tail = f", safe action because {fallback}" if fallback else ""
            played = (
                f"action {p.get('action_name', p.get('action'))} with probability "
                f"{p.get('propensity')}"
            )
            lines.append(f"  {p.get('id')!s:>8} {record.time} {played}{tail}")
        # a terminal obeys control characters, and anybody may have written the texts in a journal
        return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)


def journal_table(
    path: str | os.PathLike[str], out: str | os.PathLike[str], *, blinded: bool = False
) -> int:
    """A journal as a table, CSV or (by the name's ending) Parquet; the number of rows.
    `blinded`: arms as codes only.
    """
    blinding = Blinding() if blinded else None
    with Journal.open(path, read_only=True) as journal:
        if Path(out).suffix.lower() in (".parquet", ".pq"):
            return journal.export_parquet(out, blinding)
        return journal.export_csv(out, blinding)
