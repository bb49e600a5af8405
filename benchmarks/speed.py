"""How much time and memory decisions take, beside the targets. Run by `decide.py`:

    speed      CPU time of `ask` and `tell`, with the default guard and without a journal
    parts      where the time of an ask of the linear problem goes, and how many functions it calls
    commands   CPU time of README's example and of `gedppl run models/bandit.py`, in processes of
               their own
    memory     what a long run keeps
    stalls     the longest ask of a program without an exact form, with JAX's persistent compilation
               cache empty and filled

The first ask compiles and is shown apart; "later" asks are all others. The yardstick is a fixed
amount of small NumPy work measured before each row, since CPU time too depends on what else a
machine does: compare rows of one run.
"""

from __future__ import annotations

import cProfile
import gc
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from pstats import Stats
from typing import Any
from unittest.mock import patch

import numpy as np
from arena import make
from arena.linear import shared

import gedppl as ged

YARDSTICK = 2000
CONTEXTS = 1000
COUNTED = 100  # asks of which the calls are counted
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
README, COMMAND = 5.0, 5.0  # s
ROOT = Path(__file__).parents[1]


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


@contextmanager
def full_collections() -> Iterator[list[int]]:
    """How many full garbage collections ran so far, in a list of one. Python begins one when the
    objects that stay have grown by a quarter, and it looks at all of JAX; `gc.freeze()` after
    the first ask spares that.
    """
    count = [0]

    def note(phase: str, info: dict[str, int]) -> None:
        count[0] += phase == "stop" and info["generation"] == 2

    gc.callbacks.append(note)
    try:
        yield count
    finally:
        gc.callbacks.remove(note)


def measure(world: Any, rounds: int) -> tuple[ged.GEDUCB, np.ndarray, np.ndarray, np.ndarray]:
    """The agent after so many rounds, the times of its asks and tells (rounds,), and in which asks
    Python collected all garbage.
    """
    agent, rng = ged.GEDUCB(world.problem(), seed=0), np.random.default_rng(0)
    times, collected = np.empty((2, rounds)), np.zeros(rounds, bool)
    with full_collections() as count:
        for t in range(rounds):
            x, before = world.context(rng), count[0]
            decision, times[0, t] = timed(lambda x=x: agent.ask(x))
            collected[t] = count[0] > before
            y, z = world.outcome(x, decision.action, rng)
            _, times[1, t] = timed(lambda key=decision.id, y=y, z=z: agent.tell(key, y, z))
    return agent, times[0], times[1], collected


def row(what: str, median: float, target: float | None, note: str = "") -> None:
    """One line of the table; without a target there is only the measurement."""
    beside = "" if target is None else f"target {target:7.2f} ms  ratio {median / target:6.2f}"
    print(f"  {what:26s} {median:9.3f} ms  {beside:34s} {note}", flush=True)


def speed(rounds: int) -> None:
    print(f"CPU time, {rounds} rounds, default guard, no journal")
    for name, world_of in WORLDS.items():
        world = world_of()
        print(f"{name} (yardstick {yardstick():.1f} ms for {YARDSTICK} steps)")
        agent, asks, tells, collected = measure(world, rounds)
        own = np.where(collected, 0.0, asks)[1:]
        later, longest = np.median(asks[1:]), own.max()
        stall = (
            f"longest {longest:.1f} ms at round {own.argmax() + 1}: "
            f"{longest / later:.1f} medians, target {STALL:.0f}"
        )
        if collected[1:].any():
            stall += f"; with a full garbage collection {asks[1:][collected[1:]].max():.1f} ms"
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
            first, *again = (timed(lambda call=call, x=x: call(x))[1] for _ in range(6))
            # the longest has one of Python's full garbage collections in it, over all of JAX
            row(
                f"{what} of {CONTEXTS} at once",
                float(np.median(again)),
                AT_ONCE.get(name),
                f"the first time {first:.1f} ms, the longest {max(again):.1f} ms",
            )


# where it goes ------------------------------------------------------------------------------------

