"""Proof by data flow that a program's predictor is affine in theta, or the exponential of something
affine.

A backend lists the operations of a function of theta. Every value is FREE of theta, AFFINE in
theta, EXP (the exponential of an affine value, times something free of theta) or OTHER. An
operation without a rule gives OTHER, so nothing is ever claimed that was not seen: comparisons,
rounding and stopped gradients, whose derivative alone would look constant, have no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.programs.contract import LinearPredictor, OrderedPredictor

if TYPE_CHECKING:
    from gedppl.programs.contract import Kernels


class Level(IntEnum):
    """How a value depends on theta."""

    FREE = 0
    AFFINE = 1
    EXP = 2
    OTHER = 3


def combine(rule: str | None, operands: Sequence[Level]) -> Level:
    """The level of an operation's result.

    >>> (
    ...     combine("sum", [Level.FREE, Level.AFFINE]).name,
    ...     combine("multiply", [Level.AFFINE, Level.AFFINE]).name,
    ... )
    ('AFFINE', 'OTHER')
    """
    highest = max(operands)
    if highest is Level.FREE or rule == "move":
        return highest
    match rule:
        case "sum":
            return Level.AFFINE if highest is Level.AFFINE else Level.OTHER
        case "index":  # the first operand's elements, at positions that the others give
            return (
                operands[0] if max(operands[1:], default=Level.FREE) is Level.FREE else Level.OTHER
            )
        case "select":  # the first operand chooses among the others
            return (
                Level.AFFINE
                if operands[0] is Level.FREE and highest is Level.AFFINE
                else Level.OTHER
            )
        case "multiply" | "contract":
            low, high = sorted(operands)
            if low is Level.FREE and high is Level.AFFINE:
                return Level.AFFINE
            if rule == "multiply" and high is Level.EXP and low is not Level.AFFINE:
                return Level.EXP
        case "divide":
            above, below = operands
            if below is Level.FREE:
                return above
            if below is Level.EXP and above in (Level.FREE, Level.EXP):
                return Level.EXP
        case "exp":
            return Level.EXP if highest is Level.AFFINE else Level.OTHER
        case "log":
            return Level.AFFINE if highest is Level.EXP else Level.OTHER
    return Level.OTHER


# the one-predictor families: class name -> (family, link, the argument that carries the predictor,
# the other arguments)
FAMILIES = {
    "Normal": ("Normal", "identity", "loc", ("scale",)),
    "BernoulliLogits": ("Bernoulli", "logit", "logits", ()),
    "BinomialLogits": ("Binomial", "logit", "logits", ("total_count",)),
    "Poisson": ("Poisson", "log", "rate", ()),
    "Exponential": ("Exponential", "log", "rate", ()),
    "Gamma": ("Gamma", "log", "rate", ("concentration",)),
}


def may_be_affine(program: Kernels) -> bool:
    """Whether a proof is worth trying: one number a row, of a family that is known, with parameters
    and without latents that are summed out.
    """
    return (
        len(program.assignments) <= 1
        and not program.event_shape
        and program.dim > 0
        and program.known_family
    )


def believed(program: Kernels, predictor: LinearPredictor) -> LinearPredictor | None:
    """The predictor, where nothing of the user's own stands in the outcome or what does agrees."""
    return predictor if program.packaged or program.predictor_holds(predictor) else None


def is_affine_by_context(found: Sequence[Level], needed: Level) -> bool:
    """Whether features, offset and other arguments are affine in the context, from the levels with
    the context as the variable.

    found: of the argument that carries the predictor, at any theta, and of the others. If
    eta(theta, x) is affine in x whatever theta is, then so are the offset, eta(0, x), and each
    feature, eta(e_j, x) - eta(0, x).
    """
    return found[0] in (Level.FREE, needed) and max(found[1:], default=Level.FREE) <= Level.AFFINE


ORDERED = "OrderedLogistic"

Parts = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]

KEPT_ANSWERS = 3


