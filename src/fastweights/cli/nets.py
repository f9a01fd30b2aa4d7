"""What trained nets do: `evaluate`, `ask`, `watch`; and `look`, at what they are shown."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from ..paper.catch import run as agents
from ..paper.glimpses import run as glimpses
from ..paper.retrieval import run as retrieval
from ..report import games, tables, terminal
from ..training import a3c, devices
from .options import RUNS, Run, check_picture, run_folder

Strings = tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="STRING", help_behavior_hint="")]]


def evaluate(
    run: tyro.conf.Positional[Run],
    *,
    split: Literal["train", "validation", "test"] = "test",
    device: devices.Name = "cpu",
) -> int:
    """Measure a trained net again: retrieval also by which pair was asked for, an agent on fresh games.

    Args:
        run: A run folder, or a net that comes with the package, such as retrieval-50. `watch` shows an agent play.
        split: The set to measure the net on; agents have none.
        device: Compute on the CPU, a GPU (cuda), a Mac's (mps), or auto: one of them if it is there.
    """
    devices.find(device)
    folder = run_folder(run)
    task = folder.config["settings"].get("task")
    if task == agents.TASK:
        game, net = agents.load_config(folder), agents.load_net(folder, device)
        for name, greedy in (("the most likely action", True), ("actions drawn by their probabilities", False)):
            found = a3c.score(game, net, greedy=greedy, seed=game.seed + a3c.EVALUATION_SEED)
            print(f"return of 1,000 episodes with {name}: {found:.3f}")
        print(f"to see it play: fastweights watch {run}")
        return 0
    if task == glimpses.TASK:
        measured = glimpses.evaluate(folder, split, device)
        print(f"{split}: error {measured.error:.3%}, log-likelihood {-measured.loss:.5f}")
        return 0
    of_set = retrieval.evaluate(folder, split, device)
    print(f"{split}: {of_set.strings} strings, error {of_set.error:.3%}, log-likelihood {-of_set.loss:.5f}")
    body = [(f"pair {place}", f"{error:.3%}") for place, error in enumerate(of_set.error_by_place, 1)]
    Console().print(tables.terminal("", ("asked for", "error"), body))
    return 0


def ask(run: tyro.conf.Positional[Run], strings: Strings, *, device: devices.Name = "cpu") -> int:
    """Ask a trained net for the digit behind a letter, and see what it paid attention to: `ask RUN c9k8j3f1??c`.

    Args:
        run: A run folder, or a net that comes with the package, such as retrieval-50.
        strings: Pairs of a letter and a digit, ?? and one of the letters; - reads such strings from standard input.
        device: Compute on the CPU, a GPU (cuda), a Mac's (mps), or auto: one of them if it is there.
    """
    devices.find(device)
    folder = run_folder(run)
    task = folder.config["settings"].get("task")
    if task != retrieval.TASK:
        verb = "watch" if task == agents.TASK else "evaluate"
        raise ValueError(f"RUN must be a net of retrieval; {run} is one of {task}: fastweights {verb} {run}")
    net = retrieval.load_net(folder, device)
    if strings == ("-",):
        for answer in retrieval.ask(net, sys.stdin.read().split()):
            print(answer.digit)
        return 0
    if not strings:
        raise ValueError("strings must be at least one, as in c9k8j3f1??c")
    console = Console()
    for string, answer in zip(strings, retrieval.ask(net, strings), strict=True):
        console.print(terminal.answer(string, answer.digit, answer.probabilities.tolist(), answer.right))
        if answer.attention is not None:
            console.print(terminal.attention(string, answer.attention[-1].tolist()))
    return 0


def watch(
    run: tyro.conf.Positional[Run],
    *,
    episodes: int = 3,
    seed: int = 0,
    out: Path = RUNS / "watch.gif",
    device: devices.Name = "cpu",
) -> int:
    """Watch a trained agent play Catch: moving in the terminal until a key is pressed, and as a GIF.

    Beside the screen: what the agent sees of it, and which earlier frames its memory attends to.

    Args:
        run: The run folder of an agent, or an agent that comes with the package. `evaluate` measures it.
        episodes: Games to play.
        seed: The seed of the games.
        out: Where the GIF goes.
        device: Compute on the CPU, a GPU (cuda), a Mac's (mps), or auto: one of them if it is there.
    """
    devices.find(device)
    check_picture(out, ".gif")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    folder = run_folder(run)
    task = folder.config["settings"].get("task")
    if task != agents.TASK:
        raise ValueError(f"RUN must be an agent that plays Catch; {run} is a net of {task}: fastweights evaluate {run}")
    played = [agents.play(folder, seed + number, device) for number in range(episodes)]
    games.watch(played)
    print(f"written: {games.film(played, out)}")
    return 0


def look_glimpses(
    *,
    data: glimpses.Data = "mnist",
    order: Literal["return", "once", "three levels"] = "return",
    image: int = 0,
    out: Path = RUNS / "glimpses.png",
) -> int:
    """Draw where the glimpses look, in which order and what they see, on an image of a test set.

    Args:
        data: The set of images to take one from.
        order: 24 glimpses; 20, which do not come back to the quadrants; 26, which see the whole image first and last.
        image: The number of the image in the test set.
        out: The picture, a .png or .svg; the other one is written beside it.
    """
    check_picture(out, ".png", ".svg")
    written = glimpses.draw(data, order, image, out)
    print(f"written: {', '.join(map(str, written))}")
    return 0
