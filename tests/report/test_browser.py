"""Pages in a browser: on a phone and on a desk nothing is wider than the window."""

import html
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
# A window cannot be as narrow as a phone; a frame in it can.
FRAME = """<!doctype html><iframe id="it" style="border: 0; width: {}px; height: 900px" srcdoc="{}"></iframe>
<script>onload = () => {{ const page = it.contentDocument.documentElement
document.title = it.contentWindow.innerWidth + " " + page.clientWidth + " " + page.scrollWidth }}</script>"""
WIDTHS = (420, 1280)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def overflow(page, width, folder):
    """How many pixels what is in a page is wider than the page, in a window of this width."""
    path = folder / "frame.html"
    path.write_text(FRAME.format(width, html.escape(page)), encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    words += [f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=120, check=True)
    window, inside, content = map(int, re.search(r"<title>(\d+) (\d+) (\d+)</title>", done.stdout).groups())
    assert width - 20 <= inside <= window == width  # less a scrollbar
    return content - inside


def test_it_is_noticed_when_a_page_is_too_wide(tmp_path):
    assert overflow(pages.as_html("Wide", []) + "<div style='width: 600px'>x</div>", 420, tmp_path) > 180


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("*.html")))
def test_published_pages(name, width, tmp_path):
    assert overflow((RESULTS / name).read_text(encoding="utf-8"), width, tmp_path) == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_with_everything(width, tmp_path):
    curve = figures.save(figures.finish(figures.curves({"lstm": [[1.0, 0.5]]}, "error")), tmp_path / "curve.png")[0]
    row = ("fast weights (literal)", "100", "100.00 ± 100.00", "100.00", "62.11", "0-4", "12,345,678", "trained here")
    sections = [
        Section("A heading as long as any in the reports of this package", "Words. " * 50, tables.HEADER, [row]),
        Section("A figure", figure=curve, commands=["fastweights reproduce table1 --cells " + "lstm/20 " * 30]),
        Section("A word", "x" * 300),
    ]
    page = pages.as_html("A title " * 5, sections, home="../index.html", quick=True)
    assert overflow(page, width, tmp_path) == 0
    folder = tmp_path / "table1-quick" / "report"
    folder.mkdir(parents=True)
    (folder / "table1.html").write_text(page, encoding="utf-8")
    write_index(tmp_path)
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "(quick look: not a result)" in index
    assert overflow(index, width, tmp_path) == 0
