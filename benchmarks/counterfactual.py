"""Speed and accuracy of the counterfactual pass; prints ratios, asserts nothing.

    python benchmarks/counterfactual.py            about two minutes
    python benchmarks/counterfactual.py --full     more instances, and t = 10,000

Ratios are taken within one run; absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from typing import Any

import numpy as np

from gedppl.counterfactual import PassResult, block_pass, exact_pass
from gedppl.selection import select_policy


def refit_rounds(t: int, growth: float) -> np.ndarray:
    """Rounds 0, 1, 2, ... spaced by a growing factor, up to t."""
    starts = [0]
    while (after := max(starts[-1] + 1, int(np.ceil(starts[-1] * growth)))) <= t:
        starts.append(after)
    return np.array(starts)


def instance(
    rng: np.random.Generator, n_actions: int, n_limits: int, t: int, growth: float = 1.2
) -> tuple[dict[str, Any], np.ndarray]:
    """Snapshots that close in on a truth like 1/sqrt(rounds): the arguments of a pass, and the
    true utilities (K,).
    """
    start = refit_rounds(t, growth)
    shrink = 1 / np.sqrt(1 + start)
    utility, cost = rng.random(n_actions), rng.random((n_limits, n_actions))
    utility[0], cost[:, 0] = 0.1, 0.05
    base = utility + shrink[:, None] * (0.3 + 0.3 * rng.normal(size=(len(start), n_actions)))
    upper = cost + shrink[:, None, None] * (
        1.0 + 0.1 * rng.normal(size=(len(start), n_limits, n_actions))
    )
    upper = np.clip(upper, 0, 1)
    upper[:, :, 0] = 0.05
    weight = 10 ** rng.uniform(-2, 0.3) * 0.5 * np.sqrt((np.arange(t + 1) + 1) / n_actions)
    limits = np.tile(rng.uniform(0.2, 0.6, n_limits), (len(start), 1))
    return (
        {
            "base_score": base[None],
            "cost_upper": upper[None],
            "at_most": limits,
            "bonus_weight": weight,
            "block_start": start,
            "t": t,
        },
        utility,
    )


def until(arguments: dict[str, Any], t: int) -> dict[str, Any]:
    """The same history, asked at an earlier round t."""
    n = int(np.searchsorted(arguments["block_start"], t, side="right"))
    return {
        "base_score": arguments["base_score"][:, :n],
        "cost_upper": arguments["cost_upper"][:, :n],
        "at_most": arguments["at_most"][:n],
        "bonus_weight": arguments["bonus_weight"][: t + 1],
        "block_start": arguments["block_start"][:n],
        "t": t,
    }


def literal_pass(arguments: dict[str, Any]) -> np.ndarray:
    """Algorithm 1's inner loop as printed: the law of every count by dynamic programming, afresh
    in every round.
    """
    base, cost = arguments["base_score"][0], arguments["cost_upper"][0]
    limit, start = arguments["at_most"], arguments["block_start"]
    path: list[np.ndarray] = []
    for i in range(arguments["t"] + 1):
        law = np.zeros((base.shape[1], i + 1))
        law[:, 0] = 1.0
        for j, policy in enumerate(path):
            p = policy[:, None]
            law[:, 1 : j + 2] = law[:, 1 : j + 2] * (1 - p) + law[:, : j + 1] * p
            law[:, 0] *= 1 - policy
        b = int(np.searchsorted(start, i, side="right")) - 1
        score = base[b] + arguments["bonus_weight"][i] * (law / np.arange(1, i + 2)).sum(axis=1)
        path.append(
            select_policy(score, cost[b], limit[b], played=np.sum(path, axis=0) if path else None)
        )
    return np.array(path)


def seconds(function: Any, repeats: int = 5) -> float:
    """The fastest of some runs."""
    best = np.inf
    for _ in range(repeats):
        before = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - before)
    return best


def frozen_blocks(arguments: dict[str, Any]) -> np.ndarray:
    """(K,) counts if a block's first policy were held throughout it: what not to do."""
    base, cost = arguments["base_score"][0], arguments["cost_upper"][0]
    edges = np.append(arguments["block_start"], arguments["t"])
    count = np.zeros(base.shape[1])
    for b, (first, after) in enumerate(pairwise(edges)):
        score = base[b] + arguments["bonus_weight"][first] / (1 + count)
        count += (after - first) * select_policy(
            score, cost[b], arguments["at_most"][b], played=count
        )
    return count


