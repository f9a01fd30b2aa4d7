"""Table 3: facial expressions by glimpses, with four models of 200 units, on three kinds of faces."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console
from torch import Tensor, nn

from ..report import pages, tables
from ..tasks.faces import sets
from ..tasks.faces.sets import Faces
from ..training.files import write_json
from ..training.supervised import Recipe
from ..training.workers import Workers
from .cells import Cell, Planned, Search, entry, finished, rate_search, rates_found, train_all, write_page
from .glimpses import Data, Glimpses, load_net

UNITS = 200
PAPER = {"irnn": 81.11, "lstm": 81.32, "convnet": 88.23, "fast-weights": 86.34}  # test accuracy on Multi-PIE, %
# The last is not in the paper: it shows how far one gets without any hidden units.
MODELS = (*PAPER, "linear")
CELLS = tuple(Cell(model, UNITS) for model in MODELS)
FaceData = Literal["rendered", "multipie", "fer", "fer+"]
DATA: tuple[FaceData, ...] = get_args(FaceData)
QUICK_DATA: Data = "rendered-20"
EPOCHS, SEEDS = 12, 3
QUICK_EPOCHS = 8

# The search, the same for every cell: each learning rate in a short run of its own.
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SEARCH_EPOCHS, SEARCH_SEED = 4, 1000

# What `search` chose, on the validation identities, by data and cell; data that nobody searched take the rendered's.
TUNED: dict[str, dict[str, float]] = {
    "rendered": {
        "irnn/200": 1e-3,
        "lstm/200": 3e-3,
        "convnet/200": 3e-3,
        "fast-weights/200": 1e-3,
        "linear/200": 3e-3,
    }
}
QUICK_LR = 1e-3


def config(cell: Cell, data: Data, lr: float, seed: int, epochs: int) -> Glimpses:
    """The run of a cell with a learning rate."""
    return Glimpses(
        model=cell.model,  # type: ignore[arg-type]
        units=cell.units,
        data=data,
        rate=0.05,
        training=Recipe(lr=lr, epochs=epochs, schedule="warm-cosine"),
        seed=seed,
    )


def search(runs: Path, data: Data) -> Search:
    """The search for the learning rates of all cells."""

    def make(cell: Cell, lr: float) -> Glimpses:
        return config(cell, data, lr, SEARCH_SEED, SEARCH_EPOCHS)

    return rate_search(runs / f"search-table3-{data}", LEARNING_RATES, SEARCH_EPOCHS, make)


def chosen(runs: Path, data: Data) -> dict[str, Any]:
    """What the search tried and chose, by cell: what `results/table3-search.json` has."""
    return rates_found(search(runs, data), LEARNING_RATES, CELLS)


def reproduce(
    cells: Sequence[Cell], data: Data, runs: Path, workers: Workers, command: str, *, seeds: int, quick: bool
) -> dict[str, str]:
    """Train the cells, each with its seeds, into run folders that `publish` reads; what failed.

    Args:
        quick: a few epochs with a learning rate that nobody searched for: a look.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    tuned = TUNED.get(data, TUNED["rendered"])
    plan = []
    for cell in cells:
        if not quick and str(cell) not in tuned:
            raise ValueError(f"{cell} has not been tuned yet: fastweights search table3")
        for seed in range(seeds):
            lr = QUICK_LR if quick else tuned[str(cell)]
            run = config(cell, data, lr, seed, QUICK_EPOCHS if quick else EPOCHS)
            path = runs / experiment(data) / cell.folder / f"seed-{seed}"
            plan.append(Planned(f"{cell} seed {seed}", run, path))
    return train_all(plan, workers, command)


def experiment(data: Data) -> str:
    """The name of its folder of runs."""
    return f"table3-{data}"


