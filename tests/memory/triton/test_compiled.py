"""The GPU kernels compile for GPUs that are not here, and nothing that they need is more than there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")
ROOT = Path(__file__).parents[3]


def table(text):
    """Each row's GPU and H, and registers, spills and shared memory of every kernel."""
    rows = re.findall(r"^\| (sm_\d+|gfx\w+) \| (\d+) \| \d+ \| (.*) \|$", text, re.M)
    return {
        (gpu, int(H)): [tuple(map(int, cell.split(" / "))) for cell in cells.split(" | ")] for gpu, H, cells in rows
    }


def test_a_part_of_the_table_is_as_published():
    command = [sys.executable, ROOT / "benchmarks/compiled.py", "--targets", "sm_80", "gfx942", "--units", "50"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = table(done.stdout)
    assert set(found) == {("sm_80", 50), ("gfx942", 50)}
    for cells in found.values():
        assert len(cells) == 4
        assert all(spills == 0 and shared <= 64 << 10 for _, spills, shared in cells)
    published = table((ROOT / "docs/gpu.md").read_text())
    for row, cells in found.items():
        assert published[row] == cells, row


def test_the_published_table_is_whole_and_spills_nothing():
    published = table((ROOT / "docs/gpu.md").read_text())
    gpus, sizes = ("sm_80", "sm_90", "sm_120", "gfx942"), (16, 50, 64, 100, 128, 200, 256, 512)
    assert set(published) == {(gpu, H) for gpu in gpus for H in sizes}
    assert all(spills == 0 and shared <= 99 << 10 for cells in published.values() for _, spills, shared in cells)


def test_the_package_is_imported_without_triton():
    code = (
        "import sys, torch, fastweights as f; f.FastWeights(2, 3)(torch.zeros(2, 1, 2)); print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_random_forms_compile():
    command = [sys.executable, Path(__file__).with_name("forms.py"), "--count", "3", "--gpus", "1"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 6
