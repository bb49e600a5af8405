"""Would processes of single actions help a finite class? Members left and mean width of the cost
bounds, without and with.

    python benchmarks/finite_groups.py            six seeds of the arena's two finite problems

`all rows`: one likelihood-ratio process at delta. `split`: all rows at delta / 2 and each action's
rows at delta / 2K; a member must be in every set. The design is fixed: actions alike, or the safe
one four times out of five.
"""

from __future__ import annotations

import argparse

import numpy as np
from arena import make
from scipy.special import logsumexp

DELTA, ROWS, SIZES, CONTEXTS = 0.05, 500, (50, 150, 500), 20


def compared(name: str, seed: int, mostly_safe: bool) -> np.ndarray:
    """(sizes, 4): members left and mean width, under all rows and split."""
    world = make(name, seed=seed)
    problem = world.problem()
    K, constraint = problem.n_actions, problem.constraints[0]
    rng = np.random.default_rng(seed)
    x = np.array([world.context(rng) for _ in range(ROWS)])
    a = rng.integers(0, K, ROWS)
    if mostly_safe:
        a = np.where(rng.random(ROWS) < 0.8, problem.safe_action, a)
    z = np.array([np.ravel(world.outcome(x[i], int(a[i]), rng)[1])[0] for i in range(ROWS)], float)
    constraint.model.trace(x[:1], a[:1])
    # (M, ROWS)
    logs = np.asarray(constraint.model.log_likelihood(constraint.model.every, x, a, z), float)
    grid = np.repeat(x[:CONTEXTS], K, axis=0), np.tile(np.arange(K), CONTEXTS)
    values = np.asarray(
        constraint.model.values(constraint.functional, constraint.model.every, *grid), float
    )
    before = np.hstack([np.zeros((len(logs), 1)), np.cumsum(logs, axis=1)[:, :-1]])
    log_q = logsumexp(before + logs, axis=0) - logsumexp(before, axis=0)
    gain = logs - log_q  # of each member over the predictive

    def left(rows: np.ndarray, delta: float) -> np.ndarray:
        return gain[:, rows].sum(axis=1) >= np.log(delta)

    out = []
    for n in SIZES:
        first = np.arange(ROWS) < n
        split = left(first, DELTA / 2)
        for action in range(K):
            split &= left(first & (a == action), DELTA / (2 * K))
        whole = left(first, DELTA)
        out.append(
            [
                part
                for kept in (whole, split)
                for part in (kept.sum(), np.ptp(values[kept], axis=0).mean())
            ]
        )
    return np.array(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 6), metavar=("FIRST", "END"))
    given = parser.parse_args()
    for name in ("finite", "finite_lock_in"):
        for mostly_safe in (False, True):
            found = np.mean(
                [compared(name, seed, mostly_safe) for seed in range(*given.seeds)], axis=0
            )
            for n, (members, width, split_members, split_width) in zip(SIZES, found):
                print(
                    f"{name:15s} {'mostly safe' if mostly_safe else 'alike':11s} {n:4d} rows | "
                    f"members {members:5.2f} all rows, "
                    f"{split_members:5.2f} split | width {width:.4f} all rows, {split_width:.4f} "
                    "split",
                    flush=True,
                )


if __name__ == "__main__":
    main()
