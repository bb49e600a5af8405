"""Models as practitioners write them: which keep the guarantee, and what their bounds are worth.

python benchmarks/idioms.py run
    for every idiom of tests/idioms.py, what benchmarks/idioms.json has not yet: the
    certificate's word, how many of 200 adaptive runs missed, the bound against a search by
    brute force, and processor time of the bounds of one ask (200 rows). `--only NAME` for some
    of them, `--parts cpu` for one thing; what is to be measured again is deleted there first
python benchmarks/idioms.py pooling
    partial pooling at a sparse site, beside a credible set
python benchmarks/idioms.py page
    writes benchmarks/IDIOMS.md, which the site shows
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import families
from tests.idiom_runs import (
    DELTA,
    brute_force_error,
    class_of,
    is_missed,
    milliseconds_of_an_ask,
    taught,
)
from tests.idioms import IDIOMS, Idiom, contexts

HERE = Path(__file__).parent
PARTS = ("word", "cpu", "error", "misses")
POOLING = "partial pooling"
PASSES = 3  # of which processor time is the median


def measured(idiom: Idiom, part: str, runs: int) -> object:
    if part == "word":
        at = contexts(np.random.default_rng(1), 1)
        found = taught(idiom).bounds(idiom.functional, at, idiom.n_actions)
        said = "guarantee" if found.guaranteed else "approximation"
        return [f"{found.method}, {said}", class_of(idiom).exactness]
    if part == "cpu":
        return round(float(np.median([milliseconds_of_an_ask(idiom) for _ in range(PASSES)])), 2)
    if part == "error":
        searched = idiom.guaranteed and not idiom.closed
        return float(f"{brute_force_error(idiom):.1e}") if searched else None
    return [sum(is_missed(idiom, "numpyro", run) for run in range(runs)), runs]


def read(store: Path) -> dict[str, Any]:
    return json.loads(store.read_text()) if store.exists() else {}


def run(store: Path, parts: list[str], only: list[str], runs: int) -> None:
    for part in parts:
        for idiom in IDIOMS:
            known = read(store)
            if part in known.get(idiom.name, {}) or (only and idiom.name not in only):
                continue
            try:
                value = measured(idiom, part, runs)
            except Exception as error:  # the others are still worth measuring
                print(f"{idiom.name}: {part} failed: {error!r}", flush=True)
                continue
            known = read(store)
            known.setdefault(idiom.name, {})[part] = value
            store.write_text(json.dumps(known, indent=1) + "\n")
            print(f"{idiom.name}: {part} {value}", flush=True)


def pool(store: Path, seeds: int) -> None:
    found = [list(row) for row in families.pooling(seeds)]
    known = read(store) | {POOLING: {"rows": found, "seeds": seeds}}
    store.write_text(json.dumps(known, indent=1) + "\n")
    print(found)


HEAD = f"""# Which models keep the guarantee

A confidence set is a statement about the likelihood. How a model is parametrised and which priors
it has does not matter to it: what counts is whether the values that meet the data enter through
one predictor, affine, with a log-concave likelihood. The program itself is read for that, in
NumPyro and in Pyro, and `cls.exactness` says what was found.

The models below are those of `tests/idioms.py`, as practitioners write them. *Bounds* is the word
of the certificate after 60 rows; *missed*: in how many adaptive runs a bound missed the truth at
any of six refits, delta = {DELTA}; *against brute force*: the upper bound less the largest value
that a general solver finds in the same set, as a share of it where it is above 1; *ms*: processor
time of the bounds that one `ask` needs, all actions, after 200 rows, the median of {PASSES}
passes. `python benchmarks/idioms.py run` measures, `page` writes this page.
"""
WHY_NOT = """
## Why not the others

"""
POOLED = """
## What pooling is worth to a set

Eight sites, 100 rows, 3 of them at the sparsest, where the truth is .16. A set trusts no prior,
so that it does not borrow strength between sites: its bound at the sparsest is what the rows
there, and the class, allow. A credible set trusts the hierarchy, and holds for one decision, if
model and prior are right. Medians over {seeds} seeds of 95% upper bounds (`python
benchmarks/idioms.py pooling`):

| model | set | | credible (NUTS) |
|---|---|---|---|
"""


def _said(idiom: Idiom, error: float | None) -> str:
    if idiom.closed:
        return "closed form"
    return "" if error is None else "0" if abs(error) < 1e-9 else f"{error:.0e}"


def page(store: Path, out: Path) -> None:
    known = read(store)
    lines = [HEAD, "| idiom | in | bounds | missed | against brute force | ms |"]
    lines.append("|---|---|---|---|---|---|")
    for idiom in IDIOMS:
        found = known.get(idiom.name, {})
        misses, error = found.get("misses"), found.get("error")
        cells = (
            idiom.name,
            "NumPyro, Pyro" if idiom.pyro is not None else "NumPyro",
            found.get("word", ["not measured"])[0],
            "not measured" if misses is None else f"{misses[0]} of {misses[1]}",
            _said(idiom, error),
            str(found.get("cpu", "")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(WHY_NOT)
    for idiom in IDIOMS:
        if not idiom.guaranteed and "word" in known.get(idiom.name, {}):
            lines.append(f"- *{idiom.name}*: {known[idiom.name]['word'][1]}")
    if POOLING in known:
        lines.append(POOLED.format(seeds=known[POOLING]["seeds"]).rstrip("\n"))
        lines += [
            f"| {name} | {upper:.2f} | {words} | {credible:.2f} |"
            for name, upper, words, credible in known[POOLING]["rows"]
        ]
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "pooling", "page"))
    parser.add_argument("--store", type=Path, default=HERE / "idioms.json")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.what == "run":
        run(chosen.store, chosen.parts, chosen.only, chosen.runs)
    elif chosen.what == "pooling":
        pool(chosen.store, chosen.seeds)
    else:
        page(chosen.store, HERE / "IDIOMS.md")
