"""Images by glimpses: the task, the net and the recipe of one training run."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ..models.glimpses import ConvNet, GlimpseNet, GlimpseSignals
from ..tasks import mnist
from ..tasks.glimpses import Schedule, make_schedule, shift
from ..training import supervised
from ..training.runs import RunFolder
from ..training.supervised import Examples, Measured, Recipe
from . import run

TASK = "glimpses"
SIZE, PATCH, CLASSES = 28, 7, 10
Signal = Literal["store", "wipe", "read", "integrate"]
Model = Literal["irnn", "lstm", "convnet", "fast-weights", "norm-rnn"]


@dataclass(frozen=True)
class Glimpses:
    """One training run of images by glimpses."""

    model: Model = "fast-weights"
    """The net; "norm-rnn" is fast weights without fast weights: a layer-normed RNN with the integration matrix."""
    units: int = 100
    """Its size: recurrent units, or features of each layer."""
    data: Literal["mnist", "fashion-mnist"] = "mnist"
    """The images."""
    examples: int = 55_000
    """Training images."""
    shift: int = 0
    """Move training images by up to so many pixels, at random."""
    order: Literal["return", "once", "three levels"] = "return"
    """Where to look: 24 glimpses; 20, not coming back to the quadrants; 26, all of the image first and last."""
    input_range: float = 0.0
    """The core's input weights start as U(-range, range); 0: its default, U(-1/√H, 1/√H)."""
    decay: float = 0.95
    """Fast weights: λ."""
    rate: float = 0.5
    """Fast weights: η."""
    inner_steps: int = 1
    """Fast weights: S."""
    settling: Literal["sustained", "identity"] = "sustained"
    """Fast weights: the paper's method 1 or 2 of settling."""
    obeys: tuple[Signal, ...] = ("store", "wipe", "read", "integrate")
    """Fast weights: which signals it obeys. Without store it writes always; without read it reads always."""
    training: Recipe = field(default_factory=lambda: Recipe(lr=3e-3, schedule="warm-cosine"))
    """How to train."""
    seed: int = 0
    """Of the initial weights, of the order of the examples and of the shifts; the split is always the same."""

    def __post_init__(self) -> None:
        for name, least in (("units", 1), ("examples", 1), ("shift", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.shift >= SIZE:
            raise ValueError(f"shift must be below the size of the images, {SIZE}; got {self.shift}")
        if not 0 <= self.input_range < math.inf:
            raise ValueError(f"input_range must be at least 0 and finite, got {self.input_range}")
        object.__setattr__(self, "obeys", tuple(self.obeys))  # JSON knows no tuples
        for signal in self.obeys:
            if signal not in get_args(Signal):
                raise ValueError(f"obeys must be of {', '.join(get_args(Signal))}; got {signal!r}")

    def settings(self) -> dict[str, Any]:
        """As plain values: what makes this run this run."""
        values = dataclasses.asdict(self) | {"obeys": list(self.obeys)}
        return {"task": TASK, **values.pop("training"), **values}

    def make_schedule(self) -> Schedule:
        """Where to look."""
        return make_schedule(SIZE, PATCH, self.order)

    def make_net(self) -> "Looking":
        """The net, initialised from the seed."""
        torch.manual_seed(self.seed)
        if self.model == "convnet":
            return Looking(ConvNet(self.units, patch=PATCH, classes=CLASSES), None, self.shift, self.settings())
        schedule = self.make_schedule()
        core, options, obeys = self.model, None, self.obeys
        if self.model == "fast-weights":
            options = {name: getattr(self, name) for name in ("decay", "rate", "inner_steps", "settling")}
        elif self.model == "norm-rnn":
            core, options, obeys = "fast-weights", {"inner_steps": 0, "normalize_start": True}, ("integrate",)
        net = GlimpseNet(
            core,
            self.units,
            pixels=PATCH * PATCH,
            signals=GlimpseSignals(*schedule.signals()),
            classes=CLASSES,
            input_range=self.input_range,
            options=options,
            obeys=obeys,
        )
        return Looking(net, schedule, self.shift, self.settings())

    def examples_of(self, name: str) -> Examples:
        """The training, validation or test set: images of bytes, and their classes."""
        return mnist.split(name, self.data, self.examples if name == "train" else None)


class Looking(nn.Module):
    """A net that is shown images as they are, (B, n, n) of bytes: shifted while it trains, then glimpse by glimpse.

    Args:
        net: takes glimpses (T, B, pixels), or images (B, n, n) where there is no schedule.
        most: pixels that it is shifted by.
        settings: to make it again.
    """

    def __init__(self, net: nn.Module, schedule: Schedule | None, most: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.schedule, self.most, self.settings = net, schedule, most, settings

    def forward(self, images: Tensor) -> Tensor:
        return self.net(self.look(images))  # type: ignore[no-any-return]

    def look(self, images: Tensor) -> Tensor:
        """What the net itself is given."""
        seen = images.float() / 255
        if self.training:
            seen = shift(seen, self.most)
        return seen if self.schedule is None else self.schedule.look(seen)


def load_config(folder: RunFolder) -> Glimpses:
    """The settings of a run of this task."""
    return run.load_config(folder, TASK, Glimpses)


def load_net(folder: RunFolder) -> Looking:
    """The net of a run, with the weights of its best epoch."""
    net = load_config(folder).make_net()
    run.load_best(net, folder)
    return net


def evaluate(folder: RunFolder, split: str = "test") -> Measured:
    """How good a trained net is on a set."""
    return supervised.measure(load_net(folder), load_config(folder).examples_of(split))


class Retrieved(NamedTuple):
    """What a net of fast weights got from its memory for B images."""

    stored: list[int]  # glimpses whose state was written
    reading: list[int]  # glimpses that read
    attention: Tensor  # (B, reading, stored): how strongly, after the last inner step


@torch.no_grad()
def retrieved(net: Looking, images: Tensor) -> Retrieved:
    """What each glimpse that reads the memory got from those that were stored in it."""
    if net.schedule is None or not isinstance(net.net, GlimpseNet) or "store" not in net.net.obeys:
        raise ValueError("net must be one of fast weights that stores where it is told to")
    attention = net.net.trace(net.look(images)).attention[0, :, -1]  # (T, B, T)
    stored = [place for place, glimpse in enumerate(net.schedule.glimpses) if glimpse.store]
    reading = [place for place, glimpse in enumerate(net.schedule.glimpses) if glimpse.integrate]
    return Retrieved(stored, reading, attention[reading][:, :, stored].transpose(0, 1))


def draw(order: str, image: int, out: Path) -> list[Path]:
    """A picture of where the glimpses look on a test image, and what they see there; the files written."""
    from ..report import figures  # which is slow to load

    images, _ = mnist.split("test")
    if not 0 <= image < len(images):
        raise ValueError(f"image must be from 0 to {len(images) - 1}, got {image}")
    schedule, chosen = make_schedule(SIZE, PATCH, order), images[image : image + 1].float() / 255
    patches = schedule.look(chosen).view(-1, PATCH, PATCH)
    across = 5 if order == "once" else 6
    return figures.save(figures.glimpses(chosen[0].tolist(), schedule.glimpses, patches.tolist(), across), out)
