"""Linear forms over a set behind walls: all at once against one at a time, and against the set
cut by what the walls leave of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

import gedppl.learning.walls as walls_module
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.program_sets import plausible
from gedppl.learning.walls import Walls, behind, farthest_inside, on_faces
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


def by_search(chosen, walls, start, form) -> float:
    """The largest form'v over the set inside the walls, by a general solver."""
    found = minimize(
        lambda v: -form @ v,
        start,
        jac=lambda v: -form,
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda v: chosen.region.slack(v[None])[0]},
            {"type": "ineq", "fun": lambda v: walls.limits - walls.normals @ v},
        ],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return -float(found.fun)


def test_forms_together_are_forms_alone_and_the_largest_there_are() -> None:
    chosen, forms = weights()
    walls, start = behind(chosen, BOX)
    bound, at, price = farthest_inside(chosen, walls, forms, start)
    assert np.isfinite(bound).all()
    assert not walls.broken(at).any()
    assert (price >= 0).all()
    for i, form in enumerate(forms):
        alone = farthest_inside(chosen, walls, form[None], start)[0][0]
        assert bound[i] == pytest.approx(alone, rel=1e-7)
        assert bound[i] == pytest.approx(by_search(chosen, walls, start, form), rel=1e-6)


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


def test_what_is_found_from_wall_to_wall_is_the_largest() -> None:
    chosen, forms = weights()
    walls, start = behind(chosen, BOX)
    found = on_faces(chosen, walls, forms)
    assert found.settled.all()
    assert (walls.normals @ found.theta.T <= walls.limits[:, None] + 1e-6).all()
    assert walls.broken(chosen.region.ends(forms)).any()  # they have a say
    for form, bound in zip(forms, found.value):
        assert bound == pytest.approx(by_search(chosen, walls, start, form), rel=1e-6)


@pytest.mark.parametrize("link", ["logit", "identity"])
def test_from_wall_to_wall_and_between_them_bounds_are_the_same(link) -> None:
    """Corners, edges and points on no wall at all; no bound lies below the other's."""
    settled, asked, corners = 0, 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        dim = int(rng.integers(1, 5))
        phi = rng.uniform(0, 1 / dim, (60, dim)) if link == "identity" else rng.normal(size=(60, 3))
        truth = rng.uniform(0.1, 0.8, phi.shape[1])
        eta = phi @ truth
        chance = eta if link == "identity" else 1 / (1 + np.exp(-eta))
        y = (rng.random(60) < chance).astype(float)
        data = PredictorLikelihood.empty(replace(CHANCES, link=link), phi.shape[1])
        data = data.append(phi, np.zeros(60, int), y)
        chosen = plausible(data, 0, truth, 0.0, drop=float(rng.uniform(0.5, 6)))
        walls, start = behind(chosen, (truth - rng.uniform(0, 0.4), truth + rng.uniform(0, 0.4)))
        if start is None:
            continue
        forms = rng.normal(size=(4, phi.shape[1]))
        found = on_faces(chosen, walls, forms)
        inside = farthest_inside(chosen, walls, forms, start)[0]
        both = found.settled & np.isfinite(inside)
        more = (found.value[both] - inside[both]) / np.maximum(1.0, np.abs(inside[both]))
        assert ((more >= -1e-8) & (more <= 1e-5)).all(), seed
        settled, asked = settled + int(found.settled.sum()), asked + len(forms)
        room = walls.limits - found.theta @ walls.normals.T
        corners += int(np.sum(np.sum(np.abs(room) < 1e-6, axis=1) >= phi.shape[1]))
    assert settled > 0.9 * asked
    assert corners > 10


def test_a_bound_from_wall_to_wall_counts_what_is_left_to_the_walls(monkeypatch) -> None:
    """A point that a step has not brought to its walls yet is believed where nobody asks."""
    chosen, forms = weights()
    walls, _ = behind(chosen, BOX)
    exact = on_faces(chosen, walls, forms).value
    monkeypatch.setattr(walls_module, "NEAR", 1.0)  # any point will do
    early = on_faces(chosen, walls, forms)
    assert early.settled.all()
    assert (early.value >= exact - 1e-9).all()  # still upper bounds
    assert (early.value > exact + 1e-3).any()  # of little worth


@pytest.mark.parametrize(("limit", "most"), [("LOOKS", 1), ("HALVINGS", 0), ("STEPS", 2)])
def test_a_search_that_is_cut_short_promises_nothing(limit, most, monkeypatch) -> None:
    """Whatever it has found by then, a bound is never below the largest there is; with the limits
    as they are, all are found.
    """
    chosen, forms = weights()
    walls, start = behind(chosen, BOX)
    largest = farthest_inside(chosen, walls, forms, start)[0]
    assert np.isfinite(largest).all()
    monkeypatch.setattr(walls_module, limit, most)
    short = farthest_inside(chosen, walls, forms, start)[0]
    assert (short >= largest - 1e-9).all()
    assert np.isinf(short).any()
    found = on_faces(chosen, walls, forms)
    assert (found.value[found.settled] >= largest[found.settled] - 1e-6).all()


def test_without_its_dual_gap_a_search_that_is_cut_short_would_fall_short(monkeypatch) -> None:
    """The control: points inside, taken for the largest."""
    chosen, forms = weights()
    walls, start = behind(chosen, BOX)
    largest = farthest_inside(chosen, walls, forms, start)[0]
    monkeypatch.setattr(walls_module, "STEPS", 2)
    inside = np.sum(farthest_inside(chosen, walls, forms, start)[1] * forms, axis=1)
    assert (inside < largest - 1e-3).any()


def simplex(with_sums: bool) -> tuple[PredictorLikelihood, tuple[np.ndarray, np.ndarray]]:
    """Chances that mix parts in [0, 1] by the weights of two simplexes, of whose last entries 1
    less the others is left; with or without what their supports say of sums.
    """
    rng = np.random.default_rng(4)
    parts, first = rng.uniform(0.0, 1.0, (50, 3)), rng.random(50) < 0.5
    less = parts[:, :2] - parts[:, 2:]
    sums = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    mixed = replace(
        CHANCES,
        features=lambda x, a: x[:, :4],
        offset=lambda x, a: x[:, 4],
        walls=((sums,), (np.ones(2),)) if with_sums else ((), ()),
    )
    rows = np.hstack([less * first[:, None], less * ~first[:, None], parts[:, 2:]])
    data = PredictorLikelihood.empty(mixed, 4).append(rows, np.zeros(50, int), np.ones(50))
    return data, (np.zeros(4), np.ones(4))


def test_the_domain_of_a_link_is_a_wall_only_where_supports_leave_a_doubt() -> None:
    data, box = simplex(with_sums=True)
    assert len(Walls.of(*box, data).limits) == 10  # the box and two sums
    assert len(Walls.of(*box, simplex(with_sums=False)[0]).limits) > 20


def test_what_walls_promise_of_forms_is_never_less_than_a_linear_program_finds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        low = rng.uniform(-2, 0, 4)
        high = low + rng.uniform(0.5, 2, 4)
        walls = Walls(rng.normal(size=(3, 4)), rng.uniform(0.0, 2.0, 3))
        forms = rng.normal(size=(6, 4))
        promised = walls.ends(forms, (low, high))
        for form, most in zip(forms, promised):
            found = linprog(
                -form, A_ub=walls.normals, b_ub=walls.limits, bounds=list(zip(low, high))
            )
            assert found.status == 2 or most >= -found.fun - 1e-9
