"""Pages in a browser: on a phone and on a desk nothing is wider than the window."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fastweights.paper.reports import write_index
from fastweights.report import figures, pages, tables
from fastweights.report.pages import Section

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
RESULTS = Path(__file__).parent.parent.parent / "results"
# A window cannot be as narrow as a phone; frames in it can. One start of the browser measures them all.
FRAMES = """<!doctype html>{}
<script>onload = () => document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {{
const page = frame.contentDocument.documentElement
return [frame.contentWindow.innerWidth, page.clientWidth, page.scrollWidth] }}))</script>"""
FRAME = '<iframe style="border: 0; width: {}px; height: 900px" srcdoc="{}"></iframe>'
WIDTHS = (420, 1280)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def overflows(named, folder):
    """How many pixels what is in each page is wider than the page, in windows of these widths."""
    cases = [(name, width) for name in named for width in WIDTHS]
    path, frames = folder / "frames.html", (FRAME.format(width, html.escape(named[name])) for name, width in cases)
    path.write_text(FRAMES.format("\n".join(frames)), encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    words += [f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=300, check=True)
    measured = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    assert len(measured) == len(cases)
    found = {}
    for (name, width), (window, inside, content) in zip(cases, measured, strict=True):
        assert width - 20 <= inside <= window == width  # less a scrollbar
        found[name, width] = content - inside
    return found


def with_everything(folder):
    """Long words, wide tables, a figure; and the index of such a page."""
    curve = figures.save(figures.finish(figures.curves({"lstm": [[1.0, 0.5]]}, "error")), folder / "curve.png")[0]
    row = ("fast weights (literal)", "100", "100.00 ± 100.00", "100.00", "62.11", "0-4", "12,345,678", "trained here")
    sections = [
        Section("A heading as long as any in the reports of this package", "Words. " * 50, tables.HEADER, [row]),
        Section("A figure", figure=curve, commands=["fastweights reproduce table1 --cells " + "lstm/20 " * 30]),
        Section("A word", "x" * 300),
    ]
    page = pages.as_html("A title " * 5, sections, home="../index.html", quick=True)
    report = folder / "table1-quick" / "report"
    report.mkdir(parents=True)
    (report / "table1.html").write_text(page, encoding="utf-8")
    write_index(folder)
    index = (folder / "index.html").read_text(encoding="utf-8")
    assert "(quick look: not a result)" in index
    return {"everything": page, "index of it": index}


def test_no_page_is_wider_than_the_window(tmp_path):
    published = {path.name: path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.html"))}
    assert "index.html" in published
    too_wide = {"too wide": pages.as_html("Wide", []) + "<div style='width: 1500px'>x</div>"}
    found = overflows({**published, **with_everything(tmp_path), **too_wide}, tmp_path)
    for width in WIDTHS:
        assert found.pop(("too wide", width)) > 180  # it is noticed
    assert set(found.values()) == {0}, found
