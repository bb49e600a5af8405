"""What a backend needs to fit a guide, and what it returns.

Axis letters: S draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from gedppl.learning.fits import WorkingPrior
    from gedppl.rows import Rows

PROBES = 100  # draws from the prior that a guide of the user's must be able to draw too


@dataclass(frozen=True)
class GuideSettings:
    """What a backend needs to fit a guide."""

    # a name in `gedppl.learning.variational.GUIDES`, an autoguide class or a function (x, a, y)
    guide: Any
    learning_rate: float
    particles: int
    draws: int
    seed: int


@dataclass(frozen=True)
class GuideFit:
    """What a backend returns: constrained values by site, and the guide's own parameters for the
    next warm start.
    """

    location: Mapping[str, Any] | None  # of every parameter site; None: take the mean of the draws
    # of every parameter site, with a leading axis S; None for a point guide
    draws: Mapping[str, Any] | None
    state: Mapping[str, Any]
    loss: float  # the negative ELBO, averaged over the last tenth of the steps


@dataclass(frozen=True)
class GuideDraws:
    """Draws from a fitted guide: constrained values by site, and the guide's log density there."""

    values: Mapping[str, Any]  # of every parameter site, with a leading axis S
    # (S,) of the constrained values; None where they have none that is known: a part of them is
    # a point, or depends on further draws that are not parameters
    log_density: np.ndarray | None


@dataclass(frozen=True)
class GuideSite:
    """One latent site of a guide that the user wrote."""

    shape: tuple[int, ...]
    spread: bool  # whether it draws different values when it is run again
    reaches: bool  # whether it can draw whatever the model's prior can


class GuideRunner(Protocol):
    """A backend's fitting loop for one class and one guide; compiled once a bucket, reused
    between refits.
    """

    point: bool  # whether the guide is one of the PPL's that draw the same value again and again

    def draw(self, state: Mapping[str, Any], size: int, seed: int) -> GuideDraws: ...

    def own_sites(self) -> dict[str, GuideSite] | None:
        """Latent sites of a guide that the user wrote, by name; None for one that is made from
        the model.
        """
        ...

    def fit(
        self,
        rows: Rows,
        weights: np.ndarray | None,
        prior: WorkingPrior,
        state: Mapping[str, Any] | None,
        steps: int,
    ) -> GuideFit: ...
