"""The schedules of glimpses: where, in which order, and what is seen there."""

import pytest
import torch

from fastweights.tasks.glimpses import SCHEDULES, make_schedule, translate


def by_hand(images, glimpse, patch):
    """A region cut out and averaged, pixel by pixel."""
    factor = glimpse.size // patch
    found = torch.empty(len(images), patch, patch)
    for i in range(patch):
        for j in range(patch):
            top, left = glimpse.top + i * factor, glimpse.left + j * factor
            found[:, i, j] = images[:, top : top + factor, left : left + factor].mean((1, 2))
    return found.flatten(1)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("image", "patch"), [(28, 7), (48, 12), (4, 1), (16, 2)])
def test_glimpses_are_the_regions_they_say(name, image, patch):
    schedule, images = make_schedule(image, patch, name), torch.rand(3, image, image)
    seen = schedule.look(images)
    assert len(seen) == len(schedule.glimpses) == {"return": 24, "once": 20, "three levels": 26}[name]
    for found, glimpse in zip(seen, schedule.glimpses, strict=True):
        torch.testing.assert_close(found, by_hand(images, glimpse, patch))


def test_every_pixel_is_seen_once_in_detail():
    schedule = make_schedule(28, 7)
    count = torch.zeros(28, 28)
    for glimpse in schedule.glimpses:
        if glimpse.size == 7:
            count[glimpse.top : glimpse.top + 7, glimpse.left : glimpse.left + 7] += 1
    assert (count == 1).all()


def test_details_belong_to_the_quadrant_before_them():
    for glimpses in [make_schedule(28, 7).glimpses[n : n + 6] for n in range(0, 24, 6)]:
        first, *details, last = glimpses
        assert first.store
        assert last.integrate
        assert first[:3] == last[:3]
        assert not any(detail.store or detail.integrate for detail in details)
        places = {(detail.top - first.top, detail.left - first.left) for detail in details}
        assert places == {(0, 0), (0, 7), (7, 0), (7, 7)}


def test_signals():
    signals = make_schedule(28, 7).signals()
    quadrant = {"store": [1, 0, 0, 0, 0, 0], "wipe": [0, 1, 0, 0, 0, 0], "integrate": [0, 0, 0, 0, 0, 1]}
    for place, (name, steps) in enumerate(quadrant.items()):
        assert getattr(signals, name).tolist() == [bool(step) for step in 4 * steps]
        assert signals.inputs[:, place].tolist() == 4 * steps
    assert signals.inputs[:, 3].tolist() == 4 * [1, 2, 2, 2, 2, 1]
    assert signals.inputs[7, 4:].tolist() == [0.0, 0.5]
    assert signals.inputs[-2, 4:].tolist() == [0.75, 0.75]


def test_three_levels_start_and_end_with_all_of_it():
    schedule = make_schedule(28, 7, "three levels")
    assert schedule.glimpses[1:-1] == make_schedule(28, 7).glimpses
    assert schedule.glimpses[0][:3] == schedule.glimpses[-1][:3] == (0, 0, 28)
    assert schedule.signals().inputs[:, 3].tolist() == [0, *4 * [1, 2, 2, 2, 2, 1], 0]


def test_a_shift_moves_images_by_whole_pixels_each_by_its_own():
    image = torch.zeros(9, 9)
    image[3:6, 3:6] = torch.arange(1.0, 10).view(3, 3)
    moved = translate(image.expand(400, 9, 9), 2, torch.Generator().manual_seed(0))
    expected = {
        (down, right): torch.roll(image, (down, right), (0, 1)) for down in range(-2, 3) for right in range(-2, 3)
    }
    seen = {place for place, wanted in expected.items() for each in moved if torch.equal(each, wanted)}
    assert seen == set(expected)
    assert all(any(torch.equal(each, wanted) for wanted in expected.values()) for each in moved)


def test_what_leaves_the_image_is_gone_and_black_comes_in():
    moved = translate(torch.ones(100, 4, 4), 2, torch.Generator().manual_seed(0))
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    assert {int(each.sum()) for each in moved} == {4, 6, 8, 9, 12, 16}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((27, 7), r"image must be a multiple of 4 patches \(28\), got 27"),
        ((28, 0), "patch must be at least 1, got 0"),
        ((28, 7, "twice"), "name must be one of 'return', 'once', 'three levels'; got 'twice'"),
    ],
)
def test_schedules_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(*arguments)


@pytest.mark.parametrize("shape", [(2, 28, 27), (28, 28), (2, 1, 28, 28)])
def test_images_that_the_schedule_cannot_divide(shape):
    with pytest.raises(ValueError, match=r"images must be \(B, 28, 28\) for this schedule, got"):
        make_schedule(28, 7).look(torch.zeros(shape))
