"""Independent runs side by side: in local processes, one thread each, or on a Ray cluster."""

import contextlib
import ctypes
import logging
import math
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from ..base import interrupts
from ..base.hints import install
from ..base.progress import Board, Progress
from . import devices

RETRIES = 3  # of a job whose node is gone
STOPPING_SECONDS = 3.0  # in which a process that is stopped saves its work


@dataclass(frozen=True)
class Workers:
    """Who does the work: so many at a time, here or, with an address, on a Ray cluster ("auto": that of this node).

    Args:
        device: what each computes on, by its name; with "cuda", they are spread over GPUs.
        gpus: how many of them; None: all that are here, or on a cluster one for each.
    """

    count: int = 2
    ray: str | None = None
    device: devices.Name = "cpu"
    gpus: int | None = None

    def __post_init__(self) -> None:
        kind = self.device if self.ray is not None else devices.find(self.device).type
        if self.gpus is None:
            return
        if self.gpus < 1:
            raise ValueError(f"gpus must be at least 1, got {self.gpus}")
        if kind not in ("cuda", "auto"):
            raise ValueError(f"gpus must go with the device 'cuda', got {self.gpus} with the device {kind!r}")
        if self.ray is None and self.gpus > devices.gpus():
            raise ValueError(f"gpus must be at most {devices.gpus()}, as many as are here; got {self.gpus}")

    def gpu_of(self, number: int) -> int | None:
        """The GPU of the worker with this number, here: that of this process, if it took one; None: there is none."""
        if self.device == "cpu" or devices.find(self.device).type != "cuda":
            return None
        if self.gpus is None and devices.taken is not None:
            return devices.taken
        return number % (self.gpus or devices.gpus())


