"""Pictures of the generalized eluder dimension against the scale. matplotlib is imported when a
function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.theory import eluder


def plot_dimension(
    curves: Mapping[str, Any],
    eps: Any,
    *,
    upper: Mapping[str, Callable[[float], Any]] | None = None,
    ax: Any = None,
    seed: int = 0,
) -> Any:
    """The dimension against the scale, one line for each class or divergence. Returns the
    matplotlib axes.

    Parameters
    ----------
    curves
        Label -> squared divergences (P, n), as from `eluder.class_divergences`; or dimensions
        already computed, (len(eps),).
    eps
        Scales, from small to large.
    upper
        Label -> function of eps that gives a `Bound` (or a number), drawn dashed.
    """
    scales = np.asarray(eps, float)
    if scales.ndim != 1 or not len(scales):
        raise SettingError(f"eps must be a list of scales, got {eps!r}")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(6, 4))
    for label, values in curves.items():
        array = np.asarray(values, float)
        dims = eluder.profile(array, scales, seed=seed) if array.ndim == 2 else array
        ax.step(scales, dims, where="post", marker="o", markersize=3, label=label)
    for label, bound in (upper or {}).items():
        heights = [getattr(value, "dimension", value) for value in map(bound, scales.tolist())]
        ax.plot(scales, heights, linestyle="--", color="0.5", label=label)
    ax.set_xscale("log")
    if upper:
        ax.set_yscale("symlog", linthresh=1)
    ax.set_xlabel("scale eps")
    ax.set_ylabel("generalized eluder dimension")
    ax.legend()
    return ax


def compare_divergences(
    cls: Any,
    x: Any,
    a: Any,
    eps: Any,
    *,
    divergences: tuple[str, ...] = ("hellinger", "tv", "l2"),
    members: Any = None,
    n_members: int = 64,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The dimension of one class at each scale under several divergences: divergence ->
    (len(eps),).

    The same members and points serve all of them. Scales are in each divergence's own units.
    """
    if members is None:
        cls.trace(x, a)
        members = cls.visit(
            lambda finite: finite.every, lambda cls: eluder.draw_members(cls, n_members, seed)
        )
    return {
        name: eluder.class_dimension(cls, x, a, np.asarray(eps, float), name, members, seed=seed)
        for name in divergences
    }
