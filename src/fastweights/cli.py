"""The verbs of the command line."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

from .models.pretrained import NAMES, pretrained
from .paper import catch, glimpses, retrieval, table1, table2, table3
from .paper import claims as paper_claims
from .paper.cells import parse
from .paper.run import Config, train
from .report import tables, terminal
from .tasks import retrieval as task
from .tasks.faces import facekit, fer, multipie, rendered, sets
from .training.files import BadFileError, write_json
from .training.progress import Board, Progress, duration
from .training.runs import RunError, RunFolder

RUNS = Path("runs")
RESULTS = Path("results")
QUICK_EPOCHS = 15


def run(words: Sequence[str]) -> int:
    """Do what the words of a command line say; the exit code."""
    name = next((verb for verb in VERBS if list(words[: len(verb.split())]) == verb.split()), None)
    if name is None:
        return _help(words)
    rest, prog = list(words[len(name.split()) :]), f"fastweights {name}"
    try:
        return int(tyro.cli(VERBS[name], args=rest, prog=prog, config=(tyro.conf.OmitArgPrefixes,)))
    except KeyboardInterrupt:
        print("\nfastweights: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except (BadFileError, RunError, ValueError, OSError) as error:
        print(f"fastweights: {error}", file=sys.stderr)
        return 1


def _help(words: Sequence[str]) -> int:
    asked = bool(words) and words[0] in ("-h", "--help", "help")
    out = sys.stdout if asked else sys.stderr
    if words and not asked:
        print(f"fastweights: no such command: {shlex.join(words[:2])}\n", file=out)
    print("usage: fastweights COMMAND …\n\nRecurrent nets with fast weights: the paper, reproduced.\n", file=out)
    for verb, function in VERBS.items():
        print(f"  {verb:<18} {(function.__doc__ or '').splitlines()[0]}", file=out)
    print("\nfastweights COMMAND --help says more.", file=out)
    return 0 if asked else 2


def _command() -> str:
    return shlex.join(["fastweights", *sys.argv[1:]])


@dataclass(frozen=True)
class Training:
    """Where and how a single run is trained."""

    out: Path | None = None
    """The run folder; by default one in runs/ named after what is trained."""
    curves: bool = False
    """Measure the test set after every epoch as well, to be plotted (it decides nothing)."""
    checkpoint_seconds: float = 30.0
    """How much work a kill may lose."""
    threads: int = 1
    """Of this process."""


@dataclass(frozen=True)
class Work:
    """Where many runs go, and what comes of them."""

    runs: Path = RUNS
    """Where the run folders go."""
    results: Path = RESULTS
    """Where tables, figures and pages go; those of a quick look stay with its runs."""
    workers: int = 2
    """Runs at a time, one thread each."""


Works = Annotated[Work, tyro.conf.arg(name="")]
HERE = Work()


def train_retrieval(
    config: Annotated[retrieval.Retrieval, tyro.conf.arg(name="")] = retrieval.Retrieval(),  # noqa: B008
    training: Annotated[Training, tyro.conf.arg(name="")] = Training(),  # noqa: B008
) -> int:
    """Train one net on associative retrieval; the same command goes on where it was stopped."""
    floor = f" (without any retrieval {float(task.floor_error(config.pairs)):.2%})"
    return _train(config, training, f"{config.core}-{config.units}", floor)


def train_glimpses(
    config: Annotated[glimpses.Glimpses, tyro.conf.arg(name="")] = glimpses.Glimpses(),  # noqa: B008
    training: Annotated[Training, tyro.conf.arg(name="")] = Training(),  # noqa: B008
) -> int:
    """Train one net on images by glimpses; the same command goes on where it was stopped."""
    return _train(config, training, f"{config.model}-{config.units}")


def _train(config: Config, training: Training, name: str, more: str = "") -> int:
    torch.set_num_threads(training.threads)
    folder = training.out or RUNS / config.settings()["task"] / name / f"seed-{config.seed}"
    with Board(1) as board:
        result = train(
            config,
            folder,
            _command(),
            curves=training.curves,
            checkpoint_seconds=training.checkpoint_seconds,
            tell=lambda progress: board.update(str(folder), progress),
        )
    assert result is not None
    print(f"{folder}: {result['stopped']} after {result['epochs']} epochs, the best was {result['best_epoch']}")
    if "test_error" in result:
        print(f"validation error {result['validation_error']:.3%}, test error {result['test_error']:.3%}{more}")
    return 0 if result["stopped"] != "diverged" else 1


def search_table1(*, cells: tuple[str, ...] = (), work: Works = HERE) -> int:
    """Find the settings of Table 1's cells on the validation set: the same grid for every cell.

    Args:
        cells: some of them, as in `fast-weights/20 lstm/50`; by default all.
    """
    failures = table1.search(work.runs).run(parse(cells, table1.CELLS), work.workers, _command())
    found = table1.chosen(work.runs)
    for cell, what in found.items():
        print(f"{cell}: {what['chosen'] or 'not yet chosen'}")
    write_json(work.results / "table1-search.json", {"command": _command(), "cells": found})
    return _say_failures(failures)


def reproduce_table1(
    *,
    cells: tuple[str, ...] = (),
    recipe: Literal["tuned", "literal"] = "tuned",
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 1, associative retrieval, and show it beside the paper's numbers.

    Args:
        cells: some of them, as in `fast-weights/20 lstm/50`; by default all.
        recipe: our settings, or the paper's words to the letter.
        seeds: runs per cell; by default 5 for 20 units and 3 for more.
        quick: 15 epochs and one seed: a look, not a result.
    """
    chosen = parse(cells, table1.CELLS)
    epochs, seeds = (QUICK_EPOCHS, seeds or 1) if quick else (None, seeds)
    failures = table1.reproduce(chosen, work.runs, work.workers, _command(), recipe=recipe, seeds=seeds, epochs=epochs)
    table1.publish(work.runs, work.runs / table1.experiment(recipe, epochs) if quick else work.results, epochs)
    return _say_failures(failures)


