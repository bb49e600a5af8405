"""Do delays go with outcomes? Then what has arrived is no fair sample, and no set computed from it covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import DataError
from gedppl.guard.bets import Moments, log_total
from gedppl.guard.checks import check_delta, crossed
from gedppl.numerics.records import evolved

AMOUNTS = np.array([-0.9, -0.5, -0.2, 0.2, 0.5, 0.9])


@dataclass(frozen=True)
class DelayMonitor:
    """Do late outcomes differ from prompt ones?

    E_t = sum_k w_k prod_{i<=t} (1 + eps_k (2 u_i - 1) s_i),    u_i = F_i(y_i),  s_i in [-1, 1] how late i is beside the others,

    is a martingale if, given the past, the context and the action, u_i is uniform however late it is told: if the predictive is
    right and lateness says nothing of the outcome. Then P(ever E_t >= 1/delta) <= delta. While all are equally late, s_i = 0 and
    nothing is bet. As with calibration, a predictive that is off may set it off where delays depend on the context.

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

    @classmethod
    def create(cls, *, delta: float, burn_in: int = 50) -> DelayMonitor:
        check_delta(delta)
        weights = np.full(len(AMOUNTS), -np.log(len(AMOUNTS)))
        return cls(delta, burn_in, 0, Moments.empty(1), weights, np.zeros(()))

    def update(self, u: Any, late: Any) -> DelayMonitor:
        """Take in one outcome's u, told `late` rounds after it could have been (or (R,), (R,): R parallel runs)."""
        pit, rounds = np.asarray(u, float), np.asarray(late, float)
        if not (pit.min() >= 0 and pit.max() <= 1):  # NaN fails both
            raise DataError(f"a probability integral transform lies in [0, 1], got {u}")
        if not (rounds.min() >= 0 and rounds.max() < np.inf):
            raise DataError(f"an outcome is told some rounds late, 0 or more, got {late}")
        column = np.log1p(rounds)[..., None]
        moments = self.moments.include(column)
        if self.n < self.burn_in or not moments.m2.any():  # all were equally late: nothing is bet
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

    @property
    def finding(self) -> str:
        larger = AMOUNTS[int(np.argmax(self.log_wealth))] > 0
        return f"late outcomes are {'larger' if larger else 'smaller'} than those told at once"

    def sentence(self, name: str) -> str:
        return (
            f"the delay of {name!r} goes with its outcome: {self.finding}. What has arrived is then no fair sample, and no limit "
            "is certified by it; set Problem(outcome_age=m) so that every outcome enters m rounds after its decision, with m "
            "the longest delay"
        )
