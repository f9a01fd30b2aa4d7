"""Shows people how far work is: bars with the time left in a terminal, plain lines elsewhere."""

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

SPEED_SECONDS = 2.0  # that something must have run, before its speed says how long it will take
LABEL = 26  # characters of a name that are shown beside a bar


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


def short(number: int) -> str:
    """A number in at most five characters.

    >>> short(950), short(1203), short(78200), short(4000000)
    ('950', '1,203', '78.2k', '4.00M')
    """
    if number < 10_000:
        return f"{number:,}"
    size, unit = (number / 1e3, "k") if number < 999_500 else (number / 1e6, "M")
    return f"{size:.{max(0, 2 - int(math.log10(size)))}f}{unit}"


class Progress(NamedTuple):
    """Where a run is: how much is done of how much, in what is counted in it (updates, frames)."""

    done: int
    of: int  # 0: nobody knows
    epoch: int  # finished
    note: str = ""  # what was measured last
    value: float | None = None  # what the run minimises, as it was measured last


class _Pace:
    """How fast something is, from the first moment it was looked at."""

    def __init__(self, done: float) -> None:
        self.before, self.done, self.began = done, done, time.monotonic()

    def left(self, of: float) -> str:
        """The time left, in words; nothing while there is no speed."""
        took, gone = time.monotonic() - self.began, self.done - self.before
        return f"{duration((of - self.done) * took / gone)} left" if gone > 0 and of and took >= SPEED_SECONDS else ""


class Board:
    """Shows how `total` runs are doing, some of them at once."""

    def __init__(self, total: int, every: float | None = None) -> None:
        self.total, self.finished = total, 0
        self.every = every if every is not None else 5.0 if total == 1 else 60.0  # seconds between lines, at least
        self.running: dict[str, tuple[Progress, _Pace]] = {}
        self.pace = _Pace(0.0)  # of all of them; what was done before this start is added to its `before`
        self.epoch = 0  # of a single run, in the last report
        self.printed = -math.inf if total == 1 else time.monotonic()
        self.bars: Bars | None = _bars() if sys.stderr.isatty() else None
        self.tasks = {}
        if self.bars and total > 1:
            self.tasks[""] = self.bars.add_task("all runs", total=total, count=f"0/{total}", left="", note="")

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
            self.running[name] = progress, _Pace(progress.done)
            self.pace.before += _share(progress)
        pace = self.running[name][1]
        pace.done, self.running[name] = progress.done, (progress, pace)
        self._add_up()
        count, left = f"{short(progress.done)}/{short(progress.of)}", pace.left(progress.of)
        count = count if progress.of else short(progress.done)
        if self.bars:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=None, count="", left="", note="")
            done, of = progress.done, progress.of or None
            self.bars.update(self.tasks[name], completed=done, total=of, count=count, left=left, note=progress.note)
            self._show_all()
        elif time.monotonic() - self.printed < self.every and (self.total > 1 or progress.done < progress.of):
            return
        elif self.total == 1 and progress.epoch > self.epoch:
            self.epoch = progress.epoch
            self._say(", ".join(part for part in (f"{name}: {count}", progress.note, left) if part))
        elif self.total > 1:
            parts = f"{self.finished} of {self.total} runs done", self._left()
            self._say(f"{', '.join(part for part in parts if part)}; now {', '.join(self.running)}")

    def done(self, name: str, note: str) -> None:
        """A run is over."""
        self.finished += 1
        if self.running.pop(name, None) is None:
            self.pace.before += 1
        self._add_up()
        if self.bars:
            if name in self.tasks:
                self.bars.remove_task(self.tasks.pop(name))
            self._show_all()
            self.bars.console.print(f"{name}: {note}", highlight=False)
        else:
            self._say(f"{name}: {note}")

    def _add_up(self) -> None:
        self.pace.done = self.finished + sum(_share(progress) for progress, _ in self.running.values())
        if self.pace.done <= self.pace.before:  # until the first has moved, they are being started
            self.pace.began = time.monotonic()

    def _left(self) -> str:
        return self.pace.left(self.total)

    def _show_all(self) -> None:
        if self.bars and "" in self.tasks:
            count = f"{self.finished}/{self.total}"
            self.bars.update(self.tasks[""], completed=self.pace.done, count=count, left=self._left())

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self.printed = time.monotonic()


def _share(progress: Progress) -> float:
    return progress.done / progress.of if progress.of else 0.0


def _bars() -> "Bars | None":
    """Bars that fit a narrow terminal: what does not fit is the bar's to give."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars
        from rich.table import Column
    except ModuleNotFoundError:  # of the extra `paper`
        return None

    def text(field: str, width: int | None = None, justify: str = "left") -> TextColumn:
        column = Column(no_wrap=True, overflow="ellipsis", max_width=width)
        return TextColumn(f"{{task.{field}}}", justify=justify, markup=False, table_column=column)  # type: ignore[arg-type]

    return Bars(
        text("description", LABEL),
        BarColumn(bar_width=None),
        text("fields[count]", justify="right"),
        text("fields[left]"),
        text("fields[note]"),
        console=Console(stderr=True),
        expand=True,
    )