# what is named is without what it calls that is named too
PARTS = {
    "read the context": "gedppl.problem.names:Names.contexts",
    "watch: predictions": "gedppl.agent.monitoring:Watch._pits",
    "watch: certified values": "gedppl.agent.monitoring:_certified_costs",
    "watch: costs and limits": "gedppl.agent.monitoring:_costs",
    "watch: bets on predictions": "gedppl.guard:Guard._bets_of",
    "watch: other monitors": "gedppl.guard:Guard.update",
    "watch: classes": "gedppl.guard:Guard.weighed",
    "watch: the rest": "gedppl.agent.monitoring:Watch.take_in",
    "learn: rows": "gedppl.ged_ucb:update",
    "learn: refits": "gedppl.ged_ucb:refit",
    "learn: the rest": "gedppl.agent.keeper:Keeper.learned",
    "features": "gedppl.learning.linear_parts:FeatureMemo.grid",
    "bounds of costs": "gedppl.learning.linear_gaussian:LinearGaussianLearner.bounds",
    "costs under one parameter": "gedppl.learning.linear_gaussian:together",
    "range of the utility": "gedppl.ged_ucb:_utility",
    "scores": "gedppl.ged_ucb:today",
    "best policy": "gedppl.ged_ucb:select_policies",
    "best under one parameter": "gedppl.ged_ucb:gained_together",
    "last look at the worst case": "gedppl.ged_ucb:limit_costs",
    "select, the rest": "gedppl.ged_ucb:select",
    "doubts": "gedppl.ged_ucb.costs:refuted",
    "contexts far outside": "gedppl.agent.monitoring:Watch.flags",
    "contexts taken in": "gedppl.agent.monitoring:Watch.include",
    "draw": "gedppl.agent.deciding:draw_actions",
    "certificate": "gedppl.agent.deciding:certify",
    "keep": "gedppl.agent.keeper:Keeper.commit",
}
REST = "the rest of ask"


class Stopwatch:
    """Time spent in functions, each without those inside it that are timed too."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = {}
        self._inside: list[int] = []

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            self._inside.append(0)
            start = time.thread_time_ns()
            try:
                return function(*args, **options)
            finally:
                took = time.thread_time_ns() - start
                self.spent[name] = self.spent.get(name, 0) + took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return timed


def parts(rounds: int) -> None:
    """CPU time: medians over the asks that reach a part, times the share of asks that do. Reading
    the clock adds a few microseconds to each.
    """
    watch, world = Stopwatch(), WORLDS["linear 5x5"]()
    agent, rng = ged.GEDUCB(world.problem(), seed=0), np.random.default_rng(0)
    log: list[dict[str, int]] = []
    profile = cProfile.Profile()
    with ExitStack() as undo:
        for name, place in PARTS.items():
            module, _, path = place.partition(":")
            *owner, attribute = path.split(".")
            holder = reduce(getattr, owner, importlib.import_module(module))
            timed = watch.around(name, getattr(holder, attribute))
            undo.enter_context(patch.object(holder, attribute, timed))
        ask = watch.around(REST, agent.ask)
        for _ in range(rounds):
            x = world.context(rng)
            watch.spent.clear()
            decision = ask(x)
            log.append(dict(watch.spent))
            agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    for _ in range(COUNTED):
        x = world.context(rng)
        decision = profile.runcall(agent.ask, x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    total = 0.0
    print(f"linear 5x5, rounds {rounds // 4} to {rounds} (yardstick {yardstick():.1f} ms)")
    for name in (*PARTS, REST):
        times = np.array([one[name] for one in log[rounds // 4 :] if name in one])
        mean = np.median(times) * len(times) / len(log[rounds // 4 :]) / 1e3 if len(times) else 0.0
        total += mean
        print(f"  {name:28s} {mean:7.1f} us")
    print(f"  {'sum':28s} {total:7.1f} us")
    calls = Stats(profile).total_calls / COUNTED  # type: ignore[attr-defined]
    print(f"  {calls:.0f} calls of Python or built-in functions in an ask")


# processes of their own ---------------------------------------------------------------------------


def in_process(script: str, *args: str, **environment: str) -> str:
    """What a Python process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


CLOCKED = """
import sys, time
import arviz, jax, jax.numpy, matplotlib.pyplot, numpyro, numpyro.distributions
import gedppl as ged
from gedppl.study.cli import main
imported = time.process_time()
if sys.argv[1] == "run":
    main(sys.argv[1:])
else:
    exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {"__name__": "example"})
now = time.process_time()
print(f"CLOCK {imported:.2f} {now - imported:.2f}")
"""


