"""How a confidence set shrinks as rows come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import SettingError, renamed
from gedppl.learning import as_rows, feed, started
from gedppl.learning.credible import CredibleSet, SampledSet
from gedppl.learning.radius import Rule
from gedppl.showing import Spoken

if TYPE_CHECKING:
    from gedppl.functionals import Functional


@dataclass(frozen=True)
class ShrinkageRow:
    """The set's width at one sample size, and which of its two factors kept it from shrinking
    like 1/sqrt(n).
    """

    n: int
    width: float  # mean of upper - lower over contexts and actions
    radius: float  # kappa, the log-likelihood drop allowed
    # 8 kappa / width^2: the information about the functional that the width corresponds to
    curvature: float
    limited_by: str  # "radius" or "curvature"


@dataclass(frozen=True, repr=False)
class Shrinkage(Spoken):
    """Width against sample size."""

    rows: tuple[ShrinkageRow, ...]

    def __str__(self) -> str:
        lines = [f"{'n':>8} {'width':>10} {'radius':>10} {'curvature':>12}  limited by"]
        lines += [
            f"{r.n:>8} {r.width:>10.4g} {r.radius:>10.4g} {r.curvature:>12.4g}  {r.limited_by}"
            for r in self.rows
        ]
        return "\n".join(lines)


@renamed(radius="confidence")
def shrinkage(
    cls: Any,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
    y: np.ndarray,
    *,
    at: np.ndarray,
    n_actions: int | None = None,
    sizes: Sequence[int] | None = None,
    delta: float = 0.05,
    confidence: Rule | CredibleSet | SampledSet | None = None,
    seed: int = 0,
) -> Shrinkage:
    """The set's width for `functional` at contexts `at` (n, dx) after each of `sizes` rows.

    width = 2 sqrt(2 kappa / curvature), kappa the radius in nats

    Parameters
    ----------
    cls, functional
        The class, and what of its outcome is bounded.
    x, a, y
        Rows in the order in which they came: (n, dx), (n,), (n,).
    at
        Contexts (m, dx) at which the width is asked for; the mean over them is shown.
    n_actions, delta, confidence, seed
        As for `confidence_set`.
    sizes
        After how many rows; doubling up to all of them if not given.

    Notes
    -----
    Between two sizes an ideal set has constant kappa and curvature growing like n. The row says
    which of the two fell further behind: the radius grew ("radius"), or the rows brought little
    information about the functional ("curvature"; also when nothing bounds it yet). The curvature
    is what the width corresponds to, and no Hessian. Not guaranteed: that widths go on like this.

    Examples
    --------
    >>> coins, x, a, y = (
    ...     problem.utility.model,
    ...     np.zeros((20, 1)),
    ...     np.ones(20, int),
    ...     np.arange(20) % 2,
    ... )
    >>> print(ged.shrinkage(coins, ged.mean(0, 1), x, a, y, at=x[:1], n_actions=2, sizes=[8, 16]))
           n      width     radius    curvature  limited by
           8       0.15      3.228         1148  curvature
          16       0.15      3.394         1207  curvature
    """
    x, a, y = as_rows(x, a, y)
    if sizes is None:
        sizes = [s for s in (2**k for k in range(3, 40)) if s < len(a)] + [len(a)]
    sizes = sorted({int(s) for s in sizes})
    if not sizes or sizes[0] < 1 or sizes[-1] > len(a):
        raise SettingError(f"sizes must lie between 1 and the {len(a)} rows given, got {sizes}")
    K = int(a.max()) + 1 if n_actions is None else n_actions
    at = np.atleast_2d(np.asarray(at, float))
    learner = started(cls, x, a, n_actions, delta=delta, confidence=confidence, seed=seed)
    rows: list[ShrinkageRow] = []
    done = 0
    for size in sizes:
        learner = feed(learner, x[done:size], a[done:size], y[done:size])
        done = size
        found = learner.bounds(functional, at, K)
        width, kappa = float(np.mean(found.upper - found.lower)), float(learner.kappa)
        curvature = (
            8 * kappa / width**2
            if width > 0 and np.isfinite(kappa)
            else np.inf
            if width == 0
            else 0.0
        )
        rows.append(
            ShrinkageRow(size, width, kappa, curvature, _limit(rows, size, width, kappa, curvature))
        )
    return Shrinkage(tuple(rows))


def _limit(before: list[ShrinkageRow], n: int, width: float, kappa: float, curvature: float) -> str:
    if (
        not before
        or curvature == 0.0
        or before[-1].curvature in (0.0, np.inf)
        or not np.isfinite(curvature)
    ):
        return "curvature" if curvature == 0.0 or not before else "radius"
    last = before[-1]
    radius_behind = np.log(kappa / last.radius)
    curvature_behind = np.log(n / last.n) - np.log(curvature / last.curvature)
    return "radius" if radius_behind >= curvature_behind else "curvature"
