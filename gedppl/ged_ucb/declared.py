"""What was declared of a problem, held against the parameters that the data still allow.

A range, a safe value and bounds on parameters are hypotheses like the model itself. If the truth lies in the confidence set
in all rounds, which has probability 1 - delta, then a declaration that holds for no parameter in the set is wrong: this may be
looked at whenever one likes, and it spends no delta of its own. What is looked at is the set before the declared range cuts it
(`Bounds.free_lower`, `free_upper`) and before the safe action is pinned to its declared value. Bounds that are not proved
refute nothing: a search from inside the set may miss the parameter that meets the declaration.

Blame goes, in this order, to the class (its set is empty, and nothing was declared that cut it), to a single declaration, and
to several together where the set was cut by more than one.

Axis letters: n contexts, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gedppl.errors import ProblemError
from gedppl.ged_ucb.state import State
from gedppl.learning.learner import Bounds
from gedppl.learning.loc_ranges import is_mean
from gedppl.learning.seen_class import served
from gedppl.names import Names
from gedppl.problem import Constraint, KnownCost, Problem

ROUNDING = 1e-9  # share of the numbers compared: a declaration is refuted beyond this only
NEGLIGIBLE = 1e-9  # share of the room between safe value and limit
OF_CONSTRAINTS = ("range", "safe_value")  # alarms about what was declared of one constraint
BY_LIMIT = ("limit", "certified")  # named by a constraint too, but they doubt its outcome; all others are named by an outcome
DECLARATIONS = (*OF_CONSTRAINTS, "bounds", "declared")
KINDS = (*DECLARATIONS, "empty")  # an empty set is the class's own fault


@dataclass(frozen=True)
class Refuted:
    """One finding: `name` is the alarm's, the kind and the constraint or outcome it is about."""

    name: str
    sentence: str


def refuted(problem: Problem, x: np.ndarray, bounds: Sequence[Bounds | None], *, watching: bool = True) -> tuple[Refuted, ...]:
    """What the sets behind these bounds (J) at contexts x (n, dx) refute.

    Bounds that come from draws guarantee nothing, and have a set beside them only to hold declarations against. It is dearer than
    they are, so that it is left alone where nobody is watching.
    """
    found: dict[str, Refuted] = {}
    safe_values = problem.safe_values(x)
    for c, b, safe in zip(problem.constraints, bounds, safe_values.T):
        if not isinstance(c, Constraint) or b is None:
            continue
        if b.find_watched is not None and not watching:
            continue
        b = b.watched
        one = _empty(problem, c) if b.empty else None
        news = [one] if one is not None else [_range(problem.names, c, b, x), _safe_value(problem, c, b, x, safe)]
        found |= {r.name: r for r in news if r is not None}
    return tuple(found.values())


def doubts(problem: Problem, said: Mapping[str, str]) -> dict[str, str]:
    """Constraint -> why nothing is guaranteed of it, from alarms by name -> sentence.

    A declaration of one constraint (`OF_CONSTRAINTS`) concerns it alone; whatever else is doubted of an outcome concerns all
    limits that rest on it.
    """
    streams = {c.name: c.stream for _, c in problem.learned}
    out: dict[str, str] = {}
    for name, sentence in said.items():
        kind, _, about = name.partition(":")
        stream = streams.get(about) if kind in BY_LIMIT else about
        for c in problem.constraints:
            if c.name == about if kind in OF_CONSTRAINTS else stream is not None and streams.get(c.name) == stream:
                out.setdefault(c.name, sentence)
    return out


def _empty(problem: Problem, c: Constraint) -> Refuted:
    held = [
        f"the exact safe_value of {other.name!r}"
        for other in problem.constraints
        if isinstance(other, Constraint) and other.stream == c.stream and holds_parameters(other)
    ]
    sites = ", ".join(sorted(c.model.bounds))
    if not held and not sites:
        return Refuted(
            f"empty:{c.stream}",
            f"no parameter of the model of {c.stream!r} is left: the data exclude every one. The class does not hold the truth; "
            "fall back to the safe action and revise the model",
        )
    if not held:
        return Refuted(
            f"bounds:{c.stream}",
            f"the bounds declared on the parameters ({sites}) of the model of {c.stream!r} are refuted: the data leave no "
            "parameter inside them. Declare wider bounds, or, if none would do, revise the model",
        )
    blamed = ", ".join([*held, *([f"the bounds on {sites}"] if sites else [])])
    return Refuted(
        f"declared:{c.stream}",
        f"what was declared of {c.stream!r} is refuted together with its model: no parameter meets {blamed} and the data. "
        "Declare less: drop safe_value_exact, widen the bounds, or revise the model",
    )


def _watched(b: Bounds) -> bool:
    return b.guaranteed and b.free_lower is not None and b.free_upper is not None


