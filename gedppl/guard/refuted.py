"""Is every parameter of a class refuted? The alarm about a model that may stop a run, because no prior can set it off.

Bets on u_i = F_i(y_i) against a predictive with density p_i amount to another predictive density q_i(y) = p_i(y) w_i(F_i(y)):
w_i is the bets' payoff, its mean under the uniform law is 1, and E_t = w_1 ... w_t is the gambler's wealth. Whichever
parameter theta is true, a product of predictive densities fixed in advance over the true ones is a nonnegative martingale,

    M_t(theta) = prod_i q_i(y_i) / p(y_i | x_i, a_i, theta) = E_t exp(R_t - l_t(theta)),     R_t = sum_i log p_i(y_i),

so that inf_theta M_t(theta) = E_t exp(R_t - max_theta l_t(theta)) ever reaches 1/delta with probability at most delta
(Ville; Wasserman, Ramdas, Balakrishnan, "Universal inference", 2020). Nothing is asked of p_i but that it was fixed before
y_i: the prior may be off, the fit stale, the data adaptive. A predictive that is wide only because of its prior lets the
bets win, but it loses as much against the best parameter in hindsight, and that is what the wealth has to pay here.

The price is about (D/2) log(t/s) for D parameters if the ratio starts after s outcomes; any fixed start is valid, so several
are mixed. Axis letters: S starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gedppl.errors import SettingError
from gedppl.numerics.records import evolved

SPACING = 4  # each start after this many times the outcomes before the last one


@dataclass(frozen=True)
class ClassMonitor:
    """log inf_theta M_t(theta), mixed over starts, as a value.

    `update` for every outcome, `pay` for what the predictive said of the outcomes, then, when the model has learned them,
    `begin` (if `due`) and `weigh`. A `mark` is whatever the caller needs to find the best log-likelihood since a start.

    >>> monitor = ClassMonitor.create(delta=0.05, first=1).update(0.0).begin(np.zeros(1))
    >>> for _ in range(3):
    ...     monitor = monitor.update(2.0).pay(-1.0)
    >>> monitor.contested, monitor.weigh(np.array([-2.0])).alarmed, monitor.weigh(np.array([0.0])).alarmed
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
        if not 0 < delta < 1 or first < 0:
            raise SettingError(f"delta must lie strictly between 0 and 1 and first be at least 0, got {delta} and {first}")
        none = np.zeros(0)
        return cls(delta, 0, first, 0, none, none, none, np.zeros((0, 0)), np.zeros(()))

    def update(self, growth: float) -> ClassMonitor:
        """One outcome: the log of what the bets on it paid."""
        return evolved(self, n=self.n + 1, log_wealth=self.log_wealth + growth)

    def pay(self, log_predictive: float) -> ClassMonitor:
        """The log predictive density of outcomes shown. Where it is no number, every start so far is void."""
        if not np.isfinite(log_predictive):
            none = np.zeros(0)
            return evolved(self, log_shares=none, log_wealth=none, evidence=none, marks=np.zeros((0, 0)), due=self.n)
        return evolved(self, evidence=self.evidence + log_predictive)

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

    @property
    def contested(self) -> bool:
        """Whether the bets alone have won enough for the best log-likelihood to be worth computing."""
        return not self.alarmed and bool(self.log_wealth.max(initial=-np.inf) >= -np.log(self.delta))

    def weigh(self, tops: np.ndarray) -> ClassMonitor:
        """With the largest log-likelihood of any parameter since each start (S,)."""
        logs = self.log_shares + self.log_wealth + self.evidence - np.asarray(tops, float)
        return evolved(self, log_peak=np.maximum(self.log_peak, np.logaddexp.reduce(logs)))

    @property
    def alarmed(self) -> bool:
        return bool(self.log_peak >= -np.log(self.delta))

    def sentence(self, name: str, finding: str) -> str:
        return (
            f"no parameter of the model of {name!r} explains the outcomes: {finding}. Its bounds cannot be trusted; fall back "
            "to the safe action and revise the model"
        )
