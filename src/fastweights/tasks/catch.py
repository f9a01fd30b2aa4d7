"""Catch: a ball falls, a paddle must be under it at the end, and the screen goes black after the first few frames.

Importing this module registers the game with Gymnasium, as `fastweights/Catch-v0`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from .catch_on_device import CatchOnDevice

PADDLE_STARTS = ("random", "centre")
ACTIONS = 3  # left, stay, right
_PIXEL = 16  # a pixel of the game is so wide and high in an "rgb_array"
_BACKGROUND, _BALL, _PADDLE = (36, 36, 48), (255, 204, 51), (84, 168, 255)
_CLEAR_TERMINAL = "\x1b[H\x1b[2J"


class Catch(gymnasium.Env[NDArray[np.float32], int | np.integer[Any]]):
    """One game on a screen of `size` × `size` pixels: `size` frames, with a move between each and the next.

    The ball starts in a random column of the top row and falls by a row per frame. The paddle, two pixels of the bottom
    row, goes left (0), stays (1) or goes right (2), and stops at the walls. The reward is 0 until the last frame; there
    it is 1 if the ball is in one of the paddle's two columns, else -1. An observation (size, size) is 1 where ball and
    paddle are, 0 elsewhere, and 0 everywhere after the first `visible` frames.

    Args:
        size: N of the paper, at least 3.
        visible: M of the paper, from 1 to `size`; with `size`, nothing is hidden.
        paddle_start: "random": anywhere in the bottom row; "centre": in the middle, half a pixel left if `size` is odd.
        render_mode: "ansi" (text), "rgb_array" (an image, darker once the agent sees nothing) or "human" (the text, in
            the terminal): always the true screen.

    Attributes:
        frame: the number of the frame that was observed last, 0 before the first `reset`.
        ball: the column of the ball.
        paddle: the column of the left pixel of the paddle.

    >>> game = gymnasium.make("fastweights/Catch-v0", size=4, visible=1, render_mode="ansi")
    >>> screen, _ = game.reset(seed=4)
    >>> print(game.render())
    frame 1 of 4
    ..o.
    ....
    ....
    ..==
    >>> screen, reward, terminated, truncated, _ = game.step(0)
    >>> print(game.render())
    frame 2 of 4, the agent sees nothing
    ....
    ..o.
    ....
    .==.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 8}

    def __init__(
        self, size: int = 16, visible: int = 3, paddle_start: str = "random", render_mode: str | None = None
    ) -> None:
        self._places = _start_places(size, paddle_start)
        if not 1 <= visible <= size:
            raise ValueError(f"visible must be from 1 to {size}, the number of frames; got {visible}")
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode must be None or one of {', '.join(map(repr, modes))}; got {render_mode!r}")
        self.size, self.visible, self.render_mode = size, visible, render_mode
        self.observation_space = spaces.Box(0, 1, (size, size), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.frame = self.ball = self.paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new game: its first frame. There are no options."""
        super().reset(seed=seed)
        self.frame = 1
        self.ball = int(self.np_random.integers(self.size))
        self.paddle = int(self.np_random.integers(self._places.start, self._places.stop))
        if self.render_mode == "human":
            self.render()
        return self._observe(), {}

    def step(self, action: int | np.integer[Any]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """The next frame, the reward and whether it was the last frame."""
        if isinstance(action, bool) or not self.action_space.contains(action):
            raise ValueError(f"action must be 0 (left), 1 (stay) or 2 (right), got {action!r}")
        if not 0 < self.frame < self.size:
            raise ResetNeeded("step needs a game that has begun and not ended: call reset first")
        self.frame += 1
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.size - 2)
        ended = self.frame == self.size
        caught = self.paddle <= self.ball <= self.paddle + 1
        reward = (1.0 if caught else -1.0) if ended else 0.0
        if self.render_mode == "human":
            self.render()
        return self._observe(), reward, ended, False, {}

    def _observe(self) -> NDArray[np.float32]:
        screen = np.zeros((self.size, self.size), np.float32)
        if self.frame <= self.visible:
            screen[self.frame - 1, self.ball] = 1
            screen[-1, self.paddle : self.paddle + 2] = 1
        return screen

    def render(self) -> str | NDArray[np.uint8] | None:
        """The true screen, seen by the agent or not, as text or as an image (16·size, 16·size, 3) of uint8."""
        if self.render_mode is None:
            gymnasium.logger.warn("render shows nothing without a render_mode, which is an argument of Catch and make")
            return None
        if self.frame == 0:
            raise ResetNeeded("render needs a game that has begun: call reset first")
        if self.render_mode == "rgb_array":
            return self._image()
        if self.render_mode == "ansi":
            return self._text()
        print(_CLEAR_TERMINAL + self._text(), flush=True)
        time.sleep(1 / self.metadata["render_fps"])
        return None

    def _text(self) -> str:
        rows = [["."] * self.size for _ in range(self.size)]
        rows[-1][self.paddle : self.paddle + 2] = "=="
        rows[self.frame - 1][self.ball] = "o"
        unseen = ", the agent sees nothing" if self.frame > self.visible else ""
        return "\n".join([f"frame {self.frame} of {self.size}{unseen}", *map("".join, rows)])

    def _image(self) -> NDArray[np.uint8]:
        image = np.full((self.size, self.size, 3), _BACKGROUND, np.uint8)
        image[-1, self.paddle : self.paddle + 2] = _PADDLE
        image[self.frame - 1, self.ball] = _BALL
        if self.frame > self.visible:
            image //= 3
        return image.repeat(_PIXEL, 0).repeat(_PIXEL, 1)


class CatchVector(VectorEnv[NDArray[np.float32], NDArray[np.integer[Any]], NDArray[Any]]):
    """`num_envs` games of `Catch` at once, by the same rules; observations (num_envs, size, size) are new arrays.

    A game that ends begins anew in the same step, so that every step is a move in every game: with its reward and
    `terminated` comes the first frame of the next game. The last frame of the old one is `infos["final_obs"][game]`,
    None for games that go on; `infos["_final_obs"]` is `terminated`. When no game ends, there are no infos.

    Attributes, (num_envs,) each, as of `Catch`: `frame`, `ball`, `paddle`.

    >>> games = gymnasium.make_vec("fastweights/Catch-v0", num_envs=8, size=24, visible=5)
    >>> screens, _ = games.reset(seed=0)
    >>> screens, rewards, terminated, truncated, infos = games.step(np.full(8, 1))
    >>> screens.shape, screens.sum((1, 2))
    ((8, 24, 24), array([3., 3., 3., 3., 3., 3., 3., 3.], dtype=float32))
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1, size: int = 16, visible: int = 3, paddle_start: str = "random") -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        game = Catch(size, visible, paddle_start)
        self.num_envs, self.size, self.visible = num_envs, size, visible
        self.single_observation_space, self.single_action_space = game.observation_space, game.action_space
        self.observation_space = batch_space(game.observation_space, num_envs)
        self.action_space = batch_space(game.action_space, num_envs)
        self._places = game._places
        self._all = np.arange(num_envs)
        self.frame, self.ball, self.paddle = np.zeros((3, num_envs), np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New games in place of all, or of those where `options["reset_mask"]` (num_envs,) of bool is True."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must be an array ({self.num_envs},) of bool, got {mask!r}")
        super().reset(seed=seed)
        self._start(np.flatnonzero(mask))
        if not self.frame.all():
            raise ResetNeeded("options['reset_mask'] leaves out games that never began: call reset without it first")
        return self._observe(self._all), {}

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """The next frames, rewards (float32), which games ended, that none was cut short, and the last frames."""
        moves = np.asarray(actions)
        if moves.shape != (self.num_envs,) or moves.dtype.kind not in "iu" or moves.min() < 0 or moves.max() >= ACTIONS:
            raise ValueError(
                f"actions must be {self.num_envs} integers 0 (left), 1 (stay) or 2 (right), got {actions!r}"
            )
        if not self.frame.all():
            raise ResetNeeded("step needs games that have begun: call reset first")
        self.frame += 1
        self.paddle += moves.astype(np.int64) - 1
        np.clip(self.paddle, 0, self.size - 2, out=self.paddle)
        terminated = self.frame == self.size
        rewards, truncated = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        ended = np.flatnonzero(terminated)
        if len(ended):
            ball, paddle = self.ball[ended], self.paddle[ended]
            rewards[ended] = np.where((ball == paddle) | (ball == paddle + 1), 1, -1)
            infos = {"final_obs": np.full(self.num_envs, None), "_final_obs": terminated.copy()}
            for game, screen in zip(ended, self._observe(ended), strict=True):
                infos["final_obs"][game] = screen
            self._start(ended)
        return self._observe(self._all), rewards, terminated, truncated, infos

    def on(self, device: torch.device) -> CatchOnDevice:
        """The same games on a device, in torch."""
        from .catch_on_device import CatchOnDevice  # which imports this

        return CatchOnDevice(self, device)

    def _start(self, games: NDArray[np.intp]) -> None:
        self.frame[games] = 1
        self.ball[games] = self.np_random.integers(self.size, size=len(games))
        self.paddle[games] = self.np_random.integers(self._places.start, self._places.stop, size=len(games))

    def _observe(self, games: NDArray[np.intp]) -> NDArray[np.float32]:
        screens = np.zeros((len(games), self.size, self.size), np.float32)
        seen = np.flatnonzero(self.frame[games] <= self.visible)
        if len(seen):
            games = games[seen]
            screens[seen, self.frame[games] - 1, self.ball[games]] = 1
            screens[seen, -1, self.paddle[games]] = 1
            screens[seen, -1, self.paddle[games] + 1] = 1
        return screens


