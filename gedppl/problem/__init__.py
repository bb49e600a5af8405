"""The declaration: what is worth having, what must stay under a limit, and what is known to be
safe.

Axis letters: n contexts, K actions, J constraints.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import ActionRangeError, ProblemError, ShapeError
from gedppl.numerics.arrays import is_whole
from gedppl.problem.checks import (
    check_feedback,
    check_flag,
    check_functional,
    check_limit,
    check_safe_action,
    check_safe_value,
    described,
)
from gedppl.problem.names import Contexts, Names, declared_actions, declared_columns, listed
from gedppl.showing import Facts, Shown

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.programs.contract import DensityClass, MemberList

NumberOrFunction = float | Callable[[np.ndarray], Any]
UTILITY = "utility"


@dataclass(frozen=True)
class Utility:
    """What to maximise: a functional of a learned density.

    Parameters
    ----------
    model
        A class from `density_class` or `finite_class`.
    functional
        What of the outcome matters, e.g. ``mean(0, 1)``; its ``low`` and ``high`` bound the
        utility.

    Notes
    -----
    u(x, a) = T(f_{x,a}), f the density of the outcome and T the functional. The range is believed.
    A model that is wrong costs utility and breaks no limit, unless a constraint shares its outcome.

    Examples
    --------
    >>> ged.Utility(problem.utility.model, ged.mean(0, 1)).functional
    mean(low=0, high=1)
    """

    model: DensityClass | MemberList
    functional: Functional

    def __post_init__(self) -> None:
        check_functional(self.functional, "utility")
        if not (math.isfinite(self.functional.low) and math.isfinite(self.functional.high)):
            raise ProblemError(
                f"the utility's functional must have a finite range, got [{self.functional.low}, "
                f"{self.functional.high}]; "
                "give low and high, e.g. mean(0, 1)"
            )


@dataclass(frozen=True)
class Constraint:
    """A functional of a learned density that must stay at or under `at_most` in every round.

    The limit holds for the policy's average, sum_a pi_a T(g_{x,a}) <= at_most, for the context at
    hand. A single action above the limit may still be drawn, with a probability small enough that
    the average stays under it; unless `every_draw`. Not guaranteed: T of all that a policy brings,
    which for a variance, a quantile or a CVaR is not the average over its actions.

    Parameters
    ----------
    model, functional
        As in `Utility`. ``functional.high`` is the worst case of an action about which nothing is
        known.
    at_most
        The limit, in the functional's units.
    safe_value
        The functional's value at the safe action, or an upper bound: a number, or contexts (n, dx)
        -> (n,). It is believed: where the safe action is learned, others' bounds rest on it too.
    safe_value_exact
        True says that `safe_value` is the value itself and no mere upper bound, and that the model
        describes the safe action. It is believed: where the functional is the mean of a
        linear-Gaussian class, the parameters are held to it, which makes the confidence set
        narrower by a direction. If it is wrong, the limits are no longer guaranteed.
    name
        Under which outcomes are told and certificates speak.
    outcome
        ``"utility"``, or the name of another constraint, to share that outcome and its fit: one
        density, two functionals.
    every_draw
        True: the limit holds for every action that may be drawn, T(g_{x,a}) <= at_most wherever
        pi_a > 0. This is what a clinician means by a limit. Only actions whose worst case is under
        it are played, so an untried one is reached through shared parameters, a prior or bounds
        alone; the regret theorems do not apply.

    Examples
    --------
    >>> coins = problem.utility.model
    >>> ged.Constraint(coins, ged.mean(0, 1), at_most=0.5, safe_value=0.2, name="heads").stream
    'heads'
    """

    model: DensityClass | MemberList
    functional: Functional
    at_most: float
    safe_value: NumberOrFunction | None = None
    name: str = "cost"
    outcome: str | None = None
    safe_value_exact: bool = False
    every_draw: bool = False

    def __post_init__(self) -> None:
        check_functional(self.functional, f"constraint {self.name!r}")
        check_limit(self.at_most, self.name)
        check_flag(self.every_draw, self.name)
        low, high = self.functional.low, self.functional.high
        if not low <= self.at_most <= high:
            raise ProblemError(
                f"at_most of constraint {self.name!r} must lie in the functional's range [{low:g}, "
                f"{high:g}], got {self.at_most}"
            )

    @property
    def stream(self) -> str:
        """The outcome this constraint learns from."""
        return self.outcome or self.name

    @property
    def declared(self) -> str:
        """All of it in one line, for `Problem.fingerprint`."""
        return (
            f"constraint={self.name}|{self.at_most!r}|{self.stream}|{described(self.safe_value)}|"
            f"{described(self.model)}|{described(self.functional)}"
            + "|exact" * self.safe_value_exact
            + "|every draw" * self.every_draw
        )

    @property
    def words(self) -> str:
        """What is limited, where, and what is known of the safe action, in a line."""
        value = f"{self.functional!r}" + (f" of {self.outcome!r}" if self.outcome else "")
        known = "known by context" if callable(self.safe_value) else f"{self.safe_value}"
        exact = " (exact)" if self.safe_value_exact else ""
        return (
            f"{value} at most {self.at_most:g}{' for every draw' * self.every_draw}, safe "
            f"value {known}{exact}"
        )


@dataclass(frozen=True)
class KnownCost:
    """A cost that is known for every action, and so needs no model. Made by `known_cost`."""

    fn: Callable[[np.ndarray], Any]
    at_most: float
    name: str = "cost"
    every_draw: bool = False

    def __post_init__(self) -> None:
        check_limit(self.at_most, self.name)
        check_flag(self.every_draw, self.name)

    @property
    def declared(self) -> str:
        """All of it in one line, for `Problem.fingerprint`."""
        return f"known={self.name}|{self.at_most!r}|{described(self.fn)}" + (
            "|every draw" * self.every_draw
        )

    @property
    def words(self) -> str:
        """What is limited, in a line."""
        return f"a known cost at most {self.at_most:g}{' for every draw' * self.every_draw}"


def known_cost(
    fn: Callable[[np.ndarray], Any], *, at_most: float, name: str = "cost", every_draw: bool = False
) -> KnownCost:
    """A constraint on a cost that is not learned: ``fn(x)`` gives the cost of all K actions at one
    context x (dx,).

    Parameters
    ----------
    fn
        From a context (dx,) to (K,). It is believed.
    at_most, name, every_draw
        As for `Constraint`.

    Examples
    --------
    >>> known_cost(lambda x: [0.0, 1.0], at_most=0.1, name="queries").name
    'queries'
    """
    return KnownCost(fn, at_most, name, every_draw)


@dataclass(frozen=True, repr=False)
class Problem(Shown):
    """A repeated decision: K actions, a utility, limits, and an action known to be safe.

    Parameters
    ----------
    n_actions
        K; actions are 0, ..., K-1. Left out where `actions` names them.
    utility
        What to maximise.
    constraints
        `Constraint` and `known_cost` objects; may be empty (then nothing is limited).
    safe_action
        An action whose constrained values are known and under every limit. Needed when there is a
        learned constraint.
    safe_utility
        A lower bound on the safe action's utility, a number or a function of contexts; the
        utility's low if not given. It only sharpens exploration and never touches feasibility.
    learn_safe
        Whether rows of the safe action enter the fits. False where its outcome is trivial (cost
        exactly 0, say).
    reveals
        Boolean (K, K): playing a reveals the outcome of b too. The identity (bandit feedback) if
        not given; all ones is full information. Of outcomes told together as (K,) one is learned,
        that of the action played (or, where it is not revealed or not learned, the first that is),
        unless they are declared `independent`. One shared outcome is told as a single number; a
        model of the whole outcome vector is joint, and learns all of it.
    independent
        True says that outcomes revealed together are independent given the context: then each is a
        row of its own. It is believed: dependent ones taken for independent count the same evidence
        several times, and no set covers.
    outcome_age
        An outcome enters the fits when its decision is this many rounds old, whatever it is and
        however early it was told; one that is told later enters when it is told. 1, as soon as
        possible, is right only where the delay says nothing of the outcome. Where bad outcomes are
        told at once and good ones after a while, give the longest delay.
    actions
        Names, e.g. ``("placebo", "A", "B")``: action k has the k-th. Wherever an action is given,
        its name will do.
    columns
        Names of a context's columns, in the order in which the models see them, e.g. ``("age",
        "dose")``. Data frames, mappings and records are then read by name: `ask` takes these
        columns and no others, while logs and contexts to plan with may have more. ``{"sex": ("f",
        "m"), "age": float}`` declares levels, too: the models see the codes 0, 1, ... of a level.

    Notes
    -----
    What is declared is believed: ranges, safe values and classes. The guard holds outcomes against
    them and says when one is refuted, which takes rows.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework": `at_most` is its tau, `safe_value` its c_0 and `safe_utility` its r_0.

    Examples
    --------
    >>> coins, heads = problem.utility.model, ged.mean(0, 1)
    >>> limit = ged.Constraint(coins, heads, 0.5, safe_value=0.2, name="heads", outcome="utility")
    >>> ged.Problem(2, ged.Utility(coins, heads), [limit], safe_action=0).limits
    array([0.5])
    """

    n_actions: int = None  # type: ignore[assignment]  # set from `actions` where it is left out
    utility: Utility = None  # type: ignore[assignment]  # must be given; it has a default only because n_actions has one
    constraints: Sequence[Constraint | KnownCost] = ()
    safe_action: int | None = None  # or its name, until it is read
    safe_utility: NumberOrFunction | None = None
    learn_safe: bool = True
    reveals: np.ndarray | None = None
    independent: bool = False
    outcome_age: int = 1
    actions: Sequence[str] | None = None
    columns: Sequence[str] | Mapping[str, Any] | None = None
    streams: dict[str, DensityClass | MemberList] = field(init=False, compare=False)
    names: Names = field(init=False, compare=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "constraints", tuple(self.constraints))
        set_(self, "names", self._read_names())
        self._check_actions()
        set_(self, "streams", self._collect_streams())
        set_(self, "reveals", check_feedback(self))

    def learned_of(self, action: int) -> int | None:
        """Whose outcome is learned when several are revealed by playing `action`: known before
        any of them is.
        """
        if self.reveals is None:
            return action
        learned = [
            int(b)
            for b in np.flatnonzero(self.reveals[action])
            if self.learn_safe or b != self.safe_action
        ]
        return action if action in learned else next(iter(learned), None)

    @property
    def feedback(self) -> str:
        """How outcomes are learned, and what that takes for granted, in one sentence."""
        if self.outcome_age > 1:
            said = (
                f"outcomes are learned {self.outcome_age} rounds after their decision (later "
                "if they are told later)"
            )
        else:
            said = "outcomes are learned when they are told: their delay must say nothing of them"
        if self.reveals is None:
            return said
        together = "as independent given x, as declared" if self.independent else "one row a round"
        return f"{said}; of those revealed together, {together}"

    def _shown(self) -> Facts:
        """What is maximised, every limit with its safe value, and how each outcome will be
        bounded.
        """
        labels = self.names.labels
        facts = {"actions": ", ".join(labels), "utility": f"{self.utility.functional!r}"}
        facts |= {"context": self.names.context} if self.names.columns else {}
        for c in self.constraints:
            facts[f"limit {c.name!r}"] = c.words
        facts |= {f"model of {name!r}": f"{model!r}" for name, model in self.streams.items()}
        safe = "none" if self.safe_action is None else labels[self.safe_action]
        return f"Problem with {self.n_actions} actions, safe action {safe}", facts

    def _read_names(self) -> Names:
        actions, n_actions = declared_actions(self.actions, self.n_actions)
        if not is_whole(n_actions) or n_actions < 1:
            raise ProblemError(f"n_actions must be a positive whole number, got {n_actions!r}")
        columns = declared_columns(self.columns)
        names = Names(n_actions, actions, columns)
        given = self.columns
        kept = (
            dict(given)
            if isinstance(given, Mapping)
            else None
            if columns is None
            else tuple(columns)
        )
        safe = self.safe_action
        try:
            safe = None if safe is None else names.action(safe)
        except ActionRangeError as error:
            raise ProblemError(f"safe_action={safe!r}: {error}") from None
        for field_name, value in (
            ("actions", actions),
            ("n_actions", n_actions),
            ("columns", kept),
            ("safe_action", safe),
        ):
            object.__setattr__(self, field_name, value)
        return names

    def _check_actions(self) -> None:
        if not isinstance(self.utility, Utility):
            raise ProblemError(
                "a problem needs utility=Utility(model, functional), what to "
                f"maximise; got {self.utility!r}"
            )
        check_safe_action(self)

    @cached_property
    def learned(self) -> tuple[tuple[int, Constraint], ...]:
        """The limits whose cost is learned, each with its place among the constraints; a known
        cost is none of them.
        """
        return tuple((j, c) for j, c in enumerate(self.constraints) if isinstance(c, Constraint))

    @cached_property
    def known(self) -> tuple[tuple[int, KnownCost], ...]:
        """The limits on known costs, each with its place among the constraints."""
        return tuple((j, c) for j, c in enumerate(self.constraints) if isinstance(c, KnownCost))

    def _collect_streams(self) -> dict[str, DensityClass | MemberList]:
        """Outcome name -> model. Every model is fitted once for each outcome it explains."""
        streams: dict[str, DensityClass | MemberList] = {UTILITY: self.utility.model}
        names = [c.name for c in self.constraints]
        for name in names:
            if name == UTILITY or names.count(name) > 1:
                raise ProblemError(
                    f"every constraint needs a name of its own, other than {UTILITY!r}; {name!r} "
                    "is taken: set name="
                )
        learned = [c for _, c in self.learned]
        for c in learned:
            if c.outcome is None:
                streams[c.name] = c.model
        for c in learned:
            if c.stream not in streams:
                raise ProblemError(
                    f"constraint {c.name!r} shares the outcome {c.outcome!r}, which does not "
                    f"exist; choose from {list(streams)}"
                )
            if streams[c.stream] is not c.model:
                raise ProblemError(
                    f"constraint {c.name!r} shares the outcome and fit of {c.outcome!r}, so it "
                    "must use the very same model; "
                    "pass that model object, or leave outcome= out to learn from an outcome of its "
                    "own"
                )
        return streams

    # values at contexts x (n, dx) -----------------------------------------------------------------

    @cached_property
    def limits(self) -> np.ndarray:
        """The limits: (J,)."""
        limits = np.array([c.at_most for c in self.constraints], float)
        limits.setflags(write=False)
        return limits

    @cached_property
    def every_draw(self) -> np.ndarray:
        """Which limits hold for every action that may be drawn: (J,) bool."""
        which = np.array([c.every_draw for c in self.constraints], bool)
        which.setflags(write=False)
        return which

    @property
    def constraint_names(self) -> list[str]:
        return [c.name for c in self.constraints]

    def safe_values(self, x: np.ndarray) -> np.ndarray:
        """Each constraint's known value at the safe action, NaN where there is none: (n, J)."""
        if self._same_everywhere is not None:
            return np.repeat(self._same_everywhere, len(x), axis=0)
        before, values = self._latest[0]
        # one decision asks several times; contexts that can be written to are never taken for the
        # same
        if x is not before:
            values = self._safe_values(x)
            values.setflags(write=False)
            self._latest[0] = (None if x.flags.writeable else x, values)
        return values

    @cached_property
    def _latest(self) -> list[tuple[np.ndarray | None, np.ndarray]]:
        return [(None, np.zeros((0, 0)))]

    @cached_property
    def _same_everywhere(self) -> np.ndarray | None:
        """(1, J) the safe values, if none of them depends on the context."""
        numbers = not self.known and not any(callable(c.safe_value) for _, c in self.learned)
        return self._safe_values(np.zeros((1, 1))) if numbers else None

    def _safe_values(self, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), len(self.constraints)), np.nan)
        for j, c in self.learned:
            out[:, j] = check_safe_value(evaluate(c.safe_value, x, f"safe_value of {c.name!r}"), c)
        if self.safe_action is not None:
            for j, _ in self.known:
                out[:, j] = self.known_costs(j, x)[:, self.safe_action]
        return out

    def safe_utilities(self, x: np.ndarray) -> np.ndarray:
        """A lower bound on the safe action's utility: (n,), inside the utility's range."""
        low, high = self.utility.functional.low, self.utility.functional.high
        if self.safe_utility is None:
            return np.full(len(x), low)
        value = evaluate(self.safe_utility, x, "safe_utility")
        if np.any(value < low) or np.any(value > high):
            raise ProblemError(
                f"safe_utility must lie in the utility's range [{low}, {high}], got {value.min()} "
                f"to {value.max()}"
            )
        return value

    def known_costs(self, j: int, x: np.ndarray) -> np.ndarray:
        """The known cost j at contexts x: (n, K)."""
        c = dict(self.known)[j]
        out = np.array([np.asarray(c.fn(row), float) for row in x]).reshape(len(x), -1)
        if out.shape != (len(x), self.n_actions):
            raise ShapeError(
                f"known_cost {c.name!r} must return one cost for each of {self.n_actions} actions, "
                f"got {out.shape[1]}"
            )
        if np.isnan(out).any():
            raise ProblemError(
                f"known_cost {c.name!r} returned NaN; return a number for every action"
            )
        return out

    def with_actions(self, n_actions: int, names: Sequence[str] | None = None) -> Problem:
        """The same problem with more actions at the end; a new action reveals its own outcome only.

        `names` are those of all actions, if they have names.
        """
        if (names is None) != (self.actions is None):
            known = (
                "actions have no names here"
                if self.actions is None
                else f"the others are {listed(self.actions)}"
            )
            raise ProblemError(f"either all actions have names or none has: {known}, got {names!r}")
        reveals = self.reveals
        if reveals is not None:
            grown = np.eye(n_actions, dtype=bool)
            grown[: self.n_actions, : self.n_actions] = reveals
            reveals = grown
        return replace(self, n_actions=n_actions, reveals=reveals, actions=names)

    def with_limit(self, name: str, at_most: float) -> Problem:
        """The same problem with another limit on one constraint."""
        if name not in self.constraint_names:
            raise ProblemError(
                f"there is no constraint {name!r}; the constraints are {self.constraint_names}"
            )
        constraints = [
            replace(c, at_most=float(at_most)) if c.name == name else c for c in self.constraints
        ]
        return replace(self, constraints=constraints)

    def trace(self, x: Contexts) -> None:
        """Let every model see the first of contexts x (n, dx), or of records, under every action
        that it is asked about, so that its parameters are known; once is enough. A model with
        fewer arms than there are actions is an error here, not another arm's bound.
        """
        first = self.names.contexts(x)[0][:1]
        for model in self.streams.values():
            model.trace(first, np.zeros(1, np.int64))
            model.trace(*self._asked_about(first))

    def check_contexts(self, x: np.ndarray) -> None:
        """Refuse contexts x (n, dx) that read past the end of an array of some model's."""
        for model in self.streams.values():
            if model.reads_by_context:
                model.trace(*self._asked_about(x))

    def _asked_about(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every action that a model is asked about at each of x (n, dx)."""
        every = range(self.n_actions)
        asked = [a for a in every if self.learn_safe or a != self.safe_action]
        return np.repeat(x, len(asked), axis=0), np.tile(asked, len(x))

    def fingerprint(self) -> str:
        """A hash of the declaration and of the models' source, to tell one problem's journal
        from another's.
        """
        parts = [f"K={self.n_actions}", f"safe={self.safe_action}", f"learn_safe={self.learn_safe}"]
        parts += [f"reveals={None if self.reveals is None else self.reveals.tolist()}"]
        # journals from before this could be declared agree
        parts += [f"independent={self.independent}"] * self.independent
        parts += [f"outcome_age={self.outcome_age}"] * (self.outcome_age != 1)
        parts += [f"actions={self.actions!r}"] * (self.actions is not None)
        parts += [f"columns={self.names.columns!r}"] * (self.columns is not None)
        parts += [f"safe_utility={described(self.safe_utility)}"]
        parts += [f"utility={described(self.utility.model)}|{described(self.utility.functional)}"]
        parts += [c.declared for c in self.constraints]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def evaluate(value: NumberOrFunction | None, x: np.ndarray, what: str) -> np.ndarray:
    """A number, or a function of contexts, as (n,) floats."""
    out = np.asarray(value(x) if callable(value) else value, float)
    if out.shape != (len(x),):
        out = _one_each(out, x, what)
    if callable(value) and len(x) > 1:
        _check_alone(value, out, x, what)
    if not np.isfinite(out).all():
        raise ProblemError(f"{what} must be finite, got {out[~np.isfinite(out)][0]}")
    return out


def _check_alone(
    value: Callable[[np.ndarray], Any], out: np.ndarray, x: np.ndarray, what: str
) -> None:
    """Refuse a function that mixes contexts: x[0] is the first one's row, whichever is asked."""
    for i in (0, len(x) - 1):
        alone = np.ravel(np.asarray(value(x[i : i + 1]), float))
        if alone.shape != (1,) or not np.isclose(
            alone[0], out[i], rtol=1e-9, atol=0, equal_nan=True
        ):
            raise ProblemError(
                f"{what} gives context {i} of {len(x)} the value {out[i]:g} among the others and "
                f"{alone} alone; it is called with contexts (n, dx), a row each, and must give one "
                "number for each row from that row: x[:, 0], not x[0]"
            )


def _one_each(out: np.ndarray, x: np.ndarray, what: str) -> np.ndarray:
    try:
        return np.broadcast_to(out.reshape(-1) if out.ndim else out, (len(x),))
    except ValueError:
        raise ShapeError(
            f"{what} must give one number for each of {len(x)} contexts, got shape {out.shape}"
        ) from None
