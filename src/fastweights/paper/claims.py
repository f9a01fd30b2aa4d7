"""What the paper says in words about associative retrieval, each claim as a small experiment with 50 units."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ..report import pages
from ..tasks.retrieval import sample
from ..training.files import write_json
from ..training.workers import Workers
from . import table1
from .cells import Cell, Planned, curves, finished, summary, train_all, with_published, write_page
from .retrieval import Retrieval
from .table1 import TUNED, Setting, config

RATES = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0)
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.99)
INNER_STEPS = (1, 2, 3)
# More inner steps feed the memory's answer back into the query more often, and drown the question in it: they want
# larger inputs and a lower rate than one step does (see `at_the_start`).
INNER_STEPS_SETTING = Setting(lr=1e-3, input_range=1.0, clip=0.5)
INNER_STEPS_RATES = (0.5, 0.1, 0.03)
SETTLINGS = ("sustained", "identity")
SETTLING_RATES = (0.5, 0.1, 0.03)
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
    steps = {
        f"steps-{steps},rate-{rate:g}": {"inner_steps": steps, "rate": rate}
        for steps in INNER_STEPS
        for rate in INNER_STEPS_RATES
    }
    settling = {
        f"{name},rate-{rate:g}": {"settling": name, "rate": rate} for name in SETTLINGS for rate in SETTLING_RATES
    }
    return {"robust": robust, "inner steps": steps, "settling": settling}


def runs_of(claim: str, knobs: Mapping[str, Any]) -> list[Retrieval]:
    """One run per seed."""
    cell = Cell("fast-weights", 50)
    found = []
    for seed in range(SEEDS[claim]):
        base = config(cell, INNER_STEPS_SETTING if claim == "inner steps" else TUNED[str(cell)], seed)
        recipe = dataclasses.replace(base.training, epochs=EPOCHS[claim])
        found.append(dataclasses.replace(base, training=recipe, **knobs))
    return found


def folder_of(runs: Path, claim: str, variant: str) -> Path:
    """Where its seeds are."""
    return runs / "claims" / claim.replace(" ", "-") / variant


def reproduce(claims: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train what the claims need into run folders that `collect` reads; what failed."""
    known = variants()
    for claim in claims:
        if claim not in known:
            raise ValueError(f"claims must be of {', '.join(map(repr, known))}; got {claim!r}")
    plan = []
    for claim in claims or known:
        for variant, knobs in known[claim].items():
            for run in runs_of(claim, knobs):
                path = folder_of(runs, claim, variant) / f"seed-{run.seed}"
                plan.append(Planned(f"{claim}: {variant} seed {run.seed}", run, path))
    return train_all(plan, workers, command)


def collect(runs: Path) -> list[dict[str, Any]]:
    """The variants whose runs are finished: the entries of `results/claims.json`, errors in percent."""
    entries = []
    for claim, known in variants().items():
        for variant, knobs in known.items():
            done = finished(folder_of(runs, claim, variant))
            if done:
                found = summary(done, () if claim == "robust" else ("validation_error",))
                entries.append({"claim": claim, "variant": variant, **knobs, **found})
    return entries


def _place(entry: dict[str, Any]) -> tuple[int, int]:
    known = variants()
    return list(known).index(entry["claim"]), list(known[entry["claim"]]).index(entry["variant"])


class Start(NamedTuple):
    """What the inner loop makes of a question before any training."""

    loudness: list[float]  # |A h_s| / |z| at the last step, for s = 0, 1, …
    query_share: float  # of the variance of the last state: what the letter asked for decides, the string being given


@torch.no_grad()
def at_the_start(run: Retrieval, strings: int = 200) -> Start:
    """How loud the memory's answer is beside the input, and what is left of the question, in a net of this run."""
    net = run.make_net()
    tokens, _ = sample(strings, run.pairs, separators=run.separators, generator=torch.Generator().manual_seed(0))
    letters = tokens[:, : 2 * run.pairs : 2]
    asked = torch.cat((tokens[:, None, :-1].expand(-1, run.pairs, -1), letters.unsqueeze(-1)), -1).flatten(0, 1)
    hidden, attention = net.trace(asked)
    states, last = hidden[0, :, -1], hidden[0, -1, -1]
    core: Any = net.core
    z = functional.linear(net.inputs(asked)[-1], core.weight_ih_l0, core.bias_l0) + states[-2] @ core.weight_hh_l0.t()
    answers = torch.einsum("sbt,tbh->sbh", attention[0, -1], states)
    loudness = (answers.norm(dim=-1) / z.norm(dim=-1)).mean(-1)
    within = last.view(strings, run.pairs, -1).var(1, correction=0).sum(-1).mean()
    return Start(loudness.tolist(), float(within / last.var(0, correction=0).sum()))


