"""What a net answered and attended to, drawn with characters."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def answer(string: str, digit: int, chances: Sequence[float], right: int) -> Text:
    """The answer, whether it is right, and the likeliest others."""
    likely = sorted(range(len(chances)), key=lambda other: -chances[other])[:3]
    text = Text(f"{string} → {digit}", style="bold")
    text.append("  right" if digit == right else f"  wrong: it is {right}", style="green" if digit == right else "red")
    return text.append("   " + "  ".join(f"{other}: {chances[other]:.1%}" for other in likely), style="not bold")


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


def game(
    screens: Sequence[Sequence[Sequence[float]]], seen: Sequence[Sequence[Sequence[float]]], reward: float
) -> Text:
    """A game of Catch in one picture: where the ball was when it fell through each row, and the last row as it ended.

    Rows that the agent did not see the ball in are dim.
    """
    text = Text()
    for row, (there, visible) in enumerate(zip(screens, seen, strict=True)):
        last = row == len(screens) - 1
        line = "".join("=" if last and pixel else "o" if pixel else "." for pixel in there[row])
        text.append(f"{line}\n", style="" if any(map(any, visible)) else "dim")
    return text.append(f"{reward:+.0f}", style="green" if reward > 0 else "red")
