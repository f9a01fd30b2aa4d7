"""Where there is no terminal, plain lines say how far it is."""

from fastweights.training.progress import Board
from fastweights.training.supervised import Progress


def at(updates, epoch, error=None):
    metrics = {} if error is None else {"validation_error": error}
    return Progress(updates, 100, epoch, 10, metrics, 5.0)


def test_a_single_run_says_every_epoch(capsys):
    with Board(1) as board:
        board.update("run", at(5, 0))
        board.update("run", at(10, 1, 0.25))
        board.update("run", at(15, 1, 0.25))
        board.update("run", at(20, 2, 0.125))
    assert capsys.readouterr().err.splitlines() == [
        "run: epoch 1, error 25.00%, 5 updates/s, 18 s left",
        "run: epoch 2, error 12.50%, 5 updates/s, 16 s left",
    ]


def test_many_runs_say_when_one_is_over_and_now_and_then_what_is_left(capsys):
    with Board(4, every=0) as board:
        board.done("a", "error 1%")
        board.update("b", at(50, 5, 0.2))
    done, running = capsys.readouterr().err.splitlines()
    assert done == "a: error 1%"
    assert running.startswith("1 of 4 runs done, ")
    assert running.endswith(" left; now b")
