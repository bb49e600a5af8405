"""Published experiments of other papers, run again: one JSON line a cell.

    python benchmarks/published.py --setting opb
        OPB at all limits, T = 1e4, ten runs, seconds
    python benchmarks/published.py --setting oplb --rounds 1000000  OPLB and Safe-LTS, d = 5, some
    minutes
    python benchmarks/published.py --setting roful
        ROFUL and GenOP on the published trials
    python benchmarks/published.py --setting hp-ucb
        how often the realised cost exceeds its limit
    python benchmarks/published.py --setting crm
        CRM and 3+3: how often the right dose is named
    python benchmarks/published.py --setting boin
        BOIN on an interval design's scenario

A line is {setting, algorithm, tau, ours, published, ratio, standard_error, note}; `published` is
null where the papers have no number for this horizon. `ours` is the mean final regret, or what the
note says.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from reproduce import hp_ucb, opb, oplb, roful, trials
from reproduce.cells import Cell

SETTINGS: dict[str, Callable[[int | None, int | None, int], list[Cell]]] = {
    "opb": opb.cells,
    "oplb": oplb.cells,
    "roful": roful.cells,
    "hp-ucb": hp_ucb.cells,
    "crm": trials.crm_cells,
    "boin": trials.boin_cells,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setting", choices=list(SETTINGS), required=True)
    parser.add_argument("--rounds", type=int, help="the published horizon if not given")
    parser.add_argument("--runs", type=int, help="as published if not given")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for cell in SETTINGS[given.setting](given.rounds, given.runs, given.seed):
        print(json.dumps(cell.to_dict()), flush=True)


if __name__ == "__main__":
    main()
