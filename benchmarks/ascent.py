"""Do bounds by search tell the truth? ``OMP_NUM_THREADS=1 python benchmarks/ascent.py table|runs``.

``table``: nine programs without an exact form (and by name, `--models`, counts with more zeros and
a net of two units), three sizes, three actions, both ends. Each bound
against a far longer search of the same set: 24 random climbs of 60 steps, SLSQP from the best two
of them, and 400 random rays with ten doublings. One JSON line a model and size, then the total:
``below`` counts ends that stop more than 1% of the range short of a member that the long search
met, ``range_end`` the share answered with the end of the range, ``width`` and ``true_width`` the
mean over actions in units of the range (a bound that is cut at the range counts as the range's end
in both).

``runs``: logistic mean and Poisson event (guaranteed) and heteroscedastic variance (by search)
while the agent collects its own data, delta = .1: runs in which the truth was ever outside the
bounds that were decided on (`check_coverage`), against the binomial threshold and against delta
plus three standard errors.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.optimize import minimize

import gedppl as ged
from gedppl.functionals import Functional
from gedppl.learning import feed, learner_for
from gedppl.learning.ascent import ascend
from gedppl.learning.program_sets import Region, walk
from gedppl.learning.radius import LikelihoodRatio

K, DX = 3, 2
SIZES = (20, 40, 120)


@dataclass(frozen=True)
class Case:
    model: Callable[..., None]
    functional: Functional
    truth: dict[str, Any]


def _sites(**shapes: tuple[int, ...]) -> list[Any]:
    return [
        numpyro.sample(name, dist.Normal(0.0, 2.0).expand(shape).to_event(len(shape)))
        for name, shape in shapes.items()
    ]


def scale_by_context(x: Any, a: Any, y: Any = None) -> None:
    w, g = _sites(w=(K, DX), g=(DX,))
    numpyro.sample("y", dist.Normal((x * w[a]).sum(-1), jnp.exp(x @ g)), obs=y)


def scale_by_action(x: Any, a: Any, y: Any = None) -> None:
    m, s, r = _sites(m=(K,), s=(K,), r=())
    numpyro.sample("y", dist.Normal(m[a], jnp.exp(s[a] + r * x[:, 0])), obs=y)


def student(x: Any, a: Any, y: Any = None) -> None:
    w, s, d = _sites(w=(K, DX), s=(), d=())
    numpyro.sample("y", dist.StudentT(2 + jnp.exp(d), (x * w[a]).sum(-1), jnp.exp(s)), obs=y)


def mixture(x: Any, a: Any, y: Any = None) -> None:
    m, gap, p = _sites(m=(K,), gap=(), p=())
    loc = m[a][:, None] + jnp.stack([jnp.zeros(()), jnp.exp(gap)])
    weights = dist.Categorical(logits=jnp.broadcast_to(jnp.stack([jnp.zeros(()), p]), loc.shape))
    numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(loc, 0.5)), obs=y)


def lapses(x: Any, a: Any, y: Any = None) -> None:
    w, lapse = _sites(w=(K, DX), lapse=())
    rate = 0.5 * jax.nn.sigmoid(lapse)
    numpyro.sample(
        "y", dist.Bernoulli(probs=rate + (1 - 2 * rate) * jax.nn.sigmoid((x * w[a]).sum(-1))), obs=y
    )


def net(x: Any, a: Any, y: Any = None) -> None:
    v, b, u, c = _sites(v=(DX + 1, 4), b=(4,), u=(4,), c=())
    inputs = jnp.hstack([x, (a - 1.0)[:, None]])
    numpyro.sample("y", dist.Normal(jnp.tanh(inputs @ v + b) @ u + c, 0.3), obs=y)


def narrow_net(x: Any, a: Any, y: Any = None) -> None:
    w, b, u, c = _sites(w=(6,), b=(6,), u=(6,), c=())
    inputs = (x[:, 0] + a)[:, None]
    numpyro.sample("y", dist.Normal(jnp.tanh(inputs * w + b) @ u + c, 0.3), obs=y)


def saturating(x: Any, a: Any, y: Any = None) -> None:
    base, most, half, s = _sites(base=(), most=(), half=(), s=())
    dose = (1.0 + a) * jnp.exp(0.3 * x[:, 0])
    numpyro.sample("y", dist.Normal(base + most * dose / (dose + jnp.exp(half)), jnp.exp(s)), obs=y)


def gamma(x: Any, a: Any, y: Any = None) -> None:
    w, c = _sites(w=(K, DX), c=())
    numpyro.sample("y", dist.Gamma(jnp.exp(c), jnp.exp(c - (x * w[a]).sum(-1))), obs=y)


def zeros(x: Any, a: Any, y: Any = None) -> None:
    m, w, none = _sites(m=(K,), w=(DX,), none=())
    counts = dist.Poisson(jnp.exp(m[a] + x @ w))
    numpyro.sample("y", dist.ZeroInflatedDistribution(counts, gate=jax.nn.sigmoid(none)), obs=y)


def two_units(x: Any, a: Any, y: Any = None) -> None:
    v, b, u, c = _sites(v=(DX + 1, 2), b=(2,), u=(2,), c=())
    inputs = jnp.hstack([x, (a - 1.0)[:, None]])
    numpyro.sample("y", dist.Normal(jnp.tanh(inputs @ v + b) @ u + c, 0.3), obs=y)


WEIGHTS = np.array([[0.5, -0.3], [0.2, 0.4], [-0.4, 0.1]])
CASES = {
    "scale by context": Case(
        scale_by_context, ged.variance(100), {"w": WEIGHTS, "g": np.array([0.4, -0.3])}
    ),
    "scale by action": Case(
        scale_by_action,
        ged.variance(20),
        {"m": np.array([0.0, 0.3, 0.6]), "r": 0.3, "s": np.array([-1.0, -0.5, 0.0])},
    ),
    "student": Case(student, ged.mean(-10, 10), {"w": WEIGHTS, "s": -0.5, "d": 0.5}),
    "mixture": Case(
        mixture, ged.mean(-10, 10), {"m": np.array([0.0, 0.5, 1.0]), "gap": 1.0, "p": -1.0}
    ),
    "lapses": Case(lapses, ged.mean(0, 1), {"w": 3 * WEIGHTS, "lapse": -2.0}),
    "net": Case(
        net,
        ged.mean(-20, 20),
        {
            "v": np.linspace(-1, 1, 12).reshape(3, 4),
            "b": np.array([0.3, -0.3, 0.1, 0.0]),
            "u": np.array([1.0, -0.5, 0.8, 0.6]),
            "c": 0.2,
        },
    ),
    "narrow net": Case(
        narrow_net,
        ged.mean(-20, 20),
        {
            "w": np.array([1.0, -0.7, 0.4, 1.3, -1.0, 0.2]),
            "b": np.linspace(-0.5, 0.5, 6),
            "u": np.array([0.7, -0.4, 0.5, -0.8, 0.3, 0.6]),
            "c": 0.2,
        },
    ),
    "saturating": Case(
        saturating, ged.mean(-10, 10), {"base": 0.0, "most": 2.0, "half": 0.5, "s": -1.0}
    ),
    "gamma": Case(gamma, ged.mean(0, 20), {"w": WEIGHTS, "c": 0.5}),
    "zeros": Case(
        zeros,
        ged.mean(0, 20),
        {"m": np.array([0.5, 1.0, 1.3]), "w": np.array([0.4, -0.3]), "none": -1.0},
    ),
    "two units": Case(
        two_units,
        ged.mean(-10, 10),
        {
            "v": np.array([[1.0, -0.5], [0.4, 0.8], [-0.6, 0.5]]),
            "b": np.array([0.3, -0.3]),
            "u": np.array([1.0, -0.7]),
            "c": 0.2,
        },
    ),
}


BY_NAME = ("zeros", "two units")  # only where they are asked for


def long_search(
    region: Region,
    paired: Callable[[np.ndarray, np.ndarray], Any],
    problems: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The largest signed value (problems,) met at a member; `paired(theta (M, D), which (M,))`
    gives values and gradients.
    """
    D, climbs, rays = len(region.centre), 24, 400
    which = np.tile(np.arange(problems), climbs)
    start = rng.standard_normal((len(which), D))
    start *= (
        np.sqrt(2 * region.kappa)
        * rng.uniform(0.2, 3.0, len(start))[:, None]
        / np.linalg.norm(start, axis=1)[:, None]
    )
    found = ascend(
        region,
        lambda theta, some: paired(theta, which[some]),
        region.theta(start),
        steps=60,
        tol=1e-6,
    )
    ends = np.where(np.isnan(found.value), -np.inf, found.value).reshape(climbs, problems)
    best = ends.max(axis=0)
    for i in range(problems):
        for j in np.argsort(-ends[:, i])[:2]:
            best[i] = max(
                best[i], _slsqp(region, paired, i, region.z(found.theta[j * problems + i][None])[0])
            )
    far = walk(region, np.zeros((rays, D)), rng.standard_normal((rays, D)))
    for i in range(problems):
        values = paired(region.theta(far.z), np.full(rays, i))[0]
        best[i] = max(best[i], np.max(np.where(np.isnan(values), -np.inf, values)))
    return best


