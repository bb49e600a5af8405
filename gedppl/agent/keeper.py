"""An agent's memory, kept: every step is durable before it counts, and a resumed agent has the same
memory again.

A step is computed in full, then written, and only then takes the place of the memory before it. An
error before the write leaves everything as it was. An interrupt after the write leaves a step that
is `_pending`: the next call looks into the journal and finishes it. Without a journal the steps are
remembered in a list, for `amend`.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl import ged_ucb
from gedppl.agent import memory as steps
from gedppl.agent import recorder
from gedppl.agent.memory import History, Ledger, Memory, restored, stored
from gedppl.certificate import Explanation
from gedppl.errors import (
    JournalCorruptError,
    JournalError,
    JournalExistsError,
    JournalFullError,
    LearningError,
    ProblemError,
    RecordError,
    SettingError,
)
from gedppl.ged_ucb import Entry, Outcomes, rows_by_stream
from gedppl.ged_ucb.costs import holds_parameters
from gedppl.ged_ucb.settings import Settings
from gedppl.guard import Alarm
from gedppl.journal import Journal
from gedppl.journal.format import Record
from gedppl.learning.posterior import Posterior, posterior
from gedppl.learning.seen_class import served
from gedppl.learning.storing import NotStorableError
from gedppl.problem import Problem
from gedppl.rows import Rows
from gedppl.showing import Facts, amounts

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass, MemberList

SAFE_WINDOW, SAFE_SHARE = 200, 0.8
# decisions between two snapshots: this many, or this share of all so far
SNAPSHOT_EVERY, SNAPSHOT_SHARE = 1000, 0.01


@dataclass(frozen=True)
class Resumed:
    """How an agent came back from its journal; ``print`` it."""

    decisions: int
    replayed: int  # records replayed, after the snapshot if there was one
    snapshot: int | None  # the record after which that snapshot was taken
    # versions that are not those of the journal's start: (then, now)
    differ: dict[str, tuple[str, str]]

    @property
    def exact(self) -> bool:
        """Whether the next policy is the same bit for bit."""
        return not self.differ

    def __str__(self) -> str:
        how = (
            "from the start"
            if self.snapshot is None
            else f"after the snapshot at record {self.snapshot}"
        )
        said = f"{self.decisions} decisions, {self.replayed} records replayed {how}"
        if self.exact:
            return (
                f"{said}; the versions are the same: the next policy is what it would have "
                "been, bit for bit"
            )
        changes = ", ".join(
            f"{path.removeprefix('versions.')} was {old}, is {new}"
            for path, (old, new) in self.differ.items()
        )
        return (
            f"{said}; other versions ({changes}): policies agree within about 1e-9, not bit for bit"
        )


@dataclass(frozen=True)
class _Pending:
    """A step on its way: what is to be written, and what is so once it is."""

    records: list[recorder.Step]
    first: int  # where in the journal, or in the history, the records belong
    memory: Memory
    asked: dict[int, tuple[np.ndarray, int]]
    told: dict[int, Outcomes]
    ledger: Ledger | None  # None: the ledger there is, added to


@dataclass
class Keeper:
    """The memory in force, the ledger, and the journal or the history they rest on. Made by
    `begin` or `reopen`.
    """

    first: Memory  # before anything happened
    journal: Journal | None = None
    memory: Memory = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    history: History = field(default_factory=History)  # without a journal
    _absorbed: Memory | None = None
    _pending: _Pending | None = None
    _saved_at: int = 0  # decisions in the newest snapshot
    _can_save: bool = True

    def __post_init__(self) -> None:
        self.memory = self.first

    @classmethod
    def begin(
        cls,
        problem: Problem,
        chosen: Settings,
        guard: str | None,
        path: str | os.PathLike[str] | None,
    ) -> Keeper:
        """A new run; with a path, a new journal."""
        _require_problem(problem)
        chosen.check(problem.streams, problem.n_actions)
        journal = None
        if path is not None:
            try:
                journal = Journal.create(path, recorder.protocol(problem, chosen, guard))
            except JournalExistsError as error:
                if os.path.isdir(os.path.abspath(path)):
                    raise
                raise JournalExistsError(
                    f"{error}. To go on with it, use ged.resume({os.fspath(path)!r}, problem)"
                ) from error
        return cls(Memory(problem, chosen, guard), journal)

    @classmethod
    def reopen(
        cls, path: str | os.PathLike[str], problem: Problem, oracle: Any, confidence: Any
    ) -> tuple[Keeper, Resumed]:
        """The run that a journal holds."""
        _require_problem(problem)
        journal = Journal.open(path)
        try:
            chosen, guard = recorder.read_protocol(journal.protocol, oracle, confidence)
            chosen.check(problem.streams, problem.n_actions)
            differ = journal.require_protocol(recorder.protocol(problem, chosen, guard))
            keeper = cls(Memory(problem, chosen, guard), journal)
            replayed, snapshot = keeper._catch_up()
            resumed = Resumed(keeper.rounds, replayed, snapshot, differ)
            if differ:
                keeper.commit([("change", recorder.versions_payload(differ))], keeper.memory)
            return keeper, resumed
        except BaseException:
            journal.close()
            raise

    @property
    def rounds(self) -> int:
        return 0 if self.memory.state is None else self.memory.state.t

    # replaying ------------------------------------------------------------------------------------

    def records(self, kind: str | None = None) -> Iterable[Record]:
        """Everything that happened."""
        if self.journal is not None:
            return self.journal.records(kind)
        steps = recorder.remembered(self.history.steps(self.ledger))
        return (record for record in steps if kind is None or record.kind == kind)

    def amended(self, key: int, news: Outcomes) -> tuple[Memory, Ledger]:
        """The memory and ledger as they would be, had these outcomes been told in place of the
        ones that were.
        """
        amendments = recorder.amendments(self.records("amend"))
        amendments[key] = amendments.get(key, {}) | news
        ledger = Ledger()
        return recorder.replayed(self.first, ledger, self.records(), amendments), ledger

    def _catch_up(self) -> tuple[int, int | None]:
        """Bring the memory to the journal's end: records replayed, and from which record's
        snapshot, if there was one.
        """
        assert self.journal is not None
        count = 0

        def counted(records: Iterable[Record]) -> Iterator[Record]:
            nonlocal count
            for record in records:
                if record.kind not in ("protocol", "snapshot"):
                    count += 1
                    yield record

        snapshot = self.journal.latest_snapshot()
        if snapshot is not None:
            after = snapshot.sequence + 1
            try:
                # else what it holds was amended
                if not any(True for _ in self.journal.records("amend", start=after)):
                    self.memory, self.ledger = restored(self.first, snapshot.arrays, snapshot.meta)
                    self._saved_at = self.rounds
                    self.memory = recorder.replayed(
                        self.memory, self.ledger, counted(self.journal.records(start=after))
                    )
                    return count, snapshot.sequence
            except JournalCorruptError as error:
                warnings.warn(
                    f"{error}; replaying all of {self.journal.path} instead",
                    RuntimeWarning,
                    stacklevel=5,
                )
        self.ledger, count = Ledger(), 0
        amendments = recorder.amendments(self.records("amend"))
        self.memory = recorder.replayed(
            self.first, self.ledger, counted(self.records()), amendments
        )
        return count, None

    # changing -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish, or forget, a step that was interrupted."""
        if self.journal is not None:
            self.journal.settle()
        if self._pending is not None:
            if self.journal is None or len(self.journal) == self._pending.first + len(
                self._pending.records
            ):
                self._finish(self._pending)
            self._pending = None

    def learned(self, context: np.ndarray | None) -> tuple[Memory, str | None]:
        """The memory with everything told so far learned; or, if that fails, as it is, and why.

        Kept until something else is told, so that it is computed once. Before the first decision
        `context` (dx,) stands in for it, and nothing is kept.
        """
        if self.memory.state is None:
            assert context is not None
            return steps.started(self.memory, context), None
        if self._absorbed is None:
            try:
                self._absorbed = steps.absorbed(self.memory)
            except LearningError as error:
                return self.memory, str(error)
            except Exception as error:
                return (
                    self.memory,
                    f"the outcomes told could not be learned: {type(error).__name__}: {error}",
                )
        return self._absorbed, None

    def commit(
        self,
        records: list[recorder.Step],
        after: Memory,
        *,
        asked: dict[int, tuple[np.ndarray, int]] | None = None,
        told: dict[int, Outcomes] | None = None,
        ledger: Ledger | None = None,
    ) -> list[Alarm]:
        """Write a step down, then let it count. The alarms that it set off are written with it,
        and returned.
        """
        alarms = [a for a in after.alarms[len(self.memory.alarms) :] if ledger is None]
        said: list[recorder.Step] = [("alarm", recorder.alarm_payload(a)) for a in alarms]
        # Before the step, so that one it acknowledges is not raised again by a replay; but before
        # the first thing that ever happened, a decision or logged rows, there are no monitors.
        last = self.memory.state is None or any(kind == "observe" for kind, _ in records)
        records = [*records, *said] if last else [*said, *records]
        first = len(self.history) if self.journal is None else len(self.journal)
        self._pending = _Pending(records, first, after, asked or {}, told or {}, ledger)
        if self.journal is not None:
            try:
                self.journal.append_many(records)
            except JournalError as error:
                self._pending = None  # nothing was acknowledged
                if type(error) is JournalError:
                    raise JournalError(
                        f"{error}; from an agent: close() it, then ged.resume"
                    ) from error
                raise
        self.settle()
        return alarms

    def _finish(self, step: _Pending) -> None:
        # every line may be repeated: an interrupt may come between any two
        if step.ledger is not None:
            self.ledger = step.ledger
            self._saved_at = -SNAPSHOT_EVERY  # after an amendment older snapshots are of no use
        self.ledger.write(step.asked, step.told)
        if self.journal is None:
            self.history.write(step.first, step.records)
        self._absorbed = None
        self.memory = step.memory

    # keeping --------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """A snapshot now and then. That it fails is no reason to take an acknowledged decision
        from the caller.
        """
        if self.rounds - self._saved_at >= max(SNAPSHOT_EVERY, SNAPSHOT_SHARE * self.rounds):
            try:
                self.save()
            except JournalError as error:
                warnings.warn(
                    f"no snapshot could be stored, nothing else is lost: {error}",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def save(self) -> bool:
        """Store a snapshot; whether there is one of this state now."""
        if self.journal is None or not self._can_save:
            return False
        try:
            self.journal.save_snapshot(len(self.journal) - 1, *stored(self.memory, self.ledger))
        except (NotStorableError, RecordError):  # resuming will replay: slower, and no less right
            self._can_save = False
            return False
        except JournalFullError as error:
            warnings.warn(
                f"no snapshot could be stored, nothing else is lost: {error}",
                RuntimeWarning,
                stacklevel=4,
            )
            return False
        self._saved_at = self.rounds
        return True

    def close(self) -> None:
        if self.journal is not None:
            try:
                if self.rounds != self._saved_at:
                    self.save()
            except JournalError:
                pass  # it could not be written to any more; what was acknowledged is in it
            finally:
                self.journal.close()


def _require_problem(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(
            f"an agent decides a ged.Problem, got a {type(problem).__name__}: {problem!r}"
        )


# ==================================================================================================
# Every row that a stream was told, from the ledger and from logged rows: what a posterior is
# computed from.
# ==================================================================================================


def rows_of(keeper: Keeper, stream: str) -> Rows | None:
    """The rows learned of a stream, logged ones first; None if there are none. Outcomes that are
    too young wait on.
    """
    problem, ledger = keeper.memory.problem, keeper.ledger
    payloads = [record.payload for record in keeper.records("observe")]
    logged = recorder.logged_entries(problem, payloads, None) if payloads else []
    old = keeper.rounds - problem.outcome_age
    told = [
        Entry(len(logged) + key, *ledger.asked[key], ledger.told[key], first=True)
        for key in sorted(ledger.told)
        if key <= old
    ]
    found = rows_by_stream(problem, [*logged, *told]).get(stream)
    return None if found is None else Rows.of(*found)


# ==================================================================================================
# What a run shows of itself, and its models' posteriors: nothing here changes anything.
# ==================================================================================================


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


@dataclass
class LatelyPlayed:
    """The latest actions, and what to say where the safe one takes nearly all of them."""

    actions: deque[int]
    said_at: int = -SAFE_WINDOW  # the round in which it was said last

    @classmethod
    def of(cls, keeper: Keeper) -> LatelyPlayed:
        latest = range(max(0, keeper.rounds - SAFE_WINDOW), keeper.rounds)
        return cls(deque((keeper.ledger.asked[i][1] for i in latest), maxlen=SAFE_WINDOW))

    def stuck(self, keeper: Keeper, x: np.ndarray, latest: Explanation) -> str | None:
        """How often the safe action was played, and what keeps the others from it at x (dx,)."""
        safe, window = keeper.memory.problem.safe_action, self.actions.maxlen
        if safe is None or len(self.actions) != window or keeper.rounds - self.said_at < window:
            return None
        share = self.actions.count(safe) / window
        if share <= SAFE_SHARE or latest.certificate.fallback:
            return None
        self.said_at = keeper.rounds
        try:
            state = keeper.learned(x)[0].state
            assert state is not None
            held = what_holds_back(state, x, latest, safe)
        except Exception as error:
            # the decision is made and recorded: no explanation may take it from the caller
            what = f"{type(error).__name__}: {error}"
            held = f"What holds the others back could not be computed ({what})."
        return f"the safe action took {share:.0%} of the last {window} rounds. {held}"


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
    # in the coordinates in which it is learned: those of what the data see
    cls = c.model.visit(lambda members: None, lambda cls: served(cls) if cls.sites else None)
    if cls is None:  # without named parameters
        return ""
    theta = getattr(state.learners[c.stream], "theta", None)  # draws have none
    if theta is None or len(theta) != cls.dim:  # nor has a scale's learner the class's own
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
