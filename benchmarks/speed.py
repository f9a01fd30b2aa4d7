"""Speed beside what a user would pick instead: the same work, interleaved in one run, as a ratio.

    python benchmarks/speed.py [--quick] [--compile] [--out runs/bench]

CPU time of the process on one thread, median over repetitions that take turns; wall time on two threads beside it. A
repetition is as many training steps in a row as take about 30 ms, as when a net is trained, and at least one.
Writes OUT/bench.json and OUT/bench.png.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastweights import FastWeights, FastWeightsCell, __version__, backend
from fastweights.memory.equations import Dynamics, MatrixMemory, SlowWeights
from fastweights.memory.equations import run as run_equations

Row = dict[str, Any]
Rivals = dict[str, Callable[[], object]]
BATCH = 128
SIZES = [(100, H, 11) for H in (20, 50, 100, 200)] + [(49, H, 24) for H in (20, 50, 100, 200)]
TURN = 0.03  # seconds
Job = tuple[Row, Rivals]


def interleaved(groups: list[Rivals], repeats: int, clock: Callable[[], float]) -> list[dict[str, float]]:
    """Median seconds of each rival of each group, over `repeats` rounds in which all take turns of about TURN.

    A round goes through all groups, so that a busy minute of the machine does not fall on one of them alone, and every
    other round goes backwards, so that the caches that a rival finds are not always left by the same one.
    """
    times: list[dict[str, list[float]]] = [{name: [] for name in rivals} for rivals in groups]
    counts: list[dict[str, int]] = [{} for _ in groups]
    for repeat in range(repeats + 1):
        order = slice(None, None, -1 if repeat % 2 else 1)
        for rivals, spent, count in list(zip(groups, times, counts, strict=True))[order]:
            for name, work in list(rivals.items())[order]:
                work()  # whatever ran before had the caches
                if repeat == 0:
                    start = clock()
                    work()
                    count[name] = max(1, round(TURN / max(clock() - start, 1e-6)))
                    continue
                start = clock()
                for _ in range(count[name]):
                    work()
                spent[name].append((clock() - start) / count[name])
        if sys.stderr.isatty():
            end = "\r" + " " * 20 + "\r" if repeat == repeats else ""
            print(f"\rround {repeat} of {repeats} ", end=end, flush=True, file=sys.stderr)
    return [{name: statistics.median(each) for name, each in spent.items()} for spent in times]


def training_step(layer: nn.Module, x: Any, **signals: Any) -> Callable[[], None]:
    def step() -> None:
        layer.zero_grad(set_to_none=True)
        if isinstance(x, Tensor):
            x.grad = None
        output = layer(x, **signals)[0]
        (output if isinstance(output, Tensor) else output.data).sum().backward()

    return step


def naive(layer: FastWeights, x: Tensor) -> Callable[[], None]:
    """The H×H matrix, step by step, as most public implementations do it."""
    weights: Any = [getattr(layer, f"{n}_l0") for n in ("weight_hh", "weight_ih", "bias", "norm_weight", "norm_bias")]
    B, H = x.shape[1], layer.hidden_size

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        memory = MatrixMemory(x.new_zeros(B, H, H), torch.tensor(layer.decay), torch.tensor(layer.rate))
        run_equations(x, x.new_zeros(B, H), memory, SlowWeights(*weights), Dynamics(layer.inner_steps))[
            0
        ].sum().backward()

    return step


def rivals_for(features: int, H: int, T: int, S: int, B: int) -> Rivals:
    x = torch.randn(T, B, features, requires_grad=True)
    return {
        "fastweights": training_step(FastWeights(features, H, inner_steps=S), x),
        "lstm": training_step(nn.LSTM(features, H), x),
        "rnn": training_step(nn.RNN(features, H, nonlinearity="relu"), x),
    }


def other_ways(features: int, H: int, T: int, S: int, B: int, compiled: bool) -> Rivals:
    """The same layer computed otherwise. A group of its own: these leave the allocator in a state of their own."""
    x = torch.randn(T, B, features, requires_grad=True)
    slow = FastWeights(features, H, inner_steps=S, backend="torch")
    rivals: Rivals = {
        "fastweights": training_step(FastWeights(features, H, inner_steps=S), x),
        "torch path": training_step(slow, x),
        "naive": naive(slow, x),
    }
    if compiled:
        attention = FastWeights(features, H, inner_steps=S, backend="torch")
        rivals["torch.compile"] = training_step(torch.compile(attention), x)  # type: ignore[arg-type]
    return rivals


def flops(features: int, H: int, T: int, S: int, B: int) -> float:
    """Of a training step: the products with C and W, forward and twice backward, and attention over the states."""
    return B * (6 * T * H * (features + H) + 14 * S * H * T * (T - 1) / 2)


def gemm_peak(repeats: int = 50) -> float:
    """Flop/s of a large matrix product, the best seen: that of MKL, or of oneDNN, which is faster on some CPUs."""
    a, best = torch.randn(768, 768), 0.0
    layouts = [a, a.to_mkldnn()] if torch.backends.mkldnn.is_available() else [a]
    for matrix in layouts * repeats:
        before = time.process_time()
        nn.functional.linear(matrix, matrix)
        best = max(best, 2 * 768**3 / max(time.process_time() - before, 1e-9))
    return best


def show(row: Row) -> None:
    ratios = [f"{name} {row[name] / row['fastweights']:5.2f}×" for name in row["rivals"] if name != "fastweights"]
    print(f"{row['what']:<34} {1e3 * row['fastweights']:9.3f} ms   {'  '.join(ratios)}", flush=True)


def job(what: str, rivals: Rivals, **facts: Any) -> Job:
    return {"what": what, "rivals": list(rivals), **facts}, rivals


def measure(jobs: list[Job], repeats: int) -> list[Row]:
    found = interleaved([rivals for _, rivals in jobs], repeats, time.process_time)
    for (row, _), seconds in zip(jobs, found, strict=True):
        row |= seconds
        show(row)
    return [row for row, _ in jobs]


def training(repeats: int) -> list[Row]:
    jobs = []
    for S in (1, 3):
        for features, H, T in SIZES:
            facts = {"I": features, "H": H, "T": T, "S": S, "B": BATCH}
            rivals = rivals_for(features, H, T, S, BATCH)
            jobs.append(job(f"train I={features} H={H} T={T} S={S}", rivals, **facts))
    rows, peak = measure(jobs, repeats), gemm_peak()
    torch.set_num_threads(2)
    walls = interleaved([rivals for _, rivals in jobs], max(3, repeats // 3), time.perf_counter)
    torch.set_num_threads(1)
    for row, wall in zip(rows, walls, strict=True):
        row["of_gemm_peak"] = flops(row["I"], row["H"], row["T"], row["S"], BATCH) / row["fastweights"] / peak
        row["wall_two_threads"] = wall
    return rows


def ways(repeats: int, compiled: bool) -> list[Row]:
    jobs = []
    for features, H, T in SIZES:
        facts = {"I": features, "H": H, "T": T, "S": 1, "B": BATCH}
        jobs.append(job(f"ways  I={features} H={H} T={T} S=1", other_ways(features, H, T, 1, BATCH, compiled), **facts))
    return measure(jobs, max(3, repeats // 6))


def long_sequences(repeats: int, lengths: tuple[int, ...]) -> list[Row]:
    jobs = []
    for H in (20, 50, 100):
        for T in lengths:
            facts = {"I": H, "H": H, "T": T, "S": 1, "B": 16}
            jobs.append(job(f"long  H={H} T={T} B=16", rivals_for(H, H, T, 1, 16), **facts))
    return measure(jobs, max(3, repeats // 4))


@torch.no_grad()
def streaming(repeats: int) -> list[Row]:
    jobs = []
    for H in (50, 100, 200):
        ours, lstm, x = FastWeightsCell(H, H), nn.LSTMCell(H, H), torch.randn(1, H)
        state, pair = ours(x), lstm(x)

        def many(call: Callable[[], object]) -> Callable[[], None]:
            def work() -> None:
                for _ in range(100):
                    call()

            return work

        rivals: Rivals = {
            "fastweights": many(lambda ours=ours, x=x, state=state: ours(x, state)),  # type: ignore[misc]
            "lstm": many(lambda lstm=lstm, x=x, pair=pair: lstm(x, pair)),  # type: ignore[misc]
        }
        jobs.append(job(f"100 stream steps H={H}", rivals, I=H, H=H, T=1, S=1, B=1))
    return measure(jobs, repeats)


def many_lengths(repeats: int) -> list[Row]:
    jobs = []
    for features, H, T in ((100, 50, 11), (49, 100, 24), (49, 100, 100)):
        x = torch.randn(T, BATCH, features, requires_grad=True)
        lengths = torch.randint(1, T, (BATCH,))  # T/2 on average
        packed = nn.utils.rnn.pack_padded_sequence(x.detach(), lengths, enforce_sorted=False)
        layer, lstm = FastWeights(features, H), nn.LSTM(features, H)
        facts = {"I": features, "H": H, "T": T, "S": 1, "B": BATCH, "mean_length": lengths.float().mean().item()}
        ours: Rivals = {
            "fastweights": training_step(layer, x, lengths=lengths),
            "full batch": training_step(layer, x),
            "packed": training_step(layer, packed),
        }
        jobs.append(job(f"lengths I={features} H={H} T={T}", ours, **facts))
        theirs: Rivals = {
            "fastweights": training_step(layer, packed),
            "lstm": training_step(lstm, packed),
            "lstm full batch": training_step(lstm, x),
        }
        jobs.append(job(f"packed  I={features} H={H} T={T}", theirs, **facts))
    return measure(jobs, repeats)


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_H, by_T) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names = {"fastweights": "FastWeights", "lstm": "nn.LSTM", "rnn": "nn.RNN (ReLU)"}
    for name, label in names.items():
        wide = [row for row in rows if row["what"].startswith("train") and row["T"] == 24 and row["S"] == 1]
        by_H.plot([row["H"] for row in wide], [1e3 * row[name] for row in wide], "o-", label=label)
        far = [row for row in rows if row["what"].startswith("long") and row["H"] == 50]
        by_T.plot([row["T"] for row in far], [1e6 * row[name] / row["T"] for row in far], "o-", label=label)
    by_H.set(xlabel="units H", ylabel="ms per training step", title="I=49, T=24, B=128", xscale="log", yscale="log")
    by_T.set(xlabel="steps T", ylabel="µs per step of the sequence", title="H=50, B=16", xscale="log", ylim=0)
    for axes, ticks in ((by_H, [row["H"] for row in wide]), (by_T, [row["T"] for row in far])):
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
    by_H.set_yticks([3, 10, 30, 100], ["3", "10", "30", "100"])
    by_H.set_yticks([], minor=True)
    by_H.legend()
    figure.savefig(path, dpi=130)


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, no very long sequences")
    parser.add_argument(
        "--compile", action="store_true", help="also torch.compile of the attention form (slow to start)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where bench.json and bench.png go")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    repeats = 5 if args.quick else 21
    print(f"{machine()}; torch {torch.__version__}; {backend()}")
    print("CPU time on one thread; N× is how many times longer the other takes\n")
    rows = training(repeats) + ways(repeats, args.compile) + many_lengths(repeats) + streaming(repeats)
    rows += long_sequences(repeats, (256, 1024) if args.quick else (256, 1024, 4096))
    args.out.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine(), "torch": torch.__version__, "fastweights": __version__, "backend": str(backend())}
    command = " ".join(["python benchmarks/speed.py", *sys.argv[1:]])
    report = {**facts, "command": command, "repeats": repeats, "unit": "seconds of CPU time, median", "rows": rows}
    (args.out / "bench.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(rows, args.out / "bench.png")
    print(f"\nwritten: {args.out / 'bench.json'}, {args.out / 'bench.png'}")


if __name__ == "__main__":
    main()
