"""The look of the page, and the few pieces of HTML that it is made of. No script, no other file, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

STYLE = """
:root { --ink: #1c2330; --soft: #5a6475; --line: #d9dee6; --good: #00694e; --bad: #a33c00; --paper: #ffffff; --wash: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 4px; overflow-wrap: anywhere; max-width: 44ch; }
h2 { font-size: 1.15rem; margin: 36px 0 10px; }
p, figcaption { max-width: 75ch; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); font-size: 0.93rem; }
.verdict { background: var(--paper); border: 1px solid var(--line); border-left: 5px solid var(--good); border-radius: 8px;
  padding: 12px 16px; margin: 18px 0; max-width: none; }
.verdict.bad { border-left-color: var(--bad); color: inherit; }
.verdict p { margin: 0; }
.verdict p + p { margin-top: 6px; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 10px; margin: 18px 0; padding: 0; }
.numbers div { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.numbers dt { color: var(--soft); font-size: 0.85rem; }
.numbers dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.numbers dd small { display: block; color: var(--soft); font-size: 0.8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; align-items: start; }
.figures > * { min-width: 0; }
.figures > div:last-child:nth-child(odd) { grid-column: 1 / -1; }
figure { margin: 0; background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
figure img { width: 100%; height: auto; display: block; }
figure h3 { margin: 0 0 6px; font-size: 1rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin-bottom: 12px;
  background: linear-gradient(to right, var(--paper) 40%, transparent),
    linear-gradient(to left, var(--paper) 40%, transparent) 100% 0,
    linear-gradient(to right, #c3cad6, transparent) 0 0, linear-gradient(to left, #c3cad6, transparent) 100% 0, var(--paper);
  background-repeat: no-repeat; background-size: 40px 100%, 40px 100%, 12px 100%, 12px 100%, 100% 100%;
  background-attachment: local, local, scroll, scroll, scroll; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.93rem; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 5.5em; }
th { white-space: normal; vertical-align: bottom; font-weight: 600; color: var(--soft); }
tr:last-child td { border-bottom: 0; }
tr.chosen td { background: #0072b21a; font-weight: 600; }
summary { cursor: pointer; margin-bottom: 8px; }
ul { padding-left: 20px; } li { overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); }
code { overflow-wrap: anywhere; }
@media (max-width: 600px) {
  main { padding: 16px 12px 32px; } figure { padding: 8px; } th, td { padding: 5px 6px; } table { font-size: 0.82rem; }
  .numbers { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
}
@media print { body { background: none; } figure, .numbers div, tr { break-inside: avoid; } }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page, well-formed as XML too, so that a test can parse it."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        f"<title>{escape(title)}</title>\n"
        # an empty icon, so that no browser asks a server for one
        '<link rel="icon" href="data:," />\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(p for p in parts if p) + "\n</main>\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], chosen: set[int] | None = None) -> str:
    """A table that scrolls by itself where the window is too narrow for it; rows in `chosen` are marked."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = []
    for i, row in enumerate(rows):
        mark = ' class="chosen"' if chosen and i in chosen else ""
        body.append(f"<tr{mark}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def number(value: float | None) -> str:
    """Three digits after the point up to ten, fewer beyond, so that the numbers of a column line up.

    >>> [number(v) for v in (0.51, 12.0, 345.6, 28_000.0, 0.0, 0.0004, float("nan"))]
    ['0.510', '12.00', '345.6', '28000', '0', '0.0004', '–']
    """
    if value is None or not np.isfinite(value):
        return "–"
    size = abs(value)
    if size < 5e-4:
        return f"{value:.1g}" if size else "0"
    return f"{value:.3f}" if size < 10 else f"{value:.2f}" if size < 100 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"
