"""A run folder belongs to one run, and to one process at a time."""

import subprocess
import sys

import pytest
import torch

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


def test_what_is_missing_is_said(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.result is None
    assert folder.checkpoint() is None
    assert folder.metrics == []
    with pytest.raises(FileNotFoundError, match=r"has no best\.safetensors"):
        folder.best()
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        _ = folder.config