def reproduce_claims(*, claims: tuple[str, ...] = (), work: Works = HERE) -> int:
    """Try what the paper's text says about associative retrieval: η and λ, inner steps, ways of settling.

    Args:
        claims: some of robust, "inner steps", settling; by default all.
    """
    failures = paper_claims.reproduce(claims, work.runs, work.workers, _command())
    paper_claims.publish(work.runs, work.results)
    return _say_failures(failures)


def search_table2(
    *,
    cells: tuple[str, ...] = (),
    recipes: tuple[Literal["plain", "shifted"], ...] = ("plain", "shifted"),
    work: Works = HERE,
) -> int:
    """Find the learning rates of Table 2's cells on the validation set: the same grid for every cell.

    Args:
        cells: some of them, as in `fast-weights/50 lstm/100`; by default all.
        recipes: images as they are, or shifted.
    """
    failures: dict[str, str] = {}
    for recipe in recipes:
        failures |= table2.search(work.runs, recipe).run(parse(cells, table2.CELLS), work.workers, _command())
    found = table2.chosen(work.runs)
    for images, chosen in found.items():
        for cell, what in chosen.items():
            print(f"{cell}, {images}: learning rate {what['chosen']:g}")
    write_json(work.results / "table2-search.json", {"command": _command(), "recipes": found})
    return _say_failures(failures)


