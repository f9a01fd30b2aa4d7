"""What trained nets do: `evaluate`, `ask`, `watch`; and `look`, at what they are shown."""

import sys
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from ..models.pretrained import NAMES, pretrained
from ..paper import agents, glimpses, retrieval
from ..report import tables, terminal
from ..training.runs import RunFolder


def evaluate(run: tyro.conf.Positional[Path], *, split: Literal["train", "validation", "test"] = "test") -> int:
    """Measure a trained net again; one of retrieval also by which pair was asked for.

    Args:
        run: its folder.
        split: the set to measure it on.
    """
    folder = RunFolder(run)
    if folder.config["settings"].get("task") == glimpses.TASK:
        measured = glimpses.evaluate(folder, split)
        print(f"{split}: error {measured.error:.3%}, log-likelihood {-measured.loss:.5f}")
        return 0
    found = retrieval.evaluate(folder, split)
    print(f"{split}: {found.strings} strings, error {found.error:.3%}, log-likelihood {-found.loss:.5f}")
    body = [(f"pair {place}", f"{error:.3%}") for place, error in enumerate(found.error_by_place, 1)]
    Console().print(tables.terminal("", ("asked for", "error"), body))
    return 0


def ask(run: tyro.conf.Positional[str], strings: tyro.conf.Positional[tuple[str, ...]]) -> int:
    """Ask a trained net for the digit behind a letter, and see what it paid attention to: `ask RUN c9k8j3f1??c`.

    Args:
        run: its folder, or the name of a net that comes with the package: retrieval-50.
        strings: pairs of a letter and a digit, ?? and one of the letters; - reads them from standard input, and prints
            no more than the answers.
    """
    net = pretrained(run) if run in NAMES else retrieval.load_net(RunFolder(run))
    if strings == ("-",):
        for answer in retrieval.ask(net, sys.stdin.read().split()):
            print(answer.digit)
        return 0
    if not strings:
        raise ValueError("strings must be at least one, as in c9k8j3f1??c")
    console = Console()
    for string, answer in zip(strings, retrieval.ask(net, strings), strict=True):
        console.print(terminal.answer(string, answer.digit, answer.chances.tolist(), answer.right))
        if answer.attention is not None:
            console.print(terminal.attention(string, answer.attention[-1].tolist()))
    return 0


def watch(run: tyro.conf.Positional[Path], *, episodes: int = 3, seed: int = 0, out: Path = Path("watch.gif")) -> int:
    """Watch a trained agent play Catch, in the terminal and as a GIF with what its memory attends to.

    Args:
        run: its folder.
        episodes: how many.
        seed: of the games.
        out: the GIF.
    """
    from ..report import figures  # which is slow to load

    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    played = [agents.play(RunFolder(run), seed + number) for number in range(episodes)]
    for episode in played:
        Console().print(terminal.game(episode.screens, episode.seen, episode.reward))
    print(f"written: {figures.film(played, out)}")
    return 0


def look_glimpses(
    *,
    data: glimpses.Data = "mnist",
    order: Literal["return", "once", "three levels"] = "return",
    image: int = 0,
    out: Path = Path("glimpses.png"),
) -> int:
    """Draw where the glimpses look, in which order and what they see, on an image of a test set.

    Args:
        data: the images.
        order: 24 glimpses; 20, not coming back to the quadrants; 26, all of the image first and last.
        image: which one.
        out: the picture; an SVG is written beside it.
    """
    written = glimpses.draw(data, order, image, out)
    print(f"written: {', '.join(map(str, written))}")
    return 0
