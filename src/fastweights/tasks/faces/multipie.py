"""Multi-PIE: photographs of 337 people in up to four sessions, six expressions, from three near-frontal cameras.

CMU licenses it; whoever has it, has images of 640 x 480 in folders like

    data/session01/multiview/001/01/05_1/001_01_01_051_00.png

for the session, the subject, the recording, the camera and the flash. `read` makes a set of faces of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from . import sets
from .alignment import align, read_grey

# What a session's recordings show. Not everybody came to every session.
EXPRESSIONS = {
    ("01", "01"): "neutral",
    ("01", "02"): "smile",
    ("02", "01"): "neutral",
    ("02", "02"): "surprise",
    ("02", "03"): "squint",
    ("03", "01"): "neutral",
    ("03", "02"): "smile",
    ("03", "03"): "disgust",
    ("04", "01"): "neutral",
    ("04", "02"): "neutral",
    ("04", "03"): "scream",
}
CAMERAS = {"-15": "14_0", "0": "05_1", "+15": "05_0"}  # by the angle, in degrees, from which they see the face
VIEWS = tuple(CAMERAS)
LIGHTS = tuple(f"{flash:02}" for flash in range(20))  # the first and the last are without a flash
# Where a face is if no points are given: left, top, right and bottom, as shares of the image. All cameras aim at the
# head, so it is a square in the middle of 640 x 480, half as high as the image.
CROP = (0.3125, 0.25, 0.6875, 0.75)
_LEFT_EYE, _RIGHT_EYE, _NOSE = slice(36, 42), slice(42, 48), slice(30, 31)  # of 68 points


class Shot(NamedTuple):
    """One face as one camera saw it: 20 images, the same but for the flash."""

    subject: str
    session: str
    recording: str
    view: int  # into `VIEWS`
    folder: Path

    @property
    def name(self) -> str:
        """What the names of the shot's images begin with."""
        return f"{self.subject}_{self.session}_{self.recording}_{self.folder.name.replace('_', '')}"

    @property
    def images(self) -> list[Path]:
        """The files, one for each of `LIGHTS`."""
        return [self.folder / f"{self.name}_{light}.png" for light in LIGHTS]


def read(
    root: Path, points: Path | None = None, report: Callable[[int, int], None] = lambda done, total: None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, Any]]:
    """The images, index and facts of Multi-PIE's faces, for `sets.save`. Nobody is in two parts.

    Args:
        root: the folder `data`, or the one that holds it.
        points: a folder that says where eyes and noses are, by which the faces are aligned; without one, they are cut
            out at `CROP`. It has a file for each image (`001_01_01_051_00.txt`) or one for all images of a shot
            (`001_01_01_051.txt`, or that of any of them: the head does not move), with a point on each line, x and y in
            pixels: the eye on the left of the image, the one on its right, and the tip of the nose; or all of the usual
            68 points. Files of that kind in iBUG's format, `.pts`, are read too.
        report: is called with the number of images that are done and that of all.
    """
    shots = _find(root)
    subjects = sorted({shot.subject for shot in shots})
    if len(subjects) < len(sets.PARTS):
        raise ValueError(f"{root} must have at least {len(sets.PARTS)} subjects, one for each part; got {subjects}")
    places = None if points is None else _find_points(points, shots)
    total = len(shots) * len(LIGHTS)
    images = np.empty((total, sets.SIZE, sets.SIZE), dtype=np.uint8)
    index = np.empty((total, len(sets.COLUMNS)), dtype=np.int64)
    parts = sets.part_identities(len(subjects))
    row = 0
    for shot in shots:
        label = sets.EXPRESSIONS.index(EXPRESSIONS[shot.session, shot.recording])
        identity = subjects.index(shot.subject)
        for light, path in enumerate(shot.images):
            images[row] = _crop(path) if places is None else _align(path, places[path])
            index[row] = parts[identity], label, identity, shot.view, light
            row += 1
            report(row, total)
    facts = {
        "name": "multipie",
        "classes": list(sets.EXPRESSIONS),
        "views": list(VIEWS),
        "lights": list(LIGHTS),
        "subjects": subjects,
        "aligned": places is not None,
    }
    return images, index, facts


