"""The nets that come with the package know their task."""

import pytest
import torch

import fastweights
from fastweights.models.agent import Player
from fastweights.models.pretrained import FOLDER
from fastweights.tasks import retrieval
from fastweights.tasks.catch import CatchVector


def test_it_knows_its_task():
    net = fastweights.pretrained("retrieval-50")
    tokens, answers = retrieval.split("test", 2000)
    with torch.no_grad():
        error = (net(tokens).argmax(1) != answers).double().mean()
    assert error < 0.002


@pytest.mark.parametrize("name", ["catch-16-3", "catch-16-3-lstm"])
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


def test_agents_are_small():
    files = [path for path in FOLDER.glob("catch-*/*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 500_000


def test_a_name_that_is_not_there():
    with pytest.raises(ValueError, match="name must be one of 'catch-16-3', .*; got 'retrieval-51'"):
        fastweights.pretrained("retrieval-51")
