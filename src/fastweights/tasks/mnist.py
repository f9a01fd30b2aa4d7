"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of ten classes, from the original files, always checked.

The files are looked for in `$FASTWEIGHTS_DATA/mnist` (or `/fashion-mnist`). If that variable is not set, they are in
the user's cache, and are downloaded into it when they are first asked for.
"""

import fcntl
import gzip
import hashlib
import os
import queue
import threading
import time
import zlib
from collections.abc import Sequence
from functools import cache
from http.client import HTTPException, HTTPResponse
from math import prod
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from ..base.progress import Board, Progress
from .cache import user_cache

CLASSES = 10
SIZES = {"train": 55_000, "validation": 5_000, "test": 10_000}
SHAPES: dict[str, tuple[int, ...]] = {
    "train-images-idx3-ubyte.gz": (60_000, 28, 28),
    "train-labels-idx1-ubyte.gz": (60_000,),
    "t10k-images-idx3-ubyte.gz": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte.gz": (10_000,),
}
SECONDS_PER_LINE = 10.0  # of a download without a terminal
ANSWER_SECONDS = 7.0  # in which a mirror must answer
HEAD_START_SECONDS = 1.0  # of a mirror, before the next one is asked, too
_SEED = 1998  # of the permutation that parts training from validation


class Source(NamedTuple):
    """Where a data set comes from, and the SHA-256 of what is in each file of `SHAPES`, unpacked."""

    mirrors: tuple[str, ...]
    checksums: dict[str, str]  # of the content, not of the .gz: Debian packs the files anew, and the data are the same


SOURCES = {
    "mnist": Source(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
    "fashion-mnist": Source(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
}


class Data(NamedTuple):
    """A whole data set: images (count, 28, 28) uint8 from 0 (background) to 255, labels (count,) int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def split(part: str, name: str = "mnist", count: int | None = None) -> tuple[Tensor, Tensor]:
    """The first `count` images and labels (all: `SIZES`) of the training, validation or test set.

    They are the same for everybody, always: a seeded permutation parts the 60,000 training images. Do not change
    the tensors in place: they may be those of `load`.
    """
    if part not in SIZES:
        raise ValueError(f"part must be one of {', '.join(map(repr, SIZES))}; got {part!r}")
    if count is not None and not 1 <= count <= SIZES[part]:
        raise ValueError(f"count must be from 1 to {SIZES[part]}, the size of the {part} set; got {count}")
    data = load(name)
    if part == "test":
        return data.test_images[:count], data.test_labels[:count]
    order = torch.randperm(SIZES["train"] + SIZES["validation"], generator=torch.Generator().manual_seed(_SEED))
    chosen = order.split((SIZES["train"], SIZES["validation"]))[part == "validation"][:count]
    return data.train_images[chosen], data.train_labels[chosen]


def load(name: str = "mnist") -> Data:
    """A data set as tensors, read once per process: do not change them in place."""
    return _read_all(fetch(name), name)


def fetch(name: str = "mnist") -> Path:
    """The folder with the four files of a data set, checked; into the user's cache they are downloaded if need be."""
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(map(repr, SOURCES))}; got {name!r}")
    given = os.environ.get("FASTWEIGHTS_DATA")
    folder = Path(given, name) if given else user_cache() / name
    absent = _absent(folder)
    if absent and given:
        raise FileNotFoundError(
            f"{folder / absent[0]} is missing: FASTWEIGHTS_DATA is {given}, so there must be a folder {name} in it "
            f"with {', '.join(SHAPES)}"
        )
    if absent:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be downloading the same
            _download(folder, name)
    _read_all(folder, name)
    return folder


def read(path: Path, shape: tuple[int, ...], sha256: str) -> Tensor:
    """What an idx file packed by gzip holds, if it has this shape, and its content this checksum."""
    try:
        with gzip.open(path) as file:
            content = file.read(_length(shape) + 1)  # one byte more shows a file that is too long
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, but it is damaged or cut off: {error}") from error
    values = parse(content, shape, path)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{path} is altered: the SHA-256 of its content must be {sha256}, got {found}")
    return values


def parse(content: bytes, shape: tuple[int, ...], file: str | Path) -> Tensor:
    """What is in the content of an idx file of unsigned bytes; one dimension: labels. Errors name the `file`.

    >>> parse(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]), (3,), "labels")
    tensor([7, 2, 1], dtype=torch.uint8)
    """
    magic, header = bytes((0, 0, 8, len(shape))), 4 + 4 * len(shape)
    if content[:4] != magic:
        raise ValueError(f"{file} must begin with the magic number {magic.hex()}, got {content[:4].hex() or 'nothing'}")
    found = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if len(content) >= header and found != shape:
        raise ValueError(f"{file} must hold {' x '.join(map(str, shape))} bytes, got {' x '.join(map(str, found))}")
    length = _length(shape)
    if len(content) != length:
        got = "more" if len(content) > length else f"{len(content)}: it is cut off"
        raise ValueError(f"{file} must be {length} bytes long when unpacked, got {got}")
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)
    if len(shape) == 1 and values.max() >= CLASSES:
        raise ValueError(f"{file} must have labels from 0 to {CLASSES - 1}, got {values.max()}")
    return values


