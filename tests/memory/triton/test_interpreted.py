"""The GPU kernels, run on the CPU by Triton's interpreter: the paper's equations, values and gradients."""

import os

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import random_run, reference

from fastweights import FastWeights, FastWeightsCell
from fastweights.memory import chunked, triton
from fastweights.memory.equations import Dynamics

pytest.importorskip("triton", reason="the package triton is not installed")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("TRITON_INTERPRET is not 1", allow_module_level=True)
EXAMPLES = int(os.environ.get("EXAMPLES", 20))  # `make triton` asks for more
EVERYTHING = (True,) * len(chunked.Gradients._fields)


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setattr(triton, "ON_CPU", True)


@pytest.fixture(autouse=True, scope="module")
def _on_cpu_for_hypothesis():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "ON_CPU", True)
        yield


def assert_near(ours, theirs, near, name, least=1e-3):
    """Relative to the largest number of the tensor."""
    assert ours.shape == theirs.shape, name
    assert ours.isfinite().all(), name
    if theirs.numel():
        scale = max(theirs.abs().max().item(), least)
        assert (ours - theirs).abs().max().item() <= near * scale, name


@st.composite
def calls(draw):
    """A layer of any options and what to call it with."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    T, B, H = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 7, 16, 17, 20]))
    flag = st.booleans()
    options = {name: draw(flag) for name in ("layer_norm", "normalize_start", "bias", "learn_decay", "learn_rate")}
    signals = {name: draw(flag) for name in ("reset", "wipe", "store", "read", "integrate")}
    layer = FastWeights(
        draw(st.integers(1, 4)),
        H,
        inner_steps=draw(st.integers(0, 3)),
        settling=draw(st.sampled_from(["sustained", "identity"])),
        nonlinearity=draw(st.sampled_from(["relu", "tanh"])),
        integration=signals["integrate"],
        decay=0.8,
        rate=0.3,
        dtype=torch.float64,
        backend="triton",
        **options,
    )
    layer._chunk_size = draw(st.one_of(st.none(), st.integers(1, T)))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.4)
    given = {}
    for name, used in signals.items():
        if used:
            numbers = torch.rand(T, B, dtype=torch.float64)
            given[name] = numbers if name in ("store", "read") else numbers < 0.3
    if draw(flag):
        given["lengths"] = torch.randint(0, T + 1, (B,))
    state = None
    if draw(flag):
        state = (torch.rand(1, B, H, dtype=torch.float64), 0.2 * torch.randn(1, B, H, H, dtype=torch.float64))
    return layer, torch.randn(T, B, layer.input_size, dtype=torch.float64), state, given


def differentiated(layer, x, state, given, oracle):
    """Output, h, A and the gradients of all that goes in."""
    leaves = [x, *(state or ()), *(given[name] for name in ("store", "read") if name in given)]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    rest = leaves[1:]
    start = None if state is None else (rest.pop(0), rest.pop(0))
    given = given | {name: rest.pop(0) for name in ("store", "read") if name in given}
    if oracle:
        start = None if start is None else type("State", (), dict(zip("hA", start, strict=True)))
        results = reference(layer, leaves[0], start, **given)
    else:
        output, after = layer(leaves[0], start, **given)
        results = output, after.h, after.A
    loss = sum((result.sin() * (n + 1)).sum() for n, result in enumerate(results))
    grads = torch.autograd.grad(loss, [*leaves, *layer.parameters()], allow_unused=True, materialize_grads=True)
    return [*results, *grads]


@settings(max_examples=EXAMPLES)
@given(calls())
def test_equals_the_equations(case):
    layer, x, state, given = case
    expected = differentiated(layer, x, state, given, oracle=True)
    assume(all(tensor.isfinite().all() for tensor in expected) and expected[0].abs().max() < 1e2)
    found = differentiated(layer, x, state, given, oracle=False)
    for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_near(ours, theirs, 1e-9, n)


@settings(max_examples=max(EXAMPLES // 2, 8))
@given(calls())
def test_equals_the_equations_in_single_precision(case):
    layer, x, state, given = case
    layer.float().double()  # numbers that single precision has
    x, state = x.float(), None if state is None else tuple(part.float() for part in state)
    given = {name: value.float() if value.is_floating_point() else value for name, value in given.items()}
    wide = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    before = None if state is None else tuple(part.double() for part in state)
    expected = differentiated(layer, x.double(), before, wide, oracle=True)
    assume(all(tensor.isfinite().all() and tensor.abs().max() < 1e2 for tensor in expected if tensor.numel()))
    found = differentiated(layer.float(), x, state, given, oracle=False)
    # Gradients of λ and η are sums over everything, whose terms may cancel: a hundredth of the largest number counts.
    least = max(theirs.abs().max().item() for theirs in expected if theirs.numel()) / 100
    for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_near(ours.double(), theirs, 1e-4, n, least)


@settings(max_examples=max(EXAMPLES // 2, 8))
@given(st.data())
def test_equals_its_torch_twin_on_any_weights_of_the_past(data):
    T, H = data.draw(st.integers(1, 10)), data.draw(st.sampled_from([1, 5, 16, 33]))
    B, K = data.draw(st.integers(1, 3)), data.draw(st.integers(1, T))
    names = ("norm", "bias", "before", "start", "shared", "wiped", "parted", "integrated", "steps")
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    run = random_run(T, B, 2, H, K, **{name: data.draw(st.booleans()) for name in names})
    dynamics = Dynamics(data.draw(st.integers(0, 2)), "sustained", "tanh", data.draw(st.booleans()))
    grads = torch.rand(T, B, H).double(), torch.rand(B, H, H).double() if K < T and data.draw(st.booleans()) else None
    ours, theirs = triton.forward(run, dynamics, True), chunked.forward(run, dynamics, True)
    assert_near(ours.hs, theirs.hs, 1e-9, "hs")
    found = triton.backward(*grads, run, ours, dynamics, EVERYTHING)
    expected = chunked.backward(*grads, run, theirs, dynamics, EVERYTHING)
    for name in found._fields:
        unasked = getattr(run, name) is None or (name == "p_left" and run.steps is not None)
        if not unasked:
            assert_near(getattr(found, name), getattr(expected, name), 1e-9, name)


@pytest.mark.parametrize("K", [8, 4])
@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_weights_of_the_past_across_a_reset_are_not_used(K, steps, before):
    run = random_run(8, 3, 2, 5, K, before=before, integrated=False)
    lengths, reset = torch.tensor([8, 6, 0]) if steps else None, torch.zeros(8, 3).double()
    reset[2, 0] = reset[3, 0] = reset[5, 1] = 1
    if steps and K < 8:
        run.left[0, 2], run.p_left[0, 2] = 0.0, 1.0
    run = run._replace(steps=lengths, reset=reset)
    dynamics, grad_A = Dynamics(2, nonlinearity="tanh"), torch.rand(3, 5, 5).double() if K < 8 else None
    ours, theirs = triton.forward(run, dynamics, True), chunked.forward(run, dynamics, True)
    assert_near(ours.hs, theirs.hs, 1e-9, "hs")
    found = triton.backward(ours.hs, grad_A, run, ours, dynamics, EVERYTHING)
    expected = chunked.backward(ours.hs, grad_A, run, theirs, dynamics, EVERYTHING)
    for name in found._fields:
        if getattr(run, name) is not None and not (name == "p_left" and steps):
            assert_near(getattr(found, name), getattr(expected, name), 1e-9, name)


@pytest.mark.parametrize("H", [64, 200])
def test_nets_of_more_than_one_block(H):
    run = random_run(6, 2, 3, H, 3, shared=True, parted=True, steps=True)._replace(steps=torch.tensor([6, 4]))
    dynamics = Dynamics(1, nonlinearity="tanh")
    run = run._replace(W=run.W / H, A0=run.A0 / H, W_int=run.W_int / H)
    ours, theirs = triton.forward(run, dynamics, True), chunked.forward(run, dynamics, True)
    assert_near(ours.hs, theirs.hs, 1e-9, "hs")
    grad_A = torch.rand(2, H, H).double()
    found = triton.backward(ours.hs, grad_A, run, ours, dynamics, EVERYTHING)
    expected = chunked.backward(ours.hs, grad_A, run, theirs, dynamics, EVERYTHING)
    for name in ("x", "W", "W_int", "gain", "h0", "A0", "w", "p", "left"):
        assert_near(getattr(found, name), getattr(expected, name), 1e-9, name)


def test_no_state_from_before_a_reset_is_seen_whatever_it_is():
    layer = FastWeights(3, 5, backend="triton", layer_norm=False).double()
    x, reset = torch.randn(6, 2, 3).double(), torch.zeros(6, 2).bool()
    x[2, 0], reset[3, 0] = torch.nan, True
    layer._chunk_size = 2
    output, state = layer(x, reset=reset)
    assert output[2, 0].isnan().any()
    assert output[3:].isfinite().all()
    assert state.A.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"settling": "identity", "nonlinearity": "tanh", "layer_norm": False}])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_single_steps(options, batch):
    cell = FastWeightsCell(4, 17, inner_steps=2, backend="triton", **options).double()
    twin = FastWeightsCell(4, 17, inner_steps=2, backend="torch", **options).double()
    twin.load_state_dict(cell.state_dict())
    A = 0.1 * torch.randn(*batch, 17, 17).double()  # a caller's A need not be symmetric
    states = [None, (torch.rand(*batch, 17).double(), A)]
    launches = []
    launch = triton._launch
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "_launch", lambda *args: (launches.append(1), launch(*args)))
        for state in states:
            ours = theirs = state
            for _ in range(3):
                x = torch.randn(*batch, 4).double()
                ours, theirs = cell(x, ours), twin(x, theirs)
                torch.testing.assert_close(ours.h, theirs.h, rtol=1e-9, atol=1e-10)
                torch.testing.assert_close(ours.A, theirs.A, rtol=1e-9, atol=1e-10)
    assert len(launches) == 6


def test_stacked_both_ways_in_half_precision():
    layer = FastWeights(3, 6, 2, bidirectional=True, backend="triton", dtype=torch.bfloat16)
    twin = FastWeights(3, 6, 2, bidirectional=True, backend="torch", dtype=torch.bfloat16)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(5, 2, 3, dtype=torch.bfloat16)
    (ours, state), (theirs, _) = layer(x), twin(x)
    assert ours.dtype == state.A.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs)


def test_an_operator_of_torch_compile():
    layer = FastWeights(3, 6, backend="triton")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x)[0].sin().sum(), [x, *layer.parameters()])
    found = torch.autograd.grad(compiled(x)[0].sin().sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, expected)


def test_an_empty_batch():
    output, state = FastWeights(3, 6, backend="triton")(torch.zeros(4, 0, 3))
    assert output.shape == (4, 0, 6)
    assert state.A.shape == (1, 0, 6, 6)


def test_steps_further_apart_than_2_to_the_31_numbers(tmp_path, monkeypatch):
    """As if there were 2²⁹ sequences, of which the first is computed: in a file with nothing else in it."""
    T, B, H = 2, (1 << 29) + 5, 4
    torch.from_file(str(tmp_path / "sparse"), shared=True, size=1, dtype=torch.float32)
    room = 3 * B * H
    numbers = torch.from_file(str(tmp_path / "sparse"), shared=True, size=room, dtype=torch.float32)
    (tmp_path / "sparse").unlink()
    launch, apart = triton._launch, []

    def far_apart(backward, like, tensors, counts, options):
        moved, start = [], 0
        for tensor in tensors:
            if tensor is None or tensor.dim() < 3 or tensor.shape[-2] != 1 or not tensor.numel():
                moved.append(tensor)
                continue
            size = tensor.shape[-1]
            strides = [B * size * T if place < tensor.dim() - 3 else B * size for place in range(tensor.dim() - 2)]
            moved.append(numbers.as_strided(tensor.shape, (*strides, size, 1), start).copy_(tensor))
            start += 64
        launch(backward, like, moved, (counts[0], B, *counts[2:]), options)
        for tensor, where in zip(tensors, moved, strict=True):
            if tensor is not where:
                tensor.copy_(where)
                apart.append(where.stride(-3))

    run = random_run(T, 1, 3, H, T, before=False, parted=False, wiped=False, integrated=False, dtype=torch.float32)
    results = []
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(triton, "_launch", far_apart)
        saved = triton.forward(run, Dynamics(), True)
        wanted = (True,) * chunked.WEIGHTS + (False,) * 4
        grads = triton.backward(torch.ones(T, 1, H), None, run, saved, Dynamics(), wanted)
        results.append([saved.hs, *(grad for grad in grads if grad is not None)])
    assert max(apart) > 1 << 31
    torch.testing.assert_close(*results)
