"""Epsilon-greedy on ridge estimates: what most systems in production run.

With probability epsilon a uniform action among those allowed, otherwise the one of highest
estimate. Allowed are the actions whose ESTIMATED cost keeps the limit, and the safe one;
``limits="ignore"`` allows all. Nothing is guaranteed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.study.baselines.ridge import LinearBaseline, RidgeView


class EpsilonGreedy(LinearBaseline):
    """Estimates, and now and then anything.

    Parameters
    ----------
    epsilon
        Probability of a uniform action.
    limits
        ``"estimate"`` or ``"ignore"``.
    others
        See `LinearBaseline`.

    Examples
    --------
    >>> agent = EpsilonGreedy(
    ...     lambda x, a: np.eye(2)[a],
    ...     epsilon=0.2,
    ...     n_actions=2,
    ...     dim=2,
    ...     tau=0.5,
    ...     safe_value=0.1,
    ...     sigma=0.1,
    ... )
    >>> agent.ask([1.0]).policy
    array([0.9, 0.1])
    """

    def __init__(
        self, features: Any, *, epsilon: float = 0.1, limits: str = "estimate", **settings: Any
    ) -> None:
        super().__init__(features, **settings)
        if not 0 <= epsilon <= 1:
            raise SettingError(f"epsilon must lie in [0, 1], got {epsilon}")
        if limits not in ("estimate", "ignore"):
            raise SettingError(f"limits must be 'estimate' or 'ignore', got {limits!r}")
        self._epsilon, self._filtered = float(epsilon), limits == "estimate"

    def choose(self, view: RidgeView) -> np.ndarray:
        allowed = view.cost <= view.tau if self._filtered else np.ones(self._K, bool)
        allowed[self._safe] = True
        best = int(np.where(allowed, view.reward, -np.inf).argmax())
        found: np.ndarray = (1 - self._epsilon) * self.only(
            best
        ) + self._epsilon * allowed / allowed.sum()
        return found
