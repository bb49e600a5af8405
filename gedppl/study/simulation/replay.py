"""Replay of full-information data: every row knows the outcome of every action, so any decision can
be told its own.

Axis letters: n rows, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gedppl.errors import DataError, NotFiniteError, ReplayExhaustedError, ShapeError
from gedppl.problem import UTILITY


class Replay:
    """An environment that goes once through a table, in random order.

    The agent meets the rows one by one and is told the outcome of the action it played (bandit
    feedback), or what `reveals` lets it see. No row is used twice: an agent that met the same
    patient again would look better than it is.

    Parameters
    ----------
    x
        Contexts, (n, dx).
    y
        The utility's outcome of every action, (n, K); or (n,), if it is the same whatever the
        action (the right dose, the demand), which is then told as it is.
    z
        Outcomes of constraints that have one of their own, in the same form: an array, or ``{name:
        array}``.
    utilities, costs
        True values (n, K) and (n, J, K) from a reference model, to measure regret and feasibility
        with. Without them both are unknown: outcomes are not expectations, and an oracle that sees
        outcomes is no fair comparison. The reference should be cross-fitted, so that no row is
        judged by a model that was fitted to it.
    reveals
        The problem's ``reveals``, boolean (K, K): outcomes are then told as (K,) with NaN for what
        stays hidden.
    shuffle
        False keeps the order of the table. True (default) shuffles it with the world's seed.

    Notes
    -----
    It needs the outcome of every action in every row. Not guaranteed: anything of rows unlike
    those of the table. A log that has the outcome of one action a row is for `gedppl.offpolicy`.

    Examples
    --------
    >>> world = Replay([[0.0], [1.0]], [[0.0, 1.0], [1.0, 0.0]], shuffle=False)
    >>> rng = np.random.default_rng(0)
    >>> world.outcome(world.context(rng), 1, rng)
    (1.0, None)
    >>> world.rows_left
    1
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        z: Any = None,
        *,
        utilities: Any = None,
        costs: Any = None,
        reveals: Any = None,
        shuffle: bool = True,
    ) -> None:
        self.x = np.array(x, float)
        if self.x.ndim != 2 or not self.x.size:
            raise ShapeError(f"x must be (n, dx) with at least one row, got shape {self.x.shape}")
        if not np.isfinite(self.x).all():
            raise NotFiniteError("x must be finite; impute or drop rows with missing values first")
        n = len(self.x)
        self._z_named = isinstance(z, Mapping)
        tables: dict[str, Any] = {UTILITY: y}
        tables |= dict(z) if isinstance(z, Mapping) else {} if z is None else {"z": z}
        self.outcomes = {name: _table(name, values, n) for name, values in tables.items()}
        widths = {t.shape[1] for t in self.outcomes.values() if t.ndim == 2}
        self.reveals = None if reveals is None else np.asarray(reveals, bool)
        if self.reveals is not None:
            widths |= set(self.reveals.shape)
        if len(widths) > 1:
            raise ShapeError(
                f"y, z and reveals must speak of the same number of actions K, got {sorted(widths)}"
            )
        self._utilities = None if utilities is None else np.array(utilities, float)
        self._costs = None if costs is None else np.array(costs, float)
        if self._utilities is not None and (self._utilities.ndim != 2 or len(self._utilities) != n):
            raise ShapeError(f"utilities must be (n, K) with n = {n}, got {self._utilities.shape}")
        if self._costs is not None:
            if self._costs.ndim == 2:  # one constraint
                self._costs = self._costs[:, None]
            if self._costs.ndim != 3 or len(self._costs) != n:
                raise ShapeError(
                    f"costs must be (n, K) or (n, J, K) with n = {n}, got {self._costs.shape}"
                )
        self._shuffle = shuffle
        self._order: np.ndarray | None = None
        self._used = 0
        self._rows_of: dict[bytes, list[int]] = {}
        for i, row in enumerate(self.x):
            self._rows_of.setdefault(row.tobytes(), []).append(i)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def rows_left(self) -> int:
        """Rows that were not met yet."""
        return len(self) - self._used

    @property
    def row(self) -> int:
        """The number of the row met last."""
        if self._order is None:
            raise DataError("no row was met yet; call context first")
        return int(self._order[self._used - 1])

    def context(self, rng: np.random.Generator) -> np.ndarray:
        """The next row's context (dx,)."""
        if self._order is None:
            self._order = rng.permutation(len(self)) if self._shuffle else np.arange(len(self))
        if not self.rows_left:
            raise ReplayExhaustedError(
                f"all {len(self)} rows of the replay were used; ask for at most {len(self)} rounds"
            )
        self._used += 1
        found: np.ndarray = self.x[self.row].copy()
        return found

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """What the table says of this row and action: (y, z)."""
        i = self._find(x)
        told = {name: self._told(table[i], action) for name, table in self.outcomes.items()}
        y = told.pop(UTILITY)
        return y, told if self._z_named else told.get("z")

    def utilities(self, x: np.ndarray) -> np.ndarray | None:
        """The reference's utilities (K,), or None."""
        return None if self._utilities is None else self._utilities[self._find(x)]

    def costs(self, x: np.ndarray) -> np.ndarray | None:
        """The reference's costs (J, K), or None."""
        return None if self._costs is None else self._costs[self._find(x)]

    def _find(self, x: np.ndarray) -> int:
        """The row with this context: the one met last, if it has it, else the first."""
        key = np.asarray(x, float).tobytes()
        if self._used and self.x[self.row].tobytes() == key:
            return self.row
        if key not in self._rows_of:
            raise DataError(
                f"no row of the replay has the context {x}; a replay knows its own contexts only"
            )
        return self._rows_of[key][0]

    def _told(self, row: np.ndarray, action: int) -> Any:
        if row.ndim == 0:
            return float(row)
        if self.reveals is None:
            return float(row[action])
        return np.where(self.reveals[action], row, np.nan)


def _table(name: str, values: Any, n: int) -> np.ndarray:
    table = np.array(values, float)
    if table.ndim not in (1, 2) or len(table) != n:
        raise ShapeError(
            f"outcomes of {name!r} must be (n,) or (n, K) with n = {n}, got {table.shape}"
        )
    if not np.isfinite(table).all():
        raise NotFiniteError(
            f"outcomes of {name!r} must be finite for every row and action: a "
            "replay needs full information"
        )
    return table