def _slsqp(
    region: Region, paired: Callable[[np.ndarray, np.ndarray], Any], i: int, z: np.ndarray
) -> float:
    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = paired(region.theta(z[None]), np.array([i]))
        return -value[0], -region.whiten(grad)[0]

    def limit(z: np.ndarray) -> float:
        return float(np.maximum(region.slack(region.theta(z[None]))[0], -1e6))

    def limit_grad(z: np.ndarray) -> np.ndarray:
        return np.nan_to_num(region.whiten(region.slack_grad(region.theta(z[None]))[1])[0])

    inside = {"type": "ineq", "fun": limit, "jac": limit_grad}
    with np.errstate(all="ignore"):
        end = minimize(
            loss, z, jac=True, constraints=[inside], method="SLSQP", options={"maxiter": 60}
        )
    return -float(end.fun) if np.isfinite(end.fun) and limit(end.x) >= 0 else -np.inf


def outcomes(case: Case, x: np.ndarray, a: np.ndarray, seed: int) -> np.ndarray:
    """Drawn from the program at the truth."""
    told = numpyro.handlers.substitute(
        case.model, data={name: jnp.asarray(value) for name, value in case.truth.items()}
    )
    sites = numpyro.handlers.trace(numpyro.handlers.seed(told, seed)).get_trace(x, a)
    return np.asarray(sites["y"]["value"], float)


