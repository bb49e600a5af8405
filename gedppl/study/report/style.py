"""The look of the page, and the few pieces of HTML that it is made of. No script, no other file,
readable on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

FITS_A_PHONE = 4  # columns
STYLE = """
:root { --ink: #1c2330; --soft: #5a6475; --line: #d9dee6; --good: #00694e; --bad: #a33c00;
  --paper: #ffffff; --wash: #f5f7fa;
  --mark: #0072b21a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #a3adbb; --line: #343b46; --good: #4fc79c; --bad: #ff9d5c;
    --paper: #1a1a1a; --wash: #101214;
    --mark: #56b4e926; }
  figure img { filter: invert(0.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 4px; overflow-wrap: anywhere;
  max-width: 44ch; }
h2 { font-size: 1.15rem; margin: 36px 0 10px; }
p, figcaption { max-width: 75ch; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); font-size: 0.93rem; }
.verdict { background: var(--paper); border: 1px solid var(--line);
  border-left: 5px solid var(--good); border-radius: 8px;
  padding: 12px 16px; margin: 18px 0; max-width: none; }
.verdict.bad { border-left-color: var(--bad); color: inherit; }
.verdict p { margin: 0; }
.verdict p + p { margin-top: 6px; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 10px;
  margin: 18px 0; padding: 0; }
.numbers div { background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 12px; }
.numbers dt { color: var(--soft); font-size: 0.85rem; }
.numbers dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.numbers dd small { display: block; color: var(--soft); font-size: 0.8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 16px; align-items: start; }
.figures > * { min-width: 0; }
.figures > div:last-child:nth-child(odd) { grid-column: 1 / -1; }
figure { margin: 0; background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px; }
figure img { width: 100%; height: auto; display: block; }
figure h3 { margin: 0 0 6px; font-size: 1rem; }
.table { border: 1px solid var(--line); border-radius: 8px; margin-bottom: 12px;
  background: var(--paper); overflow: hidden; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 0.93rem; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; min-width: 5.5em; }
th { vertical-align: bottom; font-weight: 600; color: var(--soft); }
tr:last-child td { border-bottom: 0; }
tr.chosen td { background: var(--mark); font-weight: 600; }
summary { cursor: pointer; margin-bottom: 8px; }
ul { padding-left: 20px; } li { overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); }
code { overflow-wrap: anywhere; }
@media (max-width: 600px) {
  main { padding: 16px 12px 32px; } figure { padding: 8px; } th, td { padding: 5px 6px; }
    table { font-size: 0.82rem; }
  .numbers { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
  .wide thead { display: none; }  /* a wide table becomes one card a row, each number beside its
  name */
  .wide tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 20px; padding: 6px 4px;
    border-bottom: 1px solid var(--line); }
  .wide tr:last-child { border-bottom: 0; }
  .wide td { display: flex; justify-content: space-between; gap: 8px; border: 0; padding: 2px 6px; }
  .wide td:first-child { grid-column: 1 / -1; font-weight: 600; justify-content: flex-start; }
  .wide td::before { content: attr(data-name); color: var(--soft); text-align: left;
    font-weight: 400; }
  .wide tr.chosen { background: var(--mark); } .wide tr.chosen td { background: none; }
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
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(p for p in parts if p)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], chosen: set[int] | None = None
) -> str:
    """A table; on a phone one of more than four columns becomes a card for each row. Rows in
    `chosen` are marked.
    """
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = []
    for i, row in enumerate(rows):
        mark = ' class="chosen"' if chosen and i in chosen else ""
        cells = "".join(
            f'<td data-name="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip(head, row, strict=True)
        )
        body.append(f"<tr{mark}>{cells}</tr>")
    look = "table wide" if len(head) > FITS_A_PHONE else "table"
    return (
        f'<div class="{look}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def number(value: float | None) -> str:
    """Three digits after the point up to ten, fewer beyond, so that the numbers of a column line
    up.

    >>> [number(v) for v in (0.51, 12.0, 345.6, 28_000.0, 0.0, 0.0004, float("nan"))]
    ['0.510', '12.00', '345.6', '28000', '0', '0.0004', '–']
    """
    if value is None or not np.isfinite(value):
        return "–"
    size = abs(value)
    if size < 5e-4:
        return f"{value:.1g}" if size else "0"
    return (
        f"{value:.3f}"
        if size < 10
        else f"{value:.2f}"
        if size < 100
        else f"{value:.1f}"
        if size < 1000
        else f"{value:.0f}"
    )
