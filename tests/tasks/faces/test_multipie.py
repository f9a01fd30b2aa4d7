"""Multi-PIE is read as CMU gives it: every image with its labels and in its place, or an error that names the file."""

import io
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastweights.tasks.faces import multipie, sets
from fastweights.tasks.faces.alignment import EYES, NOSE

# Not everybody came to every session.
ATTENDANCE = {"001": ("01", "02"), "004": ("01",), "250": ("03", "04"), "346": ("02", "04")}
RECORDINGS = {"01": ("01", "02"), "02": ("01", "02", "03"), "03": ("01", "02", "03"), "04": ("01", "02", "03")}
LABELS = {"01": (0, 1), "02": (0, 2, 3), "03": (0, 1, 4), "04": (0, 0, 5)}
CAMERAS = ("14_0", "05_1", "05_0")  # from -15 to +15 degrees
LIGHTS = [f"{light:02}" for light in range(20)]
SMALL = {"001": ("01",), "002": ("01",), "003": ("01",)}


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png", compress_level=1)
    return file.getvalue()


# Flat images, grey and RGB by turns.
FLAT = [png(np.full((48, 64) if grey % 2 else (48, 64, 3), grey, np.uint8)) for grey in range(256)]


def grey(subject, session, recording, camera, light):
    """A number for each image, so that none can be taken for its neighbours."""
    return (7 * int(subject) + 31 * int(session) + 57 * int(recording) + 83 * CAMERAS.index(camera) + int(light)) % 256


def build(root, attendance, recordings=None, content=lambda *what: FLAT[grey(*what)]):
    """A tree in which the people came to these sessions."""
    for subject, sessions in attendance.items():
        for session in sessions:
            for recording in recordings or RECORDINGS[session]:
                for camera in CAMERAS:
                    name = f"{subject}_{session}_{recording}_{camera[:2]}{camera[3]}"
                    folder = root / "data" / f"session{session}" / "multiview" / subject / recording / camera
                    folder.mkdir(parents=True)
                    for light in LIGHTS:
                        image = content(subject, session, recording, camera, light)
                        (folder / f"{name}_{light}.png").write_bytes(image)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    build(root, ATTENDANCE)
    for other in ("session01/highres/001", "session01/multiview/001/01/19_1", "session02/multiview/notes"):
        (root / "data" / other).mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    build(root, SMALL, ["01"])
    return root


@pytest.fixture
def small(built, tmp_path):
    """A tree of three people and one recording each, to be damaged: replace files, but do not write into them."""
    return Path(shutil.copytree(built, tmp_path / "small", copy_function=os.link))


def image_of(root, subject="001", recording="01", camera="05_1", light="00"):
    folder = root / "data" / "session01" / "multiview" / subject / recording / camera
    return folder / f"{subject}_01_{recording}_{camera[:2]}{camera[3]}_{light}.png"


def replace(path, content):
    path.unlink()
    path.write_bytes(content)


@pytest.fixture(scope="module")
def result(tree):
    """What is read of the tree, and what was reported meanwhile."""
    reported = []
    return *multipie.read(tree, report=lambda *numbers: reported.append(numbers)), reported


def test_every_image_has_its_labels(result):
    images, index, facts, reported = result
    expected = [
        (grey(subject, session, recording, camera, light), label, identity, view, int(light))
        for identity, (subject, sessions) in enumerate(ATTENDANCE.items())
        for session in sessions
        for recording, label in zip(RECORDINGS[session], LABELS[session], strict=True)
        for view, camera in enumerate(CAMERAS)
        for light in LIGHTS
    ]
    assert images.dtype == np.uint8
    assert images.shape == (len(expected), 48, 48)
    assert (images == images[:, :1, :1]).all(), "what is flat stays flat"
    assert index.dtype == np.int64
    assert [(int(image[0, 0]), *row[1:]) for image, row in zip(images, index.tolist(), strict=True)] == expected
    assert facts == {
        "name": "multipie",
        "classes": ["neutral", "smile", "surprise", "squint", "disgust", "scream"],
        "views": ["-15", "0", "+15"],
        "lights": LIGHTS,
        "subjects": ["001", "004", "250", "346"],
        "aligned": False,
    }
    assert reported == [(done, len(expected)) for done in range(1, len(expected) + 1)]


def test_nobody_is_in_two_parts(result):
    _, index, *_ = result
    parts = sets.part_identities(4)
    assert (index[:, 0] == parts[index[:, 2]]).all()
    assert set(index[:, 0]) == {0, 1, 2}


