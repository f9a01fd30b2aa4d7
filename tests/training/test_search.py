"""Searches: what is tried, that it is tried once, and that a study is never mistaken for another."""

import os
import subprocess
import sys
import threading

import jobs
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from fastweights.training import search
from fastweights.training.search import Hyperparameter, Plan, Tried, parse_hyperparameter
from fastweights.training.workers import Job, Outcomes, Workers

LR, CLIP = Hyperparameter("lr", (1e-3, 1e-2)), Hyperparameter("clip", (1, 2, 3))
GRID = Plan((LR, CLIP))


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path}/studies.sqlite"


def make_job(name, setting, path):
    return Job(name, jobs.parabola, {"setting": setting})


def run(study, plan, tmp_path, make_job=make_job):
    return search.run(study, plan, tmp_path, make_job, Workers(1))


def in_this_process(work, workers, describe, *, total, should_prune, over):
    """As `run_all`, but without the processes, which take seconds to start."""
    outcomes = Outcomes()
    for job in work:
        try:
            outcomes.results[job.name] = job.function(**job.arguments, report=lambda progress: None)
            over(job, "done", outcomes.results[job.name])
        except ValueError as error:
            outcomes.failures[job.name] = str(error)
            over(job, "failed", str(error))
    assert len(outcomes.results) + len(outcomes.failures) <= total
    return outcomes


@pytest.fixture(autouse=True)
def _fast(request, monkeypatch):
    if "processes" not in request.fixturenames:
        monkeypatch.setattr(search, "run_all", in_this_process)


@pytest.fixture
def processes():
    """Real ones."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "a hyperparameter must be written as name=value,value or name=low..high; got 'lr'"),
        ("=1", "a hyperparameter must be written as"),
        ("lr=", "a hyperparameter must be written as"),
        ("lr=1,1", "lr must have different values; got '1,1'"),
        ("lr=1,,2", "a hyperparameter must not have empty values"),
        ("lr=2..1", r"lr must go from a number to a larger one; got '2..1'"),
        ("lr=a..b", "lr must go from a number to a larger one"),
    ],
)
def test_hyperparameters_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        parse_hyperparameter(text)


def test_hyperparameters_have_the_kinds_that_people_mean():
    assert parse_hyperparameter("x=2,2.5,yes,true,False").values == (2, 2.5, "yes", True, False)
    assert str(parse_hyperparameter("x=1,2.5")) == "x=1,2.5"
    assert str(parse_hyperparameter("x=1..5")) == "x=1..5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((),), "hyperparameters must be at least one"),
        (((LR, LR),), "hyperparameters must be named once each; got lr, lr"),
        (((Hyperparameter("lr", (), 1.0, 2.0),),), "a grid must have values, not ranges; got lr=1.0..2.0"),
        (((LR,), "random"), "trials must be at least 1, got 0"),
    ],
)
def test_plans_that_are_none(arguments, message):
    with pytest.raises(ValueError, match=message):
        Plan(*arguments)


def test_settings_drawn_at_random_are_the_same_for_a_seed_and_within_their_ranges():
    hyperparameters = (
        LR,
        Hyperparameter("rate", (), 1e-4, 1.0),
        Hyperparameter("steps", (), 1, 3),
        Hyperparameter("decay", (), 0.5, 0.9),
    )
    drawn = Plan(hyperparameters, "random", 200, seed=1).settings()
    assert drawn == Plan(hyperparameters, "random", 200, seed=1).settings()
    assert drawn != Plan(hyperparameters, "random", 200, seed=2).settings()
    assert {setting["steps"] for setting in drawn} == {1, 2, 3}
    assert all(0.5 <= setting["decay"] <= 0.9 and 1e-4 <= setting["rate"] <= 1 for setting in drawn)
    low = sum(setting["rate"] < 1e-2 for setting in drawn)  # half, on a logarithmic scale
    assert 70 < low < 130


def test_a_grid_is_tried_once(storage, tmp_path):
    study = search.open_study("grid", storage, GRID, {"task": "t"})
    outcomes = run(study, GRID, tmp_path)
    assert len(outcomes.results) == 6
    again = search.open_study("grid", storage, GRID, {"task": "t"})
    assert run(again, GRID, tmp_path).results == {}
    best = search.finished(again)[0]
    assert best == Tried(0.0, {"lr": 1e-2, "clip": 2})
    assert len(search.finished(again)) == 6


def test_one_that_fails_is_tried_again_at_the_next_start(storage, tmp_path):
    def failing(name, setting, path):
        return Job(
            name,
            jobs.fail if setting["clip"] == 3 else jobs.parabola,
            {} if setting["clip"] == 3 else {"setting": setting},
        )

    study = search.open_study("grid", storage, GRID, {})
    assert len(run(study, GRID, tmp_path, failing).failures) == 2
    again = search.open_study("grid", storage, GRID, {})
    assert sorted(run(again, GRID, tmp_path).results) == ["lr=0.001,clip=3", "lr=0.01,clip=3"]
    assert len(search.finished(again)) == 6


def test_one_whose_process_is_gone_is_taken_over_and_one_that_lives_is_not(storage, tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    study = search.open_study("grid", storage, GRID, {})
    for process in (gone.pid, os.getppid()):
        trial = search._ask(study, GRID)
        trial.set_user_attr("owner", [search.platform.node(), process])
    again = search.open_study("grid", storage, GRID, {})
    assert len(run(again, GRID, tmp_path).results) == 5
    running = again.get_trials(states=(TrialState.RUNNING,))
    assert [trial.user_attrs["owner"][1] for trial in running] == [os.getppid()]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_one_that_was_asked_for_by_somebody_who_died_in_the_middle(storage, tmp_path, monkeypatch, known):
    """Before it is known whose it is, or before all of its settings were."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(search, "ASKING_SECONDS", 0.3)
    trial = search.open_study("grid", storage, GRID, {}).ask()
    if known > 0:
        trial.set_user_attr("owner", [search.platform.node(), gone.pid])
    if known > 1:
        GRID.hyperparameters[0].suggest(trial)
    again = search.open_study("grid", storage, GRID, {})
    assert len(run(again, GRID, tmp_path).results) == 6
    assert len(search.finished(again)) == 6


