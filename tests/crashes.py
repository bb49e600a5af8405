"""Processes that are killed: a harness in a script of its own, started by the test beside it, and a
small Ray cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def killed(
    write: Callable[[int], Any], after: float | None, begun: bool = False
) -> tuple[list[bytes], str]:
    """Fork a process that runs write(pipe) until it is killed: the whole lines that it sent, and
    how it died. It kills itself, or is killed `after` so many seconds (once it has `begun` to send,
    if that is asked).
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            write(writer)
        finally:
            os._exit(3)  # only reached by an exception
    os.close(writer)
    received = b""
    if after is not None:
        received = os.read(reader, 64) if begun else b""
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    while chunk := os.read(reader, 65536):
        received += chunk
    os.close(reader)
    _, status = os.waitpid(child, 0)
    by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    lines = received[: received.rfind(b"\n") + 1].splitlines()
    return lines, "killed" if by_signal else f"status {status}"


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


def watched(journal: Any, reached: Callable[[str], Any]) -> None:
    """From now on the journal says `reached(step)` at every step of a write."""
    journal._reached = reached


def database(journal: Any) -> Any:
    """The journal's own SQLite connection, to look at or to disturb."""
    return journal._connection
