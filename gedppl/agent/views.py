"""What an agent shows of itself, and its models' posteriors: nothing here changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gedppl.agent.keeper import Keeper, rows_of
from gedppl.certificate import Explanation, what_holds_back
from gedppl.errors import SettingError
from gedppl.guard import Alarm
from gedppl.learning.posterior import Posterior, posterior
from gedppl.problem import Problem
from gedppl.showing import Facts, amounts

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass, MemberList


def facts(kind: str, keeper: Keeper, alarms: list[Alarm], open_decisions: list[int]) -> Facts:
    """How far it is, what is limited, what was played, how each outcome is bounded, and what is
    alarming.
    """
    problem, chosen, state = keeper.memory.problem, keeper.first.settings, keeper.memory.state
    shown = {
        "settings": f"mode {chosen.mode}, delta {chosen.delta:g}, exploration {chosen.exploration}"
    }
    # first: a long list must not cut them off
    shown |= {f"ALARM {alarm.name!r}": alarm.sentence for alarm in alarms} or {"alarms": "none"}
    shown |= {f"limit {c.name!r}": f"at most {c.at_most:g}" for c in problem.constraints}
    if state is not None:
        shown |= {"played": amounts(zip(problem.names.labels, state.played))}
        shown |= {f"fit of {name!r}": one.status for name, one in state.learners.items()}
        shown |= {f"bounds of {name!r}": cls.exactness for name, cls in problem.streams.items()}
    told = f"{len(open_decisions)} without an outcome" if open_decisions else "all told"
    return f"{kind} after {keeper.rounds} decisions, {told}", shown


def model_of(problem: Problem, stream: str) -> DensityClass | MemberList:
    """The class that learns an outcome."""
    if stream not in problem.streams:
        raise SettingError(
            f"there is no outcome {stream!r}; the outcomes are {list(problem.streams)}"
        )
    return problem.streams[stream]


def posterior_of(keeper: Keeper, stream: str, source: str | None, draws: int) -> Posterior:
    """See `GEDUCB.posterior`."""
    problem, chosen = keeper.memory.problem, keeper.first.settings
    model = model_of(problem, stream)
    rows, rule = rows_of(keeper, stream), chosen.confidence_of(stream)
    if rows is not None:
        model.trace(rows.x[:1], rows.a[:1])
    return posterior(
        model,
        rows,
        source=source or (rule and rule.source) or "laplace",
        draws=draws,
        seed=chosen.seed % 2**31,
        oracle=chosen.oracle_of(stream),
        names=problem.names,
    )


def held_back(keeper: Keeper, x: np.ndarray, latest: Explanation) -> str:
    """What keeps the other actions from being played at x (dx,)."""
    try:
        state, safe = keeper.learned(x)[0].state, keeper.memory.problem.safe_action
        assert state is not None
        assert safe is not None
        return what_holds_back(state, x, latest, safe)
    except Exception as error:
        # the decision is made and recorded: no explanation may take it from the caller
        return (
            f"What holds the others back could not be computed ({type(error).__name__}: {error})."
        )
