"""Ask and tell around a rule that turns a context into a policy: what every baseline shares with
`GEDUCB`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import (
    ConflictingOutcomeError,
    DataError,
    NotFiniteError,
    ShapeError,
    UnknownDecisionError,
)


@dataclass(frozen=True)
class Played:
    """One decision: play `action`, which was drawn from `policy`."""

    id: int
    action: int
    policy: np.ndarray  # (K,)
    x: np.ndarray  # (dx,)
    certificate: None = None  # baselines certify nothing

    @property
    def propensity(self) -> float:
        """The probability with which this action was drawn."""
        return float(self.policy[self.action])


class Baseline(ABC):
    """Ids, randomness and pending outcomes; a subclass says what to play and what it learns."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._decisions: list[Played] = []
        self._told: dict[int, tuple[float, float | None]] = {}

    @abstractmethod
    def policy(self, x: Any) -> np.ndarray:
        """What `ask` would play at x (dx,): (K,). Nothing is recorded."""

    def learn(self, x: np.ndarray, action: int, y: float, z: float | None) -> None:  # noqa: B027 (learning is optional)
        """Take in one outcome."""

    def ask(self, x: Any) -> Played:
        """Decide at one context x (dx,)."""
        context = np.asarray(x, float)
        if context.ndim != 1 or not np.isfinite(context).all():
            raise ShapeError(f"baselines decide one finite context (dx,) at a time, got {x!r}")
        policy = self.policy(context)
        action = int(
            min(
                np.searchsorted(np.cumsum(policy), self._rng.random(), side="right"),
                np.flatnonzero(policy)[-1],
            )
        )
        decision = Played(len(self._decisions), action, policy, context)
        self._decisions.append(decision)
        return decision

    def tell(self, id: int, y: float, z: float | Mapping[str, float] | None = None) -> None:
        """The outcome of a decision; z a number or {name: number} with one entry. The same
        outcome twice is ignored.
        """
        if not 0 <= id < len(self._decisions):
            raise UnknownDecisionError(
                f"decision {id} was never made; ids run from 0 to {len(self._decisions) - 1}"
            )
        if isinstance(z, Mapping):
            if len(z) != 1:
                raise DataError(f"baselines learn one constraint, got z for {sorted(z)}")
            z = next(iter(z.values()))
        outcome = (float(y), None if z is None else float(z))
        if not all(value is None or np.isfinite(value) for value in outcome):
            raise NotFiniteError(f"outcomes must be finite, got y={y!r}, z={z!r}")
        if id in self._told:
            if self._told[id] != outcome:
                raise ConflictingOutcomeError(
                    f"decision {id} was told {self._told[id]} before, now {outcome}"
                )
            return
        decision = self._decisions[id]
        self.learn(decision.x, decision.action, *outcome)
        self._told[id] = outcome
