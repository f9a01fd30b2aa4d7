"""Agents that learn Catch: the game, the net and the recipe of one run, and what a trained one does."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...models import cores
from ...models.agent import Agent, Player
from ...report.games import Game
from ...tasks.catch import CatchVector, ShowLastAction
from ...training import a3c, devices
from ...training.games import make_games
from ...training.runs import RunFolder
from ...training.workers import Workers
from .. import run

TASK = "catch"
UNITS, ACTIONS = 128, 3
# Against policy collapse. 64 environments at once: what one update does for some, it does not undo for others. A value
# loss with coefficient 0.1, not 0.5: what the value learns is not at the cost of the policy.
STEADY: dict[str, Any] = {"num_envs": 64, "value_coef": 0.1, "optimizer": "adam"}


@dataclass(frozen=True)
class Catch:
    """One run of an agent that learns Catch."""

    core: Literal["irnn", "lstm", "fast-weights"] = "fast-weights"
    """The recurrent core, of 128 units."""
    size: int = 16
    """N: pixels along a side of the screen, and frames of an episode."""
    visible: int = 3
    """M: frames of an episode that the agent sees."""
    paddle_start: Literal["random", "centre"] = "random"
    """Where the paddle is in the first frame."""
    last_action: bool = False
    """Show the agent its last action, too."""
    input_range: float = 0.0
    """The core's input weights start as U(-range, range); 0: its default, U(-1/√H, 1/√H)."""
    recurrent_init: float = 0.0
    """ReLU RNN and fast weights: W starts as this times I; 0: its default, 1 and 0.05."""
    decay: float = 0.95
    """For fast weights: λ, how much of the memory is left after a step."""
    rate: float = 0.5
    """For fast weights: η, how strongly a step is written."""
    inner_steps: int = 1
    """For fast weights: S, steps of the inner loop."""
    layer_norm: bool = True
    """For fast weights: normalise the layer in the inner loop."""
    training: a3c.Recipe = field(default_factory=lambda: a3c.Recipe(lr=3e-3, **STEADY))
    """How to learn."""
    seed: int = 0
    """The seed of the initial weights, of the games and of the moves."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        if self.seed > run.MOST_SEED:
            raise ValueError(f"seed must be at most {run.MOST_SEED}, got {self.seed}")
        for name in ("input_range", "recurrent_init"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if self.recurrent_init and self.core == "lstm":
            raise ValueError(f"recurrent_init must be 0 for an LSTM, which has no single W; got {self.recurrent_init}")
        CatchVector(1, self.size, self.visible, self.paddle_start)  # which knows what they may be

    @property
    def without(self) -> frozenset[str]:
        """The hyperparameters that are not those of this core."""
        return cores.without(self.core)

    def settings(self) -> dict[str, Any]:
        """As plain values: what makes this run this run."""
        values = dataclasses.asdict(self)
        return {"task": TASK, **values.pop("training"), **values}

    def make_net(self) -> Agent:
        """The agent, initialised from the seed."""
        torch.manual_seed(self.seed)
        names = [name for name in cores.OF_FAST_WEIGHTS if name in vars(self)]
        options = {name: getattr(self, name) for name in names} if self.core == "fast-weights" else None
        return Agent(
            self.core,
            UNITS,
            pixels=self.size**2 + (ACTIONS if self.last_action else 0),
            actions=ACTIONS,
            recurrent_init=self.recurrent_init,
            input_range=self.input_range,
            options=options,
        )

    def make_games(self, count: int, seed: int) -> CatchVector | ShowLastAction:
        """Games for a worker; they are seeded when they are reset."""
        games = CatchVector(count, self.size, self.visible, self.paddle_start)
        return ShowLastAction(games) if self.last_action else games

    def make_player(self, net: nn.Module, state: Any) -> Callable[[Tensor, Tensor], Tensor]:
        """The agent, move by move."""
        assert isinstance(net, Agent)
        return Player(net, state)


def train(
    config: Catch,
    path: Path,
    command: str,
    report: Callable[[Any], None] = lambda progress: None,
    ray: str | None = None,
    device: devices.Name = "cpu",
    gpus: int | None = None,
) -> dict[str, Any]:
    """Learn in a run folder, or go on with what was begun there, to the end: see `a3c.learn`."""
    crew = Workers(config.training.workers, ray, device, gpus)
    config.make_net()  # which has its say before there is a folder
    folder = RunFolder(path)
    with folder.opened(config.settings(), command, a3c.device_of(crew)):
        return a3c.learn(config, config.training, folder, seed=config.seed, crew=crew, report=report)


def load_config(folder: RunFolder) -> Catch:
    """The settings of a run of this task."""
    return run.load_config(folder, TASK, Catch, a3c.Recipe)


def load_net(folder: RunFolder, device: devices.Name = "cpu") -> Agent:
    """The agent of a run, as it was at the end."""
    net = load_config(folder).make_net()
    run.load_best(net, folder)
    return net.to(devices.prepared(device))


def describe(result: Mapping[str, Any]) -> str:
    """A run, in words."""
    if result["stopped"] == "diverged":
        return "diverged"
    return f"return {result['greedy_return']:.2f} (greedy), {result['sampled_return']:.2f} (sampled)"


@torch.no_grad()
def play(folder: RunFolder, seed: int, device: devices.Name = "cpu") -> Game:
    """An episode of a trained agent that always does what it thinks best."""
    settings, net = load_config(folder), load_net(folder, device)
    size, where = settings.size, devices.prepared(device)
    games, player = make_games(settings, 1, seed, where), Player(net)
    seen, reset, moves = [games.reset(seed=seed)], torch.tensor([True]), []
    for _ in range(size - 1):
        moves.append(player(seen[-1], reset).argmax(1))
        screens, _, reset = games.step(moves[-1])
        seen.append(screens)
    attention = None
    if settings.core == "fast-weights":
        attention = net.trace(torch.stack(seen[:-1])).attention[0, :, -1, 0].cpu().tolist()
    return _film(settings, seed, torch.stack(moves).cpu().numpy(), attention)


def _film(settings: Catch, seed: int, moves: NDArray[np.int64], attention: list[list[float]] | None) -> Game:
    """The game of these moves, twice: as the agent sees it, and with all frames visible."""
    size, total = settings.size, 0.0
    games = settings.make_games(1, seed), CatchVector(1, size, size, settings.paddle_start)
    seen, screens = ([game.reset(seed=seed)[0][0]] for game in games)
    for move in moves:
        for game, shown in zip(games, (seen, screens), strict=True):
            after, rewards, ended, _, infos = game.step(move)
            shown.append(infos["final_obs"][0] if ended[0] else after[0])
        total += float(rewards[0])
    shown = [each.reshape(-1)[: size * size].reshape(size, size).tolist() for each in seen]
    return Game([each.tolist() for each in screens], shown, attention, total)
