"""Searches of one's own through the command line: killed, restarted and on a cluster, the table is the same."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fastweights import cli
from fastweights.cli import options
from fastweights.paper import studies
from fastweights.paper.cells import Cell
from fastweights.paper.reports import Report
from fastweights.paper.retrieval import table1
from fastweights.paper.run import with_hyperparameters
from fastweights.training import search
from fastweights.training.workers import Outcomes, Workers

GRID = ["lr=1e-3,3e-3,1e-2", "clip=0.5,5", "input_range=0.1,1.0", "seed=0,1"]
SMALL = ["pairs=1", "examples=300", "epochs=2"]
STUDY = "own-table1-fast-weights-20"


def start(runs, *more, grid=GRID, **options):
    words = ["search", "table1", "--cell", "fast-weights/20", "--grid", *grid, *SMALL, "--runs", str(runs), *more]
    command = [sys.executable, "-m", "fastweights", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def table_of(runs):
    return json.loads((runs / "studies" / "report" / f"search-{STUDY}.json").read_text())


def wait_for(runs, finished, process):
    begun = time.monotonic()
    while len(list(runs.glob("studies/*/*/result.json"))) < finished:
        assert process.poll() is None
        assert time.monotonic() - begun < 300
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The table of a search that nobody disturbs, of 24 runs."""
    runs = tmp_path_factory.mktemp("undisturbed")
    process = start(runs)
    assert process.wait() == 0, process.stderr.read()
    process.stderr.close()
    table = table_of(runs)
    assert len(table) == 24
    assert len({json.dumps(trial["setting"]) for trial in table}) == 24
    assert [trial["value"] for trial in table] == sorted(trial["value"] for trial in table)
    return table


def test_a_search_whose_worker_and_then_all_of_it_is_killed_ends_with_the_same_table(undisturbed, tmp_path):
    process = start(tmp_path)
    wait_for(tmp_path, 6, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)
    wait_for(tmp_path, 12, process)
    process.send_signal(signal.SIGKILL)
    _, printed = process.communicate()
    assert printed.count("FAILED: its process was killed (SIGKILL)") <= 1  # 0: it was between two runs
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("studies/*/*/result.json")}
    assert 12 <= len(finished) < 24
    process = start(tmp_path)
    _, printed = process.communicate()
    assert process.returncode == 0, printed
    assert table_of(tmp_path) == undisturbed
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # none was run twice


def test_a_search_that_is_interrupted_stops_with_a_word_and_goes_on(undisturbed, tmp_path):
    def heed_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which tests that a shell runs in the background ignore

    process = start(tmp_path, preexec_fn=heed_interrupts)
    wait_for(tmp_path, 6, process)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate()
    assert process.returncode == 130
    assert printed.endswith("fastweights: stopped; the same command goes on from here\n")
    assert "Traceback" not in printed
    process = start(tmp_path)
    _, printed = process.communicate()
    assert process.returncode == 0, printed
    assert table_of(tmp_path) == undisturbed


def test_a_search_goes_on_when_a_loss_is_not_a_number_and_when_the_disk_is_full(tmp_path):
    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))  # of the study, but not of a checkpoint

    grid = ["lr=1e-3,1e30"]
    process = start(tmp_path, grid=grid, preexec_fn=no_large_files)
    _, printed = process.communicate()
    assert process.returncode == 1
    assert "lr=1e+30,pairs=1,examples=300,epochs=2: diverged" in printed
    failed = [line for line in printed.splitlines() if line.startswith("fastweights: ")]
    assert len(failed) == 2
    assert "last.safetensors could not be written (File too large); what was there is still there" in failed[0]
    assert failed[1] == "fastweights: the same command runs what is missing"
    assert "Traceback" not in printed
    process = start(tmp_path, grid=grid)
    _, printed = process.communicate()
    assert process.returncode == 0, printed
    good, diverged = table_of(tmp_path)
    assert (good["setting"]["lr"], diverged["setting"]["lr"]) == (1e-3, 1e30)
    assert good["value"] < 10
    assert diverged["value"] == float("inf")


