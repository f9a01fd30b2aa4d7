"""What a scan costs, and that it stays finite."""

import subprocess
import sys

import pytest
import torch

from fastweights import FastWeights
from fastweights.memory.scan import Controls, chunk_length, weigh

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
    assert chunk_length(128, 20) == 128
    assert chunk_length(4096, 20) == 64
    assert chunk_length(4096, 128) == 128
    assert chunk_length(4096, 2000) == 256


def test_weights_by_hand():
    weights = weigh(3, 0.5, 2.0, Controls(), torch.empty(0))
    w, p, (w_end, p_end) = weights.w, weights.p, weights.left(None)
    assert w[0].tolist() == [[0, 0, 0], [2, 0, 0], [1, 2, 0]]
    assert w_end[0].tolist() == [0.5, 1, 2]
    assert p[0].tolist() == [1, 0.5, 0.25]
    assert p_end.item() == 0.125


@pytest.mark.parametrize("at", [0, 1, 2])
def test_nothing_is_seen_across_a_reset(at):
    reset = torch.zeros(3, 1, dtype=torch.bool)
    reset[at] = True
    weights = weigh(3, 0.5, 2.0, Controls(reset=reset), torch.empty(0))
    w, p, (w_end, p_end) = weights.w, weights.p, weights.left(None)
    assert not w[0, at:, :at].any()
    assert not p[0, at:].any()
    assert p_end.item() == 0
    assert not w_end[0, :at].any()
    assert w_end[0, 2] == 2


def test_what_is_left_for_sequences_of_many_lengths():
    w_left, p_left = weigh(3, 0.5, 2.0, Controls(), torch.empty(0)).left(torch.tensor([3, 0, 2]))
    assert w_left.tolist() == [[0.5, 1, 2], [0, 0, 0], [1, 2, 0]]
    assert p_left.tolist() == [0.125, 1, 0.25]
