"""ICT-FaceKit, an open 3D model of faces: a mesh, 100 modes of identity and 57 expressions to add to it.

It is looked for as `ict-facekit/ict_facekit_f16.npz` in `$FASTWEIGHTS_DATA`. If that variable is not set, it is in the
user's cache, where `convert` puts it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cache import user_cache

FILE = Path("ict-facekit", "ict_facekit_f16.npz")
SOURCE = "https://github.com/ICT-VGL/ICT-FaceKit"
HOW = f"get it by `git clone --depth 1 {SOURCE}` and `fastweights faces import facekit ICT-FaceKit/FaceXModel`"
NEUTRAL = "generic_neutral_mesh"
VERTICES, QUADS, MODES, EXPRESSIONS, MATERIALS = 26719, 26384, 100, 57, 12
# What the arrays hold, the same however the file is packed: of the model that the published results were made with.
CHECKSUM = "339f6ed978ce742035599d262d849a5c3523462303ae859e666320fb5fdbe86b"


class FaceModel(NamedTuple):
    """Vertices have x to the face's left, y up and z towards the viewer; a head is about 25 units wide."""

    neutral: NDArray[np.float32]  # (V, 3)
    quads: NDArray[np.int32]  # (Q, 4): the corners; a triangle has its last one twice
    material: NDArray[np.uint8]  # (Q,), into `material_names`
    identity: NDArray[np.float16]  # (100, V, 3): what a weight of 1 adds; weights are standard normal
    expression: NDArray[np.float16]  # (57, V, 3): what a weight of 1 adds
    material_names: NDArray[np.str_]
    expression_names: NDArray[np.str_]  # jawOpen, mouthSmile_L, …

    def checksum(self) -> str:
        """SHA-256 of all that is in it."""
        digest = hashlib.sha256()
        for array in self[:5]:
            digest.update(np.ascontiguousarray(array).tobytes())
        for names in self[5:]:
            digest.update(" ".join(names.tolist()).encode())
        return digest.hexdigest()

    def vertices_of(self, *materials: str) -> NDArray[np.int64]:
        """The vertices of the quads that have one of these materials."""
        wanted = np.isin(self.material_names[self.material], materials)
        return np.unique(self.quads[wanted]).astype(np.int64)


KINDS: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "neutral": (np.float32, (VERTICES, 3)),
    "quads": (np.int32, (QUADS, 4)),
    "material": (np.uint8, (QUADS,)),
    "identity": (np.float16, (MODES, VERTICES, 3)),
    "expression": (np.float16, (EXPRESSIONS, VERTICES, 3)),
    "material_names": (np.str_, (MATERIALS,)),
    "expression_names": (np.str_, (EXPRESSIONS,)),
}


def find() -> Path:
    """Where the model is."""
    given = os.environ.get("FASTWEIGHTS_DATA")
    path = Path(given, FILE) if given else user_cache() / FILE
    if not path.is_file():
        where = f" (FASTWEIGHTS_DATA is {given})" if given else ""
        raise FileNotFoundError(f"the 3D face model is missing: {path}{where}; {HOW}")
    return path


@cache
def load(path: Path | None = None) -> FaceModel:
    """The model, checked, read once per process: do not change it in place. None: the one that `find` finds."""
    path = path or find()
    sidecar = _sidecar(path)
    expected = sidecar.read_text().strip() if sidecar.exists() else CHECKSUM
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            model = FaceModel(**{name: file[name] for name in KINDS})
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must hold the face model, but it is damaged or cut off ({error}); {HOW}") from error
    _check(model, path)
    found = model.checksum()
    if found != expected:
        raise ValueError(f"{path} is altered: the SHA-256 of its content must be {expected}, got {found}; {HOW}")
    return model


def convert(folder: Path, out: Path | None = None, report: Callable[[int, int], None] = lambda done, of: None) -> Path:
    """Read the original model, a folder of 158 .obj files, and write it as one file; None: into the user's cache.

    Args:
        folder: `FaceXModel` of the original repository.
        report: how many of how many files are read.
    """
    names = sorted(path.stem for path in folder.glob("*.obj"))
    modes = [name for name in names if name.startswith("identity")]
    expressions = [name for name in names if name not in modes and name != NEUTRAL]
    if NEUTRAL not in names or len(modes) != MODES or len(expressions) != EXPRESSIONS:
        raise ValueError(
            f"{folder} must hold {NEUTRAL}.obj, {MODES} files identity*.obj and {EXPRESSIONS} of expressions; "
            f"got {len(modes)} and {len(expressions)}{'' if NEUTRAL in names else f', and no {NEUTRAL}.obj'}"
        )
    neutral, quads, materials = read_obj(folder / f"{NEUTRAL}.obj")
    report(1, len(names))
    offsets: dict[str, list[NDArray[np.float16]]] = {"identity": [], "expression": []}
    for number, name in enumerate([*modes, *expressions], 2):
        path = folder / f"{name}.obj"
        vertices = read_obj(path)[0]
        if vertices.shape != neutral.shape:
            raise ValueError(f"{path} must have {len(neutral)} vertices, as {NEUTRAL}.obj has; got {len(vertices)}")
        offsets["identity" if name in modes else "expression"].append((vertices - neutral).astype(np.float16))
        report(number, len(names))
    material_names = np.array(sorted(set(materials)))
    model = FaceModel(
        neutral.astype(np.float32),
        quads,
        np.searchsorted(material_names, materials).astype(np.uint8),
        np.stack(offsets["identity"]),
        np.stack(offsets["expression"]),
        material_names,
        np.array(expressions),
    )
    _check(model, folder)
    path = out or user_cache() / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        packed = Path(place, path.name)
        np.savez_compressed(packed, **model._asdict())
        _sidecar(packed).write_text(f"{model.checksum()}\n")
        _sidecar(path).unlink(missing_ok=True)
        packed.replace(path)
        _sidecar(packed).replace(_sidecar(path))
    return path


def read_obj(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int32], list[str]]:
    """The vertices (V, 3) of a Wavefront .obj file, its faces of three or four corners (Q, 4), and their materials."""
    vertices: list[list[float]] = []
    quads: list[list[int]] = []
    materials: list[str] = []
    material = ""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            kind, *words = line.split() or [""]
            try:
                if kind == "v":
                    vertices.append([float(word) for word in words[:3]])
                elif kind == "usemtl":
                    material = words[0]
                elif kind == "f":
                    corners = [int(word.split("/")[0]) - 1 for word in words]
                    if not 3 <= len(corners) <= 4 or not 0 <= min(corners) <= max(corners) < len(vertices):
                        raise ValueError("a face must have 3 or 4 of the vertices before it")
                    quads.append(corners + corners[-1:] * (4 - len(corners)))
                    materials.append(material)
            except (ValueError, IndexError) as error:
                raise ValueError(f"{path}, line {number}: {line.strip()!r} cannot be read: {error}") from error
    if not vertices or any(len(vertex) != 3 for vertex in vertices):
        raise ValueError(f"{path} must have vertices of three numbers")
    return np.array(vertices), np.array(quads, dtype=np.int32).reshape(-1, 4), materials


def _check(model: FaceModel, path: Path) -> None:
    for name, (kind, shape) in KINDS.items():
        array: NDArray[Any] = getattr(model, name)
        if array.shape != shape or not np.issubdtype(array.dtype, kind):
            raise ValueError(f"{path} must have {name} of {shape} {kind.__name__}, got {array.shape} {array.dtype}")


def _sidecar(path: Path) -> Path:
    """What the checksum of a converted model is: rounding may make it another one than `CHECKSUM`."""
    return path.with_suffix(".sha256")
