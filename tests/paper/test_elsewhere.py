"""Everything that is trained, measured, asked and played, on another device: as on the CPU, and without waiting for it.

The device is that of `elsewhere.py`; nothing here needs a GPU.
"""

import dataclasses
from collections import Counter

import pytest
import torch
from elsewhere import DEVICE, NAME, elsewhere

from fastweights.models import pretrained
from fastweights.models.agent import Player
from fastweights.paper import run
from fastweights.paper.catch import run as agents
from fastweights.paper.catch.run import Catch
from fastweights.paper.glimpses.run import Glimpses
from fastweights.paper.retrieval import run as retrieval
from fastweights.paper.retrieval.run import Retrieval
from fastweights.training import a3c, supervised
from fastweights.training.games import make_games
from fastweights.training.runs import RunFolder
from fastweights.training.supervised import Recipe
from fastweights.training.workers import Workers

pytestmark = pytest.mark.filterwarnings("ignore:.*which is a no-op:UserWarning")
CPU = torch.device("cpu")
RETRIEVAL = [Retrieval(core=core, units=8, dropout=0.1) for core in ("irnn", "lstm", "a-lstm", "fast-weights")]
GLIMPSES = [
    Glimpses(model=model, units=8, data=data, translation=2, mirror=True, dropout=0.1)
    for model, data in (
        ("fast-weights", "mnist"),
        ("ln-rnn", "mnist"),
        ("lstm", "rendered"),
        ("convnet", "mnist"),
        ("convnet", "rendered"),
        ("linear", "mnist"),
    )
]


@pytest.fixture
def device(monkeypatch):
    with elsewhere(monkeypatch) as found:
        yield found


def examples(config, count):
    if isinstance(config, Retrieval):
        return torch.randint(37, (count, 5)), torch.randint(10, (count,))
    size = config.images.size
    return torch.randint(256, (count, size, size), dtype=torch.uint8), torch.randint(6, (count,))


