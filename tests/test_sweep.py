"""Comparisons as cells: kept, resumed, spread over real workers, and not ended by one that
fails.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gedppl.errors import DeclarationError, ScriptError, SettingError
from gedppl.guard import Alarm
from gedppl.study.cli import main
from gedppl.study.cli import sweep as sweeps
from gedppl.study.cli.scripts import loaded
from gedppl.study.cli.sweep import run_cell, sweep
from gedppl.study.cli.sweep_page import rows_of
from tests.crashes import ray_cluster

BANDIT = Path(__file__).parents[1] / "models" / "bandit.py"
OWN = ("seconds", "ask_ms", "worker")  # what differs between two runs of the same cell
AGENTS = ["always-safe", "roful"]


def plain(results):
    return [{k: v for k, v in r.items() if k not in OWN} for r in results]


def compared(folder, script=BANDIT, agents=AGENTS, seeds=range(2), **options):
    with loaded(Path(script)) as found:
        return sweep(found, list(agents), seeds, folder, rounds=12, **options)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    return compared(tmp_path_factory.mktemp("serial"))


def test_agents_meet_the_same_world_and_rows_are_means_over_seeds(serial):
    rows = {row["agent"]: row for row in rows_of(serial)}
    assert list(rows) == AGENTS
    regret = [r["regret"] for r in serial if r["agent"] == "roful"]
    assert rows["roful"]["regret"] == pytest.approx(np.mean(regret))
    assert rows["roful"]["regret_se"] == pytest.approx(np.std(regret, ddof=1) / np.sqrt(2))
    assert rows["always-safe"]["safe_share"] == 1
    oracle = {r["seed"]: r["oracle_utility"] for r in serial if r["agent"] == "roful"}
    assert oracle == {r["seed"]: r["oracle_utility"] for r in serial if r["agent"] == "always-safe"}
    assert oracle[0] != oracle[1]


def test_a_script_may_bring_agents_of_its_own(tmp_path):
    script = tmp_path / "own.py"
    plain_script = BANDIT.read_text()
    more = "\nfrom gedppl.study.baselines.always_safe import AlwaysSafe\n"
    made = (
        "AGENTS = {'mine': lambda problem, delta, seed: AlwaysSafe(problem.n_actions, seed=seed)}\n"
    )
    script.write_text(plain_script + more + made)
    mine, safe = compared(tmp_path / "out", script, ["mine", "always-safe"], range(1))
    assert "failed" not in mine
    assert mine["regret"] == pytest.approx(safe["regret"])
    script.write_text(plain_script + "\nAGENTS = ['mine']\n")
    with pytest.raises(ScriptError, match=r"AGENTS in .* mapping of names to functions"):
        compared(tmp_path / "wrong", script, ["always-safe"])


def test_what_is_complete_is_not_run_again_and_what_is_broken_is(tmp_path, serial, monkeypatch):
    compared(tmp_path)
    # as a machine that went down leaves it
    (tmp_path / "cells" / "roful-1.json").write_text('{"agent": "rof')
    (tmp_path / "cells" / "always-safe-0.json").unlink()
    ran = []

    def counted(cell, script=None):
        ran.append((cell.agent, cell.seed))
        return run_cell(cell, script)

    monkeypatch.setattr(sweeps, "run_cell", counted)
    assert plain(compared(tmp_path)) == plain(serial)
    assert sorted(ran) == [("always-safe", 0), ("roful", 1)]


def test_an_interrupted_sweep_goes_on_where_it_was_ended(tmp_path, serial, monkeypatch):
    def stops(cell, script=None):
        if cell.seed == 1:
            raise KeyboardInterrupt
        return run_cell(cell, script)

    monkeypatch.setattr(sweeps, "run_cell", stops)
    command = [
        "compare",
        str(BANDIT),
        "--agents",
        ",".join(AGENTS),
        "--seeds",
        "2",
        "--rounds",
        "12",
        "--out",
        str(tmp_path),
    ]
    assert main(command) == 130
    assert {p.name for p in (tmp_path / "cells").iterdir()} == {
        "always-safe-0.json",
        "roful-0.json",
    }
    monkeypatch.undo()
    assert main([*command, "--quiet"]) == 0
    assert plain(compared(tmp_path)) == plain(serial)


def test_a_cell_that_fails_ends_no_other_and_is_tried_again_next_time(tmp_path, capsys):
    command = [
        "compare",
        str(BANDIT),
        "--agents",
        "finite-lp,roful",
        "--rounds",
        "5",
        "--out",
        str(tmp_path),
        "--quiet",
    ]
    assert main([*command, "--json"]) == 0
    rows = {row["agent"]: row for row in json.loads(capsys.readouterr().out)["agents"]}
    assert (rows["finite-lp"]["seeds"], rows["finite-lp"]["failed"], rows["roful"]["seeds"]) == (
        0,
        1,
        1,
    )
    assert "FiniteLP needs finite classes" in rows["finite-lp"]["failures"][0]
    assert main(command) == 0
    assert "finite-lp: SettingError: FiniteLP needs finite classes" in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "FiniteLP needs finite classes" in page
    assert (
        main(
            [
                "compare",
                str(BANDIT),
                "--agents",
                "finite-lp",
                "--rounds",
                "5",
                "--out",
                str(tmp_path / "b"),
                "--quiet",
            ]
        )
        == 1
    )


def test_alarms_count_also_where_the_simulation_acknowledges_them_and_goes_on():
    class Doubtful:
        def __init__(self):
            self.alarms = [Alarm("safe_value:cost", 30.0, 0.05, 17, "refuted")]

        def ask(self, x):
            if self.alarms:
                raise DeclarationError("refuted")
            return "decision"

    timed = sweeps._Timed(Doubtful())
    with pytest.raises(DeclarationError):
        timed.ask(None)
    assert timed.alarms[0].name == "safe_value:cost"  # the agent's own, which the simulation reads
    timed.alarms.clear()
    assert timed.ask(None) == "decision"
    assert timed.alarm_rounds == {"safe_value:cost": 17}


def test_wrong_sweeps_are_named_before_anything_runs(tmp_path, capsys):
    start = ["compare", str(BANDIT), "--rounds", "4", "--out", str(tmp_path), "--quiet"]
    assert main([*start, "--agents", "roful,best"]) == 2
    assert "there is no agent 'best'; choose from gedppl" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([*start, "--agents", "always-safe"]) == 0
    capsys.readouterr()
    assert (
        main(
            [
                "compare",
                str(BANDIT),
                "--rounds",
                "5",
                "--out",
                str(tmp_path),
                "--agents",
                "always-safe",
            ]
        )
        == 2
    )
    assert "were made with another rounds; choose another --out" in capsys.readouterr().err
    with pytest.raises(SettingError, match="--backend must be one of loky, dask, ray, got 'moon'"):
        compared(tmp_path / "c", backend="moon")


def test_baselines_play_by_name_without_a_folder_too(capsys):
    assert (
        main(
            ["compare", str(BANDIT), "--agents", "oplb,roful", "--rounds", "5", "--json", "--quiet"]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["agents"]
    assert [(row["agent"], row["infeasible_rounds"]) for row in rows] == [("oplb", 0), ("roful", 0)]


# workers ------------------------------------------------------------------------------------------

DIES_ONCE = """
import os, signal
from pathlib import Path
import bandit