def _range(names: Names, c: Constraint, b: Bounds, x: np.ndarray) -> Refuted | None:
    """Refuted if all values that the set allows some action lie on one side of the declared range."""
    if not _watched(b):
        return None
    assert b.free_lower is not None
    assert b.free_upper is not None
    f = c.functional
    slack = ROUNDING * max(abs(f.low), abs(f.high))
    over = np.where(np.isfinite(b.free_lower), b.free_lower - f.high, -np.inf)
    under = np.where(np.isfinite(b.free_upper), f.low - b.free_upper, -np.inf)
    gap = np.maximum(over, under)
    if not gap.max() > slack:
        return None
    i, a = np.unravel_index(int(gap.argmax()), gap.shape)
    above = over[i, a] >= under[i, a]
    value, end = (b.free_lower[i, a], "high") if above else (b.free_upper[i, a], "low")
    return Refuted(
        f"range:{c.name}",
        f"the range [{f.low:g}, {f.high:g}] declared for the {f.name} of {c.name!r} is refuted: at context {_shown(x[i])} the "
        f"data leave action {names.label(int(a))} no value but {'above' if above else 'below'} {value:.6g}. Declare {end}= so "
        f"that it bounds the {f.name} of every action at every context",
    )


def _safe_value(problem: Problem, c: Constraint, b: Bounds, x: np.ndarray, safe: np.ndarray) -> Refuted | None:
    """An upper bound c0 is refuted from above only, an exact value from both sides; where the model learns the safe action."""
    if not _watched(b) or not problem.learn_safe:
        return None
    assert b.free_lower is not None
    assert b.free_upper is not None
    assert problem.safe_action is not None
    label = problem.names.label(problem.safe_action)
    lower, upper = b.free_lower[:, problem.safe_action], b.free_upper[:, problem.safe_action]
    over = np.where(np.isfinite(lower), lower - safe, -np.inf)
    under = np.where(np.isfinite(upper) & c.safe_value_exact, safe - upper, -np.inf)
    gap = np.maximum(over, under)
    i = int(gap.argmax())
    reached = lower[i] if over[i] >= under[i] else upper[i]
    # limits are kept to a share of the room that the safe value leaves, so what exceeds it by less breaks nothing: a chance of
    # 1e-150 is no evidence against one of 0
    slack = max(ROUNDING * max(abs(float(safe[i])), abs(float(reached))), NEGLIGIBLE * (c.at_most - float(safe[i])))
    if not gap[i] > slack:
        return None
    above = over[i] >= under[i]
    return Refuted(
        f"safe_value:{c.name}",
        f"safe_value={safe[i]:g} of {c.name!r} is refuted: at context {_shown(x[i])} the data leave the safe action "
        f"{label} no {c.functional.name} but {'above' if above else 'below'} {reached:.6g}. Declare "
        f"{'a value that is not exceeded' if above else 'the value itself, or drop safe_value_exact'}, or name another "
        "safe action",
    )


def _shown(x: np.ndarray) -> str:
    return np.array2string(x, precision=4, threshold=8, separator=", ")


# exact safe values ----------------------------------------------------------------------------------------------------


def known_directions(problem: Problem, x: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The paper's T(g_{x,a0}) = c_0 as linear equations: stream -> (features (m, D), values (m,)), for a first context x (1, dx).

    The safe value is exact at every context if it is declared so, hence at this one: whether the safe action's features change
    with x need not be known. Where they do not, this is all there is to know; where they do, it is one valid equation.
    """
    known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for j, c in enumerate(problem.constraints):
        if not holds_parameters(c):
            continue
        assert isinstance(c, Constraint)
        action = np.array([problem.safe_action])
        predictor = served(c.model).predictor  # in the coordinates that its learner has
        features = np.asarray(predictor.features(x, action), float)
        value = problem.safe_values(x)[:, j] - np.asarray(predictor.offset(x, action), float)
        before = known.get(c.stream, (np.zeros((0, features.shape[1])), np.zeros(0)))
        if not np.abs(features).max() > 0 and np.abs(value).max() > 1e-9 * np.abs(problem.safe_values(x)[:, j]).max():
            raise ProblemError(
                f"safe_value of constraint {c.name!r} is declared exact, but whatever its parameters the model gives the safe "
                f"action {problem.safe_values(x)[0, j] - value[0]:g}, not {problem.safe_values(x)[0, j]:g}; mend the model or "
                "drop safe_value_exact"
            )
        known[c.stream] = np.concatenate([before[0], features]), np.append(before[1], value)
    return known


def exactness_notes(state: State) -> list[str]:
    """Where an exact safe value was declared: that it is believed, or why it was not used."""
    notes = []
    for _, c in state.problem.learned:
        if c.safe_value_exact:
            space = getattr(state.learners[c.stream], "space", None)
            if holds_parameters(c) and space is not None and space.known:
                notes.append(f"the safe action's value of {c.name!r} is believed exact, as declared: parameters are held to it")
            else:
                notes.append(
                    f"safe_value_exact of {c.name!r} was not used: only the mean of a linear-Gaussian class with its closed-form "
                    "set can be held to it"
                )
    return notes


def holds_parameters(c: Constraint | KnownCost) -> bool:
    """Whether an exact safe value is one linear equation in the parameters."""
    if not isinstance(c, Constraint) or not c.safe_value_exact or not is_mean(c.functional):
        return False
    predictor = c.model.predictor
    return predictor is not None and predictor.family == "Normal" and predictor.link == "identity"