def test_one_that_is_being_asked_for_is_left_to_who_asks(storage, monkeypatch):
    study = search.open_study("grid", storage, GRID, {})
    trial = study.ask()
    threading.Timer(0.3, trial.set_user_attr, ("owner", [search.platform.node(), os.getpid()])).start()
    monkeypatch.setattr(search, "ASKING_SECONDS", 30.0)
    assert search._nobodys(study) == set()


def test_what_two_machines_put_into_a_study_at_once_is_tried_once(storage, tmp_path):
    study = search.open_study("grid", storage, GRID, {})
    for setting in GRID.settings():
        study.enqueue_trial(setting)
    assert len(run(study, GRID, tmp_path).results) == 6
    assert len(search.finished(study)) == 6
    assert run(search.open_study("grid", storage, GRID, {}), GRID, tmp_path).results == {}


def test_one_of_another_machine_is_taken_over_when_nobody_holds_its_folder(storage, tmp_path, monkeypatch):
    study = search.open_study("grid", storage, GRID, {})
    search._ask(study, GRID).set_user_attr("owner", ["elsewhere", 1])
    assert len(run(search.open_study("grid", storage, GRID, {}), GRID, tmp_path).results) == 5
    monkeypatch.setattr(search, "STALE_SECONDS", -1.0)
    assert len(run(search.open_study("grid", storage, GRID, {}), GRID, tmp_path).results) == 1


def test_tpe_looks_where_it_was_good(storage, tmp_path):
    plan = Plan((Hyperparameter("lr", (), 1e-5, 1.0), Hyperparameter("clip", (), 0.0, 10.0)), "tpe", 40)
    study = search.open_study("tpe", storage, plan, {})
    run(study, plan, tmp_path)
    away = [abs(trial.params["clip"] - 2) for trial in study.get_trials()]
    assert len(away) == 40
    assert sum(away[-10:]) < 0.7 * sum(away[:10])
    assert run(search.open_study("tpe", storage, plan, {}), plan, tmp_path).results == {}


