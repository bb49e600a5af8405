"""What limits the regret: linear-Gaussian problems, GED-UCB's parts switched one at a time, OPLB on the same seeds.

    python benchmarks/regret.py                              the defaults on every problem, 5 seeds, a few minutes
    python benchmarks/regret.py --seeds 20 --vary sets       20 seeds; what each part of the confidence set is worth
    python benchmarks/regret.py --seeds 20 --vary known      with and without the safe action's known cost in the set
    python benchmarks/regret.py --vary weights               bonus and width weights, through the counterfactual pass
    python benchmarks/regret.py --vary noise                 a bonus weight that follows the noise
    python benchmarks/regret.py --vary refits                how often to refit
    python benchmarks/regret.py --oplb all                   OPLB in both forms, and with its radius scaled by 0.3

Every problem has K = 5 actions, d = 5 features (per_arm: 10), noise 0.1, T = 2000 rounds; the limit is set where the best
action breaks it on about half of the contexts (tight and known_costs: as said there). Regret is against the best policy that
keeps the limit each round. `pessimism` is what is lost with the cost bounds of each round even if utilities were known: where it
is nearly all of the regret, the cost set is what limits. Both means and medians are printed: medians hide lock-in.

The loop is GED-UCB with `gedppl.confidence.linear_gaussian`, without a PPL: score = estimate + width weight x width
(+ bonus from the counterfactual pass), cost bounds from the trail, one linear programme.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gedppl.baselines.oplb import OPLB, best_mixture_of_two
from gedppl.classes import LinearPredictor
from gedppl.confidence.linear_gaussian import LinearGaussianLearner
from gedppl.counterfactual import block_pass, exact_pass
from gedppl.functionals import mean

K, SIGMA, DELTA = 5, 0.1, 0.05
UNIT = mean(0.0, 1.0)


# the problems ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """T rounds drawn in advance. Contexts are the flattened features of all actions."""

    phi: np.ndarray  # (T, K, d)
    theta: np.ndarray  # (d,) utility
    mu: np.ndarray  # (d,) cost
    tau: float
    noise: np.ndarray  # (T, 2)
    known_costs: bool = False
    sigma: float = SIGMA
    utility: np.ndarray = field(init=False)  # (T, K)
    cost: np.ndarray = field(init=False)
    best: np.ndarray = field(init=False)  # (T,) the constrained oracle's utility

    def __post_init__(self) -> None:
        utility, cost = self.phi @ self.theta, self.phi @ self.mu
        object.__setattr__(self, "utility", utility)
        object.__setattr__(self, "cost", cost)
        best = np.array([policy_of(u, c, self.tau) @ u for u, c in zip(utility, cost)])
        object.__setattr__(self, "best", best)

    @property
    def dim(self) -> int:
        return self.phi.shape[2]

    @property
    def safe_features(self) -> np.ndarray | None:
        first = self.phi[0, 0]
        return first if (self.phi[:, 0] == first).all() else None

    @property
    def predictor(self) -> LinearPredictor:
        d = self.dim
        return LinearPredictor(
            "Normal", "identity",
            features=lambda x, a: x.reshape(len(x), K, d)[np.arange(len(x)), a],
            offset=lambda x, a: np.zeros(len(x)),
            fixed=lambda x, a: {"scale": np.full(len(x), self.sigma)},
        )  # fmt: skip


def policy_of(score: np.ndarray, upper: np.ndarray, tau: float) -> np.ndarray:
    """The linear programme of one limit by its pairs: (K,). Action 0 is safe, so there is always a solution."""
    K = len(score)
    fits = upper <= tau + 1e-12
    single = np.where(fits, score, -np.inf)
    policy = np.zeros(K)
    low, high = np.flatnonzero(fits), np.flatnonzero(~fits)
    a = int(single.argmax())
    policy[a] = 1.0
    if len(high):
        p = (tau - upper[low])[:, None] / (upper[high][None] - upper[low][:, None])
        value = score[low][:, None] + p * (score[high][None] - score[low][:, None])
        i, j = np.unravel_index(int(value.argmax()), value.shape)
        if value[i, j] > single[a]:
            policy[:] = 0.0
            policy[low[i]], policy[high[j]] = 1 - p[i, j], p[i, j]
    return policy


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def _limit(phi: np.ndarray, theta: np.ndarray, mu: np.ndarray) -> float:
    """Where the unconstrained best action is infeasible on half of the contexts."""
    cost = (phi @ mu)[np.arange(len(phi)), (phi @ theta).argmax(1)]
    return float(max(np.median(cost), phi[0, 0] @ mu + 0.05))


def shared(rng: np.random.Generator, T: int) -> World:
    """Random nonnegative unit features; the safe action along the cheapest axis."""
    theta, mu = _unit(np.abs(rng.normal(size=(2, 5))))
    phi = _unit(np.abs(rng.normal(size=(T, K, 5))))
    phi[:, 0] = np.eye(5)[mu.argmin()]
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


def intercept(rng: np.random.Generator, T: int) -> World:
    """An intercept and four signed features; the safe action is nearly nothing of anything."""
    phi = np.concatenate([np.ones((T, K, 1)), 0.9 * _unit(rng.normal(size=(T, K, 4)))], axis=2) / np.sqrt(1.81)
    theta, mu = (np.append(0.6, 0.35 * _unit(rng.normal(size=4))) for _ in range(2))
    phi[:, 0] = 0.1 * np.eye(5)[0]
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


def tight(rng: np.random.Generator, T: int) -> World:
    """The same with little room: tau = c0 + 0.1, below nearly every other action's cost."""
    world = intercept(rng, T)
    return replace(world, tau=float(world.cost[0, 0] + 0.1))