def reproduce_table2(
    *,
    cells: tuple[str, ...] = (),
    recipes: tuple[Literal["plain", "shifted"], ...] = ("plain", "shifted"),
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 2, MNIST by glimpses, and show it beside the paper's numbers.

    Args:
        cells: some of them, as in `fast-weights/50 lstm/100`; by default all, or those with 50 units for a quick look.
        recipes: training images as they are, or shifted by up to 2 pixels; a quick look takes the first.
        seeds: runs per cell; by default 3.
        quick: few images, 4 epochs and one seed: a look, not a result.
    """
    chosen = parse(cells or (table2.QUICK_CELLS if quick else ()), table2.CELLS)
    some = recipes[:1] if quick else recipes
    number = seeds if seeds is not None else 1 if quick else table2.SEEDS
    failures = table2.reproduce(chosen, some, work.runs, work.workers, _command(), seeds=number, quick=quick)
    table2.publish(work.runs, work.runs / table2.experiment(some[0], quick) if quick else work.results, quick)
    return _say_failures(failures)


def reproduce_ablations(*, work: Works = HERE) -> int:
    """Train Table 2's fast weights with one part changed at a time: what each is worth."""
    failures = table2.reproduce_ablations(work.runs, work.workers, _command())
    table2.publish(work.runs, work.results)
    return _say_failures(failures)


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


def faces_render(
    which: Annotated[rendered.Set, tyro.conf.arg(name="")] = rendered.Set(),  # noqa: B008
    *,
    quick: bool = False,
    workers: int = 2,
) -> int:
    """Render PIE-3D, faces that show expressions; the same command goes on where it was stopped.

    Args:
        quick: 20 people, for a look.
        workers: processes.
    """
    print(f"written: {_render(rendered.QUICK if quick else which, workers)}")
    return 0


def _render(which: rendered.Set, workers: int) -> Path:
    with _counting("rendering") as tell:
        return rendered.render(which, workers, tell)


@contextmanager
def _counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of how many things are done."""
    with Board(1) as board:
        started, first = time.monotonic(), None

        def tell(done: int, of: int) -> None:
            nonlocal first
            first = done if first is None else first
            speed = (done - first) / max(time.monotonic() - started, 1e-9)
            board.update(what, Progress(done, of, done, f"{done} of {of}", speed))

        yield tell


def faces_import(
    kind: tyro.conf.Positional[Literal["facekit", "multipie", "fer"]],
    path: tyro.conf.Positional[Path],
    *,
    points: Path | None = None,
    votes: Path | None = None,
) -> int:
    """Read the original files of the 3D face model (facekit), of Multi-PIE, or of FER2013, and keep what is needed.

    Args:
        kind: what it is.
        path: FaceXModel of ICT-FaceKit; the folder of Multi-PIE that has data; fer2013.csv, or a folder of images.
        points: of Multi-PIE: a folder with places of eyes and noses; without it faces are cropped, not aligned.
        votes: of FER: fer2013new.csv, the labels of FER+.
    """
    with _counting("reading") as tell:
        if kind == "facekit":
            written = facekit.convert(path, tell=tell)
        else:
            read = multipie.read(path, points, tell) if kind == "multipie" else fer.read(path, votes, tell)
            written = sets.folder_of("fer+" if votes else kind)
            sets.save(written, *read)
    print(f"written: {written}")
    if kind == "facekit" and facekit.load(written).checksum() != facekit.CHECKSUM:
        print("fastweights: it is not quite the model of the published results: newer, or rounded otherwise")
    return 0


def faces_look(
    data: tyro.conf.Positional[Literal["rendered", "rendered-20", "multipie", "fer", "fer+"]] = "rendered",
    *,
    part: Literal["train", "validation", "test"] = "test",
    out: Path = Path("faces.png"),
) -> int:
    """Draw a contact sheet of faces, some of every expression.

    Args:
        data: which faces.
        part: of which set.
        out: the picture; an SVG is written beside it.
    """
    from .report import figures  # which is slow to load

    faces = sets.load(sets.folder_of(data), part)
    written = figures.save(table3.contact_sheet(faces), out)
    count = len(faces.labels)
    print(f"{data}, {part}: {count:,} faces of {len(faces.identities.unique())} people")
    for label, name in enumerate(faces.facts["classes"]):
        print(f"  {name:<10} {int((faces.labels == label).sum()) / count:.1%}")
    print(f"written: {', '.join(map(str, written))}")
    return 0


def search_table3(
    *,
    cells: tuple[str, ...] = (),
    data: Literal["rendered", "multipie", "fer", "fer+"] = "rendered",
    work: Works = HERE,
) -> int:
    """Find the learning rates of Table 3's cells on the validation set: the same grid for every cell.

    Args:
        cells: some of them, as in `fast-weights/200`; by default all.
        data: the faces; rendered ones are rendered if need be.
    """
    if data == "rendered":
        _render(rendered.Set(), work.workers)
    failures = table3.search(work.runs, data).run(parse(cells, table3.CELLS), work.workers, _command())
    found = table3.chosen(work.runs, data)
    for cell, what in found.items():
        print(f"{cell}: learning rate {what['chosen']:g}")
    write_json(work.results / "table3-search.json", {"command": _command(), "data": data, "cells": found})
    return _say_failures(failures)


def reproduce_table3(
    *,
    cells: tuple[str, ...] = (),
    data: Literal["rendered", "multipie", "fer", "fer+"] = "rendered",
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 3, facial expressions by glimpses, and show it beside the paper's numbers.

    Args:
        cells: some of them, as in `fast-weights/200`; by default all.
        data: the faces; rendered ones are rendered if need be, others are to be imported before.
        seeds: runs per cell; by default 3.
        quick: 20 rendered people, 8 epochs and one seed: a look, not a result.
    """
    which: glimpses.Data = table3.QUICK_DATA if quick else data
    if quick or data == "rendered":
        _render(rendered.QUICK if quick else rendered.Set(), work.workers)
    number = seeds if seeds is not None else 1 if quick else table3.SEEDS
    chosen = parse(cells, table3.CELLS)
    failures = table3.reproduce(chosen, which, work.runs, work.workers, _command(), seeds=number, quick=quick)
    if quick:
        table3.publish(work.runs, work.runs / table3.experiment(which), [which])
    else:
        table3.publish(work.runs, work.results)
    return _say_failures(failures)


def train_catch(
    config: Annotated[catch.Catch, tyro.conf.arg(name="")] = catch.Catch(),  # noqa: B008
    *,
    out: Path | None = None,
) -> int:
    """Train one agent to play Catch by A3C; the same command goes on where it was stopped.

    Args:
        out: the run folder; by default one in runs/ named after game, core and seed.
    """
    torch.set_num_threads(1)
    name = catch.name_of((config.size, config.visible), config.core)
    folder = out or RUNS / "catch-single" / name / f"seed-{config.seed}"
    with Board(1) as board:
        result = catch.train(config, folder, _command(), lambda progress: board.update(str(folder), progress))
    print(f"{folder}: {result['frames']:,} frames in {duration(result['seconds'])}, {catch.describe(result)}")
    if result["stopped"] == "diverged":
        print("fastweights: a gradient was not a number: try a lower lr", file=sys.stderr)
        return 1
    return 0


def search_catch(
    *,
    trials: int = catch.TRIALS,
    cores: tuple[Literal["irnn", "lstm", "fast-weights"], ...] = ("irnn", "lstm", "fast-weights"),
    games: tuple[Literal["16,3", "24,5"], ...] = ("16,3", "24,5"),
    work: Works = HERE,
) -> int:
    """Find the settings of Catch's agents by random search: the same number of trials for every core.

    Args:
        trials: how many for each core and game.
        cores: some of them.
        games: size and visible frames.
    """
    variants = [_variant(game) for game in games]
    failures = catch.search(variants, cores, trials, work.runs, work.workers, _command())
    found = {
        catch.name_of(variant, core): catch.searched(variant, core, work.runs)
        for variant in catch.VARIANTS
        for core in catch.CORES
    }
    for name, tried in found.items():
        if tried:
            print(f"{name}: reward {tried[0]['final_reward']:.2f} with {tried[0]['setting']}")
    write_json(work.results / "catch-search.json", {"command": _command(), "trials": found})
    return _say_failures(failures)


def reproduce_catch(
    *,
    cores: tuple[Literal["irnn", "lstm", "fast-weights"], ...] = ("irnn", "lstm", "fast-weights"),
    games: tuple[Literal["16,3", "24,5"], ...] = ("16,3", "24,5"),
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train agents with three kinds of memory to play Catch, and show how fast each learns.

    Args:
        cores: some of them.
        games: size and visible frames; a quick look takes the first.
        seeds: runs per core and game; by default 5.
        quick: 400,000 frames and one seed: a look, not a result.
    """
    variants = [_variant(game) for game in (games[:1] if quick else games)]
    number = seeds if seeds is not None else 1 if quick else catch.SEEDS
    failures = catch.reproduce(variants, cores, work.runs, work.workers, _command(), seeds=number, quick=quick)
    catch.publish(work.runs, work.runs / catch.experiment(quick) if quick else work.results, quick)
    return _say_failures(failures)


def _variant(game: str) -> tuple[int, int]:
    size, visible = map(int, game.split(","))
    return size, visible


def watch(run: tyro.conf.Positional[Path], *, episodes: int = 3, seed: int = 0, out: Path = Path("watch.gif")) -> int:
    """Watch a trained agent play Catch, in the terminal and as a GIF with what its memory attends to.

    Args:
        run: its folder.
        episodes: how many.
        seed: of the games.
        out: the GIF.
    """
    from .report import figures  # which is slow to load

    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    played = [catch.play(RunFolder(run), seed + number) for number in range(episodes)]
    for episode in played:
        Console().print(terminal.game(episode.screens, episode.seen, episode.reward))
    print(f"written: {figures.film(played, out)}")
    return 0


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


def report(*, runs: Path = RUNS, results: Path = RESULTS) -> int:
    """Write tables, figures and a page from what was trained: Markdown, HTML, PNG and SVG.

    Args:
        runs: where the run folders are.
        results: where to write.
    """
    published = [paper.publish(runs, results) for paper in (table1, paper_claims, table2, table3, catch)]
    return 0 if any(published) else 1


def _say_failures(failures: dict[str, str]) -> int:
    for name, why in failures.items():
        print(f"fastweights: {name} failed: {why}", file=sys.stderr)
    if failures:
        print("fastweights: the same command runs what is missing", file=sys.stderr)
    return 1 if failures else 0


VERBS: dict[str, Callable[..., int]] = {
    "train retrieval": train_retrieval,
    "train glimpses": train_glimpses,
    "train catch": train_catch,
    "search table1": search_table1,
    "search table2": search_table2,
    "search table3": search_table3,
    "search catch": search_catch,
    "reproduce table1": reproduce_table1,
    "reproduce claims": reproduce_claims,
    "reproduce table2": reproduce_table2,
    "reproduce ablations": reproduce_ablations,
    "reproduce table3": reproduce_table3,
    "reproduce catch": reproduce_catch,
    "faces render": faces_render,
    "faces import": faces_import,
    "faces look": faces_look,
    "look glimpses": look_glimpses,
    "watch": watch,
    "evaluate": evaluate,
    "ask": ask,
    "report": report,
}
