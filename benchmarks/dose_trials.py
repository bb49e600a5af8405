"""Dose escalation by `models/escalation.py` over many simulated trials, beside 3+3, BOIN, CRM,
EWOC and an exact grid.

    python benchmarks/dose_trials.py fixed   --trials 1000    DLT .05/.10/.18/.30/.45
    python benchmarks/dose_trials.py random  --trials 1000
        pseudo-uniform truths (Clertant and O'Quigley 2017)
    python benchmarks/dose_trials.py groups  --trials 1000
        three groups, pooled intercepts, level .85, 108 patients
    python benchmarks/dose_trials.py average --trials 200
        the limit on the policy's average instead of on every draw
    python benchmarks/dose_trials.py states  --trials 20 --nuts 16000
        how often draws give the dose of an exact grid
    python benchmarks/dose_trials.py plan    --trials 1000    the fixed truth by `ged.plan`

Trials have 36 patients, one at a time; the limit and the target are .33. A line is one design.
`above` counts patients above the MTD (the highest dose at or under the limit; of random truths the
dose nearest to it), `correct` trials that name it. Standard errors follow the numbers. Skeletons
and priors are printed: every number depends on them. Trials are spread over `--workers`. All but
`average` are decided from shared draws (`ged.shared_draws`) unless `--source smc` asks for an agent
a trial.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import norm

sys.path.append(str(Path(__file__).parents[1] / "models"))

import escalation as model
from reproduce.trials import trial as treated

import gedppl as ged
from gedppl.learning import draws as sampling
from gedppl.rows import Rows
from gedppl.study.baselines.boin import BOIN
from gedppl.study.baselines.crm import CRM
from gedppl.study.baselines.dose_design import DoseDesign
from gedppl.study.baselines.ewoc import EWOC
from gedppl.study.baselines.three_plus_three import ThreePlusThree

SKELETON = (0.10, 0.20, 0.33, 0.46, 0.58)
PRIOR = "log alpha ~ N(0, 2^2), log beta ~ N(0, 1), logit p = log alpha + beta log(dose / 7)"
K = len(model.DOSES)
SHARED = {False: 50_000, True: 200_000}  # draws, without and with groups


@dataclass(frozen=True)
class Told:
    """One trial: patients and toxicities (groups, 5), doses named by rule (groups,), 0 for none."""

    patients: np.ndarray
    toxic: np.ndarray
    nearest: np.ndarray
    interval: np.ndarray


def pseudo_uniform(trials: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Truths (trials, 5) and their MTD (trials,): its place in turn, then sorted uniforms under
    a bound, until it lies there.
    """
    rng, truths, places = np.random.default_rng(seed), [], []
    for i in range(trials):
        place = i % K
        bound = model.LIMIT + (1 - model.LIMIT) * rng.beta(max(K - 1 - place, 0.5), 1)
        while True:
            truth = np.sort(rng.random(K) * bound)
            if np.abs(truth - model.LIMIT).argmin() == place:
                break
        truths.append(truth)
        places.append(place)
    return np.array(truths), np.array(places)


# our trials ---------------------------------------------------------------------------------------


@cache
def problem(groups: bool, every_draw: bool) -> ged.Problem:
    """One a process, so that its model is compiled once."""
    return model.problem(groups, every_draw)


def escalated(
    truth: np.ndarray,
    task: tuple[int, np.ndarray | None],
    *,
    patients: int,
    level: float,
    every_draw: bool,
    shared: bool,
) -> Told:
    """One trial; `task` is its seed, and a truth of its own or None. `shared`: all trials weight
    the same draws.
    """
    seed, own = task
    world = model.World(truth if own is None else own)
    G = len(world.toxicity)
    agent = model.draws(G > 1, level, SHARED[G > 1]).agent(seed) if shared else None
    design = model.Escalation(problem(G > 1, every_draw), seed=seed, level=level, agent=agent)
    rng, n, y = np.random.default_rng([seed, 11]), np.zeros((G, K), int), np.zeros((G, K), int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(patients):
            x = world.context(rng)
            decision = design.ask(x)
            if decision.action == 0 and G == 1 and every_draw:
                break  # only no dose is left, and stays so
            toxic = world.outcome(x, decision.action, rng)[0]
            design.tell(decision.id, toxic)
            if decision.action:
                n[int(x[0]), decision.action - 1] += 1
                y[int(x[0]), decision.action - 1] += int(toxic)
        named = [
            [design.recommended(np.array([float(g)]), rule) for g in range(G)]
            for rule in ("nearest", "interval")
        ]
    return Told(n, y, *(np.array(one) for one in named))


def run(
    truth: np.ndarray, own: np.ndarray | None, trials: int, workers: int, **options: float | bool
) -> list[Told]:
    tasks = [(seed, None if own is None else own[seed]) for seed in range(trials)]
    one = partial(escalated, truth, **options)
    if workers == 1:
        return [one(task) for task in tasks]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(one, tasks, chunksize=5))


