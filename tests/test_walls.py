"""Linear forms over a set behind walls: all at once against one at a time, and against the set
cut by what the walls leave of it.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.program_sets import plausible
from gedppl.learning.walls import Walls, behind, farthest_inside
from gedppl.programs.contract import LinearPredictor

CHANCES = LinearPredictor(
    "Bernoulli",
    "identity",
    features=lambda x, a: x,
    offset=lambda x, a: np.zeros(len(a)),
    fixed=lambda x, a: {},
)
BOX = np.array([0.0, 0.0, 0.0, 0.2]), np.array([1.0, 1.0, 1.0, 0.9])


def weights():
    """A set of weights (3,) of parts of a chance, in a box with a fourth that no row depends on;
    and forms.
    """
    rng = np.random.default_rng(2)
    phi = np.column_stack([rng.uniform(0.1, 0.5, (80, 3)), np.zeros(80)])
    y = (rng.random(80) < phi @ np.array([0.9, 0.05, 0.8, 0.0])).astype(float)
    data = PredictorLikelihood.empty(CHANCES, 4).append(phi, np.zeros(80, int), y)
    chosen = plausible(data, 0, np.array([0.5, 0.5, 0.5, 0.5]), 0.0, drop=3.0)
    forms = np.column_stack([rng.uniform(0.1, 0.5, (3, 3)), np.zeros(3)])
    return chosen, np.vstack([forms, -forms])


def test_forms_together_are_forms_alone_and_the_largest_there_are() -> None:
    chosen, forms = weights()
    walls, start = behind(chosen, BOX)
    bound, at, price = farthest_inside(chosen, walls, forms, start)
    assert np.isfinite(bound).all()
    assert not walls.broken(at).any()
    assert (price >= 0).all()
    for i, form in enumerate(forms):
        alone = farthest_inside(chosen, walls, form[None], start)[0][0]
        found = minimize(
            lambda v, form=form: -form @ v,
            start,
            jac=lambda v, form=form: -form,
            method="SLSQP",
            constraints=[
                {"type": "ineq", "fun": lambda v: chosen.region.slack(v[None])[0]},
                {"type": "ineq", "fun": lambda v: walls.limits - walls.normals @ v},
            ],
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert bound[i] == pytest.approx(alone, rel=1e-7)
        assert bound[i] == pytest.approx(-found.fun, rel=1e-6)


def test_walls_of_what_no_form_depends_on_are_left_out() -> None:
    """Directly or by other walls: the box of the fourth coordinate, until a wall ties it to the
    first.
    """
    chosen, forms = weights()
    walls = behind(chosen, BOX)[0]
    near = walls.near(np.vstack([forms, chosen.touched]))
    assert len(near.limits) == len(walls.limits) - 2
    tied = Walls(
        np.vstack([walls.normals, [1.0, 0.0, 0.0, 1.0]]), np.append(walls.limits, 1.5)
    ).near(forms)
    assert len(tied.limits) == len(walls.limits) + 1
