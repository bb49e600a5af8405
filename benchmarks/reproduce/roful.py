"""ROFUL and GenOP on ten directions (Hutchinson, Turan, Alizadeh, AISTATS 2024; their public code).

d = 2, ten random unit directions (drawn again until one has positive reward), theta, a ~ U(-1,
1)^2, sigma = .1, lambda = 1, delta = .01, S = sqrt(2), both algorithms on the same noise. Limit b ~
U(.25, 1) with T = 5e4 ("short") or U(.05, .25) with T = 1e5 ("long"). 30 trials, drawn in the
published order from the published seed 0, all advanced together.

    beta_t = sigma sqrt(d log((1 + t / lambda) / (delta / 2))) + sqrt(lambda) S
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cells import Cell

D, K, SIGMA, RIDGE, DELTA, S = 2, 10, 0.1, 1.0, 0.01, 2.0**0.5
SHORT, LONG = (0.25, 1.0, 50_000), (0.05, 0.25, 100_000)
PUBLISHED = {"short": (145.1, 432.4), "long": (2324.0, 4109.0)}  # ROFUL, GenOP


@dataclass(frozen=True)
class Trials:
    """N problems: theta, a (N, d), limit (N,), directions (N, K, d), noise (N, T, 2)."""

    theta: np.ndarray
    a: np.ndarray
    limit: np.ndarray
    directions: np.ndarray
    noise: np.ndarray

    @staticmethod
    def draw(n: int, low: float, high: float, rounds: int, horizon: int, seed: int) -> Trials:
        """In the order in which the published script draws them; `horizon` is its T, of which
        `rounds` are kept.
        """
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(n):
            theta, a, limit = rng.uniform(-1, 1, D), rng.uniform(-1, 1, D), rng.uniform(low, high)
            while True:
                directions = rng.normal(size=(K, D))
                directions /= np.linalg.norm(directions, axis=1, keepdims=True)
                if (directions @ theta > 0).any():
                    break
            found.append((theta, a, limit, directions, rng.standard_normal((horizon, 2))[:rounds]))
        return Trials(*(np.array(part) for part in zip(*found)))


def fitting(cost: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """The largest scale in [0, 1] at which a cost per unit (N, ...) keeps the limit (N,)."""
    at = limit.reshape(len(limit), *[1] * (cost.ndim - 1))
    return np.where(cost > 0, np.minimum(1.0, at / np.where(cost > 0, cost, 1.0)), 1.0)


def regrets(trials: Trials, restrained: bool) -> tuple[np.ndarray, np.ndarray]:
    """Final regret and infeasible rounds of every trial, by ROFUL (`restrained`) or GenOP."""
    n, rounds = trials.noise.shape[:2]
    rows, directions, limit = np.arange(n), trials.directions, trials.limit
    true = directions @ trials.theta[:, :, None]
    best = (fitting((directions @ trials.a[:, :, None])[:, :, 0], limit) * true[:, :, 0]).max(
        axis=1
    )
    gram, gains, harms = np.tile(RIDGE * np.eye(D), (n, 1, 1)), np.zeros((n, D)), np.zeros((n, D))
    lost, broken = np.zeros((2, n))
    # directions have length one
    kappa, known = (1 + 2 * S / limit)[:, None], np.minimum(1.0, limit / S)
    for t in range(rounds):
        beta = SIGMA * np.sqrt(D * np.log((1 + t / RIDGE) / (DELTA / 2))) + RIDGE**0.5 * S
        inverse = np.linalg.inv(gram)
        half = directions @ inverse
        width = beta * np.sqrt((half * directions).sum(axis=2))
        reward = (half @ gains[:, :, None])[:, :, 0]
        cost = (half @ harms[:, :, None])[:, :, 0]
        if restrained:
            scale = fitting(cost - width, limit)
            value = scale * (reward + width)
        else:
            scale = fitting(cost + width, limit)
            value = scale * (reward + kappa * width)
        arm = value.argmax(axis=1)
        at = np.where(value[rows, arm] < 0, 0.0, scale[rows, arm])
        # the optimistic point is at * direction; what is played is the larger of what is sure of it
        if restrained:
            pessimistic = at * (cost + width)[rows, arm]
            shrink = np.maximum(
                np.minimum(1.0, known / np.where(at > 0, at, 1.0)), fitting(pessimistic, limit)
            )
            at = at * np.where(at > 0, shrink, 1.0)
        x = at[:, None] * directions[rows, arm]
        r, c = (x * trials.theta).sum(axis=1), (x * trials.a).sum(axis=1)
        gram += x[:, :, None] * x[:, None, :]
        gains += x * (r + SIGMA * trials.noise[:, t, 0])[:, None]
        harms += x * (c + SIGMA * trials.noise[:, t, 1])[:, None]
        lost += best - r
        broken += c > limit + 1e-9
    return lost, broken


def cells(rounds: int | None, runs: int | None, seed: int) -> list[Cell]:
    """The short setting: ROFUL and GenOP on the published trials. The published numbers are for
    seed 0, 30 trials, T = 5e4.
    """
    low, high, horizon = SHORT
    rounds, runs = rounds or horizon, runs or 30
    trials = Trials.draw(runs, low, high, rounds, horizon, seed)
    same = rounds == horizon and runs == 30
    found = []
    for i, name in enumerate(("ROFUL", "GenOP")):
        lost, broken = regrets(trials, name == "ROFUL")
        note = (
            f"b ~ U({low}, {high}), T={rounds}, {runs} trials, {int(broken.sum())} infeasible "
            "rounds"
        )
        known = PUBLISHED["short"][i] if same else None
        found.append(
            Cell(
                "roful",
                name,
                None,
                float(lost.mean()),
                known,
                float(lost.std() / np.sqrt(runs)),
                note,
            )
        )
    return found
