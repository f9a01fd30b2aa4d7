"""Table 1: associative retrieval with four cores of three sizes, and the search that found their settings."""

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ..models.cores import CORES
from ..report import pages, tables
from ..tasks.retrieval import floor_error, floor_loss
from ..training.files import write_json
from ..training.supervised import Recipe
from ..training.workers import Workers
from .cells import Cell, Planned, Search, curves, entry, finished, train_all, with_published, write_page
from .retrieval import Retrieval

SIZES = (20, 50, 100)
PAPER = {  # test error, %
    "irnn": (62.11, 60.23, 0.34),
    "lstm": (60.81, 1.85, 0.0),
    "a-lstm": (60.13, 1.62, 0.0),
    "fast-weights": (1.81, 0.0, 0.0),
}
RECIPES = ("tuned", "literal")
CURVES = ("updates", "validation_error", "test_loss")  # of the cells with 50 units
SEEDS = {20: 5, 50: 3, 100: 3}
EPOCHS = {20: 200, 50: 100, 100: 60}
PATIENCE = {20: 40, 50: 20, 100: 20}
LITERAL_PATIENCE = 40  # for all sizes: more of these runs are on the floor, and none is to be given up too early


CELLS = tuple(Cell(core, units) for units in SIZES for core in CORES)


def paper_error(cell: Cell) -> float:
    """The paper's test error, in percent."""
    return PAPER[cell.model][SIZES.index(cell.units)]


@dataclass(frozen=True)
class Setting:
    """What the search chooses."""

    lr: float
    input_range: float
    clip: float

    def __str__(self) -> str:
        return f"lr-{self.lr:g},range-{self.input_range:g},clip-{self.clip:g}"


# What `search` chose for each cell, on the validation set.
TUNED = {
    "fast-weights/20": Setting(lr=3e-4, input_range=0.1, clip=0.5),
    "fast-weights/50": Setting(lr=3e-4, input_range=0.3, clip=5.0),
    "fast-weights/100": Setting(lr=1e-3, input_range=0.3, clip=0.5),
    "lstm/20": Setting(lr=3e-3, input_range=0.3, clip=0.5),
    "lstm/50": Setting(lr=1e-3, input_range=0.3, clip=0.5),
    "lstm/100": Setting(lr=3e-3, input_range=0.3, clip=0.5),
    "a-lstm/20": Setting(lr=3e-3, input_range=0.3, clip=5.0),
    "a-lstm/50": Setting(lr=1e-3, input_range=1.0, clip=0.5),
    "a-lstm/100": Setting(lr=1e-3, input_range=1.0, clip=5.0),
    "irnn/20": Setting(lr=1e-3, input_range=1.0, clip=0.5),
    "irnn/50": Setting(lr=1e-3, input_range=0.1, clip=0.5),
    "irnn/100": Setting(lr=1e-3, input_range=0.3, clip=0.5),
}

# The search's grid, the same for every cell. Every setting is trained for RUNGS[0] epochs; the KEEP with the lowest
# validation loss go on to RUNGS[1] epochs, where the best is chosen.
GRID = tuple(Setting(*values) for values in itertools.product((3e-4, 1e-3, 3e-3), (0.1, 0.3, 1.0), (0.5, 5.0)))
RUNGS = (10, 30)
KEEP = 4
SEARCH_SEED, SEARCH_PATIENCE = 1000, 40  # a patience longer than the last rung: none stops before it


def config(cell: Cell, setting: Setting, seed: int, patience: int | None = None) -> Retrieval:
    """The run of a cell with a setting."""
    patience = PATIENCE[cell.units] if patience is None else patience
    recipe = Recipe(lr=setting.lr, clip=setting.clip, epochs=EPOCHS[cell.units], patience=patience)
    return Retrieval(
        core=cell.model,  # type: ignore[arg-type]
        units=cell.units,
        input_range=setting.input_range,
        training=recipe,
        seed=seed,
    )


def literal(cell: Cell, seed: int) -> Retrieval:
    """The same with the initial weights that the paper's words give, and nothing added to its recipe.

    All weights that are not recurrent start as U(-1/√H, 1/√H), H being the number of outgoing weights. The learning
    rate is the one that was tuned, as the paper's was.
    """
    lr = TUNED[str(cell)].lr
    recipe = Recipe(lr=lr, clip=0, schedule="constant", epochs=EPOCHS[cell.units], patience=LITERAL_PATIENCE)
    return Retrieval(
        core=cell.model,  # type: ignore[arg-type]
        units=cell.units,
        embedding_range=50**-0.5,
        input_range=0.0,
        training=recipe,
        seed=seed,
    )


def search(runs: Path) -> Search:
    """The search for the settings of all cells."""

    def trials(cell: Cell) -> dict[str, Retrieval]:
        return {str(setting): config(cell, setting, SEARCH_SEED, SEARCH_PATIENCE) for setting in GRID}

    return Search(runs / "search-table1", trials, RUNGS, KEEP)


