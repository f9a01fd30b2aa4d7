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


def test_retrieval_leaves_the_floor_behind():
    done = run("retrieval.py", "--updates", "1500")
    assert done.returncode == 0, done.stderr
    error, floor = re.search(r"Error on fresh strings: ([\d.]+)% \(without retrieval ([\d.]+)%\)", done.stdout).groups()
    assert float(floor) == 45.0
    assert float(error) < 10


def test_retrieval_refuses_what_it_cannot_do():
    done = run("retrieval.py", "--pairs", "27")
    assert done.returncode == 1
    assert "--pairs must be from 1 to 26" in done.stderr
