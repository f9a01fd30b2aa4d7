"""Speed at any batch, beside nn.LSTM, nn.GRU and nn.RNN: from one sequence to many, short and long, narrow and wide.

    python benchmarks/batches.py [--quick] [--out runs/bench]

CPU time on one thread, the least of some turns that all take in one run; then wall time on two threads, and the memory
of a long sequence. Ratios are what the other takes by what FastWeights takes: above 1, FastWeights is faster. Writes
OUT/bench-batches.json and OUT/bench-batches.png.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from speed import machine, training_step
from torch import nn

from fastweights import FastWeights, __version__, backend

Row = dict[str, Any]
TABLE = [(1, 256, 64, 64), (1, 1024, 128, 128), (4, 512, 256, 256), (8, 128, 1024, 1024), (64, 784, 1, 128)]
TABLE += [(16, 4096, 64, 64), (32, 64, 256, 256), (128, 100, 128, 128)]
FEW = [(B, T, H, H) for T, H in ((256, 64), (1024, 128), (512, 256)) for B in (1, 2, 4, 8)]
BATCHES, UNITS, STEPS = (1, 2, 4, 8, 16, 32, 128), (20, 50, 100, 200, 400), (1, 8, 64, 256, 1024)
THREADS = [(16, 1024, 100, 100), (128, 100, 128, 128)]
RIVALS: dict[str, type[nn.Module]] = {"fastweights": FastWeights, "lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
NAMES = {"lstm": "nn.LSTM", "gru": "nn.GRU", "rnn": "nn.RNN"}
# What a sequence of 100,000 steps takes, beyond what is there before: megabytes.
MEMORY = """
import sys, torch
from fastweights import FastWeights
def peak():  # of this process alone: what `resource` tells may be of the one that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
with torch.no_grad():
    layer = FastWeights(128, 128, backend=sys.argv[1])
    layer(torch.randn(8, 1, 128))
    x = torch.randn(int(sys.argv[2]), 1, 128)
    before = peak()
    layer(x)
    print(peak() - before)
"""


def inference(layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            layer(x)

    return call


def least(
    works: list[Callable[[], None]], turns: int, clock: Callable[[], float], seconds: float = 0.04
) -> list[float]:
    """The least seconds per call over turns of about so many seconds, which all take one after the other."""
    best = [float("inf")] * len(works)
    for turn in range(turns + 1):
        for place, work in list(enumerate(works))[:: -1 if turn % 2 else 1]:
            work()
            calls, start = 0, clock()
            while calls == 0 or clock() - start < seconds:
                work()
                calls += 1
            best[place] = min(best[place], (clock() - start) / calls)
    return best


def row(B: int, T: int, features: int, H: int, rivals: tuple[str, ...], turns: int) -> Row:
    x = torch.randn(T, B, features)
    wanted = x.clone().requires_grad_()
    layers = [RIVALS[name](features, H) for name in rivals]
    found: Row = {"B": B, "T": T, "I": features, "H": H}
    for what, works in (
        ("training", [training_step(layer, wanted) for layer in layers]),
        ("inference", [inference(layer, x) for layer in layers]),
    ):
        found[what] = dict(zip(rivals, least(works, turns, time.process_time), strict=True))
    return found


def ratio(found: Row, what: str, rival: str) -> float:
    return float(found[what][rival] / found[what]["fastweights"])


def show(found: Row) -> None:
    ratios = [
        f"{what} "
        + "  ".join(f"{NAMES[name]} {ratio(found, what, name):5.2f}×" for name in NAMES if name in found[what])
        for what in ("training", "inference")
    ]
    size = ", ".join(f"{name}={found[name]}" for name in "BTIH")
    print(f"{size:<32} {'   '.join(ratios)}", flush=True)


def on_threads(turns: int) -> list[Row]:
    rows = []
    for B, T, features, H in THREADS:
        x = torch.randn(T, B, features, requires_grad=True)
        step, found = training_step(FastWeights(features, H), x), {}
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found[threads] = least([step], 2 * turns, time.perf_counter)[0]
        torch.set_num_threads(1)
        rows.append({"B": B, "T": T, "I": features, "H": H, "wall": found, "speedup": found[1] / found[2]})
        print(f"two threads, B={B}, T={T}, H={H}: {rows[-1]['speedup']:.2f} times as fast as one")
    return rows


def memory(steps: int) -> dict[str, float]:
    found = {}
    for name in ("kernel", "torch"):
        command = [sys.executable, "-c", MEMORY, name, str(steps)]
        found[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"inference, one sequence of {steps:,} steps, H=128, {name}: {found[name]:.0f} MB beyond the input")
    return found


def plot(grids: dict[str, list[Row]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors, pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 8), layout="constrained")
    for line, (name, rows) in zip(axes, grids.items(), strict=True):
        other = "H" if name == "units" else "T"
        for ax, what in zip(line, ("training", "inference"), strict=True):
            columns, batches = sorted({r[other] for r in rows}), sorted({r["B"] for r in rows})
            found = {(r["B"], r[other]): ratio(r, what, "lstm") for r in rows}
            picture = [[found[B, column] for column in columns] for B in batches]
            image = ax.imshow(picture, norm=colors.LogNorm(0.25, 4), cmap="PuOr", origin="lower", aspect="auto")
            for i, values in enumerate(picture):
                for j, value in enumerate(values):
                    ax.text(j, i, f"{value:.1f}", ha="center", va="center", color="white" if value > 2.8 else "black")
            fixed = "T=64" if name == "units" else "H=100"
            ax.set(title=f"{what}, {fixed}", xlabel="units H" if other == "H" else "steps T", ylabel="sequences B")
            ax.set_xticks(range(len(columns)), [str(column) for column in columns])
            ax.set_yticks(range(len(batches)), [str(B) for B in batches])
    label = "time of nn.LSTM / time of FastWeights"
    figure.colorbar(image, ax=axes, label=label, ticks=[0.25, 0.5, 1, 2, 4], format="%g").minorticks_off()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where the figures and the picture go")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    turns = 1 if args.quick else 5
    print(f"{machine()}; torch {torch.__version__}; {backend()}")
    print("CPU time on one thread; N× is how many times longer the other takes\n")
    rows = []
    pair = ("fastweights", "lstm")
    for sizes, rivals in ((FEW, pair), (TABLE, tuple(RIVALS))):
        for size in sizes:
            rows.append(row(*size, rivals, turns))
            show(rows[-1])
    grids = {
        "units": [row(B, 64, H, H, pair, turns) for B in BATCHES for H in UNITS],
        "steps": [row(B, T, 100, 100, pair, turns) for B in BATCHES for T in STEPS],
    }
    for name, grid in grids.items():
        for what in ("training", "inference"):
            worst = min(grid, key=lambda found: ratio(found, what, "lstm"))  # noqa: B023
            place = ", ".join(f"{key}={worst[key]}" for key in "BTH")
            print(f"least over B and {name}, {what}: nn.LSTM {ratio(worst, what, 'lstm'):.2f}× at {place}")
    report = {"rows": rows, **grids, "threads": on_threads(turns), "memory": memory(100_000)}
    args.out.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine(), "torch": torch.__version__, "fastweights": __version__, "backend": str(backend())}
    command = " ".join(["python benchmarks/batches.py", *sys.argv[1:]])
    report = {**facts, "command": command, "unit": "seconds of CPU time, least", **report}
    (args.out / "bench-batches.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(grids, args.out / "bench-batches.png")
    print(f"\nwritten: {args.out / 'bench-batches.json'}, {args.out / 'bench-batches.png'}")


if __name__ == "__main__":
    main()
