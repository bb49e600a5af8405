"""Linear-Gaussian environments, noise 0.1 unless said otherwise. Each function takes a seed,
which draws the truth.
"""

from __future__ import annotations

import numpy as np

from .base import SAMPLE, Normal, World, arms_world, feature_world, limit_at, unit

NOISE = Normal(0.1)


def shared(seed: int = 0, K: int = 5, d: int = 5) -> World:
    """Random nonnegative unit features, theta and mu shared; the safe action is a little of the
    cheapest axis.
    """
    rng = np.random.default_rng([101, seed])
    theta, mu = unit(np.abs(rng.normal(size=(2, d))))
    cheapest = 0.3 * np.eye(d)[mu.argmin()]

    def draw(rng: np.random.Generator) -> np.ndarray:
        phi = unit(np.abs(rng.normal(size=(K, d))))
        phi[0] = cheapest
        return phi

    return feature_world(draw, theta, mu, limit_at(draw, theta, mu, rng), NOISE)


def wide(seed: int = 0) -> World:
    """The same with K = 20 actions and d = 20 features."""
    return shared(seed + 1000, K=20, d=20)


def _intercept(seed: int) -> World:
    rng = np.random.default_rng([102, seed])
    theta, mu = (np.append(0.6, 0.35 * unit(rng.normal(size=4))) for _ in range(2))

    def draw(rng: np.random.Generator) -> np.ndarray:
        phi = np.concatenate(
            [np.ones((5, 1)), 0.9 * unit(rng.normal(size=(5, 4)))], axis=1
        ) / np.sqrt(1.81)
        phi[0] = 0.1 * np.eye(5)[0]
        return phi

    return feature_world(draw, theta, mu, limit_at(draw, theta, mu, rng), NOISE)


def intercept(seed: int = 0) -> World:
    """An intercept and four signed features; the safe action is nearly nothing of anything."""
    return _intercept(seed)


def tight(seed: int = 0) -> World:
    """The same with little room: the limit is 0.1 above the safe action's cost, below nearly
    every other action's.
    """
    world = _intercept(seed)
    world.tau = float(0.06 + 0.1)
    return world


def rotated(seed: int = 0) -> World:
    """One context vector, each action a cyclic shift of it."""
    rng = np.random.default_rng([103, seed])
    theta, mu = unit(rng.random((2, 5)))

    def draw(rng: np.random.Generator) -> np.ndarray:
        x = unit(rng.random(5))
        phi = np.stack([np.roll(x, k) for k in range(5)])
        phi[0] = 0.2 / np.sqrt(5)
        return phi

    return feature_world(draw, theta, mu, limit_at(draw, theta, mu, rng), NOISE)


def two_dims(seed: int = 0) -> World:
    """d = 2 with 10 arms: directions spread over the quarter circle, of random lengths; the
    first is nearly nothing.
    """
    rng = np.random.default_rng([104, seed])
    theta, mu = unit(np.abs(rng.normal(size=(2, 2))))

    def draw(rng: np.random.Generator) -> np.ndarray:
        angle = (np.arange(10) + rng.random(10)) * np.pi / 20
        phi = rng.uniform(0.5, 1.0, (10, 1)) * np.column_stack([np.cos(angle), np.sin(angle)])
        phi[0] = 0.1 * unit(np.ones(2))
        return phi

    return feature_world(draw, theta, mu, limit_at(draw, theta, mu, rng), NOISE)


def disjoint(seed: int = 0, K: int = 4) -> World:
    """Nothing shared: an intercept and two slopes for each of 4 actions; the safe action brings
    and costs 0.1 everywhere.
    """
    rng = np.random.default_rng([105, seed])
    W, V = (
        np.column_stack([rng.uniform(0.2, 0.5, K), rng.uniform(-0.1, 0.25, (K, 2))])
        for _ in range(2)
    )
    W[0] = V[0] = [0.1, 0.0, 0.0]

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.append(1.0, rng.random(2))

    x = np.column_stack([np.ones(SAMPLE), rng.random((SAMPLE, 2))])
    cost = (x @ V.T)[np.arange(SAMPLE), (x @ W.T).argmax(1)]
    return arms_world(draw, W, V, float(np.median(cost)), NOISE, bound=2.0)


def treatments(seed: int = 0) -> World:
    """The disjoint arms of models/bandit.py: one that is best in 40% of contexts is easily
    starved. One truth for all seeds.
    """
    W = np.array([[0.2, 0.0, 0.0], [0.3, 0.4, 0.0], [0.5, 0.0, 0.4], [0.9, 0.0, -0.2]])
    V = np.array([[0.1, 0.0, 0.0], [0.2, 0.0, 0.2], [0.3, 0.4, 0.0], [0.6, 0.2, 0.1]])
    return arms_world(lambda rng: np.append(1.0, rng.random(2)), W, V, 0.4, NOISE, bound=2.0)


def lock_in(seed: int = 0) -> World:
    """The best arm hides behind worse ones that noisy first fits like better: gains 0.5, 0.5,
    0.5, 0.6 with noise 0.5; costs are all 0.1 with noise 0.1, far under the limit, so that only
    exploration counts. One truth for all seeds.
    """
    W = np.array([[0.1], [0.5], [0.5], [0.5], [0.6]])
    V = np.full((5, 1), 0.1)
    return arms_world(lambda rng: np.ones(1), W, V, 0.5, Normal(0.5), NOISE, bound=2.0)
