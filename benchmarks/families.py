"""What a bound costs, family by family, and what partial pooling is worth at a sparse site.

    python benchmarks/families.py speed
        CPU of the bounds that one `ask` needs: five actions, one context
    python benchmarks/families.py pooling
        eight sites, 100 rows: the sparsest one's upper bound, pooled or not

Processor time, never wall time. Numbers of the set are guarantees (if the model holds); those of
the posterior are credible.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gedppl.families.one_predictor import FAMILIES
from gedppl.functionals import cvar, mean, probability, quantile, second_moment, variance
from gedppl.learning import feed, learner_for
from tests.program_doubles import FIXED, TAKES, OnePredictorDouble, ScaleDouble

K, ROWS, REPEATS = 5, 400, 20
INSIDE = {  # coefficients inside a link's domain
    ("identity", "Bernoulli"): (0.2, 0.3, 0.2),
    ("identity", "Binomial"): (0.2, 0.3, 0.2),
    ("identity", "Poisson"): (0.5, 1.0, 1.0),
    ("log", "Bernoulli"): (-2.0, 0.6, 0.5),
    ("log", "Binomial"): (-2.0, 0.6, 0.5),
}


def line(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """One, a context between 0 and 1, and the action's share of another."""
    return np.stack([np.ones(len(a)), x[:, 0], x[:, 1] * a / K], axis=1)


def measured(learner, functional, contexts) -> float:
    """Milliseconds of processor time a context, the median over contexts."""
    learner.bounds(functional, contexts[:1], K)
    spent = []
    for x in contexts:
        begun = time.process_time()
        learner.bounds(functional, x[None], K)
        spent.append(1e3 * (time.process_time() - begun))
    return float(np.median(spent))


def speed() -> None:
    rng = np.random.default_rng(0)
    x, a = rng.random((ROWS, 2)), rng.integers(0, K, ROWS)
    contexts = rng.random((REPEATS, 2))
    print(f"bounds at one context, {K} actions, {ROWS} rows, ms of processor time")
    for name in FAMILIES:
        truth = np.array(INSIDE.get(name[::-1], (0.3, -0.6, 0.4)))
        cls = OnePredictorDouble(
            *name, 3, line, extra={key: FIXED[key] for key in TAKES.get(name[0], ())}, initial=truth
        )
        learner = feed(
            learner_for(cls, delta=0.05), x, a, cls.simulate(truth, x, a, rng), growth=2.0
        )
        print(f"{'-'.join(name):26s} mean {measured(learner, mean(-1e9, 1e9), contexts):7.2f}")
    for family in ("Normal", "LogNormal"):
        scaled = ScaleDouble(3, family, line, prior_sd=1.0)
        y = scaled.simulate(np.array([0.3, -0.6, 0.4, -0.5]), x, a, rng)
        learner = feed(learner_for(scaled, delta=0.05), x, a, y, growth=2.0)
        asked = {
            "mean": mean(-1e9, 1e9),
            "chance": probability(above=0.5),
            "band": probability(above=0.2, below=1.5),
            "quantile": quantile(0.9, -1e9, 1e9),
            "cvar": cvar(0.9, -1e9, 1e9),
            "variance": variance(1e9),
            "second moment": second_moment(1e9),
        }
        row = "  ".join(
            f"{key} {measured(learner, functional, contexts):.2f}"
            for key, functional in asked.items()
        )
        print(f"{family}, unknown scale: {row}")


# partial pooling ----------------------------------------------------------------------------------

SIZES = (3, 6, 8, 10, 13, 16, 20, 24)  # rows a site, 100 in all
TRUTH = 0.16


def site_rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    return np.ones((len(a), 1)), a, (rng.random(len(a)) < TRUTH).astype(float)


def pooling(seeds: int) -> list[tuple[str, float, str, float]]:
    """Medians over seeds of the sparsest site's 95% upper bound on P(event), every site's truth
    being .16: (model, of the set, what it is, of the posterior).
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import gedppl as ged

    def pooled(x, a, y=None):
        centre = numpyro.sample("centre", dist.Normal(-1.5, 1.0))
        spread = numpyro.sample("spread", dist.HalfNormal(0.5))
        with numpyro.plate("sites", len(SIZES)):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=centre + spread * z[a]), obs=y)

    def unpooled(x, a, y=None):
        logit = numpyro.sample("logit", dist.Normal(-1.5 * jnp.ones(len(SIZES)), 1.5).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=logit[a]), obs=y)

    found_of = []
    for model in (pooled, unpooled):
        uppers, credible, said = [], [], set()
        for seed in range(seeds):
            cls = ged.density_class(model)
            x, a, y = site_rows(seed)
            found = ged.confidence_set(cls, x, a, y, 0.05, growth=1.3).bounds(
                mean(0, 1), np.ones((1, 1)), len(SIZES)
            )
            uppers.append(found.upper[0, 0])
            said.add(f"{found.method}, {'guaranteed' if found.guaranteed else 'not guaranteed'}")
            credible.append(_credible_upper(model, x, a, y, seed))
        middle = float(np.median(uppers)), float(np.median(credible))
        found_of.append((model.__name__, middle[0], ", ".join(sorted(said)), middle[1]))
    return found_of


def print_pooling(seeds: int) -> None:
    print(
        f"eight sites, {sum(SIZES)} rows, {SIZES[0]} at the sparsest, truth {TRUTH}; medians of "
        f"{seeds} seeds"
    )
    for name, upper, words, credible in pooling(seeds):
        print(f"{name:9s} set {upper:.3f} ({words})   credible 95% {credible:.3f}")


def _credible_upper(model, x: np.ndarray, a: np.ndarray, y: np.ndarray, seed: int) -> float:
    """The posterior's 95% quantile of the sparsest site's chance, by NUTS."""
    import jax
    from numpyro.infer import MCMC, NUTS

    chain = MCMC(NUTS(model), num_warmup=300, num_samples=600, progress_bar=False)
    chain.run(jax.random.PRNGKey(seed), x, a, y)
    drawn = chain.get_samples()
    logit = (
        drawn["centre"] + drawn["spread"] * drawn["z"][:, 0]
        if "z" in drawn
        else drawn["logit"][:, 0]
    )
    return float(np.quantile(1 / (1 + np.exp(-np.asarray(logit, float))), 0.95))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "pooling"))
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    speed() if chosen.what == "speed" else print_pooling(chosen.seeds)
