"""Ablations of Catch: every core with its selected hyperparameters, and with one thing changed at a time.

What is asked: which choices the order of the cores hangs on; and, where fast weights lead early and lose late, what
limits them. A sharp policy (entropy), knowing one's own moves (the last action is shown), what is left of what was seen
(decay): an experiment for each.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.hints import did_you_mean
from ...report import pages
from ...report.style import name_of
from ...training.workers import Job, Workers, run_all
from ..cells import finished
from ..reports import PROTOCOL, Report, commands_of
from ..run import with_hyperparameters
from . import learning as catch
from . import run as agents
from .measures import CAPTION, COLUMNS, SHORT_CAPTION, columns, curve, of_seed, short

VARIANT = (16, 3)
SEEDS, FIRST_SEED = 5, 60  # others than the published runs'
BASE = "as selected"
# What is changed, of all cores and of some.
FOR_ALL: dict[str, dict[str, Any]] = {
    BASE: {},
    "paddle starts in the centre": {"paddle_start": "centre"},
    "sees its last action": {"last_action": True},
    "inputs U(±0.09)": {"input_range": 0.0},
    "inputs U(±0.3)": {"input_range": 0.3},
    "inputs U(±1)": {"input_range": 1.0},
    "inputs U(±3)": {"input_range": 3.0},
    "entropy_coef 0.001": {"entropy_coef": 0.001},
    "entropy_coef 0.01": {"entropy_coef": 0.01},
    "16 environments": {"num_envs": 16},
    "64 environments": {"num_envs": 64},
    "RMSProp": {"optimizer": "rmsprop"},
    "value_coef 0.5": {"value_coef": 0.5},
}
FOR_W: dict[str, dict[str, Any]] = {
    "recurrent_init 0.05": {"recurrent_init": 0.05},
    "recurrent_init 0.5": {"recurrent_init": 0.5},
    "recurrent_init 1": {"recurrent_init": 1.0},
}
FOR_FAST_WEIGHTS: dict[str, dict[str, Any]] = {
    "1 inner step": {"inner_steps": 1},
    "2 inner steps": {"inner_steps": 2},
    "3 inner steps": {"inner_steps": 3},
    "rate 0.03": {"rate": 0.03},
    "rate 0.1": {"rate": 0.1},
    "rate 0.5": {"rate": 0.5},
    "decay 0.8": {"decay": 0.8},
    "decay 0.9": {"decay": 0.9},
    "decay 0.99": {"decay": 0.99},
    "no layer normalisation": {"layer_norm": False},
}
CHANGES = {"irnn": FOR_ALL | FOR_W, "lstm": FOR_ALL, "fast-weights": FOR_ALL | FOR_W | FOR_FAST_WEIGHTS}


def runs_of(core: str, hyperparameters: Mapping[str, Any]) -> list[agents.Catch]:
    """One run per seed; none, if the selected hyperparameters have it anyway."""
    setting, frames = catch.TUNED[VARIANT, core], catch.FRAMES[VARIANT]
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
    base = [catch.config(core, VARIANT, setting, seed, frames) for seed in seeds]
    changed = [with_hyperparameters(run, hyperparameters) for run in base]
    return [] if hyperparameters and changed == base else changed


def folder_of(runs: Path, core: str, change: str) -> Path:
    """Where its seeds are."""
    return runs / "catch-ablations" / core / change.replace(" ", "-")


def reproduce(changes: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train agents with these changes, or with all if none is named, into run folders; what failed."""
    known = {change: None for changes in CHANGES.values() for change in changes}
    for change in changes:
        if change not in known:
            hint = did_you_mean(change, known)
            raise ValueError(f"changes must be some of {', '.join(map(repr, known))}; got {change!r}{hint}")
    shared = {"command": command, "device": workers.device}
    jobs = [
        Job(
            f"{core}, {change}, seed {run.seed}",
            agents.train,
            {"config": run, "path": folder_of(runs, core, change) / f"seed-{run.seed}", **shared},
        )
        for core, of_core in CHANGES.items()
        for change, hyperparameters in of_core.items()
        if change in (changes or known)
        for run in runs_of(core, hyperparameters)
    ]
    return run_all(jobs, workers, agents.describe).failures


def collect(runs: Path) -> list[dict[str, Any]]:
    """What is finished: the entries of `results/catch-ablations.json`."""
    entries = []
    for core, changes in CHANGES.items():
        for change, hyperparameters in changes.items():
            done = finished(folder_of(runs, core, change))
            if done:
                entries.append(
                    {
                        "variant": list(VARIANT),
                        "core": core,
                        "protocol": PROTOCOL,
                        "change": change,
                        "hyperparameters": hyperparameters,
                        "frames": done[0].config["settings"]["frames"],
                        "seeds": [of_seed(run) | {"curve": curve(run.metrics)} for run in done],
                        "command": done[0].config["command"],
                    }
                )
    return entries


def report(to: Report) -> bool:
    """Show what is finished, and write a page of it; whether there was anything."""
    entries = to.entries("catch-ablations", collect(to.runs), _place)
    if not entries:
        return False
    title = "Catch: ablations"
    text = f"{CAPTION} {catch.notes(entries)}".strip()
    header = ("core", "what is changed", *COLUMNS, "source")
    rows = [(name_of(entry["core"]), entry["change"], *columns(entry["seeds"]), entry["source"]) for entry in entries]
    to.show(title, *short(header, rows), SHORT_CAPTION)
    sections = [pages.Section("Return", text, header, rows, commands=commands_of(entries))]
    to.write("catch-ablations", title, sections, entries)
    return True


def _place(entry: Mapping[str, Any]) -> tuple[int, int, str]:
    changes = CHANGES[entry["core"]]
    change = entry["change"]
    place = list(changes).index(change) if change in changes else len(changes)  # of a loss that has changed since
    return list(CHANGES).index(entry["core"]), place, change
