"""Searches for hyperparameters, by Optuna: a grid, at random or by TPE. Many machines may work on one study.

With a first rung, trials are halved as they run (asynchronous successive halving, Li et al. 2018): at the rung, and
whenever three times as many epochs are over, only the best third of those that got there go on. The finalists of a
search are run again from other seeds, in a study of their own.

What a trial came to is in its run folder; the study, a data base, has what was tried and who is at it. A trial whose
process is gone is gone on with by whoever comes next.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from ..base.progress import Progress
from .runs import RunFolder, without_passwords
from .workers import Job, Outcomes, Workers, run_all

optuna.logging.set_verbosity(optuna.logging.WARNING)
Sampler = Literal["grid", "random", "tpe", "given"]
REDUCTION = 3  # of the trials at a rung one of so many goes on
STALE_SECONDS = 60.0  # after which a trial of another machine, whose folder nobody holds, is taken over
ASKING_SECONDS = 3.0  # in which whoever asks for a trial says who it is, or has died


@dataclass(frozen=True)
class Hyperparameter:
    """What to try for one hyperparameter: some values, or all from `low` to `high`."""

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0

    def suggest(self, trial: Trial) -> Any:
        """A value for a trial; from a range of which the end is ten times the beginning, on a logarithmic scale."""
        if self.values:
            return trial.suggest_categorical(self.name, self.values)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.name, self.low, self.high)
        return trial.suggest_float(self.name, self.low, self.high, log=self._is_log())

    def draw(self, generator: random.Random) -> Any:
        """The same from a generator."""
        if self.values:
            return generator.choice(self.values)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return generator.randint(self.low, self.high)
        if self._is_log():
            value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = generator.uniform(self.low, self.high)
        return min(max(float(f"{value:.3g}"), self.low), self.high)  # nobody wants to read more digits

    def at_edge(self, value: Any) -> bool:
        """Whether a value is in the outer twentieth of the range: a better one may be outside.

        >>> rate = Hyperparameter("rate", (), 0.001, 0.1)
        >>> rate.at_edge(0.0011), rate.at_edge(0.01)
        (True, False)
        """
        if self.values or isinstance(self.low, int):
            return False
        low, high, value = (
            map(math.log, (self.low, self.high, value)) if self._is_log() else (self.low, self.high, value)
        )
        return not 0.05 <= (value - low) / (high - low) <= 0.95

    def _is_log(self) -> bool:
        return 0 < 10 * self.low <= self.high

    def __str__(self) -> str:
        values = ",".join(map(str, self.values))
        return f"{self.name}={values or f'{self.low}..{self.high}'}"


def parse_hyperparameter(text: str) -> Hyperparameter:
    """A hyperparameter as it is written in a command.

    >>> parse_hyperparameter("lr=1e-3,3e-3").values, parse_hyperparameter("schedule=cosine").values
    ((0.001, 0.003), ('cosine',))
    >>> parse_hyperparameter("lr=1e-4..1e-2")
    Hyperparameter(name='lr', values=(), low=0.0001, high=0.01)
    """
    name, equals, what = text.partition("=")
    if not (name and equals and what):
        raise ValueError(f"a hyperparameter must be written as name=value,value or name=low..high; got {text!r}")
    low, dots, high = what.partition("..")
    if dots:
        bounds = _value(low), _value(high)
        if not all(isinstance(bound, int | float) for bound in bounds) or not bounds[0] < bounds[1]:
            raise ValueError(f"{name} must go from a number to a larger one; got {what!r}")
        return Hyperparameter(name, (), *bounds)
    values = tuple(_value(word) for word in what.split(","))
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must have different values; got {what!r}")
    return Hyperparameter(name, values)


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    if not word:
        raise ValueError("a hyperparameter must not have empty values")
    return {"true": True, "false": False}.get(word.lower(), word)


@dataclass(frozen=True)
class Plan:
    """A search: over which hyperparameters, how, and for how many trials (a grid knows).

    Args:
        rung: after so many epochs only the best third goes on; 0: all trials run to their ends.
        seed: of what is drawn.
        given: the settings to try, for a plan that draws none.
    """

    hyperparameters: tuple[Hyperparameter, ...]
    sampler: Sampler = "grid"
    trials: int = 0
    rung: int = 0
    seed: int = 0
    given: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        names = [hyperparameter.name for hyperparameter in self.hyperparameters]
        if not names:
            raise ValueError("hyperparameters must be at least one, as in lr=1e-3,3e-3")
        if len(set(names)) < len(names):
            raise ValueError(f"hyperparameters must be named once each; got {', '.join(names)}")
        if self.sampler == "grid" and not all(hyperparameter.values for hyperparameter in self.hyperparameters):
            raise ValueError(f"a grid must have values, not ranges; got {' '.join(map(str, self.hyperparameters))}")
        if self.sampler in ("random", "tpe") and self.trials < 1:
            raise ValueError(f"trials must be at least 1, got {self.trials}")
        if self.rung < 0:
            raise ValueError(f"rung must be at least 0, got {self.rung}")

    @property
    def size(self) -> int:
        """How many trials there will be."""
        return self.trials if self.sampler == "tpe" else len(self.settings())

    def settings(self) -> list[dict[str, Any]]:
        """All that will be tried, if that is known before: every setting of a grid, or those drawn from the seed."""
        names = [hyperparameter.name for hyperparameter in self.hyperparameters]
        if self.sampler == "grid":
            found = itertools.product(*(hyperparameter.values for hyperparameter in self.hyperparameters))
            return [dict(zip(names, values, strict=True)) for values in found]
        if self.sampler == "tpe":
            return []
        if self.sampler == "given":
            return [dict(setting) for setting in self.given]
        generator = random.Random(self.seed)
        return [{each.name: each.draw(generator) for each in self.hyperparameters} for _ in range(self.trials)]


SQLITE = "sqlite:///"  # before the path of a data base that is a file


def storage_of(runs: Path) -> str:
    """The data base beside the runs."""
    return f"{SQLITE}{(runs / 'studies.sqlite').absolute()}"


def open_study(name: str, storage: str, plan: Plan, experiment: Mapping[str, Any]) -> optuna.Study:
    """The study of this name, new or as it was left; a ValueError if it is of another experiment, or out of reach.

    Args:
        storage: a data base by its URL, as SQLAlchemy has it.
        experiment: what is searched, as plain values: whoever works on the study must have the same.
    """
    facts = {
        "experiment": dict(experiment),
        "hyperparameters": [str(each) for each in plan.hyperparameters],
        "sampler": plan.sampler,
        "rung": plan.rung,
    }
    facts = json.loads(json.dumps(facts))
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if plan.rung:
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=plan.rung, reduction_factor=REDUCTION)
    if storage.startswith(SQLITE):
        Path(storage.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    with _reached(storage):
        study = _create(name, storage, pruner)
        there = study.user_attrs.get("facts")
        if there is None:
            study.set_user_attr("facts", facts)
        elif there != facts:
            what = next(key for key in facts if there.get(key) != facts[key])
            raise ValueError(
                f"the study {name!r} is of something else: its {what} was {there.get(what)} and is now {facts[what]}; "
                f"delete {storage.removeprefix('sqlite:///')}, or choose another name by --study"
            )
        known = [_setting(trial) for trial in study.get_trials(deepcopy=False)]
        for setting in plan.settings():
            if setting not in known:
                study.enqueue_trial(setting)
                known.append(setting)
        # Another seed after a restart: what was drawn before is not to be drawn again.
        study.sampler = optuna.samplers.TPESampler(seed=plan.seed + len(known), constant_liar=True)
    return study


def _create(name: str, storage: str, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    """A study, new or as it was left. Others may be making the tables of the same data base at this moment."""
    for patience in (2.0, 5.0):
        try:
            return optuna.create_study(study_name=name, storage=storage, pruner=pruner, load_if_exists=True)
        except (IntegrityError, ProgrammingError):
            time.sleep(patience)
    return optuna.create_study(study_name=name, storage=storage, pruner=pruner, load_if_exists=True)


def load_studies(storage: str) -> list[optuna.Study]:
    """All studies of a data base."""
    with _reached(storage):
        if storage.startswith(SQLITE) and not Path(storage.removeprefix(SQLITE)).exists():
            return []  # to look makes no file
        return [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]


@contextmanager
def _reached(storage: str) -> Iterator[None]:
    """Errors of a data base as one line."""
    try:
        yield
    except (SQLAlchemyError, ImportError) as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(without_passwords(f"the data base {storage} cannot be reached: {why}")) from error


def run(
    study: optuna.Study,
    plan: Plan,
    runs: Path,
    make_job: Callable[[str, dict[str, Any], Path], Job],
    workers: Workers,
    describe: Callable[[Any], str] = str,
) -> Outcomes:
    """Run the trials that the plan has and the study has not; what came of those that ran here.

    Args:
        runs: the folder of the study's run folders.
        make_job: of a trial's name, settings and folder; its result has what is minimised as "value".
    """
    trials: dict[str, Trial] = {}
    reported: dict[str, int] = {}  # the last epoch of each

    def jobs() -> Iterator[Job]:
        while (trial := _ask(study, plan)) is not None:
            name = name_of(trial.params)
            trials[name] = trial
            yield make_job(name, trial.params, runs / name)

    def should_prune(job: Job, progress: Progress) -> bool:
        trial = trials[job.name]
        if not plan.rung or progress.value is None or not math.isfinite(progress.value):
            return False
        if reported.get(job.name) == progress.epoch:
            return False
        reported[job.name] = progress.epoch
        trial.report(progress.value, progress.epoch)
        return trial.should_prune()

    def over(job: Job, kind: str, value: Any) -> None:
        if kind == "done":
            study.tell(trials[job.name], value["value"])
        else:
            study.tell(trials[job.name], state=TrialState.PRUNED if kind == "stopped" else TrialState.FAIL)

    _wait_again(study, runs)
    left = plan.size - len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
    return run_all(jobs(), workers, describe, total=max(0, left), should_prune=should_prune, over=over)


def _ask(study: optuna.Study, plan: Plan) -> Trial | None:
    """A trial that nobody has yet; None if there is none left."""
    begun = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    while True:
        waits = bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
        if not waits and (plan.sampler != "tpe" or len(study.get_trials(deepcopy=False, states=begun)) >= plan.size):
            return None
        trial = study.ask()
        trial.set_user_attr("owner", [platform.node(), os.getpid()])
        for hyperparameter in plan.hyperparameters:
            hyperparameter.suggest(trial)
        others = [
            other.params for other in study.get_trials(deepcopy=False, states=begun) if other.number < trial.number
        ]
        asked = study.get_trials(deepcopy=False)[trial.number]
        if plan.sampler == "tpe" or ("fixed_params" in asked.system_attrs and trial.params not in others):
            return trial
        # Two machines put the same into the study at the same moment, or somebody took the last one meanwhile.
        study.tell(trial, state=TrialState.FAIL)


def _wait_again(study: optuna.Study, runs: Path) -> None:
    """Trials that failed, or that nobody works on any more, are to be done again; from their checkpoints, that is."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.WAITING)
    known = [_setting(trial) for trial in study.get_trials(deepcopy=False, states=states)]
    nobodys = _nobodys(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.FAIL)):
        if trial.state == TrialState.RUNNING:
            if trial.number not in nobodys and not _abandoned(trial, runs):
                known.append(_setting(trial))
                continue
            study.tell(trial.number, state=TrialState.FAIL)
        setting = _setting(trial)
        if setting and setting not in known:
            study.enqueue_trial(setting)
            known.append(setting)


