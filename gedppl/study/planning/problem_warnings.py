"""What to change before round 1, one sentence each, in the words of the agent that will decide."""

from __future__ import annotations

from collections.abc import Sequence

from gedppl.problem import Problem
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.study.planning.price import SimulatedWait
from gedppl.study.planning.problem_report import (
    REHEARSED,
    LimitCheck,
    OutcomeCheck,
    ProblemReport,
    span,
)

# shares of draws: fewer than FEW is no finding, more than MANY is most of them
FEW, MANY = 0.01, 0.5
SMALL_MIX = 0.05


def warnings_of(
    problem: Problem, report: ProblemReport, runs: Sequence[SimulatedWait], trouble: Sequence[str]
) -> list[str]:
    """All that a report gives reason for; `trouble`: why no run could be simulated."""
    return [
        *trouble,
        *_of_runs(runs),
        *_of_utility(problem, report.utility_outside),
        *_given_twice(problem),
        *_never_reached(problem, report),
        *(said for o in report.outcomes for said in _of_outcome(o)),
        *(said for c in report.limits for said in _of_limit(problem, report, c)),
    ]


def _of_runs(runs: Sequence[SimulatedWait]) -> list[str]:
    fell = [run for run in runs if run.fallbacks]
    if not fell:
        return []
    return [
        f"in {sum(run.fallbacks for run in runs)} of {sum(run.asked for run in runs)} simulated "
        "decisions no policy could be computed and the safe action was taken instead; the first "
        f"reason: {fell[0].reason}"
    ]


def _of_outcome(o: OutcomeCheck) -> list[str]:
    if not o.blind:
        return []
    return [
        f"outcome {o.name!r}: {', '.join(o.blind)} depends on what no row shows, in "
        f"{', '.join(o.unseen)} ({o.rank} of {o.dim} directions are shown): only the prior will "
        "ever speak about it; let actions share parameters, or learn_safe=True if it is the safe "
        "action's"
    ]


def _never_reached(problem: Problem, report: ProblemReport) -> list[str]:
    hidden = _hidden(problem, report)
    if not hidden or set(report.path) == {problem.safe_action}:  # a limit's own sentence says it
        return []
    return [
        f"{hidden}: where a limit holds on every draw, an untried action is reached through "
        f"{_reached_through(report)}"
    ]


def _hidden(problem: Problem, report: ProblemReport) -> str:
    """Which actions are never reached, if any."""
    hidden = [report.actions[k] for k in report.hidden if k != problem.safe_action]
    if not hidden:
        return ""
    return (
        f"even if no bad outcome ever comes, {len(report.path)} rounds do not reach "
        f"{', '.join(hidden)}"
    )


def _reached_through(report: ProblemReport) -> str:
    if any(c.credible is not None for c in report.limits if c.every_draw):
        return (
            "prior and model alone, and a prior can hide one for good; centre the prior lower, ask "
            "for a lower level, or let a protocol name a starting action"
        )
    return (
        "rows of the others alone, since a guarantee trusts no prior; log rows of it "
        "(agent.observe), declare bounds, put the limit on the average, or trust the prior "
        "(confidence=credible_set(...))"
    )


def _believed(model: DensityClass | MemberList) -> bool:
    """Whether it has a prior: what stands in for one contradicts no declaration."""
    return model.visit(lambda members: True, lambda cls: all(site.prior for site in cls.sites))


def _of_utility(problem: Problem, outside: float) -> list[str]:
    f = problem.utility.functional
    if outside <= FEW or not _believed(problem.utility.model):
        return []
    return [
        f"utility: {outside:.0%} of the prior's values lie outside its declared range, {f.low:g} "
        f"to {f.high:g}; widen low= and high=, narrow the prior, or bring the columns of x to a "
        "size that its coefficients expect (large numbers, such as an age in years, make a wide "
        "prior of a narrow one)"
    ]


def _given_twice(problem: Problem) -> list[str]:
    """Streams that learn one model object from outcomes of their own: mostly a forgotten
    `outcome=`.
    """
    said: list[str] = []
    first: dict[int, str] = {}
    for name, model in problem.streams.items():
        other = first.setdefault(id(model), name)
        if other != name:
            said.append(
                f"outcome {name!r} has the very model of {other!r}, and each is learned from what "
                f"is told of it: if they are one outcome, say outcome={other!r} in the Constraint, "
                "otherwise tell both"
            )
    return said


def _of_limit(problem: Problem, report: ProblemReport, c: LimitCheck) -> list[str]:
    said = []
    streams = {one.name: one.stream for _, one in problem.learned}
    believed = all(_believed(one.model) for _, one in problem.learned if one.name == c.name)
    if believed and c.outside > FEW:
        said.append(
            f"{c.outside:.0%} of the prior's values lie outside the declared range; widen low= and "
            "high=, or narrow the prior: a range that is wrong is found out only later"
        )
    if believed and c.safe_above > MANY:
        said.append(
            f"in {c.safe_above:.0%} of the prior's draws the model puts the safe action above its "
            "declared safe_value; centre the prior where the safe action is known to be, or set "
            "learn_safe=False if the model does not describe it"
        )
    if c.first_mix[1] < SMALL_MIX:
        said.append(_stays_safe(problem, report, c))
    if c.only_safe > MANY:
        said.append(
            f"under the prior only the safe action keeps it in {c.only_safe:.0%} of draws and "
            "contexts; if the prior is right, the limit leaves little to gain"
        )
    if c.kind == "approximation":
        rows = f"{report.logged} logged" if report.logged else f"{REHEARSED} rehearsed"
        chosen = {o.name: o.rule for o in report.outcomes}[streams[c.name]]
        said.append(
            f"after {rows} rows its bound is {c.method} and no guarantee"
            + (
                f": {chosen}"
                if chosen
                else "; print the class's .exactness for what stands in the way"
            )
        )
    return [f"limit {c.name!r}: {text}" for text in said]


def _stays_safe(problem: Problem, report: ProblemReport, c: LimitCheck) -> str:
    """The first decision hardly leaves the safe action, or does not at all."""
    if c.every_draw:
        hidden = _hidden(problem, report)
        return (
            f"only the safe action is played at first{', and ' * bool(hidden)}{hidden}: the limit "
            f"is on every draw, and no other action's {c.judged_by} is under it; an untried action "
            f"is reached through {_reached_through(report)}"
        )
    if c.credible is not None:
        return (
            f"the first decision may leave the safe action in {span(*c.first_mix)} of the cases, "
            f"by the {c.judged_by}: the prior puts the others far above the limit; if it is "
            "wider than what is known, narrow it"
        )
    return (
        f"in the first round at most {span(*c.first_mix)} of the decisions can leave the safe "
        "action, so learning starts slowly; ged.price tries what else might truthfully be declared"
    )
