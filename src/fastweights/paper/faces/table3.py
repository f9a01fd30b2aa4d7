"""Table 3: facial expressions by glimpses, with four models of 200 units, on three kinds of faces."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ...report import pages, tables
from ...report.style import name_of
from ...tasks.faces import sets
from ...tasks.faces.sets import Faces
from ...training.supervised import Recipe
from ...training.workers import Workers
from ..cells import Cell, Planned, curves, entry, finished, train_all
from ..glimpses.run import Data, Glimpses, load_net
from ..reports import Report, commands_of
from ..run import with_hyperparameters
from ..studies import FIRST_SEED, Study

UNITS = 200
PAPER = {"irnn": 81.11, "lstm": 81.32, "convnet": 88.23, "fast-weights": 86.34}  # test accuracy on Multi-PIE, %
# The last is not in the paper: it shows how far one gets without any hidden units.
MODELS = (*PAPER, "linear")
CELLS = tuple(Cell(model, UNITS) for model in MODELS)
FaceData = Literal["rendered", "multipie", "fer", "fer+"]
DATA: tuple[FaceData, ...] = get_args(FaceData)
QUICK_DATA: Data = "rendered-20"
EPOCHS = {"rendered": 12, "multipie": 12, "fer": 30, "fer+": 30}
SEEDS = 5
QUICK_EPOCHS = 8
# Photographs are mirrored and moved at random while training; rendered faces are as they are. The same for all models.
AUGMENTATION: dict[str, dict[str, Any]] = {name: {"mirror": True, "translation": 2} for name in ("fer", "fer+")}
VGG13 = 83.85  # test accuracy on FER+ with the labels that most voted for, Barsoum et al. 2016, %

# The search, the same for every cell; the only rung is after a third of the epochs.
FOR_ALL = ("lr=1e-4..1e-2", "weight_decay=1e-3..1.0")
HYPERPARAMETERS = dict.fromkeys(MODELS, FOR_ALL) | {
    "irnn": (*FOR_ALL, "recurrent_init=0.3..1.2"),
    "fast-weights": (*FOR_ALL, "rate=0.01..1.0", "decay=0.8..0.99"),
}

# The selected hyperparameters, on the validation identities, by data and cell; other data take those of the first.
TUNED: dict[str, dict[str, dict[str, float]]] = {
    "rendered": {
        "irnn/200": {"lr": 1e-3},
        "lstm/200": {"lr": 3e-3},
        "convnet/200": {"lr": 3e-3},
        "fast-weights/200": {"lr": 1e-3, "rate": 0.05},
        "linear/200": {"lr": 3e-3},
    }
}
QUICK_SETTINGS = {model: {"lr": 1e-3} for model in MODELS} | {"fast-weights": {"lr": 1e-3, "rate": 0.05}}


def config(cell: Cell, data: Data, setting: Mapping[str, Any], seed: int, epochs: int | None = None) -> Glimpses:
    """The run of a cell with a setting; None: as many epochs as in the table."""
    run = Glimpses(
        model=cell.model,  # type: ignore[arg-type]
        units=cell.units,
        data=data,
        training=Recipe(epochs=epochs or EPOCHS[data], schedule="warm-cosine"),
        seed=seed,
        **AUGMENTATION.get(data, {}),
    )
    found: Glimpses = with_hyperparameters(run, setting)
    return found


def study(cell: Cell, data: FaceData) -> Study:
    """The search for the hyperparameters of a cell."""
    run = config(cell, data, {}, FIRST_SEED)
    return Study(f"table3/{data}/{cell.folder}", run, HYPERPARAMETERS[cell.model], EPOCHS[data] // 3 + 1)


def tuned(cell: Cell, data: FaceData) -> dict[str, float]:
    """The selected hyperparameters."""
    found = TUNED.get(data, TUNED["rendered"])
    if str(cell) not in found:
        raise ValueError(f"{cell} has not been tuned yet: fastweights search table3")
    return found[str(cell)]


def reproduce(
    cells: Sequence[Cell], data: Data, runs: Path, workers: Workers, command: str, *, seeds: int, quick: bool
) -> dict[str, str]:
    """Train the cells, each with its seeds, into run folders that `report` reads; what failed.

    Args:
        quick: a few epochs with a learning rate that nobody searched for: a look.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    plan = []
    for cell in cells:
        for seed in range(seeds):
            setting = QUICK_SETTINGS[cell.model] if quick else tuned(cell, data)  # type: ignore[arg-type]
            run = config(cell, data, setting, seed, QUICK_EPOCHS if quick else None)
            path = runs / experiment(data) / cell.folder / f"seed-{seed}"
            plan.append(Planned(f"{cell} seed {seed}", run, path, curves=True))
    return train_all(plan, workers, command)


