"""What RESULTS.md says of a comparison follows from its cells; adding an algorithm or an
environment is one line.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
results = pytest.importorskip("results")
page = pytest.importorskip("results_page")

from reproduce.cells import Cell  # noqa: E402

from gedppl.study.baselines.by_name import BASELINES  # noqa: E402
from gedppl.study.baselines.shell import Baseline  # noqa: E402


def cells(agent, regrets):
    return [{"agent": agent, "seed": s, "regret": r} for s, r in enumerate(regrets)]


def small(**changes):
    return Namespace(
        **({"rounds": 4, "seeds": 2, "first_seed": 0, "delta": 0.05, "workers": 1} | changes)
    )


def test_a_lead_is_claimed_only_beyond_chance_and_over_common_seeds():
    ours, theirs = cells("gedppl", [10, 11, 12, 11]), cells("oplb", [20, 21, 22, 21])
    assert (
        "leads: 11.0 against 21.0 of oplb, difference -10.0 ± 0.0 over 4 common seeds."
        in page.verdict({"gedppl": ours, "oplb": theirs}, True)
    )
    noisy = page.verdict(
        {"gedppl": cells("gedppl", [10, 30]), "oplb": cells("oplb", [20, 19])}, True
    )
    assert noisy.endswith("That is not more than chance over these seeds.")
    fewer = page.verdict({"gedppl": ours, "oplb": cells("oplb", [5, 6])}, True)
    assert "loses: 10.5 against 5.5" in fewer


def test_algorithms_without_a_guarantee_and_wrong_models_are_no_ground_for_a_claim():
    both = {"gedppl": cells("gedppl", [10, 11]), "uccb": cells("uccb", [1, 2])}
    assert page.verdict(both, True) == "No other algorithm with a guarantee can play here."
    assert "no algorithm's guarantee applies" in page.verdict(both, False)


def test_an_algorithm_that_fails_everywhere_says_why():
    row = page.table_of({"oplb": [{"failed": "SettingError: no"}]})[-1]
    assert row == "| oplb | | failed: SettingError: no | | | | | 0 of 1 |"
    assert row.count("|") == len(page.HEAD) + 1


def test_the_summary_counts_rounds_above_the_limit_and_names_where_we_lose():
    ours = [
        {"agent": "gedppl", "seed": s, "regret": 9.0, "infeasible_rounds": s, "rounds": 50}
        for s in range(3)
    ]
    found = {
        "shared": {"gedppl": ours, "oplb": cells("oplb", [5, 6, 7])},
        "drift": {"gedppl": ours},
    }
    said = page.summary(found)
    assert (
        "(1 environments, 150 rounds) GED-UCB had 3 rounds above the limit; environments with any: "
        "shared (3)." in said[0]
    )
    assert said[1].endswith("the lowest mean regret in 0; it loses in: shared.")
    assert said[-1].startswith("| shared | 9.0 | oplb | 6.0 | 1.50 | +3.0")


def test_alarms_are_said_with_their_runs_and_times():
    runs = [
        {"alarm_rounds": {"drift:cost": 100}},
        {"alarm_rounds": {"drift:cost": 300}},
        {"alarm_rounds": {}},
    ]
    assert (
        page.alarms_of(runs)
        == "Alarms of GED-UCB in 3 runs: `drift:cost` in 2 (after 200 outcomes)."
    )
    assert page.alarms_of(runs[2:]) == "Alarms of GED-UCB: none in 1 runs."


def test_published_settings_are_run_once_kept_and_shown(tmp_path, monkeypatch):
    asked = []

    def opb(rounds, runs, seed):
        asked.append((rounds, runs, seed))
        return [Cell("opb", "OPB", 0.2, 3100.0, published=3133.0), Cell("opb", "OPB", None, 0.25)]

    monkeypatch.setattr(results, "SETTINGS", {"opb": opb})
    results.run_published(tmp_path / "published", small())
    results.run_published(tmp_path / "published", small())
    assert asked == [(4, 2, 0)]
    said = page.published_table(results.read_published(tmp_path / "published"))
    assert said[-3:-1] == [
        "| opb | OPB | 0.2 | 3,100 |  | 3,133 | 0.99 | final regret |",
        "| opb | OPB |  | 0.25 |  |  |  | final regret |",
    ]
    assert page.published_table([]) == []


def test_cells_are_kept_tried_again_after_a_failure_and_run_again_at_another_size(tmp_path):
    results.run(tmp_path, ["lock_in"], ["always-safe"], small())
    path = results.path_of(tmp_path, "lock_in", "always-safe", 1)
    first = path.stat().st_mtime_ns
    results.run(tmp_path, ["lock_in"], ["always-safe"], small())
    assert path.stat().st_mtime_ns == first
    path.write_text(json.dumps({"failed": "RuntimeError: power", "rounds_asked": 4, "delta": 0.05}))
    results.run(tmp_path, ["lock_in"], ["always-safe"], small())
    assert json.loads(path.read_text())["rounds"] == 4
    results.run(tmp_path, ["lock_in"], ["always-safe"], small(rounds=6))
    assert json.loads(path.read_text())["rounds"] == 6


def test_a_new_environment_and_a_new_algorithm_take_one_line_each_and_are_on_the_page(
    tmp_path, monkeypatch
):
    class Second(Baseline):
        """Always the second action."""

        def policy(self, x):
            return [0.0, 1.0, 0.0, 0.0, 0.0]

    def easy(seed=0):
        """Nothing to it."""
        return results.make("lock_in", seed)

    monkeypatch.setitem(results.ENVIRONMENTS, "easy", easy)
    monkeypatch.setitem(BASELINES, "second", lambda problem, x, rounds, delta, seed: Second(seed))
    monkeypatch.setattr(results, "AGENTS", ("gedppl", *BASELINES, "always-safe"))
    results.run(tmp_path / "cells", ["easy"], ["gedppl", "second", "roful"], small())
    written = page.write_page(results.read(tmp_path / "cells"), tmp_path / "RESULTS.md").read_text()
    assert "### easy\n\nNothing to it. 4 rounds, seeds 0 to 1." in written
    assert "\n| second | no |" in written
    assert "Made by: commit " in written
    assert (tmp_path / "results.png").stat().st_size > 1000
