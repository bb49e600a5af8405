"""The table and the page of a comparison: means over seeds with their intervals."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.study.cli.sweep import Result
from gedppl.study.cli.tables import averaged
from gedppl.study.report.style import document, number, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
COUNTS = ("seeds", "failed")


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
    rows, first = rows_of(results), results[0]
    about = (
        f"{first['rounds']} rounds, delta {first['delta']}, the same contexts and potential "
        "outcomes for every agent. Means over seeds, with 95% intervals where there are several."
    )
    failures = [
        f'<p class="bad">{escape(row["agent"])}: {escape(text)}</p>'
        for row in rows
        for text in row["failures"]
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(about)}</p>',
        table(("agent", *COLUMNS.values()), [[row["agent"], *_numbers(row)] for row in rows]),
        *failures,
        _pictures(results, rows),
    ]
    path = folder / "index.html"
    path.write_text(document(title, parts), encoding="utf-8")
    return path


def _numbers(row: dict[str, Any]) -> list[str]:
    shown = []
    for key in COLUMNS:
        value = row.get(key)
        if key not in row:
            text = ""
        elif key in COUNTS:
            text = str(value)
        elif key == "safe_share" and value is not None:
            text = f"{value:.0%}"
        else:
            text = number(value)
        if key == "regret" and row.get("regret_se") is not None:
            text += f" ± {number(Z * row['regret_se'])}"
        shown.append(text)
    return shown


def _pictures(results: list[Result], rows: list[dict[str, Any]]) -> str:
    """Regret over time, and rounds above a limit, as embedded pictures; nothing where the truth is
    not known.
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
    regret, axes = _figure()
    for agent, found in curves.items():
        mean, error = _mean_and_error(np.array([r["curve"] for r in found]))
        at = np.array(found[0]["curve_rounds"])
        (line,) = axes.plot(at, mean, label=agent)
        axes.fill_between(
            at, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0
        )
    axes.set(xlabel="round", ylabel="regret against the constrained oracle")
    axes.legend(fontsize="small")
    above, axes = _figure()
    for place, found in enumerate(curves.values()):
        mean, error = _mean_and_error(np.array([r["infeasible_rounds"] for r in found], float))
        axes.barh(place, mean, xerr=error, capsize=3)
    axes.set_yticks(range(len(curves)), list(curves))
    axes.invert_yaxis()
    axes.set(xlabel="rounds above a limit")
    axes.set_xlim(left=0, right=max(axes.get_xlim()[1], 1.0))
    shown = _embedded(regret, "Regret over rounds, by agent")
    return f'<div class="figures">{shown}{_embedded(above, "Rounds above a limit, by agent")}</div>'


def _mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over seeds, the first axis; half of a 95% interval."""
    spread = values.std(axis=0, ddof=min(1, len(values) - 1))
    return values.mean(axis=0), Z * spread / np.sqrt(len(values))


def _figure() -> tuple[Figure, Axes]:
    # without pyplot, which keeps figures of its own
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _embedded(figure: Figure, what: str) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    data = base64.b64encode(out.getvalue()).decode()
    return f'<figure><img alt="{what}" src="data:image/png;base64,{data}" /></figure>'
