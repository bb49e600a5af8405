"""Runs against a world whose truth is known: regret, infeasible rounds, realised violations.

An environment is any object with the methods of `Environment`. Axis letters: T rounds, K actions, J constraints.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gedppl.errors import ShapeError
from gedppl.problem import Problem
from gedppl.selection import select_policy

if TYPE_CHECKING:
    import arviz

TOLERANCE = 1e-9


class Environment(Protocol):
    """A world to decide in. Every method takes its randomness from `rng`."""

    def context(self, rng: np.random.Generator) -> np.ndarray:
        """The next context (dx,)."""
        ...

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """What `tell` will be told: (y, z)."""
        ...

    def utilities(self, x: np.ndarray) -> np.ndarray:
        """The true utility of every action, (K,)."""
        ...

    def costs(self, x: np.ndarray) -> np.ndarray:
        """The true value of every constraint and action, (J, K)."""
        ...


@dataclass
class Run:
    """What happened, round by round. Grows while it runs; an interrupted run can be continued."""

    problem: Problem
    seed: int
    x: list[np.ndarray] = field(default_factory=list)
    action: list[int] = field(default_factory=list)
    policy: list[np.ndarray] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    z: list[Any] = field(default_factory=list)
    utility: list[float] = field(default_factory=list)  # true utility of the policy
    best: list[float] = field(default_factory=list)  # of the constrained oracle
    cost: list[np.ndarray] = field(default_factory=list)  # true cost of the policy, (J,)
    worst_case: list[np.ndarray] = field(default_factory=list)  # certified, (J,); NaN for agents without certificates
    limit: list[np.ndarray] = field(default_factory=list)
    environment_state: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.action)

    @property
    def regret(self) -> np.ndarray:
        """Cumulative regret against the constrained oracle, (T,): the best policy that keeps every limit each round."""
        return np.cumsum(np.array(self.best) - np.array(self.utility))

    @property
    def infeasible(self) -> np.ndarray:
        """Rounds whose policy truly exceeds a limit, (T,) bool."""
        if not self.problem.constraints:
            return np.zeros(len(self), bool)
        return (np.array(self.cost) > np.array(self.limit) + TOLERANCE).any(axis=1)

    @property
    def safe_share(self) -> float:
        """The share of rounds in which the safe action was played."""
        return float(np.mean(np.array(self.action) == self.problem.safe_action)) if self.action else 0.0

    def summary(self) -> dict[str, float]:
        """A few numbers to print."""
        return {
            "rounds": len(self),
            "regret": float(self.regret[-1]),
            "mean_utility": float(np.mean(self.utility)),
            "oracle_utility": float(np.mean(self.best)),
            "infeasible_rounds": int(self.infeasible.sum()),
            "safe_share": self.safe_share,
        }

    def to_arviz(self) -> arviz.InferenceData:
        """The run as ArviZ InferenceData, with policies, bounds and outcomes in groups of their own."""
        from gedppl.report import to_arviz

        return to_arviz(self)


def constrained_best(problem: Problem, utilities: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, float]:
    """The best policy that keeps every limit when the truth is known, and its utility."""
    policy = select_policy(utilities, costs, problem.limits)
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
    agent
        Anything with ``ask`` and ``tell``.
    seed
        Of the world; the agent has its own.
    progress
        Show a bar with the running utility, regret and share of safe rounds.
    run
        An earlier run to continue. Ctrl-C stops between rounds and returns what there is, to be continued that way.
    """
    rng = np.random.default_rng([seed, 7])
    if run is None:
        run = Run(problem, seed)
    elif run.environment_state is not None:
        rng.bit_generator.state = run.environment_state
    for _ in _rounds(rounds, run, progress):
        x = np.asarray(environment.context(rng), float)
        if x.ndim != 1:
            raise ShapeError(f"environment.context must return one context (dx,), got shape {x.shape}")
        decision = agent.ask(x)
        y, z = environment.outcome(x, decision.action, rng)
        agent.tell(decision.id, y, z)
        _record(run, getattr(agent, "problem", problem), environment, decision, x, y, z)
        run.environment_state = rng.bit_generator.state
    return run


def _record(run: Run, problem: Problem, environment: Environment, decision: Any, x: np.ndarray, y: Any, z: Any) -> None:
    utilities = np.asarray(environment.utilities(x), float)
    costs = np.asarray(environment.costs(x), float).reshape(len(problem.constraints), -1)
    _, best = constrained_best(problem, utilities, costs)
    parts = getattr(getattr(decision, "certificate", None), "constraints", None)
    worst = [np.nan] * len(problem.constraints) if parts is None else [p.worst_case for p in parts]
    run.x.append(x)
    run.action.append(decision.action)
    run.policy.append(decision.policy)
    run.y.append(y)
    run.z.append(z)
    run.utility.append(float(decision.policy @ utilities))
    run.best.append(best)
    run.cost.append(costs @ decision.policy)
    run.worst_case.append(np.array(worst))
    run.limit.append(problem.limits)


def _rounds(rounds: int, run: Run, progress: bool) -> Iterator[int]:
    """Count rounds, with a bar if asked for. Ctrl-C ends the count once the round at hand is complete."""
    bar = None
    if progress:
        from tqdm import tqdm

        bar = tqdm(total=rounds, unit="round")
    try:
        with _interrupts_wait() as interrupted:
            for i in range(rounds):
                yield i
                if bar is not None:
                    bar.update()
                    if i % 10 == 0:
                        bar.set_postfix(utility=f"{np.mean(run.utility):.3f}", safe=f"{run.safe_share:.0%}", refresh=False)
                if interrupted:
                    break
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def _interrupts_wait() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of raising it; a second one raises as usual. Only the main thread receives signals."""
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
