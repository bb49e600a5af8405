"""Proof by data flow that a program's predictor is affine in theta itself, or the exponential of
something affine.

The steps are those that `gedppl.programs.forms` reads. Where it computes each value's coefficients
in coordinates of its own, here every value has a level: FREE of theta, AFFINE in theta, EXP (the
exponential of an affine value, times something free of theta) or OTHER. That needs no numbers, so
any function of any number of rows can be asked. A step without a rule gives OTHER: nothing is
claimed that was not seen, and comparisons, rounding and stopped gradients, whose derivative alone
would look constant, have no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.numerics.arrays import ArrayOf
from gedppl.programs.contract import LinearPredictor, OrderedPredictor
from gedppl.programs.identity import settings
from gedppl.programs.links import CANONICAL, ORDERED, OUTCOMES
from gedppl.programs.lowering import as_given, strip
from gedppl.rows import Parts, Remembered, Tabulated

if TYPE_CHECKING:
    from gedppl.programs.kernels import Kernels
    from gedppl.programs.values import Listing


STOPPED = ("detach",)  # moves whose derivative is 0; what is AFFINE is differentiated afterwards


class Level(IntEnum):
    """How a value depends on theta."""

    FREE = 0
    AFFINE = 1
    EXP = 2
    OTHER = 3


def combine(rule: str, operands: Sequence[Level], needs: Sequence[int] = ()) -> Level:
    """The level of a step's result, from its rule and the operands' levels; those at `needs` say
    where, not what.

    Sums of affine values are affine, products with what is free of theta too. Products, quotients
    and powers of exponentials are exponentials: exp(u) exp(v) = exp(u + v).

    >>> (
    ...     combine("linear", [Level.FREE, Level.AFFINE]).name,
    ...     combine("multiply", [Level.AFFINE, Level.AFFINE]).name,
    ... )
    ('AFFINE', 'OTHER')
    """
    highest = max(operands, default=Level.FREE)
    if highest is Level.FREE:
        return highest
    if any(operands[i] is not Level.FREE for i in needs):
        return Level.OTHER
    match rule:
        case "move" if len(operands) == 1 + len(needs):
            return highest
        case "move" | "linear":
            return Level.AFFINE if highest is Level.AFFINE else Level.OTHER
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
        case "power":
            return Level.EXP if highest is Level.EXP else Level.OTHER
        case "exp":
            return Level.EXP if highest is Level.AFFINE else Level.OTHER
        case "log":
            return Level.AFFINE if highest is Level.EXP else Level.OTHER
    return Level.OTHER


def levels(listing: Listing) -> list[Level]:
    """How each output of a listing depends on its first input, whatever the others hold."""
    known = dict.fromkeys((*listing.constants, *listing.inputs[1:]), Level.FREE)
    first = listing.inputs[0]
    known[first] = Level.OTHER if first in listing.stated else Level.AFFINE
    for step in listing.steps:
        rule = "" if step.name in STOPPED else step.rule
        found = combine(rule, [known[key] for key in step.inputs], step.needs)
        for key, real in zip(step.outputs, step.real):  # what was rounded is not affine
            sound = real and key not in listing.stated  # slopes are taken by differentiation
            known[key] = found if sound or found is Level.FREE else Level.OTHER
    return [known[key] for key in listing.outputs]


# classes in `links.OUTCOMES` whose first argument is the predictor or its exponential
DIRECT = ("Normal", "BernoulliLogits", "BinomialLogits", "Poisson", "Exponential", "Gamma")


def is_affine_by_context(found: Sequence[Level], needed: Level) -> bool:
    """Whether features, offset and other arguments are affine in the context, from the levels with
    the context as the variable.

    found: of the argument that carries the predictor, at any theta, and of the others. If
    eta(theta, x) is affine in x whatever theta is, then so are the offset, eta(0, x), and each
    feature, eta(e_j, x) - eta(0, x).
    """
    return found[0] in (Level.FREE, needed) and max(found[1:], default=Level.FREE) <= Level.AFFINE


ROUNDING = 1e-9  # share of the numbers added up


def linear_predictor(program: Kernels) -> LinearPredictor | None:
    """The class as a one-predictor family, if that can be proved; None otherwise."""
    kind = program.outcome_kind()
    if obstacle(program, kind) or kind not in DIRECT:
        return None
    outcome = OUTCOMES[kind]
    family, link, others = outcome.family, CANONICAL[outcome.kind], outcome.others
    xp, zero = program.xp, np.zeros(program.dim)

    def arguments(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> list[Any]:
        found = outcome.arguments(as_given(program.run(theta, x, a).observed))
        return [xp.broadcast_to(program.as_float(value), a.shape) for value in found]

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
    kind = program.outcome_kind()
    if obstacle(program, kind) or not program.packaged or kind != ORDERED:
        return None
    xp = program.xp

    def edges(theta: ArrayOf, x: ArrayOf, a: ArrayOf) -> Any:
        (cut,) = OUTCOMES[ORDERED].arguments(strip(program.run(theta, x, a).observed))
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


def obstacle(program: Kernels, kind: str) -> str:
    """What rules out a proof before any step is read, or nothing; `kind` is the packages' class of
    the outcome.
    """
    if program.dim == 0:
        return "the program has no parameters"
    if len(program.assignments) > 1:
        return "a discrete latent is summed out, which leaves a mixture"
    if program.event_shape:
        return "outcomes are vectors"
    if not program.known_family:
        return stranger(kind)
    return ""


def stranger(kind: str) -> str:
    """Of an outcome with a class of the user's in it."""
    return f"the outcome's distribution is a class of its own, not a packages' {kind or 'family'}"


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
