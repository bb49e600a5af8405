"""SVI as an oracle: a guide fitted by the model's own PPL, judged by our own checks.

The guide gives the location and the draws. The information is minus the Hessian of our own
log-likelihood there, never the guide's: a mean-field guide is too narrow, and a Laplace guide that
is used again keeps the curvature of its first data.

Axis letters: n rows, D flat parameters, S draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import InputError, ParameterError, SettingError
from gedppl.learning.fits import Fit, Objective, WorkingPrior, assess
from gedppl.learning.likelihoods import ProgramLikelihood
from gedppl.learning.oracles import Oracle, failed
from gedppl.programs.guides import GuideRunner, GuideSettings, GuideSite

if TYPE_CHECKING:
    from gedppl.programs.contract import DensityClass
    from gedppl.rows import Rows


NO_SPREAD = (
    "source='svi' needs a guide with spread at every `sample` site: give the parameters priors and "
    "a guide such as 'normal', or use source='laplace'"
)
GUIDES = ("delta", "normal", "multivariate_normal", "low_rank")


@dataclass(frozen=True)
class SVI:
    """Fits a guide to the rows; the compiled loops belong to the class, one for each guide and
    its settings.
    """

    settings: GuideSettings
    steps: int
    refit_steps: int

    def runner(self, cls: DensityClass) -> GuideRunner:
        known = cls.guide_loops.get(self.settings)
        if known is None:
            backend = import_module(f"gedppl.programs.{cls.backend}_svi")
            known = cls.guide_loops[self.settings] = backend.runner(cls, self.settings)
        return known

    def check(self, cls: DensityClass) -> None:
        """Raise where a guide of the user's does not fit the model, site by site."""
        found = self._own_sites(cls)
        if found is None:
            return
        shapes = {name: site.shape for name, site in found.items()}
        wanted = {site.name: tuple(site.shape) for site in cls.sites if site.prior}
        if shapes != wanted:
            raise SettingError(
                f"the guide does not fit the model: it has the sites and shapes {shapes}, the "
                f"model {wanted}. Write one sample "
                "site of the same name and shape for each, use guide='normal', or give each "
                "outcome an oracle of its own, "
                "oracle={'...': svi(...)}"
            )
        short = [name for name, site in found.items() if not site.reaches]
        if short:
            raise SettingError(
                f"the guide does not fit the model: at {short} it cannot draw every value that "
                "the prior can, and what it never draws no weight brings back. Give these sites "
                "distributions with the prior's support, or use guide='normal'"
            )

    def check_spread(self, cls: DensityClass) -> None:
        """Raise where draws of the guide are the same value again and again."""
        found = self._own_sites(cls) or {}
        points = [name for name, site in found.items() if not site.spread]
        if self.runner(cls).point or points:
            raise SettingError(NO_SPREAD + (f"; here {points} are points" if points else ""))

    def _own_sites(self, cls: DensityClass) -> dict[str, GuideSite] | None:
        try:
            return self.runner(cls).own_sites()
        except SettingError:
            raise
        except Exception as error:  # whatever a user's guide raises
            said = str(error).split("\n")[0]  # Pyro adds the shapes of a trace
            raise SettingError(
                f"the guide broke off when it was run on one row: {type(error).__name__}: {said}. "
                "It is called as guide(x, a, y=None), and written in the model's PPL"
            ) from error

    def __call__(
        self,
        cls: DensityClass,
        rows: Rows,
        *,
        weights: np.ndarray | None = None,
        start: Fit | None = None,
        prior: WorkingPrior | None = None,
    ) -> Fit:
        # The program's own priors are part of every ELBO, so the fit is judged with them even
        # without a working prior.
        prior = prior or WorkingPrior(np.asarray(cls.initial, float), np.zeros(cls.dim))
        objective = Objective(cls, ProgramLikelihood(cls, rows), rows, weights, prior)
        if objective.n == 0:
            return assess(
                objective,
                np.asarray(cls.initial, float),
                "no rows yet: the initial parameters",
                tolerance=np.inf,
            )
        state = None if start is None or not start.ok else start.guide
        fit = self._fit(objective, prior, state, self.steps if state is None else self.refit_steps)
        # the posterior moved farther than a warm start can follow
        if not fit.ok and state is not None:
            fit = self._fit(objective, prior, None, self.steps)
        return fit

    def _fit(
        self, objective: Objective, prior: WorkingPrior, state: Mapping[str, Any] | None, steps: int
    ) -> Fit:
        cls, rows = objective.cls, objective.rows
        try:
            fitted = self.runner(cls).fit(rows, objective.weights, prior, state, steps)
        except InputError:
            raise
        except ValueError as error:
            # a PPL's own validation, when the data drive its arguments out of range
            return failed(cls, rows, f"the model broke off: {error}")
        if not np.isfinite(fitted.loss):
            return failed(
                cls, rows, f"SVI lost its way: the ELBO is {-fitted.loss} after {steps} steps"
            )
        try:
            draws = None if fitted.draws is None else cls.flatten(fitted.draws)
            location = draws.mean(axis=0) if fitted.location is None and draws is not None else None
            theta = cls.flatten(fitted.location) if fitted.location is not None else location
        except ParameterError as error:
            return failed(cls, rows, f"the guide left the parameters' constraints: {error}")
        assert theta is not None
        # A guide's centre need not be our mode (even a point guide maximises without the Jacobian
        # of the constraints): half a posterior standard deviation in every direction is let pass.
        tolerance = cls.dim / 8
        fit = assess(
            objective, theta, f"SVI, {steps} steps, ELBO {-fitted.loss:.6g}", tolerance=tolerance
        )
        return replace(fit, draws=draws, guide=fitted.state)


