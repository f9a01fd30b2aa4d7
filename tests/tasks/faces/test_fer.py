"""FER2013 and FER+ are read in all forms in which they are published; a line or file that is wrong is named."""

import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fastweights.tasks.faces import fer, sets

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, 48, 48), dtype=np.uint8)
EMOTIONS = [3, 0, 6, 2, 5, 1, 4]
USAGES = ["Training", "Training", "Training", "PublicTest", "PrivateTest", "Training", "PrivateTest"]
PARTS = [0, 0, 0, 1, 2, 0, 2]
PIXELS = [" ".join(map(str, image.ravel().tolist())) for image in IMAGES]
LINES = [f"{emotion},{pixels},{usage}" for emotion, pixels, usage in zip(EMOTIONS, PIXELS, USAGES, strict=True)]
HEADER = "emotion,pixels,Usage"
VOTES_HEADER = "Usage,Image name,neutral,happiness,surprise,sadness,anger,disgust,fear,contempt,unknown,NF"
VOTES = [
    "Training,fer0000000.png,0,6,4,0,0,0,0,0,0,0",
    "Training,fer0000001.png,4,0,0,4,1,0,0,0,1,0",  # a tie
    "Training,,0,0,0,0,0,0,0,0,0,10",  # not a face
    "PublicTest,fer0000003.png,1,1,1,0,0,0,0,4,3,0",
    "PrivateTest,fer0000004.png,2,0,0,0,3,0,0,0,5,0",  # unknown
    "Training,fer0000005.png,3,0,0,0,0,0,0,0,3,4",  # not a face, for most
    "PrivateTest,fer0000006.png,0,0,0,0,0,0,10,0,0,0",
]


def table(path, header=HEADER, lines=LINES):
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def votes_table(path, lines=VOTES, header=VOTES_HEADER):
    return table(path, header, lines)


def changed(lines, at, line):
    return [*lines[:at], line, *lines[at + 1 :]]


def test_the_table(tmp_path):
    images, index, facts = fer.read(table(tmp_path / "fer2013.csv"))
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, IMAGES)
    assert index.dtype == np.int64
    assert index.tolist() == [[part, label, -1, -1, -1] for part, label in zip(PARTS, EMOTIONS, strict=True)]
    assert facts == {
        "name": "fer2013",
        "classes": ["angry", "disgust", "fear", "happy", "sad", "surprise", "neutral"],
        "views": [],
        "lights": [],
        "left_out": 0,
    }


def test_the_table_of_the_challenge(tmp_path):
    lines = [f"{emotion},{usage},{pixels}" for emotion, pixels, usage in zip(EMOTIONS, PIXELS, USAGES, strict=True)]
    first, second = (
        fer.read(table(tmp_path / name, *content))
        for name, *content in (["a.csv"], ["icml_face_data.csv", "emotion, Usage, pixels", lines])
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_quotes_and_other_ends_of_lines_are_fine(tmp_path):
    path = tmp_path / "fer2013.csv"
    quoted = [line.replace(",", ',"', 1).replace(",P", '",P').replace(",T", '",T') for line in LINES]
    assert quoted[0].startswith('3,"')
    path.write_bytes("\r\n".join([HEADER, *quoted]).encode())
    np.testing.assert_array_equal(fer.read(path)[0], IMAGES)


def test_how_far_it_is(tmp_path):
    reported = []
    path = table(tmp_path / "fer2013.csv")
    fer.read(path, report=lambda *numbers: reported.append(numbers))
    done = [numbers[0] for numbers in reported]
    assert len(reported) == 7
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] == path.stat().st_size
    assert {numbers[1] for numbers in reported} == {path.stat().st_size}


def test_it_can_be_kept(tmp_path):
    sets.save(tmp_path / "set", *fer.read(table(tmp_path / "fer2013.csv")))
    for number, part in enumerate(sets.PARTS):
        faces = sets.load(tmp_path / "set", part)
        of_part = np.array(PARTS) == number
        np.testing.assert_array_equal(faces.images, IMAGES[of_part])
        assert faces.labels.tolist() == np.array(EMOTIONS)[of_part].tolist()
        assert set(faces.identities.tolist() + faces.views.tolist() + faces.lights.tolist()) == {-1}


