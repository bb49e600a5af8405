"""What the algorithm asks of a learned model: take in rows, keep snapshots, bound a functional at today's contexts.

Three learners answer this protocol: `linear_gaussian` (exact, closed form), `finite` (exact, member list) and `programs`
(any differentiable program, by ascent); a fourth, `drawn`, stands around one of them and reads its bounds off draws. All are
immutable: `absorb` and `refit` return a new learner and leave the old one valid, so that the algorithm around them stays pure.

Axis letters: n contexts, K actions, B snapshots, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gedppl.numerics.weighted import quantile_index

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.storing import Reader, Tree, Writer
    from gedppl.oracles.fits import Fit


@dataclass(frozen=True)
class DrawnValues:
    """A functional at weighted draws of the parameters: what a claim about a whole policy is read off."""

    values: np.ndarray  # (S, n, K)
    weights: np.ndarray  # (S,), which sum to one
    level: float  # of the quantile that is claimed, Monte Carlo error allowed for; above 1 there are too few draws to claim one

    def quantile(self, values: np.ndarray) -> np.ndarray:
        """Of values (S, m) at these draws: (m,)."""
        return np.take_along_axis(values, quantile_index(values, self.weights, self.level)[None], axis=0)[0]


@dataclass(frozen=True)
class UsedDraws:
    """Where the draws behind a claim are really from, and what they are worth."""

    asked: str  # the source that was asked for
    source: str  # the one that was used: another where draws of that one cannot stand for the posterior
    size: int
    ess: float
    khat: float | None  # Pareto's shape of their weights; None without weights


@dataclass(frozen=True)
class Bounds:
    """A functional's plausible range at n contexts for all K actions, over everything the data still allow."""

    estimate: np.ndarray  # (n, K) at the current fit, clipped to the functional's range
    lower: np.ndarray  # (n, K)
    upper: np.ndarray  # (n, K)
    method: str  # "exact", "outer" (certified, a little wide), "profiled", "ascent" or "sampled"
    guaranteed: bool  # whether the radius rule AND the way the bound was computed are proved to cover
    rule: str  # the radius rule in one sentence, with its delta
    note: str = ""  # anything a reader of the certificate should know, "" if nothing
    find_witness: Callable[[], np.ndarray | None] = lambda: None  # see `witness`; asked when that is first read
    empty: bool = False  # no parameter is left: the class, or what was declared of it, is refuted
    free_lower: np.ndarray | None = None  # (n, K) before the functional's declared range cuts it; -inf where open
    free_upper: np.ndarray | None = None  # (n, K) inf where open
    credible: float | None = None  # the posterior probability with which each upper value holds, if that is the claim
    drawn: DrawnValues | None = None  # what a policy's own cost is read off, if the claim is about the policy as a whole
    used: UsedDraws | None = None  # what those draws are
    find_watched: Callable[[], Bounds] | None = None  # those that declarations are held against, if not these; see `watched`

    def only(self, i: int) -> Bounds:
        """Range and draws at one of the contexts; what else there is stays as it is."""
        one = slice(i, i + 1)
        drawn = None if self.drawn is None else replace(self.drawn, values=self.drawn.values[:, one])
        return replace(self, estimate=self.estimate[one], lower=self.lower[one], upper=self.upper[one], drawn=drawn)

    @cached_property
    def witness(self) -> np.ndarray | None:
        """(n, K, D) flat parameters at the upper value (finite class: (n, K) member indices); None where there are none."""
        return self.find_witness()

    @cached_property
    def watched(self) -> Bounds:
        """Those that declarations are held against."""
        return self if self.find_watched is None else self.find_watched()


@dataclass(frozen=True)
class Trail:
    """The same functional under every snapshot in turn: what each past round would have seen at today's contexts."""

    estimate: np.ndarray  # (n, B, K)
    lower: np.ndarray  # (n, B, K), already the running intersection over snapshots 0..b where the set is exact
    upper: np.ndarray  # (n, B, K)
    approximate: bool = False  # the bounds only steer exploration: those of today must come from `Learner.bounds`


@dataclass(frozen=True)
class Guess:
    """A functional's estimate and likely range: it steers exploration, and no limit rests on it."""

    estimate: np.ndarray  # (n, K)
    lower: np.ndarray  # (n, K)
    upper: np.ndarray  # (n, K)


class Learner(Protocol):
    """One model's data, fit, radius and snapshots. Immutable."""

    @property
    def n(self) -> int:
        """Rows absorbed."""
        ...

    @property
    def snapshot_sizes(self) -> np.ndarray:
        """(B,) rows that each snapshot was fitted on. Snapshot 0 exists before any row (size 0)."""
        ...

    @property
    def status(self) -> str:
        """The oracle's last word, one sentence."""
        ...

    @property
    def fit(self) -> Fit | None:
        """What the oracle last found, if there is one and it was asked."""
        ...

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether each theta (M, D), or member of a finite class (M,), is in the set: (M,) bool."""
        ...

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Learner:
        """Take in m rows told together. Predictives are fixed before the batch: R += sum log q(y_i), then the rows join.

        Rows come in the order of decision ids, whatever the order in which they were told: a learner may use it.
        """
        ...

    def refit(self) -> Learner:
        """Fit to all rows absorbed and append a snapshot. A failed fit keeps the last good one and says so in `status`."""
        ...

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Today's bounds at contexts x (n, dx) for actions 0..K-1, under the newest snapshot (intersected with older)."""
        ...

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """Estimate and range at x, from the set where that is cheap, else a few posterior standard deviations."""
        ...

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """Every snapshot's estimate and bounds at x; cheap enough to be called at every decision."""
        ...

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """sup over the confidence set of sum_i (T(theta)_i - T(theta_hat)_i)^2 over the rows absorbed (for the bonus weight)."""
        ...

    # what monitors ask: no decision rests on it ---------------------------------------------------------------------------

    def has_predictive(self, x: np.ndarray) -> bool:
        """Whether outcomes at contexts x (n, dx) are single numbers whose predictive has a distribution function."""
        ...

    def predictive_cdf(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y <= y) before y is learned: x (n, dx), a (n,), y (n,) -> (n,), (n,)."""
        ...

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        """log of the densities of those distributions, summed over the n rows. Asked only if `refutable`."""
        ...

    @property
    def refutable(self) -> bool:
        """Whether the largest log-likelihood over the class is known: in closed form, by enumeration, or as it is concave."""
        ...

    def mark(self) -> np.ndarray:
        """Where the log-likelihood of every parameter stands, as one flat array: `top` counts from there."""
        ...

    def top(self, since: np.ndarray) -> float:
        """The largest log-likelihood of any parameter for the rows after a mark; inf where it is not known for certain."""
        ...

    # storing --------------------------------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        """Everything that the data made of the learner, for a snapshot; see `gedppl.learning.storing`."""
        ...

    def restored(self, read: Reader, tree: Tree) -> Learner:
        """Of a learner begun afresh: the one that was `stored`."""
        ...
