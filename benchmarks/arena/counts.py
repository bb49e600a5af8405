"""Environments whose outcomes are yes or no, or counts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro

import gedppl as ged

from .base import Bernoulli, Family, Normal, Poisson, World, arms_world, feature_world, limit_at

DOSES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


def doses_of_three(rng: np.random.Generator) -> np.ndarray:
    """Features (5, 4): an intercept and three amounts in [0, 1], which are 0 for the safe
    action.
    """
    phi = np.column_stack([np.ones(5), rng.random((5, 3))])
    phi[0, 1:] = 0.0
    return phi


def logistic(seed: int = 0) -> World:
    """Success and harm of five offers, both logistic in three amounts; 5 actions, 4 shared
    coefficients.
    """
    rng = np.random.default_rng([301, seed])
    theta = np.append(-1.5, rng.uniform(0.3, 2.5, 3))
    mu = np.append(-2.2, rng.uniform(0.3, 2.5, 3))
    family = Bernoulli()
    return feature_world(
        doses_of_three,
        theta,
        mu,
        limit_at(doses_of_three, theta, mu, rng, family, 0.05),
        family,
        bound=6.0,
    )


def logistic_arms(seed: int = 0) -> World:
    """Success and harm of four offers, each logistic in an intercept and two amounts with
    coefficients of its own; harm at most 0.4, and 0.1 for the safe offer.
    """
    rng = np.random.default_rng([304, seed])
    W, V = (
        np.column_stack([rng.uniform(*base, 4), rng.uniform(-0.5, 1.5, (4, 2))])
        for base in ((-0.5, 1.0), (-2.0, -0.5))
    )
    W[0], V[0] = [-1.5, 0.0, 0.0], [np.log(0.1 / 0.9), 0.0, 0.0]
    return arms_world(lambda rng: np.append(1.0, rng.random(2)), W, V, 0.4, Bernoulli(), bound=6.0)


def counts(seed: int = 0) -> World:
    """A linear gain with noise 0.1, and a Poisson count of incidents whose log-rate is linear in
    the same amounts.
    """
    rng = np.random.default_rng([302, seed])
    theta = np.append(0.1, rng.uniform(0.05, 0.3, 3))
    mu = np.append(-1.5, rng.uniform(0.2, 1.2, 3))
    tau = limit_at(doses_of_three, theta, mu, rng, Poisson(), 0.1)
    return feature_world(
        doses_of_three,
        theta,
        mu,
        tau,
        Normal(0.1),
        Poisson(),
        bound=6.0,
        ranges=((0.0, 1.0), (0.0, 10.0)),
    )


@lru_cache
def group_class(family: Family, bound: float) -> Any:
    """eta = base_g + slope_g dose, the groups one-hot in the context."""

    def model(x: Any, a: Any, y: Any = None) -> None:
        base = numpyro.param("base", jnp.zeros(3))
        slope = numpyro.param("slope", jnp.zeros(3))
        numpyro.sample("y", family.observed(x @ base + jnp.asarray(DOSES)[a] * (x @ slope)), obs=y)

    return ged.density_class(
        model, bounds={"base": bound, "slope": bound}, example=(np.eye(3)[:1], np.zeros(1, int))
    )


def toxicity(seed: int = 0) -> World:
    """Three groups of patients and six doses: response and toxicity are logistic in the dose, with
    base and slope by group.

    Toxicity at most 0.3 at every patient; the lowest dose's is known. The groups bear different
    doses (about the fifth, the fourth and the third).
    """
    rng = np.random.default_rng([303, seed])
    harm = np.concatenate(
        [[-3.2, -2.8, -2.4], np.array([2.6, 3.0, 3.6]) + rng.uniform(-0.2, 0.2, 3)]
    )
    gain = np.concatenate([rng.uniform(-2.0, -1.5, 3), rng.uniform(2.0, 3.0, 3)])

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.eye(3)[rng.integers(3)]

    def rows(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.tile(x, (6, 1)), np.outer(DOSES, x)], axis=1)

    family = Bernoulli()
    return World(
        draw,
        rows,
        gain,
        harm,
        0.3,
        family,
        family,
        lambda: (group_class(family, 8.0), group_class(family, 8.0)),
    )
