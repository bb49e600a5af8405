"""HP-UCB and a rule on the expected cost (Dragazis and Pacchiano 2026): how often does the REALISED
cost exceed the limit?

Unit-norm theta, mu and contexts X ~ uniform on the sphere; an action is a scale a in [0, 1] with
reward a X'theta + noise and cost a (X'mu + noise), noise N(0, 1), ridge 1; d in {5, 10}, T = 1e4, 5
seeds. Published violation rates: HP-UCB .0002; expected-cost rule .2392 / .2016 / .1324 at tau = .1
/ .5 / 1. How the cost depends on a is not known here: a times (mean plus noise) is inferred from
the published numbers, so that a ratio near one is agreement with the inference and no more.

    expected-cost rule:  a = min(1, tau / UCB(X'mu)) if UCB(X'theta) > 0, else 0
    HP-UCB:              a = min(1, tau / (UCB(X'mu) + margin))

Neither the paper's delta nor its margin is known here. Both usual margins are shown at delta = .01,
beside the same published rate: the normal quantile z_{1-delta}, and sqrt(2 log(1/delta)), which
holds for any sub-Gaussian noise. Without delta the published rate cannot tell which is meant.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from .cells import Cell

TAUS, DIMS, DELTA = (0.1, 0.5, 1.0), (5, 10), 0.01
PUBLISHED = {0.1: 0.2392, 0.5: 0.2016, 1.0: 0.1324}
PUBLISHED_HP = 0.0002


def violations(
    tau: float, d: int, margin: float, rounds: int, runs: int, rng: np.random.Generator
) -> np.ndarray:
    """Share of rounds whose realised cost exceeds tau, of each run."""
    theta, mu = (
        v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.standard_normal((2, runs, d))
    )
    inverse, gains, harms = (
        np.tile(np.eye(d), (runs, 1, 1)),
        np.zeros((runs, d)),
        np.zeros((runs, d)),
    )
    count = np.zeros(runs)
    for t in range(rounds):
        x = rng.standard_normal((runs, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        beta = np.sqrt(d * np.log((1 + t) / DELTA)) + 1
        step = (inverse @ x[:, :, None])[:, :, 0]
        width = beta * np.sqrt((step * x).sum(axis=1))
        hope = (step * gains).sum(axis=1) + width
        worst = (step * harms).sum(axis=1) + width + margin
        a = np.where(worst > tau, tau / np.where(worst > tau, worst, 1.0), 1.0) * (hope > 0)
        noise = rng.standard_normal((2, runs))
        # the cost per unit of a, which is seen where a > 0
        outcome = (x * mu).sum(axis=1) + noise[1]
        count += a * outcome > tau
        seen = (a > 0).astype(float)
        growth = 1 + (step * x).sum(axis=1) * seen
        inverse -= step[:, :, None] * (step / growth[:, None] * seen[:, None])[:, None, :]
        gains += x * (seen * ((x * theta).sum(axis=1) + noise[0]))[:, None]
        harms += x * (seen * outcome)[:, None]
    return count / rounds


RULES = (
    ("expected-cost rule", 0.0),
    ("HP-UCB, normal quantile", float(ndtri(1 - DELTA))),
    ("HP-UCB, sub-Gaussian margin", float(np.sqrt(2 * np.log(1 / DELTA)))),
)


def cells(rounds: int | None, runs: int | None, seed: int) -> list[Cell]:
    """The rules at each limit, averaged over the dimensions."""
    rounds, runs = rounds or 10_000, runs or 5
    found, rng = [], np.random.default_rng(seed)
    for tau in TAUS:
        for name, margin in RULES:
            rates = np.concatenate([violations(tau, d, margin, rounds, runs, rng) for d in DIMS])
            known = PUBLISHED_HP if margin else PUBLISHED[tau]
            note = (
                f"violation rate of realised cost, T={rounds}, d in {DIMS}, {runs} seeds each; "
                "inferred: cost a (X'mu + noise)"
            )
            if margin:
                note += f", margin {margin:.2f} (delta {DELTA})"
            found.append(
                Cell(
                    "hp-ucb",
                    name,
                    tau,
                    float(rates.mean()),
                    known,
                    float(rates.std() / np.sqrt(len(rates))),
                    note,
                )
            )
    return found
