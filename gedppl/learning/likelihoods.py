"""The log-likelihood of rows, at one parameter setting or at many.

A `Likelihood` is what fits and confidence sets have in common. It grows with the rows (`append`
returns a longer one and leaves the old one valid), may weigh them (`weighted`), and answers by
value, gradient and curvature. Three forms: `PredictorLikelihood` keeps the features of a class with
a linear predictor and `ordered.OrderedLikelihood` the edges of ordered outcomes, both in NumPy
alone; `ProgramLikelihood` asks the program. Priors are added by `fits.Objective`, for fits only.

Axis letters: M parameter settings, n rows, D flat parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gedppl.density import Density
from gedppl.errors import GedError, NotFiniteError
from gedppl.families.one_predictor import FAMILIES, Fixed, Terms
from gedppl.learning.fits import RANK_TOLERANCE, decrement, newton, symmetric
from gedppl.numerics.arrays import LARGEST, countable
from gedppl.programs.contract import LinearPredictor
from gedppl.rows import Kept, Rows

if TYPE_CHECKING:
    from gedppl.learning.profiled import Profile
    from gedppl.learning.storing import Node, Reader, Writer
    from gedppl.programs.contract import DensityClass, Halves


# nats at which the climb of a set's centre ends; on separable data fewer would run far off
TOP = 1e-4
FLAT = 1e-9  # curvature, as a share of the largest, of directions which that climb leaves alone


BLOCK = 40_000  # terms at once
MOST_PAIRS = 1 << 21  # products of features that are kept

KnownColumns = Kept[tuple[np.ndarray, tuple[str, ...]]]


class Likelihood(ABC):
    """Rows and their log-likelihood. Immutable. What only some forms can say has an answer here
    that claims nothing.
    """

    n: int
    # whether it is known to be concave in theta, so that its sets are convex
    concave: bool = False

    @property
    def noise_scale(self) -> float | None:
        """The widest known noise scale of a linear-Gaussian class, None for another."""
        return None

    @property
    def top_known(self) -> bool:
        """Whether `top` is more than inf."""
        return False

    @property
    def smooth(self) -> bool:
        """Whether `information` is minus the Hessian, and not a working weight beside kinks."""
        return True

    # its rows -------------------------------------------------------------------------------------

    @abstractmethod
    def cleared(self) -> Likelihood:
        """The same form without rows."""

    @abstractmethod
    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Likelihood: ...

    def grown(self, rows: Rows, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Likelihood:
        """With m rows more; `rows` has all of them, so that nobody need keep them twice."""
        return self.append(x, a, y)

    @abstractmethod
    def between(self, start: int, stop: int) -> Likelihood:
        """The rows start..stop-1 as a history of their own."""

    @abstractmethod
    def weighted(self, weights: np.ndarray) -> Likelihood:
        """Every row times its weight (n,) in all sums, once the rows are complete; those of weight
        0 are left out.
        """

    def stored(self, out: Writer) -> Node:
        """What the rows alone do not give back."""
        return None

    @abstractmethod
    def restored(self, read: Reader, node: Node, rows: Rows | None) -> Likelihood:
        """The same form around what was stored, and all rows."""

    # its values -----------------------------------------------------------------------------------

    @abstractmethod
    def row_values(self, theta: np.ndarray) -> np.ndarray:
        """theta (M, D) -> (M, n), without weights."""

    def values_at(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """`row_values` at other rows: (M, m)."""
        return self.cleared().append(x, a, y).row_values(theta)

    @abstractmethod
    def value(self, theta: np.ndarray) -> np.ndarray:
        """Summed over rows: theta (M, D) -> (M,)."""

    @abstractmethod
    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(M,) and its gradient (M, D)."""

    @abstractmethod
    def informations(self, theta: np.ndarray) -> np.ndarray:
        """Minus the Hessians at theta (M, D): (M, D, D)."""

    def parabolas(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value (M,), gradient (M, D) and minus Hessian (M, D, D), found together."""
        return *self.value_grad(theta), self.informations(theta)

    def at(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """`value_grad` at one theta (D,)."""
        value, grad = self.value_grad(theta[None])
        return float(value[0]), grad[0]

    def information(self, theta: np.ndarray) -> np.ndarray:
        """Minus the Hessian at one theta (D,): (D, D)."""
        return np.asarray(self.informations(theta[None])[0])

    def climb(
        self, theta: np.ndarray, steps: int = 25, enough: float = TOP, far: float = np.inf
    ) -> np.ndarray:
        """The top near theta (D,); where there is none, a point high up.

        No step is longer than `far` (1 + |theta|) in standard errors of one row at the start.
        Nothing rests on this being a maximum: a confidence set is defined by log-likelihood and
        threshold, this is only where the search inside it starts.
        """
        room = float(np.sqrt(max(self.n, 1)))
        return newton(
            self.at,
            self.information,
            theta,
            steps=steps,
            enough=enough,
            flat=FLAT,
            far=far,
            room=room,
            turning=False,
        )[0]

    @abstractmethod
    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """What one outcome at rows x (n, dx), a (n,) tells of each coordinate near theta (D,),
        about: (D,). None is needed.
        """

    # what is known of its form --------------------------------------------------------------------

    def admissible(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Where to start from instead of theta (D,), if there is nothing to climb by there."""
        return theta

    def crosses(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(M, m) bool: where theta has no density, though single outcomes are given a value."""
        return np.zeros((1, 1), bool)

    def deficit(
        self, theta: np.ndarray, grad: np.ndarray, information: np.ndarray
    ) -> tuple[float, bool]:
        """How far the value at theta (D,) lies below its maximum, and whether that is proved.
        Here: the Newton decrement.
        """
        return decrement(grad, information), False

    def density_of(
        self, cls: DensityClass, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> Density:
        """Densities (M, n) of the class at theta (M, D), without its program where possible."""
        return cls.density_at(theta, x, a)

    def simulated_fits(self, centre: np.ndarray, n: int, seed: int) -> np.ndarray | None:
        """Fits (n, D) to outcomes simulated from centre at the same rows, if that can be done."""
        return None

    def top(self, near: np.ndarray) -> float:
        """At least the largest log-likelihood; inf where it is not known (see `top_known`)."""
        return np.inf

    @property
    def walled(self) -> bool:
        """Whether there are half-spaces of `domain` or `supports`."""
        return bool(self.supports[0])

    def domain(self) -> Halves:
        """Half-spaces A v <= b beyond which some row has no density."""
        return (), ()

    @property
    def supports(self) -> Halves:
        """Those beyond which supports have no parameter, whatever the rows are."""
        return (), ()


class ProgramLikelihood(Likelihood):
    """Through the program's compiled kernels."""

    def __init__(self, cls: DensityClass, rows: Rows, weights: np.ndarray | None = None) -> None:
        self.cls, self.rows, self.weights, self.n = cls, rows, weights, rows.n
        self._kept: Profile | None = None

    def kept(self, make: Callable[[], Profile]) -> Profile:
        """These rows along a nuisance, made once."""
        if self._kept is None:
            self._kept = make()
        return self._kept

    def cleared(self) -> ProgramLikelihood:
        return ProgramLikelihood(self.cls, Rows.empty(self.rows.x.shape[1], self.rows.y.shape[1:]))

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> ProgramLikelihood:
        assert self.weights is None
        # the first set the width
        rows = self.rows.append(x, a, y) if self.n else Rows.of(x, a, y)
        return ProgramLikelihood(self.cls, rows)

    def grown(self, rows: Rows, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> ProgramLikelihood:
        return ProgramLikelihood(self.cls, rows)

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> ProgramLikelihood:
        return self if rows is None else ProgramLikelihood(self.cls, rows)

    def between(self, start: int, stop: int) -> ProgramLikelihood:
        if start == 0 and stop == self.n:
            return self
        weights = None if self.weights is None else self.weights[start:stop]
        return ProgramLikelihood(self.cls, self.rows.taken(slice(start, stop)), weights)

    def weighted(self, weights: np.ndarray) -> ProgramLikelihood:
        """All rows stay, so that a backend compiles no new shape."""
        return ProgramLikelihood(self.cls, self.rows, weights) if weights.any() else self.cleared()

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        rows = self.rows
        return np.asarray(self.cls.log_likelihood(theta, rows.x, rows.a, rows.y))

    def value(self, theta: np.ndarray) -> np.ndarray:
        if not self.n:
            return np.zeros(len(theta))
        return np.asarray(self.cls.total(theta, self.rows, self.weights))

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.n:
            return np.zeros(len(theta)), np.zeros(theta.shape)
        value, grad = self.cls.total_grad(theta, self.rows, self.weights)
        return np.asarray(value, float), np.asarray(grad, float)

    def informations(self, theta: np.ndarray) -> np.ndarray:
        if not self.n:
            return np.zeros((*theta.shape, theta.shape[1]))
        hessians = [self.cls.total_hessian(one, self.rows, self.weights) for one in theta]
        return np.stack([symmetric(-np.asarray(hessian, float)) for hessian in hessians])

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        try:
            y = self.cls.density_at(theta, x, a).sample(0, 1)[0]
            return np.abs(np.diag(self.cls.total_hessian(theta, Rows.of(x, a, y)))) / len(a)
        except GedError:  # no outcome can be drawn
            return np.full(len(theta), np.nan)


class PredictorLikelihood(Likelihood):
    """From eta = features @ theta + offset; log-concave in theta for every family of
    `one_predictor`.

    The features, the offset and the family's fixed arguments are the columns of one growing `Rows`.
    Where a link has a domain, sums over rows go by its concave continuation, which makes a set
    larger; `row_values`, which predictives rest on, do not.
    """

    concave = True

    def __init__(
        self,
        predictor: LinearPredictor,
        dim: int,
        table: Rows | None,
        names: tuple[str, ...],
        weights: np.ndarray | None = None,
        known: KnownColumns | None = None,
    ) -> None:
        self.predictor, self.dim, self.table, self.names = predictor, dim, table, names
        self.n, self.weights = 0 if table is None else table.n, weights
        self.family = FAMILIES[predictor.family, predictor.link]
        self._last: tuple[bytes, Terms] | None = None
        # columns of rows that were asked about, by all likelihoods of this predictor
        self._known: KnownColumns = Kept() if known is None else known

    @classmethod
    def empty(cls, predictor: LinearPredictor, dim: int) -> PredictorLikelihood:
        return cls(predictor, dim, None, ())

    def cleared(self) -> PredictorLikelihood:
        return self._with(None, ())

    def _with(
        self, table: Rows | None, names: tuple[str, ...], weights: np.ndarray | None = None
    ) -> PredictorLikelihood:
        return PredictorLikelihood(self.predictor, self.dim, table, names, weights, self._known)

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> PredictorLikelihood:
        assert self.weights is None
        columns, names = self.columns(np.asarray(x, float), np.asarray(a))
        table = Rows.empty(columns.shape[1]) if self.table is None else self.table
        return self._with(table.append(columns, a, y), names)

    @property
    def noise_scale(self) -> float | None:
        return float(np.max(self.fixed()["scale"])) if self.predictor.family == "Normal" else None

    @property
    def top_known(self) -> bool:
        return self.smooth

    def stored(self, out: Writer) -> Node:
        return [out.node(self.table), out.node(self.names)]

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> PredictorLikelihood:
        return self._with(*(read.node(part) for part in node))

    def columns(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """features | offset | fixed arguments: (n, D + 1 + ...) and the fixed arguments' names."""
        return self._known.get("columns", (x, a), lambda: self._columns(x, a))

    def _columns(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        x, a = x.view(), a.view()
        # what cannot change is looked at once for all of the parts
        x.flags.writeable = a.flags.writeable = False
        fixed = self.predictor.fixed(x, a)
        features = np.asarray(self.predictor.features(x, a), float)
        found = np.empty((len(a), self.dim + 1 + len(fixed)))
        found[:, : self.dim] = features
        for j, part in enumerate([self.predictor.offset(x, a), *fixed.values()]):
            found[:, self.dim + j] = part
        if not countable(found).all():
            raise NotFiniteError(
                "features, offset or a known argument of the model are not finite at some row, or "
                f"beyond {LARGEST:g}: got {found[~countable(found)][0]}; check the model at that "
                f"context, or measure the context in another unit"
            )
        found.flags.writeable = False
        return found, tuple(fixed)

    def fixed_names(self, x: np.ndarray, a: np.ndarray) -> tuple[str, ...]:
        """Names of the family's other arguments, in the order of the columns."""
        return self.names if self.table is not None else tuple(self.predictor.fixed(x[:1], a[:1]))

    def between(self, start: int, stop: int) -> PredictorLikelihood:
        if self.table is None or (start == 0 and stop == self.n):
            return self
        return self._part(slice(start, stop), self.weights)

    def weighted(self, weights: np.ndarray) -> PredictorLikelihood:
        return self._part(np.flatnonzero(weights), weights)

    def _part(self, which: slice | np.ndarray, weights: np.ndarray | None) -> PredictorLikelihood:
        table = None if self.table is None else self.table.taken(which)
        return self._with(table, self.names, None if weights is None else weights[which])

    @property
    def smooth(self) -> bool:
        return self.family.smooth

    @cached_property
    def features(self) -> np.ndarray:
        """(n, D), in one piece."""
        whole = np.zeros((0, self.dim)) if self.table is None else self.table.x
        return np.ascontiguousarray(whole[:, : self.dim])

    @cached_property
    def _rest(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Offset, outcome and the fixed arguments, each (n,)."""
        assert self.table is not None
        D, columns = self.dim, np.ascontiguousarray(self.table.x.T)
        return columns[D], self.table.y, {n: columns[D + 1 + j] for j, n in enumerate(self.names)}

    @cached_property
    def _pairs(self) -> np.ndarray:
        """(n, D D), the products of the features of each row."""
        phi = self.features
        found: np.ndarray = (phi[:, :, None] * phi[:, None, :]).reshape(self.n, -1)
        return found

    def fixed(self) -> dict[str, np.ndarray]:
        return self._rest[2]

    @property
    def walled(self) -> bool:
        return bool(np.isfinite(self.family.domain).any() or self.supports[0])

    @property
    def supports(self) -> Halves:
        return self.predictor.walls

    def domain(self) -> Halves:
        """That of the link at the rows seen."""
        ends = [(s, end) for s, end in zip((-1.0, 1.0), self.family.domain) if np.isfinite(end)]
        if self.table is None or not ends:
            return (), ()
        rows = np.unique(self.table.x[:, : self.dim + 1], axis=0)
        return (
            tuple(sign * rows[:, :-1] for sign, _ in ends),
            tuple(sign * (end - rows[:, -1]) for sign, end in ends),
        )

    def density(self, eta: np.ndarray, fixed: Mapping[str, np.ndarray]) -> Density:
        """The outcome's density at predictors eta, offset included, of any batch shape."""
        return Density(self.predictor.family, self.family.arguments(eta, fixed))

    def density_at(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> Density:
        """The outcomes' densities (M, n) at theta (M, D) and rows x (n, dx), a (n,)."""
        columns, names = self.columns(np.asarray(x, float), np.asarray(a))
        eta, D = theta @ columns[:, : self.dim].T + columns[:, self.dim], self.dim
        fixed = {
            name: np.broadcast_to(columns[:, D + 1 + j], eta.shape) for j, name in enumerate(names)
        }
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self.density(eta, fixed)

    def density_of(
        self, cls: DensityClass, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> Density:
        return self.density_at(theta, x, a)

    def _terms(self, theta: np.ndarray) -> Terms:
        """Of the rows at theta (M, D), weighted: values, slopes and minus curvatures by their
        predictors, (M, n). Those of a single setting are kept, because value and curvature are
        asked one after the other.
        """
        asked, last = theta.tobytes() if len(theta) == 1 else b"", self._last
        if last is not None and last[0] == asked:
            return last[1]
        found = self._terms_of(theta, slice(None))
        if asked:
            self._last = asked, found
        return found

    def _terms_of(self, theta: np.ndarray, rows: slice) -> Terms:
        offset, y, fixed = self._rest
        eta = theta @ self.features[rows].T
        eta += offset[rows]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = self.family.terms(eta, y[rows], {n: value[rows] for n, value in fixed.items()})
            if self.weights is None:
                return found
            weights = self.weights[rows]
            return found[0] * weights, found[1] * weights, found[2] * weights

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        offset, y, fixed = self._rest
        return self._densities(theta @ self.features.T + offset, y, fixed)

    def values_at(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        columns, names = self.columns(np.asarray(x, float), np.asarray(a))
        D = self.dim
        fixed = {name: columns[:, D + 1 + j] for j, name in enumerate(names)}
        return self._densities(theta @ columns[:, :D].T + columns[:, D], np.asarray(y), fixed)

    def _densities(self, eta: np.ndarray, y: np.ndarray, fixed: Fixed) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            values = self.family.terms(eta, y, fixed)[0]
        return np.where(self.family.inside_domain(eta), values, -np.inf)

    def value(self, theta: np.ndarray) -> np.ndarray:
        return self._sums(theta, curved=False)[0]

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._sums(theta, curved=False)[:2]

    def informations(self, theta: np.ndarray) -> np.ndarray:
        return self._sums(theta)[2]

    def parabolas(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._sums(theta)

    def _sums(
        self, theta: np.ndarray, curved: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`parabolas`, block by block so that they stay in the cache; with their last part, or
        zeros in its place.
        """
        M, D = theta.shape
        value, grad, total = np.zeros(M), np.zeros((M, D)), np.zeros((M, D * D))
        size = max(64, BLOCK // max(M, 1))
        for first in range(0, self.n, size):
            rows = slice(first, first + size)
            terms = self._terms(theta) if size >= self.n else self._terms_of(theta, rows)
            value += terms[0].sum(axis=1)
            grad += terms[1] @ self.features[rows]
            if not curved:
                continue
            if self.n * D * D <= MOST_PAIRS:
                total += terms[2] @ self._pairs[rows]
            else:
                phi = self.features[rows]
                for m, curvature in enumerate(np.broadcast_to(terms[2], (M, len(phi)))):
                    total[m] += ((phi.T * curvature) @ phi).ravel()
        return value, grad, total.reshape(M, D, D)

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """As if one outcome told the predictor up to one, or up to the noise's scale where there
        is one.
        """
        columns, names = self.columns(x, a)
        noise = columns[:, [self.dim + 1 + names.index("scale")]] if "scale" in names else 1.0
        found: np.ndarray = np.mean((columns[:, : self.dim] / noise) ** 2, axis=0)
        return found

    def simulated_fits(self, centre: np.ndarray, n: int, seed: int) -> np.ndarray:
        """Fits (n, D) to outcomes simulated from centre at the same rows."""
        rng, table = np.random.default_rng(seed), self.table
        assert table is not None
        density = self.density(self.features @ centre + self._rest[0], self.fixed())
        out = []
        for y in density.sample(int(rng.integers(2**31)), n):
            simulated = PredictorLikelihood(
                self.predictor, self.dim, type(table).of(table.x, table.a, y), self.names
            )
            out.append(simulated.climb(centre))
        return np.array(out)

    def top(self, near: np.ndarray) -> float:
        """The top of a concave log-likelihood, and what a last Newton step would still promise; inf
        if the climb did not settle.
        """
        if self.table is None or not self.n:
            return 0.0
        # a climb leaves directions of little curvature alone
        unit = np.sqrt(np.mean(self.features**2, axis=0))
        unit = np.where(unit > 0, unit, 1.0)
        table = self.table.x.copy()
        table[:, : self.dim] /= unit
        scaled = PredictorLikelihood(
            self.predictor, self.dim, Rows.of(table, self.table.a, self.table.y), self.names
        )
        theta = scaled.climb(near * unit, steps=100, enough=1e-9)
        value, grad = scaled.at(theta)
        values, vectors = np.linalg.eigh(scaled.information(theta))
        left = np.sum(
            (vectors.T @ grad) ** 2 / np.maximum(values, max(1e-9 * float(values.max()), 1e-300))
        )
        return float(value + left) if left < 1e-3 else np.inf

    def deficit(
        self, theta: np.ndarray, grad: np.ndarray, information: np.ndarray
    ) -> tuple[float, bool]:
        r"""A proved bound on the log-likelihood still to gain.

        For a family with |third derivative| <= c second derivative in eta (c its `growth`): along a
        unit direction of the norm that the information I defines, with ``rho = c max_i
        |phi_i|_{I^-1}`` and ``lam = |g|_{I^-1}``, integrating ``h''(t) >= exp(-rho t)`` twice gives
        gain <= (u + (1 - u) log(1 - u)) / rho^2  with u = lam rho < 1, which tends to lam^2 / 2 as
        rho -> 0 (and c = 0 for the Normal). If u >= 1 nothing is proved and the answer is infinite;
        for a family without a known c it is the Newton decrement, an estimate.
        """
        if self.n == 0:
            return 0.0, True
        if self.family.growth is None:
            return decrement(grad, information), False
        phi = self.features
        values, vectors = np.linalg.eigh(information)
        seen = values > RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)
        # Features lie in the information's range in exact arithmetic, and so does g; a direction of
        # collapsed curvature (separable data) is the exception, and there no bound holds.
        if np.abs(phi @ vectors[:, ~seen]).max(initial=0.0) > 1e-6 * np.abs(phi).max(initial=0.0):
            return np.inf, False
        root = vectors[:, seen] / np.sqrt(values[seen])
        lam = float(np.linalg.norm(root.T @ grad))
        growth = self.family.growth(self.fixed())
        if growth == 0:
            return 0.5 * lam**2, True
        rho = growth * float(np.sqrt(np.max(np.sum((phi @ root) ** 2, axis=1), initial=0.0)))
        u = lam * rho
        if u >= 1.0:
            return np.inf, False
        gain = 0.5 * lam**2 if u < 1e-6 else (u + (1 - u) * np.log1p(-u)) / rho**2
        return gain * (1 + 1e-6) if u < 1e-6 else gain, True
