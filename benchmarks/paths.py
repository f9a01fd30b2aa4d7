"""Whether the kernel is ever slower than the torch path: random sizes, the same work by both, in turns.

    python benchmarks/paths.py [--sizes 200] [--seed 0] [--out runs/bench]

Batches of 1 to 256, 1 to 2000 steps, 1 to 1024 units, from zero or from a state; training steps and inference. CPU time
on one thread, the least of some turns. Sizes beyond about 4 · 10¹⁰ operations a step are drawn again. Writes
OUT/paths.json and prints the worst.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastweights import FastWeights, __version__, backend

MOST = 4e10  # operations
SECONDS = 0.1  # that each turn takes at least, if a call does not take longer


def least(works: list[Callable[[], object]], turns: int) -> list[float]:
    """The least seconds that a call of each takes, over turns that they take one after the other."""
    best = [math.inf] * len(works)
    for turn in range(turns + 1):
        for place, work in enumerate(works):
            calls, start = 0, time.process_time()
            while calls == 0 or (turn and time.process_time() - start < SECONDS):
                work()
                calls += 1
            if turn:
                best[place] = min(best[place], (time.process_time() - start) / calls)
    return best


def measure(B: int, T: int, features: int, H: int, carried: bool, turns: int) -> dict[str, Any]:
    layers = [FastWeights(features, H, backend=name) for name in ("kernel", "torch")]
    x = torch.randn(T, B, features, requires_grad=True)
    state = None
    if carried:
        with torch.no_grad():
            state = layers[1](torch.randn(2, B, features))[1]
            state = type(state)(state.h.clone(), state.A.clone())

    def train(layer: FastWeights) -> Callable[[], None]:
        def step() -> None:
            layer.zero_grad(set_to_none=True)
            x.grad = None
            layer(x, state)[0].sum().backward()

        return step

    def infer(layer: FastWeights) -> Callable[[], None]:
        def call() -> None:
            with torch.no_grad():
                layer(x, state)

        return call

    row: dict[str, Any] = {"B": B, "T": T, "I": features, "H": H, "carried": carried}
    for what, make in (("training", train), ("inference", infer)):
        kernel, twin = least([make(layer) for layer in layers], turns)
        row |= {what: kernel, f"{what}_torch": twin, f"{what}_ratio": kernel / twin}
    return row


def size(rng: random.Random) -> tuple[int, int, int, int, bool]:
    """At random, evenly in the logarithm."""
    while True:
        B, T, H = (round(math.exp(rng.uniform(0, math.log(most)))) for most in (256, 2000, 1024))
        carried = rng.random() < 0.5
        chunk = min(T, 128)
        operations = 20 * B * T * H * (H + chunk) + carried * 20 * B * H * H
        if operations < MOST and B * H * H * (1 + T / 60) < 3e8:
            return B, T, rng.choice((1, 16, H)), H, carried


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where paths.json goes")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng, rows = random.Random(args.seed), []
    for _ in range(args.sizes):
        rows.append(measure(*size(rng), args.turns))
        worst = max(rows[-1]["training_ratio"], rows[-1]["inference_ratio"])
        if worst > 1:
            print(
                {name: value if not isinstance(value, float) else round(value, 6) for name, value in rows[-1].items()}
            )
    for what in ("training", "inference"):
        ratios = sorted((row[f"{what}_ratio"] for row in rows), reverse=True)
        slow = sum(ratio > 1.1 for ratio in ratios)
        print(
            f"{what}: kernel / torch at most {ratios[0]:.2f}, median {ratios[len(ratios) // 2]:.3f}; {slow} above 1.1"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python benchmarks/paths.py", *sys.argv[1:]])
    facts = {"torch": torch.__version__, "fastweights": __version__, "backend": str(backend()), "command": command}
    (args.out / "paths.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
