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