def collect(runs: Path, data: Data) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table3.json`; the paper's are errors, too."""
    return [
        entry(cell, data, round(100 - PAPER[cell.model], 2) if cell.model in PAPER else None, done)
        for cell in CELLS
        if (done := finished(runs / experiment(data) / cell.folder))
    ]


@torch.no_grad()
def answers(net: nn.Module, images: Tensor) -> Tensor:
    """What a net takes the images for."""
    return torch.cat([net(some).argmax(1) for some in images.split(1000)])


def confusion(labels: Tensor, said: Tensor, classes: int) -> Tensor:
    """How often each class (rows) was taken for each (columns), in percent of it.

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
    tensor([[ 50.,  50.],
            [  0., 100.]])
    """
    counts = torch.zeros(classes, classes).index_put((labels, said), torch.tensor(1.0), accumulate=True)
    return 100 * counts / counts.sum(1, keepdim=True).clamp(min=1)


def accuracy_by(groups: Tensor, right: Tensor, count: int) -> list[float]:
    """The share of right answers in each of `count` groups, in percent; one that is empty has 0.

    >>> accuracy_by(torch.tensor([0, 0, 1]), torch.tensor([True, False, True]), 2)
    [50.0, 100.0]
    """
    totals = torch.bincount(groups, minlength=count).clamp(min=1)
    return (100 * torch.bincount(groups, right.float(), minlength=count) / totals).tolist()


HEADER = ("model", "units", "accuracy", "chosen", "paper", "seeds", "weights", "s/epoch")


def rows(entries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row of text per entry: accuracies in percent, as in the paper."""
    found: list[tuple[str, ...]] = []
    for (model, units, _, _, _, *rest), each in zip(
        tables.rows(entries, usual=entries[0]["recipe"]), entries, strict=True
    ):
        ours = f"{100 - each['test_error_mean']:.2f} ± {each['test_error_std']:.2f}"
        best = f"{100 - each['test_error_best_validation']:.2f}"
        paper = "" if each["paper"] is None else f"{100 - each['paper']:.2f}"
        found.append((model, units if model in PAPER else "", ours, best, paper, *rest))
    return found


def publish(runs: Path, results: Path, quick: bool = False) -> bool:
    """Show what is finished, and write `table3.json`, a page and the figures of it; whether there was anything."""
    data = (QUICK_DATA,) if quick else DATA
    entries = [found for each in data for found in collect(runs, each)]
    if not entries:
        print(f"fastweights: no finished runs of Table 3 in {runs}: fastweights reproduce table3", file=sys.stderr)
        return False
    title = "Table 3: facial expressions by glimpses"
    caption = f"Test accuracy in %; the paper's is on Multi-PIE. {tables.LEGEND}"
    sections = []
    for each in data:
        some = [found for found in entries if found["recipe"] == each]
        if some:
            body = rows(some)
            Console().print(tables.terminal(f"{title}, {each} faces", HEADER, body, caption))
            commands = sorted({found["command"] for found in some})
            text = f"{caption} A quick look: few people and epochs, far from the published ones." if quick else caption
            sections.append(pages.Section(f"Test accuracy, {each} faces", text, HEADER, body, commands=commands))
            sections += _details(runs, results, each)
    write_json(results / "table3.json", entries)
    write_page(title, sections, results, "table3")
    return True


def _details(runs: Path, results: Path, data: Data) -> list[pages.Section]:
    """Where the nets err on the test faces of a set: one run of each model, the best on the validation set."""
    from ..report import figures  # which is slow to load

    try:
        faces = sets.load(sets.folder_of(data), "test")
    except FileNotFoundError as error:
        print(f"fastweights: without the faces there is less to show: {error}", file=sys.stderr)
        return []
    classes, views, lights = (faces.facts[name] for name in ("classes", "views", "lights"))
    sections, matrices, by_view, by_light = [], {}, {}, {}
    for cell in CELLS:
        done = finished(runs / experiment(data) / cell.folder)
        if not done:
            continue
        best = min(done, key=lambda run: (run.result or {}).get("validation_error", 1.0))
        said = answers(load_net(best), faces.images)
        matrices[cell.model] = confusion(faces.labels, said, len(classes)).tolist()
        if views:
            right = said == faces.labels
            by_view[cell.model] = accuracy_by(faces.views, right, len(views))
            by_light[cell.model] = accuracy_by(faces.lights, right, len(lights))
    if matrices:
        picture = figures.save(figures.confusion(matrices, classes), results / f"table3-confusion-{data}.png")[0]
        text = (
            "Rows: what is shown. Columns: what it is taken for, in % of the row. The seed that was best on validation."
        )
        sections.append(pages.Section(f"What is taken for what, {data} faces", text, figure=picture))
    for what, names, found in (("view", views, by_view), ("light", lights, by_light)):
        if found:
            body = [
                (name, *(f"{accuracies[place]:.1f}" for accuracies in found.values()))
                for place, name in enumerate(names)
            ]
            sections.append(pages.Section(f"Accuracy by {what}, {data} faces", "In %.", (what, *found), body))
    sheet = figures.save(contact_sheet(faces), results / f"table3-faces-{data}.png")[0]
    return [*sections, pages.Section(f"The faces, {data}", "Of the test set.", figure=sheet)]


def contact_sheet(faces: Faces, each: int = 8, seed: int = 0) -> Any:
    """A figure with some faces of every class."""
    from ..report import figures

    generator = torch.Generator().manual_seed(seed)
    found = {}
    for label, name in enumerate(faces.facts["classes"]):
        places = (faces.labels == label).nonzero()[:, 0]
        some = places[torch.randperm(len(places), generator=generator)[:each]]
        found[name] = faces.images[some].tolist()
    return figures.contact_sheet(found)
