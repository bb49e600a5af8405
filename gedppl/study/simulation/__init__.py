"""Runs against a world: the loop of ask and tell, with a progress bar, interrupts that wait, and a
record of the truth.

An environment is any object with the methods of `Environment`. Axis letters: T rounds, K actions, J
constraints.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gedppl.agent.deciding import refuses
from gedppl.certificate import plain
from gedppl.errors import DeclarationError, RunFileError, SettingError, ShapeError
from gedppl.numerics.arrays import is_whole
from gedppl.problem import Problem
from gedppl.selection import select_policy
from gedppl.study.simulation.realised import realised_values
from gedppl.study.simulation.runs import Round, Run, RunOutline

__all__ = [
    "Environment",
    "FixedPolicy",
    "Round",
    "Run",
    "RunOutline",
    "catch_up",
    "constrained_best",
    "draw_members",
    "recover",
    "simulate",
]

# streams of the world's seed: agents that act differently still meet the same contexts
CONTEXTS, OUTCOMES = 7, 8


class Environment(Protocol):
    """A world to decide in. Every method takes its randomness from `rng`."""

    def context(self, rng: np.random.Generator) -> np.ndarray:
        """The next context (dx,)."""
        ...

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """What `tell` will be told: (y, z)."""
        ...

    def utilities(self, x: np.ndarray) -> np.ndarray | None:
        """The true utility of every action, (K,); None or NaN where it is not known."""
        ...

    def costs(self, x: np.ndarray) -> np.ndarray | None:
        """The true value of every constraint and action, (J, K); None or NaN where it is not
        known.
        """
        ...


@dataclass(frozen=True)
class FixedDecision:
    id: int
    action: int
    policy: np.ndarray
    certificate: None = None


class FixedPolicy:
    """A policy that learns nothing, as an agent: what a learner is compared with.

    Parameters
    ----------
    policy
        x (dx,) -> (K,).

    Examples
    --------
    >>> FixedPolicy(lambda x: [0.0, 1.0]).ask([0.5]).action
    1
    """

    def __init__(self, policy: Callable[[np.ndarray], Any], seed: int = 0) -> None:
        self._policy, self._rng, self._asked = policy, np.random.default_rng(seed), 0

    def ask(self, x: Any) -> FixedDecision:
        policy = np.asarray(self._policy(np.asarray(x, float)), float)
        action = int(
            min(
                np.searchsorted(np.cumsum(policy), self._rng.random(), side="right"),
                np.flatnonzero(policy)[-1],
            )
        )
        self._asked += 1
        return FixedDecision(self._asked - 1, action, policy)

    def tell(self, decision_id: int, y: Any = None, z: Any = None) -> None:
        """Nothing is learned."""


def constrained_best(
    problem: Problem, utilities: np.ndarray, costs: np.ndarray
) -> tuple[np.ndarray, float]:
    """The best policy that keeps every limit when the truth is known, and its utility."""
    policy = select_policy(
        utilities,
        costs,
        problem.limits,
        safe_action=problem.safe_action,
        every_draw=problem.every_draw,
    )
    return policy, float(policy @ utilities)


def simulate(
    problem: Problem,
    environment: Environment,
    agent: Any,
    rounds: int,
    seed: int = 0,
    *,
    progress: bool = False,
    run: Run | None = None,
) -> Run:
    """Let an agent decide for a number of rounds.

    Parameters
    ----------
    problem
        The declaration.
    environment
        The world: ``context(rng)`` (dx,) and ``outcome(x, action, rng)``, which returns y and z;
        where the truth is known also ``utilities(x)`` (K,) and ``costs(x)`` (J, K).
    agent
        Anything with ``ask`` and ``tell``.
    rounds
        T.
    seed
        Of the world; the agent has its own. The same seed gives the same contexts to every agent.
    progress
        Show a bar with the running utility, the worst-case cost against its limit, and the share of
        the safe action.
    run
        An earlier run to go on with, together with the agent and environment it was made with
        (`catch_up` brings a new environment to where the run ended). Ctrl-C ends after the round at
        hand, and the run returned says ``interrupted``; a second Ctrl-C stops at once, and `run`,
        if it was given, holds the rounds that were complete.

    Notes
    -----
    Regret of round t is ``u*(x_t) - sum_a pi_t(a) u(x_t, a)``, with u* the best utility that any
    policy can have there under the true costs; both need an `environment` that knows the truth
    (``utilities`` (K,), ``costs`` (J, K)). A round is infeasible if ``sum_a pi_t(a) c_j(x_t, a)``
    exceeds a limit: the policy counts, not the action that was drawn. What the environment says of
    its own truth is believed. Not guaranteed: anything outside this world.

    Examples
    --------
    >>> run = ged.simulate(problem, world, ged.GEDUCB(problem), 20, seed=1)
    >>> run.x.shape, float(run.regret.sum()), int(run.infeasible.sum())
    ((20, 1), 0.0, 0)
    """
    if not is_whole(rounds) or rounds < 0:
        raise SettingError(f"rounds must be a whole number of at least 0, got {rounds!r}")
    if run is None:
        run = Run(problem, seed)
    streams = world_streams(run.seed)
    if run.environment_state is not None:
        for name, rng in streams.items():
            rng.bit_generator.state = run.environment_state[name]
    run.interrupted = False
    with _interrupts_wait() as interrupted, _Progress(rounds, progress) as bar:
        for i in range(rounds):
            x = np.asarray(environment.context(streams["contexts"]), float)
            if x.ndim != 1:
                raise ShapeError(
                    f"environment.context must return one context (dx,), got shape {x.shape}"
                )
            decision = _asked(agent, x, run)
            y, z = environment.outcome(x, decision.action, streams["outcomes"])
            agent.tell(decision.id, y, z)
            certificate = getattr(decision, "certificate", None)
            new = observed_round(
                getattr(agent, "problem", problem),
                environment,
                x,
                decision.action,
                decision.policy,
                y,
                z,
                None if certificate is None else certificate.to_dict(),
                agent.explain(decision) if hasattr(agent, "explain") else None,
            )
            run.rounds.append(new)
            run.environment_state = {name: rng.bit_generator.state for name, rng in streams.items()}
            bar.update(new, problem.safe_action)
            if interrupted:
                run.interrupted = i + 1 < rounds
                break
    return run


def _asked(agent: Any, x: np.ndarray, run: Run) -> Any:
    """Ask. Where a declaration was refuted, the run notes it under ``meta["refuted"]`` and goes
    on without its guarantee, as if somebody had acknowledged it: a simulation is there to show
    what would happen.
    """
    while True:
        try:
            return agent.ask(x)
        except DeclarationError:
            refuted = [alarm for alarm in agent.alarms if refuses(alarm.name)]
            if not refuted:  # nothing was decided yet: the problem itself is declared wrongly
                raise
            for alarm in refuted:
                run.meta.setdefault("refuted", []).append(alarm.sentence)
                agent.acknowledge(alarm)


def catch_up(environment: Environment, run: Run) -> None:
    """Bring a new environment to where a saved run ended, by drawing the run's contexts and
    outcomes again.

    Raises `RunFileError` if the environment does not draw what the run has: it or its script has
    changed.
    """
    streams = world_streams(run.seed)
    for i, r in enumerate(run.rounds):
        _draw_again(environment, streams, i, r.x, r.action)
    run.environment_state = {name: rng.bit_generator.state for name, rng in streams.items()}


def recover(agent: Any, environment: Environment, run: Run) -> int:
    """Bring a new environment, and the run, to where a resumed agent's journal ends; returns the
    rounds that were added.

    A process that was killed leaves a journal that knows more than the saved run. Its decisions are
    taken over with their certificates (cost bounds of actions and estimates are not in a journal,
    and stay unknown for them). A decision that was never told its outcome is told now what the
    environment draws for it.
    """
    streams, known = world_streams(run.seed), len(run)
    decisions = [record.payload for record in agent.journal.records("decision")]
    if len(decisions) < known:
        raise RunFileError(
            f"the run has {known} rounds, its journal {len(decisions)}: they do not belong together"
        )
    open_ids = set(agent.open_decisions)
    for i, past in enumerate(decisions):
        x, action = np.asarray(past["x"], float), int(past["action"])
        y, z = _draw_again(environment, streams, i, x, action)
        if i in open_ids:
            agent.tell(i, y, z)
        if i >= known:
            new = observed_round(
                agent.problem,
                environment,
                x,
                action,
                past["policy"],
                y,
                z,
                plain(past["certificate"]),
            )
            run.rounds.append(new)
    run.environment_state = {name: rng.bit_generator.state for name, rng in streams.items()}
    return len(run) - known


def _draw_again(
    environment: Environment,
    streams: dict[str, np.random.Generator],
    i: int,
    x: np.ndarray,
    action: int,
) -> tuple[Any, Any]:
    drawn = np.asarray(environment.context(streams["contexts"]), float)
    if not np.array_equal(drawn, x):
        raise RunFileError(
            f"the environment's context of round {i} is {drawn}, the run has {x}: this is another "
            "environment or seed"
        )
    return environment.outcome(drawn, action, streams["outcomes"])


def draw_members(agent: Any, n: int = 128, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Members of an agent's confidence sets, outcome -> site -> (M, ...): to look at, an inner
    picture and never a bound.

    A finite class gives the numbers of its plausible members under the site name ``member``. Empty
    for agents without sets.
    """
    from gedppl.learning import ConfidenceSet

    state = getattr(agent, "_state", None)
    drawn: dict[str, dict[str, np.ndarray]] = {}
    for name, learner in getattr(state, "learners", {}).items():
        members = ConfidenceSet(agent.problem.streams[name], learner).members(n, seed)
        if members and isinstance(members[0], int):
            drawn[name] = {"member": np.array(members)}
        elif members:
            drawn[name] = {
                str(site): np.stack([np.asarray(m[site], float) for m in members])
                for site in members[0]
            }
    return drawn