START_HEADER = ("inner steps", "rate η", "|A h| / |z| at each inner step", "share of the question")


def start_rows() -> list[tuple[str, ...]]:
    """What `at_the_start` says of the variants of the inner steps."""
    rows: list[tuple[str, ...]] = []
    for knobs in variants()["inner steps"].values():
        start = at_the_start(runs_of("inner steps", knobs)[0])
        loudness = ", ".join(f"{each:.2g}" for each in start.loudness)
        rows.append((str(knobs["inner_steps"]), f"{knobs['rate']:g}", loudness, f"{start.query_share:.3f}"))
    return rows


def updates_to(errors: Sequence[float], updates: Sequence[float], threshold: float) -> float | None:
    """After how many updates the validation error of a run was first at or below the threshold; None: never.

    >>> updates_to([0.4, 0.1], [10, 20], 0.1)
    20
    """
    return next((at for at, error in zip(updates, errors, strict=True) if error <= threshold), None)


def publish(runs: Path, results: Path) -> bool:
    """Write `claims.json`, a page and the figures of what is finished; whether there was anything."""
    from ..report import figures  # which is slow to load

    found = collect(runs)
    if not found:
        print(f"fastweights: no finished runs of the claims in {runs}: fastweights reproduce claims", file=sys.stderr)
        return False
    entries = with_published(results / "claims.json", found, _place)
    write_json(results / "claims.json", entries)
    sections = []
    body: list[tuple[str, ...]]
    header: tuple[str, ...]
    for norm, words in ((True, "with"), (False, "without")):
        errors_at = {
            (entry["rate"], entry["decay"]): entry["test_error_mean"]
            for entry in entries
            if entry["claim"] == "robust" and entry["layer_norm"] is norm
        }
        rates, decays = sorted({rate for rate, _ in errors_at}), sorted({decay for _, decay in errors_at})
        if len(errors_at) == len(rates) * len(decays) > 0:
            errors = [[errors_at[rate, decay] for decay in decays] for rate in rates]
            title = f"Test error in %, {words} layer normalisation"
            figure = figures.heat_map(errors, decays, rates, ("decay λ", "rate η"), title)
            picture = figures.save(figure, results / f"claims-{words}-norm.png")[0]
            sections.append(pages.Section(f"Rate and decay, {words} layer normalisation", figure=picture))
    header = ("variant", "test error, mean ± std", "seeds")
    for claim in ("inner steps", "settling"):
        shown = {entry["variant"]: entry for entry in entries if entry["claim"] == claim}
        body = [
            (
                variant,
                f"{entry['test_error_mean']:.2f} ± {entry['test_error_std']:.2f}",
                str(len(entry["seeds"])),
            )
            for variant, entry in shown.items()
        ]
        groups, picture = curves(shown, "validation_error"), results / f"claims-{claim.replace(' ', '-')}.png"
        if groups.keys() == shown.keys() != set():
            figure = figures.curves(groups, "validation error")
            figure.axes[0].set_yscale("log")
            figures.save(figures.finish(figure, f"Fast weights, 50 units: {claim}"), picture)
        if body:
            kept = picture if picture.exists() else None
            sections.append(pages.Section(claim.capitalize(), header=header, rows=body, figure=kept))
    if any(entry["claim"] == "inner steps" for entry in entries):
        text = (
            "Before any training, at the query: how many times longer what the memory answers is than the input z, at "
            "each inner step, and how much of the variance of the last state the letter asked for decides, the string "
            "being given (0: the question has drowned; with an empty memory: 0.79)."
        )
        sections.append(pages.Section("Inner steps at the start", text, START_HEADER, start_rows()))
    body = convergence(table1.with_50_units(table1.published(runs, results)))
    if body:
        header = ("core", *(f"updates to {threshold:.0%} error" for threshold in THRESHOLDS))
        sections.append(
            pages.Section("Updates until the validation error is as low, 50 units", header=header, rows=body)
        )
    commands = sorted({entry["command"] for entry in entries})
    sections.append(pages.Section("Commands", commands=commands))
    write_page("Associative retrieval: what the paper says, tried", sections, results, "claims")
    return True


def convergence(entries: Mapping[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row per core that has curves: the least and the most updates that its seeds needed to each threshold."""
    rows, errors, updates = [], curves(entries, "validation_error"), curves(entries, "updates")
    for core, runs in errors.items():
        row = [core]
        for threshold in THRESHOLDS:
            needed = [updates_to(run, at, threshold) for run, at in zip(runs, updates[core], strict=True)]
            reached = sorted(each for each in needed if each is not None)
            never = len(needed) - len(reached)
            span = f"{reached[0]:,} to {reached[-1]:,}" if reached else ""
            row.append(", ".join(filter(None, (span, f"never in {never} of {len(needed)}" if never else ""))))
        rows.append(tuple(row))
    return rows
