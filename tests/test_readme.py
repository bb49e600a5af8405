"""README runs as written, and prints what it says."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_first_example_prints_what_readme_says() -> None:
    text = README.read_text()
    code = re.search(r"```python\n(import.*?)```", text, re.S).group(1)
    shown = re.search(r"```text\n(.*?)```", text, re.S).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), {})
    assert printed.getvalue() == shown


def test_the_other_examples() -> None:
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 10
    assert result.failed == 0