# tables -------------------------------------------------------------------------------------------


def share(hits: np.ndarray) -> str:
    return f"{100 * hits.mean():5.1f}% ({100 * hits.std() / np.sqrt(len(hits)):.1f})"


def line(
    name: str,
    n: np.ndarray,
    y: np.ndarray,
    named: dict[str, np.ndarray],
    mtd: np.ndarray,
    cpu: float = 0.0,
) -> None:
    """n, y (R, 5); named (R,) 1..5, 0 for none; mtd (R,) 0..4."""
    above = (n * (np.arange(K) > mtd[:, None])).sum(axis=1)
    total, R = n.sum(), len(n)
    # of a ratio, over trials
    error = np.sqrt(((above - n.sum(axis=1) * above.sum() / total) ** 2).sum()) / total
    doses = "/".join(f"{100 * v:.0f}" for v in n.sum(axis=0) / total)
    picks = ", ".join(f"correct by {rule} {share(v == mtd + 1)}" for rule, v in named.items())
    none = np.mean(next(iter(named.values())) == 0)
    print(
        f"{name:22s} {R} trials, {total / R:.1f} patients, % by dose {doses}; above the MTD "
        f"{100 * above.sum() / total:.1f}% "
        f"({100 * error:.1f}); DLT {100 * y.sum() / total:.1f}%; {picks}; none named "
        f"{100 * none:.1f}%" + (f"; {cpu / R:.2f} s of processor a trial" if cpu else ""),
        flush=True,
    )


def ours(name: str, found: list[Told], mtd: np.ndarray, cpu: float, group: int = 0) -> None:
    n, y = (np.array([getattr(t, what)[group] for t in found]) for what in ("patients", "toxic"))
    named = {
        rule: np.array([getattr(t, rule)[group] for t in found]) for rule in ("nearest", "interval")
    }
    line(name, n, y, named, mtd, cpu)


