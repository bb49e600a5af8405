"""Finite classes of coins written in NumPy: no program to compile, so hundreds of short runs are
cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

import gedppl as ged
from benchmarks.arena.finite import FirstIsTrue
from gedppl.density import Density
from gedppl.programs.contract import MemberList


class CoinTables(MemberList):
    """M tables of success probabilities, (M, X, K); the context is the number of its row. Stands
    in for `finite_class`.
    """

    def __init__(self, tables: np.ndarray) -> None:
        self.tables = np.asarray(tables, float)
        self.size = len(self.tables)

    def probs(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return self.tables[:, np.asarray(x, float)[:, 0].astype(int), np.asarray(a, int)]

    def density(self, m: int, x: np.ndarray, a: np.ndarray) -> Density:
        return Density("Bernoulli", {"probs": self.probs(x, a)[m]})

    def log_likelihood(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        p = self.probs(x, a)[theta]
        return np.where(np.asarray(y) == 1, np.log(p), np.log1p(-p))

    def values(
        self,
        functional: ged.functionals.Functional,
        theta: np.ndarray,
        x: np.ndarray,
        a: np.ndarray,
    ) -> np.ndarray:
        return functional(Density("Bernoulli", {"probs": self.probs(x, a)[theta]}))


@dataclass
class CoinWorld(FirstIsTrue):
    """Utility and cost from two classes of coin tables whose first members are the truth. Action
    0 is safe.
    """

    seed: int
    n_contexts: int = 2
    n_actions: int = 4
    members: int = 8
    at_most: float = 0.5

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.F, self.G = rng.uniform(0.05, 0.95, (2, self.members, self.n_contexts, self.n_actions))
        self.G[:, :, 0] = 0.1

    @cached_property
    def problem(self) -> ged.Problem:
        return ged.Problem(
            n_actions=self.n_actions,
            utility=ged.Utility(CoinTables(self.F), ged.mean(0, 1)),
            constraints=[
                ged.Constraint(
                    CoinTables(self.G), ged.mean(0, 1), at_most=self.at_most, safe_value=0.1
                )
            ],
            safe_action=0,
        )

    @property
    def contexts(self) -> np.ndarray:
        return np.arange(self.n_contexts, dtype=float)[:, None]

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([float(rng.integers(self.n_contexts))])

    def run(self, rounds: int, **options: object) -> ged.Run:
        return ged.simulate(
            self.problem,
            self,
            ged.GEDUCB(self.problem, seed=self.seed, **options),
            rounds,
            self.seed,
        )
