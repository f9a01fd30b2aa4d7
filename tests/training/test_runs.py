"""A run folder belongs to one run, and to one process at a time."""

import shutil
import subprocess
import sys

import pytest
import torch

from fastweights.base.files import BadFileError
from fastweights.training.runs import RunError, RunFolder


def test_the_settings_are_those_of_the_run_that_was_begun(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.opened({"lr": 0.1, "units": 3}, "first"):
        pass
    with folder.opened({"lr": 0.1, "units": 3}, "second"):
        pass
    assert folder.config["command"] == "first"
    assert folder.config["torch"] == torch.__version__
    with pytest.raises(RunError, match=r"lr was 0\.1 and is now 0\.2"), folder.opened({"lr": 0.2, "units": 3}, "third"):
        pass


def test_one_process_at_a_time(tmp_path):
    code = (
        "import sys; from fastweights.training.runs import RunFolder\n"
        "with RunFolder(sys.argv[1]).opened({}, ''): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(RunError, match="another process is training in"), RunFolder(tmp_path).opened({}, ""):
            pass
        other.kill()
    with RunFolder(tmp_path).opened({}, ""):  # what is killed holds nothing
        pass


def test_metrics_after_the_checkpoint_are_measured_again(tmp_path):
    folder = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        folder.add_metrics({"epoch": epoch})
    folder.keep_metrics(2)
    folder.add_metrics({"epoch": 3, "again": True})
    assert folder.metrics == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "again": True}]


def opened(path, seed):
    folder = RunFolder(path)
    with folder.opened({"seed": seed}, ""):
        folder.save_best({"w": torch.ones(2)}, {"epoch": 1})
        folder.save_checkpoint({"w": torch.zeros(2)}, {"epoch": 1})
        folder.add_metrics({"epoch": 1})
        folder.finish({"error": 0.5})
    return folder


def test_files_that_were_swapped_are_noticed(tmp_path):
    one, other = opened(tmp_path / "one", 1), opened(tmp_path / "other", 2)
    assert one.best()[1] == {"epoch": 1}
    assert one.result == {"error": 0.5}
    for name in ("best.safetensors", "result.json"):
        shutil.copy(other.path / name, one.path / name)
    with pytest.raises(BadFileError, match=r"best\.safetensors is of another run"):
        one.best()
    with pytest.raises(BadFileError, match=r"result\.json is of another run"):
        _ = one.result
    shutil.copy(other.path / "last.safetensors", other.path / "best.safetensors")
    with pytest.raises(BadFileError, match="or another file of this one"):
        other.best()


def test_metrics_that_lack_lines_are_noticed(tmp_path):
    folder = opened(tmp_path / "run", 1)
    (folder.path / "metrics.jsonl").write_text("")
    with pytest.raises(BadFileError, match=r"metrics\.jsonl has 0 of 1 lines"):
        _ = folder.metrics
    (folder.path / "result.json").unlink()
    with pytest.raises(BadFileError, match=r"metrics\.jsonl has 0 of 1 epochs"):
        folder.keep_metrics(1)
    folder.add_metrics({"epoch": 2})
    with pytest.raises(BadFileError, match=r"metrics\.jsonl lacks lines"):
        _ = folder.metrics


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"settings": 3, "sha256": "0"}'])
def test_a_config_of_something_else_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(BadFileError, match=r"config\.json"):
        _ = RunFolder(tmp_path).config


def test_what_is_missing_is_said(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.result is None
    assert folder.checkpoint() is None
    assert folder.metrics == []
    with pytest.raises(FileNotFoundError, match=r"has no best\.safetensors"):
        folder.best()
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        _ = folder.config
