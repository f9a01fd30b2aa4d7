"""Asynchronous advantage actor-critic (Mnih et al. 2016): workers that play, learn, and share weights without locks.

Each worker has games of its own and a copy of the net. It plays some moves, computes the gradient of what it played
with the weights it played with, and changes the shared weights, which others may have changed meanwhile. One worker
alone is the synchronous algorithm, the same to the last bit for the same seed, and needs no processes.

On a device other than the CPU, the net and the games are there, and a worker waits for the device once per update. The
shared weights are there, too, if one worker is alone; those of several are in the CPU's memory, where all reach them.
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..base import interrupts
from ..base.files import BadFileError
from ..base.progress import Progress
from . import devices
from .games import Game, make_games
from .runs import RunError, RunFolder
from .workers import Workers, connect, gpus_of, prepare_child, prepare_process, wait_for

EVALUATION_SEED = 1_000_000  # of the games that a trained agent is measured on, added to that of its run
WINDOWS = 200  # measurements in a run
MOST_DEATHS = 20  # of workers, before a run is given up


@dataclass(frozen=True)
class Recipe:
    """How to learn."""

    lr: float = 1e-3
    """The learning rate."""
    schedule: Literal["linear", "constant"] = "linear"
    """How the learning rate goes on: to zero along a line, or not at all."""
    frames: int = 4_000_000
    """Frames to play, of all workers together."""
    num_envs: int = 32
    """Environments that each worker steps at once."""
    rollout: int = 15
    """Steps between updates; the return is bootstrapped from the value unless the episode is over."""
    discount: float = 1.0
    """Discount factor γ of the return."""
    entropy_coef: float = 0.01
    """Coefficient of the entropy bonus in the loss."""
    value_coef: float = 0.5
    """Coefficient of the squared value error in the loss."""
    clip: float = 1.0
    """Clip the gradient to this norm; 0: never."""
    normalize_advantage: bool = False
    """Scale the advantages of an update to mean 0 and standard deviation 1."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """The optimiser; the workers share its statistics."""
    workers: int = 1
    """Processes that play and learn; 1: this one alone, the same for the same seed."""

    def __post_init__(self) -> None:
        for name in ("frames", "num_envs", "rollout", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0 and finite, got {self.lr}")
        for name in ("entropy_coef", "value_coef", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be from 0 to 1, got {self.discount}")
        if self.schedule not in ("linear", "constant"):
            raise ValueError(f"schedule must be 'linear' or 'constant', got {self.schedule!r}")
        if self.optimizer not in ("rmsprop", "adam"):
            raise ValueError(f"optimizer must be 'rmsprop' or 'adam', got {self.optimizer!r}")


class Played(NamedTuple):
    """What one update was made of."""

    frames: int
    episodes: int  # that ended
    returns: float  # the sum of theirs
    entropy: float
    value_error: float


class DivergedError(Exception):
    """A gradient that is not a number."""


class Shared:
    """What all workers read and write: weights, the optimiser's statistics, and how many frames were played."""

    def __init__(self, weights: Tensor, workers: int) -> None:
        tensors = weights, torch.zeros_like(weights), torch.zeros_like(weights)
        self.weights, self.squares, self.means = (each.share_memory_() if each.is_cpu else each for each in tensors)
        # Frames and updates, apart for each worker: with a lock, one that is killed would never give it back.
        self.counts = torch.zeros(workers, 2, dtype=torch.int64).share_memory_()

    @property
    def frames(self) -> int:
        """That the weights have learned from."""
        return int(self.counts[:, 0].sum())

    @property
    def updates(self) -> int:
        return int(self.counts[:, 1].sum())

    def tensors(self) -> dict[str, Tensor]:
        """All of it, copied."""
        found = {"weights": self.weights, "squares": self.squares, "means": self.means}
        return {name: tensor.clone() for name, tensor in found.items()} | {"counts": self.counts.sum(0)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Be what was copied, of however many workers."""
        for name in ("weights", "squares", "means"):
            getattr(self, name).copy_(tensors[name])
        self.counts[0] = tensors["counts"]

    def change(self, grad: Tensor, recipe: Recipe, frames: int, worker: int) -> None:
        """Change the weights along a gradient. Others may be doing the same at this moment; nobody waits."""
        grad = grad.to(self.weights.device)
        self.counts[worker, 0] += frames
        self.counts[worker, 1] += 1
        updates, left = self.updates, max(0.0, 1 - self.frames / recipe.frames)
        lr = recipe.lr * (left if recipe.schedule == "linear" else 1.0)
        if recipe.optimizer == "rmsprop":
            self.squares.mul_(0.99).addcmul_(grad, grad, value=0.01)
            self.weights.addcdiv_(grad, (self.squares + 1e-5).sqrt_(), value=-lr)
        else:
            self.means.lerp_(grad, 0.1)
            self.squares.mul_(0.999).addcmul_(grad, grad, value=0.001)
            scale = math.sqrt(1 - 0.999**updates) / (1 - 0.9**updates)
            self.weights.addcdiv_(self.means, self.squares.sqrt().add_(1e-8), value=-lr * scale)


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """An action for each environment, drawn by its probabilities, from their logits (B, actions)."""
    # The largest with Gumbel noise added: the same distribution as `torch.multinomial`, and faster.
    return (logits - torch.empty_like(logits).exponential_(generator=generator).log_()).argmax(-1)


def returns(rewards: Tensor, ended: Tensor, after: Tensor, discount: float) -> Tensor:
    """The return of each step (T, B): rewards to the end of its episode, or to the last step and `after` that (B,).

    >>> returns(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[False], [True], [False]]), torch.tensor([8.0]), 0.5)
    tensor([[0.5000],
            [1.0000],
            [6.0000]])
    """
    found, total = torch.empty_like(rewards), after
    for t in range(len(rewards) - 1, -1, -1):
        total = rewards[t] + discount * torch.where(ended[t], 0.0, total)
        found[t] = total
    return found


@torch.no_grad()
def set_weights(net: nn.Module, weights: Tensor) -> None:
    """Copy weights, as `parameters_to_vector` has them, into a net."""
    parameters = list(net.parameters())
    device = parameters[0].device
    if device.type == "cpu":  # as views of one tensor: with memory of their own, the kernel rounds otherwise
        vector_to_parameters(weights.clone(), parameters)
        return
    parts = weights.to(device).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):  # into the memory that cuDNN laid out for a layer
        parameter.copy_(part.view_as(parameter))


class Worker:
    """Plays rollouts in environments of its own, and computes the gradient at the weights it played with."""

    def __init__(self, game: Game, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.game, self.recipe, self.device = game, recipe, device
        self.generator = devices.make_generator(device, seed)
        self.net, self.games = game.make_net().to(device), make_games(game, recipe.num_envs, seed, device)
        self.state: Any = None
        self.screens = self.games.reset(seed=seed)
        self.reset = torch.ones(recipe.num_envs, dtype=torch.bool)

    def play(self, weights: Tensor) -> tuple[Tensor, Played]:
        """The gradient of some moves, and what they were."""
        recipe, net, screens, reset = self.recipe, self.net, self.screens, self.reset
        set_weights(net, weights)
        player = self.game.make_player(net, self.state)
        seen, resets, actions, rewards, ended = [], [], [], [], []
        for _ in range(recipe.rollout):
            action = draw(player(screens, reset), self.generator)
            seen.append(screens)
            resets.append(reset)
            actions.append(action)
            screens, reward, reset = self.games.step(action)
            rewards.append(reward)
            ended.append(reset)
        all_ended, all_rewards = torch.stack(ended), torch.stack(rewards)
        logits, values, after = net(torch.stack(seen), self.state, torch.stack(resets))
        with torch.no_grad():
            # Where the last move ended an episode nothing is to come, and nothing is asked.
            over = torch.zeros_like(all_rewards[0])
            to_come = over if reset.all() else net(screens[None], after, reset[None])[1][0]
        target = returns(all_rewards, all_ended.to(self.device), to_come, recipe.discount)
        log_probabilities = logits.log_softmax(-1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        taken = log_probabilities.gather(-1, torch.stack(actions).unsqueeze(-1)).squeeze(-1)
        value_error = functional.mse_loss(values, target)
        advantage = target - values.detach()
        if recipe.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        loss = -(taken * advantage).mean() + recipe.value_coef * value_error
        loss = loss - recipe.entropy_coef * entropy
        net.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), recipe.clip or math.inf)
        measured = torch.stack((norm, all_rewards.sum(), entropy.detach(), value_error.detach()))
        length, rewarded, *others = measured.cpu().tolist()  # the one time that the device is waited for
        if not math.isfinite(length):
            raise DivergedError(f"the gradient became {length}")
        grad = parameters_to_vector([_gradient(parameter) for parameter in net.parameters()])
        self.screens, self.reset, self.state = screens, reset, None if reset.all() else _detached(after)
        episodes = int(all_ended.sum())
        frames = recipe.rollout * recipe.num_envs + episodes  # an episode has a frame more than it has moves
        return grad, Played(frames, episodes, rewarded, *others)


def play_and_learn(
    game: Game, recipe: Recipe, shared: Shared, number: int, seed: int, device: torch.device
) -> Iterator[Played]:
    """One worker: an update of the shared weights at each step, until all frames are played."""
    worker = Worker(game, recipe, seed, device)
    while shared.frames < recipe.frames:
        grad, played = worker.play(shared.weights)
        shared.change(grad, recipe, played.frames, number)
        yield played


@torch.no_grad()
def score(game: Game, net: nn.Module, *, episodes: int = 1000, greedy: bool, seed: int) -> float:
    """The mean return of fresh episodes, with the most likely action (greedy) or with sampled actions."""
    device, count = next(net.parameters()).device, min(episodes, 250)
    generator, player = devices.make_generator(device, seed), game.make_player(net, None)
    games = make_games(game, count, seed, device)
    screens, reset = games.reset(seed=seed), torch.ones(count, dtype=torch.bool)
    returned, ended = [], 0
    while ended < episodes:
        logits = player(screens, reset)
        action = logits.argmax(-1) if greedy else draw(logits, generator)
        screens, reward, reset = games.step(action)
        returned.append(reward.sum())
        ended += int(reset.sum())
    return math.fsum(torch.stack(returned).cpu().tolist()) / ended


class _Position:
    """How far a run is, and the window that is being measured."""

    def __init__(self, device: str) -> None:
        self.device = device  # and before it, those on which the run was begun
        self.window, self.frames, self.episodes, self.deaths, self.seconds = 0, 0, 0, 0, 0.0
        self.updates, self.ended, self.returns, self.entropy, self.value_error = 0, 0, 0.0, 0.0, 0.0

    def add(self, played: Played) -> None:
        self.frames += played.frames
        self.episodes += played.episodes
        self.updates += 1
        self.ended += played.episodes
        self.returns += played.returns
        self.entropy += played.entropy
        self.value_error += played.value_error

    def died(self) -> None:
        """A worker did."""
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise RunError(f"workers died {self.deaths} times, the run is given up: the same command goes on")

    def close_window(self) -> dict[str, float]:
        """What was measured in it; the next begins."""
        self.window += 1
        found = {"epoch": self.window, "frames": self.frames, "return": self.returns / self.ended}
        found |= {"entropy": self.entropy / self.updates, "value_error": self.value_error / self.updates}
        self.updates, self.ended, self.returns, self.entropy, self.value_error = 0, 0, 0.0, 0.0, 0.0
        return found


def learn(
    game: Game,
    recipe: Recipe,
    folder: RunFolder,
    *,
    seed: int,
    crew: Workers | None = None,
    checkpoint_seconds: float = 30.0,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Play and learn in a folder that is `opened`, or go on with what was begun there; the result.

    A worker that dies is replaced, and nothing is lost but what it was playing. A gradient that is not a number ends
    the run as "diverged", with the last checkpoint kept.

    Args:
        crew: where the workers play, and on which devices; None: here, on the CPU. On a Ray cluster they leave the
            weights here.
    """
    crew = crew or Workers(recipe.workers)
    done = folder.result
    if done is not None:
        return done
    alone = recipe.workers == 1 and crew.ray is None
    device = devices.prepared("cpu" if crew.ray else crew.device)
    net = game.make_net().to(device)
    weights = parameters_to_vector(net.parameters()).detach().clone()
    shared = Shared(weights if alone else weights.cpu(), recipe.workers)
    at = _Position(device_of(crew))
    _restore(shared, at, folder)
    folder.keep_metrics(at.window)
    measured: dict[str, Any] = folder.metrics[-1] if at.window else {"frames": 0, "return": None}
    returned = [entry["return"] for entry in folder.metrics]
    writer = folder.tensorboard(measured["frames"])
    started, before = time.monotonic(), at.seconds
    last_saved, last_told = started, -math.inf

    def save() -> None:
        nonlocal last_saved
        at.seconds, last_saved = before + time.monotonic() - started, time.monotonic()
        folder.save_checkpoint(shared.tensors(), vars(at))

    def measure() -> None:
        nonlocal measured
        measured = at.close_window() | {"seconds": before + time.monotonic() - started}
        folder.add_metrics(measured)
        returned.append(measured["return"])
        for name, value in measured.items():
            writer.add_scalar(name, value, measured["frames"])

    stopped = "finished"
    try:
        with interrupts.deferred():
            if at.frames >= recipe.frames:
                all_played: Iterator[Played] = iter(())
            elif alone:
                all_played = play_and_learn(game, recipe, shared, 0, _seed_of(seed, 0, shared), device)
            else:
                start = _in_processes if crew.ray is None else _on_ray
                all_played = start(game, recipe, shared, at, seed, crew)
            for played in all_played:
                at.add(played)
                now = time.monotonic()
                if at.ended and at.frames >= min((at.window + 1) * recipe.frames / WINDOWS, recipe.frames):
                    measure()
                    last_told = -math.inf
                if now - last_told > 0.5:
                    latest = measured["return"]
                    note = "" if latest is None else f"return {latest:.2f}"
                    value = -statistics.fmean(returned) if returned else None  # what a search minimises
                    report(Progress(at.frames, recipe.frames, at.window, note, value))
                    last_told = now
                if now - last_saved > checkpoint_seconds:
                    save()
                interrupts.check()
            at.frames = shared.frames  # with what a worker learned from that died before it reported them
            if at.ended and at.frames >= recipe.frames:
                measure()
    except interrupts.Interrupted:
        save()
        raise
    except DivergedError:
        stopped = "diverged"
    finally:
        writer.close()
    if stopped == "finished":
        save()
    at.seconds = before + time.monotonic() - started
    result = {"seed": seed, "stopped": stopped, "frames": shared.frames, "updates": shared.updates}
    result |= {"episodes": at.episodes, "deaths": at.deaths, "seconds": at.seconds}
    result |= {"parameters": len(shared.weights), "device": at.device}
    if stopped == "finished":
        set_weights(net, shared.weights)
        folder.save_best(net.state_dict(), {"frames": result["frames"]})
        for name, greedy in (("greedy_return", True), ("sampled_return", False)):
            result[name] = score(game, net, greedy=greedy, seed=seed + EVALUATION_SEED)
    folder.finish(result)
    return result


