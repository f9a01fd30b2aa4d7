"""What many verbs have in common: their options, and how they report what went wrong."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..base.hints import did_you_mean
from ..base.progress import Board, Progress
from ..models import pretrained
from ..paper.reports import Report
from ..training import devices
from ..training.runs import RunFolder, without_passwords
from ..training.workers import Workers

RUNS = Path("runs")
RESULTS = Path("results")


def command() -> str:
    """The command line, as it is recorded with what it made."""
    return without_passwords(shlex.join(["fastweights", *sys.argv[1:]]))


# What may be left out, and is then found: there is no default to be told.
MaybePath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
MaybeCount = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
MaybeText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
Some = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")]
Run = Annotated[str, tyro.conf.arg(metavar="RUN")]


def run_folder(run: str) -> RunFolder:
    """A run by its folder, or a net that comes with the package by its name."""
    if run in pretrained.NAMES:
        return RunFolder(pretrained.FOLDER / run)
    if not (Path(run) / "config.json").is_file():
        names = ", ".join(pretrained.NAMES)
        why = "it has no config.json" if Path(run).is_dir() else "there is none"
        hint = did_you_mean(run, pretrained.NAMES)
        raise ValueError(f"RUN must be a run folder, or a net of the package ({names}); got {run!r}: {why}{hint}")
    return RunFolder(run)


def check_picture(out: Path, *formats: str) -> None:
    """A ValueError, if a picture cannot be written under this name."""
    if out.suffix.lower() not in formats:
        raise ValueError(f"--out must end in {' or '.join(formats)}, the formats there are; got {str(out)!r}")


@dataclass(frozen=True)
class Work:
    """Where many runs go, and what comes of them."""

    runs: Path = RUNS
    """Where the run folders go."""
    results: Path = RESULTS
    """The published results: read to compare, and written by --publish alone."""
    publish: bool = False
    """Write tables, figures and pages into the published results, not beside the runs."""
    workers: int = 2
    """Runs to train at a time, with one thread each."""
    ray: MaybeText = None
    """Run them on the Ray cluster at this address, "auto" for that of this machine; it must see the same folders."""
    device: devices.Name = "cpu"
    """Compute on the CPU, a GPU (cuda), a Mac's (mps), or auto: one of them if it is there. Their numbers differ."""
    gpus: MaybeCount = None
    """Spread the runs over so many GPUs; by default all that are here, and on a Ray cluster one for each run."""

    def __post_init__(self) -> None:
        Workers(self.workers, self.ray, self.device, self.gpus)  # which says what is wrong before anything is done
        if self.ray is not None:  # whose workers are in folders of their own
            object.__setattr__(self, "runs", self.runs.absolute())

    def report(self, *, quick: bool = False) -> Report:
        """Where reports go."""
        if quick and self.publish:
            raise ValueError("--publish must go without --quick: a quick look is not a result")
        return Report(self.runs, self.results, self.publish, quick)

    @property
    def crew(self) -> Workers:
        """Who does the work."""
        return Workers(self.workers, self.ray, self.device, self.gpus)


@dataclass(frozen=True)
class Training:
    """Where and how a single run is trained."""

    out: MaybePath = None
    """The run folder; by default one in runs/ named after what is trained."""
    curves: bool = False
    """Measure the test set after every epoch as well, for a plot; it decides nothing."""
    checkpoint_seconds: float = 30.0
    """Save a checkpoint after so many seconds; a kill loses no more work than that, an interrupt none."""
    threads: int = 1
    """Threads that the process computes with."""
    device: devices.Name = "cpu"
    """Compute on the CPU, a GPU (cuda), a Mac's (mps), or auto: one of them if it is there. Their numbers differ."""

    def __post_init__(self) -> None:
        devices.find(self.device)
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds must be at least 0, got {self.checkpoint_seconds}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")


Works = Annotated[Work, tyro.conf.arg(name="")]
HERE = Work()


def say_failures(failures: dict[str, str]) -> int:
    """Say what failed and why; the exit code."""
    for name, why in failures.items():
        print(f"fastweights: {name} failed: {why}", file=sys.stderr)
    if failures:
        print("fastweights: the same command runs what is missing", file=sys.stderr)
    return 1 if failures else 0


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of how many things are done."""
    with Board(1) as board:
        yield lambda done, of: board.update(what, Progress(done, of, done))
