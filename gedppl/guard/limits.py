"""Is the mean of a cost above its limit? Bets against it that need no model, only a lower end of each cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from gedppl.errors import DataError, NotFiniteError, SettingError
from gedppl.guard.bets import log_total
from gedppl.guard.checks import check_delta, crossed
from gedppl.numerics.records import evolved

FRACTIONS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
NOISE_SDS = 6.0
NORMAL_EXCESS = float(np.exp(-0.5 * NOISE_SDS**2) / np.sqrt(2 * np.pi) - NOISE_SDS * ndtr(-NOISE_SDS))
SCARF_EXCESS = 0.5 * (math.sqrt(1.0 + NOISE_SDS**2) - NOISE_SDS)
ROUNDING = 1e-9  # share of the numbers compared


class Floor(NamedTuple):
    """A lower end at which one cost may be cut, and how much cutting it there can add to its mean.

    A cost without a lower end is cut `NOISE_SDS` standard deviations under its smallest mean, where a cut adds next to nothing;
    that little is counted (`excess`), so that the bets stay fair exactly.
    """

    low: float
    excess: float = 0.0

    @classmethod
    def under(cls, mean: float, sd: float, *, normal: bool) -> Floor:
        """For a cost of at least this mean with this standard deviation: E(low - Z)+, exact for a Normal, else Scarf's bound."""
        return cls(mean - NOISE_SDS * sd, (NORMAL_EXCESS if normal else SCARF_EXCESS) * sd)


class Cost(NamedTuple):
    """One realised cost, the limit of its own round and its floor; the monitor's own where there are none."""

    value: float
    limit: float | None = None
    floor: Floor | None = None


@dataclass(frozen=True)
class LimitMonitor:
    """Is the mean of a cost above its limit?

    E_t = sum_k w_k prod_{i<=t} (1 + lambda_ki (max(z_i, low_i) - limit_i - excess_i)),

    lambda_ki = c_k / (limit_i + excess_i - low_i), 0 < c_k < 1, is a nonnegative supermartingale if E[z_i | past, x_i] <= limit_i
    in every round, so P(ever E_t >= 1/delta) <= delta, with no model at all (Waudby-Smith and Ramdas, "Estimating means of
    bounded random variables by betting", 2024). The lower end may be another in each round, if it depends on the past and on
    x_i alone: one end for all actions, as the limit is on the policy's average, and a bet that knew the action would be unfair.

    Parameters
    ----------
    limit, low, high
        The constraint's `at_most` and the range of the cost; `low` and `limit` where a round has none of its own.
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
    log_wealth: np.ndarray  # (..., len(FRACTIONS)), initial weights included
    log_peak: np.ndarray  # (...) the largest log E so far
    mean: np.ndarray  # (...) of the costs, for the sentence

    @classmethod
    def create(cls, *, limit: float, low: float, high: float, delta: float) -> LimitMonitor:
        check_delta(delta)
        if not (np.isfinite(low) and np.isfinite(high) and low < limit < high):
            raise SettingError(f"a limit needs low < limit < high, all finite, got low={low}, limit={limit}, high={high}")
        weights = np.full(len(FRACTIONS), -np.log(len(FRACTIONS)))
        return cls(limit, low, high, delta, 0, weights, np.zeros(()), np.zeros(()))

    def update(self, cost: Any, limit: float | None = None, floor: Floor | None = None) -> LimitMonitor:
        """Take in one realised cost (or (R,): one for each of R parallel runs), with the limit and the floor of its round."""
        if limit is not None and limit != self.limit:
            return evolved(self, limit=limit).update(cost, None, floor)
        z = np.asarray(cost, float)
        if not np.all(np.isfinite(z)):
            raise NotFiniteError(f"a cost must be finite, got {cost}")
        low, excess = Floor(self.low) if floor is None else floor
        slack = ROUNDING * max(abs(self.low), abs(self.limit))
        if (floor is None and z.min() < self.low - slack) or z.max() > self.high + ROUNDING * abs(self.high):
            raise DataError(f"the cost {cost} lies outside its range [{self.low}, {self.high}]: correct it or the range")
        room = self.limit + excess - low
        payoff = np.clip((z - self.limit - excess) / room, -1.0, None)
        wealth = self.log_wealth + np.log1p(payoff[..., None] * FRACTIONS)
        peak = np.maximum(self.log_peak, log_total(wealth))
        mean = self.mean + (z - self.mean) / (self.n + 1)
        return evolved(self, n=self.n + 1, log_wealth=wealth, log_peak=peak, mean=mean)

    @property
    def alarmed(self) -> Any:
        return crossed(self.log_peak, self.delta)

    def sentence(self, name: str) -> str:
        return (
            f"the mean cost of {name!r} exceeds its limit {self.limit:g}: the average over {self.n} rounds is "
            f"{float(self.mean):.3g}. The constraint's model is wrong or the costs changed; fall back to the safe action "
            "and look at the data"
        )


@dataclass(frozen=True)
class SafeValueMonitor(LimitMonitor):
    """Does the safe action cost more than was declared? The same bets, on outcomes of the safe action alone."""

    def sentence(self, name: str) -> str:
        return (
            f"safe_value of {name!r} is refuted by what the safe action brought: over {self.n} of its rounds the average that it "
            f"implies to be at most {self.limit:.4g} is {float(self.mean):.4g}. Declare a value that is not exceeded, or name "
            "another safe action"
        )
