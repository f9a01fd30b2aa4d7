"""Images by glimpses: the task, the net and the recipe of one training run."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ...models import cores
from ...models.glimpses import ConvNet, FaceConvNet, GlimpseNet, GlimpseSignals
from ...tasks import mnist
from ...tasks.faces import sets
from ...tasks.glimpses import Schedule, make_schedule, mirror, translate
from ...training import devices, supervised
from ...training.runs import RunFolder
from ...training.supervised import Examples, Measured, Recipe
from .. import run

TASK = "glimpses"
Signal = Literal["store", "wipe", "read", "integrate"]
Model = Literal["irnn", "lstm", "convnet", "fast-weights", "ln-rnn", "linear"]
Data = Literal["mnist", "fashion-mnist", "rendered", "rendered-20", "multipie", "fer", "fer+"]


class Images(NamedTuple):
    """What images are like: pixels along a side, of the image and of a patch, and how many classes there are."""

    size: int
    patch: int
    classes: int


IMAGES: dict[str, Images] = {
    "mnist": Images(28, 7, 10),
    "fashion-mnist": Images(28, 7, 10),
    "rendered": Images(48, 12, 6),
    "rendered-20": Images(48, 12, 6),
    "multipie": Images(48, 12, 6),
    "fer": Images(48, 12, 7),
    "fer+": Images(48, 12, 8),
}


@dataclass(frozen=True)
class Glimpses:
    """One training run of images by glimpses."""

    model: Model = "fast-weights"
    """The net; "ln-rnn" is fast weights without fast weights, "linear" a linear classifier of all pixels."""
    units: int = 100
    """Recurrent units of the net, or features of each layer; the linear one has none."""
    data: Data = "mnist"
    """The images: digits, clothes, or faces."""
    examples: int = 0
    """Train on so many images; 0: all."""
    translation: int = 0
    """Random translation of training images, by up to so many pixels; 0: none."""
    mirror: bool = False
    """Random mirroring of training images, left to right."""
    order: Literal["return", "once", "three levels"] = "return"
    """24 glimpses; 20, which do not come back to the quadrants; 26, which see the whole image first and last."""
    input_range: float = 0.0
    """The core's input weights start as U(-range, range); 0: its default, U(-1/√H, 1/√H)."""
    recurrent_init: float = 0.0
    """For a ReLU RNN and fast weights: W starts as this times I; 0: its default, 0.5 and 0.05."""
    embedding: Literal["none", "linear", "relu"] = "none"
    """What is between a glimpse and the core: nothing, or 50 and then 100 units, linear or ReLUs."""
    dropout: float = 0.0
    """The share of what the core, or the last layer of a ConvNet, gives that is left out at random while training."""
    decay: float = 0.95
    """For fast weights: λ, how much of the memory is left after a step."""
    rate: float = 0.5
    """For fast weights: η, how strongly a step is written."""
    inner_steps: int = 1
    """For fast weights: S, steps of the inner loop."""
    settling: Literal["sustained", "identity"] = "sustained"
    """For fast weights: the paper's method 1 ("sustained") or 2 ("identity") of settling."""
    control_signals: tuple[Signal, ...] = ("store", "wipe", "read", "integrate")
    """For fast weights: the control signals. Without store every state is written, without read every step reads."""
    training: Recipe = field(default_factory=lambda: Recipe(lr=3e-3, schedule="warm-cosine"))
    """How to train the net."""
    seed: int = 0
    """The seed of the initial weights, of the order of the examples and of their translations, not of the split."""

    def __post_init__(self) -> None:
        for name, least in (("units", 1), ("examples", 0), ("translation", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed > run.MOST_SEED:
            raise ValueError(f"seed must be at most {run.MOST_SEED}, got {self.seed}")
        if self.data not in IMAGES:
            raise ValueError(f"data must be one of {', '.join(IMAGES)}; got {self.data!r}")
        if self.translation >= self.images.size:
            raise ValueError(
                f"translation must be below the size of the images, {self.images.size}; got {self.translation}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if not 0 <= self.input_range < math.inf:
            raise ValueError(f"input_range must be at least 0 and finite, got {self.input_range}")
        object.__setattr__(self, "control_signals", tuple(self.control_signals))  # JSON knows no tuples
        for signal in self.control_signals:
            if signal not in get_args(Signal):
                raise ValueError(f"control_signals must be of {', '.join(get_args(Signal))}; got {signal!r}")

    @property
    def without(self) -> frozenset[str]:
        """The hyperparameters that are not those of this model."""
        if self.model in ("convnet", "linear"):
            found = cores.without("lstm") | {"input_range", "embedding", "order", "control_signals"}
            return found | {"units", "dropout"} if self.model == "linear" else found
        if self.model == "ln-rnn":
            return cores.without("irnn") | {"control_signals"}
        return cores.without(self.model) | (frozenset() if self.model == "fast-weights" else {"control_signals"})

    def settings(self) -> dict[str, Any]:
        """As plain values: what makes this run this run."""
        values = dataclasses.asdict(self) | {"control_signals": list(self.control_signals)}
        return {"task": TASK, **values.pop("training"), **values}

    @property
    def images(self) -> Images:
        """What the images are like."""
        return IMAGES[self.data]

    def make_schedule(self) -> Schedule:
        """Where to look."""
        return make_schedule(self.images.size, self.images.patch, self.order)

    def make_net(self) -> "Looking":
        """The net, initialised from the seed."""
        torch.manual_seed(self.seed)
        if self.model == "linear":
            linear = nn.Sequential(nn.Flatten(), nn.Linear(self.images.size**2, self.images.classes))
            return Looking(linear, None, self)
        if self.model == "convnet":
            kind = ConvNet if self.data in mnist.SOURCES else FaceConvNet
            convnet = kind(self.units, patch=self.images.patch, classes=self.images.classes, dropout=self.dropout)
            return Looking(convnet, None, self)
        schedule = self.make_schedule()
        core, options, control_signals = self.model, None, self.control_signals
        if self.model == "fast-weights":
            options = {name: getattr(self, name) for name in ("decay", "rate", "inner_steps", "settling")}
        elif self.model == "ln-rnn":
            core, options, control_signals = "fast-weights", {"inner_steps": 0, "normalize_start": True}, ("integrate",)
        net = GlimpseNet(
            core,
            self.units,
            pixels=self.images.patch**2,
            signals=GlimpseSignals(*schedule.signals()),
            classes=self.images.classes,
            embedding=self.embedding,
            input_range=self.input_range,
            recurrent_init=self.recurrent_init,
            dropout=self.dropout,
            options=options,
            control_signals=control_signals,
        )
        return Looking(net, schedule, self)

    def examples_of(self, name: str) -> Examples:
        """The training, validation or test set: images of bytes, and their classes."""
        count = (self.examples or None) if name == "train" else None
        if self.data in mnist.SOURCES:
            return mnist.split(name, self.data, count)
        faces = sets.load(sets.folder_of(self.data), name)
        return faces.images[:count], faces.labels[:count]


class Looking(nn.Module):
    """A net that takes images (B, n, n) of bytes: augmented while it trains, then read glimpse by glimpse.

    Faces have their brightness and contrast evened out, each image for itself; digits are taken as they are.

    Args:
        net: takes glimpses (T, B, pixels), or images (B, n, n) where there is no schedule.
        config: of the run that it is for.
    """

    places: Tensor | None  # where the schedule looks, on the net's device

    def __init__(self, net: nn.Module, schedule: Schedule | None, config: Glimpses) -> None:
        super().__init__()
        self.net, self.schedule, self.settings = net, schedule, config.settings()
        self.most, self.mirror = config.translation, config.mirror
        self.evened = config.data not in mnist.SOURCES
        self.register_buffer("places", None if schedule is None else schedule.places(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(self.look(images))  # type: ignore[no-any-return]

    def look(self, images: Tensor) -> Tensor:
        """What the net itself is given."""
        seen = images.float() / 255
        if self.evened:
            spread, mean = torch.std_mean(seen, (1, 2), keepdim=True)
            seen = (seen - mean) / spread.clamp(min=1e-3)
        if self.training:
            seen = translate(mirror(seen) if self.mirror else seen, self.most)
        return seen if self.schedule is None else self.schedule.look(seen, self.places)


def load_config(folder: RunFolder) -> Glimpses:
    """The settings of a run of this task."""
    return run.load_config(folder, TASK, Glimpses)


def load_net(folder: RunFolder, device: devices.Name = "cpu") -> Looking:
    """The net of a run, with the weights of its best epoch."""
    net = load_config(folder).make_net()
    run.load_best(net, folder)
    return net.to(devices.prepared(device))


def evaluate(folder: RunFolder, split: str = "test", device: devices.Name = "cpu") -> Measured:
    """How good a trained net is on a set."""
    return supervised.measure(load_net(folder, device), load_config(folder).examples_of(split))


class Retrieved(NamedTuple):
    """What a net of fast weights got from its memory for B images."""

    stored: list[int]  # glimpses whose state was written
    reading: list[int]  # glimpses that read
    attention: Tensor  # (B, reading, stored): how strongly, after the last inner step


@torch.no_grad()
def retrieved(net: Looking, images: Tensor) -> Retrieved:
    """What each glimpse that reads the memory got from those that were stored in it."""
    if net.schedule is None or not isinstance(net.net, GlimpseNet) or "store" not in net.net.control_signals:
        raise ValueError("net must be one of fast weights with the control signal 'store'")
    attention = net.net.trace(net.look(images)).attention[0, :, -1]  # (T, B, T)
    stored = [place for place, glimpse in enumerate(net.schedule.glimpses) if glimpse.store]
    reading = [place for place, glimpse in enumerate(net.schedule.glimpses) if glimpse.integrate]
    return Retrieved(stored, reading, attention[reading][:, :, stored].transpose(0, 1))


def draw(data: Data, order: str, image: int, out: Path) -> list[Path]:
    """A picture of where the glimpses look on a test image, and what they see there; the files written."""
    from ...report import figures  # which is slow to load

    config = Glimpses(data=data, order=order)  # type: ignore[arg-type]
    images, _ = config.examples_of("test")
    if not 0 <= image < len(images):
        raise ValueError(f"image must be from 0 to {len(images) - 1}, got {image}")
    schedule, chosen = config.make_schedule(), images[image : image + 1].float() / 255
    patches = schedule.look(chosen).unflatten(-1, (schedule.patch, schedule.patch)).squeeze(1)
    across = 5 if order == "once" else 6
    return figures.save(figures.glimpses(chosen[0].tolist(), schedule.glimpses, patches.tolist(), across), out)
