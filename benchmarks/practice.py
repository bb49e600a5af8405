"""What a user gets: shares of an oracle's gain on problems as practitioners write them.

    python benchmarks/practice.py run
        every problem of benchmarks/fields, each in a process of its own: 200 rounds, seeds
        1000..1003, the default agent, one with credible limits, and two with sets that are not
        proved. `--only` names problems, `--agents` agents; results are added to practice.jsonl
    python benchmarks/practice.py show           the table of what is kept, nothing is run

The oracle knows the truth and keeps the same limits. Share: of what it gains over always playing
safe, all runs together, over all rounds and over the last quarter. Above: rounds whose policy
exceeds a limit under the true costs, in all runs. Processor time: of an `ask`, the median, with
everything that was told learned in it; of the longest ask after the first; and from the
declaration to the first decision in a process that has compiled nothing.

    guaranteed   `GEDUCB(problem)`
    credible     `confidence=credible_set(level=.95, source="laplace")`: trusts the prior
    chi-square, pointwise
        likelihood drops that prove nothing here, see `proof.py`: what lies between them and
        `guaranteed` is the price of the proof
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fields import FIELDS, Field
from track import commit

import gedppl as ged
from gedppl.errors import SettingError

KEPT = Path(__file__).with_name("practice.jsonl")
ROUNDS, SEEDS = 200, range(1000, 1004)


def _with_rule(name: str) -> Callable[[ged.Problem], Any]:
    def confidence(problem: ged.Problem) -> Any:
        from proof import SETS

        return SETS[name]

    return confidence


def _credible(problem: ged.Problem) -> Any:
    """By constraint: what is credible is the limit, the utility is explored as by default."""
    return {c.stream: ged.credible_set(level=0.95) for _, c in problem.learned}


AGENTS: dict[str, Callable[[ged.Problem], Any]] = {
    "guaranteed": lambda problem: None,
    "credible": _credible,
    "chi-square": _with_rule("chi-square"),
    "pointwise": _with_rule("pointwise"),
}


class Timed:
    """An agent, with the processor time of every `ask` and the word of every certificate."""

    def __init__(self, agent: ged.GEDUCB) -> None:
        self.agent, self.asks = agent, list[float]()
        self.words: dict[str, int] = {}
        self.fallbacks = 0

    def ask(self, x: np.ndarray) -> Any:
        begun = time.process_time()
        decision = self.agent.ask(x)
        self.asks.append(time.process_time() - begun)
        for one in decision.certificate.constraints:
            said = f"{one.kind}, {one.method}"
            self.words[said] = self.words.get(said, 0) + 1
        self.fallbacks += decision.certificate.fallback is not None
        return decision

    def tell(self, *told: Any) -> None:
        self.agent.tell(*told)


def play(field: Field, agent: str, seed: int, rounds: int) -> dict[str, Any]:
    """One run, and what it says by itself."""
    begun = time.process_time()
    problem, world = field.module.problem(), field.world(seed)
    timed = Timed(ged.GEDUCB(problem, seed=seed, confidence=AGENTS[agent](problem)))
    declared = time.process_time() - begun
    run = ged.simulate(problem, world, timed, rounds, seed)
    safe = run.utilities[:, problem.safe_action]
    gained = np.sum(run.policy * run.utilities, axis=1) - safe
    possible, last = run.best - safe, slice(-(rounds // 4), None)
    return {
        "gained": [float(gained.sum()), float(gained[last].sum())],
        "possible": [float(possible.sum()), float(possible[last].sum())],
        "above": int(run.infeasible.sum()),
        "words": timed.words,
        "fallbacks": timed.fallbacks,
        "alarms": [alarm.name for alarm in timed.agent.alarms],
        "ask": float(np.median(timed.asks[1:])),
        "longest": float(np.max(timed.asks[1:])),
        "first": declared + timed.asks[0],
    }


def measure(name: str, agents: list[str], rounds: int, seeds: range) -> dict[str, Any]:
    """Runs of one problem, the agents' in their order: the first of them compiles. Those whose set
    the problem's classes do not have are left out.
    """
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alarms and fallbacks are counted
        for agent in agents:
            with contextlib.suppress(SettingError):
                runs = [play(FIELDS[name], agent, seed, rounds) for seed in seeds]
                found[agent] = summary(runs)
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the runs of one agent."""
    words: dict[str, int] = {}
    for run in runs:
        for word, n in run["words"].items():
            words[word] = words.get(word, 0) + n
    gained, possible = (np.array([run[of] for run in runs]) for of in ("gained", "possible"))
    share, last = gained.sum(axis=0) / possible.sum(axis=0)
    each = gained[:, 0] / possible[:, 0]
    return {
        "share": round(float(share), 3),
        "last": round(float(last), 3),
        "runs": [round(float(end), 3) for end in (each.min(), each.max())],
        "above": sum(run["above"] for run in runs),
        "words": words,
        "fallbacks": sum(run["fallbacks"] for run in runs),
        "alarms": sorted(alarm for run in runs for alarm in run["alarms"]),
        "ask_ms": round(1e3 * float(np.median([run["ask"] for run in runs])), 1),
        "longest_s": round(max(run["longest"] for run in runs), 2),
        "first_s": round(runs[0]["first"], 1),
    }


