"""`faces`: render, import and look at sets of faces."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..paper import table3
from ..tasks.faces import facekit, fer, multipie, rendered, sets
from .options import counting


def faces_render(
    which: Annotated[rendered.Set, tyro.conf.arg(name="")] = rendered.Set(),  # noqa: B008
    *,
    quick: bool = False,
    workers: int = 2,
) -> int:
    """Render PIE-3D, faces that show expressions; the same command goes on where it was stopped.

    Args:
        quick: 20 people, for a look.
        workers: processes.
    """
    print(f"written: {render(rendered.QUICK if quick else which, workers)}")
    return 0


def render(which: rendered.Set, workers: int) -> Path:
    """Where a set is, rendered if need be."""
    with counting("rendering") as tell:
        return rendered.render(which, workers, tell)


def faces_import(
    kind: tyro.conf.Positional[Literal["facekit", "multipie", "fer"]],
    path: tyro.conf.Positional[Path],
    *,
    points: Path | None = None,
    votes: Path | None = None,
) -> int:
    """Read the original files of the 3D face model (facekit), of Multi-PIE, or of FER2013, and keep what is needed.

    Args:
        kind: what it is.
        path: FaceXModel of ICT-FaceKit; the folder of Multi-PIE that has data; fer2013.csv, or a folder of images.
        points: of Multi-PIE: a folder with places of eyes and noses; without it faces are cropped, not aligned.
        votes: of FER: fer2013new.csv, the labels of FER+.
    """
    with counting("reading") as tell:
        if kind == "facekit":
            written = facekit.convert(path, tell=tell)
        else:
            read = multipie.read(path, points, tell) if kind == "multipie" else fer.read(path, votes, tell)
            written = sets.folder_of("fer+" if votes else kind)
            sets.save(written, *read)
    print(f"written: {written}")
    if kind == "facekit" and facekit.load(written).checksum() != facekit.CHECKSUM:
        print("fastweights: it is not quite the model of the published results: newer, or rounded otherwise")
    return 0


def faces_look(
    data: tyro.conf.Positional[Literal["rendered", "rendered-20", "multipie", "fer", "fer+"]] = "rendered",
    *,
    part: Literal["train", "validation", "test"] = "test",
    out: Path = Path("faces.png"),
) -> int:
    """Draw a contact sheet of faces, some of every expression.

    Args:
        data: which faces.
        part: of which set.
        out: the picture; an SVG is written beside it.
    """
    from ..report import figures  # which is slow to load

    faces = sets.load(sets.folder_of(data), part)
    written = figures.save(table3.contact_sheet(faces), out)
    count = len(faces.labels)
    print(f"{data}, {part}: {count:,} faces of {len(faces.identities.unique())} people")
    for label, name in enumerate(faces.facts["classes"]):
        print(f"  {name:<10} {int((faces.labels == label).sum()) / count:.1%}")
    print(f"written: {', '.join(map(str, written))}")
    return 0
