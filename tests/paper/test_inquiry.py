"""The inquiry into Catch: one thing is changed at a time, and what was chosen anyway is not run twice."""

import json

import pytest

from fastweights.paper import inquiry
from fastweights.training.workers import Workers

OURS = inquiry.CHANGES["fast-weights"]


@pytest.fixture
def chosen(monkeypatch):
    monkeypatch.setattr(inquiry, "FRAMES", 1_000)
    monkeypatch.setattr(inquiry, "SEEDS", 2)
    setting = {**inquiry.BEFORE, "lr": 1e-3, "entropy": 0.01, "input_range": 0.3}
    ours = setting | {"rate": 0.1, "decay": 0.9, "inner_steps": 1}
    monkeypatch.setattr(inquiry, "CHOSEN", {"irnn": setting, "lstm": setting, "fast-weights": ours})


def test_each_change_changes_something(chosen):
    runs = [run for knobs in OURS.values() for run in inquiry.runs_of("fast-weights", knobs)]
    same = ("inputs U(±0.3)", "1 inner step", "rate 0.1", "decay 0.9")
    assert all(inquiry.runs_of("fast-weights", OURS[name]) == [] for name in same)
    assert len(set(runs)) == len(runs) == 2 * (len(OURS) - len(same))
    assert {run.seed for run in runs} == {0, 1}


def test_end_to_end(chosen, tmp_path, monkeypatch, capsys):
    some = {name: OURS[name] for name in ("as chosen", "sees its last action", "inputs U(±0.3)")}
    monkeypatch.setattr(inquiry, "CHANGES", {"lstm": some, "fast-weights": some})
    assert not inquiry.publish(tmp_path, tmp_path / "results")
    assert "fastweights reproduce inquiry" in capsys.readouterr().err
    assert inquiry.reproduce((), tmp_path, Workers(2), "the command") == {}
    assert inquiry.publish(tmp_path, tmp_path / "results")
    entries = json.loads((tmp_path / "results" / "catch-inquiry.json").read_text())
    assert [(entry["core"], entry["change"], len(entry["seeds"])) for entry in entries] == [
        (core, change, 2) for core in ("lstm", "fast-weights") for change in ("as chosen", "sees its last action")
    ]
    assert entries[0]["seeds"] != entries[1]["seeds"]
    assert "| fast-weights | sees its last action | " in (tmp_path / "results" / "catch-inquiry.md").read_text()
    assert inquiry.reproduce(["as chosen"], tmp_path / "some", Workers(2), "the command") == {}
    assert {entry["change"] for entry in inquiry.collect(tmp_path / "some")} == {"as chosen"}


def test_a_change_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"changes must be some of 'as chosen', .*; got 'as choosen'"):
        inquiry.reproduce(["as choosen"], tmp_path, Workers(1), "")
