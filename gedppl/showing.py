"""Objects that show themselves: a few facts, as text for a terminal and as a small table for a
notebook.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

LINES, WIDTH = 12, 100
Facts = tuple[str, dict[str, str]]  # a title, and name -> what there is to say


class Shown:
    """Shows itself by the title and facts of `_shown`: as short text, and as a table in a
    notebook.
    """

    def _shown(self) -> Facts:
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())


class Spoken:
    """Shows the first lines of what it prints; in a notebook, all of it."""

    def __repr__(self) -> str:
        first, *lines = str(self).splitlines()
        return as_lines([first, *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'


def amounts(values: Mapping[str, float] | Iterable[tuple[str, float]]) -> str:
    """Numbers by name, in a line.

    >>> amounts({"A": 0.25, "B": 3.0})
    'A 0.25, B 3'
    """
    return ", ".join(f"{name} {value:.3g}" for name, value in dict(values).items())


def as_text(title: str, facts: Mapping[str, str]) -> str:
    """At most twelve lines: the title, then one fact a line.

    >>> print(as_text("Run of 3 rounds", {"regret": "0.5"}))
    Run of 3 rounds
      regret: 0.5
    """
    return as_lines([title, *(f"  {name}: {value}" for name, value in facts.items())])


def as_lines(lines: list[str]) -> str:
    """At most twelve of them, none longer than a hundred characters."""
    short = [
        line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."
        for line in (" ".join(line.split("\n")) for line in lines)
    ]
    return "\n".join(
        short
        if len(short) <= LINES
        else [*short[: LINES - 1], f"  ... and {len(short) - LINES + 1} more"]
    )


def as_html(title: str, facts: Mapping[str, str]) -> str:
    """The same as a table, without colours of its own, so that it fits a light and a dark page."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th><td '
        f'style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{html.escape(title)}</strong><table>{rows}</table></div>"
