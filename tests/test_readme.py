"""README runs as written, and prints what it says."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path

from gedppl.study.cli import main

README = Path(__file__).parent.parent / "README.md"


def test_first_example_prints_what_readme_says() -> None:
    text = README.read_text()
    code = re.search(r"```python\n(import.*?)```", text, re.S).group(1)
    shown = re.search(r"```text\n(.*?)```", text, re.S).group(1)
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), names)
    assert printed.getvalue() == shown
    look = re.search(r"## Before round 1\n\n```python\n(.*?)```", text, re.S).group(1)
    with contextlib.redirect_stdout(printed):  # it goes on with what the first one declared
        exec(compile(look, str(README), "exec"), names)
    assert "no warnings" in printed.getvalue()
    assert "share of the oracle's gain" in printed.getvalue()


def test_links_lead_somewhere_and_nothing_is_left_out() -> None:
    """Every link and picture is a file; every tutorial and every problem is linked."""
    text = README.read_text()
    linked = set(re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", text))
    files = {a or b for a, b in linked if not (a or b).startswith("http")}
    assert files
    assert not [name for name in files if not (README.parent / name).is_file()]
    root = README.parent
    problems = [
        path for path in (root / "models").glob("*.py") if "\ndef problem(" in path.read_text()
    ]
    wanted = {
        str(path.relative_to(root)) for path in [*problems, *(root / "tutorials").glob("*.py")]
    }
    assert len(wanted) > 10
    assert wanted <= files


def test_its_commands_are_commands(tmp_path, monkeypatch) -> None:
    """The `gedppl` lines of README run as written, here with fewer rounds."""
    found = re.findall(r"gedppl run (models/\S+) --rounds (\d+) --out (\S+)", README.read_text())
    assert found
    monkeypatch.chdir(README.parent)
    for script, _, _ in found:
        assert (
            main(
                [
                    "run",
                    script,
                    "--rounds",
                    "3",
                    "--out",
                    str(tmp_path / Path(script).stem),
                    "--quiet",
                ]
            )
            == 0
        )
        assert (tmp_path / Path(script).stem / "report.html").exists()


def test_the_other_examples() -> None:
    result = doctest.testfile(
        str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted >= 10
    assert result.failed == 0