def test_trials_that_do_badly_are_pruned(processes, storage, tmp_path):
    plan = Plan((Hyperparameter("clip", tuple(range(6))),), rung=2)
    study = search.open_study("pruned", storage, plan, {})

    def job(name, setting, path):
        return Job(name, jobs.slow, {"value": float(setting["clip"])})

    outcomes = run(study, plan, tmp_path, job)
    assert outcomes.failures == {}
    assert outcomes.stopped
    assert "clip=0" in outcomes.results
    pruned = study.get_trials(states=(TrialState.PRUNED,))
    assert [f"clip={trial.params['clip']}" for trial in pruned] == outcomes.stopped
    assert run(search.open_study("pruned", storage, plan, {}), plan, tmp_path, job).results == {}  # nor tried again


def test_a_study_of_another_experiment(storage):
    search.open_study("study", storage, GRID, {"task": "retrieval"})
    with pytest.raises(
        ValueError, match="the study 'study' is of something else: its experiment was .*'retrieval'.* --study"
    ):
        search.open_study("study", storage, GRID, {"task": "glimpses"})
    with pytest.raises(ValueError, match="its hyperparameters was"):
        search.open_study("study", storage, Plan((LR,)), {"task": "retrieval"})


@pytest.mark.parametrize("url", ["sqlite:////proc/studies.sqlite", "postgresql://nobody@127.0.0.1:1/none", "nonsense"])
def test_a_data_base_out_of_reach(url):
    with pytest.raises(ValueError, match=f"the data base {url} cannot be reached: "):
        search.open_study("study", url, GRID, {})


def test_a_password_is_not_shown():
    with pytest.raises(
        ValueError, match=r"the data base postgresql://me:\*\*\*@127.0.0.1:1/none cannot be reached"
    ) as caught:
        search.open_study("study", "postgresql://me:secret@127.0.0.1:1/none", GRID, {})
    assert "secret" not in str(caught.value)


def test_hyperparameters_are_weighed():
    study = optuna.create_study()
    for lr in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1):
        for clip in (0.5, 1.0, 5.0):
            value = abs(lr - 3e-3) * 1000 + 0.01 * clip
            kinds = {"lr": FloatDistribution(1e-3, 1e-1, log=True), "clip": FloatDistribution(0.5, 5.0)}
            params = {"lr": lr, "clip": clip}
            study.add_trial(optuna.trial.create_trial(value=value, params=params, distributions=kinds))
    worth = search.importances(study)
    assert worth["lr"] > worth["clip"]
    assert search.importances(optuna.create_study()) == {}


def test_given_settings_are_tried_and_no_others(storage, tmp_path):
    ranges = (Hyperparameter("lr", (), 1e-3, 1e-1), Hyperparameter("clip", (), 1, 3))
    given = ({"lr": 1e-2, "clip": 1}, {"lr": 2e-2, "clip": 3})
    plan = Plan(ranges, "given", given=given)
    study = search.open_study("given", storage, plan, {})
    assert len(run(study, plan, tmp_path).results) == plan.size == 2
    assert [trial.setting for trial in search.finished(study)] == [{"lr": 1e-2, "clip": 1}, {"lr": 2e-2, "clip": 3}]


def test_what_is_drawn_can_be_read_and_an_edge_is_known():
    rate = Hyperparameter("rate", (), 1e-4, 1.0)
    drawn = [setting["rate"] for setting in Plan((rate,), "random", 50).settings()]
    assert all(value == float(f"{value:.3g}") for value in drawn)
    assert [rate.at_edge(value) for value in (1e-4, 1.4e-4, 2e-4, 0.5, 0.9)] == [True, True, False, False, True]
    decay = Hyperparameter("decay", (), 0.5, 0.9)
    assert [decay.at_edge(value) for value in (0.51, 0.6, 0.89)] == [True, False, True]
    assert not LR.at_edge(1e-3)  # one of some values, of which none is between