def test_all_of_it_can_be_kept(result, tmp_path):
    images, index, facts, _ = result
    sets.save(tmp_path / "set", images, index, facts)
    loaded = {part: sets.load(tmp_path / "set", part) for part in sets.PARTS}
    assert sum(len(faces.images) for faces in loaded.values()) == len(images)
    for number, faces in enumerate(loaded.values()):
        np.testing.assert_array_equal(faces.images, images[index[:, 0] == number])
        np.testing.assert_array_equal(faces.labels, index[index[:, 0] == number, 1])
        np.testing.assert_array_equal(faces.lights, index[index[:, 0] == number, 4])
        assert facts.items() <= faces.facts.items()


def test_the_folder_data_itself_will_do(small):
    for one, other in zip(multipie.read(small), multipie.read(small / "data"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_points_the_middle_is_cut_out(small):
    image = np.zeros((480, 640), np.uint8)
    image[120:360, 200:440] = 90  # where faces are
    image[235:245, 300:310] = 255  # covers two pixels of 48 down and across
    replace(image_of(small, camera="05_0", light="07"), png(image))
    images, _, _ = multipie.read(small)
    face = images[2 * 20 + 7].astype(int)
    assert (face[[0, 0, -1, -1], [0, -1, 0, -1]] == 90).all()
    assert face[23:25, 20:22].tolist() == [[255, 255]] * 2
    assert (face[:21] == 90).all()
    assert (face[:, 25:] == 90).all()


@pytest.mark.parametrize("lost", [0, 19])
def test_a_hole_is_no_part_of_a_set(small, lost):
    path = image_of(small, "002", light=f"{lost:02}")
    path.unlink()
    image_of(small, "003", camera="05_0", light="11").unlink()
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(path))} is missing; in all, 2 images are.*complete the tree"
    ):
        multipie.read(small)


def test_a_camera_that_is_missing(small):
    shutil.rmtree(image_of(small, "002", camera="14_0").parent)
    with pytest.raises(ValueError, match="002_01_01_140_00.png is missing; in all, 20 images are.* 14_0, 05_1, 05_0: "):
        multipie.read(small)


def test_a_recording_that_is_empty(small):
    shutil.rmtree(image_of(small, "003").parents[1])
    image_of(small, "003").parents[1].mkdir()
    with pytest.raises(ValueError, match="003_01_01_140_00.png is missing; in all, 60 images are"):
        multipie.read(small)


def test_an_image_that_is_cut_off(small):
    path = image_of(small, "003", light="05")
    replace(path, path.read_bytes()[:50])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no image that can be read"):
        multipie.read(small)


@pytest.mark.parametrize("there", ["nothing", "data", "data/session01", "data/session01/multiview/001"])
def test_a_tree_without_images(tmp_path, there):
    root = tmp_path / "root"
    if there != "nothing":
        (root / there).mkdir(parents=True)
    wanted = "data/session01/multiview/001/01/05_1/001_01_01_051_00.png"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(str(root))} has no images of Multi-PIE.*{wanted}"):
        multipie.read(root)


def test_two_people_are_too_few(small):
    shutil.rmtree(image_of(small, "002").parents[2])
    with pytest.raises(ValueError, match=r"must have at least 3 subjects, one for each part; got \['001', '003'\]"):
        multipie.read(small)


# Of a face that leans a little, as x and y in an image of 160 x 120; a similarity takes them to `EYES` and `NOSE`.
PLACES = np.array([*EYES, NOSE])
TURN = 1.9 * np.array([[np.cos(0.2), np.sin(0.2)], [-np.sin(0.2), np.cos(0.2)]])
POINTS = ((PLACES - 24) @ TURN + (55, 75))[:, ::-1]


def spots(points, grey=250):
    """An image that is bright at its points."""
    y, x = np.indices((120, 160))
    light = sum(np.exp(-((x - at_x) ** 2 + (y - at_y) ** 2) / 18) for at_x, at_y in points)
    return (grey * np.minimum(light, 1)).round().astype(np.uint8)


def centre(face, place):
    """Where the light around a place has its centre."""
    rows, columns = np.indices(face.shape)
    weights = face * ((rows - place[0]) ** 2 + (columns - place[1]) ** 2 < 25)
    return np.array([(rows * weights).sum(), (columns * weights).sum()]) / weights.sum()


def is_aligned(face):
    return all(np.abs(centre(face, place) - place).max() < 0.2 for place in PLACES)


def lines(points):
    return "".join(f"{x:.3f} {y:.3f}\n" for x, y in points)


def all_points(points):
    """68 points of which the eyes are circles and the nose has a bridge."""
    left, right, nose = points
    circle = 2 * np.stack([np.cos(np.arange(6) * np.pi / 3), np.sin(np.arange(6) * np.pi / 3)], 1)
    full = np.full((68, 2), 3.0)
    full[36:42], full[42:48], full[30] = left + circle, right + circle, nose
    return full


