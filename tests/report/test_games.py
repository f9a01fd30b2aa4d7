"""Games are shown as they were played: in colour and moving in a terminal, plain elsewhere."""

import os
import pty
import select
import subprocess
import sys
import time

from fastweights.report import games
from fastweights.report.games import Game

SCREENS = [[[1, 0, 0], [0, 0, 0], [1, 1, 0]], [[0, 0, 0], [1, 0, 0], [1, 1, 0]], [[0, 0, 0], [0, 0, 0], [1, 1, 0]]]
NOTHING = [[0] * 3] * 3
GAME = Game(SCREENS, [SCREENS[0], NOTHING, NOTHING], [[0.0, 0.0], [-2.0, 0.0]], 1.0)
PROGRAM = """
from test_games import GAME
from fastweights.report import games
games.watch([GAME] * 100, seconds=0.2)
print("over")
"""


def test_frames():
    first, second, last = games.frames([GAME])
    assert (first.title, first.visible, first.attention) == ("game 1 of 1, frame 1 of 3", True, [0.0])
    assert (second.visible, second.attention, second.last) == (False, [1.0, 0.0], False)
    assert (last.title, last.last) == ("game 1 of 1, frame 3 of 3: caught, +1", True)
    assert all(frame.attention is None for frame in games.frames([GAME._replace(attention=None)]))


def test_plain_frames_where_there_is_no_terminal(capsys):
    games.watch([GAME])
    frames = capsys.readouterr().out.strip().split("\n\n")
    assert len(frames) == 3
    assert frames[1].splitlines() == ["game 1 of 1, frame 2 of 3", "...  ###  **********", "o..  ###  *", "==.  ###"]


def test_pixels_are_wide_where_there_is_room():
    frame = list(games.frames([GAME]))[1]
    assert [len(line) for line in games.as_text(frame, 80).plain.splitlines()[2:]] == [6 + 2 + 6 + 2 + 10, 17, 16]
    assert [len(line) for line in games.as_text(frame, 20).plain.splitlines()[2:]] == [3 + 2 + 3 + 2 + 10, 11, 10]


def test_it_moves_in_a_terminal_and_any_key_ends_it():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.path.dirname(__file__)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown, sent, begun = b"", False, time.monotonic()
    while time.monotonic() - begun < 120:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # nobody has the other end any more: it has ended, and all that it wrote is read
                break
        if not sent and b"frame 3 of 3" in shown:
            os.write(ours, b"\x03")  # Ctrl-C is a key, too
            sent = True
    else:
        process.kill()
    assert process.wait(timeout=30) == 0, shown.decode()
    os.close(ours)
    assert shown.endswith(b"over\r\n")
    assert b"frame 2 of 3" in shown
    assert b"game 90 of 100" not in shown
    assert b"Traceback" not in shown