def predictor_from(family: str, link: str, others: Sequence[str], parts: Parts) -> LinearPredictor:
    """A `LinearPredictor` over one function parts(x, a) -> [features, offset, *others]."""
    remembered = _remembered(parts)
    return LinearPredictor(
        family,
        link,
        features=lambda x, a: remembered(x, a)[0],
        offset=lambda x, a: remembered(x, a)[1],
        fixed=lambda x, a: dict(zip(others, remembered(x, a)[2:])),
    )


def ordered_from(parts: Parts, link: str = "logit") -> OrderedPredictor:
    """An `OrderedPredictor` over one function parts(x, a) -> [features (n, C, D), offset (n,
    C)].
    """
    remembered = _remembered(parts)
    return OrderedPredictor(
        features=lambda x, a: remembered(x, a)[0],
        offset=lambda x, a: remembered(x, a)[1],
        link=link,
    )


def _remembered(parts: Parts) -> Parts:
    """Features, offset and other arguments are asked for one after the other at the same rows, and
    again when an outcome is told, so the last few answers are kept.

    The memos are replaced in one assignment and may be shared by threads.
    """
    last: list[tuple[tuple[Any, list[np.ndarray]], ...]] = [()]
    # arrays that nobody can have changed since
    same: list[tuple[Any, Any, list[np.ndarray]]] = [(None, None, [])]

    def remembered(x: Any, a: Any) -> list[np.ndarray]:
        before_x, before_a, answer = same[0]
        if x is before_x and a is before_a:
            return answer
        asked = x, a
        x, a = np.asarray(x, float), np.asarray(a, np.int64)
        key = (x.shape, x.tobytes(), a.tobytes())
        found = next((answer for known, answer in last[0] if known == key), None)
        if found is None:
            found = parts(x, a)
            for array in found:
                array.flags.writeable = False
            last[0] = ((key, found), *last[0][: KEPT_ANSWERS - 1])
        answer = found
        if asked[0] is x and asked[1] is a and not (x.flags.writeable or a.flags.writeable):
            same[0] = (x, a, answer)
        return answer

    return remembered


# ==================================================================================================
# Predictors that are affine in the context too, as tables: NumPy then takes the place of the
# program.
#
# A one-predictor class has features, an offset and other arguments at every row. Where the proof
# above, with the context as the variable, shows all of them affine in the context whatever the
# action, they are
#
#     part_f(x, a) = base[a, f] + sum_k weight[a, f, k] x[index[a, f, k]]
#
# and a few numbers for each action say everything that the program would. Tables are read when an
# action is first asked about, compared with the program at some contexts, and left alone for good
# if they differ.
#
# Axis letters: n rows, A actions of a table, F parts (D features, the offset, the others), k
# columns of the context in one part.
# ==================================================================================================

AGREEMENT = 1e-12  # share of the terms by which table and program may differ
MOST_CELLS = 20_000_000  # numbers behind the slopes of one table
AT_ONCE = 1_000_000  # columns of contexts looked up at once
ROWS = 8  # asked of the program at once: the size it is compiled for in any case

Slopes = Callable[[int, int], tuple[np.ndarray, np.ndarray] | None]
"""(A, dx) -> parts (A, F) at x = 0 and their slopes (A, F, dx), for actions 0..A-1; None if that is
more than `MOST_CELLS`.
"""


