"""`search`: the paper's searches, and those of one's own."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..paper import catch, table1, table2, table3
from ..paper.cells import Cell, parse
from ..paper.run import train_on_validation
from ..tasks.faces import rendered
from ..training.files import read_json, write_json
from .faces import render
from .options import HERE, Work, Works, command, say_failures

if TYPE_CHECKING:
    from ..training.search import Plan


@dataclass(frozen=True)
class Searching:
    """A search of one's own, in place of the paper's."""

    grid: tuple[str, ...] = ()
    """Try every combination of these, for one cell: `lr=1e-3,3e-3 decay=0.9,0.95`."""
    random: int = 0
    """Try so many settings, drawn at random from --knobs."""
    tpe: int = 0
    """Try so many settings, chosen from --knobs by what came of those before."""
    knobs: tuple[str, ...] = ()
    """What to draw from: `lr=1e-4..1e-2 clip=0.5,5`."""
    prune: bool = False
    """Stop trials that do worse than the median of the others at the same epoch."""
    study: str | None = None
    """The name of the study; by default that of the cell."""
    storage: str | None = None
    """The data base of the studies, by its URL, for machines that share it; by default a file in the runs' folder."""

    def plan(self) -> "Plan | None":
        """None: the paper's."""
        from ..paper.studies import make_plan  # which is slow to load

        chosen = [name for name in ("grid", "random", "tpe") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"a search must be by one of --grid, --random and --tpe; got {' and '.join(chosen)}")
        if not chosen:
            if self.knobs:
                raise ValueError("--knobs must go with --random or --tpe, which say how many to draw")
            return None
        if chosen == ["grid"]:
            return make_plan("grid", self.grid, 0, self.prune)
        sampler: Literal["random", "tpe"] = "random" if self.random else "tpe"
        return make_plan(sampler, self.knobs, self.random or self.tpe, self.prune)


Searches = Annotated[Searching, tyro.conf.arg(name="")]
Cells = Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--cell"])]
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
    studies.show(own.storage, work.runs, work.runs / "studies", [name])
    return say_failures(failures)


def _one(cells: Sequence[str], known: Sequence[Cell]) -> Cell:
    chosen = parse(cells, known)
    if len(chosen) != 1:
        raise ValueError(f"a search of your own must be for one cell, as in --cell {known[0]}; got {len(chosen)}")
    return chosen[0]


def _record(experiment: str, found: Mapping[str, Any], knobs: Sequence[str], value: str, work: Work) -> None:
    """Let `search show` show a search for the cells of a table, too."""
    from ..paper import studies  # which is slow to load

    for cell, what in found.items():
        tried = [(trial[value], {knob: trial[knob] for knob in knobs}) for trial in what["trials"]]
        studies.record(f"{experiment}/{cell}", work.runs, tried)


def search_table1(*, cells: Cells = (), own: Searches = PAPERS, work: Works = HERE) -> int:
    """Find the settings of Table 1's cells on the validation set: the same grid for every cell, or a search of yours.

    Args:
        cells: some of them, as in `fast-weights/20 lstm/50`; by default all.
    """
    plan = own.plan()
    if plan is not None:
        one = _one(cells, table1.CELLS)
        config = table1.config(one, table1.TUNED.get(str(one), table1.GRID[0]), table1.SEARCH_SEED)
        return _search_own(f"own-table1-{one.folder}", plan, config, own, work)
    failures = table1.search(work.runs).run(parse(cells, table1.CELLS), work.crew, command())
    path, found = work.results / "table1-search.json", table1.chosen(work.runs)
    for cell, what in found.items():
        print(f"{cell}: {what['chosen'] or 'not yet chosen'}")
    known = read_json(path)["cells"] if path.exists() else {}  # of cells that were searched elsewhere
    write_json(path, {"command": command(), "cells": known | found})
    _record("table1", found, ("lr", "input_range", "clip"), "validation_loss", work)
    return say_failures(failures)


