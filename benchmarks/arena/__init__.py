"""Environments of the arena: plain objects with `context`, `outcome`, `utilities`, `costs` (exact
expectations) and `problem`.

    from arena import ENVIRONMENTS, make
        # scripts in benchmarks/; from elsewhere: benchmarks.arena
    world = make("disjoint", seed=3)
        # the seed draws the truth; contexts and outcomes take their own rng
    ged.simulate(world.problem(), world, ged.GEDUCB(world.problem()), rounds=1000, seed=3)

A new environment is a function of a seed, in a file here, and a line in `ENVIRONMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gedppl.errors import SettingError

from . import counts, finite, linear, misspecified, published, replays, uneven

ENVIRONMENTS: dict[str, Callable[[int], Any]] = {
    "disjoint": linear.disjoint,
    "treatments": linear.treatments,
    "shared": linear.shared,
    "intercept": linear.intercept,
    "rotated": linear.rotated,
    "two_dims": linear.two_dims,
    "tight": linear.tight,
    "wide": linear.wide,
    "lock_in": linear.lock_in,
    "finite": finite.finite,
    "finite_lock_in": finite.finite_lock_in,
    "logistic": counts.logistic,
    "logistic_arms": counts.logistic_arms,
    "counts": counts.counts,
    "toxicity": counts.toxicity,
    "heteroscedastic": uneven.heteroscedastic,
    "opb": published.opb,
    "oplb": published.oplb,
    "roful": published.roful,
    "hp_ucb": published.hp_ucb,
    "wrong_link": misspecified.wrong_link,
    "heavy_tails": misspecified.heavy_tails,
    "drift": misspecified.drift,
    "wrong_safe_value": misspecified.wrong_safe_value,
    "warfarin": replays.warfarin,
    "bikes": replays.bikes,
    "insurance": replays.insurance,
    "masses": replays.masses,
}
# real data: finitely many rows, truths that are estimates
REPLAYS = ("warfarin", "bikes", "insurance", "masses")


def make(name: str, seed: int = 0) -> Any:
    """An environment by name, with the truth of this seed. Make a new one for every run: some
    keep count of their rounds.
    """
    if name not in ENVIRONMENTS:
        raise SettingError(
            f"there is no environment {name!r}; choose from {', '.join(ENVIRONMENTS)}"
        )
    return ENVIRONMENTS[name](seed)
