"""RESULTS.md from the cells of the arena."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Cells = dict[str, dict[str, list[dict[str, Any]]]]


def write_page(found: Cells, page: Path) -> Path:
    """Write the page; its path."""
    page.write_text(f"{sum(len(c) for agents in found.values() for c in agents.values())} cells\n")
    return page
