"""`reproduce` and `report`: the paper's tables and figures."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import tyro

from ..paper.catch import ablations as catch_ablations
from ..paper.catch import learning as catch
from ..paper.cells import parse
from ..paper.faces import table3
from ..paper.glimpses import ablations as glimpses_ablations
from ..paper.glimpses import run as glimpses
from ..paper.glimpses import table2
from ..paper.reports import Report
from ..paper.retrieval import claims as paper_claims
from ..paper.retrieval import table1
from ..tasks.faces import rendered
from .faces import render
from .options import HERE, RESULTS, RUNS, MaybeCount, Some, Works, command, say_failures


def reproduce_table1(
    *,
    cells: Some = (),
    recipe: Literal["tuned", "literal"] = "tuned",
    seeds: MaybeCount = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 1, associative retrieval, and show it beside the paper's numbers.

    Args:
        cells: Only these cells, as in `fast-weights/20 lstm/50`; by default all.
        recipe: Train with the selected hyperparameters, or with the paper's words to the letter.
        seeds: Runs per cell; by default 10, and 5 of an associative LSTM.
        quick: Train 15 epochs and one seed, for a quick look, which is not a result.
    """
    to, some_cells = work.report(quick=quick), parse(cells, table1.CELLS)
    epochs, seeds = (table1.QUICK_EPOCHS, 1 if seeds is None else seeds) if quick else (None, seeds)
    failures = table1.reproduce(some_cells, work.runs, work.crew, command(), recipe=recipe, seeds=seeds, epochs=epochs)
    return _show(table1.report, to, "table1", failures)


def reproduce_claims(*, claims: Some = (), work: Works = HERE) -> int:
    """Try what the paper's text says about associative retrieval: inner steps, ways of settling, layer norm, η and λ.

    Args:
        claims: Only these of variants and map; by default both.
    """
    failures = paper_claims.reproduce(claims, work.runs, work.crew, command())
    return _show(paper_claims.report, work.report(), "claims", failures)


