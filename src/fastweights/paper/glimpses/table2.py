"""Table 2: MNIST by glimpses, with four models of three sizes, trained on images as they are and augmented."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...report import pages, tables
from ...tasks import mnist
from ...training.supervised import Recipe
from ...training.workers import Workers
from ..cells import Cell, Planned, curves, entry, finished, train_all
from ..reports import Report, commands_of
from ..run import with_hyperparameters
from ..studies import FIRST_SEED, Study
from .run import Glimpses, load_net, retrieved

SIZES = (50, 100, 200)
PAPER = {  # test error, %
    "irnn": (12.95, 1.95, 1.42),
    "lstm": (12.0, 1.55, 1.10),
    "convnet": (1.81, 1.00, 0.9),
    "fast-weights": (7.21, 1.30, 0.85),
}
# The last is not in the paper: what is left of fast weights without the fast weights.
MODELS = (*PAPER, "ln-rnn")
CELLS = tuple(Cell(model, units) for units in SIZES for model in MODELS)
RECIPES = {"plain": 0, "augmented": 2}  # pixels: the largest random translation of training images
EPOCHS, SEEDS = 20, 5
CURVES = 100  # the units whose curves are shown

# The search, the same for every cell; the only rung is after a third of the epochs.
FOR_ALL = ("lr=3e-4..3e-2", "weight_decay=1e-3..1.0")
HYPERPARAMETERS = dict.fromkeys(MODELS, FOR_ALL) | {
    "irnn": (*FOR_ALL, "recurrent_init=0.3..1.2"),
    "fast-weights": (*FOR_ALL, "rate=0.01..1.0", "decay=0.8..0.99"),
}

# The selected hyperparameters, on the validation set, by recipe and cell.
TUNED: dict[str, dict[str, dict[str, float]]] = {
    "plain": {
        "irnn/50": {"lr": 1e-2},
        "lstm/50": {"lr": 1e-2},
        "convnet/50": {"lr": 1e-2},
        "fast-weights/50": {"lr": 1e-2, "rate": 0.05},
        "ln-rnn/50": {"lr": 1e-2},
        "irnn/100": {"lr": 3e-3},
        "lstm/100": {"lr": 1e-2},
        "convnet/100": {"lr": 1e-2},
        "fast-weights/100": {"lr": 1e-2, "rate": 0.05},
        "ln-rnn/100": {"lr": 1e-3},
        "irnn/200": {"lr": 3e-3},
        "lstm/200": {"lr": 1e-2},
        "convnet/200": {"lr": 3e-3},
        "fast-weights/200": {"lr": 3e-3, "rate": 0.05},
        "ln-rnn/200": {"lr": 1e-3},
    },
    "augmented": {
        "irnn/50": {"lr": 1e-2},
        "lstm/50": {"lr": 1e-2},
        "convnet/50": {"lr": 1e-2},
        "fast-weights/50": {"lr": 1e-2, "rate": 0.05},
        "ln-rnn/50": {"lr": 3e-3},
        "irnn/100": {"lr": 3e-3},
        "lstm/100": {"lr": 1e-2},
        "convnet/100": {"lr": 3e-3},
        "fast-weights/100": {"lr": 3e-3, "rate": 0.05},
        "ln-rnn/100": {"lr": 1e-3},
        "irnn/200": {"lr": 3e-3},
        "lstm/200": {"lr": 1e-2},
        "convnet/200": {"lr": 3e-3},
        "fast-weights/200": {"lr": 3e-3, "rate": 0.05},
        "ln-rnn/200": {"lr": 1e-3},
    },
}

QUICK = {"epochs": 4, "examples": 10_000}
QUICK_SETTINGS = {model: {"lr": 3e-3} for model in MODELS} | {"fast-weights": {"lr": 3e-3, "rate": 0.05}}
QUICK_CELLS = tuple(f"{model}/50" for model in PAPER)


def paper_error(cell: Cell) -> float | None:
    """The paper's test error, in percent."""
    return PAPER[cell.model][SIZES.index(cell.units)] if cell.model in PAPER else None


def config(cell: Cell, recipe: str, setting: Mapping[str, Any], seed: int, epochs: int | None = None) -> Glimpses:
    """The run of a cell with a setting; None: as many epochs as in the table."""
    run = Glimpses(
        model=cell.model,  # type: ignore[arg-type]
        units=cell.units,
        translation=RECIPES[recipe],
        training=Recipe(epochs=epochs or EPOCHS, schedule="warm-cosine"),
        seed=seed,
    )
    found: Glimpses = with_hyperparameters(run, setting)
    return found


