"""The device that a run computes on: found by its name, made to repeat itself as far as it can, and its generators."""

import os
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

Name = Literal["cpu", "cuda", "mps", "auto"]
taken: int | None = None  # the GPU of this process, if it is one of several processes


def find(name: str) -> torch.device:
    """The device of this name: "cuda" is a GPU by CUDA or ROCm, "mps" that of a Mac, "auto" one of them or the CPU.

    >>> find("cpu")
    device(type='cpu')
    """
    if name not in get_args(Name):
        raise ValueError(f"device must be one of {', '.join(map(repr, get_args(Name)))}; got {name!r}")
    there = ["cpu"]
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    if torch.cuda.is_available():
        there.insert(0, "cuda")
    if name not in ("auto", *there):
        built = torch.backends.cuda.is_built() if name == "cuda" else torch.backends.mps.is_built()
        why = "torch finds none" if built else f"torch {torch.__version__} is built without it"
        raise ValueError(f"device must be one that is here, {' or '.join(map(repr, there))}; got {name!r}: {why}")
    return torch.device(there[0] if name == "auto" else name)


def prepared(name: str) -> torch.device:
    """The device of this name, for a process that computes on it: float32 is float32, the same call gives the same."""
    device = find(name)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS adds up in another order each time
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device


def describe(device: torch.device) -> str:
    """What is recorded of it.

    >>> describe(torch.device("cpu"))
    'cpu'
    """
    return f"cuda ({torch.cuda.get_device_name()})" if device.type == "cuda" else device.type


def moved(facts: Mapping[str, object], device: str) -> str:
    """The devices of a run that goes on: those that the facts of its checkpoint name, and this one.

    >>> moved({"device": "cpu"}, "mps"), moved({"device": "cpu, then mps"}, "mps")
    ('cpu, then mps', 'cpu, then mps')
    """
    before = str(facts.get("device", "cpu"))  # what a checkpoint without one was made on
    return before if before.split(", then ")[-1] == device else f"{before}, then {device}"


def gpus() -> int:
    """How many GPUs "cuda" may be."""
    return torch.cuda.device_count()


def take(gpu: int | None) -> None:
    """Let "cuda" be this GPU in this process; None: it stays the first."""
    global taken
    if gpu is not None:
        torch.cuda.set_device(gpu)
        taken = gpu


def make_generator(device: torch.device, seed: int) -> torch.Generator:
    """A generator for what is drawn on a device; from the same seed, each kind of device draws something else."""
    return torch.Generator(device).manual_seed(seed)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own generators, from which dropout draws: the CPU's ("torch") and, by its name, another's.

    >>> list(random_states(torch.device("cpu")))
    ['torch']
    """
    states = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def restore_random(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put them back. Where the states are those of another device, this one's generator stays as it was seeded."""
    torch.set_rng_state(states["torch"])
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type])
