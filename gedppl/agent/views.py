"""What an agent shows of itself, and its models' posteriors: nothing here changes anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gedppl import ged_ucb
from gedppl.agent.keeper import Keeper, rows_of
from gedppl.certificate import Explanation
from gedppl.errors import SettingError
from gedppl.ged_ucb.costs import holds_parameters
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


def what_holds_back(
    state: ged_ucb.State, x: np.ndarray, explanation: Explanation, safe: int
) -> str:
    """Name what keeps the other actions out at x (dx,): the limit, the width of their bounds,
    and in which parameters.
    """
    if not len(explanation.limits) or np.isnan(explanation.score).any():
        return "No limit holds the other actions back: the model prefers it."
    over = explanation.cost_upper - explanation.limits[:, None]
    over[:, safe] = np.inf
    a = int(np.argmin(over.max(axis=0)))
    j = int(np.argmax(over[:, a]))
    name, limit, label = explanation.names[j], explanation.limits[j], explanation.actions.label(a)
    low, high = explanation.cost_lower[j, a], explanation.cost_upper[j, a]
    if high <= limit:
        kept = f"action {label}: {name} at most {high:.3g}"
        return (
            f"Other actions keep every limit ({kept}); the model estimates less utility for them."
        )
    where = (
        f"The nearest action, {label}, may cost between {low:.3g} and {high:.3g} on {name!r} "
        f"against a limit of {limit:.3g}."
    )
    short = explanation.certificate.constraints[j].draws
    if short is not None and short.shortage:
        return f"{where} That is no finding: {short.shortage}."
    if low > limit:
        return (
            f"{where} Even its lowest value is above the limit: no policy that keeps the limit "
            "plays it often."
        )
    return (
        f"{where} The confidence set is what is wide{_in_which_parameters(state, x, j, a)}: data "
        "near these contexts (observe) "
        "narrow it, and so does whatever else is known and can truthfully be declared: "
        f"{_declarable(state, j, high)}. "
        "ged.price(problem, contexts) says which helps most."
    )


def _declarable(state: ged_ucb.State, j: int, high: float) -> str:
    """What a user might know and has not declared. Never another limit: that is the user's to
    set, and not what is wrong.
    """
    told = "tighter parameter bounds or prior, fewer members"
    c = dict(state.problem.learned).get(j)
    if c is None:
        return told
    if high >= c.functional.high:
        told += f", a range that ends below {c.functional.high:.3g}"
    if not c.safe_value_exact and holds_parameters(replace(c, safe_value_exact=True)):
        told += ", that the safe value is exact"
    return told


def _in_which_parameters(state: ged_ucb.State, x: np.ndarray, j: int, a: int) -> str:
    """The parameters that carry the worst case of action a away from the fit, by their share of
    the first-order change.
    """
    c = dict(state.problem.learned).get(j)
    if c is None:
        return ""
    cls = c.model.visit(lambda members: None, lambda cls: cls if cls.sites else None)
    if cls is None:  # without named parameters
        return ""
    theta = getattr(state.learners[c.stream], "theta", None)  # draws have none
    if theta is None:
        return ""
    witness = (
        state.learners[c.stream].bounds(c.functional, x[None], state.problem.n_actions).witness
    )
    if witness is None or not np.isfinite(witness[0, a]).all():
        return ""
    _, gradient = cls.values_grad(c.functional, theta[None], x[None], np.array([a]))
    share = np.abs(gradient[0] * (witness[0, a] - theta))
    if not share.sum() > 0:
        return ""
    by_site = {
        site.name: float(share[site.start : site.stop].sum() / share.sum()) for site in cls.sites
    }
    largest = sorted(by_site, key=lambda name: -by_site[name])[:2]
    return (
        " ("
        + ", ".join(
            f"{by_site[name]:.0%} of it in {name!r}" for name in largest if by_site[name] > 0.05
        )
        + ")"
    )
