"""Monitors that notice when an assumption fails: a limit exceeded, a wrong model, a change, a
context never seen before.

Each monitor is a value: `update` returns the next one and leaves the old as it was. All but the
check of contexts are e-processes: over the whole run, however long and whenever it is looked at,
the probability of a false alarm is at most

    limit
        delta, if the mean cost keeps its limit in every round; no model is assumed, only a lower
        end of the costs
    certified
        delta, if no certified value is exceeded, which has probability 1 - delta if the truth lies
        in the model class
    safe_value
        delta, if the safe action's declared value is not exceeded; no model either, but for the
        symmetry of outcomes about a mean that has neither a lower end nor a known scale
    refuted
        delta, if the truth lies in the model class, whatever the prior, the fits and the way
        actions were chosen
    calibration   delta on average over the model's prior, or if the predictive is the truth itself
    drift         the same
    delay         the same, if delays say nothing of outcomes

What is not guaranteed. For one fixed truth and a Bayesian predictive the last two kept their rate
in simulations after `burn_in` rounds, with these exceptions: a truth some ten prior standard
deviations out, a learned scale inflated by a conflicting prior, and a stale predictive (refitted
each time the data grew by a fifth: about the nominal rate; by a half or more: two to six times that
rate). They say that the model's predictions are off, which may be its prior's fault; `refuted` says
that no parameter could mend them, and needs some more data to say so. And no monitor can see what
the data do not show: a wrong link, or a missing term that moves outcomes by less than about a fifth
of their noise, mostly goes unnoticed for a thousand rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from gedppl.errors import DataError, NotFiniteError, SettingError
from gedppl.guard.bets import (
    Bets,
    Moments,
    Trend,
    bet_together,
    check_pits,
    check_row,
    crossed,
    first_wealth,
    most_won,
    of_stream,
)
from gedppl.guard.monitors import (
    CertifiedMonitor,
    ClassMonitor,
    Cost,
    DelayMonitor,
    Floor,
    LimitMonitor,
    Monitor,
    SafeValueMonitor,
)
from gedppl.guard.outcomes import OutlierCheck
from gedppl.numerics.arrays import check_delta, evolved
from gedppl.numerics.streams import BLOCK, block_of_uniforms

__all__ = [
    "Alarm",
    "CertifiedMonitor",
    "ClassMonitor",
    "Cost",
    "DelayMonitor",
    "Floor",
    "Guard",
    "LimitMonitor",
    "Monitor",
    "OutlierCheck",
    "PitMonitor",
    "SafeValueMonitor",
    "Told",
    "pit_uniform",
    "randomised_pit",
]


def randomised_pit(below: float, at: float, uniform: float) -> float:
    """u = F(y-) + v (F(y) - F(y-)): uniform under the right predictive, discrete outcomes included.

    Parameters
    ----------
    below, at
        P(Y < y) and P(Y <= y) under the predictive fixed before y; equal for a continuous outcome.
    uniform
        v in [0, 1], drawn apart from the data: see `pit_uniform`.

    >>> randomised_pit(0.3, 0.7, 0.5), randomised_pit(0.4, 0.4, 0.9)
    (0.5, 0.4)
    """
    values = (below, at, uniform)
    if not all(map(math.isfinite, values)):
        raise NotFiniteError(
            f"a probability integral transform needs finite numbers, got {[*map(float, values)]}"
        )
    if min(values) < 0 or max(values) > 1 + 1e-9 or below > at + 1e-9:
        raise DataError(
            f"P(Y < y) = {below} and P(Y <= y) = {at} must be probabilities, the first "
            "not the larger"
        )
    return float(min(below + uniform * max(at - below, 0.0), 1.0))


def pit_uniform(seed: int, decision: int, model: int = 0) -> float:
    """The v of one decision and model: the same in whatever order feedback arrives, and again
    after a resume.
    """
    return block_of_uniforms(seed, decision // BLOCK, model)[decision % BLOCK]


@dataclass(frozen=True)
class Alarm:
    """What a monitor has to say."""

    name: str  # e.g. "limit:cost", "refuted:cost", "calibration:utility", "drift:cost"
    evidence: float  # the e-value: odds against the assumption; at least 1 / delta
    delta: float
    round: int  # how many outcomes this monitor had seen
    sentence: str


@dataclass(frozen=True)
class PitMonitor:
    """Are the outcomes those that the model predicted? Bets on u = F(y), with and without regard to
    context and action.

    E_t = sum_k w_k prod_{i<=t} (1 + eps_k g_k(u_i) s_k(x_i, a_i)); `drifting` deals the wealth out
    anew by and by, which finds a change that happens late (see `gedppl.guard.bets`). The bets'
    shares of the wealth are kept beside its logarithm: one whose share is less than the smallest
    number there is is given up, which loses wealth and never makes any.

    Notes
    -----
    P(ever E_t >= 1 / delta) <= delta if the predictive is the truth, and on average over the prior
    of a Bayesian one. Not guaranteed: that rate for each truth (see the top of `gedppl.guard`).

    References
    ----------
    Dawid, "Statistical theory: the prequential approach" (1984), for u; Ville's inequality.

    Examples
    --------
    >>> monitor = PitMonitor.calibration(dx=1, n_actions=2, delta=0.05)
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(300):
    ...     monitor = monitor.update(rng.beta(2, 1), rng.normal(size=1), int(rng.integers(2)))
    >>> monitor.alarmed, monitor.finding
    (True, 'outcomes are larger than predicted')
    """

    bets: Bets
    delta: float
    drifting: bool
    burn_in: int
    n: int
    moments: Moments
    trend: Trend
    wealth: np.ndarray  # (..., E + 1) shares, which sum to 1; the last one is kept and never bet
    log_total: np.ndarray  # (...) log of the wealth of all bets together
    log_peak: np.ndarray  # (...) its largest value so far

    patience = math.inf

    @classmethod
    def calibration(cls, *, dx: int, n_actions: int, delta: float, burn_in: int = 50) -> PitMonitor:
        """Against a model that was wrong from the start."""
        return cls._create(dx, n_actions, delta, burn_in, drifting=False)

    @classmethod
    def drift(cls, *, dx: int, n_actions: int, delta: float, burn_in: int = 50) -> PitMonitor:
        """Against a model that was right and is no longer."""
        return cls._create(dx, n_actions, delta, burn_in, drifting=True)

    @classmethod
    def _create(
        cls, dx: int, n_actions: int, delta: float, burn_in: int, drifting: bool
    ) -> PitMonitor:
        check_delta(delta)
        if dx < 0 or n_actions < 1 or burn_in < 0:
            raise SettingError(
                f"dx={dx}, n_actions={n_actions}, burn_in={burn_in}: at least 0, 1 and 0"
            )
        bets = Bets(dx, n_actions)
        start = Moments.empty(bets.columns), Trend.empty(bets)
        return cls(
            bets,
            delta,
            drifting,
            burn_in,
            0,
            *start,
            first_wealth(bets, drifting),
            np.zeros(()),
            np.zeros(()),
        )

    def update(self, u: Any, x: Any, action: Any) -> PitMonitor:
        """Take in one outcome's u, with its context (dx,) and action (or (R,), (R, dx), (R,): R
        parallel runs).
        """
        pit, context = check_pits(np.asarray(u, float)), np.asarray(x, float)
        check_row(context, action, self.bets.dx, self.bets.n_actions)
        rounds = pit[None, None], context[None], np.asarray(action)[None]
        return bet_together([self], *rounds)[0]

    def rate(self, n: int) -> float:
        """Which share of the wealth is dealt out anew after n rounds."""
        return 1.0 / (n - self.burn_in + 2) if self.drifting else 0.0

    def most(self, key: str, told: Told, before: float) -> float | None:
        most = told.most_won.get(of_stream(key))
        return None if most is None else before + most

    @property
    def log_evidence(self) -> float:
        return float(self.log_total)

    def said(self, name: str, finding: Callable[[str], str]) -> str:
        return self.sentence(name)

    def take(self, key: str, now: Now) -> PitMonitor:
        return now.bet.get(key, self)

    def fresh(self) -> PitMonitor:
        return self._create(
            self.bets.dx, self.bets.n_actions, self.delta, self.burn_in, self.drifting
        )

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "n": np.array(self.n),
            "log_peak": np.asarray(self.log_peak),
            "wealth": self.wealth,
            "log_total": np.asarray(self.log_total),
            "context_n": np.array(self.moments.n),
            "context_mean": self.moments.mean,
            "context_m2": self.moments.m2,
            "trend_products": self.trend.sums[..., 0, :, :],
            "trend_squares": self.trend.sums[..., 1, :, :],
        }

    def with_arrays(self, state: Mapping[str, np.ndarray]) -> PitMonitor:
        moments = Moments(int(state["context_n"]), state["context_mean"], state["context_m2"])
        trend = Trend(np.stack([state["trend_products"], state["trend_squares"]], axis=-3))
        kept = {name: state[name] for name in ("wealth", "log_total", "log_peak")}
        return evolved(self, n=int(state["n"]), moments=moments, trend=trend, **kept)

    @property
    def log_wealth(self) -> np.ndarray:
        """(..., E + 1) log wealth of every bet; -inf of one given up."""
        with np.errstate(divide="ignore"):
            found: np.ndarray = np.asarray(self.log_total)[..., None] + np.log(self.wealth)
            return found

    @property
    def alarmed(self) -> Any:
        return crossed(self.log_peak, self.delta)

    @property
    def finding(self) -> str:
        """The bet that won most, in words."""
        return self.bets.describe(int(np.argmax(self.wealth[..., :-1])))

    def sentence(self, name: str) -> str:
        if self.drifting:
            return (
                f"the outcomes of {name!r} no longer follow what the model predicts: "
                f"{self.finding}. Something changed, or the "
                "model never fitted; look at the latest data"
            )
        return (
            f"the model of {name!r} does not fit: {self.finding}. The model is wrong or its "
            "prior far off; look at the data"
        )


ROUNDING = 1e-6  # nats, in what evidence may have grown by
MOST_WAITING = 32  # outcomes: the longest look, and what is kept of the past
Shared = TypeVar("Shared", Moments, Trend)


@dataclass(frozen=True)
class Told:
    """One outcome as the guard sees it. Leave out of `pits` and `costs` what was not observed."""

    x: np.ndarray
    action: int
    pits: Mapping[str, float] = field(default_factory=dict)  # model name -> u
    # monitor, e.g. "limit:cost" -> what the outcome says to it
    costs: Mapping[str, Cost] = field(default_factory=dict)
    # rounds after it could have been learned; None for rows that nobody waited for
    late: int | None = None
    # model -> log predictive density of this outcome, or of all told with it
    densities: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def most_won(self) -> dict[str, float]:
        """Model -> log of the most that any bet on its predictions wins."""
        return {name: most_won(u) for name, u in self.pits.items()}


@dataclass(frozen=True)
class Now:
    """Outcomes on their way through the monitors."""

    waiting: Sequence[Told]
    bet: Mapping[str, PitMonitor]  # the betting monitors that were told of some, after them
    growth: Callable[[str], float]  # model -> log of what its bets on these outcomes paid


@dataclass(frozen=True)
class Guard:
    """All monitors together. `delta` bounds the chance of any false alarm: the monitors of limits,
    certified and safe values share half of it, and of a model's share `refuted` has half, the
    others a third of the rest each. Not guaranteed: that a wrong model is noticed, in any number of
    rounds.

    >>> guard = Guard.create(
    ...     dx=1,
    ...     n_actions=2,
    ...     delta=0.05,
    ...     limits={"cost": (0.4, 0.0, 1.0)},
    ...     models=["cost"],
    ...     refutable=["cost"],
    ... )
    >>> guard, alarms = guard.update(
    ...     Told(np.zeros(1), 0, pits={"cost": 0.3}, costs={"limit:cost": Cost(0.2)})
    ... )
    >>> alarms, sorted(guard.monitors)
    ([], ['calibration:cost', 'delay:cost', 'drift:cost', 'limit:cost', 'refuted:cost'])
    """

    settled: Mapping[str, Monitor]
    # Outcomes that no monitor has to look at yet, and by monitor the log of the most by which they
    # multiply its evidence, and how many they are: several rounds together cost little more than
    # one.
    waiting: tuple[Told, ...] = ()
    ahead: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        *,
        dx: int,
        n_actions: int,
        delta: float,
        limits: Mapping[str, tuple[float, float, float]] | None = None,
        safe_values: Mapping[str, tuple[float, float, float]] | None = None,
        certified: Mapping[str, tuple[float, float, float]] | None = None,
        models: Any = (),
        refutable: Any = (),
        burn_in: int = 50,
    ) -> Guard:
        """`limits`: constraint name -> (at_most, low, high), where outcomes speak of it; `models`:
        names with a predictive.

        `safe_values`: the same for the declared value of the safe action, `certified` for those of
        all others; `refutable`: models whose largest log-likelihood can be computed.
        """
        check_delta(delta)
        models = list(models)
        means = [(f"limit:{name}", LimitMonitor, ends) for name, ends in (limits or {}).items()]
        means += [
            (f"safe_value:{name}", SafeValueMonitor, ends)
            for name, ends in (safe_values or {}).items()
        ]
        means += [
            (f"certified:{name}", CertifiedMonitor, ends)
            for name, ends in (certified or {}).items()
        ]
        half = 0.5 if means and models else 1.0
        monitors: dict[str, Monitor] = {}
        for key, kind, (limit, low, high) in means:
            monitors[key] = kind.create(
                limit=limit, low=low, high=high, delta=half * delta / len(means)
            )
        shape: dict[str, Any] = {"dx": dx, "n_actions": n_actions, "burn_in": burn_in}
        for name in models:
            share = half * delta / len(models)
            each = share / 6 if name in refutable else share / 3
            monitors[f"calibration:{name}"] = PitMonitor.calibration(**shape, delta=each)
            monitors[f"drift:{name}"] = PitMonitor.drift(**shape, delta=each)
            monitors[f"delay:{name}"] = DelayMonitor.create(delta=each, burn_in=burn_in)
            if name in refutable:
                monitors[f"refuted:{name}"] = ClassMonitor.create(delta=share / 2, first=burn_in)
        return cls(_sharing(monitors))

    @cached_property
    def monitors(self) -> Mapping[str, Monitor]:
        """After all outcomes."""
        return self._taken(self.waiting) if self.waiting else self.settled

    def update(self, told: Told) -> tuple[Guard, list[Alarm]]:
        """Take in one outcome; the alarms that it set off (a monitor says so once)."""
        self._check(told)
        ahead, looks = dict(self.ahead), len(self.waiting) + 1 >= MOST_WAITING
        # a density that is no number voids the starts as they stand after this outcome
        looks |= not all(map(math.isfinite, told.densities.values()))
        for key, monitor in self.settled.items():
            before, outcomes = ahead.get(key, (0.0, 0))
            most = monitor.most(key, told, before)
            if most is not None:
                ahead[key] = most, outcomes + 1
                near = monitor.log_evidence + most >= -math.log(monitor.delta) - ROUNDING
                looks |= outcomes + 1 >= monitor.patience or (near and not monitor.alarmed)
        waiting = (*self.waiting, told)
        if not looks:
            return Guard(self.settled, waiting, ahead), []
        after = self._taken(waiting)
        return Guard(after), self._news(after)

    def _check(self, told: Told) -> None:
        bets = next((m.bets for m in self.settled.values() if isinstance(m, PitMonitor)), None)
        if bets is not None:
            check_row(np.asarray(told.x, float), told.action, bets.dx, bets.n_actions)

    def _taken(self, waiting: Sequence[Told]) -> dict[str, Monitor]:
        """The settled monitors after these outcomes. Of a model, both kinds of bets together, half
        of the stake each; their monitors come before `refuted`.
        """
        after = dict(self.settled)
        now = Now(
            waiting,
            self._bets_of(waiting),
            lambda name: _together(after, name) - _together(self.settled, name),
        )
        for key, monitor in self.settled.items():
            after[key] = monitor.take(key, now)
        return after

    def _bets_of(self, waiting: Sequence[Told]) -> dict[str, PitMonitor]:
        """The betting monitors that were told of some of these outcomes, after them; models that
        began together and were told of the same place their bets in one pass.
        """
        together: dict[tuple[int, tuple[int, ...]], dict[str, PitMonitor]] = {}
        for key, m in self.settled.items():
            if isinstance(m, PitMonitor):
                name = of_stream(key)
                mine = tuple(i for i, told in enumerate(waiting) if name in told.pits)
                if mine:
                    together.setdefault((id(m.moments), mine), {})[key] = m
        after: dict[str, PitMonitor] = {}
        for (_, mine), group in together.items():
            rows = [waiting[i] for i in mine]
            pits = np.array([[told.pits[of_stream(key)] for told in rows] for key in group])
            x, action = np.array([r.x for r in rows], float), np.array([r.action for r in rows])
            after |= zip(group, bet_together(list(group.values()), pits, x, action))
        return after

    def weighed(
        self, marks: Callable[[str], np.ndarray], tops: Callable[[str, np.ndarray], np.ndarray]
    ) -> tuple[Guard, list[Alarm]]:
        """Weigh the bets against the best parameters, after everything shown was learned; the
        alarms that this set off.

        `marks(name)` is where a model's log-likelihood stands now; `tops(name, marks)` its maximum
        since each mark.
        """
        if self.waiting:  # no monitor has to look
            return self, []
        due = {
            key: m
            for key, m in self.settled.items()
            if isinstance(m, ClassMonitor) and (m.contested or m.n >= m.due)
        }
        if not due:
            return self, []
        after = dict(self.settled)
        for key, monitor in due.items():
            name = of_stream(key)
            if monitor.contested:
                monitor = monitor.weigh(tops(name, monitor.marks))
            after[key] = monitor.begin(marks(name)) if monitor.n >= monitor.due else monitor
        return Guard(after), self._news(after)

    def _news(self, after: Mapping[str, Monitor]) -> list[Alarm]:
        alarms = []
        for key, new in after.items():
            if new is not self.settled[key] and new.alarmed and not self.settled[key].alarmed:
                name = of_stream(key)
                said = new.said(name, lambda name: _finding(after, name))
                evidence = float(np.exp(min(float(new.log_peak), 700.0)))
                alarms.append(
                    Alarm(key, evidence, new.delta, new.n, f"Alarm after {new.n} outcomes: {said}.")
                )
        return alarms

    @property
    def alarmed(self) -> list[str]:
        """Names of the monitors that have alarmed."""
        return [key for key, monitor in self.monitors.items() if monitor.alarmed]

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as plain arrays, for a snapshot."""
        out: dict[str, np.ndarray] = {}
        for key, m in self.monitors.items():
            out |= {f"{key}/{name}": array for name, array in m.arrays().items()}
        return out

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> Guard:
        """The same guard in the state that `arrays()` gave."""
        after: dict[str, Monitor] = {}
        for key, m in self.monitors.items():
            state = {
                name.removeprefix(f"{key}/"): array
                for name, array in arrays.items()
                if name.startswith(f"{key}/")
            }
            after[key] = m.with_arrays(state)
        return Guard(_sharing(after))


