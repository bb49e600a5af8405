"""Credible limits beside guaranteed ones on README's problem: how soon the safe action is left, how
often limits are exceeded.

    python benchmarks/credible.py prior --seeds 20
        # a prior of standard deviation .3 against 2, guaranteed and credible
    python benchmarks/credible.py use --seeds 20
        # repeated use, truths from the prior, for each source of draws
    python benchmarks/credible.py ask --rounds 300 [--ppl pyro]
        # what an ask and a tell cost with each source, and whether they go on compiling or growing

The toxicity of dose d for a patient x has the logit b0 + d (b1 + b2 x). Truths are drawn for each
seed: b1 and b2 from Normal(1.5, .3) and Normal(1, .3); b0 = -2.9, so that the declared safe value
.06 holds. The informative prior is Normal((-2.9, 1.5, 1), .3), the wide one README's own Normal(0,
2). Processor time, not wall time, is printed.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

DOSE = np.array([0.0, 0.3, 0.6, 1.0])
CENTRE = np.array([-2.9, 1.5, 1.0])
SPREAD = 0.3
AT_MOST, SAFE, LEVEL = 0.25, 0.06, 0.95
COMPILED: list[float] = []  # seconds of each program that XLA compiled in this process
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: (
        COMPILED.append(seconds) if event.endswith("backend_compile_duration") else None
    )
)
WINDOW = 20  # rounds, at least half of which must leave the safe action
EXAMPLE = (np.zeros((1, 1)), np.zeros(1, np.int64))


def response(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.asarray(DOSE)[a] * (w[0] + w[1] * x[:, 0]), 0.3), obs=y)


def toxicity(centre: np.ndarray, spread: float) -> Callable[..., None]:
    def model(x, a, y=None):
        b = numpyro.sample("b", dist.Normal(jnp.asarray(centre), spread).to_event(1))
        numpyro.sample(
            "z", dist.Bernoulli(logits=b[0] + jnp.asarray(DOSE)[a] * (b[1] + b[2] * x[:, 0])), obs=y
        )

    return model


def in_pyro(centre: np.ndarray, spread: float) -> tuple[Callable[..., None], Callable[..., None]]:
    """Toxicity and response as Pyro programs."""
    import pyro
    import pyro.distributions as pd
    import torch

    torch.set_num_threads(1)
    dose, at = torch.tensor(DOSE), torch.tensor(centre)

    def toxic(x, a, y=None):
        b = pyro.sample("b", pd.Normal(at, spread).to_event(1))
        pyro.sample("z", pd.Bernoulli(logits=b[0] + dose[a] * (b[1] + b[2] * x[:, 0])), obs=y)

    def gain(x, a, y=None):
        w = pyro.sample("w", pd.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.sample("y", pd.Normal(dose[a] * (w[0] + w[1] * x[:, 0]), 0.3), obs=y)

    return toxic, gain


def problem(centre: np.ndarray, spread: float, ppl: str = "numpyro") -> ged.Problem:
    models = (toxicity(centre, spread), response)
    toxic, good = models if ppl == "numpyro" else in_pyro(centre, spread)
    harm = ged.Constraint(
        ged.density_class(toxic, example=EXAMPLE),
        ged.mean(0, 1),
        at_most=AT_MOST,
        safe_value=SAFE,
        name="toxicity",
    )
    gain = ged.Utility(ged.density_class(good, example=EXAMPLE), ged.mean(-4, 4))
    return ged.Problem(n_actions=4, utility=gain, constraints=[harm], safe_action=0)


PRIORS = {"sd .3": (CENTRE, SPREAD), "sd 2": (np.zeros(3), 2.0)}


@dataclass(frozen=True)
class Trial:
    """What happened in one run."""

    left: np.ndarray  # (T,) decisions other than the safe action
    over: np.ndarray  # (T,) policies whose true toxicity is above the limit
    ask: np.ndarray  # (T,) processor time in seconds
    tell: np.ndarray  # (T,)
    compiled: np.ndarray  # (T,) programs that XLA compiled in this round
    memory: np.ndarray  # (T,) MB that the process holds after it

    @property
    def seconds(self) -> float:
        return float(self.ask.sum() + self.tell.sum())

    @property
    def half(self) -> float:
        """The first round up to which half of the last `WINDOW` decisions left the safe action;
        inf if there is none.
        """
        share = np.convolve(self.left, np.full(WINDOW, 1 / WINDOW), mode="valid")
        return float(np.argmax(share >= 0.5) + WINDOW) if (share >= 0.5).any() else np.inf


def run(declared: ged.Problem, confidence: object, seed: int, rounds: int) -> Trial:
    rng = np.random.default_rng([seed, 11])
    b = CENTRE + np.array([0.0, SPREAD, SPREAD]) * rng.normal(size=3)
    agent = ged.GEDUCB(declared, seed=seed, confidence=confidence, guard=None)
    left, over = np.zeros(rounds, bool), np.zeros(rounds, bool)
    ask, tell, compiled, memory = np.zeros((4, rounds))
    for t, x in enumerate(rng.normal(size=(rounds, 1))):
        before, began = len(COMPILED), time.process_time()
        decision = agent.ask(x)
        ask[t] = time.process_time() - began
        truth = 1 / (1 + np.exp(-b[0] - DOSE * (b[1] + b[2] * x[0])))
        left[t], over[t] = decision.action != 0, decision.policy @ truth > AT_MOST * (1 + 1e-9)
        d = DOSE[decision.action]
        y, z = rng.normal(d * (1 + 0.5 * x[0]), 0.3), float(rng.random() < truth[decision.action])
        began = time.process_time()
        agent.tell(decision.id, y, z)
        tell[t] = time.process_time() - began
        compiled[t], memory[t] = len(COMPILED) - before, held()
    return Trial(left, over, ask, tell, compiled, memory)


def held() -> float:
    """MB in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def row(name: str, trials: list[Trial]) -> str:
    half, over = np.array([t.half for t in trials]), np.array([t.over for t in trials])
    q = np.quantile(half, [0.25, 0.5, 0.75], method="nearest")
    told = " ".join(f"{v:>6.0f}" if np.isfinite(v) else f"{'never':>6}" for v in q)
    left = np.mean([t.left for t in trials])
    seconds = np.mean([t.seconds for t in trials])
    return (
        f"{name:<32} {told} {left:>8.1%} {over.mean():>9.2%} {over.any(axis=1).sum():>5} of "
        f"{len(trials):<4} {seconds:>7.1f}"
    )