def chosen(runs: Path) -> dict[str, dict[str, Any]]:
    """What the search tried and chose, cell by cell: what `results/table1-search.json` has."""
    found, settings = {}, {str(setting): dataclasses.asdict(setting) for setting in GRID}
    for cell in CELLS:
        trials = [settings[trial.pop("trial")] | trial for trial in search(runs).found(cell)]
        if trials:
            last = search(runs).best(cell, RUNGS[-1])
            found[str(cell)] = {"chosen": settings[last[0]] if last else None, "trials": trials}
    return found


def reproduce(
    cells: Sequence[Cell],
    runs: Path,
    workers: Workers,
    command: str,
    *,
    recipe: Literal["tuned", "literal"] = "tuned",
    seeds: int | None = None,
    epochs: int | None = None,
) -> dict[str, str]:
    """Train the cells, each with its seeds, into run folders that `collect` reads; what failed.

    Args:
        seeds: how many; None: as many as in the published table.
        epochs: fewer than the recipe's, for a quick look; such runs have folders of their own.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    plan = []
    for cell in cells:
        if str(cell) not in TUNED:
            raise ValueError(f"{cell} has not been tuned yet: fastweights search table1 --cells {cell}")
        for seed in range(seeds or SEEDS[cell.units]):
            run = literal(cell, seed) if recipe == "literal" else config(cell, TUNED[str(cell)], seed)
            if epochs is not None:
                run = dataclasses.replace(run, training=dataclasses.replace(run.training, epochs=epochs))
            path = runs / experiment(recipe, epochs) / cell.folder / f"seed-{seed}"
            plan.append(Planned(f"{cell} seed {seed}", run, path, curves=cell.units == 50))
    return train_all(plan, workers, command)


def experiment(recipe: str, epochs: int | None = None) -> str:
    """The name of its folder of runs."""
    return f"table1-{recipe}" if epochs is None else f"table1-{recipe}-{epochs}-epochs"


def collect(runs: Path, recipe: str, epochs: int | None = None) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table1.json`."""
    folders = {cell: runs / experiment(recipe, epochs) / cell.folder for cell in CELLS}
    return [
        entry(cell, recipe, paper_error(cell), done, CURVES if cell.units == 50 else ())
        for cell, folder in folders.items()
        if (done := finished(folder))
    ]


def published(runs: Path, results: Path, epochs: int | None = None) -> list[dict[str, Any]]:
    """What `results/table1.json` is to have: the cells whose runs are here, and those that were run elsewhere."""
    found = [each for recipe in RECIPES for each in collect(runs, recipe, epochs)]
    return with_published(results / "table1.json", found, _place)


def _place(entry: dict[str, Any]) -> tuple[int, int]:
    return RECIPES.index(entry["recipe"]), CELLS.index(Cell(entry["model"], entry["units"]))


def with_50_units(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The tuned cells whose curves are shown, by core."""
    return {each["model"]: each for each in entries if (each["units"], each["recipe"]) == (50, "tuned")}


def publish(runs: Path, results: Path, epochs: int | None = None) -> bool:
    """Show what is finished, and write `table1.json`, a page and the figure of it; whether there was anything."""
    from ..report import figures  # which is slow to load

    if not any(collect(runs, recipe, epochs) for recipe in RECIPES):
        print(f"fastweights: no finished runs of Table 1 in {runs}: fastweights reproduce table1", file=sys.stderr)
        return False
    entries = published(runs, results, epochs)
    floor = float(floor_error())
    caption = f"Test error in %. Without any retrieval: {100 * floor:.2f}. {tables.LEGEND}"
    title = "Table 1: associative retrieval"
    Console().print(tables.terminal(title, tables.HEADER, tables.rows(entries), caption))
    write_json(results / "table1.json", entries)
    text = caption if epochs is None else f"{caption} A quick look: {epochs} epochs, far from the published ones."
    commands = sorted({found["command"] for found in entries})
    sections = [pages.Section("Test error", text, tables.HEADER, tables.rows(entries), commands=commands)]
    shown, picture = with_50_units(entries), results / "table1-curves.png"
    groups = curves(shown, "test_loss")
    if groups.keys() == shown.keys() != set():
        figure = figures.curves(groups, "test log-likelihood", scale=-1)
        figure.axes[0].axhline(-floor_loss(), color="grey", linestyle=":", label="without any retrieval")
        figure = figures.finish(figure, "Associative retrieval, 50 recurrent units")
        figures.save(figure, picture)
    if picture.exists():
        sections.append(pages.Section("Test log-likelihood while training, 50 units", figure=picture))
    write_page(title, sections, results, "table1")
    return True
