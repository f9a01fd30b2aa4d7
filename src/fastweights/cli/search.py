"""`search`: the paper's searches, and those of one's own."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..base.files import write_json
from ..base.hints import did_you_mean
from ..paper.catch import learning as catch
from ..paper.cells import Cell, parse
from ..paper.faces import table3
from ..paper.glimpses import table2
from ..paper.retrieval import claims, table1
from ..paper.run import train_on_validation
from ..tasks.faces import rendered
from .faces import render
from .options import HERE, MaybeText, Some, Work, Works, command, say_failures

if TYPE_CHECKING:
    from ..paper.studies import Study
    from ..training.search import Plan

SEARCH_SEED = 1000


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
    rung: int = 0
    """After so many epochs, three times as many and so on, only the best third of the trials goes on; 0: all do."""
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
            return make_plan("grid", self.grid, 0, self.rung)
        sampler: Literal["random", "tpe"] = "random" if self.random else "tpe"
        return make_plan(sampler, self.hyperparameters, self.random or self.tpe, self.rung)


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


def _search_paper(table: str, studies: Mapping[str, "Study"], work: Work) -> int:
    """The paper's searches of some cells, by name; what they came to is written beside their runs, or published."""
    from ..paper import studies as room  # which is slow to load

    failures = room.run_paper(list(studies.values()), work.runs, work.crew, command())
    found = {name: outcome for name, study in studies.items() if (outcome := room.outcome(study, work.runs))}
    for name, outcome in found.items():
        print(f"{name}: {outcome['selected'] or 'not yet selected'}")
        for hyperparameter in outcome["at_edge"]:
            print(f"{name}: {hyperparameter} is at the edge of its range: widen it", file=sys.stderr)
    path = work.report().folder(f"search-{table}") / f"{table}-search.json"
    known = (work.report().published(f"{table}-search") or {}).get("cells", {}) if work.publish else {}
    write_json(path, {"command": command(), "cells": known | found})
    print(f"written: {path}")
    print("to see the trials: fastweights search show " + " ".join(study.name for study in studies.values()))
    return say_failures(failures)


def search_table1(*, cells: Cells = (), own: Searches = PAPERS, work: Works = HERE) -> int:
    """Find the hyperparameters of Table 1's cells on the validation set: the same search for each, or one of yours.

    Args:
        cells: Only these cells, as in `fast-weights/20 lstm/50`; by default all.
    """
    plan = own.plan()
    if plan is not None:
        one = _one(cells, table1.CELLS)
        config = table1.config(one, table1.tuned_setting(one), SEARCH_SEED)
        return _search_own(f"own-table1-{one.folder}", plan, config, own, work)
    chosen = parse(cells, table1.CELLS)
    return _search_paper("table1", {str(cell): table1.study(cell) for cell in chosen}, work)


def search_claims(*, variants: Some = (), own: Searches = PAPERS, work: Works = HERE) -> int:
    """Find the hyperparameters of each variant of the paper's claims: the same search for each, or one of yours.

    Args:
        variants: Only these, as in "2 inner steps"; by default all. A search of your own takes one.
    """
    for variant in variants:
        if variant not in claims.VARIANTS:
            hint = did_you_mean(variant, claims.VARIANTS)
            raise ValueError(f"variants must be of {', '.join(map(repr, claims.VARIANTS))}; got {variant!r}{hint}")
    plan = own.plan()
    if plan is not None:
        name = variants[0] if variants else claims.BASE
        config = claims.config(name, claims.TUNED.get(name, {}), SEARCH_SEED)
        return _search_own(f"own-claims-{name.replace(' ', '-')}", plan, config, own, work)
    return _search_paper("claims", {name: claims.study(name) for name in variants or claims.VARIANTS}, work)


def search_table2(
    *,
    cells: Cells = (),
    recipes: tuple[Literal["plain", "augmented"], ...] = ("plain", "augmented"),
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the hyperparameters of Table 2's cells on the validation set: the same search for each, or one of yours.

    Args:
        cells: Only these cells, as in `fast-weights/50 lstm/100`; by default all.
        recipes: Images as they are, or augmented by random translations.
    """
    plan = own.plan()
    if plan is not None:
        one = _one(cells, table2.CELLS)
        config = table2.config(one, recipes[0], table2.tuned(one, recipes[0]), SEARCH_SEED)
        return _search_own(f"own-table2-{recipes[0]}-{one.folder}", plan, config, own, work)
    chosen = parse(cells, table2.CELLS)
    studies = {f"{recipe}/{cell}": table2.study(cell, recipe) for recipe in recipes for cell in chosen}
    return _search_paper("table2", studies, work)


def search_table3(
    *,
    cells: Cells = (),
    data: table3.FaceData = "rendered",
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the hyperparameters of Table 3's cells on the validation set: the same search for each, or one of yours.

    Args:
        cells: Only these cells, as in `fast-weights/200`; by default all.
        data: The set of faces; the rendered one is made if need be.
    """
    plan = own.plan()
    if data == "rendered":
        render(rendered.Set(), work.workers)
    if plan is not None:
        one = _one(cells, table3.CELLS)
        config = table3.config(one, data, table3.tuned(one, data), SEARCH_SEED)
        return _search_own(f"own-table3-{data}-{one.folder}", plan, config, own, work)
    studies = {f"{data}/{cell}": table3.study(cell, data) for cell in parse(cells, table3.CELLS)}
    return _search_paper("table3", studies, work)


def search_catch(
    *,
    cores: tuple[Literal["irnn", "lstm", "fast-weights"], ...] = ("irnn", "lstm", "fast-weights"),
    games: tuple[Literal["16,3", "24,5"], ...] = ("16,3", "24,5"),
    own: Searches = PAPERS,
    work: Works = HERE,
) -> int:
    """Find the hyperparameters of Catch's agents: the same search for every core, or one of yours.

    Args:
        cores: The recurrent cores to search for; a search of your own takes the first.
        games: The games, each by its size and visible frames; a search of your own takes the first.
    """
    variants = [catch.variant(game) for game in games]
    plan = own.plan()
    if plan is not None:
        setting, frames = catch.STARTING[cores[0]], catch.FRAMES[variants[0]] // 4
        config = catch.config(cores[0], variants[0], setting, SEARCH_SEED, frames)
        name = f"own-catch-{catch.name_of(variants[0], cores[0])}".replace("/", "-")
        return _search_own(name, plan, config, own, work, catch.train_for_return)
    studies = {catch.name_of(variant, core): catch.study(variant, core) for variant in variants for core in cores}
    return _search_paper("catch", studies, work)


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
