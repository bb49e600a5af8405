"""The table and the page of a comparison: means over seeds with their intervals."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

import numpy as np

from gedppl.study.cli.sweep import Result
from gedppl.study.cli.tables import averaged, cell

Z = 1.96  # 95% intervals of means over seeds
LEFT_OUT = {
    "agent",
    "seed",
    "script",
    "mode",
    "worker",
    "curve",
    "curve_rounds",
    "delta",
    "failed",
    "alarm_rounds",
}
COLUMNS = {
    "regret": "regret",
    "infeasible_rounds": "rounds above a limit",
    "excess_cost": "excess cost a round",
    "safe_share": "share of the safe action",
    "ask_ms": "CPU ms an ask",
    "alarms": "alarms",
    "seeds": "seeds",
    "failed": "failed",
}
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem; color: #222 }
table { border-collapse: collapse } th, td { padding: .25rem .8rem; text-align: right;
  border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } img { max-width: 100% }
  .failed { color: #a00 }"""


def rows_of(results: list[Result]) -> list[dict[str, Any]]:
    """One row an agent: means over the seeds that were complete, the regret's standard error,
    and the failures' sentences.
    """
    rows = []
    for agent in dict.fromkeys(r["agent"] for r in results):
        mine = [r for r in results if r["agent"] == agent]
        good = [
            {k: v for k, v in r.items() if k not in LEFT_OUT} for r in mine if "failed" not in r
        ]
        failures = sorted({r["failed"] for r in mine if "failed" in r})
        row: dict[str, Any] = {"agent": agent} | (averaged(good) if good else {})
        row |= {"seeds": len(good), "failed": len(mine) - len(good), "failures": failures}
        if good and row["regret"] is not None:
            row["regret_se"] = (
                float(np.std([r["regret"] for r in good], ddof=1) / np.sqrt(len(good)))
                if len(good) > 1
                else None
            )
        rows.append(row)
    return rows


def write_page(results: list[Result], folder: Path, *, title: str) -> Path:
    """``index.html`` with everything inside it."""
    rows = rows_of(results)
    head = "".join(f"<th>{name}</th>" for name in ("agent", *COLUMNS.values()))
    body = "".join(f"<tr><td>{html.escape(row['agent'])}</td>{_numbers(row)}</tr>" for row in rows)
    failures = "".join(
        f'<p class="failed">{html.escape(row["agent"])}: {html.escape(text)}</p>'
        for row in rows
        for text in row["failures"]
    )
    first = results[0]
    about = (
        f"{first['rounds']} rounds, delta {first['delta']}, the same contexts and potential "
        "outcomes for every agent."
    )
    page = (
        '<!doctype html><html lang="en"><meta '
        f'charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{html.escape(title)}</h1><p>{about} Means over seeds, with 95% intervals where there "
        "are several.</p>"
        f"<table><tr>{head}</tr>{body}</table>{failures}{_pictures(results, rows)}</html>"
    )
    path = folder / "index.html"
    path.write_text(page)
    return path


def _numbers(row: dict[str, Any]) -> str:
    shown = []
    for key in COLUMNS:
        text = "" if key not in row else cell(row[key], share=key == "safe_share")
        if key == "regret" and row.get("regret_se") is not None:
            text += f" ± {cell(Z * row['regret_se'])}"
        shown.append(f"<td>{text}</td>")
    return "".join(shown)


def _pictures(results: list[Result], rows: list[dict[str, Any]]) -> str:
    """Regret over time, and rounds above a limit, as one embedded picture; nothing where the
    truth is not known.
    """
    curves = {
        row["agent"]: [
            r for r in results if r["agent"] == row["agent"] and r.get("curve") is not None
        ]
        for row in rows
    }
    curves = {agent: found for agent, found in curves.items() if found}
    if not curves:
        return ""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for agent, found in curves.items():
        at, values = np.array(found[0]["curve_rounds"]), np.array([r["curve"] for r in found])
        mean, error = (
            values.mean(axis=0),
            Z * values.std(axis=0, ddof=min(1, len(values) - 1)) / np.sqrt(len(values)),
        )
        (line,) = left.plot(at, mean, label=agent)
        left.fill_between(
            at, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0
        )
    left.set(xlabel="round", ylabel="regret against the constrained oracle")
    left.legend(fontsize="small")
    broken = [np.mean([r["infeasible_rounds"] for r in found]) for found in curves.values()]
    right.barh(range(len(broken)), broken)
    right.set_yticks(range(len(broken)), list(curves))
    right.invert_yaxis()
    right.set(xlabel="rounds above a limit")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    data = base64.b64encode(out.getvalue()).decode()
    return (
        '<img alt="Regret over rounds, and rounds above a limit, by agent" '
        f'src="data:image/png;base64,{data}">'
    )