@pytest.mark.parametrize("config", [*RETRIEVAL, *GLIMPSES], ids=lambda config: f"{getattr(config, 'core', '')}")
def test_a_net_trains_and_is_measured_without_waiting(config, device):
    """What a batch sends there or fetches from there: nothing."""
    net = config.make_net().to(DEVICE)
    inputs, classes = (each.to(DEVICE) for each in examples(config, 6))
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    device.crossed.clear()
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(net(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    supervised.logits(net, inputs, batch=2)
    assert device.crossed == {}
    assert loss.device == DEVICE


def small(**options):
    return Retrieval(units=8, pairs=1, examples=300, training=Recipe(epochs=1, batch=100), **options)


@pytest.mark.parametrize("core", ["fast-weights", "lstm"])
def test_a_run_is_trained_measured_and_asked_on_a_device(tmp_path, core, device):
    config = small(core=core)
    there, here = (run.train(config, tmp_path / name, "", device=name) for name in (NAME, "cpu"))
    folder = RunFolder(tmp_path / NAME)
    assert there["device"] == folder.config["device"] == "meta"
    assert there["validation_loss"] == pytest.approx(here["validation_loss"], rel=1e-5)
    device.crossed.clear()
    measured = retrieval.evaluate(folder, "validation", NAME)
    assert measured.loss == pytest.approx(there["validation_loss"], rel=1e-6)
    assert device.crossed["fetched"] == 1  # the logits of 10,000 strings, in 5 batches
    nets = retrieval.load_net(folder, NAME), retrieval.load_net(folder)
    strings = ["a1??a", "c9k8??k"]
    for mine, theirs in zip(*(retrieval.ask(net, strings) for net in nets), strict=True):
        torch.testing.assert_close(mine.probabilities, theirs.probabilities)
        assert mine.digit == theirs.digit
        if core == "fast-weights":
            torch.testing.assert_close(mine.attention, theirs.attention)


def crossings(device, config):
    """Of an agent that learns, in an update."""
    worker = a3c.Worker(config, config.training, 0, DEVICE)
    weights = torch.nn.utils.parameters_to_vector(worker.net.parameters()).detach()
    device.crossed.clear()
    worker.play(weights)
    return Counter(device.crossed)


@pytest.mark.parametrize("core", ["irnn", "lstm", "fast-weights"])
def test_an_agent_waits_once_for_an_update_however_long_it_plays(core, device):
    """One game lasts 7 moves."""
    recipe = a3c.Recipe(frames=200, num_envs=4, rollout=3)
    config = Catch(core=core, size=8, visible=2, last_action=True, training=recipe)
    few = crossings(device, config)
    more = crossings(device, dataclasses.replace(config, training=dataclasses.replace(recipe, rollout=6)))
    assert few == more
    assert few["fetched"] == 1


def test_an_agent_is_trained_on_a_device(tmp_path, device):
    config = Catch(size=4, visible=2, training=a3c.Recipe(frames=100, num_envs=4, rollout=3))
    results = [agents.train(config, tmp_path / name, "", device=name) for name in (NAME, "cpu")]
    assert [result["device"] for result in results] == ["meta", "cpu"]
    assert results[0]["updates"] == results[1]["updates"]
    nets = [agents.load_net(RunFolder(tmp_path / name)).state_dict() for name in (NAME, "cpu")]
    for name in nets[0]:
        torch.testing.assert_close(nets[0][name], nets[1][name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("core", ["irnn", "lstm", "fast-weights"])
def test_episodes_begin_in_the_midst_of_an_update(core, device):
    """All kinds of cores forget then, and on every device as on the CPU."""
    config = Catch(core=core, size=4, visible=2, training=a3c.Recipe(num_envs=3, rollout=8))
    grads = []
    for where in (CPU, DEVICE):
        worker = a3c.Worker(config, config.training, 0, where)
        weights = torch.nn.utils.parameters_to_vector(worker.net.parameters()).detach().clone()
        for _ in range(2):
            grad, played = worker.play(weights)
        assert played.episodes in (6, 9)
        grads.append(grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("name", ["catch-16-3", "catch-16-3-lstm"])
def test_an_agent_plays_as_on_the_cpu_without_waiting(name, device):
    folder = RunFolder(pretrained.FOLDER / name)
    game, net = agents.load_config(folder), agents.load_net(folder, NAME)
    device.crossed.clear()
    games, player = make_games(game, 20, 0, DEVICE), Player(net)
    screens, reset = games.reset(seed=0), torch.ones(20, dtype=torch.bool)
    for _ in range(2 * 15):
        screens, rewards, reset = games.step(player(screens, reset).argmax(-1))
    assert device.crossed["fetched"] == 0
    assert device.crossed["sent"] == 3  # where balls and paddles start
    device.crossed.clear()
    returned = a3c.score(game, net, episodes=60, greedy=True, seed=0)
    assert device.crossed["fetched"] == 1
    assert returned == a3c.score(game, agents.load_net(folder), episodes=60, greedy=True, seed=0)
    mine, theirs = agents.play(folder, 3, NAME), agents.play(folder, 3)
    assert (mine.screens, mine.seen, mine.total) == (theirs.screens, theirs.seen, theirs.total)
    if theirs.attention is not None:
        torch.testing.assert_close(torch.tensor(mine.attention), torch.tensor(theirs.attention))


def test_workers_with_a_device_share_weights_on_the_cpu(device):
    config = Catch(size=4, visible=2, training=a3c.Recipe(num_envs=2, rollout=3))
    net = config.make_net()
    shared = a3c.Shared(torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone(), 2)
    before = shared.weights.clone()
    grad, played = a3c.Worker(config, config.training, 0, DEVICE).play(shared.weights)
    assert grad.device == DEVICE
    shared.change(grad, config.training, played.frames, 0)
    assert shared.weights.device == CPU
    assert not torch.equal(shared.weights, before)


def test_jobs_know_their_device(tmp_path, monkeypatch):
    """Whoever trains many runs passes it on."""
    from fastweights.paper import cells, studies
    from fastweights.paper.catch import ablations, learning
    from fastweights.paper.cells import Planned
    from fastweights.training import devices, search
    from fastweights.training.workers import Outcomes

    monkeypatch.setattr(devices, "find", lambda name: CPU)
    jobs, crew = [], Workers(1, device="mps")

    def run_all(asked, workers, describe, **options):
        jobs.extend(asked)
        return Outcomes()

    for room in (cells, ablations, learning):
        monkeypatch.setattr(room, "run_all", run_all)
    monkeypatch.setattr(search, "run_all", run_all)
    cells.train_all([Planned("one", small(), tmp_path)], crew, "")
    learning.reproduce([(16, 3)], ["lstm"], tmp_path, crew, "", seeds=1)
    ablations.reproduce(["as selected"], tmp_path, crew, "")
    plan = studies.make_plan("grid", ["lr=0.1,0.2"], 0, 0)
    studies.run("mine", plan, small(), tmp_path, None, crew, "", run.train_on_validation)
    assert {job.function for job in jobs} == {run.train, agents.train, run.train_on_validation}
    assert len({job.name for job in jobs}) == len(jobs) > 1 + 1 + 3 + 2 - 1
    assert {job.arguments["device"] for job in jobs} == {"mps"}