HEAD = (
    f"{'':<32} {'q25':>6} {'median':>6} {'q75':>6} {'left':>8} {'over':>9} "
    f"{'runs with any':>13} {'cpu s':>7}"
)


def by_prior(seeds: range, rounds: int) -> None:
    print(
        f"rounds until half of {WINDOW} decisions leave the safe action, {rounds} rounds, seeds "
        f"{seeds.start}-{seeds.stop - 1}"
    )
    print(HEAD)
    for prior, (centre, spread) in PRIORS.items():
        declared = problem(centre, spread)
        for name, rule in (
            ("guaranteed", None),
            (f"credible {LEVEL:g}", {"toxicity": ged.credible_set(LEVEL)}),
        ):
            print(
                row(f"{prior}, {name}", [run(declared, rule, s, rounds) for s in seeds]), flush=True
            )


def by_source(seeds: range, rounds: int, sources: list[str]) -> None:
    print(
        f"repeated use, truths from the prior (sd .3), level {LEVEL:g}, {rounds} rounds, seeds "
        f"{seeds.start}-{seeds.stop - 1}"
    )
    print(HEAD)
    declared = problem(*PRIORS["sd .3"])
    for source in sources:
        draws = 20_000 if source == "prior" else 1000  # weights use draws up
        rule = {"toxicity": ged.credible_set(LEVEL, source, draws)}
        print(
            row(
                f"credible, {source}, {draws} draws",
                [run(declared, rule, s, rounds) for s in seeds],
            ),
            flush=True,
        )
    print(row("guaranteed", [run(declared, None, s, rounds) for s in seeds]), flush=True)


def by_cost(rounds: int, sources: list[str], ppl: str) -> None:
    """One run for each source, in milliseconds; "late" is the second half of the rounds."""
    half = rounds // 2
    print(f"processor time of {rounds} rounds in {ppl}, README's own prior (sd 2), ms")
    print(
        f"{'':<32} {'ask, median':>12} {'95%':>7} {'worst late':>11} {'tell, median':>13} "
        f"{'worst late':>11} {'compiled late':>14} {'MB late':>8}"
    )
    declared = problem(*PRIORS["sd 2"], ppl)
    for source in [*sources, "guaranteed"]:
        draws = 20_000 if source == "prior" else 1000
        rule = (
            None if source == "guaranteed" else {"toxicity": ged.credible_set(LEVEL, source, draws)}
        )
        one = run(declared, rule, 0, rounds)
        ask, tell = 1e3 * one.ask, 1e3 * one.tell
        name = source if rule is None else f"credible, {source}, {draws} draws"
        print(
            f"{name:<32} {np.median(ask[5:]):>12.2f} {np.quantile(ask[5:], 0.95):>7.1f} "
            f"{ask[half:].max():>11.1f} {np.median(tell[5:]):>13.2f} {tell[half:].max():>11.1f} "
            f"{one.compiled[half:].sum():>14.0f} {one.memory[-1] - one.memory[half]:>8.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("prior", "use", "ask"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--sources", default="laplace,svi,nuts,smc,prior")
    parser.add_argument("--ppl", choices=("numpyro", "pyro"), default="numpyro")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ged.SafeActionWarning)
    if options.what == "prior":
        by_prior(range(options.seeds), options.rounds)
    elif options.what == "ask":
        by_cost(options.rounds, options.sources.split(","), options.ppl)
    else:
        by_source(range(options.seeds), options.rounds, options.sources.split(","))


if __name__ == "__main__":
    main()
