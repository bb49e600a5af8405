"""The built site in a browser: ``GEDPPL_SITE=docs/_build pytest tests/test_site.py``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, console_of

SITE = os.environ.get("GEDPPL_SITE")
FEWEST = 20  # pages, or it was not the site that was looked at

VISIT = """<!DOCTYPE html><html><body style='margin:0'><iframe id='f' style='border:0;height:900px;
width:WIDTHpx'></iframe><script>
const pages = PAGES, frame = document.getElementById('f');
let at = 0;
frame.onload = () => {
  const d = frame.contentDocument, broken = [...d.images].filter(i => !i.naturalWidth).length;
  console.log('measured', pages[at], d.documentElement.scrollWidth, broken);
  if (++at < pages.length) frame.src = pages[at]; else console.log('all visited');
};
frame.src = pages[0];
</script></body></html>"""


def visit(pages: list[Path], width: int, folder: Path) -> tuple[dict[str, tuple[int, int]], list]:
    """Width and broken pictures of every page in a frame of this width, and what else the console
    said.
    """
    wrapper = folder / "visit.html"
    links = json.dumps([page.as_uri() for page in pages])
    wrapper.write_text(VISIT.replace("WIDTH", str(width)).replace("PAGES", links))
    console = console_of(wrapper, width, folder, patience=400_000)
    assert any("all visited" in line for line in console), console[-3:]
    found = [re.search(r"measured file://(\S+) (\d+) (\d+)", line) for line in console]
    measured = {m[1]: (int(m[2]), int(m[3])) for m in found if m is not None}
    return measured, [line for line in console if "measured" not in line and "all vis" not in line]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
@pytest.mark.skipif(SITE is None, reason="GEDPPL_SITE names no built site")
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_its_window_and_says_nothing_to_the_console(width, tmp_path):
    pages = sorted(Path(SITE).resolve().rglob("*.html"))
    assert len(pages) >= FEWEST
    measured, said = visit(pages, width, tmp_path)
    assert len(measured) == len(pages)
    assert {page: wide for page, (wide, _) in measured.items() if wide > width} == {}
    assert {page: broken for page, (_, broken) in measured.items() if broken} == {}
    assert said == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_visit_sees_what_is_wrong(tmp_path):
    bad = "<p style='width:700px'>wide</p><img src='none.png'/><script>undefinedName()</script>"
    (tmp_path / "bad.html").write_text(f"<!DOCTYPE html><html><body>{bad}</body></html>")
    (tmp_path / "good.html").write_text("<!DOCTYPE html><html><body>good</body></html>")
    pages = [tmp_path / "bad.html", tmp_path / "good.html"]
    measured, said = visit(pages, 390, tmp_path)
    assert measured[str(pages[1])] == (390, 0)
    wide, broken = measured[str(pages[0])]
    assert wide >= 700
    assert broken == 1
    assert any("undefinedName is not defined" in line for line in said)
