"""The arena: every algorithm in every environment, and RESULTS.md with its picture from it.

    python benchmarks/results.py
        run what is missing in runs/arena and of `published.py`, then write the page
    python benchmarks/results.py run --environments shared --workers 2     one piece of it
    python benchmarks/results.py write
        benchmarks/RESULTS.md from what is there
    python benchmarks/results.py --seeds 2 --rounds 50 --out /tmp/arena --page /tmp/arena.md
        a small one, elsewhere

A cell is one environment, one algorithm and one seed; the seed draws the truth, the contexts and
the outcomes, the same for every algorithm. Cells are kept as they come: a run that was ended goes
on where it was, and a cell that fails is shown as failed and tried again next time. An algorithm
that does not fit an environment's models (a linear one with counts, say) is left out there. Seeds
begin at 1000: exploration weights were chosen on the seeds before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # for workers, which import this file from elsewhere

import jax
import joblib
import numpy as np
import numpyro
from arena import ENVIRONMENTS, make
from published import SETTINGS
from results_page import write_page

import gedppl
from gedppl.study.baselines.by_name import BASELINES
from gedppl.study.cli.sweep import play

AGENTS = ("gedppl", *BASELINES, "always-safe")
FOLDER, PAGE = Path("runs/arena"), Path(__file__).parent / "RESULTS.md"
MISFIT = "SettingError"  # an algorithm's own word that it cannot play an environment
FIRST_SEED, SEEDS, ROUNDS = 1000, 8, 1000
# rounds, seeds: dear models
SMALLER = {"warfarin": (600, 4), "bikes": (600, 4), "insurance": (300, 4), "masses": (500, 8)}

Cells = dict[str, dict[str, list[dict[str, Any]]]]  # environment -> agent -> cells


def size_of(environment: str, rounds: int | None, seeds: int | None) -> tuple[int, int]:
    """Rounds and seeds of an environment, unless they are given."""
    own_rounds, own_seeds = SMALLER.get(environment, (ROUNDS, SEEDS))
    return rounds or own_rounds, seeds or own_seeds


def run_cell(
    environment: str, agent: str, seed: int, rounds: int, delta: float, made_by: str = ""
) -> dict[str, Any]:
    """One cell; an error becomes its result."""
    begun = time.process_time()
    cell: dict[str, Any] = {
        "environment": environment,
        "agent": agent,
        "seed": seed,
        "rounds_asked": rounds,
        "delta": delta,
    }
    try:
        world = make(environment, seed)
        rounds = min(rounds, len(world)) if hasattr(world, "__len__") else rounds
        result = play(world.problem(), lambda: make(environment, seed), agent, seed, rounds, delta)
    except Exception as error:
        result = {"failed": f"{type(error).__name__}: {error}"}
    return cell | result | {"seconds": round(time.process_time() - begun, 3), "made_by": made_by}


def made_by() -> str:
    """The commit and versions behind a cell."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            cwd=here,
        )
        name = commit.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        name = "unknown"
    return (
        f"commit {name}, gedppl {gedppl.__version__}, Python {platform.python_version()}, NumPy "
        f"{np.__version__}, JAX "
        f"{jax.__version__}, NumPyro {numpyro.__version__}"
    )


def path_of(folder: Path, environment: str, agent: str, seed: int) -> Path:
    return folder / environment / f"{agent}-{seed}.json"


def kept(path: Path, rounds: int, delta: float) -> bool:
    """Whether a cell is there, whole, and of this size; one that failed is tried again."""
    try:
        cell = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return "failed" not in cell and (cell.get("rounds_asked"), cell.get("delta")) == (rounds, delta)


def fits(environment: str, agent: str) -> bool:
    """Whether an algorithm can play an environment: one round says so."""
    return not run_cell(environment, agent, 0, 1, 0.05).get("failed", "").startswith(MISFIT)


def run(
    folder: Path, environments: list[str], agents: list[str], given: argparse.Namespace
) -> None:
    """Run the cells that are missing."""
    wanted, by = [], made_by()
    for e in environments:
        rounds, seeds = size_of(e, given.rounds, given.seeds)
        for a in agents:
            numbers = range(given.first_seed, given.first_seed + seeds)
            left = [s for s in numbers if not kept(path_of(folder, e, a, s), rounds, given.delta)]
            wanted += (
                [(e, a, s, rounds, given.delta, by) for s in left] if left and fits(e, a) else []
            )
    begun = time.perf_counter()
    cells = joblib.Parallel(given.workers, return_as="generator_unordered")(
        joblib.delayed(run_cell)(*cell) for cell in wanted
    )
    for n, cell in enumerate(cells, 1):
        path = path_of(folder, cell["environment"], cell["agent"], cell["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(cell))
        part.replace(path)
        state = (
            cell.get("failed")
            or f"regret {cell['regret']:.1f}, {cell['infeasible_rounds']} rounds above the limit"
        )
        print(
            f"{n}/{len(wanted)} {cell['environment']} {cell['agent']} seed {cell['seed']}: {state}",
            file=sys.stderr,
            flush=True,
        )
    if wanted:
        rate = len(wanted) / (time.perf_counter() - begun)
        print(f"{rate:.2f} cells a second with {given.workers} worker(s)", file=sys.stderr)


def run_published(folder: Path, given: argparse.Namespace) -> None:
    """Run the published settings that are missing, each kept as one file of JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting, cells in SETTINGS.items():
        path = folder / f"{setting}.jsonl"
        if path.exists():
            continue
        found = [cell.to_dict() for cell in cells(given.rounds, given.seeds, 0)]
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(cell) + "\n" for cell in found))
        part.replace(path)
        print(f"published: {setting}, {len(found)} cells", file=sys.stderr, flush=True)


def read_published(folder: Path) -> list[dict[str, Any]]:
    """The cells of published settings, in the order of the registry."""
    paths = [folder / f"{setting}.jsonl" for setting in SETTINGS]
    return [
        json.loads(line)
        for path in paths
        if path.exists()
        for line in path.read_text().splitlines()
    ]


def read(folder: Path) -> Cells:
    """The cells in a folder, in the order of the registries."""
    found: Cells = {}
    for environment in ENVIRONMENTS:
        every = [
            json.loads(path.read_text()) for path in sorted((folder / environment).glob("*.json"))
        ]
        for agent in AGENTS:
            cells = [cell for cell in every if cell["agent"] == agent]
            if cells:
                found.setdefault(environment, {})[agent] = cells
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("all", "run", "write"), default="all")
    parser.add_argument(
        "--environments", help="a piece of it: these alone, and none of the published settings"
    )
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument(
        "--seeds", type=int, help=f"of every environment ({SEEDS}, fewer where models are dear)"
    )
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument(
        "--rounds", type=int, help=f"of every environment ({ROUNDS}, fewer where models are dear)"
    )
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    environments = given.environments.split(",") if given.environments else list(ENVIRONMENTS)
    agents = given.agents.split(",")
    for names, known in ((environments, ENVIRONMENTS), (agents, AGENTS)):
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise SystemExit(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    if given.what != "write":
        run(given.out, environments, agents, given)
        if not given.environments:
            run_published(given.out / "published", given)
    if given.what != "run":
        found = read(given.out)
        if not found:
            raise SystemExit(
                f"there are no results in {given.out}; run them first: python "
                "benchmarks/results.py run"
            )
        print(write_page(found, given.page, read_published(given.out / "published")))


if __name__ == "__main__":
    main()
