"""Catch: settings drawn alike for all cores, the search narrowed as it should be, curves read right."""

import json

import pytest

from fastweights import cli
from fastweights.paper import agents, catch
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
        found = {core: list(catch.trials(core, variant, 50).values()) for core in catch.CORES}
        for runs in zip(*found.values(), strict=True):
            assert len({(run.training, run.seed, run.input_range) for run in runs}) == 1
            assert 3e-4 < runs[0].training.lr <= 1e-2
            assert 0.003 < runs[0].training.entropy_coef < 0.032
            assert runs[0].training.rollout == variant[0] - 1
        ours = found["fast-weights"]
        assert len({run.training.lr for run in ours}) == 50
        assert {run.inner_steps for run in ours} == {1, 2, 3}
        assert {run.input_range for run in ours} == {0, 0.3, 1}
        assert catch.trials("lstm", variant, 3) == dict(list(catch.trials("lstm", variant, 50).items())[:3])


def test_frames_to_a_return():
    curve = [{"frames": 10 * n, "return": mean} for n, mean in enumerate([-1, 1, -1, 0.5, 0.75, 1, 1], 1)]
    assert catch.frames_to(curve, 0.5, over=1) == 20
    assert catch.frames_to(curve, 0.5, over=2) == 50
    assert catch.frames_to(curve, 0.99, over=2) == 70
    assert catch.frames_to(curve, 0.99, over=3) is None
    assert catch.final_return(curve) == 1
    assert catch.final_return([]) == -1


def test_a_quick_look_end_to_end(short, tmp_path, capsys):
    assert cli.run(["reproduce", "catch", "--quick", "--cores", "irnn", "fast-weights", "--runs", str(tmp_path)]) == 0
    shown = tmp_path / "catch-quick" / "report"
    entries = json.loads((shown / "catch.json").read_text())
    assert [(entry["variant"], entry["core"], len(entry["seeds"])) for entry in entries] == [
        ([16, 3], "irnn", 1),
        ([16, 3], "fast-weights", 1),
    ]
    assert {"frames_to_0", "frames_to_0.5", "frames_to_0.9", "final_return", "best_return", "greedy_return"} < set(
        entries[0]["seeds"][0]
    )
    assert (shown / "catch-16-3.png").exists()
    assert "| 16, 3 | fast weights | " in (shown / "catch.md").read_text()
    printed = capsys.readouterr().out
    assert "Catch: agents with memory. Quick look: not a result" in printed
    assert f"fastweights watch {tmp_path}/catch-quick/16-3/fast-weights/seed-30" in printed
    assert "±" not in (shown / "catch.md").read_text().split("## Training")[0].split("|", 1)[1]


def test_the_search_and_what_it_found_end_to_end(short, tmp_path, monkeypatch):
    monkeypatch.setattr(catch, "TOP", 2)
    monkeypatch.setattr(catch, "FINALISTS", 1)
    words = ["--cores", "lstm", "--games", "16,3", "--publish", "--runs", str(tmp_path)]
    words += ["--results", str(tmp_path / "results")]
    assert cli.run(["search", "catch", "--trials", "3", *words]) == 0
    tried = json.loads((tmp_path / "results" / "catch-search.json").read_text())["trials"]["16-3/lstm"]
    assert sorted(trial["trial"] for trial in tried) == ["trial-0", "trial-1", "trial-2"]
    selected, second, third = tried
    assert len(selected["mean_returns"]) == 1 + catch.FINAL_SEEDS
    assert selected["mean_returns"][0] == selected["mean_return"] >= second["mean_return"]  # the only finalist
    assert second["mean_returns"] is third["mean_returns"] is third["mean_return"] is None
    assert third["early_return"] <= min(selected["early_return"], second["early_return"])
    folder = tmp_path / "search-catch" / "16-3" / "lstm"
    frames = {path.name: RunFolder(path).metrics[-1]["frames"] for path in folder.glob("trial-*")}
    assert frames[selected["trial"]] >= frames[second["trial"]] >= 4_000 > 1_500 > frames[third["trial"]] >= 1_000
    again = [RunFolder(folder / "again" / f"{selected['trial']}-{number}") for number in range(catch.FINAL_SEEDS)]
    assert len({run.config["settings"]["seed"] for run in again}) == catch.FINAL_SEEDS
    assert {run.config["settings"]["lr"] for run in again} == {selected["setting"]["lr"]}
    assert len(list(folder.glob("again/*"))) == catch.FINAL_SEEDS
    before = {path: path.read_bytes() for path in folder.glob("**/metrics.jsonl")}
    assert cli.run(["search", "catch", "--trials", "3", *words]) == 0  # there is nothing left to do
    assert {path: path.read_bytes() for path in folder.glob("**/metrics.jsonl")} == before
    monkeypatch.setitem(catch.TUNED, ((16, 3), "lstm"), tried[0]["setting"])
    assert cli.run(["reproduce", "catch", "--trials", "3", "--seeds", "1", *words]) == 0
    (entry,) = json.loads((tmp_path / "results" / "catch.json").read_text())
    assert entry["setting"] == tried[0]["setting"]
    assert len(entry["trials"]) == 3
    assert all(trial in entry["trials"] for trial in tried)
    assert (tmp_path / "results" / "catch-16-3-search.svg").exists()
    assert len(entry["seeds"][0]["curve"]["return"]) == len(entry["seeds"][0]["curve"]["frames"]) > 1

    # On another machine, where none of these runs are, another core is trained: what was published stays.
    monkeypatch.setitem(catch.TUNED, ((16, 3), "irnn"), tried[0]["setting"])
    elsewhere = ["--cores", "irnn", "--games", "16,3", "--publish", "--runs", str(tmp_path / "other"), *words[-2:]]
    assert cli.run(["reproduce", "catch", "--seeds", "1", *elsewhere]) == 0
    irnn, lstm = json.loads((tmp_path / "results" / "catch.json").read_text())
    assert (irnn["core"], lstm) == ("irnn", entry)
    assert "LSTM (1 run)" in (tmp_path / "results" / "catch-16-3.svg").read_text()
    assert cli.run(["search", "catch", "--trials", "1", *elsewhere]) == 0
    found = json.loads((tmp_path / "results" / "catch-search.json").read_text())["trials"]
    assert (len(found["16-3/irnn"]), found["16-3/lstm"]) == (1, tried)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: catch.search([(16, 3)], ["lstm"], 0, path, Workers(1), ""), "trials must be at least 1, got 0"),
        (
            lambda path: catch.reproduce([(16, 3)], ["lstm"], path, Workers(1), "", seeds=0),
            "seeds must be at least 1, got 0",
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
