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
of (`certified_cost`). `Watch.watched` says which. Warm-up rounds of the paper's kind are left out.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from gedppl import ged_ucb
from gedppl.agent.alarms import what_watches
from gedppl.density import Density
from gedppl.errors import FamilyError
from gedppl.families.one_predictor import FAMILIES
from gedppl.functionals import Functional, mean, quantile, realised
from gedppl.ged_ucb import Entry, rows_by_stream
from gedppl.ged_ucb.costs import KINDS
from gedppl.guard import (
    Alarm,
    Cost,
    Floor,
    Guard,
    OutlierCheck,
    PitMonitor,
    Told,
    pit_uniform,
    randomised_pit,
)
from gedppl.guard.bets import Bets
from gedppl.learning.learner import Learner
from gedppl.learning.value_ranges import is_plain
from gedppl.numerics.arrays import evolved
from gedppl.problem import Constraint, Problem, evaluate
from gedppl.programs.contract import LinearPredictor

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
        limits, safe_values, certified = {}, {}, {}
        for _, c in problem.learned:
            if problem.safe_action is not None:
                floor = limit_floor(c, x, problem.n_actions)
                if floor is not None and floor.low < c.at_most:
                    limits[c.name] = (c.at_most, floor.low, NO_UPPER_END)
                at_safe = float(evaluate(c.safe_value, x[None], f"safe_value of {c.name!r}")[0])
                cost = safe_cost(c, c.functional.low, x, problem.safe_action, at_safe)
                if (
                    cost is not None
                    and cost.limit is not None
                    and cost.floor is not None
                    and cost.floor.low < cost.limit
                ):
                    safe_values[c.name] = (cost.limit, cost.floor.low, NO_UPPER_END)
                others = [a for a in range(problem.n_actions) if a != problem.safe_action]
                # where the top of the likelihood is not known, bounds are a search's as soon as
                # there are data
                bounds = (
                    _certified(state, c, x[None])
                    if others and state.learners[c.stream].refutable
                    else None
                )
                cost = (
                    None
                    if bounds is None
                    else certified_cost(
                        c,
                        c.functional.low,
                        x,
                        others[0],
                        bounds.at(0, others[0]).within(c),
                        problem.n_actions,
                    )
                )
                if cost and cost.limit is not None and cost.floor is not None:
                    certified[c.name] = (cost.limit, cost.floor.low, NO_UPPER_END)
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
        watched = {c.name: what_watches(c, guard) for _, c in problem.learned}
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
        for i, chunk in enumerate(chunks):
            pits = self._pits(state, learners, chunk, shift)
            for entry, its_pits in zip(chunk, pits):
                costs = next(certified) | (_costs(state, guard, entry) if decided else {})
                action = entry.action % _first_actions(guard, state.problem)
                late = max(state.t - entry.id - state.problem.outcome_age, 0) if decided else None
                guard, new = guard.update(Told(entry.x, action, its_pits, costs, late))
                alarms += new
            own = rows if len(chunks) == 1 else rows_by_stream(state.problem, chunk)
            for name, (x, a, y) in own.items():
                if f"refuted:{name}" in guard.monitors:
                    guard = guard.paid(name, learners[name].log_predictive(x, a, y))
                if i + 1 < len(chunks):
                    learners[name] = learners[name].absorb(x, a, y)
        return evolved(
            self, guard=guard, logged=self.logged + (0 if decided else len(entries))
        ), alarms

    def _pits(
        self, state: ged_ucb.State, learners: dict[str, Learner], chunk: Sequence[Entry], shift: int
    ) -> list[dict[str, float]]:
        out: list[dict[str, float]] = [{} for _ in chunk]
        for number, name in enumerate(state.learners):
            if f"calibration:{name}" not in self.guard.monitors:
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
        return evolved(self, guard=guard), alarms

    def knows(self, name: str) -> bool:
        """Whether there may be an alarm of this name."""
        kind = name.partition(":")[0]
        return name in self.guard.monitors or kind in KINDS

    def restarted(self, name: str) -> Watch:
        """The same with one monitor at its start: after an alarm was looked into. What the sets
        refute has no monitor.
        """
        if name not in self.guard.monitors:
            return self
        return evolved(
            self, guard=Guard({**self.guard.monitors, name: self.guard.monitors[name].fresh()})
        )


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
        if f"limit:{c.name}" in guard.monitors:
            limit = float(block.limits[j])
            out[f"limit:{c.name}"] = limit_cost(
                c, z, entry.x, entry.action, limit, problem.n_actions
            )
        if f"safe_value:{c.name}" in guard.monitors and entry.action == problem.safe_action:
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