problem = bandit.problem
MARK, FIRST = Path({mark!r}), {pid}

class Mortal(bandit.World):
    def outcome(self, x, action, rng):
        if os.getpid() != FIRST and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().outcome(x, action, rng)

def environment():
    return Mortal()
"""


def script_that_dies_once(folder: Path) -> Path:
    text = DIES_ONCE.format(mark=str(folder / "died"), pid=os.getpid())
    (folder / "bandit.py").write_text(BANDIT.read_text())
    (folder / "mortal.py").write_text(text)
    return folder / "mortal.py"


@contextmanager
def dask_cluster():
    distributed = pytest.importorskip("distributed")
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": None,
    }
    with distributed.LocalCluster(processes=True, **options) as cluster:
        yield cluster.scheduler_address


def same(results, serial):
    left_out = (*OWN, "script")
    kept = [
        [{k: v for k, v in r.items() if k not in left_out} for r in part]
        for part in (results, serial)
    ]
    assert kept[0] == kept[1]


def test_two_processes_one_killed_give_what_one_gives(tmp_path, serial):
    script = script_that_dies_once(tmp_path)
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what loky says about a worker that died
        results = compared(tmp_path / "out", script, workers=2, say=said.append)
    assert (tmp_path / "died").exists()
    assert any("trying again" in text for text in said)
    same(results, serial)
    assert os.getpid() not in {r["worker"] for r in results}


@pytest.mark.slow
def test_a_dask_cluster_with_a_killed_worker_gives_what_one_process_gives(tmp_path, serial):
    script = script_that_dies_once(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a scheduler has to say about its own dependencies
        with dask_cluster() as address:
            results = compared(tmp_path / "out", script, workers=2, backend="dask", address=address)
    assert (tmp_path / "died").exists()
    same(results, serial)
    assert os.getpid() not in {r["worker"] for r in results}


@pytest.mark.slow
def test_a_ray_cluster_with_a_killed_worker_gives_what_one_process_gives(tmp_path, serial):
    script = script_that_dies_once(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ray_cluster():
            results = compared(tmp_path / "out", script, workers=2, backend="ray")
    assert (tmp_path / "died").exists()
    same(results, serial)
    assert os.getpid() not in {r["worker"] for r in results}


def test_cells_that_kill_every_worker_are_given_up(tmp_path):
    attempts = []

    def deadly(cells):
        attempts.append(len(cells))
        raise RuntimeError("a worker died")

    cells = [sweeps.Cell("s.py", "roful", seed, 5, 0.05, "default") for seed in range(2)]
    results = list(sweeps._attempted(cells, deadly, lambda text: None))
    assert attempts == [2] * sweeps.ATTEMPTS
    why = f"a worker was lost {sweeps.ATTEMPTS} times (RuntimeError: a worker died)"
    assert [r["failed"] for r in results] == [why] * 2
