"""RESULTS.md and its picture from the cells of the arena: a summary that follows from the cells,
and a table an environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arena import ENVIRONMENTS, REPLAYS, make

from gedppl.study.baselines.by_name import GUARANTEED

Cells = dict[str, dict[str, list[dict[str, Any]]]]  # environment -> agent -> cells
OURS = "gedppl"
HEAD = (
    "algorithm",
    "guarantee",
    "regret",
    "rounds above the limit",
    "excess cost a round",
    "safe action",
    "CPU ms an ask",
    "seeds",
)
AVERAGED = ("regret", "infeasible_rounds", "excess_cost", "safe_share", "ask_ms")
ABOUT = (
    "Regret is against the best policy that keeps the limit in every round: mean over seeds with a "
    "95% interval; the seed draws",
    "the truth, contexts and potential outcomes, the same for every algorithm. Who breaks limits "
    "can have a negative regret.",
    "Rounds above the limit are those whose policy truly exceeds it. A guarantee is one for all "
    "rounds at once with probability",
    "1 - delta, if the model is right. Times are processor time of one ask, medians, on a machine "
    "that others used. Exploration",
    "weights of GED-UCB were chosen on seeds 0 to 7, which are not used here. An algorithm that is "
    "missing from a table does not",
    "fit the models there (a linear one with counts, say).",
)
PUBLISHED = (
    "By `python benchmarks/published.py --setting NAME`: experiments of the papers that the "
    "baselines come from, at their own horizons and numbers of runs. An empty cell under "
    "`published` is a number that the paper does not print."
)
SECTIONS = {
    "right": ("Where the model is right", ""),
    "wrong": (
        "Where the model is wrong",
        "No algorithm's guarantee applies here: what counts is how often limits are broken.",
    ),
    "real": (
        "Real data",
        "Truths are estimates of cross-fitted references, models are not known to be right, and "
        "only algorithms that take any "
        "model can play.",
    ),
}


def good(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that did not fail."""
    return [c for c in cells if "failed" not in c]


def interval(values: np.ndarray) -> float:
    """Half the width of a 95% interval of a mean over seeds."""
    return float(1.96 * np.std(values, ddof=min(1, len(values) - 1)) / np.sqrt(len(values)))


def section_of(environment: str) -> str:
    """Which part of the page an environment belongs to."""
    return (
        "real"
        if environment in REPLAYS
        else "right"
        if make(environment, 0).guaranteed
        else "wrong"
    )


def table_of(cells: dict[str, list[dict[str, Any]]], *, claims: bool = True) -> list[str]:
    """One row an algorithm, by regret; means over the seeds that were complete. `claims`:
    whether guarantees apply.
    """
    rows, failures = [], []
    for agent, found in cells.items():
        whole = good(found)
        if not whole:
            failures.append(
                f"| {agent} | | failed: {found[0]['failed']} |"
                + " |" * (len(HEAD) - 4)
                + f" 0 of {len(found)} |"
            )
            continue
        mean = {key: float(np.mean([c[key] for c in whole])) for key in AVERAGED}
        error = interval(np.array([c["regret"] for c in whole]))
        kept = "yes" if claims and agent in (OURS, *GUARANTEED, "always-safe") else "no"
        share = mean["infeasible_rounds"] / whole[0]["rounds"]
        rows.append(
            (
                mean["regret"],
                f"| {agent} | {kept} | {mean['regret']:.1f} ± {error:.1f} | {share:.2%} | "
                f"{mean['excess_cost']:.4f} | "
                f"{mean['safe_share']:.0%} | {mean['ask_ms']:.2f} | {len(whole)} of {len(found)} |",
            )
        )
    return [
        f"| {' | '.join(HEAD)} |",
        "|---" * len(HEAD) + "|",
        *(text for _, text in sorted(rows)),
        *failures,
    ]


