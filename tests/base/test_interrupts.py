"""A signal ends a program where no work is lost, a second one at once; never with a traceback."""

import os
import signal
import subprocess
import sys
import time

import interrupts as harness
import pytest

PROGRAM = """
import sys, time
from fastweights.base import interrupts

def main():
    interrupts.install()
    interrupts.say("stopped here")
    {body}

try:
    main()
except interrupts.Interrupted:
    print("saved", flush=True)
    interrupts.end()
"""
READY = 'print("ready", flush=True)'
ANYWHERE = f"{READY}; time.sleep(60)"
CHECKED = f"""with interrupts.deferred():
        {READY}
        while True:
            time.sleep(0.1)
            interrupts.check()"""
NEVER_CHECKED = f"""with interrupts.deferred():
        {READY}
        time.sleep(60)"""
AT_THE_END = f"""with interrupts.deferred():
        with interrupts.deferred():
            {READY}
            time.sleep(0.5)
            print("inner", interrupts.asked(), flush=True)
        print("outer", flush=True)
    print("not here", flush=True)"""


def interrupted(body, number=signal.SIGINT, times=1):
    program = PROGRAM.replace("{body}", body)
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.05)
        begun = time.monotonic()
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - begun < 5
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("body", "times", "out"),
    [
        (ANYWHERE, 1, ""),
        (CHECKED, 1, "saved\n"),
        (NEVER_CHECKED, 2, ""),
        (AT_THE_END, 1, "inner True\nouter\nsaved\n"),
    ],
)
def test_one_line_and_130(body, number, times, out):
    assert interrupted(body, number, times) == (130, out, "fastweights: stopped here\n")


STARTS_ANOTHER = """
import multiprocessing, os, signal, sys, time
from fastweights.base import interrupts

if __name__ == "__main__":
    interrupts.install()
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1.5,))
    with interrupts.blocked():
        child.start()
    os.kill(child.pid, signal.SIGINT)
    child.join()
    print("ended with", child.exitcode)
"""


def test_what_is_started_does_not_get_the_interrupts_of_a_terminal(tmp_path):
    (tmp_path / "starts.py").write_text(STARTS_ANOTHER)
    command = [sys.executable, str(tmp_path / "starts.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ended with 0\n", "")


def test_interrupts_while_importing():
    for moment in (0.3, 1.0):
        process = subprocess.Popen([sys.executable, "-m", "fastweights", "report"], stdout=-1, stderr=-1, text=True)
        begun = time.monotonic()
        while not harness.handles(process, signal.SIGTERM):
            assert time.monotonic() - begun < 30
        time.sleep(moment / 2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
        assert (process.returncode, said) == (130, "fastweights: stopped\n")


def test_random_interrupts_lose_nothing(tmp_path):
    outcomes = harness.run(4, int.from_bytes(os.urandom(2), "big"), tmp_path, ["train", "reproduce"], lambda line: None)
    assert not [what for what in outcomes if what.startswith("WRONG")], outcomes
