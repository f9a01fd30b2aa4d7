"""Agents forget where an episode begins, before its first screen, and nowhere else."""

import pytest
import torch

from fastweights.models.agent import Agent, Player
from fastweights.models.cores import CORES


def agent(core):
    made = Agent(core, 12, pixels=9, actions=3)
    torch.nn.init.uniform_(made.policy.weight)
    return made


@pytest.mark.parametrize("core", CORES)
def test_an_episode_that_begins_inside_a_batch_is_as_if_alone(core):
    made, screens = agent(core), torch.rand(9, 3, 9)
    reset = torch.zeros(9, 3, dtype=torch.bool)
    reset[4, 1] = reset[6, 2] = reset[0, 0] = True
    logits, values, state = made(screens, None, reset)
    for game, start in ((0, 0), (1, 4), (2, 6)):
        alone = made(screens[start:, game : game + 1], None, torch.zeros(9 - start, 1, dtype=torch.bool))
        torch.testing.assert_close(logits[start:, game : game + 1], alone[0])
        torch.testing.assert_close(values[start:, game : game + 1], alone[1])


@pytest.mark.parametrize("core", CORES)
def test_pieces_with_carried_state_equal_the_whole(core):
    made, screens = agent(core), torch.rand(8, 2, 9)
    reset = torch.rand(8, 2) < 0.3
    whole = made(screens, None, reset)
    first = made(screens[:3], None, reset[:3])
    second = made(screens[3:], first[2], reset[3:])
    torch.testing.assert_close(torch.cat((first[0], second[0])), whole[0])
    torch.testing.assert_close(torch.cat((first[1], second[1])), whole[1])


@pytest.mark.parametrize("core", CORES)
def test_nothing_from_before_a_reset_is_seen(core):
    made, screens = agent(core), torch.rand(6, 1, 9, requires_grad=True)
    reset = torch.zeros(6, 1, dtype=torch.bool)
    reset[3] = True
    made(screens, None, reset)[0][3:].sum().backward()
    assert screens.grad[:3].count_nonzero() == 0
    assert all(screens.grad[t].count_nonzero() for t in range(3, 6))
    screens.grad = None
    made(screens, None, reset)[0][2].sum().backward()  # the screen before it does see its own episode
    assert all(screens.grad[t].count_nonzero() for t in range(3))


def test_an_irnn_forgets_nothing_to_begin_with():
    torch.testing.assert_close(Agent("irnn", 16, pixels=9, actions=3).core.weight_hh_l0, torch.eye(16))


def test_the_scale_of_the_recurrent_weights():
    core = Agent("irnn", 16, pixels=9, actions=3, recurrent_init=0.5).core
    torch.testing.assert_close(core.weight_hh_l0, torch.eye(16) / 2)
    core = Agent("fast-weights", 16, pixels=9, actions=3, recurrent_init=0.5).core
    torch.testing.assert_close(core.weight_hh_l0, torch.eye(16) / 2)
    torch.testing.assert_close(Agent("fast-weights", 16, pixels=9, actions=3).core.weight_hh_l0, torch.eye(16) / 20)


def test_to_begin_with_all_actions_are_alike():
    logits, _, _ = Agent("lstm", 12, pixels=9, actions=3)(torch.rand(4, 2, 9), None, torch.zeros(4, 2).bool())
    assert (logits.softmax(-1).std(-1) < 0.1).all()


@pytest.mark.parametrize("core", CORES)
def test_a_player_does_step_by_step_what_the_agent_does_at_once(core):
    made, screens, reset = agent(core), torch.rand(12, 3, 9), torch.rand(12, 3) < 0.15
    reset[0] = reset[5] = True
    logits, _, _ = made(screens, None, reset)
    player = Player(made)
    for t in range(12):
        found = player(screens[t], reset[t])
        torch.testing.assert_close(found, logits[t])
        assert not found.requires_grad


def test_black_screens_are_looked_at_like_all_others():
    made, screens = agent("lstm"), torch.rand(6, 3, 9) * (torch.rand(6, 3, 1) < 0.5)
    assert 0 < screens.any(-1).sum() < 18
    found, expected = made.see(screens), made.look(screens).relu()
    torch.testing.assert_close(found, expected)
    weights = torch.rand_like(found)
    grads = [torch.autograd.grad((seen * weights).sum(), made.look.parameters()) for seen in (found, expected)]
    torch.testing.assert_close(*grads)
    black = torch.zeros(6, 3, 9)
    found, expected = made.see(black), made.look(black).relu()
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad((seen * weights).sum(), made.look.bias) for seen in (found, expected)]
    torch.testing.assert_close(*grads)
    assert made.see(torch.zeros(0, 9)).shape == (0, 128)
