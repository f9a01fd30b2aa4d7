"""Table 2: MNIST by glimpses, with four models of three sizes, trained on images as they are and augmented."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.hints import did_you_mean
from ..report import pages, tables
from ..tasks import mnist
from ..training.supervised import Recipe
from ..training.workers import Workers
from .cells import (
    Cell,
    Planned,
    Search,
    curves,
    entry,
    finished,
    rate_search,
    rates_found,
    summary,
    train_all,
)
from .glimpses import Glimpses, load_net, retrieved
from .reports import Report, commands_of

SIZES = (50, 100, 200)
PAPER = {  # test error, %
    "irnn": (12.95, 1.95, 1.42),
    "lstm": (12.0, 1.55, 1.10),
    "convnet": (1.81, 1.00, 0.9),
    "fast-weights": (7.21, 1.30, 0.85),
}
# The last is not in the paper: what is left of fast weights without the fast weights.
MODELS = (*PAPER, "ln-rnn")
CELLS = tuple(Cell(model, units) for units in SIZES for model in MODELS)
RECIPES = {"plain": 0, "augmented": 2}  # pixels: the largest random translation of training images
EPOCHS, SEEDS = 20, 3
CURVES = 100  # the units whose curves are shown

# The search, the same for every cell: each learning rate in a short run of its own.
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEARCH_EPOCHS, SEARCH_SEED = 6, 1000

# Printed beside the table: the search that all models share does not have these.
SETTLED = (
    "Of fast weights, λ = 0.95 and η = 0.05 were settled before the search, in five single runs that showed test "
    "errors, too; what η = 0.5 is worth is among the ablations."
)

# Selected learning rates, on the validation set, by recipe and cell.
TUNED: dict[str, dict[str, float]] = {
    "plain": {
        "irnn/50": 1e-2,
        "lstm/50": 1e-2,
        "convnet/50": 1e-2,
        "fast-weights/50": 1e-2,
        "ln-rnn/50": 1e-2,
        "irnn/100": 3e-3,
        "lstm/100": 1e-2,
        "convnet/100": 1e-2,
        "fast-weights/100": 1e-2,
        "ln-rnn/100": 1e-3,
        "irnn/200": 3e-3,
        "lstm/200": 1e-2,
        "convnet/200": 3e-3,
        "fast-weights/200": 3e-3,
        "ln-rnn/200": 1e-3,
    },
    "augmented": {
        "irnn/50": 1e-2,
        "lstm/50": 1e-2,
        "convnet/50": 1e-2,
        "fast-weights/50": 1e-2,
        "ln-rnn/50": 3e-3,
        "irnn/100": 3e-3,
        "lstm/100": 1e-2,
        "convnet/100": 3e-3,
        "fast-weights/100": 3e-3,
        "ln-rnn/100": 1e-3,
        "irnn/200": 3e-3,
        "lstm/200": 1e-2,
        "convnet/200": 3e-3,
        "fast-weights/200": 3e-3,
        "ln-rnn/200": 1e-3,
    },
}

QUICK = {"epochs": 4, "examples": 10_000, "lr": 3e-3}
QUICK_CELLS = tuple(f"{model}/50" for model in PAPER)

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
}


def paper_error(cell: Cell) -> float | None:
    """The paper's test error, in percent."""
    return PAPER[cell.model][SIZES.index(cell.units)] if cell.model in PAPER else None


def config(cell: Cell, recipe: str, lr: float, seed: int, epochs: int | None = None) -> Glimpses:
    """The run of a cell with a learning rate; None: as many epochs as in the table."""
    return Glimpses(
        model=cell.model,  # type: ignore[arg-type]
        units=cell.units,
        translation=RECIPES[recipe],
        rate=0.05,
        training=Recipe(lr=lr, epochs=epochs or EPOCHS, schedule="warm-cosine"),
        seed=seed,
    )


def search(runs: Path, recipe: str) -> Search:
    """The search for the learning rates of all cells."""

    def make(cell: Cell, lr: float) -> Glimpses:
        return config(cell, recipe, lr, SEARCH_SEED, SEARCH_EPOCHS)

    return rate_search(runs / f"search-table2-{recipe}", LEARNING_RATES, SEARCH_EPOCHS, make)


def selected(runs: Path) -> dict[str, dict[str, Any]]:
    """What the search tried and selected, by recipe and cell: what `results/table2-search.json` has."""
    found = {recipe: rates_found(search(runs, recipe), LEARNING_RATES, CELLS) for recipe in RECIPES}
    return {recipe: cells for recipe, cells in found.items() if cells}


def tuned(cell: Cell, recipe: str) -> float:
    """The selected learning rate."""
    if str(cell) not in TUNED[recipe]:
        raise ValueError(f"{cell} has not been tuned for {recipe!r} images yet: fastweights search table2")
    return TUNED[recipe][str(cell)]


