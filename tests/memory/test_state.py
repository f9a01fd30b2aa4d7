"""FastWeightsState: carried, detached, moved, saved; and A only for those who look."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastweights import FastWeights, FastWeightsState
from fastweights.memory.state import End


def a_state(**options):
    layer = FastWeights(3, 5, 2, **options)
    x = torch.randn(6, 4, 3)
    return layer, x, *layer(x)


def test_nobody_pays_for_an_A_that_nobody_looks_at(monkeypatch):
    built = []
    matrix = End.matrix
    monkeypatch.setattr(End, "matrix", lambda end: built.append(1) or matrix(end))
    _, _, output, state = a_state()
    output.sum().backward()
    state.detach()
    assert not built
    assert state.A is state.A
    assert len(built) == 2  # one per layer, once


def test_looking_late_or_without_grad_leaves_the_graph_whole():
    layer, x, _, state = a_state()
    with torch.no_grad():
        assert state.A.requires_grad
    (late,) = torch.autograd.grad(state.A.sum(), layer.weight_ih_l0)
    (early,) = torch.autograd.grad(layer(x)[1].A.sum(), layer.weight_ih_l0)
    torch.testing.assert_close(late, early)


def test_made_without_grad_it_has_none():
    layer = FastWeights(3, 5)
    start = FastWeightsState(torch.zeros(1, 2, 5), torch.rand(1, 2, 5, 5, requires_grad=True))
    with torch.no_grad():
        _, state = layer(torch.randn(4, 2, 3), start)
    assert not state.A.requires_grad


def test_detach_cuts_the_graph_before_and_after_A_is_built():
    _, _, _, state = a_state()
    lazy = state.detach()
    assert not lazy.h.requires_grad
    assert not lazy.A.requires_grad
    assert torch.equal(lazy.A, state.A)
    assert not state.detach().A.requires_grad
    assert state.A.requires_grad


def test_truncated_backpropagation():
    layer = FastWeights(3, 5, learn_decay=True, learn_rate=True)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    state = None
    for _ in range(3):
        output, state = layer(torch.randn(6, 4, 3), state)
        optimizer.zero_grad()
        output.sum().backward()
        optimizer.step()
        state = state.detach()
    assert state.A.isfinite().all()


def test_A_is_that_of_the_call_even_if_the_weights_change_before_it_is_looked_at():
    layer = FastWeights(3, 5, learn_decay=True, learn_rate=True)
    x = torch.randn(6, 4, 3)
    with torch.no_grad():
        expected, (_, late) = layer(x)[1].A, layer(x)
        for parameter in layer.parameters():
            parameter.add_(1)
    torch.testing.assert_close(late.A, expected)


def test_inference_mode():
    layer = FastWeights(3, 5)
    x = torch.randn(6, 4, 3)
    with torch.inference_mode():
        output, state = layer(x)
        expected = layer(x)[1].A
        output.zero_()
    assert torch.equal(state.A, expected)
    torch.testing.assert_close(state.A, layer(x)[1].A)


def test_h_is_not_a_view_of_the_output():
    _, _, output, state = a_state()
    before = state.h.clone()
    with torch.no_grad():
        output.zero_()
    assert torch.equal(state.h, before)


def test_index_select_and_to():
    layer, x, output, state = a_state()
    index = torch.tensor([3, 0])
    chosen = state.index_select(index)
    torch.testing.assert_close(layer(x[:, index], chosen)[0], layer(x, state)[0][:, index])
    double = state.to(torch.float64)
    assert double.h.dtype == double.A.dtype == torch.float64
    assert state.to("meta").A.device.type == "meta"
    with pytest.raises(ValueError, match="needs a state with a batch"):
        FastWeightsState(torch.zeros(5), torch.zeros(5, 5)).index_select(index)


def test_round_trip_through_safetensors(tmp_path):
    layer, x, _, state = a_state()
    save_file(state.index_select(torch.tensor([1, 2])).detach().tensors(), tmp_path / "state.safetensors")
    loaded = FastWeightsState(**load_file(tmp_path / "state.safetensors"))
    chosen = x[:, 1:3]
    assert torch.equal(layer(chosen, loaded)[0], layer(chosen, state.index_select(torch.tensor([1, 2])))[0])


def test_unpacks_copies_and_says_what_it_is():
    state = a_state()[3].detach()
    h, A = state
    assert h is state.h
    assert A is state.A
    lazy = a_state()[3].detach()
    assert torch.equal(copy.deepcopy(lazy).A, lazy.A)
    assert torch.equal(pickle.loads(pickle.dumps(state)).A, A)
    assert repr(state) == "FastWeightsState(h=(2, 4, 5), A=(2, 4, 5, 5), dtype=torch.float32, device=cpu)"


@pytest.mark.parametrize(
    ("h", "A", "error", "message"),
    [
        (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5), ValueError, r"A must have the shape of h.*\(1, 2, 5, 5\)"),
        (torch.zeros(1, 2, 5), torch.zeros(1, 2, 4, 5), ValueError, r"got \(1, 2, 4, 5\)"),
        (torch.zeros(5), torch.zeros(5, 5, dtype=torch.float64), ValueError, "A must be torch.float32 on cpu"),
        (torch.zeros(5), None, TypeError, "A must be a tensor, got NoneType"),
        (3, torch.zeros(5, 5), TypeError, "h must be a tensor, got int"),
    ],
)
def test_bad_input_is_named(h, A, error, message):
    with pytest.raises(error, match=message):
        FastWeightsState(h, A)
