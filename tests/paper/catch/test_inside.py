"""What a memory attended to, by outcome."""

import dataclasses

import pytest
import torch

from fastweights.models.pretrained import FOLDER
from fastweights.paper.catch import inside
from fastweights.paper.catch.run import Catch, train
from fastweights.training.runs import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An agent that has learned nothing yet: it wins and loses."""
    path, base = tmp_path_factory.mktemp("agent"), Catch(inner_steps=2)
    train(dataclasses.replace(base, training=dataclasses.replace(base.training, frames=1_000)), path, "")
    return RunFolder(path)


def test_shares_of_what_was_seen_so_far(trained):
    found = inside.attended(trained, episodes=200)
    assert sum(each.episodes for each in found.values()) == 200
    assert found.keys() == {"caught", "missed"}
    for each in found.values():
        assert each.shares.shape == (15, 15)
        assert each.shares.triu().count_nonzero() == 0  # nothing of what is to come, nor of the step itself
        torch.testing.assert_close(each.shares[1:].sum(1), torch.full((14,), 100.0))
        assert 0 < inside.of_the_first_frames(each, 3) < 100


def test_the_same_episodes_again(trained):
    first, again = (inside.attended(trained, episodes=50) for _ in range(2))
    assert all(torch.equal(first[name].shares, again[name].shares) for name in first)
    other = inside.attended(trained, episodes=50, seed=1)
    assert not torch.equal(first["missed"].shares, other["missed"].shares)


def test_a_core_without_a_memory():
    with pytest.raises(ValueError, match="has no memory to attend to: its core is 'lstm'"):
        inside.attended(RunFolder(FOLDER / "catch-16-3-lstm"))
