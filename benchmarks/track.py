"""What moved since the last time: results kept commit by commit.

    python benchmarks/track.py house               the measures of the house
    python benchmarks/track.py house speed         and the CPU time of `ask` and `tell`
    python benchmarks/track.py --show              the last results, nothing is run

Every run adds one line of JSON to benchmarks/track.jsonl: the commit, whether its files were
changed, the versions, and numbers by name. Then it prints what differs from the last line of the
same measures. Times are shares of a fixed amount of NumPy work (`speed.yardstick`), measured just
before them, so that lines of different days can be compared, roughly: only a change of more than a
quarter is shown.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent
KEPT = HOME / "track.jsonl"
sys.path[:0] = [str(HOME), str(HOME.parent)]

NOISE = {"speed": 0.25}  # relative change that is no news, by measure; others are exact
ROUNDS = 300


def of_house() -> dict[str, float]:
    import house

    return house.measure()


def of_speed() -> dict[str, float]:
    import numpy as np
    import speed

    found = {}
    for name, make in speed.WORLDS.items():
        unit = speed.yardstick()
        _, ask, tell = speed.measure(make(), ROUNDS)
        found[f"ask, {name}"] = round(float(np.median(ask[1:])) / unit, 4)
        found[f"tell, {name}"] = round(float(np.median(tell[1:])) / unit, 4)
    return found


MEASURES: dict[str, Callable[[], dict[str, float]]] = {"house": of_house, "speed": of_speed}


def commit() -> dict[str, Any]:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=HOME, capture_output=True, text=True, check=False
        ).stdout.strip()

    return {
        "commit": git("rev-parse", "--short", "HEAD"),
        # but for results kept, which a run in several parts adds to
        "changed": bool(git("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)*.jsonl")),
        "date": git("log", "-1", "--format=%cs"),
        "python": platform.python_version(),
    }


def kept(path: Path = KEPT) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last(lines: list[dict[str, Any]], measure: str) -> dict[str, Any] | None:
    """The newest line that has this measure."""
    return next((line for line in reversed(lines) if measure in line["results"]), None)


def moved(
    before: dict[str, float], now: dict[str, float], noise: float = 0.0
) -> list[tuple[str, float | None, float | None]]:
    """(name, before, now) where a number changed by more than a share `noise`, came or went."""
    out: list[tuple[str, float | None, float | None]] = []
    for name in dict.fromkeys([*before, *now]):
        one, other = before.get(name), now.get(name)
        if one is None or other is None or abs(other - one) > noise * max(abs(one), abs(other)):
            out.append((name, one, other))
    return out


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], metavar="measure")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    lines = kept()
    if options.show or not options.measures:
        for line in lines[-1:]:
            print(line["commit"], line["date"])
            for measure, numbers in line["results"].items():
                for name, value in numbers.items():
                    print(f"{measure:6} {name:32} {value:g}")
        return
    results = {measure: MEASURES[measure]() for measure in options.measures}
    for measure, now in results.items():
        before = last(lines, measure)
        if before is None:
            print(f"{measure}: the first results")
            continue
        changes = moved(before["results"][measure], now, NOISE.get(measure, 0.0))
        print(f"{measure}: {len(changes)} of {len(now)} moved since {before['commit']}")
        for name, one, other in changes:
            print(f"    {name:32} {shown(one):>9} -> {shown(other)}")
    with KEPT.open("a") as file:
        file.write(json.dumps(commit() | {"results": results}) + "\n")


if __name__ == "__main__":
    main()
