"""The parts of the linear-Gaussian learner that know no statistics: free directions, starts, stacked snapshots, features.

Axis letters: n contexts, K actions, B snapshots, E ellipsoids a snapshot, D flat parameters, q free parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import DataError, NotFiniteError, SettingError, ShapeError

if TYPE_CHECKING:
    from gedppl.classes import LinearPredictor

MIXING = 4.0  # precision of the mixing distribution, in units of what is known at its start


@dataclass(frozen=True)
class Space:
    """What is fixed before any row: the free directions, the prior, the ball.

    theta = origin + basis @ eta. A known value of a linear function of theta takes a direction out; eta then has q < D
    entries, with prior N(0, prior^-1).
    """

    origin: np.ndarray  # (D,)
    basis: np.ndarray  # (D, q), orthonormal columns
    prior: np.ndarray  # (q, q) precision
    log_det_prior: float
    ball: np.ndarray | None  # (D, D) G of theta'G theta <= 1

    @property
    def known(self) -> int:
        """How many directions are known."""
        return self.basis.shape[0] - self.basis.shape[1]


@dataclass(frozen=True)
class Starts:
    """Where e-processes began: rows before each, and the precision of its mixing distribution."""

    information: np.ndarray  # (k, q, q)
    moment: np.ndarray  # (k, q)
    mixing: np.ndarray  # (k, q, q)
    log_det: np.ndarray  # (k,)

    def push(self, information: np.ndarray, moment: np.ndarray, prior: np.ndarray) -> Starts:
        mixing = MIXING * (prior + information)
        return Starts(
            np.concatenate([self.information, information[None]]),
            np.concatenate([self.moment, moment[None]]),
            np.concatenate([self.mixing, mixing[None]]),
            np.append(self.log_det, np.linalg.slogdet(mixing)[1]),
        )


class Snapshots:
    """Stacked fits and ellipsoids of B refits: views of one buffer that doubles when full, so a refit appends in O(1)."""

    __slots__ = ("_buffer", "count")

    def __init__(self, buffer: dict[str, Any], count: int) -> None:
        self._buffer = buffer
        self.count = count

    @classmethod
    def none(cls, n_ellipsoids: int, free: int, dim: int, capacity: int = 16) -> Snapshots:
        buffer = {
            "sizes": np.zeros(capacity, np.int64),
            "theta": np.zeros((capacity, dim)),
            "middle": np.zeros((capacity, n_ellipsoids, dim)),
            "factor": np.zeros((capacity, n_ellipsoids, free, dim)),
            "empty": np.zeros(capacity, bool),
            "used": 0,
        }
        return cls(buffer, 0)

    def push(self, n: int, theta: np.ndarray, middle: np.ndarray, factor: np.ndarray, empty: bool) -> Snapshots:
        count, buffer = self.count, self._buffer
        full = count == len(buffer["sizes"])
        if full or buffer["used"] != count:  # somebody else went on from here: take a branch of our own
            grown = {}
            for name, old in buffer.items():
                if name != "used":
                    grown[name] = np.zeros((max(16, 2 * count), *old.shape[1:]), old.dtype)
                    grown[name][:count] = old[:count]
            buffer = grown
        for name, value in (("sizes", n), ("theta", theta), ("middle", middle), ("factor", factor), ("empty", empty)):
            buffer[name][count] = value
        buffer["used"] = count + 1
        return Snapshots(buffer, count + 1)

    def newest(self) -> Snapshots:
        """The last one alone."""
        part = {name: array[self.count - 1 : self.count] for name, array in self._buffer.items() if name != "used"}
        return Snapshots(part, 1)

    def project(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """factor phi (BE, q, m), and along phi (m, D) the half-width and the middle of every ellipsoid, each (BE, m)."""
        B, E, q, D = self.factor.shape
        along = (self.factor.reshape(B * E * q, D) @ phi.T).reshape(B * E, q, -1)
        extent = np.sqrt(np.einsum("eqm,eqm->em", along, along))
        return along, extent, self.middle.reshape(B * E, D) @ phi.T

    def attained(self, along: np.ndarray, extent: np.ndarray, which: np.ndarray, side: float) -> np.ndarray:
        """Parameters (m, D) at which ellipsoid which[i] attains its upper (side 1) or lower (side -1) value along phi_i."""
        B, E, q, D = self.factor.shape
        column = np.arange(len(which))
        unit = along[which, :, column] * (side / np.maximum(extent[which, column], 1e-300))[:, None]
        return self.middle.reshape(B * E, D)[which] + (unit[:, None] @ self.factor.reshape(B * E, q, D)[which])[:, 0]

    @property
    def sizes(self) -> np.ndarray:
        return self._buffer["sizes"][: self.count]

    @property
    def theta(self) -> np.ndarray:
        return self._buffer["theta"][: self.count]

    @property
    def middle(self) -> np.ndarray:
        return self._buffer["middle"][: self.count]

    @property
    def factor(self) -> np.ndarray:
        return self._buffer["factor"][: self.count]

    @property
    def empty(self) -> np.ndarray:
        return self._buffer["empty"][: self.count]


class FeatureMemo:
    """Features, offsets and scales of rows, checked; the last grid of contexts x actions is remembered.

    One decision asks for the same grid several times. The memo is replaced in one assignment, so threads may share it.
    """

    __slots__ = ("_dim", "_last", "_predictor")

    def __init__(self, predictor: LinearPredictor, dim: int) -> None:
        self._predictor, self._dim = predictor, dim
        self._last: tuple[Any, Any] = ((None, None, 0), None)

    def rows(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        m = len(a)
        (asked, shape, n_actions), last = self._last
        if m == 1 and shape == x.shape and a[0] < n_actions and x.tobytes() == asked:  # told right after it was asked
            return tuple(part[a] for part in last[2:])
        phi = np.asarray(self._predictor.features(x, a), float)
        if phi.shape != (m, self._dim):
            raise ShapeError(f"features must be ({m}, {self._dim}) here, got {phi.shape}")
        offset = np.broadcast_to(np.asarray(self._predictor.offset(x, a), float), (m,))
        scale = np.broadcast_to(np.asarray(self._predictor.fixed(x, a)["scale"], float), (m,))
        if not (np.isfinite(phi).all() and np.isfinite(offset).all()):
            raise NotFiniteError("features or offset are not finite at some row; check the model at that context")
        if not ((scale > 0) & np.isfinite(scale)).all():
            raise DataError(f"noise scales must be positive and finite, got {scale[~((scale > 0) & np.isfinite(scale))][0]}")
        return phi, offset, scale

    def grid(self, x: np.ndarray, n_actions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows x (nK, dx), a (nK,), features (nK, D), offset (nK,), scale (nK,), contexts slowest."""
        key = (x.tobytes(), x.shape, n_actions)
        last_key, last = self._last
        if key != last_key:
            rows, a = np.repeat(x, n_actions, axis=0), np.tile(np.arange(n_actions), len(x))
            last = (rows, a, *self.rows(rows, a))
            self._last = (key, last)
        return last


