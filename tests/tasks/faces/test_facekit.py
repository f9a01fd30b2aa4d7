"""The face model: converted from the original files, found, and never taken when it is damaged."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fastweights.tasks.cache import user_cache
from fastweights.tasks.faces import facekit

real = Path(os.environ.get("FASTWEIGHTS_DATA", "nowhere"), facekit.FILE)
needs_model = pytest.mark.skipif(
    not real.is_file(), reason=f"FASTWEIGHTS_DATA is not set to a folder with {facekit.FILE}"
)
MODES, EXPRESSIONS = ["identity000", "identity001"], ["browDown_L", "jawOpen", "mouthSmile_R"]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A model of five vertices is the right one, and the cache is empty."""
    monkeypatch.setattr(facekit, "MODES", 2)
    monkeypatch.setattr(facekit, "EXPRESSIONS", 3)
    kinds = {
        "neutral": (np.float32, (5, 3)),
        "quads": (np.int32, (2, 4)),
        "material": (np.uint8, (2,)),
        "identity": (np.float16, (2, 5, 3)),
        "expression": (np.float16, (3, 5, 3)),
        "material_names": (np.str_, (2,)),
        "expression_names": (np.str_, (3,)),
    }
    monkeypatch.setattr(facekit, "KINDS", kinds)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FASTWEIGHTS_DATA", raising=False)
    facekit.load.cache_clear()
    yield
    facekit.load.cache_clear()


def vertices_of(name):
    return np.random.default_rng(len(name)).normal(size=(5, 3)).round(4) + (name == "jawOpen")


@pytest.fixture
def original(tmp_path):
    """The original's folder: text files with a square of skin and a triangle of teeth."""
    folder = tmp_path / "FaceXModel"
    folder.mkdir()
    for name in [facekit.NEUTRAL, *MODES, *EXPRESSIONS]:
        lines = ["# a comment", "mtllib some.mtl", *(f"v {x} {y} {z}" for x, y, z in vertices_of(name)), "vt 0.5 0.5"]
        lines += ["g all", "usemtl M_Teeth", "f 5/1 4/1 3/1", "usemtl M_Face", "f 1/1 2/1 3/1 4/1", ""]
        (folder / f"{name}.obj").write_text("\n".join(lines))
    return folder


def test_the_original_is_converted_and_found(small, original):
    reported = []
    path = facekit.convert(original, report=lambda done, of: reported.append((done, of)))
    assert reported == [(done, 6) for done in range(1, 7)]
    assert facekit.find() == path
    model = facekit.load()
    np.testing.assert_array_equal(model.neutral, vertices_of(facekit.NEUTRAL).astype(np.float32))
    assert model.quads.tolist() == [[4, 3, 2, 2], [0, 1, 2, 3]]
    assert model.material_names[model.material].tolist() == ["M_Teeth", "M_Face"]
    assert model.expression_names.tolist() == EXPRESSIONS
    offset = vertices_of("jawOpen") - vertices_of(facekit.NEUTRAL)
    np.testing.assert_array_equal(model.expression[1], offset.astype(np.float16))
    assert model.vertices_of("M_Face").tolist() == [0, 1, 2, 3]
    assert model.vertices_of("M_Face", "M_Teeth").tolist() == [0, 1, 2, 3, 4]


def test_a_model_that_was_altered_or_cut_off_is_not_taken(small, original):
    path = facekit.convert(original)
    with np.load(path) as file:
        arrays = dict(file)
    whole = path.read_bytes()
    arrays["neutral"][0, 0] += 1e-3
    np.savez_compressed(path, **arrays)
    with pytest.raises(
        ValueError, match=f"{re.escape(str(path))} is altered: the SHA-256 of its content must be .*git clone"
    ):
        facekit.load()
    for damaged in (whole[: len(whole) // 2], b"", b"not a zip at all"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{re.escape(str(path))} must hold the face model, but it is damaged"):
            facekit.load()
    path.write_bytes(whole)
    assert len(facekit.load().neutral) == 5


def test_a_model_of_another_shape(small, original, monkeypatch):
    path = facekit.convert(original)
    monkeypatch.setitem(facekit.KINDS, "quads", (np.int32, (7, 4)))
    with pytest.raises(ValueError, match=r"must have quads of \(7, 4\) int32, got \(2, 4\) int32"):
        facekit.load(path)


def test_an_original_with_holes(small, original):
    (original / "identity001.obj").unlink()
    with pytest.raises(
        ValueError, match=r"must hold generic_neutral_mesh.obj, 2 files identity\*.obj and 3 of .*; got 1 and 3$"
    ):
        facekit.convert(original)
    (original / "generic_neutral_mesh.obj").unlink()
    with pytest.raises(ValueError, match="and no generic_neutral_mesh.obj"):
        facekit.convert(original)
    with pytest.raises(ValueError, match="got 0 and 0"):
        facekit.convert(original / "nowhere")
    assert not (user_cache() / facekit.FILE).exists()


@pytest.mark.parametrize("line", ["v 1 2 three", "f 1 2", "f 1 2 9", "f 1 2 3 4 5", "usemtl"])
def test_a_line_that_cannot_be_read(original, line):
    path = original / "jawOpen.obj"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}, line 14: '{line}' cannot be read"):
        facekit.read_obj(path)


def test_another_number_of_vertices(small, original):
    path = original / "jawOpen.obj"
    path.write_text(path.read_text() + "v 1 2 3\n")
    with pytest.raises(ValueError, match=r"jawOpen.obj must have 5 vertices, as generic_neutral_mesh.obj has; got 6"):
        facekit.convert(original)


def test_a_model_that_is_nowhere_says_where_to_get_it(small, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"the 3D face model is missing: .*cache.*; get it by `git clone"):
        facekit.load()
    monkeypatch.setenv("FASTWEIGHTS_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=f"missing: {re.escape(str(tmp_path / facekit.FILE))} .FASTWEIGHTS_DATA is"
    ):
        facekit.load()


@needs_model
def test_the_real_model():
    model = facekit.load()
    assert model.checksum() == facekit.CHECKSUM
    assert np.ptp(model.neutral[:, 0]) == pytest.approx(24.8, abs=0.1)
    assert {"jawOpen", "mouthSmile_L", "eyeSquint_R", "noseSneer_L"} <= set(model.expression_names.tolist())
