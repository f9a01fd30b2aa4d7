"""Mistakes that public implementations of the paper make, each with a law that tells it from the paper.

A law holds for the layer and for the oracle. It fails for a mutant: the oracle with that mistake put into it.
"""

import math

import pytest
import torch
from reference import reference
from torch import nn

from fastweights import FastWeights, FastWeightsState
from fastweights.memory import equations
from fastweights.memory.equations import MatrixMemory


def make_layer(**options):
    layer = FastWeights(3, 6, **{"inner_steps": 2, "dtype": torch.float64} | options)
    nn.init.uniform_(layer.weight_hh_l0, -0.5, 0.5)
    nn.init.uniform_(layer.bias_l0, 0, 0.5)
    return layer


def by_layer(layer, x, state=None, **signals):
    output, new = layer(x, state, **signals)
    return output, new


def by_oracle(layer, x, state=None, **signals):
    output, h, A = reference(layer, x, state, **signals)
    return output, FastWeightsState(h, A)


def sequences(T=6, B=3):
    return torch.randn(T, B, 3, dtype=torch.float64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# The laws


def a_sequence_does_not_depend_on_its_batch_mates(run):
    layer, x = make_layer(), sequences()
    close(run(layer, x[:, :1])[0], run(layer, x)[0][:, :1])


def the_first_step_reads_nothing_and_the_last_state_is_what_is_stored(run):
    layer, x = make_layer(), sequences(T=1)
    output, state = run(layer, x)
    z = x @ layer.weight_ih_l0.T + layer.bias_l0
    normed = nn.functional.layer_norm(z, (6,), layer.norm_weight_l0, layer.norm_bias_l0)
    close(output, torch.relu(normed))
    close(state.A[0], 0.5 * torch.einsum("bi,bj->bij", output[-1], output[-1]))


def a_new_episode_knows_nothing_of_the_last(run):
    layer, x = make_layer(), sequences()
    reset = torch.zeros(6, 3, dtype=torch.bool)
    reset[3] = True
    close(run(layer, x, reset=reset)[0][3:], run(layer, x[3:])[0])
    close(run(layer, x)[0], run(layer, x)[0])


def every_step_is_stored_with_its_decay(run):
    layer, x = make_layer(decay=0.8, rate=0.3), sequences()
    hs, state = run(layer, x)
    close(state.A[0], sum(0.3 * 0.8 ** (5 - t) * torch.einsum("bi,bj->bij", hs[t], hs[t]) for t in range(6)))


def all_of_W_acts(run):
    layer, x = make_layer(layer_norm=False, inner_steps=0), sequences(T=2)
    output, _ = run(layer, x)
    z = x[1] @ layer.weight_ih_l0.T + output[0] @ layer.weight_hh_l0.T + layer.bias_l0
    close(output[1], torch.relu(z))


def all_of_A_is_read(run):
    layer, x = make_layer(layer_norm=False, inner_steps=1), sequences(T=1)
    A = torch.rand(1, 3, 6, 6, dtype=torch.float64)
    output, _ = run(layer, x, FastWeightsState(torch.zeros(1, 3, 6, dtype=torch.float64), A))
    z = x[0] @ layer.weight_ih_l0.T + layer.bias_l0
    close(output[0], torch.relu(z + torch.einsum("bij,bj->bi", A[0], torch.relu(z))))


def decay_decays_and_rate_writes(run):
    x, zero = sequences(), torch.zeros(3, 6, 6, dtype=torch.float64)
    close(run(make_layer(rate=0), x)[1].A[0], zero)
    layer = make_layer(decay=0, rate=0.7)
    hs, state = run(layer, x)
    close(state.A[0], 0.7 * torch.einsum("bi,bj->bij", hs[-1], hs[-1]))


def pieces_with_carried_state_equal_the_whole(run):
    layer, x = make_layer(), sequences()
    first, state = run(layer, x[:3])
    second, _ = run(layer, x[3:], state)
    close(torch.cat((first, second)), run(layer, x)[0])


def the_start_of_settling_is_not_normalised(run):
    layer, x = make_layer(inner_steps=0), sequences(T=1)
    close(run(layer, x)[0], torch.relu(x @ layer.weight_ih_l0.T + layer.bias_l0))


# The mistakes


def normalise_over_the_batch(patch):
    def batch_norm(v, gain, shift):
        return (v - v.mean(0)) / (v.var(0, unbiased=False) + 1e-5).sqrt() * gain + shift

    patch.setattr(equations, "LN", batch_norm)


def write_h_0_before_reading(patch):
    settle = equations.settle

    def mistaken(z, memory, slow, dynamics, read):
        everyone = torch.ones(len(z), dtype=torch.bool)
        memory.write(torch.relu(z), torch.ones(len(z), dtype=z.dtype), everyone)
        return settle(z, memory, slow, dynamics, read)

    patch.setattr(equations, "settle", mistaken)


def write_h_0_instead_of_h(patch):
    settle, write = equations.settle, MatrixMemory.write
    starts = []

    def watched(z, *args):
        starts.append(torch.relu(z))
        return settle(z, *args)

    patch.setattr(equations, "settle", watched)
    patch.setattr(MatrixMemory, "write", lambda self, h, *args: write(self, starts[-1], *args))


def never_reset(patch):
    patch.setattr(MatrixMemory, "clear", lambda self, where: None)


def update_every_other_step(patch):
    write, calls = MatrixMemory.write, []

    def mistaken(self, *args):
        calls.append(1)
        if len(calls) % 2:
            write(self, *args)

    patch.setattr(MatrixMemory, "write", mistaken)


def use_the_diagonal_of_W(patch):
    run = equations.run

    def mistaken(x, h, memory, slow, *args, **signals):
        return run(x, h, memory, slow._replace(W=torch.diag(torch.diag(slow.W))), *args, **signals)

    patch.setattr(equations, "run", mistaken)


def use_the_diagonal_of_A(patch):
    patch.setattr(MatrixMemory, "recall", lambda self, h: torch.diagonal(self._A, dim1=1, dim2=2) * h)


def swap_decay_and_rate(patch):
    init = MatrixMemory.__init__
    patch.setattr(MatrixMemory, "__init__", lambda self, A, decay, rate: init(self, A, rate, decay))


def return_the_state_without_A(patch):
    init = FastWeightsState.__init__
    patch.setattr(FastWeightsState, "__init__", lambda self, h, A: init(self, h, torch.zeros_like(A)))


def normalise_the_start(patch):
    settle = equations.settle

    def mistaken(z, memory, slow, dynamics, read):
        return settle(equations.LN(z, slow.gain, slow.shift), memory, slow, dynamics, read)

    patch.setattr(equations, "settle", mistaken)


LAWS = [
    (a_sequence_does_not_depend_on_its_batch_mates, normalise_over_the_batch),
    (the_first_step_reads_nothing_and_the_last_state_is_what_is_stored, write_h_0_before_reading),
    (the_first_step_reads_nothing_and_the_last_state_is_what_is_stored, write_h_0_instead_of_h),
    (a_new_episode_knows_nothing_of_the_last, never_reset),
    (every_step_is_stored_with_its_decay, update_every_other_step),
    (all_of_W_acts, use_the_diagonal_of_W),
    (all_of_A_is_read, use_the_diagonal_of_A),
    (decay_decays_and_rate_writes, swap_decay_and_rate),
    (every_step_is_stored_with_its_decay, swap_decay_and_rate),
    (pieces_with_carried_state_equal_the_whole, return_the_state_without_A),
    (the_start_of_settling_is_not_normalised, normalise_the_start),
]


@pytest.mark.parametrize("law", sorted({law for law, _ in LAWS}, key=lambda law: law.__name__))
@pytest.mark.parametrize("run", [by_layer, by_oracle])
def test_the_law_holds(law, run):
    law(run)


@pytest.mark.parametrize(("law", "mistake"), LAWS)
def test_the_law_fails_on_the_mistake(law, mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match="not close"):
        law(by_oracle)


def input_weights_are_of_order_one_over_root_H(layer):
    C = layer.weight_ih_l0
    assert C.abs().max() <= 1 / math.sqrt(layer.hidden_size)
    assert C.std().item() == pytest.approx(1 / math.sqrt(3 * layer.hidden_size), rel=0.05)


def test_the_input_weights_are_of_order_one_over_root_H():
    input_weights_are_of_order_one_over_root_H(FastWeights(100, 64))
    mistaken = FastWeights(100, 64)
    nn.init.uniform_(mistaken.weight_ih_l0, -math.sqrt(64), math.sqrt(64))
    with pytest.raises(AssertionError):
        input_weights_are_of_order_one_over_root_H(mistaken)
