"""What the paper says in words about associative retrieval, each claim as an experiment with 50 units.

Every variant is searched for with the same trials over the same ranges, then trained from fresh seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ...base.hints import did_you_mean
from ...report import pages, tables
from ...report.style import MODELS, Look, shades
from ...tasks.retrieval import sample
from ...training.supervised import Recipe
from ...training.workers import Workers
from ..cells import Planned, curves, finished, summary, train_all
from ..reports import Report, commands_of
from ..run import with_hyperparameters
from ..studies import FIRST_SEED, Study
from .run import Retrieval
from .table1 import FOR_ALL, THRESHOLDS, convergence

EPOCHS, SEEDS = 40, 10
MARGIN = 0.2  # points of test error: two variants that differ by less are called similar
BASE = "as in the paper"
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "2 inner steps": {"inner_steps": 2},
    "3 inner steps": {"inner_steps": 3},
    "method 2": {"settling": "identity"},
    "no layer normalisation": {"layer_norm": False},
}
HYPERPARAMETERS = (*FOR_ALL, "rate=0.003..3.0", "decay=0.5..0.99")
TRIALS = 12  # for each hyperparameter

# The selected hyperparameters of each variant, on the validation set.
TUNED: dict[str, dict[str, float]] = {}

# The map of errors over η and λ: one run each, shorter, with what was selected for that side.
RATES = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0)
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.99)
MAP_EPOCHS = 12
SIDES = {True: BASE, False: "no layer normalisation"}
CLAIMS = ("variants", "map")


def config(variant: str, setting: Mapping[str, Any], seed: int, epochs: int = EPOCHS) -> Retrieval:
    """The run of a variant with a setting."""
    run = Retrieval(units=50, training=Recipe(clip=0.5, epochs=epochs), seed=seed)
    found: Retrieval = with_hyperparameters(run, {**setting, **VARIANTS[variant]})
    return found


def study(variant: str) -> Study:
    """The search for the hyperparameters of a variant."""
    name = f"claims/{variant.replace(' ', '-')}"
    return Study(name, config(variant, {}, FIRST_SEED), HYPERPARAMETERS, EPOCHS // 3 + 1, TRIALS)


def tuned_setting(variant: str) -> dict[str, float]:
    """The selected hyperparameters."""
    if variant not in TUNED:
        raise ValueError(f"{variant!r} has not been tuned yet: fastweights search claims --variants {variant!r}")
    return TUNED[variant]


def folder_of(runs: Path, variant: str) -> Path:
    """Where its seeds are."""
    return runs / "claims" / variant.replace(" ", "-")


def map_folder(runs: Path, norm: bool, rate: float, decay: float) -> Path:
    """Where a point of the map is."""
    return runs / "claims" / "map" / ("with-norm" if norm else "without-norm") / f"rate-{rate:g},decay-{decay:g}"


def reproduce(claims: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train what the claims need into run folders that `collect` reads; what failed."""
    for claim in claims:
        if claim not in CLAIMS:
            hint = did_you_mean(claim, CLAIMS)
            raise ValueError(f"claims must be of {', '.join(map(repr, CLAIMS))}; got {claim!r}{hint}")
    plan = []
    if "variants" in (claims or CLAIMS):
        for variant in VARIANTS:
            for seed in range(SEEDS):
                run = config(variant, tuned_setting(variant), seed)
                plan.append(Planned(f"{variant} seed {seed}", run, folder_of(runs, variant) / f"seed-{seed}"))
    if "map" in (claims or CLAIMS):
        for norm, variant in SIDES.items():
            for rate in RATES:
                for decay in DECAYS:
                    run = config(variant, {**tuned_setting(variant), "rate": rate, "decay": decay}, 0, MAP_EPOCHS)
                    path = map_folder(runs, norm, rate, decay) / "seed-0"
                    plan.append(Planned(f"map: {path.parent.name}, norm {norm}", run, path))
    return train_all(plan, workers, command)


def collect(runs: Path) -> list[dict[str, Any]]:
    """What is finished: the entries of `results/claims.json`, errors in percent."""
    entries = []
    for variant in VARIANTS:
        if done := finished(folder_of(runs, variant)):
            kept = ("updates", "seconds", "validation_error")
            found = summary(done, study(variant).plan.trials, kept)
            entries.append({"claim": "variants", "variant": variant, "setting": tuned_setting(variant), **found})
    for norm in SIDES:
        for rate in RATES:
            for decay in DECAYS:
                if done := finished(map_folder(runs, norm, rate, decay)):
                    point = {"layer_norm": norm, "rate": rate, "decay": decay}
                    variant = ",".join(f"{name}-{value}" for name, value in point.items())
                    entries.append({"claim": "map", "variant": variant, **point, **summary(done, 0)})
    return entries


