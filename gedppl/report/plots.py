"""Pictures of a run and of a set as it shrinks. Every function takes and returns matplotlib axes.

matplotlib is imported when a function is called, and pyplot never: a picture made here is known to nobody else, needs no
display, and is gone when it is no longer referred to. ``ax.figure.savefig(...)`` writes it.

Axis letters: T rounds, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import SettingError, UnknownTruthError
from gedppl.simulation.references import Reference, frontier, references

if TYPE_CHECKING:
    from gedppl.confidence import Shrinkage
    from gedppl.simulation.runs import Run

# Okabe and Ito's colours, which stay apart for colour-blind readers
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
LIMIT = "#D55E00"
SIZE = (5.0, 3.5)  # inches; text stays readable when a phone shows it 330 pixels wide
BINS = 12
STRETCHES = 60  # points of a line that sums up more rounds than it can show


def new_axes() -> Any:
    """Axes on a figure of their own, outside pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def plot_regret(run: Run | Mapping[str, Run], ax: Any = None) -> Any:
    """Cumulative regret against the constrained oracle; one line a run, and the safe action's for comparison.

    Parameters
    ----------
    run
        A run, or {name: run} to compare several.
    """
    runs = {"this run": run} if not isinstance(run, Mapping) else dict(run)
    for name, one in runs.items():
        _require(one, bool(len(one)), "regret needs at least one round")
        if not one.truth_known:
            raise UnknownTruthError(f"{name!r} has no regret: its environment knows no true utilities and costs")
    ax = new_axes() if ax is None else ax
    for i, (name, one) in enumerate(runs.items()):
        ax.plot(_rounds(one), one.regret, color=COLOURS[i % len(COLOURS)], label=name)
    first = next(iter(runs.values()))
    if first.problem.safe_action is not None:
        safe = np.cumsum(first.best - first.utilities[:, first.problem.safe_action])
        ax.plot(_rounds(first), safe, color="0.45", linestyle=":", label="always the safe action")
    _dress(ax, "round", "cumulative regret")
    ax.legend(frameon=False)
    return ax


