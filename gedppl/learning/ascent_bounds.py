"""A functional of any program over its plausible sets, by local ascent: for each row over the set that promises most.

Axis letters: m rows, D flat parameters, S sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gedppl.functionals import mean
from gedppl.learning.ascent import ascend
from gedppl.learning.program_sets import Plausible

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner

NOT_A_CERTIFICATE = "approximation: local ascent, not a certificate"
GRADIENT_BUDGET = 200  # single-gradient evaluations for all K actions of a context together
FLAT = 1e-9  # share of the functional's range


@dataclass(frozen=True)
class Found:
    """The ends of a functional over everything plausible, before its declared range cuts them, at m rows."""

    lower: np.ndarray  # (m,) -inf where nothing is known
    upper: np.ndarray  # (m,)
    witness: np.ndarray | None  # (m, D) parameters at the upper end
    note: str
    apart: bool = False  # no parameter is in every set and inside the declared bounds
    outer: bool = False  # certified, and a little wide
    searched: bool = False  # by looking at points, between which anything may be: not a certificate


@dataclass(frozen=True)
class Promise:
    """What the delta method says of a functional over one set, at m rows."""

    value: np.ndarray  # (m,) at the set's centre
    half: np.ndarray  # (m,) half-width
    grad: np.ndarray  # (m, D)

    def at(self, rows: np.ndarray) -> Promise:
        return Promise(self.value[rows], self.half[rows], self.grad[rows])


def by_ascent(learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray) -> Found:
    """U = max(delta, ascent), L = min(delta, ascent), for each row over the set whose delta bound is narrowest there.

    A group's set is asked about the group's own actions only: of others its rows say nothing that those of all rows do not.
    """
    m, steps = len(a), GRADIENT_BUDGET // int(a.max() + 1)
    sets = [(s, np.ones(m, bool)) for s in learner.sets]
    sets += [(s, part.group.rows(a)) for part in learner.own for s in part.sets]
    promises = [_promise(learner, s, functional, x, a) for s, _ in sets]
    half = np.array([np.where(mine, p.half, np.inf) for p, (_, mine) in zip(promises, sets)])
    chosen = np.argmin(half, axis=0)
    lower, upper, witness = np.empty(m), np.empty(m), np.empty((m, learner.cls.dim))
    spent = np.zeros(2, np.int64)
    for i in np.unique(chosen):
        rows = np.flatnonzero(chosen == i)
        found = _over(learner, functional, sets[i][0], promises[i].at(rows), x[rows], a[rows], steps)
        lower[rows], upper[rows], witness[rows] = found[:3]
        spent += found[3]
    note = f"{NOT_A_CERTIFICATE} ({spent[0]} gradient and {spent[1]} value evaluations)"
    return Found(lower, upper, witness, note)


def _promise(learner: ProgramLearner, s: Plausible, functional: Functional, x: np.ndarray, a: np.ndarray) -> Promise:
    value, grad = learner.cls.values_grad(functional, np.broadcast_to(s.region.centre, (len(a), learner.cls.dim)), x, a)
    grad = np.where(np.isfinite(grad), grad, 0.0)
    return Promise(np.asarray(value, float), s.region.half_width(grad), grad)


def _over(
    learner: ProgramLearner,
    functional: Functional,
    chosen: Plausible,
    promise: Promise,
    x: np.ndarray,
    a: np.ndarray,
    budget: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Lower and upper (m,) over one set, where the upper is, (m, D), and what was spent: gradients and values.

    `budget` is the number of gradients for each row.
    """
    cls, m, region = learner.cls, len(a), chosen.region
    white = region.whiten(promise.grad)
    size = np.linalg.norm(white, axis=1)
    unit = white / np.maximum(size, 1e-300)[:, None]
    sign = np.concatenate([np.ones(m), -np.ones(m)])
    rows_x, rows_a = np.vstack([x, x]), np.concatenate([a, a])
    start = region.theta(np.sqrt(2 * region.kappa) * sign[:, None] * np.vstack([unit, unit]))

    def objective(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out, out_grad = cls.values_grad(functional, theta, rows_x, rows_a)
        return sign * np.asarray(out, float), sign[:, None] * np.asarray(out_grad, float)

    found = [ascend(region, objective, start, steps=max(6, budget // 2 - 1))]
    known = np.full((2, m), -np.inf)  # what members of the set are known to reach, up and down
    if len(learner.candidates):  # what is left goes to a second start: the known member with the best value
        seen = np.asarray(cls.values(functional, learner.candidates, x, a), float)
        seen = np.where(np.isnan(seen), -np.inf, np.stack([seen, -seen]))
        known = seen.max(axis=1)
        left = (budget * m - found[0].gradients) // (2 * m) - 1
        if left >= 4 or np.any(known > found[0].value.reshape(2, m)):  # a climb that ends below a member was lost
            second = learner.candidates[np.argmax(seen, axis=1)].reshape(2 * m, -1)
            found.append(ascend(region, objective, second, steps=max(8, left)))
    reached = np.array([f.value for f in found]).reshape(-1, 2, m)  # starts x {up, down} x problems
    winner = np.argmax(reached, axis=0)  # (2, m)
    ends = np.maximum(np.take_along_axis(reached, winner[None], 0)[0], known)
    upper = np.maximum(promise.value + promise.half, ends[0])
    lower = np.minimum(promise.value - promise.half, -ends[1])
    witness = np.array([f.theta for f in found]).reshape(-1, 2, m, cls.dim)[winner[0], 0, np.arange(m)]
    span = functional.high - functional.low
    blind = _flat_and_unseen(learner, chosen, promise.half <= FLAT * (span if np.isfinite(span) else 1.0), x, a)
    upper = np.where(np.isnan(upper) | blind, np.inf, upper)
    lower = np.where(np.isnan(lower) | blind, -np.inf, lower)
    return lower, upper, witness, (sum(f.gradients for f in found), sum(f.values for f in found))


def _flat_and_unseen(learner: ProgramLearner, chosen: Plausible, flat: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Where the functional is flat at the fit, (m,), although the outcome depends on directions that no row has seen.

    The chance of a band far from the fit has no slope there to climb by, yet an action that was never played may hit it.
    """
    if not (chosen.unseen.any and flat.any()):
        return np.zeros(len(a), bool)
    centre = np.broadcast_to(chosen.region.centre, (len(a), learner.cls.dim))
    grad = np.asarray(learner.cls.values_grad(mean(-1e300, 1e300), centre, x, a)[1], float)
    return flat & (chosen.unseen.meets(grad) | np.isnan(grad).any(axis=1))  # a family without a mean counts as moved