def rotated(rng: np.random.Generator, T: int) -> World:
    """One context vector, each action a cyclic shift of it."""
    theta, mu = _unit(rng.random((2, 5)))
    x = _unit(rng.random((T, 5)))
    phi = np.stack([np.roll(x, k, axis=1) for k in range(K)], axis=1)
    phi[:, 0] = 0.2 / np.sqrt(5)
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


def per_arm(rng: np.random.Generator, T: int) -> World:
    """Nothing shared: an intercept and a slope for each action; the safe action's cost does not move with x."""
    x = rng.random(T)
    phi = np.zeros((T, K, 2 * K))
    for a in range(K):
        phi[:, a, 2 * a], phi[:, a, 2 * a + 1] = 1.0, x if a else 0.0
    phi /= np.sqrt(2)
    theta = np.sqrt(2) * np.ravel(np.column_stack([rng.uniform(0.2, 0.6, K), rng.uniform(-0.2, 0.4, K)]))
    mu = np.sqrt(2) * np.ravel(np.column_stack([rng.uniform(0.2, 0.6, K), rng.uniform(-0.2, 0.4, K)]))
    theta[:2] = mu[:2] = np.sqrt(2) * np.array([0.1, 0.0])
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


def known_costs(rng: np.random.Generator, T: int) -> World:
    """Lock-in: costs known and equal, the best action hides behind a worse one that the first fits like better."""
    phi = np.tile(np.eye(K), (T, 1, 1))
    theta = np.array([0.1, 0.5, 0.5, 0.5, 0.6])
    return World(phi, theta, np.full(K, 0.1), 0.5, 0.5 * rng.normal(size=(T, 2)), known_costs=True, sigma=0.5)


PROBLEMS: dict[str, Callable[[np.random.Generator, int], World]] = {
    f.__name__: f for f in (shared, intercept, rotated, per_arm, tight, known_costs)
}


# the algorithm --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """One variant. bonus None: no counterfactual pass, plain optimistic-pessimistic linear programme."""

    bonus: float | None = None
    width: float = 0.1
    growth: float = 1.05
    restarts: bool = True
    known_direction: bool = True
    norm_bound: float | None = None
    joint: bool = False
    exact_rounds: int = 128
    noise_aware: bool = False


@dataclass(frozen=True)
class Played:
    regret: float
    pessimism: float
    infeasible: int
    seconds: float