def against_best(
    cells: dict[str, list[dict[str, Any]]],
) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The best other algorithm with a guarantee, and our regrets and its own over common seeds;
    None if there is none.
    """
    regret = {
        agent: {c["seed"]: c["regret"] for c in good(found)} for agent, found in cells.items()
    }
    ours = regret.get(OURS, {})
    others = {
        a: {s: r for s, r in regret[a].items() if s in ours} for a in GUARANTEED if a in regret
    }
    others = {a: found for a, found in others.items() if found}
    if not others:
        return None
    best = min(others, key=lambda a: np.mean(list(others[a].values())))
    seeds = sorted(others[best])
    return best, np.array([ours[s] for s in seeds]), np.array([others[best][s] for s in seeds])


def verdict(cells: dict[str, list[dict[str, Any]]], well_specified: bool) -> str:
    """Where we stand among algorithms with a guarantee: the paired difference to the best of
    them, over common seeds.
    """
    if not well_specified:
        return "The models are wrong here: no algorithm's guarantee applies."
    found = against_best(cells)
    if found is None:
        return "No other algorithm with a guarantee can play here."
    best, mine, theirs = found
    difference, error = float((mine - theirs).mean()), interval(mine - theirs)
    word = "leads" if difference < 0 else "loses"
    sure = (
        ""
        if len(mine) > 1 and abs(difference) > error
        else " That is not more than chance over these seeds."
    )
    return (
        f"Among algorithms with a guarantee GED-UCB {word}: {mine.mean():.1f} against "
        f"{theirs.mean():.1f} of {best}, difference "
        f"{difference:+.1f} ± {error:.1f} over {len(mine)} common seeds.{sure}"
    )


def alarms_of(cells: list[dict[str, Any]]) -> str:
    """What was alarming in our runs: each alarm, in how many seeds, and after how many outcomes
    (median).
    """
    whole, names = good(cells), {}
    for c in whole:
        for name, at in c.get("alarm_rounds", {}).items():
            names.setdefault(name, []).append(at)
    if not names:
        return f"Alarms of GED-UCB: none in {len(whole)} runs."
    said = [
        f"`{name}` in {len(at)} (after {np.median(at):.0f} outcomes)"
        for name, at in sorted(names.items())
    ]
    return f"Alarms of GED-UCB in {len(whole)} runs: {', '.join(said)}."


def summary(results: Cells) -> list[str]:
    """What the whole says: rounds above the limit, and who leads, where the model is right."""
    right = {
        e: cells
        for e, cells in results.items()
        if section_of(e) == "right" and good(cells.get(OURS, []))
    }
    above = {
        e: sum(c["infeasible_rounds"] for c in good(cells[OURS])) for e, cells in right.items()
    }
    rounds = sum(c["rounds"] for cells in right.values() for c in good(cells[OURS]))
    broken = ", ".join(f"{e} ({n})" for e, n in above.items() if n) or "none"
    met = {e: found for e, cells in right.items() if (found := against_best(cells)) is not None}
    lost = [e for e, (_, mine, theirs) in met.items() if mine.mean() >= theirs.mean()]
    failed = sum(
        "failed" in c for agents in results.values() for found in agents.values() for c in found
    )
    lines = [
        f"- Where the model is right ({len(right)} environments, {rounds:,} rounds) GED-UCB had "
        f"{sum(above.values())} rounds "
        f"above the limit; environments with any: {broken}.",
        f"- In {len(met)} of them another algorithm with a guarantee at the same delta can play. "
        "GED-UCB has the lowest mean "
        f"regret in {len(met) - len(lost)}; it loses in: {', '.join(lost) or 'none'}.",
        f"- Cells that failed: {failed}.",
        "",
        "| environment | GED-UCB | best other with a guarantee | its regret | ratio | difference, "
        "paired |",
        "|---" * 6 + "|",
    ]
    for e, (best, mine, theirs) in met.items():
        gap = mine - theirs
        lines.append(
            f"| {e} | {mine.mean():.1f} | {best} | {theirs.mean():.1f} | "
            f"{mine.mean() / theirs.mean():.2f} | {gap.mean():+.1f} ± "
            f"{interval(gap):.1f} |"
        )
    return lines


def published_table(cells: Sequence[dict[str, Any]]) -> list[str]:
    """What other papers report beside what the same algorithm reaches here; no lines without
    cells.
    """
    if not cells:
        return []
    return [
        "## Published numbers, run again",
        "",
        PUBLISHED,
        "",
        "| setting | algorithm | limit | ours | standard error | published | ratio | what it is |",
        "|---|---|---|---|---|---|---|---|",
        *("| " + " | ".join(_published_row(cell)) + " |" for cell in cells),
        "",
    ]


def _published_row(cell: dict[str, Any]) -> list[str]:
    numbers = [cell[key] for key in ("tau", "ours", "standard_error", "published")]
    shown = ["" if n is None else f"{n:,.4g}" if abs(n) < 1000 else f"{n:,.0f}" for n in numbers]
    ratio = "" if cell["ratio"] is None else f"{cell['ratio']:.2f}"
    return [cell["setting"], cell["algorithm"], *shown, ratio, cell["note"] or "final regret"]


def write_page(results: Cells, page: Path, published: Sequence[dict[str, Any]] = ()) -> Path:
    """Write the page and, beside it, its picture; the page's path."""
    every = [c for agents in results.values() for found in agents.values() for c in found]
    deltas = ", ".join(f"{d:g}" for d in sorted({c["delta"] for c in every}))
    makers = sorted({c["made_by"] for c in every})
    picture = page.with_suffix(".png").name.lower()
    lines = [
        "# The arena",
        "",
        f"Written by `python benchmarks/results.py` from {len(every):,} cells (delta {deltas}). "
        f"Made by: {'; '.join(makers)}.",
        "",
        *ABOUT,
        "",
        "## In short",
        "",
        *summary(results),
        "",
        f"![Regret by environment]({picture})",
        "",
    ]
    for key, (title, text) in SECTIONS.items():
        here = {e: agents for e, agents in results.items() if section_of(e) == key}
        lines += [f"## {title}", "", *([text, ""] if text else [])] if here else []
        for e, agents in here.items():
            lines += _environment(e, agents, key)
    lines += published_table(published)
    page.write_text("\n".join(lines))
    _picture(results, page.with_name(picture))
    return page


