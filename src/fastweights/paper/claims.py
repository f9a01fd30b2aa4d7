"""What the paper says in words about associative retrieval, each claim as a small experiment with 50 units."""

import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import pages
from ..training.files import write_json, write_text
from ..training.runs import RunFolder
from ..training.workers import Job, run_all
from .retrieval import Retrieval, train
from .table1 import TUNED, Cell, config, curves

RATES = (0.1, 0.25, 0.5, 1.0, 2.0)
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.99)
INNER_STEPS = (1, 2, 3)
SETTLINGS = ("sustained", "identity")
THRESHOLDS = (0.5, 0.1, 0.01)
EPOCHS = {"robust": 12, "inner steps": 30, "settling": 30}
SEEDS = {"robust": 1, "inner steps": 3, "settling": 3}


def variants() -> dict[str, dict[str, dict[str, Any]]]:
    """What each claim varies: claim → name of the variant → the knobs that differ from Table 1's fast weights."""
    robust = {
        f"rate-{rate:g},decay-{decay:g},{'norm' if norm else 'no-norm'}": {
            "rate": rate,
            "decay": decay,
            "layer_norm": norm,
        }
        for norm in (True, False)
        for rate in RATES
        for decay in DECAYS
    }
    # More inner steps feed the memory's answer back more often: a lower rate keeps the loop from running away.
    steps = {
        f"steps-{steps},rate-{rate:g}": {"inner_steps": steps, "rate": rate}
        for steps in INNER_STEPS
        for rate in (0.5, 0.25, 0.1)
    }
    settling = {name: {"settling": name} for name in SETTLINGS}
    return {"robust": robust, "inner steps": steps, "settling": settling}


def runs_of(claim: str, knobs: Mapping[str, Any]) -> list[Retrieval]:
    """One run per seed."""
    cell = Cell("fast-weights", 50)
    found = []
    for seed in range(SEEDS[claim]):
        base = config(cell, TUNED[str(cell)], seed)
        recipe = dataclasses.replace(base.training, epochs=EPOCHS[claim])
        found.append(dataclasses.replace(base, training=recipe, **knobs))
    return found


def folder_of(runs: Path, claim: str, variant: str, seed: int) -> Path:
    return runs / "claims" / claim.replace(" ", "-") / variant / f"seed-{seed}"


def reproduce(claims: Sequence[str], runs: Path, workers: int, command: str) -> dict[str, str]:
    """Train what the claims need into run folders that `collect` reads; what failed."""
    known = variants()
    for claim in claims:
        if claim not in known:
            raise ValueError(f"claims must be of {', '.join(map(repr, known))}; got {claim!r}")
    jobs = []
    for claim in claims or known:
        for variant, knobs in known[claim].items():
            for run in runs_of(claim, knobs):
                path = folder_of(runs, claim, variant, run.seed)
                arguments = {"config": run, "path": path, "command": command}
                jobs.append(Job(f"{claim}: {variant} seed {run.seed}", train, arguments))
    return run_all(jobs, workers, lambda result: f"test error {result.get('test_error', 1):.2%}").failures


def collect(runs: Path) -> list[dict[str, Any]]:
    """The variants whose runs are finished: the entries of `results/claims.json`, errors in percent."""
    entries = []
    for claim, known in variants().items():
        for variant, knobs in known.items():
            folders = [RunFolder(folder_of(runs, claim, variant, seed)) for seed in range(SEEDS[claim])]
            finished = [folder for folder in folders if folder.result is not None]
            if not finished:
                continue
            results = [folder.result or {} for folder in finished]
            errors = [100 * result.get("test_error", 1.0) for result in results]
            entries.append(
                {
                    "claim": claim,
                    "variant": variant,
                    **knobs,
                    "seeds": [
                        {
                            "seed": result["seed"],
                            "validation_error": 100 * result.get("validation_error", 1.0),
                            "test_error": error,
                            "epochs": result["epochs"],
                        }
                        for result, error in zip(results, errors, strict=True)
                    ],
                    "test_error_mean": statistics.fmean(errors),
                    "test_error_std": statistics.stdev(errors) if len(errors) > 1 else 0.0,
                    "command": finished[0].config["command"],
                }
            )
    return entries


def updates_to(curve: Sequence[Mapping[str, Any]], threshold: float) -> int | None:
    """After how many updates the validation error of a run was first at or below the threshold; None: never.

    >>> updates_to([{"updates": 10, "validation_error": 0.4}, {"updates": 20, "validation_error": 0.1}], 0.1)
    20
    """
    return next((entry["updates"] for entry in curve if entry["validation_error"] <= threshold), None)


def publish(runs: Path, results: Path) -> bool:
    """Write `claims.json`, a page and the figures of what is finished; whether there was anything."""
    from ..report import figures  # which is slow to load

    entries = collect(runs)
    if not entries:
        print(f"fastweights: no finished runs of the claims in {runs}: fastweights reproduce claims", file=sys.stderr)
        return False
    write_json(results / "claims.json", entries)
    sections = []
    body: list[tuple[str, ...]]
    header: tuple[str, ...]
    for norm, words in ((True, "with"), (False, "without")):
        found = {
            (entry["rate"], entry["decay"]): entry["test_error_mean"]
            for entry in entries
            if entry["claim"] == "robust" and entry["layer_norm"] is norm
        }
        rates, decays = sorted({rate for rate, _ in found}), sorted({decay for _, decay in found})
        if len(found) == len(rates) * len(decays) > 0:
            errors = [[found[rate, decay] for decay in decays] for rate in rates]
            title = f"Test error in %, {words} layer normalisation"
            figure = figures.heat_map(errors, decays, rates, ("decay λ", "rate η"), title)
            picture = figures.save(figure, results / f"claims-{words}-norm.png")[0]
            sections.append(pages.Section(f"Rate and decay, {words} layer normalisation", figure=picture))
    header = ("variant", "test error, mean ± std", "seeds")
    for claim in ("inner steps", "settling"):
        body = [
            (
                entry["variant"],
                f"{entry['test_error_mean']:.2f} ± {entry['test_error_std']:.2f}",
                str(len(entry["seeds"])),
            )
            for entry in entries
            if entry["claim"] == claim
        ]
        if body:
            sections.append(pages.Section(claim.capitalize(), header=header, rows=body))
    body = convergence(curves(runs, "tuned"))
    if body:
        header = ("core", *(f"updates to {threshold:.0%} error" for threshold in THRESHOLDS))
        sections.append(
            pages.Section("Updates until the validation error is as low, 50 units", header=header, rows=body)
        )
    commands = sorted({entry["command"] for entry in entries})
    sections.append(pages.Section("Commands", commands=commands))
    title = "Associative retrieval: what the paper says, tried"
    write_text(results / "claims.md", pages.as_markdown(title, sections, results))
    write_text(results / "claims.html", pages.as_html(title, sections))
    print(f"written: {results / 'claims.html'} and, beside it, claims.md, claims.json and the figures")
    return True


def convergence(measured: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[tuple[str, ...]]:
    """A row per core: the least and the most updates that its seeds needed to each threshold."""
    rows = []
    for core, runs in measured.items():
        row = [core]
        for threshold in THRESHOLDS:
            needed = [updates_to(run, threshold) for run in runs]
            reached = sorted(each for each in needed if each is not None)
            never = len(needed) - len(reached)
            span = f"{reached[0]:,} to {reached[-1]:,}" if reached else ""
            row.append(", ".join(filter(None, (span, f"never in {never} of {len(needed)}" if never else ""))))
        rows.append(tuple(row))
    return rows