def speed() -> None:
    rng = np.random.default_rng(0)
    arguments, _ = instance(rng, 5, 1, 1000)
    slow = seconds(lambda: literal_pass(arguments), 1)
    fast = seconds(lambda: exact_pass(**arguments))
    every, _ = instance(rng, 5, 1, 1000, growth=1.0)
    refit = seconds(lambda: exact_pass(**every))
    print(f"exact pass, t=1000, K=5, J=1: literal {slow:.2f} s, fast {fast:.4f} s")
    print(
        f"  fast against literal {slow / fast:.0f}x; with a refit every round {refit:.4f} s, "
        f"{slow / refit:.0f}x"
    )
    for n_actions, n_limits in ((5, 0), (5, 1), (20, 1), (5, 2), (5, 3)):
        times = {}
        for t in (1_000, 10_000, 100_000):
            arguments, _ = instance(rng, n_actions, n_limits, t)
            before = time.perf_counter()
            block_pass(**arguments)
            first = time.perf_counter() - before
            times[t] = seconds(lambda arguments=arguments: block_pass(**arguments), 20)
            if t == 1_000:
                print(
                    f"block pass, K={n_actions}, J={n_limits}: first call (compiles) {first:.1f} s"
                )
        listed = ", ".join(f"t={t}: {1e3 * s:.2f} ms" for t, s in times.items())
        print(f"  {listed}; t=100,000 against t=1,000: {times[100_000] / times[1_000]:.2f}x")
    one = instance(rng, 5, 1, 10_000)[0]
    many = {
        **one,
        "base_score": np.repeat(one["base_score"], 500, 0),
        "cost_upper": np.repeat(one["cost_upper"], 500, 0),
    }
    block_pass(**many)
    print(
        "  500 contexts at once, t=10,000: "
        f"{1e3 * seconds(lambda: block_pass(**many), 3) / 500:.3f} ms each"
    )


def compared(exact: PassResult, blocks: PassResult, utility: np.ndarray) -> tuple[float, float]:
    """(total variation between mean policies, relative change in cumulative utility)."""
    total = exact.expected_count.sum()
    distance = np.abs(exact.expected_count - blocks.expected_count).sum() / 2 / total
    return float(distance), float(
        (blocks.expected_count @ utility)[0] / (exact.expected_count @ utility)[0] - 1
    )


def accuracy(t: int, instances: int) -> None:
    print(f"block pass against exact pass, t={t}, {instances} instances a row")
    print(
        "   K  J | counts (TV): mean, max | cumulative utility: mean, worst | played utility: "
        "mean, worst | held blocks: same"
    )
    for n_actions, n_limits in ((3, 1), (5, 0), (5, 1), (10, 1), (20, 1), (5, 2), (10, 2), (5, 3)):
        rng = np.random.default_rng(100 * n_actions + n_limits)
        rows = []
        for _ in range(instances):
            arguments, utility = instance(rng, n_actions, n_limits, t)
            exact = exact_pass(**arguments, keep_path=True)
            assert exact.path is not None
            # what an agent would really play: today's policy of a block pass at each of many rounds
            asked = np.unique(np.linspace(64, t, 200).astype(int))
            played = np.array([block_pass(**until(arguments, int(i))).policy[0] for i in asked])
            near = np.cumsum(exact.path[0] @ utility)
            edges = np.append(asked, t + 1)
            gained = np.diff(np.append(near, near[-1])[edges - 1])
            loss = (played @ utility * np.diff(edges)).sum() / gained.sum() - 1
            frozen = frozen_blocks(arguments) @ utility / (exact.expected_count @ utility)[0] - 1
            rows.append((*compared(exact, block_pass(**arguments), utility), loss, frozen))
        r = np.array(rows)
        print(
            f"  {n_actions:2d} {n_limits:2d} | {r[:, 0].mean():.4f}, {r[:, 0].max():.4f}        | "
            f"{r[:, 1].mean():+.4f}, "
            f"{r[:, 1].min():+.4f}                | {r[:, 2].mean():+.4f}, {r[:, 2].min():+.4f}    "
            "       | "
            f"{r[:, 3].mean():+.4f}, {r[:, 3].min():+.4f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    speed()
    accuracy(1_000, 40 if options.full else 10)
    if options.full:
        accuracy(10_000, 20)
