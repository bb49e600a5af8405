"""GEDUCB: ask, tell, and everything with a side effect: ids, randomness, the lock, the journal.

The algorithm itself is `ged_ucb`, which is pure; `memory` holds its state and the steps that change
it, `keeper` makes them durable. A step takes the place of the memory before it only once it was
computed in full and written down: an error or an interrupt leaves the old memory or the new one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gedppl import ged_ucb
from gedppl.agent import deciding, keeper, recorder, telling
from gedppl.agent import memory as steps
from gedppl.agent.deciding import (
    AlarmWarning,
    Choice,
    Decision,
    FallbackWarning,
    Recommendation,
    SafeActionWarning,
)
from gedppl.agent.keeper import Keeper, LatelyPlayed, Resumed
from gedppl.agent.memory import AskedDecisions, Memory, ToldOutcomes
from gedppl.certificate import Explanation
from gedppl.errors import (
    DataError,
    DeclarationError,
    InputError,
    SettingError,
    ShapeError,
    UnknownDecisionError,
    renamed,
)
from gedppl.ged_ucb.settings import settings
from gedppl.guard import Alarm
from gedppl.journal import Journal
from gedppl.learning import ConfidenceSet
from gedppl.learning.posterior import Posterior
from gedppl.numerics.arrays import is_one_of
from gedppl.problem import UTILITY, Problem
from gedppl.showing import Facts, Shown

__all__ = [
    "GEDUCB",
    "AlarmWarning",
    "Decision",
    "FallbackWarning",
    "SafeActionWarning",
]

KEPT_EXPLANATIONS = 1000  # full terms are kept for the latest decisions only


class GEDUCB(Shown):
    """Decide, again and again, within limits.

    Parameters
    ----------
    problem
        The declaration.
    delta
        The limits hold in all rounds at once with probability at least 1 - delta, if the truth lies
        in the model class and the bounds are exact. Every certificate says whether it is so. (In
        ``"theory"`` mode half of delta is for the limits and half for the regret.)
    mode
        ``"default"``, ``"theory"`` or ``"paper"``.
    warmup
        ``None`` (the mode's choice), ``"none"``, ``"paper"`` (each action once, whatever the
        limits) or ``"safe-m"``.
    bonus_scale, width_scale
        By sets: rho and w below; by counterfactuals they multiply the paper's beta_t and alpha_r. 1
        in ``"theory"`` and ``"paper"``, by default 0.7 and 0.1 (counterfactuals: 0.2 and 0.1),
        chosen once by `benchmarks/weights.py`. They never touch feasibility.
    oracle, confidence
        How to fit, and which parameters count as plausible: one for all outcomes, or a mapping by
        stream (``"utility"`` or a constraint's name). Chosen by the model where not given.
    seed
        The one source of randomness; the same seed, data and versions give the same run.
    journal
        A path, where a new journal begins: every decision and outcome is durable before the call
        returns. An agent whose process ended goes on with `resume`.
    guard
        ``"fallback"``: once a limit is found exceeded, or a model refuted, the safe action alone is
        played, until `acknowledge`; once a declaration is refuted (a range, a safe value, bounds),
        `ask` raises `DeclarationError` until then; other alarms warn. ``"warn"``: all alarms are
        said and recorded. None: nothing is watched. The chance that a run is stopped by mistake is
        at most another delta: `gedppl.agent.monitoring` says exactly when.
    growth, exact_rounds
        Refit once the told rounds have grown by this factor; counterfactuals: round by round up to
        this round, then in blocks.
    exploration
        ``"sets"`` (the default mode's), ``"counterfactual"`` (the paper's) or ``"thompson"`` (see
        `ThompsonSampling`).

    Notes
    -----
    In every round the policy on the K actions is

        pi = argmax sum_a pi_a [u + rho (u+ - u) + w alpha (U - L)](x, a)
             subject to  sum_a pi_a U_j(x, a) <= at_most_j  for every constraint j,

    u the estimated utility, u+ its largest plausible value, [L, U] the plausible costs, alpha as in
    `gedppl.ged_ucb`. Not guaranteed: limits, where the truth is outside the class, which the guard
    watches for; with the default weights, a bound on the regret: that is ``mode="theory"``.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making", Algorithm 1.

    Examples
    --------
    Two coins; the second shows heads in 60% or 30% of throws, and at most half of them are
    allowed. It is mixed with the safe one, so that even the worse case keeps the limit:

    >>> agent = ged.GEDUCB(problem, seed=1)
    >>> decision = agent.ask([0.5])
    >>> decision.policy, decision.certificate.guaranteed
    (array([0.25, 0.75]), True)
    >>> agent.tell(decision, 0)
    """

    @renamed(radius="confidence")
    def __init__(
        self,
        problem: Problem,
        *,
        delta: float = 0.05,
        mode: str = "default",
        warmup: str | None = None,
        bonus_scale: float | None = None,
        width_scale: float | None = None,
        oracle: Any = None,
        confidence: Any = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        guard: str | None = "fallback",
        growth: float | None = None,
        exact_rounds: float | None = None,
        exploration: str | None = None,
    ) -> None:
        chosen = settings(
            mode,
            delta=delta,
            warmup=warmup,
            bonus_scale=bonus_scale,
            width_scale=width_scale,
            oracle=oracle,
            confidence=confidence,
            seed=seed,
            growth=growth,
            exact_rounds=exact_rounds,
            exploration=exploration,
        )
        if not is_one_of(guard, recorder.GUARDS):
            raise SettingError(f"guard must be one of {recorder.GUARDS}, got {guard!r}")
        self._begin(Keeper.begin(problem, chosen, guard, journal))

    def _begin(self, keeper: Keeper, resumed: Resumed | None = None) -> None:
        self._keeper = keeper
        self.settings = keeper.first.settings
        self.resumed = resumed
        self._lock = threading.RLock()
        self._explanations: OrderedDict[int, Explanation] = OrderedDict()
        self._lately = LatelyPlayed.of(keeper)
        self._versions = None if keeper.journal is None else recorder.versions_hash()

    # what is known --------------------------------------------------------------------------------

    def _shown(self) -> Facts:
        """How far it is, what is limited, what was played, how each outcome is bounded, and what
        is alarming.
        """
        with self._step():
            alarms = [] if self._state is None else self.alarms
            return keeper.facts(type(self).__name__, self._keeper, alarms, self.open_decisions)

    @property
    def problem(self) -> Problem:
        """The problem as it stands, with the limits and actions in force."""
        with self._step():
            return self._memory.problem

    @property
    def journal(self) -> Journal | None:
        """Where decisions and outcomes are kept."""
        return self._keeper.journal

    @property
    def rounds(self) -> int:
        """Decisions made."""
        with self._step():
            return self._keeper.rounds

    @property
    def open_decisions(self) -> list[int]:
        """Decisions that were never told an outcome."""
        with self._step():
            return [i for i in self._asked if i not in self._told]

    @property
    def alarms(self) -> list[Alarm]:
        """Alarms not acknowledged, from everything told so far."""
        with self._step():
            memory = self._memory if self._state is None else self._keeper.learned(None)[0]
            newest = {alarm.name: alarm for alarm in memory.alarms}
            return [newest[name] for name in memory.active]

    def state_hash(self) -> str:
        """SHA-256 of all that decides the next policy and of every decision and outcome; the
        same again after `resume`.
        """
        with self._step():
            return steps.state_hash(self._memory, self._keeper.ledger)

    # deciding -------------------------------------------------------------------------------------

    def ask(self, x: Any, allowed: Any = None) -> Decision | list[Decision]:
        """Decide at context x (dx,); or, for x (n, dx), a cohort of n decisions made together.

        Parameters
        ----------
        x
            The context, or n of them. Where the problem declares `columns`, it may be a data frame,
            a mapping or a record, which is read by name.
        allowed
            Actions that may be played here: boolean (K,), or (n, K); or a list of action names.

        Returns
        -------
        Decision or list of Decision
            With id, action, policy (K,) and certificate. It is in the journal, if there is one,
            before it is returned.

        Notes
        -----
        Decisions of a cohort are made on what was told before the first of them; each keeps the
        limits by itself. Asking again without telling learns nothing new.

        Examples
        --------
        >>> agent = ged.GEDUCB(problem)
        >>> agent.ask({"time": 0.5}).policy
        array([0.25, 0.75])
        >>> [d.action for d in agent.ask(np.zeros((3, 1)), allowed=[True, False])]
        [0, 0, 0]
        """
        with self._step():
            contexts, single = self._contexts(x)
            mask = self._memory.mask(allowed, len(contexts))
            memory, broken = self._keeper.learned(contexts[0])
            choice = deciding.choose(memory, contexts, mask, broken)
            self._refuse(choice)
            made = deciding.decide(choice, contexts)
            after = steps.decided(choice.memory, contexts, learned=broken is None)
            records: list[recorder.Step] = [
                ("decision", deciding.payload(d, memory, i, mask, broken is None, self._versions))
                for i, (d, _) in enumerate(made)
            ]
            raised = self._keeper.commit(
                records, after, asked={d.id: (d.x, d.action) for d, _ in made}
            )
            for d, explanation in made:
                self._lately.actions.append(d.action)
                self._explanations[d.id] = explanation
                while len(self._explanations) > KEPT_EXPLANATIONS:
                    self._explanations.popitem(last=False)
            self._keeper.save_if_due()
            self._warn(raised)
            stuck = self._lately.stuck(self._keeper, made[-1][0].x, made[-1][1])
            if stuck:
                warnings.warn(stuck, SafeActionWarning, stacklevel=3)
            return made[0][0] if single else [d for d, _ in made]

    def policy(self, x: Any, allowed: Any = None) -> np.ndarray:
        """What `ask` would play: (K,), or (n, K) for x (n, dx). Nothing is recorded.

        >>> ged.GEDUCB(problem).policy([[0.1], [0.9]])
        array([[0.25, 0.75],
               [0.25, 0.75]])
        """
        with self._step():
            contexts, single = self._contexts(x)
            mask = self._memory.mask(allowed, len(contexts))
            memory, broken = self._keeper.learned(contexts[0])
            choice = deciding.choose(memory, contexts, mask, broken)
            if choice.refused:
                raise DeclarationError(choice.refused)
            return choice.policy[0] if single else choice.policy

    def cost_bounds(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper value of every constraint and action at x: each (J, K), or (n, J, K);
        the constraint's units.

        They hold for all rounds at once where the certificate says *guarantee*.

        >>> ged.GEDUCB(problem).cost_bounds([0.5])
        (array([[0.2, 0.3]]), array([[0.2, 0.6]]))
        """
        with self._step():
            contexts, single = self._contexts(x)
            lower, upper = ged_ucb.cost_bounds(self._current(contexts), contexts)
            return (lower[0], upper[0]) if single else (lower, upper)

    def recommend(
        self,
        x: Any,
        rule: str = "certified",
        *,
        constraint: str | None = None,
        target: float | None = None,
        within: tuple[float, float] | None = None,
        tried: bool = False,
    ) -> Recommendation:
        """After a study: the one action to take from now on at x (dx,), with its certificate.
        Nothing is recorded.

        Parameters
        ----------
        rule
            ``"certified"``: the highest estimated utility among actions whose worst case keeps
            every limit. ``"estimate"``: among those whose estimated cost does; no guarantee rests
            on an estimate, and the certificate shows the worst case. ``"nearest"``: the action
            whose estimated value of one constraint is nearest to a target, as dose finders choose.
            ``"interval"``: the action whose value lies in `within` = (low, high] with the largest
            posterior probability; for agents with ``confidence=credible_set(...)``.
        constraint, target
            For ``"nearest"``: which constraint, and the value aimed at, its limit if not given.
            ``"interval"``: which constraint.
        tried
            Only actions that have been played.

        Examples
        --------
        >>> ged.GEDUCB(problem).recommend([0.5]).action  # coin 1 may exceed the limit
        0
        """
        with self._step():
            contexts, _ = self._contexts(x)
            if len(contexts) != 1:
                raise ShapeError(
                    f"recommend() takes one context (dx,), got {len(contexts)}; call it for each"
                )
            memory, broken = self._keeper.learned(contexts[0])
            choice = deciding.choose(memory, contexts, None, broken)
            if choice.refused:
                raise DeclarationError(choice.refused)
            return deciding.recommend(choice, contexts[0], rule, constraint, target, within, tried)

    def explain(self, decision: Decision | int) -> Explanation:
        """The terms behind a decision; ``print`` it, or ask ``.why_not(action)``."""
        with self._step():
            key = telling.known_id(self._keeper, decision)
            if key not in self._explanations:
                raise UnknownDecisionError(
                    f"the terms of decision {key} are no longer in memory (the latest "
                    f"{KEPT_EXPLANATIONS} are); "
                    "its policy and certificate are in the journal, if there is one"
                )
            return self._explanations[key]

    def posterior(
        self, stream: str = UTILITY, *, source: str | None = None, draws: int = 1000
    ) -> Posterior:
        """Draws of a model's parameters given everything told so far: named draws, predictions,
        `to_arviz()`.

        Parameters
        ----------
        stream
            ``"utility"`` or a constraint's name.
        source
            ``"prior"``, ``"laplace"``, ``"svi"`` or ``"nuts"``; by default that of a credible or
            sampled set, else ``"laplace"``.
        draws
            How many.

        Notes
        -----
        It trusts the model and its prior. No decision rests on it, unless `confidence` says so.
        """
        with self._step():
            return keeper.posterior_of(self._keeper, stream, source, draws)

    def confidence_set(self, stream: str) -> ConfidenceSet:
        """The parameters of a model that everything told so far leaves plausible; before the first
        decision there are none.

        Parameters
        ----------
        stream
            ``"utility"`` or a constraint's name.

        Examples
        --------
        >>> agent = ged.GEDUCB(problem)
        >>> agent.observe([[0.5]] * 40, [1] * 40, [1.0] * 24 + [0.0] * 16)
        >>> agent.confidence_set("utility").contains(1)  # that coin 1 shows heads in 30%
        False
        """
        with self._step():
            model = keeper.model_of(self.problem, stream)
            if self._state is None:
                raise DataError(
                    "nothing was asked or observed yet, so that no parameter is "
                    "excluded; ask or observe first"
                )
            return ConfidenceSet(model, self._current(None).learners[stream])

    # learning -------------------------------------------------------------------------------------

    def tell(self, decision: Decision | int, y: Any = None, z: Any = None) -> None:
        """What came of a decision, or of its id: the utility's outcome y, and z, a number or
        {constraint name: number}.

        Parameters
        ----------
        decision
            The decision, or its id.
        y
            The utility's outcome; (K,) where a round reveals several.
        z
            The constraints' outcomes: a number for one, {name: number} for several.

        Notes
        -----
        Any order, any delay. Parts may come later (y now, z later). The same value again changes
        nothing; another value is an error: see `amend`. If the delay depends on the outcome, no
        set covers: declare ``Problem(outcome_age=)``.

        Examples
        --------
        >>> agent = ged.GEDUCB(problem)
        >>> decision = agent.ask([0.5])
        >>> agent.tell(decision.id, 1.0)
        >>> agent.open_decisions
        []
        """
        self.tell_many([(decision, y, z)])

    def tell_many(self, outcomes: Sequence[tuple[Decision | int, Any, Any]]) -> None:
        """Several (decision or id, y, z) at once: all are taken in, or, if one is wrong, none."""
        with self._step():
            telling.tell(self._keeper, outcomes)

    def amend(self, decision: Decision | int, y: Any = None, z: Any = None) -> None:
        """Correct what was told of a decision. The models are rebuilt from all data, in the batches
        in which they came.

        Decisions made meanwhile stay as they were made. Every outcome is predicted anew from those
        before it, so the confidence sets stay valid if what is corrected does not depend on later
        outcomes. It costs a replay of the run.
        """
        with self._step():
            telling.amend(self._keeper, decision, y, z)

    def observe(self, x: Any, a: Any, y: Any, z: Any = None) -> None:
        """Learn from logged rows, before or between decisions: x (n, dx), a (n,), y (n,), z (n,) or
        {name: (n,)}.

        x may be a whole log, a data frame or a mapping of columns: then ``observe(log, "treatment",
        "response", "toxicity")`` names the columns to take a, y and z from; contexts are the
        declared `columns`, and others in the log are passed over.

        Notes
        -----
        The rows are taken in the order given, with refits in between, so that each is predicted
        from those before it. Sets stay valid if whoever chose the logged actions looked at nothing
        but earlier rows and the context.

        Examples
        --------
        >>> agent = ged.GEDUCB(problem)
        >>> log = {"time": [0.1, 0.2], "coin": [1, 1], "heads": [0.0, 1.0]}
        >>> agent.observe(log, "coin", "heads")
        """
        with self._step():
            self._warn(telling.observe(self._keeper, x, a, y, z))

    # changing the problem -------------------------------------------------------------------------

    def set_limit(self, name: str, at_most: float) -> None:
        """From now on another limit for one constraint. Past rounds keep theirs."""
        self._change(lambda: recorder.limit_payload(name, at_most))

    def retire_action(self, action: int | str) -> None:
        """From now on this action is not on offer. The safe action cannot be retired."""
        self._change(lambda: telling.offer(self._keeper.memory, action, False))

    def restore_action(self, action: int | str) -> None:
        """Offer a retired action again."""
        self._change(lambda: telling.offer(self._keeper.memory, action, True))

    def add_action(self, name: str | None = None) -> int:
        """Offer one more action, K, and return it. The models must already know what to make of it
        (`a` may reach K).

        It needs a `name` where the others have names.
        """
        with self._step():
            self._change(lambda: telling.added(self._memory, name))
            return self.problem.n_actions - 1

    def acknowledge(self, alarm: Alarm | str) -> None:
        """Go on after an alarm was looked into. Its monitor begins anew, with its share of delta
        once more.
        """
        name = alarm.name if isinstance(alarm, Alarm) else alarm
        with self._step():
            active = [a.name for a in self.alarms]
            if name not in active:
                raise InputError(f"there is no alarm {name!r} to acknowledge; there are {active}")
            self._change(lambda: recorder.acknowledge_payload(name))

    # keeping --------------------------------------------------------------------------------------

    def save(self) -> bool:
        """Store a snapshot, so that resuming replays only what comes after it; this happens by
        itself now and then.

        False without a journal, or where none can be stored (a divergence ball around a program).
        """
        with self._step():
            return self._keeper.save()

    def close(self) -> None:
        """Store a snapshot and release the journal. Nothing is lost without it."""
        with self._step():
            self._keeper.close()

    def __enter__(self) -> GEDUCB:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # inside ---------------------------------------------------------------------------------------

    @property
    def _memory(self) -> Memory:
        return self._keeper.memory

    @property
    def _state(self) -> ged_ucb.State | None:
        return self._memory.state

    @property
    def _asked(self) -> AskedDecisions:
        return self._keeper.ledger.asked

    @property
    def _told(self) -> ToldOutcomes:
        return self._keeper.ledger.told

    def _contexts(self, x: Any) -> tuple[np.ndarray, bool]:
        return self._memory.problem.names.contexts(x, self._memory.width)

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """One caller at a time, and whatever an interrupt left behind comes first."""
        with self._lock:
            self._keeper.settle()
            yield

    def _current(self, contexts: np.ndarray | None) -> ged_ucb.State:
        """The state with everything told so far learned, or, where that fails, without."""
        state = self._keeper.learned(None if contexts is None else contexts[0])[0].state
        assert state is not None
        return state

    def _refuse(self, choice: Choice) -> None:
        """If a declaration was refuted: put the alarms on the record, and raise. Nothing else of
        the step is kept.
        """
        if choice.refused:
            raised = choice.memory.alarms[len(self._memory.alarms) :]
            # before the first decision there is nothing to acknowledge: declare it anew
            if raised and self._state is not None:
                self._keeper.commit([], steps.with_alarms(self._memory, raised))
            raise DeclarationError(choice.refused)

    def _change(self, payload: Callable[[], dict[str, Any]]) -> None:
        with self._step():
            change = payload()
            self._warn(
                self._keeper.commit([("change", change)], recorder.changed(self._memory, change))
            )

    def _warn(self, raised: list[Alarm]) -> None:
        for alarm in raised:
            then = deciding.what_then(alarm.name, self._memory.guard, self.problem)
            warnings.warn(f"{alarm.sentence} {then}", AlarmWarning, stacklevel=4)
