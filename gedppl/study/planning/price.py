"""The price of a limit, before round 1: how much may be tried at first, how long that lasts, and
what would shorten it.

Before any data an action may cost whatever its declared range allows, so a policy that keeps the
limit can leave the safe action with probability (limit - safe) / (high - safe) at most. `price`
says how large that is, simulates how many rounds pass until half of the decisions leave the safe
action, and tries what else might truthfully be declared.

Axis letters: n contexts, J constraints, K actions.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB, FallbackWarning, SafeActionWarning
from gedppl.errors import ProblemError
from gedppl.ged_ucb.costs import room_for_mixing
from gedppl.numerics.arrays import check_whole
from gedppl.problem import Problem
from gedppl.rows import PIECES, distinct
from gedppl.showing import Facts, Shown
from gedppl.study.planning.declarations import Declaration, declarations
from gedppl.study.planning.truths import declared_world
from gedppl.study.planning.worlds import ModelWorld, read_rows

WINDOW, HALF = 50, 0.5  # the wait ends when this share of the last decisions left the safe action
MOST_CONTEXTS = 100  # of those given, on which worlds are built
WORTH_IT = 1.05  # times the first mix: less is no advice
SLOW = 5.0  # seconds after which a bar is shown
NO_OPTIONS: Mapping[str, Any] = {}

Waits = tuple[int | None, ...]  # one a run; None where the rounds did not suffice


@dataclass(frozen=True)
class SimulatedWait:
    """One run until half of the last 50 decisions left the safe action."""

    wait: int | None  # None where the rounds did not suffice
    asked: int = 0  # decisions
    fallbacks: int = 0  # of these, that no policy could be computed for
    reason: str = ""  # of the first such


@dataclass(frozen=True)
class FirstMix:
    """The largest probability of leaving the safe action in round 1 that one constraint allows,
    over contexts.
    """

    constraint: str
    smallest: float
    mean: float
    largest: float


@dataclass(frozen=True)
class Helped:
    """What one more declaration changes: its first mixes and waits, in the same worlds."""

    kind: str
    declaration: str
    mixes: tuple[FirstMix, ...]
    waits: Waits


@dataclass(frozen=True, repr=False)
class Price(Shown):
    """What limits cost before the data speak. ``print`` it. Made by `price`.

    Examples
    --------
    >>> found = ged.price(problem, np.zeros((1, 1)), rounds=50, runs=1)
    >>> found.rounds, len(found.mixes)
    (50, 1)
    """

    mixes: tuple[FirstMix, ...]
    waits: Waits
    rounds: int
    tried: tuple[Helped, ...]

    @property
    def wait(self) -> float | None:
        """Rounds until half of the last 50 decisions leave the safe action, the median over
        runs; None if not within `rounds`.
        """
        return _median(self.waits)

    @property
    def best(self) -> Helped | None:
        """The declaration with the shortest mean wait, or, where no wait is shorter, a first mix
        larger by more than a twentieth; None if none helps.
        """
        wait, mix = _merit(self, self.rounds)
        better = [one for one in self.tried if _merit(one, self.rounds) > (wait, WORTH_IT * mix)]
        return max(better, key=lambda one: _merit(one, self.rounds), default=None)

    @property
    def advice(self) -> str:
        """One sentence."""
        best = self.best
        if best is None:
            return (
                "none of the declarations tried shortens the wait; logged data (agent.observe) "
                "would"
            )
        shorter = sum(
            _capped(new, self.rounds) < _capped(old, self.rounds)
            for new, old in zip(best.waits, self.waits)
        )
        return (
            f"{best.declaration}, if that is true (sooner in {shorter} of {len(self.waits)} runs)"
        )

    def _shown(self) -> Facts:
        facts = {f"first mix under {m.constraint!r}": _mix_words(m) for m in self.mixes}
        facts["until half leave the safe action"] = (
            f"{wait_words(self.waits, self.rounds)} in {len(self.waits)} simulated runs"
        )
        facts["helps most"] = self.advice
        ranked = sorted(self.tried, key=lambda one: _merit(one, self.rounds), reverse=True)
        facts |= {
            f"if {one.declaration}": f"first mix {_mean_mix(one.mixes):.2g}, "
            f"{wait_words(one.waits, self.rounds)}"
            for one in ranked
        }
        return "The price of the limits, before round 1", facts


def price(
    problem: Problem, contexts: Any, *, rounds: int = 300, runs: int = 4, seed: int = 0
) -> Price:
    """What the limits cost at first, how long, and which declaration would help most.

    Parameters
    ----------
    problem
        The declaration.
    contexts
        (n, dx), or a data frame where the problem declares columns: contexts are drawn from these
        rows. Worlds are built on at most 100 of them.
    rounds
        How long to wait at most in a run, at least 50. Of up to four actions, decisions are made in
        cohorts of 8 // K, so an outcome counts a round or so late.
    runs
        Simulated runs. Each has a truth of its own, from the prior inside all that was declared, in
        which it pays to leave the safe action; the same truth meets every declaration.
    seed
        Of the truths and the runs.

    Returns
    -------
    A `Price`: `.mixes`, the largest first mix (limit - safe) / (high - safe) under each learned
    constraint, with `high` the worst case before any data; `.wait` and `.waits`; `.tried`, `.best`
    and `.advice`, of a smaller range, parameter bounds and a prior, each halfway to the truth, and
    an exact safe value. No other limit is ever tried: the limit is not ours to question.

    Notes
    -----
    The first mix is exact. Not guaranteed: waits. They hold in the worlds simulated, and parameters
    without a prior are drawn from a working one (standard normal around their initial value).

    Examples
    --------
    >>> found = ged.price(problem, np.zeros((1, 1)), rounds=50, runs=1)
    >>> round(found.mixes[0].largest, 6)
    0.75
    """
    x = read_rows(problem, contexts)
    check_whole(WINDOW, rounds=rounds)
    check_whole(1, runs=runs)
    check_whole(0, seed=seed)
    mixes = _mixes(problem, x)
    rows, seeds = some_contexts(x, seed), run_seeds(seed, runs)
    problem.trace(rows)
    worlds = [declared_world(problem, rows, s) for s in seeds]
    told = [_as_it_is(problem), *declarations(problem, worlds)]
    waits = [
        tuple(run.wait for run in runs_made)
        for runs_made in _all_waits(told, worlds, seeds, rounds)
    ]
    tried = tuple(
        Helped(one.kind, one.words, _mixes(one.problem(worlds[0]), x), waited)
        for one, waited in zip(told[1:], waits[1:])
    )
    return Price(mixes, waits[0], int(rounds), tried)


def simulated_waits(
    problem: Problem,
    contexts: Any,
    *,
    rounds: int,
    runs: int,
    seed: int,
    agent: Mapping[str, Any],
    log: Sequence[Any] | None = None,
    worlds: list[ModelWorld] | None = None,
) -> list[SimulatedWait]:
    """Runs of the problem as it is declared, after a log if there is one: one in each world, by
    default drawn from the prior inside the declaration.
    """
    rows, seeds = some_contexts(read_rows(problem, contexts), seed), run_seeds(seed, runs)
    made = worlds or [declared_world(problem, rows, s) for s in seeds]
    return _all_waits([_as_it_is(problem)], made, seeds, rounds, agent, log or ())[0]


def some_contexts(x: np.ndarray, seed: int, most: int = MOST_CONTEXTS) -> np.ndarray:
    """At most so many of the rows, in their order."""
    return (
        x
        if len(x) <= most
        else x[np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))]
    )


def run_seeds(seed: int, runs: int) -> list[int]:
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(runs) % 2**31]


def _as_it_is(problem: Problem) -> Declaration:
    return Declaration("", "", lambda _: problem)


def first_mix(problem: Problem, contexts: Any, agent: GEDUCB | None = None) -> np.ndarray:
    """(n, J'): the largest probability of leaving the safe action before any data, at each context,
    under each learned constraint alone: (limit - safe) / (U - safe) for the least worst case U of
    another action (0 if the limit is on every draw), and 1 where U is under the limit. By the
    bounds of `agent` as it is, if one is given; where they are posterior quantiles, the probability
    of one other action alone.
    """
    learned = [j for j, c in problem.learned]
    if not learned:
        raise ProblemError(
            "no constraint of this problem is learned, so nothing is held back for want of data: "
            "there is no price"
        )
    if problem.n_actions < 2:
        raise ProblemError(
            "this problem has no action but the safe one, so there is nothing to leave it for"
        )
    x, which = distinct(read_rows(problem, contexts))
    judge = agent or GEDUCB(problem, guard=None)
    upper = judge.cost_bounds(x)[1][:, learned]
    limits, safe = problem.limits[learned], problem.safe_values(x)[:, learned]
    least = np.delete(upper, int(problem.safe_action or 0), axis=2).min(axis=2)  # (n, J')
    fits = least <= limits
    mixed = room_for_mixing(limits[None], safe) / np.where(fits, 1.0, least - safe)
    # on every draw: certified, or not at all
    most = np.where(fits, 1.0, np.where(problem.every_draw[learned], 0.0, mixed))
    found: np.ndarray = most[which]
    return found


def first_mix_words(problem: Problem, contexts: np.ndarray) -> str:
    """One honest line: no policy of round 1 leaves the safe action more often, whichever of the
    constraints is tightest.
    """
    most = first_mix(problem, contexts).min(axis=1)
    shown = (
        f"{most.max():.2g}"
        if np.ptp(most) <= 1e-9
        else f"{most.min():.2g} to {most.max():.2g} (by context)"
    )
    return (
        f"in the first round at most {shown} of the decisions can leave the safe action: (limit - "
        "safe) / (worst case before any "
        "data - safe); ged.price says how long that lasts and what would help"
    )


def _mixes(problem: Problem, x: np.ndarray) -> tuple[FirstMix, ...]:
    names = [c.name for _, c in problem.learned]
    columns = first_mix(problem, x).T
    return tuple(
        FirstMix(name, float(m.min()), float(m.mean()), float(m.max()))
        for name, m in zip(names, columns)
    )


def _all_waits(
    told: list[Declaration],
    worlds: list[ModelWorld],
    seeds: list[int],
    rounds: int,
    agent: Mapping[str, Any] = NO_OPTIONS,
    log: Sequence[Any] = (),
) -> list[list[SimulatedWait]]:
    """The wait of every declaration in every world; a bar if that takes long."""
    from tqdm import tqdm

    total = len(told) * len(worlds) * rounds
    with tqdm(total=total, unit="round", delay=SLOW, disable=None, leave=False) as bar:

        def one_run(declared: Declaration, world: ModelWorld, seed: int) -> SimulatedWait:
            before = bar.n
            found = _wait(declared.problem(world), world, rounds, seed, agent, log, bar.update)
            bar.update(before + rounds - bar.n)  # a wait that ended leaves nothing to do
            return found

        return [
            [one_run(declared, world, seed) for world, seed in zip(worlds, seeds)]
            for declared in told
        ]


def _wait(
    problem: Problem,
    world: ModelWorld,
    rounds: int,
    seed: int,
    options: Mapping[str, Any],
    log: Sequence[Any],
    asked: Callable[[int], object],
) -> SimulatedWait:
    """Rounds until half of the last 50 decisions left the safe action; `asked` hears of every
    cohort.
    """
    agent = GEDUCB(problem, **({"guard": None} | dict(options) | {"seed": seed}))
    rng = np.random.default_rng(seed)
    left: list[bool] = []
    reasons: list[str] = []
    # what fills the smallest piece of rows, to which one decision alone is padded: more cost more
    cohort = max(1, PIECES[0] // problem.n_actions)
    with warnings.catch_warnings():
        # that it plays safe, and why, is what is counted here
        for counted in (SafeActionWarning, FallbackWarning):
            warnings.simplefilter("ignore", counted)
        if log:
            agent.observe(*log)
        while len(left) < rounds:
            x = np.stack([world.context(rng) for _ in range(min(cohort, rounds - len(left)))])
            decisions = agent.ask(x)
            assert isinstance(decisions, list)
            for decision in decisions:
                left.append(decision.action != problem.safe_action)
                if decision.certificate.fallback:
                    reasons.append(decision.certificate.fallback)
                if len(left) >= WINDOW and sum(left[-WINDOW:]) >= HALF * WINDOW:
                    return _waited(len(left), len(left), reasons)
            asked(len(decisions))
            for decision in decisions:
                agent.tell(decision.id, *world.outcome(decision.x, decision.action, rng))
    return _waited(None, len(left), reasons)


def _waited(wait: int | None, asked: int, reasons: list[str]) -> SimulatedWait:
    return SimulatedWait(wait, asked, len(reasons), reasons[0] if reasons else "")


def _capped(wait: int | None, rounds: int) -> int:
    """A wait that did not end counts as one round more than there were."""
    return rounds + 1 if wait is None else wait


def _median(waits: Waits) -> float | None:
    ends = sorted(np.inf if w is None else float(w) for w in waits)
    middle = statistics.median(ends)
    return float(middle) if np.isfinite(middle) else None


def _mean_mix(mixes: tuple[FirstMix, ...]) -> float:
    """Of the tightest constraint, on average over contexts."""
    return min(m.mean for m in mixes)


def _merit(one: Price | Helped, rounds: int) -> tuple[float, float]:
    """Shorter waits first, then larger first mixes, beyond rounding."""
    return -float(np.mean([_capped(w, rounds) for w in one.waits])), round(_mean_mix(one.mixes), 9)


def _mix_words(m: FirstMix) -> str:
    spread = (
        ""
        if m.largest - m.smallest <= 1e-9
        else f" ({m.smallest:.2g} to {m.largest:.2g} over contexts)"
    )
    return f"{m.mean:.2g} of the decisions at most{spread}"


def wait_words(waits: Waits, rounds: int) -> str:
    ended = [w for w in waits if w is not None]
    if not ended:
        return f"not within {rounds} rounds"
    middle = _median(waits)
    last = f"{max(ended)}" if len(ended) == len(waits) else f">{rounds}"
    middle_words = f">{rounds}" if middle is None else f"{middle:.0f}"
    return f"{middle_words} rounds" + (
        f" ({min(ended)} to {last})" if f"{min(ended)}" != last else ""
    )