def reproduce_table2(
    *,
    cells: Some = (),
    recipes: tuple[Literal["plain", "augmented"], ...] = ("plain", "augmented"),
    seeds: MaybeCount = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 2, MNIST by glimpses, and show it beside the paper's numbers.

    Args:
        cells: Only these, as in `fast-weights/50 lstm/100`; by default all, or for a quick look those with 50 units.
        recipes: Images as they are, or augmented by random translations; a quick look takes the first.
        seeds: Runs per cell; by default 5.
        quick: Train on few images, 4 epochs and one seed, for a quick look, which is not a result.
    """
    to, some_cells = work.report(quick=quick), parse(cells or (table2.QUICK_CELLS if quick else ()), table2.CELLS)
    some = recipes[:1] if quick else recipes
    number = seeds if seeds is not None else 1 if quick else table2.SEEDS
    failures = table2.reproduce(some_cells, some, work.runs, work.crew, command(), seeds=number, quick=quick)
    return _show(table2.report, to, "table2", failures)


def reproduce_ablations(
    experiment: tyro.conf.Positional[Literal["glimpses", "catch"]],
    *,
    changes: Some = (),
    work: Works = HERE,
) -> int:
    """Train fast weights (glimpses) or all agents (catch) with one thing changed at a time.

    Args:
        experiment: Whose parts are changed: the fast weights of Table 2, or the agents of Catch.
        changes: Only these changes, as the table names them; by default all.
    """
    if experiment == "glimpses":
        failures = glimpses_ablations.reproduce(changes, work.runs, work.crew, command())
        return _show(glimpses_ablations.report, work.report(), "glimpses-ablations", failures)
    failures = catch_ablations.reproduce(changes, work.runs, work.crew, command())
    return _show(catch_ablations.report, work.report(), "catch-ablations", failures)


def reproduce_table3(
    *,
    cells: Some = (),
    data: table3.FaceData = "rendered",
    seeds: MaybeCount = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 3, facial expressions by glimpses, and show it beside the paper's numbers.

    Args:
        cells: Only these cells, as in `fast-weights/200`; by default all.
        data: The set of faces; the rendered one is made if need be, others are imported by `faces import`.
        seeds: Runs per cell; by default 5.
        quick: Train on 20 rendered people, 8 epochs and one seed, for a quick look, which is not a result.
    """
    to, some_cells = work.report(quick=quick), parse(cells, table3.CELLS)
    which: glimpses.Data = table3.QUICK_DATA if quick else data
    if quick or data == "rendered":
        render(rendered.QUICK if quick else rendered.Set(), work.workers)
    number = seeds if seeds is not None else 1 if quick else table3.SEEDS
    failures = table3.reproduce(some_cells, which, work.runs, work.crew, command(), seeds=number, quick=quick)
    return _show(table3.report, to, "table3", failures)


def reproduce_catch(
    *,
    cores: tuple[Literal["irnn", "lstm", "fast-weights"], ...] = ("irnn", "lstm", "fast-weights"),
    games: tuple[Literal["16,3", "24,5"], ...] = ("16,3", "24,5"),
    seeds: MaybeCount = None,
    asynchronous: int = 1,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train agents with three kinds of memory to play Catch, and show how fast each learns.

    Args:
        cores: The recurrent cores to train.
        games: The games, each by its size and visible frames; a quick look takes the first.
        seeds: Runs per core and game; by default 10.
        asynchronous: Workers of each run, as A3C has several; 1 is the synchronous algorithm. 4 are published, too.
        quick: Play 800,000 frames with one seed, for a quick look, which is not a result.
    """
    to = work.report(quick=quick)
    variants = [catch.variant(game) for game in (games[:1] if quick else games)]
    number = seeds if seeds is not None else 1 if quick else catch.SEEDS
    failures = catch.reproduce(
        variants, cores, work.runs, work.crew, command(), seeds=number, asynchronous=asynchronous, quick=quick
    )
    return _show(catch.report, to, "catch", failures)


def report(*, runs: Path = RUNS, results: Path = RESULTS, publish: bool = False) -> int:
    """Write tables, figures and pages of everything that was trained, quick looks included.

    Args:
        runs: Where the run folders are.
        results: The published results: read to compare, and written by --publish alone.
        publish: Write into the published results, not beside the runs; without quick looks.
    """
    written = [write(Report(runs, results, publish)) for write in REPORTS]
    if not publish:
        written += [write(Report(runs, results, quick=True)) for write in QUICK_REPORTS]
    if not any(written):
        print(f"fastweights: no finished runs in {runs}: fastweights reproduce table1 --quick", file=sys.stderr)
        return 1
    print(f"all reports: {(results if publish else runs) / 'index.html'}")
    return 0


QUICK_REPORTS = (table1.report, table2.report, table3.report, catch.report)
REPORTS = (*QUICK_REPORTS, paper_claims.report, glimpses_ablations.report, catch_ablations.report)
NEXT = {
    "table1": ("ask {} 'c9k8j3f1??c'", "evaluate {}"),
    "claims": ("ask {} 'c9k8j3f1??c'", "evaluate {}"),
    "table2": ("evaluate {}", "look glimpses"),
    "glimpses-ablations": ("evaluate {}", "look glimpses"),
    "table3": ("evaluate {}", "faces look"),
    "catch": ("watch {}",),
    "catch-ablations": ("watch {}",),
}


def _show(write: Callable[[Report], bool], to: Report, experiment: str, failures: dict[str, str]) -> int:
    """Report what was trained; then where its runs are, and what can be done with them."""
    write(to)
    folder = to.runs / to.experiment(experiment)
    finished = sorted(path.parent for path in folder.rglob("result.json"))
    if finished:
        example = next((path for path in finished if "fast-weights" in str(path)), finished[0])
        print(f"run folders: {len(finished)} in {folder}")
        print("next: " + "\n      ".join(f"fastweights {words.format(example)}" for words in NEXT[experiment]))
    return say_failures(failures)
