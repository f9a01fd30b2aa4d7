"""What a scan costs, and that it stays finite."""

import subprocess
import sys

import torch

from fastweights import FastWeights
from fastweights.memory.scan import chunk_length

TRAINING_STEP = """
import resource, torch
from fastweights import FastWeights

torch.set_num_threads(1)
T, H, B = 4096, 128, 16
layer = FastWeights(H, H)
x = torch.randn(T, B, H)
layer(x[:300])[0].sum().backward()  # what torch allocates once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output, state = layer(x)
(output.square().mean() + state.A.square().mean()).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_of_a_long_training_step():
    done = subprocess.run([sys.executable, "-c", TRAINING_STEP], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.5e9  # an H×H matrix per step would take 4.3e9 for A alone


def test_finite_over_ten_thousand_steps():
    layer = FastWeights(8, 16, decay=1, rate=1)
    x = torch.nn.functional.normalize(torch.randn(10_000, 1, 8), dim=-1) * 1e4
    x.requires_grad_()
    output, state = layer(x)
    (output.sum() + state.A.sum()).backward()
    for tensor in (output, state.h, state.A, x.grad, *(p.grad for p in layer.parameters())):
        assert tensor.isfinite().all()


def test_short_sequences_are_one_chunk_and_long_ones_are_not():
    assert chunk_length(11, 50) == 11
    assert chunk_length(64, 20) == 64
    assert chunk_length(4096, 20) == 16
    assert chunk_length(4096, 150) == 42
    assert chunk_length(4096, 2000) == 128
