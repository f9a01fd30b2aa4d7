"""What was wrong once: wrong numbers without a word, crashes, memory of others. Each as it was found."""

import subprocess
import sys

import pytest
import torch
from reference import reference
from torch import nn
from torch.utils import _pytree as pytree

from fastweights import FastWeights, FastWeightsCell, FastWeightsState

BACKENDS = pytest.mark.parametrize("backend", ["auto", "torch"])


def step(module, x, state=None):
    """A step of a layer or a cell, as a state."""
    return module(x, state) if isinstance(module, FastWeightsCell) else module(x.unsqueeze(0), state)[1]


# Steps of wide batches, which leave A aside


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@pytest.mark.parametrize(("batch", "units"), [(1, 512), (16, 128)])
def test_wide_steps_in_inference_mode(kind, batch, units):
    module, x = kind(5, units), torch.randn(4, batch, 5)
    with torch.inference_mode():
        state = None
        for now in x:
            state = step(module, now, state)
    with torch.no_grad():
        expected = None
        for now in x:
            expected = step(module, now, FastWeightsState(*expected) if expected else None)
    torch.testing.assert_close(list(state), list(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_an_edit_of_h_counts_before_a_wide_step(kind):
    module, x = kind(5, 64), torch.randn(2, 64, 5)
    with torch.no_grad():
        state = step(module, x[0])
        state.h.zero_()
        edited = step(module, x[1], state).h
        A = step(module, x[0]).A
        expected = step(module, x[1], FastWeightsState(torch.zeros_like(edited), A)).h
    torch.testing.assert_close(edited, expected)


# Tensors of the caller that change between a call and its backward


def lengths_run(layer, x, lengths, change):
    output, state = layer(x, lengths=lengths)
    change()
    grads = torch.autograd.grad(output.sum() + state.h.sum() + state.A.sum(), list(layer.parameters()))
    return [output, state.h, state.A, *grads]


@BACKENDS
@pytest.mark.parametrize(("first", "then"), [(6, 1), (1, 6)])
def test_lengths_that_change_after_the_call(backend, first, then):
    layer, x = FastWeights(3, 5, backend=backend), torch.randn(6, 4, 3)
    lengths = torch.full((4,), first)
    found = lengths_run(layer, x, lengths, lambda: lengths.fill_(then))
    expected = lengths_run(layer, x, torch.full((4,), first), lambda: None)
    assert all(map(torch.equal, found, expected))


@BACKENDS
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@pytest.mark.parametrize("grad", [True, False])
def test_a_carried_A_that_is_zeroed_after_the_call(backend, kind, grad):
    module, x = kind(3, 5, backend=backend), torch.randn(2, 4, 3)
    with torch.set_grad_enabled(grad):
        h, A = (part.detach().clone() for part in step(module, x[0]))
        expected = step(module, x[1], FastWeightsState(h.clone(), A.clone())).A
        new = step(module, x[1], FastWeightsState(h, A))
        A.zero_()
    assert torch.equal(new.A, expected)


@BACKENDS
def test_a_compiled_step_whose_output_is_zeroed(backend):
    layer, x = FastWeights(3, 5, backend=backend), torch.randn(4, 2, 3)

    def run(x):
        output, state = layer(x)
        output.zero_()
        return state.h, state.A

    with torch.no_grad():
        _, expected = layer(x)
        torch._dynamo.reset()
        found = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(list(found), list(expected))


# Tensors that the kernel must not be given


@pytest.mark.parametrize("grad", [True, False])
def test_a_state_indexed_on_the_wrong_dimension_is_an_error(grad):
    cell = FastWeightsCell(3, 5)
    state = pytree.tree_map(lambda part: part[..., [0, 1], :], cell(torch.randn(4, 3)).detach())
    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match=r"state must have A of shape \(2, 5, 5\)"):
        cell(torch.randn(2, 3), state)


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ["weight_ih", "weight_hh", "bias", "norm_weight"])
def test_a_weight_whose_data_has_another_dtype_is_an_error(kind, grad, name):
    module, x = kind(3, 5), torch.randn(4, 3)
    step(module, x)
    weight = dict(module.named_parameters())[name + "_l0" * (kind is FastWeights)]
    weight.data = weight.data.double()
    with torch.set_grad_enabled(grad), pytest.raises((ValueError, TypeError), match=r"must be torch\.float"):
        step(module, x, step(module, x))


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@pytest.mark.parametrize("grad", [True, False])
def test_a_norm_weight_of_one_number_is_for_all_units(kind, grad):
    one, all_ = kind(3, 5), kind(3, 5)
    all_.load_state_dict(one.state_dict())
    name = "norm_weight" + "_l0" * (kind is FastWeights)
    setattr(one, name, nn.Parameter(torch.tensor([0.7])))
    nn.init.constant_(getattr(all_, name), 0.7)
    x = torch.randn(2, 4, 3)
    with torch.set_grad_enabled(grad):
        found, expected = (step(module, x[1], step(module, x[0])) for module in (one, all_))
    torch.testing.assert_close(list(found), list(expected))
    if grad:
        grads = [
            torch.autograd.grad(state.A.sum(), getattr(module, name))[0].sum()
            for module, state in ((one, found), (all_, expected))
        ]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("grad", [True, False])
