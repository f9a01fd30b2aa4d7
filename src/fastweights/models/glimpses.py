"""Nets that classify images by glimpses, and the ConvNet that sees the same patches all at once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .cores import make_core


class GlimpseSignals(NamedTuple):
    """What a net knows of every glimpse: (T,) bool each, and the same and more as inputs (T, features)."""

    store: Tensor
    wipe: Tensor
    integrate: Tensor
    inputs: Tensor


class GlimpseNet(nn.Module):
    """Glimpse and signals → embedding → recurrent core → 100 ReLUs → logits of the classes, at the last glimpse.

    Every core has the signals among its inputs. A core of fast weights uses them as control signals, too: it stores
    where `store` is set and nowhere else, resets h (and keeps A) where `wipe` is, and where `integrate` is it reads its
    memory and uses its integration matrix.

    Args:
        core: the recurrent core, by name: see `make_core`.
        units: its size.
        pixels: of a glimpse.
        signals: that go with the glimpses.
        classes: how many there are.
        embedding: between a glimpse and the core: "none", or 50 and then 100 units, "linear" or "relu".
        input_range, recurrent_init, options: of the core.
        dropout: the share of what the core gives that is left out at random while training.
        control_signals: those that a core of fast weights uses; "integrate" is two, the reading ("read") and the
            matrix ("integrate").

    >>> no, yes = torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
    >>> signals = GlimpseSignals(yes, no, no, torch.rand(3, 6))
    >>> net = GlimpseNet("fast-weights", 20, pixels=4, signals=signals, classes=10)
    >>> net(torch.rand(3, 5, 4)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        core: str,
        units: int,
        *,
        pixels: int,
        signals: GlimpseSignals,
        classes: int,
        embedding: str = "none",
        input_range: float = 0.0,
        recurrent_init: float = 0.0,
        dropout: float = 0.0,
        options: Mapping[str, Any] | None = None,
        control_signals: tuple[str, ...] = ("store", "wipe", "read", "integrate"),
    ) -> None:
        super().__init__()
        self.register_buffer("inputs", signals.inputs, persistent=False)
        self.control_signals = control_signals if core == "fast-weights" else ()
        known = {**signals._asdict(), "read": signals.integrate}
        for name in self.control_signals:
            self.register_buffer(name, known[name].unsqueeze(1), persistent=False)
        options = dict(options or {})
        if core == "fast-weights":
            options["integration"] = "integrate" in control_signals
        features = pixels + signals.inputs.shape[1]
        self.embedding = _embedding(embedding, features)
        features = features if embedding == "none" else 100
        self.core = make_core(
            core, features, units, input_range=input_range, recurrent_init=recurrent_init, options=options
        )
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Sequential(nn.Linear(self.core.output_size, 100), nn.ReLU(), nn.Linear(100, classes))  # type: ignore[arg-type]

    def forward(self, glimpses: Tensor) -> Tensor:
        """Logits (B, classes) for glimpses (T, B, pixels)."""
        output, _ = self.core(self._features(glimpses), **self._signals())
        return self.readout(self.dropout(output[-1]))  # type: ignore[no-any-return]

    def trace(self, glimpses: Tensor) -> Any:
        """What a core of fast weights did with glimpses (T, B, pixels)."""
        return self.core.trace(self._features(glimpses), **self._signals())  # type: ignore[operator]

    def _features(self, glimpses: Tensor) -> Tensor:
        inputs: Any = self.inputs
        seen = torch.cat((glimpses, inputs.unsqueeze(1).expand(-1, glimpses.shape[1], -1)), -1)
        return self.embedding(seen)  # type: ignore[no-any-return]

    def _signals(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.control_signals}


def _embedding(kind: str, features: int) -> nn.Module:
    if kind not in ("none", "linear", "relu"):
        raise ValueError(f"embedding must be 'none', 'linear' or 'relu', got {kind!r}")
    if kind == "none":
        return nn.Identity()
    layers = nn.Linear(features, 50), nn.Linear(50, 100)
    return nn.Sequential(*layers) if kind == "linear" else nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU())


class ConvNet(nn.Module):
    """Three layers on the patches of the glimpses: patches at both scales, quadrants, the image; shared at each layer.

    Args:
        features: of each layer.
        patch: pixels along a side; images have 4 of them along a side.
        classes: how many there are.
        dropout: the share of the last layer that is left out at random while training.

    >>> ConvNet(20, patch=7, classes=10)(torch.rand(5, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(self, features: int, *, patch: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.patch, self.dropout = patch, nn.Dropout(dropout)
        # Convolutions that never overlap, as products: much faster.
        self.patches = nn.Linear(patch * patch, features)
        self.details = nn.Linear(4 * features, features)
        self.coarse = nn.Linear(features, features, bias=False)
        self.image = nn.Linear(4 * features, features)
        self.readout = nn.Linear(features, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) for images (B, n, n)."""
        scales = images, functional.avg_pool2d(images, 2)
        seen = [self.patches(_squares(scale.unsqueeze(-1), self.patch)).relu() for scale in scales]
        quadrants = (self.details(_squares(seen[0], 2)) + self.coarse(seen[1])).relu()  # (B, 2, 2, features)
        return self.readout(self.dropout(self.image(quadrants.flatten(1)).relu()))  # type: ignore[no-any-return]


def _squares(x: Tensor, side: int) -> Tensor:
    """(B, n, n, features) cut into squares, each of which becomes the features of one place."""
    rows = x.unflatten(2, (-1, side)).unflatten(1, (-1, side))  # (B, n/side, side, n/side, side, features)
    squares: Tensor = rows.transpose(2, 3).flatten(3)
    return squares


class FaceConvNet(nn.Module):
    """Two layers: patches of the finest glimpses' size, each a third of one further, then all of the image.

    Args:
        features: of each layer.
        patch: pixels along a side, a multiple of 3; images have 4 of them along a side.
        classes: how many there are.
        dropout: the share of the last layer that is left out at random while training.

    >>> FaceConvNet(20, patch=12, classes=6)(torch.rand(5, 48, 48)).shape
    torch.Size([5, 6])
    """

    def __init__(self, features: int, *, patch: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.patch, self.dropout = patch, nn.Dropout(dropout)
        self.patches = nn.Linear(patch * patch, features)
        self.image = nn.Linear(25 * features, features)
        self.readout = nn.Linear(features, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) for images (B, n, n)."""
        step = self.patch // 3
        cut = images.unfold(1, self.patch, step).unfold(2, self.patch, step).flatten(3)  # (B, 10, 10, patch²)
        seen = self.patches(cut)  # a convolution, as a product: much faster for so large a patch
        pooled = functional.max_pool2d(seen.permute(0, 3, 1, 2), 2).relu()  # (B, features, 5, 5)
        return self.readout(self.dropout(self.image(pooled.flatten(1)).relu()))  # type: ignore[no-any-return]
