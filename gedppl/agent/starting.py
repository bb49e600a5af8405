"""Agents that begin otherwise than `GEDUCB` does: by draws, or from a journal."""

from __future__ import annotations

import os
from typing import Any

from gedppl.agent import GEDUCB
from gedppl.agent.keeper import Keeper
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
    Limits are kept whatever is drawn. Not guaranteed: any bound on the regret. A decision's policy
    and propensity are those given the draw: for off-policy estimates, which need every action to
    have a chance, mix in some exploration of your own.

    References
    ----------
    Russo, Van Roy, Kazerouni, Osband, Wen, "A tutorial on Thompson sampling", 2018.

    Examples
    --------
    >>> ged.ThompsonSampling(problem, seed=1).ask([0.5]).policy
    array([0.25, 0.75])
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


@renamed(radius="confidence")
def resume(
    journal: str | os.PathLike[str], problem: Problem, *, oracle: Any = None, confidence: Any = None
) -> GEDUCB:
    """The agent whose run a journal holds, as it was when its process ended.

    Parameters
    ----------
    journal
        The path given to `GEDUCB`. One process at a time may write to it.
    problem
        The problem as it was first declared; limits and actions changed since are in the journal.
        Another is refused.
    oracle, confidence
        As given to `GEDUCB` or `ThompsonSampling`, if they were: objects are not stored.

    Notes
    -----
    With the same versions of Python and of the numerical packages the next policy is the same bit
    for bit. Not guaranteed with others, where it is within about 1e-9: ``agent.resumed`` says
    which. A damaged journal, one of another problem or of a newer format, and one that is in use
    are refused with a named error. Reading a journal runs nothing that it contains.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/run.journal"
    >>> with ged.GEDUCB(problem, journal=path) as agent:
    ...     decision = agent.ask([0.5])
    >>> with ged.resume(path, problem) as agent:
    ...     agent.open_decisions == [decision.id]
    True
    """
    keeper, resumed = Keeper.reopen(journal, problem, oracle, confidence)
    kind = ThompsonSampling if keeper.first.settings.exploration == "thompson" else GEDUCB
    agent = kind.__new__(kind)
    agent._begin(keeper, resumed)
    return agent
