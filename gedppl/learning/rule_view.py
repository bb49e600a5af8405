"""What a rule that sets a radius may look at: divergences, the information, simulated refits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, log_affinity, total_variation
from gedppl.errors import NoClosedFormError
from gedppl.learning.likelihoods import Likelihood
from gedppl.learning.radius import View
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass


def summed_divergence(
    cls: DensityClass, rows: Rows, centre: np.ndarray, name: str
) -> Callable[[np.ndarray], np.ndarray]:
    """theta (M, D) -> sum_i D^2(centre, theta)_i (M,)."""

    def total(theta: np.ndarray) -> np.ndarray:
        p = cls.density_at(centre, rows.x, rows.a)
        most = max(1, 200_000 // max(rows.n, 1))
        parts = [
            cls.density_at(theta[i : i + most], rows.x, rows.a) for i in range(0, len(theta), most)
        ]
        return np.concatenate([row_divergence(name, p, q).sum(axis=-1) for q in parts])

    return total


def row_divergence(name: str, p: Density, q: Density) -> np.ndarray:
    """D^2 by row."""
    if name == "total_variation2":
        return total_variation(p, q).value ** 2
    if name == "l2":
        return l2_squared(p, q).value
    squared = hellinger2(p, q).value
    if name == "hellinger2":
        return squared
    try:  # H^2 rounds to 1 where the affinity is tiny
        return -np.asarray(log_affinity(p, q))
    except NoClosedFormError:
        found: np.ndarray = -np.log1p(-np.minimum(squared, 1 - 1e-15))
        return found


def view_of(
    cls: DensityClass, data: Likelihood, rows: Rows, centre: np.ndarray, delta: float, seed: int
) -> View:
    """What a radius rule may look at, for a parametric class."""
    return View(
        n=rows.n,
        delta=delta,
        dim=cls.dim,
        information=data.information(centre),
        scale=data.noise_scale,
        summed_divergence=lambda name, theta: summed_divergence(cls, rows, centre, name)(theta),
        refits=lambda n: data.simulated_fits(centre, n, seed + 11),
    )