def baselines(truths: np.ndarray, mtd: np.ndarray, seed: int = 1) -> None:
    N, target = model.PATIENTS, model.LIMIT
    designs: dict[str, Callable[[], DoseDesign]] = {
        "BOIN, cohorts of 1": lambda: BOIN(K, target=target, cohort=1, cohorts=N),
        "BOIN, cohorts of 3": lambda: BOIN(K, target=target, cohort=3, cohorts=N // 3),
        "CRM": lambda: CRM(SKELETON, target=target, patients=N),
        "EWOC": lambda: EWOC(SKELETON, target=target, patients=N),
        "3+3": lambda: ThreePlusThree(K),
    }
    for name, make in designs.items():
        rng = np.random.default_rng(seed)
        done = [treated(make(), truth, rng) for truth in truths]
        named = np.array([0 if d.recommended is None else d.recommended + 1 for d in done])
        line(
            name,
            np.array([d.patients for d in done]),
            np.array([d.toxicities for d in done]),
            {"its own": named},
            mtd,
        )
    print(f"CRM and EWOC: power model, skeleton {SKELETON}, b ~ N(0, 1.34)")


# against the exact posterior ----------------------------------------------------------------------


@cache
def grid(size: int = 301) -> tuple[np.ndarray, np.ndarray]:
    """Log prior (G,) and DLT probabilities (G, 5)."""
    alpha, beta = (
        g.ravel()
        for g in np.meshgrid(np.linspace(-9, 9, size), np.linspace(-4.5, 4.5, size), indexing="ij")
    )
    p = expit(alpha[:, None] + np.exp(beta)[:, None] * np.log(model.DOSES / model.DOSES[-1]))
    return norm.logpdf(alpha / 2) + norm.logpdf(beta), np.clip(p, 1e-15, 1 - 1e-15)


def exact_dose(n: np.ndarray, y: np.ndarray, level: float = model.LEVEL) -> int:
    """The dose after patients n (5,) with toxicities y (5,): 0, 1, ..., 5."""
    prior, p = grid()
    logs = prior + np.log(p) @ y + np.log1p(-p) @ (n - y)
    weights = np.exp(logs - logs.max())
    return given(weights @ (p > model.LIMIT) / weights.sum(), n, level)


def plain_laplace_dose(n: np.ndarray, y: np.ndarray, seed: int) -> int:
    """The same from draws of the normal distribution around the mode as they are; `credible_set`
    weights them to the posterior.
    """
    cls = problem(False, True).constraints[0].model
    at = np.arange(1, K + 1)
    doses = np.repeat(np.append(at, at), np.append(y, n - y))
    toxic = np.repeat([1.0, 0.0], [y.sum(), (n - y).sum()])
    rows = Rows.of(np.zeros((len(doses), 1)), doses, toxic)
    drawn = sampling.sample(cls, rows, "laplace", 4000, seed)
    values = cls.values(ged.mean(0, 1), drawn.theta, np.zeros((K, 1)), at)
    return given((np.asarray(values) > model.LIMIT).mean(axis=0), n)


def given(over: np.ndarray, n: np.ndarray, level: float = model.LEVEL) -> int:
    """The protocol's dose for P(DLT > limit) (5,) after patients n (5,)."""
    fine = np.flatnonzero(over <= 1 - level) + 1
    highest = int(np.flatnonzero(n).max()) + 1 if n.any() else 0
    dose = int(min(fine.max(), highest + 1)) if len(fine) else 0
    return dose if dose else int(over[0] <= model.TOO_TOXIC)


def states(trials: int, chains: int) -> None:
    """Trials that follow the exact grid; at each state every source is asked what it would give."""
    sources = {
        "smc, 4000, margin": ("smc", 4000, True),
        "smc, 4000": ("smc", 4000, False),
        "laplace, weighted": ("laplace", 4000, False),
    }
    if chains:
        sources[f"nuts, {chains}"] = ("nuts", chains, False)
    shared, plain = f"shared, {SHARED[False]}", "laplace, plain"
    agree: dict[str, list[bool]] = {name: [] for name in (*sources, shared, plain)}
    for seed in range(trials):
        designs = {
            name: model.Escalation(problem(False, True), seed=seed, source=s, draws=d, margin=m)
            for name, (s, d, m) in sources.items()
        }
        lot = model.draws(False, model.LEVEL, SHARED[False]).agent(seed)
        designs[shared] = model.Escalation(problem(False, True), agent=lot)
        rng, n, y, x = (
            np.random.default_rng([seed, 11]),
            np.zeros(K, int),
            np.zeros(K, int),
            np.zeros(1),
        )
        for _ in range(model.PATIENTS):
            dose = exact_dose(n, y)
            for name, design in designs.items():
                agree[name].append(int(design.policy(x).argmax()) == dose)
            agree[plain].append(plain_laplace_dose(n, y, seed) == dose)
            if dose == 0:
                break
            toxic = int(rng.random() < model.TOXICITY[dose - 1])
            n[dose - 1] += 1
            y[dose - 1] += toxic
            for design in designs.values():
                design.observe(x[None], [dose], [float(toxic)])
    for name, same in agree.items():
        print(
            f"{name:22s} the exact grid's dose in {share(np.array(same))} of {len(same)} states",
            flush=True,
        )


def planned(trials: int) -> None:
    """The same trials as any user would ask for them."""
    began = time.process_time()
    options = {"agent": model.quickly, "recommend": model.named, "replicates": trials}
    found = ged.plan(
        model.problem(),
        np.zeros((1, 1)),
        model.PATIENTS,
        scenarios={"usual": ged.Scenario(world=model.usual)},
        **options,
    )
    row, spent = found.rows[0], time.process_time() - began
    for name in (
        "correct selection share",
        "share treated above a limit",
        "mean outcome: toxicity",
    ):
        print(f"{name} {100 * row[name]:.1f}%")
    print(f"{trials} trials by plan: {spent:.0f} s of processor")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("fixed", "random", "groups", "average", "states", "plan"))
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--source",
        choices=("shared", "smc"),
        default="shared",
        help="where the draws of a trial come from",
    )
    parser.add_argument(
        "--nuts",
        type=int,
        default=0,
        help="states: ask Markov chains of so many draws too, some seconds a trial",
    )
    given = parser.parse_args()
    R, began = given.trials, time.process_time()
    shared = given.source == "shared"
    print(
        f"prior: {PRIOR}; level {model.LEVEL} unless said otherwise, limit {model.LIMIT}, doses "
        f"{model.DOSES}"
    )
    spent = lambda: (time.process_time() - began) * (given.workers == 1)  # noqa: E731 - processor time of this process alone
    if given.what == "states":
        states(R, given.nuts)
    elif given.what == "plan":
        planned(R)
    elif given.what == "groups":
        level, patients = 0.85, 3 * model.PATIENTS
        found = run(
            model.BY_GROUP,
            None,
            R,
            given.workers,
            patients=patients,
            level=level,
            every_draw=True,
            shared=shared,
        )
        print(
            "groups: intercepts N(centre, spread^2), centre ~ N(0, 3), spread ~ HalfNormal(1); "
            f"level {level}"
        )
        for g, name in enumerate(model.GROUPS):
            mtd = int(np.flatnonzero(model.BY_GROUP[g] <= model.LIMIT).max())
            ours(f"{name} {model.BY_GROUP[g]}", found, np.full(R, mtd), spent(), g)
    else:
        truths, mtd = (
            (np.tile(model.TOXICITY, (R, 1)), np.full(R, 3))
            if given.what != "random"
            else pseudo_uniform(R)
        )
        own = truths if given.what == "random" else None
        each = given.what != "average"
        found = run(
            model.TOXICITY,
            own,
            R,
            given.workers,
            patients=model.PATIENTS,
            level=model.LEVEL,
            every_draw=each,
            shared=shared and each,
        )
        ours("gedppl" if each else "gedppl, on average", found, mtd, spent())
        baselines(truths, mtd)


if __name__ == "__main__":
    main()
