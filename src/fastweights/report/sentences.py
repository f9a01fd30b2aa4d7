"""What a page says of models, against what was measured: sentences have tests behind them, numbers are in the results.

A sentence that compares models is followed by a comment which names the records of `comparisons.py` that it rests on,
each with its claim, or says why there is no test:

    Fast weights are better than the LSTM. <!-- test: table1/tuned/fast-weights-20-lstm-20 better -->
    They are better than both. <!-- test: catch/24-5/fast-weights-lstm/auc catch/24-5/fast-weights-irnn/auc better -->
    Fast weights learned faster than LSTMs. <!-- no test: the paper's words -->

Claims are better, worse, equal and similar, which the record must have and its test must show; and undecided, where the
test must show no difference.
"""

import math
import re
import statistics as descriptive
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .comparisons import LEVEL, holds

# Words that compare, and what they must be about; case does not matter.
_COMPARES = re.compile(
    r"\b(better|worse|(?:is|are) (?:the )?(?:best|worst)(?! on)|(?:is|are) (?:the )?(?:first|last)|ahead|behind|"
    r"outperform\w*|surpass\w*|exceed\w*|beats?|beaten|superior|inferior|stronger|strongest|weaker|weakest|"
    r"equal(?:ly)?|similar(?:ly)?|alike|comparabl[ey]|on par|level with|match|matches|matched|faster|fastest|slower|"
    r"slowest|sooner|earlier than|lower than|higher than|fewer errors|leads?|lowest(?! validation)|"
    r"highest(?! validation)|as (?:good|fast|low|high|early) as|helps?|is worth|are worth|no difference|order)\b",
    re.IGNORECASE,
)
_MODELS = re.compile(
    r"\b(fast weights|(?:A-|associative )?LSTMs?|IRNNs?|(?:ReLU |LN-)?RNNs?|ConvNets?|linear classifiers?|models?|"
    r"nets?|cores?|agents?|baselines?|layer norm\w*|inner steps?|method [12]|the memory|units|they|both|the two|"
    r"the paper'?s?|all)\b",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_BREAK = "\v"  # where a comment went on in a next line
_MARK = re.compile("\x00(\\d+)\x00")
_SENTENCE = re.compile("\\S.*?(?:[.!?][)*_\"'\\]]*(?=\\s|\x00|$)|$)(?:\\s*\x00\\d+\x00)*", re.DOTALL)
_STARTS = re.compile(r"\s*(#+ |[-*+] |\d{1,2}\. )")
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_SPREAD = re.compile(rf"({_NUMBER}) ± ({_NUMBER})")
_INTERVAL = re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]")
CLAIMS = ("better", "worse", "equal", "similar", "undecided")


class Sentence(NamedTuple):
    """A sentence of a page, where it begins, and the comments after it."""

    line: int
    text: str
    comments: list[str]


def sentences(page: str) -> Iterator[Sentence]:
    """Those of a page in Markdown, without its code, tables and pictures.

    >>> list(sentences("One net is better. <!-- no test: an example --> Two."))
    [Sentence(line=1, text='One net is better.', comments=['no test: an example']),
     Sentence(line=1, text='Two.', comments=[])]
    """
    comments: list[str] = []

    def mark(found: re.Match[str]) -> str:
        comments.append(" ".join(found[1].split()))
        return f"\x00{len(comments) - 1}\x00" + _BREAK * found[0].count("\n")

    for block in _blocks(_COMMENT.sub(mark, page)):
        text = "\n".join(line for _, line in block)
        for found in _SENTENCE.finditer(text):
            line = block[text.count("\n", 0, found.start())][0]
            said = " ".join(_MARK.sub("", found[0]).split())
            yield Sentence(line, said, [comments[int(number)] for number in _MARK.findall(found[0])])


def _blocks(page: str) -> Iterator[list[tuple[int, str]]]:
    """Paragraphs, entries of lists and headings, as lines with their numbers."""
    block: list[tuple[int, str]] = []
    number = 1
    for line in [*_prose(page), ""]:
        comment = line.strip() and not _MARK.sub("", line).strip()
        heading = bool(block) and block[0][1].startswith("#")
        if block and (not line.strip() or _STARTS.match(line) or (heading and not comment)):
            yield block
            block = []
        if line.strip():
            block.append((number, line))
        number += 1 + line.count(_BREAK)


def _prose(page: str) -> Iterator[str]:
    """The lines, empty where there is code, a table or a picture."""
    fence = ""
    for line in page.split("\n"):
        found = re.match(r"\s*(```+|~~~+)", line)
        if found and (not fence or found[1].startswith(fence)):
            fence = "" if fence else found[1]
            yield ""
        elif fence or line.lstrip().startswith("|"):
            yield ""
        else:
            line = re.sub(r"!\[[^]]*\]\([^)]*\)", "", line)
            yield re.sub(r"`[^`]*`", "code", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line))


def compares(sentence: str) -> str | None:
    """The word by which a sentence compares models; None if it does not.

    >>> compares("With 50 units the LSTM is ahead."), compares("A higher rate is better."), compares("Nets learn.")
    ('ahead', None, None)
    """
    found = _COMPARES.search(sentence)
    return found[0] if found and _MODELS.search(sentence) else None


