"""OPB on four arms (Pacchiano, Ghavamzadeh, Bartlett, Jiang, AISTATS 2021; their public code).

K=4, r=(.1, .2, .4, .7), c=(0, .4, .5, .2), outcomes N(mean, .1) cut to [0, 1], arm 0's cost known,
alpha_r = 1 + 1/tau, interval sqrt(2 log T^2 / n), 10 runs. Regret is that of the policies, at the
nominal means.

Among equally good vertices the one with the least-pulled arm is played. At tau = .2 and T = 1e4
every optimistic reward stays cut at 1 to the end, so that cell shows the tie rule and nothing else:
3,172 by this rule, 2,857 by least expected pulls (all other cells move by less than 1%).

All runs of all limits go through the rounds together; `gedppl.study.baselines.opb.OPB` is the same
rule one run at a time.
"""

from __future__ import annotations

import numpy as np

from .cells import Cell

REWARD, COST, NOISE = np.array([0.1, 0.2, 0.4, 0.7]), np.array([0.0, 0.4, 0.5, 0.2]), 0.1
K = len(REWARD)
TAUS = (0.2, 0.5, 0.8)
# (rounds, tau) -> final regret; the figure's 3,100 at 1e6, and re-runs of the public code
PUBLISHED = {
    (10_000, 0.2): 3133.0,
    (10_000, 0.5): 1020.0,
    (10_000, 0.8): 703.0,
    (100_000, 0.2): 12412.0,
    (100_000, 0.5): 2156.0,
    (100_000, 0.8): 1305.0,
    (1_000_000, 0.5): 3142.0,
}
LOW, HIGH = (
    np.array(index) for index in zip(*[(a, b) for a in range(K) for b in range(K) if a != b])
)


def policies(
    score: np.ndarray, upper: np.ndarray, tau: np.ndarray, played: np.ndarray
) -> np.ndarray:
    """The linear programme of every run by its vertices, ties to the least-pulled arm: score,
    upper, played (R, K), tau (R,).
    """
    gap = upper[:, HIGH] - upper[:, LOW]
    mixes = (upper[:, LOW] <= tau[:, None]) & (upper[:, HIGH] > tau[:, None])
    share = np.where(mixes, (tau[:, None] - upper[:, LOW]) / np.where(mixes, gap, 1.0), 0.0)
    value = np.concatenate(
        [score, score[:, LOW] + share * (score[:, HIGH] - score[:, LOW])], axis=1
    )
    least = np.concatenate([played, np.minimum(played[:, LOW], played[:, HIGH])], axis=1)
    expected = np.concatenate(
        [played, played[:, LOW] + share * (played[:, HIGH] - played[:, LOW])], axis=1
    )
    value = np.where(np.concatenate([upper <= tau[:, None], mixes], axis=1), value, -np.inf)
    tied = value >= value.max(axis=1, keepdims=True) - 1e-10
    least = np.where(tied, least, np.inf)
    tied &= least == least.min(axis=1, keepdims=True)
    chosen = np.where(tied, expected, np.inf).argmin(axis=1)
    runs = np.arange(len(score))
    out = np.zeros_like(score)
    single = chosen < K
    out[runs[single], chosen[single]] = 1.0
    pair, rest = chosen[~single] - K, runs[~single]
    out[rest, LOW[pair]], out[rest, HIGH[pair]] = 1 - share[rest, pair], share[rest, pair]
    return out


def regrets(
    taus: np.ndarray, rounds: int, rng: np.random.Generator, pessimism: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Final regret and number of infeasible policies of one run for each limit in `taus` (R,);
    `pessimism` scales the cost's interval (1 in the paper).
    """
    R, runs, log = len(taus), np.arange(len(taus)), 2 * np.log(float(rounds) ** 2)
    pulls, gains, harms = np.zeros((3, R, K))
    weight = (1 + 1 / taus)[:, None]
    true = np.tile(np.stack([REWARD, COST]), (R, 1, 1))
    best = (policies(true[:, 0], true[:, 1], taus, np.zeros((R, K))) * REWARD).sum(axis=1)
    lost, broken = np.zeros((2, R))
    for _ in range(rounds):
        n = np.maximum(pulls, 1.0)
        width = np.sqrt(log / n)
        upper = np.minimum(1.0, harms / n + pessimism * width)
        upper[:, 0] = 0.0
        policy = policies(np.minimum(1.0, gains / n + weight * width), upper, taus, pulls)
        lost += best - policy @ REWARD
        broken += policy @ COST > taus + 1e-9
        arm = np.minimum((policy.cumsum(axis=1) <= rng.random(R)[:, None]).sum(axis=1), K - 1)
        noise = NOISE * rng.standard_normal((2, R))
        pulls[runs, arm] += 1
        gains[runs, arm] += np.clip(REWARD[arm] + noise[0], 0, 1)
        harms[runs, arm] += np.clip(COST[arm] + noise[1], 0, 1)
    return lost, broken


def cells(rounds: int | None, runs: int | None, seed: int) -> list[Cell]:
    """One cell for each limit."""
    rounds, runs = rounds or 10_000, runs or 10
    lost, broken = regrets(np.repeat(TAUS, runs), rounds, np.random.default_rng(seed))
    note = f"T={rounds}, {runs} runs, {int(broken.sum())} infeasible rounds"
    return [
        Cell(
            "opb",
            "OPB",
            tau,
            float(x.mean()),
            PUBLISHED.get((rounds, tau)),
            float(x.std() / np.sqrt(runs)),
            note,
        )
        for tau, x in zip(TAUS, lost.reshape(len(TAUS), runs))
    ]
