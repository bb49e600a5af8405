"""Many runs of one problem, decided together: one pass over arrays for all seeds instead of one
agent each.

Every run is that of ``simulate(problem, world, GEDUCB(problem, guard=None, seed=seed), rounds,
seed)``: the same contexts, policies, actions and outcomes. What differs between runs are rows and
fits; everything after them (bounds, scores, selection) is asked of all runs at once, as an agent
asks it of a cohort. Nothing is certified, journaled or watched.

Axis letters: S runs, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from gedppl import ged_ucb
from gedppl.agent.deciding import draw_actions
from gedppl.agent.telling import read_outcomes
from gedppl.errors import DataError, SettingError, ShapeError
from gedppl.ged_ucb.settings import Settings, settings
from gedppl.learning.learner import Learner
from gedppl.learning.several_runs import OneByOne, stacked
from gedppl.numerics.arrays import check_whole, evolved
from gedppl.problem import Problem
from gedppl.selection import drawable, select_policies
from gedppl.study.simulation import Environment, truth_of, world_streams
from gedppl.study.simulation.realised import realised_values
from gedppl.study.simulation.runs import Round, Run

NOT_TOGETHER = (
    "runs are decided together in the default mode with exploration by sets, the models' own "
    "confidence sets and prompt outcomes; with {} simulate them one by one"
)


def simulate_many(
    problem: Problem,
    worlds: Sequence[Environment],
    rounds: int,
    seeds: Sequence[int],
    **options: Any,
) -> list[Run]:
    """Simulate many runs of one problem at once, each in a world of its own.

    Parameters
    ----------
    problem, rounds
        The declaration, and T.
    worlds, seeds
        One of each for every run. The seed is that of the world's contexts and outcomes and of the
        agent's draws, as in `simulate` with an agent of the same seed.
    options
        Those of `GEDUCB`, but for ``guard`` and ``journal``: nothing is watched or kept.

    Returns
    -------
    The runs, in the order of the seeds. Their policies are those of single runs; certificates there
    are none.

    Notes
    -----
    Linear-Gaussian models and finite classes are stacked into arrays; others are right but hardly
    faster. Other modes than the default, other explorations than ``"sets"``, ``confidence=``,
    ``reveals`` and ``outcome_age`` are refused by name. An error in one run ends all, where an
    agent would fall back to its safe action. Not guaranteed: the last digits of a single run's
    policies.

    Examples
    --------
    >>> runs = simulate_many(problem, [world] * 3, 20, seeds=[0, 1, 2])
    >>> alone = ged.simulate(problem, world, ged.GEDUCB(problem, guard=None, seed=1), 20, seed=1)
    >>> bool(np.abs(runs[1].policy - alone.policy).max() < 1e-9)
    True
    """
    check_whole(1, rounds=rounds)
    if len(worlds) != len(seeds) or not len(seeds):
        raise ShapeError(f"{len(worlds)} worlds and {len(seeds)} seeds: give one of each a run")
    chosen = [settings(**options, seed=int(seed)) for seed in seeds]
    reason = why_not_together(problem, chosen[0])
    if reason:
        raise SettingError(NOT_TOGETHER.format(reason))
    streams = [world_streams(int(seed)) for seed in seeds]
    runs = [Run(problem, int(seed)) for seed in seeds]
    fleet: _Fleet | None = None
    for t in range(rounds):
        x = np.array([np.asarray(w.context(s["contexts"]), float) for w, s in zip(worlds, streams)])
        fleet = fleet or _Fleet.begun(problem, chosen, x)
        policy, info = ged_ucb.select(fleet.state, x)
        actions = [draw_actions(p[None], one.seed, t)[0] for p, one in zip(policy, chosen)]
        told = [
            w.outcome(x[i], actions[i], s["outcomes"])
            for i, (w, s) in enumerate(zip(worlds, streams))
        ]
        for i, new in enumerate(_rounds(problem, worlds, x, actions, policy, told, info)):
            runs[i].rounds.append(new)
        fleet.learn(t, x, actions, told)
    for run, own in zip(runs, streams):
        run.environment_state = {name: rng.bit_generator.state for name, rng in own.items()}
    return runs


def why_not_together(problem: Problem, chosen: Settings) -> str:
    """What keeps runs of a problem from being decided together; empty if nothing does."""
    reasons = {
        f"mode={chosen.mode!r}": chosen.mode != "default",
        f"exploration={chosen.exploration!r}": chosen.exploration != "sets",
        "confidence=": chosen.confidence is not None,
        "reveals=": problem.reveals is not None,
        f"outcome_age={problem.outcome_age}": problem.outcome_age > 1,
    }
    return ", ".join(what for what, applies in reasons.items() if applies)


class _Fleet:
    """What all runs know: one state whose learners answer for all of them, and outcomes that wait
    for the next fit.
    """

    def __init__(self, state: ged_ucb.State, parts: dict[str, OneByOne], runs: int) -> None:
        self.state, self._parts = state, parts
        self._waiting: list[list[ged_ucb.Entry]] = [[] for _ in range(runs)]

    @classmethod
    def begun(cls, problem: Problem, chosen: Sequence[Settings], x: np.ndarray) -> _Fleet:
        """Before round 1, with the first contexts x (S, dx)."""
        states = [ged_ucb.init(problem, one, x[i : i + 1]) for i, one in enumerate(chosen)]
        parts = {name: stacked([s.learners[name] for s in states]) for name in problem.streams}
        played = np.zeros((len(chosen), problem.n_actions))
        return cls(_with(evolved(states[0], played=played), parts), parts, len(chosen))

    def learn(
        self, t: int, x: np.ndarray, actions: Sequence[int], told: Sequence[tuple[Any, Any]]
    ) -> None:
        """Take in the outcomes of round t; fit when due."""
        problem, played = self.state.problem, self.state.played.copy()
        for i, ((y, z), action) in enumerate(zip(told, actions)):
            outcomes = read_outcomes(problem, x[i], action, y, z, judged=False)
            if len(outcomes) < len(problem.streams):
                raise DataError(
                    f"round {t} of run {i} did not tell every outcome, but {list(outcomes)} only: "
                    "runs of such a world are simulated one by one"
                )
            self._waiting[i].append(ged_ucb.Entry(t, x[i], action, outcomes, first=True))
            played[i, action] += problem.learn_safe or action != problem.safe_action
        state = evolved(self.state, t=t + 1, told=t + 1, played=played)
        if state.told >= state.refit_at:
            state = self._refitted(state)
        self.state = state

    def _refitted(self, state: ged_ucb.State) -> ged_ucb.State:
        problem = state.problem
        rows = [ged_ucb.rows_by_stream(problem, entries) for entries in self._waiting]
        self._waiting = [[] for _ in rows]
        for name, part in self._parts.items():
            some = [own[name] for own in rows if name in own]
            if some:  # otherwise all played safe, and nothing is learned of that
                problem.streams[name].check_outcomes(*(np.concatenate(p) for p in zip(*some)))
                x, a, y = some[0]
                none = (x[:0], a[:0], y[:0])
                self._parts[name] = part.refitted([own.get(name, none) for own in rows])
        due = ged_ucb.next_refit(state.settings, state.told)
        return evolved(_with(state, self._parts), refit_at=due)


def _with(state: ged_ucb.State, parts: dict[str, OneByOne]) -> ged_ucb.State:
    # a selection asks its learners for guesses and bounds, and for nothing else
    return evolved(state, learners={name: cast(Learner, part) for name, part in parts.items()})


def _rounds(
    problem: Problem,
    worlds: Sequence[Environment],
    x: np.ndarray,
    actions: Sequence[int],
    policy: np.ndarray,
    told: Sequence[tuple[Any, Any]],
    info: ged_ucb.Info,
) -> list[Round]:
    """One round of every run, as `observed_round` records it."""
    J, K = len(problem.constraints), problem.n_actions
    utilities = np.array([truth_of(w, "utilities", one, (K,)) for w, one in zip(worlds, x)])
    costs = np.array([truth_of(w, "costs", one, (J, K)) for w, one in zip(worlds, x)])
    oracle, best = _best(problem, utilities, costs)
    return [
        Round(
            x=x[i],
            action=actions[i],
            policy=policy[i],
            y=told[i][0],
            z=told[i][1],
            utilities=utilities[i],
            costs=costs[i],
            oracle=oracle[i],
            best=float(best[i]),
            limit=problem.limits,
            worst_case=info.worst[i],
            realised=realised_values(problem, x[i], actions[i], *told[i]),
            estimate=info.utility[i],
            bonus=info.bonus[i],
            width=info.width[i],
            cost_lower=info.cost_lower[i],
            cost_upper=info.cost_upper[i],
        )
        for i in range(len(x))
    ]


def _best(
    problem: Problem, utilities: np.ndarray, costs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best policies (S, K) that keep every limit by the truth, and their utilities (S,); NaN
    where it is not known.
    """
    S, K = utilities.shape
    oracle, best = np.full((S, K), np.nan), np.full(S, np.nan)
    known = np.isfinite(utilities).all(axis=1) & np.isfinite(costs).all(axis=(1, 2))
    if known.any():
        u, c = utilities[known], costs[known]
        fine = drawable(c, np.broadcast_to(problem.limits, c.shape[:2]), problem.every_draw)
        found = select_policies(u, c, problem.limits, fine, np.zeros(K), problem.safe_action)
        oracle[known], best[known] = found, (found * u).sum(axis=1)
    return oracle, best
