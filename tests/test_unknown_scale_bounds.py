"""Declared bounds of coefficients and scales cut the bounds of outcomes with unknown scale."""

from __future__ import annotations

import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.learning import learner_for

X, N = np.zeros((1, 1)), 12
Y = np.random.default_rng(0).normal(0.3, 0.7, N)


def normal(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([1]).to_event(1))
    sigma = numpyro.sample("sigma", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.Normal(w[a], sigma), obs=y)


def lognormal(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([1]).to_event(1))
    sigma = numpyro.sample("sigma", nd.HalfNormal(1.0))
    numpyro.sample("y", nd.LogNormal(w[a], sigma), obs=y)


TAUGHT: dict[tuple[object, str, int], object] = {}  # by model, bounds and rows: many tests ask one


def taught(model, bounds, n=N):
    key = (model, str(bounds), n)
    if key not in TAUGHT:
        TAUGHT[key] = teach(model, bounds, n)
    return TAUGHT[key]


def teach(model, bounds, n):
    cls = ged.density_class(model, example=(X, np.zeros(1, int)), bounds=bounds)
    learner = learner_for(cls, delta=0.1)
    y = Y if model is normal else np.exp(Y)
    for part in np.array_split(np.arange(n), 3):
        learner = learner.absorb(np.zeros((len(part), 1)), np.zeros(len(part), int), y[part])
        learner = learner.refit()
    return learner


FUNCTIONALS = (
    ged.mean(-9, 9e9),
    ged.probability(above=0.9),
    ged.quantile(0.8, -9, 9e9),
    ged.cvar(0.8, -9, 9e9),
    ged.variance(9e9),
    ged.second_moment(9e9),
)
BOXES = (
    {"sigma": (0.4, 0.62)},
    {"w": (-0.1, 0.35)},
    {"w": (0.2, 0.5), "sigma": (0.8, 0.9)},
)


def by_brute_force(learner, functional, low, high):
    kept = learner.processes[0].kept[0]
    mu = np.unique(np.append(np.linspace(-1.5, 2.0, 701), [low[0], high[0]]))
    sigma = np.unique(np.append(np.linspace(0.25, 3.0, 801), [low[1], high[1]]))
    mu = mu[(mu >= low[0]) & (mu <= high[0])]
    sigma = sigma[(sigma >= low[1]) & (sigma <= high[1])]
    m, s = (part.ravel() for part in np.meshgrid(mu, sigma))
    (fit,) = kept.fits
    errors = fit.rss + fit.n * (m - fit.coefficients[0]) ** 2
    inside = -fit.n * np.log(s) - 0.5 * errors / s**2 >= kept.threshold
    settings = np.column_stack([m, np.log(s)])[inside]
    values = learner._values(functional, settings, X, np.zeros(1, int))[:, 0]
    return values.min(), values.max()


# half of all, in which every two of a model, a functional and a box meet; the others are slow
CASES = [
    pytest.param(
        model,
        functional,
        bounds,
        id=f"{bounds}-{functional.name}-{model.__name__}",
        marks=pytest.mark.slow if (i + j + k) % 2 else [],
    )
    for i, model in enumerate((normal, lognormal))
    for j, functional in enumerate(FUNCTIONALS)
    for k, bounds in enumerate(BOXES)
]


@pytest.mark.parametrize(("model", "functional", "bounds"), CASES)
def test_no_bound_leaves_out_a_member_inside_the_declared_bounds(model, functional, bounds):
    learner, free = taught(model, bounds), taught(model, None)
    found, wide = (one.bounds(functional, X, 1) for one in (learner, free))
    low = [bounds.get("w", (-9.0, 9.0))[0], bounds.get("sigma", (0.05, 9.0))[0]]
    high = [bounds.get("w", (-9.0, 9.0))[1], bounds.get("sigma", (0.0, 9.0))[1]]
    least, most = by_brute_force(learner, functional, low, high)
    ours = found.free_lower[0, 0], found.free_upper[0, 0]
    assert found.guaranteed
    slip = 1e-9 * (1 + abs(most))
    assert ours[0] <= least + slip
    assert ours[1] >= most - slip
    assert ours[0] >= wide.free_lower[0, 0] - slip
    assert ours[1] <= wide.free_upper[0, 0] + slip
    if "w" not in bounds:  # of the scale alone the cut is exact
        room = 0.01 * (most - least) + 1e-6
        assert ours[0] >= least - room
        assert ours[1] <= most + room


def test_declared_bounds_make_a_bound_narrower() -> None:
    """The control: without the cut these are equal."""
    found, wide = (
        taught(normal, bounds).bounds(ged.cvar(0.8, -9, 9), X, 1)
        for bounds in ({"w": (-0.1, 0.35), "sigma": (0.4, 0.62)}, None)
    )
    assert found.upper[0, 0] < wide.upper[0, 0] - 0.3


def test_a_box_bounds_a_mean_before_any_row() -> None:
    cls = ged.density_class(normal, example=(X, np.zeros(1, int)), bounds={"w": (-0.2, 0.5)})
    found = learner_for(cls, delta=0.1).bounds(ged.mean(-9, 9), X, 1)
    assert (found.lower[0, 0], found.upper[0, 0]) == (-0.2, 0.5)


def test_bounds_that_the_rows_exclude_leave_no_parameter() -> None:
    found = taught(normal, {"sigma": (5.0, 6.0)}).bounds(ged.mean(-9, 9), X, 1)
    assert found.empty
    assert not found.guaranteed
