"""The settings of published experiments as environments (the experiments themselves:
``benchmarks/published.py``).
"""

from __future__ import annotations

import numpy as np

from .base import Normal, World, arms_world, feature_world, unit


def opb(seed: int = 0, tau: float = 0.5) -> World:
    """Pacchiano et al. 2021: 4 arms, no context, noise 0.1; the paper clips outcomes to [0, 1],
    here they are not.
    """
    reward, cost = np.array([[0.1, 0.2, 0.4, 0.7], [0.0, 0.4, 0.5, 0.2]])[:, :, None]
    return arms_world(lambda rng: np.ones(1), reward, cost, tau, Normal(0.1), bound=2.0)


def oplb(seed: int = 0, d: int = 5, tau: float = 0.5) -> World:
    """The same paper's linear bandit: d cyclic shifts of flip(v)/|v|, v = 0..d-1, beside the
    zero action; noise 1.
    """
    theta = unit(np.arange(d, dtype=float))
    arms = np.vstack([np.zeros(d), *(np.roll(theta[::-1], k) for k in range(d))])
    return feature_world(
        lambda rng: arms,
        theta,
        theta[::-1].copy(),
        tau,
        Normal(1.0),
        ranges=((0.0, 1.0), (0.0, 1.0)),
    )


def roful(seed: int = 0, low: float = 0.25, high: float = 1.0) -> World:
    """Hutchinson et al. 2024: d = 2, zero and ten unit directions, coefficients uniform on (-1,
    1)^2, limit on (low, high).
    """
    rng = np.random.default_rng([601, seed])
    angle = 2 * np.pi * np.arange(10) / 10
    arms = np.vstack([np.zeros(2), np.column_stack([np.cos(angle), np.sin(angle)])])
    theta, mu = rng.uniform(-1, 1, (2, 2))
    limit = 2.0**0.5
    return feature_world(
        lambda rng: arms,
        theta,
        mu,
        float(rng.uniform(low, high)),
        Normal(0.1),
        bound=limit,
        ranges=((-limit, limit), (-limit, limit)),
    )


def hp_ucb(seed: int = 0, d: int = 5, tau: float = 0.5) -> World:
    """Dragazis and Pacchiano 2026, the expected-cost part: unit theta, mu and features of ten
    actions, noise 1.
    """
    rng = np.random.default_rng([602, seed])
    theta, mu = unit(rng.normal(size=(2, d)))

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.vstack([np.zeros(d), unit(rng.normal(size=(10, d)))])

    return feature_world(draw, theta, mu, tau, Normal(1.0), ranges=((-1.0, 1.0), (-1.0, 1.0)))
