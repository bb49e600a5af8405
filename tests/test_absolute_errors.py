"""How far a linear form goes over a Laplace's set: the fast method against a linear program."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gedppl.learning import absolute_errors as laplace
from gedppl.learning import reach
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.programs.contract import LinearPredictor

OPEN = (np.full(3, -np.inf), np.full(3, np.inf))


def a_set(kind: str, n: int = 70, kappa: float = 4.0):
    """A Laplace's set with 3 coefficients, and forms in the span of its rows."""
    rng = np.random.default_rng(len(kind))
    phi = rng.normal(size=(n, 3))
    if kind == "arms":
        phi = np.eye(3)[rng.integers(0, 3, n)]
    if kind == "two of three":
        phi[:, 2] = phi[:, 0] - phi[:, 1]
    if kind.startswith("one"):  # one coefficient, that some rows do not have
        phi = phi[:, :1] * (np.arange(n) % 9 > 0)[:, None] * np.array([1.0, -2.0, 0.0])
    if kind == "units":
        phi = phi * np.array([1e-4, 1.0, 1e5])
    scale = rng.uniform(0.2, 3.0, n) if kind == "scales" else np.full(n, 0.5)
    truth = np.linalg.lstsq(phi, phi @ np.array([0.5, -1.0, 2.0]), rcond=None)[0]
    y = phi @ truth + scale * rng.laplace(size=n)
    if kind.endswith("ties"):
        y = np.round(y, 0)
    predictor = LinearPredictor(
        "Laplace",
        "identity",
        features=lambda x, a: x[:, :3],
        offset=lambda x, a: np.zeros(len(a)),
        fixed=lambda x, a: {"scale": x[:, 3]},
    )
    data = PredictorLikelihood.empty(predictor, 3).append(
        np.column_stack([phi, scale]), np.zeros(n, int), y
    )
    # not the best fit, as in a run
    centre = truth + 0.02 * np.linalg.pinv(phi) @ (scale * rng.normal(size=n))
    return SimpleNamespace(data=data, region=SimpleNamespace(centre=centre, kappa=kappa)), phi


SEARCHED = ["plain", "arms", "two of three", "units", "scales", "ties"]
KINDS = [*SEARCHED, "one", "one, ties"]  # one coefficient is solved without a search


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_that_of_the_linear_program(kind: str) -> None:
    chosen, phi = a_set(kind)
    both = np.vstack([phi[:5], -phi[:5]])
    bound, at, near = laplace.farthest_within_errors(chosen, both)
    assert near.all()
    centre = both @ chosen.region.centre
    for form, found, member, middle in zip(both, bound, at, centre):
        theirs = laplace.absolute_errors(chosen, form, OPEN)[0]
        assert found - middle == pytest.approx(theirs - middle, rel=1e-6)
        assert found >= theirs - 1e-7 * (theirs - middle)
        assert form @ member == pytest.approx(found, rel=1e-8, abs=1e-8 * (found - middle))


@pytest.mark.parametrize("kind", SEARCHED)
def test_a_bound_is_one_however_early_the_search_ends(kind: str, monkeypatch) -> None:
    """What is returned is a dual value: no member goes beyond it after any number of steps."""
    chosen, phi = a_set(kind)
    theirs = np.array([laplace.absolute_errors(chosen, form, OPEN)[0] for form in phi[:4]])
    for steps in (1, 2, 4, 8):
        monkeypatch.setattr(laplace, "ERROR_STEPS", steps)
        bound, _, _ = laplace.farthest_within_errors(chosen, phi[:4])
        assert (bound >= theirs - 1e-7 * (1 + np.abs(theirs))).all()
    monkeypatch.setattr(laplace, "ERROR_STEPS", 1)
    assert not laplace.farthest_within_errors(chosen, phi[:4])[2].any()


def test_a_box_that_cuts_the_set_counts() -> None:
    """Beyond its box a member does not count: without the question the bound would be wider."""
    chosen, phi = a_set("plain")
    free, at, _ = laplace.farthest_within_errors(chosen, phi[:1])
    middle = chosen.region.centre
    box = (
        np.minimum(at[0], middle) * 0.5 + 0.5 * middle,
        np.maximum(at[0], middle) * 0.5 + 0.5 * middle,
    )
    value, theta, solved = np.full(1, np.inf), np.zeros((1, 3)), np.zeros(1, bool)
    reach._solve_errors(chosen, np.array([0]), solved, phi[:1], value, theta, box)
    assert solved[0]
    assert value[0] == pytest.approx(laplace.absolute_errors(chosen, phi[0], box)[0], rel=1e-9)
    assert value[0] < free[0] - 1e-3 * (free[0] - phi[0] @ middle)


def test_a_system_without_a_solution_leaves_a_valid_bound(monkeypatch) -> None:
    """Whatever multipliers the method ends with, they bound the form from above."""
    chosen, phi = a_set("plain")
    exact, _, _ = laplace.farthest_within_errors(chosen, phi[:4])
    solve, asked = np.linalg.solve, []

    def singular(system, side):
        asked.append(len(system))
        if len(asked) > 3:
            raise np.linalg.LinAlgError
        return solve(system, side)

    monkeypatch.setattr(np.linalg, "solve", singular)
    bound, _, near = laplace.farthest_within_errors(chosen, phi[:4])
    assert len(asked) == 4
    assert np.isfinite(bound).all()
    assert (bound >= exact - 1e-9).all()
    assert not near.any()


def test_the_ends_of_a_line_are_where_errors_reach_the_limit() -> None:
    """Also where a column is nearly nothing: its kink lies far out, and takes no digits away."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 7, 40):
        column, error = rng.normal(size=n), rng.normal(size=n)
        column[n // 2 :: 5] *= 1e-18
        column[0] = 1.0
        limit = np.abs(error).sum() + 2.0
        for end in laplace.ends_of_line(column, error, limit):
            assert np.abs(error - column * end).sum() == pytest.approx(limit, rel=1e-12)
