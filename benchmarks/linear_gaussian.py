"""What the parts of the linear-Gaussian set are worth: its width with and without them.

    python benchmarks/linear_gaussian.py --seeds 40

Half-widths of a mean along random features, d = 5, noise 0.1, delta = 0.05, as shares of the width
of a chi-square set at one time. `restarts`: e-processes that begin later, beside those of the first
row. `bet`: a fifth of the weight on the declared prior's own evidence, N(0, sd^2); the truth is a
draw from it, or lies five deviations away in every coordinate. Averages over seeds.
"""

from __future__ import annotations

import argparse
import itertools
from unittest import mock

import numpy as np
from scipy.stats import chi2

from gedppl.functionals import mean
from gedppl.learning import linear_gaussian
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.programs.contract import LinearPredictor

D, SIGMA, DELTA, FAR = 5, 0.1, 0.05, 5.0
SPREADS = (0.05, 0.1, 0.4)  # sd of the prior
ROWS = (10, 20, 50, 100, 300, 1000, 5000)
LINE = LinearPredictor(
    "Normal",
    "identity",
    features=lambda x, a: x,
    offset=lambda x, a: np.zeros(len(a)),
    fixed=lambda x, a: {"scale": np.full(len(a), SIGMA)},
)
NO_BET = 1e-300  # a share whose logarithm is still a number


def half_widths(
    theta: np.ndarray, sd: float, seed: int, *, restarts: bool, bet: float
) -> np.ndarray:
    """After each number of rows, along random features, in units of the chi-square set's."""
    rng = np.random.default_rng([9, seed])
    phi = rng.normal(size=(max(ROWS), D)) / np.sqrt(D)
    y = phi @ theta + SIGMA * rng.normal(size=len(phi))
    asked = rng.normal(size=(20, D))
    out, done = [], 0
    with mock.patch.object(linear_gaussian, "BET", bet):
        learner = LinearGaussianLearner.start(
            LINE, D, delta=DELTA, prior_precision=sd**-2, restarts=restarts
        )
        for n in ROWS:
            part = slice(done, n)
            learner = learner.absorb(phi[part], np.zeros(n - done, int), y[part]).refit()
            done = n
            found = learner.bounds(mean(-1e9, 1e9), asked, 1)
            spread = np.linalg.solve(phi[:n].T @ phi[:n], asked.T).T
            least = SIGMA * np.sqrt(chi2.isf(DELTA, D) * (asked * spread).sum(axis=1))
            out.append(np.mean((found.upper - found.lower)[:, 0] / 2 / least))
    return np.array(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=40)
    seeds = range(parser.parse_args().seeds)
    print(f"{'rows':52s}", *(f"{n:>6d}" for n in ROWS))
    truths = ("a draw from the prior", "far from the prior")
    for sd, truth in itertools.product(SPREADS, truths):
        for restarts, bet in ((True, 0.2), (True, NO_BET), (False, NO_BET)):
            width = []
            for seed in seeds:
                drawn = np.random.default_rng([8, seed]).normal(size=D)
                theta = sd * (drawn if truth == truths[0] else FAR * np.sign(drawn))
                width.append(half_widths(theta, sd, seed, restarts=restarts, bet=bet))
            said = f"sd {sd:g}, {truth}: {'restarts' if restarts else 'one start'}"
            said += ", bet" if bet > NO_BET else ", no bet"
            print(f"{said:52s}", *(f"{w:6.2f}" for w in np.mean(width, axis=0)), flush=True)


if __name__ == "__main__":
    main()
