"""Models as practitioners write them: which keep the guarantee, and what their bounds are worth.

python benchmarks/idioms.py run --store idioms.json
    for every idiom of tests/idioms.py that the file has not yet: the certificate's word, runs
    of 200 adaptive ones that missed, the bound against a search by brute force, and processor
    time of the bounds of one ask (3 actions, 200 rows). `--only NAME` for one of them
python benchmarks/idioms.py table --store idioms.json
    the same as the page docs/idioms.md has it
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.idiom_runs import (
    brute_force_error,
    class_of,
    contexts,
    is_missed,
    milliseconds_of_an_ask,
    taught,
)
from tests.idioms import IDIOMS, Idiom

PARTS = ("word", "cpu", "error", "misses")


def measured(idiom: Idiom, part: str, runs: int) -> object:
    if part == "word":
        found = taught(idiom).bounds(
            idiom.functional, contexts(np.random.default_rng(1), 1), idiom.n_actions
        )
        said = "guarantee" if found.guaranteed else "approximation"
        return [f"{found.method}, {said}", class_of(idiom).exactness]
    if part == "cpu":
        return round(milliseconds_of_an_ask(idiom), 2)
    if part == "error":
        return None if not idiom.guaranteed else float(f"{brute_force_error(idiom):.1e}")
    return [sum(is_missed(idiom, "numpyro", run) for run in range(runs)), runs]


def run(store: Path, parts: list[str], only: list[str], runs: int) -> None:
    """Part by part, the cheap ones first; what is stored is not measured again."""
    for part in parts:
        for idiom in IDIOMS:
            known = json.loads(store.read_text()) if store.exists() else {}
            if part in known.get(idiom.name, {}) or (only and idiom.name not in only):
                continue
            try:
                value = measured(idiom, part, runs)
            except Exception as error:  # the others are still worth measuring
                print(f"{idiom.name}: {part} failed: {error!r}", flush=True)
                continue
            known.setdefault(idiom.name, {})[part] = value
            store.write_text(json.dumps(known, indent=1) + "\n")
            print(f"{idiom.name}: {part} {value}", flush=True)


def table(store: Path) -> None:
    known = json.loads(store.read_text())
    print("| idiom | NumPyro, Pyro | bounds | missed | against brute force | ms |")
    print("|---|---|---|---|---|---|")
    for idiom in IDIOMS:
        found = known.get(idiom.name, {})
        both = "both" if idiom.pyro is not None else "NumPyro"
        word = found.get("word", ["not measured"])[0]
        missed = "of ".join(f"{part} " for part in found.get("misses", ())).strip()
        error = found.get("error")
        cells = (
            idiom.name,
            both,
            word,
            missed or "not measured",
            "" if error is None else f"{error:.0e}",
            str(found.get("cpu", "")),
        )
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--runs", type=int, default=200)
    chosen = parser.parse_args()
    if chosen.what == "run":
        run(chosen.store, chosen.parts, chosen.only, chosen.runs)
    else:
        table(chosen.store)