def experiment(data: Data) -> str:
    """The name of its folder of runs."""
    return f"table3-quick/{data}" if data == QUICK_DATA else f"table3/{data}"


def collect(runs: Path, data: Data) -> list[dict[str, Any]]:
    """The cells whose runs are finished: the entries of `results/table3.json`; the paper's are errors, too."""
    return [
        entry(
            cell,
            data,
            round(100 - PAPER[cell.model], 2) if cell.model in PAPER else None,
            done,
            0 if data == QUICK_DATA else study(cell, data).plan.trials,  # type: ignore[arg-type]
            ("test_error",),
        )
        for cell in CELLS
        if (done := finished(runs / experiment(data) / cell.folder))
    ]


@torch.no_grad()
def answers(net: nn.Module, images: Tensor) -> Tensor:
    """The predicted class of each image."""
    return torch.cat([net(some).argmax(1) for some in images.split(1000)])


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """How often each class (rows) was taken for each (columns), in percent of it.

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
    tensor([[ 50.,  50.],
            [  0., 100.]])
    """
    counts = torch.zeros(classes, classes).index_put((labels, predicted), torch.tensor(1.0), accumulate=True)
    return 100 * counts / counts.sum(1, keepdim=True).clamp(min=1)


def accuracy_by(groups: Tensor, right: Tensor, count: int) -> list[float]:
    """The share of right answers in each of `count` groups, in percent; one that is empty has 0.

    >>> accuracy_by(torch.tensor([0, 0, 1]), torch.tensor([True, False, True]), 2)
    [50.0, 100.0]
    """
    totals = torch.bincount(groups, minlength=count).clamp(min=1)
    return (100 * torch.bincount(groups, right.float(), minlength=count) / totals).tolist()


HEADER = tuple("accuracy" if name == "ours" else name for name in tables.HEADER)


