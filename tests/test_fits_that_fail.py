"""Fits that start or end in a bad place: tied cutpoints, funnels, separable data, and what is said of them."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pyro
import pyro.distributions as pd
import pytest
import torch

import gedppl as ged
from gedppl.oracles.ordered import apart

# cutpoints that start in one place ------------------------------------------------------------------------------------------


def tied_n(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", nd.OrderedLogistic(x @ w, numpyro.param("c", jnp.zeros(3))), obs=y)


def tied_p(x, a, y=None):
    w = pyro.param("w", torch.zeros(2))
    pyro.sample("y", pd.OrderedLogistic(x @ w, pyro.param("c", torch.zeros(3))), obs=y)


def stacked_n(x, a, y=None):
    cuts = jnp.stack([numpyro.param(name, 0.0) for name in ("c0", "c1", "c2")])
    numpyro.sample("y", nd.OrderedLogistic(x @ numpyro.param("w", jnp.zeros(2)), cuts), obs=y)


def bent_n(x, a, y=None):
    """Not affine, so the program itself is asked; and no density where it starts."""
    cuts = jnp.stack([numpyro.param(name, 0.0) for name in ("c0", "c1", "c2")])
    numpyro.sample("y", nd.OrderedLogistic(x @ numpyro.param("w", jnp.zeros(2)), jnp.sinh(cuts)), obs=y)


def ordered_rows(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(n, 2))
    return x, np.zeros(n, int), np.digitize(x @ [1.0, -0.5] + rng.logistic(size=n), [-1.0, 0.0, 1.0]).astype(float)


@pytest.mark.parametrize("model", [tied_n, tied_p, stacked_n])
def test_tied_cutpoints_come_apart(model) -> None:
    """From tied edges the likelihood is minus infinity and has no slope: the fit stayed, and the class was called wrong."""
    x, a, y = ordered_rows(80)
    found = ged.confidence_set(ged.density_class(model, example=(x, a)), x, a, y, growth=1.5)
    assert found.status.startswith("converged")
    bounds = found.bounds(ged.probability(above=1.5), np.zeros((1, 2)), 1)
    assert bounds.guaranteed
    assert not found.learner.bounds(ged.probability(above=1.5), np.zeros((1, 2)), 1).empty
    assert 0.1 < bounds.lower[0, 0] < 0.5 < bounds.upper[0, 0] < 0.9


def test_a_program_without_density_at_its_start_is_fitted_from_elsewhere() -> None:
    x, a, y = ordered_rows(80)
    found = ged.confidence_set(ged.density_class(bent_n, example=(x, a)), x, a, y, growth=3.0)
    assert found.status.startswith("converged")
    assert "misspecified" not in found.bounds(ged.probability(above=1.5), np.zeros((1, 2)), 1).note


def test_edges_are_moved_no_more_than_needed() -> None:
    gaps = np.array([[-1.0, 1.0, 0.0, 0.0], [0.0, -1.0, 1.0, 0.0]])  # c1 - c0, c2 - c1
    np.testing.assert_allclose(np.diff(apart(gaps, np.zeros(3))), 1.0)
    kept = np.array([0.0, 0.2, 0.3])
    assert apart(gaps, kept) is kept
    near = apart(np.array([[0.0, 0.0, 0.0, 0.4], [-1.0, 1.0, 0.0, 0.0]]), np.zeros(3))  # one gap is fixed at 0.4
    assert near[1] - near[0] >= 0.4 - 1e-9