def search_table2(
    *,
    cells: Cells = (),
    recipes: tuple[Literal["plain", "shifted"], ...] = ("plain", "shifted"),
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the learning rates of Table 2's cells on the validation set: the same for every cell, or a search of yours.

    Args:
        cells: some of them, as in `fast-weights/50 lstm/100`; by default all.
        recipes: images as they are, or shifted.
    """
    plan = own.plan()
    if plan is not None:
        one = _one(cells, table2.CELLS)
        config = table2.config(one, recipes[0], table2.QUICK["lr"], table2.SEARCH_SEED)
        return _search_own(f"own-table2-{recipes[0]}-{one.folder}", plan, config, own, work)
    failures: dict[str, str] = {}
    for recipe in recipes:
        failures |= table2.search(work.runs, recipe).run(parse(cells, table2.CELLS), work.crew, command())
    found = table2.chosen(work.runs)
    for images, chosen in found.items():
        for cell, what in chosen.items():
            print(f"{cell}, {images}: learning rate {what['chosen']:g}")
    write_json(work.results / "table2-search.json", {"command": command(), "recipes": found})
    for images, chosen in found.items():
        _record(f"table2/{images}", chosen, ("lr",), "validation_error", work)
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
        cells: some of them, as in `fast-weights/200`; by default all.
        data: the faces; rendered ones are rendered if need be.
    """
    plan = own.plan()
    if data == "rendered":
        render(rendered.Set(), work.workers)
    if plan is not None:
        one = _one(cells, table3.CELLS)
        config = table3.config(one, data, table3.QUICK_LR, table3.SEARCH_SEED, table3.SEARCH_EPOCHS)
        return _search_own(f"own-table3-{data}-{one.folder}", plan, config, own, work)
    failures = table3.search(work.runs, data).run(parse(cells, table3.CELLS), work.crew, command())
    found = table3.chosen(work.runs, data)
    for cell, what in found.items():
        print(f"{cell}: learning rate {what['chosen']:g}")
    write_json(work.results / "table3-search.json", {"command": command(), "data": data, "cells": found})
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
        trials: how many for each core and game; --random without --knobs says the same.
        cores: some of them; for a search of your own, the first.
        games: size and visible frames; for a search of your own, the first.
    """
    from ..paper import studies  # which is slow to load

    variants = [catch.variant(game) for game in games]
    if own.random and not own.knobs:
        trials, own = own.random, dataclasses.replace(own, random=0)
    plan = own.plan()
    if plan is not None:
        frames = round(catch.SEARCH_SHARE * catch.FRAMES[variants[0]])
        config = catch.config(cores[0], variants[0], catch.STARTING, catch.SEARCH_SEED, frames)
        name = f"own-catch-{catch.name_of(variants[0], cores[0])}".replace("/", "-")
        return _search_own(name, plan, config, own, work, catch.train_for_reward)
    failures = catch.search(variants, cores, trials, work.runs, work.crew, command())
    found = catch.all_searched(work.runs, work.results)
    for name, tried in found.items():
        rewards = ", ".join(f"{reward:.2f}" for reward in tried[0]["mean_rewards"] or []) or "no finalist yet"
        print(f"{name}: mean reward while learning {rewards}, {tried[0]['setting']}")
        studies.record(f"catch/{name}", work.runs, [(-trial["early_reward"], trial["setting"]) for trial in tried])
    write_json(work.results / "catch-search.json", {"command": command(), "trials": found})
    return say_failures(failures)


def search_show(
    studies: tyro.conf.Positional[tuple[str, ...]] = (), *, storage: str | None = None, work: Works = HERE
) -> int:
    """Show searches: the best trials of each study, and a page with all of them and what the knobs are worth.

    Args:
        studies: their names; by default all.
        storage: their data base, by its URL; by default the file in the runs' folder.
    """
    from ..paper import studies as room  # which is slow to load

    if not room.show(storage, work.runs, work.results, studies):
        print("fastweights: there are no studies yet: see fastweights search table1 --help")
    return 0
