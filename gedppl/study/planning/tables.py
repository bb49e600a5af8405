"""A plan's results: trials, their characteristics by scenario and setting, and tables fit for a protocol.

Axis letters: T rounds of a trial.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.showing import Facts, Shown

if TYPE_CHECKING:
    from gedppl.study.planning.rules import StoppingRules


@dataclass(frozen=True)
class Trial:
    """One simulated trial, up to where it ended."""

    setting: int
    scenario: str
    replicate: int
    utility: np.ndarray  # (T,) true utility of the policies
    best: np.ndarray  # (T,) of the constrained oracle
    safe: np.ndarray  # (T,) bool: the safe action was played
    infeasible: int  # rounds whose policy truly exceeded a limit
    stopped: str  # which rule ended it, "" if none
    alarmed: bool = False  # the agent's own monitors raised an alarm

    @property
    def rounds(self) -> int:
        return len(self.utility)

    @property
    def regret(self) -> np.ndarray:
        """Cumulative, (T,)."""
        return np.cumsum(self.best - self.utility)

    def rounds_until(self, goal: float, window: int) -> float:
        """The first round at which the mean utility of the last `window` rounds is at least `goal`; infinite if none."""
        width = min(window, self.rounds)
        means = np.convolve(self.utility, np.full(width, 1 / width), mode="valid")
        reached = np.flatnonzero(means >= goal - 1e-12)
        return float(reached[0] + width) if len(reached) else math.inf


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """What trials would do. ``print`` it; `rows`, `to_csv`, `to_markdown` and `protocol` give its tables."""

    trials: tuple[Trial, ...]
    settings: tuple[dict[str, Any], ...]
    scenarios: tuple[str, ...]
    rounds: int
    replicates: int
    delta: float
    goal: float | None
    window: int
    rules: StoppingRules | None
    interrupted: bool = False

    def _shown(self) -> Facts:
        """A title, and how the trials of each scenario and setting ended."""
        facts: dict[str, str] = {}
        for s, setting in enumerate(self.settings):
            for name in self.scenarios:
                trials = self.cell(s, name)
                if trials:
                    label = ", ".join([name, *(f"{key} {value}" for key, value in setting.items())])
                    regret = float(np.mean([t.regret[-1] if t.rounds else 0.0 for t in trials]))
                    broken = sum(t.infeasible > 0 for t in trials)
                    facts[label] = f"mean regret {regret:.4g}; {broken} of {len(trials)} trials with an infeasible round"
        more = ", interrupted" if self.interrupted else ""
        return f"Plan of {len(self.trials)} trials, {self.rounds:,} rounds each at most{more}", facts

    def cell(self, setting: int, scenario: str) -> list[Trial]:
        """The trials of one setting and scenario."""
        return [t for t in self.trials if t.setting == setting and t.scenario == scenario]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row of characteristics for each scenario and setting; standard errors are over trials."""
        table = []
        for s, setting in enumerate(self.settings):
            for name in self.scenarios:
                trials = self.cell(s, name)
                if trials:
                    table.append({"scenario": name, **setting, **self._summary(trials)})
        return table

    def _summary(self, trials: list[Trial]) -> dict[str, Any]:
        regret = np.array([t.regret[-1] for t in trials])
        row: dict[str, Any] = {
            "trials": len(trials),
            "rounds": float(np.mean([t.rounds for t in trials])),
            "regret": float(regret.mean()),
            "regret se": float(regret.std(ddof=1) / math.sqrt(len(regret))) if len(regret) > 1 else math.nan,
            "utility": float(np.mean([t.utility.mean() for t in trials])),
            "oracle utility": float(np.mean([t.best.mean() for t in trials])),
            "safe share": float(np.mean([t.safe.mean() for t in trials])),
            "infeasible trials": float(np.mean([t.infeasible > 0 for t in trials])),
            "alarmed trials": float(np.mean([t.alarmed for t in trials])),
        }
        if self.goal is not None:
            until = np.array([t.rounds_until(self.goal, self.window) for t in trials])
            row["goal reached"] = float(np.isfinite(until).mean())
            row["rounds until goal"] = float(np.median(until))
        if self.rules is not None:
            row["stopped: target"] = float(np.mean([t.stopped == "target" for t in trials]))
            row["stopped: futile"] = float(np.mean([t.stopped in ("safe share", "beyond reach") for t in trials]))
        return row

    def _texts(self) -> tuple[list[str], list[list[str]]]:
        rows = self.rows
        columns = list(rows[0]) if rows else ["scenario"]
        return columns, [[_text(name, row[name]) for name in columns] for row in rows]

    def __str__(self) -> str:
        columns, body = self._texts()
        widths = [max(len(line[i]) for line in [columns, *body]) for i in range(len(columns))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in [columns, *body]]
        return "\n".join([*lines, *self._remarks()])

    def _remarks(self) -> list[str]:
        planned = len(self.settings) * len(self.scenarios) * self.replicates
        remarks = []
        if self.interrupted:
            remarks.append(f"INTERRUPTED: {len(self.trials)} of {planned} trials were complete.")
        return remarks

    def to_csv(self, path: str | Path | None = None) -> str:
        """Comma-separated text with full precision; also written to `path` if given."""
        rows = self.rows
        out = io.StringIO()
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["scenario"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return _written(out.getvalue(), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """A Markdown table; also written to `path` if given."""
        columns, body = self._texts()
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(line) + " |" for line in body]
        return _written("\n".join(lines) + "\n", path)

    def protocol(self, path: str | Path | None = None) -> str:
        """The operating characteristics as a section of a protocol, in Markdown: design, rules, table, how to read it."""
        varied = list(self.settings[0]) if self.settings else []
        lines = [
            "## Operating characteristics by simulation",
            "",
            f"Trials of {self.rounds} rounds, {self.replicates} simulated for each scenario"
            + (f" and each combination of {', '.join(varied)}" if varied else "")
            + (f"; delta = {self.delta:g}." if "delta" not in varied else "."),
            self.rules.describe() if self.rules is not None else "No early stopping.",
            *self._remarks(),
            "",
            self.to_markdown(),
            "Regret is against the best policy that keeps every limit and knows the truth, up to the end of the trial (se: its "
            "standard error over trials). Infeasible trials: the share in which the true cost of some round's policy exceeded a "
            "limit; the method promises at most delta/2 if the model holds. Alarmed trials: those in which a monitor of the "
            "agent found the model or a limit violated.",
        ]
        if self.goal is not None:
            lines.append(
                f"Goal: the true utility of the policies, averaged over {self.window} rounds, is at least {self.goal:g}; rounds "
                "until then are a median over trials, inf where most did not reach it before they ended."
            )
        lines.append("Outcomes were simulated from the declared models at the parameters of each scenario.")
        return _written("\n".join(lines) + "\n", path)


def _text(name: str, value: Any) -> str:
    if isinstance(value, float):
        shares = ("share", "reached", "stopped", "infeasible", "alarmed")
        return f"{value:.0%}" if any(word in name for word in shares) else f"{value:.4g}"
    return str(value)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
