"""Pictures of a plan: regret, rounds until the goal and safe share as a setting varies, and regret
over rounds.

matplotlib is imported when a function is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.study.planning.tables import Plan

LABELS = {
    "regret": "expected regret at the end of the trial",
    "rounds until goal": "median rounds until the goal",
    "safe share": "share of rounds with the safe action",
    "utility": "mean utility",
}


def plot_plan(plan: Plan, what: str = "regret", by: str | None = None, ax: Any = None) -> Any:
    """One characteristic against the setting `by` (the first one varied), a line for each scenario
    and other setting.

    `what` is ``"regret"``, ``"rounds until goal"``, ``"safe share"`` or ``"utility"``. Bars on the
    regret are two standard errors. Returns the matplotlib axes.
    """
    if what not in LABELS:
        raise SettingError(f"what must be one of {', '.join(LABELS)}, got {what!r}")
    if what == "rounds until goal" and plan.goal is None:
        raise SettingError("the plan has no goal; pass goal= to plan()")
    varied = list(plan.settings[0])
    by = by if by is not None else (varied[0] if varied else None)
    if by is None or by not in varied:
        raise SettingError(f"by must be one of the settings varied, {varied}, got {by!r}")
    ax = _axes(ax)
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in plan.rows:
        others = [f"{name} = {row[name]}" for name in varied if name != by]
        lines.setdefault(", ".join([row["scenario"], *others]), []).append(row)
    for label, rows in lines.items():
        rows = sorted(rows, key=lambda row: row[by])
        x, y = [row[by] for row in rows], [row[what] for row in rows]
        if what == "regret":
            ax.errorbar(
                x,
                y,
                yerr=[2 * row["regret se"] for row in rows],
                marker="o",
                capsize=3,
                label=label,
            )
        else:
            ax.plot(x, y, marker="o", label=label)
    ax.set_xlabel(by)
    ax.set_ylabel(LABELS[what])
    if "share" in what:
        ax.set_ylim(-0.02, 1.02)
    ax.legend()
    return ax


def plot_regret_over_rounds(plan: Plan, setting: int = 0, ax: Any = None) -> Any:
    """Mean cumulative regret over rounds with a band of two standard errors, a line for each
    scenario.

    Trials that stopped early count as long as they ran.
    """
    ax = _axes(ax)
    for name in plan.scenarios:
        trials = plan.cell(setting, name)
        if not trials:
            continue
        longest = max(t.rounds for t in trials)
        table = np.full((len(trials), longest), np.nan)
        for row, t in zip(table, trials):
            row[: t.rounds] = t.regret
        running = np.isfinite(table).sum(axis=0)
        mean = np.nanmean(table, axis=0)
        spread = np.sqrt(np.nanmean((table - mean) ** 2, axis=0) / np.maximum(running - 1, 1))
        rounds = np.arange(1, longest + 1)
        (line,) = ax.plot(rounds, mean, label=name)
        ax.fill_between(
            rounds, mean - 2 * spread, mean + 2 * spread, color=line.get_color(), alpha=0.2
        )
    ax.set_xlabel("round")
    ax.set_ylabel("cumulative regret")
    ax.legend()
    return ax


def _axes(ax: Any) -> Any:
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(6, 4))
    return ax
