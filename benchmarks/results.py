"""The arena: every algorithm in every environment, and RESULTS.md from it.

    python benchmarks/results.py run --seeds 20 --rounds 1000 --workers 2     what is missing in runs/arena, cell by cell
    python benchmarks/results.py write                                        benchmarks/RESULTS.md from what is there
    python benchmarks/results.py run --environments shared,finite --agents gedppl,oplb

A cell is one environment, one algorithm and one seed; the seed draws the truth, the contexts and the outcomes, the same for every
algorithm. Cells are kept as they come: a run that was ended goes on where it was, and a cell that fails is shown as failed.
An algorithm that does not fit an environment's models (a linear one with counts, say) is left out there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # for workers, which import this file from elsewhere

import joblib
import numpy as np
from arena import ENVIRONMENTS, make

import gedppl
from gedppl.study.baselines.by_name import BASELINES, GUARANTEED
from gedppl.study.cli.sweep import play

AGENTS = ("gedppl", "gedppl-theory", *BASELINES, "always-safe")
OURS = ("gedppl", "gedppl-theory")
FOLDER, PAGE = Path("runs/arena"), Path(__file__).parent / "RESULTS.md"
MISFIT = "SettingError"  # an algorithm's own word that it cannot play an environment


def run_cell(environment: str, agent: str, seed: int, rounds: int, delta: float) -> dict[str, Any]:
    """One cell; an error becomes its result."""
    begun = time.perf_counter()
    cell: dict[str, Any] = {"environment": environment, "agent": agent, "seed": seed, "rounds": rounds, "delta": delta}
    try:
        result = play(make(environment, seed).problem(), lambda: make(environment, seed), agent, seed, rounds, delta)
    except Exception as error:
        result = {"failed": f"{type(error).__name__}: {error}"}
    return cell | result | {"seconds": round(time.perf_counter() - begun, 3)}


def path_of(folder: Path, environment: str, agent: str, seed: int) -> Path:
    return folder / environment / f"{agent}-{seed}.json"


def fits(environment: str, agent: str, rounds: int) -> bool:
    """Whether an algorithm can play an environment: one round says so."""
    return not run_cell(environment, agent, 0, 1, 0.05).get("failed", "").startswith(MISFIT)


def run(folder: Path, environments: list[str], agents: list[str], seeds: int, rounds: int, delta: float, workers: int) -> None:
    """Run the cells that are missing."""
    wanted = [
        (e, a, s, rounds, delta) for e in environments for a in agents if fits(e, a, rounds) for s in range(seeds)
        if not path_of(folder, e, a, s).exists()
    ]  # fmt: skip
    begun = time.perf_counter()
    cells = joblib.Parallel(workers, return_as="generator_unordered")(joblib.delayed(run_cell)(*cell) for cell in wanted)
    for n, cell in enumerate(cells, 1):
        path = path_of(folder, cell["environment"], cell["agent"], cell["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(cell))
        part.replace(path)
        state = cell.get("failed") or f"regret {cell['regret']:.1f}, {cell['infeasible_rounds']} rounds above the limit"
        print(
            f"{n}/{len(wanted)} {cell['environment']} {cell['agent']} seed {cell['seed']}: {state}", file=sys.stderr, flush=True
        )
    if wanted:
        rate = len(wanted) / (time.perf_counter() - begun)
        print(f"{rate:.2f} cells a second with {workers} worker(s)", file=sys.stderr)


# the page -------------------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """environment -> agent -> cells, in the order of the registries."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for environment in ENVIRONMENTS:
        for agent in AGENTS:
            paths = sorted((folder / environment).glob(f"{agent}-[0-9]*.json"))
            cells = [json.loads(path.read_text()) for path in paths if path.stem == f"{agent}-{path.stem.rsplit('-', 1)[1]}"]
            if cells:
                found.setdefault(environment, {})[agent] = cells
    return found


HEAD = (
    "algorithm", "guarantee", "regret", "rounds above the limit", "excess cost a round", "safe action", "alarms", "ms an ask",
    "seeds",
)  # fmt: skip
AVERAGED = ("regret", "infeasible_rounds", "excess_cost", "safe_share", "alarms", "ask_ms")


def interval(values: np.ndarray) -> float:
    """Half the width of a 95% interval of a mean over seeds."""
    return float(1.96 * np.std(values, ddof=min(1, len(values) - 1)) / np.sqrt(len(values)))


