"""What a design would do next: the path that it takes while nothing bad happens, and where each
outcome of a cohort leads.

Both are found by telling an agent made-up outcomes; nothing is simulated, and nothing is guaranteed
of a path.

Axis letters: K actions.
"""

from __future__ import annotations

import contextlib
import html
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB, SafeActionWarning
from gedppl.errors import FitWarning, OutOfSupportError, SettingError, ShapeError
from gedppl.numerics.arrays import check_whole
from gedppl.problem import UTILITY, Problem
from gedppl.selection import drawable
from gedppl.study.planning.running import make_agent


@dataclass(frozen=True, repr=False)
class DecisionTable:
    """Cohorts along the path without events, and what follows on each number of events.
    ``print`` it; `to_markdown`. Made by `decision_table`.

    Examples
    --------
    >>> ged.decision_table(problem, [0.5], 3).given
    ('1', '1', '1')
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


Made = float | Callable[[np.ndarray, int], float]


def decision_table(
    problem: Problem,
    x: Any,
    rounds: int,
    *,
    cohort: int = 1,
    event: str | None = None,
    others: Mapping[str, Made] | None = None,
    told: tuple[Sequence[int], Sequence[float]] = ((), ()),
    agent: Mapping[str, Any] | Callable[..., Any] | None = None,
    delta: float = 0.05,
    seed: int = 0,
) -> DecisionTable:
    """What is given next after each outcome of the next cohort, at one context, as a page of a
    protocol.

    Parameters
    ----------
    problem
        The declaration; limits are on events, outcomes 0 or 1.
    x
        (dx,), or a record by column names: the context of all these decisions.
    rounds
        Decisions along the path on which no event comes, after those told; a row for each cohort.
    cohort
        Decisions between two looks: all get the same action.
    event
        Whose events are counted: the constraint's name, or ``"utility"`` where it shares that
        outcome. Needed where limits rest on several outcomes.
    others
        What every other outcome is taken to be, by name: a number, or a function (x, action) -> a
        number. Those left out are never told, so that nothing is learned of them.
    told
        Actions, and their events as 0 or 1, that came before: a study that has begun.
    agent
        Options of `GEDUCB`, or a function (problem, delta, seed) -> object with ``observe(x, a, y,
        z)`` and ``policy(x)``; `z` is passed where the problem has several outcomes.
    delta, seed
        Of the agent.

    Notes
    -----
    Where a policy mixes, its most probable action is shown. Only the path without events is
    followed to its end: what comes after an event is shown for the next cohort alone. Not
    guaranteed: the same table for another context, or where other outcomes are not as in `others`.

    Examples
    --------
    >>> print(ged.decision_table(problem, [0.5], 3))
    told before  now gets  0 events  1 event
              0         1         1        1
              1         1         1        1
              2         1         1        1
    """
    check_whole(1, rounds=rounds, cohort=cohort)
    stream = _counted(problem, event)
    contexts, _ = problem.names.contexts(x)
    if len(contexts) != 1:
        raise ShapeError(f"a decision table is for one context (dx,), got {len(contexts)}")
    row = contexts[0]
    _check_events(problem, stream, row)
    made = _made_up(problem, stream, others or {})
    actions, events = [int(a) for a in told[0]], [float(y) for y in told[1]]
    if len(actions) != len(events) or set(events) - {0.0, 1.0}:
        raise SettingError(f"told must be actions and as many events, each 0 or 1, got {told!r}")

    def next_action(a: list[int], y: list[float]) -> int:
        design = make_agent(agent, problem, delta, seed)
        _tell(design, [row] * len(a), a, {stream: y} | made([row] * len(a), a))
        return _given(design, row)

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


def _counted(problem: Problem, event: str | None) -> str:
    """The outcome whose events a table counts."""
    streams = {c.name: c.stream for _, c in problem.learned}
    known = dict.fromkeys([*streams, *streams.values()])
    if event is None and len(set(streams.values())) == 1:
        return next(iter(streams.values()))
    if event not in known:
        raise SettingError(
            "a decision table counts the events of one outcome that a limit rests on: event= must "
            f"be one of {list(known)}, got {event!r}"
        )
    return streams.get(event, event)


def _check_events(problem: Problem, stream: str, x: np.ndarray) -> None:
    cls = problem.streams[stream]
    problem.trace(x[None])
    one, a = x[None], np.zeros(1, np.int64)
    kind = cls.visit(
        lambda members: members.density_at(0, one, a).kind,
        lambda cls: cls.density_at(np.asarray(cls.initial, float), one, a).kind,
    )
    if kind == "continuous":
        raise SettingError(
            f"a decision table counts events, 0 or 1, and the outcome {stream!r} is continuous"
        )


def _made_up(
    problem: Problem, stream: str, others: Mapping[str, Made]
) -> Callable[[list[np.ndarray], list[int]], dict[str, list[float]]]:
    """Values of the outcomes that are taken as given, for rows (x, a)."""
    possible = [name for name in problem.streams if name != stream]
    unknown = sorted(set(others) - set(possible))
    if unknown:
        raise SettingError(f"others= names {unknown[0]!r}; the other outcomes are {possible}")

    def values(x: list[np.ndarray], a: list[int]) -> dict[str, list[float]]:
        return {
            name: [float(made(row, k) if callable(made) else made) for row, k in zip(x, a)]
            for name, made in others.items()
        }

    return values


def event_free_path(
    problem: Problem,
    contexts: np.ndarray,
    rounds: int,
    agent: Mapping[str, Any],
    seed: int,
    log: Sequence[Any] = (),
) -> tuple[list[int], set[int]] | None:
    """The actions given, contexts in turn, if no constraint's outcome ever leaves the low end of
    its range, after a log (the arguments of `observe`) if there is one; and all that were given or
    may be drawn at its end.

    Where the utility has an outcome of its own, nothing is told of it, and the path takes the least
    tried action that may be drawn: what is asked is which actions the limits ever let through. None
    where the low end is no outcome of the model.
    """
    good: dict[str, float] = {}
    for _, c in problem.learned:
        if c.functional.name != "mean" or good.get(c.stream, c.functional.low) != c.functional.low:
            return None
        good[c.stream] = float(c.functional.low)
    design = make_agent({"guard": None} | dict(agent), problem, 0.05, seed)
    if log:
        design.observe(*log)
    path: list[int] = []
    for t in range(rounds):
        x = contexts[t % len(contexts)]
        action = _given(design, x) if UTILITY in good else _least_tried(design, x, path)
        path.append(action)
        if action == problem.safe_action and not problem.learn_safe and len(contexts) == 1:
            # nothing is learned of it, so nothing changes
            path += [action] * (rounds - t - 1)
            break
        try:
            _tell(design, [x], [action], {name: [low] for name, low in good.items()})
        except OutOfSupportError:
            return None
    may = np.any([_drawable(design, x) for x in contexts], axis=0)
    return path, {k for k in range(problem.n_actions) if k in path or may[k]}


def _least_tried(design: GEDUCB, x: np.ndarray, path: list[int]) -> int:
    """Of the actions whose worst case keeps every limit on every draw at context x; the safe one if
    there is no other.
    """
    problem, fine = design.problem, _drawable(design, x)
    fine[problem.safe_action] = False
    tried = np.bincount(path, minlength=problem.n_actions)
    return int(np.argmin(np.where(fine, tried, np.inf)) if fine.any() else problem.safe_action or 0)


def _drawable(design: GEDUCB, x: np.ndarray) -> np.ndarray:
    """Actions (K,) whose worst case keeps every limit on every draw at context x."""
    problem = design.problem
    with _quietly():
        upper = np.asarray(design.cost_bounds(x)[1])
    return drawable(upper, problem.limits, problem.every_draw)


def _tell(
    design: Any, x: list[np.ndarray], a: list[int], outcomes: Mapping[str, list[float]]
) -> None:
    """Rows with their outcomes by name."""
    problem = design.problem
    learned = [
        i for i, action in enumerate(a) if problem.learn_safe or action != problem.safe_action
    ]
    if not learned:
        return
    told = {name: [values[i] for i in learned] for name, values in outcomes.items()}
    y = told.pop(UTILITY, None)
    rows = np.stack([x[i] for i in learned]), [a[i] for i in learned], y
    with _quietly():
        design.observe(*rows, told) if told else design.observe(*rows)


def _given(design: Any, x: np.ndarray) -> int:
    """The most probable action at context x."""
    with _quietly():
        return int(np.argmax(design.policy(x)))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        for common in (FitWarning, SafeActionWarning):
            warnings.simplefilter("ignore", common)
        yield
