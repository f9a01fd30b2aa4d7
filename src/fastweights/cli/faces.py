"""`faces`: render, import and look at sets of faces."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..paper.faces import table3
from ..tasks.faces import facekit, fer, multipie, rendered, sets
from .options import RUNS, MaybePath, check_picture, counting


def faces_render(
    which: Annotated[rendered.Set, tyro.conf.arg(name="")] = rendered.Set(),  # noqa: B008
    *,
    quick: bool = False,
    workers: int = 2,
) -> int:
    """Render PIE-3D, faces that show expressions; the same command goes on where it was stopped.

    Args:
        quick: Render 20 people, for a quick look.
        workers: Processes at a time.
    """
    print(f"written: {render(rendered.QUICK if quick else which, workers)}")
    return 0


def render(which: rendered.Set, workers: int) -> Path:
    """Where a set is, rendered if need be."""
    with counting("rendering") as report:
        return rendered.render(which, workers, report)


def faces_import(
    kind: tyro.conf.Positional[Literal["facekit", "multipie", "fer"]],
    path: tyro.conf.Positional[Path],
    *,
    points: MaybePath = None,
    votes: MaybePath = None,
) -> int:
    """Read the original files of the 3D face model (facekit), of Multi-PIE, or of FER2013, and keep what is needed.

    Args:
        kind: What the files are of.
        path: FaceXModel of ICT-FaceKit; Multi-PIE's folder with data in it; fer2013.csv, or a folder of FER's images.
        points: For Multi-PIE, a folder with the places of eyes and noses; without it faces are cropped, not aligned.
        votes: For FER, fer2013new.csv, the labels of FER+.
    """
    for name, given in (("PATH", path), ("--points", points), ("--votes", votes)):
        if given is not None and not given.exists():
            raise ValueError(f"{name} must be there to be read; there is no {given}")
    with counting("reading") as report:
        if kind == "facekit":
            written = facekit.convert(path, report=report)
        else:
            read = multipie.read(path, points, report) if kind == "multipie" else fer.read(path, votes, report)
            written = sets.folder_of("fer+" if read[2]["name"] == "ferplus" else kind)
            sets.save(written, *read)
    print(f"written: {written}")
    if kind == "facekit" and facekit.load(written).checksum() != facekit.CHECKSUM:
        print("fastweights: it is not quite the model of the published results: newer, or rounded otherwise")
    return 0


def faces_look(
    data: tyro.conf.Positional[Literal["rendered", "rendered-20", "multipie", "fer", "fer+"]] = "rendered",
    *,
    part: Literal["train", "validation", "test"] = "test",
    out: Path = RUNS / "faces.png",
) -> int:
    """Draw a contact sheet of faces, some of every expression.

    Args:
        data: The set of faces.
        part: The part of it to look at.
        out: The picture, a .png or .svg; the other one is written beside it.
    """
    from ..report import figures  # which is slow to load

    check_picture(out, ".png", ".svg")
    faces = sets.load(sets.folder_of(data), part)
    written = figures.save(table3.contact_sheet(faces), out)
    count = len(faces.labels)
    known = faces.identities[faces.identities >= 0].unique()
    print(f"{data}, {part}: {count:,} faces" + (f" of {len(known)} people" if len(known) else ""))
    for label, name in enumerate(faces.facts["classes"]):
        print(f"  {name:<10} {int((faces.labels == label).sum()) / count:.1%}")
    print(f"written: {', '.join(map(str, written))}")
    return 0