def reproduce(
    cells: Sequence[Cell],
    recipes: Sequence[str],
    runs: Path,
    workers: Workers,
    command: str,
    *,
    seeds: int,
    quick: bool,
) -> dict[str, str]:
    """Train the cells, each with its seeds, into run folders that `report` reads; what failed.

    Args:
        quick: few epochs with few images, for a look; such runs have folders of their own.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    plan = []
    for recipe in recipes:
        for cell in cells:
            for seed in range(seeds):
                if quick:
                    run = config(cell, recipe, QUICK["lr"], seed, int(QUICK["epochs"]))
                    run = dataclasses.replace(run, examples=int(QUICK["examples"]))
                else:
                    run = config(cell, recipe, tuned(cell, recipe), seed)
                path = runs / experiment(recipe, quick) / cell.folder / f"seed-{seed}"
                plan.append(Planned(f"{cell} {recipe} seed {seed}", run, path, quick or cell.units == CURVES))
    return train_all(plan, workers, command)


def experiment(recipe: str, quick: bool = False) -> str:
    """The name of its folder of runs."""
    return f"table2-quick/{recipe}" if quick else f"table2/{recipe}"


def reproduce_ablations(changes: Sequence[str], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Train fast weights with these changes, or with each if none is named; what failed."""
    for change in changes:
        if change not in ABLATIONS:
            hint = did_you_mean(change, ABLATIONS)
            raise ValueError(f"changes must be some of {', '.join(map(repr, ABLATIONS))}; got {change!r}{hint}")
    cell = Cell("fast-weights", CURVES)
    plan = []
    for name in changes or ABLATIONS:
        for seed in range(SEEDS):
            run = dataclasses.replace(config(cell, "plain", tuned(cell, "plain"), seed), **ABLATIONS[name])
            plan.append(Planned(f"{name}, seed {seed}", run, ablation_folder(runs, name) / f"seed-{seed}"))
    return train_all(plan, workers, command)


def ablation_folder(runs: Path, name: str) -> Path:
    """Where its seeds are."""
    if not ABLATIONS[name]:
        return runs / experiment("plain") / Cell("fast-weights", CURVES).folder
    return runs / "glimpses-ablations" / name.replace(" ", "-")


def collect(runs: Path, quick: bool = False) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table2.json`."""
    return [
        entry(cell, recipe, paper_error(cell), done, ("test_error",))
        for recipe in RECIPES
        for cell in CELLS
        if (done := finished(runs / experiment(recipe, quick) / cell.folder))
    ]


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figures of it; whether there was anything."""
    from ..report import figures  # which is slow to load

    found = collect(to.runs, to.quick)
    entries = to.entries("table2", found, _place)
    if not entries:
        return False
    title, folder = "Table 2: MNIST by glimpses", to.folder("table2")
    caption = f"Test error in %. {tables.LEGEND} {SETTLED}"
    sections = []
    for recipe in RECIPES:
        some = [each for each in entries if each["recipe"] == recipe]
        if some:
            rows = tables.rows(some, usual=recipe)
            to.show(f"{title}, {recipe} images", tables.HEADER, rows, caption)
            heading = f"Test error, {recipe} images"
            sections.append(pages.Section(heading, caption, tables.HEADER, rows, commands=commands_of(some)))
    for recipe in RECIPES:
        units = 50 if to.quick else CURVES
        some = [each for each in entries if (each["recipe"], each["units"]) == (recipe, units)]
        groups = curves({each["model"]: each for each in to.drawn(some)}, "test_error")
        picture = folder / f"table2-{recipe}.png"
        if groups:
            figure = figures.curves(groups, "test error, %", scale=100)
            axes = figure.axes[0]
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            figures.save(figures.finish(figure), picture)
        if picture.exists():
            heading = f"Test error while training, {units} units, {recipe} images"
            sections.append(pages.Section(heading, figure=picture))
    best, picture = _example(found, to.runs, to.quick), folder / "table2-retrieved.png"
    if best is not None:
        run, images = finished(best)[0], mnist.split("test", count=6)[0]
        net = load_net(run)
        got = retrieved(net, images)
        assert net.schedule is not None
        figures.save(figures.retrieved(images.tolist(), net.schedule.glimpses, got.attention.tolist()), picture)
    if picture.exists():
        text = (
            "Each quadrant is stored before its details are looked at. Where the net comes back to a quadrant (rows), "
            "it reads its memory: how strongly each stored quadrant (columns) answers. The largest net of fast weights."
        )
        sections.append(pages.Section("What was retrieved from the memory", text, figure=picture))
    to.write("table2", title, sections, entries)
    return True


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    return list(RECIPES).index(entry["recipe"]), CELLS.index(Cell(entry["model"], entry["units"]))


def collect_ablations(runs: Path) -> list[dict[str, Any]]:
    """The ablations whose runs are finished: the entries of `results/glimpses-ablations.json`."""
    found = []
    for name in ABLATIONS:
        done = finished(ablation_folder(runs, name))
        if done:
            found.append({"change": name, "hyperparameters": ABLATIONS[name], **summary(done)})
    return found


def report_ablations(to: Report) -> bool:
    """Show the ablations that are finished, and write a page of them; whether there was anything."""
    found = collect_ablations(to.runs)
    if [entry["change"] for entry in found] == [BASE]:  # which is of the table itself
        found = []
    entries = to.entries("glimpses-ablations", found, lambda entry: list(ABLATIONS).index(entry["change"]))
    if not entries:
        return False
    header = ("what is changed", "test error, mean ± std", "seeds", "source")
    rows = [
        (
            entry["change"],
            tables.spread(entry["test_error_mean"], entry["test_error_std"], len(entry["seeds"])),
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


def _example(entries: Sequence[dict[str, Any]], runs: Path, quick: bool) -> Path | None:
    """The runs of the largest net of fast weights."""
    sizes = [(found["units"], found["recipe"]) for found in entries if found["model"] == "fast-weights"]
    if not sizes:
        return None
    units, recipe = max(sizes)
    return runs / experiment(recipe, quick) / Cell("fast-weights", units).folder