def test_stacked_parameters_without_vmap_are_an_error_as_they_are_of_nn_rnn(grad):
    x = torch.randn(5, 16, 3)
    for layer in (nn.RNN(3, 5), FastWeights(3, 5)):
        stacked = {name: torch.stack([parameter] * 4) for name, parameter in layer.named_parameters()}
        with torch.set_grad_enabled(grad), pytest.raises((RuntimeError, ValueError), match="weight_ih_l0|dim|size"):
            torch.func.functional_call(layer, stacked, (x,))


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@pytest.mark.parametrize("grad", [True, False])
def test_a_negative_view_has_its_sign(kind, grad):
    module, x = kind(3, 5), torch.randn(4, 3)
    with torch.set_grad_enabled(grad):
        found, expected = step(module, torch._neg_view(x)), step(module, -x)
    torch.testing.assert_close(list(found), list(expected))


@torch.no_grad()
def test_a_negative_view_has_its_sign_in_steps_of_wide_batches():
    """Which attend to the states so far."""
    cell, x = FastWeightsCell(3, 64), torch.randn(2, 64, 3)
    found = cell(torch._neg_view(x[1]), cell(torch._neg_view(x[0])))
    expected = cell(-x[1], cell(-x[0]))
    torch.testing.assert_close(list(found), list(expected))


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_after_a_call_in_fake_mode_the_next_is_a_real_one(kind):
    # In a process of its own, which died of it.
    code = f"""
import torch, fastweights
from torch._subclasses.fake_tensor import FakeTensorMode
rows, one = ((7,), (1,)) if "{kind.__name__}" == "FastWeights" else ((), ())
for grad in (True, False):
    torch.set_grad_enabled(grad)
    for allowed in (False, True):
        module, twin = (fastweights.{kind.__name__}(3, 5, backend=backend) for backend in ("auto", "torch"))
        twin.load_state_dict(module.state_dict())
        parts = (*one, 4, 5), (*one, 4, 5, 5)
        try:
            with FakeTensorMode(allow_non_fake_inputs=allowed):
                module(torch.empty(*rows, 4, 3), tuple(map(torch.empty, parts)))
        except Exception as error:
            print(allowed, type(error).__name__)
        x = torch.randn(*rows, 4, 3)
        for given in (None, tuple(map(torch.rand, parts))):
            found, expected = (list(each(x, given))[-1] if rows else each(x, given) for each in (module, twin))
            torch.testing.assert_close(list(found), list(expected))
print("real")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "real"
    assert "False AssertionError" in done.stdout  # torch's own, for real weights beside fake input


# Half precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_state_is_all_zero_in_half_precision(dtype):
    layer = FastWeights(64, 128).to(dtype)
    output, state = layer(torch.randn(30, 16, 64).to(dtype))
    assert output.any(-1).all()
    assert output.isfinite().all()
    assert state.A.isfinite().all()


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@BACKENDS
def test_half_precision_is_as_exact_as_its_numbers(kind, dtype, backend):
    """Of the float32 layer with the same, rounded, weights, over many steps, with a state that goes on."""
    T = 200 if kind is FastWeights else 20
    small = kind(16, 32, backend=backend, learn_decay=True).to(dtype)
    full = kind(16, 32, backend=backend, learn_decay=True)
    full.load_state_dict(small.state_dict())
    x = torch.randn(T, 3, 16).to(dtype)
    found = []
    for module in (small, full):
        own = module is small
        given = (x if own else x.float()).requires_grad_()
        if kind is FastWeights:
            first, state = module(given[: T // 2])
            # What is carried is rounded for both.
            state = FastWeightsState(*(part.to(dtype).to(part.dtype) for part in state))
            second, state = module(given[T // 2 :], state)
            output = torch.cat((first, second))
        else:
            state, outputs = None, []
            for now in given:
                state = module(now, state)
                state = FastWeightsState(*(part.to(dtype).to(part.dtype) for part in state))
                outputs.append(state.h)
            output = torch.stack(outputs)
        # The loss is of float32, so that it does not add an error of its own.
        loss = output.float().square().mean() + state.A.float().square().mean()
        grads = torch.autograd.grad(loss * 100, [given, *module.parameters()])
        x = x.detach()
        found.append([output, state.h, state.A, *grads])
        assert all(part.dtype == (dtype if own else torch.float32) for part in found[-1])
    eps = torch.finfo(dtype).eps
    for ours, exact in zip(*found, strict=True):
        # The largest number counts: those beside it are sums that cancel.
        assert (ours.float() - exact).abs().max() <= 8 * eps * exact.abs().max().clamp(min=1e-3)


# Resets stop what is not a number


def assert_as_the_equations(layer, x, state=None, seen=slice(None), **signals):
    """Values and gradients, those of all outputs `seen`, with NaN where the oracle has it and nowhere else."""

    def parts(run):
        given = x.clone().requires_grad_()
        start = None if state is None else FastWeightsState(*(part.clone().requires_grad_() for part in state))
        output, h, A = run(given, start)
        loss = output[seen].square().sum() + h.square().sum() + A.square().sum()
        leaves = [given, *layer.parameters(), *(() if start is None else start)]
        return [output, h, A, *torch.autograd.grad(loss, leaves)]

    def ours(given, start):
        output, new = layer(given, start, **signals)
        return output, new.h, new.A

    found, expected = parts(ours), parts(lambda given, start: reference(layer, given, start, **signals))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8, equal_nan=True)
    return found


@BACKENDS
@pytest.mark.parametrize("chunk_size", [None, 2, 3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("settling", ["sustained", "identity"])
def test_a_reset_stops_what_came_before(backend, chunk_size, bad, settling):
    layer = FastWeights(3, 5, inner_steps=2, settling=settling, backend=backend, dtype=torch.float64)
    layer._chunk_size = chunk_size
    x, reset = torch.randn(9, 4, 3, dtype=torch.float64), torch.zeros(9, 4, dtype=torch.bool)
    x[2, 1], reset[5, 1] = bad, True
    output, h, A, *_ = assert_as_the_equations(layer, x, reset=reset, seen=slice(5, None))
    assert output[2:5, 1].isnan().all()
    assert output[5:].isfinite().all()
    assert h.isfinite().all()
    assert A.isfinite().all()


@BACKENDS
@pytest.mark.parametrize("chunk_size", [None, 2, 3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_gradients_before_a_reset_do_not_see_what_comes_after(backend, chunk_size, bad):
    layer = FastWeights(3, 5, inner_steps=2, backend=backend, dtype=torch.float64)
    layer._chunk_size = chunk_size
    x, reset = torch.randn(9, 4, 3, dtype=torch.float64), torch.zeros(9, 4, dtype=torch.bool)
    x[7, 1], reset[5, 1] = bad, True
    _, _, _, grad_x, *_ = assert_as_the_equations(layer, x, reset=reset)
    assert grad_x[:5].isfinite().all()
    assert grad_x[:, [0, 2, 3]].isfinite().all()


@BACKENDS
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["h", "A", "both"])
def test_a_reset_at_the_first_step_stops_the_state_that_went_in(backend, chunk_size, bad, place):
    layer = FastWeights(3, 5, inner_steps=2, backend=backend, dtype=torch.float64)
    layer._chunk_size = chunk_size
    h, A = torch.rand(1, 4, 5, dtype=torch.float64), torch.rand(1, 4, 5, 5, dtype=torch.float64)
    if place != "A":
        h[0, 1, 2] = bad
    if place != "h":
        A[0, 1, 2, 3] = bad
    reset = torch.zeros(7, 4, dtype=torch.bool)
    reset[0, 1] = True
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    for part in assert_as_the_equations(layer, x, FastWeightsState(h, A), reset=reset):
        assert part.isfinite().all()


@BACKENDS
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_wipe_stops_a_hidden_state(backend, chunk_size, bad):
    layer = FastWeights(3, 5, inner_steps=2, backend=backend, dtype=torch.float64)
    layer._chunk_size = chunk_size
    h, A = torch.rand(1, 4, 5, dtype=torch.float64), torch.rand(1, 4, 5, 5, dtype=torch.float64)
    h[0, 1, 2] = bad
    wipe = torch.zeros(7, 4, dtype=torch.bool)
    wipe[0, 1] = True
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    for part in assert_as_the_equations(layer, x, FastWeightsState(h, A), wipe=wipe):
        assert part.isfinite().all()


@BACKENDS
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("signal", ["reset", "wipe"])
def test_signals_of_a_cell_stop_it_too(backend, bad, signal):
    cell, layer = (kind(3, 5, backend=backend, dtype=torch.float64) for kind in (FastWeightsCell, FastWeights))
    layer.load_state_dict({name + "_l0": value for name, value in cell.state_dict().items()})
    h, A = torch.rand(4, 5, dtype=torch.float64), torch.rand(4, 5, 5, dtype=torch.float64)
    h[1, 2] = bad
    if signal == "reset":
        A[1, 2, 3] = bad
    where, x = torch.tensor([False, True, False, False]), torch.randn(4, 3, dtype=torch.float64)
    found = []
    for grad in (True, False):
        given = FastWeightsState(*(part.clone().requires_grad_(grad) for part in (h, A)))
        with torch.set_grad_enabled(grad):
            state = cell(x, given, **{signal: where})
        found.append(list(state))
        if grad:
            leaves = [*given, *cell.parameters()]
            grads = torch.autograd.grad(state.h.square().sum() + state.A.sum(), leaves)
            assert all(part.isfinite().all() for part in grads)
    torch.testing.assert_close(*found)
    as_layer = FastWeightsState(h.unsqueeze(0), A.unsqueeze(0))
    output, h, A = reference(layer, x.unsqueeze(0), as_layer, **{signal: where.unsqueeze(0)})
    torch.testing.assert_close(found[0], [h[0], A[0]])
    assert output.isfinite().all()


# What else was small


@BACKENDS
@pytest.mark.parametrize("kind", ["carried", "from zero"])
def test_a_state_of_many_steps_holds_on_to_few(backend, kind):
    """Without gradients: of the last chunk, and not of all."""
    layer, x = FastWeights(3, 8, backend=backend), torch.randn(1000, 2, 3)
    with torch.no_grad():
        start = layer.initial_state(2) if kind == "carried" else None
        output, state = layer(x, start)
    held = {}
    for part in state._ends[0]:
        if isinstance(part, torch.Tensor):
            held[part.untyped_storage()._cdata] = part.untyped_storage().nbytes()
    assert sum(held.values()) < output.nbytes / 4


def test_a_dtype_by_its_name_is_a_type_error():
    for kind in (FastWeights, FastWeightsCell):
        with pytest.raises(TypeError, match=r"dtype must be a real floating-point torch.dtype, got 'float32'"):
            kind(3, 5, dtype="float32")


@pytest.mark.parametrize(("units", "batch", "steps"), [(20, 33, 40), (64, 128, 11), (17, 5, 300), (128, 128, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_do_not_change_with_the_number_of_threads(units, batch, steps, dtype):
    """Those that the kernel sums: the few rows of narrow inputs are torch's, which may round otherwise."""
    layer = FastWeights(30, units, dtype=dtype)
    x, lengths = torch.randn(steps, batch, 30, dtype=dtype), torch.randint(1, steps + 1, (batch,))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4, 5):
            torch.set_num_threads(threads)
            for given in (None, lengths):
                leaf = x.clone().requires_grad_()
                output, state = layer(leaf, lengths=given)
                loss = output.square().sum() + state.A.square().sum()
                found.append([output, state.A, *torch.autograd.grad(loss, [leaf, *layer.parameters()])])
    finally:
        torch.set_num_threads(before)
    for place, parts in enumerate(found):
        assert all(map(torch.equal, parts, found[place % 2]))
