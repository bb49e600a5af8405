"""What the command line prints: results on stdout as a table or as JSON, everything else on
stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gedppl.certificate import plain
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
