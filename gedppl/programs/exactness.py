"""Which bounds of a program's functionals will be exact, in a sentence for whoever wrote the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gedppl.oracles.one_predictor import TERMS

if TYPE_CHECKING:
    from gedppl.programs.program import ProgramClass

GROUPS = "Actions with parameters of their own get sets from their own rows too"


def exactness(cls: ProgramClass) -> str:
    """Exact on one affine predictor of a known family and on ordered outcomes; otherwise what stands in the way."""
    if cls.predictor is not None and (cls.predictor.family, cls.predictor.link) in TERMS:
        family, link = cls.predictor.family, cls.predictor.link
        form = "an ellipsoid in closed form" if family == "Normal" else "convex"
        return (
            f"exact: {family} with one predictor ({link} link) affine in the {cls.dim} parameters, so that its likelihood "
            f"set is {form} and a functional is bounded at the predictor's two ends. {GROUPS}."
        )
    if cls.ordered is not None:
        return (
            f"exact for chances of y <= k or y > k: ordered outcomes whose edges are affine in the {cls.dim} parameters, with a "
            f"convex likelihood set. What weighs several categories (a mean) goes by local ascent, no certificate. {GROUPS}."
        )
    if cls.predictor is not None:
        obstacle = f"the family {cls.predictor.family} with {cls.predictor.link} link has no score equations here"
    else:
        obstacle = (
            f"the arguments of its {cls.program.family} are not a known link of one predictor that is affine in the parameters, "
            "with all else known"
        )
    return f"not exact: {obstacle}. Bounds come from local ascent, which is an approximation and no certificate. {GROUPS}."
