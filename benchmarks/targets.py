"""What was asked of the default agent, and what it does: `decide.py targets`.

Every target is a number of one run of `proof.measure`, all agents on the same problem and seeds.
Beside it stands what the same agent reaches with chi-square and pointwise sets, which prove nothing
(`proof.py`): where a target is missed, that is what the guarantee costs. Rounds above the limit in
brackets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proof import kept, measure, short

OF = {
    "regret": "regret",
    "share": "of what always safe loses",
    "peer": "of {peer}'s regret",
    "half_off": "rounds until half leave the safe action",
}


@dataclass(frozen=True)
class Target:
    """`of` says what the number is: a key of `OF`."""

    problem: str  # a key of `proof.CASES`
    of: str
    at_most: float

    def value(self, results: Mapping[str, Mapping[str, Any]], label: str) -> float | None:
        """What the agent on these sets has; None if it was not run, or never gets there."""
        if label not in results:
            return None
        if self.of == "peer":
            return float(results[label]["regret"] / results["peer"]["regret"])
        found: float | None = results[label][self.of]
        return found


TARGETS = (
    Target("bandit", "regret", 80.0),
    Target("linear", "peer", 0.22),
    Target("linear, exact safe value", "peer", 0.19),
    Target("linear, two dimensions", "peer", 0.5),
    Target("linear, tight", "peer", 0.38),
    Target("linear, tight, exact safe value", "peer", 0.38),
    Target("wide", "peer", 0.6),
    Target("logistic", "peer", 0.36),
    Target("masses", "share", 0.70),
    Target("logistic_arms", "half_off", 500.0),
    Target("finite, by sets", "peer", 1.0),
    Target("finite_lock_in, by sets", "peer", 1.0),
)


def row(target: Target, line: Mapping[str, Any]) -> str:
    results = line["results"]
    value = target.value(results, "ours")
    cells = [_cell(target, results, label) for label in ("ours", "chi-square", "pointwise")]
    said = OF[target.of].format(peer=results.get("peer", {}).get("name", "the peer"))
    met = "yes" if value is not None and value <= target.at_most else "**no**"
    starved = f"{results['ours']['starved']} of {line['seeds'][1] - line['seeds'][0]}"
    asked = short(target.at_most) if target.at_most < 100 else f"{target.at_most:.0f}"
    return f"| {target.problem} | {said} | {asked} | {' | '.join(cells)} | {met} | {starved} |"


def _cell(target: Target, results: Mapping[str, Mapping[str, Any]], label: str) -> str:
    value = target.value(results, label)
    if label not in results:
        return ""
    said = "never" if value is None else f"{value:.0f}" if target.of == "half_off" else short(value)
    return f"{said} ({results[label]['infeasible']})"


def table(lines: Mapping[str, Mapping[str, Any]]) -> str:
    """All targets that were measured."""
    rows = [
        "| problem | what | at most | proved sets | chi-square | pointwise | met | starved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(rows + [row(t, lines[t.problem]) for t in TARGETS if t.problem in lines])


def targets(seeds: range, only: list[str], *, show: bool) -> None:
    """Measure, unless only what is kept shall be shown, and print the table of what is kept."""
    wanted = only or [target.problem for target in TARGETS]
    if not show:
        for problem in dict.fromkeys(wanted):
            measure(problem, seeds)
    print(table({name: line for name, line in kept().items() if name in wanted}))