class Proved(NamedTuple):
    """The same at one context and action."""

    upper: float
    base: tuple[float, float] | None = None

    def within(self, c: Constraint) -> Proved:
        """As it may be once there are data: before them nothing has an end."""
        return Proved(self.upper, self.base and (c.functional.low, c.functional.high))


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
        if key not in guard.monitors:
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
    known = [m.bets.n_actions for m in guard.monitors.values() if isinstance(m, PitMonitor)]
    return known[0] if known else problem.n_actions


# what an outcome says of a limit ------------------------------------------------------------------
# What a realised outcome says to the monitors of limits and of safe values, with no word from the
# model but its lower end.
#
# A limit on sum_a pi_a T(g_a) is watched where T is an expectation: then one outcome, whichever
# action was drawn, is an unbiased word on it. Quantiles, variances and CVaRs are none: the value of
# a mixture is not the mixture of the values. For the safe action alone, which is no mixture, more
# can be said: T <= c0 implies
#
#     quantile at level q     P(Y > c0) <= 1 - q
#     CVaR at level q
#         E(Y - c0)+ <= (1 - q)(c0 - l),  where Y >= l   (E(Y - v)+ with v the quantile is (1 -
#         q)(CVaR - v))
#     mean of a symmetric outcome without a lower end or a known scale     P(Y > c0) <= 1/2
#
# Axis letters: n contexts, K actions.


EXPECTATIONS = ("mean", "second_moment", "probability")
IN_SCALES: dict[str, Callable[[float], float]] = {
    "mean": lambda level: 0.0,
    "quantile": lambda level: float(ndtri(level)),
    "cvar": lambda level: (
        math.exp(-0.5 * float(ndtri(level)) ** 2) / math.sqrt(2.0 * math.pi) / (1.0 - level)
    ),
}  # how many scales of its noise a functional of a Normal lies over loc
ANYTHING = 1e100
# functional -> what it is measured from, as a functional of its level
MEASURED_FROM: dict[str, Callable[[float], Functional]] = {
    "variance": lambda level: mean(-ANYTHING, ANYTHING),
    "cvar": lambda level: quantile(level, -ANYTHING, ANYTHING),
}
# families that are symmetric about their mean, whatever their parameters
SYMMETRIC = ("Normal", "Laplace", "Logistic")
# share of the range: an upper bound of 0 is tested as this, which is as true and leaves room to bet
LEAST = 1e-6


def limit_floor(c: Constraint, x: np.ndarray, n_actions: int) -> Floor | None:
    """The lower end of what an outcome at context x (dx,) says of a limit, whichever action is
    drawn; None: not watched.
    """
    # one outcome must be an unbiased word on the functional
    if not (is_plain(c.functional) and c.functional.name in EXPECTATIONS):
        return None
    return outcome_floor(c, x, np.arange(n_actions)) if c.functional.name == "mean" else Floor(0.0)


def limit_cost(
    c: Constraint, z: float, x: np.ndarray, action: int, limit: float, n_actions: int
) -> Cost | None:
    """What outcome z of one decision says of its limit; None where there is no room for a bet."""
    floor = limit_floor(c, x, n_actions)
    if floor is None or not floor.low < limit:
        return None
    return Cost(realised(c.functional, np.asarray(z), x, action), limit, floor)


def safe_cost(
    c: Constraint, z: float, x: np.ndarray, safe_action: int, safe_value: float
) -> Cost | None:
    """What outcome z of the safe action says of its declared value; None: not watched."""
    f, only = c.functional, np.array([safe_action])
    if not is_plain(f):
        return None
    if f.name == "quantile":
        return Cost(float(z > safe_value), 1.0 - f.level, Floor(0.0))
    if f.name == "cvar":
        floor = outcome_floor(c, x, only)
        if floor is None or floor.excess or not floor.low < safe_value:
            return None
        return Cost(
            max(z - safe_value, 0.0), (1.0 - f.level) * (safe_value - floor.low), Floor(0.0)
        )
    if f.name not in EXPECTATIONS:
        return None
    floor = outcome_floor(c, x, only) if f.name == "mean" else Floor(0.0)
    if floor is None:
        return Cost(float(z > safe_value), 0.5, Floor(0.0)) if symmetric(c, x, only) else None
    limit = max(safe_value, floor.low + LEAST * (f.high - f.low))
    return Cost(realised(f, np.asarray(z), x, safe_action), limit, floor)