def _sharing(monitors: dict[str, Monitor]) -> dict[str, Monitor]:
    """With one object for equal moments and for equal trends, so that a `BetRound` computes with
    them once.
    """
    moments: list[Moments] = []
    trends: list[Trend] = []
    out = dict(monitors)
    for key, m in monitors.items():
        if isinstance(m, PitMonitor):
            out[key] = evolved(m, moments=_same(m.moments, moments), trend=_same(m.trend, trends))
    return out


def _same(one: Shared, known: list[Shared]) -> Shared:
    """The first of `known` that is equal; it joins them if none is."""
    for other in known:
        if all(
            np.array_equal(a, b)
            for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
        ):
            return other
    known.append(one)
    return one


def _pit_monitors(monitors: Mapping[str, Monitor], name: str) -> list[PitMonitor]:
    found = (monitors.get(f"{kind}:{name}") for kind in ("calibration", "drift"))
    return [m for m in found if isinstance(m, PitMonitor)]


def _together(monitors: Mapping[str, Monitor], name: str) -> float:
    """log of the wealth of a model's two betting monitors."""
    logs = [float(m.log_total) for m in _pit_monitors(monitors, name)]
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs))


def _finding(monitors: Mapping[str, Monitor], name: str) -> str:
    return max(_pit_monitors(monitors, name), key=lambda m: float(m.log_total)).finding
