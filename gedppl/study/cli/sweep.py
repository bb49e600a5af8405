"""Many runs of many agents: cells of a table, kept one by one, spread over workers, resumable.

A cell is one agent with one seed. All agents meet the same contexts and potential outcomes at the
same seed. A cell that fails says why in the table and ends nothing else; what is in the folder
already is not run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from gedppl.errors import DeclarationError, RunFileError, SettingError
from gedppl.problem import Problem
from gedppl.study.cli.scripts import NO_AGENTS, Makers, Script, loaded, make_agent
from gedppl.study.simulation import Run, simulate

POINTS = 100  # of a regret curve
BACKENDS = ("loky", "dask", "ray")
ATTEMPTS = 3  # a worker that dies takes its cells with it; they are tried again
Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run: everything that a worker needs."""

    script: str
    agent: str
    seed: int
    rounds: int
    delta: float
    mode: str

    def file(self, folder: Path) -> Path:
        """Where its result is kept."""
        return folder / "cells" / f"{self.agent}-{self.seed}.json"


# one cell -----------------------------------------------------------------------------------------


@lru_cache
def _script_of_worker(path: str) -> Script:
    """A script stays loaded for as long as its worker lives: its models are compiled once."""
    return contextlib.ExitStack().enter_context(loaded(Path(path)))


def run_cell(cell: Cell, script: Script | None = None) -> Result:
    """Run one cell here; an error becomes its result."""
    begun = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            script = script or _script_of_worker(cell.script)
            result = play(
                script.problem,
                script.new_environment,
                cell.agent,
                cell.seed,
                cell.rounds,
                cell.delta,
                cell.mode,
                script.agents,
            )
    except Exception as error:
        result = {"failed": f"{type(error).__name__}: {error}"}
    return (
        asdict(cell)
        | result
        | {"seconds": round(time.perf_counter() - begun, 3), "worker": os.getpid()}
    )


def play(
    problem: Problem,
    new_world: Callable[[], Any],
    agent: str,
    seed: int,
    rounds: int,
    delta: float = 0.05,
    mode: str = "default",
    own: Makers = NO_AGENTS,
) -> Result:
    """One agent in a new world: its summary, a regret curve, excess cost, and the time of an
    `ask`.
    """
    player = make_agent(
        agent, problem, new_world(), seed=seed, delta=delta, mode=mode, rounds=rounds, own=own
    )
    timed = _Timed(player)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # alarms and safe rounds are counted
        run = simulate(problem, new_world(), timed, rounds, seed)
    if run.interrupted:
        raise KeyboardInterrupt
    timed.note_alarms()
    return measured(run) | {
        "ask_ms": 1e3 * float(np.median(timed.times)),
        "alarms": len(timed.alarm_rounds),
        "alarm_rounds": timed.alarm_rounds,
    }


def measured(run: Run) -> Result:
    """The numbers of a run that a comparison shows."""
    known = run.truth_known
    at = np.unique(np.linspace(0, len(run) - 1, min(POINTS, len(run))).astype(int))
    excess = np.maximum(run.cost - run.limit, 0).sum(axis=1).mean() if known else None
    return run.summary() | {
        "curve_rounds": (at + 1).tolist(),
        "curve": run.regret[at].tolist() if known else None,
        "excess_cost": None if excess is None else float(excess),
    }


class _Timed:
    """An agent whose `ask` is timed, in seconds of processor time, and whose alarms are kept
    also where they are acknowledged.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self.times: list[float] = []
        self.alarm_rounds: dict[str, int] = {}  # name -> outcomes seen when it was first raised

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def ask(self, x: np.ndarray) -> Any:
        begun = time.process_time()
        try:
            decision = self._agent.ask(x)
        except DeclarationError:  # the simulation acknowledges it and goes on
            self.note_alarms()
            raise
        self.times.append(time.process_time() - begun)
        return decision

    def note_alarms(self) -> None:
        """Remember what is alarming now; baselines watch nothing."""
        for alarm in getattr(self._agent, "alarms", ()):
            self.alarm_rounds.setdefault(alarm.name, int(alarm.round))


# many cells ---------------------------------------------------------------------------------------


def sweep(
    script: Script,
    agents: list[str],
    seeds: Iterable[int],
    folder: Path,
    *,
    rounds: int,
    delta: float = 0.05,
    mode: str = "default",
    workers: int = 1,
    backend: str = "loky",
    address: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Run what the folder does not have yet, keeping every result as it comes; all results, in
    the order of agents and seeds.
    """
    path = script.path.resolve()
    cells = [
        Cell(str(path), agent, seed, rounds, delta, mode) for seed in seeds for agent in agents
    ]
    mark = _mark(folder, path, cells[0])
    done = {cell: result for cell in cells if (result := _kept(cell, folder)) is not None}
    left = [cell for cell in cells if cell not in done]
    if done:
        say(f"{len(done)} of {len(cells)} cells are in {folder} already")
    mark()
    begun = time.perf_counter()
    with _spread(script, workers, backend, address) as spread:
        for result in _attempted(left, spread, say):
            cell = Cell(**{name: result[name] for name in Cell.__dataclass_fields__})
            _keep(cell, folder, result)
            done[cell] = result
            state = (
                f"failed: {result['failed']}"
                if "failed" in result
                else f"regret {result['regret']}"
            )
            say(f"{len(done)}/{len(cells)} {cell.agent}, seed {cell.seed}: {state}")
    if left:
        say(
            f"{len(left) / max(time.perf_counter() - begun, 1e-9):.2f} cells a second with "
            f"{workers} worker(s)"
        )
    return [done[cell] for cell in sorted(cells, key=lambda c: (agents.index(c.agent), c.seed))]


