"""CPU time of `ask` and `tell`, with the default guard and without a journal, beside the targets.
Run by `decide.py speed`.

The first ask compiles and is shown apart; "later" asks are all others. The yardstick is a fixed
amount of small NumPy work measured before each row, since CPU time too depends on what else a
machine does: compare rows of one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from arena import make
from arena.linear import shared

import gedppl as ged

YARDSTICK = 2000
CONTEXTS = 1000
WORLDS: dict[str, Callable[[], Any]] = {
    "linear 5x5": lambda: shared(0),
    "linear K=100 d=10": lambda: shared(0, K=100, d=10),
    "logistic K=5 d=4": lambda: make("logistic"),
    "finite 64 and 64": lambda: make("finite"),
}
# ms
ASK = {
    "linear 5x5": 0.5,
    "linear K=100 d=10": 1.5,
    "logistic K=5 d=4": 3.0,
    "finite 64 and 64": 1.0,
}
TELL = {"linear 5x5": 0.1}
AT_ONCE = {"linear 5x5": 30.0, "logistic K=5 d=4": 500.0}  # ms for 1,000 contexts
STALL = 10.0  # the longest later ask, in medians


def yardstick() -> float:
    """Milliseconds of CPU for a fixed amount of work."""
    a = np.random.default_rng(0).normal(size=(8, 8))
    start = time.process_time()
    for _ in range(YARDSTICK):
        np.sqrt(np.abs(a @ a.T)).sum(axis=1)
    return 1e3 * (time.process_time() - start)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its CPU time in milliseconds."""
    start = time.process_time()
    out = call()
    return out, 1e3 * (time.process_time() - start)


def measure(world: Any, rounds: int) -> tuple[ged.GEDUCB, np.ndarray, np.ndarray]:
    """The agent after so many rounds, and the times of its asks and tells (rounds,)."""
    agent, rng = ged.GEDUCB(world.problem(), seed=0), np.random.default_rng(0)
    times = np.empty((2, rounds))
    for t in range(rounds):
        x = world.context(rng)
        decision, times[0, t] = timed(lambda x=x: agent.ask(x))
        y, z = world.outcome(x, decision.action, rng)
        _, times[1, t] = timed(lambda key=decision.id, y=y, z=z: agent.tell(key, y, z))
    return agent, times[0], times[1]


def row(what: str, median: float, target: float | None, note: str = "") -> None:
    """One line of the table; without a target there is only the measurement."""
    beside = "" if target is None else f"target {target:7.2f} ms  ratio {median / target:6.2f}"
    print(f"  {what:26s} {median:9.3f} ms  {beside:34s} {note}", flush=True)


def speed(rounds: int) -> None:
    print(f"CPU time, {rounds} rounds, default guard, no journal")
    for name, world_of in WORLDS.items():
        world = world_of()
        print(f"{name} (yardstick {yardstick():.1f} ms for {YARDSTICK} steps)")
        agent, asks, tells = measure(world, rounds)
        later, longest = np.median(asks[1:]), asks[1:].max()
        stall = (
            f"longest {longest:.1f} ms at round {asks[1:].argmax() + 1}: "
            f"{longest / later:.1f} medians, target {STALL:.0f}"
        )
        row("ask, first", asks[0], None)
        row("ask, later, median", later, ASK[name], stall)
        row("ask, last quarter, median", np.median(asks[-(rounds // 4) :]), ASK[name])
        row(
            "tell, median",
            np.median(tells[1:]),
            TELL.get(name),
            f"longest {tells[1:].max():.2f} ms",
        )
        rng = np.random.default_rng(1)
        x = np.stack([world.context(rng) for _ in range(CONTEXTS)])
        for what, call in (("policy", agent.policy), ("ask", agent.ask)):
            first, again = (timed(lambda call=call, x=x: call(x))[1] for _ in range(2))
            row(
                f"{what} of {CONTEXTS} at once",
                again,
                AT_ONCE.get(name),
                f"the first time {first:.1f} ms",
            )
