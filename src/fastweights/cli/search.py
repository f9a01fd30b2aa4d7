"""`search`: the paper's searches, and those of one's own."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..base.files import write_json
from ..paper import catch, table1, table2, table3
from ..paper.cells import Cell, parse
from ..paper.run import train_on_validation
from ..tasks.faces import rendered
from .faces import render
from .options import HERE, MaybeText, Some, Work, Works, command, say_failures

if TYPE_CHECKING:
    from ..training.search import Plan


@dataclass(frozen=True)
class Searching:
    """A search of one's own, in place of the paper's."""

    grid: Some = ()
    """Try every combination of these, for one cell: `lr=1e-3,3e-3 decay=0.9,0.95`."""
    random: int = 0
    """Try so many settings, drawn at random from --hyperparameters; 0: another search."""
    tpe: int = 0
    """Try so many settings, chosen from --hyperparameters by TPE, from what came of those before; 0: another search."""
    hyperparameters: Some = ()
    """What to draw from: `lr=1e-4..1e-2 clip=0.5,5`."""
    prune: bool = False
    """Stop trials that do worse than the median of the others at the same epoch."""
    study: MaybeText = None
    """The name of the study; by default that of the cell."""
    storage: MaybeText = None
    """The data base of the studies, by its URL, for machines that share it; by default a file in the runs' folder."""

    def plan(self) -> "Plan | None":
        """None: the paper's."""
        from ..paper.studies import make_plan  # which is slow to load

        chosen = [name for name in ("grid", "random", "tpe") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"a search must be by one of --grid, --random and --tpe; got {' and '.join(chosen)}")
        if not chosen:
            if self.hyperparameters:
                raise ValueError("--hyperparameters must go with --random or --tpe, which say how many to draw")
            return None
        if chosen == ["grid"]:
            return make_plan("grid", self.grid, 0, self.prune)
        sampler: Literal["random", "tpe"] = "random" if self.random else "tpe"
        return make_plan(sampler, self.hyperparameters, self.random or self.tpe, self.prune)


Searches = Annotated[Searching, tyro.conf.arg(name="")]
Cells = Annotated[Some, tyro.conf.arg(aliases=["--cell"], help_behavior_hint="")]
PAPERS = Searching()


def _search_own(
    name: str,
    plan: "Plan",
    config: Any,
    own: Searching,
    work: Work,
    function: Callable[..., dict[str, Any]] = train_on_validation,
) -> int:
    from ..paper import studies  # which is slow to load

    name = own.study or name
    failures = studies.run(name, plan, config, work.runs, own.storage, work.crew, command(), function)
    studies.show(own.storage, dataclasses.replace(work, publish=False).report(), [name])
    return say_failures(failures)


def _one(cells: Sequence[str], known: Sequence[Cell]) -> Cell:
    chosen = parse(cells, known)
    if len(chosen) != 1:
        raise ValueError(f"a search of your own must be for one cell, as in --cell {known[0]}; got {len(chosen)}")
    return chosen[0]


def _write(work: Work, table: str, found: dict[str, Any]) -> None:
    """What a search found, beside its runs, or to be published."""
    path = work.report().folder(f"search-{table}") / f"{table}-search.json"
    write_json(path, found)
    print(f"written: {path}")


def _record(experiment: str, found: Mapping[str, Any], hyperparameters: Sequence[str], value: str, work: Work) -> None:
    """Let `search show` show a search for the cells of a table, too."""
    from ..paper import studies  # which is slow to load

    for cell, what in found.items():
        tried = [(trial[value], {name: trial[name] for name in hyperparameters}) for trial in what["trials"]]
        studies.record(f"{experiment}/{cell}", work.runs, tried)


def search_table1(*, cells: Cells = (), own: Searches = PAPERS, work: Works = HERE) -> int:
    """Find the settings of Table 1's cells on the validation set: the same grid for every cell, or a search of yours.

    Args:
        cells: Only these cells, as in `fast-weights/20 lstm/50`; by default all.
    """
    plan = own.plan()
    if plan is not None:
        one = _one(cells, table1.CELLS)
        config = table1.config(one, table1.TUNED.get(str(one), table1.GRID[0]), table1.SEARCH_SEED)
        return _search_own(f"own-table1-{one.folder}", plan, config, own, work)
    failures = table1.search(work.runs).run(parse(cells, table1.CELLS), work.crew, command())
    found = table1.selected(work.runs)
    for cell, what in found.items():
        print(f"{cell}: {what['selected'] or 'not yet selected'}")
    known = work.report().published("table1-search") if work.publish else None  # of cells that were searched elsewhere
    _write(work, "table1", {"command": command(), "cells": (known or {}).get("cells", {}) | found})
    _record("table1", found, ("lr", "input_range", "clip"), "validation_loss", work)
    return say_failures(failures)


