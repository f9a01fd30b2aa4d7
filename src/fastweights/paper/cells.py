"""The cells of a table: by name, trained, and what their runs come to."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.hints import did_you_mean
from ..report.statistics import interval
from ..training.runs import RunFolder
from ..training.workers import Job, Workers, run_all
from .reports import PROTOCOL
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
    shared = {"command": command, "device": workers.device}
    jobs = [
        Job(name, train, {"config": config, "path": folder, "curves": curves, **shared})
        for name, config, folder, curves in plan
    ]
    return run_all(jobs, workers, lambda result: f"test error {result.get('test_error', 1):.2%}").failures


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
    cell: Cell, recipe: str, paper: float | None, runs: Sequence[RunFolder], trials: int, metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """One cell of a table from its finished runs: what its JSON is a list of; errors in percent."""
    return {
        "model": cell.model,
        "units": cell.units,
        "recipe": recipe,
        "paper": paper,
        **summary(runs, trials, metrics),
    }


def summary(runs: Sequence[RunFolder], trials: int, metrics: Sequence[str] = ()) -> dict[str, Any]:
    """What finished runs that differ in their seeds come to; errors in percent.

    A run that diverged before its first epoch was over counts as always wrong.

    Args:
        trials: of the search that selected their hyperparameters.
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
    found = interval(errors)
    best = min(seeds, key=lambda seed: (seed["validation_error"], seed["validation_loss"] or 0.0))
    return {
        "protocol": PROTOCOL,
        "parameters": results[0]["parameters"],
        "hyperparameters": {name: value for name, value in runs[0].config["settings"].items() if name != "seed"},
        "trials": trials,
        "seeds": seeds,
        "test_error_mean": statistics.fmean(errors),
        "test_error_std": statistics.stdev(errors) if len(errors) > 1 else 0.0,
        "interval": None if found is None else [found.low, found.high],
        "test_error_best_validation": best["test_error"],
        "command": runs[0].config["command"],
    }
