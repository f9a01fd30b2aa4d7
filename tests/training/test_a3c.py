"""A3C learns, alone to the last bit, with others whatever happens to them."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from games import Mortal, Remember

from fastweights.base.interrupts import Interrupted
from fastweights.training import a3c
from fastweights.training.a3c import Recipe
from fastweights.training.runs import RunError, RunFolder
from fastweights.training.workers import Workers

QUICK = Recipe(lr=2e-2, frames=12_000, num_envs=16, rollout=3, optimizer="adam")


def learn(path, recipe=QUICK, game=Remember(), seed=0, **options):  # noqa: B008
    folder = RunFolder(path)
    with folder.opened({"seed": seed}, "the command"):
        return a3c.learn(game, recipe, folder, seed=seed, **options), folder


def test_returns_by_hand():
    rewards = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0]])
    ended = torch.tensor([[False, False], [True, False], [False, True]])
    found = a3c.returns(rewards, ended, torch.tensor([4.0, 100.0]), 0.5)
    assert found.tolist() == [[0.5, 1.5], [1.0, 1.0], [2.0, 2.0]]


def test_actions_are_drawn_by_their_probabilities():
    logits = torch.tensor([[0.0, 1.0, -1.0], [5.0, 5.0, -math.inf]]).repeat(50_000, 1)
    drawn = a3c.draw(logits, torch.Generator().manual_seed(0)).view(-1, 2)
    for game in range(2):
        found = drawn[:, game].bincount(minlength=3) / len(drawn)
        torch.testing.assert_close(found, logits[game].softmax(-1), atol=0.01, rtol=0)
    assert (drawn[:, 1] < 2).all()
    assert not a3c.draw(logits, torch.Generator().manual_seed(1)).view(-1, 2).equal(drawn)


def test_a_constant_learning_rate_does_not_fall():
    moved = {}
    for schedule in ("linear", "constant"):
        shared = a3c.Shared(torch.zeros(1), 1)
        recipe = Recipe(lr=0.1, frames=100, optimizer="adam", schedule=schedule)
        steps = []
        for _ in range(4):
            before = shared.weights.clone()
            shared.change(torch.ones(1), recipe, 20, 0)
            steps.append(float(before - shared.weights))
        moved[schedule] = steps
    assert moved["constant"] == pytest.approx([0.1] * 4)
    assert moved["linear"] == pytest.approx([0.08, 0.06, 0.04, 0.02])


def test_normalized_advantages_make_the_size_of_rewards_irrelevant():
    """Without a value loss or an entropy bonus, rewards ten times as large give the same gradient of the policy."""
    grads = {}
    for normalize in (True, False):
        for scale in (1, 10):
            recipe = Recipe(value_coef=0.0, entropy_coef=0.0, clip=0.0, num_envs=16, rollout=3)
            recipe = dataclasses.replace(recipe, normalize_advantage=normalize)
            game = Remember()
            worker = a3c.Worker(game, recipe, 0, torch.device("cpu"))
            step = worker.games.step
            worker.games.step = lambda moves, step=step, scale=scale: (
                lambda found: (found[0], found[1] * scale, *found[2:])
            )(step(moves))
            with torch.no_grad():
                for name, parameter in worker.net.named_parameters():
                    if "value" in name:
                        parameter.zero_()
            weights = torch.nn.utils.parameters_to_vector(worker.net.parameters()).detach().clone()
            grads[normalize, scale] = worker.play(weights)[0]
    torch.testing.assert_close(grads[True, 1], grads[True, 10], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(10 * grads[False, 1], grads[False, 10])
    assert grads[True, 1].norm() > 0


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_it_learns_to_remember(tmp_path, optimizer):
    recipe = Recipe(lr=2e-2, frames=40_000, num_envs=16, rollout=3, optimizer=optimizer)
    result, folder = learn(tmp_path, recipe)
    assert result["stopped"] == "finished"
    assert result["greedy_return"] == 1.0
    assert result["sampled_return"] > 0.9
    metrics = folder.metrics
    assert [entry["epoch"] for entry in metrics] == list(range(1, len(metrics) + 1))
    assert metrics[0]["return"] < 0.6 < metrics[-1]["return"]
    assert list(tmp_path.glob("events.*"))
    assert result["frames"] >= recipe.frames > result["frames"] - 4 * 16


def test_returns_that_end_with_the_value_learn_too(tmp_path):
    """Three moves between updates, where an episode has two: state is carried from one update to the next."""
    recipe = Recipe(lr=2e-2, frames=40_000, num_envs=16, rollout=3, optimizer="adam")
    result, _ = learn(tmp_path, recipe, Remember(moves=2))
    assert result["greedy_return"] == 1.0


def test_one_worker_is_the_same_to_the_last_bit(tmp_path):
    results = [learn(tmp_path / name) for name in ("a", "b")]
    weights = [folder.best()[0] for _, folder in results]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert results[0][0]["sampled_return"] == results[1][0]["sampled_return"]
    other = learn(tmp_path / "c", seed=1)[1].best()[0]
    assert not torch.equal(other["policy.weight"], weights[0]["policy.weight"])


def stop_after(path, frames):
    """A run that is interrupted after so many frames."""

    def stop(progress):
        if progress.done >= frames:
            raise Interrupted

    with pytest.raises(Interrupted):
        learn(path, report=stop)
    return RunFolder(path)


def test_stopping_after_some_frames_and_going_on(tmp_path):
    folder = stop_after(tmp_path, 6_000)
    early = folder.metrics
    assert folder.result is None
    assert 6_000 <= early[-1]["frames"] < 6_200
    result, folder = learn(tmp_path)
    assert result["frames"] >= QUICK.frames
    assert folder.metrics[: len(early)] == early
    assert [entry["epoch"] for entry in folder.metrics] == list(range(1, len(folder.metrics) + 1))
    assert learn(tmp_path)[0] == result


def test_what_a_search_minimises_is_the_mean_return_so_far(tmp_path):
    told = []
    _, folder = learn(tmp_path, report=told.append)
    returns = [entry["return"] for entry in folder.metrics]
    values = {progress.epoch: progress.value for progress in told if progress.epoch}
    assert len(values) > 100
    for epoch, value in values.items():
        assert value == pytest.approx(-sum(returns[:epoch]) / epoch)


def test_two_workers_share_what_they_learn(tmp_path):
    recipe = Recipe(lr=2e-2, frames=40_000, num_envs=16, rollout=3, optimizer="adam", workers=2)
    result, folder = learn(tmp_path, recipe)
    assert result["greedy_return"] == 1.0
    assert result["deaths"] == 0
    assert result["episodes"] * 4 == result["frames"]


def test_a_worker_that_is_killed_is_replaced(tmp_path, monkeypatch):
    reported = tmp_path / "processes"
    monkeypatch.setenv("TELL_PROCESS", str(reported))
    recipe = Recipe(lr=2e-2, frames=80_000, num_envs=16, rollout=3, optimizer="adam", workers=2)
    folder = RunFolder(tmp_path / "run")

    def kill_one():
        while not reported.exists() or len(reported.read_text().splitlines()) < 2 or len(folder.metrics) < 20:
            time.sleep(0.01)
        os.kill(int(reported.read_text().splitlines()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    result, _ = learn(tmp_path / "run", recipe)
    killer.join()
    assert result["deaths"] == 1
    assert result["greedy_return"] == 1.0
    assert result["frames"] >= recipe.frames
    assert len(set(reported.read_text().splitlines())) >= 3


def test_what_a_worker_learned_from_before_it_could_tell_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(a3c, "Shared", Mortal)
    recipe = Recipe(lr=2e-2, frames=12_000, num_envs=16, rollout=3, optimizer="adam", workers=2)
    result, folder = learn(tmp_path, recipe)
    assert result["deaths"] >= 1
    assert result["frames"] >= recipe.frames > folder.metrics[-1]["frames"]


def test_a_checkpoint_from_before_a_worker_could_tell(tmp_path):
    """The weights have learned from more frames than were reported; the rest of the run is to end all the same."""
    folder = stop_after(tmp_path, 6_000)
    tensors, facts = folder.checkpoint()
    folder.save_checkpoint(tensors, {**facts, "frames": facts["frames"] - 500})
    result, folder = learn(tmp_path)
    assert result["frames"] >= QUICK.frames
    assert folder.metrics[-1]["frames"] == result["frames"]


def test_a_worker_that_fails_ends_the_run_with_what_it_said(tmp_path):
    recipe = Recipe(frames=10_000, num_envs=16, rollout=3, workers=2)
    with pytest.raises(RunError, match="a worker failed: ValueError: moves must be at least 1"):
        learn(tmp_path, recipe, Remember(moves=0))


def test_workers_on_a_cluster_that_loses_a_node(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    reported = tmp_path / "processes"
    monkeypatch.setenv("TELL_PROCESS", str(reported))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        recipe = Recipe(lr=2e-2, frames=40_000, num_envs=16, rollout=3, optimizer="adam", workers=2)
        removed = []

        def report(progress):
            if progress.done > 10_000 and len(reported.read_text().splitlines()) == 2 and not removed:
                removed.append(progress.done)
                cluster.remove_node(node, allow_graceful=False)
                cluster.add_node(num_cpus=1)
                cluster.wait_for_nodes()  # or the other worker may have played all frames before the loss is known

        result, _ = learn(tmp_path / "run", recipe, crew=Workers(2, cluster.address), report=report)
        diverging = Recipe(lr=1e30, frames=10_000, num_envs=16, rollout=3, clip=0, optimizer="adam", workers=2)
        diverged, _ = learn(tmp_path / "diverging", diverging, crew=Workers(2, cluster.address))
        with pytest.raises(RunError, match=r"a worker failed: .*ValueError: moves must be at least 1"):
            learn(tmp_path / "failing", diverging, Remember(moves=0), crew=Workers(2, cluster.address))
    finally:
        sys.modules["ray"].shutdown()
        cluster.shutdown()
    assert removed
    assert result["deaths"] == 1
    assert result["greedy_return"] == 1.0
    assert result["frames"] >= recipe.frames
    assert len(set(reported.read_text().splitlines())) >= 3
    assert diverged["stopped"] == "diverged"


PROGRAM = """
import sys
import torch
from games import Remember
from fastweights.base.interrupts import Interrupted
from fastweights.training import a3c
from fastweights.training.runs import RunFolder
if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = RunFolder(sys.argv[1])
    recipe = a3c.Recipe(lr=2e-2, frames=30_000, num_envs=16, rollout=3, optimizer="adam", workers=int(sys.argv[2]))
    with folder.opened({}, ""):
        print(a3c.learn(Remember(), recipe, folder, seed=0, checkpoint_seconds=0.3)["frames"])
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_whose_parent_is_killed_goes_on(tmp_path, workers):
    program, folder = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, str(program), str(folder), str(workers)]
    process = subprocess.Popen(command, env=environment)
    while not (folder / "last.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = int(RunFolder(folder).checkpoint()[0]["counts"][0])
    assert 0 < reached < 30_000
    assert RunFolder(folder).result is None
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 30_000
    metrics = RunFolder(folder).metrics
    assert [entry["epoch"] for entry in metrics] == list(range(1, len(metrics) + 1))
    assert all(earlier["frames"] < later["frames"] for earlier, later in zip(metrics, metrics[1:], strict=False))
    assert RunFolder(folder).result["greedy_return"] == 1.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gradient_that_is_not_a_number_ends_the_run_and_spoils_nothing(tmp_path, workers):
    recipe = Recipe(lr=2e-2, frames=12_000, num_envs=16, rollout=3, optimizer="adam", workers=workers)
    result, folder = learn(tmp_path, recipe, Remember(broken_after=60), checkpoint_seconds=0.0)
    assert result["stopped"] == "diverged"
    assert "greedy_return" not in result
    assert folder.checkpoint()[0]["weights"].isfinite().all()


def test_a_finished_run_is_not_run_again(tmp_path):
    result, _ = learn(tmp_path)
    again, _ = learn(tmp_path, game=None)
    assert again == result


@pytest.mark.parametrize(
    ("hyperparameter", "value", "message"),
    [
        ("lr", 0, "lr must be above 0"),
        ("lr", math.inf, "lr must be above 0"),
        ("frames", 0, "frames must be at least 1, got 0"),
        ("num_envs", 0, "num_envs must be at least 1"),
        ("rollout", 0, "rollout must be at least 1"),
        ("workers", 0, "workers must be at least 1"),
        ("entropy_coef", -1, "entropy_coef must be at least 0"),
        ("clip", math.nan, "clip must be at least 0"),
        ("discount", 1.1, "discount must be from 0 to 1, got 1.1"),
        ("optimizer", "sgd", "optimizer must be 'rmsprop' or 'adam', got 'sgd'"),
    ],
)
def test_bad_recipes(hyperparameter, value, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{hyperparameter: value})
