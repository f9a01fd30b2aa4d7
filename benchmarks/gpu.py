"""On a GPU, beside cuDNN's LSTM and GRU and our own torch path: milliseconds of training steps and of inference.

    python benchmarks/gpu.py [--quick] [--out runs/gpu]    # writes gpu.json and gpu.md, a table for a page
    python benchmarks/gpu.py --model                       # what bounds the kernels on paper; needs no GPU

Before anything is timed, the kernels are compared with the torch path on the GPU itself: values and gradients. All
rivals take turns; a number is the median over rounds. A first call compiles, and is not counted.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fastweights import FastWeights, __version__, backend
from fastweights.memory.scan import chunk_length

FEATURES = 64
SIZES = [(B, T, H) for B in (32, 128, 512) for T in (100, 1024) for H in (64, 128, 256, 512)]
QUICK = [(128, 100, 64), (128, 100, 128), (128, 1024, 128)]
LONGEST_FOR_TORCH = 128  # steps: beyond them it is slow, and no news
NEAR = 1e-4  # of the largest number of a tensor, in float32


class Card(NamedTuple):
    """What vendors publish of a GPU: of one multiprocessor, per clock, and of the whole."""

    name: str
    multiprocessors: int
    clock: float  # Hz
    arithmetic: int  # float32 operations per clock: two for a multiplication with an addition
    room: int  # bytes of the nearest cache
    near: int  # bytes per clock from there
    shared_room: int  # bytes of the cache of the whole GPU
    far: int  # bytes per clock from there
    memory: float  # bytes per second of the whole GPU


CARDS = [
    Card("A100", 108, 1.41e9, 128, 192 << 10, 128, 40 << 20, 47, 1.56e12),
    Card("H100", 132, 1.83e9, 256, 256 << 10, 128, 50 << 20, 47, 3.35e12),
]


class Work(NamedTuple):
    """Of one sequence at one step with S = 1: operations, and bytes that are moved."""

    arithmetic: float
    reread: float  # W and the states of the chunk
    matrix: float  # A, where there are chunks
    once: float  # what is read or written once


def work(T: int, H: int, backward: bool) -> Work:
    """What the kernels do, on the average over T steps, in float32."""
    K = min(chunk_length(T, H), T)
    past, square, chunked = (K - 1) / 2 * H, H * H, T > K
    if not backward:
        # W h, and M q twice; A q, and each state once into A. Once: u, h twice, q, what was normalised.
        arithmetic = 2 * square + 4 * past + chunked * (2 * square + 3 * square)
        return Work(arithmetic, 4 * (square + past), chunked * 4 * (square + 2 * square / K), 4 * 5 * H)
    # Wᵀ g; M g twice; queries and gradients of later steps, four times; Aᵀ g, and what A's gradient gives and takes.
    arithmetic = 2 * square + 4 * past + 8 * past + chunked * (2 * square + 2 * square + 5 * square)
    return Work(arithmetic, 4 * (square + 3 * past), chunked * 4 * (square + 3 * square / K), 4 * 6 * H)


def bounds(card: Card, B: int, T: int, H: int, backward: bool) -> dict[str, float]:
    """Microseconds per step of all B sequences, if nothing but one of these took time."""
    each = work(T, H, backward)
    share = -(-B // card.multiprocessors)  # sequences of the busiest multiprocessor
    states = (3 if backward else 1) * min(chunk_length(T, H), T) * H
    reread = each.reread / (card.near if 4 * (H * H + share * states) <= card.room else card.far)
    held = B * 4 * H * H <= card.shared_room  # every A
    return {
        "arithmetic": 1e6 * share * each.arithmetic / card.arithmetic / card.clock,
        "caches": 1e6 * share * (reread + held * each.matrix / card.far) / card.clock,
        "memory": 1e6 * B * (each.once + (not held) * each.matrix) / card.memory,
    }


def model(B: int = 128) -> str:
    """A table of these bounds, in Markdown."""
    lines = ["| GPU | T | H | pass | arithmetic | caches | memory |", "|---|---:|---:|---|---:|---:|---:|"]
    for card in CARDS:
        for T in (100, 1024):
            for H in (64, 128, 256, 512):
                for name, backward in (("forward", False), ("backward", True)):
                    found = bounds(card, B, T, H, backward)
                    most = max(found, key=lambda each: found[each])
                    cells = [f"**{us:.2f}**" if each == most else f"{us:.2f}" for each, us in found.items()]
                    lines.append(f"| {card.name} | {T} | {H} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def check(device: torch.device) -> float:
    """The largest difference between the kernels and the torch path, relative to the largest number of each tensor."""
    worst = 0.0
    for T, H, options in ((30, 50, {}), (90, 16, {"nonlinearity": "tanh", "learn_decay": True}), (20, 200, {})):
        found: list[list[torch.Tensor]] = []
        torch.manual_seed(0)
        x, signal = torch.randn(T, 5, 7, device=device), torch.rand(T, 5, device=device)
        layers = [FastWeights(7, H, backend=name, device=device, **options) for name in ("auto", "torch")]  # type: ignore[arg-type]
        layers[1].load_state_dict(layers[0].state_dict())
        for layer in layers:
            output, state = layer(x, reset=signal < 0.1, read=signal)
            loss = (output.sin().sum() + state.A.square().sum()) / T
            found.append([output.detach(), state.A.detach(), *torch.autograd.grad(loss, list(layer.parameters()))])
        for ours, theirs in zip(*found, strict=True):
            worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-3)))
    return worst


def rivals(device: torch.device, B: int, T: int, H: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name: training steps and inference of every layer."""
    x = torch.randn(T, B, FEATURES, device=device)
    layers: dict[str, nn.Module] = {
        "lstm": nn.LSTM(FEATURES, H, device=device),
        "gru": nn.GRU(FEATURES, H, device=device),
        "fast weights": FastWeights(FEATURES, H, device=device),
    }
    if T <= LONGEST_FOR_TORCH:
        layers["fast weights (torch)"] = FastWeights(FEATURES, H, device=device, backend="torch")

    def train(layer: nn.Module) -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].sum().backward()

    @torch.inference_mode()
    def infer(layer: nn.Module) -> None:
        layer(x)

    made: dict[str, Callable[[], object]] = {}
    for name, layer in layers.items():
        made[f"train {name}"] = lambda layer=layer: train(layer)  # type: ignore[misc]
        made[f"infer {name}"] = lambda layer=layer: infer(layer)  # type: ignore[misc]
    return made


