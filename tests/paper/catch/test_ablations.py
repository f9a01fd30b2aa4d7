"""The ablations of Catch: one thing is changed at a time, and what the base settings have anyway is not run twice."""

import json

import pytest

from fastweights.paper.catch import ablations as catch_ablations
from fastweights.paper.catch import learning as catch
from fastweights.paper.reports import Report
from fastweights.training.workers import Workers

OURS = catch_ablations.CHANGES["fast-weights"]


@pytest.fixture
def selected(monkeypatch):
    monkeypatch.setitem(catch.FRAMES, catch_ablations.VARIANT, 1_000)
    monkeypatch.setattr(catch_ablations, "SEEDS", 2)
    setting = {"lr": 1e-3, "entropy_coef": 0.01, "input_range": 0.3, "num_envs": 16}
    ours = setting | {"rate": 0.1, "decay": 0.9, "inner_steps": 1}
    for core in catch.CORES:
        monkeypatch.setitem(catch.TUNED, (catch_ablations.VARIANT, core), ours if core == "fast-weights" else setting)


def test_each_change_changes_something(selected):
    runs = [
        run for hyperparameters in OURS.values() for run in catch_ablations.runs_of("fast-weights", hyperparameters)
    ]
    same = ("inputs U(±0.3)", "1 inner step", "rate 0.1", "decay 0.9", "entropy_coef 0.01", "16 environments")
    assert all(catch_ablations.runs_of("fast-weights", OURS[name]) == [] for name in same)
    assert len(set(runs)) == len(runs) == 2 * (len(OURS) - len(same))
    assert {run.seed for run in runs} == {60, 61}


def test_end_to_end(selected, tmp_path, monkeypatch):
    some = {name: OURS[name] for name in ("as selected", "sees its last action", "inputs U(±0.3)")}
    monkeypatch.setattr(catch_ablations, "CHANGES", {"lstm": some, "fast-weights": some})
    assert not catch_ablations.report(Report(tmp_path, tmp_path / "results"))
    assert catch_ablations.reproduce((), tmp_path, Workers(2), "the command") == {}
    assert catch_ablations.report(Report(tmp_path, tmp_path / "results", publish=True))
    entries = json.loads((tmp_path / "results" / "catch-ablations.json").read_text())
    assert [(entry["core"], entry["change"], len(entry["seeds"])) for entry in entries] == [
        (core, change, 2) for core in ("lstm", "fast-weights") for change in ("as selected", "sees its last action")
    ]
    assert entries[0]["seeds"] != entries[1]["seeds"]
    records = json.loads((tmp_path / "results" / "catch-ablations-tests.json").read_text())
    assert {
        "catch-ablations/16-3/fast-weights-lstm/auc",  # as selected
        "catch-ablations/16-3/sees-its-last-action/fast-weights-lstm/auc",
        "catch-ablations/16-3/lstm/as-selected-sees-its-last-action/auc",
    } <= {record["id"] for record in records}
    assert "| fast weights | sees its last action | " in (tmp_path / "results" / "catch-ablations.md").read_text()
    assert catch_ablations.reproduce(["as selected"], tmp_path / "some", Workers(2), "the command") == {}
    assert {entry["change"] for entry in catch_ablations.collect(tmp_path / "some")} == {"as selected"}


def test_a_change_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"changes must be some of 'as selected', .*; got 'as selcted'"):
        catch_ablations.reproduce(["as selcted"], tmp_path, Workers(1), "")
