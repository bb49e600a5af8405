"""A group's own rows in the learner of a program: their likelihood, the evidence of their
e-process, and the sets it leaves.

    R^g_t = sum over batches of the log joint predictive of the batch's rows that belong to the
    group C^g_t = {theta : l^g_{s:t}(theta) >= (R^g_t - R^g_s) - log(1/delta^g_s)}

The predictive is the one of all rows, fixed before the batch: which rows belong to a group does
not depend on their outcomes, so each process is a martingale by itself and covers with its own
share of delta.

Axis letters: M particles or parameter settings, m rows told together, D flat parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gedppl.learning.learner import Group
from gedppl.learning.likelihoods import Likelihood
from gedppl.learning.program_sets import Plausible, Start, likelihood_sets, next_starts, within
from gedppl.learning.radius import LikelihoodRatio
from gedppl.learning.storing import Reader, Tree, Writer
from gedppl.numerics.arrays import evolved
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.learning.learner import Particles

OWN = ("group", "evidence", "starts", "fitted")


@dataclass(frozen=True)
class GroupRows:
    """The rows of a group of actions. Immutable."""

    group: Group
    data: Likelihood
    evidence: float  # R^g_t
    starts: tuple[Start, ...]
    sets: tuple[Plausible, ...]
    fitted: int  # rows behind the sets

    @classmethod
    def none(cls, group: Group, empty: Likelihood) -> GroupRows:
        return cls(group, empty, 0.0, (Start(0, 0, 0.0),), (), 0)

    def absorb(
        self,
        x: np.ndarray,
        a: np.ndarray,
        y: np.ndarray,
        values: np.ndarray,
        before: Particles,
        rule: LikelihoodRatio,
    ) -> GroupRows:
        """Take in those of m rows that belong; values (M, m), the log-likelihoods of the
        particles from before the batch.
        """
        mine = self.group.rows(a)
        if not mine.any():
            return self
        log_q, _ = before.predict(values[:, mine])
        data = self.data.append(x[mine], a[mine], y[mine])
        starts = next_starts(self.starts, data.n, self.evidence + log_q, rule)
        return evolved(
            self,
            data=data,
            starts=starts,
            evidence=0.0 if log_q == -np.inf else self.evidence + log_q,
        )

    def refit(self, rule: LikelihoodRatio, delta: float, near: np.ndarray) -> GroupRows:
        """The sets of all its rows; without new ones they stay."""
        if self.data.n == self.fitted:
            return self
        sets = likelihood_sets(
            self.data, self.starts, self.evidence, rule, delta * self.group.share, near
        )
        return evolved(self, sets=sets, fitted=self.data.n)

    def contains(self, theta: np.ndarray, rule: LikelihoodRatio, delta: float) -> np.ndarray:
        """Whether each theta (M, D) is in the set of every start."""
        return within(self.data, self.starts, self.evidence, rule, delta * self.group.share, theta)

    def stored(self, out: Writer) -> Tree:
        """Without its data: its rows are among the learner's."""
        return out.fields(self, OWN) | {"sets": [s.stored(out) for s in self.sets]}

    @classmethod
    def restored(cls, empty: Likelihood, rows: Rows | None, read: Reader, tree: Tree) -> GroupRows:
        """The group around its part of all rows."""
        part = cls(data=empty, sets=(), **{name: read.node(tree[name]) for name in OWN})
        mine = np.zeros(0, bool) if rows is None else part.group.rows(rows.a)
        if rows is not None and mine.any():
            part = evolved(
                part, data=empty.cleared().append(rows.x[mine], rows.a[mine], rows.y[mine])
            )
        return evolved(
            part, sets=tuple(Plausible.restored(part.data, read, s) for s in tree["sets"])
        )
