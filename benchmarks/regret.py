"""Linear-Gaussian problems drawn in advance, and OPLB on them: what `benchmarks/decide.py regret`
compares with.

K = 5 actions, d = 5 features (per_arm: 10; two_dims: 10 actions, 2 features; wide: 20 and 20),
noise 0.1; the limit is set where the best action breaks it on about half of the contexts (tight,
known_costs: as said there). Regret is against the best policy that keeps the limit each round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged
from gedppl.programs.contract import LinearPredictor
from gedppl.study.baselines.oplb import OPLB

K, SIGMA, DELTA = 5, 0.1, 0.05


# the problems -------------------------------------------------------------------------------------


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
    def n_actions(self) -> int:
        return self.phi.shape[1]

    @property
    def safe_features(self) -> np.ndarray | None:
        first = self.phi[0, 0]
        return first if (self.phi[:, 0] == first).all() else None

    @property
    def predictor(self) -> LinearPredictor:
        shape = self.phi.shape[1:]
        return LinearPredictor(
            "Normal",
            "identity",
            features=lambda x, a: x.reshape(len(x), *shape)[np.arange(len(x)), a],
            offset=lambda x, a: np.zeros(len(x)),
            fixed=lambda x, a: {"scale": np.full(len(x), self.sigma)},
        )


def policy_of(score: np.ndarray, upper: np.ndarray, tau: float) -> np.ndarray:
    """The linear programme of one limit by its pairs: (K,). Action 0 is safe, so there is always
    a solution.
    """
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
    phi = np.concatenate(
        [np.ones((T, K, 1)), 0.9 * _unit(rng.normal(size=(T, K, 4)))], axis=2
    ) / np.sqrt(1.81)
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
    """Nothing shared: an intercept and a slope for each action; the safe action's cost does not
    move with x.
    """
    x = rng.random(T)
    phi = np.zeros((T, K, 2 * K))
    for a in range(K):
        phi[:, a, 2 * a], phi[:, a, 2 * a + 1] = 1.0, x if a else 0.0
    phi /= np.sqrt(2)
    theta = np.sqrt(2) * np.ravel(
        np.column_stack([rng.uniform(0.2, 0.6, K), rng.uniform(-0.2, 0.4, K)])
    )
    mu = np.sqrt(2) * np.ravel(
        np.column_stack([rng.uniform(0.2, 0.6, K), rng.uniform(-0.2, 0.4, K)])
    )
    theta[:2] = mu[:2] = np.sqrt(2) * np.array([0.1, 0.0])
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


def known_costs(rng: np.random.Generator, T: int) -> World:
    """Lock-in: costs known and equal, the best action hides behind a worse one that the first
    fits like better.
    """
    phi = np.tile(np.eye(K), (T, 1, 1))
    theta = np.array([0.1, 0.5, 0.5, 0.5, 0.6])
    return World(
        phi, theta, np.full(K, 0.1), 0.5, 0.5 * rng.normal(size=(T, 2)), known_costs=True, sigma=0.5
    )


def two_dims(rng: np.random.Generator, T: int) -> World:
    """d = 2 with 10 arms: directions spread over the quarter circle; the safe action is nearly
    nothing.
    """
    theta, mu = _unit(np.abs(rng.normal(size=(2, 2))))
    angle = (np.arange(10) + rng.random((T, 10))) * np.pi / 20
    phi = rng.uniform(0.5, 1.0, (T, 10, 1)) * np.stack([np.cos(angle), np.sin(angle)], axis=2)
    phi[:, 0] = 0.1 * _unit(np.ones(2))
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


def wide(rng: np.random.Generator, T: int) -> World:
    """Like shared, with K = 20 actions and d = 20 features."""
    theta, mu = _unit(np.abs(rng.normal(size=(2, 20))))
    phi = _unit(np.abs(rng.normal(size=(T, 20, 20))))
    phi[:, 0] = np.eye(20)[mu.argmin()]
    return World(phi, theta, mu, _limit(phi, theta, mu), SIGMA * rng.normal(size=(T, 2)))


PROBLEMS: dict[str, Callable[[np.random.Generator, int], World]] = {
    f.__name__: f for f in (shared, intercept, rotated, per_arm, tight, known_costs, two_dims, wide)
}


# what an agent is told ----------------------------------------------------------------------------


@lru_cache
def linear_class(K: int, d: int, sigma: float) -> Any:
    """Normal outcomes with known noise, linear in the features that contexts carry for every
    action; compiled once.
    """

    def model(x: Any, a: Any, y: Any = None) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, 1 / jnp.sqrt(d)).expand([d]).to_event(1))
        phi = x.reshape(-1, K, d)[jnp.arange(x.shape[0]), a]
        numpyro.sample("y", dist.Normal(phi @ theta, sigma), obs=y)

    return ged.density_class(model)


def linear_problem(world: World, exact: bool = False) -> ged.Problem:
    """A world of `regret.py` as a declared problem. One class serves both outcomes, each with a fit
    of its own.

    `exact`: the safe action's known cost is declared exact, which it is.
    """
    cls = linear_class(world.n_actions, world.dim, world.sigma)
    limit = ged.Constraint(
        cls,
        ged.mean(0, 1),
        at_most=world.tau,
        safe_value=float(world.cost[0, 0]),
        safe_value_exact=exact,
    )
    return ged.Problem(
        n_actions=world.n_actions,
        utility=ged.Utility(cls, ged.mean(0, 1)),
        constraints=[limit],
        safe_action=0,
    )


class Drawn:
    """A world as an environment for `ged.simulate`: one context after the other, none twice."""

    def __init__(self, world: World, exact: bool = False) -> None:
        self.world, self._exact, self._t = world, exact, -1

    def problem(self) -> ged.Problem:
        return linear_problem(self.world, self._exact)

    def context(self, rng: np.random.Generator) -> np.ndarray:
        self._t += 1
        found: np.ndarray = self.world.phi[self._t].ravel()
        return found

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self.world.dim) @ self.world.theta

    def costs(self, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = (x.reshape(-1, self.world.dim) @ self.world.mu)[None]
        return found

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        y, z = np.array([self.utilities(x)[action], self.costs(x)[0, action]])
        first, second = self.world.noise[self._t]
        return float(y + first), float(z + second)


# OPLB ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    regret: float
    infeasible: int


def oplb(world: World, seed: int, alpha: float | None = None) -> OPLB:
    """OPLB action by action, with R = sigma, lambda = S = L = 1 and the whole delta; `alpha`:
    another alpha_r.
    """
    agent = OPLB(
        world.predictor.features,
        n_actions=world.n_actions,
        dim=world.dim,
        tau=world.tau,
        safe_value=float(world.cost[0, 0]),
        safe_utility=float(world.utility[0, 0]),
        sigma=world.sigma,
        delta=DELTA,
        seed=seed,
        safe_features=world.safe_features,
        form="per_action",
    )
    if alpha is not None:
        agent.width_weight = alpha
    return agent


def play_oplb(world: World, seed: int, *, alpha: float | None = None) -> Played:
    """Regret and infeasible rounds of `oplb`."""
    agent = oplb(world, seed, alpha)
    regret, infeasible = 0.0, 0
    for t in range(len(world.phi)):
        decision = agent.ask(world.phi[t].ravel())
        a = decision.action
        regret += world.best[t] - decision.policy @ world.utility[t]
        infeasible += bool(decision.policy @ world.cost[t] > world.tau + 1e-9)
        agent.tell(
            decision.id,
            world.utility[t, a] + world.noise[t, 0],
            world.cost[t, a] + world.noise[t, 1],
        )
    return Played(regret, infeasible)
