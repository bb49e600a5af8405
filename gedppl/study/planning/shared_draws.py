"""Many simulated trials with one set of draws: credible limits on every draw, decided from a state
that is computed once.

All runs share the prior's draws theta_1..theta_S. A run is its log weights, to which a row adds a
column that is computed once for all runs,

    log w_s = sum_i log p(y_i | x_i, a_i, theta_s),
    P(T(x, a; theta) > limit | rows) = sum_s w_s 1{T(x, a; theta_s) > limit} / sum_s w_s,

and what follows from the same rows, in whatever order they came, is looked up. Nothing is fitted,
moved or journaled: this is for planning. Runs share their Monte Carlo error; it shrinks with S and
not with the number of runs.

Axis letters: S draws, K actions, J constraints.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gedppl.errors import FitWarning, SettingError
from gedppl.numerics.arrays import check_whole, is_number
from gedppl.problem import UTILITY, Problem
from gedppl.study.planning.worlds import read_rows

RULES = ("certified", "estimate", "nearest", "interval")
FEWEST = 200  # effective draws, under which it is said that they wear out
SAME = 1e-9  # share of a utility's range, by which a known one may differ between draws
MOST_CELLS = 4096  # rows whose likelihoods are kept; outcomes without end would fill the memory
MOST_STATES = 30_000  # states that are looked up

Cell = tuple[str, bytes, int, bytes]  # outcome, context, action, value


@dataclass(frozen=True)
class SharedDecision:
    """One decision of a simulated run; nothing is certified."""

    id: int
    action: int
    policy: np.ndarray  # (K,)
    action_name: str = ""
    certificate: None = None


@dataclass(frozen=True)
class Named:
    """What a run recommends, and the posterior that it rests on."""

    action: int
    over: np.ndarray  # (J, K) posterior probability of lying above the limit
    cost: np.ndarray  # (J, K) posterior means


@dataclass(frozen=True)
class _At:
    """What draws say at one context."""

    values: tuple[np.ndarray, ...]  # J of (S, K), the safe action's at its declared value
    utility: np.ndarray  # (K,)


class SharedDraws:
    """Draws of the prior that all runs of a plan share; `agent(seed)` is one run. Made by
    `shared_draws`.
    """

    def __init__(
        self,
        problem: Problem,
        contexts: Any,
        level: float = 0.95,
        draws: int = 20_000,
        seed: int = 0,
    ) -> None:
        check_whole(100, draws=draws)
        if not (is_number(level) and 0.5 <= level < 1):
            raise SettingError(f"level must lie in [0.5, 1), got {level!r}; 0.95 is customary")
        _check(problem)
        x = read_rows(problem, contexts)
        problem.trace(x)
        self.problem, self.level = problem, float(level)
        self.theta = {
            name: cls.visit(
                lambda members: members.every,
                lambda cls: np.asarray(cls.draw_prior(int(draws), int(seed)), float),
            )
            for name, cls in problem.streams.items()
        }
        self._cells: dict[Cell, np.ndarray] = {}
        self._places: dict[bytes, _At] = {}
        self._known: dict[Any, Any] = {}
        self._said = False
        self.at(x[0])  # a utility that must be learned is refused here

    def agent(self, seed: int = 0) -> SharedAgent:
        """A run that has been told nothing yet."""
        return SharedAgent(self, int(seed))

    def at(self, x: np.ndarray) -> _At:
        """Values at context x (dx,)."""
        key = x.tobytes()
        if key not in self._places:
            self._places[key] = _At(
                tuple(self._values(j, x) for j in range(len(self.problem.constraints))),
                self._utility(x),
            )
        return self._places[key]

    def _values(self, j: int, x: np.ndarray) -> np.ndarray:
        c, K = self.problem.learned[j][1], self.problem.n_actions
        found = np.asarray(
            c.model.values(c.functional, self.theta[c.stream], np.tile(x, (K, 1)), np.arange(K)),
            float,
        )
        found = np.asarray(c.functional.clip(np.where(np.isnan(found), c.functional.high, found)))
        found[:, self.problem.safe_action] = self.problem.safe_values(x[None])[0, j]
        return found

    def _utility(self, x: np.ndarray) -> np.ndarray:
        utility, K = self.problem.utility, self.problem.n_actions
        some = self.theta[UTILITY][:64]
        found = np.asarray(
            utility.model.values(utility.functional, some, np.tile(x, (K, 1)), np.arange(K)), float
        )
        if np.ptp(found, axis=0).max() > SAME * (utility.functional.high - utility.functional.low):
            raise SettingError(
                "shared draws decide where the utility of an action is known (the dose itself, a "
                "price), and this one depends on "
                "the parameters: let GEDUCB explore it, plan(agent={'confidence': "
                "credible_set(...)})"
            )
        out: np.ndarray = found[0]
        return out

    def column(self, stream: str, x: np.ndarray, action: int, y: Any) -> tuple[Cell, np.ndarray]:
        """The log-likelihood (S,) of one row, and its name."""
        value = np.asarray(y, float)
        cell = (stream, x.tobytes(), int(action), value.tobytes())
        if cell not in self._cells:
            cls = self.problem.streams[stream]
            rows = cls.check_outcomes(x[None], np.array([int(action)]), value[None])
            if len(self._cells) >= MOST_CELLS:
                self._cells.clear()
            gained = np.asarray(cls.log_likelihood(self.theta[stream], *rows), float)[:, 0]
            self._cells[cell] = np.where(np.isnan(gained), -np.inf, gained)
        return cell, self._cells[cell]

    def posterior(
        self, key: Any, logs: Mapping[str, np.ndarray], x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """P(above the limit) and mean of every constraint and action, each (J, K), under log
        weights (S,) by outcome.
        """
        full = (key, x.tobytes())
        if full not in self._known:
            if len(self._known) >= MOST_STATES:
                self._known.clear()
            self._known[full] = self._computed(logs, self.at(x))
        found: tuple[np.ndarray, np.ndarray] = self._known[full]
        return found

    def _computed(self, logs: Mapping[str, np.ndarray], at: _At) -> tuple[np.ndarray, np.ndarray]:
        over, cost = np.empty((2, len(at.values), self.problem.n_actions))
        for j, ((_, c), values) in enumerate(zip(self.problem.learned, at.values)):
            weights = self.weights(logs, c.stream)
            over[j], cost[j] = weights @ (values > c.at_most), weights @ values
        return over, cost

    def weights(self, logs: Mapping[str, np.ndarray], stream: str) -> np.ndarray:
        """(S,), which sum to one; it is said once if they rest on few draws."""
        S = len(self.theta[stream])
        if stream not in logs:
            return np.full(S, 1 / S)
        top = logs[stream].max()
        if not np.isfinite(top):
            raise SettingError(
                f"no draw of the prior gives the outcomes of {stream!r} a positive "
                "density; use more draws"
            )
        weights: np.ndarray = np.exp(logs[stream] - top)
        weights /= weights.sum()
        effective = 1 / float(weights @ weights)
        # members of a finite class are all there
        if effective < FEWEST and self.theta[stream].ndim > 1 and not self._said:
            self._said = True
            warnings.warn(
                f"the {S} shared draws of {stream!r} are worth {effective:.0f} in a run: raise "
                "draws=, or plan with "
                "credible_set(source='smc'), which moves them",
                FitWarning,
                stacklevel=4,
            )
        return weights


def _check(problem: Problem) -> None:
    """Raise where decisions are not read off draws alone."""
    learned = [c for _, c in problem.learned]
    if (
        not learned
        or len(learned) < len(problem.constraints)
        or not problem.every_draw.all()
        or problem.reveals is not None
    ):
        raise SettingError(
            "shared draws decide problems whose limits are all learned and on every draw "
            "(Constraint(every_draw=True)), without "
            "reveals=; plan others with GEDUCB, plan(agent={'confidence': credible_set(...)})"
        )
    for name, cls in problem.streams.items():
        free = cls.visit(
            lambda members: [], lambda cls: [site.name for site in cls.sites if not site.prior]
        )
        if free:
            raise SettingError(
                f"shared draws come from the prior, and {free} of {name!r} have "
                "none: write them as sample sites"
            )


@dataclass
class SharedAgent:
    """One run: `ask`, `tell`, `observe`, `policy`, `recommend` as of an agent, for simulation."""

    shared: SharedDraws
    seed: int
    _logs: dict[str, np.ndarray] = field(default_factory=dict)
    _told: Counter[Cell] = field(default_factory=Counter)
    _asked: list[tuple[np.ndarray, int]] = field(default_factory=list)
    _played: set[int] = field(default_factory=set)

    @property
    def problem(self) -> Problem:
        return self.shared.problem

    def policy(self, x: Any, allowed: Any = None) -> np.ndarray:
        """(K,): the allowed action of highest utility that lies above each limit with
        probability at most 1 - level.
        """
        row = np.ascontiguousarray(x, float)
        over, _ = self._posterior(row)
        fine = (over <= 1 - self.shared.level + 1e-12).all(axis=0) & (
            True if allowed is None else np.asarray(allowed, bool)
        )
        if not fine.any():
            raise SettingError(
                "no allowed action keeps the limits at level "
                f"{self.shared.level:g}; allow the safe action too"
            )
        best = int(np.argmax(np.where(fine, self.shared.at(row).utility, -np.inf)))
        found: np.ndarray = np.eye(self.problem.n_actions)[best]
        return found

    def ask(self, x: Any, allowed: Any = None) -> SharedDecision:
        policy = self.policy(x, allowed)
        action = int(policy.argmax())
        self._asked.append((np.ascontiguousarray(x, float), action))
        return SharedDecision(
            len(self._asked) - 1, action, policy, self.problem.names.label(action)
        )

    def tell(self, decision_id: int, y: Any, z: Mapping[str, Any] | None = None) -> None:
        x, action = self._asked[decision_id]
        self._learn(x, action, y, z or {})

    def observe(self, x: Any, a: Any, y: Any, z: Mapping[str, Any] | None = None) -> None:
        """Rows x (n, dx), a (n,), y (n,) that came from elsewhere."""
        for i, row in enumerate(np.asarray(x, float)):
            self._learn(
                np.ascontiguousarray(row),
                int(a[i]),
                y[i],
                {name: one[i] for name, one in (z or {}).items()},
            )

    def recommend(
        self, x: Any, rule: str = "certified", *, tried: bool = False, within: Any = None
    ) -> Named:
        """The action to take from now on; rules as in `GEDUCB.recommend`, about the first
        constraint.
        """
        if rule not in RULES or (rule == "interval") != (within is not None):
            raise SettingError(
                f"rule must be one of {RULES}, and within=(low, high) belongs to 'interval'; got "
                f"{rule!r}, {within!r}"
            )
        row, problem = np.ascontiguousarray(x, float), self.problem
        over, cost = self._posterior(row)
        offered = (
            np.isin(np.arange(problem.n_actions), list(self._played))
            if tried
            else np.ones(problem.n_actions, bool)
        )
        if rule == "nearest":
            good = -np.abs(cost[0] - problem.limits[0])
        elif rule == "interval":
            values, weights = (
                self.shared.at(row).values[0],
                self.shared.weights(self._logs, problem.learned[0][1].stream),
            )
            good = weights @ ((values > within[0]) & (values <= within[1]))
        else:
            keeps = (
                over <= 1 - self.shared.level
                if rule == "certified"
                else cost <= problem.limits[:, None]
            )
            good, offered = self.shared.at(row).utility, offered & keeps.all(axis=0)
        best = (
            int(np.argmax(np.where(offered, good, -np.inf)))
            if offered.any()
            else int(problem.safe_action or 0)
        )
        return Named(best, over, cost)

    def _posterior(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.shared.posterior(frozenset(self._told.items()), self._logs, x)

    def _learn(self, x: np.ndarray, action: int, y: Any, z: Mapping[str, Any]) -> None:
        self._played.add(action)
        if action == self.problem.safe_action and not self.problem.learn_safe:
            return
        for stream in self.problem.streams:
            value = y if stream == UTILITY else z.get(stream, math.nan)
            if np.isnan(np.asarray(value, float)).any():
                continue  # not seen
            cell, gained = self.shared.column(stream, x, action, value)
            self._told[cell] += 1
            self._logs[stream] = gained + self._logs[stream] if stream in self._logs else gained


def shared_draws(
    problem: Problem, contexts: Any, level: float = 0.95, draws: int = 20_000, seed: int = 0
) -> SharedDraws:
    """Credible limits on every draw for many simulated trials at once: a thousand of 36 rounds in
    about a minute.

    Parameters
    ----------
    problem
        The declaration.
    contexts
        (n, dx), rows like those to come.
    level
        As in `credible_set`: an action is given if its posterior probability of lying above each
        limit is at most 1 - level.
    draws, seed
        S draws of the prior, made once and weighted in every run.

    Returns
    -------
    An object whose ``agent(seed)`` is one run; give `plan` the option
    ``agent=lambda problem, delta, seed: shared.agent(seed)``.

    Notes
    -----
    It decides problems whose limits are all learned and on every draw, whose utility is known given
    the action, and whose parameters have priors; any outcome will do. Others are refused by name.
    Each decision is that of ``credible_set(level, margin=False)`` up to Monte Carlo error, which
    all runs share. Not guaranteed: anything; there is no certificate and no journal, it is for
    planning only.
    """
    return SharedDraws(problem, contexts, level, draws, seed)
