"""Table 1: associative retrieval with four cores of three sizes, and the search that found their settings."""

import dataclasses
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from ..models.cores import CORES
from ..report import pages, tables
from ..tasks.retrieval import floor_error, floor_loss
from ..training.files import write_json, write_text
from ..training.runs import RunFolder
from ..training.supervised import Progress, Recipe
from ..training.workers import Job, run_all
from .retrieval import Retrieval, train

SIZES = (20, 50, 100)
PAPER = {  # test error, %
    "irnn": (62.11, 60.23, 0.34),
    "lstm": (60.81, 1.85, 0.0),
    "a-lstm": (60.13, 1.62, 0.0),
    "fast-weights": (1.81, 0.0, 0.0),
}
SEEDS = {20: 5, 50: 3, 100: 3}
EPOCHS = {20: 200, 50: 100, 100: 60}
PATIENCE = {20: 40, 50: 20, 100: 20}


class Cell(NamedTuple):
    """One number of the table."""

    core: str
    units: int

    def __str__(self) -> str:
        return f"{self.core}/{self.units}"

    @property
    def folder(self) -> str:
        """Its name among run folders."""
        return f"{self.core}-{self.units}"

    @property
    def paper(self) -> float:
        """The paper's test error, in percent."""
        return PAPER[self.core][SIZES.index(self.units)]


CELLS = tuple(Cell(core, units) for units in SIZES for core in CORES)


def parse_cells(names: Sequence[str]) -> list[Cell]:
    """Cells by name, as in `fast-weights/20`; all of them for no names."""
    known = {str(cell): cell for cell in CELLS}
    for name in names:
        if name not in known:
            raise ValueError(f"cells must be of {', '.join(known)}; got {name!r}")
    return [known[name] for name in names] or list(CELLS)


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
    "lstm/50": Setting(lr=1e-3, input_range=0.3, clip=0.5),
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
        core=cell.core,  # type: ignore[arg-type]
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
    recipe = Recipe(lr=lr, clip=0, schedule="constant", epochs=EPOCHS[cell.units], patience=PATIENCE[cell.units])
    return Retrieval(
        core=cell.core,  # type: ignore[arg-type]
        units=cell.units,
        embedding_range=50**-0.5,
        input_range=0.0,
        training=recipe,
        seed=seed,
    )


def standing(path: Path, until: int) -> dict[str, float | None] | None:
    """The best epoch of a run of the search up to this one, by validation loss; None if it has not got that far."""
    folder = RunFolder(path)
    measured = [entry for entry in folder.metrics if entry["epoch"] <= until]
    if len(measured) < until and folder.result is None:
        return None
    best = min(measured, key=lambda entry: entry["validation_loss"], default={})  # nothing: it diverged at once
    return {name: best.get(name) for name in ("validation_loss", "validation_error", "epoch")}


def train_until(
    run: Retrieval, path: str, command: str, until: int, tell: Callable[[Progress], None]
) -> dict[str, float | None] | None:
    """One rung of the search for one run. The test set is not looked at."""
    train(run, Path(path), command, until=until, test=False, tell=tell)
    return standing(Path(path), until)


def search(cells: Sequence[Cell], runs: Path, workers: int, command: str) -> dict[str, str]:
    """Train the cells with the settings of the grid, rung by rung, into folders that `chosen` reads; what failed."""
    failures: dict[str, str] = {}
    for rung, until in enumerate(RUNGS):
        jobs = []
        for cell in cells:
            for setting in GRID if rung == 0 else _best(cell, runs, RUNGS[rung - 1])[:KEEP]:
                path = _search_folder(cell, setting, runs)
                if standing(path, until) is None:
                    run = config(cell, setting, SEARCH_SEED, SEARCH_PATIENCE)
                    arguments = {"run": run, "path": str(path), "command": command, "until": until}
                    jobs.append(Job(f"{cell} {setting}, {until} epochs", train_until, arguments))
        failures |= run_all(jobs, workers, _describe).failures
    return failures


def _describe(best: dict[str, float | None]) -> str:
    return "diverged" if best["validation_error"] is None else f"error {best['validation_error']:.2%}"


def _search_folder(cell: Cell, setting: Setting, runs: Path) -> Path:
    return runs / "search-table1" / cell.folder / str(setting)


def _best(cell: Cell, runs: Path, until: int) -> list[Setting]:
    """The settings that were trained for so many epochs, the best first."""
    losses = {}
    for setting in GRID:
        best = standing(_search_folder(cell, setting, runs), until)
        if best is not None:
            loss = best["validation_loss"]
            losses[setting] = math.inf if loss is None else loss
    return sorted(losses, key=losses.__getitem__)


def chosen(runs: Path) -> dict[str, dict[str, Any]]:
    """What the search tried and chose, cell by cell: what `results/table1-search.json` has."""
    cells = {}
    for cell in CELLS:
        trials = [
            {**dataclasses.asdict(setting), "epochs": until, **best}
            for until in RUNGS
            for setting in _best(cell, runs, until)
            if (best := standing(_search_folder(cell, setting, runs), until)) is not None
        ]
        if trials:
            last = _best(cell, runs, RUNGS[-1])
            cells[str(cell)] = {"chosen": dataclasses.asdict(last[0]) if last else None, "trials": trials}
    return cells


