"""Photographs of faces: read as grey images, and laid so that eyes and nose are at the same places in all of them.

A place is (row, column), and whole numbers are the centres of pixels: (0, 0) is the centre of the first. A face that is
mirrored, as `image[:, ::-1]`, thus has its eyes and nose at the same places again.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .sets import SIZE

EYES = ((16.0, 15.5), (16.0, 31.5))  # of the eyes' centres, the left one of the image first
NOSE = (25.5, 23.5)  # of its tip


def align(image: NDArray[np.uint8], points: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The (48, 48) face that has its eyes and nose at `EYES` and `NOSE`, as nearly as a similarity can put them there.

    Args:
        image: (height, width), grey. What the face would need from outside of it is black.
        points: (3, 2): the places of the left and the right eye of the image, and of the tip of the nose.
    """
    matrix = similarity(points, np.array([*EYES, NOSE]))
    scale = np.hypot(matrix[0, 0], matrix[1, 0])  # pixels of the face per pixel of the image
    if not scale > 1e-6:
        raise ValueError(f"points must be two eyes and a nose below them, which lie apart; got {points.tolist()}")
    back = np.linalg.inv(matrix[:, :2])
    # So many samples for each pixel of the face, across and down, that none of the image's pixels is passed over.
    samples = max(1, ceil(1 / scale - 1e-6))
    # Pillow has (x, y), and whole numbers are the edges of pixels.
    (y, x), ((y_y, y_x), (x_y, x_x)) = 0.5 - back @ (matrix[:, 2] + 0.5), back / samples
    large = Image.fromarray(image.astype(np.float32)).transform(  # of bytes, Pillow would round down
        (samples * SIZE, samples * SIZE),
        Image.Transform.AFFINE,
        (x_x, x_y, x, y_x, y_y, y),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(large.reduce(samples)).round().astype(np.uint8)


def similarity(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The (2, 3) matrix that turns, scales and moves points (n, 2) nearest to others, in the sense of least squares.

    It takes a point p to `matrix[:, :2] @ p + matrix[:, 2]`, and never mirrors.

    >>> similarity(np.array([[0.0, 0], [1, 0], [0, 1]]), np.array([[5.0, 5], [6, 6], [4, 6]])).round(9)
    array([[ 1., -1.,  5.],
           [ 1.,  1.,  5.]])
    """
    # As complex numbers: to turn and to scale is to multiply by one number.
    a, b = (points[:, 0] + 1j * points[:, 1] for points in (source, target))
    spread = a - a.mean()
    if not np.vdot(spread, spread).real > 0:
        raise ValueError(f"source must have at least two points that lie apart; got {source.tolist()}")
    factor = np.vdot(spread, b - b.mean()) / np.vdot(spread, spread)
    shift = b.mean() - factor * a.mean()
    return np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]])


def read_grey(path: Path) -> NDArray[np.uint8]:
    """The image (height, width) in a file, grey: white is 255."""
    with path.open("rb") as file:
        try:
            image = Image.open(file)
            if image.mode not in ("L", "RGB"):
                raise ValueError(f"it must be grey or RGB, of a byte each, got the mode {image.mode}")
            return np.asarray(image.convert("L"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} is no image that can be read: {error}; put the original there") from error
