"""Table 1: associative retrieval with four cores of three sizes, and the search that found their settings."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..models.cores import CORES
from ..report import pages, tables
from ..report.style import name_of
from ..tasks.retrieval import baseline_error, baseline_loss
from ..training.supervised import Recipe
from ..training.workers import Workers
from .cells import Cell, Planned, Search, curves, entry, finished, train_all
from .reports import Report, commands_of
from .retrieval import Retrieval

SIZES = (20, 50, 100)
PAPER = {  # test error, %
    "irnn": (62.11, 60.23, 0.34),
    "lstm": (60.81, 1.85, 0.0),
    "a-lstm": (60.13, 1.62, 0.0),
    "fast-weights": (1.81, 0.0, 0.0),
}
RECIPES = ("tuned", "literal")
THRESHOLDS = (0.5, 0.1, 0.01)  # of the validation error
QUICK_EPOCHS = 15
CURVES = ("updates", "validation_error", "test_loss")  # of the cells with 50 units
SEEDS = {20: 5, 50: 3, 100: 3}
EPOCHS = {20: 200, 50: 100, 100: 60}
PATIENCE = {20: 40, 50: 20, 100: 20}
LITERAL_PATIENCE = (
    40  # for all sizes: more of these runs stay at the no-retrieval baseline, and none is to be given up too early
)


CELLS = tuple(Cell(core, units) for units in SIZES for core in CORES)


def paper_error(cell: Cell) -> float:
    """The paper's test error, in percent."""
    return PAPER[cell.model][SIZES.index(cell.units)]


@dataclass(frozen=True)
class Setting:
    """The hyperparameters that the search selects."""

    lr: float
    input_range: float
    clip: float

    def __str__(self) -> str:
        return f"lr-{self.lr:g},range-{self.input_range:g},clip-{self.clip:g}"


# The selected hyperparameters of each cell, on the validation set.
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
# validation loss go on to RUNGS[1] epochs, where the best is selected.
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


def selected(runs: Path) -> dict[str, dict[str, Any]]:
    """What the search tried and selected, cell by cell: what `results/table1-search.json` has."""
    found, settings = {}, {str(setting): dataclasses.asdict(setting) for setting in GRID}
    for cell in CELLS:
        trials = [settings[trial.pop("trial")] | trial for trial in search(runs).found(cell)]
        if trials:
            last = search(runs).best(cell, RUNGS[-1])
            found[str(cell)] = {"selected": settings[last[0]] if last else None, "trials": trials}
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
    """Train the cells, each with its seeds, into run folders that `report` reads; what failed.

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
    return f"table1/{recipe}" if epochs is None else f"table1-quick/{recipe}"


def collect(runs: Path, recipe: str, epochs: int | None = None) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table1.json`."""
    folders = {cell: runs / experiment(recipe, epochs) / cell.folder for cell in CELLS}
    return [
        entry(cell, recipe, paper_error(cell), done, CURVES if cell.units == 50 else ())
        for cell, folder in folders.items()
        if (done := finished(folder))
    ]


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    return RECIPES.index(entry["recipe"]), CELLS.index(Cell(entry["model"], entry["units"]))


def with_50_units(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The tuned cells whose curves are shown, by core."""
    return {each["model"]: each for each in entries if (each["units"], each["recipe"]) == (50, "tuned")}


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figure of it; whether there was anything."""
    from ..report import figures  # which is slow to load

    found = [each for recipe in RECIPES for each in collect(to.runs, recipe, QUICK_EPOCHS if to.quick else None)]
    entries = to.entries("table1", found, _place)
    if not entries:
        return False
    caption = f"Test error in %. No-retrieval baseline: {100 * float(baseline_error()):.2f}. {tables.LEGEND}"
    title, rows = "Table 1: associative retrieval", tables.rows(entries)
    to.show(title, tables.HEADER, rows, caption)
    sections = [pages.Section("Test error", caption, tables.HEADER, rows, commands=commands_of(entries))]
    shown = with_50_units(to.drawn(entries))
    groups = curves(shown, "test_loss")
    if groups.keys() == shown.keys() != set():
        figure = figures.curves(groups, "test log-likelihood", scale=-1)
        figure.axes[0].axhline(-baseline_loss(), color="grey", linestyle=":", label="no-retrieval baseline")
        picture = figures.save(figures.finish(figure), to.folder("table1") / "table1-curves.png")[0]
        sections.append(pages.Section("Test log-likelihood while training, 50 units", figure=picture))
    body = convergence(shown)
    if body:
        header = ("model", *(f"updates to {threshold:.0%} error" for threshold in THRESHOLDS))
        heading = "Updates until the validation error is as low, 50 units"
        sections.append(pages.Section(heading, header=header, rows=body))
    to.write("table1", title, sections, entries)
    return True


def convergence(entries: Mapping[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row per core that has curves: the least and the most updates that its seeds needed to each threshold."""
    rows, errors, updates = [], curves(entries, "validation_error"), curves(entries, "updates")
    for core, runs in errors.items():
        row = [name_of(core)]
        for threshold in THRESHOLDS:
            needed = [updates_to(run, at, threshold) for run, at in zip(runs, updates[core], strict=True)]
            reached = sorted(each for each in needed if each is not None)
            never = len(needed) - len(reached)
            span = f"{reached[0]:,} to {reached[-1]:,}" if reached else ""
            row.append(", ".join(filter(None, (span, f"never in {never} of {len(needed)}" if never else ""))))
        rows.append(tuple(row))
    return rows


def updates_to(errors: Sequence[float], updates: Sequence[float], threshold: float) -> float | None:
    """After how many updates the validation error of a run was first at or below the threshold; None: never.

    >>> updates_to([0.4, 0.1], [10, 20], 0.1)
    20
    """
    return next((at for at, error in zip(updates, errors, strict=True) if error <= threshold), None)
