"""What the guarantee costs: the same agent with sets that are not proved, and the safe peers. Run
by `decide.py proof`, and by `decide.py targets` for the problems that have one.

For each problem, regret against the constrained oracle and infeasible rounds, summed over seeds, of

    ours         the default: sets that cover at all times and under adaptive data
    chi-square
        likelihood drop chi2_{D, 1-delta} / 2: right for a fixed design at one time; proves nothing
        here
    pointwise
        likelihood drop chi2_{1, 1-delta} / 2: right for one direction at one time; proves nothing
        here
    peer
        the best, on the same seeds, of the rivals whose limits are proved and that serve the
        problem

The middle two are the limits of what sets of this kind could reach: what lies between them and ours
is the price of the proof. On linear problems ours holds a limit against a policy's own worst case,
one parameter for all actions; these sets hold it action by action.
Half off: the first round by which half of the decisions so far left the
safe action, the median over seeds.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from arena import make
from arena.replays import script_world
from played import Agent, Played, World, played
from regret import PROBLEMS, Drawn, oplb
from scipy.stats import chi2
from track import commit

import gedppl as ged
from gedppl.errors import GedError
from gedppl.learning.radius import ChiSquare, View
from gedppl.study.baselines.by_name import GUARANTEED, make_baseline

KEPT = Path(__file__).with_name("targets.jsonl")


@dataclass(frozen=True)
class Pointwise(ChiSquare):
    """One direction at one time."""

    def radius(self, view: View) -> float:
        return float(chi2.isf(view.delta, 1)) / 2


@dataclass(frozen=True)
class Unified(ChiSquare):
    """The best published set for logistic models: theta with

        l(theta_hat) - l(theta) <= log(1 / delta) + d log(max(e, 2 e S L / d)),

    at all times and for adaptive data, where |theta| <= S and L bounds the slope of l: n times the
    longest feature vector. (Lee, Yun, Jun, "A unified confidence sequence for generalized linear
    models, with applications to bandits", NeurIPS 2024, theorem 3.1; their bandit is this set
    without limits.) theta_hat here need not lie in the ball, which makes the set smaller, if
    anything.
    """

    guaranteed: bool = True
    norm: float = 1.0  # S
    longest: float = 1.0

    def radius(self, view: View) -> float:
        steep = 2 * math.e * self.norm * self.longest * view.n / max(view.dim, 1)
        return math.log(1 / view.delta) + view.dim * math.log(max(math.e, steep))

    def describe(self, delta: float) -> str:
        return f"unified confidence sequence for generalised linear models at level {delta:g}"


SETS: dict[str, Any] = {"ours": None, "chi-square": ChiSquare(), "pointwise": Pointwise()}


def with_set(rule: Any, **options: Any) -> Agent:
    """Our agent on sets by this rule."""
    return lambda problem, world, seed: ged.GEDUCB(
        problem, seed=seed, guard=None, confidence=rule, **options
    )


# the problems -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A problem with the rivals that ours is measured beside."""

    world: World
    rounds: int
    peers: Mapping[str, Agent] = field(default_factory=dict)


def _baseline(name: str, rounds: int, peer: str) -> Agent:
    def agent_for(problem: ged.Problem, world: Any, seed: int) -> Any:
        x = make(name, seed=seed).context(np.random.default_rng(0))
        return make_baseline(peer, problem, x, rounds=rounds, seed=seed)

    return agent_for


def _arena(name: str, rounds: int, **more: Agent) -> Case:
    peers = {peer: _baseline(name, rounds, peer) for peer in GUARANTEED}
    return Case(partial(make, name), rounds, peers | more)


def _linear(name: str, alpha: float | None, *, exact: bool = False) -> Case:
    """A problem of `regret.py` beside OPLB; `alpha`: its alpha_r, where with its own it hardly
    leaves the safe action.
    """
    rounds = 2000

    def world(seed: int) -> Drawn:
        return Drawn(PROBLEMS[name](np.random.default_rng([seed, 0]), rounds), exact)

    def rival(problem: ged.Problem, drawn: Drawn, seed: int) -> Any:
        return oplb(drawn.world, seed, alpha)

    return Case(world, rounds, {"OPLB": rival})


def _before(name: str, rounds: int) -> Case:
    """Beside the counterfactual pass on the same sets, which was the default before."""
    before = with_set(None, exploration="counterfactual")
    return Case(partial(make, name), rounds, {"the counterfactual pass": before})


