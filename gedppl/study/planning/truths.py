"""Truths that keep what was declared: draws from the prior inside every range, with a safe action
as safe as was said.

A prior is rarely written with all ranges in mind, and of a dozen parameters hardly any draw keeps
them at every context. So the draw that breaks the declaration least is moved by elliptical slices
(Murray, Adams and MacKay 2010) that never break it more: the prior around its centre is left as it
is, restricted to what was declared.

Axis letters: M parameters at once, n contexts, K actions, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gedppl.errors import FunctionalError
from gedppl.functionals import Functional
from gedppl.ged_ucb.costs import holds_parameters
from gedppl.problem import UTILITY, Constraint, Problem
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.rows import distinct, grid
from gedppl.study.planning.worlds import ModelWorld
from gedppl.study.simulation import constrained_best
from gedppl.theory.eluder.classes import draw_members

ANGLES = 32  # of an ellipse, tried together
SLICES, MIXING = 400, 30  # at most, and after the declaration is kept
WORLDS = 20  # drawn until one gives a reason to leave the safe action
WORTH_LEAVING = 0.5  # share of decisions in which the best policy leaves it
ROUNDING = 1e-9  # share of a range

# theta (M, D) -> (M,), by how much of its range a value breaks the declaration
Excess = Callable[[np.ndarray], np.ndarray]


def declared_world(
    problem: Problem, contexts: np.ndarray, seed: int, worth_leaving: float = WORTH_LEAVING
) -> ModelWorld:
    """A world of the problem's own models that keeps every declaration and in which it pays to
    leave the safe action.

    `worth_leaving` is the share of decisions in which the best policy leaves it; 0 takes the first
    world. If none of a few does so often, the last of them: then even the best policy mostly plays
    safe.
    """
    for attempt in range(WORLDS):
        drawn = np.random.SeedSequence([seed, attempt]).generate_state(len(problem.streams))
        truth = {
            name: _truth(problem, name, contexts, int(s % 2**31))
            for name, s in zip(problem.streams, drawn)
        }
        world = ModelWorld(problem, truth, contexts)
        if not worth_leaving or _share_left(problem, world) >= worth_leaving:
            break
    return world


def safe_value_can_be_exact(problem: Problem, c: Constraint, world: ModelWorld) -> bool:
    """Whether an exact safe value would be used, and is true in this world."""
    if not problem.learn_safe or not holds_parameters(replace(c, safe_value_exact=True)):
        return False
    features, wanted = _safe_equations(problem, c, world.contexts)
    size = max(abs(c.functional.low), abs(c.functional.high))
    return bool(np.abs(features @ world.truth[c.stream] - wanted).max() <= ROUNDING * size)


def _share_left(problem: Problem, world: ModelWorld) -> float:
    rows, which = distinct(world.contexts)
    best = [constrained_best(problem, world.utilities(x), world.costs(x))[0] for x in rows]
    return 1 - float(np.array([policy[problem.safe_action] for policy in best])[which].mean())


def _truth(problem: Problem, stream: str, contexts: np.ndarray, seed: int) -> Any:
    """A member's number, or flat parameters (D,)."""
    cls = problem.streams[stream]

    def excess(theta: np.ndarray) -> np.ndarray:
        found = _excess(problem, stream, contexts, lambda f, x, a: cls.values(f, theta, x, a))
        return np.where(cls.inside(theta), found, np.inf)

    def member(members: MemberList) -> int:
        kept = np.flatnonzero(excess(members.every) <= ROUNDING)
        if not len(kept):
            raise _nothing_kept(stream, f"none of the {members.size} members")
        return int(np.random.default_rng(seed).choice(kept))

    def parameters(cls: DensityClass) -> np.ndarray:
        drawn = _inside_the_declaration(cls, excess, stream, seed)
        return _held_to_safe_values(problem, stream, contexts, drawn, excess)

    return cls.visit(member, parameters)


