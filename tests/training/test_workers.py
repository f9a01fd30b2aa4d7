"""Runs side by side: one that fails or dies does not stop the others, and all is reported."""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest

from fastweights.training.workers import Job, Workers, run_all


def test_one_that_fails_or_dies_does_not_stop_the_others(capsys):
    work = [Job(f"double {number}", jobs.double, {"number": number}) for number in range(3)]
    work[1:1] = [Job("fails", jobs.fail), Job("dies", jobs.die)]
    outcomes = run_all(work, Workers(2), lambda result: f"got {result}")
    assert outcomes.results == {"double 0": 0, "double 1": 2, "double 2": 4}
    assert outcomes.failures == {
        "fails": "ValueError: number must be at least 1, got 0",
        "dies": "its process was killed (SIGKILL)",
    }
    printed = capsys.readouterr().err.splitlines()
    assert "double 2: got 4" in printed
    assert "dies: FAILED: its process was killed (SIGKILL)" in printed


def test_nothing_is_said_at_the_end(capfd):
    run_all([Job("double", jobs.double, {"number": 1})], Workers(1))
    assert capfd.readouterr().err == "double: 2\n"


def test_one_that_dies_while_it_has_nothing_to_do_is_replaced():
    pids = []

    def work():
        yield Job("first", jobs.process)
        os.kill(pids[0], signal.SIGKILL)
        while _alive(pids[0]) or len(os.listdir(f"/proc/{pids[0]}/task")) > 1:
            time.sleep(0.01)
        yield Job("second", jobs.process)

    outcomes = run_all(work(), Workers(1), total=2, over=lambda job, kind, value: pids.append(value))
    assert outcomes.failures == {}
    assert outcomes.results["first"] == pids[0] != outcomes.results["second"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is freed is kept with glibc alone")
def test_a_process_keeps_the_memory_that_it_frees():
    outcomes = run_all([Job("pages", jobs.pages_asked_for)], Workers(1))
    assert min(outcomes.results["pages"]) < 100  # not all: a block may be a few bytes too small for the next tensor


def test_a_process_does_one_job_after_the_other():
    outcomes = run_all([Job(name, jobs.process) for name in "abc"], Workers(1))
    assert len(set(outcomes.results.values())) == 1


def test_one_thread_each():
    assert run_all([Job("threads", jobs.threads)], Workers(1)).results == {"threads": 1}


def test_workers_end_with_their_parent(tmp_path):
    code = (
        "import sys, jobs; from pathlib import Path; from fastweights.training.workers import Job, Workers, run_all\n"
        "if __name__ == '__main__': run_all([Job('sleeps', jobs.sleep, {'path': Path(sys.argv[1])})], Workers(1))"
    )
    (tmp_path / "parent.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "pid")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as parent:
        begun = time.monotonic()
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() - begun < 60
            time.sleep(0.05)
        parent.kill()
    child, begun = int((tmp_path / "pid").read_text()), time.monotonic()
    while _alive(child):
        assert time.monotonic() - begun < 10
        time.sleep(0.05)


def _alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_workers():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        run_all([], Workers(0))
