"""Eyes and noses end where they should, whatever the photograph; files that are no photographs are named."""

import re

import numpy as np
import pytest
from PIL import Image

from fastweights.tasks.faces import alignment
from fastweights.tasks.faces.alignment import EYES, NOSE, align, read_grey, similarity

PLACES = np.array([*EYES, NOSE])
RNG = np.random.default_rng(0)


def turned(points, degrees, scale, shift):
    """Points turned about the origin, scaled and moved."""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return scale * points @ np.array([[cos, sin], [-sin, cos]]) + shift


def with_spots(shape, places, width):
    """A dark image with a bright spot at each place."""
    rows, columns = np.indices(shape)
    light = sum(np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * width**2)) for row, column in places)
    return (250 * np.minimum(light, 1)).round().astype(np.uint8)


def spot(image, place):
    """Where the light around a place of a face has its centre."""
    rows, columns = np.indices(image.shape)
    near = (rows - place[0]) ** 2 + (columns - place[1]) ** 2 < 6**2
    weights = image * near
    return np.array([(rows * weights).sum(), (columns * weights).sum()]) / weights.sum()


@pytest.mark.parametrize("seed", range(5))
def test_a_similarity_is_found_again(seed):
    rng = np.random.default_rng(seed)
    source, degrees, scale, shift = (
        rng.normal(size=(3, 2)),
        rng.uniform(0, 360),
        rng.uniform(0.1, 9),
        rng.normal(size=2),
    )
    matrix = similarity(source, turned(source, degrees, scale, shift))
    assert matrix.shape == (2, 3)
    np.testing.assert_allclose(
        source @ matrix[:, :2].T + matrix[:, 2], turned(source, degrees, scale, shift), atol=1e-9
    )
    assert np.linalg.det(matrix[:, :2]) == pytest.approx(scale**2)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_solution_of_least_squares(seed):
    source, target = np.random.default_rng(seed).normal(size=(2, 3, 2))
    # For the unknowns a, b, row and column of ((a, -b, row), (b, a, column)).
    ones, zeros = np.ones(3), np.zeros(3)
    rows = np.stack([source[:, 0], -source[:, 1], ones, zeros], 1)
    columns = np.stack([source[:, 1], source[:, 0], zeros, ones], 1)
    a, b, row, column = np.linalg.lstsq(np.concatenate([rows, columns]), target.T.ravel(), rcond=None)[0]
    np.testing.assert_allclose(similarity(source, target), [[a, -b, row], [b, a, column]], atol=1e-9)


def test_it_never_mirrors():
    source = np.array([[0.0, 0], [0, 10], [3, 5]])
    matrix = similarity(source, source * (1, -1))
    assert np.linalg.det(matrix[:, :2]) > 0


def test_places_are_the_same_in_a_mirror():
    (left_row, left), (right_row, right) = EYES
    assert (left_row, left) == (right_row, 47 - right)
    assert NOSE[1] == 47 - NOSE[1]


def test_a_face_that_is_aligned_stays_as_it_is():
    image = RNG.integers(0, 256, (48, 48), dtype=np.uint8)
    face = align(image, PLACES)
    assert (face.shape, face.dtype) == ((48, 48), np.uint8)
    np.testing.assert_array_equal(face, image)


def test_places_that_are_not_exact_numbers_do_not_blur_it(monkeypatch):
    places = np.array([(16.1, 15.3), (16.1, 31.7), (25.5, 23.5)])
    monkeypatch.setattr(alignment, "EYES", places[:2])
    monkeypatch.setattr(alignment, "NOSE", places[2])
    points = 4 * places + 1.5
    assert np.hypot(*similarity(points, places)[:, 0]) < 1 / 4, "by as little as can be"
    image = RNG.integers(0, 256, (192, 192), dtype=np.uint8)
    assert np.abs(align(image, points) - image.reshape(48, 4, 48, 4).mean((1, 3))).max() < 0.501


def test_whole_pixels_are_only_moved():
    image = RNG.integers(0, 256, (60, 70), dtype=np.uint8)
    np.testing.assert_array_equal(align(image, PLACES + (7, 11)), image[7:55, 11:59])


def test_a_turn_by_a_quarter():
    image = RNG.integers(0, 256, (48, 48), dtype=np.uint8)
    turned_points = np.stack([47 - PLACES[:, 1], PLACES[:, 0]], 1)
    np.testing.assert_array_equal(align(np.rot90(image), turned_points), image)