def table_of(cells: dict[str, list[dict[str, Any]]]) -> list[str]:
    """One row an algorithm; means over the seeds that were complete."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for agent, found in cells.items():
        good = [c for c in found if "failed" not in c]
        if not good:
            lines.append(f"| {agent} | | failed: {found[0]['failed']} | | | | | | 0 of {len(found)} |")
            continue
        mean = {key: float(np.mean([c[key] for c in good])) for key in AVERAGED}
        error = interval(np.array([c["regret"] for c in good]))
        kept = "yes" if agent in (*OURS, *GUARANTEED, "always-safe") else "no"
        lines.append(
            f"| {agent} | {kept} | {mean['regret']:.1f} ± {error:.1f} | {mean['infeasible_rounds']:.1f} | "
            f"{mean['excess_cost']:.4f} | {mean['safe_share']:.0%} | {mean['alarms']:.1f} | {mean['ask_ms']:.2f} | "
            f"{len(good)} of {len(found)} |"
        )
    return lines


def verdict(cells: dict[str, list[dict[str, Any]]], well_specified: bool) -> str:
    """Where we stand among algorithms with a guarantee: the paired difference to the best of them, over common seeds."""
    if not well_specified:
        return "The models are wrong here: no algorithm's guarantee applies."
    regret = {
        agent: {c["seed"]: c["regret"] for c in found if "failed" not in c}
        for agent, found in cells.items() if agent in ("gedppl", *GUARANTEED)
    }  # fmt: skip
    ours = regret.pop("gedppl", {})
    others = {a: {s: r for s, r in found.items() if s in ours} for a, found in regret.items()}
    others = {a: found for a, found in others.items() if found}
    if not others:
        return "No other algorithm with a guarantee was run here."
    best = min(others, key=lambda a: np.mean(list(others[a].values())))
    seeds = sorted(others[best])
    mine, theirs = (np.array([part[s] for s in seeds]) for part in (ours, others[best]))
    difference, error = float((mine - theirs).mean()), interval(mine - theirs)
    word = "leads" if difference < 0 else "loses"
    sure = "" if len(seeds) > 1 and abs(difference) > error else " That is not more than chance over these seeds."
    return (
        f"Among algorithms with a guarantee GED-UCB {word}: {mine.mean():.1f} against {theirs.mean():.1f} of {best}, difference "
        f"{difference:+.1f} ± {error:.1f} over {len(seeds)} common seeds.{sure}"
    )


def write(folder: Path) -> None:
    """RESULTS.md."""
    results = read(folder)
    if not results:
        raise SystemExit(f"there are no results in {folder}; run them first: python benchmarks/results.py run")
    cells = [c for agents in results.values() for found in agents.values() for c in found]
    seeds, rounds = sorted({c["seed"] for c in cells}), sorted({c["rounds"] for c in cells})
    lines = [
        "# The arena", "",
        f"Generated by `python benchmarks/results.py write` from {len(cells)} cells: rounds {rounds}, seeds {seeds[0]} to "
        f"{seeds[-1]}, delta {sorted({c['delta'] for c in cells})}; gedppl {gedppl.__version__}, NumPy {np.__version__}, Python "
        f"{platform.python_version()}. Regret is against the best policy that keeps the limit in every round, mean over seeds "
        "with a 95% interval; the seed draws the truth. Rounds above the limit are those whose policy truly exceeds it. A "
        "guarantee is one for all rounds at once with probability 1 - delta, if the model is right.", "",
    ]  # fmt: skip
    for environment, agents in results.items():
        world, about = make(environment, 0), (ENVIRONMENTS[environment].__doc__ or "").strip()
        lines += [
            f"## {environment}",
            "",
            " ".join(about.split()),
            "",
            *table_of(agents),
            "",
            verdict(agents, world.guaranteed),
            "",
        ]
    PAGE.write_text("\n".join(lines))
    print(PAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS))
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER)
    given = parser.parse_args()
    if given.what == "write":
        write(given.out)
        return
    environments, agents = given.environments.split(","), given.agents.split(",")
    for names, known in ((environments, ENVIRONMENTS), (agents, AGENTS)):
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise SystemExit(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    run(given.out, environments, agents, given.seeds, given.rounds, given.delta, given.workers)


if __name__ == "__main__":
    main()
