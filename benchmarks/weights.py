"""Exploration weights: which rho and w the default mode should have, over a spread of problems.

    python benchmarks/weights.py --seeds 0 4
        every pair of weights on every problem, seeds 0..3 (to choose)
    python benchmarks/weights.py --seeds 1000 1008 --rho 0.7 --width 0.2
        the chosen pair on other seeds (to report)
    python benchmarks/weights.py --exploration counterfactual --rho 0.2 --width 0.1

Regret is in units of what always playing safe loses, so that problems count alike; a mean over
problems and seeds decides, because medians hide lock-in. `starved`: see `played.is_starved`.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from functools import partial

import numpy as np
from arena import make
from played import played

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
            found = played(
                partial(make, name),
                SPREAD[name],
                range(*given.seeds),
                lambda problem, _, seed, options=options: ged.GEDUCB(
                    problem, seed=seed, guard=None, **options
                ),
            )
            shares[rho, width].append(found.share)
            print(
                f"{name:15s} rho {rho:<4g} w {width:<4g} {found} | {found.seconds.mean():.1f} s",
                flush=True,
            )
    for rho, width in pairs:
        print(
            f"rho {rho:<4g} w {width:<4g} mean share of what always safe loses: "
            f"{np.mean(shares[rho, width]):.4f}"
        )


if __name__ == "__main__":
    main()
