"""A plan's results: trials, their characteristics by scenario and setting, and tables fit for a
protocol.

Axis letters: T rounds of a trial.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
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
    # (T,) what the safe action would have been worth; None where there is none
    safe_utility: np.ndarray | None = None
    played: tuple[int, ...] = ()  # K: rounds of each action
    above: int = 0  # rounds whose own action truly lay above a limit
    # J: what outcomes said of each constraint, averaged over rounds of other than the safe action
    events: tuple[float, ...] = ()
    named: tuple[int, ...] = ()  # the action recommended at the end, at each context
    right: tuple[int, ...] = ()  # the best single action that keeps every limit there, by the truth

    @property
    def rounds(self) -> int:
        return len(self.utility)

    @property
    def regret(self) -> np.ndarray:
        """Cumulative, (T,)."""
        return np.cumsum(self.best - self.utility)

    @property
    def gained(self) -> float:
        """What the policies were worth beyond always playing safe, over the whole trial."""
        return 0.0 if self.safe_utility is None else float((self.utility - self.safe_utility).sum())

    @property
    def possible(self) -> float:
        """What the constrained oracle is worth beyond always playing safe; 0 without a safe
        action.
        """
        return 0.0 if self.safe_utility is None else float((self.best - self.safe_utility).sum())

    @property
    def gain(self) -> float:
        """`gained` as a share of `possible`; NaN where there is nothing to gain."""
        return share_of_gain([self])

    def rounds_until_half_leave(self, window: int) -> float:
        """The first round at which half of the last `window` rounds played other than the safe
        action; infinite if none.
        """
        width = min(window, self.rounds)
        if not width:
            return math.inf
        reached = np.flatnonzero(np.convolve(~self.safe, np.ones(width), mode="valid") >= width / 2)
        return float(reached[0] + width) if len(reached) else math.inf

    def rounds_until(self, goal: float, window: int) -> float:
        """The first round at which the mean utility of the last `window` rounds is at least
        `goal`; infinite if none.
        """
        width = min(window, self.rounds)
        means = np.convolve(self.utility, np.full(width, 1 / width), mode="valid")
        reached = np.flatnonzero(means >= goal - 1e-12)
        return float(reached[0] + width) if len(reached) else math.inf


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """What trials would do. ``print`` it; `rows`, `to_csv`, `to_markdown` and `protocol` give
    its tables.
    """

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
    actions: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    safe_action: int | None = None

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
                    facts[label] = (
                        f"mean regret {regret:.4g}; {broken} of {len(trials)} trials "
                        "with an infeasible round"
                    )
        more = ", interrupted" if self.interrupted else ""
        return (
            f"Plan of {len(self.trials)} trials, {self.rounds:,} rounds each at most{more}",
            facts,
        )

    def cell(self, setting: int, scenario: str) -> list[Trial]:
        """The trials of one setting and scenario."""
        return [t for t in self.trials if t.setting == setting and t.scenario == scenario]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row of characteristics for each scenario and setting; standard errors are over
        trials.
        """
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
            "regret se": float(regret.std(ddof=1) / math.sqrt(len(regret)))
            if len(regret) > 1
            else math.nan,
            "utility": float(np.mean([t.utility.mean() for t in trials])),
            "oracle utility": float(np.mean([t.best.mean() for t in trials])),
            "share of the oracle's gain": share_of_gain(trials),
            "safe share": float(np.mean([t.safe.mean() for t in trials])),
            "rounds until half leave": float(
                np.median([t.rounds_until_half_leave(self.window) for t in trials])
            ),
            "infeasible rounds": float(np.mean([t.infeasible for t in trials])),
            "infeasible trials": float(np.mean([t.infeasible > 0 for t in trials])),
            "alarmed trials": float(np.mean([t.alarmed for t in trials])),
        }
        if any(t.named for t in trials):
            row |= self._selection(trials)
        if self.goal is not None:
            until = np.array([t.rounds_until(self.goal, self.window) for t in trials])
            row["goal reached"] = float(np.isfinite(until).mean())
            row["rounds until goal"] = float(np.median(until))
        if self.rules is not None:
            row["stopped: target"] = float(np.mean([t.stopped == "target" for t in trials]))
            row["stopped: futile"] = float(
                np.mean([t.stopped in ("safe share", "beyond reach") for t in trials])
            )
        return row

    def _selection(self, trials: list[Trial]) -> dict[str, Any]:
        """How a trial with a recommendation at its end is judged. Rounds of the safe action
        treat nobody.
        """
        played = np.array([t.played for t in trials], float)
        treated = (
            np.delete(played, self.safe_action, axis=1).sum()
            if self.safe_action is not None
            else played.sum()
        )
        row: dict[str, Any] = {
            "correct selection share": float(
                np.mean([np.mean(np.equal(t.named, t.right)) for t in trials])
            ),
            "safe action named share": float(
                np.mean([np.mean([a == self.safe_action for a in t.named]) for t in trials])
            ),
            "share treated above a limit": float(sum(t.above for t in trials) / treated)
            if treated
            else math.nan,
        }
        for j, name in enumerate(self.constraints):
            row[f"mean outcome: {name}"] = _mean([t.events[j] for t in trials])
        return row | {f"rounds of {a}": float(n) for a, n in zip(self.actions, played.mean(axis=0))}

    def _texts(self) -> tuple[list[str], list[list[str]]]:
        rows = self.rows
        columns = list(rows[0]) if rows else ["scenario"]
        return columns, [[_text(name, row[name]) for name in columns] for row in rows]

    def __str__(self) -> str:
        columns, body = self._texts()
        widths = [max(len(line[i]) for line in [columns, *body]) for i in range(len(columns))]
        lines = [
            "  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in [columns, *body]
        ]
        return "\n".join([*lines, *self._remarks()])

    def _remarks(self) -> list[str]:
        planned = len(self.settings) * len(self.scenarios) * self.replicates
        remarks = []
        if self.interrupted:
            remarks.append(f"INTERRUPTED: {len(self.trials)} of {planned} trials were complete.")
        return remarks

    def _repr_html_(self) -> str:
        columns, body = self._texts()
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in body]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        remarks = "".join(f"<p>{html.escape(text)}</p>" for text in self._remarks())
        rows = "".join(f"<tr>{line}</tr>" for line in cells)
        return f"<div><table><tr>{head}</tr>{rows}</table>{remarks}</div>"

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
        """The operating characteristics as a section of a protocol, in Markdown: design, rules,
        table, how to read it.
        """
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
            "Regret is against the best policy that keeps every limit and knows the truth, up to "
            "the end of the trial (se: its "
            "standard error over trials). Infeasible trials: the share in which the true cost of "
            "some round's policy exceeded a "
            "limit; the method promises at most delta/2 if the model holds. Alarmed trials: those "
            "in which a monitor of the "
            "agent found the model or a limit violated. The share of the oracle's gain is over "
            "what the safe action alone gives; "
            f"rounds until half leave: until half of the last {self.window} rounds played another "
            "action, a median over trials. "
            "Infeasible rounds are a mean over trials.",
        ]
        if any(t.named for t in self.trials):
            lines.append(
                "A selection is correct if it is the best action that keeps every limit by the "
                "truth. Treated above a limit: "
                "rounds whose own action truly lay above one, out of all rounds of other actions "
                "than the safe one."
            )
        if self.goal is not None:
            lines.append(
                f"Goal: the true utility of the policies, averaged over {self.window} rounds, is "
                f"at least {self.goal:g}; rounds "
                "until then are a median over trials, inf where most did not reach it before they "
                "ended."
            )
        lines.append(
            "Outcomes were simulated from the declared models at the parameters of each scenario."
        )
        return _written("\n".join(lines) + "\n", path)


def _text(name: str, value: Any) -> str:
    if isinstance(value, float):
        shares = ("share", "reached", "stopped", "infeasible trials", "alarmed")
        return f"{value:.0%}" if any(word in name for word in shares) else f"{value:.4g}"
    return str(value)


def share_of_gain(trials: Sequence[Trial]) -> float:
    """What all trials gained over always playing safe, as a share of what their oracles gain.

    A ratio of sums: a truth under which there is next to nothing to gain has a share of its own
    that says nothing, and a mean of shares would follow it.
    """
    possible = sum(t.possible for t in trials)
    return sum(t.gained for t in trials) / possible if possible > 0 else math.nan


def _mean(values: list[float]) -> float:
    """Of those that are known."""
    known = [v for v in values if not math.isnan(v)]
    return float(np.mean(known)) if known else math.nan


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
