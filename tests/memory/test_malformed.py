"""Malformed calls, the short form of `make malformed`: no crash, and no number that the torch path would not give."""

import subprocess
import sys
from pathlib import Path


def test_malformed_calls_get_exceptions():
    script = Path(__file__).parents[1] / "malformed.py"
    command = [sys.executable, str(script), "--calls", "600", "--seed", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "600 of 600 calls" in done.stdout
    assert "'taken'" in done.stdout
    assert "ValueError" in done.stdout