def norm_ball(norm_bound: float | Sequence[tuple[Any, float]] | None, dim: int) -> np.ndarray | None:
    """G of theta'G theta <= 1. Several parts: the mean of their ||theta_j||^2 / S_j^2 <= 1, which holds if each does."""
    if norm_bound is None:
        return None
    parts = [(np.arange(dim), norm_bound)] if isinstance(norm_bound, int | float) else list(norm_bound)
    G = np.zeros(dim)
    for indices, bound in parts:
        if not (np.isfinite(bound) and bound > 0):
            raise SettingError(f"a norm bound must be a positive number, got {bound!r}")
        G[np.asarray(indices, np.int64)] += 1 / (bound**2 * len(parts))
    return np.diag(G)


def free_space(dim: int, mean: Any, precision: Any, known: tuple[Any, Any] | None, ball: np.ndarray | None) -> Space:
    centre = np.zeros(dim) if mean is None else np.asarray(mean, float)
    given = np.asarray(precision, float)
    full = given if given.ndim == 2 else np.diag(np.broadcast_to(given, (dim,)))
    if centre.shape != (dim,) or full.shape != (dim, dim):
        raise ShapeError(f"the prior needs mean ({dim},) and precision a number, ({dim},) or ({dim}, {dim})")
    if not (np.isfinite(full).all() and np.linalg.eigvalsh(full)[0] > 0):
        raise SettingError("prior_precision must be positive definite; a weak prior is a small number, not 0")
    basis, origin = np.eye(dim), centre
    if known is not None:
        rows, values = np.atleast_2d(np.asarray(known[0], float)), np.atleast_1d(np.asarray(known[1], float))
        if rows.shape != (len(values), dim) or not (np.isfinite(rows).all() and np.isfinite(values).all()):
            raise ShapeError(
                f"known_direction needs finite features (m, {dim}) and values (m,), got {rows.shape} and {values.shape}"
            )
        fixed = np.linalg.pinv(rows, rcond=1e-10) @ values
        if np.abs(rows @ fixed - values).max() > 1e-8 * (1 + np.abs(values).max()):
            raise SettingError(f"known_direction contradicts itself: no parameter gives {values} at these features")
        _, size, axes = np.linalg.svd(rows)
        rank = int((size > 1e-10 * max(size.max(), 1e-300)).sum())
        if rank == dim:
            raise SettingError("known_direction fixes every parameter; declare a known cost instead")
        basis = axes[rank:].T
        # the working prior given the known values: its mean moves along the free directions
        free = basis.T @ full
        origin = fixed + basis @ np.linalg.solve(free @ basis, free @ (centre - fixed))
    prior = basis.T @ full @ basis
    return Space(origin, basis, prior, float(np.linalg.slogdet(prior)[1]), ball)
