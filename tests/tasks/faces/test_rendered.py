"""PIE-3D: faces as Multi-PIE would have them, the same for everybody, whole or not there at all."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fastweights.tasks.faces import facekit, people, rendered, sets
from fastweights.tasks.faces.rendered import EXPRESSIONS, FLASHES, Set

real = Path(os.environ.get("FASTWEIGHTS_DATA", "nowhere"), facekit.FILE)
needs_model = pytest.mark.skipif(
    not real.is_file(), reason=f"FASTWEIGHTS_DATA is not set to a folder with {facekit.FILE}"
)
pytest.importorskip("embreex", reason="the extra `faces` is not installed")
STILL = np.zeros(3)


@pytest.fixture(scope="module")
def model():
    return facekit.load()


def scene_of(model, expression, identity=3, triangles=None):
    random = np.random.default_rng(identity)
    person = people.make_person(model, random)._replace(strength=dict.fromkeys(EXPRESSIONS, 1.0), asymmetry=0.0)
    return rendered.make_scene(model, person, expression, rendered.triangles_of(model), random)


def photograph(scene, view=0.0, jitter=STILL):
    return rendered.photograph(scene, view, jitter, 1.0, 0.1, np.random.default_rng(0)).astype(float)


def test_labels_are_as_frequent_as_in_multi_pie():
    labels = rendered.deal(Set())
    assert labels.shape == (337, 6)
    shares = np.bincount(labels.flatten(), minlength=6) / labels.size
    expected = np.array([1160, 479, 203, 203, 230, 239]) / 2514
    np.testing.assert_allclose(shares, expected, atol=1 / labels.size)
    assert not (np.sort(labels[0]) == np.sort(labels[1:])).all()


def test_no_identity_is_on_two_sides():
    index = rendered.index_of(Set())
    assert len(index) == 337 * 6 * 3 * 20 == 121_320
    sides = [set(index[index[:, 0] == part, 2]) for part in range(3)]
    assert [*map(len, sides)] == [287, 30, 20]
    assert len(set.union(*sides)) == 337
    # Every image of a take has the label of the take.
    takes = index.reshape(337, 6, 60, 5)
    assert (takes[..., 1] == takes[:, :, :1, 1]).all()
    assert {tuple(pair) for pair in takes[0, 0, :, 3:]} == {(view, light) for view in range(3) for light in range(20)}


@pytest.mark.parametrize(
    ("hyperparameters", "message"), [({"identities": 2}, "identities must be at least 3"), ({"seed": -1}, "seed")]
)
def test_bad_sets(hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        Set(**hyperparameters)


def test_squint_and_disgust_overlap():
    shared = set(people.RECIPES["squint"]) & set(people.RECIPES["disgust"])
    assert {"eyeSquint", "browDown", "noseSneer"} <= shared
    assert set(people.RECIPES) == set(EXPRESSIONS)


def test_rotations_keep_lengths_and_turn_the_way_they_say():
    matrix = rendered.rotation(20, -10, 5)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix) == pytest.approx(1)
    assert (rendered.rotation(0, 30, 0) @ (0, 0, 1))[1] > 0  # a nod upwards
    assert (rendered.rotation(0, 0, 30) @ (1, 0, 0))[1] > 0


def test_rays_meet_triangles_where_their_corners_say():
    random = np.random.default_rng(0)
    corners, weights = random.normal(size=(50, 3, 3)), random.dirichlet(np.ones(3), 50)
    forward = np.array((0.6, 0.0, -0.8))
    points = np.einsum("rc,rcx->rx", weights, corners)
    found = rendered.barycentric(corners, points - 7 * forward, forward)
    np.testing.assert_allclose(found, weights, atol=1e-8)


@needs_model
def test_the_same_seed_gives_the_same_faces(model):
    one = rendered.render_identity(model, Set(), 5)
    assert one.shape == (6, 3, 20, 48, 48)
    np.testing.assert_array_equal(one, rendered.render_identity(model, Set(), 5))
    assert np.abs(one - rendered.render_identity(model, Set(seed=1), 5).astype(float)).mean() > 5
    assert np.abs(one - rendered.render_identity(model, Set(), 6).astype(float)).mean() > 5


@needs_model
def test_light_falls_from_where_the_flash_is(model):
    images = photograph(scene_of(model, "neutral"))
    left, right = FLASHES.index((-75.0, 5.0)), FLASHES.index((75.0, 5.0))  # of the face: the image has it on the right
    bright = images[:, 10:35, 26:38].mean((1, 2)) - images[:, 10:35, 10:22].mean((1, 2))
    assert bright[right] > 20
    assert bright[left] < -20
    assert images[-1].mean() < images[FLASHES.index((0.0, 5.0))].mean()


@needs_model
def test_shadows_are_cast(model):
    scene = scene_of(model, "neutral")

    class Transparent:
        intersects_first = staticmethod(scene.rays.intersects_first)

        @staticmethod
        def intersects_any(start, towards):
            return np.zeros(len(start), dtype=bool)

    flash = FLASHES.index((60.0, 5.0))
    with_shadows, without = photograph(scene)[flash], photograph(scene._replace(rays=Transparent))[flash]
    darker = (without - with_shadows)[12:36, 12:36] > 15
    assert 0.02 < darker.mean() < 0.5
    assert not ((without - with_shadows) < -15).any()


@needs_model
def test_eyes_and_nose_stay_where_they_are_when_the_head_moves(model):
    scene = scene_of(model, "neutral")
    straight = photograph(scene)[-1]
    tilted = photograph(scene, jitter=np.array((0.0, 0.0, 12.0)))[-1]
    inner = np.s_[12:30, 10:38]
    assert np.corrcoef(straight[inner].flatten(), tilted[inner].flatten())[0, 1] > 0.9


@needs_model
def test_a_camera_at_the_side_sees_the_head_turned(model):
    scene = scene_of(model, "neutral")
    far = [photograph(scene, view)[-1] for view in (-15.0, 15.0)]
    straight = photograph(scene)[-1]
    for image in far:
        assert np.abs(image - straight).mean() > 5
    # As in a mirror, but for the asymmetry of the person and of the room.
    assert np.abs(far[0] - far[1][:, ::-1]).mean() < np.abs(far[0] - far[1]).mean()


@needs_model
def test_expressions_show(model):
    mouth, front = np.s_[31:44, 17:31], FLASHES.index((0.0, 5.0))
    images = {name: photograph(scene_of(model, name))[front] for name in EXPRESSIONS}
    assert images["scream"][mouth].min() < images["neutral"][mouth].min() - 40
    for name in set(EXPRESSIONS) - {"neutral"}:
        assert np.abs(images[name] - images["neutral"]).mean() > 2


@needs_model
def test_a_set_is_rendered_once_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    which, reported = Set(identities=3), []
    folder = rendered.render(which, 2, lambda done, of: reported.append((done, of)))
    assert reported == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [path.name for path in folder.parent.iterdir()] == ["rendered-3"]
    parts = {part: sets.load(folder, part) for part in sets.PARTS}
    assert [len(part.labels) for part in parts.values()] == [360, 360, 360]
    identity = int(parts["test"].identities[0])
    expected = rendered.render_identity(facekit.load(), which, identity)
    np.testing.assert_array_equal(parts["test"].images.numpy(), expected.reshape(-1, 48, 48))
    assert parts["test"].labels[::60].tolist() == rendered.deal(which)[identity].tolist()
    monkeypatch.setattr(rendered, "ProcessPoolExecutor", None)
    assert rendered.render(which, 1) == folder
    # A set of pictures that are made otherwise by now is rendered again.
    monkeypatch.setattr(rendered, "VERSION", -1)
    with pytest.raises(TypeError, match="NoneType"):
        rendered.render(which, 1)


PROGRAM = """
import sys
from fastweights.tasks.faces import rendered
if __name__ == "__main__":
    rendered.render(rendered.Set(identities=4), int(sys.argv[1]))
"""


@needs_model
def test_a_rendering_that_was_killed_goes_on_and_a_half_is_never_taken_for_a_whole(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def start(name, workers):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)}
        return subprocess.Popen([sys.executable, str(program), workers], env=environment, start_new_session=True)

    process, faces = start("killed", "1"), tmp_path / "killed/fastweights/faces"
    while not (done := list(faces.glob(".rendered-4-*/*.npy"))):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(done) < 4
    with pytest.raises(FileNotFoundError, match="there is no set of faces in .*rendered-4: `fastweights faces render`"):
        sets.load(faces / "rendered-4", "train")
    written = done[0].stat().st_mtime_ns
    process = start("killed", "2")
    while process.poll() is None:
        if done[0].exists():
            assert done[0].stat().st_mtime_ns == written  # it is not rendered again
        time.sleep(0.05)
    assert process.returncode == 0
    assert start("whole", "2").wait() == 0
    files = [tmp_path / name / "fastweights/faces/rendered-4/images.npy" for name in ("killed", "whole")]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
