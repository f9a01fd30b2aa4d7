"""What many verbs have in common: their options, and how they tell what went wrong."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..training.progress import Board, Progress
from ..training.runs import without_passwords
from ..training.workers import Workers

RUNS = Path("runs")
RESULTS = Path("results")


def command() -> str:
    """The command line, as it is recorded with what it made."""
    return without_passwords(shlex.join(["fastweights", *sys.argv[1:]]))


@dataclass(frozen=True)
class Work:
    """Where many runs go, and what comes of them."""

    runs: Path = RUNS
    """Where the run folders go."""
    results: Path = RESULTS
    """Where tables, figures and pages go; those of a quick look stay with its runs."""
    workers: int = 2
    """Runs at a time, one thread each."""
    ray: str | None = None
    """Run them on the Ray cluster at this address, "auto" for that of this machine; it must see the same folders."""

    def __post_init__(self) -> None:
        if self.ray is not None:  # whose workers are in folders of their own
            object.__setattr__(self, "runs", self.runs.absolute())

    @property
    def crew(self) -> Workers:
        """Who does the work."""
        return Workers(self.workers, self.ray)


@dataclass(frozen=True)
class Training:
    """Where and how a single run is trained."""

    out: Path | None = None
    """The run folder; by default one in runs/ named after what is trained."""
    curves: bool = False
    """Measure the test set after every epoch as well, to be plotted (it decides nothing)."""
    checkpoint_seconds: float = 30.0
    """How much work a kill may lose."""
    threads: int = 1
    """Of this process."""


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
        started, first = time.monotonic(), None

        def tell(done: int, of: int) -> None:
            nonlocal first
            first = done if first is None else first
            speed = (done - first) / max(time.monotonic() - started, 1e-9)
            board.update(what, Progress(done, of, done, f"{done} of {of}", speed))

        yield tell