def run(only: list[str], agents: list[str], rounds: int, seeds: range) -> None:
    """Every problem in a process of its own, so that first decisions compile what they need."""
    spawn = multiprocessing.get_context("spawn")
    for name in only or list(FIELDS):
        with spawn.Pool(1) as one:
            results = one.apply(measure, (name, agents, rounds, seeds))
        about = {"problem": name, "rounds": rounds, "seeds": [seeds.start, seeds.stop]}
        with KEPT.open("a") as file:
            file.write(json.dumps(commit() | about | {"results": results}) + "\n")
        print(f"{name}: {results}", flush=True)


def kept(path: Path = KEPT) -> dict[str, dict[str, Any]]:
    """The newest results of every problem and agent, with the commit that each is of."""
    found: dict[str, dict[str, Any]] = {}
    for line in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        one = found.setdefault(line["problem"], {})
        one |= {
            agent: numbers | {"commit": line["commit"]}
            for agent, numbers in line["results"].items()
        }
    return found


def short(value: float) -> str:
    """Without a leading zero.

    >>> short(0.184), short(-0.02)
    ('.18', '-.02')
    """
    return f"{value:.2f}".replace("0.", ".", 1)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Shares of the oracle's gain by problem and agent, with rounds above a limit in brackets."""
    rows = [
        f"| problem | {' | '.join(AGENTS)} | last quarter | word | alarms | ask, ms | longest, s | "
        "first, s |",
        "|---" * (len(AGENTS) + 7) + "|",
    ]
    for name in (name for name in FIELDS if name in results):
        agents = results[name]
        cells = [_share(agents.get(agent)) for agent in AGENTS]
        ours = agents["guaranteed"]
        words = sorted(ours["words"], key=lambda word: -ours["words"][word])
        alarms = ", ".join(sorted(set(ours["alarms"]))) or "none"
        rows.append(
            f"| {name} | {' | '.join(cells)} | {short(ours['last'])} | {'; '.join(words)} | "
            f"{alarms} | {ours['ask_ms']:.1f} | {ours['longest_s']:.2f} | {ours['first_s']:.1f} |"
        )
    inside = [results[name] for name, field in FIELDS.items() if field.inside and name in results]
    medians = [
        short(float(np.median([one[agent]["share"] for one in inside])))
        if all(agent in one for one in inside)
        else ""
        for agent in AGENTS
    ]
    rows.append(f"| median, models that hold | {' | '.join(medians)} |" + " |" * 7)
    return "\n".join(rows)


def _share(numbers: Mapping[str, Any] | None) -> str:
    return "" if numbers is None else f"{short(numbers['share'])} ({numbers['above']})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--only", nargs="+", default=[], choices=list(FIELDS))
    parser.add_argument("--agents", nargs="+", default=list(AGENTS), choices=list(AGENTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    given = parser.parse_args()
    if given.what == "run":
        seeds = range(SEEDS.start, SEEDS.start + given.seeds)
        run(given.only, given.agents, given.rounds, seeds)
    print(table(kept()))


if __name__ == "__main__":
    main()
