"""What a design would do next: the path that it takes while nothing bad happens, and where each
outcome of a cohort leads.

Both are found by telling an agent made-up outcomes; nothing is simulated, and nothing is guaranteed
of a path.

Axis letters: K actions.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.agent import SafeActionWarning
from gedppl.errors import FitWarning, SettingError
from gedppl.numerics.arrays import check_whole
from gedppl.problem import UTILITY, Problem
from gedppl.study.planning.running import make_agent
from gedppl.study.planning.worlds import read_rows


@dataclass(frozen=True, repr=False)
class DecisionTable:
    """Cohorts along the path without events, and what follows on each number of events.
    ``print`` it; `to_markdown`.
    """

    cohort: int
    given: tuple[str, ...]  # what each cohort gets, if there was no event before
    # what the next one gets after 0, 1, ..., cohort events in this one
    after: tuple[tuple[str, ...], ...]
    patients: tuple[int, ...]  # before each cohort

    @property
    def columns(self) -> list[str]:
        counts = [f"{k} event" + "s" * (k != 1) for k in range(self.cohort + 1)]
        return ["told before", f"{self.cohort} now get" if self.cohort > 1 else "now gets", *counts]

    def _lines(self) -> list[list[str]]:
        return [[str(n), now, *then] for n, now, then in zip(self.patients, self.given, self.after)]

    def __str__(self) -> str:
        lines = [self.columns, *self._lines()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in lines
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in self._lines()]
        return f"<table><tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in body) + "</table>"

    def to_markdown(self) -> str:
        """A Markdown table, for a protocol."""
        lines = [self.columns, ["---"] * len(self.columns), *self._lines()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def decision_table(
    problem: Problem,
    x: Any,
    rounds: int,
    *,
    cohort: int = 1,
    told: tuple[Sequence[int], Sequence[float]] = ((), ()),
    agent: Mapping[str, Any] | Callable[..., Any] | None = None,
    delta: float = 0.05,
    seed: int = 0,
) -> DecisionTable:
    """What is given next after each outcome of the next cohort, at one context, as a page of a
    protocol.

    Parameters
    ----------
    x
        (dx,), the context of all these decisions.
    rounds
        Decisions along the path on which no event comes, after those told; a row for each cohort.
    cohort
        Decisions between two looks: all get the same action.
    told
        Actions, and their events as 0 or 1, that came before: a study that has begun.
    agent
        Options of `GEDUCB`, or a function (problem, delta, seed) -> object with ``observe(x, a,
        y)`` and ``policy(x)``.

    Notes
    -----
    For problems whose one outcome is an event, 0 or 1 (a constraint with ``outcome="utility"``).
    Where a policy mixes, its most probable action is shown.
    """
    check_whole(1, rounds=rounds, cohort=cohort)
    if list(problem.streams) != [UTILITY] or not problem.constraints:
        raise SettingError(
            "a decision table is about one outcome, 0 or 1, that the limit is on "
            "(Constraint(outcome='utility')); this problem's "
            f"outcomes are {list(problem.streams)}"
        )
    row = read_rows(problem, np.atleast_2d(np.asarray(x, float)))[0]
    actions, events = [int(a) for a in told[0]], [float(y) for y in told[1]]
    if len(actions) != len(events) or set(events) - {0.0, 1.0}:
        raise SettingError(f"told must be actions and as many events, each 0 or 1, got {told!r}")

    def next_action(a: list[int], y: list[float]) -> int:
        design = make_agent(agent, problem, delta, seed)
        return _given(design, [row] * len(a), a, y, row)

    patients, given, after = [], [], []
    for _ in range(0, int(rounds), int(cohort)):
        now = next_action(actions, events)
        after.append(
            [
                next_action(actions + [now] * cohort, events + [1.0] * k + [0.0] * (cohort - k))
                for k in range(cohort + 1)
            ]
        )
        patients.append(len(actions))
        given.append(now)
        actions, events = actions + [now] * cohort, events + [0.0] * cohort
    label = problem.names.label
    return DecisionTable(
        int(cohort),
        tuple(map(label, given)),
        tuple(tuple(map(label, one)) for one in after),
        tuple(patients),
    )


def event_free_path(
    problem: Problem, contexts: np.ndarray, rounds: int, agent: Mapping[str, Any], seed: int
) -> list[int] | None:
    """The actions given, contexts in turn, if no constraint's outcome ever leaves the low end of
    its range.

    None where that is no outcome of the model, or where outcomes of the utility would have to be
    made up.
    """
    if list(problem.streams) != [UTILITY]:
        return None
    lows = {c.functional.low for _, c in problem.learned if c.functional.name == "mean"}
    if len(lows) != 1:
        return None
    design, good = make_agent({"guard": None} | dict(agent), problem, 0.05, seed), lows.pop()
    path: list[int] = []
    for t in range(rounds):
        x = contexts[t % len(contexts)]
        action = _given(design, [x] * (t > 0), path[-1:], [good] * (t > 0), x)
        path.append(action)
        if action == problem.safe_action and not problem.learn_safe and len(contexts) == 1:
            # nothing is learned of it, so nothing changes
            return path + [action] * (rounds - t - 1)
    return path


def _given(design: Any, x: list[np.ndarray], a: list[int], y: list[float], at: np.ndarray) -> int:
    """The most probable action at context `at`, once these rows are told."""
    with warnings.catch_warnings():
        for common in (FitWarning, SafeActionWarning):
            warnings.simplefilter("ignore", common)
        learned = [
            i
            for i, action in enumerate(a)
            if design.problem.learn_safe or action != design.problem.safe_action
        ]
        if learned:
            design.observe(
                np.stack([x[i] for i in learned]), [a[i] for i in learned], [y[i] for i in learned]
            )
        return int(np.argmax(design.policy(at)))