@dataclass(frozen=True)
class FeatureTable:
    """Parts of A actions."""

    base: np.ndarray  # (A, F)
    index: np.ndarray  # (A, F, k)
    weight: np.ndarray  # (A, F, k)

    @classmethod
    def of(cls, base: np.ndarray, slope: np.ndarray) -> FeatureTable:
        """From slopes (A, F, dx), keeping those that are not 0.

        >>> table = FeatureTable.of(
        ...     np.zeros((1, 2)), np.array([[[0.0, 3.0, 0.0], [2.0, 0.0, 0.0]]])
        ... )
        >>> (
        ...     table.index.tolist(),
        ...     table.weight.tolist(),
        ...     table(np.array([[5.0, 7.0, 9.0]]), np.array([0])).tolist(),
        ... )
        ([[[1], [0]]], [[[3.0], [2.0]]], [[21.0, 10.0]])
        """
        count = np.count_nonzero(slope, axis=2)
        action, part, column = np.nonzero(slope)
        place = np.arange(len(column)) - np.repeat(
            np.cumsum(count.ravel()) - count.ravel(), count.ravel()
        )
        index = np.zeros((*count.shape, count.max(initial=0)), np.int64)
        weight = np.zeros(index.shape)
        index[action, part, place], weight[action, part, place] = (
            column,
            slope[action, part, column],
        )
        return cls(base, index, weight)

    def __call__(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(n, F) at rows x (n, dx), a (n,)."""
        out = self.base.take(a, axis=0)
        step = max(1, AT_ONCE // max(self.index[0].size, 1))
        for first in range(0, len(a), step):
            mine = a[first : first + step]
            row = x.shape[1] * np.arange(first, first + len(mine))
            columns = x.take(self.index.take(mine, axis=0) + row[:, None, None])
            columns *= self.weight.take(mine, axis=0)
            out[first : first + step] += columns.sum(axis=2)
        return out

    def size(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(n, F) the sum of the sizes of the terms."""
        return FeatureTable(np.abs(self.base), self.index, np.abs(self.weight))(np.abs(x), a)


def unit_slopes(parts: Parts) -> Slopes:
    """Slopes from the program's own answers at 0 and at the unit vectors."""

    def slopes(n_actions: int, dx: int) -> tuple[np.ndarray, np.ndarray] | None:
        if n_actions * (dx + 1) * dx > MOST_CELLS:
            return None
        x = np.tile(np.vstack([np.zeros(dx), np.eye(dx)]), (n_actions, 1))
        values = _stacked(parts, x, np.repeat(np.arange(n_actions), dx + 1)).reshape(
            n_actions, dx + 1, -1
        )
        return values[:, 0], np.swapaxes(values[:, 1:] - values[:, :1], 1, 2)

    return slopes


def _stacked(parts: Parts, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """All parts side by side, (n, F)."""
    cuts = [slice(first, first + ROWS) for first in range(0, len(a), ROWS)]
    return np.concatenate([np.column_stack(parts(x[cut], a[cut])) for cut in cuts])


def tabulated(parts: Parts, slopes: Slopes, dim: int) -> Parts:
    """`parts` by table where that can be done, by the program where not. D = dim features come
    first.

    The table grows with the actions asked about and is replaced in one assignment, so that threads
    may share it.
    """
    held: list[FeatureTable | None] = [
        FeatureTable(np.zeros((0, 0)), np.zeros((0, 0, 0), np.int64), np.zeros((0, 0, 0)))
    ]

    def by_table(x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        if held[0] is not None and len(a) and a.max() >= len(held[0].base):
            held[0] = _read(parts, slopes, int(a.max()) + 1, x.shape[1])
        if held[0] is None or not len(a) or a.min() < 0:
            return parts(x, a)
        out = held[0](x, a)
        return [out[:, :dim], *out.T[dim:]]

    return by_table


def _read(parts: Parts, slopes: Slopes, n_actions: int, dx: int) -> FeatureTable | None:
    """The table of so many actions; None where it would be too large or does not agree with the
    program.
    """
    A = n_actions
    found = slopes(A, dx)
    if found is None or not all(np.isfinite(part).all() for part in found):
        return None
    table = FeatureTable.of(*found)
    rng, a = np.random.default_rng(0), np.tile(np.arange(A), 3)
    x = (
        rng.normal(size=(3, dx))[np.repeat(np.arange(3), A)]
        * np.array([1e-3, 1.0, 1e3])[np.repeat(np.arange(3), A), None]
    )
    theirs = _stacked(parts, x, a)
    agree = np.abs(table(x, a) - theirs) <= AGREEMENT * table.size(x, a)
    return table if agree.all() else None
