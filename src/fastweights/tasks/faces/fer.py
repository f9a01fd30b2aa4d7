"""FER2013 and FER+: 35,887 grey photographs of faces, of 48 x 48 pixels, found on the web, with their emotions.

`read` takes them as they are published: as a table, `fer2013.csv` or `icml_face_data.csv`, with or without the labels
of FER+, `fer2013new.csv`; as a folder of images, `train/angry/*.png` and so on; or as the folder that the script of
FER+ makes, `FER2013Train/*.png` and so on with a `label.csv` beside them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .alignment import read_grey
from .sets import COLUMNS, PARTS, SIZE

EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")  # of FER2013, as its labels count them
VOTED = ("neutral", "happiness", "surprise", "sadness", "anger", "disgust", "fear", "contempt")  # of FER+
USAGES = {"Training": "train", "PublicTest": "validation", "PrivateTest": "test"}
HEADERS = (("emotion", "pixels", "Usage"), ("emotion", "Usage", "pixels"))
PLUS_FOLDERS = {"FER2013Train": "train", "FER2013Valid": "validation", "FER2013Test": "test"}
LABELS = "label.csv"  # in each of them, without a header: the image, the box of the face, and the votes
BOX = f"(0, 0, {SIZE}, {SIZE})"
VOTES_HEADER = ("Usage", "Image name", *VOTED, "unknown", "NF")  # NF: not a face
_NUMBERS = {str(number): number for number in range(256)}
_UNKNOWN = (-1, -1, -1)  # identity, view and light
_SEED = 2013  # of the permutation that parts training from validation, where the publishers did not


class Row(NamedTuple):
    """One line of a table."""

    line: str  # the file and the number of the line, for errors
    values: dict[str, str]  # by column
    done: int  # bytes of the file up to here, or a little farther
    total: int


def read(
    path: Path, votes: Path | None = None, report: Callable[[int, int], None] = lambda done, total: None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, Any]]:
    """The images, index and facts of FER's faces, for `sets.save`.

    Args:
        path: the table; or the folder with `train` and `test` in it, a tenth of whose training images are then for
            validation, the same for everybody; or the folder with `FER2013Train`, `FER2013Valid` and `FER2013Test` in
            it, which has the votes of FER+.
        votes: the table of FER+, if the labels are to be those that most people voted for. Images on which they did not
            agree, or which they did not know, are left out; `facts["left_out"]` counts them.
        report: is called with how much is done and how much there is in all.
    """
    if path.is_dir():
        if votes is not None:
            raise ValueError(f"votes are of the rows of a table: path must be fer2013.csv, but {path} is a folder")
        if any((path / name).is_dir() for name in PLUS_FOLDERS):
            return _read_plus(path, report)
        return _read_folder(path, report)
    for file in (path, votes):
        if file is not None and not file.is_file():
            raise FileNotFoundError(f"{file} is missing: give the file as published, fer2013.csv say, or a folder")
    return _read_table(path, votes, report)


def most_voted(votes: Sequence[int]) -> int | None:
    """The emotion, into `VOTED`, that got the most of ten kinds of votes; None for a tie, or one of the last two kinds.

    >>> most_voted([0, 6, 4, 0, 0, 0, 0, 0, 0, 0])
    1
    """
    most = max(votes)
    first = votes.index(most)
    return first if votes.count(most) == 1 and first < len(VOTED) else None


def _read_table(
    path: Path, votes: Path | None, report: Callable[[int, int], None]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, Any]]:
    ballots = None if votes is None else _rows(votes, (VOTES_HEADER,))
    pixels, index, left_out = bytearray(), [], 0
    for line, values, done, total in _rows(path, HEADERS):
        label: int | None = _number(values["emotion"], len(EMOTIONS) - 1, f"{line}: emotion")
        image, usage = _pixels(values["pixels"], line), values["Usage"]
        if usage not in USAGES:
            raise ValueError(f"{line}: Usage must be one of {', '.join(USAGES)}; got {usage!r}")
        if ballots is not None:
            ballot = next(ballots, None)
            if ballot is None:
                raise ValueError(f"{votes} must have a row for every image; it has none for {line}")
            label = _label(ballot, usage)
        if label is None:
            left_out += 1
        else:
            pixels += image
            index.append((PARTS.index(USAGES[usage]), label, *_UNKNOWN))
        report(done, total)
    if ballots is not None and (ballot := next(ballots, None)) is not None:
        raise ValueError(f"{ballot.line}: {votes} must have as many rows as images, but {path} has no more images")
    if not index:
        raise ValueError(f"{path} must have images with a label below its header; got none")
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, SIZE, SIZE)
    name, classes = ("fer2013", EMOTIONS) if votes is None else ("ferplus", VOTED)
    return images, np.array(index, dtype=np.int64), _facts(name, classes, left_out)


def _rows(path: Path, headers: Sequence[tuple[str, ...]]) -> Iterator[Row]:
    """The lines of a table below its header, which is one of these."""
    total = path.stat().st_size
    with path.open("rb") as raw, TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = tuple(name.strip() for name in next(reader, []))
            if header not in headers:
                wanted = " or ".join(",".join(names) for names in headers)
                raise ValueError(f"{path}, line 1: must be the header {wanted}; got {','.join(header)[:200]!r}")
            for values in reader:
                line = f"{path}, line {reader.line_num}"
                if len(values) != len(header):
                    raise ValueError(f"{line}: must have {len(header)} values, {','.join(header)}; got {len(values)}")
                stripped = (value.strip() for value in values)
                yield Row(line, dict(zip(header, stripped, strict=True)), raw.tell(), total)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: must be a row of a table; {error}") from error


def _pixels(text: str, line: str) -> bytes:
    try:
        image = bytes(map(_NUMBERS.__getitem__, text.split()))
    except KeyError as error:
        raise ValueError(f"{line}: pixels must be whole numbers from 0 to 255; got {error}") from error
    if len(image) != SIZE * SIZE:
        raise ValueError(f"{line}: pixels must be {SIZE * SIZE} numbers, {SIZE} x {SIZE}; got {len(image)}")
    return image


def _number(text: str, most: int, what: str) -> int:
    number = _NUMBERS.get(text, most + 1)
    if number > most:
        raise ValueError(f"{what} must be a whole number from 0 to {most}; got {text!r}")
    return number


def _label(ballot: Row, usage: str) -> int | None:
    line, values = ballot.line, ballot.values
    if values["Usage"] != usage:
        raise ValueError(f"{line}: Usage must be {usage}, as that of the image is; got {values['Usage']!r}")
    return most_voted([_number(values[kind], 10, f"{line}: {kind}") for kind in VOTES_HEADER[2:]])


def _read_folder(
    path: Path, report: Callable[[int, int], None]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, Any]]:
    _check_folders(path, ("train", "test"))
    train, test = _files(path / "train"), _files(path / "test")
    files = train + test
    if not files:
        raise ValueError(f"{path} must have images in its folders; got none")
    parts = np.full(len(files), PARTS.index("test"))
    parts[: len(train)] = PARTS.index("train")
    parts[np.random.default_rng(_SEED).permutation(len(train))[: len(train) // 10]] = PARTS.index("validation")
    images = np.empty((len(files), SIZE, SIZE), dtype=np.uint8)
    index = np.empty((len(files), len(COLUMNS)), dtype=np.int64)
    for row, file in enumerate(files):
        images[row] = _read_image(file)
        index[row] = parts[row], EMOTIONS.index(file.parent.name), *_UNKNOWN
        report(row + 1, len(files))
    return images, index, _facts("fer2013", EMOTIONS, 0)


def _read_plus(
    path: Path, report: Callable[[int, int], None]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, Any]]:
    _check_folders(path, tuple(PLUS_FOLDERS))
    ballots = [(path / name, part, ballot) for name, part in PLUS_FOLDERS.items() for ballot in _ballots(path / name)]
    images, index = [], []
    for number, (folder, part, (line, name, votes)) in enumerate(ballots, 1):
        label = most_voted([_number(vote, 10, line) for vote in votes])
        if label is not None:
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{line}: {folder / name} is missing")
            images.append(_read_image(folder / name))
            index.append((PARTS.index(part), label, *_UNKNOWN))
        report(number, len(ballots))
    if not images:
        raise ValueError(f"{path} must have images with a label in its folders; got none")
    left_out = len(ballots) - len(images)
    return np.stack(images), np.array(index, dtype=np.int64), _facts("ferplus", VOTED, left_out)


def _ballots(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """The lines of a `label.csv`: where each is, the name of the image, and the votes."""
    path = folder / LABELS
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {folder} must have it beside its images")
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for name, *values in reader:
                line = f"{path}, line {reader.line_num}"
                if len(values) != len(VOTES_HEADER) - 1 or values[0] != BOX or Path(name).name != name:
                    wanted = f"the name of an image, the box {BOX!r} and {len(VOTES_HEADER) - 2} votes"
                    raise ValueError(f"{line}: must be {wanted}; got {[name, *values]}")
                yield line, name, values[1:]
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: must be a row of a table; {error}") from error


def _read_image(file: Path) -> NDArray[np.uint8]:
    image = read_grey(file)
    if image.shape != (SIZE, SIZE):
        raise ValueError(f"{file} must be {SIZE} x {SIZE} pixels, got {image.shape[1]} x {image.shape[0]}")
    return image


def _files(folder: Path) -> list[Path]:
    _check_folders(folder, EMOTIONS)
    files = (file for emotion in sorted(EMOTIONS) for file in sorted((folder / emotion).iterdir()))
    return [file for file in files if not file.name.startswith(".")]


def _check_folders(folder: Path, names: Sequence[str]) -> None:
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if found != sorted(names):
        got = ", ".join([*found[:8], *(["…"] if len(found) > 8 else [])]) or "none"
        raise ValueError(f"{folder} must have the folders {', '.join(names)}; got {got}")


def _facts(name: str, classes: Sequence[str], left_out: int) -> dict[str, Any]:
    return {"name": name, "classes": list(classes), "views": [], "lights": [], "left_out": left_out}
