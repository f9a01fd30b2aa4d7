"""Shows people how far training runs are: bars with time left in a terminal, plain lines elsewhere."""

import math
import sys
import time
from types import TracebackType
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


def duration(seconds: float) -> str:
    """In words of one or two parts: `45 s`, `12 min`, `3 h 05 min`.

    >>> duration(45), duration(750), duration(11100)
    ('45 s', '12 min', '3 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"


class Progress(NamedTuple):
    """Where a run is: how much is done of how much, in what is counted in it (updates, frames)."""

    done: int
    of: int
    epoch: int  # finished
    note: str  # what was measured last
    per_second: float
    value: float | None = None  # what the run is to make small, as it was measured last


class Board:
    """Tells how `total` runs are doing, some of them at once."""

    def __init__(self, total: int, every: float | None = None) -> None:
        self.total, self.finished = total, 0
        self.every = every if every is not None else 5.0 if total == 1 else 60.0  # seconds between lines, at least
        self.running: dict[str, Progress] = {}
        self.before = 0.0  # runs, or parts of them, that were done before this start
        self.epoch = 0  # of a single run, that was told last
        self.started, self.said = time.monotonic(), -math.inf if total == 1 else time.monotonic()
        self.bars: Bars | None = None
        if sys.stderr.isatty():
            self.bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
        self.tasks = {}
        if self.bars and total > 1:
            self.tasks[""] = self.bars.add_task("all runs", total=total, note="")

    def __enter__(self) -> "Board":
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars:
            self.bars.stop()

    def update(self, name: str, progress: Progress) -> None:
        """A run got this far."""
        if name not in self.running:
            self.before += progress.done / progress.of
        self.running[name] = progress
        if self.bars:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=progress.of, note="")
            self.bars.update(self.tasks[name], completed=progress.done, note=progress.note)
            if "" in self.tasks:
                self.bars.update(self.tasks[""], completed=round(self._done(), 2))
        elif time.monotonic() - self.said < self.every and (self.total > 1 or progress.done < progress.of):
            return
        elif self.total == 1 and progress.epoch > self.epoch:
            self.epoch = progress.epoch
            left = (progress.of - progress.done) / max(progress.per_second, 1e-9)
            self._say(f"{name}: {progress.note}, {duration(left)} left")
        elif self.total > 1:
            self._say(f"{self.finished} of {self.total} runs done, {self._left()} left; now {', '.join(self.running)}")

    def done(self, name: str, note: str) -> None:
        """A run is over."""
        self.finished += 1
        if self.running.pop(name, None) is None:
            self.before += 1
        if self.bars:
            if name in self.tasks:
                self.bars.remove_task(self.tasks.pop(name))
            if "" in self.tasks:
                self.bars.update(self.tasks[""], completed=round(self._done(), 2))
            self.bars.console.print(f"{name}: {note}", highlight=False)
        else:
            self._say(f"{name}: {note}")

    def _done(self) -> float:
        return self.finished + sum(progress.done / progress.of for progress in self.running.values())

    def _left(self) -> str:
        done = self._done()
        per_second = (done - self.before) / max(time.monotonic() - self.started, 1e-9)
        return duration((self.total - done) / per_second) if per_second > 0 else "an unknown time"

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self.said = time.monotonic()
