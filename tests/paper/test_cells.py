"""Cells of a table: by name, and what their runs come to. The search is tested where it is used, with Table 1."""

from types import SimpleNamespace

import pytest

from fastweights.paper.cells import Cell, entry, parse

CELLS = [Cell("irnn", 20), Cell("lstm", 20), Cell("lstm", 50)]


def test_cells_by_name():
    assert parse((), CELLS) == CELLS
    assert parse(["lstm/50", "irnn/20"], CELLS) == [Cell("lstm", 50), Cell("irnn", 20)]
    with pytest.raises(ValueError, match="cells must be of irnn/20, lstm/20, lstm/50; got 'lstm/21'"):
        parse(["lstm/21"], CELLS)


def run(seed, **found):
    result = {"seed": seed, "epochs": 2, "best_epoch": 2, "seconds": 1.0, "parameters": 5}
    return SimpleNamespace(
        result=result | found, config={"command": "the command", "settings": {"lr": 0.1, "seed": seed}}
    )


def test_the_chosen_seed_is_the_best_on_validation():
    runs = [
        run(0, validation_error=0.02, validation_loss=0.1, test_error=0.03),
        run(1, validation_error=0.01, validation_loss=0.2, test_error=0.05),
        run(2, validation_error=0.01, validation_loss=0.1, test_error=0.04),
    ]
    found = entry(Cell("lstm", 20), "tuned", 1.5, runs, 24)
    assert found["test_error_best_validation"] == pytest.approx(4)
    assert found["test_error_mean"] == pytest.approx(4)
    assert found["test_error_std"] == pytest.approx(1)
    assert (found["trials"], found["hyperparameters"], found["interval"]) == (24, {"lr": 0.1}, [3.0, 5.0])
    assert (found["model"], found["units"], found["paper"], found["command"]) == ("lstm", 20, 1.5, "the command")


def test_a_run_that_diverged_counts_as_wrong():
    good = run(0, validation_error=0.1, validation_loss=0.3, test_error=0.2)
    found = entry(Cell("lstm", 20), "tuned", None, [good, run(1, epochs=0, best_epoch=0)], 24)
    assert found["test_error_mean"] == pytest.approx(60)
    assert found["test_error_best_validation"] == pytest.approx(20)
