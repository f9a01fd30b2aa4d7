"""Catch: settings drawn alike for all cores, the search narrowed as it should be, curves read right."""

import dataclasses
import json

import pytest

from fastweights import cli
from fastweights.paper import studies
from fastweights.paper.catch import learning as catch
from fastweights.paper.catch import measures
from fastweights.paper.catch import run as agents
from fastweights.paper.reports import Report
from fastweights.training.runs import RunFolder
from fastweights.training.workers import Workers


@pytest.fixture
def short(monkeypatch):
    """Runs of seconds."""
    monkeypatch.setattr(catch, "FRAMES", dict.fromkeys(catch.VARIANTS, 4_000))
    monkeypatch.setattr(catch, "QUICK_FRAMES", 2_000)
    monkeypatch.setitem(agents.STEADY, "num_envs", 4)


def test_every_core_is_searched_alike():
    for variant in catch.VARIANTS:
        found = {core: catch.study(variant, core) for core in catch.CORES}
        assert len({study.config.training for study in found.values()}) == 1
        assert {study.plan.trials / len(study.hyperparameters) for study in found.values()} == {8}
        assert min(study.plan.trials for study in found.values()) >= 48
        assert {study.seeds for study in found.values()} == {5}
        for_all = set(catch.FOR_ALL) | {f"rollout={(variant[0] - 1) // 3},{variant[0] - 1}"}
        assert all(for_all < {*study.hyperparameters, ""} for study in found.values())
        own = {core: set(study.hyperparameters) - for_all for core, study in found.items()}
        assert own["lstm"] == set()
        assert own["irnn"] == {catch.W}
        assert own["irnn"] < own["fast-weights"]
        assert found["lstm"].config.training.rollout == variant[0] - 1


def test_a_quick_look_end_to_end(short, tmp_path, capsys):
    assert cli.run(["reproduce", "catch", "--quick", "--cores", "irnn", "fast-weights", "--runs", str(tmp_path)]) == 0
    shown = tmp_path / "catch-quick" / "report"
    entries = json.loads((shown / "catch.json").read_text())
    assert [(entry["variant"], entry["core"], len(entry["seeds"])) for entry in entries] == [
        ([16, 3], "irnn", 1),
        ([16, 3], "fast-weights", 1),
    ]
    assert {"auc", "frames_to_-0.5", "frames_to_0", "frames_to_0.5", "frames_to_0.9", "collapse", "curve"} < set(
        entries[0]["seeds"][0]
    )
    assert {"final_return", "best_return", "greedy_return", "sampled_return"} < set(entries[0]["seeds"][0])
    assert (shown / "catch-16-3.png").exists()
    assert "| 16, 3 | fast weights | " in (shown / "catch.md").read_text()
    printed = capsys.readouterr().out
    assert "Catch: agents with memory. Quick look: not a result" in printed
    assert f"fastweights watch {tmp_path}/catch-quick/16-3/fast-weights/seed-40" in printed
    page = (shown / "catch.md").read_text()
    assert "±" not in page.split("## Training")[0].split("|", 1)[1]
    assert "| 16, 3 | fast weights | 1 | 0 | 0 |" in page.split("## Policy collapse")[1]


def test_the_search_and_what_it_found_end_to_end(short, tmp_path, monkeypatch):
    study = catch.study
    monkeypatch.setattr(studies, "FINALISTS", 1)
    monkeypatch.setattr(
        catch,
        "study",
        lambda *which: dataclasses.replace(study(*which), hyperparameters=("lr=1e-3..1e-2",), trials=3, seeds=2),
    )
    words = ["--cores", "lstm", "--games", "16,3", "--publish", "--runs", str(tmp_path)]
    words += ["--results", str(tmp_path / "results")]
    assert cli.run(["search", "catch", *words]) == 0
    found = json.loads((tmp_path / "results" / "catch-search.json").read_text())["cells"]["16-3/lstm"]
    assert found["trials"] == 3
    runs = [path.parent for path in tmp_path.glob("studies/catch/16-3/lstm/*/result.json")]
    returns = {measures.mean_return(RunFolder(path).metrics) for path in runs}
    assert -found["finalists"][0]["values"][0] == max(returns)
    assert len(found["finalists"][0]["values"]) == 2
    monkeypatch.setitem(catch.TUNED, ((16, 3), "lstm"), found["selected"])
    assert cli.run(["reproduce", "catch", "--seeds", "1", *words]) == 0
    (entry,) = json.loads((tmp_path / "results" / "catch.json").read_text())
    assert (entry["setting"], entry["trials"], entry["workers"]) == (found["selected"], 3, 1)
    assert len(entry["seeds"][0]["curve"]["return"]) == len(entry["seeds"][0]["curve"]["frames"]) > 1

    # On another machine, where none of these runs are, another core is trained: what was published stays.
    monkeypatch.setitem(catch.TUNED, ((16, 3), "irnn"), found["selected"])
    elsewhere = ["--cores", "irnn", "--games", "16,3", "--publish", "--runs", str(tmp_path / "other"), *words[-2:]]
    assert cli.run(["reproduce", "catch", "--seeds", "1", *elsewhere]) == 0
    irnn, lstm = json.loads((tmp_path / "results" / "catch.json").read_text())
    assert (irnn["core"], lstm) == ("irnn", entry)
    assert "LSTM (1 seed)" in (tmp_path / "results" / "catch-16-3.svg").read_text()

    # What the paper shows: the curves of the best trials; of one core here, as published.
    assert found["finalists"][0]["curve"]["return"]
    assert "LSTM (1 seed)" in (tmp_path / "results" / "catch-16-3-best.svg").read_text()


def test_asynchronous_workers_are_reported_beside_synchronous_runs(short, tmp_path):
    words = ["--cores", "lstm", "--games", "16,3", "--seeds", "2", "--runs", str(tmp_path)]
    assert cli.run(["reproduce", "catch", *words]) == 0
    assert cli.run(["reproduce", "catch", "--asynchronous", "4", *words]) == 0
    shown = tmp_path / "catch" / "report"
    entries = json.loads((shown / "catch.json").read_text())
    assert [(entry["core"], entry["workers"]) for entry in entries] == [("lstm", 1), ("lstm", 4)]
    assert (shown / "catch-16-3.png").exists()
    assert (shown / "catch-16-3-asynchronous.png").exists()
    assert "| 16, 3 | LSTM (4 workers) | " in (shown / "catch.md").read_text()
    claims = {record["id"]: record for record in json.loads((shown / "catch-tests.json").read_text())}
    assert "catch/16-3/lstm/synchronous-asynchronous/auc" in claims


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda path: catch.reproduce([(16, 3)], ["lstm"], path, Workers(1), "", seeds=0),
            "seeds must be at least 1, got 0",
        ),
        (
            lambda path: catch.reproduce([(16, 3)], ["lstm"], path, Workers(1), "", asynchronous=0),
            "asynchronous must be at least 1, got 0",
        ),
    ],
)
def test_bad_input(call, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        call(tmp_path)


def test_a_core_that_was_not_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(catch, "TUNED", {})
    with pytest.raises(ValueError, match=r"lstm has not been searched for \(16, 3\) yet: fastweights search catch"):
        catch.reproduce([(16, 3)], ["lstm"], tmp_path, Workers(1), "")


def test_nothing_to_report(tmp_path):
    assert not catch.report(Report(tmp_path, tmp_path / "results"))
