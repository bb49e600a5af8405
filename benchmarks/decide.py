"""How good and how fast a decision is, end to end through `GEDUCB`.

    python benchmarks/decide.py regret --seeds 8
        regret against OPLB on the same seeds, linear-Gaussian, T = 2000
    python benchmarks/decide.py spread --seeds 8
        models/bandit.py, logistic, finite: against always playing safe
    python benchmarks/decide.py targets --seeds 8
        every target of regret and behaviour, and what the guarantee costs where one is missed;
        --only names problems, --show runs nothing and prints what targets.jsonl keeps
    python benchmarks/decide.py proof --seeds 8
        what the guarantee costs: unproved sets and safe peers beside ours; --only, --show
    python benchmarks/decide.py rounds
        2,000 rounds of a linear-Gaussian problem, with compilation
    python benchmarks/decide.py program               2,000 rounds of a generic 20-parameter program
    python benchmarks/decide.py growth                one ask at t = 1,000 and at t = 100,000
    python benchmarks/decide.py speed --rounds 1000   CPU time of ask and tell beside their targets
    python benchmarks/decide.py parts --rounds 600    where the time of one linear ask goes
    python benchmarks/decide.py commands
        CPU time of README's example and of `gedppl run models/bandit.py`
    python benchmarks/decide.py memory --rounds 100000    what a long run keeps
    python benchmarks/decide.py stalls --rounds 600
        longest ask of a program without an exact form; JAX's persistent cache empty and filled

Ratios are taken within one run; absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from arena import make
from played import played
from proof import CASES, proof
from regret import DELTA, PROBLEMS, SIGMA, K, World, linear_problem, play_oplb
from speed import commands, memory, parts, speed, stalls
from targets import targets

import gedppl as ged
from gedppl import ged_ucb


def play(world: World, problem: ged.Problem, seed: int, **options: Any) -> tuple[np.ndarray, int]:
    """Per-round regret, and the number of infeasible rounds."""
    agent = ged.GEDUCB(problem, delta=DELTA, seed=seed, guard=None, **options)
    lost, infeasible = [], 0
    for t, phi in enumerate(world.phi):
        decision = agent.ask(phi.ravel())
        a = decision.action
        agent.tell(
            decision.id,
            world.utility[t, a] + world.noise[t, 0],
            world.cost[t, a] + world.noise[t, 1],
        )
        lost.append(world.best[t] - decision.policy @ world.utility[t])
        infeasible += bool(decision.policy @ world.cost[t] > world.tau + 1e-9)
    return np.array(lost), infeasible


def regret(seeds: range, rounds: int, only: list[str], variants: list[str]) -> None:
    print(
        f"sigma={SIGMA}, T={rounds}, delta={DELTA}, seeds {seeds}; regret against the "
        "constrained oracle"
    )
    for name in only:
        worlds = [PROBLEMS[name](np.random.default_rng([seed, 0]), rounds) for seed in seeds]
        # with its own it hardly leaves the safe action there
        alpha = 1.0 if name in ("tight", "two_dims", "wide") else None
        theirs = np.array(
            [play_oplb(world, seed, alpha=alpha).regret for seed, world in zip(seeds, worlds)]
        )
        print(
            f"{name}: OPLB{'' if alpha is None else ' at alpha_r = 1'} mean {theirs.mean():.1f} "
            f"median {np.median(theirs):.1f}"
        )
        for variant in variants:
            chosen = VARIANTS[variant]
            runs = [
                play(w, linear_problem(w, chosen["exact"]), s, **chosen["agent"])
                for s, w in zip(seeds, worlds)
            ]
            lost = np.array([run[0] for run in runs])
            total, half = lost.sum(axis=1), lost[:, : rounds // 2].sum(axis=1)
            print(
                f"  {variant:18s} mean {total.mean():6.1f} median {np.median(total):6.1f} | of "
                "OPLB's mean "
                f"{total.mean() / theirs.mean():.3f} median "
                f"{np.median(total) / np.median(theirs):.3f} | infeasible rounds "
                f"{sum(run[1] for run in runs)} | doubling ratio {np.median(total / half):.2f}",
                flush=True,
            )


REGRET = ["shared", "tight", "two_dims", "wide"]
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {"exact": False, "agent": {}},
    "safe value exact": {"exact": True, "agent": {}},
    "counterfactual": {"exact": False, "agent": {"exploration": "counterfactual"}},
}


def spread(seeds: range) -> None:
    """The arena's problems with the default agent, as shares of what always playing safe loses."""
    for name, rounds in (
        ("treatments", 1000),
        ("disjoint", 1000),
        ("logistic", 500),
        ("finite", 500),
        ("finite_lock_in", 500),
    ):
        print(
            f"{name:15s} T={rounds}: {played(partial(make, name), rounds, seeds, ours)}", flush=True
        )


