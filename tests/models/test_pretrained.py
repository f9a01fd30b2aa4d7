"""The nets that come with the package know their task."""

import os
from pathlib import Path

import pytest
import torch

import fastweights
from fastweights.base.files import read_tensors
from fastweights.models.agent import Player
from fastweights.models.pretrained import FOLDER, NAMES
from fastweights.paper.ship import ship
from fastweights.tasks import mnist, retrieval
from fastweights.tasks.catch import CatchVector
from fastweights.tasks.glimpses import make_schedule

there = Path(os.environ.get("FASTWEIGHTS_DATA", "nowhere"), "mnist").is_dir()


@pytest.mark.parametrize(
    ("name", "most"),
    [("retrieval-50", 0.002), ("retrieval-20", 0.02), ("retrieval-50-lstm", 0.05), ("retrieval-20-lstm", 0.05)],
)
def test_it_knows_its_task(name, most):
    net = fastweights.pretrained(name)
    tokens, answers = retrieval.split("test", 2000)
    with torch.no_grad():
        error = (net(tokens).argmax(1) != answers).double().mean()
    assert error < most


@pytest.mark.skipif(not there, reason="FASTWEIGHTS_DATA is not set to a folder with mnist/ in it")
@pytest.mark.parametrize(("name", "most"), [("glimpses-50", 0.02), ("glimpses-200", 0.015)])
def test_it_knows_its_digits(name, most):
    net = fastweights.pretrained(name)
    images, labels = mnist.split("test", count=2000)
    with torch.no_grad():
        found = net(make_schedule(28, 7).look(images.float() / 255)).argmax(1)
    assert (found != labels).double().mean() < most


@pytest.mark.parametrize("name", ["catch-16-3", "catch-16-3-lstm", "catch-16-3-irnn"])
def test_agents_know_their_game(name):
    net, games = fastweights.pretrained(name), CatchVector(200, size=16, visible=3)
    assert next(net.parameters()).dtype == torch.float32
    player = Player(net)
    screens, reset = games.reset(seed=0)[0], torch.ones(200, dtype=torch.bool)
    for _ in range(15):
        actions = player(torch.as_tensor(screens).flatten(1), reset).argmax(1)
        screens, rewards, *_ = games.step(actions.numpy())
        reset = torch.zeros(200, dtype=torch.bool)
    assert rewards.mean() > 0.9


def test_they_are_small_and_in_half_precision():
    files = [path for path in FOLDER.glob("*/*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 1_500_000
    for name in NAMES:
        weights, _ = read_tensors(FOLDER / name / "best.safetensors")
        assert {values.dtype for values in weights.values()} == {torch.float16}


def test_a_net_is_shipped_from_its_run_folder(tmp_path):
    """Rounded once more, it is the same, and loads as a run does."""
    for name in NAMES:
        written = ship(FOLDER / name, name, tmp_path)
        for file in ("best.safetensors", "config.json"):
            assert (written / file).read_bytes() == (FOLDER / name / file).read_bytes()


def test_a_name_that_is_not_there():
    with pytest.raises(ValueError, match="name must be one of 'catch-16-3', .*; got 'retrieval-51'"):
        fastweights.pretrained("retrieval-51")
