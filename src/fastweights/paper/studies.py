"""Searches for the hyperparameters of runs: those of the paper's cells, and one's own; how they are shown."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.hints import did_you_mean
from ..report import pages
from ..report.statistics import rank_correlation
from ..training import search
from ..training.runs import RunFolder, without_passwords
from ..training.search import Plan, Sampler, parse_hyperparameter, storage_of
from ..training.workers import Job, Workers
from .reports import Report
from .run import train_on_validation, with_hyperparameters

# Equal for all models: so many trials for each hyperparameter that is searched; then the best from several seeds.
TRIALS = 8
FINALISTS, SEEDS = 5, 3
FIRST_SEED = 1000  # of the search; published runs have others


@dataclass(frozen=True)
class Study:
    """The search for the hyperparameters of a cell.

    Trials are drawn at random and halved; the best `FINALISTS` of those that ran to their ends are trained from more
    seeds, and the setting with the lowest mean is selected.

    Args:
        name: of the study.
        config: the run whose hyperparameters are varied.
        hyperparameters: as people write them.
        rung: after so many epochs only the best third goes on, and again after three times as many.
        trials: for each hyperparameter.
        seeds: of each finalist, with that of the trial.
        function: runs a trial, and gives what is minimised as "value".
        kept: more that is published of the trial of each finalist, from its run folder.
    """

    name: str
    config: Any
    hyperparameters: tuple[str, ...]
    rung: int
    trials: int = TRIALS
    seeds: int = SEEDS
    function: Callable[..., dict[str, Any]] = train_on_validation
    kept: Callable[[RunFolder], dict[str, Any]] = lambda folder: {}

    @property
    def plan(self) -> Plan:
        """The trials."""
        trials = self.trials * len(self.hyperparameters)
        drawn = tuple(map(parse_hyperparameter, self.hyperparameters))
        return Plan(drawn, "random", trials, self.rung, seed=FIRST_SEED)

    def finals(self, best: Sequence[Mapping[str, Any]]) -> Plan:
        """The best settings from further seeds."""
        seeds = range(FIRST_SEED + 1, FIRST_SEED + self.seeds)
        seed = search.Hyperparameter("seed", (), FIRST_SEED, FIRST_SEED + self.seeds)
        given = tuple({**setting, "seed": number} for setting in best for number in seeds)
        return Plan((*self.plan.hyperparameters, seed), "given", given=given)


def run_paper(studies: Sequence[Study], runs: Path, workers: Workers, command: str) -> dict[str, str]:
    """Search for the hyperparameters of cells: the trials, then the finalists; what failed."""
    failures: dict[str, str] = {}
    for study in studies:
        failed = run(study.name, study.plan, study.config, runs, None, workers, command, study.function)
        failures |= {f"{study.name} {name}": why for name, why in failed.items()}
        best = [trial.setting for trial in _finished(study.name, runs)[:FINALISTS]]
        if best and not failed:
            plan, name = study.finals(best), f"{study.name}-finals"
            failed = run(name, plan, study.config, runs, None, workers, command, study.function)
            failures |= {f"{name} {trial}": why for trial, why in failed.items()}
    return failures


def _finished(name: str, runs: Path) -> list[search.Tried]:
    found = [study for study in search.load_studies(storage_of(runs)) if study.study_name == name]
    return search.finished(found[0]) if found else []


def outcome(study: Study, runs: Path) -> dict[str, Any] | None:
    """What a search came to: what `results/<table>-search.json` has of a cell; None if it has not begun.

    "selected" is None until all finalists are finished. The rank correlation is between the values at the first rung
    and at the end, of the trials that ran to their ends; their "epochs" are None.
    """
    known = {each.study_name: each for each in search.load_studies(storage_of(runs))}
    if study.name not in known:
        return None
    trials = search.finished(known[study.name])
    again = search.finished(known[f"{study.name}-finals"]) if f"{study.name}-finals" in known else []
    finalists: list[dict[str, Any]] = []
    for value, setting in trials[:FINALISTS]:
        values = [other for other, its in again if {**its, "seed": 0} == {**setting, "seed": 0}]
        if len(values) == study.seeds - 1:
            folder = RunFolder(runs / "studies" / study.name / search.name_of(setting))
            finalists.append({"setting": setting, "values": [value, *values], **study.kept(folder)})
    finalists.sort(key=lambda each: statistics.fmean(each["values"]))
    whole = len(finalists) == min(FINALISTS, len(trials)) > 0
    selected = finalists[0]["setting"] if whole else None
    agreement = rank_correlation(*search.agreement(known[study.name], study.rung))
    ranges = {each.name: each for each in study.plan.hyperparameters}
    tried: list[tuple[float, dict[str, Any], int | None]] = [(value, setting, None) for value, setting in trials]
    tried += search.pruned(known[study.name])
    return {
        "selected": selected,
        "at_edge": [name for name, value in (selected or {}).items() if ranges[name].at_edge(value)],
        "hyperparameters": list(study.hyperparameters),
        "trials": len(tried),
        "rung": study.rung,
        "rank_correlation": None if agreement is None else agreement._asdict(),
        "finalists": finalists,
        "tried": [{"value": value, "setting": setting, "epochs": epochs} for value, setting, epochs in tried],
    }


def make_plan(sampler: Sampler, hyperparameters: Sequence[str], trials: int, rung: int) -> Plan:
    """A plan, from hyperparameters as people write them."""
    return Plan(tuple(map(parse_hyperparameter, hyperparameters)), sampler, trials, rung)


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
        return Job(trial, function, {**arguments, "device": workers.device})

    return search.run(study, plan, runs / "studies" / name, make_job, workers, describe).failures


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
