"""The guard at work: what an agent shows its monitors, and which predictive distribution they bet
against.

Outcomes are shown at the moment they are taken in, in the order of decision ids, each beside a
predictive that was fixed before it: from the rows taken in earlier, and inside a batch told
together from the rows of the batch with smaller ids (refreshed each time the data grew by a tenth).
So the order of arrival does not matter here either.

    limit:<constraint>       the realised cost against the limit in force when the decision was made
    certified:<constraint>   the outcome of an action against the certified value of its functional
    safe_value:<constraint>  the realised cost of the safe action against its declared value
    refuted:<outcome>        the outcome against every parameter of its model
    calibration:<outcome>    the outcome against its predictive
    drift:<outcome>          the same, with an eye on late changes
    delay:<outcome>          the outcome against how late it was told

Limits are watched where the constraint is on an expectation and has a lower end, which is all that
the bet needs; certified values where they are proved, for every functional that outcomes can speak
of (`gedppl.guard.outcomes`). `Watch.watched` says which. Warm-up rounds of the paper's kind are
left out.

What the confidence sets themselves show is in `gedppl.ged_ucb.costs` and costs no delta of the
guard:

    empty:<outcome>          no parameter of the class is left
    range:<constraint>, safe_value:<constraint>, bounds:<outcome>, declared:<outcome>
        what was declared holds for none of them

Only limits, certified values, and refuted or empty classes that a limit rests on, stop a run: if
the limits are kept and the truth lies in the class, the chance that this ever happens is at most
delta for the guard, besides the delta of the sets, whatever the prior. After a refuted declaration
no action is known to be safe, and `ask` refuses. A refuted utility costs utility, never a limit, so
it warns, as do the others; a prior that conflicts with the truth can set those off. A class can be
refuted where its largest log-likelihood is known: finite classes, linear-Gaussian ones with a known
or an unknown scale, and linear predictors with score equations. For other programs the model's
alarms warn only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gedppl import ged_ucb
from gedppl.certificate import NOT_WATCHED
from gedppl.ged_ucb import Entry, rows_by_stream
from gedppl.ged_ucb.costs import KINDS
from gedppl.guard import (
    Alarm,
    Cost,
    Guard,
    OutlierCheck,
    PitMonitor,
    Told,
    pit_uniform,
    randomised_pit,
)
from gedppl.guard.bets import Bets
from gedppl.guard.outcomes import (
    IN_SCALES,
    MEASURED_FROM,
    Proved,
    certified_cost,
    known_scale,
    limit_cost,
    limit_floor,
    room,
    safe_cost,
)
from gedppl.learning.learner import Learner
from gedppl.numerics.arrays import evolved
from gedppl.problem import Constraint, Problem, evaluate

OUTLIER_COLUMNS = 64  # wider contexts are checked on fixed random projections
FIRST_LOGGED = 2**40  # logged rows have no decision id; their numbers for `pit_uniform` start here
NO_UPPER_END = float(np.finfo(float).max)


@dataclass(frozen=True)
class Watch:
    """The monitors of one run and the contexts seen. Immutable."""

    guard: Guard
    contexts: OutlierCheck
    logged: int  # logged rows taken in
    # constraint -> what its outcomes are held against, for the certificate
    watched: Mapping[str, str]

    @classmethod
    def begin(cls, state: ged_ucb.State, x: np.ndarray) -> Watch:
        """Before the first outcome; x (dx,) is the first context."""
        problem = state.problem
        learned = [c for _, c in problem.learned if problem.safe_action is not None]
        limits, safe_values, certified = (
            {c.name: ends for c in learned if (ends := _ends(first(state, c, x)))}
            for first in (_first_limit, _first_safe_value, _first_certified)
        )
        models = [
            name for name, learner in state.learners.items() if learner.has_predictive(x[None])
        ]
        width = len(x)
        guard = Guard.create(
            dx=width,
            n_actions=problem.n_actions,
            delta=state.settings.delta,
            limits=limits,
            safe_values=safe_values,
            certified=certified,
            models=models,
            refutable=[name for name in models if state.learners[name].refutable],
        )
        columns = width if width <= OUTLIER_COLUMNS else Bets(width, 1).columns
        watched = {c.name: what_watches(c, guard, x, problem.n_actions) for _, c in problem.learned}
        return cls(guard, OutlierCheck.create(dx=columns), 0, watched)

    # contexts -------------------------------------------------------------------------------------

    def flags(self, x: np.ndarray) -> list[str]:
        """For contexts (n, dx) a sentence each if it is far outside of what was seen, else ""."""
        found, width = self.contexts.flags(self._columns(x)), x.shape[1]
        if width <= OUTLIER_COLUMNS:
            return found
        more = f" (x[...] are {self.contexts.dx} random projections of the {width} columns)"
        return [sentence + more if sentence else "" for sentence in found]

    def include(self, x: np.ndarray, t: int) -> Watch:
        """Take in contexts (n, dx) from round t on; of a long run one in t / 250, which is enough
        and costs nothing.
        """
        contexts = self.contexts
        for i, row in enumerate(self._columns(x), t):
            if i < 500 or i % (i // 250) == 0:
                contexts = contexts.include(row)
        return self if contexts is self.contexts else evolved(self, contexts=contexts)

    def _columns(self, x: np.ndarray) -> np.ndarray:
        """(n, dx) -> the columns that are checked."""
        width = x.shape[1]
        return x if width <= OUTLIER_COLUMNS else Bets(width, 1).projected(x)

    # outcomes -------------------------------------------------------------------------------------

    def take_in(
        self,
        state: ged_ucb.State,
        entries: Sequence[Entry],
        rows: ged_ucb.RowsByStream,
        *,
        decided: bool,
    ) -> tuple[Watch, list[Alarm]]:
        """Show the monitors outcomes that `state` has not learned yet, and the `rows_by_stream` of
        them; the alarms that they set off.

        `decided` says whether the agent made these decisions: only then is it answerable for their
        costs.
        """
        guard, alarms, learners = self.guard, [], dict(state.learners)
        ordered = sorted(entries, key=lambda e: e.id)
        chunks = list(_tenths(ordered, state.told))
        # logged rows have no decision id: they are numbered on from those before
        shift = 0 if decided else FIRST_LOGGED + self.logged - ordered[0].id
        certified = iter(
            _certified_costs(state, guard, ordered) if decided else [{}] * len(ordered)
        )
        first_actions = _first_actions(guard, state.problem)
        for i, chunk in enumerate(chunks):
            pits = self._pits(state, learners, chunk, shift)
            own = rows if len(chunks) == 1 else rows_by_stream(state.problem, chunk)
            densities = {
                name: learners[name].log_predictive(*mine)
                for name, mine in own.items()
                if f"refuted:{name}" in guard.settled
            }
            for entry, its_pits in zip(chunk, pits):
                costs = next(certified) | (_costs(state, guard, entry) if decided else {})
                action = entry.action % first_actions
                late = max(state.t - entry.id - state.problem.outcome_age, 0) if decided else None
                together = densities if entry is chunk[-1] else {}
                told = Told(entry.x, action, its_pits, costs, late, together)
                guard, new = guard.update(told)
                alarms += new
            if i + 1 < len(chunks):
                learners |= {name: learners[name].absorb(*mine) for name, mine in own.items()}
        return evolved(
            self, guard=guard, logged=self.logged + (0 if decided else len(entries))
        ), alarms

    def _pits(
        self, state: ged_ucb.State, learners: dict[str, Learner], chunk: Sequence[Entry], shift: int
    ) -> list[dict[str, float]]:
        out: list[dict[str, float]] = [{} for _ in chunk]
        for number, name in enumerate(state.learners):
            if f"calibration:{name}" not in self.guard.settled:
                continue
            told = [
                (i, e, _played(state.problem, e, name, learned=True)) for i, e in enumerate(chunk)
            ]
            rows = [(i, e, value) for i, e, value in told if value is not None]
            if not rows:
                continue
            x, a = np.array([e.x for _, e, _ in rows]), np.array([e.action for _, e, _ in rows])
            below, at = learners[name].predictive_cdf(
                x, a, np.array([value for _, _, value in rows])
            )
            for (i, e, _), lower, upper in zip(rows, below, at):
                if not (math.isfinite(lower) and math.isfinite(upper)):
                    continue  # a broken fit is reported by the oracle's status, not by a bet
                # from 1: numpy pads seeds with zeros, and [seed, id, 0] would be the stream that
                # drew the action itself
                uniform = (
                    pit_uniform(state.settings.seed, e.id + shift, number + 1)
                    if upper > lower
                    else 0.5
                )
                out[i][name] = randomised_pit(
                    min(max(lower, 0.0), 1.0), min(max(upper, lower, 0.0), 1.0), uniform
                )
        return out

    def learned(self, state: ged_ucb.State) -> tuple[Watch, list[Alarm]]:
        """Weigh what was shown against the best parameters, now that `state` has learned it; the
        alarms that this set off.
        """

        def tops(name: str, marks: np.ndarray) -> np.ndarray:
            return np.array([state.learners[name].top(since) for since in marks])

        guard, alarms = self.guard.weighed(lambda name: state.learners[name].mark(), tops)
        return (self if guard is self.guard else evolved(self, guard=guard)), alarms

    def knows(self, name: str) -> bool:
        """Whether there may be an alarm of this name."""
        kind = name.partition(":")[0]
        return name in self.guard.settled or kind in KINDS

    def restarted(self, name: str) -> Watch:
        """The same with one monitor at its start: after an alarm was looked into. What the sets
        refute has no monitor.
        """
        if name not in self.guard.settled:
            return self
        return evolved(
            self, guard=Guard({**self.guard.monitors, name: self.guard.monitors[name].fresh()})
        )


# what may be watched: what the smallest outcome at the first context would say ------------------


def _ends(cost: Cost | None) -> tuple[float, float, float] | None:
    """A monitor's limit, lower and upper end; None where there is no room for a bet."""
    found = room(cost)
    return found and (*found, NO_UPPER_END)