def device_of(crew: Workers) -> str:
    """What is recorded of where a run is."""
    return crew.device if crew.ray else devices.describe(devices.prepared(crew.device))


def _restore(shared: Shared, at: _Position, folder: RunFolder) -> None:
    """Put what is shared, and the position, where the folder's checkpoint has them."""
    saved = folder.checkpoint()
    if saved is None:
        return
    tensors, facts = saved
    try:
        shared.restore(tensors)
        device = devices.moved(facts, at.device)
        vars(at).update({**{name: facts[name] for name in vars(at) if name != "device"}, "device": device})
        at.frames = shared.frames  # some of which may not have been reported yet
    except (KeyError, RuntimeError) as error:
        what = str(error).splitlines()[0]
        raise BadFileError(f"the checkpoint in {folder.path} is of another net ({what}): delete the folder") from error


def _seed_of(seed: int, worker: int, shared: Shared) -> int:
    """Another for every worker, and for what takes its place, or goes on after a stop."""
    return seed + 1_000 * (worker + 1) + 1_000_003 * shared.frames


def _in_processes(
    game: Game, recipe: Recipe, shared: Shared, at: _Position, seed: int, crew: Workers
) -> Iterator[Played]:
    """Every update, of whichever worker."""
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[int, BaseProcess]] = {}

    def start(worker: int) -> None:
        ours, theirs = context.Pipe(duplex=False)
        place = crew.device, crew.gpu_of(worker)
        arguments = (game, recipe, shared, worker, _seed_of(seed, worker, shared), place, theirs)
        process = context.Process(target=_work, args=arguments, daemon=True)
        with interrupts.blocked():
            process.start()
        theirs.close()
        running[ours] = worker, process

    try:
        for worker in range(recipe.workers):
            start(worker)
        while running:
            interrupts.check()
            for ready in wait_for(running):
                try:
                    kind, value = ready.recv()
                except EOFError:
                    kind, value = "died", None
                if kind == "played":
                    yield value
                    continue
                worker, process = running.pop(ready)
                ready.close()
                process.join()
                if kind == "diverged":
                    raise DivergedError(value)
                if kind == "failed":
                    raise RunError(f"a worker failed: {value}")
                if kind == "died":
                    at.died()
                    start(worker)
    finally:
        for _, process in running.values():
            process.kill()
        for _, process in running.values():
            process.join()