@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_a_face_so_many_times_as_large_is_averaged(times):
    image = RNG.integers(0, 256, (48 * times, 48 * times), dtype=np.uint8)
    face = align(image, times * PLACES + (times - 1) / 2)
    means = image.reshape(48, times, 48, times).mean((1, 3))
    assert np.abs(face - means).max() < 0.501


@pytest.mark.parametrize(("degrees", "scale"), [(0, 0.7), (0, 3.7), (20, 1.3), (-35, 2.6), (180, 3)])
def test_eyes_and_nose_are_put_in_place(degrees, scale):
    points = turned(PLACES - 24, degrees, scale, (130.3, 140.8))
    face = align(with_spots((260, 280), points, 1.5 * scale), points)
    for place in PLACES:
        np.testing.assert_allclose(spot(face, place), place, atol=0.1)


def test_a_face_of_other_proportions_is_put_as_near_as_can_be():
    points = 3 * PLACES + (20, 30)
    points[2, 0] += 9  # a long nose
    face = align(with_spots((200, 220), points, 4), points)
    found = np.array([spot(face, place) for place in PLACES])
    matrix = similarity(points, PLACES)
    np.testing.assert_allclose(found, points @ matrix[:, :2].T + matrix[:, 2], atol=0.15)
    assert np.abs(found - PLACES).max() > 0.5


@pytest.mark.parametrize("scale", [2.0, 3.7, 5.3])
def test_fine_patterns_become_grey(scale):
    board = (255 * (np.indices((300, 300)).sum(0) % 2)).astype(np.uint8)
    face = align(board, scale * PLACES + 5)
    assert np.abs(face - 127.5).max() < 8


def test_outside_of_the_image_it_is_black():
    face = align(np.full((48, 48), 200, np.uint8), PLACES - (0, 10))
    assert (face[:, :9] == 0).all()
    assert (face[:, 11:] == 200).all()


@pytest.mark.parametrize("points", [[[5, 5]] * 3, [[5, 5], [5, 9], [np.nan, 7]]])
def test_points_that_do_not_lie_apart(points):
    with pytest.raises(ValueError, match=r"source must have at least two points that lie apart; got \[\[5.0, 5.0\], "):
        align(np.zeros((48, 48), np.uint8), np.array(points, dtype=float))


def test_points_that_no_turn_makes_more_like_a_face():
    face = (PLACES - PLACES.mean(0)) @ (1, 1j)
    other = face.conj() - face * np.vdot(face, face.conj()) / np.vdot(face, face)
    with pytest.raises(ValueError, match="points must be two eyes and a nose below them, which lie apart; got"):
        align(np.zeros((48, 48), np.uint8), np.stack([other.real, other.imag], 1) + 24)


def test_grey_is_read_as_it_is(tmp_path):
    image = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    found = read_grey(tmp_path / "a.png")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, image)


def test_colours_become_grey(tmp_path):
    colours = np.array([[(255, 0, 0), (0, 255, 0)], [(0, 0, 255), (255, 255, 255)]], dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    assert read_grey(tmp_path / "a.png").tolist() == [[76, 150], [29, 255]]


@pytest.mark.parametrize("left", [0, 5, 30, 45, 500, 1500])
def test_an_image_that_is_cut_off(tmp_path, left):
    path = tmp_path / "a.png"
    Image.fromarray(RNG.integers(0, 256, (48, 48), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    assert len(whole) > 2000
    path.write_bytes(whole[:left])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no image that can be read: .*; put the original"):
        read_grey(path)


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_a_file_that_is_no_image(tmp_path, content):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no image that can be read"):
        read_grey(path)


def test_an_image_with_a_broken_part(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(RNG.integers(0, 256, (300, 300), dtype=np.uint8)).save(path)
    parts = path.read_bytes().split(b"IDAT")
    assert len(parts) > 2
    path.write_bytes(b"IDAT".join(parts[:-1]) + b"\x01DAT" + parts[-1])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no image that can be read: broken PNG file"):
        read_grey(path)


@pytest.mark.parametrize("mode", ["RGBA", "I;16", "1", "P"])
def test_images_of_other_kinds(tmp_path, mode):
    path = tmp_path / "a.png"
    Image.new(mode, (4, 4)).save(path)
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(path))} .* grey or RGB, of a byte each, got the mode {mode}"
    ):
        read_grey(path)


def test_an_image_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "a.png"))):
        read_grey(tmp_path / "a.png")
