"""Table 1: its cells are the paper's, the search looks at validation alone, and the table says what the runs say."""

import dataclasses
import json
import statistics

import pytest

from fastweights.paper.cells import Cell
from fastweights.paper.reports import Report
from fastweights.paper.retrieval import table1
from fastweights.report import tables
from fastweights.training.runs import RunFolder
from fastweights.training.workers import Workers

CELL = Cell("fast-weights", 50)


@pytest.fixture
def small(monkeypatch):
    """The table with runs of seconds."""
    full = table1.config

    def config(cell, setting, seed):
        run = full(cell, setting, seed)
        training = dataclasses.replace(run.training, epochs=3)
        return dataclasses.replace(run, pairs=1, examples=500, training=training)

    monkeypatch.setattr(table1, "config", config)
    monkeypatch.setattr(table1, "EPOCHS", dict.fromkeys(table1.EPOCHS, 3))
    monkeypatch.setattr(table1, "TUNED", {str(cell): {"lr": 1e-2, "input_range": 1.0} for cell in table1.CELLS})


def test_the_papers_numbers():
    assert len(table1.CELLS) == 12
    assert {str(cell): table1.paper_error(cell) for cell in table1.CELLS}["a-lstm/50"] == 1.62


def test_every_cell_of_a_row_is_searched_and_trained_alike():
    for units in table1.SIZES:
        studies = {core: table1.study(Cell(core, units)) for core in table1.CORES}
        assert len({study.rung for study in studies.values()}) == 1
        assert len({study.config.training for study in studies.values()}) == 1
        assert {study.plan.trials / len(study.hyperparameters) for study in studies.values()} == {8}
        for core, study in studies.items():
            assert set(study.hyperparameters) - set(table1.FOR_ALL) == (
                {"recurrent_init=0.3..1.2"} if core == "irnn" else set()
            )
            assert (study.config.core, study.config.units, study.config.seed) == (core, units, 1000)


def test_the_table_says_what_the_runs_say(small, tmp_path):
    failures = table1.reproduce([CELL], tmp_path, Workers(2), "the command", seeds=3)
    assert failures == {}
    (entry,) = table1.collect(tmp_path, "tuned")
    results = [
        RunFolder(tmp_path / "table1" / "tuned" / "fast-weights-50" / f"seed-{seed}").result for seed in range(3)
    ]
    errors = [100 * result["test_error"] for result in results]
    assert len(set(errors)) == 3
    assert entry["test_error_mean"] == pytest.approx(statistics.mean(errors))
    assert entry["test_error_std"] == pytest.approx(statistics.stdev(errors))
    best = min(results, key=lambda result: (result["validation_error"], result["validation_loss"]))
    assert entry["test_error_best_validation"] == 100 * best["test_error"]
    assert [seed["seed"] for seed in entry["seeds"]] == [0, 1, 2]
    assert (entry["model"], entry["units"], entry["recipe"], entry["paper"]) == ("fast-weights", 50, "tuned", 0.0)
    assert (entry["command"], entry["trials"], entry["protocol"]) == ("the command", 24, 2)
    low, high = entry["interval"]
    assert min(errors) <= low <= entry["test_error_mean"] <= high <= max(errors)

    assert table1.report(Report(tmp_path, tmp_path / "results", publish=True))
    assert json.loads((tmp_path / "results" / "table1.json").read_text()) == [entry]
    page = (tmp_path / "results" / "table1.md").read_text()
    assert f"| fast weights | 50 | {tables.estimate(entry)} |" in page
    assert "No-retrieval baseline: 61.65" in page
    assert "![Test log-likelihood while training, 50 units](table1-curves.png)" in page
    assert (tmp_path / "results" / "table1-curves.svg").exists()
    assert "data:image/svg+xml;base64," in (tmp_path / "results" / "table1.html").read_text()


def test_what_was_run_elsewhere_stays(small, tmp_path):
    results = tmp_path / "results"
    for place, cell in (("here", CELL), ("there", Cell("irnn", 50)), ("there", Cell("lstm", 20))):
        assert table1.reproduce([cell], tmp_path / place, Workers(1), place, seeds=1) == {}
        assert table1.report(Report(tmp_path / place, results, publish=True))
    found = json.loads((results / "table1.json").read_text())
    assert [(each["model"], each["units"], each["command"]) for each in found] == [
        ("lstm", 20, "there"),
        ("irnn", 50, "there"),
        ("fast-weights", 50, "here"),
    ]
    drawn = (results / "table1-curves.svg").read_text()
    assert "fast weights (1 seed)" in drawn
    assert "IRNN (1 seed)" in drawn

    # Without --publish nothing of it changes, and rows say where they come from.
    before = {path: path.read_bytes() for path in results.iterdir()}
    assert table1.report(Report(tmp_path / "here", results))
    assert {path: path.read_bytes() for path in results.iterdir()} == before
    page = (tmp_path / "here" / "table1" / "report" / "table1.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| fast weights | 50")]
    assert [(row[5], row[-1]) for row in rows] == [("0", "trained here |"), ("0", "published |")]
    assert "IRNN" not in page
    # Where no run is here, what is published is drawn again.
    assert table1.report(Report(tmp_path / "nowhere", results, publish=True))
    assert {path: path.read_bytes() for path in results.iterdir()} == before


def test_results_of_another_protocol_are_not_mixed_with(small, tmp_path):
    assert table1.reproduce([CELL], tmp_path, Workers(1), "the command", seeds=1) == {}
    (tmp_path / "results").mkdir()
    there = [{"model": "irnn", "units": 50, "recipe": "tuned", "protocol": 1}]
    (tmp_path / "results" / "table1.json").write_text(json.dumps(there))
    with pytest.raises(ValueError, match=r"table1.json has results of another protocol, .* move it away"):
        table1.report(Report(tmp_path, tmp_path / "results", publish=True))
    assert json.loads((tmp_path / "results" / "table1.json").read_text()) == there


def test_nothing_to_report(tmp_path):
    assert not table1.report(Report(tmp_path, tmp_path / "results"))


def test_the_literal_recipe_starts_as_the_paper_says_and_adds_nothing():
    run = table1.literal(CELL, 0)
    assert (run.training.clip, run.training.schedule) == (0, "constant")
    weights = run.make_net().state_dict()
    for name in ("embedding", "core.weight_ih_l0"):
        limit = 1 / weights[name].shape[1 if name == "embedding" else 0] ** 0.5
        assert 0.95 * limit < weights[name].abs().max() <= limit


def test_a_cell_without_settings_says_how_to_find_them(small, tmp_path, monkeypatch):
    monkeypatch.setattr(table1, "TUNED", {})
    with pytest.raises(ValueError, match="fast-weights/50 has not been tuned yet: fastweights search table1"):
        table1.reproduce([CELL], tmp_path, Workers(2), "the command")
    assert not list(tmp_path.iterdir())


def test_convergence():
    def run(*errors):
        return {"curves": {"updates": [10, 20, 30], "validation_error": errors}}

    rows = table1.convergence({"lstm": {"seeds": [run(0.6, 0.4, 0.05), run(0.6, 0.6, 0.3)]}, "irnn": {"seeds": [{}]}})
    assert rows == [("LSTM", "20 to 30", "30 to 30, never in 1 of 2", "never in 2 of 2")]
