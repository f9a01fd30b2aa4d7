"""Where there is no terminal, plain lines say how far it is."""

from fastweights.training.progress import Board, Progress


def at(done, epoch, note=""):
    return Progress(done, 100, epoch, note, 5.0)


def test_a_single_run_says_every_epoch(capsys):
    with Board(1, every=0) as board:
        board.update("run", at(5, 0))
        board.update("run", at(10, 1, "error 25.00%"))
        board.update("run", at(15, 1, "error 25.00%"))
        board.update("run", at(20, 2, "error 12.50%"))
    assert capsys.readouterr().err.splitlines() == [
        "run: error 25.00%, 18 s left",
        "run: error 12.50%, 16 s left",
    ]


def test_a_single_run_is_not_told_too_often_but_its_end_is(capsys):
    with Board(1, every=1000) as board:
        for epoch in range(1, 101):
            board.update("run", at(epoch, epoch, f"error {epoch}%"))
    assert capsys.readouterr().err.splitlines() == ["run: error 1%, 20 s left", "run: error 100%, 0 s left"]


def test_many_runs_say_when_one_is_over_and_now_and_then_what_is_left(capsys):
    with Board(4, every=0) as board:
        board.done("a", "error 1%")
        board.update("b", at(50, 5))
    done, running = capsys.readouterr().err.splitlines()
    assert done == "a: error 1%"
    assert running.startswith("1 of 4 runs done, ")
    assert running.endswith(" left; now b")


def test_what_was_done_before_does_not_make_what_is_left_look_short(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with Board(4, every=0) as board:
        board.done("a", "error 1%")  # which is found as it was left
        board.update("b", at(40, 4))  # which goes on
        now = 30.0
        board.update("b", at(60, 6))
    _, found, later = capsys.readouterr().err.splitlines()
    assert found == "1 of 4 runs done, an unknown time left; now b"
    assert later == "1 of 4 runs done, 6 min left; now b"  # a fifth of a run in 30 s, 2.4 runs to go
