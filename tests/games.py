"""A game for tests, as a process of its own can be sent: the first screen says which of two actions will be right."""

import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from fastweights.training.a3c import Shared


class Games:
    """`count` games of `moves` moves, in step with each other; +1 for the right last action, else -1."""

    def __init__(self, count, moves):
        self.count, self.moves = count, moves

    def reset(self, *, seed=None):
        self.random = np.random.default_rng(seed)
        return self._start(), {}

    def _start(self):
        self.left, self.right = self.moves, self.random.integers(2, size=self.count)
        return np.stack((self.right, 1 - self.right, np.ones(self.count)), 1).astype(np.float32)

    def step(self, actions):
        self.left -= 1
        ended = np.full(self.count, self.left == 0)
        rewards = np.where(actions == self.right, 1.0, -1.0) if ended.all() else np.zeros(self.count)
        screens = self._start() if ended.all() else np.zeros((self.count, 3), np.float32)
        return screens, rewards, ended, np.zeros_like(ended), {}


class Net(nn.Module):
    """Remembers in a GRU."""

    def __init__(self):
        super().__init__()
        self.core, self.policy, self.value = nn.GRU(3, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, screens, state, reset):
        outputs = []
        for screen, fresh in zip(screens, reset.to(screens.device), strict=True):
            state = None if state is None else state.masked_fill(fresh.unsqueeze(-1), 0.0)
            output, state = self.core(screen.unsqueeze(0), state)
            outputs.append(output)
        output = torch.cat(outputs)
        return self.policy(output), self.value(output).squeeze(-1), state


@dataclass(frozen=True)
class Remember:
    moves: int = 3
    broken_after: int = 0  # screens after which the net says nothing but NaN

    def make_net(self):
        torch.manual_seed(0)
        return Net()

    def make_games(self, count, seed):
        if marker := os.environ.get("TELL_PROCESS"):  # so that a test knows whom to kill
            with open(marker, "a") as file:
                file.write(f"{os.getpid()}\n")
        if self.moves < 1:
            raise ValueError("moves must be at least 1")
        games = Games(count, self.moves)
        if self.broken_after:
            games.step = breaking(games.step, self.broken_after)
        return games

    def make_player(self, net, state):
        holder = SimpleNamespace(state=state)

        @torch.no_grad()
        def play(screens, reset):
            logits, _, holder.state = net(screens.unsqueeze(0), holder.state, reset.unsqueeze(0))
            return logits[0]

        return play


def breaking(step, after):
    """The same steps, but rewards are not numbers after some of them."""
    count = 0

    def broken(actions):
        nonlocal count
        count += 1
        screens, rewards, *rest = step(actions)
        return screens, rewards + np.nan if count > after else rewards, *rest

    return broken


class Mortal(Shared):
    """Whoever makes the last change is killed before it can report."""

    def change(self, grad, recipe, frames, worker):
        super().change(grad, recipe, frames, worker)
        if self.frames >= recipe.frames:
            os.kill(os.getpid(), signal.SIGKILL)
