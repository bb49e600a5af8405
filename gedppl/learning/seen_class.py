"""A program as a density class in what the data see of its parameters: v = h(theta), in which its
predictor is affine.

Fits, sets, groups and bounds are found in v, with NumPy alone; the program is asked for features,
and for h where draws from its prior are mapped to v. A valid set of v holds h(theta*) whatever
prior or parametrisation the program has, and v ranges over all its box: bounds over it are
guarantees for theta too. A hierarchy's funnel is gone: its scales are no coordinates.

The prior of v is the image of the program's. For fits a Gaussian with its medians, spreads and
correlations stands in for it.

Axis letters: M parameter settings, n rows, p coordinates of v, C edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.density import Density
from gedppl.errors import LinkDomainError
from gedppl.families.one_predictor import FAMILIES
from gedppl.learning.fits import Fit, Objective, WorkingPrior, assess
from gedppl.learning.learner import prior_draws
from gedppl.learning.likelihoods import Likelihood
from gedppl.learning.oracles import ANY_COORDINATES, called, form_of
from gedppl.learning.ordered import CUMULATIVE
from gedppl.programs.contract import Model
from gedppl.programs.tracing import Site
from gedppl.rows import Rows, over_box

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as Array

    from gedppl.functionals import Functional
    from gedppl.learning.oracles import Oracle
    from gedppl.programs.contract import DensityClass, Params
    from gedppl.programs.program import ProgramClass
    from gedppl.programs.seen import Seen

DRAWS = 1000  # of the prior, for the Gaussian that stands in for it
MIDDLE_HALF = 1.349  # standard deviations between the quartiles of a Gaussian
FARTHEST = 3.0  # spreads from the median: beyond, a draw counts as this far in correlations
SHRINK = 0.95  # of correlations: those of finitely many draws are never taken as perfect
STEP = 1e-5  # of a predictor, for slopes that steer exploration


def declared_ends(
    cls: DensityClass, names: Sequence[str], low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of what is seen, by name, cut by the declared bounds of sites that are seen entry by
    entry.
    """
    low, high, place = low.copy(), high.copy(), {name: j for j, name in enumerate(names)}
    for site in cls.sites:
        limit = cls.bounds.get(site.name)
        if limit is None:
            continue
        sides = limit if isinstance(limit, tuple) else (-limit, limit)
        for i, entry in enumerate(np.ndindex(*site.shape) if site.shape else [()]):
            j = place.get(f"{site.name}{list(entry) if entry else ''}")
            if j is not None:
                low[j] = max(low[j], np.broadcast_to(sides[0], site.shape).ravel()[i])
                high[j] = min(high[j], np.broadcast_to(sides[1], site.shape).ravel()[i])
    return low, high