def _on_ray(game: Game, recipe: Recipe, shared: Shared, at: _Position, seed: int, crew: Workers) -> Iterator[Played]:
    """The same with workers that are actors on a cluster. They are sent weights, and send gradients."""
    ray = connect(crew.ray or "auto")
    actor, running = ray.remote(num_cpus=1, num_gpus=gpus_of(crew, ray))(_Actor), {}

    def start(worker: int) -> None:
        player = actor.remote(game, recipe, _seed_of(seed, worker, shared), crew.device)
        running[player.play.remote(shared.weights.clone())] = worker, player

    try:
        for worker in range(recipe.workers):
            start(worker)
        while shared.frames < recipe.frames:
            found, _ = ray.wait(list(running), num_returns=1, timeout=0.5)
            interrupts.check()
            if not found:
                continue
            (ready,) = found
            worker, player = running.pop(ready)
            try:
                grad, played = ray.get(ready)
            except ray.exceptions.ActorDiedError as error:
                if error.actor_init_failed:
                    raise RunError(f"a worker failed: {' '.join(str(error).split())[-300:]}") from error
                at.died()
                start(worker)
                continue
            except (ray.exceptions.NodeDiedError, ray.exceptions.ActorUnavailableError):
                at.died()
                start(worker)
                continue
            shared.change(grad, recipe, played.frames, worker)
            running[player.play.remote(shared.weights.clone())] = worker, player
            yield played
    finally:
        for _, player in running.values():
            ray.kill(player)


class _Actor(Worker):
    """A worker on a cluster."""

    def __init__(self, game: Game, recipe: Recipe, seed: int, device: devices.Name) -> None:
        prepare_process()
        super().__init__(game, recipe, seed, devices.prepared(device))

    def play(self, weights: Tensor) -> tuple[Tensor, Played]:
        grad, played = super().play(weights)
        return grad.cpu(), played


def _work(
    game: Game,
    recipe: Recipe,
    shared: Shared,
    number: int,
    seed: int,
    place: tuple[devices.Name, int | None],
    pipe: Connection,
) -> None:
    prepare_child(place[1])
    try:
        for played in play_and_learn(game, recipe, shared, number, seed, devices.prepared(place[0])):
            pipe.send(("played", played))
        pipe.send(("done", None))
    except DivergedError as error:
        pipe.send(("diverged", str(error)))
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _detached(state: Any) -> Any:
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
