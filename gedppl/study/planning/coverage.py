"""Calibration of a user's own problem by simulation: do its bounds cover, are its limits kept, what
is gained?

A truth is drawn from the prior (or named), the agent runs in that world and collects its own data,
and every bound it decided on is compared with the truth. Over many runs the counts meet a binomial
threshold, as in simulation-based calibration.

Axis letters: R runs, T rounds, J constraints, K actions.
"""

from __future__ import annotations

import builtins
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binom

from gedppl.agent import AlarmWarning, SafeActionWarning
from gedppl.errors import FitWarning, ProblemError, SettingError
from gedppl.numerics.arrays import check_delta, check_whole
from gedppl.problem import Problem
from gedppl.showing import as_html, as_text
from gedppl.study.planning.price import some_contexts
from gedppl.study.planning.running import make_agent, shown
from gedppl.study.planning.truths import declared_world
from gedppl.study.planning.worlds import Scenario, make_world, read_rows
from gedppl.study.simulation import Environment, Run, simulate

SURE = 0.999  # a count above this quantile of its binomial is no accident
ROUNDING = 1e-9  # share of a functional's range by which a truth may lie outside a bound


@dataclass(frozen=True)
class CoverageRun:
    """One simulated run, judged by its truth."""

    index: int
    # (J',) share of rounds in which a truth lay outside its bounds, for some action
    missed: np.ndarray
    first_miss: np.ndarray  # (J',) the first such round, -1 if none
    # (J',) bool: some such round's certificate called the bound a guarantee
    claimed_miss: np.ndarray
    kinds: tuple[str, ...]  # (J',) the weakest thing that a certificate called itself in this run
    infeasible: int  # rounds whose policy truly exceeded a limit
    claimed: int  # of these, rounds whose certificate called itself a guarantee
    alarms: tuple[str, ...]
    gained: float  # utility over always playing safe
    room: float  # the same of the constrained oracle
    safe_share: float
    rounds: int

    @property
    def gain(self) -> float:
        """Share of what the constrained oracle gains; NaN where there is nothing to gain."""
        return self.gained / self.room if self.room > ROUNDING * self.rounds else math.nan