def untested(page: str, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the sentences of a page: which compare without a test, or say what their tests do not show.

    Args:
        records: of `comparisons.py`, from all tables that the page may name.

    >>> print(*untested("Fast weights are better.", []))
    line 1: “Fast weights are better.” has “better” and names no test: <!-- test: … --> or <!-- no test: … -->
    """
    known: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        known.setdefault(record["id"], []).append(record)
    wrong = []
    for line, text, comments in sentences(page):
        where = f"line {line}: “{text}”"
        tests = [comment.removeprefix("test:") for comment in comments if comment.startswith("test:")]
        reasons = [comment.removeprefix("no test:") for comment in comments if comment.startswith("no test:")]
        word = compares(text)
        if word and not tests and not reasons:
            wrong.append(f"{where} has “{word}” and names no test: <!-- test: … --> or <!-- no test: … -->")
        wrong += [f"{where}: “no test” needs a reason" for reason in reasons if not reason.strip()]
        for test in tests:
            for *names, claim in (part.split() or [""] for part in test.split(",")):
                if not names or claim not in CLAIMS:
                    wrong.append(f"{where}: “{test.strip()}” must be ids of records and one of {', '.join(CLAIMS)}")
                wrong += [f"{where}: {what}" for name in names if (what := _unshown(name, claim, known))]
    return wrong + _breaking(page)


def _breaking(page: str) -> list[str]:
    """Comments that begin a line inside a paragraph, which ends the paragraph in Markdown."""
    lines = [*_prose(page), ""]
    return [
        f"line {number}: a comment at the beginning of a line ends the paragraph; put it behind the sentence"
        for number, (before, line, after) in enumerate(zip(["", *lines], lines, lines[1:], strict=False), 1)
        if line.lstrip().startswith("<!--") and before.strip() and not before.startswith("#")
        if "-->" not in line or line.partition("-->")[2].strip() or (after.strip() and not _STARTS.match(after))
    ]


def _unshown(name: str, claim: str, known: Mapping[str, Sequence[Mapping[str, Any]]]) -> str | None:
    """What is wrong with the claim that a sentence makes; None if nothing is."""
    if claim not in CLAIMS:
        return None
    if name not in known:
        return f"there is no record {name}"
    difference = next((record for record in known[name] if record["claim"] != "similar"), None)
    if claim == "undecided":
        if difference is None or holds(difference):
            return f"{name} is not undecided: {_facts(difference)}"
        return None
    record = next((record for record in known[name] if record["claim"] == claim), None)
    if record is None:
        return f"{name} is not {claim}: {_facts(difference)}"
    return None if holds(record) else f"{name} is not shown to be {claim}: {_facts(record)}"


def _facts(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "nothing of the kind was tested"
    bounds = "" if record["low"] is None else f" [{record['low']:.3g}, {record['high']:.3g}]"
    margin = f", margin {record['margin']:g}" if "margin" in record else ""
    return (
        f"{record['claim']}, {record['estimate']:.3g}{bounds}{margin}, adjusted p {record['p_adjusted']:.2g} "
        f"where below {LEVEL} is asked for"
    )


def unmeasured(page: str, results: Iterable[object]) -> list[str]:
    """The numbers with ± or an interval on a page, code left out, that are nowhere in the results, to their rounding.

    Args:
        results: contents of JSON files.

    >>> unmeasured("| LSTM | 1.23 ± 0.10 | 4.00 [3.9, 4.1] |", [{"test_error_mean": 1.2345, "test_error_std": 0.1}])
    ['line 1: 4.00 [3.9, 4.1] is nowhere in the results']
    """
    spreads: set[tuple[float, ...]] = set()
    intervals: set[tuple[float, ...]] = set()
    for value in results:
        for facts in _mappings(value):
            spreads.update(_spreads(facts))
            intervals.update(_intervals(facts))
    wrong = []
    fenced = False
    for number, line in enumerate(page.split("\n"), 1):
        fenced ^= bool(re.match(r"\s*(```|~~~)", line))
        if fenced:
            continue
        for pattern, known in ((_SPREAD, spreads), (_INTERVAL, intervals)):
            wrong += [
                f"line {number}: {found[0]} is nowhere in the results"
                for found in pattern.finditer(line.replace("*", ""))
                if not any(_rounds_to(found.groups(), values) for values in known)
            ]
    return wrong


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """All objects in a value, at any depth."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mappings(inner)


def _spreads(facts: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Means with standard deviations: those that are there, and those of what the seeds have."""
    for name, mean in facts.items():
        deviation = facts.get(name.removesuffix("_mean") + "_std") if name.endswith("_mean") else None
        if deviation is not None:
            yield mean, deviation
            if "error" in name:
                yield 100 - mean, deviation
    seeds = facts.get("seeds")
    if isinstance(seeds, list) and len(seeds) > 1 and all(isinstance(seed, dict) for seed in seeds):
        for name in seeds[0]:
            values = [seed.get(name) for seed in seeds]
            if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
                yield descriptive.mean(values), descriptive.stdev(values)


def _intervals(facts: Mapping[str, Any]) -> Iterator[tuple[float, float, float]]:
    """Means with their intervals, errors as accuracies too, and what tests estimated."""
    for name, mean in facts.items():
        stem = name.removesuffix("_mean")
        bounds = facts.get(f"{stem}_interval", facts.get("interval") if stem == "test_error" else None)
        if stem != name and bounds:
            yield mean, bounds[0], bounds[1]
            if "error" in name:
                yield 100 - mean, 100 - bounds[1], 100 - bounds[0]
    if facts.get("low") is not None and {"estimate", "high"} <= facts.keys():
        yield facts["estimate"], facts["low"], facts["high"]
        yield -facts["estimate"], -facts["high"], -facts["low"]


def _rounds_to(shown: Sequence[str], values: Sequence[float]) -> bool:
    """Whether each value is what is shown, to as many places as are shown."""
    for text, value in zip(shown, values, strict=True):
        places = len(text.partition(".")[2])
        if abs(float(text.replace(",", "")) - value) > 0.5 * 10**-places + 1e-9:
            return False
    return True
