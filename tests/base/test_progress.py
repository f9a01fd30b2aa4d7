"""Bars fit a narrow terminal; where there is none, plain lines say how far it is."""

import re
import sys

import pytest

from fastweights.base.progress import Board, Progress


def at(done, epoch, note=""):
    return Progress(done, 100, epoch, note)


@pytest.fixture
def clock(monkeypatch):
    """Goes on by a second whenever it is looked at."""
    now = [0.0]

    def tick():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("fastweights.base.progress.time.monotonic", lambda: now[0])
    return tick


def test_a_single_run_says_every_epoch(capsys, clock):
    with Board(1, every=0) as board:
        board.update("run", at(5, 0))
        for _ in range(4):
            clock()
        board.update("run", at(25, 1, "error 25.00%"))
        board.update("run", at(30, 1, "error 25.00%"))
        clock()
        board.update("run", at(55, 2, "error 12.50%"))
    assert capsys.readouterr().err.splitlines() == [
        "run: 25/100, error 25.00%, 15 s left",
        "run: 55/100, error 12.50%, 4 s left",
    ]


def test_there_is_no_time_left_before_there_is_a_speed(capsys, clock):
    with Board(1, every=0) as board:
        board.update("run", at(5, 1))
        clock()
        board.update("run", at(6, 2))
        clock()
        board.update("run", Progress(7, 0, 3))  # of nobody knows how much
    assert capsys.readouterr().err.splitlines() == ["run: 5/100", "run: 6/100", "run: 7"]


def test_a_single_run_is_not_reported_too_often_but_its_end_is(capsys):
    with Board(1, every=1000) as board:
        for epoch in range(1, 101):
            board.update("run", at(epoch, epoch, f"error {epoch}%"))
    assert capsys.readouterr().err.splitlines() == ["run: 1/100, error 1%", "run: 100/100, error 100%"]


def test_many_runs_say_when_one_is_over_and_now_and_then_what_is_left(capsys, clock):
    with Board(4, every=0) as board:
        board.done("a", "error 1%")  # which is found as it was left
        board.update("b", at(40, 4))  # which goes on: what was done before does not make what is left look short
        for _ in range(30):
            clock()
        board.update("b", at(60, 6))
    assert capsys.readouterr().err.splitlines() == [
        "a: error 1%",
        "1 of 4 runs done; now b",
        "1 of 4 runs done, 6 min left; now b",  # a fifth of a run in 30 s, 2.4 runs to go
    ]


def in_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def shown(text):
    """The lines of the bars, as they were drawn last."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_bars_fit_80_columns(monkeypatch, capsys, clock):
    in_terminal(monkeypatch)
    with Board(2) as board:
        board.update("lr=0.001,clip=0.5,input_range=0.1,seed=0", Progress(0, 4_000_000, 0))
        for _ in range(100):
            clock()
        board.update("lr=0.001,clip=0.5,input_range=0.1,seed=0", Progress(30_000, 4_000_000, 1, "return -0.75"))
    overall, one = shown(capsys.readouterr().err)[-2:]
    assert len(overall) <= 80
    assert len(one) <= 80
    assert re.fullmatch(r"all runs +[━╸╺ ]{8,} +0/2 7 h \d\d min left", overall)
    assert re.fullmatch(r"lr=0\.001,clip=0\.5,input_\S*… [━╸╺ ]{5,} 30\.0k/4\.00M 3 h 40 min left return -0\.75", one)


def test_only_finished_runs_are_counted(monkeypatch, capsys):
    in_terminal(monkeypatch)
    with Board(2) as board:
        board.update("a", at(99, 1))
        assert board.bars.tasks[0].fields["count"] == "0/2"
        board.done("a", "error 1%")
        assert board.bars.tasks[0].fields["count"] == "1/2"
    assert "a: error 1%" in capsys.readouterr().err
