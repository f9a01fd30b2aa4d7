"""Tables of results beside the paper's numbers, for terminals and for pages.

An entry is what `results/table1.json` is a list of: a cell of a table with the results of its seeds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

Entry = Mapping[str, Any]
HEADER = ("model", "units", "ours", "chosen", "paper", "seeds", "weights", "s/epoch")
LEGEND = "Ours: mean ± standard deviation over seeds. Chosen: the seed that was best on the validation set."


def rows(entries: Sequence[Entry], *, usual: str = "tuned") -> list[tuple[str, ...]]:
    """One row of text per entry; errors in percent. A recipe that is not the usual one is named."""
    found: list[tuple[str, ...]] = []
    for entry in entries:
        seeds = entry["seeds"]
        per_epoch = sum(seed["seconds"] for seed in seeds) / max(1, sum(seed["epochs"] for seed in seeds))
        found.append(
            (
                f"{entry['model']}" + (f" ({entry['recipe']})" if entry["recipe"] != usual else ""),
                f"{entry['units']}",
                f"{entry['test_error_mean']:.2f} ± {entry['test_error_std']:.2f}",
                f"{entry['test_error_best_validation']:.2f}",
                "" if entry["paper"] is None else f"{entry['paper']:g}",
                f"{len(seeds)}",
                f"{entry['parameters']:,}",
                f"{per_epoch:.1f}",
            )
        )
    return found


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
    """For a terminal."""
    table = Table(title=title or None, caption=caption or None, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in body:
        table.add_row(*row)
    return table
