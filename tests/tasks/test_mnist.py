"""MNIST is the original MNIST or an error: wherever it comes from, whatever happens on the way."""

import gzip
import hashlib
import os
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from fastweights.tasks import mnist

SHAPES = dict(zip(mnist.SHAPES, ((200, 28, 28), (200,), (50, 28, 28), (50,)), strict=True))
IMAGES, LABELS = list(SHAPES)[:2]


def idx(shape, most, seed=0):
    values = torch.randint(most + 1, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    return header + bytes(values.flatten().tolist())


def sha256(content):
    return hashlib.sha256(content).hexdigest()


CONTENT = {file: idx(shape, 255 if len(shape) == 3 else 9) for file, shape in SHAPES.items()}


def packed(content):
    """By gzip, the same bytes every time."""
    return gzip.compress(content, mtime=0)


PACKED = {file: packed(content) for file, content in CONTENT.items()}
ALTERED = {file: packed(content[:-1] + b"\x05") for file, content in CONTENT.items()}


class Mirrors:
    """A web server with a folder for every way in which a mirror may behave; notes what it is asked and sends."""

    def __init__(self):
        self.requests = []  # (path, Range header, status, bytes sent)
        noted = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                _, behaviour, file = self.path.split("/")
                body = (ALTERED if behaviour == "altered" else PACKED)[file]
                wanted, status = self.headers["Range"], 200
                if behaviour == "broken":
                    body, status = b"<html>out of order</html>", 503
                elif wanted and behaviour != "without-ranges":
                    body = body[int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) :]
                    status = 206 if body else 416
                length = len(body)
                if behaviour == "dropping":
                    body = body[: length // 2]
                noted.append((self.path, wanted, status, len(body)))  # before they can ask for anything else
                self.send_response(status)
                if behaviour != "without-length":
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                if behaviour == "slow":
                    time.sleep(0.1)
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()

    def url(self, behaviour):
        return f"http://127.0.0.1:{self.server.server_port}/{behaviour}/"

    def asked(self, file):
        return [(path.split("/")[1], *rest) for path, *rest in self.requests if path.endswith(file)]


@pytest.fixture
def mirrors():
    mirrors = Mirrors()
    yield mirrors
    mirrors.server.shutdown()
    mirrors.server.server_close()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The empty cache of somebody who has set nothing, for a small data set."""
    monkeypatch.delenv("FASTWEIGHTS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(mnist, "SHAPES", SHAPES)
    return tmp_path / "fastweights" / "mnist"


@pytest.fixture
def use(monkeypatch, folder):
    def use(*urls):
        checksums = {file: sha256(content) for file, content in CONTENT.items()}
        monkeypatch.setitem(mnist.SOURCES, "mnist", mnist.Source(urls, checksums))

    return use


@pytest.fixture
def dead():
    """The address of a mirror that is down."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: connections are refused, and nobody else gets the port
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"


@pytest.fixture
def hanging():
    """The address of a mirror that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def is_whole(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == PACKED


def test_a_download(folder, mirrors, use, capsys):
    use(mirrors.url("good"))
    assert mnist.fetch() == folder
    assert is_whole(folder)
    assert [path for path, *_ in mirrors.requests] == [f"/good/{file}" for file in SHAPES]
    assert "train-images-idx3: " in capsys.readouterr().err
    data = mnist.load()
    assert [tuple(tensor.shape) for tensor in data] == list(SHAPES.values())
    assert [tensor.dtype for tensor in data] == [torch.uint8, torch.int64] * 2
    assert [bytes(tensor.flatten().tolist()) for tensor in data] == [
        content[4 + 4 * len(SHAPES[file]) :] for file, content in CONTENT.items()
    ]
    assert mnist.load().train_images is data.train_images
    assert len(mirrors.requests) == 4, "what is there is not downloaded again"


def test_only_missing_files_are_downloaded(folder, mirrors, use):
    use(mirrors.url("good"))
    folder.mkdir(parents=True)
    (folder / IMAGES).write_bytes(PACKED[IMAGES])
    mnist.fetch()
    assert is_whole(folder)
    assert len(mirrors.requests) == 3
    assert mirrors.asked(IMAGES) == []


def test_a_download_goes_on_where_it_was_cut_off(folder, mirrors, use):
    use(mirrors.url("dropping"))
    half = len(PACKED[IMAGES]) // 2
    with pytest.raises(OSError, match=f"the connection ended {len(PACKED[IMAGES]) - half} bytes too early"):
        mnist.fetch()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", f"{IMAGES}.part"]
    use(mirrors.url("good"))
    mnist.fetch()
    assert is_whole(folder)
    rest = len(PACKED[IMAGES]) - half
    assert mirrors.asked(IMAGES) == [("dropping", None, 200, half), ("good", f"bytes={half}-", 206, rest)]


def test_the_next_mirror_goes_on_where_one_was_cut_off(folder, mirrors, use):
    use(mirrors.url("dropping"), mirrors.url("good"))
    mnist.fetch()
    assert is_whole(folder)
    assert [(behaviour, status) for behaviour, _, status, _ in mirrors.asked(IMAGES)] == [
        ("dropping", 200),
        ("good", 206),
    ]


@pytest.mark.parametrize("behaviour", ["without-ranges", "without-length"])
def test_servers_that_know_less(monkeypatch, folder, mirrors, use, behaviour):
    monkeypatch.setattr(mnist, "SECONDS_PER_LINE", 0.0)
    use(mirrors.url(behaviour))
    folder.mkdir(parents=True)
    (folder / f"{IMAGES}.part").write_bytes(PACKED[IMAGES][:1000])
    mnist.fetch()
    assert is_whole(folder)
    sent = {"without-ranges": (200, len(PACKED[IMAGES])), "without-length": (206, len(PACKED[IMAGES]) - 1000)}
    assert mirrors.asked(IMAGES) == [(behaviour, "bytes=1000-", *sent[behaviour])]


def test_a_part_that_only_lacks_its_name(folder, mirrors, use):
    use(mirrors.url("good"))
    folder.mkdir(parents=True)
    (folder / f"{IMAGES}.part").write_bytes(PACKED[IMAGES])
    mnist.fetch()
    assert is_whole(folder)
    assert mirrors.asked(IMAGES) == [("good", f"bytes={len(PACKED[IMAGES])}-", 416, 0)]


@pytest.mark.parametrize("length", [1000, 10**6])
def test_a_bad_part_is_downloaded_again(folder, mirrors, use, length):
    use(mirrors.url("good"))
    folder.mkdir(parents=True)
    (folder / f"{IMAGES}.part").write_bytes(bytes(length))
    mnist.fetch()
    assert is_whole(folder)
    assert mirrors.asked(IMAGES)[1:] == [("good", None, 200, len(PACKED[IMAGES]))]


def test_the_next_mirror_when_one_is_down(folder, mirrors, use, dead):
    use(dead, mirrors.url("broken"), mirrors.url("good"))
    mnist.fetch()
    assert is_whole(folder)
    assert [behaviour for behaviour, *_ in mirrors.asked(LABELS)] == ["broken", "good"]


def test_the_next_mirror_when_one_has_altered_files(folder, mirrors, use):
    use(mirrors.url("altered"), mirrors.url("good"))
    mnist.fetch()
    assert is_whole(folder)
    assert mirrors.asked(IMAGES) == [
        ("altered", None, 200, len(ALTERED[IMAGES])),
        ("good", None, 200, len(PACKED[IMAGES])),
    ]


def test_no_mirror_has_it(folder, mirrors, use, dead):
    use(dead, mirrors.url("broken"), mirrors.url("altered"))
    with pytest.raises(OSError, match="could not be downloaded") as caught:
        mnist.load()
    message = str(caught.value)
    assert re.search(re.escape(dead + IMAGES) + ".*refused", message)
    assert re.search(re.escape(mirrors.url("broken") + IMAGES) + ".*503", message)
    assert re.search(re.escape(mirrors.url("altered") + IMAGES) + f".*{sha256(CONTENT[IMAGES])}", message)
    assert "set FASTWEIGHTS_DATA" in message
    assert str(folder) in message
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_two_at_once_download_once(folder, mirrors, use):
    use(mirrors.url("slow"))
    both = [threading.Thread(target=mnist.fetch) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert is_whole(folder)
    assert len(mirrors.requests) == 4


def test_a_whole_cache_is_only_read(folder, mirrors, use):
    use(mirrors.url("good"))
    mnist.fetch()
    (folder / ".lock").unlink()
    mnist._read_all.cache_clear()
    assert len(mnist.load().train_labels) == 200
    assert not (folder / ".lock").exists()


def test_without_a_cache_home_it_is_in_the_home_folder(monkeypatch, tmp_path, folder, mirrors, use):
    use(mirrors.url("good"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert mnist.fetch() == tmp_path / "home" / ".cache" / "fastweights" / "mnist"


def test_lines_say_how_far_it_is(monkeypatch, folder, mirrors, use, capsys):
    monkeypatch.setattr(mnist, "SECONDS_PER_LINE", 0.0)
    use(mirrors.url("good"))
    mnist.fetch()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train-images-idx3: ")]
    size = f"{len(PACKED[IMAGES]) / 1000:.0f}k"
    assert len(lines) > 1
    assert all(re.fullmatch(rf"train-images-idx3: [\d.]+k/{size}, bytes", line) for line in lines)
    assert lines[-1] == f"train-images-idx3: {size}/{size}, bytes"


def test_a_bar_in_a_terminal(monkeypatch, folder, mirrors, use, capsys):
    use(mirrors.url("good"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    mnist.fetch()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    size = f"{len(PACKED[IMAGES]) / 1000:.0f}k"
    assert re.search(rf"train-images-idx3 ━+ +{size}/{size} +bytes", shown)


def test_a_mirror_that_hangs_keeps_nobody_waiting(monkeypatch, folder, mirrors, use, hanging):
    monkeypatch.setattr(mnist, "HEAD_START_SECONDS", 0.1)
    use(hanging, mirrors.url("good"))
    begun = time.monotonic()
    mnist.fetch()
    assert is_whole(folder)
    assert time.monotonic() - begun < mnist.ANSWER_SECONDS


def test_the_message_comes_soon_when_nobody_answers(folder, use, dead, hanging):
    assert mnist.ANSWER_SECONDS < 9
    use(hanging, dead, hanging)
    begun = time.monotonic()
    with pytest.raises(OSError, match=f"{hanging}{IMAGES}: no answer within 7 s"):
        mnist.fetch()
    assert mnist.ANSWER_SECONDS - 1 < time.monotonic() - begun < 10


@pytest.fixture
def given(monkeypatch, folder, use, mirrors):
    """A folder that FASTWEIGHTS_DATA names, with all files; a download would be possible too."""
    use(mirrors.url("good"))
    given = folder.parent.parent / "given"
    (given / "mnist").mkdir(parents=True)
    for file, packed in PACKED.items():
        (given / "mnist" / file).write_bytes(packed)
    monkeypatch.setenv("FASTWEIGHTS_DATA", str(given))
    yield given
    assert mirrors.requests == []
    assert not folder.exists()


def test_a_given_folder(given):
    assert mnist.fetch() == given / "mnist"
    assert len(mnist.load().train_labels) == 200


@pytest.mark.parametrize("lost", ["given", "mnist", LABELS])
def test_a_given_folder_that_lacks_something(monkeypatch, given, lost):
    if lost == "given":
        monkeypatch.setenv("FASTWEIGHTS_DATA", f"{given}/elsewhere")
        missing = given / "elsewhere" / "mnist" / IMAGES
    elif lost == "mnist":
        (given / "mnist").rename(given / "MNIST")
        missing = given / "mnist" / IMAGES
    else:
        missing = given / "mnist" / LABELS
        missing.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        mnist.load()
    message = str(caught.value)
    assert message.startswith(f"{missing} is missing: FASTWEIGHTS_DATA is {os.environ['FASTWEIGHTS_DATA']}")
    assert f"a folder mnist in it with {', '.join(SHAPES)}" in message


def with_byte(content, at, value):
    return content[:at] + bytes((value,)) + content[at + 1 :]


IMAGE, LABEL = CONTENT[IMAGES], CONTENT[LABELS]
PACKED_IMAGE = PACKED[IMAGES]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (IMAGES, b"", "must begin with the magic number 00000803, got nothing"),
        (IMAGES, b"<html>no</html>", "must be a whole gzip file, .* Not a gzipped file"),
        (IMAGES, PACKED_IMAGE[:-1], "must be a whole gzip file, .* ended before"),
        (IMAGES, PACKED_IMAGE[:5000], "must be a whole gzip file, .* ended before"),
        (IMAGES, PACKED_IMAGE + b"more", "must be a whole gzip file, .* Not a gzipped file"),
        (IMAGES, PACKED_IMAGE[:-8] + PACKED[LABELS][-8:], "must be a whole gzip file, .* CRC check failed"),
        (IMAGES, with_byte(PACKED_IMAGE, 10, 0xFF), "must be a whole gzip file, .* invalid block type"),
        (IMAGES, packed(LABEL), "must begin with the magic number 00000803, got 00000801"),
        (IMAGES, packed(with_byte(IMAGE, 2, 13)), "must begin with the magic number 00000803, got 00000d03"),
        (IMAGES, packed(with_byte(IMAGE, 7, 199)), "must hold 200 x 28 x 28 bytes, got 199 x 28 x 28"),
        (IMAGES, packed(with_byte(IMAGE, 15, 27)), "must hold 200 x 28 x 28 bytes, got 200 x 28 x 27"),
        (IMAGES, packed(IMAGE[:-1]), "must be 156816 bytes long when unpacked, got 156815"),
        (IMAGES, packed(IMAGE[:10]), "must be 156816 bytes long when unpacked, got 10: it is cut off"),
        (IMAGES, packed(IMAGE + b"\0"), "must be 156816 bytes long when unpacked, got more"),
        (IMAGES, ALTERED[IMAGES], f"is altered: .* must be {sha256(IMAGE)}, got (?!{sha256(IMAGE)})"),
        (LABELS, packed(IMAGE), "must begin with the magic number 00000801, got 00000803"),
        (LABELS, packed(idx((199,), 9)), "must hold 200 bytes, got 199"),
        (LABELS, packed(with_byte(LABEL, 100, 10)), "must have labels from 0 to 9, got 10"),
        (LABELS, packed(with_byte(LABEL, 100, (LABEL[100] + 1) % 10)), "is altered"),
    ],
)
def test_files_that_are_not_the_original(given, file, content, message):
    path = given / "mnist" / file
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} {message}"):
        mnist.load()


def test_a_bomb_is_not_unpacked(given):
    path = given / "mnist" / LABELS
    path.write_bytes(gzip.compress(bytes(LABEL) + bytes(10**6)) + b"never looked at")
    with pytest.raises(ValueError, match="must be 208 bytes long when unpacked, got more"):
        mnist.load()


def test_another_packing_of_the_same_data_is_fine(given):
    for file, content in CONTENT.items():
        (given / "mnist" / file).write_bytes(gzip.compress(content, compresslevel=1, mtime=12345))
    assert len(mnist.load().test_labels) == 50


def test_names_that_are_not_there():
    with pytest.raises(ValueError, match="name must be one of 'mnist', 'fashion-mnist'; got 'cifar'"):
        mnist.load("cifar")
    with pytest.raises(ValueError, match="name must be one of 'mnist', 'fashion-mnist'; got '../mnist'"):
        mnist.fetch("../mnist")
    with pytest.raises(ValueError, match="part must be one of 'train', 'validation', 'test'; got 'dev'"):
        mnist.split("dev")


def test_every_source_has_every_file():
    for source in mnist.SOURCES.values():
        assert list(source.checksums) == list(mnist.SHAPES)
        assert all(url.startswith("https://") and url.endswith("/") for url in source.mirrors)
        assert len(source.mirrors) > 1
    assert len({checksum for source in mnist.SOURCES.values() for checksum in source.checksums.values()}) == 8


def test_the_parts(monkeypatch):
    train, test = torch.arange(60_000), torch.arange(60_000, 70_000)
    loaded = []

    def load(name):
        loaded.append(name)
        return mnist.Data(train.view(-1, 1, 1), train, test.view(-1, 1, 1), test)

    monkeypatch.setattr(mnist, "load", load)
    parts = {part: mnist.split(part, "fashion-mnist") for part in mnist.SIZES}
    assert loaded == ["fashion-mnist"] * 3
    for part, (images, labels) in parts.items():
        assert torch.equal(images.flatten(), labels), "an image and its label stay together"
        assert len(labels) == {"train": 55_000, "validation": 5_000, "test": 10_000}[part]
        some, few = mnist.split(part, count=7)
        assert torch.equal(some, images[:7])
        assert torch.equal(few, labels[:7])
    assert torch.cat([labels for _, labels in parts.values()]).sort().values.tolist() == list(range(70_000))
    assert parts["train"][1][:5].tolist() == [40456, 35754, 32193, 23050, 25057]
    assert parts["validation"][1][:5].tolist() == [58746, 53753, 31251, 610, 54443]
    assert parts["test"][1][:3].tolist() == [60_000, 60_001, 60_002]


@pytest.mark.parametrize(("part", "count"), [("train", 55_001), ("validation", 5_001), ("test", 10_001), ("test", 0)])
def test_counts_that_are_not_there(part, count):
    with pytest.raises(ValueError, match=rf"count must be from 1 to {mnist.SIZES[part]}, .* {part} set; got {count}"):
        mnist.split(part, count=count)


# How many of each class there are in the training, validation and test set.
MNIST = (
    [5431, 6181, 5471, 5606, 5338, 4961, 5433, 5770, 5383, 5426],
    [492, 561, 487, 525, 504, 460, 485, 495, 468, 523],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
FASHION = (
    [5502, 5524, 5497, 5508, 5519, 5497, 5481, 5463, 5491, 5518],
    [498, 476, 503, 492, 481, 503, 519, 537, 509, 482],
    [1000] * 10,
)


def original(name):
    there = Path(os.environ.get("FASTWEIGHTS_DATA", "nowhere"), name).is_dir()
    return pytest.mark.skipif(not there, reason=f"FASTWEIGHTS_DATA is not set to a folder with {name}/ in it")


@pytest.mark.parametrize(
    ("name", "train", "validation", "test"),
    [
        pytest.param("mnist", *MNIST, marks=original("mnist")),
        pytest.param("fashion-mnist", *FASHION, marks=original("fashion-mnist")),
    ],
)
def test_the_original(name, train, validation, test):
    data = mnist.load(name)
    assert [tuple(tensor.shape) for tensor in data] == [(60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)]
    for part, counts in {"train": train, "validation": validation, "test": test}.items():
        images, labels = mnist.split(part, name)
        assert images.shape == (mnist.SIZES[part], 28, 28)
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert labels.bincount().tolist() == counts
    assert mnist.load(name).train_images is data.train_images