@dataclass(frozen=True)
class Job:
    """A call to make in a process of its own: `function(**arguments, report=…)`; its result is plain values."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcomes:
    """What came of the jobs, by name."""

    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)


# A job, and "progress", "done", "failed" or "stopped" with its progress, result or error. True is sent back for a
# progress to stop the job.
Events = Generator[tuple[Job, str, Any], bool | None, None]


def run_all(
    jobs: Iterable[Job],
    workers: Workers,
    describe: Callable[[Any], str] = str,
    *,
    total: int | None = None,
    should_prune: Callable[[Job, Progress], bool] = lambda job, progress: False,
    over: Callable[[Job, str, Any], None] = lambda job, kind, value: None,
) -> Outcomes:
    """Run all jobs. One that fails, or dies, does not stop the others.

    Args:
        jobs: a next one is asked for when there is somebody to do it.
        describe: a result, in a few words.
        total: how many jobs there will be; None: as many as `jobs`, a sequence.
        should_prune: is called with every progress; a job for which it is true is stopped.
        over: is called for every job that is done, has failed or was stopped, before the next is asked for.
    """
    if workers.count < 1:
        raise ValueError(f"workers must be at least 1, got {workers.count}")
    if total is None:
        assert isinstance(jobs, Sequence)
        total = len(jobs)
    outcomes = Outcomes()
    start = _in_processes if workers.ray is None else _on_ray
    events = start(iter(jobs), workers)
    with interrupts.deferred(), Board(total) as board:
        try:
            answer = None
            while True:
                try:
                    job, kind, value = events.send(answer)
                except StopIteration:
                    return outcomes
                answer = None
                if kind == "progress":
                    board.update(job.name, value)
                    answer = should_prune(job, value)
                    continue
                if kind == "done":
                    outcomes.results[job.name] = value
                elif kind == "failed":
                    outcomes.failures[job.name] = value
                else:
                    outcomes.stopped.append(job.name)
                note = describe(value) if kind == "done" else f"FAILED: {value}" if kind == "failed" else "pruned"
                board.done(job.name, note)
                over(job, kind, value)
        finally:
            events.close()


def _in_processes(jobs: Iterator[Job], workers: Workers) -> Events:
    """A process does one job after the other: starting one takes seconds."""
    context = multiprocessing.get_context("spawn")
    idle: list[tuple[Connection, BaseProcess]] = []
    process: BaseProcess
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    numbers: dict[BaseProcess, int] = {}  # one that takes the place of another has its number, and its GPU
    try:
        while True:
            while len(running) < workers.count and (job := next(jobs, None)) is not None:
                while idle:
                    pipe, process = idle.pop()
                    try:
                        pipe.send(job)
                        break
                    except (BrokenPipeError, ConnectionResetError):  # it died while it had nothing to do
                        pipe.close()
                        process.join()
                else:
                    pipe, theirs = context.Pipe()
                    number = min(set(range(workers.count)) - {numbers[other] for _, other in running.values()})
                    # Not a daemon, which could have no processes of its own, as an A3C run has; it ends with this one.
                    process = context.Process(target=_work, args=(theirs, workers.gpu_of(number)))
                    numbers[process] = number
                    with interrupts.blocked():
                        process.start()
                    theirs.close()
                    pipe.send(job)
                running[pipe] = job, process
            if not running:
                return
            ready = wait_for(running)
            interrupts.check()
            if not ready:
                continue
            pipe = ready[0]
            job, process = running[pipe]
            try:
                kind, value = pipe.recv()
            except (EOFError, ConnectionResetError):
                process.join()
                code = process.exitcode or 0
                died = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"
                kind, value = "failed", f"its process {died}"
            if kind == "progress":
                if not (yield job, kind, value):
                    continue
                process.kill()
                process.join()
                kind, value = "stopped", None
            del running[pipe]
            if process.is_alive():
                idle.append((pipe, process))
            else:
                pipe.close()
            yield job, kind, value
    finally:
        for _, process in idle:
            process.kill()
        for _, process in running.values():
            process.terminate()
        until = time.monotonic() + STOPPING_SECONDS
        for _, process in running.values():
            process.join(max(0.0, until - time.monotonic()))
            process.kill()
        for pipe, process in [*idle, *((pipe, process) for pipe, (_, process) in running.items())]:
            process.join()
            pipe.close()


def wait_for(pipes: Iterable[Connection], seconds: float = 0.2) -> list[Connection]:
    """The pipes that have something, or have ended; none, if there was nothing for some time."""
    return [each for each in wait(list(pipes), seconds) if isinstance(each, Connection)]


def prepare_process(threads: int = 1) -> None:
    """What a process that trains wants: so many threads, and memory that stays its own when a tensor is freed.

    Every update frees what the next one needs again. The C library gives large blocks back to the system, and to get
    them anew costs an LSTM of 200 units a fifth of its time.
    """
    torch.set_num_threads(threads)
    with contextlib.suppress(OSError, AttributeError):  # of another system, which does as it likes
        library = ctypes.CDLL(None)
        for option, value in ((-1, 2**31 - 1), (-4, 0)):  # M_TRIM_THRESHOLD, M_MMAP_MAX
            library.mallopt(option, value)


def prepare_child(gpu: int | None = None) -> None:
    """What a process wants that trains for another one, which started it with `interrupts.blocked`; and its GPU."""
    interrupts.install_in_child()
    prepare_process()
    devices.take(gpu)


def _work(pipe: Connection, gpu: int | None) -> None:
    prepare_child(gpu)

    def report(progress: Progress) -> None:
        pipe.send(("progress", progress))

    while True:
        try:
            job = pipe.recv()
        except EOFError:  # there is nothing left to do
            return
        try:
            pipe.send(("done", job.function(**job.arguments, report=report)))
        except interrupts.Interrupted:
            interrupts.end()
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"))


class _Mailbox:
    """An actor to which jobs on the cluster report their progress; only the latest of each is kept."""

    def __init__(self) -> None:
        self.last: dict[int, Progress] = {}

    def report(self, number: int, progress: Progress) -> None:
        self.last[number] = progress

    def take(self) -> dict[int, Progress]:
        reported, self.last = self.last, {}
        return reported


def _on_ray(jobs: Iterator[Job], workers: Workers) -> Events:
    ray = connect(workers.ray or "auto")
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(_Mailbox).remote()
    call = ray.remote(num_cpus=1, num_gpus=gpus_of(workers, ray), max_retries=0)(_call)
    lost = ("WorkerCrashedError", "NodeDiedError", "ObjectLostError", "RaySystemError", "LocalRayletDiedError")
    gone = tuple(getattr(ray.exceptions, name) for name in lost)
    running: dict[Any, tuple[int, Job, int]] = {}  # a call's number, its job and how often its node was gone
    number = 0
    try:
        while True:
            while len(running) < workers.count and (job := next(jobs, None)) is not None:
                running[call.remote(job, mailbox, number)] = number, job, 0
                number += 1
            if not running:
                return
            ready, _ = ray.wait(list(running), timeout=0.5)
            interrupts.check()
            numbers = {given: reference for reference, (given, _, _) in running.items()}
            for given, progress in ray.get(mailbox.take.remote()).items():
                reference = numbers.get(given)
                if reference is not None and reference not in ready:
                    job = running[reference][1]
                    if (yield job, "progress", progress):
                        ray.cancel(reference, force=True)
                        del running[reference]
                        yield job, "stopped", None
            for reference in ready:
                given, job, failed = running.pop(reference)
                try:
                    kind, value = ray.get(reference)
                except gone as error:
                    if failed < RETRIES:  # it goes on elsewhere, from its last checkpoint
                        running[call.remote(job, mailbox, given)] = given, job, failed + 1
                        continue
                    kind, value = "failed", f"its node was gone {failed + 1} times: {type(error).__name__}"
                yield job, kind, value
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        ray.kill(mailbox)


def _call(job: Job, mailbox: Any, number: int) -> tuple[str, Any]:
    """On the cluster."""
    prepare_process()
    try:
        return "done", job.function(**job.arguments, report=lambda progress: mailbox.report.remote(number, progress))
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


def gpus_of(workers: Workers, ray: Any) -> float:
    """How many GPUs each worker asks of a cluster: where they are to share them, a part of one."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if workers.device in ("cpu", "mps") or (workers.device == "auto" and not there and not workers.gpus):
        return 0
    if not there:
        raise ValueError(f"device must be one that the Ray cluster has, which has no GPU; got {workers.device!r}")
    if workers.gpus is None:
        return 1
    if workers.gpus > there:
        raise ValueError(f"gpus must be at most {there}, as many as the Ray cluster has; got {workers.gpus}")
    return min(1.0, math.floor(1e4 * workers.gpus / workers.count) / 1e4)  # finer parts are none to Ray


def connect(address: str) -> Any:
    """Ray, connected to the cluster at an address, or a ValueError that says why not."""
    try:
        import ray
    except ImportError:
        raise ValueError(f"to work on a cluster, Ray must be installed: {install('ray')}") from None
    if ray.is_initialized():
        return ray
    try:
        if ":" in address:  # for which Ray itself would wait for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        interrupts.install_again()
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"there is no Ray cluster at {address!r} ({why}): start one by `ray start --head`") from error
    return ray
