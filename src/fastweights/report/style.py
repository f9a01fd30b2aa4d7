"""One name and one colour for each model, in every figure, table and page.

The colours are Okabe and Ito's, which colour-blind readers tell apart, on light and on dark grounds.
"""

from typing import NamedTuple


class Look(NamedTuple):
    """How a model, or a group of runs, is shown."""

    name: str
    colour: str
    line: str = "-"


MODELS = {
    "fast-weights": Look("fast weights", "#d55e00"),
    "lstm": Look("LSTM", "#0072b2"),
    "a-lstm": Look("A-LSTM", "#cc79a7"),
    "irnn": Look("IRNN", "#009e73"),
    "convnet": Look("ConvNet", "#e69f00"),
    "ln-rnn": Look("LN-RNN", "#56b4e9"),
    "linear": Look("linear", "#808080"),
}
OTHER = "#808080"
QUICK = "Quick look: not a result"
INK = "#1f2328"  # text and axes of figures: in SVG files the colour of the text around them
WIDTH = 6.4  # of figures, in inches


def name_of(model: str) -> str:
    """What a model is called.

    >>> name_of("fast-weights"), name_of("GRU")
    ('fast weights', 'GRU')
    """
    return MODELS[model].name if model in MODELS else model


def look_of(model: str) -> Look:
    """How a model is shown; one that has no look of its own is grey."""
    return MODELS.get(model, Look(model, OTHER))


def colour_of(name: str) -> str | None:
    """The colour of the model that a table's entry begins with the name of; None: of none.

    >>> colour_of("fast weights (literal)"), colour_of("2 inner steps")
    ('#d55e00', None)
    """
    found = (
        look for look in MODELS.values() if name == look.name or name.startswith((f"{look.name} ", f"{look.name},"))
    )
    return next((look.colour for look in found), None)


def shades(colour: str, count: int) -> list[str]:
    """So many shades of a colour, from the colour itself to a lighter one.

    >>> shades("#000000", 2)
    ['#000000', '#999999']
    """
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    found = []
    for number in range(count):
        light = 0.6 * number / max(1, count - 1)
        found.append("#" + "".join(f"{round(part + (255 - part) * light):02x}" for part in parts))
    return found