def play(world: World, options: Options, seed: int) -> Played:
    """T rounds of one variant."""
    begun, rng, T = time.perf_counter(), np.random.default_rng(seed), len(world.phi)
    c0, r0 = float(world.cost[0, 0]), float(world.utility[0, 0])
    alpha = options.width * (1 - r0) / (world.tau - c0)
    known = None
    if options.known_direction and world.safe_features is not None and np.any(world.safe_features):
        known = (world.safe_features, c0)
    utility = LinearGaussianLearner.start(world.predictor, world.dim, delta=DELTA / 2, norm_bound=options.norm_bound)
    cost = LinearGaussianLearner.start(
        world.predictor, world.dim, delta=DELTA / 2, known_direction=known, norm_bound=options.norm_bound,
        restarts=options.restarts,
    )  # fmt: skip
    starts, exploration, due = [0], [_exploration(utility, options)], 1
    regret = pessimism = 0.0
    infeasible = 0
    for t in range(T):
        x = world.phi[t].reshape(1, -1)
        if world.known_costs:
            lower = upper = np.tile(world.cost[t], (len(starts), 1))
        else:
            trail = cost.trail(UNIT, x, K)
            lower, upper = trail.lower[0].copy(), trail.upper[0].copy()
            lower[:, 0] = upper[:, 0] = c0
        if options.bonus is None:
            estimate = np.clip(world.phi[t] @ utility.theta, 0, 1)
            score = estimate + alpha * (upper[-1] - lower[-1])
            policy = policy_of(score, upper[-1], world.tau)
            if options.joint and not world.known_costs:
                policy = _joint(policy, score, world, cost, t, c0)
        else:
            base = utility.trail(UNIT, x, K).estimate[0] + alpha * (upper - lower)
            block = np.searchsorted(starts, np.arange(t + 1), side="right") - 1
            weight = options.bonus * 0.5 * np.sqrt(np.array(exploration)[block] * np.arange(1, t + 2) / K)
            run = exact_pass if t <= options.exact_rounds else block_pass
            policy = run(
                base[None], upper[None, :, None], np.full((len(starts), 1), world.tau), weight, np.array(starts), t,
                safe_action=0,
            ).policy[0]  # fmt: skip
        regret += world.best[t] - policy @ world.utility[t]
        pessimism += world.best[t] - policy_of(world.utility[t], upper[-1], world.tau) @ world.utility[t]
        infeasible += bool(policy @ world.cost[t] > world.tau + 1e-9)
        a = np.array([min(int(np.searchsorted(np.cumsum(policy), rng.random(), side="right")), K - 1)])
        utility = utility.absorb(x, a, world.utility[t, a] + world.noise[t, :1])
        cost = cost.absorb(x, a, world.cost[t, a] + world.noise[t, 1:])
        if t + 1 >= due:
            utility, cost = utility.refit(), cost.refit()
            starts.append(t + 1)
            exploration.append(_exploration(utility, options))
            due = max(t + 2, int(options.growth * (t + 1)))
    return Played(regret, pessimism, infeasible, time.perf_counter() - begun)


def _exploration(utility: LinearGaussianLearner, options: Options) -> float:
    """Q of the bonus weight 1/2 sqrt(Q t / K): the theorem's, or only its part that follows the noise."""
    cover = len(utility.theta) * np.log1p(utility.n) + np.log(2 / DELTA)
    deviation = 2 * utility.squared_deviation(UNIT)
    return deviation if options.noise_aware else deviation + 1.255 * cover + 1


def _joint(policy: np.ndarray, score: np.ndarray, world: World, cost: LinearGaussianLearner, t: int, c0: float) -> np.ndarray:
    """The worst case of the whole policy over one ellipsoid instead of action by action, on mixtures of two actions."""
    s, phi = cost.snapshots, world.phi[t]
    middle, half = phi @ s.middle[-1, 0], phi @ s.factor[-1, 0].T
    middle[0], half[0] = c0, 0.0
    if np.abs(half).max() > 1e3:
        return policy
    other = best_mixture_of_two(score, np.zeros((K, 1)), middle, half, world.tau)
    return other if other @ score > policy @ score else policy