def _attempted(
    cells: list[Cell], spread: Callable[[list[Cell]], Iterator[Result]], say: Callable[[str], None]
) -> Iterator[Result]:
    """Results as they come. Cells lost with a worker are tried again, and fail after `ATTEMPTS`."""
    left, why = {(c.agent, c.seed): c for c in cells}, ""
    for _ in range(ATTEMPTS):
        if not left:
            return
        try:
            for result in spread(list(left.values())):
                left.pop((result["agent"], result["seed"]), None)
                yield result
        except Exception as error:  # what a scheduler raises when a worker dies is its own
            first = str(error).splitlines()[0] if str(error) else "a worker was lost"
            why = f"{type(error).__name__}: {first}"
            say(f"{why}; trying again")
    for cell in left.values():
        yield asdict(cell) | {
            "failed": f"a worker was lost {ATTEMPTS} times ({why})",
            "seconds": 0.0,
        }


@contextlib.contextmanager
def _spread(
    script: Script, workers: int, backend: str, address: str | None
) -> Iterator[Callable[[list[Cell]], Iterator[Result]]]:
    """A map over cells: here, or by joblib on processes, Dask or Ray."""
    if backend not in BACKENDS:
        raise SettingError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if workers == 1 and backend == "loky":
        yield lambda cells: map(partial(run_cell, script=script), cells)
        return
    try:
        import joblib
    except ModuleNotFoundError as error:
        raise SettingError("more than one worker needs joblib: pip install joblib") from error
    with _cluster(backend, address), joblib.parallel_config(backend, n_jobs=workers):
        yield lambda cells: _parallel(joblib, cells)


def _parallel(joblib: Any, cells: list[Cell]) -> Iterator[Result]:
    able = joblib.parallel.get_active_backend()[0].supports_return_generator
    run = joblib.Parallel(return_as="generator_unordered" if able else "list", batch_size=1)
    yield from run(joblib.delayed(run_cell)(cell) for cell in cells)


@contextlib.contextmanager
def _cluster(backend: str, address: str | None) -> Iterator[None]:
    """Connect to the scheduler at an address; without one, a local cluster of the backend's own
    choosing.
    """
    if backend == "dask":
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            raise SettingError("--backend dask needs Dask: pip install distributed") from error
        with Client(address, set_as_default=True) if address else Client():
            yield
    elif backend == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ModuleNotFoundError as error:
            raise SettingError("--backend ray needs Ray: pip install ray") from error
        mine = not ray.is_initialized()
        if mine:
            ray.init(
                address=address, include_dashboard=None if address else False, log_to_driver=False
            )
        register_ray()
        try:
            yield
        finally:
            if mine:
                ray.shutdown()
    else:
        yield


# what is kept -------------------------------------------------------------------------------------


def _mark(folder: Path, script: Path, cell: Cell) -> Callable[[], None]:
    """Check that the folder's cells, if any, are of this script and these settings; returns what
    writes the mark.
    """
    settings = {
        "script": hashlib.sha256(script.read_bytes()).hexdigest(),
        "rounds": cell.rounds,
        "delta": cell.delta,
        "mode": cell.mode,
    }
    path = folder / "sweep.json"
    if path.exists():
        try:
            before = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunFileError(f"{path} cannot be read: {error}; choose another --out") from error
        changed = sorted(name for name in settings if before.get(name) != settings[name])
        if changed:
            raise SettingError(
                f"the cells in {folder} were made with another "
                f"{' and '.join(changed)}; choose another --out"
            )

    def write() -> None:
        try:
            (folder / "cells").mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings))
        except OSError as error:
            raise SettingError(
                f"cannot write to {folder}: {error.strerror or error}; choose another --out"
            ) from error

    return write


def _kept(cell: Cell, folder: Path) -> Result | None:
    """A cell's result from disk; None if it is not there, cannot be read, or failed."""
    try:
        result = json.loads(cell.file(folder).read_text())
    except (OSError, ValueError):
        return None
    whole = (
        isinstance(result, dict) and "failed" not in result and result.get("rounds") == cell.rounds
    )
    return (
        result
        if whole and result.get("agent") == cell.agent and result.get("seed") == cell.seed
        else None
    )


def _keep(cell: Cell, folder: Path, result: Result) -> None:
    path = cell.file(folder)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.replace(path)  # whole or not at all
