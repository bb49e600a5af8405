"""How long the divergences take: closed form, quadrature and Monte Carlo for the same batch, and
their ratios.

Run with ``python benchmarks/divergences.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, total_variation


def best_of(function: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    rng = np.random.default_rng(0)
    shape = (16, 50)  # M parameter settings × n rows
    positive = np.exp(0.7 * rng.normal(size=(4, *shape)))
    pairs = {
        "Normal": [{"loc": rng.normal(size=shape), "scale": scale} for scale in positive[:2]],
        "Gamma": [{"concentration": 1 + a, "rate": b} for a, b in (positive[:2], positive[2:])],
        "Poisson": [{"rate": 5 * rate} for rate in positive[:2]],
    }
    print(f"{shape[0]} x {shape[1]} pairs, microseconds a pair; ratios to the closed form")
    for family, arguments in pairs.items():
        p, q = (Density(family, args) for args in arguments)
        for divergence in (hellinger2, total_variation, l2_squared):
            seconds = {
                method: best_of(lambda d=divergence, a=p, b=q, m=method: d(a, b, m, n_draws=2000))
                for method in ("exact", "quadrature", "monte_carlo")
            }
            micro = {
                method: value / (shape[0] * shape[1]) * 1e6 for method, value in seconds.items()
            }
            print(
                f"{family:8s} {divergence.__name__:16s} exact {micro['exact']:8.2f}"
                + "".join(
                    f"  {method} {micro[method]:8.1f} ({micro[method] / micro['exact']:.0f}x)"
                    for method in ("quadrature", "monte_carlo")
                )
            )


if __name__ == "__main__":
    main()