def rows(entries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row of text per entry: accuracies in percent, as in the paper."""
    found: list[tuple[str, ...]] = []
    for (model, units, _, _, _, *rest), each in zip(
        tables.rows(entries, usual=entries[0]["recipe"]), entries, strict=True
    ):
        ours = tables.estimate(each, accuracy=True)
        best = f"{100 - each['test_error_best_validation']:.2f}"
        paper = "" if each["paper"] is None else f"{100 - each['paper']:.2f}"
        found.append((model, units if each["model"] in PAPER else "", ours, best, paper, *rest))
    return found


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figures of it; whether there was anything."""
    from ...report import figures  # which is slow to load

    kinds = (QUICK_DATA,) if to.quick else DATA
    found = [with_details(each, to.runs) for data in kinds for each in collect(to.runs, data)]
    entries = to.entries("table3", found, _place)
    if not entries:
        return False
    title = "Table 3: facial expressions by glimpses"
    caption = f"Test accuracy in %; the paper's is on Multi-PIE. {tables.MEANS} {tables.BEST}"
    sections = []
    for data in kinds:
        some = [each for each in entries if each["recipe"] == data]
        if some:
            body, heading = rows(some), f"Test accuracy, {data} faces"
            to.show(f"{title}, {data} faces", HEADER, body, caption)
            sections.append(pages.Section(heading, caption, HEADER, body, commands=commands_of(some)))
            groups = curves({each["model"]: each for each in to.drawn(some)}, "test_error")
            if groups:
                figure = figures.curves(groups, "test error, %", scale=100)
                if data == "fer+":
                    figure.axes[0].axhline(
                        100 - VGG13, color="grey", linestyle=":", label="a VGG13, Barsoum et al. 2016"
                    )
                picture = figures.save(figures.finish(figure), to.folder("table3") / f"table3-curves-{data}.png")[0]
                sections.append(pages.Section(f"Test error while training, {data} faces", figure=picture))
            sections += _details(to.drawn(some), to.folder("table3"), data)
    to.write("table3", title, sections, entries)
    return True


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    kinds = (QUICK_DATA, *DATA)
    return kinds.index(entry["recipe"]), CELLS.index(Cell(entry["model"], entry["units"]))


def with_details(entry: dict[str, Any], runs: Path) -> dict[str, Any]:
    """An entry with where its best-validation run errs on the test faces; as it is, if they are not here."""
    data: Data = entry["recipe"]
    try:
        faces = sets.load(sets.folder_of(data), "test")
    except FileNotFoundError as error:
        print(f"fastweights: without the faces there is less to show: {error}", file=sys.stderr)
        return entry
    done = finished(runs / experiment(data) / Cell(entry["model"], entry["units"]).folder)
    best = min(done, key=lambda run: (run.result or {}).get("validation_error", 1.0))
    predicted = answers(load_net(best), faces.images)
    classes = faces.facts["classes"]
    details = {"classes": classes, "confusion": confusion(faces.labels, predicted, len(classes)).tolist()}
    for what, groups in (("views", faces.views), ("lights", faces.lights)):
        names = faces.facts[what]
        if names:
            details[what] = dict(zip(names, accuracy_by(groups, predicted == faces.labels, len(names)), strict=True))
    return {**entry, "details": details}


def _details(entries: Sequence[Mapping[str, Any]], folder: Path, data: Data) -> list[pages.Section]:
    """Where the nets err on the test faces of a set."""
    from ...report import figures  # which is slow to load

    sections = []
    known = {entry["model"]: entry["details"] for entry in entries if "details" in entry}
    if known:
        classes = next(iter(known.values()))["classes"]
        matrices = {model: details["confusion"] for model, details in known.items()}
        picture = figures.save(figures.confusion(matrices, classes), folder / f"table3-confusion-{data}.png")[0]
        text = "Rows: the expression. Columns: the prediction, in % of the row. The best-validation seed."
        sections.append(pages.Section(f"Confusions, {data} faces", text, figure=picture))
    for what in ("views", "lights"):
        names: dict[str, float] = next((details[what] for details in known.values() if what in details), {})
        if names:
            header = (what[:-1], *map(name_of, known))
            body = [(name, *(f"{details[what][name]:.1f}" for details in known.values())) for name in names]
            sections.append(pages.Section(f"Accuracy by {what[:-1]}, {data} faces", "In %.", header, body))
    sheet = folder / f"table3-faces-{data}.png"
    with contextlib.suppress(FileNotFoundError):
        sheet = figures.save(contact_sheet(sets.load(sets.folder_of(data), "test")), sheet)[0]
    if sheet.exists():
        sections.append(pages.Section(f"The faces, {data}", "Of the test set.", figure=sheet))
    return sections


def contact_sheet(faces: Faces, each: int = 8, seed: int = 0) -> Any:
    """A figure with some faces of every class."""
    from ...report import figures

    generator = torch.Generator().manual_seed(seed)
    found = {}
    for label, name in enumerate(faces.facts["classes"]):
        places = (faces.labels == label).nonzero()[:, 0]
        some = places[torch.randperm(len(places), generator=generator)[:each]]
        found[name] = faces.images[some].tolist()
    return figures.contact_sheet(found)
