"""The log-likelihood of a growing history, for many parameters at once.

Three forms with one face: `PredictorData` keeps the features of a class with a linear predictor,
`OrderedData` the edges of ordered outcomes, and both need NumPy alone; `ProgramData` asks the
program. All are immutable: `append` returns a new history and leaves the old one valid.

A fit maximises an `Objective` (`learning/fits.py`) instead: weighted rows and a prior at one
setting, where this is the plain likelihood of a set at many, a few rows longer every round.

Axis letters: M parameter settings, n rows, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gedppl.density import Density
from gedppl.errors import GedError, NotFiniteError
from gedppl.families.one_predictor import FAMILIES
from gedppl.learning.fits import units
from gedppl.learning.ordered import CUMULATIVE, Intervals, crossed
from gedppl.numerics.arrays import LARGEST, countable
from gedppl.programs.contract import LinearPredictor
from gedppl.rows import Rows, bucket

if TYPE_CHECKING:
    from gedppl.learning.profiled import Profile
    from gedppl.learning.storing import Node, Reader, Writer
    from gedppl.programs.contract import DensityClass, OrderedPredictor


# nats still to gain at which a climb ends; on separable data a smaller number would run far off
TOP = 1e-4


Walls = tuple[list[np.ndarray], list[np.ndarray]]


class Data(Protocol):
    """Rows and their log-likelihood."""

    n: int
    # whether the log-likelihood is known to be concave in theta, so that its sets are convex
    concave: bool

    @property
    def noise_scale(self) -> float | None:
        """The widest known noise scale of a linear-Gaussian class, None for another."""
        ...

    @property
    def top_known(self) -> bool:
        """Whether `top` is more than inf."""
        ...

    @property
    def smooth(self) -> bool:
        """Whether `information` is minus the Hessian, and not a working weight beside kinks."""
        ...

    def cleared(self) -> Data:
        """The same form without rows."""
        ...

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Data: ...

    def grown(self, rows: Rows, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Data:
        """With m rows more; `rows` has all of them, so that nobody need keep them twice."""
        ...

    def crosses(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(M, m) bool: where theta has no density, though single outcomes are given a value."""
        ...

    def density_of(
        self, cls: DensityClass, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> Density:
        """Densities (M, n) of the class at theta (M, D), without its program where possible."""
        ...

    def simulated_fits(self, centre: np.ndarray, n: int, seed: int) -> np.ndarray | None:
        """Fits (n, D) to outcomes simulated from centre at the same rows, if that can be done."""
        ...

    def top(self, near: np.ndarray) -> float:
        """At least the largest log-likelihood; inf where it is not known (see `top_known`)."""
        ...

    def stored(self, out: Writer) -> Node:
        """What the rows alone do not give back."""
        ...

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> Data:
        """The same form around what was stored, and all rows."""
        ...

    def between(self, start: int, stop: int) -> Data:
        """The rows start..stop-1 as a history of their own."""
        ...

    def walls(self) -> Walls:
        """Half-spaces A v <= b beyond which rows have no density: parts of A and of b."""
        ...

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        """theta (M, D) -> (M, n)."""
        ...

    def value(self, theta: np.ndarray) -> np.ndarray:
        """Summed over rows: theta (M, D) -> (M,)."""
        ...

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(M,) and its gradient (M, D)."""
        ...

    def information(self, theta: np.ndarray) -> np.ndarray:
        """Minus the Hessian at theta (D,): (D, D)."""
        ...

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """What one outcome at rows x (n, dx), a (n,) tells of each coordinate near theta (D,),
        about: (D,). None is needed.
        """
        ...


class NoPredictor:
    """Rows whose outcomes do not follow one linear predictor."""

    noise_scale = None
    top_known = False

    def crosses(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return np.zeros((1, 1), bool)

    def density_of(
        self, cls: DensityClass, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> Density:
        return cls.density_at(theta, x, a)

    def simulated_fits(self, centre: np.ndarray, n: int, seed: int) -> np.ndarray | None:
        return None

    def top(self, near: np.ndarray) -> float:
        return np.inf

    def walls(self) -> Walls:
        return [], []

    def stored(self, out: Writer) -> Node:
        return None


class ProgramData(NoPredictor):
    """Through the program's compiled kernels."""

    concave, smooth = False, True

    def __init__(self, cls: DensityClass, rows: Rows) -> None:
        self.cls, self.rows, self.n = cls, rows, rows.n
        self._kept: Profile | None = None

    def kept(self, make: Callable[[], Profile]) -> Profile:
        """These rows along a nuisance, made once."""
        if self._kept is None:
            self._kept = make()
        return self._kept

    def cleared(self) -> ProgramData:
        return ProgramData(self.cls, Rows.empty(self.rows.x.shape[1], self.rows.y.shape[1:]))

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> ProgramData:
        # the first set the width
        return ProgramData(self.cls, self.rows.append(x, a, y) if self.n else Rows.of(x, a, y))

    def grown(self, rows: Rows, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> ProgramData:
        return ProgramData(self.cls, rows)

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> ProgramData:
        return self if rows is None else ProgramData(self.cls, rows)

    def between(self, start: int, stop: int) -> ProgramData:
        if start == 0 and stop == self.n:
            return self
        rows = self.rows
        return ProgramData(
            self.cls, Rows.of(rows.x[start:stop], rows.a[start:stop], rows.y[start:stop])
        )

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        rows = self.rows
        return np.asarray(self.cls.log_likelihood(theta, rows.x, rows.a, rows.y))

    def value(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(self.cls.total(theta, self.rows)) if self.n else np.zeros(len(theta))

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.n:
            return np.zeros(len(theta)), np.zeros(theta.shape)
        value, grad = self.cls.total_grad(theta, self.rows)
        return np.asarray(value), np.asarray(grad)

    def information(self, theta: np.ndarray) -> np.ndarray:
        if not self.n:
            return np.zeros((len(theta), len(theta)))
        hessian = np.asarray(self.cls.total_hessian(theta, self.rows))
        return -0.5 * (hessian + hessian.T)

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        try:
            y = self.cls.density_at(theta, x, a).sample(0, 1)[0]
            return np.abs(np.diag(self.cls.total_hessian(theta, Rows.of(x, a, y)))) / len(a)
        except GedError:  # no outcome can be drawn
            return np.full(len(theta), np.nan)


class PredictorData:
    """From eta = features @ theta + offset; log-concave in theta for every family of
    `one_predictor`.

    The features, the offset and the family's fixed arguments are the columns of one growing `Rows`.
    Where a link has a domain, sums over rows go by its concave continuation, which makes a set
    larger; `row_values`, which predictives rest on, do not.
    """

    concave = True

    def __init__(
        self, predictor: LinearPredictor, dim: int, table: Rows | None, names: tuple[str, ...]
    ) -> None:
        self.predictor, self.dim, self.table, self.names = predictor, dim, table, names
        self.n = 0 if table is None else table.n
        self.family = FAMILIES[predictor.family, predictor.link]

    @classmethod
    def empty(cls, predictor: LinearPredictor, dim: int) -> PredictorData:
        return cls(predictor, dim, None, ())

    def cleared(self) -> PredictorData:
        return PredictorData.empty(self.predictor, self.dim)

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> PredictorData:
        columns, names = self.columns(np.asarray(x, float), np.asarray(a))
        table = Rows.empty(columns.shape[1]) if self.table is None else self.table
        return PredictorData(self.predictor, self.dim, table.append(columns, a, y), names)

    def grown(self, rows: Rows, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> PredictorData:
        return self.append(x, a, y)

    def crosses(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return np.zeros((1, 1), bool)

    @property
    def noise_scale(self) -> float | None:
        return float(np.max(self.fixed()["scale"])) if self.predictor.family == "Normal" else None

    @property
    def top_known(self) -> bool:
        return self.smooth

    def stored(self, out: Writer) -> Node:
        return [out.node(self.table), out.node(self.names)]

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> PredictorData:
        table, names = (read.node(part) for part in node)
        return PredictorData(self.predictor, self.dim, table, names)

    def columns(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """features | offset | fixed arguments: (n, D + 1 + ...) and the fixed arguments' names."""
        n = len(a)
        # padded, so that a backend compiles a handful of shapes
        take = np.zeros(1 if n == 1 else bucket(n), np.int64)
        take[:n] = np.arange(n)
        x, a = x[take], a[take]
        fixed = self.predictor.fixed(x, a)
        parts = [self.predictor.offset(x, a), *fixed.values()]
        flat = [np.broadcast_to(np.asarray(part, float), len(a))[:, None] for part in parts]
        found = np.hstack([np.asarray(self.predictor.features(x, a), float), *flat])[:n]
        if not countable(found).all():
            raise NotFiniteError(
                "features, offset or a known argument of the model are not finite at some row, or "
                f"beyond {LARGEST:g}: got {found[~countable(found)][0]}; check the model at that "
                f"context, or measure the context in another unit"
            )
        return found, tuple(fixed)

    def fixed_names(self, x: np.ndarray, a: np.ndarray) -> tuple[str, ...]:
        """Names of the family's other arguments, in the order of the columns."""
        return self.names if self.table is not None else tuple(self.predictor.fixed(x[:1], a[:1]))

    def between(self, start: int, stop: int) -> PredictorData:
        if self.table is None or (start == 0 and stop == self.n):
            return self
        part = Rows.of(self.table.x[start:stop], self.table.a[start:stop], self.table.y[start:stop])
        return PredictorData(self.predictor, self.dim, part, self.names)

    @property
    def smooth(self) -> bool:
        return self.family.smooth

    @property
    def features(self) -> np.ndarray:
        return np.zeros((0, self.dim)) if self.table is None else self.table.x[:, : self.dim]

    def fixed(self) -> dict[str, np.ndarray]:
        assert self.table is not None
        return {name: self.table.x[:, self.dim + 1 + j] for j, name in enumerate(self.names)}

    def walls(self) -> Walls:
        """The domain of the link at the rows seen."""
        normals: list[np.ndarray] = []
        limits: list[np.ndarray] = []
        ends = [(s, end) for s, end in zip((-1.0, 1.0), self.family.domain) if np.isfinite(end)]
        if self.table is not None and ends:
            rows = np.unique(self.table.x[:, : self.dim + 1], axis=0)
            normals += [sign * rows[:, :-1] for sign, _ in ends]
            limits += [sign * (end - rows[:, -1]) for sign, end in ends]
        return normals, limits

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

    def _terms(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self.table is not None
        eta = theta @ self.features.T + self.table.x[:, self.dim]
        y = self.table.y
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self.family.terms(eta, y, self.fixed())

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        assert self.table is not None
        eta = theta @ self.features.T + self.table.x[:, self.dim]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            values = self.family.terms(eta, self.table.y, self.fixed())[0]
        return np.where(self.family.inside_domain(eta), values, -np.inf)

    def value(self, theta: np.ndarray) -> np.ndarray:
        return self._terms(theta)[0].sum(axis=-1) if self.n else np.zeros(len(theta))

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.n:
            return np.zeros(len(theta)), np.zeros(theta.shape)
        if (self.predictor.family, self.predictor.link) == ("Bernoulli", "logit"):
            return self._bernoulli_value_grad(theta)
        value, score, _ = self._terms(theta)
        return value.sum(axis=-1), score @ self.features

    def _bernoulli_value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same sums in one pass, block by block so that they stay in the cache: about five
        times as fast.
        """
        assert self.table is not None
        table, y, D = self.table.x, self.table.y, self.dim
        value = theta @ (y @ table[:, :D]) + y @ table[:, D]
        grad = np.tile(y @ table[:, :D], (len(theta), 1))
        size = max(64, 40_000 // len(theta))
        for first in range(0, self.n, size):
            block = table[first : first + size]
            phi = np.ascontiguousarray(block[:, :D])
            eta = theta @ phi.T
            eta += block[:, D]
            tail = np.abs(eta)
            np.exp(np.negative(tail, out=tail), out=tail)  # exp(-|eta|), never overflows
            total = 1.0 + tail
            value -= np.maximum(eta, 0.0).sum(axis=1) + np.log(total).sum(axis=1)
            np.divide(np.where(eta >= 0, 1.0, tail), total, out=total)  # the probability
            grad -= total @ phi
        return value, grad

    def information(self, theta: np.ndarray) -> np.ndarray:
        if not self.n:
            return np.zeros((self.dim, self.dim))
        return self.informations(theta[None])[0]

    def _curvature(self, theta: np.ndarray) -> np.ndarray:
        """Minus the second derivatives of the rows by their predictors, (M, n)."""
        if (self.predictor.family, self.predictor.link) != ("Bernoulli", "logit"):
            return self._terms(theta)[2]
        assert self.table is not None
        tail = np.abs(theta @ self.features.T + self.table.x[:, self.dim])
        np.exp(np.negative(tail, out=tail), out=tail)  # p (1 - p) = e^-|eta| / (1 + e^-|eta|)^2
        return tail / np.square(1.0 + tail)

    def informations(self, theta: np.ndarray) -> np.ndarray:
        """`information` at every theta (M, D): (M, D, D), block by block so that it stays in the
        cache.
        """
        M, D = theta.shape
        total = np.zeros((M, D * D))
        size = max(64, 40_000 // max(M, D * D))
        for first in range(0, self.n, size):
            block = self if size >= self.n else self.between(first, min(first + size, self.n))
            phi = block.features
            curvature = np.broadcast_to(block._curvature(theta), (M, len(phi)))
            total += curvature @ (phi[:, :, None] * phi[:, None, :]).reshape(len(phi), -1)
        return total.reshape(M, D, D)

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """As if one outcome told the predictor up to one, or up to the noise's scale where there
        is one.
        """
        columns, names = self.columns(x, a)
        noise = columns[:, [self.dim + 1 + names.index("scale")]] if "scale" in names else 1.0
        return np.mean((columns[:, : self.dim] / noise) ** 2, axis=0)

    def simulated_fits(self, centre: np.ndarray, n: int, seed: int) -> np.ndarray:
        """Fits (n, D) to outcomes simulated from centre at the same rows."""
        rng, table = np.random.default_rng(seed), self.table
        assert table is not None
        density = self.density(self.features @ centre + table.x[:, self.dim], self.fixed())
        out = []
        for y in density.sample(int(rng.integers(2**31)), n):
            simulated = PredictorData(
                self.predictor, self.dim, type(table).of(table.x, table.a, y), self.names
            )
            out.append(climb(simulated, centre))
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
        scaled = PredictorData(
            self.predictor, self.dim, Rows.of(table, self.table.a, self.table.y), self.names
        )
        theta = climb(scaled, near * unit, steps=100, enough=1e-9)
        value, grad = (part[0] for part in scaled.value_grad(theta[None]))
        values, vectors = np.linalg.eigh(scaled.information(theta))
        left = np.sum(
            (vectors.T @ grad) ** 2 / np.maximum(values, max(1e-9 * float(values.max()), 1e-300))
        )
        return float(value + left) if left < 1e-3 else np.inf


class OrderedData(NoPredictor):
    """From the edges of ordered outcomes: see `gedppl.learning.ordered`.

    The columns of the edge below and of the edge above each outcome are those of one growing
    `Rows`.
    """

    concave, smooth = True, True

    def __init__(self, ordered: OrderedPredictor, dim: int, table: Rows) -> None:
        self.ordered, self.dim, self.n, self.table = ordered, dim, table.n, table

    @classmethod
    def empty(cls, ordered: OrderedPredictor, dim: int) -> OrderedData:
        return cls(ordered, dim, Rows.empty(2 * (dim + 1)))

    def cleared(self) -> OrderedData:
        return OrderedData.empty(self.ordered, self.dim)

    def append(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> OrderedData:
        found = Intervals.of(self.ordered, np.asarray(x, float), np.asarray(a), y)
        columns = np.hstack([found.lower, found.upper])
        return OrderedData(self.ordered, self.dim, self.table.append(columns, a, y))

    def between(self, start: int, stop: int) -> OrderedData:
        if start == 0 and stop == self.n:
            return self
        x, a, y = self.table.x, self.table.a, self.table.y
        part = Rows.of(x[start:stop], a[start:stop], y[start:stop])
        return OrderedData(self.ordered, self.dim, part)

    def grown(self, rows: Rows, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> OrderedData:
        return self.append(x, a, y)

    def restored(self, read: Reader, node: Node, rows: Rows | None) -> OrderedData:
        return self if rows is None else self.append(rows.x, rows.a, rows.y)

    def crosses(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return crossed(self.ordered, theta, x, a)

    @cached_property
    def intervals(self) -> Intervals:
        lower, upper = np.hsplit(self.table.x, 2)
        return Intervals(CUMULATIVE[self.ordered.link], lower, upper)

    def row_values(self, theta: np.ndarray) -> np.ndarray:
        return self.intervals.row_values(theta)

    def value(self, theta: np.ndarray) -> np.ndarray:
        return self.row_values(theta).sum(axis=1)

    def value_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.intervals.value_grad(theta)

    def information(self, theta: np.ndarray) -> np.ndarray:
        return self.informations(theta[None])[0]

    def expected_information(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Of the edge that tells most, as if one outcome told it up to one."""
        return np.max(np.mean(self.ordered.features(x, a) ** 2, axis=0), axis=0)

    def informations(self, theta: np.ndarray) -> np.ndarray:
        """`information` at every theta (M, D): (M, D, D)."""
        return self.intervals.informations(theta)


def climb(
    data: Data,
    theta: np.ndarray,
    precision: np.ndarray | None = None,
    steps: int = 25,
    enough: float = TOP,
    far: float = np.inf,
) -> np.ndarray:
    """The top of the log-likelihood near theta (D,), by damped Newton steps; where it has no top, a
    point high up.

    Directions without curvature are left alone. A step that promises less than `enough` nats is not
    taken, and none is longer than `far` (1 + |theta|), both in standard errors of one row at the
    start. Nothing rests on this being a maximum: a confidence set is defined by log-likelihood and
    threshold, this is only where the search inside it starts.
    """
    value, grad = (part[0] for part in data.value_grad(theta[None]))
    before = theta
    ruler = None
    for _ in range(steps):
        information = data.information(theta) if precision is None else precision
        # too high up: a likelihood without a top ran out of numbers
        if not np.isfinite(information).all():
            return before
        unit = units(information)
        values, vectors = np.linalg.eigh(information / np.outer(unit, unit))
        floor = 1e-9 * max(float(np.abs(values).max(initial=0.0)), 1e-300)
        along = vectors.T @ (grad / unit)
        curved = np.abs(values) > floor
        step = (
            vectors
            @ np.divide(along, np.abs(values), out=np.zeros_like(along), where=curved)
            / unit
        )
        gain = float(grad @ step)
        if not np.isfinite(gain) or gain < enough:
            return theta
        if ruler is None:  # what no row depends on has no unit, and is not moved
            ruler = np.where(np.diag(information) == 0, 0.0, unit / np.sqrt(max(data.n, 1)))
        longest = far * (1 + float(np.linalg.norm(ruler * theta)))
        step = step * min(1.0, longest / max(float(np.linalg.norm(ruler * step)), 1e-300))
        for shrink in (1.0, 0.5, 0.1, 0.01):
            trial = theta + shrink * step
            new_value, new_grad = (part[0] for part in data.value_grad(trial[None]))
            if np.isfinite(new_value) and np.isfinite(new_grad).all() and new_value > value:
                break
        else:
            return theta
        before, theta, value, grad, precision = theta, trial, new_value, new_grad, None
    return theta if np.isfinite(data.information(theta)).all() else before
