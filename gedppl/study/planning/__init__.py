"""Planning: what would happen, over guesses of the truth, before a trial begins.

`plan` simulates the agent in worlds made of the problem's own models and tabulates expected regret,
rounds until a utility is reached, share of safe-action rounds and early stops, over named scenarios
and as limits, delta, noise or actions vary.
"""

from __future__ import annotations

import builtins
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from gedppl.agent import AlarmWarning, SafeActionWarning
from gedppl.errors import DataError, SettingError
from gedppl.ged_ucb.settings import settings as resolve
from gedppl.numerics.arrays import is_whole
from gedppl.problem import Problem
from gedppl.study.planning.rules import StoppingRules
from gedppl.study.planning.running import make_agent, shown
from gedppl.study.planning.tables import Plan, Trial
from gedppl.study.planning.worlds import ModelWorld, Scenario, make_world, read_rows
from gedppl.study.simulation import Environment, Run, simulate
from gedppl.study.simulation.many import simulate_many, why_not_together

__all__ = ["ModelWorld", "Plan", "Scenario", "StoppingRules", "Trial", "plan"]

OWN_SETTINGS = ("at_most", "delta", "n_actions", "noise")
TOGETHER = 50  # replicates that are decided in one pass, where that can be done
MOST_NAMED = 25  # contexts at which a trial's recommendation is judged

Recommender = Callable[[Any, np.ndarray], "int | None"]


@dataclass(frozen=True)
class _Design:
    """Everything a trial needs; a trial is then (setting, scenario, replicate)."""

    problem: Any
    contexts: np.ndarray
    rounds: int
    scenarios: Mapping[str, Scenario]
    delta: float
    rules: StoppingRules | None
    agent: Any
    seed: int
    recommend: str | Recommender | None