def test_votes(tmp_path):
    images, index, facts = fer.read(table(tmp_path / "fer2013.csv"), votes_table(tmp_path / "fer2013new.csv"))
    np.testing.assert_array_equal(images, IMAGES[[0, 3, 6]])
    assert index.tolist() == [[0, 1, -1, -1, -1], [1, 7, -1, -1, -1], [2, 6, -1, -1, -1]]
    assert (facts["name"], facts["left_out"]) == ("ferplus", 4)
    assert facts["classes"] == VOTES_HEADER.split(",")[2:10]


def plus_folder(path):
    """As the script of FER+ lays it out: the images of VOTES that have a name, in a folder for each use."""
    names = {"Training": "FER2013Train", "PublicTest": "FER2013Valid", "PrivateTest": "FER2013Test"}
    for number, line in enumerate(VOTES):
        usage, name, *votes = line.split(",")
        folder = path / names[usage]
        folder.mkdir(parents=True, exist_ok=True)
        if name:
            Image.fromarray(IMAGES[number]).save(folder / name)
            with (folder / "label.csv").open("a") as file:
                file.write(f'{name},"(0, 0, 48, 48)",{",".join(votes)}\n')
    return path


def test_the_folder_of_fer_plus(tmp_path):
    images, index, facts = fer.read(plus_folder(tmp_path))
    np.testing.assert_array_equal(images, IMAGES[[0, 3, 6]])
    assert index.tolist() == [[0, 1, -1, -1, -1], [1, 7, -1, -1, -1], [2, 6, -1, -1, -1]]
    assert (facts["name"], facts["left_out"]) == ("ferplus", 3)
    assert facts["classes"] == VOTES_HEADER.split(",")[2:10]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png,4,0", "must be the name of an image"),
        ('../a.png,"(0, 0, 48, 48)",0,9,0,0,0,0,0,0,0,1', "must be the name of an image"),
        ('a.png,"(0, 0, 40, 48)",0,9,0,0,0,0,0,0,0,1', r"the box '\(0, 0, 48, 48\)'"),
        ('a.png,"(0, 0, 48, 48)",0,9,0,0,0,0,0,0,0,x', "must be a whole number from 0 to 10; got 'x'"),
        ('a.png,"(0, 0, 48, 48)",0,9,0,0,0,0,0,0,0,1', r"a\.png is missing"),
    ],
)
def test_a_bad_line_of_fer_plus(tmp_path, line, message):
    path = plus_folder(tmp_path) / "FER2013Valid" / "label.csv"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises((ValueError, FileNotFoundError), match=rf"label\.csv, line 2.*{message}"):
        fer.read(tmp_path)


def test_a_folder_of_fer_plus_that_lacks_something(tmp_path):
    (plus_folder(tmp_path) / "FER2013Test" / "label.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"label\.csv is missing"):
        fer.read(tmp_path)
    shutil.rmtree(tmp_path / "FER2013Test")
    with pytest.raises(ValueError, match="must have the folders FER2013Train, FER2013Valid, FER2013Test"):
        fer.read(tmp_path)


@pytest.mark.parametrize(
    ("votes", "label"),
    [
        ((2, 1, 1, 1, 1, 1, 1, 1, 1, 0), 0),
        ((0, 0, 0, 0, 0, 0, 0, 10, 0, 0), 7),
        ((0, 0, 0, 0, 0, 0, 0, 4, 6, 0), None),
        ((0, 0, 0, 0, 0, 0, 0, 4, 0, 6), None),
        ((5, 5, 0, 0, 0, 0, 0, 0, 0, 0), None),
        ((5, 0, 0, 0, 0, 0, 0, 0, 5, 0), None),
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 0), None),
    ],
)
def test_who_wins(votes, label):
    assert fer.most_voted(votes) == label


