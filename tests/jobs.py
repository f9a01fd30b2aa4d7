"""Jobs for worker processes, which must be able to import them."""

import os
import resource
import signal
import time

import torch

from fastweights.training.progress import Progress


def double(number, tell):
    tell(Progress(1, 2, 0, "", 10.0))
    return 2 * number


def threads(tell):
    return torch.get_num_threads()


def pages_asked_for(tell):
    """By twenty tensors of 10 MB, 2560 pages each, one after the other."""
    torch.ones(2_621_440).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2_621_440).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def fail(tell):
    raise ValueError("number must be at least 1, got 0")


def die(tell):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(path, tell):
    path.write_text(str(os.getpid()))
    time.sleep(60)


def parabola(setting, tell):
    return {"value": (setting["clip"] - 2) ** 2 + (setting["lr"] - 1e-2) ** 2}


def slow(value, tell):
    for epoch in range(1, 8):
        for _ in range(2):  # an epoch is told of more than once
            tell(Progress(epoch, 7, epoch, "", 1.0, value))
        time.sleep(0.05)
    return {"value": value}


def process(tell):
    return os.getpid()