def measured(device: torch.device, B: int, T: int, H: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each rival."""
    work_of = rivals(device, B, T, H)
    spent: dict[str, list[float]] = {}

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for number in range(rounds + 2):
        for name, run in work_of.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            if number >= 2:  # the first two compile, and warm up
                spent.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in spent.items()}


def as_table(rows: list[dict[str, Any]]) -> str:
    """In Markdown: milliseconds, and how often as fast as cuDNN's LSTM the fused layer is."""
    lines = ["| B | T | H | pass | LSTM | GRU | fast weights | LSTM / ours | by torch |"]
    lines.append("|---:|---:|---:|---|---:|---:|---:|---:|---:|")
    for row in rows:
        for name in ("train", "infer"):
            lstm, gru, ours = (row["ms"][f"{name} {rival}"] for rival in ("lstm", "gru", "fast weights"))
            torch_path = row["ms"].get(f"{name} fast weights (torch)")
            cells = [f"{lstm:.2f}", f"{gru:.2f}", f"{ours:.2f}", f"{lstm / ours:.2f}"]
            cells.append("" if torch_path is None else f"{torch_path:.1f}")
            lines.append(f"| {row['B']} | {row['T']} | {row['H']} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three sizes")
    parser.add_argument("--model", action="store_true", help="print the bounds on paper, and measure nothing")
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:1 and so on; cpu to try the script")
    parser.add_argument("--sizes", nargs="+", metavar="B,T,H", help="others than usual")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    options = parser.parse_args()
    if options.model:
        print(model())
        return
    device = torch.device(options.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        sys.exit(
            f"no GPU: torch {torch.__version__} finds {torch.cuda.device_count()} (CUDA or ROCm); nothing is measured"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    print(f"fastweights {__version__}, torch {torch.__version__}, {name}; {backend(device)}")
    worst = check(device)
    print(f"largest difference from the torch path: {worst:.1e} of a tensor's largest number")
    if not worst <= NEAR:
        sys.exit(
            f"the kernels are not equal to the torch path ({worst:.1e} > {NEAR:g}); please report this: docs/gpu.md"
        )
    sizes = [tuple(map(int, each.split(","))) for each in options.sizes or ()] or (QUICK if options.quick else SIZES)
    rows = []
    for B, T, H in sizes:
        try:
            rows.append({"B": B, "T": T, "H": H, "ms": measured(device, B, T, H, options.rounds)})
        except torch.OutOfMemoryError:
            print(f"B={B}, T={T}, H={H} does not fit into the memory of this GPU, and is left out")
            continue
        print(*as_table(rows[-1:]).splitlines()[-2:], sep="\n", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    versions = {
        "fastweights": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    about = {
        "gpu": name,
        "versions": versions,
        "backend": str(backend(device)),
        "command": sys.argv,
        "difference": worst,
    }
    (options.out / "gpu.json").write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    (options.out / "gpu.md").write_text(f"{name}, torch {torch.__version__}; milliseconds.\n\n{as_table(rows)}\n")
    print(f"{options.out / 'gpu.md'} has the table")


if __name__ == "__main__":
    main()
