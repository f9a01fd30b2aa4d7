"""A look inside an agent with fast weights: what its memory attends to while the screen is black."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...training import a3c
from ...training.runs import RunFolder
from . import run as agents


class Attention(NamedTuple):
    """What some episodes attended to: the share of each frame (columns) at each step (rows), in percent."""

    episodes: int
    shares: Tensor  # (T, T)


@torch.no_grad()
def attended(folder: RunFolder, episodes: int = 500, seed: int = a3c.EVALUATION_SEED) -> dict[str, Attention]:
    """What a trained agent's memory attended to, on average over episodes that it won and that it lost.

    Actions are sampled, as while it learned. What counts is the size of the attention in the last inner step, of either
    sign. Outcomes without an episode are left out.
    """
    settings, net = agents.load_config(folder), agents.load_net(folder)
    if settings.core != "fast-weights" or settings.inner_steps == 0:
        raise ValueError(f"{folder.path} has no memory to attend to: its core is {settings.core!r}")
    generator, size = torch.Generator().manual_seed(seed), settings.size
    games = settings.make_games(episodes, seed)
    player = settings.make_player(net, None)
    screens, reset = torch.as_tensor(games.reset(seed=seed)[0]).flatten(1), torch.ones(episodes, dtype=torch.bool)
    seen, total = [], torch.zeros(episodes)
    for _ in range(size - 1):
        seen.append(screens)
        action = a3c.draw(player(screens, reset), generator)
        observed, rewards, *_ = games.step(action.numpy())
        screens, reset = torch.as_tensor(observed).flatten(1), torch.zeros(episodes, dtype=torch.bool)
        total += torch.as_tensor(rewards)
    attention = net.trace(torch.stack(seen)).attention[0, :, -1].abs()  # (T, B, T)
    shares = 100 * attention / attention.sum(-1, keepdim=True).clamp(min=1e-12)
    outcomes = {"caught": total > 0, "missed": total < 0}
    return {
        name: Attention(int(which.sum()), shares[:, which].mean(1)) for name, which in outcomes.items() if which.any()
    }


def of_the_first_frames(found: Attention, visible: int) -> float:
    """How much of the attention of black frames is on those that were seen, in percent."""
    return float(found.shares[visible:, :visible].sum(1).mean())
