"""OPLB and Safe-LTS on scaled arms (same paper and code; arXiv 2401.08016).

theta = v/|v|, v = (0..d-1), mu = flip(theta); the d arms are the cyclic shifts of flip(v)/|v| (the
columns of the code's strided matrix run backwards; shifts of v itself make another, much easier
problem), each played at a scale s in [0, 1]; noise N(0, 1); lambda = .1. The scale is the largest
that keeps s UCB_cost <= tau; cost radius

    2 sqrt(2 log(det(V)^1/2 det(lambda I)^-1/2 / delta)) + sqrt(lambda) |mu|,
        delta = 1 / (1 + number of logged rounds),

reward radius the same with its first term divided by min(1, tau). OPLB plays the arm of largest s
UCB_reward; Safe-LTS draws theta ~ N(theta_hat, d radius^2 V^-1) instead. Round 1 is a random arm at
scale tau / (2 max cost).

How often a round is logged matters, because delta is read off the length of the log: the more
entries, the wider both radii. The public code logs every 1,000th round in its script for T = 1e7,
and every 100th in the one for T = 1e6 (`logging_frequency`): 10,000 entries in both. So here.
"""

from __future__ import annotations

import numpy as np

from .cells import Cell

RIDGE, ENTRIES = 0.1, 10_000  # ENTRIES: of the log at the end
PUBLISHED = {  # (rounds, d, tau) -> OPLB, Safe-LTS
    (10_000_000, 5, 0.2): (418_778.0, 1_036_557.0),
    (10_000_000, 5, 0.5): (204_541.0, 627_601.0),
    (10_000_000, 5, 0.8): (11_188.0, 200_465.0),
    (10_000_000, 10, 0.2): (970_631.0, 1_406_705.0),
    (10_000_000, 10, 0.5): (296_117.0, 1_889_608.0),
    (10_000_000, 10, 0.8): (78_393.0, 805_453.0),
    (1_000_000, 5, 0.5): (68_421.0, 225_955.0),
    (1_000_000, 5, 0.8): (6_025.0, 74_233.0),
    (1_000_000, 10, 0.5): (144_974.0, 372_915.0),
}
TAUS = (0.5, 0.8)


def shifts(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """theta, mu (d,) and the arms (d, d), one a row."""
    v = np.arange(d) / np.linalg.norm(np.arange(d))
    return v, v[::-1].copy(), np.stack([np.roll(v[::-1], k) for k in range(d)])


def logged_every(rounds: int) -> int:
    """Rounds between two entries of the log."""
    return max(1, rounds // ENTRIES)


def regrets(
    d: int, taus: np.ndarray, thompson: np.ndarray, rounds: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Final regret and infeasible rounds of R runs, run r at limit taus[r] by Safe-LTS where
    thompson[r], else by OPLB.
    """
    theta, mu, arms = shifts(d)
    reward, cost = arms @ theta, arms @ mu
    R, runs = len(taus), np.arange(len(taus))
    best = (np.minimum(1, taus[:, None] / np.maximum(cost, 1e-12)) * reward).max(axis=1)
    inverse, gains, harms = (
        np.tile(np.eye(d) / RIDGE, (R, 1, 1)),
        np.zeros((R, d)),
        np.zeros((R, d)),
    )
    log_ratio, lost, broken = np.zeros((3, R))  # log_ratio = log det(V) / det(lambda I)
    sampled, every = np.flatnonzero(thompson), logged_every(rounds)
    for t in range(rounds):
        if t == 0:
            arm, scale = rng.integers(d, size=R), taus / (2 * cost.max())
        else:
            spread = np.einsum("rij,ki,kj->rk", inverse, arms, arms, optimize=_PATH[d])
            norms = np.sqrt(spread)
            first = 2 * np.sqrt(log_ratio + 2 * np.log(2 + (t - 1) // every))
            harm = (inverse @ harms[:, :, None])[:, :, 0] @ arms.T + (first + RIDGE**0.5)[
                :, None
            ] * norms
            scales = np.where(harm > 0, np.minimum(1, taus[:, None] / np.maximum(harm, 1e-12)), 1.0)
            radius = first / np.minimum(1, taus) + RIDGE**0.5
            estimate = (inverse @ gains[:, :, None])[:, :, 0]
            score = estimate @ arms.T + np.where(thompson, 0.0, radius)[:, None] * norms
            if len(sampled):
                half = np.linalg.cholesky(inverse[sampled])
                drawn = (half @ rng.standard_normal((len(sampled), d, 1)))[:, :, 0]
                score[sampled] += (d**0.5 * radius[sampled])[:, None] * (drawn @ arms.T)
            arm = (score * scales).argmax(axis=1)
            scale = scales[runs, arm]
        x = scale[:, None] * arms[arm]
        step = (inverse @ x[:, :, None])[:, :, 0]
        growth = 1 + (step * x).sum(axis=1)
        inverse -= step[:, :, None] * (step / growth[:, None])[:, None, :]
        log_ratio += np.log(growth)
        noise = rng.standard_normal((2, R))
        gains += x * (scale * reward[arm] + noise[0])[:, None]
        harms += x * (scale * cost[arm] + noise[1])[:, None]
        lost += best - scale * reward[arm]
        broken += scale * cost[arm] > taus + 1e-9
    return lost, broken


_PATH = {d: ["einsum_path", (0, 1), (0, 1)] for d in (5, 10)}


def cells(rounds: int | None, runs: int | None, seed: int, d: int = 5) -> list[Cell]:
    """OPLB and Safe-LTS at each limit."""
    rounds, runs = rounds or 1_000_000, runs or 10
    grid = [(tau, thompson) for tau in TAUS for thompson in (False, True)]
    taus, thompson = (np.repeat([cell[i] for cell in grid], runs) for i in (0, 1))
    lost, broken = regrets(d, taus, thompson.astype(bool), rounds, np.random.default_rng(seed))
    found = []
    for (tau, is_thompson), x, b in zip(grid, lost.reshape(-1, runs), broken.reshape(-1, runs)):
        known = PUBLISHED.get((rounds, d, tau))
        note = (
            f"T={rounds}, d={d}, {runs} runs, {int(b.sum())} infeasible rounds, logged every "
            f"{logged_every(rounds)} rounds"
        )
        name = "Safe-LTS" if is_thompson else "OPLB"
        found.append(
            Cell(
                "oplb",
                name,
                tau,
                float(x.mean()),
                known and known[is_thompson],
                float(x.std() / np.sqrt(runs)),
                note,
            )
        )
    return found
