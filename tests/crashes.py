"""Processes that are killed: a harness in a script of its own, started by the test beside it, and a
small Ray cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def report_of(
    script: str, folder: Path, kills: int, *, careless: bool = False, seed: int = 0
) -> dict[str, Any]:
    """What `harness(path, kills, careless, seed)` of a test file found, in a process of its own."""
    command = [sys.executable, script, folder / "crash.db", kills, int(careless), seed]
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """The module `ray`, with two workers."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    try:
        yield ray
    finally:
        ray.shutdown()
