"""Independent runs side by side: local processes, one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from .progress import Board, Progress


@dataclass(frozen=True)
class Job:
    """A call to make in a process of its own: `function(**arguments, tell=…)`, which gives a result of plain values."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcomes:
    """What came of the jobs, by name."""

    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_all(jobs: Sequence[Job], workers: int, describe: Callable[[Any], str] = str) -> Outcomes:
    """Run all jobs, `workers` at a time. One that fails, or dies, does not stop the others."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    context = multiprocessing.get_context("spawn")
    waiting, outcomes = list(jobs), Outcomes()
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    with Board(len(jobs)) as board:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    process: BaseProcess = context.Process(target=_work, args=(job, theirs), daemon=True)
                    process.start()
                    theirs.close()
                    running[ours] = job, process
                for ready in wait(list(running)):
                    assert isinstance(ready, Connection)
                    job, process = running[ready]
                    try:
                        kind, value = ready.recv()
                    except EOFError:
                        process.join()
                        code = process.exitcode or 0
                        died = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"
                        kind, value = "failed", f"its process {died}"
                    if kind == "progress":
                        board.update(job.name, value)
                        continue
                    del running[ready]
                    ready.close()
                    process.join()
                    if kind == "done":
                        outcomes.results[job.name] = value
                        board.done(job.name, describe(value))
                    else:
                        outcomes.failures[job.name] = value
                        board.done(job.name, f"FAILED: {value}")
        finally:
            for _, unfinished in running.values():
                unfinished.terminate()
            for _, unfinished in running.values():
                unfinished.join()
    return outcomes


def end_with_parent() -> None:
    """Leave at once when the parent is gone, however it went: the same command will go on from the checkpoint."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(job: Job, pipe: Connection) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told as well, and ends us

    def tell(progress: Progress) -> None:
        pipe.send(("progress", progress))

    try:
        pipe.send(("done", job.function(**job.arguments, tell=tell)))
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
