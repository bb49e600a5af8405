"""A learner whose bounds are read off sampled parameters; everything else is asked of the learner
around which it stands.

Draws are made anew at refits, and corrected until they stand for the posterior (`trusted`). In
between they are weighted by the likelihood of the rows that came, and drawn again at once where the
weights no longer will do (Pareto's k-hat, effective size). Markov chains are dear and are run again
only when less than half of their effective size is left. Draws from the prior are only ever
weighted; those of sequential Monte Carlo are moved when half of them is used up.

Draws that are worth fewer than the rule needs are drawn again, twice as many each time, up to
`GROWN` times the number asked for. Where that does not do either, nothing is tried again before the
next refit: a source that fails would cost its time in every round.

Axis letters: S draws, n contexts, K actions, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.learning import draws as sampling
from gedppl.learning.credible import CredibleSet, SampledSet
from gedppl.learning.draws import ParameterDraws
from gedppl.learning.fits import Fit
from gedppl.learning.learner import Bounds, Guess, Learner, Trail, UsedDraws
from gedppl.learning.seen_class import in_its_coordinates, served
from gedppl.learning.storing import Reader, Tree, Writer
from gedppl.learning.trusted import trusted
from gedppl.rows import Rows, grid

if TYPE_CHECKING:
    from gedppl.functionals import Functional

# share of a chain's effective size, above which weighting does instead of another chain
ENOUGH = 0.5
GROWN = 4  # times the draws asked for, up to which more are drawn where they are worth too few
STORED = ("rows", "draws", "fresh", "guided")


@dataclass(frozen=True)
class DrawnLearner:
    """Draws beside a learner of the same rows. Immutable; made by `start`."""

    base: Learner  # its set is the likelihood-ratio one
    cls: Any
    delta: float
    rule: CredibleSet | SampledSet
    oracle: Any
    seed: int
    rows: Rows | None
    draws: ParameterDraws
    fresh: float  # effective size when last drawn
    n_actions: int  # K, of which the rule claims something at once
    guided: Fit | None = None  # the guide's last fit, from which the next one starts

    @classmethod
    def start(
        cls,
        base: Learner,
        density: Any,
        *,
        delta: float,
        rule: CredibleSet | SampledSet,
        oracle: Any,
        seed: int,
        n_actions: int = 1,
    ) -> DrawnLearner:
        """Before any row: draws from the prior."""
        rule.check_size(density, n_actions)
        rule.check(density, oracle)
        first = sampling.sample(density, None, rule.source, rule.draws, seed, oracle=oracle)
        return cls(
            base, density, float(delta), rule, oracle, int(seed), None, first, first.ess, n_actions
        )

    # draws ----------------------------------------------------------------------------------------

    def _enough(self, draws: ParameterDraws) -> bool:
        """Whether these draws stand for the posterior and are worth what the rule needs."""
        need = 1 if draws.enumerated else self.rule.needed(self.n_actions)
        return draws.usable and draws.ess >= need

    @property
    def remark(self) -> str:
        """What there is to say about the draws."""
        said = self.draws.status
        if self.draws.log_weights is not None and not self.draws.enumerated:
            said += f"; weighted: worth {self.draws.ess:.0f}, k-hat {self.draws.khat:.2f}"
        return (
            said
            if self.draws.exact or self.draws.enumerated
            else f"{said}; draws approximate the posterior"
        )

    @property
    def used(self) -> UsedDraws:
        """Which source the draws really are from, and what they are worth."""
        found = self.draws
        return UsedDraws(
            self.rule.source,
            found.source,
            found.size,
            found.ess,
            float(found.khat) if np.isfinite(found.khat) else None,
        )

    @property
    def plausible(self) -> np.ndarray:
        """Which draws (S,) lie in the set, whatever coordinates that is kept in."""
        return self.base.contains(in_its_coordinates(served(self.cls), self.draws.theta))

    @property
    def status(self) -> str:
        return f"{self.base.status}; {self.remark}"

    def values(self, functional: Functional, x: np.ndarray, n_actions: int) -> np.ndarray:
        """(S, n, K), inside the functional's range; its high end where a draw has no value."""
        x = np.asarray(x, float)
        xs, actions = grid(x, n_actions)
        found = sampling.values(self.cls, self.draws, functional, xs, actions)
        clipped = functional.clip(np.where(np.isnan(found), functional.high, found))
        return np.asarray(clipped).reshape(-1, len(x), n_actions)

    def one_draw(
        self, functional: Functional, x: np.ndarray, n_actions: int, uniforms: np.ndarray
    ) -> np.ndarray:
        """(n, K): the functional at a draw of its own for each context x (n, dx), chosen by
        uniforms (n,).
        """
        edges = np.cumsum(self.draws.weights)
        chosen = np.minimum(
            np.searchsorted(edges / edges[-1], uniforms, side="right"), self.draws.size - 1
        )
        return self.values(functional, x, n_actions)[chosen, np.arange(len(x))]

    def _redrawn(self) -> DrawnLearner:
        """New draws given all rows; the old ones stay if that fails and they will still do."""
        assert self.rows is not None
        # one of what the data see has other coordinates
        fit, guided = self.base.fit if served(self.cls) is self.cls else None, self.guided
        if self.rule.source == "svi" and (fit is None or fit.guide is None):
            # the base has no guide: one of our own, warm from its last fit
            fit = guided = sampling.guide_of(self.oracle)(self.cls, self.rows, start=guided)
        rows, current = self.rows, self.draws if self._enough(self.draws) else None

        def drawn(S: int) -> ParameterDraws:
            raw = sampling.sample(self.cls, rows, self.rule.source, S, self.seed, fit, self.oracle)
            return trusted(self.cls, rows, raw, self.seed, current, self.fresh)

        found = self._grown(drawn)
        if found is self.draws or (not found.ok and self.draws.usable):
            return replace(self, guided=guided)
        return replace(self, draws=found, fresh=found.ess, guided=guided)

    def _renewed(self) -> DrawnLearner:
        """The draws moved; if all weight was lost, found anew from the prior on."""
        rows = self.rows
        assert rows is not None

        def drawn(S: int) -> ParameterDraws:
            if self.draws.ok and self.draws.size == S:
                found = sampling.renewed(self.cls, rows, self.draws, self.seed)
            else:
                found = sampling.sample(self.cls, rows, self.rule.source, S, self.seed)
            return trusted(self.cls, rows, found, self.seed)

        found = self._grown(drawn)
        return replace(self, draws=found, fresh=found.ess)

    def _grown(self, drawn: Callable[[int], ParameterDraws]) -> ParameterDraws:
        """`drawn(S)`, S doubled while what is missing is the number of draws, or the length of
        chains.
        """
        S, most = max(self.rule.draws, self.draws.size), GROWN * self.rule.draws
        while True:
            found = drawn(S)
            short = found.ok or found.rhat > sampling.LARGEST_RHAT
            if self._enough(found) or not short or most <= S:
                return found
            S *= 2

    @property
    def _weighted_only(self) -> bool:
        return self.rule.source == "prior" or self.draws.enumerated or self.rows is None

    # learning -------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        return self.base.n

    @property
    def snapshot_sizes(self) -> np.ndarray:
        return self.base.snapshot_sizes

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> DrawnLearner:
        """Take in m rows told together; the draws are weighted by their likelihood."""
        base = self.base.absorb(x, a, y)
        x, a, y = np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)
        if not len(a):
            return replace(self, base=base)
        gained = sampling.log_likelihood(self.cls, self.draws, x, a, y).sum(axis=1)
        rows = (Rows.empty(x.shape[1], y.shape[1:]) if self.rows is None else self.rows).append(
            x, a, y
        )
        new = replace(self, base=base, rows=rows, draws=self.draws.reweighted(gained))
        if new._weighted_only or not self._enough(self.draws):
            return new
        if self.rule.source == "smc":
            worn = sampling.worn(new.draws, self.fresh) or not self._enough(new.draws)
            return new._renewed() if worn else new
        return new if self._enough(new.draws) else new._redrawn()

    def refit(self) -> DrawnLearner:
        """Fit, and draw again."""
        new = replace(self, base=self.base.refit())
        if self._weighted_only:
            return new
        good = self._enough(self.draws)
        if self.rule.source == "smc":
            return new if good else new._renewed()
        still_good = self.rule.source == "nuts" and good and self.draws.ess >= ENOUGH * self.fresh
        never_drawn = self.draws.source != self.rule.source
        return new if still_good and not never_drawn else new._redrawn()

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """By the rule, from the draws; declarations are held against the set around which the
        draws lie, if anybody looks.
        """
        found = self.rule.bounds(self, functional, x, n_actions)
        if not self.base.refutable:
            return found
        return replace(found, find_watched=lambda: self.base.bounds(functional, x, n_actions))

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """The draws' mean and the rule's range."""
        found = self.rule.bounds(self, functional, x, n_actions)
        return Guess(found.estimate, found.lower, found.upper)

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """That of the set: it steers, and today's bounds come from the draws."""
        return replace(self.base.trail(functional, x, n_actions), approximate=True)

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        return self.base.squared_deviation(functional, n_rows)

    @property
    def fit(self) -> Any:
        return self.base.fit

    def contains(self, theta: np.ndarray) -> np.ndarray:
        return self.base.contains(theta)

    # monitors -------------------------------------------------------------------------------------

    def has_predictive(self, x: np.ndarray) -> bool:
        return self.base.has_predictive(x)

    def predictive_cdf(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.base.predictive_cdf(x, a, y)

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        return self.base.log_predictive(x, a, y)

    @property
    def refutable(self) -> bool:
        return self.base.refutable

    def mark(self) -> np.ndarray:
        return self.base.mark()

    def top(self, since: np.ndarray) -> float:
        return self.base.top(since)

    # storing --------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        return {"base": self.base.stored(out)} | out.fields(self, STORED)

    def restored(self, read: Reader, tree: Tree) -> DrawnLearner:
        kept = {name: tree[name] for name in tree if name != "base"}
        return replace(
            self,
            base=self.base.restored(read, tree["base"]),
            **read.fields(kept, STORED),
        )