def plan(
    problem: Problem | Callable[..., Problem],
    contexts: Any,
    rounds: int,
    *,
    scenarios: Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    replicates: int = 20,
    delta: float = 0.05,
    goal: float | None = None,
    rules: StoppingRules | None = None,
    agent: Mapping[str, Any] | Callable[..., Any] | None = None,
    recommend: str | Recommender | None = None,
    seed: int = 0,
    progress: bool = False,
    map: Callable[..., Iterable[Any]] = builtins.map,
) -> Plan:
    """Simulate trials over scenarios and settings, and tabulate how they would go.

    Parameters
    ----------
    problem
        The declaration, or a function of keyword settings that returns it (``lambda noise=0.1:
        ...``) so that they can vary.
    contexts
        (n, dx), or a data frame where the problem declares columns: contexts are drawn from these
        rows.
    rounds
        The horizon T of each trial.
    scenarios
        Name -> `Scenario`, or a mapping outcome -> params, or ``"prior"``. By default the prior
        alone: every replicate draws its own truth.
    vary
        Setting -> values; all combinations are run. ``"at_most"`` (``"at_most:name"`` with several
        constraints), ``"delta"``, ``"n_actions"`` (the first K actions) and ``"noise"`` (of the
        world only, the model is not told) are known; others, and ``"noise"`` where the function
        takes it, are passed to `problem`.
    replicates
        Trials of each scenario and setting. The same replicate meets the same truth and contexts
        under every setting.
    goal
        The utility for "rounds until": the true utility of the policies, averaged over the rules'
        window, reaches it. The rules' target if not given.
    rules
        When to stop early.
    delta, seed
        Of the agents; every trial has a seed of its own made from `seed`.
    agent
        Options of `GEDUCB`, or a function (problem, delta, seed) -> agent. With ``{"guard": None}``
        nobody watches for alarms, and replicates are decided together (`simulate_many`), several
        times as fast for linear-Gaussian models and finite classes.
    recommend
        How a trial ends: a rule of `GEDUCB.recommend`, or a function (agent, x) -> action, None for
        the safe one. The table then says how often the selection is correct, how many rounds
        treated above a limit, and how many each action got.
    progress
        Show a bar.
    map
        Any parallel map, e.g. ``pool.map`` of an executor; see the notes.

    Notes
    -----
    The trials are independent, so they may run anywhere:
    ``ProcessPoolExecutor(mp_context=get_context("spawn")).map``, joblib (``lambda f, tasks:
    Parallel(2)(delayed(f)(t) for t in tasks)``), Dask (``lambda f, tasks:
    client.gather(client.map(f, tasks))``) or Ray. A class travels as its model and is compiled once
    in each process; plain pickle needs the model to be a function of an importable module, joblib,
    Dask and Ray take any.

    Ctrl-C returns the trials that are complete; the table says so. Not guaranteed: what a real
    trial will show. The characteristics hold in the worlds simulated, and the prior of a `param`
    site is a working one (standard normal around its initial value).

    Examples
    --------
    >>> found = ged.plan(problem, np.zeros((1, 1)), 5, replicates=2)
    >>> len(found.rows), found.rows[0]["infeasible trials"]
    (1, 0.0)
    """
    for name, value in (("rounds", rounds), ("replicates", replicates)):
        if not (is_whole(value) and value >= 1):
            raise SettingError(f"{name} must be a positive whole number, got {value!r}")
    named = {
        name: _scenario(name, value) for name, value in (scenarios or {"prior": Scenario()}).items()
    }
    settings = _combinations(vary or {})
    x = read_rows(_problem_at(problem, settings[0]), contexts)
    design = _Design(problem, x, int(rounds), named, delta, rules, agent, seed, recommend)
    for setting in settings:
        _problem_at(problem, setting)  # a wrong setting fails here and not after an hour
    step = TOGETHER if _runs_together(design, settings) else 1
    tasks = [
        (s, name, range(r, min(r + step, replicates)))
        for s in range(len(settings))
        for name in named
        for r in range(0, replicates, step)
    ]
    # replicates outermost, so that an interrupted plan has some of every cell
    tasks.sort(key=lambda task: task[2].start)
    done: list[Trial] = []
    interrupted = False
    unit = "trial" if step == 1 else f"{step} trials"
    try:
        for trials in shown(
            map(partial(_trials, design, settings), tasks), len(tasks), progress, unit
        ):
            done.extend(trials)
    except KeyboardInterrupt:
        interrupted = True
    target = goal if goal is not None else (rules.target if rules is not None else None)
    window = rules.window if rules is not None else StoppingRules().window
    first = _problem_at(problem, settings[0])
    return Plan(
        trials=tuple(done),
        settings=tuple(settings),
        scenarios=tuple(named),
        rounds=int(rounds),
        replicates=int(replicates),
        delta=delta,
        goal=target,
        window=window,
        rules=rules,
        interrupted=interrupted,
        actions=tuple(str(label) for label in first.names.labels),
        constraints=tuple(first.constraint_names),
        safe_action=first.safe_action,
    )


def _scenario(name: str, value: Any) -> Scenario:
    if isinstance(value, Scenario):
        return value
    if value is None or value == "prior":
        return Scenario()
    if isinstance(value, Mapping):
        return Scenario(truth=value)
    raise SettingError(
        f"scenario {name!r} must be a Scenario, a mapping outcome -> params, or "
        f"'prior'; got {value!r}"
    )


