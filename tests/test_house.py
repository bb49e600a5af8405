"""The measures of the house count what they say, and fail when one gets worse."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "house.py"
spec = importlib.util.spec_from_file_location("house", PATH)
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)


def test_an_argument_that_says_nothing_is_counted() -> None:
    tree = ast.parse("def f(self, a, b: Any, c: object, d: int, *e: float, g: list[Any] = 1): ...")
    assert [arg.arg for arg in house.arguments(tree)] == ["a", "b", "c", "d", "g", "e"]
    assert [arg.arg for arg in house.arguments(tree) if house.says_nothing(arg)] == ["a", "b", "c"]


def test_questions_are_calls_not_words() -> None:
    assert (
        house.questions(
            ast.parse(
                "isinstance(a, b) or getattr(a, 'x', 1) or hasattr(b, 'y')  # isinstance(c, d)"
            )
        )
        == 3
    )
    assert house.questions(ast.parse("'getattr(a, b)'; a.isinstance(3)")) == 0


def test_private_names_from_other_files_are_counted() -> None:
    assert (
        house.private_imports(
            ast.parse("from gedppl.rows import _grow, Rows\nfrom scipy import _lib")
        )
        == 1
    )
    assert house.private_imports(ast.parse("from gedppl import __version__")) == 0


def test_docstring_lines() -> None:
    assert (
        house.docstring_lines(
            ast.parse('"""One.\n\nThree."""\ndef f():\n    """Four."""\n    "no docstring"')
        )
        == 4
    )


@pytest.mark.parametrize(
    ("name", "value", "bad"),
    [
        ("files per ask", 63, True),
        ("files per ask", 62, False),
        ("docstrings, % of lines", 10, True),
        ("docstrings, % of lines", 20, False),
        ("longest file", 590, False),
        ("longest file", 601, True),
        ("lines", 10**6, False),
    ],
)
def test_the_check_fails_where_a_measure_got_worse(name, value, bad) -> None:
    assert bool(house.worse(house.BASE | {name: value}, house.BASE)) == bad


# results by commit --------------------------------------------------------------------------------

tracked = importlib.util.spec_from_file_location("track", PATH.with_name("track.py"))
track = importlib.util.module_from_spec(tracked)
tracked.loader.exec_module(track)


def test_what_moved_is_shown_and_what_is_noise_is_not() -> None:
    before = {"files": 40.0, "ask": 1.0, "gone": 2.0}
    now = {"files": 39.0, "ask": 1.2, "new": 3.0}
    assert track.moved(before, now, noise=0.1) == [
        ("ask", 1.0, 1.2),
        ("gone", 2.0, None),
        ("new", None, 3.0),
    ]
    assert ("files", 40.0, 39.0) in track.moved(before, now)
    assert track.moved(before, before) == []


def test_results_are_compared_with_the_newest_line_of_the_same_measure(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    lines = [
        {"commit": "a", "results": {"house": {"files": 1}}},
        {"commit": "b", "results": {"house": {"files": 2}, "speed": {"ask": 1}}},
        {"commit": "c", "results": {"house": {"files": 3}}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = track.kept(path)
    assert track.last(kept, "house")["commit"] == "c"
    assert track.last(kept, "speed")["commit"] == "b"
    assert track.last(kept, "regret") is None
    assert track.kept(tmp_path / "none") == []
