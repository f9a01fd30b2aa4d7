"""A set of faces is loaded as it was saved, or not at all; people are parted the same way for everybody."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from fastweights.tasks.faces import sets

IMAGES = np.random.default_rng(0).integers(0, 256, (9, 48, 48), dtype=np.uint8)
#                  part, label, identity, view, light
INDEX = np.array(
    [
        [2, 0, 4, 0, 1],
        [0, 1, 0, 1, 0],
        [1, 2, 3, 1, 1],
        [0, 2, 1, 0, 0],
        [2, 1, 4, 1, -1],
        [0, 0, 0, -1, 1],
        [1, 1, -1, 0, 0],
        [0, 1, 400, 0, 1],
        [2, 2, 5, 1, 0],
    ]
)
FACTS = {"classes": ["sad", "glad", "mad"], "views": ["left", "right"], "lights": ["dim", "bright"], "note": "small"}


@pytest.fixture
def folder(tmp_path):
    """Where a set has been saved."""
    folder = tmp_path / "faces" / "small"
    sets.save(folder, IMAGES, INDEX, FACTS)
    return folder


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_is_loaded_as_it_was_saved(folder, part):
    faces = sets.load(folder, ("train", "validation", "test")[part])
    rows = INDEX[INDEX[:, 0] == part]
    assert faces.images.dtype == torch.uint8
    assert np.array_equal(faces.images, IMAGES[INDEX[:, 0] == part]), "in the same order"
    for number, column in enumerate((faces.labels, faces.identities, faces.views, faces.lights), 1):
        assert column.dtype == torch.int64
        assert column.tolist() == rows[:, number].tolist()
    assert FACTS.items() <= faces.facts.items()
    assert faces.facts == sets.load_facts(folder)


def test_the_images_stay_in_the_file(monkeypatch, folder):
    arrays, from_numpy = [], torch.from_numpy
    monkeypatch.setattr(sets.torch, "from_numpy", lambda array: arrays.append(array) or from_numpy(array))
    before = (folder / "images.npy").read_bytes()
    faces = sets.load(folder, "train")
    assert [array.shape for array in arrays if isinstance(array, np.memmap)] == [(4, 48, 48)]
    faces.images.zero_()  # which nobody should do
    assert (folder / "images.npy").read_bytes() == before


def test_nothing_else_is_written(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["images.npy", "index.npy", "set.json"]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_set_is_replaced(folder):
    sets.save(folder, IMAGES[:2] // 2, INDEX[:2], {**FACTS, "note": "new"})
    assert np.array_equal(sets.load(folder, "train").images, IMAGES[1:2] // 2)
    assert sets.load(folder, "validation").images.shape == (0, 48, 48)
    assert sets.load_facts(folder)["note"] == "new"
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("moment", ["facts", "files", "name"])
def test_a_failure_leaves_what_was_there(monkeypatch, folder, moment):
    def fail(*_):
        raise OSError("disk is full")

    facts = FACTS
    if moment == "facts":
        facts = {**FACTS, "note": object()}
    elif moment == "files":
        monkeypatch.setattr(sets.np, "save", fail)
    else:
        monkeypatch.setattr(sets.os, "fsync", fail)
    with pytest.raises((OSError, TypeError)):
        sets.save(folder, IMAGES // 2, INDEX, facts)
    assert np.array_equal(sets.load(folder, "train").images, IMAGES[INDEX[:, 0] == 0])
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_of_something_else_is_not_replaced(folder):
    (folder / "diary.txt").write_text("of ten years")
    with pytest.raises(
        ValueError, match=f"folder must be of this set alone, .*; {re.escape(str(folder))} has diary.txt"
    ):
        sets.save(folder, IMAGES, INDEX, FACTS)
    assert (folder / "diary.txt").read_text() == "of ten years"


def test_an_empty_folder_will_do(tmp_path):
    sets.save(tmp_path, IMAGES, INDEX, FACTS)
    assert len(sets.load(tmp_path, "test").images) == 3


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES.astype(np.float32), r"images must be \(count, 48, 48\) uint8, got \(9, 48, 48\) float32"),
        (IMAGES[:, :47], r"images must be \(count, 48, 48\) uint8, got \(9, 47, 48\) uint8"),
        (IMAGES[0], r"images must be \(count, 48, 48\) uint8, got \(48, 48\) uint8"),
        (IMAGES[1:], r"index must be \(8, 5\), got \(9, 5\)"),
    ],
)
def test_images_that_are_none(tmp_path, images, message):
    with pytest.raises(ValueError, match=message):
        sets.save(tmp_path / "set", images, INDEX, FACTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 3, "part must be from 0 to 2, got 0 to 3"),
        (0, -1, "part must be from 0 to 2, got -1 to 2"),
        (1, 3, "label must be from 0 to 2, got 0 to 3"),
        (1, -1, "label must be from 0 to 2, got -1 to 2"),
        (2, -2, "identity must be -1 or more, got -2 to 400"),
        (3, 2, "view must be from -1 to 1, got -1 to 2"),
        (3, -2, "view must be from -1 to 1, got -2 to 1"),
        (4, 2, "light must be from -1 to 1, got -1 to 2"),
    ],
)
def test_columns_that_count_what_is_not_there(tmp_path, column, value, message):
    index = INDEX.copy()
    index[3, column] = value
    with pytest.raises(ValueError, match=f"^{message}$"):
        sets.save(tmp_path / "set", IMAGES, index, FACTS)


def test_an_index_with_other_columns(tmp_path):
    with pytest.raises(ValueError, match=r"index must be \(9, 5\), got \(9, 4\)"):
        sets.save(tmp_path / "set", IMAGES, INDEX[:, :4], FACTS)


def test_facts_that_lack_something(tmp_path):
    with pytest.raises(ValueError, match="facts must have classes, views and lights; it lacks lights, views"):
        sets.save(tmp_path / "set", IMAGES, INDEX, {"classes": FACTS["classes"]})


@pytest.mark.parametrize("file", ["images.npy", "index.npy"])
@pytest.mark.parametrize("change", ["altered", "cut off"])
def test_files_that_are_not_as_saved(folder, file, change):
    path = folder / file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + (b"" if change == "cut off" else bytes([content[-1] ^ 1])))
    for part in sets.PARTS:
        with pytest.raises(
            ValueError, match=rf"^{re.escape(str(path))} is altered: .*; delete {re.escape(str(folder))}$"
        ):
            sets.load(folder, part)


@pytest.mark.parametrize("file", ["images.npy", "index.npy"])
def test_files_that_are_gone(folder, file):
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(folder / file))):
        sets.load(folder, "train")


@pytest.mark.parametrize("gone", ["the folder", "set.json"])
def test_a_folder_without_a_set(folder, gone):
    if gone == "set.json":
        (folder / gone).unlink()
    else:
        shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match=f"there is no set of faces in {re.escape(str(folder))}: "):
        sets.load(folder, "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b'{"classes": ', "Expecting value"),
        (b"\xff\xfe", "codec can't decode"),
        (b"3", "not iterable"),
        (b"[1, 2]", "sequence"),
        (b'["abc"]', "length 3"),
        (b"{}", "it lacks classes, lights, sha256, views"),
        (json.dumps(FACTS).encode(), "it lacks sha256"),
    ],
)
def test_facts_that_are_damaged(folder, content, message):
    path = folder / "set.json"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))} is damaged: .*{message}.*; delete {re.escape(str(folder))}$"
    ):
        sets.load_facts(folder)


def test_a_part_that_is_not_there(folder):
    with pytest.raises(ValueError, match="part must be one of 'train', 'validation', 'test'; got 'dev'"):
        sets.load(folder, "dev")


@pytest.mark.parametrize(
    ("count", "validation", "test"), [(3, 1, 1), (9, 1, 1), (10, 2, 2), (99, 19, 19), (100, 30, 20), (337, 30, 20)]
)
def test_so_many_people_are_in_each_part(count, validation, test):
    parts = sets.part_identities(count)
    assert parts.dtype == np.int64
    assert np.bincount(parts).tolist() == [count - validation - test, validation, test]


def test_people_are_parted_the_same_way_for_everybody():
    assert sets.part_identities(10).tolist() == [0, 1, 2, 0, 0, 2, 1, 0, 0, 0]
    parts = sets.part_identities(337)
    assert np.flatnonzero(parts == 2)[:5].tolist() == [14, 26, 63, 65, 89]
    assert np.flatnonzero(parts == 1)[:5].tolist() == [9, 16, 21, 23, 28]


@pytest.mark.parametrize("count", [2, 0, -1])
def test_too_few_people(count):
    with pytest.raises(ValueError, match=f"count must be at least 3, one identity for each part; got {count}"):
        sets.part_identities(count)


def test_sets_are_kept_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sets.folder_of("multipie") == tmp_path / "fastweights" / "faces" / "multipie"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sets.folder_of("fer") == tmp_path / "home" / ".cache" / "fastweights" / "faces" / "fer"