def search_table2(
    *,
    cells: Cells = (),
    recipes: tuple[Literal["plain", "augmented"], ...] = ("plain", "augmented"),
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the learning rates of Table 2's cells on the validation set: the same for every cell, or a search of yours.

    Args:
        cells: Only these cells, as in `fast-weights/50 lstm/100`; by default all.
        recipes: Images as they are, or augmented by random translations.
    """
    plan = own.plan()
    if plan is not None:
        one = _one(cells, table2.CELLS)
        config = table2.config(one, recipes[0], table2.QUICK["lr"], table2.SEARCH_SEED)
        return _search_own(f"own-table2-{recipes[0]}-{one.folder}", plan, config, own, work)
    failures: dict[str, str] = {}
    for recipe in recipes:
        failures |= table2.search(work.runs, recipe).run(parse(cells, table2.CELLS), work.crew, command())
    found = table2.selected(work.runs)
    for images, of_images in found.items():
        for cell, what in of_images.items():
            print(f"{cell}, {images}: learning rate {what['selected']:g}")
    _write(work, "table2", {"command": command(), "recipes": found})
    for images, of_images in found.items():
        _record(f"table2/{images}", of_images, ("lr",), "validation_error", work)
    return say_failures(failures)


def search_table3(
    *,
    cells: Cells = (),
    data: table3.FaceData = "rendered",
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the learning rates of Table 3's cells on the validation set: the same for every cell, or a search of yours.

    Args:
        cells: Only these cells, as in `fast-weights/200`; by default all.
        data: The set of faces; the rendered one is made if need be.
    """
    plan = own.plan()
    if data == "rendered":
        render(rendered.Set(), work.workers)
    if plan is not None:
        one = _one(cells, table3.CELLS)
        config = table3.config(one, data, table3.QUICK_LR, table3.SEARCH_SEED, table3.SEARCH_EPOCHS)
        return _search_own(f"own-table3-{data}-{one.folder}", plan, config, own, work)
    failures = table3.search(work.runs, data).run(parse(cells, table3.CELLS), work.crew, command())
    found = table3.selected(work.runs, data)
    for cell, what in found.items():
        print(f"{cell}: learning rate {what['selected']:g}")
    _write(work, "table3", {"command": command(), "data": data, "cells": found})
    _record(f"table3/{data}", found, ("lr",), "validation_error", work)
    return say_failures(failures)


def search_catch(
    *,
    trials: int = catch.TRIALS,
    cores: tuple[Literal["irnn", "lstm", "fast-weights"], ...] = ("irnn", "lstm", "fast-weights"),
    games: tuple[Literal["16,3", "24,5"], ...] = ("16,3", "24,5"),
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the settings of Catch's agents by random search: the same number of trials for every core, or as you say.

    Args:
        trials: Trials for each core and game; --random without --hyperparameters says the same.
        cores: The recurrent cores to search for; a search of your own takes the first.
        games: The games, each by its size and visible frames; a search of your own takes the first.
    """
    from ..paper import studies  # which is slow to load

    variants = [catch.variant(game) for game in games]
    if own.random and not own.hyperparameters:
        trials, own = own.random, dataclasses.replace(own, random=0)
    plan = own.plan()
    if plan is not None:
        frames = round(catch.SEARCH_SHARE * catch.FRAMES[variants[0]])
        config = catch.config(cores[0], variants[0], catch.STARTING, catch.SEARCH_SEED, frames)
        name = f"own-catch-{catch.name_of(variants[0], cores[0])}".replace("/", "-")
        return _search_own(name, plan, config, own, work, catch.train_for_return)
    failures = catch.search(variants, cores, trials, work.runs, work.crew, command())
    known = work.report().published("catch-search") if work.publish else None
    found = catch.all_searched(work.runs, (known or {}).get("trials", {}))
    for name, tried in found.items():
        means = ", ".join(f"{mean:.2f}" for mean in tried[0]["mean_returns"] or []) or "no finalist yet"
        print(f"{name}: mean training return {means}, {tried[0]['setting']}")
        studies.record(f"catch/{name}", work.runs, [(-trial["early_return"], trial["setting"]) for trial in tried])
    _write(work, "catch", {"command": command(), "trials": found})
    return say_failures(failures)


def search_show(studies: tyro.conf.Positional[Some] = (), *, storage: MaybeText = None, work: Works = HERE) -> int:
    """Show searches: the best trials of each study, and a page with all of them and what the hyperparameters are worth.

    Args:
        studies: The names of the studies to show; by default all.
        storage: The data base of the studies, by its URL; by default the file in the runs' folder.
    """
    from ..paper import studies as room  # which is slow to load

    if not room.show(storage, work.report(), studies):
        print("fastweights: there are no studies yet: fastweights search table1 --help", file=sys.stderr)
        return 1
    return 0