def read_points(path: Path) -> NDArray[np.float64]:
    """The (3, 2) places (row, column) of the left and the right eye of the image and of the nose, from a file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".pts":
        inside = re.search(r"\{(.*)\}", text, re.DOTALL)
        if inside is None:
            raise ValueError(f"{path} must have its points between braces; put a whole file there")
        text = inside[1]
    lines = [line.split() for line in text.splitlines() if line.strip()]
    try:
        points = np.array(lines, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path} must have two numbers, x and y, on each line: {error}") from error
    if points.shape not in ((3, 2), (68, 2)):
        raise ValueError(f"{path} must have 3 or 68 lines of two numbers, x and y; got numbers of shape {points.shape}")
    if len(points) == 68:
        points = np.array([points[which].mean(0) for which in (_LEFT_EYE, _RIGHT_EYE, _NOSE)])
    left, right, nose = points
    if not (left[0] < right[0] and nose[1] > (left[1] + right[1]) / 2):
        raise ValueError(
            f"{path} must have the eye on the left of the image first, then the one on its right, then the tip of the "
            f"nose, below them; got {points.tolist()}"
        )
    return points[:, ::-1]


def _find(root: Path) -> list[Shot]:
    """All shots, by subject; an error if any image of them is missing."""
    data = root / "data" if (root / "data").is_dir() else root
    shots = sorted(
        Shot(folder.parent.name, session, recording, view, folder / camera)
        for session, recording in EXPRESSIONS
        for folder in (data / f"session{session}" / "multiview").glob(f"[0-9][0-9][0-9]/{recording}")
        for view, camera in enumerate(CAMERAS.values())
    )
    if not shots:
        raise FileNotFoundError(
            f"{root} has no images of Multi-PIE: it must be the folder with data/session01/multiview/001/01/05_1/"
            "001_01_01_051_00.png in it and so on, or the folder data itself"
        )
    missing = [image for shot in shots for image in shot.images if not image.is_file()]
    if missing:
        raise ValueError(
            f"{missing[0]} is missing; in all, {len(missing)} images are. Every recording must have {len(LIGHTS)} of "
            f"each of the cameras {', '.join(CAMERAS.values())}: complete the tree"
        )
    return shots


def _find_points(folder: Path, shots: list[Shot]) -> dict[Path, Path]:
    """For every image of the shots the file that has its points."""
    if not folder.is_dir():
        raise FileNotFoundError(f"points must be a folder of files with points; there is no folder {folder}")
    files = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".pts", ".txt")}
    found: dict[Path, Path] = {}
    missing = []
    for shot in shots:
        of_shot = [files[name] for name in (shot.name, *(image.stem for image in shot.images)) if name in files]
        if of_shot:
            found |= {image: files.get(image.stem, of_shot[0]) for image in shot.images}
        else:
            missing.append(shot)
    if missing:
        raise ValueError(
            f"{folder / missing[0].name}.txt is missing, and no image of {missing[0].folder} has points of its own; "
            f"in all, {len(missing)} of {len(shots)} shots have none. Give points of all, or none at all"
        )
    return found


def _align(path: Path, points: Path) -> NDArray[np.uint8]:
    image, places = read_grey(path), read_points(points)
    if not ((places >= 0) & (places <= np.array(image.shape) - 1)).all():
        height, width = image.shape
        raise ValueError(
            f"{points} must have places inside of {path}, which is {width} x {height}; got, as x and y, "
            f"{places[:, ::-1].tolist()}"
        )
    return align(image, places)


def _crop(path: Path) -> NDArray[np.uint8]:
    image = Image.fromarray(read_grey(path))
    left, top, right, bottom = CROP
    box = left * image.width, top * image.height, right * image.width, bottom * image.height
    return np.asarray(image.resize((sets.SIZE, sets.SIZE), Image.Resampling.BOX, box))
