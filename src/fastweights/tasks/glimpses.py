"""Glimpses: an image as a sequence of small patches at several scales, and when to store, wipe and integrate.

The image is cut into quadrants, and each quadrant into quadrants again. A coarse glimpse of a region is the region
averaged down to the size of a patch; so are the finest, if the image has more pixels than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SCHEDULES = ("return", "once", "three levels")


class Glimpse(NamedTuple):
    """One look at a region of an image, and what the memory is to do with it."""

    top: int  # in pixels, as `left` and `size`
    left: int
    size: int
    store: bool = False  # write the hidden state after this glimpse into the fast weights, and wipe it after that
    integrate: bool = False  # come back to what was stored: read the fast weights, use the integration matrix


class Signals(NamedTuple):
    """What a net knows about every glimpse of a schedule, (T,) each but the last; bool."""

    store: Tensor
    wipe: Tensor  # before this glimpse: the one before it was stored
    integrate: Tensor
    inputs: Tensor  # (T, 6): these three, then level (0: all of the image), top and left (0 to 1), as numbers


class Schedule(NamedTuple):
    """Where to look, in which order, in square images of `image` pixels with patches of `patch`.

    >>> schedule = make_schedule(28, 7)
    >>> len(schedule.glimpses), schedule.glimpses[0]
    (24, Glimpse(top=0, left=0, size=14, store=True, integrate=False))
    >>> schedule.look(torch.rand(5, 28, 28)).shape
    torch.Size([24, 5, 49])
    """

    image: int
    patch: int
    glimpses: tuple[Glimpse, ...]

    def look(self, images: Tensor, places: Tensor | None = None) -> Tensor:
        """The glimpses (T, B, patch²) of images (B, image, image).

        Args:
            places: `self.places()`, on the images' device, to which it then need not be taken at every call.
        """
        if images.dim() != 3 or images.shape[1:] != (self.image, self.image):
            raise ValueError(
                f"images must be (B, {self.image}, {self.image}) for this schedule, got {tuple(images.shape)}"
            )
        places = self.places().to(images.device) if places is None else places
        return torch.cat([self._patches(images, size) for size in self._sizes()]).index_select(0, places)

    def places(self) -> Tensor:
        """Which of all regions, those of the smallest size first, each glimpse is of: (T,)."""
        first, count = {}, 0
        for size in self._sizes():
            first[size] = count
            count += (self.image // size) ** 2
        return torch.tensor(
            [first[g.size] + g.top // g.size * (self.image // g.size) + g.left // g.size for g in self.glimpses]
        )

    def _sizes(self) -> list[int]:
        return sorted({glimpse.size for glimpse in self.glimpses})

    def _patches(self, images: Tensor, size: int) -> Tensor:
        """All regions of a size, row by row, each averaged down to a patch: (regions, B, patch²)."""
        pooled = images if size == self.patch else functional.avg_pool2d(images, size // self.patch)
        cut = pooled.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)  # (B, rows, columns, …)
        return cut.permute(1, 2, 0, 3, 4).flatten(3).flatten(0, 1)

    def signals(self) -> Signals:
        """What goes with the glimpses."""
        store = torch.tensor([glimpse.store for glimpse in self.glimpses])
        integrate = torch.tensor([glimpse.integrate for glimpse in self.glimpses])
        wipe = torch.cat((torch.zeros(1, dtype=torch.bool), store[:-1]))
        sizes = sorted({self.image, *(glimpse.size for glimpse in self.glimpses)}, reverse=True)
        where = [(sizes.index(g.size), g.top / self.image, g.left / self.image) for g in self.glimpses]
        inputs = torch.cat((torch.stack((store, wipe, integrate), 1).float(), torch.tensor(where)), 1)
        return Signals(store, wipe, integrate, inputs)


def make_schedule(image: int, patch: int, name: str = "return") -> Schedule:
    """The order in which to look at square images of `image` pixels, with patches of `patch`.

    Args:
        image: a multiple of four patches, since the finest glimpses are a quarter of it wide.
        name: "return": a quadrant, its four details, and the quadrant again, four times (24 glimpses); "once": without
            the coming back, where the last detail is integrated (20); "three levels": all of the image first and last,
            and the 24 between (26).

    >>> make_schedule(30, 7)
    Traceback (most recent call last):
        ...
    ValueError: image must be a multiple of 4 patches (28), got 30
    """
    if patch < 1:
        raise ValueError(f"patch must be at least 1, got {patch}")
    if image < 1 or image % (4 * patch):
        raise ValueError(f"image must be a multiple of 4 patches ({4 * patch}), got {image}")
    if name not in SCHEDULES:
        raise ValueError(f"name must be one of {', '.join(map(repr, SCHEDULES))}; got {name!r}")
    glimpses = []
    for top, left in _corners(0, 0, image):
        glimpses.append(Glimpse(top, left, image // 2, store=True))
        glimpses += [Glimpse(*corner, image // 4) for corner in _corners(top, left, image // 2)]
        if name == "once":
            glimpses[-1] = glimpses[-1]._replace(integrate=True)
        else:
            glimpses.append(Glimpse(top, left, image // 2, integrate=True))
    if name == "three levels":
        glimpses = [Glimpse(0, 0, image, store=True), *glimpses, Glimpse(0, 0, image, integrate=True)]
    return Schedule(image, patch, tuple(glimpses))


def _corners(top: int, left: int, size: int) -> Iterator[tuple[int, int]]:
    """Of the four quadrants of a region."""
    for down in (0, size // 2):
        for right in (0, size // 2):
            yield top + down, left + right


def translate(images: Tensor, most: int, generator: torch.Generator | None = None) -> Tensor:
    """Images (B, n, n), each moved by up to `most` pixels in both directions, at random; black comes in.

    >>> translate(torch.ones(1, 2, 2), 0)
    tensor([[[1., 1.],
             [1., 1.]]])
    """
    if most == 0:
        return images
    B, n, _ = images.shape
    where = images.device if generator is None else generator.device
    down, right = torch.randint(2 * most + 1, (2, B, 1), generator=generator, device=where).to(images.device)
    steps = torch.arange(n, device=images.device)
    rows, columns = (down + steps).unsqueeze(2), (right + steps).unsqueeze(1)  # (B, n, 1), (B, 1, n)
    padded = functional.pad(images, (most,) * 4)
    return padded[torch.arange(B, device=images.device)[:, None, None], rows, columns]


def mirror(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Images (B, n, n), each mirrored left to right with a probability of one half.

    >>> mirror(torch.ones(1, 2, 2)).shape
    torch.Size([1, 2, 2])
    """
    where = images.device if generator is None else generator.device
    chosen = torch.rand(len(images), 1, 1, generator=generator, device=where).to(images.device) < 0.5
    return torch.where(chosen, images.flip(-1), images)
