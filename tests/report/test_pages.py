"""Tables and pages say what they are given, and HTML cannot be broken by it."""

import base64
import io

from rich.console import Console

from fastweights.report import pages, style, tables, terminal
from fastweights.report.pages import Section

ENTRY = {
    "model": "lstm",
    "units": 20,
    "recipe": "tuned",
    "paper": 60.81,
    "parameters": 12345,
    "seeds": [{"seed": 0, "seconds": 30.0, "epochs": 10}, {"seed": 1, "seconds": 50.0, "epochs": 10}],
    "test_error_mean": 4.567,
    "interval": [3.4, 5.8],
    "test_error_std": 1.234,
    "test_error_best_validation": 3.4,
}


def test_rows():
    (row,) = tables.rows([ENTRY])
    assert row == ("LSTM", "20", "4.57 [3.40, 5.80]", "3.40", "60.81", "0-1", "12,345", "")
    assert tables.rows([{**ENTRY, "recipe": "literal"}])[0][0] == "LSTM (literal)"
    assert len(row) == len(tables.HEADER)
    (alone,) = tables.rows([{**ENTRY, "seeds": ENTRY["seeds"][:1], "interval": None}])
    assert alone[2] == "4.57"  # one seed has no interval


def test_a_page_as_markdown_and_html(tmp_path):
    picture = tmp_path / "curve.png"
    picture.write_bytes(b"a picture")
    sections = [
        Section("Errors", "λ < 1 & more", ("a", "b"), [("1 <", "2")], commands=["fastweights report"]),
        Section("Curve", figure=picture),
    ]
    text = pages.as_markdown("Table", sections, tmp_path)
    assert "| a | b |\n|---|---|\n| 1 < | 2 |" in text
    assert "![Curve](curve.png)" in text
    assert "```\nfastweights report\n```" in text
    page = pages.as_html("Table", sections)
    assert "<p>λ &lt; 1 &amp; more</p>" in page
    assert ">1 &lt;</td>" in page
    assert base64.b64encode(b"a picture").decode() in page


def test_a_page_for_all_screens_that_leads_to_the_others():
    page = pages.as_html(
        "A", [Section("Errors", "", ("model",), [("fast weights",)])], home="../index.html", quick=True
    )
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert '<a href="../index.html">' in page
    assert "Quick look: not a result" in page
    assert f'<i style="background: {style.MODELS["fast-weights"].colour}"></i>fast weights' in page
    assert "prefers-color-scheme: dark" in page
    assert '<a href="x/y.html">B &amp; C</a>' in pages.index("All", {"x/y.html": "B & C"})


def printed(thing):
    console = Console(width=120, file=io.StringIO())
    console.print(thing)
    return console.file.getvalue()


def test_a_table_in_a_terminal():
    shown = printed(tables.terminal("Table 1", tables.HEADER, tables.rows([ENTRY]), "baseline 61.65"))
    assert "4.57 [3.40, 5.80]" in shown
    assert "baseline 61.65" in shown


def test_an_answer_in_a_terminal():
    probabilities = [0.0] * 10
    probabilities[9], probabilities[3] = 0.9, 0.1
    right, wrong = (printed(terminal.answer("c9k8??c", 9, probabilities, truth)) for truth in (9, 8))
    assert "c9k8??c → 9  right   9: 90.0%  3: 10.0%" in right
    assert "wrong: it is 8" in wrong


def test_attention_in_a_terminal():
    shown = printed(terminal.attention("c9??c", [[0.5, 2.0, 0.0, -1.0, 0.0], [0.0] * 5]))
    rows = [line.split() for line in shown.splitlines()]
    assert rows[0] == ["paid", "to", "inner", "step", "1", "inner", "step", "2"]
    assert rows[2] == ["9", "█" * 24, "·"]
    assert rows[4] == ["?", "█" * 12, "·"]
    assert len(rows) == 5
