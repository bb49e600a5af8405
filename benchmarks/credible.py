"""Credible limits beside guaranteed ones on README's problem: how soon the safe action is left, how
often limits are exceeded.

    python benchmarks/credible.py prior --seeds 20
        # a prior of standard deviation .3 against 2, guaranteed and credible
    python benchmarks/credible.py use --seeds 20
        # repeated use, truths from the prior, for each source of draws

The toxicity of dose d for a patient x has the logit b0 + d (b1 + b2 x). Truths are drawn for each
seed: b1 and b2 from Normal(1.5, .3) and Normal(1, .3); b0 = -2.9, so that the declared safe value
.06 holds. The informative prior is Normal((-2.9, 1.5, 1), .3), the wide one README's own Normal(0,
2). Processor time, not wall time, is printed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

DOSE = np.array([0.0, 0.3, 0.6, 1.0])
CENTRE = np.array([-2.9, 1.5, 1.0])
SPREAD = 0.3
AT_MOST, SAFE, LEVEL = 0.25, 0.06, 0.95
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


def problem(centre: np.ndarray, spread: float) -> ged.Problem:
    harm = ged.Constraint(
        ged.density_class(toxicity(centre, spread), example=EXAMPLE),
        ged.mean(0, 1),
        at_most=AT_MOST,
        safe_value=SAFE,
        name="toxicity",
    )
    gain = ged.Utility(ged.density_class(response, example=EXAMPLE), ged.mean(-4, 4))
    return ged.Problem(n_actions=4, utility=gain, constraints=[harm], safe_action=0)


PRIORS = {"sd .3": (CENTRE, SPREAD), "sd 2": (np.zeros(3), 2.0)}


@dataclass(frozen=True)
class Trial:
    """What happened in one run."""

    left: np.ndarray  # (T,) decisions other than the safe action
    over: np.ndarray  # (T,) policies whose true toxicity is above the limit
    seconds: float

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
    began = time.process_time()
    for t, x in enumerate(rng.normal(size=(rounds, 1))):
        decision = agent.ask(x)
        truth = 1 / (1 + np.exp(-b[0] - DOSE * (b[1] + b[2] * x[0])))
        left[t], over[t] = decision.action != 0, decision.policy @ truth > AT_MOST * (1 + 1e-9)
        d = DOSE[decision.action]
        agent.tell(
            decision.id,
            rng.normal(d * (1 + 0.5 * x[0]), 0.3),
            float(rng.random() < truth[decision.action]),
        )
    return Trial(left, over, time.process_time() - began)


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("prior", "use"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--sources", default="laplace,svi,nuts,prior")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ged.SafeActionWarning)
    if options.what == "prior":
        by_prior(range(options.seeds), options.rounds)
    else:
        by_source(range(options.seeds), options.rounds, options.sources.split(","))


if __name__ == "__main__":
    main()
