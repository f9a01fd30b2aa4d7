"""What the pages say is what was measured: sentences that compare have tests, and numbers are in the results."""

import json
import re
from pathlib import Path

import pytest

from fastweights.report.sentences import compares, sentences, unmeasured, untested

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = [
    record for path in sorted((ROOT / "results").glob("*-tests.json")) for record in json.loads(path.read_text())
]
RESULTS = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*.json"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_says_what_its_tests_show(path):
    assert untested(path.read_text(), RECORDS) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_numbers_of_a_page_are_in_the_results(path):
    assert unmeasured(path.read_text(), RESULTS) == []


def test_pages_have_tests_and_numbers_to_check():
    pages = "".join(path.read_text() for path in PAGES)
    assert "<!-- test:" in pages
    assert pages != pages.replace(" better -->", "")
    assert "±" in pages
    wrong = pages.replace(" better -->", " worse -->")
    assert untested(wrong, RECORDS)
    assert unmeasured(pages.replace(" ± 0.", " ± 7."), RESULTS)


def record(claim, **facts):
    usual = {"id": f"t/{claim}", "estimate": -1.0, "low": -1.5, "high": -0.5, "p_adjusted": 0.01}
    return {"claim": claim, **usual, **facts}


def chance(claim, **facts):
    return record(claim, id=f"t/{claim}-by-chance", p_adjusted=0.3, **facts)


KNOWN = [
    record("better"),
    record("worse"),
    record("equal", estimate=0, low=0, high=0, p_adjusted=1),
    record("similar", margin=2),
    record("better", id="t/similar", p_adjusted=0.3),
    chance("better"),
    chance("worse"),
    chance("similar", margin=2),
    record("similar", id="t/similar-beyond", margin=1),
]


@pytest.mark.parametrize(
    "anchor",
    [
        "t/better better",
        "t/worse worse",
        "t/equal equal",
        "t/similar similar",
        "t/similar undecided",
        "t/better-by-chance undecided",
        "t/worse-by-chance undecided",
        "t/better better, t/worse worse",
        "t/better-by-chance t/worse-by-chance undecided, t/better better",
    ],
)
def test_what_a_test_shows_may_be_said(anchor):
    assert untested(f"The LSTM is better. <!-- test: {anchor} -->", KNOWN) == []


@pytest.mark.parametrize(
    ("anchor", "reason"),
    [
        ("t/better worse", r"t/better is not worse: better, -1 \[-1.5, -0.5\], adjusted p 0.01"),
        ("t/better similar", "t/better is not similar"),
        ("t/better-by-chance better", "t/better-by-chance is not shown to be better: .* adjusted p 0.3"),
        ("t/worse-by-chance worse", "is not shown to be worse"),
        ("t/similar-by-chance similar", "is not shown to be similar: .*margin 2"),
        ("t/similar-beyond similar", "is not shown to be similar: .*margin 1"),
        ("t/similar-beyond undecided", "not undecided: nothing of the kind was tested"),
        ("t/better undecided", "t/better is not undecided"),
        ("t/other better", "there is no record t/other"),
        ("t/better", "must be ids of records and one of better, worse, equal, similar, undecided"),
        ("t/better great", "must be ids of records and one of"),
        ("better", "must be ids of records and one of"),
        ("", "must be ids of records and one of"),
        ("t/better better, t/worse better", "t/worse is not better"),
        ("t/better t/worse better", "t/worse is not better"),
    ],
)
def test_what_no_test_shows_is_found(anchor, reason):
    (wrong,) = untested(f"One.\n\nThe LSTM is better. <!-- test: {anchor} -->", KNOWN)
    assert wrong.startswith("line 3: “The LSTM is better.”")
    assert re.search(reason, wrong)


def test_a_claim_is_checked_whatever_the_sentence_says():
    assert untested("Nets learn. <!-- test: t/better worse -->", KNOWN)


@pytest.mark.parametrize(
    "page",
    [
        "Fast weights are better than the LSTM.",
        "# Fast weights are better than the LSTM",
        "- one\n- Fast weights are\n  better than the LSTM\n- two",
        "1. Fast weights are better than the LSTM",
        "*One. Fast weights are **better** than the LSTM.*",
        "> Fast weights are better than the [LSTM](lstm.md).",
        "Fast weights are better than the LSTM. <!-- no test: -->",
        "Fast weights are better than the LSTM. <!-- a remark -->",
        "Fast weights are better. Nets learn. <!-- no test: of the second sentence alone -->",
        "Fast weights are better.\n\nNets learn. <!-- no test: of the next paragraph -->",
        "```\ncode\n```\nFast weights are better.",
        "````\n```\n````\nFast weights are better.",
        "Nets learn (`A`).\nAt η = 0.5 they are ahead, 1.5 % vs. 2.5 %.",
    ],
)
def test_a_sentence_that_compares_needs_a_test(page):
    assert len(untested(page, KNOWN)) == 1