def svi(
    guide: Any = "normal",
    *,
    steps: int = 2000,
    refit_steps: int | None = None,
    learning_rate: float = 0.05,
    particles: int = 4,
    draws: int = 256,
    seed: int = 0,
) -> Oracle:
    """Stochastic variational inference: see `SVI`.

    Parameters
    ----------
    guide
        ``"delta"`` (a point: MAP in the constrained space), ``"normal"`` (independent Normals),
        ``"multivariate_normal"``, ``"low_rank"``, an autoguide class of the model's PPL, or a guide
        function ``(x, a, y=None)`` of your own.
    steps, refit_steps
        Adam steps of a first fit and of a warm-started one (a fiftieth, if not given: the posterior
        has hardly moved).
    learning_rate
        Decays to a hundredth of itself over the steps.
    particles, draws, seed
        Draws of the guide in a step, and of the fitted guide; and where their randomness begins.

    Notes
    -----
    The guide q maximises the ELBO, E_q [log p(y, theta) - log q(theta)], by Adam.

    `param` sites are fitted along with the guide. Not guaranteed: convergence; the checks see a fit
    that is far off, and call a centre within about half a posterior standard deviation of the mode
    good.

    References
    ----------
    Hoffman, Blei, Wang and Paisley, "Stochastic variational inference" (2013); Kingma and Ba,
    "Adam" (2015).

    Examples
    --------
    >>> svi("low_rank", steps=500).name
    'SVI'
    """
    refit_steps = max(1, steps // 50) if refit_steps is None else refit_steps
    for name, value in (
        ("steps", steps),
        ("refit_steps", refit_steps),
        ("particles", particles),
        ("draws", draws),
    ):
        if int(value) != value or value < 1:
            raise SettingError(f"{name} must be a whole number >= 1, got {value}")
    if not (np.isfinite(learning_rate) and learning_rate > 0):
        raise SettingError(f"learning_rate must be a positive number, got {learning_rate}")
    if isinstance(guide, str) and guide not in GUIDES:
        raise SettingError(
            f"guide must be one of {GUIDES}, an autoguide class or a function (x, "
            f"a, y), got {guide!r}"
        )
    settings = GuideSettings(guide, float(learning_rate), int(particles), int(draws), int(seed))
    solve = SVI(settings, int(steps), int(refit_steps))
    return Oracle("SVI", solve, {}, solve.check)
