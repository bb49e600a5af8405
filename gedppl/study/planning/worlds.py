"""Worlds made of a problem's own models: a guess of the truth, or a draw from the prior, as an
environment to simulate in.

Axis letters: n contexts, K actions, J constraints, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gedppl.density import Density
from gedppl.divergences.leaves import in_numpy
from gedppl.errors import FunctionalError, ProblemError, SettingError, ShapeError
from gedppl.problem import UTILITY, Problem
from gedppl.problem.names import as_table
from gedppl.rows import distinct, grid
from gedppl.study.simulation import Environment
from gedppl.theory.eluder.classes import draw_members

ROUNDING = 1e-9  # of a declared value
REDRAWS = 200  # prior draws tried before giving up on one inside the functionals' ranges


@dataclass(frozen=True)
class Scenario:
    """A guess of the truth to plan with.

    Parameters
    ----------
    truth
        By outcome (``"utility"`` and the constraints' names): params by site, or a member's number
        for a finite class. Outcomes left out are drawn from the prior, anew in every replicate.
    noise
        Outcomes are spread about their mean by this factor more than the model says: a misspecified
        world. 1 is the model.
    world
        A function of the replicate's seed that returns an environment of one's own, where no
        parameters of the models are the guess: dose-response curves by hand, logged patients. Then
        `truth` and `noise` have no part.

    >>> Scenario({"cost": {"p": [0.1, 0.4]}}, noise=2.0).noise  # utilities are drawn from the prior
    2.0
    """

    truth: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 1.0
    world: Callable[[int], Environment] | None = None


def read_rows(problem: Problem, contexts: Any) -> np.ndarray:
    """Contexts to draw from, (n, dx). Columns that the problem does not declare are passed over:
    contexts like those to come are mostly a log. What `ask` decides on has the declared ones alone.
    """
    table = as_table(contexts)
    x, single = (
        problem.names.contexts(contexts)
        if table is None
        else problem.names.by_name(*table, more=True)
    )
    if single:
        raise ShapeError(f"contexts must be (n, dx) with at least one row, got shape {x[0].shape}")
    return np.ascontiguousarray(x)


class ModelWorld:
    """An environment whose contexts are drawn from rows (n, dx) and whose outcomes follow the
    problem's own models.

    The safe action's constrained values are those declared: they are known, so the guess does not
    change them.
    """

    def __init__(
        self, problem: Problem, truth: Mapping[str, Any], contexts: np.ndarray, noise: float = 1.0
    ) -> None:
        self.problem, self.truth, self.contexts, self.noise = problem, dict(truth), contexts, noise
        rows, _ = distinct(contexts)
        n, K = len(rows), problem.n_actions
        self._place = {row.tobytes(): i for i, row in enumerate(rows)}
        x, a = self._rows_asked = grid(rows, K)
        self._densities = {
            name: _density(cls, truth[name], x, a) for name, cls in problem.streams.items()
        }
        self._rows: dict[tuple[str, int], Density] = {}
        utility = problem.utility
        self._utilities = _values(utility.model, truth[UTILITY], utility.functional, x, a).reshape(
            n, K
        )
        self._costs = np.empty((n, len(problem.constraints), K))
        self.agrees = True  # the safe action is, by this truth, as safe as it was declared
        for j, _ in problem.known:
            self._costs[:, j] = problem.known_costs(j, rows)
        for j, c in problem.learned:
            values = _values(c.model, truth[c.stream], c.functional, x, a)
            self._costs[:, j] = values.reshape(n, K)
            declared = problem.safe_values(rows)[:, j]
            if problem.learn_safe:
                own = self._costs[:, j, problem.safe_action]
                self.agrees &= bool(np.all(own <= declared + ROUNDING * np.abs(declared)))
            self._costs[:, j, problem.safe_action] = declared
        if noise != 1 and any(d.kind != "continuous" for d in self._densities.values()):
            raise SettingError(
                "noise other than 1 is for continuous outcomes; describe a discrete "
                "world by its own parameters"
            )

    def context(self, rng: np.random.Generator) -> np.ndarray:
        found: np.ndarray = self.contexts[rng.integers(len(self.contexts))]
        return found

    def utilities(self, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._utilities[self._place[x.tobytes()]]
        return found

    def costs(self, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._costs[self._place[x.tobytes()]]
        return found

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        drawn = {
            name: self._draw(name, self._place[x.tobytes()], action, rng)
            for name in self._densities
        }
        y = drawn.pop(UTILITY)
        return y, drawn or None

    def _draw(self, name: str, i: int, action: int, rng: np.random.Generator) -> Any:
        reveals = self.problem.reveals
        if reveals is None:
            return self._one(name, i, action, rng)
        shown = np.full(self.problem.n_actions, np.nan)
        for b in np.flatnonzero(reveals[action]):
            shown[b] = self._one(name, i, int(b), rng)
        return shown

    def _one(self, name: str, i: int, action: int, rng: np.random.Generator) -> Any:
        key = (name, i * self.problem.n_actions + action)
        if key not in self._rows:
            self._rows[key] = self._row(name, key[1])
        density = self._rows[key]
        value = density.draw_samples(rng, density.batch_shape)
        if density.batch_shape:
            value = value[0]
        if self.noise != 1:
            value = np.asarray(density.mean) + self.noise * (value - np.asarray(density.mean))
        return value if density.event_shape else float(value)

    def _row(self, name: str, row: int) -> Density:
        """One row's density; of a distribution that only its PPL knows a batch of that row."""
        whole = self._densities[name]
        if whole.kind != "external":
            return whole[row]
        x, a = self._rows_asked
        model = self.problem.streams[name]
        return _density(model, self.truth[name], x[row : row + 1], a[row : row + 1])


def make_world(
    problem: Problem, scenario: Scenario, contexts: np.ndarray, seed: int, agreeing: bool = True
) -> Environment:
    """The world of a scenario: outcomes it does not describe are drawn from the prior with this
    seed.

    A prior draw whose functional leaves its declared range at some context is drawn again, and so
    is one under which the safe action is less safe than declared: what was declared is known. Where
    no draw agrees with the declared safe value, the first stands, and the run's alarms show it;
    without `agreeing` the first stands anyway.
    """
    if scenario.world is not None:
        return scenario.world(seed)
    unknown = set(scenario.truth) - set(problem.streams)
    if unknown:
        raise ProblemError(
            f"the scenario describes {sorted(unknown)}; the outcomes are {list(problem.streams)}"
        )
    problem.trace(contexts)
    given = {name: _settled(problem.streams[name], value) for name, value in scenario.truth.items()}
    missing = [name for name in problem.streams if name not in given]
    first = None
    for attempt in range(REDRAWS if missing else 1):
        drawn = {
            name: _prior(problem.streams[name], seed + 104_729 * attempt + k)
            for k, name in enumerate(missing)
        }
        try:
            world = ModelWorld(problem, given | drawn, contexts, scenario.noise)
        except FunctionalError as error:
            if not missing:
                raise
            latest = error
            continue
        if world.agrees or not missing or not agreeing:
            return world
        first = first or world
    if first is not None:
        return first
    raise FunctionalError(
        f"{REDRAWS} draws from the prior of {missing} all left a functional's range ({latest}); "
        "describe the truth in "
        "scenarios=, or declare bounds= and ranges that fit the prior"
    )


def _settled(cls: Any, value: Any) -> Any:
    """Params as a flat vector, or a member's number."""
    return cls.visit(
        lambda members: int(value),
        lambda cls: cls.flatten(value) if hasattr(value, "keys") else np.asarray(value, float),
    )


def _prior(cls: Any, seed: int) -> Any:
    return cls.visit(
        lambda members: int(members.draw_prior(1, seed)[0]),
        lambda cls: draw_members(cls, 1, seed)[0],
    )


def _density(cls: Any, truth: Any, x: np.ndarray, a: np.ndarray) -> Density:
    return in_numpy(cls.density_at(truth, x, a))


def _values(cls: Any, truth: Any, functional: Any, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.asarray(cls.values(functional, np.asarray(truth)[None], x, a), float)[0]
    functional.check(values)
    return values