def test_the_same_on_a_cluster_that_loses_a_node(undisturbed, tmp_path):
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        process = start(tmp_path, "--ray", cluster.address)
        wait_for(tmp_path, 8, process)
        cluster.remove_node(node, allow_graceful=False)
        _, printed = process.communicate()
        assert process.returncode == 0, printed
    finally:
        cluster.shutdown()
    assert table_of(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "speed=1,2"], "there is no hyperparameter 'speed'; there are batch, clip"),
        (["--grid", "lr=fast,slow"], "lr must be of the kind of 0.0003, got 'fast'"),
        (["--grid", "layer_norm=1,0"], "layer_norm must be of the kind of True, got 1"),
        (["--grid", "lr=-1,1"], "lr must be"),
        (["--cell", "lstm/20", "--grid", "rate=0.1,0.5"], "rate is no hyperparameter of this model; got rate=0.1"),
        (["--grid", "lr=1e-3", "--rung", "-1"], "rung must be at least 0, got -1"),
        (["--grid", "lr"], "a hyperparameter must be written as"),
        (["--grid", "lr=1e-3", "--tpe", "3"], "by one of --grid, --random and --tpe; got grid and tpe"),
        (["--tpe", "3"], "hyperparameters must be at least one"),
        (["--hyperparameters", "lr=1e-3"], "--hyperparameters must go with --random or --tpe"),
        (["--grid", "lr=1e-3", "--storage", "nonsense"], "the data base nonsense cannot be reached"),
        (["--grid", "lr=1e-3", "--cell", "lstm/20", "lstm/50"], "must be for one cell, as in --cell irnn/20; got 2"),
        (["--grid", "lr=1e-3", "--ray", "127.0.0.1:1"], "there is no Ray cluster at '127.0.0.1:1'"),
    ],
)
def test_bad_searches_end_in_one_line_before_anything_starts(words, message, tmp_path, capsys):
    if "--ray" in words:
        pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    cell = [] if "--cell" in words else ["--cell", "fast-weights/20"]
    assert cli.run(["search", "table1", *cell, *words, "--runs", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not list(tmp_path.glob("studies/*/*"))


def test_a_study_of_another_experiment(tmp_path, capsys):
    words = ["search", "table1", "--grid", "lr=1e-3", "pairs=1", "examples=300", "epochs=1", "--runs", str(tmp_path)]
    assert cli.run([*words, "--cell", "fast-weights/20", "--study", "mine"]) == 0
    assert cli.run([*words, "--cell", "lstm/20", "--study", "mine"]) == 2
    assert "the study 'mine' is of something else: its experiment was" in capsys.readouterr().err
    assert cli.run(["search", "show", "mine", "--runs", str(tmp_path)]) == 0
    assert "Study mine: 1 trials" in capsys.readouterr().out
    assert (tmp_path / "studies" / "report" / "search-mine.html").exists()
    assert cli.run(["search", "show", "yours", "--runs", str(tmp_path)]) == 2
    assert "there is no study 'yours'" in capsys.readouterr().err


def test_a_study_without_a_finished_trial(tmp_path, capsys):
    search.open_study("empty", studies.storage_of(tmp_path), search.Plan((search.Hyperparameter("lr", (1e-3,)),)), {})
    assert studies.show(None, Report(tmp_path, tmp_path / "results")) == ["empty"]
    assert capsys.readouterr().out == "Study empty: no trial is finished\n"
    assert not (tmp_path / "studies").exists()


def test_hyperparameters_of_the_run_and_of_its_recipe():
    base = table1.config(Cell("fast-weights", 20), {}, 0)
    run = with_hyperparameters(base, {"lr": 1, "decay": 0.5, "schedule": "constant", "inner_steps": 2})
    assert (run.training.lr, run.decay, run.training.schedule, run.inner_steps) == (1, 0.5, "constant", 2)
    assert run.training.clip == base.training.clip


def test_no_password_is_recorded_or_shown(monkeypatch, tmp_path, capsys):
    address = f"sqlite://me:secret@/{tmp_path}/studies.sqlite"
    monkeypatch.setattr(sys, "argv", ["fastweights", "search", "show", "--storage", address])
    assert "secret" not in options.command()
    monkeypatch.setattr(search, "load_studies", lambda storage: [])
    with pytest.raises(ValueError, match="there is no study 'nothing' in sqlite://me:") as caught:
        studies.show(address, Report(tmp_path, tmp_path), ["nothing"])
    assert "secret" not in str(caught.value)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The search for a cell of Table 1, with trials of seconds, in this process."""
    full = table1.config

    def config(cell, setting, seed):
        run = full(cell, setting, seed)
        return dataclasses.replace(run, pairs=1, examples=400, training=dataclasses.replace(run.training, epochs=6))

    def in_this_process(jobs, workers, describe, *, total, should_prune, over):
        outcomes = Outcomes()
        for job in jobs:

            def report(progress, job=job):
                if should_prune(job, progress):
                    raise KeyboardInterrupt

            try:
                outcomes.results[job.name] = job.function(**job.arguments, report=report)
                over(job, "done", outcomes.results[job.name])
            except KeyboardInterrupt:
                over(job, "stopped", None)
        return outcomes

    monkeypatch.setattr(table1, "config", config)
    monkeypatch.setattr(table1, "EPOCHS", {20: 6})
    monkeypatch.setattr(search, "run_all", in_this_process)
    monkeypatch.setattr(studies, "FINALISTS", 2)
    return dataclasses.replace(table1.study(Cell("fast-weights", 20)), trials=3, seeds=3)


def test_the_papers_search_halves_and_selects_by_the_mean_of_several_seeds(small, tmp_path):
    assert studies.run_paper([small], tmp_path, Workers(1), "the command") == {}
    found = studies.outcome(small, tmp_path)
    assert found["trials"] == len(found["tried"]) == small.plan.trials == 9
    whole = [trial for trial in found["tried"] if trial["epochs"] is None]
    stopped = [trial for trial in found["tried"] if trial["epochs"] is not None]
    assert {trial["epochs"] for trial in stopped} == {small.rung} == {3}
    assert 3 <= len(whole) < 9
    assert [trial["value"] for trial in whole] == sorted(trial["value"] for trial in whole)
    assert [trial["setting"] for trial in whole[:2]] in (
        [each["setting"] for each in found["finalists"]],
        [each["setting"] for each in reversed(found["finalists"])],
    )
    assert [len(each["values"]) for each in found["finalists"]] == [3, 3]
    means = [sum(each["values"]) for each in found["finalists"]]
    assert means == sorted(means)
    assert found["selected"] == found["finalists"][0]["setting"]
    assert -1 <= found["rank_correlation"]["estimate"] <= 1
    for path in tmp_path.rglob("metrics.jsonl"):
        assert "test_loss" not in path.read_text()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert studies.run_paper([small], tmp_path, Workers(1), "the command") == {}  # there is nothing left to do
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == before
    assert studies.outcome(small, tmp_path) == found


def test_a_search_over_another_range_is_refused_by_name(small, tmp_path):
    assert studies.run_paper([dataclasses.replace(small, trials=1)], tmp_path, Workers(1), "the command") == {}
    wider = dataclasses.replace(small, hyperparameters=("lr=1e-5..1e-1", *small.hyperparameters[1:]))
    with pytest.raises(ValueError, match=r"the study 'table1/fast-weights-20' is of something else: its hyperparam"):
        studies.run_paper([wider], tmp_path, Workers(1), "the command")


def test_a_hyperparameter_that_a_model_has_not():
    for name, value in (("rate", 0.1), ("recurrent_init", 0.5)):
        with pytest.raises(ValueError, match=f"{name} is no hyperparameter of this model; got {name}={value}"):
            with_hyperparameters(table1.config(Cell("lstm", 20), {}, 0), {name: value})