def pts(points):
    return f"version: 1\nn_points: {len(points)}\n{{\n{lines(points)}}}\n"


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """A tree in which all faces have bright eyes and noses; those of 002 are farther down, and dim."""
    root = tmp_path_factory.mktemp("faces")
    bright, dim = png(spots(POINTS)), png(spots(POINTS + (3, 20), 120))
    build(root, SMALL, ["01"], lambda subject, *_: dim if subject == "002" else bright)
    return root


@pytest.fixture
def points(tmp_path):
    """A folder with points of all shots."""
    folder = tmp_path / "points"
    folder.mkdir()
    for subject in SMALL:
        for camera in ("140", "051", "050"):
            moved = POINTS + (3, 20) if subject == "002" else POINTS
            (folder / f"{subject}_01_01_{camera}.txt").write_text(lines(moved))
    return folder


def test_faces_are_aligned(faces, points):
    images, index, facts = multipie.read(faces, points)
    assert facts["aligned"] is True
    assert len(images) == 180
    for row in (0, 27, 59, 60, 119, 120, 179):
        assert is_aligned(images[row])
    assert images[60].max() < 130 < images[59].max(), "it is the face of 002"
    assert index[60].tolist()[1:] == [0, 1, 0, 0]
    assert not is_aligned(multipie.read(faces)[0][0]), "what points are for"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("001_01_01_051.txt", lines(all_points(POINTS))),
        ("001_01_01_051.pts", pts(all_points(POINTS))),
        ("001_01_01_051.pts", pts(POINTS)),
        ("001_01_01_051_00.txt", lines(POINTS)),
        ("001_01_01_051_07.pts", pts(POINTS).replace("\n", "\r\n")),
        ("001_01_01_051.txt", f"\n{lines(POINTS)}\n"),
    ],
)
def test_all_kinds_of_points(faces, points, name, content):
    (points / "001_01_01_051.txt").unlink()
    (points / name).write_text(content)
    images, _, _ = multipie.read(faces, points)
    assert all(is_aligned(images[20 + light]) for light in (0, 7, 19)), "one file is for all lights"


def test_an_image_with_points_of_its_own(faces, points):
    (points / "001_01_01_051_03.txt").write_text(lines(POINTS + (0, 12)))
    images, _, _ = multipie.read(faces, points)
    assert [is_aligned(images[20 + light]) for light in (0, 2, 3, 4)] == [True, True, False, True]


def test_points_for_some_faces_only(faces, points):
    (points / "002_01_01_051.txt").unlink()
    (points / "003_01_01_050.txt").unlink()
    missing = re.escape(str(points / "002_01_01_051.txt"))
    with pytest.raises(
        ValueError, match=f"^{missing} is missing.*; in all, 2 of 9 shots have none. Give points of all"
    ):
        multipie.read(faces, points)


def test_points_that_are_nowhere(faces, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"points must be a folder.* no folder {re.escape(str(tmp_path))}/lost"):
        multipie.read(faces, tmp_path / "lost")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "must have 3 or 68 lines of two numbers"),
        ("a.txt", lines(POINTS[:2]), r"must have 3 or 68 lines of two numbers, x and y; got .* \(2, 2\)"),
        ("a.txt", "1 2 3\n4 5 6\n7 8 9\n", r"must have 3 or 68 lines of two numbers, x and y; got .* \(3, 3\)"),
        ("a.txt", "1 2\n4\n7 8\n", "must have two numbers, x and y, on each line"),
        ("a.txt", "1 2\n4 five\n7 8\n", "must have two numbers, x and y, on each line: .*five"),
        ("a.txt", pts(POINTS), "must have two numbers, x and y, on each line"),
        ("a.txt", lines(POINTS[[1, 0, 2]]), "must have the eye on the left of the image first"),
        ("a.txt", lines(POINTS * (1, -1)), "must have the eye on the left of the image first.*nose, below them"),
        ("a.txt", "nan 10\n20 10\n15 20\n", "must have the eye on the left of the image first"),
        ("a.pts", lines(POINTS), "must have its points between braces; put a whole file there"),
        ("a.pts", pts(POINTS)[:-3], "must have its points between braces; put a whole file there"),
    ],
)
def test_files_that_have_no_points(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} {message}"):
        multipie.read_points(path)


@pytest.mark.parametrize("shift", [(-60, 0), (90, 0), (0, -60), (0, 80), [(0, 0), (0, 0), (0, np.inf)]])
def test_points_outside_of_the_image(faces, points, shift):
    path = points / "002_01_01_140.txt"
    path.write_text(lines(POINTS + shift))
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(path))} must have places inside of .*_140_00.png.* 160 x 120"
    ):
        multipie.read(faces, points)
