"""What a backend needs to fit a guide, and what it returns.

Axis letters: S draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from gedppl.errors import SettingError

if TYPE_CHECKING:
    from gedppl.learning.fits import WorkingPrior
    from gedppl.programs.contract import Distribution
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


@dataclass(frozen=True)
class Autoguides:
    """A PPL's own guides, and its point mass."""

    ppl: str
    base: type
    named: Mapping[str, type]
    points: tuple[type, ...]  # those that draw the same value again and again
    # whose parameters are all that is drawn, so that the density of a draw is known
    plain: tuple[type, ...]
    delta: type


class Runner(ABC):
    """What both backends' fitting loops know of a guide before it is fitted."""

    autoguides: ClassVar[Autoguides]
    kind: type | Callable[..., Any]  # a class of the PPL's, or a function of the user's
    latents: list[str]

    def __init__(self, cls: Any, settings: GuideSettings) -> None:
        known, guide = self.autoguides, settings.guide
        kind = known.named[guide] if isinstance(guide, str) else guide
        of_ppl = isinstance(kind, type) and issubclass(kind, known.base)
        if not of_ppl and (isinstance(kind, known.base | type) or not callable(kind)):
            raise SettingError(
                f"pass the class of one of {known.ppl}'s autoguides (not an instance of it), or a "
                f"function (x, a, y); got {kind!r}"
            )
        self.cls, self.program, self.settings, self.kind = cls, cls.program, settings, kind
        self.point = of_ppl and issubclass(kind, known.points)
        self.latents = [site.name for site in self.program.sites if site.prior]

    @abstractmethod
    def alone(self) -> AbstractContextManager[Any]:
        """Nothing of the PPL's is changed for good inside."""

    @abstractmethod
    def own_draws(self, seed: int) -> dict[str, Any]:
        """The latent sites of the user's guide, auxiliary ones too, drawn once."""

    def own_sites(self) -> dict[str, GuideSite] | None:
        if isinstance(self.kind, type) or not self.latents:
            return None
        prior = self.cls.unflatten(self.cls.draw_prior(PROBES, 0))
        with self.alone():
            first, again = self.own_draws(0), self.own_draws(1)
            return {
                name: GuideSite(
                    tuple(site["value"].shape),
                    bool((site["value"] != again[name]["value"]).any()),
                    name not in prior or self._reaches(site["fn"], prior[name]),
                )
                for name, site in first.items()
                if not site["infer"].get("is_auxiliary")
            }

    def _reaches(self, fn: Distribution, values: np.ndarray) -> bool:
        """Whether a guide's distribution may draw these values (S, ...) of a site; a `Delta`, which
        carries over what was drawn elsewhere, is taken at its word.
        """
        base: Any = fn
        while type(base).__name__ in ("Independent", "ExpandedDistribution"):
            base = base.base_dist
        if isinstance(base, self.autoguides.delta):
            return True
        inside = self.program.supports(fn, self.program.array(values))
        return not fn.support.is_discrete and bool(inside.all())

    @cached_property
    def has_density(self) -> bool:
        """Whether the density of a draw is known: nothing but parameters is drawn, and none of
        them is a point.
        """
        if len(self.latents) < len(self.program.sites):
            return False
        if isinstance(self.kind, type):
            return issubclass(self.kind, self.autoguides.plain)
        with self.alone():
            return set(self.own_draws(0)) == set(self.latents)
