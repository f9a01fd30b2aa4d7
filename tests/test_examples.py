"""The examples run, and say what they promise."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *args):
    command = [sys.executable, EXAMPLES / name, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_stream_forgets_nothing():
    done = run("stream.py")
    assert done.returncode == 0, done.stderr
    carried, _, forgetful = (float(line.split()[-1]) for line in done.stdout.splitlines())
    assert carried < 1e-3 < 1 < forgetful


def test_retrieval_beats_the_baseline():
    done = run("retrieval.py")
    assert done.returncode == 0, done.stderr
    errors = [float(error) for error in re.findall(r"error +([\d.]+)% \(no-retrieval baseline 45%\)", done.stdout)]
    assert errors[0] > 20
    assert errors[-1] < 5
    assert "attention that the last j pays: k " in done.stdout


def test_the_picture_is_drawn(tmp_path):
    done = run("picture.py", tmp_path / "attention.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
