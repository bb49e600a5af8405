"""What a user might know beyond what was declared: each a problem with one declaration that is
halfway to the truth.

The truth is that of simulated worlds, so every declaration here is true in them. No limit is ever
changed.

Axis letters: M parameters at once, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from gedppl.problem import UTILITY, Constraint, Problem
from gedppl.programs.contract import DensityClass, MemberList, T
from gedppl.programs.program import ProgramClass
from gedppl.study.planning.truths import safe_value_can_be_exact
from gedppl.study.planning.worlds import ModelWorld

RANGELESS = ("probability",)  # functionals whose range is not the user's to declare


@dataclass(frozen=True)
class Declaration:
    """One thing to declare: in words, and the problem that declares it in a world."""

    kind: str  # "range", "bounds", "prior" or "safe value"
    words: str
    problem: Callable[[ModelWorld], Problem]


def declarations(problem: Problem, worlds: Sequence[ModelWorld]) -> list[Declaration]:
    """All that could be declared of the learned constraints, each alone."""
    learned = [(j, c) for j, c in problem.learned]
    streams = {c.stream: c.model for _, c in learned}
    found = [_range(problem, j, c, worlds) for j, c in learned]
    found += [_bounds(problem, stream, cls, worlds) for stream, cls in streams.items()]
    found += [_prior(problem, stream, cls) for stream, cls in streams.items()]
    found += [_exact(problem, c, worlds) for _, c in learned]
    return [one for one in found if one is not None]


def _range(
    problem: Problem, j: int, c: Constraint, worlds: Sequence[ModelWorld]
) -> Declaration | None:
    """An upper end halfway to the largest true value."""
    f = c.functional
    largest = max(float(world.costs(x)[j].max()) for world in worlds for x in world.contexts)
    high = max(c.at_most, 0.5 * (f.high + largest))
    if f.name in RANGELESS or not high < f.high:
        return None
    told = replace(
        problem, constraints=_replaced(problem, c, replace(c, functional=replace(f, high=high)))
    )
    return Declaration(
        "range", f"range of {c.name!r} ends at {high:.3g}, not {f.high:.3g}", lambda _: told
    )


def _bounds(
    problem: Problem, stream: str, cls: Any, worlds: Sequence[ModelWorld]
) -> Declaration | None:
    """Bounds on parameters halfway to the truth; where there are none, twice as far as the
    truth.
    """
    if not isinstance(cls, ProgramClass):
        return None
    places = cls.unflatten(np.stack([*(world.truth[stream] for world in worlds), cls.initial]))
    declared, told = cls.bounds, dict(cls.bounds)
    for site, values in places.items():
        flat = np.asarray(values, float).reshape(len(worlds) + 1, -1)
        norm = float(np.linalg.norm(flat, axis=1).max())
        bound = declared.get(site)
        if bound is None:
            told[site] = 2 * norm
        elif isinstance(bound, float):
            told[site] = 0.5 * (bound + norm)
        else:
            low, high = bound
            told[site] = (
                0.5 * (low + np.asarray(values).min(axis=0)),
                0.5 * (high + np.asarray(values).max(axis=0)),
            )
    tighter = with_model(problem, stream, cls.with_bounds(told))
    return Declaration("bounds", f"bounds of {stream!r}: {_shown(told)}", lambda _: tighter)


def _prior(problem: Problem, stream: str, cls: DensityClass | MemberList) -> Declaration | None:
    """A prior of half the spread; for parameters without one, half of a standard normal."""
    return cls.visit(lambda members: None, lambda cls: _halved(problem, stream, cls))


def _halved(problem: Problem, stream: str, cls: DensityClass) -> Declaration:
    words = f"prior of {stream!r}: " + ("of sd 0.5" if np.all(cls.prior_free) else "half the sd")
    return Declaration(
        "prior",
        words,
        lambda world: with_model(problem, stream, HalfwayPrior(cls, world.truth[stream])),
    )


def _exact(problem: Problem, c: Constraint, worlds: Sequence[ModelWorld]) -> Declaration | None:
    if c.safe_value_exact or not all(
        safe_value_can_be_exact(problem, c, world) for world in worlds
    ):
        return None
    told = replace(problem, constraints=_replaced(problem, c, replace(c, safe_value_exact=True)))
    return Declaration("safe value", f"safe value of {c.name!r} is exact", lambda _: told)


class HalfwayPrior:
    """A class whose prior is drawn halfway to theta0, (D,): of (theta + theta0) / 2 for theta from
    the class's own.

    It has half the spread, and the truth lies as many standard deviations from its centre as
    before. Parameters without a prior are taken to be standard normal around their initial value,
    as they are drawn.
    """

    def __init__(self, cls: Any, theta0: np.ndarray) -> None:
        self._cls, self._theta0 = cls, np.asarray(theta0, float)
        self._weak = np.asarray(cls.prior_free, float)  # (D,) 1 where the standard normal stands in
        self.prior_free = np.zeros(cls.dim, bool)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name)

    def visit(
        self, finite: Callable[[MemberList], T], parametric: Callable[[DensityClass], T]
    ) -> T:
        return parametric(cast(DensityClass, self))

    def _before(self, theta: np.ndarray) -> np.ndarray:
        found: np.ndarray = 2 * np.asarray(theta, float) - self._theta0
        return found

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        before = self._before(theta)
        weak = 0.5 * (self._weak * (before - self._cls.initial) ** 2).sum(axis=-1)
        found: np.ndarray = self._cls.log_prior(before) - weak + self._cls.dim * np.log(2)
        return found

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        before = self._before(theta)
        grad, hessian = self._cls.log_prior_grad_hessian(before)
        return 2 * (grad - self._weak * (before - self._cls.initial)), 4 * (
            hessian - np.diag(self._weak)
        )

    def draw_prior(self, n: int, seed: int) -> np.ndarray:
        found: np.ndarray = 0.5 * (self._cls.draw_prior(n, seed) + self._theta0)
        return found


def with_model(problem: Problem, stream: str, model: Any) -> Problem:
    """The same problem with another class for one outcome, wherever it is used."""
    utility = replace(problem.utility, model=model) if stream == UTILITY else problem.utility
    constraints = list(problem.constraints)
    for j, c in problem.learned:
        if c.stream == stream:
            constraints[j] = replace(c, model=model)
    return replace(problem, utility=utility, constraints=constraints)


def _replaced(problem: Problem, old: Constraint, new: Constraint) -> list[Any]:
    return [new if c is old else c for c in problem.constraints]


def _shown(bounds: Mapping[str, Any]) -> str:
    return ", ".join(
        f"|{name}| <= {b:.3g}" if isinstance(b, float) else f"{name} in a smaller box"
        for name, b in bounds.items()
    )