def _environment(name: str, agents: dict[str, list[dict[str, Any]]], section: str) -> list[str]:
    one = next(c for found in agents.values() for c in found)
    seeds = sorted({c["seed"] for found in agents.values() for c in found})
    about = " ".join((ENVIRONMENTS[name].__doc__ or "").split())
    said = [verdict(agents, well_specified=True)] if section == "right" else []
    return [
        f"### {name}",
        "",
        f"{about} {one['rounds_asked']} rounds, seeds {seeds[0]} to {seeds[-1]}.",
        "",
        *table_of(agents, claims=section == "right"),
        "",
        " ".join([*said, alarms_of(agents.get(OURS, []))]),
        "",
    ]


def _picture(results: Cells, path: Path) -> None:
    """Regret as a share of what always playing safe loses, ours beside all others with a
    guarantee, with 95% intervals.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [
        e for e in results if section_of(e) == "right" and good(results[e].get("always-safe", []))
    ]
    figure = Figure(figsize=(8, 0.34 * len(shown) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row, e in enumerate(shown):
        always = np.mean([c["regret"] for c in good(results[e]["always-safe"])])
        for agent in (*GUARANTEED, OURS):
            values = np.array([c["regret"] for c in good(results[e].get(agent, []))]) / always
            if len(values):
                ours = agent == OURS
                style = (
                    {"color": "C3", "zorder": 3, "ms": 6}
                    if ours
                    else {"color": "0.6", "zorder": 2, "ms": 4}
                )
                axes.errorbar(
                    values.mean(), row, xerr=interval(values), fmt="o", capsize=2, **style
                )
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    axes.set(
        xlabel="regret, as a share of what always playing safe loses (95% intervals over seeds)",
        xlim=(0, 1.1),
    )
    axes.set_title("GED-UCB (red) and other algorithms with a guarantee (grey)", fontsize="medium")
    figure.savefig(path, dpi=110)
