"""A model's posterior as an object: named draws, predictions, log-likelihoods, and everything ArviZ
asks for.

Axis letters: S draws, n rows, M members, K actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import DataError
from gedppl.learning.arviz_shim import from_groups
from gedppl.learning.draws import ParameterDraws, log_likelihood, sample
from gedppl.learning.groups import program_dependence
from gedppl.learning.trusted import trusted
from gedppl.rows import Rows
from gedppl.showing import Facts, Shown

if TYPE_CHECKING:
    import xarray

    from gedppl.learning.oracles import Oracle
    from gedppl.problem.names import Names

MEMBER = "member"  # the name of a finite class's only parameter


@dataclass(frozen=True, repr=False)
class Posterior(Shown):
    """Draws of a model's parameters given rows. Made by `agent.posterior(stream)` or `posterior`.

    Draws have equal weights. Not guaranteed: anything; they trust the model and its prior.

    Examples
    --------
    >>> agent = ged.GEDUCB(problem)
    >>> agent.observe([[0.5]] * 4, [1] * 4, [1.0, 0.0, 0.0, 0.0])
    >>> found = agent.posterior("utility", draws=100)
    >>> found.draws["member"].shape, found.predictive([[0.5]], [1]).shape
    ((100,), (100, 1))
    """

    cls: Any
    rows: Rows | None  # None: none yet, and this is the prior
    found: ParameterDraws
    names: Names | None = field(default=None)
    seed: int = 0

    def _shown(self) -> Facts:
        n = 0 if self.rows is None else self.rows.n
        sites = ", ".join(f"{name}{list(value.shape[1:])}" for name, value in self.draws.items())
        return f"Posterior of {self.size} draws given {n} rows", {
            "draws": sites,
            "source": self.status,
        }

    @property
    def size(self) -> int:
        """S."""
        return self.found.size

    @property
    def status(self) -> str:
        """How the draws were found, and what speaks against them."""
        return self.found.status

    @cached_property
    def draws(self) -> dict[str, np.ndarray]:
        """Values by site, (S, *shape), in the model's own units; of a finite class the members'
        numbers (S,).
        """
        return _named(self.cls, self.found)

    def predictive(self, x: Any, a: Any) -> np.ndarray:
        """An outcome from every draw at rows x (n, dx), a (n,): (S, n). From an agent, names of
        columns and actions will do.
        """
        contexts, actions = (
            (np.asarray(x, float), np.asarray(a)) if self.names is None else self.names.rows(x, a)
        )
        return _outcomes(self.cls, self.found, contexts, actions, self.seed)

    @cached_property
    def log_likelihood(self) -> np.ndarray:
        """Of every row that was learned, at every draw: (S, n)."""
        rows = self._learned()
        return log_likelihood(self.cls, self.found, rows.x, rows.a, rows.y)

    def _learned(self) -> Rows:
        if self.rows is None:
            raise DataError(
                "no outcome has been learned yet, so that there is no likelihood: "
                "tell() or observe() some first"
            )
        return self.rows

    def to_arviz(self) -> Any:
        """An `InferenceData` (ArviZ 0.x) or `DataTree` (1.x) with posterior, prior and, once there
        are rows, posterior_predictive, log_likelihood, observed_data and constant_data.

        An axis of a parameter along which each action has its own entry bears the actions' names,
        one as long as the context those of its columns.
        """
        axes = _Axes(self.cls, self.names, self.rows)
        prior = sample(self.cls, None, "prior", self.size, self.seed + 1)
        if prior.enumerated:
            prior = prior.resampled(self.size, self.seed + 1)
        chains = self.found.chains
        groups = {
            "posterior": axes.dataset(self.draws, chains),
            "prior": axes.dataset(_named(self.cls, prior), 1),
        }
        if self.rows is not None:
            outcome, x, a = axes.outcome, self.rows.x, self.rows.a
            groups["posterior_predictive"] = axes.dataset(
                {outcome: self.predictive(x, a)}, chains, rows=True
            )
            groups["log_likelihood"] = axes.dataset(
                {outcome: self.log_likelihood}, chains, rows=True
            )
            groups["observed_data"] = axes.observed(self.rows)
            groups["constant_data"] = axes.given(self.rows)
        return from_groups(groups)


def posterior(
    cls: Any,
    rows: Rows | None,
    *,
    source: str = "laplace",
    draws: int = 1000,
    seed: int = 0,
    oracle: Oracle | None = None,
    names: Names | None = None,
) -> Posterior:
    """The posterior of a class given rows.

    Draws of an approximation are corrected until they stand for the posterior (see `trusted`), so
    that those of another source may take their place: ``found.source`` and ``status`` say which.
    Draws that came with weights are drawn again by these.
    """
    rows = None if rows is None or rows.n == 0 else rows
    found = trusted(cls, rows, sample(cls, rows, source, draws, seed, oracle=oracle), seed)
    found = found if found.log_weights is None else found.resampled(draws, seed)
    return Posterior(cls, rows, found, names, seed)


def _named(cls: Any, found: ParameterDraws) -> dict[str, np.ndarray]:
    return (
        {MEMBER: found.theta}
        if found.enumerated
        else {k: np.asarray(v) for k, v in cls.unflatten(found.theta).items()}
    )


def _outcomes(
    cls: Any, found: ParameterDraws, x: np.ndarray, a: np.ndarray, seed: int
) -> np.ndarray:
    """(S, n): one outcome for every draw and row."""
    if not found.enumerated:
        return np.asarray(cls.density_at(found.theta, x, a).sample(seed, 1)[0], float)
    members = np.unique(found.theta)
    drawn = {
        m: np.asarray(
            cls.density(int(m), x, a).sample(seed + int(m), int(np.sum(found.theta == m))), float
        )
        for m in members
    }
    out = np.empty((found.size, *next(iter(drawn.values())).shape[1:]))
    for m in members:
        out[found.theta == m] = drawn[m]
    return out


class _Axes:
    """Names of axes and their coordinates."""

    def __init__(self, cls: Any, names: Names | None, rows: Rows | None) -> None:
        self.names, self.rows = names, rows
        self.outcome = getattr(getattr(cls, "program", None), "observed", "y")
        self.sites = {site.name: site for site in getattr(cls, "sites", ())}
        self.columns = None if names is None or names.columns is None else list(names.columns)
        self.labels = None if names is None else [str(label) for label in names.labels]
        self.depends = None if not self.sites or names is None else _depends(cls, len(names.labels))

    def dataset(
        self, values: Mapping[str, np.ndarray], chains: int, rows: bool = False
    ) -> xarray.Dataset:
        """Values (S, ...) as (chain, draw, ...)."""
        import xarray

        arrays, coords = {}, {}
        for name, value in values.items():
            shaped = value.reshape(chains, -1, *value.shape[1:])
            dims = self._row_dims(value) if rows else self._site_dims(name, value.shape[1:])
            for dim, size in zip(dims, shaped.shape[2:]):
                coords[dim] = self._coordinate(dim, size)
            arrays[name] = (("chain", "draw", *dims), shaped)
        first = next(iter(arrays.values()))[1]
        return xarray.Dataset(
            arrays,
            {"chain": np.arange(first.shape[0]), "draw": np.arange(first.shape[1]), **coords},
        )

    def observed(self, rows: Rows) -> xarray.Dataset:
        import xarray

        dims = self._row_dims(rows.y[None])
        return xarray.Dataset(
            {self.outcome: (dims, rows.y)},
            {dim: np.arange(k) for dim, k in zip(dims, rows.y.shape)},
        )

    def given(self, rows: Rows) -> xarray.Dataset:
        import xarray

        actions = rows.a if self.labels is None else np.array(self.labels)[rows.a]
        coords = {"row": np.arange(rows.n), "column": self._coordinate("column", rows.x.shape[1])}
        return xarray.Dataset(
            {"x": (("row", "column"), rows.x), "action": (("row",), actions)}, coords
        )

    @staticmethod
    def _row_dims(value: np.ndarray) -> tuple[str, ...]:
        return ("row", *(f"part_{i}" for i in range(value.ndim - 2)))

    def _site_dims(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        dims = []
        for axis, size in enumerate(shape):
            if self._by_action(name, axis, size) and "action" not in dims:
                dims.append("action")
            elif self.columns is not None and size == len(self.columns) and "column" not in dims:
                dims.append("column")
            else:
                dims.append(f"{name}_dim_{axis}")
        return tuple(dims)

    def _by_action(self, name: str, axis: int, size: int) -> bool:
        """Whether action k depends on entry k of this axis and on no other."""
        site = self.sites.get(name)
        if (
            self.depends is None
            or site is None
            or size != len(self.depends)
            or site.free_shape != site.shape
        ):
            return False
        used = self.depends[:, site.start : site.stop].reshape(size, *site.shape)
        entries = np.moveaxis(used, axis + 1, 1).reshape(size, size, -1).any(axis=2)
        return bool(np.array_equal(entries, np.eye(size, dtype=bool)))

    def _coordinate(self, dim: str, size: int) -> Any:
        if dim == "action" and self.labels is not None:
            return self.labels
        return self.columns if dim == "column" and self.columns is not None else np.arange(size)


def _depends(cls: Any, n_actions: int) -> np.ndarray:
    """(K, D) which parameters each action's outcome depends on, near the context that the model
    was first run on.
    """
    x = np.asarray(cls.program.x, float)
    return program_dependence(cls, n_actions, x + 0.1 * (x == 0))
