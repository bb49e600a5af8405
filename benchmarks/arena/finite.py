"""Finite classes: the truth is one of M tables of Bernoulli probabilities, contexts are their
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged


class FirstIsTrue:
    """Draws coins by the first members of F, G (M, X, K); a context is the number of its row."""

    F: np.ndarray
    G: np.ndarray

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return self.F[0, int(x[0])]

    def costs(self, x: np.ndarray) -> np.ndarray:
        return self.G[0, int(x[0])][None]

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
        u = rng.random(2)
        return float(u[0] < self.utilities(x)[action]), float(u[1] < self.costs(x)[0, action])


@dataclass
class Tables(FirstIsTrue):
    """Members F, G (M, X, K) of the two classes; member 0 is the truth. Action 0 costs
    `safe_value` in all of G.
    """

    F: np.ndarray
    G: np.ndarray
    tau: float
    safe_value: float
    guaranteed: bool = True

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([float(rng.integers(self.F.shape[1]))])

    def safe_cost(self, x: np.ndarray) -> np.ndarray:
        """The safe action's expected cost at contexts (n, dx): (n,)."""
        return np.full(len(x), self.safe_value)

    def problem(self, exact: bool = False) -> ged.Problem:
        """What an agent is told. Holding parameters to an exact safe cost has no meaning for
        tables: all of them agree on it.
        """
        gain, cost = self._classes
        limit = ged.Constraint(
            cost, ged.mean(0, 1), at_most=self.tau, safe_value=self.safe_value, name="cost"
        )
        return ged.Problem(
            n_actions=self.F.shape[2],
            utility=ged.Utility(gain, ged.mean(0, 1)),
            constraints=[limit],
            safe_action=0,
        )

    @cached_property
    def _classes(self) -> tuple[Any, Any]:
        shape = self.F.shape[1:]

        def model(x: Any, a: Any, y: Any = None) -> None:
            table = numpyro.param(
                "table", jnp.full(shape, 0.5), constraint=dist.constraints.unit_interval
            )
            numpyro.sample("y", dist.Bernoulli(probs=table[x[:, 0].astype(int), a]), obs=y)

        gain, cost = (
            ged.finite_class(model, [{"table": t} for t in tables]) for tables in (self.F, self.G)
        )
        return gain, cost


def finite(seed: int = 0, members: int = 64) -> Tables:
    """64 random tables for utility and for cost, 3 contexts, 5 actions."""
    rng = np.random.default_rng([201, seed])
    F, G = rng.uniform(0.05, 0.95, (2, members, 3, 5))
    G[:, :, 0] = 0.1
    return Tables(F, G, 0.5, 0.1)


def finite_lock_in(seed: int = 0) -> Tables:
    """Costs are low in all tables; each of 5 actions may be the good one (0.6 against 0.5), and
    the truth is one of them. A learner that follows its first fit stays with an action of 0.5.
    """
    rng = np.random.default_rng([202, seed])
    F = np.full((5, 1, 6), 0.5)
    F[:, 0, 0] = 0.1
    for m in range(5):
        F[m, 0, m + 1] = 0.6
    G = np.full((2, 1, 6), 0.1)
    G[1, 0, 1:] = 0.2
    return Tables(F[np.roll(np.arange(5), -rng.integers(5))], G, 0.5, 0.1)
