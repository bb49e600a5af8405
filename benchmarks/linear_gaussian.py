"""Speed of the linear-Gaussian learner, given the features: python benchmarks/linear_gaussian.py

Processor time, so that a busy machine does not matter much; d = 5, K = 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.functionals import mean
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.programs.contract import LinearPredictor

D, K = 5, 10


def microseconds(call: Callable[[], Any], repeat: int = 2000) -> float:
    call()
    best = np.inf
    for _ in range(5):
        begun = time.process_time()
        for _ in range(repeat // 5):
            call()
        best = min(best, (time.process_time() - begun) / (repeat // 5))
    return best * 1e6


def main() -> None:
    rng = np.random.default_rng(0)
    turn, theta = 0.3 * rng.normal(size=(K, D, D)), 0.3 * rng.normal(size=D)
    line = LinearPredictor(
        "Normal",
        "identity",
        features=lambda x, a: np.einsum("ndk,nk->nd", turn[a], x),
        offset=lambda x, a: np.zeros(len(a)),
        fixed=lambda x, a: {"scale": np.full(len(a), 0.1)},
    )
    print("targets: update + bounds under 100 microseconds, the trail of 100 snapshots under 300")
    print(
        f"{'':34s}{'update':>9s}{'refit':>9s}{'bounds':>9s}{'update + bounds':>17s}{'trail':>9s} "
        "  microseconds"
    )
    for norm_bound in (None, 1.0):
        learner = LinearGaussianLearner.start(line, D, delta=0.025, norm_bound=norm_bound)
        for snapshots in (10, 100):
            while len(learner.snapshot_sizes) < snapshots:
                x, a = rng.normal(size=(10, D)), rng.integers(0, K, 10)
                learner = learner.absorb(
                    x, a, line.features(x, a) @ theta + 0.1 * rng.normal(size=10)
                ).refit()
            x, functional = rng.normal(size=(1, D)), mean(0, 1)
            phi, y, scale = line.features(x, np.array([1])), np.array([0.2]), np.array([0.1])
            # the features of this context are remembered from here on
            learner.bounds(functional, x, K)
            update = microseconds(lambda: learner.absorb_features(phi, y, scale))  # noqa: B023
            bounds = microseconds(lambda: learner.bounds(functional, x, K))  # noqa: B023
            trail = microseconds(lambda: learner.trail(functional, x, K))  # noqa: B023
            refit = microseconds(lambda: learner.refit(), 200)  # noqa: B023
            label = f"{snapshots} snapshots, {'norm bound' if norm_bound else 'no norm bound'}"
            print(
                f"{label:34s}{update:9.0f}{refit:9.0f}{bounds:9.0f}"
                f"{update + bounds:17.0f}{trail:9.0f}"
            )


if __name__ == "__main__":
    main()
