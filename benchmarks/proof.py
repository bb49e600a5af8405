"""What the guarantee costs: the same agent with sets that are not proved, and the safe peers. Run
by `decide.py proof`.

For each problem, regret against the constrained oracle and infeasible rounds, summed over seeds, of

    ours         the default: sets that cover at all times and under adaptive data
    chi-square
        likelihood drop chi2_{D, 1-delta} / 2: right for a fixed design at one time; proves nothing
        here
    pointwise
        likelihood drop chi2_{1, 1-delta} / 2: right for one direction at one time; proves nothing
        here
    safe peer
        the best of the baselines whose limits are proved, on the same seeds, where one serves the
        problem

The middle two are the limits of what sets of this kind could reach: what lies between them and ours
is the price of the proof. On linear problems ours holds a limit against a policy's own worst case,
one parameter for all actions; these sets hold it action by action.
Half off: the first round by which half of the decisions so far left the
safe action, the median over seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from arena import make
from scipy.stats import chi2

import gedppl as ged
from gedppl.errors import GedError
from gedppl.learning.radius import ChiSquare, View
from gedppl.study.baselines.by_name import GUARANTEED, make_baseline

SPREAD = {
    "treatments": 1000,
    "disjoint": 1000,
    "shared": 1000,
    "two_dims": 1000,
    "tight": 1000,
    "wide": 600,
    "lock_in": 500,
    "finite": 500,
    "logistic": 500,
    "logistic_arms": 1000,
    "counts": 500,
    "masses": 569,  # online testing with one classifier: models/diagnosis.py
}


@dataclass(frozen=True)
class Pointwise(ChiSquare):
    """One direction at one time."""

    def radius(self, view: View) -> float:
        return float(chi2.isf(view.delta, 1)) / 2


SETS: dict[str, Any] = {"ours": None, "chi-square": ChiSquare(), "pointwise": Pointwise()}
Agent = Callable[[ged.Problem, Any, int], Any]  # problem, world, seed


@dataclass
class Played:
    """Runs of one agent on one problem, an entry for each seed."""

    regret: np.ndarray
    always_safe: np.ndarray
    infeasible: int
    half_off: float

    def __str__(self) -> str:
        off = "never" if not np.isfinite(self.half_off) else f"{self.half_off:.0f}"
        share = np.mean(self.regret / self.always_safe)
        return (
            f"{self.regret.mean():8.1f} of always safe {share:.3f} | infeasible "
            f"{self.infeasible:4d} | half off {off}"
        )


def played(name: str, rounds: int, seeds: range, agent_for: Agent) -> Played:
    runs = [_one(name, rounds, seed, agent_for) for seed in seeds]
    regret, always, infeasible, off = (np.array(part, float) for part in zip(*runs))
    return Played(regret, always, int(infeasible.sum()), float(np.median(off)))


def _one(name: str, rounds: int, seed: int, agent_for: Agent) -> tuple[float, float, int, float]:
    world = make(name, seed=seed)
    problem = world.problem()
    run = ged.simulate(problem, world, agent_for(problem, world, seed), rounds, seed)
    utility = np.array([world.utilities(x) for x in run.x])
    costs = np.array([np.asarray(world.costs(x)).reshape(-1, problem.n_actions) for x in run.x])
    best = np.array([ged.select_policy(u, c, problem.limits) for u, c in zip(utility, costs)])
    top = np.sum(best * utility, axis=1)
    over = np.einsum("tk,tjk->tj", run.policy, costs) > problem.limits + 1e-9 * np.abs(
        problem.limits
    )
    safe = 0 if problem.safe_action is None else problem.safe_action
    off = np.cumsum(run.action != safe) >= 0.5 * np.arange(1, rounds + 1)
    settled = off & (np.arange(rounds) >= 20)  # one lucky first draw is no half
    first = float(np.argmax(settled) + 1) if settled.any() else np.inf
    return (
        float(np.sum(top - np.sum(run.policy * utility, axis=1))),
        float(np.sum(top - utility[:, safe])),
        int(over.any(1).sum()),
        first,
    )


def best_peer(name: str, rounds: int, seeds: range) -> tuple[str, Played] | None:
    """The safe baseline of least mean regret among those that serve the problem."""
    found: list[tuple[str, Played]] = []
    for peer in GUARANTEED:

        def agent_for(problem: ged.Problem, world: Any, seed: int, peer: str = peer) -> Any:
            x = make(name, seed=seed).context(np.random.default_rng(0))
            return make_baseline(peer, problem, x, rounds=rounds, seed=seed)

        try:
            found.append((peer, played(name, rounds, seeds, agent_for)))
        except GedError:  # it needs a linear, or a finite, problem, or one cost of the safe action
            continue
    return min(found, key=lambda one: float(one[1].regret.mean()), default=None)


def proof(seeds: range, only: list[str]) -> None:
    print(f"seeds {seeds.start}..{seeds.stop - 1}, delta 0.05: mean regret")
    for name in only or list(SPREAD):
        rounds = SPREAD[name]
        print(f"{name}, T={rounds}", flush=True)
        found: dict[str, Played] = {}
        for label, rule in SETS.items():

            def agent_for(
                problem: ged.Problem, world: Any, seed: int, rule: Any = rule
            ) -> ged.GEDUCB:
                return ged.GEDUCB(problem, seed=seed, guard=None, confidence=rule)

            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", ged.FallbackWarning)
                    found[label] = played(name, rounds, seeds, agent_for)
            except (GedError, ged.FallbackWarning):
                print(f"  {label:11s} there is none for this class", flush=True)
            else:
                print(f"  {label:11s} {found[label]}", flush=True)
        peer = best_peer(name, rounds, seeds)
        if peer is None:
            print("  safe peer   none serves this problem", flush=True)
        else:
            ratio = found["ours"].regret.mean() / peer[1].regret.mean()
            print(f"  safe peer   {peer[1]} ({peer[0]}); ours is {ratio:.3f} of it", flush=True)
