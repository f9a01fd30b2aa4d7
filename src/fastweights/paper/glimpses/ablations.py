"""Ablations of glimpses: fast weights with 100 units on plain images, one thing changed at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.hints import did_you_mean
from ...report import pages, tables
from ...training.workers import Workers
from ..cells import Cell, Planned, finished, summary, train_all
from ..reports import Report, commands_of
from ..run import with_hyperparameters
from .table2 import CURVES, SEEDS, config, experiment, tuned

# What each part is worth, with fast weights of 100 units: what differs from the table's.
BASE = "as in the table"
ABLATIONS: dict[str, dict[str, Any]] = {
    BASE: {},
    "writes every state": {"control_signals": ("wipe", "read", "integrate")},
    "keeps its state where it stores": {"control_signals": ("store", "read", "integrate")},
    "reads at every glimpse": {"control_signals": ("store", "wipe", "integrate")},
    "no integration matrix": {"control_signals": ("store", "wipe", "read")},
    "20 glimpses": {"order": "once"},
    "three levels": {"order": "three levels"},
    "settles by method 2": {"settling": "identity"},
    "2 inner steps": {"inner_steps": 2},
    "3 inner steps": {"inner_steps": 3},
    "rate 0.5": {"rate": 0.5},
    "embedding 50-100": {"embedding": "linear"},
    "embedding 50-100, ReLUs": {"embedding": "relu"},
    "dropout 0.2": {"dropout": 0.2},
    "no weight decay": {"weight_decay": 0.0},
}


def reproduce(changes: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train fast weights with these changes, or with each if none is named; what failed."""
    for change in changes:
        if change not in ABLATIONS:
            hint = did_you_mean(change, ABLATIONS)
            raise ValueError(f"changes must be some of {', '.join(map(repr, ABLATIONS))}; got {change!r}{hint}")
    cell = Cell("fast-weights", CURVES)
    plan = []
    for name in changes or ABLATIONS:
        for seed in range(SEEDS):
            run = with_hyperparameters(config(cell, "plain", tuned(cell, "plain"), seed), ABLATIONS[name])
            plan.append(Planned(f"{name}, seed {seed}", run, folder_of(runs, name) / f"seed-{seed}"))
    return train_all(plan, workers, command)


def folder_of(runs: Path, name: str) -> Path:
    """Where its seeds are."""
    if not ABLATIONS[name]:
        return runs / experiment("plain") / Cell("fast-weights", CURVES).folder
    return runs / "glimpses-ablations" / name.replace(" ", "-")


def collect(runs: Path) -> list[dict[str, Any]]:
    """The ablations whose runs are finished: the entries of `results/glimpses-ablations.json`."""
    found = []
    for name in ABLATIONS:
        done = finished(folder_of(runs, name))
        if done:
            found.append({"change": name, "hyperparameters": ABLATIONS[name], **summary(done, 0)})
    return found


def report(to: Report) -> bool:
    """Show the ablations that are finished, and write a page of them; whether there was anything."""
    found = collect(to.runs)
    if [entry["change"] for entry in found] == [BASE]:  # which is of the table itself
        found = []
    entries = to.entries("glimpses-ablations", found, lambda entry: list(ABLATIONS).index(entry["change"]))
    if not entries:
        return False
    header = ("what is changed", "test error", "seeds", "source")
    rows = [
        (
            entry["change"],
            tables.estimate(entry),
            tables.seeds_of(entry),
            entry["source"],
        )
        for entry in entries
    ]
    title = "MNIST by glimpses: ablations"
    text = "Test error in %: fast weights with 100 units, plain images, one thing changed at a time."
    to.show(title, header, rows, text)
    sections = [pages.Section("Test error", text, header, rows, commands=commands_of(entries))]
    to.write("glimpses-ablations", title, sections, entries)
    return True
