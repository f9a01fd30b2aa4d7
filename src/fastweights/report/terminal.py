"""Answers and attention, drawn with characters."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def answer(string: str, digit: int, probabilities: Sequence[float], right: int) -> Text:
    """The answer, whether it is right, and the likeliest others."""
    likely = sorted(range(len(probabilities)), key=lambda other: -probabilities[other])[:3]
    text = Text(f"{string} → {digit}", style="bold")
    text.append("  right" if digit == right else f"  wrong: it is {right}", style="green" if digit == right else "red")
    return text.append("   " + "  ".join(f"{other}: {probabilities[other]:.1%}" for other in likely), style="not bold")


def attention(string: str, paid: Sequence[Sequence[float]]) -> Table:
    """What the last character paid to those before it, at every inner step: paid (S, T)."""
    before = string[:-1]
    table = Table("paid to", *[f"inner step {step}" for step in range(1, len(paid) + 1)], box=None)
    for place, character in enumerate(before):
        bars = []
        for step in paid:
            most = max(map(abs, step)) or 1.0
            bars.append("█" * round(24 * abs(step[place]) / most) or "·")
        table.add_row(character, *bars)
    return table
