"""Two coins: the problem that examples in docstrings speak of. Nothing is compiled for it."""

from __future__ import annotations

from typing import Any

import numpy as np

import gedppl as ged
from gedppl.density import Density
from gedppl.functionals import Functional
from gedppl.programs.contract import MemberList

HEADS = np.array([[0.2, 0.6], [0.2, 0.3]])  # chance of heads by member and coin


class Coins(MemberList):
    """Coin 0 shows heads in 20% of throws, coin 1 in 60% or in 30%."""

    size = len(HEADS)

    def density(self, params: int, x: Any, a: Any) -> Density:
        return Density("Bernoulli", {"probs": HEADS[params, np.asarray(a)]})

    def log_likelihood(self, theta: np.ndarray, x: Any, a: Any, y: Any) -> np.ndarray:
        heads = HEADS[theta][:, np.asarray(a)]
        return np.where(np.asarray(y) == 1, np.log(heads), np.log1p(-heads))

    def values(self, functional: Functional, theta: np.ndarray, x: Any, a: Any) -> np.ndarray:
        rows = np.asarray(x), np.asarray(a)
        return np.stack([np.asarray(functional(self.density(m, *rows), *rows)) for m in theta])


def problem() -> ged.Problem:
    """Win as often as possible, with a chance of heads of at most one half."""
    coins = Coins()
    heads = ged.mean(0, 1)
    limit = ged.Constraint(coins, heads, 0.5, safe_value=0.2, name="heads", outcome="utility")
    return ged.Problem(
        2, ged.Utility(coins, heads), [limit], safe_action=0, safe_utility=0.2, columns=["time"]
    )


class Table:
    """Where the second coin is the better one; x is the time of day."""

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return rng.random(1)

    def outcome(
        self, x: np.ndarray, action: int, rng: np.random.Generator
    ) -> tuple[float, dict[str, float]]:
        return float(rng.random() < HEADS[0, action]), {}

    def utilities(self, x: np.ndarray) -> np.ndarray:
        return HEADS[0]

    def costs(self, x: np.ndarray) -> np.ndarray:
        return HEADS[:1]


def names() -> dict[str, Any]:
    """What an example may call by name: freshly made, so that none depends on another."""
    return {"ged": ged, "np": np, "problem": problem(), "world": Table()}