def compare(name: str, n: int, seed: int) -> dict[str, Any]:
    """One data set: bounds at a fresh context for all actions, and the long search's."""
    case, rng = CASES[name], np.random.default_rng([seed, n, list(CASES).index(name)])
    x, a = rng.standard_normal((n, DX)), rng.integers(0, K, n)
    cls = _class(name)
    y = outcomes(case, x, a, seed)
    learner = feed(
        learner_for(cls, delta=0.1, confidence=LikelihoodRatio(restarts=False)), x, a, y, growth=1.3
    )
    here, actions = np.repeat(rng.standard_normal((1, DX)), 2 * K, axis=0), np.tile(np.arange(K), 2)
    clock = time.process_time()
    found = learner.bounds(case.functional, here[:1], K)
    spent = time.process_time() - clock
    region, sign = learner.sets[0].region, np.repeat([1.0, -1.0], K)

    def paired(theta: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, grad = cls.values_grad(case.functional, theta, here[which], actions[which])
        return sign[which] * np.asarray(value, float), sign[which][:, None] * np.asarray(
            grad, float
        )

    low, high = case.functional.low, case.functional.high
    best = np.clip(sign * long_search(region, paired, 2 * K, rng), low, high)
    span = high - low
    ours = np.concatenate([found.upper[0], found.lower[0]])
    short = np.concatenate([best[:K] - ours[:K], ours[K:] - best[K:]]) / span
    at_end = np.concatenate([ours[:K] >= high, ours[K:] <= low])
    truly = np.concatenate([best[:K] >= high - 0.01 * span, best[K:] <= low + 0.01 * span])
    said = {
        "kappa": region.kappa,
        "worst": short.max(),
        "range_end": at_end.mean(),
        "true_range_end": truly.mean(),
    }
    said |= {
        "width": np.mean(ours[:K] - ours[K:]) / span,
        "true_width": np.mean(best[:K] - best[K:]) / span,
        "ms": 1e3 * spent,
    }
    counted = {
        "model": name,
        "n": n,
        "seed": seed,
        "method": found.method,
        "ends": 2 * K,
        "below": int(np.sum(short > 0.01)),
    }
    return counted | {key: round(float(value), 4) for key, value in said.items()}


_CLASSES: dict[str, Any] = {}


def _class(name: str) -> Any:
    if name not in _CLASSES:
        _CLASSES[name] = ged.density_class(
            CASES[name].model, example=(np.zeros((1, DX)), np.zeros(1, int))
        )
    return _CLASSES[name]


def table(seeds: range, names: list[str], sizes: list[int]) -> None:
    cells = []
    for name in names:
        for n in sizes:
            for seed in seeds:
                cells.append(compare(name, n, seed))
                print(json.dumps(cells[-1]), flush=True)
    largest = [cell for cell in cells if cell["n"] == max(sizes)]
    print(
        json.dumps(
            {
                "ends": sum(cell["ends"] for cell in cells),
                "below": sum(cell["below"] for cell in cells),
                "range_end": round(float(np.mean([cell["range_end"] for cell in cells])), 3),
                "true_range_end": round(
                    float(np.mean([cell["true_range_end"] for cell in cells])), 3
                ),
                f"width_at_{max(sizes)}": round(
                    float(np.mean([cell["width"] for cell in largest])), 4
                ),
                f"true_width_at_{max(sizes)}": round(
                    float(np.mean([cell["true_width"] for cell in largest])), 4
                ),
            }
        )
    )


def logistic(x: Any, a: Any, y: Any = None) -> None:
    (w,) = _sites(w=(K, DX))
    numpyro.sample("y", dist.Bernoulli(logits=(x * w[a]).sum(-1)), obs=y)


def counts(x: Any, a: Any, y: Any = None) -> None:
    (w,) = _sites(w=(K, DX))
    numpyro.sample("y", dist.Poisson(jnp.exp((x * w[a]).sum(-1))), obs=y)


def _variance_problem(name: str, at_most: float, high: float) -> tuple[ged.Problem, Any]:
    """A limit on the variance of the outcome whose mean is the utility; a narrow range, so that
    the safe action is left soon.
    """
    cls, truth = _class(name), {key: np.asarray(part) for key, part in CASES[name].truth.items()}

    def known(x: np.ndarray) -> np.ndarray:
        return np.array(ged.variance(high)(cls.density(truth, x, np.zeros(len(x), int))))

    limit = ged.Constraint(
        cls,
        ged.variance(high),
        at_most=at_most,
        safe_value=known,
        name="variance",
        outcome="utility",
    )
    utility = ged.Utility(cls, ged.mean(-3, 3))
    return ged.Problem(K, utility, [limit], safe_action=0, safe_utility=0.0), {"utility": truth}


def _event_problem(
    model: Callable[..., None], functional: Functional, at_most: float
) -> tuple[ged.Problem, Any]:
    """A limit on an outcome of its own; the utility is another outcome of the same kind."""
    utility, cost = (
        ged.density_class(model, example=(np.zeros((1, DX)), np.zeros(1, int))) for _ in range(2)
    )
    truth = {"utility": {"w": WEIGHTS}, "cost": {"w": WEIGHTS[::-1].copy()}}

    def known(x: np.ndarray) -> np.ndarray:
        return np.array(functional(cost.density(truth["cost"], x, np.zeros(len(x), int))))

    limit = ged.Constraint(cost, functional, at_most=at_most, safe_value=known, name="cost")
    gain = ged.mean(0, 1) if model is logistic else ged.mean(0, 5)
    return ged.Problem(K, ged.Utility(utility, gain), [limit], safe_action=0), truth


PLAYED: dict[str, Callable[[], tuple[ged.Problem, Any]]] = {
    "logistic mean": lambda: _event_problem(logistic, ged.mean(0, 1), 0.65),
    "poisson event": lambda: _event_problem(counts, ged.probability(above=2.5), 0.5),
    "scale by action": lambda: _variance_problem("scale by action", 1.5, 5.0),
    "scale by context": lambda: _variance_problem("scale by context", 5.0, 10.0),
}


def kept_in(folder: Path, mark: str) -> Callable[..., Iterator[Any]]:
    """A `map` that keeps what each task gave, so that a command cut short goes on where it was."""

    def one_by_one(f: Callable[[int], Any], tasks: Iterable[int]) -> Iterator[Any]:
        folder.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            path = folder / f"{mark}, {task}.pickle".replace(" ", "_")
            if not path.exists():
                path.write_bytes(pickle.dumps(f(task)))
            yield pickle.loads(path.read_bytes())

    return one_by_one


def runs(name: str, count: int, rounds: int, delta: float, keep: Path | None) -> None:
    """The agent plays and collects its own data, without a guard that would stop it; the truth is
    held against every bound decided on.
    """
    problem, truth = PLAYED[name]()
    contexts = np.random.default_rng(77).uniform(-1, 1, (100, DX))
    clock = time.process_time()
    found = ged.check_coverage(
        problem,
        contexts,
        [truth],
        runs=count,
        rounds=rounds,
        delta=delta,
        agent={"guard": None},
        seed=1000,
        progress=True,
        map=map if keep is None else kept_in(keep, f"{name}, {rounds}, {delta:g}"),
    )
    (limit,) = found.constraints
    most = delta + 3 * np.sqrt(delta * (1 - delta) / count)
    rate = found.misses(limit) / count
    said = {"rate": rate, "rate_at_most": most}
    said["cpu_s"] = time.process_time() - clock
    print(f"{name}: {found}", flush=True)
    print(
        json.dumps(
            {"model": name, "claim": found.kind(limit), "missed": found.misses(limit)}
            | {"allowed": found.allowed, "runs": count, "rounds": rounds}
            | {key: round(float(value), 3) for key, value in said.items()}
            | {"kept": bool(rate <= most and found.ok)}
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["table", "runs"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=1000, help="the first seed of the table")
    parser.add_argument(
        "--models", nargs="*", default=None, choices=list(dict.fromkeys([*CASES, *PLAYED]))
    )
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--keep", type=Path, help="a folder; runs found there are not made again")
    told = parser.parse_args()
    warnings.simplefilter("ignore")  # fits to a few rows do not settle, and say so
    if told.what == "table":
        asked = told.models or [name for name in CASES if name not in BY_NAME]
        names = [name for name in CASES if name in asked]
        table(range(told.first, told.first + told.seeds), names, told.sizes)
    else:
        for name in [name for name in PLAYED if name in (told.models or PLAYED)]:
            runs(name, told.runs, told.rounds, told.delta, told.keep)


if __name__ == "__main__":
    main()