def _excess(
    problem: Problem,
    stream: str,
    contexts: np.ndarray,
    values: Callable[[Functional, np.ndarray, np.ndarray], Any],
) -> np.ndarray:
    """By how much of its range, at worst, a value of this outcome leaves it or the safe action
    is less safe than declared.
    """
    contexts, _ = distinct(contexts)
    x, a = grid(contexts, problem.n_actions)
    at_safe = (a == problem.safe_action) & problem.learn_safe
    # a functional, what was said of the safe action (n,), and on which side of that it may not lie
    said: list[tuple[Functional, np.ndarray, float]] = []
    if stream == UTILITY:
        said.append((problem.utility.functional, problem.safe_utilities(contexts), -1.0))
    for j, c in problem.learned:
        if c.stream == stream:
            said.append((c.functional, problem.safe_values(contexts)[:, j], 1.0))
    worst = []
    for f, of_safe, side in said:
        v = np.asarray(values(f, x, a), float)
        worst.append(np.maximum(v - f.high, f.low - v).max(axis=1) / (f.high - f.low))
        if at_safe.any():
            worst.append((side * (v[:, at_safe] - of_safe)).max(axis=1) / (f.high - f.low))
    found = np.max(worst, axis=0)
    return np.where(np.isnan(found), np.inf, np.maximum(found, 0.0))


def _inside_the_declaration(cls: Any, excess: Excess, stream: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    start = np.asarray(draw_members(cls, ANGLES, seed), float)
    found = excess(start)
    if (found <= ROUNDING).any():
        result: np.ndarray = start[int(np.argmax(found <= ROUNDING))]
        return result
    theta, now, centre = (
        start[int(np.argmin(found))],
        float(found.min()),
        np.asarray(cls.initial, float),
    )
    spokes = np.asarray(cls.draw_prior(SLICES, seed + 1), float) - centre
    left = MIXING
    for spoke in spokes:
        angle = _shrinking_angles(rng)[:, None]
        tried = centre + (theta - centre) * np.cos(angle) + spoke * np.sin(angle)
        worst = excess(tried)
        no_worse = np.flatnonzero(worst <= now)
        if len(no_worse):
            theta, now = tried[no_worse[0]], float(worst[no_worse[0]])
        left -= now <= ROUNDING
        if left <= 0:
            answer: np.ndarray = theta
            return answer
    if now <= ROUNDING:
        out: np.ndarray = theta
        return out
    raise _nothing_kept(stream, f"{SLICES} steps from the prior's draws found no parameters")


def _shrinking_angles(rng: np.random.Generator) -> np.ndarray:
    """(ANGLES,) places on an ellipse, each between 0, where we are, and the nearest tried before
    on its side.
    """
    first = rng.uniform(0, 2 * np.pi)
    low, high, out = first - 2 * np.pi, first, [first]
    while len(out) < ANGLES:
        angle = rng.uniform(low, high)
        low, high = (angle, high) if angle < 0 else (low, angle)
        out.append(angle)
    return np.array(out)


def _nothing_kept(stream: str, what: str) -> FunctionalError:
    return FunctionalError(
        f"{what} of the model of {stream!r} that keep what was declared of it at the given "
        "contexts: low= and high= of its "
        "functionals, bounds=, safe_value. Declare what can be true of this model, or centre its "
        "prior (init=) where it is"
    )


def _held_to_safe_values(
    problem: Problem, stream: str, contexts: np.ndarray, theta: np.ndarray, excess: Excess
) -> np.ndarray:
    """The nearest parameters at which safe values are exact, where these are linear equations
    and nothing else is broken.
    """
    for _, c in problem.learned:
        if c.stream == stream and holds_parameters(replace(c, safe_value_exact=True)):
            features, wanted = _safe_equations(problem, c, contexts)
            held = theta + np.linalg.lstsq(features, wanted - features @ theta, rcond=None)[0]
            theta = held if excess(np.tile(held, (ANGLES, 1)))[0] <= ROUNDING else theta
    return theta


def _safe_equations(
    problem: Problem, c: Constraint, contexts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, D) and values (n,): the safe action's mean, less what does not depend on the
    parameters.
    """
    safe = np.full(len(contexts), problem.safe_action)
    j = problem.constraint_names.index(c.name)
    predictor = c.model.predictor
    assert predictor is not None  # see `holds_parameters`
    offset = np.asarray(predictor.offset(contexts, safe), float)
    features = np.asarray(predictor.features(contexts, safe), float)
    return features, problem.safe_values(contexts)[:, j] - offset
