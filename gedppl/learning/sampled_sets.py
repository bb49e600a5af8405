"""Members of a confidence set, drawn: to look at, to show, and to start an ascent from. Never to
certify.

A maximum over draws falls short of the supremum by a factor of about sqrt(2 log M / D): with 1024
draws in 20 dimensions it reaches about 0.65 of it. Everything here is therefore labelled an inner
approximation.

Axis letters: M members, D flat parameters, n contexts, K actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gedppl.errors import SettingError
from gedppl.learning.ascent import project
from gedppl.learning.draws import SOURCES as DRAWN_FROM
from gedppl.learning.draws import sample
from gedppl.learning.learner import Bounds
from gedppl.learning.program_sets import Region
from gedppl.rows import grid

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner

INNER = "inner approximation: the true worst case may be larger"
SOURCES = ("set", *DRAWN_FROM)


@dataclass(frozen=True)
class Members:
    """Flat parameters that lie in the set, where they were drawn from, and how many draws were
    tried.
    """

    theta: np.ndarray  # (M, D)
    source: str
    tried: int

    @property
    def note(self) -> str:
        return (
            f"{INNER} ({len(self.theta)} of {self.tried} draws from {self.source} lie in the set)"
        )


def explore(
    region: Region,
    walkers: int,
    sweeps: int,
    seed: int,
    further: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Points (walkers, D) spread over a region, by the stretch move of Goodman and Weare with a
    uniform target.

    Each walker jumps along the line to a walker of the other half, s = 1/2 .. 2 with density
    1/sqrt(s), and stays there with probability min(1, s^(D-1)) if the point is a member. It needs
    no gradients and follows curved sets.

    further
        Another membership test (M, D) -> (M,) bool that a point must pass, e.g. that of a second
        set.
    """
    rng = np.random.default_rng(seed)
    D = len(region.centre)
    half = max(walkers // 2, D + 1)
    z = rng.standard_normal((2 * half, D))
    z *= np.sqrt(2 * region.kappa) / np.linalg.norm(z, axis=1)[:, None]
    z = project(region, z, grow=2.0, rounds=4)[0] * rng.uniform(0.5, 1.0, (2 * half, 1))
    if further is not None:
        z[~further(region.theta(z))] *= 1e-3
    for sweep in range(2 * sweeps):
        mine, other = (
            (slice(0, half), slice(half, None))
            if sweep % 2 == 0
            else (slice(half, None), slice(0, half))
        )
        partner = z[other][rng.integers(0, half, half)]
        stretch = (1.0 + rng.random(half)) ** 2 / 2
        trial = partner + stretch[:, None] * (z[mine] - partner)
        theta = region.theta(trial)
        member = region.slack(theta) >= 0
        if further is not None:
            member &= further(theta)
        accept = member & (rng.random(half) < stretch ** (D - 1.0))
        z[mine] = np.where(accept[:, None], trial, z[mine])
    return region.theta(z)[: max(walkers, 1)]


def members(learner: ProgramLearner, n: int, seed: int = 0, source: str = "set") -> Members:
    """At most n members of a learner's set.

    Parameters
    ----------
    source
        ``"set"``: spread over the set itself; ``"prior"``, ``"laplace"``, ``"svi"``, ``"nuts"``
        (see `draws`): n draws, of which those in the set are kept.
    """
    if source not in SOURCES:
        raise SettingError(f"source must be one of {SOURCES}, got {source!r}")
    if n < 1:
        raise SettingError(f"n must be at least 1, got {n}")
    if source == "set":
        if not learner.sets or any(s.region.kappa <= 0 for s in learner.sets):
            raise SettingError(
                "there is no bounded set to draw from yet: refit on rows first, or "
                "use source='prior'"
            )
        region = min((s.region for s in learner.sets), key=lambda r: r.kappa)
        return Members(explore(region, n, 30, seed, learner.contains)[:n], "the set", n)
    if source != "prior" and (learner.fit is None or learner.rows is None):
        raise SettingError(
            f"source={source!r} needs a fit: absorb rows and refit first, or use source='prior'"
        )
    found = sample(learner.cls, learner.rows, source, n, seed, learner.fit, learner.oracle)
    return Members(found.theta[learner.contains(found.theta)], source, n)


def sampled_bounds(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int, found: Members
) -> Bounds:
    """Largest and smallest value over drawn members: for exploration and display only."""
    x = np.asarray(x, float)
    n, K, low, high = len(x), n_actions, functional.low, functional.high
    xs, actions = grid(x, K)
    thetas = np.vstack([found.theta, learner.theta])
    values = np.clip(
        np.asarray(learner.cls.values(functional, thetas, xs, actions), float), low, high
    )
    return Bounds(
        estimate=values[-1].reshape(n, K),
        lower=values.min(axis=0).reshape(n, K),
        upper=values.max(axis=0).reshape(n, K),
        method="sampled",
        guaranteed=False,
        rule=learner.sentence,
        note=found.note,
        find_witness=lambda: thetas[np.argmax(values, axis=0)].reshape(n, K, -1),
    )
