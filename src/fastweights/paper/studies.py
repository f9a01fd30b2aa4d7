"""Searches of one's own over any hyperparameters of a run, by a grid, at random or by TPE; how they are shown."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.hints import did_you_mean
from ..report import pages
from ..training import search
from ..training.runs import without_passwords
from ..training.search import Plan, Sampler, Tried, parse_hyperparameter, storage_of
from ..training.workers import Job, Workers
from .reports import Report
from .run import with_hyperparameters


def make_plan(sampler: Sampler, hyperparameters: Sequence[str], trials: int, prune: bool) -> Plan:
    """A plan, from hyperparameters as people write them."""
    return Plan(tuple(map(parse_hyperparameter, hyperparameters)), sampler, trials, prune)


def describe(result: Mapping[str, Any]) -> str:
    """A finished trial, in words."""
    if not math.isfinite(result["value"]):
        return "diverged"
    error = result.get("validation_error")
    return f"value {result['value']:.5f}" + ("" if error is None else f", error {error:.2%}")


def run(
    name: str,
    plan: Plan,
    config: Any,
    runs: Path,
    storage: str | None,
    workers: Workers,
    command: str,
    function: Callable[..., dict[str, Any]],
) -> dict[str, str]:
    """Search for the hyperparameters of a run in a study of this name, new or begun; what failed.

    Args:
        config: the run whose hyperparameters are varied.
        storage: the study's data base; None: the one beside the runs.
        function: runs a trial, and gives what is minimised as "value".
    """
    for setting in plan.settings() or [
        {
            hyperparameter.name: (hyperparameter.values or (hyperparameter.low,))[0]
            for hyperparameter in plan.hyperparameters
        }
    ]:
        with_hyperparameters(config, setting)  # which says what is wrong, before anything starts
    searched = {hyperparameter.name for hyperparameter in plan.hyperparameters}
    fixed = {key: value for key, value in config.settings().items() if key not in searched}
    study = search.open_study(name, storage or storage_of(runs), plan, fixed)

    def make_job(trial: str, setting: dict[str, Any], path: Path) -> Job:
        arguments = {"config": with_hyperparameters(config, setting), "path": path, "command": command}
        return Job(trial, function, arguments)

    return search.run(study, plan, runs / "studies" / name, make_job, workers, describe).failures


def record(name: str, runs: Path, tried: Sequence[tuple[float | None, dict[str, Any]]]) -> None:
    """Put the trials of a search of the paper's into a study.

    Args:
        tried: what was minimised, None if it diverged, and the setting; of those with the same setting, the last.
    """
    last = {search.name_of(setting): Tried(math.inf if value is None else value, setting) for value, setting in tried}
    search.record(name, storage_of(runs), list(last.values()))


def show(storage: str | None, to: Report, names: Sequence[str] = ()) -> list[str]:
    """Print the best trials of studies, and write a page of each with the hyperparameters' importance; their names.

    Args:
        storage: their data base; None: the one beside the runs.
        names: of the studies; none: all.
    """
    from ..report import figures  # which is slow to load

    storage, folder = storage or storage_of(to.runs), to.folder("studies")
    studies = {study.study_name: study for study in search.load_studies(storage)}
    for name in names:
        if name not in studies:
            there, hint = ", ".join(studies) or "none", did_you_mean(name, studies)
            raise ValueError(f"there is no study {name!r} in {without_passwords(storage)}; there are {there}{hint}")
    for name in names or studies:
        trials = search.finished(studies[name])
        if not trials:
            print(f"Study {name}: no trial is finished")
            continue
        header = ("value", *trials[0].setting)
        body = [(f"{value:.5f}", *map(_text, setting.values())) for value, setting in trials]
        title = f"Study {name}: {len(trials)} trials"
        to.show(title, header, body[:5], "The five best. Lower values are better.")
        sections = [pages.Section("Trials", "The best first. Lower values are better.", header, body)]
        if len(trials) > 1:
            picture = figures.save(figures.parallel(trials), folder / f"search-{_plain(name)}-trials.png")[0]
            sections.append(pages.Section("All trials", "A line for each; the darker, the better.", figure=picture))
            worth = search.importances(studies[name])
            if worth:
                picture = figures.save(figures.bars(worth), folder / f"search-{_plain(name)}-hyperparameters.png")[0]
                text = "How much each hyperparameter has to do with being among the best trials (PED-ANOVA)."
                sections.append(pages.Section("Importance of the hyperparameters", text, figure=picture))
        entries = [trial._asdict() for trial in trials]
        to.write("studies", f"Search: {name}", sections, entries, f"search-{_plain(name)}")
    return list(names or studies)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(name: str) -> str:
    """As part of a file's name."""
    return name.replace("/", "-")