ONE_LESS, ONE_MORE = PIXELS[2].rsplit(" ", 1)[0], PIXELS[2] + " 7"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"6,{ONE_LESS},Training", "pixels must be 2304 numbers, 48 x 48; got 2303"),
        (f"6,{ONE_MORE},Training", "pixels must be 2304 numbers, 48 x 48; got 2305"),
        ("6,,Training", "pixels must be 2304 numbers, 48 x 48; got 0"),
        (f"6,{ONE_LESS} 256,Training", "pixels must be whole numbers from 0 to 255; got '256'"),
        (f"6,{ONE_LESS} -1,Training", "pixels must be whole numbers from 0 to 255; got '-1'"),
        (f"6,{ONE_LESS} 1.5,Training", "pixels must be whole numbers from 0 to 255; got '1.5'"),
        (f"6,{ONE_LESS} \x00,Training", "pixels must be whole numbers from 0 to 255; got|must be a row of a table"),
        (f"6,{PIXELS[2]},Test", "Usage must be one of Training, PublicTest, PrivateTest; got 'Test'"),
        (f"6,{PIXELS[2]},", "Usage must be one of Training, PublicTest, PrivateTest; got ''"),
        (f"7,{PIXELS[2]},Training", "emotion must be a whole number from 0 to 6; got '7'"),
        (f"-1,{PIXELS[2]},Training", "emotion must be a whole number from 0 to 6; got '-1'"),
        (f"sad,{PIXELS[2]},Training", "emotion must be a whole number from 0 to 6; got 'sad'"),
        (f"6,{PIXELS[2]}", "must have 3 values, emotion,pixels,Usage; got 2"),
        (f"6,{PIXELS[2]},Training,", "must have 3 values, emotion,pixels,Usage; got 4"),
        ("", "must have 3 values, emotion,pixels,Usage; got 0"),
        (f'6,"{PIXELS[2]}"0,Training', "must be a row of a table; "),
    ],
)
def test_a_line_that_is_wrong(tmp_path, line, message):
    path = table(tmp_path / "fer2013.csv", lines=changed(LINES, 2, line))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line 4: ({message})"):
        fer.read(path)


def test_a_table_that_is_cut_off(tmp_path):
    path = table(tmp_path / "fer2013.csv")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line 8: must have 3 values"):
        fer.read(path)


@pytest.mark.parametrize("header", ["", "pixels,emotion,Usage", "emotion,pixels", "\ufeffemotion,pixels,Usage", "\xff"])
def test_another_header(tmp_path, header):
    path = tmp_path / "fer2013.csv"
    path.write_text("\n".join([header, *LINES]), encoding="latin-1" if header == "\xff" else "utf-8")
    wanted = "emotion,pixels,Usage or emotion,Usage,pixels; got"
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line 1: must be the header {wanted}"):
        fer.read(path)


def test_a_table_without_images(tmp_path):
    with pytest.raises(ValueError, match="fer2013.csv must have images with a label below its header; got none"):
        fer.read(table(tmp_path / "fer2013.csv", lines=[]))


@pytest.mark.parametrize(
    ("at", "line", "message"),
    [
        (0, VOTES[3], "Usage must be Training, as that of the image is; got 'PublicTest'"),
        (0, VOTES[0].replace(",6,", ",11,"), "happiness must be a whole number from 0 to 10; got '11'"),
        (0, VOTES[0].replace(",6,", ",,"), "happiness must be a whole number from 0 to 10; got ''"),
        (0, VOTES[0].replace(",6,", ",-6,"), "happiness must be a whole number from 0 to 10; got '-6'"),
        (6, VOTES[6][:-2], "must have 12 values, .*; got 11"),
    ],
)
def test_votes_that_are_wrong(tmp_path, at, line, message):
    votes = votes_table(tmp_path / "fer2013new.csv", changed(VOTES, at, line))
    with pytest.raises(ValueError, match=f"^{re.escape(str(votes))}, line {at + 2}: {message}"):
        fer.read(table(tmp_path / "fer2013.csv"), votes)


