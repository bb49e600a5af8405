"""`gedppl run --confidence ... --oracle ...`: one spelling, errors with the fix, and runs that
resume with the same rules.
"""

from __future__ import annotations

import json

import pytest

from gedppl.errors import SettingError
from gedppl.study.cli import main
from gedppl.study.cli.rules import ORACLES, RULES, read_rules
from tests.test_cli import SCRIPT


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "wards.py"
    path.write_text(SCRIPT)
    return str(path)


def test_options_become_those_of_the_function() -> None:
    found = read_rules(
        "--confidence", ["credible:level=0.9, source=nuts,draws=200,margin=false"], RULES
    )
    assert (found.level, found.source, found.draws, found.margin) == (0.9, "nuts", 200, False)
    assert read_rules("--confidence", [], RULES) is None
    by_stream = read_rules("--confidence", ["cost=credible:level=0.8", "utility=sampled"], RULES)
    assert sorted(by_stream) == ["cost", "utility"]
    assert by_stream["cost"].level == 0.8


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["credibel"], "there is no 'credibel'; choose from likelihood_ratio, credible"),
        (["credible:levle=0.9"], "options from level, source, draws, margin"),
        (["credible:0.9"], "write credible:option=value,..."),
        (["credible:level=2"], "level must lie in"),
        (["credible", "sampled"], "given twice for all outcomes"),
        (["cost=credible", "cost=sampled"], "each outcome once"),
    ],
)
def test_a_wrong_spelling_is_answered_with_the_right_one(texts, message) -> None:
    with pytest.raises(SettingError, match=message):
        read_rules("--confidence", texts, RULES)


def test_every_name_without_options_makes_a_rule() -> None:
    for known in (RULES, ORACLES):
        for name in known:
            assert read_rules("--x", [name], known) is not None


def test_a_credible_run_says_so_and_is_resumed_as_one(script, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    rule = ["--confidence", "credible:level=0.9,draws=200"]
    assert (
        main(["run", script, "--rounds", "6", "--out", str(out), "--no-report", "--quiet", *rule])
        == 0
    )
    certificates = (
        (out / "certificates.jsonl").read_text() if (out / "certificates.jsonl").exists() else ""
    )
    assert main(["resume", str(out), "--rounds", "3", "--no-report", "--quiet"]) == 0
    assert json.loads((out / "run.json").read_text())["meta"]["confidence"] == [
        "credible:level=0.9,draws=200"
    ]
    assert "guarantee" not in {
        json.loads(line)["constraints"][0]["kind"] for line in certificates.splitlines()
    }
    capsys.readouterr()


def test_a_wrong_rule_exits_with_2_and_leaves_no_folder(script, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert main(["run", script, "--out", str(out), "--confidence", "nowhere=credible"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["run", script, "--out", str(out), "--agent", "oracle", "--oracle", "mle"]) == 2
    assert "for the gedppl agent" in capsys.readouterr().err
    assert not out.exists()
