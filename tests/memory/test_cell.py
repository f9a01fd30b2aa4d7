"""FastWeightsCell: one step, equal to the layer step by step."""

import pytest
import torch

from fastweights import FastWeights, FastWeightsCell

OPTIONS = [
    {},
    {"inner_steps": 3, "settling": "identity", "nonlinearity": "tanh"},
    {"layer_norm": False, "bias": False, "rate": 0.1},
    {"integration": True},
    {"normalize_start": True, "learn_decay": True, "learn_rate": True},
]


def twins(options):
    layer = FastWeights(3, 5, **options, dtype=torch.float64)
    cell = FastWeightsCell(3, 5, **options, dtype=torch.float64)
    torch.nn.init.uniform_(layer.weight_hh_l0, -0.5, 0.5)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    return layer, cell


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("controlled", [True, False])
def test_equals_the_layer_step_by_step(options, controlled):
    layer, cell = twins(options)
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    signals = {}
    if controlled:
        signals = {"reset": torch.rand(9, 2) < 0.3, "wipe": torch.rand(9, 2) < 0.3}
        signals |= {"store": torch.rand(9, 2), "read": torch.rand(9, 2)}
        signals |= {"integrate": torch.rand(9, 2) < 0.3} if layer.integration else {}
    output, end = layer(x, **signals)
    state = None
    for t in range(9):
        state = cell(x[t], state, **{name: signal[t] for name, signal in signals.items()})
        torch.testing.assert_close(state.h, output[t])
    torch.testing.assert_close(state.A, end.A[0])
    grads = torch.autograd.grad(state.h.sum() + state.A.sum(), cell.weight_hh)
    torch.testing.assert_close(grads, torch.autograd.grad(end.h.sum() + end.A.sum(), layer.weight_hh_l0))


@pytest.mark.parametrize("options", [*OPTIONS, {"inner_steps": 0}, {"settling": "identity", "normalize_start": True}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch", [(), (1,), (4,)])
def test_a_stream_without_gradients_equals_the_layer(options, dtype, batch):
    """Whether it is a cell that takes the steps, or the layer itself."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    layer, cell = (twin.to(dtype) for twin in twins(options))
    x = torch.randn(12, *batch, 3, dtype=dtype)
    with torch.no_grad():
        output, end = layer(x)
        state = None
        for t in range(12):
            before = state and (state.h.clone(), state.A.clone())
            new = cell(x[t], state)
            if state is not None:  # a state is never changed under its owner's hands
                assert torch.equal(before[0], state.h)
                assert torch.equal(before[1], state.A)
            state = new
            torch.testing.assert_close(state.h, output[t], rtol=0, atol=tolerance)
        torch.testing.assert_close(state.A, end.A[0], rtol=0, atol=tolerance)
        state = None
        for t in range(12):
            one, state = layer(x[t : t + 1], state)
            torch.testing.assert_close(one[0], output[t], rtol=0, atol=tolerance)
            held = state.h.clone(), state.A.clone()
            one.fill_(9)  # which is the caller's, not the state's
            assert torch.equal(held[0], state.h)
            assert torch.equal(held[1], state.A)
        torch.testing.assert_close(state.h, end.h, rtol=0, atol=tolerance)
        torch.testing.assert_close(state.A, end.A, rtol=0, atol=tolerance)


def test_a_stream_passes_derivatives_in_forward_mode():
    layer, cell = twins({})
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        expected = torch.autograd.forward_ad.unpack_dual(layer(dual)[0]).tangent
        with torch.no_grad():
            for h in (layer(dual)[0], cell(dual[0]).h.unsqueeze(0)):
                torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(h).tangent, expected)


def test_the_number_of_threads_does_not_matter():
    _, cell = twins({"inner_steps": 2})
    x, before, found = torch.randn(7, 3, dtype=torch.float64), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                found.append(cell(x, cell(x)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].h, found[1].h)
    assert torch.equal(found[0].A, found[1].A)


def test_without_a_batch():
    layer, cell = twins({})
    x = torch.randn(4, 3, dtype=torch.float64)
    state = None
    for step in x:
        state = cell(step, state, read=torch.tensor(1.0))
    assert state.h.shape == (5,)
    assert state.A.shape == (5, 5)
    torch.testing.assert_close(state.h, layer(x)[0][-1])


def test_bad_input_is_named():
    cell = FastWeightsCell(3, 5)
    with pytest.raises(ValueError, match=r"x must have 3 features.*got 4"):
        cell(torch.randn(2, 4))
    with pytest.raises(ValueError, match=r"x must have 1 or 2 dimensions"):
        cell(torch.randn(7, 2, 3))
    with pytest.raises(ValueError, match=r"state must have h of shape \(2, 5\), got \(3, 5\)"):
        cell(torch.randn(2, 3), cell(torch.randn(3, 3)))
    with pytest.raises(ValueError, match=r"reset must have shape \(2,\)"):
        cell(torch.randn(2, 3), reset=torch.ones(3, dtype=torch.bool))


def test_repr():
    assert repr(FastWeightsCell(3, 5, bias=False, rate=0.1)) == "FastWeightsCell(3, 5, rate=0.1, bias=False)"
