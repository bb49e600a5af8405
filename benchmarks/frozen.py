"""Policies of a commit, and whether another commit plays the same: for changes that are meant to
change nothing.

    python benchmarks/frozen.py record policies.npz --rounds 200
        every script in models/, and a few more settings
    python benchmarks/frozen.py compare policies.npz
        the same with this code; fails beyond 1e-9
    python benchmarks/frozen.py compare policies.npz --only bandit,README

The package that is imported is the one that is measured: `PYTHONPATH=another/checkout` records
another commit. What is kept: the policy of every round, the worst case of its certificate and
whether that is a guarantee. Scripts whose table is not installed are played on a made-up one
(`tests/stand_ins.py`). Numbers depend on the machine, so no recording is shipped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import pytest  # noqa: E402

import gedppl as ged  # noqa: E402
from gedppl.study.cli.scripts import loaded  # noqa: E402
from tests.stand_ins import provide  # noqa: E402

MODELS = ROOT / "models"
SCRIPTS = sorted(path.stem for path in MODELS.glob("*.py") if "\ndef problem(" in path.read_text())
THEORY = {"bandit": {"mode": "theory"}, "chance": {"mode": "paper"}}  # settings beside the defaults
TOLERANCE = 1e-9


def played(name: str, rounds: int, **options: str) -> dict[str, np.ndarray]:
    """What `GEDUCB` plays in a script's own world: policies (T, K), worst cases (T, J),
    guarantees (T, J).
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        provide(name, Path(folder), patch)
        with loaded(MODELS / f"{name}.py") as script, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agent = ged.GEDUCB(script.problem, seed=0, **options)
            run = ged.simulate(script.problem, script.environment, agent, rounds, seed=0)
    claims = [
        [c["guaranteed"] for c in certificate["constraints"]] for certificate in run.certificates
    ]
    return {
        "policy": run.policy,
        "worst_case": run.worst_case,
        "guaranteed": np.array(claims, bool),
    }


def cases() -> dict[str, Callable[[int], dict[str, np.ndarray]]]:
    out: dict[str, Callable[[int], dict[str, np.ndarray]]] = {
        name: lambda T, name=name: played(name, T) for name in SCRIPTS
    }
    for name, options in THEORY.items():
        out[f"{name} {options['mode']}"] = lambda T, name=name, options=options: played(
            name, min(T, 60), **options
        )
    return out


def gap(one: np.ndarray, other: np.ndarray) -> float:
    """Largest difference; infinite where shapes or NaNs differ."""
    if one.shape != other.shape or not np.array_equal(np.isnan(one * 1.0), np.isnan(other * 1.0)):
        return np.inf
    with np.errstate(invalid="ignore"):
        apart = np.where(one == other, 0.0, np.abs(one * 1.0 - other * 1.0))
    return float(np.nanmax(apart, initial=0.0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    chosen = {
        name: play
        for name, play in cases().items()
        if not options.only or name in options.only.split(",")
    }
    if options.what == "record":
        parts = {name: play(options.rounds) for name, play in chosen.items()}
        np.savez(
            options.file,
            rounds=options.rounds,
            **{f"{name}/{k}": v for name, part in parts.items() for k, v in part.items()},
        )
        return
    stored = np.load(options.file)
    moved = []
    for name, play in chosen.items():
        if f"{name}/policy" not in stored:
            print(f"{name:20} not recorded")
            continue
        now = play(int(stored["rounds"]))
        gaps = {key: gap(stored[f"{name}/{key}"], value) for key, value in now.items()}
        print(
            f"{name:20} " + "  ".join(f"{key} {value:.1e}" for key, value in gaps.items()),
            flush=True,
        )
        moved += [name] * (max(gaps.values()) > TOLERANCE)
    if moved:
        sys.exit(f"not the same: {', '.join(moved)}")


if __name__ == "__main__":
    main()