@dataclass(frozen=True, repr=False)
class Coverage:
    """How a problem's bounds and limits did over simulated runs. ``print`` it; `ok`, `rows`,
    `plot`.

    Examples
    --------
    >>> found = ged.check_coverage(problem, np.zeros((1, 1)), runs=2, rounds=5)
    >>> found.constraints, found.ok, found.misses("heads")
    (('heads',), True, 0)
    """

    constraints: tuple[str, ...]  # the learned ones, J'
    delta: float
    wanted: int
    rounds: int
    runs: tuple[CoverageRun, ...]
    interrupted: bool = False
    mark: str = ""  # of seed, contexts, truths, limits and agent: only their own runs join them

    def misses(self, constraint: str, claimed: bool = False) -> int:
        """Runs in which some bound of this constraint missed its truth in some round; `claimed`:
        while called a guarantee.
        """
        j = self._index(constraint)
        return sum(
            bool(run.claimed_miss[j] if claimed else run.first_miss[j] >= 0) for run in self.runs
        )

    def kind(self, constraint: str) -> str:
        """The weakest of what its certificates called themselves: ``"guarantee"``,
        ``"credible"`` or ``"approximation"``.
        """
        return _weakest([run.kinds[self._index(constraint)] for run in self.runs])

    def _index(self, constraint: str) -> int:
        if constraint not in self.constraints:
            raise SettingError(
                f"there is no learned constraint {constraint!r}; there are {list(self.constraints)}"
            )
        return self.constraints.index(constraint)

    @property
    def infeasible(self) -> int:
        """Runs with a round whose policy truly exceeded a limit."""
        return sum(run.infeasible > 0 for run in self.runs)

    @property
    def allowed(self) -> int:
        """Runs that may miss if each does with probability delta: the 99.9% quantile of their
        number.
        """
        return int(binom.ppf(SURE, len(self.runs), self.delta))

    @property
    def ok(self) -> bool:
        """Whether no constraint misses in more runs than allowed, nor are limits exceeded in
        more.
        """
        return (
            max([self.infeasible, *(self.misses(name) for name in self.constraints)])
            <= self.allowed
        )

    @property
    def gain(self) -> float:
        """What all runs gained over always playing safe, as a share of what the oracle gains: a
        ratio of sums, as runs with next to nothing to gain have a share of any size.
        """
        room = sum(run.room for run in self.runs)
        total = sum(run.rounds for run in self.runs)
        return sum(run.gained for run in self.runs) / room if room > ROUNDING * total else math.nan

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each thing that is counted."""
        n = len(self.runs)
        table: list[dict[str, Any]] = [
            {
                "what": f"bounds of {name!r} miss",
                "runs": self.misses(name),
                "of": n,
                "allowed": self.allowed,
                "share of rounds": float(np.mean([run.missed[j] for run in self.runs]))
                if n
                else math.nan,
                "claim": self.kind(name),
                "verdict": self._verdict(self.misses(name), self.misses(name, claimed=True)),
            }
            for j, name in enumerate(self.constraints)
        ]
        weakest = _weakest([self.kind(name) for name in self.constraints])
        total = sum(run.rounds for run in self.runs)
        over = sum(run.infeasible for run in self.runs)
        table.append(
            {
                "what": "a limit is exceeded",
                "runs": self.infeasible,
                "of": n,
                "allowed": self.allowed,
                "share of rounds": over / total if total else math.nan,
                "claim": weakest,
                "verdict": self._verdict(
                    self.infeasible, sum(run.claimed > 0 for run in self.runs)
                ),
            }
        )
        return table

    def _verdict(self, count: int, claimed: int) -> str:
        if claimed > self.allowed:
            return "MORE THAN DELTA under a guarantee"
        return "within delta" if count <= self.allowed else "more than delta, not under a guarantee"

    @property
    def alarmed(self) -> dict[str, int]:
        """Alarm -> runs that raised it."""
        names = sorted({name for run in self.runs for name in run.alarms})
        return {name: sum(name in run.alarms for run in self.runs) for name in names}

    def __str__(self) -> str:
        lines = [self._title()]
        for row in self.rows:
            lines.append(
                f"{row['what']}: {row['runs']} of {row['of']} runs ({row['allowed']} allowed), "
                f"{row['share of rounds']:.2%} of "
                f"rounds; {row['claim']}; {row['verdict']}"
            )
        lines.append(
            f"share of the oracle's gain: {self._gain}; safe action: {self._safe:.0%} of rounds"
        )
        said = ", ".join(f"{name} in {count}" for name, count in self.alarmed.items()) or "none"
        return "\n".join([*lines, f"alarms: {said}"])

    @property
    def _gain(self) -> str:
        return "nothing to gain" if math.isnan(self.gain) else f"{self.gain:.2f}"

    @property
    def _safe(self) -> float:
        return float(np.mean([run.safe_share for run in self.runs])) if self.runs else math.nan

    def _title(self) -> str:
        more = f", INTERRUPTED after {len(self.runs)} of {self.wanted}" if self.interrupted else ""
        return (
            f"Coverage over {len(self.runs)} runs of {self.rounds:,} rounds at delta "
            f"{self.delta:g}{more}"
        )

    def __repr__(self) -> str:
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())

    def _shown(self) -> tuple[str, dict[str, str]]:
        facts = {
            r["what"]: f"{r['runs']} of {r['of']} runs, {r['allowed']} allowed; {r['verdict']}"
            for r in self.rows
        }
        facts["share of the oracle's gain"] = self._gain
        facts["alarms"] = (
            ", ".join(f"{name} in {count}" for name, count in self.alarmed.items()) or "none"
        )
        return self._title(), facts

    def plot(self, ax: Any = None) -> Any:
        """Runs that have missed by each round, a line a constraint, with the number allowed
        dashed. Returns the axes.
        """
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(6, 3.5))[1] if ax is None else ax
        rounds = np.arange(self.rounds)
        for j, name in enumerate(self.constraints):
            first = np.array([run.first_miss[j] for run in self.runs])
            ax.plot(
                rounds + 1, [int(((first >= 0) & (first <= t)).sum()) for t in rounds], label=name
            )
        ax.axhline(self.allowed, color="0.5", linestyle="--", label="allowed")
        ax.set_xlabel("rounds")
        ax.set_ylabel(f"runs that have missed, of {len(self.runs)}")
        ax.legend()
        return ax


@dataclass(frozen=True)
class _CoverageDesign:
    problem: Problem
    contexts: np.ndarray
    rounds: int
    truths: tuple[Scenario, ...]  # none: the prior
    delta: float
    agent: Mapping[str, Any] | Callable[..., Any] | None
    seed: int

    @property
    def mark(self) -> str:
        agent = sorted(self.agent.items()) if isinstance(self.agent, Mapping) else self.agent
        told = (self.seed, self.contexts.shape, self.truths, self.problem.limits.tolist(), agent)
        said = re.sub(r" at 0x[0-9a-f]+", "", repr(told))  # of a function: another in each process
        return hashlib.sha256(self.contexts.tobytes() + said.encode()).hexdigest()


def check_coverage(
    problem: Problem,
    contexts: Any,
    truths: Any = "prior",
    *,
    runs: int = 200,
    rounds: int = 150,
    delta: float = 0.05,
    agent: Mapping[str, Any] | Callable[..., Any] | None = None,
    seed: int = 0,
    progress: bool = False,
    map: Callable[..., Iterable[Any]] = builtins.map,
    more_of: Coverage | None = None,
) -> Coverage:
    """Run the agent in simulated worlds of the problem's own models, and count how often its bounds
    miss and limits break.

    Parameters
    ----------
    problem
        The declaration.
    contexts
        (n, dx): contexts are drawn from these rows; at most 100 of them are used.
    truths
        ``"prior"``: every run draws its own, inside all that was declared. Or a list of truths as
        in `plan` (`Scenario`, or outcome -> params), taken in turn.
    runs, rounds
        R runs of T rounds each.
    delta, seed
        Of the agents; run r has a seed of its own made from `seed`.
    progress
        Show a bar.
    agent
        Options of `GEDUCB`, or a function (problem, delta, seed) -> agent.
    map
        Any parallel map, as in `plan`: executors, joblib, Dask, Ray.
    more_of
        An earlier, interrupted result with the same arguments: its runs are kept, and only the
        others are made.

    Returns
    -------
    A `Coverage`: for every learned constraint the runs in which a bound that was decided on missed
    the truth of some action in some round, against the 99.9% quantile of a binomial with
    probability delta; runs with an infeasible round; alarms; and the share of the constrained
    oracle's gain over always playing safe. ``.ok`` is the verdict.

    Notes
    -----
    At most binom.ppf(0.999, R, delta) of R runs may miss. What is counted holds in the worlds
    simulated: it shows that bounds do what they claim where the model is right. Not guaranteed:
    anything about a model that is wrong, or a rate that few runs cannot tell from delta. A
    guarantee is for all rounds of a run at once; a credible limit promises less, and is counted in
    the same way for comparison. Ctrl-C returns the runs that are complete.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari and Gelman, "Validating Bayesian inference algorithms with
    simulation-based calibration" (2018), whose truths come from the prior as they do here.

    Examples
    --------
    >>> print(ged.check_coverage(problem, np.zeros((1, 1)), runs=2, rounds=5))
    Coverage over 2 runs of 5 rounds at delta 0.05
    bounds of 'heads' miss: 0 of 2 runs (2 allowed), 0.00% of rounds; guarantee; within delta
    a limit is exceeded: 0 of 2 runs (2 allowed), 0.00% of rounds; guarantee; within delta
    share of the oracle's gain: 0.75; safe action: 0% of rounds
    alarms: none
    """
    check_whole(1, runs=runs, rounds=rounds)
    check_whole(0, seed=seed)
    check_delta(delta)
    if not callable(map):
        raise SettingError(f"map must be a function (f, tasks) -> results, got {map!r}")
    learned = tuple(c.name for _, c in problem.learned)
    if not learned:
        raise ProblemError(
            "no constraint of this problem is learned, so there is no bound to cover anything"
        )
    x = some_contexts(read_rows(problem, contexts), seed)
    problem.trace(x)
    design = _CoverageDesign(
        problem, x, int(rounds), _read_truths(truths), float(delta), agent, int(seed)
    )
    done = {run.index: run for run in _kept(more_of, learned, design)}
    tasks = [index for index in range(int(runs)) if index not in done]
    interrupted = False
    try:
        for run in shown(map(partial(_one, design), tasks), len(tasks), progress, "run"):
            done[run.index] = run
    except KeyboardInterrupt:
        interrupted = True
    ordered = tuple(done[index] for index in sorted(done) if index < runs)
    return Coverage(
        learned, float(delta), int(runs), int(rounds), ordered, interrupted, design.mark
    )


def _read_truths(truths: Any) -> tuple[Scenario, ...]:
    if isinstance(truths, str):
        if truths != "prior":
            raise SettingError(f'truths must be "prior" or a list of truths, got {truths!r}')
        return ()
    if not isinstance(truths, Sequence) or not truths:
        raise SettingError(
            f'truths must be "prior" or a list with at least one truth, got {truths!r}'
        )
    return tuple(one if isinstance(one, Scenario) else Scenario(truth=one) for one in truths)


def _kept(
    earlier: Coverage | None, learned: tuple[str, ...], design: _CoverageDesign
) -> tuple[CoverageRun, ...]:
    if earlier is None:
        return ()
    if not isinstance(earlier, Coverage):
        raise SettingError(f"more_of must be what check_coverage returned, got {earlier!r}")
    made = (earlier.constraints, earlier.rounds, earlier.delta, earlier.mark)
    if made != (learned, design.rounds, design.delta, design.mark):
        raise SettingError(
            "more_of is a result of other constraints, limits, rounds, delta, seed, contexts, "
            "truths or options of the agent; repeat the call that was interrupted"
        )
    return earlier.runs


def _one(design: _CoverageDesign, index: int) -> CoverageRun:
    seed = int(np.random.SeedSequence([design.seed, index]).generate_state(1)[0] % 2**31)
    world, problem = _world(design, index, seed), design.problem
    agent, run = make_agent(design.agent, problem, design.delta, seed), Run(problem, seed)
    with warnings.catch_warnings():
        for counted in (SafeActionWarning, AlarmWarning, FitWarning):
            warnings.simplefilter("ignore", counted)
        simulate(problem, world, agent, design.rounds, seed, run=run)
    if run.interrupted:
        raise KeyboardInterrupt
    return judged(problem, run, index, tuple(sorted({alarm.name for alarm in agent.alarms})))


def _world(design: _CoverageDesign, index: int, seed: int) -> Environment:
    if not design.truths:
        return declared_world(design.problem, design.contexts, seed, worth_leaving=0.0)
    scenario = design.truths[index % len(design.truths)]
    return make_world(design.problem, scenario, design.contexts, seed)


def judged(problem: Problem, run: Run, index: int, alarms: tuple[str, ...] = ()) -> CoverageRun:
    """A run against its truth: rounds whose bounds missed, policies above a limit, and what was
    gained.
    """
    learned = [j for j, c in problem.learned]
    # the safe action's value is declared, not bounded
    others = [k for k in range(problem.n_actions) if k != problem.safe_action]
    # (T, J')
    outside = np.stack([_outside(problem, run, j)[:, others].any(axis=1) for j in learned], axis=1)
    first = np.where(outside.any(axis=0), outside.argmax(axis=0), -1)
    parts = [[_part(c, j) for c in run.certificates] for j in learned]
    kinds = [[None if part is None else _kind(part) for part in one] for one in parts]
    claims = np.array([[kind == "guarantee" for kind in one] for one in kinds]).T  # (T, J')
    safe = np.array([r.utilities[problem.safe_action] for r in run.rounds])
    room = float((run.best - safe).sum())
    return CoverageRun(
        index=index,
        missed=outside.mean(axis=0),
        first_miss=first,
        claimed_miss=(outside & claims).any(axis=0),
        kinds=tuple(_weakest([kind for kind in one if kind is not None]) for one in kinds),
        infeasible=int(run.infeasible.sum()),
        claimed=int((run.infeasible & claims.all(axis=1)).sum()),
        alarms=alarms,
        gained=float((run.utility - safe).sum()),
        room=room,
        safe_share=float((run.action == problem.safe_action).mean()),
        rounds=len(run),
    )


def _outside(problem: Problem, run: Run, j: int) -> np.ndarray:
    """(T, K): the truth lies outside the bounds that were decided on. Rounds without bounds (a
    stopped run) miss nothing.
    """
    functional = problem.constraints[j].functional  # type: ignore[union-attr]
    truth = np.stack([r.costs[j] for r in run.rounds])
    low = np.stack([r.cost_lower[j] for r in run.rounds])
    high = np.stack([r.cost_upper[j] for r in run.rounds])
    spread = functional.high - functional.low
    slack = ROUNDING * (spread if np.isfinite(spread) else np.maximum(np.abs(truth), 1e-300))
    return (truth > high + slack) | (truth < low - slack)


def _part(certificate: Mapping[str, Any] | None, j: int) -> Mapping[str, Any] | None:
    return None if certificate is None else certificate["constraints"][j]


def _kind(part: Mapping[str, Any]) -> str:
    return str(part.get("kind") or ("guarantee" if part["guaranteed"] else "approximation"))


def _weakest(kinds: Sequence[str]) -> str:
    order = ("approximation", "credible", "guarantee")
    return min(kinds, key=order.index, default="guarantee")
