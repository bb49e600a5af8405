"""Pictures of a set as it shrinks. matplotlib is imported when a function is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gedppl.confidence import Shrinkage


def plot_shrinkage(table: Shrinkage, ax: Any = None) -> Any:
    """Width against rows on log axes, each point marked by what limits it. Returns the matplotlib axes."""
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(6, 4))
    n = [row.n for row in table.rows]
    width = [row.width for row in table.rows]
    ax.loglog(n, width, color="0.6", zorder=1)
    for limit, marker in (("radius", "o"), ("curvature", "s")):
        chosen = [row for row in table.rows if row.limited_by == limit]
        if chosen:
            ax.scatter([r.n for r in chosen], [r.width for r in chosen], marker=marker, label=f"limited by {limit}", zorder=2)
    ax.set_xlabel("rows")
    ax.set_ylabel("width of the set, upper - lower")
    ax.legend()
    return ax
