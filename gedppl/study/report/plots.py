"""Pictures of a run and of a set as it shrinks. Every function takes and returns matplotlib axes.

In the examples `run` is what `gedppl.simulate` returned, or ``gedppl.Run.load(folder)`` of a saved
run.

matplotlib is imported when a function is called, and pyplot never: a picture made here is known to
nobody else, needs no display, and is gone when it is no longer referred to.
``ax.figure.savefig(...)`` writes it.

Axis letters: T rounds, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import SettingError, UnknownTruthError
from gedppl.study.simulation.references import Reference, frontier, references

if TYPE_CHECKING:
    from gedppl.learning.shrinking import Shrinkage
    from gedppl.study.simulation.runs import Run

# Okabe and Ito's colours, which stay apart for colour-blind readers
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
LIMIT = "#D55E00"
SAFE = "#9AA1AC"  # the safe action is grey wherever actions have colours
# inches and points: shown 330 pixels wide, on a phone, the text is 10 pixels high
SIZE, TEXT = (4.6, 3.5), 10.5
BINS = 12
MOST_BOUNDS = 6  # actions whose bounds one picture can hold
STRETCHES = 60  # points of a line that sums up more rounds than it can show


def new_axes() -> Any:
    """Axes on a figure of their own, outside pyplot."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    with rc_context({"font.size": TEXT}):
        return figure.subplots()


def plot_regret(run: Run | Mapping[str, Run], ax: Any = None) -> Any:
    """Cumulative regret against the constrained oracle; one line a run, and the safe action's for
    comparison.

    Parameters
    ----------
    run
        A run, or {name: run} to compare several.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> plot_regret(run).get_ylabel()
    'cumulative regret'
    >>> len(plot_regret({"first": run, "again": run}).lines)  # two runs and the safe action
    3
    """
    runs = {"this run": run} if not isinstance(run, Mapping) else dict(run)
    for name, one in runs.items():
        _require(one, bool(len(one)), "regret needs at least one round")
        if not one.truth_known:
            raise UnknownTruthError(
                f"{name!r} has no regret: its environment knows no true utilities and costs"
            )
    ax = new_axes() if ax is None else ax
    for i, (name, one) in enumerate(runs.items()):
        ax.plot(_rounds(one), one.regret, color=COLOURS[i % len(COLOURS)], linewidth=2, label=name)
    first = next(iter(runs.values()))
    if first.problem.safe_action is not None:
        safe = np.cumsum(first.best - first.utilities[:, first.problem.safe_action])
        ax.plot(_rounds(first), safe, color="0.45", linestyle=":", label="always the safe action")
    _dress(ax, "round", "cumulative regret")
    ax.margins(x=0.01)
    _legend(ax)
    return ax


