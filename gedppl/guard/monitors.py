"""The monitors: costs against their limits, outcomes against their delays, and a class against its
best member.

Is the mean of a cost above its limit? Bets against it need no model, only a lower end of each cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr

from gedppl.errors import DataError, NotFiniteError, SettingError
from gedppl.guard.bets import Moments, crossed, log_total, of_stream, span
from gedppl.numerics.arrays import check_delta, evolved

if TYPE_CHECKING:
    from gedppl.guard import Now, Told

MOST_STAKED = 0.8
FRACTIONS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, MOST_STAKED])
# the first bets never change; those after them, and what is kept back, may begin at any time
STEADY = len(FRACTIONS)
BET = np.concatenate([FRACTIONS, FRACTIONS, [0.0]])  # (B,) the last is kept back
LATE_LOG_WEIGHTS = np.log(np.append(np.full(STEADY, 0.5 / STEADY), 0.5))
FIRST_LOG_WEALTH = np.append(np.full(STEADY, -np.log(STEADY)), LATE_LOG_WEIGHTS) - np.log(2.0)
NOISE_SDS = 6.0
NORMAL_EXCESS = float(
    np.exp(-0.5 * NOISE_SDS**2) / np.sqrt(2 * np.pi) - NOISE_SDS * ndtr(-NOISE_SDS)
)
SCARF_EXCESS = 0.5 * (math.sqrt(1.0 + NOISE_SDS**2) - NOISE_SDS)
ROUNDING = 1e-9  # share of the numbers compared
Arrays = Mapping[str, np.ndarray]


class Monitor(Protocol):
    """What a guard asks of a monitor. Immutable."""

    @property
    def n(self) -> int:
        """Outcomes seen."""
        ...

    @property
    def delta(self) -> float:
        """The probability of a false alarm over the whole run."""
        ...

    @property
    def log_peak(self) -> np.ndarray:
        """The largest log evidence so far."""
        ...

    @property
    def alarmed(self) -> Any:
        """Whether it has reached 1/delta."""
        ...

    def said(self, name: str, finding: Callable[[str], str]) -> str:
        """Its alarm in words; `finding` says which bet won most."""
        ...

    def most(self, key: str, told: Told, before: float) -> float | None:
        """log of the most by which one more outcome multiplies its evidence, with others that did
        by at most exp(before); None if it says nothing to it. Raises what is wrong with it.
        """
        ...

    @property
    def log_evidence(self) -> float:
        """Of now."""
        ...

    @property
    def patience(self) -> float:
        """How many outcomes may wait at most."""
        ...

    def take(self, key: str, now: Now) -> Monitor:
        """With what waiting outcomes say to it; `key` is its name in the guard."""
        ...

    def fresh(self) -> Monitor:
        """The same at its start."""
        ...

    def arrays(self) -> Arrays:
        """The state as plain arrays, for a snapshot."""
        ...

    def with_arrays(self, state: Arrays) -> Monitor:
        """The same in the state that `arrays` gave."""
        ...


def _counted(monitor: Monitor) -> dict[str, np.ndarray]:
    return {"n": np.array(monitor.n), "log_peak": np.asarray(monitor.log_peak)}


class Floor(NamedTuple):
    """A lower end at which one cost may be cut, and how much cutting it there can add to its mean.

    A cost without a lower end is cut `NOISE_SDS` standard deviations under its smallest mean, where
    a cut adds next to nothing; that little is counted (`excess`), so that the bets stay fair
    exactly.
    """

    low: float
    excess: float = 0.0

    @classmethod
    def under(cls, mean: float, sd: float, *, normal: bool) -> Floor:
        """For a cost of at least this mean with this standard deviation: E(low - Z)+, exact for
        a Normal, else Scarf's bound.
        """
        return cls(mean - NOISE_SDS * sd, (NORMAL_EXCESS if normal else SCARF_EXCESS) * sd)


class Cost(NamedTuple):
    """One realised cost, the limit of its own round and its floor; the monitor's own where there
    are none.
    """

    value: float
    limit: float | None = None
    floor: Floor | None = None


def _dealt_anew(log_wealth: np.ndarray, n: int) -> np.ndarray:
    """The late bets' wealth (..., B) after n rounds with a share of 1 / (n + 1) dealt out anew;
    the steady ones keep theirs.
    """
    late = log_wealth[..., STEADY:]
    pot = log_total(late)[..., None] + (LATE_LOG_WEIGHTS - math.log(n + 1.0))
    out = log_wealth.copy()
    np.logaddexp(late + math.log(n / (n + 1.0)), pot, out=out[..., STEADY:])
    return out


@dataclass(frozen=True)
class LimitMonitor:
    """Is the mean of a cost above its limit?

    E_t = sum_k w_k prod_{i<=t} (1 + lambda_ki (max(z_i, low_i) - limit_i - excess_i)),

    lambda_ki = c_k / (limit_i + excess_i - low_i), 0 <= c_k < 1, is a nonnegative supermartingale
    if E[z_i | past, x_i] <= limit_i in every round, so P(ever E_t >= 1/delta) <= delta, with no
    model (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
    2024). The lower end may be another in each round, if it depends on the past and on x_i alone:
    one end for all actions, as the limit is on the policy's average, and a bet that knew the action
    would be unfair.

    Costs far under their limit eat a bet's wealth up, so that it could not see a later change.
    Hence half of the wealth is a mixture over all rounds at which a bet may begin: its bets give up
    1 / (n + 1) of what they have after n rounds, which is dealt out anew, half of it kept back
    (fixed share, see `bets.shared`). The sum stays what it was, and a supermartingale.

    Parameters
    ----------
    limit, low, high
        The constraint's `at_most` and the range of the cost; `low` and `limit` where a round has
        none of its own.
    delta
        Probability of a false alarm over the whole run.

    >>> monitor = LimitMonitor.create(limit=0.4, low=0.0, high=1.0, delta=0.05)
    >>> for _ in range(20):
    ...     monitor = monitor.update(0.9)
    >>> monitor.alarmed, monitor.n
    (True, 20)
    """

    limit: float
    low: float
    high: float
    delta: float
    n: int
    log_wealth: np.ndarray  # (..., B), initial weights included
    log_peak: np.ndarray  # (...) the largest log E so far
    mean: np.ndarray  # (...) of the costs, for the sentence

    patience = math.inf

    @classmethod
    def create(cls, *, limit: float, low: float, high: float, delta: float) -> LimitMonitor:
        check_delta(delta)
        if not (np.isfinite(low) and np.isfinite(high) and low < limit < high):
            raise SettingError(
                f"a limit needs low < limit < high, all finite, got low={low}, "
                f"limit={limit}, high={high}"
            )
        return cls(limit, low, high, delta, 0, FIRST_LOG_WEALTH, np.zeros(()), np.zeros(()))

    def update(
        self, cost: Any, limit: float | None = None, floor: Floor | None = None
    ) -> LimitMonitor:
        """Take in one realised cost (or (R,): one for each of R parallel runs), with the limit
        and the floor of its round.
        """
        if limit is not None and limit != self.limit:
            return evolved(self, limit=limit).update(cost, None, floor)
        z, low, excess = self._checked(cost, self.limit, floor)
        payoff = np.maximum((z - self.limit - excess) / (self.limit + excess - low), -1.0)
        wealth = _dealt_anew(self.log_wealth + np.log1p(payoff[..., None] * BET), self.n + 1)
        peak = np.maximum(self.log_peak, log_total(wealth))
        mean = self.mean + (z - self.mean) / (self.n + 1)
        return evolved(self, n=self.n + 1, log_wealth=wealth, log_peak=peak, mean=mean)

    def _checked(
        self, cost: Any, limit: float, floor: Floor | None
    ) -> tuple[np.ndarray, float, float]:
        """The cost as an array, and its floor."""
        z = np.asarray(cost, float)
        least, most = span(z)
        if not (math.isfinite(least) and math.isfinite(most)):
            raise NotFiniteError(f"a cost must be finite, got {cost}")
        slack = ROUNDING * max(abs(self.low), abs(limit))
        if (floor is None and least < self.low - slack) or most > self.high + ROUNDING * abs(
            self.high
        ):
            raise DataError(
                f"the cost {cost} lies outside its range [{self.low}, {self.high}]: "
                "correct it or the range"
            )
        low, excess = Floor(self.low) if floor is None else floor
        return z, low, excess

    @cached_property
    def log_evidence(self) -> float:
        return float(log_total(self.log_wealth))

    def most(self, key: str, told: Told, before: float) -> float | None:
        cost = told.costs.get(key)
        if cost is None:
            return None
        limit = self.limit if cost.limit is None else cost.limit
        z, low, excess = self._checked(cost.value, limit, cost.floor)
        if cost.limit is None:  # that of the round before, which may be waiting
            return math.inf
        payoff = max((float(z) - limit - excess) / (limit + excess - low), 0.0)
        return before + math.log1p(MOST_STAKED * payoff)

    def said(self, name: str, finding: Callable[[str], str]) -> str:
        return self.sentence(name)

    def take(self, key: str, now: Now) -> LimitMonitor:
        after = self
        for told in now.waiting:
            if key in told.costs:
                after = after.update(*told.costs[key])
        return after

    def fresh(self) -> LimitMonitor:
        return type(self).create(limit=self.limit, low=self.low, high=self.high, delta=self.delta)

    def arrays(self) -> Arrays:
        return _counted(self) | {"log_wealth": self.log_wealth, "mean": np.asarray(self.mean)}

    def with_arrays(self, state: Arrays) -> LimitMonitor:
        kept = {name: state[name] for name in ("log_wealth", "log_peak", "mean")}
        return evolved(self, n=int(state["n"]), **kept)

    @property
    def alarmed(self) -> Any:
        return crossed(self.log_peak, self.delta)

    def sentence(self, name: str) -> str:
        return (
            f"the mean cost of {name!r} exceeds its limit {self.limit:g}: the average over "
            f"{self.n} rounds is "
            f"{float(self.mean):.3g}. The constraint's model is wrong or the costs changed; fall "
            "back to the safe action "
            "and look at the data"
        )


@dataclass(frozen=True)
class SafeValueMonitor(LimitMonitor):
    """Does the safe action cost more than was declared? The same bets, on outcomes of the safe
    action alone.
    """

    def sentence(self, name: str) -> str:
        return (
            f"safe_value of {name!r} is refuted by what the safe action brought: over {self.n} of "
            "its rounds the average that it "
            f"implies to be at most {self.limit:.4g} is {float(self.mean):.4g}. Declare a value "
            "that is not exceeded, or name "
            "another safe action"
        )


@dataclass(frozen=True)
class CertifiedMonitor(LimitMonitor):
    """Do an action's outcomes exceed what its certified value allows? The same bets, each on one
    action and its own value.

    Fair while every certified value holds, so that an alarm refutes the class (or is one of the
    delta). A bet may know the action here: what is tested is not the policy's average.
    """

    def sentence(self, name: str) -> str:
        return (
            f"outcomes of {name!r} exceed what their certified values allow: over {self.n} rounds "
            "the average that they imply to "
            f"be at most {self.limit:.4g} (in the last round) is {float(self.mean):.4g}. The "
            "constraint's model is wrong or the "
            "costs changed; fall back to the safe action and look at the data"
        )


# delays that go with outcomes ---------------------------------------------------------------------


AMOUNTS = np.array([-0.9, -0.5, -0.2, 0.2, 0.5, 0.9])  # the last is the most


@dataclass(frozen=True)
class DelayMonitor:
    """Do late outcomes differ from prompt ones?

    E_t = sum_k w_k prod_{i<=t} (1 + eps_k (2 u_i - 1) s_i),
        u_i = F_i(y_i),  s_i in [-1, 1] how late i is beside the others,

    is a martingale if, given the past, the context and the action, u_i is uniform however late it
    is told: if the predictive is right and lateness says nothing of the outcome. Then P(ever E_t >=
    1/delta) <= delta. While all are equally late, s_i = 0 and nothing is bet. As with calibration,
    a predictive that is off may set it off where delays depend on the context.

    >>> monitor, rng = DelayMonitor.create(delta=0.05, burn_in=0), np.random.default_rng(0)
    >>> for _ in range(100):
    ...     u = rng.random()
    ...     monitor = monitor.update(u, 0.0 if u > 0.5 else 10.0)
    >>> monitor.alarmed, monitor.finding
    (True, 'late outcomes are smaller than those told at once')
    """

    delta: float
    burn_in: int
    n: int
    moments: Moments  # of log(1 + rounds late), (1,)
    log_wealth: np.ndarray  # (..., len(AMOUNTS)), initial weights included
    log_peak: np.ndarray  # (...)

    patience = math.inf

    @classmethod
    def create(cls, *, delta: float, burn_in: int = 50) -> DelayMonitor:
        check_delta(delta)
        weights = np.full(len(AMOUNTS), -np.log(len(AMOUNTS)))
        return cls(delta, burn_in, 0, Moments.empty(1), weights, np.zeros(()))

    def update(self, u: Any, late: Any) -> DelayMonitor:
        """Take in one outcome's u, told `late` rounds after it could have been (or (R,), (R,): R
        parallel runs).
        """
        pit, rounds = np.asarray(u, float), np.asarray(late, float)
        least, most = span(pit)
        if not (least >= 0 and most <= 1):  # NaN fails both
            raise DataError(f"a probability integral transform lies in [0, 1], got {u}")
        least, most = span(rounds)
        if not (least >= 0 and most < np.inf):
            raise DataError(f"an outcome is told some rounds late, 0 or more, got {late}")
        column = np.log1p(rounds)[..., None]
        moments = self.moments.include(column)
        # all were equally late: nothing is bet
        if self.n < self.burn_in or not np.count_nonzero(moments.m2):
            return evolved(self, n=self.n + 1, moments=moments)
        place = np.nan_to_num(np.clip(moments.standardised(column), -1.0, 1.0))
        if not place.any():  # nothing is bet
            return evolved(self, n=self.n + 1, moments=moments)
        wealth = self.log_wealth + np.log1p(AMOUNTS * (2.0 * pit - 1.0)[..., None] * place)
        peak = np.maximum(self.log_peak, log_total(wealth))
        return evolved(self, n=self.n + 1, moments=moments, log_wealth=wealth, log_peak=peak)

    @property
    def alarmed(self) -> Any:
        return crossed(self.log_peak, self.delta)

    def said(self, name: str, finding: Callable[[str], str]) -> str:
        return self.sentence(name)

    @cached_property
    def log_evidence(self) -> float:
        return float(log_total(self.log_wealth))

    def most(self, key: str, told: Told, before: float) -> float | None:
        u = told.pits.get(of_stream(key))
        if u is None or told.late is None:
            return None
        same = before == 0 and self.moments.m2[0] == 0 and self.n > 0
        if same and math.log1p(told.late) == self.moments.mean[0]:  # all equally late: no bet
            return 0.0
        return before + math.log1p(float(AMOUNTS[-1]) * abs(2.0 * u - 1.0))

    def take(self, key: str, now: Now) -> DelayMonitor:
        after, name = self, of_stream(key)
        for told in now.waiting:
            if name in told.pits and told.late is not None:
                after = after.update(told.pits[name], told.late)
        return after

    def fresh(self) -> DelayMonitor:
        return type(self).create(delta=self.delta, burn_in=self.burn_in)

    def arrays(self) -> Arrays:
        late = {
            "late_n": np.array(self.moments.n),
            "late_mean": self.moments.mean,
            "late_m2": self.moments.m2,
        }
        return _counted(self) | {"log_wealth": self.log_wealth} | late

    def with_arrays(self, state: Arrays) -> DelayMonitor:
        late = Moments(int(state["late_n"]), state["late_mean"], state["late_m2"])
        return evolved(
            self,
            n=int(state["n"]),
            log_wealth=state["log_wealth"],
            log_peak=state["log_peak"],
            moments=late,
        )

    @property
    def finding(self) -> str:
        larger = AMOUNTS[int(np.argmax(self.log_wealth))] > 0
        return f"late outcomes are {'larger' if larger else 'smaller'} than those told at once"

    def sentence(self, name: str) -> str:
        return (
            f"the delay of {name!r} goes with its outcome: {self.finding}. What has arrived is "
            "then no fair sample, and no limit "
            "is certified by it; set Problem(outcome_age=m) so that every outcome enters m rounds "
            "after its decision, with m "
            "the longest delay"
        )


# classes that the data refute ---------------------------------------------------------------------
# Is every parameter of a class refuted? The alarm about a model that may stop a run, because no
# prior can set it off.
#
# Bets on u_i = F_i(y_i) against a predictive with density p_i amount to another predictive density
# q_i(y) = p_i(y) w_i(F_i(y)): w_i is the bets' payoff, its mean under the uniform law is 1, and E_t
# = w_1 ... w_t is the gambler's wealth. Whichever parameter theta is true, a product of predictive
# densities fixed in advance over the true ones is a nonnegative martingale,
#
#     M_t(theta) = prod_i q_i(y_i) / p(y_i | x_i, a_i, theta) = E_t exp(R_t - l_t(theta)),
#         R_t = sum_i log p_i(y_i),
#
# so that inf_theta M_t(theta) = E_t exp(R_t - max_theta l_t(theta)) ever reaches 1/delta with
# probability at most delta (Ville; Wasserman, Ramdas, Balakrishnan, "Universal inference", 2020).
# Nothing is asked of p_i but that it was fixed before y_i: the prior may be off, the fit stale, the
# data adaptive. A predictive that is wide only because of its prior lets the bets win, but it loses
# as much against the best parameter in hindsight, and that is what the wealth has to pay here.
#
# The price is about (D/2) log(t/s) for D parameters if the ratio starts after s outcomes; any fixed
# start is valid, so several are mixed. Axis letters: S starts.


SPACING = 4  # each start after this many times the outcomes before the last one


@dataclass(frozen=True)
class ClassMonitor:
    """log inf_theta M_t(theta), mixed over starts, as a value.

    `update` for every outcome, `pay` for what the predictive said of the outcomes, then, when the
    model has learned them, `begin` (if `due`) and `weigh`. A `mark` is whatever the caller needs to
    find the best log-likelihood since a start.

    >>> monitor = ClassMonitor.create(delta=0.05, first=1).update(0.0).begin(np.zeros(1))
    >>> for _ in range(3):
    ...     monitor = monitor.update(2.0).pay(-1.0)
    >>> (
    ...     monitor.contested,
    ...     monitor.weigh(np.array([-2.0])).alarmed,
    ...     monitor.weigh(np.array([0.0])).alarmed,
    ... )
    (True, True, False)
    """

    delta: float
    n: int  # outcomes seen
    due: int  # outcomes after which the next start falls
    started: int  # starts so far, void ones included
    log_shares: np.ndarray  # (S,) of the mixture
    log_wealth: np.ndarray  # (S,) of the bets, since each start
    evidence: np.ndarray  # (S,) R since each start
    marks: np.ndarray  # (S, m)
    log_peak: np.ndarray  # () the largest log evidence against the whole class so far

    @classmethod
    def create(cls, *, delta: float, first: int = 50) -> ClassMonitor:
        check_delta(delta)
        if first < 0:
            raise SettingError(f"first must be at least 0, got {first}")
        none = np.zeros(0)
        return cls(delta, 0, first, 0, none, none, none, np.zeros((0, 0)), np.zeros(()))

    def update(self, growth: float, outcomes: int = 1) -> ClassMonitor:
        """One outcome, or several: the log of what the bets on them paid."""
        return evolved(self, n=self.n + outcomes, log_wealth=self.log_wealth + growth)

    def pay(self, *log_predictive: float) -> ClassMonitor:
        """The log predictive densities of outcomes shown. Where one is no number, every start so
        far is void.
        """
        if not all(map(math.isfinite, log_predictive)):
            void = dict.fromkeys(("log_shares", "log_wealth", "evidence"), np.zeros(0))
            return evolved(self, **void, marks=np.zeros((0, 0)), due=self.n)
        # one by one: the same to the last digit however many came together
        return evolved(self, evidence=reduce(np.add, log_predictive, self.evidence))

    def begin(self, mark: np.ndarray) -> ClassMonitor:
        """The ratio starts once more, here."""
        share = np.log(6 / np.pi**2) - 2 * np.log1p(self.started)
        marks = np.asarray(mark, float)[None]
        return evolved(
            self,
            due=max(SPACING * self.due, self.n + 1),
            started=self.started + 1,
            log_shares=np.append(self.log_shares, share),
            log_wealth=np.append(self.log_wealth, 0.0),
            evidence=np.append(self.evidence, 0.0),
            marks=marks if not len(self.marks) else np.vstack([self.marks, marks]),
        )

    def said(self, name: str, finding: Callable[[str], str]) -> str:
        return self.sentence(name, finding(name))

    def most(self, key: str, told: Told, before: float) -> float | None:
        most = told.most_won.get(of_stream(key))
        return None if most is None else before + most

    @cached_property
    def log_evidence(self) -> float:
        """At most: of the bets alone."""
        return max(self.log_wealth.tolist(), default=-math.inf)

    @property
    def patience(self) -> float:
        """A start that is due does not wait."""
        return self.due - self.n

    def take(self, key: str, now: Now) -> ClassMonitor:
        name = of_stream(key)
        outcomes = sum(name in told.pits for told in now.waiting)
        after = self.update(now.growth(name), outcomes) if outcomes else self
        paid = [told.densities[name] for told in now.waiting if name in told.densities]
        return after.pay(*paid) if paid else after

    def fresh(self) -> ClassMonitor:
        return type(self).create(delta=self.delta)

    def arrays(self) -> Arrays:
        starts = {"log_shares": self.log_shares, "evidence": self.evidence, "marks": self.marks}
        counts = {"due": np.array(self.due), "started": np.array(self.started)}
        return _counted(self) | {"log_wealth": self.log_wealth} | counts | starts

    def with_arrays(self, state: Arrays) -> ClassMonitor:
        kept = {
            name: state[name]
            for name in ("log_wealth", "log_peak", "log_shares", "evidence", "marks")
        }
        return evolved(
            self, n=int(state["n"]), due=int(state["due"]), started=int(state["started"]), **kept
        )

    @property
    def contested(self) -> bool:
        """Whether the bets alone have won enough for the best log-likelihood to be worth
        computing.
        """
        return not self.alarmed and self.log_evidence >= -math.log(self.delta)

    def weigh(self, tops: np.ndarray) -> ClassMonitor:
        """With the largest log-likelihood of any parameter since each start (S,)."""
        logs = self.log_shares + self.log_wealth + self.evidence - np.asarray(tops, float)
        return evolved(self, log_peak=np.maximum(self.log_peak, np.logaddexp.reduce(logs)))

    @property
    def alarmed(self) -> bool:
        return bool(self.log_peak >= -math.log(self.delta))

    def sentence(self, name: str, finding: str) -> str:
        return (
            f"no parameter of the model of {name!r} explains the outcomes: {finding}. Its bounds "
            "cannot be trusted; fall back "
            "to the safe action and revise the model"
        )
