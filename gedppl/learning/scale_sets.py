"""What rows leave plausible of coefficients and scales that are both unknown: sufficient sums, and
sets of them.

Rows of a scale's group g enter by n, least squares and the residual sum of squares alone. Groups
with coefficients in common are treated as if each had its own, beta_g: the set is larger then,
never smaller, and nothing is borrowed between groups.

Axis letters: n rows, p coefficients, G scales, r directions seen, m rows asked about, M particles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gedppl.errors import OutOfSupportError
from gedppl.learning.fits import RANK_TOLERANCE
from gedppl.learning.scale_reach import ScaleReach
from gedppl.learning.storing import storable
from gedppl.programs.contract import LocationScale
from gedppl.rows import Rows

LOG_2PI = float(np.log(2 * np.pi))
# share of the outcomes' squares below which residuals are rounding: no scale is known then
EXACT_FIT = 1e-24
BEYOND_ROUNDING = 1e-7  # share of a row's features outside the span of the rows seen


def table_of(form: LocationScale, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Rows:
    """features | log y or 0, scale's group and outcome less its offset (of a LogNormal, its
    logarithm less the offset).
    """
    logged = form.family == "LogNormal"
    if logged and np.any(y <= 0):
        raise OutOfSupportError(
            f"a LogNormal outcome must be above 0, got {float(np.min(y)):g}: drop the row or add "
            "what is missing"
        )
    told = np.log(y) if logged else y
    offset = np.broadcast_to(np.asarray(form.offset(x, a), float), len(a))
    columns = np.hstack(
        [np.asarray(form.features(x, a), float), (told if logged else np.zeros(len(a)))[:, None]]
    )
    return Rows.of(columns, np.asarray(form.group(x, a), np.int64), told - offset)


def row_values(table: Rows, coefficients: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """Log-densities of the rows, (M, n), at coefficients (M, p) and log scales (M, G).

    Of outcome y in group g, z = (y - phi'beta) / sigma_g: -z^2 / 2 - log sigma_g - log(2 pi) / 2,
    less log y of a LogNormal, whose table holds log y.
    """
    mine = log_scale[:, table.a]
    with np.errstate(over="ignore", invalid="ignore"):
        z = (table.y - coefficients @ table.x[:, :-1].T) * np.exp(-mine)
        found: np.ndarray = -0.5 * z**2 - mine - 0.5 * LOG_2PI - table.x[:, -1]
        return found


@storable
@dataclass(frozen=True)
class ScaleFit:
    """Least squares of one scale's rows: all that their likelihood depends on.

    With s = 1 / sigma and m = s beta the log-likelihood, less its constants, is

        n log s - 1/2 sum (s y - phi'm)^2
            = n log s - 1/2 s^2 rss - 1/2 (m - s beta^)' A (m - s beta^),    A = sum phi phi',

    which is concave in (m, s) together: its sets are convex there, and not in (beta, sigma).
    """

    n: int
    coefficients: np.ndarray  # (p,) of smallest norm
    root: np.ndarray  # (p, r): |phi root|^2 = phi' A^+ phi
    # (p, p - r) orthonormal, of columns divided by their size: directions without rows
    hidden: np.ndarray
    width: np.ndarray  # (p,) the columns' sizes; 0 where no row has any
    rss: float  # 0 where the rows leave no residual

    @property
    def gram(self) -> np.ndarray:
        """A = sum phi phi', (p, p).

        The root's columns are orthogonal in columns of unit size only: a pseudo-inverse taken in
        the columns' own sizes would tilt A towards directions that no row has.
        """
        scaled = self.root * self.width[:, None]
        half = scaled / np.sum(scaled**2, axis=0) * self.width[:, None]  # (p, r)
        found: np.ndarray = half @ half.T
        return found

    @property
    def top(self) -> float:
        """The largest n log s - 1/2 sum (s y - phi'm)^2; inf where the rows leave no residual."""
        if self.n == 0:
            return 0.0
        return -0.5 * self.n * (np.log(self.rss / self.n) + 1.0) if self.rss > 0 else np.inf

    def sizes(self, phi: np.ndarray) -> np.ndarray:
        """h (m,) of features (m, p); infinite where they leave the span of the rows seen."""
        known = self.width > 0
        scaled = np.divide(phi, self.width, out=np.zeros_like(phi), where=known)
        leaves = np.linalg.norm(scaled @ self.hidden, axis=1) > BEYOND_ROUNDING * np.linalg.norm(
            scaled, axis=1
        )
        leaves |= np.any(phi[:, ~known] != 0, axis=1)
        return np.where(leaves, np.inf, np.linalg.norm(phi @ self.root, axis=1))


def fits_of(table: Rows, n_groups: int) -> tuple[ScaleFit, ...]:
    """One `ScaleFit` a scale, by least squares on columns of unit size, residuals taken from the
    rows themselves.
    """
    return tuple(_fit(table.x[table.a == g, :-1], table.y[table.a == g]) for g in range(n_groups))


def _fit(phi: np.ndarray, y: np.ndarray) -> ScaleFit:
    """Of features (n, p) and outcomes (n,). As many directions as rows leave no residual: `rss` is
    then 0, and the scale has no lower end.

    >>> fit = _fit(np.array([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), np.array([1.0, 3.0, 4.0]))
    >>> fit.coefficients.round(6), round(fit.rss, 6), fit.hidden.shape
    (array([2., 0.]), 2.0, (2, 1))
    """
    n = len(phi)
    width = np.sqrt(np.sum(phi**2, axis=0))
    unit = np.where(width > 0, width, 1.0)
    values, vectors = np.linalg.eigh((phi / unit).T @ (phi / unit))
    seen = values > RANK_TOLERANCE * max(float(values.max(initial=0.0)), np.finfo(float).tiny)
    root = vectors[:, seen] / np.sqrt(values[seen]) / unit[:, None]
    coefficients = root @ (root.T @ (phi.T @ y))
    left = y - phi @ coefficients
    again = root @ (root.T @ (phi.T @ left))  # one step of refinement: large means cancel less
    left = left - phi @ again
    rss = float(left @ left)
    if n <= int(seen.sum()) or rss <= EXACT_FIT * float(y @ y):
        rss = 0.0
    return ScaleFit(n, coefficients + again, root, vectors[:, ~seen], width, rss)


@storable
@dataclass(frozen=True)
class ScaleSet:
    """{(m, s) : log-likelihood of the rows after a start >= threshold}, as its least-squares
    fits tell it.
    """

    start: int
    fits: tuple[ScaleFit, ...]
    threshold: float  # of the log-density without its constants

    @property
    def kappa(self) -> float:
        """How far below its top the log-likelihood may lie."""
        return float(sum(fit.top for fit in self.fits) - self.threshold)

    def levels(self) -> np.ndarray:
        """c (G,): the threshold for each group's own rows, the others at their best."""
        tops = np.array([fit.top for fit in self.fits])
        return np.array([self.threshold - np.sum(np.delete(tops, g)) for g in range(len(tops))])

    def reach(
        self,
        phi: np.ndarray,
        offset: np.ndarray,
        group: np.ndarray,
        scales: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> ScaleReach:
        """What is plausible of location and scale at rows with these features (m, p), offsets
        (m,) and scales (m,), the scales being between `scales`, each (G,).
        """
        centre, size, unit, count, top = (
            np.array(offset, float),
            *(np.zeros(len(phi)) for _ in range(4)),
        )
        levels = self.levels()
        for g in np.unique(group):
            mine, fit = group == g, self.fits[g]
            centre[mine] += phi[mine] @ fit.coefficients
            size[mine] = fit.sizes(phi[mine])
            count[mine] = fit.n
            if fit.rss > 0:
                unit[mine] = np.sqrt(fit.rss / fit.n)
                top[mine] = np.log(fit.n / fit.rss) - 2 * levels[g] / fit.n
        if scales is None:
            return ScaleReach(centre, size, unit, count, top, 0.0 * top, np.full(len(top), np.inf))
        return ScaleReach(centre, size, unit, count, top, scales[0][group], scales[1][group])
