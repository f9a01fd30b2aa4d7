"""Associative retrieval: the task, the net and the recipe of one training run, and questions to a trained net."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...models import cores
from ...models.retrieval import RetrievalNet
from ...tasks import retrieval as task
from ...training import devices, supervised
from ...training.runs import RunFolder
from ...training.supervised import Examples, Recipe
from .. import run

TASK = "retrieval"


@dataclass(frozen=True)
class Retrieval:
    """One training run of associative retrieval."""

    core: Literal["irnn", "lstm", "a-lstm", "fast-weights"] = "fast-weights"
    """The recurrent core of the net."""
    units: int = 50
    """Units of the recurrent core."""
    pairs: int = 4
    """Letter-digit pairs in a string (the paper: 4)."""
    separators: int = 2
    """Question marks between the pairs and the query (the paper: 2)."""
    examples: int = task.SIZES["train"]
    """Training strings, at most as many as the paper's."""
    embedding_range: float = 1.0
    """Embeddings start as U(-range, range)."""
    input_range: float = 1.0
    """The core's input weights start as U(-range, range); 0: its default, U(-1/√H, 1/√H)."""
    recurrent_init: float = 0.0
    """For a ReLU RNN and fast weights: W starts as this times I; 0: its default, 0.5 and 0.05."""
    dropout: float = 0.0
    """The share of what the core gives that is left out at random while training."""
    decay: float = 0.9
    """For fast weights: λ, how much of the memory is left after a step."""
    rate: float = 0.5
    """For fast weights: η, how strongly a step is written."""
    inner_steps: int = 1
    """For fast weights: S, steps of the inner loop."""
    layer_norm: bool = True
    """For fast weights: normalise the layer in the inner loop."""
    normalize_start: bool = False
    """For fast weights: normalise h_0 as well."""
    settling: Literal["sustained", "identity"] = "sustained"
    """For fast weights: the paper's method 1 ("sustained") or 2 ("identity") of settling."""
    training: Recipe = field(default_factory=Recipe)
    """How to train the net."""
    seed: int = 0
    """The seed of the initial weights and of the order of the examples; the data are always the same."""

    def __post_init__(self) -> None:
        letters = task.MOST_PAIRS
        limits = {"units": (1, None), "pairs": (1, letters), "separators": (0, None), "seed": (0, run.MOST_SEED)}
        limits |= {"examples": (1, task.SIZES["train"])}
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                upper = "" if most is None else f" and at most {most}"
                raise ValueError(f"{name} must be at least {least}{upper}, got {value}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if not 0 < self.embedding_range < math.inf:
            raise ValueError(f"embedding_range must be above 0 and finite, got {self.embedding_range}")

    @property
    def without(self) -> frozenset[str]:
        """The hyperparameters that are not those of this core."""
        return cores.without(self.core)

    def settings(self) -> dict[str, Any]:
        """As plain values: what makes this run this run."""
        values = dataclasses.asdict(self)
        return {"task": TASK, **values.pop("training"), **values}

    def make_net(self) -> RetrievalNet:
        """The net, initialised from the seed."""
        torch.manual_seed(self.seed)
        names = [name for name in cores.OF_FAST_WEIGHTS if name in vars(self)]
        return RetrievalNet(
            self.core,
            self.units,
            characters=len(task.ALPHABET),
            answers=task.ANSWERS,
            embedding_range=self.embedding_range,
            input_range=self.input_range,
            recurrent_init=self.recurrent_init,
            dropout=self.dropout,
            options={name: getattr(self, name) for name in names} if self.core == "fast-weights" else None,
        )

    def examples_of(self, name: str) -> Examples:
        """The training, validation or test set."""
        count = self.examples if name == "train" else None
        return task.split(name, count, pairs=self.pairs, separators=self.separators)


def load_config(folder: RunFolder) -> Retrieval:
    """The settings of a run of this task."""
    return run.load_config(folder, TASK, Retrieval)


class Evaluation(NamedTuple):
    """How good a trained net is on a set."""

    loss: float
    error: float
    error_by_place: list[float]  # where the first pair was asked for, the second, …
    strings: int


def load_net(folder: RunFolder, device: devices.Name = "cpu") -> RetrievalNet:
    """The net of a run, with the weights of its best epoch."""
    net = load_config(folder).make_net()
    run.load_best(net, folder)
    return net.to(devices.prepared(device))


def evaluate(folder: RunFolder, name: str = "test", device: devices.Name = "cpu") -> Evaluation:
    """Measure the best weights of a run on the test set or another."""
    config, net = load_config(folder), load_net(folder, device)
    tokens, answers = config.examples_of(name)
    logits = supervised.logits(net, tokens).cpu()
    loss, error = supervised.measure_logits(logits, answers)
    wrong = logits.argmax(1) != answers
    return Evaluation(loss, error, task.error_by_place(tokens, config.pairs, wrong), len(tokens))


class Answer(NamedTuple):
    """A net's answer to a string."""

    digit: int
    probabilities: Tensor  # (10,)
    right: int
    attention: Tensor | None  # (T, S, T): what inner step s of step t paid to step τ; only fast weights have it


@torch.no_grad()
def ask(net: RetrievalNet, strings: Sequence[str]) -> list[Answer]:
    """The net's answers, on the CPU."""
    answers, device = [], net.embedding.device
    for string in strings:
        question = task.parse(string)
        tokens = question.tokens.unsqueeze(0).to(device)
        probabilities = net(tokens).softmax(1)[0].cpu()
        attention = net.trace(tokens).attention[0, :, :, 0].cpu() if net.settings["core"] == "fast-weights" else None
        answers.append(Answer(int(probabilities.argmax()), probabilities, question.answer, attention))
    return answers
