"""Proof by data flow that a program's predictor is affine in theta, or the exponential of something affine.

A backend lists the operations of a function of theta. Every value is FREE of theta, AFFINE in theta, EXP (the exponential
of an affine value, times something free of theta) or OTHER. An operation without a rule gives OTHER, so nothing is ever
claimed that was not seen: comparisons, rounding and stopped gradients, whose derivative alone would look constant, have
no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from gedppl.classes import LinearPredictor, OrderedPredictor


class Level(IntEnum):
    """How a value depends on theta."""

    FREE = 0
    AFFINE = 1
    EXP = 2
    OTHER = 3


def combine(rule: str | None, operands: Sequence[Level]) -> Level:
    """The level of an operation's result.

    >>> combine("sum", [Level.FREE, Level.AFFINE]).name, combine("multiply", [Level.AFFINE, Level.AFFINE]).name
    ('AFFINE', 'OTHER')
    """
    highest = max(operands)
    if highest is Level.FREE or rule == "move":
        return highest
    match rule:
        case "sum":
            return Level.AFFINE if highest is Level.AFFINE else Level.OTHER
        case "index":  # the first operand's elements, at positions that the others give
            return operands[0] if max(operands[1:], default=Level.FREE) is Level.FREE else Level.OTHER
        case "select":  # the first operand chooses among the others
            return Level.AFFINE if operands[0] is Level.FREE and highest is Level.AFFINE else Level.OTHER
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


# the one-predictor families: class name -> (family, link, the argument that carries the predictor, the other arguments)
FAMILIES = {
    "Normal": ("Normal", "identity", "loc", ("scale",)),
    "BernoulliLogits": ("Bernoulli", "logit", "logits", ()),
    "BinomialLogits": ("Binomial", "logit", "logits", ("total_count",)),
    "Poisson": ("Poisson", "log", "rate", ()),
    "Exponential": ("Exponential", "log", "rate", ()),
    "Gamma": ("Gamma", "log", "rate", ("concentration",)),
}


def is_affine_by_context(found: Sequence[Level], needed: Level) -> bool:
    """Whether features, offset and other arguments are affine in the context, from the levels with the context as the variable.

    found: of the argument that carries the predictor, at any theta, and of the others. If eta(theta, x) is affine in x whatever
    theta is, then so are the offset, eta(0, x), and each feature, eta(e_j, x) - eta(0, x).
    """
    return found[0] in (Level.FREE, needed) and max(found[1:], default=Level.FREE) <= Level.AFFINE


ORDERED = "OrderedLogistic"

Parts = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]


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


def ordered_from(parts: Parts) -> OrderedPredictor:
    """An `OrderedPredictor` over one function parts(x, a) -> [features (n, C, D), offset (n, C)]."""
    remembered = _remembered(parts)
    return OrderedPredictor(features=lambda x, a: remembered(x, a)[0], offset=lambda x, a: remembered(x, a)[1])


def _remembered(parts: Parts) -> Parts:
    """Features, offset and other arguments are asked for one after the other at the same rows, so the last answer is kept.

    The memo is replaced in one assignment and may be shared by threads.
    """
    last: list[tuple[Any, list[np.ndarray]]] = [(None, [])]
    same: list[tuple[Any, Any, list[np.ndarray]]] = [(None, None, [])]  # arrays that nobody can have changed since

    def remembered(x: Any, a: Any) -> list[np.ndarray]:
        before_x, before_a, answer = same[0]
        if x is before_x and a is before_a:
            return answer
        asked = x, a
        x, a = np.asarray(x, float), np.asarray(a, np.int64)
        key = (x.shape, x.tobytes(), a.tobytes())
        known, answer = last[0]
        if known != key:
            answer = parts(x, a)
            for array in answer:
                array.flags.writeable = False
            last[0] = (key, answer)
        if asked[0] is x and asked[1] is a and not (x.flags.writeable or a.flags.writeable):
            same[0] = (x, a, answer)
        return answer

    return remembered