def play_oplb(world: World, seed: int, **how: Any) -> Played:
    """OPLB with R = sigma, lambda = S = L = 1 and the whole delta."""
    begun = time.perf_counter()
    agent = OPLB(
        world.predictor.features, n_actions=K, dim=world.dim, tau=world.tau, safe_value=float(world.cost[0, 0]),
        safe_utility=float(world.utility[0, 0]), sigma=world.sigma, delta=DELTA, seed=seed,
        safe_features=world.safe_features, **how,
    )  # fmt: skip
    regret, infeasible = 0.0, 0
    for t in range(len(world.phi)):
        decision = agent.ask(world.phi[t].ravel())
        a = decision.action
        regret += world.best[t] - decision.policy @ world.utility[t]
        infeasible += bool(decision.policy @ world.cost[t] > world.tau + 1e-9)
        agent.tell(decision.id, world.utility[t, a] + world.noise[t, 0], world.cost[t, a] + world.noise[t, 1])
    return Played(regret, np.nan, infeasible, time.perf_counter() - begun)


# the tables -----------------------------------------------------------------------------------------------------------

BASE = Options()
VARIANTS: dict[str, dict[str, Options]] = {
    "none": {"defaults": replace(BASE, bonus=0.01)},
    "known": {
        "c0 direction unknown": replace(BASE, known_direction=False),
        "c0 direction known": BASE,
    },
    "sets": {
        "one start only": replace(BASE, restarts=False, known_direction=False),
        "restarts": replace(BASE, known_direction=False),
        "restarts, c0 direction known": BASE,
        "  and |theta| <= 1 declared": replace(BASE, norm_bound=1.0),
        "  and joint constraint": replace(BASE, joint=True),
        "  and both": replace(BASE, joint=True, norm_bound=1.0),
    },
    "weights": {
        f"bonus {b}, width {w}": replace(BASE, bonus=b, width=w)
        for b, w in ((1.0, 1.0), (0.1, 0.1), (0.03, 0.1), (0.01, 0.3), (0.01, 0.1), (0.01, 0.03), (0.003, 0.1), (0.0, 0.1))
    },
    "noise": {f"noise-aware bonus {b}": replace(BASE, bonus=b, noise_aware=True) for b in (0.05, 0.1, 0.2, 0.4)},
    "refits": {f"growth {g}": replace(BASE, growth=g) for g in (1.0, 1.02, 1.05, 1.1, 1.2)},
}  # fmt: skip


OPLBS: dict[str, dict[str, dict[str, Any]]] = {
    "none": {},
    "one": {"OPLB": {"form": "per_action"}},
    "all": {
        "OPLB": {"form": "per_action"},
        "OPLB, joint norms": {"form": "joint"},
        "OPLB, radius x 0.3": {"form": "per_action", "radius_scale": 0.3},
    },
}


def show(name: str, runs: list[Played], reference: float | None) -> None:
    regret = np.array([r.regret for r in runs])
    ratio = "" if reference is None else f"{np.median(regret) / reference:8.3f}"
    print(
        f"  {name:32s}{regret.mean():9.1f}{np.median(regret):9.1f}{np.mean([r.pessimism for r in runs]):10.1f}"
        f"{sum(r.infeasible for r in runs):7d}{np.mean([r.seconds for r in runs]):8.2f}{ratio}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--vary", choices=list(VARIANTS), default="none")
    parser.add_argument("--only", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--oplb", choices=list(OPLBS), default="one")
    given = parser.parse_args()
    print(f"  {'':32s}{'mean':>9s}{'median':>9s}{'pessimism':>10s}{'infeas':>7s}{'s/run':>8s}  median / OPLB's")
    for name in given.only:
        number = list(PROBLEMS).index(name)
        worlds = [PROBLEMS[name](np.random.default_rng([7, number, s]), given.rounds) for s in range(given.seeds)]
        breaks = np.mean([
            (w.cost[np.arange(given.rounds), w.utility.argmax(1)] > w.tau).mean() for w in worlds
        ])  # fmt: skip
        safe = np.mean([(w.best - w.utility[:, 0]).sum() for w in worlds])
        print(f"{name}: best action infeasible on {breaks:.0%} of contexts, always safe {safe:.0f}")
        reference = None
        for label, how in OPLBS[given.oplb].items():
            runs = [play_oplb(w, s, **how) for s, w in enumerate(worlds)]
            show(label, runs, reference)
            reference = float(np.median([r.regret for r in runs])) if reference is None else reference
        for label, options in VARIANTS[given.vary].items():
            show(label, [play(w, options, s) for s, w in enumerate(worlds)], reference)


if __name__ == "__main__":
    main()
