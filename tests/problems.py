"""Small problems with a known truth, for tests of the algorithm and the agent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged


def linear_program(n_actions: int, dim: int, scale: float, gain: float = 1.0, shift: float = 0.0):
    """Contexts carry the features of every action, x (n, K * d); y ~ Normal(shift + gain * phi'
    theta, gain * scale).
    """

    def model(x, a, y=None):
        theta = numpyro.param("theta", jnp.zeros(dim))
        phi = x.reshape(-1, n_actions, dim)[jnp.arange(x.shape[0]), a]
        numpyro.sample("y", dist.Normal(shift + gain * phi @ theta, gain * scale), obs=y)

    return model


@cache
def linear_class(n_actions: int, dim: int, scale: float, gain: float, shift: float):
    """Its density class, of which there is one for all worlds and both outcomes."""
    example = 0.5 * np.ones((1, n_actions * dim)), np.zeros(1, int)
    program = linear_program(n_actions, dim, scale, gain, shift)
    return ged.density_class(program, bounds={"theta": 1.0}, example=example)


@dataclass
class LinearWorld:
    """Action 0 is safe; the others have features of norm 1; utility and cost are linear in them."""

    n_actions: int
    dim: int
    scale: float
    seed: int
    gain: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.theta, self.mu = (
            np.abs(v) / np.linalg.norm(v) for v in rng.normal(size=(2, self.dim))
        )

    def context(self, rng: np.random.Generator) -> np.ndarray:
        phi = np.abs(rng.normal(size=(self.n_actions, self.dim)))
        phi /= np.linalg.norm(phi, axis=1, keepdims=True)
        phi[0] *= 0.1
        return phi.ravel()

    def _values(self, x: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return x.reshape(self.n_actions, self.dim) @ theta

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return self.shift + self.gain * self._values(x, self.theta)

    def costs(self, x: np.ndarray) -> np.ndarray:
        cost = self._values(x, self.mu)
        return cost[None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        noise = rng.normal(size=2) * self.scale
        return self.utilities(x)[action] + self.gain * noise[0], self.costs(x)[0, action] + noise[1]

    @cached_property
    def _problem(self) -> ged.Problem:
        K, d = self.n_actions, self.dim
        utility = linear_class(K, d, self.scale, self.gain, self.shift)
        cost = linear_class(K, d, self.scale, 1.0, 0.0)
        low, high = self.shift, self.shift + self.gain
        return ged.Problem(
            n_actions=K,
            utility=ged.Utility(utility, ged.mean(low, high)),
            constraints=[
                ged.Constraint(
                    cost,
                    ged.mean(0, 1),
                    at_most=0.5,
                    safe_value=lambda x: x[:, : self.dim] @ self.mu,
                )
            ],
            safe_action=0,
        )

    def problem(self) -> ged.Problem:
        """The same object every time: its compiled functions are kept."""
        return self._problem


@cache
def table_class(n_contexts: int, n_actions: int):
    """Bernoulli outcomes from a table of probabilities; the context is the row's number."""

    def model(x, a, y=None):
        table = numpyro.param(
            "table",
            0.5 * jnp.ones((n_contexts, n_actions)),
            constraint=dist.constraints.unit_interval,
        )
        numpyro.sample("y", dist.Bernoulli(probs=table[x[:, 0].astype(int), a]), obs=y)

    return ged.density_class(model, example=(np.zeros((1, 1)), np.zeros(1, int)))


@dataclass
class TableWorld:
    """Finite classes of Bernoulli tables, F (M, X, K) and G (M, X, K); member `truth` of each is
    the truth.
    """

    n_contexts: int
    n_actions: int
    members: int
    seed: int
    at_most: float = 0.5
    truth: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shape = (self.members, self.n_contexts, self.n_actions)
        self.F, self.G = rng.uniform(0.05, 0.95, shape), rng.uniform(0.05, 0.95, shape)
        self.G[:, :, 0] = 0.1
        self.safe_utility = 0.0

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([float(rng.integers(self.n_contexts))])

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return self.F[self.truth, int(x[0])]

    def costs(self, x: np.ndarray) -> np.ndarray:
        return self.G[self.truth, int(x[0])][None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        u = rng.random(2)
        return float(u[0] < self.utilities(x)[action]), float(u[1] < self.costs(x)[0, action])

    def problem(self) -> ged.Problem:
        """The same object every time: its compiled functions are kept."""
        return self._problem

    @cached_property
    def _problem(self) -> ged.Problem:
        program = table_class(self.n_contexts, self.n_actions)
        F = ged.finite_class(program, [{"table": t} for t in self.F])
        G = ged.finite_class(program, [{"table": t} for t in self.G])
        return ged.Problem(
            n_actions=self.n_actions,
            utility=ged.Utility(F, ged.mean(0, 1)),
            constraints=[ged.Constraint(G, ged.mean(0, 1), at_most=self.at_most, safe_value=0.1)],
            safe_action=0,
            safe_utility=self.safe_utility,
        )
