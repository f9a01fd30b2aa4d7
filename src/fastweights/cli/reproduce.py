"""`reproduce` and `report`: the paper's tables and figures."""

from pathlib import Path
from typing import Literal

from ..paper import catch, glimpses, inquiry, table1, table2, table3
from ..paper import claims as paper_claims
from ..paper.cells import parse
from ..tasks.faces import rendered
from .faces import render
from .options import HERE, RESULTS, RUNS, Works, command, say_failures

QUICK_EPOCHS = 15


def reproduce_table1(
    *,
    cells: tuple[str, ...] = (),
    recipe: Literal["tuned", "literal"] = "tuned",
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 1, associative retrieval, and show it beside the paper's numbers.

    Args:
        cells: some of them, as in `fast-weights/20 lstm/50`; by default all.
        recipe: our settings, or the paper's words to the letter.
        seeds: runs per cell; by default 5 for 20 units and 3 for more.
        quick: 15 epochs and one seed: a look, not a result.
    """
    chosen = parse(cells, table1.CELLS)
    epochs, seeds = (QUICK_EPOCHS, 1 if seeds is None else seeds) if quick else (None, seeds)
    failures = table1.reproduce(chosen, work.runs, work.crew, command(), recipe=recipe, seeds=seeds, epochs=epochs)
    table1.publish(work.runs, work.runs / table1.experiment(recipe, epochs) if quick else work.results, epochs)
    return say_failures(failures)


def reproduce_claims(*, claims: tuple[str, ...] = (), work: Works = HERE) -> int:
    """Try what the paper's text says about associative retrieval: η and λ, inner steps, ways of settling.

    Args:
        claims: some of robust, "inner steps", settling; by default all.
    """
    failures = paper_claims.reproduce(claims, work.runs, work.crew, command())
    paper_claims.publish(work.runs, work.results)
    return say_failures(failures)


def reproduce_table2(
    *,
    cells: tuple[str, ...] = (),
    recipes: tuple[Literal["plain", "shifted"], ...] = ("plain", "shifted"),
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 2, MNIST by glimpses, and show it beside the paper's numbers.

    Args:
        cells: some of them, as in `fast-weights/50 lstm/100`; by default all, or those with 50 units for a quick look.
        recipes: training images as they are, or shifted by up to 2 pixels; a quick look takes the first.
        seeds: runs per cell; by default 3.
        quick: few images, 4 epochs and one seed: a look, not a result.
    """
    chosen = parse(cells or (table2.QUICK_CELLS if quick else ()), table2.CELLS)
    some = recipes[:1] if quick else recipes
    number = seeds if seeds is not None else 1 if quick else table2.SEEDS
    failures = table2.reproduce(chosen, some, work.runs, work.crew, command(), seeds=number, quick=quick)
    table2.publish(work.runs, work.runs / table2.experiment(some[0], quick) if quick else work.results, quick)
    return say_failures(failures)


def reproduce_ablations(*, work: Works = HERE) -> int:
    """Train Table 2's fast weights with one part changed at a time: what each is worth."""
    failures = table2.reproduce_ablations(work.runs, work.crew, command())
    table2.publish(work.runs, work.results)
    return say_failures(failures)


def reproduce_table3(
    *,
    cells: tuple[str, ...] = (),
    data: table3.FaceData = "rendered",
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train Table 3, facial expressions by glimpses, and show it beside the paper's numbers.

    Args:
        cells: some of them, as in `fast-weights/200`; by default all.
        data: the faces; rendered ones are rendered if need be, others are to be imported before.
        seeds: runs per cell; by default 3.
        quick: 20 rendered people, 8 epochs and one seed: a look, not a result.
    """
    which: glimpses.Data = table3.QUICK_DATA if quick else data
    if quick or data == "rendered":
        render(rendered.QUICK if quick else rendered.Set(), work.workers)
    number = seeds if seeds is not None else 1 if quick else table3.SEEDS
    chosen = parse(cells, table3.CELLS)
    failures = table3.reproduce(chosen, which, work.runs, work.crew, command(), seeds=number, quick=quick)
    table3.publish(work.runs, work.runs / table3.experiment(which) if quick else work.results, quick)
    return say_failures(failures)


def reproduce_catch(
    *,
    cores: tuple[Literal["irnn", "lstm", "fast-weights"], ...] = ("irnn", "lstm", "fast-weights"),
    games: tuple[Literal["16,3", "24,5"], ...] = ("16,3", "24,5"),
    trials: int = 0,
    seeds: int | None = None,
    quick: bool = False,
    work: Works = HERE,
) -> int:
    """Train agents with three kinds of memory to play Catch, and show how fast each learns.

    Args:
        cores: some of them.
        games: size and visible frames; a quick look takes the first.
        trials: before that, run so many of the search's trials for each core and game, for the curves of the best five.
        seeds: runs per core and game; by default 5.
        quick: 800,000 frames and one seed: a look, not a result.
    """
    variants = [catch.variant(game) for game in (games[:1] if quick else games)]
    number = seeds if seeds is not None else 1 if quick else catch.SEEDS
    failures = catch.search(variants, cores, trials, work.runs, work.crew, command()) if trials else {}
    failures |= catch.reproduce(variants, cores, work.runs, work.crew, command(), seeds=number, quick=quick)
    catch.publish(work.runs, work.runs / catch.experiment(quick) if quick else work.results, quick)
    return say_failures(failures)


def reproduce_inquiry(*, changes: tuple[str, ...] = (), work: Works = HERE) -> int:
    """Train agents to play Catch with one thing changed at a time: what makes the difference.

    Args:
        changes: some of them, as the table names them; by default all.
    """
    failures = inquiry.reproduce(changes, work.runs, work.crew, command())
    inquiry.publish(work.runs, work.results)
    return say_failures(failures)


def report(*, runs: Path = RUNS, results: Path = RESULTS) -> int:
    """Write tables, figures and a page from what was trained: Markdown, HTML, PNG and SVG.

    Args:
        runs: where the run folders are.
        results: where to write.
    """
    published = [paper.publish(runs, results) for paper in (table1, paper_claims, table2, table3, catch, inquiry)]
    return 0 if any(published) else 1
