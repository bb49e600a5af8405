"""What durability costs: one decision and one outcome a round, then opening and reading 100,000
records.

    python benchmarks/journal.py [--records 100000] [--folder DIR]

The time spent in fsync is the disk's and is printed apart: the same appends are run with and
without syncing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from gedppl.journal import Journal


def decision(rng: np.random.Generator, number: int) -> dict:
    """A decision of the usual size: 5 actions, 8 context columns, one constraint with a witness."""
    policy = rng.dirichlet(np.ones(5))
    return {
        "id": number,
        "x": rng.normal(size=8),
        "policy": policy,
        "action": int(rng.integers(5)),
        "propensity": float(policy.max()),
        "seed_state": {"stream": number, "state": int(rng.integers(2**62)) << 64},
        "certificate": {
            "cost": {
                "worst_case": float(rng.random()),
                "at_most": 0.4,
                "slack": 0.1,
                "rule": "likelihood-ratio e-process, delta 0.025",
                "method": "exact",
                "guaranteed": True,
                "witness": rng.normal(size=(5, 8)),
            },
            "oracle": "least squares on 412 rows",
        },
        "versions": "sha256:0123456789abcdef",
    }


def timed(journal: Journal, payloads: list[dict]) -> np.ndarray:
    times = []
    for payload in payloads:
        start = time.perf_counter()
        journal.append("decision", payload)
        times.append(time.perf_counter() - start)
    return np.array(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument(
        "--folder", default=None, help="where to write; fsync times are those of this disk"
    )
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    payloads = [decision(rng, i) for i in range(options.rounds)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        with Journal.create(Path(folder) / "synced.db", {"problem": "benchmark"}) as journal:
            synced = timed(journal, payloads)
        with Journal.create(Path(folder) / "unsynced.db", {"problem": "benchmark"}) as journal:
            journal._connection.execute("PRAGMA synchronous=OFF")
            with mock.patch.object(os, "fsync", return_value=None):
                unsynced = timed(journal, payloads)
        for name, times in (
            ("append, fsync excluded", unsynced),
            ("append, with two fsyncs", synced),
        ):
            ms = 1e3 * times
            print(
                f"{name:26s} median {np.median(ms):7.3f} ms   99% {np.quantile(ms, 0.99):7.3f} ms"
            )
        print(
            f"{'fsync alone (difference)':26s} median "
            f"{1e3 * (np.median(synced) - np.median(unsynced)):7.3f} ms"
        )

        path = Path(folder) / "long.db"
        with Journal.create(path, {"problem": "benchmark"}) as journal:
            for start in range(0, options.records, 1000):
                size = min(1000, options.records - start)
                journal.append_many([("decision", decision(rng, start + i)) for i in range(size)])
            rows = {
                "x": rng.normal(size=(options.records, 8)),
                "y": rng.normal(size=options.records),
            }
            start_time = time.perf_counter()
            journal.save_snapshot(len(journal) - 1, rows, {})
            print(f"{'save snapshot':26s} {time.perf_counter() - start_time:7.2f} s")
        steps: dict[str, list[tuple[float, float]]] = {
            "open (verify everything)": [],
            "load newest snapshot": [],
        }
        steps["read and decode all"] = []
        for _ in range(3):
            clocks = [(time.perf_counter(), time.process_time())]
            journal = Journal.open(path)
            clocks.append((time.perf_counter(), time.process_time()))
            journal.latest_snapshot()
            clocks.append((time.perf_counter(), time.process_time()))
            count = sum(1 for _ in journal.records())
            clocks.append((time.perf_counter(), time.process_time()))
            journal.close()
            for name, before, after in zip(steps, clocks, clocks[1:]):
                steps[name].append((after[0] - before[0], after[1] - before[1]))
        size = path.stat().st_size / 2**20
        print(f"{count:,} records, {size:.0f} MB")
        for name, times in steps.items():
            wall, processor = np.median(times, 0)
            print(f"{name:26s} {wall:7.2f} s, of which processor {processor:.2f} s")


if __name__ == "__main__":
    main()