def study(cell: Cell, recipe: str) -> Study:
    """The search for the hyperparameters of a cell."""
    run = config(cell, recipe, {}, FIRST_SEED)
    return Study(f"table2/{recipe}/{cell.folder}", run, HYPERPARAMETERS[cell.model], EPOCHS // 3 + 1)


def tuned(cell: Cell, recipe: str) -> dict[str, float]:
    """The selected hyperparameters."""
    if str(cell) not in TUNED[recipe]:
        raise ValueError(f"{cell} has not been tuned for {recipe!r} images yet: fastweights search table2")
    return TUNED[recipe][str(cell)]


def reproduce(
    cells: Sequence[Cell],
    recipes: Sequence[str],
    runs: Path,
    workers: Workers,
    command: str,
    *,
    seeds: int,
    quick: bool,
) -> dict[str, str]:
    """Train the cells, each with its seeds, into run folders that `report` reads; what failed.

    Args:
        quick: few epochs with few images, for a look; such runs have folders of their own.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    plan = []
    for recipe in recipes:
        for cell in cells:
            for seed in range(seeds):
                if quick:
                    run = config(cell, recipe, QUICK_SETTINGS[cell.model], seed, QUICK["epochs"])
                    run = dataclasses.replace(run, examples=QUICK["examples"])
                else:
                    run = config(cell, recipe, tuned(cell, recipe), seed)
                path = runs / experiment(recipe, quick) / cell.folder / f"seed-{seed}"
                plan.append(Planned(f"{cell} {recipe} seed {seed}", run, path, quick or cell.units == CURVES))
    return train_all(plan, workers, command)


def experiment(recipe: str, quick: bool = False) -> str:
    """The name of its folder of runs."""
    return f"table2-quick/{recipe}" if quick else f"table2/{recipe}"


def collect(runs: Path, quick: bool = False) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table2.json`."""
    return [
        entry(cell, recipe, paper_error(cell), done, study(cell, recipe).plan.trials, ("test_error",))
        for recipe in RECIPES
        for cell in CELLS
        if (done := finished(runs / experiment(recipe, quick) / cell.folder))
    ]


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figures of it; whether there was anything."""
    from ...report import figures  # which is slow to load

    found = collect(to.runs, to.quick)
    entries = to.entries("table2", found, _place)
    if not entries:
        return False
    title, folder = "Table 2: MNIST by glimpses", to.folder("table2")
    caption = f"Test error in %. {tables.LEGEND}"
    sections = []
    for recipe in RECIPES:
        some = [each for each in entries if each["recipe"] == recipe]
        if some:
            rows = tables.rows(some, usual=recipe)
            to.show(f"{title}, {recipe} images", tables.HEADER, rows, caption)
            heading = f"Test error, {recipe} images"
            sections.append(pages.Section(heading, caption, tables.HEADER, rows, commands=commands_of(some)))
    for recipe in RECIPES:
        units = 50 if to.quick else CURVES
        some = [each for each in entries if (each["recipe"], each["units"]) == (recipe, units)]
        groups = curves({each["model"]: each for each in to.drawn(some)}, "test_error")
        picture = folder / f"table2-{recipe}.png"
        if groups:
            figure = figures.curves(groups, "test error, %", scale=100)
            axes = figure.axes[0]
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            figures.save(figures.finish(figure), picture)
        if picture.exists():
            heading = f"Test error while training, {units} units, {recipe} images"
            sections.append(pages.Section(heading, figure=picture))
    best, picture = _example(found, to.runs, to.quick), folder / "table2-retrieved.png"
    if best is not None:
        run, images = finished(best)[0], mnist.split("test", count=6)[0]
        net = load_net(run)
        got = retrieved(net, images)
        assert net.schedule is not None
        figures.save(figures.retrieved(images.tolist(), net.schedule.glimpses, got.attention.tolist()), picture)
    if picture.exists():
        text = (
            "Each quadrant is stored before its details are looked at. Where the net comes back to a quadrant (rows), "
            "it reads its memory: how strongly each stored quadrant (columns) answers. The largest net of fast weights."
        )
        sections.append(pages.Section("What was retrieved from the memory", text, figure=picture))
    to.write("table2", title, sections, entries)
    return True


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    return list(RECIPES).index(entry["recipe"]), CELLS.index(Cell(entry["model"], entry["units"]))


def _example(entries: Sequence[dict[str, Any]], runs: Path, quick: bool) -> Path | None:
    """The runs of the largest net of fast weights."""
    sizes = [(found["units"], found["recipe"]) for found in entries if found["model"] == "fast-weights"]
    if not sizes:
        return None
    units, recipe = max(sizes)
    return runs / experiment(recipe, quick) / Cell("fast-weights", units).folder
