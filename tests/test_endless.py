"""Forms without an end are told apart before anything is solved, and rows that have no say about a
form are left out.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from gedppl.families.one_predictor import FAMILIES
from gedppl.learning import reach
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.program_sets import plausible
from gedppl.learning.reach import concerned, endless, reached
from gedppl.learning.walls import Walls, farthest_inside
from gedppl.programs.contract import LinearPredictor

PATIENTS, D = 4, 6  # intercept, slope, and an effect for each patient
SLOPE_UP = np.array([-np.inf, 0.0, *[-np.inf] * PATIENTS]), np.full(D, np.inf)
RISK = LinearPredictor(
    "Bernoulli",
    "logit",
    features=lambda x, a: x,
    offset=lambda x, a: np.zeros(len(a)),
    fixed=lambda x, a: {},
)


def features(patient, dose):
    return np.column_stack([np.ones(len(dose)), dose, np.eye(PATIENTS)[patient]])


def ward():
    """Patient 2 never had an event, patient 3 was never seen, 0 and 1 had some of both."""
    rng = np.random.default_rng(0)
    patient, dose = np.repeat([0, 1, 2], 30), np.tile([0.5, 1.0, 2.0], 30)
    y = np.where(patient == 2, 0.0, (rng.random(90) < 0.2 + 0.25 * dose) * 1.0)
    x = features(patient, dose)
    data = PredictorLikelihood.empty(RISK, D).append(x, np.zeros(90, int), y)
    return plausible(data, 0, np.zeros(D), float(data.value(np.zeros((1, D)))[0]))


def largest_by_search(chosen, form) -> float:
    """With the effect of the patient without events far down, where it costs nothing."""

    def whole(v):
        return np.concatenate([v, [-40.0, 0.0]])[None]

    found = minimize(
        lambda v: -form[:4] @ v,
        [0.0, 0.5, 0.0, 0.0],
        jac=lambda v: -form[:4],
        method="SLSQP",
        bounds=[(None, None), (0.0, None), (None, None), (None, None)],
        constraints=[
            {"type": "ineq", "fun": lambda v: chosen.region.slack(whole(v))[0]},
            # the intercept and all effects go together: nobody has seen them apart
            {"type": "eq", "fun": lambda v: v[0]},
        ],
        options={"ftol": 1e-12, "maxiter": 300},
    )
    return float(-found.fun)


def test_rows_of_a_patient_without_events_have_no_say_about_others() -> None:
    """No solver gets to that end, where the effect is minus infinite: the bound was the range."""
    chosen = ward()
    forms = features(np.array([0, 1, 0]), np.array([0.5, 1.0, 2.0]))
    both = np.vstack([forms, -forms])
    value = reached(chosen, both, SLOPE_UP)
    expected = [largest_by_search(chosen, form) for form in both]
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    ((fewer, those),) = concerned(chosen, SLOPE_UP, both)
    assert fewer.data.n == 60
    assert list(those) == [0, 1, 2, 3, 4, 5]


def test_a_form_of_nothing_is_nothing_where_no_row_is_left() -> None:
    """An action without an effect, behind the wall of a slope, before any outcome: there is nothing
    to move along.
    """
    data = PredictorLikelihood.empty(RISK, 2)
    chosen = plausible(data, 0, np.zeros(2), 0.0)
    walls = Walls.of(np.array([-np.inf, 0.0]), np.full(2, np.inf), data)
    bound, at, _ = farthest_inside(chosen, walls, np.zeros((2, 2)), np.array([0.0, 1.0]))
    assert bound.tolist() == [0.0, 0.0]
    assert at.tolist() == [[0.0, 1.0]] * 2


def test_forms_that_grow_for_ever_are_known_and_the_others_are_not_called_so() -> None:
    chosen = ward()
    seen, without_event, never = (features(np.array([k]), np.array([1.0])) for k in (0, 2, 3))
    ways = endless(chosen, SLOPE_UP)
    assert ways is not None
    forms = np.vstack([seen, -seen, without_event, -without_event, never, -never])
    assert list(ways.somewhere(forms)) == [False, False, False, True, True, True]
    value = reached(chosen, forms, SLOPE_UP)
    assert list(np.isfinite(value)) == [True, True, True, False, False, False]


def test_a_direction_that_is_no_coordinate_is_found_by_least_squares_and_stopped_by_walls(
    monkeypatch,
) -> None:
    """One dose only: intercept and slope are seen together. Along (-1, 2) the slope may rise for
    ever; back only as far as its sign allows.
    """
    x = np.column_stack([np.ones(20), np.full(20, 0.5)])
    y = (np.arange(20) % 3 == 0) * 1.0
    data = PredictorLikelihood.empty(RISK, 2).append(x, np.zeros(20, int), y)
    chosen = plausible(data, 0, np.zeros(2), float(data.value(np.zeros((1, 2)))[0]) - 1.0)
    box = np.array([-np.inf, 0.0]), np.full(2, np.inf)
    ways = endless(chosen, box)
    assert ways is not None
    higher = np.array([[1.0, 2.0]])
    assert not ways.along(np.vstack([higher, -higher])).any()
    asked = np.vstack([higher, -higher, x[:1]])
    assert list(ways.somewhere(asked)) == [True, False, False]
    # the controls: least squares that always fail find nothing, and without their walls too much
    monkeypatch.setattr(reach, "nnls", lambda stops, goal: (goal, 0.0))
    assert list(ways.somewhere(asked)) == [False, False, False]
    monkeypatch.setattr(reach, "nnls", lambda stops, goal: (goal, np.linalg.norm(goal)))
    assert list(ways.somewhere(asked)) == [True, True, True]


@pytest.mark.parametrize(
    ("name", "y", "expected"),
    [
        (("Bernoulli", "logit"), [0.0, 1.0], ([True, False], [False, True])),
        (("Bernoulli", "probit"), [0.0, 1.0], ([True, False], [False, True])),
        (("Bernoulli", "cloglog"), [0.0, 1.0], ([True, False], [False, True])),
        (("Binomial", "logit"), [0.0, 2.0, 4.0], ([True, False, False], [False, False, True])),
        (("Poisson", "log"), [0.0, 3.0], ([True, False], [False, False])),
        (("Poisson", "softplus"), [0.0, 3.0], ([True, False], [False, False])),
        (("NegativeBinomial", "log"), [0.0, 3.0], ([True, False], [False, False])),
        (("Normal", "identity"), [0.0, 3.0], ([False, False], [False, False])),
        (("Logistic", "identity"), [0.0, 3.0], ([False, False], [False, False])),
        (("Weibull", "log"), [0.1, 3.0], ([False, False], [False, False])),
        (("Gamma", "log"), [0.1, 3.0], ([False, False], [False, False])),
        (("Exponential", "log"), [0.1, 3.0], ([False, False], [False, False])),
    ],
)
def test_where_log_densities_tend_to_a_value(name, y, expected) -> None:
    fixed = {n: np.full(len(y), 4.0) for n in ("total_count", "concentration")}
    fixed["scale"] = np.full(len(y), 1e30)  # whatever the outcome's unit
    found = FAMILIES[name].flat_ends(np.array(y), fixed)
    assert [list(side) for side in found] == list(expected)
