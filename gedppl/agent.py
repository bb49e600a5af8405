"""GEDUCB: ask, tell, and everything with a side effect: ids, randomness, the lock, the journal.

The algorithm itself is `ged_ucb`, which is pure. An agent holds its state, and replaces it only once a step has been
computed in full and written down, so that an error or an interrupt leaves the agent as it was.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl import ged_ucb
from gedppl.certificate import Certificate, Explanation, certify, what_holds_back
from gedppl.errors import ActionRangeError, InputError, UnknownDecisionError
from gedppl.feedback import Entry, Outcomes, new_outcomes, read_outcomes, rows_by_stream
from gedppl.inputs import read_action, read_contexts, read_logged, read_mask
from gedppl.problem import Problem
from gedppl.settings import settings

KEPT_EXPLANATIONS = 1000  # full terms are kept for the latest decisions only
SAFE_WINDOW, SAFE_SHARE = 200, 0.8


class SafeActionWarning(UserWarning):
    """The safe action takes nearly every round: the limit, the radius or the model leaves no room."""


class FallbackWarning(UserWarning):
    """No policy could be computed and the safe action was taken instead."""


@dataclass(frozen=True)
class Decision:
    """One decision: play `action`, which was drawn from `policy`."""

    id: int
    action: int
    policy: np.ndarray  # (K,)
    certificate: Certificate
    x: np.ndarray  # (dx,)

    @property
    def propensity(self) -> float:
        """The probability with which this action was drawn, for off-policy evaluation."""
        return float(self.policy[self.action])


class GEDUCB:
    """Decide, again and again, within limits.

    Parameters
    ----------
    problem
        The declaration.
    delta
        The limits hold in all rounds at once with probability at least 1 - delta (half of it; the other half is for the
        regret), if the truth lies in the model class and the bounds are exact. Every certificate says whether it is so.
    mode
        ``"default"``, ``"theory"`` or ``"paper"``.
    warmup
        ``None`` (the mode's choice), ``"none"``, ``"paper"`` (each action once, whatever the limits) or ``"safe-m"``.
    bonus_scale, width_scale
        Multiply the theorem's exploration weights. They never touch feasibility.
    oracle, radius
        How to fit and how wide the confidence set is; chosen by the model if not given.
    seed
        The one source of randomness; the same seed, data and versions give the same run.
    journal
        A path: every decision and outcome is durable before the call returns.
    """

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
        radius: Any = None,
        seed: int = 0,
        journal: Any = None,
        growth: float | None = None,
        exact_rounds: float | None = None,
    ) -> None:
        self.settings = settings(
            mode,
            delta=delta,
            warmup=warmup,
            bonus_scale=bonus_scale,
            width_scale=width_scale,
            oracle=oracle,
            radius=radius,
            seed=seed,
            growth=growth,
            exact_rounds=exact_rounds,
        )
        self._problem = problem
        self._lock = threading.RLock()
        self._state: ged_ucb.State | None = None  # made when the first context shows its width
        self._width: int | None = None
        self._inbox: list[Entry] = []
        self._absorbed: ged_ucb.State | None = None  # the state with the inbox taken in, until either changes
        self._told: dict[int, Outcomes] = {}
        self._asked: dict[int, tuple[np.ndarray, int]] = {}  # id -> (x, action)
        self._explanations: OrderedDict[int, Explanation] = OrderedDict()
        self._recent: deque[int] = deque(maxlen=SAFE_WINDOW)
        self._warned_at = -SAFE_WINDOW
        self.journal = journal

    # what is known --------------------------------------------------------------------------------------------------

    @property
    def problem(self) -> Problem:
        """The problem as it stands, with the limits and actions in force."""
        return self._problem

    @property
    def rounds(self) -> int:
        """Decisions made."""
        return 0 if self._state is None else self._state.t

    @property
    def open_decisions(self) -> list[int]:
        """Decisions that were never told an outcome."""
        with self._lock:
            return [i for i in self._asked if i not in self._told]

    # deciding -------------------------------------------------------------------------------------------------------

    def ask(self, x: Any, allowed: Any = None) -> Decision | list[Decision]:
        """Decide at context x (dx,); or, for x (n, dx), a cohort of n decisions made together, as a list.

        Parameters
        ----------
        allowed
            Boolean (K,), or (n, K): actions that may be played here.
        """
        with self._lock:
            contexts, single = self._contexts(x)
            mask = read_mask(allowed, len(contexts), self._available())
            state = self._current(contexts)
            policy, info, fallback = self._select(state, contexts, mask)
            decisions = [self._decide(state, contexts[i], policy[i], info, i, fallback) for i in range(len(contexts))]
            self._write("decision", decisions)
            self._state, self._absorbed, self._inbox = ged_ucb.advance(state, len(decisions)), None, []
            for d, explanation in decisions:
                self._asked[d.id] = (d.x, d.action)
                self._recent.append(d.action)
                self._explanations[d.id] = explanation
                while len(self._explanations) > KEPT_EXPLANATIONS:
                    self._explanations.popitem(last=False)
            self._warn_if_stuck(state, [e for _, e in decisions])
            return decisions[0][0] if single else [d for d, _ in decisions]

    def policy(self, x: Any, allowed: Any = None) -> np.ndarray:
        """What `ask` would play: (K,), or (n, K) for x (n, dx). Nothing is recorded."""
        with self._lock:
            contexts, single = self._contexts(x)
            mask = read_mask(allowed, len(contexts), self._available())
            policy, _, _ = self._select(self._current(contexts), contexts, mask)
            return policy[0] if single else policy

    def cost_bounds(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper value of every constraint and action at x: each (J, K), or (n, J, K); the constraint's units."""
        with self._lock:
            contexts, single = self._contexts(x)
            lower, upper = ged_ucb.cost_bounds(self._current(contexts), contexts)
            return (lower[0], upper[0]) if single else (lower, upper)

    def explain(self, decision: Decision | int) -> Explanation:
        """The terms behind a decision; ``print`` it, or ask ``.why_not(action)``."""
        key = decision.id if isinstance(decision, Decision) else int(decision)
        with self._lock:
            if key in self._explanations:
                return self._explanations[key]
            if key in self._asked:
                raise UnknownDecisionError(
                    f"the terms of decision {key} are no longer in memory (the latest {KEPT_EXPLANATIONS} are); "
                    "its policy and certificate are in the journal, if there is one"
                )
            raise UnknownDecisionError(f"there is no decision {key}; decisions so far: {len(self._asked)}")

    # learning -------------------------------------------------------------------------------------------------------

    def tell(self, decision_id: int, y: Any = None, z: Any = None) -> None:
        """What came of a decision: the utility's outcome y, and z, a number or {constraint name: number}.

        Any order, any delay. Parts may come later (y now, z later). The same value again changes nothing; another value
        is an error. The delay must not depend on the outcome: feedback that arrives only when it is good biases any model.
        """
        self.tell_many([(decision_id, y, z)])

    def tell_many(self, outcomes: Sequence[tuple[int, Any, Any]]) -> None:
        """Several (id, y, z) at once: all are taken in, or, if one is wrong, none."""
        with self._lock:
            fresh: dict[int, Outcomes] = {}
            entries = []
            for decision_id, y, z in outcomes:
                key = self._known_id(decision_id)
                x, action = self._asked[key]
                told = read_outcomes(self._problem, x, action, y, z)
                known = self._told.get(key, {}) | fresh.get(key, {})
                news = new_outcomes(key, known, told)
                first = key not in self._told and key not in fresh
                if news or first:
                    entries.append(Entry(key, x, action, news, first))
                    fresh[key] = fresh.get(key, {}) | news
            if not entries:
                return
            self._write("outcome", entries)
            for key, news in fresh.items():
                self._told[key] = self._told.get(key, {}) | news
            self._inbox, self._absorbed = [*self._inbox, *entries], None

    def observe(self, x: Any, a: Any, y: Any, z: Any = None) -> None:
        """Learn from logged rows, before or between decisions: x (n, dx), a (n,), y (n,), z (n,) or {name: (n,)}.

        The rows are taken in the order given, with refits in between, so that each is predicted from those before it.
        """
        with self._lock:
            contexts, single = self._contexts(x)
            entries = read_logged(self._problem, contexts, a, y, z, single)
            state = self._current(contexts)
            for chunk in _chunks(entries, state):
                state = ged_ucb.update(state, rows_by_stream(self._problem, chunk), len(chunk))
            self._write("observe", entries)
            self._state, self._absorbed, self._inbox = state, None, []

    # changing the problem -------------------------------------------------------------------------------------------

    def set_limit(self, name: str, at_most: float) -> None:
        """From now on another limit for one constraint. Past rounds keep theirs."""
        with self._lock:
            self._change(self._problem.with_limit(name, at_most), self._available(), f"limit of {name!r} set to {at_most!r}")

    def retire_action(self, action: int) -> None:
        """From now on this action is not on offer. The safe action cannot be retired."""
        with self._lock:
            key = read_action(action, self._problem.n_actions)
            if key == self._problem.safe_action:
                raise ActionRangeError(f"action {key} is the safe action and cannot be retired; retire another")
            available = self._available()
            available[key] = False
            self._change(self._problem, available, f"action {key} retired")

    def restore_action(self, action: int) -> None:
        """Offer a retired action again."""
        with self._lock:
            key = read_action(action, self._problem.n_actions)
            available = self._available()
            available[key] = True
            self._change(self._problem, available, f"action {key} restored")

    def add_action(self) -> int:
        """Offer one more action, K, and return it. The models must already know what to make of it (`a` may reach K)."""
        with self._lock:
            new = self._problem.n_actions
            self._change(self._problem.with_actions(new + 1), np.append(self._available(), True), f"action {new} added")
            return new

    # inside ---------------------------------------------------------------------------------------------------------

    def _available(self) -> np.ndarray:
        if self._state is None:
            return np.ones(self._problem.n_actions, bool)
        return self._state.blocks[-1].available.copy()

    def _change(self, problem: Problem, available: np.ndarray, what: str) -> None:
        if self._state is None:
            raise InputError(f"{what}: nothing has been decided or observed yet; declare the Problem that way instead")
        state = ged_ucb.change(self._current(None), problem, available)
        self._write("change", what)
        self._problem, self._state, self._absorbed, self._inbox = problem, state, None, []

    def _current(self, contexts: np.ndarray | None) -> ged_ucb.State:
        """The state with everything told so far taken in. Kept until something else is told, so that it is computed once."""
        if self._absorbed is None:
            state = self._state
            if state is None:
                assert contexts is not None
                state = self._state = ged_ucb.init(self._problem, self.settings, contexts)
                self._width = contexts.shape[1]
            if self._inbox:
                rounds = sum(e.first for e in self._inbox)
                state = ged_ucb.update(state, rows_by_stream(self._problem, self._inbox), rounds)
            self._absorbed = state
        return self._absorbed

    def _select(
        self, state: ged_ucb.State, contexts: np.ndarray, mask: np.ndarray | None
    ) -> tuple[np.ndarray, ged_ucb.Info | None, str | None]:
        """The policy; or, if it cannot be computed, the safe action and why."""
        try:
            policy, info = ged_ucb.select(state, contexts, mask)
            return policy, info, None
        except InputError:
            raise
        except Exception as error:
            safe = self._problem.safe_action
            if safe is None:
                raise
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"no policy could be computed ({reason}); taking the safe action {safe}", FallbackWarning, stacklevel=3)
            policy = np.zeros((len(contexts), self._problem.n_actions))
            policy[:, safe] = 1.0
            return policy, None, reason

    def _decide(
        self,
        state: ged_ucb.State,
        x: np.ndarray,
        policy: np.ndarray,
        info: ged_ucb.Info | None,
        i: int,
        fallback: str | None,
    ) -> tuple[Decision, Explanation]:
        key = state.t + i
        # one stream for every decision id: the draw does not depend on what else was drawn
        uniform = np.random.default_rng([self.settings.seed, key]).random()
        support = np.flatnonzero(policy > 0)
        action = int(support[np.searchsorted(np.cumsum(policy[support])[:-1], uniform, side="right")])
        certificate, explanation = certify(state, x, policy, action, info, i, fallback)
        decision = Decision(key, action, policy, certificate, x)
        return decision, explanation

    def _warn_if_stuck(self, state: ged_ucb.State, latest: list[Explanation]) -> None:
        safe = self._problem.safe_action
        if safe is None or len(self._recent) < SAFE_WINDOW or state.t - self._warned_at < SAFE_WINDOW:
            return
        share = np.mean(np.array(self._recent) == safe)
        if share <= SAFE_SHARE:
            return
        self._warned_at = state.t
        warnings.warn(
            f"the safe action took {share:.0%} of the last {SAFE_WINDOW} rounds. {what_holds_back(latest[-1], safe)}",
            SafeActionWarning,
            stacklevel=3,
        )

    def _contexts(self, x: Any) -> tuple[np.ndarray, bool]:
        return read_contexts(x, self._width)

    def _known_id(self, decision_id: Any) -> int:
        if not isinstance(decision_id, (int, np.integer)) or int(decision_id) not in self._asked:
            raise UnknownDecisionError(f"there is no decision {decision_id!r}; decisions so far: {len(self._asked)}")
        return int(decision_id)

    def _write(self, kind: str, what: Any) -> None:
        """Make a step durable before it is acknowledged."""


def _chunks(entries: list[Entry], state: ged_ucb.State) -> list[list[Entry]]:
    """Cut logged rows where a refit falls due."""
    chunks, told, i = [], state.told, 0
    while i < len(entries):
        size = max(1, int((state.settings.growth - 1.0) * told))
        chunks.append(entries[i : i + size])
        told, i = told + size, i + size
    return chunks