def world_streams(seed: int) -> dict[str, np.random.Generator]:
    """The random numbers of a world: those of its contexts do not depend on what was played."""
    return {
        "contexts": np.random.default_rng([seed, CONTEXTS]),
        "outcomes": np.random.default_rng([seed, OUTCOMES]),
    }


def observed_round(
    problem: Problem,
    environment: Environment,
    x: np.ndarray,
    action: int,
    policy: Any,
    y: Any,
    z: Any,
    certificate: dict[str, Any] | None = None,
    terms: Any = None,
) -> Round:
    """Everything there is to record of one round. `terms` are the agent's `Explanation`, if it
    has one.
    """
    J, K = len(problem.constraints), problem.n_actions
    utilities = truth_of(environment, "utilities", x, (K,))
    costs = truth_of(environment, "costs", x, (J, K))
    oracle, best = np.full(K, np.nan), np.nan
    if np.isfinite(utilities).all() and np.isfinite(costs).all():
        oracle, best = constrained_best(problem, utilities, costs)
    worst = np.full(J, np.nan)
    if certificate is not None:
        worst = np.array([part["worst_case"] for part in certificate["constraints"]], float)
    unknown, unknown_costs = np.full(K, np.nan), np.full((J, K), np.nan)
    return Round(
        x=x,
        action=int(action),
        policy=np.asarray(policy, float),
        y=y,
        z=z,
        utilities=utilities,
        costs=costs,
        oracle=oracle,
        best=best,
        limit=problem.limits,
        worst_case=worst,
        realised=realised_values(problem, x, int(action), y, z),
        estimate=unknown if terms is None else terms.utility,
        bonus=unknown if terms is None else terms.bonus,
        width=unknown if terms is None else terms.width,
        cost_lower=unknown_costs if terms is None else terms.cost_lower,
        cost_upper=unknown_costs if terms is None else terms.cost_upper,
        certificate=certificate,
    )


