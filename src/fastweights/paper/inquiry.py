"""What makes the difference in Catch: agents with one thing changed at a time.

It was asked of the settings that an earlier search had chosen, before agents were made steady (`agents.STEADY`).
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import pages
from ..training.files import write_json
from ..training.workers import Job, Workers, run_all
from . import agents, catch
from .cells import finished, with_published, write_page
from .run import with_knobs

VARIANT = (16, 3)
FRAMES, SEEDS = catch.FRAMES[VARIANT] // 2, 3
BEFORE: dict[str, Any] = {"value": 0.5, "doubt": 0.0}
CHOSEN: dict[str, dict[str, Any]] = {
    "irnn": {**BEFORE, "lr": 0.005199550301032397, "entropy": 0.0034702260125949527, "input_range": 0.0},
    "lstm": {**BEFORE, "lr": 0.00159690455637715, "entropy": 0.010460542170681304, "input_range": 0.0},
    "fast-weights": {
        **BEFORE,
        "lr": 0.005371862843208839,
        "entropy": 0.013052887921011863,
        "input_range": 0.3,
        "rate": 0.5654537110058789,
        "decay": 0.8,
        "inner_steps": 3,
    },
}
# What is changed in it.
STEADIER: dict[str, dict[str, Any]] = {
    "the value's error weighs 0.1": {"value": 0.1},
    "a doubt of 0.001": {"doubt": 1e-3},
    "both": {"value": 0.1, "doubt": 1e-3},
}
FOR_ALL: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "RMSProp": {"optimizer": "rmsprop"},
    "gradients clipped at 0.1": {"clip": 0.1},
    **STEADIER,
    "5 moves between updates": {"steps": 5},
    "inputs U(±0.09)": {"input_range": 0.0},
    "inputs U(±0.3)": {"input_range": 0.3},
    "inputs U(±1)": {"input_range": 1.0},
    "sees its last action": {"last_action": True},
    "paddle starts in the centre": {"paddle_start": "centre"},
}
FOR_IRNN: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "gradients clipped at 0.1": {"clip": 0.1},
    **STEADIER,
    "W starts as 0.5·I": {"identity": 0.5},
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
    "W starts as 0.5·I": {"identity": 0.5},
    "W starts as I": {"identity": 1.0},
}
CHANGES = {"irnn": FOR_IRNN, "lstm": FOR_ALL, "fast-weights": FOR_ALL | FOR_FAST_WEIGHTS}


def runs_of(core: str, knobs: Mapping[str, Any]) -> list[agents.Catch]:
    """One run per seed; none, if what was chosen is like that anyway."""
    base = [catch.config(core, VARIANT, CHOSEN[core], seed, FRAMES) for seed in range(SEEDS)]
    changed = [with_knobs(run, knobs) for run in base]
    return [] if knobs and changed == base else changed


def folder_of(runs: Path, core: str, change: str) -> Path:
    """Where its seeds are."""
    return runs / "catch-inquiry" / core / change.replace(" ", "-")


def reproduce(changes: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train agents with these changes, or with all if none is named, into run folders; what failed."""
    known = {change: None for changes in CHANGES.values() for change in changes}
    for change in changes:
        if change not in known:
            raise ValueError(f"changes must be some of {', '.join(map(repr, known))}; got {change!r}")
    jobs = [
        Job(
            f"{core}, {change}, seed {run.seed}",
            agents.train,
            {"config": run, "path": folder_of(runs, core, change) / f"seed-{run.seed}", "command": command},
        )
        for core, of_core in CHANGES.items()
        for change, knobs in of_core.items()
        if change in (changes or known)
        for run in runs_of(core, knobs)
    ]
    return run_all(jobs, workers, agents.describe).failures


def collect(runs: Path) -> list[dict[str, Any]]:
    """What is finished: the entries of `results/catch-inquiry.json`."""
    entries = []
    for core, changes in CHANGES.items():
        for change, knobs in changes.items():
            done = finished(folder_of(runs, core, change))
            if done:
                entries.append(
                    {
                        "variant": list(VARIANT),
                        "core": core,
                        "change": change,
                        "knobs": knobs,
                        "frames": done[0].config["settings"]["frames"],
                        "seeds": [catch.of_seed(run) for run in done],
                        "command": done[0].config["command"],
                    }
                )
    return entries


def publish(runs: Path, results: Path) -> bool:
    """Show what is finished, and write `catch-inquiry.json` and a page of it; whether there was anything."""
    found = collect(runs)
    if not found:
        print(f"fastweights: no finished runs of the inquiry in {runs}: fastweights reproduce inquiry", file=sys.stderr)
        return False
    entries = with_published(results / "catch-inquiry.json", found, _place)
    title = "Catch: what makes the difference"
    text = f"{catch.CAPTION} Each run has half of the frames of the published ones."
    header = ("core", "what is changed", *catch.MEASURES)
    rows = [(entry["core"], entry["change"], *catch.measures(entry["seeds"])) for entry in entries]
    catch.show(title, {f"{entry['core']}: {entry['change']}": entry["seeds"] for entry in entries})
    write_json(results / "catch-inquiry.json", entries)
    commands = sorted({entry["command"] for entry in entries})
    write_page(title, [pages.Section("Reward", text, header, rows, commands=commands)], results, "catch-inquiry")
    return True


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    changes = CHANGES[entry["core"]]
    return list(CHANGES).index(entry["core"]), list(changes).index(entry["change"])