def _combinations(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    for name, values in vary.items():
        if (
            not isinstance(values, Sequence | np.ndarray)
            or isinstance(values, str)
            or not len(values)
        ):
            raise SettingError(f"vary[{name!r}] must be a list of values, got {values!r}")
    return [dict(zip(vary, values)) for values in product(*vary.values())]


def _problem_at(made: Problem | Callable[..., Problem], setting: Mapping[str, Any]) -> Problem:
    """The problem under a setting."""
    passed = {name: value for name, value in setting.items() if not _is_own(name)}
    if isinstance(made, Problem):
        if passed:
            raise SettingError(
                f"{sorted(passed)[0]!r} cannot be varied for a fixed problem (only "
                f"{', '.join(OWN_SETTINGS)}); pass a function "
                "of it that returns the problem"
            )
    else:
        if "noise" in setting and "noise" in inspect.signature(made).parameters:
            passed["noise"] = setting["noise"]
        made = made(**passed)
    for name, value in setting.items():
        if name.startswith("at_most"):
            made = made.with_limit(_limited(made, name), float(value))
        elif name == "n_actions":
            made = first_actions(made, int(value))
    return made


def _is_own(name: str) -> bool:
    return name in OWN_SETTINGS or name.startswith("at_most:")


def _limited(problem: Problem, name: str) -> str:
    _, _, which = name.partition(":")
    if not which and len(problem.constraints) != 1:
        raise SettingError(
            f'there are {len(problem.constraints)} constraints; vary "at_most:name" with one of '
            f"{problem.constraint_names}"
        )
    return which or problem.constraint_names[0]


def first_actions(problem: Problem, n_actions: int) -> Problem:
    if not (problem.safe_action or 0) < n_actions <= problem.n_actions:
        raise SettingError(
            f"n_actions must keep the safe action {problem.names.label(problem.safe_action or 0)} "
            "and be at most "
            f"{problem.n_actions}, got {n_actions}"
        )
    reveals = None if problem.reveals is None else problem.reveals[:n_actions, :n_actions]
    actions = None if problem.actions is None else problem.actions[:n_actions]
    return replace(problem, n_actions=n_actions, reveals=reveals, actions=actions)


def _world_noise(design: _Design, setting: Mapping[str, Any], scenario: Scenario) -> float:
    told = (
        not isinstance(design.problem, Problem)
        and "noise" in inspect.signature(design.problem).parameters
    )
    return scenario.noise * (1.0 if told else float(setting.get("noise", 1.0)))


@dataclass(frozen=True)
class _Start:
    """One trial before its first round. The truth, the contexts and the agent's draws depend on
    scenario and replicate, not on the setting.
    """

    setting: int
    scenario: str
    replicate: int
    problem: Problem
    world: Environment
    seed: int
    delta: float

    def told(self, run: Run, **more: Any) -> Trial:
        """The trial that was run."""
        return Trial(
            setting=self.setting,
            scenario=self.scenario,
            replicate=self.replicate,
            utility=run.utility,
            best=run.best,
            safe=run.action == self.problem.safe_action,
            infeasible=int(run.infeasible.sum()),
            **_judged(self.problem, run),
            **more,
        )


def _started(
    design: _Design, settings: list[dict[str, Any]], s: int, name: str, replicate: int
) -> _Start:
    setting, scenario = settings[s], design.scenarios[name]
    problem = _problem_at(design.problem, setting)
    index = list(design.scenarios).index(name)
    seed = int(np.random.SeedSequence([design.seed, index, replicate]).generate_state(1)[0] % 2**31)
    noise = _world_noise(design, setting, scenario)
    world = make_world(problem, replace(scenario, noise=noise), design.contexts, seed)
    delta = float(setting.get("delta", design.delta))
    return _Start(s, name, replicate, problem, world, seed, delta)


def _trials(
    design: _Design, settings: list[dict[str, Any]], task: tuple[int, str, range]
) -> list[Trial]:
    """Some replicates of one setting and scenario."""
    s, name, replicates = task
    starts = [_started(design, settings, s, name, r) for r in replicates]
    if len(starts) > 1:
        try:
            return _trials_together(design, starts)
        except (DataError, ArithmeticError, np.linalg.LinAlgError):
            # a world that told nothing in some round, or a run in which an agent would fall back to
            # its safe action
            starts = [_started(design, settings, s, name, r) for r in replicates]
    return [_trial(design, one) for one in starts]


def _runs_together(design: _Design, settings: list[dict[str, Any]]) -> bool:
    """Whether replicates may be decided in one pass: nobody watches or looks at a single run."""
    given = design.agent
    if not isinstance(given, Mapping) or design.rules is not None or design.recommend is not None:
        return False
    if given.get("guard", "fallback") is not None or {"journal", "seed"} & set(given):
        return False
    chosen = resolve(**_unguarded(given))
    return not any(why_not_together(_problem_at(design.problem, one), chosen) for one in settings)


def _unguarded(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "guard"}


def _trials_together(design: _Design, starts: list[_Start]) -> list[Trial]:
    first = starts[0]
    options = {"delta": first.delta} | _unguarded(design.agent)
    worlds, seeds = [one.world for one in starts], [one.seed for one in starts]
    runs = simulate_many(first.problem, worlds, design.rounds, seeds, **options)
    return [one.told(run, stopped="") for one, run in zip(starts, runs)]


def _trial(design: _Design, start: _Start) -> Trial:
    """One trial by an agent of its own."""
    problem, seed = start.problem, start.seed
    agent = make_agent(design.agent, problem, start.delta, seed)
    run, stopped = Run(problem, seed), ""
    watched = agent if design.rules is None else _Watched(agent, design.rules, run, design.contexts)
    with warnings.catch_warnings():
        for counted in (SafeActionWarning, AlarmWarning):  # the table counts safe rounds and alarms
            warnings.simplefilter("ignore", counted)
        try:
            simulate(problem, start.world, watched, design.rounds, seed, run=run)
        except _Stopped as why:
            stopped = str(why)
    if run.interrupted:
        raise KeyboardInterrupt
    return start.told(
        run,
        stopped=stopped,
        alarmed=bool(getattr(agent, "alarms", ())) or bool(run.meta.get("refuted")),
        **_selected(design, problem, start.world, agent),
    )


def _judged(problem: Problem, run: Run) -> dict[str, Any]:
    """What single actions did, and what the safe one would have been worth."""
    J, rows = len(problem.constraints), np.arange(len(run))
    if not len(run):
        return {"events": (math.nan,) * J, "played": (0,) * problem.n_actions}
    own = run.costs[rows, :, run.action]  # (T, J)
    other = run.action != problem.safe_action
    events = run.realised[other].mean(axis=0) if other.any() else np.full(J, np.nan)
    return {
        "safe_utility": None
        if problem.safe_action is None
        else run.utilities[:, problem.safe_action],
        "played": tuple(np.bincount(run.action, minlength=problem.n_actions).tolist()),
        "above": int((own > run.limit + 1e-9 * np.abs(run.limit)).any(axis=1).sum()) if J else 0,
        "events": tuple(float(v) for v in events),
    }


def _selected(design: _Design, problem: Problem, world: Environment, agent: Any) -> dict[str, Any]:
    """The action recommended at each context, and the best single one by the truth."""
    rule = design.recommend
    if rule is None:
        return {}
    named, right = [], []
    for x in np.unique(design.contexts, axis=0)[:MOST_NAMED]:
        found = agent.recommend(x, rule).action if isinstance(rule, str) else rule(agent, x)
        named.append(int(problem.safe_action or 0) if found is None else int(found))
        costs = np.asarray(world.costs(x), float).reshape(len(problem.limits), -1)
        utilities = np.asarray(world.utilities(x), float)
        right.append(
            int(
                np.argmax(
                    np.where((costs <= problem.limits[:, None]).all(axis=0), utilities, -np.inf)
                )
            )
        )
    return {"named": tuple(named), "right": tuple(right)}


class _Stopped(Exception):  # noqa: N818 - not an error: a rule ended the trial
    """A rule ended the trial."""


class _Watched:
    """An agent that looks at its run before it decides, when a look is due, and stops the trial
    if a rule says so.
    """

    def __init__(self, agent: Any, rules: StoppingRules, run: Run, contexts: np.ndarray) -> None:
        self._agent, self._rules, self._run, self._contexts = agent, rules, run, contexts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def ask(self, x: np.ndarray) -> Any:
        since = len(self._run) - self._rules.first_look
        if since >= 0 and since % self._rules.every == 0:
            why = self._rules.verdict(self._run, self._agent, self._contexts)
            if why:
                raise _Stopped(why)
        return self._agent.ask(x)