def ours(problem: ged.Problem, world: Any, seed: int) -> ged.GEDUCB:
    return ged.GEDUCB(problem, seed=seed, guard=None)


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """Names of the functions XLA compiles while this is open."""
    names: list[str] = []

    class Count(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Finished XLA compilation"):
                names.append(text.split("jit(")[-1].split(")")[0])

    handler, logger = Count(), logging.getLogger("jax._src.dispatch")
    logger.addHandler(handler)
    before, propagate = jax.config.jax_log_compiles, logger.propagate
    logger.propagate = False
    jax.config.update("jax_log_compiles", True)
    try:
        yield names
    finally:
        jax.config.update("jax_log_compiles", before)
        logger.propagate = propagate
        logger.removeHandler(handler)


def rounds(n: int) -> None:
    world = PROBLEMS["shared"](np.random.default_rng(0), n)
    with counted_compilations() as names:
        start, cpu = time.perf_counter(), time.process_time()
        play(world, linear_problem(world), 0)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(
        f"linear-Gaussian, {n} rounds: {wall:.1f} s ({cpu:.1f} s of processor time), "
        f"{len(names)} compilations: {count(names)}"
    )


def program(n: int) -> None:
    """Heteroscedastic normal: mean and log-scale linear in ten features each, so neither closed
    form nor log-concave.
    """

    def model(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([10]).to_event(1))
        v = numpyro.sample("v", dist.Normal(0, 0.3).expand([10]).to_event(1))
        phi = x.reshape(-1, K, 10)[jnp.arange(x.shape[0]), a]
        numpyro.sample("y", dist.Normal(phi @ w, jnp.exp(-1.5 + phi @ v)), obs=y)

    rng = np.random.default_rng(0)
    phi = rng.normal(size=(n, K, 10)) / np.sqrt(10)
    w, v = 0.5 * rng.normal(size=10), 0.2 * rng.normal(size=10)
    cls = ged.density_class(model, example=(phi[:3].reshape(3, -1), np.zeros(3, np.int64)))
    safe = lambda x: np.exp(2 * (-1.5 + x.reshape(-1, K, 10)[:, 0] @ v))  # noqa: E731
    limit = ged.Constraint(
        cls,
        ged.variance(4.0),
        at_most=0.6,
        safe_value=lambda x: np.minimum(safe(x), 0.6),
        outcome="utility",
    )
    problem = ged.Problem(
        n_actions=K, utility=ged.Utility(cls, ged.mean(-4, 4)), constraints=[limit], safe_action=0
    )
    agent = ged.GEDUCB(problem, guard=None)
    with counted_compilations() as names:
        start, cpu = time.perf_counter(), time.process_time()
        for t in range(n):
            if t in (500, 1000):
                print(f"  {t} rounds: {time.perf_counter() - start:.1f} s", flush=True)
            decision = agent.ask(phi[t].ravel())
            f = phi[t, decision.action]
            agent.tell(decision.id, f @ w + np.exp(-1.5 + f @ v) * rng.normal())
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(
        f"generic program, 20 parameters, {n} rounds: {wall:.1f} s ({cpu:.1f} s of processor time)"
    )
    print(f"compilations: {len(names)} in all; by function: {cls.program.compilations}")


def growth(short: int, long: int) -> None:
    """The same snapshots with ever more rounds behind them: what an ask costs must not follow t."""
    world = PROBLEMS["shared"](np.random.default_rng(0), 1000)
    agent = ged.GEDUCB(linear_problem(world), guard=None)
    for t in range(short):
        decision = agent.ask(world.phi[t % 1000].ravel())
        agent.tell(
            decision.id,
            world.utility[t % 1000, decision.action],
            world.cost[t % 1000, decision.action],
        )
    state = agent._current(world.phi[:1].reshape(1, -1))
    far = state
    while far.told < long:  # go on refitting at the same pace, with rows made up
        rows = np.arange(max(1, int(0.05 * far.told))) % 1000
        x, a = world.phi[rows].reshape(len(rows), -1), rows % K
        told = {"utility": (x, a, world.utility[rows, a]), "cost": (x, a, world.cost[rows, a])}
        far = ged_ucb.update(ged_ucb.advance(far, len(rows)), told, len(rows))
    times = {}
    for name, s in {"short": state, "long": far}.items():
        ged_ucb.select(s, world.phi[:1].reshape(1, -1))
        start = time.process_time()
        for t in range(100):
            ged_ucb.select(s, world.phi[t : t + 1].reshape(1, -1))
        times[name] = (time.process_time() - start) / 100
    near_ms, far_ms = 1e3 * times["short"], 1e3 * times["long"]
    print(
        f"ask at t={state.t}: {near_ms:.2f} ms, at t={far.t}: {far_ms:.2f} ms, ratio "
        f"{far_ms / near_ms:.2f}"
    )
    exact = replace(state, settings=replace(state.settings, exact_rounds=np.inf))
    x = world.phi[:200].reshape(200, -1)
    (blocks, info), (walked, _) = ged_ucb.select(state, x), ged_ucb.select(exact, x)
    utility = [float(np.mean(np.sum(p * info.utility, axis=1))) for p in (blocks, walked)]
    print(
        f"estimated utility at t={state.t}, 200 contexts: blocks {utility[0]:.4f}, every round "
        f"{utility[1]:.4f}"
    )


def count(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        choices=[
            "regret",
            "spread",
            "targets",
            "proof",
            "rounds",
            "program",
            "growth",
            "speed",
            "parts",
            "commands",
            "memory",
            "stalls",
        ],
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument(
        "--variants", nargs="+", default=["defaults", "safe value exact"], choices=list(VARIANTS)
    )
    parser.add_argument("--only", nargs="+", default=[], choices=sorted({*PROBLEMS, *CASES}))
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore", ged.SafeActionWarning)
    if given.what == "regret":
        regret(
            range(given.first_seed, given.first_seed + given.seeds),
            given.rounds,
            given.only or REGRET,
            given.variants,
        )
    elif given.what == "spread":
        spread(range(given.first_seed, given.first_seed + given.seeds))
    elif given.what in (tables := {"proof": proof, "targets": targets}):
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        tables[given.what](seeds, given.only, show=given.show)
    elif given.what == "rounds":
        rounds(given.rounds)
    elif given.what == "commands":
        commands()
    elif given.what in (
        timed := {"speed": speed, "parts": parts, "memory": memory, "stalls": stalls}
    ):
        timed[given.what](given.rounds)
    elif given.what == "program":
        program(given.rounds)
    else:
        growth(1000, 100_000)


if __name__ == "__main__":
    main()