def _length(shape: tuple[int, ...]) -> int:
    return 4 + 4 * len(shape) + prod(shape)


@cache
def _read_all(folder: Path, name: str) -> Data:
    checksums = SOURCES[name].checksums
    try:
        images, labels, test_images, test_labels = (
            read(folder / file, SHAPES[file], checksums[file]) for file in SHAPES
        )
    except ValueError as error:
        raise ValueError(f"{error}; put the original there, or delete it to download it again") from error
    return Data(images, labels.long(), test_images, test_labels.long())


def _absent(folder: Path) -> list[str]:
    return [file for file in SHAPES if not (folder / file).is_file()]


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _download(folder: Path, name: str) -> None:
    """Puts the files that are missing into `folder`."""
    failures: list[str] = []
    for file in _absent(folder):
        failures = _from_mirrors(folder / file, SOURCES[name])
        if failures:
            break
    if failures:
        raise OSError(
            f"{name} could not be downloaded into {folder} ({'; '.join(failures)}): try again, or put "
            f"{', '.join(SHAPES)} into a folder {name} and set FASTWEIGHTS_DATA to the folder that has it"
        )


def _from_mirrors(path: Path, source: Source) -> list[str]:
    """Puts one file in place, from a mirror that answers and has it; what went wrong at each, if none has."""
    left, failures = [mirror + path.name for mirror in source.mirrors], []
    while left:
        there = _part(path).stat().st_size if _part(path).exists() else 0
        winner, failed = _ask_all(left, there)
        if winner is not None:
            try:
                if winner.answer is not None:
                    _continue(_part(path), winner.answer)
                _accept(path, source)
                return []
            except ValueError as error:
                if there:  # what was there before may have been bad: it is gone now, and all is asked for once more
                    continue
                failed[winner.url] = error
            except (OSError, HTTPException) as error:
                failed[winner.url] = error
        left = [url for url in left if url not in failed]
        failures += [f"{url}: {error}" for url, error in failed.items()]
    return failures


class _Answer(NamedTuple):
    url: str
    answer: HTTPResponse | None  # None: the server says that nothing is left to send


def _ask_all(urls: Sequence[str], there: int) -> tuple[_Answer | None, dict[str, Exception]]:
    """The first answer of mirrors asked for what comes after some bytes, and what went wrong at others.

    They are asked side by side, each a little after the one before it, or as soon as that one has failed.
    """
    found: queue.SimpleQueue[tuple[str, HTTPResponse | Exception | None]] = queue.SimpleQueue()
    lock, over = threading.Lock(), False

    def ask(url: str) -> None:
        answer: HTTPResponse | Exception | None
        try:
            headers = {"Range": f"bytes={there}-"} if there else {}
            answer = urlopen(Request(url, headers=headers), timeout=ANSWER_SECONDS)
        except HTTPError as error:
            error.close()
            answer = None if error.code == 416 else error
        except (OSError, HTTPException, ValueError) as error:
            answer = error
        with lock:
            if not over:
                found.put((url, answer))
            elif isinstance(answer, HTTPResponse):
                answer.close()

    failed: dict[str, Exception] = {}
    waiting, until = list(urls), time.monotonic() + ANSWER_SECONDS
    try:
        while len(failed) < len(urls):
            if waiting:
                threading.Thread(target=ask, args=(waiting.pop(0),), daemon=True).start()
            try:
                url, answer = found.get(timeout=HEAD_START_SECONDS if waiting else max(0.0, until - time.monotonic()))
            except queue.Empty:
                if not waiting:
                    silent = TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")
                    return None, failed | {url: silent for url in urls if url not in failed}
                continue
            if not isinstance(answer, Exception):
                return _Answer(url, answer), failed
            failed[url] = answer
        return None, failed
    finally:
        with lock:
            over = True
        while not found.empty():
            answer = found.get()[1]
            if isinstance(answer, HTTPResponse):
                answer.close()


def _continue(part: Path, answer: HTTPResponse) -> None:
    """Downloads what `part` has not got yet, or all, if the server sends all."""
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        of = file.tell() + answer.length if answer.length else 0
        with Board(1, SECONDS_PER_LINE) as board:
            while chunk := answer.read(1 << 16):
                file.write(chunk)
                board.update(part.stem.removesuffix("-ubyte.gz"), Progress(file.tell(), of, file.tell(), "bytes"))
        if answer.length:
            raise ConnectionError(f"the connection ended {answer.length} bytes too early")


def _accept(path: Path, source: Source) -> None:
    """Gives a finished part its name, if it is the right file; deletes it, if not."""
    try:
        read(_part(path), SHAPES[path.name], source.checksums[path.name])
    except ValueError:
        _part(path).unlink()
        raise
    _part(path).replace(path)