def reproduce(
    cells: Sequence[Cell],
    runs: Path,
    workers: int,
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
    jobs = []
    for cell in cells:
        for seed in range(seeds or SEEDS[cell.units]):
            run = literal(cell, seed) if recipe == "literal" else config(cell, TUNED[str(cell)], seed)
            if epochs is not None:
                run = dataclasses.replace(run, training=dataclasses.replace(run.training, epochs=epochs))
            path = runs / experiment(recipe, epochs) / cell.folder / f"seed-{seed}"
            arguments = {"config": run, "path": path, "command": command, "curves": cell.units == 50}
            jobs.append(Job(f"{cell} seed {seed}", train, arguments))
    return run_all(jobs, workers, lambda result: f"test error {result.get('test_error', 1):.2%}").failures


def experiment(recipe: str, epochs: int | None = None) -> str:
    """The name of its folder of runs."""
    return f"table1-{recipe}" if epochs is None else f"table1-{recipe}-{epochs}-epochs"


def collect(runs: Path, recipe: str, epochs: int | None = None) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table1.json`."""
    entries = []
    for cell in CELLS:
        folders = [
            RunFolder(path.parent) for path in (runs / experiment(recipe, epochs) / cell.folder).glob("*/result.json")
        ]
        finished = sorted(folders, key=lambda folder: folder.result["seed"])  # type: ignore[index]
        if finished:
            results = [folder.result or {} for folder in finished]
            entries.append(entry(cell, recipe, results, finished[0].config["command"]))
    return entries


def curves(
    runs: Path, recipe: str, epochs: int | None = None, units: int = 50
) -> dict[str, list[list[dict[str, Any]]]]:
    """What was measured after every epoch with this many units, by core: one list per seed."""
    found = {}
    for core in CORES:
        folder = runs / experiment(recipe, epochs) / Cell(core, units).folder
        measured = [RunFolder(path.parent).metrics for path in sorted(folder.glob("*/result.json"))]
        if any(measured):
            found[core] = [each for each in measured if each]
    return found


def entry(cell: Cell, recipe: str, results: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    """One cell of the table from the results of its runs; errors in percent.

    A run that diverged before its first epoch was over counts as always wrong.
    """
    seeds = [
        {
            "seed": result["seed"],
            "validation_error": 100 * result.get("validation_error", 1.0),
            "validation_loss": result.get("validation_loss"),
            "test_error": 100 * result.get("test_error", 1.0),
            "epochs": result["epochs"],
            "best_epoch": result["best_epoch"],
            "seconds": result["seconds"],
        }
        for result in results
    ]
    errors = [seed["test_error"] for seed in seeds]
    best = min(seeds, key=lambda seed: (seed["validation_error"], seed["validation_loss"] or 0.0))
    return {
        "model": cell.core,
        "units": cell.units,
        "recipe": recipe,
        "paper": cell.paper,
        "parameters": results[0]["parameters"],
        "seeds": seeds,
        "test_error_mean": statistics.fmean(errors),
        "test_error_std": statistics.stdev(errors) if len(errors) > 1 else 0.0,
        "test_error_best_validation": best["test_error"],
        "command": command,
    }


def publish(runs: Path, results: Path, epochs: int | None = None) -> bool:
    """Show what is finished, and write `table1.json`, a page and the figure of it; whether there was anything."""
    from ..report import figures  # which is slow to load

    entries = [found for recipe in ("tuned", "literal") for found in collect(runs, recipe, epochs)]
    if not entries:
        print(f"fastweights: no finished runs of Table 1 in {runs}: fastweights reproduce table1", file=sys.stderr)
        return False
    floor = float(floor_error())
    caption = f"Test error in %. Without any retrieval: {100 * floor:.2f}. {tables.LEGEND}"
    title = "Table 1: associative retrieval"
    Console().print(tables.terminal(title, tables.HEADER, tables.rows(entries), caption))
    write_json(results / "table1.json", entries)
    text = caption if epochs is None else f"{caption} A quick look: {epochs} epochs, far from the published ones."
    commands = sorted({found["command"] for found in entries})
    sections = [pages.Section("Test error", text, tables.HEADER, tables.rows(entries), commands=commands)]
    groups: dict[str, list[list[dict[str, Any]]]] = {}
    for core, measured in curves(runs, "tuned", epochs).items():
        whole = [run for run in measured if all("test_loss" in epoch for epoch in run)]
        groups |= {core: whole} if whole else {}
    if groups:
        figure = figures.curves(groups, "test_loss", "test log-likelihood", sign=-1)
        figure.axes[0].axhline(-floor_loss(), color="grey", linestyle=":", label="without any retrieval")
        figure = figures.finish(figure, "Associative retrieval, 50 recurrent units")
        picture = figures.save(figure, results / "table1-curves.png")[0]
        sections.append(pages.Section("Test log-likelihood while training, 50 units", figure=picture))
    write_text(results / "table1.md", pages.as_markdown(title, sections, results))
    write_text(results / "table1.html", pages.as_html(title, sections))
    print(f"written: {results / 'table1.html'} and, beside it, table1.md, table1.json and the figures")
    return True
