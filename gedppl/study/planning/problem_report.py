"""What `check_problem` found, as text, as a table and as a picture, in the words of the agent that
will decide.

Axis letters: K actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.showing import Facts, Shown
from gedppl.study.planning.price import Waits, wait_words

REHEARSED = 40  # rows from a world of the prior, after which certificates are read


@dataclass(frozen=True)
class OutcomeCheck:
    """One outcome and its model."""

    name: str
    exactness: str
    quantiles: np.ndarray  # (K, 3) 5%, 50% and 95% of the prior predictive
    dim: int  # D, 0 for a finite class
    ranks: np.ndarray  # (K,) directions of the parameters that rows of one action show
    rank: int  # that rows of all actions show
    unseen: tuple[str, ...]  # sites that no action shows in full
    # the utility and limits whose value depends on what no action shows
    blind: tuple[str, ...] = ()
    # (K,) share of ones in the prior predictive, where outcomes are 0 or 1
    ones: np.ndarray | None = None
    # rows that have a confidence set by themselves: all, and those of actions with own parameters
    sets: tuple[str, ...] = ()
    rule: str = ""  # of the agent's bounds, where they are read off draws and no set is asked

    @property
    def bounds(self) -> str:
        """How the agent will bound it, in a sentence."""
        return self.rule or self.exactness

    @property
    def identified(self) -> str:
        """One line on what rows show of the parameters; empty for a finite class."""
        if not self.dim:
            return ""
        by_action = ", ".join(str(r) for r in self.ranks)
        rest = f"; what they never show, in {', '.join(self.unseen)}, changes no decision here"
        return (
            f"directions of its {self.dim} parameters that rows show, by action: {by_action}; all "
            f"actions together: {self.rank}" + rest * bool(self.unseen and not self.blind)
        )


@dataclass(frozen=True)
class LimitCheck:
    """One learned constraint under the prior, and as the agent judges it."""

    name: str
    at_most: float
    every_draw: bool
    quantiles: np.ndarray  # (K, 3) of the functional over draws and contexts
    over: np.ndarray  # (K,) share of draws and contexts in which the action is above the limit
    only_safe: float  # share of draws and contexts in which every other action is
    outside: float  # share of values that leave the functional's declared range
    # share of draws and contexts in which the model puts the safe action above its declared value
    safe_above: float
    # the first decision: how often it may leave the safe action; least and largest over contexts
    first_mix: tuple[float, float]
    method: str  # how a bound was found after a log, or a rehearsal of a few rows
    kind: str  # what its certificate then claimed: "guarantee", "credible" or "approximation"
    credible: float | None = None  # the level, where the claim is a posterior probability

    @property
    def guaranteed(self) -> bool:
        return self.kind == "guarantee"

    @property
    def judged_by(self) -> str:
        """What is held against the limit."""
        return "worst case" if self.credible is None else f"{self.credible:g} posterior quantile"

    @property
    def claimed(self) -> str:
        """What its certificates will claim."""
        if self.kind == "credible":
            return f"credible at level {self.credible:g}, for one decision at a time"
        return "guarantee" if self.guaranteed else "no guarantee"

    @property
    def first(self) -> str:
        """What the first decision may do under this limit alone."""
        low, high = self.first_mix
        if self.every_draw:
            if high == 0:
                return f"only the safe action: no other's {self.judged_by} is under the limit"
            where = "" if low == 1 else ", at some contexts"
            return f"other actions too{where}: their {self.judged_by} is under the limit"
        if low == 1:
            return f"may leave the safe action always: another's {self.judged_by} is under it"
        if self.credible is None:
            return f"leaves the safe action in at most {span(low, high)} of the cases"
        return (
            f"may leave the safe action for another in {span(low, high)} of the cases, by the "
            f"{self.judged_by}"
        )


@dataclass(frozen=True, repr=False)
class ProblemReport(Shown):
    """What is known of a problem before round 1. ``print`` it; `warnings` say what to change;
    `plot` shows the prior. Made by `check_problem`.

    Examples
    --------
    >>> report = ged.check_problem(problem, np.zeros((5, 1)), runs=0)
    >>> report.actions, report.warnings
    (('action 0', 'action 1'), ())
    """

    actions: tuple[str, ...]
    outcomes: tuple[OutcomeCheck, ...]
    limits: tuple[LimitCheck, ...]
    # actions given if no bad outcome ever comes, for limits on every draw; empty where it is not
    # known
    path: tuple[int, ...]
    hidden: tuple[int, ...]  # actions that may not be drawn at its end, either
    # share of the utility's values under the prior that leave its declared range
    utility_outside: float
    # rounds until half of the decisions leave the safe action, one a simulated run
    waits: Waits
    rounds: int  # how long a run waited at most
    logged: int  # rows that were learned before
    fallbacks: int  # decisions of these runs that no policy could be computed for
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self._title]
        for o in self.outcomes:
            lines += [
                f"outcome {o.name!r}",
                f"  bounds: {o.bounds}",
                *([f"  sets: for {'; '.join(o.sets)}"] if len(o.sets) > 1 and not o.rule else []),
                *self._predictive(o),
                *([f"  {o.identified}"] if o.identified else []),
            ]
        for c in self.limits:
            lines += [f"limit {c.name!r} at {c.at_most:g}{_whose(c)}", *self._prior_of(c)]
        lines += [f"{name}: {what}" for name, what in self._forecast.items()]
        lines += [f"WARNING: {text}" for text in self.warnings] or ["no warnings"]
        return "\n".join(lines)

    def _shown(self) -> Facts:
        facts = {f"bounds of {o.name!r}": o.bounds.partition(":")[0] for o in self.outcomes}
        for c in self.limits:
            facts[f"limit {c.name!r}"] = (
                f"at {c.at_most:g}{_whose(c)}; first decision: {c.first}; {c.method}, {c.claimed}"
            )
        facts |= self._forecast
        facts |= {f"warning {i}": text for i, text in enumerate(self.warnings, 1)} or {
            "warnings": "none"
        }
        return self._title, facts

    @property
    def _title(self) -> str:
        return "Before round 1" + (f", after {self.logged} logged rows" if self.logged else "")

    @property
    def _forecast(self) -> dict[str, str]:
        """What would happen: without a bad outcome, and in simulated runs."""
        said = {}
        if any(c.every_draw for c in self.limits):
            said["if no bad outcome ever comes"] = self._path_words
        if self.waits:
            said["until half of the decisions leave the safe action"] = self._wait
        return said

    @property
    def _path_words(self) -> str:
        if not self.path:
            return "not known: a limit is on no mean, or its range's low end is no outcome"
        first = {k: self.path.index(k) + 1 for k in dict.fromkeys(self.path)}
        return (
            ", ".join(f"{self.actions[k]} from round {t}" for k, t in first.items())
            + f" (of {len(self.path)})"
        )

    @property
    def _wait(self) -> str:
        runs = len(self.waits)
        return f"{wait_words(self.waits, self.rounds)} in {runs} simulated run{'s' * (runs > 1)}"

    def _predictive(self, o: OutcomeCheck) -> list[str]:
        if o.ones is not None:  # quantiles of zeros and ones would say nothing
            return [
                f"  prior predictive of {a}: 1 in {share:.0%}"
                for a, share in zip(self.actions, o.ones)
            ]
        return [
            f"  prior predictive of {a}: {_interval(q)}" for a, q in zip(self.actions, o.quantiles)
        ]

    def _prior_of(self, c: LimitCheck) -> list[str]:
        lines = [
            f"  {a}: {_interval(q)} under the prior, above the limit in {share:.0%}"
            for a, q, share in zip(self.actions, c.quantiles, c.over)
        ]
        rows = f"{self.logged} logged" if self.logged else f"{REHEARSED} rehearsed"
        return [
            *lines,
            f"  only the safe action keeps it in {c.only_safe:.0%} of draws and contexts",
            f"  the first decision: {c.first}",
            f"  after {rows} rows its bound is {c.method}: {c.claimed}",
        ]

    def plot(self, axes: Any = None) -> Any:
        """One panel a limit: the prior's 5%, 50% and 95% of every action beside the limit.
        Returns the matplotlib axes.
        """
        import matplotlib.pyplot as plt

        if not self.limits:
            raise SettingError("this problem has no learned limit to plot")
        if axes is None:
            axes = plt.subplots(
                1, len(self.limits), figsize=(5 * len(self.limits), 3.2), squeeze=False
            )[1][0]
        axes = np.atleast_1d(axes)
        for ax, c in zip(axes, self.limits):
            low, middle, high = c.quantiles.T
            ax.errorbar(
                np.arange(len(middle)), middle, [middle - low, high - middle], fmt="o", capsize=4
            )
            ax.axhline(c.at_most, color="tab:red", linestyle="--", label="limit")
            ax.set_xticks(np.arange(len(middle)), self.actions)
            ax.set_ylabel(f"{c.name}, prior 5% to 95%")
            ax.legend()
        return axes


def _whose(c: LimitCheck) -> str:
    return " on every draw" * c.every_draw


def _interval(q: np.ndarray) -> str:
    return f"{q[1]:.3g} ({q[0]:.3g} to {q[2]:.3g})"


def span(low: float, high: float) -> str:
    """Of a share that may depend on the context."""
    return f"{high:.2g}" if high - low <= 1e-9 else f"{low:.2g} to {high:.2g} (by context)"