def plot_cost_bounds(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """The certified worst case of the policies, their true cost where known, and the limit, over time.

    Rounds are summed up in stretches: solid lines are the largest value in each, the thin one the mean. Every round whose
    true cost is above the limit has a cross of its own.
    """
    j = _constraint(run, constraint)
    ax = new_axes() if ax is None else ax
    t, worst, cost, limit = _rounds(run), run.worst_case[:, j], run.cost[:, j], run.limit[:, j]
    if np.isfinite(worst).any():
        at, largest, _ = _stretches(worst)
        ax.plot(at, largest, color=COLOURS[0], linewidth=2.4, label="certified worst case")
    if np.isfinite(cost).any():
        at, largest, mean = _stretches(cost)
        ax.plot(at, largest, color=COLOURS[2], linewidth=1.2, label="true cost, largest")
        ax.plot(at, mean, color=COLOURS[2], linewidth=0.9, alpha=0.6, label="true cost, mean")
    ax.plot(t, limit, color=LIMIT, linestyle="--", label="limit")
    over = np.flatnonzero(cost > limit + 1e-9)
    if len(over):
        ax.scatter(t[over], cost[over], s=22, marker="x", color="black", label=f"above the limit ({len(over)})")
    ax.set_ylim(bottom=min(0.0, *(float(np.nanmin(v)) for v in (cost, worst) if np.isfinite(v).any()), 0.0))
    _dress(ax, "round", run.problem.constraint_names[j])
    _legend(ax)
    return ax


def plot_width(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """Width of the cost bounds, upper - lower, of every action but the safe one: a running median over the contexts met."""
    j = _constraint(run, constraint)
    width = run.cost_upper[:, j] - run.cost_lower[:, j]
    _require(run, bool(np.isfinite(width).any()), "this agent kept no cost bounds")
    ax = new_axes() if ax is None else ax
    for k in range(width.shape[1]):
        if k == run.problem.safe_action or not np.isfinite(width[:, k]).any():
            continue
        ax.plot(*_running_median(width[:, k]), color=COLOURS[k % len(COLOURS)], label=run.action_names[k])
    _dress(ax, "round", f"width of the bounds on {run.problem.constraint_names[j]}")
    ax.set_ylim(bottom=0)
    _legend(ax, columns=2)
    return ax


def plot_policy_map(run: Run, feature: int | None = None, ax: Any = None, *, rounds: slice | None = None) -> Any:
    """What is played where: the mean policy in each range of one context column, over the later half of the run.

    Parameters
    ----------
    feature
        Which column of x; the one along which policies differ most, if not given. Up to 12 distinct values are shown one by
        one, more in ranges that hold equally many rounds.
    rounds
        Which rounds to average; ``slice(len(run) // 2, None)`` if not given.
    """
    _require(run, bool(len(run)), "a policy map needs at least one round")
    chosen = slice(len(run) // 2, None) if rounds is None else rounds
    x, policy = run.x[chosen], run.policy[chosen]
    _require(run, bool(len(x)), f"no round lies in {chosen}")
    if feature is None:
        feature = max(range(x.shape[1]), key=lambda f: _spread(x[:, f], policy))
    if not 0 <= feature < x.shape[1]:
        raise SettingError(f"feature must be one of 0, ..., {x.shape[1] - 1}, got {feature}")
    ax = new_axes() if ax is None else ax
    group, labels = _groups(x[:, feature])
    means = np.stack([policy[group == g].mean(axis=0) for g in range(len(labels))])
    base = np.zeros(len(labels))
    for k in range(policy.shape[1]):
        if means[:, k].max() > 0:
            name = run.action_names[k] + (" (safe)" if k == run.problem.safe_action else "")
            ax.bar(range(len(labels)), means[:, k], bottom=base, color=COLOURS[k % len(COLOURS)], width=0.92, label=name)
            base += means[:, k]
    ax.set_xticks(range(len(labels)), labels, rotation=40 if max(map(len, labels)) > 4 else 0)
    _dress(ax, run.context_names[feature], "share of plays")
    ax.grid(False)
    ax.set_ylim(0, 1)
    ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small")
    return ax


def plot_tradeoff(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """Mean true utility against mean true cost: the run beside greedy, constant and constrained-oracle policies.

    The curve is the constrained oracle at other limits. The limit holds in every round, not on average: hollow marks are
    policies that exceed a limit in some round, wherever their average lies.
    """
    j = _constraint(run, constraint)
    if not run.truth_known:
        raise UnknownTruthError("a trade-off needs true utilities and costs, which this run's environment does not know")
    ax = new_axes() if ax is None else ax
    ax.plot(*frontier(run, j), color="0.6", linewidth=1, zorder=1, label="oracle at other limits")
    ax.axvline(float(run.limit[:, j].mean()), color=LIMIT, linestyle="--", linewidth=1, zorder=1, label="limit")
    found = references(run)
    styles = {
        "this run": ("o", COLOURS[0], 70),
        "last quarter": ("o", COLOURS[4], 45),
        "constrained oracle": ("*", COLOURS[2], 110),
        "greedy": ("^", COLOURS[3], 60),
    }
    for r in found:
        marker, colour, size = styles.get(r.name, ("s", "0.4", 26))
        face = "none" if r.infeasible else colour
        label = r.name if r.name in styles else None
        ax.scatter(r.costs[j], r.utility, marker=marker, s=size, facecolors=face, edgecolors=colour, zorder=3, label=label)
    constants = [r for r in found if r.name not in styles]
    if constants:
        ax.scatter([], [], marker="s", s=26, facecolors="none", edgecolors="0.4", label="one action always")
    for r in constants:
        ax.annotate(_short(r), (r.costs[j], r.utility), textcoords="offset points", xytext=(5, 4), fontsize="small", color="0.3")
    _dress(ax, f"mean {run.problem.constraint_names[j]}", "mean utility")
    _legend(ax)
    return ax


def plot_shrinkage(table: Shrinkage, ax: Any = None) -> Any:
    """Width against rows on log axes, each point marked by what limits it."""
    ax = new_axes() if ax is None else ax
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


# parts ----------------------------------------------------------------------------------------------------------------


def _rounds(run: Run) -> np.ndarray:
    return np.arange(1, len(run) + 1)


def _constraint(run: Run, constraint: str | int) -> int:
    names = run.problem.constraint_names
    if constraint in names:
        return names.index(str(constraint))
    if isinstance(constraint, int) and 0 <= constraint < len(names):
        _require(run, bool(len(run)), "this picture needs at least one round")
        return constraint
    raise SettingError(f"there is no constraint {constraint!r}; the constraints are {list(names) or 'none'}")


def _require(run: Run, ok: bool, why: str) -> None:
    if not ok:
        raise SettingError(f"{why} (the run has {len(run)} rounds)")


def _dress(ax: Any, xlabel: str, ylabel: str) -> None:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color="0.92", linewidth=0.8)
    ax.set_axisbelow(True)


def _legend(ax: Any, columns: int = 1) -> None:
    """Above the axes, where it hides no data."""
    n = len(ax.get_legend_handles_labels()[0])
    columns = max(columns, min(2, n)) if n < 6 else 3
    ax.legend(frameon=False, ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small")


def _stretches(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Last round, largest value and mean of consecutive stretches of equal length."""
    parts = np.array_split(np.arange(len(values)), min(len(values), STRETCHES))
    parts = [part for part in parts if np.isfinite(values[part]).any()]
    ends = np.array([part[-1] + 1 for part in parts])
    return ends, np.array([np.nanmax(values[p]) for p in parts]), np.array([np.nanmean(values[p]) for p in parts])


def _running_median(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The median of consecutive stretches that grow with time, at their last rounds."""
    ends = np.unique(np.geomspace(1, len(values), STRETCHES).astype(int))
    starts = np.concatenate([[0], ends[:-1]])
    parts = [values[a:b][np.isfinite(values[a:b])] for a, b in zip(starts, ends)]
    kept = [i for i, part in enumerate(parts) if len(part)]
    return ends[kept], np.array([np.median(parts[i]) for i in kept])


def _groups(column: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Each round's group, and the groups' labels."""
    distinct = np.unique(column)
    if len(distinct) <= BINS:
        return np.searchsorted(distinct, column), [f"{v:.3g}" for v in distinct]
    edges = np.unique(np.quantile(column, np.linspace(0, 1, BINS // 2 + 1)))
    group = np.clip(np.searchsorted(edges, column, side="right") - 1, 0, len(edges) - 2)
    kept, group = np.unique(group, return_inverse=True)  # ties can leave a range empty
    return group, [f"{edges[g]:.2g}–{edges[g + 1]:.2g}" for g in kept]


def _spread(column: np.ndarray, policy: np.ndarray) -> float:
    """How much of the policies' variance lies between the groups of a column."""
    group, labels = _groups(column)
    if len(labels) < 2:
        return -1.0
    mean = policy.mean(axis=0)
    return float(sum((group == g).mean() * ((policy[group == g].mean(axis=0) - mean) ** 2).sum() for g in range(len(labels))))


def _short(reference: Reference) -> str:
    return reference.name.removeprefix("always ").removeprefix("action ")
