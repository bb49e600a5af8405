"""The learners of several runs of one problem, asked as one: row i of the contexts is answered by
learner i.

`guess` and `bounds` are those of the learners, so that everything that decides from them decides
for all runs at once. Linear-Gaussian sets and finite classes are stacked into arrays; other
learners are asked one by one.

Axis letters: S runs, K actions, E ellipsoids, R half axes, O open directions, M members, q
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gedppl.learning.ellipsoids import STRAY, Ellipsoid, disjoint, ends
from gedppl.learning.finite import FiniteLearner, held_members, integrates
from gedppl.learning.learner import Bounds, Guess, Learner
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.learning.reach import is_mean, is_searched, value_at, value_range
from gedppl.selection.solvers import Together

if TYPE_CHECKING:
    from gedppl.functionals import Functional

RowsOfOne = tuple[np.ndarray, np.ndarray, np.ndarray]  # x (m, dx), a (m,), y (m,)


class OneByOne:
    """Any learners, each asked by itself."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = tuple(learners)

    def refitted(self, rows: Sequence[RowsOfOne]) -> OneByOne:
        """Each with the rows that came in its run since the last time, in their order, and fitted
        anew.
        """
        return type(self)([one.refit() for one in self._absorbed(rows)])

    def _absorbed(self, rows: Sequence[RowsOfOne]) -> list[Learner]:
        found = list(self.learners)
        for i, (x, a, y) in enumerate(rows):
            # one after the other: a predictive is fixed before each, as it was when they came
            for m in range(len(a)):
                found[i] = found[i].absorb(x[m : m + 1], a[m : m + 1], y[m : m + 1])
        return found

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        found = [
            one.guess(functional, x[i : i + 1], n_actions) for i, one in enumerate(self.learners)
        ]
        return Guess(
            np.concatenate([g.estimate for g in found]),
            np.concatenate([g.lower for g in found]),
            np.concatenate([g.upper for g in found]),
        )

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        found = [
            one.bounds(functional, x[i : i + 1], n_actions) for i, one in enumerate(self.learners)
        ]
        return replace(
            found[0],
            estimate=np.concatenate([b.estimate for b in found]),
            lower=np.concatenate([b.lower for b in found]),
            upper=np.concatenate([b.upper for b in found]),
            guaranteed=all(b.guaranteed for b in found),
            together=_side_by_side([b.together for b in found], [b.upper for b in found]),
            find_held=lambda action, most: np.concatenate(
                [b.held(action, most[i : i + 1]).upper for i, b in enumerate(found)]
            ),
        )


def _side_by_side(
    forms: Sequence[tuple[Together, ...]], upper: Sequence[np.ndarray]
) -> tuple[Together, ...]:
    """The forms of all runs under each other, filled up with upper ends (1, K), which gain
    nothing.
    """
    R = max((form.half.shape[2] for own in forms for form in own), default=0)
    found = []
    for i in range(max(len(own) for own in forms)):
        middle, half = [], []
        for own, ends_of in zip(forms, upper):
            wide = np.zeros((*ends_of.shape, R))
            if i < len(own):
                wide[..., : own[i].half.shape[2]] = own[i].half
            middle.append(own[i].middle if i < len(own) else ends_of)
            half.append(wide)
        found.append(Together(np.concatenate(middle), np.concatenate(half)))
    return tuple(found)


