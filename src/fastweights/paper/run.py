"""One training run of any task: trained in its folder, and found there again."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from ..base.files import BadFileError
from ..base.hints import did_you_mean
from ..base.progress import Progress
from ..training import devices, supervised
from ..training.runs import RunFolder
from ..training.supervised import Examples, Recipe, score

MOST_SEED = 2**32 - 1  # that every generator takes


class Config(Protocol):
    """What a run is: plain values, as a dataclass, that bring a task, a net and a recipe together."""

    @property
    def training(self) -> Recipe: ...

    @property
    def seed(self) -> int: ...

    @property
    def without(self) -> frozenset[str]:
        """The hyperparameters that are not those of its model."""

    def settings(self) -> dict[str, Any]:
        """As plain values, with the task's name under "task": what makes this run this run."""

    def make_net(self) -> nn.Module:
        """The net, initialised from the seed; its `settings` are saved beside its weights."""

    def examples_of(self, name: str) -> Examples:
        """The training, validation or test set."""


def train(
    config: Config,
    path: Path,
    command: str,
    *,
    test: bool = True,
    curves: bool = False,
    checkpoint_seconds: float = 30.0,
    device: devices.Name = "cpu",
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Train in a run folder, or go on with what was begun there: see `supervised.fit`. Without `test`, as in a search,
    the test set is not even made. The net starts with the same weights on every device.
    """
    where = devices.prepared(device)
    folder, net, settings = RunFolder(path), config.make_net(), config.settings()
    net.to(where)
    with folder.opened(settings, command, devices.describe(where)):
        splits = {name: config.examples_of(name) for name in ("train", "validation", *(["test"] if test else []))}
        return supervised.fit(
            net,
            splits,
            config.training,
            folder,
            seed=config.seed,
            curves=curves,
            checkpoint_seconds=checkpoint_seconds,
            report=report,
            facts={"task": settings["task"], "net": net.settings},
        )


def train_on_validation(
    config: Config, path: Path, command: str, report: Callable[[Progress], None], device: devices.Name = "cpu"
) -> dict[str, float | None]:
    """One trial of a search; the test set is not looked at."""
    result = train(config, path, command, test=False, device=device, report=report)
    error = result.get("validation_error")
    return {"value": math.inf if error is None else score(result), "validation_error": error}


C = TypeVar("C")


def with_hyperparameters(config: Any, setting: Mapping[str, Any]) -> Any:
    """A run with other settings of it, or of its recipe; a ValueError that names those there are, if there is none."""
    of_run = {field.name for field in dataclasses.fields(config)} - {"training"}
    of_recipe = {field.name for field in dataclasses.fields(config.training)}
    for name, value in setting.items():
        if name not in of_run | of_recipe:
            known = sorted(of_run | of_recipe)
            hint = did_you_mean(name, known)
            raise ValueError(f"there is no hyperparameter {name!r}; there are {', '.join(known)}{hint}")
        if name in config.without:
            raise ValueError(f"{name} is no hyperparameter of this model; got {name}={value!r}")
        there = getattr(config if name in of_run else config.training, name)
        fits = isinstance(value, int | float) if isinstance(there, float) else isinstance(value, type(there))
        if not fits or isinstance(value, bool) != isinstance(there, bool):
            raise ValueError(f"{name} must be of the kind of {there!r}, got {value!r}")
    recipe = {name: value for name, value in setting.items() if name in of_recipe}
    run = {name: value for name, value in setting.items() if name in of_run}
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **recipe), **run)


def load_config(folder: RunFolder, task: str, kind: Callable[..., C], recipe: Any = Recipe) -> C:
    """The settings of a run of this task, as `kind` has them, with the recipe as its `training`."""
    settings = dict(folder.config["settings"])
    found = settings.pop("task", None)
    if found != task:
        raise ValueError(f"{folder.path} is a run of {found!r}, not of {task!r}")
    try:
        # A hyperparameter that is newer than the run has its default, which is how the run was made.
        names = [field.name for field in dataclasses.fields(recipe) if field.name in settings]
        of_recipe = {name: settings.pop(name) for name in names}
        return kind(**settings, training=recipe(**of_recipe))
    except (KeyError, TypeError, ValueError) as error:
        path = folder.path / "config.json"
        raise BadFileError(f"{path} is of another version of fastweights: its settings do not fit ({error})") from error


def load_best(net: nn.Module, folder: RunFolder) -> None:
    """Give a net the weights of a run's best epoch."""
    try:
        net.load_state_dict(folder.best()[0])
    except RuntimeError as error:
        what = str(error).splitlines()[0]
        raise BadFileError(f"the weights in {folder.path} are of another net ({what})") from error
    net.eval()
