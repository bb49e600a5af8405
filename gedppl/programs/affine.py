"""Proof by data flow that a program's predictor is affine in theta, or the exponential of something
affine.

A backend lists the operations of a function of theta. Every value is FREE of theta, AFFINE in
theta, EXP (the exponential of an affine value, times something free of theta) or OTHER. An
operation without a rule gives OTHER, so nothing is ever claimed that was not seen: comparisons,
rounding and stopped gradients, whose derivative alone would look constant, have no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.numerics.arrays import ArrayOf
from gedppl.programs.contract import LinearPredictor, OrderedPredictor
from gedppl.programs.identity import settings
from gedppl.programs.lowering import as_given, strip
from gedppl.rows import Parts, Remembered, Tabulated

if TYPE_CHECKING:
    from gedppl.programs.kernels import Kernels


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


def is_affine_by_context(found: Sequence[Level], needed: Level) -> bool:
    """Whether features, offset and other arguments are affine in the context, from the levels with
    the context as the variable.

    found: of the argument that carries the predictor, at any theta, and of the others. If
    eta(theta, x) is affine in x whatever theta is, then so are the offset, eta(0, x), and each
    feature, eta(e_j, x) - eta(0, x).
    """
    return found[0] in (Level.FREE, needed) and max(found[1:], default=Level.FREE) <= Level.AFFINE


ORDERED = "OrderedLogistic"
ROUNDING = 1e-9  # share of the numbers added up


def linear_predictor(program: Kernels) -> LinearPredictor | None:
    """The class as a one-predictor family, if that can be proved; None otherwise."""
    known = FAMILIES.get(program.outcome_kind()) if _may_be_affine(program) else None
    if known is None:
        return None
    family, link, argument, others = known
    xp, zero = program.xp, np.zeros(program.dim)

    def arguments(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
        observed = as_given(program.run(theta, x, a).observed)
        return [
            xp.broadcast_to(program.as_float(getattr(observed, name)), a.shape)
            for name in (argument, *others)
        ]

    needed = Level.EXP if link == "log" else Level.AFFINE
    found = program.levels(arguments, zero, program.x, program.a)
    if found[0] is not needed or any(level is not Level.FREE for level in found[1:]):
        return None

    def eta(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> Any:
        value = arguments(theta, x, a)[0]
        return xp.log(value) if link == "log" else value

    def everything(x: ArrayOf, a: ArrayOf) -> list[Any]:
        zero = xp.zeros(program.dim)
        slopes = program.jacobian(eta)(zero, x, a)
        return [slopes, eta(zero, x, a), *arguments(zero, x, a)[1:]]

    parts = program.parts_by_row("predictor", everything)
    if not _slopes_hold(eta, parts, program):
        return None
    by_context = program.levels(
        lambda x, theta, a: arguments(theta, x, a), program.x, zero, program.a
    )
    table = (
        Tabulated(parts, program.slopes(parts, everything), program.dim)
        if is_affine_by_context(by_context, needed)
        else None
    )
    predictor = predictor_from(family, link, others, parts, table)
    # nothing of the user's own stands in the outcome, or what does agrees
    return predictor if program.packaged or program.predictor_holds(predictor) else None


def ordered_predictor(program: Kernels) -> OrderedPredictor | None:
    """The class as ordered outcomes between affine edges, if that can be proved; None otherwise."""
    if not (_may_be_affine(program) and program.outcome_kind() == ORDERED and program.packaged):
        return None
    xp = program.xp

    def edges(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> Any:
        observed = strip(program.run(theta, x, a).observed)
        cut = observed.cutpoints - xp.broadcast_to(observed.predictor, a.shape)[:, None]
        return program.as_float(xp.broadcast_to(cut, (a.shape[0], cut.shape[-1])))

    found = program.levels(
        lambda *args: [edges(*args)], np.zeros(program.dim), program.x, program.a
    )
    if found[0] is not Level.AFFINE:
        return None

    def everything(x: ArrayOf, a: ArrayOf) -> list[Any]:
        zero = xp.zeros(program.dim)
        return [program.jacobian(edges)(zero, x, a), edges(zero, x, a)]

    parts = program.parts_by_row("ordered", everything)
    return ordered_from(parts) if _slopes_hold(edges, parts, program) else None


def _may_be_affine(program: Kernels) -> bool:
    """Whether a proof is worth trying: one number a row, of a family that is known, with parameters
    and without latents that are summed out.
    """
    return (
        len(program.assignments) <= 1
        and not program.event_shape
        and program.dim > 0
        and program.known_family
    )


def _slopes_hold(eta: Callable[..., Any], parts: Parts, program: Kernels) -> bool:
    """Whether what derivatives say of a function that is affine in theta is what it does. In torch,
    values that left the graph (`.data`, `torch.no_grad`) have none, and move it all the same.
    """
    if not program.values_may_leave:
        return True
    slopes, offset = parts(program.x, program.a)[:2]
    rows = program.array(program.x), program.array(program.a)
    for theta in settings(program.dim):
        value = program.to_numpy(eta(program.array(theta), *rows))
        size = np.abs(slopes) @ np.abs(theta) + np.abs(offset) + np.abs(value)
        if np.any(np.abs(slopes @ theta + offset - value) > ROUNDING * size):
            return False
    return True


def predictor_from(
    family: str, link: str, others: Sequence[str], parts: Parts, table: Tabulated | None = None
) -> LinearPredictor:
    """A `LinearPredictor` over one function parts(x, a) -> [features, offset, *others], and their
    `table` if there is one.
    """
    known = Remembered(parts if table is None else table, table)
    return LinearPredictor(
        family,
        link,
        features=known.part(0),
        offset=known.part(1),
        fixed=known.by_name(dict(enumerate(others, 2))),
        at_contexts=known.all_by_name(others),
    )


def ordered_from(parts: Parts, link: str = "logit") -> OrderedPredictor:
    """An `OrderedPredictor` over one function parts(x, a) -> [features (n, C, D), offset (n,
    C)].
    """
    known = Remembered(parts)
    return OrderedPredictor(features=known.part(0), offset=known.part(1), link=link)