def _setting(trial: FrozenTrial) -> dict[str, Any]:
    """What it is to try. The params are not all there while it is being asked for, and may never be."""
    fixed: dict[str, Any] | None = trial.system_attrs.get("fixed_params")
    return fixed or trial.params


def _nobodys(study: optuna.Study) -> set[int]:
    """The trials that somebody asked for who died before saying who it was."""

    def unsaid() -> set[int]:
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return {trial.number for trial in running if "owner" not in trial.user_attrs}

    found, begun = unsaid(), time.monotonic()
    while found and time.monotonic() - begun < ASKING_SECONDS:
        time.sleep(0.1)
        found &= unsaid()
    return found


def _abandoned(trial: FrozenTrial, runs: Path) -> bool:
    """Whether the process that had a trial is gone: if it was not of this machine, nobody holds its folder."""
    host, process = trial.user_attrs.get("owner", ["", 0])
    if host == platform.node():
        return not _lives(process)
    begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    return time.time() - begun > STALE_SECONDS and not RunFolder(runs / name_of(trial.params)).held()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        pass
    return True


def name_of(setting: Mapping[str, Any]) -> str:
    """Of a trial, and of its run folder.

    >>> name_of({"lr": 0.001, "schedule": "cosine"})
    'lr=0.001,schedule=cosine'
    """
    return ",".join(
        f"{name}={f'{value:.6g}' if isinstance(value, float) else value}" for name, value in setting.items()
    )


