"""What agents play: games by Gymnasium, or in torch on a device, seen from there as tensors."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Game(Protocol):
    """What is learned, as plain values that a process can be sent."""

    def make_net(self) -> nn.Module:
        """The net, initialised from the seed: (screens, state, reset) → (logits, values, state), time first.

        `reset` is on the CPU, where it is known without waiting for the device.
        """

    def make_games(self, count: int, seed: int) -> Any:
        """Games as a `gymnasium.vector.VectorEnv` that starts a new episode in the step that ends one.

        With a method `on(device)` they can be played elsewhere than on the CPU without coming back at every step: it
        gives the same games as `Games`.
        """

    def make_player(self, net: nn.Module, state: Any) -> Callable[[Tensor, Tensor], Tensor]:
        """The net step by step, from a state on: (screens, reset) → logits."""


class Games(Protocol):
    """Games on a device, B at once. What a step gives is there, too, but for which episodes ended: that is on the CPU,
    for whoever plays decides by it what comes next.
    """

    def reset(self, *, seed: int) -> Tensor:
        """New games; their first screens (B, pixels)."""

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """After actions (B,): the next screens (B, pixels), rewards (B,) float32, and where an episode ended (B,)."""


class _OfGymnasium:
    """Games of a `gymnasium.vector.VectorEnv`, which are on the CPU wherever they are played from."""

    def __init__(self, games: Any, device: torch.device) -> None:
        self.games, self.device = games, device

    def reset(self, *, seed: int) -> Tensor:
        return torch.as_tensor(self.games.reset(seed=seed)[0]).flatten(1).to(self.device)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        screens, rewards, terminated, truncated, _ = self.games.step(actions.cpu().numpy())
        ended = torch.as_tensor(terminated | truncated)
        rewards = torch.as_tensor(rewards, dtype=torch.float32).to(self.device)
        return torch.as_tensor(screens).flatten(1).to(self.device), rewards, ended


def make_games(game: Game, count: int, seed: int, device: torch.device) -> Games:
    """Games to be played on a device."""
    games = game.make_games(count, seed)
    there: Games = games.on(device) if device.type != "cpu" and hasattr(games, "on") else _OfGymnasium(games, device)
    return there
