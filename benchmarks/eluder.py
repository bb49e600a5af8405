"""How long the searches for the generalized eluder dimension take.

Run with ``python benchmarks/eluder.py``. Wanted: greedy for 128 members and 2,000 points within 10
s, exact for 12 points within 2 s. Times are processor time, which a busy machine does not stretch
as much as the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.programs.contract import MemberList
from gedppl.theory import eluder


class Normals(MemberList):
    """M linear Gaussian members, a finite class written in NumPy."""

    def __init__(self, theta: np.ndarray, scale: float) -> None:
        self.theta, self.scale, self.size = theta, scale, len(theta)

    def density(self, m: int, x: np.ndarray, a: np.ndarray) -> Density:
        return Density("Normal", {"loc": x @ self.theta[m], "scale": np.full(len(x), self.scale)})


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


def main() -> None:
    rng = np.random.default_rng(0)
    theta, phi = (
        v / np.linalg.norm(v, axis=1, keepdims=True)
        for v in (rng.normal(size=(128, 4)), rng.normal(size=(2000, 4)))
    )
    large = Normals(theta, 0.2)
    d2, seconds = timed(lambda: eluder.class_divergences(large, phi, np.zeros(2000, int)))
    print(f"divergences, 128 members x 2,000 points: {seconds:.2f} s, d2 {d2.shape}")
    for eps in (0.05, 0.3):
        chain, seconds = timed(lambda eps=eps: eluder.longest_chain(d2, eps, "greedy"))
        print(
            f"greedy, 128 members x 2,000 points, eps {eps}: chain of {len(chain)}, "
            f"{seconds:.2f} s (wanted < 10 s)"
        )
    print("exact, 12 points (wanted < 2 s):")
    for members in (8, 12, 32, 64):
        for name, table in (
            ("random", rng.uniform(0, 1, (members * (members - 1) // 2, 12)) ** 2),
            (
                "Gaussian",
                eluder.class_divergences(
                    Normals(theta[:members], 0.2), phi[:12], np.zeros(12, int)
                ),
            ),
        ):
            worst = 0.0
            for eps in (0.05, 0.3, 0.6):
                chain, seconds = timed(
                    lambda table=table, eps=eps: eluder.longest_chain(table, eps, "exact")
                )
                worst = max(worst, seconds)
            greedy = len(eluder.longest_chain(table, 0.6, "greedy"))
            print(
                f"  {members:>3} members, {name:<8}: dimension {len(chain)} at 0.6 (greedy "
                f"{greedy}), slowest {worst:.2f} s"
            )


if __name__ == "__main__":
    main()
