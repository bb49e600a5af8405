"""E[1 / (N + 1)] for a count N of independent, unequal chances (Poisson-binomial), at any length
of history.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import DataError, SettingError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PANELS = 20  # dyadic panels: enough for counts up to a few million
NODES = 8  # per panel: relative error 1e-12
# products this small no longer matter, and on their way to 0 they would slow arithmetic down
FLUSH_BELOW = 1e-150


@lru_cache(maxsize=8)
def quadrature(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [1/2, 1], [1/4, 1/2], ..., [0, 2^-panels]."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    edges = np.append(0.5 ** np.arange(panels + 1), 0.0)
    high, low = edges[:-1, None], edges[1:, None]
    node, weight = (
        (0.5 * (high + low) + 0.5 * (high - low) * x).ravel(),
        (0.5 * (high - low) * w).ravel(),
    )
    node.flags.writeable = weight.flags.writeable = False  # every caller gets these very arrays
    return node, weight


def expected_inverse_count(p: ArrayLike, *, pulls: int = 1) -> Any:
    """E[1 / (N + pulls)] for N a sum of independent Bernoulli(p_j).

    ``E[1 / (N + m)] = ∫_0^1 (1 - v)^(m-1) Π_j (1 - p_j v) dv``, by Gauss-Legendre on dyadic panels:
    the integrand falls off like exp(-v Σp), which nodes spread evenly over [0, 1] miss altogether
    once Σp is large.

    Parameters
    ----------
    p
        (n, K) success probabilities, a column per action, or (n,).
    pulls
        Sure pulls besides, m ≥ 1.

    Returns
    -------
    (K,), or a float for p of shape (n,). Relative error about 1e-12.

    Notes
    -----
    It is at least 1 / (Σp + m), by Jensen's inequality. Not guaranteed: this value for a count
    whose parts depend on one another.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", Algorithm 1, whose exploration bonus it is with m = 1.

    Examples
    --------
    >>> expected_inverse_count([[1.0, 0.5], [1.0, 0.0]]).round(12)
    array([0.33333333, 0.75      ])
    """
    array = np.asarray(p, float)
    if array.ndim not in (1, 2):
        raise ShapeError(f"`p` must have shape (n, K) or (n,), got {array.shape}")
    if not ((array >= 0) & (array <= 1)).all():
        bad = array[~((array >= 0) & (array <= 1))][0]
        raise DataError(f"`p` must hold probabilities in [0, 1], got {bad}")
    check_pulls(pulls)
    columns = array[:, None].T if array.ndim == 1 else array.T
    node, weight = quadrature(max(PANELS, int(np.ceil(np.log2(len(array) + 1)))))
    weight = weight * (1 - node) ** (pulls - 1)
    product = np.ones((len(columns), len(node)))
    for start in range(0, len(array), 256):
        (alive,) = np.nonzero((product > FLUSH_BELOW).any(axis=0))
        factors = 1.0 - columns[:, start : start + 256, None] * node[alive]
        product[:, alive] *= np.multiply.reduce(factors, axis=1)
        product[product <= FLUSH_BELOW] = 0.0
    value = product @ weight
    return float(value[0]) if array.ndim == 1 else value


def check_pulls(pulls: int) -> None:
    """Raise unless `pulls` is at least 1."""
    if pulls < 1:
        raise SettingError(f"the number of sure pulls must be at least 1, got {pulls}")
