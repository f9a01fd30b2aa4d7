"""One run of the retrieval experiment: through the command line, killed and resumed, evaluated and asked."""

import json
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from fastweights import cli
from fastweights.base.files import seal, write_json
from fastweights.paper.retrieval import run as retrieval
from fastweights.paper.retrieval.run import Retrieval
from fastweights.tasks import retrieval as task
from fastweights.training.runs import RunFolder
from fastweights.training.supervised import Recipe

SMALL = ("--units", "8", "--pairs", "1", "--examples", "6000", "--epochs", "4", "--lr", "0.01")


def command(*words):
    return [sys.executable, "-m", "fastweights", *map(str, words)]


def fastweights(*words, **options):
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, **options)


def outcome(folder):
    """All that a run measured, but for the time it took."""
    entries = [*RunFolder(folder).metrics, RunFolder(folder).result]
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in entries]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = fastweights("train", "retrieval", *SMALL, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_training_leaves_a_run_folder(trained):
    names = {path.name for path in trained.iterdir() if not path.name.startswith("events")}
    assert names == {".lock", "config.json", "metrics.jsonl", "last.safetensors", "best.safetensors", "result.json"}
    config = json.loads((trained / "config.json").read_text())
    assert config["settings"]["units"] == 8
    assert config["settings"]["lr"] == 0.01
    assert config["command"].startswith("fastweights train retrieval --units 8")
    assert retrieval.load_config(RunFolder(trained)) == Retrieval(
        units=8, pairs=1, examples=6000, training=Recipe(lr=0.01, epochs=4)
    )


def test_a_killed_run_goes_on_to_the_same_numbers(trained, tmp_path):
    words = ("train", "retrieval", *SMALL, "--out", tmp_path / "killed", "--checkpoint-seconds", "0")
    moments, kills, checkpoint = random.Random(0), 0, tmp_path / "killed" / "last.safetensors"
    for _ in range(40):
        with subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            begun, before = time.monotonic(), checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            while process.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before):
                assert time.monotonic() - begun < 60
                time.sleep(0.01)
            if kills < 5 and process.poll() is None:
                time.sleep(moments.uniform(0, 0.2))
                process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        if (tmp_path / "killed" / "result.json").exists():
            break
    assert kills >= 3
    assert outcome(tmp_path / "killed") == outcome(trained)


def test_evaluate_agrees_with_the_run(trained):
    found = retrieval.evaluate(RunFolder(trained))
    result = RunFolder(trained).result
    assert found.error == result["test_error"]
    assert found.loss == result["test_loss"]
    done = fastweights("evaluate", trained)
    assert f"error {result['test_error']:.3%}" in done.stdout


def test_asking_agrees_with_evaluating(trained):
    net = retrieval.load_net(RunFolder(trained))
    tokens, _ = task.sample(1000, 1, generator=torch.Generator().manual_seed(99))
    strings = [task.decode(row) for row in tokens]
    with torch.no_grad():
        at_once = net(tokens).argmax(1).tolist()
    done = fastweights("ask", trained, "-", input="\n".join(strings))
    assert [int(line) for line in done.stdout.split()] == at_once


def test_an_answer_shows_what_it_attended_to(trained):
    done = fastweights("ask", trained, "c9??c")
    assert done.returncode == 0, done.stderr
    assert "c9??c → " in done.stdout
    assert "inner step 1" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ask", "RUN", "c9k8??"), "string must be pairs of a letter and a digit"),
        (("ask", "RUN", "c9??k"), "string must ask for one of its letters, c; got k"),
        (("ask", "RUN", "c9c8??c"), "each letter once"),
        (("ask", "RUN", "C9??C"), "string must be of a-z, 0-9 and ?"),
        (("ask", "RUN"), "strings must be at least one"),
        (("ask", "nowhere", "c9??c"), "RUN must be a run folder, or a net of the package"),
        (("evaluate", "nowhere"), "RUN must be a run folder, or a net of the package"),
        (("train", "retrieval", "--core", "gru"), "gru"),
        (("train", "retrieval", "--lr", "-1"), "lr must be above 0"),
        (("train", "retrieval", "--pairs", "27"), "pairs must be at least 1 and at most 26, got 27"),
        (("train", "retrieval", "--core", "a-lstm", "--units", "7"), "hidden_size must be even"),
        (("train", "retrieval", "--out", "RUN"), "holds another run"),
        (("dance",), "no such command: dance"),
    ],
)
def test_bad_words_get_one_line(trained, tmp_path, words, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in trained.iterdir()}
    assert inside(*(trained if word == "RUN" else word for word in words)) != 0
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in trained.iterdir()} == before
    assert not list(tmp_path.iterdir())


def inside(*words):
    """The exit code of a command, in this process."""
    try:
        return cli.run([str(word) for word in words])
    except SystemExit as left:
        return left.code


def copy_of(folder, target):
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("name", ["best.safetensors", "config.json"])
def test_damaged_files_are_named(trained, tmp_path, name, capsys):
    folder = copy_of(trained, tmp_path / "damaged")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    assert inside("ask", folder, "c9??c") == 1
    printed = capsys.readouterr().err
    assert f"{name} is " in printed
    assert printed.count("\n") == 1


def test_a_damaged_checkpoint_is_named_and_nothing_is_overwritten(trained, tmp_path, capsys):
    folder = copy_of(trained, tmp_path / "damaged")
    (folder / "result.json").unlink()
    (folder / "last.safetensors").write_bytes(b"nonsense")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert inside("train", "retrieval", *SMALL, "--out", folder) == 1
    assert "last.safetensors is damaged" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_of_another_task_is_refused(trained, tmp_path, capsys):
    folder = copy_of(trained, tmp_path / "other")
    config = RunFolder(folder).config
    config["settings"]["task"] = "chess"
    write_json(folder / "config.json", seal(config))
    assert inside("ask", folder, "c9??c") == 2
    assert "must be a net of retrieval" in capsys.readouterr().err


def test_a_full_disk_stops_it_with_one_line_and_it_goes_on_later(trained, tmp_path):
    folder = tmp_path / "full"
    words = ("train", "retrieval", *SMALL, "--out", folder)

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = fastweights(*words, preexec_fn=no_large_files)
    assert done.returncode == 1
    assert "could not be written (File too large)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.glob(".*safetensors*"))
    assert fastweights(*words).returncode == 0
    assert outcome(folder) == outcome(trained)
