"""How long a training step takes beside nn.LSTM and nn.RNN: process CPU time on one thread, repetitions interleaved."""

import statistics
import time

import torch
from torch import Tensor, nn

from fastweights import FastWeights

SIZES = [(100, H, 11) for H in (20, 50, 100, 200)] + [(49, H, 24) for H in (20, 50, 100, 200)]
BATCH, REPEATS = 128, 15


def training_step(layer: nn.Module, x: Tensor) -> float:
    layer.zero_grad()
    start = time.process_time()
    layer(x)[0].sum().backward()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    print(f"ms per training step, batch {BATCH}, median of {REPEATS}, one thread, torch {torch.__version__}")
    print(f"{'I':>4} {'H':>4} {'T':>4} {'FastWeights':>12} {'nn.LSTM':>8} {'nn.RNN':>8} {'LSTM/ours':>10}")
    for features, H, T in SIZES:
        x = torch.randn(T, BATCH, features, requires_grad=True)
        rivals = [FastWeights(features, H), nn.LSTM(features, H), nn.RNN(features, H, nonlinearity="relu")]
        times: list[list[float]] = [[] for _ in rivals]
        for repeat in range(REPEATS + 2):
            for layer, spent in zip(rivals, times, strict=True):
                seconds = training_step(layer, x)
                if repeat >= 2:  # the first are warm-up
                    spent.append(seconds)
        ours, lstm, rnn = (1e3 * statistics.median(spent) for spent in times)
        print(f"{features:4d} {H:4d} {T:4d} {ours:12.2f} {lstm:8.2f} {rnn:8.2f} {lstm / ours:9.2f}×")


if __name__ == "__main__":
    main()