def published(norm: float, longest: float) -> dict[str, Agent]:
    """The published set under our limits, explored with as ours is and as its authors do."""
    rule = Unified(norm=norm, longest=longest)
    return {
        "unified": with_set(rule),
        "unified-optimistic": with_set(rule, bonus_scale=1.0, width_scale=0.0),
    }


CASES: dict[str, Case] = {
    "bandit": Case(lambda seed: script_world("bandit"), 1000),
    "linear": _linear("shared", None),
    "linear, exact safe value": _linear("shared", None, exact=True),
    "linear, two dimensions": _linear("two_dims", 1.0),
    "linear, tight": _linear("tight", 1.0),
    "linear, tight, exact safe value": _linear("tight", 1.0, exact=True),
    "finite, by sets": _before("finite", 500),
    "finite_lock_in, by sets": _before("finite_lock_in", 500),
    "treatments": _arena("treatments", 1000),
    "disjoint": _arena("disjoint", 1000),
    "shared": _arena("shared", 1000),
    "two_dims": _arena("two_dims", 1000),
    "tight": _arena("tight", 1000),
    "wide": _arena("wide", 600),
    "lock_in": _arena("lock_in", 500),
    "finite": _arena("finite", 500),
    # coefficients within 6, four of them, and features up to 1 and three amounts in [0, 1]
    "logistic": _arena("logistic", 500, **published(12.0, 2.0)),
    "logistic_arms": _arena("logistic_arms", 1000),
    "counts": _arena("counts", 500),
    "masses": _arena("masses", 569),  # online testing with one classifier: models/diagnosis.py
}
SPREAD = list(CASES)[list(CASES).index("treatments") :]  # those of the arena


# measuring ----------------------------------------------------------------------------------------

Results = dict[str, dict[str, Any]]  # agent -> numbers; the best peer under "peer"


def measure(name: str, seeds: range) -> Results:
    """Runs of all agents on one problem; the result is kept in targets.jsonl, with the commit."""
    case, found = CASES[name], dict[str, Played]()
    print(f"{name}, T={case.rounds}, seeds {seeds.start}..{seeds.stop - 1}", flush=True)
    for label, rule in SETS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error", ged.FallbackWarning)
            _try(found, label, case, seeds, with_set(rule))
    peers: dict[str, Played] = {}
    for label, agent_for in case.peers.items():
        _try(peers, label, case, seeds, agent_for)
    results = {label: _numbers(part) for label, part in found.items()}
    if peers:
        best = min(peers, key=lambda peer: float(peers[peer].regret.mean()))
        results["peer"] = _numbers(peers[best]) | {"name": best}
    line = commit() | {"problem": name, "seeds": [seeds.start, seeds.stop], "results": results}
    with KEPT.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return results


def _try(found: dict[str, Played], label: str, case: Case, seeds: range, agent_for: Agent) -> None:
    """Not every class has every set, and a baseline may need a linear problem, or a finite one, or
    one cost of the safe action.
    """
    try:
        found[label] = played(case.world, case.rounds, seeds, agent_for)
    except (GedError, ged.FallbackWarning):
        return
    print(f"  {label:18s} {found[label]}", flush=True)


def _numbers(part: Played) -> dict[str, Any]:
    return {
        "regret": round(float(part.regret.mean()), 2),
        "share": round(part.share, 4),
        "infeasible": int(part.infeasible.sum()),
        "starved": int(part.starved.sum()),
        "half_off": part.left_safe if np.isfinite(part.left_safe) else None,
    }


def kept() -> dict[str, dict[str, Any]]:
    """The newest line of every problem."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {line["problem"]: line for line in map(json.loads, lines)}


def proof_table(lines: Mapping[str, Mapping[str, Any]]) -> str:
    """Shares of what always playing safe loses, with rounds above a limit in brackets."""
    rows = [
        "| problem | proved | chi-square | pointwise | best safe peer |",
        "|---|---|---|---|---|",
    ]
    for name in (name for name in SPREAD if name in lines):
        results = lines[name]["results"]
        cells = [_cell(results.get(label)) for label in (*SETS, "peer")]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(numbers: Mapping[str, Any] | None) -> str:
    return "" if numbers is None else f"{short(numbers['share'])} ({numbers['infeasible']})"


def short(value: float) -> str:
    """Without a leading zero.

    >>> short(0.1684), short(78.94), short(-0.5)
    ('.168', '78.9', '-.500')
    """
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}".replace("0.", ".", 1)


def proof(seeds: range, only: list[str], *, show: bool) -> None:
    """Measure, unless only what is kept shall be shown, and print the table of what is kept."""
    if not show:
        for name in only or SPREAD:
            measure(name, seeds)
    print(proof_table(kept()))