def truth_of(
    environment: Environment, name: str, x: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """What a world says is true at x; NaN where it does not say."""
    method = getattr(environment, name, None)
    values = None if method is None else method(x)
    if values is None:
        return np.full(shape, np.nan)
    array = np.asarray(values, float)
    if array.size != np.prod(shape):
        raise ShapeError(f"environment.{name} must return shape {shape}, got {array.shape}")
    return array.reshape(shape)


class _Progress:
    """A bar on stderr, or nothing."""

    def __init__(self, rounds: int, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from tqdm import tqdm

            # fits into 80 columns
            short = "{n_fmt}/{total_fmt} |{bar:12}| {elapsed}<{remaining}{postfix}"
            self._bar = tqdm(total=rounds, dynamic_ncols=True, bar_format=short)
        self._n, self._utility, self._safe = 0, 0.0, 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, r: Round, safe_action: int | None) -> None:
        if self._bar is None:
            return
        self._n += 1
        value = (
            float(r.policy @ np.nan_to_num(r.utilities))
            if np.isfinite(r.utilities).all()
            else _number(r.y)
        )
        self._utility += value
        self._safe += r.action == safe_action
        shown = {"utility": f"{self._utility / self._n:.3f}"}
        if np.isfinite(r.worst_case).any():
            j = int(np.nanargmax(r.worst_case - r.limit))
            shown["worst case"] = f"{r.worst_case[j]:.3g}≤{r.limit[j]:.3g}"
        if safe_action is not None:
            shown["safe"] = f"{self._safe / self._n:.0%}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()


def _number(y: Any) -> float:
    array = np.asarray(np.nan if y is None else y, float)
    known = array[np.isfinite(array)]
    return float(known.mean()) if known.size else 0.0


@contextmanager
def _interrupts_wait() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of raising it; a second one raises as usual. Only the main thread
    receives signals.
    """
    interrupted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
