"""Which rows speak about an action: groups of actions that own parameters, and the share of delta
that each group's set gets.

An e-process may leave out rows by any rule that does not look at their outcomes, for instance all
rows of other actions. Its evidence is paid per parameter: K actions with d parameters of their own
cost (K d / 2) log n in one common process, and (d / 2) log n + log K in one for each. What an
action depends on is known before any data; were it read wrongly, sets would be wider, never wrong:
every group's set is valid by itself.

Axis letters: K actions, D flat parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gedppl.errors import ContextRangeError, GedError
from gedppl.learning.learner import Group
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass

PROBES = 24
PROGRAM_PROBES = 4  # settings and outcomes of a program
SHOWN = 6  # groups named in a sentence
WHOLE = 0.05  # share of delta for all rows beside groups that have nothing in common


def named(groups: Sequence[Group]) -> str:
    """The groups in words; of many, the first few.

    >>> named([Group(None, 0.1, 6), *(Group((a,), 0.3, 2) for a in range(2))])
    'all rows (6 parameters), action 0 (2 parameters), action 1 (2 parameters)'
    """
    rest = len(groups) - SHOWN
    return ", ".join([*map(str, groups[:SHOWN]), *[f"and {rest} more"] * (rest > 0)])


def one_group(dim: int) -> tuple[Group, ...]:
    return (Group(None, 1.0, dim),)


def action_groups(depends: np.ndarray, wanted: Sequence[int] | None = None) -> tuple[Group, ...]:
    """Groups for actions that depend on parameters as `depends` (K, D) says; `wanted`: those whose
    bounds will be asked for.

    Components of the graph of actions and parameters, if there are several: one group each, and a
    twentieth of delta for all rows (for actions that come later, for those not wanted, and for what
    a wrong reading would miss). One component in which at least two actions own parameters: half of
    delta for all rows, half for the actions. Otherwise all rows alone.

    >>> [str(g) for g in action_groups(np.kron(np.eye(2, dtype=bool), np.ones((1, 3), bool)))]
    ['all rows (6 parameters)', 'action 0 (3 parameters)', 'action 1 (3 parameters)']
    """
    K, D = depends.shape
    actions = range(K) if wanted is None else wanted
    if D == 0 or K < 2:
        return one_group(D)
    # what has no parameters needs no set
    every = _components(depends, [a for a in range(K) if depends[a].any()])
    parts = [part for part in every if set(part) & set(actions)]
    if len(every) > 1 and parts:
        share = (1 - WHOLE) / len(parts)
        own = [Group(part, share, int(depends[list(part)].any(axis=0).sum())) for part in parts]
        return (Group(None, WHOLE, D), *own)
    users = depends[list(actions)].sum(axis=0)
    owners = [a for a in actions if np.any(depends[a] & (users == 1))]
    if len(owners) < 2:
        return one_group(D)
    share = 0.5 / len(owners)
    return (Group(None, 0.5, D), *(Group((a,), share, int(depends[a].sum())) for a in owners))


def _components(depends: np.ndarray, actions: Sequence[int]) -> list[tuple[int, ...]]:
    """Connected components of actions, two being joined by a parameter that both depend on."""
    left, parts = set(actions), list[tuple[int, ...]]()
    while left:
        part: set[int] = set()
        reached = {min(left)}
        while reached != part:
            part = reached
            parameters = depends[sorted(part)].any(axis=0)
            reached = part | {a for a in left if np.any(depends[a] & parameters)}
        parts.append(tuple(sorted(part)))
        left -= part
    return parts


def program_dependence(cls: DensityClass, n_actions: int, x: np.ndarray) -> np.ndarray:
    """The same for a program without a known predictor: where the log-density has a slope, at draws
    from the prior.

    Tried at x (1, dx) alone, since a program may refuse contexts made up for it, on outcomes drawn
    where fits start. A parameter that is idle there (its column is 0) is overlooked, which costs
    width and nothing else. Where a slope is no number, or no outcome can be drawn, every action is
    taken to depend on everything.
    """
    theta = np.vstack([cls.initial, np.asarray(cls.draw_prior(PROGRAM_PROBES - 1, 0), float)])
    actions = np.arange(n_actions)
    try:
        # (probes, K, ...)
        drawn = cls.density_at(theta[0], np.repeat(x, n_actions, axis=0), actions).sample(
            0, len(theta)
        )
        same = np.repeat(x, len(theta), axis=0)
        rows = [Rows.of(same, np.full(len(theta), action), drawn[:, action]) for action in actions]
        slopes = np.array([cls.total_grad(theta, part)[1] for part in rows])  # (K, probes, D)
    except GedError:
        return np.ones((n_actions, cls.dim), bool)
    usable = np.isfinite(slopes).all(axis=(0, 2))  # at a draw far out a log-density may overflow
    return (
        np.any(slopes[:, usable] != 0, axis=1)
        if usable.any()
        else np.ones((n_actions, cls.dim), bool)
    )


def dependence(
    gradients: Callable[[np.ndarray, np.ndarray], np.ndarray], n_actions: int, x: np.ndarray
) -> np.ndarray:
    """Which parameters each action's outcome depends on, (K, D) bool, by trying contexts around x
    (1, dx).

    `gradients(x, a)` gives (n, D); an entry that is not a number counts as a dependence. A program
    may refuse contexts made up for it: what is overlooked costs width and nothing else.
    """
    rng = np.random.default_rng(0)
    near = x * rng.normal(1.0, 0.5, (PROBES, x.shape[1])) + rng.normal(size=(PROBES, x.shape[1]))
    tried = np.vstack([x, near, np.arange(4.0)[:, None] * np.ones((1, x.shape[1]))])
    actions = np.arange(n_actions)
    # one context at a time: rows as many as a decision asks for, so that nothing is compiled twice
    found = []
    for row in tried:
        with contextlib.suppress(ContextRangeError), np.errstate(all="ignore"):
            slopes = gradients(np.repeat(row[None], n_actions, axis=0), actions)
            found.append(np.asarray(slopes, float) != 0)
    out: np.ndarray = np.any(found, axis=0)  # NaN differs from 0
    return out