class Tried(NamedTuple):
    """A trial that is over."""

    value: float
    setting: dict[str, Any]


def agreement(study: optuna.Study, rung: int) -> tuple[list[float], list[float]]:
    """What the trials that were run to their ends had at the first rung, and what at the end."""
    pairs = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        at_rung = [step for step in trial.intermediate_values if step >= rung]
        if at_rung and trial.value is not None and math.isfinite(trial.value):
            pairs.append((trial.intermediate_values[min(at_rung)], trial.value))
    return [first for first, _ in pairs], [last for _, last in pairs]


def pruned(study: optuna.Study) -> list[tuple[float, dict[str, Any], int]]:
    """The trials that were stopped at a rung: their last value, their setting, and after how many epochs."""
    found = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)):
        epoch = max(trial.intermediate_values, default=0)
        found.append((trial.intermediate_values.get(epoch, math.inf), dict(trial.params), epoch))
    return sorted(found, key=lambda trial: trial[0])


def finished(study: optuna.Study) -> list[Tried]:
    """The trials that were run to their ends, the best first."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    found = [Tried(math.inf if trial.value is None else trial.value, dict(trial.params)) for trial in done]
    return sorted(found, key=lambda trial: trial.value)


def importances(study: optuna.Study) -> dict[str, float]:
    """How much each hyperparameter has to do with being among the best; nothing, if that cannot be estimated."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    finite = [trial for trial in done if trial.value is not None and math.isfinite(trial.value)]
    varied = {name for trial in finite for name in trial.params if trial.params[name] != finite[0].params.get(name)}
    if len(finite) < 4 or not varied:
        return {}
    copy = optuna.create_study()
    copy.add_trials(finite)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(copy, evaluator=evaluator)
