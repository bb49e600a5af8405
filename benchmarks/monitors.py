"""False stops and power of each kind of monitor alone, and of the guard at work:
`python monitors.py [--runs 1000] [--rounds 500]`, `python monitors.py agents`.

Outcomes of one action are held against what they are watched for, which is the truth itself: the
largest rate of false alarms. Then the outcomes change, from the first round or after round 75:
Normal outcomes rise by a share of their noise (for the variance, the noise itself grows by it),
exponential ones grow by it, coins fall more often. Printed: runs alarmed of all runs, and the
median round of those alarms. The `certified` and `limit` rows stop a run, as does `refuted`.

``agents``: whole runs of 150 rounds under a jump of the costs after round 75 and under heavy tails,
beside what the guard did before it had these monitors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import ndtr
from scipy.stats import binom, norm

import gedppl as ged
from gedppl.guard import (
    CertifiedMonitor,
    ClassMonitor,
    DelayMonitor,
    LimitMonitor,
    PitMonitor,
    SafeValueMonitor,
)
from gedppl.guard.outcomes import MEASURED_FROM, Proved, certified_cost

DELTA, BREAK, SIZES = 0.05, 75, (0.5, 1.0)
X = np.zeros(1)


def normal(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], 1.0), obs=y)


def unknown_scale(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(w[a], jnp.exp(log_scale)), obs=y)


def exponential(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Exponential(jnp.exp(w[a])), obs=y)


def shifted(z: np.ndarray, size: float) -> np.ndarray:
    return z + size


def scaled(z: np.ndarray, size: float) -> np.ndarray:
    return z * (1.0 + size)


Grown = Callable[[np.ndarray, float], np.ndarray]
# what a certified value is of: the program of the outcomes, the functional, and how they change
KINDS: dict[str, tuple[Callable[..., None], ged.functionals.Functional, Grown]] = {
    "normal mean": (normal, ged.mean(-9, 9), shifted),
    "normal quantile .9": (normal, ged.quantile(0.9, -9, 9), shifted),
    "normal CVaR .9": (normal, ged.cvar(0.9, -9, 9), shifted),
    "normal P(Y > 1)": (normal, ged.probability(above=1.0), shifted),
    "normal variance": (normal, ged.variance(9.0), scaled),
    "unknown scale, mean": (unknown_scale, ged.mean(-9, 9), shifted),
    "unknown scale, CVaR .9": (unknown_scale, ged.cvar(0.9, -9, 9), shifted),
    "exponential mean": (exponential, ged.mean(0, 9), scaled),
    "exponential quantile .9": (exponential, ged.quantile(0.9, 0, 30), scaled),
    "exponential CVaR .9": (exponential, ged.cvar(0.9, 0, 30), scaled),
}


def certified(name: str) -> tuple[CertifiedMonitor, Callable[[np.ndarray], np.ndarray], Grown]:
    """The monitor of a certified value that is the truth itself, what it makes of outcomes (T, R)
    drawn at the truth, and how these change.
    """
    program, functional, grown = KINDS[name]
    cls = ged.density_class(program, example=(X[None], np.zeros(1, int)))
    density = cls.density_at(np.zeros((1, cls.dim)), X[None], np.ones(1, int))

    def value(f: ged.functionals.Functional) -> float:
        return float(np.asarray(f(density, X[None], np.ones(1, int))).reshape(-1)[0])

    base = value(MEASURED_FROM.get(functional.name, lambda level: functional)(functional.level))
    c = ged.Constraint(cls, functional, at_most=functional.high, safe_value=functional.low)
    proved = Proved(value(functional), (base, base))
    first = certified_cost(c, 0.0, X, 1, proved, 2)
    assert first is not None
    assert first.limit is not None
    assert first.floor is not None

    def said(z: np.ndarray) -> np.ndarray:
        costs = [certified_cost(c, float(one), X, 1, proved, 2) for one in z.ravel()]
        return np.array([cost.value for cost in costs if cost is not None]).reshape(z.shape)

    start = CertifiedMonitor.create(limit=first.limit, low=first.floor.low, high=1e300, delta=DELTA)
    return start, said, grown


def alarms(start: Any, rows: Any) -> tuple[int, float]:
    """Runs alarmed and the median round of the alarms; `rows` of what `update` takes, one a
    round.
    """
    monitor, first = start, np.array(np.nan)
    for t, row in enumerate(rows):
        monitor = monitor.update(*row)
        first = np.where(np.isnan(first) & monitor.alarmed, t, first)
    alarmed = int(np.isfinite(first).sum())
    return alarmed, float(np.nanmedian(first)) if alarmed else float("nan")


def mixed(right: np.ndarray, wrong: np.ndarray, begin: int) -> np.ndarray:
    return np.concatenate([right[:begin], wrong[begin:]])


@dataclass(frozen=True)
class Row:
    """Alarms where all is right, then for each size from the start and after the break."""

    name: str
    found: list[tuple[int, float]]


def certified_row(name: str, runs: int, rounds: int) -> Row:
    start, said, grown = certified(name)
    rng = np.random.default_rng(3)
    draw = rng.exponential if KINDS[name][0] is exponential else rng.standard_normal
    z = draw(size=(rounds, runs))
    right = said(z)
    found = [alarms(start, zip(right))]
    for size in SIZES:
        wrong = said(grown(z, size))
        found += [alarms(start, zip(mixed(right, wrong, begin))) for begin in (0, BREAK)]
    return Row(f"certified, {name}", found)


def coin_row(kind: type[LimitMonitor], name: str, runs: int, rounds: int) -> Row:
    """Coins of chance .3 at a limit of .3; then .45 and .6."""
    u = np.random.default_rng(4).random((rounds, runs))
    start = kind.create(limit=0.3, low=0.0, high=1.0, delta=DELTA)
    right = (u < 0.3).astype(float)
    found = [alarms(start, zip(right))]
    for size in SIZES:
        wrong = (u < 0.3 * (1 + size)).astype(float)
        found += [alarms(start, zip(mixed(right, wrong, begin))) for begin in (0, BREAK)]
    return Row(f"{name}, coins", found)


def pit_row(name: str, runs: int, rounds: int) -> Row:
    """Where Normal outcomes fall in a predictive that is the truth, with a context and actions."""
    rng = np.random.default_rng(5)
    z, x = rng.standard_normal((rounds, runs)), rng.standard_normal((rounds, runs, 1))
    action = rng.integers(0, 2, (rounds, runs))
    late = rng.integers(0, 10, (rounds, runs)).astype(float)
    if name == "delay":
        start: Any = DelayMonitor.create(delta=DELTA)

        def rows(size: float, begin: int) -> Any:
            # the larger ones come late
            moved = z + size * (np.arange(rounds)[:, None] >= begin) * (late - 4.5) / 4.5
            return zip(ndtr(moved), late)
    else:
        make = PitMonitor.calibration if name == "calibration" else PitMonitor.drift
        start = make(dx=1, n_actions=2, delta=DELTA)

        def rows(size: float, begin: int) -> Any:
            return zip(ndtr(z + size * (np.arange(rounds)[:, None] >= begin)), x, action)

    found = [alarms(start, rows(0.0, 0))]
    found += [alarms(start, rows(size, begin)) for size in SIZES for begin in (0, BREAK)]
    return Row(name, found)


def refuted(z: np.ndarray) -> tuple[int, float]:
    """Runs in which no mean explains Normal outcomes z (T, R) of known scale; the predictive is
    that of the prior N(0, 1).
    """
    rounds, runs = z.shape
    bets = [
        make(dx=1, n_actions=1, delta=DELTA) for make in (PitMonitor.calibration, PitMonitor.drift)
    ]
    monitors = [ClassMonitor.create(delta=DELTA) for _ in range(runs)]
    total, x, action = np.zeros(runs), np.zeros((runs, 1)), np.zeros(runs, int)
    sums = np.vstack([np.zeros(runs), np.cumsum(z, axis=0)])
    squares = np.vstack([np.zeros(runs), np.cumsum(z**2, axis=0)])
    before, first = np.zeros(runs) + np.log(2.0), np.full(runs, np.nan)
    for t in range(rounds):
        spread = np.sqrt(1 + 1 / (1 + t))
        loc = total / (1 + t)
        u, log_density = ndtr((z[t] - loc) / spread), norm.logpdf(z[t], loc, spread)
        bets = [m.update(u, x, action) for m in bets]
        after = np.logaddexp(*(np.broadcast_to(m.log_total, runs) for m in bets))
        total = total + z[t]
        for r in range(runs):
            m = monitors[r].update(after[r] - before[r]).pay(log_density[r])
            if m.contested:
                starts = m.marks[:, 0].astype(int)
                n = t + 1 - starts
                s = sums[t + 1, r] - sums[starts, r]
                left = squares[t + 1, r] - squares[starts, r] - s**2 / n
                m = m.weigh(-0.5 * n * np.log(2 * np.pi) - 0.5 * left)
            monitors[r] = m.begin(np.array([t + 1.0])) if m.n >= m.due else m
            if np.isnan(first[r]) and m.alarmed:
                first[r] = t
        before = after
    alarmed = int(np.isfinite(first).sum())
    return alarmed, float(np.nanmedian(first)) if alarmed else float("nan")


def refuted_row(runs: int, rounds: int) -> Row:
    """Noise that grows, which no mean explains."""
    z = np.random.default_rng(6).standard_normal((rounds, runs))
    found = [refuted(z)]
    for size in SIZES:
        found += [refuted(mixed(z, scaled(z, size), begin)) for begin in (0, BREAK)]
    return Row("refuted, normal mean", found)


def table(
    runs: int, rounds: int, only: list[str], report: Callable[[str], None] = print
) -> list[Row]:
    most = int(binom.ppf(0.999, runs, DELTA))
    report(f"{runs} runs of {rounds} rounds, delta {DELTA:g}; alarmed (median round); {most} may")
    heads = [f"+{size:g} from {start}" for size in SIZES for start in (0, BREAK)]
    report(f"{'monitor':>34} {'right':>12}" + "".join(f" {head:>14}" for head in heads))
    makers: dict[str, Callable[[], Row]] = {
        **{name: partial(certified_row, name, runs, rounds) for name in KINDS},
        "limit": partial(coin_row, LimitMonitor, "limit", runs, rounds),
        "safe value": partial(coin_row, SafeValueMonitor, "safe value", runs, rounds),
        **{
            name: partial(pit_row, name, runs, rounds) for name in ("calibration", "drift", "delay")
        },
        "refuted": partial(refuted_row, runs, rounds),
    }
    rows = []
    for make in [make for name, make in makers.items() if not only or name in only]:
        rows.append(row := make())
        cells = [f"{count} ({at:.0f})" for count, at in row.found]
        report(f"{row.name:>34} {cells[0]:>12}" + "".join(f" {cell:>14}" for cell in cells[1:]))
    report(f"most false alarms of a kind: {max(row.found[0][0] for row in rows)} of {runs}")
    return rows


def agents(report: Callable[[str], None] = print) -> None:
    """The guard at work, beside what it did before: 9 of 15 alarms and no stop under a jump of .5,
    1 alarm of 16 under Student's t of 3 degrees.
    """
    from misspecification import one_run

    for flaw, size, runs, before in (
        ("drift", 0.5, 15, "9 alarmed, 0 stopped"),
        ("tails", 1.0, 16, "1 alarmed"),
        ("none", 0.0, 16, ""),
    ):
        found = [one_run(flaw, size, 150, 1000 + seed) for seed in range(runs)]
        alarmed = sum(one["first"] is not None for one in found)
        stopped = sum(one["stopped"] for one in found)
        was = f" (before: {before})" if before else ""
        report(f"{flaw} {size:g}, {runs} runs: {alarmed} alarmed, {stopped} stopped{was}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["kinds", "agents"], default="kinds")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=[], help="rows by name, such as limit")
    asked = parser.parse_args()
    began = time.process_time()
    agents() if asked.what == "agents" else table(asked.runs, asked.rounds, asked.only)
    print(f"{time.process_time() - began:.0f} s of processor time")
