"""The benchmark for a GPU, as far as it goes without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu.py"


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_that_there_is_no_gpu(tmp_path):
    done = run("--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU: torch ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_it_measures_what_there_is(tmp_path):
    done = run("--device", "cpu", "--sizes", "2,5,8", "--rounds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert {name.split()[0] for name in row["ms"]} == {"train", "infer"}
    assert "| 2 | 5 | 8 | train |" in (tmp_path / "gpu.md").read_text()


def test_the_page_has_the_model_that_the_script_prints():
    done = run("--model")
    assert done.stdout.strip() in (SCRIPT.parents[1] / "docs" / "gpu.md").read_text()
