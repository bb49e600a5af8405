"""Whether a function of the outcome is proved to be monotone in it, operation by operation.

A value is free of y, never falls with y, never rises with y, or is anything; and it may be known
not to be negative. An operation without a rule gives anything, so that nothing is claimed that was
not seen. Families of one predictor are stochastically ordered, and the expectation of a monotone
function is monotone in the predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from gedppl.programs.values import Listing, Step

RISING = frozenset(
    (
        "exp",
        "log",
        "log1p",
        "expm1",
        "sqrt",
        "tanh",
        "logistic",
        "sigmoid",
        "erf",
        "cbrt",
        "exp2",
        "softplus",
        "relu",
        "floor",
        "ceil",
        "round",
        "convert_element_type",
        "_to_copy",
    )
)
FALLING = frozenset(("neg", "erfc"))
NEVER_NEGATIVE = frozenset(
    ("exp", "exp2", "sqrt", "logistic", "sigmoid", "softplus", "relu", "abs", "square", "erfc")
)
EXTREMES = frozenset(("max", "min", "clamp", "maximum", "minimum", "clamp_min", "clamp_max"))
ABOVE, BELOW = frozenset(("gt", "ge")), frozenset(("lt", "le"))


@dataclass(frozen=True)
class Tendency:
    way: int | None  # 0: free of y; 1, -1: never falls, never rises; None: anything
    positive: bool = False  # never negative
    value: Any = None  # of a constant, in the backend's array


UNKNOWN = Tendency(None)


def once(method: Callable[..., int]) -> Callable[..., int]:
    """A program's method that looks at each function once."""

    @wraps(method)
    def asked(program: object, fn: Callable[..., object], positive: bool) -> int:
        known: dict[object, int] = vars(program).setdefault("ways", {})
        if (fn, positive) not in known:
            known[fn, positive] = method(program, fn, positive)
        return known[fn, positive]

    return asked


def trend(listing: Listing, positive: bool) -> int:
    """1 or -1 if the listing's one result is proved never to fall or never to rise with its first
    input, else 0; whether that input is known not to be negative.
    """
    values: dict[int, Tendency] = {
        key: _constant(value) for key, value in listing.constants.items()
    }
    values.update({key: Tendency(0) for key in listing.inputs})
    values[listing.inputs[0]] = Tendency(1, positive)
    for step in listing.steps:
        found = _after(step, [values[key] for key in step.inputs])
        values.update(dict.fromkeys(step.outputs, found))
    way = values[listing.outputs[0]].way
    return 1 if way == 0 else way or 0  # a constant is monotone too


def _after(step: Step, given: Sequence[Tendency]) -> Tendency:
    name = step.name.partition("[")[0]
    ways = [one.way for one in given]
    if all(one.value is not None for one in given) and len(step.outputs) == 1:
        return _constant(step.run(*[one.value for one in given])[0])
    if all(way == 0 for way in ways):
        return Tendency(0, name in NEVER_NEGATIVE or all(one.positive for one in given))
    if None in ways:
        return UNKNOWN
    positive = name in NEVER_NEGATIVE or all(one.positive for one in given)
    if name in RISING:
        return Tendency(ways[0], name in NEVER_NEGATIVE or given[0].positive)
    if name in FALLING:
        return Tendency(_turned(ways[0]), name in NEVER_NEGATIVE)
    if name in ("add", "add_any"):
        return Tendency(_together(ways), positive)
    if name in ("sub", *ABOVE, *BELOW):
        way = _together([ways[0], _turned(ways[1])])
        truth = name != "sub"
        return Tendency(_turned(way) if name in BELOW else way, truth)
    if name in EXTREMES:
        some = any(one.positive for one in given) and name in ("max", "maximum", "clamp_min")
        return Tendency(_together(ways), positive or some)
    if step.rule == "multiply" and len(given) == 2:
        return _product(*given)
    if step.rule == "divide" and ways[1] == 0:
        return _scaled(given[0], _sign(given[1]))
    if step.rule == "power" and given[0].positive and step.power != 1.0:
        return Tendency(ways[0] if step.power > 0 else _turned(ways[0]), True)
    if name == "select_n" or (name == "where" and step.needs == (0,)):
        return _chosen(given, name == "where")
    if step.rule == "move" and not any(ways[i] for i in step.needs):
        return Tendency(_together(ways), positive)
    return UNKNOWN


def _constant(value: Any) -> Tendency:
    return Tendency(0, bool(np.all(np.asarray(value) >= 0)), value)


def _turned(way: int | None) -> int | None:
    return None if way is None else -way


def _together(ways: Sequence[int | None]) -> int | None:
    """The way of a sum, a maximum, or a choice that does not depend on y."""
    found = {way for way in ways if way != 0}
    return 0 if not found else found.pop() if len(found) == 1 else None


def _sign(one: Tendency) -> int | None:
    if one.value is not None and np.all(np.asarray(one.value) <= 0):
        return -1
    return 1 if one.positive else None


def _scaled(one: Tendency, sign: int | None) -> Tendency:
    """Times something free of y of this sign."""
    if sign is None or one.way is None:
        return UNKNOWN
    return Tendency(sign * one.way, one.positive and sign > 0)


def _product(left: Tendency, right: Tendency) -> Tendency:
    for one, other in ((left, right), (right, left)):
        if one.way == 0:
            return _scaled(other, _sign(one))
    both = left.positive and right.positive
    return Tendency(_together([left.way, right.way]), True) if both else UNKNOWN


def _chosen(given: Sequence[Tendency], first_is_true: bool) -> Tendency:
    """A choice among cases; where it depends on y itself, between two numbers."""
    choice, *cases = given
    positive = all(one.positive for one in cases)
    if choice.way == 0:
        return Tendency(_together([one.way for one in cases]), positive)
    numbers = [one.value for one in cases]
    if choice.way is None or len(cases) != 2 or any(number is None for number in numbers):
        return UNKNOWN
    low, high = (np.asarray(number) for number in (numbers[::-1] if first_is_true else numbers))
    if np.all(low <= high):
        return Tendency(choice.way, positive)
    return Tendency(-choice.way, positive) if np.all(low >= high) else UNKNOWN
