"""Jobs for worker processes, which must be able to import them."""

import os
import resource
import signal
import time

import torch

from fastweights.base.progress import Progress


def double(number, report):
    report(Progress(1, 2, 0))
    return 2 * number


def threads(report):
    return torch.get_num_threads()


def pages_asked_for(report):
    """By each of twenty tensors of 40 MB, 10,240 pages each, that come one after the other."""
    found = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(10_485_760)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return found


def fail(report):
    raise ValueError("number must be at least 1, got 0")


def die(report):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(path, report):
    path.write_text(str(os.getpid()))
    time.sleep(60)


def parabola(setting, report):
    return {"value": (setting["clip"] - 2) ** 2 + (setting["lr"] - 1e-2) ** 2}


def slow(value, report):
    for epoch in range(1, 8):
        for _ in range(2):  # an epoch is reported more than once
            report(Progress(epoch, 7, epoch, "", value))
        time.sleep(0.05)
    return {"value": value}


def process(report):
    return os.getpid()


def work_on_gpu(pipe, gpu):
    """The process of a worker, where GPUs are but numbers."""
    from fastweights.training import devices, workers

    devices.take = lambda gpu: os.environ.update(TAKEN=str(gpu))
    workers._work(pipe, gpu)


def gpu(folder, report, together=1):
    """The GPU that this process took, once so many processes said which theirs is."""
    taken = int(os.environ["TAKEN"])
    (folder / f"{taken}-{os.getpid()}").touch()
    while len(gpus_taken(folder)) < together:
        time.sleep(0.01)
    return taken


def gpus_taken(folder):
    """What processes took: (GPU, process)."""
    return [tuple(map(int, path.name.split("-"))) for path in folder.iterdir()]


def visible(report):
    """On a cluster: the GPUs that are left to this process."""
    time.sleep(2)  # so that none is done before all have begun
    return os.environ["CUDA_VISIBLE_DEVICES"]
