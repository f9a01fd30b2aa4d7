"""A game of Catch as it was played: moving in a terminal, plain in a file, and as a GIF."""

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..base import interrupts
from .style import MODELS

BALL, PADDLE, ATTENTION = MODELS["irnn"].colour, MODELS["lstm"].colour, MODELS["fast-weights"].colour
BLACK, EMPTY = "#0d1117", "#30363d"  # what the agent is not shown, and pixels without anything
BAR = 10  # characters


class Game(NamedTuple):
    """One episode of T screens, of which the last was not acted on."""

    screens: Sequence[Any]  # what was there, size × size each
    seen: Sequence[Any]  # what the agent saw of it
    attention: Sequence[Sequence[float]] | None  # (T-1, T-1): what each move paid to each screen
    total: float  # the return


class Frame(NamedTuple):
    """One screen of a game."""

    title: str
    screen: Any
    seen: Any
    visible: bool
    attention: list[float] | None  # to each screen so far, the largest as 1
    last: bool


def frames(games: Sequence[Game]) -> Iterator[Frame]:
    """All frames of some games."""
    for number, game in enumerate(games, 1):
        for place, (screen, seen) in enumerate(zip(game.screens, game.seen, strict=True)):
            last = place == len(game.screens) - 1
            paid = None
            if game.attention is not None:
                row = game.attention[min(place, len(game.attention) - 1)][: place + 1]
                most = max(map(abs, row), default=0.0) or 1.0
                paid = [abs(each) / most for each in row]
            end = f": {'caught' if game.total > 0 else 'missed'}, {game.total:+.0f}" if last else ""
            title = f"game {number} of {len(games)}, frame {place + 1} of {len(game.screens)}{end}"
            yield Frame(title, screen, seen, any(map(any, seen)), paid, last)


def as_text(frame: Frame, width: int) -> Text:
    """A frame side by side: the screen, what the agent sees, and what its memory attends to.

    The ball is in row n in frame n, so that the bar beside a row is the attention to the frame that had the ball there.

    Args:
        width: of the terminal; pixels are two characters wide if there is room.
    """
    size = len(frame.screen)
    pixel = "  " if 4 * size + BAR + 4 <= width else " "
    across = len(pixel) * size
    text = Text(f"{frame.title}\n", style="bold")
    heads = ["screen", "agent sees" if frame.visible else "agent sees nothing"]
    text.append("  ".join(head[:across].ljust(across) for head in heads) + "  ", style="not bold")
    text.append("attends to\n" if frame.attention is not None else "\n", style=f"not bold {ATTENTION}")
    for row in range(size):
        for image, shown in ((frame.screen, True), (frame.seen, frame.visible)):
            for value in image[row]:
                colour = (PADDLE if row == size - 1 else BALL) if value else EMPTY if shown else BLACK
                text.append(pixel, style=f"on {colour}")
            text.append("  ")
        if frame.attention is not None and row < len(frame.attention):
            text.append("█" * max(1, round(BAR * frame.attention[row])), style=f"not bold {ATTENTION}")
        text.append("\n")
    return text


def as_plain(frame: Frame) -> str:
    """The same without colours: o the ball, = the paddle, # what the agent is not shown."""
    size, lines = len(frame.screen), [frame.title]
    for row in range(size):
        mark = "=" if row == size - 1 else "o"
        there = "".join(mark if value else "." for value in frame.screen[row])
        seen = "".join(mark if value else "." for value in frame.seen[row]) if frame.visible else "#" * size
        paid = ""
        if frame.attention is not None and row < len(frame.attention):
            paid = "*" * max(1, round(BAR * frame.attention[row]))
        lines.append(f"{there}  {seen}  {paid}".rstrip())
    return "\n".join(lines)


def watch(games: Sequence[Game], *, seconds: float = 0.25) -> None:
    """Show games as they were played: moving in a terminal until they end or a key is pressed, else frame by frame.

    Args:
        seconds: for each frame; the last of a game stays four times as long.
    """
    console = Console()
    if not (console.is_terminal and sys.stdin.isatty()):
        for frame in frames(games):
            print(f"{as_plain(frame)}\n")
        return
    with interrupts.deferred(), _keys() as pressed, Live(console=console, auto_refresh=False, transient=False) as live:
        for frame in frames(games):
            text = as_text(frame, console.width)
            live.update(text.append("any key ends it", style="not bold dim"), refresh=True)
            ended = pressed(seconds * (4 if frame.last else 1))
            interrupts.check()
            if ended:
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """Gives a function that waits for so many seconds, and says whether a key was pressed; Ctrl-C is one."""
    import termios

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    raw = termios.tcgetattr(file)
    raw[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(file, termios.TCSADRAIN, raw)

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        ready, _, _ = select.select([file], [], [], max(0.0, until - time.monotonic()))
        if ready:
            os.read(file, 1024)
        return bool(ready)

    try:
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def film(games: Sequence[Game], path: Path, *, per_second: int = 4) -> Path:
    """Games as a GIF: the screen, what the agent sees of it, and which earlier frames its memory attends to."""
    import numpy
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    size, attends = len(games[0].screens[0]), games[0].attention is not None
    widths = [1, 1, 0.7] if attends else [1, 1]
    figure = Figure(figsize=(9 if attends else 6.4, 4.1), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    images = [axis.imshow([[[0.0] * 3] * size] * size) for axis in axes[:2]]
    for axis, name in zip(axes, ("screen", "what the agent sees", "what it attends to"), strict=False):
        axis.set_title(name, fontsize=14)
        axis.set(xticks=[], yticks=[])
    nothing = axes[1].text(
        0.5, 0.5, "nothing", color="#8c959f", ha="center", va="center", fontsize=16, transform=axes[1].transAxes
    )
    bars: Any = None
    if attends:
        bars = axes[2].barh(range(size), [0.0] * size, color=ATTENTION)
        axes[2].set(xlim=(0, 1.05), ylim=(size - 0.5, -0.5), ylabel="frame (the ball's row)")
        axes[2].set_yticks(range(0, size, 3), [str(row + 1) for row in range(0, size, 3)])
        axes[2].set_aspect(1.05 / 0.7 / size, adjustable="box")
    pictures, durations = [], []
    for frame in frames(games):
        for image, what, shown in zip(images, (frame.screen, frame.seen), (True, frame.visible), strict=True):
            image.set_data(_coloured(what, shown))
        nothing.set_visible(not frame.visible)
        for row, bar in enumerate(bars or ()):
            bar.set_width(frame.attention[row] if frame.attention and row < len(frame.attention) else 0.0)
        figure.suptitle(frame.title, fontsize=14)
        figure.canvas.draw()
        figure.set_layout_engine("none")  # the first layout is that of all
        drawn = Image.fromarray(numpy.asarray(canvas.buffer_rgba())[..., :3].copy())  # type: ignore[no-untyped-call]
        pictures.append(drawn.quantize(64, dither=Image.Dither.NONE))
        durations.append(1000 if frame.last else round(1000 / per_second))
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = pictures
    first.save(temporary, format="GIF", save_all=True, append_images=others, duration=durations, loop=0)
    temporary.replace(path)
    return path


def _coloured(image: Any, shown: bool) -> list[list[tuple[float, ...]]]:
    """The pixels of a screen as colours."""
    from matplotlib.colors import to_rgb

    size = len(image)
    empty = to_rgb("#ffffff" if shown else BLACK)
    marks = [to_rgb(BALL)] * (size - 1) + [to_rgb(PADDLE)]
    return [[marks[row] if value else empty for value in image[row]] for row in range(size)]
