"""Catch in torch, for agents on a GPU: nothing is read back from the device while they play."""

import torch
from torch import Tensor

from .catch import ACTIONS, CatchVector


class CatchOnDevice:
    """The games of a `CatchVector` on a device: for the same seed and the same moves, the same games.

    All begin and end together, so the host knows when without asking. It draws where balls and paddles start, as
    `CatchVector` does, and sends that once per game; all else is computed on the device.

    Args:
        games: whose rules and whose generator these are.
        device: where to play.
        last_action: show what was done last, as `ShowLastAction` does.

    >>> games = CatchOnDevice(CatchVector(8, size=4, visible=2), torch.device("cpu"))
    >>> screens = games.reset(seed=0)
    >>> screens, rewards, ended = games.step(torch.ones(8, dtype=torch.int64))
    >>> screens.shape, rewards.shape, bool(ended.any())
    (torch.Size([8, 16]), torch.Size([8]), False)
    """

    def __init__(self, games: CatchVector, device: torch.device, *, last_action: bool = False) -> None:
        self.games, self.device, self.last_action = games, device, last_action
        self.columns, self.actions = torch.arange(games.size, device=device), torch.arange(ACTIONS, device=device)
        self.frame = 0  # of every game, as of `CatchVector`
        self.ball = self.paddle = torch.zeros(games.num_envs, 1, dtype=torch.int64, device=device)

    def reset(self, *, seed: int | None = None) -> Tensor:
        """New games; their first screens (B, pixels)."""
        self.games.reset(seed=seed)
        starts = torch.as_tensor([self.games.ball.tolist(), self.games.paddle.tolist()]).unsqueeze(-1)
        self.ball, self.paddle = starts.to(self.device).unbind(0)  # (B, 1) each
        self.frame = 1
        return self._observe(None)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """After actions (B,) of 0, 1 and 2: the next screens, the rewards, and on the CPU whether the games ended.

        With the rewards of a game that ends comes the first screen of the next. Actions are taken as they are: to look
        at them is to wait for the device.
        """
        self.frame += 1
        self.paddle = (self.paddle + actions.unsqueeze(1) - 1).clamp(0, self.games.size - 2)
        if self.frame < self.games.size:
            return self._observe(actions), torch.zeros(len(actions), device=self.device), self._ended(False)
        caught = (self.ball == self.paddle) | (self.ball == self.paddle + 1)
        return self.reset(), caught.squeeze(1).float() * 2 - 1, self._ended(True)

    def _ended(self, ended: bool) -> Tensor:
        return torch.full((self.games.num_envs,), ended)

    def _observe(self, last: Tensor | None) -> Tensor:
        count, size = self.games.num_envs, self.games.size
        screens = torch.zeros(count, size, size, device=self.device)
        if self.frame <= self.games.visible:
            screens[:, self.frame - 1] = (self.columns == self.ball).float()
            paddle = (self.columns == self.paddle) | (self.columns == self.paddle + 1)
            screens[:, -1] = torch.maximum(screens[:, -1], paddle.float())
        if not self.last_action:
            return screens.flatten(1)
        shown = torch.zeros(count, ACTIONS, device=self.device)
        if last is not None:
            shown = (last.unsqueeze(1) == self.actions).float()
        return torch.cat((screens.flatten(1), shown), 1)