def certified_cost(
    c: Constraint, z: float, x: np.ndarray, action: int, proved: Proved, n_actions: int
) -> Cost | None:
    """What outcome z of one action of so many says of its certified value; None: not watched.

    With Normal noise of known scale s a mean, quantile or CVaR is loc + k s, so that loc <= u - k s
    and Phi((Z - u) / s + k) has a mean of at most 1/2. A variance is at least the mean squared
    distance to an interval that holds the mean. If the quantile v lies in [l, h] and the CVaR is at
    most u, then E(Z - h)+ <= E(Z - v)+ = (1 - q)(CVaR - v) <= (1 - q)(u - l), which is nearer to
    equality than what holds for any outcome with a lower end. All others as for the safe action.
    """
    f = c.functional
    scale = known_scale(c, x, action, n_actions)
    if scale is not None and is_plain(f) and f.name in IN_SCALES:
        return Cost(
            float(ndtr((z - proved.upper) / scale + IN_SCALES[f.name](f.level))), 0.5, Floor(0.0)
        )
    if f.name == "variance" and is_plain(f):
        if proved.base is None:
            return None
        low, high = proved.base
        return Cost(max(low - z, z - high, 0.0) ** 2, max(proved.upper, LEAST * f.high), Floor(0.0))
    if f.name == "cvar" and is_plain(f) and proved.base is not None:
        low, high = proved.base[0], min(proved.base[1], proved.upper)
        if -ANYTHING < low < proved.upper:
            excess = (1.0 - f.level) * (proved.upper - low)
            return Cost(max(z - high, 0.0), excess, Floor(0.0))
    cost = safe_cost(c, z, x, action, proved.upper)
    if cost is None or cost.limit is None or cost.floor is None:
        return None
    return cost if cost.floor.low < cost.limit else None


def symmetric(c: Constraint, x: np.ndarray, actions: np.ndarray) -> bool:
    """Whether outcomes at x (dx,) are symmetric about their mean, whichever parameter is right: a
    mean of at most u is then exceeded by at most half of them.
    """
    rows = np.repeat(x[None], len(actions), axis=0)
    return all(d.family in SYMMETRIC for d in c.model.densities(rows, actions))


def known_scale(c: Constraint, x: np.ndarray, action: int, n_actions: int) -> float | None:
    """The known scale of Normal noise at x (dx,); None for any other noise. All actions are asked
    about, as the decision itself did: the predictor remembers.
    """
    predictor = c.model.predictor
    if predictor is None or (predictor.family, predictor.link) != ("Normal", "identity"):
        return None
    rows = np.repeat(x[None], n_actions, axis=0)
    scales = np.asarray(predictor.fixed(rows, np.arange(n_actions))["scale"]).reshape(-1)
    return float(scales[action if len(scales) > 1 else 0])


def outcome_floor(c: Constraint, x: np.ndarray, actions: np.ndarray) -> Floor | None:
    """The lower end of a constraint's outcome at x (dx,) under any of these actions; None if there
    is none.

    That of its support, or, for outcomes without one but with a known noise scale, six standard
    deviations under the functional's low. The scale is the one at x: it may be another at every
    context.
    """
    model, rows = c.model, np.repeat(x[None], len(actions), axis=0)
    if model.predictor is not None:
        return _predictor_floor(c, model.predictor, rows, actions)
    found = model.densities(rows, actions)
    if not all(d.is_scalar for d in found):
        return None
    try:
        low = min((float(np.min(np.asarray(d.support[0], float))) for d in found), default=-np.inf)
        if np.isfinite(low):
            return None if model.moving_support else Floor(low)
        # the members' variances are all that are possible; those at a parametric class's start are
        # not
        every = model.visit(lambda members: found, lambda cls: [])
        variance = max(
            (float(np.max(np.asarray(d.variance, float))) for d in every), default=np.inf
        )
    except FamilyError:  # a family of the user's own that says nothing about it
        return None
    floor = Floor.under(
        c.functional.low, float(np.sqrt(variance)), normal=all(d.family == "Normal" for d in found)
    )
    return floor if np.isfinite(floor.low) else None


def _predictor_floor(
    c: Constraint, predictor: LinearPredictor, x: np.ndarray, a: np.ndarray
) -> Floor | None:
    """`outcome_floor` of a one-predictor class at rows x (n, dx), a (n,). The density itself
    need not be looked at: none of these families has a support that moves, and those on the real
    line have a known scale.
    """
    if not FAMILIES[predictor.family, predictor.link].real:
        return Floor(0.0)
    if predictor.family == "Normal":
        floor = Floor.under(
            c.functional.low, float(np.max(predictor.fixed(x, a)["scale"])), normal=True
        )
        return floor if math.isfinite(floor.low) else None
    fixed = {name: np.asarray(value, float) for name, value in predictor.fixed(x, a).items()}
    spread = Density(
        predictor.family,
        FAMILIES[predictor.family, predictor.link].arguments(np.zeros(len(a)), fixed),
    ).variance
    floor = Floor.under(c.functional.low, float(np.sqrt(np.max(spread))), normal=False)
    return floor if np.isfinite(floor.low) else None
