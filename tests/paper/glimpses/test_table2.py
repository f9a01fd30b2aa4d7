"""Table 2: its cells are the paper's, all tuned alike, and the table says what the runs say."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from fastweights import cli
from fastweights.paper import studies
from fastweights.paper.cells import Cell
from fastweights.paper.glimpses import ablations, table2
from fastweights.paper.reports import Report
from fastweights.training.runs import RunFolder
from fastweights.training.workers import Workers

there = Path(os.environ.get("FASTWEIGHTS_DATA", "nowhere"), "mnist").is_dir()
needs_mnist = pytest.mark.skipif(not there, reason="FASTWEIGHTS_DATA is not set to a folder with mnist/ in it")
CELL = Cell("fast-weights", 50)


@pytest.fixture
def short(monkeypatch):
    """Runs of seconds."""
    monkeypatch.setattr(table2, "QUICK", {"epochs": 1, "examples": 640})
    monkeypatch.setattr(table2, "EPOCHS", 1)


def test_the_papers_numbers():
    numbers = {str(cell): table2.paper_error(cell) for cell in table2.CELLS}
    assert len(numbers) == 15
    assert (numbers["fast-weights/50"], numbers["lstm/200"], numbers["ln-rnn/100"]) == (7.21, 1.10, None)


def test_cells_differ_in_nothing_but_model_size_and_what_was_tuned():
    base = table2.config(CELL, "plain", {"lr": 1e-3}, 0).settings()
    for cell in table2.CELLS:
        for recipe, pixels in table2.RECIPES.items():
            run = table2.config(cell, recipe, {"lr": 1e-2}, 7).settings()
            expected = {"model": cell.model, "units": cell.units, "translation": pixels, "lr": 1e-2, "seed": 7}
            assert run == base | expected
            study = table2.study(cell, recipe)
            assert study.plan.trials == 8 * len(study.hyperparameters)
            assert set(table2.FOR_ALL) <= set(study.hyperparameters)
            assert study.rung == 7


def test_an_ablation_changes_one_part():
    base = table2.config(CELL, "plain", {"lr": 1e-3, "weight_decay": 0.1}, 0)
    for name, hyperparameters in ablations.ABLATIONS.items():
        assert len(hyperparameters) == (name != "as in the table")
        for hyperparameter, value in hyperparameters.items():
            assert value != getattr(base.training if hyperparameter == "weight_decay" else base, hyperparameter) or (
                name == "rate 0.5"  # the default, which the search replaces
            )
            if hyperparameter == "control_signals":
                assert len(set(base.control_signals) - set(value)) == 1
                assert set(value) < set(base.control_signals)


def test_a_cell_that_was_not_tuned(tmp_path, monkeypatch):
    monkeypatch.setattr(table2, "TUNED", {"plain": {}, "augmented": {}})
    with pytest.raises(ValueError, match="fast-weights/50 has not been tuned for 'plain' images yet"):
        table2.reproduce([CELL], ["plain"], tmp_path, Workers(1), "", seeds=1, quick=False)


@needs_mnist
def test_a_quick_look_end_to_end(short, tmp_path, capsys):
    words = ["reproduce", "table2", "--quick", "--cells", "fast-weights/50", "convnet/50", "--runs", str(tmp_path)]
    assert cli.run(words) == 0
    shown = tmp_path / "table2-quick" / "report"
    entries = json.loads((shown / "table2.json").read_text())
    assert [(entry["model"], entry["recipe"], entry["paper"]) for entry in entries] == [
        ("convnet", "plain", 1.81),
        ("fast-weights", "plain", 7.21),
    ]
    result = RunFolder(tmp_path / "table2-quick" / "plain" / "fast-weights-50" / "seed-0").result
    assert entries[1]["test_error_mean"] == 100 * result["test_error"] < 80
    page = (shown / "table2.md").read_text()
    assert f"| fast weights | 50 | {entries[1]['test_error_mean']:.2f} |" in page
    assert "**Quick look: not a result.**" in page
    assert "(table2-retrieved.png)" in page
    assert (shown / "table2-plain.svg").exists()
    printed = capsys.readouterr().out
    assert "Table 2: MNIST by glimpses, plain images. Quick look: not a result" in printed
    assert f"run folders: 2 in {tmp_path}/table2-quick" in printed.replace("\n", "")
    assert f"next: fastweights evaluate {tmp_path}/table2-quick/plain/fast-weights-50/seed-0" in printed


@needs_mnist
def test_the_search_and_the_ablations_end_to_end(short, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "FINALISTS", 1)
    monkeypatch.setattr(ablations, "SEEDS", 1)
    monkeypatch.setattr(ablations, "ABLATIONS", {"as in the table": {}, "20 glimpses": {"order": "once"}})
    monkeypatch.setitem(table2.HYPERPARAMETERS, "fast-weights", ("lr=1e-2,1e-5",))
    full, study = table2.config, table2.study

    def config(*arguments, **options):
        return dataclasses.replace(full(*arguments, **options), examples=640)

    def short_study(*arguments):
        return dataclasses.replace(study(*arguments), trials=3, seeds=2)

    for room in (table2, ablations):
        monkeypatch.setattr(room, "config", config)
    monkeypatch.setattr(table2, "study", short_study)
    places = ["--runs", str(tmp_path), "--results", str(tmp_path / "results")]
    assert cli.run(["search", "table2", "--cells", str(CELL), "--recipes", "augmented", *places]) == 0
    written = tmp_path / "search-table2" / "report" / "table2-search.json"
    assert not (tmp_path / "results").exists()
    found = json.loads(written.read_text())["cells"]
    assert list(found) == ["augmented/fast-weights/50"]
    assert found["augmented/fast-weights/50"]["selected"] == {"lr": 1e-2}
    assert len(found["augmented/fast-weights/50"]["finalists"][0]["values"]) == 2

    monkeypatch.setattr(table2, "TUNED", {"plain": {"fast-weights/100": {"lr": 1e-2}}})
    assert cli.run(["reproduce", "ablations", "glimpses", *places]) == 0
    base, once = ablations.collect(tmp_path)
    assert (base["change"], once["change"]) == ("as in the table", "20 glimpses")
    page = (tmp_path / "glimpses-ablations" / "report" / "glimpses-ablations.md").read_text()
    assert f"| 20 glimpses | {once['test_error_mean']:.2f} | 0 | trained here |" in page


def test_nothing_to_report(tmp_path):
    assert not table2.report(Report(tmp_path, tmp_path / "results"))
    assert not ablations.report(Report(tmp_path, tmp_path / "results"))


def test_changes_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="changes must be some of 'as in the table', .*; got 'rate 7'"):
        ablations.reproduce(["rate 7"], tmp_path, Workers(1), "")
