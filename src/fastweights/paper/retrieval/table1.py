"""Table 1: associative retrieval with four cores of three sizes, and the search that found their settings."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ...models.cores import CORES
from ...report import pages, tables
from ...report.style import name_of
from ...tasks.retrieval import baseline_error, baseline_loss
from ...training.supervised import Recipe
from ...training.workers import Workers
from ..cells import Cell, Planned, curves, entry, finished, train_all
from ..reports import Report, commands_of
from ..run import with_hyperparameters
from ..studies import FIRST_SEED, Study
from .run import Retrieval

SIZES = (20, 50, 100)
PAPER = {  # test error, %
    "irnn": (62.11, 60.23, 0.34),
    "lstm": (60.81, 1.85, 0.0),
    "a-lstm": (60.13, 1.62, 0.0),
    "fast-weights": (1.81, 0.0, 0.0),
}
RECIPES = ("tuned", "literal")
CELLS = tuple(Cell(core, units) for units in SIZES for core in CORES)
EPOCHS = {20: 100, 50: 80, 100: 60}  # the same for all models of a row
SEEDS = {"irnn": 10, "lstm": 10, "a-lstm": 5, "fast-weights": 10}  # an A-LSTM takes ten times as long
QUICK_EPOCHS = 15
THRESHOLDS = (0.5, 0.1, 0.01)  # of the validation error
CURVES = ("updates", "seconds", "validation_error", "test_loss")  # of the cells with 50 units

# The search, the same for every cell; the only rung is after a third of the epochs.
FOR_ALL = ("lr=1e-4..1e-2", "weight_decay=1e-3..1.0", "input_range=0.1..3.0")
HYPERPARAMETERS = dict.fromkeys(CORES, FOR_ALL) | {"irnn": (*FOR_ALL, "recurrent_init=0.3..1.2")}

# The selected hyperparameters of each cell, on the validation set.
TUNED: dict[str, dict[str, float]] = {
    "fast-weights/20": {"lr": 3e-4, "input_range": 0.1},
    "fast-weights/50": {"lr": 3e-4, "input_range": 0.3},
    "fast-weights/100": {"lr": 1e-3, "input_range": 0.3},
    "lstm/20": {"lr": 3e-3, "input_range": 0.3},
    "lstm/50": {"lr": 1e-3, "input_range": 0.3},
    "lstm/100": {"lr": 3e-3, "input_range": 0.3},
    "a-lstm/20": {"lr": 3e-3, "input_range": 0.3},
    "a-lstm/50": {"lr": 1e-3, "input_range": 1.0},
    "a-lstm/100": {"lr": 1e-3, "input_range": 1.0},
    "irnn/20": {"lr": 1e-3, "input_range": 1.0},
    "irnn/50": {"lr": 1e-3, "input_range": 0.1},
    "irnn/100": {"lr": 1e-3, "input_range": 0.3},
}


def paper_error(cell: Cell) -> float:
    """The paper's test error, in percent."""
    return PAPER[cell.model][SIZES.index(cell.units)]


def config(cell: Cell, setting: Mapping[str, Any], seed: int) -> Retrieval:
    """The run of a cell with a setting."""
    recipe = Recipe(clip=0.5, epochs=EPOCHS[cell.units])
    run = Retrieval(core=cell.model, units=cell.units, training=recipe, seed=seed)  # type: ignore[arg-type]
    found: Retrieval = with_hyperparameters(run, setting)
    return found


def literal(cell: Cell, seed: int) -> Retrieval:
    """The same with the initial weights that the paper's words give, and nothing added to its recipe.

    All weights that are not recurrent start as U(-1/√H, 1/√H), H being the number of outgoing weights. The learning
    rate is the one that was tuned, as the paper's was.
    """
    tuned = config(cell, tuned_setting(cell), seed)
    recipe = dataclasses.replace(tuned.training, clip=0.0, weight_decay=0.0, schedule="constant")
    return dataclasses.replace(tuned, embedding_range=50**-0.5, input_range=0.0, recurrent_init=0.0, training=recipe)


def tuned_setting(cell: Cell) -> dict[str, float]:
    """The selected hyperparameters."""
    if str(cell) not in TUNED:
        raise ValueError(f"{cell} has not been tuned yet: fastweights search table1 --cells {cell}")
    return TUNED[str(cell)]


def study(cell: Cell) -> Study:
    """The search for the hyperparameters of a cell."""
    run = config(cell, {}, FIRST_SEED)
    return Study(f"table1/{cell.folder}", run, HYPERPARAMETERS[cell.model], EPOCHS[cell.units] // 3 + 1)


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
        for seed in range(seeds or SEEDS[cell.model]):
            run = literal(cell, seed) if recipe == "literal" else config(cell, tuned_setting(cell), seed)
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
        entry(cell, recipe, paper_error(cell), done, study(cell).plan.trials, CURVES if cell.units == 50 else ())
        for cell, folder in folders.items()
        if (done := finished(folder))
    ]


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    return RECIPES.index(entry["recipe"]), CELLS.index(Cell(entry["model"], entry["units"]))


def with_50_units(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The tuned cells whose curves are shown, by core."""
    return {each["model"]: each for each in entries if (each["units"], each["recipe"]) == (50, "tuned")}


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figure of it; whether there was anything."""
    from ...report import figures  # which is slow to load

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
    for what in ("updates", "seconds"):
        body = convergence(shown, what)
        if body:
            header = ("model", *(f"{what} to {threshold:.0%} error" for threshold in THRESHOLDS))
            heading = f"{what.capitalize()} until the validation error is as low, 50 units"
            sections.append(pages.Section(heading, header=header, rows=body))
    to.write("table1", title, sections, entries)
    return True


def convergence(entries: Mapping[str, Mapping[str, Any]], what: str = "updates") -> list[tuple[str, ...]]:
    """A row per entry that has curves: the least and the most updates, or seconds, to each threshold over its seeds."""
    rows, errors, measured = [], curves(entries, "validation_error"), curves(entries, what)
    for name in errors:
        if name not in measured:
            continue
        row = [name_of(name)]
        for threshold in THRESHOLDS:
            needed = [first_at(run, at, threshold) for run, at in zip(errors[name], measured[name], strict=True)]
            reached = sorted(each for each in needed if each is not None)
            never = len(needed) - len(reached)
            span = f"{reached[0]:,.0f} to {reached[-1]:,.0f}" if reached else ""
            row.append(", ".join(filter(None, (span, f"never in {never} of {len(needed)}" if never else ""))))
        rows.append(tuple(row))
    return rows


def first_at(errors: Sequence[float], measured: Sequence[float], threshold: float) -> float | None:
    """What was measured when the validation error of a run was first at or below the threshold; None: never.

    >>> first_at([0.4, 0.1], [10, 20], 0.1)
    20
    """
    return next((at for at, error in zip(measured, errors, strict=True) if error <= threshold), None)
