"""What a journal costs an agent, and how long it takes to come back.

    python benchmarks/resume.py [--decisions 100000] [--rounds 300] [--folder DIR]

A linear-Gaussian problem (NumPy only), one decision and one outcome a round. First the time of
`ask` and `tell` with and without a journal, fsync apart, and of replaying those rounds one by one,
which is what follows a crash: at most 1% of the decisions, or 1,000, lie after the newest snapshot.
Then a journal of many decisions, whose records are written directly in cohorts with a policy that
plays at random (an agent would need hours to make them, and so this one has no guard), replayed
once, and resumed from the snapshot.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

import gedppl as ged
from gedppl.agent import deciding, keeper, recorder
from gedppl.density import Density
from gedppl.ged_ucb.settings import settings
from gedppl.journal import Journal
from gedppl.programs.contract import LinearPredictor, Parametric

ACTIONS, WIDTH, SCALE = 5, 4, 0.1


class Linear(Parametric):
    """y ~ Normal(x'theta_a, 0.1): one block of coefficients an action."""

    def __init__(self) -> None:
        self.dim = ACTIONS * WIDTH
        self.initial, self.prior_free = np.zeros(self.dim), np.ones(self.dim, bool)
        self.predictor = LinearPredictor(
            "Normal",
            "identity",
            self.features,
            lambda x, a: np.zeros(len(a)),
            lambda x, a: {"scale": np.full(len(a), SCALE)},
        )

    def features(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        out = np.zeros((len(a), ACTIONS, WIDTH))
        out[np.arange(len(a)), a] = x
        return out.reshape(len(a), -1)

    def density_at(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> Density:
        loc = np.asarray(theta) @ self.features(x, a).T
        return Density("Normal", {"loc": loc, "scale": np.full(loc.shape, SCALE)})

    def describe(self) -> str:
        return "linear benchmark"

    def unflatten(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {"theta": theta}


def problem() -> ged.Problem:
    cost = ged.Constraint(Linear(), ged.mean(-1, 2), at_most=0.5, safe_value=0.0)
    return ged.Problem(
        n_actions=ACTIONS,
        utility=ged.Utility(Linear(), ged.mean(-1, 2)),
        constraints=[cost],
        safe_action=0,
    )


def outcome(x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, float]:
    level = 0.2 * action * x[0]
    return level + SCALE * rng.normal(), 0.15 * action * x[0] + SCALE * rng.normal()


def timed(
    rounds: int, path: Path | None, synced: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Milliseconds of every ask, of every tell, and of what either spends on making and writing
    its records.
    """
    rng, asks, tells, kept = np.random.default_rng(0), [], [], []

    def counted(function):
        def call(*args):
            start = time.perf_counter()
            out = function(*args)
            kept.append(time.perf_counter() - start)
            return out

        return call

    agent = ged.GEDUCB(problem(), journal=path)
    if path is not None and not synced:
        agent.journal._connection.execute("PRAGMA synchronous=OFF")
    sync = os.fsync if synced else lambda file: None
    with (
        mock.patch.object(os, "fsync", sync),
        mock.patch.object(Journal, "append_many", counted(Journal.append_many)),
        mock.patch.object(deciding, "payload", counted(deciding.payload)),
    ):
        for _ in range(rounds):
            x = rng.random(WIDTH)
            start = time.perf_counter()
            decision = agent.ask(x)
            middle = time.perf_counter()
            told = outcome(x, decision.action, rng)
            resumed = time.perf_counter()
            agent.tell(decision.id, *told)
            tells.append(time.perf_counter() - resumed)
            asks.append(middle - start)
    agent.close()
    # of a round: the decision's payload, its write, the outcome's write
    return (
        1e3 * np.array(asks),
        1e3 * np.array(tells),
        1e3 * np.array(kept or np.zeros(3 * rounds)).reshape(rounds, 3),
    )


def fill(path: Path, decisions: int, batch: int = 2000) -> None:
    """A journal as an agent leaves it, but for its policies: cohorts at random, each told before
    the next.
    """
    rng = np.random.default_rng(1)
    frozen = recorder.protocol(problem(), settings(), None)
    certificate = {
        "round": 0,
        "mode": "default",
        "delta": 0.05,
        "notes": [],
        "fallback": None,
        "constraints": [
            {
                "name": "cost",
                "worst_case": 0.4,
                "at_most": 0.5,
                "method": "exact",
                "guaranteed": True,
                "rule": "r" * 200,
                "note": "",
                "witness": {"1": {"theta": rng.normal(size=20).tolist()}},
            }
        ],
    }
    policy = np.full(ACTIONS, 1 / ACTIONS)
    with Journal.create(path, frozen) as journal:
        for first in range(0, decisions, batch):
            made, told = [], []
            for i in range(first, min(first + batch, decisions)):
                x, action = rng.random(WIDTH), int(rng.integers(ACTIONS))
                payload = {
                    "id": i,
                    "x": x,
                    "allowed": None,
                    "policy": policy,
                    "action": action,
                    "propensity": 0.2,
                    "certificate": certificate,
                    "seed": [0, i],
                    "versions": "0" * 16,
                    "learned": True,
                }
                made.append(("decision", payload))
                y, z = outcome(x, action, rng)
                told.append(("outcome", {"id": i, "y": y, "z": {"cost": z}}))
            journal.append_many(made)
            journal.append_many(told)


def clocked(what: str, call) -> object:
    wall, processor = time.perf_counter(), time.process_time()
    out = call()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{what:44s} {wall:7.2f} s, of which processor {processor:.2f} s", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--folder", default=None, help="where to write; fsync times are those of this disk"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        runs = {
            "no journal": timed(options.rounds, None, False),
            "journal, fsync excluded": timed(options.rounds, folder / "fast.db", False),
            "journal, with fsync": timed(options.rounds, folder / "synced.db", True),
        }
        for what, (asks, tells, kept) in runs.items():
            decision, told = np.median(kept[:, 0] + kept[:, 1]), np.median(kept[:, 2])
            print(
                f"{what:24s} ask {np.median(asks):7.3f} ms, of it the journal {decision:6.3f};",
                end=" ",
            )
            print(f"tell {np.median(tells):7.3f} ms, of it the journal {told:6.3f} (medians)")
        with mock.patch.object(Journal, "latest_snapshot", return_value=None):
            start = time.process_time()
            ged.resume(folder / "fast.db", problem()).journal.close()
            each = (time.process_time() - start) / options.rounds
        tail = max(keeper.SNAPSHOT_EVERY, int(keeper.SNAPSHOT_SHARE * options.decisions))
        print(
            f"replaying a round: {1e3 * each:.2f} ms of processor; at most {tail:,} rounds after "
            f"a crash: {tail * each:.1f} s"
        )

        path = folder / "long.db"
        clocked(
            f"writing {options.decisions:,} decisions directly",
            lambda: fill(path, options.decisions),
        )
        agent = clocked("first resume: a replay of everything", lambda: ged.resume(path, problem()))
        expected = agent.state_hash()
        clocked("close: one snapshot", agent.close)
        agent = clocked("resume from the snapshot", lambda: ged.resume(path, problem()))
        assert agent.state_hash() == expected
        print(
            f"{len(agent.journal):,} records, {path.stat().st_size / 2**20:.0f} MB; {agent.resumed}"
        )


if __name__ == "__main__":
    main()
