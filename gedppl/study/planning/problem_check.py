"""Look at a problem before round 1: what the prior says, what can be learned, which bounds will be
exact, what limits cost the agent that will decide.

Nothing here has seen data, but for a log that is given. Priors are taken at their word, and what
they contradict (a range, a safe value) is said.

Axis letters: M prior draws, n contexts, P pairs of these, K actions, D flat parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB, FallbackWarning
from gedppl.certificate import ConstraintCertificate
from gedppl.errors import FitWarning, FunctionalError, SettingError
from gedppl.functionals import Functional
from gedppl.ged_ucb.settings import settings
from gedppl.learning import Where
from gedppl.learning.seen_class import served
from gedppl.numerics.arrays import check_whole
from gedppl.problem import UTILITY, Constraint, Problem, Utility
from gedppl.problem.names import are_texts
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.rows import distinct, grid
from gedppl.study.planning import price as pricing
from gedppl.study.planning.paths import event_free_path
from gedppl.study.planning.problem_report import (
    REHEARSED,
    LimitCheck,
    OutcomeCheck,
    ProblemReport,
)
from gedppl.study.planning.problem_warnings import warnings_of
from gedppl.study.planning.worlds import ModelWorld, Scenario, make_world, read_rows
from gedppl.theory.eluder.classes import draw_members, member_densities

__all__ = ["ProblemReport", "check_problem"]

QUANTILES = (0.05, 0.5, 0.95)
SEEN = 1e-9  # share of the largest scaled information under which a direction is not seen
STEP = 1e-4  # of the prior's spread, to see whether a value depends on an unseen direction
DEPENDS = 1e-3  # share of a value's spread under the prior that counts as dependence
SPREAD = 50  # prior draws that a spread is read off
PER_DRAW = 25  # contexts at which a draw of the prior is looked at
AT_ONCE = 64  # draws at which a functional is computed in one go
GUESSES = 200  # posterior draws among which simulated truths are chosen, after a log

Log = tuple[Any, ...]  # the arguments of `GEDUCB.observe`; empty where there is no log


def check_problem(
    problem: Problem,
    contexts: Any,
    *,
    draws: int = 200,
    rounds: int = 150,
    runs: int = 2,
    seed: int = 0,
    agent: Mapping[str, Any] = pricing.NO_OPTIONS,
    log: Sequence[Any] | None = None,
) -> ProblemReport:
    """Look at a problem before round 1, and say what to change.

    Parameters
    ----------
    problem
        The declaration.
    contexts
        (n, dx), or a data frame where the problem declares columns (more of them are passed over):
        contexts like those that will come; at most 100 are used.
    draws
        M, parameters from the prior. Those without a prior are standard normal around their initial
        value. Where contexts are many, each draw meets about 25 of them.
    rounds, runs
        Simulated runs, and how long each waits at most until half of the last 50 decisions left the
        safe action: at least 50 rounds; ``runs=0`` skips them. Of up to four actions, decisions are
        made in cohorts of 8 // K, so an outcome counts a round or so late.
    seed
        Of the draws and the runs.
    agent
        Options for `GEDUCB`, as they will be used: ``{"confidence": ged.credible_set(0.9)}``. What
        is said of limits, first decisions, paths and waits is said of such an agent. By default its
        sets are guaranteed.
    log
        What ``agent.observe(*log)`` will be told before round 1: ``(x, a, y, z)``, or ``(frame,
        "arm", "response", "toxicity")``. The first decision is then the one after it, certificates
        are read there, and simulated truths are drawn from the posterior.

    Returns
    -------
    A `ProblemReport`: for every outcome the prior predictive by action, which bounds will be exact
    and what stands in the way, and how many directions of the parameters each action shows (the
    rank of its information); for every limit its value under the prior, the share of contexts in
    which only the safe action keeps it, what the prior contradicts of the declared range and safe
    value, and how far the first decision may leave the safe action: under a guarantee at most
    (limit - safe) / (high - safe); where limits are on every draw, the path taken if no bad outcome
    ever comes, and actions that it never reaches; the expected wait; and warnings.

    Notes
    -----
    The first mix is exact. Not guaranteed: all else, which is said of the prior and of `draws`
    draws of it.

    Examples
    --------
    >>> report = ged.check_problem(problem, np.zeros((5, 1)), runs=0)
    >>> report.limits[0].first_mix, report.limits[0].kind
    ((0.75, 0.75), 'guarantee')
    """
    check_whole(10, draws=draws)
    check_whole(0, runs=runs, seed=seed)
    check_rounds(rounds, runs)
    x = pricing.some_contexts(read_rows(problem, contexts), seed)
    problem.trace(x)
    options, told = _options(agent, seed), _told(log)
    rules = _rules_over_draws(problem, options)
    outcomes = tuple(
        replace(_outcome(problem, name, cls, x, draws, seed), rule=rules.get(name, ""))
        for name, cls in problem.streams.items()
    )
    informed = _informed(problem, options, told)
    limits: tuple[LimitCheck, ...] = ()
    trouble: list[str] = []
    if _learned(problem):
        mixes = pricing.first_mix(problem, x, informed).T
        claims = _claims(informed if told else _rehearsed(problem, x, seed, options), x, trouble)
        limits = tuple(
            _limit(problem, c, x, draws, seed, mix, claims[c.name], trouble)
            for c, mix in zip(_learned(problem), mixes)
        )
    _, values = _prior_values(problem.utility, x, problem.n_actions, draws, seed)
    trouble += _not_found("utility", values)
    outside = _outside(problem.utility.functional, values).mean()
    runs_made = _simulated(problem, x, rounds, runs, seed, options, informed, told, trouble)
    path, reached = _path(problem, x, seed, options, told)
    named = problem.names.actions or [f"action {k}" for k in range(problem.n_actions)]
    report = ProblemReport(
        tuple(named),
        outcomes,
        limits,
        tuple(path),
        tuple(k for k in range(problem.n_actions) if path and k not in reached),
        float(outside),
        tuple(run.wait for run in runs_made),
        int(rounds),
        len(read_rows(problem, told[0])) if told else 0,
        sum(run.fallbacks for run in runs_made),
        (),
    )
    return replace(report, warnings=tuple(warnings_of(problem, report, runs_made, trouble)))


def check_rounds(rounds: int, runs: int) -> None:
    """A wait ends with a share of the last `pricing.WINDOW` decisions, so that fewer rounds
    could never show one.
    """
    check_whole(1, rounds=rounds)
    if runs and rounds < pricing.WINDOW:
        raise SettingError(
            f"rounds must be a whole number of at least {pricing.WINDOW}, got {rounds}: the wait "
            "ends when half of the last "
            f"{pricing.WINDOW} decisions leave the safe action; runs=0 simulates no run"
        )


def _learned(problem: Problem) -> list[Constraint]:
    return [c for _, c in problem.learned]


# outcomes -----------------------------------------------------------------------------------------


def _outcome(
    problem: Problem,
    name: str,
    cls: DensityClass | MemberList,
    x: np.ndarray,
    draws: int,
    seed: int,
) -> OutcomeCheck:
    K = problem.n_actions
    densities = member_densities(cls, *grid(x, K), n_members=draws, seed=seed)
    parts = densities if isinstance(densities, list) else [densities]
    drawn = [d.sample(seed, 1).reshape(-1, len(x), K, *d.event_shape) for d in parts]
    # of a vector outcome, all components alike
    by_action = np.moveaxis(np.concatenate(drawn), 2, 0).reshape(K, -1)
    quantiles = np.quantile(by_action, QUANTILES, axis=1).T
    ones = by_action.mean(axis=1) if np.isin(by_action, (0, 1)).all() else None
    return cls.visit(
        lambda members: OutcomeCheck(
            name, members.exactness, quantiles, 0, np.zeros(K, int), 0, (), ones=ones
        ),
        lambda cls: replace(_shown_by(problem, name, cls, x, quantiles, seed), ones=ones),
    )


def _shown_by(
    problem: Problem, name: str, cls: DensityClass, x: np.ndarray, quantiles: np.ndarray, seed: int
) -> OutcomeCheck:
    """What rows show of the parameters; those of a safe action that is not learned show nothing."""
    K = problem.n_actions
    shown = _information(cls, x, K, seed)
    if not problem.learn_safe and problem.safe_action is not None:
        shown[problem.safe_action] = 0.0
    together = shown.sum(axis=0)
    blind = _unseen(together)
    moved = (np.abs(blind) > 1e-3).any(axis=1)
    return OutcomeCheck(
        name,
        cls.exactness,
        quantiles,
        int(cls.dim),
        np.array([_rank(one) for one in shown]),
        _rank(together),
        tuple(site.name for site in cls.sites if moved[site.start : site.stop].any()),
        blind=_depending(problem, name, cls, x, blind / _sizes(together)[:, None], seed),
        sets=tuple(map(str, Where(x[:1], K, tuple(range(K))).groups(served(cls)))),
    )


def _information(cls: DensityClass, x: np.ndarray, n_actions: int, seed: int) -> np.ndarray:
    """Scores squared and summed for each action (K, D, D), at a draw of the prior and outcomes
    that it gives; contexts repeated beyond D rows.
    """
    times = -(-4 * cls.dim // len(x)) if len(x) < 4 * cls.dim else 1
    xs, a = grid(np.tile(x, (times, 1)), n_actions)
    theta = draw_members(cls, 1, seed)[0]
    y = cls.density_at(theta, xs, a).sample(seed, 1)[0]
    scores = np.asarray(cls.score(theta, xs, a, y), float).reshape(-1, n_actions, cls.dim)
    by_action = np.moveaxis(scores, 1, 0)
    found: np.ndarray = np.swapaxes(by_action, 1, 2) @ by_action
    return found


def _sizes(information: np.ndarray) -> np.ndarray:
    """What brings the diagonal to 1, so that no unit decides what counts as seen; what is not
    seen at all stays 0.
    """
    sd = np.sqrt(np.diag(information))
    return np.where(sd > 0, sd, 1.0)


def _spectrum(information: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = _sizes(information)
    values, vectors = np.linalg.eigh(information / sizes[:, None] / sizes)
    return values, vectors, values > SEEN * max(values.max(), 1.0)


def _rank(information: np.ndarray) -> int:
    return int(_spectrum(information)[2].sum())


def _unseen(information: np.ndarray) -> np.ndarray:
    """(D, directions) of the scaled parameters that no row shows."""
    _, vectors, seen = _spectrum(information)
    return vectors[:, ~seen]


def _depending(
    problem: Problem, name: str, cls: DensityClass, x: np.ndarray, unseen: np.ndarray, seed: int
) -> tuple[str, ...]:
    """The utility and the limits of this outcome whose value, at some context and action, moves
    along a direction (D, directions) that no row shows. Where none does, as with a scale times an
    effect, the redundancy is harmless.
    """
    if not unseen.shape[1]:
        return ()
    xs, a = grid(distinct(x)[0], problem.n_actions)
    some = np.asarray(draw_members(cls, SPREAD, seed), float)
    spread = np.where(some.std(axis=0) > 0, some.std(axis=0), 1.0)
    steps = STEP * (unseen / np.abs(unseen / spread[:, None]).max(axis=0)).T
    around = np.concatenate([some[0] + steps, some[0] - steps])
    # the safe action's cost is declared
    wanted = [(UTILITY, problem.utility.functional, np.full(len(a), name == UTILITY))]
    wanted += [
        (c.name, c.functional, (a != problem.safe_action) & (c.stream == name))
        for c in _learned(problem)
    ]
    found = []
    for what, functional, counts in wanted:
        if counts.any():
            values = _at_draws(cls, functional, np.concatenate([around, some]), xs, a)[:, counts]
            up, down = np.split(values[: len(around)], 2)
            prior = values[len(around) :]
            size, rounding = prior.std(axis=0).max(), SEEN * np.abs(prior).max()
            if size > rounding and np.abs(up - down).max() / 2 > DEPENDS * STEP * size:
                found.append(what)
    return tuple(found)


# limits -------------------------------------------------------------------------------------------


def _prior_values(
    c: Constraint | Utility, x: np.ndarray, n_actions: int, draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The functional at draws of the prior and contexts: which context (P,), and (P, K).

    Many contexts are dealt out, so that each draw meets about `PER_DRAW` of them; the members of a
    finite class meet all.
    """

    def at(places: np.ndarray, values: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
        rows, which = distinct(x[places])
        found = np.asarray(values(*grid(rows, n_actions)), float)
        by_context = found.reshape(-1, len(rows), n_actions)[:, which]
        return np.tile(places, len(found)), by_context.reshape(-1, n_actions)

    def parametric(cls: DensityClass) -> tuple[np.ndarray, np.ndarray]:
        hands = -(-len(x) // PER_DRAW)
        dealt = [
            at(np.arange(len(x))[i::hands], partial(_at_draws, cls, c.functional, theta))
            for i, theta in enumerate(np.array_split(draw_members(cls, draws, seed), hands))
        ]
        return np.concatenate([p for p, _ in dealt]), np.concatenate([v for _, v in dealt])

    return c.model.visit(
        lambda members: at(np.arange(len(x)), partial(members.values, c.functional, members.every)),
        parametric,
    )


def _at_draws(
    cls: DensityClass, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """The functional at theta (M, D) and rows: (M, n), in parts of one size, which is compiled
    once; each new size takes longer to compile than to compute.
    """
    parts = np.array_split(theta, -(-len(theta) // AT_ONCE))
    return np.concatenate([np.asarray(cls.values(functional, p, x, a), float) for p in parts])


def _slack(f: Functional) -> float:
    return SEEN * (f.high - f.low) if np.isfinite(f.high - f.low) else 0.0


def _outside(f: Functional, values: np.ndarray) -> np.ndarray:
    """Which values leave the declared range, of the same shape."""
    found: np.ndarray = (values > f.high + _slack(f)) | (values < f.low - _slack(f))
    return found


def _not_found(name: str, values: np.ndarray) -> list[str]:
    """A warning where values are no numbers; those count as within no range and beyond none."""
    share = float(np.isnan(values).mean())
    if not share:
        return []
    return [
        f"{name}: {share:.1%} of its values under the prior are no numbers: the function is none "
        "at some outcome, or outcomes spread over more whole numbers than are summed at once. "
        "Where data leave such parameters, its range stands for them; a prior without outcomes "
        "beyond all you expect (a count with next to no dispersion parameter) avoids it"
    ]


def _limit(
    problem: Problem,
    c: Constraint,
    x: np.ndarray,
    draws: int,
    seed: int,
    mix: np.ndarray,
    claim: ConstraintCertificate,
    trouble: list[str],
) -> LimitCheck:
    j, f, a0 = problem.constraint_names.index(c.name), c.functional, int(problem.safe_action or 0)
    places, values = _prior_values(c, x, problem.n_actions, draws, seed)
    trouble += _not_found(f"limit {c.name!r}", values)
    safe = problem.safe_values(x)[places, j]
    pinned = values.copy()
    # what was declared of the safe action counts, not what the model says of it
    pinned[:, a0] = safe
    others = np.delete(pinned, a0, axis=1)
    return LimitCheck(
        name=c.name,
        at_most=float(c.at_most),
        every_draw=bool(c.every_draw),
        quantiles=np.quantile(pinned, QUANTILES, axis=0).T,
        over=(pinned > c.at_most).mean(axis=0),
        only_safe=float((others > c.at_most).all(axis=1).mean()) if others.shape[1] else 1.0,
        outside=float(_outside(f, values).mean()),
        safe_above=float((values[:, a0] > safe + _slack(f)).mean()) if problem.learn_safe else 0.0,
        first_mix=(float(mix.min()), float(mix.max())),
        method=claim.method,
        kind=claim.kind,
        credible=claim.credible,
    )


# the agent that will decide -----------------------------------------------------------------------


def _options(agent: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Of the agents that are looked at. Nothing of them is recorded."""
    try:
        given = dict(agent.items())
    except AttributeError:
        raise SettingError(
            "agent must be options of GEDUCB, such as {'confidence': credible_set(0.9)}; got "
            f"{agent!r}"
        ) from None
    given.pop("journal", None)
    return {"seed": seed, "guard": None} | given


def _rules_over_draws(problem: Problem, options: Mapping[str, Any]) -> dict[str, str]:
    """Outcomes whose bounds are read off draws, and by which rule."""
    chosen = settings(**{name: value for name, value in options.items() if name != "guard"})
    rules = {name: chosen.confidence_of(name) for name in problem.streams}
    return {
        name: rule.describe(chosen.delta) for name, rule in rules.items() if rule and rule.source
    }


def _told(log: Sequence[Any] | None) -> Log:
    told = () if log is None else tuple(log)
    if told and (len(told) not in (3, 4) or are_texts(told[:1])):
        raise SettingError(
            "log must be what agent.observe takes, (x, a, y) or (x, a, y, z), such as (frame, "
            f"'arm', 'response', 'toxicity'); got {len(told)} parts"
        )
    return told


def _informed(problem: Problem, options: Mapping[str, Any], log: Log) -> GEDUCB:
    """The agent as it will be before round 1: with the log, if there is one."""
    agent = GEDUCB(problem, **options)
    if log:
        agent.observe(*log)
    return agent


def _rehearsed(problem: Problem, x: np.ndarray, seed: int, options: Mapping[str, Any]) -> GEDUCB:
    """An agent after a few rows from a world of the prior, actions in turn.

    What a program's text promises is not asked: a bound is computed, and its certificate read.
    """
    agent = GEDUCB(problem, **options)
    try:
        world = make_world(problem, Scenario(), x, seed, agreeing=False)
    except FunctionalError:  # the prior contradicts the ranges, which is reported by itself
        return agent
    rng = np.random.default_rng(seed)
    rows = np.stack([world.context(rng) for _ in range(REHEARSED)])
    actions = np.arange(REHEARSED) % problem.n_actions
    told = [world.outcome(row, int(action), rng) for row, action in zip(rows, actions)]
    z = {name: np.array([one[name] for _, one in told]) for name in told[0][1] or {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        agent.observe(rows, actions, np.array([y for y, _ in told]), z or None)
    return agent


def _claims(agent: GEDUCB, x: np.ndarray, trouble: list[str]) -> dict[str, ConstraintCertificate]:
    """What a decision's certificate claims, by constraint; nothing where no policy could be
    computed, which is added to `trouble`.
    """
    with warnings.catch_warnings():
        for common in (FitWarning, FallbackWarning):
            warnings.simplefilter("ignore", common)
        decision = agent.ask(x[0])
    assert not isinstance(decision, list)
    certificate = decision.certificate
    if certificate.fallback is None:
        return {c.name: c for c in certificate.constraints}
    trouble.append(
        "no policy could be computed for a first look, and the safe action was taken: "
        f"{certificate.fallback}"
    )
    return {
        c.name: replace(c, guaranteed=False, method="not computed") for c in certificate.constraints
    }


def _simulated(
    problem: Problem,
    x: np.ndarray,
    rounds: int,
    runs: int,
    seed: int,
    options: Mapping[str, Any],
    informed: GEDUCB,
    log: Log,
    trouble: list[str],
) -> list[pricing.SimulatedWait]:
    """Runs until half of the decisions leave the safe action; why there are none is added to
    `trouble`.
    """
    if not runs or not _learned(problem) or problem.n_actions < 2:
        return []
    try:
        worlds = _guesses(problem, x, runs, seed, informed) if log else None
        return pricing.simulated_waits(
            problem, x, rounds=rounds, runs=runs, seed=seed, agent=options, log=log, worlds=worlds
        )
    except FunctionalError as error:
        trouble.append(f"no run could be simulated: {error}")
        return []


def _guesses(
    problem: Problem, x: np.ndarray, runs: int, seed: int, informed: GEDUCB
) -> list[ModelWorld]:
    """Worlds whose truths are drawn from what a log leaves plausible."""
    found = {
        name: informed.posterior(name, draws=GUESSES).found.resampled(runs, seed).theta
        for name in problem.streams
    }
    return [
        ModelWorld(problem, {name: theta[i] for name, theta in found.items()}, x)
        for i in range(runs)
    ]


def _path(
    problem: Problem, x: np.ndarray, seed: int, options: Mapping[str, Any], log: Log
) -> tuple[list[int], set[int]]:
    """The actions given if no bad outcome ever comes, and those that may then be drawn."""
    if not problem.every_draw.any() or problem.safe_action is None:
        return [], set()
    return event_free_path(problem, x, REHEARSED, options, seed, log) or ([], set())