def plot_cost_bounds(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """The true cost of the policies where it is known, their certified worst case, and the limit,
    over time.

    The worst case usually sits on the limit: the policy uses all the room that is certain. What
    informs is the distance of the true cost from it, the slack that uncertainty still costs. Rounds
    are summed up in stretches: the line is the mean of each, the band holds the middle 90%; without
    a known truth the line is the mean of the realised costs. Every round whose true cost is above
    the limit has a cross of its own.

    Parameters
    ----------
    run
        From `simulate`.
    constraint
        Its name, or its place among the constraints.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> ax = plot_cost_bounds(run, "cost")
    >>> [line.get_label() for line in ax.lines]
    ['certified worst case', 'true cost, mean', 'limit 0.5']
    """
    j = _constraint(run, constraint)
    ax = new_axes() if ax is None else ax
    t, worst, cost, limit = _rounds(run), run.worst_case[:, j], run.cost[:, j], run.limit[:, j]
    if np.isfinite(worst).any():
        at, (largest,) = _stretches(worst, np.max)
        ax.plot(
            at, largest, color=COLOURS[0], linewidth=3.5, alpha=0.75, label="certified worst case"
        )
    shown, what = (
        (cost, "true cost") if np.isfinite(cost).any() else (run.realised[:, j], "realised cost")
    )
    if np.isfinite(shown).any():
        at, (mean, low, high) = _stretches(shown, np.mean, _quantile(0.05), _quantile(0.95))
        if shown is cost:
            ax.fill_between(
                at,
                low,
                high,
                color=COLOURS[2],
                alpha=0.25,
                linewidth=0,
                label="true cost, 90% of rounds",
            )
        ax.plot(at, mean, color=COLOURS[2], linewidth=1.6, label=f"{what}, mean")
    told = f" {limit[-1]:.3g}" if np.ptp(limit) == 0 else ""
    ax.plot(t, limit, color=LIMIT, linestyle=(0, (4, 2)), linewidth=1.6, label=f"limit{told}")
    over = np.flatnonzero(cost > limit + 1e-9)
    if len(over):
        ax.scatter(
            t[over],
            cost[over],
            s=22,
            marker="x",
            color="black",
            label=f"above the limit ({len(over)})",
        )
    known = np.concatenate([v[np.isfinite(v)] for v in (cost, worst, limit)])
    bottom, top = min(0.0, float(known.min())), max(0.0, float(known.max()))
    # the limit is the story: it must not lie on the frame
    ax.set_ylim(bottom, top + 0.08 * (top - bottom or 1.0))
    ax.margins(x=0.01)
    _dress(ax, "round", run.problem.constraint_names[j])
    _legend(ax)
    return ax


def plot_action_bounds(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """Lower and upper cost bound of every action but the safe one, at the contexts met: running
    medians over time.

    An action may be played alone where its upper bound is under the limit, and only mixed in
    before. Of more than six actions the most played are shown. A median hides single rounds:
    `plot_cost_bounds` marks each whose true cost is above the limit.

    Parameters
    ----------
    run
        From `simulate`.
    constraint
        Its name, or its place among the constraints.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> [line.get_label() for line in plot_action_bounds(run).lines]
    ['action 1', '_', 'action 2', '_', 'limit 0.5']
    """
    j = _constraint(run, constraint)
    lower, upper = run.cost_lower[:, j], run.cost_upper[:, j]
    _require(run, bool(np.isfinite(upper).any()), "this agent kept no cost bounds")
    _require(run, bool(np.nanmax(upper - lower) > 0), "bounds on a known cost have no width")
    ax = new_axes() if ax is None else ax
    others = [
        k
        for k in range(upper.shape[1])
        if k != run.problem.safe_action and np.isfinite(upper[:, k]).any()
    ]
    most = sorted(others, key=lambda k: -run.policy[:, k].sum())[:MOST_BOUNDS]
    for k in sorted(most):
        at, high = _running_median(upper[:, k])
        _, low = _running_median(lower[:, k])
        ax.plot(at, high, color=_colour(run, k), linewidth=2.2, label=run.action_names[k])
        ax.plot(at, low, color=_colour(run, k), linewidth=1.0, label="_")
        ax.fill_between(at, low, high, color=_colour(run, k), alpha=0.07, linewidth=0)
    limit = run.limit[:, j]
    told = f" {limit[-1]:.3g}" if np.ptp(limit) == 0 else ""
    ax.plot(
        _rounds(run), limit, color=LIMIT, linestyle=(0, (4, 2)), linewidth=1.6, label=f"limit{told}"
    )
    ax.margins(x=0.01)
    _dress(ax, "round", f"bounds on {run.problem.constraint_names[j]}")
    _legend(ax, columns=2)
    return ax


def plot_width(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """Width of the cost bounds, upper - lower, of every action but the safe one: a running median
    over the contexts met.

    Lines that lie on each other stay visible: each is thinner than the one under it. Narrow is not
    right: bounds of a wrong class become narrow, too.

    Parameters
    ----------
    run
        From `simulate`.
    constraint
        Its name, or its place among the constraints.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> [line.get_label() for line in plot_width(run).lines]
    ['action 1', 'action 2']
    """
    j = _constraint(run, constraint)
    width = run.cost_upper[:, j] - run.cost_lower[:, j]
    _require(run, bool(np.isfinite(width).any()), "this agent kept no cost bounds")
    _require(run, bool(np.nanmax(width) > 0), "bounds on a known cost have no width")
    ax = new_axes() if ax is None else ax
    shown = [
        k
        for k in range(width.shape[1])
        if k != run.problem.safe_action and np.isfinite(width[:, k]).any()
    ]
    for k, thickness in zip(shown, np.linspace(4.0 if len(shown) > 1 else 2.0, 1.4, len(shown))):
        ax.plot(
            *_running_median(width[:, k]),
            color=_colour(run, k),
            linewidth=thickness,
            label=run.action_names[k],
        )
    _dress(ax, "round", f"width of the bounds on {run.problem.constraint_names[j]}")
    ax.set_ylim(0, 1.06 * max(float(line.get_ydata().max()) for line in ax.lines))
    ax.margins(x=0.01)
    _legend(ax, columns=2)
    return ax


def plot_policy_map(
    run: Run, feature: int | None = None, ax: Any = None, *, rounds: slice | None = None
) -> Any:
    """What is played where: the mean policy in each range of one context column, over the later
    half of the run.

    Parameters
    ----------
    run
        From `simulate`.
    feature
        Which column of x; the one along which policies differ most, if not given. Up to 12 distinct
        values are shown one by one, more in ranges that hold equally many rounds.
    rounds
        Which rounds to average; ``slice(len(run) // 2, None)`` if not given.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> plot_policy_map(run, feature=0).get_xlabel()
    'x[0]'
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
    group, ticks, labels = _groups(x[:, feature])
    n = int(group.max()) + 1
    means = np.stack([policy[group == g].mean(axis=0) for g in range(n)])
    base = np.zeros(n)
    for k in range(policy.shape[1]):
        if means[:, k].max() > 0:
            name = run.action_names[k] + (" (safe)" if k == run.problem.safe_action else "")
            ax.bar(
                range(n), means[:, k], bottom=base, color=_colour(run, k), width=0.92, label=name
            )
            base += means[:, k]
    ax.set_xticks(ticks, labels)
    _dress(ax, run.context_names[feature], "mean probability")
    ax.grid(False)
    ax.set_ylim(0, 1)
    _legend(ax)
    return ax


def plot_tradeoff(run: Run, constraint: str | int = 0, ax: Any = None) -> Any:
    """Mean true utility against mean true cost: the run beside greedy, constant and
    constrained-oracle policies.

    The curve is the constrained oracle at other limits. The limit holds in every round, not on
    average: hollow marks are policies that exceed a limit in some round, wherever their average
    lies.

    Parameters
    ----------
    run
        From `simulate`.
    constraint
        Its name, or its place among the constraints.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> plot_tradeoff(run, "cost").get_xlabel()
    'mean cost'
    """
    j = _constraint(run, constraint)
    if not run.truth_known:
        raise UnknownTruthError(
            "a trade-off needs true utilities and costs, which this run's environment does not know"
        )
    ax = new_axes() if ax is None else ax
    ax.plot(*frontier(run, j), color="0.6", linewidth=1.2, zorder=1, label="oracle at other limits")
    ax.axvline(
        float(run.limit[:, j].mean()),
        color=LIMIT,
        linestyle=(0, (4, 2)),
        linewidth=1.4,
        zorder=1,
        label="limit",
    )
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
        ax.scatter(
            r.costs[j],
            r.utility,
            marker=marker,
            s=size,
            facecolors=face,
            edgecolors=colour,
            zorder=3,
            label=label,
        )
    constants = [r for r in found if r.name not in styles]
    if constants:
        ax.scatter(
            [], [], marker="s", s=26, facecolors="none", edgecolors="0.4", label="one action always"
        )
    ax.margins(0.1, 0.14)
    middle = np.mean(ax.get_xlim())
    for r in constants:  # names point inwards, so that none is cut off
        right = r.costs[j] > middle
        ax.annotate(
            _short(r),
            (r.costs[j], r.utility),
            textcoords="offset points",
            xytext=(-6 if right else 6, -4),
            ha="right" if right else "left",
            va="top",
            fontsize=_small(ax),
            color="0.3",
        )
    _dress(ax, f"mean {run.problem.constraint_names[j]}", "mean utility")
    _legend(ax)
    return ax


def plot_shrinkage(table: Shrinkage, ax: Any = None) -> Any:
    """Width against rows on log axes, each point marked by what limits it; `table` is what
    `gedppl.shrinkage` returned.

    Parameters
    ----------
    table
        From `shrinkage`.
    ax
        Matplotlib axes to draw on; new ones if not given.

    Examples
    --------
    >>> from gedppl.learning.shrinking import Shrinkage, ShrinkageRow
    >>> rows = (
    ...     ShrinkageRow(8, 0.5, 3.0, 96.0, "curvature"),
    ...     ShrinkageRow(16, 0.4, 3.2, 160.0, "radius"),
    ... )
    >>> plot_shrinkage(Shrinkage(rows)).get_xlabel()
    'rows'
    """
    ax = new_axes() if ax is None else ax
    n = [row.n for row in table.rows]
    width = [row.width for row in table.rows]
    ax.loglog(n, width, color="0.6", zorder=1)
    for limit, marker in (("radius", "o"), ("curvature", "s")):
        chosen = [row for row in table.rows if row.limited_by == limit]
        if chosen:
            ax.scatter(
                [r.n for r in chosen],
                [r.width for r in chosen],
                marker=marker,
                label=f"limited by {limit}",
                zorder=2,
            )
    _dress(ax, "rows", "width of the set, upper - lower")
    _legend(ax)
    return ax


# parts --------------------------------------------------------------------------------------------


def _rounds(run: Run) -> np.ndarray:
    return np.arange(1, len(run) + 1)


def _constraint(run: Run, constraint: str | int) -> int:
    names = run.problem.constraint_names
    if constraint in names:
        return names.index(str(constraint))
    if isinstance(constraint, int) and 0 <= constraint < len(names):
        _require(run, bool(len(run)), "this picture needs at least one round")
        return constraint
    raise SettingError(
        f"there is no constraint {constraint!r}; the constraints are {list(names) or 'none'}"
    )


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
    names = ax.get_legend_handles_labels()[1]
    columns = max(columns, min(2, len(names))) if len(names) < 5 or max(map(len, names)) > 16 else 3
    ax.legend(
        frameon=False,
        ncols=columns,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        fontsize=_small(ax),
        columnspacing=1.2,
        handlelength=1.6,
    )


def _small(ax: Any) -> float:
    """A little smaller than the text of the axes at hand, whoever made them."""
    return 0.92 * float(ax.xaxis.label.get_size())


def _colour(run: Run, k: int) -> Any:
    """The colour of an action: grey for the safe one; an ordered scale where there are more
    actions than colours.
    """
    safe = run.problem.safe_action
    if k == safe:
        return SAFE
    K = len(run.action_names)
    others = [a for a in range(K) if a != safe]
    palette = (*COLOURS[1:5], *COLOURS[6:7], COLOURS[0])  # vermilion is the limit's
    if len(others) <= len(palette):
        return palette[others.index(k)]
    from matplotlib import colormaps

    return colormaps["viridis"](others.index(k) / (len(others) - 1))


def _stretches(
    values: np.ndarray, *sums: Callable[[np.ndarray], float]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Last rounds of consecutive stretches of equal length, and each sum of what is known in
    them.
    """
    parts = np.array_split(np.arange(len(values)), min(len(values), STRETCHES))
    known = [(part[-1] + 1, values[part][np.isfinite(values[part])]) for part in parts]
    known = [(end, part) for end, part in known if len(part)]
    return np.array([end for end, _ in known]), [
        np.array([total(part) for _, part in known]) for total in sums
    ]


def _quantile(level: float) -> Callable[[np.ndarray], float]:
    return lambda values: float(np.quantile(values, level))


def _running_median(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The median of consecutive stretches that grow with time, at their last rounds."""
    ends = np.unique(np.geomspace(1, len(values), STRETCHES).astype(int))
    starts = np.concatenate([[0], ends[:-1]])
    parts = [values[a:b][np.isfinite(values[a:b])] for a, b in zip(starts, ends)]
    kept = [i for i, part in enumerate(parts) if len(part)]
    return ends[kept], np.array([np.median(parts[i]) for i in kept])


def _groups(column: np.ndarray) -> tuple[np.ndarray, list[float], list[str]]:
    """Each round's group, and where ticks go with their labels: at the values, or at the edges
    of ranges.
    """
    distinct = np.unique(column)
    if len(distinct) <= BINS:
        return (
            np.searchsorted(distinct, column),
            list(map(float, range(len(distinct)))),
            [f"{v:.3g}" for v in distinct],
        )
    edges = np.unique(np.quantile(column, np.linspace(0, 1, BINS // 2 + 1)))
    group = np.clip(np.searchsorted(edges, column, side="right") - 1, 0, len(edges) - 2)
    # ties can leave a range empty: it joins the one before it
    kept, group = np.unique(group, return_inverse=True)
    edges = np.append(edges[kept], edges[-1])
    digits = max(0, 1 - int(np.floor(np.log10(edges[-1] - edges[0]))))
    return (
        group,
        [i - 0.5 for i in range(len(edges))],
        [f"{round(edge, digits) + 0.0:.{digits}f}" for edge in edges],
    )


def _spread(column: np.ndarray, policy: np.ndarray) -> float:
    """How much of the policies' variance lies between the groups of a column."""
    group = _groups(column)[0]
    if group.max() == 0:
        return -1.0
    mean = policy.mean(axis=0)
    return float(
        sum(
            (group == g).mean() * ((policy[group == g].mean(axis=0) - mean) ** 2).sum()
            for g in np.unique(group)
        )
    )


def _short(reference: Reference) -> str:
    return reference.name.removeprefix("always ").removeprefix("action ")
