"""Frames of Catch in a second: of the games alone, and of agents that learn, with one worker and with two.

    python benchmarks/agents.py [--frames 1000000] [--turns 3] [--out runs/bench]

The games by CPU time of one thread. Agents (fast weights, (16, 3)) by wall time, as two workers need two cores; runs
with one and with two take turns, and the first tenth of each, in which processes start, is not counted.
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

import numpy as np
import torch
from speed import machine

from fastweights import __version__, backend
from fastweights.paper.catch.run import Catch, train
from fastweights.tasks.catch import CatchVector
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
    turns: list[dict[str, Any]] = []
    for turn in range(1, args.turns + 1):
        one, two = learned(1, args.frames), learned(2, args.frames)
        turns.append({"one_worker": one, "two_workers": two, "ratio": two / one})
        print(f"turn {turn}: {one:,.0f} frames/s with one worker, {two:,.0f} with two: {two / one:.2f}×")
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    facts = {"machine": machine(), "torch": torch.__version__, "fastweights": __version__, "backend": str(backend())}
    command = " ".join(["python benchmarks/agents.py", *sys.argv[1:]])
    report = {**facts, "command": command, "unit": "frames/s", "games": games, "medians": medians, "turns": turns}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench-agents.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
