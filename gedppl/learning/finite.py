"""A learner for a finite class: every member's likelihood is kept, so sets, bounds and snapshots
are exact.

With a uniform prior over the |F| members the mixture predictive gives R_t = log mean_m exp(l_t(m)),
and

    C_t = {m : l_t(m) >= R_t - log(1/delta)}

covers the true member at all times with probability 1 - delta. The divergence balls {m : sum_i
D^2(m_hat, m)_i <= Est} are offered too.

Sets are not intersected over time, though that would be valid on the same event. Where the truth is
missed, which may happen with probability delta, it comes back by itself when more data are seen; an
intersection would make the miss a lasting one. Over 400 runs of 600 rounds at delta = .05 (16
members, `tests/test_finite_sets.py`) intersecting cost 1745 infeasible rounds against 21, and more
regret, not less. What the intersection is good for is kept: if every member was outside the set at
one time or another, the class does not hold the truth, and the set is reported as empty.

All rows make one process. A finite class is seldom a product over actions, so a row of one action
excludes members for every other, and processes of single actions (half of delta, beside all rows
with the other half) would pay log 2 and log 2K for nothing: they left as many members or more at
every size tried (`benchmarks/finite_groups.py`, six seeds of 64 members, five actions played alike:
11.5 members against 12.8 after 50 rows, 1.33 against 1.67 after 150).

Axis letters: n contexts, K actions, B snapshots, M members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.functionals.expectation import INTEGRATED, is_integrated
from gedppl.learning.learner import Bounds, Guess, Trail, have_cdfs, mixed_cdf, mixed_log_density
from gedppl.learning.program_sets import Start, next_starts, thresholds
from gedppl.learning.radius import LikelihoodRatio, Paper, Rule, View
from gedppl.learning.rule_view import row_divergence
from gedppl.learning.storing import Reader, Tree, Writer, stored_fields
from gedppl.numerics.arrays import check_delta, evolved
from gedppl.rows import Rows, grid

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.programs.contract import MemberList

LIVE = ("cls", "rule")  # come from the problem and settings
EMPTY = "every member of the class is excluded: the class does not hold the truth (misspecified)"
SAMPLED = "the members are draws, the truth is none of them, and nothing is guaranteed"
SAMPLE = 1024  # rows looked at by `squared_deviation`


HAIR = 1e-6  # of a declared value, or of what members say in its place


@dataclass(frozen=True)
class FiniteLearner:
    """M members' cumulated log-likelihoods, the members still plausible, and snapshots of both.
    Immutable.
    """

    cls: MemberList
    delta: float
    rule: Rule
    rows: Rows | None
    totals: np.ndarray  # (M,) log-likelihood of all rows
    starts: tuple[Start, ...]
    totals_at: np.ndarray  # (starts, M) log-likelihood of the rows before each start
    plausible: np.ndarray  # (M,) bool: in the set now
    alive: np.ndarray  # (M,) bool: in every set so far
    sizes: np.ndarray  # (B,)
    best: np.ndarray  # (B,) maximum-likelihood member at each snapshot
    kept: np.ndarray  # (B, M) members in the set at each snapshot
    status: str
    # member -> (rows, sum D^2 (M,))
    sums: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict, repr=False)

    @classmethod
    def start(
        cls, members: MemberList, *, delta: float, confidence: Rule | None = None
    ) -> FiniteLearner:
        check_delta(delta)
        rule = LikelihoodRatio(restarts=False) if confidence is None else confidence
        M = int(members.size)
        return cls(
            cls=members,
            delta=float(delta),
            rule=rule,
            rows=None,
            totals=np.zeros(M),
            starts=(Start(0, 0, 0.0),),
            totals_at=np.zeros((1, M)),
            plausible=np.ones(M, bool),
            alive=np.ones(M, bool),
            sizes=np.zeros(1, np.int64),
            best=np.zeros(1, np.int64),
            kept=np.ones((1, M), bool),
            status="no rows yet",
        )

    @property
    def n(self) -> int:
        return 0 if self.rows is None else self.rows.n

    @property
    def sampled(self) -> bool:
        """Whether the members are draws: then the class does not hold the truth, whatever the
        data.
        """
        return self.cls.sampled

    @property
    def snapshot_sizes(self) -> np.ndarray:
        return self.sizes

    @cached_property
    def evidence(self) -> float:
        """R_t = log mean_m exp(l_t(m))."""
        return (
            float(np.logaddexp.reduce(self.totals) - np.log(len(self.totals)))
            if np.isfinite(self.totals).any()
            else -np.inf
        )

    @property
    def kappa(self) -> float:
        """How far below the best member's log-likelihood a plausible member may lie, counted
        from the first start.
        """
        process = self.rule.process
        if process is None or not self.starts:
            return float("nan")
        return float(
            self.totals.max() - thresholds(self.starts[:1], self.evidence, process, self.delta)[0]
        )

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> FiniteLearner:
        """Take in m rows told together; the posterior mixture before them is their joint
        predictive.
        """
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        if not len(a):
            return self
        return self.absorb_table(x, a, y, self._log_likelihood(x, a, y))

    def absorb_table(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray, table: np.ndarray
    ) -> FiniteLearner:
        """The same with the log-likelihoods of all members, (M, m)."""
        added = table.sum(axis=1)
        totals = self.totals + np.where(np.isnan(added) | (added == np.inf), -np.inf, added)
        rows = (Rows.empty(x.shape[1], y.shape[1:]) if self.rows is None else self.rows).append(
            x, a, y
        )
        new = evolved(self, rows=rows, totals=totals)
        evidence = new.evidence
        starts = (
            next_starts(self.starts, rows.n, evidence, self.rule)
            if evidence > -np.inf
            else self.starts
        )
        if len(starts) > len(self.starts):
            new = evolved(new, starts=starts, totals_at=np.vstack([self.totals_at, totals]))
        if self.rule.process is not None:
            likely = new._likely(self.rule.process)
            new = evolved(new, plausible=likely, alive=self.alive & likely)
        return new

    def _likely(self, process: LikelihoodRatio) -> np.ndarray:
        """Members inside the likelihood-ratio set of every start."""
        evidence = self.evidence
        if evidence == -np.inf:
            return np.zeros(len(self.totals), bool)
        limits = thresholds(self.starts, evidence, process, self.delta)
        possible = np.isfinite(self.totals)
        since = np.where(possible, self.totals, 0.0) - np.where(possible, self.totals_at, 0.0)
        found: np.ndarray = possible & (since >= limits[:, None]).all(axis=0)
        return found

    def refit(self) -> FiniteLearner:
        """The maximum-likelihood member, by enumeration, and a snapshot."""
        if not np.isfinite(self.totals).any():
            status = f"no member gives the {self.n} rows a positive density; {EMPTY}"
            return evolved(
                self._snapshot(int(self.best[-1]), np.zeros_like(self.alive), self.sums),
                status=status,
            )
        best = int(np.argmax(self.totals))
        plausible, sums = self.plausible, self.sums
        if self.rule.process is None and self.n:
            sums = self._summed(best, self.rule.divergence)
            view = View(n=self.n, delta=self.delta, size=len(self.totals))
            plausible = sums[best][1] <= self.rule.radius(view)
        status = (
            f"member {best} of {len(self.totals)} by enumeration of {self.n} rows, "
            f"{int(plausible.sum())} members plausible"
        )
        fitted = self._snapshot(best, plausible, sums)
        return evolved(fitted, status=status if fitted.alive.any() else f"{status}; {EMPTY}")

    def _snapshot(
        self, best: int, plausible: np.ndarray, sums: dict[int, tuple[int, np.ndarray]]
    ) -> FiniteLearner:
        return evolved(
            self,
            plausible=plausible,
            alive=self.alive & plausible,
            sums=sums,
            sizes=np.append(self.sizes, self.n),
            best=np.append(self.best, best),
            kept=np.vstack([self.kept, plausible]),
        )

    def _summed(self, best: int, divergence: str) -> dict[int, tuple[int, np.ndarray]]:
        """sum_i D^2(best, m)_i for every m: only the rows since this member was last best are
        computed.
        """
        assert self.rows is not None
        if divergence not in ("neg_log_affinity", "hellinger2", "total_variation2", "l2"):
            raise SettingError(
                f"{type(self.rule).__name__} is for parametric classes; use "
                "likelihood_ratio() or a ball here"
            )
        done, total = self.sums.get(best, (0, np.zeros(len(self.totals))))
        x, a = self.rows.x[done:], self.rows.a[done:]
        p = self.cls.density(best, x, a)
        gaps = [
            row_divergence(divergence, p, self.cls.density(m, x, a)).sum()
            for m in range(len(self.totals))
        ]
        return {**self.sums, best: (self.n, total + np.array(gaps))}

    @property
    def theta(self) -> int:
        """The number of the most likely member."""
        return int(self.best[-1])

    @property
    def fit(self) -> None:
        """No oracle is asked."""

    def contains(self, members: np.ndarray) -> np.ndarray:
        """Whether each of these member indices is still plausible."""
        return self.plausible[np.asarray(members, np.int64)]

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Largest and smallest value over the members plausible at the newest snapshot: exact."""
        free = self._free_values(functional, x, n_actions)
        values = np.where(np.isnan(free), functional.high, free)  # (M, n, K)
        kept, empty = self.kept[-1], not np.count_nonzero(self.alive)
        estimate = functional.clip(values[self.best[-1]])
        shape = values.shape[1:]
        common: dict[str, Any] = {
            "estimate": estimate,
            "method": "exact",
            "rule": self.rule.describe(self.delta),
        }
        number = np.count_nonzero(kept)
        if not number:
            low, high = np.full(shape, functional.low), np.full(shape, functional.high)
            return Bounds(lower=low, upper=high, guaranteed=False, note=EMPTY, empty=True, **common)
        integrated = integrates(self.cls, functional, x)
        remarks = [
            f"{number} of {len(kept)} members plausible",
            *[INTEGRATED] * integrated,
            *[SAMPLED] * self.sampled,
            *[EMPTY] * empty,
        ]
        # a member without a value here refutes nothing
        open_ended = np.isnan(free[kept]).any(axis=0)
        lower, upper = values[kept].min(axis=0), values[kept].max(axis=0)
        return Bounds(
            lower=functional.clip(lower),
            upper=functional.clip(upper),
            guaranteed=self.rule.guaranteed and not (self.sampled or empty or integrated),
            note="; ".join(remarks),
            find_witness=lambda: np.flatnonzero(kept)[np.argmax(values[kept], axis=0)],
            empty=empty,
            free_lower=np.where(open_ended, -np.inf, lower),
            free_upper=np.where(open_ended, np.inf, upper),
            find_held=lambda action, most: held_members(
                functional.clip(values), kept[:, None], action, most, functional.high
            ),
            **common,
        )

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """The exact bounds."""
        found = self.bounds(functional, x, n_actions)
        return Guess(found.estimate, found.lower, found.upper)

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """The exact bounds under every snapshot."""
        values = np.clip(self.all_values(functional, x, n_actions), functional.low, functional.high)
        M, n, K = values.shape
        flat = values.reshape(M, -1)
        lower, upper = np.empty((len(self.best), n * K)), np.empty((len(self.best), n * K))
        shown: np.ndarray | None = None
        for b, kept in enumerate(self.kept):
            # most snapshots exclude nobody new
            if shown is not None and np.array_equal(kept, shown):
                lower[b], upper[b] = lower[b - 1], upper[b - 1]
            elif kept.any():
                lower[b], upper[b] = flat[kept].min(axis=0), flat[kept].max(axis=0)
            else:
                lower[b], upper[b] = functional.low, functional.high
            shown = kept

        def shaped(array: np.ndarray) -> np.ndarray:
            return array.reshape(-1, n, K).transpose(1, 0, 2)

        return Trail(shaped(flat[self.best]), shaped(lower), shaped(upper))

    def all_values(self, functional: Functional, x: np.ndarray, n_actions: int) -> np.ndarray:
        """(M, n, K) of all members, whether plausible or not."""
        values = self._free_values(functional, x, n_actions)
        return np.where(np.isnan(values), functional.high, values)

    def _free_values(self, functional: Functional, x: np.ndarray, n_actions: int) -> np.ndarray:
        """(M, n, K), as the members have it: NaN where one has no value."""
        x = np.asarray(x, float)
        xs, actions = grid(x, n_actions)
        return np.asarray(self.cls.values(functional, self.cls.every, xs, actions), float).reshape(
            len(self.totals), len(x), n_actions
        )

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """max over plausible m of sum_i (T_m - T_best)^2 over the rows; beyond `n_rows` (1024)
        evenly spaced rows, scaled.
        """
        if self.rows is None:
            return 0.0
        take = np.unique(np.linspace(0, self.n - 1, min(self.n, n_rows or SAMPLE)).astype(np.int64))
        alive = self.kept[-1] if self.kept[-1].any() else np.ones_like(self.alive)
        values = np.asarray(
            self.cls.values(functional, self.cls.every, self.rows.x[take], self.rows.a[take]), float
        )
        values = np.clip(values, functional.low, functional.high)
        gaps = np.sum((values[alive] - values[self.best[-1]]) ** 2, axis=1)
        return float(gaps.max()) * self.n / len(take)

    # what monitors ask ----------------------------------------------------------------------------

    @cached_property
    def _log_weights(self) -> np.ndarray:
        """The members' posterior probabilities under a uniform prior, (M,)."""
        logs = self.totals if np.isfinite(self.totals).any() else np.zeros(len(self.totals))
        found: np.ndarray = logs - np.logaddexp.reduce(logs)
        return found

    def predictive_cdf(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The members' mixture by posterior probability."""
        weights = np.exp(self._log_weights)
        return mixed_cdf(
            [(weights[members], density) for members, density in self.cls.parts(x, a)], y
        )

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        return mixed_log_density(self._log_weights, self._log_likelihood(x, a, y))

    def _log_likelihood(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Of every member at rows, (M, n). The last answer is kept: what the monitors were shown is
        then learned.
        """
        asked = (x.tobytes(), a.tobytes(), y.tobytes())
        found = self._latest.get(asked)
        if found is None:
            found = np.asarray(self.cls.log_likelihood(self.cls.every, x, a, y), float)
            self._latest.clear()
            self._latest[asked] = found
        return found

    @cached_property
    def _latest(self) -> dict[tuple[bytes, bytes, bytes], np.ndarray]:
        return {}

    def has_predictive(self, x: np.ndarray) -> bool:
        return have_cdfs([density for _, density in self.cls.parts(x, np.zeros(len(x), np.int64))])

    @property
    def refutable(self) -> bool:
        return True

    def mark(self) -> np.ndarray:
        return self.totals

    def top(self, since: np.ndarray) -> float:
        possible = np.isfinite(self.totals)
        return float(np.max(self.totals[possible] - since[possible], initial=-np.inf))

    # storing --------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        return out.fields(self, stored_fields(self, LIVE))

    def restored(self, read: Reader, tree: Tree) -> FiniteLearner:
        return evolved(self, **read.fields(tree, stored_fields(self, LIVE)))

    def paper_estimate(self, delta: Any) -> Any:
        """The paper's literal Est at this delta, or at each of several: log(|F|/delta)."""
        return Paper().at(View(n=self.n, delta=delta, size=len(self.totals)), delta)


def integrates(members: MemberList, functional: Functional, x: np.ndarray) -> bool:
    """Whether the members' values rest on nodes or draws: asked once of a class."""
    asked = functional.name, functional.fn is not None
    known: dict[tuple[str, bool], bool] = vars(members).setdefault("integrates", {})
    if asked not in known:
        row = x[:1], np.zeros(1, np.int64)
        known[asked] = any(
            is_integrated(*asked, members.density_at(m, *row)) for m in members.examples
        )
    return known[asked]


def held_members(
    values: np.ndarray, kept: np.ndarray, action: int, most: np.ndarray, high: float
) -> np.ndarray:
    """(n, K) the largest of values (M, n, K) over the members kept (M, n) that give an action at
    most so much, most (n,); `high` where none does.

    A hair more counts as no more: the declared value is often the true member's own, which is here
    up to rounding or quadrature, and the truth must not be lost by that.
    """
    known = values[:, :, action]
    hair = HAIR * np.maximum(np.abs(most), known.max(axis=0) - known.min(axis=0))
    inside = kept & ~(known > most + hair)  # a member without a value there breaks nothing
    largest = np.where(inside[:, :, None], values, -np.inf).max(axis=0)
    found: np.ndarray = np.where(np.isnan(largest) | (largest == -np.inf), high, largest)
    return found