class StackedEllipsoids(OneByOne):
    """Linear-Gaussian learners: the ellipsoids of all runs in one array each, filled up with
    ones that know nothing.
    """

    learners: tuple[LinearGaussianLearner, ...]

    def __init__(self, learners: Sequence[LinearGaussianLearner]) -> None:
        super().__init__(learners)
        own = [one.snapshots[-1] for one in self.learners]
        every = [s.ellipsoids for s in own]
        self.theta = np.array([s.theta for s in own])
        self.empty = np.array([s.empty for s in own])
        S, q = len(own), self.theta.shape[1]
        E = max((len(es) for es in every), default=0)
        R = max((len(e.factor) for es in every for e in es), default=0)
        O = max((len(e.unseen) for es in every for e in es), default=0)  # noqa: E741 - the axis
        self.middle, self.ruler = np.zeros((2, S, E, q))
        self.blind = np.ones((S, E, q))
        self.factor, self.open = np.zeros((S, E, R, q)), np.zeros((S, E, O, q))
        for s, es in enumerate(every):
            for i, e in enumerate(es):
                self._place(s, i, e)

    def _place(self, s: int, i: int, e: Ellipsoid) -> None:
        self.middle[s, i, e.columns] = e.middle
        self.blind[s, i, e.columns] = 0.0
        self.ruler[s, i, e.columns] = 1 / e.unit
        self.factor[s, i, : len(e.factor), e.columns] = e.factor.T
        self.open[s, i, : len(e.unseen), e.columns] = (e.unseen / e.unit).T

    def _absorbed(self, rows: Sequence[RowsOfOne]) -> list[Learner]:
        # rows are added up, and processes begin where they are due: it does not matter that they
        # come together
        return [one.absorb(*own) for one, own in zip(self.learners, rows)]

    def _range(
        self, phi: np.ndarray, offset: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Ends (S K,) of phi'theta + offset and which ellipsoid sets the upper one, run by run, and
        runs (S,) with no parameter left: `LinearGaussianLearner._range`.
        """
        S, q = self.theta.shape
        free = phi.reshape(S, -1, q)
        K = free.shape[1]

        def at(part: np.ndarray) -> np.ndarray:  # (S, E, K) from (S, E, q)
            found: np.ndarray = part @ free.swapaxes(1, 2)
            return found

        along = self.factor @ free[:, None].swapaxes(2, 3)  # (S, E, R, K)
        extent = np.sqrt((along * along).sum(axis=2))
        seen_nothing = self.blind @ (free != 0).swapaxes(1, 2) > 0
        size = np.sqrt(self.ruler**2 @ (free**2).swapaxes(1, 2))
        stray = np.abs(self.open @ free[:, None].swapaxes(2, 3)) > STRAY * size[:, :, None]
        extent[seen_nothing | stray.any(axis=2)] = np.inf
        rows = [part.swapaxes(1, 2).reshape(S * K, -1) for part in (at(self.middle), extent)]
        low, high, tightest = ends(rows[0], rows[1], 1.0)
        empty = self.empty | disjoint(low, high).reshape(S, K).any(axis=1)
        none_left = np.repeat(empty, K)
        low, high = np.where(none_left, -np.inf, low), np.where(none_left, np.inf, high)
        known = ~phi.any(axis=1)
        low[known] = high[known] = 0.0
        base = offset + phi @ self.learners[0].space.origin
        return np.minimum(low, high) + base, np.maximum(low, high) + base, tightest, empty

    def _together(
        self,
        phi: np.ndarray,
        offset: np.ndarray,
        tightest: np.ndarray,
        upper: np.ndarray,
        cut: np.ndarray,
    ) -> tuple[Together, ...]:
        """`linear_set.together` of every run: the ellipsoid that sets most of its upper ends.
        tightest, upper, cut (S, K); a run to which a form does not apply has its upper ends, which
        gain nothing.
        """
        S, q = self.theta.shape
        if not self.middle.shape[1]:
            return ()
        counts = (tightest[:, :, None] == np.arange(self.middle.shape[1])).sum(axis=1)
        most, run = counts.argmax(axis=1), np.arange(S)
        free = phi.reshape(S, -1, q)
        base = (offset + phi @ self.learners[0].space.origin).reshape(S, -1)
        middle = base + (free @ self.middle[run, most][:, :, None])[:, :, 0]
        half = free @ self.factor[run, most].swapaxes(1, 2)  # (S, K, R)
        own = (tightest == most[:, None]) & (counts.max(axis=1) > 0)[:, None]
        some_cut = (own & cut).any(axis=1)[:, None]
        forms = []
        for mine in (np.where(some_cut, own & ~cut, own), own & some_cut):
            mine = mine & (mine.sum(axis=1) > 1)[:, None]
            if mine.any():
                forms.append(
                    Together(np.where(mine, middle, upper), np.where(mine[:, :, None], half, 0.0))
                )
        return tuple(forms)

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        found = self.bounds(functional, x, n_actions)
        return Guess(found.estimate, found.lower, found.upper)

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        at = self.learners[0].features_at.grid(x, n_actions)
        phi, offset, scale, read = at.phi, at.offset, at.scale, at.read_by(functional)
        low, high, tightest, empty = self._range(phi, offset)
        S, q = self.theta.shape
        fitted = (phi.reshape(S, -1, q) @ self.theta[:, :, None]).ravel() + offset
        parts = (
            value_at(functional, fitted[None], scale, *read),
            *value_range(functional, low[None], high[None], scale, *read),
        )
        estimate, lower, upper = (functional.clip(p).reshape(S, n_actions) for p in parts)
        sure = not (is_searched(functional) or empty.any())
        rule = self.learners[0].rule
        forms: tuple[Together, ...] = ()
        if is_mean(functional):
            cut = upper != parts[2].reshape(S, n_actions)
            closed = np.where(empty[:, None], -1, tightest.reshape(S, n_actions))
            forms = self._together(phi, offset, closed, upper, cut)
        return Bounds(estimate, lower, upper, "exact", guaranteed=sure, rule=rule, together=forms)


class StackedMembers(OneByOne):
    """Learners of one finite class: its values are asked for once, which members count is each
    run's own.
    """

    learners: tuple[FiniteLearner, ...]

    def __init__(self, learners: Sequence[FiniteLearner]) -> None:
        super().__init__(learners)
        self.kept = np.array([one.kept[-1] for one in self.learners])  # (S, M)
        self.best = np.array([one.best[-1] for one in self.learners])

    def _absorbed(self, rows: Sequence[RowsOfOne]) -> list[Learner]:
        x, a, y = (np.concatenate(part) for part in zip(*rows))
        if not len(a):
            return list(self.learners)
        cls, cuts = self.learners[0].cls, np.cumsum([len(own[1]) for own in rows])[:-1]
        tables = np.split(np.asarray(cls.log_likelihood(cls.every, x, a, y), float), cuts, axis=1)
        return [
            one.absorb_table(*own, table) if len(own[1]) else one
            for one, own, table in zip(self.learners, rows, tables)
        ]

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        found = self.bounds(functional, x, n_actions)
        return Guess(found.estimate, found.lower, found.upper)

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        first = self.learners[0]
        values = np.clip(
            first.all_values(functional, x, n_actions), functional.low, functional.high
        )  # (M, S, K)
        kept = self.kept.T[:, :, None]
        left = kept.any(axis=0)
        lower = np.where(left, np.where(kept, values, np.inf).min(axis=0), functional.low)
        upper = np.where(left, np.where(kept, values, -np.inf).max(axis=0), functional.high)
        estimate = values[self.best, np.arange(len(self.best))]
        loose = first.sampled or integrates(first.cls, functional, x)
        sure = first.rule.guaranteed and not loose and bool(left.all())
        rule = first.rule.describe(first.delta)
        return Bounds(
            estimate,
            lower,
            upper,
            "exact",
            guaranteed=sure,
            rule=rule,
            find_held=lambda action, most: held_members(
                values, self.kept.T, action, most, functional.high
            ),
        )


def stacked(learners: Sequence[Learner]) -> OneByOne:
    """The learners of one outcome in several runs, stacked where that can be done.

    A learner that is held to an exact safe value has directions of its own in every run, which do
    not stack.
    """
    if all(isinstance(one, FiniteLearner) for one in learners):
        return StackedMembers(learners)  # type: ignore[arg-type]
    if all(isinstance(one, LinearGaussianLearner) and _stacks(one) for one in learners):
        return StackedEllipsoids(learners)  # type: ignore[arg-type]
    return OneByOne(learners)


def _stacks(learner: LinearGaussianLearner) -> bool:
    return not (learner.space.known or learner.intersect)
