"""Densities that the divergence tests share."""

from __future__ import annotations

import numpy as np

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, total_variation

DIVERGENCES = {
    "hellinger2": hellinger2,
    "total_variation": total_variation,
    "l2_squared": l2_squared,
}


def normal(loc, scale=1.0):
    return Density("Normal", {"loc": np.asarray(loc), "scale": np.asarray(scale)})


def gamma(concentration, rate):
    return Density("Gamma", {"concentration": concentration, "rate": rate})


def beta(concentration1, concentration0):
    return Density("Beta", {"concentration1": concentration1, "concentration0": concentration0})


def mixture(weights, locs, scales):
    return Density("Mixture", {"probs": np.asarray(weights), "components": normal(locs, scales)})


def batch(family, pairs):
    return tuple(
        Density(family, {k: np.array([pair[i][k] for pair in pairs]) for k in pairs[0][i]})
        for i in (0, 1)
    )
