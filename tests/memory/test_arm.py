"""The kernel on a CPU that this machine is not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_equals_the_oracle_on_arm():
    missing = [name for name in ("aarch64-linux-gnu-g++", "qemu-aarch64", "make") if not shutil.which(name)]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")
    command = ["make", "arm", "--assume-old=install", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 with an error" in done.stdout
