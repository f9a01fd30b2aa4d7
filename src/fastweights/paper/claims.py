"""What the paper says in words about associative retrieval, each claim as a small experiment with 50 units."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ..base.hints import did_you_mean
from ..report import pages, tables
from ..report.style import MODELS, Look, shades
from ..tasks.retrieval import sample
from ..training.workers import Workers
from .cells import Cell, Planned, curves, finished, summary, train_all
from .reports import Report, commands_of
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
EPOCHS = {"robust": 12, "inner steps": 30, "settling": 30}
SEEDS = {"robust": 1, "inner steps": 3, "settling": 3}


def variants() -> dict[str, dict[str, dict[str, Any]]]:
    """What each claim varies: claim → name of the variant → hyperparameters that differ from Table 1."""
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


def runs_of(claim: str, hyperparameters: Mapping[str, Any]) -> list[Retrieval]:
    """One run per seed."""
    cell = Cell("fast-weights", 50)
    found = []
    for seed in range(SEEDS[claim]):
        base = config(cell, INNER_STEPS_SETTING if claim == "inner steps" else TUNED[str(cell)], seed)
        recipe = dataclasses.replace(base.training, epochs=EPOCHS[claim])
        found.append(dataclasses.replace(base, training=recipe, **hyperparameters))
    return found


def folder_of(runs: Path, claim: str, variant: str) -> Path:
    """Where its seeds are."""
    return runs / "claims" / claim.replace(" ", "-") / variant


def reproduce(claims: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train what the claims need into run folders that `collect` reads; what failed."""
    known = variants()
    for claim in claims:
        if claim not in known:
            hint = did_you_mean(claim, known)
            raise ValueError(f"claims must be of {', '.join(map(repr, known))}; got {claim!r}{hint}")
    plan = []
    for claim in claims or known:
        for variant, hyperparameters in known[claim].items():
            for run in runs_of(claim, hyperparameters):
                path = folder_of(runs, claim, variant) / f"seed-{run.seed}"
                plan.append(Planned(f"{claim}: {variant} seed {run.seed}", run, path))
    return train_all(plan, workers, command)


def collect(runs: Path) -> list[dict[str, Any]]:
    """The variants whose runs are finished: the entries of `results/claims.json`, errors in percent."""
    entries = []
    for claim, known in variants().items():
        for variant, hyperparameters in known.items():
            done = finished(folder_of(runs, claim, variant))
            if done:
                found = summary(done, () if claim == "robust" else ("validation_error",))
                entries.append({"claim": claim, "variant": variant, **hyperparameters, **found})
    return entries


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
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
    for hyperparameters in variants()["inner steps"].values():
        start = at_the_start(runs_of("inner steps", hyperparameters)[0])
        loudness = ", ".join(f"{each:.2g}" for each in start.loudness)
        rows.append(
            (str(hyperparameters["inner_steps"]), f"{hyperparameters['rate']:g}", loudness, f"{start.query_share:.3f}")
        )
    return rows


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figures of it; whether there was anything."""
    from ..report import figures  # which is slow to load

    entries = to.entries("claims", collect(to.runs), _place)
    if not entries:
        return False
    title, folder, sections = "Associative retrieval: the paper's claims", to.folder("claims"), []
    body: list[tuple[str, ...]]
    header: tuple[str, ...]
    for norm, words in ((True, "with"), (False, "without")):
        errors_at = {
            (entry["rate"], entry["decay"]): entry["test_error_mean"]
            for entry in to.drawn(entries)
            if entry["claim"] == "robust" and entry["layer_norm"] is norm
        }
        rates, decays = sorted({rate for rate, _ in errors_at}), sorted({decay for _, decay in errors_at})
        if len(errors_at) == len(rates) * len(decays) > 0:
            errors = [[errors_at[rate, decay] for decay in decays] for rate in rates]
            figure = figures.heat_map(errors, decays, rates, ("decay λ", "rate η"))
            heat_map = figures.save(figure, folder / f"claims-{words}-norm.png")[0]
            heading = f"Test error in % by rate and decay, {words} layer normalisation"
            sections.append(pages.Section(heading, figure=heat_map))
    header = ("variant", "test error, mean ± std", "seeds", "source")
    for claim in ("inner steps", "settling"):
        some = [entry for entry in entries if entry["claim"] == claim]
        body = [
            (
                entry["variant"],
                tables.spread(entry["test_error_mean"], entry["test_error_std"], len(entry["seeds"])),
                tables.seeds_of(entry),
                entry["source"],
            )
            for entry in some
        ]
        shown = {entry["variant"]: entry for entry in to.drawn(some)}
        groups = curves(shown, "validation_error")
        picture = folder / f"claims-{claim.replace(' ', '-')}.png"
        if groups.keys() == shown.keys() != set():
            figure = figures.curves(groups, "validation error", looks=looks(claim))
            figure.axes[0].set_yscale("log")
            figures.save(figures.finish(figure), picture)
        if body:
            to.show(f"{title}: {claim}", header, body, "Test error in %.")
            text = "Test error in %, and validation errors while training: fast weights with 50 units."
            sections.append(
                pages.Section(claim.capitalize(), text, header, body, picture if picture.exists() else None)
            )
    if any(entry["claim"] == "inner steps" for entry in entries):
        text = (
            "Before any training, at the query: how many times longer what the memory answers is than the input z, at "
            "each inner step, and how much of the variance of the last state the letter asked for decides, the string "
            "being given (0: the question has drowned; with an empty memory: 0.79)."
        )
        sections.append(pages.Section("Inner steps at the start", text, START_HEADER, start_rows()))
    sections.append(pages.Section("Commands", commands=commands_of(entries)))
    to.write("claims", title, sections, entries)
    return True


def looks(claim: str) -> dict[str, Look]:
    """How the variants of a claim are drawn: in the colour of fast weights, a shade for each rate."""
    several = claim == "inner steps"
    what, kinds = ("inner_steps", INNER_STEPS) if several else ("settling", SETTLINGS)
    rates = INNER_STEPS_RATES if several else SETTLING_RATES
    colours = dict(zip(rates, shades(MODELS["fast-weights"].colour, len(rates)), strict=True))
    lines = dict(zip(kinds, ("-", "--", ":"), strict=False))
    return {
        variant: Look(variant, colours[hyperparameters["rate"]], lines[hyperparameters[what]])
        for variant, hyperparameters in variants()[claim].items()
    }