def _first_limit(state: ged_ucb.State, c: Constraint, x: np.ndarray) -> Cost:
    return Cost(c.at_most, c.at_most, limit_floor(c, x, state.problem.n_actions))


def _first_safe_value(state: ged_ucb.State, c: Constraint, x: np.ndarray) -> Cost | None:
    safe = state.problem.safe_action
    assert safe is not None
    at_safe = float(evaluate(c.safe_value, x[None], f"safe_value of {c.name!r}")[0])
    return safe_cost(c, c.functional.low, x, safe, at_safe)


def _first_certified(state: ged_ucb.State, c: Constraint, x: np.ndarray) -> Cost | None:
    problem = state.problem
    others = [a for a in range(problem.n_actions) if a != problem.safe_action]
    # where the top of the likelihood is not known, bounds are a search's as soon as there are data
    refutable = others and state.learners[c.stream].refutable
    bounds = _certified(state, c, x[None]) if refutable else None
    if bounds is None:
        return None
    proved = bounds.at(0, others[0]).within(c)
    return certified_cost(c, c.functional.low, x, others[0], proved, problem.n_actions)


# what the monitors see ----------------------------------------------------------------------------


def _tenths(entries: Sequence[Entry], told: int) -> Iterator[Sequence[Entry]]:
    """Cut a batch so that no piece is more than a tenth of the data before it."""
    i = 0
    while i < len(entries):
        size = max(1, (told + i) // 10)
        yield entries[i : i + size]
        i += size


def _played(problem: Problem, entry: Entry, stream: str, *, learned: bool) -> float | None:
    """The outcome of the action played, if it was told (and, with `learned`, if the models learn
    from it).
    """
    value = entry.outcomes.get(stream)
    if value is None or (
        learned and not problem.learn_safe and entry.action == problem.safe_action
    ):
        return None
    number = float(value if value.ndim == 0 else value[entry.action])
    return None if math.isnan(number) else number


def _costs(state: ged_ucb.State, guard: Guard, entry: Entry) -> dict[str, Cost]:
    """Monitor -> what this outcome says of a limit, the one in force when the decision was made,
    and of a safe value.
    """
    if state.settings.warmup == "paper" and entry.id < state.warmup:
        return {}
    problem = state.problem
    block = next((b for b in reversed(state.blocks) if b.start <= entry.id), state.blocks[0])
    out: dict[str, Cost | None] = {}
    for j, c in problem.learned:
        z = _played(problem, entry, c.stream, learned=False)
        if z is None:
            continue
        if f"limit:{c.name}" in guard.settled:
            limit = float(block.limits[j])
            out[f"limit:{c.name}"] = limit_cost(
                c, z, entry.x, entry.action, limit, problem.n_actions
            )
        if f"safe_value:{c.name}" in guard.settled and entry.action == problem.safe_action:
            safe_value = float(problem.safe_values(entry.x[None])[0, j])
            out[f"safe_value:{c.name}"] = safe_cost(c, z, entry.x, entry.action, safe_value)
    return {name: cost for name, cost in out.items() if cost is not None}


@dataclass(frozen=True)
class Certified:
    """What the sets prove of n contexts: upper values of a functional and, where it is measured
    from another one, that one's range: the mean under a variance, the quantile under a CVaR.
    """

    upper: np.ndarray  # (n, K)
    base: tuple[np.ndarray, np.ndarray] | None  # each (n, K)

    def at(self, i: int, action: int) -> Proved:
        base = (
            None
            if self.base is None
            else (float(self.base[0][i, action]), float(self.base[1][i, action]))
        )
        return Proved(float(self.upper[i, action]), base)


def _certified(state: ged_ucb.State, c: Constraint, x: np.ndarray) -> Certified | None:
    """From the rows that `state` has learned, at x (n, dx); None where nothing is proved."""
    learner, n_actions = state.learners[c.stream], state.problem.n_actions
    bounds = state.bounds_of.of(c.name, learner, c.functional, x, n_actions)
    if not bounds.guaranteed or bounds.empty:
        return None
    under = MEASURED_FROM.get(c.functional.name)
    if under is None or (
        c.functional.name in IN_SCALES and known_scale(c, x[0], 0, n_actions) is not None
    ):
        return Certified(bounds.upper, None)
    base = learner.bounds(under(c.functional.level), x, n_actions)
    if not base.guaranteed or base.empty:
        return Certified(bounds.upper, None)
    return Certified(bounds.upper, (base.lower, base.upper))


def _certified_costs(
    state: ged_ucb.State, guard: Guard, entries: Sequence[Entry]
) -> list[dict[str, Cost]]:
    """For each entry, monitor -> what its outcome says of the value that was proved of its
    action before it was learned.
    """
    first = state.warmup if state.settings.warmup == "paper" else 0
    out: list[dict[str, Cost]] = [{} for _ in entries]
    for _, c in state.problem.learned:
        key = f"certified:{c.name}"
        if key not in guard.settled:
            continue
        told = [
            (i, e, _played(state.problem, e, c.stream, learned=True))
            for i, e in enumerate(entries)
            if e.id >= first
        ]
        rows = [
            (i, e, z) for i, e, z in told if z is not None and e.action != state.problem.safe_action
        ]
        found = _certified(state, c, np.stack([e.x for _, e, _ in rows])) if rows else None
        for row, (i, e, z) in enumerate(rows):
            cost = (
                None
                if found is None
                else certified_cost(
                    c, z, e.x, e.action, found.at(row, e.action), state.problem.n_actions
                )
            )
            if cost is not None:
                out[i][key] = cost
    return out


def _first_actions(guard: Guard, problem: Problem) -> int:
    """Actions at the start of the run; the bets on an action added later go with those on an old
    one.
    """
    known = (m.bets.n_actions for m in guard.settled.values() if isinstance(m, PitMonitor))
    return next(known, problem.n_actions)


def what_watches(c: Constraint, guard: Guard, x: np.ndarray, n_actions: int) -> str:
    """For the certificate: what the outcomes of a constraint are held against, and what that
    takes for granted at contexts like x (dx,).
    """
    kinds = {
        "limit": "realised costs against the limit",
        "certified": "outcomes against each action's certified value",
    }
    found = [text for kind, text in kinds.items() if f"{kind}:{c.name}" in guard.settled]
    if not found:
        return NOT_WATCHED
    return "; ".join(found) + _assumed(c, f"limit:{c.name}" in guard.settled, x, n_actions)


def _assumed(c: Constraint, limit: bool, x: np.ndarray, n_actions: int) -> str:
    """What of the noise outcomes without a lower end are believed; "" if nothing."""
    name = c.functional.name
    if name in IN_SCALES and known_scale(c, x, 0, n_actions) is not None:
        return ", assuming Normal noise of the known scale"
    if name != "mean":
        return ""
    if not limit:
        return ", assuming noise that is symmetric about its mean"
    floor = limit_floor(c, x, n_actions)
    cut = floor is not None and floor.excess > 0
    return ", assuming noise that varies no more than the model says" if cut else ""
