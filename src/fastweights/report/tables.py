"""Tables of results beside the paper's numbers, for terminals and for pages.

An entry is what `results/table1.json` is a list of: a cell of a table with the results of its seeds. One that is
reported has a `source`: it was trained here, or published.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .style import colour_of, name_of

Entry = Mapping[str, Any]
HEADER = ("model", "units", "ours", "best val.", "paper", "seeds", "weights", "source")
BEST = "Best val.: the seed with the lowest validation error."
MEANS = "Means over seeds, with their 95 % bootstrap intervals."
LEGEND = f"{MEANS} {BEST}"


def rows(entries: Sequence[Entry], *, usual: str = "tuned") -> list[tuple[str, ...]]:
    """One row of text per entry; errors in percent. A recipe that is not the usual one is named."""
    return [
        (
            name_of(entry["model"]) + (f" ({entry['recipe']})" if entry["recipe"] != usual else ""),
            f"{entry['units']}",
            estimate(entry),
            f"{entry['test_error_best_validation']:.2f}",
            "" if entry["paper"] is None else f"{entry['paper']:g}",
            seeds_of(entry),
            f"{entry['parameters']:,}",
            entry.get("source", ""),
        )
        for entry in entries
    ]


def spread(mean: float, deviation: float, count: int) -> str:
    """A mean, with its standard deviation if it is of several.

    >>> spread(1.234, 0.5, 3), spread(1.234, 0.0, 1)
    ('1.23 ± 0.50', '1.23')
    """
    return f"{mean:.2f} ± {deviation:.2f}" if count > 1 else f"{mean:.2f}"


def estimate(entry: Entry, *, accuracy: bool = False) -> str:
    """The mean test error of an entry, or its accuracy, with the interval of the mean, if it has one.

    >>> estimate({"test_error_mean": 1.234, "interval": [1.1, 1.4]}), estimate({"test_error_mean": 1.0})
    ('1.23 [1.10, 1.40]', '1.00')
    >>> estimate({"test_error_mean": 10.0, "interval": [9.0, 12.0]}, accuracy=True)
    '90.00 [88.00, 91.00]'
    """
    mean, (low, high) = entry["test_error_mean"], entry.get("interval") or (None, None)
    if accuracy:
        mean, low, high = 100 - mean, None if high is None else 100 - high, None if low is None else 100 - low
    return with_interval(mean, low, high)


def with_interval(mean: float, low: float | None, high: float | None) -> str:
    """A mean with its interval, with fewer decimals the wider it is.

    >>> with_interval(1.4321, 0.9123, 2.0456), with_interval(40.3, 31.02, 46.07), with_interval(0.018, 0.004, 0.041)
    ('1.43 [0.91, 2.05]', '40.3 [31.0, 46.1]', '0.018 [0.004, 0.041]')
    >>> with_interval(1.4321, None, None)
    '1.43'
    """
    if low is None or high is None:
        return f"{mean:.2f}"
    width = high - low
    decimals = 1 if width >= 10 else 3 if 0 < width < 0.1 else 2
    # Adding 0 makes a zero of a -0 that is left after rounding.
    shown, below, above = (f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (mean, low, high))
    return f"{shown} [{below}, {above}]"


def seeds_of(entry: Entry) -> str:
    """Which seeds an entry has.

    >>> seeds_of({"seeds": [{"seed": 0}, {"seed": 1}, {"seed": 2}]}), seeds_of({"seeds": [{"seed": 3}, {"seed": 7}]})
    ('0-2', '3, 7')
    """
    seeds = sorted(seed["seed"] for seed in entry["seeds"])
    if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds))


def without(names: Sequence[str], header: Sequence[str], body: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """A table without some of its columns.

    >>> without(["b"], ("a", "b", "c"), [("1", "2", "3")])
    (('a', 'c'), [('1', '3')])
    """
    kept = [place for place, name in enumerate(header) if name not in names]
    return tuple(header[place] for place in kept), [tuple(row[place] for place in kept) for row in body]


def words(body: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns have words, to stand on the left; the first does.

    >>> words([("LSTM", "1.2 ± 0.1", "trained here"), ("IRNN", "-0.7", "published")])
    [True, False, True]
    """
    columns = list(zip(*body, strict=True))
    return [
        not place or sum(cell[:1].isalpha() for cell in cells) > len(cells) / 2 for place, cells in enumerate(columns)
    ]


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    r"""As Markdown.

    >>> print(markdown(("a", "|b|"), [("1", "2")]))
    | a | \|b\| |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def terminal(title: str, header: Sequence[str], body: Sequence[Sequence[str]], caption: str = "") -> Table:
    """For a terminal; models have their colours."""
    table = Table(title=title or None, caption=caption or None, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for name, left in zip(header, words(body), strict=True):
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "what is changed")
    for row in body:
        table.add_row(*(Text(cell, style=colour_of(cell) or "") for cell in row))
    return table