def _place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    if entry["claim"] == "variants":
        return 0, list(VARIANTS).index(entry["variant"])
    return 1, not entry["layer_norm"], entry["rate"], entry["decay"]


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


START_HEADER = ("variant", "rate η", "|A h| / |z| at each inner step", "share of the question")


def start_rows() -> list[tuple[str, ...]]:
    """What `at_the_start` says of the tuned variants."""
    rows: list[tuple[str, ...]] = []
    for variant in (each for each in VARIANTS if each in TUNED):
        setting = TUNED[variant]
        start = at_the_start(config(variant, setting, 0))
        loudness = ", ".join(f"{each:.2g}" for each in start.loudness)
        rows.append((variant, f"{setting['rate']:g}", loudness, f"{start.query_share:.3f}"))
    return rows


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figures of it; whether there was anything."""
    from ...report import figures  # which is slow to load

    entries = to.entries("claims", collect(to.runs), _place)
    if not entries:
        return False
    title, folder, sections = "Associative retrieval: the paper's claims", to.folder("claims"), []
    some = [entry for entry in entries if entry["claim"] == "variants"]
    if some:
        header = ("variant", "test error", "best val.", "seeds", "trials", "source")
        body = [
            (
                entry["variant"],
                tables.estimate(entry),
                f"{entry['test_error_best_validation']:.2f}",
                tables.seeds_of(entry),
                str(entry["trials"]),
                entry["source"],
            )
            for entry in some
        ]
        caption = f"Fast weights with 50 units. {tables.LEGEND}"
        to.show(f"{title}: variants", header, body, caption)
        shown = {entry["variant"]: entry for entry in to.drawn(some)}
        groups, picture = curves(shown, "validation_error"), None
        if groups:
            figure = figures.curves(groups, "validation error", looks=looks())
            figure.axes[0].set_yscale("log")
            picture = figures.save(figures.finish(figure), folder / "claims-variants.png")[0]
        sections.append(pages.Section("Variants", caption, header, body, picture))
        for what in ("updates", "seconds"):
            table = convergence(shown, what)
            if table:
                names = ("variant", *(f"{what} to {threshold:.0%} error" for threshold in THRESHOLDS))
                sections.append(
                    pages.Section(f"{what.capitalize()} until the validation error is as low", "", names, table)
                )
    for norm, words in ((True, "with"), (False, "without")):
        errors_at = {
            (entry["rate"], entry["decay"]): entry["test_error_mean"]
            for entry in to.drawn(entries)
            if entry["claim"] == "map" and entry["layer_norm"] is norm
        }
        if len(errors_at) == len(RATES) * len(DECAYS):
            errors = [[errors_at[rate, decay] for decay in DECAYS] for rate in RATES]
            figure = figures.heat_map(errors, DECAYS, RATES, ("decay λ", "rate η"))
            picture = figures.save(figure, folder / f"claims-{words}-norm.png")[0]
            heading = f"Test error in % by rate and decay, {words} layer normalisation"
            text = f"One run of {MAP_EPOCHS} epochs each; all else as selected for this side."
            sections.append(pages.Section(heading, text, figure=picture))
    if TUNED:
        text = (
            "Before any training, at the query: how many times longer what the memory answers is than the input z, at "
            "each inner step, and how much of the variance of the last state the letter asked for decides, the string "
            "being given (with an empty memory: 0.79)."
        )
        sections.append(pages.Section("At the start", text, START_HEADER, start_rows()))
    sections.append(pages.Section("Commands", commands=commands_of(entries)))
    to.write("claims", title, sections, entries)
    return True


def looks() -> dict[str, Look]:
    """How the variants are drawn: shades of the colour of fast weights."""
    colours = shades(MODELS["fast-weights"].colour, len(VARIANTS))
    lines = ("-", "--", ":", "-.", (0, (1, 1)))
    return {
        variant: Look(variant, colour, line)  # type: ignore[arg-type]
        for variant, colour, line in zip(VARIANTS, colours, lines, strict=False)
    }
