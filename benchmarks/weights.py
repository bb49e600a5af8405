"""Exploration weights: which rho and w the default mode should have, over a spread of problems.

    python benchmarks/weights.py --seeds 0 4
        every pair of weights on every problem, seeds 0..3 (to choose)
    python benchmarks/weights.py --seeds 1000 1008 --rho 0.7 --width 0.2
        the chosen pair on other seeds (to report)
    python benchmarks/weights.py --exploration counterfactual --rho 0.2 --width 0.1

Regret is in units of what always playing safe loses, so that problems count alike; a mean over
problems and seeds decides, because medians hide lock-in. `starved`: runs in which an action that is
best in more than a tenth of contexts got less than a hundredth of the plays although its worst case
allowed more in the last tenth of the run.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings

import numpy as np
from arena import make

import gedppl as ged

SPREAD = {
    "disjoint": 1000,
    "treatments": 1000,
    "shared": 1000,
    "two_dims": 1000,
    "tight": 1000,
    "wide": 600,
    "lock_in": 500,
    "finite": 500,
    "finite_lock_in": 500,
    "logistic": 500,
    "counts": 500,
}


def play(
    name: str, rounds: int, seed: int, options: dict[str, float | str]
) -> tuple[float, float, int, bool, float]:
    """Regret, that of always playing safe, infeasible rounds, whether a good action was starved,
    seconds of processor time.
    """
    world = make(name, seed=seed)
    problem = world.problem()
    agent = ged.GEDUCB(problem, seed=seed, guard=None, **options)
    begun = time.process_time()
    run = ged.simulate(problem, world, agent, rounds, seed)
    seconds = time.process_time() - begun
    best = np.array([world.utilities(x) for x in run.x])
    costs = np.array([np.asarray(world.costs(x)).reshape(-1, problem.n_actions) for x in run.x])
    limits = problem.limits
    oracle = np.array([ged.select_policy(u, c, limits) for u, c in zip(best, costs)])
    lost = np.sum(oracle * best, axis=1) - np.sum(run.policy * best, axis=1)
    safe = 0 if problem.safe_action is None else problem.safe_action
    always = np.sum(oracle * best, axis=1) - best[:, safe]
    infeasible = int(
        np.sum(
            np.any(
                np.einsum("tk,tjk->tj", run.policy, costs) > limits + 1e-9 * np.abs(limits), axis=1
            )
        )
    )
    wanted, got = oracle.mean(axis=0), run.policy.mean(axis=0)
    upper = run.cost_upper[-max(1, rounds // 10) :] if len(limits) else None
    fits = (
        np.ones(problem.n_actions, bool)
        if upper is None
        else np.mean(np.all(upper <= limits[:, None], axis=1), axis=0) > 0.1
    )
    starved = bool(np.any((wanted > 0.1) & (got < 0.01) & fits))
    return float(lost.sum()), float(always.sum()), infeasible, starved, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 4), metavar=("FIRST", "END"))
    parser.add_argument("--rho", type=float, nargs="+", default=[0.3, 0.5, 0.7, 1.0])
    parser.add_argument("--width", type=float, nargs="+", default=[0.1, 0.2, 0.4])
    parser.add_argument("--exploration", choices=["sets", "counterfactual"], default="sets")
    parser.add_argument("--only", nargs="+", default=list(SPREAD), choices=list(SPREAD))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    pairs = list(itertools.product(given.rho, given.width))
    shares: dict[tuple[float, float], list[float]] = {pair: [] for pair in pairs}
    for name in given.only:
        for rho, width in pairs:
            options = {"bonus_scale": rho, "width_scale": width, "exploration": given.exploration}
            runs = [play(name, SPREAD[name], seed, options) for seed in range(*given.seeds)]
            lost, always = (np.array([r[i] for r in runs]) for i in (0, 1))
            share = lost / always
            shares[rho, width].append(float(share.mean()))
            print(
                f"{name:15s} rho {rho:<4g} w {width:<4g} regret {lost.mean():8.1f} of always safe "
                f"{share.mean():.3f} | "
                f"infeasible rounds {sum(r[2] for r in runs)} | starved "
                f"{sum(r[3] for r in runs)}/{len(runs)} | "
                f"{np.mean([r[4] for r in runs]):.1f} s",
                flush=True,
            )
    for rho, width in pairs:
        print(
            f"rho {rho:<4g} w {width:<4g} mean share of what always safe loses: "
            f"{np.mean(shares[rho, width]):.4f}"
        )


if __name__ == "__main__":
    main()
