"""Which bounds of a program's functionals will be exact, in a sentence for whoever wrote the
program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gedppl.families.one_predictor import TERMS

if TYPE_CHECKING:
    from gedppl.programs.contract import Profiled
    from gedppl.programs.program import ProgramClass

ADVICE = (
    "Where it can be, write the predictor as a sum of data times values made of parameters alone, "
    "through one link (logits=, an "
    "exp for a rate), with every other argument known"
)
GROUPS = "Actions with parameters of their own get sets from their own rows too"


def exactness(cls: ProgramClass) -> str:
    """Exact on one affine predictor of a known family and on ordered outcomes; otherwise what
    stands in the way, and where.
    """
    seen = cls.seen
    predictor, ordered = (
        (cls.predictor, cls.ordered) if seen is None else (seen.predictor, seen.ordered)
    )
    where = f"the {cls.dim} parameters"
    if seen is not None:
        where = f"{seen.dim} values that the {cls.dim} parameters make (what the data see of them)"
    if predictor is not None and (predictor.family, predictor.link) in TERMS:
        form = "an ellipsoid in closed form" if predictor.family == "Normal" else "convex"
        return (
            f"exact: {predictor.family} with one predictor ({predictor.link} link) affine in "
            f"{where}, so that its likelihood "
            f"set is {form} and a functional is bounded at the predictor's two ends. {GROUPS}."
        )
    if ordered is not None:
        return (
            f"exact for chances of y <= k or y > k: ordered outcomes ({ordered.link} link) whose "
            f"edges are affine in {where}, with a "
            "convex likelihood set. What weighs several categories (a mean) is bounded edge by "
            "edge: guaranteed, "
            f"a little wide. {GROUPS}."
        )
    if cls.location_scale is not None:
        several = (
            "Of its several scales each is bounded from rows of its own; where they share "
            "coefficients, bounds are guaranteed and wider. "
        ) * (cls.location_scale.n_groups > 1)
        return (
            f"exact: {cls.location_scale.family} whose location is affine in {where} and whose "
            "scale is unknown, so that its likelihood set is convex in (location / scale, 1 / "
            f"scale); bounds are exact, or an outer polygon's to nine digits. {several}{GROUPS}."
        )
    if cls.profiled is not None:
        return _profiled(cls.profiled, where)
    return (
        f"not exact: {_obstacle(cls)}. Bounds come from local ascent, which is an "
        f"approximation and no certificate. {GROUPS}."
    )


def _profiled(form: Profiled, where: str) -> str:
    said = (
        f"profiled: {form.family} with one predictor ({form.link} link) affine in {where}, beside "
        f"an unknown {form.name}. At every value of it the likelihood set is convex"
    )
    return (
        f"{said}, and what may lie between two values is bounded: guaranteed, a little wide. "
        f"{GROUPS}."
    )


def _obstacle(cls: ProgramClass) -> str:
    refusal = cls.refusal
    if cls.predictor is not None:
        return (
            f"the family {cls.predictor.family} with {cls.predictor.link} link has no score "
            "equations here"
        )
    general = (
        f"the arguments of its {cls.program.family} are not a known link of one predictor that is "
        "affine in the parameters, "
        "with all else known"
    )
    if refusal is None:
        return general
    place = f" ({refusal.line})" if refusal.line else ""
    return f"{general}: {refusal.why}{place}. {refusal.instead or ADVICE}"
