"""The measures of the house count what they say, and fail when one gets worse."""

from __future__ import annotations

import ast
import importlib.util
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