@pytest.mark.parametrize(
    "page",
    [
        "Fast weights are better than the LSTM. <!-- no test: the paper's words -->",
        "Fast weights are better <!-- no test: the paper's words --> than the LSTM.",
        "Fast weights are better than the LSTM.\n<!-- no test: the paper's words -->",
        "Fast weights are better than\nthe LSTM. <!-- no test:\nthe paper's\nwords -->\nNets learn.",
        "## Fast weights are better\n<!-- no test: the paper's words -->\n\nNets learn.",
        "*Fast weights are better.* <!-- no test: the paper's words -->",
        "```\nFast weights are better.\n```",
        "```python\nx = 1\n\nFast weights are better.\n```\n",
        "~~~\nFast weights are better.\n```\nThey are worse.\n~~~",
        "Nets learn by `the better LSTM`.",
        "| model | is better |\n|---|---|\n| LSTM | better |",
        "![Fast weights are better](better.png)",
        "A higher rate is better.",
        "The best-validation seed of the LSTM has the lowest validation error.",
        "Fast weights were never compared.",
    ],
)
def test_other_sentences_do_not(page):
    assert untested(page, KNOWN) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "The LSTM is worse.",
        "With 50 units both are alike.",
        "Fast weights outperform LSTMs.",
        "The ConvNet beats them.",
        "IRNNs are no worse.",
        "The two are comparable.",
        "The LSTM is on par with fast weights.",
        "The A-LSTM matches it.",
        "Agents with fast weights are sooner at 0.9.",
        "The paper's order holds.",
        "The memory is worth 0.9 %.",
        "With 200 units fast weights have the lowest error.",
        "Method 1 performs similarly.",
        "Counted in updates, the A-LSTM is the first.",
        "Inner steps make no difference.",
        "Dropout helps all.",
    ],
)
def test_words_that_compare(sentence):
    assert compares(sentence)


def test_where_sentences_begin():
    page = "# One\nTwo is\nlong. Three <!-- a\nb\nc --> goes on.\nFour.\n\n- Five\n- Six? Seven"
    assert [(found.line, found.text) for found in sentences(page)] == [
        (1, "# One"),
        (2, "Two is long."),
        (3, "Three goes on."),
        (6, "Four."),
        (8, "- Five"),
        (9, "- Six?"),
        (9, "Seven"),
    ]


@pytest.mark.parametrize(
    "page",
    [
        "The LSTM is better.\n<!-- no test: why --> Nets learn.",
        "The LSTM is better.\n<!-- no test: why -->\nNets learn.",
        "- The LSTM is better.\n  <!-- no test: why -->\n  Nets learn.",
    ],
)
def test_a_comment_that_breaks_a_paragraph_is_found(page):
    (wrong,) = untested(page, KNOWN)
    assert "line 2: a comment at the beginning of a line ends the paragraph" in wrong


ENTRY = {
    "test_error_mean": 1.2345,
    "test_error_std": 0.1,
    "interval": [1.1, 1.4],
    "seeds": [{"greedy_return": 0.9, "mode": "a"}, {"greedy_return": 1.0, "mode": "b"}],
}
TEST = {"estimate": -38.87, "low": -45.5, "high": -30.2}


@pytest.mark.parametrize(
    "number",
    [
        "1.23 ± 0.10",
        "1.2345 ± 0.1",
        "**1.23** ± 0.10",
        "98.77 ± 0.10",  # as accuracy
        "0.95 ± 0.07",  # of the seeds
        "1.23 [1.10, 1.40]",
        "98.8 [98.6, 98.9]",
        "-38.9 [-45.5, -30.2]",
        "38.9 [30.2, 45.5]",  # the other way round
        "U(±0.3) in [0, 1]",
    ],
)
def test_numbers_that_were_measured(number):
    assert unmeasured(f"| LSTM | {number} |\n", [[ENTRY], {"tests": [TEST]}]) == []


@pytest.mark.parametrize(
    "number",
    ["1.24 ± 0.10", "1.23 ± 0.11", "1.2 ± 0.05", "0.95 ± 0.10", "1.23 [1.10, 1.41]", "1.23 [1.0, 1.4]", "9 [8, 10]"],
)
def test_numbers_that_were_not(number):
    (wrong,) = unmeasured(f"One.\n| LSTM | {number} |\n", [[ENTRY], {"tests": [TEST]}])
    assert wrong == f"line 2: {number} is nowhere in the results"


def test_numbers_in_code_are_not_results():
    assert unmeasured("```\n1.24 ± 0.10\n```", [ENTRY]) == []