def test_votes_of_other_images(tmp_path):
    path = table(tmp_path / "fer2013.csv")
    fewer = votes_table(tmp_path / "fewer.csv", VOTES[:-1])
    message = f"{fewer} must have a row for every image; it has none for {path}, line 8"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fer.read(path, fewer)
    more = votes_table(tmp_path / "more.csv", [*VOTES, VOTES[-1]])
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(more))}, line 9: .* as many rows as images, but {path} has no"
    ):
        fer.read(path, more)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line 1: must be the header {VOTES_HEADER}; got"):
        fer.read(path, path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(str(tmp_path))}/a.csv is missing"):
        fer.read(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(str(tmp_path))}/b.csv is missing"):
        fer.read(table(tmp_path / "a.csv"), tmp_path / "b.csv")


NAMES = ("angry", "disgust", "fear", "happy", "neutral", "sad", "surprise")


@pytest.fixture
def folder(tmp_path):
    """Five images of each emotion for training and two for the test, each flat and of another grey."""
    folder = tmp_path / "images"
    for part, count in (("train", 5), ("test", 2)):
        for number, name in enumerate(NAMES):
            (folder / part / name).mkdir(parents=True)
            for image in range(count):
                flat = Image.new("L", (48, 48), grey(part, number, image))
                flat.save(folder / part / name / f"im{image}.{'jpg' if name == 'sad' else 'png'}")
    (folder / "train" / "sad" / ".DS_Store").write_bytes(b"of no interest")
    return folder


def grey(part, number, image):
    return (0 if part == "train" else 100) + 10 * number + image


def test_the_folder(folder):
    reported = []
    images, index, facts = fer.read(folder, report=lambda *numbers: reported.append(numbers))
    assert images.shape == (49, 48, 48)
    assert (images == images[:, :1, :1]).all()
    files = [(part, n, i) for part, count in (("train", 5), ("test", 2)) for n in range(7) for i in range(count)]
    assert images[:, 0, 0].tolist() == [grey(*file) for file in files]
    assert index[:, 1].tolist() == [fer.EMOTIONS.index(NAMES[n]) for _, n, _ in files]
    assert (index[:, 2:] == -1).all()
    assert (index[35:, 0] == 2).all()
    assert np.bincount(index[:35, 0]).tolist() == [32, 3]
    assert np.flatnonzero(index[:, 0] == 1).tolist() == [1, 16, 34], "the same for everybody, always"
    assert facts == fer._facts("fer2013", fer.EMOTIONS, 0)
    assert reported == [(done, 49) for done in range(1, 50)]


@pytest.mark.parametrize("size", [(48, 47), (64, 48)])
def test_an_image_of_another_size(folder, size):
    path = folder / "test" / "fear" / "im1.png"
    Image.new("L", size).save(path)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} must be 48 x 48 pixels, got {size[0]} x {size[1]}"):
        fer.read(folder)


def test_a_file_that_is_no_image(folder):
    path = folder / "train" / "fear" / "notes.txt"
    path.write_text("hello")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no image that can be read"):
        fer.read(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("test", "validation", "images must have the folders train, test; got train, validation"),
        ("train/fear", "elsewhere", "images must have the folders train, test; got elsewhere, test, train"),
        ("test/fear", "test/scared", "test must have the folders angry, .*; got angry, disgust, happy, .* scared, "),
        ("train/fear", "train/.fear", "train must have the folders angry, .*; got angry, disgust, happy, "),
    ],
)
def test_other_folders(folder, old, new, message):
    (folder / old).rename(folder / new)
    with pytest.raises(ValueError, match=message):
        fer.read(folder)


def test_folders_without_images(tmp_path):
    for part in ("train", "test"):
        for name in NAMES:
            (tmp_path / part / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))} must have images in its folders; got none"):
        fer.read(tmp_path)


def test_a_folder_has_no_votes(folder, tmp_path):
    with pytest.raises(
        ValueError, match="votes are of the rows of a table: path must be fer2013.csv, but .*images is a"
    ):
        fer.read(folder, votes_table(tmp_path / "fer2013new.csv"))