class SeenClass(Model):
    """See `gedppl.programs.contract.DensityClass`; made by `served`."""

    def __init__(self, whole: ProgramClass, seen: Seen) -> None:
        self.whole, self.seen = whole, seen
        self.backend, self.model = whole.backend, whole.model
        self.dim = seen.dim
        self.first_rows, self.guide_loops = whole.first_rows, whole.guide_loops
        self.reads_by_context = whole.reads_by_context
        self.predictor, self.ordered = seen.predictor, seen.ordered
        self.bounds = self._bounds()
        self._check_start()
        self.initial = self.seen_of(whole.initial[None])[0]
        self.prior_free = np.full(self.dim, bool(np.all(whole.prior_free)))
        self.sites = tuple(Site(name, True, (), (), j, j + 1) for j, name in enumerate(seen.names))

    def _check_start(self) -> None:
        """Raise where what the data see is no number at the parameters that fits start from: a
        chance beyond 1 has no log-odds, and NumPyro cuts it off without a word.
        """
        lost = np.isnan(self.seen.from_theta(self.whole.initial[None])[0])
        if lost.any():
            start = {
                name: np.round(value, 4).tolist()
                for name, value in self.whole.unflatten(self.whole.initial).items()
            }
            raise LinkDomainError(
                f"{self.seen.names[int(np.argmax(lost))]} is no number at {start}, where fits "
                "start: what the link is given there lies outside its domain (a chance outside "
                "[0, 1]). Declare bounds or a prior inside the domain, pass init={site: value}, or "
                "use a link without ends (logits=, an exp for a rate)"
            )

    @property
    def exactness(self) -> str:
        return self.whole.exactness

    def trace(self, x: Array, a: Array) -> SeenClass:
        self.whole.trace(x, a)
        return self

    def densities(self, x: Array, a: Array) -> list[Density]:
        return [self.density_at(self.initial, x, a)]

    # parameters -----------------------------------------------------------------------------------

    def seen_of(self, theta: np.ndarray) -> np.ndarray:
        """v (M, p) of theta (M, D); what is infinite there (the log-odds of a 0) is taken from
        the largest numbers.
        """
        found: np.ndarray = np.nan_to_num(
            self.seen.from_theta(np.asarray(theta, float)), nan=0.0, posinf=1e3, neginf=-1e3
        )
        return found

    def flatten(self, params: Params) -> np.ndarray:
        """v of the program's parameters by site, or of v's own coordinates by name."""
        if set(params) == set(self.seen.names):
            return np.array([float(params[name]) for name in self.seen.names])
        theta = self.whole.flatten(params)
        return self.seen_of(theta) if theta.ndim == 2 else self.seen_of(theta[None])[0]

    def unflatten(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Coordinates by name; a site that is seen entry by entry comes back as its array."""
        values = np.asarray(theta, float)
        left = {name: values[..., j] for j, name in enumerate(self.seen.names)}
        found: dict[str, np.ndarray] = {}
        for site in self.whole.sites:
            entries = [
                f"{site.name}{list(entry) if entry else ''}"
                for entry in (np.ndindex(*site.shape) if site.shape else [()])
            ]
            if all(entry in left for entry in entries):
                stacked = np.stack([left.pop(entry) for entry in entries], axis=-1)
                found[site.name] = stacked.reshape((*values.shape[:-1], *site.shape))
        return found | left

    def _bounds(self) -> dict[str, Any]:
        """The box of v: supports and declared bounds of sites that are seen entry by entry,
        where they are finite.
        """
        low, high = declared_ends(self.whole, self.seen.names, self.seen.low, self.seen.high)
        return {
            name: (low[j], high[j])
            for j, name in enumerate(self.seen.names)
            if np.isfinite(low[j]) or np.isfinite(high[j])
        }

    @cached_property
    def _box(self) -> tuple[np.ndarray, np.ndarray]:
        whole = (-np.inf, np.inf)
        low, high = zip(*(self.bounds.get(name, whole) for name in self.seen.names))
        return np.array(low, float), np.array(high, float)

    def inside(self, theta: np.ndarray) -> np.ndarray:
        low, high = self._box
        ends = [np.where(np.isfinite(end), np.abs(end), 0.0) for end in (low, high)]
        room = 1e-12 * np.maximum(np.maximum(*ends), np.abs(theta))
        found: np.ndarray = np.all(
            np.isfinite(theta) & (theta >= low - room) & (theta <= high + room), axis=-1
        )
        return found

    def draw_prior(self, n: int, seed: int) -> np.ndarray:
        return self.seen_of(prior_draws(self.whole, n, seed))

    @cached_property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (p,) and precision (p, p) of the Gaussian that stands in for the prior."""
        draws = self.draw_prior(DRAWS, 5)
        low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
        spread = (high - low) / MIDDLE_HALF
        spread = np.where(spread > 0, spread, draws.std(axis=0))
        # what the prior leaves no room is the same in every draw, such as a coefficient times 0
        alike = np.where(middle != 0, np.abs(middle), 1.0)
        spread = np.where(spread > 1e-12 * np.abs(middle), spread, alike)
        scores = np.clip((draws - middle) / spread, -FARTHEST, FARTHEST)
        together = scores.T @ scores
        unit = np.sqrt(np.maximum(np.diag(together), 1e-300))
        correlation = SHRINK * together / np.outer(unit, unit) + (1 - SHRINK) * np.eye(self.dim)
        return middle, np.linalg.inv(correlation) / np.outer(spread, spread)

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        if self.prior_free.all():
            return np.zeros(np.shape(theta)[:-1])
        mean, precision = self._prior
        away = np.asarray(theta, float) - mean
        found: np.ndarray = -0.5 * np.einsum("...i,ij,...j->...", away, precision, away)
        return found

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.prior_free.all():
            return np.zeros(self.dim), np.zeros((self.dim, self.dim))
        mean, precision = self._prior
        return -precision @ (np.asarray(theta, float) - mean), -precision

    # rows -----------------------------------------------------------------------------------------

    def check_outcomes(
        self, x: Array, a: Array, y: Array
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows: tuple[np.ndarray, np.ndarray, np.ndarray] = self.whole.check_outcomes(x, a, y)
        self._check_domain(rows[0], rows[1])
        return rows

    def _check_domain(self, x: np.ndarray, a: np.ndarray) -> None:
        """Raise at a row where every parameter inside the bounds lies outside the link's domain."""
        if self.predictor is None or not len(a):
            return
        least, most = FAMILIES[self.predictor.family, self.predictor.link].domain
        if not (np.isfinite(least) or np.isfinite(most)):
            return
        features, offset = self.predictor.features(x, a), self.predictor.offset(x, a)
        low, high = (offset + end for end in over_box(features, *self._box))
        wrong = (low > most + 1e-9) | (high < least - 1e-9)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise LinkDomainError(
                f"in row {row} the {self.predictor.link} link of {self.predictor.family} gets "
                f"numbers from {low[row]:.4g} to {high[row]:.4g} for all parameters inside their "
                f"bounds, but it is defined from {least:g} to {most:g}: widen the bounds, rescale "
                "the context's columns, or use a link without ends (logits=, an exp for a rate)"
            )

    def check_shapes(
        self, x: Array, a: Array, y: Array
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.whole.check_shapes(x, a, y)

    def supports(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.whole.supports(x, a, y)

    def _data(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Likelihood:
        return form_of(self).append(x, a, y)

    def log_likelihood(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        found = self._data(*self.check_outcomes(x, a, y)).row_values(np.atleast_2d(theta))
        return found[0] if np.ndim(theta) == 1 else found

    def score(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        x, a, y = self.check_outcomes(x, a, y)
        rows = [self._data(x[i : i + 1], a[i : i + 1], y[i : i + 1]) for i in range(len(a))]
        return np.array([one.value_grad(theta[None])[1][0] for one in rows]).reshape(
            len(a), self.dim
        )

    def information(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        return self._data(*self.check_outcomes(x, a, y)).information(theta)

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        logs = self.log_likelihood(np.atleast_2d(theta), rows.x, rows.a, rows.y)
        found = (logs if weights is None else np.where(weights == 0, 0.0, logs * weights)).sum(
            axis=1
        )
        out: np.ndarray = found[0] if np.ndim(theta) == 1 else found
        return out

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        found = self._weighted(rows, weights).value_grad(np.atleast_2d(theta))
        return (found[0][0], found[1][0]) if np.ndim(theta) == 1 else found

    def total_hessian(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> np.ndarray:
        return -self._weighted(rows, weights).information(theta)

    def _weighted(self, rows: Rows, weights: np.ndarray | None) -> Likelihood:
        whole = self._data(rows.x, rows.a, rows.y)
        return whole if weights is None else whole.weighted(weights)

    # densities and functionals --------------------------------------------------------------------

    def density(self, params: Params, x: Array, a: Array) -> Density:
        return self.density_at(self.flatten(params), x, a)

    def density_at(self, theta: np.ndarray, x: Array, a: Array) -> Density:
        """Batch (n,) at v (p,), or (M, n) at (M, p)."""
        x, a = np.asarray(x, float), np.asarray(a, np.int64)
        if self.predictor is not None:
            eta = theta @ self.predictor.features(x, a).T + self.predictor.offset(x, a)
            return self._density(eta, self.predictor.fixed(x, a))
        assert self.ordered is not None
        return self._density(
            np.einsum("...p,ncp->...nc", theta, self.ordered.features(x, a))
            + self.ordered.offset(x, a),
            {},
        )

    def _density(self, eta: np.ndarray, fixed: Mapping[str, np.ndarray]) -> Density:
        """At predictors (..., n), or edges (..., n, C)."""
        if self.predictor is not None:
            wide = {name: np.broadcast_to(value, eta.shape) for name, value in fixed.items()}
            return Density(
                self.predictor.family,
                FAMILIES[self.predictor.family, self.predictor.link].arguments(eta, wide),
            )
        assert self.ordered is not None
        below = CUMULATIVE[self.ordered.link].chance(np.maximum.accumulate(eta, axis=-1))
        whole = np.concatenate(
            [np.zeros((*eta.shape[:-1], 1)), below, np.ones((*eta.shape[:-1], 1))], axis=-1
        )
        return Density("Categorical", {"probs": np.diff(whole, axis=-1)})

    def way_of(self, functional: Functional, positive: bool) -> int:
        return self.whole.way_of(functional, positive)

    def values(self, functional: Functional, theta: np.ndarray, x: Array, a: Array) -> np.ndarray:
        return self._functional(functional, self.density_at(theta, x, a), x, a)

    def _functional(
        self, functional: Functional, density: Density, x: Array, a: Array
    ) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if functional.fn is None:
                found = functional(density, x=np.asarray(x, float), a=np.asarray(a, np.int64))
            else:  # a user's function may be written for the program's own arrays
                found = self.whole.program.functional_at(
                    functional, density, np.asarray(x, float), np.asarray(a, np.int64)
                )
        return np.broadcast_to(np.asarray(found, float), density.batch_shape)

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: Array, a: Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slopes by central differences in the predictor: they steer exploration and ascents, no
        exact bound rests on them.
        """
        x, a = np.asarray(x, float), np.asarray(a, np.int64)
        if self.predictor is not None:
            phi, fixed = (
                np.asarray(self.predictor.features(x, a))[:, None],
                self.predictor.fixed(x, a),
            )
            eta = (np.einsum("np,np->n", theta, phi[:, 0]) + self.predictor.offset(x, a))[:, None]
        else:
            assert self.ordered is not None
            phi, fixed = self.ordered.features(x, a), {}
            eta = np.einsum("np,ncp->nc", theta, phi) + self.ordered.offset(x, a)
        C = eta.shape[1]
        step = STEP * np.maximum(1.0, np.abs(eta))
        # (1 + 2C, n, C)
        moved = np.stack(
            [eta, *(eta + sign * step * unit for unit in np.eye(C) for sign in (1.0, -1.0))]
        )
        density = self._density(moved[..., 0] if self.predictor is not None else moved, fixed)
        values = self._functional(functional, density, x, a)
        slope = (values[1::2] - values[2::2]).T / (2 * step)
        return values[0], np.einsum("nc,ncp->np", slope, phi)

    # fits -----------------------------------------------------------------------------------------

    def oracle(self, given: Any) -> Any:
        """An oracle for v: the given one where it fits any class, else its fit of the program,
        mapped to v.
        """
        if called(given) in ANY_COORDINATES:
            return given

        def mapped(
            cls: SeenClass,
            rows: Rows,
            *,
            start: Fit | None = None,
            prior: WorkingPrior | None = None,
            **more: Any,
        ) -> Fit:
            fit = given(self.whole, rows, start=None, prior=WorkingPrior.weak(self.whole), **more)
            if not np.isfinite(fit.theta).all():
                out: Fit = replace(
                    fit,
                    theta=np.full(self.dim, np.nan),
                    precision=np.full((self.dim, self.dim), np.nan),
                )
                return out
            found = assess(
                Objective(cls, form_of(cls), rows, None, prior),
                self.seen_of(fit.theta[None])[0],
                fit.status,
            )
            draws = None if fit.draws is None else self.seen_of(fit.draws)
            return replace(found, ok=fit.ok, status=fit.status, draws=draws)

        return mapped


def served(cls: Any) -> Any:
    """The class that a learner serves: in v where that is what makes its predictor affine, else
    the class itself.
    """
    seen = getattr(cls, "seen", None)
    if seen is None or (seen.predictor is None and seen.ordered is None):
        return cls
    return cls.in_what_is_seen(lambda: SeenClass(cls, seen))


@singledispatch
def fitting(cls: DensityClass, oracle: Oracle | None) -> Oracle | None:
    """The oracle that fits a class which `served` found: the given one."""
    return oracle


@fitting.register(SeenClass)
def _(cls: SeenClass, oracle: Oracle | None) -> Oracle | None:
    found: Oracle = cls.oracle(oracle)
    return found


@singledispatch
def in_its_coordinates(cls: DensityClass, theta: np.ndarray) -> np.ndarray:
    """The program's parameters (M, D) in the coordinates of a class which `served` found."""
    return theta


@in_its_coordinates.register(SeenClass)
def _(cls: SeenClass, theta: np.ndarray) -> np.ndarray:
    return cls.seen_of(theta)
