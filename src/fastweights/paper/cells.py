"""The cells of a table: how their settings are searched for, and what their runs come to."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..base.hints import did_you_mean
from ..base.progress import Progress
from ..training.runs import RunFolder
from ..training.supervised import ChooseBy, rank
from ..training.workers import Job, Workers, run_all
from .run import Config, train


class Cell(NamedTuple):
    """One number of a table."""

    model: str
    units: int

    def __str__(self) -> str:
        return f"{self.model}/{self.units}"

    @property
    def folder(self) -> str:
        """Its name among run folders."""
        return f"{self.model}-{self.units}"


def parse(names: Sequence[str], cells: Sequence[Cell]) -> list[Cell]:
    """Cells by name, as in `fast-weights/20`; all of them for no names.

    >>> parse(["lstm/50"], [Cell("lstm", 20), Cell("lstm", 50)])
    [Cell(model='lstm', units=50)]
    """
    known = {str(cell): cell for cell in cells}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"cells must be of {', '.join(known)}; got {name!r}{hint}")
    return [known[name] for name in names] or list(cells)


class Planned(NamedTuple):
    """A run to be trained, and where."""

    name: str
    config: Config
    folder: Path
    curves: bool = False  # measure the test set after every epoch, to be plotted


def train_all(plan: Sequence[Planned], workers: Workers, command: str) -> dict[str, str]:
    """Train what is not finished yet; what failed."""
    jobs = [
        Job(name, train, {"config": config, "path": folder, "command": command, "curves": curves})
        for name, config, folder, curves in plan
    ]
    return run_all(jobs, workers, lambda result: f"test error {result.get('test_error', 1):.2%}").failures


@dataclass(frozen=True)
class Search:
    """The settings of cells, found on the validation set: all are tried for a few epochs, and the best go on.

    Args:
        folder: where the runs are.
        trials: the runs to try for a cell, by name.
        rungs: epochs after which the field is narrowed; after the last the best is selected.
        keep: how many go on at each rung, those that are best on the validation set.
    """

    folder: Path
    trials: Callable[[Cell], Mapping[str, Config]]
    rungs: tuple[int, ...]
    keep: int

    def run(self, cells: Sequence[Cell], workers: Workers, command: str) -> dict[str, str]:
        """Train what is missing; what failed."""
        failures: dict[str, str] = {}
        for rung, until in enumerate(self.rungs):
            jobs = []
            for cell in cells:
                trials = self.trials(cell)
                for name in trials if rung == 0 else self.best(cell, self.rungs[rung - 1])[: self.keep]:
                    path = self._path(cell, name)
                    if standing(path, until, trials[name].choose_by) is None:
                        arguments = {"config": trials[name], "path": path, "command": command, "until": until}
                        jobs.append(Job(f"{cell} {name}, {until} epochs", train_until, arguments))
            failures |= run_all(jobs, workers, _describe_standing).failures
        return failures

    def best(self, cell: Cell, until: int) -> list[str]:
        """The trials that were trained for so many epochs, the best first."""
        ranks = {}
        for name, trial in self.trials(cell).items():
            best = standing(self._path(cell, name), until, trial.choose_by)
            if best is not None:
                diverged = best["validation_loss"] is None
                ranks[name] = (math.inf,) if diverged else rank(best, trial.choose_by)
        return sorted(ranks, key=ranks.__getitem__)

    def found(self, cell: Cell) -> list[dict[str, Any]]:
        """What came of the trials: those of the first rung, the best first, then those of the next."""
        trials = self.trials(cell)
        return [
            {"trial": name, "epochs": until, **best}
            for until in self.rungs
            for name in self.best(cell, until)
            if (best := standing(self._path(cell, name), until, trials[name].choose_by)) is not None
        ]

    def _path(self, cell: Cell, name: str) -> Path:
        return self.folder / cell.folder / name


def rate_search(folder: Path, rates: Sequence[float], epochs: int, make: Callable[[Cell, float], Config]) -> Search:
    """A search for the learning rates of cells: each is tried in a short run of its own."""
    return Search(folder, lambda cell: {f"lr-{lr:g}": make(cell, lr) for lr in rates}, (epochs,), 1)


def rates_found(search: Search, rates: Sequence[float], cells: Sequence[Cell]) -> dict[str, Any]:
    """What such a search tried and selected, by cell; cells that are not finished are left out."""
    found, named = {}, {f"lr-{lr:g}": lr for lr in rates}
    for cell in cells:
        trials = [{"lr": named[trial.pop("trial")], **trial} for trial in search.found(cell)]
        if len(trials) == len(named):
            found[str(cell)] = {"selected": trials[0]["lr"], "trials": trials}
    return found


def standing(path: Path, until: int, choose_by: ChooseBy) -> dict[str, Any] | None:
    """The best epoch of a run up to this one, on the validation set; None if it has not got that far."""
    folder = RunFolder(path)
    measured = [entry for entry in folder.metrics if entry["epoch"] <= until]
    if len(measured) < until and folder.result is None:
        return None
    best = min(measured, key=lambda entry: rank(entry, choose_by), default={})  # nothing: it diverged at once
    return {name: best.get(name) for name in ("validation_loss", "validation_error", "epoch")}


def train_until(
    config: Config, path: Path, command: str, until: int, report: Callable[[Progress], None]
) -> dict[str, Any] | None:
    """One rung of the search for one run. The test set is not looked at."""
    train(config, path, command, until=until, test=False, report=report)
    return standing(path, until, config.choose_by)


def _describe_standing(best: Mapping[str, float | None]) -> str:
    return "diverged" if best["validation_error"] is None else f"error {best['validation_error']:.2%}"


def finished(folder: Path) -> list[RunFolder]:
    """The runs in a folder that are, by their seeds."""
    folders = [RunFolder(path.parent) for path in folder.glob("*/result.json")]
    return sorted(folders, key=lambda folder: folder.result["seed"])  # type: ignore[index]


def curves(entries: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, list[list[float]]]:
    """What was measured after every epoch, by name: one list per seed. Entries without it are left out."""
    found = {
        name: [seed["curves"][metric] for seed in entry["seeds"] if metric in seed.get("curves", {})]
        for name, entry in entries.items()
    }
    return {name: runs for name, runs in found.items() if runs}


def entry(
    cell: Cell, recipe: str, paper: float | None, runs: Sequence[RunFolder], metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """One cell of a table from its finished runs: what its JSON is a list of; errors in percent."""
    return {"model": cell.model, "units": cell.units, "recipe": recipe, "paper": paper, **summary(runs, metrics)}


def summary(runs: Sequence[RunFolder], metrics: Sequence[str] = ()) -> dict[str, Any]:
    """What finished runs that differ in their seeds come to; errors in percent.

    A run that diverged before its first epoch was over counts as always wrong.

    Args:
        metrics: whose curves are kept, where they were measured after every epoch.
    """
    results = [run.result or {} for run in runs]
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
    for run, seed in zip(runs, seeds, strict=True):
        epochs = run.metrics if metrics else []
        whole = [metric for metric in metrics if all(metric in epoch for epoch in epochs)]
        if epochs and whole:
            seed["curves"] = {metric: [epoch[metric] for epoch in epochs] for metric in whole}
    errors = [seed["test_error"] for seed in seeds]
    best = min(seeds, key=lambda seed: (seed["validation_error"], seed["validation_loss"] or 0.0))
    return {
        "parameters": results[0]["parameters"],
        "seeds": seeds,
        "test_error_mean": statistics.fmean(errors),
        "test_error_std": statistics.stdev(errors) if len(errors) > 1 else 0.0,
        "test_error_best_validation": best["test_error"],
        "command": runs[0].config["command"],
    }
