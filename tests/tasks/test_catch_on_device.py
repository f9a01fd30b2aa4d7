"""The games in torch are those of NumPy: the same screens, rewards and ends, whatever the moves."""

import numpy as np
import pytest
import torch
from elsewhere import DEVICE, elsewhere

from fastweights.tasks.catch import ACTIONS, CatchVector, ShowLastAction
from fastweights.tasks.catch_on_device import CatchOnDevice

CPU = torch.device("cpu")


@pytest.mark.parametrize(("size", "visible"), [(3, 1), (4, 4), (8, 2), (9, 5)])
@pytest.mark.parametrize("start", ["random", "centre"])
@pytest.mark.parametrize("last_action", [False, True])
def test_the_same_games_as_in_numpy(size, visible, start, last_action):
    there: CatchOnDevice = ShowLastAction(CatchVector(7, size, visible, start)).on(CPU)
    here = ShowLastAction(CatchVector(7, size, visible, start))
    if not last_action:
        there, here = CatchVector(7, size, visible, start).on(CPU), CatchVector(7, size, visible, start)
    random = np.random.default_rng(0)
    screens = there.reset(seed=5)
    assert np.array_equal(screens.numpy(), here.reset(seed=5)[0].reshape(7, -1))
    for _ in range(3 * size):
        moves = random.integers(ACTIONS, size=7)
        screens, rewards, ended = there.step(torch.from_numpy(moves))
        expected, expected_rewards, terminated, truncated, _ = here.step(moves)
        assert np.array_equal(screens.numpy(), expected.reshape(7, -1))
        assert np.array_equal(rewards.numpy(), expected_rewards)
        assert rewards.dtype == torch.float32
        assert np.array_equal(ended.numpy(), terminated | truncated)


def test_nothing_comes_back_from_the_device_and_little_goes_there(monkeypatch):
    with elsewhere(monkeypatch) as device:
        games = CatchVector(5, 6, 2).on(DEVICE)
        screens = games.reset(seed=0)
        device.crossed.clear()
        for _ in range(4 * 5):
            actions = (screens.sum(1) > 2).long()
            screens, rewards, ended = games.step(actions)
            assert (screens.device, rewards.device, ended.device) == (DEVICE, DEVICE, CPU)
    assert device.crossed == {"sent": 4}  # where balls and paddles start, once per game
