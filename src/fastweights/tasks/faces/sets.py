"""A set of faces on disk: the images in one memory-mapped array, what each shows, and how the set was made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache import user_cache

SIZE = 48
PARTS = ("train", "validation", "test")
EXPRESSIONS = ("neutral", "smile", "surprise", "squint", "disgust", "scream")  # of Multi-PIE and of the rendered set
TEST_IDENTITIES, VALIDATION_IDENTITIES = 20, 30
COLUMNS = ("part", "label", "identity", "view", "light")
_FILES = {"images.npy", "index.npy", "set.json"}
_SEED = 2010  # of the permutations that part identities


class Faces(NamedTuple):
    """The faces of one part of a set: images (count, 48, 48) of bytes; the rest (count,) int64, -1: not known."""

    images: Tensor
    labels: Tensor  # into `facts["classes"]`
    identities: Tensor
    views: Tensor  # into `facts["views"]`
    lights: Tensor  # into `facts["lights"]`
    facts: dict[str, Any]  # what else is known of the whole set


def part_identities(count: int) -> NDArray[np.int64]:
    """For each of so many identities the part it belongs to: 20 are for the test, 30 of the others for validation.

    Sets of fewer than 100 identities (a quick look, say) give a fifth to each. The same for everybody, always.

    >>> np.bincount(part_identities(337))
    array([287,  30,  20])
    """
    if count < 3:
        raise ValueError(f"count must be at least 3, one identity for each part; got {count}")
    fifth = max(1, count // 5)
    test, validation = (TEST_IDENTITIES, VALIDATION_IDENTITIES) if count >= 100 else (fifth, fifth)
    parts = np.zeros(count, dtype=np.int64)
    order = np.random.default_rng(_SEED).permutation(count)
    parts[order[:test]] = PARTS.index("test")
    parts[order[test : test + validation]] = PARTS.index("validation")
    return parts


def save(folder: Path, images: NDArray[np.uint8], index: NDArray[np.int64], facts: Mapping[str, Any]) -> None:
    """Write a set, replacing what is in the folder: all of it, or nothing.

    Args:
        folder: of this set alone.
        images: (count, 48, 48).
        index: (count, 5): what each shows, one column for each of `COLUMNS`.
        facts: at least `classes`, `views` and `lights`, the names of what the columns count; plain values.
    """
    _check(images, index, facts)
    strange = sorted(set(os.listdir(folder)) - _FILES) if folder.exists() else []
    if strange:
        raise ValueError(f"folder must be of this set alone, for it is replaced; {folder} has {strange[0]} in it")
    order = np.argsort(index[:, 0], kind="stable")  # a part is then a slice, which needs no copy
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        np.save(place / "images.npy", images[order])
        np.save(place / "index.npy", index[order].astype(np.int32))
        sums = {name: _checksum(place / name) for name in ("images.npy", "index.npy")}
        (place / "set.json").write_text(json.dumps({**facts, "sha256": sums}, indent=1) + "\n", encoding="utf-8")
        for path in place.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        place.replace(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def load(folder: Path, part: str) -> Faces:
    """One part of a set, checked. Do not change the tensors in place: the images are the file's."""
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(map(repr, PARTS))}; got {part!r}")
    facts = load_facts(folder)
    for name, sha256 in facts["sha256"].items():
        found = _checksum(folder / name)
        if found != sha256:
            raise ValueError(f"{folder / name} is altered: its SHA-256 must be {sha256}, got {found}; delete {folder}")
    index = np.load(folder / "index.npy", allow_pickle=False).astype(np.int64)
    first, last = np.searchsorted(index[:, 0], [PARTS.index(part), PARTS.index(part) + 1])
    # Copied when written, so that torch does not warn of memory that cannot be written at all.
    images = np.load(folder / "images.npy", mmap_mode="c", allow_pickle=False)[first:last]
    labels, identities, views, lights = torch.from_numpy(index[first:last, 1:].copy()).unbind(1)
    return Faces(torch.from_numpy(images), labels, identities, views, lights, facts)


def load_facts(folder: Path) -> dict[str, Any]:
    """What is known of a set, without its images."""
    path = folder / "set.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no set of faces in {folder}: `fastweights faces render` or `fastweights faces import` makes one"
        )
    try:
        facts = dict(json.loads(path.read_text(encoding="utf-8")))
        missing = {"classes", "views", "lights", "sha256"} - set(facts)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}; delete {folder}") from error
    if missing:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}; delete {folder}")
    return facts


def folder_of(name: str) -> Path:
    """Where a set is kept: in the user's cache."""
    return user_cache() / "faces" / name


def _check(images: NDArray[np.uint8], index: NDArray[np.int64], facts: Mapping[str, Any]) -> None:
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (SIZE, SIZE):
        raise ValueError(f"images must be (count, {SIZE}, {SIZE}) uint8, got {images.shape} {images.dtype}")
    if index.shape != (len(images), len(COLUMNS)):
        raise ValueError(f"index must be ({len(images)}, {len(COLUMNS)}), got {index.shape}")
    missing = {"classes", "views", "lights"} - set(facts)
    if missing:
        raise ValueError(f"facts must have classes, views and lights; it lacks {', '.join(sorted(missing))}")
    names: dict[str, Sequence[str]] = {"part": PARTS}
    names |= {"label": facts["classes"], "view": facts["views"], "light": facts["lights"]}
    for column, values in zip(COLUMNS, index.T, strict=True):
        least, most = (0 if column in ("part", "label") else -1), len(names.get(column, ())) - 1
        if len(values) and (values.min() < least or (column in names and values.max() > most)):
            wanted = f"from {least} to {most}" if column in names else f"{least} or more"
            raise ValueError(f"{column} must be {wanted}, got {values.min()} to {values.max()}")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