def commands() -> None:
    """README's first example, and the command that it names, with a report."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "example.py"
        script.write_text(example)
        run = ["run", "models/bandit.py", "--rounds", "1000", "--out", str(Path(folder) / "run")]
        for what, args, target in (
            ("README's example", [str(script)], README),
            ("gedppl run models/bandit.py, 1,000 rounds, with its report", run, COMMAND),
        ):
            said = in_process(CLOCKED, *args)
            imports, cpu = map(float, said.rsplit("CLOCK ", 1)[1].split())
            print(
                f"{what}: {cpu:.2f} s of CPU, target {target:.0f} s, ratio {cpu / target:.2f}; "
                f"imports before it {imports:.2f} s",
                flush=True,
            )


# memory -------------------------------------------------------------------------------------------


def resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(rounds: int) -> None:
    """Linear 5x5 without a journal: the process after 2,000 rounds, and how it grows from there.
    What is kept of a round by design is its context, its action, its outcomes and its place in the
    order of things, since any of them may be amended: 8 bytes for each number.
    """
    world = WORLDS["linear 5x5"]()
    agent, rng = ged.GEDUCB(world.problem(), seed=0), np.random.default_rng(0)
    before, first = 0.0, 2000
    for t in range(1, rounds + 1):
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
        if t in (first, rounds) or (t > first and t % max(first, rounds // 10) == 0):
            gc.collect()
            before = before or resident()
            grown = resident() - before
            print(
                f"round {t:7d}: {resident():7.1f} MB, {grown:6.1f} MB more than after round {first}"
                + (f": {1e6 * grown / (t - first):6.0f} bytes a round" if t > first else ""),
                flush=True,
            )
    print(f"by design: {8 * (len(x) + 5)} bytes a round, in columns that double when full")


# stalls -------------------------------------------------------------------------------------------

STALLING = """
import sys, time, warnings
sys.path.insert(0, "benchmarks")
warnings.simplefilter("ignore")
import numpy as np
from speed import general
rounds, K = int(sys.argv[1]), 5
problem, phi, outcome = general(rounds, K)
import gedppl as ged
agent, times = ged.GEDUCB(problem, seed=0), []
for t in range(rounds):
    cpu, wall = time.thread_time(), time.perf_counter()
    decision = agent.ask(phi[t].ravel())
    times.append((time.thread_time() - cpu, time.perf_counter() - wall))
    agent.tell(decision.id, outcome(t, decision.action))
cpu, wall = np.array(times).T
total = time.process_time()
for name, clock in (("CPU of the asking thread", cpu), ("wall clock", wall)):
    later, middle = clock[1:], clock[20:]
    median = np.median(later)
    print(
        f"  {name:25s} first {clock[0]:6.2f} s, median {1e3 * median:6.1f} ms, longest later "
        f"{later.max():5.2f} s at round {later.argmax() + 1} ({later.max() / median:.0f} medians), "
        f"longest after round 20 {middle.max():5.2f} s at round {middle.argmax() + 20} "
        f"({middle.max() / median:.1f} medians); asks beyond ten medians "
        f"{np.flatnonzero(later > 10 * median)[:8] + 1}"
    )
print(f"  CPU of the process {total:.1f} s")
"""


def general(rounds: int, K: int) -> tuple[ged.Problem, np.ndarray, Callable[[int, int], float]]:
    """A heteroscedastic Normal, mean and log-scale linear in four features each: no closed form.
    The problem, features (T, K, 4) and outcomes by round and action.
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        v = numpyro.sample("v", dist.Normal(0, 0.3).expand([4]).to_event(1))
        phi = x.reshape(-1, K, 4)[jnp.arange(x.shape[0]), a]
        numpyro.sample("y", dist.Normal(phi @ w, jnp.exp(-1.5 + phi @ v)), obs=y)

    rng = np.random.default_rng(0)
    phi, w, v = rng.normal(size=(rounds, K, 4)) / 2, *(0.3 * rng.normal(size=(2, 4)))
    noise = rng.normal(size=rounds)
    cls = ged.density_class(model, example=(phi[:3].reshape(3, -1), np.zeros(3, np.int64)))

    def safe(x: np.ndarray) -> np.ndarray:
        return np.minimum(np.exp(2 * (-1.5 + x.reshape(-1, K, 4)[:, 0] @ v)), 0.6)

    limit = ged.Constraint(
        cls, ged.variance(4.0), at_most=0.6, safe_value=safe, outcome="utility", name="spread"
    )
    problem = ged.Problem(
        n_actions=K, utility=ged.Utility(cls, ged.mean(-4, 4)), constraints=[limit], safe_action=0
    )

    def outcome(t: int, action: int) -> float:
        f = phi[t, action]
        return float(f @ w + np.exp(-1.5 + f @ v) * noise[t])

    return problem, phi, outcome


def stalls(rounds: int) -> None:
    """The same run three times: without JAX's persistent cache, with an empty one and with a full
    one.
    """
    print(f"a program without an exact form, {rounds} rounds; target {STALL:.0f} medians")
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        for what, environment in (
            ("no cache", {}),
            ("cache, empty at first", cache),
            ("the same cache", cache),
        ):
            print(
                f"{what}:\n{in_process(STALLING, str(rounds), **environment)}", end="", flush=True
            )