class ShowLastAction(VectorWrapper[NDArray[np.float32], NDArray[np.integer[Any]], NDArray[Any]]):
    """Games that show what was done last: flat screens, then a 1 for the action among zeros; all zeros at the start.

    >>> games = ShowLastAction(CatchVector(2, size=4, visible=2))
    >>> screens, _ = games.reset(seed=0)
    >>> games.step(np.array([0, 2]))[0][:, 16:]
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """

    def __init__(self, env: CatchVector) -> None:
        super().__init__(env)
        self.single_observation_space = spaces.Box(0, 1, (env.size**2 + ACTIONS,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New games; with a mask, those that go on show no action, either."""
        screens, infos = self.env.reset(seed=seed, options=options)
        return _flat(screens, np.zeros((len(screens), ACTIONS), np.float32)), infos

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """The next frames with the actions that led to them; the first frame of a new game has none."""
        screens, rewards, terminated, truncated, infos = self.env.step(actions)
        last = np.eye(ACTIONS, dtype=np.float32)[actions]
        for game in np.flatnonzero(terminated):
            infos["final_obs"][game] = _flat(infos["final_obs"][game][None], last[game][None])[0]
        last[terminated] = 0
        return _flat(screens, last), rewards, terminated, truncated, infos

    def on(self, device: torch.device) -> CatchOnDevice:
        """The same games on a device, in torch."""
        from .catch_on_device import CatchOnDevice  # which imports this

        assert isinstance(self.env, CatchVector)
        return CatchOnDevice(self.env, device, last_action=True)


def _flat(screens: NDArray[np.float32], last: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate((screens.reshape(len(screens), -1), last), 1)


def random_score(size: int = 16, paddle_start: str = "random") -> float:
    """The expected return of a player who moves at random.

    It is 4 / size - 1 from wherever the paddle starts: a paddle that does not know of the ball is under it in two
    columns of `size`.

    >>> round(random_score(16), 9)
    -0.75
    """
    return _expected_return(size, paddle_start, np.mean)


def optimal_score(size: int = 16, paddle_start: str = "random") -> float:
    """The expected return of a player who saw the first frame, forgets nothing and moves as well as one can.

    >>> optimal_score(16)
    1.0
    """
    return _expected_return(size, paddle_start, np.max)


def _expected_return(size: int, paddle_start: str, over_moves: Callable[..., Any]) -> float:
    """From the last frame back to the first: what a place of the paddle and a column of the ball are worth."""
    starts = _start_places(size, paddle_start)
    paddle, ball = np.arange(size - 1)[:, None], np.arange(size)
    worth = np.where((ball == paddle) | (ball == paddle + 1), 1.0, -1.0)
    after = np.clip(paddle + np.arange(ACTIONS) - 1, 0, size - 2)  # (places, moves)
    for _ in range(size - 1):
        worth = over_moves(worth[after], axis=1)
    return float(worth[starts.start : starts.stop].mean())


def _start_places(size: int, paddle_start: str) -> range:
    """Where the left pixel of the paddle may be at the start."""
    if size < 3:
        raise ValueError(f"size must be at least 3, got {size}")
    if paddle_start not in PADDLE_STARTS:
        raise ValueError(f"paddle_start must be one of {', '.join(map(repr, PADDLE_STARTS))}; got {paddle_start!r}")
    centre = (size - 2) // 2
    return range(size - 1) if paddle_start == "random" else range(centre, centre + 1)


gymnasium.register(
    "fastweights/Catch-v0",
    entry_point="fastweights.tasks.catch:Catch",
    vector_entry_point="fastweights.tasks.catch:CatchVector",
)
