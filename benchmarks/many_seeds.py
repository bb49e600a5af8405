"""Many seeds of one problem: decided together, and one agent after the other. Seeds a second.

    python benchmarks/many_seeds.py                          the defaults below, one core
    python benchmarks/many_seeds.py --workers 2              the same with a process for each share
    python benchmarks/many_seeds.py --environments shared --seeds 256 --rounds 1000

One JSON line an environment: {environment, models, rounds, seeds, together, alone, watched, ratio,
gap}. `together` is seeds a second of processor time by `ged.simulate_many`, `alone` by an agent
without a guard, whose policies are the same (`gap` is the largest difference of a probability over
the seeds that were run both ways), `watched` by an agent as it is by default, with its guard. With
workers, `wall` is seeds a second of the clock over all of them, their start left out. The world is
that of the environment's seed 0; seeds draw contexts, outcomes and actions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # for workers, which import this file from elsewhere

import joblib
import numpy as np
from arena import make

import gedppl as ged

MODELS = {
    "shared": "linear-Gaussian",
    "treatments": "linear-Gaussian, a group an arm",
    "finite": "finite",
}
BOTH = 4  # seeds that are run both ways


def decided_together(
    environment: str, rounds: int, seeds: list[int]
) -> tuple[list[ged.Run], float]:
    """The runs, and seconds of processor time."""
    problem, worlds = make(environment, 0).problem(), [make(environment, 0) for _ in seeds]
    ged.simulate_many(problem, worlds[:1], 3, seeds[:1])  # compiled
    begun = time.process_time()
    return ged.simulate_many(problem, worlds, rounds, seeds), time.process_time() - begun


def seconds_together(environment: str, rounds: int, seeds: list[int]) -> float:
    """What a worker tells: seconds by the clock."""
    begun = time.perf_counter()
    decided_together(environment, rounds, seeds)
    return time.perf_counter() - begun


def decided_alone(
    environment: str, rounds: int, seeds: list[int], guard: str | None
) -> tuple[list[ged.Run], float]:
    problem, runs = make(environment, 0).problem(), []
    begun = time.process_time()
    for seed in seeds:
        agent = ged.GEDUCB(problem, seed=seed, guard=guard)
        runs.append(ged.simulate(problem, make(environment, 0), agent, rounds, seed))
    return runs, time.process_time() - begun


def measured(environment: str, rounds: int, seeds: int, workers: int) -> dict[str, Any]:
    """One line."""
    numbers, some = list(range(seeds)), list(range(min(seeds, BOTH)))
    runs, spent = decided_together(environment, rounds, numbers)
    single, alone = decided_alone(environment, rounds, some, None)
    _, watched = decided_alone(environment, rounds, some, "fallback")
    gap = max(float(np.abs(a.policy - b.policy).max()) for a, b in zip(runs, single))
    line = {
        "environment": environment,
        "models": MODELS.get(environment, "other"),
        "rounds": rounds,
        "seeds": seeds,
        "together": round(seeds / spent, 2),
        "alone": round(len(some) / alone, 2),
        "watched": round(len(some) / watched, 2),
        "ratio": round(seeds / spent / (len(some) / alone), 2),
        "gap": gap,
    }
    if workers > 1:
        parts = [part.tolist() for part in np.array_split(numbers, workers)]
        pool = joblib.Parallel(workers)
        pool(joblib.delayed(seconds_together)(environment, 3, [0]) for _ in parts)  # started
        took = pool(joblib.delayed(seconds_together)(environment, rounds, part) for part in parts)
        line |= {"workers": workers, "wall": round(seeds / max(took), 2)}
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    for environment in given.environments.split(","):
        line = measured(environment, given.rounds, given.seeds, given.workers)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
