"""Frames of Catch in a second: of the games alone, and of agents that learn.

    python benchmarks/agents.py [--frames 1000000] [--turns 3] [--out runs/bench]

The games by CPU time of one thread. So are an LSTM's agent and, in turns, the same net in a plain loop: A2C, step by
step, with `nn.LSTM`, as one writes it, in the same games by Gymnasium's vector API. Agents with one worker and with two
(fast weights, (16, 3)) by wall time, as two workers need two cores; these runs take turns, and the first tenth of each,
in which processes start, is not counted.
Writes OUT/bench-agents.json.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from speed import machine
from torch import Tensor, nn

from fastweights import __version__, backend
from fastweights.paper.catch.run import Catch, train
from fastweights.tasks.catch import CatchVector
from fastweights.training import a3c
from fastweights.training.runs import RunFolder
from fastweights.training.workers import prepare_process


def played(count: int, seconds: float = 1.0) -> float:
    """Frames that `count` games at once play in a second."""
    games, frames = CatchVector(count, size=16, visible=3), 0
    games.reset(seed=0)
    moves = np.random.default_rng(0).integers(3, size=(100 * 15, count))
    start = time.process_time()
    while (spent := time.process_time() - start) < seconds:
        for each in moves:
            games.step(each)
        frames += 100 * 16 * count
    return frames / spent


class PlainAgent(nn.Module):
    """The same net as one writes it: screen → 128 ReLUs → LSTM of 128 → logits and value, a step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.core = nn.Linear(256, 128), nn.LSTM(128, 128)
        self.policy, self.value = nn.Linear(128, 3), nn.Linear(128, 1)

    def forward(self, screens: Tensor, state: Any, done: Tensor) -> tuple[Tensor, Tensor, Any]:
        left = 1.0 - done.view(1, -1, 1)
        output, state = self.core(self.look(screens).relu().unsqueeze(0), (left * state[0], left * state[1]))
        return self.policy(output[0]), self.value(output[0]).squeeze(-1), state


def plain(frames: int, num_envs: int = 64, rollout: int = 15) -> float:
    """Frames that a plain loop of A2C learns from in a second of CPU time."""
    torch.manual_seed(0)
    agent = PlainAgent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
    games = gymnasium.make_vec("fastweights/Catch-v0", num_envs=num_envs, size=16, visible=3)
    observed, _ = games.reset(seed=0)
    done, played, start = torch.ones(num_envs), 0, time.process_time()
    state = (torch.zeros(1, num_envs, 128), torch.zeros(1, num_envs, 128))
    while played < frames:
        state = (state[0].detach(), state[1].detach())
        log_probabilities, entropies, values, rewards, dones = [], [], [], [], []
        for _ in range(rollout):
            screens = torch.as_tensor(observed, dtype=torch.float32).flatten(1)
            logits, value, state = agent(screens, state, done)
            chosen = torch.distributions.Categorical(logits=logits)
            action = chosen.sample()
            observed, reward, terminated, truncated, _ = games.step(action.numpy())
            done = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            log_probabilities.append(chosen.log_prob(action))
            entropies.append(chosen.entropy())
            values.append(value)
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            dones.append(done)
        played += rollout * num_envs + int(torch.stack(dones).sum())
        with torch.no_grad():
            screens = torch.as_tensor(observed, dtype=torch.float32).flatten(1)
            total = agent(screens, state, done)[1]
        targets: list[Tensor] = []
        for reward, ended in zip(reversed(rewards), reversed(dones), strict=True):
            total = reward + (1 - ended) * total
            targets.insert(0, total)
        advantage = torch.stack(targets) - torch.stack(values)
        policy_loss = -(torch.stack(log_probabilities) * advantage.detach()).mean()
        loss = policy_loss + 0.1 * advantage.square().mean() - 0.01 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        optimizer.step()
    return played / (time.process_time() - start)


def ours(frames: int) -> float:
    """Frames that an LSTM's agent learns from in a second of CPU time."""
    base = Catch(core="lstm")
    config = replace(base, training=replace(base.training, frames=frames))
    worker = a3c.play_and_learn(config, config.training, shared_of(config), 0, seed=0, device=torch.device("cpu"))
    start = time.process_time()
    played = sum(each.frames for each in worker)
    return played / (time.process_time() - start)


def shared_of(config: Catch) -> a3c.Shared:
    """The weights that its workers share."""
    net = config.make_net()
    return a3c.Shared(nn.utils.parameters_to_vector(net.parameters()).detach().clone(), 1)


def learned(workers: int, frames: int) -> float:
    """Frames that an agent learns from in a second."""
    base = Catch()
    config = replace(base, training=replace(base.training, workers=workers, frames=frames))
    with tempfile.TemporaryDirectory() as place:
        train(config, Path(place), "")
        metrics = RunFolder(Path(place)).metrics
    first, last = metrics[len(metrics) // 10], metrics[-1]
    return float((last["frames"] - first["frames"]) / (last["seconds"] - first["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000, help="frames of a run")
    parser.add_argument("--turns", type=int, default=3, help="runs with one worker, and with two")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where bench-agents.json goes")
    args = parser.parse_args()
    prepare_process()
    print(f"{machine()}; torch {torch.__version__}; {backend()}")
    games = {}
    for count in (64, 1024):
        games[count] = statistics.median(played(count) for _ in range(3))
        print(f"{count} games at once: {games[count]:,.0f} frames/s")
    beside: list[dict[str, float]] = []
    for turn in range(1, args.turns + 1):
        mine, theirs = ours(args.frames // 4), plain(args.frames // 4)
        beside.append({"ours": mine, "plain": theirs, "ratio": mine / theirs})
        print(f"turn {turn}, LSTM: {mine:,.0f} frames/s, {theirs:,.0f} by a plain loop: {mine / theirs:.2f}×")
    turns: list[dict[str, Any]] = []
    for turn in range(1, args.turns + 1):
        one, two = learned(1, args.frames), learned(2, args.frames)
        turns.append({"one_worker": one, "two_workers": two, "ratio": two / one})
        print(f"turn {turn}: {one:,.0f} frames/s with one worker, {two:,.0f} with two: {two / one:.2f}×")
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    medians |= {f"lstm_{name}": statistics.median(turn[name] for turn in beside) for name in beside[0]}
    facts = {"machine": machine(), "torch": torch.__version__, "fastweights": __version__, "backend": str(backend())}
    command = " ".join(["python benchmarks/agents.py", *sys.argv[1:]])
    report = {**facts, "command": command, "unit": "frames/s", "games": games, "medians": medians}
    report |= {"turns": turns, "beside_plain_pytorch": beside}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench-agents.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
