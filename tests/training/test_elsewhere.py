"""Training, measuring and playing on another device: to the same numbers, and without waiting for it on the way.

The device is that of `elsewhere.py`; nothing here needs a GPU.
"""

import math
from collections import Counter

import pytest
import torch
from elsewhere import DEVICE, NAME, There, elsewhere
from games import Remember
from torch import nn

from fastweights.base.interrupts import Interrupted
from fastweights.training import a3c, supervised
from fastweights.training.runs import RunFolder
from fastweights.training.supervised import Recipe, fit
from fastweights.training.workers import Workers

# torch says so of every tensor of the CPU that is loaded into one that says it is "meta".
pytestmark = pytest.mark.filterwarnings("ignore:.*which is a no-op:UserWarning")
RECIPE = Recipe(lr=0.01, epochs=3, batch=100)


@pytest.fixture
def device(monkeypatch):
    with elsewhere(monkeypatch) as found:
        yield found


def classes(count, seed):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()


def net(dropout=0.0, *more):
    torch.manual_seed(0)
    return nn.Sequential(*more, nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def train(path, model, where, recipe=RECIPE, examples=1000, **options):
    folder = RunFolder(path)
    splits = {"train": classes(examples, 0), "validation": classes(300, 1), "test": classes(300, 2)}
    with folder.opened({}, "", where.type):
        return fit(model.to(where), splits, recipe, folder, seed=7, **options), folder


def without_time(entries, also=()):
    return [{name: value for name, value in entry.items() if name not in ("seconds", *also)} for entry in entries]


class Stops(nn.Module):
    """Is killed at a batch."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def forward(self, x):
        self.left -= self.training
        if self.left == 0:
            raise Interrupted
        return x


class Looks(nn.Module):
    """Looks at what it computes."""

    def forward(self, x):
        return x if x.sum().item() < math.inf else -x


def same(mine, theirs):
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_devices_do_not_mix_and_each_crossing_is_counted(device):
    there, here = torch.ones(3, device=DEVICE), torch.ones(3)
    assert isinstance(there, There)
    assert device.crossed == {}
    with pytest.raises(RuntimeError, match="all tensors must be on one device"):
        there + here
    torch.testing.assert_close((there + here.to(DEVICE)).cpu(), here + here)
    assert float(there.sum()) == 3
    assert device.crossed == {"sent": 1, "fetched": 2}


def test_the_same_numbers_as_on_the_cpu(tmp_path, device):
    mine, there = train(tmp_path / "there", net(), DEVICE)
    theirs, here = train(tmp_path / "here", net(), torch.device("cpu"))
    assert (mine["device"], theirs["device"]) == ("meta", "cpu")
    assert (there.config["device"], here.config["device"]) == ("meta", "cpu")
    assert there.config["settings"] == here.config["settings"]
    assert without_time([mine], ["device"]) == without_time([theirs], ["device"])
    assert without_time(there.metrics) == without_time(here.metrics)
    assert same(there.best()[0], here.best()[0])


def crossings(path, device, examples, *more):
    device.crossed.clear()
    train(path, net(0.1, *more), DEVICE, examples=examples)
    return device.crossed


def test_nothing_is_waited_for_at_every_batch(tmp_path, device):
    few, many = (Counter(crossings(tmp_path / str(count), device, count)) for count in (500, 3000))
    assert few == many
    looking = [crossings(tmp_path / f"{count}-looks", device, count, Looks())["fetched"] for count in (500, 3000)]
    assert looking[1] - looking[0] == 3 * 25  # so the test can fail


def test_losses_are_read_every_so_many_batches(tmp_path, device, monkeypatch):
    few = Counter(crossings(tmp_path / "few", device, 3000))
    monkeypatch.setattr(supervised, "READ_EVERY", 10)
    assert crossings(tmp_path / "often", device, 3000)["fetched"] - few["fetched"] == 3 * 2 * 2  # and at the end


@pytest.mark.parametrize("stop", [1, 7, 10, 11, 25])
def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path, device, stop):
    whole, folder = train(tmp_path / "whole", net(0.1, nn.Identity()), DEVICE)
    with pytest.raises(Interrupted):
        train(tmp_path / "part", net(0.1, Stops(stop)), DEVICE)
    torch.empty(3, device=DEVICE).uniform_()  # the device's own generator is part of the run
    again, resumed = train(tmp_path / "part", net(0.1, nn.Identity()), DEVICE)
    assert without_time([again]) == without_time([whole])
    assert without_time(resumed.metrics) == without_time(folder.metrics)
    assert same(resumed.best()[0], folder.best()[0])


def test_the_devices_generator_is_in_the_checkpoint(tmp_path, device):
    _, there = train(tmp_path / "there", net(0.1), DEVICE)
    _, here = train(tmp_path / "here", net(0.1), torch.device("cpu"))
    assert there.checkpoint()[0].keys() - here.checkpoint()[0].keys() == {"generator.meta"}
    assert not same(there.best()[0], here.best()[0])  # for another generator drew what to leave out


@pytest.mark.parametrize("moved", [("cpu", "meta"), ("meta", "cpu"), ("cpu", "meta", "cpu")])
def test_a_run_moves_between_devices(tmp_path, device, moved):
    whole, folder = train(tmp_path / "whole", net(0.0, nn.Identity()), torch.device("cpu"))
    for where in moved[:-1]:
        with pytest.raises(Interrupted):
            train(tmp_path / "part", net(0.0, Stops(9)), torch.device(where))
    again, resumed = train(tmp_path / "part", net(0.0, nn.Identity()), torch.device(moved[-1]))
    assert again["device"] == ", then ".join(moved)
    assert resumed.config["device"] == moved[0]
    assert without_time([again], ["device"]) == without_time([whole], ["device"])
    assert same(resumed.best()[0], folder.best()[0])


def test_a_run_that_diverges_says_when_whenever_its_losses_are_read(tmp_path, device, monkeypatch):
    class Breaks(Stops):
        def forward(self, x):
            self.left -= self.training
            return x * math.nan if self.left <= 0 else x

    results = []
    for where, every in ((torch.device("cpu"), 1), (DEVICE, 50), (DEVICE, 4)):
        monkeypatch.setattr(supervised, "READ_EVERY", every)
        result, _ = train(
            tmp_path / f"{where}-{every}", net(0.0, Breaks(13)), where, checkpoint_seconds=0 if every < 50 else 30
        )
        results.append(result)
    assert results[0]["stopped"] == "diverged"
    assert results[0]["updates"] == 13
    assert str(without_time(results[1:], ["device"])) == str(without_time(results[:1] * 2, ["device"]))  # nan != nan


def learn(path, where, game, recipe):
    folder = RunFolder(path)
    with folder.opened({}, ""):
        return a3c.learn(game, recipe, folder, seed=0, crew=Workers(device=where)), folder


def test_an_agent_learns_the_same_as_on_the_cpu(tmp_path, device):
    """Games of Gymnasium, which stay on the CPU: what is seen and done crosses at each step."""
    recipe = a3c.Recipe(lr=2e-2, frames=3_000, num_envs=16, rollout=3, optimizer="adam")
    results = [learn(tmp_path / where, where, Remember(), recipe) for where in ("cpu", NAME)]
    (here, one), (there, two) = results
    assert (here["device"], there["device"]) == ("cpu", "meta")
    assert without_time([here], ["device"]) == without_time([there], ["device"])
    assert same(one.best()[0], two.best()[0])
    assert device.crossed["fetched"] > 3_000 / 16
