"""The acceptance table on real data: utility, feasibility and anchors, over several orders of
arrival.

    python benchmarks/real_data.py
        # all four problems, five orders each (tens of minutes)
    python benchmarks/real_data.py dosing --orders 0     # one order of arrival
    python benchmarks/real_data.py pricing --rounds 1000

Utilities and costs are those of each script's cross-fitted reference, which the agent never sees.
"above" is the share of people for whom the policy's cost exceeds the limit under that reference.
For dosing a second reference, boosted trees on the same patients, judges the same policies (needs
scikit-learn).
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

import gedppl as ged
from gedppl.study.cli.scripts import Script, loaded

MODELS = Path(__file__).resolve().parents[1] / "models"
ROUNDS = {"dosing": 5528, "pricing": 5000, "newsvendor": 3000, "diagnosis": 569}
TOLERANCE = 1e-9


def anchors(script: Script) -> list[tuple[str, np.ndarray]]:
    """Policies (n, K) that need no learning, for every row of the table."""
    u, c, limits = script.environment._utilities, script.environment._costs, script.problem.limits
    n, K = u.shape
    fits = (c <= limits[:, None] + TOLERANCE).all(axis=1)  # (n, K)
    greedy = np.eye(K)[u.argmax(axis=1)]
    unmixed = np.eye(K)[np.where(fits, u, -np.inf).argmax(axis=1)]
    mixed = np.array([ged.select_policy(u[i], c[i], limits) for i in range(n)])
    best = int(u.mean(axis=0).argmax())
    return [
        (
            f"always the safe action ({script.problem.safe_action})",
            np.eye(K)[np.full(n, script.problem.safe_action)],
        ),
        (f"best constant ({best})", np.eye(K)[np.full(n, best)]),
        ("greedy, knows the reference", greedy),
        ("oracle, one action each", unmixed),
        ("oracle, may mix", mixed),
    ]


def line(
    name: str, utility: float, last: float | None, cost: float, above: float, more: str = ""
) -> str:
    quarter = f"{last:9.3f}" if last is not None else "        -"
    return f"  {name:<32}{utility:9.3f}{quarter}{cost:9.3f}{100 * above:8.2f}%  {more}"


def one_order(script: Script, seed: int, rounds: int, out: Path | None) -> dict[str, float]:
    began = time.process_time()
    world = script.new_environment()
    saved = None if out is None else out / f"{script.path.stem}-{seed}-{rounds}"
    if saved is not None and saved.exists():
        run = ged.Run.load(saved)
    else:
        agent = ged.GEDUCB(script.problem, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ged.SafeActionWarning)
            run = ged.simulate(script.problem, world, agent, rounds, seed=seed, progress=True)
        if saved is not None:
            run.save(saved)
    last = slice(-len(run) // 4, None)
    result = {
        "utility": run.utility.mean(),
        "last": run.utility[last].mean(),
        "cost": run.cost[:, 0].mean(),
        "above": run.infeasible.mean(),
        "above last": run.infeasible[last].mean(),
        "safe": run.safe_share,
        "realised": np.nanmean(run.realised[:, 0]),
        "cpu": time.process_time() - began,
    }
    if script.path.stem == "dosing":
        result["above, trees"] = above_second_reference(run, world)
    return {name: float(value) for name, value in result.items()}


def above_second_reference(run: ged.Run, world: ged.Replay) -> float:
    """Share of patients above the limit when cross-fitted boosted trees judge: P(dose under the
    edge) from all columns.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import KFold, cross_val_predict

    too_high = np.zeros(world.outcomes["utility"].shape)
    for a in range(too_high.shape[1]):
        label = world.outcomes["utility"][:, a] == 0
        if label.any():
            trees = HistGradientBoostingClassifier(
                max_iter=80, learning_rate=0.06, max_leaf_nodes=12, min_samples_leaf=30
            )
            folds = KFold(10, shuffle=True, random_state=0)
            too_high[:, a] = cross_val_predict(
                trees, world.x[:, :16], label, cv=folds, method="predict_proba"
            )[:, 1]
    row_of = {row.tobytes(): i for i, row in enumerate(world.x)}
    rows = [row_of[x.tobytes()] for x in run.x]
    return float(np.mean((run.policy * too_high[rows]).sum(axis=1) > run.limit[:, 0] + TOLERANCE))


def table(name: str, orders: list[int], rounds: int | None, out: Path | None) -> None:
    with loaded(MODELS / f"{name}.py") as script:
        u, c, limits = (
            script.environment._utilities,
            script.environment._costs,
            script.problem.limits,
        )
        most = min(rounds or ROUNDS[name], len(u))
        constraint = script.problem.constraint_names[0]
        print(f"\n{name}: {len(u)} rows, {most} rounds; limit on {constraint!r} {limits[0]:g}")
        print(f"  {'':<32}{'utility':>9}{'last 1/4':>9}{'cost':>9}{'above':>9}")
        for label, policy in anchors(script):
            cost = np.einsum("nk,njk->nj", policy, c)
            above = (cost > limits + TOLERANCE).any(axis=1).mean()
            print(line(label, (policy * u).sum(axis=1).mean(), None, cost[:, 0].mean(), above))
        results = []
        for seed in orders:
            r = one_order(script, seed, most, out)
            results.append(r)
            extra = f"; trees {100 * r['above, trees']:.2f}%" if "above, trees" in r else ""
            more = f"last quarter {100 * r['above last']:.2f}%{extra}; "
            more += f"safe {r['safe']:.0%}; realised {r['realised']:.3f}; {r['cpu']:.0f} s"
            print(
                line(
                    f"GED-UCB, order {seed}", r["utility"], r["last"], r["cost"], r["above"], more
                ),
                flush=True,
            )
        if len(results) > 1:
            mean = {key: float(np.mean([r[key] for r in results])) for key in results[0]}
            worst = max(r["above"] for r in results)
            more = f"worst order {100 * worst:.2f}%"
            print(
                line(
                    "GED-UCB, mean",
                    mean["utility"],
                    mean["last"],
                    mean["cost"],
                    mean["above"],
                    more,
                )
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "problems",
        nargs="*",
        default=list(ROUNDS),
        metavar="problem",
        help=f"some of {', '.join(ROUNDS)}",
    )
    parser.add_argument(
        "--orders", default="0,1,2,3,4", help="seeds of the order of arrival, comma-separated"
    )
    parser.add_argument("--rounds", type=int, help="fewer rounds than the table has")
    parser.add_argument(
        "--out",
        type=Path,
        help="a folder to save the runs in, for `gedppl report`; runs that are "
        "there already are read",
    )
    given = parser.parse_args()
    for name in given.problems:
        if name not in ROUNDS:
            parser.error(f"there is no problem {name!r}; choose from {', '.join(ROUNDS)}")
        table(name, [int(seed) for seed in given.orders.split(",")], given.rounds, given.out)


if __name__ == "__main__":
    main()
