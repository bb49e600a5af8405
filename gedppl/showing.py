"""Objects that show themselves: a few facts, as text for a terminal and as a small table for a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping

LINES, WIDTH = 12, 100


def as_text(title: str, facts: Mapping[str, str]) -> str:
    """At most twelve lines: the title, then one fact a line.

    >>> print(as_text("Run of 3 rounds", {"regret": "0.5"}))
    Run of 3 rounds
      regret: 0.5
    """
    lines = [title, *(f"  {name}: {value}" for name, value in facts.items())]
    short = [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in (" ".join(line.split("\n")) for line in lines)]
    return "\n".join(short if len(short) <= LINES else [*short[: LINES - 1], f"  ... and {len(short) - LINES + 1} more"])


def as_html(title: str, facts: Mapping[str, str]) -> str:
    """The same as a table, without colours of its own, so that it fits a light and a dark page."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{html.escape(title)}</strong><table>{rows}</table></div>"
