"""Thompson sampling under the same limits: a draw for the utility instead of optimism."""

from __future__ import annotations

import os
from typing import Any

from gedppl.agent import GEDUCB
from gedppl.errors import renamed
from gedppl.problem import Problem


class ThompsonSampling(GEDUCB):
    """Decide by what is best under one draw of the utility's parameters, within limits that do not
    depend on it.

    For each decision theta is drawn from the utility's posterior, and the policy maximises sum_a
    pi_a u(x, a; theta) subject to the limits, guaranteed or credible, exactly as in `GEDUCB`. Ask,
    tell, journal, `resume` and certificates are the same.

    Parameters
    ----------
    confidence
        Which parameters the limits allow, as for `GEDUCB`. For ``"utility"`` the source of the
        draws: ``confidence={"utility": credible_set(source="nuts")}``; Laplace draws if not given.
        Its parameters need priors.
    problem, delta, oracle, seed, journal, guard, growth, warmup
        As for `GEDUCB`.

    Notes
    -----
    Limits are kept whatever is drawn. No regret bound is claimed. A decision's policy and
    propensity are those given the draw: for off-policy estimates, which need every action to have a
    chance, mix in some exploration of your own.

    References
    ----------
    Russo, Van Roy, Kazerouni, Osband, Wen, "A tutorial on Thompson sampling", 2018.
    """

    @renamed(radius="confidence")
    def __init__(
        self,
        problem: Problem,
        *,
        delta: float = 0.05,
        oracle: Any = None,
        confidence: Any = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        guard: str | None = "fallback",
        growth: float | None = None,
        warmup: str | None = None,
    ) -> None:
        super().__init__(
            problem,
            delta=delta,
            oracle=oracle,
            confidence=confidence,
            seed=seed,
            journal=journal,
            guard=guard,
            growth=growth,
            warmup=warmup,
            exploration="thompson",
        )
